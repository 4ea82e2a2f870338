/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A timeline as columns, which take less room than an object for each operation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/page.h"
#include "core/base/json_write.h"

#define CURVE_POINTS 1500

static void put_lanes(const hk_graph *graph, cJSON *object, bool *ok) {
  cJSON *lanes = hk_put_array(object, "lanes", ok);
  for (size_t i = 0; i < graph->n_lanes; i++)
    hk_append_item(lanes, cJSON_CreateString(graph->lanes[i].name), ok);
}

static void put_phases(const hk_timeline *timeline, cJSON *object, bool *ok) {
  cJSON *phases = hk_put_array(object, "phases", ok);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    if (timeline->phase_begin[p] == 0 && timeline->phase_end[p] == 0) continue;
    cJSON *phase = hk_put_element(phases, ok);
    hk_put_string(phase, "name", hk_phase_name((hk_phase)p), ok);
    hk_put_number(phase, "begin_ms", hk_ms(timeline->phase_begin[p]), ok);
    hk_put_number(phase, "end_ms", hk_ms(timeline->phase_end[p]), ok);
  }
}

/* The operations, in the order of the graph, which is that of their lanes. */
static void put_operations(const hk_graph *graph, const hk_timeline *timeline, cJSON *object,
                           bool *ok) {
  cJSON *lane = hk_put_array(object, "lane", ok), *kind = hk_put_array(object, "kind", ok);
  cJSON *label = hk_put_array(object, "label", ok), *begin = hk_put_array(object, "begin_ms", ok);
  cJSON *length = hk_put_array(object, "length_ms", ok);
  char text[128];
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_span *span = &timeline->spans[i];
    if (span->end == span->start) continue;
    hk_append_item(lane, cJSON_CreateNumber(graph->ops[i].lane), ok);
    hk_append_item(kind, cJSON_CreateNumber(graph->ops[i].kind), ok);
    hk_append_item(label, cJSON_CreateString(hk_op_label(graph, (int32_t)i, text, sizeof text)),
                   ok);
    hk_append_item(begin, cJSON_CreateNumber(hk_ms(span->start)), ok);
    hk_append_item(length, cJSON_CreateNumber(hk_ms(span->end - span->start)), ok);
  }
}

static void put_kinds(cJSON *object, bool *ok) {
  cJSON *kinds = hk_put_array(object, "kinds", ok);
  for (int k = 0; k < HK_OP_KIND_COUNT; k++)
    hk_append_item(kinds, cJSON_CreateString(hk_op_kind_name((hk_op_kind)k)), ok);
}

/* Means over equal spans of time, at most CURVE_POINTS: of a rate that alternates, extremes would
 * show only that it does. Returns the number of them; all samples if there are few. */
static size_t mean_curve(const hk_counter *counter, hk_ns end, hk_sample *out) {
  if (counter->n <= CURVE_POINTS || end < CURVE_POINTS)
    return hk_counter_curve(counter, out, CURVE_POINTS);
  size_t i = 0;
  for (int64_t bin = 0; bin < CURVE_POINTS; bin++) {
    const hk_ns from = end / CURVE_POINTS * bin, to = end / CURVE_POINTS * (bin + 1);
    double sum = 0;
    while (i + 1 < counter->n && counter->samples[i + 1].time <= from) i++;
    for (size_t k = i; k < counter->n && counter->samples[k].time < to; k++) {
      const hk_ns next = k + 1 < counter->n ? counter->samples[k + 1].time : end;
      sum += counter->samples[k].value *
             (double)hk_max(0, hk_min(next, to) - hk_max(counter->samples[k].time, from));
    }
    out[bin] = (hk_sample){from, sum / (double)(to - from)};
  }
  return CURVE_POINTS;
}

static void put_counter(const hk_counter *counter, hk_ns end, cJSON *array, bool *ok) {
  hk_sample samples[CURVE_POINTS];
  const bool rate = strcmp(counter->unit, "bytes_per_s") == 0;
  const size_t n =
      rate ? mean_curve(counter, end, samples) : hk_counter_curve(counter, samples, CURVE_POINTS);
  cJSON *object = hk_put_element(array, ok);
  hk_put_string(object, "name", counter->name, ok);
  hk_put_string(object, "unit", counter->unit, ok);
  if (counter->capacity > 0) hk_put_number(object, "capacity", counter->capacity, ok);
  cJSON *time = hk_put_array(object, "time_ms", ok), *value = hk_put_array(object, "value", ok);
  for (size_t i = 0; i < n; i++) {
    hk_append_item(time, cJSON_CreateNumber(hk_ms(samples[i].time)), ok);
    hk_append_item(value, cJSON_CreateNumber(rate ? round(samples[i].value) : samples[i].value),
                   ok);
  }
}

void hk_page_timeline(const hk_graph *graph, const hk_timeline *timeline, const char *name,
                      size_t most, cJSON *array, bool *ok) {
  cJSON *object = hk_put_element(array, ok);
  hk_put_string(object, "name", name, ok);
  hk_put_number(object, "operations", (double)graph->n_ops, ok);
  hk_put_number(object, "makespan_ms", hk_ms(timeline->makespan), ok);
  hk_put_number(object, "iterations", graph->iterations > 1 ? graph->iterations : 1, ok);
  put_lanes(graph, object, ok);
  put_kinds(object, ok);
  put_phases(timeline, object, ok);
  if (graph->n_ops <= most) put_operations(graph, timeline, object, ok);
  cJSON *counters = hk_put_array(object, "counters", ok);
  for (size_t i = 0; i < timeline->n_counters; i++)
    put_counter(&timeline->counters[i], timeline->makespan, counters, ok);
}
