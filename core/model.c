/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter tensors of a model, in the order in which its framework registers them. That order
 * decides what a ZeRO-3 subgroup contains. */
#include "core/model.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS      16
#define MAX_PARAMETERS (1LL << 53)

/* The tensors of one block, named from the block on: "mlp.up_proj.weight". */
typedef struct {
  char name[40];
  int64_t numel;
  hk_tp_rule tp;
} part;

typedef struct {
  part items[MAX_PARTS];
  size_t n;
} part_list;

/* Column-parallel projections split their output, bias included; row-parallel ones split their
 * input, so that every rank needs the whole bias (arXiv 1909.08053, section 3). */
typedef enum { COLUMN_PARALLEL, ROW_PARALLEL } projection_kind;

static void add_part(part_list *parts, const char *stem, const char *suffix, int64_t numel,
                     hk_tp_rule tp) {
  part *added = &parts->items[parts->n++];
  snprintf(added->name, sizeof added->name, "%s.%s", stem, suffix);
  added->numel = numel;
  added->tp = tp;
}

static void add_projection(part_list *parts, const char *stem, int64_t in, int64_t out, bool bias,
                           projection_kind kind) {
  add_part(parts, stem, "weight", in * out, HK_TP_SPLIT);
  if (bias)
    add_part(parts, stem, "bias", out, kind == COLUMN_PARALLEL ? HK_TP_SPLIT : HK_TP_REPLICATED);
}

/* LayerNorm has a bias, RMSNorm has none. */
static void add_norm(part_list *parts, const char *stem, int64_t width, bool bias) {
  add_part(parts, stem, "weight", width, HK_TP_REPLICATED);
  if (bias) add_part(parts, stem, "bias", width, HK_TP_REPLICATED);
}

/* -- Llama, Mistral, Qwen2, Qwen3 as Hugging Face registers them ------------------------------ */

static void llama_embedding(const hk_model *m, part_list *parts) {
  add_part(parts, "model.embed_tokens", "weight", m->vocab * m->hidden, HK_TP_SPLIT);
}

static void llama_layer(const hk_model *m, part_list *parts) {
  const int64_t h = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
  add_projection(parts, "self_attn.q_proj", h, q, m->qkv_bias, COLUMN_PARALLEL);
  add_projection(parts, "self_attn.k_proj", h, kv, m->qkv_bias, COLUMN_PARALLEL);
  add_projection(parts, "self_attn.v_proj", h, kv, m->qkv_bias, COLUMN_PARALLEL);
  add_projection(parts, "self_attn.o_proj", q, h, m->o_bias, ROW_PARALLEL);
  if (m->arch == HK_ARCH_QWEN3) { /* one norm shared by all heads */
    add_norm(parts, "self_attn.q_norm", m->head_dim, false);
    add_norm(parts, "self_attn.k_norm", m->head_dim, false);
  }
  add_projection(parts, "mlp.gate_proj", h, m->ffn, m->mlp_bias, COLUMN_PARALLEL);
  add_projection(parts, "mlp.up_proj", h, m->ffn, m->mlp_bias, COLUMN_PARALLEL);
  add_projection(parts, "mlp.down_proj", m->ffn, h, m->mlp_bias, ROW_PARALLEL);
  add_norm(parts, "input_layernorm", h, false);
  add_norm(parts, "post_attention_layernorm", h, false);
}

static void llama_head(const hk_model *m, part_list *parts) {
  add_norm(parts, "model.norm", m->hidden, false);
  if (!m->tied) add_part(parts, "lm_head", "weight", m->vocab * m->hidden, HK_TP_SPLIT);
}

/* -- The same shape as Megatron-DeepSpeed registers it ----------------------------------------
 * Derived from the subgroup sizes in published logs (tests/data/subgroups.csv): the output
 * projection comes before the fused query, key and value. */

static void megatron_embedding(const hk_model *m, part_list *parts) {
  add_part(parts, "embedding.word_embeddings", "weight", m->vocab * m->hidden, HK_TP_SPLIT);
}

static void megatron_layer(const hk_model *m, part_list *parts) {
  const int64_t h = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
  add_norm(parts, "input_layernorm", h, false);
  add_projection(parts, "self_attention.dense", q, h, false, ROW_PARALLEL);
  add_projection(parts, "self_attention.query_key_value", h, q + 2 * kv, false, COLUMN_PARALLEL);
  add_norm(parts, "post_attention_layernorm", h, false);
  add_projection(parts, "mlp.dense_h_to_4h", h, 2 * m->ffn, false, COLUMN_PARALLEL);
  add_projection(parts, "mlp.dense_4h_to_h", m->ffn, h, false, ROW_PARALLEL);
}

static void megatron_head(const hk_model *m, part_list *parts) {
  add_norm(parts, "final_layernorm", m->hidden, false);
  if (!m->tied) add_part(parts, "output_layer", "weight", m->vocab * m->hidden, HK_TP_SPLIT);
}

/* -- GPT-2 ------------------------------------------------------------------------------------ */

static void gpt2_embedding(const hk_model *m, part_list *parts) {
  add_part(parts, "transformer.wte", "weight", m->vocab * m->hidden, HK_TP_SPLIT);
  add_part(parts, "transformer.wpe", "weight", m->max_positions * m->hidden, HK_TP_REPLICATED);
}

static void gpt2_layer(const hk_model *m, part_list *parts) {
  const int64_t h = m->hidden;
  add_norm(parts, "ln_1", h, true);
  add_projection(parts, "attn.c_attn", h, 3 * h, m->qkv_bias, COLUMN_PARALLEL);
  add_projection(parts, "attn.c_proj", h, h, m->o_bias, ROW_PARALLEL);
  add_norm(parts, "ln_2", h, true);
  add_projection(parts, "mlp.c_fc", h, m->ffn, m->mlp_bias, COLUMN_PARALLEL);
  add_projection(parts, "mlp.c_proj", m->ffn, h, m->mlp_bias, ROW_PARALLEL);
}

static void gpt2_head(const hk_model *m, part_list *parts) {
  add_norm(parts, "transformer.ln_f", m->hidden, true);
  if (!m->tied) add_part(parts, "lm_head", "weight", m->vocab * m->hidden, HK_TP_SPLIT);
}

/* -- Putting a model together ----------------------------------------------------------------- */

typedef struct {
  const char *layer_prefix;
  void (*embedding)(const hk_model *, part_list *);
  void (*layer)(const hk_model *, part_list *);
  void (*head)(const hk_model *, part_list *);
} registration;

static const registration HF_LLAMA = {"model.layers", llama_embedding, llama_layer, llama_head};
static const registration MEGATRON = {"layers", megatron_embedding, megatron_layer, megatron_head};
static const registration HF_GPT2 = {"transformer.h", gpt2_embedding, gpt2_layer, gpt2_head};

static const registration *registration_of(const hk_model *model) {
  if (model->layout == HK_LAYOUT_MEGATRON) return &MEGATRON;
  return model->arch == HK_ARCH_GPT2 ? &HF_GPT2 : &HF_LLAMA;
}

static void append(hk_model *model, const part_list *parts, const char *prefix, int block) {
  for (size_t i = 0; i < parts->n; i++) {
    hk_tensor *tensor = &model->tensors[model->n_tensors++];
    snprintf(tensor->name, sizeof tensor->name, "%s%s", prefix, parts->items[i].name);
    tensor->numel = parts->items[i].numel;
    tensor->tp = parts->items[i].tp;
    tensor->block = block;
  }
}

/* In floating point: a sum that is too large for int64 must still be compared with the limit. */
static double total_numel(const part_list *parts) {
  double sum = 0;
  for (size_t i = 0; i < parts->n; i++) sum += (double)parts->items[i].numel;
  return sum;
}

hk_status hk_model_build_tensors(hk_model *model, hk_error *err) {
  const registration *order = registration_of(model);
  part_list embedding = {0}, layer = {0}, head = {0};
  order->embedding(model, &embedding);
  order->layer(model, &layer);
  order->head(model, &head);

  double parameters =
      total_numel(&embedding) + (double)model->layers * total_numel(&layer) + total_numel(&head);
  if (parameters >= (double)MAX_PARAMETERS)
    return hk_fail(err, HK_INPUT,
                   "the sizes given make %.3g parameters; a model must have fewer than 2^53 "
                   "(about 9e15)",
                   parameters);

  size_t n = embedding.n + (size_t)model->layers * layer.n + head.n;
  model->tensors = calloc(n, sizeof *model->tensors);
  if (!model->tensors) return hk_fail_memory(err, n * sizeof *model->tensors, "the tensor list");
  model->n_tensors = 0;
  model->embed_tensors = embedding.n;
  model->layer_tensors = layer.n;
  append(model, &embedding, "", HK_BLOCK_EMBED);
  for (int block = 0; block < (int)model->layers; block++) {
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s.%d.", order->layer_prefix, block);
    append(model, &layer, prefix, block);
  }
  append(model, &head, "", (int)model->layers);
  model->parameters = (int64_t)parameters;
  return HK_OK;
}

/* -- Life ------------------------------------------------------------------------------------- */

struct hk_model_owners {
  atomic_int n;
};

hk_status hk_model_own(hk_model *model, hk_error *err) {
  model->owners = malloc(sizeof *model->owners);
  if (!model->owners) return hk_fail_memory(err, sizeof *model->owners, "a model");
  atomic_init(&model->owners->n, 1);
  return HK_OK;
}

hk_status hk_model_copy(const hk_model *from, hk_model *to, hk_error *err) {
  if (!from->owners) return hk_model_from_config(from->config, from->name, to, err);
  *to = *from;
  atomic_fetch_add(&from->owners->n, 1);
  return HK_OK;
}

void hk_model_free(hk_model *model) {
  if (!model) return;
  if (!model->owners || atomic_fetch_sub(&model->owners->n, 1) == 1) {
    free(model->tensors);
    free(model->blocks);
    cJSON_Delete(model->config);
    free(model->owners);
  }
  memset(model, 0, sizeof *model);
}
