/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The error that is expected of predictions with a calibrated profile. */
#include "calib/fit/expected_error.h"

#include <math.h>

#include "calib/fit/probe_fit_draft.h"
#include "tests/fixture.h"

/* noise 3, model 4: expected 5 after 10 s. At 1.1 x 4 = 4.4 the noise is sqrt(4.4^2 - 4^2) = 1.833,
 * for which (3 / 1.833)^2 = 2.679 times the time is needed. */
static void test_worth(void **state) {
  (void)state;
  const hk_expected_error e = {.noise_pct = 3, .model_pct = 4, .expected_pct = 5};
  assert_false(hk_expected_error_converged(&e));
  assert_true(fabs(hk_expected_error_worth_s(&e, 10) - 10 * (9 / (4.4 * 4.4 - 16) - 1)) < 1e-9);
  const hk_expected_error done = {.noise_pct = 1.8, .model_pct = 4, .expected_pct = hypot(1.8, 4)};
  assert_true(hk_expected_error_converged(&done));
  assert_true(hk_expected_error_worth_s(&done, 10) == 0);
}

/* The update on the CPU takes work / rate. With one uncertain quantity, which has no effect on the
 * other two updates, noise is 1.645 of its standard errors. */
static void test_one_quantity(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine;
  must(hk_machine_load("h200-node-16c", &machine, &err), &err);
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    hk_quantity *q = hk_machine_quantity(&machine, &info[i]);
    q->error = 0;
    q->origin = HK_ORIGIN_SET; /* exact */
  }
  hk_expected_error e;
  must(hk_expected_error_of(&machine, 2, &e, &err), &err);
  assert_true(e.noise_pct == 0 && e.model_pct == 2 && e.expected_pct == 2);
  machine.cpu_adamw.origin = HK_ORIGIN_FITTED;
  machine.cpu_adamw.error = 0.001;
  machine.dram.value = machine.dram_with_dma.value = 1e13; /* only the kernel's rate limits */
  must(hk_expected_error_of(&machine, 2, &e, &err), &err);
  assert_true(fabs(e.noise_pct - 100 * 1.645 * 0.001) < 0.02);
  hk_machine_free(&machine);
}

/* Calibrations of two nodes, with 83 and 87 of 129 probes noisy, and the errors of 24 updates that
 * were predicted with each and measured afterwards: 6.9 and 4.3 % at worst. */
static void test_measured_nodes(void **state) {
  (void)state;
  static const struct {
    const char *file;
    double model, expected, worst;
  } nodes[] = {{HK_TEST_DATA "/rankings/node-27-profile.json", 6.75746, 10.09, 6.9},
               {HK_TEST_DATA "/rankings/node-28-profile.json", 5.95567, 9.17, 4.3}};
  for (int i = 0; i < 2; i++) {
    hk_error err = {0};
    hk_machine machine;
    hk_expected_error e;
    must(hk_machine_load(nodes[i].file, &machine, &err), &err);
    must(hk_expected_error_of(&machine, nodes[i].model, &e, &err), &err);
    print_message("%s: %.2f %%\n", nodes[i].file, e.expected_pct);
    assert_true(fabs(e.expected_pct - nodes[i].expected) < 0.01);
    assert_true(nodes[i].worst < e.expected_pct && e.expected_pct < HK_MOST_EXPECTED_PCT);
    hk_machine_free(&machine);
  }
}

/* Two values 1 apart: standard deviation 1 / 1.128, and 1.96 of that / sqrt(2) on either side. */
static void test_few_values(void **state) {
  (void)state;
  hk_error err = {0};
  hk_summary s;
  must(hk_summarise((double[]){99.5, 100.5}, 2, &s, &err), &err);
  hk_estimate e = hk_estimate_median(&s, 1);
  assert_true(fabs(e.high - (100 + 1.96 / 1.128 / sqrt(2))) < 1e-9);
  assert_true(fabs(e.low - (100 - 1.96 / 1.128 / sqrt(2))) < 1e-9);
  must(hk_summarise((double[]){98, 99.5, 100.5, 102}, 4, &s, &err), &err);
  e = hk_estimate_median(&s, 1);
  assert_true(e.low == 98 && e.high == 102);
  /* Below 0 it does not go: rates and times are positive. */
  must(hk_summarise((double[]){1, 199}, 2, &s, &err), &err);
  assert_true(hk_estimate_median(&s, 1).low > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_worth),
      cmocka_unit_test(test_one_quantity),
      cmocka_unit_test(test_measured_nodes),
      cmocka_unit_test(test_few_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
