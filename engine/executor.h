/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a task graph on real lanes. Every lane of the CPU has a thread that does its operations;
 * lanes of the device have one that queues them on the lane's stream, one each where they wait for
 * the CPU, one in all where they wait for each other only. Dependencies between streams are events;
 * CPU work waits for events, never for the device; streams wait for CPU work because their thread
 * does. Nothing is allocated while it runs. */
#ifndef HK_ENGINE_EXECUTOR_H
#define HK_ENGINE_EXECUTOR_H

#include "core/graph.h"
#include "core/timeline.h"
#include "engine/backend.h"

typedef struct hk_executor hk_executor;

/* Operations that a lane of the device is ahead at most: its thread queues half as many at a time,
 * and comes back when so many have been done. */
#define HK_MOST_AHEAD 128

/* What operations do. `run` does an operation of a CPU lane, or queues one of a device lane on
 * `stream`. `join` is called once by the thread of each CPU lane. */
typedef struct {
  hk_status (*run)(void *arg, int32_t op, hk_stream *stream, hk_error *err);
  void (*join)(void *arg, hk_lane_kind lane);
  void *arg;
  /* CPUs that the threads of device lanes are pinned to in turn, none: wherever they may run. A
   * thread that queues on a core where a pinned team works holds up the whole team. */
  const int *cpus;
  int n_cpus;
  /* Bits 1 << hk_lane_kind of lanes whose operations somebody outside carries out: those of a CPU
   * lane are reported by hk_executor_done_outside, those of a device lane queued by
   * hk_executor_issue. */
  unsigned external;
} hk_executor_actions;

/* `graph` and `backend` stay the caller's and must outlive it. */
hk_status hk_executor_open(const hk_graph *graph, hk_backend *backend,
                           const hk_executor_actions *actions, hk_executor **executor,
                           hk_error *err);
void hk_executor_close(hk_executor *executor);

/* Runs the graph once; returns when all of it is done, or, after a failure, when nothing runs any
 * more: CPU lanes finish the subgroup they are at, so that none is left half done. With a timeline
 * its spans are filled, in ns from the start, and its phases. *elapsed (may be NULL): wall time. */
hk_status hk_executor_run(hk_executor *executor, hk_timeline *timeline, hk_ns *elapsed,
                          hk_error *err);

/* The same in two halves, for graphs that somebody outside takes part in. With `hold`, operations
 * of lanes that pick wait for the external CPU lane's last operation even where the graph lets them
 * run ahead of it. Between the two calls: */
hk_status hk_executor_begin(hk_executor *executor, bool timed, bool hold, hk_error *err);
/* An operation of an external CPU lane is done. */
void hk_executor_done_outside(hk_executor *executor, int32_t op);
/* Queues an operation of an external device lane on the lane's stream, by the calling thread. Calls
 * for one lane must not overlap; each operation once a run. */
hk_status hk_executor_issue(hk_executor *executor, int32_t op, hk_error *err);
/* The stream of a lane of the device; NULL: the graph has none of this kind. */
hk_stream *hk_executor_stream(const hk_executor *executor, hk_lane_kind lane);
/* Waits until all operations of an external device lane are done. */
hk_status hk_executor_await_lane(hk_executor *executor, hk_lane_kind lane, hk_error *err);
/* Waits until `op` has been queued (device lanes) or done (CPU lanes), at most timeout_ms (-1: no
 * limit). *there: whether it has. Returns the run's failure, if it has one. */
hk_status hk_executor_await(hk_executor *executor, int32_t op, int32_t timeout_ms, bool *there,
                            hk_error *err);
/* The same for all of the run. */
hk_status hk_executor_await_all(hk_executor *executor, int32_t timeout_ms, bool *there,
                                hk_error *err);
/* Lets `stream` wait for the end of an operation that has been queued. */
hk_status hk_executor_follow(hk_executor *executor, int32_t op, hk_stream *stream, hk_error *err);
/* What is queued on the lanes of this kind from now on waits for an event, recorded before. */
hk_status hk_executor_hold_back(hk_executor *executor, hk_lane_kind lane, hk_event *event,
                                hk_error *err);
/* Ends the run early: operations that have begun are completed, others are not begun. Returns when
 * nothing runs any more; hk_executor_finish must not follow. */
void hk_executor_cancel(hk_executor *executor);
/* Waits for the end, as hk_executor_run does. */
hk_status hk_executor_finish(hk_executor *executor, hk_timeline *timeline, hk_ns *elapsed,
                             hk_error *err);
/* For `run` of an operation of the CPU team's lane, on its thread: others are at work now, so that
 * those who wait for the last operation's end can be told of it. Waking a thread takes a system
 * call and some microseconds, which are none between two operations if they are told here; they are
 * told anyway, later, by who never calls this. On another thread it does nothing. */
void hk_executor_begun(hk_executor *executor);
/* When the last run began, CLOCK_MONOTONIC. */
hk_ns hk_executor_begun_at(const hk_executor *executor);
/* Whether a CPU lane's operation has been done, in the run under way or the last one. */
bool hk_executor_done(hk_executor *executor, int32_t op);

#endif
