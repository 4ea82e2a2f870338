/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the executor's files: executor_open.c builds an executor from a graph,
 * executor_workers.c holds what its threads do, executor.c starts runs and waits for them.
 *
 * A worker is a thread that serves one or more lanes. These lanes have a worker each: CPU lanes
 * unless they are external; external device lanes; lanes that pick; device lanes that wait for the
 * CPU team or for another lane of this kind. One further worker serves all remaining device lanes,
 * in the graph's order: when the CPU team keeps every core busy, a thread may wait milliseconds for
 * a core, and separate workers that wait for each other would pay that wait once an operation. */
#ifndef HK_ENGINE_RUN_EXECUTOR_PRIVATE_H
#define HK_ENGINE_RUN_EXECUTOR_PRIVATE_H

#include <pthread.h>

#include "core/graph/pick.h"
#include "engine/run/executor.h"

/* State of an operation within a run. QUEUED: a device operation is in its stream, and its end
 * event has been recorded behind it. DONE: a CPU operation has ended; for operations of external
 * device lanes, a worker has seen the end event. */
typedef enum { HK_EXEC_PENDING, HK_EXEC_QUEUED, HK_EXEC_DONE } hk_exec_progress;

typedef struct hk_exec_worker hk_exec_worker;

typedef struct {
  bool on_cpu;
  bool external;     /* its operations are executed by the caller */
  hk_stream *stream; /* device lanes; NULL for CPU lanes */
  hk_exec_worker *worker;
  int32_t *ops; /* [n] ids of its operations, in the graph's order */
  int32_t n;
  int32_t queued; /* device lanes: operations queued so far in this run */
  int32_t most;   /* device lanes: most operations that are queued ahead of the device */
} hk_exec_lane;

struct hk_exec_worker {
  hk_executor *executor;
  bool on_cpu;       /* serves one CPU lane */
  hk_lane_kind kind; /* of its first lane */
  int32_t *ops;      /* [n] operations of all its lanes, in the graph's order */
  int32_t n;
  bool picks;      /* serves one lane, whose operations start by priority (core/graph/pick.h) */
  hk_picker ready; /* picks: operations whose dependencies are met; under `mutex` */
  bool watches_external; /* serves one external device lane: it waits for the ends of operations
                            that the caller has queued */
  int32_t n_issued;      /* watches_external: operations queued so far in this run; they are the
                            first n_issued of `ops`, in the order of queueing */
  int32_t awaited_op;    /* operation of another worker that this one waits for; -1: none */
  hk_exec_progress awaited_progress; /* the progress that it waits for */
  bool *to_wake; /* [worker] CPU team's worker only, else NULL: workers to be woken when the
                    team's next operation has started (hk_executor_begun) */
  pthread_cond_t wake;
  pthread_t thread;
  bool started;
};

struct hk_executor {
  const hk_graph *graph;
  hk_backend *backend;
  hk_executor_actions actions;
  hk_exec_lane *lanes;     /* [graph->n_lanes] */
  hk_exec_worker *workers; /* [n_workers] */
  size_t n_workers;
  hk_exec_worker *team;       /* serves the CPU team's lane; NULL: the graph has no such lane */
  hk_exec_progress *progress; /* [op]; under `mutex` */

  /* Only when some lane picks; [op] arrays describe operations of picking lanes. */
  int32_t *n_deps;           /* [op] number of dependencies */
  int32_t *n_unmet;          /* [op] dependencies not met yet in this run; under `mutex` */
  int32_t *dependents_begin; /* [op + 1] range in `dependents` */
  int32_t *dependents;       /* operations of picking lanes that depend on an operation */
  int32_t gate;              /* last operation of the external CPU lane; -1: there is none */
  bool *may_pass_gate;       /* [op] the graph does not make it wait for the gate */

  hk_event **start;           /* [op] device operations, recorded when `timed`; NULL: CPU */
  hk_event **end;             /* [op] device operations, always recorded; NULL: CPU */
  hk_ns *cpu_start, *cpu_end; /* [op] CPU operations, CLOCK_MONOTONIC, when `timed` */

  pthread_mutex_t mutex;
  pthread_cond_t run_begins, run_over;
  pthread_cond_t
      progressed; /* CLOCK_MONOTONIC; for callers of hk_executor_await..., of whom n_waiting wait */
  int n_waiting;
  bool cancelled;
  bool hold; /* in this run every operation of a picking lane waits for the gate */
  hk_ns started_at, ended_at;
  uint64_t run_number; /* raised when a run begins; workers wait for that */
  size_t n_running;    /* workers that have not finished the run */
  bool timed;          /* the run records times for a timeline */
  bool closing;
  hk_error failure; /* the first failure of the run; status HK_OK: none */
};

static inline hk_exec_lane *hk_exec_lane_of(const hk_executor *x, int32_t op) {
  return &x->lanes[x->graph->ops[op].lane];
}

/* -- executor_workers.c ------------------------------------------------------------------------ */

/* Thread function; the argument is the worker. */
void *hk_exec_worker_main(void *worker);
/* Sets an operation's progress and wakes those who wait for it. `by`: the worker that executes the
 * operation; NULL: a thread of the caller. Takes the mutex. */
void hk_exec_set_progress(hk_executor *x, hk_exec_worker *by, int32_t op, hk_exec_progress to);
/* One more dependency of an operation of a picking lane is met; the last one makes the operation
 * ready and wakes the lane's worker, unless that is `by`. The caller holds the mutex. */
void hk_exec_meet_dependency(hk_executor *x, int32_t op, const hk_exec_worker *by);

#endif
