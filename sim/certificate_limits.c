/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The limits of certificate.h: those of modes, and what forward and backward take in any plan of a
 * job. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/certificate.h"
#include "sim/contention.h"
#include "sim/programme.h"

/* -- Limits of modes -------------------------------------------------------------------------- */

static hk_mode_limit *add_limit(hk_certificate_part *part, int mode, const char *name,
                                double capacity) {
  hk_mode_limit *limit = &part->limits[mode][part->n_limits[mode]++];
  snprintf(limit->name, sizeof limit->name, "%s", name);
  limit->capacity = capacity;
  return limit;
}

static bool is_shared_by_works(hk_resource r) {
  return r == HK_RES_H2D || r == HK_RES_D2H || r == HK_RES_PCIE || r == HK_RES_DRAM ||
         r == HK_RES_DRAM_CPU || r == HK_RES_FABRIC_H2D || r == HK_RES_FABRIC_D2H ||
         r == HK_RES_FABRIC;
}

static double use_of(const hk_graph *node, const hk_demand *d, hk_resource resource) {
  double sum = 0;
  for (int u = 0; u < d->n_uses; u++)
    if (d->uses[u].resource == resource) sum += d->uses[u].per_unit * hk_use_count(node, resource);
  return sum;
}

/* Copies in beside CPU kernels: kept = 1 - (1 - least) (load - from) / (1 - from) for a load above
 * `from` (hk_h2d_kept), which is concave, so that it also holds for averages over a mode. The load
 * is at least the traffic that there is. */
static void add_loaded(hk_certificate_part *part, int mode, const hk_machine *m, double bytes) {
  const double least = m->h2d_loaded.value / m->h2d.value, from = m->h2d_load_from.value;
  if (least <= 0 || least >= 1) return;
  const double slope = (1 - least) / (1 - from);
  hk_mode_limit *limit =
      add_limit(part, mode, "h2d beside CPU kernels", m->h2d.value * (1 + slope * from));
  limit->uses[HK_WORK_IN] = 1;
  limit->uses[HK_WORK_CPU] = slope * m->h2d.value * bytes / m->dram.value;
}

/* CPU kernels beside copies. Where copies in and kernels read at once, CPU kernels reach `few`, as
 * writes are slow (hk_copies_out), else `all`. Then a GPU writes at most `slow`: copies out at a
 * share b of their rate, and a mapped kernel. In a share f of a mode's time:
 *   out <= d2h - f (d2h - slow),   cpu <= all + f (few - all).
 * Without f: cpu + out (few - all) / (d2h - slow) <= all + (few - all) d2h / (d2h - slow). With
 * several GPUs f is also the share of them, because powers are convex. */
static void add_kernel(hk_certificate_part *part, int mode, double fastest, double gpus,
                       const hk_machine *m) {
  const bool in = hk_mode_has(mode, HK_WORK_IN), out = hk_mode_has(mode, HK_WORK_OUT);
  const double gpus_in = in ? gpus : 0, gpus_out = out ? gpus : 0;
  const double all = fastest * hk_cpu_kept(m, gpus_in, gpus_out);
  const double b = in && out ? m->d2h_beside_reads.value : 1;
  const double few = fastest * hk_cpu_kept(m, gpus_in, b * gpus_out);
  const char *name = in || out ? "CPU kernel beside copies" : "CPU kernel";
  add_limit(part, mode, name, few)->uses[HK_WORK_CPU] = 1;
  const double less = (1 - b) * m->d2h.value - m->mapped.value / 2; /* d2h - slow */
  if (few <= all || less <= 0) return;
  const double slope = (few - all) / less;
  hk_mode_limit *limit =
      add_limit(part, mode, "CPU kernel beside copies out", all + slope * m->d2h.value);
  limit->uses[HK_WORK_CPU] = 1;
  limit->uses[HK_WORK_OUT] = slope;
}

/* `fastest`: parameters a second of all cores of a rank. `ahead`: updates run ahead of the norm. */
static void add_modes(hk_certificate_part *part, double fastest, const hk_graph *node, bool ahead,
                      const hk_machine *m) {
  const hk_op ops[] = {{.kind = HK_OP_ADAMW_CPU, .threads = 1, .ahead = ahead},
                       {.kind = HK_OP_STATE_H2D},
                       {.kind = HK_OP_STATE_D2H}};
  hk_demand demands[HK_WORK_COUNT];
  for (int w = 0; w < HK_WORK_COUNT; w++) demands[w] = hk_demand_of(node, &ops[w], m);
  for (int mode = 0; mode < HK_MODES; mode++) {
    if (!hk_part_has_mode(part, mode)) continue;
    const bool cpu = hk_mode_has(mode, HK_WORK_CPU), in = hk_mode_has(mode, HK_WORK_IN),
               out = hk_mode_has(mode, HK_WORK_OUT), mixed = cpu && (in || out);
    for (int r = 0; r < HK_RES_COUNT; r++) {
      double uses[HK_WORK_COUNT] = {0}, sum = 0;
      for (int w = 0; w < HK_WORK_COUNT; w++)
        if (hk_mode_has(mode, w)) sum += uses[w] = use_of(node, &demands[w], (hk_resource)r);
      if (!is_shared_by_works((hk_resource)r) || sum == 0) continue;
      char name[40];
      snprintf(name, sizeof name, "%s%s", hk_resource_name((hk_resource)r),
               r == HK_RES_DRAM && mixed ? " beside copies" : "");
      hk_mode_limit *limit =
          add_limit(part, mode, name, hk_resource_capacity(m, (hk_resource)r, mixed));
      memcpy(limit->uses, uses, sizeof uses);
    }
    if (!cpu) continue;
    add_kernel(part, mode, fastest, node->multiplicity, m);
    if (in) add_loaded(part, mode, m, use_of(node, &demands[HK_WORK_CPU], HK_RES_DRAM_CPU));
  }
}

/* -- Chains of forward and backward ----------------------------------------------------------- */

/* Operations of forward and backward that every plan of the job has. */
static bool is_training(const hk_op *op) {
  return op->rank == 0 && (op->kind == HK_OP_LAUNCH || op->kind == HK_OP_ALL_GATHER ||
                           op->kind == HK_OP_FORWARD || op->kind == HK_OP_BACKWARD ||
                           op->kind == HK_OP_TP_ALL_REDUCE || op->kind == HK_OP_STAGE_SEND ||
                           op->kind == HK_OP_ALL_TO_ALL || op->kind == HK_OP_REDUCE_SCATTER);
}

/* Only reductions may run in another order than that of the graph (hk_plan.reduce_first). */
static bool is_ordered(const hk_op *op) {
  return op->kind != HK_OP_REDUCE_SCATTER;
}

/* One iteration of a graph, without what its plan adds. */
typedef struct {
  const hk_graph *graph; /* &shared */
  hk_graph shared;       /* the plan's, but for `ops`: [n] operations of any plan of the job */
  const hk_machine *machine;
  size_t n;
  hk_ns *end;      /* [n] of longest_chain; -1: no chain leads there */
  hk_ns *lane_end; /* [lanes] scratch */
  bool *needed;    /* [n] of add_needed */
} training;

static void training_close(training *t) {
  free(t->shared.ops);
  free(t->end);
  free(t->lane_end);
  free(t->needed);
}

static hk_status training_open(training *t, const hk_graph *g, const hk_machine *m, hk_error *err) {
  *t = (training){.graph = &t->shared,
                  .shared = *g,
                  .machine = m,
                  .n = g->n_ops / (size_t)(g->iterations > 1 ? g->iterations : 1)};
  t->shared.ops = malloc((t->n + 1) * sizeof *t->shared.ops);
  t->end = malloc((t->n + 1) * sizeof *t->end);
  t->lane_end = malloc((g->n_lanes + 1) * sizeof *t->lane_end);
  t->needed = malloc((t->n + 1) * sizeof *t->needed);
  if (t->shared.ops == NULL || t->end == NULL || t->lane_end == NULL || t->needed == NULL) {
    training_close(t);
    return hk_fail_memory(err, t->n * sizeof *t->shared.ops, "a certificate");
  }
  for (size_t i = 0; i < t->n; i++) t->shared.ops[i] = hk_op_of_any_plan(g->ops[i]);
  return HK_OK;
}

enum { NONE = -1 };

/* The longest chain that begins with operation `from`; NONE: with any. */
static hk_ns longest_chain(const training *t, int64_t from) {
  const hk_graph *g = t->graph;
  hk_ns longest = 0;
  for (size_t l = 0; l < g->n_lanes; l++) t->lane_end[l] = from == NONE ? 0 : -1;
  for (size_t i = 0; i < t->n; i++) {
    const hk_op *op = &g->ops[i];
    hk_ns begin = is_ordered(op) ? t->lane_end[op->lane] : -1;
    t->end[i] = -1;
    if (!is_training(op) || (int64_t)i < from) continue;
    if ((int64_t)i == from) begin = 0;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++)
      begin = hk_max(begin, t->end[g->deps[d]]);
    if (begin < 0) continue;
    t->end[i] = begin + hk_bound_least(g, op, t->machine);
    if (is_ordered(op)) t->lane_end[op->lane] = t->end[i];
    longest = hk_max(longest, t->end[i]);
  }
  return longest;
}

/* Passes of blocks, by the share of their rate that they keep while the CPU updates. */
typedef struct {
  struct {
    const hk_op *op; /* the first of those with this demand */
    double kept, ns; /* alone */
  } kinds[8];
  int n;
} slowed;

/* A share of launches that the model states depends on the team, so it does not count. */
static double kept_beside(const training *t, const hk_op *op) {
  const hk_machine *m = t->machine;
  const bool stated = hk_launches_stated(m, t->graph->launch_beside_update);
  return hk_pass_kept(t->graph, op, m, stated ? 1 : m->launch_beside_update.value);
}

static void add_slowed(slowed *s, const training *t, size_t i) {
  const hk_op *op = &t->graph->ops[i];
  if (op->rank != 0 || (op->kind != HK_OP_FORWARD && op->kind != HK_OP_BACKWARD)) return;
  int k = 0;
  while (k < s->n && !hk_demand_is_same(s->kinds[k].op, op)) k++;
  if (k == (int)(sizeof s->kinds / sizeof *s->kinds)) return; /* without it the sum is smaller */
  if (k == s->n) {
    s->kinds[k].op = op;
    s->kinds[k].kept = kept_beside(t, op);
    s->n++;
  }
  hk_ns latency, work;
  hk_time_alone(t->graph, op, t->machine, &latency, &work);
  s->kinds[k].ns += (double)hk_max(0, work - 1);
}

/* Of the passes that keep at most *kept, the time *ns alone: those that lose most together. */
static bool most_slowed(const slowed *s, double *kept, double *ns) {
  double most = 0;
  for (int k = 0; k < s->n; k++) {
    double sum = 0;
    for (int i = 0; i < s->n; i++)
      if (s->kinds[i].kept <= s->kinds[k].kept) sum += s->kinds[i].ns;
    if ((1 - s->kinds[k].kept) * sum <= most) continue;
    most = (1 - s->kinds[k].kept) * sum;
    *kept = s->kinds[k].kept;
    *ns = sum;
  }
  return most > 0;
}

/* Adds what operations load that begin after `from` begins and must end before `to` begins, and
 * their passes. t->end is that of longest_chain(t, from). */
static void add_needed(const training *t, int64_t from, int64_t to, double load[HK_RES_COUNT],
                       slowed *passes) {
  const hk_graph *g = t->graph;
  memset(t->needed, 0, t->n * sizeof *t->needed);
  memset(t->lane_end, 0, g->n_lanes * sizeof *t->lane_end); /* 1: of a later operation */
  t->needed[to] = true;
  for (int64_t i = to; i >= from; i--) {
    const hk_op *op = &g->ops[i];
    if (!is_training(op)) continue;
    if (is_ordered(op) && t->lane_end[op->lane] > 0) t->needed[i] = true;
    if (!t->needed[i]) continue;
    if (is_ordered(op)) t->lane_end[op->lane] = 1;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) t->needed[g->deps[d]] = true;
    if (i == to || t->end[i] < 0) continue;
    hk_bound_add_load(g, op, t->machine, load);
    add_slowed(passes, t, (size_t)i);
  }
}

static bool is_of(const hk_op *op, hk_op_kind kind, int micro) {
  return op->rank == 0 && op->kind == kind && op->micro == micro;
}

static int64_t first_of(const training *t, hk_op_kind kind, int micro) {
  for (size_t i = 0; i < t->n; i++)
    if (is_of(&t->graph->ops[i], kind, micro)) return (int64_t)i;
  return NONE;
}

static int64_t last_of(const training *t, hk_op_kind kind, int micro) {
  for (size_t i = t->n; i-- > 0;)
    if (is_of(&t->graph->ops[i], kind, micro)) return (int64_t)i;
  return NONE;
}

/* Time of forward and backward on each kind of lane, and on resources. */
static void sum_training(const training *t, double busy[HK_LANE_KIND_COUNT],
                         double load[HK_RES_COUNT]) {
  const hk_graph *g = t->graph;
  for (size_t i = 0; i < t->n; i++) {
    const hk_op *op = &g->ops[i];
    if (!is_training(op)) continue;
    busy[g->lanes[op->lane].kind] += (double)hk_bound_least(g, op, t->machine);
    hk_bound_add_load(g, op, t->machine, load);
  }
}

#define BESIDE_UPDATES "computation beside updates"

/* -- Limits of all modes ---------------------------------------------------------------------- */

/* Those of an iteration, or of a part of it. */
typedef struct {
  hk_fixed_limit *list;
  int *n;
} limits;

static limits of_iteration(hk_certificate *c) {
  return (limits){c->fixed, &c->n_fixed};
}

static limits of_part(hk_certificate_part *part) {
  return (limits){part->fixed, &part->n_fixed};
}

static hk_fixed_limit *add_fixed(limits to, const char *name, double ns) {
  hk_fixed_limit *limit = &to.list[(*to.n)++];
  snprintf(limit->name, sizeof limit->name, "%s", name);
  limit->fixed_ns = ns;
  limit->beside = 1;
  return limit;
}

static void add_passes(limits to, const slowed *passes) {
  double kept = 1, ns = 0;
  if (most_slowed(passes, &kept, &ns)) add_fixed(to, BESIDE_UPDATES, ns)->beside = kept;
}

/* Time that forward and backward, by what they load, need of a row of the programme. */
static double fixed_of(int row, const double load[HK_RES_COUNT], const hk_machine *m) {
  if (row >= HK_RES_COUNT) return 0;
  return 1e9 * load[row] / hk_resource_capacity(m, (hk_resource)row, false);
}

static void add_row(limits to, const hk_programme *lp, int row, double fixed) {
  const char *name = row < HK_RES_COUNT ? hk_resource_name((hk_resource)row) : "mapped kernel";
  memcpy(add_fixed(to, name, fixed)->time, lp->time[row], sizeof lp->time[row]);
}

/* Without an overlap: forward and backward, then the barrier. */
static void add_before(hk_certificate *c, const training *t, double barrier) {
  const hk_machine *m = t->machine;
  double busy[HK_LANE_KIND_COUNT] = {0}, load[HK_RES_COUNT] = {0};
  sum_training(t, busy, load);
  c->before_ns = (double)longest_chain(t, NONE);
  for (int k = 0; k < HK_LANE_KIND_COUNT; k++) c->before_ns = fmax(c->before_ns, busy[k]);
  for (int r = 0; r < HK_RES_COUNT; r++) c->before_ns = fmax(c->before_ns, fixed_of(r, load, m));
  c->before_ns += barrier;
}

/* With an overlap: lanes, and the chain from the first forward to the barrier, for which the first
 * block's next weights wait. */
static void add_training(hk_certificate *c, const training *t, const hk_plan *plan,
                         double load[HK_RES_COUNT], double barrier) {
  double busy[HK_LANE_KIND_COUNT] = {0};
  sum_training(t, busy, load);
  for (int k = 0; k < HK_LANE_KIND_COUNT; k++) {
    char name[40];
    snprintf(name, sizeof name, "lane %s", hk_lane_kind_name((hk_lane_kind)k));
    if (busy[k] > 0) add_fixed(of_iteration(c), name, busy[k]);
  }
  slowed passes = {.n = 0};
  for (size_t i = 0; i < t->n; i++) add_slowed(&passes, t, i);
  add_passes(of_iteration(c), &passes);
  const int64_t forward = first_of(t, HK_OP_FORWARD, 0);
  if (plan->model.arch == HK_ARCH_LISTED || plan->model.frozen != NULL ||
      plan->clip == HK_CLIP_BLOCK || forward == NONE)
    return;
  add_fixed(of_iteration(c), "forward, backward, barrier",
            (double)longest_chain(t, forward) + barrier);
}

static void add_resources(hk_certificate *c, const hk_programme *lp, const hk_machine *m,
                          const double load[HK_RES_COUNT]) {
  for (int r = 0; r < HK_ROW_COUNT; r++) {
    if (r == HK_ROW_CPU || (r < HK_RES_COUNT && is_shared_by_works((hk_resource)r))) continue;
    const double fixed = fixed_of(r, load, m);
    double sum = 0;
    for (int j = 0; j < HK_ROUTE_COUNT; j++) sum += lp->time[r][j];
    if (fixed + sum > 0) add_row(of_iteration(c), lp, r, fixed);
  }
}

/* -- Parts of an iteration -------------------------------------------------------------------- */

static hk_certificate_part *add_part(hk_certificate *c, const char *name, bool updates,
                                     bool state) {
  hk_certificate_part *part = &c->parts[c->n_parts++];
  snprintf(part->name, sizeof part->name, "%s", name);
  part->has[HK_WORK_CPU] = part->has[HK_WORK_IN] = updates;
  part->has[HK_WORK_OUT] = true;
  part->state = state;
  return part;
}

/* From the barrier to the last block's forward, which waits for all updates, as those on the GPU
 * wait for the barrier: they and the forward of the other blocks share the GPU. */
static void add_updates(hk_certificate *c, const hk_programme *lp, const training *t,
                        int64_t last_forward, bool ahead) {
  const limits part = of_part(add_part(c, "updates", true, true));
  const int64_t launch = first_of(t, HK_OP_LAUNCH, 0);
  const int rows[] = {HK_RES_GPU, HK_RES_HBM, HK_ROW_MAPPED, HK_RES_CORES};
  double load[HK_RES_COUNT] = {0};
  slowed passes = {.n = 0};
  if (launch != NONE && launch < last_forward) {
    longest_chain(t, launch);
    const hk_ns least = hk_bound_least(t->graph, &t->graph->ops[last_forward], t->machine);
    if (t->end[last_forward] > least)
      add_fixed(part, "forward before the last block", (double)(t->end[last_forward] - least));
    add_needed(t, launch, last_forward, load, &passes);
  }
  add_passes(part, &passes);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i] == HK_RES_CORES && ahead) continue; /* the CPU updates before the barrier, too */
    add_row(part, lp, rows[i], fixed_of(rows[i], load, t->machine));
  }
}

/* The parts of an iteration whose updates overlap with computation (certificate.h). Each begins
 * where the one before ends. */
static void add_parts(hk_certificate *c, const hk_programme *lp, const training *t,
                      hk_overlap overlap, double barrier) {
  int last_micro = 0;
  for (size_t i = 0; i < t->n; i++) last_micro = (int)hk_max(last_micro, t->graph->ops[i].micro);
  const int64_t forward = last_of(t, HK_OP_FORWARD, 0);
  const int64_t backward = first_of(t, HK_OP_BACKWARD, last_micro);
  if (t->graph->ranks > 1 || forward == NONE || backward < forward) {
    add_part(c, "iteration", true, true);
    return;
  }
  const bool ahead = overlap == HK_OVERLAP_BOTH;
  add_updates(c, lp, t, forward, ahead);
  const double to_barrier = (double)longest_chain(t, forward) + barrier;
  const double gradients = (double)hk_max(0, t->end[backward]);
  if (!ahead) {
    add_fixed(of_part(add_part(c, "no updates", false, false)),
              "last block's forward to the barrier", to_barrier);
    return;
  }
  add_fixed(of_part(add_part(c, "no updates", false, false)),
            "forward and backward of the last block", gradients);
  const double rest = (double)longest_chain(t, backward) + barrier;
  const limits part = of_part(add_part(c, "updates ahead of the norm", true, false));
  add_fixed(part, "backward to the barrier", rest - (double)t->end[backward]);
  slowed passes = {.n = 0};
  for (size_t i = (size_t)backward + 1; i < t->n; i++) add_slowed(&passes, t, i);
  add_passes(part, &passes);
}

/* Limits of the modes of each part. In the third all updates of the CPU run ahead of the norm, at a
 * rate of their own. */
static void add_all_modes(hk_certificate *c, const hk_programme *lp, const hk_graph *node,
                          bool both, const hk_machine *m) {
  const double rate = m->cpu_adamw_ahead.value;
  const double fastest = 1e9 / lp->time[HK_ROW_CPU][HK_ROUTE_CPU];
  for (int i = 0; i < c->n_parts; i++) {
    const bool only = i == 2; /* all of its updates run ahead */
    add_modes(&c->parts[i], only && rate < 1 ? fastest * rate : fastest, node,
              both && (only || rate > 1), m);
  }
}

hk_status hk_certificate_limits(hk_certificate *c, const hk_programme *lp, const hk_forecast *f,
                                const hk_machine *m, hk_error *err) {
  const hk_plan *plan = &f->plan;
  const hk_graph node = hk_programme_node(plan);
  const hk_op barrier_op = {.kind = HK_OP_BARRIER};
  const double barrier = (double)hk_demand_of(&node, &barrier_op, m).latency;
  double load[HK_RES_COUNT] = {0};
  training t;
  HK_TRY(training_open(&t, &f->graph, m, err));
  if (plan->overlap == HK_OVERLAP_NONE) {
    add_part(c, "update", true, true);
    add_before(c, &t, barrier);
  } else {
    add_training(c, &t, plan, load, barrier);
    add_parts(c, lp, &t, plan->overlap, barrier);
  }
  training_close(&t);
  add_all_modes(c, lp, &node, plan->overlap == HK_OVERLAP_BOTH, m);
  add_resources(c, lp, m, load);
  return HK_OK;
}
