/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The fastest of a ranking's plans without the simulation of those that are proven slower. */
#ifndef HK_SIM_PRUNE_H
#define HK_SIM_PRUNE_H

#include "sim/forecast.h"

/* Of plans[0 .. all - 1], without an overlap: the first n, then other ways of summing gradients of
 * plan origin[i] (sim/accumulation.h). Takes the plans with the smallest bounds first and leaves
 * out those whose bound is above the fastest that fits: its own shares of the update
 * (hk_bound_shares) after forward and backward (hk_bound_training). forecasts[0 .. *n_made - 1] are
 * the others, each as a whole ranking has it; if nothing fits, all of them. Room for n. */
hk_status hk_prune(hk_plan *plans, size_t n, size_t all, const size_t *origin, bool may_wait,
                   const hk_machine *machine, int (*compare)(const void *, const void *),
                   hk_forecast *forecasts, size_t *n_made, hk_error *err);

#endif
