/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of models that hocket reads from a config.json. Names, sizes and order of the tensors
 * are those of named_parameters() in `transformers` 5 (scripts/check_model_counts compares them),
 * keys and defaults those of its configuration classes. */
#include <string.h>

#include "core/model_shape.h"

/* -- Rows of tensors -------------------------------------------------------------------------- */

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
#define TOKENS(n)     TABLE(n, HK_EMBED_ROWS, HK_HIDDEN, HK_COLUMN)
#define OUTPUT(in, b) LINEAR_IF("lm_head", in, HK_VOCAB, HK_COLUMN, b, 0, HK_TIED)

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
static const hk_row GPT_OSS_LAYER[] = {TABLE("self_attn.sinks", HK_HEADS, HK_ONE, HK_COLUMN),
                                       GQA(0),
                                       GATE("mlp.router", HK_ALWAYS),
                                       GATED_EXPERTS(HK_ALWAYS),
                                       TWO_NORMS,
                                       END};

/* Multi-head latent attention: queries, keys and values are made from compressed vectors, which are
 * whole on every tensor-parallel rank. */
static const hk_row DEEPSEEK_LAYER[] = {
    LINEAR_IF("self_attn.q_proj", HK_HIDDEN, HK_Q, HK_COLUMN, 0, 0, HK_Q_LORA),
    LINEAR_IF("self_attn.q_a_proj", HK_HIDDEN, HK_Q_RANK, HK_WHOLE, HK_QKV_BIAS, HK_Q_LORA, 0),
    NORM_IF("self_attn.q_a_layernorm", HK_Q_RANK, 0, HK_Q_LORA, 0),
    LINEAR_IF("self_attn.q_b_proj", HK_Q_RANK, HK_Q, HK_COLUMN, 0, HK_Q_LORA, 0),
    LINEAR("self_attn.kv_a_proj_with_mqa", HK_HIDDEN, HK_KV_A, HK_WHOLE, HK_QKV_BIAS),
    NORM("self_attn.kv_a_layernorm", HK_KV_RANK, 0),
    LINEAR("self_attn.kv_b_proj", HK_KV_RANK, HK_KV_B, HK_COLUMN, 0),
    LINEAR("self_attn.o_proj", HK_O, HK_HIDDEN, HK_ROW, HK_QKV_BIAS),
    GATED_MLP("mlp", HK_FFN, 0, HK_SPARSE),
    GATED_EXPERTS(0),
    GATE("mlp.gate", 0),
    GATED_MLP("mlp.shared_experts", HK_SHARED_FFN, HK_SPARSE, 0),
    TWO_NORMS,
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
static const hk_row T5_HEAD[] = {NORM("decoder.final_layer_norm", HK_HIDDEN, 0),
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

/* -- Keys of config.json ---------------------------------------------------------------------- */

#define KEY(n, size, fallback) \
  { HK_KEY_SIZE, n, NULL, size, 0, fallback }
#define KEY_OR(n, alias, size, fallback) \
  { HK_KEY_SIZE, n, alias, size, 0, fallback }
#define CONSTANT(size, value) \
  { HK_KEY_SIZE, NULL, NULL, size, 0, value }
#define FLAG(n, flag, fallback) \
  { HK_KEY_FLAG, n, NULL, HK_ONE, flag, fallback }
#define LIST(n) \
  { HK_KEY_LIST, n, NULL, HK_ONE, 0, 0 }
#define FIXED(n, value) \
  { HK_KEY_FIXED, n, NULL, HK_ONE, 0, value }
#define LAST_KEY \
  { .kind = HK_KEY_END }

#define COMMON_KEYS(tied)                                                                      \
  KEY("num_hidden_layers", HK_LAYERS, HK_NEEDED), KEY("hidden_size", HK_HIDDEN, HK_NEEDED),    \
      KEY("num_attention_heads", HK_HEADS, HK_NEEDED), KEY("vocab_size", HK_VOCAB, HK_NEEDED), \
      KEY("max_position_embeddings", HK_POSITIONS, 0), FLAG("tie_word_embeddings", HK_TIED, tied)
#define GQA_KEYS(head_dim) \
  KEY("num_key_value_heads", HK_KV_HEADS, 0), KEY("head_dim", HK_HEAD_DIM, head_dim)
#define FFN_KEY KEY("intermediate_size", HK_FFN, HK_NEEDED)
/* Qwen: windows from layer max_window_layers on, if they are used at all. */
#define QWEN_WINDOWS                                                                 \
  FLAG("use_sliding_window", HK_HAS_WINDOW, 0), KEY("sliding_window", HK_WINDOW, 0), \
      KEY("max_window_layers", HK_WINDOW_FROM, 28), LIST("layer_types")
/* transformers saves Qwen's num_experts under the other name. */
#define SPARSE_KEYS(experts, alias) \
  KEY_OR(experts, alias, HK_EXPERTS, HK_NEEDED), KEY("num_experts_per_tok", HK_CHOSEN, HK_NEEDED)
#define QWEN_MOE_KEYS                                         \
  SPARSE_KEYS("num_experts", "num_local_experts"),            \
      KEY("moe_intermediate_size", HK_EXPERT_FFN, HK_NEEDED), \
      KEY("decoder_sparse_step", HK_SPARSE_STEP, 1), LIST("mlp_only_layers")

static const hk_key LLAMA_KEYS[] = {
    COMMON_KEYS(0),
    GQA_KEYS(0),
    FFN_KEY,
    {HK_KEY_FLAG, "attention_bias", NULL, HK_ONE, HK_QKV_BIAS | HK_O_BIAS, 0},
    FLAG("mlp_bias", HK_MLP_BIAS, 0),
    LAST_KEY};
static const hk_key MISTRAL_KEYS[] = {COMMON_KEYS(0), GQA_KEYS(0), FFN_KEY,
                                      KEY("sliding_window", HK_WINDOW, 0), LAST_KEY};
static const hk_key QWEN2_KEYS[] = {COMMON_KEYS(0), GQA_KEYS(0), FFN_KEY, QWEN_WINDOWS, LAST_KEY};
static const hk_key QWEN3_KEYS[] = {COMMON_KEYS(0),
                                    GQA_KEYS(128),
                                    FFN_KEY,
                                    QWEN_WINDOWS,
                                    FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                    LAST_KEY};
static const hk_key GEMMA_KEYS[] = {COMMON_KEYS(1), GQA_KEYS(256), FFN_KEY,
                                    FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0), LAST_KEY};
/* Every second layer has a window. */
static const hk_key GEMMA2_KEYS[] = {COMMON_KEYS(1),
                                     GQA_KEYS(256),
                                     FFN_KEY,
                                     FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                     KEY("sliding_window", HK_WINDOW, 4096),
                                     CONSTANT(HK_WINDOW_EVERY, 2),
                                     LIST("layer_types"),
                                     LAST_KEY};
/* Published files of Gemma 3 leave out what is as in the 4B model. */
static const hk_key GEMMA3_KEYS[] = {KEY("num_hidden_layers", HK_LAYERS, HK_NEEDED),
                                     KEY("hidden_size", HK_HIDDEN, HK_NEEDED),
                                     FFN_KEY,
                                     KEY("num_attention_heads", HK_HEADS, 8),
                                     KEY("num_key_value_heads", HK_KV_HEADS, 4),
                                     KEY("head_dim", HK_HEAD_DIM, 256),
                                     KEY("vocab_size", HK_VOCAB, 262208),
                                     KEY("max_position_embeddings", HK_POSITIONS, 131072),
                                     FLAG("tie_word_embeddings", HK_TIED, 1),
                                     FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                     KEY("sliding_window", HK_WINDOW, 4096),
                                     KEY("sliding_window_pattern", HK_WINDOW_EVERY, 6),
                                     LIST("layer_types"),
                                     LAST_KEY};
static const hk_key PHI3_KEYS[] = {COMMON_KEYS(0), KEY("num_key_value_heads", HK_KV_HEADS, 0),
                                   FFN_KEY, KEY("sliding_window", HK_WINDOW, 0), LAST_KEY};
static const hk_key PHI_KEYS[] = {COMMON_KEYS(0), KEY("num_key_value_heads", HK_KV_HEADS, 0),
                                  FFN_KEY, FLAG("qk_layernorm", HK_QK_NORM, 0), LAST_KEY};
static const hk_key MIXTRAL_KEYS[] = {COMMON_KEYS(0),
                                      GQA_KEYS(0),
                                      FFN_KEY,
                                      SPARSE_KEYS("num_local_experts", "num_experts"),
                                      KEY("sliding_window", HK_WINDOW, 0),
                                      LAST_KEY};
static const hk_key QWEN2_MOE_KEYS[] = {
    COMMON_KEYS(0),
    GQA_KEYS(0),
    FFN_KEY,
    QWEN_MOE_KEYS,
    QWEN_WINDOWS,
    KEY("shared_expert_intermediate_size", HK_SHARED_FFN, HK_NEEDED),
    FLAG("qkv_bias", HK_QKV_BIAS, 1),
    LAST_KEY};
static const hk_key QWEN3_MOE_KEYS[] = {
    COMMON_KEYS(0), GQA_KEYS(0),  FFN_KEY,
    QWEN_MOE_KEYS,  QWEN_WINDOWS, FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
    LAST_KEY};
static const hk_key DEEPSEEK_KEYS[] = {
    COMMON_KEYS(0),
    FFN_KEY,
    SPARSE_KEYS("n_routed_experts", "num_local_experts"),
    KEY("moe_intermediate_size", HK_EXPERT_FFN, HK_NEEDED),
    KEY("n_shared_experts", HK_SHARED, HK_NEEDED),
    KEY("first_k_dense_replace", HK_FIRST_DENSE, 0),
    KEY("q_lora_rank", HK_Q_RANK, 0),
    KEY("kv_lora_rank", HK_KV_RANK, HK_NEEDED),
    KEY("qk_nope_head_dim", HK_NOPE_DIM, HK_NEEDED),
    KEY("qk_rope_head_dim", HK_ROPE_DIM, HK_NEEDED),
    KEY("v_head_dim", HK_V_DIM, HK_NEEDED),
    FLAG("attention_bias", HK_QKV_BIAS, 0),
    FIXED("moe_layer_freq", 1),
    FIXED("num_nextn_predict_layers", 0),
    LIST("num_key_value_heads"), /* all heads have keys and values of their own */
    LIST("head_dim"),            /* derived: qk_nope_head_dim + qk_rope_head_dim */
    LIST("qk_head_dim"),
    LAST_KEY};
static const hk_key GPT_OSS_KEYS[] = {COMMON_KEYS(0),
                                      GQA_KEYS(64),
                                      FFN_KEY,
                                      SPARSE_KEYS("num_local_experts", "num_experts"),
                                      FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 1),
                                      KEY("sliding_window", HK_WINDOW, 128),
                                      CONSTANT(HK_WINDOW_EVERY, 2),
                                      LIST("layer_types"),
                                      LAST_KEY};
static const hk_key MLLAMA_KEYS[] = {COMMON_KEYS(0), KEY("num_key_value_heads", HK_KV_HEADS, 0),
                                     FFN_KEY, LIST("cross_attention_layers"), LAST_KEY};
static const hk_key FALCON_KEYS[] = {KEY_OR("num_hidden_layers", "n_layer", HK_LAYERS, HK_NEEDED),
                                     KEY_OR("hidden_size", "n_embed", HK_HIDDEN, HK_NEEDED),
                                     KEY_OR("num_attention_heads", "n_head", HK_HEADS, HK_NEEDED),
                                     KEY("vocab_size", HK_VOCAB, HK_NEEDED),
                                     KEY("ffn_hidden_size", HK_FFN, 0),
                                     KEY_OR("num_kv_heads", "n_head_kv", HK_KV_HEADS, 0),
                                     KEY("num_ln_in_parallel_attn", HK_PARALLEL_NORMS, 0),
                                     KEY("max_position_embeddings", HK_POSITIONS, 2048),
                                     FLAG("new_decoder_architecture", HK_NEW_DECODER, 0),
                                     FLAG("multi_query", HK_MULTI_QUERY, 1),
                                     FLAG("parallel_attn", HK_PARALLEL, 1),
                                     FLAG("bias", HK_BIAS, 0),
                                     FLAG("tie_word_embeddings", HK_TIED, 1),
                                     LAST_KEY};
static const hk_key BLOOM_KEYS[] = {KEY_OR("n_layer", "num_hidden_layers", HK_LAYERS, HK_NEEDED),
                                    KEY_OR("hidden_size", "n_embed", HK_HIDDEN, HK_NEEDED),
                                    KEY_OR("n_head", "num_attention_heads", HK_HEADS, HK_NEEDED),
                                    KEY("vocab_size", HK_VOCAB, HK_NEEDED),
                                    KEY("seq_length", HK_POSITIONS, 0),
                                    FLAG("tie_word_embeddings", HK_TIED, 1),
                                    LAST_KEY};
static const hk_key OPT_KEYS[] = {KEY("num_hidden_layers", HK_LAYERS, HK_NEEDED),
                                  KEY("hidden_size", HK_HIDDEN, HK_NEEDED),
                                  KEY("num_attention_heads", HK_HEADS, HK_NEEDED),
                                  KEY("vocab_size", HK_VOCAB, HK_NEEDED),
                                  KEY("ffn_dim", HK_FFN, HK_NEEDED),
                                  KEY("max_position_embeddings", HK_POSITIONS, HK_NEEDED),
                                  KEY("word_embed_proj_dim", HK_EMBED_DIM, 0),
                                  FLAG("enable_bias", HK_BIAS, 1),
                                  FLAG("_remove_final_layer_norm", HK_POST_NORM, 0),
                                  {HK_KEY_LIST, "do_layer_norm_before", NULL, HK_ONE, 0, 0},
                                  FIXED("layer_norm_elementwise_affine", 1),
                                  FLAG("tie_word_embeddings", HK_TIED, 1),
                                  LAST_KEY};
static const hk_key NEOX_KEYS[] = {COMMON_KEYS(0), FFN_KEY, FLAG("attention_bias", HK_QKV_BIAS, 1),
                                   FLAG("use_parallel_residual", HK_PARALLEL | HK_TWO_NORMS, 1),
                                   LAST_KEY};
#define GPT2_COMMON(tied)                                                                      \
  KEY_OR("n_layer", "num_hidden_layers", HK_LAYERS, HK_NEEDED),                                \
      KEY_OR("n_embd", "hidden_size", HK_HIDDEN, HK_NEEDED),                                   \
      KEY_OR("n_head", "num_attention_heads", HK_HEADS, HK_NEEDED), KEY("n_inner", HK_FFN, 0), \
      KEY("vocab_size", HK_VOCAB, HK_NEEDED),                                                  \
      KEY_OR("n_positions", "max_position_embeddings", HK_POSITIONS, HK_NEEDED),               \
      FLAG("tie_word_embeddings", HK_TIED, tied)
static const hk_key GPTJ_KEYS[] = {GPT2_COMMON(0), LAST_KEY};
static const hk_key GPT2_KEYS[] = {GPT2_COMMON(1), FIXED("add_cross_attention", 0), LAST_KEY};
static const hk_key T5_KEYS[] = {KEY_OR("num_layers", "num_hidden_layers", HK_LAYERS, HK_NEEDED),
                                 KEY("num_decoder_layers", HK_DECODER_LAYERS, 0),
                                 KEY_OR("d_model", "hidden_size", HK_HIDDEN, HK_NEEDED),
                                 KEY("d_ff", HK_FFN, HK_NEEDED),
                                 KEY("d_kv", HK_HEAD_DIM, HK_NEEDED),
                                 KEY_OR("num_heads", "num_attention_heads", HK_HEADS, HK_NEEDED),
                                 KEY("vocab_size", HK_VOCAB, HK_NEEDED),
                                 KEY("relative_attention_num_buckets", HK_BUCKETS, 32),
                                 FLAG("tie_word_embeddings", HK_TIED, 1),
                                 LIST("feed_forward_proj"),
                                 LAST_KEY};
static const hk_key VIT_KEYS[] = {KEY("num_hidden_layers", HK_LAYERS, HK_NEEDED),
                                  KEY("hidden_size", HK_HIDDEN, HK_NEEDED),
                                  KEY("num_attention_heads", HK_HEADS, HK_NEEDED),
                                  FFN_KEY,
                                  KEY("image_size", HK_IMAGE, HK_NEEDED),
                                  KEY("patch_size", HK_PATCH, HK_NEEDED),
                                  KEY("num_channels", HK_CHANNELS, 3),
                                  KEY("num_labels", HK_LABELS, 0),
                                  FLAG("qkv_bias", HK_QKV_BIAS, 1),
                                  LIST("id2label"),
                                  LAST_KEY};

/* -- The table -------------------------------------------------------------------------------- */

#define LLAMA_LIKE(type, arch, keys, layer, flags) \
  { type, arch, keys, LLAMA_EMBEDDING, layer, LLAMA_HEAD, "model.layers", NULL, HK_GATED | (flags) }

static const hk_family FAMILIES[] = {
    [HK_ARCH_LLAMA] = LLAMA_LIKE("llama", "LlamaForCausalLM", LLAMA_KEYS, LLAMA_LAYER, 0),
    [HK_ARCH_MISTRAL] = LLAMA_LIKE("mistral", "MistralForCausalLM", MISTRAL_KEYS, LLAMA_LAYER, 0),
    [HK_ARCH_QWEN2] = LLAMA_LIKE("qwen2", "Qwen2ForCausalLM", QWEN2_KEYS, LLAMA_LAYER, HK_QKV_BIAS),
    [HK_ARCH_QWEN3] = LLAMA_LIKE("qwen3", "Qwen3ForCausalLM", QWEN3_KEYS, LLAMA_LAYER, HK_QK_NORM),
    [HK_ARCH_GEMMA] = LLAMA_LIKE("gemma", "GemmaForCausalLM", GEMMA_KEYS, LLAMA_LAYER, 0),
    [HK_ARCH_GEMMA2] =
        LLAMA_LIKE("gemma2", "Gemma2ForCausalLM", GEMMA2_KEYS, GEMMA_LAYER, HK_SANDWICH),
    [HK_ARCH_GEMMA3] = LLAMA_LIKE("gemma3_text", "Gemma3ForCausalLM", GEMMA3_KEYS, GEMMA_LAYER,
                                  HK_SANDWICH | HK_QK_NORM),
    [HK_ARCH_PHI3] = LLAMA_LIKE("phi3", "Phi3ForCausalLM", PHI3_KEYS, PHI3_LAYER, 0),
    [HK_ARCH_PHI] = {"phi", "PhiForCausalLM", PHI_KEYS, LLAMA_EMBEDDING, PHI_LAYER, PHI_HEAD,
                     "model.layers", NULL, HK_PARALLEL},
    [HK_ARCH_MIXTRAL] = LLAMA_LIKE("mixtral", "MixtralForCausalLM", MIXTRAL_KEYS, MIXTRAL_LAYER, 0),
    [HK_ARCH_QWEN2_MOE] =
        LLAMA_LIKE("qwen2_moe", "Qwen2MoeForCausalLM", QWEN2_MOE_KEYS, QWEN2_MOE_LAYER, 0),
    [HK_ARCH_QWEN3_MOE] =
        LLAMA_LIKE("qwen3_moe", "Qwen3MoeForCausalLM", QWEN3_MOE_KEYS, QWEN3_MOE_LAYER, HK_QK_NORM),
    [HK_ARCH_DEEPSEEK_V2] = LLAMA_LIKE("deepseek_v2", "DeepseekV2ForCausalLM", DEEPSEEK_KEYS,
                                       DEEPSEEK_LAYER, HK_LATENT),
    [HK_ARCH_DEEPSEEK_V3] = LLAMA_LIKE("deepseek_v3", "DeepseekV3ForCausalLM", DEEPSEEK_KEYS,
                                       DEEPSEEK_LAYER, HK_LATENT),
    [HK_ARCH_GPT_OSS] = LLAMA_LIKE("gpt_oss", "GptOssForCausalLM", GPT_OSS_KEYS, GPT_OSS_LAYER, 0),
    [HK_ARCH_MLLAMA] =
        LLAMA_LIKE("mllama_text_model", "MllamaForCausalLM", MLLAMA_KEYS, MLLAMA_LAYER, 0),
    [HK_ARCH_FALCON] = {"falcon", "FalconForCausalLM", FALCON_KEYS, FALCON_EMBEDDING, FALCON_LAYER,
                        GPT2_HEAD, "transformer.h", NULL, 0},
    [HK_ARCH_BLOOM] = {"bloom", "BloomForCausalLM", BLOOM_KEYS, BLOOM_EMBEDDING, BLOOM_LAYER,
                       GPT2_HEAD, "transformer.h", NULL, 0},
    [HK_ARCH_OPT] = {"opt", "OPTForCausalLM", OPT_KEYS, OPT_EMBEDDING, OPT_LAYER, OPT_HEAD,
                     "model.decoder.layers", NULL, 0},
    [HK_ARCH_NEOX] = {"gpt_neox", "GPTNeoXForCausalLM", NEOX_KEYS, NEOX_EMBEDDING, NEOX_LAYER,
                      NEOX_HEAD, "gpt_neox.layers", NULL, 0},
    [HK_ARCH_GPTJ] = {"gptj", "GPTJForCausalLM", GPTJ_KEYS, GPTJ_EMBEDDING, GPTJ_LAYER, GPTJ_HEAD,
                      "transformer.h", NULL, HK_PARALLEL},
    [HK_ARCH_GPT2] = {"gpt2", "GPT2LMHeadModel", GPT2_KEYS, GPT2_EMBEDDING, GPT2_LAYER, GPT2_HEAD,
                      "transformer.h", NULL, 0},
    [HK_ARCH_T5] = {"t5", "T5ForConditionalGeneration", T5_KEYS, T5_EMBEDDING, T5_LAYER, T5_HEAD,
                    "encoder.block", "decoder.block", 0},
    [HK_ARCH_VIT] = {"vit", "ViTForImageClassification", VIT_KEYS, VIT_EMBEDDING, VIT_LAYER,
                     VIT_HEAD, "vit.layers", NULL, HK_ONCE},
};
_Static_assert(sizeof FAMILIES / sizeof FAMILIES[0] == HK_ARCH_LISTED, "a row for each family");

const hk_family hk_family_megatron = {
    "llama",        "LlamaForCausalLM", LLAMA_KEYS, MEGATRON_EMBEDDING,
    MEGATRON_LAYER, MEGATRON_HEAD,      "layers",   NULL,
    HK_GATED};

const hk_family *hk_family_of(hk_arch arch) {
  return &FAMILIES[arch];
}

const char *hk_arch_name(hk_arch arch) {
  return arch == HK_ARCH_LISTED ? "listed" : FAMILIES[arch].architecture;
}

hk_arch hk_family_find(const char *architecture, const char *type) {
  for (int i = 0; i < HK_ARCH_LISTED && architecture != NULL; i++)
    if (strcmp(architecture, FAMILIES[i].architecture) == 0) return (hk_arch)i;
  for (int i = 0; i < HK_ARCH_LISTED && type != NULL; i++)
    if (strcmp(type, FAMILIES[i].type) == 0) return (hk_arch)i;
  return HK_ARCH_LISTED;
}

const char *const *hk_family_types(size_t *n) {
  static const char *types[HK_ARCH_LISTED];
  for (int i = 0; i < HK_ARCH_LISTED; i++) types[i] = FAMILIES[i].type;
  *n = HK_ARCH_LISTED;
  return types;
}
