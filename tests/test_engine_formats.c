/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The formats of state: master weights in two halves, rounded moments, random bits. The reference
 * is compared with the fp32 update and with roundings of this file's own, the other kernels with
 * the reference, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/adamw/formats.h"
#include "tests/fixture_float.h"

#define NAN_BITS 0x7fc00000u

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_state;

static uint64_t next(void) {
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Special values, random bits, subnormals, ties of bf16, and ordinary numbers. */
static uint32_t random_pattern(void) {
  static const uint32_t special[] = {0,           0x80000000u, 1,           0x80000001u,
                                     0x007fffffu, 0x00800000,  0x7f7fffff,  0xff7fffffu,
                                     0x7f7f8000u, 0xff7f8000u, 0x7f7f7fffu, 0x7f800000,
                                     0xff800000u, 0x7fc00000,  0x3f808000u, 0x3f818000u};
  const uint64_t r = next();
  const uint32_t bits = (uint32_t)(r >> 32);
  switch (r % 8) {
    case 0:
      return special[(r >> 8) % (sizeof special / sizeof special[0])];
    case 1:
      return bits;
    case 2:
      return bits & 0x807fffffu;
    case 3:
      return (bits & 0xffff0000u) | 0x8000u;
    default: /* about 2^-24 to 2^8 */
      return (bits & 0x807fffffu) | (uint32_t)(103 + (r >> 8) % 32) << 23;
  }
}

static float value_of_pattern(uint32_t bits) {
  return hk_canonical(hk_of_bits(bits));
}

/* -- Split ------------------------------------------------------------------------------------- */

/* The bf16 nearest to x, by comparing the distances of both neighbours. */
static uint16_t nearest_bf16(float x) {
  if (isnan(x)) return 0x7fc0;
  const uint32_t below = hk_bits_of(x) & 0xffff0000u, above = below + 0x10000u;
  if (isinf(x)) return (uint16_t)(below >> 16);
  const double high =
      isinf(hk_of_bits(above)) ? copysign(0x1p128, (double)x) : (double)hk_of_bits(above);
  const double down = fabs((double)x - (double)hk_of_bits(below)), up = fabs(high - (double)x);
  const bool take_above = up < down || (up == down && (below >> 16 & 1) != 0);
  return (uint16_t)((take_above ? above : below) >> 16);
}

/* The upper halves around which something changes: zeros, subnormals, exponents' ends, the largest
 * values, infinities; odd ones and even ones. */
static const uint16_t highs[] = {0,      1,      2,      0x7e,   0x7f,   0x80,   0x81,   0x3f7f,
                                 0x3f80, 0x3f81, 0x3fff, 0x4000, 0x7f7e, 0x7f7f, 0x8000, 0x8001,
                                 0x8002, 0x807f, 0x8080, 0xbf7f, 0xbf80, 0xbf81, 0xff7e, 0xff7f};

static void test_split_is_lossless(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof highs / sizeof highs[0]; k++) {
    for (uint32_t low = 0; low < 0x10000; low++) {
      const uint32_t bits = (uint32_t)highs[k] << 16 | low;
      const hk_halves h = hk_split_halves(hk_of_bits(bits));
      assert_int_equal(h.high, nearest_bf16(hk_of_bits(bits)));
      assert_int_equal(h.low, low);
      assert_int_equal(hk_bits_of(hk_join_halves(h.high, h.low, h.down)), bits);
    }
  }
  const uint32_t ends[] = {0x7f800000u, 0xff800000u, NAN_BITS};
  for (int k = 0; k < 3; k++) {
    const hk_halves h = hk_split_halves(hk_of_bits(ends[k]));
    assert_int_equal(h.high, ends[k] >> 16);
    assert_int_equal(h.low, 0);
    assert_false(h.down);
    assert_int_equal(hk_bits_of(hk_join_halves(h.high, h.low, h.down)), ends[k]);
  }
  const hk_halves loaded =
      hk_split_halves(hk_of_bits(0xff812345u)); /* a NaN that no update gives */
  assert_int_equal(hk_bits_of(hk_join_halves(loaded.high, loaded.low, loaded.down)), NAN_BITS);
}

/* All 2^32 patterns, for some seconds. */
static void test_split_of_all_patterns(void **state) {
  (void)state;
  if (getenv("HOCKET_TEST_FULL") == NULL) skip();
  uint64_t wrong = 0, ties = 0;
  for (uint32_t high = 0; high < 0x10000; high++) {
    for (uint32_t low = 0; low < 0x10000; low++) {
      const uint32_t bits = high << 16 | low, want = hk_is_nan(bits) ? NAN_BITS : bits;
      const hk_halves h = hk_split_halves(hk_of_bits(bits));
      wrong += hk_bits_of(hk_join_halves(h.high, h.low, h.down)) != want;
      wrong += h.high != hk_to_bf16(hk_of_bits(bits));
      ties += h.down;
    }
  }
  assert_int_equal(wrong, 0);
  assert_int_equal(ties, 2 * 0x7f80 / 2); /* half of the finite upper halves are even */
}

/* 65,537 differences round to an even weight, and 65,535 to an odd one: 16 bits are not enough. */
static void test_differences(void **state) {
  (void)state;
  int64_t count[2] = {0, 0}, flagged = 0;
  for (uint32_t bits = 0x3f800000u - 0x10000u; bits <= 0x3f810000u + 0x10000u; bits++) {
    const hk_halves h = hk_split_halves(hk_of_bits(bits));
    if (h.high == 0x3f80) count[0]++;
    if (h.high == 0x3f81) count[1]++;
    if (h.high == 0x3f80) flagged += h.down;
  }
  assert_int_equal(count[0], 65537);
  assert_int_equal(count[1], 65535);
  assert_int_equal(flagged, 1);
}

/* -- Rounding of moments ----------------------------------------------------------------------- */

static void test_rounding_saturates(void **state) {
  (void)state;
  assert_int_equal(hk_round_m(hk_of_bits(0x7f7fffffu)), 0x7f7f);
  assert_int_equal(hk_round_m(hk_of_bits(0xff7fffffu)), 0xff7f);
  assert_int_equal(hk_round_m(INFINITY), 0x7f80);
  assert_int_equal(hk_round_m(-INFINITY), 0xff80);
  assert_int_equal(hk_round_m(NAN), 0x7fc0);
  assert_int_equal(hk_round_v(hk_of_bits(0x7f7fffffu), 0xffff), 0x7f7f);
  assert_int_equal(hk_round_v(INFINITY, 0xffff), 0x7f80);
  assert_int_equal(hk_round_v(NAN, 0xffff), 0x7fc0);
  assert_int_equal(hk_round_v(0, 0xffff), 0);
  for (int i = 0; i < 100000; i++) {
    const float x = value_of_pattern(random_pattern());
    uint16_t want = nearest_bf16(x);
    if (isfinite(x) && (want & 0x7fff) == 0x7f80) want--;
    assert_int_equal(hk_round_m(x), want);
  }
}

/* Over all random numbers a value is rounded up as often as its lower half says. */
static void test_v_is_unbiased(void **state) {
  (void)state;
  static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
  for (size_t k = 0; k < sizeof lows / sizeof lows[0]; k++) {
    uint32_t up = 0;
    for (uint32_t r = 0; r < 0x10000; r++) {
      const uint16_t h = hk_round_v(hk_of_bits(0x3f810000u | lows[k]), r);
      assert_true(h == 0x3f81 || h == 0x3f82);
      up += h == 0x3f82;
    }
    assert_int_equal(up, lows[k]);
  }
}

/* -- Random bits ------------------------------------------------------------------------------- */

/* Fixed: a checkpoint goes on with these bits. python/tests/formats.py has the same. */
static void test_random_bits_are_fixed(void **state) {
  (void)state;
  uint32_t key[2], at[2];
  const int64_t last = ((int64_t)1 << 33) - 1;
  hk_random_key(0, 0, 1, key);
  const uint32_t first[2] = {key[0], key[1]};
  hk_random_key(7, 0x123456789abcdef0u, 1000, key);
  const uint32_t got[] = {first[0],
                          first[1],
                          key[0],
                          key[1],
                          hk_random_bits(first, 0),
                          hk_random_bits(key, 12345),
                          hk_random_bits(key, 12346),
                          hk_random_bits(key, (int64_t)3 << 33),
                          hk_code_random(key, 12345),
                          hk_code_random(key, 12346),
                          hk_code_random(key, ((int64_t)3 << 33) + 33),
                          hk_code_random(key, ((int64_t)3 << 33) + 96)};
  static const uint32_t want[] = {0x1a2c05ecu, 0x568a9b0bu, 0x00301e24u, 0xe180deeeu,
                                  0x818au,     0xc10eu,     0x0c24u,     0xd4f1u,
                                  0x7d36au,    0x4fc58u,    0xe115du,    0x073b8u};
  for (int i = 0; i < 12; i++) assert_int_equal(got[i], want[i]);
  hk_random_key_at(key, last, at);
  assert_memory_equal(at, key, sizeof key);
  hk_random_key_at(key, last + 1, at);
  assert_true(at[0] != key[0]);
}

/* Chi-square of `bins` counts of n values, as standard deviations from its mean. */
static double deviations(const uint32_t *counts, int bins, double n) {
  double sum = 0;
  for (int b = 0; b < bins; b++) {
    const double off = counts[b] - n / bins;
    sum += off * off * bins / n;
  }
  return (sum - (bins - 1)) / sqrt(2.0 * (bins - 1));
}

enum { VALUES = 1 << 21 };

/* The upper 16 random bits of an element of codes. */
static uint32_t code_bits(const uint32_t key[2], int64_t index) {
  return hk_code_random(key, index) >> 4;
}

/* Values are equally frequent along a tensor and along the steps of an element. */
static void test_random_bits_are_uniform(void **state) {
  (void)state;
  static uint32_t counts[4][65536];
  memset(counts, 0, sizeof counts);
  uint32_t key[2];
  hk_random_key(1, 2, 3, key);
  for (uint32_t i = 0; i < VALUES; i++) {
    counts[0][hk_random_bits(key, i)]++;
    uint32_t of_step[2];
    hk_random_key(1, 2, i, of_step);
    counts[1][hk_random_bits(of_step, 5)]++;
    counts[2][code_bits(key, i)]++;
    counts[3][code_bits(of_step, 37)]++;
  }
  for (int k = 0; k < 4; k++) assert_true(fabs(deviations(counts[k], 65536, VALUES)) < 5);
}

/* Bits of element i and of an element `away`, in the same step or the next one, are equal half of
 * the time, for each pair of the 16 bits; and pairs of the upper 8 bits are equally frequent. */
static void independent(int64_t away, int steps, uint64_t tensors) {
  static uint32_t equal[16][16], counts[65536];
  memset(equal, 0, sizeof equal);
  memset(counts, 0, sizeof counts);
  uint32_t one[2], other[2];
  hk_random_key(1, 2, 100, one);
  hk_random_key(1, 2 + tensors, 100 + steps, other);
  for (uint32_t i = 0; i < VALUES; i++) {
    const uint32_t a = hk_random_bits(one, i), b = hk_random_bits(other, (int64_t)i + away);
    counts[(a & 0xff00u) | b >> 8]++;
    for (int j = 0; j < 16 && i % 16 == 0; j++) {
      for (int k = 0; k < 16; k++) equal[j][k] += (a >> j & 1u) == (b >> k & 1u);
    }
  }
  const double n = VALUES / 16.0;
  for (int j = 0; j < 16; j++) {
    for (int k = 0; k < 16; k++) assert_true(fabs(equal[j][k] - n / 2) / sqrt(n / 4) < 6);
  }
  assert_true(fabs(deviations(counts, 65536, VALUES)) < 5);
}

static void test_random_bits_are_independent(void **state) {
  (void)state;
  static const int64_t away[] = {
      1, 2, 3, 4, 8, 16, 32, 4096, 65536, 1 << 24, (int64_t)1 << 32, (int64_t)1 << 33};
  for (size_t k = 0; k < sizeof away / sizeof away[0]; k++) independent(away[k], 0, 0);
  independent(0, 1, 0);
  independent(0, 2, 0);
  independent(1, 1, 0);
  independent(0, 0, 1);
}

/* -- The reference ----------------------------------------------------------------------------- */

enum { MOST = 300, ROOM = 1536 };

static const char *const names[] = {"fp32", "split", "bf16", "bf16+split", "8bit", "8bit+split"};

/* The arrays of one kernel, each in a larger one, so that writes out of bounds are seen. */
typedef struct {
  _Alignas(64) char p[ROOM], low[ROOM], m[ROOM], v[ROOM], w[ROOM], windows[128];
} arrays;

static void fill(void *bytes, size_t n) {
  for (size_t i = 0; i + 4 <= n; i += 4) {
    const uint32_t bits = random_pattern();
    memcpy((char *)bytes + i, &bits, 4);
  }
}

static hk_adamw_step random_step(void) {
  const hk_adamw hyper = {.lr = 1e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = next() % 4 == 0 ? 0 : 1e-8,
                          .weight_decay = next() % 2 == 0 ? 0 : 0.1};
  hk_adamw_step s = hk_adamw_prepare(&hyper, 1 + (int64_t)(next() % 1000), 0.731);
  if (next() % 16 == 0) s.scale = hk_of_bits(random_pattern());
  s.key[0] = (uint32_t)next();
  s.key[1] = (uint32_t)next();
  return s;
}

static hk_state_at state_at(arrays *a, hk_format format) {
  return (hk_state_at){a->p, hk_format_is_split(format) ? a->low : NULL, a->m, a->v,
                       hk_format_is_coded(format) ? a->windows : NULL};
}

/* v as a random pattern that state may hold: no sign. */
static float random_v(void) {
  return value_of_pattern(random_pattern() & 0x7fffffffu);
}

/* Rounded to three bits of the fraction, if rest + add carries; the only element of its block. */
static float kept_code(float x, uint32_t add) {
  const uint32_t bits = hk_bits_of(x) & 0x7fffffffu, down = bits & 0xfff00000u;
  const bool up = (bits & 0xfffffu) + add >= 0x100000u && down < 0x7f700000u;
  return copysignf(hk_of_bits(up ? down + 0x100000u : down), x);
}

static float kept_m_code(float m, uint32_t add) {
  if (!isfinite(m)) return m;
  return fabsf(m) < 0x1p-126f ? copysignf(0, m) : kept_code(m, add);
}

static float kept_v_code(float v, uint32_t add) {
  if (!isfinite(v) || v == 0) return v;
  const float kept = kept_code(v, add);
  return kept < 0x1p-126f ? 0x1p-126f : kept;
}

/* What a format keeps of an element, read back: written here from the definition. */
static float kept_p(hk_format format, float p) {
  const bool down = (hk_bits_of(p) & 0xffffu) == 0x8000u && (hk_bits_of(p) >> 16 & 1) == 0;
  return hk_format_is_coded(format) && down ? nextafterf(p, 0) : p;
}

static float kept_m(hk_format format, float m) {
  if (!hk_format_is_short(format)) return m;
  uint32_t h = nearest_bf16(m);
  if (isfinite(m) && (h & 0x7fff) == 0x7f80) h--;
  return hk_of_bits(h << 16);
}

static float kept_v(hk_format format, float v, uint32_t random) {
  if (!hk_format_is_short(format) || !isfinite(v)) return v;
  const float below = hk_of_bits(hk_bits_of(v) & 0xffff0000u);
  const float above = hk_of_bits((hk_bits_of(v) & 0xffff0000u) + 0x10000u);
  const uint32_t rest = hk_bits_of(v) & 0xffffu;
  return rest + random >= 0x10000u && isfinite(above) ? above : below;
}

/* The update in a format is the one in fp32 between reading and writing. */
static void test_reference_is_fp32_between(void **state) {
  (void)state;
  for (int round = 0; round < 200000; round++) {
    const hk_format format = (hk_format)(round % HK_FORMATS);
    arrays a;
    const hk_state_at at = state_at(&a, format);
    memset(&a, 0, sizeof a);
    float p = value_of_pattern(random_pattern()), m = value_of_pattern(random_pattern()),
          v = random_v(), grad = hk_of_bits(random_pattern());
    const hk_adamw_step s = random_step();
    const int64_t index = (int64_t)(next() >> 24) & -hk_format_unit(format);
    hk_format_write(format, 2, 0, 1, at, &v);
    hk_format_write(format, 0, 0, 1, at, &p);
    hk_format_write(format, 1, 0, 1, at, &m);
    float got[3];
    for (int part = 0; part < 3; part++) hk_format_read(format, part, 0, 1, at, &got[part]);
    assert_int_equal(hk_bits_of(got[0]), hk_bits_of(kept_p(format, p)));
    p = got[0], m = got[1], v = got[2];
    uint16_t w = 0, also = 0;
    hk_update_scalar(format, &s, HK_GRAD_FP32, 1, at, at, &grad, &w, index);
    hk_adamw_scalar(&s, HK_GRAD_FP32, 1, &p, &m, &v, &grad, &also);
    const uint32_t random = hk_random_bits(s.key, index);
    for (int part = 0; part < 3; part++) hk_format_read(format, part, 0, 1, at, &got[part]);
    assert_int_equal(hk_bits_of(got[0]), hk_bits_of(kept_p(format, p)));
    const bool coded = hk_format_is_coded(format);
    const uint32_t add = hk_code_random(s.key, index);
    m = coded ? kept_m_code(m, add) : kept_m(format, m);
    v = coded ? kept_v_code(v, add) : kept_v(format, v, random);
    assert_int_equal(hk_bits_of(got[1]), hk_bits_of(m));
    assert_int_equal(hk_bits_of(got[2]), hk_bits_of(v));
    assert_int_equal(w, also);
    if (hk_format_is_split(format)) assert_memory_equal(a.p, &also, 2);
  }
}

/* Parts are written in any order; a tie's sign stays with p. */
static void test_write_and_read(void **state) {
  (void)state;
  for (int round = 0; round < 20000; round++) {
    const hk_format format = (hk_format)(round % HK_FORMAT_8BIT); /* codes: test_engine_codes.c */
    enum { N = 9 };
    arrays a;
    fill(&a, sizeof a);
    const hk_state_at at = state_at(&a, format);
    float x[3][N], got[N];
    for (int i = 0; i < N; i++) {
      x[0][i] = value_of_pattern(random_pattern());
      x[1][i] = kept_m(format, value_of_pattern(random_pattern()));
      x[2][i] = kept_m(format, random_v());
    }
    const int first = (int)(next() % 3);
    for (int k = 0; k < 3; k++)
      hk_format_write(format, (first + k) % 3, 0, N, at, x[(first + k) % 3]);
    for (int part = 0; part < 3; part++) {
      hk_format_read(format, part, 0, N, at, got);
      assert_memory_equal(got, x[part], sizeof got);
    }
  }
  const float signs[] = {1, 0, NAN, hk_of_bits(0xffc00001u), -0.0f, -1};
  assert_int_equal(hk_format_first_signed(6, signs), 4);
  assert_int_equal(hk_format_first_signed(4, signs), 4);
}

/* -- Every instruction set against the reference ----------------------------------------------- */

/* Blocks of codes without infinities, NaN and large gradients, for which kernels leave the work to
 * the reference. */
static void make_ordinary(arrays *a, char *grads) {
  for (int i = 0; i < ROOM; i++) {
    if ((a->m[i] & 0x7f) > HK_CODES_M) a->m[i] = (char)(a->m[i] & 0xf7);
    if ((uint8_t)a->v[i] > HK_CODES_V) a->v[i] = (char)(a->v[i] & 0xf7);
    if (next() % 8 == 0) a->m[i] = a->v[i] = 0;
  }
  const uint64_t lowest = next() % 4 == 0 ? 1 : 90;
  for (int i = 0; i < (int)sizeof a->windows; i++) a->windows[i] = (char)(lowest + next() % 10);
  for (int i = 1; i < ROOM; i += 2) grads[i] = (char)(0x30 + next() % 12 + (next() % 2) * 0x80);
}

static void compare_once(const hk_cpu_kernels *kernels, hk_format format) {
  static arrays start, want, got, from;
  static char grads[ROOM];
  const int64_t n = (int64_t)(next() % (MOST + 1));
  const hk_grad_type type = (hk_grad_type)(next() % HK_GRAD_TYPES);
  const bool in_place = next() % 2 == 0, weights = next() % 2 == 0, lines = next() % 2 == 0;
  /* Some runs pass the place where the lower half of a pair's number begins again. */
  const int64_t index =
      (next() % 4 == 0 ? ((int64_t)1 << 33) - (int64_t)(next() % MOST) : (int64_t)(next() >> 24)) &
      -hk_format_unit(format);
  size_t source[5], target[5];
  for (int i = 0; i < 5; i++) {
    source[i] = next() % 2 == 0 ? 0 : next() % 64;
    target[i] = in_place ? source[i] : lines ? 0 : next() % 64;
  }
  fill(&start, sizeof start);
  fill(&got, sizeof got);
  fill(grads, sizeof grads);
  for (int i = 0; i < (int)sizeof start.windows; i++) /* as large as updates make them */
    start.windows[i] = (char)((uint8_t)start.windows[i] % 240);
  if (hk_format_is_coded(format) && next() % 4 != 0) make_ordinary(&start, grads);
  if (next() % 4 == 0) memset(grads + next() % MOST, 0xff, 8); /* NaN, which rounding may carry */
  from = start;
  if (in_place) got = start;
  want = got;
  const hk_adamw_step s = random_step();
  arrays *const source_of_got = in_place ? &got : &from, *const source_of_want =
                                                             in_place ? &want : &from;
#define AT(a, o)                                                                             \
  (hk_state_at) {                                                                            \
    (a)->p + (o)[0], hk_format_is_split(format) ? (a)->low + (o)[1] : NULL, (a)->m + (o)[2], \
        (a)->v + (o)[3], hk_format_is_coded(format) ? (a)->windows : NULL                    \
  }
  const void *grad = grads + next() % 64;
  hk_update_scalar(format, &s, type, n, AT(source_of_want, source), AT(&want, target), grad,
                   weights ? (uint16_t *)(void *)(want.w + target[4]) : NULL, index);
  kernels->update(format, &s, type, n, AT(source_of_got, source), AT(&got, target), grad,
                  weights ? (uint16_t *)(void *)(got.w + target[4]) : NULL, index);
  if (memcmp(&want, &got, sizeof want) != 0)
    fail_msg("%s, %s: n %lld, type %d, in place %d", kernels->name, names[format], (long long)n,
             (int)type, (int)in_place);
  assert_memory_equal(&start, &from, sizeof start);
}

static void each_kernel(void (*test)(const hk_cpu_kernels *)) {
  size_t n;
  const hk_cpu_kernels *list = hk_cpu_kernels_list(&n);
  for (size_t i = 0; i < n; i++) {
    if (list[i].supported) {
      test(&list[i]);
    } else {
      print_message("%s is not supported here\n", list[i].name);
    }
  }
}

static void random_cases(const hk_cpu_kernels *kernels) {
  for (uint64_t i = 0; i < (getenv("HOCKET_TEST_FULL") == NULL ? 12000 : 40000); i++) {
    random_state = i;
    compare_once(kernels, (hk_format)(i % HK_FORMATS));
  }
}

static void test_kernels_are_the_reference(void **state) {
  (void)state;
  each_kernel(random_cases);
}

/* State of fp32 and state in halves stay equal over many steps, ties included, and so do the
 * weights. */
static void split_is_fp32(const hk_cpu_kernels *kernels) {
  enum { N = 4099, STEPS = 60 };
  static float p[N], m[N], v[N], grad[N];
  static uint16_t w[N], high[N], low[N];
  static float m_of[N], v_of[N];
  for (int i = 0; i < N; i++) {
    p[i] = value_of_pattern(random_pattern());
    m[i] = v[i] = m_of[i] = v_of[i] = 0;
    high[i] = low[i] = 0;
  }
  const hk_state_at at = {(char *)high, (char *)low, (char *)m_of, (char *)v_of, NULL};
  hk_format_write(HK_FORMAT_SPLIT, 0, 0, N, at, p);
  for (int step = 1; step <= STEPS; step++) {
    const hk_adamw hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    hk_adamw_step s = hk_adamw_prepare(&hyper, step, 1);
    /* Steps without change of p keep its ties. */
    if (step % 3 == 0) s.size = 0;
    for (int i = 0; i < N; i++)
      grad[i] = i % 7 == 0 ? 0 : value_of_pattern(random_pattern()) * 0x1p-8f;
    kernels->adamw(&s, HK_GRAD_FP32, N, p, m, v, grad, w);
    kernels->update(HK_FORMAT_SPLIT, &s, HK_GRAD_FP32, N, at, at, grad, NULL, 0);
    static float got[N];
    hk_format_read(HK_FORMAT_SPLIT, 0, 0, N, at, got);
    assert_memory_equal(got, p, sizeof p);
    assert_memory_equal(high, w, sizeof w);
    assert_memory_equal(m_of, m, sizeof m);
    hk_format_read(HK_FORMAT_SPLIT, 2, 0, N, at, got);
    assert_memory_equal(got, v, sizeof v);
  }
}

static void test_split_is_fp32(void **state) {
  (void)state;
  random_state = 11;
  each_kernel(split_is_fp32);
}

#ifdef FLOAT_USUAL
/* The caller may have set flush to zero and rounding up (MXCSR). */
static void in_another_environment(const hk_cpu_kernels *kernels) {
  enum { N = 100, OTHER = FLOAT_FLUSHES | FLOAT_UP };
  static arrays want, got;
  float grad[N];
  for (int f = 0; f < HK_FORMATS; f++) {
    const hk_format format = (hk_format)f;
    fill(&want, sizeof want);
    fill(grad, sizeof grad);
    got = want;
    const hk_adamw_step s = random_step();
    hk_update_scalar(format, &s, HK_GRAD_FP32, N, state_at(&want, format), state_at(&want, format),
                     grad, NULL, 6 * HK_CODE_BLOCK);
    float_set(OTHER);
    kernels->update(format, &s, HK_GRAD_FP32, N, state_at(&got, format), state_at(&got, format),
                    grad, NULL, 6 * HK_CODE_BLOCK);
    const unsigned after = float_get();
    float_set(FLOAT_USUAL);
    assert_int_equal(after, OTHER);
    assert_memory_equal(&want, &got, sizeof want);
  }
}

static void test_environment_of_the_caller(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 300; i++) {
    random_state = i;
    each_kernel(in_another_environment);
  }
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_split_is_lossless),
      cmocka_unit_test(test_split_of_all_patterns),
      cmocka_unit_test(test_differences),
      cmocka_unit_test(test_rounding_saturates),
      cmocka_unit_test(test_v_is_unbiased),
      cmocka_unit_test(test_random_bits_are_fixed),
      cmocka_unit_test(test_random_bits_are_uniform),
      cmocka_unit_test(test_random_bits_are_independent),
      cmocka_unit_test(test_reference_is_fp32_between),
      cmocka_unit_test(test_write_and_read),
      cmocka_unit_test(test_kernels_are_the_reference),
      cmocka_unit_test(test_split_is_fp32),
#ifdef FLOAT_USUAL
      cmocka_unit_test(test_environment_of_the_caller),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
