/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search of search.h. */
#include "sim/search.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/splitmix.h"
#include "core/graph/bytes.h"
#include "sim/ahead.h"
#include "sim/overlap.h"
#include "sim/preview.h"

#define BATCH        4
#define MOST_CHANGES 5
#define MOST_SPREAD  6
#define DRAWS        16   /* of changes for one plan */
#define FEW          2    /* buffers */
#define SMALLER      4    /* sizes of pieces */
#define UNSTAGED     4    /* subgroups */
#define STALE        3000 /* rounds without a gain, after which it ends */
#define ENOUGH       1e-4 /* gap at which it ends */
#define LARGE        1000 /* operations */
#define TURNED       5e-4 /* gain with which a knob is turned on */
#define MATTERS      5e-4 /* gain for which it goes on beyond its patience */
#define LITTLE       5e-3 /* gain below which a change of form is taken back */

/* Means of making room on the GPU. */
enum { ROOM_BUFFERS = 1, ROOM_PIECES = 2, ROOM_STAGED = 4, ROOM_ALL = 7 };

/* Plans are compared by `cost`. */
typedef struct {
  hk_ns cost;        /* INT64_MAX: does not fit */
  hk_ns mean;        /* of steps that are clipped and steps that are not; as simulated */
  hk_bytes peak;     /* of GPU memory */
  double operations; /* simulated for it */
} judgement;

/* What the first rounds change, one after the other. */
typedef enum { FORM, RESIDENT, STAGED, AHEAD, BUFFERS, PIECE, KNOBS } knob;

/* The state of a search. */
typedef struct {
  const hk_machine *machine;
  const hk_search_options *options;
  const hk_plan *start;
  bool large;                    /* simulations take longer than waking threads */
  hk_bytes most_kept, most_peak; /* of GPU memory */
  double operations, gained_at;  /* so far; at the last gain of MATTERS */
  int64_t evaluated;             /* simulated plans */
  hk_plan current;
  hk_bytes base;       /* of `current`: base_of, on a GPU */
  judgement best;      /* of `current` */
  knob at;             /* KNOBS: changes are random */
  double steps[KNOBS]; /* by how much a knob is turned next */
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

static void set_piece(hk_plan *plan, const hk_plan *start, double piece) {
  const double most = 4 * (double)start->piece_numel, least = (double)start->piece_numel / 2;
  plan->piece_numel = (int64_t)(piece < least ? least : piece > most ? most : piece);
}

static void change_staging(hk_plan *plan, const hk_plan *start, uint64_t *r) {
  if (pick(r, 2))
    plan->buffers = 1 + (int)pick(r, 6);
  else
    set_piece(plan, start, (double)plan->piece_numel * between(r, 0.7, 1.4));
}

static void change_alone(hk_plan *plan, const hk_plan *start, uint64_t *r) {
  const size_t kind = pick(r, 7);
  if (kind < 3)
    change_route(plan, r);
  else if (kind < 6)
    swap_routes(plan, r);
  else
    change_staging(plan, start, r);
}

/* -- Changes with an overlap ------------------------------------------------------------------ */
/* The order is that of forward. */

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

/* -- Knobs ------------------------------------------------------------------------------------ */

/* Steps in which knobs are turned. FORM: rounds that are left. BUFFERS, PIECE: a number. Others:
 * shares of all subgroups. */
static const struct {
  double first, least;
} knob_steps[KNOBS] = {[FORM] = {2, 1},        [RESIDENT] = {0.06, 0.006}, [STAGED] = {0.06, 0.006},
                       [AHEAD] = {0.12, 0.01}, [BUFFERS] = {2, 1},         [PIECE] = {2, 1}};

static const hk_plan_subgroup RESIDENT_ONE = {.route = HK_ROUTE_RESIDENT};

/* The places of `from` with its resident subgroups in front, or evenly among the others. */
static void arrange(const hk_plan *from, bool evenly, hk_plan *plan) {
  const size_t n = from->n_subgroups, resident = hk_plan_count(from, HK_ROUTE_RESIDENT);
  size_t next = 0;
  for (size_t i = 0; i < n; i++) {
    const bool keeps = evenly ? (i + 1) * resident / n > i * resident / n : i < resident;
    while (!keeps && from->subgroups[next].route == HK_ROUTE_RESIDENT) next++;
    place(&plan->subgroups[i], keeps ? RESIDENT_ONE : from->subgroups[next++]);
  }
}

/* Updates resident subgroups last. */
static void host_first(hk_plan *plan) {
  size_t n = 0;
  for (int last = 0; last < 2; last++)
    for (size_t i = 0; i < plan->n_subgroups; i++)
      if ((plan->subgroups[i].route == HK_ROUTE_RESIDENT) == (last == 1))
        plan->order[n++] = (int32_t)i;
}

/* `more` staged subgroups, or fewer, evenly among those on the host. */
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

/* Four other forms of the plan. Evenly: resident subgroups need no copies, so that these and the
 * CPU are busy all the time. Host first, and the last subgroup on the CPU: copies and kernels of
 * few subgroups are hidden behind the GPU's updates of the others. */
static hk_status form(const hill *h, int i, hk_plan *plan, hk_error *err) {
  const bool alone = plan->overlap == HK_OVERLAP_NONE;
  hk_plan_subgroup *last = &plan->subgroups[plan->n_subgroups - 1];
  if (i == 0) arrange(&h->current, false, plan);
  if (i == 1) arrange(&h->current, true, plan);
  if (i == 2) place(last, (hk_plan_subgroup){.route = HK_ROUTE_CPU});
  if (i < 3) return HK_OK;
  if (!alone) return hk_plan_run_ahead(plan, h->machine, err);
  host_first(plan);
  place_more(plan, 1, RESIDENT_ONE, true);
  return HK_OK;
}

/* `more` pieces of the largest subgroup, or fewer, all of the same size. */
static void cut_more(hk_plan *plan, const hk_plan *start, int64_t more) {
  int64_t largest = 1;
  for (size_t i = 0; i < plan->n_subgroups; i++)
    largest = hk_max(largest, plan->subgroups[i].numel);
  const int64_t n = hk_max(1, (largest - 1) / plan->piece_numel + 1 + more);
  const int64_t piece = (largest - 1) / n + 1;
  set_piece(plan, start, (double)piece);
}

/* The i-th plan of a round in which a knob is turned. */
static hk_status turn(const hill *h, int i, hk_plan *plan, hk_error *err) {
  static const double turns[BATCH] = {-1, -0.5, 0.5, 1};
  const double by = turns[i] * h->steps[h->at], share = by * (double)plan->n_subgroups;
  const int64_t n = (int64_t)(by < 0 ? floor(share) : ceil(share));
  const hk_plan_subgroup ahead = {.route = HK_ROUTE_CPU, .ahead = true};
  switch (h->at) {
    case FORM:
      return form(h, i, plan, err);
    case RESIDENT:
      place_more(plan, n, RESIDENT_ONE, true);
      break;
    case STAGED:
      stage_more(plan, n);
      break;
    case AHEAD:
      place_more(plan, n, ahead, false);
      break;
    case BUFFERS:
      plan->buffers = (int)hk_max(1, hk_min(8, plan->buffers + (int)by));
      break;
    case PIECE:
      cut_more(plan, h->start, (int64_t)by);
      break;
    case KNOBS:
      break;
  }
  return HK_OK;
}

/* Whether a knob changes nothing. */
static bool is_idle(const hk_plan *plan, knob k) {
  const bool stages = hk_plan_count(plan, HK_ROUTE_STAGED) > 0;
  if (k == AHEAD) return plan->overlap != HK_OVERLAP_BOTH;
  if (k == STAGED || k == PIECE) return !stages && hk_plan_count(plan, HK_ROUTE_CPU) == 0;
  return k == BUFFERS && !stages;
}

/* After a round: goes on with the same knob if it gained, else by less, and with the next. */
static void next_knob(hill *h, bool gained) {
  if (h->at == FORM)
    h->steps[FORM]--;
  else if (!gained)
    h->steps[h->at] /= 2;
  if ((gained || h->at == FORM) && h->steps[h->at] >= knob_steps[h->at].least) return;
  for (int i = 1; i <= (int)KNOBS; i++) {
    const knob k = (knob)(((int)h->at + i) % (int)KNOBS);
    if (h->steps[k] < knob_steps[k].least || is_idle(&h->current, k)) continue;
    h->at = k;
    return;
  }
  h->at = KNOBS;
}

/* -- One change ------------------------------------------------------------------------------- */

/* What the search changes, as in `from`. */
static void copy_changes(const hk_plan *from, hk_plan *to) {
  const size_t n = from->n_subgroups;
  memcpy(to->subgroups, from->subgroups, n * sizeof *to->subgroups);
  memcpy(to->order, from->order, n * sizeof *to->order);
  to->buffers = from->buffers;
  to->piece_numel = from->piece_numel;
}

static bool is_same(const hk_plan *a, const hk_plan *b) {
  bool same = a->buffers == b->buffers && a->piece_numel == b->piece_numel;
  for (size_t i = 0; same && i < a->n_subgroups; i++) {
    const hk_plan_subgroup *x = &a->subgroups[i], *y = &b->subgroups[i];
    same = x->route == y->route && x->ahead == y->ahead && x->early == y->early &&
           x->held_staged == y->held_staged && a->order[i] == b->order[i];
  }
  return same;
}

/* Memory before the first operation. The rest of the peak hardly depends on what changes. */
static hk_status base_of(const hk_plan *plan, hk_bytes *gpu, hk_bytes *host, hk_error *err) {
  const hk_expand bare = {HK_EXPAND_ALL, .folded = true, .bare = true};
  hk_graph graph;
  HK_TRY(hk_graph_build(plan, bare, &graph, err));
  *gpu = graph.gpu_base;
  *host = graph.host_base;
  hk_graph_free(&graph);
  return HK_OK;
}

/* Whether a plan may fit on the GPU; *host: there. */
static hk_status may_fit(const hill *h, const hk_plan *plan, bool *gpu, bool *host, hk_error *err) {
  hk_bytes on_gpu, on_host;
  HK_TRY(base_of(plan, &on_gpu, &on_host, err));
  *gpu = on_gpu - h->base <= h->most_peak - h->best.peak;
  *host = on_host <= (hk_bytes)hk_host_capacity(h->machine);
  return HK_OK;
}

/* Whether a plan may fit. Makes room on the GPU if that lacks, by some of these means: fewer
 * buffers; smaller pieces, whose buffers and slots are smaller; a few staged subgroups that the CPU
 * updates, so that their gradients leave. */
static hk_status make_fit(const hill *h, size_t means, hk_plan *plan, bool *fits, hk_error *err) {
  const int64_t piece = plan->piece_numel;
  bool gpu, host;
  HK_TRY(may_fit(h, plan, &gpu, &host, err));
  if (means & ROOM_BUFFERS && !gpu && host && plan->buffers > FEW) {
    plan->buffers = FEW;
    HK_TRY(may_fit(h, plan, &gpu, &host, err));
  }
  for (int i = 1; means & ROOM_PIECES && i <= SMALLER && !gpu && host; i++) {
    set_piece(plan, h->start, (double)piece * (1 - 0.15 * i));
    HK_TRY(may_fit(h, plan, &gpu, &host, err));
  }
  for (size_t i = means & ROOM_STAGED ? plan->n_subgroups : 0, n = 0;
       i > 0 && n < UNSTAGED && !gpu && host; i--) {
    if (plan->subgroups[i - 1].route != HK_ROUTE_STAGED) continue;
    plan->subgroups[i - 1].route = HK_ROUTE_CPU;
    HK_TRY(may_fit(h, plan, &gpu, &host, err));
    n++;
  }
  *fits = gpu && host;
  return HK_OK;
}

static void change(const hill *h, hk_plan *plan, uint64_t *r) {
  for (size_t n = 1 + pick(r, MOST_CHANGES); n > 0; n--) {
    if (plan->overlap == HK_OVERLAP_NONE)
      change_alone(plan, h->start, r);
    else
      change_overlapped(plan, h->start, r);
  }
}

/* The i-th plan of a round: a knob turned, or a few changes at random. *worth: it is another plan
 * than the current one and may fit. A draw takes as long as one simulated operation for each
 * subgroup, about, and counts as that. */
static hk_status changed(const hill *h, int64_t round, int i, hk_plan *plan, bool *worth,
                         double *operations, hk_error *err) {
  static const size_t turn_means[BATCH] = {ROOM_PIECES, ROOM_PIECES, ROOM_PIECES | ROOM_STAGED,
                                           ROOM_ALL};
  uint64_t state = h->options->seed ^ (uint64_t)(round * BATCH + i + 1) * 0xd1342543de82ef95u;
  state = hk_splitmix_next(&state);
  HK_TRY(hk_plan_copy(&h->current, plan, err));
  *worth = false;
  for (int n = 0; n < (h->at < KNOBS ? 1 : DRAWS) && !*worth; n++) {
    *operations += (double)plan->n_subgroups;
    copy_changes(&h->current, plan);
    if (h->at < KNOBS)
      HK_TRY(turn(h, i, plan, err));
    else
      change(h, plan, &state);
    if (is_same(plan, &h->current)) continue;
    const size_t means = h->at < KNOBS ? turn_means[i] : pick(&state, ROOM_ALL + 1);
    HK_TRY(make_fit(h, means, plan, worth, err));
    *worth = *worth && !is_same(plan, &h->current);
  }
  const size_t resident = hk_plan_count(plan, HK_ROUTE_RESIDENT);
  plan->ratio = 1 - (double)resident / (double)plan->n_subgroups;
  return HK_OK;
}

/* -- Rounds ----------------------------------------------------------------------------------- */

/* Without an overlap. */
static hk_status simulate_alone(const hill *h, const hk_plan *plan, judgement *is, hk_error *err) {
  hk_plan copy;
  hk_forecast f;
  HK_TRY(hk_plan_copy(plan, &copy, err));
  HK_TRY(hk_forecast_make(&copy, h->machine, NULL, &f, err));
  const bool fits = f.feasible && f.result.memory.peak <= h->most_peak;
  const hk_ns cost = fits ? f.iteration_ns : INT64_MAX;
  *is = (judgement){cost, cost, f.result.memory.peak, is->operations + (double)f.graph.n_ops};
  hk_forecast_free(&f);
  return HK_OK;
}

static hk_status simulate_overlapped(const hill *h, const hk_plan *plan, judgement *is,
                                     hk_error *err) {
  hk_preview p;
  HK_TRY(hk_preview_of(plan, h->machine, &p, err));
  is->operations += p.operations;
  is->peak = p.peak;
  if (!p.feasible || !p.steady || p.peak > h->most_peak) return HK_OK;
  return hk_overlap_judge(plan, p.iteration_ns, h->options->clip_share, h->machine, &is->cost,
                          &is->mean, err);
}

/* Simulates a plan. One that no engine takes (Muon on the CPU), outside the limits
 * or without a steady iteration has no cost. */
static hk_status simulate(const hill *h, const hk_plan *plan, judgement *is, hk_error *err) {
  hk_error refusal;
  if (hk_plan_check(plan, &refusal) != HK_OK || hk_plan_gpu_kept(plan) > h->most_kept) return HK_OK;
  return plan->overlap == HK_OVERLAP_NONE ? simulate_alone(h, plan, is, err)
                                          : simulate_overlapped(h, plan, is, err);
}

/* One round. Goes on from the best of the batch if it is not slower: plans that are as fast lead on
 * to faster ones. */
static hk_status climb(hill *h, int64_t round, hk_error *err) {
  hk_plan plans[BATCH] = {0};
  judgement judged[BATCH];
  bool worth[BATCH] = {0};
  hk_error errors[BATCH] = {0};
#pragma omp parallel for schedule(dynamic) if (h->large)
  for (int i = 0; i < BATCH; i++) {
    judged[i] = (judgement){.cost = INT64_MAX, .mean = INT64_MAX};
    errors[i].status =
        changed(h, round, i, &plans[i], &worth[i], &judged[i].operations, &errors[i]);
    if (errors[i].status == HK_OK && worth[i])
      errors[i].status = simulate(h, &plans[i], &judged[i], &errors[i]);
  }
  hk_status status = hk_fail_first(errors, BATCH, err);
  hk_bytes host;
  int best = 0;
  for (int i = 0; i < BATCH; i++) {
    if (judged[i].cost < judged[best].cost) best = i;
    h->operations += judged[i].operations;
    h->evaluated += worth[i];
  }
  if (status == HK_OK && judged[best].cost <= h->best.cost) {
    hk_plan_free(&h->current);
    h->current = plans[best];
    memset(&plans[best], 0, sizeof plans[best]);
    h->best = judged[best];
    status = base_of(&h->current, &h->base, &host, err);
  }
  for (int i = 0; i < BATCH; i++) hk_plan_free(&plans[i]);
  return status;
}

/* Whether the search ends after a round; `gained`: the last one that gained. */
static bool is_over(const hill *h, const hk_search_progress *p, int64_t round, int64_t gained) {
  const hk_search_options *o = h->options;
  const double most = o->operations > 0 ? o->operations : HUGE_VAL;
  const double patience = o->patience > 0 ? o->patience : HUGE_VAL;
  const bool stopped = o->stop != NULL && *o->stop != 0;
  const bool on_gpu =
      o->patience > 0 && hk_plan_count(&h->current, HK_ROUTE_RESIDENT) == h->current.n_subgroups;
  return stopped || p->seconds >= o->seconds || round - gained >= STALE ||
         p->gap <= fmax(ENOUGH, o->enough) || h->operations >= most ||
         (h->at == KNOBS && (h->operations - h->gained_at >= patience || on_gpu));
}

static void note_best(const hill *h, hk_ns bound, hk_search_progress *p) {
  p->iteration_ns = h->best.mean;
  p->gap = (double)h->best.mean / (double)hk_max(1, bound) - 1;
}

static hk_status climb_all(hill *h, hk_ns bound, hk_search_progress *p, hk_error *err) {
  const hk_ns began = hk_now();
  hk_ns gained_cost = h->best.cost;
  int64_t gained = 0;
  for (int64_t round = 0; h->options->rounds == 0 || round < h->options->rounds; round++) {
    const hk_ns before = h->best.cost;
    HK_TRY(climb(h, round, err));
    if (h->best.cost < before) gained = round;
    if ((double)h->best.cost < (1 - MATTERS) * (double)gained_cost) {
      gained_cost = h->best.cost;
      h->gained_at = h->operations;
    }
    if (h->at < KNOBS) next_knob(h, (double)h->best.cost < (1 - TURNED) * (double)before);
    *p = (hk_search_progress){.evaluated = h->evaluated,
                              .seconds = (double)(hk_now() - began) / 1e9};
    note_best(h, bound, p);
    if (h->options->progress != NULL && round % 16 == 0)
      h->options->progress(h->options->context, p);
    if (is_over(h, p, round, gained)) break;
  }
  return HK_OK;
}

/* Takes back the order, the number of buffers and the size of pieces where they gain less than
 * LITTLE. Of plans that were predicted to be as fast an engine took 1.5 % longer with fewer buffers
 * and an order of chance (docs/notes/2026-11-25-search.md): fewer buffers leave less room for
 * copies that are late. The simulator does not see it. */
static hk_status take_back(hill *h, hk_ns first, hk_error *err) {
  for (int what = 0; what < 3; what++) {
    hk_plan plan;
    HK_TRY(hk_plan_copy(&h->current, &plan, err));
    if (what == 0)
      memcpy(plan.order, h->start->order, plan.n_subgroups * sizeof *plan.order);
    else if (what == 1)
      plan.buffers = h->start->buffers;
    else
      plan.piece_numel = h->start->piece_numel;
    judgement is = {.cost = INT64_MAX, .mean = INT64_MAX};
    const hk_status status = is_same(&plan, &h->current) ? HK_OK : simulate(h, &plan, &is, err);
    const double most = fmin((1 + LITTLE) * (double)h->best.cost, (double)first - 1);
    if (status == HK_OK && (double)is.cost <= most) {
      copy_changes(&plan, &h->current);
      h->best = is;
    }
    hk_plan_free(&plan);
    HK_TRY(status);
  }
  return HK_OK;
}

/* Plans with an overlap leave the reserve of hk_overlap_search, unless the start does not. */
static void set_limits(hill *h, const hk_forecast *start) {
  const hk_memory_report *m = &start->result.memory;
  const bool reserves = start->plan.overlap != HK_OVERLAP_NONE;
  const double share = reserves ? 1 - HK_OVERLAP_RESERVE : 1;
  h->most_peak = hk_max(m->peak, (hk_bytes)(share * (double)m->capacity));
  const hk_bytes *given = h->options->gpu_memory;
  h->most_kept = given == NULL ? INT64_MAX : hk_max(*given, hk_plan_gpu_kept(&start->plan));
}

hk_status hk_search(const hk_forecast *start, const hk_machine *machine,
                    const hk_search_options *options, hk_forecast *found, hk_search_progress *end,
                    hk_error *err) {
  hk_certificate certificate;
  memset(found, 0, sizeof *found);
  memset(end, 0, sizeof *end);
  HK_TRY(hk_certify(start, machine, &certificate, err));
  hill h = {.machine = machine,
            .options = options,
            .start = &start->plan,
            .base = start->graph.gpu_base,
            .large = start->graph.n_ops > LARGE};
  set_limits(&h, start);
  for (int k = 0; k < (int)KNOBS; k++) h.steps[k] = knob_steps[k].first;
  h.best = (judgement){start->iteration_ns, start->iteration_ns, start->result.memory.peak, 0};
  if (start->plan.overlap != HK_OVERLAP_NONE)
    HK_TRY(hk_overlap_judge(&start->plan, start->iteration_ns, options->clip_share, machine,
                            &h.best.cost, &h.best.mean, err));
  const hk_ns first = h.best.cost;
  HK_TRY(hk_plan_copy(&start->plan, &h.current, err));
  snprintf(h.current.policy, sizeof h.current.policy, "searched");
  h.current.stride = 0;
  const hk_ns bound = certificate.made ? certificate.bound_ns : 0;
  hk_status status = HK_OK;
  if (options->enough == 0 || (double)h.best.mean > (1 + options->enough) * (double)bound)
    status = climb_all(&h, bound, end, err);
  if (status == HK_OK && h.best.cost < first) status = take_back(&h, first, err);
  if (status == HK_OK && end->evaluated > 0) note_best(&h, bound, end);
  if (status == HK_OK && h.best.cost < first)
    status = hk_forecast_make(&h.current, machine, NULL, found, err);
  hk_plan_free(&h.current);
  return status;
}
