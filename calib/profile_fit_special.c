/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Quantities of copies that each have a probe made for them. Campaigns from before there was one
 * leave the list's default. */
#include <math.h>

#include "calib/profile_draft.h"

/* -- Turns ------------------------------------------------------------------------------------- */

/* Four are tried: if about as many run at once, more may. */
static double at_once_of(double seen) {
  return seen > 3 ? 1e6 : fmax(1, round(seen));
}

static void set_turns(hk_draft *draft) {
  size_t at = 0;
  const hk_series *s = hk_draft_alone(draft, HK_LOAD_TURNS, &at);
  if (!s) return;
  const hk_estimate seen = hk_estimate_median(&s->summary[0], 1);
  const hk_estimate e = {at_once_of(seen.value), at_once_of(seen.low), at_once_of(seen.high), 1};
  hk_draft_set(draft, &draft->machine.copies_at_once, HK_ORIGIN_MEASURED, e,
               "of 4 copies to the GPU that were queued together %.2f ran at once", seen.value);
}

/* -- Copies from caches ------------------------------------------------------------------------ */

/* The largest size whose rate is nearer to the smallest's than to memory's, and the first that is
 * not. */
typedef struct {
  const hk_series *last;
  double beyond; /* bytes; INFINITY: not tried */
} cached_range;

static double size_of(const hk_series *s) {
  return (double)s->probe.loads[0].chunk;
}

/* The rate of the bytes, without the latencies that unpinned copies have. */
static double rate_of(const hk_machine *m, const hk_series *s, double seen) {
  const double latency = (m->h2d_latency.value + m->h2d_pageable_latency.value) / 1e9;
  return size_of(s) / fmax(size_of(s) / seen - latency, size_of(s) / seen / 2);
}

/* Series come in the order of their sizes. */
static cached_range find_range(const hk_draft *draft) {
  const hk_machine *m = &draft->machine;
  cached_range r = {.beyond = INFINITY};
  double least = 0;
  size_t at = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_H2D_CACHED, &at));) {
    const double rate = rate_of(m, s, s->summary[0].median);
    if (least == 0) least = sqrt(rate * m->h2d_pageable.value);
    if (rate < least) {
      r.beyond = size_of(s);
      return r;
    }
    r.last = s;
  }
  return r;
}

static void set_cached(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  const cached_range r = find_range(draft);
  if (r.last == NULL) return;
  const hk_estimate seen = hk_estimate_median(&r.last->summary[0], 1);
  hk_draft_set(draft, &m->h2d_cached, HK_ORIGIN_MEASURED,
               (hk_estimate){rate_of(m, r.last, seen.value), rate_of(m, r.last, seen.low),
                             rate_of(m, r.last, seen.high), 1},
               "%s, less the latencies of unpinned copies", r.last->probe.name);
  const double most = fmin(r.beyond, 4 * size_of(r.last));
  hk_draft_set(draft, &m->cached, HK_ORIGIN_MEASURED,
               (hk_estimate){sqrt(size_of(r.last) * most), size_of(r.last), most, 1},
               "%s is as fast as smaller ones%s", r.last->probe.name,
               isfinite(r.beyond) ? ", the next size is not" : ", larger ones were not tried");
}

/* -- Kernels' reads beside copies -------------------------------------------------------------- */

static int find_load(const hk_series *s, hk_load_kind kind) {
  for (int i = 0; i < s->probe.n_loads; i++)
    if (s->probe.loads[i].kind == kind) return i;
  return -1;
}

/* What copies out have beside copies in and pulls, of the rate that they have alone. */
static void set_beside_reads(hk_draft *draft) {
  double sum = 0, squares = 0, least = INFINITY, most = 0;
  size_t n = 0;
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    const int out = find_load(s, HK_LOAD_D2H);
    if (out < 0 || find_load(s, HK_LOAD_H2D) < 0 || find_load(s, HK_LOAD_PULL) < 0) continue;
    if (!hk_series_counts(s)) continue;
    const double kept = s->summary[out].median / draft->machine.d2h.value;
    const double error = hk_series_error(s, out);
    sum += log(kept);
    squares += error * error;
    least = fmin(least, kept);
    most = fmax(most, kept);
    n++;
  }
  if (n == 0) return; /* the list's default */
  const double error = hypot(sqrt(squares), log(most / least) / 2) / sqrt((double)n);
  hk_draft_set(draft, &draft->machine.d2h_beside_reads, HK_ORIGIN_MEASURED,
               hk_estimate_fitted(exp(sum / (double)n), error, n),
               "copies out beside copies in, pulls and AdamW, %.2f to %.2f of pcie.d2h", least,
               most);
}

void hk_draft_special(hk_draft *draft) {
  set_turns(draft);
  set_cached(draft);
  set_beside_reads(draft);
}
