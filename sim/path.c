/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The critical path: the longest chain of operations, each with its time alone on the machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/state.h"

/* Rate of an operation that runs alone: its cap, or the capacity of a resource / use per unit. */
static double alone(const hk_demand *d, const hk_machine *machine) {
  double rate = d->cap;
  for (int u = 0; u < d->n_uses; u++) {
    const double capacity = hk_resource_capacity(machine, d->uses[u].resource, false);
    rate = fmin(rate, capacity / d->uses[u].per_unit);
  }
  return rate;
}

void hk_time_alone(const hk_graph *graph, const hk_op *op, const hk_machine *machine,
                   hk_ns *latency, hk_ns *work) {
  const hk_demand d = hk_demand_of(graph, op, machine);
  const bool fluid = isfinite(d.cap) && op->work > 0;
  *latency = d.latency;
  *work = fluid ? hk_time_for((double)op->work, alone(&d, machine)) : 0;
}

static hk_ns shortest(const hk_demand *d, const hk_op *op, const hk_machine *machine) {
  if (!isfinite(d->cap) || op->work == 0) return d->latency;
  /* Rounded down, where the simulator rounds up: rounding must not raise a lower bound. */
  return d->latency + (hk_ns)floor((double)op->work / alone(d, machine) * 1e9 * (1 - 1e-12));
}

hk_ns hk_critical_path(const hk_graph *graph, const hk_machine *machine, unsigned phases,
                       hk_error *err) {
  hk_ns *end = malloc((graph->n_ops + 1) * sizeof *end);
  hk_ns *lane_end = calloc(graph->n_lanes + 1, sizeof *lane_end);
  if (end == NULL || lane_end == NULL) {
    free(end);
    free(lane_end);
    hk_fail_memory(err, graph->n_ops * sizeof *end, "the critical path");
    return -1;
  }
  hk_demand_memo memo = {0};
  hk_ns longest = 0;
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    end[i] = 0;
    if ((phases & 1u << op->phase) == 0) continue;
    const bool picks = graph->lanes[op->lane].picks; /* then the lane's order is not known */
    hk_ns begin = picks ? 0 : lane_end[op->lane];
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
      const int32_t before = graph->deps[d];
      if ((phases & 1u << graph->ops[before].phase) == 0) continue;
      begin = hk_max(begin, end[before] + hk_hop(graph, machine, before, (int32_t)i));
    }
    end[i] = begin + shortest(hk_demand_again(&memo, graph, op, machine), op, machine);
    lane_end[op->lane] = end[i];
    if (end[i] > longest) longest = end[i];
  }
  free(end);
  free(lane_end);
  return longest;
}
