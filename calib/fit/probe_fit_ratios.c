/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rates that are shares of other rates: AdamW into spare memory, of AdamW in place;
 * computation beside an update, of computation alone. Campaigns without the probes leave the list's
 * defaults. */
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

void hk_draft_ratios(hk_draft *draft) {
  set_ahead(draft);
  set_compute(draft);
}
