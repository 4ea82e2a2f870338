/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search of overlap.h, in rounds of simulations:
 *   1. coarse steps of the number of resident subgroups, and the closed form's choice
 *   2. the GPU updates a part of the other subgroups (staged)
 *   3. other subgroups run ahead
 *   4. if steps are clipped: the GPU updates a part of the CPU's subgroups in clipped steps
 *   5. fewer threads, if the model states that launches are faster beside them
 *   6. neighbours of the best, in halved steps */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/ahead.h"
#include "sim/held.h"
#include "sim/overlap.h"

#define MOST_SIMULATIONS 64
#define COARSE           10 /* steps of resident state */
#define SHIFTS           7  /* tried values of hk_spec.deepest in round 3 */
#define TEAMS            4  /* tried values of hk_spec.threads in round 5 */
#define MOST_STRIDE      6
#define HELD_BUFFERS     2 /* for staging in clipped steps only: 4 are predicted to gain 0.2 ms */
#define AS_GOOD          0.005 /* plans within 0.5 % of a micro-step of the fastest are as fast */

/* Measured over predicted iteration of plans with staged subgroups beside computation: 1.00, 1.03,
 * 1.03, 1.07 and 1.07 on three H200 nodes with lanes queued 8 operations ahead
 * (bench/results/training). The search chooses a plan with staged subgroups only if it is predicted
 * to be faster by more than the worst of these. The prediction itself is reported as it is. */
#define STAGED_SLOWER 1.07

/* A point of the search. */
typedef struct {
  int resident; /* leading subgroups whose state stays on the GPU */
  int deepest;  /* the deepest subgroup that may run ahead */
  int stride;   /* one of `stride` subgroups is staged; 0: none */
  bool first;   /* ... of all that are not resident; if false, of those that wait for the norm */
  int held;     /* one of `held` that run ahead is staged in clipped steps; 0: none */
  int threads;  /* of the CPU team; 0: as in the search's start */
} hk_spec;

typedef struct {
  hk_spec spec;
  hk_plan plan;
  hk_ns cost;    /* hk_overlap_judge; INT64_MAX: does not fit, or is not among the best */
  bool left_out; /* not simulated */
  hk_bytes gpu_state;
  bool all_ahead; /* nothing on route cpu waits for the norm */
} hk_trial;

/* Subgroups that are not resident are updated by the CPU alone; or the GPU updates a share of all
 * of them; or the GPU updates a share of those that wait for the norm. */
typedef enum { KIND_CPU, KIND_ALL, KIND_WAITING, KINDS, KIND_ANY } hk_kind;

static hk_kind kind_of(hk_spec spec) {
  return spec.stride == 0 ? KIND_CPU : spec.first ? KIND_ALL : KIND_WAITING;
}

typedef struct {
  const hk_machine *machine;
  const hk_plan *start; /* all on the CPU, nothing ahead */
  const hk_block_times *times;
  hk_bytes gpu_limit;
  double clip_share;
  int most_resident;
  hk_trial trials[MOST_SIMULATIONS];
  int n;
} hk_search;

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

static hk_status run_ahead(const hk_search *s, hk_spec spec, hk_plan *plan, hk_error *err) {
  hk_bytes spares = 0;
  HK_TRY(hk_plan_spares(plan, s->machine, &spares, err));
  hk_plan_run_ahead_within(plan, spares, (size_t)spec.deepest);
  return HK_OK;
}

/* GPU memory of state that stays there, with its gradients. */
static hk_bytes resident_bytes(const hk_plan *plan) {
  return hk_plan_gpu_state(plan) + HK_BYTES_BF16 * hk_plan_on_route(plan, HK_ROUTE_RESIDENT);
}

/* GPU memory of staging buffers that only clipped steps need. */
static hk_bytes held_staging(const hk_plan *plan) {
  if (hk_plan_held_staged(plan) == 0 || hk_plan_on_route(plan, HK_ROUTE_STAGED) > 0) return 0;
  const int64_t grads = plan->model.mixed_types ? HK_BYTES_FP32 : HK_BYTES_BF16;
  return plan->buffers *
         (hk_state_bytes(plan->optimizer, plan->piece_numel) + grads * plan->piece_numel);
}

hk_bytes hk_overlap_gpu_bytes(const hk_plan *plan) {
  return resident_bytes(plan) + held_staging(plan) + HK_BYTES_BF16 * hk_plan_early(plan) +
         plan->sum_bytes;
}

/* Whether state and those buffers are within the limit. */
static bool within_limit(const hk_search *s, const hk_plan *plan) {
  return hk_plan_held_staged(plan) == 0 ||
         resident_bytes(plan) + held_staging(plan) <= s->gpu_limit;
}

/* Lets new weights wait in GPU memory until the norm is known, as many as what resident state
 * leaves of the limit holds: those of the shallow blocks first, for which forward waits longest. */
static void send_early(const hk_search *s, hk_plan *plan) {
  hk_bytes left = s->gpu_limit - resident_bytes(plan) - held_staging(plan);
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
static void keep_sums(const hk_search *s, hk_plan *plan) {
  const hk_grad_room room = hk_plan_grad_room(plan);
  if (plan->job.grad_accum <= 1 || room.slots == room.pieces) return;
  const hk_bytes slot = room.bytes / room.slots;
  const int64_t fit = hk_max(0, s->gpu_limit - hk_overlap_gpu_bytes(plan)) / slot;
  plan->sum_bytes = hk_min(fit, room.pieces - room.slots) * slot;
}

static hk_status plan_of(const hk_search *s, hk_spec spec, hk_plan *plan, hk_error *err) {
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
  if (status == HK_OK) send_early(s, plan);
  if (status == HK_OK) keep_sums(s, plan);
  if (status != HK_OK) hk_plan_free(plan);
  return status;
}

static hk_status forecast_of(const hk_search *s, hk_spec spec, hk_forecast *f, hk_error *err) {
  hk_plan plan;
  HK_TRY(plan_of(s, spec, &plan, err));
  return hk_forecast_make(&plan, s->machine, NULL, f, err);
}

static hk_status closed_form_of(const hk_search *s, hk_spec spec, hk_ns *period, hk_error *err) {
  hk_plan plan;
  HK_TRY(plan_of(s, spec, &plan, err));
  const hk_status status = hk_overlap_closed_form(&plan, s->machine, s->times, period, err);
  hk_plan_free(&plan);
  return status;
}

/* -- Trials ----------------------------------------------------------------------------------- */

static bool same_spec(hk_spec a, hk_spec b) {
  return a.resident == b.resident && a.deepest == b.deepest && a.stride == b.stride &&
         a.first == b.first && a.held == b.held && a.threads == b.threads;
}

static bool tried(const hk_search *s, hk_spec spec) {
  for (int i = 0; i < s->n; i++)
    if (same_spec(s->trials[i].spec, spec)) return true;
  return false;
}

/* Clipped steps. What the GPU updates in them counts as STAGED_SLOWER from the end of backward on:
 * before that nothing is updated. */
static hk_status judge_held(const hk_forecast *kept, const hk_machine *machine, hk_ns *cost,
                            hk_ns *time, hk_error *err) {
  hk_forecast held;
  if (!hk_plan_is_held(&kept->plan)) return HK_OK;
  HK_TRY(hk_held_forecast(&kept->plan, machine, &held, err));
  const hk_ns behind = held.iteration_ns - held.backward_ns;
  const double slower = hk_plan_held_staged(&kept->plan) > 0 ? STAGED_SLOWER : 1;
  *time = held.iteration_ns;
  *cost = held.backward_ns + (hk_ns)(slower * (double)behind);
  hk_forecast_free(&held);
  return HK_OK;
}

/* By how much a plan is slower than its simulation. */
static double slower_of(const hk_plan *plan) {
  return hk_plan_on_route(plan, HK_ROUTE_STAGED) > 0 ? STAGED_SLOWER : 1;
}

hk_status hk_overlap_judge(const hk_forecast *f, double clip_share, const hk_machine *machine,
                           hk_ns *cost, hk_ns *mean, hk_error *err) {
  const double kept = (1 - clip_share) * (double)f->iteration_ns;
  hk_ns held_cost = f->iteration_ns, held = f->iteration_ns;
  if (clip_share > 0) HK_TRY(judge_held(f, machine, &held_cost, &held, err));
  *cost = (hk_ns)(slower_of(&f->plan) * (kept + clip_share * (double)held_cost));
  *mean = (hk_ns)(kept + clip_share * (double)held);
  return HK_OK;
}

/* The highest cost that is as good as the best of a kind; INT64_MAX: none fits. */
static hk_ns enough_of(const hk_search *s, hk_kind kind) {
  hk_ns fastest = INT64_MAX;
  for (int i = 0; i < s->n; i++) {
    const hk_trial *t = &s->trials[i];
    if (kind == KIND_ANY || kind_of(t->spec) == kind) fastest = hk_min(fastest, t->cost);
  }
  if (fastest == INT64_MAX) return fastest;
  return fastest + (hk_ns)(AS_GOOD * (double)fastest / s->start->job.grad_accum);
}

/* Of two trials that are as good: less state on the GPU, then more threads, then less time. */
static bool is_better(const hk_trial *a, const hk_trial *b) {
  if (a->gpu_state != b->gpu_state) return a->gpu_state < b->gpu_state;
  if (a->plan.cpu_threads != b->plan.cpu_threads) return a->plan.cpu_threads > b->plan.cpu_threads;
  return a->cost < b->cost;
}

/* The best trial of a kind, of those within AS_GOOD of the fastest. NULL: none fits. */
static const hk_trial *best_of(const hk_search *s, hk_kind kind) {
  const hk_ns enough = enough_of(s, kind);
  const hk_trial *best = NULL;
  if (enough == INT64_MAX) return NULL;
  for (int i = 0; i < s->n; i++) {
    const hk_trial *t = &s->trials[i];
    if (t->cost > enough || (kind != KIND_ANY && kind_of(t->spec) != kind)) continue;
    if (best == NULL || is_better(t, best)) best = t;
  }
  return best;
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

/* Sets the cost of a trial, unless it is proven to be above `most`: the cost is at least what
 * hk_overlap_judge makes of the iteration alone. */
static hk_status simulate(const hk_search *s, hk_trial *trial, hk_ns most, hk_error *err) {
  hk_plan plan;
  hk_forecast f;
  hk_ns mean;
  const double iterations = slower_of(&trial->plan) * (1 - s->clip_share); /* in the cost */
  const double longest = ((double)most + 2) / iterations;
  const hk_limit limit = {.fits = true,
                          .longest = longest < 0x1p62 ? (hk_ns)longest + 1 : INT64_MAX};
  if (!within_limit(s, &trial->plan)) return HK_OK;
  HK_TRY(hk_plan_copy(&trial->plan, &plan, err));
  hk_status status = hk_forecast_within(&plan, s->machine, limit, &f, err);
  hk_plan_free(&plan);
  HK_TRY(status);
  trial->left_out = f.plan.subgroups == NULL;
  if (f.feasible)
    status = hk_overlap_judge(&f, s->clip_share, s->machine, &trial->cost, &mean, err);
  hk_forecast_free(&f);
  return status;
}

/* Adds the specs that are new and possible as trials. */
static hk_status add_trials(hk_search *s, const hk_spec *specs, int n, hk_error *err) {
  for (int i = 0; i < n && s->n < MOST_SIMULATIONS; i++) {
    const hk_spec spec = specs[i];
    if (spec.resident < 0 || spec.resident > s->most_resident || spec.deepest < 0 ||
        spec.deepest >= (int)s->start->n_subgroups || tried(s, spec))
      continue;
    hk_trial *t = &s->trials[s->n];
    *t = (hk_trial){.spec = spec, .cost = INT64_MAX};
    HK_TRY(plan_of(s, spec, &t->plan, err));
    s->n++;
    t->gpu_state = hk_plan_gpu_state(&t->plan);
    t->all_ahead = hk_plan_ahead(&t->plan) == hk_plan_on_route(&t->plan, HK_ROUTE_CPU);
  }
  return HK_OK;
}

/* The first trial with an equal plan that was not left out; `i` if none is before it. */
static int twin_of(const hk_search *s, int i) {
  for (int j = 0; j < i; j++)
    if (!s->trials[j].left_out && same_plan(&s->trials[j].plan, &s->trials[i].plan)) return j;
  return i;
}

/* Whether shift_round may go on from the best of this kind. */
static bool shifts(const hk_search *s, hk_kind kind) {
  bool all_ahead = true;
  for (int i = 0; i < s->n; i++)
    if (kind_of(s->trials[i].spec) == kind) all_ahead = all_ahead && s->trials[i].all_ahead;
  return s->start->overlap == HK_OVERLAP_BOTH && !all_ahead;
}

/* Simulates trials begin .. end - 1 in parallel, those that may matter. The result does not depend
 * on the number of threads. `last`: the best of their kind is not asked for, only that of all. */
static hk_status simulate_all(hk_search *s, int begin, int end, bool last, hk_error *err) {
  hk_error errors[MOST_SIMULATIONS];
  int twins[MOST_SIMULATIONS];
  hk_ns enough[KINDS];
  for (int kind = 0; kind < KINDS; kind++) {
    const bool asked = !last && (kind == KIND_CPU || shifts(s, (hk_kind)kind));
    enough[kind] = enough_of(s, asked ? (hk_kind)kind : KIND_ANY);
  }
  for (int i = begin; i < end; i++) twins[i] = twin_of(s, i);
#pragma omp parallel for schedule(dynamic)
  for (int i = begin; i < end; i++) {
    hk_trial *trial = &s->trials[i];
    errors[i] = (hk_error){0};
    if (twins[i] != i) continue;
    errors[i].status = simulate(s, trial, enough[kind_of(trial->spec)], &errors[i]);
  }
  for (int i = begin; i < end; i++) {
    if (errors[i].status != HK_OK) return hk_fail(err, errors[i].status, "%s", errors[i].message);
    if (twins[i] == i) continue;
    s->trials[i].cost = s->trials[twins[i]].cost;
    s->trials[i].left_out = s->trials[twins[i]].left_out;
  }
  return HK_OK;
}

/* Tries the specs that are new and possible. */
static hk_status try_all(hk_search *s, const hk_spec *specs, int n, bool last, hk_error *err) {
  const int begin = s->n;
  HK_TRY(add_trials(s, specs, n, err));
  return simulate_all(s, begin, s->n, last, err);
}

/* -- Rounds ----------------------------------------------------------------------------------- */

/* The fewest resident subgroups with which the closed form is within 0.5 % of its best. */
static hk_status start_by_closed_form(const hk_search *s, int *resident, hk_error *err) {
  const int deepest = (int)s->start->n_subgroups - 1;
  const int step = s->most_resident / 64 + 1; /* at most 65 evaluations */
  hk_ns least = INT64_MAX, periods[65];
  for (int r = 0; r <= s->most_resident; r += step) {
    hk_ns *period = &periods[r / step];
    HK_TRY(closed_form_of(s, (hk_spec){.resident = r, .deepest = deepest}, period, err));
    least = hk_min(least, *period);
  }
  int i = 0;
  while (i * step < s->most_resident && (double)periods[i] > (1 + AS_GOOD) * (double)least) i++;
  *resident = i * step < s->most_resident ? i * step : s->most_resident;
  return HK_OK;
}

static hk_status coarse_round(hk_search *s, int start, hk_error *err) {
  const int deepest = (int)s->start->n_subgroups - 1;
  hk_spec specs[COARSE + 2];
  int n = 0;
  specs[n++] = (hk_spec){.resident = start, .deepest = deepest};
  for (int i = 0; i <= COARSE; i++)
    specs[n++] =
        (hk_spec){.resident = (int)((int64_t)s->most_resident * i / COARSE), .deepest = deepest};
  HK_TRY(try_all(s, specs, 1, false, err)); /* with which others are compared */
  return try_all(s, specs + 1, n - 1, false, err);
}

/* If only some subgroups can run ahead, the last ones need not be the best choice: forward needs
 * the first ones first. */
static hk_status shift_round(hk_search *s, hk_kind kind, hk_error *err) {
  const hk_trial *best = best_of(s, kind);
  if (best == NULL || best->all_ahead || s->start->overlap != HK_OVERLAP_BOTH) return HK_OK;
  const hk_spec at = best->spec;
  const int last = (int)s->start->n_subgroups - 1;
  hk_spec specs[SHIFTS];
  for (int i = 1; i <= SHIFTS; i++) {
    const int shift = (int)((int64_t)(last - at.resident) * i / (SHIFTS + 1));
    specs[i - 1] = at;
    specs[i - 1].deepest = last - shift;
  }
  return try_all(s, specs, SHIFTS, kind != KIND_CPU, err);
}

/* Stages all subgroups, or one of 2 to 6: of those that wait for the norm, or of all. */
static hk_status stage_round(hk_search *s, hk_error *err) {
  const hk_trial *best = best_of(s, KIND_ANY);
  if (best == NULL) return HK_OK;
  const hk_spec at = best->spec;
  hk_spec specs[2 * MOST_STRIDE];
  for (int i = 0; i < 2 * MOST_STRIDE; i++) {
    specs[i] = at;
    specs[i].stride = i / 2 + 1;
    specs[i].first = i % 2 != 0;
  }
  return try_all(s, specs, 2 * MOST_STRIDE, false, err);
}

/* In clipped steps the GPU updates one of 2 to 8 of the subgroups that run ahead, and that the CPU
 * updates in others: this has what staged subgroups have, but in clipped steps only. Its buffers
 * may need the place of resident state. */
static hk_status held_round(hk_search *s, hk_error *err) {
  static const int strides[] = {2, 3, 4, 5, 6, 8};
  enum { N = sizeof strides / sizeof *strides };
  const hk_trial *best = best_of(s, KIND_CPU);
  if (best == NULL || s->clip_share == 0 || s->start->overlap != HK_OVERLAP_BOTH) return HK_OK;
  hk_spec at = best->spec, specs[N];
  for (bool fits = false; !fits; at.resident -= !fits) {
    hk_plan plan;
    at.held = strides[0];
    HK_TRY(plan_of(s, at, &plan, err));
    fits = at.resident == 0 || within_limit(s, &plan);
    hk_plan_free(&plan);
  }
  for (int i = 0; i < N; i++) {
    specs[i] = at;
    specs[i].held = strides[i];
  }
  return try_all(s, specs, N, true, err);
}

/* Fewer threads than planned, down to the smallest team beside which launches were measured. */
static hk_status team_round(hk_search *s, hk_error *err) {
  const hk_launch_shares *shares = &s->start->model.launch_beside_update;
  const hk_trial *best = best_of(s, KIND_ANY);
  const int most = s->start->cpu_threads, fewer = most - shares->threads[0];
  const int n = fewer < TEAMS ? fewer : TEAMS;
  hk_spec specs[TEAMS];
  if (best == NULL || shares->n < 2) return HK_OK;
  for (int i = 0; i < n; i++) {
    specs[i] = best->spec;
    specs[i].threads = most - fewer * (i + 1) / n;
  }
  return try_all(s, specs, n, true, err);
}

/* Neighbours of the best in the number of resident subgroups and in `deepest`, in halved steps. */
static hk_status refine(hk_search *s, hk_error *err) {
  for (int step = s->most_resident / (2 * COARSE) + 1;; step /= 2) {
    const hk_trial *best = best_of(s, KIND_ANY);
    if (best == NULL) return HK_OK;
    hk_spec specs[] = {best->spec, best->spec, best->spec, best->spec};
    specs[0].resident -= step;
    specs[1].resident += step;
    specs[2].deepest -= step;
    specs[3].deepest += step;
    HK_TRY(try_all(s, specs, 4, true, err));
    if (step <= 1) return HK_OK;
  }
}

/* -- The search ------------------------------------------------------------------------------- */

/* GPU memory that a plan with all state on the host leaves free, less a reserve. */
static hk_status find_free(const hk_search *s, hk_bytes *left, hk_error *err) {
  const hk_machine *m = s->machine;
  const hk_bytes capacity = (hk_bytes)(m->gpu_memory.value - m->gpu_reserved.value);
  const hk_bytes most = (hk_bytes)((1 - HK_OVERLAP_RESERVE) * (double)capacity);
  hk_bytes gpu = 0, host;
  hk_plan plan;
  hk_forecast f = {0};
  HK_TRY(plan_of(s, (hk_spec){.deepest = (int)s->start->n_subgroups - 1}, &plan, err));
  hk_status status = hk_forecast_least_memory(&plan, &gpu, &host, err);
  if (status == HK_OK && gpu < most) /* else the peak is higher, too */
    status = hk_forecast_make(&plan, m, NULL, &f, err);
  *left = hk_max(0, most - hk_max(gpu, f.result.memory.peak));
  hk_plan_free(&plan);
  hk_forecast_free(&f);
  return status;
}

/* Sets the limit of state on the GPU: what is free there, or the user's. */
static hk_status find_limit(hk_search *s, const hk_plan_settings *settings,
                            hk_overlap_search_result *result, hk_error *err) {
  HK_TRY(find_free(s, &s->gpu_limit, err));
  result->limit_given = settings->gpu_state != NULL && *settings->gpu_state < s->gpu_limit;
  if (result->limit_given) s->gpu_limit = *settings->gpu_state;
  hk_bytes state = 0;
  for (size_t i = 0; i < s->start->n_subgroups; i++) {
    const int64_t n = s->start->subgroups[i].numel;
    state += hk_state_bytes(s->start->optimizer, n) + HK_BYTES_BF16 * n;
    if (state > s->gpu_limit) break;
    s->most_resident++;
  }
  return HK_OK;
}

static hk_status search(hk_search *s, const hk_plan_settings *settings,
                        hk_overlap_search_result *result, hk_error *err) {
  int start = 0;
  HK_TRY(find_limit(s, settings, result, err));
  HK_TRY(start_by_closed_form(s, &start, err));
  HK_TRY(coarse_round(s, start, err));
  HK_TRY(stage_round(s, err));
  for (int kind = 0; kind < KINDS; kind++) HK_TRY(shift_round(s, (hk_kind)kind, err));
  HK_TRY(held_round(s, err));
  if (settings->cpu_threads == 0) HK_TRY(team_round(s, err));
  HK_TRY(refine(s, err));
  const hk_trial *best = best_of(s, KIND_ANY);
  hk_spec spec = {.resident = start, .deepest = (int)s->start->n_subgroups - 1};
  if (best != NULL) spec = best->spec;
  HK_TRY(forecast_of(s, spec, &result->best, err));
  result->gpu_state = hk_plan_gpu_state(&result->best.plan);
  result->gpu_limit = s->gpu_limit;
  result->simulations = s->n + 1; /* with that of the limit */
  return hk_overlap_closed_form(&result->best.plan, s->machine, s->times, &result->closed_form_ns,
                                err);
}

/* Iteration time of the same routes without an overlap. */
static hk_status without_overlap(const hk_plan *plan, const hk_machine *machine, hk_ns *iteration,
                                 hk_error *err) {
  hk_plan copy;
  hk_forecast f;
  HK_TRY(hk_plan_copy(plan, &copy, err));
  hk_plan_set_overlap(&copy, HK_OVERLAP_NONE);
  HK_TRY(hk_forecast_make(&copy, machine, NULL, &f, err));
  *iteration = f.iteration_ns;
  hk_forecast_free(&f);
  return HK_OK;
}

hk_status hk_overlap_search(const hk_model *model, const hk_machine *machine, const hk_job *job,
                            const hk_plan_settings *settings, bool brief,
                            hk_overlap_search_result *result, hk_error *err) {
  memset(result, 0, sizeof *result);
  const hk_candidate all_cpu = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  hk_plan start;
  hk_block_times *times = NULL;
  HK_TRY(hk_candidate_plan(&all_cpu, model, machine, job, settings, &start, err));
  snprintf(start.policy, sizeof start.policy, "overlapped");
  for (size_t i = 0; i < start.n_subgroups; i++) start.subgroups[i].ahead = false;
  hk_search *s = calloc(1, sizeof *s);
  hk_status status =
      s != NULL ? HK_OK : hk_fail_memory(err, sizeof *s, "a search for the best overlap");
  if (status == HK_OK) status = hk_overlap_times(&start, machine, &times, err);
  if (status == HK_OK) {
    s->machine = machine;
    s->start = &start;
    s->times = times;
    s->clip_share = settings->clip == HK_CLIP_NORM ? settings->clip_share : 0;
    status = search(s, settings, result, err);
  }
  if (status == HK_OK && !brief)
    status = without_overlap(&result->best.plan, machine, &result->none_ns, err);
  if (status != HK_OK) hk_forecast_free(&result->best);
  for (int i = 0; s != NULL && i < s->n; i++) hk_plan_free(&s->trials[i].plan);
  free(s);
  free(times);
  hk_plan_free(&start);
  return status;
}

/* -- The reason ------------------------------------------------------------------------------- */

#define SAY(...)                                                                        \
  do {                                                                                  \
    if (used < size) used += (size_t)snprintf(buffer + used, size - used, __VA_ARGS__); \
  } while (0)

const char *hk_overlap_reason(const hk_overlap_search_result *r, const hk_forecast *f,
                              const hk_machine *machine, char *buffer, size_t size) {
  const hk_plan *plan = &f->plan;
  char a[16], b[16];
  size_t used = 0;
  buffer[0] = '\0';
  SAY("The first blocks keep %s of state on each GPU, where %s %s.",
      hk_format_bytes(r->gpu_state, a, sizeof a),
      r->limit_given ? "--gpu-memory allows" : "activations leave",
      hk_format_bytes(r->gpu_limit, b, sizeof b));
  if (plan->job.grad_accum > 1)
    SAY(" Between micro-steps, sums of %.0f %% of the gradients stay on the GPU.",
        100 * (1 - hk_plan_passing_share(plan)));
  const int left = (int)hk_max(0, hk_spare_cores(plan, machine));
  SAY(" Teams of %d threads leave %d cores to the framework.", plan->cpu_threads, left);
  SAY(" An iteration takes %.2f x its lower bound (%s)",
      (double)f->iteration_ns / (double)hk_max(1, f->period_bound.period_ns),
      f->period_bound.binding);
  SAY(" and %.1f ms less than without the overlap (%.1f ms).", hk_ms(r->none_ns - f->iteration_ns),
      hk_ms(r->none_ns));
  SAY(" Chosen among %d plans; the closed form says %.1f ms.", r->simulations,
      hk_ms(r->closed_form_ns));
  return buffer;
}
