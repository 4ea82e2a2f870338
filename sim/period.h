/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The steady iteration of a plan with an overlap, from a simulation of several iterations, and
 * bounds of it.
 *
 * The period is the time from the end of one backward to the end of the next. It has three parts:
 * - exposed update: forward waits because a block's new weights have not arrived; includes the
 *   norm, the flush before it and the copies of weights;
 * - forward: the rest of the time until forward has ended;
 * - backward: the remaining time, so that forward + exposed update + backward = period.
 * The update's own length is the time in which any of its operations runs, hidden or not.
 * Example: a period of 600 ms with forward 150, exposed update 60 and backward 390 ms may have an
 * update of 500 ms, of which 440 ms are hidden. */
#ifndef HK_SIM_PERIOD_H
#define HK_SIM_PERIOD_H

#include "sim/sim.h"

/* Two periods are alike if they differ by at most a thousandth. */
#define HK_STEADY 1000

typedef struct {
  hk_ns begin, end; /* of the last iteration; period = end - begin */
  hk_ns before;     /* the previous period */
  hk_ns forward, backward, exposed_update;
  hk_ns update;
} hk_period;

/* The last period of a timeline of at least three iterations. */
hk_status hk_period_of(const hk_graph *graph, const hk_timeline *timeline, hk_period *period,
                       hk_error *err);

/* Lower bound of the average period of any schedule of these operations: the time of the fullest
 * resource, of the fullest lane, or of the longest cycle (a block's forward, backward, flush,
 * update, copy of weights, next forward), each operation alone on the machine. `graph`: at least
 * two iterations. */
typedef struct {
  hk_ns period_ns;
  hk_ns busy_ns;    /* without cycles: holds in any order of the operations */
  char binding[24]; /* resource, "lane NAME" or "cycle" */
} hk_period_bound;
hk_status hk_bound_period(const hk_graph *graph, const hk_machine *machine, hk_period_bound *bound,
                          hk_error *err);

#endif
