/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The differences of two plan files: settings, and parameters by route. */
#ifndef HK_CLI_PLAN_DIFF_H
#define HK_CLI_PLAN_DIFF_H

#include "cli/args.h"

/* Reads the plans that both operands name and prints what differs, as text or JSON
 * ("hocket.plan_diff/1"). */
hk_status hk_plan_diff(const hk_args *args, hk_error *err);

#endif
