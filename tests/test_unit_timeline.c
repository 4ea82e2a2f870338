/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines: counters, phases and busy time, on graphs made by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/timeline.h"

/* Adds an operation of `phase` to the lane and returns its id. */
static int32_t add(hk_graph *graph, hk_lane_kind lane, hk_phase phase) {
  hk_op op = {.kind = HK_OP_BARRIER, .phase = phase, .subgroup = -1, .piece = -1};
  op.lane = hk_graph_lane(graph, lane, 0, NULL);
  assert_true(op.lane >= 0);
  int32_t id = hk_graph_add(graph, &op, NULL, 0, NULL);
  assert_true(id >= 0);
  return id;
}

static void test_init_makes_one_zeroed_span_an_operation(void **state) {
  (void)state;
  hk_graph graph = {.ranks = 1};
  hk_timeline timeline;
  assert_int_equal(hk_timeline_init(&graph, &timeline, NULL), HK_OK);
  assert_int_equal(timeline.n_spans, 0);
  hk_timeline_free(&timeline);

  add(&graph, HK_LANE_GPU, HK_PHASE_FORWARD);
  add(&graph, HK_LANE_GPU, HK_PHASE_FORWARD);
  assert_int_equal(hk_timeline_init(&graph, &timeline, NULL), HK_OK);
  assert_int_equal(timeline.n_spans, 2);
  assert_int_equal(timeline.spans[1].ready | timeline.spans[1].start | timeline.spans[1].end, 0);
  assert_int_equal(timeline.n_counters, 0);
  hk_timeline_free(&timeline);
  assert_null(timeline.spans);
  hk_timeline_free(&timeline); /* safe on what is free already */
  hk_graph_free(&graph);
}

static void test_counters_keep_what_they_are_given(void **state) {
  (void)state;
  hk_timeline timeline = {0};
  for (int i = 0; i < 20; i++) {
    char name[24];
    snprintf(name, sizeof name, "counter %d", i);
    assert_int_equal(hk_timeline_counter(&timeline, name, "bytes", i, NULL), i);
  }
  assert_int_equal(timeline.n_counters, 20);
  assert_string_equal(timeline.counters[7].name, "counter 7");
  assert_string_equal(timeline.counters[7].unit, "bytes");
  assert_true(timeline.counters[7].capacity == 7.0);

  hk_counter *counter = &timeline.counters[3];
  for (int i = 0; i < 1000; i++) assert_int_equal(hk_counter_add(counter, i, i, NULL), HK_OK);
  assert_int_equal(counter->n, 1000);
  for (int i = 0; i < 1000; i++) {
    assert_int_equal(counter->samples[i].time, i);
    assert_true(counter->samples[i].value == i);
  }
  hk_timeline_free(&timeline);
}

static void test_counter_name_must_fit(void **state) {
  (void)state;
  hk_timeline timeline = {0};
  hk_error err = {0};
  const char *fits = "123456789012345678901234567890123456789"; /* 39 characters */
  const char *long_by_one = "1234567890123456789012345678901234567890";
  assert_int_equal(hk_timeline_counter(&timeline, fits, "bytes", 0, &err), 0);
  assert_string_equal(timeline.counters[0].name, fits);
  assert_int_equal(hk_timeline_counter(&timeline, long_by_one, "bytes", 0, &err), -1);
  assert_int_equal(err.status, HK_INPUT);
  assert_non_null(strstr(err.message, long_by_one));
  assert_int_equal(timeline.n_counters, 1);
  hk_timeline_free(&timeline);
}

/* Adds one sample and compares the number of samples and the last of them. */
static void add_sample(hk_counter *counter, hk_ns time, double value, size_t n, hk_ns last_time,
                       double last_value) {
  assert_int_equal(hk_counter_add(counter, time, value, NULL), HK_OK);
  assert_int_equal(counter->n, n);
  assert_int_equal(counter->samples[n - 1].time, last_time);
  assert_true(counter->samples[n - 1].value == last_value);
}

static void test_samples_replace_and_merge(void **state) {
  (void)state;
  hk_timeline timeline = {0};
  assert_int_equal(hk_timeline_counter(&timeline, "memory", "bytes", 0, NULL), 0);
  hk_counter *counter = &timeline.counters[0];
  add_sample(counter, 0, 5, 1, 0, 5);
  add_sample(counter, 0, 6, 1, 0, 6);   /* same time: replaces, the first one too */
  add_sample(counter, 10, 6, 1, 0, 6);  /* same value: dropped */
  add_sample(counter, 20, 7, 2, 20, 7); /* a change: kept */
  add_sample(counter, 20, 8, 2, 20, 8); /* replaces */
  add_sample(counter, 20, 6, 1, 0, 6);  /* replaces, and then nothing has changed since 0 */
  add_sample(counter, 30, -1, 2, 30, -1);
  hk_timeline_free(&timeline);
}

static void test_invalid_samples_are_refused(void **state) {
  (void)state;
  hk_timeline timeline = {0};
  hk_error err = {0};
  assert_int_equal(hk_timeline_counter(&timeline, "memory", "bytes", 0, NULL), 0);
  hk_counter *counter = &timeline.counters[0];
  assert_int_equal(hk_counter_add(counter, -1, 1, &err), HK_INPUT);
  assert_int_equal(hk_counter_add(counter, 100, 1, &err), HK_OK);
  assert_int_equal(hk_counter_add(counter, 99, 2, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "'memory'"));
  assert_non_null(strstr(err.message, "99 ns"));
  assert_int_equal(hk_counter_add(counter, 200, INFINITY, &err), HK_INPUT);
  assert_int_equal(hk_counter_add(counter, 200, NAN, &err), HK_INPUT);
  assert_int_equal(counter->n, 1);
  hk_timeline_free(&timeline);
}

static void expect_phase(const hk_timeline *timeline, hk_phase phase, hk_ns begin, hk_ns end) {
  assert_int_equal(timeline->phase_begin[phase], begin);
  assert_int_equal(timeline->phase_end[phase], end);
}

static void test_phases_follow_one_another(void **state) {
  (void)state;
  hk_graph graph = {.ranks = 1};
  int32_t forward = add(&graph, HK_LANE_GPU, HK_PHASE_FORWARD);
  int32_t backward = add(&graph, HK_LANE_GPU, HK_PHASE_BACKWARD);
  int32_t flush = add(&graph, HK_LANE_FLUSH, HK_PHASE_BACKWARD);
  int32_t update = add(&graph, HK_LANE_CPU, HK_PHASE_UPDATE);
  hk_timeline timeline;
  assert_int_equal(hk_timeline_init(&graph, &timeline, NULL), HK_OK);
  timeline.spans[forward] = (hk_span){5, 5, 100};
  timeline.spans[backward] = (hk_span){110, 110, 300};
  timeline.spans[flush] = (hk_span){200, 200, 350};
  timeline.spans[update] = (hk_span){350, 360, 900};
  hk_timeline_phases(&graph, &timeline);
  expect_phase(&timeline, HK_PHASE_FORWARD, 0, 100);
  expect_phase(&timeline, HK_PHASE_BACKWARD, 100, 350);
  expect_phase(&timeline, HK_PHASE_UPDATE, 350, 900);
  assert_int_equal(timeline.makespan, 900);

  /* An update that ends before the flush has duration 0, not a negative one. */
  timeline.spans[update] = (hk_span){300, 300, 340};
  hk_timeline_phases(&graph, &timeline);
  expect_phase(&timeline, HK_PHASE_UPDATE, 350, 350);
  assert_int_equal(timeline.makespan, 350);
  hk_timeline_free(&timeline);
  hk_graph_free(&graph);
}

static void test_absent_phases_are_zero(void **state) {
  (void)state;
  hk_graph graph = {.ranks = 1};
  int32_t update = add(&graph, HK_LANE_CPU, HK_PHASE_UPDATE);
  hk_timeline timeline;
  assert_int_equal(hk_timeline_init(&graph, &timeline, NULL), HK_OK);
  timeline.spans[update] = (hk_span){0, 40, 70};
  timeline.phase_end[HK_PHASE_BACKWARD] = 12345; /* left by an earlier call */
  hk_timeline_phases(&graph, &timeline);
  expect_phase(&timeline, HK_PHASE_FORWARD, 0, 0);
  expect_phase(&timeline, HK_PHASE_BACKWARD, 0, 0);
  expect_phase(&timeline, HK_PHASE_UPDATE, 0, 70);
  assert_int_equal(timeline.makespan, 70);

  graph.ops[update].phase = HK_PHASE_FORWARD; /* now the later phases are absent */
  hk_timeline_phases(&graph, &timeline);
  expect_phase(&timeline, HK_PHASE_FORWARD, 0, 70);
  expect_phase(&timeline, HK_PHASE_BACKWARD, 0, 0);
  expect_phase(&timeline, HK_PHASE_UPDATE, 0, 0);
  hk_timeline_free(&timeline);
  hk_graph_free(&graph);
}

static void test_busy_time_is_clipped_to_the_window(void **state) {
  (void)state;
  hk_graph graph = {.ranks = 1};
  int32_t first = add(&graph, HK_LANE_CPU, HK_PHASE_UPDATE);
  int32_t other = add(&graph, HK_LANE_H2D, HK_PHASE_UPDATE);
  int32_t second = add(&graph, HK_LANE_CPU, HK_PHASE_UPDATE);
  hk_timeline timeline;
  assert_int_equal(hk_timeline_init(&graph, &timeline, NULL), HK_OK);
  timeline.spans[first] = (hk_span){0, 10, 30};
  timeline.spans[other] = (hk_span){0, 0, 1000};
  timeline.spans[second] = (hk_span){0, 50, 60};
  int32_t cpu = graph.ops[first].lane;
  assert_int_equal(hk_lane_busy(&graph, &timeline, cpu, 0, 1000), 30);
  assert_int_equal(hk_lane_busy(&graph, &timeline, cpu, 10, 60), 30);
  assert_int_equal(hk_lane_busy(&graph, &timeline, cpu, 20, 55), 15);
  assert_int_equal(hk_lane_busy(&graph, &timeline, cpu, 15, 20), 5);
  assert_int_equal(hk_lane_busy(&graph, &timeline, cpu, 30, 50), 0);
  assert_int_equal(hk_lane_busy(&graph, &timeline, cpu, 25, 25), 0);
  assert_int_equal(hk_lane_busy(&graph, &timeline, graph.ops[other].lane, 20, 55), 35);
  hk_timeline_free(&timeline);
  hk_graph_free(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_init_makes_one_zeroed_span_an_operation),
      cmocka_unit_test(test_counters_keep_what_they_are_given),
      cmocka_unit_test(test_counter_name_must_fit),
      cmocka_unit_test(test_samples_replace_and_merge),
      cmocka_unit_test(test_invalid_samples_are_refused),
      cmocka_unit_test(test_phases_follow_one_another),
      cmocka_unit_test(test_absent_phases_are_zero),
      cmocka_unit_test(test_busy_time_is_clipped_to_the_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
