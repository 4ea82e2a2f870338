/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search of search.h. */
#include "sim/search.h"

#include <stdio.h>
#include <string.h>

#include "core/base/splitmix.h"
#include "core/graph/bytes.h"

#define BATCH        16
#define MOST_CHANGES 3
#define STALE        3000 /* rounds without a gain, after which it ends */
#define ENOUGH       1e-4 /* gap at which it ends */

static size_t pick(uint64_t *state, size_t n) {
  return (size_t)(hk_splitmix_next(state) % n);
}

static double between(uint64_t *state, double least, double most) {
  return least + (most - least) * (double)(hk_splitmix_next(state) >> 11) * 0x1p-53;
}

/* -- Changes ---------------------------------------------------------------------------------- */

static void change_route(hk_plan *plan, uint64_t *r) {
  static const hk_route routes[] = {HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT};
  plan->subgroups[pick(r, plan->n_subgroups)].route = routes[pick(r, 3)];
}

static void swap_routes(hk_plan *plan, uint64_t *r) {
  hk_plan_subgroup *a = &plan->subgroups[pick(r, plan->n_subgroups)];
  hk_plan_subgroup *b = &plan->subgroups[pick(r, plan->n_subgroups)];
  const hk_route route = a->route;
  a->route = b->route;
  b->route = route;
}

/* Moves one subgroup to another place in the order. */
static void change_order(hk_plan *plan, uint64_t *r) {
  const size_t n = plan->n_subgroups, from = pick(r, n), to = pick(r, n);
  const int32_t moved = plan->order[from];
  memmove(plan->order + from, plan->order + from + 1, (n - 1 - from) * sizeof moved);
  memmove(plan->order + to + 1, plan->order + to, (n - 1 - to) * sizeof moved);
  plan->order[to] = moved;
}

static void change_staging(hk_plan *plan, const hk_plan *start, uint64_t *r) {
  if (pick(r, 2)) {
    plan->buffers = 1 + (int)pick(r, 6);
    return;
  }
  const double piece = (double)plan->piece_numel * between(r, 0.7, 1.4);
  const double most = 4 * (double)start->piece_numel, least = (double)start->piece_numel / 2;
  plan->piece_numel = (int64_t)(piece < least ? least : piece > most ? most : piece);
}

static void change_pace(hk_plan *plan, const hk_machine *m, uint64_t *r) {
  struct limit {
    double *rate, full;
  };
  const struct limit limits[] = {{&plan->pace.in, m->h2d.value},
                                 {&plan->pace.out, m->d2h.value},
                                 {&plan->pace.cpu, m->cpu_adamw.value / plan->job.gpus}};
  const struct limit limit = limits[pick(r, 3)];
  const double changed = (*limit.rate > 0 ? *limit.rate : limit.full) * between(r, 0.9, 1.1);
  *limit.rate = changed < limit.full && changed > HK_LEAST_PACE ? changed : 0;
}

static void change(hk_plan *plan, const hk_plan *start, const hk_machine *m, uint64_t *r) {
  const size_t kind = pick(r, 10);
  if (kind < 3)
    change_route(plan, r);
  else if (kind < 6)
    swap_routes(plan, r);
  else if (kind < 8)
    change_order(plan, r);
  else if (kind < 9)
    change_pace(plan, m, r);
  else
    change_staging(plan, start, r);
}

/* The plan with a few changes; the first of the first round has its resident state in front. */
static hk_status changed(const hk_plan *from, const hk_plan *start, const hk_machine *m,
                         uint64_t state, bool front, hk_plan *plan, hk_error *err) {
  HK_TRY(hk_plan_copy(from, plan, err));
  if (front) {
    hk_policy_front(plan);
  } else {
    for (size_t n = 1 + pick(&state, MOST_CHANGES); n > 0; n--) change(plan, start, m, &state);
  }
  const size_t resident = hk_plan_count(plan, HK_ROUTE_RESIDENT);
  plan->ratio = 1 - (double)resident / (double)plan->n_subgroups;
  return HK_OK;
}

/* -- Rounds ----------------------------------------------------------------------------------- */

typedef struct {
  const hk_machine *machine;
  const hk_search_options *options;
  const hk_plan *start;
  hk_plan current;
  hk_ns time;
} hill;

/* Simulates a plan; INT64_MAX: it does not fit. After a failure *plan is empty. */
static hk_status time_of(const hill *h, hk_plan *plan, hk_ns *time, hk_error *err) {
  hk_forecast f;
  *time = INT64_MAX;
  if (!hk_plan_keeps_within(plan, h->options->gpu_state)) return HK_OK;
  HK_TRY(hk_forecast_make(plan, h->machine, NULL, &f, err));
  if (f.feasible) *time = f.iteration_ns;
  *plan = f.plan;
  memset(&f.plan, 0, sizeof f.plan);
  hk_forecast_free(&f);
  return HK_OK;
}

/* One round. Goes on from the best of the batch if it is not slower: plans that are as fast lead on
 * to faster ones. */
static hk_status climb(hill *h, int64_t round, hk_error *err) {
  hk_plan plans[BATCH] = {0};
  hk_ns times[BATCH];
  hk_error errors[BATCH] = {0};
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < BATCH; i++) {
    uint64_t state = h->options->seed ^ (uint64_t)(round * BATCH + i + 1) * 0xd1342543de82ef95u;
    times[i] = INT64_MAX;
    errors[i].status = changed(&h->current, h->start, h->machine, hk_splitmix_next(&state),
                               round == 0 && i == 0, &plans[i], &errors[i]);
    if (errors[i].status == HK_OK) errors[i].status = time_of(h, &plans[i], &times[i], &errors[i]);
  }
  hk_status status = HK_OK;
  int best = 0;
  for (int i = 0; i < BATCH; i++) {
    if (errors[i].status != HK_OK && status == HK_OK)
      status = hk_fail(err, errors[i].status, "%s", errors[i].message);
    if (times[i] < times[best]) best = i;
  }
  if (status == HK_OK && times[best] <= h->time) {
    hk_plan_free(&h->current);
    h->current = plans[best];
    memset(&plans[best], 0, sizeof plans[best]);
    h->time = times[best];
  }
  for (int i = 0; i < BATCH; i++) hk_plan_free(&plans[i]);
  return status;
}

static hk_status climb_all(hill *h, hk_ns bound, hk_search_progress *p, hk_error *err) {
  const hk_ns began = hk_now();
  int64_t gained = 0;
  for (int64_t round = 0; h->options->rounds == 0 || round < h->options->rounds; round++) {
    const hk_ns before = h->time;
    HK_TRY(climb(h, round, err));
    if (h->time < before) gained = round;
    *p = (hk_search_progress){.evaluated = (round + 1) * BATCH,
                              .seconds = (double)(hk_now() - began) / 1e9,
                              .iteration_ns = h->time,
                              .gap = (double)h->time / (double)hk_max(1, bound) - 1};
    if (h->options->progress != NULL && round % 16 == 0)
      h->options->progress(h->options->context, p);
    if (p->seconds >= h->options->seconds || round - gained >= STALE || p->gap <= ENOUGH) break;
  }
  return HK_OK;
}

hk_status hk_search(const hk_forecast *start, const hk_machine *machine,
                    const hk_search_options *options, hk_forecast *found, hk_search_progress *end,
                    hk_error *err) {
  hk_certificate certificate;
  memset(found, 0, sizeof *found);
  memset(end, 0, sizeof *end);
  HK_TRY(hk_certify(start, machine, &certificate, err));
  hill h = {
      .machine = machine, .options = options, .start = &start->plan, .time = start->iteration_ns};
  HK_TRY(hk_plan_copy(&start->plan, &h.current, err));
  snprintf(h.current.policy, sizeof h.current.policy, "searched");
  h.current.stride = 0;
  hk_status status = climb_all(&h, certificate.made ? certificate.bound_ns : 0, end, err);
  if (status == HK_OK && h.time < start->iteration_ns)
    status = hk_forecast_make(&h.current, machine, NULL, found, err);
  hk_plan_free(&h.current);
  return status;
}
