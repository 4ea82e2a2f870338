/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Validation of training: a prediction written as a recording agrees with itself; changes to the
 * recording are found and charged to the changed operation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/validate/training.h"
#include "sim/forecast.h"
#include "sim/held.h"
#include "tests/fixture_blocks.h"

/* Three blocks of 10 M parameters. Times of a block: update 10 ms, copies 2 ms each way, forward 4
 * ms, backward 8 ms. tests/test_unit_period.c derives the iteration times from these. */
static hk_forecast three_blocks(hk_overlap overlap, const hk_machine *machine) {
  hk_error err = {0};
  hk_model model = equal_blocks(3, 10000000, 4, 8);
  hk_plan plan;
  hk_forecast f;
  const hk_sim_options options = {0};
  must(hk_plan_create(&model, &ONE_RANK, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 1LL << 40, &plan,
                      &err),
       &err);
  plan.piece_numel = 10000000;
  hk_plan_set_overlap(&plan, overlap);
  for (size_t s = 0; s < plan.n_subgroups; s++)
    plan.subgroups[s].ahead = overlap == HK_OVERLAP_BOTH;
  must(hk_forecast_make(&plan, machine, &options, &f, &err), &err);
  return f;
}

/* -- Recordings -------------------------------------------------------------------------------- */

/* A change to the recorded times. Matching operations take `longer` more or start `later`, which
 * delays everything that begins after them; or they are left out. */
typedef struct {
  const char *name;  /* beginning of the operation's label; NULL: no change */
  int32_t iteration; /* 0: the last, 1: the one before it */
  hk_ns longer, later;
  bool left_out;
} change;

static void label_of(const hk_op *op, char *label, size_t size) {
  const char *kind = hk_op_kind_name(op->kind);
  if (op->kind == HK_OP_FORWARD || op->kind == HK_OP_BACKWARD) {
    snprintf(label, size, "%s B%d", kind, (int)(op->block - HK_BLOCK_EMBED));
  } else if (op->piece >= 0) {
    snprintf(label, size, "%s sg%d.%d", kind, (int)op->subgroup, (int)op->piece);
  } else if (op->subgroup >= 0) {
    snprintf(label, size, "%s sg%d", kind, (int)op->subgroup);
  } else {
    snprintf(label, size, "%s", kind);
  }
}

static int iterations_of(const hk_graph *graph) {
  return graph->iterations > 1 ? graph->iterations : 1;
}

/* Adds the span of operation i. A graph of one iteration is recorded twice; copy 1 begins when copy
 * 0 ends. */
static void add_span(const hk_forecast *f, size_t i, int copy, const change *c, hk_ns at,
                     cJSON *spans) {
  const hk_op *op = &f->graph.ops[i];
  const hk_span *span = &f->result.timeline.spans[i];
  const hk_ns shift = copy * f->result.timeline.makespan;
  char label[64];
  label_of(op, label, sizeof label);
  const int last = iterations_of(&f->graph) - 1;
  const bool changed = c->name != NULL && strncmp(label, c->name, strlen(c->name)) == 0 &&
                       last - hk_op_iteration(&f->graph, (int32_t)i) == c->iteration;
  /* Launches, the flush without an overlap, and iterations before the last two are not recorded. */
  if (op->kind == HK_OP_LAUNCH || (op->kind == HK_OP_GRAD_D2H && op->subgroup < 0)) return;
  if (last - hk_op_iteration(&f->graph, (int32_t)i) > 1 || (changed && c->left_out)) return;
  hk_ns start = span->start + shift, end = span->end + shift;
  if (at >= 0 && start >= at && !changed) start += c->longer + c->later;
  if (at >= 0 && (end > at || changed)) end += c->longer + c->later;
  if (changed) start += c->later;
  cJSON *item = cJSON_CreateObject();
  cJSON_AddStringToObject(item, "name", label);
  cJSON_AddNumberToObject(item, "step", 1 + copy + hk_op_iteration(&f->graph, (int32_t)i));
  cJSON_AddNumberToObject(item, "start_ms", hk_ms(start));
  cJSON_AddNumberToObject(item, "end_ms", hk_ms(end));
  if (op->kind == HK_OP_FORWARD || op->kind == HK_OP_BACKWARD)
    cJSON_AddNumberToObject(item, "block", op->block - HK_BLOCK_EMBED);
  cJSON_AddItemToArray(spans, item);
}

/* Time from which other operations are delayed: the start (`later`) or end (`longer`) of the
 * changed operation; -1: never. */
static hk_ns time_of_change(const hk_forecast *f, const change *c) {
  const int last = iterations_of(&f->graph) - 1;
  for (size_t i = 0; c->name != NULL && !c->left_out && i < f->graph.n_ops; i++) {
    char label[64];
    label_of(&f->graph.ops[i], label, sizeof label);
    if (strcmp(label, c->name) != 0) continue;
    if (last - hk_op_iteration(&f->graph, (int32_t)i) == c->iteration)
      return c->later > 0 ? f->result.timeline.spans[i].start : f->result.timeline.spans[i].end;
  }
  return -1;
}

static cJSON *record(const hk_forecast *f, const change *c) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "hocket.spans/1");
  cJSON_AddItemToObject(root, "plan", hk_plan_to_json(&f->plan));
  cJSON *spans = cJSON_AddArrayToObject(root, "spans");
  const int copies = iterations_of(&f->graph) > 1 ? 1 : 2;
  for (int copy = 0; copy < copies; copy++)
    for (size_t i = 0; i < f->graph.n_ops; i++)
      add_span(f, i, copy, c, time_of_change(f, c), spans);
  return root;
}

static hk_training_validation validated(hk_overlap overlap, const change *c) {
  hk_error err = {0};
  hk_machine machine = schoolbook_machine();
  hk_forecast f = three_blocks(overlap, &machine);
  cJSON *recording = record(&f, c);
  hk_training_validation v;
  must(hk_validate_training(recording, NULL, &machine, &v, &err), &err);
  cJSON_Delete(recording);
  hk_forecast_free(&f);
  return v;
}

static hk_ns sum_of_causes(const hk_training_validation *v) {
  hk_ns sum = 0;
  for (int c = 0; c < HK_CAUSE_COUNT; c++) sum += v->comparison.causes[c];
  return sum;
}

static const char *label(const hk_training_validation *v, size_t difference) {
  static char text[128];
  return hk_op_label(&v->graph, v->differences[difference].op, text, sizeof text);
}

#define MS ((hk_ns)1000000)

/* -- Tests ------------------------------------------------------------------------------------- */

static void a_prediction_agrees_with_itself(void **state) {
  (void)state;
  static const hk_ns iteration[] = {
      [HK_OVERLAP_NONE] = 70, [HK_OVERLAP_FORWARD] = 62, [HK_OVERLAP_BOTH] = 54};
  for (int overlap = 0; overlap < HK_OVERLAP_COUNT; overlap++) {
    hk_training_validation v = validated((hk_overlap)overlap, &(change){0});
    assert_int_equal(v.comparison.makespan.predicted, v.comparison.makespan.measured);
    assert_int_equal(v.comparison.makespan.predicted, iteration[overlap] * MS);
    assert_int_equal(v.n_differences, 0);
    assert_int_equal(v.block_times, HK_BLOCKS_OF_PLAN);
    for (int k = 0; k < HK_OP_KIND_COUNT; k++) assert_int_equal(v.unpredicted[k].n, 0);
    assert_int_equal(v.comparison.kinds[HK_OP_FORWARD].n, 3);
    assert_true(v.comparison.kinds[HK_OP_ADAMW_CPU].n >= 3);
    assert_int_equal(v.comparison.phases[HK_PHASE_FORWARD].measured, 12 * MS);
    hk_training_validation_free(&v);
  }
}

/* Steps in which nothing ran ahead of the norm are predicted as such, though the plan, which says
 * what may, is the same: 62 ms, not 54. */
static void steps_in_which_nothing_ran_ahead(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = schoolbook_machine();
  hk_forecast kept = three_blocks(HK_OVERLAP_BOTH, &machine), held;
  must(hk_held_forecast(&kept.plan, &machine, &held, &err), &err);
  cJSON *recording = record(&held, &(change){0});
  hk_training_validation v;
  must(hk_validate_training(recording, NULL, &machine, &v, &err), &err);
  assert_int_equal(v.comparison.makespan.measured, 62 * MS);
  assert_int_equal(v.comparison.makespan.predicted, 62 * MS);
  assert_int_equal(v.n_differences, 0);
  hk_training_validation_free(&v);
  cJSON_Delete(recording);
  hk_forecast_free(&held);
  hk_forecast_free(&kept);
}

/* The first block's update takes 5 ms longer, and forward waits for it: 67 ms instead of 62. */
static void a_slower_update(void **state) {
  (void)state;
  hk_training_validation v = validated(
      HK_OVERLAP_FORWARD, &(change){.name = "adamw_cpu sg0.0", .iteration = 1, .longer = 5 * MS});
  assert_int_equal(v.comparison.makespan.predicted, 62 * MS);
  assert_int_equal(v.comparison.makespan.measured, 67 * MS);
  assert_int_equal(sum_of_causes(&v), 5 * MS);
  assert_int_equal(v.n_differences, 1);
  assert_string_equal(label(&v, 0), "adamw_cpu sg0.0");
  assert_int_equal(v.differences[0].duration.predicted, 10 * MS);
  assert_int_equal(v.differences[0].duration.measured, 15 * MS);
  assert_false(v.differences[0].waits);
  assert_int_not_equal(v.differences[0].cause, HK_CAUSE_HOST);
  assert_int_equal(v.forward_wait.measured - v.forward_wait.predicted, 5 * MS);
  hk_training_validation_free(&v);
}

/* A block's forward begins 3 ms after its weights are on the GPU: charged to the host. */
static void a_late_forward(void **state) {
  (void)state;
  hk_training_validation v =
      validated(HK_OVERLAP_BOTH, &(change){.name = "forward B2", .later = 3 * MS});
  assert_int_equal(v.comparison.makespan.predicted, 54 * MS);
  assert_int_equal(v.comparison.makespan.measured, 57 * MS);
  assert_int_equal(v.comparison.causes[HK_CAUSE_HOST], 3 * MS);
  assert_int_equal(sum_of_causes(&v), 3 * MS);
  assert_int_equal(v.comparison.main_cause, HK_CAUSE_HOST);
  assert_true(v.n_differences >= 1);
  assert_int_equal(v.graph.ops[v.differences[0].op].kind, HK_OP_FORWARD);
  assert_true(v.differences[0].waits);
  assert_int_equal(v.differences[0].wait.measured - v.differences[0].wait.predicted, 3 * MS);
  hk_training_validation_free(&v);
}

static void missing_work(void **state) {
  (void)state;
  hk_training_validation v = validated(
      HK_OVERLAP_FORWARD, &(change){.name = "weight_h2d sg1", .iteration = 1, .left_out = true});
  assert_int_equal(v.unmeasured[HK_OP_WEIGHT_H2D].n, 1);
  assert_int_equal(v.unmeasured[HK_OP_WEIGHT_H2D].time, 2 * MS);
  assert_int_equal(v.comparison.kinds[HK_OP_WEIGHT_H2D].n, 2);
  assert_int_equal(v.comparison.makespan.measured, 62 * MS);
  hk_training_validation_free(&v);
}

/* Block times of another document of the model: launches of 6 ms limit a block's forward, which
 * takes 4 ms in the recording. Three blocks: the prediction is 6 ms longer. */
static void block_times_of_another_document(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = schoolbook_machine();
  hk_forecast f = three_blocks(HK_OVERLAP_NONE, &machine);
  cJSON *recording = record(&f, &(change){0});
  hk_model measured = equal_blocks(3, 10000000, 3, 8);
  hk_model other = equal_blocks(4, 10000000, 3, 8), untimed = equal_blocks(3, 10000000, 0, 0);
  for (int b = 0; b < 3; b++) measured.blocks[b].forward_launch_ms = 6;
  hk_training_validation v;
  must(hk_validate_training(recording, &measured, &machine, &v, &err), &err);
  assert_int_equal(v.block_times, HK_BLOCKS_OF_MODEL);
  assert_int_equal(v.comparison.makespan.measured, 70 * MS);
  assert_int_equal(v.comparison.makespan.predicted, 76 * MS);
  hk_training_validation_free(&v);
  assert_int_equal(hk_validate_training(recording, &other, &machine, &v, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "4 blocks and 40000000 parameters"));
  assert_int_equal(hk_validate_training(recording, &untimed, &machine, &v, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "no block times"));
  hk_model_free(&measured);
  hk_model_free(&other);
  hk_model_free(&untimed);
  cJSON_Delete(recording);
  hk_forecast_free(&f);
}

static void refused(const char *text, const char *why) {
  hk_error err = {0};
  hk_machine machine = schoolbook_machine();
  hk_training_validation v;
  cJSON *root = cJSON_Parse(text);
  assert_non_null(root);
  assert_int_equal(hk_validate_training(root, NULL, &machine, &v, &err), HK_INPUT);
  if (strstr(err.message, why) == NULL) fail_msg("'%s' lacks '%s'", err.message, why);
  cJSON_Delete(root);
}

static void invalid_recordings_are_refused(void **state) {
  (void)state;
  refused("{\"schema\": \"hocket.plan/1\"}", "is not what opt.timeline() returns");
  refused("{\"schema\": \"hocket.spans/1\", \"spans\": []}", "plan");
  hk_machine machine = schoolbook_machine();
  hk_forecast f = three_blocks(HK_OVERLAP_FORWARD, &machine);
  cJSON *whole = record(&f, &(change){0});
  cJSON_DeleteItemFromObject(whole, "spans");
  cJSON_AddArrayToObject(whole, "spans");
  char *text = cJSON_PrintUnformatted(whole);
  refused(text, "no whole iteration");
  cJSON *item = cJSON_CreateObject();
  cJSON_AddStringToObject(item, "name", "nonsense sg1");
  cJSON_AddItemToArray(cJSON_GetObjectItem(whole, "spans"), item);
  free(text);
  text = cJSON_PrintUnformatted(whole);
  refused(text, "span 0: key 'name': 'nonsense sg1'");
  free(text);
  cJSON_Delete(whole);
  hk_forecast_free(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_prediction_agrees_with_itself),
                                     cmocka_unit_test(steps_in_which_nothing_ran_ahead),
                                     cmocka_unit_test(a_slower_update),
                                     cmocka_unit_test(a_late_forward),
                                     cmocka_unit_test(missing_work),
                                     cmocka_unit_test(block_times_of_another_document),
                                     cmocka_unit_test(invalid_recordings_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
