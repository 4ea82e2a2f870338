/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Which subgroups run ahead of the norm: as many as have room for their spares in host memory, or
 * twice as many as save time. */
#include "sim/ahead.h"

#include <stdio.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/held.h"

#define AS_FAST 0.005 /* plans within 0.5 % of a micro-step are as fast */
#define ROOM    2     /* backward may take so many times as long as predicted */

hk_status hk_plan_spares(const hk_plan *plan, const hk_machine *machine, hk_bytes *left,
                         hk_error *err) {
  hk_graph graph;
  HK_TRY(hk_graph_build(plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true, .bare = true}, &graph,
                        err));
  const hk_bytes spares = hk_spare_bytes(plan->optimizer, hk_plan_ahead(plan));
  const int ranks = hk_job_ranks(&plan->job);
  const hk_bytes base = graph.host_base - spares * ranks;
  *left = hk_max(0, ((hk_bytes)hk_host_capacity(machine) - base) / ranks);
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

/* -- Fewer spares ------------------------------------------------------------------------------ */

/* Lets only the `n` deepest of the subgroups that run ahead do so. The others are updated in every
 * step as they were in steps in which nothing runs ahead. */
static void keep_deepest(hk_plan *plan, size_t n) {
  for (size_t s = plan->n_subgroups; s-- > 0;) {
    hk_plan_subgroup *subgroup = &plan->subgroups[s];
    if (!subgroup->ahead) continue;
    if (n > 0) {
      n--;
      continue;
    }
    if (subgroup->held_staged) subgroup->route = HK_ROUTE_STAGED;
    subgroup->ahead = subgroup->early = subgroup->held_staged = false;
  }
}

static hk_status forecast_with(const hk_forecast *all, size_t n, const hk_machine *machine,
                               hk_forecast *f, hk_error *err) {
  hk_plan plan;
  HK_TRY(hk_plan_copy(&all->plan, &plan, err));
  keep_deepest(&plan, n);
  HK_TRY(hk_forecast_make(&plan, machine, NULL, f, err));
  memcpy(f->sums, all->sums, sizeof f->sums);
  const hk_status status = hk_held_add(f, all->clip_share, machine, err);
  if (status != HK_OK) hk_forecast_free(f);
  return status;
}

/* Whether `fewer` is as fast. Sums of several micro-steps that wait where early weights will be are
 * not to leave the GPU. */
static bool as_fast(const hk_forecast *fewer, const hk_forecast *all) {
  const double most = 1 + AS_FAST / all->plan.job.grad_accum;
  return fewer->feasible &&
         (double)hk_forecast_mean(fewer) <= most * (double)hk_forecast_mean(all) &&
         hk_plan_passing_share(&fewer->plan) <= hk_plan_passing_share(&all->plan);
}

/* How many of the deepest subgroups that run ahead have `wanted` parameters; all, if all have
 * fewer. */
static size_t count_deepest(const hk_plan *plan, int64_t wanted) {
  size_t n = 0;
  for (size_t s = plan->n_subgroups; s-- > 0 && wanted > 0;) {
    if (!plan->subgroups[s].ahead) continue;
    wanted -= plan->subgroups[s].numel;
    n++;
  }
  return n;
}

hk_status hk_ahead_enough(hk_forecast *best, const hk_machine *machine, hk_error *err) {
  size_t least = 0, enough = 0;
  int64_t fewest = -1; /* parameters that must run ahead; -1: all */
  for (size_t s = 0; s < best->plan.n_subgroups; s++) enough += best->plan.subgroups[s].ahead;
  const size_t step = enough / 32 + 1;
  for (size_t n = 0; least < enough; n = (least + enough) / 2) {
    hk_forecast fewer = {0};
    HK_TRY(forecast_with(best, n, machine, &fewer, err));
    if (as_fast(&fewer, best)) {
      fewest = hk_plan_ahead(&fewer.plan);
      enough = n;
    } else {
      least = n + step;
    }
    hk_forecast_free(&fewer);
  }
  if (fewest < 0) return HK_OK;
  hk_forecast with_room;
  HK_TRY(forecast_with(best, count_deepest(&best->plan, ROOM * fewest), machine, &with_room, err));
  hk_forecast_free(best);
  *best = with_room;
  return HK_OK;
}

const char *hk_ahead_reason(const hk_forecast *best, const hk_machine *machine, char *buffer,
                            size_t size) {
  const hk_plan *plan = &best->plan;
  const hk_bytes spares = hk_spare_bytes(plan->optimizer, hk_plan_ahead(plan));
  const double cpu = (double)hk_plan_on_route(plan, HK_ROUTE_CPU);
  const double ahead = (double)hk_plan_ahead(plan);
  hk_error unknown = {0};
  hk_bytes room = 0;
  char a[16], b[16], rest[100] = "";
  buffer[0] = '\0';
  if (plan->overlap != HK_OVERLAP_BOTH || cpu == 0) return buffer;
  if (ahead == 0) {
    snprintf(buffer, size, "Nothing runs ahead of the norm, so that there are no spares.");
    return buffer;
  }
  if (ahead < cpu && hk_plan_spares(plan, machine, &room, &unknown) == HK_OK)
    snprintf(rest, sizeof rest, " (host memory has room for %s)",
             hk_format_bytes(room, b, sizeof b));
  snprintf(buffer, size,
           "The CPU may update %.0f %% of its part ahead of the norm, into %s of "
           "spares%s.",
           100 * ahead / cpu, hk_format_bytes(spares, a, sizeof a), rest);
  return buffer;
}
