/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Stored timelines as the command line names them: by id. */
#ifndef HK_CLI_STORED_TIMELINE_H
#define HK_CLI_STORED_TIMELINE_H

#include "traces/timelines.h"

/* Whether an operand is an id and not a file: digits and nothing else. */
bool hk_stored_timeline_is_id(const char *operand);
/* HK_INPUT unless it is a whole number from 1. */
hk_status hk_stored_timeline_id(const char *operand, int64_t *id, hk_error *err);

/* The store that must be there; HK_INPUT says what would make one. */
hk_status hk_stored_timeline_open(hk_store **store, hk_error *err);
/* The timeline that an operand names, of the usual store. Free with hk_loaded_timeline_free. */
hk_status hk_stored_timeline_load(const char *operand, hk_loaded_timeline *out, hk_error *err);
/* Into the usual store, made if missing. */
hk_status hk_stored_timeline_add(const hk_timeline_to_store *what, int64_t *id, hk_error *err);

/* "predicted", "measured". */
const char *hk_stored_timeline_kind(const hk_stored_timeline *kept);

#endif
