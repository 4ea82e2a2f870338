/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Median, spread and interval of repeated measurements (calib/probes/statistics.h). The GSL
 * functions used here cannot fail on finite values. */
#include "calib/probes/statistics.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONFIDENCE 0.95

/* Returns l, counted from 1: the l-th smallest and the l-th largest value bound the interval. 0:
 * there is no interval. The median of the distribution lies outside each bound with probability
 * P(Binomial(n, 1/2) < l). */
static unsigned order_statistic(unsigned n) {
  unsigned l = 0;
  while (gsl_cdf_binomial_P(l, 0.5, n) <= (1 - CONFIDENCE) / 2) l++;
  return l;
}

static hk_status check(const double *values, size_t n, hk_error *err) {
  for (size_t i = 0; i < n; i++)
    if (!isfinite(values[i]))
      return hk_fail(err, HK_INPUT, "value %zu of %zu is %g: values must be finite", i + 1, n,
                     values[i]);
  return HK_OK;
}

hk_status hk_summarise(const double *values, size_t n, hk_summary *summary, hk_error *err) {
  if (n == 0) return hk_fail(err, HK_INPUT, "no values to summarise: at least one is needed");
  HK_TRY(check(values, n, err));
  double *sorted = malloc(2 * n * sizeof *sorted);
  if (!sorted) return hk_fail_memory(err, 2 * n * sizeof *sorted, "the summary of a series");
  memcpy(sorted, values, n * sizeof *sorted);
  gsl_sort(sorted, 1, n);
  const unsigned l = order_statistic((unsigned)n);
  *summary = (hk_summary){.n = n,
                          .median = gsl_stats_median_from_sorted_data(sorted, 1, n),
                          .mad = gsl_stats_mad0(sorted, 1, n, sorted + n),
                          .least = sorted[0],
                          .most = sorted[n - 1],
                          .low = l > 0 ? sorted[l - 1] : -INFINITY,
                          .high = l > 0 ? sorted[n - l] : INFINITY};
  free(sorted);
  return HK_OK;
}

double hk_summary_spread(const hk_summary *summary) {
  const double half = (summary->high - summary->low) / 2;
  /* Equal values have the spread 0, even if their median is 0. */
  return half == 0 ? 0 : half / fabs(summary->median);
}

double hk_median(double *values, size_t n) {
  size_t finite = 0;
  for (size_t i = 0; i < n; i++) {
    if (!isfinite(values[i])) continue;
    const double value = values[i];
    values[i] = values[finite];
    values[finite++] = value;
  }
  if (finite == 0) return NAN;
  gsl_sort(values, 1, finite);
  return gsl_stats_median_from_sorted_data(values, 1, finite);
}
