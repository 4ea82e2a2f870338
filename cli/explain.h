/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Every number that a forecast rests on, with where it came from: no hidden factors. */
#ifndef HK_CLI_EXPLAIN_H
#define HK_CLI_EXPLAIN_H

#include <cjson/cJSON.h>

#include "core/machine.h"

/* "55 GB/s", "5.5 GP/s", "5.00 us", "36.0 GiB", "0.5": rates in powers of ten, as vendors and
 * probes state them, with at most so many digits; "-" for NaN. Returns `buffer`; 32 bytes do. */
const char *hk_format_quantity(double value, const char *unit, int digits, char *buffer,
                               size_t size);

/* "54.1 to 55.9 GB/s", "900 kB/s to 1.1 MB/s"; "exact" where it has no width, "-" where there is
 * none. 80 bytes do. */
const char *hk_format_interval(double low, double high, const char *unit, char *buffer,
                               size_t size);

/* A table to stdout: quantity, value with unit, its interval if the machine was calibrated,
 * origin, source. */
hk_status hk_explain_text(const hk_machine *machine, hk_error *err);
/* Adds "explain": {KEY: {value, unit, origin, source}} to `object`. */
void hk_explain_json(const hk_machine *machine, cJSON *object, bool *ok);

#endif
