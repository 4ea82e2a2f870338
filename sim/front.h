/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans that keep the first subgroups on the GPU instead of the last. Backward makes the gradients
 * of the first ones last: if these are resident, the others have left for the host before it ends.
 */
#ifndef HK_SIM_FRONT_H
#define HK_SIM_FRONT_H

#include "sim/forecast.h"

/* Simulates a plan of runtime hocket without an overlap with its resident subgroups in front; as
 * long as it is faster, also with more of them, which the memory that gradients no longer take
 * may hold, and with other numbers of staging buffers. *found is zeroed if none fits, or none is
 * faster than `from`, which need not fit; else free it with hk_forecast_free. `may_wait`: as for
 * hk_flush_fit. `gpu_memory`: most of hk_plan_gpu_kept on each GPU; NULL: what fits. */
hk_status hk_front(const hk_forecast *from, bool may_wait, const hk_bytes *gpu_memory,
                   const hk_machine *machine, hk_forecast *found, hk_error *err);

#endif
