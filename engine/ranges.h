/* SPDX-License-Identifier: Apache-2.0 */
/* A set of integers that grows by runs, mostly in order: the parameters whose gradients have been
 * given. */
#ifndef HK_ENGINE_RANGES_H
#define HK_ENGINE_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct {
  int64_t begin, end; /* begin .. end - 1 */
} hk_range;

/* Zero-initialise. */
typedef struct {
  hk_range *runs; /* in increasing order, with gaps between them */
  size_t n, capacity;
  int64_t total; /* number of elements */
} hk_ranges;

/* Whether any of begin .. end - 1 is in the set; *first: the smallest of them. */
bool hk_ranges_meet(const hk_ranges *set, int64_t begin, int64_t end, int64_t *first);
/* Adds begin .. end - 1, none of which may be in the set. Out of memory: the set is unchanged. */
hk_status hk_ranges_add(hk_ranges *set, int64_t begin, int64_t end, hk_error *err);
/* The smallest number from 0 on that is not in the set. */
int64_t hk_ranges_gap(const hk_ranges *set);
void hk_ranges_clear(hk_ranges *set); /* keeps its memory */
void hk_ranges_free(hk_ranges *set);

#endif
