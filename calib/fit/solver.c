/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Robust least squares with priors: calib/fit/solver.h has the method and the formulas. */
#include "calib/fit/solver.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <gsl/gsl_multimin.h>
#include <gsl/gsl_qrng.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/solver_parts.h"
#include "calib/probes/statistics.h"

#define ITERATIONS      30   /* at most, of one trust-region descent */
#define SCOUT_REACH     2    /* most distance of a scout from the start, in widths of the prior */
#define DESCENTS        4    /* of one search */
#define GRID_ROUNDS     2    /* times that each unknown is moved over its grid */
#define GRID            11   /* points of the grid of one unknown */
#define SCALE_PASSES    8    /* at most, of adapting the scale */
#define SCALE_TOLERANCE 0.01 /* relative change of the scale that ends the passes */
#define RESTART_FACTOR  2    /* change of the scale from which the search starts anew */
#define POLISH_CYCLES   4    /* at most, of simplex and trust region in turn */
#define LEAST_GAIN      0.01 /* relative gain of a cycle below which no other follows */
#define SIMPLEX_STEPS   300  /* at most, in one cycle */
#define SIMPLEX_FIRST   0.1  /* size of the simplex at first, in logarithms */
#define SIMPLEX_LAST    1e-4 /* size at which the simplex ends */
#define REJECTION_RISE  1    /* of the minimum: above it, the data contradict an unknown's start */

typedef hk_solver_vector vector;
typedef hk_solver solver;

/* -- Simplex ----------------------------------------------------------------------------------- */

/* The simplex moves logarithms without bounds. Residuals beyond a bound are those at the bound. */
static void spread_logarithms(const solver *s, const gsl_vector *u, double *x) {
  memcpy(x, s->x, sizeof s->x);
  for (size_t a = 0; a < s->n_active; a++) x[s->active[a]] = gsl_vector_get(u, a);
}

static double total_at(const gsl_vector *u, void *data) {
  solver *s = data;
  vector x;
  double sum = INFINITY;
  spread_logarithms(s, u, x);
  const hk_status status = hk_solver_objectives(s, &x, 1, &sum);
  if (status != HK_OK) s->status = status;
  return sum;
}

static int simplex(solver *s, gsl_multimin_fminimizer *m, gsl_vector *u, gsl_vector *steps) {
  gsl_multimin_function problem = {.f = total_at, .n = s->n_active, .params = s};
  for (size_t a = 0; a < s->n_active; a++) gsl_vector_set(u, a, s->x[s->active[a]]);
  gsl_vector_set_all(steps, SIMPLEX_FIRST);
  int code = gsl_multimin_fminimizer_set(m, &problem, u, steps);
  for (int i = 0; code == GSL_SUCCESS && i < SIMPLEX_STEPS; i++) {
    code = gsl_multimin_fminimizer_iterate(m);
    if (s->status != HK_OK || gsl_multimin_fminimizer_size(m) < SIMPLEX_LAST) break;
  }
  if (code == GSL_ENOPROG) code = GSL_SUCCESS;
  if (code != GSL_SUCCESS) return code;
  spread_logarithms(s, gsl_multimin_fminimizer_x(m), s->x);
  for (size_t j = 0; j < s->of->n; j++) {
    const hk_unknown *unknown = &s->of->unknowns[j];
    s->x[j] = fmin(fmax(s->x[j], hk_solver_low(unknown)),
                   hk_solver_low(unknown) + hk_solver_range(unknown));
  }
  return code;
}

static hk_status run_simplex(solver *s) {
  gsl_multimin_fminimizer *m =
      gsl_multimin_fminimizer_alloc(gsl_multimin_fminimizer_nmsimplex2, s->n_active);
  gsl_vector *u = gsl_vector_alloc(s->n_active), *steps = gsl_vector_alloc(s->n_active);
  const int code = m && u && steps ? simplex(s, m, u, steps) : GSL_ENOMEM;
  if (m) gsl_multimin_fminimizer_free(m);
  gsl_vector_free(u);
  gsl_vector_free(steps);
  if (s->status != HK_OK) return s->status;
  return code == GSL_SUCCESS ? HK_OK : hk_solver_fail_gsl(s->of->err, code);
}

/* Moves s->x to the local minimum near it: trust region, then simplex and trust region in turn. */
static hk_status minimise(solver *s) {
  double before = 0, after = 0;
  HK_TRY(hk_solver_descend(s, ITERATIONS));
  if (!s->of->polish || s->n_active == 0) return HK_OK;
  HK_TRY(hk_solver_objectives(s, &s->x, 1, &after));
  for (int cycle = 0; cycle < POLISH_CYCLES && !(after > (1 - LEAST_GAIN) * before && cycle > 0);
       cycle++) {
    before = after;
    HK_TRY(run_simplex(s));
    HK_TRY(hk_solver_descend(s, ITERATIONS));
    HK_TRY(hk_solver_objectives(s, &s->x, 1, &after));
  }
  return HK_OK;
}

/* -- Where to start ---------------------------------------------------------------------------- */

/* ln start + share x SCOUT_REACH x width, within the bounds. `share`: -1 to 1. */
static double scout_place(const hk_unknown *u, double share) {
  const double x = log(u->start) + SCOUT_REACH * u->width * share;
  return fmin(fmax(x, hk_solver_low(u)), hk_solver_low(u) + hk_solver_range(u));
}

/* Sorts points[fixed .. n - 1] so far that the `wanted` with the least objective come first. */
static hk_status pick_best(const solver *s, vector *points, size_t n, size_t fixed, size_t wanted) {
  double sums[HK_MOST_VARIANTS] = {0};
  HK_TRY(hk_solver_objectives(s, points, n, sums));
  for (size_t place = fixed; place < fixed + wanted; place++) {
    size_t best = place;
    for (size_t i = place; i < n; i++)
      if (sums[i] < sums[best]) best = i;
    vector point;
    memcpy(point, points[best], sizeof point);
    memcpy(points[best], points[place], sizeof point);
    memcpy(points[place], point, sizeof point);
    sums[best] = sums[place];
  }
  return HK_OK;
}

/* points[0]: the start. points[1 .. starts - 1]: the best points of a Sobol sequence about it. */
static hk_status scout(const solver *s, vector *points, size_t starts) {
  const int n = s->of->scouts;
  gsl_qrng *sequence = gsl_qrng_alloc(gsl_qrng_sobol, (unsigned)s->of->n);
  if (!sequence) return hk_solver_fail_gsl(s->of->err, GSL_ENOMEM);
  memcpy(points[0], s->x, sizeof points[0]);
  for (int i = 1; i <= n; i++) {
    gsl_qrng_get(sequence, points[i]);
    for (size_t j = 0; j < s->of->n; j++)
      points[i][j] = scout_place(&s->of->unknowns[j], 2 * points[i][j] - 1);
  }
  gsl_qrng_free(sequence);
  return pick_best(s, points, (size_t)n + 1, 1, starts - 1);
}

/* Point i of the grid of an unknown: equal distances from SCOUT_REACH widths below its start to as
 * many above it. Points beyond a bound lie at the bound, or with HK_SEARCH_ORDERS the distances
 * become shorter. */
static double grid_place(const hk_solve_problem *p, const hk_unknown *u, int i) {
  if (p->search == HK_SEARCH_SCOUTS) return scout_place(u, 2.0 * i / (GRID - 1) - 1);
  const double least = scout_place(u, -1), most = scout_place(u, 1);
  return least + (most - least) * i / (GRID - 1);
}

/* Moves each unknown in turn to the best point of a grid about its start; the others stay. An
 * unknown without effect near s->x has derivative 0 there, and a descent cannot move it. */
static hk_status move_one_at_a_time(solver *s, bool backwards) {
  for (size_t turn = 0; turn < GRID_ROUNDS * s->of->n; turn++) {
    const size_t place = turn % s->of->n, j = backwards ? s->of->n - 1 - place : place;
    vector points[GRID + 1];
    for (int i = 0; i <= GRID; i++) memcpy(points[i], s->x, sizeof points[i]);
    for (int i = 0; i < GRID; i++) points[i + 1][j] = grid_place(s->of, &s->of->unknowns[j], i);
    HK_TRY(pick_best(s, points, GRID + 1, 0, 1));
    memcpy(s->x, points[0], sizeof points[0]);
  }
  return HK_OK;
}

/* The objective of a simulator has several local minima: at each, another resource is the limit.
 * The unknown that is moved first explains what a later one could, too: with the rate of kernels
 * first, the host thread's launches have no effect. HK_SEARCH_ORDERS therefore tries both orders,
 * and the grid once more at the end: an unknown may matter there that had no effect before. */
static hk_status search(solver *s) {
  if (s->of->scouts == 0 || s->of->n == 0) return minimise(s);
  vector points[HK_MOST_VARIANTS], best;
  double least = INFINITY, sum = 0;
  const int orders = s->of->search == HK_SEARCH_ORDERS ? 2 : 1;
  const int wanted = DESCENTS / orders,
            starts = s->of->scouts < wanted ? s->of->scouts + 1 : wanted;
  HK_TRY(scout(s, points, (size_t)starts));
  memcpy(best, s->x, sizeof best);
  for (int i = 0; i < starts * orders; i++) {
    memcpy(s->x, points[i / orders], sizeof s->x);
    HK_TRY(move_one_at_a_time(s, i % orders == 1));
    HK_TRY(hk_solver_descend(s, ITERATIONS / 3));
    HK_TRY(hk_solver_objectives(s, &s->x, 1, &sum));
    if (sum >= least) continue;
    least = sum;
    memcpy(best, s->x, sizeof best);
  }
  memcpy(s->x, best, sizeof best);
  if (orders == 2) HK_TRY(move_one_at_a_time(s, false));
  return minimise(s);
}

/* -- Scale ------------------------------------------------------------------------------------- */

static double by_sum(const solver *s, const double *r) {
  const size_t n = s->of->n_residuals;
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += pow(hk_solver_huber(r[i] / s->scale), 2);
  const double scatter = n > s->n_active ? s->scale * sqrt(sum / (double)(n - s->n_active)) : 0;
  return fmax(s->of->noise, scatter);
}

/* Reorders `r`. */
static double by_median(const solver *s, double *r) {
  const size_t n = s->of->n_residuals;
  const double freedom = n > s->n_active ? (double)n / (double)(n - s->n_active) : 1;
  for (size_t i = 0; i < n; i++) r[i] = fabs(r[i]);
  return fmax(s->of->noise, 1.4826 * hk_median(r, n) * sqrt(freedom));
}

/* The scatter of the residuals at s->x; also sets the problem's `squares` and `outliers`. */
static hk_status measure_scatter(const solver *s, double *scatter) {
  hk_solve_problem *p = s->of;
  double *r = malloc((p->n_residuals + 1) * sizeof *r);
  if (!r) return hk_solver_fail_gsl(p->err, GSL_ENOMEM);
  const hk_status status = hk_solver_residuals(s, &s->x, 1, r);
  p->squares = 0;
  p->outliers = 0;
  for (size_t i = 0; status == HK_OK && i < p->n_residuals; i++) {
    p->squares += r[i] * r[i];
    p->outliers += fabs(r[i]) > 2 * HK_HUBER * s->scale;
  }
  if (status == HK_OK) *scatter = p->rule == HK_SCALE_BY_MEDIAN ? by_median(s, r) : by_sum(s, r);
  free(r);
  return status;
}

/* Sets the scale to the scatter and minimises again until the scale stays within SCALE_TOLERANCE.
 * Under HK_SCALE_BY_SUM the scale never falls, so it is at least the caller's. */
static hk_status rescale(solver *s) {
  for (int pass = 0; pass < SCALE_PASSES; pass++) {
    double scatter = s->scale;
    HK_TRY(measure_scatter(s, &scatter));
    if (s->of->rule == HK_SCALE_BY_SUM) scatter = fmax(scatter, s->scale);
    if (fabs(scatter / s->scale - 1) <= SCALE_TOLERANCE) return HK_OK;
    const bool restart = fabs(log(scatter / s->scale)) > log(RESTART_FACTOR);
    s->scale = scatter;
    HK_TRY(restart ? search(s) : minimise(s));
  }
  return HK_OK;
}

/* -- What the data determine ------------------------------------------------------------------- */

/* Covariance of the logarithms of the active unknowns at s->x, with residuals in units of the
 * scale. The caller frees it. */
static hk_status find_covariance(const solver *s, gsl_matrix **out) {
  gsl_matrix *j = gsl_matrix_alloc(s->of->n_residuals + s->n_active, s->n_active);
  *out = gsl_matrix_alloc(s->n_active, s->n_active);
  hk_status status =
      j && *out ? hk_solver_differentiate(s, s->x, j) : hk_solver_fail_gsl(s->of->err, GSL_ENOMEM);
  if (status == HK_OK) {
    const int code = gsl_multifit_nlinear_covar(j, 0, *out);
    if (code != GSL_SUCCESS) status = hk_solver_fail_gsl(s->of->err, code);
  }
  gsl_matrix_free(j);
  return status;
}

/* The active unknown with the largest `kept`, if that is above HK_MOST_KEPT; n_active if none is.
 */
static size_t least_known(const solver *s, const gsl_matrix *covariance) {
  size_t worst = s->n_active;
  double most = HK_MOST_KEPT;
  for (size_t a = 0; a < s->n_active; a++) {
    hk_unknown *u = &s->of->unknowns[s->active[a]];
    u->kept = sqrt(gsl_matrix_get(covariance, a, a)) / u->width;
    if (u->kept <= most || u->one_sided) continue;
    most = u->kept;
    worst = a;
  }
  return worst;
}

/* Holds an active unknown at its start and fits the others again. If the objective rises by more
 * than REJECTION_RISE, all stays as it was and the unknown is one-sided. */
static hk_status hold_at_start(solver *s, size_t a) {
  const solver before = *s;
  const size_t j = s->active[a];
  double with = 0, without = 0;
  HK_TRY(hk_solver_objectives(s, &s->x, 1, &with));
  s->x[j] = log(s->of->unknowns[j].start);
  s->n_active--;
  memmove(&s->active[a], &s->active[a + 1], (s->n_active - a) * sizeof s->active[a]);
  HK_TRY(minimise(s));
  HK_TRY(hk_solver_objectives(s, &s->x, 1, &without));
  if (without <= with + REJECTION_RISE) return HK_OK;
  *s = before;
  s->of->unknowns[j].one_sided = true;
  return HK_OK;
}

/* Writes the results to the problem. `covariance` is NULL if no unknown is active. */
static hk_status record(const solver *s, const gsl_matrix *covariance) {
  hk_solve_problem *p = s->of;
  HK_TRY(measure_scatter(s, &p->scatter));
  const double factor = p->scatter / s->scale;
  for (size_t j = 0; j < p->n; j++) {
    p->unknowns[j].value = p->unknowns[j].start;
    for (size_t k = 0; k < p->n; k++) p->correlation[j][k] = NAN;
  }
  for (size_t a = 0; a < s->n_active; a++) {
    hk_unknown *u = &p->unknowns[s->active[a]];
    const double variance = gsl_matrix_get(covariance, a, a);
    u->determined = true;
    u->value = hk_solver_clamped(u, s->x[s->active[a]]);
    u->error = fmin(u->width, sqrt(variance) * factor);
    u->low = u->value * exp(-u->error);
    u->high = u->value * exp(u->error);
    for (size_t b = 0; b < s->n_active; b++)
      p->correlation[s->active[a]][s->active[b]] =
          gsl_matrix_get(covariance, a, b) / sqrt(variance * gsl_matrix_get(covariance, b, b));
  }
  return HK_OK;
}

static hk_status solve(solver *s) {
  HK_TRY(search(s));
  HK_TRY(rescale(s));
  while (s->n_active > 0) {
    gsl_matrix *covariance = NULL;
    hk_status status = find_covariance(s, &covariance);
    const size_t a = status == HK_OK ? least_known(s, covariance) : 0;
    const bool done = a == s->n_active;
    if (status == HK_OK) status = done ? record(s, covariance) : hold_at_start(s, a);
    if (status == HK_OK && done && s->of->intervals) status = hk_solver_intervals(s, covariance);
    gsl_matrix_free(covariance);
    if (done || status != HK_OK) return status;
  }
  return record(s, NULL);
}

hk_status hk_solve(hk_solve_problem *problem) {
  solver s = {.of = problem, .scale = problem->scale};
  for (size_t j = 0; j < problem->n; j++) {
    hk_unknown *u = &problem->unknowns[j];
    u->error = u->kept = 0;
    u->determined = u->one_sided = u->flat = false;
    s.x[j] = log(u->start);
    if (u->least < u->most) s.active[s.n_active++] = j;
  }
  /* GSL's default handler aborts the program. Every status is checked instead. */
  gsl_error_handler_t *before = gsl_set_error_handler_off();
  const hk_status status = solve(&s);
  gsl_set_error_handler(before);
  return status;
}
