/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hk_checkpoint_is_due: whether a run saves its state between two steps. */
#include "cli/checkpoint_due.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the above first */
#include <cmocka.h>

#define S HK_NS_PER_S

static void test_by_steps(void **state) {
  (void)state;
  assert_false(hk_checkpoint_is_due(5, 4, 10000 * S, 0));
  assert_true(hk_checkpoint_is_due(5, 5, 0, 1000 * S));
}

/* Every 600 s, or less often if saving took longer than 600 s / 20: at most 1/20 of the time. */
static void test_by_time(void **state) {
  (void)state;
  assert_false(hk_checkpoint_is_due(0, 1000000, 599 * S, 0));
  assert_true(hk_checkpoint_is_due(0, 1, 600 * S, 0));
  assert_true(hk_checkpoint_is_due(0, 1, 600 * S, 30 * S));
  assert_false(hk_checkpoint_is_due(0, 1, 600 * S, 31 * S));
  assert_true(hk_checkpoint_is_due(0, 1, 20 * 31 * S, 31 * S));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_steps),
                                     cmocka_unit_test(test_by_time)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
