/* SPDX-License-Identifier: Apache-2.0 */
/* Additions for an overlap: gradients are flushed in the pieces in which they are updated, the
 * barrier (the norm) waits for all of them, and updates are in the order in which forward needs
 * weights. */
#include <stdlib.h>
#include <string.h>

#include "core/graph/expand.h"

#define MOST_PIECES (1 << 22) /* the largest number of operations of a graph */

static hk_status count_pieces(hk_expansion *x) {
  const hk_plan *plan = x->plan;
  int64_t pieces = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    const int64_t most = hk_expand_piece(plan, (int32_t)s), numel = plan->subgroups[s].numel;
    x->pieces.piece_begin[s] = (int32_t)pieces;
    pieces += numel / most + (numel % most != 0);
    if (pieces > MOST_PIECES)
      return hk_fail(x->err, HK_INPUT,
                     "the plan expands to more than %d operations; use larger subgroups or pieces",
                     MOST_PIECES);
  }
  x->pieces.piece_begin[plan->n_subgroups] = x->pieces.n_pieces = (int32_t)pieces;
  return HK_OK;
}

/* Subgroups and blocks are intervals of one flat order, so the subgroups of a block are
 * consecutive. */
static void find_subgroups_of_blocks(hk_expansion *x) {
  hk_pieces *p = &x->pieces;
  const int32_t n = (int32_t)x->plan->n_subgroups;
  int32_t s = 0;
  for (int32_t b = 0; b < x->n_blocks; b++) {
    while (s < n && p->last[s] < b) s++;
    p->block_begin[b] = s;
    int32_t end = s;
    while (end < n && p->first[end] <= b) end++;
    p->block_end[b] = end;
  }
}

static int32_t *room_for(hk_expansion *x, size_t n) {
  int32_t *room = malloc((n + 1) * sizeof *room);
  if (room == NULL) {
    x->status = hk_fail_memory(x->err, n * sizeof *room, "the task graph");
  } else {
    memset(room, -1, (n + 1) * sizeof *room);
  }
  return room;
}

/* Lanes of the framework. The barrier does not wait for the update's lanes, which may still run the
 * iteration before. */
static const hk_lane_kind framework[] = {HK_LANE_HOST, HK_LANE_GPU, HK_LANE_NET};
#define FRAMEWORK_LANES (sizeof framework / sizeof framework[0])

hk_status hk_expand_pieces_open(hk_expansion *x) {
  const hk_plan *plan = x->plan;
  hk_pieces *p = &x->pieces;
  if (plan->overlap == HK_OVERLAP_NONE) return HK_OK;
  const size_t n = plan->n_subgroups, ranks = (size_t)x->graph->ranks;
  p->first = room_for(x, n);
  p->last = room_for(x, n);
  p->block_begin = room_for(x, (size_t)x->n_blocks);
  p->block_end = room_for(x, (size_t)x->n_blocks);
  p->piece_begin = room_for(x, n + 1);
  HK_TRY(x->status);
  hk_plan_subgroup_blocks(plan, p->first, p->last);
  find_subgroups_of_blocks(x);
  HK_TRY(count_pieces(x));
  const size_t pieces = ranks * (size_t)p->n_pieces;
  p->flushed = room_for(x, pieces);
  p->updated = room_for(x, pieces);
  p->written = room_for(x, pieces);
  p->returned = room_for(x, pieces);
  p->scratch = room_for(x, pieces + ranks * FRAMEWORK_LANES + HK_MOST_GPUS + HK_EXPAND_DEPS);
  return x->status;
}

void hk_expand_pieces_close(hk_expansion *x) {
  hk_pieces *p = &x->pieces;
  int32_t *const all[] = {p->first,   p->last,    p->block_begin, p->block_end, p->piece_begin,
                          p->flushed, p->updated, p->written,     p->returned,  p->scratch};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
  memset(p, 0, sizeof *p);
}

hk_op hk_expand_piece_op(const hk_expansion *x, hk_op_kind kind, int64_t work, int32_t subgroup,
                         int32_t piece, int64_t offset) {
  hk_op op = hk_expand_op(kind, work);
  op.subgroup = subgroup;
  op.piece = piece;
  op.offset = offset;
  if (x->pieces.first == NULL) return op;
  op.block = x->pieces.first[subgroup] + HK_BLOCK_EMBED;
  op.priority = x->pieces.first[subgroup];
  return op;
}

void hk_expand_flush_subgroup(hk_expansion *x, int rank, int32_t subgroup, int32_t ready,
                              int32_t fetched) {
  const hk_plan_subgroup *s = &x->plan->subgroups[subgroup];
  const int64_t most = hk_expand_piece(x->plan, subgroup);
  hk_pieces *p = &x->pieces;
  if (s->route != HK_ROUTE_CPU) return;
  int32_t *flushed = &p->flushed[rank * p->n_pieces + p->piece_begin[subgroup]];
  for (int64_t offset = 0, piece = 0; offset < s->numel; offset += most, piece++) {
    const int64_t n = hk_min(most, s->numel - offset);
    hk_op copy = hk_expand_piece_op(x, HK_OP_GRAD_D2H, hk_expand_grads(x, subgroup, offset, n),
                                    subgroup, (int32_t)piece, offset);
    copy.priority = 0; /* flushed in the order in which gradients become ready */
    copy.micro = x->plan->job.grad_accum - 1;
    flushed[piece] = HK_ADD(x, rank, HK_LANE_FLUSH, copy, ready, fetched);
  }
}

int32_t hk_expand_barrier_pieces(hk_expansion *x) {
  const size_t ranks = (size_t)x->graph->ranks, pieces = ranks * (size_t)x->pieces.n_pieces;
  int32_t *deps = x->pieces.scratch;
  size_t n = 0;
  for (size_t rank = 0; rank < ranks; rank++) {
    for (size_t l = 0; l < FRAMEWORK_LANES; l++)
      deps[n++] = x->last[rank * HK_LANE_KIND_COUNT + (size_t)framework[l]];
  }
  memcpy(deps + n, x->pieces.flushed, pieces * sizeof *deps);
  return hk_expand_add(x, 0, HK_LANE_HOST, hk_expand_op(HK_OP_BARRIER, 0), deps, n + pieces);
}

int32_t hk_expand_add_carried(hk_expansion *x, int rank, hk_lane_kind lane, hk_op op,
                              const int32_t *deps, size_t n_deps, const int32_t *what,
                              bool all_ranks) {
  const hk_pieces *p = &x->pieces;
  if (what == NULL || x->phase != HK_PHASE_FORWARD || op.micro != 0)
    return hk_expand_add(x, rank, lane, op, deps, n_deps);
  const int32_t block = op.block - HK_BLOCK_EMBED;
  const int32_t begin = p->piece_begin[p->block_begin[block]];
  const int32_t end = p->piece_begin[p->block_end[block]];
  int32_t *list = p->scratch;
  if (n_deps > 0) memcpy(list, deps, n_deps * sizeof *list);
  size_t n = n_deps;
  for (int r = all_ranks ? 0 : rank; r < (all_ranks ? x->graph->ranks : rank + 1); r++) {
    memcpy(list + n, &what[r * p->n_pieces + begin], (size_t)(end - begin) * sizeof *list);
    n += (size_t)(end - begin);
  }
  return hk_expand_add(x, rank, lane, op, list, n);
}
