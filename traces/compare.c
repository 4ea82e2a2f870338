/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The method is described in traces/compare.h. */
#include "traces/compare.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_linalg.h>
#include <gsl/gsl_statistics_double.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Weights of the priors of a, and of b and c, relative to mean squared durations. If the columns of
 * a and b are nearly parallel, the smaller weight lets b deviate first. */
#define PULL_LATENCY 1e-3
#define PULL_FACTOR  1e-4
#define PARTED       0.02 /* least difference of an operation that counts, over the makespan */
/* Two times count as equal at a gap if they differ by at most this share of the gap, and at most so
 * many ns. */
#define GAP_SHARE 0.1
#define GAP_SLACK 50000

#define CAUSE_TEXT(name, text, meaning) [HK_CAUSE_##name] = text,
static const char *const cause_names[] = {HK_CAUSES(CAUSE_TEXT)};
#define CAUSE_MEANING(name, text, meaning) [HK_CAUSE_##name] = meaning,
static const char *const cause_meanings[] = {HK_CAUSES(CAUSE_MEANING)};

const char *hk_cause_name(hk_cause cause) {
  return cause_names[cause];
}
const char *hk_cause_meaning(hk_cause cause) {
  return cause_meanings[cause];
}

typedef struct {
  const hk_graph *graph;
  const hk_timeline *predicted, *measured;
  const hk_op_cost *costs;
  int32_t *before; /* the operation before it on its lane, as measured; -1: none */
  double *scratch; /* [n_ops] */
  hk_timeline_comparison *out;
} joined;

hk_pair hk_pair_of(hk_ns predicted, hk_ns measured) {
  return (hk_pair){predicted, measured,
                   measured != 0 ? 100 * (double)(predicted - measured) / (double)measured : NAN};
}

static hk_ns duration(const hk_timeline *timeline, size_t op) {
  return timeline->spans[op].end - timeline->spans[op].start;
}

static hk_ns end_of(const hk_timeline *timeline) {
  hk_ns end = 0;
  for (size_t i = 0; i < timeline->n_spans; i++)
    if (timeline->spans[i].end > end) end = timeline->spans[i].end;
  return end;
}

/* -- Checking ---------------------------------------------------------------------------------- */

/* Fills c->before from `timeline`. Scratch: last[n_lanes], order[n_ops]. */
static hk_status link_in_order(const joined *c, const hk_timeline *timeline, int32_t *last,
                               int32_t *order, hk_error *err) {
  HK_TRY(hk_timeline_order(c->graph, timeline, order, err));
  for (size_t l = 0; l < c->graph->n_lanes; l++) last[l] = -1;
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    int32_t *before = &last[c->graph->ops[order[i]].lane];
    c->before[order[i]] = *before;
    *before = order[i];
  }
  return HK_OK;
}

static hk_status link_lanes(const joined *c, const hk_timeline *timeline, hk_error *err) {
  const size_t lanes = c->graph->n_lanes + 1, n = c->graph->n_ops + 1;
  int32_t *last = calloc(lanes, sizeof *last), *order = calloc(n, sizeof *order);
  const hk_status status =
      last != NULL && order != NULL
          ? link_in_order(c, timeline, last, order, err)
          : hk_fail_memory(err, (lanes + n) * sizeof *last, "comparing timelines");
  free(last);
  free(order);
  return status;
}

static hk_status check_one(const joined *c, const hk_timeline *timeline, const char *which,
                           hk_error *err) {
  const hk_graph *graph = c->graph;
  if (timeline->n_spans != graph->n_ops)
    return hk_fail(
        err, HK_INPUT,
        "the %s timeline has %zu operations, the graph %zu: they are not of the same plan", which,
        timeline->n_spans, graph->n_ops);
  HK_TRY(link_lanes(c, timeline, err));
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_span *span = &timeline->spans[i];
    char label[128];
    if (span->end < span->start || span->start < 0 || span->end > HK_MOST_NS)
      return hk_fail(err, HK_INPUT,
                     "the %s timeline: operation %zu (%s) runs from %" PRId64 " to %" PRId64 " ns",
                     which, i, hk_op_label(graph, (int32_t)i, label, sizeof label), span->start,
                     span->end);
    if (c->before[i] >= 0 && span->start < timeline->spans[c->before[i]].end)
      return hk_fail(err, HK_INPUT,
                     "the %s timeline: operation %zu (%s) starts at %" PRId64
                     " ns, before its lane '%s' is free at %" PRId64 " ns",
                     which, i, hk_op_label(graph, (int32_t)i, label, sizeof label), span->start,
                     graph->lanes[graph->ops[i].lane].name, timeline->spans[c->before[i]].end);
  }
  return HK_OK;
}

/* -- Phases, lanes, kinds ---------------------------------------------------------------------- */

static void compare_phases(joined *c) {
  for (int p = 0; p < HK_PHASE_COUNT; p++)
    c->out->phases[p] = hk_pair_of(c->predicted->phase_end[p] - c->predicted->phase_begin[p],
                                   c->measured->phase_end[p] - c->measured->phase_begin[p]);
}

typedef struct {
  int32_t engine, op;
  const hk_span *span;
} turn;

static int by_engine_and_end(const void *a, const void *b) {
  const turn *x = a, *y = b;
  if (x->engine != y->engine) return x->engine < y->engine ? -1 : 1;
  if (x->span->end != y->span->end) return x->span->end < y->span->end ? -1 : 1;
  return (x->op > y->op) - (x->op < y->op);
}

/* When the operation has passed the queue of its first engine: after the end of all copies that
 * entered that queue before it. */
static hk_ns first_turn(const joined *c, const hk_timeline *timeline, size_t op) {
  const hk_span *span = &timeline->spans[op];
  hk_ns until = span->start;
  if (c->before[op] < 0 || c->costs[c->before[op]].engine != c->costs[op].first) return until;
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    const hk_span *other = &timeline->spans[i];
    const bool before = other->start < span->start || (other->start == span->start && i < op);
    if (c->costs[i].engine == c->costs[op].first && before)
      until = hk_max(until, hk_min(other->end, span->end));
  }
  return until;
}

/* queued[i]: the time that operation i waited in its engine's queue, that is from its start until
 * the copy before it on the engine ended. The order of lanes at an engine is not predictable, so
 * that queued time is compared apart from busy time. */
static hk_status find_queued(const joined *c, const hk_timeline *timeline, hk_ns *queued,
                             hk_error *err) {
  const size_t n = c->graph->n_ops;
  turn *turns = malloc((n + 1) * sizeof *turns);
  if (turns == NULL) return hk_fail_memory(err, n * sizeof *turns, "comparing timelines");
  memset(queued, 0, n * sizeof *queued);
  size_t found = 0;
  for (size_t i = 0; c->costs != NULL && i < n; i++)
    if (c->costs[i].engine != 0)
      turns[found++] = (turn){c->costs[i].engine, (int32_t)i, &timeline->spans[i]};
  qsort(turns, found, sizeof *turns, by_engine_and_end);
  for (size_t i = 1; i < found; i++) {
    const hk_span *before = turns[i - 1].span, *span = turns[i].span;
    if (turns[i].engine == turns[i - 1].engine && before->end > span->start)
      queued[turns[i].op] = before->end - span->start;
  }
  for (size_t i = 0; c->costs != NULL && i < n; i++) {
    if (c->costs[i].first == 0) continue;
    const hk_ns waited = first_turn(c, timeline, i) - timeline->spans[i].start;
    queued[i] = hk_max(queued[i], waited);
  }
  free(turns);
  return HK_OK;
}

typedef struct {
  hk_ns busy, queued, first, last;
} lane_use;

static lane_use use_of(const joined *c, const hk_timeline *timeline, const hk_ns *queued,
                       int32_t lane) {
  lane_use use = {.first = INT64_MAX};
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    if (c->graph->ops[i].lane != lane) continue;
    use.busy += duration(timeline, i) - queued[i];
    use.queued += queued[i];
    if (timeline->spans[i].start < use.first) use.first = timeline->spans[i].start;
    if (timeline->spans[i].end > use.last) use.last = timeline->spans[i].end;
  }
  if (use.first == INT64_MAX) use.first = 0;
  return use;
}

static hk_ns idle_of(const lane_use *use) {
  return use->last - use->first - use->busy - use->queued;
}

static hk_status compare_lanes(joined *c, hk_error *err) {
  const size_t n = c->graph->n_ops;
  hk_ns *queued = malloc((2 * n + 1) * sizeof *queued);
  if (queued == NULL) return hk_fail_memory(err, 2 * n * sizeof *queued, "comparing timelines");
  hk_status status = find_queued(c, c->predicted, queued, err);
  if (status == HK_OK) status = find_queued(c, c->measured, queued + n, err);
  for (size_t l = 0; status == HK_OK && l < c->graph->n_lanes; l++) {
    const lane_use p = use_of(c, c->predicted, queued, (int32_t)l);
    const lane_use m = use_of(c, c->measured, queued + n, (int32_t)l);
    c->out->lanes[l].busy = hk_pair_of(p.busy, m.busy);
    c->out->lanes[l].queued = hk_pair_of(p.queued, m.queued);
    c->out->lanes[l].idle = hk_pair_of(idle_of(&p), idle_of(&m));
  }
  free(queued);
  return status;
}

static void compare_kind(joined *c, hk_op_kind kind) {
  hk_kind_pair *out = &c->out->kinds[kind];
  hk_ns p = 0, m = 0;
  size_t timed = 0;
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    if (c->graph->ops[i].kind != kind) continue;
    out->n++;
    p += duration(c->predicted, i);
    m += duration(c->measured, i);
    const double measured = (double)duration(c->measured, i);
    if (measured > 0)
      c->scratch[timed++] = 100 * fabs((double)duration(c->predicted, i) - measured) / measured;
  }
  out->total = hk_pair_of(p, m);
  out->worst_error_pct = timed > 0 ? gsl_stats_max(c->scratch, 1, timed) : NAN;
  out->median_error_pct = timed > 0 ? gsl_stats_median(c->scratch, 1, timed) : NAN;
}

/* -- The measured critical path ---------------------------------------------------------------- */

static int32_t last_to_end(const hk_timeline *timeline) {
  int32_t last = 0;
  for (size_t i = 1; i < timeline->n_spans; i++)
    if (timeline->spans[i].end > timeline->spans[last].end) last = (int32_t)i;
  return last;
}

/* The predecessor of `op` on the critical path; -1: none. */
static int32_t waited_for(const joined *c, int32_t op) {
  const hk_op *o = &c->graph->ops[op];
  int32_t found = c->before[op];
  for (int32_t d = o->deps_begin; d < o->deps_end; d++) {
    const int32_t dep = c->graph->deps[d];
    if (found < 0 || c->measured->spans[dep].end > c->measured->spans[found].end) found = dep;
  }
  return found;
}

static void find_path(joined *c) {
  hk_timeline_comparison *out = c->out;
  if (c->graph->n_ops == 0) return;
  for (int32_t op = last_to_end(c->measured); op >= 0; op = waited_for(c, op))
    out->path[out->n_path++] = op;
  for (size_t i = 0; i < out->n_path / 2; i++) {
    const int32_t swapped = out->path[i];
    out->path[i] = out->path[out->n_path - 1 - i];
    out->path[out->n_path - 1 - i] = swapped;
  }
}

/* -- Model of the durations of a kind ---------------------------------------------------------- */

typedef struct {
  double a, b, c; /* see traces/compare.h; a in ns */
} kind_model;

typedef struct {
  double latency, alone, contended, measured; /* ns */
} op_parts;

static op_parts parts_of(const joined *c, size_t op) {
  const double predicted = (double)duration(c->predicted, op);
  const hk_op_cost cost =
      c->costs != NULL ? c->costs[op] : (hk_op_cost){.alone = duration(c->predicted, op)};
  op_parts parts = {.measured = (double)duration(c->measured, op)};
  parts.latency = fmin((double)cost.latency, predicted);
  parts.alone = fmin((double)cost.alone, predicted - parts.latency);
  parts.contended = predicted - parts.latency - parts.alone;
  return parts;
}

/* Solves the normal equations of the columns from `first` on; the solution is 0 for the others. */
static void solve(double normal[3][3], double right[3], int first, double solution[3]) {
  double values[9], known[3], found[3];
  const int n = 3 - first;
  for (int i = 0; i < n; i++) {
    known[i] = right[first + i];
    for (int j = 0; j < n; j++) values[i * n + j] = normal[first + i][first + j];
  }
  gsl_matrix_view m = gsl_matrix_view_array(values, (size_t)n, (size_t)n);
  gsl_vector_view r = gsl_vector_view_array(known, (size_t)n);
  gsl_vector_view x = gsl_vector_view_array(found, (size_t)n);
  memset(solution, 0, 3 * sizeof *solution);
  /* The priors make the matrix positive definite. Otherwise the solution is 0: all is contention.
   */
  if (gsl_linalg_cholesky_decomp1(&m.matrix) != GSL_SUCCESS ||
      gsl_linalg_cholesky_solve(&m.matrix, &r.vector, &x.vector) != GSL_SUCCESS)
    return;
  for (int i = 0; i < n; i++) solution[first + i] = found[i];
}

/* The unknowns are a / unit, b - 1 and c - 1; `unit` is the mean duration. */
static kind_model fit_kind(const joined *c, hk_op_kind kind) {
  const kind_model as_predicted = {0, 1, 1};
  double unit = 0, least_latency = INFINITY, most_latency = 0, most_alone = 0;
  size_t n = 0;
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    if (c->graph->ops[i].kind != kind) continue;
    n++;
    unit += (double)(duration(c->predicted, i) + duration(c->measured, i)) / 2;
    const op_parts o = parts_of(c, i);
    least_latency = fmin(least_latency, o.latency);
    most_latency = fmax(most_latency, o.latency);
    most_alone = fmax(most_alone, o.alone);
  }
  if (n == 0 || unit <= 0) return as_predicted;
  unit /= (double)n;

  double normal[3][3] = {{0}}, right[3] = {0}, x[3];
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    if (c->graph->ops[i].kind != kind) continue;
    const op_parts o = parts_of(c, i);
    const double row[3] = {1, o.alone / unit, o.contended / unit};
    const double beyond = (o.measured - (double)duration(c->predicted, i)) / unit;
    for (int u = 0; u < 3; u++) {
      right[u] += row[u] * beyond;
      for (int v = 0; v < 3; v++) normal[u][v] += row[u] * row[v];
    }
  }
  normal[0][0] += PULL_LATENCY * (double)n;
  normal[1][1] += PULL_FACTOR * (double)n;
  normal[2][2] += PULL_FACTOR * (double)n;
  const bool rate_only = c->costs != NULL && most_latency <= 0 && most_alone > 0;
  solve(normal, right, rate_only, x);
  if (x[0] * unit < -least_latency) { /* latency + a >= 0 for every operation */
    const double held = -least_latency / unit;
    for (int u = 1; u < 3; u++) right[u] -= normal[u][0] * held;
    solve(normal, right, 1, x);
    x[0] = held;
  }
  return (kind_model){x[0] * unit, 1 + x[1], 1 + x[2]};
}

/* -- Attribution ------------------------------------------------------------------------------- */

/* Among the operations that ended when `op` started (within `slack`), the one that started first;
 * -1: none. */
static int32_t handed_over(const joined *c, int32_t op, hk_ns slack) {
  const hk_ns start = c->measured->spans[op].start;
  hk_ns first = start;
  int32_t found = -1;
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    const hk_span *span = &c->measured->spans[i];
    if (span->start >= first || span->end > start || span->end < start - slack) continue;
    first = span->start;
    found = (int32_t)i;
  }
  return found;
}

/* A chain of operations, each starting when the one before it ended, `op` the last of them, ran
 * from `begin` on. */
static bool busy_since(const joined *c, int32_t op, hk_ns begin, hk_ns slack) {
  while (op >= 0 && c->measured->spans[op].start > begin + slack) op = handed_over(c, op, slack);
  return op >= 0;
}

/* The gap before `op` ended with an operation of another lane that, alone or with a chain of
 * operations before it, was running throughout the gap: lost overlap. */
static bool overlap_was_lost(const joined *c, int32_t op, hk_ns begin, hk_ns end) {
  const hk_ns share = (hk_ns)(GAP_SHARE * (double)(end - begin));
  const hk_ns slack = share < GAP_SLACK ? share : GAP_SLACK;
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    const hk_span *span = &c->measured->spans[i];
    if (c->graph->ops[i].lane == c->graph->ops[op].lane) continue;
    if (span->end <= end && span->end >= end - slack && span->end > begin + slack &&
        busy_since(c, (int32_t)i, begin, slack))
      return true;
  }
  return false;
}

static void put_down(joined *c, int32_t op, hk_cause cause, hk_ns ns) {
  c->out->causes[cause] += ns;
  if (op >= 0) c->out->kinds[c->graph->ops[op].kind].causes[cause] += ns;
}

static void attribute_operation(joined *c, int32_t op, const kind_model *model) {
  const op_parts o = parts_of(c, (size_t)op);
  const hk_ns beyond = duration(c->measured, (size_t)op) - duration(c->predicted, (size_t)op);
  const hk_ns latency = (hk_ns)llround(model->a);
  const hk_ns rate = (hk_ns)llround((model->b - 1) * o.alone);
  put_down(c, op, HK_CAUSE_LATENCY, latency);
  put_down(c, op, HK_CAUSE_RATE, rate);
  put_down(c, op, HK_CAUSE_CONTENTION, beyond - latency - rate);
}

static void attribute(joined *c, const kind_model *models) {
  hk_timeline_comparison *out = c->out;
  hk_ns along = 0; /* sum of predicted gaps and durations on the path */
  for (size_t i = 0; i < out->n_path; i++) {
    const int32_t op = out->path[i];
    const hk_ns met = i > 0 ? c->measured->spans[out->path[i - 1]].end : 0;
    const hk_ns gap = c->measured->spans[op].start - met;
    const bool lost = gap > 0 && overlap_was_lost(c, op, met, met + gap);
    const hk_ns expected = c->predicted->spans[op].start - c->predicted->spans[op].ready;
    put_down(c, op, lost ? HK_CAUSE_DEPENDENCY : HK_CAUSE_HOST, gap - expected);
    attribute_operation(c, op, &models[c->graph->ops[op].kind]);
    along += expected + duration(c->predicted, (size_t)op);
  }
  put_down(c, -1, HK_CAUSE_DEPENDENCY, along - out->makespan.predicted);
  for (int cause = 1; cause < HK_CAUSE_COUNT; cause++)
    if (llabs(out->causes[cause]) > llabs(out->causes[out->main_cause]))
      out->main_cause = (hk_cause)cause;
}

static int32_t where_they_part(const joined *c) {
  const double most = PARTED * (double)c->out->makespan.measured;
  int32_t found = -1;
  for (size_t i = 0; i < c->graph->n_ops; i++) {
    const hk_span *p = &c->predicted->spans[i], *m = &c->measured->spans[i];
    if (fabs((double)(p->start - m->start)) <= most && fabs((double)(p->end - m->end)) <= most)
      continue;
    if (found < 0 || m->start < c->measured->spans[found].start) found = (int32_t)i;
  }
  return found;
}

/* -- All of it --------------------------------------------------------------------------------- */

static hk_status compare_all(joined *c, hk_error *err) {
  HK_TRY(check_one(c, c->predicted, "predicted", err));
  HK_TRY(check_one(c, c->measured, "measured", err));
  c->out->makespan = hk_pair_of(end_of(c->predicted), end_of(c->measured));
  compare_phases(c);
  HK_TRY(compare_lanes(c, err));
  kind_model models[HK_OP_KIND_COUNT];
  gsl_error_handler_t *const handler = gsl_set_error_handler_off();
  for (int kind = 0; kind < HK_OP_KIND_COUNT; kind++) {
    compare_kind(c, (hk_op_kind)kind);
    models[kind] = fit_kind(c, (hk_op_kind)kind);
  }
  gsl_set_error_handler(handler);
  find_path(c);
  attribute(c, models);
  c->out->parts_at = where_they_part(c);
  return HK_OK;
}

hk_status hk_timelines_compare(const hk_graph *graph, const hk_timeline *predicted,
                               const hk_timeline *measured, const hk_op_cost *costs,
                               hk_timeline_comparison *out, hk_error *err) {
  memset(out, 0, sizeof *out);
  const size_t n = graph->n_ops + 1, lanes = graph->n_lanes + 1;
  joined c = {.graph = graph,
              .predicted = predicted,
              .measured = measured,
              .costs = costs,
              .before = calloc(n, sizeof *c.before),
              .scratch = malloc(n * sizeof *c.scratch),
              .out = out};
  out->lanes = calloc(lanes, sizeof *out->lanes);
  out->n_lanes = graph->n_lanes;
  out->path = malloc(n * sizeof *out->path);
  const bool there =
      c.before != NULL && c.scratch != NULL && out->lanes != NULL && out->path != NULL;
  const hk_status status = there
                               ? compare_all(&c, err)
                               : hk_fail_memory(err, n * sizeof *c.scratch, "comparing timelines");
  free(c.before);
  free(c.scratch);
  if (status != HK_OK) hk_timeline_comparison_free(out);
  return status;
}

void hk_timeline_comparison_free(hk_timeline_comparison *comparison) {
  free(comparison->lanes);
  free(comparison->path);
  memset(comparison, 0, sizeof *comparison);
}
