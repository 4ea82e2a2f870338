/* SPDX-License-Identifier: GPL-3.0-or-later */
/* From a plan to the nearest configuration, and to its file. */
#include <math.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/units.h"
#include "traces/train_config.h"

/* Subgroups whose state is not resident on the GPU. */
static size_t on_host(const hk_plan *plan) {
  size_t n = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) n += plan->subgroups[i].route != HK_ROUTE_RESIDENT;
  return n;
}

bool hk_framework_runs(hk_framework framework, const hk_plan *plan) {
  if (plan->runtime != HK_RUNTIME_DEEPSPEED || plan->overlap != HK_OVERLAP_NONE) return false;
  if (hk_plan_interleaves(plan)) return false; /* the prototype's step, whatever the routes */
  for (size_t i = 0; i < plan->n_subgroups; i++)
    if (plan->subgroups[i].route == HK_ROUTE_STAGED || plan->subgroups[i].route == HK_ROUTE_MAPPED)
      return false;
  const size_t n = on_host(plan);
  return framework != HK_FRAMEWORK_FSDP || n == 0 || n == plan->n_subgroups;
}

hk_train_config hk_train_config_of(hk_framework framework, const hk_plan *plan) {
  const hk_job *job = &plan->job;
  hk_train_config config = hk_train_config_default(framework);
  const size_t n = on_host(plan);
  config.stage = 3;
  config.offload = n > 0;
  if (n > 0 && framework != HK_FRAMEWORK_FSDP)
    config.ratio = hk_deepspeed_ratio(n, plan->n_subgroups);
  config.subgroup_numel = plan->subgroup_numel;
  config.micro_batch = job->micro_batch;
  config.grad_accum = job->grad_accum;
  config.tp = job->tp;
  config.gpus = job->gpus;
  config.nodes = job->nodes;
  config.checkpoint = job->checkpoint_activations;
  return config;
}

int hk_train_config_lost(hk_framework framework, const hk_plan *plan, char lost[][160]) {
  int64_t n[HK_ROUTE_COUNT], all = 0;
  int count = 0;
  hk_plan_route_totals(plan, n);
  for (int r = 0; r < HK_ROUTE_COUNT; r++) all += n[r];
  const double percent = 100.0 / (double)hk_max(all, 1);
#define LOSE(...) snprintf(lost[count++], sizeof lost[0], __VA_ARGS__)
  if (n[HK_ROUTE_STAGED] > 0)
    LOSE("updating %.0f %% of the parameters on the GPU after a round trip of their state",
         percent * (double)n[HK_ROUTE_STAGED]);
  if (n[HK_ROUTE_MAPPED] > 0)
    LOSE("updating %.0f %% of the parameters by the GPU in host memory",
         percent * (double)n[HK_ROUTE_MAPPED]);
  if (plan->optimizer != HK_OPTIMIZER_FP32)
    LOSE("optimizer %s: the configuration is for AdamW with fp32 state",
         hk_optimizer_info_of(plan->optimizer)->name);
  if (plan->job.grad_accum > 1 && hk_plan_accumulates(plan) != HK_ACCUMULATE_GPU)
    LOSE("gradients of micro-steps that are summed in host memory (runtime hocket)");
  if (hk_job_pp(&plan->job) > 1 || plan->job.sequence_parallel)
    LOSE("%d pipeline stages%s", hk_job_pp(&plan->job),
         plan->job.sequence_parallel ? ", sequence parallelism" : "");
  if (hk_job_ep(&plan->job) > 1) LOSE("experts divided among %d ranks", plan->job.ep);
  if (plan->job.loss_chunks > 1) LOSE("a loss in %d slices", plan->job.loss_chunks);
  if (plan->overlap != HK_OVERLAP_NONE)
    LOSE("an update that overlaps with %s",
         plan->overlap == HK_OVERLAP_BOTH ? "forward and backward" : "forward");
  if (plan->runtime == HK_RUNTIME_HOCKET && n[HK_ROUTE_CPU] > 0)
    LOSE(
        "one pass over host memory for unscaling, AdamW and the cast, and copies beside the "
        "update");
  if (plan->runtime == HK_RUNTIME_HOCKET)
    LOSE("phases and subgroups that follow each other without the host's bookkeeping");
  if (framework == HK_FRAMEWORK_FSDP && n[HK_ROUTE_RESIDENT] > 0 && n[HK_ROUTE_RESIDENT] < all)
    LOSE("keeping %.0f %% of the state on the GPU: FSDP offloads all or none",
         percent * (double)n[HK_ROUTE_RESIDENT]);
#undef LOSE
  return count;
}

/* -- Files ------------------------------------------------------------------------------------- */

static cJSON *add_zero(const hk_train_config *config, cJSON *root) {
  cJSON *zero = cJSON_AddObjectToObject(root, "zero_optimization");
  bool ok = cJSON_AddNumberToObject(zero, "stage", config->stage);
  cJSON *optimizer = cJSON_AddObjectToObject(zero, "offload_optimizer");
  ok = cJSON_AddStringToObject(optimizer, "device", config->offload ? "cpu" : "none") && ok;
  if (config->offload) {
    ok = cJSON_AddBoolToObject(optimizer, "pin_memory", config->pinned) && ok;
    ok = cJSON_AddNumberToObject(optimizer, "ratio", config->ratio) && ok;
  }
  cJSON *params = cJSON_AddObjectToObject(zero, "offload_param");
  ok = cJSON_AddStringToObject(params, "device", config->offload_param ? "cpu" : "none") && ok;
  ok = cJSON_AddNumberToObject(zero, "sub_group_size", (double)config->subgroup_numel) && ok;
  ok = cJSON_AddBoolToObject(zero, "overlap_comm", true) && ok;
  ok = cJSON_AddBoolToObject(zero, "contiguous_gradients", true) && ok;
  return ok ? zero : NULL;
}

cJSON *hk_train_config_to_json(const hk_train_config *config) {
  cJSON *root = cJSON_CreateObject();
  bool ok =
      cJSON_AddNumberToObject(root, "train_micro_batch_size_per_gpu", (double)config->micro_batch);
  ok = cJSON_AddNumberToObject(root, "gradient_accumulation_steps", (double)config->grad_accum) &&
       ok;
  ok = cJSON_AddNumberToObject(root, "gradient_clipping", config->max_norm) && ok;
  cJSON *bf16 = cJSON_AddObjectToObject(root, "bf16");
  ok = cJSON_AddBoolToObject(bf16, "enabled", true) && ok;
  ok = add_zero(config, root) && ok;
  if (config->tp > 1) {
    cJSON *parallel = cJSON_AddObjectToObject(root, "tensor_parallel");
    ok = cJSON_AddNumberToObject(parallel, "autotp_size", (double)config->tp) && ok;
  }
  if (ok) return root;
  cJSON_Delete(root);
  return NULL;
}

static const char *word(bool value) {
  return value ? "true" : "false";
}

static void write_accelerate(const hk_train_config *config, FILE *out) {
  const bool fsdp = config->framework == HK_FRAMEWORK_FSDP;
  fprintf(out, "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: %s\n",
          fsdp ? "FSDP" : "DEEPSPEED");
  if (fsdp) {
    fprintf(out,
            "fsdp_config:\n"
            "  fsdp_activation_checkpointing: %s\n"
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
            "  fsdp_cpu_ram_efficient_loading: true\n"
            "  fsdp_offload_params: %s\n"
            "  fsdp_reshard_after_forward: true\n"
            "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
            "  fsdp_version: 2\n"
            "mixed_precision: bf16\n",
            word(config->checkpoint == 1), word(config->offload));
  } else {
    fputs("deepspeed_config:\n  deepspeed_config_file: ", out);
    hk_json_write_string(out, config->file);
    fputs("\n  zero3_init_flag: true\n", out);
  }
  fprintf(out,
          "enable_cpu_affinity: true\n"
          "machine_rank: 0\n"
          "main_training_function: main\n"
          "num_machines: %lld\n"
          "num_processes: %lld\n"
          "use_cpu: false\n",
          (long long)config->nodes, (long long)(config->gpus * config->nodes));
}

hk_status hk_train_config_write(const hk_train_config *config, FILE *out, hk_error *err) {
  if (config->framework != HK_FRAMEWORK_DEEPSPEED) {
    write_accelerate(config, out);
    return HK_OK;
  }
  cJSON *root = hk_train_config_to_json(config);
  if (!root) return hk_fail_memory(err, sizeof(cJSON), "a configuration");
  const hk_status status = hk_json_print(root, out, err);
  cJSON_Delete(root);
  return status;
}
