/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lower bounds of the period of a cyclic graph (period.h). On average each resource and each lane
 * does one iteration's work per period. If a chain of length L leads from operation v of one
 * iteration to v of the next, the period is at least L. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/bound.h"
#include "sim/period.h"
#include "sim/state.h"

static void bind(hk_period_bound *bound, double ns, const char *prefix, const char *name) {
  /* Rounded down by more than the rounding error of the sums. */
  const hk_ns whole = (hk_ns)floor(fmin(ns * (1 - 1e-9), 0x1p62));
  if (whole <= bound->period_ns) return;
  bound->period_ns = whole;
  snprintf(bound->binding, sizeof bound->binding, "%s%.18s", prefix, name);
}

static void bind_resources(const hk_graph *g, size_t each, const hk_machine *machine,
                           hk_period_bound *bound) {
  double load[HK_RES_COUNT] = {0};
  for (size_t i = 0; i < each; i++) {
    if (g->ops[i].rank == 0) hk_bound_add_load(g, &g->ops[i], machine, load); /* ranks are alike */
  }
  for (int r = 0; r < HK_RES_COUNT; r++)
    bind(bound, load[r] / hk_resource_capacity(machine, (hk_resource)r, false) * 1e9, "",
         hk_resource_name((hk_resource)r));
}

/* Least time of an operation, rounded down where the simulator rounds up. */
static hk_ns least(const hk_graph *g, size_t id, const hk_machine *machine) {
  hk_ns latency, work;
  hk_time_alone(g, &g->ops[id], machine, &latency, &work);
  return latency + (work > 0 ? work - 1 : 0);
}

static hk_status bind_lanes(const hk_graph *g, size_t each, const hk_ns *times,
                            hk_period_bound *bound, hk_error *err) {
  hk_ns *busy = calloc(g->n_lanes + 1, sizeof *busy);
  if (busy == NULL) return hk_fail_memory(err, g->n_lanes * sizeof *busy, "the bound of a period");
  for (size_t i = 0; i < each; i++) busy[g->ops[i].lane] += times[i];
  for (size_t l = 0; l < g->n_lanes; l++) bind(bound, (double)busy[l], "lane ", g->lanes[l].name);
  free(busy);
  return HK_OK;
}

/* Length of the longest chain from operation `from` of the first iteration to the same one of the
 * second. `begin`: scratch, the earliest begin of each operation after that of `from`; -1: no chain
 * leads there. */
static hk_ns cycle_through(const hk_graph *g, size_t each, const hk_machine *machine,
                           const hk_ns *times, size_t from, hk_ns *begin, hk_ns *lane_end) {
  for (size_t l = 0; l < g->n_lanes; l++) lane_end[l] = -1;
  for (size_t i = from; i <= from + each; i++) {
    const hk_op *op = &g->ops[i];
    const bool picks = g->lanes[op->lane].picks;
    begin[i] = i == from ? 0 : picks ? -1 : lane_end[op->lane];
    for (int32_t d = op->deps_begin; d < op->deps_end && i > from; d++) {
      const size_t on = (size_t)g->deps[d];
      if (on < from || begin[on] < 0) continue;
      const hk_ns ended = begin[on] + times[on % each];
      begin[i] = hk_max(begin[i], ended + hk_hop(g, machine, (int32_t)on, (int32_t)i));
    }
    if (begin[i] >= 0) lane_end[op->lane] = begin[i] + times[i % each];
  }
  return begin[from + each];
}

static hk_status bind_cycles(const hk_graph *g, size_t each, const hk_machine *machine,
                             const hk_ns *times, hk_period_bound *bound, hk_error *err) {
  hk_ns *begin = malloc(2 * each * sizeof *begin);
  hk_ns *lane_end = malloc((g->n_lanes + 1) * sizeof *lane_end);
  if (begin == NULL || lane_end == NULL) {
    free(begin);
    free(lane_end);
    return hk_fail_memory(err, 2 * each * sizeof *begin, "the bound of a period");
  }
  for (size_t i = 0; i < each; i++) {
    if (g->ops[i].kind != HK_OP_FORWARD || g->ops[i].rank != 0) continue;
    bind(bound, (double)cycle_through(g, each, machine, times, i, begin, lane_end), "", "cycle");
  }
  free(begin);
  free(lane_end);
  return HK_OK;
}

hk_status hk_bound_period(const hk_graph *graph, const hk_machine *machine, hk_period_bound *bound,
                          hk_error *err) {
  memset(bound, 0, sizeof *bound);
  snprintf(bound->binding, sizeof bound->binding, "nothing");
  if (graph->iterations < 2)
    return hk_fail(err, HK_INPUT, "%d iterations: expected at least 2 to bound a period",
                   graph->iterations);
  const size_t each = graph->n_ops / (size_t)graph->iterations;
  hk_ns *times = malloc((each + 1) * sizeof *times);
  if (times == NULL) return hk_fail_memory(err, each * sizeof *times, "the bound of a period");
  for (size_t i = 0; i < each; i++) times[i] = least(graph, i, machine);
  bind_resources(graph, each, machine, bound);
  hk_status status = bind_lanes(graph, each, times, bound, err);
  if (status == HK_OK) status = bind_cycles(graph, each, machine, times, bound, err);
  free(times);
  return status;
}
