/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Whole iterations with an overlap: the template of an iteration, and its dependencies on the
 * iteration before. */
#include <stdio.h>
#include <stdlib.h>

#include "sim/forecast.h"
#include "tests/fixture.h"

#define LAYERS   3
#define N(array) (sizeof(array) / sizeof *(array))

static const hk_route ROUTES[] = {HK_ROUTE_CPU,      HK_ROUTE_STAGED, HK_ROUTE_CPU,
                                  HK_ROUTE_RESIDENT, HK_ROUTE_CPU,    HK_ROUTE_MAPPED};

static hk_job job_of(int gpus, int grad_accum) {
  return (hk_job){.gpus = gpus,
                  .nodes = 1,
                  .tp = 1,
                  .micro_batch = 1,
                  .grad_accum = grad_accum,
                  .seq = 64,
                  .checkpoint_activations = true};
}

/* With `rule` exact, subgroups may span blocks. */
static hk_plan planned(const hk_job *job, hk_overlap overlap, hk_subgroup_rule rule) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(LAYERS);
  must(hk_plan_create(&model, job, HK_RUNTIME_HOCKET, rule, 14000, &plan, &err), &err);
  plan.piece_numel = 3000;
  plan.buffers = 2;
  hk_plan_set_overlap(&plan, overlap);
  for (size_t i = 0; i < plan.n_subgroups; i++) plan.subgroups[i].route = ROUTES[i % N(ROUTES)];
  if (overlap == HK_OVERLAP_BOTH)
    for (size_t i = 0; i < plan.n_subgroups; i++)
      plan.subgroups[i].ahead = plan.subgroups[i].route == HK_ROUTE_CPU && i % 3 > 0;
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static bool depends(const hk_graph *graph, const hk_op *op, int32_t on) {
  for (int32_t d = op->deps_begin; d < op->deps_end; d++)
    if (graph->deps[d] == on) return true;
  return false;
}

/* -- A template, unrolled --------------------------------------------------------------------- */

static void assert_same_op(const hk_op *a, const hk_op *b) {
  const int64_t left[] = {a->kind,    a->phase,     a->lane,     a->rank,     a->micro,
                          a->block,   a->subgroup,  a->piece,    a->offset,   a->work,
                          a->threads, a->gpu_alloc, a->gpu_free, a->priority, a->profile.time};
  const int64_t right[] = {b->kind,    b->phase,     b->lane,     b->rank,     b->micro,
                           b->block,   b->subgroup,  b->piece,    b->offset,   b->work,
                           b->threads, b->gpu_alloc, b->gpu_free, b->priority, b->profile.time};
  assert_memory_equal(left, right, sizeof left);
}

/* Each dependency of operation `id` is the template's or lies in the iteration before. Returns the
 * number of the latter (carried dependencies). */
static int check_deps(const hk_graph *graph, const hk_graph *once, int32_t id) {
  const int32_t each = (int32_t)once->n_ops, iteration = id / each;
  const hk_op *op = &graph->ops[id], *template = &once->ops[id % each];
  int32_t d = op->deps_begin;
  int carried = 0;
  for (int32_t t = template->deps_begin; t < template->deps_end; d++) {
    assert_true(d < op->deps_end);
    if (graph->deps[d] == once->deps[t] + iteration * each) {
      t++;
    } else {
      assert_int_equal(graph->deps[d] / each, iteration - 1);
      carried++;
    }
  }
  for (; d < op->deps_end; d++, carried++) assert_int_equal(graph->deps[d] / each, iteration - 1);
  if (carried > 0)
    assert_true(op->kind == HK_OP_LAUNCH || op->kind == HK_OP_FORWARD ||
                op->kind == HK_OP_ALL_GATHER || op->kind == HK_OP_STATE_H2D);
  return carried;
}

static void iterations_are_alike(void **state) {
  (void)state;
  for (int c = 0; c < 8; c++) {
    hk_error err = {0};
    const hk_job job = job_of(c & 1 ? 2 : 1, c & 2 ? 3 : 1);
    hk_plan plan = planned(&job, c & 4 ? HK_OVERLAP_BOTH : HK_OVERLAP_FORWARD,
                           c & 1 ? HK_SUBGROUP_EXACT : HK_SUBGROUP_BLOCKS);
    for (int folded = 0; folded < 2; folded++) {
      hk_graph graph, once;
      must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .iterations = 3, .folded = folded},
                          &graph, &err),
           &err);
      must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = folded}, &once, &err), &err);
      assert_int_equal(graph.n_ops, 3 * once.n_ops);
      assert_int_equal(graph.n_lanes, once.n_lanes);
      int carried[3] = {0};
      for (size_t i = 0; i < graph.n_ops; i++) {
        assert_same_op(&graph.ops[i], &once.ops[i % once.n_ops]);
        assert_int_equal(hk_op_iteration(&graph, (int32_t)i), i / once.n_ops);
        carried[i / once.n_ops] += check_deps(&graph, &once, (int32_t)i);
      }
      assert_int_equal(carried[0], 0);
      assert_true(carried[1] > 0);
      assert_int_equal(carried[1], carried[2]);
      hk_graph_free(&graph);
      hk_graph_free(&once);
    }
    hk_plan_free(&plan);
  }
}

/* -- What forward waits for ------------------------------------------------------------------- */

/* The operation after which a piece's new weights are on the GPU. */
static bool writes_weights(const hk_op *op) {
  return op->kind == HK_OP_WEIGHT_H2D || op->kind == HK_OP_ADAMW_GPU ||
         op->kind == HK_OP_ADAMW_MAPPED;
}

static bool updates(const hk_op *op) {
  return op->kind == HK_OP_ADAMW_CPU || op->kind == HK_OP_ADAMW_GPU ||
         op->kind == HK_OP_ADAMW_MAPPED;
}

static void blocks_wait_for_their_own_weights(void **state) {
  (void)state;
  for (int c = 0; c < 4; c++) {
    hk_error err = {0};
    const hk_job job = job_of(1, 1 + c % 2);
    hk_plan plan = planned(&job, HK_OVERLAP_BOTH, c & 2 ? HK_SUBGROUP_EXACT : HK_SUBGROUP_BLOCKS);
    int32_t first[64], last[64];
    hk_plan_subgroup_blocks(&plan, first, last);
    hk_graph graph;
    must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .iterations = 2, .folded = true}, &graph,
                        &err),
         &err);
    const size_t each = graph.n_ops / 2;
    int forwards = 0;
    for (size_t i = each; i < graph.n_ops; i++) {
      const hk_op *op = &graph.ops[i];
      if (op->kind != HK_OP_FORWARD && op->kind != HK_OP_LAUNCH) continue;
      if (op->phase != HK_PHASE_FORWARD) continue;
      forwards += op->kind == HK_OP_FORWARD;
      const int32_t block = op->block - HK_BLOCK_EMBED;
      for (size_t j = 0; j < each; j++) {
        const hk_op *before = &graph.ops[j];
        const bool matters = op->kind == HK_OP_FORWARD ? writes_weights(before) : updates(before);
        if (before->subgroup < 0) continue;
        const bool waits = matters && op->micro == 0 && first[before->subgroup] <= block &&
                           block <= last[before->subgroup];
        assert_true(depends(&graph, op, (int32_t)j) == waits);
      }
    }
    assert_int_equal(forwards, (LAYERS + 2) * job.grad_accum);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* A subgroup's gradients leave after backward of all its blocks in the last micro-step, and after
 * the first micro-step's sums have come back to the GPU, beside it. */
static void gradients_leave_piece_by_piece(void **state) {
  (void)state;
  for (int c = 0; c < 2; c++) {
    hk_error err = {0};
    const hk_job job = job_of(1, 2);
    hk_plan plan = planned(&job, HK_OVERLAP_BOTH, c ? HK_SUBGROUP_EXACT : HK_SUBGROUP_BLOCKS);
    int32_t first[64], last[64];
    hk_plan_subgroup_blocks(&plan, first, last);
    hk_graph graph;
    must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
    int64_t flushed = 0, fetched = 0, totals[HK_ROUTE_COUNT];
    hk_plan_route_totals(&plan, totals);
    for (size_t i = 0; i < graph.n_ops; i++) {
      const hk_op *op = &graph.ops[i];
      fetched += op->kind == HK_OP_GRAD_SUM_H2D;
      if (op->kind != HK_OP_GRAD_D2H) continue;
      flushed += op->work / 2;
      static const hk_op_kind kinds[] = {HK_OP_BACKWARD, HK_OP_GRAD_SUM_H2D};
      assert_int_equal(op->deps_end - op->deps_begin, 2);
      for (int k = 0; k < 2; k++) {
        const hk_op *after = &graph.ops[graph.deps[op->deps_begin + k]];
        assert_int_equal(after->kind, kinds[k]);
        assert_int_equal(after->micro, 1);
        assert_int_equal(after->block - HK_BLOCK_EMBED, first[op->subgroup]);
      }
    }
    assert_int_equal(flushed, totals[HK_ROUTE_CPU]);
    assert_true(fetched > 0);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* -- Names and memory ------------------------------------------------------------------------- */

static int compare_text(const void *a, const void *b) {
  return strcmp(a, b);
}

static void labels_are_unique(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_job job = job_of(1, 2);
  hk_plan plan = planned(&job, HK_OVERLAP_BOTH, HK_SUBGROUP_BLOCKS);
  hk_graph graph;
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .iterations = 3, .folded = true}, &graph,
                      &err),
       &err);
  char(*labels)[64] = calloc(graph.n_ops, sizeof *labels);
  assert_non_null(labels);
  for (size_t i = 0; i < graph.n_ops; i++) {
    const int lane = snprintf(labels[i], 8, "%03d ", (int)graph.ops[i].lane);
    hk_op_label(&graph, (int32_t)i, labels[i] + lane, sizeof labels[i] - (size_t)lane);
  }
  qsort(labels, graph.n_ops, sizeof *labels, compare_text);
  for (size_t i = 1; i < graph.n_ops; i++) assert_string_not_equal(labels[i - 1], labels[i]);
  free(labels);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

static void every_iteration_gives_back_what_it_took(void **state) {
  (void)state;
  for (int c = 0; c < 4; c++) {
    hk_error err = {0};
    const hk_job job = job_of(c & 1 ? 2 : 1, c & 2 ? 3 : 1);
    hk_plan plan = planned(&job, HK_OVERLAP_BOTH, HK_SUBGROUP_BLOCKS);
    hk_graph graph;
    must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
    hk_bytes taken = 0, given = 0;
    for (size_t i = 0; i < graph.n_ops; i++) {
      taken += graph.ops[i].gpu_alloc;
      given += graph.ops[i].gpu_free;
    }
    assert_true(taken > 0);
    assert_int_equal(taken, given);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

static void what_cannot_be_unrolled(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_job job = job_of(1, 1);
  hk_graph graph;
  hk_plan plan = planned(&job, HK_OVERLAP_NONE, HK_SUBGROUP_BLOCKS);
  assert_int_equal(
      hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .iterations = 2, .folded = true}, &graph,
                     &err),
      HK_INPUT);
  assert_non_null(strstr(err.message, "without an overlap"));
  hk_plan_set_overlap(&plan, HK_OVERLAP_FORWARD);
  assert_int_equal(
      hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .iterations = -1, .folded = true}, &graph,
                     &err),
      HK_INPUT);
  assert_int_equal(
      hk_graph_build(
          &plan, (hk_expand){HK_EXPAND_ALL, .iterations = HK_MOST_ITERATIONS + 1, .folded = true},
          &graph, &err),
      HK_INPUT);
  assert_non_null(strstr(err.message, "65 iterations: expected 1 to 64"));
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(iterations_are_alike),
      cmocka_unit_test(blocks_wait_for_their_own_weights),
      cmocka_unit_test(gradients_leave_piece_by_piece),
      cmocka_unit_test(labels_are_unique),
      cmocka_unit_test(every_iteration_gives_back_what_it_took),
      cmocka_unit_test(what_cannot_be_unrolled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
