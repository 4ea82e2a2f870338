/* SPDX-License-Identifier: GPL-3.0-or-later */
/* How well the data know each unknown: profile likelihood. calib/fit/solver.h has the method. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/solver_parts.h"

#define FIRST_DISTANCE 2 /* from the minimum, in standard errors of the linear theory */
#define DISTANCES      6 /* at most, each twice the one before */
#define ITERATIONS     3 /* of the descent of the other unknowns */

/* The rise of the objective that one standard error means. Residuals of a cluster have errors in
 * common, so that they carry less than they would alone: the rise is the variance of the sums over
 * clusters, divided by that of independent residuals. At least 1. */
static hk_status find_rise(const hk_solver *s, double *rise) {
  const hk_solve_problem *p = s->of;
  *rise = 1;
  if (!p->clusters) return HK_OK;
  double *r = malloc(2 * (p->n_residuals + 1) * sizeof *r), *sums = r + p->n_residuals + 1;
  if (!r) return hk_fail_memory(p->err, 2 * p->n_residuals * sizeof *r, "a fit");
  const hk_status status = hk_solver_residuals(s, &s->x, 1, r);
  double squares = 0, of_clusters = 0;
  for (size_t i = 0; i <= p->n_residuals; i++) sums[i] = 0;
  for (size_t i = 0; status == HK_OK && i < p->n_residuals; i++) {
    const double t = fmin(fmax(r[i] / s->scale, -HK_HUBER), HK_HUBER);
    squares += t * t;
    sums[p->clusters[i]] += t;
  }
  for (size_t i = 0; i < p->n_residuals; i++) of_clusters += sums[i] * sums[i];
  if (status == HK_OK && squares > 0) *rise = fmax(1, of_clusters / squares);
  free(r);
  return status;
}

typedef struct {
  const hk_solver *at_minimum;
  const gsl_matrix *covariance;
  size_t a; /* index among the active unknowns */
  int sign; /* 1: upwards, -1: downwards */
  double least, rise;
} walk;

static double room(const walk *w) {
  const hk_solver *s = w->at_minimum;
  const size_t j = s->active[w->a];
  const hk_unknown *u = &s->of->unknowns[j];
  return fmax(0, w->sign > 0 ? log(u->most) - s->x[j] : s->x[j] - log(u->least));
}

/* *rise: how much the objective rises if the unknown is at `distance` from the minimum. The others
 * are put where the linear theory expects them. If the objective then rises by more than w->rise,
 * they descend from there. */
static hk_status rise_at(const walk *w, double distance, double *rise) {
  hk_solver s = *w->at_minimum;
  double sum = 0;
  const double variance = gsl_matrix_get(w->covariance, w->a, w->a);
  for (size_t b = 0; b < s.n_active; b++) {
    const size_t k = s.active[b];
    const hk_unknown *u = &s.of->unknowns[k];
    const double moved = w->sign * distance * gsl_matrix_get(w->covariance, b, w->a) / variance;
    s.x[k] = fmin(fmax(s.x[k] + moved, log(u->least)), log(u->most));
  }
  HK_TRY(hk_solver_objectives(&s, &s.x, 1, &sum));
  *rise = sum - w->least;
  if (*rise <= w->rise) return HK_OK;
  s.n_active--;
  memmove(&s.active[w->a], &s.active[w->a + 1], (s.n_active - w->a) * sizeof s.active[0]);
  HK_TRY(hk_solver_descend(&s, ITERATIONS));
  HK_TRY(hk_solver_objectives(&s, &s.x, 1, &sum));
  *rise = sum - w->least;
  return HK_OK;
}

/* Distance at which the objective has risen by w->rise: doubled until it has, then interpolated as
 * if it rose with the square of the distance. Ends at the unknown's bound. */
static hk_status find_end(const walk *w, double *end) {
  const double most = room(w);
  double distance = FIRST_DISTANCE * sqrt(gsl_matrix_get(w->covariance, w->a, w->a) * w->rise);
  double inside = 0, low = 0;
  for (int i = 0; i < DISTANCES && inside < most; i++) {
    double rise = 0;
    distance = fmin(i > 0 ? 2 * distance : distance, most);
    HK_TRY(rise_at(w, distance, &rise));
    rise = fmax(rise, 0);
    if (rise > w->rise) {
      const double share = (sqrt(w->rise) - sqrt(low)) / (sqrt(rise) - sqrt(low));
      *end = inside + (distance - inside) * share;
      return HK_OK;
    }
    inside = distance;
    low = rise;
  }
  *end = inside;
  return HK_OK;
}

hk_status hk_solver_intervals(const hk_solver *s, const gsl_matrix *covariance) {
  walk w = {.at_minimum = s, .covariance = covariance};
  HK_TRY(find_rise(s, &w.rise));
  w.rise *= pow(s->of->scatter / s->scale, 2); /* the objective counts in units of the scale */
  HK_TRY(hk_solver_objectives(s, &s->x, 1, &w.least));
  for (w.a = 0; w.a < s->n_active; w.a++) {
    hk_unknown *u = &s->of->unknowns[s->active[w.a]];
    double down = 0, up = 0;
    w.sign = -1;
    HK_TRY(find_end(&w, &down));
    w.sign = 1;
    HK_TRY(find_end(&w, &up));
    u->low = u->value * exp(-down);
    u->high = u->value * exp(up);
    u->error = (down + up) / 2;
    u->kept = u->error / u->width;
    u->flat = fmax(down, up) > HK_MOST_KEPT * u->width;
  }
  return HK_OK;
}
