/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Every number that a forecast rests on, with where it came from: no hidden factors. */
#ifndef HK_CLI_EXPLAIN_H
#define HK_CLI_EXPLAIN_H

#include <cjson/cJSON.h>

#include "core/machine.h"

/* A table to stdout: quantity, value with unit, origin, source. */
hk_status hk_explain_text(const hk_machine *machine, hk_error *err);
/* Adds "explain": {KEY: {value, unit, origin, source}} to `object`. */
void hk_explain_json(const hk_machine *machine, cJSON *object, bool *ok);

#endif
