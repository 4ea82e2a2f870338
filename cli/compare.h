/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `plan` with several --machine: the best schedule on each, by cost per token or by speed. */
#ifndef HK_CLI_COMPARE_H
#define HK_CLI_COMPARE_H

#include "cli/args.h"

/* Ranks the schedules on every machine of args->machines, each NAME or NAME=PRICE, and prints one
 * row a machine: by cost per token if all have a price, else by tokens/s. HK_NO: the model fits on
 * none. */
hk_status hk_compare_machines(const hk_args *args, hk_error *err);

#endif
