/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Models of which only a part is trained: counts, FLOPs, memory and copies by hand; plan files;
 * refused settings. */
#include <math.h>
#include <stdlib.h>

#include "sim/rank.h"
#include "tests/fixture_graph.h"

/* Matrices of a layer. */
#define MATRICES (LAYER - 2 * 64)

/* Adapters of rank 4 beside the matrices of a layer. */
#define ADAPTERS (4 * 4 * (64 + 64) + 3 * 4 * (64 + 128))

static const hk_frozen_spec LORA = {.rank = 4, .bytes = 2};

static hk_model frozen(hk_frozen_spec spec) {
  hk_error err = {0};
  hk_model model = tiny_model(LAYERS);
  must(hk_model_freeze(&model, &spec, &err), &err);
  return model;
}

static hk_plan plan_of(hk_frozen_spec spec, hk_job job, hk_overlap overlap) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = frozen(spec);
  const hk_machine machine = ideal_machine();
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {
      .subgroup_numel = 5000, .piece_numel = 2000, .overlap = overlap};
  must(hk_candidate_plan(&candidate, &model, &machine, &job, &settings, &plan, &err), &err);
  hk_model_free(&model);
  return plan;
}

static int64_t work_of(const hk_graph *graph, hk_op_kind kind, int block) {
  int64_t work = 0;
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == kind && graph->ops[i].block == block) work += graph->ops[i].work;
  return work;
}

/* peft's print_trainable_parameters() with LoraConfig(r=16) on Llama-2-7B prints 39,976,960 for
 * target_modules "all-linear" and 8,388,608 for q_proj and v_proj. */
static void published_counts(void **state) {
  (void)state;
  static const struct {
    const char *targets;
    int64_t trained;
  } cases[] = {{NULL, 39976960},
               {"q_proj,v_proj", 8388608},
               {"v_proj,q_proj", 8388608},
               {"down_proj", 32LL * 16 * (11008 + 4096)}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    hk_error err = {0};
    hk_model model;
    const hk_frozen_spec spec = {.rank = 16, .targets = cases[i].targets, .bytes = 2};
    must(hk_model_load("llama-2-7b", &model, &err), &err);
    must(hk_model_freeze(&model, &spec, &err), &err);
    assert_int_equal(model.parameters, cases[i].trained);
    assert_int_equal(model.frozen_parameters, 6738415616);
    assert_int_equal(hk_model_rank_parameters(&model, 1, 1), cases[i].trained);
    hk_model_free(&model);
  }
}

static void tensors(void **state) {
  (void)state;
  hk_model model = frozen(LORA);
  assert_int_equal(model.parameters, LAYERS * ADAPTERS);
  assert_int_equal(model.frozen_parameters, ALL);
  assert_int_equal(model.n_tensors, LAYERS * 7 * 2);
  assert_string_equal(model.tensors[0].name, "model.layers.0.self_attn.q_proj.lora_A.weight");
  assert_string_equal(model.tensors[1].name, "model.layers.0.self_attn.q_proj.lora_B.weight");
  assert_int_equal(hk_model_block_parameters(&model, HK_BLOCK_EMBED, 1), 0);
  assert_int_equal(hk_model_block_parameters(&model, 1, 1), ADAPTERS);
  assert_int_equal(hk_model_block_parameters(&model, LAYERS, 1), 0);
  /* Two tensor-parallel ranks. q, k, v, gate, up: A is whole, B is split. o, down: A is split, B is
   * whole. */
  const int64_t columns = 3 * (4 * 64 + 4 * 64 / 2) + 2 * (4 * 64 + 4 * 128 / 2);
  const int64_t rows = 4 * 64 / 2 + 4 * 64 + 4 * 128 / 2 + 4 * 64;
  assert_int_equal(hk_model_block_parameters(&model, 1, 2), columns + rows);
  hk_model_free(&model);

  model = frozen((hk_frozen_spec){.share = 0.25, .bytes = 2});
  assert_int_equal(model.parameters, ALL / 4); /* every tensor is divisible */
  assert_int_equal(model.frozen_parameters, ALL - ALL / 4);
  assert_int_equal(hk_model_block_parameters(&model, LAYERS, 1), HEAD / 4);
  hk_model_free(&model);
}

/* 64 tokens. Backward computes the gradients of activations (as many FLOPs as forward's matrices),
 * those of trained weights, and two products for each of attention's two. */
static void arithmetic(void **state) {
  (void)state;
  const int64_t attention = 4 * 64 * 64 * 64, head = 2 * 64 * 64 * 256;
  const struct {
    hk_frozen_spec spec;
    int64_t adapters, weights; /* parameters a layer; `weights`: trained ones of matrices */
    int64_t head_weights;
  } cases[] = {{LORA, ADAPTERS, ADAPTERS, 0},
               {{.rank = 4, .targets = "k_proj", .bytes = 2}, 4 * 128, 4 * 128, 0},
               {{.share = 0.25, .bytes = 2}, 0, MATRICES / 4, 64 * 256 / 4}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
      hk_job job = ALONE;
      job.checkpoint_activations = checkpoint;
      hk_plan plan = plan_of(cases[i].spec, job, HK_OVERLAP_NONE);
      hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
      const int64_t forward = 2 * 64 * (MATRICES + cases[i].adapters) + attention;
      const int64_t backward =
          2 * 64 * (MATRICES + cases[i].adapters + cases[i].weights) + 2 * attention;
      assert_int_equal(work_of(&graph, HK_OP_FORWARD, 1), forward);
      assert_int_equal(work_of(&graph, HK_OP_BACKWARD, 1), backward + checkpoint * forward);
      assert_int_equal(work_of(&graph, HK_OP_BACKWARD, LAYERS),
                       head + 2 * 64 * cases[i].head_weights);
      hk_graph_free(&graph);
      hk_plan_free(&plan);
    }
  }
}

/* State, gradients and copies are those of the adapters. Frozen weights are on the GPU. */
static void memory(void **state) {
  (void)state;
  const double sizes[] = {2, 1, 0.5};
  const int64_t n = LAYERS * ADAPTERS;
  for (int i = 0; i < 3; i++) {
    hk_error err = {0};
    hk_forecast f;
    const hk_machine machine = ideal_machine();
    const hk_sim_options options = {.check = true};
    hk_plan plan = plan_of((hk_frozen_spec){.rank = 4, .bytes = sizes[i]}, ALONE, HK_OVERLAP_NONE);
    must(hk_forecast_make(&plan, &machine, &options, &f, &err), &err);
    assert_int_equal(f.graph.gpu_base, 2 * n + (int64_t)(sizes[i] * ALL));
    assert_int_equal(f.graph.host_base, (12 + 2 + 2) * n);
    int64_t flushed = 0, up = 0;
    for (size_t o = 0; o < f.graph.n_ops; o++) {
      if (f.graph.ops[o].kind == HK_OP_GRAD_D2H) flushed += f.graph.ops[o].work;
      if (f.graph.ops[o].kind == HK_OP_WEIGHT_H2D) up += f.graph.ops[o].work;
    }
    assert_int_equal(flushed, 2 * n);
    assert_int_equal(up, 2 * n);
    assert_int_equal(f.result.memory.after_update, f.graph.gpu_base);
    /* A layer keeps 16 x 64 + 8 x 128 + 4 x 4 bytes a token, and 4 values beside each matrix. */
    const int64_t kept = LAYERS * (16 * 64 + 8 * 128 + 4 * 4 + 7 * 4 * 2) + 4 * 64 + 4 * 256;
    assert_int_equal(f.result.memory.after_forward, f.graph.gpu_base + 64 * kept);
    hk_forecast_free(&f);
  }
}

/* Two data-parallel ranks hold half of the frozen weights each, and gather them. */
static void divided(void **state) {
  (void)state;
  hk_job job = ALONE;
  job.gpus = 2;
  hk_plan plan = plan_of(LORA, job, HK_OVERLAP_NONE);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  assert_int_equal(graph.gpu_base, LAYERS * ADAPTERS + ALL);
  assert_int_equal(work_of(&graph, HK_OP_ALL_GATHER, HK_BLOCK_EMBED), 2 * EMBEDDING);
  assert_int_equal(work_of(&graph, HK_OP_ALL_GATHER, 0), 2 * (LAYER + ADAPTERS)); /* and backward */
  assert_int_equal(work_of(&graph, HK_OP_REDUCE_SCATTER, 0), ADAPTERS);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* The simulator's invariants hold for frozen models with an overlap and two micro-steps. */
static void overlapped(void **state) {
  (void)state;
  for (int overlap = HK_OVERLAP_FORWARD; overlap <= HK_OVERLAP_BOTH; overlap++) {
    hk_error err = {0};
    hk_forecast f;
    const hk_machine machine = schoolbook_machine();
    const hk_sim_options options = {.check = true};
    hk_job job = ALONE;
    job.grad_accum = 2;
    hk_plan plan = plan_of(LORA, job, (hk_overlap)overlap);
    must(hk_forecast_make(&plan, &machine, &options, &f, &err), &err);
    hk_forecast_free(&f);
  }
}

/* A plan file keeps the settings in the model's config: the graph of the read plan is the same. */
static void in_plan_files(void **state) {
  (void)state;
  const hk_frozen_spec specs[] = {{.rank = 4, .targets = "q_proj,down_proj", .bytes = 0.5},
                                  {.share = 0.1, .bytes = 2}};
  for (int i = 0; i < 2; i++) {
    hk_error err = {0};
    hk_plan read, plan = plan_of(specs[i], ALONE, HK_OVERLAP_NONE);
    cJSON *root = hk_plan_to_json(&plan);
    must(hk_plan_from_json(root, &read, &err), &err);
    assert_int_equal(read.model.parameters, plan.model.parameters);
    assert_int_equal(read.model.frozen_parameters, plan.model.frozen_parameters);
    assert_true(read.model.frozen_bytes == specs[i].bytes);
    assert_int_equal(read.model.n_notes, plan.model.n_notes); /* the key is known */
    hk_graph a = built(&plan, HK_EXPAND_ALL, true), b = built(&read, HK_EXPAND_ALL, true);
    assert_int_equal(a.n_ops, b.n_ops);
    for (size_t o = 0; o < a.n_ops; o++) {
      assert_int_equal(a.ops[o].kind, b.ops[o].kind);
      assert_int_equal(a.ops[o].work, b.ops[o].work);
      assert_int_equal(a.ops[o].gpu_alloc, b.ops[o].gpu_alloc);
    }
    assert_int_equal(a.gpu_base, b.gpu_base);
    hk_graph_free(&a);
    hk_graph_free(&b);
    hk_plan_free(&plan);
    hk_plan_free(&read);
    cJSON_Delete(root);
  }
}

/* In a document each block states its frozen bytes. */
static void in_documents(void **state) {
  (void)state;
  static const char TEXT[] =
      "{\"schema\": \"hocket.model/1\", \"name\": \"adapted\", \"micro_batch\": 1, \"seq\": 64, "
      "\"blocks\": [{\"name\": \"a\", \"forward_flops\": 1e6, \"activation_bytes\": 100, "
      "\"workspace_bytes\": 10, \"frozen_bytes\": 7000}, {\"name\": \"b\", \"forward_flops\": 1e6, "
      "\"activation_bytes\": 100, \"workspace_bytes\": 10, \"frozen_bytes\": 500}], \"tensors\": "
      "[{\"name\": \"w\", \"numel\": 1000, \"block\": 1}]}";
  hk_error err = {0};
  hk_plan plan;
  hk_model model = model_of(TEXT, "adapted");
  assert_int_equal(hk_model_all_frozen_bytes(&model, 1, 1), 7500);
  must(hk_plan_create(&model, &ALONE, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 1000, &plan, &err),
       &err);
  hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
  assert_int_equal(graph.gpu_base, 2 * 1000 + 7500);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

static void refuse(hk_model model, hk_frozen_spec spec, const char *message) {
  hk_error err = {0};
  assert_int_equal(hk_model_freeze(&model, &spec, &err), HK_INPUT);
  if (strstr(err.message, message) == NULL) fail_msg("%s", err.message);
  hk_model_free(&model);
}

static void refused(void **state) {
  (void)state;
  refuse(tiny_model(1), (hk_frozen_spec){.rank = 4, .targets = "q_proj,w_proj", .bytes = 2},
         "no matrix in the layers of tiny is called 'w_proj'");
  refuse(tiny_model(1), (hk_frozen_spec){.rank = 4, .targets = "input_layernorm", .bytes = 2},
         "no matrix in the layers of tiny is called 'input_layernorm'");
  refuse(tiny_model(1), (hk_frozen_spec){.rank = 4, .share = 0.5, .bytes = 2},
         "either a share or a rank");
  refuse(tiny_model(1), (hk_frozen_spec){.bytes = 2}, "either a share or a rank");
  refuse(tiny_model(1), (hk_frozen_spec){.rank = 4, .bytes = 8}, "frozen_bytes: expected");
  /* 65536 x (3 x 2^22 + 4 x 2^20) x 10,000 layers are more than 2^53. */
  refuse(model_of("{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 10000, "
                  "\"hidden_size\": 64, \"intermediate_size\": 4194304, \"head_dim\": 16384, "
                  "\"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"vocab_size\": 256}",
                  "wide"),
         (hk_frozen_spec){.rank = 65536, .bytes = 2}, "2^53 or more parameters");
  refuse(frozen(LORA), LORA, "has 'hocket_trainable' already");

  hk_error err = {0};
  hk_plan plan;
  hk_model model = frozen(LORA);
  assert_int_equal(
      hk_plan_create(&model, &ALONE, HK_RUNTIME_DEEPSPEED, HK_SUBGROUP_SOFT, 5000, &plan, &err),
      HK_INPUT);
  assert_non_null(strstr(err.message, "tiny has frozen parameters"));
  hk_model_free(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_counts), cmocka_unit_test(tensors),
      cmocka_unit_test(arithmetic),       cmocka_unit_test(memory),
      cmocka_unit_test(divided),          cmocka_unit_test(overlapped),
      cmocka_unit_test(in_plan_files),    cmocka_unit_test(in_documents),
      cmocka_unit_test(refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
