/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The member "residuals" of a profile's document: what its predictions were compared with
 * (core/machine/machine.h). Files may have been edited by hand: an entry without "against" and
 * "median_pct" is left out. */
#ifndef HK_CLI_RESIDUALS_H
#define HK_CLI_RESIDUALS_H

#include <cjson/cJSON.h>

#include "core/base/error.h"

/* Prints a table and an empty line; nothing if there is no such member. `document` may be NULL. */
hk_status hk_print_residuals(const cJSON *document, hk_error *err);

#endif
