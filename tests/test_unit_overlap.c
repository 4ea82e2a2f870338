/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans whose update overlaps with computation: documents, refused plans, operations in the graph.
 * A plan without an overlap is written with schema hocket.plan/1 and without the keys "overlap" and
 * "ahead". */
#include <stdio.h>
#include <stdlib.h>

#include "sim/forecast.h"
#include "tests/fixture.h"
#include "traces/timelines.h"

#define LAYERS 3

static const hk_job ALONE = {
    .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 64};

/* tiny_model has blocks of 16,384, three times 41,088, and 16,448 parameters. Subgroups have at
 * most 16,000, and subgroup i has routes[i % n_routes]. */
static hk_plan planned(hk_overlap overlap, const hk_route *routes, size_t n_routes) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(LAYERS);
  must(hk_plan_create(&model, &ALONE, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 16000, &plan, &err),
       &err);
  plan.piece_numel = 3000;
  plan.buffers = 2;
  hk_plan_set_overlap(&plan, overlap);
  for (size_t i = 0; i < plan.n_subgroups; i++) plan.subgroups[i].route = routes[i % n_routes];
  if (overlap == HK_OVERLAP_BOTH)
    for (size_t i = 0; i < plan.n_subgroups; i++)
      plan.subgroups[i].ahead = plan.subgroups[i].route == HK_ROUTE_CPU && i % 2 == 1;
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static const hk_route ALL_CPU[] = {HK_ROUTE_CPU};
static const hk_route MIXED[] = {HK_ROUTE_CPU,    HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT,
                                 HK_ROUTE_MAPPED, HK_ROUTE_CPU, HK_ROUTE_CPU};
#define N(array) (sizeof(array) / sizeof *(array))

static hk_graph built(const hk_plan *plan, unsigned phases) {
  hk_error err = {0};
  hk_graph graph;
  must(hk_graph_build(plan, (hk_expand){phases, .folded = true}, &graph, &err), &err);
  return graph;
}

/* -- Documents -------------------------------------------------------------------------------- */

static hk_plan read_again(const hk_plan *plan, cJSON **document) {
  hk_error err = {0};
  hk_plan again;
  *document = hk_plan_to_json(plan);
  assert_non_null(*document);
  must(hk_plan_from_json(*document, &again, &err), &err);
  return again;
}

static const char *schema_of(const cJSON *document) {
  return cJSON_GetObjectItem(document, "schema")->valuestring;
}

static void documents_keep_the_overlap(void **state) {
  (void)state;
  for (int overlap = 0; overlap < HK_OVERLAP_COUNT; overlap++) {
    hk_plan plan = planned((hk_overlap)overlap, MIXED, N(MIXED));
    cJSON *document = NULL, *same = NULL;
    for (size_t i = 0; i < plan.n_subgroups; i++) plan.subgroups[i].early = plan.subgroups[i].ahead;
    hk_plan again = read_again(&plan, &document);
    assert_int_equal(again.overlap, overlap);
    assert_int_equal(again.subgroup_rule, HK_SUBGROUP_BLOCKS);
    for (size_t i = 0; i < plan.n_subgroups; i++)
      assert_int_equal(again.subgroups[i].ahead, plan.subgroups[i].ahead);
    assert_int_equal(hk_plan_ahead(&again), hk_plan_ahead(&plan));
    assert_true((hk_plan_ahead(&plan) > 0) == (overlap == HK_OVERLAP_BOTH));
    assert_int_equal(hk_plan_early(&again), hk_plan_ahead(&plan));
    hk_plan third = read_again(&again, &same);
    assert_true(cJSON_Compare(document, same, true));
    assert_string_equal(schema_of(document), overlap ? "hocket.plan/2" : "hocket.plan/1");
    assert_true((cJSON_GetObjectItem(document, "overlap") != NULL) == (overlap != 0));
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "subgroups"), 0);
    assert_true((cJSON_GetObjectItem(first, "ahead") != NULL) == (overlap != 0));
    cJSON_Delete(document);
    cJSON_Delete(same);
    hk_plan_free(&plan);
    hk_plan_free(&again);
    hk_plan_free(&third);
  }
}

/* Plans of earlier versions could let new weights wait in memory that the framework lent. */
static void plans_with_lent_memory_are_refused(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_BOTH, ALL_CPU, 1);
  for (int i = 0; i < 2; i++) {
    hk_error err = {0};
    hk_plan again;
    cJSON *document = hk_plan_to_json(&plan);
    assert_non_null(document);
    if (i == 0)
      cJSON_AddArrayToObject(document, "lent_bytes_after_block");
    else
      cJSON_AddBoolToObject(cJSON_GetArrayItem(cJSON_GetObjectItem(document, "subgroups"), 1),
                            "lent", true);
    assert_int_equal(hk_plan_from_json(document, &again, &err), HK_INPUT);
    assert_non_null(strstr(err.message, i == 0 ? "key 'lent_bytes_after_block' is not known"
                                               : "key 'lent' in subgroups is not known"));
    cJSON_Delete(document);
  }
  hk_plan_free(&plan);
}

static void refuse(const hk_plan *plan, const char *says) {
  hk_error err = {0};
  assert_int_equal(hk_plan_check(plan, &err), HK_INPUT);
  if (strstr(err.message, says) == NULL) fail_msg("'%s' does not say '%s'", err.message, says);
}

static void contradicting_settings_are_refused(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_BOTH, ALL_CPU, 1);
  plan.subgroups[1].route = HK_ROUTE_STAGED;
  refuse(&plan, "subgroups[1]: runs ahead of the norm, which needs overlap 'both' and route 'cpu'");
  plan.subgroups[1].route = HK_ROUTE_CPU;
  plan.overlap = HK_OVERLAP_FORWARD;
  refuse(&plan, "overlap 'forward' and route 'cpu'");
  plan.overlap = HK_OVERLAP_BOTH;
  plan.order[0] = 1, plan.order[1] = 0;
  refuse(&plan, "order[0] is 1: with overlap 'both' subgroups are updated in forward order");
  plan.order[0] = 0, plan.order[1] = 1;
  plan.runtime = HK_RUNTIME_DEEPSPEED;
  refuse(&plan, "overlap 'both' needs runtime hocket, got deepspeed");
  plan.runtime = HK_RUNTIME_HOCKET;
  plan.flush = HK_FLUSH_SYNC;
  refuse(&plan, "flush async");
  plan.flush = HK_FLUSH_ASYNC;
  plan.flush_bytes_per_param = 4;
  refuse(&plan, "2 bytes a parameter");
  hk_plan_free(&plan);
}

static void invalid_documents_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = planned(HK_OVERLAP_BOTH, ALL_CPU, 1), again;
  cJSON *document = hk_plan_to_json(&plan);
  cJSON_SetValuestring(cJSON_GetObjectItem(document, "schema"), "hocket.plan/3");
  assert_int_equal(hk_plan_from_json(document, &again, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "'hocket.plan/1' and 'hocket.plan/2'"));
  cJSON_SetValuestring(cJSON_GetObjectItem(document, "schema"), "hocket.plan/2");
  cJSON_SetValuestring(cJSON_GetObjectItem(document, "overlap"), "bth");
  assert_int_equal(hk_plan_from_json(document, &again, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "key 'overlap': 'bth' is not known; did you mean 'both'?"));
  cJSON_SetValuestring(cJSON_GetObjectItem(document, "overlap"), "both");
  cJSON_DeleteItemFromObject(cJSON_GetArrayItem(cJSON_GetObjectItem(document, "subgroups"), 2),
                             "ahead");
  assert_int_equal(hk_plan_from_json(document, &again, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "subgroups[2]: key 'ahead'"));
  cJSON_Delete(document);
  hk_plan_free(&plan);
}

/* -- Subgroups cut at blocks ------------------------------------------------------------------ */

static void subgroups_do_not_span_blocks(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_FORWARD, ALL_CPU, 1);
  int32_t first[64], last[64];
  assert_true(plan.n_subgroups < 64);
  hk_plan_subgroup_blocks(&plan, first, last);
  int64_t of_block[LAYERS + 2] = {0}, most[LAYERS + 2] = {0}, least[LAYERS + 2] = {0};
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    assert_int_equal(first[s], last[s]);
    assert_true(plan.subgroups[s].numel <= 16000);
    int64_t *sum = &of_block[first[s]], numel = plan.subgroups[s].numel;
    if (*sum == 0 || numel < least[first[s]]) least[first[s]] = numel;
    if (numel > most[first[s]]) most[first[s]] = numel;
    *sum += numel;
  }
  for (int b = 0; b < LAYERS + 2; b++) {
    assert_int_equal(of_block[b], hk_model_block_parameters(&plan.model, b + HK_BLOCK_EMBED, 1));
    assert_true(most[b] - least[b] <= 4096); /* nearly equal; sizes may be aligned to 4,096 */
  }
  assert_int_equal(plan.n_subgroups, 2 + 3 * LAYERS + 2);
  hk_plan_free(&plan);
}

/* Other rules may let a subgroup span blocks. */
static void blocks_of_subgroups_that_span(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(LAYERS);
  must(hk_plan_create(&model, &ALONE, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 50000, &plan, &err),
       &err);
  int32_t first[8], last[8];
  hk_plan_subgroup_blocks(&plan, first, last);
  /* Blocks end at 16,384, 57,472, 98,560, 139,648 and 156,096. */
  const int32_t firsts[] = {0, 1, 3, 4}, lasts[] = {1, 3, 4, 4};
  assert_int_equal(plan.n_subgroups, 4);
  for (int s = 0; s < 4; s++) {
    assert_int_equal(first[s], firsts[s]);
    assert_int_equal(last[s], lasts[s]);
  }
  hk_plan_free(&plan);
}

/* -- The engine's part ------------------------------------------------------------------------ */

static bool depends(const hk_graph *graph, const hk_op *op, int32_t on) {
  for (int32_t d = op->deps_begin; d < op->deps_end; d++)
    if (graph->deps[d] == on) return true;
  return false;
}

static int32_t find(const hk_graph *graph, hk_op_kind kind, const hk_op *like) {
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    if (op->kind == kind && op->subgroup == like->subgroup && op->piece == like->piece)
      return (int32_t)i;
  }
  return -1;
}

static int32_t barrier_of(const hk_graph *graph) {
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == HK_OP_BARRIER) return (int32_t)i;
  return -1;
}

static void check_flush(const hk_graph *graph, const hk_plan *plan, const hk_op *op, int32_t id) {
  assert_int_equal(op->deps_begin, op->deps_end);
  assert_int_equal(op->phase, HK_PHASE_BACKWARD);
  assert_int_equal(op->priority, 0);
  assert_int_equal(plan->subgroups[op->subgroup].route, HK_ROUTE_CPU);
  assert_true(depends(graph, &graph->ops[barrier_of(graph)], id));
  const hk_op *adamw = &graph->ops[find(graph, HK_OP_ADAMW_CPU, op)];
  assert_int_equal(adamw->offset, op->offset);
  assert_int_equal(op->work, 2 * adamw->work);
  assert_int_equal(op->gpu_free, op->work);
}

static void check_update(const hk_graph *graph, const hk_plan *plan, const hk_op *op, int32_t id) {
  const int32_t barrier = barrier_of(graph), flushed = find(graph, HK_OP_GRAD_D2H, op);
  if (op->kind == HK_OP_ADAMW_CPU) {
    const bool ahead = plan->subgroups[op->subgroup].ahead;
    assert_int_equal(op->deps_end - op->deps_begin, 1);
    assert_int_equal(graph->deps[op->deps_begin], ahead ? flushed : barrier);
    const hk_op *up = &graph->ops[find(graph, HK_OP_WEIGHT_H2D, op)];
    assert_int_equal(up->deps_end - up->deps_begin, 2);
    assert_true(depends(graph, up, id) && depends(graph, up, barrier));
    assert_int_equal(up->work, 2 * op->work);
    assert_int_equal(up->offset, op->offset);
  } else if (op->kind == HK_OP_STATE_H2D || op->kind == HK_OP_ADAMW_MAPPED ||
             plan->subgroups[op->subgroup].route == HK_ROUTE_RESIDENT) {
    assert_true(depends(graph, op, barrier));
  }
  if (op->kind == HK_OP_STATE_H2D) /* with new weights, in the order of blocks */
    assert_int_equal(graph->lanes[op->lane].kind, HK_LANE_UP);
}

/* An operation of what the GPU may take from the CPU: behind all planned ones, deepest first. */
static void check_stolen(const hk_graph *graph, const hk_plan *plan, const hk_op *op,
                         const hk_op *before) {
  assert_int_equal(plan->subgroups[op->subgroup].route, HK_ROUTE_CPU);
  if (before->when == HK_WHEN_STOLEN) {
    assert_true(op->subgroup < before->subgroup ||
                (op->subgroup == before->subgroup && op->piece <= before->piece));
  }
  if (op->kind != HK_OP_STATE_H2D) return;
  assert_int_equal(op->priority, INT32_MAX);
  assert_true(depends(graph, op, barrier_of(graph)));
}

static void engines_part(void **state) {
  (void)state;
  for (int overlap = HK_OVERLAP_FORWARD; overlap <= HK_OVERLAP_BOTH; overlap++) {
    hk_plan plan = planned((hk_overlap)overlap, MIXED, N(MIXED));
    hk_graph graph = built(&plan, HK_EXPAND_ENGINE);
    assert_false(graph.weights_pulled);
    int32_t first[64], last[64];
    int64_t flushed = 0, updated = 0, stolen = 0, totals[HK_ROUTE_COUNT];
    hk_plan_subgroup_blocks(&plan, first, last);
    hk_plan_route_totals(&plan, totals);
    int32_t before = -1;
    for (size_t i = 0; i < graph.n_ops; i++) {
      const hk_op *op = &graph.ops[i];
      const hk_lane *lane = &graph.lanes[op->lane];
      assert_true(lane->picks == (lane->kind == HK_LANE_CPU || lane->kind == HK_LANE_UP ||
                                  lane->kind == HK_LANE_FLUSH));
      if (op->kind == HK_OP_BARRIER) continue;
      assert_int_equal(op->block, first[op->subgroup] + HK_BLOCK_EMBED);
      if (op->kind == HK_OP_GRAD_D2H) {
        check_flush(&graph, &plan, op, (int32_t)i);
        flushed += op->work / 2;
        continue;
      }
      assert_int_equal(op->phase, HK_PHASE_UPDATE);
      if (op->when == HK_WHEN_STOLEN) {
        check_stolen(&graph, &plan, op, op - 1);
        if (op->kind == HK_OP_ADAMW_GPU) stolen += op->work;
        continue;
      }
      assert_int_equal(stolen, 0);
      assert_int_equal(op->priority, first[op->subgroup]);
      assert_true(op->subgroup >= before); /* shallow first */
      before = op->subgroup;
      check_update(&graph, &plan, op, (int32_t)i);
      if (op->kind == HK_OP_ADAMW_CPU || op->kind == HK_OP_ADAMW_GPU ||
          op->kind == HK_OP_ADAMW_MAPPED)
        updated += op->work;
    }
    assert_int_equal(flushed, totals[HK_ROUTE_CPU]);
    assert_int_equal(updated, plan.model.parameters);
    assert_int_equal(stolen, totals[HK_ROUTE_CPU]);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* GPU: weights and gradients. Host: state, gradients and new weights, and spare state of subgroups
 * that run ahead. */
static void memory_of_the_engines_part(void **state) {
  (void)state;
  hk_plan forward = planned(HK_OVERLAP_FORWARD, ALL_CPU, 1);
  hk_plan both = planned(HK_OVERLAP_BOTH, ALL_CPU, 1);
  hk_graph f = built(&forward, HK_EXPAND_ENGINE), b = built(&both, HK_EXPAND_ENGINE);
  const int64_t n = forward.model.parameters;
  assert_int_equal(f.gpu_base, 2 * n + 2 * n);
  assert_int_equal(f.host_base, (12 + 2 + 2) * n);
  assert_int_equal(b.host_base, f.host_base + 12 * hk_plan_ahead(&both));
  hk_graph_free(&f);
  hk_graph_free(&b);
  hk_plan_free(&forward);
  hk_plan_free(&both);
}

/* Early weights have GPU memory all the time. */
static void memory_of_early_weights(void **state) {
  (void)state;
  hk_plan early = planned(HK_OVERLAP_BOTH, ALL_CPU, 1), late = planned(HK_OVERLAP_BOTH, ALL_CPU, 1);
  for (size_t s = 0; s < early.n_subgroups; s++)
    early.subgroups[s].early = early.subgroups[s].ahead;
  hk_graph a = built(&early, HK_EXPAND_ENGINE), b = built(&late, HK_EXPAND_ENGINE);
  assert_true(hk_plan_early(&early) > 0 && hk_plan_early(&late) == 0);
  assert_int_equal(a.gpu_base, b.gpu_base + 2 * hk_plan_early(&early));
  hk_bytes placed = 0;
  for (size_t i = 0; i < a.n_ops; i++) {
    const hk_op *op = &a.ops[i];
    if (op->kind == HK_OP_WEIGHT_PLACE) placed += op->work;
    if (op->kind == HK_OP_WEIGHT_H2D || op->kind == HK_OP_WEIGHT_PLACE)
      assert_true(op->gpu_alloc == 0 && op->gpu_free == 0);
  }
  assert_int_equal(placed, 2 * hk_plan_early(&early));
  hk_graph_free(&a);
  hk_graph_free(&b);
  hk_plan_free(&early);
  hk_plan_free(&late);
}

/* In a graph of the update alone every update waits for the barrier. */
static void update_alone_runs_nothing_ahead(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_BOTH, ALL_CPU, 1);
  hk_graph graph = built(&plan, HK_EXPAND_UPDATE);
  assert_int_equal(graph.ops[0].kind, HK_OP_BARRIER);
  for (size_t i = 0; i < graph.n_ops; i++) {
    assert_int_equal(graph.ops[i].phase, HK_PHASE_UPDATE);
    if (graph.ops[i].kind == HK_OP_ADAMW_CPU)
      assert_int_equal(graph.deps[graph.ops[i].deps_begin], 0);
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* A graph of the training and engine parts is that of the whole iteration: gradients leave once. */
static void whole_iterations_flush_once(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_BOTH, MIXED, N(MIXED));
  hk_graph all = built(&plan, HK_EXPAND_ALL),
           both = built(&plan, HK_EXPAND_TRAINING | HK_EXPAND_ENGINE);
  char a[17], b[17];
  hk_graph_hash(&all, a);
  hk_graph_hash(&both, b);
  assert_string_equal(a, b);
  hk_graph_free(&all);
  hk_graph_free(&both);
  hk_plan_free(&plan);
}

/* 2^23 pieces of one parameter exceed the largest number of operations. */
static void too_many_pieces_are_refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph graph;
  hk_plan plan;
  const hk_tensor large = {.name = "w", .numel = 1 << 23};
  hk_model model;
  must(hk_model_from_tensors("large", &large, 1, 1, &model, &err), &err);
  must(hk_plan_create(&model, &ALONE, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 1 << 23, &plan, &err),
       &err);
  hk_plan_set_overlap(&plan, HK_OVERLAP_FORWARD);
  plan.piece_numel = 1;
  assert_int_equal(
      hk_graph_build(&plan, (hk_expand){HK_EXPAND_ENGINE, .folded = true}, &graph, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "use larger subgroups or pieces"));
  hk_plan_free(&plan);
}

/* -- Without an overlap ----------------------------------------------------------------------- */

/* The engine's part is the update, and lanes run in the order of the graph. */
static void without_overlap_the_engine_runs_the_update(void **state) {
  (void)state;
  hk_plan plan = planned(HK_OVERLAP_NONE, MIXED, N(MIXED));
  hk_graph update = built(&plan, HK_EXPAND_UPDATE), engine = built(&plan, HK_EXPAND_ENGINE);
  char a[17], b[17];
  hk_graph_hash(&update, a);
  hk_graph_hash(&engine, b);
  assert_string_equal(a, b);
  for (size_t i = 0; i < engine.n_lanes; i++) assert_false(engine.lanes[i].picks);
  hk_graph_free(&update);
  hk_graph_free(&engine);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(documents_keep_the_overlap),
      cmocka_unit_test(plans_with_lent_memory_are_refused),
      cmocka_unit_test(contradicting_settings_are_refused),
      cmocka_unit_test(invalid_documents_are_refused),
      cmocka_unit_test(subgroups_do_not_span_blocks),
      cmocka_unit_test(blocks_of_subgroups_that_span),
      cmocka_unit_test(engines_part),
      cmocka_unit_test(memory_of_the_engines_part),
      cmocka_unit_test(memory_of_early_weights),
      cmocka_unit_test(update_alone_runs_nothing_ahead),
      cmocka_unit_test(whole_iterations_flush_once),
      cmocka_unit_test(too_many_pieces_are_refused),
      cmocka_unit_test(without_overlap_the_engine_runs_the_update),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
