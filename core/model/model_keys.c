/* SPDX-License-Identifier: Apache-2.0 */
/* From the keys of a config.json to a shape, by the table of the model's family. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/names.h"
#include "core/model/model_shape.h"

/* Far above any existing model, and low enough that no product of three sizes overflows. */
static const struct {
  int64_t least, most;
} LIMITS[HK_SIZES] = {
    [HK_HIDDEN] = {1, 1LL << 20},      [HK_LAYERS] = {1, 10000},
    [HK_DECODER_LAYERS] = {1, 10000},  [HK_HEADS] = {1, 1LL << 14},
    [HK_KV_HEADS] = {1, 1LL << 14},    [HK_HEAD_DIM] = {1, 1LL << 14},
    [HK_FFN] = {1, 1LL << 22},         [HK_VOCAB] = {1, 1LL << 26},
    [HK_POSITIONS] = {1, 1LL << 30},   [HK_EMBED_DIM] = {1, 1LL << 20},
    [HK_EXPERTS] = {1, 1LL << 14},     [HK_CHOSEN] = {1, 1LL << 14},
    [HK_EXPERT_FFN] = {1, 1LL << 22},  [HK_SHARED] = {0, 1LL << 14},
    [HK_SHARED_FFN] = {1, 1LL << 22},  [HK_FIRST_DENSE] = {0, 10000},
    [HK_SPARSE_STEP] = {1, 10000},     [HK_Q_RANK] = {1, 1LL << 20},
    [HK_KV_RANK] = {1, 1LL << 20},     [HK_NOPE_DIM] = {1, 1LL << 14},
    [HK_ROPE_DIM] = {1, 1LL << 14},    [HK_V_DIM] = {1, 1LL << 14},
    [HK_INDEX_HEADS] = {1, 1LL << 14}, [HK_INDEX_DIM] = {1, 1LL << 14},
    [HK_WINDOW] = {0, 1LL << 30},      [HK_WINDOW_EVERY] = {1, 10000},
    [HK_WINDOW_FROM] = {0, 1LL << 30}, [HK_PARALLEL_NORMS] = {1, 2},
    [HK_BUCKETS] = {1, 1LL << 20},     [HK_IMAGE] = {1, 1LL << 16},
    [HK_PATCH] = {1, 1LL << 12},       [HK_CHANNELS] = {1, 1LL << 12},
    [HK_LABELS] = {1, 1LL << 26},
};

static const cJSON *member(const cJSON *config, const char *key) {
  const cJSON *item = key ? cJSON_GetObjectItemCaseSensitive(config, key) : NULL;
  return item && !cJSON_IsNull(item) ? item : NULL;
}

/* The name under which `config` has the key: the alias only where the name is absent. */
static const char *name_in(const cJSON *config, const hk_key *key) {
  return !member(config, key->name) && member(config, key->alias) ? key->alias : key->name;
}

/* The key that gives a size. */
static const char *key_of(const hk_family *family, hk_size size) {
  for (const hk_key *key = family->keys; key->kind != HK_KEY_END; key++)
    if (key->kind == HK_KEY_SIZE && key->size == size && key->name) return key->name;
  return NULL;
}

/* -- Reading ----------------------------------------------------------------------------------- */

static hk_status check_missing(const cJSON *config, const hk_family *family, hk_error *err) {
  char names[400] = "";
  size_t used = 0;
  int n = 0;
  for (const hk_key *key = family->keys; key->kind != HK_KEY_END; key++) {
    if (key->kind != HK_KEY_SIZE || key->fallback != HK_NEEDED) continue;
    if (member(config, name_in(config, key))) continue;
    if (used < sizeof names)
      used += (size_t)snprintf(names + used, sizeof names - used, "%s'%s'", n > 0 ? ", " : "",
                               key->name);
    n++;
  }
  if (n == 0) return HK_OK;
  if (n == 1)
    return hk_fail(err, HK_INPUT, "key %s: missing; a config.json of model_type \"%s\" needs it",
                   names, family->type);
  return hk_fail(err, HK_INPUT, "keys %s: missing; a config.json of model_type \"%s\" needs them",
                 names, family->type);
}

/* T5's "relu" or "gated-gelu". */
static hk_status read_feed_forward(const cJSON *config, hk_shape *shape, hk_error *err) {
  const char *text = "relu";
  if (member(config, "feed_forward_proj"))
    HK_TRY(hk_json_string(config, "feed_forward_proj", &text, err));
  if (strncmp(text, "gated-", 6) == 0) shape->flags |= HK_GATED;
  return HK_OK;
}

/* The number of classes, else that of their names; `transformers` has two by default. */
static hk_status read_labels(const cJSON *config, hk_shape *shape, hk_error *err) {
  const cJSON *names = member(config, "id2label");
  const int n = cJSON_IsObject(names) ? cJSON_GetArraySize(names) : 2;
  return hk_json_int_or(config, "num_labels", LIMITS[HK_LABELS].least, LIMITS[HK_LABELS].most,
                        n > 0 ? n : 1, &shape->size[HK_LABELS], err);
}

/* OPT-350m: no norm after the last layer. */
static hk_status read_norm_order(const cJSON *config, hk_shape *shape, hk_error *err) {
  bool before = true;
  HK_TRY(hk_json_bool_or(config, "do_layer_norm_before", true, &before, err));
  if (!before) shape->flags |= HK_POST_NORM;
  return HK_OK;
}

static hk_status read_keys(const cJSON *config, const cJSON *outer, hk_shape *shape,
                           hk_error *err) {
  for (const hk_key *key = shape->family->keys; key->kind != HK_KEY_END; key++) {
    const char *name = name_in(config, key);
    if (key->kind == HK_KEY_SIZE && !name) {
      shape->size[key->size] = key->fallback;
    } else if (key->kind == HK_KEY_SIZE) {
      HK_TRY(hk_json_int_or(config, name, LIMITS[key->size].least, LIMITS[key->size].most,
                            key->fallback, &shape->size[key->size], err));
    } else if (key->kind == HK_KEY_FLAG) {
      bool given = key->fallback != 0;
      /* What concerns a text part and its head may stand outside of it. */
      const cJSON *from = !member(config, name) && outer && member(outer, name) ? outer : config;
      HK_TRY(hk_json_bool_or(from, name, given, &given, err));
      if (given) shape->flags |= key->flag;
    }
  }
  if (shape->family == hk_family_of(HK_ARCH_T5)) HK_TRY(read_feed_forward(config, shape, err));
  if (shape->family == hk_family_of(HK_ARCH_OPT)) HK_TRY(read_norm_order(config, shape, err));
  if (shape->flags & (HK_SCORE | HK_ONCE)) HK_TRY(read_labels(config, shape, err));
  if (shape->flags & HK_BODY) shape->flags &= ~HK_TIED;
  return HK_OK;
}

/* -- Sizes that follow ------------------------------------------------------------------------ */

static hk_status derive_heads(hk_shape *shape, hk_error *err) {
  int64_t *size = shape->size;
  const hk_family *family = shape->family;
  if (size[HK_KV_HEADS] == 0) size[HK_KV_HEADS] = size[HK_HEADS];
  if (family == hk_family_of(HK_ARCH_FALCON) && !(shape->flags & HK_NEW_DECODER))
    size[HK_KV_HEADS] = shape->flags & HK_MULTI_QUERY ? 1 : size[HK_HEADS];
  if (size[HK_HEADS] < 1 || size[HK_KV_HEADS] < 1 || size[HK_HEADS] % size[HK_KV_HEADS] != 0)
    return hk_fail(err, HK_INPUT, "key '%s': expected a divisor of '%s' (%lld), got %lld",
                   key_of(family, HK_KV_HEADS), key_of(family, HK_HEADS), (long long)size[HK_HEADS],
                   (long long)size[HK_KV_HEADS]);
  if (shape->flags & HK_LATENT || size[HK_HEAD_DIM] > 0) return HK_OK;
  if (size[HK_HIDDEN] % size[HK_HEADS] != 0)
    return hk_fail(err, HK_INPUT, "keys '%s' and '%s': %lld is not a multiple of %lld heads%s",
                   key_of(family, HK_HIDDEN), key_of(family, HK_HEADS), (long long)size[HK_HIDDEN],
                   (long long)size[HK_HEADS],
                   key_of(family, HK_HEAD_DIM) ? "; or give 'head_dim'" : "");
  size[HK_HEAD_DIM] = size[HK_HIDDEN] / size[HK_HEADS];
  return HK_OK;
}

static void derive_attention(hk_shape *shape) {
  int64_t *size = shape->size;
  if (shape->flags & HK_LATENT) {
    size[HK_HEAD_DIM] = size[HK_NOPE_DIM] + size[HK_ROPE_DIM];
    if (size[HK_Q_RANK] > 0) shape->flags |= HK_Q_LORA;
  } else {
    size[HK_V_DIM] = size[HK_HEAD_DIM];
  }
  size[HK_Q] = size[HK_HEADS] * size[HK_HEAD_DIM];
  size[HK_K] = size[HK_KV_HEADS] * size[HK_HEAD_DIM];
  size[HK_V] = size[HK_KV_HEADS] * size[HK_V_DIM];
  size[HK_O] = size[HK_HEADS] * size[HK_V_DIM];
  size[HK_QKV] = size[HK_Q] + size[HK_K] + size[HK_V];
  size[HK_KV_A] = size[HK_KV_RANK] + size[HK_ROPE_DIM];
  size[HK_INDEX_Q] = size[HK_INDEX_HEADS] * size[HK_INDEX_DIM];
  size[HK_KV_B] = size[HK_HEADS] * (size[HK_NOPE_DIM] + size[HK_V_DIM]);
}

static hk_status derive_experts(hk_shape *shape, hk_error *err) {
  int64_t *size = shape->size;
  if (size[HK_CHOSEN] > size[HK_EXPERTS])
    return hk_fail(err, HK_INPUT, "key '%s': a token is sent to %lld of %lld experts",
                   key_of(shape->family, HK_CHOSEN), (long long)size[HK_CHOSEN],
                   (long long)size[HK_EXPERTS]);
  if (size[HK_EXPERT_FFN] == 0) size[HK_EXPERT_FFN] = size[HK_FFN];
  if (size[HK_SHARED] > 0) size[HK_SHARED_FFN] = size[HK_SHARED] * size[HK_EXPERT_FFN];
  if (size[HK_SHARED_FFN] > LIMITS[HK_FFN].most)
    return hk_fail(err, HK_INPUT, "key '%s': shared experts of %lld in all are too wide",
                   key_of(shape->family, HK_SHARED), (long long)size[HK_SHARED_FFN]);
  size[HK_EXPERT_GATE_UP] = 2 * size[HK_EXPERT_FFN];
  if (size[HK_SPARSE_STEP] == 0) size[HK_SPARSE_STEP] = 1;
  return HK_OK;
}

static hk_status derive_image(hk_shape *shape, hk_error *err) {
  int64_t *size = shape->size;
  if (size[HK_PATCH] == 0) return HK_OK;
  if (size[HK_IMAGE] % size[HK_PATCH] != 0)
    return hk_fail(err, HK_INPUT, "keys '%s' and '%s': %lld pixels are not a multiple of %lld",
                   key_of(shape->family, HK_IMAGE), key_of(shape->family, HK_PATCH),
                   (long long)size[HK_IMAGE], (long long)size[HK_PATCH]);
  const int64_t side = size[HK_IMAGE] / size[HK_PATCH];
  size[HK_POSITIONS] = side * side + 1; /* and one of the class */
  size[HK_PATCH_VALUES] = size[HK_CHANNELS] * size[HK_PATCH] * size[HK_PATCH];
  return HK_OK;
}

/* What the three other derivations leave: rows of tables, and widths that are the hidden one. */
static void derive_tables(hk_shape *shape) {
  const hk_family *family = shape->family;
  int64_t *size = shape->size;
  size[HK_ONE] = 1;
  if (size[HK_FFN] == 0) size[HK_FFN] = 4 * size[HK_HIDDEN];
  size[HK_GATE_UP] = 2 * size[HK_FFN];
  size[HK_EMBED_ROWS] = size[HK_VOCAB] + (family == hk_family_of(HK_ARCH_MLLAMA) ? 8 : 0);
  size[HK_POSITION_ROWS] = size[HK_POSITIONS] + (family == hk_family_of(HK_ARCH_OPT) ? 2 : 0);
  if (size[HK_EMBED_DIM] == 0) size[HK_EMBED_DIM] = size[HK_HIDDEN];
  if (size[HK_EMBED_DIM] != size[HK_HIDDEN]) shape->flags |= HK_PROJECTED;
  if (shape->flags & HK_ENCODER)
    size[HK_DECODER_LAYERS] = 0;
  else if (family->decoder_layers && size[HK_DECODER_LAYERS] == 0)
    size[HK_DECODER_LAYERS] = size[HK_LAYERS];
  if (size[HK_PARALLEL_NORMS] == 0) size[HK_PARALLEL_NORMS] = shape->flags & HK_NEW_DECODER ? 2 : 1;
  if (shape->flags & HK_PARALLEL && size[HK_PARALLEL_NORMS] == 2) shape->flags |= HK_TWO_NORMS;
}

hk_status hk_shape_read(const cJSON *config, const cJSON *outer, const hk_family *family,
                        uint64_t part, hk_shape *shape, hk_error *err) {
  *shape = (hk_shape){.family = family, .flags = family->flags | part | HK_ALWAYS};
  HK_TRY(check_missing(config, family, err));
  HK_TRY(read_keys(config, outer, shape, err));
  derive_tables(shape);
  HK_TRY(derive_heads(shape, err));
  derive_attention(shape);
  if (shape->size[HK_EXPERTS] > 0) HK_TRY(derive_experts(shape, err));
  return derive_image(shape, err);
}

/* -- Layers that differ ----------------------------------------------------------------------- */

static bool has_list(const hk_family *family, const char *name) {
  for (const hk_key *key = family->keys; key->kind != HK_KEY_END; key++)
    if (key->kind == HK_KEY_LIST && strcmp(key->name, name) == 0) return true;
  return false;
}

static bool contains(const cJSON *list, int64_t number) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(
      item, list) if (cJSON_IsNumber(item) && item->valuedouble == (double)number) return true;
  return false;
}

static bool is_windowed(const hk_shape *shape, const cJSON *types, int64_t i) {
  const int64_t *size = shape->size;
  if (size[HK_WINDOW] == 0) return false;
  if (types) {
    const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(types, (int)i));
    return type && strcmp(type, "sliding_attention") == 0;
  }
  for (const hk_key *key = shape->family->keys; key->kind != HK_KEY_END; key++)
    if (key->flag == HK_HAS_WINDOW && !(shape->flags & HK_HAS_WINDOW)) return false;
  if (size[HK_WINDOW_EVERY] > 0 && (i + 1) % size[HK_WINDOW_EVERY] == 0) return false;
  return i >= size[HK_WINDOW_FROM];
}

static bool is_sparse(const hk_shape *shape, const cJSON *dense, int64_t i) {
  const int64_t *size = shape->size;
  return size[HK_EXPERTS] > 0 && i >= size[HK_FIRST_DENSE] && (i + 1) % size[HK_SPARSE_STEP] == 0 &&
         !contains(dense, i);
}

uint64_t hk_shape_layer_flags(const hk_shape *shape, const hk_lists *lists, int64_t i) {
  uint64_t flags = shape->flags;
  if (is_windowed(shape, lists->layer_types, i)) flags |= HK_WINDOWED;
  if (is_sparse(shape, lists->dense, i)) flags |= HK_SPARSE;
  if (shape->family == hk_family_of(HK_ARCH_MLLAMA)) {
    const bool cross = lists->cross ? contains(lists->cross, i) : i % 5 == 3;
    if (cross) flags |= HK_CROSS;
  }
  if (shape->family->decoder_layers) {
    const int64_t encoder = shape->size[HK_LAYERS];
    if (i >= encoder) flags |= HK_DECODER;
    if (i == 0 || i == encoder) flags |= HK_FIRST;
    if (i == encoder - 1) flags |= HK_LAST_ENCODER;
  }
  return flags;
}

static hk_status read_list(const cJSON *config, const hk_family *family, const char *key,
                           bool texts, const cJSON **list, hk_error *err) {
  *list = has_list(family, key) ? member(config, key) : NULL;
  if (!*list) return HK_OK;
  bool ok = cJSON_IsArray(*list);
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, *list) ok = ok && (texts ? cJSON_IsString(item) : cJSON_IsNumber(item));
  if (ok) return HK_OK;
  return hk_fail(err, HK_INPUT, "key '%s': expected a list of %s", key,
                 texts ? "strings, one for each layer" : "numbers of layers");
}

hk_status hk_shape_read_lists(const cJSON *config, const hk_shape *shape, hk_lists *lists,
                              hk_error *err) {
  const hk_family *family = shape->family;
  HK_TRY(read_list(config, family, "layer_types", true, &lists->layer_types, err));
  HK_TRY(read_list(config, family, "mlp_only_layers", false, &lists->dense, err));
  HK_TRY(read_list(config, family, "cross_attention_layers", false, &lists->cross, err));
  if (lists->layer_types && cJSON_GetArraySize(lists->layer_types) != shape->size[HK_LAYERS])
    return hk_fail(err, HK_INPUT, "key 'layer_types': %d entries for %lld layers",
                   cJSON_GetArraySize(lists->layer_types), (long long)shape->size[HK_LAYERS]);
  return HK_OK;
}

/* -- Keys that nobody reads ------------------------------------------------------------------- */

/* Keys that change neither shape nor cost, by the end, the beginning or the whole of their names.
 */
static const char *const HARMLESS_ENDS[] = {
    "_token_id",    "_token_ids", "_token_index", "_dropout",        "_dropout_prob", "_pdrop",
    "_eps",         "_epsilon",   "_range",       "_loss_coef",      "_alpha",        "_limit",
    "_softcapping", "_theta",     "_scaling",     "_scaling_factor", "_act",          "_activation",
    "_prob",        "_noise",     "_std",         "_factor"};
static const char *const HARMLESS_BEGINS[] = {
    "rope_", "rotary_",   "summary_", "output_",     "dropout", "task_specific",  "bos_",   "eos_",
    "pad_",  "use_cache", "_",        "initializer", "scale_",  "partial_rotary", "hocket_"};
static const char *const HARMLESS[] = {"architectures",
                                       "model_type",
                                       "torch_dtype",
                                       "dtype",
                                       "transformers_version",
                                       "auto_map",
                                       "activation_function",
                                       "activation",
                                       "alibi",
                                       "apply_residual_connection_post_layernorm",
                                       "attention_softmax_in_fp32",
                                       "attn_implementation",
                                       "aux_loss_alpha",
                                       "attention_bias_scale",
                                       "bad_words_ids",
                                       "begin_suppress_tokens",
                                       "cache_implementation",
                                       "classifier_dropout",
                                       "encoder_stride",
                                       "ep_size",
                                       "experts_per_token",
                                       "finetuning_task",
                                       "final_logit_softcapping",
                                       "gradient_checkpointing",
                                       "hidden_activation",
                                       "id2label",
                                       "init_std",
                                       "initial_context_length",
                                       "is_decoder",
                                       "is_encoder_decoder",
                                       "label2id",
                                       "layerdrop",
                                       "masked_softmax_fusion",
                                       "n_ctx",
                                       "n_group",
                                       "n_positions",
                                       "norm_topk_prob",
                                       "num_labels",
                                       "offset_alibi",
                                       "original_max_position_embeddings",
                                       "prefix",
                                       "pretraining_tp",
                                       "problem_type",
                                       "quantization_config",
                                       "query_pre_attn_scalar",
                                       "relative_attention_max_distance",
                                       "return_dict",
                                       "pooler_output_size",
                                       "reorder_and_upcast_attn",
                                       "reset_attention_mask",
                                       "reset_position_ids",
                                       "routed_scaling_factor",
                                       "router_aux_loss_coef",
                                       "scoring_func",
                                       "seq_aux",
                                       "skip_bias_add",
                                       "skip_bias_add_qkv",
                                       "slow_but_exact",
                                       "tie_word_embeddings",
                                       "tokenizer_class",
                                       "topk_group",
                                       "topk_method",
                                       "unk_token_id",
                                       "use_bidirectional_attention",
                                       "use_bfloat16",
                                       "use_mrope"};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool is_harmless(const char *name) {
  const size_t length = strlen(name);
  for (size_t i = 0; i < COUNT(HARMLESS); i++)
    if (strcmp(name, HARMLESS[i]) == 0) return true;
  for (size_t i = 0; i < COUNT(HARMLESS_BEGINS); i++)
    if (strncmp(name, HARMLESS_BEGINS[i], strlen(HARMLESS_BEGINS[i])) == 0) return true;
  for (size_t i = 0; i < COUNT(HARMLESS_ENDS); i++) {
    const size_t n = strlen(HARMLESS_ENDS[i]);
    if (length >= n && strcmp(name + length - n, HARMLESS_ENDS[i]) == 0) return true;
  }
  return false;
}

/* Whether a key of the family reads it. */
static bool is_read(const cJSON *item, const hk_family *family) {
  for (const hk_key *key = family->keys; key->kind != HK_KEY_END; key++) {
    if (!key->name) continue;
    const bool same = strcmp(key->name, item->string) == 0 ||
                      (key->alias && strcmp(key->alias, item->string) == 0);
    if (!same) continue;
    if (key->kind != HK_KEY_FIXED) return true;
    const double value = cJSON_IsTrue(item) ? 1 : cJSON_IsNumber(item) ? item->valuedouble : 0;
    return value == (double)key->fallback;
  }
  return false;
}

/* Whether it switches something on: not null, not false, not empty. */
static bool says_something(const cJSON *item) {
  return !cJSON_IsNull(item) && !cJSON_IsFalse(item) && !cJSON_IsString(item) &&
         !(cJSON_IsArray(item) && cJSON_GetArraySize(item) == 0) &&
         !(cJSON_IsNumber(item) && item->valuedouble == 0);
}

#define MOST_KEYS 40

/* The key that `unused` may be meant to be: near in spelling, and not in `config`. */
static const char *meant(const cJSON *config, const hk_family *family, const char *unused) {
  const char *names[MOST_KEYS];
  size_t n = 0;
  for (const hk_key *key = family->keys; key->kind != HK_KEY_END && n < MOST_KEYS; key++)
    if (key->name && !member(config, name_in(config, key))) names[n++] = key->name;
  return n > 0 ? hk_nearest(unused, names, n) : NULL;
}

hk_status hk_shape_note_unused(const cJSON *config, const hk_family *family, hk_model *model,
                               hk_error *err) {
  char names[300] = "";
  size_t used = 0;
  int n = 0, left_out = 0;
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, config) {
    if (!says_something(item) || is_read(item, family) || is_harmless(item->string)) continue;
    const char *key = meant(config, family, item->string);
    const size_t needed = strlen(item->string) + 2 + (key ? strlen(key) + 16 : 0);
    if (used + needed >= sizeof names) {
      left_out++;
      continue;
    }
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", n++ > 0 ? ", " : "",
                             item->string);
    if (key) used += (size_t)snprintf(names + used, sizeof names - used, " (is it %s?)", key);
  }
  if (n + left_out == 0) return HK_OK;
  char more[40] = "";
  if (left_out > 0) snprintf(more, sizeof more, " and %d more", left_out);
  return hk_model_note(model, err, "not used: %s%s", names, more);
}
