/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hk_share (progressive filling) against allocations by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "sim/share.h"
#include "tests/random.h"

#define NEAR(value, expected) \
  assert_true(fabs((value) - (double)(expected)) <= 1e-9 * (double)(expected))

static double used[4], growth[8];
static int32_t open_list[8];

static void run(hk_activity *list, int n, const double *capacity) {
  hk_activity *pointers[8] = {NULL};
  for (int i = 0; i < n; i++) pointers[i] = &list[i];
  hk_share(pointers, n, capacity, 4, used, growth, open_list);
}

static const hk_share_use first[] = {{0, 1}};
static const hk_share_use both[] = {{0, 1}, {1, 1}};
static const hk_share_use second[] = {{1, 1}};
static const hk_share_use heavy[] = {{0, 3}};

static void test_alone_is_capped(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 7, .weight = 1, .uses = first, .n_uses = 1}};
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
  hk_activity a[] = {{.cap = 100, .weight = 1, .uses = first, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = first, .n_uses = 1}};
  run(a, 2, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 5);
  NEAR(a[1].rate, 5);
}

static void test_weights_share_in_proportion(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 100, .weight = 3, .uses = first, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = first, .n_uses = 1}};
  run(a, 2, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 7.5);
  NEAR(a[1].rate, 2.5);
}

/* Capacity that a capped activity leaves goes to the other (work-conserving). */
static void test_leftover_goes_to_the_others(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 2, .weight = 1, .uses = first, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = first, .n_uses = 1}};
  run(a, 2, (double[]){10, 1, 1, 1});
  NEAR(a[0].rate, 2);
  NEAR(a[1].rate, 8);
}

/* The textbook line network: one flow over both links, one on each. Links 10 and 20: the long flow
 * and the first get 5 each, the second gets the remaining 15. */
static void test_line_network(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 100, .weight = 1, .uses = both, .n_uses = 2},
                     {.cap = 100, .weight = 1, .uses = first, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = second, .n_uses = 1}};
  run(a, 3, (double[]){10, 20, 1, 1});
  NEAR(a[0].rate, 5);
  NEAR(a[1].rate, 5);
  NEAR(a[2].rate, 15);
  NEAR(used[0], 10);
  NEAR(used[1], 20);
}

/* No activity starves. Beside two of weight 1 a weight of 1e-6 gets its tiny share if none reaches
 * its cap, and the remaining capacity if the others reach theirs. */
static void test_a_tiny_weight(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 100, .weight = 1, .uses = first, .n_uses = 1},
                     {.cap = 100, .weight = 1, .uses = first, .n_uses = 1},
                     {.cap = 100, .weight = 1e-6, .uses = first, .n_uses = 1}};
  run(a, 3, (double[]){10, 1, 1, 1});
  NEAR(a[2].rate, 10e-6 / 2.000001);
  a[0].cap = a[1].cap = 4;
  run(a, 3, (double[]){10, 1, 1, 1});
  NEAR(a[2].rate, 2);
}

/* Three rounds of filling: the first activity reaches its cap, then resource 0 is full, then
 * resource 1. */
static void test_three_rounds(void **state) {
  (void)state;
  hk_activity a[] = {{.cap = 1, .weight = 1, .uses = both, .n_uses = 2},
                     {.cap = 100, .weight = 1, .uses = both, .n_uses = 2},
                     {.cap = 100, .weight = 1, .uses = first, .n_uses = 1},
                     {.cap = 100, .weight = 2, .uses = second, .n_uses = 1}};
  run(a, 4, (double[]){9, 30, 1, 1});
  NEAR(a[0].rate, 1);
  NEAR(a[1].rate, 4);
  NEAR(a[2].rate, 4);
  NEAR(a[3].rate, 25);
}

/* The solution is unique: it does not depend on the order of the activities. */
static void test_order_does_not_matter(void **state) {
  (void)state;
  const hk_activity shapes[] = {{.cap = 4, .weight = 1, .uses = both, .n_uses = 2},
                                {.cap = 100, .weight = 5, .uses = first, .n_uses = 1},
                                {.cap = 11, .weight = 2, .uses = second, .n_uses = 1},
                                {.cap = 3, .weight = 1, .uses = heavy, .n_uses = 1}};
  const double capacity[] = {12, 8, 1, 1};
  hk_activity forward[4], backward[4];
  for (int i = 0; i < 4; i++) forward[i] = backward[3 - i] = shapes[i];
  run(forward, 4, capacity);
  run(backward, 4, capacity);
  for (int i = 0; i < 4; i++) NEAR(forward[i].rate, backward[3 - i].rate);
}

/* -- Weights of all magnitudes ----------------------------------------------------------------- */

/* No activity exceeds its cap and no resource its capacity. Each activity is at its cap or uses a
 * full resource. */
static void must_be_fair(const hk_activity *list, int n, const double *capacity, int n_resources,
                         const double *carried) {
  for (int r = 0; r < n_resources; r++) assert_true(carried[r] <= capacity[r] * (1 + 1e-9));
  for (int i = 0; i < n; i++) {
    const hk_activity *a = &list[i];
    bool content = a->rate >= a->cap * (1 - 1e-9);
    assert_true(a->rate > 0 && a->rate <= a->cap * (1 + 1e-9));
    for (int32_t u = 0; u < a->n_uses; u++) {
      const int32_t r = a->uses[u].resource;
      content |= carried[r] >= capacity[r] * (1 - 1e-9);
    }
    if (!content)
      fail_msg("activity %d of %d: rate %g is below its cap %g without a full resource", i, n,
               a->rate, a->cap);
  }
}

/* Weights that differ by 5e14, as on a machine whose host memory prefers copies. After the large
 * ones have reached their caps, rounding errors of their use exceed the capacity left. With a
 * negative capacity left the filling did not end. */
static void test_weights_that_cancel(void **state) {
  (void)state;
  static const hk_share_use cpu[] = {{8, 640}, {7, 640}, {6, 28}};
  static const hk_share_use mapped[] = {{2, 12}, {9, 192},  {3, 12},     {10, 192},
                                        {4, 24}, {11, 384}, {7, 192192}, {6, 24}};
  static const hk_share_use out[] = {{3, 1}, {10, 16}, {4, 1}, {11, 16}, {7, 16000}, {6, 1}};
  static const hk_share_use in[] = {{2, 1}, {9, 16}, {4, 1}, {11, 16}, {7, 16}, {6, 1}};
  hk_activity a[] = {
      {.cap = 12982.915948536176, .weight = 219758.17736910292, .uses = cpu, .n_uses = 3},
      {.cap = 3407029166.6666665, .weight = 3407029166666.6665, .uses = mapped, .n_uses = 8},
      {.cap = 27725499999.999996, .weight = 1e20, .uses = out, .n_uses = 6},
      {.cap = 55191700000, .weight = 37880878486700, .uses = in, .n_uses = 6}};
  const double capacity[] = {1,           3930420000000, 47775867229.5, 1e14,         1e14,
                             55191700000, 1e15,          1e15,          194445000000, 55191700000,
                             55226300000, 97964000000};
  double carried[12], scratch[24];
  int32_t open[4];
  hk_activity *pointers[] = {&a[0], &a[1], &a[2], &a[3]};
  alarm(10);
  hk_share(pointers, 4, capacity, 12, carried, scratch, open);
  alarm(0);
  must_be_fair(a, 4, capacity, 12, carried);
}

/* Weights over 40 orders of magnitude, uses over 9, caps and capacities over 15. */
static void test_weights_of_all_magnitudes(void **state) {
  (void)state;
  random_stream random = {7};
  alarm(60);
  for (int round = 0; round < 20000; round++) {
    enum { N = 8, R = 6 };
    hk_share_use uses[N][R];
    hk_activity list[N], *pointers[N];
    double capacity[R], carried[R], scratch[2 * R];
    int32_t open[N];
    for (int r = 0; r < R; r++) capacity[r] = scale(&random, 1, 1e15);
    for (int i = 0; i < N; i++) {
      int n = 0;
      for (int r = 0; r < R; r++)
        if (uniform(&random) < 0.5) uses[i][n++] = (hk_share_use){r, scale(&random, 1e-3, 1e6)};
      list[i] = (hk_activity){.cap = scale(&random, 1, 1e15),
                              .weight = scale(&random, 1e-20, 1e20),
                              .uses = uses[i],
                              .n_uses = n};
      pointers[i] = &list[i];
    }
    hk_share(pointers, N, capacity, R, carried, scratch, open);
    must_be_fair(list, N, capacity, R, carried);
  }
  alarm(0);
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
      cmocka_unit_test(test_weights_that_cancel),
      cmocka_unit_test(test_weights_of_all_magnitudes),
      cmocka_unit_test(test_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
