/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by tests of the published runs: checks of a shipped profile's errors against limits for
 * each machine and quantity. Each limit is a few per cent above the error that is reached, so that
 * a loss of accuracy fails the test. Lower the limit when predictions improve. */
#ifndef HK_TESTS_FIXTURE_RUNS_H
#define HK_TESTS_FIXTURE_RUNS_H

#include <math.h>

#include "calib/validate/runs.h"
#include "tests/fixture.h"

/* Limits on the errors of a machine's rows, in per cent. */
typedef struct {
  double median, worst; /* of absolute errors; worst 0: nothing is checked */
  double low;           /* largest error of a prediction that is too low; 0: not checked */
} error_limit;

static inline void check_figure(const hk_run_comparison *c, const char *machine,
                                hk_run_figure figure, error_limit limit) {
  const char *column = hk_run_figure_column(figure);
  const double median = c->median_abs_error_pct[figure];
  const hk_run_prediction *worst = &c->rows[0], *lowest = &c->rows[0];
  for (size_t i = 0; i < c->n; i++) {
    const double error = c->rows[i].figures[figure].error_pct;
    if (!(fabs(error) <= fabs(worst->figures[figure].error_pct))) worst = &c->rows[i];
    if (!(error >= lowest->figures[figure].error_pct)) lowest = &c->rows[i];
  }
  const double most = fabs(worst->figures[figure].error_pct);
  const double low = -lowest->figures[figure].error_pct;
  print_message("%s, %-19s median %.2f %%, worst %.2f %% (line %d), too low by %.2f %% (line %d)\n",
                machine, column, median, most, worst->run->line, low, lowest->run->line);
  if (!(median <= limit.median))
    fail_msg("%s, %s: off by %.2f %% in the median, more than %g %%", machine, column, median,
             limit.median);
  if (!(most <= limit.worst))
    fail_msg("%s, %s: off by %.2f %% on line %d, more than %g %%", machine, column, most,
             worst->run->line, limit.worst);
  if (limit.low > 0 && !(low <= limit.low))
    fail_msg("%s, %s: too low by %.2f %% on line %d, more than %g %%", machine, column, low,
             lowest->run->line, limit.low);
}

/* Checks the errors that 'hocket validate runs published-runs.csv --machine NAME' prints. `rows`:
 * measured rows of that machine. */
static inline void check_shipped_profile(const char *name, size_t rows,
                                         const error_limit limits[HK_RUN_FIGURES],
                                         double least_tau) {
  hk_error err = {0};
  hk_run_table table = {0};
  hk_machine machine;
  hk_run_comparison c;
  must(hk_run_table_load(HK_TEST_DATA "/published-runs.csv", &table, &err), &err);
  must(hk_machine_load(name, &machine, &err), &err);
  must(hk_runs_compare(&table, &machine, 1, &c, &err), &err);
  assert_int_equal(c.n, rows);
  for (int f = 0; f < HK_RUN_FIGURES; f++) {
    if (limits[f].worst > 0) check_figure(&c, name, (hk_run_figure)f, limits[f]);
  }
  if (!(c.order.tau >= least_tau))
    fail_msg("%s: Kendall's tau of step_ms is %.3f, less than %g", name, c.order.tau, least_tau);
  hk_run_comparison_free(&c);
  hk_machine_free(&machine);
  hk_run_table_free(&table);
}

#endif
