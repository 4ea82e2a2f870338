/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of the executor: starting, external operations, waiting, ending, and reading times. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/run/executor_private.h"

/* -- Times ------------------------------------------------------------------------------------- */

/* Writes the recorded times of all operations into the timeline, in ns from `begin`. The device's
 * and the host's clock agree to a few microseconds only, so an operation may seem to start before
 * its dependencies ended; then its start, and if necessary its end, moves to that time. */
static hk_status fill_spans(hk_executor *x, hk_ns begin, hk_timeline *timeline, hk_error *err) {
  const hk_graph *graph = x->graph;
  hk_ns *free_at = calloc(graph->n_lanes, sizeof *free_at);
  if (free_at == NULL) return hk_fail_memory(err, graph->n_lanes * sizeof *free_at, "a timeline");
  hk_status status = HK_OK;
  for (size_t i = 0; i < graph->n_ops && status == HK_OK; i++) {
    const hk_op *op = &graph->ops[i];
    hk_span *span = &timeline->spans[i];
    hk_ns start = x->cpu_start[i], end = x->cpu_end[i];
    const bool in_order = !graph->lanes[op->lane].picks;
    if (!hk_exec_lane_of(x, (int32_t)i)->on_cpu) {
      status = x->backend->ops->event_time(x->start[i], &start, err);
      if (status == HK_OK) status = x->backend->ops->event_time(x->end[i], &end, err);
    }
    span->ready = in_order ? free_at[op->lane] : 0;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
      span->ready = hk_max(span->ready, timeline->spans[graph->deps[d]].end);
    }
    span->start = hk_max(start - begin, span->ready);
    span->end = hk_max(end - begin, span->start);
    free_at[op->lane] = span->end;
  }
  free(free_at);
  if (status == HK_OK) hk_timeline_phases(graph, timeline);
  return status;
}

/* -- Starting a run ---------------------------------------------------------------------------- */

/* Resets the picking lanes: empties their queues, counts unmet dependencies and makes operations
 * without dependencies ready. Each count is one too high, and hk_exec_meet_dependency lowers it by
 * one and queues the operation if it is 0. Under `mutex`. */
static void reset_picking_lanes(hk_executor *x) {
  if (x->n_deps == NULL) return;
  for (size_t i = 0; i < x->n_workers; i++) {
    while (x->workers[i].picks && hk_picker_pop(&x->workers[i].ready, x->graph) >= 0) {
    }
  }
  for (size_t i = 0; i < x->graph->n_ops; i++) {
    const hk_exec_worker *w = hk_exec_lane_of(x, (int32_t)i)->worker;
    if (w == NULL || !w->picks) continue;
    x->n_unmet[i] = x->n_deps[i] + 1 + (x->hold && x->may_pass_gate[i]);
    hk_exec_meet_dependency(x, (int32_t)i, NULL);
  }
}

hk_status hk_executor_begin(hk_executor *x, bool timed, bool hold, hk_error *err) {
  hk_ns uncertainty = 0;
  /* Before anything can fail: hk_executor_done must not report operations of the last run. */
  memset(x->progress, 0, x->graph->n_ops * sizeof *x->progress);
  if (timed) HK_TRY(x->backend->ops->clock_align(x->backend, &uncertainty, err));
  pthread_mutex_lock(&x->mutex);
  x->failure = (hk_error){0};
  x->cancelled = false;
  x->n_running = x->n_workers;
  x->timed = timed;
  x->hold = hold && x->gate >= 0;
  for (size_t i = 0; i < x->n_workers; i++) x->workers[i].n_issued = 0;
  reset_picking_lanes(x);
  x->started_at = hk_now();
  x->run_number++;
  pthread_cond_broadcast(&x->run_begins);
  pthread_mutex_unlock(&x->mutex);
  return HK_OK;
}

/* -- External operations ----------------------------------------------------------------------- */

void hk_executor_done_outside(hk_executor *x, int32_t op) {
  if (x->timed) x->cpu_start[op] = x->cpu_end[op] = hk_now();
  hk_exec_set_progress(x, NULL, op, HK_EXEC_DONE);
}

hk_status hk_executor_issue(hk_executor *x, int32_t op, hk_error *err) {
  hk_exec_lane *l = hk_exec_lane_of(x, op);
  const hk_backend_ops *ops = x->backend->ops;
  if (x->timed) HK_TRY(ops->record(l->stream, x->start[op], err));
  HK_TRY(x->actions.run(x->actions.arg, op, l->stream, err));
  HK_TRY(ops->record(l->stream, x->end[op], err));
  hk_exec_set_progress(x, NULL, op, HK_EXEC_QUEUED);
  pthread_mutex_lock(&x->mutex);
  l->worker->ops[l->worker->n_issued++] = op;
  pthread_cond_signal(&l->worker->wake);
  pthread_mutex_unlock(&x->mutex);
  return HK_OK;
}

hk_stream *hk_executor_stream(const hk_executor *x, hk_lane_kind kind) {
  for (size_t i = 0; i < x->graph->n_lanes; i++) {
    if (x->graph->lanes[i].kind == kind) return x->lanes[i].stream;
  }
  return NULL;
}

/* -- Waiting ----------------------------------------------------------------------------------- */

typedef bool (*executor_condition)(const hk_executor *x, int32_t op);

static bool run_has_ended(const hk_executor *x, int32_t unused) {
  (void)unused;
  return x->n_running == 0;
}

static bool has_been_queued(const hk_executor *x, int32_t op) {
  return x->progress[op] >= (hk_exec_lane_of(x, op)->on_cpu ? HK_EXEC_DONE : HK_EXEC_QUEUED);
}

/* Whether all operations of the lane of `op` are done. */
static bool lane_is_done(const hk_executor *x, int32_t op) {
  const hk_exec_lane *l = hk_exec_lane_of(x, op);
  for (int32_t i = 0; i < l->n; i++) {
    if (x->progress[l->ops[i]] != HK_EXEC_DONE) return false;
  }
  return true;
}

/* Waits until the condition holds (*there true), the run has failed, or timeout_ms have passed (-1:
 * no limit). */
static hk_status await_condition(hk_executor *x, executor_condition holds, int32_t op,
                                 int32_t timeout_ms, bool *there, hk_error *err) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += timeout_ms % 1000 * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000L;
  }
  pthread_mutex_lock(&x->mutex);
  x->n_waiting++;
  int code = 0;
  while (!(*there = holds(x, op)) && x->failure.status == HK_OK && code != ETIMEDOUT) {
    code = timeout_ms < 0 ? pthread_cond_wait(&x->progressed, &x->mutex)
                          : pthread_cond_timedwait(&x->progressed, &x->mutex, &until);
  }
  x->n_waiting--;
  const hk_error failure = x->failure;
  pthread_mutex_unlock(&x->mutex);
  if (*there || failure.status == HK_OK) return HK_OK;
  *err = failure;
  return failure.status;
}

hk_status hk_executor_await_lane(hk_executor *x, hk_lane_kind kind, hk_error *err) {
  bool there = false;
  for (size_t i = 0; i < x->graph->n_lanes; i++) {
    if (x->graph->lanes[i].kind != kind || x->lanes[i].n == 0) continue;
    HK_TRY(await_condition(x, lane_is_done, x->lanes[i].ops[0], -1, &there, err));
  }
  return HK_OK;
}

hk_status hk_executor_await(hk_executor *x, int32_t op, int32_t timeout_ms, bool *there,
                            hk_error *err) {
  return await_condition(x, has_been_queued, op, timeout_ms, there, err);
}

hk_status hk_executor_await_all(hk_executor *x, int32_t timeout_ms, bool *there, hk_error *err) {
  HK_TRY(await_condition(x, run_has_ended, 0, timeout_ms, there, err));
  return HK_OK;
}

hk_status hk_executor_follow(hk_executor *x, int32_t op, hk_stream *stream, hk_error *err) {
  return x->backend->ops->wait(stream, x->end[op], err);
}

hk_status hk_executor_hold_back(hk_executor *x, hk_lane_kind kind, hk_event *event, hk_error *err) {
  for (size_t i = 0; i < x->graph->n_lanes; i++) {
    if (x->graph->lanes[i].kind != kind || x->lanes[i].stream == NULL) continue;
    HK_TRY(x->backend->ops->wait(x->lanes[i].stream, event, err));
  }
  return HK_OK;
}

/* -- Ending a run ------------------------------------------------------------------------------ */

/* Waits until all workers have finished the run; returns its failure. */
static hk_error await_end(hk_executor *x) {
  pthread_mutex_lock(&x->mutex);
  while (x->n_running > 0) pthread_cond_wait(&x->run_over, &x->mutex);
  const hk_error failure = x->failure;
  pthread_mutex_unlock(&x->mutex);
  return failure;
}

void hk_executor_cancel(hk_executor *x) {
  pthread_mutex_lock(&x->mutex);
  x->cancelled = true;
  for (size_t i = 0; i < x->n_workers; i++) pthread_cond_signal(&x->workers[i].wake);
  pthread_mutex_unlock(&x->mutex);
  await_end(x);
}

hk_status hk_executor_finish(hk_executor *x, hk_ns *elapsed, hk_error *err) {
  const hk_error failure = await_end(x);
  if (elapsed != NULL) *elapsed = x->ended_at - x->started_at;
  if (failure.status != HK_OK) {
    *err = failure;
  }
  return failure.status;
}

hk_status hk_executor_read_times(hk_executor *x, hk_timeline *timeline, hk_error *err) {
  return fill_spans(x, x->started_at, timeline, err);
}

hk_status hk_executor_run(hk_executor *x, hk_timeline *timeline, hk_ns *elapsed, hk_error *err) {
  HK_TRY(hk_executor_begin(x, timeline != NULL, false, err));
  HK_TRY(hk_executor_finish(x, elapsed, err));
  return timeline != NULL ? hk_executor_read_times(x, timeline, err) : HK_OK;
}

hk_ns hk_executor_begun_at(const hk_executor *executor) {
  return executor->started_at;
}

hk_ns hk_executor_ended_at(const hk_executor *executor) {
  return executor->ended_at;
}

bool hk_executor_done(hk_executor *executor, int32_t op) {
  pthread_mutex_lock(&executor->mutex);
  const bool done = executor->progress[op] == HK_EXEC_DONE;
  pthread_mutex_unlock(&executor->mutex);
  return done;
}
