/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The quantities of a machine with their origins, for --explain and `machine show`. */
#ifndef HK_CLI_PRINT_EXPLAIN_H
#define HK_CLI_PRINT_EXPLAIN_H

#include <cjson/cJSON.h>

#include "core/graph/plan.h"
#include "core/machine/machine.h"

/* "55 GB/s", "5.5 GP/s", "5.00 us", "36.0 GiB", "0.5". Rates have decimal prefixes, as in data
 * sheets, and at most `digits` digits. "-" for NaN. Returns `buffer`; 32 bytes suffice. */
const char *hk_format_quantity(double value, const char *unit, int digits, char *buffer,
                               size_t size);

/* "54.1 to 55.9 GB/s", "900 kB/s to 1.1 MB/s"; "exact" if low equals high; "-" if there is no
 * interval. 80 bytes suffice. */
const char *hk_format_interval(double low, double high, const char *unit, char *buffer,
                               size_t size);

/* What --set has changed. Text: one line that names the set quantities and counts those that
 * follow; nothing without --set. JSON: "machine_changes": [{quantity, before, value, unit, origin,
 * source}], set ones and derived ones; nothing without --set. */
void hk_explain_changes_text(const hk_machine *machine);
void hk_explain_changes_json(const hk_machine *machine, cJSON *object, bool *ok);

/* Prints a table: quantity, value, 95 % interval (if calibrated), origin, meaning, source. With
 * --set, a table of what has changed comes first. A quantity that the plan's model states
 * replaces the machine's (`plan` NULL: none). */
hk_status hk_explain_text(const hk_machine *machine, const hk_plan *plan, hk_error *err);
/* Adds "explain": {KEY: {value, unit, origin, source}} to `object`. */
void hk_explain_json(const hk_machine *machine, const hk_plan *plan, cJSON *object, bool *ok);

#endif
