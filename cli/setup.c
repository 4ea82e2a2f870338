/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Loads what the options name. Defaults that depend on the model or the machine are here, constant
 * defaults in args.c, those of policies and runtimes in sim/. */
#include "cli/setup.h"

#include <stdio.h>
#include <string.h>

#include "calib/profiles/profiles.h"
#include "cli/calibration.h"
#include "cli/describe.h"
#include "core/base/json.h"
#include "core/machine/machine_set.h"
#include "engine/engine.h"
#include "sim/held.h"

#define DESCRIBE_S 300 /* models of 100 G parameters take some 25 s on one core */

hk_status hk_setup_change(const hk_args *args, hk_machine *machine, hk_error *err) {
  return hk_machine_set(machine, args->sets, (size_t)args->n_sets, err);
}

static hk_status load_machine(const hk_args *args, const char *fallback, hk_machine *machine,
                              hk_error *err) {
  const char *name = args->machine ? args->machine : fallback;
  if (!name || !*name)
    return hk_fail(err, HK_INPUT,
                   "--machine NAME|FILE is needed; 'hocket machine list' lists the profiles");
  HK_TRY(hk_profiles_machine(name, machine, err));
  return hk_setup_change(args, machine, err);
}

/* --host-memory: the rest of the machine's host memory counts as reserved. */
static hk_status reserve_host(const hk_args *args, hk_machine *machine, hk_error *err) {
  if (!(args->given & HK_OPTION(HOST_MEMORY))) return HK_OK;
  const double left = machine->host_memory.value - (double)args->host_memory;
  if (left < 0)
    return hk_fail(err, HK_INPUT,
                   "--host-memory: %lld bytes are more than the machine's %.0f; for a machine that "
                   "has them add --set node.memory_bytes=%lld",
                   (long long)args->host_memory, machine->host_memory.value,
                   (long long)args->host_memory);
  machine->host_reserved = (hk_quantity){
      .value = left, .origin = HK_ORIGIN_MEASURED, .source = "host memory less --host-memory"};
  return HK_OK;
}

int hk_setup_seq(const hk_args *args, const hk_model *model) {
  if (args->seq > 0) return (int)args->seq;
  if (model->arch == HK_ARCH_LISTED) return (int)model->seq;
  return model->max_positions > 0 && model->max_positions < 2048 ? (int)model->max_positions : 2048;
}

/* A listed model has figures for one micro-batch, which is the default. */
static int micro_batch_of(const hk_args *args, const hk_model *model) {
  const bool listed = model->arch == HK_ARCH_LISTED && !(args->given & HK_OPTION(MICRO_BATCH));
  return (int)(listed ? model->micro_batch : args->micro_batch);
}

hk_job hk_setup_job(const hk_args *args, const hk_model *model, int gpus) {
  const int share = (int)hk_max(1, gpus / hk_max(1, args->jobs));
  return (hk_job){.gpus = args->gpus > 0 ? (int)args->gpus : share,
                  .jobs = (int)args->jobs,
                  .nodes = (int)args->nodes,
                  .tp = (int)args->tp,
                  .micro_batch = micro_batch_of(args, model),
                  .grad_accum = (int)args->grad_accum,
                  .seq = hk_setup_seq(args, model),
                  .checkpoint_activations = args->checkpoint == 0,
                  .loss_chunks = (int)args->loss_chunks,
                  .pp = (int)args->pp,
                  .chunks = (int)args->pp_chunks,
                  .sequence_parallel = args->sequence_parallel,
                  .ep = (int)args->ep};
}

/* The first of the options that describe a model of --params. */
static const char *first_of_size(const hk_args *args) {
  for (int id = HK_OPT_PARAMS; id <= HK_OPT_VOCAB; id++)
    if (args->given >> id & 1) return hk_option_info((hk_option_id)id)->name;
  return NULL;
}

hk_status hk_setup_model(const hk_args *args, hk_model *model, hk_error *err) {
  const char *sized = first_of_size(args);
  if (args->model && sized)
    return hk_fail(err, HK_INPUT, "--model and --%s: one of them describes the model, not both",
                   sized);
  if (args->model) {
    const hk_status status = hk_model_load(args->model, model, err);
    return status == HK_INPUT
               ? hk_describe(args->model, args->seq, args->checkpoint == 0, DESCRIBE_S, model, err)
               : status;
  }
  if (args->params > 0) {
    const hk_model_size size = {.parameters = args->params,
                                .layers = args->layers,
                                .hidden = args->hidden,
                                .heads = args->heads,
                                .vocab = args->vocab};
    return hk_model_from_size(&size, model, err);
  }
  if (sized)
    return hk_fail(err, HK_INPUT, "--%s describes a model of --params N, which is missing", sized);
  return hk_fail(
      err, HK_INPUT,
      "--model NAME|FILE is needed ('hocket model list' lists the presets), or --params N "
      "--layers L --hidden H");
}

static hk_status freeze(const hk_args *args, hk_model *model, hk_error *err) {
  const bool share = args->given & HK_OPTION(TRAINABLE), lora = args->given & HK_OPTION(LORA);
  const hk_frozen_spec spec = {
      .share = share ? args->trainable : 0,
      .rank = lora ? args->lora : 0,
      .targets = args->lora_targets,
      .bytes = args->given & HK_OPTION(FROZEN_BYTES) ? args->frozen_bytes : 2};
  if (share && lora)
    return hk_fail(err, HK_INPUT, "--trainable and --lora: one of them says what is trained");
  if (spec.targets && !lora) return hk_fail(err, HK_INPUT, "--lora-targets needs --lora RANK");
  if (share || lora) return hk_model_freeze(model, &spec, err);
  if (!(args->given & HK_OPTION(FROZEN_BYTES))) return HK_OK;
  return hk_fail(err, HK_INPUT, "--frozen-bytes needs --lora RANK or --trainable X");
}

hk_status hk_setup_freeze(const hk_args *args, hk_model *model, hk_error *err) {
  HK_TRY(freeze(args, model, err));
  HK_TRY(hk_model_stage(model, (int)args->pp, err));
  return hk_model_divide_experts(model, (int)args->ep, err);
}

/* Several jobs need GPUs of their own. (One job may have more than the machine: with a warning.) */
static hk_status have_gpus(const hk_job *job, const hk_machine *machine, hk_error *err) {
  if (job->jobs <= 1 || hk_job_ranks(job) <= (int)machine->gpus.value) return HK_OK;
  return hk_fail(err, HK_INPUT, "--jobs %d of %d GPU%s each: %s has %.0f", job->jobs, job->gpus,
                 job->gpus == 1 ? "" : "s", machine->name, machine->gpus.value);
}

hk_status hk_setup_fill(const hk_args *args, hk_setup *setup, hk_error *err) {
  setup->runtime = (hk_runtime)args->runtime;
  setup->flush = (hk_flush)args->flush;
  setup->accumulate = (hk_accumulate)args->accumulate;
  setup->gpu_memory = args->gpu_memory;
  HK_TRY(reserve_host(args, &setup->machine, err));
  setup->job = hk_setup_job(args, &setup->model, (int)setup->machine.gpus.value);
  setup->settings = (hk_plan_settings){
      .subgroup_numel = args->subgroup,
      .flush = args->given & HK_OPTION(FLUSH) ? &setup->flush : NULL,
      .cpu_threads = (int)args->cpu_threads,
      .cores_unbound = args->unbound,
      .overlap = (hk_overlap)args->overlap,
      .clip = (hk_clip)args->clip,
      .clip_share = args->clip_share,
      .optimizer = (hk_optimizer)args->state,
      .accumulate = args->given & HK_OPTION(ACCUMULATE) ? &setup->accumulate : NULL,
      .gpu_memory = args->given & HK_OPTION(GPU_MEMORY) ? &setup->gpu_memory : NULL,
  };
  setup->options = (hk_policy_options){
      .stride = args->stride > 0 ? (int)args->stride : 0,
      .stride_auto = args->stride == HK_STRIDE_AUTO,
      .ratio = args->ratio,
      .buffers = (int)args->buffers,
  };
  HK_TRY(hk_job_check(&setup->job, &setup->model, err));
  return have_gpus(&setup->job, &setup->machine, err);
}

hk_status hk_setup_load(const hk_args *args, hk_setup *setup, hk_error *err) {
  *setup = (hk_setup){0};
  if (args->policy) HK_TRY(hk_policy_find(args->policy, &setup->policy, err));
  HK_TRY(hk_setup_model(args, &setup->model, err));
  HK_TRY(hk_setup_freeze(args, &setup->model, err));
  HK_TRY(load_machine(args, NULL, &setup->machine, err));
  return hk_setup_fill(args, setup, err);
}

void hk_setup_free(hk_setup *setup) {
  hk_model_free(&setup->model);
  hk_machine_free(&setup->machine);
}

void hk_setup_for_deepspeed(const hk_setup *setup, hk_plan_settings *settings, hk_job *job) {
  *settings = setup->settings;
  settings->overlap = HK_OVERLAP_NONE;
  settings->optimizer = HK_OPTIMIZER_FP32;
  settings->accumulate = NULL;
  *job = setup->job;
  job->loss_chunks = 1;
}

static hk_status plan_from_options(const hk_args *args, hk_setup *setup, hk_plan *plan,
                                   hk_error *err) {
  if (!args->policy)
    return hk_fail(err, HK_INPUT,
                   "a PLAN.json or --policy NAME is needed; --help lists the policies");
  HK_TRY(hk_setup_load(args, setup, err));
  hk_candidate candidate = {setup->policy, setup->options, setup->runtime};
  return hk_candidate_plan(&candidate, &setup->model, &setup->machine, &setup->job,
                           &setup->settings, plan, err);
}

/* -- Plan files ------------------------------------------------------------------------------ */

/* Copies the calibration into the profile, without its lists of single measurements. */
static bool add_calibration(const hk_machine *machine, cJSON *profile) {
  static const char *const bulk[] = {"segments", "replays", "series"};
  const cJSON *calibration = hk_calibration_of(machine->document);
  if (!calibration || hk_calibration_of(profile)) return true;
  cJSON *copy = cJSON_Duplicate(calibration, true);
  for (size_t i = 0; i < sizeof bulk / sizeof *bulk; i++)
    cJSON_DeleteItemFromObjectCaseSensitive(copy, bulk[i]);
  if (copy && cJSON_AddItemToObject(profile, "calibration", copy)) return true;
  cJSON_Delete(copy);
  return false;
}

/* The machine's name leads to `profile`. */
static bool is_found(const hk_machine *machine, const cJSON *profile) {
  hk_machine found;
  hk_error ignored = {0};
  if (hk_profiles_machine(machine->name, &found, &ignored) != HK_OK) return false;
  cJSON *other = hk_machine_to_json(&found);
  const bool same = other && cJSON_Compare(profile, other, true);
  cJSON_Delete(other);
  hk_machine_free(&found);
  return same;
}

static hk_status add_profile(const hk_machine *machine, cJSON *root, hk_error *err) {
  cJSON *profile = hk_machine_to_json(machine);
  if (profile && is_found(machine, profile)) {
    cJSON_Delete(profile);
    return HK_OK;
  }
  if (profile && add_calibration(machine, profile) &&
      cJSON_AddItemToObject(root, "profile", profile))
    return HK_OK;
  cJSON_Delete(profile);
  return hk_fail_memory(err, sizeof(cJSON), "a profile");
}

hk_status hk_setup_save_plan(const hk_plan *plan, const hk_machine *machine, const char *path,
                             hk_error *err) {
  cJSON *root = hk_plan_to_json(plan);
  if (!root) return hk_fail_memory(err, sizeof(cJSON), "the plan document");
  hk_status status = HK_OK;
  if (strcmp(plan->machine, machine->name) == 0) status = add_profile(machine, root, err);
  if (status == HK_OK) status = hk_json_save(root, path, err);
  cJSON_Delete(root);
  return status;
}

hk_status hk_setup_read_plan(const hk_args *args, const char *command, hk_plan *plan,
                             hk_error *err) {
  char contradiction[480];
  HK_TRY(hk_plan_load(args->operands[0], plan, err));
  hk_status status = hk_engine_check_plan(plan, err);
  if (status == HK_OK)
    status = hk_policy_check_label(plan, contradiction, sizeof contradiction, err);
  if (status != HK_OK) {
    hk_plan_free(plan);
    return status;
  }
  if (*contradiction && !args->quiet)
    fprintf(stderr, "hocket %s: note: %s\n", command, contradiction);
  if (plan->overlap == HK_OVERLAP_NONE) return HK_OK;
  if (!args->quiet)
    fprintf(
        stderr,
        "hocket %s: note: the plan overlaps its update with forward and backward, which are not "
        "run: the update runs alone\n",
        command);
  hk_plan_set_overlap(plan, HK_OVERLAP_NONE);
  return HK_OK;
}

static hk_status read_plan(const hk_args *args, const cJSON *root, hk_plan *plan,
                           hk_machine *machine, hk_error *err) {
  const char *path = args->operands[0];
  const cJSON *profile = cJSON_GetObjectItemCaseSensitive(root, "profile");
  if (hk_plan_from_json(root, plan, err) != HK_OK) return hk_fail_prefix(err, "%s", path);
  if (args->machine || !profile) return load_machine(args, plan->machine, machine, err);
  if (hk_machine_from_json(profile, machine, err) != HK_OK)
    return hk_fail_prefix(err, "%s: profile", path);
  return hk_setup_change(args, machine, err);
}

static hk_status plan_from_file(const hk_args *args, hk_plan *plan, hk_machine *machine,
                                hk_error *err) {
  const char *path = args->operands[0];
  for (int id = 0; id < HK_OPT_COUNT; id++)
    if (args->given & HK_OPTIONS_PLAN & (hk_option_set)1 << id)
      return hk_fail(err, HK_INPUT, "'--%s' cannot be given with a plan file: '%s' fixes it",
                     hk_option_info((hk_option_id)id)->name, path);
  cJSON *root = NULL;
  HK_TRY(hk_json_load(path, &root, err));
  const hk_status status = read_plan(args, root, plan, machine, err);
  cJSON_Delete(root);
  return status;
}

/* The caller frees both, also on failure. */
static hk_status read_or_make_plan(const hk_args *args, hk_plan *plan, hk_machine *machine,
                                   hk_error *err) {
  *plan = (hk_plan){0};
  *machine = (hk_machine){0};
  if (args->n_operands > 0) return plan_from_file(args, plan, machine, err);
  hk_setup setup = {0};
  hk_status status = plan_from_options(args, &setup, plan, err);
  if (status == HK_OK) { /* hand the machine over */
    *machine = setup.machine;
    setup.machine = (hk_machine){0};
  }
  hk_setup_free(&setup);
  return status;
}

hk_status hk_setup_forecast(const hk_args *args, const hk_sim_options *options,
                            hk_status (*answer)(const hk_args *args, const hk_forecast *forecast,
                                                const hk_machine *machine, hk_error *err),
                            hk_error *err) {
  hk_plan plan;
  hk_machine machine;
  hk_forecast forecast = {0};
  hk_status status = read_or_make_plan(args, &plan, &machine, err);
  if (status == HK_OK) status = hk_forecast_make(&plan, &machine, options, &forecast, err);
  if (status == HK_OK) status = hk_held_add(&forecast, 0, &machine, err);
  if (status == HK_OK) status = answer(args, &forecast, &machine, err);
  hk_forecast_free(&forecast);
  hk_plan_free(&plan);
  hk_machine_free(&machine);
  return status;
}
