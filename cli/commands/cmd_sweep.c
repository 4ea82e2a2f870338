/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket sweep: thousands of jobs into one table. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/print/screen.h"
#include "cli/sweep_query.h"
#include "cli/sweep_run.h"

/* -o FILE, else SPEC with .db in place of .json. */
static hk_status path_of(const hk_args *args, char *path, size_t size, hk_error *err) {
  const char *spec = args->operands[0];
  size_t length = strlen(spec);
  if (args->output) {
    snprintf(path, size, "%s", args->output);
    return HK_OK;
  }
  if (args->merge) return hk_fail(err, HK_INPUT, "--merge needs -o FILE, the database of all rows");
  if (length > 5 && strcmp(spec + length - 5, ".json") == 0) length -= 5;
  if (snprintf(path, size, "%.*s.db", (int)length, spec) < (int)size) return HK_OK;
  return hk_fail(err, HK_INPUT, "the path '%.80s...' is too long", spec);
}

static void print_counts(const char *path, const hk_sweep_rows *rows) {
  char all[32], fit[32];
  hk_print_text(0, 2, "%s rows in %s: %s fit, %lld do not, %lld are not possible",
                hk_format_count(rows->all, all, sizeof all), path,
                hk_format_count((int64_t)rows->n, fit, sizeof fit), (long long)rows->too_large,
                (long long)rows->not_possible);
}

static hk_status print_summary(const hk_args *args, const char *path,
                               const hk_sweep_database *database, const hk_sweep_rows *rows,
                               hk_error *err) {
  if (!args->json) {
    print_counts(path, rows);
    if (rows->n == 0) return HK_OK;
    return hk_sweep_answer(args, HK_SWEEP_CHEAPEST, &database->spec, rows, err);
  }
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.sweep/1", &ok);
  hk_put_string(root, "database", path, &ok);
  hk_put_number(root, "points", (double)database->spec.points, &ok);
  hk_put_number(root, "sample", (double)database->spec.sample, &ok);
  hk_put_number(root, "rows", (double)rows->all, &ok);
  hk_put_number(root, "simulated", (double)database->simulated, &ok);
  hk_put_number(root, "fit", (double)rows->n, &ok);
  hk_put_number(root, "do_not_fit", (double)rows->too_large, &ok);
  hk_put_number(root, "not_possible", (double)rows->not_possible, &ok);
  return hk_emit_print(root, ok, err);
}

/* Answers from some of the rows are not those of the sweep. */
static void warn_of_missing(const hk_args *args, const char *path, const hk_sweep_spec *spec,
                            int64_t rows) {
  const int64_t all = hk_sweep_count(spec);
  char there[32], wanted[32];
  if (args->quiet || args->given & HK_OPTION(SHARD) || rows >= all) return;
  fprintf(stderr,
          "hocket sweep: warning: '%s' has %s of %s rows: its sweep is unfinished, or it is one "
          "shard\n",
          path, hk_format_count(rows, there, sizeof there),
          hk_format_count(all, wanted, sizeof wanted));
}

static hk_status answer(const hk_args *args, const char *path, const hk_sweep_database *database,
                        hk_error *err) {
  hk_sweep_rows rows;
  hk_status status = hk_sweep_rows_load(database->store, &database->spec, &rows, err);
  if (status == HK_OK) warn_of_missing(args, path, &database->spec, rows.all);
  if (status == HK_OK && args->given & HK_OPTION(QUERY))
    status = hk_sweep_answer(args, (hk_sweep_question)args->query, &database->spec, &rows, err);
  else if (status == HK_OK)
    status = print_summary(args, path, database, &rows, err);
  if (status == HK_OK && args->table) {
    status = hk_emit_flush(err);
    if (status == HK_OK) status = hk_sweep_csv(database->store, args->table, err);
    if (status == HK_OK && !args->quiet) fprintf(stderr, "hocket sweep: wrote %s\n", args->table);
  }
  if (status == HK_OK && rows.n == 0)
    status = hk_fail(err, HK_NO, "no row fits: %lld do not, %lld are not possible",
                     (long long)rows.too_large, (long long)rows.not_possible);
  hk_sweep_rows_free(&rows);
  return status;
}

/* Options that a database fixes, and those that --merge does not take. */
static hk_status check_options(const hk_args *args, bool database, hk_error *err) {
  HK_TRY(hk_emit_check_input(args->table, args->operands, args->n_operands, err));
  const hk_option_set fixed = HK_OPTION(SET) | HK_OPTION(SAMPLE) | HK_OPTION(SEED) |
                              HK_OPTION(SHARD) | (database ? HK_OPTION(OUTPUT) : 0);
  if (args->n_operands > 1 && !args->merge)
    return hk_fail(err, HK_INPUT, "one SPEC.json or database at a time; several only with --merge");
  for (int id = 0; id < HK_OPT_COUNT && (database || args->merge); id++)
    if (args->given & fixed & (hk_option_set)1 << id)
      return hk_fail(err, HK_INPUT, "'--%s' is for running a SPEC.json, not for a database",
                     hk_option_info((hk_option_id)id)->name);
  return HK_OK;
}

static hk_status run(const hk_args *args, hk_error *err) {
  char path[4096];
  hk_sweep_database database = {0};
  const bool there = !args->merge && hk_store_is_database(args->operands[0]);
  HK_TRY(check_options(args, there, err));
  HK_TRY(hk_emit_check_output(args->table, err));
  hk_status status = HK_OK;
  if (there)
    snprintf(path, sizeof path, "%s", args->operands[0]);
  else
    status = path_of(args, path, sizeof path, err);
  if (status == HK_OK)
    status = there         ? hk_sweep_database_open(path, &database, err)
             : args->merge ? hk_sweep_merge_all(args, path, &database, err)
                           : hk_sweep_run(args, path, &database, err);
  if (status == HK_OK) status = answer(args, path, &database, err);
  hk_sweep_database_close(&database);
  return status;
}

const hk_command hk_command_sweep = {
    .name = "sweep",
    .summary = "Simulates all combinations of models, machines and settings",
    .usage =
        "SPEC.json [-o FILE.db] [--csv FILE] [OPTIONS]\n"
        "       hocket sweep FILE.db [--query QUESTION] [--csv FILE]\n"
        "       hocket sweep --merge -o FILE.db PART.db...",
    .details =
        "SPEC.json is an object whose keys are long options of 'plan' and 'simulate', and\n"
        "whose values are a scalar, a list, or a range {\"from\", \"to\", \"step\" or\n"
        "\"factor\"}; \"set\" holds an object of --set. Every point of the product is a row\n"
        "of a SQLite table: whether it fits, times, memory, what limits it, cost, and\n"
        "whether it is a best compromise. \"policy\" names schedules to simulate; \"best\",\n"
        "the default, is the best of all policies; \"plan\" is what 'plan' finds, which\n"
        "takes some ten times as long. The value null leaves an option out.\n"
        "--set KEY=VALUE,VALUE... adds a key or replaces its values. Rows are stored as\n"
        "they are made: after a kill or Ctrl-C the same command continues. All cores work\n"
        "(OMP_NUM_THREADS); rows do not depend on their number.\n"
        "Several machines, with SLURM or GNU parallel, then --merge:\n"
        "  sbatch --array=1-8 --wrap 'hocket sweep s.json -o part$SLURM_ARRAY_TASK_ID.db\n"
        "    --shard $SLURM_ARRAY_TASK_ID/8'\n"
        "  parallel hocket sweep s.json -o part{}.db --shard {}/8 ::: $(seq 8)\n"
        "  hocket sweep --merge -o all.db part*.db --csv all.csv\n"
        "--query asks: cheapest (GPU seconds without a price), break-even of offload,\n"
        "pareto (time against memory, or cost), sensitivity (what each key changes).\n"
        "Exit 1: no row fits; interrupted; --merge lacks rows.",
    .example = "hocket sweep spec.json --set micro-batch=1,2,4 --csv rows.csv",
    .output = "the database (default: SPEC with .db in place of .json)",
    .options = HK_OPTION(SET) | HK_OPTION(SAMPLE) | HK_OPTION(SEED) | HK_OPTION(SHARD) |
               HK_OPTION(MERGE) | HK_OPTION(QUERY) | HK_OPTION(TABLE) | HK_OPTION(OUTPUT) |
               HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 100000,
    .run = run,
};
