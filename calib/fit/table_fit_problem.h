/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Inside calib only: the pieces of a fit. table_fit_quantities.c knows the parameters,
 * table_fit_residuals.c the simulations, table_fit_document.c the document that comes out. */
#ifndef HK_CALIB_FIT_TABLE_FIT_PROBLEM_H
#define HK_CALIB_FIT_TABLE_FIT_PROBLEM_H

#include "calib/fit/solver.h"
#include "calib/fit/table_fit.h"

typedef struct {
  size_t of; /* case */
  hk_run_figure figure;
  double measured; /* ms */
} hk_fit_residual;

typedef struct {
  const hk_machine *start;
  hk_fit_parameter *parameters; /* of the fit */
  size_t n;

  hk_run_case *cases;
  size_t n_cases;
  hk_fit_residual *residuals;
  size_t n_residuals;

  int64_t simulations; /* so far */
  const hk_fit_options *options;
  hk_error *err;
} hk_fit_problem;

/* -- table_fit_quantities.c -------------------------------------------------------------------- */

/* The parameters with their starts, bounds and priors. `problem` has its cases. */
hk_status hk_fit_choose(hk_fit_problem *problem, hk_fit *fit);
/* The start profile with the parameters at these values, and what has to agree with them lowered.
 * Shallow: it borrows start's document. */
hk_machine hk_fit_machine(const hk_fit_problem *problem, const double *values);
/* Six digits: more than a standard error ever leaves, and profiles are for people too. */
double hk_fit_rounded(double value);

/* -- table_fit_residuals.c ----------------------------------------------------------------------
 */

/* ln(predicted / measured) for `variants` settings of the parameters, values[v * n + j]: `out`
 * holds n_residuals for each. */
hk_status hk_fit_evaluate(hk_fit_problem *problem, const double *values, size_t variants,
                          double *out);
/* Fills the fit's parameters and numbers. */
hk_status hk_fit_solve(hk_fit_problem *problem, hk_fit *fit);

/* -- table_fit_document.c ---------------------------------------------------------------------- */

/* The machine as it was before it was fitted, owned by the caller. */
hk_status hk_fit_start(const hk_machine *machine, hk_machine *start, hk_error *err);
/* fit->machine from everything else. `table` is named in it. */
hk_status hk_fit_profile(const hk_fit_problem *problem, const char *table, hk_fit *fit);

/* -- table_fit.c ------------------------------------------------------------------------------- */

/* As hk_fit_make, on these rows. */
hk_status hk_fit_rows(const hk_run *const *runs, size_t n, const char *table,
                      const hk_machine *start, const hk_fit_options *options, hk_fit *fit,
                      hk_error *err);
/* Rows of `table` that name the machine; NULL with err set. The caller frees the list. */
const hk_run **hk_fit_pick(const hk_run_table *table, const char *machine, size_t *n,
                           hk_error *err);

#endif
