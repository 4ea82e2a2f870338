/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What `validate engine` says of a prediction and its measurement. */
#ifndef HK_CLI_PRINT_VALIDATION_H
#define HK_CLI_PRINT_VALIDATION_H

#include "calib/validate/validate.h"
#include "cli/args.h"
#include "cli/node_profile.h"
#include "traces/timelines.h"

typedef struct {
  const hk_plan *plan;
  const hk_node_profile *profile;
  const hk_validation *validation;
  int64_t predicted_id, measured_id; /* of the kept timelines */
} hk_engine_validation;

/* Both timelines into the store, which gives them their ids. */
hk_status hk_store_validation(hk_store *store, hk_engine_validation *v, hk_error *err);

hk_status hk_print_validation_text(const hk_args *args, const hk_engine_validation *v,
                                   hk_error *err);
hk_status hk_print_validation_json(const hk_args *args, const hk_engine_validation *v,
                                   hk_error *err);

/* HK_NO where the makespan is off by more than --max-error. */
hk_status hk_judge_validation(const hk_args *args, const hk_engine_validation *v, hk_error *err);

#endif
