/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Compares two timelines of one graph, joined by operation: where they differ, and the causes.
 *
 * The error (makespan of `measured` - makespan of `predicted`) is divided among causes that add up
 * to it exactly. The measured critical path is followed back from the operation that ended last.
 * The predecessor of an operation is the one that ended last among its dependencies and the
 * operation before it on its lane. Between that end and the operation's start is the measured gap;
 * the predicted gap is start - ready. So
 *
 *   measured = sum over the path of (measured duration + gap)
 *   error    = sum over the path of (measured - predicted duration) + (measured - predicted gap)
 *            + (sum over the path of predicted durations and gaps - predicted makespan)
 *
 * The last term is charged to DEPENDENCY. If another path was predicted to be the longest, this one
 * had slack, and the term is negative. It can be positive only if a lane that picks (hk_lane.picks)
 * ran its operations in another order than predicted. A gap's deviation is charged to HOST. If
 * another lane was busy throughout the gap and ended with it, although the graph required no wait,
 * it is charged to DEPENDENCY (lost overlap). The deviation of an operation's duration is divided
 * by a model of its kind,
 *
 *   duration = latency + a + b x alone + c x contended + rest
 *
 * where latency and alone are the predicted duration of the operation without any other operation
 * on the machine, and contended is the rest of its predicted duration. a (>= -latency), b and c are
 * fitted to all operations of the kind by least squares with weak priors at 0, 1 and 1. If none of
 * the kind has a predicted latency (passes of blocks), a is 0. LATENCY gets a, RATE gets
 * (b - 1) x alone, CONTENTION gets the remainder.
 *
 * Example: a copy predicted with latency 10 us, alone 90 us, contended 50 us took 180 us. With a =
 * 5 us and b = 1.1: LATENCY 5 us, RATE 9 us, CONTENTION 16 us; sum 30 us = 180 - 150. */
#ifndef HK_TRACES_COMPARE_H
#define HK_TRACES_COMPARE_H

#include "core/graph/timeline.h"

#define HK_CAUSES(X)                                                       \
  X(RATE, "rate", "bandwidth or compute rate differs from the prediction") \
  X(LATENCY, "latency", "fixed time per operation")                        \
  X(CONTENTION, "contention", "effect of concurrent operations")           \
  X(DEPENDENCY, "dependency", "another critical path, or lost overlap")    \
  X(HOST, "host", "gaps that the graph does not explain")

typedef enum {
#define HK_CAUSE_ENUM(name, text, meaning) HK_CAUSE_##name,
  HK_CAUSES(HK_CAUSE_ENUM)
#undef HK_CAUSE_ENUM
      HK_CAUSE_COUNT
} hk_cause;

const char *hk_cause_name(hk_cause cause);
const char *hk_cause_meaning(hk_cause cause);

/* Predicted duration of an operation without any other operation on the machine. */
typedef struct {
  hk_ns latency, alone;
  int32_t engine; /* copy engine, which runs the copies of all its lanes one at a time; 0: none */
  int32_t first;  /* another engine whose queue it must pass first if the operation before it on its
                     lane used that engine; 0: none */
} hk_op_cost;

typedef struct {
  hk_ns predicted, measured;
  double error_pct; /* 100 (predicted / measured - 1); NAN if measured is 0 */
} hk_pair;
hk_pair hk_pair_of(hk_ns predicted, hk_ns measured);

typedef struct {
  hk_pair busy;   /* executing */
  hk_pair queued; /* copies waiting for their engine, which runs another lane's copy */
  hk_pair idle;   /* neither, between the lane's first start and its last end */
} hk_lane_pair;

typedef struct {
  size_t n;
  hk_pair total; /* sum of durations */
  /* Absolute errors of single operations; NAN: all have duration 0. */
  double median_error_pct, worst_error_pct;
  hk_ns causes[HK_CAUSE_COUNT]; /* the part of its operations on the measured critical path */
} hk_kind_pair;

typedef struct {
  hk_pair makespan;
  hk_pair phases[HK_PHASE_COUNT]; /* both 0: absent */
  hk_lane_pair *lanes;            /* as graph->lanes */
  size_t n_lanes;
  hk_kind_pair kinds[HK_OP_KIND_COUNT];
  hk_ns causes[HK_CAUSE_COUNT]; /* sum: measured - predicted makespan, exactly */
  hk_cause main_cause;          /* the largest in absolute value */
  int32_t *path;                /* measured critical path, in order of time */
  size_t n_path;
  /* The first operation, by measured start, whose start or end differs by more than 2 % of the
   * makespan; -1: none. */
  int32_t parts_at;
} hk_timeline_comparison;

/* `costs`: one per operation, of the prediction. NULL: latency 0, alone = predicted duration, no
 * engines; CONTENTION is then the residual of the fit. HK_INPUT: a timeline of another graph
 * (number of spans), operations of a lane that overlap, an end before its start. Free with
 * hk_timeline_comparison_free, which accepts a zeroed one. */
hk_status hk_timelines_compare(const hk_graph *graph, const hk_timeline *predicted,
                               const hk_timeline *measured, const hk_op_cost *costs,
                               hk_timeline_comparison *out, hk_error *err);
void hk_timeline_comparison_free(hk_timeline_comparison *comparison);

#endif
