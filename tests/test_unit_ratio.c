/* SPDX-License-Identifier: GPL-3.0-or-later */
/* "Does not fit" is said only if no ratio of any policy fits: rankings compared with the simulation
 * of every ratio, on machines whose memory is short on both sides. Ratios between those of the
 * list, and which subgroups stay on the GPU. */
#include "sim/flush.h"
#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/fixture.h"
#include "tests/random.h"

enum { SUBGROUPS = 40 };

static const hk_job JOB = {
    .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 8};

/* Whether some ratio of the policy fits, in steps of half a subgroup. *at: the first. */
static bool any_ratio_fits(const hk_policy *policy, int stride, const hk_model *model,
                           const hk_machine *machine, const hk_plan_settings *settings,
                           double *at) {
  hk_error err = {0};
  for (int step = 0; step <= 2 * SUBGROUPS; step++) {
    hk_candidate candidate = {
        .policy = policy, .runtime = HK_RUNTIME_HOCKET, .options = HK_POLICY_OPTIONS_NONE};
    hk_plan plan;
    hk_forecast forecast;
    candidate.options.stride = stride;
    candidate.options.ratio = *at = step / (2.0 * SUBGROUPS);
    must(hk_candidate_plan(&candidate, model, machine, &JOB, settings, &plan, &err), &err);
    must(hk_forecast_make(&plan, machine, NULL, &forecast, &err), &err);
    must(hk_flush_fit(&forecast, true, machine, &err), &err);
    const bool fits = forecast.feasible;
    hk_forecast_free(&forecast);
    hk_plan_free(&plan);
    if (fits) return true;
  }
  return false;
}

static void no_is_said_only_if_no_ratio_fits(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = tiny_model(2);
  const hk_plan_settings settings = {.subgroup_numel = model.parameters / SUBGROUPS + 1,
                                     .cpu_threads = 1};
  const hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE, .quick = true};
  const double state_bytes = 12 * (double)model.parameters;
  random_stream random = {.state = 7};
  int fit = 0, none = 0, holes = 0;
  for (int i = 0; i < 150; i++) {
    hk_machine machine = schoolbook_machine();
    hk_ranking ranking;
    double at = -1;
    machine.host_memory.value =
        machine.host_reserved.value + state_bytes * scale(&random, 0.1, 1.3);
    machine.gpu_memory.value = machine.gpu_reserved.value + state_bytes * scale(&random, 0.3, 1.5);
    must(hk_rank(&model, &machine, &JOB, &settings, &options, &ranking, &err), &err);
    const bool any = any_ratio_fits(&hk_policy_twinflow, 0, &model, &machine, &settings, &at) ||
                     any_ratio_fits(&hk_policy_interleave, 1, &model, &machine, &settings, &at) ||
                     any_ratio_fits(&hk_policy_interleave, 2, &model, &machine, &settings, &at) ||
                     any_ratio_fits(&hk_policy_interleave, 3, &model, &machine, &settings, &at);
    if (any && ranking.n_fit == 0) fail_msg("machine %d: 'does not fit', but ratio %g does", i, at);
    const double ratio = ranking.forecasts[0].plan.ratio, fifth = 5 * ratio;
    if (ranking.n_fit > 0 && ratio > 0 && fabs(fifth - round(fifth)) > 1e-9) holes++;
    if (any) fit++;
    if (ranking.n_fit == 0) none++;
    hk_ranking_free(&ranking);
  }
  print_message("%d fit, %d do not, %d by a ratio that no list has\n", fit, none, holes);
  assert_true(fit > 10 && none > 10 && holes > 5); /* the machines test both answers */
  hk_model_free(&model);
}

/* gpt-oss-120b (117 G parameters) on eight GPUs of 192 GB: the list has no ratio between 0.2 and
 * 0.4, and one of them is over 20 % faster. A ratio that the user gives is kept. */
static void a_faster_ratio_is_found(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine;
  hk_model model;
  hk_ranking quick, found, given;
  const hk_job job = {.gpus = 8,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 1024,
                      .checkpoint_activations = true};
  const hk_plan_settings settings = {.cpu_threads = 0};
  hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE, .quick = true};
  must(hk_machine_load("azure-nd96isr-mi300x-v5", &machine, &err), &err);
  must(hk_model_load("gpt-oss-120b", &model, &err), &err);
  must(hk_rank(&model, &machine, &job, &settings, &options, &quick, &err), &err);
  options.quick = false;
  must(hk_rank(&model, &machine, &job, &settings, &options, &found, &err), &err);
  assert_true(found.forecasts[0].tokens_per_s > 1.2 * quick.forecasts[0].tokens_per_s);
  assert_true(found.n > quick.n && found.forecasts[0].plan.ratio < quick.forecasts[0].plan.ratio);
  options.fixed.ratio = 0.4;
  must(hk_rank(&model, &machine, &job, &settings, &options, &given, &err), &err);
  for (size_t i = 0; i < given.n; i++)
    assert_true(fabs(given.forecasts[i].plan.ratio - 0.4) < 1e-9);
  hk_ranking_free(&quick);
  hk_ranking_free(&found);
  hk_ranking_free(&given);
  hk_model_free(&model);
  hk_machine_free(&machine);
}

/* The ratio that was found is the smallest that fits, and --ratio with the number of the title
 * gives the same plan. */
static void titles_state_the_ratio(void **state) {
  (void)state;
  char title[80];
  hk_error err = {0};
  hk_model model = tiny_model(2);
  hk_plan plan;
  must(hk_plan_create(&model, &JOB, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 10000, &plan, &err),
       &err);
  const struct {
    double ratio;
    const char *said;
  } rows[] = {{0.4, " r=0.40"}, {0.457, " r=0.457"}, {0.00125, " r=0.00125"}, {1.0 / 3, " r=0.33"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    plan.ratio = rows[i].ratio;
    hk_plan_title(&plan, title, sizeof title);
    if (strstr(title, rows[i].said) == NULL) fail_msg("'%s' lacks '%s'", title, rows[i].said);
  }
  hk_plan_free(&plan);
}

/* -- Resident state in front ---------------------------------------------------------------- */

static const hk_job ONE_GPU = {.gpus = 1,
                               .nodes = 1,
                               .tp = 1,
                               .micro_batch = 1,
                               .grad_accum = 1,
                               .seq = 2048,
                               .checkpoint_activations = true};

static bool is_in_front(const hk_forecast *f) {
  char title[96];
  return strstr(hk_forecast_title(f, title, sizeof title), " front") != NULL;
}

/* The plan as its policy makes it, with the last subgroups resident. */
static hk_forecast behind(const hk_forecast *front, const hk_machine *machine) {
  const hk_policy_options options = {.stride = front->plan.stride, .ratio = front->plan.ratio};
  hk_error err = {0};
  hk_plan plan;
  hk_forecast f;
  must(hk_plan_copy(&front->plan, &plan, &err), &err);
  must(hk_policy_apply(&hk_policy_interleave, &options, machine, &plan, &err), &err);
  must(hk_forecast_make(&plan, machine, NULL, &f, &err), &err);
  return f;
}

/* A front plan has its policy's label; one with other routes does not. */
static void check_labels(const hk_forecast *front) {
  hk_error err = {0};
  char text[480];
  hk_plan plan;
  must(hk_policy_check_label(&front->plan, text, sizeof text, &err), &err);
  assert_string_equal(text, "");
  must(hk_plan_copy(&front->plan, &plan, &err), &err);
  plan.subgroups[1].route = HK_ROUTE_CPU;
  must(hk_policy_check_label(&plan, text, sizeof text, &err), &err);
  assert_non_null(strstr(text, "is labelled"));
  hk_plan_free(&plan);
}

/* The fastest plan of a policy: a search may have found a faster one. */
static const hk_forecast *of_policy(const hk_ranking *ranking) {
  size_t i = 0;
  while (i + 1 < ranking->n_fit && strcmp(ranking->forecasts[i].plan.policy, "searched") == 0) i++;
  return &ranking->forecasts[i];
}

/* On one GPU the first subgroups are kept, whose gradients come last: it is faster, and takes less
 * memory. What the user fixes stays as it is, and so does a limit of state. */
static void resident_state_comes_in_front(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine;
  hk_model model;
  hk_ranking found, given;
  hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
  hk_plan_settings settings = {.cpu_threads = 0};
  must(hk_machine_load("h200-16c", &machine, &err), &err);
  must(hk_model_load("llama-2-13b", &model, &err), &err);
  must(hk_rank(&model, &machine, &ONE_GPU, &settings, &options, &found, &err), &err);
  const hk_forecast *best = of_policy(&found);
  hk_forecast other = behind(best, &machine);
  assert_true(is_in_front(best) && best->plan.subgroups[0].route == HK_ROUTE_RESIDENT);
  assert_true((double)best->iteration_ns < 0.985 * (double)other.iteration_ns);
  assert_true(best->result.memory.peak < other.result.memory.peak);
  check_labels(best);
  options.fixed.ratio = 0.4;
  must(hk_rank(&model, &machine, &ONE_GPU, &settings, &options, &given, &err), &err);
  for (size_t i = 0; i < given.n; i++) assert_false(is_in_front(&given.forecasts[i]));
  hk_ranking_free(&given);
  options.fixed.ratio = -1;
  const hk_bytes most = (hk_bytes)60e9;
  settings.gpu_memory = &most;
  must(hk_rank(&model, &machine, &ONE_GPU, &settings, &options, &given, &err), &err);
  assert_true(is_in_front(of_policy(&given)));
  for (size_t i = 0; i < given.n_fit; i++)
    assert_true(12 * hk_plan_on_route(&given.forecasts[i].plan, HK_ROUTE_RESIDENT) <= most);
  hk_ranking_free(&given);
  hk_forecast_free(&other);
  hk_ranking_free(&found);
  hk_model_free(&model);
  hk_machine_free(&machine);
}

/* Few buffers leave room for state, at another stride too; a stride that is given stays. */
static void buffers_and_strides_are_varied(void **state) {
  (void)state;
  static const struct {
    const char *machine, *model;
    int gpus, stride, buffers;
  } cases[] = {{"polaris-a100-4x40gb", "llama-2-13b", 4, 2, 2},
               {"workstation-2xa6000", "llama-2-13b", 2, 6, 3},
               {"aws-g6.12xlarge", "qwen2.5-7b", 4, 5, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    hk_error err = {0};
    hk_machine machine;
    hk_model model;
    hk_ranking found;
    hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
    const hk_plan_settings settings = {.cpu_threads = 0};
    hk_job job = ONE_GPU;
    job.gpus = cases[i].gpus;
    must(hk_machine_load(cases[i].machine, &machine, &err), &err);
    must(hk_model_load(cases[i].model, &model, &err), &err);
    must(hk_rank(&model, &machine, &job, &settings, &options, &found, &err), &err);
    assert_int_equal(of_policy(&found)->plan.stride, cases[i].stride);
    assert_int_equal(of_policy(&found)->plan.buffers, cases[i].buffers);
    hk_ranking_free(&found);
    options.fixed.stride = 3;
    must(hk_rank(&model, &machine, &job, &settings, &options, &found, &err), &err);
    for (size_t f = 0; f < found.n; f++) assert_int_equal(found.forecasts[f].plan.stride, 3);
    hk_ranking_free(&found);
    hk_model_free(&model);
    hk_machine_free(&machine);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_is_said_only_if_no_ratio_fits),
      cmocka_unit_test(a_faster_ratio_is_found),
      cmocka_unit_test(titles_state_the_ratio),
      cmocka_unit_test(resident_state_comes_in_front),
      cmocka_unit_test(buffers_and_strides_are_varied),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
