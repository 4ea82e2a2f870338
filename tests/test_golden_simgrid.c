/* SPDX-License-Identifier: GPL-3.0-or-later */
/* SimGrid as referee (tests/simgrid_referee.h): equal makespans for the plans of all policies
 * and for random graphs. Built only where SimGrid is installed. */
#include <stdio.h>
#include <stdlib.h>

#include "core/machine/team.h"
#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/random.h"
#include "tests/simgrid_referee.h"

#define RANDOM_GRAPHS 40
#define LEAST_GRAPHS  50

/* Relative. hocket rounds to nanoseconds and approximates nothing else. */
#define MOST_DIFFERENCE 2e-6

static struct {
  int graphs;
  int64_t operations;
  double worst;
  char worst_name[200];
} seen;

static void expect_agreement(const hk_graph *graph, const hk_machine *machine, const char *name) {
  hk_error err = {0};
  hk_comparison c = {0};
  must(hk_referee_compare(graph, machine, 1, &c, &err), &err);
  assert_true(c.hocket_s > 0);
  const double difference = fabs(c.simgrid_s - c.hocket_s) / c.hocket_s;
  seen.graphs++;
  seen.operations += c.operations;
  if (!(difference <= seen.worst)) {
    seen.worst = difference;
    snprintf(seen.worst_name, sizeof seen.worst_name, "%s", name);
  }
  if (!(difference <= MOST_DIFFERENCE)) {
    fail_msg("%s: hocket %.9f s, SimGrid %.9f s", name, c.hocket_s, c.simgrid_s);
  }
}

/* -- plans ------------------------------------------------------------------------------------- */

static const struct {
  const hk_policy *policy;
  hk_policy_options options;
  hk_runtime runtime;
} policies[] = {
    {&hk_policy_zero_offload, {.ratio = -1}, HK_RUNTIME_DEEPSPEED},
    {&hk_policy_twinflow, {.ratio = 0.8}, HK_RUNTIME_DEEPSPEED},
    {&hk_policy_interleave, {.stride = 2, .ratio = -1}, HK_RUNTIME_DEEPSPEED},
    {&hk_policy_gpu_only, {.ratio = -1}, HK_RUNTIME_HOCKET},
    {&hk_policy_zero_offload, {.ratio = -1}, HK_RUNTIME_HOCKET},
    {&hk_policy_interleave, {.stride = 2, .ratio = 0.9}, HK_RUNTIME_HOCKET},
    {&hk_policy_interleave, {.stride = 3, .ratio = -1, .buffers = 4}, HK_RUNTIME_HOCKET},
    {&hk_policy_streamed, {.ratio = -1}, HK_RUNTIME_HOCKET},
    {&hk_policy_mapped, {.ratio = -1}, HK_RUNTIME_HOCKET},
};

/* Replaces dram.unbound_efficiency (0.66 for polaris-a100-4x40gb, whose jobs are unbound here): a
 * byte of an unbound team counts 3/2 on host memory and 1 on its process's memory. SimGrid's routes
 * need a ratio of whole numbers. */
#define WHOLE_RATIO (2.0 / 3)

/* Few and large subgroups: the comparison is of resource sharing, and unfolded graphs stay small.
 */
static const struct {
  const char *model, *machine;
  hk_job job;
  int64_t subgroup_numel;
  bool folded, unbound;
} jobs[] = {
    {"llama-2-7b",
     "h200-16c",
     {1, 1, 1, 1, 1, 2048, true, 1, 1, 1, false, 1, 1},
     100000000,
     true,
     false},
    {"qwen3-8b",
     "workstation-rtx4090-ddr5",
     {1, 1, 1, 1, 2, 1024, false, 1, 1, 1, false, 1, 1},
     100000000,
     true,
     false},
    {"llama-2-13b",
     "polaris-a100-4x40gb",
     {4, 1, 1, 2, 1, 2048, true, 1, 1, 1, false, 1, 1},
     100000000,
     true,
     false},
    {"dos-20b",
     "jlse-h100-4x80gb",
     {4, 2, 1, 1, 1, 2048, true, 1, 1, 1, false, 1, 1},
     200000000,
     true,
     false},
    {"llama-3-70b",
     "dgx-h100-8x80gb",
     {8, 4, 2, 1, 1, 4096, true, 1, 1, 1, false, 1, 1},
     100000000,
     true,
     false},
    {"gpt2",
     "polaris-a100-4x40gb",
     {2, 1, 1, 1, 1, 1024, false, 1, 1, 1, false, 1, 1},
     10000000,
     false,
     false},
    {"llama-2-7b",
     "jlse-h100-4x80gb",
     {4, 1, 1, 1, 1, 2048, true, 1, 1, 1, false, 1, 1},
     200000000,
     false,
     false},
    {"llama-2-7b",
     "polaris-a100-4x40gb",
     {4, 1, 1, 1, 2, 2048, true, 1, 1, 1, false, 1, 1},
     200000000,
     true,
     true},
    {"llama-2-7b",
     "polaris-a100-4x40gb",
     {2, 2, 1, 1, 1, 2048, true, 1, 1, 1, false, 1, 1},
     200000000,
     false,
     true},
};

static void compare_plan(size_t j, size_t p, const hk_model *model, const hk_machine *machine) {
  hk_error err = {0};
  hk_plan plan = {0};
  hk_graph graph = {0};
  char name[200];
  const hk_candidate candidate = {policies[p].policy, policies[p].options, policies[p].runtime};
  const hk_plan_settings settings = {.subgroup_numel = jobs[j].subgroup_numel,
                                     .cores_unbound = jobs[j].unbound};
  must(hk_candidate_plan(&candidate, model, machine, &jobs[j].job, &settings, &plan, &err), &err);
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = jobs[j].folded}, &graph, &err),
       &err);
  snprintf(name, sizeof name, "%s on %s, %s under %s", jobs[j].model, jobs[j].machine, plan.policy,
           hk_runtime_name(plan.runtime));
  expect_agreement(&graph, machine, name);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

static void test_plans(void **state) {
  (void)state;
  for (size_t j = 0; j < sizeof jobs / sizeof jobs[0]; j++) {
    hk_error err = {0};
    hk_model model = {0};
    hk_machine machine = {0};
    must(hk_model_load(jobs[j].model, &model, &err), &err);
    must(hk_machine_load(jobs[j].machine, &machine, &err), &err);
    machine.dram_unbound.value = WHOLE_RATIO;
    hk_referee_leave_out(&machine);
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
      compare_plan(j, p, &model, &machine);
    }
    hk_machine_free(&machine);
    hk_model_free(&model);
  }
}

/* -- random graphs ----------------------------------------------------------------------------- */

/* Operations of any kind on any lane of any rank, each after up to three others: more combinations
 * at once than any plan has. */
static hk_graph random_graph(random_stream *r, const hk_machine *machine) {
  hk_error err = {0};
  hk_graph graph = {.ranks = pick(r, 1, 3), .multiplicity = 1, .nodes = 1, .tp = 1, .layers = 1};
  if (graph.ranks == 1) graph.multiplicity = pick(r, 1, 8);
  graph.world = graph.ranks * graph.multiplicity;
  graph.cores_unbound = pick(r, 0, 1);
  /* A larger team would be slower beside forward and backward, but a SimGrid flow has one cap. */
  const int share = (int)machine->cores.value / (graph.cores_unbound ? 1 : graph.world);
  const int most = share - hk_framework_cores(share);
  const int n = pick(r, 20, 200), lanes = pick(r, 2, HK_LANE_KIND_COUNT);
  for (int i = 0; i < n; i++) {
    hk_op op = {.kind = (hk_op_kind)pick(r, 0, HK_OP_KIND_COUNT - 1),
                .rank = pick(r, 0, graph.ranks - 1),
                .subgroup = -1,
                .piece = -1,
                .threads = pick(r, 1, most < 1 ? 32 : most)};
    op.lane = hk_graph_lane(&graph, (hk_lane_kind)pick(r, 0, lanes - 1), op.rank, &err);
    /* All mapped kernels of a rank are on one lane: several at once would leave a copy more than
     * its weight, which a SimGrid flow cannot express. */
    if (op.kind == HK_OP_ADAMW_MAPPED) {
      op.lane = hk_graph_lane(&graph, HK_LANE_UPDATE, op.rank, &err);
    }
    assert_true(op.lane >= 0);
    const hk_demand demand = hk_demand_of(&graph, &op, machine);
    op.work = isfinite(demand.cap) ? (int64_t)(demand.cap * scale(r, 1e-5, 1)) : 1;
    int32_t deps[3];
    for (int d = 0; d < 3; d++) deps[d] = pick(r, -3, i - 1);
    for (int d = 0; d < 3; d++) deps[d] = deps[d] < 0 ? -1 : deps[d];
    assert_true(hk_graph_add(&graph, &op, deps, 3, &err) == i);
  }
  return graph;
}

/* A random machine on which every resource can limit. */
static hk_machine busy_node(random_stream *r) {
  hk_machine m = random_node(r);
  m.cores.value = pick(r, 1, 64);
  m.dram_process.value = m.dram.value * scale(r, 0.2, 1);
  m.dram_unbound.value = 2.0 / pick(r, 2, 5);
  m.gpu_flops.value = scale(r, 1e13, 1e15);
  m.h2d_pageable.value = m.d2h_pageable.value = scale(r, 1e9, 1e10);
  m.cpu_adamw_threads.value = scale(r, 1, 20);
  m.cpu_unscale.value = m.cpu_adamw_fp32.value = m.cpu_cast.value = scale(r, 3e8, 2e10);
  m.nvlink.value = scale(r, 1e10, 1e12);
  m.nvlink_latency.value = 10000;
  m.layer_launch.value = m.subgroup_overhead.value = 1e6;
  /* Limits of SimGrid: a route crosses a link a whole number of times; a flow has one weight and
   * one cap. */
  m.h2d_cost.value = pick(r, 1, 4);
  m.d2h_cost.value = pick(r, 1, 2);
  m.dram_with_dma.value = m.dram.value * scale(r, 0.7, 1 + m.h2d_cost.value / 2);
  m.cpu_cast_threads.value = pick(r, 0, 10);
  return m;
}

static void test_random_graphs(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= RANDOM_GRAPHS; seed++) {
    random_stream r = {seed * 6151};
    char name[40];
    const hk_machine machine = busy_node(&r);
    hk_graph graph = random_graph(&r, &machine);
    snprintf(name, sizeof name, "random graph %d", (int)seed);
    expect_agreement(&graph, &machine, name);
    hk_graph_free(&graph);
  }
}

/* -- the referee itself ------------------------------------------------------------------------ */

/* The referee is not blind: 1 % less host memory makes its makespan 1 % longer. */
static void test_referee_sees(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = ideal_machine();
  machine.h2d.value = machine.d2h.value = 50e9;
  machine.dram.value = machine.dram_with_dma.value = 60e9;
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .world = 1, .nodes = 1, .tp = 1, .layers = 1};
  const hk_op in = {.kind = HK_OP_STATE_H2D,
                    .work = 30000000000,
                    .lane = hk_graph_lane(&graph, HK_LANE_H2D, 0, &err)};
  const hk_op out = {.kind = HK_OP_STATE_D2H,
                     .work = 30000000000,
                     .lane = hk_graph_lane(&graph, HK_LANE_D2H, 0, &err)};
  assert_int_equal(hk_graph_add(&graph, &in, NULL, 0, &err), 0);
  assert_int_equal(hk_graph_add(&graph, &out, NULL, 0, &err), 1);
  for (int percent = 0; percent <= 1; percent++) {
    hk_comparison c = {0};
    machine.dram.value = machine.dram_with_dma.value = 60e9 / (1 + percent / 100.0);
    must(hk_referee_compare(&graph, &machine, 1, &c, &err), &err);
    assert_true(fabs(c.simgrid_s - 1 - percent / 100.0) < 1e-8);
  }
  hk_graph_free(&graph);
}

/* Machines with effects that a SimGrid flow cannot express are refused. */
static void test_refusals(void **state) {
  (void)state;
  const struct {
    size_t quantity;
    double value;
    const char *message;
  } cases[] = {
      {offsetof(hk_machine, cpu_beside_h2d), 0.9, "CPU kernels are slower beside copies"},
      {offsetof(hk_machine, cpu_beside_d2h), 0.9, "CPU kernels are slower beside copies"},
      {offsetof(hk_machine, h2d_loaded), 1e9, "copies are slower beside CPU kernels"},
      {offsetof(hk_machine, d2h_priority), 2, "a copy out has priority"},
      {offsetof(hk_machine, d2h_cost), M_PI, "no route"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    hk_error err = {0};
    hk_comparison c = {0};
    hk_machine machine = ideal_machine();
    ((hk_quantity *)((char *)&machine + cases[i].quantity))->value = cases[i].value;
    hk_graph graph = {.ranks = 1, .multiplicity = 1, .world = 1, .nodes = 1, .tp = 1, .layers = 1};
    const hk_op out = {
        .kind = HK_OP_STATE_D2H, .work = 1000, .lane = hk_graph_lane(&graph, HK_LANE_D2H, 0, &err)};
    assert_int_equal(hk_graph_add(&graph, &out, NULL, 0, &err), 0);
    assert_int_equal(hk_referee_compare(&graph, &machine, 1, &c, &err), HK_INPUT);
    if (strstr(err.message, cases[i].message) == NULL) fail_msg("%s", err.message);
    hk_graph_free(&graph);
  }
}

static int report(void **state) {
  (void)state;
  print_message("%d graphs, %lld operations; largest difference %.2g %% (%s)\n", seen.graphs,
                (long long)seen.operations, 100 * seen.worst, seen.worst_name);
  return seen.graphs >= LEAST_GRAPHS ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_referee_sees),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_random_graphs),
      cmocka_unit_test(test_plans),
  };
  return cmocka_run_group_tests(tests, NULL, report);
}
