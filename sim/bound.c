/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The linear programme of bound.h, its dual certificate, and the bound of one fixed graph. */
#include "sim/bound.h"

#include <glpk.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/programme.h"

hk_graph hk_programme_node(const hk_plan *plan) {
  const hk_job *job = &plan->job;
  return (hk_graph){.ranks = 1,
                    .optimizer = plan->optimizer,
                    .multiplicity = hk_job_ranks(job),
                    .nodes = job->nodes,
                    .world = job->gpus * job->nodes,
                    .tp = job->tp,
                    .pp = hk_job_pp(job),
                    .ep = hk_job_ep(job)};
}

/* CPU kernels: the better of the two AdamWs. Few threads are the most efficient (n0 / rate core
 * seconds per parameter); all cores are the fastest for one rank. `ahead`: updates may run ahead of
 * the norm, at cpu.adamw_ahead_rate where that is above 1. */
static void fill_cpu(hk_programme *lp, int ranks, bool ahead, hk_optimizer optimizer,
                     const hk_machine *m) {
  const double best = (ahead ? m->cpu_adamw_ahead.value : 1) *
                      (optimizer == HK_OPTIMIZER_FP32 ? 1 : hk_update_speed(optimizer));
  const hk_quantity *const rates[] = {&m->cpu_adamw, &m->cpu_adamw_fp32};
  const hk_quantity *const scales[] = {&m->cpu_adamw_threads, &m->cpu_adamw_fp32_threads};
  double core_seconds = INFINITY, fastest = 0;
  for (int i = 0; i < 2; i++) {
    core_seconds = fmin(core_seconds, hk_cpu_thread_scale(m, scales[i]) / rates[i]->value);
    fastest = fmax(fastest, hk_cpu_rate(m, rates[i], scales[i], m->cores.value));
  }
  lp->time[HK_RES_CORES][HK_ROUTE_CPU] = 1e9 * ranks * core_seconds / m->cores.value / best;
  lp->time[HK_ROW_CPU][HK_ROUTE_CPU] = 1e9 / fastest / best;
}

/* The fewest bytes that any runtime moves: fewer bytes would be a different algorithm, not a better
 * schedule. */
void hk_programme_times(hk_programme *lp, const hk_plan *plan, const hk_machine *m) {
  const hk_graph one = hk_programme_node(plan);
  const bool ahead = plan->overlap == HK_OVERLAP_BOTH && m->cpu_adamw_ahead.value > 1;
  const double state = hk_state_per_param(plan->optimizer);
  const double products = hk_optimizer_info_of(plan->optimizer)->orthogonal
                              ? hk_model_newton_schulz_flops(&plan->model)
                              : 0;
  const struct {
    hk_route route;
    hk_op_kind kind;
    double work; /* a parameter: parameters, bytes, or floating-point operations */
  } parts[] = {
      {HK_ROUTE_CPU, HK_OP_NEWTON_SCHULZ, products},
      {HK_ROUTE_CPU, HK_OP_ADAMW_CPU, 1},
      {HK_ROUTE_CPU, HK_OP_WEIGHT_H2D, HK_BYTES_BF16},
      {HK_ROUTE_STAGED, HK_OP_STATE_H2D, state},
      {HK_ROUTE_STAGED, HK_OP_NEWTON_SCHULZ, products},
      {HK_ROUTE_STAGED, HK_OP_ADAMW_GPU, 1},
      {HK_ROUTE_STAGED, HK_OP_STATE_D2H, state},
      {HK_ROUTE_MAPPED, HK_OP_NEWTON_SCHULZ, products},
      {HK_ROUTE_MAPPED, HK_OP_ADAMW_MAPPED, 1},
      {HK_ROUTE_RESIDENT, HK_OP_NEWTON_SCHULZ, products},
      {HK_ROUTE_RESIDENT, HK_OP_ADAMW_GPU, 1},
  };
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    const hk_op op = {.kind = parts[i].kind, .threads = 1, .ahead = ahead};
    const hk_demand d = hk_demand_of(&one, &op, m);
    for (int u = 0; u < d.n_uses; u++) {
      const hk_resource r = d.uses[u].resource;
      if (r == HK_RES_CORES) continue;
      const double ranks = hk_use_count(&one, r);
      lp->time[r][parts[i].route] +=
          1e9 * ranks * parts[i].work * d.uses[u].per_unit / hk_resource_capacity(m, r, false);
    }
  }
  fill_cpu(lp, one.multiplicity, ahead, plan->optimizer, m);
  lp->time[HK_ROW_MAPPED][HK_ROUTE_MAPPED] = 1e9 * 2 * state / m->mapped.value;
}

void hk_programme_memory(hk_programme *lp, const hk_plan *plan, const hk_machine *m, double n) {
  const double gpu =
      hk_gpu_capacity(m) - HK_BYTES_BF16 * n -
      (double)hk_model_all_frozen_bytes(&plan->model, plan->job.tp, hk_job_dp(&plan->job));
  const double host = hk_host_capacity(m) / hk_job_ranks(&plan->job);
  const double state = hk_state_per_param(plan->optimizer);
  lp->free_gpu = gpu;
  lp->most_resident = fmin(1, fmax(0, gpu / (state * n)));
  lp->least_resident = fmax(0, 1 - host / (state * n));
}

/* -- GLPK --------------------------------------------------------------------------------- */

/* Columns 1 .. HK_ROUTE_COUNT are the shares, the next is t. Row r + 1 is resource r, the last the
 * sum of shares. Memory limits are bounds of the resident column. */
typedef struct {
  const hk_programme *lp;
  hk_bound *bound;
  double *y; /* [HK_ROW_COUNT] */
} physical;

static void load(glp_prob *p, const void *problem) {
  const hk_programme *lp = ((const physical *)problem)->lp;
  const int t = HK_ROUTE_COUNT + 1, sum = HK_ROW_COUNT + 1;
  int rows[HK_ROW_COUNT * (HK_ROUTE_COUNT + 1) + HK_ROUTE_COUNT + 1];
  int columns[sizeof rows / sizeof rows[0]];
  double values[sizeof rows / sizeof rows[0]];
  int n = 0;
  glp_set_obj_dir(p, GLP_MIN);
  glp_add_rows(p, sum);
  glp_add_cols(p, t);
  glp_set_col_bnds(p, t, GLP_LO, 0, 0);
  glp_set_obj_coef(p, t, 1);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) glp_set_col_bnds(p, j + 1, GLP_LO, 0, 0);
  const double low = lp->least_resident, high = lp->most_resident;
  glp_set_col_bnds(p, HK_ROUTE_RESIDENT + 1, high > low ? GLP_DB : GLP_FX, low, high);
  for (int r = 0; r < HK_ROW_COUNT; r++) {
    glp_set_row_bnds(p, r + 1, GLP_LO, 0, 0); /* t - time f >= 0 */
    n++;
    rows[n] = r + 1, columns[n] = t, values[n] = 1;
    for (int j = 0; j < HK_ROUTE_COUNT; j++) {
      if (lp->time[r][j] == 0) continue;
      n++;
      rows[n] = r + 1, columns[n] = j + 1, values[n] = -lp->time[r][j];
    }
  }
  glp_set_row_bnds(p, sum, GLP_FX, 1, 1);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) {
    n++;
    rows[n] = sum, columns[n] = j + 1, values[n] = 1;
  }
  glp_load_matrix(p, n, rows, columns, values);
}

static void read_solution(glp_prob *p, void *problem) {
  const physical *answer = problem;
  for (int r = 0; r < HK_ROW_COUNT; r++) answer->y[r] = fmax(0, glp_get_row_dual(p, r + 1));
  for (int j = 0; j < HK_ROUTE_COUNT; j++) answer->bound->share[j] = glp_get_col_prim(p, j + 1);
}

/* Solves, with every call of GLPK that may fail. */
static void solve_programme(hk_programme_load fill, hk_programme_read read, void *problem,
                            bool *optimal) {
  glp_term_out(GLP_OFF); /* GLPK's environment is one per thread; its output is switched off */
  glp_prob *p = glp_create_prob();
  fill(p, problem);
  glp_smcp parameters;
  glp_init_smcp(&parameters);
  parameters.msg_lev = GLP_MSG_OFF;
  int code = glp_simplex(p, &parameters);
  if (code != 0 || glp_get_status(p) != GLP_OPT) {
    /* Rows of a profile's extremes differ by more than doubles can tell apart. */
    glp_std_basis(p);
    code = glp_exact(p, &parameters);
  }
  *optimal = code == 0 && glp_get_status(p) == GLP_OPT;
  if (*optimal) read(p, problem);
  glp_delete_prob(p);
}

static void leave_glpk(void *place) {
  longjmp(*(jmp_buf *)place, 1);
}

/* Without a hook GLPK aborts the program when memory runs out. A hook may leave it by longjmp if
 * the environment is then freed (reference manual, glp_error_hook). */
hk_status hk_programme_solve(hk_programme_load fill, hk_programme_read read, void *problem,
                             bool *solved, hk_error *err) {
  jmp_buf place;
  *solved = false;
  if (glp_init_env() > 1) return hk_fail(err, HK_ENVIRONMENT, "GLPK cannot be set up: no memory");
  if (setjmp(place) != 0) {
    glp_free_env();
    return hk_fail(err, HK_ENVIRONMENT, "out of memory (for the bound's linear programme)");
  }
  glp_error_hook(leave_glpk, &place);
  solve_programme(fill, read, problem, solved);
  glp_error_hook(NULL, NULL);
  return HK_OK;
}

/* The value that the prices y prove (bound.h), memory limits entering through the best z: with
 * f_resident in [low, high], the cheapest mix puts as much as it may on the cheaper side. */
static double certify(const hk_programme *lp, double y[HK_ROW_COUNT]) {
  double total = 0;
  for (int r = 0; r < HK_ROW_COUNT; r++) total += y[r];
  if (!(total > 0)) return 0;
  double cost[HK_ROUTE_COUNT] = {0};
  for (int r = 0; r < HK_ROW_COUNT; r++) {
    y[r] /= total;
    for (int j = 0; j < HK_ROUTE_COUNT; j++) cost[j] += y[r] * lp->time[r][j];
  }
  const double host = fmin(cost[HK_ROUTE_CPU], fmin(cost[HK_ROUTE_STAGED], cost[HK_ROUTE_MAPPED]));
  const double resident = cost[HK_ROUTE_RESIDENT];
  const double share = resident < host ? lp->most_resident : lp->least_resident;
  return share * resident + (1 - share) * host;
}

static void name_binding(hk_bound *bound) {
  double dearest = bound->cpu_price;
  snprintf(bound->binding, sizeof bound->binding, "%s", dearest > 0 ? "cpu kernel" : "nothing");
  for (int r = 0; r < HK_RES_COUNT; r++) {
    if (bound->price[r] > dearest) {
      dearest = bound->price[r];
      snprintf(bound->binding, sizeof bound->binding, "%s", hk_resource_name((hk_resource)r));
    }
  }
  if (bound->mapped_price > dearest) {
    snprintf(bound->binding, sizeof bound->binding, "mapped kernel");
  }
}

hk_ns hk_bound_floor(double ns) {
  return (hk_ns)floor(fmin(ns * (1 - 1e-9), 0x1p62));
}

hk_ns hk_bound_least(const hk_graph *graph, const hk_op *op, const hk_machine *machine) {
  hk_ns latency, work;
  hk_time_alone(graph, op, machine, &latency, &work);
  return latency + (work > 0 ? work - 1 : 0);
}

/* Latency of the barrier. Every update waits for it, and it uses no resource, so it adds to the
 * time of the resources. */
static hk_ns barrier_ns(const hk_graph *graph, const hk_machine *machine) {
  const hk_op barrier = {.kind = HK_OP_BARRIER};
  return hk_demand_of(graph, &barrier, machine).latency;
}

hk_status hk_bound_physical(const hk_plan *plan, const hk_machine *machine, hk_bound *bound,
                            hk_error *err) {
  memset(bound, 0, sizeof *bound);
  snprintf(bound->binding, sizeof bound->binding, "nothing");
  int64_t totals[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, totals);
  double n = 0;
  for (int j = 0; j < HK_ROUTE_COUNT; j++) n += (double)totals[j];

  hk_programme lp = {0};
  hk_programme_times(&lp, plan, machine);
  hk_programme_memory(&lp, plan, machine, n);
  bound->feasible = lp.least_resident <= lp.most_resident;
  if (!bound->feasible) return HK_OK;

  double y[HK_ROW_COUNT] = {0};
  physical problem = {&lp, bound, y};
  bool solved;
  HK_TRY(hk_programme_solve(load, read_solution, &problem, &solved, err));
  if (!solved)
    return hk_fail(err, HK_ENVIRONMENT, "GLPK did not solve the bound's linear programme");
  const hk_graph node = hk_programme_node(plan);
  bound->update_ns = hk_bound_floor(certify(&lp, y) * n);
  /* With an overlap the barrier is no part of the time in which updates run. */
  if (plan->overlap == HK_OVERLAP_NONE) bound->update_ns += barrier_ns(&node, machine);
  memcpy(bound->price, y, sizeof bound->price);
  bound->cpu_price = y[HK_ROW_CPU];
  bound->mapped_price = y[HK_ROW_MAPPED];
  name_binding(bound);
  return HK_OK;
}

hk_ns hk_bound_shares(const hk_plan *plan, const hk_machine *machine) {
  hk_programme lp = {0};
  int64_t totals[HK_ROUTE_COUNT];
  double n = 0, longest = 0;
  hk_plan_route_totals(plan, totals);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) n += (double)totals[j];
  hk_programme_times(&lp, plan, machine);
  hk_programme_memory(&lp, plan, machine, n);
  const double resident = (double)totals[HK_ROUTE_RESIDENT] / n, rounding = 1e-9;
  if (resident < lp.least_resident - rounding || resident > lp.most_resident + rounding)
    return INT64_MAX;
  for (int r = 0; r < HK_ROW_COUNT; r++) {
    double ns = 0;
    for (int j = 0; j < HK_ROUTE_COUNT; j++) ns += lp.time[r][j] * (double)totals[j];
    longest = fmax(longest, ns);
  }
  const hk_graph node = hk_programme_node(plan);
  return hk_bound_floor(longest) + barrier_ns(&node, machine);
}

/* They share one lane of a GPU, and each takes as long as its block's computation alone. */
hk_ns hk_bound_training(const hk_graph *graph, const hk_machine *machine) {
  hk_ns sum = 0;
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op op = hk_op_of_any_plan(graph->ops[i]);
    if (op.rank == 0 && (op.kind == HK_OP_FORWARD || op.kind == HK_OP_BACKWARD))
      sum += hk_bound_least(graph, &op, machine);
  }
  return sum;
}

static void add_load(const hk_graph *graph, const hk_op *op, const hk_demand *d,
                     double load[HK_RES_COUNT]) {
  if (!isfinite(d->cap)) return;
  for (int u = 0; u < d->n_uses; u++) {
    const hk_resource r = d->uses[u].resource;
    const double ranks = hk_use_count(graph, r) * (hk_resource_is_node(r) ? graph->ranks : 1);
    load[r] += (double)op->work * d->uses[u].per_unit * ranks;
  }
}

void hk_bound_add_load(const hk_graph *graph, const hk_op *op, const hk_machine *machine,
                       double load[HK_RES_COUNT]) {
  const hk_demand d = hk_demand_of(graph, op, machine);
  add_load(graph, op, &d, load);
}

hk_status hk_bound_graph(const hk_graph *graph, const hk_machine *machine, hk_bound *bound,
                         hk_error *err) {
  memset(bound, 0, sizeof *bound);
  bound->feasible = true;
  double load[HK_RES_COUNT] = {0};
  hk_demand_memo memo = {0};
  const bool unrolled = graph->iterations > 1;
  const size_t each = unrolled ? graph->n_ops / (size_t)graph->iterations : graph->n_ops;
  for (size_t i = 0; i < each; i++) {
    const hk_op *op = &graph->ops[i];
    if (op->phase != HK_PHASE_UPDATE || op->rank != 0) continue; /* ranks are alike */
    add_load(graph, op, hk_demand_again(&memo, graph, op, machine), load);
  }
  double longest = 0;
  snprintf(bound->binding, sizeof bound->binding, "nothing");
  for (int r = 0; r < HK_RES_COUNT; r++) {
    const double ns = load[r] / hk_resource_capacity(machine, (hk_resource)r, false) * 1e9;
    if (ns > longest) {
      longest = ns;
      snprintf(bound->binding, sizeof bound->binding, "%s", hk_resource_name((hk_resource)r));
    }
  }
  if (unrolled) {
    bound->update_ns = hk_bound_floor(longest);
    return HK_OK;
  }
  const hk_ns path = hk_critical_path(graph, machine, HK_EXPAND_UPDATE, err);
  if (path < 0) return HK_ENVIRONMENT;
  bound->update_ns = barrier_ns(graph, machine) + hk_bound_floor(longest);
  if (path > bound->update_ns) {
    bound->update_ns = path;
    snprintf(bound->binding, sizeof bound->binding, "critical path");
  }
  return HK_OK;
}
