/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline: when each operation of a graph ran, by whoever ran it. Operation ids are the graph's,
 * so comparing two timelines of one graph is a join. */
#ifndef HK_CORE_TIMELINE_H
#define HK_CORE_TIMELINE_H

#include "core/graph.h"

typedef struct {
  hk_ns ready; /* dependencies met and lane free */
  hk_ns start; /* later, where the runner itself was late or, in the simulator, for what is left of
                  a hop */
  hk_ns end;
} hk_span;

/* Nine years. Times of a file, and those that are compared, are at most so far from 0, so that sums
 * over all lanes are numbers, too. */
#define HK_MOST_NS ((hk_ns)1 << 58)

typedef struct {
  hk_ns time;
  double value; /* from `time` until the next sample */
} hk_sample;

typedef struct {
  char name[40];    /* "gpu memory", "dram", "rank1.h2d" */
  const char *unit; /* "bytes" or "bytes_per_s", ... (static) */
  double capacity;  /* 0: none */
  hk_sample *samples;
  size_t n, room;
} hk_counter;

typedef struct {
  hk_span *spans; /* one an operation, index = id */
  size_t n_spans;
  hk_ns phase_begin[HK_PHASE_COUNT], phase_end[HK_PHASE_COUNT]; /* both 0: phase absent */
  hk_ns makespan;
  hk_counter *counters;
  size_t n_counters;
} hk_timeline;

hk_status hk_timeline_init(const hk_graph *graph, hk_timeline *timeline, hk_error *err);
void hk_timeline_free(hk_timeline *timeline);

/* A new counter; index or -1. A later sample at the same time replaces the earlier one; a sample
 * equal to the last value is dropped. */
int hk_timeline_counter(hk_timeline *timeline, const char *name, const char *unit, double capacity,
                        hk_error *err);
hk_status hk_counter_add(hk_counter *counter, hk_ns time, double value, hk_error *err);

/* The counter of that name, or NULL. */
const hk_counter *hk_timeline_find(const hk_timeline *timeline, const char *name);
/* At most `most` (>= 4) samples that stand for the counter's, in order of time: all of them if they
 * are no more; else the first, the last, and of equal runs of those between the lowest and the
 * highest, so that no extreme is lost. Returns how many were written to `out`. */
size_t hk_counter_curve(const hk_counter *counter, hk_sample *out, size_t most);

/* Fills phase_begin/phase_end/makespan from the spans: a phase ends when its last operation ends
 * and begins where the one before it ended (forward at 0). Of unrolled iterations: the phases of
 * the last one, whose forward begins where the computation of the one before ended. */
void hk_timeline_phases(const hk_graph *graph, hk_timeline *timeline);

/* The order in which operations had their lanes: writes all ids to `order` such that those of each
 * lane stand in the order in which they ran, where the lane picks, and in the graph's, where not.
 * Without lanes that pick that is 0, 1, 2, ... */
hk_status hk_timeline_order(const hk_graph *graph, const hk_timeline *timeline, int32_t *order,
                            hk_error *err);

/* Sum over a lane's operations of (end - start) within [begin, end). */
hk_ns hk_lane_busy(const hk_graph *graph, const hk_timeline *timeline, int32_t lane, hk_ns begin,
                   hk_ns end);

#endif
