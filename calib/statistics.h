/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Robust statistics of repeated measurements, over GSL. */
#ifndef HK_CALIB_STATISTICS_H
#define HK_CALIB_STATISTICS_H

#include <stddef.h>

#include "core/error.h"

typedef struct {
  size_t n;
  double median, mad; /* median absolute deviation from the median, not scaled */
  double least, most;
  /* 95 % interval of the median, free of any distribution: order statistics l and u with
   * P(Binomial(n, 1/2) in [l, u)) >= 0.95 (Conover, Practical Nonparametric Statistics, 3.2).
   * Below 6 values there is none: -INFINITY and INFINITY. */
  double low, high;
} hk_summary;

/* `values` stays as it is. n >= 1. */
hk_status hk_summarise(const double *values, size_t n, hk_summary *summary, hk_error *err);
/* Half the interval over the median; INFINITY where there is none. */
double hk_summary_spread(const hk_summary *summary);

/* Median of the finite values among values[0..n), which come first after it, sorted; NAN if there
 * are none. */
double hk_median(double *values, size_t n);

#endif
