/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Warnings about a forecast and its profile. */
#ifndef HK_SIM_WARNINGS_H
#define HK_SIM_WARNINGS_H

#include "core/graph/plan.h"
#include "core/machine/machine.h"

/* Warnings about a forecast: a NULL-terminated list of sentences (defaults that matter, more GPUs
 * than the profile has, a job outside of what it was fitted on, ...). Free with hk_warnings_free.
 */
hk_status hk_forecast_warnings(const hk_plan *plan, const hk_machine *machine, char ***warnings,
                               hk_error *err);
void hk_warnings_free(char **warnings);

/* A sentence if the machine's document says that its calibration was not accepted; "" if it was
 * accepted, or if the machine was not calibrated. Returns `buffer`; 320 bytes are enough. */
const char *hk_profile_trouble(const cJSON *document, char *buffer, size_t size);

#endif
