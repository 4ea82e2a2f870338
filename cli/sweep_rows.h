/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The rows of a sweep that fit, in memory, and what follows from all of them together. */
#ifndef HK_CLI_SWEEP_ROWS_H
#define HK_CLI_SWEEP_ROWS_H

#include "cli/sweep_spec.h"

typedef struct {
  int64_t id, model, tokens; /* model: its number in the product of the axes that choose it */
  bool offload;
  double iteration_ms, tokens_per_s, gpu_bytes, host_bytes;
  double cost;  /* of a million tokens; NaN: no price */
  double gpu_s; /* GPU seconds of a million tokens */
  char *schedule;
} hk_sweep_fit;

typedef struct {
  hk_sweep_fit *list; /* by id */
  size_t n;
  int64_t all, too_large, not_possible; /* rows; those that do not fit; those without an answer */
  bool priced;                          /* every row that fits has a cost */
} hk_sweep_rows;

/* Free it, also after a failure. */
hk_status hk_sweep_rows_load(hk_store *store, const hk_sweep_spec *spec, hk_sweep_rows *rows,
                             hk_error *err);
void hk_sweep_rows_free(hk_sweep_rows *rows);

/* What is to be small: cost, or GPU seconds if a row has no price. */
double hk_sweep_measure(const hk_sweep_rows *rows, const hk_sweep_fit *fit);

/* Which rows are the best compromises (sim/sweep.h) of iteration time and memory of a GPU, and of
 * time and cost; each [n]. The caller frees both. */
hk_status hk_sweep_flags(const hk_sweep_rows *rows, bool **memory, bool **money, hk_error *err);
/* Writes these into the database. */
hk_status hk_sweep_mark(hk_store *store, const hk_sweep_rows *rows, hk_error *err);

#endif
