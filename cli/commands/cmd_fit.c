/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket fit: fits a machine profile to measured runs. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "calib/fit/table_fit.h"
#include "calib/profiles/profiles.h"
#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/print_flush.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "core/base/json.h"

/* -- Progress ---------------------------------------------------------------------------------- */

typedef struct {
  const char *what; /* NULL: stderr is not a terminal */
  hk_ns began, told;
} progress;

static void begin_progress(progress *p, const char *what, bool quiet) {
  *p = (progress){.what = !quiet && isatty(STDERR_FILENO) ? what : NULL, .began = hk_now()};
}

static void show_progress(void *context, double share) {
  progress *p = context;
  const hk_ns at = hk_now();
  if (!p->what || at - p->told < HK_NS_PER_S / 5 || share <= 0) return;
  p->told = at;
  hk_screen_progress("hocket fit: %s, %.0f %%, about %.0f s left", p->what, 100 * share,
                     hk_s(at - p->began) * (1 - share) / share);
}

static void end_progress(const progress *p) {
  if (p->what) hk_screen_progress_end();
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_parameter(const hk_fit_parameter *p, cJSON *object, bool *ok) {
  hk_put_string(object, "key", p->info->key, ok);
  hk_put_string(object, "unit", p->info->unit, ok);
  hk_put_number(object, "start", p->start, ok);
  hk_put_number(object, "least", p->least, ok);
  hk_put_number(object, "most", p->most, ok);
  hk_put_number(object, "prior_factor", p->prior_factor, ok);
  hk_put_number(object, "value", p->value, ok);
  hk_put_number(object, "standard_error", p->standard_error, ok);
  hk_put_number(object, "low", p->low, ok);
  hk_put_number(object, "high", p->high, ok);
  hk_put_bool(object, "flat", p->flat, ok);
  hk_put_number(object, "kept_of_prior", p->kept, ok);
  hk_put_bool(object, "determined", p->determined, ok);
  hk_put_bool(object, "one_sided", p->one_sided, ok);
  hk_put_bool(object, "at_bound", p->at_bound, ok);
}

static void put_correlation(const hk_fit *fit, cJSON *root, bool *ok) {
  cJSON *rows = hk_put_array(root, "correlation", ok);
  for (size_t i = 0; i < fit->n; i++)
    hk_append_item(rows, cJSON_CreateDoubleArray(fit->correlation[i], (int)fit->n), ok);
}

static void put_fit(const hk_fit *fit, cJSON *root, bool *ok) {
  hk_put_string(root, "machine", fit->machine.name, ok);
  hk_put_number(root, "rows", (double)fit->rows, ok);
  hk_put_number(root, "rows_of_other_machines", (double)fit->rows_elsewhere, ok);
  hk_put_number(root, "residuals", (double)fit->residuals, ok);
  hk_put_number(root, "outliers", (double)fit->outliers, ok);
  hk_put_number(root, "scatter_pct", 100 * fit->scatter, ok);
  hk_put_number(root, "simulations", (double)fit->simulations, ok);
  hk_put_run_medians(fit->median_before, HK_RUN_TIMES_END, "median_abs_error_pct_before", root, ok);
  hk_put_run_medians(fit->median_after, HK_RUN_TIMES_END, "median_abs_error_pct", root, ok);
  cJSON *parameters = hk_put_array(root, "parameters", ok);
  for (size_t i = 0; i < fit->n; i++)
    put_parameter(&fit->parameters[i], hk_put_element(parameters, ok), ok);
  put_correlation(fit, root, ok);
  hk_put_item(root, "profile", hk_machine_to_json(&fit->machine), ok);
}

static void put_cross(const hk_cross_validation *cross, cJSON *root, bool *ok) {
  cJSON *object = hk_put_object(root, "cross_validation", ok);
  hk_put_number(object, "rows", (double)cross->rows, ok);
  hk_put_run_medians(cross->median_abs_error_pct, HK_RUN_TIMES_END, "median_abs_error_pct", object,
                     ok);
  cJSON *folds = hk_put_array(object, "folds", ok);
  for (size_t i = 0; i < cross->n; i++) {
    cJSON *fold = hk_put_element(folds, ok);
    hk_put_string(fold, "source", cross->folds[i].source, ok);
    hk_put_number(fold, "rows", (double)cross->folds[i].rows, ok);
    hk_put_run_medians(cross->folds[i].median_abs_error_pct, HK_RUN_TIMES_END,
                       "median_abs_error_pct", fold, ok);
  }
}

static hk_status print_json(const hk_args *args, const hk_fit *fit,
                            const hk_cross_validation *cross, const hk_run_flush_unknown *unknown,
                            hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.fit/1", &ok);
  put_fit(fit, root, &ok);
  hk_put_flush_unknown(unknown, root, &ok);
  if (args->cross_validate) put_cross(cross, root, &ok);
  if (args->explain) hk_explain_json(&fit->machine, NULL, root, &ok);
  return hk_emit_print(root, ok, err);
}

/* -- Text -------------------------------------------------------------------------------------- */

static const char *verdict(const hk_fit_parameter *p, char *text, size_t size) {
  if (!p->determined) return "not determined by the runs: start value";
  if (p->flat) {
    snprintf(text, size, "hardly determined: %.3g to %.3g fit as well", p->low, p->high);
    return text;
  }
  if (p->one_sided) return "determined on one side only";
  return p->at_bound ? "at the limit of its range" : "";
}

static hk_status print_parameters(const hk_fit *fit, hk_error *err) {
  static const hk_column columns[] = {{"parameter", HK_LEFT},       {"unit", HK_LEFT | HK_SPARE(1)},
                                      {"start", HK_RIGHT},          {"fitted", HK_RIGHT},
                                      {"standard error", HK_RIGHT}, {"note", HK_BELOW}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < fit->n; i++) {
    const hk_fit_parameter *p = &fit->parameters[i];
    char text[96];
    hk_table_row(&table, "%s\t%s\t%.4g\t%.4g", p->info->key, p->info->unit, p->start, p->value);
    if (p->determined)
      hk_table_cell(&table, "%.2g %%", 100 * p->standard_error / p->value);
    else
      hk_table_cell(&table, "-");
    hk_table_cell(&table, "%s", verdict(p, text, sizeof text));
  }
  return hk_table_print(&table, err);
}

/* Pairs with a correlation of at least 0.8; --json has the whole matrix. */
static void print_correlations(const hk_fit *fit) {
  static const double high = 0.8;
  for (size_t i = 0; i < fit->n; i++)
    for (size_t j = 0; j < i; j++)
      if (fabs(fit->correlation[i][j]) >= high)
        printf("correlated %+.2f: %s, %s\n", fit->correlation[i][j], fit->parameters[j].info->key,
               fit->parameters[i].info->key);
}

static void medians_cells(hk_table *table, const char *what, size_t rows, const double *medians) {
  hk_table_row(table, "%s\t%zu", what, rows);
  for (int f = 0; f < HK_RUN_TIMES_END; f++) {
    if (isnan(medians[f]))
      hk_table_cell(table, "-");
    else
      hk_table_cell(table, "%.1f %%", medians[f]);
  }
}

static hk_status print_errors(const hk_fit *fit, const hk_cross_validation *cross, hk_error *err) {
  static const hk_column columns[] = {{"median absolute error", HK_WRAP},
                                      {"rows", HK_RIGHT},
                                      {"fwd_ms", HK_RIGHT},
                                      {"bwd_ms", HK_RIGHT},
                                      {"step_ms", HK_RIGHT},
                                      {"iter_ms", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  medians_cells(&table, "start profile", fit->rows, fit->median_before);
  medians_cells(&table, "fitted profile", fit->rows, fit->median_after);
  for (size_t i = 0; i < cross->n; i++) {
    char what[200];
    snprintf(what, sizeof what, "without %.180s", cross->folds[i].source);
    medians_cells(&table, what, cross->folds[i].rows, cross->folds[i].median_abs_error_pct);
  }
  if (cross->n > 0)
    medians_cells(&table, "each source from the others", cross->rows, cross->median_abs_error_pct);
  return hk_table_print(&table, err);
}

static hk_status print_defaults(hk_error *err) {
  static const hk_column columns[] = {{"fitted by default", HK_LEFT}, {"reason", HK_WRAP}};
  size_t n = 0;
  const hk_fit_default *defaults = hk_fit_defaults(&n);
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < n; i++) {
    hk_table_row(&table, "%s\t%s", defaults[i].key, defaults[i].reason);
  }
  return hk_table_print(&table, err);
}

static hk_status print_text(const hk_args *args, const hk_fit *fit,
                            const hk_cross_validation *cross, const hk_run_flush_unknown *unknown,
                            hk_error *err) {
  printf("%s: %zu rows of %s, %zu times, scatter %.1f %%, %zu outliers, %lld simulations\n\n",
         fit->machine.name, fit->rows, args->operands[0], fit->residuals, 100 * fit->scatter,
         fit->outliers, (long long)fit->simulations);
  HK_TRY(print_parameters(fit, err));
  print_correlations(fit);
  putchar('\n');
  HK_TRY(print_errors(fit, cross, err));
  if (unknown->rows > 0) putchar('\n');
  hk_print_flush_unknown(unknown);
  if (!args->explain) return HK_OK;
  putchar('\n');
  HK_TRY(print_defaults(err));
  putchar('\n');
  return hk_explain_text(&fit->machine, NULL, err);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status save(const hk_args *args, const hk_machine *machine, hk_error *err) {
  cJSON *root = hk_machine_to_json(machine);
  if (!root) return hk_fail_memory(err, sizeof(cJSON), "the fitted profile");
  const hk_status status = hk_json_save(root, args->output, err);
  cJSON_Delete(root);
  HK_TRY(status);
  if (!args->quiet) fprintf(stderr, "hocket fit: wrote the profile to %s\n", args->output);
  return HK_OK;
}

/* Rows that the fit took as asynchronous because the table does not say. */
static hk_status find_flush_unknown(const hk_run_table *table, const hk_fit *fit,
                                    hk_run_flush_unknown *unknown, hk_error *err) {
  hk_run_comparison comparison;
  HK_TRY(hk_runs_compare(table, &fit->machine, 1, &comparison, err));
  *unknown = comparison.flush_unknown;
  hk_run_comparison_free(&comparison);
  return HK_OK;
}

static hk_status answer(const hk_args *args, const hk_run_table *table, const hk_fit *fit,
                        const hk_cross_validation *cross, hk_error *err) {
  hk_run_flush_unknown unknown;
  HK_TRY(find_flush_unknown(table, fit, &unknown, err));
  HK_TRY(args->json ? print_json(args, fit, cross, &unknown, err)
                    : print_text(args, fit, cross, &unknown, err));
  HK_TRY(hk_emit_flush(err));
  if (fit->rows_elsewhere > 0 && !args->quiet)
    fprintf(stderr,
            "hocket fit: note: fitted the %zu rows of %s; skipped %zu rows of other machines\n",
            fit->rows, fit->machine.name, fit->rows_elsewhere);
  return args->output ? save(args, &fit->machine, err) : HK_OK;
}

static hk_status fit_table(const hk_args *args, const hk_run_table *table, const hk_machine *start,
                           hk_error *err) {
  char date[16] = "";
  const time_t seconds = time(NULL);
  struct tm day;
  if (gmtime_r(&seconds, &day)) strftime(date, sizeof date, "%Y-%m-%d", &day);
  progress p;
  const hk_fit_options options = {.free_list = args->free_list,
                                  .date = date,
                                  .intervals = true,
                                  .progress = show_progress,
                                  .context = &p};
  hk_fit fit = {0};
  hk_cross_validation cross = {0};
  begin_progress(&p, "fitting", args->quiet);
  hk_status status = hk_fit_make(table, start, &options, &fit, err);
  end_progress(&p);
  if (status == HK_OK && args->cross_validate) {
    begin_progress(&p, "leaving each source out in turn", args->quiet);
    status = hk_fit_cross_validate(table, start, &options, &cross, err);
    end_progress(&p);
  }
  if (status == HK_OK) status = answer(args, table, &fit, &cross, err);
  hk_cross_validation_free(&cross);
  hk_fit_free(&fit);
  return status;
}

static hk_status run(const hk_args *args, hk_error *err) {
  if (!args->machine)
    return hk_fail(
        err, HK_INPUT,
        "--machine NAME|FILE is needed: the start profile, whose rows are fitted; 'hocket "
        "machine list' lists the profiles");
  hk_run_table table;
  hk_machine start = {0};
  HK_TRY(hk_run_table_load(args->operands[0], &table, err));
  hk_status status = hk_profiles_machine(args->machine, &start, err);
  if (status == HK_OK) status = hk_setup_change(args, &start, err);
  if (status == HK_OK) status = hk_emit_check_output(args->output, err);
  if (status == HK_OK) status = fit_table(args, &table, &start, err);
  hk_machine_free(&start);
  hk_run_table_free(&table);
  return status;
}

const hk_command hk_command_fit = {
    .name = "fit",
    .summary = "Fits a machine profile to a table of measured runs",
    .usage = "FILE.csv --machine START [-o FILE] [OPTIONS]",
    .details =
        "Varies quantities of the start profile until simulated runs match the rows that\n"
        "name its machine: robust non-linear least squares in logarithms, with a penalty\n"
        "for leaving the start value that depends on the quantity's origin. Prints fitted\n"
        "values, standard errors, which quantities the runs do not determine (they keep\n"
        "their start value), and the errors before and after. Rows without flush_async\n"
        "are taken as asynchronous, which is said, with the errors under either flush.",
    .example = "hocket fit published-runs.csv --machine jlse-h100-4x80gb -o fitted.json",
    .output = "write the fitted profile to a file, for --machine",
    .options = HK_OPTIONS_MACHINE | HK_OPTION(FREE) | HK_OPTION(CROSS_VALIDATE) |
               HK_OPTION(OUTPUT) | HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(EXPLAIN) |
               HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 1,
    .run = run,
};
