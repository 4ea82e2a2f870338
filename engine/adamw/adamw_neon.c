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

INLINE void store_bf16(uint16_t *w, const vec x[8], bool stream) {
  (void)stream;
  for (int k = 0; k < 8; k++) {
    const uvec bits = vreinterpretq_u32_f32(x[k]);
    const uvec lowest = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uvec sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), lowest);
    vst1_u8((uint8_t *)(w + LANES * k), vreinterpret_u8_u16(vmovn_u32(vshrq_n_u32(sum, 16))));
  }
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
