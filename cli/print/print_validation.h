/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The report of `validate engine`. */
#ifndef HK_CLI_PRINT_PRINT_VALIDATION_H
#define HK_CLI_PRINT_PRINT_VALIDATION_H

#include "calib/validate/validate.h"
#include "cli/args.h"
#include "cli/node_profile.h"
#include "traces/timelines.h"

typedef struct {
  const hk_plan *plan;
  const hk_node_profile *profile;
  const hk_validation *validation;
  int64_t predicted_id, measured_id; /* ids of the stored timelines */
} hk_engine_validation;

/* Stores both timelines as a pair and sets their ids. */
hk_status hk_store_validation(hk_store *store, hk_engine_validation *v, hk_error *err);

hk_status hk_print_validation_text(const hk_args *args, const hk_engine_validation *v,
                                   hk_error *err);
hk_status hk_print_validation_json(const hk_args *args, const hk_engine_validation *v,
                                   hk_error *err);

/* HK_NO if the error of the makespan exceeds --max-error. */
hk_status hk_judge_validation(const hk_args *args, const hk_engine_validation *v, hk_error *err);

#endif
