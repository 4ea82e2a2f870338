/* SPDX-License-Identifier: Apache-2.0 */
/* The reference kernels: plain C, one element at a time, conversions in integer arithmetic. */
#include <math.h>
#include <string.h>

#include "engine/adamw_kernels.h"

static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float canonical(float x) {
  return isnan(x) ? of_bits(HK_NAN_BITS) : x;
}

static float from_bf16(uint16_t h) {
  return canonical(of_bits((uint32_t)h << 16));
}

static float from_fp16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, fraction = h & 1023u;
  if (exponent == 0) { /* zero or subnormal: fraction x 2^-24 is a normal fp32 */
    return of_bits(sign | bits_of((float)fraction * 0x1p-24f));
  }
  if (exponent == 31) return fraction != 0 ? of_bits(HK_NAN_BITS) : of_bits(sign | 0x7f800000u);
  return of_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

/* Rounds by adding just under a half, and the lowest kept bit to bring ties to even. */
static uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if (isnan(x)) return HK_NAN_BITS >> 16;
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* memcpy, because nothing need be aligned. */
static float load_grad(hk_grad_type type, const void *grad, int64_t i) {
  const char *at = (const char *)grad + (size_t)i * hk_grad_size(type);
  if (type == HK_GRAD_FP32) {
    float g;
    memcpy(&g, at, sizeof g);
    return g;
  }
  uint16_t h;
  memcpy(&h, at, sizeof h);
  return type == HK_GRAD_BF16 ? from_bf16(h) : from_fp16(h);
}

static float load(const float *x, int64_t i) {
  float value;
  memcpy(&value, (const char *)x + (size_t)i * sizeof value, sizeof value);
  return value;
}

static void store(float *x, int64_t i, float value) {
  value = canonical(value);
  memcpy((char *)x + (size_t)i * sizeof value, &value, sizeof value);
}

static void store_bf16(uint16_t *w, int64_t i, float value) {
  const uint16_t h = to_bf16(value);
  memcpy((char *)w + (size_t)i * sizeof h, &h, sizeof h);
}

static __attribute__((noinline)) void update(const hk_adamw_step *s, hk_grad_type type, int64_t n,
                                             float *ps, float *ms, float *vs, const void *grad,
                                             uint16_t *w) {
  for (int64_t i = 0; i < n; i++) {
    const float g = s->scale * load_grad(type, grad, i);
    float p = load(ps, i), m = load(ms, i), v = load(vs, i);
    p = p * s->decay;
    m = fmaf(s->rest1, g - m, m);
    v = fmaf(s->rest2 * g, g, v * s->beta2);
    const float d = sqrtf(v) / s->root2 + s->eps;
    p = p - s->size * m / d;
    store(ps, i, p);
    store(ms, i, m);
    store(vs, i, v);
    if (w != NULL) store_bf16(w, i, p);
  }
}

void hk_adamw_scalar(const hk_adamw_step *step, hk_grad_type type, int64_t n, float *p, float *m,
                     float *v, const void *grad, uint16_t *w) {
  const unsigned before = hk_float_enter();
  update(step, type, n, p, m, v, grad, w);
  hk_float_leave(before);
}

static __attribute__((noinline)) void multiply(float scale, int64_t n, float *g) {
  for (int64_t i = 0; i < n; i++) store(g, i, load(g, i) * scale);
}

static void unscale(float scale, int64_t n, float *g) {
  const unsigned before = hk_float_enter();
  multiply(scale, n, g);
  hk_float_leave(before);
}

static void cast_down(int64_t n, const float *p, uint16_t *w) {
  for (int64_t i = 0; i < n; i++) store_bf16(w, i, load(p, i));
}

static void cast_up(hk_grad_type type, int64_t n, const void *grad, float *g) {
  for (int64_t i = 0; i < n; i++) store(g, i, load_grad(type, grad, i));
}

const hk_cpu_kernels hk_kernels_scalar = {"scalar", true,      hk_adamw_scalar,
                                          unscale,  cast_down, cast_up};
