/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The invariants of docs/simulator.md, checked while running (rates) and afterwards (order, lanes,
 * conservation, memory). `simulate --check` and every property test check them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/state.h"

/* Relative rounding error of sums of doubles. */
#define CLOSE 1e-9

static hk_status broken(const hk_sim_state *s, const char *what, int32_t op) {
  char label[64];
  return hk_fail(s->err, HK_NO, "invariant broken: %s (operation %d, %s, at %lld ns)", what,
                 (int)op, hk_op_label(s->graph, op, label, sizeof label), (long long)s->now);
}

/* No resource is over its capacity; every activity is at its cap or uses a full resource. */
hk_status hk_check_rates(const hk_sim_state *s, int n_activities) {
  for (int r = 0; r < s->n_resources; r++) {
    if (s->used[r] > s->capacity[r] * (1 + CLOSE)) {
      return hk_fail(s->err, HK_NO,
                     "invariant broken: %s of rank %d carries %g %s, its capacity is %g (at %lld "
                     "ns)",
                     hk_resource_name((hk_resource)(r % HK_RES_COUNT)), r / HK_RES_COUNT,
                     s->used[r], hk_resource_unit((hk_resource)(r % HK_RES_COUNT)), s->capacity[r],
                     (long long)s->now);
    }
  }
  int seen = 0;
  for (int i = 0; i < s->n_running; i++) {
    const hk_active_op *active = &s->active[s->running[i]];
    if (!active->fluid) continue;
    seen++;
    const hk_activity *a = &active->activity;
    if (!(a->rate > 0) || a->rate > a->cap * (1 + CLOSE)) {
      return broken(s, "a rate is not within (0, cap]", active->op);
    }
    bool content = a->rate >= a->cap * (1 - CLOSE);
    for (int32_t u = 0; u < a->n_uses && !content; u++) {
      const int32_t r = a->uses[u].resource;
      content = s->used[r] >= s->capacity[r] * (1 - CLOSE);
    }
    if (!content) return broken(s, "capacity is left idle while work waits for it", active->op);
  }
  return seen == n_activities
             ? HK_OK
             : hk_fail(s->err, HK_NO,
                       "invariant broken: %d activities share resources, %d have a rate",
                       n_activities, seen);
}

/* When the dependencies of an operation ended, without the operation before it on its lane; with or
 * without hops. */
static hk_ns dependencies_met(const hk_sim_state *s, int32_t id, bool hops) {
  const hk_graph *g = s->graph;
  hk_ns met = 0;
  for (int32_t d = g->ops[id].deps_begin; d < g->ops[id].deps_end; d++) {
    const hk_ns ended = s->result->timeline.spans[g->deps[d]].end;
    met = hk_max(met, hops ? ended + hk_hop(g, s->machine, g->deps[d], id) : ended);
  }
  return met;
}

/* Checks one operation of a lane that was free from `lane_end` on. */
static hk_status check_start(const hk_sim_state *s, int32_t id, hk_ns lane_end) {
  const hk_span *span = &s->result->timeline.spans[id];
  const hk_ns earliest = hk_max(lane_end, dependencies_met(s, id, true));
  if (span->end < span->start) return broken(s, "never ended", id);
  if (span->start < lane_end) return broken(s, "overlaps the operation before it on its lane", id);
  if (span->start < earliest) return broken(s, "started before a dependency let it", id);
  if (span->start > earliest) return broken(s, "started later than it could", id);
  if (span->ready != hk_max(lane_end, dependencies_met(s, id, false)))
    return broken(s, "is not ready when its last dependency ends", id);
  return HK_OK;
}

/* When a lane that picks took an operation, no better one was ready. Operations that became ready
 * at that very instant are not compared. `order`: the lane's n operations as they ran. */
static hk_status check_picks(const hk_sim_state *s, const int32_t *order, int32_t n) {
  const hk_span *spans = s->result->timeline.spans;
  for (int32_t i = 0; i < n; i++) {
    for (int32_t j = i + 1; j < n; j++) {
      if (hk_picks_before(s->graph, order[j], order[i]) &&
          dependencies_met(s, order[j], false) < spans[order[i]].ready)
        return broken(s, "went before a better one that waited", order[i]);
    }
  }
  return HK_OK;
}

#define MOST_PICKS_CHECKED 2000 /* per lane: the check is quadratic */

static hk_status check_picking_lane(const hk_sim_state *s, int32_t lane, const int32_t *order,
                                    int32_t *of_lane) {
  int32_t n = 0;
  for (size_t i = 0; i < s->graph->n_ops && n < MOST_PICKS_CHECKED; i++)
    if (s->graph->ops[order[i]].lane == lane) of_lane[n++] = order[i];
  return check_picks(s, of_lane, n);
}

/* Every operation ran once, alone and in order on its lane, and as early as its dependencies
 * allowed. */
static hk_status check_order(const hk_sim_state *s) {
  const hk_graph *g = s->graph;
  hk_ns *lane_end = calloc(g->n_lanes + 1, sizeof *lane_end);
  int32_t *order = malloc((g->n_ops + 1) * sizeof *order);
  int32_t *of_lane = malloc((g->n_ops + 1) * sizeof *of_lane);
  hk_status status = HK_OK;
  if (lane_end == NULL || order == NULL || of_lane == NULL)
    status = hk_fail_memory(s->err, g->n_ops * sizeof *order, "a check");
  if (status == HK_OK) status = hk_timeline_order(g, &s->result->timeline, order, s->err);
  for (size_t i = 0; i < g->n_ops && status == HK_OK; i++) {
    const int32_t lane = g->ops[order[i]].lane;
    status = check_start(s, order[i], lane_end[lane]);
    lane_end[lane] = s->result->timeline.spans[order[i]].end;
  }
  for (size_t l = 0; l < g->n_lanes && status == HK_OK; l++)
    if (g->lanes[l].picks) status = check_picking_lane(s, (int32_t)l, order, of_lane);
  free(lane_end);
  free(order);
  free(of_lane);
  return status;
}

/* The integral of the rates equals the work of the operations. Each operation may exceed its work
 * by what it does in one nanosecond, because its end was rounded up. */
static hk_status check_conservation(const hk_sim_state *s) {
  const hk_graph *g = s->graph;
  double expected[HK_RES_COUNT] = {0}, slack[HK_RES_COUNT] = {0};
  for (size_t i = 0; i < g->n_ops; i++) {
    const hk_demand d = hk_demand_of(g, &g->ops[i], s->machine);
    if (!isfinite(d.cap)) continue;
    for (int u = 0; u < d.n_uses; u++) {
      const hk_resource r = d.uses[u].resource;
      const double times = hk_use_count(g, r);
      expected[r] += (double)g->ops[i].work * d.uses[u].per_unit * times;
      slack[r] += d.cap * d.uses[u].per_unit * times * 1e-9;
    }
  }
  for (int r = 0; r < HK_RES_COUNT; r++) {
    const double off = fabs(s->result->used[r] - expected[r]);
    if (off > expected[r] * 1e-6 + slack[r] + 1e-9) {
      return hk_fail(s->err, HK_NO,
                     "invariant broken: %s carried %.17g, the operations had %.17g to move",
                     hk_resource_name((hk_resource)r), s->result->used[r], expected[r]);
    }
  }
  return HK_OK;
}

/* Memory in use was never negative, and a whole iteration frees what it allocated. Whether memory
 * suffices is not checked here. */
static hk_status check_memory(const hk_sim_state *s) {
  const hk_graph *g = s->graph;
  bool whole = false;
  hk_bytes net = 0;
  for (size_t i = 0; i < g->n_ops; i++) {
    const hk_op *op = &g->ops[i];
    whole = whole || op->kind == HK_OP_FORWARD;
    if (op->gpu_alloc < 0 || op->gpu_free < 0) {
      return broken(s, "takes or gives back a negative amount of memory", (int32_t)i);
    }
    if (op->rank == 0) net += op->gpu_alloc - op->gpu_free;
  }
  for (int rank = 0; rank < g->ranks; rank++) {
    if (s->gpu_memory[rank] < 0) {
      return hk_fail(s->err, HK_NO, "invariant broken: rank %d ends with %lld bytes of GPU memory",
                     rank, (long long)s->gpu_memory[rank]);
    }
    if (whole && s->gpu_memory[rank] != g->gpu_base) {
      return hk_fail(s->err, HK_NO,
                     "invariant broken: rank %d begins an iteration with %lld bytes of GPU memory "
                     "and ends it with %lld (net %lld)",
                     rank, (long long)g->gpu_base, (long long)s->gpu_memory[rank], (long long)net);
    }
  }
  return HK_OK;
}

hk_status hk_check_result(const hk_sim_state *s) {
  HK_TRY(check_order(s));
  HK_TRY(check_conservation(s));
  HK_TRY(check_memory(s));
  const hk_ns path = hk_critical_path(s->graph, s->machine, HK_EXPAND_ALL, s->err);
  if (path < 0) return s->err->status;
  if (s->result->timeline.makespan < path) {
    return hk_fail(s->err, HK_NO, "invariant broken: makespan %lld ns, critical path %lld ns",
                   (long long)s->result->timeline.makespan, (long long)path);
  }
  return HK_OK;
}
