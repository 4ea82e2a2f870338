/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of AdamW's state in memory. The update is that of adamw.h in fp32 in all of them; they
 * differ in how p, m and v are kept between updates:
 *
 *   fp32         p, m and v in fp32: 12 bytes
 *   split        p in two arrays of 16 bits, m and v in fp32: 12 bytes, the bf16 weight included
 *   bf16         p in fp32, m and v in bf16: 8 bytes
 *   bf16+split   p in two arrays, m and v in bf16: 8 bytes, the bf16 weight included
 *   8bit         p in fp32, m and v in 8 bits and 2 bytes a block: 6.02 bytes
 *   8bit+split   p in two arrays, m and v in 8 bits: 6.02 bytes, the bf16 weight included
 *
 * Split. The upper array holds w = bf16(p), the weight that the model computes with; the lower one
 * the lower 16 bits of the difference d = bits(p) - bits(w) * 2^16, an integer. Rounding to nearest
 * even gives -2^15 <= d <= 2^15: 65,537 values. The lower array takes all but d = 2^15 (a tie that
 * was rounded down) for which it holds -2^15 and the sign of v is set. v is never negative and
 * never -0 by itself: such values are refused when state is loaded. Every p that fp32 state holds
 * after an update is reproduced, bit for bit: +-0, subnormals, infinities (d = 0), finite values
 * whose w is infinite (d < 0, or the tie d = -2^15), and the one NaN, 0x7fc00000 (d = 0). Other
 * NaNs, which only loading could bring, become that one.
 *
 * bf16. The update computes p from m and v as the operations of adamw.h give them; then they are
 * stored as bf16. m is rounded to nearest even. v is rounded up or down at random, so that its
 * expectation is exact: with beta2 = 0.999 a decrease of 0.1 % is less than half of the distance of
 * two bf16 values, so that nearest rounding would never let v fall. Infinity and NaN stay; a finite
 * value is not rounded to infinity, but to the largest finite bf16.
 *
 *   m = sign(m) min(bf16(|m|), largest)
 *   v = min((bits(v) + random(key, i)) / 2^16, largest)      random: 16 bits
 *
 * The random bits depend on nothing but the seed, the tensor, its step and the index i in the
 * tensor, so that the bits of the state do not depend on the plan.
 *
 * 8bit. m and v keep three bits of their fraction: neighbouring values are 6 to 12 % apart. Both
 * are rounded at random, with the same bits:
 *
 *   u = min((bits(|x|) + random(key, i)) / 2^20, 0x7f7)      random: 20 bits
 *
 * The exponent is counted from the block's window, which is 2^(w - 127), w >= 1, and as low as the
 * block's largest u allows: code = u - 8 w + 1, of v 1 .. 253 (at least 30.6 octaves), of m 1 ..
 * 125 (14.6 octaves) beside its sign. Code 0 is 0. The two codes above these are infinity and NaN,
 * which do not count for the window. Below the window
 *
 *   v > 0 becomes 2^(w - 127): never 0, because the denominator would be
 *   m becomes 0 or +-2^(w - 127), at random, with the right expectation; subnormal m becomes 0
 *
 * Except at the lower end of v expectations are exact. The values do not depend on the window, so
 * that reading and writing them again gives the same codes. Loading rounds to nearest even.
 *
 * No bit of v is free for the tie of split. So both 8bit formats move p by one unit in its last
 * place towards zero if it is a tie that would be rounded down: then d < 2^15, the lower array
 * holds all of it, and the bits of both formats are the same. */
#ifndef HK_ENGINE_ADAMW_FORMATS_H
#define HK_ENGINE_ADAMW_FORMATS_H

#include "engine/adamw/adamw.h"
#include "engine/adamw/convert.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one element of p (without `low`), m or v. */
static inline int64_t hk_format_size(hk_format format, int part) {
  if (part > 0 && hk_format_is_coded(format)) return 1;
  const bool whole = part == 0 ? !hk_format_is_split(format) : !hk_format_is_short(format);
  return whole ? 4 : 2;
}

/* Bytes of state a parameter, without windows. */
static inline int64_t hk_format_per_param(hk_format format) {
  return 4 + 2 * hk_format_size(format, 1);
}

/* Parameters that formats keep together: state is cut at multiples of it in each tensor. */
static inline int64_t hk_format_unit(hk_format format) {
  return hk_format_is_coded(format) ? HK_CODE_BLOCK : 1;
}

static inline hk_state_at hk_state_at_element(hk_format format, hk_state_at at, int64_t i) {
  return (hk_state_at){at.p + i * hk_format_size(format, 0),
                       hk_format_is_split(format) ? at.low + 2 * i : NULL,
                       at.m + i * hk_format_size(format, 1), at.v + i * hk_format_size(format, 2),
                       hk_format_is_coded(format) ? at.windows + i / HK_CODE_BLOCK * 2 : NULL};
}

/* The key of the random bits of one tensor's step (from 1). `tensor`: hash of its name, or its
 * number. Two rounds of SplitMix64's finalizer (Steele, Lea, Flood 2014). */
void hk_random_key(uint64_t seed, uint64_t tensor, int64_t step, uint32_t key[2]);

/* Random bits of a pair of elements, an even one (the lower 16) and the next (the upper 16): a hash
 * of the pair's number with four xor-shifts and three multiplications (constants: Wellons,
 * "triple32", nullprogram.com/blog/2018/07/31), the key added before and between. One hash for two
 * elements, because it was a third of the update's work. tests/test_engine_formats.c checks that
 * values are equally frequent and that bits of neighbours and of steps are independent. For numbers
 * below 2^32; for others the key changes (hk_random_key_at). */
static inline uint32_t hk_random_word(const uint32_t key[2], uint32_t number) {
  uint32_t x = number + key[0];
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += key[1];
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  return x ^ x >> 14;
}

/* Number of an element's pair, without its upper half, which is in the key. */
static inline uint32_t hk_random_number(int64_t index) {
  return (uint32_t)(index >> 1);
}

/* The key for elements index .. (index | 0x1ffffffff). */
static inline void hk_random_key_at(const uint32_t key[2], int64_t index, uint32_t at[2]) {
  at[0] = key[0] + (uint32_t)(index >> 33) * 0x9e3779b9u;
  at[1] = key[1];
}

/* The 16 random bits of an element, by its index in the tensor. */
static inline uint32_t hk_random_bits(const uint32_t key[2], int64_t index) {
  uint32_t at[2];
  hk_random_key_at(key, index, at);
  const uint32_t word = hk_random_word(at, hk_random_number(index));
  return index % 2 != 0 ? word >> 16 : word & 0xffffu;
}

/* -- One element ------------------------------------------------------------------------------- */

/* A master weight in two halves; `down`: the sign of v. */
typedef struct {
  uint16_t high, low;
  bool down;
} hk_halves;

static inline hk_halves hk_split_halves(float p) {
  const uint32_t bits = hk_bits_of(hk_canonical(p));
  const uint16_t high = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  return (hk_halves){high, (uint16_t)bits, (bits & 0x1ffffu) == 0x8000u};
}

static inline float hk_join_halves(uint16_t high, uint16_t low, bool down) {
  const uint32_t difference = (uint32_t)low - (low & 0x8000u ? 0x10000u : 0u);
  return hk_of_bits(((uint32_t)high << 16) + difference + (down ? 0x10000u : 0u));
}

/* Bits of a finite x, or of an infinity or canonical NaN, after `add` was added and the lower half
 * dropped; not infinite if x is not. */
static inline uint16_t hk_round_finite(uint32_t bits, uint32_t add) {
  const uint32_t rounded = (bits + add) >> 16;
  const bool too_large = (rounded & 0x7fffu) == 0x7f80u && (bits & 0x7fffffffu) != 0x7f800000u;
  return (uint16_t)(rounded - too_large);
}

static inline uint16_t hk_round_m(float m) {
  const uint32_t bits = hk_bits_of(hk_canonical(m));
  return hk_round_finite(bits, 0x7fffu + (bits >> 16 & 1u));
}

static inline uint16_t hk_round_v(float v, uint32_t random) {
  return hk_round_finite(hk_bits_of(hk_canonical(v)), random);
}

/* -- Codes ------------------------------------------------------------------------------------- */

#ifdef __CUDACC__
#define HK_ANYWHERE static inline __host__ __device__
#else
#define HK_ANYWHERE static inline
#endif

enum {
  HK_CODES_V = 253, /* finite values above 0 */
  HK_CODES_M = 125,
  HK_FINEST = 20, /* bits of fp32 that codes drop */
  HK_LARGEST = 0x7f7,
  HK_INFINITE = 0x7f800000
};

/* p as 8bit keeps it: no tie that is rounded down. */
HK_ANYWHERE uint32_t hk_code_of_p(uint32_t bits) {
  return (bits & 0x1ffffu) == 0x8000u ? bits - 1 : bits;
}

/* Number of an element's word of random bits. Elements 2 i, 2 i + 1, and the two that are 32
 * further on share a word: one hash for four elements. */
HK_ANYWHERE uint32_t hk_code_number(int64_t index) {
  return ((uint32_t)(index >> 2) & ~15u) | ((uint32_t)(index >> 1) & 15u);
}

/* What is added to an element before bits are dropped, from its word. The upper 8 of the 20 bits
 * are another byte of the word for each of the four elements, so that these 8 bits are independent;
 * for every element alone all 16 upper bits are. The lowest bits keep the expectation exact. */
HK_ANYWHERE uint32_t hk_code_addend(uint32_t word, int64_t index) {
  if ((index & 32) != 0) word = word << 8 | word >> 24;
  return (index & 1) != 0 ? word >> 12 : (word << 4 & 0xffff0u) | 8;
}

/* The upper 11 bits of |x|, which is finite, rounded. */
HK_ANYWHERE uint32_t hk_code_round(uint32_t magnitude, uint32_t add) {
  const uint32_t u = (magnitude + add) >> HK_FINEST;
  return u < HK_LARGEST ? u : (uint32_t)HK_LARGEST;
}

/* The window for values up to u, with so many codes. */
HK_ANYWHERE uint32_t hk_code_window(uint32_t u, uint32_t codes) {
  return u + 8 >= codes + 16 ? (u + 8 - codes) / 8 : 1;
}

/* Magnitude of a code that is finite. */
HK_ANYWHERE uint32_t hk_code_magnitude(uint32_t code, uint32_t window) {
  return code == 0 ? 0 : (code - 1 + 8 * window) << HK_FINEST;
}

/* The code of v, canonical and without a sign. */
HK_ANYWHERE uint32_t hk_code_of_v(uint32_t bits, uint32_t window, uint32_t add) {
  if (bits >= HK_INFINITE) return bits == HK_INFINITE ? HK_CODES_V + 1 : HK_CODES_V + 2;
  const uint32_t u = hk_code_round(bits, add);
  return bits == 0 ? 0 : u > 8 * window ? u - 8 * window + 1 : 1;
}

/* m / 2^(window - 127) in units of 2^-16, rounded down; of subnormal m 0. */
HK_ANYWHERE uint32_t hk_code_share(uint32_t magnitude, uint32_t window) {
  const uint32_t exponent = magnitude >> 23, shift = window - exponent + 7;
  if (exponent == 0 || shift > 31) return 0;
  return ((magnitude & 0x7fffffu) | 0x800000u) >> shift;
}

/* The code of m, canonical. Below the window it is not 0 if its share is above the random bits. */
HK_ANYWHERE uint32_t hk_code_of_m(uint32_t bits, uint32_t window, uint32_t add) {
  const uint32_t magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  if (magnitude > HK_INFINITE) return HK_CODES_M + 2;
  if (magnitude == HK_INFINITE) return sign | (HK_CODES_M + 1);
  if (magnitude < window << 23) return sign | (hk_code_share(magnitude, window) > add >> 4);
  return sign | (hk_code_round(magnitude, add) - 8 * window + 1);
}

/* The 20 random bits of an element, by its index in the tensor. */
static inline uint32_t hk_code_random(const uint32_t key[2], int64_t index) {
  uint32_t at[2];
  hk_random_key_at(key, index, at);
  return hk_code_addend(hk_random_word(at, hk_code_number(index)), index);
}

/* -- Arrays ------------------------------------------------------------------------------------ */

/* Part 0 .. 2 (p, m, v) of elements first .. first + n - 1 as fp32, exact. The sign that split puts
 * into v is left out. No array needs to be aligned. With codes `at` begins a block. */
void hk_format_read(hk_format format, int part, int64_t first, int64_t n, hk_state_at at,
                    float *values);
/* The other direction, to state that holds something already: p of split formats changes the signs
 * of v, v keeps them. NaN becomes 0x7fc00000 except in fp32. bf16 and codes round to nearest even,
 * but finite values not to infinity. v of formats that take no sign (hk_format_takes_sign) must
 * have none (hk_format_first_signed). A block of codes that is written in part keeps its other
 * values, as far as the new window allows. */
void hk_format_write(hk_format format, int part, int64_t first, int64_t n, hk_state_at at,
                     const float *values);
/* Whether v may be negative or -0. */
static inline bool hk_format_takes_sign(hk_format format) {
  return !hk_format_is_split(format) && !hk_format_is_coded(format);
}
/* Rounds p, m and v, which an update in fp32 has left, as the update in a format rounds them: plain
 * AdamW for checks. `index`: of the first of n elements in its tensor, which with codes begins a
 * block. `key` NULL: as loading rounds them. */
void hk_format_round(hk_format format, const uint32_t key[2], int64_t index, int64_t n, float *p,
                     float *m, float *v);
/* Index of the first value whose sign is set and that is no NaN; n: there is none. */
int64_t hk_format_first_signed(int64_t n, const float *values);

/* Codes and windows of the n elements of one block that begins at element `index` of its tensor, as
 * the update rounds m and v; `key` NULL: as loading rounds them. */
void hk_codes_write(hk_state_at at, const uint32_t key[2], int64_t index, int64_t n, const float *m,
                    const float *v);

/* Makes NaN canonical and ties what 8bit keeps in n elements' p, which an update has stored
 * without, ties rounded up; and in the weights `w` (NULL: none). */
void hk_code_mend(hk_format format, int64_t n, hk_state_at at, uint16_t *w);

/* The reference of hk_cpu_kernels.update. */
void hk_update_scalar(hk_format format, const hk_adamw_step *step, hk_grad_type type, int64_t n,
                      hk_state_at from, hk_state_at to, const void *grad, uint16_t *w,
                      int64_t index);

#ifdef __cplusplus
}
#endif
#endif
