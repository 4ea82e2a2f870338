/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket plan: ranks the schedules of a model on a machine. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/baseline.h"
#include "cli/command.h"
#include "cli/compare.h"
#include "cli/interrupt.h"
#include "cli/jobs.h"
#include "cli/largest.h"
#include "cli/others.h"
#include "cli/price.h"
#include "cli/print/emit.h"
#include "cli/print/emit_config.h"
#include "cli/print/explain.h"
#include "cli/print/report.h"
#include "cli/print/report_state.h"
#include "cli/print/report_uncertainty.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "core/base/outfile.h"
#include "sim/advice.h"
#include "sim/held.h"
#include "sim/rank.h"
#include "sim/search.h"

typedef struct {
  char machine[4096]; /* --machine without a price */
  hk_setup setup;
  hk_ranking ranking;
  hk_uncertainty uncertainty; /* empty if nothing fits */
  hk_price price;
  hk_baseline baseline;
  hk_emission emission;
  hk_advice advice;                /* empty with --quiet */
  hk_certificate certificate;      /* of the first schedule */
  hk_search_progress searched;     /* evaluated 0: not searched */
  hk_ns alone;                     /* of the first schedule, see cli/jobs.h */
  hk_other others[HK_OTHER_COUNT]; /* with --others */
} hk_planning;

/* NULL: not evaluated. */
static const hk_row_error *error_of(const hk_planning *p, size_t row) {
  return row < p->uncertainty.n ? &p->uncertainty.rows[row] : NULL;
}

/* -- Text ------------------------------------------------------------------------------------ */

static bool counts_clipped(const hk_planning *p) {
  return p->setup.settings.clip_share > 0;
}

/* "637 +- 40 ms/iteration"; if clipped steps count, first the mean by which schedules are compared:
 * "mean 663.1 ms/iteration (637 +- 40, clipped 688.9)". Returns `buffer`. */
static const char *tell_iteration(const hk_planning *p, char *buffer, size_t size) {
  const hk_forecast *best = &p->ranking.forecasts[0];
  char time[64];
  hk_format_ms(best->iteration_ns, &error_of(p, 0)->iteration, time, sizeof time);
  if (counts_clipped(p) && best->held_ns > 0)
    snprintf(buffer, size, "mean %.1f ms/iteration (%s, clipped %.1f)",
             hk_ms(hk_forecast_mean(best)), time, hk_ms(best->held_ns));
  else
    snprintf(buffer, size, "%s ms/iteration", time);
  return buffer;
}

/* The answer in one line: schedule, iteration time, update or (with an overlap) iteration / its
 * lower bound, busiest resource: of the update, or of forward and backward if they take nearly all
 * of the time. */
static void print_answer(const hk_planning *p) {
  const hk_ranking *ranking = &p->ranking;
  const hk_forecast *best = &ranking->forecasts[0];
  char title[96], time[128], each[32], ratio[48] = "";
  hk_jobs_each(&best->plan.job, each, sizeof each);
  if (ranking->n_fit == 0) {
    hk_print_text(0, 0, "%s%s", each, ranking->reason);
    return;
  }
  const bool training = hk_forecast_is_training(best);
  if (hk_report_bound_ratio(best) > 0)
    snprintf(ratio, sizeof ratio, ", %s%.2f x bound",
             training && best->plan.overlap == HK_OVERLAP_NONE ? "update " : "",
             hk_report_bound_ratio(best));
  hk_print_text(0, 2, "%s%s%s fits: %s%s, %s %.0f %% busy", each,
                hk_forecast_title(best, title, sizeof title),
                best->plan.runtime == HK_RUNTIME_DEEPSPEED ? " (deepspeed)" : "",
                tell_iteration(p, time, sizeof time), ratio,
                hk_resource_name(training ? best->training_limiter : best->limiter),
                100 * (training ? best->training_utilization : best->limiter_utilization));
}

/* Peaks of GPU memory were measured up to this share above their prediction, on H100 and H200
 * (bench/results/training/nodes.md). */
#define PEAK_TOO_LOW 0.025

/* Says how to leave room for that error, unless the user has said what to reserve. */
static void print_tight(const hk_memory_report *memory, const hk_machine *machine) {
  const double safe = (double)memory->capacity / (1 + PEAK_TOO_LOW);
  if ((double)memory->peak <= safe || machine->gpu_reserved.origin == HK_ORIGIN_SET) return;
  hk_print_text(0, 2,
                "tight: peaks of GPU memory were measured up to %.1f %% above their prediction; "
                "--set gpu.reserved_bytes=%.1fGiB leaves that room",
                100 * PEAK_TOO_LOW,
                ceil(10 * hk_gib((hk_bytes)(machine->gpu_memory.value - safe))) / 10);
}

/* The reasons for the answer, memory, throughput, lower bound. */
static void print_why(const hk_planning *p, bool quiet) {
  const hk_ranking *ranking = &p->ranking;
  const hk_forecast *best = &ranking->forecasts[0];
  const hk_memory_report *memory = &best->result.memory;
  if (ranking->n_fit > 0) {
    hk_print_text(0, 0, "%s", ranking->reason);
    hk_print_text(0, 0, "%.0f tokens/s; GPU memory %.1f of %.1f GiB, host memory %.1f of %.1f GiB",
                  best->tokens_per_s, hk_gib(memory->peak), hk_gib(memory->capacity),
                  hk_gib(memory->host_peak), hk_gib(memory->host_capacity));
    if (!quiet) print_tight(memory, &p->setup.machine);
    hk_jobs_print(best, p->alone);
    hk_price_print(&p->price, best, &error_of(p, 0)->iteration);
    if (!quiet) hk_report_uncertainty(&p->uncertainty);
  }
  hk_report_bound_line(best);
  hk_report_certificate(&p->certificate);
}

/* The iteration in which clipping acts, and what the ranking assumes about it. */
static void print_clipped(const hk_args *args, const hk_forecast *best) {
  const int64_t staged = hk_plan_held_staged(&best->plan);
  int64_t n[HK_ROUTE_COUNT];
  char gpu[96] = "";
  if (best->held_ns == 0) return;
  hk_plan_route_totals(&best->plan, n);
  if (staged > 0)
    snprintf(gpu, sizeof gpu, " and the GPU updates %.0f %% of the CPU's part",
             100 * (double)staged / (double)n[HK_ROUTE_CPU]);
  hk_print_text(0, 2, "clipped: %.1f ms an iteration in which clipping acts: nothing runs ahead%s",
                hk_ms(best->held_ns), gpu);
  if (args->clip_share > 0)
    hk_print_text(0, 2,
                  "mean: %.1f ms if clipping acts in %.0f %% of the steps; schedules are "
                  "compared by this",
                  hk_ms(hk_forecast_mean(best)), 100 * args->clip_share);
  else if (args->max_norm > 0)
    hk_print_text(0, 2,
                  "--max-norm without --clip-share: schedules are compared as if clipping "
                  "acted in no step");
}

static void print_advice(const hk_advice *advice) {
  char text[256];
  for (int i = 0; i < advice->n; i++)
    hk_print_text(0, 2, "try %s", hk_alternative_text(&advice->list[i], text, sizeof text));
}

static void limiter_cell(hk_table *table, const hk_forecast *forecast) {
  hk_table_cell(table, "%s", hk_resource_name(forecast->limiter));
  hk_table_cell(table, "%.0f %%", 100 * forecast->limiter_utilization);
}

/* A row of the table of schedules that fit. "*": stock DeepSpeed runs it. `row` may be NULL. */
static void forecast_row(hk_table *table, const char *rank, const hk_forecast *forecast,
                         const hk_row_error *row, const hk_planning *p) {
  char title[96], half[64], cost[48];
  const bool stock = hk_framework_runs(HK_FRAMEWORK_DEEPSPEED, &forecast->plan);
  hk_table_row(table, "%s", rank);
  hk_table_cell(table, "%s%s", hk_forecast_title(forecast, title, sizeof title), stock ? "*" : "");
  hk_table_cell(table, "%s", hk_runtime_name(forecast->plan.runtime));
  hk_table_cell(table, "%.1f", hk_ms(forecast->forward_ns));
  hk_table_cell(table, "%.1f", hk_ms(forecast->backward_ns));
  hk_table_cell(table, "%.1f", hk_ms(forecast->update_ns));
  hk_table_cell(table, "%.1f", hk_ms(forecast->iteration_ns));
  hk_table_cell(table, "%s", hk_format_half_ms(row ? &row->iteration : NULL, half, sizeof half));
  if (counts_clipped(p)) hk_table_cell(table, "%.1f", hk_ms(hk_forecast_mean(forecast)));
  hk_table_cell(table, "%.0f", forecast->tokens_per_s);
  hk_table_cell(table, "%.2f", forecast->update_params_per_s / 1e9);
  hk_table_cell(table, "%.2f", hk_report_bound_ratio(forecast));
  hk_table_cell(table, "%.1f", hk_gib(forecast->result.memory.peak));
  hk_table_cell(table, "%.1f", hk_gib(forecast->result.memory.host_peak));
  limiter_cell(table, forecast);
  if (p->price.per_hour > 0)
    hk_table_cell(table, "%s",
                  hk_format_cost(1e6 * hk_price_per_token(&p->price, forecast), cost, sizeof cost));
}

/* "3=": tied with others, see sim/uncertainty.h. */
static const char *tell_rank(const hk_planning *p, size_t row, char *buffer, size_t size) {
  const hk_row_error *error = error_of(p, row);
  snprintf(buffer, size, "%d%s", error ? error->rank : (int)row + 1,
           error && error->tied ? "=" : "");
  return buffer;
}

static hk_status print_fitting(const hk_planning *p, hk_error *err) {
  const hk_ranking *ranking = &p->ranking;
  static const hk_column columns[] = {{"rank", HK_RIGHT},
                                      {"policy", HK_WRAP},
                                      {"runtime", HK_LEFT},
                                      {"forward ms", HK_RIGHT | HK_SPARE(8)},
                                      {"backward ms", HK_RIGHT | HK_SPARE(7)},
                                      {"update ms", HK_RIGHT},
                                      {"iter ms", HK_RIGHT},
                                      {"+- ms", HK_RIGHT},
                                      {"mean ms", HK_RIGHT},
                                      {"tokens/s", HK_RIGHT | HK_SPARE(6)},
                                      {"Gparam/s", HK_RIGHT | HK_SPARE(9)},
                                      {"x bound", HK_RIGHT | HK_SPARE(2)},
                                      {"GPU GiB", HK_RIGHT | HK_SPARE(4)},
                                      {"host GiB", HK_RIGHT | HK_SPARE(5)},
                                      {"limited by", HK_LEFT | HK_SPARE(1)},
                                      {"busy", HK_RIGHT | HK_SPARE(3)},
                                      {"cost/Mtok", HK_RIGHT}};
  hk_column shown[HK_COLUMNS(columns)];
  size_t n = 0;
  for (size_t i = 0; i < HK_COLUMNS(columns); i++) {
    const bool mean = strcmp(columns[i].name, "mean ms") == 0;
    const bool cost = strcmp(columns[i].name, "cost/Mtok") == 0;
    if ((!mean || counts_clipped(p)) && (!cost || p->price.per_hour > 0)) shown[n++] = columns[i];
  }
  hk_table table = hk_table_begin(shown, n);
  if (p->baseline.path && p->baseline.forecast.feasible)
    forecast_row(&table, "yours", &p->baseline.forecast, hk_baseline_error(&p->baseline), p);
  for (size_t i = 0; i < ranking->n_fit; i++) {
    char rank[24];
    forecast_row(&table, tell_rank(p, i, rank, sizeof rank), &ranking->forecasts[i], error_of(p, i),
                 p);
  }
  HK_TRY(hk_table_print(&table, err));
  if (hk_best_stock(ranking, HK_FRAMEWORK_DEEPSPEED))
    hk_print_text(0, 2,
                  "* DeepSpeed as it ships runs this; --emit deepspeed writes its configuration");
  return HK_OK;
}

static void missing_cell(hk_table *table, hk_bytes missing) {
  if (missing > 0)
    hk_table_cell(table, "%.1f", hk_gib(missing));
  else
    hk_table_cell(table, "-");
}

static hk_status print_not_fitting(const hk_ranking *ranking, hk_error *err) {
  static const hk_column columns[] = {{"does not fit", HK_WRAP},
                                      {"runtime", HK_LEFT},
                                      {"lacks GPU GiB", HK_RIGHT},
                                      {"host GiB", HK_RIGHT},
                                      {"because", HK_LEFT | HK_SPARE(1)}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = ranking->n_fit; i < ranking->n; i++) {
    const hk_forecast *forecast = &ranking->forecasts[i];
    char title[96];
    hk_table_row(&table, "%s", hk_forecast_title(forecast, title, sizeof title));
    hk_table_cell(&table, "%s", hk_runtime_name(forecast->plan.runtime));
    missing_cell(&table, forecast->gpu_short);
    missing_cell(&table, forecast->host_short);
    hk_table_cell(&table, "%s", forecast->problem);
  }
  return hk_table_print(&table, err);
}

static hk_status print_text(const hk_args *args, const hk_planning *p, hk_error *err) {
  const hk_setup *setup = &p->setup;
  const hk_ranking *ranking = &p->ranking;
  print_answer(p);
  putchar('\n');
  hk_report_heading(&setup->model, &setup->machine, &setup->job);
  if (!args->explain) hk_report_optimizer(&ranking->forecasts[0].plan, &setup->machine, false);
  print_why(p, args->quiet);
  if (ranking->n_fit > 0) print_clipped(args, &ranking->forecasts[0]);
  if (ranking->n_fit > 0) print_advice(&p->advice);
  hk_baseline_print(&p->baseline, ranking, args->quiet);
  if (args->others) hk_others_print_answer(p->others, ranking);
  if (!args->quiet) HK_TRY(hk_report_warnings(&ranking->forecasts[0].plan, &setup->machine, err));
  putchar('\n');
  if (ranking->n_fit > 0) HK_TRY(print_fitting(p, err));
  if (ranking->n_fit > 0 && ranking->n_fit < ranking->n) putchar('\n');
  if (ranking->n_fit < ranking->n) HK_TRY(print_not_fitting(ranking, err));
  if (args->others) putchar('\n');
  if (args->others) HK_TRY(hk_others_print(p->others, args->quiet, err));
  if (!args->explain) return HK_OK;
  putchar('\n');
  hk_report_optimizer(&ranking->forecasts[0].plan, &setup->machine, true);
  putchar('\n');
  return hk_explain_text(&setup->machine, &ranking->forecasts[0].plan, err);
}

/* -- JSON ------------------------------------------------------------------------------------ */

static void put_job(const hk_job *job, cJSON *root, bool *ok) {
  cJSON *object = hk_put_object(root, "job", ok);
  hk_put_number(object, "gpus", job->gpus, ok);
  hk_put_number(object, "nodes", job->nodes, ok);
  hk_put_number(object, "tp", job->tp, ok);
  hk_put_pipeline(job, object, ok);
  hk_put_number(object, "dp", hk_job_dp(job), ok);
  hk_put_number(object, "micro_batch", job->micro_batch, ok);
  hk_put_number(object, "grad_accum", job->grad_accum, ok);
  hk_put_number(object, "seq", job->seq, ok);
  hk_put_bool(object, "checkpoint_activations", job->checkpoint_activations, ok);
  if (job->loss_chunks > 1) hk_put_number(object, "loss_chunks", job->loss_chunks, ok);
}

static void put_advice(const hk_advice *advice, cJSON *root, bool *ok) {
  cJSON *array = hk_put_array(root, "advice", ok);
  for (int i = 0; i < advice->n; i++) {
    const hk_alternative *a = &advice->list[i];
    cJSON *element = hk_put_element(array, ok);
    hk_put_string(element, "options", a->options, ok);
    hk_put_string(element, "policy", a->schedule, ok);
    hk_put_string(element, "runtime", hk_runtime_name(a->runtime), ok);
    hk_put_string(element, "state", hk_optimizer_names[a->state], ok);
    hk_put_number(element, "batch_ratio", a->batch, ok);
    hk_put_number(element, "iteration_ms", hk_ms(a->iteration_ns), ok);
    hk_put_number(element, "tokens_per_s", a->tokens_per_s, ok);
    hk_put_item(element, "gain", a->gain > 0 ? cJSON_CreateNumber(a->gain) : cJSON_CreateNull(),
                ok);
  }
}

static hk_status fill_json(const hk_planning *p, cJSON *root, bool *ok, hk_error *err) {
  const hk_setup *setup = &p->setup;
  const hk_ranking *ranking = &p->ranking;
  hk_put_string(root, "model", setup->model.name, ok);
  hk_put_number(root, "parameters", (double)setup->model.parameters, ok);
  hk_put_number(root, "active_parameters", (double)setup->model.active, ok);
  if (setup->model.frozen_parameters > 0)
    hk_put_number(root, "frozen_parameters", (double)setup->model.frozen_parameters, ok);
  hk_put_string(root, "machine", setup->machine.name, ok);
  put_job(&setup->job, root, ok);
  hk_jobs_json(&ranking->forecasts[0], p->alone, root, ok);
  hk_report_bound_json(&ranking->forecasts[0], root, ok);
  hk_report_certificate_json(&p->certificate, root, ok);
  if (counts_clipped(p)) hk_put_number(root, "clip_share", setup->settings.clip_share, ok);
  hk_put_item(root, "best", ranking->n_fit > 0 ? cJSON_CreateNumber(0) : cJSON_CreateNull(), ok);
  cJSON *schedules = hk_put_array(root, "schedules", ok);
  for (size_t i = 0; i < ranking->n; i++) {
    cJSON *element = hk_put_element(schedules, ok);
    hk_put_string(element, "schema", "hocket.forecast/1", ok);
    hk_put_bool(element, "stock_deepspeed",
                hk_framework_runs(HK_FRAMEWORK_DEEPSPEED, &ranking->forecasts[i].plan), ok);
    HK_TRY(hk_report_json(&ranking->forecasts[i], &setup->machine, element, err));
    hk_report_row_error_json(&p->uncertainty, error_of(p, i), &ranking->forecasts[i], true, element,
                             ok);
    if (ranking->forecasts[i].feasible)
      hk_price_json(&p->price, &ranking->forecasts[i], element, ok);
  }
  if (ranking->n_fit > 0) hk_report_uncertainty_json(&p->uncertainty, root, ok);
  HK_TRY(hk_baseline_json(&p->baseline, &setup->machine, root, ok, err));
  hk_emission_json(&p->emission, root, ok);
  cJSON *search = NULL;
  if (ranking->simulations > 0 || p->searched.evaluated > 0)
    search = hk_put_object(root, "search", ok);
  if (ranking->simulations > 0) {
    hk_put_number(search, "simulations", ranking->simulations, ok);
    hk_put_number(search, "closed_form_ms", hk_ms(ranking->closed_form_ns), ok);
    hk_put_number(search, "gpu_state_limit_bytes", (double)ranking->gpu_limit, ok);
  }
  if (p->searched.evaluated > 0) {
    hk_put_number(search, "evaluated", (double)p->searched.evaluated, ok);
    hk_put_number(search, "seconds", p->searched.seconds, ok);
  }
  put_advice(&p->advice, root, ok);
  hk_put_string(root, "reason", ranking->reason, ok);
  return hk_report_warnings_json(&ranking->forecasts[0].plan, &setup->machine, root, ok, err);
}

static hk_status print_json(const hk_args *args, const hk_planning *p, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.plan_ranking/1", &ok);
  hk_status status = fill_json(p, root, &ok, err);
  if (status != HK_OK) {
    cJSON_Delete(root);
    return status;
  }
  hk_explain_changes_json(&p->setup.machine, root, &ok);
  if (args->others) hk_others_json(p->others, root, &ok);
  if (args->explain) hk_explain_json(&p->setup.machine, &p->ranking.forecasts[0].plan, root, &ok);
  return hk_emit_print(root, ok, err);
}

/* -- The command ----------------------------------------------------------------------------- */

/* Advice is not needed where only a file is written. */
static hk_status advise(const hk_args *args, const hk_ranking_options *options, hk_planning *p,
                        hk_error *err) {
  const hk_setup *setup = &p->setup;
  const bool fits = p->ranking.n_fit > 0;
  if (args->quiet || (fits && hk_emit_instead(args->output))) return HK_OK;
  HK_TRY(hk_advise(&setup->model, &setup->machine, &setup->job, &setup->settings, options,
                   &p->ranking, &p->advice, err));
  char all[768] = "", one[256];
  for (int i = 0; i < p->advice.n; i++) {
    const size_t used = strlen(all);
    snprintf(all + used, sizeof all - used, "%s%s", i == 0 ? "try " : "; or ",
             hk_alternative_text(&p->advice.list[i], one, sizeof one));
  }
  if (!fits && p->advice.n > 0) hk_ranking_set_advice(&p->ranking, all);
  return HK_OK;
}

static void show_search(void *context, const hk_search_progress *now) {
  const hk_args *args = context;
  hk_screen_progress("searching: %.1f ms, gap %.1f %%, %lld schedules, %.0f s left",
                     hk_ms(now->iteration_ns), 100 * now->gap, (long long)now->evaluated,
                     fmax(0, args->search - now->seconds));
}

/* --search: from the fastest schedule of runtime hocket. */
static hk_status search(const hk_args *args, hk_planning *p, const volatile sig_atomic_t *stop,
                        hk_error *err) {
  hk_ranking *ranking = &p->ranking;
  const hk_plan_settings *settings = &p->setup.settings;
  const hk_option_set fixed = HK_OPTION(POLICY) | HK_OPTION(STRIDE) | HK_OPTION(RATIO) |
                              HK_OPTION(BUFFERS) | HK_OPTION(RUNTIME);
  if (args->search == 0 && args->given & HK_OPTION(SEED))
    return hk_fail(err, HK_INPUT, "--seed starts another search: it needs --search SECONDS");
  if (args->search == 0 || ranking->n_fit == 0) return HK_OK;
  if (args->given & fixed || hk_optimizer_info_of(settings->optimizer)->orthogonal)
    return hk_fail(err, HK_INPUT,
                   "--search chooses the routes: leave out --policy, --stride, --ratio, --buffers, "
                   "--runtime and --state muon");
  const bool watched = !args->quiet && isatty(STDERR_FILENO);
  const hk_search_options options = {.seconds = args->search,
                                     .seed = (uint64_t)args->seed,
                                     .clip_share = settings->clip_share,
                                     .gpu_memory = settings->gpu_memory,
                                     .progress = watched ? show_search : NULL,
                                     .context = (void *)(uintptr_t)args,
                                     .stop = stop};
  const hk_forecast *start = ranking->forecasts;
  while (start < ranking->forecasts + ranking->n_fit && start->plan.runtime != HK_RUNTIME_HOCKET)
    start++;
  if (start == ranking->forecasts + ranking->n_fit) return HK_OK;
  hk_forecast found;
  hk_status status = hk_search(start, &p->setup.machine, &options, &found, &p->searched, err);
  if (watched) hk_screen_progress_end();
  if (status == HK_OK && stop != NULL && *stop != 0 && !args->quiet)
    fprintf(stderr, "hocket plan: interrupted: the best of %.1f s\n", p->searched.seconds);
  if (status == HK_OK && found.feasible)
    status = hk_held_add(&found, settings->clip_share, &p->setup.machine, err);
  if (status == HK_OK && found.feasible &&
      hk_forecast_mean(&found) < hk_forecast_mean(&ranking->forecasts[0]))
    status = hk_ranking_lead(ranking, &p->setup.machine, &found, err);
  hk_forecast_free(&found);
  return status;
}

static hk_status rank(const hk_args *args, hk_planning *p, hk_error *err) {
  const hk_setup *setup = &p->setup;
  const hk_ranking_options options = {
      .only_policy = setup->policy,
      .only_runtime = args->given & HK_OPTION(RUNTIME) ? &setup->runtime : NULL,
      .fixed = setup->options,
  };
  const volatile sig_atomic_t *stop = NULL;
  if (args->search > 0) stop = hk_interrupt_catch();
  HK_TRY(hk_rank(&setup->model, &setup->machine, &setup->job, &setup->settings, &options,
                 &p->ranking, err));
  HK_TRY(search(args, p, stop, err));
  return advise(args, &options, p, err);
}

static hk_status save_winner(const hk_args *args, const hk_setup *setup, const hk_forecast *winner,
                             hk_error *err) {
  char title[96];
  HK_TRY(hk_emit_flush(err));
  HK_TRY(hk_setup_save_plan(&winner->plan, &setup->machine, args->output, err));
  if (!args->quiet && !hk_emit_instead(args->output))
    fprintf(stderr, "hocket plan: wrote the best schedule, %s under %s, to %s\n",
            hk_forecast_title(winner, title, sizeof title), hk_runtime_name(winner->plan.runtime),
            args->output);
  return HK_OK;
}

static hk_status answer(const hk_args *args, const hk_planning *p, hk_error *err) {
  const hk_ranking *ranking = &p->ranking;
  if (!hk_emit_instead(args->output))
    HK_TRY(args->json ? print_json(args, p, err) : print_text(args, p, err));
  const hk_forecast *best = &ranking->forecasts[0];
  if (ranking->n_fit == 0)
    return hk_fail(err, HK_NO, "does not fit: %s; %s", best->problem, best->advice);
  if (!args->output) return HK_OK;
  return p->emission.on ? hk_emission_write(&p->emission, args, err)
                        : save_winner(args, &p->setup, best, err);
}

static hk_status make(hk_args *args, hk_planning *p, hk_error *err) {
  if (args->row > 0 && !(args->given & HK_OPTION(EMIT)))
    return hk_fail(err, HK_INPUT, "--row needs --emit");
  /* Without -o the configuration takes the place of the report. */
  if (args->given & HK_OPTION(EMIT) && !args->output && !args->json) args->output = HK_STDOUT;
  const char *price = "";
  if (args->machine) {
    HK_TRY(hk_price_split(args->machine, p->machine, sizeof p->machine, &price, err));
    args->machine = p->machine;
  }
  HK_TRY(hk_baseline_read(args, &p->baseline, err));
  HK_TRY(hk_setup_load(args, &p->setup, err));
  HK_TRY(hk_baseline_simulate(args, &p->setup, &p->baseline, err));
  HK_TRY(hk_price_make(args, price, &p->setup, &p->price, err));
  HK_TRY(rank(args, p, err));
  const hk_setup *setup = &p->setup;
  if (args->others)
    HK_TRY(hk_others_make(&setup->model, &setup->machine, &setup->job, &setup->settings,
                          args->max_norm > 0, p->others, err));
  HK_TRY(hk_jobs_alone(&p->ranking.forecasts[0], &p->setup.machine, &p->alone, err));
  if (!hk_emit_instead(args->output))
    HK_TRY(hk_certify(&p->ranking.forecasts[0], &p->setup.machine, &p->certificate, err));
  if (p->ranking.n_fit > 0 && !hk_emit_instead(args->output))
    HK_TRY(hk_uncertainty_make(p->ranking.forecasts, p->ranking.n_fit, &p->setup.machine,
                               &p->uncertainty, err));
  return hk_emission_make(args, &p->setup, &p->ranking, &p->emission, err);
}

static hk_status run(const hk_args *given, hk_error *err) {
  if (given->search > 0 && (given->given & HK_OPTION(LARGEST) || given->n_machines > 1))
    return hk_fail(err, HK_INPUT, "--search needs a single --machine and no --largest");
  if (given->given & HK_OPTION(LARGEST)) {
    if (given->n_machines > 1)
      return hk_fail(err, HK_INPUT, "'--largest' needs a single --machine");
    return hk_largest_plan(given, err);
  }
  if (given->n_machines > 1) return hk_compare_machines(given, err);
  hk_args args = *given;
  hk_planning p = {0};
  hk_status status = make(&args, &p, err);
  if (status == HK_OK) status = answer(&args, &p, err);
  hk_emission_free(&p.emission);
  hk_baseline_free(&p.baseline);
  hk_uncertainty_free(&p.uncertainty);
  hk_ranking_free(&p.ranking);
  hk_setup_free(&p.setup);
  return status;
}

const hk_command hk_command_plan = {
    .name = "plan",
    .summary = "Ranks the offload schedules of a model on a machine",
    .usage = "--model NAME|FILE --machine NAME|FILE [OPTIONS]",
    .details =
        "Simulates every policy under both runtimes at several settings, and the fastest\n"
        "at more ratios, from the smallest that fits on. The first line is the answer:\n"
        "the best schedule, its time per iteration, its update time in multiples of the\n"
        "lower bound, and the busiest resource (of the update; of forward and backward\n"
        "if the update is less than a tenth of the time). A table ranks the schedules by\n"
        "iteration time; a second one lists those that do not fit (--wide adds the\n"
        "reasons). 'front': the first subgroups stay on the GPU, whose gradients come\n"
        "last, instead of the last. Column '+- ms' is half of the 95 % interval that the\n"
        "errors of the machine's quantities give; schedules that it does not separate\n"
        "share a rank (1=).\n"
        "With --overlap it also searches some 64 plans that keep the state of the first\n"
        "blocks on the GPU or update some parameters before the gradient norm is known.\n"
        "A step in which clipping acts cannot do so. --clip-share Q compares schedules by\n"
        "the mean iteration if clipping acts in a share Q of the steps, and lets the GPU\n"
        "update more in these. The first line then has the mean, column 'mean ms', too.\n"
        "--search SECONDS goes on from the best schedule by local search: routes of\n"
        "single subgroups, order, pieces, buffers; with --overlap what runs ahead\n"
        "instead of the order. --seed starts another one. For example hocket plan\n"
        "--model llama-2-13b --machine h200-16c --search 10.\n"
        "--emit writes the configuration that makes DeepSpeed, Accelerate or FSDP run a\n"
        "schedule; --from reads one, and says how long it takes and what is better.\n"
        "--largest finds the largest micro-batch, sequence or model that fits, with the\n"
        "speed of every size that it tried.\n"
        "With several --machine, each NAME or NAME=PRICE, it says on which training is\n"
        "cheapest per token, or fastest if a price is missing.\n"
        "--others adds a table of what users would otherwise run, and one line that\n"
        "compares the fastest with the best schedule. 'known error' is that of a\n"
        "predicted iteration beside a measured or published one; --wide says which.\n"
        "--jobs N plans N equal jobs at once on each node, with GPUs of their own, which\n"
        "share cores, host memory and links: times are of one, host memory is of all. For\n"
        "example hocket plan --model llama-2-7b --machine dgx-h100-8x80gb --jobs 8.\n"
        "--mtbf HOURS counts failures and checkpoints: time and cost are those with the\n"
        "best interval (Young 1974, Daly 2006). Llama 3's paper (arXiv 2407.21783) has\n"
        "419 unexpected interruptions of 2,048 nodes in 54 days: 6,300 hours a node.\n"
        "Storage: --set nvme.write=2GB/s, of a node. For example\n"
        "hocket plan --model llama-3-8b --machine dgx-h100-8x80gb --nodes 8 --mtbf 6300.\n"
        "OMP_NUM_THREADS sets the number of threads; the result does not depend on it.\n"
        "Exit 1: no schedule fits.",
    .example = "hocket plan --model llama-2-7b --machine polaris-a100-4x40gb -o plan.json",
    .output = "write the best schedule as a plan file, or what --emit writes ('-': to stdout)",
    .options = HK_OPTIONS_PLAN | HK_OPTION(GPU_MEMORY) | HK_OPTION(CLIP_SHARE) | HK_OPTION(SEARCH) |
               HK_OPTION(SEED) | HK_OPTIONS_MACHINE | HK_OPTION(OUTPUT) | HK_OPTION(JSON) |
               HK_OPTION(WIDE) | HK_OPTION(EXPLAIN) | HK_OPTION(QUIET) | HK_OPTION(FROM) |
               HK_OPTION(EMIT) | HK_OPTION(ROW) | HK_OPTION(MAX_NORM) | HK_OPTION(LARGEST) |
               HK_OPTION(PRICE) | HK_OPTION(TOKENS) | HK_OPTION(STEPS) | HK_OPTION(MTBF) |
               HK_OPTION(RESTART) | HK_OPTION(OTHERS),
    .dash = HK_DASH_INSTEAD,
    .lists_policies = true,
    .run = run,
};
