/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Comparison of two timelines of one graph: causes add up to the difference of the makespans, and
 * an introduced delay is charged to its cause. */
#include "traces/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "calib/validate/validate.h"
#include "sim/forecast.h"
#include "tests/random.h"

/* -- Subjects ---------------------------------------------------------------------------------- */

/* 55 M parameters: operations of some 100 us to some ms. */
static hk_model middling_model(void) {
  return model_of(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 3, \"hidden_size\": "
      "1024, \"intermediate_size\": 2816, \"num_attention_heads\": 8, \"num_key_value_heads\": 8, "
      "\"vocab_size\": 8192, \"max_position_embeddings\": 4096}",
      "middling");
}

/* Round figures of a node like an H200's. */
static hk_machine node(void) {
  hk_machine m = ideal_machine();
  m.gpu_hbm.value = 4e12;
  m.gpu_launch.value = 5000;
  m.h2d_latency.value = m.d2h_latency.value = 10000;
  m.h2d.value = m.d2h.value = 50e9;
  m.duplex.value = 90e9;
  m.mapped.value = 80e9;
  m.dram.value = 160e9;
  m.dram_with_dma.value = 150e9;
  m.cpu_adamw.value = m.cpu_adamw_fp32.value = 4e9;
  return m;
}

/* Subgroups of one piece and of many sizes: durations that depend on the size separate a latency
 * from a rate. After each staged subgroup come `others` CPU subgroups. */
static hk_plan uneven_plan(random_stream *r, size_t others) {
  static const hk_job job = {
      .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 64};
  hk_error err = {0};
  hk_plan plan;
  hk_model model = middling_model();
  must(hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 2000000, &plan, &err),
       &err);
  hk_model_free(&model);
  plan.piece_numel = 8000000;
  for (size_t i = 0; i + 1 < plan.n_subgroups; i += 2) {
    const int64_t moved = (int64_t)(uniform(r) * 0.9 * (double)plan.subgroups[i].numel);
    plan.subgroups[i].numel -= moved;
    plan.subgroups[i + 1].numel += moved;
  }
  for (size_t i = 0; i < plan.n_subgroups; i += 1 + others)
    plan.subgroups[i].route = HK_ROUTE_STAGED; /* the default is CPU */
  for (size_t i = 1; i < plan.n_subgroups; i++) {
    const size_t other = next(r) % (i + 1);
    const int32_t swap = plan.order[i];
    plan.order[i] = plan.order[other];
    plan.order[other] = swap;
  }
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static hk_timeline simulated(const hk_graph *graph, const hk_machine *machine) {
  hk_error err = {0};
  hk_result result;
  must(hk_simulate(graph, machine, NULL, &result, &err), &err);
  return result.timeline;
}

/* A plan's update predicted on a machine: the input of a comparison. */
typedef struct {
  hk_plan plan;
  hk_graph graph;
  hk_machine machine;
  hk_timeline predicted;
  hk_op_cost *costs;
} subject;

/* Takes over *plan. */
static subject subject_of(hk_plan *plan, const hk_machine *machine) {
  hk_error err = {0};
  subject s = {.plan = *plan, .machine = *machine};
  must(hk_graph_build(&s.plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &s.graph, &err),
       &err);
  s.predicted = simulated(&s.graph, machine);
  must(hk_op_costs(&s.graph, machine, &s.costs, &err), &err);
  return s;
}

static subject uneven(uint64_t seed, size_t others) {
  random_stream r = {seed};
  hk_plan plan = uneven_plan(&r, others);
  const hk_machine machine = node();
  return subject_of(&plan, &machine);
}

static void drop(subject *s) {
  hk_timeline_free(&s->predicted);
  hk_graph_free(&s->graph);
  hk_plan_free(&s->plan);
  free(s->costs);
}

/* Changes to an operation: its duration, a gap before it, and another operation with a smaller id
 * that it waits for (-1: none). */
typedef struct {
  hk_ns *duration, *gap;
  int32_t *waits_for;
} retiming;

/* No changes. */
static retiming as_predicted(const subject *s) {
  const size_t n = s->graph.n_ops;
  retiming t = {calloc(n, sizeof *t.duration), calloc(n, sizeof *t.gap),
                malloc(n * sizeof *t.waits_for)};
  assert_true(t.duration != NULL && t.gap != NULL && t.waits_for != NULL);
  for (size_t i = 0; i < n; i++) {
    t.duration[i] = s->predicted.spans[i].end - s->predicted.spans[i].start;
    t.waits_for[i] = -1;
  }
  return t;
}

/* The timeline with these changes: operations in the order of the graph, each as early as possible.
 * Frees `t`. */
static hk_timeline replayed(const subject *s, retiming *t) {
  hk_error err = {0};
  hk_timeline out;
  const hk_graph *g = &s->graph;
  hk_ns *lane = calloc(g->n_lanes, sizeof *lane);
  assert_non_null(lane);
  must(hk_timeline_init(g, &out, &err), &err);
  for (size_t i = 0; i < g->n_ops; i++) {
    const hk_op *op = &g->ops[i];
    hk_ns ready = lane[op->lane];
    for (int32_t d = op->deps_begin; d < op->deps_end; d++)
      ready = hk_max(ready, out.spans[g->deps[d]].end);
    hk_ns start = ready;
    if (t->waits_for[i] >= 0) start = hk_max(start, out.spans[t->waits_for[i]].end);
    start += t->gap[i];
    out.spans[i] = (hk_span){ready, start, start + t->duration[i]};
    lane[op->lane] = out.spans[i].end;
  }
  hk_timeline_phases(g, &out);
  free(lane);
  free(t->duration);
  free(t->gap);
  free(t->waits_for);
  return out;
}

/* -- Sums -------------------------------------------------------------------------------------- */

/* Holds for any two timelines: causes add up to the difference of the makespans, operations of the
 * path follow each other in time, busy and queued times add up to the durations. */
static void assert_sound(const subject *s, const hk_timeline *measured,
                         const hk_timeline_comparison *c) {
  hk_ns all = 0, of_kinds = 0;
  for (int cause = 0; cause < HK_CAUSE_COUNT; cause++) {
    hk_ns kinds = 0;
    for (int k = 0; k < HK_OP_KIND_COUNT; k++) kinds += c->kinds[k].causes[cause];
    if (cause != HK_CAUSE_DEPENDENCY) assert_int_equal(kinds, c->causes[cause]);
    all += c->causes[cause];
    of_kinds += kinds;
    assert_true(llabs(c->causes[cause]) <= llabs(c->causes[c->main_cause]));
  }
  assert_int_equal(all, c->makespan.measured - c->makespan.predicted);
  assert_true(of_kinds >= all); /* the slack of the path (<= 0) belongs to no kind */

  assert_true(c->n_path > 0);
  for (size_t i = 1; i < c->n_path; i++)
    assert_true(measured->spans[c->path[i]].start >= measured->spans[c->path[i - 1]].end);
  assert_int_equal(measured->spans[c->path[c->n_path - 1]].end, c->makespan.measured);

  hk_ns busy = 0, work = 0;
  size_t n = 0;
  for (size_t l = 0; l < c->n_lanes; l++) {
    busy += c->lanes[l].busy.measured + c->lanes[l].queued.measured;
    assert_true(c->lanes[l].busy.measured >= 0 && c->lanes[l].queued.measured >= 0);
    assert_true(c->lanes[l].idle.predicted >= 0 && c->lanes[l].idle.measured >= 0);
  }
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    work += c->kinds[k].total.measured;
    n += c->kinds[k].n;
  }
  assert_int_equal(busy, work);
  assert_int_equal(n, s->graph.n_ops);
}

static hk_timeline_comparison compared(const subject *s, const hk_timeline *measured) {
  hk_error err = {0};
  hk_timeline_comparison c;
  must(hk_timelines_compare(&s->graph, &s->predicted, measured, s->costs, &c, &err), &err);
  assert_sound(s, measured, &c);
  return c;
}

/* The makespan differs from the prediction by at least 2 %, the introduced cause is the main one,
 * and it explains at least half of the difference. Frees the timeline. */
static void assert_cause(const subject *s, hk_timeline *measured, hk_cause wanted,
                         const char *what) {
  hk_timeline_comparison c = compared(s, measured);
  const hk_ns error = c.makespan.measured - c.makespan.predicted;
  if (llabs(error) < c.makespan.predicted / 50)
    fail_msg("%s: the makespan hardly changed, this tests nothing", what);
  if (c.main_cause != wanted || llabs(c.causes[wanted]) < llabs(error) / 2) {
    for (int i = 0; i < HK_CAUSE_COUNT; i++)
      print_error("  %-12s %10.3f ms\n", hk_cause_name((hk_cause)i), hk_ms(c.causes[i]));
    fail_msg("%s: the cause of %+.3f ms is '%s', not '%s'", what, hk_ms(error),
             hk_cause_name(c.main_cause), hk_cause_name(wanted));
  }
  hk_timeline_comparison_free(&c);
  hk_timeline_free(measured);
}

#define SEEDS 12

/* -- Measured on a machine with another rate or latency ---------------------------------------- */

static void a_slower_link_is_a_rate(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    subject s = uneven(seed, 0);
    hk_machine other = s.machine;
    other.h2d.value *= 0.6;
    hk_timeline measured = simulated(&s.graph, &other);
    assert_cause(&s, &measured, HK_CAUSE_RATE, "copies in at 0.6 of their rate");
    other = s.machine;
    other.h2d.value = other.d2h.value = 70e9;
    other.duplex.value *= 70.0 / 50;
    measured = simulated(&s.graph, &other);
    assert_cause(&s, &measured, HK_CAUSE_RATE, "copies at 1.4 times their rate");
    drop(&s);
  }
}

static void a_slower_kernel_is_a_rate(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    subject s = uneven(seed, 3);
    hk_machine other = s.machine;
    other.cpu_adamw.value *= 0.7;
    hk_timeline measured = simulated(&s.graph, &other);
    assert_cause(&s, &measured, HK_CAUSE_RATE, "CPU kernels at 0.7 of their rate");
    drop(&s);
  }
}

/* Only durations change, and the comparison gets no costs. */
static void a_slowed_lane_is_a_rate(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    subject s = uneven(seed, 3);
    retiming t = as_predicted(&s);
    for (size_t i = 0; i < s.graph.n_ops; i++)
      if (s.graph.ops[i].kind == HK_OP_ADAMW_CPU) t.duration[i] = t.duration[i] * 3 / 2;
    free(s.costs);
    s.costs = NULL;
    hk_timeline measured = replayed(&s, &t);
    assert_cause(&s, &measured, HK_CAUSE_RATE, "CPU kernels 1.5 times as long");
    drop(&s);
  }
}

static void a_longer_latency_is_a_latency(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    subject s = uneven(seed, 0);
    hk_machine other = s.machine;
    other.h2d_latency.value += 100000;
    hk_timeline measured = simulated(&s.graph, &other);
    assert_cause(&s, &measured, HK_CAUSE_LATENCY, "copies in that start 100 us later");
    drop(&s);
  }
}

/* Less memory bandwidth while kernels and copies run together; each alone is as fast as predicted.
 */
static void scarcer_memory_is_contention(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    subject s = uneven(seed, 2);
    hk_machine other = s.machine;
    other.dram_with_dma.value *= 0.8;
    hk_timeline measured = simulated(&s.graph, &other);
    assert_cause(&s, &measured, HK_CAUSE_CONTENTION, "0.8 of dram.with_dma");
    drop(&s);
  }
}

/* -- Measured with gaps or waits that the graph does not have ---------------------------------- */

static void an_added_gap_is_the_host(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    random_stream r = {1000 + seed};
    subject s = uneven(seed, 2);
    retiming t = as_predicted(&s);
    for (size_t i = 0; i < s.graph.n_ops; i++)
      if (s.graph.lanes[s.graph.ops[i].lane].kind == HK_LANE_CPU) t.gap[i] = pick(&r, 50000, 90000);
    hk_timeline measured = replayed(&s, &t);
    assert_cause(&s, &measured, HK_CAUSE_HOST, "the CPU team late for every operation");
    drop(&s);
  }
}

/* The same for copies in, which are predicted without gaps. */
static void late_copies_are_the_host(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    random_stream r = {2000 + seed};
    subject s = uneven(seed, 0);
    retiming t = as_predicted(&s);
    for (size_t i = 0; i < s.graph.n_ops; i++)
      if (s.graph.ops[i].kind == HK_OP_STATE_H2D) t.gap[i] = pick(&r, 30000, 60000);
    hk_timeline measured = replayed(&s, &t);
    assert_cause(&s, &measured, HK_CAUSE_HOST, "copies in late");
    drop(&s);
  }
}

/* A gap between queues that the prediction also has is charged to no cause. Its excess over the
 * predicted gap is charged to HOST. */
static void foreseen_gaps_are_no_cause(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    random_stream r = {seed};
    hk_plan plan = uneven_plan(&r, 0);
    plan.buffers = 1;
    hk_machine machine = node();
    machine.gpu_hop.value = 20000;
    subject s = subject_of(&plan, &machine);
    hk_timeline_comparison c = compared(&s, &s.predicted);
    for (int i = 0; i < HK_CAUSE_COUNT; i++) assert_int_equal(c.causes[i], 0);
    hk_timeline_comparison_free(&c);
    machine.gpu_hop.value = 80000;
    hk_timeline measured = simulated(&s.graph, &machine);
    assert_cause(&s, &measured, HK_CAUSE_HOST, "80 us from queue to queue, not 20");
    drop(&s);
  }
}

/* Each copy in waits for the copy out before it: half duplex. */
static void a_lost_overlap_is_a_dependency(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    subject s = uneven(seed, 0);
    retiming t = as_predicted(&s);
    int32_t out = -1;
    for (size_t i = 0; i < s.graph.n_ops; i++) {
      if (s.graph.ops[i].kind == HK_OP_STATE_H2D) t.waits_for[i] = out;
      if (s.graph.ops[i].kind == HK_OP_STATE_D2H) out = (int32_t)i;
    }
    hk_timeline measured = replayed(&s, &t);
    assert_cause(&s, &measured, HK_CAUSE_DEPENDENCY, "copies one way at a time");
    drop(&s);
  }
}

/* CPU kernels wait for copies out and copies in wait for CPU kernels. */
static void taking_turns_is_a_dependency(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    subject s = uneven(seed, 1);
    retiming t = as_predicted(&s);
    int32_t copy = -1, kernel = -1;
    for (size_t i = 0; i < s.graph.n_ops; i++) {
      const hk_op_kind kind = s.graph.ops[i].kind;
      if (kind == HK_OP_ADAMW_CPU) t.waits_for[i] = copy;
      if (kind == HK_OP_STATE_H2D) t.waits_for[i] = kernel;
      if (kind == HK_OP_STATE_D2H) copy = (int32_t)i;
      if (kind == HK_OP_ADAMW_CPU) kernel = (int32_t)i;
    }
    hk_timeline measured = replayed(&s, &t);
    assert_cause(&s, &measured, HK_CAUSE_DEPENDENCY, "CPU and GPU in turns");
    drop(&s);
  }
}

/* -- Figures ----------------------------------------------------------------------------------- */

static void equal_timelines_have_no_causes(void **state) {
  (void)state;
  subject s = uneven(1, 1);
  retiming t = as_predicted(&s);
  hk_timeline measured = replayed(&s, &t);
  assert_memory_equal(measured.spans, s.predicted.spans, s.graph.n_ops * sizeof(hk_span));
  hk_timeline_comparison c = compared(&s, &measured);
  for (int i = 0; i < HK_CAUSE_COUNT; i++) assert_int_equal(c.causes[i], 0);
  assert_int_equal(c.parts_at, -1);
  assert_true(c.makespan.error_pct == 0);
  assert_true(c.phases[HK_PHASE_UPDATE].predicted == c.makespan.predicted);
  assert_int_equal(c.phases[HK_PHASE_FORWARD].measured, 0);
  assert_true(c.kinds[HK_OP_ADAMW_CPU].median_error_pct == 0);
  assert_true(isnan(c.kinds[HK_OP_FORWARD].median_error_pct));
  hk_timeline_comparison_free(&c);
  hk_timeline_comparison_free(&c); /* safe on what is free already */
  hk_timeline_free(&measured);
  drop(&s);
}

/* Two copies in and a CPU kernel after each. The second copy starts 600 ns late (HOST) and takes
 * 600 ns longer. */
static void figures_of_four_operations(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .world = 1, .nodes = 1, .tp = 1};
  hk_op op = {.phase = HK_PHASE_UPDATE, .micro = -1, .block = HK_BLOCK_NONE, .piece = -1};
  const int32_t in = hk_graph_lane(&graph, HK_LANE_H2D, 0, &err);
  const int32_t cpu = hk_graph_lane(&graph, HK_LANE_CPU, 0, &err);
  op.kind = HK_OP_STATE_H2D, op.lane = in;
  const int32_t first = hk_graph_add(&graph, &op, NULL, 0, &err);
  const int32_t second = hk_graph_add(&graph, &op, NULL, 0, &err);
  op.kind = HK_OP_ADAMW_CPU, op.lane = cpu;
  assert_int_equal(hk_graph_add(&graph, &op, &first, 1, &err), 2);
  assert_int_equal(hk_graph_add(&graph, &op, &second, 1, &err), 3);
  hk_span p[] = {{0, 0, 1000}, {1000, 1000, 2000}, {1000, 1000, 1500}, {2000, 2000, 2500}};
  hk_span m[] = {{0, 0, 1000}, {1000, 1600, 3200}, {1000, 1000, 1500}, {3200, 3200, 3700}};
  hk_timeline predicted = {.spans = p, .n_spans = 4}, measured = {.spans = m, .n_spans = 4};
  hk_timeline_phases(&graph, &predicted);
  hk_timeline_phases(&graph, &measured);
  hk_timeline_comparison c;
  must(hk_timelines_compare(&graph, &predicted, &measured, NULL, &c, &err), &err);
  assert_int_equal(c.makespan.predicted, 2500);
  assert_int_equal(c.makespan.measured, 3700);
  assert_float_equal(c.makespan.error_pct, -100.0 * 1200 / 3700, 1e-9);
  assert_int_equal(c.lanes[in].busy.measured, 2600);
  assert_int_equal(c.lanes[in].idle.measured, 600);
  assert_int_equal(c.lanes[in].idle.predicted, 0);
  assert_int_equal(c.lanes[cpu].idle.predicted, 500);
  assert_int_equal(c.lanes[cpu].idle.measured, 1700);
  assert_int_equal(c.kinds[HK_OP_STATE_H2D].total.predicted, 2000);
  assert_float_equal(c.kinds[HK_OP_STATE_H2D].median_error_pct, (0 + 37.5) / 2, 1e-9);
  assert_float_equal(c.kinds[HK_OP_STATE_H2D].worst_error_pct, 37.5, 1e-9);
  assert_int_equal(c.parts_at, second);
  const int32_t path[] = {first, second, 3};
  assert_int_equal(c.n_path, 3);
  assert_memory_equal(c.path, path, sizeof path);
  assert_int_equal(c.causes[HK_CAUSE_HOST], 600);
  assert_int_equal(
      c.causes[HK_CAUSE_RATE] + c.causes[HK_CAUSE_LATENCY] + c.causes[HK_CAUSE_CONTENTION], 600);
  hk_timeline_comparison_free(&c);
  hk_graph_free(&graph);
}

/* An operation with a predicted duration of 0 has latency only. */
static void error_of_a_duration_0_is_latency(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .world = 1, .nodes = 1, .tp = 1};
  const hk_op op = {.kind = HK_OP_HOST_WAIT,
                    .phase = HK_PHASE_UPDATE,
                    .lane = hk_graph_lane(&graph, HK_LANE_HOST, 0, &err)};
  assert_int_equal(hk_graph_add(&graph, &op, NULL, 0, &err), 0);
  hk_span p = {0, 0, 0}, m = {0, 0, 5000};
  hk_timeline predicted = {.spans = &p, .n_spans = 1}, measured = {.spans = &m, .n_spans = 1};
  hk_timeline_comparison c;
  must(hk_timelines_compare(&graph, &predicted, &measured, NULL, &c, &err), &err);
  assert_int_equal(c.main_cause, HK_CAUSE_LATENCY);
  assert_true(c.causes[HK_CAUSE_LATENCY] >= 4900);
  hk_timeline_comparison_free(&c);
  hk_graph_free(&graph);
}

/* -- Random timelines -------------------------------------------------------------------------- */

static hk_plan random_plan(random_stream *r) {
  static const hk_job job = {
      .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 64};
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(pick(r, 1, 3));
  const bool deepspeed = pick(r, 0, 2) == 0;
  must(hk_plan_create(&model, &job, deepspeed ? HK_RUNTIME_DEEPSPEED : HK_RUNTIME_HOCKET,
                      HK_SUBGROUP_SOFT, pick(r, 3000, 60000), &plan, &err),
       &err);
  hk_model_free(&model);
  plan.piece_numel = pick(r, 1000, 60000);
  plan.buffers = pick(r, 1, 4);
  plan.stride = deepspeed ? pick(r, 0, 3) : 0;
  for (size_t i = 0; i < plan.n_subgroups; i++) {
    const hk_route route = (hk_route)pick(r, 0, HK_ROUTE_COUNT - 1);
    plan.subgroups[i].route = deepspeed && route == HK_ROUTE_MAPPED ? HK_ROUTE_STAGED : route;
  }
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

/* Random mixture: some operations longer or shorter, some late, some behind others. */
static hk_timeline disturbed(random_stream *r, const subject *s) {
  retiming t = as_predicted(s);
  const double slow = uniform(r), late = uniform(r) * 0.5, behind = uniform(r) * 0.2;
  for (size_t i = 0; i < s->graph.n_ops; i++) {
    if (uniform(r) < slow) t.duration[i] = (hk_ns)((double)t.duration[i] * scale(r, 0.3, 4));
    if (uniform(r) < late) t.gap[i] = pick(r, 0, 40000);
    if (i > 0 && uniform(r) < behind) t.waits_for[i] = (int32_t)(next(r) % i);
  }
  return replayed(s, &t);
}

static void causes_of_any_two_timelines_add_up(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    random_stream r = {seed * 6700417};
    const hk_machine machine = random_node(&r);
    hk_plan plan = random_plan(&r);
    subject s = subject_of(&plan, &machine);
    hk_timeline measured = disturbed(&r, &s);
    hk_timeline_comparison c = compared(&s, &measured);
    hk_timeline_comparison_free(&c);
    hk_timeline_free(&measured);
    drop(&s);
  }
}

/* An operation's cost is the time that the simulator takes for it alone, to the nanosecond. Beside
 * other operations it takes at least as long. */
static void costs_are_the_simulators(void **state) {
  (void)state;
  int alone = 0;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    random_stream r = {seed * 179424673};
    const hk_machine machine = random_node(&r);
    hk_plan plan = random_plan(&r);
    subject s = subject_of(&plan, &machine);
    for (size_t i = 0; i < s.graph.n_ops; i++) {
      const hk_span *span = &s.predicted.spans[i];
      const hk_ns least = s.costs[i].latency + s.costs[i].alone;
      bool company = false;
      for (size_t j = 0; j < s.graph.n_ops; j++)
        company = company || (j != i && s.predicted.spans[j].start < span->end &&
                              s.predicted.spans[j].end > span->start);
      assert_true(least <= span->end - span->start);
      if (company) continue;
      assert_int_equal(least, span->end - span->start);
      alone++;
    }
    drop(&s);
  }
  assert_true(alone > 100);
}

/* -- Refused timelines ------------------------------------------------------------------------- */

static void assert_refused(const subject *s, const hk_timeline *measured, const char *why) {
  hk_error err = {0};
  hk_timeline_comparison c;
  assert_int_equal(hk_timelines_compare(&s->graph, &s->predicted, measured, NULL, &c, &err),
                   HK_INPUT);
  if (strstr(err.message, why) == NULL) fail_msg("'%s' does not say '%s'", err.message, why);
  assert_null(c.path);
}

static void other_graphs_and_overlaps_are_refused(void **state) {
  (void)state;
  subject s = uneven(1, 1);
  subject other = uneven(1, 2);
  assert_true(other.graph.n_ops != s.graph.n_ops);
  assert_refused(&s, &other.predicted, "not of the same plan");

  retiming t = as_predicted(&s);
  hk_timeline measured = replayed(&s, &t);
  hk_span *last = &measured.spans[s.graph.n_ops - 1];
  const hk_span kept = *last;
  *last = (hk_span){0, 0, kept.end};
  assert_refused(&s, &measured, "before its lane");
  *last = (hk_span){kept.ready, kept.end, kept.start};
  assert_refused(&s, &measured, "runs from");
  hk_timeline_free(&measured);
  drop(&s);
  drop(&other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_slower_link_is_a_rate),
      cmocka_unit_test(a_slower_kernel_is_a_rate),
      cmocka_unit_test(a_slowed_lane_is_a_rate),
      cmocka_unit_test(a_longer_latency_is_a_latency),
      cmocka_unit_test(scarcer_memory_is_contention),
      cmocka_unit_test(an_added_gap_is_the_host),
      cmocka_unit_test(late_copies_are_the_host),
      cmocka_unit_test(foreseen_gaps_are_no_cause),
      cmocka_unit_test(a_lost_overlap_is_a_dependency),
      cmocka_unit_test(taking_turns_is_a_dependency),
      cmocka_unit_test(equal_timelines_have_no_causes),
      cmocka_unit_test(figures_of_four_operations),
      cmocka_unit_test(error_of_a_duration_0_is_latency),
      cmocka_unit_test(causes_of_any_two_timelines_add_up),
      cmocka_unit_test(costs_are_the_simulators),
      cmocka_unit_test(other_graphs_and_overlaps_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
