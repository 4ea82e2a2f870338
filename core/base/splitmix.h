/* SPDX-License-Identifier: Apache-2.0 */
/* SplitMix64 (Steele, Lea, Flood 2014): pseudo-random numbers whose whole state is a counter, so
 * that number i of a stream can be computed without those before it. */
#ifndef HK_CORE_SPLITMIX_H
#define HK_CORE_SPLITMIX_H

#include <stdint.h>

#define HK_SPLITMIX_STEP UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t hk_splitmix_mix(uint64_t z) {
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

/* The next number of a stream. */
static inline uint64_t hk_splitmix_next(uint64_t *state) {
  return hk_splitmix_mix(*state += HK_SPLITMIX_STEP);
}

#endif
