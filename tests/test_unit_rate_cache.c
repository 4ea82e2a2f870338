/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Cached rates: the key of a set of running operations, and the check of the cache.
 * test_property_sim.c checks that cached and recomputed rates are equal to the bit. */
#include <math.h>

#include "sim/state.h"
#include "tests/fixture.h"

enum { LANES = 300, RESOURCES = 2 };

typedef struct {
  hk_sim_state state;
  hk_active_op active[LANES];
  int32_t running[LANES];
  double used[RESOURCES];
  hk_cached_rates rate_cache[HK_RATE_CACHE_SLOTS];
  double rate_cache_used[HK_RATE_CACHE_SLOTS * RESOURCES];
} scene;

/* Lets these lanes run in this order, all in their fluid part, at rates 10, 20, ... */
static void let_run(scene *s, const int32_t *lanes, int n) {
  s->state.active = s->active;
  s->state.running = s->running;
  s->state.used = s->used;
  s->state.rate_cache = s->rate_cache;
  s->state.rate_cache_used = s->rate_cache_used;
  s->state.n_resources = RESOURCES;
  s->state.n_running = n;
  for (int i = 0; i < n; i++) {
    s->running[i] = lanes[i];
    s->active[lanes[i]].fluid = true;
    s->active[lanes[i]].number = (uint8_t)(lanes[i] < LANES - 1 ? lanes[i] + 1 : 0);
    s->active[lanes[i]].activity.rate = 10 * (i + 1);
  }
  s->used[0] = 5;
  s->used[1] = 6;
}

static void test_comes_back(void **state) {
  (void)state;
  static scene s;
  let_run(&s, (int32_t[]){2, 0}, 2);
  const uint64_t key = hk_rate_cache_key(&s.state);
  assert_false(hk_rate_cache_get(&s.state, key));
  hk_rate_cache_put(&s.state, key);
  s.active[2].activity.rate = s.active[0].activity.rate = 0;
  s.used[0] = s.used[1] = 0;
  assert_true(hk_rate_cache_get(&s.state, key));
  assert_true(s.active[2].activity.rate == 10 && s.active[0].activity.rate == 20);
  assert_true(s.used[0] == 5 && s.used[1] == 6);
}

/* Another order, an operation that is not fluid, or another demand makes another set. */
static void test_other_sets(void **state) {
  (void)state;
  static scene s;
  let_run(&s, (int32_t[]){2, 0}, 2);
  const uint64_t key = hk_rate_cache_key(&s.state);
  hk_rate_cache_put(&s.state, key);
  let_run(&s, (int32_t[]){0, 2}, 2);
  assert_true(hk_rate_cache_key(&s.state) != key);
  s.active[0].fluid = false;
  assert_true(hk_rate_cache_key(&s.state) != key);
  let_run(&s, (int32_t[]){2, 0}, 2);
  assert_true(hk_rate_cache_key(&s.state) == key);
  s.active[2].number = 9;
  assert_false(hk_rate_cache_get(&s.state, hk_rate_cache_key(&s.state)));
}

/* Operations with the same demand have the same number, whatever their lanes; each field that rates
 * depend on makes another demand. After HK_RATE_CACHE_DEMANDS none gets a number. */
static void test_numbers(void **state) {
  (void)state;
  static scene s;
  static hk_active_op numbered[HK_RATE_CACHE_DEMANDS];
  s.state.numbered = numbered;
  hk_active_op op = {.cap = 1, .weight = 2, .activity = {.n_uses = 1}};
  op.uses[0] = (hk_share_use){1, 3};
  assert_int_equal(hk_rate_cache_number(&s.state, &op), 1);
  op.op = 77, op.latency = 5, op.due = 9;
  assert_int_equal(hk_rate_cache_number(&s.state, &op), 1);
  hk_active_op others[] = {op, op, op, op, op, op, op, op, op, op, op, op, op, op, op, op, op};
  enum { N = sizeof others / sizeof *others };
  others[0].cap = 2, others[1].uses[0].per_unit = 1, others[2].weight = 1,
  others[3].weight_crowded = 1;
  others[4].traffic = 1, others[5].rank = 1, others[6].slowed = true, others[7].computes = true;
  others[8].updates = true, others[9].sums = true, others[10].beside_compute = 1;
  others[11].launched = 1, others[12].computed = 1, others[13].host_wish = 1;
  others[14].activity.n_uses = 0, others[15].uses[0].resource = 0, others[16].among = 2;
  for (int i = 0; i < N; i++) assert_int_equal(hk_rate_cache_number(&s.state, &others[i]), i + 2);
  for (int i = N + 1; i < HK_RATE_CACHE_DEMANDS; i++) {
    op.cap = 10 + i;
    assert_int_equal(hk_rate_cache_number(&s.state, &op), i + 1);
  }
  op.cap = 5;
  assert_int_equal(hk_rate_cache_number(&s.state, &op), 0);
  assert_int_equal(hk_rate_cache_number(&s.state, &others[3]), 5);
}

/* More than HK_RATE_CACHE_LANES operations, or one whose demand has no number, have no key (0) and
 * are not cached. */
static void test_too_many(void **state) {
  (void)state;
  static scene s;
  int32_t lanes[HK_RATE_CACHE_LANES + 1];
  for (int i = 0; i <= HK_RATE_CACHE_LANES; i++) lanes[i] = i;
  let_run(&s, lanes, HK_RATE_CACHE_LANES);
  assert_true(hk_rate_cache_key(&s.state) != 0);
  let_run(&s, lanes, HK_RATE_CACHE_LANES + 1);
  assert_true(hk_rate_cache_key(&s.state) == 0);
  let_run(&s, (int32_t[]){LANES - 1}, 1);
  assert_true(hk_rate_cache_key(&s.state) == 0);
  hk_rate_cache_put(&s.state, 0);
  assert_false(hk_rate_cache_get(&s.state, 0));
}

static void test_check_fires(void **state) {
  (void)state;
  static scene s;
  let_run(&s, (int32_t[]){1}, 1);
  const uint64_t key = hk_rate_cache_key(&s.state);
  assert_true(hk_rate_cache_agrees(&s.state, key)); /* nothing is cached yet */
  hk_rate_cache_put(&s.state, key);
  assert_true(hk_rate_cache_agrees(&s.state, key));
  s.active[1].activity.rate = nextafter(10, 11);
  assert_false(hk_rate_cache_agrees(&s.state, key));
  s.active[1].activity.rate = 10;
  s.used[1] = nextafter(6, 7);
  assert_false(hk_rate_cache_agrees(&s.state, key));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_comes_back),  cmocka_unit_test(test_other_sets),
      cmocka_unit_test(test_numbers),     cmocka_unit_test(test_too_many),
      cmocka_unit_test(test_check_fires),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
