/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Expert parallelism: what a rank has, what it sends and how long that takes, by hand. */
#include "tests/fixture_sums.h"

#include <math.h>

#include "engine/engine.h"
#include "sim/sim.h"

/* Four layers of 8 experts, of which a token takes 2; dp 8, on two nodes. */
#define LAYERS  4
#define EXPERTS 8
#define CHOSEN  2
#define HIDDEN  64
#define FFN     128
#define SEQ     64
#define DP      8
#define EXPERT  (3LL * HIDDEN * FFN)                                    /* parameters */
#define LAYER   (4LL * HIDDEN * HIDDEN + 2 * HIDDEN + HIDDEN * EXPERTS) /* of a layer beside them */

static const hk_job job = {.gpus = 4,
                           .nodes = 2,
                           .tp = 1,
                           .micro_batch = 1,
                           .grad_accum = 1,
                           .seq = SEQ,
                           .checkpoint_activations = true};

static hk_model mixture(int stages, int ranks) {
  hk_error err = {0};
  hk_model model = model_of(
      "{\"architectures\": [\"MixtralForCausalLM\"], \"num_hidden_layers\": 4, \"hidden_size\": "
      "64, \"intermediate_size\": 128, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
      "\"vocab_size\": 256, \"max_position_embeddings\": 4096, \"num_local_experts\": 8, "
      "\"num_experts_per_tok\": 2}",
      "mixture");
  must(hk_model_stage(&model, stages, &err), &err);
  must(hk_model_divide_experts(&model, ranks, &err), &err);
  return model;
}

static hk_job with(int ep) {
  hk_job j = job;
  j.ep = ep;
  return j;
}

static hk_plan plan_of(const hk_job *j) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = mixture(hk_job_pp(j), hk_job_ep(j));
  must(hk_plan_create(&model, j, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 1000000, &plan, &err), &err);
  return plan;
}

/* -- Memory ------------------------------------------------------------------------------------ */

/* Whole on a rank: its experts; divided by ZeRO: a dp-th of everything, however experts lie. */
static void a_rank_has_its_experts(void **state) {
  (void)state;
  const hk_model one = mixture(1, 1);
  const int64_t rest = one.parameters - LAYERS * EXPERTS * EXPERT;
  assert_int_equal(hk_model_block_parameters(&one, 0, 1), LAYER + EXPERTS * EXPERT);
  for (int ep = 1; ep <= EXPERTS; ep *= 2) {
    hk_model model = mixture(1, ep);
    assert_int_equal(model.parameters, one.parameters);
    assert_int_equal(hk_model_rank_parameters(&model, 1, 1), rest + LAYERS * EXPERTS / ep * EXPERT);
    assert_int_equal(hk_model_rank_parameters(&model, 1, DP),
                     hk_model_rank_parameters(&one, 1, DP));
    assert_int_equal(hk_model_expert_bytes(&model, 0, 1), 2 * EXPERTS / ep * EXPERT);
    assert_int_equal(hk_model_expert_bytes(&model, HK_BLOCK_EMBED, 1), 0);
    hk_model_free(&model);
  }
  /* tp 2 does not split them: 8 ranks divide them, and with dp 8 two have the same. */
  hk_model model = mixture(1, 8);
  for (size_t i = 0; i < model.n_tensors; i++) {
    const hk_tensor *t = &model.tensors[i];
    if (t->expert_ranks == 0) continue;
    assert_int_equal(hk_tensor_share(t, 2, 1), t->numel / 8);
    assert_int_equal(hk_tensor_share(t, 2, DP), t->numel / 16);
  }
  hk_model_free(&model);
  hk_model_free((hk_model *)&one);
}

/* -- Operations -------------------------------------------------------------------------------- */

static sums graph_of(const hk_job *j) {
  hk_plan plan = plan_of(j);
  return sums_of(&plan);
}

/* Forward and backward of a layer gather dense weights over 8 ranks and experts over 8 / ep; its
 * tokens go to experts and back, in backward twice as often. */
static void what_a_rank_sends(void **state) {
  (void)state;
  const int64_t vocabulary = 256LL * HIDDEN;
  const int64_t dense = 2 * (2 * vocabulary + HIDDEN + LAYERS * LAYER); /* bytes */
  const hk_job whole = with(1);
  const sums one = graph_of(&whole);
  for (int ep = 1; ep <= EXPERTS; ep *= 2) {
    const hk_job j = with(ep);
    const sums s = graph_of(&j);
    const int64_t experts = 2 * LAYERS * EXPERTS / ep * EXPERT, alike = DP / ep;
    const int64_t shared = dense / DP * (DP - 1) + experts / alike * (alike - 1);
    assert_int_equal(s.work[HK_OP_ALL_GATHER], 2 * shared);
    assert_int_equal(s.work[HK_OP_REDUCE_SCATTER], shared);
    assert_int_equal(s.experts[HK_OP_ALL_GATHER], ep == 1 || alike == 1 ? 0 : 2 * LAYERS);
    assert_int_equal(s.experts[HK_OP_REDUCE_SCATTER], ep == 1 || alike == 1 ? 0 : LAYERS);
    assert_int_equal(s.n[HK_OP_ALL_TO_ALL], ep == 1 ? 0 : LAYERS * (2 + 4));
    assert_int_equal(s.work[HK_OP_ALL_TO_ALL],
                     LAYERS * 6LL * (2 * SEQ * CHOSEN * HIDDEN) * (ep - 1) / ep);
    assert_int_equal(s.gathered, 2 * (LAYER + (alike == 1 ? 0 : EXPERTS / ep * EXPERT)));
    assert_int_equal(s.base, one.base); /* ZeRO-3: an eighth of everything */
    assert_int_equal(s.left, one.left);
    assert_int_equal(s.work[HK_OP_FORWARD], one.work[HK_OP_FORWARD]);
  }
  hk_job kept = with(4);
  kept.checkpoint_activations = false;
  assert_int_equal(graph_of(&kept).n[HK_OP_ALL_TO_ALL], LAYERS * 4);
}

/* A stage keeps the weights of its experts; filling and draining take their share. */
static void stages_keep_their_experts(void **state) {
  (void)state;
  hk_job whole = with(1), j = with(4);
  whole.pp = j.pp = 2;
  whole.grad_accum = j.grad_accum = 4;
  const sums before = graph_of(&whole), after = graph_of(&j);
  assert_int_equal(before.base - after.base, 2 * (LAYERS / 2) * (EXPERTS - EXPERTS / 4) * EXPERT);
  assert_int_equal(after.work[HK_OP_ALL_TO_ALL],
                   4 * (LAYERS / 2) * 6LL * (2 * SEQ * CHOSEN * HIDDEN * 3 / 4) * 5 / 4);
  assert_int_equal(after.left, before.left);
}

/* With tp a rank sends its own tokens, and an MLP of experts alone needs no all-reduce. */
static void tensor_parallel_ranks_send_their_tokens(void **state) {
  (void)state;
  hk_job whole = with(1), j = with(4);
  whole.tp = j.tp = 2;
  whole.sequence_parallel = j.sequence_parallel = true;
  const sums before = graph_of(&whole), after = graph_of(&j);
  assert_int_equal(after.work[HK_OP_TP_ALL_REDUCE], before.work[HK_OP_TP_ALL_REDUCE] / 2);
  assert_int_equal(after.work[HK_OP_ALL_TO_ALL],
                   LAYERS * 6LL * (2 * SEQ / 2 * CHOSEN * HIDDEN * 3 / 4));
}

/* -- Time -------------------------------------------------------------------------------------- */

/* Of each all-to-all in a micro-step without other traffic between GPUs. */
static hk_ns exchange_takes(int ep, int gpus, int nodes) {
  hk_error err = {0};
  hk_graph graph;
  hk_result result;
  hk_machine machine = ideal_machine();
  machine.nvlink.value = 1e9;
  machine.net.value = 2e9; /* of a node */
  machine.nvlink_latency.value = 100;
  machine.net_latency.value = 1000;
  machine.collective_share.value = 0;
  hk_job j = with(ep);
  j.gpus = gpus, j.nodes = nodes, j.pp = 2, j.grad_accum = 4;
  hk_plan plan = plan_of(&j);
  hk_ns took = 0;
  int n = 0;
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
  must(hk_simulate(&graph, &machine, NULL, &result, &err), &err);
  for (size_t i = 0; i < graph.n_ops; i++) {
    const hk_op *op = &graph.ops[i];
    if (op->kind != HK_OP_ALL_TO_ALL || op->micro != 1) continue;
    const hk_span *span = &result.timeline.spans[i];
    if (n++ == 0) took = span->end - span->start;
    assert_int_equal(span->end - span->start, took);
  }
  assert_int_equal(n, LAYERS / 2 * 6);
  hk_result_free(&result);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return took;
}

static void how_long_sending_takes(void **state) {
  (void)state;
  const double tokens = 2 * SEQ * CHOSEN * HIDDEN * 5 / 4.0; /* bytes, with filling */
  /* Within a node: all over NVLink, 1 byte/ns. */
  assert_int_equal(exchange_takes(2, 8, 1), 100 + (hk_ns)(tokens / 2));
  assert_int_equal(exchange_takes(4, 8, 1), 100 + (hk_ns)(tokens * 3 / 4));
  /* On two nodes of four: of 7 parts 3 stay on the node, and 4 of each of its four ranks leave it
   * at 2 bytes/ns. */
  assert_int_equal(exchange_takes(8, 4, 4), 1000 + (hk_ns)(4 * tokens * 4 / 8 / 2));
  /* One GPU a node: all leaves, at 2 bytes/ns. */
  assert_int_equal(exchange_takes(4, 1, 8), 1000 + (hk_ns)(tokens * 3 / 4 / 2));
}

/* -- Refusals ---------------------------------------------------------------------------------- */

static void refuse(const hk_job *j, const hk_model *model, const char *why) {
  hk_error err = {0};
  assert_int_equal(hk_job_check(j, model, &err), HK_INPUT);
  if (strstr(err.message, why) == NULL) fail_msg("'%s' does not say '%s'", err.message, why);
}

static void impossible_jobs_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model dense = tiny_model(LAYERS), model = mixture(1, 4);
  hk_job j = with(4);
  must(hk_job_check(&j, &model, &err), &err);
  j.ep = 2;
  refuse(&j, &model, "divided among 4 ranks");
  j = with(4), j.nodes = 1, j.gpus = 2;
  refuse(&j, &model, "does not divide the 2 ranks of a stage");
  j = with(4), j.tp = 2;
  refuse(&j, &model, "needs sequence parallelism");
  hk_model two = mixture(1, 2);
  j = with(2), j.tp = 4, j.sequence_parallel = true;
  refuse(&j, &two, "not a multiple of tp 4");
  assert_int_equal(hk_model_divide_experts(&model, 4, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "already"));
  assert_int_equal(hk_model_divide_experts(&dense, 2, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "it has none"));
  hk_model_free(&two);
  two = mixture(1, 1);
  assert_int_equal(hk_model_divide_experts(&two, 3, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "does not divide the 8 experts"));
  const hk_frozen_spec lora = {.rank = 4, .bytes = 2};
  must(hk_model_freeze(&two, &lora, &err), &err);
  assert_int_equal(hk_model_divide_experts(&two, 2, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "frozen"));
  j = with(4);
  hk_plan plan = plan_of(&j);
  assert_int_equal(hk_engine_check_plan(&plan, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "experts among 4 ranks"));
  plan.runtime = HK_RUNTIME_DEEPSPEED;
  assert_int_equal(hk_plan_check(&plan, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "use runtime hocket"));
  hk_plan_free(&plan);
  hk_model_free(&two);
  hk_model_free(&dense);
  hk_model_free(&model);
}

static void plans_are_read_back(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_job j = with(4);
  hk_plan plan = plan_of(&j), again;
  cJSON *root = hk_plan_to_json(&plan);
  assert_non_null(root);
  must(hk_plan_from_json(root, &again, &err), &err);
  cJSON *written = hk_plan_to_json(&again);
  assert_true(cJSON_Compare(root, written, true));
  assert_int_equal(again.job.ep, 4);
  cJSON_Delete(written);
  assert_int_equal(again.model.expert_ranks, 4);
  assert_int_equal(hk_model_expert_bytes(&again.model, 0, 1), 2 * 2 * EXPERT);
  hk_plan_free(&again);
  cJSON_DeleteItemFromObject(cJSON_GetObjectItem(root, "job"), "ep");
  assert_int_equal(hk_plan_from_json(root, &again, &err), HK_INPUT);
  cJSON_Delete(root);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rank_has_its_experts),
      cmocka_unit_test(what_a_rank_sends),
      cmocka_unit_test(stages_keep_their_experts),
      cmocka_unit_test(tensor_parallel_ranks_send_their_tokens),
      cmocka_unit_test(how_long_sending_takes),
      cmocka_unit_test(impossible_jobs_are_refused),
      cmocka_unit_test(plans_are_read_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
