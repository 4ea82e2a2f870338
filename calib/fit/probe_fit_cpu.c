/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fits CPU kernels:
 *   time of an operation = start + parameters / rate
 *   rate = min(saturated x (1 - exp(-threads / n0)), dram / bytes a parameter) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "calib/fit/probe_fit_draft.h"
#include "core/graph/bytes.h"

#define SCALE        0.01 /* of residuals: the usual scatter of rates over threads */
#define LEAST_COUNTS 3    /* distinct thread counts of a curve; with fewer, n0 is assumed */
#define AGREEMENT    1.2  /* bandwidths of two kernels within this factor confirm each other */
/* threads / n0 at the last point where n0 is assumed: 16 / 6.66 of an H200 node. */
#define ASSUMED_SHAPE 2.4

static const struct {
  hk_load_kind kind;
  double bytes;
  size_t rate, scale; /* of the quantities in hk_machine */
} kernels[] = {
    {HK_LOAD_ADAMW_CPU, HK_BYTES_ADAMW, offsetof(hk_machine, cpu_adamw),
     offsetof(hk_machine, cpu_adamw_threads)},
    {HK_LOAD_ADAMW_FP32, HK_BYTES_ADAMW_FP32, offsetof(hk_machine, cpu_adamw_fp32),
     offsetof(hk_machine, cpu_adamw_fp32_threads)},
    {HK_LOAD_UNSCALE, HK_BYTES_UNSCALE, offsetof(hk_machine, cpu_unscale),
     offsetof(hk_machine, cpu_unscale_threads)},
    {HK_LOAD_CAST, HK_BYTES_CAST, offsetof(hk_machine, cpu_cast),
     offsetof(hk_machine, cpu_cast_threads)},
    {HK_LOAD_ADAMW_8BIT, HK_BYTES_ADAMW_8BIT, offsetof(hk_machine, cpu_adamw_8bit),
     offsetof(hk_machine, cpu_adamw_8bit_threads)},
    {HK_LOAD_ADAMW_8BIT_SPLIT, HK_BYTES_ADAMW_8BIT_SPLIT,
     offsetof(hk_machine, cpu_adamw_8bit_split),
     offsetof(hk_machine, cpu_adamw_8bit_split_threads)},
};

/* The first ones are in every campaign, and show the bandwidth of host memory. */
enum { KERNELS = sizeof kernels / sizeof *kernels, MEMORY_KERNELS = 4 };

double hk_kernel_bytes(hk_load_kind kind) {
  for (int i = 0; i < KERNELS; i++)
    if (kernels[i].kind == kind) return kernels[i].bytes;
  return 0;
}

static const hk_quantity *quantity_at(const hk_machine *m, size_t offset) {
  return (const hk_quantity *)((const char *)m + offset);
}

static double start_s(const hk_machine *m, const hk_load *load) {
  return hk_cpu_start(m, load->threads) / 1e9;
}

double hk_kernel_alone(const hk_draft *draft, const hk_load *load) {
  const hk_machine *m = &draft->machine;
  for (int i = 0; i < KERNELS; i++) {
    if (kernels[i].kind != load->kind) continue;
    const double rate = hk_cpu_rate(m, quantity_at(m, kernels[i].rate),
                                    quantity_at(m, kernels[i].scale), load->threads);
    const double n = (double)hk_load_operation(load);
    return n / (start_s(m, load) + n / fmin(rate, m->dram.value / kernels[i].bytes));
  }
  return 0;
}

bool hk_draft_has_sizes(const hk_draft *draft, const hk_load *load) {
  return load->chunk == draft->chunk && hk_load_operation(load) == draft->piece;
}

/* -- Points of a curve ------------------------------------------------------------------------- */

typedef struct {
  const hk_series **series; /* one kernel alone, with the profile's chunk and piece */
  size_t n;
  const hk_machine *machine; /* the draft's, for the start of an operation */
  double ceiling;            /* parameters a second; INFINITY: none */
  double saturated, n0;
  hk_unknown unknowns[3]; /* saturated, n0 and, if it is fitted, the ceiling */
  double scatter, bic;
} curve;

static int threads_of(const hk_series *s) {
  return s->probe.loads[0].threads;
}

static double seconds_of(const hk_series *s) {
  return (double)hk_load_operation(&s->probe.loads[0]) / s->summary[0].median;
}

/* time / (time - start): from the measured rate to the rate without the start. The start counts as
 * half of the time at most. */
static double factor_at(const curve *c, size_t i) {
  const hk_series *s = c->series[i];
  const double seconds = seconds_of(s);
  return seconds / fmax(seconds - start_s(c->machine, &s->probe.loads[0]), seconds / 2);
}

static double rate_at(const curve *c, size_t i) {
  return factor_at(c, i) * c->series[i]->summary[0].median;
}

static hk_estimate estimate_at(const curve *c, size_t i, double factor) {
  return hk_estimate_median(&c->series[i]->summary[0], factor * factor_at(c, i));
}

static int by_threads(const void *a, const void *b) {
  const int x = threads_of(*(const hk_series *const *)a),
            y = threads_of(*(const hk_series *const *)b);
  return (x > y) - (x < y);
}

static hk_status collect(const hk_draft *draft, hk_load_kind kind, curve *c) {
  *c = (curve){.ceiling = INFINITY, .machine = &draft->machine};
  c->series = malloc((draft->campaign->n + 1) * sizeof(const hk_series *));
  if (!c->series)
    return hk_fail_memory(draft->err, draft->campaign->n * sizeof(const hk_series *),
                          "the probes of a kernel");
  size_t at = 0;
  for (const hk_series *s; (s = hk_draft_alone(draft, kind, &at));)
    if (hk_draft_has_sizes(draft, &s->probe.loads[0])) c->series[c->n++] = s;
  qsort(c->series, c->n, sizeof(const hk_series *), by_threads);
  return HK_OK;
}

static size_t counts_of(const curve *c) {
  size_t counts = c->n > 0;
  for (size_t i = 1; i < c->n; i++)
    counts += threads_of(c->series[i]) != threads_of(c->series[i - 1]);
  return counts;
}

/* The profile describes the chunk and piece that were probed with the most thread counts. */
static hk_status choose_sizes(hk_draft *draft) {
  size_t most = 0, at = 0;
  hk_draft best = *draft;
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_ADAMW_CPU, &at));) {
    curve c;
    draft->chunk = s->probe.loads[0].chunk;
    draft->piece = hk_load_operation(&s->probe.loads[0]);
    HK_TRY(collect(draft, HK_LOAD_ADAMW_CPU, &c));
    if (counts_of(&c) > most) {
      most = counts_of(&c);
      best = *draft;
    }
    free(c.series);
  }
  draft->chunk = best.chunk;
  draft->piece = best.piece;
  return HK_OK;
}

/* -- Cost of an operation ---------------------------------------------------------------------- */

/* Weighted sums over pairs of series. The weight of a pair is 1 / variance of its cost. */
typedef struct {
  double weights, costs, squares; /* weighted */
  size_t n;
} pairs;

/* Solves time = cost + parameters / rate for the cost, from a small piece and the profile's piece.
 */
static void add_pair(pairs *p, const hk_series *small, const hk_series *large) {
  const double n = (double)hk_load_operation(&small->probe.loads[0]),
               of = (double)hk_load_operation(&large->probe.loads[0]);
  const double a = seconds_of(small) * of / (of - n), b = seconds_of(large) * n / (of - n);
  const double error = hypot(a * hk_series_error(small, 0), b * hk_series_error(large, 0));
  const double weight = 1 / (error * error), cost = a - b;
  p->weights += weight;
  p->costs += weight * cost;
  p->squares += weight * cost * cost;
  p->n++;
}

static pairs find_pairs(const hk_draft *draft) {
  pairs p = {0};
  size_t i = 0;
  for (const hk_series *small; (small = hk_draft_alone(draft, HK_LOAD_ADAMW_CPU, &i));) {
    const hk_load *load = &small->probe.loads[0];
    if (load->threads < 2 || load->chunk != draft->chunk) continue;
    if (hk_load_operation(load) >= draft->piece) continue;
    size_t k = 0;
    for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_ADAMW_CPU, &k));)
      if (hk_draft_has_sizes(draft, &s->probe.loads[0]) && threads_of(s) == load->threads)
        add_pair(&p, small, s);
  }
  return p;
}

/* If pairs scatter by more than their errors (chi > 1), the interval is wider by sqrt(chi). */
static void set_operation(hk_draft *draft) {
  const pairs p = find_pairs(draft);
  if (p.n == 0) return; /* it keeps its default */
  const double mean = p.costs / p.weights;
  const double chi = p.n > 1 ? (p.squares - mean * p.costs) / (double)(p.n - 1) : 1;
  const double reach = HK_HALF_INTERVAL * sqrt(fmax(1, chi) / p.weights);
  hk_draft_set(draft, &draft->machine.cpu_operation, HK_ORIGIN_FITTED,
               (hk_estimate){1e9 * fmax(0, mean), 1e9 * fmax(0, mean - reach),
                             1e9 * fmax(0, mean + reach), p.n},
               "adamw_cpu, small pieces against the profile's, %zu pair%s: time = this + "
               "parameters / rate",
               p.n, p.n == 1 ? "" : "s");
}

/* -- Chunks ------------------------------------------------------------------------------------ */

/* Segments over chunks: threads x chunk parameters take latency + threads x chunk / rate. The
 * latency is the cost of one chunk to the thread that takes it. */
static hk_status add_chunk_segments(hk_draft *draft, int threads) {
  char what[48];
  size_t n = 0, at = 0;
  hk_line line;
  hk_line_point *points = malloc((draft->campaign->n + 1) * sizeof *points);
  if (!points)
    return hk_fail_memory(draft->err, draft->campaign->n * sizeof *points, "a line's probes");
  for (const hk_series *s; (s = hk_draft_alone(draft, HK_LOAD_ADAMW_CPU, &at));)
    if (threads_of(s) == threads && hk_load_operation(&s->probe.loads[0]) == draft->piece)
      points[n++] = (hk_line_point){(double)threads * (double)s->probe.loads[0].chunk,
                                    s->summary[0].median, hk_series_error(s, 0)};
  hk_status status = hk_line_fit(points, n, &line, draft->err);
  for (size_t i = 0; i < line.n; i++) line.segments[i].least /= threads;
  snprintf(what, sizeof what, "adamw_cpu %d threads", threads);
  if (status == HK_OK && line.sizes > 1) status = hk_draft_segments(draft, what, &line);
  free(points);
  return status;
}

/* -- The curve --------------------------------------------------------------------------------- */

static hk_status residuals(void *context, const double *values, size_t variants, double *out,
                           hk_error *err) {
  (void)err;
  const curve *c = context;
  const bool sought = isnan(c->ceiling);
  for (size_t v = 0; v < variants; v++) {
    const double *x = values + v * (sought ? 3 : 2);
    const double ceiling = sought ? x[2] : c->ceiling;
    for (size_t i = 0; i < c->n; i++) {
      const double free = x[0] * -expm1(-threads_of(c->series[i]) / x[1]);
      out[v * c->n + i] = log(fmin(free, ceiling) / rate_at(c, i));
    }
  }
  return HK_OK;
}

/* c->ceiling NAN: fitted, too. The start is the curve with ASSUMED_SHAPE through the last point. */
static hk_status fit_curve(curve *c, hk_error *err) {
  const hk_series *last = c->series[c->n - 1];
  const double n0 = threads_of(last) / ASSUMED_SHAPE, free = -expm1(-ASSUMED_SHAPE);
  double most = 0;
  for (size_t i = 0; i < c->n; i++) most = fmax(most, rate_at(c, i));
  const double top = fmin(rate_at(c, c->n - 1), isnan(c->ceiling) ? INFINITY : c->ceiling) / free;
  c->unknowns[0] =
      (hk_unknown){.start = top, .least = top / 10, .most = top * 100, .width = log(10)};
  c->unknowns[1] = (hk_unknown){
      .start = n0, .least = fmax(0.1, n0 / 20), .most = fmax(0.2, n0 * 50), .width = log(3)};
  c->unknowns[2] = (hk_unknown){.start = most, .least = most / 2, .most = most * 1.2, .width = 0.2};
  hk_solve_problem problem = {.unknowns = c->unknowns,
                              .n = isnan(c->ceiling) ? 3 : 2,
                              .n_residuals = c->n,
                              .scale = SCALE,
                              .residuals = residuals,
                              .context = c,
                              .err = err};
  for (size_t i = 0; i < c->n; i++)
    problem.noise = hypot(problem.noise, hk_series_error(c->series[i], 0) / sqrt((double)c->n));
  HK_TRY(hk_solve(&problem));
  c->saturated = c->unknowns[0].value;
  c->n0 = c->unknowns[1].value;
  c->scatter = sqrt(problem.squares / (double)c->n);
  c->bic = hk_bic(problem.squares, c->n, problem.n);
  return HK_OK;
}

/* The rate at which more threads bring no more, if the Bayesian information criterion prefers a
 * curve with such a ceiling; else INFINITY. */
static hk_status find_ceiling(const curve *of, double *ceiling, double *error, hk_error *err) {
  curve free_curve = *of, limited = *of;
  *ceiling = INFINITY;
  if (counts_of(of) <= LEAST_COUNTS) return HK_OK;
  limited.ceiling = NAN;
  HK_TRY(fit_curve(&free_curve, err));
  HK_TRY(fit_curve(&limited, err));
  if (limited.bic >= free_curve.bic || !limited.unknowns[2].determined) return HK_OK;
  *ceiling = limited.unknowns[2].value;
  *error = limited.unknowns[2].error;
  return HK_OK;
}

/* -- Host memory ------------------------------------------------------------------------------- */

typedef struct {
  hk_estimate most; /* bytes a second */
  bool saturated;   /* more threads bring no more */
} bandwidth;

/* Bandwidth of host memory that a kernel reached: at its ceiling, else at its fastest probe. */
static hk_status find_bandwidth(const hk_draft *draft, int k, const curve *c, bandwidth *out) {
  const double bytes = kernels[k].bytes;
  double ceiling = INFINITY, error = 0;
  *out = (bandwidth){0};
  for (size_t i = 0; i < c->n; i++)
    if (rate_at(c, i) * bytes > out->most.value) out->most = estimate_at(c, i, bytes);
  HK_TRY(find_ceiling(c, &ceiling, &error, draft->err));
  out->saturated = isfinite(ceiling);
  if (out->saturated) out->most = hk_estimate_fitted(ceiling * bytes, error, c->n);
  return HK_OK;
}

static bool is_adamw(int k) {
  return kernels[k].kind == HK_LOAD_ADAMW_CPU || kernels[k].kind == HK_LOAD_ADAMW_FP32;
}

/* Whether the bandwidth is that of memory. AdamW's operations are larger than caches. Another
 * kernel may have run in caches: its bandwidth counts if some kernel's agrees with it. */
static bool is_memory(const bandwidth *all, int k) {
  for (int i = 0; i < MEMORY_KERNELS; i++)
    if (i != k && fabs(log(all[i].most.value / all[k].most.value)) <= log(AGREEMENT)) return true;
  return is_adamw(k);
}

static hk_status set_memory(hk_draft *draft, const curve *curves) {
  bandwidth all[MEMORY_KERNELS];
  int best = -1, doubted = -1;
  for (int k = 0; k < MEMORY_KERNELS; k++) HK_TRY(find_bandwidth(draft, k, &curves[k], &all[k]));
  for (int k = 0; k < MEMORY_KERNELS; k++) {
    int *const among = is_memory(all, k) ? &best : &doubted;
    if (*among < 0 || all[k].most.value > all[*among].most.value) *among = k;
  }
  char doubt[100] = "";
  if (doubted >= 0 && all[doubted].most.value > all[best].most.value)
    snprintf(doubt, sizeof doubt, "; not %s's %.3g, which no other kernel confirms: caches",
             hk_load_name(kernels[doubted].kind), all[doubted].most.value);
  hk_draft_set(draft, &draft->machine.dram,
               all[best].saturated ? HK_ORIGIN_FITTED : HK_ORIGIN_MEASURED, all[best].most,
               "%s, %s%s", hk_load_name(kernels[best].kind),
               all[best].saturated ? "saturated: more threads bring no more"
                                   : "the most that a CPU kernel reached, not saturated",
               doubt);
  return HK_OK;
}

/* -- Kernels ----------------------------------------------------------------------------------- */

/* For a kernel with too few thread counts: the curve with AdamW's n0 through its last point. */
static void set_by_adamw(hk_draft *draft, int k, const curve *c) {
  hk_quantity *rate = (hk_quantity *)((char *)&draft->machine + kernels[k].rate);
  hk_quantity *scale = (hk_quantity *)((char *)&draft->machine + kernels[k].scale);
  const hk_series *last = c->series[c->n - 1];
  const double share = -expm1(-threads_of(last) / draft->machine.cpu_adamw_threads.value);
  hk_draft_assume(draft, scale, 0, "AdamW's: %zu thread counts are too few for a fit",
                  counts_of(c));
  hk_draft_set(draft, rate, HK_ORIGIN_FITTED, estimate_at(c, c->n - 1, 1 / share),
               "%s at %d threads, over 1 - exp(-threads / n0) with AdamW's n0",
               hk_load_name(kernels[k].kind), threads_of(last));
}

/* If n0 is assumed, the interval is that of the last point. */
static hk_estimate saturated_of(const curve *c, bool determined) {
  if (determined) return hk_estimate_fitted(c->saturated, c->unknowns[0].error, c->n);
  hk_estimate e = estimate_at(c, c->n - 1, c->saturated / rate_at(c, c->n - 1));
  e.value = c->saturated;
  e.probes = c->n;
  return e;
}

static void set_curve(hk_draft *draft, int k, const curve *c) {
  hk_quantity *rate = (hk_quantity *)((char *)&draft->machine + kernels[k].rate);
  hk_quantity *scale = (hk_quantity *)((char *)&draft->machine + kernels[k].scale);
  const bool determined = counts_of(c) >= LEAST_COUNTS && c->unknowns[1].determined;
  char how[120], count[24];
  snprintf(how, sizeof how, "%s %s, %d .. %d threads, %.1f %% scatter", hk_probe_count(c->n, count),
           hk_load_name(kernels[k].kind), threads_of(c->series[0]), threads_of(c->series[c->n - 1]),
           100 * c->scatter);
  if (determined)
    hk_draft_set(draft, scale, HK_ORIGIN_FITTED,
                 hk_estimate_fitted(c->n0, c->unknowns[1].error, c->n), "%s", how);
  else
    hk_draft_assume(draft, scale, c->n0,
                    "%s, do not determine it; a typical curve through the measured rates", how);
  hk_draft_set(draft, rate, HK_ORIGIN_FITTED, saturated_of(c, determined), "%s", how);
}

static hk_status set_kernel(hk_draft *draft, int k, curve *c) {
  if (k > 0 && counts_of(c) < LEAST_COUNTS) {
    set_by_adamw(draft, k, c);
    return HK_OK;
  }
  c->ceiling = draft->machine.dram.value / kernels[k].bytes;
  HK_TRY(fit_curve(c, draft->err));
  set_curve(draft, k, c);
  return HK_OK;
}

hk_status hk_draft_cpu(hk_draft *draft) {
  curve curves[KERNELS] = {{0}};
  hk_status status = choose_sizes(draft);
  if (status == HK_OK) set_operation(draft);
  for (int k = 0; status == HK_OK && k < KERNELS; k++)
    status = collect(draft, kernels[k].kind, &curves[k]);
  for (int k = 0; status == HK_OK && k < MEMORY_KERNELS; k++)
    if (curves[k].n == 0)
      status = hk_fail(draft->err, HK_NO, "no probe %s at AdamW's chunk of %lld parameters",
                       hk_load_name(kernels[k].kind), (long long)draft->chunk);
  if (status == HK_OK)
    status = add_chunk_segments(draft, threads_of(curves[0].series[curves[0].n - 1]));
  if (status == HK_OK) status = set_memory(draft, curves);
  for (int k = 0; status == HK_OK && k < KERNELS; k++)
    if (curves[k].n > 0) status = set_kernel(draft, k, &curves[k]);
  for (int k = 0; k < KERNELS; k++) free(curves[k].series);
  return status;
}
