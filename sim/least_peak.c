/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The least peak of GPU memory (forecast.h). */
#include <stdlib.h>

#include "sim/forecast.h"

/* Operations of the compute stream are numbered in their order, 0 to n - 1. */
typedef struct {
  const hk_graph *graph;
  int32_t n;
  int32_t *place;  /* [ops] number of an operation of the stream; -1: of another lane */
  int32_t *before; /* [ops] the last of the stream that has ended when the operation begins; -1 */
  int32_t *behind; /* [ops] the first of the stream that begins after it has ended; n */
  int32_t *last;   /* [lanes] scratch: the lane's operation before; -1: none */
  hk_bytes *step;  /* [n + 1] least bytes in use at the begin of an operation of the stream, less
                      those at the one before */
} stream;

static void close_stream(stream *s) {
  free(s->place);
  free(s->before);
  free(s->behind);
  free(s->last);
  free(s->step);
}

static hk_status open_stream(stream *s, const hk_graph *g, hk_error *err) {
  *s = (stream){.graph = g};
  s->place = malloc((g->n_ops + 1) * sizeof *s->place);
  s->before = malloc((g->n_ops + 1) * sizeof *s->before);
  s->behind = malloc((g->n_ops + 1) * sizeof *s->behind);
  s->last = malloc((g->n_lanes + 1) * sizeof *s->last);
  s->step = calloc(g->n_ops + 2, sizeof *s->step);
  if (s->place == NULL || s->before == NULL || s->behind == NULL || s->last == NULL ||
      s->step == NULL) {
    close_stream(s);
    return hk_fail_memory(err, g->n_ops * sizeof *s->step, "the least peak of a plan");
  }
  for (size_t i = 0; i < g->n_ops; i++)
    s->place[i] = g->lanes[g->ops[i].lane].kind == HK_LANE_GPU ? s->n++ : -1;
  for (size_t i = 0; i < g->n_ops; i++) s->behind[i] = s->n;
  for (size_t l = 0; l < g->n_lanes; l++) s->last[l] = -1;
  return HK_OK;
}

/* The lane's operation before, for which i waits; -1: none. Call in the order of the graph. */
static int32_t on_lane(stream *s, size_t i) {
  const int32_t lane = s->graph->ops[i].lane, on = s->last[lane];
  s->last[lane] = (int32_t)i;
  return s->graph->lanes[lane].picks ? -1 : on;
}

/* `on` ends before i begins. */
static void wait_for(stream *s, size_t i, int32_t on) {
  if (on < 0) return;
  s->before[i] = (int32_t)hk_max(s->before[i], s->place[on] >= 0 ? s->place[on] : s->before[on]);
}

static void is_awaited(stream *s, size_t i, int32_t on) {
  s->behind[on] = (int32_t)hk_min(s->behind[on], s->place[i] >= 0 ? s->place[i] : s->behind[i]);
}

static void order(stream *s) {
  const hk_graph *g = s->graph;
  for (size_t i = 0; i < g->n_ops; i++) {
    s->before[i] = -1;
    wait_for(s, i, on_lane(s, i));
    for (int32_t d = g->ops[i].deps_begin; d < g->ops[i].deps_end; d++) wait_for(s, i, g->deps[d]);
  }
  for (size_t l = 0; l < g->n_lanes; l++) s->last[l] = -1;
  for (size_t i = g->n_ops; i-- > 0;) {
    const int32_t lane = g->ops[i].lane, next = s->last[lane]; /* in the order of the graph */
    if (next >= 0 && !g->lanes[lane].picks) is_awaited(s, (size_t)next, (int32_t)i);
    s->last[lane] = (int32_t)i;
    for (int32_t d = g->ops[i].deps_begin; d < g->ops[i].deps_end; d++)
      is_awaited(s, i, g->deps[d]);
  }
}

/* An operation has not begun up to the end of `before`, and has ended at the begin of `behind`. In
 * between it counts as the least that it uses in any of its states. */
static void add_memory(stream *s, size_t i) {
  const hk_op *op = &s->graph->ops[i];
  const hk_bytes kept = op->gpu_alloc - op->gpu_free;
  const bool runs = s->place[i] >= 0; /* at its own begin */
  const hk_bytes least = runs ? op->gpu_alloc : hk_min(0, hk_min(op->gpu_alloc, kept));
  s->step[s->before[i] + 1] += least;
  s->step[s->behind[i]] += kept - least;
}

hk_status hk_forecast_least_peak(const hk_plan *plan, hk_bytes *peak, hk_error *err) {
  hk_graph g;
  stream s;
  HK_TRY(hk_graph_build(plan, (hk_expand){HK_EXPAND_TRAINING, .folded = true}, &g, err));
  const hk_status status = open_stream(&s, &g, err);
  hk_bytes used = g.gpu_base;
  *peak = used;
  if (status == HK_OK) {
    order(&s);
    for (size_t i = 0; i < g.n_ops; i++) add_memory(&s, i);
    for (int32_t k = 0; k < s.n; k++) {
      used += s.step[k];
      *peak = hk_max(*peak, used);
    }
    close_stream(&s);
  }
  hk_graph_free(&g);
  return status;
}
