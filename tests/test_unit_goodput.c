/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Failures and checkpoints: the closed form by hand, and against other intervals. */
#include <math.h>

#include "sim/goodput.h"
#include "tests/fixture.h"

#define HOUR 3600.0

static const hk_machine machine = {.nvme_read = {.value = 4e9}, .nvme_write = {.value = 2e9}};
static const hk_model model = {.parameters = 7200000000};
static const hk_job job = {.nodes = 8};

static hk_goodput of(hk_optimizer optimizer, double mtbf_s, double other_s) {
  hk_goodput g;
  hk_error err = {0};
  must(hk_goodput_make(&model, &machine, &job, optimizer, mtbf_s, other_s, &g, &err), &err);
  return g;
}

static bool near(double a, double b) {
  return fabs(a - b) <= 1e-12 * fabs(b);
}

/* 86.4 GB: 8 nodes write 10.8 GB each in 5.4 s and read them in 2.7 s. They fail every 2,700,000 s:
 * sqrt(2 x 5.4 x 2,700,000) = 5400 s. */
static void by_hand(void **state) {
  (void)state;
  const hk_goodput g = of(HK_OPTIMIZER_FP32, 6000 * HOUR, 0);
  assert_true(near(g.bytes, 86.4e9) && near(g.write_s, 5.4) && near(g.restart_s, 2.7));
  assert_true(near(g.mtbf_s, 2.7e6) && near(g.interval_s, 5400));
  assert_true(near(g.lost, 5.4 / 5400 + 2700 / 2.7e6 + 2.7 / 2.7e6));
  const double later = of(HK_OPTIMIZER_FP32, 6000 * HOUR, 600).lost;
  assert_true(fabs(later - g.lost - 600 / 2.7e6) < 1e-15);
}

/* State without a master weight needs the weights beside it: 4 and 2 bytes a parameter. */
static void formats(void **state) {
  (void)state;
  assert_true(near(of(HK_OPTIMIZER_ADAM_BF16, 6000 * HOUR, 0).bytes, 6 * 7.2e9));
  assert_true(near(of(HK_OPTIMIZER_BF16_SPLIT, 6000 * HOUR, 0).bytes, 8 * 7.2e9));
}

/* No other interval loses less. */
static void interval_is_best(void **state) {
  (void)state;
  for (int hours = 10; hours < 1000000; hours *= 3) {
    const hk_goodput g = of(HK_OPTIMIZER_FP32, hours * HOUR, 60);
    for (int tenths = 5; tenths < 20; tenths++) {
      const double tau = tenths / 10.0 * g.interval_s;
      assert_true(g.write_s / tau + (tau / 2 + g.restart_s) / g.mtbf_s >= g.lost * (1 - 1e-12));
    }
  }
}

static void refused_or_left_out(void **state) {
  (void)state;
  hk_goodput g;
  hk_error err = {0};
  assert_int_equal(hk_goodput_make(&model, &machine, &job, HK_OPTIMIZER_FP32, 60, 0, &g, &err),
                   HK_INPUT);
  assert_non_null(strstr(err.message, "less than half of the time"));
  assert_true(of(HK_OPTIMIZER_FP32, 0, 60).lost == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(by_hand),
      cmocka_unit_test(formats),
      cmocka_unit_test(interval_is_best),
      cmocka_unit_test(refused_or_left_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
