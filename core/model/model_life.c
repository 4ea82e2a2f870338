/* SPDX-License-Identifier: Apache-2.0 */
/* The owners of a model, and its notes. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/model/model_shape.h"

hk_status hk_model_note(hk_model *model, hk_error *err, const char *format, ...) {
  char text[480];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (model->n_notes == HK_MODEL_MOST_NOTES) return HK_OK;
  model->notes[model->n_notes] = strdup(text);
  if (!model->notes[model->n_notes]) return hk_fail_memory(err, sizeof text, "a note");
  model->n_notes++;
  return HK_OK;
}

struct hk_model_owners {
  atomic_int n;
};

hk_status hk_model_own(hk_model *model, hk_error *err) {
  model->owners = malloc(sizeof *model->owners);
  if (!model->owners) return hk_fail_memory(err, sizeof *model->owners, "a model");
  atomic_init(&model->owners->n, 1);
  return HK_OK;
}

void hk_model_share(const hk_model *from, hk_model *to) {
  *to = *from;
  atomic_fetch_add(&from->owners->n, 1);
}

void hk_model_free(hk_model *model) {
  if (!model) return;
  if (!model->owners || atomic_fetch_sub(&model->owners->n, 1) == 1) {
    free(model->tensors);
    free(model->kinds);
    free(model->frozen);
    free(model->kind_of);
    free(model->first_tensor);
    free(model->blocks);
    for (int i = 0; i < model->n_notes; i++) free(model->notes[i]);
    cJSON_Delete(model->config);
    free(model->owners);
  }
  memset(model, 0, sizeof *model);
}
