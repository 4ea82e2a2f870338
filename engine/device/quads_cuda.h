/* SPDX-License-Identifier: Apache-2.0 */
/* Quads of elements in device functions: neighbouring threads process neighbouring quads. */
#ifndef HK_ENGINE_DEVICE_QUADS_CUDA_H
#define HK_ENGINE_DEVICE_QUADS_CUDA_H

#include "engine/adamw/elements_cuda.h"

enum { QUAD = 4 };

/* All data is read or written once: __ldcs and __stcs keep it from displacing other data from the
 * cache. */
static __device__ __forceinline__ void load_quad(const float *at, float x[QUAD]) {
  const float4 quad = __ldcs((const float4 *)at);
  x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
}

static __device__ __forceinline__ void store_quad(float *at, const float x[QUAD]) {
  __stcs((float4 *)at, make_float4(x[0], x[1], x[2], x[3]));
}

/* A quad of gradients as it lies in memory, in `raw`: gradients i + low .. i + high - 1, zeros for
 * the rest. `wide`: quads are aligned; otherwise lanes read single gradients, and the cache merges
 * their reads. Separate from widen, because a conversion waits for its load: a thread issues
 * several loads before it converts. */
template <hk_grad_type type>
static __device__ __forceinline__ void fetch(const void *grad, int64_t i, int low, int high,
                                             bool wide, uint32_t raw[QUAD]) {
  const bool whole = wide && high - low == QUAD;
  if (type == HK_GRAD_FP32) {
    const uint32_t *at = (const uint32_t *)grad + i;
    if (whole) {
      const uint4 words = __ldcs((const uint4 *)at);
      raw[0] = words.x, raw[1] = words.y, raw[2] = words.z, raw[3] = words.w;
    } else {
      for (int j = 0; j < QUAD; j++) raw[j] = j >= low && j < high ? at[j] : 0;
    }
  } else {
    const uint16_t *at = (const uint16_t *)grad + i;
    if (whole) {
      const uint2 words = __ldcs((const uint2 *)at);
      raw[0] = words.x, raw[1] = words.y;
    } else {
      raw[0] = raw[1] = 0;
#pragma unroll
      for (int j = 0; j < QUAD; j++) {
        if (j >= low && j < high) raw[j / 2] |= (uint32_t)at[j] << (16 * (j % 2));
      }
    }
  }
}

template <hk_grad_type type>
static __device__ __forceinline__ void widen(const uint32_t raw[QUAD], float g[QUAD]) {
#pragma unroll
  for (int j = 0; j < QUAD; j++) {
    const uint32_t half = raw[j / 2] >> (16 * (j % 2)) & 0xffffu;
    g[j] = type == HK_GRAD_FP32   ? __uint_as_float(raw[j])
           : type == HK_GRAD_BF16 ? __uint_as_float(half << 16)
                                  : __half2float(__ushort_as_half((unsigned short)half));
  }
}

static __device__ __forceinline__ void store_weights(uint16_t *w, int64_t i, int low, int high,
                                                     bool wide, const float p[QUAD]) {
  uint16_t *at = w + i;
  if (wide && high - low == QUAD) {
    __stcs((uint2 *)at,
           make_uint2(to_bf16(p[0]) | to_bf16(p[1]) << 16, to_bf16(p[2]) | to_bf16(p[3]) << 16));
  } else {
    for (int j = 0; j < QUAD; j++) {
      if (j >= low && j < high) at[j] = (uint16_t)to_bf16(p[j]);
    }
  }
}

#endif
