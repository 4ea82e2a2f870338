/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans that pace themselves (hk_pace in core/graph/plan.h): limits to copies, to the CPU team, and
 * to the gradients that wait on the GPU. */
#ifndef HK_SIM_PACE_H
#define HK_SIM_PACE_H

#include "sim/forecast.h"

/* If *forecast does not fit because gradients wait on the GPU, for their reduction or for an
 * asynchronous flush: replaces it by the faster of these plans that fit: the largest pace.flush,
 * and with several ranks pace.reduce_first, alone or with the largest pace.flush. If none fits: by
 * the plan with a blocking flush, if that one fits. `may_wait`: backward may wait for flushes; if
 * not, only pace.reduce_first is tried. With an overlap of updates backward never waits. */
hk_status hk_pace_flush(hk_forecast *forecast, bool may_wait, const hk_machine *machine,
                        hk_error *err);

/* Looks for a plan that is faster than the first of the `n` sorted forecasts, which fit. Starts
 * from the fastest of them under runtime hocket and changes their stride, then their pace. *found
 * is zero if nothing is faster by HK_PACE_GAIN. */
#define HK_PACE_GAIN 0.0005
hk_status hk_pace_search(const hk_forecast *forecasts, size_t n, const hk_machine *machine,
                         hk_forecast *found, hk_error *err);

#endif
