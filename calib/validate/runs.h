/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Predicts a run table: makes a plan for the runtime `deepspeed` from each row, simulates it on a
 * machine, and compares times and memory with the measured ones. */
#ifndef HK_CALIB_VALIDATE_RUNS_H
#define HK_CALIB_VALIDATE_RUNS_H

#include "core/machine/machine.h"
#include "sim/forecast.h"
#include "traces/run_table.h"

/* Figures that are compared. X(field, column) */
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
/* The figure that the row measured; NAN: none. */
double hk_run_measured(const hk_run *run, hk_run_figure figure);

/* -- One row ----------------------------------------------------------------------------------- */

/* The plan that a row describes. The model has the row's shape. The CPU threads are cores_per_rank
 * / 2, because that column counts hardware threads; without it, threads are unbound and as many as
 * the machine has cores. Free with hk_plan_free. */
hk_status hk_run_plan(const hk_run *run, const hk_machine *machine, hk_plan *plan, hk_error *err);

/* A row with its plan and graph, which do not depend on the machine's rates: it can be simulated on
 * any number of variants of the machine. */
typedef struct {
  const hk_run *run;
  hk_plan plan;
  hk_graph graph;
} hk_run_case;

/* Free with hk_run_case_free, safe on a zeroed case. Errors name the row. */
hk_status hk_run_case_make(const hk_run *run, const hk_machine *machine, hk_run_case *made,
                           hk_error *err);
void hk_run_case_free(hk_run_case *made);
/* Simulates the row. `figures`: milliseconds and GiB. */
hk_status hk_run_case_predict(const hk_run_case *made, const hk_machine *machine,
                              double figures[HK_RUN_FIGURES], hk_error *err);

/* Whether two runs differ at most in policy settings: offload_ratio, interleave, stride,
 * flush_async. */
bool hk_run_same_but_policy(const hk_run *a, const hk_run *b);

/* -- A table ----------------------------------------------------------------------------------- */

typedef struct {
  double measured;  /* milliseconds or GiB; NAN: the row has none */
  double predicted; /* the same */
  double error_pct; /* 100 (predicted / measured - 1); NAN without a measurement */
} hk_run_compared;

/* Whether the predicted order of policies is the measured one: Kendall's tau-b of predicted against
 * measured step_ms. Pairs are rows that differ only in policy settings (policy, ratio, stride and
 * flush); the pairs of all groups of such rows are pooled.
 *
 *   tau_b = (C - D) / sqrt((C + D + M) (C + D + P))
 *
 * C: pairs in the same order in both; D: in opposite order; M: tied in measurement only; P: tied in
 * prediction only. Pairs tied in both do not count, as in scipy.stats.kendalltau. Example: C = 8,
 * D = 1, M = 1, P = 0 give tau_b = 7 / sqrt(10 x 9) = 0.74.
 *
 * Measurements are tied if their ranges over the steady iterations, step_ms_min to step_ms_max,
 * overlap: repeated runs could have the opposite order. Without a range in the row it is step_ms
 * alone. Predictions are tied if they differ by 1e-6 or less. For example, a step is predicted
 * equal after an asynchronous and after a blocking flush, because either ends before the step
 * begins. */
typedef struct {
  double tau;    /* NAN: no pair differs in measurement */
  int64_t pairs; /* compared, ties included */
} hk_run_order;

/* Counts of pairs. hk_tau_count adds one: the order of two measurements and that of their
 * predictions, each -1, 0 (tied) or 1. */
typedef struct {
  int64_t pairs, concordant, discordant, tied_measured, tied_predicted;
} hk_tau_tally;
void hk_tau_count(hk_tau_tally *tally, int measured, int predicted);
hk_run_order hk_tau(const hk_tau_tally *tally);
/* -1, 0 or 1. 0 also for times that differ by a share of 1e-6 or less: rounding. */
int hk_order_of_predictions(double a, double b);

/* Rows whose table does not say how gradients were flushed. They are predicted as asynchronous, and
 * for this comparison also as blocking. */
typedef struct {
  size_t rows;
  double asynchronous[HK_RUN_TIMES_END], blocking[HK_RUN_TIMES_END]; /* medians as below */
} hk_run_flush_unknown;

typedef struct {
  const hk_run *run;
  hk_run_compared figures[HK_RUN_FIGURES];
  int group;      /* from 0; rows that differ only in policy settings have the same */
  char *warnings; /* newline-separated; "" for none; owned */
} hk_run_prediction;

typedef struct {
  hk_run_prediction *rows;                     /* those that name a machine, in the table's order */
  size_t n, left_out;                          /* rows; rows that name none of the machines */
  double median_abs_error_pct[HK_RUN_FIGURES]; /* NAN without a measurement */
  hk_run_flush_unknown flush_unknown;
  hk_run_order order;   /* pairs within groups, all groups pooled */
  hk_run_order *groups; /* of each group alone */
  int n_groups;
} hk_run_comparison;

/* Predicts each row on the machine that it names (OpenMP over rows; the result does not depend on
 * the number of threads). HK_INPUT if no row names one. `table` must outlive the comparison. */
hk_status hk_runs_compare(const hk_run_table *table, const hk_machine *machines, size_t n_machines,
                          hk_run_comparison *comparison, hk_error *err);
void hk_run_comparison_free(hk_run_comparison *comparison);

#endif
