/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of models that hocket reads from a config.json. Keys and their defaults are those of
 * the configuration classes in `transformers` 5. */
#include <string.h>

#include "core/model/model_rows.h"
#include "core/model/model_shape.h"

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
/* All heads have keys and values of their own; head_dim is derived. */
#define DEEPSEEK_COMMON(rank)                                                                      \
  COMMON_KEYS(0), FFN_KEY, SPARSE_KEYS("n_routed_experts", "num_local_experts"),                   \
      KEY("moe_intermediate_size", HK_EXPERT_FFN, HK_NEEDED),                                      \
      KEY("n_shared_experts", HK_SHARED, HK_NEEDED),                                               \
      KEY("first_k_dense_replace", HK_FIRST_DENSE, 0), KEY("q_lora_rank", HK_Q_RANK, rank),        \
      KEY("kv_lora_rank", HK_KV_RANK, HK_NEEDED), KEY("qk_nope_head_dim", HK_NOPE_DIM, HK_NEEDED), \
      KEY("qk_rope_head_dim", HK_ROPE_DIM, HK_NEEDED), KEY("v_head_dim", HK_V_DIM, HK_NEEDED),     \
      FLAG("attention_bias", HK_QKV_BIAS, 0), FIXED("moe_layer_freq", 1),                          \
      FIXED("num_nextn_predict_layers", 0), LIST("num_key_value_heads"), LIST("head_dim"),         \
      LIST("qk_head_dim")
static const hk_key DEEPSEEK_KEYS[] = {DEEPSEEK_COMMON(0), LAST_KEY};
/* The scores of the indexer are not counted, and attention counts as full. */
static const hk_key DEEPSEEK_V32_KEYS[] = {
    DEEPSEEK_COMMON(HK_NEEDED), KEY("index_n_heads", HK_INDEX_HEADS, HK_NEEDED),
    KEY("index_head_dim", HK_INDEX_DIM, HK_NEEDED), LAST_KEY};
static const hk_key GPT_OSS_KEYS[] = {COMMON_KEYS(0),
                                      GQA_KEYS(64),
                                      FFN_KEY,
                                      SPARSE_KEYS("num_local_experts", "num_experts"),
                                      FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 1),
                                      KEY("sliding_window", HK_WINDOW, 128),
                                      CONSTANT(HK_WINDOW_EVERY, 2),
                                      LIST("layer_types"),
                                      LAST_KEY};
static const hk_key OLMO2_KEYS[] = {COMMON_KEYS(0), KEY("num_key_value_heads", HK_KV_HEADS, 0),
                                    FFN_KEY, FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                    LAST_KEY};
static const hk_key OLMO3_KEYS[] = {COMMON_KEYS(0),
                                    KEY("num_key_value_heads", HK_KV_HEADS, 0),
                                    FFN_KEY,
                                    FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                    KEY("sliding_window", HK_WINDOW, 4096),
                                    CONSTANT(HK_WINDOW_EVERY, 4),
                                    LIST("layer_types"),
                                    LAST_KEY};
/* Every fourth layer has no rotary positions: nothing is counted for them. */
static const hk_key SMOLLM3_KEYS[] = {COMMON_KEYS(1),
                                      KEY("num_key_value_heads", HK_KV_HEADS, 4),
                                      FFN_KEY,
                                      FLAG("use_sliding_window", HK_HAS_WINDOW, 0),
                                      KEY("sliding_window", HK_WINDOW, 0),
                                      LIST("layer_types"),
                                      FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                      FLAG("mlp_bias", HK_MLP_BIAS, 0),
                                      LIST("no_rope_layers"),
                                      LIST("no_rope_layer_interval"),
                                      LAST_KEY};
/* Its multipliers have no parameters. */
static const hk_key GRANITE_KEYS[] = {COMMON_KEYS(0),
                                      KEY("num_key_value_heads", HK_KV_HEADS, 0),
                                      FFN_KEY,
                                      FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                      FLAG("mlp_bias", HK_MLP_BIAS, 0),
                                      LIST("attention_multiplier"),
                                      LIST("embedding_multiplier"),
                                      LIST("residual_multiplier"),
                                      LIST("logits_scaling"),
                                      LAST_KEY};
static const hk_key GLM4_MOE_KEYS[] = {COMMON_KEYS(0),
                                       GQA_KEYS(0),
                                       FFN_KEY,
                                       SPARSE_KEYS("n_routed_experts", "num_local_experts"),
                                       KEY("moe_intermediate_size", HK_EXPERT_FFN, HK_NEEDED),
                                       KEY("n_shared_experts", HK_SHARED, HK_NEEDED),
                                       KEY("first_k_dense_replace", HK_FIRST_DENSE, 1),
                                       FLAG("attention_bias", HK_QKV_BIAS, 0),
                                       FLAG("use_qk_norm", HK_QK_NORM, 0),
                                       FIXED("num_nextn_predict_layers", 0),
                                       LAST_KEY};
/* One expert that every token is sent to. Attention in chunks of 8192 tokens counts as full. */
static const hk_key LLAMA4_KEYS[] = {COMMON_KEYS(0),
                                     GQA_KEYS(128),
                                     KEY("intermediate_size_mlp", HK_FFN, 16384),
                                     KEY("intermediate_size", HK_EXPERT_FFN, HK_NEEDED),
                                     SPARSE_KEYS("num_local_experts", "num_experts"),
                                     CONSTANT(HK_SHARED, 1),
                                     KEY("interleave_moe_layer_step", HK_SPARSE_STEP, 1),
                                     FLAG("attention_bias", HK_QKV_BIAS | HK_O_BIAS, 0),
                                     LIST("use_qk_norm"), /* without parameters */
                                     LIST("no_rope_layers"),
                                     LIST("attn_temperature_tuning"),
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
                                  LIST("num_labels"),
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
    [HK_ARCH_DEEPSEEK_V32] = LLAMA_LIKE("deepseek_v32", "DeepseekV32ForCausalLM", DEEPSEEK_V32_KEYS,
                                        DEEPSEEK_V32_LAYER, HK_LATENT),
    [HK_ARCH_GPT_OSS] = LLAMA_LIKE("gpt_oss", "GptOssForCausalLM", GPT_OSS_KEYS, GPT_OSS_LAYER, 0),
    [HK_ARCH_OLMO2] = LLAMA_LIKE("olmo2", "Olmo2ForCausalLM", OLMO2_KEYS, OLMO2_LAYER, HK_QK_NORM),
    [HK_ARCH_OLMO3] = LLAMA_LIKE("olmo3", "Olmo3ForCausalLM", OLMO3_KEYS, OLMO2_LAYER, HK_QK_NORM),
    [HK_ARCH_SMOLLM3] = LLAMA_LIKE("smollm3", "SmolLM3ForCausalLM", SMOLLM3_KEYS, LLAMA_LAYER, 0),
    [HK_ARCH_GRANITE] = LLAMA_LIKE("granite", "GraniteForCausalLM", GRANITE_KEYS, LLAMA_LAYER, 0),
    [HK_ARCH_GLM4_MOE] =
        LLAMA_LIKE("glm4_moe", "Glm4MoeForCausalLM", GLM4_MOE_KEYS, GLM4_MOE_LAYER, 0),
    [HK_ARCH_LLAMA4] = LLAMA_LIKE("llama4_text", "Llama4ForCausalLM", LLAMA4_KEYS, LLAMA4_LAYER, 0),
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
    if (strcmp(architecture, FAMILIES[i].architecture) == 0 ||
        hk_family_part(&FAMILIES[i], architecture) != 0)
      return (hk_arch)i;
  for (int i = 0; i < HK_ARCH_LISTED && type != NULL; i++)
    if (strcmp(type, FAMILIES[i].type) == 0) return (hk_arch)i;
  return HK_ARCH_LISTED;
}

uint64_t hk_family_part(const hk_family *family, const char *architecture) {
  static const char *const whole[] = {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"};
  const char *rest = NULL;
  for (size_t i = 0; i < sizeof whole / sizeof *whole && !rest; i++) {
    const char *end = strstr(family->architecture, whole[i]);
    const size_t stem = end ? (size_t)(end - family->architecture) : 0;
    if (end && strncmp(architecture, family->architecture, stem) == 0) rest = architecture + stem;
  }
  if (!rest) return 0;
  if (strcmp(rest, "Model") == 0) return HK_BODY;
  if (family->decoder_layers) return strcmp(rest, "EncoderModel") == 0 ? HK_BODY | HK_ENCODER : 0;
  return strcmp(rest, "ForSequenceClassification") == 0 ? HK_BODY | HK_SCORE : 0;
}

const char *const *hk_family_types(size_t *n) {
  static _Thread_local const char *types[HK_ARCH_LISTED];
  for (int i = 0; i < HK_ARCH_LISTED; i++) types[i] = FAMILIES[i].type;
  *n = HK_ARCH_LISTED;
  return types;
}
