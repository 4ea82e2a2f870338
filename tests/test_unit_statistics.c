/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Summaries of measurements against tables, values by hand, and the share of intervals of random
 * samples that contain the true median. */
#include "calib/probes/statistics.h"

#include <math.h>

#include "tests/random.h"

#define MOST 64

static hk_summary summary_of(const double *values, size_t n) {
  hk_summary s;
  hk_error err = {0};
  must(hk_summarise(values, n, &s, &err), &err);
  assert_int_equal(s.n, n);
  return s;
}

/* Summary of the numbers 1 to n in unsorted order. */
static hk_summary of_ranks(size_t n) {
  double values[MOST];
  for (size_t i = 0; i < n; i++) values[i] = (double)((i * 37 + 11) % n) + 1;
  if (n % 37 == 0) fail_msg("37 does not step through %zu", n);
  return summary_of(values, n);
}

/* The 95 % interval of a median is from the l-th smallest to the l-th largest of n values. The
 * table has n and l as in tables of the sign test. The values are 1 to n, so the limits are l and
 * n + 1 - l. */
static void test_interval_table(void **state) {
  (void)state;
  static const struct {
    size_t n;
    double low;
  } table[] = {{6, 1},  {7, 1},  {8, 1},  {9, 2},  {10, 2},  {11, 2},  {12, 3},
               {15, 4}, {17, 5}, {20, 6}, {25, 8}, {30, 10}, {40, 14}, {50, 18}};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    const hk_summary s = of_ranks(table[i].n);
    const double n = (double)table[i].n;
    if (s.low != table[i].low || s.high != n + 1 - table[i].low)
      fail_msg("n %zu: %g .. %g", table[i].n, s.low, s.high);
    assert_true(s.least == 1 && s.most == n && s.median == (n + 1) / 2);
  }
}

static void test_no_interval_below_six(void **state) {
  (void)state;
  for (size_t n = 1; n < 6; n++) {
    const hk_summary s = of_ranks(n);
    assert_true(s.low == -INFINITY && s.high == INFINITY);
    assert_true(hk_summary_spread(&s) == INFINITY);
  }
}

/* An outlier changes neither the median nor the deviation, and the values are not modified. */
static void test_by_hand(void **state) {
  (void)state;
  const double values[] = {10, 12, 9, 1000, 11, 8, 13};
  double copy[7];
  memcpy(copy, values, sizeof copy);
  const hk_summary odd = summary_of(copy, 7);
  assert_memory_equal(copy, values, sizeof copy);
  assert_true(odd.median == 11 && odd.mad == 2 && odd.least == 8 && odd.most == 1000);
  const hk_summary even = summary_of(values, 6);
  assert_true(even.median == 10.5 && even.mad == 1.5);
  assert_true(fabs(hk_summary_spread(&even) - (1000 - 8) / 2.0 / 10.5) < 1e-12);
  const double one[] = {3};
  const hk_summary single = summary_of(one, 1);
  assert_true(single.median == 3 && single.mad == 0 && single.least == 3 && single.most == 3);
}

static void test_spread_of_constants(void **state) {
  (void)state;
  const double zeros[8] = {0}, ones[] = {-1, -1, -1, -1, -1, -1};
  const double about_zero[] = {-3, -2, -1, 1, 2, 3}, below[] = {-11, -10, -10, -10, -10, -9};
  hk_summary s = summary_of(zeros, 8);
  assert_true(hk_summary_spread(&s) == 0);
  s = summary_of(ones, 6);
  assert_true(hk_summary_spread(&s) == 0);
  s = summary_of(about_zero, 6);
  assert_true(hk_summary_spread(&s) == INFINITY);
  s = summary_of(below, 6);
  assert_true(fabs(hk_summary_spread(&s) - 0.1) < 1e-15);
}

static void test_refused(void **state) {
  (void)state;
  const double values[] = {1, NAN, 3}, endless[] = {INFINITY};
  hk_summary s;
  hk_error err = {0};
  assert_int_equal(hk_summarise(values, 0, &s, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "at least one"));
  assert_int_equal(hk_summarise(values, 3, &s, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "value 2 of 3"));
  assert_int_equal(hk_summarise(endless, 1, &s, &err), HK_INPUT);
}

/* Share of intervals of n draws that contain the true median, 0, of an asymmetric distribution with
 * a heavy tail. The share must not depend on the distribution. */
static double coverage(size_t n, int tries, random_stream *r) {
  int held = 0;
  for (int t = 0; t < tries; t++) {
    double values[MOST];
    for (size_t i = 0; i < n; i++) {
      const double u = uniform(r) - 0.5;
      values[i] = u < 0 ? u : u / (0.5 - u);
    }
    const hk_summary s = summary_of(values, n);
    held += s.low <= 0 && 0 <= s.high;
  }
  return held / (double)tries;
}

static void test_coverage(void **state) {
  (void)state;
  enum { TRIES = 20000 };
  static const struct {
    size_t n;
    double exact; /* 1 - 2 P(Binomial(n, 1/2) < l) */
  } table[] = {{6, 1 - 2 / 64.0}, {10, 1 - 22 / 1024.0}, {20, 0.9586}};
  random_stream r = {4};
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    const double p = table[i].exact, got = coverage(table[i].n, TRIES, &r);
    /* Four standard errors of a share of TRIES. */
    if (fabs(got - p) > 4 * sqrt(p * (1 - p) / TRIES))
      fail_msg("n %zu: %.4f of intervals hold the median, not %.4f", table[i].n, got, p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_interval_table), cmocka_unit_test(test_no_interval_below_six),
      cmocka_unit_test(test_by_hand),        cmocka_unit_test(test_spread_of_constants),
      cmocka_unit_test(test_refused),        cmocka_unit_test(test_coverage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
