/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Which subgroups run ahead of the norm, and the host memory for it. */
#ifndef HK_SIM_AHEAD_H
#define HK_SIM_AHEAD_H

#include "sim/forecast.h"

/* With overlap `both`: marks subgroups on route cpu `ahead` as long as host memory has room for
 * their spares, from the last subgroup to the first, because the gradients of the last blocks are
 * ready first. */
hk_status hk_plan_run_ahead(hk_plan *plan, const hk_machine *machine, hk_error *err);
/* Host memory per rank that the plan leaves free if nothing runs ahead; 0: none. */
hk_status hk_plan_spares(const hk_plan *plan, const hk_machine *machine, hk_bytes *left,
                         hk_error *err);
/* Lets only the deepest of the subgroups that run ahead in *best do so: twice the parameters of the
 * fewest with which the mean iteration is at most 0.5 % of a micro-step longer, which bisection
 * finds. Twice, because as much runs ahead as the CPU updates during backward, and backward of
 * small micro-batches takes up to 1.8 times as long as predicted. Replaces *best, a plan that fits
 * and has held_ns (held.h). */
hk_status hk_ahead_enough(hk_forecast *best, const hk_machine *machine, hk_error *err);
/* With overlap `both` a sentence: how much may run ahead, into how much host memory. Returns
 * `buffer`. */
const char *hk_ahead_reason(const hk_forecast *best, const hk_machine *machine, char *buffer,
                            size_t size);

#endif
