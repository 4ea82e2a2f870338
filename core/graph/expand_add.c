/* SPDX-License-Identifier: Apache-2.0 */
/* Adds operations to the graph that is being expanded. */
#include "core/graph/expand.h"

/* With an overlap, lanes flush, cpu and up take the block that forward needs first, not the
 * operation that was added first. */
static int32_t add_lane(hk_expansion *x, hk_lane_kind kind, int rank) {
  const int32_t lane = hk_graph_lane(x->graph, kind, rank, x->err);
  if (lane >= 0)
    x->graph->lanes[lane].picks =
        x->plan->overlap != HK_OVERLAP_NONE &&
        (kind == HK_LANE_FLUSH || kind == HK_LANE_CPU || kind == HK_LANE_UP);
  return lane;
}

int32_t hk_expand_add(hk_expansion *x, int rank, hk_lane_kind lane, hk_op op, const int32_t *deps,
                      size_t n_deps) {
  if (x->status != HK_OK) return -1;
  const size_t slot = (size_t)rank * HK_LANE_KIND_COUNT + (size_t)lane;
  if (x->lanes[slot] < 0) x->lanes[slot] = add_lane(x, lane, rank);
  op.lane = x->lanes[slot];
  op.rank = rank;
  op.phase = x->phase;
  hk_expand_memory(x, &op);
  const int32_t id = op.lane < 0 ? -1 : hk_graph_add(x->graph, &op, deps, n_deps, x->err);
  if (id < 0) {
    x->status = x->err->status;
    return -1;
  }
  x->last[slot] = id;
  return id;
}
