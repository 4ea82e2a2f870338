/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Why the first of a ranking is the fastest, or why nothing fits, in sentences. */
#include "sim/rank_reason.h"

#include <stdio.h>
#include <string.h>

#include "sim/accumulation.h"
#include "sim/ahead.h"

static const hk_forecast *find(const hk_ranking *ranking, const char *policy, hk_runtime runtime) {
  for (size_t i = 0; i < ranking->n_fit; i++) {
    const hk_forecast *f = &ranking->forecasts[i];
    if (strcmp(f->plan.policy, policy) == 0 && f->plan.runtime == runtime) return f;
  }
  return NULL;
}

static double speedup(const hk_forecast *slow, const hk_forecast *fast) {
  return (double)slow->update_ns / (double)fast->update_ns;
}

static void say(hk_ranking *ranking, const char *text) {
  const size_t used = strlen(ranking->reason);
  snprintf(ranking->reason + used, sizeof ranking->reason - used, "%s%s", used > 0 ? " " : "",
           text);
}

static void say_shares(hk_ranking *ranking, const hk_forecast *best) {
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(&best->plan, n);
  double all = 0;
  for (int r = 0; r < HK_ROUTE_COUNT; r++) all += (double)n[r];
  char text[320], title[80];
  int used =
      snprintf(text, sizeof text, "%s (%s) wins:", hk_forecast_title(best, title, sizeof title),
               hk_runtime_name(best->plan.runtime));
  static const char *const where[] = {"updated by the CPU", "on the GPU after a round trip",
                                      "by the GPU in host memory", "on state kept on the GPU"};
  for (int r = 0; r < HK_ROUTE_COUNT; r++) {
    if (n[r] == 0 || used >= (int)sizeof text) continue;
    used += snprintf(text + used, sizeof text - (size_t)used, " %.0f %% of the parameters %s,",
                     100 * (double)n[r] / all, where[r]);
  }
  if (used > 0 && used < (int)sizeof text) text[used - 1] = '.';
  say(ranking, text);
}

/* With an overlap: reasons about the iteration instead of the update. */
static void say_why_overlapped(hk_ranking *ranking, const hk_machine *machine,
                               const hk_overlap_search_result *searched) {
  const hk_forecast *best = &ranking->forecasts[0];
  char text[1000];
  if (*hk_ahead_reason(best, machine, text, sizeof text)) say(ranking, text);
  if (strcmp(best->plan.policy, "overlapped") == 0) {
    say(ranking, hk_overlap_reason(searched, best, machine, text, sizeof text));
  } else {
    snprintf(text, sizeof text, "An iteration takes %.2f x its lower bound (%s).",
             (double)best->iteration_ns / (double)hk_max(1, best->period_bound.period_ns),
             best->period_bound.binding);
    say(ranking, text);
  }
  const hk_forecast *other = find(ranking, "zero-offload", HK_RUNTIME_HOCKET);
  if (other == NULL || other == best) return;
  snprintf(text, sizeof text, "It is %.2f x as fast as leaving all to the CPU.",
           (double)other->iteration_ns / (double)hk_max(1, best->iteration_ns));
  say(ranking, text);
}

/* What forward and backward wait for, if they take nearly all of the iteration. */
static void say_training(hk_ranking *ranking, const hk_forecast *best) {
  char text[320];
  const double share = 1 - (double)best->update_ns / (double)hk_max(1, best->iteration_ns);
  const char *busiest = hk_resource_name(best->training_limiter);
  if (!hk_forecast_is_training(best)) return;
  if (best->training_utilization < 0.5)
    snprintf(text, sizeof text,
             "Forward and backward take %.0f %% of the iteration. No resource is more than %.0f %% "
             "busy in them (%s): launches of layers and latencies of collectives limit them.",
             100 * share, 100 * best->training_utilization, busiest);
  else
    snprintf(text, sizeof text,
             "Forward and backward take %.0f %% of the iteration and keep %s %.0f %% busy.",
             100 * share, busiest, 100 * best->training_utilization);
  say(ranking, text);
}

void hk_ranking_say_why(hk_ranking *ranking, const hk_machine *machine,
                        const hk_overlap_search_result *searched) {
  const hk_forecast *best = &ranking->forecasts[0];
  char text[320];
  say_shares(ranking, best);
  char sums[700];
  if (*hk_accumulation_reason(best, sums, sizeof sums)) say(ranking, sums);
  if (best->plan.overlap != HK_OVERLAP_NONE) {
    say_why_overlapped(ranking, machine, searched);
    return;
  }
  say_training(ranking, best);
  snprintf(text, sizeof text,
           "It keeps %s %.0f %% busy through the update, %.2f x its lower bound.",
           hk_resource_name(best->limiter), 100 * best->limiter_utilization,
           best->physical.update_ns > 0 ? (double)best->update_ns / (double)best->physical.update_ns
                                        : 1.0);
  say(ranking, text);
  const struct {
    const char *policy;
    hk_runtime runtime;
    const char *what;
  } others[] = {{"zero-offload", HK_RUNTIME_HOCKET, "leaving all to the CPU"},
                {"streamed", HK_RUNTIME_HOCKET, "sending all to the GPU"},
                {"zero-offload", HK_RUNTIME_DEEPSPEED, "DeepSpeed's ZeRO-Offload"}};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    const hk_forecast *other = find(ranking, others[i].policy, others[i].runtime);
    if (other == NULL || other == best) continue;
    snprintf(text, sizeof text, "Its update is %.2f x as fast as %s (%s %.0f %% busy).",
             speedup(other, best), others[i].what, hk_resource_name(other->limiter),
             100 * other->limiter_utilization);
    say(ranking, text);
  }
}

void hk_ranking_say_why_not(hk_ranking *ranking) {
  const hk_forecast *nearest = &ranking->forecasts[0];
  char text[1280], title[80];
  snprintf(text, sizeof text, "does not fit: %s; nearest is %s (%s); %s", nearest->problem,
           hk_forecast_title(nearest, title, sizeof title), hk_runtime_name(nearest->plan.runtime),
           nearest->advice);
  say(ranking, text);
}
