/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Which subgroups run ahead of the norm: as many as have room for their spares in host memory. */
#include "sim/ahead.h"
#include "sim/forecast.h"

hk_status hk_plan_spares(const hk_plan *plan, const hk_machine *machine, hk_bytes *left,
                         hk_error *err) {
  hk_graph graph;
  HK_TRY(hk_graph_build(plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &graph, err));
  const double capacity = machine->host_memory.value - machine->host_reserved.value;
  const hk_bytes spares = hk_spare_bytes(plan->optimizer, hk_plan_ahead(plan));
  const hk_bytes base = graph.host_base - spares * plan->job.gpus;
  *left = hk_max(0, ((hk_bytes)capacity - base) / plan->job.gpus);
  hk_graph_free(&graph);
  return HK_OK;
}

hk_status hk_plan_run_ahead(hk_plan *plan, const hk_machine *machine, hk_error *err) {
  hk_bytes spares = 0;
  if (plan->overlap != HK_OVERLAP_BOTH) return HK_OK;
  HK_TRY(hk_plan_spares(plan, machine, &spares, err));
  hk_plan_run_ahead_within(plan, spares, plan->n_subgroups - 1);
  return HK_OK;
}
