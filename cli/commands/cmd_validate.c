/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket validate runs: predicts every row of a run table and compares. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "calib/fit/table_fit.h"
#include "calib/profiles/profiles.h"
#include "calib/validate/runs.h"
#include "cli/command.h"
#include "cli/node_profile.h"
#include "cli/print/emit.h"
#include "cli/print/print_flush.h"
#include "cli/print/table.h"
#include "cli/setup.h"

typedef struct {
  hk_machine list[HK_MOST_MACHINES];
  size_t n;
} machines;

/* -- Machines ---------------------------------------------------------------------------------- */

static hk_status add_machine(const hk_args *args, const char *name_or_file, machines *m,
                             hk_error *err) {
  if (m->n == HK_MOST_MACHINES)
    return hk_fail(err, HK_INPUT, "the table names more than %d machines", HK_MOST_MACHINES);
  HK_TRY(hk_profiles_machine(name_or_file, &m->list[m->n], err));
  hk_machine *machine = &m->list[m->n++];
  const char *name = machine->name;
  for (size_t i = 0; i + 1 < m->n; i++)
    if (strcmp(m->list[i].name, name) == 0)
      return hk_fail(err, HK_INPUT, "two profiles of machine '%s' are given", name);
  return hk_setup_change(args, machine, err);
}

/* Loads the stored or shipped profile of each machine that a row names. */
static hk_status add_named_by_rows(const hk_args *args, const hk_run_table *table, machines *m,
                                   hk_error *err) {
  for (size_t row = 0; row < table->n; row++) {
    const char *name = table->runs[row].machine;
    size_t i = 0;
    while (i < m->n && strcmp(m->list[i].name, name) != 0) i++;
    if (i < m->n) continue;
    if (strchr(name, '/') || strstr(name, ".json"))
      return hk_fail(err, HK_INPUT, "%s: line %d: column 'machine': '%.80s' is not a name",
                     table->path, table->runs[row].line, name);
    if (add_machine(args, name, m, err) != HK_OK)
      return hk_fail_prefix(err, "%s: line %d: column 'machine'", table->path,
                            table->runs[row].line);
  }
  return HK_OK;
}

static hk_status load_machines(const hk_args *args, const hk_run_table *table, machines *m,
                               hk_error *err) {
  if (args->n_machines == 0) return add_named_by_rows(args, table, m, err);
  for (int i = 0; i < args->n_machines; i++) HK_TRY(add_machine(args, args->machines[i], m, err));
  return HK_OK;
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_settings(const hk_run *run, cJSON *row, bool *ok) {
  hk_put_number(row, "line", run->line, ok);
#define PUT(field, column, required, meaning) hk_put_string(row, column, run->field, ok);
  PUT(machine, "machine", , )
  PUT(source, "source", , )
  PUT(model, "model", , )
#undef PUT
  hk_put_number(row, "tp", run->tp, ok);
  hk_put_number(row, "dp", run->dp, ok);
  hk_put_number(row, "nodes", run->nodes, ok);
  hk_put_number(row, "cores_per_rank", run->cores_per_rank, ok);
  hk_put_number(row, "micro_batch", run->micro_batch, ok);
  hk_put_number(row, "grad_accum", run->grad_accum, ok);
  hk_put_number(row, "subgroup_numel", run->subgroup_numel, ok);
  hk_put_number(row, "offload_ratio", run->offload_ratio, ok);
  hk_put_number(row, "interleave", run->interleave, ok);
  hk_put_number(row, "stride", run->stride, ok);
  hk_put_number(row, "flush_async", run->flush_async, ok);
}

static void put_warnings(const char *lines, cJSON *row, bool *ok) {
  cJSON *list = hk_put_array(row, "warnings", ok);
  while (*lines) {
    const size_t length = strcspn(lines, "\n");
    char line[600];
    snprintf(line, sizeof line, "%.*s", (int)length, lines);
    hk_append_item(list, cJSON_CreateString(line), ok);
    lines += length + (lines[length] == '\n');
  }
}

static void put_row(const hk_run_prediction *prediction, cJSON *row, bool *ok) {
  put_settings(prediction->run, row, ok);
  hk_put_number(row, "group", prediction->group, ok);
  for (int f = 0; f < HK_RUN_FIGURES; f++) {
    const hk_run_compared *c = &prediction->figures[f];
    cJSON *figure = hk_put_object(row, hk_run_figure_column((hk_run_figure)f), ok);
    hk_put_number(figure, "measured", c->measured, ok);
    hk_put_number(figure, "predicted", c->predicted, ok);
    hk_put_number(figure, "error_pct", c->error_pct, ok);
  }
  put_warnings(prediction->warnings, row, ok);
}

static void put_order(const hk_run_order *order, cJSON *object, bool *ok) {
  hk_put_number(object, "kendall_tau", order->tau, ok);
  hk_put_number(object, "pairs", (double)order->pairs, ok);
}

static hk_status print_json(const hk_run_comparison *c, const hk_run_order *unfitted,
                            const machines *m, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.run_comparison/1", &ok);
  cJSON *names = hk_put_array(root, "machines", &ok);
  for (size_t i = 0; i < m->n; i++) hk_append_item(names, cJSON_CreateString(m->list[i].name), &ok);
  cJSON *rows = hk_put_array(root, "rows", &ok);
  for (size_t i = 0; i < c->n; i++) put_row(&c->rows[i], hk_put_element(rows, &ok), &ok);
  hk_put_number(root, "rows_left_out", (double)c->left_out, &ok);
  hk_put_run_medians(c->median_abs_error_pct, HK_RUN_FIGURES, "median_abs_error_pct", root, &ok);
  hk_put_flush_unknown(&c->flush_unknown, root, &ok);
  put_order(&c->order, root, &ok);
  hk_put_number(root, "kendall_tau_before_fit", unfitted->tau, &ok);
  cJSON *groups = hk_put_array(root, "groups", &ok);
  for (int g = 0; g < c->n_groups; g++) put_order(&c->groups[g], hk_put_element(groups, &ok), &ok);
  return hk_emit_print(root, ok, err);
}

/* -- Text -------------------------------------------------------------------------------------- */

static void settings_cell(hk_table *table, const hk_run *run) {
  char policy[48];
  if (run->interleave > 0)
    snprintf(policy, sizeof policy, "interleave k=%g r=%g", run->stride, run->offload_ratio);
  else if (run->offload_ratio < 1)
    snprintf(policy, sizeof policy, "twinflow r=%g", run->offload_ratio);
  else
    snprintf(policy, sizeof policy, "zero-offload");
  hk_table_cell(table, "%s%s", policy, run->flush_async == 0 ? ", sync" : "");
}

static void add_row(hk_table *table, const hk_run_prediction *row) {
  const hk_run *run = row->run;
  hk_table_row(table, "%d\t%s\t%s\t%g\t%g\t%g\t%gM", run->line, run->source, run->model, run->dp,
               run->micro_batch, run->grad_accum, run->subgroup_numel / 1e6);
  settings_cell(table, run);
  for (int f = 0; f < HK_RUN_TIMES_END; f++) {
    const hk_run_compared *c = &row->figures[f];
    if (isnan(c->measured))
      hk_table_cell(table, "%.0f", c->predicted);
    else
      hk_table_cell(table, "%.0f/%.0f %+.1f%%", c->predicted, c->measured, c->error_pct);
  }
}

/* Prints the median error of every column that was measured. */
static void print_medians(const hk_run_comparison *c) {
  printf("median absolute error:");
  for (int f = 0; f < HK_RUN_FIGURES; f++)
    if (!isnan(c->median_abs_error_pct[f]))
      printf("%s %s %.1f %%", f > 0 ? "," : "", hk_run_figure_column((hk_run_figure)f),
             c->median_abs_error_pct[f]);
  putchar('\n');
}

/* `unfitted`: of the same rows, predicted with the profiles as they were before any fit. */
static void print_order(const hk_run_comparison *c, const hk_run_order *unfitted) {
  if (isnan(c->order.tau)) {
    puts("Kendall's tau of step_ms: not defined, no two rows differ only in policy settings");
    return;
  }
  printf(
      "Kendall's tau of step_ms: %.3f over %lld pairs of rows that differ only in policy "
      "settings\n",
      c->order.tau, (long long)c->order.pairs);
  if (!isnan(unfitted->tau))
    printf("baseline: tau %.3f with the profiles as they were before they were fitted\n",
           unfitted->tau);
}

static hk_status print_text(const hk_run_comparison *c, const hk_run_order *unfitted,
                            hk_error *err) {
  static const hk_column columns[] = {{"line", HK_RIGHT},
                                      {"source", HK_LEFT | HK_SPARE(8)},
                                      {"model", HK_LEFT},
                                      {"dp", HK_RIGHT | HK_SPARE(3)},
                                      {"mb", HK_RIGHT | HK_SPARE(4)},
                                      {"ga", HK_RIGHT | HK_SPARE(5)},
                                      {"subgroup", HK_RIGHT | HK_SPARE(7)},
                                      {"policy", HK_WRAP},
                                      {"fwd ms", HK_RIGHT | HK_SPARE(6)},
                                      {"bwd ms", HK_RIGHT | HK_SPARE(2)},
                                      {"step ms", HK_RIGHT},
                                      {"iter ms", HK_RIGHT | HK_SPARE(1)}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < c->n; i++) add_row(&table, &c->rows[i]);
  HK_TRY(hk_table_print(&table, err));
  puts("\ntimes in ms: predicted/measured, error of the prediction");
  print_medians(c);
  hk_print_flush_unknown(&c->flush_unknown);
  print_order(c, unfitted);
  return HK_OK;
}

/* -- The order without a fit ------------------------------------------------------------------- */

static bool is_fitted(const hk_machine *machine) {
  return cJSON_GetObjectItemCaseSensitive(machine->document, "fitted_on") != NULL;
}

/* Kendall's tau of the profiles before they were fitted, the baseline of the fitted ones': most of
 * an order follows from the schedules alone. NAN if none was fitted. */
static hk_status order_before_fit(const hk_run_table *table, const machines *m, hk_run_order *order,
                                  hk_error *err) {
  machines before = {.n = 0};
  hk_run_comparison comparison;
  hk_status status = HK_OK;
  bool fitted = false;
  *order = (hk_run_order){.tau = NAN};
  for (size_t i = 0; i < m->n; i++) fitted |= is_fitted(&m->list[i]);
  if (!fitted) return HK_OK;
  while (status == HK_OK && before.n < m->n) {
    status = hk_fit_start(&m->list[before.n], &before.list[before.n], err);
    if (status == HK_OK) before.n++;
  }
  if (status == HK_OK) status = hk_runs_compare(table, before.list, before.n, &comparison, err);
  if (status == HK_OK) {
    *order = comparison.order;
    hk_run_comparison_free(&comparison);
  }
  for (size_t i = 0; i < before.n; i++) hk_machine_free(&before.list[i]);
  return status;
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status answer(const hk_args *args, const hk_run_table *table, const machines *m,
                        hk_error *err) {
  hk_run_comparison comparison;
  hk_run_order unfitted;
  HK_TRY(order_before_fit(table, m, &unfitted, err));
  HK_TRY(hk_runs_compare(table, m->list, m->n, &comparison, err));
  hk_status status = args->json ? print_json(&comparison, &unfitted, m, err)
                                : print_text(&comparison, &unfitted, err);
  if (status == HK_OK) status = hk_emit_flush(err);
  if (status == HK_OK && comparison.left_out > 0 && !args->quiet)
    fprintf(stderr,
            "hocket validate runs: note: skipped %zu of %zu rows, which name other machines\n",
            comparison.left_out, table->n);
  for (size_t i = 0; status == HK_OK && i < m->n; i++)
    hk_node_profile_note(args, "validate runs", m->list[i].document);
  hk_run_comparison_free(&comparison);
  return status;
}

static hk_status run(const hk_args *args, hk_error *err) {
  hk_run_table table;
  machines m = {.n = 0};
  HK_TRY(hk_run_table_load(args->operands[0], &table, err));
  hk_status status = load_machines(args, &table, &m, err);
  if (status == HK_OK) status = answer(args, &table, &m, err);
  for (size_t i = 0; i < m.n; i++) hk_machine_free(&m.list[i]);
  hk_run_table_free(&table);
  return status;
}

const hk_command hk_command_validate_runs = {
    .name = "validate runs",
    .summary = "Compares predictions with a table of measured training runs",
    .usage = "FILE.csv [--machine NAME|FILE]... [--json]",
    .details =
        "Simulates every row as a plan under the runtime deepspeed. The machine is the\n"
        "profile that the row names: one of those given with --machine (which may be\n"
        "repeated; other rows are skipped), else the profile of that name.\n"
        "Prints predicted and measured times, the median absolute error of each column,\n"
        "and Kendall's tau-b of step_ms over pairs of rows that differ only in policy,\n"
        "ratio, stride and flush. Two rows whose measured ranges overlap count as a tie.\n"
        "A fitted profile's tau stands beside that of the profile before its fit. Rows\n"
        "without flush_async are taken as asynchronous; their errors are given both ways.\n"
        "--json adds GPU memory in GiB.",
    .example = "hocket validate runs published-runs.csv",
    .options = HK_OPTIONS_MACHINE | HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 1,
    .run = run,
};
