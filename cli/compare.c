/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Several machines, one row each ("hocket.plan_comparison/1"). */
#include "cli/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/jobs.h"
#include "cli/price.h"
#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/report_uncertainty.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "sim/rank.h"
#include "sim/warnings.h"

/* A machine, and the best schedule on it. */
typedef struct {
  char name[4096]; /* as typed, without the price */
  hk_setup setup;
  hk_ranking ranking;
  hk_uncertainty uncertainty; /* of the best */
  hk_price price;
} contender;

typedef struct {
  contender *list;
  size_t n, n_fit; /* those that fit are first */
  bool priced;     /* all have a price */
} comparison;

static const hk_forecast *best_of(const contender *c) {
  return &c->ranking.forecasts[0];
}

static bool fits(const contender *c) {
  return c->ranking.n_fit > 0;
}

static int gpus_of(const contender *c) {
  return c->setup.job.gpus * c->setup.job.nodes;
}

/* -- Making it --------------------------------------------------------------------------------- */

static hk_status fill(const hk_args *given, const char *machine, contender *c, hk_error *err) {
  hk_args args = *given;
  const char *price;
  HK_TRY(hk_price_split(machine, c->name, sizeof c->name, &price, err));
  args.machine = c->name;
  HK_TRY(hk_setup_load(&args, &c->setup, err));
  HK_TRY(hk_price_make(&args, price, &c->setup, &c->price, err));
  const hk_ranking_options options = {
      .only_policy = c->setup.policy,
      .only_runtime = args.given & HK_OPTION(RUNTIME) ? &c->setup.runtime : NULL,
      .fixed = c->setup.options,
  };
  HK_TRY(hk_rank(&c->setup.model, &c->setup.machine, &c->setup.job, &c->setup.settings, &options,
                 &c->ranking, err));
  if (!fits(c)) return HK_OK;
  return hk_uncertainty_make(best_of(c), 1, &c->setup.machine, &c->uncertainty, err);
}

/* The lower, the better. */
static double score(const contender *c, bool priced) {
  if (!fits(c)) return INFINITY;
  return priced ? hk_price_per_token(&c->price, best_of(c)) : 1 / best_of(c)->tokens_per_s;
}

/* Sorts pointers to contenders, which cannot be moved: setups point into themselves. */
static void sort(comparison *all, const contender **order) {
  for (size_t i = 0; i < all->n; i++) {
    size_t at = i;
    for (; at > 0 && score(&all->list[i], all->priced) < score(order[at - 1], all->priced); at--)
      order[at] = order[at - 1];
    order[at] = &all->list[i];
  }
}

static double error_of(const contender *c) {
  return hk_uncertainty_known(&c->uncertainty) ? c->uncertainty.rows[0].iteration.error : 0;
}

/* Whether the intervals of two machines, whose errors are independent, leave no doubt which is
 * better. */
static bool is_separated(const contender *a, const contender *b, bool priced) {
  return fabs(log(score(a, priced) / score(b, priced))) > 1.96 * hypot(error_of(a), error_of(b));
}

/* -- Text -------------------------------------------------------------------------------------- */

static const char *tell_best(const contender *c, char *buffer, size_t size) {
  char title[96];
  snprintf(buffer, size, "%s%s", hk_forecast_title(best_of(c), title, sizeof title),
           best_of(c)->plan.runtime == HK_RUNTIME_DEEPSPEED ? " (deepspeed)" : "");
  return buffer;
}

/* "; NAME costs 1.25 x as much, which is within the errors" */
static void tell_next(const comparison *all, const contender *const *order, char *text,
                      size_t size) {
  const double ratio = score(order[1], all->priced) / score(order[0], all->priced);
  const bool separated = is_separated(order[0], order[1], all->priced);
  snprintf(text, size, "; %.120s %s %.2f x as %s%s", order[1]->name,
           all->priced ? "costs" : "takes", ratio, all->priced ? "much" : "long",
           separated ? "" : ", which is within the errors");
}

static void print_answer(const comparison *all, const contender *const *order) {
  const contender *first = order[0];
  char cost[48], title[128], each[32], ahead[240] = "";
  hk_jobs_each(&first->setup.job, each, sizeof each);
  if (all->n_fit == 0) {
    hk_print_text(0, 2, "%sdoes not fit on any of these machines", each);
    return;
  }
  if (all->n_fit > 1) tell_next(all, order, ahead, sizeof ahead);
  if (all->priced)
    hk_print_text(0, 2,
                  "%scheapest per token: %s at %s per million tokens, %.0f tokens/s with %s%s",
                  each, first->name, hk_format_cost(1e6 * score(first, true), cost, sizeof cost),
                  best_of(first)->tokens_per_s, tell_best(first, title, sizeof title), ahead);
  else
    hk_print_text(0, 2, "%sfastest: %s, %.0f tokens/s with %s%s", each, first->name,
                  best_of(first)->tokens_per_s, tell_best(first, title, sizeof title), ahead);
}

/* Two cells, "12345" and "±678": tokens/s and half of its 95 % interval. */
static void speed_cells(hk_table *table, const contender *c) {
  const double speed = best_of(c)->tokens_per_s, error = error_of(c);
  hk_table_cell(table, "%.0f", speed);
  if (error > 0)
    hk_table_cell(table, "%s%.0f", hk_plus_minus(), speed * sinh(1.96 * error));
  else
    hk_table_cell(table, "-");
}

/* `columns`: 1 the cost of a million tokens, 3 also hours and cost of the run, 0 none. */
static void cost_cells(hk_table *table, const contender *c, int columns) {
  char text[48];
  const bool priced = c->price.per_hour > 0;
  const double hours = hk_price_hours(&c->price, best_of(c));
  const double token = hk_price_per_token(&c->price, best_of(c));
  if (columns > 0)
    hk_table_cell(table, "%s", priced ? hk_format_cost(1e6 * token, text, sizeof text) : "-");
  if (columns < 3) return;
  hk_table_cell(table, "%.1f\t%s", hours,
                priced ? hk_format_cost(hours * c->price.per_hour, text, sizeof text) : "-");
}

static hk_status print_rows(const comparison *all, const contender *const *order, hk_error *err) {
  static const hk_column columns[] = {{"machine", HK_WRAP},
                                      {"GPUs", HK_RIGHT},
                                      {"best schedule", HK_WRAP},
                                      {"iter ms", HK_RIGHT | HK_SPARE(2)},
                                      {"tokens/s", HK_RIGHT},
                                      {"+-", HK_RIGHT | HK_SPARE(1)},
                                      {"tokens/s/GPU", HK_RIGHT | HK_SPARE(3)},
                                      {"cost/Mtok", HK_RIGHT},
                                      {"run hours", HK_RIGHT},
                                      {"run cost", HK_RIGHT}};
  const bool runs = all->list[0].price.tokens > 0;
  bool any_price = false;
  for (size_t i = 0; i < all->n; i++) any_price |= all->list[i].price.per_hour > 0;
  const int costs = runs ? 3 : any_price ? 1 : 0;
  hk_table table = hk_table_begin(columns, 7 + (size_t)costs);
  for (size_t i = 0; i < all->n_fit; i++) {
    const contender *c = order[i];
    char title[128];
    hk_table_row(&table, "%s\t%d\t%s\t%.1f", c->name, gpus_of(c), tell_best(c, title, sizeof title),
                 hk_ms(best_of(c)->iteration_ns));
    speed_cells(&table, c);
    hk_table_cell(&table, "%.0f", best_of(c)->tokens_per_s / gpus_of(c));
    cost_cells(&table, c, costs);
  }
  return hk_table_print(&table, err);
}

static double tokens_of(const contender *c) {
  return hk_job_tokens(&c->setup.job);
}

/* What is not compared: each machine runs the job that was asked for on its GPUs, not the job that
 * suits it best, and larger machines have more tokens in an iteration. */
static void tell_jobs(const comparison *all, const contender *const *order, char *text,
                      size_t size) {
  const contender *least = order[0], *most = order[0];
  const hk_job *job = &order[0]->setup.job;
  char a[32], b[32];
  for (size_t i = 1; i < all->n_fit; i++) {
    if (tokens_of(order[i]) < tokens_of(least)) least = order[i];
    if (tokens_of(order[i]) > tokens_of(most)) most = order[i];
  }
  int used =
      snprintf(text, size, "Not each machine's best job: all run micro-batch %d, grad-accum %d; ",
               job->micro_batch, job->grad_accum);
  hk_format_count((int64_t)tokens_of(least), a, sizeof a);
  hk_format_count((int64_t)tokens_of(most), b, sizeof b);
  if (tokens_of(least) < tokens_of(most))
    used += snprintf(text + used, size - (size_t)used,
                     "an iteration has %s tokens on %.60s and %s on %.60s", a, least->name, b,
                     most->name);
  else
    used += snprintf(text + used, size - (size_t)used, "an iteration has %s tokens on each", a);
  snprintf(text + used, size - (size_t)used,
           ". The order can change with the batch: compare again with other --micro-batch and "
           "--grad-accum; 'hocket plan' on one machine suggests a batch for it.");
}

/* The warnings of each best schedule, each once: those about the model are the same for all. */
static hk_status print_warnings(const comparison *all, const contender *const *order,
                                hk_error *err) {
  char **lists[HK_MOST_MACHINES] = {NULL};
  hk_status status = HK_OK;
  for (size_t i = 0; i < all->n_fit && status == HK_OK; i++) {
    status =
        hk_forecast_warnings(&best_of(order[i])->plan, &order[i]->setup.machine, &lists[i], err);
    for (size_t k = 0; status == HK_OK && lists[i][k]; k++) {
      bool said = false;
      for (size_t before = 0; before < i && !said; before++)
        for (size_t l = 0; lists[before][l] && !said; l++)
          said = strcmp(lists[before][l], lists[i][k]) == 0;
      const char *name = order[i]->setup.machine.name;
      const bool named = strstr(lists[i][k], name) != NULL;
      if (!said)
        hk_print_text(0, 2, "warning: %s%s%s", named ? "" : name, named ? "" : ": ", lists[i][k]);
    }
  }
  for (size_t i = 0; i < all->n_fit; i++) hk_warnings_free(lists[i]);
  return status;
}

static hk_status print_text(const hk_args *args, const comparison *all,
                            const contender *const *order, hk_error *err) {
  char count[32];
  const hk_setup *setup = &all->list[0].setup;
  print_answer(all, order);
  putchar('\n');
  hk_print_text(0, 0,
                "%s (%s parameters), seq %d, on all GPUs of each machine unless --gpus is given",
                setup->model.name, hk_format_count(setup->model.parameters, count, sizeof count),
                setup->job.seq);
  putchar('\n');
  if (all->n_fit > 0) HK_TRY(print_rows(all, order, err));
  for (size_t i = all->n_fit; i < all->n; i++)
    hk_print_text(0, 2, "%s: does not fit: %s", order[i]->name, best_of(order[i])->problem);
  if (!args->quiet && all->n_fit > 0)
    hk_print_text(0, 0,
                  "Each machine's own errors are in +- (95 %%); 'hocket plan' on one of them says "
                  "which matter.");
  if (all->list[0].price.goodput.mtbf_s > 0 && all->n_fit > 0)
    hk_print_text(0, 0, "Hours and costs include failures and checkpoints (--mtbf).");
  if (!args->quiet && all->n_fit > 1) {
    char jobs[600];
    tell_jobs(all, order, jobs, sizeof jobs);
    hk_print_text(0, 0, "%s", jobs);
  }
  return args->quiet ? HK_OK : print_warnings(all, order, err);
}

/* -- JSON -------------------------------------------------------------------------------------- */

static hk_status put_contender(cJSON *array, const contender *c, const contender *first,
                               bool priced, bool *ok, hk_error *err) {
  cJSON *object = hk_put_element(array, ok);
  hk_put_string(object, "machine", c->setup.machine.name, ok);
  hk_put_number(object, "gpus", gpus_of(c), ok);
  hk_jobs_json(best_of(c), 0, object, ok);
  hk_put_number(object, "tokens_per_iteration", tokens_of(c), ok);
  hk_put_bool(object, "fits", fits(c), ok);
  cJSON *best = hk_put_object(object, "best", ok);
  hk_put_string(best, "schema", "hocket.forecast/1", ok);
  HK_TRY(hk_report_json(best_of(c), &c->setup.machine, best, err));
  if (!fits(c)) return HK_OK;
  if (c != first) hk_put_bool(object, "separated_from_first", is_separated(first, c, priced), ok);
  hk_report_row_error_json(&c->uncertainty, &c->uncertainty.rows[0], best_of(c), false, best, ok);
  hk_price_json(&c->price, best_of(c), object, ok);
  return HK_OK;
}

static hk_status print_json(const comparison *all, const contender *const *order, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.plan_comparison/1", &ok);
  const hk_model *model = &all->list[0].setup.model;
  hk_put_string(root, "model", model->name, &ok);
  hk_put_number(root, "parameters", (double)model->parameters, &ok);
  hk_put_string(root, "order", all->priced ? "cost_per_million_tokens" : "tokens_per_s", &ok);
  if (all->n_fit > 1) {
    char jobs[600];
    tell_jobs(all, order, jobs, sizeof jobs);
    hk_put_string(root, "note", jobs, &ok);
  }
  cJSON *array = hk_put_array(root, "machines", &ok);
  for (size_t i = 0; i < all->n; i++) {
    const hk_status status = put_contender(array, order[i], order[0], all->priced, &ok, err);
    if (status == HK_OK) continue;
    cJSON_Delete(root);
    return status;
  }
  return hk_emit_print(root, ok, err);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status compare(const hk_args *args, comparison *all, hk_error *err) {
  const contender *order[HK_MOST_MACHINES];
  for (int i = 0; i < HK_MOST_MACHINES; i++) order[i] = all->list;
  all->priced = true;
  for (int i = 0; i < args->n_machines; i++) {
    contender *c = &all->list[all->n++];
    HK_TRY(fill(args, args->machines[i], c, err));
    all->n_fit += fits(c);
    all->priced &= c->price.per_hour > 0;
  }
  sort(all, order);
  HK_TRY(args->json ? print_json(all, order, err) : print_text(args, all, order, err));
  if (all->n_fit > 0) return HK_OK;
  return hk_fail(err, HK_NO, "does not fit on any of these machines; on %s: %s; %s", order[0]->name,
                 best_of(order[0])->problem, best_of(order[0])->advice);
}

hk_status hk_compare_machines(const hk_args *args, hk_error *err) {
  static const hk_option_set not_here = HK_OPTION(OUTPUT) | HK_OPTION(EMIT) | HK_OPTION(FROM) |
                                        HK_OPTION(ROW) | HK_OPTION(EXPLAIN) | HK_OPTION(OTHERS);
  for (int id = 0; id < HK_OPT_COUNT; id++)
    if (args->given & not_here & (hk_option_set)1 << id)
      return hk_fail(err, HK_INPUT, "'--%s' needs a single --machine",
                     hk_option_info((hk_option_id)id)->name);
  comparison all = {.list = calloc((size_t)args->n_machines, sizeof *all.list)};
  if (!all.list) return hk_fail_memory(err, sizeof *all.list, "a comparison of machines");
  const hk_status status = compare(args, &all, err);
  for (size_t i = 0; i < all.n; i++) {
    contender *c = &all.list[i];
    hk_uncertainty_free(&c->uncertainty);
    hk_ranking_free(&c->ranking);
    hk_setup_free(&c->setup);
  }
  free(all.list);
  return status;
}
