/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rankings: the list of candidates, and their order. */
#include "tests/fixture.h"

#include <stdio.h>

#include "core/machine/machine_set.h"
#include "sim/forecast.h"
#include "sim/rank.h"

/* A tiny model on the schoolbook machine, in subgroups of `numel`. */
static hk_ranking ranked(int64_t numel, const hk_ranking_options *options) {
  static const hk_job job = {
      .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 8};
  hk_error err = {0};
  hk_ranking ranking;
  hk_model model = tiny_model(2);
  const hk_machine machine = schoolbook_machine();
  const hk_plan_settings settings = {.subgroup_numel = numel, .cpu_threads = 1};
  must(hk_rank(&model, &machine, &job, &settings, options, &ranking, &err), &err);
  hk_model_free(&model);
  return ranking;
}

/* Identity of a plan: route and order of each subgroup, runtime, number of buffers. */
static bool same_work(const hk_plan *a, const hk_plan *b) {
  if (a->runtime != b->runtime || a->buffers != b->buffers || a->n_subgroups != b->n_subgroups)
    return false;
  bool same = memcmp(a->order, b->order, a->n_subgroups * sizeof *a->order) == 0;
  for (size_t s = 0; s < a->n_subgroups; s++)
    same = same && a->subgroups[s].route == b->subgroups[s].route;
  return same;
}

/* With few subgroups many settings give the same schedule; each schedule is ranked once. */
static void no_schedule_is_ranked_twice(void **state) {
  (void)state;
  const hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
  static const int64_t sizes[] = {1000000, 60000, 20000, 2000};
  size_t least = 0;
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    hk_ranking r = ranked(sizes[k], &options);
    assert_true(r.n > least); /* more subgroups allow more schedules */
    least = r.n;
    for (size_t i = 0; i < r.n; i++) {
      for (size_t j = 0; j < i; j++) {
        char a[64], b[64];
        if (!same_work(&r.forecasts[i].plan, &r.forecasts[j].plan)) continue;
        fail_msg("subgroups of %d: '%s' and '%s' are the same schedule", (int)sizes[k],
                 hk_forecast_title(&r.forecasts[j], b, sizeof b),
                 hk_forecast_title(&r.forecasts[i], a, sizeof a));
      }
    }
    hk_ranking_free(&r);
  }
}

static void the_quickest_comes_first(void **state) {
  (void)state;
  const hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
  hk_ranking r = ranked(20000, &options);
  assert_true(r.n_fit > 5 && r.n_fit <= r.n);
  for (size_t i = 0; i < r.n; i++) assert_int_equal(r.forecasts[i].feasible, i < r.n_fit);
  for (size_t i = 1; i < r.n_fit; i++)
    assert_true(r.forecasts[i].iteration_ns >= r.forecasts[i - 1].iteration_ns);
  hk_ranking_free(&r);
}

/* If a stride is given, policies without a stride are left out. */
static void fixed_settings_hold_for_all(void **state) {
  (void)state;
  static const hk_runtime hocket = HK_RUNTIME_HOCKET;
  hk_ranking_options options = {.only_runtime = &hocket, .fixed = HK_POLICY_OPTIONS_NONE};
  options.fixed.stride = 3;
  hk_ranking r = ranked(2000, &options);
  assert_true(r.n > 0);
  for (size_t i = 0; i < r.n; i++) {
    assert_int_equal(r.forecasts[i].plan.stride, 3);
    assert_int_equal(r.forecasts[i].plan.runtime, HK_RUNTIME_HOCKET);
  }
  hk_ranking_free(&r);
}

/* Ranking of zero-offload for llama-2-7b on a GPU whose backward computes gradients faster than its
 * link takes them. `flush` NULL: not given. */
static hk_ranking flooded(const hk_flush *flush) {
  static const hk_job job = {.gpus = 1,
                             .nodes = 1,
                             .tp = 1,
                             .micro_batch = 2,
                             .grad_accum = 1,
                             .seq = 2048,
                             .checkpoint_activations = true};
  static const char *const set[] = {"gpu.matmul*=8", "pcie.d2h=5G", "gpu.memory=20G"};
  const hk_runtime hocket = HK_RUNTIME_HOCKET;
  const hk_ranking_options options = {.only_policy = &hk_policy_zero_offload,
                                      .only_runtime = &hocket,
                                      .fixed = HK_POLICY_OPTIONS_NONE};
  const hk_plan_settings settings = {.flush = flush};
  hk_error err = {0};
  hk_machine machine;
  hk_model model;
  hk_ranking ranking;
  must(hk_machine_load("workstation-rtx4090-ddr5", &machine, &err), &err);
  must(hk_machine_set(&machine, set, sizeof set / sizeof *set, &err), &err);
  must(hk_model_load("llama-2-7b", &model, &err), &err);
  must(hk_rank(&model, &machine, &job, &settings, &options, &ranking, &err), &err);
  hk_machine_free(&machine);
  hk_model_free(&model);
  return ranking;
}

/* If gradients that wait for their copies do not fit, the ranking lets backward wait for some of
 * them, unless the user asks for the asynchronous flush. */
static void backward_waits_where_gradients_do_not_fit(void **state) {
  (void)state;
  const hk_flush async = HK_FLUSH_ASYNC;
  char title[96];
  hk_ranking r = flooded(&async);
  assert_int_equal(r.n_fit, 0);
  assert_true(r.forecasts[0].gpu_short > 0);
  hk_ranking_free(&r);
  r = flooded(NULL);
  assert_int_equal(r.n_fit, 1);
  assert_int_equal(r.forecasts[0].plan.flush, HK_FLUSH_ASYNC);
  const int blocks = r.forecasts[0].plan.pace.flush;
  char expected[96];
  assert_true(blocks > 0 && blocks < 34);
  snprintf(expected, sizeof expected, "zero-offload flush %d", blocks);
  assert_string_equal(hk_forecast_title(&r.forecasts[0], title, sizeof title), expected);
  hk_ranking_free(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_schedule_is_ranked_twice),
      cmocka_unit_test(the_quickest_comes_first),
      cmocka_unit_test(fixed_settings_hold_for_all),
      cmocka_unit_test(backward_waits_where_gradients_do_not_fit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
