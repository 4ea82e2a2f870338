/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The steady iteration of a plan with an overlap, read off unrolled ones, and bounds on it.
 *
 * The period is the time from the end of one backward to the end of the next. It is made up of
 *   exposed update  forward stands still because a block's new weights are not there yet (the norm,
 *                   the flush in front of it and the uploads included)
 *   forward         the rest of the time until forward is over
 *   backward        the rest
 * so that forward + exposed update + backward = period. The update itself is as long as any
 * operation of it runs, hidden or not. */
#ifndef HK_SIM_PERIOD_H
#define HK_SIM_PERIOD_H

#include "sim/sim.h"

typedef struct {
  hk_ns begin, end; /* of the last iteration; period = end - begin */
  hk_ns before;     /* the period before it */
  hk_ns forward, backward, exposed_update;
  hk_ns update;
} hk_period;

/* Of a timeline of at least three iterations. */
hk_status hk_period_of(const hk_graph *graph, const hk_timeline *timeline, hk_period *period,
                       hk_error *err);

/* No schedule of these operations has a shorter period in the long run: the fullest resource, the
 * fullest lane, or the longest cycle (a block's forward, its backward, flush, update and upload,
 * and its next forward), each operation alone on the machine. `graph`: at least two iterations. */
typedef struct {
  hk_ns period_ns;
  char binding[24]; /* resource, "lane NAME" or "cycle" */
} hk_period_bound;
hk_status hk_bound_period(const hk_graph *graph, const hk_machine *machine, hk_period_bound *bound,
                          hk_error *err);

#endif
