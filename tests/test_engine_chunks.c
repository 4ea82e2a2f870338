/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Chunks of the team's work: each element is in exactly one chunk, no chunk exceeds the limit,
 * and the last chunks are small. */
#include "engine/device/chunks.h"
#include "tests/fixture.h"

static int64_t size_of(const hk_chunks *c, int64_t chunk) {
  return hk_chunk_begin(c, chunk + 1) - hk_chunk_begin(c, chunk);
}

static void check(int64_t n, int64_t most, int threads) {
  const hk_chunks c = hk_chunks_of(n, most, threads);
  const int64_t limit = (most + HK_CHUNK_ALIGN - 1) / HK_CHUNK_ALIGN * HK_CHUNK_ALIGN;
  int64_t before = limit;
  assert_int_equal(hk_chunk_begin(&c, 0), 0);
  assert_int_equal(hk_chunk_begin(&c, c.count), n);
  for (int64_t i = 0; i < c.count; i++) {
    const int64_t size = size_of(&c, i);
    assert_int_equal(hk_chunk_begin(&c, i) % HK_CHUNK_ALIGN, 0);
    assert_in_range(size, 1, before);
    before = size;
  }
}

static void test_cover_everything(void **state) {
  (void)state;
  static const int64_t amounts[] = {0,     1,      63,     64,      65,      4095,     4097,
                                    65536, 100000, 528384, 5255561, 1 << 20, 21022241, 100000007};
  static const int64_t mosts[] = {1, 64, 1000, 4096, 65536, 1 << 20};
  for (size_t a = 0; a < sizeof amounts / sizeof *amounts; a++)
    for (size_t m = 0; m < sizeof mosts / sizeof *mosts; m++)
      for (int threads = 1; threads <= 64; threads = threads * 3 / 2 + 1)
        check(amounts[a], mosts[m], threads);
}

/* 8 threads, by hand: chunks of 64 Ki until 16 of them are left, two for each thread; then rounds
 * of 8 chunks that take half of what is left, down to chunks of 4 Ki. */
static void test_by_hand(void **state) {
  (void)state;
  const hk_chunks c = hk_chunks_of(18 * 65536, 65536, 8);
  assert_int_equal(size_of(&c, 0), 65536);
  assert_int_equal(size_of(&c, 1), 65536);
  /* 16 x 64 Ki left: 8 of 64 Ki; 8 x 64 Ki left: 8 of 32 Ki; and so on to 4 Ki */
  assert_int_equal(size_of(&c, 9), 65536);
  assert_int_equal(size_of(&c, 10), 32768);
  assert_int_equal(size_of(&c, 18), 16384);
  assert_int_equal(size_of(&c, 26), 8192);
  assert_int_equal(size_of(&c, 34), 4096);
  assert_int_equal(c.count, 2 + 8 + 8 + 8 + 8 + 16);
}

/* Threads of equal speed take the next chunk when they are done: the last one ends at most
 * HK_CHUNK_LEAST elements after the mean. */
static void test_small_work_is_even(void **state) {
  (void)state;
  enum { THREADS = 8 };
  const hk_chunks c = hk_chunks_of(528384, 65536, THREADS);
  int64_t busy[THREADS] = {0}, most = 0;
  for (int64_t i = 0; i < c.count; i++) {
    int first = 0;
    for (int t = 1; t < THREADS; t++)
      if (busy[t] < busy[first]) first = t;
    busy[first] += size_of(&c, i);
  }
  for (int t = 0; t < THREADS; t++)
    if (busy[t] > most) most = busy[t];
  assert_true(most - 528384 / THREADS <= HK_CHUNK_LEAST);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cover_everything),
      cmocka_unit_test(test_by_hand),
      cmocka_unit_test(test_small_work_is_even),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
