/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Stored timelines, which the command line names by id. */
#ifndef HK_CLI_STORED_TIMELINE_H
#define HK_CLI_STORED_TIMELINE_H

#include "traces/timelines.h"

/* The operand is an id, not a file name: it consists of digits. */
bool hk_stored_timeline_is_id(const char *operand);
/* Parses an id. HK_INPUT unless it is a whole number of at least 1. */
hk_status hk_stored_timeline_id(const char *operand, int64_t *id, hk_error *err);

/* Opens the default store. HK_INPUT if there is none: the message names the commands that make one.
 */
hk_status hk_stored_timeline_open(hk_store **store, hk_error *err);
/* Loads the timeline that an operand names from the default store. Free with
 * hk_loaded_timeline_free. */
hk_status hk_stored_timeline_load(const char *operand, hk_loaded_timeline *out, hk_error *err);
/* Stores a timeline in the default store, which is made if missing. */
hk_status hk_stored_timeline_add(const hk_timeline_to_store *what, int64_t *id, hk_error *err);

/* "predicted", "measured". */
const char *hk_stored_timeline_kind(const hk_stored_timeline *kept);

#endif
