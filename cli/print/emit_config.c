/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Chooses a row, simulates the configuration nearest to it, and writes that. */
#include "cli/print/emit_config.h"

#include <stdio.h>
#include <string.h>

#include "cli/baseline.h"
#include "cli/print/emit.h"
#include "core/base/outfile.h"

#define DEEPSPEED_FILE "ds_config.json" /* that Accelerate's file names */

/* -- Making ------------------------------------------------------------------------------------ */

static hk_status choose_row(const hk_args *args, const hk_ranking *ranking, hk_emission *e,
                            hk_error *err) {
  const hk_forecast *stock = hk_best_stock(ranking, e->config.framework);
  e->best = &ranking->forecasts[0];
  if (args->row > (int64_t)ranking->n_fit)
    return hk_fail(err, HK_INPUT, "--row %lld: the ranking has %zu rows that fit",
                   (long long)args->row, ranking->n_fit);
  e->row = args->row > 0 ? &ranking->forecasts[args->row - 1] : stock ? stock : e->best;
  e->rank = (size_t)(e->row - ranking->forecasts) + 1;
  return HK_OK;
}

/* Simulates the configuration under runtime deepspeed. `none_fits`: no row of the ranking that the
 * framework runs fits. */
static hk_status simulate(const hk_setup *setup, bool none_fits, hk_emission *e, hk_error *err) {
  const hk_plan *row = &e->row->plan;
  const hk_train_config *config = &e->config;
  hk_plan_settings settings;
  hk_policy_options options = HK_POLICY_OPTIONS_NONE;
  hk_plan plan = {0};
  hk_job job;
  hk_setup_for_deepspeed(setup, &settings, &job);
  settings.subgroup_numel = row->subgroup_numel;
  const bool part = config->offload && config->ratio < 1;
  if (part) {
    const size_t on_host = row->n_subgroups - hk_plan_count(row, HK_ROUTE_RESIDENT);
    options.ratio = hk_deepspeed_ratio(on_host, row->n_subgroups);
  }
  const hk_candidate candidate = {part              ? &hk_policy_twinflow
                                  : config->offload ? &hk_policy_zero_offload
                                                    : &hk_policy_gpu_only,
                                  options, HK_RUNTIME_DEEPSPEED};
  HK_TRY(
      hk_candidate_plan(&candidate, &setup->model, &setup->machine, &job, &settings, &plan, err));
  HK_TRY(hk_forecast_make(&plan, &setup->machine, NULL, &e->own, err));
  e->has_own = true;
  /* Subgroups are cut otherwise than in the row, and the ratio counts subgroups. */
  e->config = hk_train_config_of(config->framework, &e->own.plan);
  if (e->own.feasible) return HK_OK;
  char title[96];
  return hk_fail(
      err, HK_NO,
      "--emit: %srow %zu as a configuration of %s is %s, which does not fit: %.300s; %.300s",
      none_fits ? "no row that it runs fits; " : "", e->rank,
      hk_framework_titles[config->framework], hk_forecast_title(&e->own, title, sizeof title),
      e->own.problem, e->own.advice);
}

hk_status hk_emission_make(const hk_args *args, const hk_setup *setup, const hk_ranking *ranking,
                           hk_emission *e, hk_error *err) {
  if (!(args->given & HK_OPTION(EMIT)) || ranking->n_fit == 0) return HK_OK;
  e->on = true;
  e->config.framework = (hk_framework)args->emit;
  HK_TRY(choose_row(args, ranking, e, err));
  e->config = hk_train_config_of((hk_framework)args->emit, &e->row->plan);
  e->n_lost = hk_train_config_lost(e->config.framework,
                                   args->row > 0 ? &e->row->plan : &e->best->plan, e->lost);
  if (!hk_framework_runs(e->config.framework, &e->row->plan))
    HK_TRY(simulate(setup, args->row == 0, e, err));
  e->config.max_norm = args->max_norm;
  snprintf(e->config.file, sizeof e->config.file, DEEPSPEED_FILE);
  return HK_OK;
}

void hk_emission_free(hk_emission *emission) {
  if (emission->has_own) hk_forecast_free(&emission->own);
}

const hk_forecast *hk_emission_forecast(const hk_emission *emission) {
  return emission->has_own ? &emission->own : emission->row;
}

static double slowdown(const hk_emission *e) {
  return (double)hk_emission_forecast(e)->iteration_ns / (double)hk_max(1, e->best->iteration_ns);
}

/* -- Saying ------------------------------------------------------------------------------------ */

/* What the prediction assumes of the launch and of the program. */
static void say_assumptions(const hk_emission *e) {
  const hk_plan *plan = &hk_emission_forecast(e)->plan;
  const char *checkpointed = plan->job.checkpoint_activations ? "" : "not ";
  if (e->config.framework == HK_FRAMEWORK_FSDP) {
    fprintf(stderr,
            "hocket plan: note: FSDP is predicted as DeepSpeed's ZeRO-3 with the same placement; "
            "micro-batch %d and accumulation %d are the program's to set\n",
            plan->job.micro_batch, plan->job.grad_accum);
    return;
  }
  if (e->config.framework == HK_FRAMEWORK_ACCELERATE)
    fprintf(stderr,
            "hocket plan: note: it names %s, which the same command writes with --emit deepspeed "
            "-o %s\n",
            e->config.file, e->config.file);
  fprintf(stderr,
          "hocket plan: note: assumes DeepSpeed 0.19.5 or later, %sactivations %scheckpointed by "
          "the model, ranks bound to %d cores each (deepspeed --bind_cores_to_rank)\n",
          e->config.offload ? "DeepSpeedCPUAdam, " : "", checkpointed, plan->cpu_threads);
}

static void say(const hk_emission *e, const hk_args *args) {
  const hk_forecast *f = hk_emission_forecast(e);
  char title[96], best[96], times[160] = "", to[300] = "";
  if (!hk_emit_instead(args->output)) snprintf(to, sizeof to, " to %.280s", args->output);
  hk_forecast_title(e->best, best, sizeof best);
  if (f != e->best)
    snprintf(times, sizeof times, ", %.2f x the best row's %.1f ms (%s under %s)", slowdown(e),
             hk_ms(e->best->iteration_ns), best, hk_runtime_name(e->best->plan.runtime));
  fprintf(stderr,
          "hocket plan: wrote row %zu as a configuration of %s%s: %s, predicted %.1f ms/iteration"
          "%s\n",
          e->rank, hk_framework_titles[e->config.framework], to,
          hk_forecast_title(f, title, sizeof title), hk_ms(f->iteration_ns), times);
  for (int i = 0; i < e->n_lost; i++)
    fprintf(stderr, "hocket plan: note: %s cannot express: %s\n",
            hk_framework_titles[e->config.framework], e->lost[i]);
  say_assumptions(e);
}

hk_status hk_emission_write(const hk_emission *e, const hk_args *args, hk_error *err) {
  hk_outfile *file = NULL;
  HK_TRY(hk_emit_flush(err));
  HK_TRY(hk_outfile_open(args->output, &file, err));
  const hk_status status = hk_train_config_write(&e->config, hk_outfile_stream(file), err);
  if (status != HK_OK) {
    hk_outfile_abort(file);
    return status;
  }
  HK_TRY(hk_outfile_close(file, err));
  if (!args->quiet) say(e, args);
  return HK_OK;
}

void hk_emission_json(const hk_emission *e, cJSON *root, bool *ok) {
  if (!e->on) return;
  const hk_forecast *f = hk_emission_forecast(e);
  char title[96];
  cJSON *object = hk_put_object(root, "emit", ok);
  hk_put_string(object, "framework", hk_framework_titles[e->config.framework], ok);
  hk_put_number(object, "schedule", (double)e->rank - 1, ok);
  hk_put_string(object, "policy", hk_forecast_title(f, title, sizeof title), ok);
  hk_put_number(object, "iteration_ms", hk_ms(f->iteration_ns), ok);
  hk_put_number(object, "tokens_per_s", f->tokens_per_s, ok);
  hk_put_number(object, "best_iteration_ms", hk_ms(e->best->iteration_ns), ok);
  hk_put_number(object, "slowdown", slowdown(e), ok);
  cJSON *lost = hk_put_array(object, "cannot_express", ok);
  for (int i = 0; i < e->n_lost; i++) hk_append_item(lost, cJSON_CreateString(e->lost[i]), ok);
  if (e->config.framework == HK_FRAMEWORK_DEEPSPEED)
    hk_put_item(object, "config", hk_train_config_to_json(&e->config), ok);
}
