/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The trials of a search for the best overlap. Few are simulated: bounds say that the others are
 * slower, or no so much faster that the best would be another one. */
#include "sim/overlap_trials.h"

#include <omp.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/ahead.h"
#include "sim/held.h"
#include "sim/preview.h"

#define HELD_BUFFERS 2 /* for staging in clipped steps only: 4 are predicted to gain 0.2 ms */

/* Measured over predicted iteration of plans with staged subgroups beside computation: 1.00, 1.03,
 * 1.03, 1.07 and 1.07 on three H200 nodes with lanes queued 8 operations ahead
 * (bench/results/training). The search chooses a plan with staged subgroups only if it is predicted
 * to be faster by more than the worst of these. The prediction itself is reported as it is. */
#define STAGED_SLOWER 1.07

/* -- Plans ------------------------------------------------------------------------------------ */

/* Stages the last of every `stride` subgroups that wait for the norm. */
static void stage(hk_plan *plan, int stride) {
  int waiting = 0;
  for (size_t i = 0; i < plan->n_subgroups && stride > 0; i++) {
    hk_plan_subgroup *subgroup = &plan->subgroups[i];
    if (subgroup->route == HK_ROUTE_CPU && !subgroup->ahead && ++waiting % stride == 0)
      subgroup->route = HK_ROUTE_STAGED;
  }
}

static hk_status run_ahead(const hk_overlap_trials *s, hk_spec spec, hk_plan *plan, hk_error *err) {
  hk_bytes spares = 0;
  if (plan->overlap != HK_OVERLAP_BOTH) return HK_OK;
  HK_TRY(hk_plan_spares(plan, s->machine, &spares, err));
  hk_plan_run_ahead_within(plan, spares, (size_t)spec.deepest);
  return HK_OK;
}

/* Lets new weights wait in GPU memory until the norm is known, as many as what resident state
 * leaves of the limit holds: those of the shallow blocks first, for which forward waits longest. */
static void send_early(const hk_overlap_trials *s, hk_plan *plan) {
  hk_bytes left = s->gpu_limit - hk_plan_gpu_kept(plan);
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    hk_plan_subgroup *subgroup = &plan->subgroups[i];
    const hk_bytes weights = HK_BYTES_BF16 * subgroup->numel;
    if (!subgroup->ahead || weights > left) continue;
    subgroup->early = true;
    left -= weights;
  }
}

/* Keeps as many sums of several micro-steps in GPU memory as what state and weights leave of the
 * limit holds. Those of subgroups with early weights have their memory. */
static void keep_sums(const hk_overlap_trials *s, hk_plan *plan) {
  const hk_grad_room room = hk_plan_grad_room(plan);
  if (plan->job.grad_accum <= 1 || room.slots == room.pieces) return;
  const hk_bytes slot = room.bytes / room.slots;
  const int64_t fit = hk_max(0, s->gpu_limit - hk_plan_gpu_kept(plan)) / slot;
  plan->sum_bytes = hk_min(fit, room.pieces - room.slots) * slot;
}

hk_status hk_trials_plan(const hk_overlap_trials *s, hk_spec spec, hk_plan *plan, hk_error *err) {
  HK_TRY(hk_plan_copy(s->start, plan, err));
  if (spec.threads > 0) plan->cpu_threads = spec.threads;
  for (int i = 0; i < spec.resident; i++) plan->subgroups[i].route = HK_ROUTE_RESIDENT;
  plan->ratio = 1 - (double)spec.resident / (double)plan->n_subgroups;
  plan->stride = spec.stride;
  if (spec.first) stage(plan, spec.stride);
  hk_status status = run_ahead(s, spec, plan, err);
  if (status == HK_OK && !spec.first && spec.stride > 0) {
    stage(plan, spec.stride);
    status = run_ahead(s, spec, plan, err); /* staging freed gradients and weights for spares */
  }
  if (status == HK_OK && spec.held > 0) {
    hk_plan_stage_held(plan, spec.held);
    if (spec.stride == 0) plan->buffers = HELD_BUFFERS;
  }
  plan->steals =
      s->steals && hk_plan_on_route(plan, HK_ROUTE_STAGED) == 0 && hk_plan_held_staged(plan) == 0;
  if (status == HK_OK) send_early(s, plan);
  if (status == HK_OK) keep_sums(s, plan);
  if (status != HK_OK) hk_plan_free(plan);
  return status;
}

/* -- Costs ------------------------------------------------------------------------------------ */

/* Clipped steps. What the GPU updates in them counts as STAGED_SLOWER from the end of backward on:
 * before that nothing is updated. */
static hk_status judge_held(const hk_plan *plan, const hk_machine *machine, hk_ns *cost,
                            hk_ns *time, hk_error *err) {
  hk_forecast held;
  if (!hk_plan_is_held(plan)) return HK_OK;
  HK_TRY(hk_held_forecast(plan, machine, &held, err));
  const hk_ns behind = held.iteration_ns - held.backward_ns;
  const double slower = hk_plan_held_staged(plan) > 0 ? STAGED_SLOWER : 1;
  *time = held.iteration_ns;
  *cost = held.backward_ns + (hk_ns)(slower * (double)behind);
  hk_forecast_free(&held);
  return HK_OK;
}

/* By how much a plan is slower than its simulation. */
static double slower_of(const hk_plan *plan) {
  return hk_plan_on_route(plan, HK_ROUTE_STAGED) > 0 ? STAGED_SLOWER : 1;
}

hk_status hk_overlap_judge(const hk_plan *plan, hk_ns iteration, double clip_share,
                           const hk_machine *machine, hk_ns *cost, hk_ns *mean, hk_error *err) {
  const double kept = (1 - clip_share) * (double)iteration;
  hk_ns held_cost = iteration, held = iteration;
  if (clip_share > 0) HK_TRY(judge_held(plan, machine, &held_cost, &held, err));
  *cost = (hk_ns)(slower_of(plan) * (kept + clip_share * (double)held_cost));
  *mean = (hk_ns)(kept + clip_share * (double)held);
  return HK_OK;
}

/* What hk_overlap_judge makes of the iteration alone, less its rounding. */
static hk_ns least_cost(const hk_overlap_trials *s, const hk_plan *plan, hk_ns iteration) {
  return hk_max(0, (hk_ns)(slower_of(plan) * (1 - s->clip_share) * (double)iteration) - 2);
}

static void copy_cost(const hk_overlap_trials *s, hk_trial *t) {
  t->known = s->trials[t->twin].known;
  t->iteration = s->trials[t->twin].iteration;
  t->cost = s->trials[t->twin].cost;
}

static hk_status bound(const hk_overlap_trials *s, hk_trial *t, hk_error *err) {
  if (t->twin >= 0) {
    copy_cost(s, t);
    return HK_OK;
  }
  HK_TRY(hk_turn_least(&s->turn, &t->plan, &t->least, err));
  t->known = !hk_plan_keeps_within(&t->plan, &s->gpu_limit);
  t->cost = t->known ? INT64_MAX : least_cost(s, &t->plan, t->least);
  return HK_OK;
}

/* `some_fit`: an earlier trial does. If not, this one may lack memory before its first operation,
 * which is known sooner than by a preview. */
static hk_status simulate(const hk_overlap_trials *s, hk_trial *t, bool some_fit, hk_error *err) {
  hk_preview preview;
  hk_bytes missing = 0;
  hk_ns mean;
  t->known = true;
  t->cost = INT64_MAX;
  if (!some_fit) HK_TRY(hk_forecast_missing(&t->plan, s->machine, &missing, err));
  if (missing > 0) return HK_OK;
  HK_TRY(hk_preview_of(&t->plan, s->machine, &preview, err));
  if (!preview.feasible) return HK_OK;
  t->iteration = preview.iteration_ns;
  /* If iterations do not repeat, the last one may be shorter than the average. */
  const hk_ns iteration = hk_max(preview.iteration_ns, t->least);
  return hk_overlap_judge(&t->plan, iteration, s->clip_share, s->machine, &t->cost, &mean, err);
}

/* Simulates trials in parallel. */
static hk_status simulate_all(hk_overlap_trials *s, const int *which, int n, hk_error *err) {
  hk_error errors[HK_MOST_TRIALS];
  bool some_fit = false;
  for (int i = 0; i < s->n; i++)
    some_fit = some_fit || (s->trials[i].known && s->trials[i].cost < INT64_MAX);
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < n; i++) {
    hk_trial *t = &s->trials[which[i]];
    errors[i] = (hk_error){0};
    errors[i].status = simulate(s, t, some_fit, &errors[i]);
  }
  HK_TRY(hk_fail_first(errors, (size_t)n, err));
  for (int i = 0; i < s->n; i++)
    if (s->trials[i].twin >= 0) copy_cost(s, &s->trials[i]);
  return HK_OK;
}

/* -- The best --------------------------------------------------------------------------------- */

static hk_kind kind_of(hk_spec spec) {
  return spec.stride == 0 ? HK_KIND_CPU : spec.first ? HK_KIND_ALL : HK_KIND_WAITING;
}

static bool is_of(const hk_trial *t, hk_kind kind) {
  return kind == HK_KIND_ANY || kind_of(t->spec) == kind;
}

bool hk_trials_wait(const hk_overlap_trials *s, hk_kind kind) {
  for (int i = 0; i < s->n; i++)
    if (is_of(&s->trials[i], kind) && !s->trials[i].all_ahead) return true;
  return false;
}

/* The highest cost that is as good as that of the fastest. */
static hk_ns as_good(const hk_overlap_trials *s, hk_ns fastest) {
  if (fastest == INT64_MAX) return fastest;
  return fastest + (hk_ns)(HK_AS_GOOD * (double)fastest / s->start->job.grad_accum);
}

/* Of two trials that are as good: less state on the GPU, then more threads, then less time, then
 * the earlier one. */
static bool is_better(const hk_trial *a, const hk_trial *b) {
  if (a->gpu_state != b->gpu_state) return a->gpu_state < b->gpu_state;
  if (a->plan.cpu_threads != b->plan.cpu_threads) return a->plan.cpu_threads > b->plan.cpu_threads;
  return a->cost != b->cost ? a->cost < b->cost : a < b;
}

/* The best of the trials whose cost is known. *fastest: the least cost. NULL: none fits. */
static const hk_trial *best_known(const hk_overlap_trials *s, hk_kind kind, hk_ns *fastest) {
  const hk_trial *best = NULL;
  *fastest = INT64_MAX;
  for (int i = 0; i < s->n; i++) {
    const hk_trial *t = &s->trials[i];
    if (t->known && is_of(t, kind)) *fastest = hk_min(*fastest, t->cost);
  }
  for (int i = 0; i < s->n && *fastest < INT64_MAX; i++) {
    const hk_trial *t = &s->trials[i];
    if (!t->known || !is_of(t, kind) || t->cost > as_good(s, *fastest)) continue;
    if (best == NULL || is_better(t, best)) best = t;
  }
  return best;
}

/* Whether a trial of which only a bound is known may change which one is the best: it may be better
 * itself, or so fast that the best is not as good. */
static bool matters(const hk_overlap_trials *s, const hk_trial *t, const hk_trial *best,
                    hk_ns fastest) {
  if (t->known) return false;
  if (best == NULL) return true;
  if (t->cost > as_good(s, fastest)) return false;
  return is_better(t, best) || (t->cost < fastest && best->cost > as_good(s, t->cost));
}

/* Chooses the trials with the lowest bounds, as many as there are threads. */
static int choose(const hk_overlap_trials *s, const bool *wanted, int *which) {
  const int most = omp_in_parallel() ? 1 : omp_get_max_threads();
  int n = 0;
  for (int i = 0; i < s->n; i++) {
    if (!wanted[i]) continue;
    int at = n < most ? n++ : most;
    for (; at > 0 && s->trials[which[at - 1]].cost > s->trials[i].cost; at--)
      if (at < most) which[at] = which[at - 1];
    if (at < most) which[at] = i;
  }
  return n;
}

hk_status hk_trials_best(hk_overlap_trials *s, hk_kind kind, const hk_trial **best, hk_error *err) {
  for (;;) {
    int which[HK_MOST_TRIALS];
    bool wanted[HK_MOST_TRIALS] = {false}; /* of equal trials the first */
    hk_ns fastest;
    *best = best_known(s, kind, &fastest);
    for (int i = 0; i < s->n; i++) {
      const hk_trial *t = &s->trials[i];
      if (is_of(t, kind) && matters(s, t, *best, fastest)) wanted[t->twin < 0 ? i : t->twin] = true;
    }
    const int n = choose(s, wanted, which);
    if (n == 0) return HK_OK;
    HK_TRY(simulate_all(s, which, n, err));
  }
}

/* -- New trials ------------------------------------------------------------------------------- */

static bool same_spec(hk_spec a, hk_spec b) {
  return a.resident == b.resident && a.deepest == b.deepest && a.stride == b.stride &&
         a.first == b.first && a.held == b.held && a.threads == b.threads;
}

static bool is_tried(const hk_overlap_trials *s, hk_spec spec) {
  for (int i = 0; i < s->n; i++)
    if (same_spec(s->trials[i].spec, spec)) return true;
  return false;
}

/* Whether two plans of a search are simulated alike. */
static bool same_plan(const hk_plan *a, const hk_plan *b) {
  if (a->buffers != b->buffers || a->sum_bytes != b->sum_bytes || a->cpu_threads != b->cpu_threads)
    return false;
  for (size_t i = 0; i < a->n_subgroups; i++) {
    const hk_plan_subgroup *x = &a->subgroups[i], *y = &b->subgroups[i];
    if (x->route != y->route || x->ahead != y->ahead || x->early != y->early ||
        x->held_staged != y->held_staged)
      return false;
  }
  return true;
}

static int twin_of(const hk_overlap_trials *s, const hk_plan *plan) {
  for (int i = 0; i < s->n; i++)
    if (same_plan(&s->trials[i].plan, plan)) return s->trials[i].twin < 0 ? i : s->trials[i].twin;
  return -1;
}

hk_status hk_trials_add(hk_overlap_trials *s, const hk_spec *specs, int n, hk_error *err) {
  for (int i = 0; i < n && s->n < HK_MOST_TRIALS; i++) {
    const hk_spec spec = specs[i];
    if (spec.resident < 0 || spec.resident > s->most_resident || spec.deepest < 0 ||
        spec.deepest >= (int)s->start->n_subgroups || is_tried(s, spec))
      continue;
    hk_trial *t = &s->trials[s->n];
    *t = (hk_trial){.spec = spec};
    HK_TRY(hk_trials_plan(s, spec, &t->plan, err));
    t->twin = twin_of(s, &t->plan);
    t->gpu_state = hk_plan_gpu_state(&t->plan);
    t->all_ahead = hk_plan_ahead(&t->plan) == hk_plan_on_route(&t->plan, HK_ROUTE_CPU);
    s->n++;
    HK_TRY(bound(s, t, err));
  }
  return HK_OK;
}
