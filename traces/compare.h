/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Two timelines of one graph, joined by operation: where they part, and why.
 *
 * Why: the makespan of `measured` less that of `predicted` is put down to causes that sum to it
 * exactly. The measured critical path is walked back from the operation that ended last: before
 * each operation stands the one, among its dependencies and the one before it on its lane, that
 * ended last; between that end and the operation's start lies a gap. Some gap may be predicted,
 * too: from `ready` to `start`. So
 *
 *   measured = sum over the path of (measured duration + gap)
 *   error    = sum over the path of (measured - predicted duration) + (measured - predicted gap)
 *            + (sum over the path of predicted durations and gaps - predicted makespan)
 *
 * The last term is never positive: where another path was predicted to be the longest, this one
 * had slack; it goes to DEPENDENCY. What gaps are longer or shorter than predicted goes to HOST,
 * but that of those all through which another lane was busy, and which ended with it, though
 * nothing in the graph makes them wait for it, are overlap that was lost: DEPENDENCY. What an
 * operation took beyond its prediction is divided by a model of its kind,
 *
 *   duration = latency + a + b x alone + c x contended + rest
 *
 * with latency and alone the predicted parts of that operation when it has the machine to itself,
 * contended the rest of the predicted duration, and a (>= -latency), b, c fitted to all operations
 * of the kind by least squares with a weak pull to 0, 1, 1: a is LATENCY, (b - 1) x alone RATE, the
 * others CONTENTION. */
#ifndef HK_TRACES_COMPARE_H
#define HK_TRACES_COMPARE_H

#include "core/timeline.h"

#define HK_CAUSES(X)                                                                        \
  X(RATE, "rate", "operations alone are slower or faster than predicted")                   \
  X(LATENCY, "latency", "a fixed time an operation")                                        \
  X(CONTENTION, "contention", "what runs beside them costs more or less than predicted")    \
  X(DEPENDENCY, "dependency", "waiting for others: another critical path, or lost overlap") \
  X(HOST, "host", "gaps, beyond those predicted, that nothing in the graph explains")

typedef enum {
#define HK_CAUSE_ENUM(name, text, meaning) HK_CAUSE_##name,
  HK_CAUSES(HK_CAUSE_ENUM)
#undef HK_CAUSE_ENUM
      HK_CAUSE_COUNT
} hk_cause;

const char *hk_cause_name(hk_cause cause);
const char *hk_cause_meaning(hk_cause cause);

/* What an operation costs when it has the machine to itself. */
typedef struct {
  hk_ns latency, alone;
  int32_t engine; /* whose copies, of all lanes, take turns: one after the other; 0: none's */
  int32_t first;  /* the engine at which it takes a turn of no length before, behind one there on
                     its lane; 0: none */
} hk_op_cost;

typedef struct {
  hk_ns predicted, measured;
  double error_pct; /* of predicted against measured; NAN where measured is 0 */
} hk_pair;
hk_pair hk_pair_of(hk_ns predicted, hk_ns measured);

typedef struct {
  hk_pair busy;   /* at work */
  hk_pair queued; /* copies that have started, while their engine is at another lane's */
  hk_pair idle;   /* between the lane's first start and its last end: neither */
} hk_lane_pair;

typedef struct {
  size_t n;
  hk_pair total; /* of durations */
  /* Of single operations, absolute; NAN: none took any time. */
  double median_error_pct, worst_error_pct;
  hk_ns causes[HK_CAUSE_COUNT]; /* its operations' part of the attribution */
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
  /* Where they part first: the first operation by measured start whose start or end is off by more
   * than 2 % of the makespan; -1: none. */
  int32_t parts_at;
} hk_timeline_comparison;

/* `costs` (one an operation): of the prediction; NULL: latency 0, alone = predicted duration, so
 * that contention is only what the fit leaves over, and no engines. HK_INPUT: timelines of another
 * graph (number of spans), operations that overlap on a lane or end before they start. Free with
 * hk_timeline_comparison_free, safe on a zeroed one. */
hk_status hk_timelines_compare(const hk_graph *graph, const hk_timeline *predicted,
                               const hk_timeline *measured, const hk_op_cost *costs,
                               hk_timeline_comparison *out, hk_error *err);
void hk_timeline_comparison_free(hk_timeline_comparison *comparison);

#endif
