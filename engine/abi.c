/* SPDX-License-Identifier: Apache-2.0 */
/* hocket.h over engine.h: the C ABI. */
#include "engine/hocket.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "engine/engine.h"

static int answer(hk_status status, const hk_error *err, char *message) {
  if (message != NULL) {
    snprintf(message, HOCKET_MESSAGE, "%s", status == HK_OK ? "" : err->message);
  }
  return (int)status;
}

static hk_status load_plan(const char *plan, hk_plan *out, hk_error *err) {
  if (plan[0] != '{') return hk_plan_load(plan, out, err);
  cJSON *root = NULL;
  HK_TRY(hk_json_parse(plan, strlen(plan), "plan", &root, err));
  const hk_status status = hk_plan_from_json(root, out, err);
  cJSON_Delete(root);
  return status;
}

/* The named backend, else CUDA where it has a device. */
static hk_status choose_backend(const char *name, const hk_backend_ops **backend, hk_error *err) {
  if (name != NULL) return hk_backend_find(name, backend, err);
  int devices = 0;
  const bool cuda = hk_backend_cuda.count(&devices, NULL) == HK_OK && devices > 0;
  *backend = cuda ? &hk_backend_cuda : &hk_backend_host;
  return HK_OK;
}

static hk_param_group group_of(const hocket_group *g) {
  return (hk_param_group){.numel = g->numel,
                          .hyper = {.lr = g->lr,
                                    .beta1 = g->beta1,
                                    .beta2 = g->beta2,
                                    .eps = g->eps,
                                    .weight_decay = g->weight_decay}};
}

static hk_status create(const hk_plan *plan, const hocket_group *groups, size_t n,
                        const hocket_options *options, hk_engine **engine, hk_error *err) {
  hk_engine_options inner = {.device = options->device,
                             .grad_type = options->fp16 ? HK_GRAD_FP16 : HK_GRAD_BF16,
                             .max_norm = options->max_norm,
                             .device_weights = options->device_weights,
                             .no_pin_threads = options->no_pinning != 0,
                             .first_core = options->first_core};
  HK_TRY(choose_backend(options->backend, &inner.backend, err));
  hk_param_group *inner_groups = calloc(n > 0 ? n : 1, sizeof *inner_groups);
  if (inner_groups == NULL)
    return hk_fail_memory(err, n * sizeof *inner_groups, "parameter groups");
  for (size_t g = 0; g < n; g++) inner_groups[g] = group_of(&groups[g]);
  const hk_status status = hk_engine_create(plan, inner_groups, n, &inner, engine, err);
  free(inner_groups);
  return status;
}

int hocket_create(const char *plan, const hocket_group *groups, size_t n_groups,
                  const hocket_options *options, hocket_engine **engine, char *message) {
  static const hocket_options none = {0};
  hk_error err = {0};
  hk_plan loaded = {0};
  *engine = NULL;
  hk_status status = load_plan(plan, &loaded, &err);
  if (status == HK_OK) {
    status = create(&loaded, groups, n_groups, options != NULL ? options : &none, engine, &err);
  }
  hk_plan_free(&loaded);
  return answer(status, &err, message);
}

void hocket_destroy(hocket_engine *engine) {
  hk_engine_destroy(engine);
}

const char *hocket_version(void) {
  return HK_VERSION;
}
int64_t hocket_numel(const hocket_engine *engine) {
  return hk_engine_numel(engine);
}
int64_t hocket_step_number(const hocket_engine *engine) {
  return hk_engine_step_number(engine);
}
void *hocket_weights(const hocket_engine *engine) {
  return hk_engine_device_weights(engine);
}

static hk_status check_part(int part, hk_error *err) {
  if (part >= HOCKET_P && part <= HOCKET_W) return HK_OK;
  return hk_fail(err, HK_INPUT, "no part %d of the state: 0 is p, 1 m, 2 v, 3 the bf16 weights",
                 part);
}

int hocket_write(hocket_engine *engine, int part, int64_t offset, int64_t n, const float *data,
                 char *message) {
  hk_error err = {0};
  hk_status status = check_part(part, &err);
  if (status == HK_OK) {
    status = hk_engine_write(engine, (hk_state_part)part, offset, n, data, &err);
  }
  return answer(status, &err, message);
}

int hocket_read(hocket_engine *engine, int part, int64_t offset, int64_t n, void *data,
                char *message) {
  hk_error err = {0};
  hk_status status = check_part(part, &err);
  if (status == HK_OK) {
    status = hk_engine_read(engine, (hk_state_part)part, offset, n, data, &err);
  }
  return answer(status, &err, message);
}

int hocket_set_group(hocket_engine *engine, size_t group, const hocket_group *hyper,
                     char *message) {
  hk_error err = {0};
  const hk_param_group inner = group_of(hyper);
  return answer(hk_engine_set_group(engine, group, &inner.hyper, &err), &err, message);
}

int hocket_gradients(hocket_engine *engine, int64_t offset, int64_t n, const void *grad,
                     int on_device, char *message) {
  hk_error err = {0};
  return answer(hk_engine_gradients(engine, offset, n, grad, on_device != 0, true, &err), &err,
                message);
}

int hocket_step(hocket_engine *engine, hocket_step_info *info, char *message) {
  hk_error err = {0};
  hk_step_report report = {0};
  hk_step_options options = {0};
  if (info != NULL) {
    options.loss_scale = info->loss_scale;
    options.sum_of_squares = info->sum_of_squares;
  }
  const hk_status status = hk_engine_step(engine, &options, &report, &err);
  if (info != NULL) {
    info->step = report.step;
    info->skipped = report.skipped;
    info->nonfinite = report.nonfinite;
    info->grad_norm = report.grad_norm;
    info->update_ms = hk_ms(report.update);
  }
  return answer(status, &err, message);
}

int hocket_sum_of_squares(hocket_engine *engine, double *sum, char *message) {
  hk_error err = {0};
  hk_squares squares = {0};
  const hk_status status = hk_engine_squares(engine, &squares, &err);
  *sum = squares.nonfinite > 0 ? INFINITY : hk_squares_value(&squares);
  return answer(status, &err, message);
}

int hocket_save(hocket_engine *engine, const char *path, char *message) {
  hk_error err = {0};
  return answer(hk_engine_save(engine, path, NULL, NULL, &err), &err, message);
}

int hocket_load(hocket_engine *engine, const char *path, char *message) {
  hk_error err = {0};
  return answer(hk_engine_load(engine, path, NULL, NULL, &err), &err, message);
}

int hocket_checksum(hocket_engine *engine, char hex[33], char *message) {
  hk_error err = {0};
  return answer(hk_engine_checksum(engine, hex, &err), &err, message);
}
