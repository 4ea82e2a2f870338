/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Searches ("hocket.plan_largest/1"); their print is in print_largest.c. */
#include "cli/largest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/print/emit.h"
#include "cli/print/print_largest.h"
#include "cli/print/screen.h"
#include "core/base/names.h"
#include "sim/largest.h"
#include "sim/rank.h"

#define MOST_BATCH  65536 /* as --micro-batch */
#define MOST_LAYERS 4096
#define SEQ_STEP    1024

/* -- Attempts ---------------------------------------------------------------------------------- */

static hk_ranking_options options_of(const hk_largest_job *l, bool quick) {
  return (hk_ranking_options){
      .quick = quick,
      .only_policy = l->setup.policy,
      .only_runtime = l->args->given & HK_OPTION(RUNTIME) ? &l->setup.runtime : NULL,
      .fixed = l->setup.options,
  };
}

static void fill_row(hk_largest_row *row, const hk_ranking *ranking) {
  const hk_forecast *best = &ranking->forecasts[0];
  row->fits = ranking->n_fit > 0;
  row->iteration_ns = best->iteration_ns;
  row->tokens_per_s = best->tokens_per_s;
  row->gpu_peak = best->result.memory.peak;
  row->host_peak = best->result.memory.host_peak;
  hk_forecast_title(best, row->title, sizeof row->title);
  snprintf(row->problem, sizeof row->problem, "%s", best->problem);
}

/* Ranks a model and a job quickly, which finds every size that fits (sim/rank.h), adds a row, and
 * keeps the ranking if it fits: of numbers that fit, each search tries larger ones later. */
static hk_status rank(hk_largest_job *l, const hk_model *model, const hk_job *job, int64_t value,
                      bool *fits, hk_error *err) {
  const hk_ranking_options options = options_of(l, true);
  hk_ranking ranking;
  if (l->n == HK_LARGEST_ROWS)
    return hk_fail(err, HK_NO, "--largest tried more than %d sizes", HK_LARGEST_ROWS);
  HK_TRY(hk_rank(model, &l->setup.machine, job, &l->setup.settings, &options, &ranking, err));
  const size_t at = l->n++;
  hk_largest_row *row = &l->rows[at];
  row->value = value;
  row->parameters = model->parameters;
  snprintf(row->name, sizeof row->name, "%s", model->name);
  fill_row(row, &ranking);
  *fits = row->fits;
  if (row->fits && value > l->best.value) {
    hk_ranking_free(&l->best.ranking);
    l->best = (hk_largest_best){.value = value, .row = at, .ranking = ranking};
    return HK_OK;
  }
  hk_ranking_free(&ranking);
  return HK_OK;
}

static hk_status try_batch(void *context, int64_t n, bool *fits, hk_error *err) {
  hk_largest_job *l = context;
  hk_job job = l->setup.job;
  job.micro_batch = (int)n;
  return rank(l, &l->setup.model, &job, n, fits, err);
}

static hk_status try_seq(void *context, int64_t n, bool *fits, hk_error *err) {
  hk_largest_job *l = context;
  hk_job job = l->setup.job;
  job.seq = (int)(n * l->step);
  return rank(l, &l->setup.model, &job, n * l->step, fits, err);
}

/* -- Models ------------------------------------------------------------------------------------ */

/* Sets the number of layers wherever a config states it. False: nowhere. */
static bool set_layers(cJSON *config, int64_t n) {
  static const char *const keys[] = {"num_hidden_layers", "n_layer", "num_layers",
                                     "num_decoder_layers"};
  bool set = false;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    cJSON *item = cJSON_GetObjectItemCaseSensitive(config, keys[i]);
    if (!cJSON_IsNumber(item)) continue;
    cJSON_SetNumberValue(item, (double)n);
    set = true;
  }
  cJSON *text = cJSON_GetObjectItemCaseSensitive(config, "text_config");
  return (cJSON_IsObject(text) && set_layers(text, n)) || set;
}

/* The model with n layers; false if its config does not allow that. */
static bool with_layers(const hk_model *model, int64_t n, hk_model *scaled) {
  hk_error ignored = {0};
  char name[96];
  *scaled = (hk_model){0};
  if (!model->config || model->arch == HK_ARCH_LISTED) return false;
  cJSON *config = cJSON_Duplicate(model->config, true);
  snprintf(name, sizeof name, "%.60s, %lld layers", model->name, (long long)n);
  const bool made = config && set_layers(config, n) &&
                    hk_model_from_config(config, name, scaled, &ignored) == HK_OK;
  cJSON_Delete(config);
  return made;
}

static hk_status try_layers(void *context, int64_t n, bool *fits, hk_error *err) {
  hk_largest_job *l = context;
  hk_model scaled;
  *fits = false;
  if (!with_layers(&l->setup.model, n, &scaled)) return HK_OK;
  const hk_status status = rank(l, &scaled, &l->setup.job, n, fits, err);
  hk_model_free(&scaled);
  return status;
}

/* Length of a preset's name without its last word: "llama-2" of "llama-2-7b". */
static size_t family_length(const char *name) {
  const char *dash = strrchr(name, '-');
  return dash ? (size_t)(dash - name) : strlen(name);
}

static int by_parameters(const void *a, const void *b) {
  const hk_model *x = a, *y = b;
  if (x->parameters != y->parameters) return x->parameters < y->parameters ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* The presets of the family of --model, smallest first. None if it is not a preset. */
static hk_status load_family(hk_largest_job *l, hk_error *err) {
  char **names = NULL;
  size_t n = 0;
  const char *model = l->args->model ? l->args->model : "";
  HK_TRY(hk_share_list("models", &names, &n, err));
  bool preset = false;
  for (size_t i = 0; i < n; i++) preset |= strcmp(names[i], model) == 0;
  l->family = calloc(n + 1, sizeof *l->family);
  hk_status status =
      l->family ? HK_OK : hk_fail_memory(err, (n + 1) * sizeof *l->family, "a family of models");
  for (size_t i = 0; preset && i < n && status == HK_OK; i++) {
    const size_t length = family_length(model);
    if (family_length(names[i]) != length || strncmp(names[i], model, length) != 0) continue;
    status = hk_model_load(names[i], &l->family[l->n_family], err);
    l->n_family += status == HK_OK;
  }
  hk_names_free(names, n);
  if (l->family && l->n_family > 0) qsort(l->family, l->n_family, sizeof *l->family, by_parameters);
  return status;
}

static hk_status try_preset(void *context, int64_t n, bool *fits, hk_error *err) {
  hk_largest_job *l = context;
  return rank(l, &l->family[n - 1], &l->setup.job, n, fits, err);
}

/* -- Searches ---------------------------------------------------------------------------------- */

static void show_progress(void *context, int made, int remain) {
  hk_largest_job *l = context;
  const hk_ns now = hk_now();
  if (made == 0) l->began = now;
  if (!l->shows || made == 0 || now - l->began < HK_NS_PER_S) return;
  hk_screen_progress("hocket plan: %d sizes tried, about %.0f s left", made,
                     hk_s(now - l->began) / made * remain);
}

static hk_status search(hk_largest_job *l, int64_t most,
                        hk_status (*attempt)(void *, int64_t, bool *, hk_error *), hk_error *err) {
  const hk_largest_search s = {
      .most = most, .attempt = attempt, .progress = show_progress, .context = l};
  int64_t largest;
  const hk_status status = hk_largest(&s, &largest, err);
  if (l->shows) hk_screen_progress_end();
  l->at_limit = status == HK_OK && largest == most;
  return status;
}

/* The most steps that the model and hocket allow. */
static int64_t most_seq(const hk_largest_job *l) {
  int64_t low = 0, high = HK_MOST_SEQ / l->step + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    hk_job job = l->setup.job;
    job.seq = (int)(middle * l->step);
    hk_error ignored = {0};
    if (hk_job_check(&job, &l->setup.model, &ignored) == HK_OK)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static hk_status search_seq(hk_largest_job *l, hk_error *err) {
  l->step = SEQ_STEP;
  HK_TRY(search(l, most_seq(l), try_seq, err));
  if (l->best.value > 0) return HK_OK;
  l->step = 1;
  return search(l, hk_min(most_seq(l), SEQ_STEP - 1), try_seq, err);
}

/* Presets first; then layers, whose ranking is kept if no preset fits. */
static hk_status search_model(hk_largest_job *l, hk_error *err) {
  hk_model same;
  HK_TRY(load_family(l, err));
  const bool scales = with_layers(&l->setup.model, l->setup.model.layers, &same);
  hk_model_free(&same);
  if (l->n_family == 0 && !scales)
    return hk_fail(err, HK_INPUT,
                   "--largest model: %s is not a preset, and its config does not give a number of "
                   "layers that could be changed",
                   l->setup.model.name);
  HK_TRY(search(l, (int64_t)l->n_family, try_preset, err));
  const hk_largest_best preset = l->best;
  l->n_presets = l->n;
  l->best = (hk_largest_best){0};
  hk_status status = scales ? search(l, MOST_LAYERS, try_layers, err) : HK_OK;
  l->layers = l->best;
  l->best = preset;
  return status;
}

/* -- The answer -------------------------------------------------------------------------------- */

/* Ranks a size that fits as `plan` does. */
static hk_status rank_fully(const hk_largest_job *l, const hk_model *model, const hk_job *job,
                            hk_largest_row *row, hk_ranking *ranking, hk_error *err) {
  const hk_ranking_options options = options_of(l, false);
  HK_TRY(hk_rank(model, &l->setup.machine, job, &l->setup.settings, &options, ranking, err));
  fill_row(row, ranking);
  return HK_OK;
}

static hk_status finish_best(hk_largest_job *l, hk_largest_best *best, hk_error *err) {
  hk_ranking ranking;
  if (best->value == 0) return HK_OK;
  const hk_plan *plan = &best->ranking.forecasts[0].plan;
  HK_TRY(rank_fully(l, &plan->model, &plan->job, &l->rows[best->row], &ranking, err));
  hk_ranking_free(&best->ranking);
  best->ranking = ranking;
  return HK_OK;
}

/* Of micro-batches, the fastest that was tried is printed beside the largest. */
static hk_status finish_fastest(hk_largest_job *l, size_t fastest, hk_error *err) {
  hk_job job = l->setup.job;
  hk_ranking ranking;
  if (l->what != HK_LARGEST_BATCH || fastest == l->best.row) return HK_OK;
  job.micro_batch = (int)l->rows[fastest].value;
  HK_TRY(rank_fully(l, &l->setup.model, &job, &l->rows[fastest], &ranking, err));
  hk_ranking_free(&ranking);
  return HK_OK;
}

static hk_status finish_answer(hk_largest_job *l, hk_error *err) {
  if (hk_largest_answer(l)->value == 0) return HK_OK;
  size_t fastest = l->best.row; /* of micro-batches */
  for (size_t i = 0; i < l->n; i++)
    if (l->rows[i].fits && l->rows[i].tokens_per_s > l->rows[fastest].tokens_per_s) fastest = i;
  HK_TRY(finish_best(l, &l->best, err));
  HK_TRY(finish_best(l, &l->layers, err));
  return finish_fastest(l, fastest, err);
}

static hk_status find(hk_largest_job *l, hk_error *err) {
  HK_TRY(hk_setup_load(l->args, &l->setup, err));
  const bool stages = hk_job_pp(&l->setup.job) > 1;
  if (l->what == HK_LARGEST_MODEL && (stages || hk_job_ep(&l->setup.job) > 1))
    return hk_fail(err, HK_INPUT,
                   "--largest model tries whole models: leave out --%s, or ask for --largest batch",
                   stages ? "pp" : "ep");
  switch (l->what) {
    case HK_LARGEST_BATCH:
      HK_TRY(search(l, MOST_BATCH, try_batch, err));
      break;
    case HK_LARGEST_SEQ:
      HK_TRY(search_seq(l, err));
      break;
    case HK_LARGEST_MODEL:
      HK_TRY(search_model(l, err));
      break;
  }
  HK_TRY(finish_answer(l, err));
  const hk_largest_best *best = hk_largest_answer(l);
  if (best->value == 0) return HK_OK;
  hk_setup chosen = l->setup;
  chosen.model = best->ranking.forecasts[0].plan.model;
  chosen.job = best->ranking.forecasts[0].plan.job;
  HK_TRY(hk_price_make(l->args, l->price_text, &chosen, &l->price, err));
  return hk_uncertainty_make(best->ranking.forecasts, 1, &l->setup.machine, &l->uncertainty, err);
}

static hk_status finish(const hk_largest_job *l, hk_error *err) {
  const hk_largest_best *best = hk_largest_answer(l);
  if (!hk_emit_instead(l->args->output)) HK_TRY(hk_largest_print(l, err));
  if (best->value == 0)
    return hk_fail(err, HK_NO, "does not fit: %s", l->n > 0 ? l->rows[l->n - 1].problem : "");
  if (!l->args->output) return HK_OK;
  HK_TRY(hk_emit_flush(err));
  return hk_setup_save_plan(&best->ranking.forecasts[0].plan, &l->setup.machine, l->args->output,
                            err);
}

static hk_status check_options(const hk_args *args, hk_error *err) {
  static const hk_option_set fixed[] = {
      [HK_LARGEST_BATCH] = HK_OPTION(MICRO_BATCH), [HK_LARGEST_SEQ] = HK_OPTION(SEQ)};
  const hk_option_set others = HK_OPTION(EMIT) | HK_OPTION(FROM) | HK_OPTION(ROW) |
                               HK_OPTION(EXPLAIN) | HK_OPTION(OTHERS) |
                               (args->largest < HK_LARGEST_MODEL ? fixed[args->largest] : 0);
  for (int id = 0; id < HK_OPT_COUNT; id++)
    if (args->given & others & (hk_option_set)1 << id)
      return hk_fail(err, HK_INPUT, "'--%s' cannot be given with --largest %s",
                     hk_option_info((hk_option_id)id)->name, hk_largest_name(args->largest));
  return HK_OK;
}

hk_status hk_largest_plan(const hk_args *given, hk_error *err) {
  hk_args args = *given;
  HK_TRY(check_options(given, err));
  hk_largest_job *l = calloc(1, sizeof *l);
  if (!l) return hk_fail_memory(err, sizeof *l, "a search");
  l->args = &args;
  l->what = (hk_largest_what)args.largest;
  l->shows = !args.quiet && isatty(STDERR_FILENO);
  l->price_text = "";
  hk_status status = HK_OK;
  if (args.machine) {
    status = hk_price_split(args.machine, l->machine, sizeof l->machine, &l->price_text, err);
    args.machine = l->machine;
  }
  if (status == HK_OK) status = find(l, err);
  if (status == HK_OK) status = finish(l, err);
  for (size_t i = 0; i < l->n_family; i++) hk_model_free(&l->family[i]);
  free(l->family);
  hk_uncertainty_free(&l->uncertainty);
  hk_ranking_free(&l->best.ranking);
  hk_ranking_free(&l->layers.ranking);
  hk_setup_free(&l->setup);
  free(l);
  return status;
}
