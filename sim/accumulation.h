/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Where a ranking sums the gradients of several micro-steps: it tries every way of hk_accumulate
 * for each plan, and keeps the best. */
#ifndef HK_SIM_ACCUMULATION_H
#define HK_SIM_ACCUMULATION_H

#include "sim/forecast.h"
#include "sim/rank.h"

/* Appends to plans[0..n) copies with other ways of summing, where they make a difference and the
 * user has not chosen one. origin[i]: the plan of which plan i is a copy, or i. `plans` and
 * `origin` have room for HK_ACCUMULATE_COUNT x n. *all: number of plans, also on failure. */
hk_status hk_accumulation_candidates(hk_plan *plans, size_t n, const hk_plan_settings *settings,
                                     size_t *origin, size_t *all, hk_error *err);
/* Puts the best of each plan and its copies, by `compare`, into forecasts[0..n), with the results
 * of all of them in hk_forecast.sums. Frees the others. */
void hk_accumulation_keep_best(hk_forecast *forecasts, size_t n, size_t all, const size_t *origin,
                               int (*compare)(const void *, const void *));
/* Simulates the plan of *best, which fits, with every way, and puts the results into its sums. */
hk_status hk_accumulation_compare(hk_forecast *best, const hk_machine *machine, hk_error *err);
/* "Gradients of 8 micro-steps are summed in host memory, ...; on the GPU: 3.2 GiB of GPU memory are
 * missing." Empty if only one way was tried. Returns `text`. */
const char *hk_accumulation_reason(const hk_forecast *best, char *text, size_t size);

#endif
