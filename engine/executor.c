/* SPDX-License-Identifier: Apache-2.0 */
/* The executor: a worker, which is a thread, for every lane, but for those lanes of the device that
 * wait for nothing but each other: one worker queues all of them, in the graph's order. Where a
 * team works on every core a thread may have to wait milliseconds for one of them, and workers that
 * wait for each other would do so at every operation. Whoever ends an operation wakes the workers
 * that wait for this one and no other; the CPU team's does that when its next operation has begun,
 * or at once if it has to wait itself: it has better things to do between two of them. Only events
 * that a thread waits for are opened as such: each of them interrupts a CPU when it happens. */
#include "engine/executor.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/pick.h"
#include "engine/topology.h"

/* How far an operation has come in this run. */
typedef enum { PENDING, ISSUED, DONE } progress; /* ISSUED: queued, its end event recorded */

typedef struct worker worker;

typedef struct {
  bool on_cpu;
  bool external;     /* its operations are somebody else's */
  hk_stream *stream; /* NULL on the CPU */
  worker *worker;
  int32_t *ops; /* in order */
  int32_t n;
  int32_t queued; /* of them, in this run; of a device lane */
} lane;

struct worker {
  hk_executor *executor;
  bool on_cpu;       /* then it has one lane */
  hk_lane_kind kind; /* of its first lane */
  int32_t *ops;      /* of all its lanes, in the graph's order */
  int32_t n;
  bool picks;       /* it has one lane, which picks */
  hk_picker ready;  /* then: operations whose dependencies have been met, under `mutex` */
  bool watches;     /* it has one lane, external and of the device, and waits for what is issued */
  int32_t n_issued; /* of that lane in this run; they are in `ops`, in the order of issue */
  int32_t awaited;  /* an operation of another worker; -1: none */
  progress least;   /* how far it must come */
  bool *to_tell;    /* [worker], of the CPU team's: they wait for what has ended; else NULL */
  pthread_cond_t wake;
  pthread_t thread;
  bool started;
};

struct hk_executor {
  const hk_graph *graph;
  hk_backend *backend;
  hk_executor_actions actions;
  lane *lanes;
  worker *workers; /* [n_workers] */
  size_t n_workers;
  worker *team;               /* the one of the CPU team; NULL: the graph has none */
  progress *progress;         /* [op], under `mutex` */
  int32_t *needs;             /* [op] of lanes that pick: dependencies */
  int32_t *missing;           /* [op] of lanes that pick: those not met yet, under `mutex` */
  int32_t *next_begin;        /* [op + 1] into `next` */
  int32_t *next;              /* operations of lanes that pick which depend on one */
  int32_t gate;               /* last operation of the external CPU lane; -1: there is none */
  bool *free_of_gate;         /* [op] of lanes that pick: does not depend on the gate */
  hk_event **start;           /* [op] of device lanes, NULL on the CPU; recorded when `timed` */
  hk_event **end;             /* the same, and always recorded: others wait for them */
  hk_ns *cpu_start, *cpu_end; /* [op] of CPU lanes */

  pthread_mutex_t mutex;
  pthread_cond_t begin, over; /* of a run */
  pthread_cond_t progressed;  /* for waiters outside, of whom there are `waiting` */
  int waiting;
  bool cancelled, hold;
  hk_ns begun, ended;
  uint64_t run; /* counts runs: workers wait for the next */
  size_t busy;  /* workers that are still at this run */
  bool timed;   /* this run has a timeline to fill */
  bool closing;
  hk_error failure; /* the first one; status HK_OK: none */
};

/* -- Progress ---------------------------------------------------------------------------------- */

static lane *lane_of(const hk_executor *x, int32_t op) {
  return &x->lanes[x->graph->ops[op].lane];
}

/* How far an operation must come for those that depend on it in lanes that pick. */
static progress threshold(const hk_executor *x, int32_t op) {
  const lane *l = lane_of(x, op);
  return l->on_cpu || l->external ? DONE : ISSUED;
}

/* Under `mutex`: one dependency less of an operation of a lane that picks. */
static void meet_one(hk_executor *x, int32_t op, const worker *by) {
  if (--x->missing[op] > 0) return;
  worker *w = lane_of(x, op)->worker;
  hk_picker_push(&w->ready, x->graph, op);
  if (w == by) return;
  if (by != NULL && by->to_tell != NULL) {
    by->to_tell[w - x->workers] = true;
  } else {
    pthread_cond_signal(&w->wake);
  }
}

/* Under `mutex`: operations that may be picked now. */
static void release_dependents(hk_executor *x, int32_t op, progress to, const worker *by) {
  if (x->next_begin == NULL || to != threshold(x, op)) return;
  for (int32_t i = x->next_begin[op]; i < x->next_begin[op + 1]; i++) meet_one(x, x->next[i], by);
  if (op != x->gate || !x->hold) return;
  for (size_t i = 0; i < x->graph->n_ops; i++) {
    if (x->free_of_gate[i]) meet_one(x, (int32_t)i, by);
  }
}

/* `w`: the worker whose operation it is; NULL: somebody outside. */
static void progress_to(hk_executor *x, worker *w, int32_t op, progress to) {
  pthread_mutex_lock(&x->mutex);
  x->progress[op] = to;
  release_dependents(x, op, to, w);
  if (x->waiting > 0) pthread_cond_broadcast(&x->progressed);
  for (size_t i = 0; i < x->n_workers; i++) {
    worker *other = &x->workers[i];
    if (other->awaited != op || other->least > to) continue;
    if (w != NULL && w->to_tell != NULL) {
      w->to_tell[i] = true;
    } else {
      pthread_cond_signal(&other->wake);
    }
  }
  pthread_mutex_unlock(&x->mutex);
}

static void set_progress(worker *w, int32_t op, progress to) {
  progress_to(w->executor, w, op, to);
}

/* By the worker's own thread. */
static void tell_of_ends(worker *w) {
  hk_executor *x = w->executor;
  for (size_t i = 0; w->to_tell != NULL && i < x->n_workers; i++) {
    if (w->to_tell[i]) pthread_cond_signal(&x->workers[i].wake);
    w->to_tell[i] = false;
  }
}

void hk_executor_begun(hk_executor *executor) {
  worker *team = executor->team;
  if (team != NULL && pthread_equal(team->thread, pthread_self())) tell_of_ends(team);
}

/* Under `mutex`: whether nothing more is to be begun. */
static bool stopped(const hk_executor *x) {
  return x->failure.status != HK_OK || x->cancelled;
}

static bool failed(hk_executor *x) {
  pthread_mutex_lock(&x->mutex);
  const bool yes = stopped(x);
  pthread_mutex_unlock(&x->mutex);
  return yes;
}

/* Whether `op` came so far before anything failed. */
static bool wait_for(worker *w, int32_t op, progress least) {
  hk_executor *x = w->executor;
  pthread_mutex_lock(&x->mutex);
  w->awaited = op;
  w->least = least;
  while (x->progress[op] < least && !stopped(x)) {
    tell_of_ends(w);
    pthread_cond_wait(&w->wake, &x->mutex);
  }
  w->awaited = -1;
  const bool there = x->progress[op] >= least;
  pthread_mutex_unlock(&x->mutex);
  return there;
}

/* Keeps the first failure and lets every worker know. */
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

/* -- Work -------------------------------------------------------------------------------------- */

/* Waits until this worker's operation may be done or queued; false once something has failed. */
static bool meet_dependencies(worker *w, int32_t id, hk_error *err) {
  hk_executor *x = w->executor;
  const hk_op *op = &x->graph->ops[id];
  const lane *own = lane_of(x, id);
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    const int32_t before = x->graph->deps[d];
    const lane *other = lane_of(x, before);
    if (other == own) continue;
    const bool awaits_end = other->on_cpu || (other->external && own->on_cpu);
    if (other->worker != w && !wait_for(w, before, awaits_end ? DONE : ISSUED)) return false;
    if (awaits_end) continue;
    tell_of_ends(w);
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

/* A stream takes a bounded number of commands, with CUDA some thousand. Whoever queues one more
 * waits for room, and so does every other thread meanwhile. So no lane is further ahead than this;
 * it waits for many operations at a time, and long before the device has nothing left to do. Most
 * operations are some four commands; updates of mapped pieces of many slabs are more, but last
 * long. Before a lane's next operation is queued. */
static hk_status wait_for_room(const hk_executor *x, const lane *l, hk_error *err) {
  const int32_t half = HK_MOST_AHEAD / 2;
  if (l->queued < HK_MOST_AHEAD || l->queued % half != 0) return HK_OK;
  /* A lane that picks has its own order; its worker has no other lane and keeps it. */
  const int32_t *order = l->worker->picks ? l->worker->ops : l->ops;
  return x->backend->ops->event_sync(x->end[order[l->queued - half]], err);
}

static hk_status queue_on_stream(hk_executor *x, int32_t id, hk_error *err) {
  const hk_backend_ops *ops = x->backend->ops;
  lane *l = lane_of(x, id);
  HK_TRY(wait_for_room(x, l, err));
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

/* Does one operation or queues it; false once something has failed. */
static bool do_one(worker *w, int32_t id) {
  hk_executor *x = w->executor;
  hk_error err = {0};
  if (!meet_dependencies(w, id, &err)) return false;
  const hk_status status = w->on_cpu ? do_on_cpu(x, id, &err) : queue_on_stream(x, id, &err);
  if (status != HK_OK) {
    fail(x, id, &err);
    return false;
  }
  set_progress(w, id, w->on_cpu ? DONE : ISSUED);
  return true;
}

/* Whether the best operation goes on with the subgroup of the last one: a CPU lane does so after a
 * failure elsewhere, so that no subgroup is left half done. */
static bool goes_on(const worker *w, int32_t last) {
  const hk_op *ops = w->executor->graph->ops;
  const int32_t next = hk_picker_peek(&w->ready);
  return w->on_cpu && !w->executor->cancelled && last >= 0 && next >= 0 &&
         ops[next].subgroup >= 0 && ops[next].subgroup == ops[last].subgroup;
}

/* Waits for the best operation that may be begun after `last`; -1: nothing more is to be. */
static int32_t pick(worker *w, int32_t last) {
  hk_executor *x = w->executor;
  pthread_mutex_lock(&x->mutex);
  while (hk_picker_peek(&w->ready) < 0 && !stopped(x)) {
    tell_of_ends(w);
    pthread_cond_wait(&w->wake, &x->mutex);
  }
  const bool over = stopped(x) && !goes_on(w, last);
  const int32_t id = over ? -1 : hk_picker_pop(&w->ready, x->graph);
  pthread_mutex_unlock(&x->mutex);
  return id;
}

static void pick_all(worker *w) {
  for (int32_t i = 0, last = -1; i < w->n; i++) {
    const int32_t id = pick(w, last);
    if (id < 0) return;
    last = w->ops[i] = id;
    if (!do_one(w, id)) return;
  }
}

/* Waits for the ends of what is issued from outside, so that threads that depend on it need not ask
 * the device. A lane's operations end in the order in which they were issued. */
static void watch_all(worker *w) {
  hk_executor *x = w->executor;
  for (int32_t i = 0; i < w->n; i++) {
    pthread_mutex_lock(&x->mutex);
    while (w->n_issued <= i && !stopped(x)) pthread_cond_wait(&w->wake, &x->mutex);
    const bool there = w->n_issued > i && !stopped(x);
    const int32_t id = w->ops[i];
    pthread_mutex_unlock(&x->mutex);
    if (!there) return;
    hk_error err = {0};
    if (x->backend->ops->event_sync(x->end[id], &err) != HK_OK) {
      fail(x, id, &err);
      return;
    }
    set_progress(w, id, DONE);
  }
}

static void do_in_order(worker *w) {
  hk_executor *x = w->executor;
  const hk_graph *graph = x->graph;
  for (int32_t i = 0; i < w->n; i++) {
    const int32_t id = w->ops[i];
    /* A CPU lane goes on after a failure elsewhere up to the end of its subgroup. */
    const bool begun = w->on_cpu && i > 0 && graph->ops[id].subgroup >= 0 &&
                       graph->ops[id].subgroup == graph->ops[w->ops[i - 1]].subgroup;
    if (!begun && failed(x)) return;
    if (!do_one(w, id)) return;
  }
}

static void do_all(worker *w) {
  if (w->watches) {
    watch_all(w);
  } else if (w->picks) {
    pick_all(w);
  } else {
    do_in_order(w);
  }
}

/* What was queued is done, or the device says why not. */
static void drain(worker *w) {
  hk_executor *x = w->executor;
  for (size_t i = 0; i < x->graph->n_lanes; i++) {
    lane *l = &x->lanes[i];
    hk_error err = {0};
    if (l->worker != w || l->on_cpu || l->n == 0) continue;
    l->queued = 0;
    if (x->backend->ops->stream_sync(l->stream, &err) != HK_OK) fail(x, l->ops[l->n - 1], &err);
  }
}

static void *worker_main(void *arg) {
  worker *w = arg;
  hk_executor *x = w->executor;
  if (!w->on_cpu) {
    hk_thread_prompt();
  } else if (x->actions.join != NULL) {
    x->actions.join(x->actions.arg, w->kind);
  }
  uint64_t seen = 0;
  for (;;) {
    pthread_mutex_lock(&x->mutex);
    while (x->run == seen && !x->closing) pthread_cond_wait(&x->begin, &x->mutex);
    seen = x->run;
    const bool closing = x->closing;
    pthread_mutex_unlock(&x->mutex);
    if (closing) return NULL;
    do_all(w);
    tell_of_ends(w);
    drain(w);
    pthread_mutex_lock(&x->mutex);
    if (--x->busy == 0) {
      x->ended = hk_now();
      pthread_cond_signal(&x->over);
      pthread_cond_broadcast(&x->progressed);
    }
    pthread_mutex_unlock(&x->mutex);
  }
}

/* -- Opening and closing ----------------------------------------------------------------------- */

static hk_status open_list(int32_t n, int32_t **ops, hk_error *err) {
  const size_t bytes = ((size_t)n + 1) * sizeof **ops;
  *ops = malloc(bytes);
  return *ops != NULL ? HK_OK : hk_fail_memory(err, bytes, "lists of operations");
}

static hk_status open_lanes(hk_executor *x, hk_error *err) {
  const hk_graph *graph = x->graph;
  x->lanes = calloc(graph->n_lanes, sizeof *x->lanes);
  if (x->lanes == NULL) return hk_fail_memory(err, graph->n_lanes * sizeof *x->lanes, "lanes");
  for (size_t i = 0; i < graph->n_ops; i++) x->lanes[graph->ops[i].lane].n++;
  for (size_t i = 0; i < graph->n_lanes; i++) {
    lane *l = &x->lanes[i];
    l->on_cpu = hk_lane_on_cpu(graph->lanes[i].kind);
    l->external = x->actions.external & 1u << graph->lanes[i].kind;
    HK_TRY(open_list(l->n, &l->ops, err));
    l->n = 0;
    /* Weights going up are what the next forward waits for. */
    const bool urgent = graph->lanes[i].kind == HK_LANE_UP;
    if (!l->on_cpu) HK_TRY(x->backend->ops->stream_open(x->backend, urgent, &l->stream, err));
  }
  for (size_t i = 0; i < graph->n_ops; i++) {
    lane *l = &x->lanes[graph->ops[i].lane];
    l->ops[l->n++] = (int32_t)i;
  }
  return HK_OK;
}

/* Whether an operation waits for what only another worker knows: the CPU team, or a lane of the
 * device that waits for such. The other lanes of the CPU have a barrier in the beginning. */
static bool waits_for_others(const hk_executor *x, const hk_op *op, const bool *alone) {
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    const int32_t other = x->graph->ops[x->graph->deps[d]].lane;
    if (other != op->lane && (x->graph->lanes[other].kind == HK_LANE_CPU || alone[other]))
      return true;
  }
  return false;
}

/* Which lanes have a worker of their own: all of the CPU, and of the device those that wait. One
 * that is found to be alone may be waited for by a lane that was looked at before: until nothing
 * changes. `alone` comes as zeros. */
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

/* Each lane's worker: `alone` says whose is shared by no other lane. */
static void appoint(hk_executor *x, const bool *alone) {
  worker *shared = NULL;
  for (size_t i = 0; i < x->graph->n_lanes; i++) {
    lane *l = &x->lanes[i];
    if (l->on_cpu && l->external) continue;
    if (alone[i] || shared == NULL) {
      worker *w = &x->workers[x->n_workers++];
      w->executor = x;
      w->on_cpu = l->on_cpu;
      w->kind = x->graph->lanes[i].kind;
      w->watches = l->external;
      w->picks = x->graph->lanes[i].picks && !l->external;
      w->awaited = -1;
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
    worker *w = &x->workers[i];
    HK_TRY(open_list(w->n, &w->ops, err));
    w->n = 0;
    if (w->kind != HK_LANE_CPU) continue;
    w->to_tell = calloc(x->n_workers, sizeof *w->to_tell);
    if (w->to_tell == NULL) return hk_fail_memory(err, x->n_workers, "threads to tell of ends");
    x->team = w;
  }
  for (size_t i = 0; i < x->graph->n_ops; i++) {
    worker *w = lane_of(x, (int32_t)i)->worker;
    if (w != NULL) w->ops[w->n++] = (int32_t)i;
  }
  for (size_t i = 0; i < lanes; i++) {
    worker *w = x->lanes[i].worker;
    if (w != NULL && w->picks) {
      HK_TRY(hk_picker_open(&w->ready, x->graph, (int32_t)i, err));
    }
  }
  return HK_OK;
}

/* Of operations of lanes that pick: what they wait for, and who waits for what. */
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
  x->needs = calloc(n, sizeof *x->needs);
  x->missing = calloc(n, sizeof *x->missing);
  x->free_of_gate = calloc(n, sizeof *x->free_of_gate);
  x->next_begin = calloc(n + 2, sizeof *x->next_begin);
  x->next = calloc(graph->n_deps + 1, sizeof *x->next);
  if (x->needs == NULL || x->missing == NULL || x->free_of_gate == NULL || x->next_begin == NULL ||
      x->next == NULL) {
    return hk_fail_memory(err, n * sizeof *x->next, "the operations' dependencies");
  }
  for (int pass = 0; pass < 2; pass++) { /* counts, then fills */
    for (size_t i = 0; i < n; i++) {
      const hk_op *op = &graph->ops[i];
      const worker *w = lane_of(x, (int32_t)i)->worker;
      if (w == NULL || !w->picks) continue;
      x->needs[i] = op->deps_end - op->deps_begin;
      x->free_of_gate[i] = true;
      for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
        const int32_t before = graph->deps[d];
        if (before == x->gate) x->free_of_gate[i] = false;
        if (pass == 0) {
          x->next_begin[before + 2]++;
        } else {
          x->next[x->next_begin[before + 1]++] = (int32_t)i;
        }
      }
    }
    for (size_t i = 2; pass == 0 && i < n + 2; i++) x->next_begin[i] += x->next_begin[i - 1];
  }
  return HK_OK;
}

/* Which ends threads wait for: for room, and as the CPU. `awaited` comes as zeros. */
static void find_awaited(const hk_executor *x, bool *awaited) {
  const hk_graph *graph = x->graph;
  for (size_t l = 0; l < graph->n_lanes; l++) {
    const lane *own = &x->lanes[l];
    if (own->on_cpu) continue;
    /* In what order a lane that picks goes is not known. */
    const int32_t step = own->external || graph->lanes[l].picks ? 1 : HK_MOST_AHEAD / 2;
    for (int32_t i = 0; i < own->n; i += step) {
      awaited[own->ops[i]] = true;
    }
  }
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    if (!lane_of(x, (int32_t)i)->on_cpu) continue;
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
    if (lane_of(x, (int32_t)i)->on_cpu) continue;
    status = x->backend->ops->event_open(x->backend, false, &x->start[i], err);
    if (status == HK_OK)
      status = x->backend->ops->event_open(x->backend, awaited[i], &x->end[i], err);
  }
  free(awaited);
  return status;
}

static hk_status start_threads(hk_executor *x, hk_error *err) {
  for (size_t i = 0; i < x->n_workers; i++) {
    worker *w = &x->workers[i];
    /* Anywhere (-1) is not where the opener happens to be pinned. */
    const hk_executor_actions *a = &x->actions;
    const int cpu = !w->on_cpu && a->n_cpus > 0 ? a->cpus[i % (size_t)a->n_cpus] : -1;
    const int number = hk_thread_start_or_anywhere(&w->thread, cpu, worker_main, w);
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
  pthread_cond_init(&x->begin, NULL);
  pthread_cond_init(&x->over, NULL);
  pthread_cond_init(&x->progressed, NULL);
  hk_status status = open_lanes(x, err);
  if (status == HK_OK) status = open_workers(x, err);
  if (status == HK_OK) status = open_dependents(x, err);
  if (status == HK_OK) status = open_events(x, err);
  if (status == HK_OK) status = start_threads(x, err);
  if (status != HK_OK) {
    hk_executor_close(x);
    return status;
  }
  x->actions.cpus = NULL; /* the caller's, and used */
  *executor = x;
  return HK_OK;
}

void hk_executor_close(hk_executor *x) {
  if (x == NULL) return;
  const hk_backend_ops *ops = x->backend->ops;
  pthread_mutex_lock(&x->mutex);
  x->closing = true;
  pthread_cond_broadcast(&x->begin);
  pthread_mutex_unlock(&x->mutex);
  for (size_t i = 0; i < x->n_workers; i++) {
    worker *w = &x->workers[i];
    if (w->started) pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    hk_picker_close(&w->ready);
    free(w->ops);
    free(w->to_tell);
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
  free(x->needs);
  free(x->missing);
  free(x->free_of_gate);
  free(x->next_begin);
  free(x->next);
  free(x->start);
  free(x->end);
  free(x->cpu_start);
  free(x->cpu_end);
  pthread_cond_destroy(&x->progressed);
  pthread_cond_destroy(&x->over);
  pthread_cond_destroy(&x->begin);
  pthread_mutex_destroy(&x->mutex);
  free(x);
}

/* -- Running ----------------------------------------------------------------------------------- */

/* Both clocks' readings as spans from `begin`. Where an event was stamped before what it follows
 * had ended (the two clocks agree to some microseconds only), the span is moved, never turned. */
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
    if (!lane_of(x, (int32_t)i)->on_cpu) {
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

/* Under `mutex`: what the first operations of lanes that pick wait for. */
static void count_missing(hk_executor *x) {
  if (x->needs == NULL) return;
  for (size_t i = 0; i < x->n_workers; i++) {
    while (x->workers[i].picks && hk_picker_pop(&x->workers[i].ready, x->graph) >= 0) {
    }
  }
  for (size_t i = 0; i < x->graph->n_ops; i++) {
    const worker *w = lane_of(x, (int32_t)i)->worker;
    if (w == NULL || !w->picks) continue;
    x->missing[i] = x->needs[i] + 1 + (x->hold && x->free_of_gate[i]);
    meet_one(x, (int32_t)i, NULL);
  }
}

hk_status hk_executor_begin(hk_executor *x, bool timed, bool hold, hk_error *err) {
  hk_ns uncertainty = 0;
  /* First of all: whatever fails below, nothing is done that the last run did. */
  memset(x->progress, 0, x->graph->n_ops * sizeof *x->progress);
  if (timed) HK_TRY(x->backend->ops->clock_align(x->backend, &uncertainty, err));
  pthread_mutex_lock(&x->mutex);
  x->failure = (hk_error){0};
  x->cancelled = false;
  x->busy = x->n_workers;
  x->timed = timed;
  x->hold = hold && x->gate >= 0;
  for (size_t i = 0; i < x->n_workers; i++) x->workers[i].n_issued = 0;
  count_missing(x);
  x->begun = hk_now();
  x->run++;
  pthread_cond_broadcast(&x->begin);
  pthread_mutex_unlock(&x->mutex);
  return HK_OK;
}

void hk_executor_done_outside(hk_executor *x, int32_t op) {
  if (x->timed) x->cpu_start[op] = x->cpu_end[op] = hk_now();
  progress_to(x, NULL, op, DONE);
}

hk_status hk_executor_issue(hk_executor *x, int32_t op, hk_error *err) {
  lane *l = lane_of(x, op);
  const hk_backend_ops *ops = x->backend->ops;
  if (x->timed) HK_TRY(ops->record(l->stream, x->start[op], err));
  HK_TRY(x->actions.run(x->actions.arg, op, l->stream, err));
  HK_TRY(ops->record(l->stream, x->end[op], err));
  progress_to(x, NULL, op, ISSUED);
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

typedef bool (*executor_condition)(const hk_executor *x, int32_t op);

static bool has_ended(const hk_executor *x, int32_t unused) {
  (void)unused;
  return x->busy == 0;
}

static bool has_been_queued(const hk_executor *x, int32_t op) {
  return x->progress[op] >= (lane_of(x, op)->on_cpu ? DONE : ISSUED);
}

/* All operations of the lane of `op`. */
static bool lane_is_done(const hk_executor *x, int32_t op) {
  const lane *l = lane_of(x, op);
  for (int32_t i = 0; i < l->n; i++) {
    if (x->progress[l->ops[i]] != DONE) return false;
  }
  return true;
}

/* Until the condition holds, something has failed, or the time is over. */
static hk_status await_condition(hk_executor *x, executor_condition holds, int32_t op,
                                 int32_t timeout_ms, bool *there, hk_error *err) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += timeout_ms / 1000;
  until.tv_nsec += timeout_ms % 1000 * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000L;
  }
  pthread_mutex_lock(&x->mutex);
  x->waiting++;
  int code = 0;
  while (!(*there = holds(x, op)) && x->failure.status == HK_OK && code != ETIMEDOUT) {
    code = timeout_ms < 0 ? pthread_cond_wait(&x->progressed, &x->mutex)
                          : pthread_cond_timedwait(&x->progressed, &x->mutex, &until);
  }
  x->waiting--;
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
  HK_TRY(await_condition(x, has_ended, 0, timeout_ms, there, err));
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

static hk_error await_end(hk_executor *x) {
  pthread_mutex_lock(&x->mutex);
  while (x->busy > 0) pthread_cond_wait(&x->over, &x->mutex);
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

hk_status hk_executor_finish(hk_executor *x, hk_timeline *timeline, hk_ns *elapsed, hk_error *err) {
  const hk_error failure = await_end(x);
  if (elapsed != NULL) *elapsed = x->ended - x->begun;
  if (failure.status != HK_OK) {
    *err = failure;
    return failure.status;
  }
  return timeline != NULL ? fill_spans(x, x->begun, timeline, err) : HK_OK;
}

hk_status hk_executor_run(hk_executor *x, hk_timeline *timeline, hk_ns *elapsed, hk_error *err) {
  HK_TRY(hk_executor_begin(x, timeline != NULL, false, err));
  return hk_executor_finish(x, timeline, elapsed, err);
}

hk_ns hk_executor_begun_at(const hk_executor *executor) {
  return executor->begun;
}

bool hk_executor_done(hk_executor *executor, int32_t op) {
  pthread_mutex_lock(&executor->mutex);
  const bool done = executor->progress[op] == DONE;
  pthread_mutex_unlock(&executor->mutex);
  return done;
}
