/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Measures probes repeatedly until their medians are known (calib/probes/campaign.h). */
#include "calib/probes/campaign.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"

/* -- Series ------------------------------------------------------------------------------------ */

hk_status hk_campaign_open(const hk_probe *probes, size_t n, hk_campaign *campaign, hk_error *err) {
  *campaign = (hk_campaign){0};
  if (n == 0) return hk_fail(err, HK_INPUT, "a campaign needs at least one probe");
  campaign->series = calloc(n, sizeof *campaign->series);
  if (!campaign->series) return hk_fail_memory(err, n * sizeof *campaign->series, "a campaign");
  for (size_t i = 0; i < n; i++) campaign->series[i].probe = probes[i];
  campaign->n = campaign->noisy = n;
  return HK_OK;
}

void hk_campaign_free(hk_campaign *campaign) {
  for (size_t i = 0; i < campaign->n; i++) free(campaign->series[i].values);
  free(campaign->series);
  *campaign = (hk_campaign){0};
}

static hk_series *find(const hk_campaign *campaign, const char *probe) {
  for (size_t i = 0; i < campaign->n; i++)
    if (strcmp(campaign->series[i].probe.name, probe) == 0) return &campaign->series[i];
  return NULL;
}

const hk_series *hk_campaign_find(const hk_campaign *campaign, const char *probe) {
  return find(campaign, probe);
}

static hk_status summarise(hk_series *series, hk_error *err) {
  const size_t n = series->rounds, n_loads = (size_t)series->probe.n_loads;
  double *column = malloc(n * sizeof *column);
  if (!column) return hk_fail_memory(err, n * sizeof *column, "the summary of a series");
  hk_status status = HK_OK;
  for (size_t load = 0; status == HK_OK && load < n_loads; load++) {
    for (size_t i = 0; i < n; i++) column[i] = series->values[i * n_loads + load];
    status = hk_summarise(column, n, &series->summary[load], err);
  }
  free(column);
  return status;
}

static hk_status append(hk_series *series, const double *values, hk_error *err) {
  const size_t n_loads = (size_t)series->probe.n_loads;
  HK_TRY(hk_grow(&series->values, &series->room, series->rounds, n_loads * sizeof *values,
                 "a series", err));
  memcpy(series->values + series->rounds++ * n_loads, values, n_loads * sizeof *values);
  return summarise(series, err);
}

/* Measured rates, times and sizes must be finite and above 0. */
static hk_status check(const hk_probe *probe, const double *values, hk_error *err) {
  for (int i = 0; i < probe->n_loads; i++)
    if (!isfinite(values[i]) || values[i] <= 0)
      return hk_fail(err, HK_NO, "load %d (%s) came out as %g %s: it must be above 0", i + 1,
                     hk_load_name(probe->loads[i].kind), values[i],
                     hk_load_unit(probe->loads[i].kind));
  return HK_OK;
}

hk_status hk_campaign_add(hk_campaign *campaign, const char *probe, const double *values,
                          int n_values, hk_error *err) {
  hk_series *series = find(campaign, probe);
  if (!series) return hk_fail(err, HK_INPUT, "no probe '%s' in this campaign", probe);
  if (n_values != series->probe.n_loads)
    return hk_fail(err, HK_INPUT, "probe '%s': %d values, but it has %d loads", probe, n_values,
                   series->probe.n_loads);
  if (check(&series->probe, values, err) != HK_OK)
    return hk_fail(err, HK_INPUT, "probe '%s': a stored value is not above 0", probe);
  return append(series, values, err);
}

/* Largest relative half interval of a series' loads. */
static double spread(const hk_series *series) {
  double most = 0;
  for (int i = 0; i < series->probe.n_loads; i++)
    most = fmax(most, hk_summary_spread(&series->summary[i]));
  return most;
}

static void judge(hk_series *series, const hk_campaign_options *options) {
  series->narrow = series->rounds >= options->least && spread(series) <= options->target;
}

static bool is_open(const hk_series *series, const hk_campaign_options *options) {
  return !series->failed && !series->narrow && series->rounds < options->most;
}

/* Marks a series as failed. Its earlier values are discarded, because they may be wrong, too. */
static void give_up(hk_series *series, const hk_error *why) {
  series->failed = true;
  series->rounds = 0;
  memset(series->summary, 0, sizeof series->summary);
  snprintf(series->failure, sizeof series->failure, "%.*s", (int)sizeof series->failure - 1,
           why->message);
}

/* -- State of a call --------------------------------------------------------------------------- */

/* One call of hk_campaign_run. */
typedef struct {
  hk_campaign *campaign;
  const hk_campaign_options *options;
  gsl_rng *random;
  size_t *order; /* series of the current round, in its order */
  double *cost;  /* seconds of each series' latest run; NAN: not warmed up yet */
  hk_ns counted; /* time up to which campaign->seconds counts */
  double share;  /* that progress reported last */
} sitting;

static hk_ns now(const hk_campaign_options *options) {
  return options->clock ? options->clock(options->stand) : hk_now();
}

/* Adds the time since the last count to campaign->seconds, storing included, because the user waits
 * for that, too. A clock that went back adds nothing. */
static double count_time(sitting *s) {
  const hk_ns t = now(s->options);
  const double passed = t > s->counted ? hk_s(t - s->counted) : 0;
  s->counted = t;
  s->campaign->seconds += passed;
  return passed;
}

static bool is_cold(const sitting *s, size_t i) {
  return isnan(s->cost[i]);
}

/* Mean seconds of a run: the estimate for series that have not run yet. */
static double usual_cost(const sitting *s) {
  double sum = 0;
  size_t n = 0;
  for (size_t i = 0; i < s->campaign->n; i++) {
    if (is_cold(s, i)) continue;
    sum += s->cost[i];
    n++;
  }
  return n > 0 ? sum / (double)n : 0;
}

static bool affords(const sitting *s, double seconds) {
  const double spent = s->campaign->seconds, budget = s->options->budget_s;
  return spent < budget && spent + seconds <= budget;
}

static bool must_stop(const sitting *s) {
  return s->options->stop && *s->options->stop;
}

/* -- Progress ---------------------------------------------------------------------------------- */

/* Estimated rounds until a series is narrow. Intervals shrink with the square root of the rounds,
 * so that rounds * (spread / target)^2 are needed in all. */
static double rounds_left(const hk_series *series, const hk_campaign_options *options) {
  if (!is_open(series, options)) return 0;
  const double rounds = (double)series->rounds, least = (double)options->least;
  if (rounds < least) return least - rounds;
  const double wanted = rounds * pow(spread(series) / options->target, 2);
  return fmin(fmax(wanted, rounds + 1), (double)options->most) - rounds;
}

static double time_left(const sitting *s) {
  const double usual = usual_cost(s);
  double left = 0;
  for (size_t i = 0; i < s->campaign->n; i++) {
    const double runs = rounds_left(&s->campaign->series[i], s->options);
    left += runs <= 0 ? 0 : is_cold(s, i) ? (runs + 1) * usual : runs * s->cost[i];
  }
  return fmin(left, fmax(0, s->options->budget_s - s->campaign->seconds));
}

static size_t count_narrow(const hk_campaign *campaign) {
  size_t narrow = 0;
  for (size_t i = 0; i < campaign->n; i++) narrow += campaign->series[i].narrow;
  return narrow;
}

static void show(sitting *s, const hk_series *series) {
  if (!s->options->progress) return;
  const double done = s->campaign->seconds, left = time_left(s);
  /* If a series turns out to be noisy, the share stays where it is instead of falling. */
  s->share = fmax(s->share, left > 0 ? done / (done + left) : 1);
  s->options->progress(s->options->context, series->probe.name, s->share, left,
                       count_narrow(s->campaign), s->campaign->n);
}

/* -- Runs and rounds --------------------------------------------------------------------------- */

/* Data is verified in the warm-up and in the rounds after which series usually end. */
static bool wants_verifying(const sitting *s, size_t i) {
  const size_t round = s->campaign->series[i].rounds + 1;
  return is_cold(s, i) || round == s->options->least || round == s->options->most;
}

static hk_status take(sitting *s, hk_series *series, const double *values, hk_error *err) {
  HK_TRY(append(series, values, err));
  judge(series, s->options);
  if (!s->options->keep) return HK_OK;
  return s->options->keep(s->options->context, &series->probe, series->rounds - 1, values, err);
}

/* Runs series i once: its warm-up, or a round of it. */
static hk_status run_once(sitting *s, size_t i, hk_error *err) {
  const hk_campaign_options *o = s->options;
  hk_series *series = &s->campaign->series[i];
  const bool cold = is_cold(s, i);
  double values[HK_PROBE_LOADS] = {0};
  hk_error why = {0};
  hk_status status = o->run(o->stand, &series->probe, o->wish, wants_verifying(s, i), values, &why);
  s->cost[i] = count_time(s);
  if (status == HK_OK) status = check(&series->probe, values, &why);
  if (status == HK_ENVIRONMENT)
    return hk_fail(err, status, "probe '%s': %s", series->probe.name, why.message);
  if (status != HK_OK)
    give_up(series, &why);
  else if (!cold)
    HK_TRY(take(s, series, values, err));
  show(s, series);
  return HK_OK;
}

/* Runs series i until it has one more round, after its warm-up if it is cold, unless it fails.
 * *go_on: false if the budget is spent or a stop was requested before a run. */
static hk_status visit(sitting *s, size_t i, bool *go_on, hk_error *err) {
  const size_t before = s->campaign->series[i].rounds;
  while (is_open(&s->campaign->series[i], s->options) && s->campaign->series[i].rounds == before) {
    s->campaign->interrupted = must_stop(s);
    *go_on = !s->campaign->interrupted && affords(s, is_cold(s, i) ? usual_cost(s) : s->cost[i]);
    if (!*go_on) return HK_OK;
    HK_TRY(run_once(s, i, err));
  }
  return HK_OK;
}

/* Chooses the series of the next round in random order. *seconds: estimated time of the round. */
static size_t plan_round(sitting *s, double *seconds) {
  const double usual = usual_cost(s);
  size_t n = 0;
  *seconds = 0;
  for (size_t i = 0; i < s->campaign->n; i++) {
    if (!is_open(&s->campaign->series[i], s->options)) continue;
    *seconds += is_cold(s, i) ? 2 * usual : s->cost[i];
    s->order[n++] = i;
  }
  if (n > 0) gsl_ran_shuffle(s->random, s->order, n, sizeof *s->order);
  return n;
}

/* *go_on: false if the values are good enough. The time of the review counts. */
static hk_status review(sitting *s, bool *go_on, hk_error *err) {
  bool enough = false;
  if (!s->options->review) return HK_OK;
  HK_TRY(s->options->review(s->options->context, &enough, err));
  count_time(s);
  *go_on = !enough;
  return HK_OK;
}

static hk_status run_rounds(sitting *s, hk_error *err) {
  for (bool go_on = true; go_on;) {
    double seconds = 0;
    const size_t n = plan_round(s, &seconds);
    if (n == 0 || !affords(s, seconds)) return HK_OK;
    for (size_t k = 0; go_on && k < n; k++) HK_TRY(visit(s, s->order[k], &go_on, err));
    if (go_on) HK_TRY(review(s, &go_on, err));
  }
  return HK_OK;
}

/* -- The campaign ------------------------------------------------------------------------------ */

static void tally(hk_campaign *campaign) {
  campaign->noisy = campaign->failures = 0;
  for (size_t i = 0; i < campaign->n; i++) {
    const hk_series *series = &campaign->series[i];
    campaign->failures += series->failed;
    campaign->noisy += !series->failed && !series->narrow;
  }
}

/* False: out of memory. */
static bool sit_down(sitting *s) {
  const size_t n = s->campaign->n;
  s->order = malloc(n * sizeof *s->order);
  s->cost = malloc(n * sizeof *s->cost);
  gsl_error_handler_t *before = gsl_set_error_handler_off();
  s->random = gsl_rng_alloc(gsl_rng_mt19937);
  gsl_set_error_handler(before);
  if (!s->order || !s->cost || !s->random) return false;
  /* The generator uses only 32 bits of its seed. */
  gsl_rng_set(s->random, (unsigned long)(s->options->seed ^ s->options->seed >> 32));
  for (size_t i = 0; i < n; i++) {
    s->cost[i] = NAN;
    judge(&s->campaign->series[i], s->options);
  }
  s->counted = now(s->options);
  return true;
}

hk_status hk_campaign_run(hk_campaign *campaign, const hk_campaign_options *options,
                          hk_error *err) {
  sitting s = {.campaign = campaign, .options = options};
  campaign->interrupted = false;
  const hk_status status =
      sit_down(&s) ? run_rounds(&s, err)
                   : hk_fail_memory(err, campaign->n * sizeof *s.order, "the order of a campaign");
  tally(campaign);
  if (s.random) gsl_rng_free(s.random);
  free(s.order);
  free(s.cost);
  return status;
}
