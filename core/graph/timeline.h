/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline: when each operation of a graph ran, in the simulator or in the engine. Operation ids
 * are the graph's, so two timelines of one graph are compared by joining on the id. */
#ifndef HK_CORE_GRAPH_TIMELINE_H
#define HK_CORE_GRAPH_TIMELINE_H

#include "core/graph/graph.h"

typedef struct {
  hk_ns ready; /* dependencies met and lane free */
  hk_ns start; /* >= ready. Simulator: later by the rest of a hop (gpu.hop_ns). Engine: later by its
                  own queueing */
  hk_ns end;
} hk_span;

/* Nine years. The largest distance from 0 of times in a file and of times that are compared, so
 * that their sums over all lanes do not overflow. */
#define HK_MOST_NS ((hk_ns)1 << 58)

typedef struct {
  hk_ns time;
  double value; /* holds from `time` until the next sample */
} hk_sample;

typedef struct {
  char name[40];    /* "gpu memory", "dram", "rank1.h2d" */
  const char *unit; /* "bytes" or "bytes_per_s", ... (static) */
  double capacity;  /* 0: none */
  hk_sample *samples;
  size_t n, room;
} hk_counter;

typedef struct {
  hk_span *spans; /* [operation id] */
  size_t n_spans;
  hk_ns phase_begin[HK_PHASE_COUNT], phase_end[HK_PHASE_COUNT]; /* both 0: phase absent */
  hk_ns makespan;
  hk_counter *counters;
  size_t n_counters;
} hk_timeline;

hk_status hk_timeline_init(const hk_graph *graph, hk_timeline *timeline, hk_error *err);
void hk_timeline_free(hk_timeline *timeline);

/* Adds a counter and returns its index; -1 with err set. */
int hk_timeline_counter(hk_timeline *timeline, const char *name, const char *unit, double capacity,
                        hk_error *err);
/* Adds a sample, in order of time. A sample at the time of the last one replaces it; a sample with
 * the last one's value is dropped. */
hk_status hk_counter_add(hk_counter *counter, hk_ns time, double value, hk_error *err);

/* The counter of that name, or NULL. */
const hk_counter *hk_timeline_find(const hk_timeline *timeline, const char *name);
/* Reduces a counter to at most `most` (>= 4) samples, in order of time, without losing an extreme:
 * the first, the last, and of each of (most - 2) / 2 equal runs of the samples between them the
 * lowest and the highest. Returns the number written to `out`; all samples if there are few. */
size_t hk_counter_curve(const hk_counter *counter, hk_sample *out, size_t most);

/* Sets phase_begin, phase_end and makespan from the spans. A phase ends when its last operation
 * ends, and begins when the phase before it ended (forward: at 0). Of several iterations these are
 * the phases of the last one; its forward begins when the last backward of the one before ended. */
void hk_timeline_phases(const hk_graph *graph, hk_timeline *timeline);

/* Writes all operation ids to `order` so that the ids of each lane that picks are in the order in
 * which they ran, and the ids of other lanes in the graph's. Without lanes that pick: 0, 1, 2, ...
 */
hk_status hk_timeline_order(const hk_graph *graph, const hk_timeline *timeline, int32_t *order,
                            hk_error *err);

/* Time within [begin, end) in which the lane ran an operation. */
hk_ns hk_lane_busy(const hk_graph *graph, const hk_timeline *timeline, int32_t lane, hk_ns begin,
                   hk_ns end);

#endif
