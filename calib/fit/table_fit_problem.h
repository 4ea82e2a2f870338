/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to calib: the parts of a table fit. table_fit_quantities.c chooses the parameters,
 * table_fit_residuals.c simulates the rows and calls the solver, table_fit_document.c writes the
 * fitted profile. */
#ifndef HK_CALIB_FIT_TABLE_FIT_PROBLEM_H
#define HK_CALIB_FIT_TABLE_FIT_PROBLEM_H

#include "calib/fit/solver.h"
#include "calib/fit/table_fit.h"

typedef struct {
  size_t of; /* index in `cases` */
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
  size_t *clusters; /* of each residual: the first case with the same configuration */
  size_t n_residuals;

  int64_t simulations; /* so far */
  const hk_fit_options *options;
  hk_error *err;
} hk_fit_problem;

/* -- table_fit_quantities.c -------------------------------------------------------------------- */

/* Fills fit->parameters with starts, bounds and priors. `problem` has its cases and residuals. */
hk_status hk_fit_choose(hk_fit_problem *problem, hk_fit *fit);

/* -- table_fit_residuals.c --------------------------------------------------------------------- */

/* The start profile with the parameters at these values. A value above the limit that another
 * quantity sets (hk_machine_limit) is lowered to it. Shallow: it borrows start's document. */
hk_machine hk_fit_machine(const hk_fit_problem *problem, const double *values);
/* Six significant digits. Standard errors are far above 1e-6, and short numbers are readable. */
double hk_fit_rounded(double value);
/* ln(predicted / measured) of every residual for `variants` settings of the n parameters: from
 * values[v * n + j] to out[v * n_residuals + i]. */
hk_status hk_fit_evaluate(hk_fit_problem *problem, const double *values, size_t variants,
                          double *out);
/* Calls the solver. Fills fit->parameters, correlation, scatter and outliers. */
hk_status hk_fit_solve(hk_fit_problem *problem, hk_fit *fit);

/* -- table_fit_document.c ---------------------------------------------------------------------- */

/* Makes fit->machine from the start profile and fit->parameters. `table`: the path of the run
 * table; the profile names its last component. */
hk_status hk_fit_profile(const hk_fit_problem *problem, const char *table, hk_fit *fit);

/* -- table_fit.c ------------------------------------------------------------------------------- */

/* hk_fit_make for these rows. */
hk_status hk_fit_rows(const hk_run *const *runs, size_t n, const char *table,
                      const hk_machine *start, const hk_fit_options *options, hk_fit *fit,
                      hk_error *err);
/* Rows of `table` that name the machine. NULL with err set if there are fewer than two. The caller
 * frees the list. */
const hk_run **hk_fit_pick(const hk_run_table *table, const char *machine, size_t *n,
                           hk_error *err);

#endif
