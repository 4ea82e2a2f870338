/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket simulate: one plan or one policy on one machine. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/jobs.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/report.h"
#include "cli/print/report_state.h"
#include "cli/print/report_uncertainty.h"
#include "cli/setup.h"
#include "cli/stored_timeline.h"

/* --keep: stores the timeline. *id: 0 without. */
static hk_status keep(const hk_args *args, const hk_forecast *forecast, const hk_machine *machine,
                      int64_t *id, hk_error *err) {
  *id = 0;
  if (!args->keep) return HK_OK;
  cJSON *profile = hk_machine_to_json(machine);
  if (!profile) return hk_fail_memory(err, sizeof *profile, "a profile");
  const hk_timeline_to_store what = {.phases = HK_EXPAND_ALL,
                                     .plan = &forecast->plan,
                                     .graph = &forecast->graph,
                                     .timeline = &forecast->result.timeline,
                                     .profile = profile,
                                     .version = HK_BUILD};
  hk_status status = hk_stored_timeline_add(&what, id, err);
  cJSON_Delete(profile);
  return status;
}

static hk_status print_json(const hk_args *args, const hk_forecast *forecast,
                            const hk_machine *machine, hk_ns alone,
                            const hk_uncertainty *uncertainty, int64_t kept, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.forecast/1", &ok);
  hk_status status = hk_report_json(forecast, machine, root, err);
  if (status != HK_OK) {
    cJSON_Delete(root);
    return status;
  }
  hk_jobs_json(forecast, alone, root, &ok);
  hk_report_forecast_error_json(uncertainty, forecast, root, &ok);
  if (kept) hk_put_number(root, "timeline", (double)kept, &ok);
  hk_explain_changes_json(machine, root, &ok);
  if (args->explain) hk_explain_json(machine, &forecast->plan, root, &ok);
  return hk_emit_print(root, ok, err);
}

static hk_status print_text(const hk_args *args, const hk_forecast *forecast,
                            const hk_machine *machine, hk_ns alone,
                            const hk_uncertainty *uncertainty, int64_t kept, hk_error *err) {
  hk_jobs_print(forecast, alone);
  HK_TRY(hk_report_text(forecast, machine, uncertainty, args->quiet, err));
  if (kept) printf("stored as timeline %lld\n", (long long)kept);
  if (!args->explain) return HK_OK;
  putchar('\n');
  hk_report_optimizer(&forecast->plan, machine, true);
  putchar('\n');
  return hk_explain_text(machine, &forecast->plan, err);
}

static hk_status print_report(const hk_args *args, const hk_forecast *forecast,
                              const hk_machine *machine, int64_t kept, hk_error *err) {
  hk_uncertainty uncertainty;
  hk_ns alone;
  HK_TRY(hk_jobs_alone(forecast, machine, &alone, err));
  HK_TRY(hk_uncertainty_make(forecast, 1, machine, &uncertainty, err));
  const hk_status status = (args->json ? print_json : print_text)(args, forecast, machine, alone,
                                                                  &uncertainty, kept, err);
  hk_uncertainty_free(&uncertainty);
  return status;
}

static hk_status answer(const hk_args *args, const hk_forecast *forecast, const hk_machine *machine,
                        hk_error *err) {
  int64_t kept;
  HK_TRY(keep(args, forecast, machine, &kept, err));
  if (!hk_emit_instead(args->output)) HK_TRY(print_report(args, forecast, machine, kept, err));
  if (args->output) {
    HK_TRY(hk_emit_flush(err));
    HK_TRY(hk_setup_save_plan(&forecast->plan, machine, args->output, err));
    if (!args->quiet && !hk_emit_instead(args->output))
      fprintf(stderr, "hocket simulate: wrote the plan to %s\n", args->output);
  }
  if (forecast->feasible) return HK_OK;
  return hk_fail(err, HK_NO, "does not fit: %s; %s", forecast->problem, forecast->advice);
}

static hk_status run(const hk_args *args, hk_error *err) {
  const hk_sim_options options = {.counters = args->json || args->keep, .check = args->check};
  return hk_setup_forecast(args, &options, answer, err);
}

const hk_command hk_command_simulate = {
    .name = "simulate",
    .summary = "Simulates one iteration of a plan or of a policy",
    .usage =
        "PLAN.json [--machine NAME|FILE] [OPTIONS]\n"
        "       hocket simulate --model NAME|FILE --machine NAME|FILE --policy NAME [OPTIONS]",
    .details =
        "Prints the times of forward, backward and update, throughput, lower bounds,\n"
        "memory, and how busy each lane and resource is. A plan file fixes model, job and\n"
        "policy. Without --machine it is simulated on the machine that it was made for.\n"
        "Exit 1: it does not fit.",
    .example =
        "hocket simulate --model llama-2-7b --machine polaris-a100-4x40gb --policy "
        "interleave --stride 2",
    .output = "write the simulated plan to a file ('-': to stdout)",
    .options = HK_OPTIONS_PLAN | HK_OPTIONS_MACHINE | HK_OPTION(OUTPUT) | HK_OPTION(KEEP) |
               HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(EXPLAIN) | HK_OPTION(QUIET) |
               HK_OPTION(CHECK),
    .most_operands = 1,
    .dash = HK_DASH_INSTEAD,
    .lists_policies = true,
    .run = run,
};
