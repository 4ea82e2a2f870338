/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search of search.h. */
#include "sim/search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/splitmix.h"
#include "core/graph/bytes.h"
#include "sim/ahead.h"
#include "sim/held.h"
#include "sim/overlap.h"

#define BATCH        4
#define MOST_CHANGES 3
#define MOST_SPREAD  6
#define GRADS        7    /* subgroups whose gradients take the GPU memory of a resident one */
#define STEADY       1000 /* as in forecast.c: periods that differ by more are no answer */
#define STALE        3000 /* rounds without a gain, after which it ends */
#define ENOUGH       1e-4 /* gap at which it ends */

/* Of a short search. Its plan has no policy's name and is harder to read, so it has to gain. */
#define SHORT_ROUNDS 32
#define SHORT_OPS    1.5e6 /* simulated operations */
#define SHORT_GAIN   0.01
#define SHORT_ENOUGH 0.01

/* Plans are compared by `cost`. */
typedef struct {
  hk_ns cost; /* INT64_MAX: does not fit */
  hk_ns mean; /* of steps that are clipped and steps that are not; as simulated */
} judgement;

/* What the first rounds change, one after the other. */
typedef enum { MIX, RESIDENT, AHEAD, OUT, CPU, STAGED, BUFFERS, PIECE, KNOBS } knob;

/* The state of a search. */
typedef struct {
  const hk_machine *machine;
  const hk_search_options *options;
  const hk_plan *start;
  hk_bytes most_kept, most_peak; /* of GPU memory */
  hk_plan current;
  judgement best; /* of `current` */
  knob at;        /* KNOBS: changes are random */
  double steps[KNOBS];
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

static void change_pace(hk_plan *plan, const hk_machine *m, uint64_t *r) {
  struct limit {
    double *rate, full;
  };
  const struct limit limits[] = {{&plan->pace.in, m->h2d.value},
                                 {&plan->pace.out, m->d2h.value},
                                 {&plan->pace.cpu, m->cpu_adamw.value / plan->job.gpus}};
  const struct limit limit = limits[pick(r, 3)];
  const double changed =
      *limit.rate > 0 ? *limit.rate * between(r, 0.9, 1.1) : limit.full * between(r, 0.5, 1);
  *limit.rate = changed < limit.full && changed > HK_LEAST_PACE ? changed : 0;
}

static void change_alone(hk_plan *plan, const hk_plan *start, const hk_machine *m, uint64_t *r) {
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
static void change_overlapped(hk_plan *plan, const hk_plan *start, const hk_machine *m,
                              uint64_t *r) {
  static const hk_route routes[] = {HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT};
  hk_plan_subgroup *a = &plan->subgroups[pick(r, plan->n_subgroups)];
  hk_plan_subgroup *b = &plan->subgroups[pick(r, plan->n_subgroups)];
  const hk_plan_subgroup was = *a;
  const size_t kind = pick(r, 6);
  if (kind == 0) {
    place(a, *b);
    place(b, was);
  } else if (kind == 1) {
    spread(plan, r);
  } else if (kind == 2) {
    change_pace(plan, m, r);
  } else if (kind == 3) {
    change_staging(plan, start, r);
  } else {
    place(a, (hk_plan_subgroup){.route = routes[pick(r, 3)]});
    a->ahead = plan->overlap == HK_OVERLAP_BOTH && a->route == HK_ROUTE_CPU && pick(r, 4) > 0;
  }
}

/* -- Knobs: in the first rounds, each turned until its smallest step gains nothing ---------------
 */

/* Of MIX, rounds that are left; of others shares of a rate or of all subgroups, or buffers. */
static const struct {
  double first, least;
} knob_steps[KNOBS] = {[MIX] = {4, 1},       [RESIDENT] = {0.06, 0.006}, [AHEAD] = {0.12, 0.01},
                       [OUT] = {0.12, 0.03}, [CPU] = {0.12, 0.03},       [STAGED] = {0.03, 0.006},
                       [BUFFERS] = {2, 1},   [PIECE] = {0.3, 0.15}};

static double rate_out(const hk_plan *plan, const hk_machine *m) {
  return fmin(m->d2h.value, m->fabric_d2h.value / plan->job.gpus);
}

static double rate_cpu(const hk_plan *plan, const hk_machine *m) {
  return fmin(hk_update_rate(m, plan->optimizer, plan->cpu_threads),
              m->dram.value / hk_update_traffic(plan->optimizer) / plan->job.gpus);
}

static double limited(double rate, double full) {
  return rate < full && rate > HK_LEAST_PACE ? rate : 0;
}

/* `more` staged subgroups, or fewer, spread evenly among those on the host. */
static void stage_more(hk_plan *plan, int64_t more) {
  const int64_t before = (int64_t)hk_plan_count(plan, HK_ROUTE_STAGED),
                n = before + (int64_t)hk_plan_count(plan, HK_ROUTE_CPU),
                staged = hk_max(0, hk_min(n, before + more));
  hk_plan_subgroup cpu = {.route = HK_ROUTE_CPU}; /* as the last one before */
  int64_t k = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    hk_plan_subgroup *subgroup = &plan->subgroups[i];
    if (subgroup->route == HK_ROUTE_CPU) cpu = *subgroup;
    if (subgroup->route != HK_ROUTE_CPU && subgroup->route != HK_ROUTE_STAGED) continue;
    const bool to_gpu = (k + 1) * staged / n > k * staged / n;
    place(subgroup, to_gpu ? (hk_plan_subgroup){.route = HK_ROUTE_STAGED} : cpu);
    k++;
  }
}

/* Spreads the resident subgroups evenly over the order: the GPU then updates them while it waits
 * for the state of others. */
static void mix_order(hk_plan *plan) {
  const size_t n = plan->n_subgroups, resident = hk_plan_count(plan, HK_ROUTE_RESIDENT);
  size_t next[2] = {0, 0}; /* on the host, resident */
  for (size_t i = 0; i < n; i++) {
    const bool of = (i + 1) * resident / n > i * resident / n;
    while ((plan->subgroups[next[of]].route == HK_ROUTE_RESIDENT) != of) next[of]++;
    plan->order[i] = (int32_t)next[of]++;
  }
}

/* Gives `n` more subgroups a place, from the first or the last one on; or, if `n` is negative, the
 * CPU gets subgroups of that place, from the other side. */
static void place_more(hk_plan *plan, int64_t n, hk_plan_subgroup as, bool first) {
  const size_t all = plan->n_subgroups;
  const bool more = n > 0;
  for (size_t i = 0; i < all && n != 0; i++) {
    hk_plan_subgroup *subgroup = &plan->subgroups[more == first ? i : all - 1 - i];
    const bool has = subgroup->route == as.route && subgroup->ahead == as.ahead;
    if (has == more || (as.ahead && subgroup->route != HK_ROUTE_CPU)) continue;
    place(subgroup, more ? as : (hk_plan_subgroup){.route = HK_ROUTE_CPU});
    n += more ? -1 : 1;
  }
}

/* Resident state in front; limits to copies out and to the CPU under which both end at the same
 * time. CPU kernels and copies slow each other down, most if one of them runs at its full rate. */
static hk_status mix(const hill *h, int row, int i, hk_plan *plan, hk_error *err) {
  static const double outs[] = {0.7, 0.78, 0.62, 0.9}, cpus[BATCH] = {0.7, 0.8, 0.9, 1};
  const hk_machine *m = h->machine;
  const double out = outs[row] * rate_out(plan, m), cpu = cpus[i] * rate_cpu(plan, m);
  const double gpu = out * 1e6 / (double)hk_state_bytes(plan->optimizer, 1000000);
  hk_policy_front(plan);
  for (size_t s = 0; s < plan->n_subgroups; s++)
    place(&plan->subgroups[s], (hk_plan_subgroup){.route = plan->subgroups[s].route});
  const int64_t staged = (int64_t)hk_plan_count(plan, HK_ROUTE_STAGED);
  const double host = (double)staged + (double)hk_plan_count(plan, HK_ROUTE_CPU);
  const int64_t more = (int64_t)round(host * gpu / (gpu + cpu)) - staged;
  const hk_plan_subgroup resident = {.route = HK_ROUTE_RESIDENT};
  if (more > 0) place_more(plan, -(more + GRADS - 1) / GRADS, resident, true);
  stage_more(plan, more);
  plan->pace.in = 0;
  plan->pace.out = limited(out, m->d2h.value);
  plan->pace.cpu = limited(cpu, rate_cpu(plan, m));
  plan->buffers = (int)hk_min(3, plan->buffers);
  if (plan->overlap == HK_OVERLAP_NONE) mix_order(plan);
  return plan->overlap == HK_OVERLAP_BOTH ? hk_plan_run_ahead(plan, m, err) : HK_OK;
}

static hk_status turn(const hill *h, int i, hk_plan *plan, hk_error *err) {
  static const double turns[BATCH] = {-1, -0.5, 0.5, 1};
  const hk_machine *m = h->machine;
  const double by = turns[i] * h->steps[h->at], share = by * (double)plan->n_subgroups;
  const int64_t n = (int64_t)(by < 0 ? floor(share) : ceil(share));
  const double out = rate_out(plan, m), cpu = rate_cpu(plan, m);
  const hk_pace *is = &plan->pace;
  switch (h->at) {
    case MIX:
      return mix(h, (int)(knob_steps[MIX].first - h->steps[MIX]), i, plan, err);
    case RESIDENT:
      place_more(plan, n, (hk_plan_subgroup){.route = HK_ROUTE_RESIDENT}, true);
      break;
    case AHEAD:
      place_more(plan, n, (hk_plan_subgroup){.route = HK_ROUTE_CPU, .ahead = true}, false);
      break;
    case OUT:
      plan->pace.out = limited((1 + by) * (is->out > 0 ? is->out : out), m->d2h.value);
      break;
    case CPU:
      plan->pace.cpu = limited((1 + by) * (is->cpu > 0 ? is->cpu : cpu), cpu);
      break;
    case STAGED:
      stage_more(plan, n);
      break;
    case BUFFERS:
      plan->buffers = (int)hk_max(1, hk_min(8, plan->buffers + (int)(2 * by) / 2));
      break;
    case PIECE:
      plan->piece_numel = (int64_t)((double)plan->piece_numel * (1 + by));
      break;
    case KNOBS:
      break;
  }
  return HK_OK;
}

/* Whether a knob changes nothing. */
static bool is_idle(const hk_plan *plan, knob k) {
  if (k == AHEAD) return plan->overlap != HK_OVERLAP_BOTH;
  return hk_plan_count(plan, HK_ROUTE_STAGED) == 0 && k != RESIDENT && k != PIECE;
}

/* After a round: goes on with the same knob if it gained, else by less, and with the next. */
static void next_knob(hill *h, bool gained) {
  if (h->at == MIX)
    h->steps[MIX]--;
  else if (!gained)
    h->steps[h->at] /= 2;
  if ((gained || h->at == MIX) && h->steps[h->at] >= knob_steps[h->at].least) return;
  for (int i = 1; i <= (int)KNOBS; i++) {
    const knob k = (knob)(((int)h->at + i) % (int)KNOBS);
    if (h->steps[k] < knob_steps[k].least || is_idle(&h->current, k)) continue;
    h->at = k;
    return;
  }
  h->at = KNOBS;
}

/* -- One change ------------------------------------------------------------------------------- */

/* The i-th plan of a round: a knob turned, or a few changes at random. */
static hk_status changed(const hill *h, int64_t round, int i, hk_plan *plan, hk_error *err) {
  uint64_t state = h->options->seed ^ (uint64_t)(round * BATCH + i + 1) * 0xd1342543de82ef95u;
  state = hk_splitmix_next(&state);
  HK_TRY(hk_plan_copy(&h->current, plan, err));
  if (h->at < KNOBS) {
    HK_TRY(turn(h, i, plan, err));
  } else {
    for (size_t n = 1 + pick(&state, MOST_CHANGES); n > 0; n--) {
      if (plan->overlap == HK_OVERLAP_NONE)
        change_alone(plan, h->start, h->machine, &state);
      else
        change_overlapped(plan, h->start, h->machine, &state);
    }
  }
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

/* Simulates a plan. One that no engine takes (a pace beside mapped subgroups), outside the limits
 * or without a steady iteration has no cost. After a failure *plan is empty. */
static hk_status simulate(const hill *h, hk_plan *plan, judgement *is, hk_error *err) {
  hk_forecast f;
  hk_error refusal;
  *is = (judgement){INT64_MAX, INT64_MAX};
  if (hk_plan_check(plan, &refusal) != HK_OK || kept(plan) > h->most_kept) return HK_OK;
  HK_TRY(hk_forecast_make(plan, h->machine, NULL, &f, err));
  const bool steady = f.unsteady_ns <= f.iteration_ns / STEADY;
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
    judged[i].cost = INT64_MAX;
    errors[i].status = changed(h, round, i, &plans[i], &errors[i]);
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
  const double enough = fmax(ENOUGH, h->options->enough);
  int64_t gained = 0;
  if ((double)h->best.mean <= (1 + enough) * (double)bound) return HK_OK;
  for (int64_t round = 0; h->options->rounds == 0 || round < h->options->rounds; round++) {
    const hk_ns before = h->best.cost;
    HK_TRY(climb(h, round, err));
    if (h->best.cost < before) gained = round;
    if (h->at < KNOBS) next_knob(h, h->best.cost < before);
    *p = (hk_search_progress){.evaluated = (round + 1) * BATCH,
                              .seconds = (double)(hk_now() - began) / 1e9,
                              .iteration_ns = h->best.mean,
                              .gap = (double)h->best.mean / (double)hk_max(1, bound) - 1};
    if (h->options->progress != NULL && round % 16 == 0)
      h->options->progress(h->options->context, p);
    if (p->seconds >= h->options->seconds || round - gained >= STALE || p->gap <= enough) break;
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
  for (int k = 0; k < (int)KNOBS; k++) h.steps[k] = knob_steps[k].first;
  h.at = is_idle(&start->plan, MIX) ? RESIDENT : MIX;
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

hk_status hk_search_lead(hk_ranking *ranking, const hk_machine *machine,
                         const hk_search_options *options, double gain, hk_search_progress *end,
                         hk_error *err) {
  hk_forecast found;
  const hk_forecast *start = ranking->forecasts, *last = start + ranking->n_fit;
  memset(end, 0, sizeof *end);
  while (start < last && start->plan.runtime != HK_RUNTIME_HOCKET) start++;
  if (start == last) return HK_OK;
  HK_TRY(hk_search(start, machine, options, &found, end, err));
  hk_status status = HK_OK;
  if (found.feasible) status = hk_held_add(&found, options->clip_share, machine, err);
  const double least = (1 - gain) * (double)hk_forecast_mean(&ranking->forecasts[0]);
  if (status == HK_OK && found.feasible && (double)hk_forecast_mean(&found) < least)
    status = hk_ranking_lead(ranking, machine, &found, err);
  hk_forecast_free(&found);
  return status;
}

hk_status hk_search_shortly(hk_ranking *ranking, const hk_machine *machine,
                            const hk_plan_settings *settings, const hk_ranking_options *options,
                            hk_error *err) {
  hk_search_progress end;
  const hk_policy_options *fixed = &options->fixed;
  if (ranking->n_fit == 0 || options->only_policy != NULL || fixed->stride > 0 ||
      fixed->stride_auto || fixed->ratio >= 0 || fixed->buffers > 0 || settings->flush != NULL ||
      settings->piece_numel > 0 || hk_optimizer_info_of(settings->optimizer)->orthogonal)
    return HK_OK;
  const double ops = BATCH * (double)ranking->forecasts[0].graph.n_ops;
  const hk_search_options search = {.seconds = HUGE_VAL,
                                    .rounds = (int64_t)fmin(SHORT_ROUNDS, 1 + SHORT_OPS / ops),
                                    .enough = SHORT_ENOUGH,
                                    .clip_share = settings->clip_share,
                                    .gpu_state = settings->gpu_state};
  return hk_search_lead(ranking, machine, &search, SHORT_GAIN, &end, err);
}
