/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Configurations of training frameworks, as JSON and as YAML. An accepted one is within its limits,
 * and is read back unchanged after it was written as DeepSpeed's. Files that a configuration names
 * are not opened. */
#include <string.h>

#include "core/base/json.h"
#include "tests/fuzz/fuzz.h"
#include "traces/train_config.h"
#include "traces/yaml.h"

static void check_limits(const hk_train_config *c) {
  FUZZ_MUST(c->stage >= 0 && c->stage <= 3);
  FUZZ_MUST(c->ratio >= 0 && c->ratio <= 1);
  FUZZ_MUST(c->micro_batch >= 0 && c->micro_batch <= HK_MOST_MICRO_BATCH);
  FUZZ_MUST(c->grad_accum >= 0 && c->grad_accum <= HK_MOST_GRAD_ACCUM);
  FUZZ_MUST(c->gpus >= 0 && c->gpus <= HK_MOST_GPUS && c->nodes >= 0);
  FUZZ_MUST(c->tp >= 0 && c->tp <= HK_MOST_GPUS && c->subgroup_numel >= 0);
  FUZZ_MUST(c->n_notes >= 0 && c->n_notes <= HK_MOST_CONFIG_NOTES);
  for (int i = 0; i < c->n_notes; i++) FUZZ_MUST(*c->notes[i] != '\0');
  FUZZ_MUST(strlen(c->file) < sizeof c->file);
  for (size_t n = 1; n < 9; n++) FUZZ_MUST(hk_deepspeed_on_host(c->ratio, n) <= n);
}

static void check_again(hk_train_config c) {
  hk_train_config again;
  hk_error err = {0};
  if (c.micro_batch == 0) c.micro_batch = 1;
  if (c.grad_accum == 0) c.grad_accum = 1;
  if (c.subgroup_numel == 0) c.subgroup_numel = 1;
  if (c.offload) c.stage = 3;
  cJSON *root = hk_train_config_to_json(&c);
  FUZZ_MUST(root != NULL);
  FUZZ_MUST(hk_fuzz_read(hk_train_config_from_json(root, &again, &err), &err));
  FUZZ_MUST(again.offload == c.offload && again.stage == c.stage);
  FUZZ_MUST(again.subgroup_numel == c.subgroup_numel && again.micro_batch == c.micro_batch);
  FUZZ_MUST(!c.offload || again.ratio == c.ratio);
  cJSON_Delete(root);
}

static void check_root(cJSON *root) {
  hk_train_config config;
  hk_error err = {0};
  if (!hk_fuzz_read(hk_train_config_from_json(root, &config, &err), &err)) return;
  check_limits(&config);
  check_again(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  hk_error err = {0};
  cJSON *root = NULL;
  const char *text = (const char *)data;
  if (hk_fuzz_read(hk_json_parse(text, size, "fuzz", &root, &err), &err)) check_root(root);
  cJSON_Delete(root);
  root = NULL;
  err = (hk_error){0};
  if (size <= 1 << 16 && hk_fuzz_read(hk_yaml_parse(text, size, "fuzz", &root, &err), &err))
    check_root(root);
  cJSON_Delete(root);
  return 0;
}
