/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to the solver: its state, and the parts that solver.c and solver_interval.c share. */
#ifndef HK_CALIB_FIT_SOLVER_PARTS_H
#define HK_CALIB_FIT_SOLVER_PARTS_H

#include <gsl/gsl_matrix.h>
#include <math.h>

#include "calib/fit/solver.h"

#define HK_HUBER     1.345 /* residuals in units of the scale: from here on the loss is linear */
#define HK_MOST_KEPT 0.5   /* of a determined unknown: standard error in widths of its prior */

typedef double hk_solver_vector[HK_MOST_UNKNOWNS]; /* natural logarithms, of all unknowns */

typedef struct {
  hk_solve_problem *of;
  hk_solver_vector x;
  double scale;
  size_t active[HK_MOST_UNKNOWNS], n_active; /* unknowns that are not held at their start */
  hk_status status;                          /* of the last failure inside a callback of GSL */
} hk_solver;

/* The value of an unknown whose logarithm is x, within its bounds. */
static inline double hk_solver_clamped(const hk_unknown *u, double x) {
  return fmin(fmax(exp(x), u->least), u->most);
}

/* sqrt(rho(r)) with the sign of r: GSL minimises the sum of squares. */
static inline double hk_solver_huber(double r) {
  const double a = fabs(r);
  return a <= HK_HUBER ? r : copysign(sqrt(HK_HUBER * (2 * a - HK_HUBER)), r);
}

static inline double hk_solver_low(const hk_unknown *u) {
  return log(u->least);
}

static inline double hk_solver_range(const hk_unknown *u) {
  return log(u->most / u->least);
}

/* The residuals at each of the points, to out[v * n_residuals + i]. */
hk_status hk_solver_residuals(const hk_solver *s, const hk_solver_vector *points, size_t variants,
                              double *out);
/* The objective at each of the points. */
hk_status hk_solver_objectives(const hk_solver *s, const hk_solver_vector *points, size_t variants,
                               double *sums);
/* GSL has failed with this code: the error's status. */
hk_status hk_solver_fail_gsl(hk_error *err, int code);
/* Derivatives at x. Rows: residuals in units of the scale, then the priors of active unknowns.
 * Columns: derivatives by active unknowns' logarithms, by central differences; one-sided where a
 * bound is near. */
hk_status hk_solver_differentiate(const hk_solver *s, const double *x, gsl_matrix *j);
/* Moves s->x to a point with a smaller objective, or leaves it unchanged. */
hk_status hk_solver_descend(hk_solver *s, size_t iterations);
/* Replaces the errors of the active unknowns, which s has at the minimum, by half the width of
 * their intervals, and sets `low`, `high`, `kept` and `flat`. `covariance`: of the active unknowns.
 */
hk_status hk_solver_intervals(const hk_solver *s, const gsl_matrix *covariance);

#endif
