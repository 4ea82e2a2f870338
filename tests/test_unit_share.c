/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Progressive filling against allocations worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <math.h>

#include "sim/share.h"

#define NEAR(value, expected) \
  assert_true(fabs((value) - (double)(expected)) <= 1e-9 * (double)(expected))

static double used[4], growth[4];
static int32_t open_list[8];

static void run(hk_activity *list, int n, const double *capacity) {
  hk_activity *pointers[8] = {NULL};
  for (int i = 0; i < n; i++) pointers[i] = &list[i];
  hk_share(pointers, n, capacity, 4, used, growth, open_list);
}

static const hk_share_use link[] = {{0, 1}};
static const hk_share_use both[] = {{0, 1}, {1, 1}};
static const hk_share_use second[] = {{1, 1}};
static const hk_share_use heavy[] = {{0, 3}};

static void test_alone_is_capped(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 7, .weight = 1, .uses = link, .n_uses = 1}};
  run(a, 1, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 7);
  NEAR(used[0], 7);
}

static void test_alone_is_held_by_its_resource(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 7, .weight = 1, .uses = heavy, .n_uses = 1}};
  run(a, 1, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 10.0 / 3);
}

static void test_equal_weights_share_equally(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 100, .weight = 1, .uses = link, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = link, .n_uses = 1}};
  run(a, 2, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 5);
  NEAR(a[1].rate, 5);
}

static void test_weights_share_in_proportion(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 100, .weight = 3, .uses = link, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = link, .n_uses = 1}};
  run(a, 2, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 7.5);
  NEAR(a[1].rate, 2.5);
}

/* What a capped activity leaves goes to the other: work-conserving. */
static void test_leftover_goes_to_the_others(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 2, .weight = 1, .uses = link, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = link, .n_uses = 1}};
  run(a, 2, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 2);
  NEAR(a[1].rate, 8);
}

/* The textbook line network: one flow over both links, one on each. Links 10 and 20: the long flow
 * and the first get 5 each, the second gets the remaining 15. */
static void test_line_network(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 100, .weight = 1, .uses = both, .n_uses = 2},
                     {.cap = 100, .weight = 1, .uses = link, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = second, .n_uses = 1}};
  run(a, 3, (double[]){10, 20, 1, 1});
  NEAR(a[0].rate, 5);
  NEAR(a[1].rate, 5);
  NEAR(a[2].rate, 15);
  NEAR(used[0], 10);
  NEAR(used[1], 20);
}

/* Nobody starves: a weight of a millionth gets its millionth where all want everything, and what
 * the others leave where they stop. */
static void test_a_tiny_weight(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 100, .weight = 1, .uses = link, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = link, .n_uses = 1},
                     {.cap = 100, .weight = 1e-6, .uses = link, .n_uses = 1}};
  run(a, 3, (double[]){10, 1, 1, 1});
  NEAR(a[2].rate, 10e-6 / 2.000001);
  a[0].cap = a[1].cap = 4;
  run(a, 3, (double[]){10, 1, 1, 1});
  NEAR(a[2].rate, 2);
}

/* Three rounds: the first stops at its cap (level 1), then resource 0 fills, then resource 1. */
static void test_three_rounds(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 1, .weight = 1, .uses = both, .n_uses = 2},
                     {.cap = 100, .weight = 1, .uses = both, .n_uses = 2},
                     {.cap = 100, .weight = 1, .uses = link, .n_uses = 1},
                     {.cap = 100, .weight = 2, .uses = second, .n_uses = 1}};
  run(a, 4, (double[]){9, 30, 1, 1});
  NEAR(a[0].rate, 1);
  NEAR(a[1].rate, 4);
  NEAR(a[2].rate, 4);
  NEAR(a[3].rate, 25);
}

/* The order in which activities are listed does not matter: the solution is unique. */
static void test_order_does_not_matter(void **state) {
  (void)state;
  const hk_activity shapes[] = {{.cap = 4, .weight = 1, .uses = both, .n_uses = 2},
                                {.cap = 100, .weight = 5, .uses = link, .n_uses = 1},
                                {.cap = 11, .weight = 2, .uses = second, .n_uses = 1},
                                {.cap = 3, .weight = 1, .uses = heavy, .n_uses = 1}};
  const double capacity[] = {12, 8, 1, 1};
  hk_activity forward[4], backward[4];
  for (int i = 0; i < 4; i++) forward[i] = backward[3 - i] = shapes[i];
  run(forward, 4, capacity);
  run(backward, 4, capacity);
  for (int i = 0; i < 4; i++) NEAR(forward[i].rate, backward[3 - i].rate);
}

static void test_nothing(void **state) {
  (void)state;
  run(NULL, 0, (double[]){1, 1, 1, 1});
  assert_true(used[0] == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alone_is_capped),
      cmocka_unit_test(test_alone_is_held_by_its_resource),
      cmocka_unit_test(test_equal_weights_share_equally),
      cmocka_unit_test(test_weights_share_in_proportion),
      cmocka_unit_test(test_leftover_goes_to_the_others),
      cmocka_unit_test(test_line_network),
      cmocka_unit_test(test_a_tiny_weight),
      cmocka_unit_test(test_three_rounds),
      cmocka_unit_test(test_order_does_not_matter),
      cmocka_unit_test(test_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
