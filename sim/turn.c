/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/turn.h"

#include <math.h>
#include <stdlib.h>

#include "core/graph/bytes.h"
#include "sim/bound.h"
#include "sim/period.h"
#include "sim/programme.h"

/* -- Forward and backward --------------------------------------------------------------------- */

/* Copies of gradients, which plans differ in. */
static bool is_copy(hk_op_kind kind) {
  return kind == HK_OP_GRAD_D2H || kind == HK_OP_GRAD_SUM_D2H || kind == HK_OP_GRAD_SUM_H2D;
}

hk_status hk_turn_open(const hk_plan *plan, const hk_machine *machine, hk_turn *turn,
                       hk_error *err) {
  const size_t blocks = (size_t)plan->model.layers + 2;
  hk_graph g;
  double at = 0;
  *turn = (hk_turn){.machine = machine};
  HK_TRY(hk_graph_build(plan, (hk_expand){HK_EXPAND_TRAINING, .folded = true}, &g, err));
  turn->begin = calloc(blocks, sizeof *turn->begin);
  turn->end = calloc(blocks, sizeof *turn->end);
  for (size_t i = 0; i < g.n_ops && turn->begin != NULL && turn->end != NULL; i++) {
    const hk_op *op = &g.ops[i];
    const int32_t block = op->block - HK_BLOCK_EMBED;
    if (is_copy(op->kind)) continue;
    hk_bound_add_load(&g, op, machine, turn->load);
    if (op->kind != HK_OP_FORWARD && op->kind != HK_OP_BACKWARD) continue;
    if (op->kind == HK_OP_FORWARD && op->micro == 0) turn->begin[block] = at;
    at += (double)hk_bound_least(&g, op, machine);
    if (op->kind == HK_OP_BACKWARD) turn->end[block] = at;
  }
  hk_graph_free(&g);
  return turn->begin != NULL && turn->end != NULL
             ? HK_OK
             : hk_fail_memory(err, 2 * blocks * sizeof *turn->end, "the bound of a period");
}

void hk_turn_close(hk_turn *turn) {
  free(turn->begin);
  free(turn->end);
}

/* -- Updates ---------------------------------------------------------------------------------- */

/* Least times of operations, ns: of all of them on a resource or a lane. */
typedef struct {
  double resource[HK_RES_COUNT], lane[HK_LANE_KIND_COUNT];
} sums;

/* The operations of a kind on a subgroup: one for each piece. */
typedef struct {
  hk_op all; /* with the work of all of them */
  int64_t pieces;
  double least, resource[HK_RES_COUNT];
} cost;

typedef struct {
  const hk_turn *turn;
  const hk_plan *plan;
  hk_graph node;
  cost costs[HK_OP_KIND_COUNT]; /* the latest of each kind */
  sums all, work, late; /* of subgroups so far: all operations; those for which forward of their
                           block waits; those of them that wait for the barrier */
} updates;

/* In which a resource does `load`, ns. */
static double time_of(const updates *u, int resource, double load) {
  if (load == 0) return 0; /* it may have no capacity */
  return 1e9 * load / hk_resource_capacity(u->turn->machine, (hk_resource)resource, false);
}

/* Cores are left out: a team may lend a thread, and then uses fewer. */
static const cost *cost_of(updates *u, hk_op op, int64_t pieces) {
  const hk_machine *m = u->turn->machine;
  cost *c = &u->costs[op.kind];
  if (c->pieces == pieces && hk_demand_is_same(&c->all, &op)) return c;
  hk_ns latency, work;
  *c = (cost){.all = op, .pieces = pieces};
  hk_bound_add_load(&u->node, &op, m, c->resource);
  for (int r = 0; r < HK_RES_COUNT; r++) c->resource[r] = time_of(u, r, c->resource[r]);
  c->resource[HK_RES_CORES] = 0;
  hk_time_alone(&u->node, &op, m, &latency, &work);
  c->least = (double)pieces * (double)latency + (double)hk_max(0, work - 1);
  return c;
}

static void add_to(sums *s, const cost *c, hk_lane_kind lane) {
  for (int r = 0; r < HK_RES_COUNT; r++) s->resource[r] += c->resource[r];
  s->lane[lane] += c->least;
}

typedef enum { NOT_WAITED_FOR, EARLY, LATE } wait_for; /* behind backward, behind the barrier */

static double add(updates *u, hk_lane_kind lane, hk_op op, int64_t pieces, wait_for when) {
  const cost *c = cost_of(u, op, pieces);
  add_to(&u->all, c, lane);
  if (when != NOT_WAITED_FOR) add_to(&u->work, c, lane);
  if (when == LATE) add_to(&u->late, c, lane);
  return c->least;
}

/* Adds what a subgroup's update does at the least; returns the time of its flush. */
static double add_subgroup(updates *u, const hk_plan_subgroup *s) {
  const hk_plan *plan = u->plan;
  const int64_t n = s->numel, whole = s->route == HK_ROUTE_RESIDENT ? n : plan->piece_numel;
  const int64_t pieces = n / whole + (n % whole != 0), bytes = HK_BYTES_BF16 * n;
  const hk_bytes state = hk_state_bytes(plan->optimizer, n);
  const bool ahead = s->ahead && plan->overlap == HK_OVERLAP_BOTH && plan->steps == HK_STEPS_KEPT;
  if (s->held_staged && plan->steps == HK_STEPS_HELD) return 0;
  switch (s->route) {
    case HK_ROUTE_CPU: {
      const hk_op adamw = {
          .kind = HK_OP_ADAMW_CPU, .work = n, .threads = plan->cpu_threads, .ahead = ahead};
      add(u, HK_LANE_CPU, adamw, pieces, ahead ? EARLY : LATE);
      add(u, HK_LANE_UP, (hk_op){.kind = HK_OP_WEIGHT_H2D, .work = bytes}, pieces,
          ahead && s->early ? EARLY : LATE);
      return add(u, HK_LANE_FLUSH, (hk_op){.kind = HK_OP_GRAD_D2H, .work = bytes}, pieces, EARLY);
    }
    case HK_ROUTE_STAGED:
      add(u, HK_LANE_UP, (hk_op){.kind = HK_OP_STATE_H2D, .work = state}, pieces, LATE);
      add(u, HK_LANE_UPDATE, (hk_op){.kind = HK_OP_ADAMW_GPU, .work = n}, pieces, LATE);
      add(u, HK_LANE_D2H, (hk_op){.kind = HK_OP_STATE_D2H, .work = state}, pieces, NOT_WAITED_FOR);
      return 0;
    case HK_ROUTE_MAPPED:
      add(u, HK_LANE_UPDATE, (hk_op){.kind = HK_OP_ADAMW_MAPPED, .work = n}, pieces, LATE);
      return 0;
    case HK_ROUTE_RESIDENT:
    default:
      add(u, HK_LANE_UPDATE, (hk_op){.kind = HK_OP_ADAMW_GPU, .work = n}, pieces, LATE);
      return 0;
  }
}

static double longest(const sums *s) {
  double most = 0;
  for (int r = 0; r < HK_RES_COUNT; r++) most = fmax(most, s->resource[r]);
  for (int l = 0; l < HK_LANE_KIND_COUNT; l++) most = fmax(most, s->lane[l]);
  return most;
}

/* Subgroups are in the order of their first blocks; blocks in which none begins have no longer
 * bound than the block before. */
static double bound_of(updates *u, const int32_t *first) {
  const double *begin = u->turn->begin, *end = u->turn->end;
  const hk_op barrier = {.kind = HK_OP_BARRIER};
  double period = end[0], flushed = 0, until_barrier = end[0], from_barrier = 0;
  for (size_t i = 0; i < u->plan->n_subgroups; i++) {
    const int32_t b = first[i];
    flushed += add_subgroup(u, &u->plan->subgroups[i]);
    period = fmax(period, longest(&u->work) + end[b] - begin[b]);
    until_barrier = fmax(until_barrier, flushed + end[b]);
    from_barrier = fmax(from_barrier, longest(&u->late) - begin[b]);
  }
  const double norm = (double)hk_demand_of(&u->node, &barrier, u->turn->machine).latency;
  return fmax(fmax(period, longest(&u->all)), until_barrier + norm + from_barrier);
}

/* The shortest settled iteration with an average period of at least `bound`. A shorter one is below
 * the bound by more than periods may differ, so more iterations would have been simulated
 * (is_below_bound in sim/forecast.c). */
static hk_ns settled(double bound) {
  return hk_max(0, hk_bound_floor((bound - 1) / (1 + 2.0 / HK_STEADY)) - 1);
}

hk_status hk_turn_least(const hk_turn *turn, const hk_plan *plan, hk_ns *least, hk_error *err) {
  const size_t n = plan->n_subgroups;
  int32_t *blocks = malloc((2 * n + 1) * sizeof *blocks);
  if (blocks == NULL) return hk_fail_memory(err, 2 * n * sizeof *blocks, "the bound of a period");
  updates u = {.turn = turn, .plan = plan, .node = hk_programme_node(plan)};
  for (int r = 0; r < HK_RES_COUNT; r++) u.all.resource[r] = time_of(&u, r, turn->load[r]);
  u.node.cores_unbound = !plan->cores_bound;
  hk_plan_subgroup_blocks(plan, blocks, blocks + n);
  *least = settled(bound_of(&u, blocks));
  free(blocks);
  return HK_OK;
}
