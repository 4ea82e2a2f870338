/* SPDX-License-Identifier: Apache-2.0 */
/* Listed models: tensors and blocks of any size, from a document or from arrays. A model keeps its
 * document, because plan files contain it; a model from arrays gets a generated document. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/model/model.h"

#define SCHEMA "hocket.model/1"

#define MOST_BLOCKS     100000
#define MOST_TENSORS    (1 << 20)
#define MOST_NUMEL      (1LL << 52)
#define MOST_FLOPS      1e30
#define MOST_BYTES      (1LL << 50)
#define MOST_BLOCK_MS   1e9
#define LEAST_SHARE     1e-2
#define MOST_THREADS    (1 << 16)
#define MOST_MICROBATCH (1LL << 20)
#define MOST_SEQ        (1LL << 24)

const char *const hk_dtype_names[HK_DTYPE_COUNT] = {"bf16", "fp16", "fp32"};

bool hk_model_is_document(const cJSON *config) {
  const cJSON *schema = cJSON_GetObjectItemCaseSensitive(config, "schema");
  return cJSON_IsString(schema) && strncmp(schema->valuestring, "hocket.model/", 13) == 0;
}

/* -- Putting a listed model together ---------------------------------------------------------- */

static hk_status make_room(hk_model *model, size_t tensors, size_t blocks, hk_error *err) {
  model->arch = HK_ARCH_LISTED;
  model->layers = (int64_t)blocks - 2;
  model->tensors = calloc(tensors, sizeof *model->tensors);
  model->blocks = calloc(blocks, sizeof *model->blocks);
  if (model->tensors != NULL && model->blocks != NULL) return HK_OK;
  hk_fail_memory(err, tensors * sizeof *model->tensors + blocks * sizeof *model->blocks,
                 "the tensor list");
  return HK_ENVIRONMENT;
}

/* Appends *tensor, whose block counts from 0. */
static hk_status append(hk_model *model, hk_tensor *tensor, hk_error *err) {
  const int blocks = (int)model->layers + 2, block = tensor->block;
  const int least =
      model->n_tensors > 0 ? model->tensors[model->n_tensors - 1].block - HK_BLOCK_EMBED : 0;
  if (block < least || block >= blocks)
    return hk_fail(err, HK_INPUT,
                   "block %d: expected %d to %d, since tensors come in the order of their blocks",
                   block, least, blocks - 1);
  if (tensor->numel < 1 || tensor->numel > MOST_NUMEL - model->parameters)
    return hk_fail(err, HK_INPUT,
                   "numel %lld: expected at least 1, and fewer than 2^52 parameters in all",
                   (long long)tensor->numel);
  tensor->block = block + HK_BLOCK_EMBED;
  tensor->tp = HK_TP_REPLICATED;
  model->parameters += tensor->numel;
  model->mixed_types = model->mixed_types || hk_dtype_bytes(tensor->weight_type) != 2 ||
                       hk_dtype_bytes(tensor->grad_type) != 2;
  model->tensors[model->n_tensors++] = *tensor;
  return HK_OK;
}

static void find_tensors_of_blocks(hk_model *model) {
  size_t at = 0;
  int64_t begin = 0;
  for (int b = 0; b < (int)model->layers + 2; b++) {
    hk_block *block = &model->blocks[b];
    block->first_tensor = at;
    block->begin = begin;
    for (; at < model->n_tensors && model->tensors[at].block == b + HK_BLOCK_EMBED; at++)
      begin += model->tensors[at].numel;
    block->end_tensor = at;
    block->numel = begin - block->begin;
  }
  model->active = model->parameters;
}

/* -- From a document -------------------------------------------------------------------------- */

static hk_status read_type(const cJSON *object, const char *key, hk_dtype *type, hk_error *err) {
  *type = HK_DTYPE_BF16;
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(object, key);
  if (given == NULL || cJSON_IsNull(given)) return HK_OK;
  const char *text = NULL;
  HK_TRY(hk_json_string(object, key, &text, err));
  for (int i = 0; i < HK_DTYPE_COUNT; i++) {
    if (strcmp(text, hk_dtype_names[i]) != 0) continue;
    *type = (hk_dtype)i;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "key '%s': expected \"bf16\", \"fp16\" or \"fp32\", got \"%s\"",
                 key, text);
}

static hk_status read_block(const cJSON *item, hk_block *block, hk_error *err) {
  if (!cJSON_IsObject(item)) return hk_fail(err, HK_INPUT, "expected an object");
  HK_TRY(hk_json_text(item, "name", 0, block->name, sizeof block->name, err));
  HK_TRY(hk_json_double(item, "forward_flops", 0, MOST_FLOPS, &block->forward_flops, err));
  HK_TRY(hk_json_double_or(item, "backward_flops", 0, MOST_FLOPS, 0, &block->backward_flops, err));
  HK_TRY(hk_json_int(item, "activation_bytes", 0, MOST_BYTES, &block->activations, err));
  HK_TRY(hk_json_int(item, "workspace_bytes", 0, MOST_BYTES, &block->workspace, err));
  HK_TRY(hk_json_int_or(item, "frozen_bytes", 0, MOST_BYTES, 0, &block->frozen_bytes, err));
  HK_TRY(hk_json_double_or(item, "forward_ms", 0, MOST_BLOCK_MS, 0, &block->forward_ms, err));
  HK_TRY(hk_json_double_or(item, "backward_ms", 0, MOST_BLOCK_MS, 0, &block->backward_ms, err));
  HK_TRY(hk_json_double_or(item, "forward_launch_ms", 0, MOST_BLOCK_MS, 0,
                           &block->forward_launch_ms, err));
  return hk_json_double_or(item, "backward_launch_ms", 0, MOST_BLOCK_MS, 0,
                           &block->backward_launch_ms, err);
}

static hk_status read_tensor(const cJSON *item, hk_model *model, hk_error *err) {
  hk_tensor tensor = {0};
  int64_t block = 0;
  if (!cJSON_IsObject(item)) return hk_fail(err, HK_INPUT, "expected an object");
  HK_TRY(hk_json_text(item, "name", 0, tensor.name, sizeof tensor.name, err));
  HK_TRY(hk_json_int(item, "numel", 1, MOST_NUMEL, &tensor.numel, err));
  HK_TRY(hk_json_int(item, "block", 0, MOST_BLOCKS, &block, err));
  HK_TRY(read_type(item, "weight_type", &tensor.weight_type, err));
  HK_TRY(read_type(item, "grad_type", &tensor.grad_type, err));
  tensor.block = (int)block;
  return append(model, &tensor, err);
}

static hk_status read_list(const cJSON *document, const char *key, int most, const cJSON **list,
                           hk_error *err) {
  HK_TRY(hk_json_array(document, key, list, err));
  const int n = cJSON_GetArraySize(*list);
  if (n >= 1 && n <= most) return HK_OK;
  return hk_fail(err, HK_INPUT, "key '%s': expected 1 to %d entries, got %d", key, most, n);
}

static hk_status read_share(const cJSON *item, hk_launch_shares *shares, hk_error *err) {
  const int least = shares->n > 0 ? shares->threads[shares->n - 1] + 1 : 1;
  int64_t threads;
  if (!cJSON_IsObject(item)) return hk_fail(err, HK_INPUT, "expected an object");
  HK_TRY(hk_json_int(item, "threads", least, MOST_THREADS, &threads, err));
  HK_TRY(hk_json_double(item, "share", LEAST_SHARE, 1, &shares->share[shares->n], err));
  shares->threads[shares->n++] = (int)threads;
  return HK_OK;
}

/* One number is of a team of unknown size. */
static hk_status read_shares(const cJSON *document, hk_launch_shares *shares, hk_error *err) {
  static const char key[] = "launch_beside_update";
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(document, key), *item = NULL;
  if (!cJSON_IsArray(given)) {
    HK_TRY(hk_json_double_or(document, key, LEAST_SHARE, 1, 0, &shares->share[0], err));
    shares->n = shares->share[0] > 0;
    return HK_OK;
  }
  HK_TRY(read_list(document, key, HK_MOST_LAUNCH_SHARES, &given, err));
  cJSON_ArrayForEach(item, given) {
    if (read_share(item, shares, err) != HK_OK)
      return hk_fail_prefix(err, "%s[%d]", key, shares->n);
  }
  return HK_OK;
}

double hk_launch_share(const hk_launch_shares *shares, int threads) {
  int i = 0;
  if (shares->n == 0) return 0;
  while (i < shares->n && shares->threads[i] < threads) i++;
  if (i == 0 || i == shares->n) return shares->share[i == 0 ? 0 : i - 1];
  const double from = shares->threads[i - 1], to = shares->threads[i];
  const double t = (threads - from) / (to - from);
  return (1 - t) * shares->share[i - 1] + t * shares->share[i];
}

static hk_status read_document(const cJSON *document, const char *name, hk_model *model,
                               hk_error *err) {
  const char *schema = NULL;
  const cJSON *blocks = NULL, *tensors = NULL, *item = NULL;
  HK_TRY(hk_json_string(document, "schema", &schema, err));
  if (strcmp(schema, SCHEMA) != 0)
    return hk_fail(err, HK_INPUT, "schema is '%s', but this hocket reads models of '%s'", schema,
                   SCHEMA);
  snprintf(model->name, sizeof model->name, "%s", name);
  if (cJSON_GetObjectItemCaseSensitive(document, "name") != NULL)
    HK_TRY(hk_json_text(document, "name", 0, model->name, sizeof model->name, err));
  HK_TRY(hk_json_int_or(document, "micro_batch", 1, MOST_MICROBATCH, 1, &model->micro_batch, err));
  HK_TRY(hk_json_int_or(document, "seq", 1, MOST_SEQ, 1, &model->seq, err));
  HK_TRY(read_shares(document, &model->launch_beside_update, err));
  HK_TRY(read_list(document, "blocks", MOST_BLOCKS, &blocks, err));
  HK_TRY(read_list(document, "tensors", MOST_TENSORS, &tensors, err));
  HK_TRY(make_room(model, (size_t)cJSON_GetArraySize(tensors), (size_t)cJSON_GetArraySize(blocks),
                   err));
  size_t i = 0;
  cJSON_ArrayForEach(item, blocks) {
    if (read_block(item, &model->blocks[i], err) != HK_OK)
      return hk_fail_prefix(err, "blocks[%zu]", i);
    i++;
  }
  i = 0;
  cJSON_ArrayForEach(item, tensors) {
    if (read_tensor(item, model, err) != HK_OK) return hk_fail_prefix(err, "tensors[%zu]", i);
    i++;
  }
  find_tensors_of_blocks(model);
  model->config = cJSON_Duplicate(document, true);
  if (!model->config) return hk_fail_memory(err, sizeof(cJSON), "a copy of the document");
  return hk_model_own(model, err);
}

hk_status hk_model_from_document(const cJSON *document, const char *name, hk_model *model,
                                 hk_error *err) {
  *model = (hk_model){0};
  const hk_status status = read_document(document, name, model, err);
  if (status != HK_OK) hk_model_free(model);
  return status;
}

/* -- From arrays ------------------------------------------------------------------------------ */

static bool add_block(cJSON *blocks, int index) {
  char name[24];
  snprintf(name, sizeof name, "block %d", index);
  cJSON *item = cJSON_CreateObject();
  if (item == NULL || !cJSON_AddItemToArray(blocks, item)) return false;
  return cJSON_AddStringToObject(item, "name", name) != NULL &&
         cJSON_AddNumberToObject(item, "forward_flops", 0) != NULL &&
         cJSON_AddNumberToObject(item, "activation_bytes", 0) != NULL &&
         cJSON_AddNumberToObject(item, "workspace_bytes", 0) != NULL;
}

static bool add_tensor(cJSON *tensors, const hk_tensor *tensor) {
  cJSON *item = cJSON_CreateObject();
  if (item == NULL || !cJSON_AddItemToArray(tensors, item)) return false;
  return cJSON_AddStringToObject(item, "name", tensor->name) != NULL &&
         cJSON_AddNumberToObject(item, "numel", (double)tensor->numel) != NULL &&
         cJSON_AddNumberToObject(item, "block", tensor->block) != NULL &&
         cJSON_AddStringToObject(item, "weight_type", hk_dtype_names[tensor->weight_type]) !=
             NULL &&
         cJSON_AddStringToObject(item, "grad_type", hk_dtype_names[tensor->grad_type]) != NULL;
}

static cJSON *document_of(const char *name, const hk_tensor *tensors, size_t n, int blocks) {
  cJSON *root = cJSON_CreateObject();
  bool ok = cJSON_AddStringToObject(root, "schema", SCHEMA) != NULL &&
            cJSON_AddStringToObject(root, "name", name) != NULL;
  cJSON *list = cJSON_AddArrayToObject(root, "blocks");
  for (int b = 0; b < blocks && ok; b++) ok = list != NULL && add_block(list, b);
  list = cJSON_AddArrayToObject(root, "tensors");
  for (size_t i = 0; i < n && ok; i++) ok = list != NULL && add_tensor(list, &tensors[i]);
  if (ok && list != NULL) return root;
  cJSON_Delete(root);
  return NULL;
}

hk_status hk_model_from_tensors(const char *name, const hk_tensor *tensors, size_t n, int blocks,
                                hk_model *model, hk_error *err) {
  *model = (hk_model){0};
  if (n < 1 || n > MOST_TENSORS || blocks < 1 || blocks > MOST_BLOCKS)
    return hk_fail(err, HK_INPUT,
                   "%zu tensors in %d blocks: expected 1 to %d tensors in 1 to %d blocks", n,
                   blocks, MOST_TENSORS, MOST_BLOCKS);
  cJSON *document = document_of(name, tensors, n, blocks);
  if (document == NULL) return hk_fail_memory(err, n * sizeof *tensors, "a model document");
  const hk_status status = hk_model_from_document(document, name, model, err);
  cJSON_Delete(document);
  return status;
}
