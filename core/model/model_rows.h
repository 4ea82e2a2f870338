/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of parameter tensors of each kind of model; for model_families.c only. Names, sizes and
 * order are those of named_parameters() in `transformers` 5 (scripts/check_model_counts compares
 * them). */
#ifndef HK_CORE_MODEL_MODEL_ROWS_H
#define HK_CORE_MODEL_MODEL_ROWS_H

#include "core/model/model_shape.h"

#define END \
  { .kind = HK_ROW_END }
#define LINEAR(n, i, o, s, b) \
  { HK_ROW_LINEAR, n, i, o, s, b, 0, 0 }
#define LINEAR_IF(n, i, o, s, b, when, unls) \
  { HK_ROW_LINEAR, n, i, o, s, b, when, unls }
#define OTHER_IF(n, i, o, when) \
  { HK_ROW_OTHER, n, i, o, HK_COLUMN, 0, when, 0 }
#define NORM(n, i, b) \
  { HK_ROW_NORM, n, i, HK_ONE, HK_WHOLE, b, 0, 0 }
#define NORM_IF(n, i, b, when, unls) \
  { HK_ROW_NORM, n, i, HK_ONE, HK_WHOLE, b, when, unls }
#define TABLE(n, i, o, s) \
  { HK_ROW_TABLE, n, i, o, s, 0, 0, 0 }
#define TABLE_IF(n, i, o, s, when) \
  { HK_ROW_TABLE, n, i, o, s, 0, when, 0 }
#define EXPERTS(n, i, o, s, b) \
  { HK_ROW_EXPERTS, n, i, o, s, b, HK_SPARSE, 0 }

/* Grouped-query attention, and the parts around it that several families share. */
#define GQA(unls)                                                                      \
  LINEAR_IF("self_attn.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, HK_QKV_BIAS, 0, unls),     \
      LINEAR_IF("self_attn.k_proj", HK_HIDDEN, HK_K, HK_COLUMN, HK_QKV_BIAS, 0, unls), \
      LINEAR_IF("self_attn.v_proj", HK_HIDDEN, HK_V, HK_COLUMN, HK_QKV_BIAS, 0, unls), \
      LINEAR_IF("self_attn.o_proj", HK_O, HK_HIDDEN, HK_ROW, HK_O_BIAS, 0, unls)
#define QK_NORMS                                                                      \
  NORM_IF("self_attn.q_norm", HK_HEAD_DIM, 0, HK_QK_NORM, 0), /* one for all heads */ \
      NORM_IF("self_attn.k_norm", HK_HEAD_DIM, 0, HK_QK_NORM, 0)
#define GATED_MLP(stem, ffn, when, unls)                                              \
  LINEAR_IF(stem ".gate_proj", HK_HIDDEN, ffn, HK_COLUMN, HK_MLP_BIAS, when, unls),   \
      LINEAR_IF(stem ".up_proj", HK_HIDDEN, ffn, HK_COLUMN, HK_MLP_BIAS, when, unls), \
      LINEAR_IF(stem ".down_proj", ffn, HK_HIDDEN, HK_ROW, HK_MLP_BIAS, when, unls)
#define GATE(n, b) LINEAR_IF(n, HK_HIDDEN, HK_EXPERTS, HK_WHOLE, b, HK_SPARSE, 0)
#define GATED_EXPERTS(b)                                                           \
  EXPERTS("mlp.experts.gate_up_proj", HK_HIDDEN, HK_EXPERT_GATE_UP, HK_COLUMN, b), \
      EXPERTS("mlp.experts.down_proj", HK_EXPERT_FFN, HK_HIDDEN, HK_ROW, b)
#define TWO_NORMS \
  NORM("input_layernorm", HK_HIDDEN, 0), NORM("post_attention_layernorm", HK_HIDDEN, 0)
#define TOKENS(n) TABLE(n, HK_EMBED_ROWS, HK_HIDDEN, HK_COLUMN)
#define OUTPUT(in, b)                                                     \
  LINEAR_IF("lm_head", in, HK_VOCAB, HK_COLUMN, b, 0, HK_TIED | HK_BODY), \
      LINEAR_IF("score", in, HK_LABELS, HK_COLUMN, 0, HK_SCORE, 0)

static const hk_row LLAMA_EMBEDDING[] = {TOKENS("model.embed_tokens.weight"), END};
static const hk_row LLAMA_HEAD[] = {NORM("model.norm", HK_HIDDEN, 0), OUTPUT(HK_HIDDEN, 0), END};
static const hk_row LLAMA_LAYER[] = {GQA(0), QK_NORMS, GATED_MLP("mlp", HK_FFN, 0, 0), TWO_NORMS,
                                     END};
static const hk_row GEMMA_LAYER[] = {GQA(0),
                                     QK_NORMS,
                                     GATED_MLP("mlp", HK_FFN, 0, 0),
                                     TWO_NORMS,
                                     NORM("pre_feedforward_layernorm", HK_HIDDEN, 0),
                                     NORM("post_feedforward_layernorm", HK_HIDDEN, 0),
                                     END};
static const hk_row MIXTRAL_LAYER[] = {GQA(0), GATE("mlp.gate", 0), GATED_EXPERTS(0), TWO_NORMS,
                                       END};
static const hk_row QWEN2_MOE_LAYER[] = {
    GQA(0),
    GATED_MLP("mlp", HK_FFN, 0, HK_SPARSE),
    GATE("mlp.gate", 0),
    GATED_EXPERTS(0),
    GATED_MLP("mlp.shared_expert", HK_SHARED_FFN, HK_SPARSE, 0),
    LINEAR_IF("mlp.shared_expert_gate", HK_HIDDEN, HK_ONE, HK_WHOLE, 0, HK_SPARSE, 0),
    TWO_NORMS,
    END};
static const hk_row QWEN3_MOE_LAYER[] = {GQA(0),
                                         QK_NORMS,
                                         GATED_MLP("mlp", HK_FFN, 0, HK_SPARSE),
                                         GATED_EXPERTS(0),
                                         GATE("mlp.gate", 0),
                                         TWO_NORMS,
                                         END};
/* Norms of whole queries and keys, and after attention and MLP instead of before. */
static const hk_row OLMO2_LAYER[] = {GQA(0),
                                     NORM("self_attn.q_norm", HK_Q, 0),
                                     NORM("self_attn.k_norm", HK_K, 0),
                                     GATED_MLP("mlp", HK_FFN, 0, 0),
                                     NORM("post_attention_layernorm", HK_HIDDEN, 0),
                                     NORM("post_feedforward_layernorm", HK_HIDDEN, 0),
                                     END};
static const hk_row GLM4_MOE_LAYER[] = {
    GQA(0),
    QK_NORMS,
    GATED_MLP("mlp", HK_FFN, 0, HK_SPARSE),
    GATED_EXPERTS(0),
    GATE("mlp.gate", 0),
    GATED_MLP("mlp.shared_experts", HK_SHARED_FFN, HK_SPARSE, 0),
    TWO_NORMS,
    END};
static const hk_row LLAMA4_LAYER[] = {
    GQA(0),
    GATED_MLP("feed_forward", HK_FFN, 0, HK_SPARSE),
    EXPERTS("feed_forward.experts.gate_up_proj", HK_HIDDEN, HK_EXPERT_GATE_UP, HK_COLUMN, 0),
    EXPERTS("feed_forward.experts.down_proj", HK_EXPERT_FFN, HK_HIDDEN, HK_ROW, 0),
    GATE("feed_forward.router", 0),
    GATED_MLP("feed_forward.shared_expert", HK_SHARED_FFN, HK_SPARSE, 0),
    TWO_NORMS,
    END};
static const hk_row GPT_OSS_LAYER[] = {TABLE("self_attn.sinks", HK_HEADS, HK_ONE, HK_COLUMN),
                                       GQA(0),
                                       GATE("mlp.router", HK_ALWAYS),
                                       GATED_EXPERTS(HK_ALWAYS),
                                       TWO_NORMS,
                                       END};

/* Multi-head latent attention: queries, keys and values are made from compressed vectors, which are
 * whole on every tensor-parallel rank. */
#define LATENT_ATTENTION                                                                          \
  LINEAR_IF("self_attn.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, 0, 0, HK_Q_LORA),                     \
      LINEAR_IF("self_attn.q_a_proj", HK_HIDDEN, HK_Q_RANK, HK_WHOLE, HK_QKV_BIAS, HK_Q_LORA, 0), \
      NORM_IF("self_attn.q_a_layernorm", HK_Q_RANK, 0, HK_Q_LORA, 0),                             \
      LINEAR_IF("self_attn.q_b_proj", HK_Q_RANK, HK_Q, HK_COLUMN, 0, HK_Q_LORA, 0),               \
      LINEAR("self_attn.kv_a_proj_with_mqa", HK_HIDDEN, HK_KV_A, HK_WHOLE, HK_QKV_BIAS),          \
      NORM("self_attn.kv_a_layernorm", HK_KV_RANK, 0),                                            \
      LINEAR("self_attn.kv_b_proj", HK_KV_RANK, HK_KV_B, HK_COLUMN, 0),                           \
      LINEAR("self_attn.o_proj", HK_O, HK_HIDDEN, HK_ROW, HK_QKV_BIAS)
#define LATENT_MLP                                                               \
  GATED_MLP("mlp", HK_FFN, 0, HK_SPARSE), GATED_EXPERTS(0), GATE("mlp.gate", 0), \
      GATED_MLP("mlp.shared_experts", HK_SHARED_FFN, HK_SPARSE, 0), TWO_NORMS
static const hk_row DEEPSEEK_LAYER[] = {LATENT_ATTENTION, LATENT_MLP, END};
/* The indexer reads the compressed queries; it is whole on every rank. */
static const hk_row DEEPSEEK_V32_LAYER[] = {
    LATENT_ATTENTION,
    LINEAR("self_attn.indexer.wq_b", HK_Q_RANK, HK_INDEX_Q, HK_WHOLE, 0),
    LINEAR("self_attn.indexer.wk", HK_HIDDEN, HK_INDEX_DIM, HK_WHOLE, 0),
    NORM("self_attn.indexer.k_norm", HK_INDEX_DIM, HK_ALWAYS),
    LINEAR("self_attn.indexer.weights_proj", HK_HIDDEN, HK_INDEX_HEADS, HK_WHOLE, 0),
    LATENT_MLP,
    END};

/* Llama 3.2 vision's text part. Keys and values of a cross-attention layer are made from image
 * tokens; the two gates have one parameter each. */
static const hk_row MLLAMA_LAYER[] = {
    GQA(HK_CROSS),
    TABLE_IF("cross_attn_attn_gate", HK_ONE, HK_ONE, HK_WHOLE, HK_CROSS),
    TABLE_IF("cross_attn_mlp_gate", HK_ONE, HK_ONE, HK_WHOLE, HK_CROSS),
    LINEAR_IF("cross_attn.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, 0, HK_CROSS, 0),
    OTHER_IF("cross_attn.k_proj", HK_HIDDEN, HK_K, HK_CROSS),
    OTHER_IF("cross_attn.v_proj", HK_HIDDEN, HK_V, HK_CROSS),
    LINEAR_IF("cross_attn.o_proj", HK_O, HK_HIDDEN, HK_ROW, 0, HK_CROSS, 0),
    NORM_IF("cross_attn.q_norm", HK_HEAD_DIM, 0, HK_CROSS, 0),
    NORM_IF("cross_attn.k_norm", HK_HEAD_DIM, 0, HK_CROSS, 0),
    NORM_IF("input_layernorm", HK_HIDDEN, 0, HK_CROSS, 0),
    GATED_MLP("mlp", HK_FFN, 0, 0),
    NORM_IF("input_layernorm", HK_HIDDEN, 0, 0, HK_CROSS),
    NORM("post_attention_layernorm", HK_HIDDEN, 0),
    END};

static const hk_row PHI3_LAYER[] = {LINEAR("self_attn.o_proj", HK_O, HK_HIDDEN, HK_ROW, 0),
                                    LINEAR("self_attn.qkv_proj", HK_HIDDEN, HK_QKV, HK_COLUMN, 0),
                                    LINEAR("mlp.gate_up_proj", HK_HIDDEN, HK_GATE_UP, HK_COLUMN, 0),
                                    LINEAR("mlp.down_proj", HK_FFN, HK_HIDDEN, HK_ROW, 0),
                                    TWO_NORMS,
                                    END};

static const hk_row PHI_LAYER[] = {
    LINEAR("self_attn.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, HK_ALWAYS),
    LINEAR("self_attn.k_proj", HK_HIDDEN, HK_K, HK_COLUMN, HK_ALWAYS),
    LINEAR("self_attn.v_proj", HK_HIDDEN, HK_V, HK_COLUMN, HK_ALWAYS),
    LINEAR("self_attn.dense", HK_O, HK_HIDDEN, HK_ROW, HK_ALWAYS),
    NORM_IF("self_attn.q_layernorm", HK_HEAD_DIM, HK_ALWAYS, HK_QK_NORM, 0),
    NORM_IF("self_attn.k_layernorm", HK_HEAD_DIM, HK_ALWAYS, HK_QK_NORM, 0),
    LINEAR("mlp.fc1", HK_HIDDEN, HK_FFN, HK_COLUMN, HK_ALWAYS),
    LINEAR("mlp.fc2", HK_FFN, HK_HIDDEN, HK_ROW, HK_ALWAYS),
    NORM("input_layernorm", HK_HIDDEN, HK_ALWAYS),
    END};
static const hk_row PHI_HEAD[] = {NORM("model.final_layernorm", HK_HIDDEN, HK_ALWAYS),
                                  OUTPUT(HK_HIDDEN, HK_ALWAYS), END};

/* Queries, keys and values in one matrix, and a plain MLP: BLOOM, Falcon, GPT-NeoX. */
#define FUSED_QKV(stem, b)                                          \
  LINEAR(stem ".query_key_value", HK_HIDDEN, HK_QKV, HK_COLUMN, b), \
      LINEAR(stem ".dense", HK_O, HK_HIDDEN, HK_ROW, b)
#define PLAIN_MLP(b)                                            \
  LINEAR("mlp.dense_h_to_4h", HK_HIDDEN, HK_FFN, HK_COLUMN, b), \
      LINEAR("mlp.dense_4h_to_h", HK_FFN, HK_HIDDEN, HK_ROW, b)

static const hk_row FALCON_EMBEDDING[] = {TOKENS("transformer.word_embeddings.weight"), END};
static const hk_row FALCON_LAYER[] = {
    FUSED_QKV("self_attention", HK_BIAS),
    PLAIN_MLP(HK_BIAS),
    NORM_IF("post_attention_layernorm", HK_HIDDEN, HK_ALWAYS, 0, HK_PARALLEL),
    NORM_IF("ln_attn", HK_HIDDEN, HK_ALWAYS, HK_PARALLEL | HK_TWO_NORMS, 0),
    NORM_IF("ln_mlp", HK_HIDDEN, HK_ALWAYS, HK_PARALLEL | HK_TWO_NORMS, 0),
    NORM_IF("input_layernorm", HK_HIDDEN, HK_ALWAYS, 0, HK_TWO_NORMS),
    END};
static const hk_row GPT2_HEAD[] = {NORM("transformer.ln_f", HK_HIDDEN, HK_ALWAYS),
                                   OUTPUT(HK_HIDDEN, 0), END};

static const hk_row BLOOM_EMBEDDING[] = {
    TOKENS("transformer.word_embeddings.weight"),
    NORM("transformer.word_embeddings_layernorm", HK_HIDDEN, HK_ALWAYS), END};
static const hk_row BLOOM_LAYER[] = {
    NORM("input_layernorm", HK_HIDDEN, HK_ALWAYS), FUSED_QKV("self_attention", HK_ALWAYS),
    NORM("post_attention_layernorm", HK_HIDDEN, HK_ALWAYS), PLAIN_MLP(HK_ALWAYS), END};

static const hk_row NEOX_EMBEDDING[] = {TOKENS("gpt_neox.embed_in.weight"), END};
static const hk_row NEOX_LAYER[] = {NORM("input_layernorm", HK_HIDDEN, HK_ALWAYS),
                                    NORM("post_attention_layernorm", HK_HIDDEN, HK_ALWAYS),
                                    FUSED_QKV("attention", HK_QKV_BIAS), PLAIN_MLP(HK_ALWAYS), END};
static const hk_row NEOX_HEAD[] = {NORM("gpt_neox.final_layer_norm", HK_HIDDEN, HK_ALWAYS),
                                   OUTPUT(HK_HIDDEN, 0), END};

static const hk_row GPTJ_EMBEDDING[] = {TOKENS("transformer.wte.weight"), END};
static const hk_row GPTJ_LAYER[] = {NORM("ln_1", HK_HIDDEN, HK_ALWAYS),
                                    LINEAR("attn.k_proj", HK_HIDDEN, HK_K, HK_COLUMN, 0),
                                    LINEAR("attn.v_proj", HK_HIDDEN, HK_V, HK_COLUMN, 0),
                                    LINEAR("attn.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, 0),
                                    LINEAR("attn.out_proj", HK_O, HK_HIDDEN, HK_ROW, 0),
                                    LINEAR("mlp.fc_in", HK_HIDDEN, HK_FFN, HK_COLUMN, HK_ALWAYS),
                                    LINEAR("mlp.fc_out", HK_FFN, HK_HIDDEN, HK_ROW, HK_ALWAYS),
                                    END};
static const hk_row GPTJ_HEAD[] = {NORM("transformer.ln_f", HK_HIDDEN, HK_ALWAYS),
                                   OUTPUT(HK_HIDDEN, HK_ALWAYS), END};

static const hk_row GPT2_EMBEDDING[] = {
    TOKENS("transformer.wte.weight"),
    TABLE("transformer.wpe.weight", HK_POSITION_ROWS, HK_HIDDEN, HK_WHOLE), END};
static const hk_row GPT2_LAYER[] = {NORM("ln_1", HK_HIDDEN, HK_ALWAYS),
                                    LINEAR("attn.c_attn", HK_HIDDEN, HK_QKV, HK_COLUMN, HK_ALWAYS),
                                    LINEAR("attn.c_proj", HK_O, HK_HIDDEN, HK_ROW, HK_ALWAYS),
                                    NORM("ln_2", HK_HIDDEN, HK_ALWAYS),
                                    LINEAR("mlp.c_fc", HK_HIDDEN, HK_FFN, HK_COLUMN, HK_ALWAYS),
                                    LINEAR("mlp.c_proj", HK_FFN, HK_HIDDEN, HK_ROW, HK_ALWAYS),
                                    END};

/* The final norm is registered before the layers, and so it belongs to the first block. */
static const hk_row OPT_EMBEDDING[] = {
    TABLE("model.decoder.embed_tokens.weight", HK_EMBED_ROWS, HK_EMBED_DIM, HK_COLUMN),
    TABLE("model.decoder.embed_positions.weight", HK_POSITION_ROWS, HK_HIDDEN, HK_WHOLE),
    LINEAR_IF("model.decoder.project_out", HK_HIDDEN, HK_EMBED_DIM, HK_WHOLE, 0, HK_PROJECTED, 0),
    LINEAR_IF("model.decoder.project_in", HK_EMBED_DIM, HK_HIDDEN, HK_WHOLE, 0, HK_PROJECTED, 0),
    NORM_IF("model.decoder.final_layer_norm", HK_HIDDEN, HK_ALWAYS, 0, HK_POST_NORM),
    END};
static const hk_row OPT_LAYER[] = {LINEAR("self_attn.k_proj", HK_HIDDEN, HK_K, HK_COLUMN, HK_BIAS),
                                   LINEAR("self_attn.v_proj", HK_HIDDEN, HK_V, HK_COLUMN, HK_BIAS),
                                   LINEAR("self_attn.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, HK_BIAS),
                                   LINEAR("self_attn.out_proj", HK_O, HK_HIDDEN, HK_ROW, HK_BIAS),
                                   NORM("self_attn_layer_norm", HK_HIDDEN, HK_ALWAYS),
                                   LINEAR("fc1", HK_HIDDEN, HK_FFN, HK_COLUMN, HK_BIAS),
                                   LINEAR("fc2", HK_FFN, HK_HIDDEN, HK_ROW, HK_BIAS),
                                   NORM("final_layer_norm", HK_HIDDEN, HK_ALWAYS),
                                   END};
static const hk_row OPT_HEAD[] = {OUTPUT(HK_EMBED_DIM, 0), END};

/* The relative position bias is in the first layer of encoder and decoder only. A name that begins
 * with '/' is not one of the layer's: its prefix is left out. */
#define T5_ATTENTION(stem, when, unls)                                 \
  LINEAR_IF(stem ".q", HK_HIDDEN, HK_Q, HK_COLUMN, 0, when, unls),     \
      LINEAR_IF(stem ".k", HK_HIDDEN, HK_K, HK_COLUMN, 0, when, unls), \
      LINEAR_IF(stem ".v", HK_HIDDEN, HK_V, HK_COLUMN, 0, when, unls), \
      LINEAR_IF(stem ".o", HK_O, HK_HIDDEN, HK_ROW, 0, when, unls)
#define T5_MLP(stem, when, unls)                                                         \
  LINEAR_IF(stem ".wi", HK_HIDDEN, HK_FFN, HK_COLUMN, 0, when, (unls) | HK_GATED),       \
      LINEAR_IF(stem ".wi_0", HK_HIDDEN, HK_FFN, HK_COLUMN, 0, (when) | HK_GATED, unls), \
      LINEAR_IF(stem ".wi_1", HK_HIDDEN, HK_FFN, HK_COLUMN, 0, (when) | HK_GATED, unls), \
      LINEAR_IF(stem ".wo", HK_FFN, HK_HIDDEN, HK_ROW, 0, when, unls)
static const hk_row T5_EMBEDDING[] = {TOKENS("shared.weight"), END};
static const hk_row T5_LAYER[] = {
    T5_ATTENTION("layer.0.SelfAttention", 0, 0),
    TABLE_IF("layer.0.SelfAttention.relative_attention_bias.weight", HK_BUCKETS, HK_HEADS,
             HK_COLUMN, HK_FIRST),
    NORM("layer.0.layer_norm", HK_HIDDEN, 0),
    T5_ATTENTION("layer.1.EncDecAttention", HK_DECODER, 0),
    T5_MLP("layer.1.DenseReluDense", 0, HK_DECODER),
    NORM("layer.1.layer_norm", HK_HIDDEN, 0),
    T5_MLP("layer.2.DenseReluDense", HK_DECODER, 0),
    NORM_IF("layer.2.layer_norm", HK_HIDDEN, 0, HK_DECODER, 0),
    NORM_IF("/encoder.final_layer_norm", HK_HIDDEN, 0, HK_LAST_ENCODER, 0),
    END};
static const hk_row T5_HEAD[] = {NORM_IF("decoder.final_layer_norm", HK_HIDDEN, 0, 0, HK_ENCODER),
                                 OUTPUT(HK_HIDDEN, 0), END};

static const hk_row VIT_EMBEDDING[] = {
    TABLE("vit.embeddings.cls_token", HK_ONE, HK_HIDDEN, HK_WHOLE),
    TABLE("vit.embeddings.position_embeddings", HK_POSITIONS, HK_HIDDEN, HK_WHOLE),
    LINEAR("vit.embeddings.patch_embeddings.projection", HK_PATCH_VALUES, HK_HIDDEN, HK_WHOLE,
           HK_ALWAYS),
    END};
static const hk_row VIT_LAYER[] = {
    LINEAR("attention.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, HK_QKV_BIAS),
    LINEAR("attention.k_proj", HK_HIDDEN, HK_K, HK_COLUMN, HK_QKV_BIAS),
    LINEAR("attention.v_proj", HK_HIDDEN, HK_V, HK_COLUMN, HK_QKV_BIAS),
    LINEAR("attention.o_proj", HK_O, HK_HIDDEN, HK_ROW, HK_ALWAYS),
    NORM("layernorm_before", HK_HIDDEN, HK_ALWAYS),
    NORM("layernorm_after", HK_HIDDEN, HK_ALWAYS),
    LINEAR("mlp.fc1", HK_HIDDEN, HK_FFN, HK_COLUMN, HK_ALWAYS),
    LINEAR("mlp.fc2", HK_FFN, HK_HIDDEN, HK_ROW, HK_ALWAYS),
    END};
static const hk_row VIT_HEAD[] = {NORM("vit.layernorm", HK_HIDDEN, HK_ALWAYS),
                                  LINEAR("classifier", HK_HIDDEN, HK_LABELS, HK_COLUMN, HK_ALWAYS),
                                  END};

/* Llama's shape as Megatron-DeepSpeed registers it. Derived from the subgroup sizes in published
 * logs (tests/data/subgroups.csv): the output projection comes before the fused query, key and
 * value. */
static const hk_row MEGATRON_EMBEDDING[] = {TOKENS("embedding.word_embeddings.weight"), END};
static const hk_row MEGATRON_LAYER[] = {
    NORM("input_layernorm", HK_HIDDEN, 0),
    LINEAR("self_attention.dense", HK_O, HK_HIDDEN, HK_ROW, 0),
    LINEAR("self_attention.query_key_value", HK_HIDDEN, HK_QKV, HK_COLUMN, 0),
    NORM("post_attention_layernorm", HK_HIDDEN, 0),
    LINEAR("mlp.dense_h_to_4h", HK_HIDDEN, HK_GATE_UP, HK_COLUMN, 0),
    LINEAR("mlp.dense_4h_to_h", HK_FFN, HK_HIDDEN, HK_ROW, 0),
    END};
static const hk_row MEGATRON_HEAD[] = {
    NORM("final_layernorm", HK_HIDDEN, 0),
    LINEAR_IF("output_layer", HK_HIDDEN, HK_VOCAB, HK_COLUMN, 0, 0, HK_TIED), END};

#endif
