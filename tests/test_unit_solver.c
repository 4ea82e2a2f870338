/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The solver of both fits on small models: the example of its header, outliers, bounds, unknowns
 * that the data do not determine, failing models. */
#include "calib/fit/solver.h"

#include <math.h>

#include "tests/random.h"

enum { POINTS = 12 };

/* rate = v[0] (1 - exp(-threads / v[1])) */
typedef struct {
  size_t n;
  double threads[POINTS], measured[POINTS];
} curve;

static hk_status off_curve(void *context, const double *values, size_t variants, double *out,
                           hk_error *err) {
  (void)err;
  const curve *c = context;
  for (size_t v = 0; v < variants; v++)
    for (size_t i = 0; i < c->n; i++)
      out[v * c->n + i] =
          log(values[2 * v] * -expm1(-c->threads[i] / values[2 * v + 1]) / c->measured[i]);
  return HK_OK;
}

static void solve(const curve *c, hk_unknown *unknowns, hk_solve_problem *problem) {
  hk_error err = {0};
  curve copy = *c;
  unknowns[0] = (hk_unknown){.start = 92, .least = 9.2, .most = 9200, .width = log(10)};
  unknowns[1] = (hk_unknown){.start = 6.7, .least = 0.3, .most = 300, .width = log(3)};
  problem->unknowns = unknowns;
  problem->n = 2;
  problem->n_residuals = c->n;
  problem->residuals = off_curve;
  problem->context = &copy;
  problem->scale = problem->noise = 0.01;
  problem->err = &err;
  must(hk_solve(problem), &err);
}

static void check_near(double value, double expected, double share) {
  if (!(fabs(value / expected - 1) <= share))
    fail_msg("%.6g is %.3g %% off %.6g", value, 100 * (value / expected - 1), expected);
}

static const curve EXAMPLE = {4, {4, 8, 12, 16}, {41, 64, 76, 83}};

static void the_header_s_example_is_true(void **state) {
  (void)state;
  hk_unknown u[2];
  hk_solve_problem problem = {0};
  solve(&EXAMPLE, u, &problem);
  assert_true(u[0].determined && u[1].determined && !u[0].one_sided && !u[1].one_sided);
  check_near(u[0].value, 91.4, 0.001);
  check_near(u[1].value, 6.70, 0.001);
  check_near(u[0].error, 0.014, 0.05);
  check_near(u[1].error, 0.027, 0.05);
  assert_true(problem.correlation[0][0] == 1 && problem.correlation[0][1] > 0.8);

  solve(&(curve){1, {16}, {83}}, u, &problem);
  assert_true(u[0].determined && !u[1].determined);
  assert_true(u[1].value == 6.7 && u[1].error == 0 && u[1].kept > 0.5);
  check_near(u[0].value, 83 / -expm1(-16 / 6.7), 0.001);
  assert_true(isnan(problem.correlation[0][1]));
}

/* -- One unknown ------------------------------------------------------------------------------- */

typedef struct {
  size_t n;
  const double *measured;
} line;

static hk_status off_line(void *context, const double *values, size_t variants, double *out,
                          hk_error *err) {
  const line *l = context;
  for (size_t v = 0; v < variants; v++) {
    if (values[v] > 1e6) return hk_fail(err, HK_NO, "no such machine");
    for (size_t i = 0; i < l->n; i++) out[v * l->n + i] = log(values[v] / l->measured[i]);
  }
  return HK_OK;
}

static hk_solve_problem problem_of(line *l, hk_unknown *u, hk_error *err) {
  return (hk_solve_problem){.unknowns = u,
                            .n = 1,
                            .n_residuals = l->n,
                            .residuals = off_line,
                            .context = l,
                            .scale = 0.05,
                            .noise = 0.001,
                            .rule = HK_SCALE_BY_MEDIAN,
                            .err = err};
}

/* Nineteen measurements near 10 and one of 100. A mean of logarithms would give 11.2. */
static void outliers_count_little(void **state) {
  (void)state;
  hk_error err = {0};
  double measured[20];
  for (int i = 0; i < 20; i++) measured[i] = 10 * exp(0.01 * (i % 5 - 2));
  measured[7] = 100;
  line l = {20, measured};
  hk_unknown u = {.start = 8, .least = 1, .most = 1000, .width = log(3)};
  hk_solve_problem problem = problem_of(&l, &u, &err);
  must(hk_solve(&problem), &err);
  check_near(u.value, 10, 0.01);
  assert_int_equal(problem.outliers, 1);
  assert_true(problem.scatter > 0.005 && problem.scatter < 0.03);
  assert_true(u.error < 0.01);
}

/* The data want 20, above the upper bound of 12: the value is the bound. */
static void bounds_hold(void **state) {
  (void)state;
  hk_error err = {0};
  static const double measured[] = {19.8, 20, 20.1, 20.2, 20};
  line l = {5, measured};
  for (int polish = 0; polish < 2; polish++) {
    hk_unknown u = {.start = 12, .least = 1, .most = 12, .width = log(3)};
    hk_solve_problem problem = problem_of(&l, &u, &err);
    problem.polish = polish;
    must(hk_solve(&problem), &err);
    assert_true(u.value <= 12);
    check_near(u.value, 12, 1e-3);
    u = (hk_unknown){.start = 12, .least = 12, .most = 12, .width = log(3)};
    must(hk_solve(&problem), &err);
    assert_true(u.value == 12 && !u.determined);
  }
}

/* One measurement, four scales (0.2 = 4 x 0.05) below the start, with a prior of the same width as
 * the data's. The value lies between both and is marked one-sided. A start 0.4 scales away is kept.
 */
static void a_contradicted_start_is_left(void **state) {
  (void)state;
  hk_error err = {0};
  static const double measured[] = {10};
  line l = {1, measured};
  hk_unknown u = {.start = 10 * exp(0.2), .least = 1, .most = 100, .width = 0.05};
  hk_solve_problem problem = problem_of(&l, &u, &err);
  problem.rule = HK_SCALE_BY_SUM;
  must(hk_solve(&problem), &err);
  assert_true(u.one_sided && u.determined);
  assert_true(u.value > 10 && u.value < 0.95 * u.start);
  assert_true(u.kept > 0.5 && u.kept < 1);

  u.start = 10 * exp(0.02);
  must(hk_solve(&problem), &err);
  assert_true(!u.one_sided && !u.determined && u.value == u.start);
}

/* -- Errors ------------------------------------------------------------------------------------ */

/* Eight measurements, in clusters of `size` equal ones. */
static hk_unknown known_to(size_t size, bool intervals) {
  hk_error err = {0};
  double measured[8];
  size_t clusters[8];
  for (size_t i = 0; i < 8; i++) {
    clusters[i] = i / size;
    measured[i] = 10 * exp(clusters[i] % 2 == 0 ? 0.01 : -0.01);
  }
  line l = {8, measured};
  hk_unknown u = {.start = 9, .least = 1, .most = 100, .width = log(3)};
  hk_solve_problem problem = problem_of(&l, &u, &err);
  problem.rule = HK_SCALE_BY_SUM;
  problem.intervals = intervals;
  problem.clusters = clusters;
  must(hk_solve(&problem), &err);
  assert_true(u.determined && !u.flat && u.low < u.value && u.value < u.high);
  return u;
}

/* The model is linear, so intervals of the profile likelihood agree with linear theory. A cluster
 * of n equal residuals counts as one: the error grows by sqrt(n). */
static void intervals_account_for_clusters(void **state) {
  (void)state;
  const double linear = known_to(1, false).error;
  check_near(known_to(1, true).error, linear, 0.02);
  check_near(known_to(2, true).error, sqrt(2) * linear, 0.02);
  const hk_unknown u = known_to(4, true);
  check_near(u.error, 2 * linear, 0.02);
  check_near(u.high, u.value * exp(u.error), 0.002);
}

/* Model: max(unknown, 10), as if either of two resources can limit. */
static hk_status off_kink(void *context, const double *values, size_t variants, double *out,
                          hk_error *err) {
  (void)context;
  (void)err;
  for (size_t v = 0; v < variants; v++)
    for (int i = 0; i < 4; i++) out[4 * v + (size_t)i] = log(fmax(values[v], 10) / 10);
  return HK_OK;
}

/* Linear theory uses the slope above 10 and gives a small error, although every value below 10 fits
 * as well. The interval of the profile likelihood extends below 8. */
static void intervals_see_beyond_a_kink(void **state) {
  (void)state;
  for (int intervals = 0; intervals < 2; intervals++) {
    hk_error err = {0};
    hk_unknown u = {.start = 40, .least = 1, .most = 100, .width = log(3)};
    hk_solve_problem problem = {.unknowns = &u,
                                .n = 1,
                                .n_residuals = 4,
                                .residuals = off_kink,
                                .scale = 0.05,
                                .noise = 0.05,
                                .intervals = intervals,
                                .err = &err};
    must(hk_solve(&problem), &err);
    assert_true(u.determined && u.value > 10 && u.value < 11);
    if (intervals) {
      assert_true(u.error > 0.1 && u.low < 8 && u.high < 11);
    } else {
      assert_true(u.error < 0.06);
    }
  }
}

/* Model: a step at 5 without a slope anywhere. Only scouts find the lower side. */
static hk_status off_step(void *context, const double *values, size_t variants, double *out,
                          hk_error *err) {
  (void)context;
  (void)err;
  for (size_t v = 0; v < variants; v++) out[v] = values[v] < 5 ? 0 : 1;
  return HK_OK;
}

static void scouts_find_a_step(void **state) {
  (void)state;
  hk_error err = {0};
  for (int scouts = 0; scouts <= 32; scouts += 32) {
    hk_unknown u = {.start = 10, .least = 1, .most = 100, .width = log(3)};
    hk_solve_problem problem = {.unknowns = &u,
                                .n = 1,
                                .n_residuals = 1,
                                .residuals = off_step,
                                .scale = 0.1,
                                .scouts = scouts,
                                .err = &err};
    must(hk_solve(&problem), &err);
    assert_true(scouts > 0 ? u.value < 5 && u.determined : u.value == 10);
  }
}

/* A narrow step: 0 from 60 to 70, else 1. */
static hk_status off_narrow_step(void *context, const double *values, size_t variants, double *out,
                                 hk_error *err) {
  (void)context;
  (void)err;
  for (size_t v = 0; v < variants; v++) out[v] = values[v] > 60 && values[v] < 70 ? 0 : 1;
  return HK_OK;
}

/* Eleven points from 25 to 100, the bound, are 15 % apart. */
static void a_grid_ends_at_the_bounds(void **state) {
  (void)state;
  hk_error err = {0};
  hk_unknown u = {.start = 100, .least = 3, .most = 100, .width = log(2)};
  hk_solve_problem problem = {.unknowns = &u,
                              .n = 1,
                              .n_residuals = 1,
                              .residuals = off_narrow_step,
                              .scale = 0.1,
                              .search = HK_SEARCH_ORDERS,
                              .scouts = 1,
                              .err = &err};
  must(hk_solve(&problem), &err);
  assert_true(u.determined && u.value > 60 && u.value < 70);
}

/* Times of 10, explained by the greater of two unknowns: by v[exact] exactly, by the other such
 * that every second time is 20 % too long. */
static hk_status off_greater(void *context, const double *values, size_t variants, double *out,
                             hk_error *err) {
  (void)err;
  const size_t exact = *(const size_t *)context;
  for (size_t v = 0; v < variants; v++)
    for (size_t i = 0; i < 4; i++) {
      const double other = values[2 * v + 1 - exact] * (i % 2 == 0 ? 1 : 1.2);
      out[4 * v + i] = log(fmax(values[2 * v + exact], other) / 10);
    }
  return HK_OK;
}

/* The unknown that is moved first rises to 10 and hides the other. Only the order that begins with
 * the exact one ends at the least objective. */
static void both_orders_of_unknowns_are_tried(void **state) {
  (void)state;
  for (size_t exact = 0; exact < 2; exact++) {
    hk_error err = {0};
    /* 10 is a point of the grid: start x exp(2 width x 0.6) */
    const hk_unknown one = {.start = 1, .least = 0.001, .most = 1000, .width = log(10) / 1.2};
    hk_unknown u[2] = {one, one};
    hk_solve_problem problem = {.unknowns = u,
                                .n = 2,
                                .n_residuals = 4,
                                .residuals = off_greater,
                                .context = &exact,
                                .scale = 0.05,
                                .noise = 0.05,
                                .search = HK_SEARCH_ORDERS,
                                .scouts = 1,
                                .err = &err};
    must(hk_solve(&problem), &err);
    assert_true(u[exact].determined && !u[1 - exact].determined);
    check_near(u[exact].value, 10, 0.01);
    assert_true(u[1 - exact].value == u[1 - exact].start);
  }
}

static void failures_are_passed_on(void **state) {
  (void)state;
  hk_error err = {0};
  static const double measured[] = {10, 10};
  line l = {2, measured};
  hk_unknown u = {.start = 2e6, .least = 1, .most = 1e9, .width = log(3)};
  hk_solve_problem problem = problem_of(&l, &u, &err);
  assert_int_equal(hk_solve(&problem), HK_NO);
  assert_string_equal(err.message, "no such machine");
}

/* A curve of which evaluation number `fails_at`, from 1, fails. */
typedef struct {
  curve curve;
  int calls, fails_at;
} failing;

static hk_status fail_once(void *context, const double *values, size_t variants, double *out,
                           hk_error *err) {
  failing *f = context;
  if (++f->calls == f->fails_at) return hk_fail_memory(err, 1, "a test");
  return off_curve(&f->curve, values, variants, out, err);
}

/* A failure of any evaluation of the search is returned. */
static void every_failure_is_returned(void **state) {
  (void)state;
  failing f = {.curve = EXAMPLE, .fails_at = 1};
  for (;; f.fails_at++, f.calls = 0) {
    hk_error err = {0};
    hk_unknown u[2] = {{.start = 92, .least = 9.2, .most = 9200, .width = log(10)},
                       {.start = 6.7, .least = 0.3, .most = 300, .width = log(3)}};
    hk_solve_problem problem = {.unknowns = u,
                                .n = 2,
                                .n_residuals = f.curve.n,
                                .residuals = fail_once,
                                .context = &f,
                                .scale = 0.01,
                                .noise = 0.01,
                                .err = &err};
    const hk_status status = hk_solve(&problem);
    if (f.calls < f.fails_at) {
      must(status, &err);
      break;
    }
    assert_int_equal(status, HK_ENVIRONMENT);
    assert_non_null(strstr(err.message, "out of memory"));
  }
  assert_true(f.fails_at > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_header_s_example_is_true),
      cmocka_unit_test(outliers_count_little),
      cmocka_unit_test(bounds_hold),
      cmocka_unit_test(a_contradicted_start_is_left),
      cmocka_unit_test(intervals_account_for_clusters),
      cmocka_unit_test(intervals_see_beyond_a_kink),
      cmocka_unit_test(scouts_find_a_step),
      cmocka_unit_test(a_grid_ends_at_the_bounds),
      cmocka_unit_test(both_orders_of_unknowns_are_tried),
      cmocka_unit_test(failures_are_passed_on),
      cmocka_unit_test(every_failure_is_returned),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
