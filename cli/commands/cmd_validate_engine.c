/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket validate engine: predicts a plan's update, runs it, compares. Report:
 * cli/print/print_validation.c. */
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/print/emit.h"
#include "cli/print/print_comparison.h"
#include "cli/print/print_validation.h"
#include "cli/print/screen.h"
#include "cli/setup.h"

#define NAME "validate engine"

/* -- Running ----------------------------------------------------------------------------------- */

/* `context`: the hk_ns at which it began. */
static void show_progress(void *context, int step, int steps) {
  const hk_ns *begun = context;
  hk_screen_progress("hocket " NAME ": step %d of %d, about %.0f s left", step, steps,
                     hk_s(hk_now() - *begun) / step * (steps - step));
}

static hk_status validate(const hk_args *args, const hk_plan *plan, const hk_machine *machine,
                          hk_validation *out, hk_error *err) {
  const bool watched = !args->quiet && isatty(STDERR_FILENO);
  hk_ns begun = hk_now();
  hk_validate_options options = {.device = (int)args->device,
                                 .steps = (int)args->steps,
                                 .seed = (uint64_t)args->seed,
                                 .stop = hk_interrupt_catch(),
                                 .progress = watched ? show_progress : NULL,
                                 .context = &begun};
  HK_TRY(hk_backend_find(args->backend == 0 ? "cuda" : "host", &options.ops, err));
  const hk_status status = hk_validate_plan(plan, machine, &options, out, err);
  if (watched) hk_screen_progress_end();
  return status;
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status answer(const hk_args *args, hk_store *store, hk_engine_validation *v,
                        hk_error *err) {
  hk_node_profile_note(args, NAME, v->profile->document);
  HK_TRY(hk_store_validation(store, v, err));
  HK_TRY(args->json ? hk_print_validation_json(args, v, err)
                    : hk_print_validation_text(args, v, err));
  HK_TRY(hk_emit_flush(err));
  HK_TRY(hk_comparison_write_trace(args, NAME, &v->validation->graph, &v->validation->predicted,
                                   &v->validation->measured, err));
  return hk_judge_validation(args, v, err);
}

static hk_status run_with(const hk_args *args, hk_store *store, const hk_plan *plan,
                          hk_error *err) {
  hk_node_profile profile;
  hk_validation validation = {0};
  hk_status status = hk_node_profile_load(args, NAME, store, &profile, err);
  if (status == HK_OK) status = validate(args, plan, &profile.machine, &validation, err);
  hk_engine_validation v = {.plan = plan, .profile = &profile, .validation = &validation};
  if (status == HK_OK) status = answer(args, store, &v, err);
  hk_validation_free(&validation);
  hk_node_profile_free(&profile);
  return status;
}

static hk_status run(const hk_args *args, hk_error *err) {
  hk_plan plan = {0};
  hk_store *store = NULL;
  HK_TRY(hk_emit_check_output(args->timeline, err));
  HK_TRY(hk_setup_read_plan(args, NAME, &plan, err));
  hk_status status = hk_store_open(NULL, false, &store, err);
  if (status == HK_OK) status = run_with(args, store, &plan, err);
  hk_store_close(store);
  hk_plan_free(&plan);
  return status;
}

const hk_command hk_command_validate_engine = {
    .name = NAME,
    .summary = "Predicts a plan's update, runs it, explains the difference",
    .usage = "PLAN.json [--backend cuda|host] [--machine NAME|FILE] [OPTIONS]",
    .details =
        "Uses this node's newest calibrated profile, and calibrates (quickly) if none is\n"
        "younger than --max-age. A profile of another machine is refused without --force.\n"
        "Drops two steps of warm-up and compares the median step with the prediction:\n"
        "makespan, lanes, kinds of operation, memory. The error of the makespan is\n"
        "divided among causes that add up to it. Both timelines are stored. One rank\n"
        "runs, alone on the node, whatever job the plan is for.\n"
        "Exit 1: the error exceeds --max-error, or the run was interrupted. Exit 3: no\n"
        "such device.",
    .example = "hocket validate engine plan.json --backend host --max-error 30",
    .options = HK_OPTIONS_PROFILE | HK_OPTION(BACKEND) | HK_OPTION(DEVICE) | HK_OPTION(STEPS) |
               HK_OPTION(SEED) | HK_OPTION(MAX_ERROR) | HK_OPTION(TIMELINE) | HK_OPTION(JSON) |
               HK_OPTION(WIDE) | HK_OPTION(EXPLAIN) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 1,
    .run = run,
};
