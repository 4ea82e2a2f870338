/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket validate ranking: whether the plan that is predicted best is the best. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "calib/validate.h"
#include "cli/command.h"
#include "cli/emit.h"
#include "cli/interrupt.h"
#include "cli/node_profile.h"
#include "cli/table.h"
#include "cli/validated.h"
#include "core/json.h"
#include "engine/host_memory.h"

#define NAME          "validate ranking"
#define DEFAULT_PLANS 24 /* three or more have the lanes that few have */
/* Of the host memory that there is room for; the rest is the trial's and the system's. On the host
 * backend devices are made of it, too. */
#define ROOM_SHARE      0.9
#define HOST_ROOM_SHARE 0.45

typedef struct {
  const hk_args *args;
  hk_store *store;
  hk_node_profile profile;
  hk_model model;
  hk_plan *plans;
  size_t n_plans;
  int rounds;
  hk_ranked_plan *runs;   /* [n_plans][rounds] */
  size_t n_runs;          /* that have been made: all plans once, then all again */
  hk_ranked_plan *ranked; /* [n_plans]: their medians */
  size_t n;               /* that have been measured */
  hk_error stopped;       /* what ended it before the last run; HK_OK: nothing did */
  hk_ns begun;
} ranking;

/* -- Measuring --------------------------------------------------------------------------------- */

/* Plans take about as long as each other, which is all that is known of those to come. */
static void show_progress(void *context, int step, int steps) {
  const ranking *r = context;
  const double all = (double)r->n_plans * r->rounds,
               done = (double)r->n_runs + (double)step / steps;
  fprintf(stderr, "\r\033[Khocket " NAME ": ");
  if (r->rounds > 1) fprintf(stderr, "round %zu of %d, ", r->n_runs / r->n_plans + 1, r->rounds);
  fprintf(stderr, "plan %zu of %zu, step %d of %d, about %.0f s left", r->n_runs % r->n_plans + 1,
          r->n_plans, step, steps, hk_s(hk_now() - r->begun) / done * (all - done));
  fflush(stderr);
}

static hk_status measure_one(ranking *r, const hk_validate_options *options, hk_error *err) {
  const size_t number = r->n_runs % r->n_plans, round = r->n_runs / r->n_plans;
  const hk_plan *plan = &r->plans[number];
  hk_ranked_plan *runs = &r->runs[number * (size_t)r->rounds], *out = &runs[round];
  hk_validation v;
  hk_ranking_title(plan, out->title, sizeof out->title);
  if (hk_validate_plan(plan, &r->profile.machine, options, &v, err) != HK_OK)
    return hk_fail_prefix(err, "plan %zu (%s)", number + 1, out->title);
  hk_ranking_note(plan, &v, out);
  hk_validated kept = {.plan = plan, .profile = &r->profile, .validation = &v};
  const hk_status status = hk_validated_keep(r->store, &kept, err);
  hk_validation_free(&v);
  HK_TRY(status);
  out->predicted_id = kept.predicted_id;
  out->measured_id = kept.measured_id;
  r->ranked[number] = hk_ranking_median(runs, (int)round + 1);
  r->n_runs++;
  if (round == 0) r->n++;
  return HK_OK;
}

/* What has been measured counts, whatever happens then. */
static hk_status measure_all(ranking *r, hk_error *err) {
  const hk_args *args = r->args;
  const bool watched = !args->quiet && isatty(STDERR_FILENO);
  hk_validate_options options = {.device = (int)args->device,
                                 .steps = (int)args->steps,
                                 .seed = (uint64_t)args->seed,
                                 .stop = hk_interrupt_catch(),
                                 .progress = watched ? show_progress : NULL,
                                 .context = r};
  HK_TRY(hk_backend_find(args->backend == 0 ? "cuda" : "host", &options.ops, err));
  r->rounds = args->rounds > 0 ? (int)args->rounds : 1;
  const size_t runs = r->n_plans * (size_t)r->rounds;
  r->ranked = calloc(r->n_plans, sizeof *r->ranked);
  r->runs = calloc(runs, sizeof *r->runs);
  if (r->ranked == NULL || r->runs == NULL)
    return hk_fail_memory(err, runs * sizeof *r->runs, "a ranking");
  r->begun = hk_now();
  while (r->n_runs < runs && measure_one(r, &options, &r->stopped) == HK_OK) continue;
  if (watched) fputs("\r\033[K", stderr);
  return HK_OK;
}

static hk_status choose_plans(ranking *r, hk_error *err) {
  const hk_args *args = r->args;
  const size_t least = args->plans > 0 ? (size_t)args->plans : DEFAULT_PLANS;
  const hk_host_memory memory = hk_host_memory_read("");
  const double share = args->backend == 0 ? ROOM_SHARE : HOST_ROOM_SHARE;
  const hk_bytes room = (hk_bytes)(share * (double)hk_host_memory_room(&memory));
  return hk_ranking_plans(&r->model, &r->profile.machine, least, room, &r->plans, &r->n_plans, err);
}

/* -- Answer ------------------------------------------------------------------------------------ */

static double error_pct(const hk_ranked_plan *p) {
  return 100 * (p->predicted_ms / p->measured_ms - 1);
}

static void put_plan(const hk_ranked_plan *p, cJSON *object, bool *ok) {
  hk_put_string(object, "plan", p->title, ok);
  hk_put_number(object, "predicted_ms", p->predicted_ms, ok);
  hk_put_number(object, "measured_ms", p->measured_ms, ok);
  hk_put_number(object, "min_ms", p->least_ms, ok);
  hk_put_number(object, "max_ms", p->most_ms, ok);
  hk_put_item(object, "rounds_ms", cJSON_CreateDoubleArray(p->round_ms, p->rounds), ok);
  hk_put_number(object, "error_pct", error_pct(p), ok);
  cJSON *lanes = hk_put_object(object, "lane_busy_error_pct", ok);
  for (int i = 0; i < p->n_lanes; i++)
    hk_put_number(lanes, hk_lane_kind_name(p->lanes[i].kind), p->lanes[i].error_pct, ok);
  if (!isnan(p->gpu_memory_error_pct))
    hk_put_number(object, "gpu_memory_error_pct", p->gpu_memory_error_pct, ok);
  hk_put_number(object, "predicted_timeline", (double)p->predicted_id, ok);
  hk_put_number(object, "measured_timeline", (double)p->measured_id, ok);
}

static cJSON *json_of(const ranking *r, const hk_ranking_verdict *v, bool *ok) {
  cJSON *root = hk_emit_begin("hocket.ranking/1", ok);
  hk_put_string(root, "model", r->model.name, ok);
  hk_put_string(root, "profile", r->profile.machine.name, ok);
  hk_put_item(root, "fingerprint", hk_fingerprint_to_json(&r->profile.here), ok);
  cJSON *plans = hk_put_array(root, "plans", ok);
  for (size_t i = 0; i < r->n; i++) put_plan(&r->ranked[i], hk_put_element(plans, ok), ok);
  hk_put_number(root, "chosen", (double)r->n_plans, ok);
  hk_put_number(root, "rounds", r->rounds, ok);
  hk_put_bool(root, "complete", r->n_runs == r->n_plans * (size_t)r->rounds, ok);
  hk_put_number(root, "kendall_tau", v->tau, ok);
  hk_put_number(root, "top1_regret_pct", v->regret_pct, ok);
  hk_put_string(root, "predicted_best", r->ranked[v->predicted_best].title, ok);
  hk_put_string(root, "measured_best", r->ranked[v->measured_best].title, ok);
  hk_put_number(root, "median_abs_error_pct", v->median_error_pct, ok);
  hk_put_number(root, "worst_abs_error_pct", v->worst_error_pct, ok);
  if (!isnan(v->median_lane_pct)) {
    hk_put_number(root, "median_abs_lane_error_pct", v->median_lane_pct, ok);
    hk_put_number(root, "worst_abs_lane_error_pct", v->worst_lane_pct, ok);
    cJSON *lanes = hk_put_object(root, "median_abs_error_pct_of_lanes", ok);
    for (int k = 0; k < HK_LANE_KIND_COUNT; k++)
      if (!isnan(v->lane_pct[k]))
        hk_put_number(lanes, hk_lane_kind_name((hk_lane_kind)k), v->lane_pct[k], ok);
    lanes = hk_put_object(root, "plans_of_lanes", ok);
    for (int k = 0; k < HK_LANE_KIND_COUNT; k++)
      if (v->lane_plans[k] > 0)
        hk_put_number(lanes, hk_lane_kind_name((hk_lane_kind)k), (double)v->lane_plans[k], ok);
  }
  if (!isnan(v->worst_gpu_memory_pct))
    hk_put_number(root, "worst_abs_gpu_memory_error_pct", v->worst_gpu_memory_pct, ok);
  if (!isnan(v->median_rounds_pct)) {
    hk_put_number(root, "median_rounds_apart_pct", v->median_rounds_pct, ok);
    hk_put_number(root, "worst_rounds_apart_pct", v->worst_rounds_pct, ok);
  }
  return root;
}

static hk_status print_json(const ranking *r, const hk_ranking_verdict *v, hk_error *err) {
  bool ok = true;
  cJSON *root = json_of(r, v, &ok);
  return hk_emit_print(root, ok, err);
}

static void print_lanes(const hk_ranking_verdict *v) {
  if (isnan(v->median_lane_pct)) return;
  printf("lanes' busy times: %.1f %% (median), %.1f %% (worst), of lanes busy for 1 %% or more\n",
         v->median_lane_pct, v->worst_lane_pct);
  const char *before = "medians by lane, of so many plans: ";
  for (int k = 0; k < HK_LANE_KIND_COUNT; k++) {
    if (isnan(v->lane_pct[k])) continue;
    printf("%s%s %.1f %% of %zu", before, hk_lane_kind_name((hk_lane_kind)k), v->lane_pct[k],
           v->lane_plans[k]);
    before = ", ";
  }
  puts("");
}

static hk_status print_text(const ranking *r, const hk_ranking_verdict *v, hk_error *err) {
  static const hk_column columns[] = {{"plan", HK_LEFT},
                                      {"predicted ms", HK_RIGHT},
                                      {"measured ms", HK_RIGHT},
                                      {"least - most", HK_RIGHT},
                                      {"error", HK_RIGHT}};
  hk_table table;
  hk_table_begin(&table, columns, sizeof columns / sizeof *columns);
  for (size_t i = 0; i < r->n; i++) {
    const hk_ranked_plan *p = &r->ranked[i];
    hk_table_row(&table);
    hk_table_cell(&table, "%s", p->title);
    hk_table_cell(&table, "%.3f", p->predicted_ms);
    hk_table_cell(&table, "%.3f", p->measured_ms);
    hk_table_cell(&table, "%.3f - %.3f", p->least_ms, p->most_ms);
    hk_table_cell(&table, "%+.1f %%", error_pct(p));
  }
  HK_TRY(hk_table_print(&table, err));
  printf("\n%s on %s: errors are %.1f %% (median), %.1f %% (worst)\n", r->model.name,
         r->profile.machine.name, v->median_error_pct, v->worst_error_pct);
  print_lanes(v);
  if (!isnan(v->worst_gpu_memory_pct))
    printf("peak GPU memory: %.1f %% (worst)\n", v->worst_gpu_memory_pct);
  if (!isnan(v->median_rounds_pct))
    printf(
        "slowest round against fastest: %.1f %% (median), %.1f %% (worst): what this node cannot "
        "repeat, nobody can predict\n",
        v->median_rounds_pct, v->worst_rounds_pct);
  if (isnan(v->tau))
    puts("Kendall's tau: no two plans differ");
  else
    printf("Kendall's tau of predicted against measured: %.3f over %zu plans\n", v->tau, r->n);
  printf("predicted best: %s\nmeasured best:  %s\ntop-1 regret: %.1f %%\n",
         r->ranked[v->predicted_best].title, r->ranked[v->measured_best].title, v->regret_pct);
  return HK_OK;
}

static hk_status save(const ranking *r, const hk_ranking_verdict *v, hk_error *err) {
  bool ok = true;
  if (r->args->output == NULL) return HK_OK;
  cJSON *root = json_of(r, v, &ok);
  const hk_status status = ok ? hk_json_save(root, r->args->output, err)
                              : hk_fail_memory(err, r->n * sizeof *r->ranked, "a ranking");
  cJSON_Delete(root);
  HK_TRY(status);
  if (!r->args->quiet) fprintf(stderr, "hocket " NAME ": wrote it to %s\n", r->args->output);
  return HK_OK;
}

static hk_status answer(const ranking *r, hk_error *err) {
  hk_ranking_verdict v;
  if (r->n > 0) {
    HK_TRY(hk_ranking_judge(r->ranked, r->n, &v, err));
    HK_TRY(r->args->json ? print_json(r, &v, err) : print_text(r, &v, err));
    HK_TRY(hk_emit_flush(err));
    HK_TRY(save(r, &v, err));
  }
  if (r->stopped.status == HK_OK) return HK_OK;
  if (r->rounds > 1)
    return hk_fail(err, r->stopped.status, "%s; %zu of %zu runs had been made", r->stopped.message,
                   r->n_runs, r->n_plans * (size_t)r->rounds);
  return hk_fail(err, r->stopped.status, "%s; %zu of %zu plans had been measured",
                 r->stopped.message, r->n, r->n_plans);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status rank(ranking *r, hk_error *err) {
  if (r->args->model == NULL)
    return hk_fail(err, HK_INPUT,
                   "--model NAME|FILE is needed; 'hocket model list' shows the presets");
  HK_TRY(hk_emit_check_output(r->args->output, err));
  HK_TRY(hk_model_load(r->args->model, &r->model, err));
  HK_TRY(hk_store_open(NULL, false, &r->store, err));
  HK_TRY(hk_node_profile_load(r->args, NAME, r->store, &r->profile, err));
  HK_TRY(choose_plans(r, err));
  HK_TRY(measure_all(r, err));
  return answer(r, err);
}

static hk_status run(const hk_args *args, hk_error *err) {
  ranking r = {.args = args};
  const hk_status status = rank(&r, err);
  for (size_t i = 0; i < r.n_plans; i++) hk_plan_free(&r.plans[i]);
  free(r.plans);
  free(r.runs);
  free(r.ranked);
  hk_model_free(&r.model);
  hk_node_profile_free(&r.profile);
  hk_store_close(r.store);
  return status;
}

const hk_command hk_command_validate_ranking = {
    .name = NAME,
    .summary = "Runs many plans of a model, and judges the order in which they were predicted",
    .usage = "--model NAME|FILE [--backend cuda|host] [--machine NAME|FILE] [OPTIONS]",
    .details =
        "Plans spread over policies, strides, ratios, mixtures, subgroup and piece sizes, buffers\n"
        "and CPU threads, as far as they fit on this node; always the same. Each is simulated on\n"
        "the node's profile (see 'validate engine') and run. Prints the errors, Kendall's tau\n"
        "(tau-b) of predicted against measured update times, and how much slower the plan that\n"
        "was predicted best is than the best. With --rounds all plans are run, then all again:\n"
        "of each plan the run with the median time counts, and what a neighbour on the machine\n"
        "took from the others does not. Timelines are kept in the store ('trace list'). Ctrl-C\n"
        "keeps what has been measured (exit 1).",
    .example = "hocket validate ranking --model gpt2 --backend host --plans 24",
    .output = "also write the JSON object there",
    .options = HK_OPTIONS_PROFILE | HK_OPTION(MODEL) | HK_OPTION(PLANS) | HK_OPTION(ROUNDS) |
               HK_OPTION(BACKEND) | HK_OPTION(DEVICE) | HK_OPTION(STEPS) | HK_OPTION(SEED) |
               HK_OPTION(OUTPUT) | HK_OPTION(JSON) | HK_OPTION(QUIET),
    .run = run,
};
