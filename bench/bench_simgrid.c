/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The speed of the simulator relative to SimGrid on the same task graphs (tests/simgrid_referee.h).
 * Both run in one process in turns. Times are processor times, medians of REPETITIONS turns after
 * one that is not counted. hocket's time is all of hk_simulate, with set-up and report. SimGrid's
 * time is Engine::run alone for the first ratio; for the second it includes the creation of its
 * activities, which are made for every run as hk_simulate links its operations, and of its
 * platform. Prints a Markdown table, then the least ratios. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/simgrid_referee.h"

#define REPETITIONS 21

static const struct {
  const char *model, *machine;
  const hk_policy *policy;
  hk_policy_options options;
  hk_runtime runtime;
  int gpus;
  bool folded;
} cases[] = {
    {"llama-2-7b", "h200-16c", &hk_policy_streamed, {.ratio = -1}, HK_RUNTIME_HOCKET, 1, true},
    {"llama-2-13b",
     "polaris-a100-4x40gb",
     &hk_policy_zero_offload,
     {.ratio = -1},
     HK_RUNTIME_DEEPSPEED,
     4,
     true},
    {"dos-20b",
     "jlse-h100-4x80gb",
     &hk_policy_interleave,
     {.stride = 2, .ratio = -1},
     HK_RUNTIME_DEEPSPEED,
     4,
     true},
    {"llama-3-70b",
     "dgx-h100-8x80gb",
     &hk_policy_interleave,
     {.stride = 2, .ratio = -1},
     HK_RUNTIME_HOCKET,
     8,
     true},
    {"llama-2-13b",
     "polaris-a100-4x40gb",
     &hk_policy_interleave,
     {.stride = 2, .ratio = -1},
     HK_RUNTIME_HOCKET,
     4,
     false},
};

static void must(hk_status status, const hk_error *err) {
  if (status == HK_OK) return;
  fprintf(stderr, "bench_simgrid: %s\n", err->message);
  exit(status);
}

static hk_comparison compare(size_t i) {
  hk_error err = {0};
  hk_model model = {0};
  hk_machine machine = {0};
  hk_plan plan = {0};
  hk_graph graph = {0};
  hk_comparison c = {0};
  const hk_job job = {.gpus = cases[i].gpus,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 2048,
                      .checkpoint_activations = true};
  const hk_plan_settings settings = {.subgroup_numel = 100000000};
  const hk_candidate candidate = {cases[i].policy, cases[i].options, cases[i].runtime};
  must(hk_model_load(cases[i].model, &model, &err), &err);
  must(hk_machine_load(cases[i].machine, &machine, &err), &err);
  hk_referee_leave_out(&machine);
  must(hk_candidate_plan(&candidate, &model, &machine, &job, &settings, &plan, &err), &err);
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = cases[i].folded}, &graph, &err),
       &err);
  must(hk_referee_compare(&graph, &machine, REPETITIONS + 1, &c, &err), &err);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  hk_machine_free(&machine);
  hk_model_free(&model);
  return c;
}

int main(void) {
  double least_run = INFINITY, least_all = INFINITY;
  printf(
      "| graph | operations | makespan differs | hocket ms | SimGrid run ms | with activities "
      "| platform ms | run : hocket | all : hocket |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const hk_comparison c = compare(i);
    const double run = c.simgrid_run_ms / c.hocket_ms;
    const double all = (c.simgrid_ms + c.platform_ms) / c.hocket_ms;
    printf("| %s, %s, %s, %s | %lld | %.1g %% | %.3f | %.2f | %.2f | %.2f | %.0f | %.0f |\n",
           cases[i].model, cases[i].policy->name, hk_runtime_name(cases[i].runtime),
           cases[i].folded ? "folded" : "all ranks", (long long)c.operations,
           100 * fabs(c.simgrid_s - c.hocket_s) / c.hocket_s, c.hocket_ms, c.simgrid_run_ms,
           c.simgrid_ms, c.platform_ms, run, all);
    least_run = fmin(least_run, run);
    least_all = fmin(least_all, all);
  }
  printf(
      "\nhocket is at least %.0f times as fast as SimGrid's run alone, %.0f times with all that\n"
      "SimGrid needs for one (target: 20).\n",
      least_run, least_all);
  return 0;
}
