/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The report of `validate training` for several ranks: what each did against one prediction. */
#ifndef HK_CLI_PRINT_PRINT_RANKS_H
#define HK_CLI_PRINT_PRINT_RANKS_H

#include "calib/validate/ranks.h"
#include "cli/args.h"

/* A hk_pair_finder: the iteration. */
hk_pair hk_rank_iteration(const hk_rank_validation *rank, int unused);

void hk_print_ranks_heading(const hk_ranks_validation *v);
/* Rows: iteration, phases, kinds of operations, waits. Columns: predicted, each rank, and the error
 * of the worst. */
hk_status hk_print_ranks_table(const hk_ranks_validation *v, hk_error *err);
/* The same rows, each with the rank that differs most. */
void hk_put_ranks_table(const hk_ranks_validation *v, cJSON *root, bool *ok);
/* Writes --timeline, if given: the prediction and all ranks in one trace. */
hk_status hk_write_ranks_trace(const hk_args *args, const char *command,
                               const hk_ranks_validation *v, hk_error *err);

#endif
