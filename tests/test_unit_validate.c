/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Decisions of `validate` that need no run: whether a profile is of this machine, which plans to
 * run, and the figures of a ranking. */
#include "calib/validate/validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/trial.h"
#include "tests/fixture.h"

/* -- Profiles ---------------------------------------------------------------------------------- */

static hk_fingerprint some_machine(void) {
  return (hk_fingerprint){.backend = "cuda",
                          .cpu = "Xeon A",
                          .isa = "avx512",
                          .gpu = "NVIDIA H200",
                          .driver = "580.1",
                          .pcie = "5.0 x16",
                          .kernel = "6.8",
                          .huge_pages = "madvise",
                          .version = "0.1.0",
                          .gpus = 1,
                          .cores = 16,
                          .numa = 1,
                          .memory = 128 * HK_GIB};
}

static cJSON *profile_of(const hk_fingerprint *f, time_t made) {
  char text[32];
  struct tm parts;
  gmtime_r(&made, &parts);
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  cJSON *document = cJSON_CreateObject();
  cJSON_AddStringToObject(document, "name", "node-7");
  cJSON *calibration = cJSON_AddObjectToObject(document, "calibration");
  cJSON_AddStringToObject(calibration, "made", text);
  cJSON_AddItemToObject(calibration, "fingerprint", hk_fingerprint_to_json(f));
  return document;
}

/* Frees the document. */
static void assert_profile(cJSON *document, double max_age_s, hk_status wanted, const char *why) {
  const hk_fingerprint here = some_machine();
  hk_error err = {0};
  assert_int_equal(hk_validate_profile(document, &here, max_age_s, &err), wanted);
  if (strstr(err.message, why) == NULL) fail_msg("'%s' does not say '%s'", err.message, why);
  cJSON_Delete(document);
}

static void profiles_of_this_machine_are_taken(void **state) {
  (void)state;
  hk_fingerprint f = some_machine();
  assert_profile(profile_of(&f, time(NULL)), 0, HK_OK, "");
  assert_profile(profile_of(&f, time(NULL) - 3600), 7200, HK_OK, "");
  f.gpus = 4; /* the number of GPUs may differ: the engine uses one */
  assert_profile(profile_of(&f, time(NULL)), 0, HK_OK, "");
}

static void profiles_of_others_are_not(void **state) {
  (void)state;
  hk_fingerprint f = some_machine();
  snprintf(f.gpu, sizeof f.gpu, "NVIDIA A100");
  f.cores = 32;
  assert_profile(profile_of(&f, time(NULL)), 0, HK_INPUT,
                 "'node-7' is of another machine: gpu: NVIDIA A100, here NVIDIA H200; cores: 32, "
                 "here 16");
  cJSON *document = cJSON_CreateObject();
  cJSON_AddStringToObject(document, "name", "data sheet");
  assert_profile(document, 0, HK_INPUT, "'data sheet' was not calibrated");
  f = some_machine();
  document = profile_of(&f, time(NULL));
  cJSON_DeleteItemFromObject(cJSON_GetObjectItem(document, "calibration"), "fingerprint");
  assert_profile(document, 0, HK_INPUT, "fingerprint");
}

static void old_profiles_are_refused_if_an_age_is_given(void **state) {
  (void)state;
  const hk_fingerprint f = some_machine();
  const double day = 86400;
  assert_profile(profile_of(&f, time(NULL) - 10 * 86400), 0, HK_OK, "");
  assert_profile(profile_of(&f, time(NULL) - 10 * 86400), 7 * day, HK_INPUT, "10.0 days ago");
  cJSON *document = profile_of(&f, time(NULL));
  cJSON_ReplaceItemInObject(cJSON_GetObjectItem(document, "calibration"), "made",
                            cJSON_CreateString("yesterday"));
  assert_profile(document, day, HK_INPUT, "'yesterday'");
}

/* -- Figures of a ranking ---------------------------------------------------------------------- */

static hk_ranked_plans_verdict judged(const double *predicted, const double *measured, size_t n) {
  hk_error err = {0};
  hk_ranked_plan plans[16] = {0};
  hk_ranked_plans_verdict verdict;
  for (size_t i = 0; i < n; i++) {
    plans[i].predicted_ms = predicted[i];
    plans[i].measured_ms = measured[i];
  }
  must(hk_ranked_plans_judge(plans, n, &verdict, &err), &err);
  return verdict;
}

static void rankings_are_judged(void **state) {
  (void)state;
  const double up[] = {1, 2, 3, 4}, down[] = {4, 3, 2, 1}, near[] = {1, 3, 2, 4};
  hk_ranked_plans_verdict v = judged(up, up, 4);
  assert_float_equal(v.tau, 1, 1e-12);
  assert_float_equal(v.regret_pct, 0, 1e-12);
  assert_float_equal(v.worst_error_pct, 0, 1e-12);

  v = judged(up, down, 4);
  assert_float_equal(v.tau, -1, 1e-12);
  assert_int_equal(v.predicted_best, 0);
  assert_int_equal(v.measured_best, 3);
  assert_float_equal(v.regret_pct, 300, 1e-9);

  v = judged(up, near, 4);
  assert_float_equal(v.tau, 4.0 / 6, 1e-12);
  assert_float_equal(v.regret_pct, 0, 1e-12);
  assert_float_equal(v.median_error_pct, 100.0 / 6, 1e-9); /* 0, 33, 50, 0 */
  assert_float_equal(v.worst_error_pct, 50, 1e-9);

  /* 3 pairs concordant, 1 discordant, 1 tied in each list: (3 - 1) / sqrt(5 x 5). Equal to
   * scipy.stats.kendalltau([1, 2, 2, 3], [10, 12, 11, 11]). */
  const double tied[] = {1, 2, 2, 3}, measured[] = {10, 12, 11, 11};
  v = judged(tied, measured, 4);
  assert_float_equal(v.tau, 2.0 / 5, 1e-12);
  v = judged(up, up, 1);
  assert_true(isnan(v.tau));
}

/* A lane's error is the median over the plans that have the lane: of 1, 2 and 6 % for the CPU lane,
 * one plan's 30 % for the lane of weights. */
static void lanes_are_judged(void **state) {
  (void)state;
  hk_error err = {0};
  hk_ranked_plan plans[] = {
      {.n_lanes = 2, .lanes = {{HK_LANE_CPU, -1}, {HK_LANE_UP, 30}}},
      {.n_lanes = 1, .lanes = {{HK_LANE_CPU, 6}}},
      {.n_lanes = 1, .lanes = {{HK_LANE_CPU, -2}}},
  };
  for (size_t i = 0; i < 3; i++) plans[i].predicted_ms = plans[i].measured_ms = 1 + (double)i;
  hk_ranked_plans_verdict v;
  must(hk_ranked_plans_judge(plans, 3, &v, &err), &err);
  assert_float_equal(v.lane_pct[HK_LANE_CPU], 2, 1e-12);
  assert_float_equal(v.lane_pct[HK_LANE_UP], 30, 1e-12);
  assert_true(isnan(v.lane_pct[HK_LANE_D2H]));
  assert_int_equal(v.lane_plans[HK_LANE_CPU], 3);
  assert_int_equal(v.lane_plans[HK_LANE_UP], 1);
  assert_int_equal(v.lane_plans[HK_LANE_D2H], 0);
  assert_float_equal(v.median_lane_pct, 4, 1e-12); /* 1, 2, 6, 30 */
  assert_float_equal(v.worst_lane_pct, 30, 1e-12);
}

static hk_ranked_plan median_of(const double *times, int n) {
  hk_ranked_plan runs[HK_MOST_ROUNDS] = {0};
  for (int i = 0; i < n; i++) {
    runs[i].measured_ms = times[i];
    runs[i].least_ms = times[i] - 1;
    runs[i].most_ms = times[i] + 2;
    runs[i].measured_id = i;
  }
  const hk_ranked_plan median = hk_ranked_plan_median(runs, n);
  assert_int_equal(median.rounds, n);
  for (int i = 0; i < n; i++) assert_true(median.round_ms[i] == times[i]);
  return median;
}

/* The median of rounds has the median time, and the least and the most of all rounds. */
static void rounds_have_a_median(void **state) {
  (void)state;
  hk_ranked_plan one = median_of((double[]){7}, 1);
  assert_true(one.measured_ms == 7 && one.least_ms == 6 && one.most_ms == 9);
  one = median_of((double[]){9, 30, 8}, 3); /* one disturbed round */
  assert_true(one.measured_ms == 9 && one.least_ms == 7 && one.most_ms == 32);
  assert_int_equal(one.measured_id, 0);
  one = median_of((double[]){30, 8}, 2);
  assert_int_equal(one.measured_id, 1);
  one = median_of((double[]){5, 4, 5, 5, 6}, 5);
  assert_int_equal(one.measured_id, 2);
}

/* Each lane's median over the runs that have that lane. */
static void rounds_have_medians_of_lanes(void **state) {
  (void)state;
  const hk_ranked_plan runs[] = {
      {.measured_ms = 7, .n_lanes = 2, .lanes = {{HK_LANE_CPU, -9}, {HK_LANE_UP, 4}}},
      {.measured_ms = 9, .n_lanes = 2, .lanes = {{HK_LANE_CPU, 3}, {HK_LANE_UP, 6}}},
      {.measured_ms = 6, .n_lanes = 1, .lanes = {{HK_LANE_CPU, 1}}}};
  const hk_ranked_plan median = hk_ranked_plan_median(runs, 3);
  assert_true(median.measured_ms == 7);
  assert_int_equal(median.n_lanes, 2);
  assert_float_equal(median.lanes[0].error_pct, 1, 1e-12);
  assert_float_equal(median.lanes[1].error_pct, 5, 1e-12);
}

/* Rounds of a plan differ by 10, 5 and 0 %; a plan with one round does not count. */
static void rounds_are_judged(void **state) {
  (void)state;
  hk_error err = {0};
  hk_ranked_plan plans[] = {{.rounds = 3, .round_ms = {2.1, 2.0, 2.2}},
                            {.rounds = 2, .round_ms = {1.00, 1.05}},
                            {.rounds = 1, .round_ms = {7}},
                            {.rounds = 2, .round_ms = {3, 3}}};
  for (size_t i = 0; i < 4; i++) plans[i].predicted_ms = plans[i].measured_ms = 1 + (double)i;
  hk_ranked_plans_verdict v;
  must(hk_ranked_plans_judge(plans, 4, &v, &err), &err);
  assert_float_equal(v.median_rounds_pct, 5, 1e-9);
  assert_float_equal(v.worst_rounds_pct, 10, 1e-9);
  must(hk_ranked_plans_judge(&plans[2], 1, &v, &err), &err);
  assert_true(isnan(v.median_rounds_pct) && isnan(v.worst_rounds_pct));
}

static void unmeasured_plans_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_ranked_plan plans[2] = {{.title = "a", .predicted_ms = 1, .measured_ms = 1},
                             {.title = "b", .predicted_ms = 1, .measured_ms = NAN}};
  hk_ranked_plans_verdict verdict;
  assert_int_equal(hk_ranked_plans_judge(plans, 0, &verdict, &err), HK_INPUT);
  assert_int_equal(hk_ranked_plans_judge(plans, 2, &verdict, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "(b)"));
}

/* -- Which plans to run ------------------------------------------------------------------------ */

typedef struct {
  hk_model model;
  hk_machine machine;
  hk_plan *plans;
  size_t n;
} choice;

static choice chosen(const char *model, size_t least, bool runs, hk_bytes host_bytes) {
  hk_error err = {0};
  choice c = {0};
  must(hk_model_load(model, &c.model, &err), &err);
  must(hk_machine_load("h200-16c", &c.machine, &err), &err);
  must(hk_ranked_plans_choose(&c.model, &c.machine, least, runs, host_bytes, &c.plans, &c.n, &err),
       &err);
  assert_true(c.n >= least);
  return c;
}

static void forget(choice *c) {
  for (size_t i = 0; i < c->n; i++) hk_plan_free(&c->plans[i]);
  free(c->plans);
  hk_model_free(&c->model);
  hk_machine_free(&c->machine);
}

/* Number of different values of f over the chosen plans. */
static int variety(const choice *c, int64_t (*f)(const hk_plan *plan)) {
  int n = 0;
  for (size_t i = 0; i < c->n; i++) {
    bool seen = false;
    for (size_t j = 0; j < i && !seen; j++) seen = f(&c->plans[j]) == f(&c->plans[i]);
    n += !seen;
  }
  return n;
}

static int64_t policy_of(const hk_plan *plan) {
  uint64_t hash = 0;
  for (const char *p = plan->policy; *p != '\0'; p++) hash = hash * 131 + (unsigned char)*p;
  return (int64_t)hash;
}
static int64_t stride_of(const hk_plan *plan) {
  return plan->stride;
}
static int64_t ratio_of(const hk_plan *plan) {
  return (int64_t)(1000 * plan->ratio);
}
static int64_t buffers_of(const hk_plan *plan) {
  return plan->buffers;
}
static int64_t subgroup_of(const hk_plan *plan) {
  return plan->subgroup_numel;
}
static int64_t piece_of(const hk_plan *plan) {
  return plan->piece_numel;
}
static int64_t threads_of(const hk_plan *plan) {
  return plan->cpu_threads;
}
static int64_t runtime_of(const hk_plan *plan) {
  return plan->runtime;
}

static void plans_are_spread(void **state) {
  (void)state;
  choice c = chosen("llama-2-7b", 20, false, 120 * HK_GIB);
  assert_true(variety(&c, policy_of) >= 6);
  assert_true(variety(&c, stride_of) >= 5);
  assert_true(variety(&c, ratio_of) >= 3);
  assert_true(variety(&c, buffers_of) >= 3);
  assert_true(variety(&c, subgroup_of) >= 3);
  assert_true(variety(&c, piece_of) >= 6);
  assert_true(variety(&c, threads_of) >= 3);
  assert_int_equal(variety(&c, runtime_of), 2);
  int deepspeed = 0;
  for (size_t i = 0; i < c.n; i++) deepspeed += c.plans[i].runtime == HK_RUNTIME_DEEPSPEED;
  assert_true(deepspeed * 4 <= (int)c.n);
  forget(&c);
}

/* Every lane is in at least three of the chosen plans. */
static void lanes_are_in_several_plans(void **state) {
  (void)state;
  hk_error err = {0};
  size_t having[HK_LANE_KIND_COUNT] = {0};
  choice c = chosen("llama-2-7b", 24, false, 120 * HK_GIB);
  for (size_t i = 0; i < c.n; i++) {
    hk_graph graph;
    must(hk_graph_build(&c.plans[i], (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &graph, &err),
         &err);
    for (size_t l = 0; l < graph.n_lanes; l++) having[graph.lanes[l].kind]++;
    hk_graph_free(&graph);
  }
  static const hk_lane_kind kinds[] = {HK_LANE_CPU,      HK_LANE_H2D,     HK_LANE_D2H,
                                       HK_LANE_UP,       HK_LANE_UPDATE,  HK_LANE_STREAM_P,
                                       HK_LANE_STREAM_M, HK_LANE_STREAM_V};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) assert_true(having[kinds[k]] >= 3);
  forget(&c);
}

static void plans_differ_and_fit(void **state) {
  (void)state;
  static char titles[120][160];
  const hk_bytes room = 4 * HK_GIB;
  choice c = chosen("gpt2", 120, true, room);
  for (size_t i = 0; i < c.n; i++) {
    hk_error err = {0};
    hk_engine_memory memory;
    must(hk_plan_check(&c.plans[i], &err), &err);
    assert_int_equal(c.plans[i].runtime, HK_RUNTIME_HOCKET);
    must(hk_trial_measure(&c.plans[i], &memory, &err), &err);
    assert_true(memory.host_pinned <= room);
    assert_true((double)memory.device <= c.machine.gpu_memory.value);
    hk_ranked_plan_title(&c.plans[i], titles[i], sizeof titles[i]);
    for (size_t j = 0; j < i; j++) assert_string_not_equal(titles[i], titles[j]);
  }
  forget(&c);
}

static void plans_are_the_same_again(void **state) {
  (void)state;
  choice a = chosen("gpt2", 24, true, HK_GIB * 8), b = chosen("gpt2", 24, true, HK_GIB * 8);
  assert_int_equal(a.n, b.n);
  for (size_t i = 0; i < a.n; i++) {
    cJSON *x = hk_plan_to_json(&a.plans[i]), *y = hk_plan_to_json(&b.plans[i]);
    assert_true(cJSON_Compare(x, y, true));
    cJSON_Delete(x);
    cJSON_Delete(y);
  }
  forget(&a);
  forget(&b);
}

static void too_few_fit(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = {0};
  hk_machine machine = {0};
  hk_plan *plans = NULL;
  size_t n = 1;
  must(hk_model_load("llama-2-7b", &model, &err), &err);
  must(hk_machine_load("h200-16c", &machine, &err), &err);
  assert_int_equal(hk_ranked_plans_choose(&model, &machine, 20, true, HK_GIB, &plans, &n, &err),
                   HK_NO);
  assert_non_null(strstr(err.message, "llama-2-7b"));
  assert_non_null(strstr(err.message, "of 20"));
  assert_null(plans);
  assert_int_equal(n, 0);
  hk_model_free(&model);
  hk_machine_free(&machine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(profiles_of_this_machine_are_taken),
      cmocka_unit_test(profiles_of_others_are_not),
      cmocka_unit_test(old_profiles_are_refused_if_an_age_is_given),
      cmocka_unit_test(rankings_are_judged),
      cmocka_unit_test(lanes_are_judged),
      cmocka_unit_test(rounds_have_a_median),
      cmocka_unit_test(rounds_have_medians_of_lanes),
      cmocka_unit_test(rounds_are_judged),
      cmocka_unit_test(unmeasured_plans_are_refused),
      cmocka_unit_test(plans_are_spread),
      cmocka_unit_test(lanes_are_in_several_plans),
      cmocka_unit_test(plans_differ_and_fit),
      cmocka_unit_test(plans_are_the_same_again),
      cmocka_unit_test(too_few_fit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
