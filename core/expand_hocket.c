/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step as hocket's engine runs it: CPU team and GPU each work through their own
 * subgroups, copies of both directions and the weights' way up each have a lane, and nothing waits
 * for anything but its own data and a free staging buffer. */
#include <stdlib.h>

#include "core/expand.h"

static hk_op piece_op(hk_op_kind kind, int64_t work, int32_t subgroup, int32_t piece,
                      int64_t offset) {
  hk_op op = hk_expand_op(kind, work);
  op.subgroup = subgroup;
  op.piece = piece;
  op.offset = offset;
  return op;
}

/* Fused AdamW on the team; its bf16 weights go up while the team is at the next piece. */
static void update_cpu(hk_expansion *x, int rank, int32_t s, int32_t piece, int64_t offset,
                       int64_t n, int32_t barrier) {
  hk_op adamw = piece_op(HK_OP_ADAMW_CPU, n, s, piece, offset);
  adamw.threads = x->plan->cpu_threads;
  const int32_t done = HK_ADD(x, rank, HK_LANE_CPU, adamw, barrier);
  HK_ADD(x, rank, HK_LANE_UP, piece_op(HK_OP_WEIGHT_H2D, 2 * n, s, piece, offset), done);
}

/* State in, AdamW, state back; `buffer` holds the write-back that last used the staging buffer. */
static void update_staged(hk_expansion *x, int rank, int32_t s, int32_t piece, int64_t offset,
                          int64_t n, int32_t barrier, int32_t *buffer) {
  const int32_t in = HK_ADD(x, rank, HK_LANE_H2D,
                            piece_op(HK_OP_STATE_H2D, 12 * n, s, piece, offset), barrier, *buffer);
  hk_op adamw = piece_op(HK_OP_ADAMW_GPU, n, s, piece, offset);
  const int32_t done = HK_ADD(x, rank, HK_LANE_UPDATE, adamw, in);
  *buffer = HK_ADD(x, rank, HK_LANE_D2H, piece_op(HK_OP_STATE_D2H, 12 * n, s, piece, offset), done);
}

/* State that the GPU updates where it lies, in its own memory or in the host's. */
static void update_in_place(hk_expansion *x, int rank, hk_op_kind kind, int32_t s, int32_t piece,
                            int64_t offset, int64_t n, int32_t barrier) {
  hk_op adamw = piece_op(kind, n, s, piece, offset);
  HK_ADD(x, rank, HK_LANE_UPDATE, adamw, barrier);
}

/* What moves in pieces does so to be in flight while others are; what stays on the GPU need not be
 * launched more than once. */
static int64_t piece_numel(const hk_plan *plan, const hk_plan_subgroup *subgroup) {
  return subgroup->route == HK_ROUTE_RESIDENT ? subgroup->numel : plan->piece_numel;
}

void hk_expand_update_hocket(hk_expansion *x, int rank, int32_t barrier) {
  const hk_plan *plan = x->plan;
  int32_t *buffers = malloc((size_t)plan->buffers * sizeof *buffers);
  if (buffers == NULL) {
    x->status = hk_fail_memory(x->err, (size_t)plan->buffers * sizeof *buffers, "the task graph");
    return;
  }
  for (int b = 0; b < plan->buffers; b++) buffers[b] = -1;

  int next_buffer = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const int32_t s = plan->order[i];
    const hk_plan_subgroup *subgroup = &plan->subgroups[s];
    const int64_t most = piece_numel(plan, subgroup);
    int32_t piece = 0;
    for (int64_t offset = 0; offset < subgroup->numel; offset += most, piece++) {
      const int64_t n = hk_min(most, subgroup->numel - offset);
      switch (subgroup->route) {
        case HK_ROUTE_CPU:
          update_cpu(x, rank, s, piece, offset, n, barrier);
          break;
        case HK_ROUTE_STAGED:
          update_staged(x, rank, s, piece, offset, n, barrier, &buffers[next_buffer]);
          next_buffer = (next_buffer + 1) % plan->buffers;
          break;
        case HK_ROUTE_MAPPED:
          update_in_place(x, rank, HK_OP_ADAMW_MAPPED, s, piece, offset, n, barrier);
          break;
        case HK_ROUTE_RESIDENT:
        default:
          update_in_place(x, rank, HK_OP_ADAMW_GPU, s, piece, offset, n, barrier);
          break;
      }
    }
  }
  free(buffers);
}
