/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fits time = latency + size / rate to operations of several sizes by weighted linear least
 * squares, in as many segments as the Bayesian information criterion selects. */
#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit.h>
#include <math.h>
#include <stdlib.h>

#include "calib/fit/probe_fit_draft.h"

#define LEAST_SIZES 3 /* distinct sizes of a segment: an outlier does not make a segment */

/* One straight piece, time = latency + size x per_unit, in ns. */
typedef struct {
  double latency, per_unit;
  double latency_error, per_unit_error;
  double squares; /* of relative residuals */
} piece;

static int by_size(const void *a, const void *b) {
  const hk_line_point *x = a, *y = b;
  if (x->size != y->size) return x->size < y->size ? -1 : 1;
  return (x->rate > y->rate) - (x->rate < y->rate);
}

static double time_of(const hk_line_point *p) {
  return p->size / p->rate * 1e9;
}

double hk_bic(double squares, size_t n, size_t free) {
  const double mean = fmax(squares / (double)n, HK_INSTRUMENT * HK_INSTRUMENT);
  return (double)n * log(mean) + (double)free * log((double)n);
}

/* -- One piece --------------------------------------------------------------------------------- */

static double squares_of(const hk_line_point *points, size_t n, double latency, double per_unit) {
  double sum = 0;
  for (size_t i = 0; i < n; i++)
    sum += pow((latency + points[i].size * per_unit) / time_of(&points[i]) - 1, 2);
  return sum;
}

static double scatter_of(double squares, size_t n, size_t free) {
  return n > free ? sqrt(squares / (double)(n - free)) : 0;
}

/* The scatter used for standard errors: that of the residuals, at least the points' own root mean
 * square error. Few residuals can be small by chance. */
static double believed_scatter(const hk_line_point *points, size_t n, double squares, size_t free) {
  double own = 0;
  for (size_t i = 0; i < n; i++) own += points[i].error * points[i].error;
  return fmax(sqrt(own / (double)n), scatter_of(squares, n, free));
}

/* A line through the origin: latency 0. */
static piece proportional(const hk_line_point *points, size_t n) {
  double ones = 0, squares = 0;
  for (size_t i = 0; i < n; i++) {
    const double share = points[i].size / time_of(&points[i]);
    ones += share;
    squares += share * share;
  }
  piece p = {.per_unit = ones / squares};
  p.squares = squares_of(points, n, 0, p.per_unit);
  p.per_unit_error = believed_scatter(points, n, p.squares, 1) / sqrt(squares);
  return p;
}

static int regress(const hk_line_point *points, size_t n, gsl_matrix *x, gsl_vector *w,
                   gsl_vector *y, gsl_multifit_linear_workspace *work, piece *out) {
  double c[2], v[4], chi2;
  gsl_vector_view coefficients = gsl_vector_view_array(c, 2);
  gsl_matrix_view covariance = gsl_matrix_view_array(v, 2, 2);
  for (size_t i = 0; i < n; i++) {
    const double time = time_of(&points[i]);
    gsl_matrix_set(x, i, 0, 1);
    gsl_matrix_set(x, i, 1, points[i].size);
    gsl_vector_set(w, i, 1 / (time * time)); /* errors are relative */
    gsl_vector_set(y, i, time);
  }
  const int code =
      gsl_multifit_wlinear(x, w, y, &coefficients.vector, &covariance.matrix, &chi2, work);
  const double scatter = believed_scatter(points, n, chi2, 2);
  *out = (piece){.latency = c[0],
                 .per_unit = c[1],
                 .latency_error = scatter * sqrt(v[0]),
                 .per_unit_error = scatter * sqrt(v[3]),
                 .squares = chi2};
  return code;
}

static hk_status fit_piece(const hk_line_point *points, size_t n, piece *out, hk_error *err) {
  *out = proportional(points, n);
  if (n < 2 || points[0].size == points[n - 1].size) return HK_OK;
  gsl_matrix *x = gsl_matrix_alloc(n, 2);
  gsl_vector *w = gsl_vector_alloc(n), *y = gsl_vector_alloc(n);
  gsl_multifit_linear_workspace *work = gsl_multifit_linear_alloc(n, 2);
  piece free;
  const int code = x && w && y && work ? regress(points, n, x, w, y, work, &free) : GSL_ENOMEM;
  gsl_matrix_free(x);
  gsl_vector_free(w);
  gsl_vector_free(y);
  if (work) gsl_multifit_linear_free(work);
  if (code == GSL_ENOMEM) return hk_fail_memory(err, n * sizeof *points, "a line's fit");
  if (code != GSL_SUCCESS)
    return hk_fail(err, HK_ENVIRONMENT, "the fit of latency and bandwidth: %s", gsl_strerror(code));
  /* A negative latency or an infinite rate is not physical: the line through the origin stays. */
  if (free.latency >= 0 && free.per_unit > 0) *out = free;
  return HK_OK;
}

/* -- Segments ---------------------------------------------------------------------------------- */

typedef struct {
  piece pieces[HK_LINE_SEGMENTS];
  size_t begin[HK_LINE_SEGMENTS + 1]; /* first point of each piece; begin[n]: number of points */
  size_t n;
  double squares, bic;
} cut;

static size_t distinct(const hk_line_point *points, size_t n) {
  size_t sizes = n > 0;
  for (size_t i = 1; i < n; i++) sizes += points[i].size != points[i - 1].size;
  return sizes;
}

static hk_status fit_pieces(const hk_line_point *points, cut *c, hk_error *err) {
  c->squares = 0;
  for (size_t i = 0; i < c->n; i++) {
    const size_t count = c->begin[i + 1] - c->begin[i];
    HK_TRY(fit_piece(points + c->begin[i], count, &c->pieces[i], err));
    c->squares += c->pieces[i].squares;
  }
  /* Parameters: latency and rate of each piece, and n - 1 borders. */
  c->bic = hk_bic(c->squares, c->begin[c->n], 3 * c->n - 1);
  return HK_OK;
}

static bool may_cut(const hk_line_point *points, size_t from, size_t at, size_t n) {
  return points[at].size != points[at - 1].size &&
         distinct(points + from, at - from) >= LEAST_SIZES &&
         distinct(points + at, n - at) >= LEAST_SIZES;
}

/* Fits `c` and, recursively, `c` with one more border at each place after its last. */
static hk_status try_cuts(const hk_line_point *points, size_t n, const cut *c, cut *best,
                          hk_error *err) {
  cut mine = *c;
  HK_TRY(fit_pieces(points, &mine, err));
  if (mine.bic < best->bic) *best = mine;
  if (mine.n == HK_LINE_SEGMENTS) return HK_OK;
  const size_t from = mine.begin[mine.n - 1];
  for (size_t at = from + 1; at < n; at++) {
    if (!may_cut(points, from, at, n)) continue;
    cut more = mine;
    more.begin[more.n++] = at;
    more.begin[more.n] = n;
    HK_TRY(try_cuts(points, n, &more, best, err));
  }
  return HK_OK;
}

/* The latency that fits all sizes best at this rate: weighted mean of time - size x per_unit. */
static void common_latency(const hk_line_point *points, size_t n, double per_unit, hk_line *line) {
  double weights = 0, sum = 0;
  for (size_t i = 0; i < n; i++) {
    const double time = time_of(&points[i]), weight = 1 / (time * time);
    weights += weight;
    sum += weight * (time - points[i].size * per_unit);
  }
  line->latency_ns = fmax(0, sum / weights);
  const double squares = squares_of(points, n, line->latency_ns, per_unit);
  line->latency_error = believed_scatter(points, n, squares, 1) / sqrt(weights);
}

hk_status hk_line_fit(hk_line_point *points, size_t n, hk_line *line, hk_error *err) {
  *line = (hk_line){0};
  qsort(points, n, sizeof *points, by_size);
  cut best = {.bic = INFINITY};
  const cut whole = {.begin = {0, n}, .n = 1};
  HK_TRY(try_cuts(points, n, &whole, &best, err));
  line->n = best.n;
  line->sizes = distinct(points, n);
  line->scatter = scatter_of(best.squares, n, 2 * best.n);
  for (size_t i = 0; i < best.n; i++) {
    const piece *p = &best.pieces[i];
    line->segments[i] =
        (hk_line_segment){.least = points[best.begin[i]].size,
                          .latency_ns = p->latency,
                          .latency_error = p->latency_error,
                          .rate = 1e9 / p->per_unit,
                          .rate_error = 1e9 / p->per_unit * p->per_unit_error / p->per_unit};
  }
  if (line->sizes > 1) common_latency(points, n, best.pieces[best.n - 1].per_unit, line);
  return HK_OK;
}
