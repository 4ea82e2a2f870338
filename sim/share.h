/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Weighted max-min fairness by progressive filling (Bertsekas & Gallager, Data Networks, 6.5.2; the
 * fluid model of SimGrid).
 *
 * All rates grow together, rate = weight x level. An activity stops growing when it reaches its cap
 * or when a resource that it uses is full; the others go on until all have stopped. The result is
 * unique and work-conserving: every activity is at its cap or uses a full resource.
 *
 * Example: a CPU kernel (cap and weight 150 GB/s) and a copy (cap and weight 50 GB/s) share host
 * memory of 160 GB/s. It is full at level 0.8: 120 and 40 GB/s. If the copy's weight is 100, it
 * stops at its cap of 50 GB/s at level 0.5, and the kernel goes on to 110 GB/s. */
#ifndef HK_SIM_SHARE_H
#define HK_SIM_SHARE_H

#include <stdint.h>

typedef struct {
  int32_t resource;
  double per_unit; /* > 0: use of the resource per unit of work */
} hk_share_use;

typedef struct {
  double cap;    /* > 0, finite: highest rate, work units a second */
  double weight; /* > 0: rate = weight x level */
  const hk_share_use *uses;
  int32_t n_uses;
  double rate; /* out: work units a second */
} hk_activity;

/* Sets the rates of n activities. capacity[r] > 0. used[r] (out): sum of rate x per_unit. `scratch`
 * (2 x n_resources doubles) and `open` (n ints) are scratch memory of the caller; nothing is
 * allocated. O(rounds x uses), at most n rounds. */
void hk_share(hk_activity *const *activities, int n, const double *capacity, int n_resources,
              double *used, double *scratch, int32_t *open);

#endif
