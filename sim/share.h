/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Weighted max-min fairness by progressive filling (Bertsekas & Gallager, Data Networks, 6.5.2;
 * the fluid model of SimGrid). All rates grow together in proportion to their weights; an activity
 * stops at its cap or when a resource that it uses is full; repeat until all have stopped. The
 * result is unique, and work-conserving: every activity is at its cap or uses a full resource. */
#ifndef HK_SIM_SHARE_H
#define HK_SIM_SHARE_H

#include <stdint.h>

typedef struct {
  int32_t resource;
  double per_unit; /* > 0: of the resource, per unit of work */
} hk_share_use;

typedef struct {
  double cap;    /* > 0, finite: work units a second when alone */
  double weight; /* > 0: rates grow as weight x level */
  const hk_share_use *uses;
  int32_t n_uses;
  double rate; /* out: work units a second */
} hk_activity;

/* Fills in the rates of n activities. capacity[r] > 0. used[r] (out): sum of rate x per_unit.
 * `scratch` (2 x n_resources doubles) and `open` (n ints) are scratch of the caller's, so that
 * nothing is allocated here. O(rounds x uses), at most n rounds. */
void hk_share(hk_activity *const *activities, int n, const double *capacity, int n_resources,
              double *used, double *scratch, int32_t *open);

#endif
