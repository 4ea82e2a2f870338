/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Writes one event per line directly to the stream, so that memory does not grow with the trace. */
#include "traces/chrome.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/outfile.h"

/* Microseconds with three decimals from whole nanoseconds, exactly. */
#define US        "%" PRId64 ".%03d"
#define US_OF(ns) (ns) / 1000, (int)((ns) % 1000)

static const char *const lane_meanings[HK_LANE_KIND_COUNT] = {
#define HK_LANE_MEANING(name, text, meaning) meaning,
    HK_LANE_KINDS(HK_LANE_MEANING)
#undef HK_LANE_MEANING
};

typedef struct {
  const hk_graph *graph;
  const hk_chrome_layer *layers;
  int n_layers;
  int layer;                   /* the one being written */
  const char *name;            /* its name; NULL if there is only one */
  const hk_timeline *timeline; /* its spans and counters */
  const int32_t *order;        /* its operations in the order of execution on their lanes */
  const int32_t *orders;       /* the same for all layers */
  FILE *stream;
  const char *separator; /* printed before the next event */
  int ranks;
} hk_trace;

static void enter_layer(hk_trace *trace, int layer) {
  trace->layer = layer;
  trace->name = trace->n_layers > 1 ? trace->layers[layer].name : NULL;
  trace->timeline = trace->layers[layer].timeline;
  trace->order = &trace->orders[(size_t)layer * trace->graph->n_ops];
}

/* -- Tracks ------------------------------------------------------------------------------------
 * Ids begin at 1: Perfetto treats process and thread 0 as the kernel's idle task. */

static int rank_pid(int rank) {
  return rank + 1;
}

/* The process of a timeline's counters, below the ranks. */
static int node_pid(const hk_trace *trace) {
  return trace->ranks + 1 + trace->layer;
}

static int lane_tid(const hk_trace *trace, int32_t lane) {
  return lane * trace->n_layers + trace->layer + 1;
}

static int count_ranks(const hk_graph *graph) {
  int ranks = 0;
  for (size_t i = 0; i < graph->n_lanes; i++) {
    if (graph->lanes[i].rank >= ranks) ranks = graph->lanes[i].rank + 1;
  }
  return ranks;
}

static void next_event(hk_trace *trace) {
  fputs(trace->separator, trace->stream);
  trace->separator = ",\n";
}

/* Writes name and position of a process (tid 0) or thread. */
static void write_track(hk_trace *trace, int pid, int tid, const char *name) {
  const char *what = tid ? "thread" : "process";
  next_event(trace);
  fprintf(trace->stream,
          "{\"ph\":\"M\",\"name\":\"%s_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what, pid,
          tid);
  hk_json_write_string(trace->stream, name);
  fputs("}}", trace->stream);
  next_event(trace);
  fprintf(trace->stream,
          "{\"ph\":\"M\",\"name\":\"%s_sort_index\",\"pid\":%d,\"tid\":%d,"
          "\"args\":{\"sort_index\":%d}}",
          what, pid, tid, tid ? tid : pid);
}

static void write_processes(hk_trace *trace) {
  char name[128];
  for (int rank = 0; rank < trace->ranks; rank++) {
    snprintf(name, sizeof name, "rank %d", rank);
    write_track(trace, rank_pid(rank), 0, name);
  }
}

/* "h2d: state copies to the GPU", "h2d, predicted: state copies to the GPU". */
static void write_layer_tracks(hk_trace *trace) {
  const hk_graph *graph = trace->graph;
  const char *comma = trace->name ? ", " : "", *layer = trace->name ? trace->name : "";
  char name[256];
  for (int32_t i = 0; i < (int32_t)graph->n_lanes; i++) {
    const hk_lane *lane = &graph->lanes[i];
    snprintf(name, sizeof name, "%s%s%s: %s", hk_lane_kind_name(lane->kind), comma, layer,
             lane_meanings[lane->kind]);
    write_track(trace, rank_pid(lane->rank), lane_tid(trace, i), name);
  }
  if (!trace->timeline->n_counters) return;
  snprintf(name, sizeof name, "node%s%s", comma, layer);
  write_track(trace, node_pid(trace), 0, name);
}

/* -- Operations --------------------------------------------------------------------------------*/

/* Time from the end of the last dependency to the operation's start: the operation waited for its
 * lane. Without dependencies, from time 0. Negative only if measured clocks disagree. */
static hk_ns wait_of(const hk_trace *trace, int32_t id) {
  const hk_op *op = &trace->graph->ops[id];
  hk_ns met = 0;
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    hk_ns end = trace->timeline->spans[trace->graph->deps[d]].end;
    if (end > met) met = end;
  }
  return trace->timeline->spans[id].start - met;
}

static void write_args(hk_trace *trace, int32_t id) {
  const hk_op *op = &trace->graph->ops[id];
  fprintf(trace->stream, "\"args\":{\"id\":%d,\"kind\":\"%s\",\"work\":%" PRId64 ",\"unit\":\"%s\"",
          id, hk_op_kind_name(op->kind), op->work, hk_op_kind_unit(op->kind));
  if (op->subgroup >= 0) fprintf(trace->stream, ",\"subgroup\":%d", op->subgroup);
  if (op->piece >= 0) fprintf(trace->stream, ",\"piece\":%d", op->piece);
  if (op->block != HK_BLOCK_NONE) fprintf(trace->stream, ",\"block\":%d", op->block);
  fprintf(trace->stream, ",\"wait_ns\":%" PRId64, wait_of(trace, id));
  if (op->threads) fprintf(trace->stream, ",\"threads\":%d", op->threads);
  if (trace->name) {
    fputs(",\"timeline\":", trace->stream);
    hk_json_write_string(trace->stream, trace->name);
  }
  fputc('}', trace->stream);
}

static bool is_instant(const hk_span *span) {
  return span->end == span->start;
}

static void write_op(hk_trace *trace, int32_t id) {
  const hk_op *op = &trace->graph->ops[id];
  const hk_span *span = &trace->timeline->spans[id];
  char label[128];
  next_event(trace);
  fputs("{\"name\":", trace->stream);
  hk_json_write_string(trace->stream, hk_op_label(trace->graph, id, label, sizeof label));
  fprintf(trace->stream, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":" US ",",
          hk_phase_name(op->phase), rank_pid(trace->graph->lanes[op->lane].rank),
          lane_tid(trace, op->lane), US_OF(span->start));
  if (is_instant(span)) {
    fputs("\"ph\":\"i\",\"s\":\"t\",", trace->stream);
  } else {
    fprintf(trace->stream, "\"ph\":\"X\",\"dur\":" US ",", US_OF(span->end - span->start));
  }
  write_args(trace, id);
  fputc('}', trace->stream);
}

/* Writes one end of an arrow. `phase`: the event's "ph" as JSON and members that only this end has.
 */
static void write_arrow_end(hk_trace *trace, const char *phase, int64_t arrow, int32_t op,
                            hk_ns ts) {
  int32_t lane = trace->graph->ops[op].lane;
  next_event(trace);
  fprintf(trace->stream,
          "{\"name\":\"dep\",\"cat\":\"dep\",\"ph\":%s,\"id\":%" PRId64
          ",\"pid\":%d,\"tid\":%d,\"ts\":" US "}",
          phase, arrow, rank_pid(trace->graph->lanes[lane].rank), lane_tid(trace, lane), US_OF(ts));
}

/* Writes an arrow from the last nanosecond of each dependency on another lane. No arrow to or from
 * an instant event, which has no slice, or back in time, as measured clocks may disagree (see
 * wait_ns). */
static void write_arrows(hk_trace *trace, int32_t id) {
  const hk_graph *graph = trace->graph;
  const hk_op *op = &graph->ops[id];
  const hk_span *span = &trace->timeline->spans[id];
  if (is_instant(span)) return;
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    int32_t from = graph->deps[d];
    const hk_span *before = &trace->timeline->spans[from];
    if (graph->ops[from].lane == op->lane || is_instant(before) || before->end > span->start) {
      continue;
    }
    const int64_t arrow = (int64_t)graph->n_deps * trace->layer + d;
    write_arrow_end(trace, "\"s\"", arrow, from, before->end - 1);
    write_arrow_end(trace, "\"f\",\"bp\":\"e\"", arrow, id, span->start);
  }
}

/* -- Counters ----------------------------------------------------------------------------------*/

static void write_counter(hk_trace *trace, const hk_counter *counter) {
  bool rate = strcmp(counter->unit, "bytes_per_s") == 0;
  for (size_t i = 0; i < counter->n; i++) {
    const hk_sample *sample = &counter->samples[i];
    next_event(trace);
    fputs("{\"ph\":\"C\",\"name\":", trace->stream);
    hk_json_write_string(trace->stream, counter->name);
    fprintf(trace->stream, ",\"pid\":%d,\"ts\":" US ",\"args\":{", node_pid(trace),
            US_OF(sample->time));
    hk_json_write_string(trace->stream, rate ? "GB/s" : counter->unit);
    fprintf(trace->stream, ":%.15g}}", rate ? sample->value / 1e9 : sample->value);
  }
}

/* -- The file ----------------------------------------------------------------------------------*/

static void write_header(hk_trace *trace, const char *title) {
  fputs("{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"title\":", trace->stream);
  hk_json_write_string(trace->stream, title);
  fputs(",\"schema\":\"hocket.trace/1\",\"generator\":\"hocket\"", trace->stream);
  for (int i = 0; trace->n_layers > 1 && i < trace->n_layers; i++) {
    fputs(i == 0 ? ",\"timelines\":[" : ",", trace->stream);
    hk_json_write_string(trace->stream, trace->layers[i].name);
  }
  fputs(trace->n_layers > 1 ? "]}" : "}", trace->stream);
  fputs(",\n\"traceEvents\":[\n", trace->stream);
}

static void write_layer(hk_trace *trace) {
  for (size_t i = 0; i < trace->graph->n_ops; i++) {
    write_op(trace, trace->order[i]);
    write_arrows(trace, trace->order[i]);
  }
  for (size_t i = 0; i < trace->timeline->n_counters; i++) {
    write_counter(trace, &trace->timeline->counters[i]);
  }
}

static void write_trace(hk_trace *trace, const char *title) {
  write_header(trace, title);
  write_processes(trace);
  for (int i = 0; i < trace->n_layers; i++) {
    enter_layer(trace, i);
    write_layer_tracks(trace);
  }
  for (int i = 0; i < trace->n_layers; i++) {
    enter_layer(trace, i);
    write_layer(trace);
  }
  fputs("\n]}\n", trace->stream);
}

/* Checks that the slices of each track are sorted and disjoint: viewers rely on it. */
static hk_status check_lane_order(const hk_graph *graph, const hk_timeline *timeline,
                                  const int32_t *order, hk_ns *free_at, hk_error *err) {
  for (size_t i = 0; i < graph->n_ops; i++) {
    const int32_t id = order[i];
    const hk_span *span = &timeline->spans[id];
    int32_t lane = graph->ops[id].lane;
    if (span->start < free_at[lane] || span->end < span->start) {
      char label[128];
      return hk_fail(err, HK_INPUT,
                     "timeline: operation %d (%s) ran from %" PRId64 " to %" PRId64
                     " ns in lane '%s', which was free from %" PRId64
                     " ns; operations of a lane must follow one another",
                     id, hk_op_label(graph, id, label, sizeof label), span->start, span->end,
                     graph->lanes[lane].name, free_at[lane]);
    }
    free_at[lane] = span->end;
  }
  return HK_OK;
}

static hk_status check_timeline(const hk_graph *graph, const hk_timeline *timeline, int32_t *order,
                                hk_error *err) {
  if (timeline->n_spans != graph->n_ops) {
    return hk_fail(err, HK_INPUT, "timeline: %zu spans for a graph of %zu operations",
                   timeline->n_spans, graph->n_ops);
  }
  if (graph->n_ops == 0) return HK_OK;
  HK_TRY(hk_timeline_order(graph, timeline, order, err));
  hk_ns *free_at = calloc(graph->n_lanes, sizeof *free_at);
  if (!free_at) return hk_fail_memory(err, graph->n_lanes * sizeof *free_at, "checking a timeline");
  hk_status status = check_lane_order(graph, timeline, order, free_at, err);
  free(free_at);
  return status;
}

static hk_status check_layers(const hk_graph *graph, const hk_chrome_layer *layers, size_t n,
                              int32_t *orders, hk_error *err) {
  for (size_t i = 0; i < n; i++) {
    hk_status status = check_timeline(graph, layers[i].timeline, orders + i * graph->n_ops, err);
    if (status != HK_OK) return n > 1 ? hk_fail_prefix(err, "%s", layers[i].name) : status;
  }
  return HK_OK;
}

hk_status hk_chrome_write_layers(const hk_graph *graph, const hk_chrome_layer *layers, size_t n,
                                 const char *title, const char *path, hk_error *err) {
  const size_t bytes = (n * graph->n_ops + 1) * sizeof(int32_t);
  int32_t *orders = malloc(bytes);
  if (!orders) return hk_fail_memory(err, bytes, "a trace");
  hk_outfile *file = NULL;
  hk_status status = check_layers(graph, layers, n, orders, err);
  if (status == HK_OK) status = hk_outfile_open(path, &file, err);
  if (status == HK_OK) {
    hk_trace trace = {.graph = graph,
                      .layers = layers,
                      .n_layers = (int)n,
                      .orders = orders,
                      .stream = hk_outfile_stream(file),
                      .separator = "",
                      .ranks = count_ranks(graph)};
    write_trace(&trace, title);
    status = hk_outfile_close(file, err);
  }
  free(orders);
  return status;
}

hk_status hk_chrome_write(const hk_graph *graph, const hk_timeline *timeline, const char *title,
                          const char *path, hk_error *err) {
  const hk_chrome_layer layer = {"", timeline};
  return hk_chrome_write_layers(graph, &layer, 1, title, path, err);
}
