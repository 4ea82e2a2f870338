/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Predictions of published runs. A profile is fitted to the 7B and 13B runs on four H100s and
 * predicts the six 20B runs in the right order, within the errors of record. The shipped
 * profiles predict all rows within the errors of record. */
#include "tests/fixture_runs.h"

#include <stdio.h>
#include <stdlib.h>

#include "calib/fit/table_fit.h"

#define ROWS    6
#define UNSEEN  "act-output-20B-scale-twinflow"
#define MACHINE "jlse-h100-4x80gb"

typedef struct {
  const hk_run *run;
  double predicted[HK_RUN_FIGURES];
} row;

static hk_machine load(const char *name) {
  hk_machine machine;
  hk_error err = {0};
  must(hk_machine_load(name, &machine, &err), &err);
  return machine;
}

static bool is_unseen(const hk_run *run) {
  return strcmp(run->source, UNSEEN) == 0;
}

/* The table without the unseen source. It shares its runs with `table`: free only `runs`. */
static hk_run_table without_unseen(const hk_run_table *table) {
  hk_run_table rest = *table;
  rest.n = 0;
  rest.runs = malloc(table->n * sizeof *rest.runs);
  assert_non_null(rest.runs);
  for (size_t i = 0; i < table->n; i++)
    if (!is_unseen(&table->runs[i])) rest.runs[rest.n++] = table->runs[i];
  assert_int_equal(table->n - rest.n, ROWS);
  return rest;
}

/* Fits the shipped profile to the other runs. A fit starts from each quantity's value before it was
 * fitted (calib/fit/table_fit.h), so nothing of the six runs is in the result. */
static hk_fit fit_without_unseen(const hk_run_table *table) {
  hk_error err = {0};
  hk_fit fit;
  const hk_fit_options options = {.date = "2026-11-21"};
  hk_machine start = load(MACHINE);
  hk_run_table rest = without_unseen(table);
  must(hk_fit_make(&rest, &start, &options, &fit, &err), &err);
  free(rest.runs);
  hk_machine_free(&start);
  assert_int_equal(fit.rows, ROWS);
  char *profile = cJSON_Print(fit.machine.document);
  assert_non_null(profile);
  assert_non_null(strstr(profile, "\"fitted_on\""));
  assert_null(strstr(profile, UNSEEN));
  free(profile);
  return fit;
}

static void predict(row *r, const hk_machine *machine) {
  hk_error err = {0};
  hk_run_case made;
  must(hk_run_case_make(r->run, machine, &made, &err), &err);
  must(hk_run_case_predict(&made, machine, r->predicted, &err), &err);
  hk_run_case_free(&made);
}

static double error_of(const row *r, hk_run_figure figure) {
  return r->predicted[figure] / hk_run_measured(r->run, figure) - 1;
}

/* Pairs whose measured values differ by more than the runs' own scatter (5 %) must be predicted in
 * the same order, and not equal. */
static void check_order(const row *rows, int n, hk_run_figure figure) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < n; j++) {
      if (hk_run_measured(rows[i].run, figure) < 0.95 * hk_run_measured(rows[j].run, figure) &&
          rows[i].predicted[figure] >= rows[j].predicted[figure])
        fail_msg("%s: lines %d and %d are predicted in the wrong order (%.1f and %.1f)",
                 hk_run_figure_column(figure), rows[i].run->line, rows[j].run->line,
                 rows[i].predicted[figure], rows[j].predicted[figure]);
    }
  }
}

/* Limits in per cent, for the rows in the table's order: half a point above what is reached. */
static const struct {
  double step, backward;
} limits[ROWS] = {{1.6, 1.4}, {1.4, 3.1}, {1.7, 0.6}, {0.7, 4.0}, {0.9, 6.1}, {3.0, 5.3}};

static void unseen_runs_are_predicted(void **state) {
  (void)state;
  hk_error err = {0};
  hk_run_table table;
  row rows[ROWS] = {{0}};
  int n = 0;
  must(hk_run_table_load(HK_TEST_DATA "/published-runs.csv", &table, &err), &err);
  hk_fit fit = fit_without_unseen(&table);
  for (size_t i = 0; i < table.n; i++) {
    if (!is_unseen(&table.runs[i])) continue;
    assert_in_range(n, 0, ROWS - 1);
    row *r = &rows[n++];
    r->run = &table.runs[i];
    predict(r, &fit.machine);
    print_message(
        "ratio %.1f stride %2g flush %s: step %7.1f of %7.1f ms (%+5.1f %%), backward %7.1f of "
        "%7.1f ms (%+5.1f %%)\n",
        r->run->offload_ratio, r->run->stride > 0 ? r->run->stride : 0,
        r->run->flush_async > 0 ? "async" : "sync ", r->predicted[HK_RUN_step], r->run->step_ms,
        100 * error_of(r, HK_RUN_step), r->predicted[HK_RUN_bwd], r->run->bwd_ms,
        100 * error_of(r, HK_RUN_bwd));
    assert_true(100 * fabs(error_of(r, HK_RUN_step)) <= limits[n - 1].step);
    assert_true(100 * fabs(error_of(r, HK_RUN_bwd)) <= limits[n - 1].backward);
  }
  assert_int_equal(n, ROWS);
  check_order(rows, n, HK_RUN_step);
  check_order(rows, n, HK_RUN_bwd);
  hk_fit_free(&fit);
  hk_run_table_free(&table);
}

/* -- The shipped profiles ---------------------------------------------------------------------- */

/* Each fitted quantity names its source and its error, and no fit used another fit's result as
 * data. */
static size_t count_fitted(const cJSON *quantities) {
  size_t fitted = 0;
  const cJSON *quantity = NULL;
  cJSON_ArrayForEach(quantity, quantities) {
    const cJSON *before = cJSON_GetObjectItemCaseSensitive(quantity, "before_fit");
    const char *origin = cJSON_GetStringValue(cJSON_GetObjectItem(quantity, "origin"));
    if (before != NULL)
      assert_string_not_equal(cJSON_GetStringValue(cJSON_GetObjectItem(before, "origin")),
                              "fitted");
    if (strcmp(origin, "fitted") != 0) continue;
    fitted++;
    assert_non_null(before);
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(quantity, "standard_error")) > 0);
    assert_non_null(strstr(cJSON_GetStringValue(cJSON_GetObjectItem(quantity, "source")),
                           "rows of published-runs.csv"));
  }
  return fitted;
}

static void shipped_profiles_are_fits_to_all_rows(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int rows, sources;
  } shipped[] = {{"polaris-a100-4x40gb", 63, 6}, {MACHINE, 12, 3}};
  for (size_t i = 0; i < 2; i++) {
    hk_machine machine = load(shipped[i].name);
    const cJSON *fitted_on = cJSON_GetObjectItem(machine.document, "fitted_on");
    assert_int_equal(cJSON_GetNumberValue(cJSON_GetObjectItem(fitted_on, "rows")), shipped[i].rows);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(fitted_on, "sources")),
                     shipped[i].sources);
    assert_in_range(count_fitted(cJSON_GetObjectItem(machine.document, "quantities")), 6,
                    HK_FIT_MOST_FREE);
    hk_machine_free(&machine);
  }
}

/* {median, worst, -} in per cent. Two rows alone set the large limits of the worst: 13B interleaved
 * on A100s (line 4), and forward of 20B on four H100s (line 21). */
static void shipped_profiles_predict_their_rows(void **state) {
  (void)state;
  static const error_limit polaris[HK_RUN_FIGURES] = {
      [HK_RUN_fwd] = {3.1, 14.5, 0},
      [HK_RUN_bwd] = {1.8, 46, 0},
      [HK_RUN_step] = {2.3, 19.3, 0},
      [HK_RUN_iter] = {1.7, 20.8, 0},
  };
  static const error_limit jlse[HK_RUN_FIGURES] = {
      [HK_RUN_fwd] = {2.6, 31, 0},
      [HK_RUN_bwd] = {2.0, 5.9, 0},
      [HK_RUN_step] = {1.1, 2.4, 0},
      [HK_RUN_iter] = {1.1, 5.0, 0},
  };
  check_shipped_profile("polaris-a100-4x40gb", 63, polaris, 0.89);
  check_shipped_profile(MACHINE, 12, jlse, 0.999);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unseen_runs_are_predicted),
      cmocka_unit_test(shipped_profiles_are_fits_to_all_rows),
      cmocka_unit_test(shipped_profiles_predict_their_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
