/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ratios between those of a ranking's list, found from memory. */
#ifndef HK_SIM_RATIO_H
#define HK_SIM_RATIO_H

#include "sim/forecast.h"
#include "sim/rank.h"

/* Of a policy with a ratio, more subgroups on the host need more host memory and less GPU memory.
 * So each of the `n` candidates that takes a ratio, and `interleave` with stride 1 beside them, has
 * a largest ratio that host memory holds. If its plan does not fit on the GPU, none of this
 * candidate does; otherwise the smallest ratio that fits on the GPU is found by bisection, in steps
 * of one subgroup.
 *
 * If nothing is listed that fits (n_fit 0), all of these plans join `found` (room for 2 n + 2);
 * *n_found is 0 if no ratio of any of them fits. Otherwise ratios from the smallest on are tried
 * for the fastest, then other numbers of staging buffers and other strides for the fastest that
 * stages subgroups, and the fastest plan of all joins `found` if it is faster than listed[0], the
 * first of the sorted list. The work is bounded in simulated operations, so the result is the same
 * at any number of threads (OpenMP). */
hk_status hk_ratio_search(const hk_candidate *candidates, int n, const hk_model *model,
                          const hk_machine *machine, const hk_job *job,
                          const hk_plan_settings *settings, const hk_forecast *listed, size_t n_fit,
                          hk_forecast *found, size_t *n_found, hk_error *err);

#endif
