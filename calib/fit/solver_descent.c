/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What a fit minimises, its derivatives, and the descent to a minimum near a point. */
#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/solver_parts.h"

#define DIFFERENCE_STEP 1e-3 /* of central differences, in logarithms */
#define BOUND_MARGIN    1e-3 /* least distance of a start from a bound, as a share of the range */

typedef hk_solver_vector vector;
typedef hk_solver solver;

hk_status hk_solver_fail_gsl(hk_error *err, int code) {
  if (code == GSL_ENOMEM) return hk_fail_memory(err, 0, "a fit");
  return hk_fail(err, HK_ENVIRONMENT, "the least-squares solver of a fit: %s", gsl_strerror(code));
}

/* -- What is minimised ------------------------------------------------------------------------- */

static double off_prior(const hk_unknown *u, double x) {
  return (x - log(u->start)) / u->width;
}

hk_status hk_solver_residuals(const solver *s, const vector *points, size_t variants, double *out) {
  const hk_solve_problem *p = s->of;
  double values[HK_MOST_VARIANTS * HK_MOST_UNKNOWNS];
  values[0] = 0; /* a fit without unknowns passes none */
  for (size_t v = 0; v < variants; v++)
    for (size_t j = 0; j < p->n; j++)
      values[v * p->n + j] = hk_solver_clamped(&p->unknowns[j], points[v][j]);
  return p->residuals(p->context, values, variants, out, p->err);
}

/* hk_solver_huber(residual / scale) of every residual. */
static hk_status weighted(const solver *s, const vector *points, size_t variants, double *out) {
  HK_TRY(hk_solver_residuals(s, points, variants, out));
  for (size_t i = 0; i < variants * s->of->n_residuals; i++)
    out[i] = hk_solver_huber(out[i] / s->scale);
  return HK_OK;
}

static double total(const solver *s, const double *point, const double *f) {
  double sum = 0;
  for (size_t i = 0; i < s->of->n_residuals; i++) sum += f[i] * f[i];
  for (size_t j = 0; j < s->of->n; j++) sum += pow(off_prior(&s->of->unknowns[j], point[j]), 2);
  return sum;
}

/* The objective at each of the points. */
hk_status hk_solver_objectives(const solver *s, const vector *points, size_t variants,
                               double *sums) {
  const size_t n = s->of->n_residuals;
  double *f = malloc((variants * n + 1) * sizeof *f);
  if (!f) return hk_fail_memory(s->of->err, variants * n * sizeof *f, "a fit");
  const hk_status status = weighted(s, points, variants, f);
  for (size_t v = 0; status == HK_OK && v < variants; v++) sums[v] = total(s, points[v], f + v * n);
  free(f);
  return status;
}

/* -- Derivatives ------------------------------------------------------------------------------- */

hk_status hk_solver_differentiate(const solver *s, const double *x, gsl_matrix *j) {
  const size_t n = s->of->n_residuals;
  vector points[2 * HK_MOST_UNKNOWNS];
  double steps[HK_MOST_UNKNOWNS];
  for (size_t a = 0; a < s->n_active; a++) {
    const size_t k = s->active[a];
    double *below = points[2 * a], *above = points[2 * a + 1];
    memcpy(below, x, sizeof *points);
    memcpy(above, x, sizeof *points);
    below[k] = fmax(x[k] - DIFFERENCE_STEP, log(s->of->unknowns[k].least));
    above[k] = fmin(x[k] + DIFFERENCE_STEP, log(s->of->unknowns[k].most));
    steps[a] = above[k] - below[k];
  }
  double *f = malloc((2 * s->n_active * n + 1) * sizeof *f);
  if (!f) return hk_fail_memory(s->of->err, 2 * s->n_active * n * sizeof *f, "a fit");
  const hk_status status = weighted(s, points, 2 * s->n_active, f);
  gsl_matrix_set_zero(j);
  for (size_t a = 0; status == HK_OK && a < s->n_active; a++) {
    for (size_t i = 0; i < n; i++)
      gsl_matrix_set(j, i, a, (f[(2 * a + 1) * n + i] - f[2 * a * n + i]) / steps[a]);
    gsl_matrix_set(j, n + a, a, 1 / s->of->unknowns[s->active[a]].width);
  }
  free(f);
  return status;
}

/* -- Bounds ------------------------------------------------------------------------------------ */

static double x_of(const hk_unknown *u, double angle) {
  return hk_solver_low(u) + hk_solver_range(u) * (1 + sin(angle)) / 2;
}

/* At a bound the derivative by the angle is 0 and the trust region would not move. The angle is
 * therefore that of a point at least BOUND_MARGIN inside. */
static double angle_of(const hk_unknown *u, double x) {
  const double share =
      fmin(fmax((x - hk_solver_low(u)) / hk_solver_range(u), BOUND_MARGIN), 1 - BOUND_MARGIN);
  return asin(2 * share - 1);
}

/* d x / d angle. */
static double slope(const hk_unknown *u, double angle) {
  return hk_solver_range(u) * cos(angle) / 2;
}

static void spread(const solver *s, const gsl_vector *angles, double *x) {
  memcpy(x, s->x, sizeof s->x);
  for (size_t a = 0; a < s->n_active; a++)
    x[s->active[a]] = x_of(&s->of->unknowns[s->active[a]], gsl_vector_get(angles, a));
}

/* -- Trust region ------------------------------------------------------------------------------ */

static int residuals_at(const gsl_vector *angles, void *data, gsl_vector *f) {
  solver *s = data;
  vector x;
  if (s->status != HK_OK) return GSL_EBADFUNC; /* GSL calls again after a failed callback */
  spread(s, angles, x);
  /* GSL allocated f: it is contiguous. */
  s->status = weighted(s, &x, 1, f->data);
  if (s->status != HK_OK) return GSL_EBADFUNC;
  for (size_t a = 0; a < s->n_active; a++)
    gsl_vector_set(f, s->of->n_residuals + a,
                   off_prior(&s->of->unknowns[s->active[a]], x[s->active[a]]));
  return GSL_SUCCESS;
}

static int jacobian_at(const gsl_vector *angles, void *data, gsl_matrix *j) {
  solver *s = data;
  vector x;
  if (s->status != HK_OK) return GSL_EBADFUNC;
  spread(s, angles, x);
  s->status = hk_solver_differentiate(s, x, j);
  if (s->status != HK_OK) return GSL_EBADFUNC;
  for (size_t a = 0; a < s->n_active; a++) {
    gsl_vector_view column = gsl_matrix_column(j, a);
    gsl_vector_scale(&column.vector,
                     slope(&s->of->unknowns[s->active[a]], gsl_vector_get(angles, a)));
  }
  return GSL_SUCCESS;
}

/* Ends regularly, too, if GSL makes no progress or has used up its iterations. */
static int run_trust_region(solver *s, gsl_multifit_nlinear_workspace *w, size_t iterations,
                            double *x) {
  gsl_vector *angles = gsl_vector_alloc(s->n_active);
  if (!angles) return GSL_ENOMEM;
  for (size_t a = 0; a < s->n_active; a++)
    gsl_vector_set(angles, a, angle_of(&s->of->unknowns[s->active[a]], s->x[s->active[a]]));
  gsl_multifit_nlinear_fdf problem = {.f = residuals_at,
                                      .df = jacobian_at,
                                      .n = s->of->n_residuals + s->n_active,
                                      .p = s->n_active,
                                      .params = s};
  int info = 0;
  int code = gsl_multifit_nlinear_init(angles, &problem, w);
  if (code == GSL_SUCCESS)
    code = gsl_multifit_nlinear_driver(iterations, 1e-4, 1e-6, 0, NULL, NULL, &info, w);
  if (code == GSL_EMAXITER || code == GSL_ENOPROG) code = GSL_SUCCESS;
  if (code == GSL_SUCCESS) spread(s, gsl_multifit_nlinear_position(w), x);
  gsl_vector_free(angles);
  return code;
}

/* Moves s->x to a point with a smaller objective, or leaves it unchanged. */
hk_status hk_solver_descend(solver *s, size_t iterations) {
  if (s->n_active == 0) return HK_OK;
  vector points[2];
  double sums[2] = {0};
  gsl_multifit_nlinear_parameters settings = gsl_multifit_nlinear_default_parameters();
  settings.scale = gsl_multifit_nlinear_scale_marquardt;
  gsl_multifit_nlinear_workspace *w = gsl_multifit_nlinear_alloc(
      gsl_multifit_nlinear_trust, &settings, s->of->n_residuals + s->n_active, s->n_active);
  memcpy(points, s->x, sizeof points[0]);
  const int code = w ? run_trust_region(s, w, iterations, points[1]) : GSL_ENOMEM;
  gsl_multifit_nlinear_free(w);
  if (s->status != HK_OK) return s->status;
  if (code != GSL_SUCCESS) return hk_solver_fail_gsl(s->of->err, code);
  HK_TRY(hk_solver_objectives(s, points, 2, sums));
  if (sums[1] < sums[0]) memcpy(s->x, points[1], sizeof s->x);
  return HK_OK;
}
