/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The parts of a steady iteration. */
#include "sim/period.h"

#include <stdlib.h>
#include <string.h>

static hk_ns backward_end(const hk_graph *g, const hk_timeline *t, int iteration) {
  const size_t each = g->n_ops / (size_t)g->iterations, first = each * (size_t)iteration;
  hk_ns end = 0;
  for (size_t i = first; i < first + each; i++) {
    const hk_op *op = &g->ops[i];
    if (op->kind == HK_OP_BACKWARD && op->rank == 0) end = hk_max(end, t->spans[i].end);
  }
  return end;
}

/* Whether the operation's end means that new weights are in the tensors on the GPU. */
static bool writes_weights(const hk_op *op) {
  return op->kind == HK_OP_WEIGHT_H2D || op->kind == HK_OP_WEIGHT_PLACE ||
         op->kind == HK_OP_ADAMW_GPU || op->kind == HK_OP_ADAMW_MAPPED;
}

/* When the last new weights arrived on which operation `id` depends, directly or, for `depth` > 0,
 * through an all_gather. */
static hk_ns weights_came(const hk_graph *g, const hk_timeline *t, int32_t id, int depth) {
  hk_ns came = 0;
  for (int32_t d = g->ops[id].deps_begin; d < g->ops[id].deps_end; d++) {
    const int32_t on = g->deps[d];
    const hk_op *op = &g->ops[on];
    if (writes_weights(op)) came = hk_max(came, t->spans[on].end);
    if (depth > 0 && op->kind == HK_OP_ALL_GATHER)
      came = hk_max(came, weights_came(g, t, on, depth - 1));
  }
  return came;
}

/* Divides the first rank's computation, operation by operation with the wait before it, into the
 * parts of the period. */
static void divide(const hk_graph *g, const hk_timeline *t, hk_period *p) {
  const size_t each = g->n_ops / (size_t)g->iterations;
  hk_ns at = p->begin;
  for (size_t i = g->n_ops - each; i < g->n_ops; i++) {
    const hk_op *op = &g->ops[i];
    const hk_span *span = &t->spans[i];
    if (op->rank != 0 || (op->kind != HK_OP_FORWARD && op->kind != HK_OP_BACKWARD)) continue;
    hk_ns waited = 0;
    if (op->kind == HK_OP_FORWARD)
      waited = hk_max(0, hk_min(weights_came(g, t, (int32_t)i, 1), span->start) - at);
    p->exposed_update += waited;
    *(op->kind == HK_OP_FORWARD ? &p->forward : &p->backward) += span->end - at - waited;
    at = span->end;
  }
}

static int by_start(const void *left, const void *right) {
  const hk_span *a = left, *b = right;
  return a->start < b->start ? -1 : a->start > b->start;
}

/* The time in which any operation of the update runs, for the last iteration that another one
 * follows. */
static hk_status measure_update(const hk_graph *g, const hk_timeline *t, hk_period *p,
                                hk_error *err) {
  const size_t each = g->n_ops / (size_t)g->iterations;
  hk_span *spans = malloc(each * sizeof *spans);
  if (spans == NULL) return hk_fail_memory(err, each * sizeof *spans, "the times of an update");
  size_t n = 0;
  for (size_t i = g->n_ops - 2 * each; i < g->n_ops - each; i++) {
    const hk_op *op = &g->ops[i];
    if (op->phase == HK_PHASE_UPDATE && op->kind != HK_OP_BARRIER) spans[n++] = t->spans[i];
  }
  qsort(spans, n, sizeof *spans, by_start);
  hk_ns until = 0;
  for (size_t i = 0; i < n; i++) {
    p->update += hk_max(0, spans[i].end - hk_max(spans[i].start, until));
    until = hk_max(until, spans[i].end);
  }
  free(spans);
  return HK_OK;
}

hk_status hk_period_of(const hk_graph *graph, const hk_timeline *timeline, hk_period *period,
                       hk_error *err) {
  memset(period, 0, sizeof *period);
  const int n = graph->iterations;
  if (n < 3)
    return hk_fail(err, HK_INPUT, "%d iterations: expected at least 3 to read a period off", n);
  period->end = backward_end(graph, timeline, n - 1);
  period->begin = backward_end(graph, timeline, n - 2);
  period->before = period->begin - backward_end(graph, timeline, n - 3);
  divide(graph, timeline, period);
  return measure_update(graph, timeline, period, err);
}
