/* SPDX-License-Identifier: GPL-3.0-or-later */
/* How well the times of forecasts are known, as far as the profile's quantities decide it.
 *
 * Every forecast's graph is simulated on the same HK_DRAWS varied machines (sim/sampling.h). With
 * the draws t_k of a time whose forecast is t:
 *   error     s = root mean square of ln(t_k / t)
 *   interval  95 %: t x exp(-1.96 s) to t x exp(1.96 s)
 * The error of the simulator itself (docs/fidelity.md) comes on top.
 *
 * Two schedules are compared on common draws, so that what slows both cancels: with d = ln(a / b)
 * of the forecasts and d_k of the draws, a is separated from b if d > 1.96 x rms(d_k - d). The
 * first row leads a group. Each further row joins the group unless it is separated from the group's
 * leader; then it leads the next group. Rows of a group have its leader's rank and are tied. */
#ifndef HK_SIM_UNCERTAINTY_H
#define HK_SIM_UNCERTAINTY_H

#include "sim/forecast.h"
#include "sim/sampling.h"

typedef struct {
  double error; /* relative standard error; 0: not known */
  hk_ns low, high;
} hk_interval;

typedef struct {
  hk_interval forward, backward, update, iteration;
  double draws[HK_DRAWS]; /* ln(iteration of the draw / iteration) */
  int rank;               /* from 1; of tied rows that of the first */
  bool tied;              /* another row has the same rank */
} hk_row_error;

/* A quantity on which the first forecast's iteration depends. `effect`: the larger of
 * |ln(t' / t)| with the quantity moved by one error up or down (by 5 % if its error is unknown),
 * and with it what was fitted together with it. */
typedef struct {
  const hk_quantity_info *info;
  hk_origin origin;
  hk_error_kind kind;
  double error, effect;
} hk_error_part;

typedef struct {
  hk_row_error *rows; /* of the first n forecasts */
  size_t n;
  /* Quantities with an effect of 0.1 % or more, the largest first; those whose error is unknown
   * last. */
  hk_error_part *parts;
  size_t n_parts, n_stated, n_scatter, n_unknown;
} hk_uncertainty;

/* The quantity framework.launch_beside_update that counts for a plan: the machine's, or what the
 * model states for the plan's threads, with the error HK_LAUNCH_ERROR. That is the root mean square
 * of ln(share in training / share that hocket.profile measured), 0.26 in six rows of three nodes
 * (bench/results/training/threads.md). */
#define HK_LAUNCH_ERROR 0.25
hk_quantity hk_launches_of(const hk_machine *machine, const hk_plan *plan);

/* Makes rows for the first of `n` >= 1 forecasts, which are in the order of their iteration times:
 * 8 at a time (4 with an overlap), until the last row made is separated from the first.
 * Deterministic at any number of threads (OpenMP). Free with hk_uncertainty_free, safe on a zeroed
 * struct. */
hk_status hk_uncertainty_make(const hk_forecast *forecasts, size_t n, const hk_machine *machine,
                              hk_uncertainty *uncertainty, hk_error *err);
void hk_uncertainty_free(hk_uncertainty *uncertainty);

/* Whether the times have an interval: some quantity with a known error has an effect. */
bool hk_uncertainty_known(const hk_uncertainty *uncertainty);

#endif
