/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Latency and bandwidth fitted to made-up rates: with one segment, with two, and with too few
 * sizes for either. */
#include <math.h>

#include "calib/fit/probe_fit_draft.h"
#include "tests/random.h"

#define GB  1e9
#define MIB (1 << 20)

static void check_near(const char *what, double value, double expected, double share) {
  if (!(fabs(value / expected - 1) <= share))
    fail_msg("%s: %.6g is %.3g %% off %.6g", what, value, 100 * (value / expected - 1), expected);
}

/* Approximately standard normal: a sum of 12 uniform numbers, less 6. */
static double noise(random_stream *r) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += uniform(r);
  return sum;
}

static size_t line_points(hk_line_point *points, double latency, double rate, double bend,
                          double rate_before, double scatter) {
  random_stream r = {7};
  size_t n = 0;
  for (int64_t bytes = 65536; bytes <= 1 << 30; bytes *= 2) {
    const double size = (double)bytes;
    const double time = size < bend ? size / rate_before : latency + size / rate;
    points[n++] = (hk_line_point){size, size / (time * (1 + scatter * noise(&r))), scatter};
  }
  return n;
}

static void test_one_segment(void **state) {
  (void)state;
  hk_line_point points[40];
  hk_line line;
  hk_error err = {0};
  for (int percent = 0; percent <= 2; percent++) {
    const double scatter = percent / 100.0;
    const size_t n = line_points(points, 4e-6, 50 * GB, 0, 1, scatter);
    must(hk_line_fit(points, n, &line, &err), &err);
    assert_int_equal(line.n, 1);
    assert_int_equal(line.sizes, n);
    check_near("rate", line.segments[0].rate, 50 * GB, 0.001 + scatter);
    check_near("latency", line.segments[0].latency_ns, 4000, 0.01 + 3 * scatter);
    check_near("common latency", line.latency_ns, 4000, 0.01 + 3 * scatter);
    if (scatter > 0) check_near("scatter", line.scatter, scatter, 0.6);
  }
}

/* 90 GB/s (caches) up to 2 MiB, 20 GB/s (memory) from 4 MiB on. */
static void test_two_segments(void **state) {
  (void)state;
  hk_line_point points[40];
  hk_line line;
  hk_error err = {0};
  for (int percent = 0; percent <= 2; percent++) {
    const double scatter = percent / 100.0;
    const size_t n = line_points(points, 4e-6, 20 * GB, 4.0 * MIB, 90 * GB, scatter);
    must(hk_line_fit(points, n, &line, &err), &err);
    assert_int_equal(line.n, 2);
    assert_true(line.segments[1].least == 4.0 * MIB);
    check_near("first rate", line.segments[0].rate, 90 * GB, 0.01 + 2 * scatter);
    check_near("last rate", line.segments[1].rate, 20 * GB, 0.01 + scatter);
    assert_true(line.latency_ns >= 0);
  }
}

static void test_few_sizes(void **state) {
  (void)state;
  hk_line line;
  hk_error err = {0};
  hk_line_point one[] = {{MIB, 10 * GB, 0.01}, {MIB, 12 * GB, 0.01}};
  must(hk_line_fit(one, 1, &line, &err), &err);
  check_near("rate", line.segments[0].rate, 10 * GB, 1e-12);
  assert_int_equal(line.sizes, 1);
  assert_true(line.latency_ns == 0);
  must(hk_line_fit(one, 2, &line, &err), &err);
  assert_true(line.segments[0].rate > 10 * GB && line.segments[0].rate < 12 * GB);
  hk_line_point two[] = {{16.0 * MIB, 16 * MIB / (1e-5 + 16 * MIB / (10 * GB)), 0.01},
                         {MIB, MIB / (1e-5 + MIB / (10 * GB)), 0.01}};
  must(hk_line_fit(two, 2, &line, &err), &err);
  check_near("rate", line.segments[0].rate, 10 * GB, 1e-6);
  check_near("latency", line.latency_ns, 1e4, 1e-6);
  /* Small copies faster than large ones would mean a negative latency: it is 0. */
  hk_line_point falling[] = {
      {MIB, 20 * GB, 0.01}, {2.0 * MIB, 15 * GB, 0.01}, {4.0 * MIB, 12 * GB, 0.01}};
  must(hk_line_fit(falling, 3, &line, &err), &err);
  assert_true(line.latency_ns == 0 && line.segments[0].latency_ns == 0);
  assert_true(line.segments[0].rate > 12 * GB && line.segments[0].rate < 20 * GB);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_segment),
      cmocka_unit_test(test_two_segments),
      cmocka_unit_test(test_few_sizes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
