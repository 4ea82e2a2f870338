/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Local search: against all assignments of routes (with an overlap, also of what runs ahead) of
 * instances that are small enough to enumerate, at other numbers of threads, and within limits. */
#include "sim/search.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "sim/overlap.h"
#include "sim/rank.h"
#include "tests/random.h"

enum { SUBGROUPS = 5, MOST_ROUNDS = 400 };

typedef struct {
  hk_machine machine;
  hk_plan plan; /* all on route cpu */
} instance;

/* A model of 5 subgroups, on a node where memory may be scarce. */
static instance make_instance(uint64_t seed, hk_overlap overlap) {
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
  const hk_plan_settings settings = {.subgroup_numel = model.parameters / SUBGROUPS + 1,
                                     .overlap = overlap};
  must(hk_candidate_plan(&all_cpu, &model, m, &job, &settings, &made.plan, &err), &err);
  hk_model_free(&model);
  if (overlap == HK_OVERLAP_NONE) assert_int_equal(made.plan.n_subgroups, SUBGROUPS);
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

/* Assignment `a` of routes, and of what runs ahead. False: there are not as many. */
static bool assign(hk_plan *plan, size_t a) {
  static const hk_route routes[] = {HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT, HK_ROUTE_CPU};
  const size_t choices = plan->overlap == HK_OVERLAP_BOTH ? 4 : 3;
  for (size_t s = 0; s < plan->n_subgroups; s++, a /= choices) {
    plan->subgroups[s].route = routes[a % choices];
    plan->subgroups[s].ahead = a % choices == 3;
  }
  return a == 0;
}

/* By which the search compares plans with an overlap. */
static hk_ns cost_of(const hk_forecast *f, const hk_machine *machine) {
  hk_error err = {0};
  hk_ns cost = f->iteration_ns, mean;
  if (f->plan.overlap != HK_OVERLAP_NONE)
    must(hk_overlap_judge(&f->plan, f->iteration_ns, 0, machine, &cost, &mean, &err), &err);
  return cost;
}

/* The cost of the best assignment that fits, leaves the reserve and settles, and the slowest that
 * fits. */
static bool enumerate(instance *of, hk_ns *fastest, hk_forecast *slowest) {
  const bool reserves = of->plan.overlap != HK_OVERLAP_NONE;
  *fastest = INT64_MAX;
  *slowest = (hk_forecast){0};
  for (size_t a = 0; assign(&of->plan, a); a++) {
    hk_forecast f = forecast_of(&of->plan, &of->machine);
    const hk_memory_report *m = &f.result.memory;
    const double share = reserves ? 1 - HK_OVERLAP_RESERVE : 1;
    if (f.feasible && (double)m->peak <= share * (double)m->capacity &&
        f.unsteady_ns <= f.iteration_ns / 1000)
      *fastest = hk_min(*fastest, cost_of(&f, &of->machine));
    if (f.feasible && f.iteration_ns > slowest->iteration_ns) {
      hk_forecast_free(slowest);
      *slowest = f;
    } else {
      hk_forecast_free(&f);
    }
  }
  return *fastest < INT64_MAX;
}

/* Starts from the slowest assignment. Orders, pieces and buffers may make the result faster than
 * all assignments. */
static void find_the_optimum(hk_overlap overlap, int wanted) {
  int found = 0;
  for (uint64_t seed = 1; found < wanted; seed++) {
    instance of = make_instance(seed, overlap);
    hk_error err = {0};
    hk_ns fastest;
    hk_forecast slowest, best;
    hk_search_progress end;
    if (enumerate(&of, &fastest, &slowest) && cost_of(&slowest, &of.machine) > fastest) {
      const hk_search_options options = {.seconds = 1e9, .rounds = MOST_ROUNDS, .seed = seed};
      must(hk_search(&slowest, &of.machine, &options, &best, &end, &err), &err);
      if (!best.feasible || cost_of(&best, &of.machine) > fastest)
        fail_msg("%s, seed %d: %lld ns, an assignment has %lld", hk_overlap_names[overlap],
                 (int)seed, (long long)best.iteration_ns, (long long)fastest);
      assert_int_equal(best.iteration_ns, end.iteration_ns);
      hk_forecast_free(&best);
      found++;
    }
    hk_forecast_free(&slowest);
    hk_plan_free(&of.plan);
  }
}

static void finds_the_optimum(void **state) {
  (void)state;
  find_the_optimum(HK_OVERLAP_NONE, is_full_release() ? 30 : 3);
}

static void finds_the_optimum_with_an_overlap(void **state) {
  (void)state;
  find_the_optimum(HK_OVERLAP_FORWARD, is_full_release() ? 15 : 1);
  find_the_optimum(HK_OVERLAP_BOTH, is_full_release() ? 15 : 1);
}

static void same_with_threads(hk_overlap overlap) {
  instance of = make_instance(3, overlap);
  hk_forecast start = forecast_of(&of.plan, &of.machine), found[2];
  const int threads[] = {1, 3}, before = omp_get_max_threads();
  assert_true(start.feasible);
  for (int i = 0; i < 2; i++) {
    hk_error err = {0};
    hk_search_progress end;
    const hk_search_options options = {.seconds = 1e9, .rounds = 100, .seed = 5};
    omp_set_num_threads(threads[i]);
    must(hk_search(&start, &of.machine, &options, &found[i], &end, &err), &err);
    assert_true(found[i].feasible && end.evaluated <= 100 * 4);
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

static void any_number_of_threads(void **state) {
  (void)state;
  same_with_threads(HK_OVERLAP_NONE);
  same_with_threads(HK_OVERLAP_BOTH);
}

/* The text of what is found from a start that stages a subgroup. */
static char *text_of_found(int64_t rounds, uint64_t seed) {
  instance of = make_instance(13, HK_OVERLAP_NONE);
  hk_error err = {0};
  hk_search_progress end;
  for (size_t s = 1; s < of.plan.n_subgroups; s += 2) of.plan.subgroups[s].route = HK_ROUTE_STAGED;
  hk_forecast start = forecast_of(&of.plan, &of.machine), found;
  const hk_search_options options = {.seconds = 1e9, .rounds = rounds, .seed = seed};
  must(hk_search(&start, &of.machine, &options, &found, &end, &err), &err);
  assert_true(found.feasible && found.iteration_ns < start.iteration_ns);
  cJSON *json = hk_plan_to_json(&found.plan);
  char *text = cJSON_Print(json);
  cJSON_Delete(json);
  hk_forecast_free(&found);
  hk_forecast_free(&start);
  hk_plan_free(&of.plan);
  return text;
}

/* The first rounds turn knobs and do not depend on the seed; random changes follow. */
static void knobs_before_chance(void **state) {
  (void)state;
  for (int64_t rounds = 8; rounds <= 200; rounds += 192) {
    char *one = text_of_found(rounds, 7), *other = text_of_found(rounds, 8);
    assert_int_equal(strcmp(one, other) == 0, rounds == 8);
    free(one);
    free(other);
  }
}

/* Muon has no update on the CPU, so such plans are refused by their check. */
static void found_plans_pass_their_check(void **state) {
  (void)state;
  const hk_bytes none = 0;
  for (uint64_t seed = 1; seed <= 8; seed++) {
    instance of = make_instance(seed, HK_OVERLAP_NONE);
    hk_error err = {0};
    hk_search_progress end;
    hk_forecast found;
    of.plan.optimizer = HK_OPTIMIZER_MUON;
    of.machine.h2d.value = of.machine.d2h.value = 1e8; /* so the CPU is the fastest */
    for (size_t s = 0; s < of.plan.n_subgroups; s++) of.plan.subgroups[s].route = HK_ROUTE_STAGED;
    hk_forecast start = forecast_of(&of.plan, &of.machine);
    const hk_search_options options = {
        .seconds = 1e9, .rounds = 40, .seed = seed, .gpu_memory = &none};
    if (start.feasible) {
      must(hk_search(&start, &of.machine, &options, &found, &end, &err), &err);
      if (found.plan.subgroups != NULL) must(hk_plan_check(&found.plan, &err), &err);
      hk_forecast_free(&found);
    }
    hk_forecast_free(&start);
    hk_plan_free(&of.plan);
  }
}

static hk_bytes on_gpu(const hk_plan *plan) {
  return hk_state_bytes(plan->optimizer, hk_plan_on_route(plan, HK_ROUTE_RESIDENT));
}

/* A stopped search ends with the round that runs. */
static void stops(void **state) {
  (void)state;
  instance of = make_instance(3, HK_OVERLAP_NONE);
  hk_error err = {0};
  hk_search_progress end;
  hk_forecast start = forecast_of(&of.plan, &of.machine), found;
  for (sig_atomic_t stop = 0; stop < 2; stop++) {
    const hk_search_options options = {.seconds = 1e9, .rounds = 5, .seed = 5, .stop = &stop};
    must(hk_search(&start, &of.machine, &options, &found, &end, &err), &err);
    assert_true(stop ? end.evaluated <= 4 : end.evaluated > 4);
    hk_forecast_free(&found);
  }
  hk_forecast_free(&start);
  hk_plan_free(&of.plan);
}

/* State on the GPU up to the limit, although more fits and is faster. */
static void keeps_the_limit(void **state) {
  (void)state;
  instance of = make_instance(4, HK_OVERLAP_NONE);
  hk_error err = {0};
  hk_search_progress end;
  of.machine.gpu_memory.value *= 10;
  hk_forecast start = forecast_of(&of.plan, &of.machine), found;
  const hk_bytes all =
      hk_state_bytes(start.plan.optimizer, hk_plan_on_route(&start.plan, HK_ROUTE_CPU));
  for (int share = 0; share <= 4; share++) {
    const hk_bytes limit = all * share / 4;
    const hk_search_options options = {.seconds = 1e9, .rounds = 120, .gpu_memory = &limit};
    must(hk_search(&start, &of.machine, &options, &found, &end, &err), &err);
    assert_true(on_gpu(&found.plan) <= limit);
    if (share == 4) assert_true(on_gpu(&found.plan) == all);
    hk_forecast_free(&found);
  }
  hk_forecast_free(&start);
  hk_plan_free(&of.plan);
}

/* With an overlap: state, gradients and early weights up to the limit, or all of GPU memory but the
 * reserve, although plans that take more fit and are faster. */
static void keeps_the_limits_of_an_overlap(void **state) {
  (void)state;
  instance of = make_instance(4, HK_OVERLAP_BOTH);
  hk_error err = {0};
  hk_search_progress end;
  of.machine.gpu_memory.value = 1e12;
  hk_forecast start = forecast_of(&of.plan, &of.machine), found;
  const hk_bytes all = 14 * hk_plan_on_route(&of.plan, HK_ROUTE_CPU);
  for (int share = 1; share <= 9; share++) {
    const hk_bytes limit = all * share / 10;
    const double capacity = (double)(start.result.memory.peak + limit);
    hk_search_options options = {.seconds = 1e9, .rounds = 100, .gpu_memory = &limit};
    must(hk_search(&start, &of.machine, &options, &found, &end, &err), &err);
    assert_true(found.feasible && hk_plan_gpu_kept(&found.plan) <= limit);
    hk_forecast_free(&found);
    options.gpu_memory = NULL;
    hk_machine small = of.machine;
    small.gpu_memory.value = capacity;
    hk_forecast tight = forecast_of(&of.plan, &small);
    assert_true(tight.feasible);
    must(hk_search(&tight, &small, &options, &found, &end, &err), &err);
    hk_forecast_free(&tight);
    assert_true(found.feasible);
    assert_true((double)found.result.memory.peak <= (1 - HK_OVERLAP_RESERVE) * capacity);
    hk_forecast_free(&found);
  }
  hk_forecast_free(&start);
  hk_plan_free(&of.plan);
}

/* -- Forecasts that are no answer -------------------------------------------------------------- */

/* Blocks on route staged between a first and a last resident one. Copies out, at 23.5 GB/s,
 * take a little longer than the rest of an iteration, so they pile up, and nothing waits for them
 * in 64 iterations. */
static hk_forecast piling(instance *of) {
  *of = make_instance(12, HK_OVERLAP_BOTH);
  for (size_t s = 0; s < of->plan.n_subgroups; s++) {
    const bool edge = s == 0 || s + 1 == of->plan.n_subgroups;
    of->plan.subgroups[s].route = edge ? HK_ROUTE_RESIDENT : HK_ROUTE_STAGED;
    of->plan.subgroups[s].ahead = false;
  }
  of->plan.piece_numel = 56214;
  of->machine.h2d.value = 23890012621.5;
  of->machine.d2h.value = 23501925577.2;
  return forecast_of(&of->plan, &of->machine);
}

/* The iteration is then that of the copies, and unsteady by so much that no search takes it. */
static void work_that_piles_up(void **state) {
  (void)state;
  instance of;
  hk_forecast f = piling(&of);
  assert_true(f.feasible && !f.settled);
  assert_string_equal(f.period_bound.binding, "lane d2h");
  assert_true(f.iteration_ns >= f.period_bound.period_ns);
  assert_true((double)f.iteration_ns < 1.001 * (double)f.period_bound.period_ns);
  assert_true(f.unsteady_ns > f.iteration_ns / 1000);
  assert_int_equal(f.forward_ns + f.exposed_update_ns + f.backward_ns, f.iteration_ns);
  for (uint64_t seed = 0; seed < 20; seed++) {
    hk_error err = {0};
    hk_search_progress end;
    hk_forecast found;
    const hk_search_options options = {.seconds = 1e9, .rounds = 3, .seed = seed};
    must(hk_search(&f, &of.machine, &options, &found, &end, &err), &err);
    assert_true(found.unsteady_ns <= found.iteration_ns / 1000);
    hk_forecast_free(&found);
  }
  hk_forecast_free(&f);
  hk_plan_free(&of.plan);
}

/* Teams that are not bound to cores, with dram.unbound = 100, are faster than the physical bound.
 */
static void a_broken_invariant_ends_it(void **state) {
  (void)state;
  instance of = make_instance(4, HK_OVERLAP_NONE);
  hk_error err = {0};
  hk_search_progress end;
  of.plan.cores_bound = false;
  of.machine.dram.value = of.machine.dram_with_dma.value = 1e9;
  of.machine.gpu_hbm.value = of.machine.mapped.value = 1e6; /* so the CPU is the fastest */
  hk_forecast start = forecast_of(&of.plan, &of.machine), found;
  const hk_search_options options = {.seconds = 1e9, .rounds = 10};
  of.machine.dram_unbound.value = 100;
  assert_int_equal(hk_search(&start, &of.machine, &options, &found, &end, &err), HK_NO);
  if (strstr(err.message, "invariant broken: the update takes ") == NULL)
    fail_msg("said '%s'", err.message);
  assert_null(found.plan.subgroups);
  hk_forecast_free(&start);
  hk_plan_free(&of.plan);
}

/* -- What `plan` finds by itself --------------------------------------------------------------- */

typedef struct {
  const char *machine, *model;
  double memory; /* factor of GPU memory */
  hk_overlap overlap;
} question;

/* What `plan` ranks first. *m is freed by the caller. */
static hk_ranking planned(const question *q, hk_machine *m) {
  hk_error err = {0};
  hk_model model;
  hk_ranking ranking;
  must(hk_machine_load(q->machine, m, &err), &err);
  must(hk_model_load(q->model, &model, &err), &err);
  m->gpu_memory.value *= q->memory;
  const hk_job job = {.gpus = (int)m->gpus.value,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 2048,
                      .checkpoint_activations = true};
  const hk_plan_settings settings = {.overlap = q->overlap};
  const hk_ranking_options all = {.fixed = HK_POLICY_OPTIONS_NONE};
  must(hk_rank(&model, m, &job, &settings, &all, &ranking, &err), &err);
  assert_true(ranking.n_fit > 0);
  must(hk_plan_check(&ranking.forecasts[0].plan, &err), &err);
  hk_model_free(&model);
  return ranking;
}

/* By how much a search of so many simulated operations is better. */
static double gap_of(const question *q, double operations, uint64_t seed) {
  hk_error err = {0};
  hk_machine m;
  hk_forecast found;
  hk_search_progress end;
  const hk_search_options options = {.seconds = 1e9, .operations = operations, .seed = seed};
  hk_ranking ranking = planned(q, &m);
  const hk_forecast *best = &ranking.forecasts[0];
  must(hk_search(best, &m, &options, &found, &end, &err), &err);
  const double gap =
      found.feasible ? 1 - (double)found.iteration_ns / (double)best->iteration_ns : 0;
  hk_forecast_free(&found);
  hk_ranking_free(&ranking);
  hk_machine_free(&m);
  return gap;
}

/* Before `plan` searched, the gaps were 2.2, 2.1, 3.5, 3.2 and 6 %; with a shorter search those of
 * the last two 1.4 and 1.6 %. */
static void plan_is_within_1_percent_of_a_search(void **state) {
  (void)state;
  static const question list[] = {
      {"h200-16c", "llama-2-7b", 0.7, HK_OVERLAP_NONE},
      {"h200-16c", "qwen2.5-14b", 1, HK_OVERLAP_NONE},
      {"h200-node-4x-64c", "llama-2-13b", 1, HK_OVERLAP_NONE},
      {"polaris-a100-4x40gb", "llama-2-13b", 1, HK_OVERLAP_FORWARD},
      {"h200-16c", "llama-2-13b", 0.7, HK_OVERLAP_FORWARD},
      {"h200-node-16c", "llama-2-13b", 1, HK_OVERLAP_FORWARD},
      {"h200-16c", "qwen2.5-14b", 1, HK_OVERLAP_BOTH},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const double gap = gap_of(&list[i], 3e6, 1 + i);
    print_message("%s, %s: a search gains %.2f %%\n", list[i].machine, list[i].model, 100 * gap);
    assert_true(gap <= 0.01);
  }
}

/* Fewer buffers, smaller pieces and fewer staged subgroups leave memory for two resident ones more:
 * 12.8 % faster than the best plan of a policy. A search that does not make room finds 6.8 %. */
static void plan_makes_room(void **state) {
  (void)state;
  const question q = {"h200-node-16c", "llama-2-13b", 0.7, HK_OVERLAP_FORWARD};
  hk_machine m;
  const hk_policy *policy;
  hk_ranking ranking = planned(&q, &m);
  const hk_forecast *best = &ranking.forecasts[0], *named = hk_ranking_named(&ranking, &policy);
  assert_true((double)best->iteration_ns < 0.9 * (double)named->iteration_ns);
  assert_true(hk_plan_count(&best->plan, HK_ROUTE_RESIDENT) >
              hk_plan_count(&named->plan, HK_ROUTE_RESIDENT));
  hk_ranking_free(&ranking);
  hk_machine_free(&m);
}

/* Other buffers and pieces gain 0.15 %. The search ends with those of the policy. */
static void takes_back_what_gains_little(void **state) {
  (void)state;
  const question q = {"h200-16c", "llama-2-7b", 0.7, HK_OVERLAP_NONE};
  hk_error err = {0};
  hk_machine m;
  hk_forecast found;
  hk_search_progress end;
  const hk_search_options options = {.seconds = 1e9, .operations = 3e6, .seed = 1};
  hk_ranking ranking = planned(&q, &m);
  const hk_policy *policy;
  const hk_forecast *named = hk_ranking_named(&ranking, &policy);
  must(hk_search(named, &m, &options, &found, &end, &err), &err);
  assert_true(found.feasible);
  assert_int_equal(found.iteration_ns, end.iteration_ns);
  for (size_t i = 0; i < found.plan.n_subgroups; i++)
    assert_int_equal(found.plan.order[i], named->plan.order[i]);
  assert_int_equal(found.plan.buffers, named->plan.buffers);
  assert_int_equal(found.plan.piece_numel, named->plan.piece_numel);
  hk_forecast_free(&found);
  hk_ranking_free(&ranking);
  hk_machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {

      cmocka_unit_test(finds_the_optimum),
      cmocka_unit_test(finds_the_optimum_with_an_overlap),
      cmocka_unit_test(any_number_of_threads),
      cmocka_unit_test(knobs_before_chance),
      cmocka_unit_test(takes_back_what_gains_little),
      cmocka_unit_test(found_plans_pass_their_check),
      cmocka_unit_test(stops),
      cmocka_unit_test(keeps_the_limit),
      cmocka_unit_test(keeps_the_limits_of_an_overlap),
      cmocka_unit_test(work_that_piles_up),
      cmocka_unit_test(a_broken_invariant_ends_it),
      cmocka_unit_test(plan_is_within_1_percent_of_a_search),
      cmocka_unit_test(plan_makes_room),
  };
  omp_set_num_threads(1); /* simulations as short as these are slower with several */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
