/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `plan --largest batch|seq|model`: the largest micro-batch, sequence or model that fits. */
#ifndef HK_CLI_LARGEST_H
#define HK_CLI_LARGEST_H

#include "cli/args.h"

/* The order of --largest's words. */
typedef enum { HK_LARGEST_BATCH, HK_LARGEST_SEQ, HK_LARGEST_MODEL } hk_largest_what;

/* Ranks the schedules of every size that the search tries, and prints the largest that fits with
 * its speed. Sequences are multiples of 1024 if one of 1024 fits. A model is the largest preset of
 * the model's family (names that differ in the last word only) and, if its layers can be changed,
 * the model with the most layers. HK_NO: not even the smallest fits. */
hk_status hk_largest_plan(const hk_args *args, hk_error *err);

#endif
