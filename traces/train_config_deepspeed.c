/* SPDX-License-Identifier: GPL-3.0-or-later */
/* DeepSpeed's JSON. The keys are those of DeepSpeed 0.19.8 and those that older ones had. */
#include <string.h>

#include "core/base/json.h"
#include "traces/train_config_internal.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define READ(key) \
  { key, HK_KEY_READ, NULL }

static const hk_config_key top_keys[] = {
    READ("train_batch_size"),
    READ("train_micro_batch_size_per_gpu"),
    READ("gradient_accumulation_steps"),
    READ("gradient_clipping"),
    READ("zero_optimization"),
    READ("bf16"),
    READ("bfloat16"),
    READ("fp16"),
    READ("optimizer"),
    READ("tensor_parallel"),
    /* without effect on the schedule */
    READ("scheduler"),
    READ("steps_per_print"),
    READ("wall_clock_breakdown"),
    READ("memory_breakdown"),
    READ("dump_state"),
    READ("log_level"),
    READ("flops_profiler"),
    READ("tensorboard"),
    READ("wandb"),
    READ("csv_monitor"),
    READ("comet"),
    READ("comms_logger"),
    READ("timers"),
    READ("checkpoint"),
    READ("use_node_local_storage"),
    READ("dataloader_drop_last"),
    READ("disable_python_gc"),
    READ("aio"),
    READ("autotuning"),
    READ("pipeline"),
    READ("train_steps"),
    READ("seed"),
    READ("zero_allow_untested_optimizer"),
    READ("zero_force_ds_cpu_optimizer"),
    READ("prescale_gradients"),
    READ("gradient_predivide_factor"),
    READ("gradient_allreduce_op"),
    READ("managed_gradient_accumulation"),
    READ("disable_allgather"),
    READ("hybrid_engine"),
    READ("use_data_before_expert_parallelism"),
    READ("data_efficiency"),
    READ("vocabulary_size"),
    READ("seq_parallel_communication_data_type"),
    /* In a file it shapes activations only for models that call DeepSpeed's own checkpointing. */
    READ("activation_checkpointing"),
    {"communication_data_type", HK_KEY_NOTED, "gradients are reduced in 2 bytes"},
    {"data_types", HK_KEY_NOTED, "gradients accumulate in 2 bytes"},
    {"torch_autocast", HK_KEY_NOTED, "weights and gradients have 2 bytes"},
    {"amp", HK_KEY_NOTED, "DeepSpeed 0.19.8 has removed it"},
    {"compile", HK_KEY_NOTED, "layers are launched one by one"},
    {"sequence_parallel_size", HK_KEY_NOTED, "each rank has whole sequences"},
    {"expert_parallel", HK_KEY_NOTED, "experts are sharded as other parameters are"},
    {"compression_training", HK_KEY_NOTED, "DeepSpeed 0.19.8 has removed it"},
    {"sparse_attention", HK_KEY_NOTED, "DeepSpeed 0.19.8 has removed it"},
    {"elasticity", HK_KEY_NOTED, "DeepSpeed 0.19.8 has removed it"},
    {"weight_quantization", HK_KEY_NOTED, "weights have 2 bytes"},
};

static const hk_config_key zero_keys[] = {
    READ("stage"),
    READ("offload_optimizer"),
    READ("offload_param"),
    READ("sub_group_size"),
    READ("cpu_offload"),
    READ("cpu_offload_params"),
    READ("cpu_offload_param"),
    READ("cpu_offload_use_pin_memory"),
    /* without effect on the schedule as hocket simulates it */
    READ("contiguous_gradients"),
    READ("reduce_scatter"),
    READ("reduce_bucket_size"),
    READ("use_multi_rank_bucket_allreduce"),
    READ("allgather_partitions"),
    READ("allgather_bucket_size"),
    READ("overlap_comm"),
    READ("compute_grad_norm"),
    READ("load_from_fp32_weights"),
    READ("elastic_checkpoint"),
    READ("prefetch_bucket_size"),
    READ("stage3_prefetch_bucket_size"),
    READ("param_persistence_threshold"),
    READ("stage3_param_persistence_threshold"),
    READ("model_persistence_threshold"),
    READ("stage3_model_persistence_threshold"),
    READ("max_live_parameters"),
    READ("stage3_max_live_parameters"),
    READ("max_reuse_distance"),
    READ("stage3_max_reuse_distance"),
    READ("gather_16bit_weights_on_model_save"),
    READ("stage3_gather_16bit_weights_on_model_save"),
    READ("stage3_gather_fp16_weights_on_model_save"),
    READ("module_granularity_threshold"),
    READ("stage3_module_granularity_threshold"),
    READ("use_all_reduce_for_fetch_params"),
    READ("stage3_use_all_reduce_for_fetch_params"),
    READ("allgather_sequential"),
    READ("stage3_allgather_sequential"),
    READ("ignore_unused_parameters"),
    READ("legacy_stage1"),
    READ("round_robin_gradients"),
    READ("parameter_alignment"),
    READ("memory_efficient_linear"),
    READ("pipeline_loading_checkpoint"),
    READ("override_module_apply"),
    READ("log_trace_cache_warnings"),
    READ("enable_sanity_checks"),
    READ("leaf_module"),
    READ("save_muon_momentum_buffer_in_memory"),
    READ("zero_hpz_partition_size"),
    {"zenflow", HK_KEY_NOTED, "every update is waited for"},
    {"zero_quantized_weights", HK_KEY_NOTED, "weights are gathered in 2 bytes"},
    {"zero_quantized_nontrainable_weights", HK_KEY_NOTED, "weights have 2 bytes"},
    {"zero_quantized_gradients", HK_KEY_NOTED, "gradients are reduced in 2 bytes"},
    {"mics_shard_size", HK_KEY_NOTED, "state is sharded over all ranks"},
    {"mics_hierarchical_params_gather", HK_KEY_NOTED, "state is sharded over all ranks"},
};

static const hk_config_key offload_keys[] = {
    READ("device"),
    READ("pin_memory"),
    READ("ratio"),
    READ("cpuadam_cores_perc"),
    READ("nvme_path"),
    READ("buffer_count"),
    READ("buffer_size"),
    READ("max_in_cpu"),
    READ("pipeline_read"),
    READ("pipeline_write"),
    READ("pipeline"),
    READ("fast_init"),
    {"super_offload", HK_KEY_NOTED,
     "the CPU begins when backward has ended, where SuperOffload begins during backward"},
};

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
  HK_TRY(hk_config_check_keys(config, object, where, offload_keys, COUNT(offload_keys), true, err));
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
  HK_TRY(hk_config_check_keys(config, object, where, offload_keys, COUNT(offload_keys), true, err));
  return read_device(object, &config->offload_param, err);
}

static hk_status read_zero(cJSON *zero, hk_train_config *config, hk_error *err) {
  cJSON *optimizer = NULL, *params = NULL;
  int64_t stage = 0;
  hk_config_drop_auto(zero);
  HK_TRY(hk_config_check_keys(config, zero, "zero_optimization", zero_keys, COUNT(zero_keys), true,
                              err));
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
  HK_TRY(hk_config_check_keys(config, root, "", top_keys, COUNT(top_keys), false, err));
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
