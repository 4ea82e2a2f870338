/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Which plan with an overlap is the fastest: how many of the first blocks keep their state on the
 * GPU, which subgroups run ahead of the norm, and how many of the others make the round trip to the
 * GPU. First a closed form, then simulations.
 *
 * The closed form, of blocks i with forward F, backward B, P parameters updated by the CPU at rate
 * r, upload u and gradients that arrive at A after the begin of backward (A of the first block: the
 * norm); it is within 4 % of simulation where the CPU's rate is constant:
 *   period = max of
 *     sum F + sum B
 *     sum P / r
 *     norm + sum u + F of the last block
 *     A_i + (P up to i) / r + u_i + F from i up              each i
 *     norm + (P up to i, not ahead) / r + u_i + F from i up  each i that does not run ahead */
#ifndef HK_SIM_OVERLAP_H
#define HK_SIM_OVERLAP_H

#include "sim/forecast.h"

typedef struct {
  hk_forecast best;
  int simulations;
  hk_ns closed_form_ns;  /* of `best` */
  hk_bytes gpu_state;    /* state on each GPU in `best` */
  hk_bytes gpu_limit;    /* the most it could have been */
  bool limit_given;      /* by the user; else what activations leave */
  hk_ns none_ns;         /* an iteration of the same plan without an overlap */
  hk_bytes spares_limit; /* host memory for spares that each rank could have had */
} hk_overlap_search_result;

/* The best plan that fits; of plans within half a percent
 * of the fastest the one with the least state on the GPU. If none fits, the one that the closed
 * form prefers, not feasible. Free result->best with hk_forecast_free. Needs settings->overlap. */
hk_status hk_overlap_search(const hk_model *model, const hk_machine *machine, const hk_job *job,
                            const hk_plan_settings *settings, hk_overlap_search_result *result,
                            hk_error *err);

/* The closed form for a plan whose routes are cpu and resident. */
hk_status hk_overlap_closed_form(const hk_plan *plan, const hk_machine *machine, hk_ns *period,
                                 hk_error *err);

/* Why that plan, in sentences. Returns `buffer`. */
const char *hk_overlap_reason(const hk_overlap_search_result *result, const hk_machine *machine,
                              char *buffer, size_t size);

#endif
