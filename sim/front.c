/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/front.h"

#include <string.h>

#include "core/graph/bytes.h"
#include "sim/flush.h"

#define MOST_STEPS 256 /* from all state on the host to none: of many subgroups several at once */

/* The plan with `on_host` subgroups on the host, and the others in front. */
static hk_status plan_at(const hk_plan *from, size_t on_host, bool may_wait,
                         const hk_machine *machine, hk_plan *plan, hk_error *err) {
  const hk_policy *policy = NULL;
  hk_policy_options options = HK_POLICY_OPTIONS_NONE;
  HK_TRY(hk_policy_find(from->policy, &policy, err));
  options.stride = from->stride;
  options.ratio = (double)on_host / (double)from->n_subgroups;
  HK_TRY(hk_plan_copy(from, plan, err));
  plan->flush_blocks = 0;
  plan->reduce_first = false;
  if (may_wait) plan->flush = HK_FLUSH_ASYNC;
  const hk_status status = hk_policy_apply(policy, &options, machine, plan, err);
  if (status == HK_OK)
    hk_policy_front(plan);
  else
    hk_plan_free(plan);
  return status;
}

/* Forecasts that plan. *better: it is within the limit, fits, and is faster than `time`; if not,
 * *f is zeroed. */
static hk_status try_at(const hk_plan *from, size_t on_host, hk_ns time, bool may_wait,
                        const hk_bytes *gpu_memory, const hk_machine *machine, hk_forecast *f,
                        bool *better, hk_error *err) {
  hk_plan plan;
  *better = false;
  memset(f, 0, sizeof *f);
  HK_TRY(plan_at(from, on_host, may_wait, machine, &plan, err));
  if (!hk_plan_keeps_within(&plan, gpu_memory)) {
    hk_plan_free(&plan);
    return HK_OK;
  }
  HK_TRY(hk_forecast_make(&plan, machine, NULL, f, err));
  const hk_status status = hk_flush_fit(f, may_wait, machine, err);
  *better = status == HK_OK && f->feasible && f->iteration_ns < time;
  if (!*better) hk_forecast_free(f);
  return status;
}

/* Other numbers of staging buffers than those of the plan that was found. */
static hk_status vary_buffers(const hk_plan *from, hk_forecast *found, bool may_wait,
                              const hk_bytes *gpu_memory, const hk_machine *machine,
                              hk_error *err) {
  static const int buffers[] = {1, 2, 3, 6};
  if (!found->feasible || hk_plan_on_route(&found->plan, HK_ROUTE_STAGED) == 0) return HK_OK;
  const size_t on_host = from->n_subgroups - hk_plan_count(&found->plan, HK_ROUTE_RESIDENT);
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
    hk_plan other = *from; /* shares what `from` points to */
    hk_forecast f;
    bool better;
    other.buffers = buffers[i];
    HK_TRY(try_at(&other, on_host, found->iteration_ns, may_wait, gpu_memory, machine, &f, &better,
                  err));
    if (!better) continue;
    hk_forecast_free(found);
    *found = f;
  }
  return HK_OK;
}

hk_status hk_front(const hk_forecast *from, bool may_wait, const hk_bytes *gpu_memory,
                   const hk_machine *machine, hk_forecast *found, hk_error *err) {
  const hk_plan *plan = &from->plan;
  hk_ns time = from->feasible ? from->iteration_ns : INT64_MAX;
  size_t on_host = plan->n_subgroups - hk_plan_count(plan, HK_ROUTE_RESIDENT);
  memset(found, 0, sizeof *found);
  if (plan->runtime != HK_RUNTIME_HOCKET || plan->overlap != HK_OVERLAP_NONE || on_host == 0 ||
      on_host == plan->n_subgroups)
    return HK_OK;
  const size_t step = plan->n_subgroups / MOST_STEPS + 1;
  for (; on_host > 0; on_host -= step < on_host ? step : on_host) {
    hk_forecast f;
    bool better;
    HK_TRY(try_at(plan, on_host, time, may_wait, gpu_memory, machine, &f, &better, err));
    if (!better) break;
    hk_forecast_free(found);
    *found = f;
    time = f.iteration_ns;
  }
  return vary_buffers(plan, found, may_wait, gpu_memory, machine, err);
}
