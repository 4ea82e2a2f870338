/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a model's shape from a Hugging Face config.json. Absent keys get the defaults of the
 * configuration class in `transformers` that belongs to the architecture. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/json.h"
#include "core/model.h"
#include "core/names.h"

/* Far above any existing model, and low enough that no product of two of them overflows. */
#define MAX_LAYERS    10000
#define MAX_HIDDEN    (1LL << 20)
#define MAX_FFN       (1LL << 22)
#define MAX_HEADS     (1LL << 14)
#define MAX_HEAD_DIM  (1LL << 14)
#define MAX_VOCAB     (1LL << 26)
#define MAX_POSITIONS (1LL << 30)

static const char *const ARCH_NAMES[] = {
    [HK_ARCH_LLAMA] = "LlamaForCausalLM", [HK_ARCH_MISTRAL] = "MistralForCausalLM",
    [HK_ARCH_QWEN2] = "Qwen2ForCausalLM", [HK_ARCH_QWEN3] = "Qwen3ForCausalLM",
    [HK_ARCH_GPT2] = "GPT2LMHeadModel",   [HK_ARCH_LISTED] = "listed",
};
#define N_ARCHS HK_ARCH_LISTED /* that a config.json can name */

const char *hk_arch_name(hk_arch arch) {
  return ARCH_NAMES[arch];
}

static hk_status read_arch(const cJSON *config, hk_arch *arch, hk_error *err) {
  const cJSON *list = NULL;
  HK_TRY(hk_json_array(config, "architectures", &list, err));
  const cJSON *first = cJSON_GetArrayItem(list, 0);
  if (!cJSON_IsString(first))
    return hk_fail(err, HK_INPUT,
                   "key 'architectures': expected the name of an architecture in the list, such "
                   "as [\"LlamaForCausalLM\"]");
  for (size_t i = 0; i < N_ARCHS; i++) {
    if (strcmp(first->valuestring, ARCH_NAMES[i]) != 0) continue;
    *arch = (hk_arch)i;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "key 'architectures': \"%s\" is not supported; expected one of %s, %s, %s, %s, %s",
                 first->valuestring, ARCH_NAMES[0], ARCH_NAMES[1], ARCH_NAMES[2], ARCH_NAMES[3],
                 ARCH_NAMES[4]);
}

/* "hocket_layout" is ours: config.json does not say how a training framework stores a model. */
static hk_status read_layout(const cJSON *config, hk_model *model, hk_error *err) {
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(config, "hocket_layout");
  model->layout = HK_LAYOUT_HF;
  if (!given || cJSON_IsNull(given)) return HK_OK;
  const char *layout = NULL;
  HK_TRY(hk_json_string(config, "hocket_layout", &layout, err));
  if (strcmp(layout, "huggingface") == 0) return HK_OK;
  if (strcmp(layout, "megatron") != 0)
    return hk_fail(err, HK_INPUT,
                   "key 'hocket_layout': expected \"huggingface\" or \"megatron\", got \"%s\"",
                   layout);
  if (model->arch != HK_ARCH_LLAMA || model->qkv_bias || model->mlp_bias)
    return hk_fail(err, HK_INPUT,
                   "key 'hocket_layout': \"megatron\" is known for LlamaForCausalLM without "
                   "biases only; this is %s%s",
                   hk_arch_name(model->arch),
                   model->qkv_bias || model->mlp_bias ? " with biases" : "");
  model->layout = HK_LAYOUT_MEGATRON;
  return HK_OK;
}

/* Sets the size of a head to hidden / heads, which must be a whole number. */
static hk_status derive_head_dim(hk_model *model, const char *hidden_key, const char *heads_key,
                                 const char *remedy, hk_error *err) {
  if (model->hidden % model->heads != 0)
    return hk_fail(err, HK_INPUT, "keys '%s' and '%s': %lld is not a multiple of %lld heads%s",
                   hidden_key, heads_key, (long long)model->hidden, (long long)model->heads,
                   remedy);
  model->head_dim = model->hidden / model->heads;
  return HK_OK;
}

static hk_status read_llama_heads(const cJSON *config, hk_model *model, hk_error *err) {
  HK_TRY(hk_json_int(config, "num_attention_heads", 1, MAX_HEADS, &model->heads, err));
  HK_TRY(hk_json_int_or(config, "num_key_value_heads", 1, MAX_HEADS, model->heads, &model->kv_heads,
                        err));
  if (model->heads % model->kv_heads != 0)
    return hk_fail(err, HK_INPUT,
                   "key 'num_key_value_heads': expected a divisor of 'num_attention_heads' (%lld), "
                   "got %lld",
                   (long long)model->heads, (long long)model->kv_heads);
  /* Qwen3Config alone has a fixed default; the others divide (absent is 0 here). */
  const int64_t fallback = model->arch == HK_ARCH_QWEN3 ? 128 : 0;
  HK_TRY(hk_json_int_or(config, "head_dim", 1, MAX_HEAD_DIM, fallback, &model->head_dim, err));
  if (model->head_dim > 0) return HK_OK;
  return derive_head_dim(model, "hidden_size", "num_attention_heads", "; or give 'head_dim'", err);
}

/* Biases: Mistral has none, Qwen2 always has those of q, k and v. */
static hk_status read_llama_biases(const cJSON *config, hk_model *model, hk_error *err) {
  if (model->arch == HK_ARCH_LLAMA || model->arch == HK_ARCH_QWEN3) {
    HK_TRY(hk_json_bool_or(config, "attention_bias", false, &model->qkv_bias, err));
    model->o_bias = model->qkv_bias;
  }
  if (model->arch == HK_ARCH_LLAMA)
    HK_TRY(hk_json_bool_or(config, "mlp_bias", false, &model->mlp_bias, err));
  if (model->arch == HK_ARCH_QWEN2) model->qkv_bias = true;
  return HK_OK;
}

static hk_status read_llama(const cJSON *config, hk_model *model, hk_error *err) {
  HK_TRY(hk_json_int(config, "num_hidden_layers", 1, MAX_LAYERS, &model->layers, err));
  HK_TRY(hk_json_int(config, "hidden_size", 1, MAX_HIDDEN, &model->hidden, err));
  HK_TRY(hk_json_int(config, "intermediate_size", 1, MAX_FFN, &model->ffn, err));
  HK_TRY(hk_json_int(config, "vocab_size", 1, MAX_VOCAB, &model->vocab, err));
  HK_TRY(read_llama_heads(config, model, err));
  HK_TRY(hk_json_int_or(config, "max_position_embeddings", 1, MAX_POSITIONS, 0,
                        &model->max_positions, err));
  HK_TRY(hk_json_bool_or(config, "tie_word_embeddings", false, &model->tied, err));
  model->gated = true;
  return read_llama_biases(config, model, err);
}

static hk_status read_gpt2(const cJSON *config, hk_model *model, hk_error *err) {
  HK_TRY(hk_json_int(config, "n_layer", 1, MAX_LAYERS, &model->layers, err));
  HK_TRY(hk_json_int(config, "n_embd", 1, MAX_HIDDEN, &model->hidden, err));
  HK_TRY(hk_json_int(config, "n_head", 1, MAX_HEADS, &model->heads, err));
  HK_TRY(hk_json_int_or(config, "n_inner", 1, MAX_FFN, 4 * model->hidden, &model->ffn, err));
  HK_TRY(hk_json_int(config, "vocab_size", 1, MAX_VOCAB, &model->vocab, err));
  HK_TRY(hk_json_int(config, "n_positions", 1, MAX_POSITIONS, &model->max_positions, err));
  HK_TRY(hk_json_bool_or(config, "tie_word_embeddings", true, &model->tied, err));
  model->kv_heads = model->heads;
  model->qkv_bias = model->o_bias = model->mlp_bias = true;
  return derive_head_dim(model, "n_embd", "n_head", "", err);
}

static hk_status read_model(const cJSON *config, hk_model *model, hk_error *err) {
  if (!cJSON_IsObject(config))
    return hk_fail(err, HK_INPUT, "expected a JSON object with the keys of a config.json");
  HK_TRY(read_arch(config, &model->arch, err));
  HK_TRY(model->arch == HK_ARCH_GPT2 ? read_gpt2(config, model, err)
                                     : read_llama(config, model, err));
  HK_TRY(read_layout(config, model, err));
  HK_TRY(hk_model_build_tensors(model, err));
  model->config = cJSON_Duplicate(config, true);
  if (!model->config) return hk_fail_memory(err, sizeof(cJSON), "a copy of the configuration");
  return hk_model_own(model, err);
}

hk_status hk_model_from_config(const cJSON *config, const char *name, hk_model *model,
                               hk_error *err) {
  if (hk_model_is_document(config)) return hk_model_from_document(config, name, model, err);
  *model = (hk_model){0};
  snprintf(model->name, sizeof model->name, "%s", name);
  hk_status status = read_model(config, model, err);
  if (status != HK_OK) hk_model_free(model);
  return status;
}

/* "llama-2-7b" for .../llama-2-7b.json; the folder's name for .../llama-2-7b/config.json, which is
 * how a downloaded checkpoint looks. */
static void name_from_path(const char *path, char *name, size_t size) {
  const char *end = path + strlen(path);
  const char *base = strrchr(path, '/');
  base = base ? base + 1 : path;
  if (strcmp(base, "config.json") == 0 && base > path + 1 && base[-2] != '.') {
    end = base - 1;
    base = end;
    while (base > path && base[-1] != '/') base--;
  } else if (end - base > 5 && strcmp(end - 5, ".json") == 0) {
    end -= 5;
  }
  snprintf(name, size, "%.*s", (int)(end - base), base);
}

/* A folder, such as a downloaded checkpoint, stands for its config.json. */
static hk_status enter_folder(char *path, size_t size, hk_error *err) {
  static const char file[] = "/config.json";
  struct stat status;
  if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) return HK_OK;
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  if (length + sizeof file > size)
    return hk_fail(err, HK_INPUT, "the path of the model's folder is too long");
  memcpy(path + length, file, sizeof file);
  if (stat(path, &status) == 0) return HK_OK;
  path[length] = '\0';
  return hk_fail(err, HK_INPUT, "'%s' is a folder without a config.json", path);
}

hk_status hk_model_load(const char *name_or_file, hk_model *model, hk_error *err) {
  char path[4096], name[sizeof model->name];
  cJSON *config = NULL;
  *model = (hk_model){0};
  if (strcmp(name_or_file, ".") == 0 || strcmp(name_or_file, "..") == 0)
    snprintf(path, sizeof path, "%s", name_or_file);
  else
    HK_TRY(hk_share_resolve("models", name_or_file, path, sizeof path, err));
  HK_TRY(enter_folder(path, sizeof path, err));
  HK_TRY(hk_json_load(path, &config, err));
  name_from_path(path, name, sizeof name);
  hk_status status = hk_model_from_config(config, name, model, err);
  cJSON_Delete(config);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", path);
}
