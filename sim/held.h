/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Steps in which nothing runs ahead of the norm, because clipping acts or is expected to. The GPU
 * may update some subgroups in them that the CPU updates in other steps (hk_plan_subgroup.
 * held_staged). State stays where it is, so both kinds of step share one plan. */
#ifndef HK_SIM_HELD_H
#define HK_SIM_HELD_H

#include "sim/forecast.h"

/* Whether the plan has such steps that differ from others: updates run ahead of the norm of all
 * gradients. */
bool hk_plan_is_held(const hk_plan *plan);

/* The forecast of these steps, one after the other. Free with hk_forecast_free. */
hk_status hk_held_forecast(const hk_plan *plan, const hk_machine *machine, hk_forecast *held,
                           hk_error *err);

/* Simulates these steps of the forecast's plan: sets held_ns, clip_share and plan.guess, and
 * tokens_per_s to those of the mean iteration. Does nothing to a plan without them.
 * - gain: how much longer they take than steps in which updates run ahead and are kept;
 * - loss: how much longer it takes if updates run ahead and are done again: backward is longer by
 *   what the update beside it costs, and one operation of the CPU has to end. */
hk_status hk_held_add(hk_forecast *forecast, double clip_share, const hk_machine *machine,
                      hk_error *err);
/* The same for `n` forecasts, in parallel. */
hk_status hk_held_add_all(hk_forecast *forecasts, size_t n, double clip_share,
                          const hk_machine *machine, hk_error *err);

/* Stages, in these steps, the last of every `stride` subgroups that run ahead; 0: none. */
void hk_plan_stage_held(hk_plan *plan, int stride);

#endif
