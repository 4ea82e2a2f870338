/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Weighted max-min fairness by progressive filling (Bertsekas & Gallager, Data Networks, 6.5.2;
 * the fluid model of SimGrid). All rates grow together in proportion to their weights; an activity
 * stops at its cap or when a resource that it uses is full; repeat until all have stopped. The
 * result is unique, and work-conserving: every activity is at its cap or uses a full resource. */
#ifndef HK_SIM_SHARE_H
#define HK_SIM_SHARE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  int32_t resource;
  double per_unit; /* > 0 */
} hk_share_use;

typedef struct {
  double cap;    /* >= 0, may be INFINITY if it uses at least one resource */
  double weight; /* > 0 */
  const hk_share_use *uses;
  int32_t n_uses;
  double rate; /* out */
} hk_activity;

/* capacity[r] >= 0. used[r] (out): sum of rate x per_unit. `scratch` holds 2 x n_resources doubles
 * and n_activities ints are kept in `open` (caller's, so that nothing is allocated here). */
void hk_share(hk_activity *const *activities, int n_activities, const double *capacity,
              int n_resources, double *used, double *growth, int32_t *open);

#endif
