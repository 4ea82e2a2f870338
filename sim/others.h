/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What users would otherwise run, for `plan --others`: torch's, torchao's and DeepSpeed's ways of
 * training a model whose state is larger than GPU memory. Nothing of them is simulated but forward
 * and backward; the rest are closed forms, and each says how far off it is known to be.
 *
 * With n parameters that a rank updates, t threads of it, r ranks of the node:
 *
 *   B  = dram / r, x dram.unbound_efficiency if r > 1, because torchrun does not bind ranks;
 *        at most dram.process_bytes_per_s
 *   c1 = cpu.adamw / cpu.adamw_thread_scale, what one thread of a team updates
 *   adam(b, e, k) = n / min(e B / b, k t c1)         b bytes a parameter
 *   pass(b) = n / min(0.765 B / b, t u1 8 / b)       u1: as c1, of cpu.unscale, which moves 8 bytes
 *
 * torch's fused AdamW reaches e = 0.765 of what AdamW's traffic alone reaches, DeepSpeedCPUAdam
 * 0.794 (bench/results/engine/node-23-adamw.json, 16 threads).
 *
 * FSDP2 with CPUOffloadPolicy (torch 2.15, torch/distributed/fsdp/_fully_shard/_fsdp_param.py and
 * _fsdp_collectives.py): fp32 shards of parameters in pinned memory are copied up for each
 * all-gather, of forward and of backward, one block ahead; gradients go down in fp32. backward()
 * ends when all have arrived. Then come the norm, the scaling (also by 1) and AdamW on the CPU.
 * With several micro-steps each later one copies to pageable memory and adds there.
 *   forward  = max(GPU's, 4 n / h2d)      backward = max(GPU's, 4 n / h2d, 4 n / d2h, 8 n / duplex)
 *   update   = pass(4) + pass(8) + adam(28, 0.765, 1)
 * Threads: torchrun sets OMP_NUM_THREADS=1, so there is a row with t = 1. A rank started otherwise
 * takes all cores, which the ranks then fight over. On nodes of two GPUs 1807 and 1845 ms were
 * measured with cores / ranks threads, 5937 with one, and 5520 with all.
 *
 * torchao's CPUOffloadOptimizer (torchao 0.19, torchao/optim/cpu_offload.py): one GPU, bf16
 * parameters and moments; gradients are copied during backward; step() updates tensor after tensor
 * as their gradients arrive, and sends weights up meanwhile. step() begins when the host has
 * launched backward, so it runs beside the rest of it on the GPU. No clipping.
 *   iteration = max(GPU's + the embedding's, launches + max(adam(14, 0.765, 0.40), 2 n / h2d))
 * 0.40 is from a run whose phases were synchronized: 560 ms a step for 3.0 G parameters, 16 threads
 * of an H200 node. Conversions make the kernel slow: in cache a thread of a Zen 5 updates 0.53 of
 * what it does in fp32. The row's evidence is a run without synchronization.
 *
 * 8-bit AdamW on the GPU (bitsandbytes, torchao): the simulator's gpu-only with state adamw8bit.
 *
 * SuperOffload (DeepSpeed 0.19.6, deepspeed/runtime/superoffload/superoffload_stage3.py and
 * superoffload_utils.py, with the settings of DeepSpeedExamples: ratio 0.9, cpuadam_cores_perc
 * 0.9): a process with 0.9 t threads copies each subgroup's fp32 gradients (8 bytes) and updates it
 * beside backward; the step casts new weights on 0.1 t threads and copies them. m = 0.9 n are on
 * the host:
 *   backward = max(GPU's, 6 m / d2h, adam of m(36, 0.794, 1))
 *   update   = m / min(B / 6, 0.1 t x the cast's c1) + 2 m / h2d
 * With gradient_clipping nothing is updated beside backward: the pass that scales, on 0.1 t
 * threads, and the update come after it.
 *
 * Example: 1 G parameters, one rank, 16 threads, 140 GB/s, c1 = 0.8 G/s: FSDP2's AdamW takes
 * 1 / min(0.765 x 140 / 28, 12.8) = 0.26 s, and with one thread 1 / 0.8 = 1.25 s. */
#ifndef HK_SIM_OTHERS_H
#define HK_SIM_OTHERS_H

#include "sim/rank.h"

typedef enum {
  HK_OTHER_FSDP,
  HK_OTHER_FSDP_ONE_THREAD,
  HK_OTHER_TORCHAO,
  HK_OTHER_8BIT,
  HK_OTHER_SUPEROFFLOAD,
  HK_OTHER_COUNT
} hk_other_kind;

typedef struct {
  const char *name, *source; /* the version that was read */
  const char *note;          /* what it keeps, and what it assumes */
  double error_pct;          /* of a predicted iteration against evidence; NAN: no run known */
  const char *evidence;
} hk_other_info;
extern const hk_other_info hk_other_infos[HK_OTHER_COUNT];

/* What the closed forms are of. */
typedef struct {
  double n;                          /* parameters that a rank updates */
  double last;                       /* those whose gradients come last: the embedding's */
  int ranks, world, threads;         /* of the node; of all nodes; of a rank */
  int micro_steps;                   /* of an iteration */
  bool clips;                        /* matters to SuperOffload */
  hk_ns forward, backward, launches; /* of an iteration, with everything on the GPU */
  hk_ns update_8bit;
} hk_others_job;

typedef struct {
  bool runs; /* false: it does not train such jobs; the rest is then 0 */
  hk_ns forward_ns, backward_ns, update_ns, iteration_ns;
  double tokens_per_s;
  hk_bytes gpu, host;             /* peak of a GPU; of the node */
  hk_bytes gpu_short, host_short; /* missing bytes; both 0: it fits */
} hk_other;

/* The times of one row. */
hk_other hk_other_times(hk_other_kind kind, const hk_others_job *job, const hk_machine *machine);

/* All rows of a job. HK_INPUT: a job with frozen parameters, pipeline or expert parallelism, which
 * the closed forms do not know. */
hk_status hk_others_make(const hk_model *model, const hk_machine *machine, const hk_job *job,
                         const hk_plan_settings *settings, bool clips,
                         hk_other rows[HK_OTHER_COUNT], hk_error *err);
/* Whether the way trains the job, in the memory that is there. */
static inline bool hk_other_fits(const hk_other *row) {
  return row->runs && row->gpu_short == 0 && row->host_short == 0;
}
/* The fastest row that fits; HK_OTHER_COUNT: none. */
hk_other_kind hk_others_fastest(const hk_other rows[HK_OTHER_COUNT]);

#endif
