/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Compares predictions with a run table: errors, their medians, and whether the predicted order of
 * policies is the measured one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/probes/statistics.h"
#include "calib/validate/runs.h"
#include "sim/warnings.h"

/* -- Rows and machines ------------------------------------------------------------------------- */

static const hk_machine *named(const char *name, const hk_machine *machines, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(machines[i].name, name) == 0) return &machines[i];
  return NULL;
}

static hk_status warnings_of(const hk_plan *plan, const hk_machine *machine, char **out,
                             hk_error *err) {
  char **list = NULL;
  HK_TRY(hk_forecast_warnings(plan, machine, &list, err));
  size_t size = 1;
  for (char **w = list; *w; w++) size += strlen(*w) + 1;
  *out = malloc(size);
  if (*out) {
    **out = '\0';
    for (char **w = list; *w; w++) {
      if (w > list) strcat(*out, "\n");
      strcat(*out, *w);
    }
  }
  hk_warnings_free(list);
  return *out ? HK_OK : hk_fail_memory(err, size, "warnings");
}

static hk_status predict(hk_run_prediction *row, const hk_machine *machine, hk_error *err) {
  hk_run_case made;
  double figures[HK_RUN_FIGURES];
  HK_TRY(hk_run_case_make(row->run, machine, &made, err));
  hk_status status = hk_run_case_predict(&made, machine, figures, err);
  if (status == HK_OK) status = warnings_of(&made.plan, machine, &row->warnings, err);
  hk_run_case_free(&made);
  HK_TRY(status);
  for (int f = 0; f < HK_RUN_FIGURES; f++) {
    const double measured = hk_run_measured(row->run, (hk_run_figure)f);
    row->figures[f] = (hk_run_compared){measured, figures[f], 100 * (figures[f] / measured - 1)};
  }
  return HK_OK;
}

static hk_status predict_all(hk_run_comparison *c, const hk_machine *machines, size_t n_machines,
                             hk_error *err) {
  hk_error *errors = calloc(c->n, sizeof *errors);
  if (!errors) return hk_fail_memory(err, c->n * sizeof *errors, "a comparison");
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < c->n; i++) {
    const hk_machine *machine = named(c->rows[i].run->machine, machines, n_machines);
    errors[i].status = predict(&c->rows[i], machine, &errors[i]);
  }
  const hk_status status = hk_fail_first(errors, c->n, err);
  free(errors);
  return status;
}

/* -- Rows without flush_async ------------------------------------------------------------------ */

/* Absolute errors of the row's times as if it had been flushed so, in per cent. */
static hk_status errors_if(const hk_run *run, bool asynchronous, const hk_machine *machine,
                           double errors[HK_RUN_TIMES_END], hk_error *err) {
  hk_run told = *run; /* shallow: it borrows the texts */
  hk_run_case made;
  double figures[HK_RUN_FIGURES];
  told.flush_async = asynchronous;
  HK_TRY(hk_run_case_make(&told, machine, &made, err));
  const hk_status status = hk_run_case_predict(&made, machine, figures, err);
  hk_run_case_free(&made);
  for (int f = 0; status == HK_OK && f < HK_RUN_TIMES_END; f++)
    errors[f] = 100 * fabs(figures[f] / hk_run_measured(run, (hk_run_figure)f) - 1);
  return status;
}

static hk_status medians_if(const hk_run_comparison *c, bool asynchronous,
                            const hk_machine *machines, size_t n_machines, double *medians,
                            hk_error *err) {
  double *errors = malloc(c->n * HK_RUN_TIMES_END * sizeof *errors), of_row[HK_RUN_TIMES_END];
  if (!errors) return hk_fail_memory(err, c->n * HK_RUN_TIMES_END * sizeof *errors, "a comparison");
  size_t n = 0;
  hk_status status = HK_OK;
  for (size_t i = 0; status == HK_OK && i < c->n; i++) {
    const hk_run *run = c->rows[i].run;
    if (!isnan(run->flush_async)) continue;
    status = errors_if(run, asynchronous, named(run->machine, machines, n_machines), of_row, err);
    for (int f = 0; status == HK_OK && f < HK_RUN_TIMES_END; f++)
      errors[(size_t)f * c->n + n] = of_row[f];
    n++;
  }
  for (int f = 0; status == HK_OK && f < HK_RUN_TIMES_END; f++)
    medians[f] = hk_median(errors + (size_t)f * c->n, n);
  free(errors);
  return status;
}

static hk_status predict_both_flushes(hk_run_comparison *c, const hk_machine *machines, size_t n,
                                      hk_error *err) {
  hk_run_flush_unknown *unknown = &c->flush_unknown;
  for (size_t i = 0; i < c->n; i++) unknown->rows += isnan(c->rows[i].run->flush_async) ? 1 : 0;
  if (unknown->rows == 0) return HK_OK;
  HK_TRY(medians_if(c, true, machines, n, unknown->asynchronous, err));
  return medians_if(c, false, machines, n, unknown->blocking, err);
}

/* -- Order within groups ----------------------------------------------------------------------- */

static bool same(double a, double b) {
  return a == b || (isnan(a) && isnan(b));
}

bool hk_run_same_but_policy(const hk_run *a, const hk_run *b) {
  return strcmp(a->machine, b->machine) == 0 && strcmp(a->source, b->source) == 0 &&
         strcmp(a->model, b->model) == 0 && strcmp(a->build, b->build) == 0 &&
         same(a->layers, b->layers) && same(a->hidden, b->hidden) && same(a->ffn, b->ffn) &&
         same(a->heads, b->heads) && same(a->kv_heads, b->kv_heads) && same(a->vocab, b->vocab) &&
         same(a->seq, b->seq) && same(a->tp, b->tp) && same(a->dp, b->dp) &&
         same(a->nodes, b->nodes) && same(a->cores_per_rank, b->cores_per_rank) &&
         same(a->micro_batch, b->micro_batch) && same(a->grad_accum, b->grad_accum) &&
         same(a->subgroup_numel, b->subgroup_numel);
}

static void find_groups(hk_run_comparison *c) {
  for (size_t i = 0; i < c->n; i++) {
    size_t j = 0;
    while (j < i && !hk_run_same_but_policy(c->rows[i].run, c->rows[j].run)) j++;
    c->rows[i].group = j < i ? c->rows[j].group : c->n_groups++;
  }
}

int hk_order_of_predictions(double a, double b) {
  return fabs(a - b) <= 1e-6 * fabs(a) ? 0 : a < b ? -1 : 1;
}

void hk_tau_count(hk_tau_tally *t, int measured, int predicted) {
  t->pairs++;
  if (measured * predicted > 0) t->concordant++;
  if (measured * predicted < 0) t->discordant++;
  if (measured == 0 && predicted != 0) t->tied_measured++;
  if (measured != 0 && predicted == 0) t->tied_predicted++;
}

hk_run_order hk_tau(const hk_tau_tally *t) {
  const int64_t decided = t->concordant + t->discordant;
  const double differ_measured = (double)(decided + t->tied_predicted);
  const double differ_predicted = (double)(decided + t->tied_measured);
  hk_run_order order = {.tau = NAN, .pairs = t->pairs};
  if (decided > 0)
    order.tau = (double)(t->concordant - t->discordant) / sqrt(differ_measured * differ_predicted);
  else if (differ_measured > 0)
    order.tau = 0; /* measurements differ, but all predictions of these pairs are tied */
  return order;
}

static double least_step(const hk_run *run) {
  return run->step_ms_min > 0 ? fmin(run->step_ms_min, run->step_ms) : run->step_ms;
}

static double most_step(const hk_run *run) {
  return run->step_ms_max > 0 ? fmax(run->step_ms_max, run->step_ms) : run->step_ms;
}

static int order_of_measurements(const hk_run *a, const hk_run *b) {
  return most_step(a) < least_step(b) ? -1 : least_step(a) > most_step(b) ? 1 : 0;
}

static void count_pair(hk_tau_tally *t, const hk_run_prediction *a, const hk_run_prediction *b) {
  hk_tau_count(t, order_of_measurements(a->run, b->run),
               hk_order_of_predictions(a->figures[HK_RUN_step].predicted,
                                       b->figures[HK_RUN_step].predicted));
}

static hk_status judge_order(hk_run_comparison *c, hk_error *err) {
  find_groups(c);
  hk_tau_tally all = {0};
  hk_tau_tally *groups = calloc((size_t)c->n_groups, sizeof *groups);
  c->groups = calloc((size_t)c->n_groups, sizeof *c->groups);
  if (!groups || !c->groups) {
    free(groups);
    return hk_fail_memory(err, (size_t)c->n_groups * sizeof *groups, "a comparison");
  }
  for (size_t i = 0; i < c->n; i++) {
    for (size_t j = 0; j < i; j++) {
      const hk_run_prediction *a = &c->rows[i], *b = &c->rows[j];
      if (a->group != b->group || isnan(a->figures[HK_RUN_step].measured) ||
          isnan(b->figures[HK_RUN_step].measured))
        continue;
      count_pair(&all, a, b);
      count_pair(&groups[a->group], a, b);
    }
  }
  c->order = hk_tau(&all);
  for (int g = 0; g < c->n_groups; g++) c->groups[g] = hk_tau(&groups[g]);
  free(groups);
  return HK_OK;
}

/* -- Comparison -------------------------------------------------------------------------------- */

static hk_status find_medians(hk_run_comparison *c, hk_error *err) {
  double *errors = malloc(c->n * sizeof *errors);
  if (!errors) return hk_fail_memory(err, c->n * sizeof *errors, "a comparison");
  for (int f = 0; f < HK_RUN_FIGURES; f++) {
    for (size_t i = 0; i < c->n; i++) errors[i] = fabs(c->rows[i].figures[f].error_pct);
    c->median_abs_error_pct[f] = hk_median(errors, c->n);
  }
  free(errors);
  return HK_OK;
}

static hk_status pick_rows(const hk_run_table *table, const hk_machine *machines, size_t n,
                           hk_run_comparison *c, hk_error *err) {
  c->rows = calloc(table->n + 1, sizeof *c->rows);
  if (!c->rows) return hk_fail_memory(err, table->n * sizeof *c->rows, "a comparison");
  for (size_t i = 0; i < table->n; i++) {
    if (named(table->runs[i].machine, machines, n))
      c->rows[c->n++].run = &table->runs[i];
    else
      c->left_out++;
  }
  if (c->n > 0) return HK_OK;
  return hk_fail(err, HK_INPUT, "no row was run on %s%s; the first names '%.80s'",
                 n > 0 ? machines[0].name : "any machine", n > 1 ? " or another machine given" : "",
                 table->n > 0 ? table->runs[0].machine : "");
}

hk_status hk_runs_compare(const hk_run_table *table, const hk_machine *machines, size_t n_machines,
                          hk_run_comparison *comparison, hk_error *err) {
  *comparison = (hk_run_comparison){0};
  hk_status status = pick_rows(table, machines, n_machines, comparison, err);
  if (status == HK_OK) status = predict_all(comparison, machines, n_machines, err);
  if (status == HK_OK) status = predict_both_flushes(comparison, machines, n_machines, err);
  if (status != HK_OK && table->path[0]) hk_fail_prefix(err, "%s", table->path);
  if (status == HK_OK) status = find_medians(comparison, err);
  if (status == HK_OK) status = judge_order(comparison, err);
  if (status != HK_OK) hk_run_comparison_free(comparison);
  return status;
}

void hk_run_comparison_free(hk_run_comparison *comparison) {
  for (size_t i = 0; i < comparison->n; i++) free(comparison->rows[i].warnings);
  free(comparison->rows);
  free(comparison->groups);
  *comparison = (hk_run_comparison){0};
}
