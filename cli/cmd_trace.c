/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket trace export: a simulated iteration for Perfetto. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/emit.h"
#include "cli/setup.h"
#include "traces/chrome.h"

static hk_status print_json(const hk_args *args, const hk_forecast *forecast, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.trace_export/1", &ok);
  hk_put_string(root, "file", args->output, &ok);
  hk_put_number(root, "operations", (double)forecast->graph.n_ops, &ok);
  hk_put_number(root, "lanes", (double)forecast->graph.n_lanes, &ok);
  hk_put_number(root, "iteration_ms", hk_ms(forecast->iteration_ns), &ok);
  hk_put_bool(root, "feasible", forecast->feasible, &ok);
  return hk_emit_print(root, ok, err);
}

static hk_status answer(const hk_args *args, const hk_forecast *forecast, const hk_machine *machine,
                        hk_error *err) {
  char policy[96], title[320];
  snprintf(title, sizeof title, "%s on %s, %s, %s runtime", forecast->plan.model.name,
           machine->name, hk_forecast_title(forecast, policy, sizeof policy),
           hk_runtime_name(forecast->plan.runtime));
  HK_TRY(hk_chrome_write(&forecast->graph, &forecast->result.timeline, title, args->output, err));
  if (args->json) HK_TRY(print_json(args, forecast, err));
  if (!args->json)
    printf("%s: %zu operations on %zu lanes, %.1f ms; open it in ui.perfetto.dev\n", args->output,
           forecast->graph.n_ops, forecast->graph.n_lanes, hk_ms(forecast->iteration_ns));
  HK_TRY(hk_emit_flush(err));
  if (!forecast->feasible && !args->quiet)
    fprintf(stderr, "hocket trace export: note: the plan does not fit: %s\n", forecast->problem);
  return HK_OK;
}

static hk_status run(const hk_args *args, hk_error *err) {
  if (!args->output) return hk_fail(err, HK_INPUT, "-o FILE is needed: where the trace goes");
  const hk_sim_options options = {.counters = true, .check = args->check};
  return hk_setup_forecast(args, &options, answer, err);
}

const hk_command hk_command_trace_export = {
    .name = "trace export",
    .summary = "Writes one simulated iteration as a Chrome trace, for Perfetto",
    .usage =
        "PLAN.json [--machine NAME|FILE] -o FILE [OPTIONS]\n"
        "       hocket trace export --model NAME|FILE --machine NAME|FILE --policy NAME "
        "-o FILE [OPTIONS]",
    .details =
        "One track a lane, one slice an operation, arrows for dependencies between lanes,\n"
        "counters for memory and rates. A plan that does not fit is traced all the same.",
    .example =
        "hocket trace export --model llama-2-7b --machine polaris-a100-4x40gb --policy "
        "streamed -o trace.json",
    .output = "the trace (Trace Event Format, JSON)",
    .options = HK_OPTIONS_PLAN | HK_OPTION(MACHINE) | HK_OPTION(OUTPUT) | HK_OPTION(JSON) |
               HK_OPTION(QUIET) | HK_OPTION(CHECK),
    .most_operands = 1,
    .lists_policies = true,
    .run = run,
};
