/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What `calibrate` says of a calibration that ended. */
#ifndef HK_CLI_PRINT_CALIBRATION_H
#define HK_CLI_PRINT_CALIBRATION_H

#include "calib/calibrate.h"
#include "cli/args.h"

/* `document` is the profile as it was stored. */
hk_status hk_print_calibration_text(const hk_args *args, const hk_calibration *calibration,
                                    const cJSON *document, const char *store, hk_error *err);
hk_status hk_print_calibration_json(const hk_args *args, const hk_calibration *calibration,
                                    const cJSON *document, hk_error *err);

/* HK_NO with what is not as it should be: probes noisy or failed, replays off by too much. */
hk_status hk_judge_calibration(const hk_calibration *calibration, hk_error *err);

#endif
