/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fit of a machine profile to a run table.
 *
 * Summary. A run table has one row for each training run: its settings and the times of forward,
 * backward, update and iteration. The fit simulates every row and moves up to 13 quantities of the
 * profile (core/machine/machine.h) to where the simulated times agree best with the measured ones.
 *
 * Method. The residuals are ln(predicted / measured) of the four times of every row; the solver
 * (calib/fit/solver.h) minimises them. The prior of a quantity lies at the start profile's value;
 * its width depends on the value's origin: a factor 1.1 for a measured value, 2 for one from a data
 * sheet, an earlier fit or --set, 3 for a default or a derived value. The scale is the scatter of
 * the residuals, 1.4826 x the median of their sizes, at least 0.5 %.
 *
 * A profile that was fitted before keeps the older values as "before_fit", and a new fit starts
 * there. Otherwise rows would count twice, and leaving a source out would not remove its influence.
 *
 * Standard errors include the prior. With `intervals` they are profile likelihoods, for which rows
 * of one configuration (same but for policy settings) and their times are a cluster with errors in
 * common (solver.h). Without, they are those of the linear theory: several times too small where a
 * row's time has another limit on either side of the minimum.
 *
 * Example. gpu.matmul_efficiency starts at 0.5 (default, factor 3). Six rows whose forward is 40 %
 * slower than simulated move it to 0.36; with a scatter of 3 % in six times, its standard error is
 * about 3 % / sqrt(6) = 1.2 %, far below half of ln 3: the rows determine it. */
#ifndef HK_CALIB_FIT_TABLE_FIT_H
#define HK_CALIB_FIT_TABLE_FIT_H

#include "calib/validate/runs.h"

#define HK_FIT_MOST_FREE 13

typedef struct {
  const hk_quantity_info *info;
  double start, least, most;    /* most: never above a data sheet's bandwidth */
  double prior_factor;          /* exp(w) */
  double value, standard_error; /* in the quantity's unit; the error NAN when not determined */
  double low, high;             /* ends of the interval of one standard error; NAN likewise */
  double kept;     /* standard error in widths of the prior: 0 known, 1 nothing learnt */
  bool determined; /* false: value is start */
  bool one_sided;  /* the data contradict the start, but leave the value uncertain */
  bool flat;       /* with `intervals`: any value from low to high fits as well */
  bool at_bound;   /* within 1 % of least or most, in logarithms */
} hk_fit_parameter;

typedef struct {
  const char *free_list; /* "KEY,KEY,..."; NULL: see hk_fit_defaults */
  const char *date;      /* "2026-11-21", for the profile; never NULL */
  bool intervals;        /* errors by profile likelihood, which takes about as long as the fit; else
                            by the linear theory, whose errors are often too small */
  /* From 0 to 1 as the fit goes on; NULL: nobody listens. */
  void (*progress)(void *context, double share);
  void *context;
} hk_fit_options;

typedef struct {
  hk_fit_parameter parameters[HK_FIT_MOST_FREE];
  size_t n;
  double correlation[HK_FIT_MOST_FREE][HK_FIT_MOST_FREE]; /* of logarithms; NAN: not determined */
  size_t rows, rows_elsewhere;                            /* fitted; left out: other machines */
  size_t residuals, outliers; /* outliers: residuals above 2.69 s, which weigh less than half */
  double scatter;             /* s, as a share: 0.02 is 2 % */
  double median_before[HK_RUN_TIMES_END], median_after[HK_RUN_TIMES_END]; /* absolute errors, % */
  double worst_after[HK_RUN_TIMES_END];                                   /* the same */
  int64_t simulations;
  hk_machine machine; /* the fitted profile, owned */
} hk_fit;

/* Fits the rows of `table` that name start's machine. HK_INPUT: fewer than two such rows, or no
 * times in them; a free parameter that is not known or has no positive start; more than 13.
 * Deterministic at any number of threads (OpenMP over simulations). Free with hk_fit_free. */
hk_status hk_fit_make(const hk_run_table *table, const hk_machine *start,
                      const hk_fit_options *options, hk_fit *fit, hk_error *err);
void hk_fit_free(hk_fit *fit);

/* A copy of the machine with the values from before its last fit: "before_fit" in its document. The
 * same values if it was never fitted. The caller frees it. */
hk_status hk_fit_start(const hk_machine *machine, hk_machine *start, hk_error *err);

/* Candidates for free parameters where the caller names none, the most important first, each with
 * the reason why it is uncertain. The fit takes the first 13 that have an effect: moved by its
 * prior_factor either way, the parameter changes some time of some row by 1 % or more. A candidate
 * whose start is 0 is left out: the machine does not have what it describes. So is a candidate
 * "fabric.*" if all rows have the same number of GPUs a node: it then acts as the link's bandwidth.
 */
typedef struct {
  const char *key, *reason;
} hk_fit_default;
const hk_fit_default *hk_fit_defaults(size_t *n);

/* -- Leave one source out ---------------------------------------------------------------------- */

typedef struct {
  const char *source; /* its rows are left out of the fit and predicted; points into the table */
  size_t rows;
  double median_abs_error_pct[HK_RUN_TIMES_END];
} hk_fit_fold;

typedef struct {
  hk_fit_fold *folds;
  size_t n, rows;
  double median_abs_error_pct[HK_RUN_TIMES_END]; /* over the rows of all folds */
} hk_cross_validation;

/* HK_INPUT when the table has only one source for this machine. */
hk_status hk_fit_cross_validate(const hk_run_table *table, const hk_machine *start,
                                const hk_fit_options *options, hk_cross_validation *out,
                                hk_error *err);
void hk_cross_validation_free(hk_cross_validation *out);

#endif
