/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Progressive filling. The common level rises from zero; an open activity's rate is weight x level.
 * The next thing to happen is the lowest level at which an activity meets its cap or a resource is
 * full, where the frozen activities' use is constant and the open ones' grows linearly. */
#include "sim/share.h"

#include <math.h>

/* Levels closer than this, relatively, count as one: without it rounding would leave an activity
 * open on a resource that has nothing left but the last bit. */
#define TOGETHER (1 + 1e-12)

static void freeze(hk_activity *a, double rate, double *used, double *growth) {
  a->rate = rate;
  for (int32_t u = 0; u < a->n_uses; u++) {
    const hk_share_use *use = &a->uses[u];
    used[use->resource] += rate * use->per_unit;
    growth[use->resource] -= a->weight * use->per_unit;
  }
}

/* The level at which resource r is full, with what is left for the open activities. */
static double full_level(double capacity, double used, double growth) {
  const double left = capacity - used;
  return left > 0 ? left / growth : 0;
}

/* The lowest level at which one of the open activities stops. Each keeps its own in `rate`, until
 * it is frozen. */
static double next_level(hk_activity *const *activities, const int32_t *open, int n_open,
                         const double *capacity, const double *used, const double *growth) {
  double level = INFINITY;
  for (int i = 0; i < n_open; i++) {
    hk_activity *a = activities[open[i]];
    a->rate = a->cap / a->weight;
    for (int32_t u = 0; u < a->n_uses; u++) {
      const int32_t r = a->uses[u].resource;
      const double at_full = full_level(capacity[r], used[r], growth[r]);
      if (at_full < a->rate) a->rate = at_full;
    }
    if (a->rate < level) level = a->rate;
  }
  return level;
}

void hk_share(hk_activity *const *activities, int n, const double *capacity, int n_resources,
              double *used, double *growth, int32_t *open) {
  for (int r = 0; r < n_resources; r++) used[r] = growth[r] = 0;
  for (int i = 0; i < n; i++) {
    open[i] = i;
    for (int32_t u = 0; u < activities[i]->n_uses; u++) {
      const hk_share_use *use = &activities[i]->uses[u];
      growth[use->resource] += activities[i]->weight * use->per_unit;
    }
  }

  int n_open = n;
  while (n_open > 0) {
    const double level = next_level(activities, open, n_open, capacity, used, growth);
    /* Who stops is decided before any of them is frozen, as freezing changes `used`. */
    int n_stop = 0;
    for (int i = 0; i < n_open; i++) {
      if (activities[open[i]]->rate > level * TOGETHER) continue;
      const int32_t stopped = open[i];
      open[i] = open[n_stop];
      open[n_stop++] = stopped;
    }
    for (int i = 0; i < n_stop; i++) {
      hk_activity *a = activities[open[i]];
      freeze(a, fmin(a->cap, a->weight * level), used, growth);
    }
    for (int i = n_stop; i < n_open; i++) open[i - n_stop] = open[i];
    n_open -= n_stop;
  }
}
