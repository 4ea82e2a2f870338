/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Runs in two halves, before and after the gate, with lanes of an outside caller: operations that
 * may start before the gate, operations that wait for it, the order of a lane that picks its next
 * operation, waits with and without a timeout, and cancelled runs. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/graph/pick.h"
#include "engine/default_plan.h"
#include "engine/run/executor.h"
#include "tests/fixture_graph.h"
#include "tests/fixture_host.h"

enum { PARTS = 6, MOST = 4096 };

typedef struct {
  hk_plan plan;
  hk_graph graph;
  hk_backend *device;
  hk_executor *executor;
  pthread_mutex_t lock;
  int32_t order[MOST]; /* operations of the CPU lane, as they ran */
  int n;
  int32_t gate;
  atomic_int slow_ms; /* duration of a CPU operation */
  bool stalled;       /* see uploads_leave_room_for_shallow_blocks */
  int32_t uploads[MOST];
  atomic_int n_uploads;
} run;

static void pause_ms(int ms) {
  const struct timespec moment = {.tv_nsec = ms * 1000000L};
  nanosleep(&moment, NULL);
}

/* Waits, for at most ten seconds, until *count has reached `least`. */
static void await_count(atomic_int *count, int least) {
  for (int i = 0; i < 10000 && atomic_load(count) < least; i++) pause_ms(1);
}

static hk_status act(void *arg, int32_t op, hk_stream *stream, hk_error *err) {
  (void)err;
  run *r = arg;
  if (stream != NULL) {
    if (r->graph.lanes[r->graph.ops[op].lane].kind != HK_LANE_UP) return HK_OK;
    r->uploads[atomic_load(&r->n_uploads)] = op;
    atomic_fetch_add(&r->n_uploads, 1);
    return HK_OK;
  }
  if (r->stalled && r->graph.ops[op].subgroup == 0) await_count(&r->n_uploads, HK_MOST_BESIDE);
  const int ms = atomic_load(&r->slow_ms);
  const struct timespec moment = {.tv_nsec = ms * 1000000L};
  if (ms > 0) nanosleep(&moment, NULL);
  pthread_mutex_lock(&r->lock);
  r->order[r->n++] = op;
  pthread_mutex_unlock(&r->lock);
  return HK_OK;
}

static int done_so_far(run *r) {
  pthread_mutex_lock(&r->lock);
  const int n = r->n;
  pthread_mutex_unlock(&r->lock);
  return n;
}

/* Six blocks of two pieces each; the last `ahead` blocks may run before the gate. */
static void open_run(run *r, int ahead) {
  hk_error err = {0};
  hk_param params[PARTS];
  memset(r, 0, sizeof *r);
  pthread_mutex_init(&r->lock, NULL);
  for (int p = 0; p < PARTS; p++) params[p] = (hk_param){.numel = 200, .block = p};
  must(hk_default_plan(params, PARTS, 1, &r->plan, &err), &err);
  r->plan.overlap = HK_OVERLAP_BOTH;
  r->plan.piece_numel = 100;
  for (int s = PARTS - ahead; s < PARTS; s++) r->plan.subgroups[s].ahead = true;
  r->graph = built(&r->plan, HK_EXPAND_ENGINE, true);
  r->device = open_device(0, HK_MIB, 1);
  const hk_executor_actions actions = {
      .run = act, .arg = r, .external = 1u << HK_LANE_HOST | 1u << HK_LANE_FLUSH};
  must(hk_executor_open(&r->graph, r->device, &actions, &r->executor, &err), &err);
  for (size_t i = 0; i < r->graph.n_ops; i++) {
    if (r->graph.ops[i].kind == HK_OP_BARRIER) r->gate = (int32_t)i;
  }
}

static void close_run(run *r) {
  hk_executor_close(r->executor);
  ops->close(r->device);
  hk_graph_free(&r->graph);
  hk_plan_free(&r->plan);
  pthread_mutex_destroy(&r->lock);
}

/* The operation of `kind` on the piece at `offset`. */
static int32_t find(const run *r, hk_op_kind kind, int32_t subgroup, int64_t offset) {
  for (size_t i = 0; i < r->graph.n_ops; i++) {
    const hk_op *op = &r->graph.ops[i];
    if (op->kind == kind && op->subgroup == subgroup && op->offset == offset) return (int32_t)i;
  }
  fail_msg("no %s of subgroup %d", hk_op_kind_name(kind), (int)subgroup);
  return -1;
}

/* The gradients of subgroups first, first - 1, ..., last arrive. */
static void arrive(run *r, int32_t first, int32_t last) {
  hk_error err = {0};
  for (int32_t s = first; s >= last; s--) {
    for (int64_t offset = 0; offset < 200; offset += 100) {
      must(hk_executor_issue(r->executor, find(r, HK_OP_GRAD_D2H, s, offset), &err), &err);
    }
  }
}

static void finish(run *r) {
  hk_error err = {0};
  must(hk_executor_await_lane(r->executor, HK_LANE_FLUSH, &err), &err);
  hk_executor_done_outside(r->executor, r->gate);
  must(hk_executor_finish(r->executor, NULL, &err), &err);
  assert_int_equal(r->n, 2 * PARTS);
}

/* -- The gate ---------------------------------------------------------------------------------- */

/* Before the gate, the CPU updates the three blocks that may run ahead, none if the run is held
 * (round 1). */
static void only_allowed_blocks_run_before_the_gate(void **unused) {
  (void)unused;
  hk_error err = {0};
  bool there = false;
  run r;
  open_run(&r, 3);
  for (int round = 0; round < 3; round++) {
    const bool hold = round == 1;
    r.n = 0;
    must(hk_executor_begin(r.executor, round == 2, hold, &err), &err);
    arrive(&r, 5, 0);
    must(hk_executor_await_lane(r.executor, HK_LANE_FLUSH, &err), &err);
    const int32_t deep = find(&r, HK_OP_ADAMW_CPU, 3, 100),
                  shallow = find(&r, HK_OP_ADAMW_CPU, 0, 0);
    if (!hold) must(hk_executor_await(r.executor, deep, -1, &there, &err), &err);
    pause_ms(20);
    assert_int_equal(hk_executor_done(r.executor, deep), !hold);
    assert_int_equal(done_so_far(&r), hold ? 0 : 6);
    must(hk_executor_await(r.executor, shallow, 10, &there, &err), &err);
    assert_false(there);
    finish(&r);
    for (int i = 0; i < r.n; i++) {
      assert_true(hk_executor_done(r.executor, r.order[i]));
      const bool ahead = r.graph.ops[r.order[i]].subgroup >= 3;
      if (!hold) assert_int_equal(ahead, i < 6);
    }
  }
  close_run(&r);
}

/* After the gate, shallow blocks run first, in whatever order gradients arrived. */
static void shallow_blocks_go_first(void **unused) {
  (void)unused;
  hk_error err = {0};
  run r;
  open_run(&r, 0);
  for (int round = 0; round < 4; round++) {
    r.n = 0;
    must(hk_executor_begin(r.executor, false, round % 2 == 1, &err), &err);
    arrive(&r, round % 4, 0);
    arrive(&r, 5, round % 4 + 1);
    finish(&r);
    for (int i = 1; i < r.n; i++)
      assert_true(hk_picks_before(&r.graph, r.order[i - 1], r.order[i]));
    for (int i = 0; i < r.n; i++) assert_int_equal(r.graph.ops[r.order[i]].subgroup, i / 2);
  }
  close_run(&r);
}

/* -- Uploads ----------------------------------------------------------------------------------- */

static _Atomic(run *) stalled_run; /* NULL: uploads end as they come */
static atomic_int awaited;         /* waits for room in the lane of uploads */

/* A wait for an upload returns when the CPU has updated all pieces, or after 10 s. */
static hk_status sync_late(hk_event *event, hk_error *err) {
  run *r = atomic_load(&stalled_run);
  if (r != NULL) atomic_fetch_add(&awaited, 1);
  for (int i = 0; r != NULL && i < 10000 && done_so_far(r) < 2 * PARTS; i++) pause_ms(1);
  return hk_backend_host.event_sync(event, err);
}

/* When the gate opens, uploads of five blocks are ready and the device does none of them. At most
 * HK_MOST_BESIDE may be queued, because those of the first block, which forward needs first, become
 * ready later and must come next. */
static void uploads_leave_room_for_shallow_blocks(void **unused) {
  (void)unused;
  hk_error err = {0};
  bool there = false;
  run r;
  open_run(&r, PARTS - 1);
  hk_backend_ops slow = hk_backend_host;
  slow.event_sync = sync_late;
  r.device->ops = &slow; /* before the workers of the run read it */
  must(hk_executor_begin(r.executor, false, false, &err), &err);
  arrive(&r, PARTS - 1, 0);
  must(hk_executor_await_lane(r.executor, HK_LANE_FLUSH, &err), &err);
  for (int s = 1; s < PARTS; s++) {
    must(hk_executor_await(r.executor, find(&r, HK_OP_ADAMW_CPU, s, 100), -1, &there, &err), &err);
  }
  r.stalled = true;
  atomic_store(&stalled_run, &r);
  finish(&r);
  atomic_store(&stalled_run, NULL);
  r.device->ops = ops;
  assert_int_equal(atomic_load(&r.n_uploads), 2 * PARTS);
  assert_true(atomic_load(&awaited) > 0);
  for (int i = 0; i < 2 * PARTS; i++) {
    const int32_t s = r.graph.ops[r.uploads[i]].subgroup;
    const int before = HK_MOST_BESIDE; /* uploads that were queued before */
    assert_int_equal(s, i < before ? 1 + i / 2 : i < before + 2 ? 0 : i / 2);
  }
  close_run(&r);
}

/* -- Waits ------------------------------------------------------------------------------------- */

/* Replaces libc's clock_gettime in this program: an hour can be added to the wall clock. The
 * kernel, which ends the waits, keeps its own clock. */
static atomic_bool clock_is_ahead;
int clock_gettime(clockid_t clock, struct timespec *time) {
  const int code = (int)syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME && atomic_load(&clock_is_ahead)) time->tv_sec += 3600;
  return code;
}

static double ms_since(hk_ns begin) {
  return hk_ms(hk_now() - begin);
}

static void check_waits(void) {
  hk_error err = {0};
  bool there = true;
  run r;
  open_run(&r, 2);
  must(hk_executor_begin(r.executor, false, false, &err), &err);
  const int32_t last = find(&r, HK_OP_WEIGHT_H2D, 5, 100);
  hk_ns begin = hk_now();
  must(hk_executor_await(r.executor, last, 0, &there, &err), &err);
  assert_false(there);
  must(hk_executor_await(r.executor, last, 30, &there, &err), &err);
  assert_false(there);
  assert_true(ms_since(begin) >= 29);
  must(hk_executor_await_all(r.executor, 10, &there, &err), &err);
  assert_false(there);
  arrive(&r, 5, 0);
  must(hk_executor_await_lane(r.executor, HK_LANE_FLUSH, &err), &err);
  /* The first operation outlasts the wait, even if this thread gets no processor for a while. */
  atomic_store(&r.slow_ms, 200);
  hk_executor_done_outside(r.executor, r.gate);
  must(hk_executor_await_all(r.executor, 1, &there, &err), &err);
  assert_false(there);
  atomic_store(&r.slow_ms, 0);
  must(hk_executor_await(r.executor, last, -1, &there, &err), &err);
  assert_true(there);
  must(hk_executor_await_all(r.executor, -1, &there, &err), &err);
  assert_true(there);
  must(hk_executor_await(r.executor, last, 0, &there, &err), &err);
  assert_true(there);
  must(hk_executor_finish(r.executor, NULL, &err), &err);
  close_run(&r);
}

static void waits_end_at_their_timeout(void **unused) {
  (void)unused;
  check_waits();
}

static void waits_do_not_depend_on_the_wall_clock(void **unused) {
  (void)unused;
  struct timespec shifted, kernel;
  atomic_store(&clock_is_ahead, true);
  clock_gettime(CLOCK_REALTIME, &shifted);
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &kernel);
  assert_true(shifted.tv_sec >= kernel.tv_sec + 3599); /* this program's clock is the one above */
  alarm(60);
  check_waits();
  alarm(0);
  atomic_store(&clock_is_ahead, false);
}

/* -- Cancelled runs ---------------------------------------------------------------------------- */

/* A run can be cancelled at any moment. Nothing runs afterwards, and the next run is complete. */
static void runs_can_be_cancelled(void **unused) {
  (void)unused;
  hk_error err = {0};
  run r;
  open_run(&r, 3);
  for (int round = 0; round < 30; round++) {
    r.n = 0;
    atomic_store(&r.slow_ms, round % 3);
    must(hk_executor_begin(r.executor, false, round % 4 == 3, &err), &err);
    if (round % 5 > 0) arrive(&r, 5, 5 - round % 5);
    if (round % 3 > 0) pause_ms(round % 3);
    hk_executor_cancel(r.executor);
    const int n = done_so_far(&r);
    pause_ms(3);
    assert_int_equal(done_so_far(&r), n);
    for (int i = 0; i < n; i++) assert_true(r.graph.ops[r.order[i]].subgroup >= 3);
    if (round % 4 == 3) assert_int_equal(n, 0);
    r.n = 0;
    must(hk_executor_begin(r.executor, false, false, &err), &err);
    assert_false(hk_executor_done(r.executor, find(&r, HK_OP_ADAMW_CPU, 5, 0)));
    arrive(&r, 5, 0);
    finish(&r);
  }
  /* Closed right after a cancelled run, as when an engine is destroyed. */
  must(hk_executor_begin(r.executor, false, false, &err), &err);
  arrive(&r, 5, 4);
  hk_executor_cancel(r.executor);
  close_run(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(only_allowed_blocks_run_before_the_gate),
      cmocka_unit_test(shallow_blocks_go_first),
      cmocka_unit_test(uploads_leave_room_for_shallow_blocks),
      cmocka_unit_test(waits_end_at_their_timeout),
      cmocka_unit_test(waits_do_not_depend_on_the_wall_clock),
      cmocka_unit_test(runs_can_be_cancelled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
