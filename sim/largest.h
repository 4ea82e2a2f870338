/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The largest whole number that fits, found by bisection: micro-batches, sequences, layers. Memory
 * grows with each of them, so that everything below the largest fits. The search does not rely on
 * that alone: when it has found n that fits and n + 1 that does not, it tries three larger numbers,
 * and goes on from there if one fits. */
#ifndef HK_SIM_LARGEST_H
#define HK_SIM_LARGEST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

typedef struct {
  int64_t most; /* numbers 1 to most are tried */
  /* Sets *fits. Is called at most once for each number. A failure ends the search. */
  hk_status (*attempt)(void *context, int64_t n, bool *fits, hk_error *err);
  /* Before each attempt: how many were made, and about how many remain. NULL: nobody listens. */
  void (*progress)(void *context, int made, int remain);
  void *context;
} hk_largest_search;

/* *largest: the largest number found that fits; 0: not even 1. */
hk_status hk_largest(const hk_largest_search *search, int64_t *largest, hk_error *err);

#endif
