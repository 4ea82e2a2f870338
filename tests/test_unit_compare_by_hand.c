/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Comparison of timelines by hand: on machines with few copy engines a copy that waits for its
 * engine counts as queued, not as busy; passes of blocks have no latency to differ by. */
#include <stdlib.h>

#include "calib/validate/validate.h"
#include "tests/fixture.h"
#include "traces/compare.h"

static void add_copy(hk_graph *graph, hk_lane_kind lane, hk_op_kind kind) {
  hk_error err = {0};
  const hk_op op = {.kind = kind,
                    .phase = HK_PHASE_UPDATE,
                    .lane = hk_graph_lane(graph, lane, 0, &err),
                    .subgroup = -1,
                    .piece = -1,
                    .work = 1000};
  assert_true(hk_graph_add(graph, &op, NULL, 0, &err) >= 0);
}

/* Two lanes' copies start at 0 and share one engine. Predicted: P runs first, then M. Measured: M
 * runs first. The time on the engine is nearly the same, the time in its queue is not. With two
 * engines both copies are busy all the time. */
static void waiting_for_an_engine_is_queued(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .nodes = 1, .world = 1, .tp = 1};
  add_copy(&graph, HK_LANE_STREAM_P, HK_OP_STATE_D2H);
  add_copy(&graph, HK_LANE_STREAM_M, HK_OP_STATE_D2H);
  hk_timeline predicted, measured;
  must(hk_timeline_init(&graph, &predicted, &err), &err);
  must(hk_timeline_init(&graph, &measured, &err), &err);
  predicted.spans[0] = (hk_span){0, 0, 100}, predicted.spans[1] = (hk_span){0, 0, 210};
  measured.spans[0] = (hk_span){0, 5, 205}, measured.spans[1] = (hk_span){0, 0, 95};
  hk_timeline_phases(&graph, &predicted);
  hk_timeline_phases(&graph, &measured);
  hk_machine m = schoolbook_machine();
  for (int at_once = 1; at_once <= 2; at_once++) {
    hk_op_cost *costs = NULL;
    hk_timeline_comparison c;
    m.copies_at_once.value = at_once;
    must(hk_op_costs(&graph, &m, &costs, &err), &err);
    must(hk_timelines_compare(&graph, &predicted, &measured, costs, &c, &err), &err);
    const hk_lane_pair *p = &c.lanes[0], *v = &c.lanes[1];
    const bool turns = at_once == 1;
    assert_int_equal(p->busy.predicted, 100);
    assert_int_equal(p->busy.measured, turns ? 110 : 200);
    assert_int_equal(p->queued.measured, turns ? 90 : 0);
    assert_int_equal(v->busy.predicted, turns ? 110 : 210);
    assert_int_equal(v->queued.predicted, turns ? 100 : 0);
    assert_int_equal(v->busy.measured, 95);
    assert_int_equal(p->idle.measured + v->idle.measured, 0);
    free(costs);
    hk_timeline_comparison_free(&c);
  }
  hk_timeline_free(&predicted);
  hk_timeline_free(&measured);
  hk_graph_free(&graph);
}

/* A lane's copy out that follows its copy in first passes the queue of the H2D engine, behind
 * copies of other lanes that arrived earlier. Copies in that arrive later do not delay it.
 * Predicted: lane P's copy out is queued until 180. Measured: it starts at 180, so the wait is idle
 * time of the lane. */
static void waiting_for_the_first_engine_is_queued(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .nodes = 1, .world = 1, .tp = 1};
  add_copy(&graph, HK_LANE_STREAM_P, HK_OP_STATE_H2D);
  add_copy(&graph, HK_LANE_STREAM_P, HK_OP_STATE_D2H);
  add_copy(&graph, HK_LANE_STREAM_M, HK_OP_STATE_H2D);
  add_copy(&graph, HK_LANE_STREAM_M, HK_OP_STATE_H2D);
  hk_timeline predicted, measured;
  must(hk_timeline_init(&graph, &predicted, &err), &err);
  must(hk_timeline_init(&graph, &measured, &err), &err);
  const hk_span spans[] = {{0, 0, 100}, {100, 100, 280}, {0, 50, 180}, {180, 180, 300}};
  for (int i = 0; i < 4; i++) predicted.spans[i] = measured.spans[i] = spans[i];
  measured.spans[1] = (hk_span){100, 180, 280};
  hk_timeline_phases(&graph, &predicted);
  hk_timeline_phases(&graph, &measured);
  hk_machine m = schoolbook_machine();
  m.copies_at_once.value = 1;
  hk_op_cost *costs = NULL;
  hk_timeline_comparison c;
  must(hk_op_costs(&graph, &m, &costs, &err), &err);
  must(hk_timelines_compare(&graph, &predicted, &measured, costs, &c, &err), &err);
  assert_int_equal(c.lanes[0].busy.predicted, 100 + 100);
  assert_int_equal(c.lanes[0].queued.predicted, 80);
  assert_int_equal(c.lanes[0].busy.measured, 100 + 100);
  assert_int_equal(c.lanes[0].queued.measured, 0);
  assert_int_equal(c.lanes[0].idle.measured, 80);
  assert_int_equal(c.lanes[1].busy.measured, 80 + 120);
  assert_int_equal(c.lanes[1].queued.measured, 50);
  free(costs);
  hk_timeline_comparison_free(&c);
  hk_timeline_free(&predicted);
  hk_timeline_free(&measured);
  hk_graph_free(&graph);
}

/* One block's forward is predicted to be long and is not, the others are as predicted. A latency of
 * all passes and a rate that undoes it would explain that as well. */
static void operations_without_latency_have_none(void **state) {
  (void)state;
  enum { PASSES = 30 };
  hk_error err = {0};
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .world = 1, .nodes = 1, .tp = 1};
  const hk_op op = {.kind = HK_OP_FORWARD,
                    .phase = HK_PHASE_FORWARD,
                    .lane = hk_graph_lane(&graph, HK_LANE_GPU, 0, &err)};
  hk_span p[PASSES], m[PASSES];
  hk_op_cost costs[PASSES];
  hk_ns predicted_at = 0, measured_at = 0;
  for (int i = 0; i < PASSES; i++) {
    assert_int_equal(hk_graph_add(&graph, &op, NULL, 0, &err), i);
    costs[i] = (hk_op_cost){.alone = i == 0 ? 9400 : 3700};
    p[i] = (hk_span){predicted_at, predicted_at, predicted_at + costs[i].alone};
    m[i] = (hk_span){measured_at, measured_at, measured_at + (i == 0 ? 30 : 3700)};
    predicted_at = p[i].end, measured_at = m[i].end;
  }
  hk_timeline predicted = {.spans = p, .n_spans = PASSES};
  hk_timeline measured = {.spans = m, .n_spans = PASSES};
  hk_timeline_phases(&graph, &predicted);
  hk_timeline_phases(&graph, &measured);
  hk_timeline_comparison c;
  must(hk_timelines_compare(&graph, &predicted, &measured, costs, &c, &err), &err);
  assert_int_equal(c.causes[HK_CAUSE_LATENCY], 0);
  assert_int_equal(c.causes[HK_CAUSE_RATE] + c.causes[HK_CAUSE_CONTENTION], 30 - 9400);
  assert_in_range(-c.causes[HK_CAUSE_RATE], 0, 30 * 3700 / 4);
  hk_timeline_comparison_free(&c);
  hk_graph_free(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(waiting_for_an_engine_is_queued),
      cmocka_unit_test(waiting_for_the_first_engine_is_queued),
      cmocka_unit_test(operations_without_latency_have_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
