/* SPDX-License-Identifier: Apache-2.0 */
/* The vector kernels, written once for all instruction sets. A file that includes this defines:
 *
 *   TARGET, INLINE                     its function attribute; for functions to be inlined
 *   vec, LANES, BLOCK                  a vector of floats; how many; 32
 *   vec_set(x)                         x in all lanes
 *   vec_load(p), vec_store(p, x), vec_stream(p, x)
 *   stream_fence()                     orders streaming stores before later stores
 *   vec_bf16(h), vec_fp16(h)           LANES values at h, as fp32
 *   vec_sqrt(x), vec_fma(a, b, c)      the latter a * b + c, rounded once
 *   vec_canonical(x)                   x, but every NaN 0x7fc00000
 *   store_bf16(w, x, stream)           BLOCK values, no NaN but 0x7fc00000, rounded
 *   uvec                               a vector of LANES uint32_t, a vector extension of the
 *                                      compiler's, for formats_vector.h
 *   umask                              a boolean for each lane, with & and ~
 *   uvec_differ(a, b), uvec_below(a, b)  lanes in which they do, a below b as int32_t
 *   uvec_add_where(mask, a, b)         a, but a + b in these lanes
 *   vec_unzip(a, b, out)               the even elements of a and b, and the odd ones
 *   vec_zip(a, b, out)                 the opposite
 *   vec_any_nan(a, b)                  whether a lane of a or b is NaN
 *   uvec_upper_halves(a, b)            the upper halves of the lanes of a, and of b
 *
 * and, for codes of 8 bits:
 *   vec_all(), vec_any_not(mask)      a mask of all lanes; whether a lane is not in it
 *   vec_usual(mask, x, high)           mask, without some lane if a lane of x[0] or x[1] is NaN or
 *                                      the lower half of one of high[0] or high[1] is 0
 *   uvec_where(mask, a, b)             a in these lanes, b in the others
 *   uvec_shift(x, by)                  x >> by, lane by lane; 0 from 32 on
 *   uvec_most(a, b)                    the larger of each lane
 *   hvec, hvec_set(x)                  a vector of 2 LANES uint16_t; x in all lanes
 *   hvec_bytes(at), hvec_signed_bytes(at)  2 LANES bytes, of 0 .. 255 or of -128 .. 127
 *   hvec_store_bytes(to, a, b, stream) values below 256 of a and then of b, as bytes
 *   hvec_add_where(a, bits, b)         a, but a + b where a has one of the bits
 *   hvec_minus(a, b)                   a - b, but 0 where a is below b
 *   hvec_most(a, b), hvec_least(a, b)  the larger and the smaller of each lane
 *   hvec_most_bytes(a, b), hvec_least_bytes(a, b)  the larger and the smaller of each byte
 *   hvec_any_byte_from(a, least)       whether a byte is `least` or more
 *   hvec_any_byte_0(a)                 whether a byte is 0
 *   hvec_largest(x)                    the largest of all
 *   hvec_any_below(a, b)               whether a lane of a is below b
 *
 * Loops go by blocks of 32 elements: 64 bytes of bf16 weights, so that a streaming store fills its
 * cache line. What is left at the end, the reference does. */
#ifndef HK_ENGINE_ADAMW_ADAMW_VECTOR_H
#define HK_ENGINE_ADAMW_ADAMW_VECTOR_H

#include "engine/adamw/adamw_kernels.h"

enum { PARTS = BLOCK / LANES, LINE = 64 };

/* How a kernel accesses memory; it does not affect results. */
typedef struct {
  int ahead; /* distance in bytes from the element in work to the one that is prefetched; 0: no
                prefetch */
  bool stream_state;   /* p, m and v are written by streaming stores, */
  bool stream_weights; /* and so is w, if it is aligned to cache lines */
} hk_adamw_tuning;

typedef struct {
  vec scale, decay, rest1, beta2, rest2, root2, eps, size;
  vec minus_root2, inverse, inverse_low; /* the sum of the last two: 1 / root2 */
} constants;

/* State before and after: the same arrays in place, or arrays that do not overlap. */
typedef struct {
  const float *p, *m, *v;
} adamw_from;
typedef struct {
  float *p, *m, *v;
} adamw_into;

INLINE vec load_grad(hk_grad_type type, const char *grad) {
  if (type == HK_GRAD_BF16) return vec_bf16(grad);
  if (type == HK_GRAD_FP16) return vec_fp16(grad);
  return vec_load((const float *)(const void *)grad);
}

INLINE void store(float *to, vec x, bool stream) {
  if (stream) {
    vec_stream(to, x);
  } else {
    vec_store(to, x);
  }
}

/* The order of operations of adamw.h, on the vector that begins at element i. */
INLINE vec update(const constants *c, vec grad, adamw_from from, adamw_into to, int64_t i,
                  bool stream) {
  const vec g = c->scale * grad;
  vec p = vec_load(from.p + i), m = vec_load(from.m + i), v = vec_load(from.v + i);
  p = p * c->decay;
  m = vec_fma(c->rest1, g - m, m);
  v = vec_fma(c->rest2 * g, g, v * c->beta2);
  const vec d = vec_sqrt(v) / c->root2 + c->eps;
  p = vec_canonical(p - c->size * m / d);
  store(to.p + i, p, stream);
  store(to.m + i, vec_canonical(m), stream);
  store(to.v + i, vec_canonical(v), stream);
  return p;
}

/* Addresses past the end are allowed: a prefetch does not fault. */
INLINE void prefetch(const void *at, int ahead, int bytes) {
  for (int b = 0; b < bytes; b += LINE) {
    __builtin_prefetch((const char *)((uintptr_t)at + (uintptr_t)(ahead + b)), 0, 3);
  }
}

static inline bool on_line(const void *at) {
  return (uintptr_t)at % LINE == 0;
}

INLINE constants constants_of(const hk_adamw_step *s) {
  const float inverse = 1 / s->root2;
  const float low = (float)(1 / (double)s->root2 - (double)inverse);
  return (constants){vec_set(s->scale),  vec_set(s->decay), vec_set(s->rest1), vec_set(s->beta2),
                     vec_set(s->rest2),  vec_set(s->root2), vec_set(s->eps),   vec_set(s->size),
                     vec_set(-s->root2), vec_set(inverse),  vec_set(low)};
}

INLINE void adamw_loop(hk_adamw_tuning tuning, const hk_adamw_step *s, hk_grad_type type, int64_t n,
                       adamw_from from, adamw_into to, const void *grad, uint16_t *w) {
  const constants c = constants_of(s);
  const bool stream_state = tuning.stream_state && on_line(to.p) && on_line(to.m) && on_line(to.v);
  const bool stream_weights = tuning.stream_weights && on_line(w);
  const int size = (int)hk_grad_size(type);
  const char *g = grad;
  int64_t i = 0;
  for (; i + BLOCK <= n; i += BLOCK, g += BLOCK * size) {
    if (tuning.ahead > 0) {
      prefetch(from.p + i, tuning.ahead, BLOCK * 4);
      prefetch(from.m + i, tuning.ahead, BLOCK * 4);
      prefetch(from.v + i, tuning.ahead, BLOCK * 4);
      prefetch(g, tuning.ahead * size / 4, BLOCK * size);
    }
    vec x[PARTS];
    for (int k = 0; k < PARTS; k++) {
      const vec wide = load_grad(type, g + k * LANES * size);
      x[k] = update(&c, wide, from, to, i + k * LANES, stream_state);
    }
    if (w != NULL) store_bf16(w + i, x, stream_weights);
  }
  /* Streaming stores are not ordered before the later store that tells other threads of the end;
   * the fence orders them. */
  if (stream_state || stream_weights) stream_fence();
  if (i == n) return;
  hk_kernels_scalar.adamw_to(s, type, n - i, from.p + i, from.m + i, from.v + i, to.p + i, to.m + i,
                             to.v + i, g, w != NULL ? w + i : NULL);
}

/* One loop for each gradient type. */
INLINE void adamw_with(hk_adamw_tuning tuning, const hk_adamw_step *step, hk_grad_type type,
                       int64_t n, adamw_from from, adamw_into to, const void *grad, uint16_t *w) {
  switch (type) {
    case HK_GRAD_BF16:
      adamw_loop(tuning, step, HK_GRAD_BF16, n, from, to, grad, w);
      break;
    case HK_GRAD_FP16:
      adamw_loop(tuning, step, HK_GRAD_FP16, n, from, to, grad, w);
      break;
    default:
      adamw_loop(tuning, step, HK_GRAD_FP32, n, from, to, grad, w);
  }
}

/* The choice that was fastest in bench/bench_adamw. Out of place, stores that are not streaming
 * would first read each cache line that they overwrite. */
static const hk_adamw_tuning tuned = {.ahead = 2048, .stream_weights = true};
static const hk_adamw_tuning tuned_to = {
    .ahead = 2048, .stream_state = true, .stream_weights = true};

static TARGET __attribute__((noinline)) void run(const hk_adamw_step *step, hk_grad_type type,
                                                 int64_t n, float *p, float *m, float *v,
                                                 const void *grad, uint16_t *w) {
  adamw_with(tuned, step, type, n, (adamw_from){p, m, v}, (adamw_into){p, m, v}, grad, w);
}

static TARGET __attribute__((noinline)) void run_to(const hk_adamw_step *step, hk_grad_type type,
                                                    int64_t n, const adamw_from *from,
                                                    const adamw_into *to, const void *grad,
                                                    uint16_t *w) {
  adamw_with(tuned_to, step, type, n, *from, *to, grad, w);
}

static void adamw(const hk_adamw_step *step, hk_grad_type type, int64_t n, float *p, float *m,
                  float *v, const void *grad, uint16_t *w) {
  const unsigned before = hk_float_enter();
  run(step, type, n, p, m, v, grad, w);
  hk_float_leave(before);
}

static void adamw_to(const hk_adamw_step *step, hk_grad_type type, int64_t n, const float *p,
                     const float *m, const float *v, float *p_to, float *m_to, float *v_to,
                     const void *grad, uint16_t *w) {
  const unsigned before = hk_float_enter();
  run_to(step, type, n, &(adamw_from){p, m, v}, &(adamw_into){p_to, m_to, v_to}, grad, w);
  hk_float_leave(before);
}

static TARGET __attribute__((noinline)) int64_t multiply(float scale, int64_t n, float *g) {
  const vec factor = vec_set(scale);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) vec_store(g + i, vec_canonical(vec_load(g + i) * factor));
  return i;
}

static void unscale(float scale, int64_t n, float *g) {
  const unsigned before = hk_float_enter();
  const int64_t i = multiply(scale, n, g);
  hk_float_leave(before);
  hk_kernels_scalar.unscale(scale, n - i, g + i);
}

static TARGET void cast_down(int64_t n, const float *p, uint16_t *w) {
  int64_t i = 0;
  for (; i + BLOCK <= n; i += BLOCK) {
    vec x[PARTS];
    for (int k = 0; k < PARTS; k++) x[k] = vec_canonical(vec_load(p + i + k * LANES));
    store_bf16(w + i, x, false);
  }
  hk_kernels_scalar.cast_down(n - i, p + i, w + i);
}

static TARGET void cast_up(hk_grad_type type, int64_t n, const void *grad, float *g) {
  const char *from = grad;
  const int64_t size = (int64_t)hk_grad_size(type);
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vec_store(g + i, vec_canonical(load_grad(type, from + i * size)));
  }
  hk_kernels_scalar.cast_up(type, n - i, from + i * size, g + i);
}

#endif
