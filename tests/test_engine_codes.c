/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Momentum and variance in codes of 8 bits (engine/adamw/formats.h): what a block keeps of its
 * values, in double arithmetic; that expectations are exact; that writing what was read changes
 * nothing; and kernels on blocks of a kind that random ones hardly are. */
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

/* -- Kernels, where random blocks hardly come ------------------------------------------------- */

enum { MOST_BLOCKS = 48, MOST_BYTES = MOST_BLOCKS * (8 * BLOCK + 2) };

/* State of n blocks, one array after the other. */
static hk_state_at blocks_at(char *state, int64_t n) {
  char *const moments = state + 6 * BLOCK * n;
  return (hk_state_at){.p = state,
                       .low = state + 4 * BLOCK * n,
                       .m = moments,
                       .v = moments + BLOCK * n,
                       .windows = moments + 2 * BLOCK * n};
}

/* The update of n blocks, whose p are 0, in every kernel and both formats against the reference.
 * They begin at block `first` of their tensor. */
static void compare_blocks(const hk_adamw_step *step, int64_t first, int64_t n, const char *start,
                           const float *grads, const char *what) {
  static char want[MOST_BYTES], got[MOST_BYTES];
  const int64_t bytes = n * (8 * BLOCK + 2), index = first * BLOCK;
  size_t n_kernels;
  const hk_cpu_kernels *list = hk_cpu_kernels_list(&n_kernels);
  const hk_state_at a = blocks_at(want, n), b = blocks_at(got, n);
  for (int format = HK_FORMAT_8BIT; format <= HK_FORMAT_8BIT_SPLIT; format++) {
    const hk_format f = (hk_format)format;
    memcpy(want, start, (size_t)bytes);
    hk_update_scalar(f, step, HK_GRAD_FP32, n * BLOCK, a, a, grads, NULL, index);
    for (size_t k = 0; k < n_kernels; k++) {
      if (!list[k].supported || list[k].update == hk_update_scalar) continue;
      memcpy(got, start, (size_t)bytes);
      list[k].update(f, step, HK_GRAD_FP32, n * BLOCK, b, b, grads, NULL, index);
      for (int64_t i = 0; memcmp(got, want, (size_t)bytes) != 0; i++) {
        if (got[i] != want[i])
          fail_msg("%s, format %d, %s: byte %lld (m from %d, v from %d) is %02x, not %02x",
                   list[k].name, format, what, (long long)i, (int)(a.m - want), (int)(a.v - want),
                   (unsigned)(uint8_t)got[i], (unsigned)(uint8_t)want[i]);
      }
    }
  }
}

/* A block whose gradients are `g`, the last one `last`, and whose v are 1 or, the last one,
 * `last_v`. */
static void compare_block(const hk_adamw_step *step, float g, float last, float last_v) {
  char start[8 * BLOCK + 2] = {0}, what[100];
  float grads[BLOCK], v[BLOCK];
  for (int i = 0; i < BLOCK; i++) grads[i] = g, v[i] = 1;
  grads[BLOCK - 1] = last, v[BLOCK - 1] = last_v;
  const hk_state_at at = blocks_at(start, 1);
  hk_format_write(HK_FORMAT_8BIT, 2, 0, BLOCK, at, v);
  at.windows[0] = 1;
  snprintf(what, sizeof what, "gradients %a and %a, v %a", (double)g, (double)last, (double)last_v);
  compare_blocks(step, 0, 1, start, grads, what);
}

/* m becomes the gradient and v stays: one element any number of octaves below the window, or
 * without a v, or infinite after rounding. */
static void test_one_value_apart(void **state) {
  (void)state;
  const hk_adamw_step keep = {
      .scale = 1, .decay = 1, .rest1 = 1, .beta2 = 1, .root2 = 1, .size = 1};
  hk_adamw_step forget = keep;
  forget.beta2 = 0;
  for (int exponent = -126; exponent < 128; exponent += 23) {
    const float g = ldexpf(1.3f, exponent);
    for (int lower = 0; lower < exponent + 150; lower++)
      compare_block(&keep, g, ldexpf(-1.6f, exponent - lower), 1);
    compare_block(&keep, g, 0, 1);
    compare_block(&keep, g, g, 0);
    compare_block(&keep, g, 0x1.fffffep127f, 1);
    compare_block(&forget, g, g, 1);
  }
}

/* The element of a block to whose magnitude most is added, or least. */
static int place_of_addend(const uint32_t key[2], int64_t block, bool most) {
  int place = 0;
  uint32_t best = most ? 0 : ~0u;
  for (int i = 0; i < BLOCK; i++) {
    const uint32_t x = hk_code_random(key, block * BLOCK + i);
    if (most ? x > best : x < best) place = i, best = x;
  }
  return place;
}

/* Magnitudes beside each decision about the lower edge of a window: in pairs that lie next to each
 * other, of which one is rounded down and one up, if `add` is added; and the smallest ones. */
enum { NEAR_EDGE = 16 };

static void magnitudes_near_edge(uint32_t window, uint32_t add, uint32_t x[NEAR_EDGE]) {
  const uint32_t unit = 1u << HK_FINEST, edge = 8 * window * unit;
  /* The least whose share of the window's value is above the random bits. */
  const uint32_t up = hk_bits_of(ldexpf((float)((add >> 4) + 1), (int)window - 127 - 16));
  const uint32_t list[NEAR_EDGE] = {edge,
                                    edge - 1,
                                    edge - add,
                                    edge - add - 1,
                                    edge + unit,
                                    edge + unit - 1,
                                    edge + unit - add,
                                    edge + unit - add - 1,
                                    up,
                                    up - 1,
                                    edge - unit,
                                    edge - 8 * unit,
                                    0,
                                    1,
                                    0x7fffffu,
                                    0x800000u};
  memcpy(x, list, sizeof list);
}

/* m becomes the gradient and v stays. One value of each block is near the edge of the window, where
 * most or least is added, or first: in every window, with both signs. */
static void test_m_at_the_edge_of_the_window(void **state) {
  (void)state;
  enum { PLACES = 3 };
  static char start[MOST_BYTES];
  static float grads[MOST_BLOCKS * BLOCK];
  const hk_state_at at = blocks_at(start, MOST_BLOCKS);
  hk_adamw_step step = {.scale = 1, .decay = 1, .rest1 = 1, .beta2 = 1, .root2 = 1, .size = 1};
  hk_random_key(1, 2, 3, step.key);
  memset(start, 0, sizeof start);
  memset(at.v, HK_CODES_V, (size_t)MOST_BLOCKS * BLOCK);
  memset(at.windows, 100, (size_t)2 * MOST_BLOCKS);
  for (uint32_t window = 1; window <= 240; window++) {
    for (uint32_t sign = 0; sign < 2; sign++) {
      const int64_t first = (int64_t)window * MOST_BLOCKS;
      for (int k = 0; k < MOST_BLOCKS; k++) {
        uint32_t x[NEAR_EDGE];
        const int how = k % PLACES;
        const int place = how == 0 ? 0 : place_of_addend(step.key, first + k, how == 1);
        magnitudes_near_edge(window, hk_code_random(step.key, (first + k) * BLOCK + place), x);
        for (int i = 0; i < BLOCK; i++)
          grads[k * BLOCK + i] = hk_of_bits((8 * window + 118) << HK_FINEST);
        grads[k * BLOCK + place] = hk_of_bits(x[k / PLACES] | sign << 31);
      }
      char what[100];
      snprintf(what, sizeof what, "window %u, sign %u", window, sign);
      compare_blocks(&step, first, MOST_BLOCKS, start, grads, what);
    }
  }
}

/* m stays and v is multiplied by beta2. One value of each block has a code near 1. */
static void test_v_at_the_edge_of_the_window(void **state) {
  (void)state;
  static const int lowest[] = {0, 1, 2, 9}, highest[] = {247, 253};
  static const float factors[] = {
      1, 0x1.fffffep-1f, 0x1.000002p0f, 0x1.ep-1f, 0x1.00002p-1f, 0x1p-23f, 0};
  enum { BLOCKS = 2 * 4 };
  static const float grads[BLOCKS * BLOCK];
  static char start[MOST_BYTES];
  const hk_state_at at = blocks_at(start, BLOCKS);
  hk_adamw_step step = {.scale = 1, .decay = 1, .root2 = 1, .size = 1};
  hk_random_key(1, 2, 4, step.key);
  memset(at.m, HK_CODES_M - 5, (size_t)BLOCKS * BLOCK);
  for (int window = 1; window <= 224; window++) {
    for (int f = 0; f < 7; f++) {
      const int64_t first = (window * 7 + f) * BLOCKS;
      step.beta2 = factors[f];
      for (int k = 0; k < BLOCKS; k++) {
        const int place = k % 3 == 0 ? 0 : place_of_addend(step.key, first + k, k % 3 == 1);
        memset(at.v + (ptrdiff_t)k * BLOCK, highest[k / 4], BLOCK);
        at.v[k * BLOCK + place] = (char)lowest[k % 4];
        at.windows[2 * k] = 100, at.windows[2 * k + 1] = (char)window;
      }
      char what[100];
      snprintf(what, sizeof what, "window %d, beta2 %a", window, (double)step.beta2);
      compare_blocks(&step, first, BLOCKS, start, grads, what);
    }
  }
}

/* d is sqrt(v) / root2, here v = g * g. These are values for which the sum of products with the two
 * parts of 1 / root2 is one unit in the last place off. */
static void test_division_by_root2(void **state) {
  (void)state;
  static const float hard[][2] = {{0x1.a841acp+0f, 0x1.b33bb6p-1f},
                                  {0x1.7dd9a8p+0f, 0x1.ce7f06p-1f}};
  random_stream r = {4};
  for (int i = 0; i < 500; i++) {
    const float g = i < 2 ? hard[i][0] : (float)(1 + 3 * uniform(&r));
    hk_adamw_step step = {.scale = 1, .rest1 = 1, .rest2 = 1, .size = 1};
    step.root2 = i < 2 ? hard[i][1] : (float)uniform(&r);
    compare_block(&step, g, (float)(1 + 3 * uniform(&r)), 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_error_of_a_block),
      cmocka_unit_test(test_expectations_are_exact),
      cmocka_unit_test(test_codes_are_kept),
      cmocka_unit_test(test_special_values),
      cmocka_unit_test(test_masters),
      cmocka_unit_test(test_shared_words_are_independent),
      cmocka_unit_test(test_one_value_apart),
      cmocka_unit_test(test_division_by_root2),
      cmocka_unit_test(test_m_at_the_edge_of_the_window),
      cmocka_unit_test(test_v_at_the_edge_of_the_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
