/* SPDX-License-Identifier: Apache-2.0 */
/* The clock, and formats for people: times and sizes with three significant digits and a unit. */
#include "core/base/units.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

hk_ns hk_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (hk_ns)t.tv_sec * HK_NS_PER_S + t.tv_nsec;
}

/* `value` is in units[0]; each further unit is `base` times the one before it. Values in units[0]
 * are printed as whole numbers. */
static const char *format_scaled(double value, double base, const char *const *units,
                                 size_t n_units, char *buffer, size_t size) {
  size_t unit = 0;
  /* A value that would round to `base` is printed in the next unit. */
  while (unit + 1 < n_units && fabs(value) >= base - 0.5) {
    value /= base;
    unit++;
  }
  int decimals = 0;
  if (unit > 0) decimals = fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0;
  snprintf(buffer, size, "%.*f %s", decimals, value, units[unit]);
  return buffer;
}

const char *hk_format_ns(hk_ns t, char *buffer, size_t size) {
  static const char *const units[] = {"ns", "us", "ms", "s"};
  return format_scaled((double)t, 1000, units, sizeof units / sizeof *units, buffer, size);
}

const char *hk_format_bytes(hk_bytes n, char *buffer, size_t size) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return format_scaled((double)n, 1024, units, sizeof units / sizeof *units, buffer, size);
}

const char *hk_format_count(int64_t n, char *buffer, size_t size) {
  char text[32];
  char *p = text + sizeof text;
  /* Unsigned, because -INT64_MIN does not fit in int64_t. */
  uint64_t rest = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
  int digits = 0;
  *--p = '\0';
  do {
    if (digits > 0 && digits % 3 == 0) *--p = ',';
    *--p = (char)('0' + rest % 10);
    rest /= 10;
    digits++;
  } while (rest > 0);
  if (n < 0) *--p = '-';
  snprintf(buffer, size, "%s", p);
  return buffer;
}
