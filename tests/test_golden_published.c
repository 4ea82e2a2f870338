/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Six published runs of 20B on four H100s, predicted by the shipped profile, which was fitted on
 * other models' runs of that machine: step and backward within 20 % and in the right order. */
#include "tests/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/forecast.h"

#define ROWS 6

typedef struct {
  double ratio;
  int stride, flush_async;
  double backward_ms, step_ms;               /* measured */
  double predicted_backward, predicted_step; /* ms */
} row;

static void read_rows(row rows[ROWS]) {
  FILE *file = fopen(HK_TEST_DATA "/published-20b-twinflow.csv", "r");
  assert_non_null(file);
  char line[256];
  int n = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    if (line[0] == '#') continue;
    assert_in_range(n, 0, ROWS - 1);
    row *r = &rows[n++];
    assert_int_equal(sscanf(line, "%lf,%d,%d,%lf,%lf", &r->ratio, &r->stride, &r->flush_async,
                            &r->backward_ms, &r->step_ms),
                     5);
  }
  fclose(file);
  assert_int_equal(n, ROWS);
}

static void predict(row *r, const hk_model *model, const hk_machine *machine) {
  hk_error err = {0};
  const hk_job job = {.gpus = 4,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 2048,
                      .checkpoint_activations = true};
  const hk_flush flush = r->flush_async ? HK_FLUSH_ASYNC : HK_FLUSH_SYNC;
  const hk_plan_settings settings = {.cpu_threads = 23, .flush = &flush};
  hk_candidate candidate = {.runtime = HK_RUNTIME_DEEPSPEED, .options = HK_POLICY_OPTIONS_NONE};
  candidate.policy = r->stride > 0  ? &hk_policy_interleave
                     : r->ratio < 1 ? &hk_policy_twinflow
                                    : &hk_policy_zero_offload;
  candidate.options.stride = r->stride;
  if (candidate.policy->takes & HK_TAKES_RATIO) candidate.options.ratio = r->ratio;
  hk_plan plan = {0};
  hk_forecast f;
  const hk_sim_options options = {.check = true};
  must(hk_candidate_plan(&candidate, model, machine, &job, &settings, &plan, &err), &err);
  must(hk_forecast_make(&plan, machine, &options, &f, &err), &err);
  r->predicted_backward = hk_ms(f.backward_ns);
  r->predicted_step = hk_ms(f.update_ns);
  hk_forecast_free(&f);
}

/* Pairs whose measured values differ by more than the runs' own scatter (5 %) must be predicted in
 * the same order; equal predictions (to 0.1 %) of different values do not count as ordered. */
static void check_order(const row *rows, const char *what, double (*measured)(const row *),
                        double (*predicted)(const row *)) {
  for (int i = 0; i < ROWS; i++) {
    for (int j = 0; j < ROWS; j++) {
      if (measured(&rows[i]) < 0.95 * measured(&rows[j]) &&
          predicted(&rows[i]) >= predicted(&rows[j])) {
        fail_msg("%s: rows %d and %d are predicted in the wrong order (%.1f and %.1f ms)", what, i,
                 j, predicted(&rows[i]), predicted(&rows[j]));
      }
    }
  }
}

static double step(const row *r) {
  return r->step_ms;
}
static double predicted_step(const row *r) {
  return r->predicted_step;
}
static double backward(const row *r) {
  return r->backward_ms;
}
static double predicted_backward(const row *r) {
  return r->predicted_backward;
}

static void test_twinflow_rows(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = {0};
  hk_machine machine = {0};
  must(hk_model_load("dos-20b", &model, &err), &err);
  must(hk_machine_load("jlse-h100-4x80gb", &machine, &err), &err);
  row rows[ROWS] = {{0}};
  read_rows(rows);
  for (int i = 0; i < ROWS; i++) {
    row *r = &rows[i];
    predict(r, &model, &machine);
    const double step_error = r->predicted_step / r->step_ms - 1;
    const double backward_error = r->predicted_backward / r->backward_ms - 1;
    print_message(
        "ratio %.1f stride %d flush %s: step %7.1f of %7.1f ms (%+5.1f %%), backward "
        "%7.1f of %7.1f ms (%+5.1f %%)\n",
        r->ratio, r->stride, r->flush_async ? "async" : "sync ", r->predicted_step, r->step_ms,
        100 * step_error, r->predicted_backward, r->backward_ms, 100 * backward_error);
    assert_true(fabs(step_error) <= 0.20);
    assert_true(fabs(backward_error) <= 0.20);
  }
  check_order(rows, "step", step, predicted_step);
  check_order(rows, "backward", backward, predicted_backward);
  hk_model_free(&model);
  hk_machine_free(&machine);
}

/* "No fitting to those rows": the profile says what each fitted value came from. */
static void test_profile_was_not_fitted_on_them(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = {0};
  must(hk_machine_load("jlse-h100-4x80gb", &machine, &err), &err);
  size_t n = 0, fitted = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity *q = hk_machine_quantity_const(&machine, &info[i]);
    if (q->origin != HK_ORIGIN_FITTED) continue;
    fitted++;
    assert_non_null(strstr(q->source, "7B and 13B"));
    assert_non_null(strstr(q->source, "no 20B run was used"));
  }
  assert_true(fitted > 0);
  hk_machine_free(&machine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_twinflow_rows),
      cmocka_unit_test(test_profile_was_not_fitted_on_them),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
