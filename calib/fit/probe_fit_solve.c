/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The numerics of a profile's fit: GSL's trust region on logarithms, with Huber's loss, weak
 * priors and, for models with kinks, scouts before and a simplex after it. */
#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <gsl/gsl_multimin.h>
#include <gsl/gsl_qrng.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/probe_fit_draft.h"

#define HUBER_K     1.345
#define STEP        1e-3 /* of a logarithm, for differences */
#define ITERATIONS  30   /* of the trust region */
#define SCOUTS      256  /* points that are looked at before it */
#define SCOUT_REACH 1.5  /* how far they lie from the start, in widths of the prior */
#define STARTS      4    /* the start and the best of them */
#define ROUNDS      2    /* of moving one unknown at a time */
#define GRID        9    /* places that each may move to */
#define CYCLES      4    /* of simplex and trust region */
#define GAIN        0.01 /* of the sum, that makes another one worth while */
#define POLISH      300  /* steps of the simplex */
#define POLISH_STEP 0.1
#define POLISHED    1e-4 /* size of a simplex that is small enough */
#define MOST_KEPT   0.5  /* of its prior's width, for an unknown to count as determined */
#define REJECTED    1    /* rise of the sum, priors included, by which a start is refused */

_Static_assert(SCOUTS + 1 <= HK_MOST_VARIANTS, "too many settings at once");

typedef double vector[HK_MOST_UNKNOWNS]; /* logarithms, of all unknowns */

typedef struct {
  hk_solve_problem *of;
  vector x;
  double scale; /* the problem's, or what residuals turned out to scatter by if that is more */
  size_t active[HK_MOST_UNKNOWNS], n_active;
  hk_status status; /* of what failed inside a callback */
} solver;

static hk_status fail_gsl(hk_error *err, int code) {
  if (code == GSL_ENOMEM) return hk_fail_memory(err, 0, "a profile's fit");
  return hk_fail(err, HK_ENVIRONMENT, "the least-squares solver of a profile's fit: %s",
                 gsl_strerror(code));
}

/* -- What is minimised ------------------------------------------------------------------------- */

static double clamped(const hk_unknown *u, double x) {
  return fmin(fmax(exp(x), u->least), u->most);
}

static double off_prior(const hk_unknown *u, double x) {
  return (x - log(u->start)) / u->width;
}

/* The square of what this returns is Huber's loss. */
static double huber(double r) {
  const double a = fabs(r);
  return a <= HUBER_K ? r : copysign(sqrt(HUBER_K * (2 * a - HUBER_K)), r);
}

static hk_status raw(const solver *s, const vector *points, size_t variants, double *out) {
  const hk_solve_problem *p = s->of;
  double values[HK_MOST_VARIANTS * HK_MOST_UNKNOWNS];
  for (size_t v = 0; v < variants; v++)
    for (size_t j = 0; j < p->n; j++) values[v * p->n + j] = clamped(&p->unknowns[j], points[v][j]);
  return p->residuals(p->context, values, variants, out, p->err);
}

/* Residuals as the solver sees them, in units of their scale. */
static hk_status weighed(const solver *s, const vector *points, size_t variants, double *out) {
  HK_TRY(raw(s, points, variants, out));
  for (size_t i = 0; i < variants * s->of->n_residuals; i++) out[i] = huber(out[i] / s->scale);
  return HK_OK;
}

static double total(const solver *s, const double *point, const double *f) {
  double sum = 0;
  for (size_t i = 0; i < s->of->n_residuals; i++) sum += f[i] * f[i];
  for (size_t j = 0; j < s->of->n; j++) sum += pow(off_prior(&s->of->unknowns[j], point[j]), 2);
  return sum;
}

static hk_status totals(const solver *s, const vector *points, size_t variants, double *sums) {
  const size_t n = s->of->n_residuals;
  double *f = malloc((variants * n + 1) * sizeof *f);
  if (!f) return hk_fail_memory(s->of->err, variants * n * sizeof *f, "a profile's fit");
  const hk_status status = weighed(s, points, variants, f);
  for (size_t v = 0; status == HK_OK && v < variants; v++) sums[v] = total(s, points[v], f + v * n);
  free(f);
  return status;
}

/* -- Trust region ------------------------------------------------------------------------------ */

static void spread(const solver *s, const gsl_vector *u, double *x) {
  memcpy(x, s->x, sizeof s->x);
  for (size_t a = 0; a < s->n_active; a++) x[s->active[a]] = gsl_vector_get(u, a);
}

static void gather(const solver *s, const double *x, gsl_vector *u) {
  for (size_t a = 0; a < s->n_active; a++) gsl_vector_set(u, a, x[s->active[a]]);
}

static int residuals_at(const gsl_vector *u, void *data, gsl_vector *f) {
  solver *s = data;
  vector x;
  spread(s, u, x);
  /* GSL's vectors here are its own and contiguous. */
  s->status = weighed(s, &x, 1, f->data);
  if (s->status != HK_OK) return GSL_EBADFUNC;
  for (size_t a = 0; a < s->n_active; a++)
    gsl_vector_set(f, s->of->n_residuals + a,
                   off_prior(&s->of->unknowns[s->active[a]], x[s->active[a]]));
  return GSL_SUCCESS;
}

/* Central differences: a kink then counts half from either side. */
static int jacobian_at(const gsl_vector *u, void *data, gsl_matrix *j) {
  solver *s = data;
  const size_t n = s->of->n_residuals;
  vector points[2 * HK_MOST_UNKNOWNS];
  for (size_t a = 0; a < s->n_active; a++) {
    spread(s, u, points[2 * a]);
    spread(s, u, points[2 * a + 1]);
    points[2 * a][s->active[a]] -= STEP;
    points[2 * a + 1][s->active[a]] += STEP;
  }
  double *f = malloc((2 * s->n_active * n + 1) * sizeof *f);
  if (!f) return GSL_ENOMEM;
  s->status = weighed(s, points, 2 * s->n_active, f);
  gsl_matrix_set_zero(j);
  for (size_t a = 0; s->status == HK_OK && a < s->n_active; a++) {
    for (size_t i = 0; i < n; i++)
      gsl_matrix_set(j, i, a, (f[(2 * a + 1) * n + i] - f[2 * a * n + i]) / (2 * STEP));
    gsl_matrix_set(j, n + a, a, 1 / s->of->unknowns[s->active[a]].width);
  }
  free(f);
  return s->status == HK_OK ? GSL_SUCCESS : GSL_EBADFUNC;
}

/* No further progress and no more iterations are ends like any other. */
static int drive(solver *s, gsl_multifit_nlinear_workspace *w, size_t iterations) {
  gsl_vector *u = gsl_vector_alloc(s->n_active);
  if (!u) return GSL_ENOMEM;
  gather(s, s->x, u);
  gsl_multifit_nlinear_fdf problem = {.f = residuals_at,
                                      .df = jacobian_at,
                                      .n = s->of->n_residuals + s->n_active,
                                      .p = s->n_active,
                                      .params = s};
  int info = 0;
  int code = gsl_multifit_nlinear_init(u, &problem, w);
  if (code == GSL_SUCCESS && iterations > 0)
    code = gsl_multifit_nlinear_driver(iterations, 1e-6, 1e-8, 0, NULL, NULL, &info, w);
  if (code == GSL_EMAXITER || code == GSL_ENOPROG) code = GSL_SUCCESS;
  if (code == GSL_SUCCESS) spread(s, gsl_multifit_nlinear_position(w), s->x);
  gsl_vector_free(u);
  return code;
}

/* From s->x; `covariance` (or NULL): of the active unknowns' logarithms where it ended, in units
 * of the residuals' scale. `iterations` may be 0. */
static hk_status trust(solver *s, size_t iterations, gsl_matrix *covariance) {
  if (s->n_active == 0) return HK_OK;
  gsl_multifit_nlinear_parameters settings = gsl_multifit_nlinear_default_parameters();
  settings.scale = gsl_multifit_nlinear_scale_marquardt;
  gsl_multifit_nlinear_workspace *w = gsl_multifit_nlinear_alloc(
      gsl_multifit_nlinear_trust, &settings, s->of->n_residuals + s->n_active, s->n_active);
  int code = w ? drive(s, w, iterations) : GSL_ENOMEM;
  if (code == GSL_SUCCESS && covariance)
    code = gsl_multifit_nlinear_covar(gsl_multifit_nlinear_jac(w), 0, covariance);
  gsl_multifit_nlinear_free(w);
  if (s->status != HK_OK) return s->status;
  return code == GSL_SUCCESS ? HK_OK : fail_gsl(s->of->err, code);
}

/* -- Looking around and polishing -------------------------------------------------------------- */

/* From -1 to 1: as far below or above the start as scouts go. */
static double reach(const hk_unknown *u, double share) {
  const double x = log(u->start) + SCOUT_REACH * u->width * share;
  return fmin(fmax(x, log(u->least)), log(u->most));
}

/* Brings the best of all but the first `fixed` of n points to places fixed .. fixed + wanted. */
static hk_status pick_best(const solver *s, vector *points, size_t n, size_t fixed, size_t wanted) {
  double sums[HK_MOST_VARIANTS] = {0};
  HK_TRY(totals(s, points, n, sums));
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

/* The start, then the best of points spread evenly about it (Sobol's sequence). */
static hk_status scout(const solver *s, vector *points) {
  gsl_qrng *sequence = gsl_qrng_alloc(gsl_qrng_sobol, (unsigned)s->of->n);
  if (!sequence) return fail_gsl(s->of->err, GSL_ENOMEM);
  memcpy(points[0], s->x, sizeof points[0]);
  for (int i = 1; i <= SCOUTS; i++) {
    gsl_qrng_get(sequence, points[i]);
    for (size_t j = 0; j < s->of->n; j++)
      points[i][j] = reach(&s->of->unknowns[j], 2 * points[i][j] - 1);
  }
  gsl_qrng_free(sequence);
  return pick_best(s, points, SCOUTS + 1, 1, STARTS - 1);
}

/* Each unknown in turn to the best place of a grid about its start, the others held: the solver
 * sees slopes only, and an unknown that nothing hangs on here has none. */
static hk_status move_one_at_a_time(solver *s) {
  for (size_t turn = 0; turn < ROUNDS * s->of->n; turn++) {
    const size_t j = turn % s->of->n;
    vector points[GRID + 1];
    for (int i = 0; i <= GRID; i++) memcpy(points[i], s->x, sizeof points[i]);
    for (int i = 0; i < GRID; i++)
      points[i + 1][j] = reach(&s->of->unknowns[j], 2.0 * i / (GRID - 1) - 1);
    HK_TRY(pick_best(s, points, GRID + 1, 0, 1));
    memcpy(s->x, points[0], sizeof points[0]);
  }
  return HK_OK;
}

static double total_at(const gsl_vector *u, void *data) {
  solver *s = data;
  vector x;
  double sum = INFINITY;
  spread(s, u, x);
  const hk_status status = totals(s, &x, 1, &sum);
  if (status != HK_OK) s->status = status;
  return sum;
}

static int simplex(solver *s, gsl_multimin_fminimizer *m, gsl_vector *u, gsl_vector *steps) {
  gsl_multimin_function problem = {.f = total_at, .n = s->n_active, .params = s};
  gather(s, s->x, u);
  gsl_vector_set_all(steps, POLISH_STEP);
  int code = gsl_multimin_fminimizer_set(m, &problem, u, steps);
  for (int i = 0; code == GSL_SUCCESS && i < POLISH; i++) {
    code = gsl_multimin_fminimizer_iterate(m);
    if (s->status != HK_OK || gsl_multimin_fminimizer_size(m) < POLISHED) break;
  }
  if (code == GSL_ENOPROG) code = GSL_SUCCESS;
  if (code == GSL_SUCCESS) spread(s, gsl_multimin_fminimizer_x(m), s->x);
  return code;
}

static hk_status shrink(solver *s) {
  gsl_multimin_fminimizer *m =
      gsl_multimin_fminimizer_alloc(gsl_multimin_fminimizer_nmsimplex2, s->n_active);
  gsl_vector *u = gsl_vector_alloc(s->n_active), *steps = gsl_vector_alloc(s->n_active);
  const int code = m && u && steps ? simplex(s, m, u, steps) : GSL_ENOMEM;
  if (m) gsl_multimin_fminimizer_free(m);
  gsl_vector_free(u);
  gsl_vector_free(steps);
  if (s->status != HK_OK) return s->status;
  return code == GSL_SUCCESS ? HK_OK : fail_gsl(s->of->err, code);
}

/* Kinks stop the trust region where a simplex (Nelder and Mead) still finds a way down, after which
 * slopes lead on. */
static hk_status settle(solver *s) {
  double before = 0, after = 0;
  HK_TRY(trust(s, ITERATIONS, NULL));
  if (!s->of->rough || s->n_active == 0) return HK_OK;
  HK_TRY(totals(s, &s->x, 1, &after));
  for (int cycle = 0; cycle < CYCLES && !(after > (1 - GAIN) * before && cycle > 0); cycle++) {
    before = after;
    HK_TRY(shrink(s));
    HK_TRY(trust(s, ITERATIONS, NULL));
    HK_TRY(totals(s, &s->x, 1, &after));
  }
  return HK_OK;
}

static hk_status descend(solver *s) {
  if (!s->of->rough) return settle(s);
  vector points[SCOUTS + 1], best;
  double least = INFINITY, sum = 0;
  HK_TRY(scout(s, points));
  memcpy(best, s->x, sizeof best);
  for (int i = 0; i < STARTS; i++) {
    memcpy(s->x, points[i], sizeof s->x);
    HK_TRY(move_one_at_a_time(s));
    HK_TRY(trust(s, ITERATIONS / 3, NULL));
    HK_TRY(totals(s, &s->x, 1, &sum));
    if (sum >= least) continue;
    least = sum;
    memcpy(best, s->x, sizeof best);
  }
  memcpy(s->x, best, sizeof best);
  return settle(s);
}

/* -- What the data determine ------------------------------------------------------------------- */

/* The active unknown of which the data know least, if that is less than its prior knows; n_active:
 * none. */
static size_t least_known(const solver *s, const gsl_matrix *covariance, const bool *kept) {
  size_t worst = s->n_active;
  double most = MOST_KEPT;
  for (size_t a = 0; a < s->n_active; a++) {
    const size_t j = s->active[a];
    const double share = sqrt(gsl_matrix_get(covariance, a, a)) / s->of->unknowns[j].width;
    if (share <= most || kept[j]) continue;
    most = share;
    worst = a;
  }
  return worst;
}

/* Puts an unknown back to its start and fits the others again. Where the data refuse that, it
 * stays: they do not say where it is, but that it is not there. */
static hk_status give_back(solver *s, size_t a, bool *kept) {
  const solver before = *s;
  const size_t j = s->active[a];
  double with = 0, without = 0;
  HK_TRY(totals(s, &s->x, 1, &with));
  s->x[j] = log(s->of->unknowns[j].start);
  s->n_active--;
  memmove(&s->active[a], &s->active[a + 1], (s->n_active - a) * sizeof s->active[a]);
  HK_TRY(settle(s));
  HK_TRY(totals(s, &s->x, 1, &without));
  if (without <= with + REJECTED) return HK_OK;
  *s = before;
  kept[j] = true;
  return HK_OK;
}

/* chi2 / dof, how much larger the scatter is than the scale, as Huber counts; a few residuals that
 * happen to be small do not make it smaller than what the measurements scatter by. */
static hk_status excess(const solver *s, double *out) {
  const size_t n = s->of->n_residuals;
  double *f = malloc((n + 1) * sizeof *f);
  if (!f) return fail_gsl(s->of->err, GSL_ENOMEM);
  hk_status status = weighed(s, &s->x, 1, f);
  double sum = 0;
  for (size_t i = 0; status == HK_OK && i < n; i++) sum += f[i] * f[i];
  const double least = pow(s->of->noise / s->scale, 2);
  *out = n > s->n_active ? fmax(least, sum / (double)(n - s->n_active)) : least;
  if (status == HK_OK) status = raw(s, &s->x, 1, f);
  s->of->squares = 0;
  for (size_t i = 0; status == HK_OK && i < n; i++) s->of->squares += f[i] * f[i];
  free(f);
  return status;
}

/* `covariance` is NULL where nothing is active. */
static hk_status record(const solver *s, const gsl_matrix *covariance) {
  double scatter = 1;
  HK_TRY(excess(s, &scatter));
  for (size_t j = 0; j < s->of->n; j++) {
    hk_unknown *u = &s->of->unknowns[j];
    u->value = clamped(u, s->x[j]);
    u->determined = false;
  }
  for (size_t a = 0; a < s->n_active; a++) {
    hk_unknown *u = &s->of->unknowns[s->active[a]];
    u->determined = true;
    u->error = fmin(u->width, sqrt(gsl_matrix_get(covariance, a, a) * scatter));
  }
  return HK_OK;
}

/* Where the model does not hold as well as hoped, residuals count less against the priors. */
static hk_status rescale(solver *s) {
  double scatter = 1;
  HK_TRY(excess(s, &scatter));
  if (scatter <= 1) return HK_OK;
  s->scale *= sqrt(scatter);
  return settle(s);
}

static hk_status solve(solver *s) {
  bool kept[HK_MOST_UNKNOWNS] = {false};
  HK_TRY(descend(s));
  HK_TRY(rescale(s));
  while (s->n_active > 0) {
    gsl_matrix *covariance = gsl_matrix_alloc(s->n_active, s->n_active);
    if (!covariance) return fail_gsl(s->of->err, GSL_ENOMEM);
    hk_status status = trust(s, 0, covariance);
    const size_t a = status == HK_OK ? least_known(s, covariance, kept) : 0;
    const bool done = a == s->n_active;
    if (status == HK_OK) status = done ? record(s, covariance) : give_back(s, a, kept);
    gsl_matrix_free(covariance);
    if (done || status != HK_OK) return status;
  }
  return record(s, NULL);
}

hk_status hk_solve(hk_solve_problem *problem) {
  solver s = {.of = problem, .scale = problem->scale, .n_active = problem->n};
  for (size_t j = 0; j < problem->n; j++) {
    s.active[j] = j;
    s.x[j] = log(problem->unknowns[j].start);
    problem->unknowns[j].error = 0;
  }
  return solve(&s);
}
