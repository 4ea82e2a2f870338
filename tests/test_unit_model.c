/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shapes, parameter counts, FLOPs and activations against published totals and closed forms. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* after the above */
#include <cmocka.h>

#include "core/base/json.h"
#include "core/base/names.h"
#include "core/model/model.h"

static hk_model load(const char *name) {
  hk_model model;
  hk_error err = {0};
  if (hk_model_load(name, &model, &err) != HK_OK) fail_msg("%s: %s", name, err.message);
  return model;
}

static hk_model parse(const char *text) {
  hk_model model = {0};
  hk_error err = {0};
  cJSON *config = NULL;
  if (hk_json_parse(text, strlen(text), "test", &config, &err) != HK_OK ||
      hk_model_from_config(config, "test", &model, &err) != HK_OK)
    fail_msg("%s: %s", text, err.message);
  cJSON_Delete(config);
  return model;
}

/* -- Parameters ------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  int64_t parameters;
} PRESETS[] = {
    {"gpt2", 124439808},          {"mistral-7b", 7241732096},   {"llama-2-7b", 6738415616},
    {"llama-2-13b", 13015864320}, {"llama-2-70b", 68976648192}, {"llama-3-8b", 8030261248},
    {"llama-3-70b", 70553706496}, {"qwen2.5-7b", 7615616512},   {"qwen2.5-32b", 32763876352},
    {"qwen2.5-72b", 72706203648}, {"qwen3-8b", 8190735360},     {"dos-7b", 5948837888},
    {"dos-8.3b", 9142717440},     {"dos-10b", 9918500864},      {"dos-13b", 11315860480},
    {"dos-20b", 15326663680},     {"dos-30b", 27865270784},     {"dos-70b", 55141736448},
};
#define N_PRESETS (sizeof PRESETS / sizeof PRESETS[0])

static void preset_totals(void **state) {
  (void)state;
  for (size_t i = 0; i < N_PRESETS; i++) {
    hk_model model = load(PRESETS[i].name);
    assert_string_equal(model.name, PRESETS[i].name);
    assert_int_equal(model.parameters, PRESETS[i].parameters);
    int64_t sum = 0;
    for (size_t t = 0; t < model.n_tensors; t++) sum += model.tensors[t].numel;
    assert_int_equal(sum, model.parameters);
    assert_int_equal(hk_model_rank_parameters(&model, 1, 1), model.parameters);
    hk_model_free(&model);
  }
}

static int64_t numel_of(const hk_model *model, const char *name) {
  for (size_t i = 0; i < model->n_tensors; i++)
    if (strcmp(model->tensors[i].name, name) == 0) return model->tensors[i].numel;
  return -1;
}

static void assert_order(const hk_model *model, const char *const *names, size_t n) {
  assert_int_equal(model->n_tensors, n);
  for (size_t i = 0; i < n; i++) assert_string_equal(model->tensors[i].name, names[i]);
}

#define ASSERT_ORDER(model, ...)                                     \
  do {                                                               \
    const char *const names_[] = {__VA_ARGS__};                      \
    assert_order((model), names_, sizeof names_ / sizeof names_[0]); \
  } while (0)

#define LLAMA_LIKE                                                                                \
  "\"num_hidden_layers\": 1, \"hidden_size\": 8, \"intermediate_size\": 20, \"vocab_size\": 11, " \
  "\"num_attention_heads\": 4, \"num_key_value_heads\": 2"

static void llama_tensors(void **state) {
  (void)state;
  hk_model model = parse("{\"architectures\": [\"LlamaForCausalLM\"], " LLAMA_LIKE "}");
  ASSERT_ORDER(&model, "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
               "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
               "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
               "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
               "model.layers.0.input_layernorm.weight",
               "model.layers.0.post_attention_layernorm.weight", "model.norm.weight",
               "lm_head.weight");
  assert_int_equal(model.head_dim, 2);
  assert_int_equal(model.max_positions, 0);
  assert_false(model.tied);
  assert_int_equal(numel_of(&model, "model.layers.0.self_attn.k_proj.weight"), 8 * 4);
  hk_model_free(&model);
}

static void gpt2_tensors(void **state) {
  (void)state;
  hk_model model = parse(
      "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 1, \"n_embd\": 8, \"n_head\": 2,"
      "\"n_positions\": 5, \"vocab_size\": 11, \"n_inner\": null, \"tie_word_embeddings\": false}");
  ASSERT_ORDER(&model, "transformer.wte.weight", "transformer.wpe.weight",
               "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias",
               "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
               "transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias",
               "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias",
               "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_fc.bias",
               "transformer.h.0.mlp.c_proj.weight", "transformer.h.0.mlp.c_proj.bias",
               "transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight");
  assert_int_equal(model.ffn, 32);
  assert_int_equal(model.parameters, 8 * (11 + 5) + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 32 + 32) +
                                         (32 * 8 + 8) + 3 * 16 + 8 * 11);
  hk_model_free(&model);
}

static void megatron_tensors(void **state) {
  (void)state;
  hk_model model = parse(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"hocket_layout\": "
      "\"megatron\", " LLAMA_LIKE "}");
  ASSERT_ORDER(
      &model, "embedding.word_embeddings.weight", "layers.0.input_layernorm.weight",
      "layers.0.self_attention.dense.weight", "layers.0.self_attention.query_key_value.weight",
      "layers.0.post_attention_layernorm.weight", "layers.0.mlp.dense_h_to_4h.weight",
      "layers.0.mlp.dense_4h_to_h.weight", "final_layernorm.weight", "output_layer.weight");
  assert_int_equal(numel_of(&model, "layers.0.self_attention.query_key_value.weight"), 8 * 16);
  assert_int_equal(numel_of(&model, "layers.0.mlp.dense_h_to_4h.weight"), 2 * 8 * 20);
  hk_model plain = parse("{\"architectures\": [\"LlamaForCausalLM\"], " LLAMA_LIKE "}");
  assert_int_equal(model.parameters, plain.parameters); /* a layout only fuses tensors */
  hk_model_free(&plain);
  hk_model_free(&model);
}

/* Parameters that each architecture and key adds to the plain Llama of the same shape (h 8, q 8,
 * kv 4, f 20, head_dim 2, one layer). */
static void parameters_of_each_key(void **state) {
  (void)state;
  const struct {
    const char *config;
    int64_t more;
  } cases[] = {
      {"{\"architectures\": [\"MistralForCausalLM\"], " LLAMA_LIKE "}", 0},
      {"{\"architectures\": [\"MistralForCausalLM\"], \"attention_bias\": true, " LLAMA_LIKE "}",
       0},
      {"{\"architectures\": [\"Qwen2ForCausalLM\"], " LLAMA_LIKE "}", 8 + 4 + 4},
      {"{\"architectures\": [\"Qwen3ForCausalLM\"], \"head_dim\": 2, " LLAMA_LIKE "}", 2 + 2},
      {"{\"architectures\": [\"Qwen3ForCausalLM\"], \"head_dim\": 2, \"attention_bias\": "
       "true, " LLAMA_LIKE "}",
       2 + 2 + 8 + 4 + 4 + 8},
      {"{\"architectures\": [\"Qwen3ForCausalLM\"], " LLAMA_LIKE "}", /* head_dim 128 */
       2 * 128 + 126 * (8 * 4 + 2 * 8 * 2 + 4 * 8)},
      {"{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": true, " LLAMA_LIKE "}",
       8 + 4 + 4 + 8},
      {"{\"architectures\": [\"LlamaForCausalLM\"], \"mlp_bias\": true, " LLAMA_LIKE "}",
       20 + 20 + 8},
      {"{\"architectures\": [\"LlamaForCausalLM\"], \"head_dim\": 3, " LLAMA_LIKE "}",
       8 * 4 + 2 * 8 * 2 + 4 * 8},
      {"{\"architectures\": [\"LlamaForCausalLM\"], \"tie_word_embeddings\": true, " LLAMA_LIKE "}",
       -8 * 11},
  };
  hk_model plain = parse("{\"architectures\": [\"LlamaForCausalLM\"], " LLAMA_LIKE "}");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    hk_model model = parse(cases[i].config);
    assert_int_equal(model.parameters - plain.parameters, cases[i].more);
    hk_model_free(&model);
  }
  hk_model_free(&plain);
}

static void kv_heads_default_to_heads(void **state) {
  (void)state;
  const char *shape =
      "\"num_hidden_layers\": 1, \"hidden_size\": 8, \"intermediate_size\": 20, "
      "\"vocab_size\": 11, \"num_attention_heads\": 4, \"head_dim\": 2, "
      "\"num_key_value_heads\": null}";
  const char *archs[] = {"Llama", "Mistral", "Qwen2", "Qwen3"};
  for (size_t i = 0; i < 4; i++) {
    char text[512];
    snprintf(text, sizeof text, "{\"architectures\": [\"%sForCausalLM\"], %s", archs[i], shape);
    hk_model model = parse(text);
    assert_int_equal(model.kv_heads, 4);
    assert_non_null(strstr(hk_arch_name(model.arch), archs[i]));
    hk_model_free(&model);
  }
}

static void tied_head_is_its_norm(void **state) {
  (void)state;
  hk_model model = load("gpt2");
  assert_true(model.tied);
  assert_int_equal(hk_model_block_parameters(&model, 12, 1), 2 * 768);
  assert_int_equal(hk_model_block_parameters(&model, HK_BLOCK_EMBED, 1), (50257 + 1024) * 768);
  assert_int_equal(hk_model_block_parameters(&model, 0, 1), 12 * 768 * 768 + 13 * 768);
  hk_model_free(&model);
}

/* -- Tensor parallelism ----------------------------------------------------------------------- */

/* Llama-2-7B: every rank has all norms; all else is divided. */
static void split_of_llama(void **state) {
  (void)state;
  hk_model model = load("llama-2-7b");
  const int64_t norms = (2 * 32 + 1) * 4096;
  for (int tp = 1; tp <= 8; tp *= 2)
    assert_int_equal(hk_model_rank_parameters(&model, tp, 1),
                     (model.parameters - norms) / tp + norms);
  hk_model_free(&model);
}

/* GPT-2 also keeps learned positions and the biases of row-parallel projections whole on every
 * rank. A share of an odd number of values rounds up. */
static void split_of_gpt2(void **state) {
  (void)state;
  hk_model model = load("gpt2");
  const int64_t h = 768;
  const int64_t split = 12 * (12 * h * h + 3 * h + 4 * h) + 50257 * h;
  const int64_t whole = 12 * (2 * h + 4 * h) + 2 * h + 1024 * h;
  assert_int_equal(split + whole, model.parameters);
  for (int tp = 2; tp <= 4; tp *= 2)
    assert_int_equal(hk_model_rank_parameters(&model, tp, 1), split / tp + whole);
  int64_t blocks = 0;
  for (int block = HK_BLOCK_EMBED; block <= 12; block++)
    blocks += hk_model_block_parameters(&model, block, 5);
  assert_int_equal(blocks, hk_model_rank_parameters(&model, 5, 1));
  hk_model_free(&model);
  hk_model small = parse(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 3,"
      "\"intermediate_size\": 3, \"num_attention_heads\": 1, \"vocab_size\": 5}");
  assert_int_equal(hk_model_block_parameters(&small, HK_BLOCK_EMBED, 2), 8); /* 15 / 2, up */
  hk_model_free(&small);
}

static void qwen3_head_norms_are_replicated(void **state) {
  (void)state;
  hk_model model = load("qwen3-8b");
  const int64_t norms = 36 * (2 * 4096 + 2 * 128) + 4096;
  assert_int_equal(hk_model_rank_parameters(&model, 8, 1), (model.parameters - norms) / 8 + norms);
  hk_model_free(&model);
}

/* -- Arithmetic ------------------------------------------------------------------------------- */

static double step_flops(const hk_model *model, int64_t micro_batch, int64_t seq, int tp) {
  double sum = 0;
  for (int block = HK_BLOCK_EMBED; block <= (int)model->layers; block++)
    sum += 3 * hk_model_forward_flops(model, block, micro_batch, seq, tp);
  return sum;
}

/* A step takes exactly 6 N b s + 12 b s^2 (heads x head_dim) layers FLOPs, with N the parameters of
 * matrices: without embedding and norms. */
static void six_n_and_attention(void **state) {
  (void)state;
  hk_model model = load("llama-3-8b");
  const double b = 3, s = 4096, h = 4096, layers = 32, vocab = 128256;
  const double matrices = 8030261248.0 - vocab * h - (2 * layers + 1) * h;
  const double expected = 6 * matrices * b * s + 12 * b * s * s * h * layers;
  assert_true(step_flops(&model, 3, 4096, 1) == expected); /* every sum is exact in a double */
  assert_true(fabs(step_flops(&model, 3, 4096, 8) * 8 - expected) < 1e-9 * expected);
  assert_true(hk_model_forward_flops(&model, HK_BLOCK_EMBED, 3, 4096, 1) == 0);
  assert_true(hk_model_forward_flops(&model, 32, 3, 4096, 1) == 2 * b * s * h * vocab);
  hk_model_free(&model);
}

/* Narayanan et al., arXiv 2104.04473, section 5.1: 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) with
 * recomputation, that is four forwards of a layer and three of the head. */
static void narayanan_formula(void **state) {
  (void)state;
  hk_model model = load("gpt2");
  const double b = 2, s = 1024, h = 768, l = 12, vocab = 50257;
  double flops = 3 * hk_model_forward_flops(&model, 12, 2, 1024, 1);
  for (int block = 0; block < 12; block++)
    flops += 4 * hk_model_forward_flops(&model, block, 2, 1024, 1);
  const double formula = 96 * b * s * l * h * h * (1 + s / (6 * h) + vocab / (16 * l * h));
  assert_true(fabs(flops - formula) < 1e-12 * formula);
  hk_model_free(&model);
}

static void causal_half_halves_attention(void **state) {
  (void)state;
  hk_model model = load("llama-2-7b");
  const double full = hk_model_forward_flops(&model, 0, 1, 2048, 1);
  model.causal_half = true;
  assert_true(full - hk_model_forward_flops(&model, 0, 1, 2048, 1) == 2.0 * 2048 * 2048 * 4096);
  hk_model_free(&model);
}

/* -- Activations ------------------------------------------------------------------------------ */

/* Korthikanti et al., arXiv 2205.05198, eq. 1 without its attention matrix is 34 s b h. hocket has
 * no dropout masks (two of one byte) and one fp32 softmax statistic a head and token. */
static void korthikanti_gpt_block(void **state) {
  (void)state;
  hk_model model = load("gpt2");
  const hk_bytes s = 1024, b = 4, h = 768, a = 12;
  const hk_bytes layer = hk_model_activation_bytes(&model, 5, b, s, 1, false);
  assert_int_equal(layer, 34 * s * b * h - 2 * s * b * h + 4 * a * s * b);
  /* eq. 2: 10 s b h stay whole (here 8, without the masks), 24 s b h are divided */
  assert_int_equal(hk_model_activation_bytes(&model, 5, b, s, 4, false),
                   8 * s * b * h + (24 * s * b * h + 4 * a * s * b) / 4);
  hk_model_free(&model);
}

static void gated_block(void **state) {
  (void)state;
  hk_model model = load("llama-3-8b"); /* q 4096, k and v 1024, 32 heads, ffn 14336 */
  const hk_bytes tokens = 2 * 8192;
  const hk_bytes bytes =
      4 * 2 * 4096 + 2 * (4096 + 1024 + 1024) + 2 * 4096 + 4 * 32 + 4 * 2 * 14336;
  assert_int_equal(hk_model_activation_bytes(&model, 0, 2, 8192, 1, false), tokens * bytes);
  hk_model_free(&model);

  model = load("qwen3-8b"); /* also keeps q and k before their norms */
  const hk_bytes qwen =
      4 * 2 * 4096 + 2 * (2 * 4096 + 3 * 1024) + 2 * 4096 + 4 * 32 + 4 * 2 * 12288;
  assert_int_equal(hk_model_activation_bytes(&model, 0, 2, 8192, 1, false), tokens * qwen);
  hk_model_free(&model);
}

static void checkpoint_keeps_the_input(void **state) {
  (void)state;
  for (size_t i = 0; i < N_PRESETS; i++) {
    hk_model model = load(PRESETS[i].name);
    for (int tp = 1; tp <= 4; tp *= 2) /* every tensor-parallel rank has the whole input */
      assert_int_equal(hk_model_activation_bytes(&model, 3, 2, 1024, tp, true),
                       2 * 1024 * 2 * model.hidden);
    assert_int_equal(hk_model_activation_bytes(&model, HK_BLOCK_EMBED, 2, 1024, 1, true), 0);
    hk_model_free(&model);
  }
}

/* Growth of allocated memory over the forward pass in published runs on one GPU with
 * checkpointing, in GiB as the log rounds it: 13B (ffn 13632) and 7B, micro-batch 4, 2048 tokens.
 */
static void published_forward_growth(void **state) {
  (void)state;
  const struct {
    const char *name;
    double gib;
  } runs[] = {{"dos-13b", 27.88 - 23.06}, {"dos-7b", 16.60 - 12.94}};
  for (size_t i = 0; i < 2; i++) {
    hk_model model = load(runs[i].name);
    hk_bytes sum = 0;
    for (int block = HK_BLOCK_EMBED; block <= (int)model.layers; block++)
      sum += hk_model_activation_bytes(&model, block, 4, 2048, 1, true);
    assert_true(fabs((double)sum / (double)HK_GIB - runs[i].gib) < 0.01);
    hk_model_free(&model);
  }
}

static void backward_workspace(void **state) {
  (void)state;
  hk_model model = load("llama-2-7b");
  const hk_bytes tokens = 4096;
  const hk_bytes gradients = tokens * (2 * 4096 + 6 * 11008);
  assert_int_equal(hk_model_backward_workspace_bytes(&model, 0, 1, 4096, 1, false), gradients);
  assert_int_equal(hk_model_backward_workspace_bytes(&model, 0, 1, 4096, 1, true),
                   gradients + hk_model_activation_bytes(&model, 0, 1, 4096, 1, false) -
                       hk_model_activation_bytes(&model, 0, 1, 4096, 1, true));
  assert_int_equal(hk_model_backward_workspace_bytes(&model, 32, 1, 4096, 2, true),
                   tokens * (2 * 4096 + 32000));
  assert_int_equal(hk_model_backward_workspace_bytes(&model, HK_BLOCK_EMBED, 1, 4096, 2, true),
                   tokens * 2 * 4096);
  hk_model_free(&model);
  /* An MLP narrower than attention: q, k, v and output gradients are the widest. */
  model = parse(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1,"
      "\"hidden_size\": 8, \"intermediate_size\": 2, \"num_attention_heads\": 4,"
      "\"vocab_size\": 11}");
  assert_int_equal(hk_model_backward_workspace_bytes(&model, 0, 1, 10, 1, false),
                   10 * (2 * 8 + 4 * (8 + 8)));
  hk_model_free(&model);
}

static void costs_are_monotonic(void **state) {
  (void)state;
  for (size_t i = 0; i < N_PRESETS; i++) {
    hk_model model = load(PRESETS[i].name);
    const int blocks[] = {0, (int)model.layers};
    for (size_t b = 0; b < 2; b++)
      for (int checkpoint = 0; checkpoint <= 1; checkpoint++) {
        const int block = blocks[b];
        const bool kept = checkpoint != 0;
        const hk_bytes one = hk_model_activation_bytes(&model, block, 1, 512, 2, kept);
        assert_true(hk_model_activation_bytes(&model, block, 2, 512, 2, kept) > one);
        assert_true(hk_model_activation_bytes(&model, block, 1, 513, 2, kept) > one);
        assert_true(hk_model_activation_bytes(&model, block, 1, 512, 4, kept) <= one);
        assert_true(hk_model_activation_bytes(&model, block, 1, 512, 2, true) <= one);
        const hk_bytes work = hk_model_backward_workspace_bytes(&model, block, 1, 512, 2, kept);
        assert_true(hk_model_backward_workspace_bytes(&model, block, 2, 512, 2, kept) > work);
        assert_true(hk_model_backward_workspace_bytes(&model, block, 1, 512, 4, kept) < work);
        assert_true(hk_model_backward_workspace_bytes(&model, block, 1, 512, 2, true) >= work);
        const double flops = hk_model_forward_flops(&model, block, 1, 512, 2);
        assert_true(hk_model_forward_flops(&model, block, 1, 513, 2) > flops);
        assert_true(hk_model_forward_flops(&model, block, 1, 512, 4) < flops);
      }
    hk_model_free(&model);
  }
}

/* Huge sizes saturate at 2^62: signed overflow would be undefined. */
static void absurd_sizes_saturate(void **state) {
  (void)state;
  hk_model model = load("llama-2-7b");
  const int64_t huge = 1LL << 40;
  assert_int_equal(hk_model_activation_bytes(&model, 0, huge, huge, 1, false), 1LL << 62);
  assert_int_equal(hk_model_backward_workspace_bytes(&model, 0, huge, huge, 1, true), 1LL << 62);
  hk_model_free(&model);
}

/* -- Files ------------------------------------------------------------------------------------ */

/* A model is named after its file, or after the folder if the file is config.json. */
static void names_from_paths(void **state) {
  (void)state;
  char folder[] = "hk_model_XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  const char *files[] = {"config.json", "mine.json"};
  const char *names[] = {folder, "mine"};
  for (size_t i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, files[i]);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("{\"architectures\": [\"LlamaForCausalLM\"], " LLAMA_LIKE "}", file) >= 0);
    assert_int_equal(fclose(file), 0);
    hk_model model = load(path);
    assert_string_equal(model.name, names[i]);
    hk_model_free(&model);
    assert_int_equal(remove(path), 0);
  }
  assert_int_equal(rmdir(folder), 0);
}

/* A model keeps a copy of its configuration, from which the same model can be built. */
static void config_is_kept(void **state) {
  (void)state;
  hk_model model = load("dos-20b"), again;
  assert_int_equal(hk_model_from_config(model.config, model.name, &again, NULL), HK_OK);
  hk_model_free(&model);
  assert_int_equal(again.parameters, 15326663680);
  assert_int_equal(again.layout, HK_LAYOUT_MEGATRON);
  hk_model_free(&again);
  hk_model_free(&again); /* safe twice: it is zeroed */
  hk_model_free(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(preset_totals),
      cmocka_unit_test(llama_tensors),
      cmocka_unit_test(gpt2_tensors),
      cmocka_unit_test(megatron_tensors),
      cmocka_unit_test(parameters_of_each_key),
      cmocka_unit_test(kv_heads_default_to_heads),
      cmocka_unit_test(tied_head_is_its_norm),
      cmocka_unit_test(split_of_llama),
      cmocka_unit_test(split_of_gpt2),
      cmocka_unit_test(qwen3_head_norms_are_replicated),
      cmocka_unit_test(six_n_and_attention),
      cmocka_unit_test(narayanan_formula),
      cmocka_unit_test(causal_half_halves_attention),
      cmocka_unit_test(korthikanti_gpt_block),
      cmocka_unit_test(gated_block),
      cmocka_unit_test(checkpoint_keeps_the_input),
      cmocka_unit_test(published_forward_growth),
      cmocka_unit_test(backward_workspace),
      cmocka_unit_test(costs_are_monotonic),
      cmocka_unit_test(absurd_sizes_saturate),
      cmocka_unit_test(names_from_paths),
      cmocka_unit_test(config_is_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
