/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Cross-validation: fits the profile without one source of runs and predicts the rows of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/table_fit_problem.h"
#include "calib/probes/statistics.h"

typedef struct {
  const hk_run **runs; /* rows that name this machine */
  size_t n;
  const char *table;
  const hk_machine *start;
  const hk_fit_options *options;
  hk_cross_validation *out;
  double *errors[HK_RUN_TIMES_END]; /* absolute errors of the out->rows rows predicted so far, % */
  size_t fold;                      /* the current one */
  hk_error *err;
} crossing;

static hk_status fail_memory(const crossing *c, size_t bytes) {
  hk_fail_memory(c->err, bytes, "a cross-validation");
  return HK_ENVIRONMENT; /* constant: the analyser does not see hk_fail_memory's result */
}

static hk_status list_sources(crossing *c) {
  hk_cross_validation *out = c->out;
  out->folds = calloc(c->n, sizeof *out->folds);
  if (!out->folds) return fail_memory(c, c->n * sizeof *out->folds);
  size_t n = 0;
  for (size_t i = 0; i < c->n; i++) {
    size_t f = 0;
    while (f < n && strcmp(out->folds[f].source, c->runs[i]->source) != 0) f++;
    if (f == n) out->folds[n++].source = c->runs[i]->source;
    out->folds[f].rows++;
  }
  out->n = n;
  if (n >= 2) return HK_OK;
  return hk_fail(c->err, HK_INPUT,
                 "%s: all rows of %s come from one source; leaving it out leaves nothing to fit",
                 c->table, c->start->name);
}

/* Progress of the whole = (folds done + progress of the current fold) / folds. */
static void report_progress(void *context, double share) {
  const crossing *c = context;
  if (c->options->progress)
    c->options->progress(c->options->context, ((double)c->fold + share) / (double)c->out->n);
}

static hk_status fit_without(crossing *c, const char *source, hk_fit *fit) {
  const hk_run **rest = malloc(c->n * sizeof(const hk_run *));
  if (!rest) return fail_memory(c, c->n * sizeof(const hk_run *));
  size_t n = 0;
  for (size_t i = 0; i < c->n; i++)
    if (strcmp(c->runs[i]->source, source) != 0) rest[n++] = c->runs[i];
  hk_fit_options options = *c->options;
  options.intervals = false; /* only predictions are asked for */
  options.progress = report_progress;
  options.context = c;
  const hk_status status = hk_fit_rows(rest, n, c->table, c->start, &options, fit, c->err);
  free(rest);
  return status;
}

static hk_status predict(crossing *c, const hk_run *run, const hk_machine *machine) {
  hk_run_case made;
  double figures[HK_RUN_FIGURES];
  HK_TRY(hk_run_case_make(run, machine, &made, c->err));
  const hk_status status = hk_run_case_predict(&made, machine, figures, c->err);
  hk_run_case_free(&made);
  HK_TRY(status);
  for (int f = 0; f < HK_RUN_TIMES_END; f++)
    c->errors[f][c->out->rows] =
        100 * fabs(figures[f] / hk_run_measured(run, (hk_run_figure)f) - 1);
  c->out->rows++;
  return HK_OK;
}

static hk_status cross(crossing *c, hk_fit_fold *fold) {
  hk_fit fit;
  const size_t first = c->out->rows;
  HK_TRY(fit_without(c, fold->source, &fit));
  hk_status status = HK_OK;
  for (size_t i = 0; status == HK_OK && i < c->n; i++)
    if (strcmp(c->runs[i]->source, fold->source) == 0)
      status = predict(c, c->runs[i], &fit.machine);
  hk_fit_free(&fit);
  HK_TRY(status);
  /* hk_median reorders this fold's errors only. */
  for (int f = 0; f < HK_RUN_TIMES_END; f++)
    fold->median_abs_error_pct[f] = hk_median(c->errors[f] + first, c->out->rows - first);
  return HK_OK;
}

static hk_status cross_all(crossing *c) {
  HK_TRY(list_sources(c));
  for (int f = 0; f < HK_RUN_TIMES_END; f++) {
    c->errors[f] = malloc(c->n * sizeof *c->errors[f]);
    if (!c->errors[f]) return fail_memory(c, c->n * sizeof(double));
  }
  for (c->fold = 0; c->fold < c->out->n; c->fold++) HK_TRY(cross(c, &c->out->folds[c->fold]));
  for (int f = 0; f < HK_RUN_TIMES_END; f++)
    c->out->median_abs_error_pct[f] = hk_median(c->errors[f], c->out->rows);
  return HK_OK;
}

hk_status hk_fit_cross_validate(const hk_run_table *table, const hk_machine *start,
                                const hk_fit_options *options, hk_cross_validation *out,
                                hk_error *err) {
  *out = (hk_cross_validation){0};
  crossing c = {.table = table->path, .start = start, .options = options, .out = out, .err = err};
  c.runs = hk_fit_pick(table, start->name, &c.n, err);
  if (!c.runs) return err->status;
  const hk_status status = cross_all(&c);
  free(c.runs);
  for (int f = 0; f < HK_RUN_TIMES_END; f++) free(c.errors[f]);
  if (status != HK_OK) hk_cross_validation_free(out);
  return status;
}

void hk_cross_validation_free(hk_cross_validation *out) {
  free(out->folds);
  *out = (hk_cross_validation){0};
}
