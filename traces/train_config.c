/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Files of training frameworks: which reader reads them. And DeepSpeed's ratio. */
#include "traces/train_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/infile.h"
#include "core/base/json.h"
#include "traces/train_config_internal.h"
#include "traces/yaml.h"

#define MOST_BYTES (1 << 20) /* of a JSON file */
#define MOST_YAML  (1 << 16)

const char *const hk_framework_titles[HK_FRAMEWORK_COUNT] = {"DeepSpeed", "Accelerate", "FSDP"};

/* -- DeepSpeed's ratio ------------------------------------------------------------------------- */

double hk_deepspeed_ratio(size_t on_host, size_t subgroups) {
  const size_t on_gpu = subgroups - on_host;
  if (on_gpu == 0) return 1;
  /* int((1 - r) n) is on_gpu for r between 1 - (on_gpu + 1) / n and 1 - on_gpu / n. */
  const double middle = fmax(0, 1 - ((double)on_gpu + 0.5) / (double)subgroups);
  double scale = 1;
  for (int digits = 1; digits < 10; digits++) {
    scale *= 10;
    const double ratio = round(middle * scale) / scale;
    const double exact = (1 - ratio) * (double)subgroups - (double)on_gpu;
    if (exact > 0.1 && exact < 0.9) return ratio;
  }
  return middle;
}

/* -- Files ------------------------------------------------------------------------------------- */

static hk_status parse(const char *path, const char *text, size_t length, cJSON **root,
                       hk_error *err) {
  size_t blank = 0;
  while (blank < length && strchr(" \t\r\n", text[blank]) && text[blank] != '\0') blank++;
  if (blank == length) return hk_fail(err, HK_INPUT, "%s: empty", path);
  if (text[blank] == '{') return hk_json_parse(text, length, path, root, err);
  if (length > MOST_YAML)
    return hk_fail(err, HK_INPUT, "%s: YAML of more than 64 KiB: not a configuration", path);
  return hk_yaml_parse(text, length, path, root, err);
}

static hk_status load(const char *path, cJSON **root, hk_error *err) {
  char *text = NULL;
  size_t length = 0;
  if (hk_infile_read(path, "a configuration file", MOST_BYTES, &text, &length, err) != HK_OK)
    return hk_fail_prefix(err, "%s", path);
  const hk_status status = parse(path, text, length, root, err);
  free(text);
  return status;
}

hk_status hk_train_config_from_json(cJSON *root, hk_train_config *config, hk_error *err) {
  const bool accelerate = cJSON_GetObjectItemCaseSensitive(root, "distributed_type") ||
                          cJSON_GetObjectItemCaseSensitive(root, "compute_environment");
  return accelerate ? hk_config_read_accelerate(root, config, err)
                    : hk_config_read_deepspeed(root, config, err);
}

/* Reads the DeepSpeed file that an Accelerate file names; what both give is DeepSpeed's. */
static hk_status follow(hk_train_config *config, hk_error *err) {
  const hk_train_config outer = *config;
  cJSON *root = NULL;
  HK_TRY(load(outer.file, &root, err));
  const hk_status status = hk_config_read_deepspeed(root, config, err);
  cJSON_Delete(root);
  if (status != HK_OK) return hk_fail_prefix(err, "%s", outer.file);
  config->framework = outer.framework;
  config->gpus = outer.gpus;
  config->nodes = outer.nodes;
  snprintf(config->file, sizeof config->file, "%s", outer.file);
  for (int i = 0; i < outer.n_notes; i++) hk_config_note(config, "%s", outer.notes[i]);
  return HK_OK;
}

hk_status hk_train_config_load(const char *path, hk_train_config *config, hk_error *err) {
  cJSON *root = NULL;
  HK_TRY(load(path, &root, err));
  hk_status status = hk_train_config_from_json(root, config, err);
  cJSON_Delete(root);
  if (status == HK_OK && *config->file) status = follow(config, err);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", path);
}
