/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket trace import: converts logs of training runs to rows of a run table. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/setup.h"
#include "core/base/json.h"
#include "core/base/memory_text.h"
#include "core/base/outfile.h"
#include "core/model/model.h"
#include "traces/import_deepspeed.h"

#define WARM_UP 2 /* iterations skipped, as in the published tables */

typedef struct {
  const char *path;
  hk_import_report report;
  char error[1024]; /* why it gave no row; "": it gave one */
} imported;

typedef struct {
  hk_run_table table;
  imported *logs;
  int n_logs;
} import_task;

/* -- Values from the command line -------------------------------------------------------------- */

static hk_status fill_model(const hk_args *args, hk_run *run, hk_error *err) {
  hk_model model = {0};
  HK_TRY(hk_setup_model(args, &model, err));
  if (model.n_kinds != 1 || model.experts > 0) {
    const hk_status status = hk_fail(err, HK_INPUT,
                                     "--model %s: a run table describes models shaped like Llama, "
                                     "whose layers are all alike and have no experts",
                                     model.name);
    hk_model_free(&model);
    return status;
  }
  run->layers = (double)model.layers;
  run->hidden = (double)model.hidden;
  run->ffn = (double)model.ffn;
  run->heads = (double)model.heads;
  run->kv_heads = (double)model.kv_heads;
  run->vocab = (double)model.vocab;
  char *name = strdup(model.name);
  hk_model_free(&model);
  if (!name) return hk_fail_memory(err, 1, "a model's name");
  free(run->model);
  run->model = name;
  return HK_OK;
}

static hk_status fill_defaults(const hk_args *args, hk_run *run, hk_error *err) {
  HK_TRY(hk_run_init(run, err));
  if (args->given & HK_OPTION(NODES)) run->nodes = (double)args->nodes;
  if (args->given & HK_OPTION(TP)) run->tp = (double)args->tp;
  if (args->given & HK_OPTION(SEQ)) run->seq = (double)args->seq;
  hk_status status = args->given & HK_OPTIONS_MODEL ? fill_model(args, run, err) : HK_OK;
  if (status != HK_OK) hk_run_free(run);
  return status;
}

/* -- Notes ------------------------------------------------------------------------------------- */

static void note_skipped(const hk_import_report *report, FILE *out) {
  if (report->runs > 1) fprintf(out, "; used the last of %d runs in this file", report->runs);
  if (report->cut_end) fprintf(out, "; skipped its last line, which is cut off");
  if (report->long_lines > 0)
    fprintf(out, "; read only the first 64 KiB of %lld long lines", report->long_lines);
  if (report->nul_bytes > 0) fprintf(out, "; skipped %lld NUL bytes", report->nul_bytes);
  if (report->bad_numbers > 0)
    fprintf(out, "; skipped %lld numbers that are cut off or ambiguous (first in line %lld)",
            report->bad_numbers, report->bad_line);
  if (report->paced) fprintf(out, "; iter_ms is the time between steps");
  if (report->failed) fprintf(out, "; the run failed: %s", report->failure);
  if (*report->missing) fprintf(out, "; not in the log: %s", report->missing);
  if (report->incomplete)
    fprintf(out,
            "; hocket cannot simulate the row without them: see --model, --nodes, --tp, --seq");
}

/* Prints one line per log, with its control characters replaced. */
static hk_status note(const imported *log, hk_error *err) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return hk_fail_memory(err, 1, "a note");
  const hk_import_report *report = &log->report;
  if (*log->error) {
    fprintf(out, "%s", log->error);
  } else {
    fprintf(out, "%s: %d of %d iterations used", log->path, report->steady, report->iterations);
    note_skipped(report, out);
  }
  HK_TRY(hk_memory_text_close(out, &text, "a note", err));
  for (char *c = text; *c; c++)
    if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
  fprintf(stderr, "hocket trace import: %s: %s\n", *log->error ? "no row" : "note", text);
  free(text);
  return HK_OK;
}

/* -- JSON -------------------------------------------------------------------------------------- */

/* NAN (unknown) becomes null. */
static void put_known(cJSON *object, const char *key, double value, bool *ok) {
  if (!isnan(value))
    hk_put_number(object, key, value, ok);
  else if (!cJSON_AddNullToObject(object, key))
    *ok = false;
}

static void put_run(const hk_run *run, cJSON *entry, bool *ok) {
#define PUT(field, column, required, meaning) hk_put_string(entry, column, run->field, ok);
  HK_RUN_TEXTS(PUT)
#undef PUT
#define PUT(field, column, required, meaning) put_known(entry, column, run->field, ok);
  HK_RUN_NUMBERS(PUT)
#undef PUT
}

static void put_log(const imported *log, cJSON *entry, bool *ok) {
  const hk_import_report *report = &log->report;
  hk_put_string(entry, "path", log->path, ok);
  hk_put_bool(entry, "row", !*log->error, ok);
  if (*log->error) hk_put_string(entry, "error", log->error, ok);
  hk_put_number(entry, "lines", (double)report->lines, ok);
  hk_put_number(entry, "size_bytes", (double)report->bytes, ok);
  hk_put_number(entry, "runs", report->runs, ok);
  hk_put_number(entry, "iterations", report->iterations, ok);
  hk_put_number(entry, "steady_iterations", report->steady, ok);
  hk_put_bool(entry, "cut_off", report->cut_end, ok);
  hk_put_number(entry, "long_lines", (double)report->long_lines, ok);
  hk_put_number(entry, "nul_bytes", (double)report->nul_bytes, ok);
  hk_put_number(entry, "bad_numbers", (double)report->bad_numbers, ok);
  hk_put_bool(entry, "failed", report->failed, ok);
  if (report->failed) hk_put_string(entry, "failure", report->failure, ok);
  hk_put_string(entry, "missing", report->missing, ok);
  hk_put_bool(entry, "complete", !*log->error && !report->incomplete, ok);
}

static hk_status print_json(const import_task *im, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.trace_import/1", &ok);
  cJSON *rows = hk_put_array(root, "rows", &ok), *logs = hk_put_array(root, "logs", &ok);
  for (size_t i = 0; i < im->table.n; i++)
    put_run(&im->table.runs[i], hk_put_element(rows, &ok), &ok);
  for (int i = 0; i < im->n_logs; i++) put_log(&im->logs[i], hk_put_element(logs, &ok), &ok);
  return hk_emit_print(root, ok, err);
}

/* -- The command ------------------------------------------------------------------------------- */

/* A log that gives no row is noted; the other logs are still read. */
static hk_status read_logs(const hk_args *args, const hk_run *defaults, import_task *im,
                           hk_error *err) {
  const hk_import_options options = {
      .skip = WARM_UP, .machine = args->machine, .defaults = defaults};
  im->logs = calloc((size_t)args->n_operands, sizeof *im->logs);
  if (!im->logs) return hk_fail_memory(err, (size_t)args->n_operands * sizeof *im->logs, "logs");
  for (int i = 1; i < args->n_operands; i++) {
    imported *log = &im->logs[im->n_logs++];
    log->path = args->operands[i];
    hk_status status = hk_import_deepspeed(log->path, &options, &im->table, &log->report, err);
    if (status == HK_NO)
      snprintf(log->error, sizeof log->error, "%s", err->message);
    else
      HK_TRY(status);
  }
  return HK_OK;
}

static hk_status write_table(const hk_run_table *table, const char *path, hk_error *err) {
  hk_outfile *out = NULL;
  HK_TRY(hk_outfile_open(path, &out, err));
  hk_status status = hk_run_table_write(table, hk_outfile_stream(out), err);
  if (status == HK_OK) return hk_outfile_close(out, err);
  hk_outfile_abort(out);
  return status;
}

static hk_status answer(const hk_args *args, const import_task *im, hk_error *err) {
  if (args->output) HK_TRY(write_table(&im->table, args->output, err));
  if (args->json)
    HK_TRY(print_json(im, err));
  else if (args->output)
    printf("%s: %zu of %d logs gave a row\n", args->output, im->table.n, im->n_logs);
  else
    HK_TRY(hk_run_table_write(&im->table, stdout, err));
  HK_TRY(hk_emit_flush(err));
  for (int i = 0; i < im->n_logs; i++)
    if (*im->logs[i].error || !args->quiet) HK_TRY(note(&im->logs[i], err));
  if (im->table.n == (size_t)im->n_logs) return HK_OK;
  return hk_fail(err, HK_NO, "%zu of %d logs gave a row", im->table.n, im->n_logs);
}

static hk_status fail_all(const import_task *im, hk_error *err) {
  if (im->n_logs > 1)
    return hk_fail(err, HK_INPUT, "none of the %d logs gave a row; the first: %s", im->n_logs,
                   im->logs[0].error);
  return hk_fail(err, HK_INPUT, "%s", im->logs[0].error);
}

static hk_status run(const hk_args *args, hk_error *err) {
  if (strcmp(args->operands[0], "deepspeed") != 0)
    return hk_fail(err, HK_INPUT, "unknown kind of log '%s'; expected 'deepspeed'",
                   args->operands[0]);
  hk_run defaults;
  import_task im = {0};
  HK_TRY(fill_defaults(args, &defaults, err));
  hk_status status = read_logs(args, &defaults, &im, err);
  if (status == HK_OK) status = im.table.n > 0 ? answer(args, &im, err) : fail_all(&im, err);
  hk_run_table_free(&im.table);
  hk_run_free(&defaults);
  free(im.logs);
  return status;
}

const hk_command hk_command_trace_import = {
    .name = "trace import",
    .summary = "Converts DeepSpeed and Megatron logs to a run table",
    .usage = "deepspeed LOG... [OPTIONS]",
    .details =
        "Writes CSV, one row per log ('-': standard input): medians over the iterations\n"
        "after the first two, and the shape and settings that the log states. Nothing is\n"
        "guessed: what a log does not state stays empty, unless --model, --nodes, --tp or\n"
        "--seq gives it. --machine names the profile of the rows. Notes on stderr list\n"
        "what was skipped in each log. Exit 1: some logs gave no row.",
    .example = "hocket trace import deepspeed run.log --machine polaris-a100-4x40gb -o runs.csv",
    .output = "write the run table (CSV) to a file",
    .dash = HK_DASH_SAME,
    .options = HK_OPTION(MACHINE) | HK_OPTIONS_MODEL | HK_OPTION(NODES) | HK_OPTION(TP) |
               HK_OPTION(SEQ) | HK_OPTION(OUTPUT) | HK_OPTION(JSON) | HK_OPTION(QUIET),
    .least_operands = 2,
    .most_operands = INT_MAX,
    .run = run,
};
