/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The first row of a ranking against a grid by hand: interleave with every ratio in steps of 0.02
 * and strides 1 to 5, each simulated as `simulate` does. The ranking's best is at most 1 % slower,
 * on measured machines, with ample and with scarce memory, with and without an overlap. */
#include "tests/fixture.h"

#include <stdio.h>

#include "core/machine/machine_set.h"
#include "sim/rank.h"

#define STRIDES 5
#define RATIOS  50 /* 0.02 to 1 */

typedef struct {
  const char *model, *machine, *memory; /* memory: --set */
  hk_overlap overlap;
  int nodes;
} place;

/* The time of one plan of the grid; INT64_MAX: it does not fit. */
static hk_ns time_of(const hk_model *model, const hk_machine *machine, const hk_job *job,
                     const hk_plan_settings *settings, int point) {
  hk_candidate candidate = {&hk_policy_interleave, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  hk_error err = {0};
  hk_plan plan;
  hk_forecast f;
  candidate.options.stride = 1 + point / RATIOS;
  candidate.options.ratio = (1 + point % RATIOS) / (double)RATIOS;
  if (hk_candidate_plan(&candidate, model, machine, job, settings, &plan, &err) != HK_OK ||
      hk_forecast_make(&plan, machine, NULL, &f, &err) != HK_OK)
    return -1;
  const hk_ns time = f.feasible ? f.iteration_ns : INT64_MAX;
  hk_forecast_free(&f);
  return time;
}

static void compare_at(const place *p) {
  hk_error err = {0};
  hk_machine machine;
  hk_model model;
  hk_ranking ranking;
  const hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
  const hk_plan_settings settings = {.overlap = p->overlap};
  hk_ns times[STRIDES * RATIOS];
  must(hk_machine_load(p->machine, &machine, &err), &err);
  /* Host memory for 70 G parameters on four GPUs. */
  const char *const set[] = {p->memory, "node.memory=2000G"};
  must(hk_machine_set(&machine, set, sizeof set / sizeof *set, &err), &err);
  must(hk_model_load(p->model, &model, &err), &err);
  const hk_job job = {.gpus = (int)machine.gpus.value,
                      .nodes = p->nodes,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 2048,
                      .checkpoint_activations = true};
  must(hk_rank(&model, &machine, &job, &settings, &options, &ranking, &err), &err);
  const hk_ns plan = ranking.n_fit > 0 ? ranking.forecasts[0].iteration_ns : INT64_MAX;
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < STRIDES * RATIOS; i++)
    times[i] = time_of(&model, &machine, &job, &settings, i);
  int best = 0;
  for (int i = 0; i < STRIDES * RATIOS; i++) {
    assert_true(times[i] >= 0);
    if (times[i] < times[best]) best = i;
  }
  char title[96] = "-";
  if (ranking.n_fit > 0) hk_forecast_title(&ranking.forecasts[0], title, sizeof title);
  print_message("%s on %s %s, overlap %d: %.1f ms (%s), by hand %.1f (k=%d r=%.2f): %+.2f %%\n",
                p->model, p->machine, p->memory, (int)p->overlap,
                plan < INT64_MAX ? (double)plan / 1e6 : 0, title,
                times[best] < INT64_MAX ? (double)times[best] / 1e6 : 0, 1 + best / RATIOS,
                (1 + best % RATIOS) / (double)RATIOS,
                plan < INT64_MAX ? 100 * ((double)plan / (double)times[best] - 1) : 0);
  if (times[best] < INT64_MAX && (double)plan > 1.01 * (double)times[best])
    fail_msg("the grid by hand is faster");
  hk_ranking_free(&ranking);
  hk_model_free(&model);
  hk_machine_free(&machine);
}

static void compare_all(const char *machine, const char *scarce, hk_overlap overlap) {
  static const char *const models[] = {"llama-2-7b", "llama-2-13b", "qwen2.5-32b", "llama-2-70b"};
  for (int m = 0; m < 4; m++) {
    compare_at(&(place){models[m], machine, "gpu.memory*=1", overlap, 1});
    compare_at(&(place){models[m], machine, scarce, overlap, 1});
  }
}

static void compare_everywhere(hk_overlap overlap) {
  compare_all("polaris-a100-4x40gb", "gpu.memory=30G", overlap);
  compare_all("jlse-h100-4x80gb", "gpu.memory=40G", overlap);
  compare_all("h200-node-4x-64c", "gpu.memory=60G", overlap);
}

static void no_ratio_by_hand_is_faster(void **state) {
  (void)state;
  const char *const ample = "gpu.memory*=1";
  compare_at(&(place){"llama-2-13b", "polaris-a100-4x40gb", ample, HK_OVERLAP_NONE, 1});
  compare_at(&(place){"qwen2.5-32b", "jlse-h100-4x80gb", ample, HK_OVERLAP_NONE, 1});
  if (!is_full_release()) return; /* it takes minutes */
  compare_everywhere(HK_OVERLAP_NONE);
  compare_at(&(place){"qwen2.5-32b", "aws-g6e.48xlarge", ample, HK_OVERLAP_NONE, 1});
  compare_at(&(place){"llama-2-70b", "dgx-h100-8x80gb", ample, HK_OVERLAP_NONE, 1});
  compare_at(&(place){"qwen3-235b-a22b", "hgx-h200-8x141gb", ample, HK_OVERLAP_NONE, 2});
}

static void no_ratio_by_hand_is_faster_with_overlap(void **state) {
  (void)state;
  compare_at(&(place){"qwen2.5-32b", "jlse-h100-4x80gb", "gpu.memory=40G", HK_OVERLAP_BOTH, 1});
  if (is_full_release()) compare_everywhere(HK_OVERLAP_BOTH);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_ratio_by_hand_is_faster),
      cmocka_unit_test(no_ratio_by_hand_is_faster_with_overlap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
