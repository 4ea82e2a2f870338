/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fits quantities through replays: capacities that several loads share, and how they share them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "calib/fit/probe_fit_draft.h"
#include "core/graph/bytes.h"

#define SCALE 0.02          /* of residuals at first: the model's error where it fits well */
#define LARGE (16 * HK_MIB) /* size of copies from which latency is negligible */

/* -- Residuals --------------------------------------------------------------------------------- */

/* The draft's machine with the unknowns at these values. Shallow: it borrows the draft's sources.
 */
static hk_machine machine_at(const hk_region *r, const double *values) {
  hk_machine machine = r->draft->machine;
  for (size_t j = 0; j < r->n; j++) {
    const ptrdiff_t offset = (char *)r->quantities[j] - (char *)&r->draft->machine;
    ((hk_quantity *)((char *)&machine + offset))->value = values[j];
  }
  return machine;
}

static size_t loads_of(const hk_region *r) {
  size_t n = 0;
  for (size_t i = 0; i < r->n_series; i++) n += (size_t)r->series[i]->probe.n_loads;
  return n;
}

static hk_status residuals(void *context, const double *values, size_t variants, double *out,
                           hk_error *err) {
  const hk_region *r = context;
  hk_machine *machines = malloc(variants * sizeof *machines);
  if (!machines) return hk_fail_memory(err, variants * sizeof *machines, "the settings of a fit");
  for (size_t v = 0; v < variants; v++) machines[v] = machine_at(r, values + v * r->n);
  const hk_status status = hk_replays_at(r->replays, machines, variants, out, err);
  free(machines);
  return status;
}

static hk_status open_replays(hk_region *r) {
  size_t offsets[HK_MOST_UNKNOWNS];
  for (size_t j = 0; j < r->n; j++)
    offsets[j] = (size_t)((char *)r->quantities[j] - (char *)&r->draft->machine);
  return hk_replays_open(r->series, r->n_series, offsets, r->n, &r->replays, r->draft->err);
}

void hk_region_add(hk_region *region, hk_quantity *quantity, hk_unknown unknown) {
  region->quantities[region->n] = quantity;
  region->unknowns[region->n++] = unknown;
}

hk_status hk_region_fit(hk_region *region, bool rough) {
  hk_solve_problem problem = {.unknowns = region->unknowns,
                              .n = region->n,
                              .scale = SCALE,
                              .scouts = rough ? HK_MOST_SCOUTS : 0,
                              .polish = rough,
                              .residuals = residuals,
                              .context = region,
                              .err = region->draft->err};
  problem.n_residuals = loads_of(region);
  for (size_t i = 0; i < region->n_series; i++)
    for (int k = 0; k < region->series[i]->probe.n_loads; k++)
      problem.noise = hypot(problem.noise, hk_series_error(region->series[i], k));
  problem.noise /= sqrt(fmax(1, (double)problem.n_residuals));
  region->noise = problem.noise;
  HK_TRY(open_replays(region));
  const hk_status status = hk_solve(&problem);
  hk_replays_close(region->replays);
  region->replays = NULL;
  if (status != HK_OK) return status;
  region->scatter = sqrt(problem.squares / fmax(1, (double)problem.n_residuals));
  return HK_OK;
}

const char *hk_region_probes(const hk_region *r, char *text, size_t size) {
  char count[24];
  hk_probe_count(r->n_series, count);
  if (r->n_series < 2)
    snprintf(text, size, "%s %.100s", count, r->n_series > 0 ? r->series[0]->probe.name : "");
  else
    snprintf(text, size, "%s %.60s .. %.60s", count, r->series[0]->probe.name,
             r->series[r->n_series - 1]->probe.name);
  return text;
}

/* -- Contention for host memory ---------------------------------------------------------------- */

/* Windows with copies and CPU kernels of the profile's sizes, and windows of large copies alone,
 * whose sum the capacity must allow, too. */
static bool is_contention(const hk_draft *draft, const hk_series *s) {
  int kernels = 0, copies = 0, large = 0;
  for (int i = 0; i < s->probe.n_loads; i++) {
    const hk_load *load = &s->probe.loads[i];
    kernels += hk_load_is(load->kind, HK_TRAIT_CPU) && hk_draft_has_sizes(draft, load);
    copies += hk_load_is(load->kind, HK_TRAIT_LINK);
    large += hk_load_is(load->kind, HK_TRAIT_LINK) && load->chunk >= LARGE;
  }
  return copies > 0 && (kernels > 0 || large == copies) && copies + kernels == s->probe.n_loads &&
         s->probe.mode == HK_PROBE_WINDOW && hk_series_counts(s) && hk_replay_can(&s->probe);
}

static bool has_kernel(const hk_series *s) {
  for (int i = 0; i < s->probe.n_loads; i++)
    if (hk_load_is(s->probe.loads[i].kind, HK_TRAIT_CPU)) return true;
  return false;
}

/* Copies in, pulls and a CPU kernel. */
static bool shares_reads(const hk_series *s) {
  return hk_series_find(s, HK_LOAD_H2D) >= 0 && hk_series_find(s, HK_LOAD_PULL) >= 0 &&
         has_kernel(s);
}

/* Host memory traffic of all loads, B/s. */
static double traffic(const hk_series *s) {
  double sum = 0;
  for (int i = 0; i < s->probe.n_loads; i++) {
    const hk_load_kind kind = s->probe.loads[i].kind;
    const double bytes = kind == HK_LOAD_MAPPED            ? HK_BYTES_ROUND_TRIP
                         : hk_load_is(kind, HK_TRAIT_LINK) ? 1
                                                           : hk_kernel_bytes(kind);
    sum += bytes * s->summary[i].median;
  }
  return sum;
}

/* The largest share of its rate alone that a kernel kept beside copies in this direction, at
 * most 1. Other loads only lower the share, so this is a lower bound for cpu_beside_h2d or
 * cpu_beside_d2h. */
static double most_kept(const hk_region *r, hk_load_kind direction) {
  double most = 0;
  for (size_t i = 0; i < r->n_series; i++) {
    const hk_series *s = r->series[i];
    const hk_load *last = &s->probe.loads[s->probe.n_loads - 1];
    const double alone = hk_kernel_alone(r->draft, last);
    const bool beside = hk_series_find(s, direction) >= 0 ||
                        (direction == HK_LOAD_H2D && hk_series_find(s, HK_LOAD_PULL) >= 0);
    if (beside && alone > 0) most = fmax(most, s->summary[s->probe.n_loads - 1].median / alone);
  }
  return most > 0 ? fmin(most, 1) : 1;
}

/* n_series is 0 if no probe has a kernel: there is nothing to fit. */
static hk_status open_region(hk_draft *draft, hk_region *r) {
  hk_machine *m = &draft->machine;
  double most = 0;
  bool kernels = false, shared = false;
  *r = (hk_region){.draft = draft};
  r->series = malloc((draft->campaign->n + 1) * sizeof(const hk_series *));
  if (!r->series)
    return hk_fail_memory(draft->err, draft->campaign->n * sizeof(const hk_series *),
                          "the probes of contention");
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    if (!is_contention(draft, s)) continue;
    r->series[r->n_series++] = s;
    most = fmax(most, traffic(s));
    kernels |= has_kernel(s);
    shared |= shares_reads(s);
  }
  if (!kernels) r->n_series = 0;
  const double in = fmax(0.2, most_kept(r, HK_LOAD_H2D)),
               out = fmax(0.2, most_kept(r, HK_LOAD_D2H));
  /* Priors are weak: a factor 2 for rates, 3 to 4 for costs and weights, which depend on the memory
   * controller. Starts are values without effect, except where the probes show the value directly:
   * dram_with_dma, cpu_beside_h2d, cpu_beside_d2h. */
  const struct {
    hk_quantity *quantity;
    hk_unknown unknown;
  } unknowns[] = {
      {&m->dram_with_dma, {.start = most, .least = most / 4, .most = most * 8, .width = log(2)}},
      {&m->d2h_cost, {.start = 1, .least = 0.05, .most = 20, .width = log(3)}},
      {&m->dma_weight, {.start = 1, .least = 0.05, .most = 50, .width = log(4)}},
      {&m->d2h_priority, {.start = 1, .least = 0.05, .most = 50, .width = log(3)}},
      {&m->h2d_loaded,
       {.start = m->h2d.value, .least = m->h2d.value / 20, .most = m->h2d.value, .width = log(2)}},
      {&m->h2d_load_from, {.start = 0.4, .least = 0.05, .most = 0.95, .width = log(2)}},
      {&m->cpu_beside_h2d, {.start = in, .least = 0.2, .most = 1, .width = log(1.5)}},
      {&m->cpu_beside_d2h, {.start = out, .least = 0.2, .most = 1, .width = log(1.5)}},
      {&m->shared_reads, {.start = 1, .least = 0.2, .most = 1, .width = log(1.5)}},
  };
  enum { N = sizeof unknowns / sizeof *unknowns };
  _Static_assert((int)N <= HK_MOST_UNKNOWNS && HK_MOST_UNKNOWNS <= HK_REPLAY_VARIED,
                 "a region has no room for its unknowns");
  for (int i = 0; i < N; i++) {
    if (unknowns[i].quantity == &m->shared_reads && !shared) continue;
    hk_region_add(r, unknowns[i].quantity, unknowns[i].unknown);
  }
  return HK_OK;
}

static void set_region(hk_region *r) {
  char probes[160];
  hk_region_probes(r, probes, sizeof probes);
  for (size_t i = 0; i < r->n; i++) {
    const hk_unknown *u = &r->unknowns[i];
    if (u->determined)
      hk_draft_set(r->draft, r->quantities[i], HK_ORIGIN_FITTED,
                   hk_estimate_fitted(u->value, u->error, r->n_series), "%s, %.1f %% scatter",
                   probes, 100 * r->scatter);
    else
      hk_draft_assume(r->draft, r->quantities[i], u->value, "%s do not determine it", probes);
  }
}

hk_status hk_draft_region(hk_draft *draft) {
  hk_region region;
  HK_TRY(open_region(draft, &region));
  hk_status status = HK_OK;
  if (region.n_series == 0)
    hk_draft_assume(
        draft, &draft->machine.dram_with_dma, draft->machine.dram.value,
        "not probed by calibrate: no copies beside CPU kernels; bandwidth of kernels alone");
  else
    status = hk_region_fit(&region, true);
  if (status == HK_OK && region.n_series > 0) set_region(&region);
  free(region.series);
  return status;
}
