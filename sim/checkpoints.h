/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Layer inputs in host memory: with recomputation, forward keeps the input of each layer. Unsloth's
 * offloaded gradient checkpointing copies them to host memory beside forward and back beside
 * backward. hocket's engine does not run it, and nothing is simulated: a closed form on top of a
 * forecast, made as if the GPU had the memory that this frees. With S bytes of a rank's layer
 * inputs in all micro-steps of an iteration, and a rank's rates of copies alone (of the link, or
 * its share of the node's fabric):
 *
 *   forward  = max(forecast's, S / out)
 *   backward = max(forecast's, S / in)
 *
 * Two layers' inputs stay on the GPU: one is computed, one is copied. Other copies of the same
 * direction are not counted, so both times are lower bounds where updates stream through the GPU
 * beside forward or backward (an overlap).
 *
 * Example: 32 layers, 16384 tokens, hidden size 4096, bf16: 4.3 GB, of which 4.0 leave the GPU; at
 * 25 GB/s each way 0.17 s. */
#ifndef HK_SIM_CHECKPOINTS_H
#define HK_SIM_CHECKPOINTS_H

#include "sim/forecast.h"

typedef struct {
  hk_bytes moved; /* of a rank in a micro-step; what GPU memory gains and host memory takes */
  hk_ns forward_ns, backward_ns, iteration_ns;
} hk_checkpoints;

/* Of a rank in a micro-step; 0: the job does not recompute, or has too few layers. */
hk_bytes hk_checkpoints_moved(const hk_model *model, const hk_job *job);
/* The machine with the memory that a forecast for hk_checkpoints_of has: more on each GPU, less on
 * the host, whose memory may become 0. It shares its document with `machine`. */
hk_machine hk_checkpoints_machine(const hk_machine *machine, const hk_job *job, hk_bytes moved);
/* Of a forecast of a job that recomputes. */
hk_checkpoints hk_checkpoints_of(const hk_forecast *forecast, const hk_machine *machine);

#endif
