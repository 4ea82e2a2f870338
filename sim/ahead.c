/* SPDX-License-Identifier: GPL-3.0-or-later */
/* How much of an update runs ahead of the norm: as much as host memory has room for spares. */
#include "sim/forecast.h"

/* Host memory that the plan leaves to each rank of a node, as the graph counts it. */
static hk_status host_left(const hk_plan *plan, const hk_machine *machine, hk_bytes *left,
                           hk_error *err) {
  hk_graph graph;
  HK_TRY(hk_graph_build(plan, HK_EXPAND_UPDATE, true, &graph, err));
  const double capacity = machine->host_memory.value - machine->host_reserved.value;
  *left = ((hk_bytes)capacity - graph.host_base) / plan->job.gpus;
  hk_graph_free(&graph);
  return HK_OK;
}

hk_status hk_plan_run_ahead(hk_plan *plan, const hk_machine *machine, hk_error *err) {
  if (plan->overlap != HK_OVERLAP_BOTH) return HK_OK;
  for (size_t s = 0; s < plan->n_subgroups; s++) plan->subgroups[s].ahead = false;
  hk_bytes left = 0;
  HK_TRY(host_left(plan, machine, &left, err));
  for (size_t s = plan->n_subgroups; s-- > 0;) {
    hk_plan_subgroup *subgroup = &plan->subgroups[s];
    if (subgroup->route != HK_ROUTE_CPU) continue;
    left -= 12 * subgroup->numel;
    if (left < 0) break;
    subgroup->ahead = true;
  }
  return HK_OK;
}
