/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rows of a run table become the plans that were run; errors and tau of comparisons against values
 * by hand. */
#include "calib/validate/runs.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fixture.h"

static hk_run_table published(void) {
  hk_run_table table;
  hk_error err = {0};
  must(hk_run_table_load(HK_TEST_DATA "/published-runs.csv", &table, &err), &err);
  return table;
}

static hk_machine machine(const char *name) {
  hk_machine m;
  hk_error err = {0};
  must(hk_machine_load(name, &m, &err), &err);
  return m;
}

/* -- Plans ------------------------------------------------------------------------------------- */

/* Number of subgroups in "206045184x1 126885888x1 171450368x31". test_unit_subgroups.c checks the
 * sizes. */
static size_t count_of(const char *sizes) {
  size_t n = 0;
  for (char *end = NULL; *sizes; sizes = end + (*end == ' ')) {
    sizes = strchr(sizes, 'x');
    assert_non_null(sizes);
    n += strtoul(sizes + 1, &end, 10);
  }
  return n;
}

static void published_rows_become_their_plans(void **state) {
  (void)state;
  hk_error err = {0};
  hk_run_table t = published();
  hk_machine polaris = machine("polaris-a100-4x40gb"), jlse = machine("jlse-h100-4x80gb");
  assert_int_equal(t.n, 75);
  int with_sizes = 0;
  for (size_t i = 0; i < t.n; i++) {
    const hk_run *run = &t.runs[i];
    hk_plan plan;
    must(hk_run_plan(run, run->machine[0] == 'p' ? &polaris : &jlse, &plan, &err), &err);
    assert_true((double)hk_model_rank_parameters(&plan.model, plan.job.tp, 1) ==
                run->params_per_tp_rank);
    assert_true(hk_job_dp(&plan.job) == (int)run->dp);
    if (run->subgroups_rank0[0]) assert_int_equal(plan.n_subgroups, count_of(run->subgroups_rank0));
    with_sizes += run->subgroups_rank0[0] != '\0';
    hk_plan_free(&plan);
  }
  assert_true(with_sizes > 50);
  hk_machine_free(&polaris);
  hk_machine_free(&jlse);
  hk_run_table_free(&t);
}

static void settings_of_a_row(void **state) {
  (void)state;
  hk_error err = {0};
  hk_run_table t = published();
  hk_machine m = machine("polaris-a100-4x40gb");
  hk_run *run = &t.runs[0];
  hk_plan plan;

  run->cores_per_rank = NAN;
  run->flush_async = NAN;
  must(hk_run_plan(run, &m, &plan, &err), &err);
  assert_false(plan.cores_bound);
  assert_int_equal(plan.cpu_threads, 32);
  assert_int_equal(plan.flush, HK_FLUSH_ASYNC);
  assert_int_equal(plan.runtime, HK_RUNTIME_DEEPSPEED);
  assert_string_equal(plan.policy, "zero-offload");
  hk_plan_free(&plan);

  run->cores_per_rank = 14;
  run->flush_async = 0;
  run->offload_ratio = 0.8;
  must(hk_run_plan(run, &m, &plan, &err), &err);
  assert_true(plan.cores_bound);
  assert_int_equal(plan.cpu_threads, 7);
  assert_int_equal(plan.flush, HK_FLUSH_SYNC);
  assert_string_equal(plan.policy, "twinflow");
  hk_plan_free(&plan);

  run->interleave = 1;
  run->stride = 3;
  must(hk_run_plan(run, &m, &plan, &err), &err);
  assert_string_equal(plan.policy, "interleave");
  assert_int_equal(plan.stride, 3);
  assert_true(plan.ratio == 0.8);
  hk_plan_free(&plan);
  hk_machine_free(&m);
  hk_run_table_free(&t);
}

static void refuse(hk_run *run, const hk_machine *m, double *field, double value,
                   const char *expected) {
  hk_plan plan;
  hk_error err = {0};
  const double before = *field;
  *field = value;
  assert_int_equal(hk_run_plan(run, m, &plan, &err), HK_INPUT);
  if (!strstr(err.message, expected)) fail_msg("'%s' does not say '%s'", err.message, expected);
  assert_memory_equal(err.message, "line 2: ", 8);
  *field = before;
}

static void rows_that_make_no_plan(void **state) {
  (void)state;
  hk_run_table t = published();
  hk_machine m = machine("polaris-a100-4x40gb");
  hk_run *run = &t.runs[0];
  refuse(run, &m, &run->dp, 0, "column 'dp': expected a whole number from 1");
  refuse(run, &m, &run->dp, 1.5, "column 'dp': expected a whole number from 1");
  refuse(run, &m, &run->dp, NAN, "column 'dp': no value, but it is needed");
  refuse(run, &m, &run->nodes, 3, "do not divide into 3 equal nodes");
  refuse(run, &m, &run->layers, 0, "num_hidden_layers");
  refuse(run, &m, &run->heads, 7, "num_key_value_heads");
  refuse(run, &m, &run->subgroup_numel, 0.5, "column 'subgroup_numel'");
  refuse(run, &m, &run->offload_ratio, 2, "column 'offload_ratio': expected a number from 0 to 1");
  run->interleave = 1;
  refuse(run, &m, &run->stride, NAN, "column 'stride': no value, but it is needed");
  hk_machine_free(&m);
  hk_run_table_free(&t);
}

/* -- Comparisons ------------------------------------------------------------------------------- */

/* Sets the measured times to the predicted ones x factor(row). */
static void set_measured(hk_run_table *t, const hk_machine *m, double (*factor)(size_t row)) {
  hk_error err = {0};
  for (size_t i = 0; i < t->n; i++) {
    hk_run_case made;
    double figures[HK_RUN_FIGURES];
    must(hk_run_case_make(&t->runs[i], m, &made, &err), &err);
    must(hk_run_case_predict(&made, m, figures, &err), &err);
    t->runs[i].fwd_ms = figures[HK_RUN_fwd] * factor(i);
    t->runs[i].bwd_ms = i == 0 ? NAN : figures[HK_RUN_bwd] * factor(i);
    t->runs[i].step_ms = figures[HK_RUN_step] * factor(i);
    t->runs[i].step_ms_min = t->runs[i].step_ms_max = NAN;
    t->runs[i].iter_ms = figures[HK_RUN_iter];
    hk_run_case_free(&made);
  }
}

/* Keeps the rows of one source, which differ only in policy. */
static void keep_source(hk_run_table *t, const char *source) {
  size_t kept = 0;
  for (size_t i = 0; i < t->n; i++) {
    if (strcmp(t->runs[i].source, source) == 0) {
      const hk_run run = t->runs[i];
      t->runs[i] = t->runs[kept];
      t->runs[kept++] = run;
    }
  }
  for (size_t i = kept; i < t->n; i++) hk_run_free(&t->runs[i]);
  t->n = kept;
}

/* Errors of predictions are +4 % in odd rows and -4 % in even ones. */
static double off_by_4_percent(size_t row) {
  return row % 2 ? 1 / 1.04 : 1 / 0.96;
}
/* Reverses the order of most pairs of rows. */
static double reversed(size_t row) {
  static const double factors[] = {0.05, 0.05, 1, 25, 20, 15, 5, 2};
  return factors[row];
}

static void errors_and_order_of_a_table(void **state) {
  (void)state;
  hk_error err = {0};
  hk_run_table t = published();
  hk_machine m = machine("polaris-a100-4x40gb");
  keep_source(&t, "act-output-7B-scale-gaps-a100");
  assert_int_equal(t.n, 8);
  hk_run_comparison c;

  set_measured(&t, &m, off_by_4_percent);
  must(hk_runs_compare(&t, &m, 1, &c, &err), &err);
  assert_int_equal(c.n_groups, 1); /* the blocking flush of one row is a setting, too */
  assert_true(fabs(c.median_abs_error_pct[HK_RUN_fwd] - 4) < 1e-9);
  assert_true(fabs(c.median_abs_error_pct[HK_RUN_bwd] - 4) < 1e-9);
  assert_true(c.median_abs_error_pct[HK_RUN_iter] < 1e-9);
  assert_true(isnan(c.rows[0].figures[HK_RUN_bwd].error_pct));
  assert_true(fabs(c.rows[1].figures[HK_RUN_step].error_pct - 4) < 1e-9);
  assert_true(fabs(c.rows[2].figures[HK_RUN_step].error_pct + 4) < 1e-9);
  hk_run_comparison_free(&c);

  set_measured(&t, &m, reversed);
  must(hk_runs_compare(&t, &m, 1, &c, &err), &err);
  assert_int_equal(c.order.pairs, 8 * 7 / 2);
  assert_true(c.order.tau < 0);
  assert_true(c.groups[0].tau == c.order.tau);
  hk_run_comparison_free(&c);
  hk_machine_free(&m);
  hk_run_table_free(&t);
}

/* Three runs with predicted times A = B > C. A and B differ in the flush, which does not change the
 * step. */
static const struct {
  double measured[3];
  double least, most; /* range of A's iterations; 0: not in the table */
  double tau;
} orders[] = {
    /* Two of three pairs agree, the third is tied in prediction: 2 / sqrt(2 x 3). */
    {{3000, 3100, 2000}, 0, 0, 0.816496580927726},
    /* One pair agrees, one does not. */
    {{3000, 1000, 2000}, 0, 0, 0},
    /* A's range includes B: the pair is tied in prediction and measurement and does not count. */
    {{3000, 3100, 2000}, 2900, 3150, 1},
    /* A's range includes C but not B: one pair agrees, one is tied in prediction, one in
     * measurement: 1 / sqrt(2 x 2). */
    {{2500, 3100, 2000}, 1900, 3000, 0.5},
};

static void tau_b_with_ties(void **state) {
  (void)state;
  hk_error err = {0};
  hk_run_table t = published();
  hk_machine m = machine("polaris-a100-4x40gb");
  keep_source(&t, "act-output-7B-scale-gaps-a100");
  for (size_t i = 3; i < t.n; i++) hk_run_free(&t.runs[i]);
  t.n = 3; /* the third is interleaved, and predicted to be faster */
  assert_true(t.runs[0].flush_async != t.runs[1].flush_async);
  for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
    hk_run_comparison c;
    for (int i = 0; i < 3; i++) {
      t.runs[i].step_ms = orders[k].measured[i];
      t.runs[i].step_ms_min = t.runs[i].step_ms_max = NAN;
    }
    t.runs[0].step_ms_min = orders[k].least;
    t.runs[0].step_ms_max = orders[k].most;
    must(hk_runs_compare(&t, &m, 1, &c, &err), &err);
    assert_int_equal(c.n_groups, 1);
    assert_int_equal(c.order.pairs, 3);
    assert_true(fabs(c.order.tau - orders[k].tau) < 1e-12);
    hk_run_comparison_free(&c);
  }

  t.runs[0].seq = 1024; /* not a policy setting: the row is in another group */
  hk_run_comparison c;
  must(hk_runs_compare(&t, &m, 1, &c, &err), &err);
  assert_int_equal(c.n_groups, 2);
  assert_int_equal(c.order.pairs, 1);
  assert_true(c.order.tau == 1 && isnan(c.groups[0].tau));
  hk_run_comparison_free(&c);
  hk_machine_free(&m);
  hk_run_table_free(&t);
}

static void machines_are_matched_by_name(void **state) {
  (void)state;
  hk_error err = {0};
  hk_run_table t = published();
  hk_machine m[2] = {machine("polaris-a100-4x40gb"), machine("jlse-h100-4x80gb")};
  hk_run_comparison c;
  must(hk_runs_compare(&t, m, 2, &c, &err), &err);
  assert_int_equal(c.n, 75);
  hk_run_comparison_free(&c);
  must(hk_runs_compare(&t, &m[1], 1, &c, &err), &err);
  assert_int_equal(c.n, 12);
  assert_int_equal(c.left_out, 63);
  hk_run_comparison_free(&c);
  hk_machine other = machine("h200-16c");
  assert_int_equal(hk_runs_compare(&t, &other, 1, &c, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "no row was run on h200-16c"));
  hk_machine_free(&other);
  hk_machine_free(&m[0]);
  hk_machine_free(&m[1]);
  hk_run_table_free(&t);
}

static void threads_do_not_change_the_result(void **state) {
  (void)state;
  hk_error err = {0};
  hk_run_table t = published();
  hk_machine m = machine("polaris-a100-4x40gb");
  hk_run_comparison one, many;
  omp_set_num_threads(1);
  must(hk_runs_compare(&t, &m, 1, &one, &err), &err);
  omp_set_num_threads(4);
  must(hk_runs_compare(&t, &m, 1, &many, &err), &err);
  for (size_t i = 0; i < one.n; i++) {
    assert_memory_equal(one.rows[i].figures, many.rows[i].figures, sizeof one.rows[i].figures);
    assert_string_equal(one.rows[i].warnings, many.rows[i].warnings);
  }
  hk_run_comparison_free(&one);
  hk_run_comparison_free(&many);
  hk_machine_free(&m);
  hk_run_table_free(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_rows_become_their_plans),
      cmocka_unit_test(settings_of_a_row),
      cmocka_unit_test(rows_that_make_no_plan),
      cmocka_unit_test(errors_and_order_of_a_table),
      cmocka_unit_test(tau_b_with_ties),
      cmocka_unit_test(machines_are_matched_by_name),
      cmocka_unit_test(threads_do_not_change_the_result),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
