/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/preview.h"

/* Operations of all simulations of a forecast: of 4 iterations, then of 8, ... */
static double simulated(const hk_graph *g) {
  const double n = (double)g->iterations, first = 4;
  return (double)g->n_ops * (n <= first ? 1 : (2 * n - first) / n);
}

/* By a whole forecast. */
static hk_status make(const hk_plan *plan, const hk_machine *machine, hk_preview *preview,
                      hk_error *err) {
  hk_plan copy;
  hk_forecast f;
  HK_TRY(hk_plan_copy(plan, &copy, err));
  HK_TRY(hk_forecast_make(&copy, machine, NULL, &f, err));
  const bool steady = f.unsteady_ns <= f.iteration_ns / HK_STEADY;
  *preview = (hk_preview){f.feasible, steady, f.iteration_ns, f.result.memory.peak,
                          preview->operations + simulated(&f.graph)};
  hk_forecast_free(&f);
  return HK_OK;
}

hk_status hk_preview_of(const hk_plan *plan, const hk_machine *m, hk_preview *preview,
                        hk_error *err) {
  const hk_expand two = {HK_EXPAND_ALL, .iterations = 2, .folded = true};
  hk_graph graph;
  hk_repetition all;
  *preview = (hk_preview){0};
  HK_TRY(hk_graph_build(plan, two, &graph, err));
  const hk_status status = hk_simulate_until_repeat(&graph, m, &all, err);
  const bool gpu_fits = all.peak <= (hk_bytes)hk_gpu_capacity(m);
  const bool host_fits = graph.host_base <= (hk_bytes)hk_host_capacity(m);
  preview->operations = (double)graph.n_ops;
  hk_graph_free(&graph);
  HK_TRY(status);
  if (gpu_fits && !all.found) return make(plan, m, preview, err);
  preview->feasible = gpu_fits && host_fits;
  preview->steady = all.found;
  preview->iteration_ns = all.period;
  preview->peak = all.peak;
  return HK_OK;
}
