/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The configuration file becomes options, a candidate under runtime deepspeed, and a forecast. */
#include "cli/baseline.h"

#include <stdio.h>

#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/report_uncertainty.h"
#include "cli/print/screen.h"

hk_status hk_baseline_read(hk_args *args, hk_baseline *baseline, hk_error *err) {
  if (!args->from) return HK_OK;
  hk_train_config *config = &baseline->config;
  HK_TRY(hk_train_config_load(args->from, config, err));
  baseline->path = args->from;
  if (!(args->given & HK_OPTION(GPUS)) && config->gpus > 0) args->gpus = config->gpus;
  if (!(args->given & HK_OPTION(NODES)) && config->nodes > 0) args->nodes = config->nodes;
  if (!(args->given & HK_OPTION(TP)) && config->tp > 0) args->tp = config->tp;
  if (!(args->given & HK_OPTION(CHECKPOINT)) && config->checkpoint >= 0)
    args->checkpoint = config->checkpoint == 0;
  if (!(args->given & HK_OPTION(MAX_NORM))) args->max_norm = config->max_norm;
  return HK_OK;
}

/* -- The batch --------------------------------------------------------------------------------- */

/* DeepSpeed: batch = micro-batch x accumulation x ranks. Any two give the third. */
static hk_status settle_batch(const hk_train_config *config, int dp, int64_t *micro, int64_t *accum,
                              hk_error *err) {
  const int64_t batch = config->global_batch;
  if (batch == 0) return HK_OK;
  if (config->micro_batch == 0 && config->grad_accum == 0) *accum = 1;
  if (config->micro_batch == 0) *micro = batch / dp / *accum;
  if (config->micro_batch > 0 && config->grad_accum == 0) *accum = batch / dp / *micro;
  if (*micro < 1 || *accum < 1 || *micro * *accum * dp != batch)
    return hk_fail(err, HK_INPUT,
                   "train_batch_size %lld is not micro-batch %lld x accumulation %lld x %d ranks; "
                   "DeepSpeed refuses it, too",
                   (long long)batch, (long long)hk_max(*micro, 1), (long long)hk_max(*accum, 1),
                   dp);
  if (*micro > HK_MOST_MICRO_BATCH || *accum > HK_MOST_GRAD_ACCUM)
    return hk_fail(err, HK_INPUT,
                   "train_batch_size %lld: the micro-batch is at most %d and the "
                   "accumulation at most %d",
                   (long long)batch, HK_MOST_MICRO_BATCH, HK_MOST_GRAD_ACCUM);
  return HK_OK;
}

static hk_status set_batch(const hk_args *args, hk_setup *setup, const hk_baseline *baseline,
                           hk_error *err) {
  const hk_train_config *config = &baseline->config;
  hk_job *job = &setup->job;
  const bool micro_given = args->given & HK_OPTION(MICRO_BATCH);
  const bool accum_given = args->given & HK_OPTION(GRAD_ACCUM);
  int64_t micro = config->micro_batch > 0 ? config->micro_batch : job->micro_batch;
  int64_t accum = config->grad_accum > 0 ? config->grad_accum : job->grad_accum;
  if (!micro_given && !accum_given &&
      settle_batch(config, hk_job_dp(job), &micro, &accum, err) != HK_OK)
    return hk_fail_prefix(err, "%s", baseline->path);
  if (!micro_given) job->micro_batch = (int)micro;
  if (!accum_given) job->grad_accum = (int)accum;
  return hk_job_check(job, &setup->model, err);
}

/* -- The forecast ------------------------------------------------------------------------------ */

static hk_candidate candidate_of(const hk_train_config *config, double ratio) {
  const hk_policy *policy = &hk_policy_zero_offload;
  hk_policy_options options = HK_POLICY_OPTIONS_NONE;
  if (!config->offload || ratio <= 0) {
    policy = &hk_policy_gpu_only;
  } else if (ratio < 1) {
    policy = &hk_policy_twinflow;
    options.ratio = ratio;
  }
  return (hk_candidate){policy, options, HK_RUNTIME_DEEPSPEED};
}

static hk_status plan_yours(const hk_setup *setup, const hk_train_config *config,
                            const hk_flush *flush, double ratio, hk_plan *plan, hk_error *err) {
  const hk_candidate candidate = candidate_of(config, ratio);
  hk_plan_settings settings;
  hk_job job;
  hk_setup_for_deepspeed(setup, &settings, &job);
  settings.subgroup_numel = config->subgroup_numel;
  settings.flush = flush;
  return hk_candidate_plan(&candidate, &setup->model, &setup->machine, &job, &settings, plan, err);
}

static hk_status forecast(const hk_setup *setup, const hk_train_config *config, hk_flush flush,
                          hk_forecast *out, hk_error *err) {
  hk_plan plan = {0};
  HK_TRY(plan_yours(setup, config, &flush, 1, &plan, err));
  if (config->offload && hk_deepspeed_on_host(config->ratio, plan.n_subgroups) < plan.n_subgroups) {
    hk_plan_free(&plan);
    HK_TRY(plan_yours(setup, config, &flush, config->ratio, &plan, err));
  }
  return hk_forecast_make(&plan, &setup->machine, NULL, out, err);
}

/* Options of the other rows. */
static void note_options(const hk_setup *setup, hk_train_config *config) {
  const bool optimizer = setup->settings.optimizer != HK_OPTIMIZER_FP32;
  if ((!optimizer && setup->job.loss_chunks <= 1) || config->n_notes == HK_MOST_CONFIG_NOTES)
    return;
  snprintf(config->notes[config->n_notes++], sizeof config->notes[0],
           "%s does not hold for yours: it is planned with AdamW in fp32 and an undivided loss",
           optimizer ? "--state" : "--loss-chunks");
}

/* DeepSpeed rounds in favour of the host, so a ratio has no effect if subgroups are few. */
static void note_idle_ratio(hk_train_config *config, size_t n) {
  if (!config->offload || config->ratio >= 1 || hk_deepspeed_on_host(config->ratio, n) < n) return;
  if (config->n_notes == HK_MOST_CONFIG_NOTES) return;
  snprintf(config->notes[config->n_notes++], sizeof config->notes[0],
           "ratio %g has no effect: DeepSpeed keeps int(%g x %zu) = 0 subgroups of %zu on the GPU; "
           "sub_group_size below %lld makes more of them",
           config->ratio, 1 - config->ratio, n, n, (long long)config->subgroup_numel);
}

/* DeepSpeed before 0.18 (hk_policy_keep_resident). */
static void note_old_placement(hk_train_config *config, size_t n) {
  const size_t on_gpu = n - hk_deepspeed_on_host(config->ratio, n);
  const size_t before = n - (size_t)(config->ratio * (double)n);
  if (!config->offload || config->ratio >= 1 || before == on_gpu) return;
  if (config->n_notes == HK_MOST_CONFIG_NOTES) return;
  snprintf(config->notes[config->n_notes++], sizeof config->notes[0],
           "ratio %g keeps %zu of %zu subgroups on the GPU; DeepSpeed before 0.18 keeps %zu",
           config->ratio, on_gpu, n, before);
}

hk_status hk_baseline_simulate(const hk_args *args, hk_setup *setup, hk_baseline *baseline,
                               hk_error *err) {
  if (!baseline->path) return HK_OK;
  HK_TRY(set_batch(args, setup, baseline, err));
  const bool given = args->given & HK_OPTION(FLUSH);
  const hk_flush flush = given                     ? setup->flush
                         : baseline->config.pinned ? HK_FLUSH_ASYNC
                                                   : HK_FLUSH_SYNC;
  HK_TRY(forecast(setup, &baseline->config, flush, &baseline->forecast, err));
  note_idle_ratio(&baseline->config, baseline->forecast.plan.n_subgroups);
  note_old_placement(&baseline->config, baseline->forecast.plan.n_subgroups);
  note_options(setup, &baseline->config);
  if (baseline->forecast.feasible)
    HK_TRY(
        hk_uncertainty_make(&baseline->forecast, 1, &setup->machine, &baseline->uncertainty, err));
  if (given || flush == HK_FLUSH_SYNC || !baseline->config.offload) return HK_OK;
  hk_forecast sync = {0};
  HK_TRY(forecast(setup, &baseline->config, HK_FLUSH_SYNC, &sync, err));
  baseline->sync_ns = sync.iteration_ns;
  hk_forecast_free(&sync);
  return HK_OK;
}

void hk_baseline_free(hk_baseline *baseline) {
  hk_uncertainty_free(&baseline->uncertainty);
  if (baseline->path) hk_forecast_free(&baseline->forecast);
}

const hk_row_error *hk_baseline_error(const hk_baseline *baseline) {
  return baseline->uncertainty.n > 0 ? baseline->uncertainty.rows : NULL;
}

/* -- Printing ---------------------------------------------------------------------------------- */

const hk_forecast *hk_best_stock(const hk_ranking *ranking, hk_framework framework) {
  for (size_t i = 0; i < ranking->n_fit; i++)
    if (hk_framework_runs(framework, &ranking->forecasts[i].plan)) return &ranking->forecasts[i];
  return NULL;
}

/* "WHAT: TITLE (RUNTIME), 854.3 ms/iteration, 4.40 x as fast as yours". */
static void print_better(const char *what, const hk_forecast *other, const hk_baseline *baseline) {
  char title[96], times[64] = "";
  if (baseline->forecast.feasible)
    snprintf(times, sizeof times, ", %.2f x as fast as yours",
             (double)baseline->forecast.iteration_ns / (double)hk_max(1, other->iteration_ns));
  hk_print_text(0, 2, "%s: %s (%s), %.1f ms/iteration%s", what,
                hk_forecast_title(other, title, sizeof title), hk_runtime_name(other->plan.runtime),
                hk_ms(other->iteration_ns), times);
}

void hk_baseline_print(const hk_baseline *baseline, const hk_ranking *ranking, bool quiet) {
  if (!baseline->path) return;
  const hk_forecast *own = &baseline->forecast;
  const hk_forecast *stock = hk_best_stock(ranking, baseline->config.framework);
  const hk_row_error *error = hk_baseline_error(baseline);
  char title[96], time[64];
  hk_forecast_title(own, title, sizeof title);
  hk_format_ms(own->iteration_ns, error ? &error->iteration : NULL, time, sizeof time);
  if (own->feasible)
    hk_print_text(0, 2, "yours (%s): %s under %s, %s ms/iteration, %.0f tokens/s", baseline->path,
                  title, hk_framework_titles[baseline->config.framework], time, own->tokens_per_s);
  else
    hk_print_text(0, 2, "yours (%s): %s does not fit: %s", baseline->path, title, own->problem);
  if (baseline->sync_ns > 0 && own->feasible)
    hk_print_text(2, 0,
                  "with DeepSpeed before 0.19.5, which copies gradients synchronously: %.1f ms",
                  hk_ms(baseline->sync_ns));
  if (stock && (!own->feasible || stock->iteration_ns < own->iteration_ns))
    print_better("better by configuration alone (--emit)", stock, baseline);
  const hk_forecast *best = ranking->n_fit > 0 ? ranking->forecasts : NULL;
  if (best && best != stock) print_better("best", best, baseline);
  for (int i = 0; i < baseline->config.n_notes && !quiet; i++)
    hk_print_text(0, 2, "note: %s: %s", baseline->path, baseline->config.notes[i]);
}

hk_status hk_baseline_json(const hk_baseline *baseline, const hk_machine *machine, cJSON *root,
                           bool *ok, hk_error *err) {
  if (!baseline->path) return HK_OK;
  cJSON *object = hk_put_object(root, "yours", ok);
  hk_put_string(object, "schema", "hocket.forecast/1", ok);
  hk_put_string(object, "file", baseline->path, ok);
  hk_put_string(object, "framework", hk_framework_titles[baseline->config.framework], ok);
  HK_TRY(hk_report_json(&baseline->forecast, machine, object, err));
  hk_report_forecast_error_json(&baseline->uncertainty, &baseline->forecast, object, ok);
  if (baseline->sync_ns > 0)
    hk_put_number(object, "sync_iteration_ms", hk_ms(baseline->sync_ns), ok);
  cJSON *notes = hk_put_array(object, "notes", ok);
  for (int i = 0; i < baseline->config.n_notes; i++)
    hk_append_item(notes, cJSON_CreateString(baseline->config.notes[i]), ok);
  return HK_OK;
}
