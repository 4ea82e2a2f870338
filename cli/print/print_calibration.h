/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The report of `calibrate`. */
#ifndef HK_CLI_PRINT_PRINT_CALIBRATION_H
#define HK_CLI_PRINT_PRINT_CALIBRATION_H

#include "calib/calibrate.h"
#include "cli/args.h"

/* `document`: the stored profile. `store`: the path of the store. */
hk_status hk_print_calibration_text(const hk_args *args, const hk_calibration *calibration,
                                    const cJSON *document, const char *store, hk_error *err);
hk_status hk_print_calibration_json(const hk_args *args, const hk_calibration *calibration,
                                    const cJSON *document, hk_error *err);

/* HK_NO, with the reasons, if probes failed or the error that is expected of predictions is too
 * large. */
hk_status hk_judge_calibration(const hk_calibration *calibration, hk_error *err);

#endif
