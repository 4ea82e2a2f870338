/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Simulates graphs on varied machines, and judges intervals and ties. */
#include "sim/uncertainty.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/period.h"

#define HALF_INTERVAL 1.96 /* standard errors: 95 % of a normal distribution */
#define AT_ONCE       8    /* forecasts; half with an overlap, whose graphs are larger */
#define MOST_OPS      1e7  /* simulated operations of the rows, about: some 8 s on one core */
#define LEAST_EFFECT  1e-3
#define TRIAL         0.05 /* change of a quantity whose error is unknown */

/* The four times of a forecast. */
enum { FORWARD, BACKWARD, UPDATE, ITERATION, TIMES };

typedef struct {
  hk_ns t[TIMES];
} times;

static times times_of(const hk_forecast *f) {
  return (times){{f->forward_ns, f->backward_ns, f->update_ns, f->iteration_ns}};
}

static hk_status read_times(const hk_graph *graph, const hk_timeline *timeline, times *out,
                            hk_error *err) {
  if (graph->iterations > 1) {
    hk_period period;
    HK_TRY(hk_period_of(graph, timeline, &period, err));
    *out = (times){{period.forward, period.backward, period.update, period.end - period.begin}};
    return HK_OK;
  }
  hk_ns phases[HK_PHASE_COUNT];
  hk_phase_durations(graph, timeline, phases);
  *out = (times){{phases[HK_PHASE_FORWARD], phases[HK_PHASE_BACKWARD], phases[HK_PHASE_UPDATE],
                  timeline->makespan}};
  return HK_OK;
}

static hk_status simulate(const hk_graph *graph, const hk_machine *machine, times *out,
                          hk_error *err) {
  hk_result result;
  HK_TRY(hk_simulate(graph, machine, NULL, &result, err));
  const hk_status status = read_times(graph, &result.timeline, out, err);
  hk_result_free(&result);
  return status;
}

/* Simulations n = cases x machines, in parallel; out[case * machines + machine]. */
static hk_status simulate_all(const hk_forecast *forecasts, size_t cases,
                              const hk_machine *machines, size_t n_machines, times *out,
                              hk_error *err) {
  const size_t n = cases * n_machines;
  hk_error *errors = calloc(n, sizeof *errors);
  if (errors == NULL) return hk_fail_memory(err, n * sizeof *errors, "errors of simulations");
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < n; i++)
    errors[i].status =
        simulate(&forecasts[i / n_machines].graph, &machines[i % n_machines], &out[i], &errors[i]);
  const hk_status status = hk_fail_first(errors, n, err);
  free(errors);
  return status;
}

/* -- Parts ------------------------------------------------------------------------------------- */

static double log_ratio(hk_ns a, hk_ns b) {
  return a > 0 && b > 0 ? log((double)a / (double)b) : 0;
}

static int by_effect(const void *left, const void *right) {
  const hk_error_part *a = left, *b = right;
  const bool last_a = a->kind == HK_ERROR_UNKNOWN, last_b = b->kind == HK_ERROR_UNKNOWN;
  if (last_a != last_b) return last_a ? 1 : -1;
  if (a->effect != b->effect) return a->effect > b->effect ? -1 : 1;
  return strcmp(a->info->key, b->info->key);
}

/* The machine with quantity i moved by `errors` standard errors, and what was fitted together with
 * it. */
static void change_one(const hk_machine *machine, size_t i, hk_error_kind kind, double errors,
                       hk_machine *varied) {
  double z[HK_QUANTITY_COUNT] = {0}, change[HK_QUANTITY_COUNT];
  z[i] = errors;
  hk_error_changes(machine, z, change);
  if (kind == HK_ERROR_UNKNOWN) change[i] = errors * TRIAL;
  hk_machine_perturb(machine, change, varied);
}

/* Keeps the parts that matter and counts them. */
static void keep_parts(hk_uncertainty *u, hk_ns nominal, const times *moved) {
  size_t kept = 0;
  for (size_t i = 0; i < u->n_parts; i++) {
    hk_error_part part = u->parts[i];
    part.effect = fmax(fabs(log_ratio(moved[2 * i].t[ITERATION], nominal)),
                       fabs(log_ratio(moved[2 * i + 1].t[ITERATION], nominal)));
    if (part.effect < LEAST_EFFECT) continue;
    u->parts[kept++] = part;
    u->n_stated += part.kind == HK_ERROR_STATED;
    u->n_scatter += part.kind == HK_ERROR_SCATTER;
    u->n_unknown += part.kind == HK_ERROR_UNKNOWN;
  }
  u->n_parts = kept;
  if (kept > 0) qsort(u->parts, kept, sizeof *u->parts, by_effect);
}

static hk_status find_parts(const hk_forecast *first, const hk_machine *machine, hk_uncertainty *u,
                            hk_error *err) {
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  hk_machine *machines = malloc(2 * n * sizeof *machines);
  times *moved = calloc(2 * n, sizeof *moved);
  u->parts = calloc(n, sizeof *u->parts);
  hk_status status = HK_OK;
  if (!machines || !moved || !u->parts)
    status = hk_fail_memory(err, 2 * n * sizeof *machines, "varied machines");
  for (size_t i = 0; i < n && status == HK_OK; i++) {
    const hk_quantity *quantity = hk_machine_quantity_const(machine, &info[i]);
    double error;
    const hk_error_kind kind = hk_error_of(&info[i], quantity, &error);
    if (kind == HK_ERROR_EXACT) continue;
    change_one(machine, i, kind, 1, &machines[2 * u->n_parts]);
    change_one(machine, i, kind, -1, &machines[2 * u->n_parts + 1]);
    u->parts[u->n_parts++] =
        (hk_error_part){.info = &info[i], .origin = quantity->origin, .kind = kind, .error = error};
  }
  if (status == HK_OK && u->n_parts > 0)
    status = simulate_all(first, 1, machines, 2 * u->n_parts, moved, err);
  if (status == HK_OK) keep_parts(u, first->iteration_ns, moved);
  free(machines);
  free(moved);
  return status;
}

/* -- Rows -------------------------------------------------------------------------------------- */

static void draw_machines(const hk_machine *machine, hk_machine machines[HK_DRAWS]) {
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  double z[HK_DRAWS][HK_QUANTITY_COUNT], change[HK_QUANTITY_COUNT];
  for (size_t i = 0; i < n; i++) {
    double of_quantity[HK_DRAWS];
    hk_latin_hypercube(hk_error_seed(&info[i], hk_machine_quantity_const(machine, &info[i])),
                       of_quantity);
    for (int k = 0; k < HK_DRAWS; k++) z[k][i] = of_quantity[k];
  }
  for (int k = 0; k < HK_DRAWS; k++) {
    hk_error_changes(machine, z[k], change);
    hk_machine_perturb(machine, change, &machines[k]);
  }
}

static hk_interval interval_of(hk_ns t, const double log_ratios[HK_DRAWS]) {
  double squares = 0;
  for (int k = 0; k < HK_DRAWS; k++) squares += log_ratios[k] * log_ratios[k];
  const double error = sqrt(squares / HK_DRAWS);
  return (hk_interval){.error = error,
                       .low = (hk_ns)((double)t * exp(-HALF_INTERVAL * error)),
                       .high = (hk_ns)fmin((double)t * exp(HALF_INTERVAL * error), 0x1p62)};
}

static void fill_row(hk_row_error *row, times nominal, const times drawn[HK_DRAWS]) {
  hk_interval *const intervals[TIMES] = {&row->forward, &row->backward, &row->update,
                                         &row->iteration};
  for (int t = 0; t < TIMES; t++) { /* the iteration is last: its ratios stay in row->draws */
    for (int k = 0; k < HK_DRAWS; k++) row->draws[k] = log_ratio(drawn[k].t[t], nominal.t[t]);
    *intervals[t] = interval_of(nominal.t[t], row->draws);
  }
}

/* Whether a is slower than b. The first of a ranking may be a little slower than others, with less
 * host memory. */
static bool is_separated(const hk_forecast *a, const hk_row_error *ea, const hk_forecast *b,
                         const hk_row_error *eb) {
  const double d = log_ratio(a->iteration_ns, b->iteration_ns);
  double squares = 0;
  for (int k = 0; k < HK_DRAWS; k++) {
    const double off = ea->draws[k] - eb->draws[k];
    squares += off * off;
  }
  return d > HALF_INTERVAL * sqrt(squares / HK_DRAWS);
}

/* Times that agree to the nanosecond on all draws, such as a model's under two policies that do the
 * same, are ties, too. */
static void set_ranks(const hk_forecast *forecasts, hk_uncertainty *u) {
  size_t leader = 0;
  for (size_t i = 0; i < u->n; i++) {
    hk_row_error *row = &u->rows[i];
    if (i > 0 && is_separated(&forecasts[i], row, &forecasts[leader], &u->rows[leader])) leader = i;
    row->rank = (int)leader + 1;
    if (i > leader) row->tied = u->rows[leader].tied = true;
  }
}

static hk_status add_rows(const hk_forecast *forecasts, size_t n, const hk_machine *machines,
                          times *drawn, hk_uncertainty *u, hk_error *err) {
  const size_t at_once = forecasts[0].graph.iterations > 1 ? AT_ONCE / 2 : AT_ONCE;
  const size_t affordable = (size_t)(MOST_OPS / (HK_DRAWS * (double)forecasts[0].graph.n_ops));
  const size_t most = n < affordable ? n : affordable > 2 ? affordable : n < 2 ? n : 2;
  while (u->n < most) {
    const size_t more = most - u->n < at_once ? most - u->n : at_once;
    HK_TRY(simulate_all(forecasts + u->n, more, machines, HK_DRAWS, drawn, err));
    for (size_t i = 0; i < more; i++, u->n++)
      fill_row(&u->rows[u->n], times_of(&forecasts[u->n]), drawn + i * HK_DRAWS);
    const size_t last = u->n - 1;
    if (is_separated(&forecasts[last], &u->rows[last], &forecasts[0], &u->rows[0])) break;
  }
  set_ranks(forecasts, u);
  return HK_OK;
}

hk_quantity hk_launches_of(const hk_machine *machine, const hk_plan *plan) {
  const double stated = hk_launch_share(&plan->model.launch_beside_update, plan->cpu_threads);
  if (!hk_launches_stated(machine, stated)) return machine->launch_beside_update;
  return (hk_quantity){.value = stated,
                       .error = HK_LAUNCH_ERROR,
                       .origin = HK_ORIGIN_MEASURED,
                       .source = "the model document, as measured by hocket.profile"};
}

hk_status hk_uncertainty_make(const hk_forecast *forecasts, size_t n, const hk_machine *machine,
                              hk_uncertainty *uncertainty, hk_error *err) {
  *uncertainty = (hk_uncertainty){0};
  hk_machine own = *machine; /* with what the model states */
  own.launch_beside_update = hk_launches_of(machine, &forecasts[0].plan);
  hk_machine *machines = malloc(HK_DRAWS * sizeof *machines);
  times *drawn = calloc(AT_ONCE * HK_DRAWS, sizeof *drawn);
  uncertainty->rows = calloc(n, sizeof *uncertainty->rows);
  hk_status status = HK_OK;
  if (!machines || !drawn || !uncertainty->rows)
    status = hk_fail_memory(err, HK_DRAWS * sizeof *machines, "varied machines");
  if (status == HK_OK) status = find_parts(&forecasts[0], &own, uncertainty, err);
  if (status == HK_OK) {
    draw_machines(&own, machines);
    status = add_rows(forecasts, n, machines, drawn, uncertainty, err);
  }
  free(machines);
  free(drawn);
  if (status != HK_OK) hk_uncertainty_free(uncertainty);
  return status;
}

void hk_uncertainty_free(hk_uncertainty *uncertainty) {
  free(uncertainty->rows);
  free(uncertainty->parts);
  *uncertainty = (hk_uncertainty){0};
}

bool hk_uncertainty_known(const hk_uncertainty *uncertainty) {
  return uncertainty->n_stated + uncertainty->n_scatter > 0;
}
