/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines: allocation of spans and counters, and the quantities derived from them. */
#include "core/graph/timeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"

hk_status hk_timeline_init(const hk_graph *graph, hk_timeline *timeline, hk_error *err) {
  *timeline = (hk_timeline){0};
  if (graph->n_ops == 0) return HK_OK;
  timeline->spans = calloc(graph->n_ops, sizeof *timeline->spans);
  if (!timeline->spans) {
    return hk_fail_memory(err, graph->n_ops * sizeof *timeline->spans, "a timeline");
  }
  timeline->n_spans = graph->n_ops;
  return HK_OK;
}

void hk_timeline_free(hk_timeline *timeline) {
  for (size_t i = 0; i < timeline->n_counters; i++) free(timeline->counters[i].samples);
  free(timeline->counters);
  free(timeline->spans);
  *timeline = (hk_timeline){0};
}

int hk_timeline_counter(hk_timeline *timeline, const char *name, const char *unit, double capacity,
                        hk_error *err) {
  hk_counter counter = {.unit = unit, .capacity = capacity};
  size_t length = strlen(name);
  if (length >= sizeof counter.name) {
    hk_fail(err, HK_INPUT, "counter '%s': the name has %zu characters, at most %zu fit", name,
            length, sizeof counter.name - 1);
    return -1;
  }
  memcpy(counter.name, name, length + 1);

  /* A timeline has a few dozen counters at most: growing by one is quick enough. */
  size_t bytes = (timeline->n_counters + 1) * sizeof counter;
  hk_counter *counters = realloc(timeline->counters, bytes);
  if (!counters) {
    hk_fail_memory(err, bytes, "the counters of a timeline");
    return -1;
  }
  timeline->counters = counters;
  counters[timeline->n_counters] = counter;
  return (int)timeline->n_counters++;
}

hk_status hk_counter_add(hk_counter *counter, hk_ns time, double value, hk_error *err) {
  hk_ns last = counter->n ? counter->samples[counter->n - 1].time : 0;
  if (time < last) {
    return hk_fail(err, HK_INPUT,
                   "counter '%s': sample at %" PRId64 " ns; expected one at or after %" PRId64
                   " ns, since samples come in order of time",
                   counter->name, time, last);
  }
  if (!isfinite(value)) {
    return hk_fail(err, HK_INPUT, "counter '%s': sample at %" PRId64 " ns is not a finite number",
                   counter->name, time);
  }
  /* Drop the replaced sample first: the new one may have the value of the sample before it. */
  if (counter->n && time == last) counter->n--;
  if (counter->n && value == counter->samples[counter->n - 1].value) return HK_OK;
  HK_TRY(HK_GROW(counter->samples, counter->room, counter->n, "the samples of a counter", err));
  counter->samples[counter->n++] = (hk_sample){time, value};
  return HK_OK;
}

const hk_counter *hk_timeline_find(const hk_timeline *timeline, const char *name) {
  for (size_t i = 0; i < timeline->n_counters; i++) {
    if (strcmp(timeline->counters[i].name, name) == 0) return &timeline->counters[i];
  }
  return NULL;
}

/* Writes the lowest and the highest of samples [begin, end), in order of time; one if both are the
 * same sample. Returns the number written. */
static size_t keep_extremes(const hk_sample *samples, size_t begin, size_t end, hk_sample *out) {
  size_t low = begin, high = begin;
  for (size_t i = begin; i < end; i++) {
    if (samples[i].value < samples[low].value) low = i;
    if (samples[i].value > samples[high].value) high = i;
  }
  out[0] = samples[low < high ? low : high];
  if (low == high) return 1;
  out[1] = samples[low < high ? high : low];
  return 2;
}

size_t hk_counter_curve(const hk_counter *counter, hk_sample *out, size_t most) {
  const size_t n = counter->n;
  if (n <= most) {
    if (n > 0) memcpy(out, counter->samples, n * sizeof *out);
    return n;
  }
  const size_t between = n - 2, runs = (most - 2) / 2;
  size_t kept = 0;
  out[kept++] = counter->samples[0];
  for (size_t r = 0; r < runs; r++) {
    const size_t begin = 1 + between * r / runs, end = 1 + between * (r + 1) / runs;
    kept += keep_extremes(counter->samples, begin, end, &out[kept]);
  }
  out[kept++] = counter->samples[n - 1];
  return kept;
}

/* The first operation of the last iteration. *begin: when the last backward of the iteration before
 * ended. */
static size_t last_iteration(const hk_graph *graph, const hk_timeline *timeline, hk_ns *begin) {
  *begin = 0;
  if (graph->iterations <= 1) return 0;
  const size_t each = graph->n_ops / (size_t)graph->iterations, first = graph->n_ops - each;
  for (size_t i = first - each; i < first; i++) {
    if (graph->ops[i].kind == HK_OP_BACKWARD) *begin = hk_max(*begin, timeline->spans[i].end);
  }
  return first;
}

void hk_timeline_phases(const hk_graph *graph, hk_timeline *timeline) {
  bool present[HK_PHASE_COUNT] = {false};
  hk_ns last_end[HK_PHASE_COUNT] = {0};
  hk_ns previous = 0;
  for (size_t i = last_iteration(graph, timeline, &previous); i < graph->n_ops; i++) {
    hk_phase phase = graph->ops[i].phase;
    present[phase] = true;
    last_end[phase] = hk_max(last_end[phase], timeline->spans[i].end);
  }

  for (int phase = 0; phase < HK_PHASE_COUNT; phase++) {
    timeline->phase_begin[phase] = timeline->phase_end[phase] = 0;
    if (!present[phase]) continue;
    timeline->phase_begin[phase] = previous;
    /* A phase that ended before the previous one has length 0, not a negative length. */
    previous = hk_max(previous, last_end[phase]);
    timeline->phase_end[phase] = previous;
  }
  timeline->makespan = previous;
}

/* Orders operations of one lane by the time at which they ran. */
static int by_start(const void *left, const void *right, void *context) {
  const hk_span *spans = ((const hk_timeline *)context)->spans;
  const int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
  if (spans[a].start != spans[b].start) return spans[a].start < spans[b].start ? -1 : 1;
  if (spans[a].end != spans[b].end) return spans[a].end < spans[b].end ? -1 : 1;
  return a < b ? -1 : a > b;
}

/* Sorts the places of `order` that belong to one lane. `ids`: scratch. */
static void order_lane(const hk_graph *graph, const hk_timeline *timeline, int32_t lane,
                       int32_t *ids, int32_t *order) {
  const int32_t n = (int32_t)graph->n_ops;
  size_t found = 0, next = 0;
  for (int32_t i = 0; i < n; i++)
    if (graph->ops[i].lane == lane) ids[found++] = i;
  qsort_r(ids, found, sizeof *ids, by_start, (void *)timeline);
  for (int32_t i = 0; i < n; i++)
    if (graph->ops[i].lane == lane) order[i] = ids[next++];
}

hk_status hk_timeline_order(const hk_graph *graph, const hk_timeline *timeline, int32_t *order,
                            hk_error *err) {
  for (size_t i = 0; i < graph->n_ops; i++) order[i] = (int32_t)i;
  int32_t *ids = malloc((graph->n_ops + 1) * sizeof *ids);
  if (!ids) return hk_fail_memory(err, graph->n_ops * sizeof *ids, "the order of a timeline");
  for (size_t lane = 0; lane < graph->n_lanes; lane++)
    if (graph->lanes[lane].picks) order_lane(graph, timeline, (int32_t)lane, ids, order);
  free(ids);
  return HK_OK;
}

hk_ns hk_lane_busy(const hk_graph *graph, const hk_timeline *timeline, int32_t lane, hk_ns begin,
                   hk_ns end) {
  hk_ns busy = 0;
  for (size_t i = 0; i < graph->n_ops; i++) {
    if (graph->ops[i].lane != lane) continue;
    hk_ns from = hk_max(timeline->spans[i].start, begin);
    hk_ns to = hk_min(timeline->spans[i].end, end);
    if (to > from) busy += to - from;
  }
  return busy;
}
