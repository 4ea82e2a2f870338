/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Which plans let the GPU take pieces from the CPU, the operations for that, and their memory. */
#include "core/graph/bytes.h"
#include "core/machine/team.h"
#include "sim/ahead.h"
#include "sim/rank.h"
#include "tests/fixture_blocks.h"

enum { BLOCKS = 12 };

/* Twelve subgroups, the first staged, the others on the CPU; with overlap both all of these run
 * ahead. */
static hk_plan planned(hk_overlap overlap) {
  hk_error err = {0};
  hk_machine machine = ideal_machine();
  hk_plan plan;
  hk_model model = equal_blocks(BLOCKS, 100000000, 10, 25);
  const hk_plan_settings settings = {.overlap = overlap};
  const hk_candidate all_cpu = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&all_cpu, &model, &machine, &ONE_RANK, &settings, &plan, &err), &err);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = s == 0 ? HK_ROUTE_STAGED : HK_ROUTE_CPU;
    plan.subgroups[s].ahead = overlap == HK_OVERLAP_BOTH && s > 0;
  }
  hk_model_free(&model);
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static void plans_with_staging_buffers_steal(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_BOTH);
  assert_true(hk_plan_steals(&plan));
  assert_false(hk_plan_stealable(&plan, 0)); /* staged by plan */
  assert_true(hk_plan_stealable(&plan, 1));
  plan.subgroups[2].held_staged = true;
  assert_false(hk_plan_stealable(&plan, 2));
  plan.clip = HK_CLIP_BLOCK;
  assert_false(hk_plan_stealable(&plan, 1));
  plan.subgroups[1].ahead = false;
  assert_true(hk_plan_stealable(&plan, 1));
  plan.runtime = HK_RUNTIME_DEEPSPEED;
  assert_false(hk_plan_steals(&plan));
  plan.runtime = HK_RUNTIME_HOCKET;
  plan.subgroups[0].route = HK_ROUTE_CPU;
  assert_false(hk_plan_steals(&plan));
  hk_plan_free(&plan);
  plan = planned(HK_OVERLAP_NONE);
  assert_false(hk_plan_steals(&plan));
  hk_plan_free(&plan);
}

static hk_bytes gpu_bytes(const hk_plan *plan) {
  hk_error err = {0};
  hk_graph g;
  must(hk_graph_build(plan, (hk_expand){HK_EXPAND_ENGINE, .folded = true}, &g, &err), &err);
  const hk_bytes bytes = g.gpu_base;
  hk_graph_free(&g);
  return bytes;
}

/* A plan that stages nothing steals if it has staging buffers for that. */
static void buffers_of_its_own_let_a_plan_steal(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = planned(HK_OVERLAP_BOTH), again;
  plan.subgroups[0].route = HK_ROUTE_CPU;
  const hk_bytes without = gpu_bytes(&plan), kept = hk_plan_gpu_kept(&plan);
  plan.steals = true;
  assert_true(hk_plan_steals(&plan));
  assert_int_equal(gpu_bytes(&plan) - without,
                   plan.buffers * (HK_BYTES_STATE + HK_BYTES_BF16) * plan.piece_numel);
  assert_int_equal(hk_plan_gpu_kept(&plan), kept); /* staging buffers come on top of a limit */

  cJSON *document = hk_plan_to_json(&plan);
  must(hk_plan_from_json(document, &again, &err), &err);
  assert_true(again.steals);
  hk_plan_free(&again);
  cJSON_Delete(document);

  hk_plan_set_overlap(&plan, HK_OVERLAP_FORWARD);
  assert_true(plan.steals);
  plan.overlap = HK_OVERLAP_NONE;
  assert_int_equal(hk_plan_check(&plan, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "staging.steals: needs runtime hocket and an overlap"));
  hk_plan_set_overlap(&plan, HK_OVERLAP_NONE);
  must(hk_plan_check(&plan, &err), &err);
  document = hk_plan_to_json(&plan);
  assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(document, "staging"), "steals"));
  cJSON_Delete(document);
  hk_plan_free(&plan);
}

/* Parameters that operations of `kind` have in a graph, with and without those of stolen pieces. */
static void count(const hk_plan *plan, unsigned phases, hk_op_kind kind, int64_t *planned_work,
                  int64_t *stolen_work) {
  hk_error err = {0};
  hk_graph g;
  must(hk_graph_build(plan, (hk_expand){phases, .folded = true}, &g, &err), &err);
  *planned_work = *stolen_work = 0;
  for (size_t i = 0; i < g.n_ops; i++) {
    /* Gradients have left the GPU for the host, so that updates there free none. */
    if (g.ops[i].when == HK_WHEN_STOLEN) assert_int_equal(g.ops[i].gpu_free, 0);
    if (g.ops[i].kind != kind) continue;
    *(g.ops[i].when == HK_WHEN_STOLEN ? stolen_work : planned_work) += g.ops[i].work;
  }
  hk_graph_free(&g);
}

/* The simulated graph has what is planned, the engine's what may happen. */
static void only_the_engine_has_stolen_pieces(void **state) {
  (void)state;
  for (int overlap = HK_OVERLAP_FORWARD; overlap <= HK_OVERLAP_BOTH; overlap++) {
    hk_plan plan = planned((hk_overlap)overlap);
    const int64_t n = hk_plan_on_route(&plan, HK_ROUTE_CPU);
    const int64_t staged = hk_plan_on_route(&plan, HK_ROUTE_STAGED);
    int64_t usual = 0, stolen = 0;
    count(&plan, HK_EXPAND_ALL, HK_OP_ADAMW_GPU, &usual, &stolen);
    assert_int_equal(usual, staged);
    assert_int_equal(stolen, 0);
    count(&plan, HK_EXPAND_ENGINE, HK_OP_ADAMW_CPU, &usual, &stolen);
    assert_int_equal(usual, n);
    assert_int_equal(stolen, 0);
    count(&plan, HK_EXPAND_ENGINE, HK_OP_ADAMW_GPU, &usual, &stolen);
    assert_int_equal(usual, staged);
    assert_int_equal(stolen, n);
    count(&plan, HK_EXPAND_ENGINE, HK_OP_STATE_H2D, &usual, &stolen);
    assert_int_equal(usual, HK_BYTES_STATE * staged);
    assert_int_equal(stolen, (HK_BYTES_STATE + HK_BYTES_BF16) * n); /* with gradients */
    count(&plan, HK_EXPAND_ENGINE, HK_OP_STATE_D2H, &usual, &stolen);
    assert_int_equal(stolen, HK_BYTES_STATE * n);
    hk_plan_free(&plan);
  }
}

/* Copies of stolen pieces do not make the team lend a thread: the simulator does not know them. */
static void both_graphs_have_the_same_team(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_FORWARD);
  plan.piece_numel = 1000000; /* 100 planned copies to the GPU, 1100 that may be stolen */
  hk_error err = {0};
  hk_graph simulated, engine;
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &simulated, &err), &err);
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ENGINE, .folded = true}, &engine, &err), &err);
  assert_int_equal(hk_team_size(&simulated, 16, 16), 16);
  assert_int_equal(hk_team_size(&engine, 16, 16), 16);
  hk_graph_free(&simulated);
  hk_graph_free(&engine);
  hk_plan_free(&plan);
}

/* Staging buffers then have room for the gradients of a piece. Under clipping by block nothing that
 * runs ahead is stolen. */
static void staging_buffers_have_room_for_gradients(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_BOTH);
  const hk_bytes steals = gpu_bytes(&plan);
  plan.clip = HK_CLIP_BLOCK;
  assert_int_equal(steals - gpu_bytes(&plan), plan.buffers * HK_BYTES_BF16 * plan.piece_numel);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_with_staging_buffers_steal),
      cmocka_unit_test(buffers_of_its_own_let_a_plan_steal),
      cmocka_unit_test(only_the_engine_has_stolen_pieces),
      cmocka_unit_test(both_graphs_have_the_same_team),
      cmocka_unit_test(staging_buffers_have_room_for_gradients),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
