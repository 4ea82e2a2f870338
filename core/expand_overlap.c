/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What an overlap adds: gradients that leave piece by piece as the update will take them, the norm
 * that is known when all have left, and the order in which forward needs new weights. */
#include <stdlib.h>
#include <string.h>

#include "core/expand.h"

#define MOST_PIECES (1 << 22) /* as many as a graph may have operations */

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

hk_status hk_expand_pieces_open(hk_expansion *x) {
  const hk_plan *plan = x->plan;
  hk_pieces *p = &x->pieces;
  if (plan->overlap == HK_OVERLAP_NONE) return HK_OK;
  const size_t n = plan->n_subgroups, ranks = (size_t)x->graph->ranks;
  p->first = calloc(n, sizeof *p->first);
  p->last = calloc(n, sizeof *p->last);
  p->piece_begin = calloc(n + 1, sizeof *p->piece_begin);
  if (p->first == NULL || p->last == NULL || p->piece_begin == NULL)
    return hk_fail_memory(x->err, 3 * n * sizeof *p->first, "the task graph");
  hk_plan_subgroup_blocks(plan, p->first, p->last);
  HK_TRY(count_pieces(x));
  const size_t bytes = ranks * (size_t)p->n_pieces * sizeof *p->flushed;
  p->flushed = malloc(bytes);
  if (p->flushed == NULL) return hk_fail_memory(x->err, bytes, "the task graph");
  memset(p->flushed, -1, bytes);
  return HK_OK;
}

void hk_expand_pieces_close(hk_expansion *x) {
  free(x->pieces.first);
  free(x->pieces.last);
  free(x->pieces.piece_begin);
  free(x->pieces.flushed);
  memset(&x->pieces, 0, sizeof x->pieces);
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

void hk_expand_flush_subgroup(hk_expansion *x, int rank, int32_t subgroup, int32_t ready) {
  const hk_plan_subgroup *s = &x->plan->subgroups[subgroup];
  const int64_t most = hk_expand_piece(x->plan, subgroup);
  hk_pieces *p = &x->pieces;
  if (s->route != HK_ROUTE_CPU) return;
  int32_t *flushed = &p->flushed[rank * p->n_pieces + p->piece_begin[subgroup]];
  for (int64_t offset = 0, piece = 0; offset < s->numel; offset += most, piece++) {
    const int64_t n = hk_min(most, s->numel - offset);
    hk_op copy = hk_expand_piece_op(x, HK_OP_GRAD_D2H, hk_expand_grads(x, subgroup, offset, n),
                                    subgroup, (int32_t)piece, offset);
    copy.priority = 0; /* in the order in which gradients come */
    copy.micro = x->plan->job.grad_accum - 1;
    flushed[piece] = HK_ADD(x, rank, HK_LANE_FLUSH, copy, ready);
  }
}

/* Lanes of the framework; those of the update may still be at the iteration before. */
static const hk_lane_kind framework[] = {HK_LANE_HOST, HK_LANE_GPU, HK_LANE_NET};

int32_t hk_expand_barrier_pieces(hk_expansion *x) {
  const size_t lanes = sizeof framework / sizeof framework[0];
  const size_t ranks = (size_t)x->graph->ranks, pieces = ranks * (size_t)x->pieces.n_pieces;
  int32_t *deps = malloc((pieces + ranks * lanes) * sizeof *deps);
  if (deps == NULL) {
    x->status = hk_fail_memory(x->err, pieces * sizeof *deps, "a barrier of the task graph");
    return -1;
  }
  size_t n = 0;
  for (size_t rank = 0; rank < ranks; rank++) {
    for (size_t l = 0; l < lanes; l++)
      deps[n++] = x->last[rank * HK_LANE_KIND_COUNT + (size_t)framework[l]];
  }
  memcpy(deps + n, x->pieces.flushed, pieces * sizeof *deps);
  const int32_t id =
      hk_expand_add(x, 0, HK_LANE_HOST, hk_expand_op(HK_OP_BARRIER, 0), deps, n + pieces);
  free(deps);
  return id;
}
