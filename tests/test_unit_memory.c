/* SPDX-License-Identifier: GPL-3.0-or-later */
/* GPU memory under DeepSpeed against values by hand for small models; the curve of memory over
 * time; advice on what does not fit. */
#include <stdio.h>
#include <stdlib.h>

#include "sim/rank.h"
#include "tests/fixture_graph.h"

/* Independent of the model's size: a reduction bucket of 500 M bf16, two cuBLAS workspaces of 8.125
 * MiB, an attention matrix of 4 heads and 64 x 64 tokens. */
#define BUCKET 1000000000LL
#define FIXED  (BUCKET + 2 * 8320 * 1024LL + 2 * 4 * 64 * 64)

#define WEIGHTS (2 * ALL) /* bf16 */

/* 64 tokens: each layer's input, the inputs of final norm and head, and fp32 logits. */
#define ACTIVATIONS (64 * (LAYERS * 2 * 64 + 4 * 64 + 4 * 256))

static hk_memory_report simulated(const hk_plan *plan, hk_graph *graph) {
  hk_error err = {0};
  hk_result result;
  const hk_machine machine = ideal_machine();
  const hk_sim_options options = {.check = true};
  *graph = built(plan, HK_EXPAND_ALL, true);
  must(hk_simulate(graph, &machine, &options, &result, &err), &err);
  const hk_memory_report memory = result.memory;
  hk_result_free(&result);
  return memory;
}

static hk_memory_report marks(const hk_policy *policy, hk_policy_options options, int gpus,
                              hk_plan *plan) {
  hk_job job = ALONE;
  job.gpus = gpus;
  job.checkpoint_activations = true;
  *plan = planned(policy, options, HK_RUNTIME_DEEPSPEED, &job, HK_FLUSH_ASYNC);
  hk_graph graph;
  const hk_memory_report memory = simulated(plan, &graph);
  hk_graph_free(&graph);
  assert_int_equal(memory.after_update, memory.before_forward);
  return memory;
}

static void zero_offload(void **state) {
  (void)state;
  hk_plan plan;
  const hk_memory_report one = marks(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, 1, &plan);
  hk_plan_free(&plan);
  assert_int_equal(one.before_forward, WEIGHTS + FIXED);
  assert_int_equal(one.after_forward, one.before_forward + ACTIVATIONS);
  assert_int_equal(one.after_backward, one.before_forward);
  /* The loss holds the logits in bf16 (2 bytes) and once more in fp32 (4 bytes). */
  assert_int_equal(one.peak_of[HK_PHASE_FORWARD], one.after_forward + 64 * 6 * 256);
  assert_int_equal(one.peak_of[HK_PHASE_UPDATE], one.before_forward);

  /* Two ranks: at the end of forward all but the embedding is gathered (far below DeepSpeed's limit
   * of live parameters), at the end of backward both vocabulary matrices are. */
  const hk_memory_report two = marks(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, 2, &plan);
  hk_plan_free(&plan);
  assert_int_equal(two.before_forward, WEIGHTS / 2 + FIXED);
  assert_int_equal(two.after_forward, two.before_forward + ACTIVATIONS + WEIGHTS - 2 * EMBEDDING);
  assert_int_equal(two.after_backward, two.before_forward + 2 * EMBEDDING + 2 * HEAD);
  assert_int_equal(two.peak_of[HK_PHASE_UPDATE], two.after_backward);
}

/* Three micro-steps on two ranks: the second forward begins with both vocabulary matrices gathered,
 * and they are not gathered again; the marks and the peak are those of a single micro-step. */
static void vocabulary_stays_gathered(void **state) {
  (void)state;
  hk_memory_report m[2];
  for (int i = 0; i < 2; i++) {
    hk_job job = ALONE;
    job.gpus = 2;
    job.checkpoint_activations = true;
    job.grad_accum = i == 0 ? 1 : 3;
    hk_plan plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_DEEPSPEED,
                           &job, HK_FLUSH_ASYNC);
    hk_graph graph;
    m[i] = simulated(&plan, &graph);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
  assert_int_equal(m[1].before_forward, m[0].before_forward);
  assert_int_equal(m[1].after_forward, m[0].after_forward);
  assert_int_equal(m[1].after_backward, m[0].after_backward);
  assert_int_equal(m[1].peak, m[0].peak);
}

/* Resident state: master weight, momentum, variance and gradient, all fp32, are always on the GPU.
 */
static void resident_state(void **state) {
  (void)state;
  hk_plan plan;
  const hk_memory_report m =
      marks(&hk_policy_twinflow, (hk_policy_options){.ratio = 0.5}, 1, &plan);
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(&plan, n);
  assert_true(n[HK_ROUTE_RESIDENT] > 0 && n[HK_ROUTE_CPU] > 0);
  assert_int_equal(m.before_forward, WEIGHTS + FIXED + 16 * n[HK_ROUTE_RESIDENT]);
  assert_int_equal(m.after_backward, m.before_forward);
  assert_int_equal(m.peak_of[HK_PHASE_UPDATE], m.before_forward);
  hk_plan_free(&plan);
}

/* Every second subgroup staged: its gradient stays after backward, the last one's state stays after
 * the update, and each fetch takes new buffers unless the sizes agree. */
static void interleaved(void **state) {
  (void)state;
  hk_plan plan;
  hk_policy_options options = HK_POLICY_OPTIONS_NONE;
  options.stride = 2;
  const hk_memory_report m = marks(&hk_policy_interleave, options, 1, &plan);
  int64_t n[HK_ROUTE_COUNT], held = 0;
  hk_plan_route_totals(&plan, n);
  for (size_t i = 0; i < plan.n_subgroups; i++) {
    if (plan.subgroups[i].route == HK_ROUTE_STAGED) held = plan.subgroups[i].numel;
  }
  const bool last = plan.subgroups[plan.n_subgroups - 1].route == HK_ROUTE_STAGED;
  assert_int_equal(m.before_forward, WEIGHTS + FIXED + (last ? 16 : 12) * held);
  assert_int_equal(m.after_backward, m.before_forward + 2 * n[HK_ROUTE_STAGED]);

  hk_bytes used = m.after_backward, peak = used;
  for (size_t i = 0; i < plan.n_subgroups; i++) {
    const int64_t s = plan.subgroups[i].numel;
    if (plan.subgroups[i].route != HK_ROUTE_STAGED) continue;
    if (s != held) {
      used += 12 * s;
      if (used > peak) peak = used;
      used -= 4 * held;
    }
    if (used + 10 * s > peak) peak = used + 10 * s;
    used -= 2 * s + (s != held ? 8 * held : 0);
    held = s;
  }
  assert_int_equal(used, m.after_update);
  assert_int_equal(m.peak_of[HK_PHASE_UPDATE], peak);
  hk_plan_free(&plan);
}

/* One layer of 16384 x 16384 matrices, each 2^28 parameters, one token. When backward reaches the
 * up matrix, the bucket of 500 M holds head and down (2^24 + 2^28) and has no room for 2^28 more.
 */
static void bucket_flush(void **state) {
  (void)state;
  static const char TEXT[] =
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, "
      "\"hidden_size\": 16384, \"intermediate_size\": 16384, \"num_attention_heads\": 16, "
      "\"num_key_value_heads\": 16, \"vocab_size\": 1024, \"max_position_embeddings\": 4096}";
  hk_error err = {0};
  cJSON *config = NULL;
  hk_model model = {0};
  must(hk_json_parse(TEXT, strlen(TEXT), "wide", &config, &err), &err);
  must(hk_model_from_config(config, "wide", &model, &err), &err);
  cJSON_Delete(config);
  hk_job job = ALONE;
  job.seq = 1;
  job.checkpoint_activations = true;
  hk_plan plan;
  must(hk_plan_create(&model, &job, HK_RUNTIME_DEEPSPEED, HK_SUBGROUP_SOFT, 100000000, &plan, &err),
       &err);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);

  const int64_t h = 16384, matrix = 1LL << 28, in_bucket = (1LL << 24) + matrix;
  /* The layer without its MLP, in bytes: norm, q, k, v, rotated q and k, output, second norm and
   * its input, one number for each head of scores and of softmax statistics; twice the layer's
   * width for gradients. */
  const hk_bytes left = 2 * h * (1 + 3 + 2 + 1 + 2) + 16 * (2 + 4) + 2 * 2 * h;
  /* Flat copy, then the largest gradient's copy and its norm in double, 250 M at a time. */
  const hk_bytes flush = 2 * in_bucket + 2 * matrix + 8 * 250000000LL;
  int seen = 0;
  for (size_t i = 0; i < graph.n_ops; i++) {
    const hk_op *op = &graph.ops[i];
    if (op->kind != HK_OP_BACKWARD || op->block != 0) continue;
    assert_int_equal(op->gpu_alloc, left + 2 * matrix + flush);
    seen++;
  }
  assert_int_equal(seen, 1);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* Megatron's layout: q, k and v are one matrix, gate and up another. */
static hk_graph megatron_graph(const char *shape, int gpus) {
  char text[400];
  snprintf(text, sizeof text,
           "{\"architectures\": [\"LlamaForCausalLM\"], \"hocket_layout\": \"megatron\", "
           "\"hidden_size\": 8192, \"num_attention_heads\": 64, "
           "\"max_position_embeddings\": 4096, %s}",
           shape);
  hk_error err = {0};
  cJSON *config = NULL;
  hk_model model = {0};
  hk_plan plan;
  must(hk_json_parse(text, strlen(text), "wide", &config, &err), &err);
  must(hk_model_from_config(config, "wide", &model, &err), &err);
  cJSON_Delete(config);
  hk_job job = ALONE;
  job.gpus = gpus;
  job.seq = 1;
  job.checkpoint_activations = true;
  must(hk_plan_create(&model, &job, HK_RUNTIME_DEEPSPEED, HK_SUBGROUP_SOFT, 100000000, &plan, &err),
       &err);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  hk_plan_free(&plan);
  return graph;
}

static const hk_op *backward_of(const hk_graph *graph, int block) {
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == HK_OP_BACKWARD && graph->ops[i].block == block) return &graph->ops[i];
  fail_msg("no backward of block %d", block);
  return NULL;
}

/* GPU memory after backward of a layer, less that before it. */
static hk_bytes grown(const hk_graph *graph, int layer) {
  const hk_op *op = backward_of(graph, layer);
  return op->gpu_alloc - op->gpu_free;
}

/* One layer and one GPU, with u = 2^26 parameters: the head has 2 u, gate and up together 4 u, down
 * 2 u, so gate and up do not fit into the bucket behind head and down. When their gradient is ready
 * the second norm's output, which only they need, is already freed. */
static void input_of_the_mlp_is_freed(void **state) {
  (void)state;
  hk_graph graph = megatron_graph(
      "\"num_hidden_layers\": 1, \"intermediate_size\": 16384, \"num_key_value_heads\": 8, "
      "\"vocab_size\": 16384",
      1);
  const int64_t h = 8192, k = h / 8, u = 1LL << 26;
  /* norm, q, k, v, rotated q and k, k and v for every head of q, output, the second norm's input */
  const hk_bytes saved = 2 * (h + (h + 2 * k) + (h + k) + 2 * h + h + h) + 64 * (2 + 4);
  const hk_bytes gradients = 2 * h + 2 * h; /* of the layer's output and of the MLP's input */
  const hk_bytes flush = 2 * (2 + 2) * u + 2 * 2 * u + 8 * 2 * u;
  assert_int_equal(backward_of(&graph, 0)->gpu_alloc, saved + gradients + 2 * 4 * u + flush);
  hk_graph_free(&graph);
}

/* Four layers on two GPUs. With u as above, the matrices of a layer are attention's output (1 u),
 * q, k and v (3 u), gate and up (2 u) and the MLP's last (1 u), a vocabulary matrix is u / 8, and
 * the limit for layers 10^9 parameters + u / 8 = 15.03 u. Forward leaves 18 u: layers 3 and 2, and
 * the first two matrices of layer 1. Backward of layer 3 frees 7 u and fetches 2 u when 15 u are
 * left. Layer 2 begins with 13 u, and fetches 1 u before the gradient of its first matrix. Layer 1
 * begins with 13 u and ends with layer 0 and the embedding. */
static void window_of_gathered_weights(void **state) {
  (void)state;
  hk_graph graph = megatron_graph(
      "\"num_hidden_layers\": 4, \"intermediate_size\": 8192, \"num_key_value_heads\": 64, "
      "\"vocab_size\": 1024",
      2);
  const int64_t h = 8192, u = 1LL << 26;
  const hk_bytes input = 2 * h, norm = 2 * h; /* layer 3 frees two norms and fetches one */
  assert_int_equal(grown(&graph, 3), (13 - 18) * 2 * u - norm - input);
  assert_int_equal(grown(&graph, 2), -input);
  assert_int_equal(grown(&graph, 1), (7 - 13) * 2 * u + u / 4 - 2 * norm - input);
  /* All that the layer saved: norm, q, k, v, rotated q and k, output, the second norm's input and
   * output, four of the MLP's width; and its output's gradient. */
  const hk_bytes left = 2 * h * (1 + 3 + 2 + 1 + 2 + 4) + 64 * (2 + 4) + input;
  /* The bucket is full with head and layer 3; a rank's largest part is half of q, k and v. */
  const hk_bytes flush = 2 * (u / 8 + 7 * u) + (2 + 8) * (3 * u / 2);
  assert_int_equal(backward_of(&graph, 2)->gpu_alloc, left + 2 * u + 2 * u + flush);
  hk_graph_free(&graph);
}

/* Under DeepSpeed the device's figure exceeds the allocator's. Under hocket it is not reported. */
static void device_shows_more(void **state) {
  (void)state;
  hk_plan plan;
  const hk_memory_report m = marks(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, 1, &plan);
  hk_plan_free(&plan);
  assert_int_equal(m.device_after[HK_PHASE_UPDATE] - m.after_update,
                   m.device_after[HK_PHASE_BACKWARD] - m.after_backward);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    assert_true(m.device_after[p] > m.before_forward + BUCKET);
    assert_true(m.device_peak_of[p] >= m.device_after[p]);
    assert_true(m.device_peak_of[p] > m.peak_of[p] + BUCKET);
  }
  hk_graph graph;
  plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &ALONE,
                 HK_FLUSH_ASYNC);
  const hk_memory_report hocket = simulated(&plan, &graph);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    assert_int_equal(hocket.device_after[p], 0);
    assert_true(hocket.peak_of[p] <= hocket.peak);
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* A sawtooth with one tooth above and one below all others. */
static void curve_keeps_extremes(void **state) {
  (void)state;
  hk_error err = {0};
  enum { N = 1000, MOST = 20 };
  hk_timeline timeline = {0};
  const int index = hk_timeline_counter(&timeline, "gpu memory", "bytes", 0, &err);
  assert_int_equal(index, 0);
  for (int i = 0; i < N; i++) {
    const double value = i == 437 ? 5000 : i == 438 ? -1 : 100 + i % 7;
    must(hk_counter_add(&timeline.counters[0], 10 * i, value, &err), &err);
  }
  const hk_counter *counter = hk_timeline_find(&timeline, "gpu memory");
  assert_ptr_equal(counter, &timeline.counters[0]);
  assert_null(hk_timeline_find(&timeline, "host memory"));

  hk_sample curve[N];
  assert_int_equal(hk_counter_curve(counter, curve, N), N);
  assert_memory_equal(curve, counter->samples, sizeof curve);
  const size_t n = hk_counter_curve(counter, curve, MOST);
  assert_in_range(n, MOST / 2, MOST);
  assert_int_equal(curve[0].time, 0);
  assert_int_equal(curve[n - 1].time, 10 * (N - 1));
  bool high = false, low = false;
  for (size_t i = 0; i < n; i++) {
    if (i > 0) assert_true(curve[i].time > curve[i - 1].time);
    high = high || (curve[i].time == 4370 && curve[i].value > 4999);
    low = low || (curve[i].time == 4380 && curve[i].value < 0);
  }
  assert_true(high && low);
  hk_timeline_free(&timeline);
}

/* -- Advice on nodes --------------------------------------------------------------------------- */

/* Whether 70B with zero-offload fits on `nodes` nodes. *advised: number of nodes in the advice. */
static bool fits_on(const hk_model *model, const hk_machine *machine, int nodes, int *advised) {
  hk_error err = {0};
  hk_plan plan;
  hk_forecast f;
  const hk_job job = {.gpus = 4,
                      .nodes = nodes,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 2048,
                      .checkpoint_activations = true};
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {0};
  must(hk_candidate_plan(&candidate, model, machine, &job, &settings, &plan, &err), &err);
  must(hk_forecast_make(&plan, machine, NULL, &f, &err), &err);
  const char *advice = strstr(f.advice, "--nodes ");
  *advised = advice != NULL ? atoi(advice + strlen("--nodes ")) : 0;
  const bool fits = f.feasible;
  hk_forecast_free(&f);
  return fits;
}

/* Host memory does not suffice on one and two nodes; advice names three, and three suffice. */
static void advised_nodes_are_the_fewest_that_suffice(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = {0};
  hk_machine machine;
  int advised = 0;
  must(hk_model_load("llama-2-70b", &model, &err), &err);
  must(hk_machine_load("polaris-a100-4x40gb", &machine, &err), &err);
  for (int nodes = 1; nodes <= 2; nodes++) {
    assert_false(fits_on(&model, &machine, nodes, &advised));
    assert_int_equal(advised, 3);
  }
  assert_true(fits_on(&model, &machine, 3, &advised));
  assert_int_equal(advised, 0);
  hk_machine_free(&machine);
  hk_model_free(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(zero_offload),
      cmocka_unit_test(vocabulary_stays_gathered),
      cmocka_unit_test(resident_state),
      cmocka_unit_test(interleaved),
      cmocka_unit_test(bucket_flush),
      cmocka_unit_test(input_of_the_mlp_is_freed),
      cmocka_unit_test(window_of_gathered_weights),
      cmocka_unit_test(device_shows_more),
      cmocka_unit_test(curve_keeps_extremes),
      cmocka_unit_test(advised_nodes_are_the_fewest_that_suffice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
