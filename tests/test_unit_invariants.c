/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The simulator's own checks (sim/check.c, and those of bounds in sim/forecast.c). Each gets a
 * run that violates one invariant and must name it. */
#include "tests/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/forecast.h"
#include "sim/rank.h"
#include "sim/state.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* `status` is that of a check that left `err`. */
static void expect_broken(hk_status status, const hk_error *err, const char *message) {
  assert_int_equal(status, HK_NO);
  assert_string_equal(err->message, message);
}

static int32_t add(hk_graph *graph, hk_lane_kind lane, hk_op op, int32_t after) {
  hk_error err = {0};
  op.phase = HK_PHASE_UPDATE;
  op.piece = -1;
  op.lane = hk_graph_lane(graph, lane, op.rank, &err);
  assert_true(op.lane >= 0);
  const int32_t id = hk_graph_add(graph, &op, &after, 1, &err);
  assert_true(id >= 0);
  return id;
}

static hk_graph graph_of(int ranks, int multiplicity) {
  return (hk_graph){.ranks = ranks,
                    .multiplicity = multiplicity,
                    .world = ranks * multiplicity,
                    .nodes = 1,
                    .tp = 1,
                    .layers = 1};
}

/* -- Rates ------------------------------------------------------------------------------------- */

#define H2D_OF_RANK_1 (HK_RES_COUNT + HK_RES_H2D)

/* Two copies to the GPU of rank 1, 7 ns into a run: each could move 10 bytes a second, and they
 * share a link of 16. */
typedef struct {
  hk_graph graph;
  hk_error err;
  hk_active_op active[2];
  int32_t running[2];
  hk_share_use use;
  double capacity[2 * HK_RES_COUNT], used[2 * HK_RES_COUNT];
  hk_sim_state state;
} sharing;

static void begin_sharing(sharing *s) {
  *s = (sharing){.graph = graph_of(2, 1), .running = {0, 1}, .use = {H2D_OF_RANK_1, 1}};
  for (int i = 0; i < 2; i++) {
    const hk_op copy = {.kind = HK_OP_STATE_H2D, .rank = 1, .subgroup = i, .work = 100};
    s->active[i] = (hk_active_op){.op = add(&s->graph, HK_LANE_H2D, copy, -1), .fluid = true};
    s->active[i].activity = (hk_activity){.cap = 10, .weight = 1, .uses = &s->use, .n_uses = 1};
    s->active[i].activity.rate = 8;
  }
  for (int r = 0; r < 2 * HK_RES_COUNT; r++) s->capacity[r] = 1000;
  s->capacity[H2D_OF_RANK_1] = s->used[H2D_OF_RANK_1] = 16;
  s->state = (hk_sim_state){.graph = &s->graph,
                            .err = &s->err,
                            .now = 7,
                            .active = s->active,
                            .running = s->running,
                            .n_running = 2,
                            .capacity = s->capacity,
                            .used = s->used,
                            .n_resources = 2 * HK_RES_COUNT};
}

static void expect_broken_sharing(sharing *s, int n_activities, const char *message) {
  expect_broken(hk_check_rates(&s->state, n_activities), &s->err, message);
  hk_graph_free(&s->graph);
}

static void sound_rates_pass(void **state) {
  (void)state;
  sharing s;
  begin_sharing(&s);
  must(hk_check_rates(&s.state, 2), &s.err);
  /* An operation at its cap need not fill a resource. */
  s.capacity[H2D_OF_RANK_1] = 21;
  s.used[H2D_OF_RANK_1] = 20;
  s.active[0].activity.rate = s.active[1].activity.rate = 10;
  must(hk_check_rates(&s.state, 2), &s.err);
  /* An operation in its latency has no rate. */
  s.active[1].fluid = false;
  s.active[1].activity.rate = 0;
  must(hk_check_rates(&s.state, 1), &s.err);
  hk_graph_free(&s.graph);
}

static void a_resource_over_its_capacity(void **state) {
  (void)state;
  sharing s;
  begin_sharing(&s);
  s.used[H2D_OF_RANK_1] = 16.5;
  expect_broken_sharing(
      &s, 2,
      "invariant broken: h2d of rank 1 carries 16.5 bytes_per_s, its capacity is 16 (at 7 ns)");
  begin_sharing(&s);
  s.used[HK_RES_CORES] = 1000.5;
  expect_broken_sharing(&s, 2,
                        "invariant broken: cores of rank 0 carries 1000.5 seconds_per_s, its "
                        "capacity is 1000 (at 7 ns)");
}

static void a_rate_that_cannot_be(void **state) {
  (void)state;
  static const double rates[] = {0, -1, 10.5, NAN};
  for (size_t i = 0; i < COUNT(rates); i++) {
    sharing s;
    begin_sharing(&s);
    s.active[1].activity.rate = rates[i];
    expect_broken_sharing(
        &s, 2,
        "invariant broken: a rate is not within (0, cap] (operation 1, state_h2d sg1, at 7 ns)");
  }
}

/* Both copies below their caps, and 0.5 bytes a second of the link left. */
static void capacity_left_idle(void **state) {
  (void)state;
  sharing s;
  begin_sharing(&s);
  s.used[H2D_OF_RANK_1] = 15.5;
  expect_broken_sharing(&s, 2,
                        "invariant broken: capacity is left idle while work waits for it "
                        "(operation 0, state_h2d sg0, at 7 ns)");
}

static void activities_that_are_not_under_way(void **state) {
  (void)state;
  sharing s;
  begin_sharing(&s);
  expect_broken_sharing(&s, 3, "invariant broken: 3 activities share resources, 2 have a rate");
  begin_sharing(&s);
  s.active[0].fluid = false;
  expect_broken_sharing(&s, 2, "invariant broken: 2 activities share resources, 1 have a rate");
}

/* -- Finished runs ----------------------------------------------------------------------------- */

/* Two subgroups on the schoolbook machine: the first one's state comes in from 0 to 1200, is
 * updated until 1300 and goes back until 2775; the second one's comes in from 1200 to 2675. From
 * 1300 on both directions share 16 bytes a nanosecond. */
enum { IN_0, IN_1, GPU_0, OUT_0, OPERATIONS };

typedef struct {
  hk_graph graph;
  hk_machine machine;
  hk_result result;
  hk_bytes gpu_memory[1];
  hk_error err;
} finished;

static finished finish(int multiplicity, hk_ns hop) {
  finished f = {.graph = graph_of(1, multiplicity), .machine = schoolbook_machine()};
  f.machine.gpu_hop.value = (double)hop;
  f.graph.gpu_base = f.gpu_memory[0] = 100;
  const hk_op in_0 = {.kind = HK_OP_STATE_H2D, .work = 12000, .gpu_alloc = 5};
  const hk_op in_1 = {.kind = HK_OP_STATE_H2D, .work = 12000, .subgroup = 1};
  const hk_op gpu_0 = {.kind = HK_OP_ADAMW_GPU, .work = 1000};
  const hk_op out_0 = {.kind = HK_OP_STATE_D2H, .work = 12000, .gpu_free = 5};
  add(&f.graph, HK_LANE_H2D, in_0, -1);
  add(&f.graph, HK_LANE_H2D, in_1, -1);
  add(&f.graph, HK_LANE_UPDATE, gpu_0, IN_0);
  add(&f.graph, HK_LANE_D2H, out_0, GPU_0);
  must(hk_simulate(&f.graph, &f.machine, NULL, &f.result, &f.err), &f.err);
  return f;
}

static void release(finished *f) {
  hk_result_free(&f->result);
  hk_graph_free(&f->graph);
}

static hk_status check(finished *f) {
  const hk_sim_state s = {.graph = &f->graph,
                          .machine = &f->machine,
                          .result = &f->result,
                          .err = &f->err,
                          .now = f->result.timeline.makespan,
                          .gpu_memory = f->gpu_memory};
  return hk_check_result(&s);
}

static void expect_broken_result(finished *f, const char *message) {
  expect_broken(check(f), &f->err, message);
  release(f);
}

static void sound_results_pass(void **state) {
  (void)state;
  for (int multiplicity = 1; multiplicity <= 4; multiplicity += 3) {
    for (hk_ns hop = 0; hop <= 50; hop += 50) {
      finished f = finish(multiplicity, hop);
      const hk_ns end = f.result.timeline.spans[OUT_0].end;
      if (hop == 0) assert_int_equal(end, 2775);
      must(check(&f), &f.err);
      release(&f);
    }
  }
}

static void operations_out_of_order(void **state) {
  (void)state;
  static const struct {
    int op;
    hk_ns ready, start, end; /* what is added to them */
    const char *message;
  } cases[] = {
      {OUT_0, 0, 0, -2000,
       "invariant broken: never ended (operation 3, state_d2h sg0, at 2775 ns)"},
      {IN_1, 0, -1, 0,
       "invariant broken: overlaps the operation before it on its lane (operation 1, state_h2d "
       "sg1, at 2775 ns)"},
      {GPU_0, 0, -1, 0,
       "invariant broken: started before a dependency let it (operation 2, adamw_gpu sg0, at 2775 "
       "ns)"},
      {OUT_0, 0, 1, 0,
       "invariant broken: started later than it could (operation 3, state_d2h sg0, at 2775 ns)"},
      {GPU_0, 1, 0, 0,
       "invariant broken: is not ready when its last dependency ends (operation 2, adamw_gpu sg0, "
       "at 2775 ns)"},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    finished f = finish(1, 0);
    hk_span *span = &f.result.timeline.spans[cases[i].op];
    span->ready += cases[i].ready;
    span->start += cases[i].start;
    span->end += cases[i].end;
    expect_broken_result(&f, cases[i].message);
  }
}

/* gpu.hop_ns is 50, but the run was simulated with 0: operations start 50 ns too early. */
static void a_hop_left_out(void **state) {
  (void)state;
  finished f = finish(1, 0);
  f.machine.gpu_hop.value = 50;
  expect_broken_result(&f,
                       "invariant broken: started before a dependency let it (operation 2, "
                       "adamw_gpu sg0, at 2775 ns)");
}

static void bytes_lost_on_the_way(void **state) {
  (void)state;
  finished f = finish(1, 0);
  f.result.used[HK_RES_H2D] = 23950;
  expect_broken_result(&f, "invariant broken: h2d carried 23950, the operations had 24000 to move");
  f = finish(1, 0);
  f.result.used[HK_RES_NVLINK] = 1;
  expect_broken_result(&f, "invariant broken: nvlink carried 1, the operations had 0 to move");
  /* One rank stands for four, which share host memory. */
  f = finish(4, 0);
  f.result.used[HK_RES_DRAM] = 36000;
  expect_broken_result(&f,
                       "invariant broken: dram carried 36000, the operations had 144000 to move");
}

/* Each resource that carried something: 10 % too little and 10 % too much are found. */
static void every_resource_is_accounted_for(void **state) {
  (void)state;
  int resources = 0;
  for (int r = 0; r < HK_RES_COUNT; r++) {
    for (int tenths = 9; tenths <= 11; tenths += 2) {
      finished f = finish(1, 0);
      if (f.result.used[r] > 0) {
        char begin[64];
        resources++;
        f.result.used[r] *= tenths / 10.0;
        assert_int_equal(check(&f), HK_NO);
        snprintf(begin, sizeof begin, "invariant broken: %s carried ",
                 hk_resource_name((hk_resource)r));
        assert_ptr_equal(strstr(f.err.message, begin), f.err.message);
      }
      release(&f);
    }
  }
  /* gpu, hbm, h2d, d2h, pcie, dram, and the fabric's two directions and sum */
  assert_int_equal(resources, 2 * 9);
}

static void memory_that_does_not_add_up(void **state) {
  (void)state;
  finished f = finish(1, 0);
  f.gpu_memory[0] = -1;
  expect_broken_result(&f, "invariant broken: rank 0 ends with -1 bytes of GPU memory");
  f = finish(1, 0);
  f.graph.ops[GPU_0].gpu_free = -8;
  expect_broken_result(&f,
                       "invariant broken: takes or gives back a negative amount of memory "
                       "(operation 2, adamw_gpu sg0, at 2775 ns)");
  /* An update alone may leave memory taken; a whole iteration may not. */
  f = finish(1, 0);
  f.gpu_memory[0] = 105;
  must(check(&f), &f.err);
  hk_op *forward = &f.graph.ops[GPU_0]; /* as much work for the GPU, without its bytes */
  forward->kind = HK_OP_FORWARD;
  forward->work = 0;
  f.result.used[HK_RES_GPU] = f.result.used[HK_RES_HBM] = 0;
  expect_broken_result(&f,
                       "invariant broken: rank 0 begins an iteration with 100 bytes of GPU memory "
                       "and ends it with 105 (net 0)");
}

/* 1200 in, 100 on the GPU and 1200 out, each alone on the machine. */
static void shorter_than_the_critical_path(void **state) {
  (void)state;
  finished f = finish(1, 0);
  f.result.timeline.makespan = 2400;
  const hk_ns path = hk_critical_path(&f.graph, &f.machine, HK_EXPAND_ALL, &f.err);
  char message[128];
  assert_in_range(path, 2490, 2500); /* a nanosecond may be rounded away from each */
  snprintf(message, sizeof message, "invariant broken: makespan 2400 ns, critical path %lld ns",
           (long long)path);
  expect_broken_result(&f, message);
}

/* -- Simulation calls the checks --------------------------------------------------------------- */

/* A negative matrix rate, which no machine file may have. */
static void simulating_checks_rates(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  const hk_sim_options options = {.check = true};
  hk_graph graph = graph_of(1, 1);
  hk_result result;
  hk_error err = {0};
  m.gpu_flops.value = -1e9;
  const hk_op forward = {.kind = HK_OP_FORWARD, .work = 1000, .subgroup = -1, .block = 1};
  add(&graph, HK_LANE_GPU, forward, -1);
  expect_broken(
      hk_simulate(&graph, &m, &options, &result, &err), &err,
      "invariant broken: a rate is not within (0, cap] (operation 0, forward head, at 0 ns)");
  hk_graph_free(&graph);
}

/* CPU kernels twice as fast beside copies as alone, which no machine file may have either. */
static hk_machine accelerated_by_copies(void) {
  hk_machine m = schoolbook_machine();
  m.cpu_beside_h2d.value = 2;
  return m;
}

/* 1000 parameters take 1000 ns alone (the critical path) and 500 ns beside the copy of 600 ns. */
static void simulating_checks_the_result(void **state) {
  (void)state;
  const hk_machine m = accelerated_by_copies();
  const hk_sim_options options = {.check = true};
  hk_graph graph = graph_of(1, 1);
  hk_result result;
  hk_error err = {0};
  add(&graph, HK_LANE_CPU, (hk_op){.kind = HK_OP_ADAMW_CPU, .work = 1000, .threads = 1}, -1);
  add(&graph, HK_LANE_H2D, (hk_op){.kind = HK_OP_STATE_H2D, .work = 6000}, -1);
  const hk_ns path = hk_critical_path(&graph, &m, HK_EXPAND_ALL, &err);
  char message[128];
  assert_in_range(path, 999, 1000);
  snprintf(message, sizeof message, "invariant broken: makespan 600 ns, critical path %lld ns",
           (long long)path);
  expect_broken(hk_simulate(&graph, &m, &options, &result, &err), &err, message);
  hk_graph_free(&graph);
}

/* -- Bounds ------------------------------------------------------------------------------------ */

static hk_status forecast_of(const hk_machine *machine, const hk_policy *policy, double ratio,
                             bool cores_unbound, hk_overlap overlap, hk_error *err) {
  hk_model model = tiny_model(2);
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 8};
  const hk_candidate candidate = {policy, {.ratio = ratio}, HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {.subgroup_numel = 10000,
                                     .cpu_threads = 1,
                                     .cores_unbound = cores_unbound,
                                     .overlap = overlap};
  hk_plan plan;
  hk_forecast forecast;
  must(hk_candidate_plan(&candidate, &model, machine, &job, &settings, &plan, err), err);
  const hk_status status = hk_forecast_make(&plan, machine, NULL, &forecast, err);
  if (status == HK_OK) hk_forecast_free(&forecast);
  hk_model_free(&model);
  return status;
}

/* The message names `binding`, and the update time in it is below the bound in it. */
static void expect_below_bound(const hk_error *err, const char *binding) {
  long long update = 0, bound = 0;
  char got[32] = "";
  const int n = sscanf(err->message,
                       "invariant broken: the update takes %lld ns, its lower bound (%31[^)]) is "
                       "%lld ns",
                       &update, got, &bound);
  if (n != 3) fail_msg("said '%s'", err->message);
  assert_string_equal(got, binding);
  assert_true(update < bound);
}

/* Kernels that copies accelerate are faster than the critical path of their own graph. */
static void a_forecast_below_the_bound_of_its_graph(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = schoolbook_machine();
  must(forecast_of(&m, &hk_policy_zero_offload, -1, false, HK_OVERLAP_NONE, &err), &err);
  m = accelerated_by_copies();
  assert_int_equal(forecast_of(&m, &hk_policy_zero_offload, -1, false, HK_OVERLAP_NONE, &err),
                   HK_NO);
  expect_below_bound(&err, "critical path");
}

/* Teams that are not bound to cores, with dram.unbound = 100: their bytes count a hundredth. The
 * bound of the graph counts them the same way and holds; the bound of the machine does not. */
static void a_forecast_below_the_physical_bound(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = schoolbook_machine();
  m.dram.value = m.dram_with_dma.value = 14e9;
  m.gpu_hbm.value = m.mapped.value = 1e8;
  must(forecast_of(&m, &hk_policy_zero_offload, -1, true, HK_OVERLAP_NONE, &err), &err);
  m.dram_unbound.value = 100;
  assert_int_equal(forecast_of(&m, &hk_policy_zero_offload, -1, true, HK_OVERLAP_NONE, &err),
                   HK_NO);
  expect_below_bound(&err, "dram");
}

/* With an overlap: a CPU that is faster beside copies is above the bound of the average period. */
static void a_period_below_its_bound(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = schoolbook_machine();
  must(forecast_of(&m, &hk_policy_zero_offload, -1, false, HK_OVERLAP_BOTH, &err), &err);
  m.cpu_beside_h2d.value = m.cpu_beside_d2h.value = 2;
  assert_int_equal(forecast_of(&m, &hk_policy_zero_offload, -1, false, HK_OVERLAP_BOTH, &err),
                   HK_NO);
  if (strstr(err.message, "invariant broken: the period is ") == NULL)
    fail_msg("said '%s'", err.message);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sound_rates_pass),
      cmocka_unit_test(a_resource_over_its_capacity),
      cmocka_unit_test(a_rate_that_cannot_be),
      cmocka_unit_test(capacity_left_idle),
      cmocka_unit_test(activities_that_are_not_under_way),
      cmocka_unit_test(sound_results_pass),
      cmocka_unit_test(operations_out_of_order),
      cmocka_unit_test(a_hop_left_out),
      cmocka_unit_test(bytes_lost_on_the_way),
      cmocka_unit_test(every_resource_is_accounted_for),
      cmocka_unit_test(memory_that_does_not_add_up),
      cmocka_unit_test(shorter_than_the_critical_path),
      cmocka_unit_test(simulating_checks_rates),
      cmocka_unit_test(simulating_checks_the_result),
      cmocka_unit_test(a_forecast_below_the_bound_of_its_graph),
      cmocka_unit_test(a_forecast_below_the_physical_bound),
      cmocka_unit_test(a_period_below_its_bound),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
