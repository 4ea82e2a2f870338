/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Repeated measurements in order of size: the first is the least, the last the most. */
#ifndef HK_BENCH_SORTED_H
#define HK_BENCH_SORTED_H

#include <stdlib.h>

static inline int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static inline void sort_ascending(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, compare_doubles);
}

/* The mean of the two middle values if n is even. */
static inline double median_of_sorted(const double *values, int n) {
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

#endif
