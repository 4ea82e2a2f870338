/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The CPU kernels. The scalar reference is compared with a second implementation, and all other
 * kernels with the scalar reference, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/adamw/adamw.h"
#include "tests/fixture_float.h"

#define NAN_BITS 0x7fc00000u

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t random_state;

static uint64_t next(void) {
  uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Special values, random bits, subnormals, and (5 of 8) ordinary numbers. */
static uint32_t random_bits(void) {
  static const uint32_t special[] = {0,           0x80000000u, 1,          0x80000001u,
                                     0x007fffffu, 0x00800000,  0x7f7fffff, 0xff7fffffu,
                                     0x7f800000,  0xff800000u, 0x7f800001, 0x7fc00000,
                                     0xffc12345u, 0x3f800000,  0xbf800000u};
  const uint64_t r = next();
  switch (r % 8) {
    case 0:
      return special[(r >> 32) % (sizeof special / sizeof special[0])];
    case 1:
      return (uint32_t)(r >> 32);
    case 2:
      return (uint32_t)(r >> 32) & 0x807fffffu;
    default: /* about 2^-24 to 2^8 */
      return ((uint32_t)(r >> 32) & 0x807fffffu) | (uint32_t)(103 + (r >> 8) % 32) << 23;
  }
}

static float random_ordinary(void) {
  const uint64_t r = next();
  return of_bits(((uint32_t)(r >> 32) & 0x807fffffu) | (uint32_t)(103 + r % 32) << 23);
}

static const hk_adamw usual = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};

/* -- the reference ----------------------------------------------------------------------------- */

/* One operation of two floats, rounded to double and then to float, is rounded as if once, because
 * 53 >= 2 x 24 + 2 (Figueroa 1995). volatile: no operations are fused, no excess precision kept. */
static float once(double x) {
  volatile float rounded = (float)x;
  return rounded;
}
static float times(float a, float b) {
  return once((double)a * (double)b);
}
static float plus(float a, float b) {
  return once((double)a + (double)b);
}
static float minus(float a, float b) {
  return once((double)a - (double)b);
}

/* a * b + c, rounded once. The product is exact in double; an inexact sum is rounded to odd there,
 * so that the second rounding, to float, goes as if it were the only one (Boldo and Melquiond
 * 2008). */
static float fused(float a, float b, float c) {
  const double product = (double)a * (double)b, addend = (double)c;
  volatile double sum = product + addend;
  volatile double of_addend = sum - product, of_product = sum - of_addend;
  const double lost = (product - of_product) + (addend - of_addend);
  uint64_t bits;
  double x = sum;
  memcpy(&bits, &x, sizeof bits);
  if (isfinite(x) && lost != 0 && (bits & 1) == 0)
    x = nextafter(x, lost > 0 ? INFINITY : -INFINITY);
  return once(x);
}

typedef struct {
  float p, m, v;
} element;

static element expected(const hk_adamw_step *s, element e, float grad) {
  const float g = times(s->scale, grad);
  e.p = times(e.p, s->decay);
  e.m = fused(s->rest1, minus(g, e.m), e.m);
  e.v = fused(times(s->rest2, g), g, times(e.v, s->beta2));
  const float root = once(sqrt((double)e.v));
  const float d = plus(once((double)root / (double)s->root2), s->eps);
  e.p = minus(e.p, once((double)times(s->size, e.m) / (double)d));
  return e;
}

static uint32_t canonical(float x) {
  return isnan(x) ? NAN_BITS : bits_of(x);
}

/* The bf16 nearest to x, found by comparing with both neighbours. */
static uint16_t nearest_bf16(float x) {
  if (isnan(x)) return 0x7fc0;
  const uint32_t below = bits_of(x) & 0xffff0000u, above = below + 0x10000u;
  if (isinf(x)) return (uint16_t)(below >> 16);
  /* For rounding, the neighbour of the largest bf16 is 2^128, not infinity. */
  const double high = isinf(of_bits(above)) ? copysign(0x1p128, (double)x) : (double)of_bits(above);
  const double down = fabs((double)x - (double)of_bits(below)), up = fabs(high - (double)x);
  const bool take_above = up < down || (up == down && (below >> 16 & 1) != 0);
  return (uint16_t)((take_above ? above : below) >> 16);
}

static double value_of(hk_grad_type type, uint16_t h) {
  const int fraction_bits = type == HK_GRAD_BF16 ? 7 : 10;
  const int most = type == HK_GRAD_BF16 ? 255 : 31, bias = type == HK_GRAD_BF16 ? 127 : 15;
  const int fraction = h & ((1 << fraction_bits) - 1);
  const int exponent = (h & 0x7fff) >> fraction_bits;
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == most) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
  return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

static void test_reference_rounds_each_operation(void **state) {
  (void)state;
  for (int64_t step = 1; step <= 100000; step++) {
    hk_adamw_step s = hk_adamw_prepare(&usual, 1 + step % 50, 0.37);
    if (step % 3 == 0) s.eps = 0;
    element e = {of_bits(random_bits()), of_bits(random_bits()), of_bits(random_bits())};
    const float grad = of_bits(random_bits());
    const element want = expected(&s, e, grad);
    uint16_t w;
    hk_adamw_scalar(&s, HK_GRAD_FP32, 1, &e.p, &e.m, &e.v, &grad, &w);
    assert_int_equal(bits_of(e.p), canonical(want.p));
    assert_int_equal(bits_of(e.m), canonical(want.m));
    assert_int_equal(bits_of(e.v), canonical(want.v));
    assert_int_equal(w, nearest_bf16(want.p));
  }
}

/* With zero moments and a scaled gradient of 1 the first step moves p by lr, whatever the betas. */
static void test_first_step_moves_by_lr(void **state) {
  (void)state;
  const hk_adamw hyper = {.lr = 0.125, .beta1 = 0.5, .beta2 = 0.75, .eps = 0, .weight_decay = 2};
  const hk_adamw_step s = hk_adamw_prepare(&hyper, 1, 0.5);
  float p = 4, m = 0, v = 0;
  const uint16_t grad = 0x4000; /* 2 */
  uint16_t w = 0;
  hk_adamw_scalar(&s, HK_GRAD_BF16, 1, &p, &m, &v, &grad, &w);
  assert_true(p == 2.875f); /* 4 x (1 - 0.125 x 2) - 0.125 */
  assert_true(m == 0.5f);
  assert_true(v == 0.25f);
  assert_int_equal(w, 0x4038);
}

static void test_prepare(void **state) {
  (void)state;
  const hk_adamw_step s = hk_adamw_prepare(&usual, 3, 0.25);
  assert_true(s.scale == 0.25f);
  assert_true(s.decay == 0.99999f);
  assert_true(s.rest1 == 0.1f);
  assert_true(s.beta2 == 0.999f);
  assert_true(s.rest2 == 0.001f);
  assert_true(s.eps == 1e-8f);
  assert_true(s.size == (float)(1e-3 / 0.271));        /* 1 - 0.9^3 */
  assert_true(s.root2 == (float)0.054744871905960286); /* sqrt(0.002997001) */
  /* After many steps both bias corrections are 1. */
  const hk_adamw_step late = hk_adamw_prepare(&usual, INT64_C(1) << 40, 1);
  assert_true(late.root2 == 1 && late.size == 1e-3f);
}

/* -- every instruction set against the reference ----------------------------------------------- */

enum { MOST = 200, GUARD = 64, ROOM = MOST * 4 + 2 * GUARD };

/* The arrays of one kernel, each inside a larger buffer, so that writes out of bounds are seen. */
typedef struct {
  _Alignas(64) char p[ROOM], m[ROOM], v[ROOM], w[ROOM];
} arrays;

static void *at(char *room, size_t offset) {
  return room + offset;
}

static void fill(void *bytes, size_t n, bool special) {
  for (size_t i = 0; i + 4 <= n; i += 4) {
    const uint32_t bits = special ? random_bits() : bits_of(random_ordinary());
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
  if (next() % 16 == 0) s.scale = of_bits(random_bits());
  return s;
}

static void compare_once(const hk_cpu_kernels *kernels) {
  static arrays want, got;
  static char grads[ROOM];
  const int64_t n = (int64_t)(next() % (MOST + 1));
  const hk_grad_type type = (hk_grad_type)(next() % HK_GRAD_TYPES);
  const bool special = next() % 2 == 0, weights = next() % 4 != 0;
  size_t offset[5];
  for (int i = 0; i < 5; i++) offset[i] = next() % 2 == 0 ? 0 : next() % GUARD;
  fill(&want, sizeof want, special);
  fill(grads, sizeof grads, special);
  got = want;
  const hk_adamw_step s = random_step();
  const void *grad = at(grads, offset[4]);
  hk_adamw_scalar(&s, type, n, at(want.p, offset[0]), at(want.m, offset[1]), at(want.v, offset[2]),
                  grad, weights ? at(want.w, offset[3]) : NULL);
  kernels->adamw(&s, type, n, at(got.p, offset[0]), at(got.m, offset[1]), at(got.v, offset[2]),
                 grad, weights ? at(got.w, offset[3]) : NULL);
  assert_memory_equal(&want, &got, sizeof want);
}

/* adamw_to writes the same bits to other addresses, and nothing else. */
static void compare_out_of_place(const hk_cpu_kernels *kernels) {
  static arrays start, want, got, from;
  static char grads[ROOM];
  const int64_t n = (int64_t)(next() % (MOST + 1));
  const hk_grad_type type = (hk_grad_type)(next() % HK_GRAD_TYPES);
  const bool special = next() % 2 == 0, weights = next() % 4 != 0;
  /* Half of the cases have aligned targets, which streaming stores need. */
  size_t source[3], target[4];
  for (int i = 0; i < 3; i++) source[i] = next() % 2 == 0 ? 0 : next() % GUARD;
  const bool lines = next() % 2 == 0;
  for (int i = 0; i < 4; i++) target[i] = lines ? 0 : next() % GUARD;
  fill(&start, sizeof start, special);
  fill(&got, sizeof got, special);
  fill(grads, sizeof grads, special);
  from = start;
  want = got;
  const hk_adamw_step s = random_step();
  const void *grad = at(grads, next() % GUARD);
  const size_t bytes = (size_t)n * sizeof(float);
  memcpy(at(want.p, target[0]), at(from.p, source[0]), bytes);
  memcpy(at(want.m, target[1]), at(from.m, source[1]), bytes);
  memcpy(at(want.v, target[2]), at(from.v, source[2]), bytes);
  hk_adamw_scalar(&s, type, n, at(want.p, target[0]), at(want.m, target[1]), at(want.v, target[2]),
                  grad, weights ? at(want.w, target[3]) : NULL);
  kernels->adamw_to(&s, type, n, at(from.p, source[0]), at(from.m, source[1]),
                    at(from.v, source[2]), at(got.p, target[0]), at(got.m, target[1]),
                    at(got.v, target[2]), grad, weights ? at(got.w, target[3]) : NULL);
  assert_memory_equal(&want, &got, sizeof want);
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
  for (uint64_t i = 0; i < 20000; i++) {
    random_state = i;
    compare_once(kernels);
  }
}

static void test_adamw_is_the_reference(void **state) {
  (void)state;
  each_kernel(random_cases);
}

static void random_cases_out_of_place(const hk_cpu_kernels *kernels) {
  for (uint64_t i = 0; i < 20000; i++) {
    random_state = i;
    compare_out_of_place(kernels);
  }
}

static void test_out_of_place_is_in_place(void **state) {
  (void)state;
  each_kernel(random_cases_out_of_place);
}

/* All 65,536 bf16 and all 65,536 fp16 gradients, in place and out of place. */
static void all_gradients(const hk_cpu_kernels *kernels) {
  enum { N = 65536 };
  static float p[3][N], m[3][N], v[3][N];
  static uint16_t grad[N], w[3][N];
  for (int type = HK_GRAD_BF16; type <= HK_GRAD_FP16; type++) {
    for (int i = 0; i < N; i++) {
      grad[i] = (uint16_t)i;
      p[0][i] = p[1][i] = random_ordinary();
      m[0][i] = m[1][i] = random_ordinary() * 0x1p-8f;
      v[0][i] = v[1][i] = fabsf(random_ordinary()) * 0x1p-16f;
    }
    const hk_adamw_step s = hk_adamw_prepare(&usual, 7, 0.731);
    kernels->adamw_to(&s, (hk_grad_type)type, N, p[0], m[0], v[0], p[2], m[2], v[2], grad, w[2]);
    hk_adamw_scalar(&s, (hk_grad_type)type, N, p[0], m[0], v[0], grad, w[0]);
    kernels->adamw(&s, (hk_grad_type)type, N, p[1], m[1], v[1], grad, w[1]);
    for (int i = 1; i < 3; i++) {
      assert_memory_equal(p[0], p[i], sizeof p[0]);
      assert_memory_equal(m[0], m[i], sizeof m[0]);
      assert_memory_equal(v[0], v[i], sizeof v[0]);
      assert_memory_equal(w[0], w[i], sizeof w[0]);
    }
  }
}

static void test_all_gradients(void **state) {
  (void)state;
  random_state = 1;
  each_kernel(all_gradients);
}

/* -- the separate passes ----------------------------------------------------------------------- */

static void check_cast_down(const hk_cpu_kernels *kernels, const float *p, int n) {
  enum { BATCH = 4099 };
  static uint16_t w[BATCH];
  assert_true(n <= BATCH);
  kernels->cast_down(n, p, w);
  for (int i = 0; i < n; i++) assert_int_equal(w[i], nearest_bf16(p[i]));
}

/* Around every bf16: the value itself, its fp32 neighbours, and those of the tie with the next. */
static void cast_down_boundaries(const hk_cpu_kernels *kernels) {
  static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  enum { LOW = sizeof low / sizeof low[0], BATCH = 512 };
  static float p[BATCH * LOW];
  for (uint32_t first = 0; first < 0x10000; first += BATCH) {
    for (uint32_t i = 0; i < BATCH * LOW; i++) {
      const uint32_t bits = (first + i / LOW) << 16 | low[i % LOW];
      memcpy(&p[i], &bits, sizeof bits);
    }
    check_cast_down(kernels, p, BATCH * LOW);
  }
}

static void cast_down_random(const hk_cpu_kernels *kernels) {
  static float p[4099];
  for (int round = 0; round < 100; round++) {
    fill(p, sizeof p, true);
    check_cast_down(kernels, p, 4099 - round);
  }
}

static void test_cast_down(void **state) {
  (void)state;
  random_state = 2;
  each_kernel(cast_down_boundaries);
  each_kernel(cast_down_random);
}

static void cast_up_all(const hk_cpu_kernels *kernels) {
  enum { N = 65536 };
  static uint16_t h[N];
  static float g[N];
  for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
  for (int type = HK_GRAD_BF16; type <= HK_GRAD_FP16; type++) {
    /* N - 1 elements and then 1: both have a tail. */
    kernels->cast_up((hk_grad_type)type, N - 1, h, g);
    kernels->cast_up((hk_grad_type)type, 1, h + N - 1, g + N - 1);
    for (int i = 0; i < N; i++) {
      assert_int_equal(bits_of(g[i]), canonical((float)value_of((hk_grad_type)type, h[i])));
    }
  }
}

static void test_cast_up(void **state) {
  (void)state;
  each_kernel(cast_up_all);
}

static void unscale_random(const hk_cpu_kernels *kernels) {
  enum { N = 103 };
  float g[N], want[N];
  for (int round = 0; round < 2000; round++) {
    fill(g, sizeof g, true);
    const float factor = round % 2 == 0 ? 0.731f : of_bits(random_bits());
    for (int i = 0; i < N; i++) want[i] = of_bits(canonical(times(g[i], factor)));
    want[N - 1] = g[N - 1]; /* not part of the call */
    kernels->unscale(factor, N - 1, g);
    assert_memory_equal(g, want, sizeof g);
  }
}

static void test_unscale(void **state) {
  (void)state;
  random_state = 3;
  each_kernel(unscale_random);
}

/* -- floating-point environment and choice of kernels ------------------------------------------ */

#ifdef FLOAT_USUAL
/* The caller may have set flush to zero, denormals are zero, and rounding up. Kernels give the same
 * bits and restore these settings. */
static void in_another_environment(const hk_cpu_kernels *kernels) {
  enum { N = 100, OTHER = FLOAT_FLUSHES | FLOAT_UP };
  float p[2][N], m[2][N], v[2][N], g[2][N], to[3][N], grad[N];
  fill(grad, sizeof grad, true);
  fill(p[0], sizeof p[0], true);
  fill(m[0], sizeof m[0], true);
  fill(v[0], sizeof v[0], true);
  memcpy(p[1], p[0], sizeof p[0]);
  memcpy(m[1], m[0], sizeof m[0]);
  memcpy(v[1], v[0], sizeof v[0]);
  memcpy(g[0], grad, sizeof grad);
  memcpy(g[1], grad, sizeof grad);
  const hk_adamw_step s = hk_adamw_prepare(&usual, 2, 0.3);
  hk_adamw_scalar(&s, HK_GRAD_FP32, N, p[0], m[0], v[0], grad, NULL);
  hk_cpu_kernels_list(&(size_t){0})->unscale(0.3f, N, g[0]);
  float_set(OTHER);
  kernels->adamw_to(&s, HK_GRAD_FP32, N, p[1], m[1], v[1], to[0], to[1], to[2], grad, NULL);
  kernels->adamw(&s, HK_GRAD_FP32, N, p[1], m[1], v[1], grad, NULL);
  kernels->unscale(0.3f, N, g[1]);
  const unsigned after = float_get();
  float_set(FLOAT_USUAL);
  assert_int_equal(after, OTHER);
  assert_memory_equal(p[0], p[1], sizeof p[0]);
  assert_memory_equal(m[0], m[1], sizeof m[0]);
  assert_memory_equal(v[0], v[1], sizeof v[0]);
  assert_memory_equal(p[0], to[0], sizeof p[0]);
  assert_memory_equal(m[0], to[1], sizeof m[0]);
  assert_memory_equal(v[0], to[2], sizeof v[0]);
  assert_memory_equal(g[0], g[1], sizeof g[0]);
}

static void test_environment_of_the_caller(void **state) {
  (void)state;
  for (random_state = 4; random_state < 400; random_state++) each_kernel(in_another_environment);
}
#endif

/* Whether HOCKET_ISA=`wish` (NULL: unset) selects the kernels `name`. The choice is made once a
 * process, so each call forks one. */
static bool chosen(const char *wish, const char *name) {
  const pid_t child = fork();
  if (child == 0) {
    if (wish != NULL) {
      setenv("HOCKET_ISA", wish, 1);
    } else {
      unsetenv("HOCKET_ISA");
    }
    _exit(strcmp(hk_cpu_kernels_best()->name, name) == 0 ? 0 : 1);
  }
  int status;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Must run first, before kernels are chosen. */
static void test_choice(void **state) {
  (void)state;
  assert_true(chosen("scalar", "scalar"));
  const char *fastest = "scalar";
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) { /* f16c is older */
    assert_true(chosen("avx2", "avx2"));
    fastest = "avx2";
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) fastest = "avx512";
#elif defined(__aarch64__)
  fastest = "neon";
#endif
  assert_true(chosen(NULL, fastest));
  assert_true(chosen("abacus", fastest));
}

static void test_list(void **state) {
  (void)state;
  size_t n;
  const hk_cpu_kernels *list = hk_cpu_kernels_list(&n);
  assert_true(n >= 1);
  assert_string_equal(list[0].name, "scalar");
  assert_true(list[0].supported);
  assert_true(hk_cpu_kernels_best()->supported);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_choice),
      cmocka_unit_test(test_list),
      cmocka_unit_test(test_reference_rounds_each_operation),
      cmocka_unit_test(test_first_step_moves_by_lr),
      cmocka_unit_test(test_prepare),
      cmocka_unit_test(test_adamw_is_the_reference),
      cmocka_unit_test(test_out_of_place_is_in_place),
      cmocka_unit_test(test_all_gradients),
      cmocka_unit_test(test_cast_down),
      cmocka_unit_test(test_cast_up),
      cmocka_unit_test(test_unscale),
#ifdef FLOAT_USUAL
      cmocka_unit_test(test_environment_of_the_caller),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
