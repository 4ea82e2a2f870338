/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The simulator's speed, for llama-3-70b on the eight GPUs of a DGX H100 in subgroups of 100 M
 * parameters. Prints a Markdown table: median, least and most of REPETITIONS runs, after one that
 * is not counted. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/sorted.h"
#include "sim/forecast.h"
#include "sim/rank.h"
#include "sim/state.h"

#define REPETITIONS 21
#define SHARE_CALLS 2000
#define MOST_RANKS  16

typedef struct {
  hk_model model;
  hk_machine machine;
  hk_job job;
  hk_plan_settings settings;
  hk_plan plan;
  hk_graph folded, unfolded;
} setting;

static void must(hk_status status, const hk_error *err) {
  if (status == HK_OK) return;
  fprintf(stderr, "bench_sim: %s\n", err->message);
  exit(status);
}

static void set_up(setting *s) {
  hk_error err = {0};
  must(hk_model_load("llama-3-70b", &s->model, &err), &err);
  must(hk_machine_load("dgx-h100-8x80gb", &s->machine, &err), &err);
  s->job = (hk_job){.gpus = 8,
                    .nodes = 1,
                    .tp = 1,
                    .micro_batch = 1,
                    .grad_accum = 1,
                    .seq = 2048,
                    .checkpoint_activations = true};
  s->settings = (hk_plan_settings){.subgroup_numel = 100000000};
  const hk_candidate candidate = {.policy = &hk_policy_interleave,
                                  .options = {.stride = 2, .ratio = -1},
                                  .runtime = HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&candidate, &s->model, &s->machine, &s->job, &s->settings, &s->plan, &err),
       &err);
  must(hk_graph_build(&s->plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &s->folded, &err),
       &err);
  must(hk_graph_build(&s->plan, (hk_expand){HK_EXPAND_ALL}, &s->unfolded, &err), &err);
}

static void tear_down(setting *s) {
  hk_graph_free(&s->folded);
  hk_graph_free(&s->unfolded);
  hk_plan_free(&s->plan);
  hk_machine_free(&s->machine);
  hk_model_free(&s->model);
}

/* -- measured functions: each runs once and returns the number of events, candidates, ... -------
 */

static double build(const setting *s, bool folded) {
  hk_error err = {0};
  hk_graph graph;
  must(hk_graph_build(&s->plan, (hk_expand){HK_EXPAND_ALL, .folded = folded}, &graph, &err), &err);
  const double n = (double)graph.n_ops;
  hk_graph_free(&graph);
  return n;
}

static double simulate(const setting *s, const hk_graph *graph) {
  hk_error err = {0};
  hk_result result;
  must(hk_simulate(graph, &s->machine, NULL, &result, &err), &err);
  const double n = (double)result.events;
  hk_result_free(&result);
  return n;
}

static double build_folded(const setting *s) {
  return build(s, true);
}
static double build_unfolded(const setting *s) {
  return build(s, false);
}
static double simulate_folded(const setting *s) {
  return simulate(s, &s->folded);
}
static double simulate_unfolded(const setting *s) {
  return simulate(s, &s->unfolded);
}

static double rank(const setting *s, int threads) {
  hk_error err = {0};
  hk_ranking ranking;
  const hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
  omp_set_num_threads(threads);
  must(hk_rank(&s->model, &s->machine, &s->job, &s->settings, &options, &ranking, &err), &err);
  const double n = (double)ranking.n;
  hk_ranking_free(&ranking);
  return n;
}

static double rank_on_1(const setting *s) {
  return rank(s, 1);
}
static double rank_on_2(const setting *s) {
  return rank(s, 2);
}

/* An update with all kinds of operations at once: on each rank state in, state out, weights up, GPU
 * and CPU AdamW. */
static double share(const setting *s, int ranks) {
  static const hk_op_kind kinds[] = {HK_OP_STATE_H2D, HK_OP_STATE_D2H, HK_OP_WEIGHT_H2D,
                                     HK_OP_ADAMW_GPU, HK_OP_ADAMW_CPU};
  enum { KINDS = sizeof kinds / sizeof kinds[0], MOST = MOST_RANKS * KINDS };
  static hk_activity activities[MOST];
  static hk_activity *pointers[MOST];
  static hk_share_use uses[MOST][HK_DEMAND_USES];
  static int32_t open[MOST];
  static double capacity[MOST_RANKS * HK_RES_COUNT], used[MOST_RANKS * HK_RES_COUNT],
      growth[2 * MOST_RANKS * HK_RES_COUNT];
  for (int i = 0; i < ranks * KINDS; i++) {
    const hk_op op = {.kind = kinds[i % KINDS], .threads = 14};
    const hk_demand d = hk_demand_of(&s->unfolded, &op, &s->machine);
    for (int u = 0; u < d.n_uses; u++) {
      uses[i][u] = (hk_share_use){hk_slot(i / KINDS, d.uses[u].resource), d.uses[u].per_unit};
    }
    activities[i] =
        (hk_activity){.cap = d.cap, .weight = d.weight, .uses = uses[i], .n_uses = d.n_uses};
    pointers[i] = &activities[i];
  }
  for (int i = 0; i < ranks * HK_RES_COUNT; i++) {
    capacity[i] = hk_resource_capacity(&s->machine, (hk_resource)(i % HK_RES_COUNT), true);
  }
  for (int i = 0; i < SHARE_CALLS; i++) {
    hk_share(pointers, ranks * KINDS, capacity, ranks * HK_RES_COUNT, used, growth, open);
  }
  return SHARE_CALLS;
}

static double share_5(const setting *s) {
  return share(s, 1);
}
static double share_20(const setting *s) {
  return share(s, 4);
}
static double share_80(const setting *s) {
  return share(s, 16);
}

/* -- measuring --------------------------------------------------------------------------------- */

static const struct {
  const char *what, *each;
  double (*once)(const setting *s);
} benches[] = {
    {"graph, folded", "operation", build_folded},
    {"graph, 8 ranks", "operation", build_unfolded},
    {"one iteration, folded", "event", simulate_folded},
    {"one iteration, 8 ranks", "event", simulate_unfolded},
    {"ranking of all policies, 1 thread", "candidate", rank_on_1},
    {"ranking of all policies, 2 threads", "candidate", rank_on_2},
    {"sharing among 5 activities", "call", share_5},
    {"sharing among 20 activities", "call", share_20},
    {"sharing among 80 activities", "call", share_80},
};

int main(void) {
  setting s = {0};
  set_up(&s);
  printf("| what | median ms | min - max ms | of | a second |\n|---|---:|---:|---:|---:|\n");
  for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++) {
    double ms[REPETITIONS];
    const double n = benches[i].once(&s);
    for (int r = 0; r < REPETITIONS; r++) {
      const hk_ns begin = hk_now();
      benches[i].once(&s);
      ms[r] = hk_ms(hk_now() - begin);
    }
    sort_ascending(ms, REPETITIONS);
    const double median = median_of_sorted(ms, REPETITIONS);
    printf("| %s | %.3f | %.3f - %.3f | %.0f %ss | %.3g |\n", benches[i].what, median, ms[0],
           ms[REPETITIONS - 1], n, benches[i].each, n / median * 1e3);
  }
  tear_down(&s);
  return 0;
}
