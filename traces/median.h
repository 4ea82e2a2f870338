/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Medians, for traces/ only. */
#ifndef HK_TRACES_MEDIAN_H
#define HK_TRACES_MEDIAN_H

#include <stddef.h>

/* Sorts values[0..n), which must not contain NAN, and returns their median: the mean of the two
 * middle values if n is even, NAN if n is 0. */
double hk_sort_median(double *values, size_t n);

#endif
