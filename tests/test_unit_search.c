/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Local search: against all assignments of routes of instances that are small enough to enumerate,
 * at other numbers of threads, and within limits. */
#include "sim/search.h"

#include <omp.h>
#include <stdlib.h>

#include "sim/rank.h"
#include "tests/random.h"

enum { SUBGROUPS = 5, ASSIGNMENTS = 3 * 3 * 3 * 3 * 3, MOST_ROUNDS = 100 };
static const hk_route ROUTES[] = {HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT};

typedef struct {
  hk_machine machine;
  hk_plan plan; /* all on route cpu */
} instance;

/* A model of 5 subgroups, on a node where memory may be scarce. */
static instance make_instance(uint64_t seed) {
  hk_error err = {0};
  random_stream r = {seed * 7919};
  instance made = {.machine = random_node(&r)};
  hk_machine *m = &made.machine;
  hk_model model = tiny_model(2);
  const double parameters = (double)model.parameters;
  m->gpus.value = 1;
  m->gpu_launch.value = m->h2d_latency.value = m->d2h_latency.value = pick(&r, 0, 100);
  m->cpu_adamw_threads.value = scale(&r, 1, 8);
  m->cpu_beside_h2d.value = scale(&r, 0.6, 1);
  m->cpu_beside_d2h.value = scale(&r, 0.6, 1);
  m->cores.value = pick(&r, 4, 16);
  m->gpu_memory.value = parameters * scale(&r, 6, 30);
  m->host_memory.value = parameters * scale(&r, 20, 60);
  const hk_job job = {.gpus = 1,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 1,
                      .checkpoint_activations = true};
  const hk_candidate all_cpu = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {.subgroup_numel = model.parameters / SUBGROUPS + 1};
  must(hk_candidate_plan(&all_cpu, &model, m, &job, &settings, &made.plan, &err), &err);
  hk_model_free(&model);
  assert_int_equal(made.plan.n_subgroups, SUBGROUPS);
  return made;
}

static hk_forecast forecast_of(const hk_plan *plan, const hk_machine *machine) {
  hk_error err = {0};
  hk_plan copy;
  hk_forecast f;
  must(hk_plan_copy(plan, &copy, &err), &err);
  must(hk_forecast_make(&copy, machine, NULL, &f, &err), &err);
  return f;
}

/* The fastest assignment that fits, and the slowest. */
static bool enumerate(instance *of, hk_ns *fastest, hk_forecast *slowest) {
  *fastest = INT64_MAX;
  *slowest = (hk_forecast){0};
  for (size_t a = 0; a < ASSIGNMENTS; a++) {
    size_t rest = a;
    for (size_t s = 0; s < of->plan.n_subgroups; s++, rest /= 3)
      of->plan.subgroups[s].route = ROUTES[rest % 3];
    hk_forecast f = forecast_of(&of->plan, &of->machine);
    if (f.feasible && f.iteration_ns < *fastest) *fastest = f.iteration_ns;
    if (f.feasible && f.iteration_ns > slowest->iteration_ns) {
      hk_forecast_free(slowest);
      *slowest = f;
    } else {
      hk_forecast_free(&f);
    }
  }
  return *fastest < INT64_MAX;
}

/* Starts from the slowest assignment. Orders, pieces and pace may make the result faster than all
 * assignments. */
static void finds_the_optimum(void **state) {
  (void)state;
  const int wanted = is_full_run() ? 30 : 3;
  int found = 0;
  for (uint64_t seed = 1; found < wanted; seed++) {
    instance of = make_instance(seed);
    hk_error err = {0};
    hk_ns fastest;
    hk_forecast slowest, best;
    hk_search_progress end;
    if (enumerate(&of, &fastest, &slowest) && slowest.iteration_ns > fastest) {
      const hk_search_options options = {.seconds = 1e9, .rounds = MOST_ROUNDS, .seed = seed};
      must(hk_search(&slowest, &of.machine, &options, &best, &end, &err), &err);
      if (!best.feasible || best.iteration_ns > fastest)
        fail_msg("seed %d: %lld ns, an assignment has %lld", (int)seed,
                 (long long)best.iteration_ns, (long long)fastest);
      assert_int_equal(best.iteration_ns, end.iteration_ns);
      hk_forecast_free(&best);
      found++;
    }
    hk_forecast_free(&slowest);
    hk_plan_free(&of.plan);
  }
}

static void any_number_of_threads(void **state) {
  (void)state;
  instance of = make_instance(3);
  hk_forecast start = forecast_of(&of.plan, &of.machine), found[2];
  const int threads[] = {1, 3}, before = omp_get_max_threads();
  assert_true(start.feasible);
  for (int i = 0; i < 2; i++) {
    hk_error err = {0};
    hk_search_progress end;
    const hk_search_options options = {.seconds = 1e9, .rounds = 40, .seed = 5};
    omp_set_num_threads(threads[i]);
    must(hk_search(&start, &of.machine, &options, &found[i], &end, &err), &err);
    assert_int_equal(end.evaluated, 40 * 16);
    assert_true(found[i].feasible);
  }
  omp_set_num_threads(before);
  char *texts[2];
  for (int i = 0; i < 2; i++) {
    cJSON *json = hk_plan_to_json(&found[i].plan);
    texts[i] = cJSON_Print(json);
    cJSON_Delete(json);
    hk_forecast_free(&found[i]);
  }
  assert_string_equal(texts[0], texts[1]);
  free(texts[0]);
  free(texts[1]);
  hk_forecast_free(&start);
  hk_plan_free(&of.plan);
}

static hk_bytes on_gpu(const hk_plan *plan) {
  return hk_state_bytes(plan->optimizer, hk_plan_on_route(plan, HK_ROUTE_RESIDENT));
}

/* State on the GPU up to the limit, although more fits and is faster. */
static void keeps_the_limit(void **state) {
  (void)state;
  instance of = make_instance(4);
  hk_error err = {0};
  hk_search_progress end;
  of.machine.gpu_memory.value *= 10;
  hk_forecast start = forecast_of(&of.plan, &of.machine), found;
  const hk_bytes all =
      hk_state_bytes(start.plan.optimizer, hk_plan_on_route(&start.plan, HK_ROUTE_CPU));
  for (int share = 0; share <= 4; share++) {
    const hk_bytes limit = all * share / 4;
    const hk_search_options options = {.seconds = 1e9, .rounds = 30, .gpu_state = &limit};
    must(hk_search(&start, &of.machine, &options, &found, &end, &err), &err);
    assert_true(on_gpu(&found.plan) <= limit);
    if (share == 4) assert_true(on_gpu(&found.plan) == all);
    hk_forecast_free(&found);
  }
  hk_forecast_free(&start);
  hk_plan_free(&of.plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finds_the_optimum),
      cmocka_unit_test(any_number_of_threads),
      cmocka_unit_test(keeps_the_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
