/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory that each operation allocates when it starts and frees when it ends, and memory in use
 * before the first operation, for all operations in one place. Sizes under DeepSpeed are in
 * expand_sizes.c.
 *
 * Under DeepSpeed all memory of a block's backward belongs to its backward operation, although
 * reductions run at the same time: PyTorch allocates when the host thread asks, in program order,
 * not when a stream reaches the operation. */
#include <math.h>

#include "core/graph/bytes.h"
#include "core/graph/expand.h"

static const hk_block_cost *block_of(const hk_expansion *x, const hk_op *op) {
  return &x->blocks[op->block - HK_BLOCK_EMBED];
}

static hk_route route_of(const hk_expansion *x, const hk_op *op) {
  return x->plan->subgroups[op->subgroup].route;
}

/* -- hocket: gradients accumulate in their own type on the GPU, and the last micro-step flushes
 * them; or in host memory --------------------------------------------------------------------- */

/* New gradient memory after a block's reduction: this rank's share in the first micro-step; later
 * ones add to the same memory. If sums are in host memory, gradients of route cpu leave in each
 * micro-step. */
static hk_bytes kept_grads(const hk_expansion *x, const hk_block_cost *cost, const hk_op *op) {
  const bool leave = x->accumulate != HK_ACCUMULATE_GPU;
  return (op->micro == 0 || leave ? cost->host_grad_bytes : 0) +
         (op->micro == 0 ? cost->gpu_grad_bytes : 0);
}

/* Sums that came back to the GPU and leave with a copy of `bytes` of gradients. */
static hk_bytes returned_sums(const hk_expansion *x, const hk_op *op, hk_bytes bytes) {
  return x->accumulate == HK_ACCUMULATE_HOST && op->micro > 0 ? bytes : 0;
}

static void hocket_training(const hk_expansion *x, hk_op *op) {
  const hk_block_cost *cost = block_of(x, op);
  const bool casts = x->plan->flush == HK_FLUSH_ASYNC && x->plan->flush_bytes_per_param == 4;
  const hk_bytes cast = casts ? HK_BYTES_FP32 * cost->host_grads : 0;
  /* Ranks that keep their weights keep whole gradients until the last micro-step reduces them. */
  const bool keeps = x->keeps_weights;
  if (op->experts) return; /* their memory is part of the block's other collective */
  switch (op->kind) {
    case HK_OP_ALL_GATHER:
      op->gpu_alloc = cost->gathered;
      break;
    case HK_OP_FORWARD:
      op->gpu_alloc = cost->activations + cost->loss;
      op->gpu_free = cost->gathered + cost->loss;
      break;
    case HK_OP_BACKWARD:
      op->gpu_alloc = cost->workspace + (keeps && op->micro > 0 ? 0 : cost->all_grad_bytes);
      op->gpu_free = cost->workspace + cost->activations + cost->gathered;
      if (x->dp == 1) op->gpu_free += cost->all_grad_bytes;
      if (x->dp == 1 && !x->handed) op->gpu_free -= kept_grads(x, cost, op);
      break;
    case HK_OP_REDUCE_SCATTER:
      op->gpu_free = cost->all_grad_bytes - (keeps ? cost->host_grad_bytes + cost->gpu_grad_bytes
                                                   : kept_grads(x, cost, op));
      break;
    case HK_OP_GRAD_CAST_GPU:
      op->gpu_alloc = cast;
      break;
    case HK_OP_GRAD_SUM_H2D:
      if (!x->handed) op->gpu_alloc = op->work;
      break;
    case HK_OP_GRAD_SUM_D2H:
      if (!x->handed) op->gpu_free = op->work + returned_sums(x, op, op->work);
      break;
    case HK_OP_GRAD_D2H:
      op->gpu_free = cast;
      if (!x->handed)
        op->gpu_free += cost->host_grad_bytes + returned_sums(x, op, cost->host_grad_bytes);
      break;
    default:
      break;
  }
}

/* -- DeepSpeed --------------------------------------------------------------------------------- */

/* Gathered weights after the block's forward. In later micro-steps the output projection is there
 * from the beginning (stays_gathered in expand_training.c). */
static hk_bytes live_forward(const hk_expansion *x, const hk_block_cost *cost, int micro) {
  const hk_block_cost *head = &x->blocks[x->n_blocks - 1];
  if (micro == 0 || cost == head) return cost->live_forward;
  return hk_min(cost->live_forward + head->weights, head->live_forward);
}

static void deepspeed_training(const hk_expansion *x, hk_rank_memory *rank, hk_op *op) {
  const hk_block_cost *cost = block_of(x, op);
  hk_bytes live = 0;
  switch (op->kind) {
    case HK_OP_ALL_GATHER:
      if (op->phase == HK_PHASE_FORWARD) live = live_forward(x, cost, op->micro);
      if (live > rank->live) {
        op->gpu_alloc = live - rank->live;
        rank->live = live;
      }
      break;
    case HK_OP_FORWARD:
      op->gpu_alloc = cost->activations + cost->loss;
      op->gpu_free = cost->loss;
      break;
    case HK_OP_BACKWARD:
      op->gpu_alloc = cost->workspace;
      op->gpu_free = cost->workspace + cost->activations;
      /* Gradients are summed on the host. The final bf16 sum stays on the GPU for staged subgroups;
       * for resident ones it is added to the fp32 gradient that is there. */
      if (op->micro == x->plan->job.grad_accum - 1)
        op->gpu_alloc += HK_BYTES_BF16 * cost->staged_grads;
      op->gpu_free += rank->live - cost->live_backward;
      rank->live = cost->live_backward;
      break;
    default: /* gradients are in the bucket; temporary memory of a flush is in the workspace */
      break;
  }
}

/* A fetch reuses the buffers of the previous fetch if the sizes are equal. If not, it allocates new
 * ones. Published peaks are matched if the old master weights are freed when the new ones have
 * arrived, and the old moments after the update. The update converts the bf16 gradient to fp32 and
 * has two temporaries of that size. */
static void deepspeed_staged(hk_rank_memory *rank, hk_op *op) {
  if (op->kind == HK_OP_STATE_H2D) {
    const int64_t n = op->work / HK_BYTES_FP32;
    if (n == rank->staged) return;
    op->gpu_alloc = HK_BYTES_FP32 * n;
    if (op->piece == 0) op->gpu_free = HK_BYTES_FP32 * rank->staged;
  } else if (op->kind == HK_OP_ADAMW_GPU) {
    const int64_t n = op->work;
    op->gpu_alloc = (3 * HK_BYTES_FP32 - HK_BYTES_BF16) * n;
    op->gpu_free = 3 * HK_BYTES_FP32 * n;
    if (n != rank->staged) op->gpu_free += 2 * HK_BYTES_FP32 * rank->staged;
    rank->staged = n;
  }
}

static void deepspeed_update(const hk_expansion *x, hk_rank_memory *rank, hk_op *op) {
  if (op->subgroup >= 0 && route_of(x, op) == HK_ROUTE_STAGED) deepspeed_staged(rank, op);
  if (op->kind != HK_OP_SUBGROUP_OVERHEAD) return;
  op->gpu_free +=
      rank->live; /* weights that backward left gathered are freed at the first subgroup */
  rank->live = 0;
}

void hk_expand_memory(hk_expansion *x, hk_op *op) {
  const bool training = op->block != HK_BLOCK_NONE && op->subgroup < 0;
  if (x->plan->runtime == HK_RUNTIME_DEEPSPEED) {
    hk_rank_memory *rank = &x->memory[op->rank];
    if (training) {
      deepspeed_training(x, rank, op);
    } else {
      deepspeed_update(x, rank, op);
    }
    return;
  }
  if (training) {
    hocket_training(x, op);
  } else if (x->handed) {
    op->gpu_free = 0;
  } else if (hk_when_flushed(op->when)) {
    op->gpu_free = 0; /* its gradients were freed when they left for the host */
  } else if (op->kind == HK_OP_ADAMW_GPU || op->kind == HK_OP_ADAMW_MAPPED) {
    op->gpu_free = hk_expand_grads(x, op->subgroup, op->offset, op->work);
  } else if (op->kind == HK_OP_GRAD_D2H) {
    op->gpu_free = op->work + returned_sums(x, op, op->work);
  }
}

/* -- before the first operation ---------------------------------------------------------------- */

static int64_t largest_on(const hk_plan *plan, hk_route route) {
  int64_t largest = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[i];
    if (subgroup->route == route && subgroup->numel > largest) largest = subgroup->numel;
  }
  return largest;
}

static int64_t largest_piece(const hk_plan *plan) {
  int64_t largest = 0;
  for (int route = 0; route < HK_ROUTE_COUNT; route++) {
    const int64_t on_route = largest_on(plan, (hk_route)route);
    if (on_route > largest) largest = on_route;
  }
  return largest < plan->piece_numel ? largest : plan->piece_numel;
}

/* Sums over one rank's subgroups, in bytes. */
typedef struct {
  hk_bytes weights, grads[HK_ROUTE_COUNT], host_weights; /* host_weights: of route cpu */
} totals;

static totals totals_of(const hk_expansion *x) {
  totals sums = {0};
  for (size_t s = 0; s < x->plan->n_subgroups; s++) {
    const hk_plan_subgroup *subgroup = &x->plan->subgroups[s];
    const hk_bytes weights = hk_expand_weights(x, (int32_t)s, 0, subgroup->numel);
    sums.weights += weights;
    sums.grads[subgroup->route] += hk_expand_grads(x, (int32_t)s, 0, subgroup->numel);
    if (subgroup->route == HK_ROUTE_CPU) sums.host_weights += weights;
  }
  return sums;
}

/* hocket's host memory besides state: gradients and new weights of route cpu, and spares. Some
 * state contains the weights. State that comes back from the GPU or is updated before the norm is
 * known goes to a spare, so that the old state survives a failed step. */
static hk_bytes hocket_host(const hk_plan *plan, const totals *sums) {
  const bool weights = !hk_optimizer_info_of(plan->optimizer)->weight;
  const int64_t stolen =
      hk_plan_steals(plan) ? hk_min(largest_on(plan, HK_ROUTE_CPU), plan->piece_numel) : 0;
  const int64_t spare_staged = hk_max(largest_on(plan, HK_ROUTE_STAGED), stolen);
  return sums->grads[HK_ROUTE_CPU] + (weights ? sums->host_weights : 0) +
         hk_state_bytes(plan->optimizer, spare_staged + largest_on(plan, HK_ROUTE_MAPPED)) +
         hk_spare_bytes(plan->optimizer, hk_plan_ahead(plan));
}

/* GPU memory that the engine keeps for gradients that a framework hands over: the array and the
 * slots. */
static hk_bytes handed_bytes(const hk_expansion *x, const totals *sums) {
  if (!x->handed) return 0;
  const hk_bytes array =
      sums->grads[HK_ROUTE_STAGED] + sums->grads[HK_ROUTE_MAPPED] + sums->grads[HK_ROUTE_RESIDENT];
  return array + hk_plan_grad_room(x->plan).bytes;
}

/* Staging buffers. Those for steps in which nothing runs ahead, and for pieces that the GPU takes
 * from the CPU, also have room for gradients. */
static hk_bytes staging_bytes(const hk_expansion *x) {
  const hk_plan *plan = x->plan;
  const bool steals = hk_plan_steals(plan);
  hk_bytes grads = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[s];
    const int64_t most = hk_min(subgroup->numel, plan->piece_numel);
    const bool with_grads = subgroup->held_staged || (steals && hk_plan_stealable(plan, s));
    for (int64_t at = 0; with_grads && at < subgroup->numel; at += most)
      grads = hk_max(grads, hk_expand_grads(x, (int32_t)s, at, hk_min(most, subgroup->numel - at)));
  }
  if (hk_plan_on_route(plan, HK_ROUTE_STAGED) == 0 && grads == 0) return 0;
  const double state = hk_state_per_param(plan->optimizer) * (double)largest_piece(plan);
  return hk_whole_bytes(plan->buffers * (state + (double)grads));
}

/* Gradients on the GPU before the first operation, if backward is not in the graph. */
static hk_bytes waiting_grads(const hk_plan *plan, const totals *sums, unsigned phases) {
  if ((phases & HK_EXPAND_TRAINING) != 0) return 0;
  if (plan->runtime == HK_RUNTIME_DEEPSPEED) return sums->grads[HK_ROUTE_STAGED];
  hk_bytes bytes = 0;
  for (int route = 0; route < HK_ROUTE_COUNT; route++) bytes += sums->grads[route];
  return hk_expands_engine(plan, phases) ? bytes : bytes - sums->grads[HK_ROUTE_CPU];
}

/* Activations of further micro-batches that the first stage of a pipeline keeps. The graph has one
 * micro-batch, on a stage that also has the head, as the last one does; the first stage has none.
 */
static hk_bytes waiting_activations(const hk_expansion *x) {
  double layers = 0;
  if (x->stage_sent == 0) return 0;
  for (int i = 0; i + 1 < x->n_blocks; i++) layers += (double)x->blocks[i].activations;
  const hk_block_cost *head = &x->blocks[x->n_blocks - 1];
  const double more = (hk_job_in_flight(&x->plan->job) - 1) * layers;
  return hk_whole_bytes(
      fmax(0, more - (double)(head->activations + hk_max(head->workspace, head->loss))));
}

void hk_expand_base_memory(hk_expansion *x, unsigned phases) {
  const hk_plan *plan = x->plan;
  hk_graph *graph = x->graph;
  const totals sums = totals_of(x);
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  const int64_t on_host = n[HK_ROUTE_CPU] + n[HK_ROUTE_STAGED] + n[HK_ROUTE_MAPPED];
  const hk_bytes weights =
      x->keeps_weights
          ? hk_model_weight_bytes(&plan->model, plan->job.tp, 1, 0,
                                  hk_model_rank_parameters(&plan->model, plan->job.tp, 1))
          : sums.weights;
  graph->gpu_base = weights + waiting_activations(x) +
                    hk_model_all_frozen_bytes(&plan->model, plan->job.tp, x->dp) +
                    hk_state_bytes(plan->optimizer, n[HK_ROUTE_RESIDENT]);
  hk_bytes host = hk_state_bytes(plan->optimizer, on_host);
  if (plan->runtime == HK_RUNTIME_DEEPSPEED) {
    /* fp32 gradients wherever the optimizer runs; on the host beside the bf16 ones that arrive. */
    host += (HK_BYTES_FP32 + HK_BYTES_BF16) * on_host;
    graph->gpu_base += HK_BYTES_FP32 * n[HK_ROUTE_RESIDENT] + hk_expand_deepspeed_base(x);
    hk_expand_deepspeed_device(x);
  } else {
    host += hocket_host(plan, &sums);
    graph->gpu_base +=
        HK_BYTES_BF16 * hk_plan_early(plan) + handed_bytes(x, &sums) + staging_bytes(x);
  }
  graph->host_base = host * graph->ranks * graph->multiplicity;
  graph->gpu_base += waiting_grads(plan, &sums, phases);
}
