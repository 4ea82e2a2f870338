/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Sets the node's counts and sizes, the bandwidths and latencies of copies and GPU kernels without
 * CPU kernels beside them, and the capacities of links and fabric. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/probe_fit_draft.h"
#include "core/graph/bytes.h"

/* -- The node ---------------------------------------------------------------------------------- */

static hk_estimate exactly(double value) {
  return (hk_estimate){value, value, value, 0};
}

static int most_threads(const hk_campaign *campaign) {
  int most = 0;
  for (size_t i = 0; i < campaign->n; i++)
    for (int k = 0; k < campaign->series[i].probe.n_loads; k++)
      if (campaign->series[i].probe.loads[k].threads > most)
        most = campaign->series[i].probe.loads[k].threads;
  return most;
}

static void set_fingerprint(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  const hk_fingerprint *f = draft->fingerprint;
  hk_draft_set(draft, &m->gpus, HK_ORIGIN_MEASURED, exactly((double)f->gpus),
               "%lld of %.100s were probed", (long long)f->gpus, f->gpu);
  if (f->cores > 0)
    hk_draft_set(draft, &m->cores, HK_ORIGIN_MEASURED, exactly((double)f->cores),
                 "physical cores that the process may use, %.100s", f->cpu);
  else
    hk_draft_set(draft, &m->cores, HK_ORIGIN_MEASURED, exactly(most_threads(draft->campaign)),
                 "the most threads that a probe had");
  hk_draft_set(draft, &m->host_memory, HK_ORIGIN_MEASURED, exactly((double)f->memory),
               "memory that this process may use, limits of control groups included");
}

static void set_memory(hk_draft *draft) {
  size_t at = 0;
  const hk_series *s = hk_draft_alone(draft, HK_LOAD_MEMORY, &at);
  hk_draft_set(draft, &draft->machine.gpu_memory, HK_ORIGIN_MEASURED,
               hk_estimate_median(&s->summary[0], 1),
               "the largest size that the GPU's allocator gave");
}

static void set_matmul(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  const hk_series *best = NULL;
  size_t at = 0, shapes = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_MATMUL, &at)); shapes++)
    if (!best || s->summary[0].median > best->summary[0].median) best = s;
  if (!best) {
    hk_draft_assume(draft, &m->gpu_flops, 1e14,
                    "hocket's guess, 100 TFLOP/s: no matrix product was probed; only forward and "
                    "backward depend on it");
    return;
  }
  hk_estimate e = hk_estimate_median(&best->summary[0], 1);
  e.probes = shapes;
  hk_draft_set(draft, &m->gpu_flops, HK_ORIGIN_MEASURED, e, "%s, best of %zu", best->probe.name,
               shapes);
}

hk_status hk_draft_node(hk_draft *draft) {
  set_fingerprint(draft);
  set_memory(draft);
  set_matmul(draft);
  return HK_OK;
}

/* -- Lines ------------------------------------------------------------------------------------- */

static const char *size_text(hk_load_kind kind, double size, char text[24]) {
  if (strcmp(hk_load_unit(kind), "B/s") == 0) return hk_format_bytes((hk_bytes)size, text, 24);
  snprintf(text, 24, "%.3g M", size / 1e6);
  return text;
}

typedef struct {
  hk_line line;
  size_t probes;
  hk_estimate rate; /* of large sizes */
  char how[160];
} copied;

static void explain(const hk_line_point *points, hk_load_kind kind, copied *c) {
  char from[24], to[24];
  const hk_line *line = &c->line;
  const char *name = hk_load_name(kind);
  size_text(kind, points[0].size, from);
  size_text(kind, points[c->probes - 1].size, to);
  char count[24];
  hk_probe_count(c->probes, count);
  if (line->sizes < 2)
    snprintf(c->how, sizeof c->how, "%s %s %s", count, name, from);
  else
    snprintf(c->how, sizeof c->how, "%s %s %s .. %s, latency + size / rate%s, %.1f %% scatter",
             count, name, from, to, line->n > 1 ? ", its last segment" : "", 100 * line->scatter);
}

/* Fits latency and bandwidth to the probes of one load alone. out->probes is 0 without probes. */
static hk_status fit_sizes(hk_draft *draft, hk_load_kind kind, copied *out) {
  *out = (copied){0};
  hk_line_point *points = malloc((draft->campaign->n + 1) * sizeof *points);
  if (!points)
    return hk_fail_memory(draft->err, draft->campaign->n * sizeof *points, "a line's probes");
  size_t at = 0;
  hk_estimate median = {0};
  for (const hk_series *s; (s = hk_draft_alone(draft, kind, &at));) {
    points[out->probes++] = (hk_line_point){(double)s->probe.loads[0].chunk, s->summary[0].median,
                                            hk_series_error(s, 0)};
    median = hk_estimate_median(&s->summary[0], 1);
  }
  hk_status status = HK_OK;
  if (out->probes > 0) status = hk_line_fit(points, out->probes, &out->line, draft->err);
  if (status == HK_OK && out->probes > 0) {
    const hk_line_segment *last = &out->line.segments[out->line.n - 1];
    out->rate = hk_estimate_fitted(last->rate, last->rate_error / last->rate, out->probes);
    if (out->probes == 1) out->rate = median;
    explain(points, kind, out);
    if (out->line.sizes > 1) status = hk_draft_segments(draft, hk_load_name(kind), &out->line);
  }
  free(points);
  return status;
}

/* Interval in ns, at least 0: a latency near 0 has no meaningful relative error. */
static hk_estimate latency_of(const copied *c) {
  const double value = c->line.latency_ns;
  const double reach = fmax(HK_HALF_INTERVAL * c->line.latency_error, HK_INSTRUMENT * value);
  return (hk_estimate){value, fmax(0, value - reach), value + reach, c->probes};
}

/* `besides`: latency that another quantity contains already, ns; it is subtracted. */
static hk_status set_copy(hk_draft *draft, hk_load_kind kind, hk_quantity *rate,
                          hk_quantity *latency, double besides) {
  copied c;
  HK_TRY(fit_sizes(draft, kind, &c));
  if (c.probes == 0) return HK_OK; /* both keep their defaults */
  hk_draft_set(draft, rate, HK_ORIGIN_MEASURED, c.rate, "%s", c.how);
  c.line.latency_ns = fmax(0, c.line.latency_ns - besides);
  if (c.line.sizes > 1)
    hk_draft_set(draft, latency, HK_ORIGIN_MEASURED, latency_of(&c), "%s", c.how);
  return HK_OK;
}

/* unit x size / (time - launch). The launch is not subtracted if it is over half of the time. */
static hk_estimate launched(const hk_draft *draft, hk_estimate rate, double size, double unit) {
  const double launch = draft->machine.gpu_launch.value / 1e9, alone = size / rate.value;
  const double factor = unit * (alone < 2 * launch ? 1 : alone / (alone - launch));
  return (hk_estimate){factor * rate.value, factor * rate.low, factor * rate.high, rate.probes};
}

/* Bandwidth of a kernel, B/s. With one size only, the line has no latency, and gpu.launch_ns is
 * subtracted instead. */
static hk_estimate bytes_of(const hk_draft *draft, const copied *c, double bytes) {
  const hk_estimate rate = c->rate;
  if (c->line.sizes < 2) return launched(draft, rate, c->line.segments[0].least, bytes);
  return (hk_estimate){bytes * rate.value, bytes * rate.low, bytes * rate.high, rate.probes};
}

/* gpu.launch_ns: the latency of updates on the GPU, at least the time of a queued launch. Small
 * updates that stay in the GPU's caches would give less. */
static void set_launch(hk_draft *draft, const copied *kernels) {
  hk_quantity *launch = &draft->machine.gpu_launch;
  size_t at = 0;
  const hk_series *s = hk_draft_alone(draft, HK_LOAD_LAUNCH, &at);
  const double queued = s ? 1e9 / s->summary[0].median : 0;
  if (kernels->line.sizes > 1 && kernels->line.latency_ns > queued) {
    hk_draft_set(draft, launch, HK_ORIGIN_MEASURED, latency_of(kernels),
                 "%s; queued launches: %.0f ns", kernels->how, queued);
  } else if (s) {
    const hk_estimate e = hk_estimate_median(&s->summary[0], 1);
    hk_draft_set(draft, launch, HK_ORIGIN_MEASURED,
                 (hk_estimate){1e9 / e.value, 1e9 / e.high, 1e9 / e.low, 1},
                 "queued launches of empty kernels");
  }
}

static void set_hop(hk_draft *draft) {
  size_t at = 0;
  const hk_series *s = hk_draft_alone(draft, HK_LOAD_HOP, &at);
  if (!s) return; /* it keeps its default */
  hk_draft_set(draft, &draft->machine.gpu_hop, HK_ORIGIN_MEASURED,
               hk_estimate_median(&s->summary[0], 1),
               "copies in, kernels and copies out that wait for each other");
}

static hk_status set_gpu(hk_draft *draft) {
  copied resident, mapped;
  HK_TRY(fit_sizes(draft, HK_LOAD_ADAMW_GPU, &resident));
  HK_TRY(fit_sizes(draft, HK_LOAD_MAPPED, &mapped));
  set_launch(draft, &resident);
  set_hop(draft);
  hk_draft_set(draft, &draft->machine.gpu_hbm, HK_ORIGIN_MEASURED,
               bytes_of(draft, &resident, HK_BYTES_ADAMW), "%d B x %s", HK_BYTES_ADAMW,
               resident.how);
  hk_draft_set(draft, &draft->machine.mapped, HK_ORIGIN_MEASURED,
               bytes_of(draft, &mapped, HK_BYTES_ROUND_TRIP), "%d B x %s", HK_BYTES_ROUND_TRIP,
               mapped.how);
  return HK_OK;
}

/* From the largest size, less the launch: the simulator's pulls have no other latency. */
static void set_pull(hk_draft *draft) {
  const hk_series *large = NULL;
  size_t at = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_PULL, &at));)
    if (!large || s->probe.loads[0].chunk > large->probe.loads[0].chunk) large = s;
  if (!large) return; /* it keeps its default */
  hk_draft_set(draft, &draft->machine.pull, HK_ORIGIN_MEASURED,
               launched(draft, hk_estimate_median(&large->summary[0], 1),
                        (double)large->probe.loads[0].chunk, 1),
               "%s, less gpu.launch_ns", large->probe.name);
}

hk_status hk_draft_copies(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  HK_TRY(set_copy(draft, HK_LOAD_H2D, &m->h2d, &m->h2d_latency, 0));
  HK_TRY(set_copy(draft, HK_LOAD_D2H, &m->d2h, &m->d2h_latency, 0));
  HK_TRY(set_copy(draft, HK_LOAD_H2D_PAGEABLE, &m->h2d_pageable, &m->h2d_pageable_latency,
                  m->h2d_latency.value));
  HK_TRY(set_copy(draft, HK_LOAD_D2H_PAGEABLE, &m->d2h_pageable, &m->d2h_pageable_latency,
                  m->d2h_latency.value));
  HK_TRY(set_gpu(draft));
  set_pull(draft);
  return HK_OK;
}

/* -- Both directions, several GPUs ------------------------------------------------------------- */

/* Sum of a probe's rates of one kind of copies. */
static double sum_of(const hk_series *s, hk_load_kind kind) {
  double sum = 0;
  for (int i = 0; i < s->probe.n_loads; i++)
    if (s->probe.loads[i].kind == kind) sum += s->summary[i].median;
  return sum;
}

static hk_status open_region(hk_draft *draft, hk_probe_group group, hk_region *region) {
  *region = (hk_region){.draft = draft};
  region->series = malloc((draft->campaign->n + 1) * sizeof(const hk_series *));
  if (!region->series)
    return hk_fail_memory(draft->err, draft->campaign->n * sizeof(const hk_series *),
                          "the probes of links");
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    if (s->probe.group == group && hk_series_counts(s) && hk_replay_can(&s->probe))
      region->series[region->n_series++] = s;
  }
  return HK_OK;
}

/* Adds a capacity for the sum of copies in (`in`), out (`out`) or both. Start: the largest measured
 * sum. */
static void add_capacity(hk_region *region, hk_quantity *quantity, bool in, bool out, double least,
                         double most) {
  double start = least;
  for (size_t i = 0; i < region->n_series; i++) {
    const double sum = (in ? sum_of(region->series[i], HK_LOAD_H2D) : 0) +
                       (out ? sum_of(region->series[i], HK_LOAD_D2H) : 0);
    start = fmax(start, fmin(sum, most));
  }
  hk_region_add(
      region, quantity,
      (hk_unknown){.start = start, .least = least, .most = fmax(least, most), .width = log(1.3)});
}

static void set_quantity(const hk_region *region, size_t i, const char *undetermined) {
  char probes[160];
  const hk_unknown *u = &region->unknowns[i];
  hk_region_probes(region, probes, sizeof probes);
  hk_draft_set(
      region->draft, region->quantities[i], u->determined ? HK_ORIGIN_FITTED : HK_ORIGIN_MEASURED,
      hk_estimate_fitted(u->value, u->determined ? u->error : region->noise, region->n_series),
      "%s, %s, %.1f %% scatter", probes, u->determined ? "their replays" : undetermined,
      100 * region->scatter);
}

/* Not determined: the capacity limited no probe. The largest measured sum is a lower bound. */
static void set_capacities(const hk_region *region, size_t n) {
  for (size_t i = 0; i < n; i++) set_quantity(region, i, "the largest sum measured");
}

static hk_status set_duplex(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  hk_region region;
  HK_TRY(open_region(draft, HK_PROBE_DUPLEX, &region));
  add_capacity(&region, &m->duplex, true, true, fmax(m->h2d.value, m->d2h.value),
               hk_machine_limit(m, &m->duplex));
  const size_t priority = region.n; /* of copies out, by which both directions divide the sum */
  hk_region_add(&region, &m->pcie_d2h_priority,
                (hk_unknown){.start = 1.1, .least = 1, .most = 5, .width = log(1.5)});
  const hk_status status = hk_region_fit(&region, false);
  if (status == HK_OK) set_capacities(&region, priority);
  /* Where the capacity limited no probe it is not determined: it stays at its default. */
  if (status == HK_OK && region.unknowns[priority].determined)
    set_quantity(&region, priority, NULL);
  free(region.series);
  return status;
}

static hk_status set_fabric(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  const double gpus = m->gpus.value;
  hk_region region;
  HK_TRY(open_region(draft, HK_PROBE_FABRIC, &region));
  add_capacity(&region, &m->fabric_h2d, true, false, m->h2d.value, gpus * m->h2d.value);
  add_capacity(&region, &m->fabric_d2h, false, true, m->d2h.value, gpus * m->d2h.value);
  add_capacity(&region, &m->fabric_duplex, true, true, m->duplex.value, gpus * m->duplex.value);
  const size_t capacities = region.n;
  /* A capacity is at least the largest measured sum. */
  for (size_t i = 0; i < capacities; i++) region.unknowns[i].least = region.unknowns[i].start;
  /* Fitted with the capacities, so that they do not absorb its effect, but not set here:
   * probe_fit_shared.c sets it. */
  hk_region_add(&region, &m->d2h_priority,
                (hk_unknown){.start = 1, .least = 0.05, .most = 50, .width = log(3)});
  const hk_status status = hk_region_fit(&region, true);
  if (status == HK_OK) set_capacities(&region, capacities);
  free(region.series);
  return status;
}

/* With one GPU, the fabric's capacities are those of its link. */
static void copy_link(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  hk_quantity *const links[] = {&m->h2d, &m->d2h, &m->duplex}, *const fabric[] = {
                                                                   &m->fabric_h2d, &m->fabric_d2h,
                                                                   &m->fabric_duplex};
  for (int i = 0; i < 3; i++)
    for (size_t k = 0; k < draft->n_quantities; k++) {
      const hk_calibrated *of = &draft->quantities[k];
      if (hk_machine_quantity(m, of->info) != links[i]) continue;
      hk_draft_set(draft, fabric[i], of->origin,
                   (hk_estimate){of->value, of->low, of->high, of->probes},
                   "one GPU: the capacity of its link, %s", of->info->key);
    }
}

/* -- Between GPUs ------------------------------------------------------------------------------ */

static bool is_ring(const hk_series *s) {
  for (int i = 0; i < s->probe.n_loads; i++)
    if (s->probe.loads[i].kind != HK_LOAD_PEER) return false;
  return hk_series_counts(s);
}

/* The rate of a ring is that of its slowest copy. */
static hk_line_point slowest(const hk_series *s) {
  hk_line_point p = {(double)s->probe.loads[0].chunk, INFINITY, hk_series_error(s, 0)};
  for (int i = 0; i < s->probe.n_loads; i++) p.rate = fmin(p.rate, s->summary[i].median);
  return p;
}

static hk_status set_ring(hk_draft *draft, hk_line_point *points, size_t n) {
  hk_machine *m = &draft->machine;
  copied c = {.probes = n};
  HK_TRY(hk_line_fit(points, n, &c.line, draft->err));
  const hk_line_segment *last = &c.line.segments[c.line.n - 1];
  explain(points, HK_LOAD_PEER, &c);
  hk_draft_set(draft, &m->nvlink, HK_ORIGIN_MEASURED,
               hk_estimate_fitted(last->rate, last->rate_error / last->rate, n),
               "slowest of a ring, %s", c.how);
  if (c.line.sizes > 1)
    hk_draft_set(draft, &m->nvlink_latency, HK_ORIGIN_MEASURED, latency_of(&c),
                 "slowest of a ring, %s", c.how);
  return HK_OK;
}

static hk_status set_peers(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  hk_line_point *points = malloc((draft->campaign->n + 1) * sizeof *points);
  if (!points)
    return hk_fail_memory(draft->err, draft->campaign->n * sizeof *points, "probes of peers");
  size_t n = 0;
  for (size_t i = 0; i < draft->campaign->n; i++)
    if (is_ring(&draft->campaign->series[i])) points[n++] = slowest(&draft->campaign->series[i]);
  hk_status status = HK_OK;
  if (n > 0)
    status = set_ring(draft, points, n);
  else
    hk_draft_assume(draft, &m->nvlink, fmin(m->h2d.value, m->d2h.value), "%s",
                    m->gpus.value > 1
                        ? "no direct copies between GPUs were probed: through the host"
                        : "one GPU: not used");
  free(points);
  return status;
}

hk_status hk_draft_links(hk_draft *draft) {
  HK_TRY(set_duplex(draft));
  hk_draft_agree(draft);
  if (draft->machine.gpus.value > 1)
    HK_TRY(set_fabric(draft));
  else
    copy_link(draft);
  hk_draft_agree(draft);
  return set_peers(draft);
}
