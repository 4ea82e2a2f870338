/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Copy engines, latencies between queues and interference of reads against values by hand. Times in
 * ns, rates in B/ns. */
#include "sim/contention.h"
#include "tests/fixture.h"

typedef struct {
  hk_op_kind kind;
  hk_lane_kind lane;
  int64_t work;
  int after; /* operation; -1: none */
} job;

enum { MOST = 12 };

typedef struct {
  hk_ns start[MOST], end[MOST], ready[MOST];
  hk_ns critical_path;
} outcome;

static outcome simulate_team(const hk_machine *m, int threads, bool pulled, const job *jobs,
                             int n) {
  hk_error err = {0};
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .nodes = 1, .world = 1, .tp = 1};
  graph.weights_pulled = pulled;
  for (int i = 0; i < n; i++) {
    const int32_t lane = hk_graph_lane(&graph, jobs[i].lane, 0, &err), after = jobs[i].after;
    const hk_op op = {.kind = jobs[i].kind,
                      .phase = HK_PHASE_UPDATE,
                      .lane = lane,
                      .subgroup = -1,
                      .piece = -1,
                      .threads = threads,
                      .work = jobs[i].work};
    assert_int_equal(hk_graph_add(&graph, &op, &after, 1, &err), i);
  }
  const hk_sim_options options = {.check = true};
  hk_result result;
  must(hk_simulate(&graph, m, &options, &result, &err), &err);
  outcome o = {.critical_path = hk_critical_path(&graph, m, HK_EXPAND_ALL, &err)};
  for (int i = 0; i < n; i++) {
    o.ready[i] = result.timeline.spans[i].ready;
    o.start[i] = result.timeline.spans[i].start;
    o.end[i] = result.timeline.spans[i].end;
  }
  hk_result_free(&result);
  hk_graph_free(&graph);
  return o;
}

static outcome simulate(const hk_machine *m, bool pulled, const job *jobs, int n) {
  return simulate_team(m, 1, pulled, jobs, n);
}

#define IN(lane, work, after) \
  { HK_OP_STATE_H2D, HK_LANE_STREAM_##lane, work, after }
#define OUT(lane, work, after) \
  { HK_OP_STATE_D2H, HK_LANE_STREAM_##lane, work, after }

static void assert_ends(const outcome *o, const hk_ns *ends, int n) {
  for (int i = 0; i < n; i++) assert_int_equal(o->end[i], ends[i]);
}

/* Copies in of streams p, m and v at 10 B/ns. Unlimited copies at once share the link. One at a
 * time they run in the order of the queue; a span begins when its copy is queued, so all start at
 * 0. */
static void test_one_at_a_time(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  const job jobs[] = {IN(P, 4000, -1), IN(M, 4000, -1), IN(V, 2000, -1)};
  const outcome shared = simulate(&m, false, jobs, 3);
  assert_ends(&shared, (const hk_ns[]){1000, 1000, 600}, 3);
  m.copies_at_once.value = 1;
  const outcome turns = simulate(&m, false, jobs, 3);
  assert_ends(&turns, (const hk_ns[]){400, 800, 1000}, 3);
  for (int i = 0; i < 3; i++) assert_int_equal(turns.start[i], 0);
}

/* Copies that arrive at the same instant go in an order that rotates: p, m, v, then m, v, p, then
 * v, p, m. A copy takes 100; a kernel after the last copy makes the next three arrive together. */
static void test_first_place_rotates(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.copies_at_once.value = 1;
  const job jobs[] = {
      {HK_OP_ADAMW_CPU, HK_LANE_CPU, 100, -1}, IN(P, 1000, 0), IN(M, 1000, 0), IN(V, 1000, 0),
      {HK_OP_ADAMW_CPU, HK_LANE_CPU, 100, 3},  IN(P, 1000, 4), IN(M, 1000, 4), IN(V, 1000, 4),
      {HK_OP_ADAMW_CPU, HK_LANE_CPU, 100, 5},  IN(P, 1000, 8), IN(M, 1000, 8), IN(V, 1000, 8)};
  const outcome o = simulate(&m, false, jobs, 12);
  assert_ends(&o, (const hk_ns[]){100, 200, 300, 400, 500, 800, 600, 700, 900, 1100, 1200, 1000},
              12);
}

/* Two copies at once: p and m run at 5 B/ns each until 400, then v beside m. */
static void test_two_at_a_time(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.copies_at_once.value = 2;
  const job jobs[] = {IN(P, 2000, -1), IN(M, 4000, -1), IN(V, 2000, -1)};
  const outcome o = simulate(&m, false, jobs, 3);
  assert_ends(&o, (const hk_ns[]){400, 800, 800}, 3);
}

/* One copy at a time in each direction lets the prototype copy both ways at once: after p's copy
 * out the next p is copied in, while m and v are still copied out. With unlimited copies at once
 * all copies out end together, and then all copies in. 10 B/ns each way. */
static void test_directions_apart(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.copies_at_once.value = 1;
  const job jobs[] = {OUT(P, 4000, -1), OUT(M, 4000, -1), OUT(V, 4000, -1),
                      IN(P, 4000, -1),  IN(M, 4000, -1),  IN(V, 4000, -1)};
  const outcome turns = simulate(&m, false, jobs, 6);
  assert_ends(&turns, (const hk_ns[]){400, 800, 1200, 800, 1200, 1600}, 6);
  m.copies_at_once.value = 1e6;
  const outcome shared = simulate(&m, false, jobs, 6);
  assert_ends(&shared, (const hk_ns[]){1200, 1200, 1200, 2400, 2400, 2400}, 6);
}

/* The copy out of p waits behind the weights in the H2D engine's queue, because its lane also
 * copies in. A lane that only copies out does not wait there. 10 B/ns each way. */
static void test_turning_round(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.copies_at_once.value = 1;
  job jobs[] = {IN(P, 1000, -1), {HK_OP_WEIGHT_H2D, HK_LANE_UP, 2000, -1}, OUT(P, 1000, -1)};
  const outcome turning = simulate(&m, false, jobs, 3);
  assert_ends(&turning, (const hk_ns[]){100, 300, 400}, 3);
  jobs[2] = (job)OUT(M, 1000, 0);
  const outcome apart = simulate(&m, false, jobs, 3);
  assert_ends(&apart, (const hk_ns[]){100, 300, 200}, 3);
}

/* Copies go in order of arrival, not of their ids: operations 2 and 3 wait from 0, 1 from 100. */
static void test_first_come(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.copies_at_once.value = 1;
  const job jobs[] = {
      {HK_OP_ADAMW_CPU, HK_LANE_CPU, 100, -1}, IN(P, 1000, 0), IN(M, 4000, -1), IN(V, 1000, -1)};
  const outcome o = simulate(&m, false, jobs, 4);
  assert_ends(&o, (const hk_ns[]){100, 600, 400, 500}, 4);
}

/* Weights that a kernel pulls do not wait for the copy engine. Demands of 4 (pull) and 10 (copy)
 * share 10 B/ns as 4/14 and 10/14: 1000 B take a launch of 30 and 350. Copied by the engine, the
 * weights run after the copy. */
static void test_weights_pulled(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.copies_at_once.value = 1;
  m.pull.value = 4e9;
  m.gpu_launch.value = 30;
  const job jobs[] = {IN(P, 6000, -1), {HK_OP_WEIGHT_H2D, HK_LANE_UP, 1000, -1}};
  const outcome pulled = simulate(&m, true, jobs, 2);
  assert_int_equal(pulled.end[1], 380);
  assert_int_equal(pulled.end[0], 700); /* all of 7000 B at 10 B/ns */
  const outcome copied = simulate(&m, false, jobs, 2);
  assert_ends(&copied, (const hk_ns[]){600, 700}, 2);
}

/* pcie.d2h_beside_reads = 0.1: a copy out runs at a tenth of its rate beside a copy in together
 * with a kernel that pulls weights, at its full rate beside one of them. 10 B/ns each way. Copy in
 * and pull have 5 each until 400, when 400 of the 2000 B out are done; the other 1600 take 160. */
static void test_copies_out_beside_reads(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.d2h_beside_reads.value = 0.1;
  const job weights = {HK_OP_WEIGHT_H2D, HK_LANE_UP, 2000, -1};
  const job jobs[2][3] = {{OUT(P, 2000, -1), IN(M, 4000, -1), weights},
                          {OUT(P, 2000, -1), IN(M, 2000, -1), weights}};
  const outcome longer_copy = simulate(&m, true, jobs[0], 3);
  assert_ends(&longer_copy, (const hk_ns[]){560, 600, 400}, 3);
  const outcome as_long = simulate(&m, true, jobs[1], 3);
  assert_ends(&as_long, (const hk_ns[]){560, 400, 400}, 3);
  const outcome copied = simulate(&m, false, jobs[0], 3);
  assert_ends(&copied, (const hk_ns[]){200, 600, 400}, 3);
}

/* A copy out at half of its rate counts half where it slows CPU kernels: they keep 0.8 of their 1
 * parameter/ns beside the copy in, times sqrt(0.64) while a kernel pulls, times 0.64 afterwards.
 * Until 250 the reads have 5 B/ns each and the copy out, too; its other 1250 B take 125. The copy
 * in has 4500 B left at 250, and ends at 700. 250 x 0.64 + 125 x 0.512 + 325 x 0.8 = 484 parameters
 * are done by then, and 516 are left. */
static void test_slow_copies_out_count_less(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.d2h_beside_reads.value = 0.5;
  m.cpu_beside_h2d.value = 0.8;
  m.cpu_beside_d2h.value = 0.64;
  const job cpu = {HK_OP_ADAMW_CPU, HK_LANE_CPU, 1000, -1};
  const job weights = {HK_OP_WEIGHT_H2D, HK_LANE_UP, 1250, -1};
  const job jobs[] = {cpu, IN(M, 5750, -1), OUT(P, 2500, -1), weights};
  const outcome o = simulate(&m, true, jobs, 4);
  assert_ends(&o, (const hk_ns[]){1216, 700, 375, 250}, 4);
  const unsigned out = HK_TRAFFIC_OUT | HK_TRAFFIC_COPY_OUT,
                 reads = HK_TRAFFIC_IN | HK_TRAFFIC_COPY_IN | HK_TRAFFIC_KERNEL_IN;
  assert_true(hk_copies_out(&m, out | reads) == 0.5 && hk_copies_out(&m, out) == 1);
  assert_true(hk_copies_out(&m, reads) == 0);
}

/* pcie.shared_reads = 0.5: beside a CPU kernel a copy in and a kernel that pulls weights have half
 * of the link together, 2.5 B/ns each, until 400. One of them alone has all of it, and without a
 * CPU kernel both together have all of it. */
static void test_reads_are_shared(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.shared_reads.value = 0.5;
  const job cpu = {HK_OP_ADAMW_CPU, HK_LANE_CPU, 2000, -1};
  const job weights = {HK_OP_WEIGHT_H2D, HK_LANE_UP, 1000, -1};
  const job both[] = {IN(P, 3000, -1), weights, cpu}, copy[] = {IN(P, 3000, -1), cpu};
  const outcome shared = simulate(&m, true, both, 3);
  assert_ends(&shared, (const hk_ns[]){600, 400, 2000}, 3);
  const outcome alone = simulate(&m, true, copy, 2);
  assert_ends(&alone, (const hk_ns[]){300, 2000}, 2);
  const outcome without = simulate(&m, true, both, 2);
  assert_ends(&without, (const hk_ns[]){400, 200}, 2);
  /* Two pulling kernels leave the copy as much as one: it has 5 B/ns, they 2.5 each until 400; then
   * it has 10. */
  const job two[] = {IN(P, 4000, -1), weights, {HK_OP_WEIGHT_H2D, HK_LANE_UPDATE, 1000, -1}};
  const outcome three = simulate(&m, true, two, 3);
  assert_ends(&three, (const hk_ns[]){600, 400, 400}, 3);
  m.h2d_beside_reads.value = 0.25; /* the copy has 2 B/ns and the pull 8, until 125 */
  const outcome weighed = simulate(&m, true, both, 2);
  assert_ends(&weighed, (const hk_ns[]){400, 125}, 2);
}

/* Pageable copies run at 2 B/ns; copies of at most 1000 B (cpu.cached_bytes) at 5 B/ns. */
static void test_pageable_from_caches(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.h2d_pageable.value = 2e9;
  job jobs[] = {{HK_OP_WEIGHT_H2D_PAGEABLE, HK_LANE_UP, 1000, -1},
                {HK_OP_WEIGHT_H2D_PAGEABLE, HK_LANE_UP, 1002, -1}};
  const outcome unknown = simulate(&m, false, jobs, 2);
  assert_ends(&unknown, (const hk_ns[]){500, 1001}, 2);
  m.h2d_cached.value = 5e9;
  m.cached.value = 1000;
  const outcome known = simulate(&m, false, jobs, 2);
  assert_ends(&known, (const hk_ns[]){200, 701}, 2);
}

/* 1 parameter/ns, and 20 ns an operation for a team of more than one thread. */
static void test_cpu_operations_cost(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.cpu_operation.value = 20;
  const job jobs[] = {{HK_OP_ADAMW_CPU, HK_LANE_CPU, 100, -1},
                      {HK_OP_ADAMW_CPU, HK_LANE_CPU, 300, -1}};
  const outcome team = simulate_team(&m, 2, true, jobs, 2);
  assert_ends(&team, (const hk_ns[]){120, 440}, 2);
  const outcome one = simulate_team(&m, 1, true, jobs, 2);
  assert_ends(&one, (const hk_ns[]){100, 400}, 2);
}

/* 20 ns from queue to queue: copies at 10 B/ns take 200 each, the update of 100 parameters 10. */
#define UPDATE(work, after) \
  { HK_OP_ADAMW_GPU, HK_LANE_UPDATE, work, after }

static hk_machine hopping_machine(void) {
  hk_machine m = schoolbook_machine();
  m.gpu_hop.value = 20;
  return m;
}

/* In, update, out, in: each depends on the one before, so every hop of 20 counts. */
static void test_hops_add_up(void **state) {
  (void)state;
  hk_machine m = hopping_machine();
  const job jobs[] = {IN(P, 2000, -1), UPDATE(100, 0), OUT(M, 2000, 1), IN(P, 2000, 2)};
  const outcome o = simulate(&m, false, jobs, 4);
  assert_ends(&o, (const hk_ns[]){200, 230, 450, 670}, 4);
  for (int i = 1; i < 4; i++) {
    assert_int_equal(o.ready[i], o.end[i - 1]);
    assert_int_equal(o.start[i], o.ready[i] + 20);
  }
  assert_in_range(o.critical_path, 670 - 4, 670); /* each operation is rounded down */
  m.gpu_hop.value = 0;
  const outcome none = simulate(&m, false, jobs, 4);
  assert_ends(&none, (const hk_ns[]){200, 210, 410, 610}, 4);
  for (int i = 0; i < 4; i++) assert_int_equal(none.start[i], none.ready[i]);
}

/* The copy that the update depends on ends at 200, the hop at 220. The update's lane is busy until
 * 300, 210 or 200: the update starts at the later of both. */
static void test_hops_beside_work(void **state) {
  (void)state;
  const hk_machine m = hopping_machine();
  static const hk_ns lane_end[] = {300, 210, 200}, starts[] = {300, 220, 220};
  for (int i = 0; i < 3; i++) {
    const job jobs[] = {IN(P, 2000, -1), UPDATE(10 * lane_end[i], -1), UPDATE(100, 0)};
    const outcome o = simulate(&m, false, jobs, 3);
    assert_int_equal(o.ready[2], lane_end[i]);
    assert_int_equal(o.start[2], starts[i]);
    assert_in_range(o.critical_path, o.end[2] - 3, o.end[2]);
  }
}

/* -- Launches beside reads --------------------------------------------------------------------- */

static hk_machine fetching_machine(void) {
  hk_machine m = schoolbook_machine();
  m.launch_beside_copies.value = 30;
  m.launch_beside_pulls.value = 50;
  m.launch_beside_reads.value = 70;
  return m;
}

/* An update of 100 parameters takes 10. Its launch takes 30 longer beside a copy in, 50 beside a
 * pull, 70 beside both. A pull's own reads count beside a copy in, so its launch takes 70 there and
 * 0 without a copy. Then the pull has half of the link until 330, when the copy ends. */
static void test_launches_beside_reads(void **state) {
  (void)state;
  const hk_machine m = fetching_machine();
  const job pull = {HK_OP_WEIGHT_H2D, HK_LANE_UP, 2000, -1};
  const job jobs[][3] = {{UPDATE(100, -1), OUT(P, 2000, -1)},
                         {UPDATE(100, -1), IN(P, 2000, -1)},
                         {UPDATE(100, -1), pull},
                         {UPDATE(100, -1), IN(P, 2000, -1), pull}};
  static const hk_ns ends[][3] = {{10, 200}, {40, 200}, {60, 200}, {80, 330, 400}};
  static const int n[] = {2, 2, 2, 3};
  for (int i = 0; i < 4; i++) {
    const outcome o = simulate(&m, true, jobs[i], n[i]);
    assert_ends(&o, ends[i], n[i]);
    assert_in_range(o.critical_path, 197, 200); /* each alone, rounded down */
  }
}

/* A copy that ends at the instant of the launch does not delay it. One that starts at that instant
 * does, whatever the order of the lanes. */
static void test_launches_at_the_ends_of_copies(void **state) {
  (void)state;
  const hk_machine m = fetching_machine();
  const job last[] = {IN(P, 2000, -1), UPDATE(100, 0)};
  const outcome after = simulate(&m, true, last, 2);
  assert_ends(&after, (const hk_ns[]){200, 210}, 2);
  const job next[] = {IN(P, 2000, -1), IN(P, 2000, -1), UPDATE(100, 0)};
  const outcome beside = simulate(&m, true, next, 3);
  assert_ends(&beside, (const hk_ns[]){200, 400, 240}, 3);
  const job first[] = {UPDATE(2000, -1), IN(P, 2000, -1), UPDATE(100, 1)};
  const outcome queued = simulate(&m, true, first, 3);
  assert_ends(&queued, (const hk_ns[]){230, 200, 240}, 3);
}

/* Hops are between queues of the GPU only: operations of the CPU and of the host thread start at
 * once, and so do copies after them. */
static void test_no_hops_of_the_cpu(void **state) {
  (void)state;
  const hk_machine m = hopping_machine();
  const job jobs[] = {{HK_OP_ADAMW_CPU, HK_LANE_CPU, 100, -1},
                      {HK_OP_WEIGHT_H2D, HK_LANE_UP, 1000, 0},
                      {HK_OP_HOST_WAIT, HK_LANE_HOST, 0, 1},
                      {HK_OP_ADAMW_CPU, HK_LANE_CPU, 100, 2},
                      IN(P, 1000, 3),
                      IN(P, 1000, 4)};
  const outcome o = simulate(&m, false, jobs, 6);
  assert_ends(&o, (const hk_ns[]){100, 200, 200, 300, 400, 500}, 6);
}

/* Both copies out are ready at 130 and end their hops at 150. Lane m only copies out, so its copy
 * runs from 150 to 170. Lane p also copies in, so its copy out first waits in the H2D queue, behind
 * the weights until 300. */
static void test_hops_before_engines(void **state) {
  (void)state;
  hk_machine m = hopping_machine();
  m.duplex.value = 20e9;
  m.copies_at_once.value = 1;
  const job weights = {HK_OP_WEIGHT_H2D, HK_LANE_UP, 2000, -1};
  const job jobs[] = {IN(P, 1000, -1), weights, UPDATE(100, 0), OUT(P, 1000, 2), OUT(M, 200, 2)};
  const outcome o = simulate(&m, false, jobs, 5);
  assert_ends(&o, (const hk_ns[]){100, 300, 130, 400, 170}, 5);
  assert_int_equal(o.start[3], 150);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_at_a_time),
      cmocka_unit_test(test_first_place_rotates),
      cmocka_unit_test(test_two_at_a_time),
      cmocka_unit_test(test_directions_apart),
      cmocka_unit_test(test_first_come),
      cmocka_unit_test(test_pageable_from_caches),
      cmocka_unit_test(test_turning_round),
      cmocka_unit_test(test_copies_out_beside_reads),
      cmocka_unit_test(test_slow_copies_out_count_less),
      cmocka_unit_test(test_reads_are_shared),
      cmocka_unit_test(test_weights_pulled),
      cmocka_unit_test(test_cpu_operations_cost),
      cmocka_unit_test(test_hops_add_up),
      cmocka_unit_test(test_hops_beside_work),
      cmocka_unit_test(test_launches_beside_reads),
      cmocka_unit_test(test_launches_at_the_ends_of_copies),
      cmocka_unit_test(test_no_hops_of_the_cpu),
      cmocka_unit_test(test_hops_before_engines),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
