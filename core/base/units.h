/* SPDX-License-Identifier: Apache-2.0 */
/* Units of time and memory, and the clock. Time is int64 nanoseconds and memory int64 bytes
 * everywhere; rates are double, per second. Names carry the unit where the type does not. */
#ifndef HK_CORE_BASE_UNITS_H
#define HK_CORE_BASE_UNITS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int64_t hk_ns;    /* nanoseconds */
typedef int64_t hk_bytes; /* bytes */

#define HK_NS_PER_S 1000000000LL
#define HK_KIB      (1LL << 10)
#define HK_MIB      (1LL << 20)
#define HK_GIB      (1LL << 30)

/* For times, sizes and counts. */
static inline int64_t hk_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t hk_max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static inline double hk_ms(hk_ns t) {
  return (double)t / 1e6;
}

static inline double hk_s(hk_ns t) {
  return (double)t / HK_NS_PER_S;
}

/* At most 2^62 ns, some 146 years. */
static inline hk_ns hk_ns_of(double s) {
  const hk_ns most = INT64_C(1) << 62;
  return s * HK_NS_PER_S < (double)most ? (hk_ns)(s * HK_NS_PER_S) : most;
}

/* CLOCK_MONOTONIC: only differences are meaningful; setting the time of day does not change it. */
hk_ns hk_now(void);

/* "12.3 ms", "1.25 s", "850 us", "17 ns". Returns `buffer`. 16 bytes are enough. */
const char *hk_format_ns(hk_ns t, char *buffer, size_t size);

/* "12.5 GiB", "850 MiB", "17 B". Returns `buffer`. 16 bytes are enough. */
const char *hk_format_bytes(hk_bytes n, char *buffer, size_t size);

/* "6,738,415,616". Returns `buffer`. 32 bytes are enough. */
const char *hk_format_count(int64_t n, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
