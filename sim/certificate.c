/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The limits, the linear programme and the bound of certificate.h. */
#include "sim/certificate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/contention.h"
#include "sim/programme.h"

const char *const hk_work_names[HK_WORK_COUNT] = {"cpu", "in", "out"};

double hk_certificate_gap(const hk_certificate *c) {
  return (double)c->iteration_ns / (double)hk_max(1, c->bound_ns) - 1;
}

/* -- Limits of modes -------------------------------------------------------------------------- */

static hk_mode_limit *add_limit(hk_certificate *c, int mode, const char *name, double capacity) {
  hk_mode_limit *limit = &c->limits[mode][c->n_limits[mode]++];
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
static void add_loaded(hk_certificate *c, int mode, const hk_machine *m, double bytes) {
  const double least = m->h2d_loaded.value / m->h2d.value, from = m->h2d_load_from.value;
  if (least <= 0 || least >= 1) return;
  const double slope = (1 - least) / (1 - from);
  hk_mode_limit *limit =
      add_limit(c, mode, "h2d beside CPU kernels", m->h2d.value * (1 + slope * from));
  limit->uses[HK_WORK_IN] = 1;
  limit->uses[HK_WORK_CPU] = slope * m->h2d.value * bytes / m->dram.value;
}

static void add_modes(hk_certificate *c, const hk_programme *lp, const hk_graph *node, bool ahead,
                      const hk_machine *m) {
  const hk_op ops[] = {{.kind = HK_OP_ADAMW_CPU, .threads = 1, .ahead = ahead},
                       {.kind = HK_OP_STATE_H2D},
                       {.kind = HK_OP_STATE_D2H}};
  hk_demand demands[HK_WORK_COUNT];
  for (int w = 0; w < HK_WORK_COUNT; w++) demands[w] = hk_demand_of(node, &ops[w], m);
  for (int mode = 0; mode < HK_MODES; mode++) {
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
          add_limit(c, mode, name, hk_resource_capacity(m, (hk_resource)r, mixed));
      memcpy(limit->uses, uses, sizeof uses);
    }
    if (!cpu) continue;
    const double kept = hk_cpu_kept(m, in ? node->multiplicity : 0, out ? node->multiplicity : 0);
    add_limit(c, mode, mixed ? "CPU kernel beside copies" : "CPU kernel",
              kept * 1e9 / lp->time[HK_ROW_CPU][HK_ROUTE_CPU])
        ->uses[HK_WORK_CPU] = 1;
    if (in) add_loaded(c, mode, m, use_of(node, &demands[HK_WORK_CPU], HK_RES_DRAM_CPU));
  }
}

/* -- Limits of all modes ---------------------------------------------------------------------- */

static hk_fixed_limit *add_fixed(hk_certificate *c, const char *name, double ns) {
  hk_fixed_limit *limit = &c->fixed[c->n_fixed++];
  snprintf(limit->name, sizeof limit->name, "%s", name);
  limit->fixed_ns = ns;
  return limit;
}

/* Operations of forward and backward that every plan of the job has. */
static bool is_training(const hk_op *op) {
  return op->rank == 0 && (op->kind == HK_OP_LAUNCH || op->kind == HK_OP_ALL_GATHER ||
                           op->kind == HK_OP_FORWARD || op->kind == HK_OP_BACKWARD ||
                           op->kind == HK_OP_TP_ALL_REDUCE || op->kind == HK_OP_STAGE_SEND ||
                           op->kind == HK_OP_ALL_TO_ALL || op->kind == HK_OP_REDUCE_SCATTER);
}

/* Operations of one iteration. */
static size_t ops_of_one(const hk_graph *g) {
  return g->n_ops / (size_t)(g->iterations > 1 ? g->iterations : 1);
}

/* The longest chain of these operations; from the first forward on, or from the beginning. Only
 * reductions may run in another order than that of the graph (hk_plan.reduce_first). */
static hk_status training_path(const hk_graph *g, const hk_machine *m, bool from_forward,
                               hk_ns *longest, hk_error *err) {
  const size_t each = ops_of_one(g);
  hk_ns *end = malloc((each + g->n_lanes + 1) * sizeof *end), *lane_end = end + each;
  if (end == NULL) return hk_fail_memory(err, each * sizeof *end, "a certificate");
  for (size_t l = 0; l < g->n_lanes; l++) lane_end[l] = from_forward ? -1 : 0;
  bool begun = !from_forward;
  *longest = 0;
  for (size_t i = 0; i < each; i++) {
    const hk_op *op = &g->ops[i];
    end[i] = -1;
    if (!is_training(op)) continue;
    const bool ordered = op->kind != HK_OP_REDUCE_SCATTER;
    hk_ns begin = ordered ? lane_end[op->lane] : -1;
    if (!begun && op->kind == HK_OP_FORWARD) begin = 0, begun = true;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) begin = hk_max(begin, end[g->deps[d]]);
    if (begin < 0) continue;
    end[i] = begin + hk_bound_least(g, op, m);
    if (ordered) lane_end[op->lane] = end[i];
    *longest = hk_max(*longest, end[i]);
  }
  free(end);
  return HK_OK;
}

/* Time of forward and backward on each kind of lane, and on resources. */
static void sum_training(const hk_graph *g, const hk_machine *m, double busy[HK_LANE_KIND_COUNT],
                         double load[HK_RES_COUNT]) {
  const size_t each = ops_of_one(g);
  for (size_t i = 0; i < each; i++) {
    const hk_op *op = &g->ops[i];
    if (!is_training(op)) continue;
    busy[g->lanes[op->lane].kind] += (double)hk_bound_least(g, op, m);
    hk_bound_add_load(g, op, m, load);
  }
}

/* Without an overlap: forward and backward, then the barrier. */
static hk_status add_before(hk_certificate *c, const hk_graph *g, const hk_machine *m,
                            double barrier, hk_error *err) {
  double busy[HK_LANE_KIND_COUNT] = {0}, load[HK_RES_COUNT] = {0};
  hk_ns path = 0;
  HK_TRY(training_path(g, m, false, &path, err));
  sum_training(g, m, busy, load);
  c->before_ns = (double)path;
  for (int k = 0; k < HK_LANE_KIND_COUNT; k++) c->before_ns = fmax(c->before_ns, busy[k]);
  for (int r = 0; r < HK_RES_COUNT; r++)
    c->before_ns =
        fmax(c->before_ns, 1e9 * load[r] / hk_resource_capacity(m, (hk_resource)r, false));
  c->before_ns += barrier;
  return HK_OK;
}

/* With an overlap: lanes, and the chain from the first forward to the barrier, for which the first
 * block's next weights wait. */
static hk_status add_training(hk_certificate *c, const hk_forecast *f, const hk_machine *m,
                              double load[HK_RES_COUNT], double barrier, hk_error *err) {
  double busy[HK_LANE_KIND_COUNT] = {0};
  sum_training(&f->graph, m, busy, load);
  for (int k = 0; k < HK_LANE_KIND_COUNT; k++) {
    char name[40];
    snprintf(name, sizeof name, "lane %s", hk_lane_kind_name((hk_lane_kind)k));
    if (busy[k] > 0) add_fixed(c, name, busy[k]);
  }
  if (f->plan.model.arch == HK_ARCH_LISTED || f->plan.model.frozen != NULL ||
      f->plan.clip == HK_CLIP_BLOCK)
    return HK_OK;
  hk_ns path = 0;
  HK_TRY(training_path(&f->graph, m, true, &path, err));
  add_fixed(c, "forward, backward, barrier", (double)path + barrier);
  return HK_OK;
}

static void add_resources(hk_certificate *c, const hk_programme *lp, const hk_machine *m,
                          const double load[HK_RES_COUNT]) {
  for (int r = 0; r < HK_ROW_COUNT; r++) {
    const bool resource = r < HK_RES_COUNT;
    double fixed = 0, sum = 0;
    if (r == HK_ROW_CPU || (resource && is_shared_by_works((hk_resource)r))) continue;
    if (resource) fixed = 1e9 * load[r] / hk_resource_capacity(m, (hk_resource)r, false);
    for (int j = 0; j < HK_ROUTE_COUNT; j++) sum += lp->time[r][j];
    if (!(fixed + sum > 0)) continue;
    hk_fixed_limit *limit =
        add_fixed(c, resource ? hk_resource_name((hk_resource)r) : "mapped kernel", fixed);
    memcpy(limit->time, lp->time[r], sizeof limit->time);
  }
}

/* -- The programme ---------------------------------------------------------------------------- */

enum { MOST_COEFFICIENTS = 1200 };

/* Columns from 1: routes, times of modes, works of modes. */
static int mode_column(int mode) {
  return HK_ROUTE_COUNT + 1 + mode;
}

static int work_column(int mode, int work) {
  return HK_ROUTE_COUNT + HK_MODES + 1 + mode * HK_WORK_COUNT + work;
}

typedef struct {
  hk_certificate *certificate;
  double time[HK_MODES]; /* of each mode in an optimal division, ns a parameter */
} problem;

typedef struct {
  glp_prob *p;
  int row, n;
  int rows[MOST_COEFFICIENTS], columns[MOST_COEFFICIENTS];
  double values[MOST_COEFFICIENTS];
} matrix;

static void begin_row(matrix *a, double at_least) {
  a->row = glp_add_rows(a->p, 1);
  glp_set_row_bnds(a->p, a->row, GLP_LO, at_least, 0);
}

static void put(matrix *a, int column, double value) {
  if (value == 0) return;
  a->n++;
  a->rows[a->n] = a->row, a->columns[a->n] = column, a->values[a->n] = value;
}

static double time_of(const hk_mode_limit *limit, int work) {
  return 1e9 * limit->uses[work] / limit->capacity;
}

static void load_columns(glp_prob *p, const hk_certificate *c) {
  glp_set_obj_dir(p, GLP_MIN);
  glp_add_cols(p, HK_ROUTE_COUNT + HK_MODES * (1 + HK_WORK_COUNT));
  for (int j = 1; j <= glp_get_num_cols(p); j++) glp_set_col_bnds(p, j, GLP_LO, 0, 0);
  const double low = c->least_resident, high = c->most_resident;
  glp_set_col_bnds(p, HK_ROUTE_RESIDENT + 1, high > low ? GLP_DB : GLP_FX, low, high);
  for (int mode = 0; mode < HK_MODES; mode++) {
    glp_set_obj_coef(p, mode_column(mode), 1);
    for (int w = 0; w < HK_WORK_COUNT; w++)
      if (!hk_mode_has(mode, w)) glp_set_col_bnds(p, work_column(mode, w), GLP_FX, 0, 0);
  }
}

/* Rows: limits of all modes, limits of each mode, works, the sum of shares. */
static void load(glp_prob *p, const void *given) {
  const hk_certificate *c = ((const problem *)given)->certificate;
  matrix a = {.p = p};
  load_columns(p, c);
  for (int i = 0; i < c->n_fixed; i++) {
    begin_row(&a, c->fixed[i].fixed_ns / c->parameters);
    for (int mode = 0; mode < HK_MODES; mode++) put(&a, mode_column(mode), 1);
    for (int j = 0; j < HK_ROUTE_COUNT; j++) put(&a, j + 1, -c->fixed[i].time[j]);
  }
  for (int mode = 0; mode < HK_MODES; mode++) {
    for (int i = 0; i < c->n_limits[mode]; i++) {
      begin_row(&a, 0);
      put(&a, mode_column(mode), 1);
      for (int w = 0; w < HK_WORK_COUNT; w++)
        put(&a, work_column(mode, w), -time_of(&c->limits[mode][i], w));
    }
  }
  for (int w = 0; w < HK_WORK_COUNT; w++) {
    begin_row(&a, 0);
    for (int mode = 0; mode < HK_MODES; mode++)
      if (hk_mode_has(mode, w)) put(&a, work_column(mode, w), 1);
    for (int j = 0; j < HK_ROUTE_COUNT; j++) put(&a, j + 1, -c->work[j][w]);
  }
  begin_row(&a, 1);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) put(&a, j + 1, 1);
  glp_set_row_bnds(p, a.row, GLP_FX, 1, 1);
  glp_load_matrix(p, a.n, a.rows, a.columns, a.values);
}

static void read_prices(glp_prob *p, void *given) {
  problem *answer = given;
  hk_certificate *c = answer->certificate;
  int row = 0;
  for (int i = 0; i < c->n_fixed; i++) c->fixed[i].price = fmax(0, glp_get_row_dual(p, ++row));
  for (int mode = 0; mode < HK_MODES; mode++) {
    answer->time[mode] = glp_get_col_prim(p, mode_column(mode));
    for (int i = 0; i < c->n_limits[mode]; i++)
      c->limits[mode][i].price = fmax(0, glp_get_row_dual(p, ++row));
  }
}

/* -- The bound -------------------------------------------------------------------------------- */

#define WHOLE (1 - 1e-12) /* so that sums of rounded prices are at most 1 */

/* Makes the prices of all modes and of each mode sum to 1. */
static void scale_prices(hk_certificate *c) {
  double fixed = 0;
  for (int i = 0; i < c->n_fixed; i++) fixed += c->fixed[i].price;
  const double scale = WHOLE / fmax(1, fixed);
  for (int i = 0; i < c->n_fixed; i++) c->fixed[i].price *= scale;
  for (int mode = 0; mode < HK_MODES; mode++) {
    double sum = 0;
    for (int i = 0; i < c->n_limits[mode]; i++) sum += c->limits[mode][i].price;
    for (int i = 0; i < c->n_limits[mode] && sum > 0; i++)
      c->limits[mode][i].price *= fmax(0, WHOLE - fixed * scale) / sum;
  }
}

/* What a unit of work costs at least, in ns. */
static double cost_of_work(const hk_certificate *c, int work) {
  double cheapest = INFINITY;
  for (int mode = 0; mode < HK_MODES; mode++) {
    double cost = 0;
    for (int i = 0; i < c->n_limits[mode]; i++)
      cost += c->limits[mode][i].price * time_of(&c->limits[mode][i], work);
    if (hk_mode_has(mode, work)) cheapest = fmin(cheapest, cost);
  }
  return cheapest;
}

/* The bound by the prices; *relief: how much less a parameter costs on the GPU than elsewhere. */
static double value_of(const hk_certificate *c, double *relief) {
  double works[HK_WORK_COUNT], costs[HK_ROUTE_COUNT] = {0}, fixed = 0;
  for (int w = 0; w < HK_WORK_COUNT; w++) works[w] = cost_of_work(c, w);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) {
    for (int w = 0; w < HK_WORK_COUNT; w++) costs[j] += works[w] * c->work[j][w];
    for (int i = 0; i < c->n_fixed; i++) costs[j] += c->fixed[i].price * c->fixed[i].time[j];
  }
  for (int i = 0; i < c->n_fixed; i++) fixed += c->fixed[i].price * c->fixed[i].fixed_ns;
  const double host =
      fmin(costs[HK_ROUTE_CPU], fmin(costs[HK_ROUTE_STAGED], costs[HK_ROUTE_MAPPED]));
  *relief = host - costs[HK_ROUTE_RESIDENT];
  const double share = *relief > 0 ? c->most_resident : c->least_resident;
  return c->before_ns + fixed + c->parameters * (host - share * *relief);
}

/* -- What binds ------------------------------------------------------------------------------- */

/* Sums up the time that limits of this name price. */
static double time_priced(const hk_certificate *c, const problem *answer, const char *name,
                          double whole, double *capacity) {
  double ns = 0;
  for (int i = 0; i < c->n_fixed; i++)
    if (strcmp(c->fixed[i].name, name) == 0) ns += c->fixed[i].price * whole;
  for (int mode = 0; mode < HK_MODES; mode++) {
    for (int i = 0; i < c->n_limits[mode]; i++) {
      const hk_mode_limit *limit = &c->limits[mode][i];
      if (strcmp(limit->name, name) != 0) continue;
      ns += limit->price * answer->time[mode] * c->parameters;
      *capacity = limit->capacity;
    }
  }
  return ns;
}

static void consider(hk_certificate *c, const problem *answer, const char *name, double whole) {
  double capacity = 0;
  const double ns = time_priced(c, answer, name, whole, &capacity);
  const double share = whole > 0 ? ns / whole : 0;
  if (share <= c->binding_share) return;
  c->binding_share = share;
  snprintf(c->binding, sizeof c->binding, "%s", name);
  /* The time for the same work falls by the same share as a capacity rises, for small changes. */
  snprintf(c->unit, sizeof c->unit, "%s",
           capacity == 0                          ? "%"
           : strncmp(name, "CPU kernel", 10) == 0 ? "G parameters/s"
                                                  : "GB/s");
  c->worth_ns = capacity > 0 ? ns * 1e9 / capacity : ns / 100;
}

static void name_binding(hk_certificate *c, const problem *answer, double relief) {
  const double whole = (double)c->bound_ns - c->before_ns;
  snprintf(c->binding, sizeof c->binding, "nothing");
  for (int i = 0; i < c->n_fixed; i++) consider(c, answer, c->fixed[i].name, whole);
  for (int mode = 0; mode < HK_MODES; mode++)
    for (int i = 0; i < c->n_limits[mode]; i++) consider(c, answer, c->limits[mode][i].name, whole);
  if (relief > 0 && c->most_resident < 1)
    c->memory_ns = relief * (double)(1 << 30) / c->resident_bytes;
}

/* -- Life ------------------------------------------------------------------------------------- */

/* Memory of activations at the first backward, with its own: all forwards of a micro-step are over.
 */
static double activations(const hk_graph *g) {
  hk_bytes held = 0;
  for (size_t i = 0; i < g->n_ops; i++) {
    const hk_op *op = &g->ops[i];
    if (op->rank != 0) continue;
    if (op->kind == HK_OP_BACKWARD) return (double)(held + op->gpu_alloc);
    if (op->phase == HK_PHASE_FORWARD &&
        (op->kind == HK_OP_ALL_GATHER || op->kind == HK_OP_FORWARD))
      held += op->gpu_alloc - op->gpu_free;
  }
  return 0;
}

/* State on the GPU lies beside weights and activations, and at the barrier beside its gradients. */
static void limit_memory(hk_certificate *c, hk_programme *lp, const hk_forecast *f,
                         const hk_machine *m) {
  hk_programme_memory(lp, &f->plan, m, c->parameters);
  const double state = hk_state_per_param(f->plan.optimizer);
  const double beside_activations = (lp->free_gpu - activations(&f->graph)) / state;
  const double beside_gradients = lp->free_gpu / (state + HK_BYTES_BF16);
  c->resident_bytes = beside_activations < beside_gradients ? state : state + HK_BYTES_BF16;
  c->least_resident = lp->least_resident;
  c->most_resident = fmin(1, fmax(0, fmin(beside_activations, beside_gradients) / c->parameters));
}

static void fill_work(hk_certificate *c, const hk_plan *plan) {
  const double state = hk_state_per_param(plan->optimizer);
  const bool flushes = plan->overlap != HK_OVERLAP_NONE; /* else they are part of backward */
  const double works[HK_ROUTE_COUNT][HK_WORK_COUNT] = {
      [HK_ROUTE_CPU] = {1, HK_BYTES_BF16, flushes ? HK_BYTES_BF16 : 0},
      [HK_ROUTE_STAGED] = {0, state, state},
      [HK_ROUTE_MAPPED] = {0, state, state}};
  memcpy(c->work, works, sizeof works);
}

static hk_status fill(hk_certificate *c, hk_programme *lp, const hk_forecast *f,
                      const hk_machine *m, hk_error *err) {
  const hk_plan *plan = &f->plan;
  const hk_graph node = hk_programme_node(plan);
  const hk_op barrier_op = {.kind = HK_OP_BARRIER};
  const double barrier = (double)hk_demand_of(&node, &barrier_op, m).latency;
  const bool ahead = plan->overlap == HK_OVERLAP_BOTH && m->cpu_adamw_ahead.value > 1;
  double load[HK_RES_COUNT] = {0};
  int64_t totals[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, totals);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) c->parameters += (double)totals[j];
  hk_programme_times(lp, plan, m);
  limit_memory(c, lp, f, m);
  fill_work(c, plan);
  add_modes(c, lp, &node, ahead, m);
  if (plan->overlap != HK_OVERLAP_NONE) {
    HK_TRY(add_training(c, f, m, load, barrier, err));
  } else {
    HK_TRY(add_before(c, &f->graph, m, barrier, err));
  }
  add_resources(c, lp, m, load);
  return HK_OK;
}

hk_status hk_certify(const hk_forecast *f, const hk_machine *machine, hk_certificate *c,
                     hk_error *err) {
  hk_programme lp = {0};
  problem answer = {.certificate = c};
  double relief = 0;
  memset(c, 0, sizeof *c);
  if (!f->feasible || f->plan.runtime != HK_RUNTIME_HOCKET) return HK_OK;
  HK_TRY(fill(c, &lp, f, machine, err));
  if (c->least_resident > c->most_resident) return HK_OK;
  bool solved;
  HK_TRY(hk_programme_solve(load, read_prices, &answer, &solved, err));
  c->unsolved = !solved;
  if (!solved) return HK_OK;
  scale_prices(c);
  c->bound_ns = hk_bound_floor(value_of(c, &relief));
  c->iteration_ns = f->iteration_ns;
  name_binding(c, &answer, relief);
  c->made = true;
  if (c->bound_ns > f->iteration_ns + f->unsteady_ns + f->iteration_ns / 1000)
    return hk_fail(err, HK_NO,
                   "invariant broken: the iteration takes %lld ns, its lower bound (%s) is %lld ns",
                   (long long)f->iteration_ns, c->binding, (long long)c->bound_ns);
  return HK_OK;
}
