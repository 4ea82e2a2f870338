/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The executor: when lanes learn that an operation has ended, which thread queues for which lane,
 * and the size of the CPU team. Operations here only record their calls. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "core/machine/team.h"
#include "engine/private.h"
#include "engine/run/executor.h"
#include "sim/sim.h"
#include "tests/fixture_graph.h"
#include "tests/fixture_host.h"

typedef struct {
  const hk_graph *graph;
  hk_executor *executor;
  bool tells;
  atomic_int done, queued; /* CPU operations of subgroups; device operations that wait for one */
} observer;

static bool is_cpu(const hk_graph *g, int32_t op) {
  return g->lanes[g->ops[op].lane].kind == HK_LANE_CPU && g->ops[op].subgroup >= 0;
}

/* The CPU operation that a device operation depends on; -1: none. */
static int32_t waits_for(const hk_graph *g, int32_t op) {
  if (hk_lane_on_cpu(g->lanes[g->ops[op].lane].kind)) return -1;
  for (int32_t d = g->ops[op].deps_begin; d < g->ops[op].deps_end; d++) {
    if (is_cpu(g, g->deps[d])) return g->deps[d];
  }
  return -1;
}

/* Waits up to 10 s until all operations that depend on finished CPU operations have been queued. */
static bool is_told(observer *o) {
  const struct timespec moment = {.tv_nsec = 100000};
  for (int i = 0; i < 100000; i++) {
    if (atomic_load(&o->queued) == atomic_load(&o->done)) return true;
    (void)nanosleep(&moment, NULL);
  }
  return false;
}

static hk_status look(void *arg, int32_t op, hk_stream *stream, hk_error *err) {
  (void)stream;
  observer *o = arg;
  if (waits_for(o->graph, op) >= 0) atomic_fetch_add(&o->queued, 1);
  if (!is_cpu(o->graph, op)) return HK_OK;
  if (o->tells) {
    hk_executor_begun(o->executor);
    if (!is_told(o)) return hk_fail(err, HK_NO, "no lane learnt that the last operation has ended");
  }
  atomic_fetch_add(&o->done, 1);
  return HK_OK;
}

/* All subgroups on the CPU; DeepSpeed's with stride 2. */
static hk_plan small_plan(hk_runtime runtime, int64_t piece) {
  const bool deepspeed = runtime == HK_RUNTIME_DEEPSPEED;
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(LAYERS);
  must(hk_plan_create(&model, &ALONE, runtime, deepspeed ? HK_SUBGROUP_SOFT : HK_SUBGROUP_EXACT,
                      5000, &plan, &err),
       &err);
  hk_model_free(&model);
  plan.piece_numel = piece;
  plan.stride = deepspeed ? 2 : 0;
  for (size_t s = 0; s < plan.n_subgroups; s++) plan.subgroups[s].route = HK_ROUTE_CPU;
  return plan;
}

/* Other lanes learn that a CPU operation has ended while the next one runs (rounds 0 and 2, where
 * operations call hk_executor_begun), or after it (rounds 1 and 3). All learn it in the end. */
static void test_ends_are_announced(void **state) {
  (void)state;
  hk_plan plan = small_plan(HK_RUNTIME_HOCKET, 2000); /* every piece's weights go up */
  hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
  int waiting = 0;
  for (size_t i = 0; i < graph.n_ops; i++) waiting += waits_for(&graph, (int32_t)i) >= 0;
  assert_true(waiting > 20);

  hk_backend *device = open_device(0, HK_MIB, 1);
  observer o = {.graph = &graph};
  const hk_executor_actions actions = {.run = look, .arg = &o};
  hk_error err = {0};
  must(hk_executor_open(&graph, device, &actions, &o.executor, &err), &err);
  for (int round = 0; round < 4; round++) {
    o.tells = round % 2 == 0;
    o.done = o.queued = 0;
    must(hk_executor_run(o.executor, NULL, NULL, &err), &err);
    assert_int_equal(o.done, waiting);
    assert_int_equal(o.queued, waiting);
  }
  hk_executor_close(o.executor);
  ops->close(device);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* -- Threads of lanes -------------------------------------------------------------------------- */

typedef struct {
  const hk_graph *graph;
  pthread_t thread[HK_LANE_KIND_COUNT]; /* that did the last operation of such a lane */
  int n[HK_LANE_KIND_COUNT];
  int32_t last;  /* last operation of the lanes h2d, update and d2h */
  bool in_order; /* operations of these three lanes came in the graph's order */
  bool stays;    /* each lane keeps its thread */
} census;

static hk_status count(void *arg, int32_t op, hk_stream *stream, hk_error *err) {
  (void)stream, (void)err;
  census *c = arg;
  const hk_lane_kind kind = c->graph->lanes[c->graph->ops[op].lane].kind;
  if (c->n[kind]++ > 0 && !pthread_equal(c->thread[kind], pthread_self())) c->stays = false;
  c->thread[kind] = pthread_self();
  if (kind == HK_LANE_H2D || kind == HK_LANE_UPDATE || kind == HK_LANE_D2H) {
    if (op < c->last) c->in_order = false;
    c->last = op;
  }
  return HK_OK;
}

static census take_census(hk_runtime runtime) {
  static const hk_route routes[] = {HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT};
  hk_error err = {0};
  hk_plan plan = small_plan(runtime, 400);
  for (size_t s = 0; s < plan.n_subgroups; s++) plan.subgroups[s].route = routes[s % 3];
  hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);

  hk_backend *device = open_device(0, HK_MIB, 1);
  census c = {.graph = &graph, .last = -1, .in_order = true, .stays = true};
  const hk_executor_actions actions = {.run = count, .arg = &c};
  hk_executor *executor = NULL;
  must(hk_executor_open(&graph, device, &actions, &executor, &err), &err);
  must(hk_executor_run(executor, NULL, NULL, &err), &err);
  int done = 0;
  for (int k = 0; k < HK_LANE_KIND_COUNT; k++) done += c.n[k];
  assert_int_equal(done, graph.n_ops);
  c.last = -1;
  must(hk_executor_run(executor, NULL, NULL, &err), &err);
  assert_true(c.stays);
  hk_executor_close(executor);
  ops->close(device);
  c.graph = NULL;
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return c;
}

/* hocket: one thread queues for h2d, update and d2h, which depend on each other at each operation;
 * up and cpu have threads of their own. */
static void test_one_thread_queues(void **state) {
  (void)state;
  const census c = take_census(HK_RUNTIME_HOCKET);
  assert_true(c.n[HK_LANE_H2D] > 20 && c.n[HK_LANE_UP] > 20);
  assert_true(pthread_equal(c.thread[HK_LANE_H2D], c.thread[HK_LANE_UPDATE]));
  assert_true(pthread_equal(c.thread[HK_LANE_H2D], c.thread[HK_LANE_D2H]));
  assert_true(c.in_order);
  assert_false(pthread_equal(c.thread[HK_LANE_H2D], c.thread[HK_LANE_UP])); /* waits for the CPU */
  assert_false(pthread_equal(c.thread[HK_LANE_H2D], c.thread[HK_LANE_CPU]));
}

/* DeepSpeed: its CPU thread starts each fetch and update. Each of these lanes has a thread of its
 * own, because an operation that waits must not delay other lanes. */
static void test_waiting_lanes_have_threads(void **state) {
  (void)state;
  static const hk_lane_kind lanes[] = {HK_LANE_CPU,      HK_LANE_UP,       HK_LANE_UPDATE,
                                       HK_LANE_STREAM_P, HK_LANE_STREAM_M, HK_LANE_STREAM_V};
  const census c = take_census(HK_RUNTIME_DEEPSPEED);
  for (size_t i = 0; i < sizeof lanes / sizeof *lanes; i++) {
    assert_true(c.n[lanes[i]] > 0);
    for (size_t j = 0; j < i; j++)
      assert_false(pthread_equal(c.thread[lanes[i]], c.thread[lanes[j]]));
  }
}

/* -- Size of the team -------------------------------------------------------------------------- */

/* Threads of the simulator's fused AdamW on a machine of `cores`: at its highest rate a kernel uses
 * as many core-seconds a second as it has threads. */
static double simulated_team(const hk_plan *plan, unsigned phases, int cores) {
  hk_machine machine = ideal_machine();
  machine.cores.value = cores > 0 ? cores : 1;
  hk_graph graph = built(plan, phases, true);
  double team = 0;
  for (size_t i = 0; i < graph.n_ops; i++) {
    if (graph.ops[i].kind != HK_OP_ADAMW_CPU) continue;
    const hk_demand d = hk_demand_of(&graph, &graph.ops[i], &machine);
    for (int u = 0; u < d.n_uses; u++)
      if (d.uses[u].resource == HK_RES_CORES) team = d.cap * d.uses[u].per_unit;
  }
  hk_graph_free(&graph);
  return team;
}

/* Threads of the engine's team. With runtime hocket, asserts that the simulator's team has as many,
 * in the graph of the engine and in that of a whole iteration. */
static int team_size(hk_runtime runtime, hk_route route, int64_t piece, int threads, int cores) {
  hk_plan plan = small_plan(runtime, piece);
  plan.cpu_threads = threads;
  for (size_t s = 1; s < plan.n_subgroups; s += 2) plan.subgroups[s].route = route;
  hk_graph graph = built(&plan, HK_EXPAND_ENGINE, true);
  const int size = hk_team_size(&graph, plan.cpu_threads, cores);
  if (runtime == HK_RUNTIME_HOCKET) {
    assert_float_equal(simulated_team(&plan, HK_EXPAND_ENGINE, cores), size, 1e-9);
    assert_float_equal(simulated_team(&plan, HK_EXPAND_ALL, cores), size, 1e-9);
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return size;
}

/* A team of at least 8 threads has one fewer if operations are queued throughout the step and no
 * core is free for that. */
static void test_a_core_for_queueing(void **state) {
  (void)state;
  const hk_runtime ours = HK_RUNTIME_HOCKET;
  assert_int_equal(team_size(ours, HK_ROUTE_STAGED, 50, 16, 16), 15);
  assert_int_equal(team_size(ours, HK_ROUTE_STAGED, 50, 16, 17), 16);
  assert_int_equal(team_size(ours, HK_ROUTE_STAGED, 50, 15, 16), 15);
  assert_int_equal(team_size(ours, HK_ROUTE_STAGED, 50, 17, 16), 17); /* not pinned at all */
  assert_int_equal(team_size(ours, HK_ROUTE_STAGED, 50, 16, 0), 16);
  assert_int_equal(team_size(ours, HK_ROUTE_STAGED, 50, 2, 2), 2);
  assert_int_equal(team_size(ours, HK_ROUTE_STAGED, 5000, 16, 16), 16); /* few pieces */
  assert_int_equal(team_size(ours, HK_ROUTE_MAPPED, 50, 16, 16), 16);
  assert_int_equal(team_size(HK_RUNTIME_DEEPSPEED, HK_ROUTE_STAGED, 50, 16, 16), 16);
}

/* With several GPUs each has a team, and each gives up a thread if together they use all cores.
 * With an overlap a graph of several iterations queues throughout, like one of one. */
static void test_a_core_for_queueing_of_others(void **state) {
  (void)state;
  hk_graph graph = {.ranks = 1, .multiplicity = 4, .queues_throughout = true};
  assert_int_equal(hk_team_size(&graph, 16, 64), 15);
  assert_int_equal(hk_team_size(&graph, 16, 16), 15); /* the process is bound to its share */
  assert_int_equal(hk_team_size(&graph, 16, 48), 16);
  graph.cores_unbound = true;
  assert_int_equal(hk_team_size(&graph, 16, 64), 16);

  hk_plan plan = small_plan(HK_RUNTIME_HOCKET, 50);
  for (size_t s = 1; s < plan.n_subgroups; s += 2) plan.subgroups[s].route = HK_ROUTE_STAGED;
  hk_plan_set_overlap(&plan, HK_OVERLAP_FORWARD);
  for (int n = 1; n <= 3; n += 2) {
    hk_error err = {0};
    hk_graph unrolled;
    must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, n, .folded = true}, &unrolled, &err),
         &err);
    assert_true(unrolled.queues_throughout);
    hk_graph_free(&unrolled);
  }
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ends_are_announced),
      cmocka_unit_test(test_one_thread_queues),
      cmocka_unit_test(test_waiting_lanes_have_threads),
      cmocka_unit_test(test_a_core_for_queueing),
      cmocka_unit_test(test_a_core_for_queueing_of_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
