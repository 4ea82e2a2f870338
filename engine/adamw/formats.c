/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of the formats of state: plain C, one element at a time. */
#include "engine/adamw/formats.h"

#include <math.h>
#include <string.h>

#include "engine/adamw/adamw_kernels.h"

/* -- Random bits ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void hk_random_key(uint64_t seed, uint64_t tensor, int64_t step, uint32_t key[2]) {
  const uint64_t golden = 0x9e3779b97f4a7c15u;
  const uint64_t of_tensor = mix(mix(seed + golden) ^ tensor);
  const uint64_t z = mix(of_tensor + (uint64_t)step * golden);
  key[0] = (uint32_t)z;
  key[1] = (uint32_t)(z >> 32);
}

/* -- Elements in memory ------------------------------------------------------------------------ */

/* memcpy, because arrays need not be aligned. */
static uint16_t half_at(const char *array, int64_t i) {
  uint16_t h;
  memcpy(&h, array + 2 * i, sizeof h);
  return h;
}

static void set_half(char *array, int64_t i, uint16_t h) {
  memcpy(array + 2 * i, &h, sizeof h);
}

static float word_at(const char *array, int64_t i) {
  float x;
  memcpy(&x, array + 4 * i, sizeof x);
  return x;
}

static void set_word(char *array, int64_t i, float x) {
  memcpy(array + 4 * i, &x, sizeof x);
}

static uint32_t v_bits(hk_format format, hk_state_at at, int64_t i) {
  return hk_format_is_short(format) ? (uint32_t)half_at(at.v, i) << 16
                                    : hk_bits_of(word_at(at.v, i));
}

static void set_v_bits(hk_format format, hk_state_at at, int64_t i, uint32_t bits) {
  if (hk_format_is_short(format)) {
    set_half(at.v, i, (uint16_t)(bits >> 16));
  } else {
    set_word(at.v, i, hk_of_bits(bits));
  }
}

#define SIGN 0x80000000u

static float read_p(hk_format format, hk_state_at at, int64_t i) {
  if (!hk_format_is_split(format)) return word_at(at.p, i);
  return hk_join_halves(half_at(at.p, i), half_at(at.low, i), v_bits(format, at, i) & SIGN);
}

static float read_m(hk_format format, hk_state_at at, int64_t i) {
  return hk_format_is_short(format) ? hk_from_bf16(half_at(at.m, i)) : word_at(at.m, i);
}

static float read_v(hk_format format, hk_state_at at, int64_t i) {
  const uint32_t bits = v_bits(format, at, i);
  return hk_of_bits(hk_format_is_split(format) ? bits & ~SIGN : bits);
}

/* Sets p and v. `v`: the bits that are kept of v, in the upper half with a short format. */
static void set_p_and_v(hk_format format, hk_state_at at, int64_t i, float p, uint32_t v) {
  if (hk_format_is_split(format)) {
    const hk_halves h = hk_split_halves(p);
    set_half(at.p, i, h.high);
    set_half(at.low, i, h.low);
    v = (v & ~SIGN) | (h.down ? SIGN : 0);
  } else {
    set_word(at.p, i, p);
  }
  set_v_bits(format, at, i, v);
}

static void set_m(hk_format format, hk_state_at at, int64_t i, float m) {
  if (hk_format_is_short(format)) {
    set_half(at.m, i, hk_round_m(m));
  } else {
    set_word(at.m, i, m);
  }
}

/* -- The update -------------------------------------------------------------------------------- */

static float grad_at(hk_grad_type type, const char *grad, int64_t i) {
  if (type == HK_GRAD_FP32) return word_at(grad, i);
  const uint16_t h = half_at(grad, i);
  return type == HK_GRAD_BF16 ? hk_from_bf16(h) : hk_from_fp16(h);
}

static __attribute__((noinline)) void update(hk_format format, const hk_adamw_step *s,
                                             hk_grad_type type, int64_t n, hk_state_at from,
                                             hk_state_at to, const void *grad, uint16_t *w,
                                             int64_t index) {
  for (int64_t i = 0; i < n; i++) {
    const float g = s->scale * grad_at(type, grad, i);
    float p = read_p(format, from, i), m = read_m(format, from, i), v = read_v(format, from, i);
    p = p * s->decay;
    m = fmaf(s->rest1, g - m, m);
    v = fmaf(s->rest2 * g, g, v * s->beta2);
    const float d = sqrtf(v) / s->root2 + s->eps;
    p = hk_canonical(p - s->size * m / d);
    m = hk_canonical(m);
    v = hk_canonical(v);
    uint32_t kept = hk_bits_of(v);
    if (hk_format_is_short(format)) {
      kept = (uint32_t)hk_round_v(v, hk_random_bits(s->key, index + i)) << 16;
    }
    set_m(format, to, i, m);
    set_p_and_v(format, to, i, p, kept);
    if (w != NULL) set_half((char *)w, i, hk_to_bf16(p));
  }
}

void hk_update_scalar(hk_format format, const hk_adamw_step *step, hk_grad_type type, int64_t n,
                      hk_state_at from, hk_state_at to, const void *grad, uint16_t *w,
                      int64_t index) {
  const unsigned before = hk_float_enter();
  update(format, step, type, n, from, to, grad, w, index);
  hk_float_leave(before);
}

/* -- Reading and writing ----------------------------------------------------------------------- */

void hk_format_read(hk_format format, int part, int64_t n, hk_state_at at, float *values) {
  for (int64_t i = 0; i < n; i++) {
    const float x = part == 0   ? read_p(format, at, i)
                    : part == 1 ? read_m(format, at, i)
                                : read_v(format, at, i);
    set_word((char *)values, i, x);
  }
}

static void write_v(hk_format format, int64_t i, hk_state_at at, float v) {
  uint32_t bits = hk_bits_of(format == HK_FORMAT_FP32 ? v : hk_canonical(v));
  if (hk_format_is_short(format)) bits = (uint32_t)hk_round_m(v) << 16;
  if (hk_format_is_split(format)) bits |= v_bits(format, at, i) & SIGN;
  set_v_bits(format, at, i, bits);
}

void hk_format_write(hk_format format, int part, int64_t n, hk_state_at at, const float *values) {
  for (int64_t i = 0; i < n; i++) {
    const float x = word_at((const char *)values, i);
    if (part == 2) {
      write_v(format, i, at, x);
    } else if (part == 1) {
      set_m(format, at, i, format == HK_FORMAT_FP32 ? x : hk_canonical(x));
    } else {
      const bool plain = !hk_format_is_split(format);
      if (plain) {
        set_word(at.p, i, format == HK_FORMAT_FP32 ? x : hk_canonical(x));
      } else {
        set_p_and_v(format, at, i, x, v_bits(format, at, i));
      }
    }
  }
}

void hk_format_round(hk_format format, const uint32_t key[2], int64_t index, int64_t n, float *m,
                     float *v) {
  for (int64_t i = 0; hk_format_is_short(format) && i < n; i++) {
    m[i] = hk_of_bits((uint32_t)hk_round_m(m[i]) << 16);
    v[i] = hk_of_bits((uint32_t)hk_round_v(v[i], hk_random_bits(key, index + i)) << 16);
  }
}

int64_t hk_format_first_signed(int64_t n, const float *values) {
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = hk_bits_of(word_at((const char *)values, i));
    if ((bits & SIGN) != 0 && !hk_is_nan(bits)) return i;
  }
  return n;
}
