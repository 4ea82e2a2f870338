/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/turn.h"

#include <math.h>
#include <stdlib.h>

#include "core/graph/bytes.h"
#include "sim/bound.h"
#include "sim/contention.h"
#include "sim/period.h"
#include "sim/programme.h"

/* -- Forward and backward --------------------------------------------------------------------- */

/* Copies of gradients, which plans differ in. */
static bool is_copy(hk_op_kind kind) {
  return kind == HK_OP_GRAD_D2H || kind == HK_OP_GRAD_SUM_D2H || kind == HK_OP_GRAD_SUM_H2D;
}

/* The share that a pass keeps beside updates, noted in `kept`. */
static double note_kept(const hk_graph *g, const hk_op *op, hk_turn *turn) {
  const double launches = hk_launches_kept(turn->machine, g->launch_beside_update);
  const double kept = hk_pass_kept(g, op, turn->machine, launches);
  int k = 0;
  while (k < turn->n_kept && turn->kept[k] != kept) k++;
  if (k < HK_TURN_KEPT && k == turn->n_kept && kept < 1) turn->kept[turn->n_kept++] = kept;
  return kept;
}

/* The passes so far: all, and those that keep at most each share. */
typedef struct {
  double all, slow[HK_TURN_KEPT];
} passes;

static void note_passes(const passes *p, const hk_turn *turn, double *all, double *slow,
                        size_t block, size_t blocks) {
  all[block] = p->all;
  for (size_t k = 0; k < (size_t)turn->n_kept; k++) slow[k * blocks + block] = p->slow[k];
}

/* A latency is not slowed. */
static void add_pass(passes *p, const hk_turn *turn, double latency, double work, double kept) {
  p->all += latency + work;
  for (int k = 0; k < turn->n_kept; k++) p->slow[k] += kept <= turn->kept[k] ? work : 0;
}

static void add_passes(const hk_graph *g, hk_turn *turn, size_t blocks) {
  const hk_op *before = NULL;
  passes so_far = {0};
  hk_ns latency = 0, work = 0;
  double kept = 1;
  for (int round = 0; round < 2; round++) /* first all shares, then sums of passes */
    for (size_t i = 0; i < g->n_ops; i++) {
      const hk_op *op = &g->ops[i];
      const size_t block = (size_t)(op->block - HK_BLOCK_EMBED);
      if (op->kind != HK_OP_FORWARD && op->kind != HK_OP_BACKWARD) continue;
      if (before == NULL || !hk_demand_is_same(before, op)) {
        kept = note_kept(g, op, turn);
        hk_time_alone(g, op, turn->machine, &latency, &work);
        before = op;
      }
      if (round == 0) continue;
      if (op->kind == HK_OP_FORWARD && op->micro == 0)
        note_passes(&so_far, turn, turn->begin, turn->slow_begin, block, blocks);
      add_pass(&so_far, turn, (double)latency, (double)hk_max(0, work - 1), kept);
      if (op->kind == HK_OP_BACKWARD)
        note_passes(&so_far, turn, turn->end, turn->slow_end, block, blocks);
    }
}

hk_status hk_turn_open(const hk_plan *plan, const hk_machine *machine, hk_turn *turn,
                       hk_error *err) {
  const size_t blocks = (size_t)plan->model.layers + 2;
  hk_graph g;
  *turn = (hk_turn){.machine = machine, .threads = plan->cpu_threads};
  HK_TRY(hk_graph_build(plan, (hk_expand){HK_EXPAND_TRAINING, .folded = true}, &g, err));
  double *all = calloc(2 * (HK_TURN_KEPT + 1) * blocks, sizeof *all);
  if (all != NULL) {
    turn->begin = all;
    turn->end = all + blocks;
    turn->slow_begin = all + 2 * blocks;
    turn->slow_end = all + (2 + HK_TURN_KEPT) * blocks;
    add_passes(&g, turn, blocks);
    for (size_t i = 0; i < g.n_ops; i++)
      if (!is_copy(g.ops[i].kind)) hk_bound_add_load(&g, &g.ops[i], machine, turn->load);
  }
  hk_graph_free(&g);
  return all != NULL ? HK_OK
                     : hk_fail_memory(err, 2 * (HK_TURN_KEPT + 1) * blocks * sizeof *all,
                                      "the bound of a period");
}

void hk_turn_close(hk_turn *turn) {
  free(turn->begin);
}

/* -- Updates ---------------------------------------------------------------------------------- */

/* Least times of operations, ns: of all of them on a resource or a lane, and the longest of these.
 */
typedef struct {
  double resource[HK_RES_COUNT], lane[HK_LANE_KIND_COUNT], longest;
} sums;

/* The operations of a kind on a subgroup: one for each piece. */
typedef struct {
  hk_op all; /* with the work of all of them */
  int64_t pieces;
  double least, fluid; /* fluid: without latencies */
  struct {
    int resource;
    double time;
  } uses[HK_RES_COUNT];
  int n_uses;
} cost;

/* A plan's subgroups have few sizes, and there are few kinds of operations. */
#define LATEST 16

typedef struct {
  const hk_turn *turn;
  const hk_plan *plan;
  hk_graph node;
  cost costs[LATEST];   /* of the latest different operations, in turn */
  int n_costs;          /* so far */
  sums all, work, late; /* of subgroups so far: all operations; those for which forward of their
                           block waits; those of them that wait for the barrier */
  double team;          /* time in which the CPU's operations progress, of all subgroups */
} updates;

/* In which a resource does `load`, ns. */
static double time_of(const updates *u, int resource, double load) {
  if (load == 0) return 0; /* it may have no capacity */
  return 1e9 * load / hk_resource_capacity(u->turn->machine, (hk_resource)resource, false);
}

/* Cores are left out: a team may lend a thread, and then uses fewer. */
static const cost *cost_of(updates *u, hk_op op, int64_t pieces) {
  const hk_machine *m = u->turn->machine;
  for (int i = 0; i < u->n_costs && i < LATEST; i++)
    if (u->costs[i].pieces == pieces && hk_demand_is_same(&u->costs[i].all, &op))
      return &u->costs[i];
  cost *c = &u->costs[u->n_costs++ % LATEST];
  hk_ns latency, work;
  double load[HK_RES_COUNT] = {0};
  *c = (cost){.all = op, .pieces = pieces};
  hk_bound_add_load(&u->node, &op, m, load);
  hk_time_alone(&u->node, &op, m, &latency, &work);
  c->fluid = (double)hk_max(0, work - 1);
  for (int r = 0; r < HK_RES_COUNT; r++) {
    const double time = r == HK_RES_CORES ? 0 : time_of(u, r, load[r]);
    if (time > c->fluid) c->fluid = time;
    if (time > 0) {
      c->uses[c->n_uses].resource = r;
      c->uses[c->n_uses++].time = time;
    }
  }
  c->least = (double)pieces * (double)latency + c->fluid;
  return c;
}

static void add_time(sums *s, double *sum, double time) {
  *sum += time;
  if (*sum > s->longest) s->longest = *sum;
}

static void add_to(sums *s, const cost *c, hk_lane_kind lane) {
  for (int i = 0; i < c->n_uses; i++)
    add_time(s, &s->resource[c->uses[i].resource], c->uses[i].time);
  add_time(s, &s->lane[lane], c->least);
}

typedef enum { NOT_WAITED_FOR, EARLY, LATE } wait_for; /* behind backward, behind the barrier */

static double add(updates *u, hk_lane_kind lane, hk_op op, int64_t pieces, wait_for when) {
  const cost *c = cost_of(u, op, pieces);
  if (op.kind == HK_OP_ADAMW_CPU) u->team += c->fluid;
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

/* From the begin of forward of block b to the end of its backward, with `left` of the CPU's work.
 */
static double computation(const updates *u, int32_t b, double left) {
  const hk_turn *t = u->turn;
  const double all = t->end[b] - t->begin[b];
  double most = all;
  for (int k = 0; k < t->n_kept && u->plan->cpu_threads == t->threads; k++) {
    const int64_t at = k * (u->plan->model.layers + 2) + b;
    const double slow = t->slow_end[at] - t->slow_begin[at], kept = t->kept[k];
    const double time = kept * all + (1 - kept) * (slow + left);
    if (time > most) most = time;
  }
  return most;
}

/* Subgroups are in the order of their first blocks; blocks in which none begins have no longer
 * bound than the block before. `work`: room for a number for each. */
static double bound_of(updates *u, const int32_t *first, double *work) {
  const double *begin = u->turn->begin, *end = u->turn->end;
  const size_t n = u->plan->n_subgroups;
  const hk_op barrier = {.kind = HK_OP_BARRIER};
  double flushed = 0, until_barrier = end[0], from_barrier = 0;
  for (size_t i = 0; i < n; i++) {
    flushed += add_subgroup(u, &u->plan->subgroups[i]);
    work[i] = u->work.longest;
    until_barrier = fmax(until_barrier, flushed + end[first[i]]);
    from_barrier = fmax(from_barrier, u->late.longest - begin[first[i]]);
  }
  double period = computation(u, 0, u->team);
  for (size_t i = 0; i < n; i++)
    period = fmax(period, work[i] + computation(u, first[i], u->team - work[i]));
  const double norm = (double)hk_demand_of(&u->node, &barrier, u->turn->machine).latency;
  return fmax(fmax(period, u->all.longest), until_barrier + norm + from_barrier);
}

/* A settled iteration is below the bound by no more than periods may differ, or more iterations
 * would have been simulated (is_below_bound in sim/forecast.c). */
hk_ns hk_turn_settled(hk_ns least) {
  return hk_max(0, hk_bound_floor((double)least / (1 + 2.0 / HK_STEADY)) - 1);
}

hk_status hk_turn_least(const hk_turn *turn, const hk_plan *plan, hk_ns *least, hk_error *err) {
  const size_t n = plan->n_subgroups;
  int32_t *blocks = malloc((2 * n + 1) * sizeof *blocks);
  double *work = malloc((n + 1) * sizeof *work);
  updates u = {.turn = turn, .plan = plan, .node = hk_programme_node(plan)};
  if (blocks != NULL && work != NULL) {
    for (int r = 0; r < HK_RES_COUNT; r++)
      add_time(&u.all, &u.all.resource[r], time_of(&u, r, turn->load[r]));
    u.node.cores_unbound = !plan->cores_bound;
    hk_plan_subgroup_blocks(plan, blocks, blocks + n);
    *least = hk_max(0, hk_bound_floor(bound_of(&u, blocks, work)) - 1);
  }
  const bool made = blocks != NULL && work != NULL;
  free(blocks);
  free(work);
  return made ? HK_OK : hk_fail_memory(err, 2 * n * sizeof *work, "the bound of a period");
}
