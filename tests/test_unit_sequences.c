/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Long sequences: more tokens than the model has positions, and a loss computed in slices of
 * tokens. */
#include <stdlib.h>

#include "core/graph/bytes.h"
#include "sim/warnings.h"
#include "tests/fixture_graph.h"

static const char GPT2[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 4, "
    "\"n_positions\": 128, \"vocab_size\": 256}";

/* Whether one of a plan's warnings has these words. */
static bool warns(const hk_plan *plan, const char *words) {
  hk_error err = {0};
  char **warnings = NULL;
  bool found = false;
  const hk_machine machine = ideal_machine();
  must(hk_forecast_warnings(plan, &machine, &warnings, &err), &err);
  for (size_t i = 0; warnings[i] != NULL; i++) found |= strstr(warnings[i], words) != NULL;
  hk_warnings_free(warnings);
  return found;
}

static hk_plan plan_with(hk_job job) {
  return planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &job,
                 HK_FLUSH_ASYNC);
}

/* Rotary positions have no limit: longer sequences get a warning. */
static void beyond_rotary_positions(void **state) {
  (void)state;
  hk_job job = ALONE;
  job.seq = 4096;
  hk_plan plan = plan_with(job);
  assert_false(warns(&plan, "positions"));
  hk_plan_free(&plan);
  job.seq = 4097;
  plan = plan_with(job);
  assert_true(warns(&plan, "4097 tokens are beyond the 4096 positions that tiny"));
  hk_plan_free(&plan);
}

/* A table of positions has a limit: longer sequences are refused. */
static void beyond_a_position_table(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = model_of(GPT2, "small"), rotary = tiny_model(1);
  hk_job job = ALONE;
  job.seq = 128;
  assert_true(hk_model_has_position_table(&model));
  assert_false(hk_model_has_position_table(&rotary));
  must(hk_job_check(&job, &model, &err), &err);
  job.seq = 129;
  assert_int_equal(hk_job_check(&job, &model, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "seq 129 is longer than the 128 positions that small"));
  assert_non_null(strstr(err.message, "a table with a row for each"));
  hk_model_free(&model);
  hk_model_free(&rotary);
}

static const hk_op *op_of(const hk_graph *graph, hk_op_kind kind, int block) {
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == kind && graph->ops[i].block == block) return &graph->ops[i];
  fail_msg("no such operation");
  return NULL;
}

/* 64 tokens of 64 hidden values and 256 logits. Bytes a token: forward keeps the inputs of final
 * norm and projection, 2 x 2 x 64, and without slices fp32 logits, 4 x 256. Backward needs the
 * input's gradient, 2 x 64, and for each token of a slice fp32 logits and their bf16 gradients,
 * 6 x 256. */
static void loss_in_slices(void **state) {
  (void)state;
  const struct {
    int chunks;
    int64_t slice; /* tokens */
  } cases[] = {{2, 32}, {3, 22}, {4, 16}, {64, 1}, {1000, 1}};
  const int64_t gradients = 2 * (256 * 64 + 64), flops = 2 * 64 * 64 * 256;
  hk_plan plan = plan_with(ALONE);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  assert_int_equal(op_of(&graph, HK_OP_FORWARD, LAYERS)->gpu_alloc, 64 * (4 * 64 + 4 * 256));
  assert_int_equal(op_of(&graph, HK_OP_BACKWARD, LAYERS)->work, 2 * flops);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    hk_job job = ALONE;
    job.loss_chunks = cases[i].chunks;
    plan = plan_with(job);
    graph = built(&plan, HK_EXPAND_ALL, true);
    const hk_op *forward = op_of(&graph, HK_OP_FORWARD, LAYERS);
    const hk_op *backward = op_of(&graph, HK_OP_BACKWARD, LAYERS);
    assert_int_equal(forward->work, flops);
    assert_int_equal(forward->gpu_alloc - forward->gpu_free, 64 * 4 * 64);
    assert_int_equal(forward->gpu_free, cases[i].slice * 4 * 256);
    assert_int_equal(backward->work, 3 * flops); /* computes the logits again */
    assert_int_equal(backward->gpu_alloc, 64 * 2 * 64 + cases[i].slice * 6 * 256 + gradients);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* Two tensor-parallel ranks have half of the logits each. */
static void slices_of_a_tensor_parallel_rank(void **state) {
  (void)state;
  hk_job job = ALONE;
  job.gpus = job.tp = 2;
  job.loss_chunks = 4;
  hk_plan plan = plan_with(job);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  assert_int_equal(op_of(&graph, HK_OP_FORWARD, LAYERS)->gpu_free, 16 * 4 * 256 / 2);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* Simulated iterations of 4096 tokens return all memory; slices lower the peak by the difference by
 * hand. */
static void simulated(void **state) {
  (void)state;
  hk_error err = {0};
  hk_bytes peak[2];
  for (int i = 0; i < 2; i++) {
    hk_job job = ALONE;
    job.seq = 4096;
    job.loss_chunks = i == 0 ? 1 : 64;
    hk_plan plan = plan_with(job);
    hk_forecast forecast;
    const hk_machine machine = ideal_machine();
    const hk_sim_options options = {.check = true};
    must(hk_forecast_make(&plan, &machine, &options, &forecast, &err), &err);
    peak[i] = forecast.result.memory.peak;
    assert_int_equal(forecast.result.memory.after_update, forecast.result.memory.before_forward);
    hk_forecast_free(&forecast);
  }
  /* Beside the layers' activations and the head's gradients, which are in both: without slices the
   * peak is in the head's backward, (4 + 2) x 64 + 6 x 256 bytes a token. With slices it is in the
   * last layer's backward: 2 x 64 + 6 x 128 bytes a token, and the layer's own gradients. */
  const hk_bytes head = 4096 * (6 * 64 + 6 * 256);
  const hk_bytes layer = 4096 * (2 * 64 + 6 * 128) + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64);
  assert_int_equal(peak[0] - peak[1], head - layer);
}

static void in_plan_files(void **state) {
  (void)state;
  hk_error err = {0};
  hk_job job = ALONE;
  for (int chunks = 1; chunks <= 8; chunks += 7) {
    job.loss_chunks = chunks;
    hk_plan plan = plan_with(job), read;
    cJSON *root = hk_plan_to_json(&plan);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(root, "job"), "loss_chunks");
    assert_int_equal(item != NULL, chunks > 1); /* the key is written only if it is not 1 */
    must(hk_plan_from_json(root, &read, &err), &err);
    assert_int_equal(read.job.loss_chunks > 1 ? read.job.loss_chunks : 1, chunks);
    cJSON_Delete(root);
    hk_plan_free(&plan);
    hk_plan_free(&read);
  }
}

static void slices_under_deepspeed_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_job job = ALONE;
  hk_plan plan;
  job.loss_chunks = 2;
  hk_model model = tiny_model(1);
  assert_int_equal(
      hk_plan_create(&model, &job, HK_RUNTIME_DEEPSPEED, HK_SUBGROUP_SOFT, 5000, &plan, &err),
      HK_INPUT);
  assert_non_null(strstr(err.message, "loss_chunks 2: under DeepSpeed"));
  hk_model_free(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(beyond_rotary_positions),
      cmocka_unit_test(beyond_a_position_table),
      cmocka_unit_test(loss_in_slices),
      cmocka_unit_test(slices_of_a_tensor_parallel_rank),
      cmocka_unit_test(simulated),
      cmocka_unit_test(in_plan_files),
      cmocka_unit_test(slices_under_deepspeed_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
