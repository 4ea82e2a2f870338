/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Warnings about a forecast: where it depends on more than the profile knows. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/machine/team.h"
#include "sim/coverage.h"
#include "sim/forecast.h"
#include "sim/warnings.h"

#define MOST_WARNINGS 32
/* Pieces of this many parameters are large: a team on every core is then predicted as well as
 * others. With pieces of a tenth of it such plans were predicted up to 30 % too fast, because
 * queueing takes a core. Teams of at least HK_LEAST_LENDER threads leave it one since
 * (hk_team_size); their plans are within 3 %. */
#define SMALL_PIECE 5000000

typedef struct {
  char **list;
  size_t n;
  hk_status status;
  hk_error *err;
} hk_warnings;

__attribute__((format(printf, 2, 3))) static void warn(hk_warnings *w, const char *format, ...) {
  if (w->status != HK_OK || w->n == MOST_WARNINGS) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  w->list[w->n] = strdup(text);
  if (w->list[w->n] == NULL) {
    w->status = hk_fail_memory(w->err, sizeof text, "a warning");
  } else {
    w->n++;
  }
}

/* Whether the time of any computation is derived from floating-point operations. */
static bool reckons_flops(const hk_model *model) {
  if (model->blocks == NULL) return true;
  for (int b = 0; b < (int)model->layers + 2; b++) {
    const hk_block *block = &model->blocks[b];
    if (block->forward_ms <= 0 && block->forward_flops > 0) return true;
    if (block->backward_ms <= 0 && block->forward_flops + block->backward_flops > 0) return true;
  }
  return false;
}

/* Whether the model states the host's times to launch any block. */
static bool states_launches(const hk_model *model) {
  for (int b = 0; model->blocks != NULL && b < (int)model->layers + 2; b++) {
    const hk_block *block = &model->blocks[b];
    if (block->forward_launch_ms > 0 || block->backward_launch_ms > 0) return true;
  }
  return false;
}

/* Quantities that are hocket's defaults although this plan's time depends on them. */
static void warn_of_defaults(hk_warnings *w, const hk_plan *plan, const hk_machine *machine) {
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  const struct {
    bool matters;
    const char *key;
  } uses[] = {
      {n[HK_ROUTE_CPU] > 0 && !deepspeed, "cpu.adamw_params_per_s"},
      {n[HK_ROUTE_CPU] > 0, "cpu.adamw_thread_scale"},
      {n[HK_ROUTE_CPU] > 0 && deepspeed, "cpu.adamw_fp32_params_per_s"},
      {n[HK_ROUTE_CPU] > 0 && deepspeed, "cpu.unscale_params_per_s"},
      {n[HK_ROUTE_CPU] > 0 && deepspeed, "pcie.h2d_pageable_bytes_per_s"},
      {n[HK_ROUTE_CPU] > 0 && n[HK_ROUTE_STAGED] > 0, "dram.with_dma_bytes_per_s"},
      {reckons_flops(&plan->model), "gpu.matmul_efficiency"},
      {reckons_flops(&plan->model), "framework.layer_launch_ns"},
      {hk_job_dp(&plan->job) > 1 && !deepspeed, "gpu.collective_share"},
      {plan->overlap != HK_OVERLAP_NONE, "gpu.compute_beside_update"},
      {states_launches(&plan->model), "framework.handover_ns"},
      {states_launches(&plan->model) && plan->overlap != HK_OVERLAP_NONE &&
           plan->model.launch_beside_update.n == 0,
       "framework.launch_beside_update"},
      {hk_plan_ahead(plan) > 0, "cpu.adamw_ahead_rate"},
  };
  char keys[400] = "";
  size_t used = 0, count = 0;
  size_t n_info = 0;
  const hk_quantity_info *info = hk_quantity_list(&n_info);
  for (size_t u = 0; u < sizeof uses / sizeof uses[0]; u++) {
    if (!uses[u].matters) continue;
    for (size_t i = 0; i < n_info; i++) {
      if (strcmp(info[i].key, uses[u].key) != 0) continue;
      if (hk_machine_quantity_const(machine, &info[i])->origin != HK_ORIGIN_DEFAULT) continue;
      if (used < sizeof keys) {
        used += (size_t)snprintf(keys + used, sizeof keys - used, "%s%s", count > 0 ? ", " : "",
                                 info[i].key);
      }
      count++;
    }
  }
  if (count > 0) {
    warn(w, "%s of %s %s never measured there but hocket's default: %s",
         count == 1 ? "a rate" : "rates", machine->name, count == 1 ? "was" : "were", keys);
  }
}

static void warn_of_job(hk_warnings *w, const hk_plan *plan, const hk_machine *machine) {
  const int gpus = (int)machine->gpus.value, jobs = hk_job_jobs(&plan->job);
  char each[32] = "";
  if (jobs > 1) snprintf(each, sizeof each, "--jobs %d times ", jobs);
  if (hk_job_ranks(&plan->job) > gpus) {
    warn(w,
         "%s--gpus %d is more than the %d of %s: its fabric, host memory and cores are scaled to "
         "that number, which nobody has measured",
         each, plan->job.gpus, gpus, machine->name);
  }
  if (plan->job.nodes > 1 && machine->net.origin == HK_ORIGIN_DEFAULT) {
    warn(w, "the network between nodes of %s is hocket's default", machine->name);
  }
  if (strcmp(plan->machine, machine->name) != 0 && plan->machine[0] != '\0') {
    warn(w, "the plan was made for %s", plan->machine);
  }
  if (plan->cores_bound && hk_spare_cores(plan, machine) < 0) {
    warn(w, "%d ranks of %d CPU threads share the %d cores of %s", hk_job_ranks(&plan->job),
         plan->cpu_threads, (int)machine->cores.value, machine->name);
  }
}

/* Whether the profile was fitted on runs with tensor parallelism. */
static bool knows_tensor_parallelism(const hk_machine *machine) {
  const cJSON *fitted_on = cJSON_GetObjectItemCaseSensitive(machine->document, "fitted_on");
  const cJSON *range = cJSON_GetObjectItemCaseSensitive(fitted_on, "tp");
  const cJSON *most = cJSON_GetArrayItem(range, 1);
  return cJSON_IsNumber(most) && most->valuedouble > 1;
}

static void warn_of_tensor_parallelism(hk_warnings *w, const hk_plan *plan,
                                       const hk_machine *machine) {
  if (plan->job.tp < 2 || knows_tensor_parallelism(machine)) return;
  warn(w,
       "tp %d: predictions of published iterations with tensor parallelism were 10 to 40 %% off, "
       "and %s was not fitted to any such run: 1/%d of a matrix counts with the efficiency of a "
       "whole one, and nothing is computed beside an all-reduce",
       plan->job.tp, machine->name, plan->job.tp);
}

/* The costs of a listed model are for one number of tokens; others are scaled. */
static void warn_of_scaling(hk_warnings *w, const hk_plan *plan) {
  const hk_model *m = &plan->model;
  const hk_job *job = &plan->job;
  if (m->blocks == NULL || (job->micro_batch == m->micro_batch && job->seq == m->seq)) return;
  warn(
      w,
      "computation and activations of %s are for %lld x %lld tokens a micro-step; those of %d x %d "
      "are scaled in proportion to the tokens",
      m->name, (long long)m->micro_batch, (long long)m->seq, job->micro_batch, job->seq);
}

/* Teams that fill every core and leave none to queueing: the simulator does not model that. */
static void warn_of_queueing(hk_warnings *w, const hk_plan *plan, const hk_machine *machine) {
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  if (plan->runtime != HK_RUNTIME_HOCKET || n[HK_ROUTE_CPU] == 0 || n[HK_ROUTE_STAGED] == 0 ||
      plan->piece_numel >= SMALL_PIECE || plan->cpu_threads >= HK_LEAST_LENDER ||
      hk_spare_cores(plan, machine) > 0)
    return;
  warn(w,
       "CPU teams have every core of %s, and state is moved in pieces of %.3g M parameters: what "
       "queueing takes from the teams is not modelled; leave a core, or take pieces of %d M",
       machine->name, (double)plan->piece_numel / 1e6, SMALL_PIECE / 1000000);
}

const char *hk_profile_trouble(const cJSON *document, char *buffer, size_t size) {
  const cJSON *calibration = cJSON_GetObjectItemCaseSensitive(document, "calibration");
  const cJSON *errors = cJSON_GetObjectItemCaseSensitive(calibration, "replay_error_pct");
  const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(document, "name"));
  buffer[0] = '\0';
  if (!cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(calibration, "accepted"))) return buffer;
  snprintf(buffer, size,
           "the calibration of %.95s was not accepted: its own probes are predicted with errors of "
           "%.1f %% (median) and %.1f %% (nine in ten); calibrate again on a quiet machine, or for "
           "longer",
           name ? name : "this profile", hk_json_number_or(errors, "median", NAN),
           hk_json_number_or(errors, "p90", NAN));
  return buffer;
}

/* What the profile says about itself. */
static void warn_of_notes(hk_warnings *w, const hk_machine *machine) {
  const cJSON *note = NULL;
  cJSON_ArrayForEach(note, cJSON_GetObjectItemCaseSensitive(machine->document, "notes")) {
    if (cJSON_IsString(note)) warn(w, "%s: %s", machine->name, note->valuestring);
  }
}

static void warn_of_keys(hk_warnings *w, const hk_machine *machine) {
  char keys[400];
  if (*hk_machine_unknown_keys(machine->document, keys, sizeof keys))
    warn(w, "the profile %s has keys that are not used: %s", machine->name, keys);
}

static void warn_of_calibration(hk_warnings *w, const hk_machine *machine) {
  char text[320];
  if (*hk_profile_trouble(machine->document, text, sizeof text)) warn(w, "%s", text);
}

static void warn_of_model(hk_warnings *w, const hk_model *model) {
  for (int i = 0; i < model->n_notes; i++) warn(w, "%s: %s", model->name, model->notes[i]);
}

/* Rotary positions have no end, but the model has not seen such distances. */
static void warn_of_sequence(hk_warnings *w, const hk_plan *plan) {
  const int64_t most = plan->model.max_positions;
  if (most <= 0 || plan->job.seq <= most) return;
  warn(w,
       "sequences of %d tokens are beyond the %lld positions that %s was made for: memory and time "
       "are right, but its positions must be scaled to train on them (rope_scaling)",
       plan->job.seq, (long long)most, plan->model.name);
}

static void warn_of_optimizer(hk_warnings *w, const hk_plan *plan, const hk_machine *machine) {
  const hk_optimizer_info *o = hk_optimizer_info_of(plan->optimizer);
  const bool measured = hk_update_limit(machine, plan->optimizer) != NULL;
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  const bool gpu = n[HK_ROUTE_STAGED] + n[HK_ROUTE_MAPPED] + n[HK_ROUTE_RESIDENT] > 0;
  if (plan->optimizer == HK_OPTIMIZER_FP32 || (measured && !gpu)) return;
  warn(
      w,
      "no update of %s%s was measured: its kernels count as AdamW's, by memory traffic (%.4g bytes "
      "a parameter instead of 28)%s%s%s",
      o->name, measured ? " on the GPU" : "", hk_update_traffic(plan->optimizer),
      o->thread > 0 && !measured ? " or its arithmetic on one kind of node" : "",
      o->orthogonal ? ", and its matrix products as forward's" : "",
      o->engine ? "" : "; the engine does not implement it");
}

/* Rows of an expert's products from which the GPU's efficiency is assumed to be that of large ones.
 */
#define MANY_ROWS 1024

/* The profile's efficiency is that of large products; those of experts have fewer rows. */
static void warn_of_experts(hk_warnings *w, const hk_plan *plan) {
  const hk_model *m = &plan->model;
  if (m->experts == 0) return;
  if (hk_job_ep(&plan->job) > 1)
    warn(w,
         "ep %d: every expert is assumed to get equally many tokens; without balance the rank with "
         "the most tokens sets the time, and needs more memory",
         plan->job.ep);
  /* From ep ranks, each of which has 1/tp of the tokens of its sequences. */
  const double senders =
      hk_job_ep(&plan->job) > 1 ? (double)hk_job_ep(&plan->job) / plan->job.tp : 1;
  const double rows = senders * plan->job.micro_batch * plan->job.seq *
                      (double)m->experts_per_token / (double)m->experts;
  if (rows >= MANY_ROWS) return;
  warn(w,
       "an expert of %s gets about %.0f tokens a micro-step: its products are smaller than those "
       "that the GPU's efficiency was measured with, and forward and backward take longer than "
       "predicted; a larger --micro-batch helps",
       m->name, rows);
}

static void warn_of_label(hk_warnings *w, const hk_plan *plan) {
  char text[480];
  if (w->status != HK_OK) return;
  w->status = hk_policy_check_label(plan, text, sizeof text, w->err);
  if (w->status == HK_OK && text[0] != '\0') warn(w, "%s", text);
}

static void warn_of_gap(void *context, const char *sentence) {
  warn(context, "%s", sentence);
}

/* Where the plan is outside of the runs that the profile was fitted on. */
static void warn_of_extrapolation(hk_warnings *w, const hk_plan *plan, const hk_machine *machine) {
  const cJSON *fitted_on = NULL;
  if (w->status == HK_OK) w->status = hk_coverage_of(machine, &fitted_on, w->err);
  if (w->status == HK_OK && fitted_on) {
    hk_coverage_gaps(machine, fitted_on, plan, warn_of_gap, w);
  }
}

/* Some of the node's GPUs. A profile that was fitted to runs says by its ranges (extrapolation)
 * whether such runs were among them. */
static void warn_of_idle_gpus(hk_warnings *w, const hk_plan *plan, const hk_machine *machine) {
  const cJSON *fitted_on = NULL;
  int64_t n[HK_ROUTE_COUNT];
  if (w->status == HK_OK) w->status = hk_coverage_of(machine, &fitted_on, w->err);
  hk_plan_route_totals(plan, n);
  const bool host = n[HK_ROUTE_CPU] + n[HK_ROUTE_STAGED] + n[HK_ROUTE_MAPPED] > 0;
  if (w->status != HK_OK || fitted_on != NULL || !host) return;
  if (hk_job_ranks(&plan->job) >= (int)machine->gpus.value) return;
  char jobs[32] = "";
  if (hk_job_jobs(&plan->job) > 1) snprintf(jobs, sizeof jobs, " --jobs %d", plan->job.jobs);
  warn(w,
       "--gpus %d%s of the %.0f of %s: the prediction leaves the other GPUs idle and gives these "
       "all cores and all of host memory%s",
       plan->job.gpus, jobs, machine->gpus.value, machine->name,
       *jobs ? "" : "; --jobs N is so many such jobs at once");
}

hk_status hk_forecast_warnings(const hk_plan *plan, const hk_machine *machine, char ***warnings,
                               hk_error *err) {
  hk_warnings w = {.err = err};
  *warnings = NULL;
  w.list = calloc(MOST_WARNINGS + 1, sizeof *w.list);
  if (w.list == NULL) return hk_fail_memory(err, MOST_WARNINGS * sizeof *w.list, "warnings");
  warn_of_calibration(&w, machine);
  warn_of_notes(&w, machine);
  warn_of_keys(&w, machine);
  warn_of_defaults(&w, plan, machine);
  warn_of_model(&w, &plan->model);
  warn_of_experts(&w, plan);
  warn_of_sequence(&w, plan);
  warn_of_optimizer(&w, plan, machine);
  warn_of_job(&w, plan, machine);
  warn_of_idle_gpus(&w, plan, machine);
  warn_of_tensor_parallelism(&w, plan, machine);
  warn_of_scaling(&w, plan);
  warn_of_label(&w, plan);
  warn_of_queueing(&w, plan, machine);
  warn_of_extrapolation(&w, plan, machine);
  if (w.status != HK_OK) {
    hk_warnings_free(w.list);
    return w.status;
  }
  *warnings = w.list;
  return HK_OK;
}

void hk_warnings_free(char **warnings) {
  for (size_t i = 0; warnings != NULL && warnings[i] != NULL; i++) free(warnings[i]);
  free(warnings);
}
