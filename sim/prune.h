/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The best of a ranking's plans without the simulation of those that are proven worse. */
#ifndef HK_SIM_PRUNE_H
#define HK_SIM_PRUNE_H

#include "sim/forecast.h"
#include "sim/rank.h"

/* Of plans[0 .. all - 1]: the first n, then other ways of summing gradients of plan origin[i]
 * (sim/accumulation.h). Leaves out
 * - plans whose bound is above the fastest that fits. Without an overlap it is their own shares of
 *   the update (hk_bound_shares) after forward and backward (hk_bound_training), with one
 *   hk_turn_least. Takes those with the smallest bounds first;
 * - with an overlap, plans that fit and whose preview takes longer than the fastest;
 * - plans that are known to lack memory (hk_forecast_least_memory) or to keep more on a GPU
 *   than settings->gpu_memory, if another one fits; if none does, those of them that are known to
 *   lack more than another one. If they lack memory with any flush, hk_forecast_least_peak says how
 *   much they lack.
 * `known` is a forecast of another plan, NULL if there is none. forecasts[0 .. *n_made - 1] are the
 * others, each as a whole ranking has it. Room for n. */
hk_status hk_prune(hk_plan *plans, size_t n, size_t all, const size_t *origin,
                   const hk_plan_settings *settings, const hk_forecast *known,
                   const hk_machine *machine, int (*compare)(const void *, const void *),
                   hk_forecast *forecasts, size_t *n_made, hk_error *err);

/* Bytes of a node that the plan lacks at the least, with any flush, those by which it exceeds
 * settings->gpu_memory included; 0: it may fit. If memory lacks, no other flush makes it fit, so it
 * keeps its own (sim/flush.h), and `closely` finds more of what lacks. */
hk_status hk_prune_lacks(const hk_plan *plan, const hk_plan_settings *settings, bool closely,
                         const hk_machine *machine, hk_bytes *lacks, hk_error *err);

#endif
