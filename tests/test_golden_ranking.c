/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rankings of record: two H200 nodes, 24 measured plans each, predicted by the node's own
 * profile. Each node has limits close to what is reached, so that a loss of accuracy fails the
 * test. On both nodes the plan predicted fastest was the fastest. */
#include "tests/fixture_ranking.h"

typedef struct {
  double median_error_pct, worst_error_pct, tau;
} limits;

static void check(const char *ranking, const char *profile, limits limit) {
  hk_machine machine = machine_of(profile);
  const hk_ranked_plans_verdict v =
      verdict_of(ranking, &machine, (hk_bytes)machine.host_memory.value);
  assert_true(v.median_error_pct <= limit.median_error_pct);
  assert_true(v.worst_error_pct <= limit.worst_error_pct);
  assert_true(v.tau >= limit.tau);
  assert_true(v.regret_pct <= 0);
  hk_machine_free(&machine);
}

static void node_27(void **state) {
  (void)state;
  check(RANKINGS "node-27.json", RANKINGS "node-27-profile.json", (limits){2.5, 7.1, 0.96});
}

static void node_28(void **state) {
  (void)state;
  check(RANKINGS "node-28.json", RANKINGS "node-28-profile.json", (limits){2.1, 4.4, 0.92});
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(node_27), cmocka_unit_test(node_28)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
