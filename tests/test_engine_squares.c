/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Sums of squares against exact binary addition digit by digit, and their rounding against strtod.
 */
#include "tests/fixture.h"

#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/adamw/squares.h"

/* A word of 64 bits holds the sum of 2^28 of the largest squares at the largest shift. */
_Static_assert((uint64_t)2047 * 2047 << 14 <= UINT64_MAX >> 28, "fp16");
_Static_assert((uint64_t)255 * 255 << 14 <= UINT64_MAX >> 28, "bf16");

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_state;

static uint64_t next(void) {
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* -- Addition on paper: one binary digit a byte ------------------------------------------------ */

enum { DIGITS = 64 * HK_SQUARES_WORDS, LOWEST = -298 };

typedef struct {
  uint8_t digit[DIGITS];
  uint64_t nonfinite;
} paper;

/* Adds value x 2^exponent. */
static void paper_add(paper *sum, uint64_t value, int exponent) {
  for (int bit = 0; bit < 64; bit++) {
    if ((value >> bit & 1) == 0) continue;
    int at = bit + exponent - LOWEST;
    assert_in_range(at, 0, DIGITS - 1);
    while (sum->digit[at] == 1) sum->digit[at++] = 0;
    sum->digit[at] = 1;
  }
}

static uint32_t load(hk_grad_type type, const void *grad, int64_t i) {
  uint32_t bits = 0;
  memcpy(&bits, (const char *)grad + (size_t)i * hk_grad_size(type), hk_grad_size(type));
  return bits; /* little-endian */
}

static void paper_add_square(paper *sum, hk_grad_type type, uint32_t h) {
  static const int fractions[] = {7, 10, 23};
  const int fraction_bits = fractions[type];
  const int most = type == HK_GRAD_FP16 ? 31 : 255, bias = most / 2;
  const int exponent = (int)(h >> fraction_bits) & most;
  uint64_t s = h & ((1u << fraction_bits) - 1);
  if (exponent == most) {
    sum->nonfinite++;
  } else if (exponent == 0) {
    paper_add(sum, s * s, 2 * (1 - bias - fraction_bits));
  } else {
    s += 1u << fraction_bits;
    paper_add(sum, s * s, 2 * (exponent - bias - fraction_bits));
  }
}

static void assert_same(const hk_squares *sum, const paper *want) {
  for (int i = 0; i < DIGITS; i++) {
    assert_int_equal(sum->words[i / 64] >> i % 64 & 1, want->digit[i]);
  }
  assert_int_equal(sum->nonfinite, want->nonfinite);
}

/* -- tests ------------------------------------------------------------------------------------- */

static const hk_grad_type types[] = {HK_GRAD_BF16, HK_GRAD_FP16, HK_GRAD_FP32};
enum { TYPES = sizeof types / sizeof types[0] };

static void test_each_value(void **state) {
  (void)state;
  for (int t = 0; t < 2; t++) {
    for (uint32_t i = 0; i < 65536; i++) {
      const uint16_t h = (uint16_t)i;
      hk_squares sum = {0};
      paper want = {0};
      hk_squares_add(&sum, types[t], 1, &h);
      paper_add_square(&want, types[t], h);
      assert_same(&sum, &want);
    }
  }
}

/* Every sign and exponent of fp32, with the fractions 0, 1 and all ones, and three random ones. */
static void test_each_exponent(void **state) {
  (void)state;
  random_state = 4;
  for (uint32_t high = 0; high < 512; high++) {
    for (int i = 0; i < 6; i++) {
      const uint32_t fraction = i == 0 ? 0 : i == 1 ? 1 : i == 2 ? 0x7fffff : next() & 0x7fffff;
      const uint32_t bits = high << 23 | fraction;
      hk_squares sum = {0};
      paper want = {0};
      hk_squares_add(&sum, HK_GRAD_FP32, 1, &bits);
      paper_add_square(&want, HK_GRAD_FP32, bits);
      assert_same(&sum, &want);
    }
  }
}

/* Random words, in half of the calls only finite ones. */
static void random_grads(uint16_t *grad, int n) {
  const uint64_t mask = next() % 2 == 0 ? 0xffff : 0xbfff;
  for (int i = 0; i < n; i++) grad[i] = (uint16_t)(next() & mask);
}

static void test_random_sums(void **state) {
  (void)state;
  enum { MOST = 1500 };
  uint16_t room[2 * MOST + 1];
  for (random_state = 0; random_state < 300; random_state++) {
    const hk_grad_type type = types[next() % TYPES];
    const int n = (int)(next() % MOST);
    random_grads(room, 2 * MOST + 1);
    /* In half of the cases at an odd address. */
    char *grad = (char *)room + next() % 2;
    hk_squares sum = {0};
    paper want = {0};
    hk_squares_add(&sum, type, n, grad);
    for (int i = 0; i < n; i++) paper_add_square(&want, type, load(type, grad, i));
    assert_same(&sum, &want);
  }
}

/* Any split, order and grouping of the values gives the same words. */
static void test_order_does_not_matter(void **state) {
  (void)state;
  enum { N = 20000, PARTS = 7 };
  static uint16_t grad[2 * N];
  random_state = 1;
  random_grads(grad, 2 * N);
  for (int t = 0; t < TYPES; t++) {
    hk_squares whole = {0}, parts[PARTS] = {0}, backward = {0};
    hk_squares_add(&whole, types[t], N, grad);
    for (int begin = 0, part = 0; begin < N; part++) {
      int n = (int)(next() % 3000);
      if (n > N - begin) n = N - begin;
      hk_squares_add(&parts[part % PARTS], types[t], n,
                     (const char *)grad + (size_t)begin * hk_grad_size(types[t]));
      begin += n;
    }
    for (int part = PARTS - 1; part >= 0; part--) hk_squares_merge(&backward, &parts[part]);
    assert_memory_equal(&whole, &backward, sizeof whole);
  }
}

/* Sums of bins with random and with the largest contents, 300 times. */
static void test_bins(void **state) {
  (void)state;
  random_state = 2;
  for (int t = 0; t < 2; t++) {
    const int n_bins = types[t] == HK_GRAD_BF16 ? 32 : 4,
              base = types[t] == HK_GRAD_BF16 ? 134 : 25;
    hk_squares sum = {0};
    paper want = {0};
    for (int round = 0; round < 300; round++) {
      uint64_t bins[HK_SQUARES_BINS] = {0};
      for (int b = 0; b < n_bins; b++) {
        bins[b] = round % 3 == 0 ? UINT64_MAX : next();
        if (b == 0) bins[b] &= ~UINT64_C(3); /* the least exponent there is 1 */
        paper_add(&want, bins[b] >> (b == 0 ? 2 : 0), 2 * (8 * b - base) + (b == 0 ? 2 : 0));
      }
      hk_squares_add_bins(&sum, types[t], bins);
    }
    assert_same(&sum, &want);
  }
}

/* Sums of sets of fp32, and sizes of the sets of all types. */
static void test_sets(void **state) {
  (void)state;
  random_state = 5;
  hk_squares sum = {0};
  paper want = {0};
  for (int round = 0; round < 300; round++) {
    uint64_t set[HK_SQUARES_MOST_WORDS];
    assert_int_equal(hk_squares_bin_words(HK_GRAD_FP32), HK_SQUARES_FP32_BINS + 1);
    for (int i = 0; i < HK_SQUARES_FP32_BINS; i++) {
      set[i] = round % 3 == 0 ? UINT64_MAX : next();
      paper_add(&want, set[i], 32 * i - 298);
    }
    set[HK_SQUARES_FP32_BINS] = (uint64_t)round;
    want.nonfinite += (uint64_t)round;
    hk_squares_add_set(&sum, HK_GRAD_FP32, set);
  }
  assert_same(&sum, &want);
  for (int t = 0; t < 2; t++) {
    uint64_t set[HK_SQUARES_BINS + 1] = {[2] = 77, [HK_SQUARES_BINS] = 5};
    hk_squares bins = {.nonfinite = 5}, all = {0};
    assert_int_equal(hk_squares_bin_words(types[t]), HK_SQUARES_BINS + 1);
    hk_squares_add_bins(&bins, types[t], set);
    hk_squares_add_set(&all, types[t], set);
    assert_memory_equal(&bins, &all, sizeof all);
  }
}

/* hk_squares_fill_set gives the sum of hk_squares_add. */
static void test_fill_set(void **state) {
  (void)state;
  enum { N = 70000 };
  static uint16_t grad[2 * N];
  for (random_state = 6; random_state < 40; random_state++) {
    const hk_grad_type type = types[next() % TYPES];
    const int64_t n = next() % 4 == 0 ? N : (int64_t)(next() % 300), cut = n / 3;
    random_grads(grad, 2 * N);
    const char *rest = (const char *)grad + (size_t)cut * hk_grad_size(type);
    hk_squares want = {0}, got = {0};
    uint64_t set[HK_SQUARES_MOST_WORDS] = {0};
    hk_squares_add(&want, type, n, grad);
    hk_squares_fill_set(set, type, cut, grad);
    hk_squares_fill_set(set, type, n - cut, rest);
    hk_squares_add_set(&got, type, set);
    assert_memory_equal(&want, &got, sizeof got);
  }
}

/* Sets of a single value: all 16-bit values, and all upper halves of fp32. */
static void test_fill_set_with_one(void **state) {
  (void)state;
  random_state = 41;
  for (int t = 0; t < TYPES; t++) {
    for (uint32_t i = 0; i < 65536; i++) {
      const uint32_t value = types[t] == HK_GRAD_FP32 ? i << 16 | (uint32_t)(next() & 0xffff) : i;
      hk_squares want = {0}, got = {0};
      uint64_t set[HK_SQUARES_MOST_WORDS] = {0};
      hk_squares_add(&want, types[t], 1, &value);
      hk_squares_fill_set(set, types[t], 1, &value);
      hk_squares_add_set(&got, types[t], set);
      assert_memory_equal(&want, &got, sizeof got);
    }
  }
}

/* 300,000 times the largest fp32 value, which would overflow sums of 64 bits by exponent. */
static void test_many_large(void **state) {
  (void)state;
  enum { N = 300000 };
  uint32_t *grad = malloc(N * sizeof *grad);
  assert_non_null(grad);
  if (grad == NULL) return; /* for the analyser */
  for (int i = 0; i < N; i++) grad[i] = 0x7f7fffff;
  hk_squares sum = {0}, one = {0}, all = {0};
  hk_squares_add(&sum, HK_GRAD_FP32, N, grad);
  hk_squares_add(&one, HK_GRAD_FP32, 1, grad);
  for (int i = 0; i < N; i++) hk_squares_merge(&all, &one);
  assert_memory_equal(&sum, &all, sizeof all);
  free(grad);
}

/* More than HK_SQUARES_MOST values, all the largest: 2 MiB of memory, mapped repeatedly. */
static void test_more_than_bins_take(void **state) {
  (void)state;
  if (is_sanitized()) skip();
  enum { PIECE = 1 << 20 };
  const size_t bytes = PIECE * sizeof(uint16_t);
  const int64_t pieces = HK_SQUARES_MOST / PIECE + 1;
  const int file = memfd_create("grad", 0);
  assert_true(file >= 0 && ftruncate(file, (off_t)bytes) == 0);
  char *all = mmap(NULL, bytes * (size_t)pieces, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(all != MAP_FAILED);
  for (int64_t i = 0; i < pieces; i++) {
    char *at = all + bytes * (size_t)i;
    assert_ptr_equal(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), at);
  }
  const uint16_t largest = 0x7bff; /* fp16's: its squares fill the bins, not bf16's */
  for (size_t i = 0; i < PIECE; i++) memcpy(all + 2 * i, &largest, sizeof largest);
  hk_squares sum = {0};
  hk_squares_add(&sum, HK_GRAD_FP16, pieces * PIECE, all);
  /* A square of 22 bits and a count of 29 are exact in a double. */
  assert_true(hk_squares_value(&sum) == 65504.0 * 65504 * (double)(pieces * PIECE));
  assert_int_equal(sum.nonfinite, 0);
  munmap(all, bytes * (size_t)pieces);
  close(file);
}

/* The rounded sum: strtod rounds a hexadecimal number of any length correctly. */
static double rounded(const hk_squares *sum) {
  char text[16 * HK_SQUARES_WORDS + 16];
  int n = sprintf(text, "0x");
  for (int i = HK_SQUARES_WORDS - 1; i >= 0; i--) {
    n += sprintf(text + n, "%016llx", (unsigned long long)sum->words[i]);
  }
  sprintf(text + n, "p%d", LOWEST);
  return strtod(text, NULL);
}

/* Random numbers with dense bits, with sparse bits, or near the midpoint of two doubles. */
static void random_sum(hk_squares *sum) {
  memset(sum, 0, sizeof *sum);
  const int length = 1 + (int)(next() % DIGITS), kind = (int)(next() % 4);
  for (int i = 0; i < length; i++) {
    const bool leading = i >= length - 53;
    const uint64_t bit = i == length - 1 ? 1
                         : kind == 0     ? next() % 2
                         : kind == 1     ? next() % 64 == 0
                         : kind == 2     ? leading ? next() % 2 : i == length - 54
                         : leading       ? next() % 2
                                         : i < length - 54;
    sum->words[i / 64] |= bit << i % 64;
  }
  if (kind >= 2 && next() % 2 == 0) sum->words[0] |= 1;
}

static void test_value_is_rounded_once(void **state) {
  (void)state;
  for (random_state = 3; random_state < 50000; random_state++) {
    hk_squares sum;
    random_sum(&sum);
    assert_true(hk_squares_value(&sum) == rounded(&sum));
  }
}

/* Values dealt out to ranks at random: the words of the ranks' sums, added up as integers, stand
 * for the sum of one process. */
static void test_pieces_of_ranks(void **state) {
  (void)state;
  enum { MOST = 3000, RANKS = 7 };
  uint16_t grad[2 * MOST];
  for (random_state = 0; random_state < 200; random_state++) {
    const hk_grad_type type = types[next() % TYPES];
    const int n = (int)(next() % MOST), ranks = 1 + (int)(next() % RANKS);
    random_grads(grad, 2 * MOST);
    hk_squares all = {0}, share[RANKS] = {{{0}, 0}};
    hk_squares_add(&all, type, n, grad);
    for (int i = 0; i < n; i++) {
      hk_squares_add(&share[next() % (uint64_t)ranks], type, 1,
                     (const char *)grad + (size_t)i * hk_grad_size(type));
    }
    int64_t total[HK_SQUARES_PIECES] = {0}, pieces[HK_SQUARES_PIECES];
    for (int r = 0; r < ranks; r++) {
      hk_squares_to_pieces(&share[r], pieces);
      for (int i = 0; i < HK_SQUARES_PIECES; i++) total[i] += pieces[i];
    }
    hk_squares found = {0};
    hk_error err = {0};
    assert_int_equal(hk_squares_from_pieces(total, &found, &err), HK_OK);
    assert_memory_equal(&found, &all, sizeof all);
  }
}

/* The most that 2^31 - 1 ranks may add up to fits, with all carries; one more piece than an int64_t
 * holds, or than a sum has bits, is refused and changes nothing. */
static void test_room_for_ranks(void **state) {
  (void)state;
  const int64_t ranks = INT32_MAX;
  int64_t pieces[HK_SQUARES_PIECES] = {0};
  for (int i = 0; i < 6; i++) pieces[i] = ranks * UINT32_MAX;
  pieces[HK_SQUARES_PIECES - 1] = INT64_MAX;
  paper want = {.nonfinite = INT64_MAX};
  for (int i = 0; i < 6; i++) paper_add(&want, (uint64_t)pieces[i], 32 * i + LOWEST);
  hk_squares found = {0};
  hk_error err = {0};
  assert_int_equal(hk_squares_from_pieces(pieces, &found, &err), HK_OK);
  assert_same(&found, &want);
  const hk_squares before = found;
  for (int i = 0; i < HK_SQUARES_PIECES; i++) {
    int64_t wrong[HK_SQUARES_PIECES] = {0};
    wrong[i] = (int64_t)((uint64_t)INT64_MAX + 1);
    assert_int_equal(hk_squares_from_pieces(wrong, &found, &err), HK_INPUT);
    assert_non_null(strstr(err.message, "2^31 ranks"));
    assert_memory_equal(&found, &before, sizeof found);
  }
  int64_t many[HK_SQUARES_PIECES] = {0};
  many[HK_SQUARES_PIECES - 2] = (int64_t)1 << 32;
  assert_int_equal(hk_squares_from_pieces(many, &found, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "more than 640 bits"));
  assert_memory_equal(&found, &before, sizeof found);
  many[HK_SQUARES_PIECES - 2]--;
  assert_int_equal(hk_squares_from_pieces(many, &found, &err), HK_OK);
}

static void test_values(void **state) {
  (void)state;
  assert_true(hk_squares_value(&(hk_squares){0}) == 0);
  const uint16_t ones[] = {0x3f80, 0xbf80, 0x4040, 0x0001}; /* 1, -1, 3, 2^-133 */
  hk_squares sum = {0};
  hk_squares_add(&sum, HK_GRAD_BF16, 3, ones);
  assert_true(hk_squares_value(&sum) == 11);
  hk_squares least = {0};
  hk_squares_add(&least, HK_GRAD_BF16, 1, ones + 3);
  assert_true(hk_squares_value(&least) == 0x1p-266);
  const uint16_t half[] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0xfe00}; /* 1, -2, 2^-24, inf, nan */
  hk_squares h = {0};
  hk_squares_add(&h, HK_GRAD_FP16, 5, half);
  assert_true(hk_squares_value(&h) == 5 + 0x1p-48);
  assert_int_equal(h.nonfinite, 2);
  const float wide[] = {3, 0x1p-149f, -0x1p127f, (float)INFINITY};
  hk_squares f = {0}, small = {0}, large = {0};
  hk_squares_add(&f, HK_GRAD_FP32, 1, wide);
  assert_true(hk_squares_value(&f) == 9);
  hk_squares_add(&small, HK_GRAD_FP32, 1, wide + 1);
  assert_true(hk_squares_value(&small) == 0x1p-298);
  hk_squares_add(&large, HK_GRAD_FP32, 2, wide + 2);
  assert_true(hk_squares_value(&large) == 0x1p254);
  assert_int_equal(large.nonfinite, 1);
}

static void test_grad_scale(void **state) {
  (void)state;
  assert_true(hk_grad_scale(25, 0, 1) == 1);
  assert_true(hk_grad_scale(25, -1, 4) == 0.25);
  assert_true(hk_grad_scale(25, 10, 1) == 1);             /* norm 5: not clipped */
  assert_true(hk_grad_scale(25, 1, 1) == 1 / (5 + 1e-6)); /* clipped */
  assert_true(hk_grad_scale(25, 1, 8) == 0.125);          /* norm 5 / 8 */
  assert_true(hk_grad_scale(400, 1, 2) == 1 / (10 + 1e-6) / 2);
  assert_true(hk_grad_scale(0, 1e-9, 1) == 1e-9 / 1e-6); /* as in torch: norm 0, limit below 1e-6 */
  assert_true(hk_grad_scale(0, 1, 65536) == 0x1p-16);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_value),
      cmocka_unit_test(test_each_exponent),
      cmocka_unit_test(test_random_sums),
      cmocka_unit_test(test_order_does_not_matter),
      cmocka_unit_test(test_bins),
      cmocka_unit_test(test_sets),
      cmocka_unit_test(test_fill_set),
      cmocka_unit_test(test_fill_set_with_one),
      cmocka_unit_test(test_many_large),
      cmocka_unit_test(test_more_than_bins_take),
      cmocka_unit_test(test_value_is_rounded_once),
      cmocka_unit_test(test_pieces_of_ranks),
      cmocka_unit_test(test_room_for_ranks),
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_grad_scale),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
