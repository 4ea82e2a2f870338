/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Search for the largest number that fits: exact for every limit, few attempts, not ended by one
 * number that does not fit. It relies on memory that grows with micro-batch, sequence
 * (test_unit_footprint.c) and layers. */
#include "sim/largest.h"

#include "sim/footprint.h"
#include "tests/fixture.h"

typedef struct {
  int64_t limit, gap; /* 1 to limit fit, but gap does not; gap 0: none */
  int attempts, told;
  int64_t seen[128];
} numbers;

static hk_status attempt(void *context, int64_t n, bool *fits, hk_error *err) {
  numbers *all = context;
  (void)err;
  assert_true(n >= 1);
  for (int i = 0; i < all->attempts; i++) assert_true(all->seen[i] != n);
  assert_true(all->attempts < 128);
  all->seen[all->attempts++] = n;
  *fits = n <= all->limit && n != all->gap;
  return HK_OK;
}

static void progress(void *context, int made, int remain) {
  numbers *all = context;
  assert_int_equal(made, all->attempts);
  assert_true(remain > 0);
  all->told++;
}

static int64_t find(numbers *all, int64_t most) {
  hk_error err = {0};
  int64_t largest = -1;
  const hk_largest_search search = {
      .most = most, .attempt = attempt, .progress = progress, .context = all};
  must(hk_largest(&search, &largest, &err), &err);
  assert_int_equal(all->told, all->attempts);
  return largest;
}

static void every_limit_is_found(void **state) {
  (void)state;
  for (int64_t most = 1; most <= 70; most++) {
    for (int64_t limit = 0; limit <= most; limit++) {
      numbers all = {.limit = limit};
      assert_int_equal(find(&all, most), limit);
      assert_true(all.attempts <= 2 * 7 + 3);
    }
  }
  numbers many = {.limit = 54321};
  assert_int_equal(find(&many, 65536), 54321);
  assert_true(many.attempts <= 2 * 17 + 3);
}

/* 1 to 1000 fit, except 16. Doubling stops at 16 and bisection ends at 15. The search then tries
 * 18, which fits, so it goes on to 1000. */
static void a_gap_does_not_end_the_search(void **state) {
  (void)state;
  numbers all = {.limit = 1000, .gap = 16};
  assert_int_equal(find(&all, 4096), 1000);
}

static hk_status fails(void *context, int64_t n, bool *fits, hk_error *err) {
  (void)context, (void)n, (void)fits;
  return hk_fail(err, HK_ENVIRONMENT, "out of luck");
}

static void a_failure_ends_it(void **state) {
  (void)state;
  hk_error err = {0};
  int64_t largest = -1;
  const hk_largest_search search = {.most = 10, .attempt = fails};
  assert_int_equal(hk_largest(&search, &largest, &err), HK_ENVIRONMENT);
  assert_string_equal(err.message, "out of luck");
  assert_int_equal(largest, 0);
}

static void memory_grows_with_layers(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_job job = {.gpus = 2,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 2,
                      .grad_accum = 1,
                      .seq = 256,
                      .checkpoint_activations = true};
  hk_footprint last[HK_WAY_COUNT] = {0}, ways[HK_WAY_COUNT];
  for (int layers = 1; layers < 40; layers++) {
    hk_model model = tiny_model(layers);
    must(hk_footprint_make(&model, &job, HK_OPTIMIZER_FP32, HK_ACCUMULATE_GPU, ways, &err), &err);
    for (int way = 0; way < HK_WAY_COUNT; way++) {
      assert_true(ways[way].gpu >= last[way].gpu);
      assert_true(ways[way].host >= last[way].host);
    }
    memcpy(last, ways, sizeof last);
    hk_model_free(&model);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_limit_is_found),
      cmocka_unit_test(a_gap_does_not_end_the_search),
      cmocka_unit_test(a_failure_ends_it),
      cmocka_unit_test(memory_grows_with_layers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
