/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Memory of a training step without a machine: what each way of dividing weights, gradients and
 * optimizer state needs on a GPU and on the hosts. `estimate` prints it.
 *
 * The operations of the task graph (core/graph/graph.h) allocate and free memory in the graph's
 * order, one after the other; the next block's weights are gathered while a block computes. With
 * offload the peak depends on the machine: gradients that leave the GPU more slowly than backward
 * makes them wait in GPU memory. The footprint has both ends: all of them wait, none does.
 *
 * ZeRO-1 and ZeRO-2 (arXiv 1910.02054) have no task graph in hocket, which divides everything
 * (ZeRO-3) or nothing. With W weights, G gradients and S optimizer state of the whole model on N
 * ranks, and P the peak of one rank that has everything:
 *   ZeRO-1   P - S (1 - 1/N)
 *   ZeRO-2   P - (S + G) (1 - 1/N) + gradients of the largest block, until they are reduced
 *
 * Example: 6.74 G parameters have W = G = 12.6 GiB and S = 75.3 GiB; with 1 GiB of activations one
 * GPU needs 101 GiB, and with ZeRO-1 on 8 ranks 101 - 75.3 x 7/8 = 35 GiB each. */
#ifndef HK_SIM_FOOTPRINT_H
#define HK_SIM_FOOTPRINT_H

#include "core/graph/plan.h"

typedef enum {
  HK_WAY_GPU,     /* everything on each GPU: one rank, or data parallelism without ZeRO */
  HK_WAY_OFFLOAD, /* one rank; state in host memory, updated by the CPU */
  HK_WAY_STREAM,  /* one rank; state in host memory, updated on the GPU after a round trip */
  HK_WAY_ZERO1,   /* N ranks, everything on the GPUs: state divided */
  HK_WAY_ZERO2,   /* state and gradients divided */
  HK_WAY_ZERO3,   /* state, gradients and weights divided */
  HK_WAY_ZERO3_OFFLOAD,
  HK_WAY_ZERO3_STREAM,
  HK_WAY_COUNT
} hk_way;

const char *hk_way_name(hk_way way);    /* "zero-3", ... */
const char *hk_way_meaning(hk_way way); /* one line */
bool hk_way_is_divided(hk_way way);     /* over N ranks */

/* Bytes. On a GPU: weights (frozen ones, too), gradients and optimizer that stay there, and the
 * rest of the peak: activations, temporary memory, gathered weights, gradients on their way,
 * staging buffers. Their sum is `gpu`. */
typedef struct {
  int ranks;          /* data-parallel: 1, or N */
  hk_bytes gpu;       /* peak of each GPU, at most */
  hk_bytes gpu_least; /* if copies of gradients keep pace with backward */
  hk_bytes weights, gradients, optimizer, rest;
  hk_bytes host; /* of all ranks together */
} hk_footprint;

/* Activations of one rank: what forward saves for backward, and the most temporary memory that the
 * backward of a block takes. At the peak gradients may have taken their place. */
typedef struct {
  hk_bytes saved, workspace;
} hk_activations;
hk_activations hk_activations_of(const hk_model *model, const hk_job *job);

/* All ways, with the state of an optimizer. `accumulate`: where the gradients of several
 * micro-steps are summed if the state is on the host (core/graph/plan.h). A way that the optimizer
 * does not allow (muon on the CPU) has ranks 0. The number of data-parallel ranks N is
 * hk_job_dp(job); with N = 1 the divided ways are those of one rank. HK_INPUT: the job is not
 * possible (hk_job_check). */
hk_status hk_footprint_make(const hk_model *model, const hk_job *job, hk_optimizer optimizer,
                            hk_accumulate accumulate, hk_footprint ways[HK_WAY_COUNT],
                            hk_error *err);

#endif
