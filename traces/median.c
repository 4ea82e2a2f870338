/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "traces/median.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double hk_sort_median(double *values, size_t n) {
  if (n == 0) return NAN;
  qsort(values, n, sizeof *values, by_value);
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}
