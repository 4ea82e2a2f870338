/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search of search.h. */
#include "sim/search.h"

#include <stdio.h>
#include <string.h>

#include "core/base/splitmix.h"
#include "core/graph/bytes.h"
#include "sim/overlap.h"

#define BATCH        4
#define MOST_CHANGES 3
#define MOST_SPREAD  6
#define STALE        3000 /* rounds without a gain, after which it ends */
#define ENOUGH       1e-4 /* gap at which it ends */

/* Plans are compared by `cost`. */
typedef struct {
  hk_ns cost; /* INT64_MAX: does not fit */
  hk_ns mean; /* of steps that are clipped and steps that are not; as simulated */
} judgement;

/* The state of a search. */
typedef struct {
  const hk_machine *machine;
  const hk_search_options *options;
  const hk_plan *start;
  hk_bytes most_kept, most_peak; /* of GPU memory */
  hk_plan current;
  judgement best; /* of `current` */
} hill;

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

static void change_alone(hk_plan *plan, const hk_plan *start, uint64_t *r) {
  const size_t kind = pick(r, 9);
  if (kind < 3)
    change_route(plan, r);
  else if (kind < 6)
    swap_routes(plan, r);
  else if (kind < 8)
    change_order(plan, r);
  else
    change_staging(plan, start, r);
}

/* -- Changes with an overlap, where the order is that of forward --------------------------------
 */

/* Gives a subgroup the route of another, and whether it runs ahead. */
static void place(hk_plan_subgroup *subgroup, hk_plan_subgroup as) {
  const int64_t numel = subgroup->numel;
  *subgroup = as;
  subgroup->numel = numel;
}

/* Gives a run of subgroups the place of its first. */
static void spread(hk_plan *plan, uint64_t *r) {
  const size_t from = pick(r, plan->n_subgroups), end = from + 2 + pick(r, MOST_SPREAD - 1);
  for (size_t i = from + 1; i < end && i < plan->n_subgroups; i++)
    place(&plan->subgroups[i], plan->subgroups[from]);
}

/* Most of what the CPU updates runs ahead, if it may. */
static void change_overlapped(hk_plan *plan, const hk_plan *start, uint64_t *r) {
  static const hk_route routes[] = {HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT};
  hk_plan_subgroup *a = &plan->subgroups[pick(r, plan->n_subgroups)];
  hk_plan_subgroup *b = &plan->subgroups[pick(r, plan->n_subgroups)];
  const hk_plan_subgroup was = *a;
  const size_t kind = pick(r, 5);
  if (kind == 0) {
    place(a, *b);
    place(b, was);
  } else if (kind == 1) {
    spread(plan, r);
  } else if (kind == 2) {
    change_staging(plan, start, r);
  } else {
    place(a, (hk_plan_subgroup){.route = routes[pick(r, 3)]});
    a->ahead = plan->overlap == HK_OVERLAP_BOTH && a->route == HK_ROUTE_CPU && pick(r, 4) > 0;
  }
}

/* The plan with a few changes; the first of the first round has its resident state in front. */
static hk_status changed(const hill *h, uint64_t state, bool front, hk_plan *plan, hk_error *err) {
  HK_TRY(hk_plan_copy(&h->current, plan, err));
  for (size_t n = front ? 0 : 1 + pick(&state, MOST_CHANGES); n > 0; n--) {
    if (plan->overlap == HK_OVERLAP_NONE)
      change_alone(plan, h->start, &state);
    else
      change_overlapped(plan, h->start, &state);
  }
  if (front) hk_policy_front(plan);
  const size_t resident = hk_plan_count(plan, HK_ROUTE_RESIDENT);
  plan->ratio = 1 - (double)resident / (double)plan->n_subgroups;
  return HK_OK;
}

/* -- Rounds ----------------------------------------------------------------------------------- */

/* What --gpu-memory limits. */
static hk_bytes kept(const hk_plan *plan) {
  return plan->overlap == HK_OVERLAP_NONE ? hk_plan_gpu_state(plan) : hk_overlap_gpu_bytes(plan);
}

static hk_status judge(const hill *h, const hk_forecast *f, judgement *is, hk_error *err) {
  *is = (judgement){f->iteration_ns, f->iteration_ns};
  if (f->plan.overlap == HK_OVERLAP_NONE) return HK_OK;
  return hk_overlap_judge(f, h->options->clip_share, h->machine, &is->cost, &is->mean, err);
}

/* Simulates a plan. One that no engine takes (Muon on the CPU), outside the limits
 * or without a steady iteration has no cost. After a failure *plan is empty. */
static hk_status simulate(const hill *h, hk_plan *plan, judgement *is, hk_error *err) {
  hk_forecast f;
  hk_error refusal;
  *is = (judgement){INT64_MAX, INT64_MAX};
  if (hk_plan_check(plan, &refusal) != HK_OK || kept(plan) > h->most_kept) return HK_OK;
  HK_TRY(hk_forecast_make(plan, h->machine, NULL, &f, err));
  const bool steady = f.unsteady_ns <= f.iteration_ns / HK_STEADY;
  const bool fits = f.feasible && steady && f.result.memory.peak <= h->most_peak;
  const hk_status status = fits ? judge(h, &f, is, err) : HK_OK;
  *plan = f.plan;
  memset(&f.plan, 0, sizeof f.plan);
  hk_forecast_free(&f);
  return status;
}

/* One round. Goes on from the best of the batch if it is not slower: plans that are as fast lead on
 * to faster ones. */
static hk_status climb(hill *h, int64_t round, hk_error *err) {
  hk_plan plans[BATCH] = {0};
  judgement judged[BATCH];
  hk_error errors[BATCH] = {0};
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < BATCH; i++) {
    uint64_t state = h->options->seed ^ (uint64_t)(round * BATCH + i + 1) * 0xd1342543de82ef95u;
    judged[i].cost = INT64_MAX;
    errors[i].status =
        changed(h, hk_splitmix_next(&state), round == 0 && i == 0, &plans[i], &errors[i]);
    if (errors[i].status == HK_OK)
      errors[i].status = simulate(h, &plans[i], &judged[i], &errors[i]);
  }
  hk_status status = HK_OK;
  int best = 0;
  for (int i = 0; i < BATCH; i++) {
    if (errors[i].status != HK_OK && status == HK_OK)
      status = hk_fail(err, errors[i].status, "%s", errors[i].message);
    if (judged[i].cost < judged[best].cost) best = i;
  }
  if (status == HK_OK && judged[best].cost <= h->best.cost) {
    hk_plan_free(&h->current);
    h->current = plans[best];
    memset(&plans[best], 0, sizeof plans[best]);
    h->best = judged[best];
  }
  for (int i = 0; i < BATCH; i++) hk_plan_free(&plans[i]);
  return status;
}

static hk_status climb_all(hill *h, hk_ns bound, hk_search_progress *p, hk_error *err) {
  const hk_ns began = hk_now();
  int64_t gained = 0;
  for (int64_t round = 0; h->options->rounds == 0 || round < h->options->rounds; round++) {
    const hk_ns before = h->best.cost;
    HK_TRY(climb(h, round, err));
    if (h->best.cost < before) gained = round;
    *p = (hk_search_progress){.evaluated = (round + 1) * BATCH,
                              .seconds = (double)(hk_now() - began) / 1e9,
                              .iteration_ns = h->best.mean,
                              .gap = (double)h->best.mean / (double)hk_max(1, bound) - 1};
    if (h->options->progress != NULL && round % 16 == 0)
      h->options->progress(h->options->context, p);
    const bool stopped = h->options->stop != NULL && *h->options->stop != 0;
    if (stopped || p->seconds >= h->options->seconds || round - gained >= STALE || p->gap <= ENOUGH)
      break;
  }
  return HK_OK;
}

/* Plans with an overlap leave the reserve of hk_overlap_search, unless the start does not. */
static void set_limits(hill *h, const hk_forecast *start) {
  const hk_memory_report *m = &start->result.memory;
  const bool reserves = start->plan.overlap != HK_OVERLAP_NONE;
  const double share = reserves ? 1 - HK_OVERLAP_RESERVE : 1;
  h->most_peak = hk_max(m->peak, (hk_bytes)(share * (double)m->capacity));
  const hk_bytes *given = h->options->gpu_state;
  h->most_kept = given == NULL ? INT64_MAX : hk_max(*given, kept(&start->plan));
}

hk_status hk_search(const hk_forecast *start, const hk_machine *machine,
                    const hk_search_options *options, hk_forecast *found, hk_search_progress *end,
                    hk_error *err) {
  hk_certificate certificate;
  memset(found, 0, sizeof *found);
  memset(end, 0, sizeof *end);
  HK_TRY(hk_certify(start, machine, &certificate, err));
  hill h = {.machine = machine, .options = options, .start = &start->plan};
  set_limits(&h, start);
  HK_TRY(judge(&h, start, &h.best, err));
  const hk_ns first = h.best.cost;
  HK_TRY(hk_plan_copy(&start->plan, &h.current, err));
  snprintf(h.current.policy, sizeof h.current.policy, "searched");
  h.current.stride = 0;
  hk_status status = climb_all(&h, certificate.made ? certificate.bound_ns : 0, end, err);
  if (status == HK_OK && h.best.cost < first)
    status = hk_forecast_make(&h.current, machine, NULL, found, err);
  hk_plan_free(&h.current);
  return status;
}
