/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The settings of floating-point arithmetic that a program can change: MXCSR of x86, FPCR of ARM.
 * FLOAT_USUAL is not defined for other processors. */
#ifndef HK_TESTS_FIXTURE_FLOAT_H
#define HK_TESTS_FIXTURE_FLOAT_H

#if defined(__x86_64__)
#include <xmmintrin.h>
#define FLOAT_USUAL   0x1f80u
#define FLOAT_FLUSHES (FLOAT_USUAL | 0x8000u | 0x0040u) /* flush to zero, denormals are zero */
#define FLOAT_UP      0x4000u                           /* rounding */
static inline void float_set(unsigned settings) {
  _mm_setcsr(settings);
}
static inline unsigned float_get(void) {
  return _mm_getcsr();
}
#elif defined(__aarch64__)
#include <stdint.h>
#define FLOAT_USUAL   0u
#define FLOAT_FLUSHES (1u << 24)
#define FLOAT_UP      (1u << 22)
static inline void float_set(unsigned settings) {
  const uint64_t wide = settings;
  __asm__ volatile("msr fpcr, %0" : : "r"(wide) : "memory");
}
static inline unsigned float_get(void) {
  uint64_t settings;
  __asm__ volatile("mrs %0, fpcr" : "=r"(settings));
  return (unsigned)settings;
}
#endif

#endif
