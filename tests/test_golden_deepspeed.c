/* SPDX-License-Identifier: GPL-3.0-or-later */
/* DeepSpeed's operations as they ran: three recorded updates (tests/data/README.md). The simulator
 * has the same operations, runs those of a lane in the recorded order, and predicts the durations
 * that it predicted when they were recorded. test_golden_ranking compares its times of whole
 * updates with those of two GPU nodes. */
#include <math.h>
#include <stdio.h>

#include "sim/sim.h"
#include "tests/fixture.h"

#define RECORDED HK_TEST_DATA "/deepspeed/"
#define PROFILE  HK_TEST_DATA "/rankings/node-27-profile.json"

enum { MOST_OPS = 64 };

/* A row of hk_timelines_write_csv. */
typedef struct {
  char kind[32], lane[24];
  int subgroup, piece; /* -1: none */
  int64_t work;
  hk_ns start, end, predicted_start, predicted_end;
} row;

typedef struct {
  row rows[MOST_OPS];
  size_t n;
} recording;

/* The next field of a line; ends it there. */
static char *field(char **line) {
  char *text = *line, *comma = strchr(text, ',');
  if (comma != NULL) *comma = 0;
  *line = comma != NULL ? comma + 1 : text + strlen(text);
  return text;
}

static int index_of(const char *text) {
  return text[0] != 0 ? atoi(text) : -1;
}

static row parse(char *line, size_t number) {
  row r = {.subgroup = -1};
  assert_int_equal(atoi(field(&line)), number);
  snprintf(r.kind, sizeof r.kind, "%s", field(&line));
  snprintf(r.lane, sizeof r.lane, "%s", field(&line));
  field(&line); /* rank */
  r.subgroup = index_of(field(&line));
  r.piece = index_of(field(&line));
  r.work = atoll(field(&line));
  for (int skipped = 0; skipped < 3; skipped++) field(&line); /* unit, GPU memory */
  hk_ns *const times[] = {&r.start, &r.end, &r.predicted_start, &r.predicted_end};
  for (size_t t = 0; t < 4; t++) *times[t] = atoll(field(&line));
  return r;
}

static recording read_recording(const char *path) {
  char line[400];
  recording r = {.n = 0};
  FILE *in = fopen(path, "r");
  assert_non_null(in);
  assert_non_null(fgets(line, sizeof line, in)); /* the header */
  while (fgets(line, sizeof line, in) != NULL) {
    assert_true(r.n < MOST_OPS);
    r.rows[r.n] = parse(line, r.n);
    r.n++;
  }
  fclose(in);
  return r;
}

/* The graph has the recorded operations. None ran before what it depends on had ended. */
static void assert_operations(const hk_graph *g, const recording *r) {
  assert_int_equal(g->n_ops, r->n);
  for (size_t i = 0; i < r->n; i++) {
    const hk_op *op = &g->ops[i];
    const row *was = &r->rows[i];
    assert_string_equal(hk_op_kind_name(op->kind), was->kind);
    assert_string_equal(g->lanes[op->lane].name, was->lane);
    assert_int_equal(op->subgroup, was->subgroup);
    assert_int_equal(op->piece, was->piece);
    assert_int_equal(op->work, was->work);
    for (int32_t d = op->deps_begin; d < op->deps_end; d++)
      assert_true(r->rows[g->deps[d]].end <= was->start);
  }
}

/* Of two operations of a lane, the one that ran first is predicted first. */
static void assert_order(const hk_graph *g, const hk_timeline *t, const recording *r) {
  for (size_t i = 0; i < r->n; i++)
    for (size_t j = 0; j < i; j++)
      if (g->ops[i].lane == g->ops[j].lane)
        assert_int_equal(t->spans[j].end <= t->spans[i].start, r->rows[j].end <= r->rows[i].start);
}

/* Relative difference of a time that is not 0. */
static double off(hk_ns now, hk_ns then) {
  return fabs((double)now / (double)then - 1);
}

/* Each lane is as long busy as it was predicted to be, and so is the update, to 0.1 %. */
static void assert_durations(const hk_graph *g, const hk_timeline *t, const recording *r) {
  hk_ns end = 0;
  for (size_t l = 0; l < g->n_lanes; l++) {
    hk_ns now = 0, then = 0;
    for (size_t i = 0; i < r->n; i++) {
      if (g->ops[i].lane != (int32_t)l) continue;
      now += t->spans[i].end - t->spans[i].start;
      then += r->rows[i].predicted_end - r->rows[i].predicted_start;
      end = hk_max(end, r->rows[i].predicted_end);
    }
    assert_true(then > 0 && off(now, then) < 1e-3);
  }
  assert_true(off(t->makespan, end) < 1e-3);
}

static void check(const char *name) {
  hk_error err = {0};
  hk_machine machine;
  hk_plan plan;
  hk_graph graph;
  hk_result result;
  char path[400];
  snprintf(path, sizeof path, RECORDED "%s.json", name);
  must(hk_plan_load(path, &plan, &err), &err);
  must(hk_machine_load(PROFILE, &machine, &err), &err);
  machine.step_overhead.value = machine.subgroup_overhead.value = 0; /* of Python, not recorded */
  snprintf(path, sizeof path, RECORDED "%s.csv", name);
  const recording r = read_recording(path);
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &graph, &err), &err);
  must(hk_simulate(&graph, &machine, NULL, &result, &err), &err);
  assert_operations(&graph, &r);
  assert_order(&graph, &result.timeline, &r);
  assert_durations(&graph, &result.timeline, &r);
  hk_result_free(&result);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  hk_machine_free(&machine);
}

static void everything_on_the_cpu(void **state) {
  (void)state;
  check("zero-offload");
}

static void every_second_subgroup_staged(void **state) {
  (void)state;
  check("interleave");
}

static void some_subgroups_resident(void **state) {
  (void)state;
  check("twinflow");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everything_on_the_cpu),
      cmocka_unit_test(every_second_subgroup_staged),
      cmocka_unit_test(some_subgroups_resident),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
