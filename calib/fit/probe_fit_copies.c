/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Quantities of copies that have probes of their own. Without such a probe, as in campaigns of
 * older versions, the quantity keeps its default. */
#include <math.h>

#include "calib/fit/probe_fit_draft.h"
#include "sim/sim.h"

/* -- Turns ------------------------------------------------------------------------------------- */

/* Four copies are queued together. More than 3 at once are taken as no limit. */
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

/* Unpinned copies of sources in the CPU's caches. A size counts as cached if its rate is at least
 * the geometric mean of the smallest size's rate and pcie.h2d_pageable_bytes_per_s. */
typedef struct {
  const hk_series *last; /* the largest size that is cached */
  double beyond;         /* the next size, bytes, which is not; INFINITY: none was tried */
} cached_range;

static double size_of(const hk_series *s) {
  return (double)s->probe.loads[0].chunk;
}

/* size / (time - latencies of unpinned copies); the latencies count as half of the time at most. */
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

/* ns, of one operation of a load, as measured. */
static double time_each(const hk_series *s, int load) {
  return (double)s->probe.loads[load].chunk / s->summary[load].median * 1e9;
}

/* Share of the time in which a pull reads: 1 - start / time, at least 0.5. */
static double share_reading(const hk_machine *m, const hk_series *s, int pull) {
  const double start = m->gpu_launch.value + m->launch_beside_reads.value;
  return fmax(1 - start / time_each(s, pull), 0.5);
}

/* Share of its rate alone that a copy keeps while a pull reads. `kept` is the mean share; while the
 * next pull starts, the copy has its full rate: kept = share x reading + (1 - reading). At least
 * kept / 2. */
static double while_reading(double kept, double reading) {
  return fmax((kept - (1 - reading)) / reading, kept / 2);
}

/* From probes with copies in both directions, pulls and AdamW on the CPU, while pulls read:
 *   d2h_beside_reads = D2H rate / D2H rate alone
 *   h2d_beside_reads = (H2D rate / H2D rate alone) / (pull rate / pull rate alone) */
static void set_beside_reads(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  const double own_in = m->h2d.value, own_pull = m->pull.value > 0 ? m->pull.value : own_in;
  hk_ratios out = {0}, in = {0};
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    const int d2h = hk_series_find(s, HK_LOAD_D2H), h2d = hk_series_find(s, HK_LOAD_H2D);
    const int pull = hk_series_find(s, HK_LOAD_PULL);
    if (d2h < 0 || h2d < 0 || pull < 0 || !hk_series_counts(s)) continue;
    const double reading = share_reading(m, s, pull);
    const double kept_out = s->summary[d2h].median / m->d2h.value;
    const double kept_in = s->summary[h2d].median / own_in;
    const double kept_pull = s->summary[pull].median / own_pull;
    hk_ratios_add(&out, while_reading(kept_out, reading), hk_series_error(s, d2h));
    hk_ratios_add(&in, while_reading(kept_in, reading) / (kept_pull / reading),
                  hypot(hk_series_error(s, h2d), hk_series_error(s, pull)));
  }
  if (out.n == 0) return; /* both keep their defaults */
  hk_draft_set(draft, &m->d2h_beside_reads, HK_ORIGIN_MEASURED, hk_ratios_mean(&out),
               "copies out beside copies in, pulls and AdamW, %.2f to %.2f of pcie.d2h", out.least,
               out.most);
  hk_draft_set(draft, &m->h2d_beside_reads, HK_ORIGIN_MEASURED, hk_ratios_mean(&in),
               "copies in beside copies out, pulls and AdamW keep %.2f to %.2f of what pulls keep",
               in.least, in.most);
}

/* -- Starts of kernels beside copies and pulls ------------------------------------------------- */

/* ns, of one operation of a load with no other load, as predicted. */
static double time_alone(const hk_machine *m, const hk_load *load) {
  const hk_graph graph = {.ranks = 1, .multiplicity = 1, .world = 1, .nodes = 1, .tp = 1};
  const hk_op op = {.kind = hk_load_op(load->kind), .work = load->chunk};
  hk_ns latency, work;
  hk_time_alone(&graph, &op, m, &latency, &work);
  return (double)(latency + work);
}

/* Relative error of the time of an update on the GPU: root mean square over its probes alone. */
static double error_alone(const hk_draft *draft) {
  double squares = 0;
  size_t at = 0, n = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_ADAMW_GPU, &at)); n++) {
    squares += hk_series_error(s, 0) * hk_series_error(s, 0);
  }
  return n > 0 ? sqrt(squares / (double)n) : 0;
}

/* Extra start time of a small update beside copies or pulls:
 *   extra = measured time - bytes / bandwidth - gpu.launch_ns
 * gpu.launch_ns includes the queue's pause between two operations; these measured times do not.
 * Only the sum of extra time and launch is identifiable. */
static void set_launch_beside(hk_draft *draft, hk_quantity *quantity, bool copies, bool pulls) {
  const hk_machine *m = &draft->machine;
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    const int update = hk_series_find(s, HK_LOAD_UPDATE);
    if (update < 0 || !hk_series_counts(s) || (hk_series_find(s, HK_LOAD_H2D) >= 0) != copies ||
        (hk_series_find(s, HK_LOAD_PULL) >= 0) != pulls) {
      continue;
    }
    const double work = (double)s->probe.loads[update].chunk;
    const double alone = time_alone(m, &s->probe.loads[update]);
    const double beside = time_each(s, update);
    const double error = 2 * hypot(error_alone(draft) * alone, hk_series_error(s, update) * beside);
    const double longer = beside - alone;
    hk_draft_set(
        draft, quantity, HK_ORIGIN_MEASURED,
        (hk_estimate){fmax(longer, 0), fmax(longer - error, 0), fmax(longer + error, 0), 1},
        "an update of %.3g parameters takes %.1f us there and %.1f us without other traffic", work,
        beside / 1e3, alone / 1e3);
  }
}

/* -- Updates beside copies --------------------------------------------------------------------- */

/* Share of its memory bandwidth that a kernel keeps beside one copy, from large updates:
 *   kept = bytes / bandwidth alone / (measured time - start) */
static void set_beside_copy(hk_draft *draft, hk_quantity *quantity, hk_load_kind copy) {
  const hk_machine *m = &draft->machine;
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    const int update = hk_series_find(s, HK_LOAD_ADAMW_GPU);
    if (update < 0 || s->probe.n_loads != 2 || hk_series_find(s, copy) < 0 || !hk_series_counts(s))
      continue;
    const double alone = time_alone(m, &s->probe.loads[update]) - m->gpu_launch.value;
    const double start =
        m->gpu_launch.value + (copy == HK_LOAD_H2D ? m->launch_beside_copies.value : 0);
    const double beside = time_each(s, update) - start;
    const double kept = fmin(fmax(alone / fmax(beside, 1), 0.01), 1);
    const double error = 2 * hypot(error_alone(draft), hk_series_error(s, update));
    hk_draft_set(
        draft, quantity, HK_ORIGIN_MEASURED,
        (hk_estimate){kept, fmax(kept * (1 - error), 0.01), fmin(kept * (1 + error), 1), 1},
        "%s: an update takes %.1f us there and %.1f us alone, without its start", s->probe.name,
        beside / 1e3, alone / 1e3);
  }
}

void hk_draft_special(hk_draft *draft) {
  set_turns(draft);
  set_cached(draft);
  set_launch_beside(draft, &draft->machine.launch_beside_copies, true, false);
  set_launch_beside(draft, &draft->machine.launch_beside_pulls, false, true);
  set_launch_beside(draft, &draft->machine.launch_beside_reads, true, true);
  set_beside_copy(draft, &draft->machine.gpu_beside_h2d, HK_LOAD_H2D);
  set_beside_copy(draft, &draft->machine.gpu_beside_d2h, HK_LOAD_D2H);
  set_beside_reads(draft);
}
