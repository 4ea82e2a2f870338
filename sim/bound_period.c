/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lower bounds of the period of a cyclic graph (period.h). On average each resource and each lane
 * does one iteration's work per period. If a chain of length L leads from operation v of one
 * iteration to v of the next, the period is at least L. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/bound.h"
#include "sim/period.h"
#include "sim/state.h"

static void bind(hk_period_bound *bound, double ns, const char *prefix, const char *name) {
  const hk_ns whole = hk_bound_floor(ns);
  if (whole <= bound->period_ns) return;
  bound->period_ns = whole;
  snprintf(bound->binding, sizeof bound->binding, "%s%.18s", prefix, name);
}

static void bind_resources(const hk_graph *g, size_t each, const hk_machine *machine,
                           hk_period_bound *bound) {
  double load[HK_RES_COUNT] = {0};
  for (size_t i = 0; i < each; i++) {
    if (g->ops[i].rank == 0) hk_bound_add_load(g, &g->ops[i], machine, load); /* ranks are alike */
  }
  for (int r = 0; r < HK_RES_COUNT; r++)
    bind(bound, load[r] / hk_resource_capacity(machine, (hk_resource)r, false) * 1e9, "",
         hk_resource_name((hk_resource)r));
}

/* All operations of an iteration count as at most this, in equal parts, so that no sum over two
 * iterations overflows. What is counted stays a lower bound. */
#define LONGEST ((hk_ns)1 << 60)

/* Of the operations of one iteration; a lane's next operation often takes as long. */
static hk_status least_of_all(const hk_graph *g, size_t each, const hk_machine *machine,
                              hk_ns *times, hk_error *err) {
  size_t *last = calloc(g->n_lanes + 1, sizeof *last); /* 1 + the lane's latest operation */
  if (last == NULL) return hk_fail_memory(err, g->n_lanes * sizeof *last, "the bound of a period");
  for (size_t i = 0; i < each; i++) {
    const hk_op *op = &g->ops[i];
    const size_t before = last[op->lane];
    times[i] = before > 0 && hk_demand_is_same(&g->ops[before - 1], op)
                   ? times[before - 1]
                   : hk_min(hk_bound_least(g, op, machine), LONGEST / (hk_ns)each);
    last[op->lane] = i + 1;
  }
  free(last);
  return HK_OK;
}

static hk_status bind_lanes(const hk_graph *g, size_t each, const hk_ns *times,
                            hk_period_bound *bound, hk_error *err) {
  hk_ns *busy = calloc(g->n_lanes + 1, sizeof *busy);
  if (busy == NULL) return hk_fail_memory(err, g->n_lanes * sizeof *busy, "the bound of a period");
  for (size_t i = 0; i < each; i++) busy[g->ops[i].lane] += times[i];
  for (size_t l = 0; l < g->n_lanes; l++) bind(bound, (double)busy[l], "lane ", g->lanes[l].name);
  free(busy);
  return HK_OK;
}

/* An iteration that follows itself: operations i and each + i of the graph are the same. */
typedef struct {
  const hk_graph *graph;
  const hk_machine *machine;
  size_t each;
  const hk_ns *times; /* [each] */
  int32_t *before; /* [each] the operation before on its lane, for the first one the last; -1: the
                      lane picks */
  int32_t *from;   /* [each] scratch of repeats_within */
  hk_ns *begin;    /* [2 x each] scratch */
  hk_ns *lane_end; /* [lanes] scratch */
} hk_cyclic;

static void cyclic_close(hk_cyclic *c) {
  free(c->before);
  free(c->from);
  free(c->begin);
  free(c->lane_end);
}

static hk_status cyclic_open(hk_cyclic *c, hk_error *err) {
  const hk_graph *g = c->graph;
  c->before = malloc((c->each + 1) * sizeof *c->before);
  c->from = malloc((c->each + 1) * sizeof *c->from);
  c->begin = malloc((2 * c->each + 1) * sizeof *c->begin);
  c->lane_end = malloc((g->n_lanes + 1) * sizeof *c->lane_end);
  if (c->before == NULL || c->from == NULL || c->begin == NULL || c->lane_end == NULL) {
    cyclic_close(c);
    return hk_fail_memory(err, 3 * c->each * sizeof *c->begin, "the bound of a period");
  }
  for (size_t l = 0; l < g->n_lanes; l++) c->lane_end[l] = -1;
  for (size_t i = 0; i < 2 * c->each; i++) { /* the second time all lanes have a last operation */
    const int32_t lane = g->ops[i].lane;
    c->before[i % c->each] = g->lanes[lane].picks ? -1 : (int32_t)c->lane_end[lane];
    c->lane_end[lane] = (hk_ns)(i % c->each);
  }
  return HK_OK;
}

/* Length of the longest chain from operation `from` of the first iteration to the same one of the
 * second. c->begin: the earliest begin of each operation after that of `from`; -1: no chain leads
 * there. */
static hk_ns cycle_through(const hk_cyclic *c, size_t from) {
  const hk_graph *g = c->graph;
  hk_ns *begin = c->begin, *lane_end = c->lane_end;
  for (size_t l = 0; l < g->n_lanes; l++) lane_end[l] = -1;
  for (size_t i = from; i <= from + c->each; i++) {
    const hk_op *op = &g->ops[i];
    const bool picks = g->lanes[op->lane].picks;
    begin[i] = i == from ? 0 : picks ? -1 : lane_end[op->lane];
    for (int32_t d = op->deps_begin; d < op->deps_end && i > from; d++) {
      const size_t on = (size_t)g->deps[d];
      if (on < from || begin[on] < 0) continue;
      const hk_ns ended = begin[on] + c->times[on % c->each];
      begin[i] = hk_max(begin[i], ended + hk_hop(g, c->machine, (int32_t)on, (int32_t)i));
    }
    if (begin[i] >= 0) lane_end[op->lane] = begin[i] + c->times[i % c->each];
  }
  return begin[from + c->each];
}

/* Lets operation i begin not before its predecessors have ended, those of the iteration before
 * `period` earlier. Returns whether it now begins later. */
static bool delay(const hk_cyclic *c, size_t i, hk_ns period) {
  const hk_graph *g = c->graph;
  const hk_op *op = &g->ops[c->each + i];
  const hk_ns was = c->begin[i];
  if (c->before[i] >= 0) {
    const size_t on = (size_t)c->before[i];
    const hk_ns ended = c->begin[on] + c->times[on] - (on >= i ? period : 0);
    if (ended > c->begin[i]) c->begin[i] = ended, c->from[i] = c->before[i];
  }
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    const size_t on = (size_t)g->deps[d], same = on % c->each;
    const hk_ns ended = c->begin[same] + c->times[same] - (on < c->each ? period : 0) +
                        hk_hop(g, c->machine, g->deps[d], (int32_t)(c->each + i));
    if (ended > c->begin[i]) c->begin[i] = ended, c->from[i] = (int32_t)same;
  }
  return c->begin[i] > was;
}

/* A forward on the cycle of c->from behind operation `at`; -1: none. */
static int32_t forward_on_cycle(const hk_cyclic *c, int32_t at) {
  for (size_t steps = 0; steps <= c->each && at >= 0; steps++) at = c->from[at];
  for (size_t steps = 0; steps <= c->each && at >= 0; steps++, at = c->from[at])
    if (c->graph->ops[at].kind == HK_OP_FORWARD && c->graph->ops[at].rank == 0) return at;
  return -1;
}

enum { REPEATS = -1, UNDECIDED = -2 };

/* Looks for times at which the operations of an iteration can begin again every `period`: with
 * them no cycle is longer (REPEATS). If there is a longer cycle, they would be delayed without end:
 * returns a forward on one. */
static int32_t repeats_within(const hk_cyclic *c, hk_ns period) {
  enum { PASSES = 16 };
  memset(c->begin, 0, c->each * sizeof *c->begin);
  for (size_t i = 0; i < c->each; i++) c->from[i] = -1;
  for (int pass = 0; pass < PASSES; pass++) {
    int32_t delayed = -1;
    for (size_t i = 0; i < c->each; i++)
      if (delay(c, i, period)) delayed = (int32_t)i;
    if (delayed < 0) return REPEATS;
    const int32_t forward = forward_on_cycle(c, delayed);
    if (forward >= 0) return forward;
  }
  return UNDECIDED;
}

/* The longest cycle that bind() would ignore: hk_bound_floor makes it 1e-9 shorter, and 2^62 at
 * most, so that a period of 2^62 has no such limit. */
static hk_ns longest_ignored(const hk_period_bound *bound) {
  const hk_ns most = (hk_ns)1 << 62, period = bound->period_ns;
  hk_ns length = period + (hk_ns)(1e-9 * (double)period); /* about */
  while (length > period && hk_bound_floor((double)length) > period) length--;
  while (length < most && hk_bound_floor((double)(length + 1)) <= period) length++;
  return length;
}

static void bind_cycles(const hk_cyclic *c, hk_period_bound *bound) {
  int32_t forward = 0;
  for (hk_ns before = -1; forward >= 0 && bound->period_ns > before;) {
    before = bound->period_ns;
    forward = repeats_within(c, longest_ignored(bound));
    if (forward >= 0) bind(bound, (double)cycle_through(c, (size_t)forward), "", "cycle");
  }
  for (size_t i = 0; i < c->each && forward != REPEATS; i++)
    if (c->graph->ops[i].kind == HK_OP_FORWARD && c->graph->ops[i].rank == 0)
      bind(bound, (double)cycle_through(c, i), "", "cycle");
}

hk_status hk_bound_period(const hk_graph *graph, const hk_machine *machine, hk_period_bound *bound,
                          hk_error *err) {
  memset(bound, 0, sizeof *bound);
  snprintf(bound->binding, sizeof bound->binding, "nothing");
  if (graph->iterations < 2)
    return hk_fail(err, HK_INPUT, "%d iterations: expected at least 2 to bound a period",
                   graph->iterations);
  const size_t each = graph->n_ops / (size_t)graph->iterations;
  hk_ns *times = malloc((each + 1) * sizeof *times);
  if (times == NULL) return hk_fail_memory(err, each * sizeof *times, "the bound of a period");
  bind_resources(graph, each, machine, bound);
  hk_cyclic cyclic = {.graph = graph, .machine = machine, .each = each, .times = times};
  hk_status status = least_of_all(graph, each, machine, times, err);
  if (status == HK_OK) status = bind_lanes(graph, each, times, bound, err);
  bound->busy_ns = bound->period_ns;
  if (status == HK_OK) status = cyclic_open(&cyclic, err);
  if (status == HK_OK) {
    bind_cycles(&cyclic, bound);
    cyclic_close(&cyclic);
  }
  free(times);
  return status;
}
