/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Search for the fastest plan with an overlap. It chooses how many of the first blocks keep their
 * state on the GPU, which subgroups run ahead of the norm, and how many of the others are staged. A
 * closed form gives the start, simulations decide.
 *
 * Closed form: block i has forward F_i, backward B_i, P_i parameters that the CPU updates at rate
 * r, a copy of new weights u_i, and gradients that arrive A_i after the begin of backward (norm = A
 * of the first block, which arrives last). Parameters that run ahead count as 1 /
 * cpu.adamw_ahead_rate each. It is within 4 % of simulation if the CPU's rate is constant. The
 * period is the greatest of
 * - sum F + sum B,
 * - sum P / r,
 * - norm + sum u + F of the last block,
 * - A_i + (P up to i) / r + u_i + F from i up, for each i,
 * - norm + (P up to i, not ahead) / r + u_i + F from i up, for each i that does not run ahead. */
#ifndef HK_SIM_OVERLAP_H
#define HK_SIM_OVERLAP_H

#include "sim/forecast.h"
#include "sim/rank.h"

typedef struct {
  hk_forecast best;
  hk_plan plan;       /* `brief`: that of `best`, which is zeroed */
  hk_ns iteration_ns; /* `brief`: of a forecast of `plan`; INT64_MAX: it does not fit */
  int simulations;    /* compared plans: equal ones, and those that need not be simulated, count */
  hk_ns closed_form_ns; /* of `best` */
  hk_bytes gpu_state;   /* state on each GPU in `best` */
  hk_bytes gpu_limit;   /* upper limit of hk_plan_gpu_kept */
  bool limit_given;     /* true: the user set gpu_limit; false: activations leave that much */
  hk_ns none_ns;        /* an iteration of the same plan without an overlap */
} hk_overlap_search_result;

/* The best plan that fits: of the plans within 0.5 % of a micro-step of the fastest, the one with
 * the least state on the GPU. If none fits, the plan that the closed form prefers, marked as not
 * feasible. Needs settings->overlap. Free result->best with hk_forecast_free, result->plan with
 * hk_plan_free. `brief`: none_ns is 0, and there is no forecast. What is known not to fit, or is
 * proven to be slower, is not simulated. */
hk_status hk_overlap_search(const hk_model *model, const hk_machine *machine, const hk_job *job,
                            const hk_plan_settings *settings, bool brief,
                            hk_overlap_search_result *result, hk_error *err);

/* Share of GPU memory that nothing may be planned into. Predicted peaks are up to 3.0 % low
 * (bench/results/training), and torch's allocator keeps some 0.6 GiB that it cannot use: a plan
 * that filled all of an H200 ran out of memory in its first forward. */
#define HK_OVERLAP_RESERVE 0.03

/* Of a plan that fits, with this iteration: the mean of steps that are clipped and steps that are
 * not, and the same as it is compared, longer by what measurements were longer than simulations. */
hk_status hk_overlap_judge(const hk_plan *plan, hk_ns iteration, double clip_share,
                           const hk_machine *machine, hk_ns *cost, hk_ns *mean, hk_error *err);

/* Seconds of a block's computation alone. */
typedef struct {
  double forward, backward;
} hk_block_times;
/* Of each block, in order; the same for all plans of a job. The caller frees *times. */
hk_status hk_overlap_times(const hk_plan *plan, const hk_machine *machine, hk_block_times **times,
                           hk_error *err);
/* The closed form for a plan whose routes are cpu and resident, with those times. */
hk_status hk_overlap_closed_form(const hk_plan *plan, const hk_machine *machine,
                                 const hk_block_times *times, hk_ns *period, hk_error *err);

/* The reasons for that plan, in sentences. `best`: result->best, or what hk_ahead_enough made of
 * it. Returns `buffer`. */
const char *hk_overlap_reason(const hk_overlap_search_result *result, const hk_forecast *best,
                              const hk_machine *machine, char *buffer, size_t size);

#endif
