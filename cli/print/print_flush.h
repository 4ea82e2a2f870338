/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rows of a run table that do not say how gradients were flushed: which flush was assumed, and the
 * errors under either. `validate runs` and `fit` print it. */
#ifndef HK_CLI_PRINT_PRINT_FLUSH_H
#define HK_CLI_PRINT_PRINT_FLUSH_H

#include <cjson/cJSON.h>

#include "calib/validate/runs.h"

/* One line; nothing if every row says it. A flush changes backward, and with it the iteration. */
void hk_print_flush_unknown(const hk_run_flush_unknown *unknown);
/* Adds an object with the medians of the first n figures, by the figures' columns. */
void hk_put_run_medians(const double *medians, int n, const char *key, cJSON *object, bool *ok);
/* Adds "flush_unknown". */
void hk_put_flush_unknown(const hk_run_flush_unknown *unknown, cJSON *root, bool *ok);

#endif
