/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by tests of the task graph: small plans of any policy, and their graphs. */
#ifndef HK_TESTS_FIXTURE_GRAPH_H
#define HK_TESTS_FIXTURE_GRAPH_H

#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/fixture.h"

#define LAYERS 3            /* of the model in every plan here */
#define BLOCKS (LAYERS + 2) /* with embedding and head */

/* Parameters of the blocks of tiny_model(LAYERS): vocabulary matrices of 256 x 64; in each layer q,
 * k, v and o of 64 x 64, gate and up of 64 x 128, down of 128 x 64, two norms; one norm in the
 * head. */
#define EMBEDDING (256 * 64)
#define LAYER     (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
#define HEAD      (256 * 64 + 64)
#define ALL       (EMBEDDING + LAYERS * LAYER + HEAD)

static const hk_job ALONE = {
    .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 64};

/* Subgroups of 5,000 parameters in pieces of 2,000. Under DeepSpeed subgroups have at least 5,000
 * and are not divided into pieces. */
static inline hk_plan planned(const hk_policy *policy, hk_policy_options options,
                              hk_runtime runtime, const hk_job *job, hk_flush flush) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(LAYERS);
  hk_machine machine = ideal_machine();
  const hk_candidate candidate = {policy, options, runtime};
  const hk_plan_settings settings = {.subgroup_numel = 5000, .piece_numel = 2000, .flush = &flush};
  must(hk_candidate_plan(&candidate, &model, &machine, job, &settings, &plan, &err), &err);
  hk_model_free(&model);
  return plan;
}

static inline hk_graph built(const hk_plan *plan, unsigned phases, bool folded) {
  hk_error err = {0};
  hk_graph graph;
  must(hk_graph_build(plan, (hk_expand){phases, .folded = folded}, &graph, &err), &err);
  return graph;
}

/* The graph takes `expected` ns, or up to `more` ns longer. */
static inline void assert_makespan(const hk_graph *graph, const hk_machine *machine, hk_ns expected,
                                   hk_ns more) {
  hk_error err = {0};
  hk_result result;
  must(hk_simulate(graph, machine, NULL, &result, &err), &err);
  assert_in_range(result.timeline.makespan, expected, expected + more);
  hk_result_free(&result);
}

#endif
