/* SPDX-License-Identifier: Apache-2.0 */
/* The update of state in the formats of formats.h, written once for all instruction sets; included
 * after adamw_vector.h, which says what it needs. Integer arithmetic on lanes uses the compiler's
 * vector extensions. What is left at the end of an array, the reference does. */
#ifndef HK_ENGINE_ADAMW_FORMATS_VECTOR_H
#define HK_ENGINE_ADAMW_FORMATS_VECTOR_H

#include "engine/adamw/adamw_vector.h"
#include "engine/adamw/formats.h"

typedef int32_t ivec __attribute__((vector_size(sizeof(uvec))));

INLINE uvec uvec_set(uint32_t x) {
  return (uvec)vec_set(hk_of_bits(x));
}

/* All bits where lanes of a and b are equal, else none. */
INLINE uvec uvec_same(uvec a, uvec b) {
  return (uvec)(a == b);
}

/* Numbers of elements, one more from lane to lane. */
INLINE uvec uvec_from(uint32_t first) {
  uvec x;
  for (int l = 0; l < LANES; l++) x[l] = first + (uint32_t)l;
  return x;
}

/* As hk_random_bits. */
INLINE uvec random_bits(const uint32_t key[2], uvec index) {
  uvec x = index + uvec_set(key[0]);
  x ^= x >> 17;
  x *= uvec_set(0xed5ad4bbu);
  x ^= x >> 11;
  x += uvec_set(key[1]);
  x *= uvec_set(0xac4c1b51u);
  x ^= x >> 15;
  x *= uvec_set(0x31848babu);
  return x >> 16;
}

/* As hk_round_finite; lanes hold the result in their lower half. */
INLINE uvec round_finite(uvec bits, uvec add) {
  const uvec rounded = (bits + add) >> 16;
  const uvec at_infinity = uvec_same(rounded & uvec_set(0x7fffu), uvec_set(0x7f80u));
  const uvec infinite = uvec_same(bits & uvec_set(0x7fffffffu), uvec_set(0x7f800000u));
  return rounded + (at_infinity & ~infinite); /* all bits: -1 */
}

/* What rounds to nearest even when it is added. */
INLINE uvec half_to_even(uvec bits) {
  return uvec_set(0x7fffu) + (bits >> 16 & uvec_set(1));
}

/* bf16 values in the upper halves of lanes. */
INLINE uvec load_halves(const char *at) {
  return (uvec)vec_bf16(at);
}

INLINE uvec load_v(hk_format format, const char *v) {
  if (hk_format_is_short(format)) return load_halves(v);
  return (uvec)vec_load((const float *)(const void *)v);
}

INLINE vec load_p(hk_format format, hk_state_at from, uvec v) {
  if (!hk_format_is_split(format)) return vec_load((const float *)(const void *)from.p);
  const uvec difference = (uvec)((ivec)load_halves(from.low) >> 16);
  return (vec)(load_halves(from.p) + difference + ((v >> 31) << 16));
}

INLINE void store_m(hk_format format, char *to, vec m, bool stream) {
  if (hk_format_is_short(format)) {
    store_halves(to, round_finite((uvec)m, half_to_even((uvec)m)), stream);
  } else {
    store((float *)(void *)to, m, stream);
  }
}

/* `v`: the bits that are kept, in the lower half with a short format. */
INLINE void store_p_and_v(hk_format format, hk_state_at to, vec p, uvec v, bool stream) {
  const uvec bits = (uvec)p;
  if (hk_format_is_split(format)) {
    store_halves(to.p, (bits + half_to_even(bits)) >> 16, stream);
    store_halves(to.low, bits & uvec_set(0xffffu), stream);
    const uvec down = uvec_same(bits & uvec_set(0x1ffffu), uvec_set(0x8000u));
    v |= down & uvec_set(hk_format_is_short(format) ? 0x8000u : 0x80000000u);
  } else {
    store((float *)(void *)to.p, p, stream);
  }
  if (hk_format_is_short(format)) {
    store_halves(to.v, v, stream);
  } else {
    store((float *)(void *)to.v, (vec)v, stream);
  }
}

/* One vector. `index`: numbers of its elements. */
INLINE vec format_update(hk_format format, const constants *c, const uint32_t key[2], vec grad,
                         hk_state_at from, hk_state_at to, uvec index, bool stream) {
  const uvec kept = load_v(format, from.v);
  const vec g = c->scale * grad;
  vec p = load_p(format, from, kept);
  vec m = hk_format_is_short(format) ? (vec)load_halves(from.m)
                                     : vec_load((const float *)(const void *)from.m);
  vec v = (vec)(hk_format_is_split(format) ? kept & uvec_set(0x7fffffffu) : kept);
  p = p * c->decay;
  m = vec_fma(c->rest1, g - m, m);
  v = vec_fma(c->rest2 * g, g, v * c->beta2);
  const vec d = vec_sqrt(v) / c->root2 + c->eps;
  p = vec_canonical(p - c->size * m / d);
  v = vec_canonical(v);
  store_m(format, to.m, vec_canonical(m), stream);
  uvec bits = (uvec)v;
  if (hk_format_is_short(format)) bits = round_finite(bits, random_bits(key, index));
  store_p_and_v(format, to, p, bits, stream);
  return p;
}

INLINE void prefetch_state(hk_format format, hk_state_at at, int ahead) {
  const int size_p = (int)hk_format_size(format, 0), size_m = (int)hk_format_size(format, 1);
  prefetch(at.p, ahead * size_p / 4, BLOCK * size_p);
  if (hk_format_is_split(format)) prefetch(at.low, ahead / 2, BLOCK * 2);
  prefetch(at.m, ahead * size_m / 4, BLOCK * size_m);
  prefetch(at.v, ahead * size_m / 4, BLOCK * size_m);
}

INLINE void format_loop(hk_format format, hk_adamw_tuning tuning, const hk_adamw_step *s,
                        hk_grad_type type, int64_t n, hk_state_at from, hk_state_at to,
                        const char *grad, uint16_t *w, int64_t index) {
  const constants c = {vec_set(s->scale), vec_set(s->decay), vec_set(s->rest1), vec_set(s->beta2),
                       vec_set(s->rest2), vec_set(s->root2), vec_set(s->eps),   vec_set(s->size)};
  const bool stream = tuning.stream_state && on_line(to.p) && on_line(to.m) && on_line(to.v) &&
                      (!hk_format_is_split(format) || on_line(to.low));
  const bool stream_weights = tuning.stream_weights && on_line(w);
  const int size = (int)hk_grad_size(type);
  uint32_t key[2];
  hk_random_key_at(s->key, index, key);
  uvec number = uvec_from((uint32_t)index);
  int64_t i = 0;
  for (; i + BLOCK <= n; i += BLOCK) {
    const hk_state_at a = hk_state_at_element(format, from, i);
    if (tuning.ahead > 0) {
      prefetch_state(format, a, tuning.ahead);
      prefetch(grad + i * size, tuning.ahead * size / 4, BLOCK * size);
    }
    vec x[PARTS];
    for (int k = 0; k < PARTS; k++) {
      const int64_t at = i + k * LANES;
      const vec wide = load_grad(type, grad + at * size);
      x[k] = format_update(format, &c, key, wide, hk_state_at_element(format, from, at),
                           hk_state_at_element(format, to, at), number, stream);
      number += uvec_set(LANES);
    }
    if (w != NULL) store_bf16(w + i, x, stream_weights);
  }
  if (stream || stream_weights) stream_fence(); /* as in adamw_loop */
  if (i == n) return;
  hk_update_scalar(format, s, type, n - i, hk_state_at_element(format, from, i),
                   hk_state_at_element(format, to, i), grad + i * size, w != NULL ? w + i : NULL,
                   index + i);
}

/* One loop for each gradient type and format. */
#define TYPES_OF(format)                                                             \
  static TARGET __attribute__((noinline)) void loop_of_##format(                     \
      hk_adamw_tuning tuning, const hk_adamw_step *s, hk_grad_type type, int64_t n,  \
      const hk_state_at *from, const hk_state_at *to, const char *grad, uint16_t *w, \
      int64_t index) {                                                               \
    switch (type) {                                                                  \
      case HK_GRAD_BF16:                                                             \
        format_loop(format, tuning, s, HK_GRAD_BF16, n, *from, *to, grad, w, index); \
        break;                                                                       \
      case HK_GRAD_FP16:                                                             \
        format_loop(format, tuning, s, HK_GRAD_FP16, n, *from, *to, grad, w, index); \
        break;                                                                       \
      default:                                                                       \
        format_loop(format, tuning, s, HK_GRAD_FP32, n, *from, *to, grad, w, index); \
    }                                                                                \
  }
TYPES_OF(HK_FORMAT_SPLIT)
TYPES_OF(HK_FORMAT_BF16)
TYPES_OF(HK_FORMAT_BF16_SPLIT)

static void format_run(hk_format format, const hk_adamw_step *s, hk_grad_type type, int64_t n,
                       const hk_state_at *from, const hk_state_at *to, const char *grad,
                       uint16_t *w, int64_t index) {
  const hk_adamw_tuning tuning = from->p == to->p ? tuned : tuned_to;
  switch (format) {
    case HK_FORMAT_SPLIT:
      loop_of_HK_FORMAT_SPLIT(tuning, s, type, n, from, to, grad, w, index);
      break;
    case HK_FORMAT_BF16:
      loop_of_HK_FORMAT_BF16(tuning, s, type, n, from, to, grad, w, index);
      break;
    case HK_FORMAT_BF16_SPLIT:
      loop_of_HK_FORMAT_BF16_SPLIT(tuning, s, type, n, from, to, grad, w, index);
      break;
    default:
      break;
  }
}

static void update_in_format(hk_format format, const hk_adamw_step *s, hk_grad_type type, int64_t n,
                             hk_state_at from, hk_state_at to, const void *grad, uint16_t *w,
                             int64_t index) {
  if (format == HK_FORMAT_FP32) {
    float *const p = (float *)(void *)from.p, *const m = (float *)(void *)from.m,
                 *const v = (float *)(void *)from.v;
    if (from.p == to.p) {
      adamw(s, type, n, p, m, v, grad, w);
    } else {
      adamw_to(s, type, n, p, m, v, (float *)(void *)to.p, (float *)(void *)to.m,
               (float *)(void *)to.v, grad, w);
    }
    return;
  }
  const unsigned before = hk_float_enter();
  /* The key changes where the lower half of the index begins again. */
  for (int64_t done = 0, part; done < n; done += part) {
    const int64_t left = ((int64_t)1 << 32) - (index + done) % ((int64_t)1 << 32);
    part = left < n - done ? left : n - done;
    const hk_state_at a = hk_state_at_element(format, from, done),
                      b = hk_state_at_element(format, to, done);
    format_run(format, s, type, part, &a, &b,
               (const char *)grad + done * (int64_t)hk_grad_size(type), w != NULL ? w + done : NULL,
               index + done);
  }
  hk_float_leave(before);
}

#endif
