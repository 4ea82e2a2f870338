/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a task graph on real lanes. Each CPU lane has a thread that does its operations. Device
 * lanes have a stream each, and threads that queue operations on them: one thread for each lane
 * that waits for the CPU or picks, and one for all other lanes together. Dependencies between
 * streams are events. A CPU operation waits for an event of the operation that it depends on, never
 * for the whole device; a device operation that depends on the CPU is queued when the CPU operation
 * has ended. Nothing is allocated during a run.
 *
 * Threads: calls on one executor must not overlap, except hk_executor_await, hk_executor_await_all,
 * hk_executor_follow and hk_executor_done, which several threads may be in at any time during a
 * run. */
#ifndef HK_ENGINE_RUN_EXECUTOR_H
#define HK_ENGINE_RUN_EXECUTOR_H

#include "core/graph/graph.h"
#include "core/graph/timeline.h"
#include "engine/device/backend.h"

typedef struct hk_executor hk_executor;

/* Most operations that a device lane is queued ahead of the device. When so many are queued, the
 * lane's thread waits until half of them have ended. */
#define HK_MOST_AHEAD 128

/* The same in runs with external lanes, where a framework queues work on the same device. On an
 * H200 the stream of weights took 57 to 60 operations. While it was full, layers of forward took 90
 * ms instead of 7, probably because CUDA blocks a thread that queues on a full stream and launches
 * of other threads wait with it. Short queues also let a lane that picks its next operation pick
 * later, when more shallow blocks are ready. docs/overlap.md has the recording. */
#define HK_MOST_BESIDE 8

/* What operations do. */
typedef struct {
  /* CPU lanes: does operation `op`; `stream` is NULL. Device lanes: queues it on `stream`. A
   * failure ends the run. */
  hk_status (*run)(void *arg, int32_t op, hk_stream *stream, hk_error *err);
  /* Called once by the thread of each CPU lane, before its first operation; may be NULL. */
  void (*join)(void *arg, hk_lane_kind lane);
  void *arg; /* passed to both */
  /* CPUs to pin the queueing threads to, in turn; n_cpus 0: they are not pinned. Use CPUs on which
   * no pinned team works: a queueing thread on a team member's CPU delays the whole team. Read
   * during hk_executor_open only. */
  const int *cpus;
  int n_cpus;
  /* Bit mask of 1 << hk_lane_kind: lanes whose operations the caller executes ("external"). The
   * caller reports operations of a CPU lane by hk_executor_done_outside and queues those of a
   * device lane by hk_executor_issue. */
  unsigned external;
} hk_executor_actions;

/* Creates lanes, events and threads for the graph. `graph` and `backend` stay the caller's and must
 * outlive the executor. HK_ENVIRONMENT: no memory, or no thread. */
hk_status hk_executor_open(const hk_graph *graph, hk_backend *backend,
                           const hk_executor_actions *actions, hk_executor **executor,
                           hk_error *err);
/* No run may be under way. NULL is allowed. */
void hk_executor_close(hk_executor *executor);

/* Runs the graph once and returns when all operations have ended. After a failure it returns the
 * first failure when nothing runs any more; CPU lanes first complete the subgroup that they have
 * begun, so that none is left half updated. With a timeline, its spans (ns since the start of the
 * run) and phases are filled. *elapsed: wall time of the run in ns; may be NULL. */
hk_status hk_executor_run(hk_executor *executor, hk_timeline *timeline, hk_ns *elapsed,
                          hk_error *err);

/* -- Runs with external lanes ------------------------------------------------------------------ */

/* Starts a run and returns. The caller then executes the external operations, and ends the run by
 * hk_executor_finish or hk_executor_cancel. `timed`: record the times that hk_executor_finish needs
 * for a timeline. `hold`: every operation of a picking lane (hk_lane.picks) waits for the gate, the
 * last operation of the external CPU lane, even where the graph lets it start earlier. */
hk_status hk_executor_begin(hk_executor *executor, bool timed, bool hold, hk_error *err);
/* Reports that an operation of an external CPU lane has ended. */
void hk_executor_done_outside(hk_executor *executor, int32_t op);
/* Queues an operation of an external device lane on the lane's stream. Once a run for each
 * operation; calls for one lane must not overlap. */
hk_status hk_executor_issue(hk_executor *executor, int32_t op, hk_error *err);
/* The stream of a device lane; NULL: the graph has no lane of this kind. */
hk_stream *hk_executor_stream(const hk_executor *executor, hk_lane_kind lane);
/* Waits until all operations of the external device lanes of this kind have ended. */
hk_status hk_executor_await_lane(hk_executor *executor, hk_lane_kind lane, hk_error *err);
/* Waits until `op` has been queued (device lanes) or has ended (CPU lanes), for at most timeout_ms
 * (-1: no limit). *there: whether it has. Returns the run's failure, if there is one. */
hk_status hk_executor_await(hk_executor *executor, int32_t op, int32_t timeout_ms, bool *there,
                            hk_error *err);
/* Waits in the same way until all operations of the run have ended. */
hk_status hk_executor_await_all(hk_executor *executor, int32_t timeout_ms, bool *there,
                                hk_error *err);
/* Makes `stream` wait for the end of a device operation that has been queued. */
hk_status hk_executor_follow(hk_executor *executor, int32_t op, hk_stream *stream, hk_error *err);
/* Makes what is queued on the lanes of this kind from now on wait for `event`, which must have been
 * recorded. */
hk_status hk_executor_hold_back(hk_executor *executor, hk_lane_kind lane, hk_event *event,
                                hk_error *err);
/* Ends the run early: operations that have started are completed, no others are started. Returns
 * when nothing runs any more. Do not call hk_executor_finish for this run. */
void hk_executor_cancel(hk_executor *executor);
/* Waits for the end of the run; failures and *elapsed as in hk_executor_run. */
hk_status hk_executor_finish(hk_executor *executor, hk_ns *elapsed, hk_error *err);
/* Fills the timeline's spans (ns since the start of the run) and phases with the times of a run
 * that was begun with `timed` and has been finished without a failure. */
hk_status hk_executor_read_times(hk_executor *executor, hk_timeline *timeline, hk_error *err);

/* -- During and after a run -------------------------------------------------------------------- */

/* Called by `run` on the CPU team's thread when the other members of the team have started on the
 * operation: now wakes the threads that wait for the team's previous operation. Waking a thread is
 * a system call of some microseconds, during which the team would otherwise be idle. Optional:
 * without this call the threads are woken when the team's thread next waits. Does nothing on other
 * threads.
 */
void hk_executor_begun(hk_executor *executor);
/* Start of the last run, CLOCK_MONOTONIC ns. */
hk_ns hk_executor_begun_at(const hk_executor *executor);
/* End of the last operation of the last finished run, CLOCK_MONOTONIC ns. */
hk_ns hk_executor_ended_at(const hk_executor *executor);
/* Whether a CPU operation has ended in the run under way or, if none is, in the last one. */
bool hk_executor_done(hk_executor *executor, int32_t op);

#endif
