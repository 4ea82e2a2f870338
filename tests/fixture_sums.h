/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by tests of parallelism: sums over the operations of a plan's task graph. */
#ifndef HK_TESTS_FIXTURE_SUMS_H
#define HK_TESTS_FIXTURE_SUMS_H

#include "core/graph/graph.h"
#include "tests/fixture.h"

typedef struct {
  int n[HK_OP_KIND_COUNT], experts[HK_OP_KIND_COUNT]; /* experts: of `n`, those of experts alone */
  int64_t work[HK_OP_KIND_COUNT];
  hk_bytes base, copied;
  hk_bytes left, gathered; /* left: on the GPU behind the last operation; gathered: of layer 1 */
  bool once;               /* weights are gathered once, and kept; gradients are reduced once */
} sums;

/* Frees the plan. */
static inline sums sums_of(hk_plan *plan) {
  hk_error err = {0};
  hk_graph graph;
  must(hk_graph_build(plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
  sums s = {.base = graph.gpu_base, .once = true};
  for (size_t i = 0; i < graph.n_ops; i++) {
    const hk_op *op = &graph.ops[i];
    s.n[op->kind]++;
    s.experts[op->kind] += op->experts;
    s.work[op->kind] += op->work;
    s.copied += op->copied;
    s.left += op->gpu_alloc - op->gpu_free;
    if (op->kind == HK_OP_REDUCE_SCATTER) s.once &= op->micro == plan->job.grad_accum - 1;
    if (op->kind != HK_OP_ALL_GATHER) continue;
    s.once &= op->micro == 0 && op->phase == HK_PHASE_FORWARD && op->gpu_alloc == 0;
    if (op->block == 1) s.gathered = hk_max(s.gathered, op->gpu_alloc);
  }
  hk_graph_free(&graph);
  hk_plan_free(plan);
  return s;
}

#endif
