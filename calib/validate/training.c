/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Compares a recorded training iteration with its prediction. */
#include "calib/validate/training.h"

#include <stdlib.h>
#include <string.h>

#include "calib/probes/statistics.h"
#include "calib/validate/recording.h"
#include "calib/validate/validate.h"
#include "sim/forecast.h"
#include "sim/held.h"

typedef struct {
  hk_training_validation *out;
  const hk_machine *machine;
  hk_recorded recorded;
  hk_forecast forecast;
  hk_graph *whole;        /* of the forecast */
  size_t first;           /* its first operation that can run in the compared iteration */
  hk_span *found;         /* [operation of `whole`] as recorded; end < start: not recorded */
  int32_t *place;         /* [operation of `whole`] its number in the comparison; -1: none */
  hk_ns begin[2], end[2]; /* of the iteration: predicted, recorded */
} session;

/* -- Predicting -------------------------------------------------------------------------------- */

static bool has_block_times(const hk_model *model) {
  for (int64_t b = 0; model->blocks != NULL && b < model->layers + 2; b++) {
    const hk_block *block = &model->blocks[b];
    if (block->forward_ms > 0 || block->backward_ms > 0) return true;
    if (block->forward_launch_ms > 0 || block->backward_launch_ms > 0) return true;
  }
  return false;
}

/* Makes the block times those of the plan's job, whatever batch the model was described for. */
static void time_this_job(hk_training_validation *v) {
  v->plan.model.micro_batch = v->plan.job.micro_batch;
  v->plan.model.seq = v->plan.job.seq;
}

/* Uses the block times of another description of the plan's model. */
static hk_status take_block_times(const hk_model *from, hk_model *to, hk_error *err) {
  if (!has_block_times(from))
    return hk_fail(err, HK_INPUT, "%s has no block times: hocket.profile measures them",
                   from->name);
  if (to->blocks == NULL || to->layers != from->layers || to->parameters != from->parameters)
    return hk_fail(err, HK_INPUT,
                   "%s has %lld blocks and %lld parameters, the plan's model %lld and %lld",
                   from->name, (long long)from->layers + 2, (long long)from->parameters,
                   (long long)to->layers + 2, (long long)to->parameters);
  for (int64_t b = 0; b < to->layers + 2; b++) {
    to->blocks[b].forward_ms = from->blocks[b].forward_ms;
    to->blocks[b].backward_ms = from->blocks[b].backward_ms;
    to->blocks[b].forward_launch_ms = from->blocks[b].forward_launch_ms;
    to->blocks[b].backward_launch_ms = from->blocks[b].backward_launch_ms;
  }
  return HK_OK;
}

/* Chooses the times of blocks: those of `measured`, else the plan's, else the recorded ones, which
 * include the slowdown by the update beside them. */
static hk_status set_block_times(session *s, const hk_model *measured, hk_error *err) {
  hk_model *model = &s->out->plan.model;
  s->out->block_times = HK_BLOCKS_OF_MODEL;
  if (measured != NULL) {
    time_this_job(s->out);
    return take_block_times(measured, model, err);
  }
  s->out->block_times = HK_BLOCKS_OF_PLAN;
  if (has_block_times(model)) return HK_OK;
  if (model->blocks == NULL) return HK_OK; /* a shape: FLOPs are known */
  s->out->block_times = HK_BLOCKS_RECORDED;
  time_this_job(s->out);
  for (int32_t b = 0; b < (int32_t)model->layers + 2; b++) {
    HK_TRY(hk_recorded_block_ms(&s->recorded, HK_OP_FORWARD, b, &model->blocks[b].forward_ms, err));
    HK_TRY(
        hk_recorded_block_ms(&s->recorded, HK_OP_BACKWARD, b, &model->blocks[b].backward_ms, err));
  }
  return HK_OK;
}

static hk_status predict(session *s, hk_error *err) {
  hk_plan plan = {0};
  const hk_sim_options options = {0};
  HK_TRY(hk_plan_copy(&s->out->plan, &plan, err));
  const hk_status status = hk_forecast_make(&plan, s->machine, &options, &s->forecast, err);
  hk_plan_free(&plan);
  s->whole = &s->forecast.graph;
  const size_t n = (size_t)hk_max(1, s->whole->iterations);
  s->first = n > 1 ? s->whole->n_ops / n * (n - 2) : 0;
  return status;
}

/* -- Joining ----------------------------------------------------------------------------------- */

static bool is_overlapped(const session *s) {
  return s->out->plan.overlap != HK_OVERLAP_NONE;
}

/* Number of the recorded step with which operation `op` of the whole graph is compared. */
static int64_t step_of(const session *s, size_t op) {
  const int64_t last = hk_max(1, s->whole->iterations) - 1;
  return s->out->step - (last - hk_op_iteration(s->whole, (int32_t)op));
}

/* Whether an operation of the whole graph is one of this rank. Ranks that do the same are one. */
static bool is_mine(const session *s, size_t op) {
  return s->whole->ops[op].rank == (s->whole->ranks > 1 ? s->out->rank : 0);
}

static hk_status join(session *s, hk_error *err) {
  const size_t n = s->whole->n_ops;
  s->found = malloc((n + 1) * sizeof *s->found);
  s->place = malloc((n + 1) * sizeof *s->place);
  s->out->origin = malloc((n + 1) * sizeof *s->out->origin);
  if (s->found == NULL || s->place == NULL || s->out->origin == NULL)
    return hk_fail_memory(err, n * sizeof *s->found, "the recorded times");
  for (size_t i = 0; i < n; i++) {
    s->place[i] = -1;
    s->found[i] = (hk_span){.start = 0, .end = -1};
    if (i < s->first || !is_mine(s, i)) continue;
    const hk_op *op = &s->whole->ops[i];
    const hk_recorded_op *r = hk_recorded_find(&s->recorded, op, step_of(s, i));
    if (r != NULL) s->found[i] = (hk_span){.ready = r->start, .start = r->start, .end = r->end};
  }
  return HK_OK;
}

static bool is_recorded(const session *s, size_t op) {
  return s->found[op].end >= s->found[op].start;
}

/* The end of the iteration that is `back` before the compared one, in the prediction. */
static hk_ns predicted_end(const session *s, int back) {
  hk_ns end = 0;
  const int64_t step = s->out->step - back;
  for (size_t i = s->first; i < s->whole->n_ops; i++) {
    const hk_op *op = &s->whole->ops[i];
    if (step_of(s, i) != step || !is_mine(s, i)) continue;
    if (is_overlapped(s) && (op->kind != HK_OP_BACKWARD || !is_recorded(s, i))) continue;
    end = hk_max(end, s->forecast.result.timeline.spans[i].end);
  }
  return end;
}

static void find_window(session *s) {
  s->begin[0] = is_overlapped(s) ? predicted_end(s, 1) : 0;
  s->end[0] = predicted_end(s, 0);
  s->begin[1] = hk_recorded_end(&s->recorded, s->out->step - 1, is_overlapped(s));
  s->end[1] = hk_recorded_end(&s->recorded, s->out->step, is_overlapped(s));
  s->out->begin = s->begin[1], s->out->end = s->end[1];
}

/* The part of a span inside the iteration, relative to its beginning. With an overlap, operations
 * other than backward are cut 1 ns before the end, so that the critical path ends with backward. */
static hk_span inside(const session *s, int side, const hk_op *op, hk_span span) {
  const hk_ns length = s->end[side] - s->begin[side];
  const bool last = !is_overlapped(s) || op->kind == HK_OP_BACKWARD;
  const hk_ns most = hk_max(0, last ? length : length - 1);
  span.start = hk_min(hk_max(span.start - s->begin[side], 0), most);
  span.end = hk_min(hk_max(span.end - s->begin[side], 0), most);
  span.ready = hk_min(hk_max(span.ready - s->begin[side], 0), span.start);
  return span;
}

static void count_uncompared(session *s) {
  for (size_t i = s->first; i < s->whole->n_ops; i++) {
    const hk_op *op = &s->whole->ops[i];
    const hk_span span = inside(s, 0, op, s->forecast.result.timeline.spans[i]);
    if (!is_mine(s, i) || is_recorded(s, i) || span.end == span.start) continue;
    s->out->unmeasured[op->kind].n++;
    s->out->unmeasured[op->kind].time += span.end - span.start;
  }
  for (size_t r = 0; r < s->recorded.n; r++) {
    const hk_recorded_op *op = &s->recorded.ops[r];
    const hk_ns from = hk_max(op->start, s->begin[1]), to = hk_min(op->end, s->end[1]);
    if (op->joined || to <= from) continue;
    s->out->unpredicted[op->kind].n++;
    s->out->unpredicted[op->kind].time += to - from;
  }
}

/* -- The graph of what both have --------------------------------------------------------------- */

/* Adds to deps the compared operations on which `op` depends, directly or through operations that
 * are not compared. `seen`: for each operation, the last `op` whose search visited it. */
static size_t find_deps(const session *s, int32_t op, int32_t from, int32_t *deps, size_t n,
                        int32_t *seen) {
  const hk_op *o = &s->whole->ops[from];
  for (int32_t d = o->deps_begin; d < o->deps_end; d++) {
    const int32_t on = s->whole->deps[d];
    if (on < (int32_t)s->first || seen[on] == op) continue;
    seen[on] = op;
    if (s->place[on] >= 0) {
      deps[n++] = s->place[on];
    } else {
      n = find_deps(s, op, on, deps, n, seen);
    }
  }
  return n;
}

static bool is_compared(const session *s, size_t i) {
  if (!is_recorded(s, i)) return false;
  const hk_op *op = &s->whole->ops[i];
  const hk_span p = inside(s, 0, op, s->forecast.result.timeline.spans[i]);
  const hk_span m = inside(s, 1, op, s->found[i]);
  return p.end > p.start || m.end > m.start;
}

static hk_status add_op(session *s, size_t i, int32_t *deps, int32_t *seen, hk_error *err) {
  const hk_op *from = &s->whole->ops[i];
  hk_graph *graph = &s->out->graph;
  const size_t n = find_deps(s, (int32_t)i, (int32_t)i, deps, 0, seen);
  hk_op op = *from;
  op.lane = hk_graph_lane(graph, s->whole->lanes[from->lane].kind, from->rank, err);
  if (op.lane < 0) return HK_ENVIRONMENT;
  /* FSDP2 may run collectives in another order than the graph's. */
  graph->lanes[op.lane].picks =
      s->whole->lanes[from->lane].picks || s->whole->lanes[from->lane].kind == HK_LANE_NET;
  const int32_t id = hk_graph_add(graph, &op, deps, n, err);
  if (id < 0) return HK_ENVIRONMENT;
  s->place[i] = id;
  s->out->origin[id] = (int32_t)i;
  return HK_OK;
}

static hk_status build(session *s, hk_error *err) {
  hk_graph *graph = &s->out->graph;
  *graph = *s->whole;
  graph->ops = NULL, graph->deps = NULL, graph->lanes = NULL;
  graph->n_ops = graph->n_deps = graph->n_lanes = graph->capacity_ops = graph->capacity_deps = 0;
  graph->iterations = 1;
  const size_t n = s->whole->n_ops;
  int32_t *deps = malloc((n + 1) * sizeof *deps), *seen = malloc((n + 1) * sizeof *seen);
  hk_status status = deps != NULL && seen != NULL
                         ? HK_OK
                         : hk_fail_memory(err, 2 * n * sizeof *deps, "the compared graph");
  if (status == HK_OK) memset(seen, -1, (n + 1) * sizeof *seen);
  for (size_t i = s->first; i < n && status == HK_OK; i++) {
    if (is_compared(s, i)) status = add_op(s, i, deps, seen, err);
  }
  free(deps);
  free(seen);
  return status;
}

/* -- Timelines --------------------------------------------------------------------------------- */

typedef struct {
  int32_t lane, op;
  hk_ns start;
} placed;

static int by_lane_and_start(const void *left, const void *right) {
  const placed *a = left, *b = right;
  if (a->lane != b->lane) return a->lane < b->lane ? -1 : 1;
  if (a->start != b->start) return a->start < b->start ? -1 : 1;
  return a->op < b->op ? -1 : a->op > b->op;
}

/* Passes of blocks are marked by hooks, and neighbours can overlap by a few microseconds: the
 * earlier one ends where the next one begins. Collectives are marked where they are queued, on
 * several streams; they run one after the other, so the next one begins where the earlier one
 * ends. */
static hk_status part(const hk_graph *graph, hk_timeline *t, hk_error *err) {
  placed *list = malloc((graph->n_ops + 1) * sizeof *list);
  if (list == NULL) return hk_fail_memory(err, graph->n_ops * sizeof *list, "the recorded times");
  for (size_t i = 0; i < graph->n_ops; i++)
    list[i] = (placed){graph->ops[i].lane, (int32_t)i, t->spans[i].start};
  qsort(list, graph->n_ops, sizeof *list, by_lane_and_start);
  for (size_t i = 0; i + 1 < graph->n_ops; i++) {
    hk_span *span = &t->spans[list[i].op], *next = &t->spans[list[i + 1].op];
    if (list[i].lane != list[i + 1].lane) continue;
    if (graph->lanes[list[i].lane].kind == HK_LANE_NET)
      next->start = next->ready = hk_min(hk_max(next->start, span->end), next->end);
    span->end = hk_min(span->end, next->start);
  }
  free(list);
  return HK_OK;
}

static int by_span_start(const void *left, const void *right) {
  const hk_span *a = left, *b = right;
  return a->start < b->start ? -1 : a->start > b->start;
}

/* The time in which any operation of a phase runs; *gaps: the rest of the time from 0 until the
 * last of them ends. */
static hk_status cover(const hk_graph *graph, const hk_timeline *t, hk_phase phase, hk_ns *busy,
                       hk_ns *gaps, hk_error *err) {
  hk_span *spans = malloc((graph->n_ops + 1) * sizeof *spans);
  if (spans == NULL) return hk_fail_memory(err, graph->n_ops * sizeof *spans, "a phase");
  size_t n = 0;
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    const bool counts =
        phase == HK_PHASE_UPDATE
            ? op->phase == HK_PHASE_UPDATE && op->kind != HK_OP_BARRIER
            : op->kind == (phase == HK_PHASE_FORWARD ? HK_OP_FORWARD : HK_OP_BACKWARD);
    if (counts) spans[n++] = t->spans[i];
  }
  qsort(spans, n, sizeof *spans, by_span_start);
  hk_ns until = 0;
  *busy = 0;
  for (size_t i = 0; i < n; i++) {
    *busy += hk_max(0, spans[i].end - hk_max(spans[i].start, until));
    until = hk_max(until, spans[i].end);
  }
  *gaps = until - *busy;
  free(spans);
  return HK_OK;
}

/* Phases: the times in which operations of each run; with an overlap they run side by side. */
static hk_status set_phases(session *s, int side, hk_timeline *t, hk_ns *forward_wait,
                            hk_error *err) {
  t->makespan = s->end[side] - s->begin[side];
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    hk_ns gaps = 0;
    t->phase_begin[p] = 0;
    HK_TRY(cover(&s->out->graph, t, (hk_phase)p, &t->phase_end[p], &gaps, err));
    if (p == HK_PHASE_FORWARD) *forward_wait = gaps;
  }
  return HK_OK;
}

static hk_status make_timelines(session *s, hk_error *err) {
  const hk_graph *graph = &s->out->graph;
  hk_ns waits[2] = {0};
  HK_TRY(hk_timeline_init(graph, &s->out->predicted, err));
  HK_TRY(hk_timeline_init(graph, &s->out->measured, err));
  for (size_t i = 0; i < graph->n_ops; i++) {
    const int32_t from = s->out->origin[i];
    s->out->predicted.spans[i] =
        inside(s, 0, &graph->ops[i], s->forecast.result.timeline.spans[from]);
    s->out->measured.spans[i] = inside(s, 1, &graph->ops[i], s->found[from]);
  }
  HK_TRY(part(graph, &s->out->measured, err));
  HK_TRY(set_phases(s, 0, &s->out->predicted, &waits[0], err));
  HK_TRY(set_phases(s, 1, &s->out->measured, &waits[1], err));
  s->out->forward_wait = hk_pair_of(waits[0], waits[1]);
  return HK_OK;
}

/* -- Comparing --------------------------------------------------------------------------------- */

/* What operations take alone. Of one that crosses an end of the iteration, the part inside. */
static hk_status find_costs(const session *s, hk_op_cost **costs, hk_error *err) {
  const hk_graph *graph = &s->out->graph;
  HK_TRY(hk_op_costs(graph, s->machine, costs, err));
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_span *all = &s->forecast.result.timeline.spans[s->out->origin[i]];
    const hk_span *part_of = &s->out->predicted.spans[i];
    const hk_ns length = all->end - all->start;
    if (length == 0 || part_of->end - part_of->start == length) continue;
    const double share = (double)(part_of->end - part_of->start) / (double)length;
    (*costs)[i].alone = (hk_ns)((double)(*costs)[i].alone * share);
    (*costs)[i].latency = (hk_ns)((double)(*costs)[i].latency * share);
  }
  return HK_OK;
}

/* Time from when all that the operation waits for had ended until it started. `before`: the
 * operation before it on its lane, or -1. */
static hk_ns wait_of(const hk_graph *graph, const hk_timeline *t, int32_t op, int32_t before) {
  hk_ns free = before >= 0 ? t->spans[before].end : 0;
  for (int32_t d = graph->ops[op].deps_begin; d < graph->ops[op].deps_end; d++)
    free = hk_max(free, t->spans[graph->deps[d]].end);
  return hk_max(0, t->spans[op].start - free);
}

static hk_cause cause_of(const hk_kind_pair *kind) {
  hk_cause cause = HK_CAUSE_RATE;
  for (int c = 0; c < HK_CAUSE_COUNT; c++)
    if (llabs(kind->causes[c]) > llabs(kind->causes[cause])) cause = (hk_cause)c;
  return cause;
}

static hk_ns size_of(const hk_op_difference *d) {
  return llabs(d->wait.measured - d->wait.predicted) +
         llabs(d->duration.measured - d->duration.predicted);
}

/* Inserts a difference if it is among the largest. */
static void keep(hk_training_validation *v, const hk_op_difference *d) {
  size_t at = v->n_differences;
  while (at > 0 && size_of(&v->differences[at - 1]) < size_of(d)) at--;
  if (at == HK_MOST_DIFFERENCES || size_of(d) == 0) return;
  if (v->n_differences < HK_MOST_DIFFERENCES) v->n_differences++;
  for (size_t i = v->n_differences - 1; i > at; i--) v->differences[i] = v->differences[i - 1];
  v->differences[at] = *d;
}

/* before[i]: the operation before i on its lane in this timeline, or -1. */
static hk_status find_before(const hk_graph *graph, const hk_timeline *t, int32_t *before,
                             hk_error *err) {
  placed *list = malloc((graph->n_ops + 1) * sizeof *list);
  if (list == NULL) return hk_fail_memory(err, graph->n_ops * sizeof *list, "the order of lanes");
  for (size_t i = 0; i < graph->n_ops; i++)
    list[i] = (placed){graph->ops[i].lane, (int32_t)i, t->spans[i].start};
  qsort(list, graph->n_ops, sizeof *list, by_lane_and_start);
  for (size_t i = 0; i < graph->n_ops; i++)
    before[list[i].op] = i > 0 && list[i - 1].lane == list[i].lane ? list[i - 1].op : -1;
  free(list);
  return HK_OK;
}

static void find_differences(hk_training_validation *v, const int32_t *predicted,
                             const int32_t *measured) {
  for (int32_t i = 0; i < (int32_t)v->graph.n_ops; i++) {
    const hk_span *p = &v->predicted.spans[i], *m = &v->measured.spans[i];
    hk_op_difference d = {.op = i,
                          .wait = hk_pair_of(wait_of(&v->graph, &v->predicted, i, predicted[i]),
                                             wait_of(&v->graph, &v->measured, i, measured[i])),
                          .duration = hk_pair_of(p->end - p->start, m->end - m->start),
                          .cause = cause_of(&v->comparison.kinds[v->graph.ops[i].kind])};
    d.waits = llabs(d.wait.measured - d.wait.predicted) >
              llabs(d.duration.measured - d.duration.predicted);
    keep(v, &d);
  }
}

static hk_status compare(session *s, hk_error *err) {
  hk_training_validation *v = s->out;
  hk_op_cost *costs = NULL;
  HK_TRY(find_costs(s, &costs, err));
  hk_status status =
      hk_timelines_compare(&v->graph, &v->predicted, &v->measured, costs, &v->comparison, err);
  free(costs);
  const size_t bytes = (2 * v->graph.n_ops + 1) * sizeof(int32_t);
  int32_t *before = malloc(bytes);
  if (before == NULL && status == HK_OK) status = hk_fail_memory(err, bytes, "lanes");
  if (status == HK_OK) status = find_before(&v->graph, &v->predicted, before, err);
  if (status == HK_OK) status = find_before(&v->graph, &v->measured, before + v->graph.n_ops, err);
  if (status == HK_OK) find_differences(v, before, before + v->graph.n_ops);
  free(before);
  return status;
}

/* -- Validation -------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b) {
  const hk_ns x = *(const hk_ns *)a, y = *(const hk_ns *)b;
  return (x > y) - (x < y);
}

/* Finds the lengths of all iterations, and chooses the one with the median, the lower of two. */
static hk_status choose_step(session *s, hk_error *err) {
  hk_training_validation *v = s->out;
  hk_ns *sorted = malloc(v->n_periods * sizeof *sorted);
  if (sorted == NULL) return hk_fail_memory(err, v->n_periods * sizeof *sorted, "iterations");
  memcpy(sorted, v->periods, v->n_periods * sizeof *sorted);
  qsort(sorted, v->n_periods, sizeof *sorted, by_time);
  size_t i = 0;
  while (v->periods[i] != sorted[(v->n_periods - 1) / 2]) i++;
  v->step = v->steps[i];
  free(sorted);
  return HK_OK;
}

/* Whether the CPU updated anything in a step before the norm was known. */
static bool runs_ahead(const hk_recorded *recorded, int64_t step) {
  hk_ns norm = INT64_MAX, update = INT64_MAX;
  for (size_t i = 0; i < recorded->n; i++) {
    const hk_recorded_op *op = &recorded->ops[i];
    if (op->step != step) continue;
    if (op->kind == HK_OP_BARRIER) norm = op->start;
    if (op->kind == HK_OP_ADAMW_CPU) update = hk_min(update, op->start);
  }
  return update < norm;
}

/* An iteration has the update of the step before it, and what runs ahead of its own. If nothing ran
 * ahead of either norm, because clipping was expected to act, such steps are predicted. */
static void choose_steps(session *s) {
  hk_plan *plan = &s->out->plan;
  const int64_t step = s->out->step;
  const bool ahead = runs_ahead(&s->recorded, step) || runs_ahead(&s->recorded, step - 1);
  if (hk_plan_is_held(plan) && !ahead) plan->steps = HK_STEPS_HELD;
}

/* Takes plan, block times and step from the first rank. */
static hk_status follow(session *s, const hk_training_validation *first, hk_error *err) {
  hk_training_validation *v = s->out;
  hk_plan_free(&v->plan);
  HK_TRY(hk_plan_copy(&first->plan, &v->plan, err));
  v->block_times = first->block_times;
  v->step = first->step;
  for (size_t i = 0; i < v->n_periods; i++)
    if (v->steps[i] == first->step) return HK_OK;
  return hk_fail(err, HK_INPUT, "step %lld, which rank %d has recorded, is not there",
                 (long long)first->step, first->rank);
}

static hk_status validate(session *s, const cJSON *recording, const hk_training_validation *first,
                          const hk_model *measured, hk_error *err) {
  hk_training_validation *v = s->out;
  HK_TRY(hk_recorded_read(recording, &s->recorded, &v->plan, err));
  v->rank = s->recorded.rank, v->ranks = s->recorded.ranks;
  HK_TRY(hk_recorded_periods(&s->recorded, is_overlapped(s), &v->periods, &v->steps, &v->n_periods,
                             err));
  HK_TRY(first != NULL ? follow(s, first, err) : choose_step(s, err));
  if (first == NULL) {
    choose_steps(s);
    HK_TRY(set_block_times(s, measured, err));
  }
  HK_TRY(predict(s, err));
  HK_TRY(join(s, err));
  find_window(s);
  count_uncompared(s);
  HK_TRY(build(s, err));
  HK_TRY(make_timelines(s, err));
  return compare(s, err);
}

hk_status hk_validate_rank(const cJSON *recording, const hk_training_validation *first,
                           const hk_model *measured, const hk_machine *machine,
                           hk_training_validation *out, hk_error *err) {
  memset(out, 0, sizeof *out);
  session s = {.out = out, .machine = machine};
  const hk_status status = validate(&s, recording, first, measured, err);
  hk_forecast_free(&s.forecast);
  hk_recorded_free(&s.recorded);
  free(s.found);
  free(s.place);
  if (status != HK_OK) hk_training_validation_free(out);
  return status;
}

hk_status hk_validate_training(const cJSON *recording, const hk_model *measured,
                               const hk_machine *machine, hk_training_validation *out,
                               hk_error *err) {
  return hk_validate_rank(recording, NULL, measured, machine, out, err);
}

void hk_training_validation_free(hk_training_validation *v) {
  hk_timeline_comparison_free(&v->comparison);
  hk_timeline_free(&v->predicted);
  hk_timeline_free(&v->measured);
  hk_graph_free(&v->graph);
  hk_plan_free(&v->plan);
  free(v->origin);
  free(v->periods);
  free(v->steps);
  memset(v, 0, sizeof *v);
}
