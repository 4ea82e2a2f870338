/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Progressive filling. The common level rises from 0; the rate of an open activity is weight x
 * level. Each round finds the lowest level at which an open activity reaches its cap or a resource
 * is full. The use of frozen activities is constant, that of open ones grows linearly with the
 * level. */
#include "sim/share.h"

#include <math.h>

/* Levels within this factor count as equal. Otherwise rounding could leave an activity open on a
 * resource that is full up to the last bit. */
#define TOGETHER (1 + 1e-12)

/* Growth is updated by subtraction. If less than this fraction of its last sum remains, the
 * remainder may be mostly rounding error, or negative, so it is summed again. */
#define CANCELLED 1e-6

/* [resource] Growth of the open activities' use per level: now, and when it was last summed. */
typedef struct {
  double *now, *summed;
} growths;

static void freeze(hk_activity *a, double rate, double *used, const growths *growth) {
  a->rate = rate;
  for (int32_t u = 0; u < a->n_uses; u++) {
    const hk_share_use *use = &a->uses[u];
    used[use->resource] += rate * use->per_unit;
    growth->now[use->resource] -= a->weight * use->per_unit;
  }
}

static void sum_anew(hk_activity *const *activities, const int32_t *open, int n_open, int32_t r,
                     const growths *growth) {
  double sum = 0;
  for (int i = 0; i < n_open; i++) {
    const hk_activity *a = activities[open[i]];
    for (int32_t u = 0; u < a->n_uses; u++)
      if (a->uses[u].resource == r) sum += a->weight * a->uses[u].per_unit;
  }
  growth->now[r] = growth->summed[r] = sum;
}

/* The level at which a resource is full: what frozen activities leave of it / growth. */
static double full_level(double capacity, double used, double growth) {
  const double left = capacity - used;
  return left > 0 ? left / growth : 0;
}

/* The lowest level at which one of the open activities stops. The level of each is kept in its
 * `rate` until it is frozen. */
static double next_level(hk_activity *const *activities, const int32_t *open, int n_open,
                         const double *capacity, const double *used, const growths *growth) {
  double level = INFINITY;
  for (int i = 0; i < n_open; i++) {
    hk_activity *a = activities[open[i]];
    a->rate = a->cap / a->weight;
    for (int32_t u = 0; u < a->n_uses; u++) {
      const int32_t r = a->uses[u].resource;
      if (growth->now[r] < CANCELLED * growth->summed[r])
        sum_anew(activities, open, n_open, r, growth);
      const double at_full = full_level(capacity[r], used[r], growth->now[r]);
      if (at_full < a->rate) a->rate = at_full;
    }
    if (a->rate < level) level = a->rate;
  }
  return level;
}

void hk_share(hk_activity *const *activities, int n, const double *capacity, int n_resources,
              double *used, double *scratch, int32_t *open) {
  const growths growth = {.now = scratch, .summed = scratch + n_resources};
  for (int r = 0; r < n_resources; r++) used[r] = growth.now[r] = 0;
  for (int i = 0; i < n; i++) {
    open[i] = i;
    for (int32_t u = 0; u < activities[i]->n_uses; u++) {
      const hk_share_use *use = &activities[i]->uses[u];
      growth.now[use->resource] += activities[i]->weight * use->per_unit;
    }
  }
  for (int r = 0; r < n_resources; r++) growth.summed[r] = growth.now[r];

  int n_open = n;
  while (n_open > 0) {
    const double level = next_level(activities, open, n_open, capacity, used, &growth);
    /* Which activities stop is decided before any of them is frozen, because freezing changes
     * `used`. At least the one with the lowest level stops. */
    int n_stop = 0;
    for (int i = 0; i < n_open; i++) {
      if (activities[open[i]]->rate > level * TOGETHER) continue;
      const int32_t stopped = open[i];
      open[i] = open[n_stop];
      open[n_stop++] = stopped;
    }
    for (int i = 0; i < n_stop; i++) {
      hk_activity *a = activities[open[i]];
      freeze(a, fmin(a->cap, a->weight * level), used, &growth);
    }
    for (int i = n_stop; i < n_open; i++) open[i - n_stop] = open[i];
    n_open -= n_stop;
  }
}
