/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket validate ranking: runs many plans and compares their order with the predicted one. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "calib/validate/validate.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/node_profile.h"
#include "cli/print/emit.h"
#include "cli/print/print_ranking.h"
#include "cli/print/print_validation.h"
#include "cli/print/screen.h"
#include "cli/setup.h"
#include "engine/device/available_memory.h"
#include "engine/trial.h"

#define NAME          "validate ranking"
#define DEFAULT_PLANS 24 /* enough for three plans with each kind of lane */
/* Share of the free host memory that a plan may use. The rest is for the trial and the system, and
 * on the host backend for the device. */
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
  hk_backend *device;     /* with which `memory` is registered */
  hk_arena memory;        /* used by each engine in turn */
  hk_ranked_plan *runs;   /* [n_plans][rounds] */
  size_t n_runs;          /* made so far, in the order: all plans, then all plans again */
  hk_ranked_plan *ranked; /* [n_plans]: median runs */
  size_t n;               /* plans measured so far */
  hk_error stopped;       /* why it ended before the last run; HK_OK: it did not */
  hk_ns begun;
} ranking;

/* -- Measuring --------------------------------------------------------------------------------- */

/* Remaining time: assumes that all plans take the same time. */
static void show_progress(void *context, int step, int steps) {
  const ranking *r = context;
  const double all = (double)r->n_plans * r->rounds,
               done = (double)r->n_runs + (double)step / steps;
  char round[64] = "";
  if (r->rounds > 1)
    snprintf(round, sizeof round, "round %zu of %d, ", r->n_runs / r->n_plans + 1, r->rounds);
  hk_screen_progress("hocket " NAME ": %splan %zu of %zu, step %d of %d, about %.0f s left", round,
                     r->n_runs % r->n_plans + 1, r->n_plans, step, steps,
                     hk_s(hk_now() - r->begun) / done * (all - done));
}

static hk_status measure_one(ranking *r, const hk_validate_options *options, hk_error *err) {
  const size_t number = r->n_runs % r->n_plans, round = r->n_runs / r->n_plans;
  const hk_plan *plan = &r->plans[number];
  hk_ranked_plan *runs = &r->runs[number * (size_t)r->rounds], *out = &runs[round];
  hk_validation v;
  hk_ranked_plan_title(plan, out->title, sizeof out->title);
  if (hk_validate_plan(plan, &r->profile.machine, options, &v, err) != HK_OK)
    return hk_fail_prefix(err, "plan %zu (%s)", number + 1, out->title);
  hk_ranked_plan_fill(plan, &v, out);
  hk_engine_validation kept = {.plan = plan, .profile = &r->profile, .validation = &v};
  const hk_status status = hk_store_validation(r->store, &kept, err);
  hk_validation_free(&v);
  HK_TRY(status);
  out->predicted_id = kept.predicted_id;
  out->measured_id = kept.measured_id;
  r->ranked[number] = hk_ranked_plan_median(runs, (int)round + 1);
  r->n_runs++;
  if (round == 0) r->n++;
  return HK_OK;
}

/* Allocates and pins host memory for the largest plan, once for all: doing it for each engine would
 * take longer than its run. */
static hk_status open_memory(ranking *r, const hk_backend_ops *ops, hk_error *err) {
  const hk_backend_options little = {.memory = 16 * HK_MIB};
  hk_bytes most = 0;
  int threads = 1;
  for (size_t i = 0; i < r->n_plans; i++) {
    hk_engine_memory memory;
    HK_TRY(hk_trial_measure(&r->plans[i], &memory, err));
    if (memory.host_pinned > most) most = memory.host_pinned;
    if (r->plans[i].cpu_threads > threads) threads = r->plans[i].cpu_threads;
  }
  hk_device_info info;
  hk_team *team = NULL;
  HK_TRY(ops->open((int)r->args->device, &little, &r->device, err));
  HK_TRY(ops->info(r->device, &info, err));
  const hk_team_options options = {.threads = threads, .pin = true, .pci = info.pci};
  HK_TRY(hk_team_open(&options, &team, err));
  const hk_status status = hk_arena_open(most, team, info.pci, &r->memory, err);
  hk_team_close(team);
  HK_TRY(status);
  return hk_arena_register(&r->memory, r->device, err);
}

static void close_memory(ranking *r) {
  hk_arena_close(&r->memory);
  if (r->device != NULL) r->device->ops->close(r->device);
}

/* A failure ends the measurements; the runs before it count. */
static hk_status measure_all(ranking *r, hk_error *err) {
  const hk_args *args = r->args;
  const bool watched = !args->quiet && isatty(STDERR_FILENO);
  hk_validate_options options = {.device = (int)args->device,
                                 .steps = (int)args->steps,
                                 .seed = (uint64_t)args->seed,
                                 .host_memory = &r->memory,
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
  HK_TRY(open_memory(r, options.ops, err));
  r->begun = hk_now();
  while (r->n_runs < runs && measure_one(r, &options, &r->stopped) == HK_OK) continue;
  if (watched) hk_screen_progress_end();
  return HK_OK;
}

static hk_status choose_plans(ranking *r, hk_error *err) {
  const hk_args *args = r->args;
  const size_t least = args->plans > 0 ? (size_t)args->plans : DEFAULT_PLANS;
  const hk_available_memory memory = hk_available_memory_read("");
  const double share = args->backend == 0 ? ROOM_SHARE : HOST_ROOM_SHARE;
  const hk_bytes room = (hk_bytes)(share * (double)hk_available_memory_bytes(&memory));
  return hk_ranked_plans_choose(&r->model, &r->profile.machine, least, true, room, &r->plans,
                                &r->n_plans, err);
}

static hk_status answer(const ranking *r, hk_error *err) {
  const hk_measured_ranking ranked = {.model = r->model.name,
                                      .profile = r->profile.machine.name,
                                      .node = &r->profile.here,
                                      .plans = r->ranked,
                                      .n = r->n,
                                      .chosen = r->n_plans,
                                      .rounds = r->rounds,
                                      .complete = r->n_runs == r->n_plans * (size_t)r->rounds};
  hk_node_profile_note(r->args, NAME, r->profile.document);
  if (r->n > 0) HK_TRY(hk_print_ranking(r->args, NAME, &ranked, err));
  if (r->stopped.status == HK_OK) return HK_OK;
  if (r->rounds > 1)
    return hk_fail(err, r->stopped.status, "%s; %zu of %zu runs had been made", r->stopped.message,
                   r->n_runs, r->n_plans * (size_t)r->rounds);
  return hk_fail(err, r->stopped.status, "%s; %zu of %zu plans had been measured",
                 r->stopped.message, r->n, r->n_plans);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status rank(ranking *r, hk_error *err) {
  HK_TRY(hk_emit_check_output(r->args->output, err));
  HK_TRY(hk_setup_model(r->args, &r->model, err));
  HK_TRY(hk_store_open(NULL, false, &r->store, err));
  HK_TRY(hk_node_profile_load(r->args, NAME, r->store, &r->profile, err));
  HK_TRY(choose_plans(r, err));
  HK_TRY(measure_all(r, err));
  return answer(r, err);
}

static hk_status run(const hk_args *args, hk_error *err) {
  ranking r = {.args = args};
  const hk_status status = rank(&r, err);
  close_memory(&r);
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
    .summary = "Runs many plans and compares their order with the prediction",
    .usage = "--model NAME|FILE [--backend cuda|host] [--machine NAME|FILE] [OPTIONS]",
    .details =
        "Chooses plans that fit on this node, always the same ones: they vary policy,\n"
        "stride, ratio, routes, subgroup and piece size, buffers and CPU threads.\n"
        "Simulates each on the node's profile (see 'validate engine') and runs it. Prints\n"
        "the errors, Kendall's tau-b of predicted against measured update times, and how\n"
        "much slower the plan predicted best is than the best one.\n"
        "With --rounds N all plans run N times in turn, and each plan's median run\n"
        "counts. That removes the effect of other programs on single runs.\n"
        "Timelines are stored ('trace list'). Ctrl-C keeps what was measured (exit 1).\n"
        "'validate again' compares the file of -o with another profile.",
    .example = "hocket validate ranking --model gpt2 --backend host --plans 24",
    .output = "also write the JSON object to a file",
    .options = HK_OPTIONS_PROFILE | HK_OPTIONS_MODEL | HK_OPTION(PLANS) | HK_OPTION(ROUNDS) |
               HK_OPTION(BACKEND) | HK_OPTION(DEVICE) | HK_OPTION(STEPS) | HK_OPTION(SEED) |
               HK_OPTION(OUTPUT) | HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(QUIET),
    .run = run,
};
