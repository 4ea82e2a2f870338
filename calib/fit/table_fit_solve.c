/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The numerics of a fit: GSL's trust region on robust residuals with a prior, and the singular
 * values that say what the data determine (calib/fit/table_fit.h states the method). */
#include <gsl/gsl_errno.h>
#include <gsl/gsl_linalg.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <gsl/gsl_qrng.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/table_fit_problem.h"

#define HUBER_K         1.345
#define LEAST_SCATTER   0.005
#define MOST_PASSES     8    /* of reweighting */
#define MOST_ITERATIONS 8    /* of the solver, with the weights held */
#define SETTLED         1e-3 /* a pass that moves every logarithm by less is the last */
#define STEP            1e-3 /* of a logarithm, for differences */
#define EDGE            0.02 /* how near its bounds the solver starts, of the range between */
#define MOST_KEPT       0.5  /* of its prior's width, for a parameter to count as determined */
#define USUAL_JACOBIANS 80   /* that a fit takes: for the progress shown */
#define SCOUTS          128  /* points that are looked at before the solver starts */
#define SCOUT_REACH     2    /* how far they lie from the start, in widths of the prior */
#define SCOUT_SCATTER   0.05 /* with which points are compared: a fair guess of the final one */
#define SCOUT_PASSES    2    /* of reweighting, from where each of them is */
#define STARTS          4    /* the start and the best of them, from which the solver descends */
#define ROUNDS          2    /* of moving one parameter at a time before it does */
#define GRID            11   /* places that each may move to */
#define REJECTED                                                        \
  4 /* rise of what is minimised by which the data refuse a parameter's \
       start: two standard errors */

static hk_status fail_memory(hk_error *err, size_t bytes, const char *what) {
  hk_fail_memory(err, bytes, what);
  return HK_ENVIRONMENT; /* in plain sight of the analyser, which reads one file at a time */
}

static hk_status fail_gsl(hk_error *err, const char *what, int code) {
  if (code == GSL_ENOMEM) return fail_memory(err, 0, what);
  return hk_fail(err, HK_ENVIRONMENT, "%s: %s", what, gsl_strerror(code));
}

/* -- Simulating -------------------------------------------------------------------------------- */

static hk_status predict_all(const hk_fit_problem *p, const hk_machine *machines, size_t variants,
                             double (*figures)[HK_RUN_FIGURES], hk_error *errors) {
  const size_t n = p->n_cases;
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < variants * n; i++) {
    hk_error *e = &errors[i % n]; /* one a case is enough: the first is what is told */
    hk_error mine = {0};
    if (hk_run_case_predict(&p->cases[i % n], &machines[i / n], figures[i], &mine) != HK_OK) {
#pragma omp critical
      *e = mine;
    }
  }
  for (size_t i = 0; i < n; i++)
    if (errors[i].status != HK_OK)
      return hk_fail(p->err, errors[i].status, "%s", errors[i].message);
  return HK_OK;
}

static hk_machine machine_at(const hk_fit_problem *p, const double *x) {
  double values[HK_FIT_MOST_FREE];
  for (size_t i = 0; i < p->n; i++)
    values[i] = fmin(fmax(exp(x[i]), p->parameters[i].least), p->parameters[i].most);
  return hk_fit_machine(p, values);
}

hk_status hk_fit_evaluate(hk_fit_problem *p, const hk_fit_vector *x, size_t variants, double *out) {
  const size_t n = p->n_cases;
  hk_machine *machines = malloc(variants * sizeof *machines);
  double(*figures)[HK_RUN_FIGURES] = malloc(variants * n * sizeof *figures);
  hk_error *errors = calloc(n, sizeof *errors);
  hk_status status = HK_OK;
  if (!machines || !figures || !errors)
    status = fail_memory(p->err, variants * n * sizeof *figures, "the simulations of a fit");
  for (size_t v = 0; status == HK_OK && v < variants; v++) machines[v] = machine_at(p, x[v]);
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

/* -- Logarithms and what the solver sees ------------------------------------------------------- */

static double low(const hk_fit_parameter *p) {
  return log(p->least);
}

static double range(const hk_fit_parameter *p) {
  return log(p->most / p->least);
}

static double x_of(const hk_fit_parameter *p, double u) {
  return low(p) + range(p) / (1 + exp(-u));
}

static double u_of(const hk_fit_parameter *p, double x) {
  const double share = fmin(fmax((x - low(p)) / range(p), EDGE), 1 - EDGE);
  return log(share / (1 - share));
}

static double slope(const hk_fit_parameter *p, double u) {
  const double share = 1 / (1 + exp(-u));
  return range(p) * share * (1 - share);
}

static double prior_width(const hk_fit_parameter *p) {
  return log(p->prior_factor);
}

static void spread(const hk_fit_problem *p, const gsl_vector *u, double *x) {
  memcpy(x, p->x, sizeof p->x);
  for (size_t a = 0; a < p->n_active; a++)
    x[p->active[a]] = x_of(&p->parameters[p->active[a]], gsl_vector_get(u, a));
}

/* -- Derivatives ------------------------------------------------------------------------------- */

/* d ln(predicted) / d x of the active parameters at x: out[a * n_residuals + i]. Forward
 * differences, backward where forward would leave the bounds. */
static hk_status differentiate(hk_fit_problem *p, const double *x, double *out) {
  const size_t n = p->n_residuals, n_active = p->n_active;
  hk_fit_vector points[HK_FIT_MOST_FREE + 1];
  double steps[HK_FIT_MOST_FREE];
  memcpy(points[0], x, sizeof points[0]);
  for (size_t a = 0; a < n_active; a++) {
    const size_t j = p->active[a];
    steps[a] = x[j] + STEP < log(p->parameters[j].most) ? STEP : -STEP;
    memcpy(points[a + 1], x, sizeof points[0]);
    points[a + 1][j] += steps[a];
  }
  double *values = malloc((n_active + 1) * n * sizeof *values);
  if (!values) return fail_memory(p->err, n * sizeof *values, "the derivatives of a fit");
  const hk_status status = hk_fit_evaluate(p, points, n_active + 1, values);
  for (size_t a = 0; status == HK_OK && a < n_active; a++)
    for (size_t i = 0; i < n; i++)
      out[a * n + i] = (values[(a + 1) * n + i] - values[i]) / steps[a];
  free(values);
  p->jacobians++;
  if (p->options->progress)
    p->options->progress(p->options->context, fmin(0.95, (double)p->jacobians / USUAL_JACOBIANS));
  return status;
}

/* -- GSL's callbacks --------------------------------------------------------------------------- */

static int residuals_at(const gsl_vector *u, void *data, gsl_vector *f) {
  hk_fit_problem *p = data;
  hk_fit_vector x;
  spread(p, u, x);
  /* GSL's vectors here are its own and contiguous. */
  p->status = hk_fit_evaluate(p, &x, 1, f->data);
  if (p->status != HK_OK) return GSL_EBADFUNC;
  for (size_t i = 0; i < p->n_residuals; i++) f->data[i] *= p->weights[i] / p->scatter;
  for (size_t a = 0; a < p->n_active; a++) {
    const hk_fit_parameter *parameter = &p->parameters[p->active[a]];
    f->data[p->n_residuals + a] =
        (x[p->active[a]] - log(parameter->start)) / prior_width(parameter);
  }
  return GSL_SUCCESS;
}

static int jacobian_at(const gsl_vector *u, void *data, gsl_matrix *j) {
  hk_fit_problem *p = data;
  hk_fit_vector x;
  spread(p, u, x);
  double *derivatives = malloc(p->n_active * p->n_residuals * sizeof *derivatives);
  if (!derivatives) return GSL_ENOMEM;
  p->status = differentiate(p, x, derivatives);
  gsl_matrix_set_zero(j);
  for (size_t a = 0; p->status == HK_OK && a < p->n_active; a++) {
    const hk_fit_parameter *parameter = &p->parameters[p->active[a]];
    const double chain = slope(parameter, gsl_vector_get(u, a));
    for (size_t i = 0; i < p->n_residuals; i++)
      gsl_matrix_set(j, i, a,
                     derivatives[a * p->n_residuals + i] * chain * p->weights[i] / p->scatter);
    gsl_matrix_set(j, p->n_residuals + a, a, chain / prior_width(parameter));
  }
  free(derivatives);
  return p->status == HK_OK ? GSL_SUCCESS : GSL_EBADFUNC;
}

/* -- Minimising -------------------------------------------------------------------------------- */

/* No further progress and no more iterations are ends like any other: the next pass goes on. */
static hk_status drive(hk_fit_problem *p, gsl_multifit_nlinear_workspace *workspace) {
  gsl_vector *u = gsl_vector_alloc(p->n_active);
  if (!u) return fail_memory(p->err, p->n_active * sizeof(double), "a fit");
  for (size_t a = 0; a < p->n_active; a++)
    gsl_vector_set(u, a, u_of(&p->parameters[p->active[a]], p->x[p->active[a]]));
  gsl_multifit_nlinear_fdf problem = {.f = residuals_at,
                                      .df = jacobian_at,
                                      .n = p->n_residuals + p->n_active,
                                      .p = p->n_active,
                                      .params = p};
  int info = 0;
  int code = gsl_multifit_nlinear_init(u, &problem, workspace);
  if (code == GSL_SUCCESS)
    code =
        gsl_multifit_nlinear_driver(MOST_ITERATIONS, 1e-4, 1e-6, 0, NULL, NULL, &info, workspace);
  gsl_vector_free(u);
  if (p->status != HK_OK) return p->status;
  if (code != GSL_SUCCESS && code != GSL_EMAXITER && code != GSL_ENOPROG)
    return fail_gsl(p->err, "the least-squares solver", code);
  spread(p, gsl_multifit_nlinear_position(workspace), p->x);
  return HK_OK;
}

/* The scatter, and how much each residual counts. `r` is left in disorder. */
static hk_status reweigh(hk_fit_problem *p) {
  const size_t n = p->n_residuals;
  double *r = malloc(2 * n * sizeof *r);
  if (!r) return fail_memory(p->err, 2 * n * sizeof *r, "the residuals of a fit");
  const hk_status status = hk_fit_evaluate(p, &p->x, 1, r);
  if (status == HK_OK) {
    for (size_t i = 0; i < n; i++) r[n + i] = r[i] = fabs(r[i]);
    const double freedom = n > p->n_active ? (double)n / (double)(n - p->n_active) : 1;
    p->scatter = fmax(LEAST_SCATTER, 1.4826 * hk_median(r + n, n) * sqrt(freedom));
    for (size_t i = 0; i < n; i++)
      p->weights[i] = r[i] <= HUBER_K * p->scatter ? 1 : sqrt(HUBER_K * p->scatter / r[i]);
  }
  free(r);
  return status;
}

static double farthest(const double *a, const double *b, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; i++) most = fmax(most, fabs(a[i] - b[i]));
  return most;
}

static hk_status minimise(hk_fit_problem *p, int passes) {
  HK_TRY(reweigh(p));
  if (p->n_active == 0) return HK_OK;
  gsl_multifit_nlinear_parameters settings = gsl_multifit_nlinear_default_parameters();
  settings.scale = gsl_multifit_nlinear_scale_marquardt;
  gsl_multifit_nlinear_workspace *workspace = gsl_multifit_nlinear_alloc(
      gsl_multifit_nlinear_trust, &settings, p->n_residuals + p->n_active, p->n_active);
  if (!workspace) return fail_memory(p->err, p->n_residuals * sizeof(double), "a fit");
  hk_status status = HK_OK;
  double moved = 1;
  for (int pass = 0; status == HK_OK && pass < passes && moved > SETTLED; pass++) {
    hk_fit_vector before;
    memcpy(before, p->x, sizeof before);
    status = drive(p, workspace);
    if (status == HK_OK) status = reweigh(p);
    moved = farthest(before, p->x, p->n);
  }
  gsl_multifit_nlinear_free(workspace);
  return status;
}

/* -- Where to start ---------------------------------------------------------------------------- */

/* What is minimised, at a scatter that is the same for all points that are compared. */
static double badness(const hk_fit_problem *p, const double *x, const double *r, double scatter) {
  double sum = 0;
  for (size_t i = 0; i < p->n_residuals; i++) {
    const double t = fabs(r[i]) / scatter;
    sum += t <= HUBER_K ? t * t : HUBER_K * (2 * t - HUBER_K);
  }
  for (size_t j = 0; j < p->n; j++) {
    const hk_fit_parameter *parameter = &p->parameters[j];
    sum += pow((x[j] - log(parameter->start)) / prior_width(parameter), 2);
  }
  return sum;
}

/* From -1 to 1: as far below or above the start as scouts go. */
static double reach(const hk_fit_parameter *p, double share) {
  const double x = log(p->start) + SCOUT_REACH * prior_width(p) * share;
  return fmin(fmax(x, low(p)), low(p) + range(p));
}

/* The start itself and points spread evenly about it (Sobol's sequence). */
static hk_status place_scouts(const hk_fit_problem *p, hk_fit_vector *points) {
  gsl_qrng *sequence = gsl_qrng_alloc(gsl_qrng_sobol, (unsigned)p->n);
  if (!sequence) return fail_memory(p->err, sizeof *points, "the starts of a fit");
  memcpy(points[0], p->x, sizeof points[0]);
  for (int i = 1; i <= SCOUTS; i++) {
    double q[HK_FIT_MOST_FREE];
    gsl_qrng_get(sequence, q);
    for (size_t j = 0; j < p->n; j++) {
      points[i][j] = reach(&p->parameters[j], 2 * q[j] - 1);
    }
  }
  gsl_qrng_free(sequence);
  return HK_OK;
}

/* Evaluates n points and moves the best of all but the first `fixed` to place `fixed`. */
static hk_status pick_best(hk_fit_problem *p, hk_fit_vector *points, size_t n, size_t fixed,
                           size_t wanted) {
  double *r = malloc(n * p->n_residuals * sizeof *r), *bad = malloc(n * sizeof *bad);
  hk_status status = r && bad ? hk_fit_evaluate(p, points, n, r)
                              : fail_memory(p->err, n * p->n_residuals * sizeof *r, "a fit");
  for (size_t i = 0; status == HK_OK && i < n; i++)
    bad[i] = badness(p, points[i], r + i * p->n_residuals, SCOUT_SCATTER);
  for (size_t i = fixed; status == HK_OK && i < fixed + wanted; i++) {
    size_t best = i;
    for (size_t k = i; k < n; k++)
      if (bad[k] < bad[best]) best = k;
    hk_fit_vector point;
    memcpy(point, points[best], sizeof point);
    memcpy(points[best], points[i], sizeof point);
    memcpy(points[i], point, sizeof point);
    bad[best] = bad[i]; /* the other's is not needed again */
  }
  free(r);
  free(bad);
  return status;
}

/* Each parameter in turn to the best place of a grid about its start, the others held: the solver
 * sees slopes only, and a parameter that nothing hangs on here has none. */
static hk_status move_one_at_a_time(hk_fit_problem *p, double *x) {
  for (size_t turn = 0; turn < ROUNDS * p->n; turn++) {
    const size_t j = turn % p->n;
    const hk_fit_parameter *parameter = &p->parameters[j];
    hk_fit_vector points[GRID + 1];
    for (int i = 0; i <= GRID; i++) memcpy(points[i], x, sizeof points[i]);
    for (int i = 0; i < GRID; i++) points[i + 1][j] = reach(parameter, 2.0 * i / (GRID - 1) - 1);
    HK_TRY(pick_best(p, points, GRID + 1, 0, 1));
    memcpy(x, points[0], sizeof points[0]);
  }
  return HK_OK;
}

static hk_status quality(hk_fit_problem *p, double scatter, double *out) {
  double *r = malloc(p->n_residuals * sizeof *r);
  if (!r) return fail_memory(p->err, p->n_residuals * sizeof *r, "a fit");
  const hk_status status = hk_fit_evaluate(p, &p->x, 1, r);
  if (status == HK_OK) *out = badness(p, p->x, r, scatter);
  free(r);
  return status;
}

/* A simulator has several valleys: what binds at one point is idle at another. */
static hk_status descend(hk_fit_problem *p) {
  hk_fit_vector points[SCOUTS + 1], best;
  double least = INFINITY, bad = 0;
  memcpy(best, p->x, sizeof best);
  if (p->n > 0) HK_TRY(place_scouts(p, points));
  if (p->n > 0) HK_TRY(pick_best(p, points, SCOUTS + 1, 1, STARTS - 1));
  for (int i = 0; p->n > 0 && i < STARTS; i++) {
    HK_TRY(move_one_at_a_time(p, points[i]));
    memcpy(p->x, points[i], sizeof p->x);
    HK_TRY(minimise(p, SCOUT_PASSES));
    HK_TRY(quality(p, SCOUT_SCATTER, &bad));
    if (bad >= least) continue;
    least = bad;
    memcpy(best, p->x, sizeof best);
  }
  memcpy(p->x, best, sizeof best);
  return minimise(p, MOST_PASSES);
}

/* -- What the data determine ------------------------------------------------------------------- */

/* Posterior covariance in units of the priors' widths, (1 + A' A)^-1 with A = J w / s, from the
 * singular values of A: V diag(1 / (1 + S^2)) V'. `a` is overwritten. */
static int posterior(gsl_matrix *a, size_t n, double (*covariance)[HK_FIT_MOST_FREE]) {
  gsl_matrix *v = gsl_matrix_alloc(n, n);
  gsl_vector *s = gsl_vector_alloc(n);
  const int code = v && s ? gsl_linalg_SV_decomp_jacobi(a, v, s) : GSL_ENOMEM;
  for (size_t i = 0; code == GSL_SUCCESS && i < n; i++) {
    for (size_t j = 0; j < n; j++) {
      covariance[i][j] = 0;
      for (size_t k = 0; k < n; k++)
        covariance[i][j] +=
            gsl_matrix_get(v, i, k) * gsl_matrix_get(v, j, k) / (1 + pow(gsl_vector_get(s, k), 2));
    }
  }
  gsl_matrix_free(v);
  gsl_vector_free(s);
  return code;
}

static hk_status weigh_knowledge(hk_fit_problem *p, double (*covariance)[HK_FIT_MOST_FREE]) {
  const size_t n = p->n_active, m = p->n_residuals > n ? p->n_residuals : n;
  double *derivatives = malloc(n * p->n_residuals * sizeof *derivatives);
  gsl_matrix *a = gsl_matrix_calloc(m, n); /* the decomposition wants at least as many rows */
  hk_status status = derivatives && a ? differentiate(p, p->x, derivatives)
                                      : fail_memory(p->err, m * n * sizeof(double), "a fit");
  if (status == HK_OK) {
    for (size_t i = 0; i < p->n_residuals; i++)
      for (size_t j = 0; j < n; j++)
        gsl_matrix_set(a, i, j,
                       derivatives[j * p->n_residuals + i] * p->weights[i] / p->scatter *
                           prior_width(&p->parameters[p->active[j]]));
    const int code = posterior(a, n, covariance);
    if (code != GSL_SUCCESS) status = fail_gsl(p->err, "the singular values of a fit", code);
  }
  free(derivatives);
  gsl_matrix_free(a);
  return status;
}

/* The active parameter of which the data know least, if that is too little; n_active: none. */
static size_t least_known(hk_fit_problem *p, double (*covariance)[HK_FIT_MOST_FREE]) {
  size_t worst = p->n_active;
  double most = MOST_KEPT;
  for (size_t a = 0; a < p->n_active; a++) {
    hk_fit_parameter *parameter = &p->parameters[p->active[a]];
    parameter->kept = sqrt(covariance[a][a]);
    if (parameter->kept <= most || parameter->one_sided) continue;
    most = parameter->kept;
    worst = a;
  }
  return worst;
}

/* Puts an active parameter back to its start and fits the others again. Where the data refuse that,
 * it stays: they do not say where it is, but that it is not there. */
static hk_status give_back(hk_fit_problem *p, size_t a) {
  const hk_fit_problem before = *p;
  double with = 0, without = 0;
  const size_t j = p->active[a];
  HK_TRY(quality(p, before.scatter, &with));
  p->x[j] = log(p->parameters[j].start);
  p->n_active--;
  memmove(&p->active[a], &p->active[a + 1], (p->n_active - a) * sizeof p->active[a]);
  HK_TRY(minimise(p, MOST_PASSES));
  HK_TRY(quality(p, before.scatter, &without));
  if (without <= with + REJECTED) return HK_OK;
  memcpy(p->x, before.x, sizeof p->x);
  memcpy(p->active, before.active, sizeof p->active);
  p->n_active = before.n_active;
  p->parameters[j].one_sided = true;
  return reweigh(p);
}

static void record(hk_fit_problem *p, double (*covariance)[HK_FIT_MOST_FREE], hk_fit *fit) {
  for (size_t i = 0; i < p->n; i++)
    for (size_t j = 0; j < p->n; j++) fit->correlation[i][j] = NAN;
  for (size_t a = 0; a < p->n_active; a++) {
    const size_t i = p->active[a];
    hk_fit_parameter *parameter = &p->parameters[i];
    const double at = (p->x[i] - low(parameter)) / range(parameter);
    parameter->determined = true;
    parameter->at_bound = at < 0.01 || at > 0.99;
    parameter->value = fmin(fmax(hk_fit_rounded(exp(p->x[i])), parameter->least), parameter->most);
    parameter->standard_error = parameter->value * prior_width(parameter) * sqrt(covariance[a][a]);
    p->x[i] = log(parameter->value);
    for (size_t b = 0; b < p->n_active; b++)
      fit->correlation[i][p->active[b]] =
          covariance[a][b] / sqrt(covariance[a][a] * covariance[b][b]);
  }
  for (size_t i = 0; i < p->n_residuals; i++) fit->outliers += p->weights[i] * p->weights[i] < 0.5;
  fit->scatter = p->scatter;
}

hk_status hk_fit_solve(hk_fit_problem *p, hk_fit *fit) {
  double covariance[HK_FIT_MOST_FREE][HK_FIT_MOST_FREE] = {{0}};
  HK_TRY(descend(p));
  for (;;) {
    if (p->n_active > 0) HK_TRY(weigh_knowledge(p, covariance));
    const size_t a = least_known(p, covariance);
    if (a == p->n_active) break;
    HK_TRY(give_back(p, a));
  }
  record(p, covariance, fit);
  return HK_OK;
}
