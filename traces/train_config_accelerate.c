/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The file of `accelerate config`, for DeepSpeed or FSDP. */
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/names.h"
#include "traces/train_config_internal.h"

static const char deepspeed_keys[] =
    "deepspeed_config_file zero_stage offload_optimizer_device offload_param_device "
    "offload_optimizer_nvme_path offload_param_nvme_path gradient_accumulation_steps "
    "gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_hostfile "
    "deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher "
    "deepspeed_moe_layer_cls_names";

static const char fsdp_keys[] =
    "fsdp_version fsdp_offload_params fsdp_sharding_strategy fsdp_reshard_after_forward "
    "fsdp_activation_checkpointing fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap "
    "fsdp_min_num_params fsdp_backward_prefetch fsdp_backward_prefetch_policy "
    "fsdp_forward_prefetch fsdp_state_dict_type fsdp_use_orig_params "
    "fsdp_cpu_ram_efficient_loading fsdp_sync_module_states";
static const hk_config_feature fsdp_features[] = {
    {"fsdp_activation_checkpointing_offload", "activations stay on the GPU"}, {NULL, NULL}};

static hk_status read_device(const cJSON *object, const char *key, bool *on_host, hk_error *err) {
  const char *device = "none";
  if (cJSON_GetObjectItemCaseSensitive(object, key))
    HK_TRY(hk_json_string(object, key, &device, err));
  *on_host = strcmp(device, "cpu") == 0;
  if (*on_host || strcmp(device, "none") == 0) return HK_OK;
  return hk_fail(err, HK_INPUT, "key '%s': expected cpu or none, got '%.40s'%s", key, device,
                 strcmp(device, "nvme") == 0 ? ": offload to nvme is not simulated" : "");
}

static hk_status read_deepspeed(const cJSON *object, hk_train_config *config, hk_error *err) {
  int64_t stage = 2;
  const char *file = "";
  HK_TRY(hk_config_check_keys(config, object, "deepspeed_config", deepspeed_keys, NULL, true, err));
  if (cJSON_GetObjectItemCaseSensitive(object, "deepspeed_config_file"))
    HK_TRY(hk_json_string(object, "deepspeed_config_file", &file, err));
  if (strlen(file) >= sizeof config->file)
    return hk_fail(err, HK_INPUT, "key 'deepspeed_config_file': a path of more than %zu bytes",
                   sizeof config->file - 1);
  snprintf(config->file, sizeof config->file, "%s", file);
  HK_TRY(hk_json_int_or(object, "zero_stage", 0, 3, 2, &stage, err));
  config->stage = (int)stage;
  HK_TRY(hk_json_int_or(object, "gradient_accumulation_steps", 1, HK_MOST_GRAD_ACCUM, 0,
                        &config->grad_accum, err));
  HK_TRY(hk_json_double_or(object, "gradient_clipping", 0, 1e30, 0, &config->max_norm, err));
  HK_TRY(read_device(object, "offload_param_device", &config->offload_param, err));
  HK_TRY(read_device(object, "offload_optimizer_device", &config->offload, err));
  if (*config->file) return HK_OK;
  if (config->stage < 3)
    hk_config_note(config, "stage %d is planned as stage 3, which is what hocket simulates",
                   config->stage);
  if (config->offload_param)
    hk_config_note(config, "offload_param is not simulated: the prediction leaves its copies out");
  return HK_OK;
}

/* FULL_SHARD or 1, SHARD_GRAD_OP or 2, NO_SHARD or 3, hybrids. reshard_after_forward of FSDP2 is
 * true, false or a strategy. */
static hk_status read_strategy(const cJSON *object, hk_train_config *config, hk_error *err) {
  static const char *const names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                      "HYBRID_SHARD_ZERO2"};
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, "fsdp_sharding_strategy");
  const cJSON *reshard = cJSON_GetObjectItemCaseSensitive(object, "fsdp_reshard_after_forward");
  int which = 0;
  if (!value && cJSON_IsBool(reshard)) which = cJSON_IsFalse(reshard);
  if (!value && cJSON_IsString(reshard)) value = reshard;
  if (value && cJSON_IsNumber(value))
    for (which = 0; which < 5 && value->valuedouble != which + 1;) which++;
  if (value && cJSON_IsString(value))
    for (which = 0; which < 5 && strcmp(value->valuestring, names[which]) != 0;) which++;
  if (which > 4) {
    char known[120];
    return hk_fail(err, HK_INPUT, "key 'fsdp_sharding_strategy': expected one of %s",
                   hk_join(names, 5, known, sizeof known));
  }
  config->stage = which == 0 ? 3 : which == 1 ? 2 : 0;
  if (which > 0)
    hk_config_note(config, "%s is planned as FULL_SHARD, which is what hocket simulates",
                   names[which]);
  return HK_OK;
}

static hk_status read_fsdp(const cJSON *object, hk_train_config *config, hk_error *err) {
  HK_TRY(hk_config_check_keys(config, object, "fsdp_config", fsdp_keys, fsdp_features, true, err));
  HK_TRY(read_strategy(object, config, err));
  bool checkpoint = false;
  HK_TRY(hk_json_bool_or(object, "fsdp_offload_params", false, &config->offload, err));
  HK_TRY(hk_json_bool_or(object, "fsdp_activation_checkpointing", false, &checkpoint, err));
  if (cJSON_GetObjectItemCaseSensitive(object, "fsdp_activation_checkpointing"))
    config->checkpoint = checkpoint;
  hk_config_note(config,
                 "hocket does not simulate FSDP: yours is planned as DeepSpeed's ZeRO-3 with "
                 "the same placement of the state");
  if (config->offload)
    hk_config_note(config,
                   "fsdp_offload_params also moves weights to the host: their copies are "
                   "left out of the prediction");
  return HK_OK;
}

/* num_processes counts the ranks of all machines. */
static hk_status read_processes(const cJSON *root, hk_train_config *config, hk_error *err) {
  int64_t processes = 0;
  HK_TRY(hk_json_int_or(root, "num_machines", 1, HK_MOST_NODES, 0, &config->nodes, err));
  HK_TRY(hk_json_int_or(root, "num_processes", 1, (int64_t)HK_MOST_NODES * HK_MOST_GPUS, 0,
                        &processes, err));
  const int64_t nodes = config->nodes > 0 ? config->nodes : 1;
  if (processes % nodes != 0 || processes / nodes > HK_MOST_GPUS)
    return hk_fail(
        err, HK_INPUT,
        "key 'num_processes': %lld ranks on %lld machines; hocket plans the same number, "
        "at most %d, on each",
        (long long)processes, (long long)nodes, HK_MOST_GPUS);
  config->gpus = processes / nodes;
  return HK_OK;
}

static hk_status read_precision(const cJSON *root, hk_train_config *config, hk_error *err) {
  const cJSON *value = cJSON_GetObjectItemCaseSensitive(root, "mixed_precision");
  const char *name = "no";
  if (cJSON_IsFalse(value) || !value) return HK_OK; /* YAML reads "no" as false */
  HK_TRY(hk_json_string(root, "mixed_precision", &name, err));
  if (strcmp(name, "bf16") != 0 && strcmp(name, "fp16") != 0 && strcmp(name, "no") != 0)
    hk_config_note(config, "mixed_precision %.20s is not simulated: yours is planned with bf16",
                   name);
  return HK_OK;
}

hk_status hk_config_read_accelerate(cJSON *root, hk_train_config *config, hk_error *err) {
  const char *type = NULL;
  *config = hk_train_config_default(HK_FRAMEWORK_ACCELERATE);
  hk_config_drop_auto(root);
  HK_TRY(hk_json_string(root, "distributed_type", &type, err));
  const bool fsdp = strcmp(type, "FSDP") == 0;
  const char *key = fsdp ? "fsdp_config" : "deepspeed_config";
  if (fsdp) *config = hk_train_config_default(HK_FRAMEWORK_FSDP);
  HK_TRY(read_processes(root, config, err));
  HK_TRY(read_precision(root, config, err));
  if (!fsdp && strcmp(type, "DEEPSPEED") != 0) {
    if (strcmp(type, "MULTI_GPU") != 0 && strcmp(type, "NO") != 0)
      return hk_fail(err, HK_INPUT,
                     "key 'distributed_type': expected DEEPSPEED, FSDP, MULTI_GPU or NO, got "
                     "'%.40s'",
                     type);
    hk_config_note(config,
                   "%s is planned as DeepSpeed's ZeRO-3 without offload, which shards the "
                   "weights and the state; this does not",
                   type);
    return HK_OK;
  }
  cJSON *object = cJSON_GetObjectItemCaseSensitive(root, key);
  if (object && !cJSON_IsObject(object))
    return hk_fail(err, HK_INPUT, "key '%s': expected a mapping", key);
  hk_config_drop_auto(object);
  const hk_status status =
      fsdp ? read_fsdp(object, config, err) : read_deepspeed(object, config, err);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", key);
}
