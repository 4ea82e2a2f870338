/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Runs a sweep into its database, and merges databases. */
#ifndef HK_CLI_SWEEP_RUN_H
#define HK_CLI_SWEEP_RUN_H

#include "cli/sweep_spec.h"

/* A database with the spec that it was made from. */
typedef struct {
  hk_store *store;
  hk_sweep_spec spec;
  int64_t simulated; /* rows that hk_sweep_run added */
} hk_sweep_database;

/* Opens a database that a sweep has begun. HK_INPUT: there is none. Close it, also after a failure.
 */
hk_status hk_sweep_database_open(const char *path, hk_sweep_database *database, hk_error *err);
void hk_sweep_database_close(hk_sweep_database *database);

/* Simulates the points of `spec` that args->shard asks for and that the database at `path` does not
 * have, until it is interrupted (HK_NO). Leaves the database open. */
hk_status hk_sweep_run(const hk_args *args, const char *path, hk_sweep_database *database,
                       hk_error *err);
/* Puts the rows of all operands into the database at `path`. HK_NO: rows are missing. */
hk_status hk_sweep_merge_all(const hk_args *args, const char *path, hk_sweep_database *database,
                             hk_error *err);

#endif
