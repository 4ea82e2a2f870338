/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket trace export: writes a simulated iteration, or a stored timeline and its pair, as a Chrome
 * trace or as CSV. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/setup.h"
#include "cli/stored_timeline.h"
#include "core/base/json.h"
#include "core/base/outfile.h"
#include "traces/chrome.h"

/* -- Writing ----------------------------------------------------------------------------------- */

static bool wants_csv(const hk_args *args) {
  const size_t length = args->output ? strlen(args->output) : 0;
  return args->csv || (length > 4 && strcmp(args->output + length - 4, ".csv") == 0);
}

/* layers[0] of two is the prediction. */
static hk_status write_csv(const hk_args *args, const hk_graph *graph,
                           const hk_chrome_layer *layers, size_t n, hk_error *err) {
  const hk_timeline *timeline = layers[n - 1].timeline;
  const hk_timeline *predicted = n > 1 ? layers[0].timeline : NULL;
  if (!args->output) {
    hk_timelines_write_csv(graph, timeline, predicted, stdout);
    return HK_OK;
  }
  hk_outfile *file = NULL;
  HK_TRY(hk_outfile_open(args->output, &file, err));
  hk_timelines_write_csv(graph, timeline, predicted, hk_outfile_stream(file));
  return hk_outfile_close(file, err);
}

#define LARGE_BYTES 500e6 /* a larger trace gets a note: viewers in browsers run out of memory */

/* About the size of the file: mean bytes of an operation, of a dependency's arrow and of a
 * counter's sample, as text. */
static double estimate_bytes(const hk_args *args, const hk_graph *graph,
                             const hk_chrome_layer *layers, size_t n) {
  double bytes = 0;
  if (wants_csv(args)) return 65 * (double)graph->n_ops;
  for (size_t i = 0; i < n; i++) {
    bytes += 220 * (double)graph->n_ops + 85 * (double)graph->n_deps;
    for (size_t c = 0; c < layers[i].timeline->n_counters; c++)
      bytes += 70 * (double)layers[i].timeline->counters[c].n;
  }
  return bytes;
}

static hk_status note_size(const hk_args *args, const hk_graph *graph,
                           const hk_chrome_layer *layers, size_t n, hk_error *err) {
  const double bytes = estimate_bytes(args, graph, layers, n);
  if (bytes < LARGE_BYTES || args->quiet) return HK_OK;
  HK_TRY(hk_emit_flush(err));
  fprintf(stderr,
          "hocket trace export: note: %zu operations make a file of about %.1f GB, which viewers "
          "may not open; larger subgroups make fewer operations\n",
          graph->n_ops, bytes / 1e9);
  return HK_OK;
}

static hk_status write_layers(const hk_args *args, const hk_graph *graph,
                              const hk_chrome_layer *layers, size_t n, const char *title,
                              hk_error *err) {
  HK_TRY(note_size(args, graph, layers, n, err));
  return wants_csv(args) ? write_csv(args, graph, layers, n, err)
                         : hk_chrome_write_layers(graph, layers, n, title, args->output, err);
}

/* Prints what was written, unless the document or a JSON object is on stdout. */
static void tell_written(const hk_args *args, const hk_graph *graph, hk_ns makespan) {
  if (!args->output || args->json || hk_emit_instead(args->output)) return;
  printf("%s: %zu operations on %zu lanes, %.1f ms; %s\n", args->output, graph->n_ops,
         graph->n_lanes, hk_ms(makespan),
         wants_csv(args) ? "one row per operation" : "open it in ui.perfetto.dev");
}

static cJSON *begin_json(const hk_args *args, const hk_graph *graph, bool *ok) {
  cJSON *root = hk_emit_begin("hocket.trace_export/1", ok);
  hk_put_string(root, "file", args->output, ok);
  hk_put_number(root, "operations", (double)graph->n_ops, ok);
  hk_put_number(root, "lanes", (double)graph->n_lanes, ok);
  return root;
}

/* -- A plan, simulated ------------------------------------------------------------------------- */

static hk_status print_forecast(const hk_args *args, const hk_forecast *forecast, hk_error *err) {
  bool ok = true;
  cJSON *root = begin_json(args, &forecast->graph, &ok);
  hk_put_number(root, "iteration_ms", hk_ms(forecast->iteration_ns), &ok);
  hk_put_bool(root, "feasible", forecast->feasible, &ok);
  return hk_emit_print(root, ok, err);
}

static hk_status answer(const hk_args *args, const hk_forecast *forecast, const hk_machine *machine,
                        hk_error *err) {
  char policy[96], title[320];
  const hk_chrome_layer layer = {"predicted", &forecast->result.timeline};
  snprintf(title, sizeof title, "%s on %s, %s, %s runtime", forecast->plan.model.name,
           machine->name, hk_forecast_title(forecast, policy, sizeof policy),
           hk_runtime_name(forecast->plan.runtime));
  HK_TRY(write_layers(args, &forecast->graph, &layer, 1, title, err));
  if (args->json) HK_TRY(print_forecast(args, forecast, err));
  tell_written(args, &forecast->graph, forecast->iteration_ns);
  HK_TRY(hk_emit_flush(err));
  if (!forecast->feasible && !args->quiet)
    fprintf(stderr, "hocket trace export: note: the plan does not fit: %s\n", forecast->problem);
  return HK_OK;
}

static hk_status export_plan(const hk_args *args, hk_error *err) {
  if (args->alone)
    return hk_fail(err, HK_INPUT, "'--alone' is for stored timelines, which are named by id");
  const hk_sim_options options = {.counters = true, .check = args->check};
  return hk_setup_forecast(args, &options, answer, err);
}

/* -- Stored timelines -------------------------------------------------------------------------- */

/* The named timeline and, unless --alone is given, its pair if it has one. */
typedef struct {
  hk_loaded_timeline timelines[2];
  size_t n;
} kept_pair;

static hk_status load_pair(const hk_args *args, kept_pair *pair, hk_error *err) {
  HK_TRY(hk_stored_timeline_load(args->operands[0], &pair->timelines[0], err));
  pair->n = 1;
  const int64_t other = pair->timelines[0].kept.pair;
  if (other == 0 || args->alone) return HK_OK;
  char operand[24];
  snprintf(operand, sizeof operand, "%lld", (long long)other);
  HK_TRY(hk_stored_timeline_load(operand, &pair->timelines[1], err));
  pair->n = 2;
  const hk_stored_timeline *one = &pair->timelines[0].kept, *two = &pair->timelines[1].kept;
  if (one->measured != two->measured) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT,
                 "timelines %lld and %lld are stored as a pair, but both are %s; --alone exports "
                 "one of them",
                 (long long)one->id, (long long)two->id, hk_stored_timeline_kind(one));
}

static hk_status print_kept(const hk_args *args, const kept_pair *pair, hk_error *err) {
  bool ok = true;
  cJSON *root = begin_json(args, &pair->timelines[0].graph, &ok);
  cJSON *list = hk_put_array(root, "timelines", &ok);
  for (size_t i = 0; i < pair->n; i++) {
    const hk_stored_timeline *kept = &pair->timelines[i].kept;
    cJSON *object = hk_put_element(list, &ok);
    hk_put_number(object, "id", (double)kept->id, &ok);
    hk_put_string(object, "kind", hk_stored_timeline_kind(kept), &ok);
    hk_put_number(object, "makespan_ms", hk_ms(kept->makespan), &ok);
  }
  return hk_emit_print(root, ok, err);
}

static hk_chrome_layer layer_of(const hk_loaded_timeline *t) {
  return (hk_chrome_layer){hk_stored_timeline_kind(&t->kept), &t->timeline};
}

/* Of a pair the prediction is the first layer. */
static hk_status write_pair(const hk_args *args, const kept_pair *pair, hk_error *err) {
  const hk_loaded_timeline *first = &pair->timelines[0], *second = &pair->timelines[1];
  const size_t n = pair->n > 1 ? 2 : 1;
  const bool swapped = n == 2 && first->kept.measured;
  const hk_chrome_layer layers[2] = {layer_of(swapped ? second : first),
                                     layer_of(swapped ? first : second)};
  char title[320];
  snprintf(title, sizeof title, "%s%s%s", first->kept.label, *first->kept.machine ? " on " : "",
           first->kept.machine);
  HK_TRY(write_layers(args, &first->graph, layers, n, title, err));
  if (args->json) HK_TRY(print_kept(args, pair, err));
  tell_written(args, &first->graph, first->kept.makespan);
  return hk_emit_flush(err);
}

static hk_status export_kept(const hk_args *args, hk_error *err) {
  const hk_option_set others = HK_OPTIONS_PLAN | HK_OPTIONS_MACHINE | HK_OPTION(CHECK);
  for (int id = 0; id < HK_OPT_COUNT; id++)
    if (args->given & others & (hk_option_set)1 << id)
      return hk_fail(err, HK_INPUT,
                     "'--%s' cannot be given with a stored timeline; a file of that name is './%s'",
                     hk_option_info((hk_option_id)id)->name, args->operands[0]);
  kept_pair pair = {0};
  hk_status status = load_pair(args, &pair, err);
  if (status == HK_OK) status = write_pair(args, &pair, err);
  for (int i = 0; i < 2; i++) hk_loaded_timeline_free(&pair.timelines[i]);
  return status;
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status run(const hk_args *args, hk_error *err) {
  if (!args->output && !args->csv)
    return hk_fail(err, HK_INPUT, "-o FILE is needed, the file to write");
  if (!args->output && args->json)
    return hk_fail(
        err, HK_INPUT,
        "'--csv' and '--json' both go to standard output; -o FILE says where the table goes");
  const bool kept = args->n_operands > 0 && hk_stored_timeline_is_id(args->operands[0]);
  return kept ? export_kept(args, err) : export_plan(args, err);
}

const hk_command hk_command_trace_export = {
    .name = "trace export",
    .summary = "Writes a timeline as a Chrome trace for Perfetto, or as CSV",
    .usage =
        "PLAN.json [--machine NAME|FILE] -o FILE [OPTIONS]\n"
        "       hocket trace export --model NAME|FILE --machine NAME|FILE --policy NAME "
        "-o FILE [OPTIONS]\n"
        "       hocket trace export ID [--alone] -o FILE [OPTIONS]",
    .details =
        "One track per lane, one slice per operation, arrows for dependencies between\n"
        "lanes, counters for memory and rates. A plan that does not fit is exported, too,\n"
        "with a note.\n"
        "ID is a stored timeline ('hocket trace list'). If it is one of a pair, both are\n"
        "written, each lane's measurement below its prediction; --alone writes one.\n"
        "--csv, or a FILE that ends in .csv: a table with one row per operation, times in\n"
        "ns.",
    .example =
        "hocket trace export --model llama-2-7b --machine polaris-a100-4x40gb --policy "
        "streamed -o trace.json",
    .output = "the trace (Trace Event Format, JSON) or the CSV file",
    .options = HK_OPTIONS_PLAN | HK_OPTIONS_MACHINE | HK_OPTION(OUTPUT) | HK_OPTION(ALONE) |
               HK_OPTION(CSV) | HK_OPTION(JSON) | HK_OPTION(QUIET) | HK_OPTION(CHECK),
    .most_operands = 1,
    .dash = HK_DASH_INSTEAD,
    .lists_policies = true,
    .run = run,
};
