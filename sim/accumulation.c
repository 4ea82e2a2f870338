/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/accumulation.h"

#include <stdio.h>
#include <string.h>

hk_status hk_accumulation_candidates(hk_plan *plans, size_t n, const hk_plan_settings *settings,
                                     size_t *origin, size_t *all, hk_error *err) {
  *all = n;
  for (size_t i = 0; i < n; i++) {
    origin[i] = i;
    if (settings->accumulate != NULL || plans[i].job.grad_accum == 1 ||
        plans[i].runtime != HK_RUNTIME_HOCKET || hk_plan_on_route(&plans[i], HK_ROUTE_CPU) == 0)
      continue;
    for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
      if (a == HK_ACCUMULATE_GPU || a == (int)hk_plan_accumulates(&plans[i])) continue;
      HK_TRY(hk_plan_copy(&plans[i], &plans[*all], err));
      plans[*all].accumulate = (hk_accumulate)a;
      origin[(*all)++] = i;
    }
  }
  return HK_OK;
}

static void note(hk_forecast *in, const hk_forecast *f) {
  const hk_accumulate how = hk_plan_accumulates(&f->plan);
  in->sums[how].tried = true;
  in->sums[how].fits = f->feasible;
  in->sums[how].iteration_ns = f->iteration_ns;
  in->sums[how].gpu_short = f->gpu_short;
  in->sums[how].host_short = f->host_short;
}

hk_status hk_accumulation_compare(hk_forecast *best, const hk_machine *machine, hk_error *err) {
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
    hk_plan plan;
    hk_forecast f;
    HK_TRY(hk_plan_copy(&best->plan, &plan, err));
    plan.accumulate = (hk_accumulate)a;
    HK_TRY(hk_forecast_make(&plan, machine, NULL, &f, err));
    note(best, &f);
    hk_forecast_free(&f);
  }
  return HK_OK;
}

void hk_accumulation_keep_best(hk_forecast *forecasts, size_t n, size_t all, const size_t *origin,
                               int (*compare)(const void *, const void *)) {
  for (size_t i = 0; i < all; i++) {
    hk_forecast *first = &forecasts[origin[i]], *f = &forecasts[i];
    const bool better = i >= n && compare(f, first) < 0;
    __typeof__(f->sums) sums;
    note(first, f);
    memcpy(sums, first->sums, sizeof sums);
    if (better) {
      hk_forecast_free(first);
      *first = *f;
      memset(f, 0, sizeof *f);
    } else if (i >= n) {
      hk_forecast_free(f);
    }
    memcpy(first->sums, sums, sizeof sums);
  }
}

const char *hk_accumulation_reason(const hk_forecast *best, char *text, size_t size) {
  static const char *const ways[] = {"on the GPU", "in host memory, where the GPU adds to them"};
  const hk_accumulate how = hk_plan_accumulates(&best->plan);
  int tried = 0;
  text[0] = '\0';
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) tried += best->sums[a].tried;
  if (tried < 2) return text;
  size_t used = (size_t)snprintf(text, size, "Gradients of %d micro-steps are summed %s",
                                 best->plan.job.grad_accum, ways[how]);
  for (int a = 0; a < HK_ACCUMULATE_COUNT && used < size; a++) {
    const hk_bytes gpu = best->sums[a].gpu_short, host = best->sums[a].host_short;
    char missing[16];
    if (!best->sums[a].tried || a == (int)how) continue;
    if (best->sums[a].fits)
      used += (size_t)snprintf(
          text + used, size - used, "; %s: %.2f x the time of an iteration", ways[a],
          (double)best->sums[a].iteration_ns / (double)hk_max(1, best->iteration_ns));
    else
      used += (size_t)snprintf(
          text + used, size - used, "; %s: %s of %s memory are missing", ways[a],
          hk_format_bytes(gpu > 0 ? gpu : host, missing, sizeof missing), gpu > 0 ? "GPU" : "host");
  }
  if (used < size) snprintf(text + used, size - used, ".");
  return text;
}
