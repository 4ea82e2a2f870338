/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing an executor: its lanes, workers, dependencies, events and threads. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/device/topology.h"
#include "engine/run/executor_private.h"

/* -- Lanes ------------------------------------------------------------------------------------- */

static hk_status open_list(int32_t n, int32_t **ops, hk_error *err) {
  const size_t bytes = ((size_t)n + 1) * sizeof **ops;
  *ops = malloc(bytes);
  return *ops != NULL ? HK_OK : hk_fail_memory(err, bytes, "lists of operations");
}

/* How far a device lane is queued ahead. Updates on the GPU keep the larger limit: one thread
 * queues them and copies of state in the graph's order, so copies would wait for room for the
 * updates of state that is on the GPU. */
static int32_t most_ahead(const hk_executor *x, hk_lane_kind kind) {
  return x->actions.external != 0 && kind != HK_LANE_UPDATE ? HK_MOST_BESIDE : HK_MOST_AHEAD;
}

static hk_status open_lanes(hk_executor *x, hk_error *err) {
  const hk_graph *graph = x->graph;
  x->lanes = calloc(graph->n_lanes, sizeof *x->lanes);
  if (x->lanes == NULL) return hk_fail_memory(err, graph->n_lanes * sizeof *x->lanes, "lanes");
  for (size_t i = 0; i < graph->n_ops; i++) x->lanes[graph->ops[i].lane].n++;
  for (size_t i = 0; i < graph->n_lanes; i++) {
    hk_exec_lane *l = &x->lanes[i];
    l->on_cpu = hk_lane_on_cpu(graph->lanes[i].kind);
    l->external = x->actions.external & 1u << graph->lanes[i].kind;
    l->most = most_ahead(x, graph->lanes[i].kind);
    HK_TRY(open_list(l->n, &l->ops, err));
    l->n = 0;
    /* The next forward waits for the weights that this lane uploads. */
    const bool urgent = graph->lanes[i].kind == HK_LANE_UP;
    if (!l->on_cpu) HK_TRY(x->backend->ops->stream_open(x->backend, urgent, &l->stream, err));
  }
  for (size_t i = 0; i < graph->n_ops; i++) {
    hk_exec_lane *l = &x->lanes[graph->ops[i].lane];
    l->ops[l->n++] = (int32_t)i;
  }
  return HK_OK;
}

/* -- Workers ----------------------------------------------------------------------------------- */

/* Whether the thread that queues `op` may have to sleep until another thread has acted: `op`
 * depends on the CPU team, or on a device lane marked in `alone`, whose operations are queued by
 * another worker. The HOST lane does not count: its operations come first in the graph. */
static bool waits_for_others(const hk_executor *x, const hk_op *op, const bool *alone) {
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    const int32_t other = x->graph->ops[x->graph->deps[d]].lane;
    if (other != op->lane && (x->graph->lanes[other].kind == HK_LANE_CPU || alone[other]))
      return true;
  }
  return false;
}

/* Marks in `alone` (zeros on entry) the lanes that get a worker of their own: CPU lanes, external
 * lanes, picking lanes, and device lanes that wait for another worker. A lane that is marked may be
 * awaited by a lane looked at before, so the search repeats until it marks no further lane. */
static void find_alone(const hk_executor *x, bool *alone) {
  const hk_graph *graph = x->graph;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < graph->n_ops; i++) {
      const hk_op *op = &graph->ops[i];
      if (x->lanes[op->lane].on_cpu || alone[op->lane] || !waits_for_others(x, op, alone)) continue;
      alone[op->lane] = changed = true;
    }
  }
  for (size_t i = 0; i < graph->n_lanes; i++) {
    alone[i] = alone[i] || x->lanes[i].on_cpu || x->lanes[i].external || graph->lanes[i].picks;
  }
}

/* Assigns a worker to each lane; lanes not marked in `alone` share one. External CPU lanes have no
 * worker: the caller reports their operations. */
static void appoint(hk_executor *x, const bool *alone) {
  hk_exec_worker *shared = NULL;
  for (size_t i = 0; i < x->graph->n_lanes; i++) {
    hk_exec_lane *l = &x->lanes[i];
    if (l->on_cpu && l->external) continue;
    if (alone[i] || shared == NULL) {
      hk_exec_worker *w = &x->workers[x->n_workers++];
      w->executor = x;
      w->on_cpu = l->on_cpu;
      w->kind = x->graph->lanes[i].kind;
      w->watches_external = l->external;
      w->picks = x->graph->lanes[i].picks && !l->external;
      w->awaited_op = -1;
      pthread_cond_init(&w->wake, NULL);
      if (!alone[i]) shared = w;
      l->worker = w;
    } else {
      l->worker = shared;
    }
    l->worker->n += l->n;
  }
}

static hk_status open_workers(hk_executor *x, hk_error *err) {
  const size_t lanes = x->graph->n_lanes;
  x->workers = calloc(lanes, sizeof *x->workers);
  bool *alone = calloc(lanes, sizeof *alone);
  if (x->workers != NULL && alone != NULL) {
    find_alone(x, alone);
    appoint(x, alone);
  }
  const bool there = x->workers != NULL && alone != NULL;
  free(alone);
  if (!there) return hk_fail_memory(err, lanes * sizeof *x->workers, "the executor's threads");
  for (size_t i = 0; i < x->n_workers; i++) {
    hk_exec_worker *w = &x->workers[i];
    HK_TRY(open_list(w->n, &w->ops, err));
    w->n = 0;
    if (w->kind != HK_LANE_CPU) continue;
    w->to_wake = calloc(x->n_workers, sizeof *w->to_wake);
    if (w->to_wake == NULL) return hk_fail_memory(err, x->n_workers, "the list of threads to wake");
    x->team = w;
  }
  for (size_t i = 0; i < x->graph->n_ops; i++) {
    hk_exec_worker *w = hk_exec_lane_of(x, (int32_t)i)->worker;
    if (w != NULL) w->ops[w->n++] = (int32_t)i;
  }
  for (size_t i = 0; i < lanes; i++) {
    hk_exec_worker *w = x->lanes[i].worker;
    if (w != NULL && w->picks) {
      HK_TRY(hk_picker_open(&w->ready, x->graph, (int32_t)i, err));
    }
  }
  return HK_OK;
}

/* -- Dependencies of picking lanes ------------------------------------------------------------- */

/* Counts the dependencies of each operation of a picking lane, and lists the dependents of each
 * operation: those at dependents[dependents_begin[op]] .. dependents[dependents_begin[op + 1] - 1].
 * Counting uses dependents_begin[op + 2]; filling then advances dependents_begin[op + 1]. */
static hk_status open_dependents(hk_executor *x, hk_error *err) {
  const hk_graph *graph = x->graph;
  const size_t n = graph->n_ops;
  x->gate = -1;
  bool any = false;
  for (size_t i = 0; i < graph->n_lanes; i++) {
    any = any || (x->lanes[i].worker != NULL && x->lanes[i].worker->picks);
    if (x->lanes[i].on_cpu && x->lanes[i].external && x->lanes[i].n > 0) {
      x->gate = x->lanes[i].ops[x->lanes[i].n - 1];
    }
  }
  if (!any) return HK_OK;
  x->n_deps = calloc(n, sizeof *x->n_deps);
  x->n_unmet = calloc(n, sizeof *x->n_unmet);
  x->may_pass_gate = calloc(n, sizeof *x->may_pass_gate);
  x->dependents_begin = calloc(n + 2, sizeof *x->dependents_begin);
  x->dependents = calloc(graph->n_deps + 1, sizeof *x->dependents);
  if (x->n_deps == NULL || x->n_unmet == NULL || x->may_pass_gate == NULL ||
      x->dependents_begin == NULL || x->dependents == NULL) {
    return hk_fail_memory(err, n * sizeof *x->dependents, "the operations' dependencies");
  }
  for (int pass = 0; pass < 2; pass++) { /* counts, then fills */
    for (size_t i = 0; i < n; i++) {
      const hk_op *op = &graph->ops[i];
      const hk_exec_worker *w = hk_exec_lane_of(x, (int32_t)i)->worker;
      if (w == NULL || !w->picks) continue;
      x->n_deps[i] = op->deps_end - op->deps_begin;
      x->may_pass_gate[i] = true;
      for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
        const int32_t before = graph->deps[d];
        if (before == x->gate) x->may_pass_gate[i] = false;
        if (pass == 0) {
          x->dependents_begin[before + 2]++;
        } else {
          x->dependents[x->dependents_begin[before + 1]++] = (int32_t)i;
        }
      }
    }
    for (size_t i = 2; pass == 0 && i < n + 2; i++)
      x->dependents_begin[i] += x->dependents_begin[i - 1];
  }
  return HK_OK;
}

/* -- Events ------------------------------------------------------------------------------------ */

/* Marks in `awaited` (zeros on entry) the operations whose end events threads wait for:
 * dependencies of CPU operations, operations of external lanes, and those that limit how far a lane
 * is queued ahead (wait_for_room in executor_workers.c). Only these events are opened as awaited,
 * because on CUDA each such event interrupts a CPU. */
static void find_awaited(const hk_executor *x, bool *awaited) {
  const hk_graph *graph = x->graph;
  for (size_t l = 0; l < graph->n_lanes; l++) {
    const hk_exec_lane *own = &x->lanes[l];
    if (own->on_cpu) continue;
    /* The order of a picking lane is known only when it runs: any of its operations may be awaited.
     */
    const int32_t step = own->external || graph->lanes[l].picks ? 1 : own->most / 2;
    for (int32_t i = 0; i < own->n; i += step) {
      awaited[own->ops[i]] = true;
    }
  }
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    const hk_exec_lane *own = hk_exec_lane_of(x, (int32_t)i);
    if (!own->on_cpu) continue;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) awaited[graph->deps[d]] = true;
  }
}

static hk_status open_events(hk_executor *x, hk_error *err) {
  const size_t n = x->graph->n_ops;
  x->progress = calloc(n, sizeof *x->progress);
  x->start = calloc(n, sizeof(hk_event *));
  x->end = calloc(n, sizeof(hk_event *));
  x->cpu_start = calloc(n, sizeof *x->cpu_start);
  x->cpu_end = calloc(n, sizeof *x->cpu_end);
  bool *awaited = calloc(n + 1, sizeof *awaited);
  if (x->progress == NULL || x->start == NULL || x->end == NULL || x->cpu_start == NULL ||
      x->cpu_end == NULL || awaited == NULL) {
    free(awaited);
    return hk_fail_memory(err, n * sizeof(hk_event *), "the operations' events");
  }
  find_awaited(x, awaited);
  hk_status status = HK_OK;
  for (size_t i = 0; i < n && status == HK_OK; i++) {
    if (hk_exec_lane_of(x, (int32_t)i)->on_cpu) continue;
    status = x->backend->ops->event_open(x->backend, false, &x->start[i], err);
    if (status == HK_OK)
      status = x->backend->ops->event_open(x->backend, awaited[i], &x->end[i], err);
  }
  free(awaited);
  return status;
}

/* -- Opening and closing ----------------------------------------------------------------------- */

static hk_status start_threads(hk_executor *x, hk_error *err) {
  for (size_t i = 0; i < x->n_workers; i++) {
    hk_exec_worker *w = &x->workers[i];
    /* CPU -1: any CPU of the process, even when the opening thread itself is pinned. */
    const hk_executor_actions *a = &x->actions;
    const int cpu = !w->on_cpu && a->n_cpus > 0 ? a->cpus[i % (size_t)a->n_cpus] : -1;
    const int number = hk_thread_start_or_anywhere(&w->thread, cpu, hk_exec_worker_main, w);
    if (number != 0) {
      return hk_fail(err, HK_ENVIRONMENT, "cannot start the thread of lane %s: %s",
                     hk_lane_kind_name(w->kind), strerror(number));
    }
    w->started = true;
  }
  return HK_OK;
}

hk_status hk_executor_open(const hk_graph *graph, hk_backend *backend,
                           const hk_executor_actions *actions, hk_executor **executor,
                           hk_error *err) {
  hk_executor *x = calloc(1, sizeof *x);
  if (x == NULL) return hk_fail_memory(err, sizeof *x, "the executor");
  x->graph = graph;
  x->backend = backend;
  x->actions = *actions;
  pthread_mutex_init(&x->mutex, NULL);
  pthread_cond_init(&x->run_begins, NULL);
  pthread_cond_init(&x->run_over, NULL);
  /* Timed waits must not depend on the wall clock, which may be set while they last. */
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&x->progressed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  hk_status status = open_lanes(x, err);
  if (status == HK_OK) status = open_workers(x, err);
  if (status == HK_OK) status = open_dependents(x, err);
  if (status == HK_OK) status = open_events(x, err);
  if (status == HK_OK) status = start_threads(x, err);
  if (status != HK_OK) {
    hk_executor_close(x);
    return status;
  }
  x->actions.cpus = NULL; /* the caller's array; used by start_threads only */
  *executor = x;
  return HK_OK;
}

void hk_executor_close(hk_executor *x) {
  if (x == NULL) return;
  const hk_backend_ops *ops = x->backend->ops;
  pthread_mutex_lock(&x->mutex);
  x->closing = true;
  pthread_cond_broadcast(&x->run_begins);
  pthread_mutex_unlock(&x->mutex);
  for (size_t i = 0; i < x->n_workers; i++) {
    hk_exec_worker *w = &x->workers[i];
    if (w->started) pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    hk_picker_close(&w->ready);
    free(w->ops);
    free(w->to_wake);
  }
  for (size_t i = 0; x->lanes != NULL && i < x->graph->n_lanes; i++) {
    if (x->lanes[i].stream != NULL) ops->stream_close(x->lanes[i].stream);
    free(x->lanes[i].ops);
  }
  for (size_t i = 0; i < x->graph->n_ops; i++) {
    if (x->start != NULL && x->start[i] != NULL) ops->event_close(x->start[i]);
    if (x->end != NULL && x->end[i] != NULL) ops->event_close(x->end[i]);
  }
  free(x->workers);
  free(x->lanes);
  free(x->progress);
  free(x->n_deps);
  free(x->n_unmet);
  free(x->may_pass_gate);
  free(x->dependents_begin);
  free(x->dependents);
  free(x->start);
  free(x->end);
  free(x->cpu_start);
  free(x->cpu_end);
  pthread_cond_destroy(&x->progressed);
  pthread_cond_destroy(&x->run_over);
  pthread_cond_destroy(&x->run_begins);
  pthread_mutex_destroy(&x->mutex);
  free(x);
}
