/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Sets of ranges, compared with a plain array of booleans. */
#include "engine/ranges.h"

#include "tests/random.h"

#define NUMBERS 200

static bool plain_meet(const bool *there, int64_t begin, int64_t end, int64_t *first) {
  for (*first = begin; *first < end; ++*first) {
    if (there[*first]) return true;
  }
  return false;
}

static int64_t plain_gap(const bool *there) {
  int64_t i = 0;
  while (i < NUMBERS && there[i]) i++;
  return i;
}

static void random_sets_equal_plain_ones(void **unused) {
  (void)unused;
  hk_ranges set = {0};
  hk_error err = {0};
  for (uint64_t number = 0; number < 300; number++) {
    random_stream r = {number};
    bool there[NUMBERS] = {false};
    int64_t total = 0;
    const int longest = pick(&r, 1, 20);
    for (int i = 0; i < 200; i++) {
      const int64_t begin = pick(&r, 0, NUMBERS - 1);
      int64_t end = begin + pick(&r, 0, longest);
      if (end > NUMBERS) end = NUMBERS;
      int64_t first = -1, wanted = -1;
      const bool meets = plain_meet(there, begin, end, &wanted);
      assert_int_equal(hk_ranges_meet(&set, begin, end, &first), meets);
      if (meets) {
        assert_int_equal(first, wanted);
        continue;
      }
      must(hk_ranges_add(&set, begin, end, &err), &err);
      for (int64_t k = begin; k < end; k++) there[k] = true;
      total += end - begin;
      assert_int_equal(set.total, total);
      assert_int_equal(hk_ranges_gap(&set), plain_gap(there));
      for (size_t k = 1; k < set.n; k++) assert_true(set.runs[k - 1].end < set.runs[k].begin);
    }
    hk_ranges_clear(&set);
  }
  hk_ranges_free(&set);
}

/* Adjacent ranges merge, added from the end as a backward pass does, or into gaps. */
static void neighbours_become_one_run(void **unused) {
  (void)unused;
  hk_ranges set = {0};
  hk_error err = {0};
  for (int64_t i = 999; i >= 0; i--) must(hk_ranges_add(&set, 7 * i, 7 * i + 7, &err), &err);
  assert_int_equal(set.n, 1);
  assert_int_equal(set.total, 7000);
  hk_ranges_clear(&set);
  for (int64_t i = 0; i < 1000; i += 2) must(hk_ranges_add(&set, i, i + 1, &err), &err);
  assert_int_equal(set.n, 500);
  for (int64_t i = 1; i < 1000; i += 2) must(hk_ranges_add(&set, i, i + 1, &err), &err);
  assert_int_equal(set.n, 1);
  hk_ranges_free(&set);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_sets_equal_plain_ones),
      cmocka_unit_test(neighbours_become_one_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
