/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/prune.h"

#include <stdlib.h>
#include <string.h>

#include "sim/accumulation.h"
#include "sim/pace.h"

typedef struct {
  size_t plan;
  hk_ns bound; /* of the update */
} place;

static int by_bound(const void *left, const void *right) {
  const place *a = left, *b = right;
  if (a->bound != b->bound) return a->bound < b->bound ? -1 : 1;
  return (a->plan > b->plan) - (a->plan < b->plan);
}

/* The forecast of plan i with the best of its ways to sum gradients. */
static hk_status make(hk_plan *plans, size_t i, size_t n, size_t all, const size_t *origin,
                      bool may_wait, const hk_machine *machine,
                      int (*compare)(const void *, const void *), hk_forecast *made,
                      hk_error *err) {
  hk_forecast ways[HK_ACCUMULATE_COUNT] = {0};
  const size_t first[HK_ACCUMULATE_COUNT] = {0};
  size_t n_ways = 0;
  hk_status status = hk_forecast_make(&plans[i], machine, NULL, &ways[n_ways++], err);
  for (size_t j = n; j < all && status == HK_OK; j++)
    if (origin[j] == i) status = hk_forecast_make(&plans[j], machine, NULL, &ways[n_ways++], err);
  if (status == HK_OK) {
    hk_accumulation_keep_best(ways, 1, n_ways, first, compare);
    n_ways = 1;
    status = hk_pace_flush(&ways[0], may_wait, machine, err);
  }
  if (status == HK_OK) {
    *made = ways[0];
    return HK_OK;
  }
  for (size_t w = 0; w < n_ways; w++) hk_forecast_free(&ways[w]);
  return status;
}

hk_status hk_prune(hk_plan *plans, size_t n, size_t all, const size_t *origin, bool may_wait,
                   const hk_machine *machine, int (*compare)(const void *, const void *),
                   hk_forecast *forecasts, size_t *n_made, hk_error *err) {
  hk_ns fastest = INT64_MAX, training[2] = {-1, -1}; /* by runtime; -1: not known yet */
  hk_status status = HK_OK;
  *n_made = 0;
  place *order = malloc((n + 1) * sizeof *order);
  if (order == NULL) return hk_fail_memory(err, n * sizeof *order, "a ranking");
  for (size_t i = 0; i < n; i++) order[i] = (place){i, hk_bound_shares(&plans[i], machine)};
  qsort(order, n, sizeof *order, by_bound);
  for (size_t i = 0; i < n && status == HK_OK; i++) {
    hk_plan *plan = &plans[order[i].plan];
    hk_ns *before = &training[plan->runtime];
    if (fastest < INT64_MAX &&
        (order[i].bound == INT64_MAX || hk_max(0, *before) + order[i].bound > fastest))
      continue;
    hk_forecast *f = &forecasts[*n_made];
    status = make(plans, order[i].plan, n, all, origin, may_wait, machine, compare, f, err);
    if (status != HK_OK) break;
    ++*n_made;
    if (*before < 0) *before = hk_bound_training(&f->graph, machine);
    if (f->feasible) fastest = hk_min(fastest, f->iteration_ns);
  }
  free(order);
  return status;
}
