/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step as DeepSpeed ZeRO-3 offload and the published Deep Optimizer States prototype
 * run it (docs/simulator.md, "What DeepSpeed does"). One host thread handles the subgroups in
 * order.
 *
 * Without interleaving, each CPU subgroup is unscaled, updated, cast, and copied to the GPU from
 * pageable memory before the next begins.
 *
 * With stride k the prototype repeats for each group of k subgroups: it starts to fetch the state
 * of the group's GPU subgroup; it updates k - 1 subgroups on the CPU, and copies the weights of
 * each from pinned memory during the next update; then it updates the fetched subgroup on the GPU.
 * There is one set of staging buffers. Master weight, momentum and variance have a stream each, on
 * which the write-back of one subgroup precedes the fetch of the next.
 *
 * The prototype's CPU weights have no cast operation here. Its build for the runs on unbound cores
 * copies the first half of the fp32 weights' bytes unconverted (its training losses show that).
 * Other builds are said to cast in a helper thread, but the times of their runs leave no room for
 * that pass over host memory. */
#include "core/graph/bytes.h"
#include "core/graph/expand.h"

static const hk_lane_kind streams[3] = {HK_LANE_STREAM_P, HK_LANE_STREAM_M, HK_LANE_STREAM_V};

static hk_op subgroup_op(hk_op_kind kind, int64_t work, int32_t subgroup) {
  hk_op op = hk_expand_op(kind, work);
  op.subgroup = subgroup;
  return op;
}

typedef struct {
  hk_expansion *x;
  int rank;
  int32_t host; /* last operation of the host thread's loop */
  int32_t fetched[3];
} hk_walk;

static int64_t numel(const hk_walk *w, int32_t s) {
  return w->x->plan->subgroups[s].numel;
}

/* Every CPU subgroup: bookkeeping, unscale, AdamW. */
static int32_t update_on_cpu(hk_walk *w, int32_t s) {
  hk_op overhead = subgroup_op(HK_OP_SUBGROUP_OVERHEAD, 1, s);
  hk_op unscale = subgroup_op(HK_OP_UNSCALE_CPU, numel(w, s), s);
  hk_op adamw = subgroup_op(HK_OP_ADAMW_CPU_FP32, numel(w, s), s);
  unscale.threads = adamw.threads = w->x->plan->cpu_threads;
  HK_ADD(w->x, w->rank, HK_LANE_CPU, overhead, w->host);
  HK_ADD(w->x, w->rank, HK_LANE_CPU, unscale, -1);
  w->host = HK_ADD(w->x, w->rank, HK_LANE_CPU, adamw, -1);
  return w->host;
}

/* DeepSpeed: cast by the team, then a pageable copy; the host thread waits for both. */
static void return_blocking(hk_walk *w, int32_t s) {
  hk_op cast = subgroup_op(HK_OP_CAST_CPU, numel(w, s), s);
  cast.threads = w->x->plan->cpu_threads;
  const int32_t done = HK_ADD(w->x, w->rank, HK_LANE_CPU, cast, w->host);
  w->host = HK_ADD(w->x, w->rank, HK_LANE_UP,
                   subgroup_op(HK_OP_WEIGHT_H2D_PAGEABLE, HK_BYTES_BF16 * numel(w, s), s), done);
}

/* Prototype: a pinned copy without a cast; nothing waits for it. */
static void return_async(hk_walk *w, int32_t s, int32_t updated) {
  HK_ADD(w->x, w->rank, HK_LANE_UP, subgroup_op(HK_OP_WEIGHT_H2D, HK_BYTES_BF16 * numel(w, s), s),
         updated);
}

static void fetch(hk_walk *w, int32_t s) {
  for (int t = 0; t < 3; t++) {
    hk_op in = subgroup_op(HK_OP_STATE_H2D, HK_BYTES_FP32 * numel(w, s), s);
    in.piece = t;
    w->fetched[t] = HK_ADD(w->x, w->rank, streams[t], in, w->host);
  }
}

static void update_fetched(hk_walk *w, int32_t s) {
  hk_op overhead = subgroup_op(HK_OP_SUBGROUP_OVERHEAD, 1, s);
  w->host = HK_ADD(w->x, w->rank, HK_LANE_CPU, overhead, w->host);
  hk_op adamw = subgroup_op(HK_OP_ADAMW_GPU, numel(w, s), s);
  const int32_t done = HK_ADD(w->x, w->rank, HK_LANE_UPDATE, adamw, w->host, w->fetched[0],
                              w->fetched[1], w->fetched[2]);
  for (int t = 0; t < 3; t++) {
    hk_op back = subgroup_op(HK_OP_STATE_D2H, HK_BYTES_FP32 * numel(w, s), s);
    back.piece = t;
    HK_ADD(w->x, w->rank, streams[t], back, done);
  }
}

/* Resident state has its fp32 gradient in GPU memory, too. */
static void update_resident(hk_walk *w, int32_t s) {
  hk_op overhead = subgroup_op(HK_OP_SUBGROUP_OVERHEAD, 1, s);
  w->host = HK_ADD(w->x, w->rank, HK_LANE_CPU, overhead, w->host);
  hk_op adamw = subgroup_op(HK_OP_ADAMW_GPU, numel(w, s), s);
  HK_ADD(w->x, w->rank, HK_LANE_UPDATE, adamw, w->host);
}

/* The first position >= i of the order whose subgroup is staged; n_subgroups: none. */
static size_t next_staged(const hk_plan *plan, size_t i) {
  while (i < plan->n_subgroups && plan->subgroups[plan->order[i]].route != HK_ROUTE_STAGED) i++;
  return i;
}

void hk_expand_update_deepspeed(hk_expansion *x, int rank, int32_t barrier) {
  const hk_plan *plan = x->plan;
  hk_walk w = {.x = x, .rank = rank, .fetched = {-1, -1, -1}};
  size_t staged = next_staged(plan, 0); /* position of the subgroup that is fetched now or next */
  const bool interleaved = hk_plan_interleaves(plan);
  bool in_flight = false;
  w.host = HK_ADD(x, rank, HK_LANE_CPU, hk_expand_op(HK_OP_STEP_OVERHEAD, 0), barrier);

  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const int32_t s = plan->order[i];
    if (!in_flight && staged < plan->n_subgroups && plan->subgroups[s].route != HK_ROUTE_RESIDENT) {
      fetch(&w, plan->order[staged]);
      in_flight = true;
    }
    switch (plan->subgroups[s].route) {
      case HK_ROUTE_STAGED:
        update_fetched(&w, s);
        staged = next_staged(plan, i + 1);
        in_flight = false;
        break;
      case HK_ROUTE_RESIDENT:
        update_resident(&w, s);
        break;
      case HK_ROUTE_CPU:
      case HK_ROUTE_MAPPED: /* refused by the policies: DeepSpeed has no such route */
      default: {
        const int32_t updated = update_on_cpu(&w, s);
        if (interleaved) {
          return_async(&w, s, updated);
        } else {
          return_blocking(&w, s);
        }
        break;
      }
    }
  }
}
