/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels in AVX2 with F16C and FMA. */
#include "engine/adamw/adamw_kernels.h"

#ifdef HK_X86

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef __m256 vec;
typedef uint32_t uvec __attribute__((vector_size(32)));
enum { LANES = 8, BLOCK = 32 };

INLINE vec vec_set(float x) {
  return _mm256_set1_ps(x);
}

INLINE vec vec_load(const float *p) {
  return _mm256_loadu_ps(p);
}

INLINE void vec_store(float *p, vec x) {
  _mm256_storeu_ps(p, x);
}

INLINE void vec_stream(float *p, vec x) {
  _mm256_stream_ps(p, x);
}

INLINE void stream_fence(void) {
  _mm_sfence();
}

INLINE vec vec_bf16(const void *h) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(h));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

INLINE vec vec_fp16(const void *h) {
  return _mm256_cvtph_ps(_mm_loadu_si128(h));
}

INLINE vec vec_sqrt(vec x) {
  return _mm256_sqrt_ps(x);
}

INLINE vec vec_fma(vec a, vec b, vec c) {
  return _mm256_fmadd_ps(a, b, c);
}

INLINE vec vec_canonical(vec x) {
  const vec nan = _mm256_castsi256_ps(_mm256_set1_epi32(HK_NAN_BITS));
  return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Each lane holds the rounded value in its upper half. */
INLINE uvec rounded(vec x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
  return (uvec)_mm256_add_epi32(sum, lowest);
}

/* The instruction packs each half of the register by itself, so that the quarters come out in the
 * order 0, 2, 1, 3. */
INLINE uvec uvec_upper_halves(uvec a, uvec b) {
  const __m256i packed = _mm256_packus_epi32((__m256i)(a >> 16), (__m256i)(b >> 16));
  return (uvec)_mm256_permute4x64_epi64(packed, 0xd8);
}

INLINE void store_bf16(uint16_t *w, const vec x[4], bool stream) {
  for (int k = 0; k < 4; k += 2) {
    const __m256i h = (__m256i)uvec_upper_halves(rounded(x[k]), rounded(x[k + 1]));
    __m256i *to = (__m256i *)(void *)(w + 8 * k);
    if (stream) {
      _mm256_stream_si256(to, h);
    } else {
      _mm256_storeu_si256(to, h);
    }
  }
}

typedef uvec umask;

INLINE umask uvec_differ(uvec a, uvec b) {
  return (umask)(a != b);
}

INLINE umask uvec_below(uvec a, uvec b) {
  return (umask)_mm256_cmpgt_epi32((__m256i)b, (__m256i)a);
}

INLINE uvec uvec_add_where(umask mask, uvec a, uvec b) {
  return a + (mask & b);
}

/* Shuffles work in each half of the registers by itself. */
INLINE void vec_unzip(vec a, vec b, vec out[2]) {
  const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
  const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
  out[0] = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
  out[1] = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
}

INLINE void vec_zip(vec a, vec b, vec out[2]) {
  const vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  out[0] = _mm256_permute2f128_ps(low, high, 0x20);
  out[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

INLINE bool vec_any_nan(vec a, vec b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0;
}

INLINE umask vec_all(void) {
  return (umask)_mm256_set1_epi32(-1);
}

INLINE umask vec_usual(umask before, const vec x[2], const uvec high[2]) {
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x[0], x[1], _CMP_UNORD_Q));
  /* The lower halves of high[0] and high[1]. */
  const __m256i low = _mm256_blend_epi16((__m256i)high[0], (__m256i)(high[1] << 16), 0xaa);
  const __m256i zero = _mm256_cmpeq_epi16(low, _mm256_setzero_si256());
  return before & ~(umask)_mm256_or_si256(nan, zero);
}

INLINE bool vec_any_not(umask x) {
  return _mm256_testc_si256((__m256i)x, _mm256_set1_epi32(-1)) == 0;
}

typedef uint16_t hvec __attribute__((vector_size(32)));

INLINE hvec hvec_set(int x) {
  return (hvec)_mm256_set1_epi16((short)x);
}

INLINE hvec hvec_bytes(const char *at) {
  return (hvec)_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)at));
}

INLINE void hvec_store_bytes(char *to, hvec a, hvec b, bool stream) {
  const __m256i packed =
      _mm256_permute4x64_epi64(_mm256_packus_epi16((__m256i)a, (__m256i)b), 0xd8);
  if (stream) {
    _mm256_stream_si256((__m256i *)(void *)to, packed);
  } else {
    _mm256_storeu_si256((void *)to, packed);
  }
}

INLINE hvec hvec_signed_bytes(const char *at) {
  return (hvec)_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)at));
}

INLINE hvec hvec_add_where(hvec a, int bits, hvec b) {
  const hvec none = (hvec)_mm256_cmpeq_epi16((__m256i)(a & hvec_set(bits)), _mm256_setzero_si256());
  return a + (hvec)_mm256_andnot_si256((__m256i)none, (__m256i)b);
}

INLINE hvec hvec_most_bytes(hvec a, hvec b) {
  return (hvec)_mm256_max_epu8((__m256i)a, (__m256i)b);
}

INLINE hvec hvec_least_bytes(hvec a, hvec b) {
  return (hvec)_mm256_min_epu8((__m256i)a, (__m256i)b);
}

INLINE bool hvec_any_byte_0(hvec a) {
  const __m256i zero = _mm256_cmpeq_epi8((__m256i)a, _mm256_setzero_si256());
  return _mm256_testz_si256(zero, zero) == 0;
}

INLINE bool hvec_any_byte_from(hvec a, int least) {
  const __m256i more = _mm256_subs_epu8((__m256i)a, _mm256_set1_epi8((char)(least - 1)));
  return _mm256_testz_si256(more, more) == 0;
}

INLINE hvec hvec_minus(hvec a, hvec b) {
  return (hvec)_mm256_subs_epu16((__m256i)a, (__m256i)b);
}

INLINE hvec hvec_most(hvec a, hvec b) {
  return (hvec)_mm256_max_epu16((__m256i)a, (__m256i)b);
}

INLINE hvec hvec_least(hvec a, hvec b) {
  return (hvec)_mm256_min_epu16((__m256i)a, (__m256i)b);
}

INLINE uint32_t hvec_largest(hvec x) {
  const __m128i q =
      _mm_max_epu16(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
  return 0xffffu & ~(uint32_t)_mm_cvtsi128_si32(_mm_minpos_epu16(~q));
}

INLINE bool hvec_any_below(hvec a, uint32_t b) {
  return 0xffffu - hvec_largest(~a) < b;
}

INLINE uvec uvec_where(umask mask, uvec a, uvec b) {
  return (uvec)_mm256_blendv_epi8((__m256i)b, (__m256i)a, (__m256i)mask);
}

INLINE uvec uvec_shift(uvec x, uvec by) {
  return (uvec)_mm256_srlv_epi32((__m256i)x, (__m256i)by);
}

INLINE uvec uvec_most(uvec a, uvec b) {
  return (uvec)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

#include "engine/adamw/adamw_vector.h"
/* After the kernels of fp32. */
#include "engine/adamw/formats_vector.h"

const hk_cpu_kernels hk_kernels_avx2 = {.name = "avx2",
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
