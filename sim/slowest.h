/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ranks that wait for the slowest of them at each collective. */
#ifndef HK_SIM_SLOWEST_H
#define HK_SIM_SLOWEST_H

/* Rate of a block's pass that its GPU computes at the rate `computed`, and whose kernels the median
 * rank launches at the rate `launched`. Launches of `ranks` ranks scatter: the standard deviation
 * of the logarithm of their times is `scatter`. A collective waits for all ranks, so the slowest
 * counts. With g and L the times of 1 / rate:
 *   E max(g, L_1, ..., L_n) = g + integral over t > g of 1 - P(L < t)^n
 * One rank, or no scatter: the lower of both rates. Example: 10 ms of each and a scatter of 0.25
 * take two ranks 12.0 ms. */
double hk_slowest_rate(double computed, double launched, double scatter, int ranks);

#endif
