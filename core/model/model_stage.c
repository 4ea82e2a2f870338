/* SPDX-License-Identifier: Apache-2.0 */
/* One stage of a pipeline: the model without the layers of the other stages. */
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/model/model.h"

#define KEY "hocket_stages" /* in the model's config */

static hk_status check(const hk_model *model, int64_t stages, hk_error *err) {
  const char *why = NULL;
  if (model->blocks != NULL)
    why = "it is a list of tensors with measured costs, which does not say how it is cut";
  else if (model->frozen != NULL)
    why = "a part of it is frozen";
  else if (model->arch == HK_ARCH_T5 && model->kinds[model->n_kinds - 1].cross)
    why = "it has an encoder and a decoder";
  if (why != NULL)
    return hk_fail(err, HK_INPUT, "pp %lld: %s is not cut into stages, because %s; use pp 1",
                   (long long)stages, model->name, why);
  if (stages <= model->layers) return HK_OK;
  return hk_fail(err, HK_INPUT, "pp %lld: %s has only %lld layers", (long long)stages, model->name,
                 (long long)model->layers);
}

/* Leaves the last `kept` layers, and of the head its costs. */
static void cut(hk_model *model, int64_t kept) {
  const int64_t gone = model->layers - kept;
  size_t *first = model->first_tensor;
  const size_t begin = first[1 + gone], shift = begin - first[1];
  const size_t end = first[1 + model->layers];
  memmove(&model->tensors[first[1]], &model->tensors[begin],
          (end - begin) * sizeof *model->tensors);
  model->n_tensors = end - shift;
  for (size_t i = first[1]; i < model->n_tensors; i++) model->tensors[i].block -= (int)gone;
  for (int64_t i = 1; i <= kept; i++) first[i] = first[i + gone] - shift;
  first[kept + 1] = first[kept + 2] = model->n_tensors;
  memmove(model->kind_of, model->kind_of + gone, (size_t)kept);
  model->layers = kept;
}

static void count_kinds(hk_model *model) {
  for (int k = 0; k < model->n_kinds; k++) model->kinds[k].blocks = model->kinds[k].first = 0;
  for (int64_t i = model->layers; i-- > 0;) {
    hk_block_kind *kind = &model->kinds[model->kind_of[i]];
    kind->blocks++;
    kind->first = i;
  }
  hk_block_kind *head = &model->kinds[model->n_kinds + 1];
  head->n_tensors = 0;
  head->parameters = head->active = 0;
}

hk_status hk_model_note_division(hk_model *model, const char *key, int parts, hk_error *err) {
  if (cJSON_GetObjectItemCaseSensitive(model->config, key) != NULL)
    return hk_fail(err, HK_INPUT, "the config of %s has '%s' already", model->name, key);
  if (cJSON_AddNumberToObject(model->config, key, parts) == NULL)
    return hk_fail_memory(err, sizeof(cJSON), "a configuration");
  return HK_OK;
}

hk_status hk_model_read_stages(hk_model *model, hk_error *err) {
  int64_t stages = 0;
  if (cJSON_GetObjectItemCaseSensitive(model->config, KEY) == NULL) return HK_OK;
  HK_TRY(hk_json_int(model->config, KEY, 1, HK_MODEL_MOST_STAGES, &stages, err));
  HK_TRY(check(model, stages, err));
  model->position_table = hk_model_has_position_table(model);
  model->stages = (int)stages;
  if (stages == 1) return HK_OK;
  cut(model, (model->layers + stages - 1) / stages);
  count_kinds(model);
  model->tied = false;
  return HK_OK;
}

hk_status hk_model_stage(hk_model *model, int stages, hk_error *err) {
  if (stages <= 1) return HK_OK;
  HK_TRY(check(model, stages, err));
  HK_TRY(hk_model_note_division(model, KEY, stages, err));
  return hk_model_read_stages(model, err);
}
