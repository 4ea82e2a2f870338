/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Contention for host memory between CPU kernels and copies: small mixtures by hand, and mixtures
 * measured on two nodes. Units of the comments: B/ns = GB/s. */
#include "tests/fixture.h"

#include <math.h>

#include "sim/sim.h"

/* One operation a lane, all at once. */
typedef struct {
  hk_op_kind kind;
  hk_lane_kind lane;
  int64_t work;
} lane_job;

/* When each of `jobs` ended (ns), and what each resource carried at first (B/s). */
typedef struct {
  hk_ns end[3];
  double first[HK_RES_COUNT];
} outcome;

static outcome at_once(const hk_machine *m, int threads, const lane_job *jobs, int n) {
  hk_error err = {0};
  const int gpus = (int)m->gpus.value;
  hk_graph graph = {.ranks = 1, .multiplicity = gpus, .world = gpus, .nodes = 1, .tp = 1};
  hk_result result = {0};
  outcome o = {0};
  for (int i = 0; i < n; i++) {
    const hk_op op = {.kind = jobs[i].kind,
                      .work = jobs[i].work,
                      .threads = threads,
                      .lane = hk_graph_lane(&graph, jobs[i].lane, 0, &err)};
    assert_int_equal(hk_graph_add(&graph, &op, NULL, 0, &err), i);
  }
  const hk_sim_options options = {.counters = true, .check = true};
  must(hk_simulate(&graph, m, &options, &result, &err), &err);
  for (int i = 0; i < n; i++) o.end[i] = result.timeline.spans[i].end;
  for (int r = 0; r < HK_RES_COUNT; r++) {
    for (size_t c = 0; c < result.timeline.n_counters; c++) {
      const hk_counter *counter = &result.timeline.counters[c];
      if (strcmp(counter->name, hk_resource_name((hk_resource)r)) == 0) {
        o.first[r] = counter->samples[0].value;
      }
    }
  }
  hk_result_free(&result);
  hk_graph_free(&graph);
  return o;
}

#define CPU(work) \
  { HK_OP_ADAMW_CPU, HK_LANE_CPU, work }
#define IN(work) \
  { HK_OP_STATE_H2D, HK_LANE_H2D, work }
#define OUT(work) \
  { HK_OP_STATE_D2H, HK_LANE_D2H, work }

/* Demands: kernel 28 B/ns at cost 1, copy in 10 at cost 2, copy out 10 at cost 1 with double
 * weight. Of a capacity of 34 each gets the fraction f of its demand, the copy out min(1, 2 f):
 * 28 f + 20 f + 10 min(1, 2 f) = 34, f = 1/2. Kernel and copy in take 2000 ns. The copy out moves
 * 20,000 B meanwhile and its last 10,000 B in 1000 ns more. */
static void test_costs_and_priority(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.dram.value = 28e9;
  m.dram_with_dma.value = 34e9;
  m.h2d_cost.value = 2;
  m.d2h_priority.value = 2;
  const outcome o = at_once(&m, 1, (const lane_job[]){CPU(1000), IN(10000), OUT(30000)}, 3);
  assert_int_equal(o.end[0], 2000);
  assert_int_equal(o.end[1], 2000);
  assert_int_equal(o.end[2], 3000);
}

/* In host memory the priority of copies out applies only beside a CPU kernel or another GPU's
 * copies. Without them both directions get half of the link's 16 B/ns, or with a priority of 1.5 on
 * the link 2/5 and 3/5. With them a copy out would get 2/3 of 16 but is limited to 10 by its
 * direction, which leaves 6 for the copy in; the link's priority does not count there. */
static void test_when_priority_applies(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.d2h_priority.value = 2;
  const outcome copies = at_once(&m, 1, (const lane_job[]){IN(16000), OUT(16000)}, 2);
  assert_int_equal(copies.end[0], 2000);
  assert_int_equal(copies.end[1], 2000);
  m.pcie_d2h_priority.value = 1.5;
  const outcome alone = at_once(&m, 1, (const lane_job[]){IN(12800), OUT(19200)}, 2);
  assert_int_equal(alone.end[0], 2000);
  assert_int_equal(alone.end[1], 2000);
  const outcome mixed = at_once(&m, 1, (const lane_job[]){CPU(2000), IN(12000), OUT(20000)}, 3);
  assert_int_equal(mixed.end[1], 2000);
  assert_int_equal(mixed.end[2], 2000);
  m.gpus.value = 2;
  const outcome two = at_once(&m, 1, (const lane_job[]){IN(12000), OUT(20000)}, 2);
  assert_int_equal(two.end[0], 2000);
  assert_int_equal(two.end[1], 2000);
}

/* Kernels are limited by dram.bytes_per_s: 14 of the 28 B/ns that they could use. Copies alone are
 * limited by the larger of the two capacities: 34 B/ns at cost 4. */
static void test_each_alone(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.dram.value = 14e9;
  m.dram_with_dma.value = 34e9;
  m.h2d_cost.value = 4;
  assert_int_equal(at_once(&m, 1, (const lane_job[]){CPU(1000)}, 1).end[0], 2000);
  assert_int_equal(at_once(&m, 1, (const lane_job[]){IN(17000)}, 1).end[0], 2000);
  /* A byte to a pageable buffer passes host memory three times: 3 x 4/3 x 17,000 B at 34 B/ns. */
  const lane_job pageable[] = {{HK_OP_GRAD_D2H_PAGEABLE, HK_LANE_FLUSH, 17000}};
  m.d2h_cost.value = 4.0 / 3;
  assert_int_equal(at_once(&m, 1, pageable, 1).end[0], 2000);
  m.d2h_cost.value = 1;
  /* A mapped parameter costs 12 x 4 + 12 x 1 = 60 B. 34 B/ns would allow 0.57 parameters/ns, more
   * than the mapped kernel's own 0.5; 15 B/ns allow 0.25. */
  const lane_job mapped[] = {{HK_OP_ADAMW_MAPPED, HK_LANE_GPU, 1000}};
  assert_int_equal(at_once(&m, 1, mapped, 1).end[0], 2000);
  m.dram_with_dma.value = 15e9;
  assert_int_equal(at_once(&m, 1, mapped, 1).end[0], 4000);
}

/* Beside a copy in a kernel keeps 4/5 of its rate, beside a copy out 1/2. 250 ns beside both:
 * 250 x 1/2 x 4/5 = 100 parameters; 250 ns beside the copy in: 200; the other 700 take 700 ns. */
static void test_kernels_keep_a_share(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.cpu_beside_h2d.value = 0.8;
  m.cpu_beside_d2h.value = 0.5;
  assert_int_equal(at_once(&m, 1, (const lane_job[]){CPU(1000), IN(5000), OUT(2500)}, 3).end[0],
                   500 + 700);
  /* Beside the copy out alone: 250 ns at 1/2 are 125 of the 1000. */
  assert_int_equal(at_once(&m, 1, (const lane_job[]){CPU(1000), OUT(2500)}, 2).end[0], 250 + 875);
  /* Copies that run beside copies only slow down no kernel. */
  assert_int_equal(at_once(&m, 1, (const lane_job[]){IN(5000), OUT(2500)}, 2).end[0], 500);
}

/* Demands of 28 and 10 B/ns share 19: each gets half. cpu.beside_h2d limits the kernel's rate but
 * does not reduce its demand. 3/4 is above the half that it gets and changes nothing. 2/5 limits it
 * to 11.2 and leaves 7.8 for the copy. */
static void test_a_kept_share_is_a_limit(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.dram.value = 28e9;
  m.dram_with_dma.value = 19e9;
  m.cpu_beside_h2d.value = 0.75;
  const lane_job even[] = {CPU(1000), IN(10000)};
  assert_int_equal(at_once(&m, 1, even, 2).end[0], 2000);
  assert_int_equal(at_once(&m, 1, even, 2).end[1], 2000);
  m.cpu_beside_h2d.value = 0.4;
  const lane_job uneven[] = {CPU(1000), IN(7800)};
  assert_int_equal(at_once(&m, 1, uneven, 2).end[1], 1000);
  assert_int_equal(at_once(&m, 1, uneven, 2).end[0], 1000 + 600);
}

/* Weights: kernel 1, copy in 1/50, copy out 100/50 = 2. The kernel is limited to 0.8 x 0.5 = 2/5 of
 * its 28 B/ns: 11.2. The copy out gets its direction's 8. The copy in gets the rest of 21.2: 2.
 * Without the kernel's limit the weights decide: 28 f + 10 f / 50 + 8 x 2 f = 21.2. */
static void test_copies_in_get_the_rest(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.d2h.value = 8e9;
  m.dram.value = 28e9;
  m.dram_with_dma.value = 21.2e9;
  m.dma_weight.value = 0.02;
  m.d2h_priority.value = 100;
  m.cpu_beside_h2d.value = 0.8;
  m.cpu_beside_d2h.value = 0.5;
  const lane_job jobs[] = {CPU(1000), IN(10000), OUT(8000)};
  const outcome last = at_once(&m, 1, jobs, 3);
  assert_int_equal(last.end[2], 1000);
  assert_true(fabs(last.first[HK_RES_H2D] / 2e9 - 1) < 1e-9);
  m.cpu_beside_h2d.value = m.cpu_beside_d2h.value = 1;
  const double level = 21.2 / (28 + 0.2 + 16);
  const outcome weighed = at_once(&m, 1, jobs, 3);
  assert_true(fabs(weighed.first[HK_RES_H2D] / (0.2e9 * level) - 1) < 1e-9);
}

/* The kernel's demand is 28 of 56 B/ns: a load of 1/2. The limit of copies in falls linearly from
 * 10 B/ns at load 1/4 (dram.h2d_load_from) to 4 at load 1, so it is 8. Copies out are not limited.
 */
static void test_copies_in_under_load(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.dram.value = m.dram_with_dma.value = 56e9;
  m.h2d_loaded.value = 4e9;
  m.h2d_load_from.value = 0.25;
  const outcome loaded = at_once(&m, 1, (const lane_job[]){CPU(1000), IN(8000), OUT(10000)}, 3);
  for (int i = 0; i < 3; i++) assert_int_equal(loaded.end[i], 1000);
  /* The same factor applies to pageable copies in: 4 of 5 B/ns. */
  m.h2d_pageable.value = 5e9;
  const lane_job pageable[] = {CPU(1000), {HK_OP_WEIGHT_H2D_PAGEABLE, HK_LANE_H2D, 4000}};
  assert_int_equal(at_once(&m, 1, pageable, 2).end[1], 1000);
  /* A kernel limited to half by the copy is a load of 1/4: copies in keep 10 B/ns. */
  m.cpu_beside_h2d.value = 0.5;
  const outcome less = at_once(&m, 1, (const lane_job[]){CPU(1000), IN(10000)}, 2);
  assert_int_equal(less.end[1], 1000);
  assert_int_equal(less.end[0], 1500);
  /* A demand above the bandwidth is a load of 1. */
  m.cpu_beside_h2d.value = 1;
  m.cpu_adamw.value = 4e9;
  m.dram_with_dma.value = 1e15;
  assert_int_equal(at_once(&m, 1, (const lane_job[]){CPU(4000), IN(4000)}, 2).end[1], 1000);
}

/* A pageable copy has an additional latency, one figure for each direction. */
static void test_pageable_latencies(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.h2d_pageable.value = 4e9;
  m.d2h_pageable.value = 5e9;
  m.h2d_latency.value = 30;
  m.d2h_latency.value = 20;
  m.h2d_pageable_latency.value = 7000;
  m.d2h_pageable_latency.value = 9000;
  const lane_job pageable[] = {{HK_OP_WEIGHT_H2D_PAGEABLE, HK_LANE_H2D, 8000},
                               {HK_OP_GRAD_D2H_PAGEABLE, HK_LANE_FLUSH, 5000}};
  const outcome slow = at_once(&m, 1, pageable, 2);
  assert_int_equal(slow.end[0], 30 + 7000 + 2000);
  assert_int_equal(slow.end[1], 20 + 9000 + 1000);
  m.duplex.value = 20e9;
  const outcome pinned = at_once(&m, 1, (const lane_job[]){IN(8000), OUT(5000)}, 2);
  assert_int_equal(pinned.end[0], 30 + 800);
  assert_int_equal(pinned.end[1], 20 + 500);
}

/* -- Measured mixtures ------------------------------------------------------------------------- */

static void expect_near(const char *what, int threads, double got, double measured,
                        double tolerance) {
  if (!(fabs(got / measured - 1) <= tolerance)) {
    fail_msg("%d threads, %s: %.2f, measured %.2f", threads, what, got, measured);
  }
}

/* Expected rates in GB/s; 0: no such copy runs. */
static void expect_mixture(const outcome *o, int threads, double cpu, double in, double out,
                           double tolerance) {
  expect_near("kernels", threads, o->first[HK_RES_DRAM_CPU] / 1e9, cpu, tolerance);
  if (in > 0) expect_near("in", threads, o->first[HK_RES_H2D] / 1e9, in, tolerance);
  if (out > 0) expect_near("out", threads, o->first[HK_RES_D2H] / 1e9, out, tolerance);
}

/* bench/results/engine/README.md, first node: CPU AdamW and copies both ways, GB/s. Costs come from
 * the whole table, weights and the thread scale from its first and last row. */
static void test_measured_mixtures(void **state) {
  (void)state;
  static const struct {
    int threads;
    double cpu, in, out, tolerance;
  } rows[] = {{4, 74.3, 42.6, 52.2, 0.03},
              {6, 90.1, 36.9, 52.8, 0.06},
              {8, 100.7, 33.0, 53.1, 0.06},
              {10, 105.8, 31.2, 53.2, 0.06},
              {16, 110.2, 29.8, 52.5, 0.03}};
  hk_machine m = ideal_machine();
  m.h2d.value = 54.9e9;
  m.d2h.value = 53e9; /* 54.9 alone */
  m.duplex.value = 101.5e9;
  m.dram.value = 185.2e9;
  m.dram_with_dma.value = 245e9;
  m.h2d_cost.value = 2.77;
  m.dma_weight.value = 0.98;
  m.d2h_priority.value = 2;
  m.cpu_adamw.value = 8e9;
  m.cpu_adamw_threads.value = 7.4;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const outcome o =
        at_once(&m, rows[i].threads,
                (const lane_job[]){CPU(1000000000), IN(10000000000), OUT(10000000000)}, 3);
    expect_mixture(&o, rows[i].threads, rows[i].cpu, rows[i].in, rows[i].out, rows[i].tolerance);
  }
  /* Alone, 16 threads reach what host memory gives them. */
  const outcome alone = at_once(&m, 16, (const lane_job[]){CPU(1000000000)}, 1);
  assert_true(alone.first[HK_RES_DRAM_CPU] > 185.1e9 && alone.first[HK_RES_DRAM_CPU] < 185.3e9);
}

/* Calibration of an H200 node on 2026-11-21 (docs/notes/2026-11-22-simulator.md): AdamW in G
 * params/s alone and beside copies in, out and both ways; copies in GB/s. Beside copies kernels
 * lose a constant share, also at 4 threads, which do not saturate host memory. Copies in get the
 * remaining bandwidth. */
static void test_calibrated_node(void **state) {
  (void)state;
  static const struct {
    int threads;
    double alone, beside_in, in, beside_out, beside_both, in_of_both, out_of_both;
  } rows[] = {{4, 3.32, 2.80, 51.6, 2.42, 2.08, 40.5, 51.4},
              {8, 4.75, 4.08, 42.9, 3.63, 3.02, 32.7, 52.0},
              {12, 5.51, 4.71, 36.9, 3.93, 3.33, 30.2, 51.8},
              {14, 5.68, 4.90, 35.0, 4.37, 3.46, 29.95, 51.7},
              {16, 5.91, 5.03, 33.4, 4.16, 3.56, 29.7, 51.7}};
  hk_machine m = ideal_machine();
  m.h2d.value = 55e9;
  m.d2h.value = 52.5e9; /* 55 beside kernels alone, 51.4 to 52 beside copies in, too */
  m.duplex.value = 101.5e9;
  m.dram_with_dma.value = 254e9;
  m.h2d_cost.value = 3.3;
  m.d2h_cost.value = 1.12;
  m.dma_weight.value = 0.02;
  m.d2h_priority.value = 100;
  m.cpu_beside_h2d.value = 0.845;
  m.cpu_beside_d2h.value = 0.73;
  m.cpu_adamw.value = 6.15e9;
  m.cpu_adamw_threads.value = 5.2;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const int n = rows[i].threads;
    const double tolerance = 0.05;
    const lane_job cpu = CPU(1000000000), in = IN(10000000000), out = OUT(10000000000);
    outcome o = at_once(&m, n, (const lane_job[]){cpu}, 1);
    expect_mixture(&o, n, 28 * rows[i].alone, 0, 0, tolerance);
    o = at_once(&m, n, (const lane_job[]){cpu, in}, 2);
    expect_mixture(&o, n, 28 * rows[i].beside_in, rows[i].in, 0, tolerance);
    o = at_once(&m, n, (const lane_job[]){cpu, out}, 2);
    expect_mixture(&o, n, 28 * rows[i].beside_out, 0, 55, tolerance);
    o = at_once(&m, n, (const lane_job[]){cpu, in, out}, 3);
    expect_mixture(&o, n, 28 * rows[i].beside_both, rows[i].in_of_both, rows[i].out_of_both,
                   tolerance);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_costs_and_priority),
      cmocka_unit_test(test_when_priority_applies),
      cmocka_unit_test(test_each_alone),
      cmocka_unit_test(test_kernels_keep_a_share),
      cmocka_unit_test(test_a_kept_share_is_a_limit),
      cmocka_unit_test(test_copies_in_get_the_rest),
      cmocka_unit_test(test_copies_in_under_load),
      cmocka_unit_test(test_pageable_latencies),
      cmocka_unit_test(test_measured_mixtures),
      cmocka_unit_test(test_calibrated_node),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
