/* SPDX-License-Identifier: GPL-3.0-or-later */
/* DeepSpeed's JSON. The keys are those of DeepSpeed 0.19.8 and those that older ones had. */
#include <string.h>

#include "core/base/json.h"
#include "traces/train_config_internal.h"

/* A key that nothing below reads has no effect on the schedule as hocket simulates it.
 * activation_checkpointing shapes activations only for models that call DeepSpeed's own. */
static const char top_keys[] =
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
    "gradient_clipping zero_optimization bf16 bfloat16 fp16 optimizer tensor_parallel scheduler "
    "steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level flops_profiler "
    "tensorboard wandb csv_monitor comet comms_logger timers checkpoint use_node_local_storage "
    "dataloader_drop_last disable_python_gc aio autotuning pipeline train_steps seed "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer prescale_gradients "
    "gradient_predivide_factor gradient_allreduce_op managed_gradient_accumulation "
    "disable_allgather hybrid_engine use_data_before_expert_parallelism data_efficiency "
    "vocabulary_size seq_parallel_communication_data_type activation_checkpointing";
static const hk_config_feature top_features[] = {
    {"communication_data_type", "gradients are reduced in 2 bytes"},
    {"data_types", "gradients accumulate in 2 bytes"},
    {"torch_autocast", "weights and gradients have 2 bytes"},
    {"amp", "DeepSpeed 0.19.8 has removed it"},
    {"compile", "layers are launched one by one"},
    {"sequence_parallel_size", "each rank has whole sequences"},
    {"expert_parallel", "experts are sharded as other parameters are"},
    {"compression_training", "DeepSpeed 0.19.8 has removed it"},
    {"sparse_attention", "DeepSpeed 0.19.8 has removed it"},
    {"elasticity", "DeepSpeed 0.19.8 has removed it"},
    {"weight_quantization", "weights have 2 bytes"},
    {NULL, NULL}};

static const char zero_keys[] =
    "stage offload_optimizer offload_param sub_group_size cpu_offload cpu_offload_params "
    "cpu_offload_param cpu_offload_use_pin_memory contiguous_gradients reduce_scatter "
    "reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions "
    "allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights "
    "elastic_checkpoint prefetch_bucket_size stage3_prefetch_bucket_size "
    "param_persistence_threshold stage3_param_persistence_threshold model_persistence_threshold "
    "stage3_model_persistence_threshold max_live_parameters stage3_max_live_parameters "
    "max_reuse_distance stage3_max_reuse_distance gather_16bit_weights_on_model_save "
    "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
    "module_granularity_threshold stage3_module_granularity_threshold "
    "use_all_reduce_for_fetch_params stage3_use_all_reduce_for_fetch_params allgather_sequential "
    "stage3_allgather_sequential ignore_unused_parameters legacy_stage1 round_robin_gradients "
    "parameter_alignment memory_efficient_linear pipeline_loading_checkpoint "
    "override_module_apply log_trace_cache_warnings enable_sanity_checks leaf_module "
    "save_muon_momentum_buffer_in_memory zero_hpz_partition_size";
static const hk_config_feature zero_features[] = {
    {"zenflow", "every update is waited for"},
    {"zero_quantized_weights", "weights are gathered in 2 bytes"},
    {"zero_quantized_nontrainable_weights", "weights have 2 bytes"},
    {"zero_quantized_gradients", "gradients are reduced in 2 bytes"},
    {"mics_shard_size", "state is sharded over all ranks"},
    {"mics_hierarchical_params_gather", "state is sharded over all ranks"},
    {NULL, NULL}};

static const char offload_keys[] =
    "device pin_memory ratio cpuadam_cores_perc nvme_path buffer_count buffer_size max_in_cpu "
    "pipeline_read pipeline_write pipeline fast_init";
static const hk_config_feature offload_features[] = {
    {"super_offload",
     "the CPU begins when backward has ended, where SuperOffload begins during backward"},
    {NULL, NULL}};

/* A member that must be an object. NULL: absent. */
static hk_status section(cJSON *object, const char *key, cJSON **out, hk_error *err) {
  *out = cJSON_GetObjectItemCaseSensitive(object, key);
  if (*out && !cJSON_IsObject(*out))
    return hk_fail(err, HK_INPUT, "key '%s': expected an object", key);
  hk_config_drop_auto(*out);
  return HK_OK;
}

/* "cpu", "none" or "nvme". */
static hk_status read_device(const cJSON *object, bool *on_host, hk_error *err) {
  const char *device = "none";
  if (cJSON_GetObjectItemCaseSensitive(object, "device"))
    HK_TRY(hk_json_string(object, "device", &device, err));
  *on_host = strcmp(device, "cpu") == 0;
  if (*on_host || strcmp(device, "none") == 0) return HK_OK;
  if (strcmp(device, "nvme") == 0)
    return hk_fail(err, HK_INPUT,
                   "key 'device': offload to nvme is not simulated; with \"cpu\" hocket says "
                   "whether host memory has room");
  return hk_fail(err, HK_INPUT, "key 'device': expected \"cpu\" or \"none\", got \"%.40s\"",
                 device);
}

static hk_status read_optimizer_section(cJSON *object, hk_train_config *config, hk_error *err) {
  static const char *const where = "zero_optimization.offload_optimizer";
  HK_TRY(hk_config_check_keys(config, object, where, offload_keys, offload_features, true, err));
  HK_TRY(read_device(object, &config->offload, err));
  HK_TRY(hk_json_bool_or(object, "pin_memory", true, &config->pinned, err));
  HK_TRY(hk_json_double_or(object, "ratio", 0, 1, 1, &config->ratio, err));
  if (config->ratio < 1 && config->stage != 3)
    return hk_fail(err, HK_INPUT,
                   "key 'ratio': DeepSpeed offloads a part with stage 3 only, not "
                   "with stage %d",
                   config->stage);
  return HK_OK;
}

static hk_status read_old_offload(const cJSON *zero, hk_train_config *config, hk_error *err) {
  bool params = false, old_params = false;
  HK_TRY(hk_json_bool_or(zero, "cpu_offload", config->offload, &config->offload, err));
  HK_TRY(hk_json_bool_or(zero, "cpu_offload_use_pin_memory", config->pinned, &config->pinned, err));
  HK_TRY(hk_json_bool_or(zero, "cpu_offload_param", false, &params, err));
  HK_TRY(hk_json_bool_or(zero, "cpu_offload_params", false, &old_params, err));
  config->offload_param = config->offload_param || params || old_params;
  return HK_OK;
}

static hk_status read_param_section(cJSON *object, hk_train_config *config, hk_error *err) {
  static const char *const where = "zero_optimization.offload_param";
  HK_TRY(hk_config_check_keys(config, object, where, offload_keys, offload_features, true, err));
  return read_device(object, &config->offload_param, err);
}

static hk_status read_zero(cJSON *zero, hk_train_config *config, hk_error *err) {
  cJSON *optimizer = NULL, *params = NULL;
  int64_t stage = 0;
  hk_config_drop_auto(zero);
  HK_TRY(
      hk_config_check_keys(config, zero, "zero_optimization", zero_keys, zero_features, true, err));
  HK_TRY(hk_json_int_or(zero, "stage", 0, 3, 0, &stage, err));
  config->stage = (int)stage;
  HK_TRY(hk_json_int_or(zero, "sub_group_size", 0, (int64_t)1e15, config->subgroup_numel,
                        &config->subgroup_numel, err));
  /* 0: a subgroup for every tensor. */
  if (config->subgroup_numel == 0) config->subgroup_numel = 1;
  HK_TRY(read_old_offload(zero, config, err));
  HK_TRY(section(zero, "offload_optimizer", &optimizer, err));
  HK_TRY(section(zero, "offload_param", &params, err));
  if (optimizer && read_optimizer_section(optimizer, config, err) != HK_OK)
    return hk_fail_prefix(err, "offload_optimizer");
  if (params && read_param_section(params, config, err) != HK_OK)
    return hk_fail_prefix(err, "offload_param");
  if (config->offload && config->stage == 0)
    return hk_fail(err, HK_INPUT, "key 'stage': offload_optimizer needs stage 1, 2 or 3, got 0");
  return HK_OK;
}

static hk_status read_batch(const cJSON *root, hk_train_config *config, hk_error *err) {
  HK_TRY(hk_json_int_or(root, "train_micro_batch_size_per_gpu", 1, HK_MOST_MICRO_BATCH, 0,
                        &config->micro_batch, err));
  HK_TRY(hk_json_int_or(root, "gradient_accumulation_steps", 1, HK_MOST_GRAD_ACCUM, 0,
                        &config->grad_accum, err));
  HK_TRY(hk_json_int_or(root, "train_batch_size", 1, (int64_t)1e15, 0, &config->global_batch, err));
  return hk_json_double_or(root, "gradient_clipping", 0, 1e30, 0, &config->max_norm, err);
}

/* Whether 16-bit training is on; "auto" in `enabled` counts as on. */
static hk_status is_enabled(cJSON *root, const char *key, bool *on, hk_error *err) {
  cJSON *object = cJSON_GetObjectItemCaseSensitive(root, key);
  *on = false;
  if (!object) return HK_OK;
  if (!cJSON_IsObject(object)) return hk_fail(err, HK_INPUT, "key '%s': expected an object", key);
  const cJSON *enabled = cJSON_GetObjectItemCaseSensitive(object, "enabled");
  *on = cJSON_IsString(enabled) && strcmp(enabled->valuestring, "auto") == 0;
  return *on ? HK_OK : hk_json_bool_or(object, "enabled", false, on, err);
}

static hk_status read_precision(cJSON *root, hk_train_config *config, hk_error *err) {
  bool bf16 = false, old = false, fp16 = false, low = false;
  HK_TRY(is_enabled(root, "bf16", &bf16, err));
  HK_TRY(is_enabled(root, "bfloat16", &old, err));
  HK_TRY(is_enabled(root, "fp16", &fp16, err));
  if (!bf16 && !old && !fp16)
    hk_config_note(config,
                   "neither bf16 nor fp16 is enabled: DeepSpeed trains in fp32, hocket "
                   "plans 2-byte weights and gradients");
  const cJSON *object = cJSON_GetObjectItemCaseSensitive(root, "bf16");
  HK_TRY(hk_json_bool_or(object, "bf16_master_weights_and_grads", false, &low, err));
  if (low)
    hk_config_note(config,
                   "bf16.bf16_master_weights_and_grads is not simulated: the state has 12 "
                   "bytes a parameter");
  return HK_OK;
}

static hk_status read_optimizer(cJSON *root, hk_train_config *config, hk_error *err) {
  cJSON *optimizer = NULL;
  const char *type = "AdamW";
  HK_TRY(section(root, "optimizer", &optimizer, err));
  if (!optimizer || !cJSON_GetObjectItemCaseSensitive(optimizer, "type")) return HK_OK;
  HK_TRY(hk_json_string(optimizer, "type", &type, err));
  if (strcasecmp(type, "adam") != 0 && strcasecmp(type, "adamw") != 0)
    hk_config_note(config, "optimizer %.40s is not simulated: yours is planned with AdamW", type);
  return HK_OK;
}

static hk_status read_tensor_parallel(cJSON *root, hk_train_config *config, hk_error *err) {
  cJSON *object = NULL;
  HK_TRY(section(root, "tensor_parallel", &object, err));
  return hk_json_int_or(object, "autotp_size", 0, HK_MOST_GPUS, 0, &config->tp, err);
}

static void note_what_differs(hk_train_config *config) {
  if (config->offload && !config->pinned)
    hk_config_note(config,
                   "pin_memory is false: gradients are copied to pageable memory, and backward "
                   "waits for each copy");
  if (config->stage < 3)
    hk_config_note(config,
                   "stage %d is planned as stage 3, which is what hocket simulates: stage "
                   "%d keeps whole weights on each GPU and does not gather them",
                   config->stage, config->stage);
  if (config->offload_param)
    hk_config_note(config,
                   "offload_param is not simulated: its copies of weights cost time, and "
                   "save GPU memory, that the prediction leaves out");
}

hk_status hk_config_read_deepspeed(cJSON *root, hk_train_config *config, hk_error *err) {
  *config = hk_train_config_default(HK_FRAMEWORK_DEEPSPEED);
  hk_config_drop_auto(root);
  HK_TRY(hk_config_check_keys(config, root, "", top_keys, top_features, false, err));
  HK_TRY(read_batch(root, config, err));
  cJSON *zero = cJSON_GetObjectItemCaseSensitive(root, "zero_optimization");
  if (cJSON_IsBool(zero)) {
    config->stage = cJSON_IsTrue(zero);
  } else {
    HK_TRY(section(root, "zero_optimization", &zero, err));
    if (read_zero(zero, config, err) != HK_OK) return hk_fail_prefix(err, "zero_optimization");
  }
  HK_TRY(read_precision(root, config, err));
  HK_TRY(read_optimizer(root, config, err));
  HK_TRY(read_tensor_parallel(root, config, err));
  note_what_differs(config);
  return HK_OK;
}
