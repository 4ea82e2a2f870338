/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU kernel sets: defined in adamw_*.c, listed in adamw.c. */
#ifndef HK_ENGINE_ADAMW_ADAMW_KERNELS_H
#define HK_ENGINE_ADAMW_ADAMW_KERNELS_H

#include "engine/adamw/adamw.h"
#include "engine/adamw/convert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HK_X86 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define HK_ARM64 1
#endif

extern const hk_cpu_kernels hk_kernels_scalar;
#ifdef HK_X86
extern const hk_cpu_kernels hk_kernels_avx2, hk_kernels_avx512;
#elif defined(HK_ARM64)
extern const hk_cpu_kernels hk_kernels_neon;
#endif

/* A host program may have set flush to zero or another rounding mode (-ffast-math does so at load
 * time, and threads inherit it), which would change results. So kernels call enter, which sets the
 * floating-point environment that a C program starts with, and leave, which restores the caller's.
 * Arithmetic between them must be in functions that are not inlined, because compilers move it past
 * writes of the control register. */
#ifdef HK_X86
static inline unsigned hk_float_enter(void) {
  enum { START = 0x1f80, FLAGS = 0x3f };
  const unsigned before = _mm_getcsr();
  if ((before & ~(unsigned)FLAGS) != START) _mm_setcsr(START);
  return before;
}
static inline void hk_float_leave(unsigned before) {
  if (_mm_getcsr() != before) _mm_setcsr(before);
}
#elif defined(HK_ARM64)
/* FPCR; the flags are in a register of their own. */
static inline void hk_float_set(unsigned settings) {
  const uint64_t wide = settings;
  __asm__ volatile("msr fpcr, %0" : : "r"(wide) : "memory");
}
static inline unsigned hk_float_enter(void) {
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  if (before != 0) hk_float_set(0);
  return (unsigned)before;
}
static inline void hk_float_leave(unsigned before) {
  if (before != 0) hk_float_set(before);
}
#else
static inline unsigned hk_float_enter(void) {
  return 0;
}
static inline void hk_float_leave(unsigned before) {
  (void)before;
}
#endif

#endif
