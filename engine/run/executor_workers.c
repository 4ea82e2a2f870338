/* SPDX-License-Identifier: Apache-2.0 */
/* The executor's threads: waiting for dependencies, doing or queueing operations, and waking those
 * who wait for an operation. Progress is signalled to exactly the workers that wait for it. The CPU
 * team's worker signals only after its next operation has started (or before it sleeps itself),
 * because waking a thread costs a system call of some microseconds during which the team would be
 * idle. */
#include "engine/device/topology.h"
#include "engine/run/executor_private.h"

/* -- Progress ---------------------------------------------------------------------------------- */

/* The progress of an operation at which operations of picking lanes may depend on it: a device
 * operation's stream can be waited for as soon as it is queued. */
static hk_exec_progress progress_to_depend_on(const hk_executor *x, int32_t op) {
  const hk_exec_lane *l = hk_exec_lane_of(x, op);
  return l->on_cpu || l->external ? HK_EXEC_DONE : HK_EXEC_QUEUED;
}

void hk_exec_meet_dependency(hk_executor *x, int32_t op, const hk_exec_worker *by) {
  if (--x->n_unmet[op] > 0) return;
  hk_exec_worker *w = hk_exec_lane_of(x, op)->worker;
  hk_picker_push(&w->ready, x->graph, op);
  if (w == by) return;
  if (by != NULL && by->to_wake != NULL) {
    by->to_wake[w - x->workers] = true;
  } else {
    pthread_cond_signal(&w->wake);
  }
}

/* Meets one dependency of each operation of a picking lane that depends on `op`. The gate is one
 * more dependency of operations that could pass it, when the run holds them. Under `mutex`. */
static void release_dependents(hk_executor *x, int32_t op, hk_exec_progress to,
                               const hk_exec_worker *by) {
  if (x->dependents_begin == NULL || to != progress_to_depend_on(x, op)) return;
  for (int32_t i = x->dependents_begin[op]; i < x->dependents_begin[op + 1]; i++)
    hk_exec_meet_dependency(x, x->dependents[i], by);
  if (op != x->gate || !x->hold) return;
  for (size_t i = 0; i < x->graph->n_ops; i++) {
    if (x->may_pass_gate[i]) hk_exec_meet_dependency(x, (int32_t)i, by);
  }
}

void hk_exec_set_progress(hk_executor *x, hk_exec_worker *by, int32_t op, hk_exec_progress to) {
  pthread_mutex_lock(&x->mutex);
  x->progress[op] = to;
  release_dependents(x, op, to, by);
  if (x->n_waiting > 0) pthread_cond_broadcast(&x->progressed);
  for (size_t i = 0; i < x->n_workers; i++) {
    hk_exec_worker *other = &x->workers[i];
    if (other->awaited_op != op || other->awaited_progress > to) continue;
    if (by != NULL && by->to_wake != NULL) {
      by->to_wake[i] = true;
    } else {
      pthread_cond_signal(&other->wake);
    }
  }
  pthread_mutex_unlock(&x->mutex);
}

static void set_progress(hk_exec_worker *w, int32_t op, hk_exec_progress to) {
  hk_exec_set_progress(w->executor, w, op, to);
}

/* Wakes the workers noted in to_wake. Called by the worker's own thread. */
static void send_wakes(hk_exec_worker *w) {
  hk_executor *x = w->executor;
  for (size_t i = 0; w->to_wake != NULL && i < x->n_workers; i++) {
    if (w->to_wake[i]) pthread_cond_signal(&x->workers[i].wake);
    w->to_wake[i] = false;
  }
}

void hk_executor_begun(hk_executor *executor) {
  hk_exec_worker *team = executor->team;
  if (team != NULL && pthread_equal(team->thread, pthread_self())) send_wakes(team);
}

/* Whether the run must start no further operation. Under `mutex`. */
static bool stopped(const hk_executor *x) {
  return x->failure.status != HK_OK || x->cancelled;
}

static bool run_is_stopped(hk_executor *x) {
  pthread_mutex_lock(&x->mutex);
  const bool yes = stopped(x);
  pthread_mutex_unlock(&x->mutex);
  return yes;
}

/* Waits until `op` has reached the progress `least`; false: the run was stopped before. */
static bool wait_for(hk_exec_worker *w, int32_t op, hk_exec_progress least) {
  hk_executor *x = w->executor;
  pthread_mutex_lock(&x->mutex);
  w->awaited_op = op;
  w->awaited_progress = least;
  while (x->progress[op] < least && !stopped(x)) {
    send_wakes(w);
    pthread_cond_wait(&w->wake, &x->mutex);
  }
  w->awaited_op = -1;
  const bool reached = x->progress[op] >= least;
  pthread_mutex_unlock(&x->mutex);
  return reached;
}

/* Keeps the first failure of the run and wakes every worker and waiting caller. */
static void fail(hk_executor *x, int32_t op, const hk_error *err) {
  char label[64];
  hk_op_label(x->graph, op, label, sizeof label);
  pthread_mutex_lock(&x->mutex);
  if (x->failure.status == HK_OK) {
    x->failure = *err;
    hk_fail_prefix(&x->failure, "%s on lane %s", label,
                   x->graph->lanes[x->graph->ops[op].lane].name);
  }
  for (size_t i = 0; i < x->n_workers; i++) pthread_cond_signal(&x->workers[i].wake);
  pthread_cond_broadcast(&x->progressed);
  pthread_mutex_unlock(&x->mutex);
}

/* -- One operation ----------------------------------------------------------------------------- */

/* Waits until operation `id` of this worker may run or be queued. CPU operations are waited for by
 * the thread; a stream waits for device operations by their end events. False: the run was stopped.
 */
static bool await_dependencies(hk_exec_worker *w, int32_t id, hk_error *err) {
  hk_executor *x = w->executor;
  const hk_op *op = &x->graph->ops[id];
  const hk_exec_lane *own = hk_exec_lane_of(x, id);
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    const int32_t before = x->graph->deps[d];
    const hk_exec_lane *other = hk_exec_lane_of(x, before);
    if (other == own) continue;
    const bool awaits_end = other->on_cpu || (other->external && own->on_cpu);
    if (other->worker != w && !wait_for(w, before, awaits_end ? HK_EXEC_DONE : HK_EXEC_QUEUED))
      return false;
    if (awaits_end) continue;
    send_wakes(w);
    const hk_backend_ops *ops = x->backend->ops;
    const hk_status status = own->on_cpu ? ops->event_sync(x->end[before], err)
                                         : ops->wait(own->stream, x->end[before], err);
    if (status != HK_OK) {
      fail(x, id, err);
      return false;
    }
  }
  return true;
}

/* Called before a lane's next operation is queued: keeps the lane at most `most` operations ahead
 * of the device. CUDA accepts a limited number of commands a stream; queueing one more blocks the
 * calling thread and every other thread that queues. The thread waits once for every half of `most`
 * operations, while the other half keeps the device busy. An operation is about four commands; an
 * update of a mapped piece with many slabs is more, but it also runs longer. */
static hk_status wait_for_room(const hk_executor *x, const hk_exec_lane *l, hk_error *err) {
  const int32_t half = l->most / 2;
  if (l->queued < l->most || l->queued % half != 0) return HK_OK;
  /* A picking lane starts operations in its own order, which its worker writes into `ops`. */
  const int32_t *order = l->worker->picks ? l->worker->ops : l->ops;
  return x->backend->ops->event_sync(x->end[order[l->queued - half]], err);
}

static hk_status queue_on_stream(hk_executor *x, int32_t id, hk_error *err) {
  const hk_backend_ops *ops = x->backend->ops;
  hk_exec_lane *l = hk_exec_lane_of(x, id);
  if (!l->worker->picks) HK_TRY(wait_for_room(x, l, err)); /* wait_to_pick has waited */
  l->queued++;
  if (x->timed) HK_TRY(ops->record(l->stream, x->start[id], err));
  HK_TRY(x->actions.run(x->actions.arg, id, l->stream, err));
  return ops->record(l->stream, x->end[id], err);
}

static hk_status do_on_cpu(hk_executor *x, int32_t id, hk_error *err) {
  if (x->timed) x->cpu_start[id] = hk_now();
  HK_TRY(x->actions.run(x->actions.arg, id, NULL, err));
  if (x->timed) x->cpu_end[id] = hk_now();
  return HK_OK;
}

/* Runs one CPU operation, or queues one device operation; false: the run was stopped. */
static bool do_one(hk_exec_worker *w, int32_t id) {
  hk_executor *x = w->executor;
  hk_error err = {0};
  if (!await_dependencies(w, id, &err)) return false;
  const hk_status status = w->on_cpu ? do_on_cpu(x, id, &err) : queue_on_stream(x, id, &err);
  if (status != HK_OK) {
    fail(x, id, &err);
    return false;
  }
  set_progress(w, id, w->on_cpu ? HK_EXEC_DONE : HK_EXEC_QUEUED);
  return true;
}

/* Whether the next ready operation belongs to the subgroup of operation `last`. After a failure in
 * another lane a CPU lane still runs such operations, so that it leaves no subgroup half updated.
 */
static bool continues_subgroup(const hk_exec_worker *w, int32_t last) {
  const hk_op *ops = w->executor->graph->ops;
  const int32_t next = hk_picker_peek(&w->ready);
  return w->on_cpu && !w->executor->cancelled && last >= 0 && next >= 0 &&
         ops[next].subgroup >= 0 && ops[next].subgroup == ops[last].subgroup;
}

/* Waits for a ready operation and takes the one to start first. `last`: the operation before it, or
 * -1. Returns -1 when the run was stopped. */
static int32_t pick(hk_exec_worker *w, int32_t last) {
  hk_executor *x = w->executor;
  pthread_mutex_lock(&x->mutex);
  while (hk_picker_peek(&w->ready) < 0 && !stopped(x)) {
    send_wakes(w);
    pthread_cond_wait(&w->wake, &x->mutex);
  }
  const bool over = stopped(x) && !continues_subgroup(w, last);
  const int32_t id = over ? -1 : hk_picker_pop(&w->ready, x->graph);
  pthread_mutex_unlock(&x->mutex);
  return id;
}

/* Waits for room before the next operation is picked, so that none that becomes ready meanwhile is
 * passed over. `last`: the operation before it, or -1. */
static bool wait_to_pick(hk_exec_worker *w, int32_t last) {
  hk_executor *x = w->executor;
  hk_error err = {0};
  if (w->on_cpu || last < 0 || wait_for_room(x, hk_exec_lane_of(x, last), &err) == HK_OK)
    return true;
  fail(x, last, &err);
  return false;
}

static void pick_all(hk_exec_worker *w) {
  for (int32_t i = 0, last = -1; i < w->n; i++) {
    if (!wait_to_pick(w, last)) return;
    const int32_t id = pick(w, last);
    if (id < 0) return;
    last = w->ops[i] = id;
    if (!do_one(w, id)) return;
  }
}

/* Waits for the end of each operation that the caller queues on an external device lane and marks
 * it as done, so that CPU workers that depend on it need not query the device. The operations of a
 * lane end in the order of queueing. */
static void watch_all(hk_exec_worker *w) {
  hk_executor *x = w->executor;
  for (int32_t i = 0; i < w->n; i++) {
    pthread_mutex_lock(&x->mutex);
    while (w->n_issued <= i && !stopped(x)) pthread_cond_wait(&w->wake, &x->mutex);
    const bool issued = w->n_issued > i && !stopped(x);
    const int32_t id = w->ops[i];
    pthread_mutex_unlock(&x->mutex);
    if (!issued) return;
    hk_error err = {0};
    if (x->backend->ops->event_sync(x->end[id], &err) != HK_OK) {
      fail(x, id, &err);
      return;
    }
    set_progress(w, id, HK_EXEC_DONE);
  }
}

static void do_in_order(hk_exec_worker *w) {
  hk_executor *x = w->executor;
  const hk_graph *graph = x->graph;
  for (int32_t i = 0; i < w->n; i++) {
    const int32_t id = w->ops[i];
    /* After a failure in another lane a CPU lane completes the subgroup that it has begun. */
    const bool same_subgroup = w->on_cpu && i > 0 && graph->ops[id].subgroup >= 0 &&
                               graph->ops[id].subgroup == graph->ops[w->ops[i - 1]].subgroup;
    if (!same_subgroup && run_is_stopped(x)) return;
    if (!do_one(w, id)) return;
  }
}

static void do_all(hk_exec_worker *w) {
  if (w->watches_external) {
    watch_all(w);
  } else if (w->picks) {
    pick_all(w);
  } else {
    do_in_order(w);
  }
}

/* Waits until the device has finished what this worker queued; a failure of it fails the run. */
static void drain(hk_exec_worker *w) {
  hk_executor *x = w->executor;
  for (size_t i = 0; i < x->graph->n_lanes; i++) {
    hk_exec_lane *l = &x->lanes[i];
    hk_error err = {0};
    if (l->worker != w || l->on_cpu || l->n == 0) continue;
    l->queued = 0;
    if (x->backend->ops->stream_sync(l->stream, &err) != HK_OK) fail(x, l->ops[l->n - 1], &err);
  }
}

void *hk_exec_worker_main(void *arg) {
  hk_exec_worker *w = arg;
  hk_executor *x = w->executor;
  if (!w->on_cpu) {
    hk_thread_prompt();
  } else if (x->actions.join != NULL) {
    x->actions.join(x->actions.arg, w->kind);
  }
  uint64_t seen = 0;
  for (;;) {
    pthread_mutex_lock(&x->mutex);
    while (x->run_number == seen && !x->closing) pthread_cond_wait(&x->run_begins, &x->mutex);
    seen = x->run_number;
    const bool closing = x->closing;
    pthread_mutex_unlock(&x->mutex);
    if (closing) return NULL;
    do_all(w);
    send_wakes(w);
    drain(w);
    pthread_mutex_lock(&x->mutex);
    if (--x->n_running == 0) {
      x->ended_at = hk_now();
      pthread_cond_signal(&x->run_over);
      pthread_cond_broadcast(&x->progressed);
    }
    pthread_mutex_unlock(&x->mutex);
  }
}
