/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Machines with quantities at the ends of their ranges, models and jobs of any size, every policy.
 * Accepted cases are simulated with every invariant checked. */
#include <stdio.h>
#include <string.h>

#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/fuzz/fuzz.h"

/* A few tensors of one parameter to 2^50, in two to five blocks. */
static hk_status make_listed(hk_fuzz_stream *in, hk_model *model, hk_error *err) {
  hk_tensor tensors[8];
  const int n = (int)hk_fuzz_int(in, 2, 8), blocks = (int)hk_fuzz_int(in, 2, 5);
  for (int i = 0; i < n; i++) {
    tensors[i] = (hk_tensor){.numel = (int64_t)hk_fuzz_scale(in, 1, 0x1p50),
                             .block = i * blocks / n,
                             .weight_type = (hk_dtype)hk_fuzz_int(in, 0, 2),
                             .grad_type = (hk_dtype)hk_fuzz_int(in, 0, 2)};
    snprintf(tensors[i].name, sizeof tensors[i].name, "t%d", i);
  }
  return hk_model_from_tensors("fuzz", tensors, (size_t)n, blocks, model, err);
}

/* Models with equal layers, with experts, shared experts and dense first layers, or with windows.
 */
static hk_status make_shaped(hk_fuzz_stream *in, hk_model *model, hk_error *err) {
  static const char *const types[] = {"llama", "deepseek_v3", "gemma3_text", "falcon"};
  const int64_t heads = hk_fuzz_int(in, 1, 64), head_dim = 2 * hk_fuzz_int(in, 1, 128);
  const int64_t experts = hk_fuzz_int(in, 1, 300), layers = hk_fuzz_int(in, 1, 12);
  const char *type = types[hk_fuzz_int(in, 0, 3)];
  const bool megatron = (hk_fuzz_byte(in) & 1) && strcmp(type, "llama") == 0;
  const long long ffn = (long long)hk_fuzz_scale(in, 1, 1 << 20);
  const long long vocab = (long long)hk_fuzz_scale(in, 1, 1 << 24);
  char text[1000];
  snprintf(text, sizeof text,
           "{\"model_type\": \"%s\", \"num_hidden_layers\": %lld, \"hidden_size\": %lld, "
           "\"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"head_dim\": %lld, "
           "\"intermediate_size\": %lld, \"vocab_size\": %lld, \"tie_word_embeddings\": %s, "
           "\"n_routed_experts\": %lld, \"num_experts_per_tok\": %lld, "
           "\"moe_intermediate_size\": %lld, \"n_shared_experts\": 1, "
           "\"first_k_dense_replace\": 2, \"q_lora_rank\": 24, \"kv_lora_rank\": 8, "
           "\"qk_nope_head_dim\": %lld, \"qk_rope_head_dim\": 4, \"v_head_dim\": 5, "
           "\"hocket_layout\": \"%s\"}",
           type, (long long)layers, (long long)(heads * head_dim), (long long)heads,
           (long long)heads, (long long)head_dim, ffn, vocab,
           hk_fuzz_byte(in) & 1 ? "true" : "false", (long long)experts,
           (long long)((experts + 7) / 8), ffn, (long long)head_dim,
           megatron ? "megatron" : "huggingface");
  cJSON *config = cJSON_Parse(text);
  const hk_status status = hk_model_from_config(config, "fuzz", model, err);
  cJSON_Delete(config);
  return status;
}

static hk_job make_job(hk_fuzz_stream *in, const hk_machine *machine) {
  hk_job job = {.gpus = (int)hk_fuzz_int(in, 1, 8),
                .nodes = (int)hk_fuzz_scale(in, 1, HK_MOST_NODES),
                .tp = (int)hk_fuzz_int(in, 1, 4),
                .micro_batch = (int)hk_fuzz_scale(in, 1, HK_MOST_MICRO_BATCH),
                .grad_accum = (int)hk_fuzz_int(in, 1, 3),
                .seq = (int)hk_fuzz_scale(in, 1, HK_MOST_SEQ),
                .checkpoint_activations = hk_fuzz_byte(in) & 1};
  if (job.gpus > machine->gpus.value) job.gpus = (int)machine->gpus.value;
  if (job.gpus % job.tp != 0) job.tp = 1;
  return job;
}

static hk_candidate make_candidate(hk_fuzz_stream *in) {
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  const hk_policy *policy = policies[hk_fuzz_int(in, 0, (int64_t)n - 1)];
  hk_candidate candidate = {policy, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  if (policy->deepspeed && hk_fuzz_byte(in) % 2) candidate.runtime = HK_RUNTIME_DEEPSPEED;
  if (policy->takes & HK_TAKES_STRIDE) {
    candidate.options.stride = (int)hk_fuzz_int(in, 0, 9);
    candidate.options.stride_auto = candidate.options.stride == 0;
  }
  if (policy->takes & HK_TAKES_RATIO) candidate.options.ratio = hk_fuzz_scale(in, 0, 1);
  if (policy->takes & HK_TAKES_BUFFERS) candidate.options.buffers = (int)hk_fuzz_int(in, 0, 6);
  return candidate;
}

static hk_status make_plan(hk_fuzz_stream *in, const hk_machine *machine, hk_plan *plan,
                           hk_error *err) {
  hk_model model = {0};
  HK_TRY(hk_fuzz_byte(in) % 2 ? make_listed(in, &model, err) : make_shaped(in, &model, err));
  const hk_candidate candidate = make_candidate(in);
  const hk_job job = make_job(in, machine);
  const int64_t part = model.parameters / hk_fuzz_int(in, 1, 40) + 1;
  hk_flush flush = hk_fuzz_byte(in) % 4 == 0 ? HK_FLUSH_SYNC : HK_FLUSH_ASYNC;
  const hk_plan_settings settings = {.subgroup_numel = part,
                                     .flush = &flush,
                                     .cpu_threads = (int)hk_fuzz_int(in, 0, 300),
                                     .cores_unbound = hk_fuzz_byte(in) & 1,
                                     .overlap = (hk_overlap)hk_fuzz_int(in, 0, 2)};
  hk_status status = hk_candidate_plan(&candidate, &model, machine, &job, &settings, plan, err);
  hk_model_free(&model);
  return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  hk_fuzz_stream in = {data, size};
  hk_error err = {0};
  hk_plan plan = {0};
  const hk_machine machine = hk_fuzz_machine(&in);
  if (!hk_fuzz_read(make_plan(&in, &machine, &plan, &err), &err)) return 0;
  if (hk_fuzz_is_small(&plan))
    hk_fuzz_simulate(&plan, &machine);
  else
    hk_plan_free(&plan);
  return 0;
}
