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
  s.state.demands++;
  assert_false(hk_rate_cache_get(&s.state, key));
}

/* More than HK_RATE_CACHE_LANES operations, or a lane whose number is 255 or more, have no key (0)
 * and are not cached. */
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
      cmocka_unit_test(test_comes_back),
      cmocka_unit_test(test_other_sets),
      cmocka_unit_test(test_too_many),
      cmocka_unit_test(test_check_fires),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
