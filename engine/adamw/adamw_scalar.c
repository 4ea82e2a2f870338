/* SPDX-License-Identifier: Apache-2.0 */
/* The reference kernels: plain C, one element at a time, conversions in integer arithmetic. */
#include <math.h>
#include <string.h>

#include "engine/adamw/adamw_kernels.h"
#include "engine/adamw/formats.h"

/* memcpy, because arrays need not be aligned. */
static float load_grad(hk_grad_type type, const void *grad, int64_t i) {
  const char *at = (const char *)grad + (size_t)i * hk_grad_size(type);
  if (type == HK_GRAD_FP32) {
    float g;
    memcpy(&g, at, sizeof g);
    return g;
  }
  uint16_t h;
  memcpy(&h, at, sizeof h);
  return type == HK_GRAD_BF16 ? hk_from_bf16(h) : hk_from_fp16(h);
}

static float load(const float *x, int64_t i) {
  float value;
  memcpy(&value, (const char *)x + (size_t)i * sizeof value, sizeof value);
  return value;
}

static void store(float *x, int64_t i, float value) {
  value = hk_canonical(value);
  memcpy((char *)x + (size_t)i * sizeof value, &value, sizeof value);
}

static void store_bf16(uint16_t *w, int64_t i, float value) {
  const uint16_t h = hk_to_bf16(value);
  memcpy((char *)w + (size_t)i * sizeof h, &h, sizeof h);
}

/* Updates in place if sources and targets are the same arrays. */
static __attribute__((noinline)) void update(const hk_adamw_step *s, hk_grad_type type, int64_t n,
                                             const float *ps, const float *ms, const float *vs,
                                             float *ps_to, float *ms_to, float *vs_to,
                                             const void *grad, uint16_t *w) {
  for (int64_t i = 0; i < n; i++) {
    const float g = s->scale * load_grad(type, grad, i);
    float p = load(ps, i), m = load(ms, i), v = load(vs, i);
    p = p * s->decay;
    m = fmaf(s->rest1, g - m, m);
    v = fmaf(s->rest2 * g, g, v * s->beta2);
    const float d = sqrtf(v) / s->root2 + s->eps;
    p = p - s->size * m / d;
    store(ps_to, i, p);
    store(ms_to, i, m);
    store(vs_to, i, v);
    if (w != NULL) store_bf16(w, i, p);
  }
}

void hk_adamw_scalar(const hk_adamw_step *step, hk_grad_type type, int64_t n, float *p, float *m,
                     float *v, const void *grad, uint16_t *w) {
  const unsigned before = hk_float_enter();
  update(step, type, n, p, m, v, p, m, v, grad, w);
  hk_float_leave(before);
}

static void adamw_to(const hk_adamw_step *step, hk_grad_type type, int64_t n, const float *p,
                     const float *m, const float *v, float *p_to, float *m_to, float *v_to,
                     const void *grad, uint16_t *w) {
  const unsigned before = hk_float_enter();
  update(step, type, n, p, m, v, p_to, m_to, v_to, grad, w);
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

const hk_cpu_kernels hk_kernels_scalar = {.name = "scalar",
                                          .supported = true,
                                          .adamw = hk_adamw_scalar,
                                          .adamw_to = adamw_to,
                                          .update = hk_update_scalar,
                                          .unscale = unscale,
                                          .cast_down = cast_down,
                                          .cast_up = cast_up};
