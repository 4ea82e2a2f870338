/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rates that are shares of other rates: AdamW into spare memory, of AdamW in place;
 * computation and launches beside an update, of those alone. Campaigns without the probes leave the
 * list's defaults. */
#include <math.h>

#include "calib/fit/probe_fit_draft.h"

/* -- AdamW into spare memory ------------------------------------------------------------------- */

/* Seconds that one operation of the series takes without cpu.operation_ns; half of its time at
 * least. */
static double seconds_of(const hk_draft *draft, const hk_series *s) {
  const hk_load *load = &s->probe.loads[0];
  const double seconds = (double)hk_load_operation(load) / s->summary[0].median;
  return fmax(seconds - hk_cpu_start(&draft->machine, load->threads) / 1e9, seconds / 2);
}

/* In place with as many threads and the same chunk and piece; NULL: none. */
static const hk_series *in_place(const hk_draft *draft, const hk_load *ahead) {
  size_t at = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_ADAMW_CPU, &at));) {
    const hk_load *l = &s->probe.loads[0];
    if (l->threads == ahead->threads && l->chunk == ahead->chunk &&
        hk_load_operation(l) == hk_load_operation(ahead))
      return s;
  }
  return NULL;
}

static void set_ahead(hk_draft *draft) {
  hk_ratios all = {0};
  int least = 0, most = 0;
  size_t at = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_ADAMW_AHEAD, &at));) {
    const hk_series *other = in_place(draft, &s->probe.loads[0]);
    if (other == NULL) continue;
    if (all.n == 0) least = s->probe.loads[0].threads;
    most = s->probe.loads[0].threads;
    hk_ratios_add(&all, seconds_of(draft, other) / seconds_of(draft, s),
                  hypot(hk_series_error(s, 0), hk_series_error(other, 0)));
  }
  if (all.n == 0) return;
  hk_draft_set(draft, &draft->machine.cpu_adamw_ahead, HK_ORIGIN_MEASURED, hk_ratios_mean(&all),
               "AdamW into spare memory on %d to %d threads has %.2f to %.2f of the rate in place",
               least, most, all.least, all.most);
}

/* -- Computation beside an update -------------------------------------------------------------- */

static const hk_series *product_alone(const hk_draft *draft, const hk_load *product) {
  size_t at = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_MATMUL, &at));) {
    const hk_load *l = &s->probe.loads[0];
    if (l->chunk == product->chunk && l->n == product->n && l->k == product->k) return s;
  }
  return NULL;
}

/* Noise can make the share more than 1, and then it is 1. */
static void set_compute(hk_draft *draft) {
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    const int product = hk_series_find(s, HK_LOAD_MATMUL);
    if (product < 0 || s->probe.n_loads < 2 || !hk_series_counts(s)) continue;
    const hk_series *alone = product_alone(draft, &s->probe.loads[product]);
    if (alone == NULL) continue;
    const double beside = s->summary[product].median, free = alone->summary[0].median;
    hk_estimate e = hk_estimate_fitted(
        beside / free, hypot(hk_series_error(s, product), hk_series_error(alone, 0)), 1);
    e.value = fmin(e.value, 1);
    e.low = fmin(e.low, 1);
    e.high = fmin(e.high, 1);
    hk_draft_set(draft, &draft->machine.compute_beside_update, HK_ORIGIN_MEASURED, e,
                 "%s: matrix products at %.4g F/s there and %.4g alone", s->probe.name, beside,
                 free);
  }
}

/* -- Launches beside an update ----------------------------------------------------------------- */

/* Whether the median of a load has an interval. */
static bool has_interval(const hk_series *s, int load) {
  return isfinite(hk_summary_spread(&s->summary[load]));
}

/* The share that a loop in C keeps of its launches. A framework usually keeps less, because the
 * update displaces more of its data from the caches. So the share is taken only if its whole
 * interval is below the default; otherwise the default's source mentions it. */
static void set_launches(hk_draft *draft, const hk_series *beside, const hk_series *alone) {
  const int loop = hk_series_find(beside, HK_LOAD_LAUNCH_LOOP);
  const int team = hk_series_find(beside, HK_LOAD_ADAMW_CPU);
  const int threads = team < 0 ? 0 : beside->probe.loads[team].threads;
  if (threads < 1 || !has_interval(beside, loop) || !has_interval(alone, 0)) return;
  hk_quantity *quantity = &draft->machine.launch_beside_update;
  const double usual = hk_draft_default(draft, quantity);
  const double there = beside->summary[loop].median, free = alone->summary[0].median;
  const hk_estimate share = hk_estimate_fitted(
      there / free, hypot(hk_series_error(beside, loop), hk_series_error(alone, 0)), 1);
  if (share.high < usual)
    hk_draft_set(draft, quantity, HK_ORIGIN_MEASURED, share,
                 "%s: %.4g launches/s there and %.4g alone, by a loop in C; a framework usually "
                 "keeps less",
                 beside->probe.name, there, free);
  else
    hk_draft_assume(draft, quantity, usual,
                    "hocket's default; a loop in C kept %.2f of its launches beside AdamW on %d "
                    "thread%s (calibrate %.10s, %.2f to %.2f), and a framework "
                    "usually keeps less",
                    share.value, threads, threads == 1 ? "" : "s", draft->date, share.low,
                    share.high);
}

static void find_launches(hk_draft *draft) {
  size_t at = 0;
  const hk_series *alone = hk_draft_alone(draft, HK_LOAD_LAUNCH_LOOP, &at);
  for (size_t i = 0; alone != NULL && i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    if (s->probe.n_loads > 1 && hk_series_counts(s) && hk_series_find(s, HK_LOAD_LAUNCH_LOOP) >= 0)
      set_launches(draft, s, alone);
  }
}

void hk_draft_ratios(hk_draft *draft) {
  set_ahead(draft);
  set_compute(draft);
  find_launches(draft);
}
