/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between fp32, bf16 and fp16 in integer arithmetic: the reference for all kernels. */
#ifndef HK_ENGINE_ADAMW_CONVERT_H
#define HK_ENGINE_ADAMW_CONVERT_H

#include <stdint.h>
#include <string.h>

#define HK_NAN_BITS 0x7fc00000u

static inline float hk_of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline uint32_t hk_bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* In integer arithmetic, so that compilers can vectorize it; so are the functions below. */
static inline int hk_is_nan(uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

static inline float hk_canonical(float x) {
  const uint32_t bits = hk_bits_of(x);
  return hk_of_bits(hk_is_nan(bits) ? HK_NAN_BITS : bits);
}

static inline float hk_from_bf16(uint16_t h) {
  return hk_canonical(hk_of_bits((uint32_t)h << 16));
}

static inline float hk_from_fp16(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, fraction = h & 1023u;
  if (exponent == 0) { /* zero or subnormal: fraction x 2^-24 is a normal fp32 */
    return hk_of_bits(sign | hk_bits_of((float)fraction * 0x1p-24f));
  }
  if (exponent == 31) {
    return fraction != 0 ? hk_of_bits(HK_NAN_BITS) : hk_of_bits(sign | 0x7f800000u);
  }
  return hk_of_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

/* Rounds to nearest even: adds just under half of the last kept bit's value, plus that bit, so that
 * ties go to even. NaN gives 0x7fc0. */
static inline uint16_t hk_to_bf16(float x) {
  const uint32_t bits = hk_bits_of(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (uint16_t)((hk_is_nan(bits) ? HK_NAN_BITS : rounded) >> 16);
}

/* Rounds to nearest even. Below 2^-14, where fp16 is a fixed-point format, it shifts right instead.
 * From 65520 on the result is infinity. NaN gives 0x7e00. */
static inline uint16_t hk_to_fp16(float x) {
  const uint32_t bits = hk_bits_of(x), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return 0x7e00;
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    const uint32_t exponent = magnitude >> 23; /* fp32 subnormals have exponent 0 */
    if (exponent < 102) return (uint16_t)sign; /* below 2^-25, which is half of the smallest fp16 */
    const uint32_t shift = 126 - exponent, fraction = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = fraction >> shift, half = 1u << (shift - 1);
    const uint32_t rest = fraction & (2 * half - 1);
    return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1u) != 0))));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

#endif
