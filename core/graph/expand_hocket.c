/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step as hocket's engine runs it. CPU team and GPU update their own subgroups at the
 * same time. Copies to the GPU, copies to the host, and updated weights have a lane each. An
 * operation waits for its data and, if staged, for a free staging buffer, and for nothing else. */
#include "core/graph/expand.h"

/* One piece of a subgroup on its way through the update. */
typedef struct {
  hk_expansion *x;
  int rank;
  int32_t barrier;
  int32_t subgroup, piece;
  int64_t offset, n;
  hk_when when;
} hk_part;

/* Records the operation for which the next iteration waits; does nothing without an overlap, and
 * for stolen pieces: the engine's graph has one iteration. */
static void note(const hk_part *p, int32_t *pieces, int32_t op) {
  if (pieces != NULL && p->when != HK_WHEN_STOLEN)
    *hk_piece_of(p->x, pieces, p->rank, p->subgroup, p->piece) = op;
}

static hk_op op_of(const hk_part *p, hk_op_kind kind, int64_t work) {
  hk_op op = hk_expand_piece_op(p->x, kind, work, p->subgroup, p->piece, p->offset);
  op.when = p->when;
  return op;
}

static int32_t add(const hk_part *p, hk_lane_kind lane, hk_op_kind kind, int64_t work,
                   int32_t after, int32_t and_after) {
  const hk_op op = op_of(p, kind, work);
  return HK_ADD(p->x, p->rank, lane, op, after, and_after);
}

/* Whether an operation on the CPU runs ahead of the barrier. */
static bool runs_ahead(const hk_part *p) {
  return p->x->pieces.flushed != NULL && hk_expand_ahead(p->x, p->subgroup) &&
         *hk_piece_of(p->x, p->x->pieces.flushed, p->rank, p->subgroup, p->piece) >= 0;
}

/* Adds the update of a CPU's piece. It waits for the barrier. If it runs ahead of that, it waits
 * for the arrival of its own gradients, or, with clipping by block, for that of all gradients of
 * the blocks that the subgroup has parts of, on all ranks: their norms are known then. */
static int32_t add_adamw_cpu(const hk_part *p, hk_op op) {
  hk_expansion *x = p->x;
  const hk_pieces *pieces = &x->pieces;
  if (!runs_ahead(p)) return HK_ADD(x, p->rank, HK_LANE_CPU, op, p->barrier);
  if (x->plan->clip != HK_CLIP_BLOCK) {
    const int32_t flushed = *hk_piece_of(x, pieces->flushed, p->rank, p->subgroup, p->piece);
    return HK_ADD(x, p->rank, HK_LANE_CPU, op, flushed);
  }
  const int32_t from = pieces->block_begin[pieces->first[p->subgroup]];
  const int32_t to = pieces->block_end[pieces->last[p->subgroup]];
  const int32_t begin = pieces->piece_begin[from], end = pieces->piece_begin[to];
  size_t n = 0;
  for (int rank = 0; rank < x->graph->ranks; rank++) {
    for (int32_t i = begin; i < end; i++) {
      pieces->scratch[n++] = pieces->flushed[rank * pieces->n_pieces + i];
    }
  }
  return hk_expand_add(x, p->rank, HK_LANE_CPU, op, pieces->scratch, n);
}

/* Fused AdamW by the team; the new weights are copied while the team updates the next piece. The
 * model's tensors receive them only after the barrier (the norm is known). With an overlap the
 * weights wait for that in host memory or, if they are early, in GPU memory. */
static void update_cpu(const hk_part *p) {
  hk_expansion *x = p->x;
  hk_op adamw = op_of(p, HK_OP_ADAMW_CPU, p->n);
  adamw.threads = x->plan->cpu_threads;
  adamw.ahead = hk_expand_ahead(x, p->subgroup);
  const int32_t done = add_adamw_cpu(p, adamw);
  const bool early = hk_expand_early(x, p->subgroup);
  const int64_t weights = hk_expand_weights(x, p->subgroup, p->offset, p->n);
  int32_t up = add(p, HK_LANE_UP, HK_OP_WEIGHT_H2D, weights, done,
                   x->plan->overlap != HK_OVERLAP_NONE && !early ? p->barrier : -1);
  if (early) up = add(p, HK_LANE_UP, HK_OP_WEIGHT_PLACE, weights, up, p->barrier);
  note(p, x->pieces.updated, done);
  note(p, x->pieces.written, up);
}

/* The update by the GPU of state in GPU memory, after operation `ready`; with Muon, behind its
 * matrix products. */
static int32_t update_gpu(const hk_part *p, int32_t ready) {
  const hk_plan *plan = p->x->plan;
  if (hk_optimizer_info_of(plan->optimizer)->orthogonal) {
    const double flops = hk_model_newton_schulz_flops(&plan->model) * (double)p->n;
    ready = add(p, HK_LANE_UPDATE, HK_OP_NEWTON_SCHULZ, hk_expand_flops(flops), ready, -1);
  }
  return add(p, HK_LANE_UPDATE, HK_OP_ADAMW_GPU, p->n, ready, -1);
}

/* State to the GPU, the update, state back. *buffer: the write-back that last used the staging
 * buffer. With an overlap state goes up on the lane of new weights, which takes the copies of
 * shallow blocks first: the GPU has one copy engine for both. Gradients that have been flushed to
 * the host come back with the state.
 */
static void update_staged(const hk_part *p, int32_t *buffer) {
  hk_pieces *pieces = &p->x->pieces;
  int32_t deps[] = {p->barrier, *buffer, -1};
  if (pieces->returned != NULL) /* of the iteration before */
    deps[2] = *hk_piece_of(p->x, pieces->returned, p->rank, p->subgroup, p->piece);
  const hk_bytes state = hk_state_bytes(p->x->plan->optimizer, p->n);
  const hk_bytes grads =
      hk_when_flushed(p->when) ? hk_expand_grads(p->x, p->subgroup, p->offset, p->n) : 0;
  hk_op fetch = op_of(p, HK_OP_STATE_H2D, state + grads);
  if (p->when == HK_WHEN_STOLEN) fetch.priority = INT32_MAX; /* after all that is planned */
  const hk_lane_kind lane = p->x->plan->overlap == HK_OVERLAP_NONE ? HK_LANE_H2D : HK_LANE_UP;
  const int32_t in = hk_expand_add(p->x, p->rank, lane, fetch, deps, 3);
  const int32_t done = update_gpu(p, in);
  *buffer = add(p, HK_LANE_D2H, HK_OP_STATE_D2H, state, done, -1);
  note(p, pieces->updated, done);
  note(p, pieces->written, done);
  note(p, pieces->returned, *buffer);
}

/* The update by the GPU in place: on state in GPU memory or in mapped host memory. */
static void update_in_place(const hk_part *p, bool is_mapped) {
  const int32_t done = is_mapped ? add(p, HK_LANE_UPDATE, HK_OP_ADAMW_MAPPED, p->n, p->barrier, -1)
                                 : update_gpu(p, p->barrier);
  note(p, p->x->pieces.updated, done);
  note(p, p->x->pieces.written, done);
}

/* Adds a piece's operations of route staged, with the next staging buffer. */
static void stage(const hk_part *p, int32_t *buffers, int *next) {
  update_staged(p, &buffers[*next]);
  *next = (*next + 1) % p->x->plan->buffers;
}

/* A subgroup on route cpu, whose pieces are staged instead in steps in which nothing runs ahead if
 * it is held_staged. */
static void update_cpu_or_stage(hk_part *p, int32_t *buffers, int *next) {
  const hk_plan *plan = p->x->plan;
  const bool either = plan->subgroups[p->subgroup].held_staged;
  const bool held = plan->steps == HK_STEPS_HELD;
  p->when = either ? HK_WHEN_KEPT : HK_WHEN_ALWAYS;
  if (!either || !held || p->x->both_steps) update_cpu(p);
  p->when = HK_WHEN_HELD;
  if (either && (held || p->x->both_steps)) stage(p, buffers, next);
}

/* Adds what the GPU may take from the CPU, deepest piece first. */
static void steal(hk_expansion *x, int rank, int32_t barrier, int32_t *buffers, int *next) {
  const hk_plan *plan = x->plan;
  for (size_t i = plan->n_subgroups; i-- > 0;) {
    const int32_t s = plan->order[i];
    const int64_t numel = plan->subgroups[s].numel, most = hk_expand_piece(plan, s);
    if (!hk_plan_stealable(plan, (size_t)s)) continue;
    hk_part part = {.x = x, .rank = rank, .barrier = barrier, .subgroup = s};
    part.when = HK_WHEN_STOLEN;
    for (part.piece = (int32_t)((numel - 1) / most); part.piece >= 0; part.piece--) {
      part.offset = part.piece * most;
      part.n = hk_min(most, numel - part.offset);
      stage(&part, buffers, next);
    }
  }
}

void hk_expand_update_hocket(hk_expansion *x, int rank, int32_t barrier) {
  const hk_plan *plan = x->plan;
  int32_t *buffers = &x->buffers[rank * plan->buffers];
  int next_buffer = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const int32_t s = plan->order[i];
    const hk_plan_subgroup *subgroup = &plan->subgroups[s];
    const int64_t most = hk_expand_piece(plan, s);
    hk_part part = {.x = x, .rank = rank, .barrier = barrier, .subgroup = s};
    for (; part.offset < subgroup->numel; part.offset += most, part.piece++) {
      part.n = hk_min(most, subgroup->numel - part.offset);
      switch (subgroup->route) {
        case HK_ROUTE_CPU:
          update_cpu_or_stage(&part, buffers, &next_buffer);
          break;
        case HK_ROUTE_STAGED:
          stage(&part, buffers, &next_buffer);
          break;
        case HK_ROUTE_MAPPED:
          update_in_place(&part, true);
          break;
        case HK_ROUTE_RESIDENT:
        default:
          update_in_place(&part, false);
          break;
      }
    }
  }
  if (x->both_steps && hk_plan_steals(plan)) steal(x, rank, barrier, buffers, &next_buffer);
}
