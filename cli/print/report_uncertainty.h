/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Prints intervals of times and where they come from (sim/uncertainty.h). */
#ifndef HK_CLI_PRINT_REPORT_UNCERTAINTY_H
#define HK_CLI_PRINT_REPORT_UNCERTAINTY_H

#include <cjson/cJSON.h>

#include "sim/uncertainty.h"

/* "484 ± 21", milliseconds and half of the 95 % interval; "90 (32 to 258)", its ends, if the upper
 * one is above twice the time; "484.3" if no interval is known. `interval` may be NULL. 64 bytes
 * are enough. */
const char *hk_format_ms(hk_ns t, const hk_interval *interval, char *buffer, size_t size);
/* "±21", or "". */
const char *hk_format_half_ms(const hk_interval *interval, char *buffer, size_t size);

/* Prints what the intervals follow from, or that they are unknown. */
void hk_report_uncertainty(const hk_uncertainty *uncertainty);
/* Adds "uncertainty" to the object of a forecast: intervals; "rank" and "tied" if `ranked`. Adds
 * null if no interval is known. `row` may be NULL: not evaluated. */
void hk_report_row_error_json(const hk_uncertainty *uncertainty, const hk_row_error *row,
                              const hk_forecast *forecast, bool ranked, cJSON *object, bool *ok);
/* Adds "uncertainty" to the object of a report: level, draws, and the quantities that matter. */
void hk_report_uncertainty_json(const hk_uncertainty *uncertainty, cJSON *root, bool *ok);

/* The same for a report on one forecast: its "uncertainty" holds intervals and quantities. */
void hk_report_forecast_error_json(const hk_uncertainty *uncertainty, const hk_forecast *forecast,
                                   cJSON *root, bool *ok);

#endif
