/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What a forecast says about the optimizer. */
#ifndef HK_CLI_PRINT_REPORT_STATE_H
#define HK_CLI_PRINT_REPORT_STATE_H

#include "cli/print/emit.h"
#include "core/graph/plan.h"
#include "core/machine/machine.h"

/* Prints the optimizer and its bytes of state, unless it is fp32. `explain`: always, and with
 * the rate at which the CPU updates, where that comes from, and whether the engine implements it.
 */
void hk_report_optimizer(const hk_plan *plan, const hk_machine *machine, bool explain);
/* Prints where the gradients of several micro-steps are summed; nothing for one micro-step. */
void hk_report_sums(const hk_plan *plan);
/* Adds "optimizer": {name, state_bytes_per_param, traffic_bytes_per_param, engine}, and with
 * several micro-steps "accumulate". */
void hk_report_optimizer_json(const hk_plan *plan, cJSON *object, bool *ok);

#endif
