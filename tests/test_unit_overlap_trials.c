/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The trials of a search for the best overlap: the best one is that of simulating all, of which
 * most are not simulated. */
#include "sim/overlap_trials.h"

#include <stdio.h>

#include "tests/fixture_blocks.h"
#include "tests/random.h"

#define CASES 60

/* A search's trials, and what they cost. */
typedef struct {
  hk_machine machine;
  hk_model model;
  hk_plan start;
  hk_overlap_trials t;
  hk_ns costs[HK_MOST_TRIALS];
} fixture;

/* What a search adds in its rounds, and more. */
static void add_trials(hk_overlap_trials *t) {
  const int deepest = (int)t->start->n_subgroups - 1;
  hk_error err = {0};
  hk_spec specs[HK_MOST_TRIALS];
  int n = 0;
  for (int i = 0; i <= t->most_resident; i++)
    for (int stride = 0; stride <= 3; stride++)
      for (int first = 0; first < (stride > 1 ? 2 : 1); first++)
        specs[n++] = (hk_spec){.resident = i,
                               .deepest = i % 3 ? deepest : deepest / 2,
                               .stride = stride,
                               .first = first};
  must(hk_trials_add(t, specs, n, &err), &err);
}

static hk_ns cost_of(const hk_plan *trial, const hk_machine *machine) {
  hk_error err = {0};
  hk_plan plan;
  hk_forecast f;
  hk_ns cost = INT64_MAX, mean;
  must(hk_plan_copy(trial, &plan, &err), &err);
  must(hk_forecast_make(&plan, machine, NULL, &f, &err), &err);
  if (f.feasible)
    must(hk_overlap_judge(&f.plan, f.iteration_ns, 0, machine, &cost, &mean, &err), &err);
  hk_forecast_free(&f);
  return cost;
}

/* 12 blocks, on a GPU that may have too little memory for some trials, and is slower beside updates
 * in two of three. */
static void open_trials(fixture *x, uint64_t seed) {
  hk_error err = {0};
  random_stream r = {seed * 7919};
  x->machine = random_node(&r);
  x->machine.gpus.value = 1;
  x->machine.cores.value = 16;
  x->machine.gpu_memory.value = scale(&r, 4e9, 4e10);
  if (seed % 3 != 0) x->machine.compute_beside_update.value = scale(&r, 0.3, 1);
  x->model = equal_blocks(12, 100000000, scale(&r, 1, 100), scale(&r, 2, 200));
  const hk_plan_settings settings = {.overlap = seed % 2 ? HK_OVERLAP_BOTH : HK_OVERLAP_FORWARD};
  const hk_candidate cpu = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&cpu, &x->model, &x->machine, &ONE_RANK, &settings, &x->start, &err),
       &err);
  for (size_t i = 0; i < x->start.n_subgroups; i++) x->start.subgroups[i].ahead = false;
  x->t = (hk_overlap_trials){.machine = &x->machine, .start = &x->start};
  x->t.gpu_limit = 12600000000; /* 9 resident blocks with their gradients */
  x->t.most_resident = pick(&r, 1, 9);
  must(hk_turn_open(&x->start, &x->machine, &x->t.turn, &err), &err);
  add_trials(&x->t);
  for (int i = 0; i < x->t.n; i++) x->costs[i] = cost_of(&x->t.trials[i].plan, &x->machine);
}

static void close_trials(fixture *x) {
  for (int i = 0; i < x->t.n; i++) hk_plan_free(&x->t.trials[i].plan);
  hk_turn_close(&x->t.turn);
  hk_plan_free(&x->start);
  hk_model_free(&x->model);
}

static bool is_of(const hk_trial *trial, hk_kind kind) {
  const hk_spec spec = trial->spec;
  const hk_kind is = spec.stride == 0 ? HK_KIND_CPU : spec.first ? HK_KIND_ALL : HK_KIND_WAITING;
  return kind == HK_KIND_ANY || is == kind;
}

/* Of the trials within 0.5 % of the fastest the first with the least state, then the fastest; -1:
 * none fits. */
static int best_of(const fixture *x, hk_kind kind) {
  hk_ns least = INT64_MAX;
  int best = -1;
  for (int i = 0; i < x->t.n; i++)
    if (is_of(&x->t.trials[i], kind)) least = hk_min(least, x->costs[i]);
  for (int i = 0; i < x->t.n && least < INT64_MAX; i++) {
    const hk_bytes state = x->t.trials[i].gpu_state;
    const hk_bytes least_state = best < 0 ? INT64_MAX : x->t.trials[best].gpu_state;
    if (!is_of(&x->t.trials[i], kind) || x->costs[i] > least + (hk_ns)(0.005 * (double)least))
      continue;
    if (state < least_state || (state == least_state && x->costs[i] < x->costs[best])) best = i;
  }
  return best;
}

static int check_costs(const fixture *x) {
  int known = 0;
  for (int i = 0; i < x->t.n; i++) {
    const hk_trial *trial = &x->t.trials[i];
    assert_true(trial->known ? trial->cost == x->costs[i] : trial->cost <= x->costs[i]);
    known += trial->known;
  }
  return known;
}

static void the_best_is_that_of_all(void **state) {
  static fixture x;
  static const hk_kind kinds[] = {HK_KIND_ANY, HK_KIND_CPU, HK_KIND_ALL, HK_KIND_WAITING};
  int all = 0, known = 0, none = 0;
  (void)state;
  for (uint64_t seed = 1; seed <= CASES; seed++) {
    open_trials(&x, seed);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
      hk_error err = {0};
      const hk_trial *best;
      must(hk_trials_best(&x.t, kinds[k], &best, &err), &err);
      assert_int_equal(best == NULL ? -1 : best - x.t.trials, best_of(&x, kinds[k]));
      const int simulated = check_costs(&x);
      if (k == 0) known += simulated;
      none += best == NULL;
    }
    all += x.t.n;
    close_trials(&x);
  }
  print_message("%d of %d trials are simulated to find the best; %d times none fits\n", known, all,
                none);
  assert_true(9 * known < 4 * all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_best_is_that_of_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
