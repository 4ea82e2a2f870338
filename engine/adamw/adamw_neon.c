/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels in NEON, which every 64-bit ARM processor has. */
#include "engine/adamw/adamw_kernels.h"

#ifdef HK_ARM64

#define TARGET
#define INLINE static inline __attribute__((always_inline))

typedef float32x4_t vec;
typedef uint32x4_t uvec;
enum { LANES = 4, BLOCK = 32 };

INLINE vec vec_set(float x) {
  return vdupq_n_f32(x);
}

/* By bytes, because arrays need not be aligned. */
INLINE vec vec_load(const float *p) {
  return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p));
}

INLINE void vec_store(float *p, vec x) {
  vst1q_u8((uint8_t *)p, vreinterpretq_u8_f32(x));
}

/* There are no streaming stores that order or caches would notice. */
INLINE void vec_stream(float *p, vec x) {
  vec_store(p, x);
}

INLINE void stream_fence(void) {}

INLINE vec vec_bf16(const void *h) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(h)), 16));
}

INLINE vec vec_fp16(const void *h) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(h)));
}

INLINE vec vec_sqrt(vec x) {
  return vsqrtq_f32(x);
}

INLINE vec vec_fma(vec a, vec b, vec c) {
  return vfmaq_f32(c, a, b);
}

INLINE vec vec_canonical(vec x) {
  return vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(HK_NAN_BITS)));
}

typedef uvec umask;

INLINE umask uvec_differ(uvec a, uvec b) {
  return vmvnq_u32(vceqq_u32(a, b));
}

INLINE umask uvec_below(uvec a, uvec b) {
  return vcltq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b));
}

INLINE uvec uvec_add_where(umask mask, uvec a, uvec b) {
  return vaddq_u32(a, vandq_u32(mask, b));
}

INLINE void vec_unzip(vec a, vec b, vec out[2]) {
  out[0] = vuzp1q_f32(a, b);
  out[1] = vuzp2q_f32(a, b);
}

INLINE void vec_zip(vec a, vec b, vec out[2]) {
  out[0] = vzip1q_f32(a, b);
  out[1] = vzip2q_f32(a, b);
}

INLINE bool vec_any_nan(vec a, vec b) {
  return vminvq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b))) == 0;
}

INLINE uvec uvec_upper_halves(uvec a, uvec b) {
  return vreinterpretq_u32_u16(vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}

INLINE void store_bf16(uint16_t *w, const vec x[8], bool stream) {
  (void)stream;
  for (int k = 0; k < 8; k++) {
    const uvec bits = vreinterpretq_u32_f32(x[k]);
    const uvec lowest = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uvec sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), lowest);
    vst1_u8((uint8_t *)(w + LANES * k), vreinterpret_u8_u16(vmovn_u32(vshrq_n_u32(sum, 16))));
  }
}

typedef uint16x8_t hvec;

INLINE umask vec_all(void) {
  return vdupq_n_u32(0xffffffffu);
}

INLINE umask vec_usual(umask before, const vec x[2], const uvec high[2]) {
  const uvec lower = vdupq_n_u32(0xffffu);
  for (int k = 0; k < 2; k++)
    before = vandq_u32(before, vandq_u32(vceqq_f32(x[k], x[k]), vtstq_u32(high[k], lower)));
  return before;
}

INLINE bool vec_any_not(umask x) {
  return vminvq_u32(x) == 0;
}

INLINE uvec uvec_where(umask mask, uvec a, uvec b) {
  return vbslq_u32(mask, a, b);
}

/* The instruction takes the lowest byte of each lane of `by`. */
INLINE uvec uvec_shift(uvec x, uvec by) {
  return vshlq_u32(x, vnegq_s32(vreinterpretq_s32_u32(vminq_u32(by, vdupq_n_u32(32)))));
}

INLINE uvec uvec_most(uvec a, uvec b) {
  return vmaxq_u32(a, b);
}

INLINE hvec hvec_set(int x) {
  return vdupq_n_u16((uint16_t)x);
}

INLINE hvec hvec_bytes(const char *at) {
  return vmovl_u8(vld1_u8((const uint8_t *)at));
}

INLINE hvec hvec_signed_bytes(const char *at) {
  return vreinterpretq_u16_s16(vmovl_s8(vld1_s8((const int8_t *)at)));
}

INLINE void hvec_store_bytes(char *to, hvec a, hvec b, bool stream) {
  (void)stream;
  vst1q_u8((uint8_t *)to, vcombine_u8(vmovn_u16(a), vmovn_u16(b)));
}

INLINE hvec hvec_add_where(hvec a, int bits, hvec b) {
  return vaddq_u16(a, vandq_u16(vtstq_u16(a, hvec_set(bits)), b));
}

INLINE hvec hvec_minus(hvec a, hvec b) {
  return vqsubq_u16(a, b);
}

INLINE hvec hvec_most(hvec a, hvec b) {
  return vmaxq_u16(a, b);
}

INLINE hvec hvec_least(hvec a, hvec b) {
  return vminq_u16(a, b);
}

INLINE hvec hvec_most_bytes(hvec a, hvec b) {
  return vreinterpretq_u16_u8(vmaxq_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)));
}

INLINE hvec hvec_least_bytes(hvec a, hvec b) {
  return vreinterpretq_u16_u8(vminq_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)));
}

INLINE bool hvec_any_byte_from(hvec a, int least) {
  return vmaxvq_u8(vreinterpretq_u8_u16(a)) >= least;
}

INLINE bool hvec_any_byte_0(hvec a) {
  return vminvq_u8(vreinterpretq_u8_u16(a)) == 0;
}

INLINE uint32_t hvec_largest(hvec x) {
  return vmaxvq_u16(x);
}

INLINE bool hvec_any_below(hvec a, uint32_t b) {
  return vminvq_u16(a) < b;
}

#include "engine/adamw/adamw_vector.h"
/* After the kernels of fp32. */
#include "engine/adamw/formats_vector.h"

const hk_cpu_kernels hk_kernels_neon = {.name = "neon",
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
