/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Steps in which nothing runs ahead of the norm (held.h). */
#include "sim/held.h"

#include "core/graph/bytes.h"

bool hk_plan_is_held(const hk_plan *plan) {
  return plan->overlap == HK_OVERLAP_BOTH && plan->clip == HK_CLIP_NORM && hk_plan_ahead(plan) > 0;
}

hk_status hk_held_forecast(const hk_plan *plan, const hk_machine *machine, hk_forecast *held,
                           hk_error *err) {
  hk_plan copy;
  HK_TRY(hk_plan_copy(plan, &copy, err));
  copy.steps = HK_STEPS_HELD;
  return hk_forecast_make(&copy, machine, NULL, held, err);
}

/* The longest operation of the CPU team that runs ahead. */
static hk_ns longest_ahead(const hk_forecast *f) {
  hk_ns longest = 0;
  for (size_t i = 0; i < f->graph.n_ops; i++) {
    const hk_span *span = &f->result.timeline.spans[i];
    if (f->graph.ops[i].ahead) longest = hk_max(longest, span->end - span->start);
  }
  return longest;
}

hk_status hk_held_add(hk_forecast *f, double clip_share, const hk_machine *machine, hk_error *err) {
  hk_forecast held;
  if (!hk_plan_is_held(&f->plan)) return HK_OK;
  HK_TRY(hk_held_forecast(&f->plan, machine, &held, err));
  f->held_ns = held.iteration_ns;
  f->clip_share = clip_share;
  f->tokens_per_s = hk_per_second(hk_job_tokens(&f->plan.job), hk_forecast_mean(f));
  f->plan.guess =
      (hk_guess_costs){.gain = hk_max(0, held.iteration_ns - f->iteration_ns),
                       .loss = hk_max(0, f->backward_ns - held.backward_ns) + longest_ahead(f)};
  hk_forecast_free(&held);
  return HK_OK;
}

hk_status hk_held_add_all(hk_forecast *forecasts, size_t n, double clip_share,
                          const hk_machine *machine, hk_error *err) {
  hk_status worst = HK_OK;
  hk_error failed = {0};
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < n; i++) {
    hk_error own = {0};
    const hk_status status = hk_held_add(&forecasts[i], clip_share, machine, &own);
#pragma omp critical(held)
    if (status != HK_OK && worst == HK_OK) {
      worst = status;
      failed = own;
    }
  }
  return worst == HK_OK ? HK_OK : hk_fail(err, worst, "%s", failed.message);
}

void hk_plan_stage_held(hk_plan *plan, int stride) {
  int n = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    hk_plan_subgroup *subgroup = &plan->subgroups[i];
    subgroup->held_staged = stride > 0 && subgroup->ahead && ++n % stride == 0;
  }
}
