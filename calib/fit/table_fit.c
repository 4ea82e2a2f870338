/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fits a profile to a run table: picks the rows, makes the residuals, calls the solver, and
 * computes the errors before and after. */
#include "calib/fit/table_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/table_fit_problem.h"
#include "calib/probes/statistics.h"

/* -- Rows -------------------------------------------------------------------------------------- */

const hk_run **hk_fit_pick(const hk_run_table *table, const char *machine, size_t *n,
                           hk_error *err) {
  const hk_run **runs = malloc((table->n + 1) * sizeof(const hk_run *));
  *n = 0;
  if (!runs) {
    hk_fail_memory(err, table->n * sizeof(const hk_run *), "the rows of a fit");
    return NULL;
  }
  for (size_t i = 0; i < table->n; i++)
    if (strcmp(table->runs[i].machine, machine) == 0) runs[(*n)++] = &table->runs[i];
  if (*n >= 2) return runs;
  hk_fail(err, HK_INPUT, "%s: %s of %zu rows was run on %s; a fit needs at least two%s%.80s%s",
          table->path, *n == 0 ? "none" : "one", table->n, machine,
          *n == 0 && table->n > 0 ? " (the first row names '" : "",
          *n == 0 && table->n > 0 ? table->runs[0].machine : "",
          *n == 0 && table->n > 0 ? "')" : "");
  free(runs);
  return NULL;
}

static hk_status make_cases(hk_fit_problem *p, const hk_run *const *runs, size_t n) {
  p->cases = calloc(n, sizeof *p->cases);
  if (!p->cases) return hk_fail_memory(p->err, n * sizeof *p->cases, "the rows of a fit");
  for (; p->n_cases < n; p->n_cases++)
    HK_TRY(hk_run_case_make(runs[p->n_cases], p->start, &p->cases[p->n_cases], p->err));
  return HK_OK;
}

/* The first case that differs from case i at most in policy settings. */
static size_t cluster_of(const hk_fit_problem *p, size_t i) {
  size_t first = 0;
  while (!hk_run_same_but_policy(p->cases[first].run, p->cases[i].run)) first++;
  return first;
}

static hk_status make_residuals(hk_fit_problem *p) {
  const size_t most = p->n_cases * HK_RUN_TIMES_END;
  p->residuals = malloc(most * sizeof *p->residuals);
  p->clusters = malloc(most * sizeof *p->clusters);
  if (!p->residuals || !p->clusters)
    return hk_fail_memory(p->err, most * sizeof *p->residuals, "the residuals of a fit");
  for (size_t i = 0; i < p->n_cases; i++) {
    const size_t cluster = cluster_of(p, i);
    for (int f = 0; f < HK_RUN_TIMES_END; f++) {
      const double measured = hk_run_measured(p->cases[i].run, (hk_run_figure)f);
      if (isnan(measured)) continue;
      p->clusters[p->n_residuals] = cluster;
      p->residuals[p->n_residuals++] = (hk_fit_residual){i, (hk_run_figure)f, measured};
    }
  }
  if (p->n_residuals > 0) return HK_OK;
  return hk_fail(p->err, HK_INPUT,
                 "no row has a time: expected fwd_ms, bwd_ms, step_ms or iter_ms");
}

static void close_problem(hk_fit_problem *p) {
  for (size_t i = 0; i < p->n_cases; i++) hk_run_case_free(&p->cases[i]);
  free(p->cases);
  free(p->residuals);
  free(p->clusters);
}

/* -- Median errors ----------------------------------------------------------------------------- */

/* Of the absolute errors, in %. `worst` may be NULL. */
static hk_status find_medians(hk_fit_problem *p, double medians[HK_RUN_TIMES_END],
                              double worst[HK_RUN_TIMES_END]) {
  const size_t n = p->n_residuals;
  double values[HK_FIT_MOST_FREE], *r = malloc(2 * n * sizeof *r);
  if (!r) return hk_fail_memory(p->err, 2 * n * sizeof *r, "the residuals of a fit");
  for (size_t j = 0; j < p->n; j++) values[j] = p->parameters[j].value;
  const hk_status status = hk_fit_evaluate(p, values, 1, r);
  for (int f = 0; status == HK_OK && f < HK_RUN_TIMES_END; f++) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
      if (p->residuals[i].figure == (hk_run_figure)f) r[n + count++] = fabs(expm1(r[i])) * 100;
    medians[f] = hk_median(r + n, count);
    for (size_t i = 0; worst && i < count; i++) worst[f] = fmax(worst[f], r[n + i]);
  }
  free(r);
  return status;
}

/* -- The fit ----------------------------------------------------------------------------------- */

static hk_status fit_problem(hk_fit_problem *p, const hk_run *const *runs, size_t n,
                             const char *table, hk_fit *fit) {
  HK_TRY(make_cases(p, runs, n));
  HK_TRY(make_residuals(p));
  HK_TRY(hk_fit_choose(p, fit));
  p->parameters = fit->parameters;
  p->n = fit->n;
  HK_TRY(find_medians(p, fit->median_before, NULL));
  HK_TRY(hk_fit_solve(p, fit));
  HK_TRY(find_medians(p, fit->median_after, fit->worst_after));
  HK_TRY(hk_fit_profile(p, table, fit));
  fit->rows = p->n_cases;
  fit->residuals = p->n_residuals;
  fit->simulations = p->simulations;
  return HK_OK;
}

hk_status hk_fit_rows(const hk_run *const *runs, size_t n, const char *table,
                      const hk_machine *machine, const hk_fit_options *options, hk_fit *fit,
                      hk_error *err) {
  *fit = (hk_fit){0};
  hk_machine start;
  HK_TRY(hk_fit_start(machine, &start, err));
  hk_fit_problem problem = {.start = &start, .options = options, .err = err};
  const hk_status status = fit_problem(&problem, runs, n, table, fit);
  close_problem(&problem);
  hk_machine_free(&start);
  if (status != HK_OK) hk_fit_free(fit);
  return status;
}

hk_status hk_fit_make(const hk_run_table *table, const hk_machine *start,
                      const hk_fit_options *options, hk_fit *fit, hk_error *err) {
  size_t n = 0;
  *fit = (hk_fit){0};
  const hk_run **runs = hk_fit_pick(table, start->name, &n, err);
  if (!runs) return err->status;
  const hk_status status = hk_fit_rows(runs, n, table->path, start, options, fit, err);
  free(runs);
  fit->rows_elsewhere = table->n - n;
  return status;
}

void hk_fit_free(hk_fit *fit) {
  hk_machine_free(&fit->machine);
  *fit = (hk_fit){0};
}
