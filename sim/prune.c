/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/prune.h"

#include <stdlib.h>
#include <string.h>

#include "sim/accumulation.h"
#include "sim/flush.h"
#include "sim/preview.h"
#include "sim/turn.h"

typedef struct {
  size_t plan;
  bool closely, done;
  hk_bytes missing; /* what the way of summing lacks that lacks least */
  hk_ns bound;      /* of the update; with an overlap hk_turn_settled; of any way of summing */
} place;

typedef struct {
  hk_plan *plans;
  size_t n, all;
  const size_t *origin;
  const hk_plan_settings *settings;
  const hk_machine *machine;
  int (*compare)(const void *, const void *);
  hk_error *err;
  hk_ns fastest, training[2]; /* forward and backward, by runtime; -1: not known yet */
  hk_bytes least_missing;     /* of plans that do not fit */
  hk_turn turn;               /* with an overlap */
} pruning;

static int by_bound(const void *left, const void *right) {
  const place *a = left, *b = right;
  if (a->missing != b->missing) return a->missing < b->missing ? -1 : 1;
  if (a->bound != b->bound) return a->bound < b->bound ? -1 : 1;
  return (a->plan > b->plan) - (a->plan < b->plan);
}

/* Whether plan j is plan i, or another way of it to sum gradients. */
static bool is_way(const pruning *p, size_t j, size_t i) {
  return j == i || (j >= p->n && p->origin[j] == i);
}

static hk_status bound_of(const pruning *p, const hk_plan *plan, hk_ns *bound) {
  if (plan->overlap == HK_OVERLAP_NONE) {
    *bound = hk_bound_shares(plan, p->machine);
    return HK_OK;
  }
  HK_TRY(hk_turn_least(&p->turn, plan, bound, p->err));
  *bound = hk_turn_settled(*bound);
  return HK_OK;
}

/* What a plan keeps on a GPU above what is allowed. */
static hk_bytes over_limit(const hk_plan_settings *settings, const hk_plan *plan) {
  const hk_bytes *most = settings->gpu_memory;
  return hk_plan_keeps_within(plan, most) ? 0 : hk_plan_gpu_kept(plan) - *most;
}

hk_status hk_prune_lacks(const hk_plan *plan, const hk_plan_settings *settings, bool closely,
                         const hk_machine *machine, hk_bytes *lacks, hk_error *err) {
  hk_bytes gpu, host;
  HK_TRY(hk_forecast_least_memory(plan, &gpu, &host, err));
  host -= (hk_bytes)hk_host_capacity(machine);
  const hk_bytes capacity = (hk_bytes)hk_gpu_capacity(machine);
  if (closely && (host > 0 || gpu > capacity)) HK_TRY(hk_forecast_least_peak(plan, &gpu, err));
  const hk_bytes most = hk_max(gpu - capacity, over_limit(settings, plan));
  *lacks = hk_node_lacks(host, most, &plan->job);
  return HK_OK;
}

static hk_status find_missing(const pruning *p, place *at) {
  at->missing = INT64_MAX;
  for (size_t j = at->plan; j < p->all; j++) {
    hk_bytes missing;
    if (!is_way(p, j, at->plan)) continue;
    HK_TRY(hk_prune_lacks(&p->plans[j], p->settings, at->closely, p->machine, &missing, p->err));
    at->missing = hk_min(at->missing, missing);
  }
  return HK_OK;
}

static hk_status place_of(const pruning *p, size_t i, place *at) {
  *at = (place){.plan = i};
  HK_TRY(find_missing(p, at));
  return at->missing > 0 ? HK_OK : bound_of(p, &p->plans[i], &at->bound);
}

/* Whether a plan with an overlap fits and takes longer than the fastest. If it does not fit,
 * another order of collectives may make it fit (sim/flush.h). */
static hk_status is_slower(const pruning *p, size_t i, bool *slower) {
  hk_preview preview;
  *slower = false;
  if (p->plans[i].overlap == HK_OVERLAP_NONE || p->fastest == INT64_MAX) return HK_OK;
  HK_TRY(hk_preview_of(&p->plans[i], p->machine, &preview, p->err));
  *slower = preview.feasible && preview.iteration_ns > p->fastest;
  return HK_OK;
}

/* Makes the forecasts of plan i with all ways to sum gradients; none if each of them is slower than
 * the fastest. One of them alone is no reason to leave it out: without it another one would be the
 * best, and might fit with fewer gradients that wait. */
static hk_status make_ways(const pruning *p, size_t i, hk_forecast *ways, size_t *n) {
  bool slower = true;
  *n = 0;
  for (size_t j = i; j < p->all && slower; j++)
    if (is_way(p, j, i)) HK_TRY(is_slower(p, j, &slower));
  for (size_t j = i; j < p->all && !slower; j++) {
    if (!is_way(p, j, i)) continue;
    HK_TRY(hk_forecast_make(&p->plans[j], p->machine, NULL, &ways[*n], p->err));
    ++*n;
  }
  return HK_OK;
}

/* The forecast of plan i with the best of its ways to sum gradients; zeroed if it is proven to be
 * slower than the fastest. */
static hk_status make(const pruning *p, size_t i, hk_forecast *made) {
  hk_forecast ways[HK_ACCUMULATE_COUNT] = {0};
  const size_t first[HK_ACCUMULATE_COUNT] = {0};
  size_t n;
  hk_status status = make_ways(p, i, ways, &n);
  if (status == HK_OK && n > 0) {
    hk_accumulation_keep_best(ways, 1, n, first, p->compare);
    n = 1;
    status = hk_flush_fit(&ways[0], p->settings->flush == NULL, p->machine, p->err);
  }
  *made = ways[0];
  for (size_t w = status == HK_OK; w < n; w++) hk_forecast_free(&ways[w]);
  return status;
}

/* Whether a plan is proven to be worse than one that has been simulated. */
static bool is_worse(const pruning *p, const place *at) {
  const hk_ns before = hk_max(0, p->training[p->plans[at->plan].runtime]);
  if (at->missing > 0) return p->fastest < INT64_MAX || at->missing > p->least_missing;
  return p->fastest < INT64_MAX && (at->bound == INT64_MAX || before + at->bound > p->fastest);
}

/* Compares others with a forecast. */
static void note(pruning *p, const hk_forecast *f) {
  hk_ns *before = &p->training[f->plan.runtime];
  const hk_bytes over = over_limit(p->settings, &f->plan);
  const hk_bytes missing = hk_node_lacks(f->host_short, hk_max(f->gpu_short, over), &f->plan.job);
  if (*before < 0 && f->plan.overlap == HK_OVERLAP_NONE)
    *before = hk_bound_training(&f->graph, p->machine);
  if (f->feasible && over == 0)
    p->fastest = hk_min(p->fastest, f->iteration_ns);
  else
    p->least_missing = hk_min(p->least_missing, missing);
}

/* The first by by_bound of those that are left; NULL: none. */
static place *next_of(place *places, size_t n) {
  place *first = NULL;
  for (size_t i = 0; i < n; i++)
    if (!places[i].done && (first == NULL || by_bound(&places[i], first) < 0)) first = &places[i];
  return first;
}

/* Makes the forecast of a place, unless it is proven to be worse than another one, or may be by a
 * closer look. */
static hk_status visit(pruning *p, place *at, hk_forecast *forecasts, size_t *n_made) {
  at->done = true;
  if (is_worse(p, at)) return HK_OK;
  if (at->missing > 0 && !at->closely) {
    at->closely = true;
    at->done = false;
    return find_missing(p, at);
  }
  hk_forecast *f = &forecasts[*n_made];
  HK_TRY(make(p, at->plan, f));
  if (f->plan.subgroups == NULL) return HK_OK;
  ++*n_made;
  note(p, f);
  return HK_OK;
}

hk_status hk_prune(hk_plan *plans, size_t n, size_t all, const size_t *origin,
                   const hk_plan_settings *settings, const hk_forecast *known,
                   const hk_machine *machine, int (*compare)(const void *, const void *),
                   hk_forecast *forecasts, size_t *n_made, hk_error *err) {
  pruning p = {.plans = plans,
               .n = n,
               .all = all,
               .origin = origin,
               .settings = settings,
               .machine = machine,
               .compare = compare,
               .err = err,
               .fastest = INT64_MAX,
               .training = {-1, -1},
               .least_missing = INT64_MAX};
  hk_status status = HK_OK;
  *n_made = 0;
  place *places = malloc((n + 1) * sizeof *places);
  if (places == NULL) return hk_fail_memory(err, n * sizeof *places, "a ranking");
  if (known != NULL) note(&p, known);
  if (n > 0 && plans[0].overlap != HK_OVERLAP_NONE)
    status = hk_turn_open(&plans[0], machine, &p.turn, err);
  for (size_t i = 0; i < n && status == HK_OK; i++) status = place_of(&p, i, &places[i]);
  for (place *at; status == HK_OK && (at = next_of(places, n)) != NULL;)
    status = visit(&p, at, forecasts, n_made);
  hk_turn_close(&p.turn);
  free(places);
  return status;
}
