/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Computes the residuals of a table fit by simulating the rows, and calls the solver. */
#include <math.h>
#include <stdlib.h>

#include "calib/fit/table_fit_problem.h"

#define LEAST_SCATTER 0.005 /* of residuals: the scatter of repeated runs */
#define SCALE         0.05  /* of residuals at first, close to the final scale of most fits */
#define SCOUTS        128   /* points of the Sobol sequence about the start */
/* Simulations of one row that a fit typically takes. The progress shown is the share of them. */
#define SIMULATIONS_A_ROW 6000

_Static_assert(HK_FIT_MOST_FREE <= HK_MOST_UNKNOWNS, "the solver has no room for all parameters");

/* -- The machine at given values --------------------------------------------------------------- */

static void at_most(hk_quantity *quantity, double limit) {
  if (quantity->value > limit) quantity->value = limit;
}

/* The solver moves each quantity by itself. Lowers those above the limits that others set. Unpinned
 * copies are no faster than pinned ones. */
static void apply_limits(hk_machine *m) {
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    hk_quantity *quantity = hk_machine_quantity(m, &list[i]);
    at_most(quantity, hk_machine_limit(m, quantity));
  }
  at_most(&m->h2d_pageable, m->h2d.value);
  at_most(&m->d2h_pageable, m->d2h.value);
}

hk_machine hk_fit_machine(const hk_fit_problem *problem, const double *values) {
  hk_machine machine = *problem->start;
  for (size_t i = 0; i < problem->n; i++)
    hk_machine_quantity(&machine, problem->parameters[i].info)->value = values[i];
  apply_limits(&machine);
  return machine;
}

double hk_fit_rounded(double value) {
  if (!(value > 0)) return value;
  const double unit = pow(10, floor(log10(value)) - 5);
  return round(value / unit) * unit;
}

/* -- Residuals --------------------------------------------------------------------------------- */

static hk_status fail_memory(hk_error *err, size_t bytes, const char *what) {
  hk_fail_memory(err, bytes, what);
  return HK_ENVIRONMENT; /* constant: the analyser does not see hk_fail_memory's result */
}

/* -- Simulating -------------------------------------------------------------------------------- */

static hk_status predict_all(const hk_fit_problem *p, const hk_machine *machines, size_t variants,
                             double (*figures)[HK_RUN_FIGURES], hk_error *errors) {
  const size_t n = p->n_cases;
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < variants * n; i++) {
    hk_error *e = &errors[i % n]; /* one error a case; the first case's is reported */
    hk_error mine = {0};
    if (hk_run_case_predict(&p->cases[i % n], &machines[i / n], figures[i], &mine) != HK_OK) {
#pragma omp critical
      *e = mine;
    }
  }
  return hk_fail_first(errors, n, p->err);
}

hk_status hk_fit_evaluate(hk_fit_problem *p, const double *values, size_t variants, double *out) {
  const size_t n = p->n_cases;
  hk_machine *machines = malloc(variants * sizeof *machines);
  double(*figures)[HK_RUN_FIGURES] = malloc(variants * n * sizeof *figures);
  hk_error *errors = calloc(n, sizeof *errors);
  hk_status status = HK_OK;
  if (!machines || !figures || !errors)
    status = fail_memory(p->err, variants * n * sizeof *figures, "the simulations of a fit");
  for (size_t v = 0; status == HK_OK && v < variants; v++)
    machines[v] = hk_fit_machine(p, values + v * p->n);
  if (status == HK_OK) status = predict_all(p, machines, variants, figures, errors);
  p->simulations += (int64_t)(variants * n);
  for (size_t i = 0; status == HK_OK && i < variants * p->n_residuals; i++) {
    const hk_fit_residual *r = &p->residuals[i % p->n_residuals];
    out[i] = log(figures[i / p->n_residuals * n + r->of][r->figure] / r->measured);
  }
  free(machines);
  free(figures);
  free(errors);
  return status;
}

/* -- Solving ----------------------------------------------------------------------------------- */

static hk_status residuals(void *context, const double *values, size_t variants, double *out,
                           hk_error *err) {
  (void)err; /* hk_fit_evaluate uses p->err, which is the same */
  hk_fit_problem *p = context;
  HK_TRY(hk_fit_evaluate(p, values, variants, out));
  const double expected = SIMULATIONS_A_ROW * (double)p->n_cases;
  if (p->options->progress)
    p->options->progress(p->options->context, fmin(0.95, (double)p->simulations / expected));
  return HK_OK;
}

static void record(const hk_solve_problem *solved, hk_fit *fit) {
  for (size_t i = 0; i < fit->n; i++) {
    const hk_unknown *u = &solved->unknowns[i];
    hk_fit_parameter *p = &fit->parameters[i];
    p->determined = u->determined;
    p->one_sided = u->one_sided;
    p->flat = u->flat;
    p->low = p->high = NAN;
    p->kept = u->kept;
    for (size_t j = 0; j < fit->n; j++) fit->correlation[i][j] = solved->correlation[i][j];
    if (!u->determined) continue;
    const double at = log(u->value / p->least) / log(p->most / p->least);
    p->at_bound = at < 0.01 || at > 0.99;
    p->value = fmin(fmax(hk_fit_rounded(u->value), p->least), p->most);
    p->standard_error = p->value * u->error;
    p->low = u->low;
    p->high = u->high;
  }
  fit->scatter = solved->scatter;
  fit->outliers = solved->outliers;
}

hk_status hk_fit_solve(hk_fit_problem *problem, hk_fit *fit) {
  hk_unknown unknowns[HK_FIT_MOST_FREE] = {{0}};
  for (size_t i = 0; i < fit->n; i++) {
    const hk_fit_parameter *p = &fit->parameters[i];
    unknowns[i] = (hk_unknown){
        .start = p->start, .least = p->least, .most = p->most, .width = log(p->prior_factor)};
  }
  hk_solve_problem solved = {.unknowns = unknowns,
                             .n = fit->n,
                             .n_residuals = problem->n_residuals,
                             .residuals = residuals,
                             .context = problem,
                             .scale = SCALE,
                             .noise = LEAST_SCATTER,
                             .rule = HK_SCALE_BY_MEDIAN,
                             .search = HK_SEARCH_ORDERS,
                             .scouts = SCOUTS,
                             .intervals = problem->options->intervals,
                             .clusters = problem->clusters,
                             .err = problem->err};
  HK_TRY(hk_solve(&solved));
  record(&solved, fit);
  return HK_OK;
}
