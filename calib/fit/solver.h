/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Robust least squares with priors: the solver of both fits, to probes and to run tables.
 *
 * Summary. The caller has a model with up to 13 positive parameters (rates, latencies, shares), a
 * guess of each, and residuals r = ln(predicted / measured). The solver moves the parameters to
 * where the residuals are small, gives odd measurements little weight, keeps a parameter near its
 * guess as long as the data say little about it, and reports which parameters the data determine.
 *
 * Method. For parameters v and residuals r(v) it minimises
 *
 *   sum over residuals of rho(r / s)  +  sum over parameters of ((ln v - ln start) / width)^2
 *
 *   rho(t) = t^2 for |t| <= 1.345, 1.345 (2 |t| - 1.345) beyond
 *
 * rho is Huber's loss: a large residual counts by its size, not by its square.
 *
 * Each ln v is confined to its bounds by ln v = low + (high - low) (1 + sin u) / 2. GSL's trust
 * region moves u with central differences of step 0.001 in ln v. Optional before it: a search of
 * four passes. Each pass begins at a start, moves one parameter at a time over a grid, and
 * descends. The minimum with the least objective is taken. The grid reaches two widths to either
 * side.
 *
 *   HK_SEARCH_SCOUTS  Four starts: the guess, and the best three of up to 256 points of a Sobol
 *                     sequence about it. Points of the grid beyond a bound lie at the bound.
 *   HK_SEARCH_ORDERS  Two starts: the guess and the best point. From each, one pass moves the
 *                     parameters in the caller's order and one in the opposite order, because the
 *                     parameter that is moved first explains what a later one could. All points of
 *                     the grid lie between the bounds. The grid is repeated at the best minimum.
 *
 * Optional after the trust region: a Nelder-Mead simplex, which finds a way down where the model
 * has kinks.
 *
 * The scale s starts as the caller's. After the first descent it becomes what the residuals scatter
 * by (hk_scale_rule), and the descent is repeated until s settles; if s was wrong by more than a
 * factor of 2, with new starts.
 *
 * What the data determine. At the minimum the covariance of ln v is C = (J' J + P)^-1, with J the
 * derivatives of the residuals in units of s, and P = diag(1 / width^2). sqrt(C_jj) / width_j is
 * the share of the prior's width that the data left to parameter j: 0 is known exactly, 1 is
 * nothing learnt. Above 0.5 a parameter counts as not determined (the data alone would give an
 * error above width / sqrt(3)): the worst such parameter goes back to its start and the others are
 * fitted again. If that raises the minimum by more than 1 (one standard error), the parameter stays
 * where it was: the data know on which side of the start it is, but not how far (`one_sided`).
 *
 * Errors. By the linear theory the standard error of ln v_j is sqrt(C_jj). Where the model has
 * kinks the derivatives at the minimum say little of what happens beside it, so `intervals` asks
 * for the profile likelihood: v_j is moved away from the minimum and held, the others are fitted
 * again, until the minimum has risen by D. The error is half the distance between the two ends. D
 * is 1 for independent residuals. If those of a cluster (runs of one configuration) have errors in
 * common, D is the sum of squares of the clusters' sums over the sum of squares of the residuals:
 * with four equal residuals in a cluster, D = 4, and the errors are twice as large.
 *
 * Example. A kernel was measured at 4, 8, 12 and 16 threads with 41, 64, 76 and 83 G parameters/s.
 * The model is rate = v0 (1 - exp(-threads / v1)) with guesses v0 = 92 G/s (width ln 10) and v1 =
 * 6.7 threads (width ln 3); scale and noise are 0.01. The minimum is at v0 = 91.4 G/s and v1 = 6.70
 * threads, with standard errors of 1.4 % and 2.7 %: both are determined. From the measurement at 16
 * threads alone, v0 and v1 can make up for each other: v1 goes back to its guess, and v0 becomes
 * 83 / (1 - exp(-16 / 6.7)) = 91.4 G/s. */
#ifndef HK_CALIB_FIT_SOLVER_H
#define HK_CALIB_FIT_SOLVER_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

#define HK_MOST_UNKNOWNS 13
#define HK_MOST_SCOUTS   256
/* Settings of the unknowns that one call of `residuals` may be asked for. */
#define HK_MOST_VARIANTS (HK_MOST_SCOUTS + 1)

/* A positive parameter. */
typedef struct {
  double start, least, most;
  double width; /* of the prior about start, as a difference of logarithms: log(2) is a factor 2 */
  double value; /* out */
  double error; /* out: standard error of ln(value), prior included; 0 if not determined */
  double kept;  /* out: share of the prior's width that the data left, 0 to 1 */
  double low, high; /* out: ends of the interval of one standard error; unset if not determined */
  bool determined;  /* out; false: value is start */
  bool one_sided;   /* out: the data refuse the start, but do not say how far away the value is */
  bool flat; /* out, with `intervals`: values from low to high fit as well, and one of the two is
                more than half the prior's width away */
} hk_unknown;

/* How the scale follows the residuals. */
typedef enum {
  /* Up to sqrt(sum of rho / degrees of freedom) where that exceeds it. For few residuals, whose
   * median would be left to chance. */
  HK_SCALE_BY_SUM,
  /* 1.4826 x the median of |r|, corrected for the degrees of freedom, at least `noise`. For many
   * residuals of which some are odd. */
  HK_SCALE_BY_MEDIAN,
} hk_scale_rule;

/* Where a search starts, see above. Neither finds the lower minimum always. Fits of run tables: of
 * two folds, ORDERS finds objectives of 94 and 247, SCOUTS 116 and 271. Fits of the probes of three
 * H200 nodes: SCOUTS finds 48, 41 and 41, ORDERS 60, 41 and 41. */
typedef enum { HK_SEARCH_SCOUTS, HK_SEARCH_ORDERS } hk_search_kind;

typedef struct {
  hk_unknown *unknowns;
  size_t n, n_residuals;
  /* Residuals of `variants` settings, at most HK_MOST_VARIANTS: from values[v * n + j] to
   * out[v * n_residuals + i]. */
  hk_status (*residuals)(void *context, const double *values, size_t variants, double *out,
                         hk_error *err);
  void *context;

  double scale; /* s at first: expected size of residuals */
  double noise; /* least scatter that is believed: errors of the measurements themselves */
  hk_scale_rule rule;
  hk_search_kind search;
  int scouts;             /* points of the Sobol sequence, at most HK_MOST_SCOUTS; 0: no search */
  bool polish;            /* follow the trust region with a simplex */
  bool intervals;         /* find errors by profile likelihood, not by the linear theory */
  const size_t *clusters; /* [n_residuals] of each residual, below n_residuals; NULL: independent */
  hk_error *err;

  double scatter;  /* out: s at the end */
  double squares;  /* out: sum of squared residuals, not in units of s */
  size_t outliers; /* out: residuals that count less than half, |r| > 2.69 s */
  double correlation[HK_MOST_UNKNOWNS][HK_MOST_UNKNOWNS]; /* out: of logarithms; NAN where either
                                                             is not determined */
} hk_solve_problem;

/* Turns GSL's error handler off while it runs. Deterministic if `residuals` is. */
hk_status hk_solve(hk_solve_problem *problem);

#endif
