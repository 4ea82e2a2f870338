/* SPDX-License-Identifier: Apache-2.0 */
/* The update of state in the formats of formats.h, written once for all instruction sets; included
 * after adamw_vector.h, which says what it needs. Integer arithmetic on lanes uses the compiler's
 * vector extensions. What is left at the end of an array, the reference does.
 *
 * Elements are taken by pairs of vectors, one of the even and one of the odd elements. Then arrays
 * of 16 bits need no shuffle: a load of a whole vector holds an even element in the lower half of
 * each lane and an odd one in the upper half. Nor do the random bits, 16 of each 32. */
#ifndef HK_ENGINE_ADAMW_FORMATS_VECTOR_H
#define HK_ENGINE_ADAMW_FORMATS_VECTOR_H

#include "engine/adamw/adamw_vector.h"
#include "engine/adamw/formats.h"

typedef int32_t ivec __attribute__((vector_size(sizeof(uvec))));

/* Elements 2 l and 2 l + 1 in lane l of [0] and [1]. */
typedef struct {
  vec x[2];
} pair;
typedef struct {
  uvec x[2];
} upair;

enum { PAIR = 2 * LANES };

INLINE uvec uvec_set(uint32_t x) {
  return (uvec)vec_set(hk_of_bits(x));
}

/* 0, 1, ... */
INLINE uvec uvec_count(void) {
  uvec x;
  for (int l = 0; l < LANES; l++) x[l] = (uint32_t)l;
  return x;
}

/* As hk_random_word. */
INLINE uvec random_words(const uint32_t key[2], uvec number) {
  uvec x = number + uvec_set(key[0]);
  x ^= x >> 17;
  x *= uvec_set(0xed5ad4bbu);
  x ^= x >> 11;
  x += uvec_set(key[1]);
  x *= uvec_set(0xac4c1b51u);
  x ^= x >> 15;
  x *= uvec_set(0x31848babu);
  return x ^ x >> 14;
}

/* Lanes that are no ties to be rounded down. To all others rounding to nearest even adds half. */
INLINE umask not_down(uvec bits) {
  return uvec_differ(bits & uvec_set(0x1ffffu), uvec_set(0x8000u));
}

/* Lanes that rounding may change: not those at or above the largest finite bf16. */
INLINE umask not_large(uvec bits) {
  return uvec_below(bits & uvec_set(0x7fffffffu), uvec_set(0x7f7f0000u));
}

/* As hk_round_m and hk_round_v, but the result is in the upper halves of lanes, above what is to be
 * dropped. */
INLINE uvec round_m(uvec bits) {
  return uvec_add_where(not_down(bits) & not_large(bits), bits, uvec_set(0x8000u));
}
INLINE uvec round_v(uvec bits, uvec random) {
  return uvec_add_where(not_large(bits), bits, random);
}

/* -- Memory ------------------------------------------------------------------------------------ */

INLINE uvec load_bits(const char *at) {
  return (uvec)vec_load((const float *)(const void *)at);
}

INLINE void store_bits(char *to, uvec x, bool stream) {
  store((float *)(void *)to, (vec)x, stream);
}

/* Values of 16 bits, into the upper halves of lanes. */
INLINE upair load_halves(const char *at) {
  const uvec both = load_bits(at);
  return (upair){{both << 16, both & uvec_set(0xffff0000u)}};
}

/* The upper halves of lanes. */
INLINE void store_halves(char *to, upair a, bool stream) {
  store_bits(to, a.x[0] >> 16 | (a.x[1] & uvec_set(0xffff0000u)), stream);
}

/* The lower halves. */
INLINE void store_lower_halves(char *to, upair a, bool stream) {
  store_bits(to, a.x[1] << 16 | (a.x[0] & uvec_set(0xffffu)), stream);
}

INLINE upair load_words(const char *at) {
  vec apart[2];
  vec_unzip((vec)load_bits(at), (vec)load_bits(at + 4 * LANES), apart);
  return (upair){{(uvec)apart[0], (uvec)apart[1]}};
}

INLINE void store_words(char *to, upair a, bool stream) {
  vec x[2];
  vec_zip((vec)a.x[0], (vec)a.x[1], x);
  store_bits(to, (uvec)x[0], stream);
  store_bits(to + 4 * LANES, (uvec)x[1], stream);
}

INLINE pair load_grads(hk_grad_type type, const char *at) {
  upair g;
  if (type == HK_GRAD_BF16) {
    g = load_halves(at);
  } else if (type == HK_GRAD_FP16) {
    pair wide;
    vec_unzip(vec_fp16(at), vec_fp16(at + 2 * LANES), wide.x);
    return wide;
  } else {
    g = load_words(at);
  }
  return (pair){{(vec)g.x[0], (vec)g.x[1]}};
}

/* A pair of state, as fp32. */
typedef struct {
  pair p, m, v;
} state_pair;

/* p, without what the sign of v says. Not split: the elements in order, one vector after the other,
 * because arrays of 32 bits would need shuffles. */
INLINE pair load_p(hk_format format, hk_state_at from) {
  if (!hk_format_is_split(format)) {
    return (pair){{(vec)load_bits(from.p), (vec)load_bits(from.p + 4 * LANES)}};
  }
  upair p = load_halves(from.p);
  const uvec low = load_bits(from.low);
  p.x[0] += (uvec)((ivec)(low << 16) >> 16);
  p.x[1] += (uvec)((ivec)low >> 16);
  return (pair){{(vec)p.x[0], (vec)p.x[1]}};
}

/* Stores p and, if `w` is not NULL, weights there, too. `high`: p in the order of load_p, rounded
 * in the upper halves. */
INLINE void store_p(hk_format format, hk_state_at to, upair p, upair high, bool stream, char *w,
                    bool stream_weights) {
  const bool split = hk_format_is_split(format);
  if (w != NULL && split) store_halves(w, high, stream_weights);
  if (w != NULL && !split) store_bits(w, uvec_upper_halves(high.x[0], high.x[1]), stream_weights);
  if (split) {
    store_halves(to.p, high, stream);
    store_lower_halves(to.low, p, stream);
  } else {
    store_bits(to.p, p.x[0], stream);
    store_bits(to.p + 4 * LANES, p.x[1], stream);
  }
}

INLINE state_pair load_state(hk_format format, hk_state_at from) {
  const bool split = hk_format_is_split(format), narrow = hk_format_is_short(format);
  state_pair s = {.p = load_p(format, from)};
  const upair m = narrow ? load_halves(from.m) : load_words(from.m);
  upair v = narrow ? load_halves(from.v) : load_words(from.v);
  for (int k = 0; k < 2; k++) {
    if (split) {
      s.p.x[k] = (vec)((uvec)s.p.x[k] + (v.x[k] >> 31 << 16));
      v.x[k] &= uvec_set(0x7fffffffu);
    }
    s.m.x[k] = (vec)m.x[k], s.v.x[k] = (vec)v.x[k];
  }
  return s;
}

/* Stores state and, if `w` is not NULL, weights there, too. */
INLINE void store_state(hk_format format, hk_state_at to, const state_pair *s, uvec random,
                        bool stream, char *w, bool stream_weights) {
  const bool split = hk_format_is_split(format), narrow = hk_format_is_short(format);
  const uvec apart[2] = {random & uvec_set(0xffffu), random >> 16};
  upair p, m, v, high; /* high: bf16(p) in the upper halves */
  for (int k = 0; k < 2; k++) {
    p.x[k] = (uvec)s->p.x[k], m.x[k] = (uvec)s->m.x[k], v.x[k] = (uvec)s->v.x[k];
    if (narrow) m.x[k] = round_m(m.x[k]), v.x[k] = round_v(v.x[k], apart[k]);
    const umask up = not_down(p.x[k]);
    high.x[k] = uvec_add_where(up, p.x[k], uvec_set(0x8000u));
    if (split) v.x[k] = uvec_add_where((umask)~up, v.x[k], uvec_set(0x80000000u));
  }
  store_p(format, to, p, high, stream, w, stream_weights);
  if (narrow) {
    store_halves(to.m, m, stream);
    store_halves(to.v, v, stream);
  } else {
    store_words(to.m, m, stream);
    store_words(to.v, v, stream);
  }
}

/* -- The update -------------------------------------------------------------------------------- */

INLINE void update_moments(const constants *c, vec grad, vec *m, vec *v) {
  const vec g = c->scale * grad;
  *m = vec_fma(c->rest1, g - *m, *m);
  *v = vec_fma(c->rest2 * g, g, *v * c->beta2);
}

/* p after the update, in the order of load_p; `d`: the denominators. */
INLINE pair next_p(hk_format format, const constants *c, pair p, pair m, pair d) {
  pair q = {{c->size * m.x[0] / d.x[0], c->size * m.x[1] / d.x[1]}};
  if (!hk_format_is_split(format)) vec_zip(q.x[0], q.x[1], q.x);
  return (pair){{p.x[0] * c->decay - q.x[0], p.x[1] * c->decay - q.x[1]}};
}

INLINE void update_pair(hk_format format, const constants *c, pair grads, state_pair *s) {
  pair d;
  for (int k = 0; k < 2; k++) {
    update_moments(c, grads.x[k], &s->m.x[k], &s->v.x[k]);
    d.x[k] = vec_sqrt(s->v.x[k]) / c->root2 + c->eps;
  }
  s->p = next_p(format, c, s->p, s->m, d);
  /* If m or v is NaN, p is. */
  if (__builtin_expect(vec_any_nan(s->p.x[0], s->p.x[1]), 0)) {
    for (int k = 0; k < 2; k++) {
      s->p.x[k] = vec_canonical(s->p.x[k]);
      s->m.x[k] = vec_canonical(s->m.x[k]);
      s->v.x[k] = vec_canonical(s->v.x[k]);
    }
  }
}

#include "engine/adamw/codes_vector.h"

INLINE void prefetch_state(hk_format format, hk_state_at at, int ahead) {
  const int size = (int)hk_format_size(format, 0), size_m = (int)hk_format_size(format, 1);
  prefetch(at.p, ahead * size / 4, BLOCK * size);
  if (hk_format_is_split(format)) prefetch(at.low, ahead / 2, BLOCK * 2);
  prefetch(at.m, ahead * size_m / 4, BLOCK * size_m);
  prefetch(at.v, ahead * size_m / 4, BLOCK * size_m);
}

/* Whether state is stored past the caches: each array begins a cache line. */
INLINE bool streams_to(hk_format format, hk_adamw_tuning tuning, hk_state_at to) {
  return tuning.stream_state && on_line(to.p) && on_line(to.m) && on_line(to.v) &&
         (!hk_format_is_split(format) || on_line(to.low));
}

INLINE void format_loop(hk_format format, hk_adamw_tuning tuning, const hk_adamw_step *s,
                        hk_grad_type type, int64_t n, hk_state_at from, hk_state_at to,
                        const char *grad, uint16_t *w, int64_t index) {
  const constants c = constants_of(s);
  const bool stream = streams_to(format, tuning, to);
  const bool stream_weights = tuning.stream_weights && on_line(w);
  const int size = (int)hk_grad_size(type);
  uint32_t key[2];
  hk_random_key_at(s->key, index, key);
  uvec number = uvec_count() + uvec_set(hk_random_number(index));
  int64_t i = 0;
  for (; i + BLOCK <= n; i += BLOCK) {
    const hk_state_at a = hk_state_at_element(format, from, i);
    if (tuning.ahead > 0) {
      prefetch_state(format, a, tuning.ahead);
      prefetch(grad + i * size, tuning.ahead * size / 4, BLOCK * size);
    }
    for (int k = 0; k < BLOCK / PAIR; k++) {
      const int64_t at = i + k * PAIR;
      const pair grads = load_grads(type, grad + at * size);
      state_pair x = load_state(format, hk_state_at_element(format, from, at));
      update_pair(format, &c, grads, &x);
      const uvec random = hk_format_is_short(format) ? random_words(key, number) : number;
      store_state(format, hk_state_at_element(format, to, at), &x, random, stream,
                  w != NULL ? (char *)(w + at) : NULL, stream_weights);
      number += uvec_set(LANES);
    }
  }
  if (stream || stream_weights) stream_fence(); /* as in adamw_loop */
  if (i == n) return;
  hk_update_scalar(format, s, type, n - i, hk_state_at_element(format, from, i),
                   hk_state_at_element(format, to, i), grad + i * size, w != NULL ? w + i : NULL,
                   index + i);
}

/* The same for blocks of codes. */
INLINE void code_loop(hk_format format, hk_adamw_tuning tuning, const hk_adamw_step *s,
                      hk_grad_type type, int64_t n, hk_state_at from, hk_state_at to,
                      const char *grad, uint16_t *w, int64_t index) {
  code_update u = {.format = format,
                   .type = type,
                   .c = constants_of(s),
                   .ahead = 2 * tuning.ahead, /* a tenth faster than half of it */
                   .stream = streams_to(format, tuning, to),
                   .stream_weights = tuning.stream_weights && on_line(w),
                   .keeps_v = s->beta2 >= 0x1p-23f && s->rest2 >= 0};
  const int size = (int)hk_grad_size(type);
  const bool vectors = s->root2 > 0;
  hk_random_key_at(s->key, index, u.key);
  for (int64_t i = 0; i < n; i += HK_CODE_BLOCK) {
    const hk_state_at a = hk_state_at_element(format, from, i),
                      b = hk_state_at_element(format, to, i);
    const char *const g = grad + i * size;
    char *const weights = w != NULL ? (char *)(w + i) : NULL;
    const int64_t here = n - i < HK_CODE_BLOCK ? n - i : HK_CODE_BLOCK;
    const code_block block = {.from = a,
                              .to = b,
                              .grad = g,
                              .w = weights,
                              .before = {(uint8_t)a.windows[0], (uint8_t)a.windows[1]},
                              .number = hk_code_number(index + i)};
    if (here == HK_CODE_BLOCK && vectors && update_code_block(&u, &block)) continue;
    hk_update_scalar(format, s, type, here, a, b, g, (uint16_t *)(void *)weights, index + i);
  }
  if (u.stream || u.stream_weights) stream_fence(); /* as in adamw_loop */
}

INLINE void any_loop(hk_format format, hk_adamw_tuning tuning, const hk_adamw_step *s,
                     hk_grad_type type, int64_t n, hk_state_at from, hk_state_at to,
                     const char *grad, uint16_t *w, int64_t index) {
  if (hk_format_is_coded(format)) {
    code_loop(format, tuning, s, type, n, from, to, grad, w, index);
  } else {
    format_loop(format, tuning, s, type, n, from, to, grad, w, index);
  }
}

/* One loop for each gradient type and format. */
#define TYPES_OF(format)                                                             \
  static TARGET __attribute__((noinline)) void loop_of_##format(                     \
      hk_adamw_tuning tuning, const hk_adamw_step *s, hk_grad_type type, int64_t n,  \
      const hk_state_at *from, const hk_state_at *to, const char *grad, uint16_t *w, \
      int64_t index) {                                                               \
    switch (type) {                                                                  \
      case HK_GRAD_BF16:                                                             \
        any_loop(format, tuning, s, HK_GRAD_BF16, n, *from, *to, grad, w, index);    \
        break;                                                                       \
      case HK_GRAD_FP16:                                                             \
        any_loop(format, tuning, s, HK_GRAD_FP16, n, *from, *to, grad, w, index);    \
        break;                                                                       \
      default:                                                                       \
        any_loop(format, tuning, s, HK_GRAD_FP32, n, *from, *to, grad, w, index);    \
    }                                                                                \
  }
TYPES_OF(HK_FORMAT_SPLIT)
TYPES_OF(HK_FORMAT_BF16)
TYPES_OF(HK_FORMAT_BF16_SPLIT)
TYPES_OF(HK_FORMAT_8BIT)
TYPES_OF(HK_FORMAT_8BIT_SPLIT)

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
    case HK_FORMAT_8BIT:
      loop_of_HK_FORMAT_8BIT(tuning, s, type, n, from, to, grad, w, index);
      break;
    case HK_FORMAT_8BIT_SPLIT:
      loop_of_HK_FORMAT_8BIT_SPLIT(tuning, s, type, n, from, to, grad, w, index);
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
  /* The key changes where the lower half of a pair's number begins again. */
  const int64_t period = (int64_t)1 << 33;
  for (int64_t done = 0, part; done < n; done += part) {
    const int64_t left = period - (index + done) % period;
    part = left < n - done ? left : n - done;
    const hk_state_at a = hk_state_at_element(format, from, done),
                      b = hk_state_at_element(format, to, done);
    const char *const g = (const char *)grad + done * (int64_t)hk_grad_size(type);
    uint16_t *const weights = w != NULL ? w + done : NULL;
    if (hk_format_is_short(format) && (index + done) % 2 != 0) {
      part = 1; /* the reference does an odd element, so that the others are pairs */
      hk_update_scalar(format, s, type, part, a, b, g, weights, index + done);
    } else {
      format_run(format, s, type, part, &a, &b, g, weights, index + done);
    }
  }
  hk_float_leave(before);
}

#endif
