/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Forward and backward of one micro-step, block by block: the framework's host thread launches, the
 * collectives stream gathers weights and reduces gradients (ZeRO-3, arXiv 1910.02054), the compute
 * stream computes, and gradients leave for the host as they become ready. */
#include <string.h>

#include "core/expand.h"

/* A block's weights are gathered at most this many blocks ahead of the computation. */
#define PREFETCH 2

static hk_op block_op(hk_op_kind kind, int64_t work, const hk_block_cost *cost, int micro) {
  hk_op op = hk_expand_op(kind, work);
  op.block = cost->block;
  op.micro = micro;
  return op;
}

static int32_t last_on(const hk_expansion *x, int rank, hk_lane_kind lane) {
  return x->last[rank * HK_LANE_KIND_COUNT + (int)lane];
}

/* A collective starts when every rank of the node has come to it: `ready` holds one operation a
 * rank. `extra` is a dependency of the rank itself. */
static int32_t add_collective(hk_expansion *x, int rank, hk_op op, const int32_t *ready,
                              int32_t extra) {
  int32_t deps[HK_MOST_GPUS + 1];
  const int n = x->graph->ranks;
  for (int r = 0; r < n; r++) deps[r] = ready[r];
  deps[n] = extra;
  return hk_expand_add(x, rank, HK_LANE_NET, op, deps, (size_t)n + 1);
}

/* One pass over the blocks in either direction keeps, for each rank, what later blocks wait for. */
typedef struct {
  int32_t launched[HK_MOST_GPUS], gathered[HK_MOST_GPUS], computed[HK_MOST_GPUS];
  int32_t reduced[HK_MOST_GPUS];            /* activations, across the tensor-parallel group */
  int32_t scattered[HK_MOST_GPUS];          /* gradients, across the data-parallel group */
  int32_t previous[HK_MOST_GPUS][PREFETCH]; /* computations of the blocks before, youngest first */
} hk_pass;

static void begin_pass(hk_pass *pass) {
  memset(pass, -1, sizeof *pass);
}

static void launch_and_gather(hk_expansion *x, hk_pass *pass, const hk_block_cost *cost,
                              int micro) {
  const int ranks = x->graph->ranks;
  for (int r = 0; r < ranks; r++) {
    pass->launched[r] = HK_ADD(x, r, HK_LANE_HOST, block_op(HK_OP_LAUNCH, 1, cost, micro), -1);
  }
  if (cost->gathered == 0) return;
  const hk_bytes received = cost->weights / x->dp * (x->dp - 1);
  for (int r = 0; r < ranks; r++) {
    hk_op gather = block_op(HK_OP_ALL_GATHER, received, cost, micro);
    gather.gpu_alloc = cost->gathered;
    pass->gathered[r] =
        add_collective(x, r, gather, pass->launched, pass->previous[r][PREFETCH - 1]);
  }
}

/* The computation, then its tensor-parallel all-reduce, on which the next block waits. */
static void compute(hk_expansion *x, hk_pass *pass, hk_op op, hk_bytes tp_sent,
                    const hk_block_cost *cost, int micro) {
  const int ranks = x->graph->ranks;
  for (int r = 0; r < ranks; r++) {
    for (int p = PREFETCH - 1; p > 0; p--) pass->previous[r][p] = pass->previous[r][p - 1];
    pass->computed[r] = HK_ADD(x, r, HK_LANE_GPU, op, pass->launched[r],
                               cost->gathered > 0 ? pass->gathered[r] : -1, pass->reduced[r]);
    pass->previous[r][0] = pass->computed[r];
  }
  for (int r = 0; r < ranks; r++) {
    pass->reduced[r] = -1;
    if (tp_sent == 0) continue;
    pass->reduced[r] = add_collective(x, r, block_op(HK_OP_TP_ALL_REDUCE, tp_sent, cost, micro),
                                      pass->computed, -1);
  }
}

void hk_expand_forward(hk_expansion *x, int micro) {
  hk_pass pass;
  begin_pass(&pass);
  for (int i = 0; i < x->n_blocks; i++) {
    const hk_block_cost *cost = &x->blocks[i];
    launch_and_gather(x, &pass, cost, micro);
    hk_op forward = block_op(HK_OP_FORWARD, cost->forward_flops, cost, micro);
    forward.gpu_alloc = cost->activations;
    forward.gpu_free = cost->gathered;
    compute(x, &pass, forward, cost->tp_forward, cost, micro);
  }
}

/* -- gradients ---------------------------------------------------------------------------- */

/* Which gradients of a micro-step stay behind on the GPU when the block has been reduced. Under
 * hocket they accumulate there and leave with the last micro-step; DeepSpeed with CPU offload
 * accumulates in host memory, so that host-bound ones pass through every time. */
static int64_t kept_grads(const hk_expansion *x, const hk_block_cost *cost, int micro) {
  const int64_t gpu = micro == 0 ? cost->gpu_grads : 0;
  if (x->plan->runtime == HK_RUNTIME_DEEPSPEED) return cost->host_grads + gpu;
  return (micro == 0 ? cost->host_grads : 0) + gpu;
}

/* DeepSpeed's asynchronous flush (4 bytes, cast on the GPU) is asynchronous to the host only: in
 * published runs backward grows by the copy's time at PCIe rate, gradient for gradient, so it is
 * queued on the compute stream. Micro-steps before the last flush to where gradients accumulate. */
static bool flushes_in_stream(const hk_expansion *x, int micro) {
  const hk_plan *plan = x->plan;
  return plan->runtime == HK_RUNTIME_DEEPSPEED && plan->flush == HK_FLUSH_ASYNC &&
         plan->flush_bytes_per_param == 4 && micro == plan->job.grad_accum - 1;
}

/* A copy that the host thread does not wait for. */
static void flush_pinned(hk_expansion *x, int rank, const hk_block_cost *cost, int micro,
                         int bytes_per_param, int32_t after) {
  const int64_t n = cost->host_grads;
  const hk_lane_kind lane = flushes_in_stream(x, micro) ? HK_LANE_GPU : HK_LANE_FLUSH;
  hk_op copy = block_op(HK_OP_GRAD_D2H, bytes_per_param * n, cost, micro);
  copy.gpu_free = 2 * n;
  if (bytes_per_param == 4) {
    hk_op cast = block_op(HK_OP_GRAD_CAST_GPU, n, cost, micro);
    cast.gpu_alloc = 4 * n;
    copy.gpu_free += 4 * n;
    after = HK_ADD(x, rank, lane, cast, after);
  }
  HK_ADD(x, rank, lane, copy, after);
}

/* The blocking flush: the host thread waits for the copy before it launches the next block. Under
 * DeepSpeed it is a copy between types, which goes through a fresh pageable buffer and is cast to
 * fp32 on the CPU. */
static void flush_blocking(hk_expansion *x, int rank, const hk_block_cost *cost, int micro,
                           int32_t after) {
  const bool deepspeed = x->plan->runtime == HK_RUNTIME_DEEPSPEED;
  const int64_t n = cost->host_grads;
  hk_op copy = block_op(deepspeed ? HK_OP_GRAD_D2H_PAGEABLE : HK_OP_GRAD_D2H, 2 * n, cost, micro);
  copy.gpu_free = 2 * n;
  const int32_t copied = HK_ADD(x, rank, HK_LANE_FLUSH, copy, after);
  hk_op wait =
      block_op(deepspeed ? HK_OP_GRAD_CAST_CPU : HK_OP_HOST_WAIT, deepspeed ? n : 0, cost, micro);
  wait.threads = deepspeed ? x->plan->cpu_threads : 0;
  HK_ADD(x, rank, HK_LANE_HOST, wait, copied);
}

static void flush(hk_expansion *x, int rank, const hk_block_cost *cost, int micro, int32_t after) {
  const hk_plan *plan = x->plan;
  const bool last = micro == plan->job.grad_accum - 1;
  if (cost->host_grads == 0) return;
  if (!last) {
    if (plan->runtime == HK_RUNTIME_DEEPSPEED) flush_pinned(x, rank, cost, micro, 2, after);
  } else if (plan->flush == HK_FLUSH_SYNC) {
    flush_blocking(x, rank, cost, micro, after);
  } else {
    flush_pinned(x, rank, cost, micro, plan->flush_bytes_per_param, after);
  }
}

void hk_expand_backward(hk_expansion *x, int micro) {
  hk_pass pass;
  const int ranks = x->graph->ranks;
  const hk_block_cost *behind = NULL; /* the block before, whose flush may lag */
  /* A flush on the compute stream goes behind the next block's backward, so that the stream does
   * not wait for the reduction; every other flush is queued at once. */
  const bool lag = flushes_in_stream(x, micro);
  begin_pass(&pass);
  for (int r = 0; r < ranks; r++) pass.previous[r][0] = last_on(x, r, HK_LANE_GPU);
  for (int i = x->n_blocks - 1; i >= 0; i--) {
    const hk_block_cost *cost = &x->blocks[i];
    const hk_bytes grads =
        2 * hk_model_block_parameters(&x->plan->model, cost->block, x->plan->job.tp);
    const hk_bytes dropped = grads - 2 * kept_grads(x, cost, micro);
    launch_and_gather(x, &pass, cost, micro);

    hk_op backward = block_op(HK_OP_BACKWARD, cost->backward_flops, cost, micro);
    backward.gpu_alloc = cost->workspace + grads;
    backward.gpu_free = cost->workspace + cost->activations + cost->gathered;
    if (x->dp == 1) backward.gpu_free += dropped;
    compute(x, &pass, backward, cost->tp_backward, cost, micro);

    for (int r = 0; r < ranks; r++) {
      if (lag && behind != NULL) flush(x, r, behind, micro, pass.scattered[r]);
      pass.scattered[r] = pass.computed[r];
      if (x->dp > 1) {
        hk_op reduce = block_op(HK_OP_REDUCE_SCATTER, grads / x->dp * (x->dp - 1), cost, micro);
        reduce.gpu_free = dropped;
        pass.scattered[r] = add_collective(x, r, reduce, pass.computed, -1);
      }
      if (!lag) flush(x, r, cost, micro, pass.scattered[r]);
    }
    behind = cost;
  }
  for (int r = 0; r < ranks && behind != NULL && lag; r++)
    flush(x, r, behind, micro, pass.scattered[r]);
}
