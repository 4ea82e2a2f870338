/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Errors of quantities propagated through the simulator: draws, varied machines, intervals, ties.
 */
#include "sim/uncertainty.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "sim/rank.h"
#include "tests/fixture_graph.h"

static const hk_quantity_info *info_of(const char *key) {
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++)
    if (strcmp(info[i].key, key) == 0) return &info[i];
  fail_msg("no quantity %s", key);
  return NULL;
}

/* -- Draws ------------------------------------------------------------------------------------- */

/* Every seed gives the same 24 values, symmetric about 0, in another order. */
static void draws_are_a_latin_hypercube(void **state) {
  (void)state;
  double a[HK_DRAWS], b[HK_DRAWS], again[HK_DRAWS];
  hk_latin_hypercube(1, a);
  hk_latin_hypercube(2, b);
  hk_latin_hypercube(1, again);
  assert_memory_equal(a, again, sizeof a);
  double sum = 0, squares = 0;
  int moved = 0;
  for (int i = 0; i < HK_DRAWS; i++) {
    int same = 0;
    for (int j = 0; j < HK_DRAWS; j++) same += a[i] == b[j];
    assert_int_equal(same, 1);
    moved += a[i] != b[i];
    sum += a[i];
    squares += a[i] * a[i];
  }
  assert_true(moved > HK_DRAWS / 2);
  assert_true(fabs(sum) < 1e-9);
  assert_true(fabs(squares / HK_DRAWS - 1) < 0.06); /* the tails are cut off */
}

/* The correlation of two independent orders of 24 draws has a standard deviation of about
 * 1 / sqrt(24) = 0.2. */
static void seeds_give_independent_orders(void **state) {
  (void)state;
  double squares = 0;
  for (uint64_t seed = 0; seed < 500; seed++) {
    double a[HK_DRAWS], b[HK_DRAWS], product = 0;
    hk_latin_hypercube(seed, a);
    hk_latin_hypercube(seed + 1, b);
    for (int i = 0; i < HK_DRAWS; i++) product += a[i] * b[i] / HK_DRAWS;
    squares += product * product;
  }
  assert_true(fabs(sqrt(squares / 500) - 0.2) < 0.03);
}

/* -- Quantities -------------------------------------------------------------------------------- */

static void expect_error(const char *key, hk_quantity quantity, hk_error_kind kind, double error) {
  double got = -1;
  assert_int_equal(hk_error_of(info_of(key), &quantity, &got), kind);
  assert_true(got == error);
}

static void errors_of_quantities(void **state) {
  (void)state;
  const hk_quantity fitted = {.value = 5e9, .origin = HK_ORIGIN_FITTED, .error = 0.02};
  const hk_quantity measured = {.value = 5e9, .origin = HK_ORIGIN_MEASURED};
  const hk_quantity sheet = {.value = 5e9, .origin = HK_ORIGIN_DATA_SHEET};
  const hk_quantity guess = {.value = 0.5, .origin = HK_ORIGIN_DEFAULT};
  const hk_quantity one = {.value = 1, .origin = HK_ORIGIN_DEFAULT};
  const hk_quantity none = {.value = 0, .origin = HK_ORIGIN_DEFAULT};
  const hk_quantity set = {.value = 5e9, .origin = HK_ORIGIN_SET};
  const hk_quantity derived = {.value = 5e9, .origin = HK_ORIGIN_DERIVED};
  expect_error("dram.bytes_per_s", fitted, HK_ERROR_STATED, 0.02);
  expect_error("dram.bytes_per_s", measured, HK_ERROR_UNKNOWN, 0);
  expect_error("dram.bytes_per_s", sheet, HK_ERROR_SCATTER, 0.3);
  expect_error("dram.bytes_per_s", set, HK_ERROR_EXACT, 0);
  expect_error("dram.bytes_per_s", derived, HK_ERROR_SCATTER, 0.4);
  expect_error("gpu.memory_bytes", fitted, HK_ERROR_EXACT, 0);
  expect_error("node.gpus", measured, HK_ERROR_EXACT, 0);
  expect_error("gpu.matmul_efficiency", guess, HK_ERROR_SCATTER, 0.3);
  expect_error("gpu.beside_h2d", one, HK_ERROR_EXACT, 0); /* a factor of 1 is no effect */
  expect_error("pcie.h2d_loaded_bytes_per_s", none, HK_ERROR_EXACT, 0);
  /* The error of a data sheet's matrix rate is part of the efficiencies'. */
  expect_error("gpu.matmul_flops_per_s", sheet, HK_ERROR_EXACT, 0);
  expect_error("gpu.matmul_flops_per_s", measured, HK_ERROR_UNKNOWN, 0);
  expect_error("gpu.launch_ns", (hk_quantity){.value = 5e3, .origin = HK_ORIGIN_DEFAULT},
               HK_ERROR_SCATTER, 1.1);
}

/* Quantities of one link from a data sheet have one common error, stated or not. Measured ones have
 * independent errors. */
static void seeds_group_guesses(void **state) {
  (void)state;
  const hk_quantity sheet = {.value = 5e9, .origin = HK_ORIGIN_DATA_SHEET};
  const hk_quantity stated = {.value = 5e9, .origin = HK_ORIGIN_DATA_SHEET, .error = 0.1};
  const hk_quantity_info *h2d = info_of("pcie.h2d_bytes_per_s");
  const hk_quantity_info *d2h = info_of("pcie.d2h_bytes_per_s");
  const hk_quantity_info *dram = info_of("dram.bytes_per_s");
  assert_true(hk_error_seed(h2d, &sheet) == hk_error_seed(d2h, &sheet));
  assert_true(hk_error_seed(h2d, &sheet) != hk_error_seed(dram, &sheet));
  assert_true(hk_error_seed(h2d, &stated) == hk_error_seed(d2h, &sheet));
  const hk_quantity measured = {.value = 5e9, .origin = HK_ORIGIN_MEASURED, .error = 0.1};
  assert_true(hk_error_seed(h2d, &measured) != hk_error_seed(d2h, &measured));
  assert_true(hk_error_seed(h2d, &measured) != hk_error_seed(h2d, &stated));
  assert_true(hk_error_seed(h2d, &measured) == hk_error_seed(h2d, &measured));
}

static size_t index_of(const char *key) {
  size_t n = 0;
  return (size_t)(info_of(key) - hk_quantity_list(&n));
}

/* AdamW's rate in the limit of many threads and its thread scale, both fitted, move together; so
 * the rate on a number of threads has the error that the correlation 0.9 gives it. With independent
 * errors it would be 0.31 on 8 threads and 0.27 on 16. */
static void curves_move_together(void **state) {
  (void)state;
  hk_machine machine = schoolbook_machine(), varied;
  const double sr = 0.244, sn = 0.34, n0 = 8.9;
  machine.cpu_adamw = (hk_quantity){7.7e9, HK_ORIGIN_FITTED, "s", sr};
  machine.cpu_adamw_threads = (hk_quantity){n0, HK_ORIGIN_FITTED, "s", sn};
  const size_t rate = index_of("cpu.adamw_params_per_s"),
               scale = index_of("cpu.adamw_thread_scale");
  double z[HK_QUANTITY_COUNT] = {0}, change[HK_QUANTITY_COUNT];
  z[rate] = 1;
  hk_error_changes(&machine, z, change);
  assert_true(change[rate] == sr && fabs(change[scale] - 0.9 * sn) < 1e-12);
  z[rate] = 0, z[scale] = -1;
  hk_error_changes(&machine, z, change);
  assert_true(change[rate] == 0 && fabs(change[scale] + sqrt(0.19) * sn) < 1e-12);
  for (int threads = 8; threads <= 16; threads += 8) {
    double squares = 0;
    const double before =
        hk_cpu_rate(&machine, &machine.cpu_adamw, &machine.cpu_adamw_threads, threads);
    for (uint64_t seed = 0; seed < 200; seed++) {
      double a[HK_DRAWS], b[HK_DRAWS];
      hk_latin_hypercube(2 * seed, a);
      hk_latin_hypercube(2 * seed + 1, b);
      for (int k = 0; k < HK_DRAWS; k++) {
        z[rate] = 0.1 * a[k], z[scale] = 0.1 * b[k]; /* so small that the curve is straight */
        hk_error_changes(&machine, z, change);
        hk_machine_perturb(&machine, change, &varied);
        const double d = log(
            hk_cpu_rate(&varied, &varied.cpu_adamw, &varied.cpu_adamw_threads, threads) / before);
        squares += 100 * d * d / HK_DRAWS / 200;
      }
    }
    const double x = threads / n0, g = x * exp(-x) / -expm1(-x);
    const double expected = sqrt(sr * sr + g * g * sn * sn - 2 * 0.9 * g * sr * sn);
    assert_true(fabs(sqrt(squares) / expected - 1) < 0.05);
  }
  /* A default is not fitted together with anything. */
  machine.cpu_adamw_threads.origin = HK_ORIGIN_DEFAULT;
  z[rate] = 1, z[scale] = 0;
  hk_error_changes(&machine, z, change);
  assert_true(change[rate] == sr && change[scale] == 0);
}

static const char *const shipped[] = {"polaris-a100-4x40gb", "jlse-h100-4x80gb", "h200-16c",
                                      "dgx-h100-8x80gb", "workstation-rtx4090-ddr5"};

/* After any variation every quantity is in its range and relations (one at most another) hold. */
static void varied_machines_are_possible(void **state) {
  (void)state;
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t s = 0; s < sizeof shipped / sizeof *shipped; s++) {
    hk_error err = {0};
    hk_machine machine, varied;
    must(hk_machine_load(shipped[s], &machine, &err), &err);
    for (uint64_t draw = 0; draw < 200; draw++) {
      double change[HK_QUANTITY_COUNT], z[HK_DRAWS];
      for (size_t i = 0; i < n; i++) {
        hk_latin_hypercube(1000 * draw + i, z);
        change[i] = strncmp(info[i].key, "node.", 5) == 0 || strcmp(info[i].unit, "B") == 0
                        ? 0
                        : (draw % 2 ? 0.3 : 3) * z[0];
      }
      hk_machine_perturb(&machine, change, &varied);
      must(hk_machine_check(&varied, &err), &err);
      for (size_t i = 0; i < n; i++) {
        const double value = hk_machine_quantity_const(&varied, &info[i])->value;
        assert_true(value >= info[i].least && value <= info[i].most);
      }
    }
    hk_machine_free(&machine);
  }
}

/* -- Intervals --------------------------------------------------------------------------------- */

/* An update by the CPU alone: 1 parameter/ns, all else unlimited and exact. */
static hk_machine cpu_bound(double error) {
  hk_machine m = ideal_machine();
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) hk_machine_quantity(&m, &info[i])->origin = HK_ORIGIN_SET;
  m.cpu_adamw =
      (hk_quantity){.value = 1e9, .origin = HK_ORIGIN_FITTED, .source = "test", .error = error};
  return m;
}

static hk_forecast forecast_of(const hk_policy *policy, hk_policy_options options,
                               const hk_machine *machine) {
  hk_error err = {0};
  hk_plan plan = planned(policy, options, HK_RUNTIME_HOCKET, &ALONE, HK_FLUSH_ASYNC);
  hk_forecast forecast;
  must(hk_forecast_make(&plan, machine, NULL, &forecast, &err), &err);
  return forecast;
}

/* time = parameters / rate: an error of 2 % of the rate is an error of 2 % of the time. */
static void the_error_of_a_rate_is_that_of_the_time(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_machine m = cpu_bound(0.02);
  hk_forecast f = forecast_of(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, &m);
  hk_uncertainty u;
  must(hk_uncertainty_make(&f, 1, &m, &u, &err), &err);
  assert_true(hk_uncertainty_known(&u));
  assert_int_equal(u.n, 1);
  assert_int_equal(u.rows[0].rank, 1);
  assert_false(u.rows[0].tied);
  const hk_interval *update = &u.rows[0].update;
  assert_true(fabs(update->error / 0.02 - 1) < 0.05);
  assert_true(fabs((double)update->high / (double)f.update_ns - exp(1.96 * update->error)) < 1e-4);
  assert_true(fabs((double)update->low / (double)f.update_ns - exp(-1.96 * update->error)) < 1e-4);
  assert_true(u.rows[0].forward.error < 1e-3);
  assert_int_equal(u.n_parts, 1);
  assert_string_equal(u.parts[0].info->key, "cpu.adamw_params_per_s");
  assert_int_equal(u.parts[0].kind, HK_ERROR_STATED);
  assert_true(fabs(u.parts[0].effect / 0.02 - 1) < 0.05);
  hk_uncertainty_free(&u);
  hk_forecast_free(&f);
}

/* Without a stated error the interval is unknown. The effect of a change of the quantity by 5 % is
 * reported. */
static void without_stated_errors_nothing_is_known(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_machine m = cpu_bound(0);
  hk_forecast f = forecast_of(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, &m);
  hk_uncertainty u;
  must(hk_uncertainty_make(&f, 1, &m, &u, &err), &err);
  assert_false(hk_uncertainty_known(&u));
  assert_true(u.rows[0].iteration.error == 0);
  assert_int_equal(u.rows[0].iteration.low, f.iteration_ns);
  assert_int_equal(u.n_unknown, 1);
  assert_int_equal(u.parts[0].kind, HK_ERROR_UNKNOWN);
  assert_true(fabs(u.parts[0].effect / 0.05 - 1) < 0.05);
  hk_uncertainty_free(&u);
  hk_forecast_free(&f);
}

/* With half of the state on the GPU the CPU takes half the time. Both plans depend on the CPU's
 * rate in the same way, so an error of 50 % does not change their order. */
static void common_errors_cancel(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_machine m = cpu_bound(0.5);
  hk_forecast rows[2] = {
      forecast_of(&hk_policy_twinflow, (hk_policy_options){.ratio = 0.5}, &m),
      forecast_of(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, &m),
  };
  hk_uncertainty u;
  must(hk_uncertainty_make(rows, 2, &m, &u, &err), &err);
  assert_true(u.rows[0].iteration.high > u.rows[1].iteration.low); /* the intervals overlap */
  assert_int_equal(u.rows[1].rank, 2);
  assert_false(u.rows[0].tied || u.rows[1].tied);
  hk_uncertainty_free(&u);
  for (int i = 0; i < 2; i++) hk_forecast_free(&rows[i]);
}

/* All on the CPU against all through the link, whose rates are exact. The plans are ranked 1 and 2
 * if the CPU's rate is known to 1 %, and tied if it is known to 50 %. */
static void errors_that_do_not_cancel_tie(void **state) {
  (void)state;
  hk_error err = {0};
  for (int tied = 0; tied < 2; tied++) {
    hk_machine m = cpu_bound(tied ? 0.5 : 0.01);
    m.h2d.value = m.d2h.value = 15e9; /* 12 bytes each way: 1.25 parameters/ns */
    m.duplex.value = 30e9;
    hk_forecast rows[2] = {
        forecast_of(&hk_policy_streamed, HK_POLICY_OPTIONS_NONE, &m),
        forecast_of(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, &m),
    };
    assert_true(rows[0].iteration_ns < rows[1].iteration_ns);
    hk_uncertainty u;
    must(hk_uncertainty_make(rows, 2, &m, &u, &err), &err);
    assert_int_equal(u.rows[1].rank, tied ? 1 : 2);
    assert_true(u.rows[0].tied == tied && u.rows[1].tied == tied);
    hk_uncertainty_free(&u);
    for (int i = 0; i < 2; i++) hk_forecast_free(&rows[i]);
  }
}

/* Equal rows are never separated, so all would be drawn. Those that are simulate about as many
 * operations as a few seconds allow: 1e7, reckoned by the first, which has small pieces here. */
static void work_is_bounded(void **state) {
  (void)state;
  enum { ROWS = 200 };
  hk_error err = {0};
  const hk_machine m = cpu_bound(0.02);
  hk_plan fine = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &ALONE,
                         HK_FLUSH_ASYNC);
  hk_forecast rows[ROWS];
  hk_uncertainty u;
  fine.piece_numel = 20;
  must(hk_forecast_make(&fine, &m, NULL, &rows[0], &err), &err);
  rows[1] = forecast_of(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, &m);
  for (int i = 2; i < ROWS; i++) rows[i] = rows[1];
  const double work = HK_DRAWS * (double)rows[0].graph.n_ops;
  assert_true(10 * work < 1e7 && ROWS * work > 2e7);
  must(hk_uncertainty_make(rows, ROWS, &m, &u, &err), &err);
  assert_true((double)u.n * work <= 1e7 && (double)(u.n + 1) * work > 1e7);
  hk_uncertainty_free(&u);
  must(hk_uncertainty_make(rows + 1, ROWS - 1, &m, &u, &err), &err);
  assert_int_equal(u.n, ROWS - 1);
  hk_uncertainty_free(&u);
  for (int i = 0; i < 2; i++) hk_forecast_free(&rows[i]);
}

static void threads_do_not_change_it(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m;
  hk_model model;
  hk_ranking ranking;
  must(hk_machine_load("polaris-a100-4x40gb", &m, &err), &err);
  must(hk_model_load("gpt2", &model, &err), &err);
  const hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
  const hk_plan_settings settings = {0};
  hk_job job = ALONE;
  job.seq = 1024;
  must(hk_rank(&model, &m, &job, &settings, &options, &ranking, &err), &err);
  hk_uncertainty u[2];
  for (int i = 0; i < 2; i++) {
    omp_set_num_threads(i == 0 ? 1 : 3);
    must(hk_uncertainty_make(ranking.forecasts, ranking.n_fit, &m, &u[i], &err), &err);
  }
  assert_true(u[0].n == u[1].n && u[0].n_parts == u[1].n_parts && u[0].n_parts > 0);
  assert_memory_equal(u[0].rows, u[1].rows, u[0].n * sizeof *u[0].rows);
  for (size_t i = 0; i < u[0].n_parts; i++)
    assert_true(u[0].parts[i].effect == u[1].parts[i].effect);
  for (size_t i = 0; i < u[0].n; i++) {
    assert_true(u[0].rows[i].iteration.error > 0);
    assert_true(u[0].rows[i].rank >= 1 && u[0].rows[i].rank <= (int)i + 1);
  }
  for (int i = 0; i < 2; i++) hk_uncertainty_free(&u[i]);
  hk_ranking_free(&ranking);
  hk_model_free(&model);
  hk_machine_free(&m);
}

int main(void) {
  setenv("HOCKET_SHARE", HK_TEST_SHARE, 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(draws_are_a_latin_hypercube),
      cmocka_unit_test(seeds_give_independent_orders),
      cmocka_unit_test(errors_of_quantities),
      cmocka_unit_test(seeds_group_guesses),
      cmocka_unit_test(curves_move_together),
      cmocka_unit_test(varied_machines_are_possible),
      cmocka_unit_test(the_error_of_a_rate_is_that_of_the_time),
      cmocka_unit_test(without_stated_errors_nothing_is_known),
      cmocka_unit_test(common_errors_cancel),
      cmocka_unit_test(errors_that_do_not_cancel_tie),
      cmocka_unit_test(work_is_bounded),
      cmocka_unit_test(threads_do_not_change_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
