/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels in AVX-512 (F and BW). Not AVX512_BF16: its conversion flushes subnormals. */
#include "engine/adamw/adamw_kernels.h"

#ifdef HK_X86

#define TARGET __attribute__((target("avx512f,avx512bw")))
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef __m512 vec;
typedef uint32_t uvec __attribute__((vector_size(64)));
enum { LANES = 16, BLOCK = 32 };

/* Where registers are short compilers would make a constant anew each time, from a general register
 * and by the port that also shuffles. What they do not know they keep in memory. */
#define KEPT(x) __asm__("" : "+v"(x))

INLINE vec vec_set(float x) {
  vec all = _mm512_set1_ps(x);
  KEPT(all);
  return all;
}

INLINE vec vec_load(const float *p) {
  return _mm512_loadu_ps(p);
}

INLINE void vec_store(float *p, vec x) {
  _mm512_storeu_ps(p, x);
}

INLINE void vec_stream(float *p, vec x) {
  _mm512_stream_ps(p, x);
}

INLINE void stream_fence(void) {
  _mm_sfence();
}

INLINE vec vec_bf16(const void *h) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(h));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE vec vec_fp16(const void *h) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(h));
}

INLINE vec vec_sqrt(vec x) {
  return _mm512_sqrt_ps(x);
}

INLINE vec vec_fma(vec a, vec b, vec c) {
  return _mm512_fmadd_ps(a, b, c);
}

INLINE vec vec_canonical(vec x) {
  const vec nan = _mm512_castsi512_ps(_mm512_set1_epi32(HK_NAN_BITS));
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

/* Each lane holds the rounded value in its upper half. */
INLINE __m512i rounded(vec x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lowest);
}

/* Word i of the result is word 2 i + 1 of a and b together. */
INLINE __m512i upper_halves(__m512i a, __m512i b) {
  const __m512i odd =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(a, odd, b);
}

INLINE void store_bf16(uint16_t *w, const vec x[2], bool stream) {
  const __m512i h = upper_halves(rounded(x[0]), rounded(x[1]));
  if (stream) {
    _mm512_stream_si512((void *)w, h);
  } else {
    _mm512_storeu_si512(w, h);
  }
}

typedef __mmask16 umask;

INLINE umask uvec_differ(uvec a, uvec b) {
  return _mm512_cmpneq_epi32_mask((__m512i)a, (__m512i)b);
}

INLINE umask uvec_below(uvec a, uvec b) {
  return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b);
}

INLINE uvec uvec_add_where(unsigned mask, uvec a, uvec b) {
  return (uvec)_mm512_mask_add_epi32((__m512i)a, (umask)mask, (__m512i)a, (__m512i)b);
}

INLINE void vec_unzip(vec a, vec b, vec out[2]) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  out[0] = _mm512_permutex2var_ps(a, even, b);
  out[1] = _mm512_permutex2var_ps(a, odd, b);
}

INLINE void vec_zip(vec a, vec b, vec out[2]) {
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i high =
      _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  out[0] = _mm512_permutex2var_ps(a, low, b);
  out[1] = _mm512_permutex2var_ps(a, high, b);
}

INLINE bool vec_any_nan(vec a, vec b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0;
}

INLINE uvec uvec_upper_halves(uvec a, uvec b) {
  return (uvec)upper_halves((__m512i)a, (__m512i)b);
}

INLINE umask vec_all(void) {
  return 0xffff;
}

INLINE umask vec_usual(umask before, const vec x[2], const uvec high[2]) {
  const __m512i lower = _mm512_set1_epi32(0xffff);
  umask usual = _mm512_mask_cmp_ps_mask(before, x[0], x[1], _CMP_ORD_Q);
  usual = _mm512_mask_test_epi32_mask(usual, (__m512i)high[0], lower);
  return _mm512_mask_test_epi32_mask(usual, (__m512i)high[1], lower);
}

INLINE bool vec_any_not(umask x) {
  return x != 0xffff;
}

typedef uint16_t hvec __attribute__((vector_size(64)));

INLINE hvec hvec_set(int x) {
  __m512i all = _mm512_set1_epi16((short)x);
  KEPT(all);
  return (hvec)all;
}

INLINE hvec hvec_bytes(const char *at) {
  return (hvec)_mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)at));
}

INLINE void hvec_store_bytes(char *to, hvec a, hvec b, bool stream) {
  /* The instruction packs each quarter of the register by itself. */
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  const __m512i packed =
      _mm512_permutexvar_epi64(order, _mm512_packus_epi16((__m512i)a, (__m512i)b));
  if (stream) {
    _mm512_stream_si512((void *)to, packed);
  } else {
    _mm512_storeu_si512(to, packed);
  }
}

INLINE hvec hvec_signed_bytes(const char *at) {
  return (hvec)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)at));
}

INLINE hvec hvec_add_where(hvec a, int bits, hvec b) {
  const __m512i x = (__m512i)a;
  const __mmask32 some = _mm512_test_epi16_mask(x, _mm512_set1_epi16((short)bits));
  return (hvec)_mm512_mask_add_epi16(x, some, x, (__m512i)b);
}

INLINE hvec hvec_most_bytes(hvec a, hvec b) {
  return (hvec)_mm512_max_epu8((__m512i)a, (__m512i)b);
}

INLINE hvec hvec_least_bytes(hvec a, hvec b) {
  return (hvec)_mm512_min_epu8((__m512i)a, (__m512i)b);
}

INLINE bool hvec_any_byte_0(hvec a) {
  return _mm512_testn_epi8_mask((__m512i)a, (__m512i)a) != 0;
}

INLINE bool hvec_any_byte_from(hvec a, int least) {
  return _mm512_cmpge_epu8_mask((__m512i)a, _mm512_set1_epi8((char)least)) != 0;
}

INLINE hvec hvec_minus(hvec a, hvec b) {
  return (hvec)_mm512_subs_epu16((__m512i)a, (__m512i)b);
}

INLINE hvec hvec_most(hvec a, hvec b) {
  return (hvec)_mm512_max_epu16((__m512i)a, (__m512i)b);
}

INLINE hvec hvec_least(hvec a, hvec b) {
  return (hvec)_mm512_min_epu16((__m512i)a, (__m512i)b);
}

INLINE uint32_t hvec_largest(hvec x) {
  const __m256i h = _mm256_max_epu16(_mm512_castsi512_si256((__m512i)x),
                                     _mm512_extracti64x4_epi64((__m512i)x, 1));
  const __m128i q = _mm_max_epu16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  return 0xffffu & ~(uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(~q));
}

INLINE bool hvec_any_below(hvec a, uint32_t b) {
  return _mm512_cmplt_epu16_mask((__m512i)a, _mm512_set1_epi16((short)b)) != 0;
}

INLINE uvec uvec_where(umask mask, uvec a, uvec b) {
  return (uvec)_mm512_mask_mov_epi32((__m512i)b, mask, (__m512i)a);
}

INLINE uvec uvec_shift(uvec x, uvec by) {
  return (uvec)_mm512_srlv_epi32((__m512i)x, (__m512i)by);
}

INLINE uvec uvec_most(uvec a, uvec b) {
  return (uvec)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

#include "engine/adamw/adamw_vector.h"
/* After the kernels of fp32. */
#include "engine/adamw/formats_vector.h"

const hk_cpu_kernels hk_kernels_avx512 = {.name = "avx512",
                                          .supported = true,
                                          .adamw = adamw,
                                          .adamw_to = adamw_to,
                                          .update = update_in_format,
                                          .unscale = unscale,
                                          .cast_down = cast_down,
                                          .cast_up = cast_up};

#else
typedef int hk_not_empty; /* ISO C requires a declaration in each translation unit */
#endif
