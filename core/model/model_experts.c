/* SPDX-License-Identifier: Apache-2.0 */
/* Expert parallelism: a model whose experts are divided among ranks. */
#include "core/base/json.h"
#include "core/model/model.h"

#define KEY "hocket_expert_ranks" /* in the model's config */

static hk_status check(const hk_model *model, int64_t ranks, hk_error *err) {
  const char *why = NULL;
  if (model->blocks != NULL)
    why = "it is a list of tensors with measured costs, which does not say which are experts";
  else if (model->frozen != NULL)
    why = "a part of it is frozen";
  else if (model->experts == 0)
    why = "it has none";
  if (why != NULL)
    return hk_fail(err, HK_INPUT, "ep %lld: experts of %s are not divided, because %s; use ep 1",
                   (long long)ranks, model->name, why);
  if (model->experts % ranks == 0) return HK_OK;
  return hk_fail(err, HK_INPUT, "ep %lld does not divide the %lld experts of a layer of %s",
                 (long long)ranks, (long long)model->experts, model->name);
}

hk_status hk_model_read_expert_ranks(hk_model *model, hk_error *err) {
  int64_t ranks = 0;
  if (cJSON_GetObjectItemCaseSensitive(model->config, KEY) == NULL) return HK_OK;
  HK_TRY(hk_json_int(model->config, KEY, 1, HK_MODEL_MOST_EXPERT_RANKS, &ranks, err));
  HK_TRY(check(model, ranks, err));
  model->expert_ranks = (int)ranks;
  for (size_t i = 0; i < model->n_tensors; i++)
    if (model->tensors[i].expert_ranks > 0) model->tensors[i].expert_ranks = (int)ranks;
  return HK_OK;
}

hk_status hk_model_divide_experts(hk_model *model, int ranks, hk_error *err) {
  if (ranks <= 1) return HK_OK;
  HK_TRY(check(model, ranks, err));
  HK_TRY(hk_model_note_division(model, KEY, ranks, err));
  return hk_model_read_expert_ranks(model, err);
}
