/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Predicting a run table: every row becomes a plan under the runtime `deepspeed`, is simulated on a
 * machine, and is compared with what was measured. */
#ifndef HK_CALIB_VALIDATE_RUNS_H
#define HK_CALIB_VALIDATE_RUNS_H

#include "core/machine.h"
#include "sim/forecast.h"
#include "traces/run_table.h"

/* What is compared. X(field, column) */
#define HK_RUN_TIMES(X) X(fwd, "fwd_ms") X(bwd, "bwd_ms") X(step, "step_ms") X(iter, "iter_ms")
#define HK_RUN_MEMORY(X)               \
  X(before_fwd, "alloc_before_fwd_gb") \
  X(after_fwd, "alloc_after_fwd_gb")   \
  X(after_bwd, "alloc_after_bwd_gb")   \
  X(peak_bwd, "peak_bwd_gb") X(after_step, "alloc_after_step_gb") X(peak_step, "peak_step_gb")

typedef enum {
#define HK_RUN_FIGURE(field, column) HK_RUN_##field,
  HK_RUN_TIMES(HK_RUN_FIGURE) HK_RUN_TIMES_END,
  HK_RUN_BEFORE_MEMORY = HK_RUN_TIMES_END - 1,
  HK_RUN_MEMORY(HK_RUN_FIGURE)
#undef HK_RUN_FIGURE
      HK_RUN_FIGURES
} hk_run_figure;

const char *hk_run_figure_column(hk_run_figure figure); /* "step_ms" */
/* What the row says; NAN: nothing. */
double hk_run_measured(const hk_run *run, hk_run_figure figure);

/* -- One row ----------------------------------------------------------------------------------- */

/* The plan a row describes. The model is built from the row's shape; `cores` of the machine and
 * cores_per_rank decide threads and binding. Free the plan with hk_plan_free. */
hk_status hk_run_plan(const hk_run *run, const hk_machine *machine, hk_plan *plan, hk_error *err);

/* A row ready to be simulated again and again: what does not depend on the machine's rates. */
typedef struct {
  const hk_run *run;
  hk_plan plan;
  hk_graph graph;
} hk_run_case;

/* Free with hk_run_case_free, safe on a zeroed case. Errors name the row. */
hk_status hk_run_case_make(const hk_run *run, const hk_machine *machine, hk_run_case *made,
                           hk_error *err);
void hk_run_case_free(hk_run_case *made);
/* Milliseconds and GiB. */
hk_status hk_run_case_predict(const hk_run_case *made, const hk_machine *machine,
                              double figures[HK_RUN_FIGURES], hk_error *err);

/* -- A table ----------------------------------------------------------------------------------- */

typedef struct {
  double measured;  /* NAN: the row does not say */
  double predicted; /* milliseconds or GiB */
  double error_pct; /* NAN with no measurement */
} hk_run_compared;

/* Whether policies come out in the right order: Kendall's tau-b of predicted against measured
 * step_ms, over all pairs of rows that differ only in policy settings (policy, ratio, stride and
 * flush), the pairs of all groups of such rows pooled:
 *
 *   tau_b = (C - D) / sqrt((C + D + M) (C + D + P))
 *
 * with C pairs in the same order in both, D in opposite order, M tied in measurement only, P tied
 * in prediction only; pairs tied in both do not count (scipy.stats.kendalltau counts the same).
 * Steps that an asynchronous flush and a blocking one precede are predicted equal: the flush is
 * over before the step begins. Measurements are tied where their ranges over the steady iterations,
 * step_ms_min to step_ms_max, overlap: a run that was repeated could have come out the other way.
 * Where a row does not say, its range is its median. */
typedef struct {
  double tau;    /* NAN: no pair that differs in either */
  int64_t pairs; /* that were looked at */
} hk_run_order;

/* Counting pairs for that: the order of two measurements, and of their predictions, -1, 0 or 1. */
typedef struct {
  int64_t pairs, concordant, discordant, tied_measured, tied_predicted;
} hk_tau_tally;
void hk_tau_count(hk_tau_tally *tally, int measured, int predicted);
hk_run_order hk_tau(const hk_tau_tally *tally);
/* Simulated times that differ by rounding only are equal: 0. */
int hk_order_of_predictions(double a, double b);

typedef struct {
  const hk_run *run;
  hk_run_compared figures[HK_RUN_FIGURES];
  int group;      /* rows that differ only in policy settings share it; from 0 */
  char *warnings; /* newline-separated; "" for none; owned */
} hk_run_prediction;

typedef struct {
  hk_run_prediction *rows;                     /* of the table, in its order, less those left out */
  size_t n, left_out;                          /* rows that name none of the machines */
  double median_abs_error_pct[HK_RUN_FIGURES]; /* NAN where nothing was measured */
  hk_run_order order;                          /* within groups, pairs of all groups pooled */
  hk_run_order *groups;                        /* of each group alone */
  int n_groups;
} hk_run_comparison;

/* Predicts each row on the machine that it names (OpenMP over rows; the result does not depend on
 * the threads). HK_INPUT when no row names any. `table` must outlive the comparison. */
hk_status hk_runs_compare(const hk_run_table *table, const hk_machine *machines, size_t n_machines,
                          hk_run_comparison *comparison, hk_error *err);
void hk_run_comparison_free(hk_run_comparison *comparison);

#endif
