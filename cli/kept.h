/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Stored timelines as the command line names them: by id. */
#ifndef HK_CLI_KEPT_H
#define HK_CLI_KEPT_H

#include "traces/timelines.h"

/* Whether an operand is an id and not a file: digits and nothing else. */
bool hk_kept_is_id(const char *operand);
/* HK_INPUT unless it is a whole number from 1. */
hk_status hk_kept_id(const char *operand, int64_t *id, hk_error *err);

/* The store that must be there; HK_INPUT says what would make one. */
hk_status hk_kept_open(hk_store **store, hk_error *err);
/* The timeline that an operand names, of the usual store. Free with hk_loaded_timeline_free. */
hk_status hk_kept_load(const char *operand, hk_loaded_timeline *out, hk_error *err);
/* Into the usual store, made if missing. */
hk_status hk_kept_keep(const hk_timeline_to_keep *what, int64_t *id, hk_error *err);

/* "predicted", "measured". */
const char *hk_kept_sort(const hk_kept_timeline *kept);

#endif
