/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of the formats of state: plain C, one element at a time. */
#include "engine/adamw/formats.h"

#include <math.h>
#include <string.h>

#include "core/base/splitmix.h"
#include "engine/adamw/adamw_kernels.h"

/* -- Random bits ------------------------------------------------------------------------------- */

void hk_random_key(uint64_t seed, uint64_t tensor, int64_t step, uint32_t key[2]) {
  const uint64_t of_tensor = hk_splitmix_mix(hk_splitmix_mix(seed + HK_SPLITMIX_STEP) ^ tensor);
  const uint64_t z = hk_splitmix_mix(of_tensor + (uint64_t)step * HK_SPLITMIX_STEP);
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
  const bool down = !hk_format_is_coded(format) && (v_bits(format, at, i) & SIGN) != 0;
  return hk_join_halves(half_at(at.p, i), half_at(at.low, i), down);
}

static uint32_t special_code(uint32_t code, uint32_t infinity) {
  return code == infinity ? 0x7f800000u : HK_NAN_BITS;
}

static float decode_m(uint8_t code, uint8_t window) {
  const uint32_t c = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
  if (c > HK_CODES_M) return hk_of_bits(sign | special_code(c, HK_CODES_M + 1));
  return hk_of_bits(sign | hk_code_magnitude(c, window));
}

static float decode_v(uint8_t code, uint8_t window) {
  if (code > HK_CODES_V) return hk_of_bits(special_code(code, HK_CODES_V + 1));
  return hk_of_bits(hk_code_magnitude(code, window));
}

static uint8_t byte_at(const char *array, int64_t i) {
  return (uint8_t)array[i];
}

static float read_m(hk_format format, hk_state_at at, int64_t i) {
  if (hk_format_is_coded(format))
    return decode_m(byte_at(at.m, i), byte_at(at.windows, i / HK_CODE_BLOCK * 2));
  return hk_format_is_short(format) ? hk_from_bf16(half_at(at.m, i)) : word_at(at.m, i);
}

static float read_v(hk_format format, hk_state_at at, int64_t i) {
  if (hk_format_is_coded(format))
    return decode_v(byte_at(at.v, i), byte_at(at.windows, i / HK_CODE_BLOCK * 2 + 1));
  const uint32_t bits = v_bits(format, at, i);
  return hk_of_bits(hk_format_is_split(format) ? bits & ~SIGN : bits);
}

static void set_p(hk_format format, hk_state_at at, int64_t i, float p) {
  if (hk_format_is_coded(format)) p = hk_of_bits(hk_code_of_p(hk_bits_of(hk_canonical(p))));
  if (!hk_format_is_split(format)) {
    set_word(at.p, i, p);
    return;
  }
  const hk_halves h = hk_split_halves(p);
  set_half(at.p, i, h.high);
  set_half(at.low, i, h.low);
}

/* Sets p and v. `v`: the bits that are kept of v, in the upper half with a short format. */
static void set_p_and_v(hk_format format, hk_state_at at, int64_t i, float p, uint32_t v) {
  set_p(format, at, i, p);
  if (hk_format_is_split(format)) v = (v & ~SIGN) | (hk_split_halves(p).down ? SIGN : 0);
  set_v_bits(format, at, i, v);
}

static void set_m(hk_format format, hk_state_at at, int64_t i, float m) {
  if (hk_format_is_short(format)) {
    set_half(at.m, i, hk_round_m(m));
  } else {
    set_word(at.m, i, m);
  }
}

/* -- Blocks of codes --------------------------------------------------------------------------- */

/* What is added before bits are dropped. `random`: of each value; NULL: to nearest even. */
static uint32_t addend(uint32_t magnitude, const uint32_t *random, int64_t i) {
  if (random != NULL) return random[i];
  return (1u << (HK_FINEST - 1)) - 1 + (magnitude >> HK_FINEST & 1u);
}

/* Sets m, or v, of the n elements of one block. Infinities and NaN do not count for the window. */
static void set_codes(int part, hk_state_at at, int64_t n, const float *x, const uint32_t *random) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    const uint32_t magnitude = hk_bits_of(x[i]) & ~SIGN;
    const uint32_t u = hk_code_round(magnitude, addend(magnitude, random, i));
    if (magnitude < HK_INFINITE && u > most) most = u;
  }
  const uint32_t window = hk_code_window(most, part == 1 ? HK_CODES_M : HK_CODES_V);
  at.windows[part - 1] = (char)(uint8_t)window;
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = hk_bits_of(hk_canonical(x[i]));
    const uint32_t add = addend(bits & ~SIGN, random, i);
    if (part == 1) {
      at.m[i] = (char)(uint8_t)hk_code_of_m(bits, window, add);
    } else {
      at.v[i] = (char)(uint8_t)hk_code_of_v(bits, window, add);
    }
  }
}

void hk_codes_write(hk_state_at at, const uint32_t key[2], int64_t index, int64_t n, const float *m,
                    const float *v) {
  uint32_t random[HK_CODE_BLOCK];
  for (int64_t i = 0; key != NULL && i < n; i++) random[i] = hk_code_random(key, index + i);
  set_codes(1, at, n, m, key != NULL ? random : NULL);
  set_codes(2, at, n, v, key != NULL ? random : NULL);
}

void hk_code_mend(hk_format format, int64_t n, hk_state_at at, uint16_t *w) {
  for (int64_t i = 0; i < n; i++) {
    const float p = read_p(format, at, i);
    set_p(format, at, i, p);
    if (w != NULL) set_half((char *)w, i, hk_to_bf16(read_p(format, at, i)));
  }
}

/* -- The update -------------------------------------------------------------------------------- */

static float grad_at(hk_grad_type type, const char *grad, int64_t i) {
  if (type == HK_GRAD_FP32) return word_at(grad, i);
  const uint16_t h = half_at(grad, i);
  return type == HK_GRAD_BF16 ? hk_from_bf16(h) : hk_from_fp16(h);
}

/* The operations of adamw.h. */
static void update_one(const hk_adamw_step *s, float grad, float *p, float *m, float *v) {
  const float g = s->scale * grad;
  *p = *p * s->decay;
  *m = fmaf(s->rest1, g - *m, *m);
  *v = fmaf(s->rest2 * g, g, *v * s->beta2);
  const float d = sqrtf(*v) / s->root2 + s->eps;
  *p = hk_canonical(*p - s->size * *m / d);
  *m = hk_canonical(*m);
  *v = hk_canonical(*v);
}

/* n elements of one block of codes, from element `i` on. */
static void update_codes(hk_format format, const hk_adamw_step *s, hk_grad_type type, int64_t n,
                         hk_state_at from, hk_state_at to, const char *grad, uint16_t *w,
                         int64_t index) {
  float m[HK_CODE_BLOCK], v[HK_CODE_BLOCK];
  for (int64_t i = 0; i < n; i++) {
    float p = read_p(format, from, i);
    m[i] = read_m(format, from, i), v[i] = read_v(format, from, i);
    update_one(s, grad_at(type, grad, i), &p, &m[i], &v[i]);
    set_p(format, to, i, p);
    if (w != NULL) set_half((char *)w, i, hk_to_bf16(p));
  }
  hk_codes_write(to, s->key, index, n, m, v);
}

static __attribute__((noinline)) void update(hk_format format, const hk_adamw_step *s,
                                             hk_grad_type type, int64_t n, hk_state_at from,
                                             hk_state_at to, const void *grad, uint16_t *w,
                                             int64_t index) {
  if (hk_format_is_coded(format)) {
    const int64_t size = (int64_t)hk_grad_size(type);
    for (int64_t i = 0; i < n; i += HK_CODE_BLOCK) {
      update_codes(format, s, type, n - i < HK_CODE_BLOCK ? n - i : HK_CODE_BLOCK,
                   hk_state_at_element(format, from, i), hk_state_at_element(format, to, i),
                   (const char *)grad + i * size, w != NULL ? w + i : NULL, index + i);
    }
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    float p = read_p(format, from, i), m = read_m(format, from, i), v = read_v(format, from, i);
    update_one(s, grad_at(type, grad, i), &p, &m, &v);
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

void hk_format_read(hk_format format, int part, int64_t first, int64_t n, hk_state_at at,
                    float *values) {
  for (int64_t i = 0; i < n; i++) {
    const float x = part == 0   ? read_p(format, at, first + i)
                    : part == 1 ? read_m(format, at, first + i)
                                : read_v(format, at, first + i);
    set_word((char *)values, i, x);
  }
}

static void write_v(hk_format format, int64_t i, hk_state_at at, float v) {
  uint32_t bits = hk_bits_of(format == HK_FORMAT_FP32 ? v : hk_canonical(v));
  if (hk_format_is_short(format)) bits = (uint32_t)hk_round_m(v) << 16;
  if (hk_format_is_split(format)) bits |= v_bits(format, at, i) & SIGN;
  set_v_bits(format, at, i, bits);
}

/* Writes m or v of elements first .. first + n - 1 of one block. Behind the end of a tensor a block
 * holds code 0. */
static void write_codes(hk_format format, int part, int64_t first, int64_t n, hk_state_at at,
                        const float *values) {
  float x[HK_CODE_BLOCK];
  hk_format_read(format, part, 0, HK_CODE_BLOCK, at, x);
  memcpy(x + first, values, 4 * (size_t)n);
  set_codes(part, at, HK_CODE_BLOCK, x, NULL);
}

void hk_format_write(hk_format format, int part, int64_t first, int64_t n, hk_state_at at,
                     const float *values) {
  if (part > 0 && hk_format_is_coded(format)) {
    for (int64_t done = 0, here; done < n; done += here) {
      const int64_t i = first + done, inside = i % HK_CODE_BLOCK;
      here = n - done < HK_CODE_BLOCK - inside ? n - done : HK_CODE_BLOCK - inside;
      write_codes(format, part, inside, here, hk_state_at_element(format, at, i - inside),
                  values + done);
    }
    return;
  }
  at = hk_state_at_element(format, at, first);
  for (int64_t i = 0; i < n; i++) {
    const float x = word_at((const char *)values, i);
    if (part == 2) {
      write_v(format, i, at, x);
    } else if (part == 1) {
      set_m(format, at, i, format == HK_FORMAT_FP32 ? x : hk_canonical(x));
    } else {
      if (!hk_format_is_split(format) || hk_format_is_coded(format)) {
        set_p(format, at, i, format == HK_FORMAT_FP32 ? x : hk_canonical(x));
      } else {
        set_p_and_v(format, at, i, x, v_bits(format, at, i));
      }
    }
  }
}

static void round_codes(const uint32_t key[2], int64_t index, int64_t n, float *m, float *v) {
  char codes[2 * HK_CODE_BLOCK], windows[2];
  const hk_state_at at = {.m = codes, .v = codes + HK_CODE_BLOCK, .windows = windows};
  hk_codes_write(at, key, index, n, m, v);
  hk_format_read(HK_FORMAT_8BIT, 1, 0, n, at, m);
  hk_format_read(HK_FORMAT_8BIT, 2, 0, n, at, v);
}

void hk_format_round(hk_format format, const uint32_t key[2], int64_t index, int64_t n, float *p,
                     float *m, float *v) {
  for (int64_t i = 0; hk_format_is_coded(format) && i < n; i++)
    p[i] = hk_of_bits(hk_code_of_p(hk_bits_of(p[i])));
  for (int64_t i = 0; hk_format_is_short(format) && i < n; i++) {
    const uint16_t kept =
        key == NULL ? hk_round_m(v[i]) : hk_round_v(v[i], hk_random_bits(key, index + i));
    m[i] = hk_of_bits((uint32_t)hk_round_m(m[i]) << 16);
    v[i] = hk_of_bits((uint32_t)kept << 16);
  }
  for (int64_t i = 0; hk_format_is_coded(format) && i < n; i += HK_CODE_BLOCK) {
    round_codes(key, index + i, n - i < HK_CODE_BLOCK ? n - i : HK_CODE_BLOCK, m + i, v + i);
  }
}

int64_t hk_format_first_signed(int64_t n, const float *values) {
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = hk_bits_of(word_at((const char *)values, i));
    if ((bits & SIGN) != 0 && !hk_is_nan(bits)) return i;
  }
  return n;
}
