/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Which subgroups run ahead of the norm, and the host memory for it. */
#ifndef HK_SIM_AHEAD_H
#define HK_SIM_AHEAD_H

#include "core/graph/plan.h"
#include "core/machine/machine.h"

/* With overlap `both`: marks subgroups on route cpu `ahead` as long as host memory has room for
 * their spares, from the last subgroup to the first, because the gradients of the last blocks are
 * ready first. */
hk_status hk_plan_run_ahead(hk_plan *plan, const hk_machine *machine, hk_error *err);
/* Host memory per rank that the plan leaves free if nothing runs ahead; 0: none. */
hk_status hk_plan_spares(const hk_plan *plan, const hk_machine *machine, hk_bytes *left,
                         hk_error *err);

#endif
