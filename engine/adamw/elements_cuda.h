/* SPDX-License-Identifier: Apache-2.0 */
/* Device functions shared by the CUDA kernels: conversion of elements, and bins of squares in
 * shared memory. */
#ifndef HK_ENGINE_ADAMW_ELEMENTS_CUDA_H
#define HK_ENGINE_ADAMW_ELEMENTS_CUDA_H

#include <cuda_fp16.h>

#include "engine/adamw/squares.h"

enum {
  SQUARES_THREADS =
      128,         /* threads a block; each has its own bins: 32 KiB of shared memory a block */
  PULL_BLOCKS = 8, /* so many thread blocks saturate PCIe in one direction. More would only queue
                      for the link, and delay kernel launches, which are fetched over it */
};

static __device__ __forceinline__ float canonical(float x) {
  return isnan(x) ? __uint_as_float(0x7fc00000u) : x;
}

/* Rounds to nearest even. `x` is canonical: its only NaN, 0x7fc00000, gives 0x7fc0. */
static __device__ __forceinline__ uint32_t to_bf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

/* Rounds any x to fp16, to nearest even; NaN gives 0x7e00. */
static __device__ __forceinline__ uint32_t to_fp16(float x) {
  return isnan(x) ? 0x7e00u : (uint32_t)__half_as_ushort(__float2half_rn(x));
}

/* ---- Squares -------------------------------------------------------------------------------- */

/* Layout of a 16-bit type: sign, exponent, fraction. */
template <hk_grad_type type>
struct layout {
  static constexpr int fraction = type == HK_GRAD_BF16 ? 7 : 10;
  static constexpr uint32_t most =
      (1u << (15 - fraction)) - 1; /* biased exponent of infinity and NaN */
  static constexpr int bins = (int)(most + 1) / 8;
};

/* Adds the square of one value to the calling thread's column of bins; returns 1 if the value is
 * not finite. */
template <hk_grad_type type>
static __device__ __forceinline__ uint32_t add_square(uint64_t (*bins)[SQUARES_THREADS],
                                                      uint32_t value) {
  typedef layout<type> in;
  const uint32_t biased = (value >> in::fraction) & in::most;
  const uint32_t fraction = value & ((1u << in::fraction) - 1);
  const uint32_t hidden = biased != 0 ? 1u << in::fraction : 0;
  const uint32_t significand = biased == in::most ? 0 : fraction | hidden;
  const uint32_t exponent = biased != 0 ? biased : 1;
  bins[exponent / 8][threadIdx.x] += (uint64_t)(significand * significand) << (2 * (exponent % 8));
  return biased == in::most;
}

static __device__ void add_to_total(uint64_t *total, uint64_t part) {
  for (int away = 16; away > 0; away /= 2) part += __shfl_down_sync(0xffffffffu, part, away);
  if (threadIdx.x % 32 == 0 && part != 0) atomicAdd((unsigned long long *)total, part);
}

/* Adds all threads' columns to a bin set in device memory. */
template <hk_grad_type type>
static __device__ void add_columns(uint64_t (*bins)[SQUARES_THREADS], uint64_t *set) {
  for (int b = (int)threadIdx.x / 32; b < layout<type>::bins; b += SQUARES_THREADS / 32) {
    uint64_t part = 0;
    for (int t = (int)threadIdx.x % 32; t < SQUARES_THREADS; t += 32) part += bins[b][t];
    add_to_total(&set[b], part);
  }
}

#endif
