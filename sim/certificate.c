/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The linear programme and the bound of certificate.h. */
#include "sim/certificate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/programme.h"

const char *const hk_work_names[HK_WORK_COUNT] = {"cpu", "in", "out"};

double hk_certificate_gap(const hk_certificate *c) {
  return (double)c->iteration_ns / (double)hk_max(1, c->bound_ns) - 1;
}

/* -- The programme ---------------------------------------------------------------------------- */

enum { MOST_COEFFICIENTS = 4000 };

/* Columns from 1: routes, then of each mode of each part its time and its works. */
static int time_column(int part, int mode) {
  return HK_ROUTE_COUNT + 1 + (part * HK_MODES + mode) * (1 + HK_WORK_COUNT);
}

static int work_column(int part, int mode, int work) {
  return time_column(part, mode) + 1 + work;
}

typedef struct {
  hk_certificate *certificate;
  double time[HK_PARTS][HK_MODES]; /* in an optimal division, ns a parameter */
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
  glp_add_cols(p, time_column(c->n_parts, 0) - 1);
  for (int j = 1; j <= glp_get_num_cols(p); j++) glp_set_col_bnds(p, j, GLP_LO, 0, 0);
  const double low = c->least_resident, high = c->most_resident;
  glp_set_col_bnds(p, HK_ROUTE_RESIDENT + 1, high > low ? GLP_DB : GLP_FX, low, high);
  for (int part = 0; part < c->n_parts; part++) {
    for (int mode = 0; mode < HK_MODES; mode++) {
      const bool possible = hk_part_has_mode(&c->parts[part], mode);
      glp_set_obj_coef(p, time_column(part, mode), 1);
      if (!possible) glp_set_col_bnds(p, time_column(part, mode), GLP_FX, 0, 0);
      for (int w = 0; w < HK_WORK_COUNT; w++)
        if (!possible || !hk_mode_has(mode, w))
          glp_set_col_bnds(p, work_column(part, mode, w), GLP_FX, 0, 0);
    }
  }
}

/* The time of parts `from` to `to` - 1 is at least what the limit needs. */
static void load_fixed(matrix *a, const hk_certificate *c, const hk_fixed_limit *limit, int from,
                       int to) {
  begin_row(a, limit->fixed_ns / c->parameters);
  for (int part = from; part < to; part++)
    for (int mode = 0; mode < HK_MODES; mode++)
      put(a, time_column(part, mode), hk_limit_rate(limit, mode));
  for (int j = 0; j < HK_ROUTE_COUNT; j++) put(a, j + 1, -limit->time[j]);
}

static void load_modes(matrix *a, const hk_certificate_part *part, int number) {
  for (int mode = 0; mode < HK_MODES; mode++) {
    for (int i = 0; i < part->n_limits[mode]; i++) {
      begin_row(a, 0);
      put(a, time_column(number, mode), 1);
      for (int w = 0; w < HK_WORK_COUNT; w++)
        put(a, work_column(number, mode, w), -time_of(&part->limits[mode][i], w));
    }
  }
}

/* Rows: limits of the iteration; of each part, then of its modes; works; state; the sum of shares.
 */
static void load(glp_prob *p, const void *given) {
  const hk_certificate *c = ((const problem *)given)->certificate;
  matrix a = {.p = p};
  load_columns(p, c);
  for (int i = 0; i < c->n_fixed; i++) load_fixed(&a, c, &c->fixed[i], 0, c->n_parts);
  for (int part = 0; part < c->n_parts; part++) {
    const hk_certificate_part *of = &c->parts[part];
    for (int i = 0; i < of->n_fixed; i++) load_fixed(&a, c, &of->fixed[i], part, part + 1);
    load_modes(&a, of, part);
  }
  for (int w = 0; w < HK_WORK_COUNT; w++) {
    begin_row(&a, 0);
    for (int part = 0; part < c->n_parts; part++)
      for (int mode = 0; mode < HK_MODES; mode++)
        if (hk_mode_has(mode, w)) put(&a, work_column(part, mode, w), 1);
    for (int j = 0; j < HK_ROUTE_COUNT; j++)
      put(&a, j + 1, -c->work[j][w] - (w == HK_WORK_IN ? c->state_in[j] : 0));
  }
  begin_row(&a, 0);
  for (int part = 0; part < c->n_parts; part++)
    for (int mode = 0; mode < HK_MODES && c->parts[part].state; mode++)
      if (hk_mode_has(mode, HK_WORK_IN)) put(&a, work_column(part, mode, HK_WORK_IN), 1);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) put(&a, j + 1, -c->state_in[j]);
  begin_row(&a, 1);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) put(&a, j + 1, 1);
  glp_set_row_bnds(p, a.row, GLP_FX, 1, 1);
  glp_load_matrix(p, a.n, a.rows, a.columns, a.values);
}

static void read_fixed(glp_prob *p, hk_fixed_limit *limits, int n, int *row) {
  for (int i = 0; i < n; i++) limits[i].price = fmax(0, glp_get_row_dual(p, ++*row));
}

/* In the order of load. */
static void read_prices(glp_prob *p, void *given) {
  problem *answer = given;
  hk_certificate *c = answer->certificate;
  int row = 0;
  read_fixed(p, c->fixed, c->n_fixed, &row);
  for (int n = 0; n < c->n_parts; n++) {
    hk_certificate_part *part = &c->parts[n];
    read_fixed(p, part->fixed, part->n_fixed, &row);
    for (int mode = 0; mode < HK_MODES; mode++) {
      answer->time[n][mode] = glp_get_col_prim(p, time_column(n, mode));
      for (int i = 0; i < part->n_limits[mode]; i++)
        part->limits[mode][i].price = fmax(0, glp_get_row_dual(p, ++row));
    }
  }
}

/* -- The bound -------------------------------------------------------------------------------- */

#define WHOLE (1 - 1e-12) /* so that sums of rounded prices are at most 1 */

static double prices(const hk_fixed_limit *limits, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += limits[i].price;
  return sum;
}

static double prices_in(const hk_fixed_limit *limits, int n, int mode) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += limits[i].price * hk_limit_rate(&limits[i], mode);
  return sum;
}

/* What is left in each mode of the prices of the iteration and of the part. */
static void scale_modes(const hk_certificate *c, hk_certificate_part *part) {
  for (int mode = 0; mode < HK_MODES; mode++) {
    const double left =
        WHOLE - prices_in(c->fixed, c->n_fixed, mode) - prices_in(part->fixed, part->n_fixed, mode);
    double sum = 0;
    for (int i = 0; i < part->n_limits[mode]; i++) sum += part->limits[mode][i].price;
    for (int i = 0; i < part->n_limits[mode] && sum > 0; i++)
      part->limits[mode][i].price *= fmax(0, left) / sum;
  }
}

/* Makes the prices of the iteration, of each part and of each of its modes sum to 1. */
static void scale_prices(hk_certificate *c) {
  const double all = prices(c->fixed, c->n_fixed);
  double most = fmax(1, all);
  for (int n = 0; n < c->n_parts; n++)
    most = fmax(most, all + prices(c->parts[n].fixed, c->parts[n].n_fixed));
  const double scale = WHOLE / most;
  for (int i = 0; i < c->n_fixed; i++) c->fixed[i].price *= scale;
  for (int n = 0; n < c->n_parts; n++) {
    hk_certificate_part *part = &c->parts[n];
    for (int i = 0; i < part->n_fixed; i++) part->fixed[i].price *= scale;
    scale_modes(c, part);
  }
}

/* What a unit of work costs at least, in ns; `state`: in the parts in which state may go in. */
static double cost_of_work(const hk_certificate *c, int work, bool state) {
  double cheapest = INFINITY;
  for (int n = 0; n < c->n_parts; n++) {
    const hk_certificate_part *part = &c->parts[n];
    for (int mode = 0; mode < HK_MODES && (part->state || !state); mode++) {
      double cost = 0;
      for (int i = 0; i < part->n_limits[mode]; i++)
        cost += part->limits[mode][i].price * time_of(&part->limits[mode][i], work);
      if (hk_part_has_mode(part, mode) && hk_mode_has(mode, work)) cheapest = fmin(cheapest, cost);
    }
  }
  return cheapest;
}

/* Adds what limits price: of each route's parameter, and of forward and backward. */
static void add_priced(const hk_fixed_limit *limits, int n, double costs[HK_ROUTE_COUNT],
                       double *fixed) {
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < HK_ROUTE_COUNT; j++) costs[j] += limits[i].price * limits[i].time[j];
    *fixed += limits[i].price * limits[i].fixed_ns;
  }
}

/* The bound by the prices; *relief: how much less a parameter costs on the GPU than elsewhere. */
static double value_of(const hk_certificate *c, double *relief) {
  double works[HK_WORK_COUNT], costs[HK_ROUTE_COUNT] = {0}, fixed = 0;
  for (int w = 0; w < HK_WORK_COUNT; w++) works[w] = cost_of_work(c, w, false);
  const double state = cost_of_work(c, HK_WORK_IN, true);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) {
    for (int w = 0; w < HK_WORK_COUNT; w++) costs[j] += works[w] * c->work[j][w];
    costs[j] += state * c->state_in[j];
  }
  add_priced(c->fixed, c->n_fixed, costs, &fixed);
  for (int n = 0; n < c->n_parts; n++)
    add_priced(c->parts[n].fixed, c->parts[n].n_fixed, costs, &fixed);
  const double host =
      fmin(costs[HK_ROUTE_CPU], fmin(costs[HK_ROUTE_STAGED], costs[HK_ROUTE_MAPPED]));
  *relief = host - costs[HK_ROUTE_RESIDENT];
  const double share = *relief > 0 ? c->most_resident : c->least_resident;
  return c->before_ns + fixed + c->parameters * (host - share * *relief);
}

/* -- What binds ------------------------------------------------------------------------------- */

static double price_named(const hk_fixed_limit *limits, int n, const char *name) {
  double sum = 0;
  for (int i = 0; i < n; i++)
    if (strcmp(limits[i].name, name) == 0) sum += limits[i].price;
  return sum;
}

/* Sums up the time that limits of this name price. */
static double time_priced(const hk_certificate *c, const problem *answer, const char *name,
                          double whole, double *capacity) {
  double ns = price_named(c->fixed, c->n_fixed, name) * whole;
  for (int n = 0; n < c->n_parts; n++) {
    const hk_certificate_part *part = &c->parts[n];
    const double price = price_named(part->fixed, part->n_fixed, name);
    for (int mode = 0; mode < HK_MODES; mode++) {
      const double time = answer->time[n][mode] * c->parameters;
      ns += price * time;
      for (int i = 0; i < part->n_limits[mode]; i++) {
        const hk_mode_limit *limit = &part->limits[mode][i];
        if (strcmp(limit->name, name) != 0) continue;
        ns += limit->price * time;
        *capacity = limit->capacity;
      }
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
  for (int n = 0; n < c->n_parts; n++) {
    const hk_certificate_part *part = &c->parts[n];
    for (int i = 0; i < part->n_fixed; i++) consider(c, answer, part->fixed[i].name, whole);
    for (int mode = 0; mode < HK_MODES; mode++)
      for (int i = 0; i < part->n_limits[mode]; i++)
        consider(c, answer, part->limits[mode][i].name, whole);
  }
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
      [HK_ROUTE_STAGED] = {0, 0, state},
      [HK_ROUTE_MAPPED] = {0, 0, state}};
  memcpy(c->work, works, sizeof works);
  c->state_in[HK_ROUTE_STAGED] = c->state_in[HK_ROUTE_MAPPED] = state;
}

static hk_status fill(hk_certificate *c, const hk_forecast *f, const hk_machine *m, hk_error *err) {
  const hk_plan *plan = &f->plan;
  hk_programme lp = {0};
  int64_t totals[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, totals);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) c->parameters += (double)totals[j];
  hk_programme_times(&lp, plan, m);
  limit_memory(c, &lp, f, m);
  fill_work(c, plan);
  return hk_certificate_limits(c, &lp, f, m, err);
}

hk_status hk_certify(const hk_forecast *f, const hk_machine *machine, hk_certificate *c,
                     hk_error *err) {
  problem answer = {.certificate = c};
  double relief = 0;
  memset(c, 0, sizeof *c);
  if (!f->feasible || f->plan.runtime != HK_RUNTIME_HOCKET) return HK_OK;
  HK_TRY(fill(c, f, machine, err));
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

hk_status hk_certify_with(const hk_forecast *forecast, hk_overlap overlap,
                          const hk_machine *machine, hk_certificate *c, hk_error *err) {
  hk_plan plan;
  hk_forecast f;
  HK_TRY(hk_plan_copy(&forecast->plan, &plan, err));
  hk_plan_set_overlap(&plan, overlap);
  HK_TRY(hk_forecast_make(&plan, machine, NULL, &f, err));
  const hk_status status = hk_certify(&f, machine, c, err);
  hk_forecast_free(&f);
  return status;
}
