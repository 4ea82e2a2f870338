/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Pipeline and sequence parallelism: the model of a stage, a job's factors, its refusals, and what
 * they change in the task graph. */
#include "tests/fixture_sums.h"

#include <math.h>
#include <stdio.h>

#include "engine/engine.h"

#define LAYERS 7 /* of four stages the fullest has 2 */
#define STAGES 4
#define MICROS 8

static const hk_job job = {.gpus = 4,
                           .nodes = 4,
                           .tp = 2,
                           .pp = STAGES,
                           .micro_batch = 1,
                           .grad_accum = MICROS,
                           .seq = 64,
                           .checkpoint_activations = true};

static hk_model stage_of(int layers, int stages) {
  hk_error err = {0};
  hk_model model = tiny_model(layers);
  must(hk_model_stage(&model, stages, &err), &err);
  return model;
}

static hk_plan plan_of(const hk_job *j) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = stage_of(LAYERS, hk_job_pp(j));
  must(hk_plan_create(&model, j, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 1000000, &plan, &err), &err);
  return plan;
}

/* The last two of seven layers, the embedding, and a head without tensors. */
static void a_stage_has_its_layers(void **state) {
  (void)state;
  hk_model whole = tiny_model(LAYERS), stage = stage_of(LAYERS, STAGES);
  size_t first = 0, end = 0;
  assert_int_equal(stage.layers, 2);
  assert_int_equal(stage.parameters, whole.parameters);
  int64_t expected = hk_model_block_parameters(&whole, HK_BLOCK_EMBED, 1);
  for (int layer = LAYERS - 2; layer < LAYERS; layer++)
    expected += hk_model_block_parameters(&whole, layer, 1);
  assert_int_equal(hk_model_rank_parameters(&stage, 1, 1), expected);
  hk_model_block_tensors(&stage, 0, &first, &end);
  assert_non_null(strstr(stage.tensors[first].name, ".5."));
  assert_int_equal(stage.tensors[first].block, 0);
  hk_model_block_tensors(&stage, 2, &first, &end);
  assert_int_equal(first, end);
  assert_int_equal(end, stage.n_tensors);
  assert_true(hk_model_forward_flops(&stage, 2, 1, 64, 1) ==
              hk_model_forward_flops(&whole, LAYERS, 1, 64, 1));
  hk_model_free(&whole);
  hk_model_free(&stage);
}

static void factors_are_those_of_the_papers(void **state) {
  (void)state;
  hk_job j = job;
  assert_true(fabs(hk_job_fill(&j) - (1 + 3.0 / 8)) < 1e-12);
  assert_true(hk_job_in_flight(&j) == STAGES);
  j.chunks = 2;
  assert_true(fabs(hk_job_fill(&j) - (1 + 3.0 / 16)) < 1e-12);
  assert_true(hk_job_in_flight(&j) == 5.5);
  j.grad_accum = 3;
  assert_true(hk_job_in_flight(&j) == 3);
  assert_int_equal(hk_job_dp(&job), 2);
  j.pp = j.chunks = 0;
  assert_true(hk_job_fill(&j) == 1 && hk_job_in_flight(&j) == 1);
}

/* With sequence parallelism a rank has exactly 1/tp of a layer's activations. */
static void sequences_divide_activations(void **state) {
  (void)state;
  hk_model model = tiny_model(LAYERS);
  hk_job j = job;
  for (int kept = 0; kept < 2; kept++) {
    j.checkpoint_activations = !kept;
    j.sequence_parallel = false;
    const hk_bytes before = hk_job_activation_bytes(&j, &model, 0);
    j.sequence_parallel = true;
    const hk_bytes after = hk_job_activation_bytes(&j, &model, 0);
    assert_int_equal(after, hk_model_activation_bytes(&model, 0, 1, 64, 1, !kept) / 2);
    assert_true(after < before);
  }
  hk_model_free(&model);
}

static void refuse(const hk_job *j, const hk_model *model, const char *why) {
  hk_error err = {0};
  assert_int_equal(hk_job_check(j, model, &err), HK_INPUT);
  if (strstr(err.message, why) == NULL) fail_msg("'%s' does not say '%s'", err.message, why);
}

static void impossible_jobs_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model stage = stage_of(LAYERS, STAGES), whole = tiny_model(LAYERS);
  hk_job j = job;
  must(hk_job_check(&j, &stage, &err), &err);
  refuse(&j, &whole, "cut into");
  j.nodes = 3;
  refuse(&j, &stage, "tp 2 x pp 4 does not divide the 12 GPUs");
  j = job, j.chunks = 3;
  refuse(&j, &stage, "a stage has 2 layers");
  j = job, j.chunks = 2, j.grad_accum = 6;
  refuse(&j, &stage, "not a multiple of pp 4");
  j = job, j.tp = 1, j.sequence_parallel = true;
  refuse(&j, &stage, "tp is 1");
  assert_int_equal(hk_model_stage(&whole, LAYERS + 1, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "only 7 layers"));
  const hk_frozen_spec lora = {.rank = 4, .bytes = 2};
  must(hk_model_freeze(&whole, &lora, &err), &err);
  assert_int_equal(hk_model_stage(&whole, 2, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "frozen"));
  hk_plan plan = plan_of(&job);
  assert_int_equal(hk_engine_check_plan(&plan, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "4 pipeline stages"));
  plan.runtime = HK_RUNTIME_DEEPSPEED;
  assert_int_equal(hk_plan_check(&plan, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "no pipeline"));
  hk_plan_free(&plan);
  hk_model_free(&stage);
  hk_model_free(&whole);
}

static sums graph_of(const hk_job *j) {
  hk_plan plan = plan_of(j);
  const sums s = sums_of(&plan);
  assert_true(s.once);
  return s;
}

static void the_graph_of_a_stage(void **state) {
  (void)state;
  const sums s = graph_of(&job);
  hk_model stage = stage_of(LAYERS, STAGES);
  double flops = 0;
  for (int block = HK_BLOCK_EMBED; block <= 2; block++)
    flops += hk_model_forward_flops(&stage, block, 1, 64, 2);
  /* Fill and drain are part of every pass; rounding: less than one operation a block. */
  assert_true(fabs((double)s.work[HK_OP_FORWARD] - MICROS * flops * (1 + 3.0 / 8)) < 64);
  /* Ranks keep weights: gathers of three blocks and reductions of four, once an iteration. */
  assert_int_equal(s.n[HK_OP_ALL_GATHER], 3);
  assert_int_equal(s.n[HK_OP_REDUCE_SCATTER], 4);
  assert_int_equal(s.n[HK_OP_STAGE_SEND], 2 * MICROS);
  assert_int_equal(s.work[HK_OP_STAGE_SEND],
                   (int64_t)(2 * MICROS * 2.0 * 64 * 64 / 2 * (1 + 3.0 / 8)));
  assert_int_equal(s.left, 0);
  /* All weights of the stage, and activations of two layers of three more micro-batches, less the
   * head's activations and temporary memory, which the first stage does not have. */
  hk_job kept = job;
  kept.checkpoint_activations = false;
  const int64_t n = hk_model_rank_parameters(&stage, 2, 1);
  const hk_bytes more = 3 * 2 * hk_job_activation_bytes(&kept, &stage, 0);
  const hk_bytes head =
      hk_job_activation_bytes(&kept, &stage, 2) + hk_job_workspace_bytes(&kept, &stage, 2);
  assert_true(more > head);
  assert_int_equal(graph_of(&kept).base, 2 * n + more - head);
  assert_int_equal(s.base, 2 * n); /* inputs of layers are less than the head's */
  hk_job interleaved = job;
  interleaved.chunks = 2;
  const sums more_sent = graph_of(&interleaved);
  assert_true(more_sent.work[HK_OP_STAGE_SEND] > s.work[HK_OP_STAGE_SEND]);
  assert_true(more_sent.work[HK_OP_FORWARD] < s.work[HK_OP_FORWARD]);
  hk_model_free(&stage);
}

/* Norms and residual sums that tensor parallelism repeats; sequence parallelism divides them. */
static void sequences_repeat_nothing(void **state) {
  (void)state;
  hk_job j = job;
  const sums before = graph_of(&j);
  j.sequence_parallel = true;
  const sums after = graph_of(&j);
  /* Half of (20 + 24 + 20) h bytes a token of two layers, half of that each way. */
  const double width = 64.0 * 64, fill = 1 + 3.0 / 8;
  assert_true(fabs((double)before.copied - MICROS * 2 * fill * width * 0.5 * (20 + 24 + 20) / 2) <
              64);
  assert_int_equal(after.copied, 0);
  assert_int_equal(after.work[HK_OP_TP_ALL_REDUCE], before.work[HK_OP_TP_ALL_REDUCE]);
}

static void plans_are_read_back(void **state) {
  (void)state;
  hk_error err = {0};
  hk_job j = job;
  j.chunks = 2;
  j.sequence_parallel = true;
  hk_plan plan = plan_of(&j), again;
  cJSON *root = hk_plan_to_json(&plan);
  assert_non_null(root);
  must(hk_plan_from_json(root, &again, &err), &err);
  cJSON *written = hk_plan_to_json(&again);
  assert_true(cJSON_Compare(root, written, true));
  assert_true(again.job.pp == STAGES && again.job.chunks == 2 && again.job.sequence_parallel);
  cJSON_Delete(written);
  assert_int_equal(again.model.layers, 2);
  assert_int_equal(again.model.n_tensors, plan.model.n_tensors);
  hk_plan_free(&again);
  cJSON_DeleteItemFromObject(cJSON_GetObjectItem(root, "job"), "pp");
  assert_int_equal(hk_plan_from_json(root, &again, &err), HK_INPUT);
  cJSON_Delete(root);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_stage_has_its_layers),
      cmocka_unit_test(factors_are_those_of_the_papers),
      cmocka_unit_test(sequences_divide_activations),
      cmocka_unit_test(impossible_jobs_are_refused),
      cmocka_unit_test(the_graph_of_a_stage),
      cmocka_unit_test(sequences_repeat_nothing),
      cmocka_unit_test(plans_are_read_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
