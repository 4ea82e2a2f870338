/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Questions about the rows of a sweep: the best compromises, and what each key changes. */
#ifndef HK_SIM_SWEEP_H
#define HK_SIM_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

/* A row that fits. */
typedef struct {
  int64_t id;            /* of its point */
  int64_t model, tokens; /* of an iteration; only rows that have both in common are compared */
  double time;           /* of an iteration */
  double price;          /* what is weighed against it: memory, or money. NaN: not known */
} hk_sweep_row;

/* best[i]: of the rows with i's model and tokens none is better in one of time and price and at
 * least as good in the other. A row whose price is not known is not the best. */
hk_status hk_sweep_pareto(const hk_sweep_row *rows, size_t n, bool *best, hk_error *err);

/* A key of a sweep: its value in point `id` is value number id / step % values. */
typedef struct {
  int64_t step, values;
} hk_sweep_key;

/* What a key changes: over all sets of rows that differ in this key alone, two or more of them,
 * time of the slowest / time of the fastest. */
typedef struct {
  size_t sets;
  double median, most; /* 1: the key changes nothing; 0 without sets */
  int64_t best;        /* the value that most often is the fastest; of those the first */
  size_t best_in;      /* sets in which it is */
} hk_sweep_effect;

/* `time` of the rows: whatever is to be small. Models and tokens are not used. */
hk_status hk_sweep_effect_of(const hk_sweep_row *rows, size_t n, const hk_sweep_key *key,
                             hk_sweep_effect *effect, hk_error *err);

/* Calls `body` for 0 <= i < n in parallel (OpenMP). `thread` is below hk_sweep_threads(): two calls
 * with the same one do not overlap. */
int hk_sweep_threads(void);
void hk_sweep_each(size_t n, void (*body)(void *context, size_t i, int thread), void *context);

#endif
