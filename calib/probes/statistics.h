/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Robust statistics of repeated measurements, over GSL. */
#ifndef HK_CALIB_PROBES_STATISTICS_H
#define HK_CALIB_PROBES_STATISTICS_H

#include <stddef.h>

#include "core/base/error.h"

typedef struct {
  size_t n;
  double median, mad; /* median absolute deviation from the median, not scaled */
  double least, most;
  /* 95 % interval of the median, whatever the distribution of the values: order statistics l and u
   * with P(Binomial(n, 1/2) in [l, u)) >= 0.95 (Conover, Practical Nonparametric Statistics, 3.2).
   * Fewer than HK_LEAST_ROUNDS values have no such interval: -INFINITY and INFINITY. */
  double low, high;
} hk_summary;

#define HK_LEAST_ROUNDS 6

/* Summarises values[0..n), which stay unchanged. HK_INPUT if n is 0 or a value is not finite. */
hk_status hk_summarise(const double *values, size_t n, hk_summary *summary, hk_error *err);
/* Half the interval divided by the absolute value of the median; INFINITY if there is no interval.
 */
double hk_summary_spread(const hk_summary *summary);

/* Median of the finite values in values[0..n); NAN if there are none. Reorders the array: finite
 * values come first, sorted. */
double hk_median(double *values, size_t n);

#endif
