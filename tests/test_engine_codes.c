/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Momentum and variance in codes of 8 bits (engine/adamw/formats.h): what a block keeps of its
 * values, in double arithmetic; that expectations are exact; and that writing what was read changes
 * nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/adamw/formats.h"
#include "tests/random.h"

enum { BLOCK = HK_CODE_BLOCK, RANDOM = 65536 };

typedef struct {
  char p[8 * BLOCK], m[2 * BLOCK], v[2 * BLOCK], windows[4];
} coded;

static hk_state_at at_of(coded *c) {
  return (hk_state_at){.p = c->p, .m = c->m, .v = c->v, .windows = c->windows};
}

static void write_values(coded *c, int part, int64_t first, int64_t n, const float *x) {
  hk_format_write(HK_FORMAT_8BIT, part, first, n, at_of(c), x);
}

static void read_values(coded *c, int part, int64_t n, float *x) {
  hk_format_read(HK_FORMAT_8BIT, part, 0, n, at_of(c), x);
}

/* Of sizes 2^-lowest to 2^0, times `unit`. */
static float value_of_size(random_stream *r, double lowest, double unit, bool positive) {
  const double x = unit * exp2(-lowest * uniform(r));
  return (float)(positive || uniform(r) < 0.5 ? x : -x);
}

/* -- What a block keeps ------------------------------------------------------------------------ */

/* Distance of neighbouring values where x lies. */
static double spacing(double x) {
  return exp2(floor(log2(fabs(x))) - 3);
}

static void test_error_of_a_block(void **state) {
  (void)state;
  random_stream r = {1};
  for (int round = 0; round < 2000; round++) {
    const double unit = exp2(floor(180 * uniform(&r)) - 80);
    float x[BLOCK], got[BLOCK];
    coded c = {0};
    for (int part = 1; part <= 2; part++) {
      const double octaves = part == 1 ? 14 : 30;
      float largest = 0;
      for (int i = 0; i < BLOCK; i++) {
        x[i] = value_of_size(&r, octaves + 5, unit, part == 2);
        largest = fmaxf(largest, fabsf(x[i]));
      }
      x[0] = 0;
      write_values(&c, part, 0, BLOCK, x);
      read_values(&c, part, BLOCK, got);
      assert_true(got[0] == 0);
      for (int i = 1; i < BLOCK; i++) {
        const double size = fabs((double)x[i]), error = fabs((double)got[i] - (double)x[i]);
        if (size > ldexp((double)largest, -(int)octaves)) assert_true(error <= spacing(size) / 2);
        if (part == 1) assert_true(error <= fmax(spacing(size) / 2, ldexp((double)largest, -14)));
        if (part == 2) assert_true(got[i] > 0);
        if (part == 2)
          assert_true((double)got[i] <= fmax(1.07 * size, ldexp((double)largest, -30)));
        assert_true(signbit(got[i]) == signbit(x[i]));
      }
    }
  }
}

/* -- Expectations ------------------------------------------------------------------------------ */

/* Mean over all random bits of what an element keeps, in a block whose window is `window`. */
static double mean_kept(bool is_m, float x, uint32_t window) {
  const uint32_t bits = hk_bits_of(x);
  double sum = 0;
  for (uint32_t random = 0; random < RANDOM; random++) {
    const uint32_t add = hk_code_addend(random, 0);
    const uint32_t code = is_m ? hk_code_of_m(bits, window, add) : hk_code_of_v(bits, window, add);
    const float kept = hk_of_bits(hk_code_magnitude(is_m ? code & 0x7f : code, window));
    sum += (double)copysignf(kept, x);
  }
  return sum / RANDOM;
}

static void test_expectations_are_exact(void **state) {
  (void)state;
  random_stream r = {2};
  for (int round = 0; round < 400; round++) {
    const uint32_t window = (uint32_t)pick(&r, 1, 200);
    const double lowest = ldexp(1, (int)window - 127);
    const bool is_m = round % 2 == 0;
    const float x = value_of_size(&r, is_m ? 14 : 30, lowest * (is_m ? 0x1p14 : 0x1p30), !is_m);
    const double error = fabs(mean_kept(is_m, x, window) - (double)x);
    assert_true(error <= spacing((double)x) / RANDOM);
    if (window < 20) continue;
    const float below = value_of_size(&r, 12, lowest, false);
    assert_true(fabs(mean_kept(true, below, window) - (double)below) <= lowest / RANDOM);
    const float tiny = value_of_size(&r, 12, lowest, true);
    assert_true(mean_kept(false, tiny, window) == lowest);
  }
}

/* Of the four elements that share a word the upper 8 bits, which decide nearly all roundings: pairs
 * are equally frequent (chi-square, in standard deviations from its mean). */
static void test_shared_words_are_independent(void **state) {
  (void)state;
  enum { N = 1 << 19, PAIRS = 65536 };
  static const int of[] = {0, 1, 32, 33, 2, 64};
  static uint32_t counts[PAIRS];
  uint32_t key[2];
  hk_random_key(1, 2, 100, key);
  for (int a = 0; a < 4; a++) {
    for (int b = a + 1; b < 6; b++) {
      memset(counts, 0, sizeof counts);
      for (int64_t i = 0; i < N; i++) {
        const int64_t first = (i >> 4) * 64 + (i & 15) * 2;
        const uint32_t x = hk_code_random(key, first + of[a]) >> 12;
        counts[x << 8 | hk_code_random(key, first + of[b]) >> 12]++;
      }
      double sum = 0;
      for (int k = 0; k < PAIRS; k++) sum += pow(counts[k] - (double)N / PAIRS, 2) * PAIRS / N;
      assert_true(fabs(sum - (PAIRS - 1)) < 5 * sqrt(2.0 * (PAIRS - 1)));
    }
  }
}

/* -- Reading and writing ----------------------------------------------------------------------- */

static void random_codes(random_stream *r, coded *c) {
  for (int i = 0; i < 2 * BLOCK; i++) {
    c->m[i] = (char)(next(r) % 256);
    c->v[i] = (char)(next(r) % 256);
  }
  for (int b = 0; b < 2; b++) { /* without the largest values the window would be lower */
    c->m[b * BLOCK] = (char)HK_CODES_M, c->v[b * BLOCK] = (char)HK_CODES_V;
    c->windows[2 * b] = (char)pick(r, 1, 239), c->windows[2 * b + 1] = (char)pick(r, 1, 223);
  }
  for (int i = 0; i < 2 * BLOCK; i++) /* the only NaN that is kept */
    if ((c->m[i] & 0x7f) == HK_CODES_M + 2) c->m[i] = HK_CODES_M + 2;
}

/* Written in parts, in any order, over nothing: the codes are those that were read. */
static void test_codes_are_kept(void **state) {
  (void)state;
  random_stream r = {3};
  for (int round = 0; round < 2000; round++) {
    coded c = {0}, copy = {0};
    float x[2 * BLOCK];
    random_codes(&r, &c);
    for (int part = 1; part <= 2; part++) {
      read_values(&c, part, 2 * BLOCK, x);
      const int64_t cut = pick(&r, 1, 2 * BLOCK - 1);
      const bool later = uniform(&r) < 0.5;
      if (later) write_values(&copy, part, cut, 2 * BLOCK - cut, x + cut);
      write_values(&copy, part, 0, cut, x);
      if (!later) write_values(&copy, part, cut, 2 * BLOCK - cut, x + cut);
    }
    /* What is written first may be alone below the window of what follows. */
    float a[2 * BLOCK], b[2 * BLOCK];
    for (int part = 1; part <= 2; part++) {
      read_values(&c, part, 2 * BLOCK, a);
      read_values(&copy, part, 2 * BLOCK, b);
      assert_memory_equal(a, b, sizeof a);
    }
    assert_memory_equal(&c, &copy, sizeof c);
  }
}

/* Infinities and NaN stay, and do not change what the others keep; the largest finite value does
 * not become infinite. */
static void test_special_values(void **state) {
  (void)state;
  const float x[] = {INFINITY, 1, NAN, 1.25f, -INFINITY, -0.0f, 0x1p-20f};
  const float large[] = {0x1.fffffep127f, 0x1p127f};
  float got[7];
  coded c = {0};
  write_values(&c, 1, 0, 7, x);
  read_values(&c, 1, 7, got);
  assert_true(got[0] == INFINITY && got[4] == -INFINITY);
  assert_int_equal(hk_bits_of(got[2]), HK_NAN_BITS);
  assert_true(got[1] == 1 && got[3] == 1.25f && got[5] == 0 && signbit(got[5]));
  assert_true(got[6] == 0); /* below the window */
  for (int part = 1; part <= 2; part++) {
    memset(&c, 0, sizeof c);
    write_values(&c, part, 0, 2, large);
    read_values(&c, part, 2, got);
    assert_true(got[0] == 0x1.ep127f && got[1] == 0x1p127f);
  }
  memset(&c, 0, sizeof c);
  const float v[] = {INFINITY, NAN, 1, 0, 0x1p-149f};
  write_values(&c, 2, 0, 5, v);
  read_values(&c, 2, 5, got);
  assert_true(got[0] == INFINITY && isnan(got[1]) && got[2] == 1 && got[3] == 0 && got[4] > 0);
}

/* Both layouts keep every master weight, but for ties that would be rounded down, and the weight
 * nearest to it. */
static void test_masters(void **state) {
  (void)state;
  random_stream r = {4};
  for (int round = 0; round < 200000; round++) {
    const uint32_t low_half = round % 4 == 0 ? 0x8000 : (uint32_t)next(&r) & 0xffff;
    const float p = hk_canonical(hk_of_bits((uint32_t)(next(&r) << 16) | low_half));
    const bool down = (hk_bits_of(p) & 0x1ffffu) == 0x8000u;
    char high[2], low[2], whole[4];
    const hk_state_at split = {.p = high, .low = low}, plain = {.p = whole};
    float got[2];
    uint16_t w;
    hk_format_write(HK_FORMAT_8BIT_SPLIT, 0, 0, 1, split, &p);
    hk_format_read(HK_FORMAT_8BIT_SPLIT, 0, 0, 1, split, &got[0]);
    hk_format_write(HK_FORMAT_8BIT, 0, 0, 1, plain, &p);
    hk_format_read(HK_FORMAT_8BIT, 0, 0, 1, plain, &got[1]);
    memcpy(&w, high, 2);
    assert_int_equal(hk_bits_of(got[0]), hk_bits_of(p) - down);
    assert_int_equal(hk_bits_of(got[1]), hk_bits_of(p) - down);
    assert_int_equal(w, hk_to_bf16(p));
    assert_int_equal(w, hk_to_bf16(got[0]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_error_of_a_block), cmocka_unit_test(test_expectations_are_exact),
      cmocka_unit_test(test_codes_are_kept),   cmocka_unit_test(test_special_values),
      cmocka_unit_test(test_masters),          cmocka_unit_test(test_shared_words_are_independent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
