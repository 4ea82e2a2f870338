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
#include "sim/overlap_trials.h"
#include "sim/preview.h"

#define COARSE      10 /* steps of resident state */
#define SHIFTS      7  /* tried values of hk_spec.deepest in round 3 */
#define TEAMS       4  /* tried values of hk_spec.threads in round 5 */
#define MOST_STRIDE 6

static hk_status closed_form_of(const hk_overlap_trials *s, hk_spec spec, hk_ns *period,
                                hk_error *err) {
  hk_plan plan;
  HK_TRY(hk_trials_plan(s, spec, &plan, err));
  const hk_status status = hk_overlap_closed_form(&plan, s->machine, s->times, period, err);
  hk_plan_free(&plan);
  return status;
}

/* -- Rounds ----------------------------------------------------------------------------------- */

/* The fewest resident subgroups with which the closed form is within 0.5 % of its best. */
static hk_status start_by_closed_form(const hk_overlap_trials *s, int *resident, hk_error *err) {
  const int deepest = (int)s->start->n_subgroups - 1;
  const int step = s->most_resident / 64 + 1; /* at most 65 evaluations */
  hk_ns least = INT64_MAX, periods[65];
  for (int r = 0; r <= s->most_resident; r += step) {
    hk_ns *period = &periods[r / step];
    HK_TRY(closed_form_of(s, (hk_spec){.resident = r, .deepest = deepest}, period, err));
    least = hk_min(least, *period);
  }
  int i = 0;
  while (i * step < s->most_resident && (double)periods[i] > (1 + HK_AS_GOOD) * (double)least) i++;
  *resident = i * step < s->most_resident ? i * step : s->most_resident;
  return HK_OK;
}

static hk_status coarse_round(hk_overlap_trials *s, int start, hk_error *err) {
  const int deepest = (int)s->start->n_subgroups - 1;
  hk_spec specs[COARSE + 2];
  int n = 0;
  specs[n++] = (hk_spec){.resident = start, .deepest = deepest};
  for (int i = 0; i <= COARSE; i++)
    specs[n++] =
        (hk_spec){.resident = (int)((int64_t)s->most_resident * i / COARSE), .deepest = deepest};
  return hk_trials_add(s, specs, n, err);
}

/* If only some subgroups can run ahead, the last ones need not be the best choice: forward needs
 * the first ones first. */
static hk_status shift_round(hk_overlap_trials *s, hk_kind kind, hk_error *err) {
  const hk_trial *best;
  if (s->start->overlap != HK_OVERLAP_BOTH || !hk_trials_wait(s, kind)) return HK_OK;
  HK_TRY(hk_trials_best(s, kind, &best, err));
  if (best == NULL || best->all_ahead) return HK_OK;
  const hk_spec at = best->spec;
  const int last = (int)s->start->n_subgroups - 1;
  hk_spec specs[SHIFTS];
  for (int i = 1; i <= SHIFTS; i++) {
    const int shift = (int)((int64_t)(last - at.resident) * i / (SHIFTS + 1));
    specs[i - 1] = at;
    specs[i - 1].deepest = last - shift;
  }
  return hk_trials_add(s, specs, SHIFTS, err);
}

/* Stages all subgroups, or one of 2 to 6: of those that wait for the norm, or of all. */
static hk_status stage_round(hk_overlap_trials *s, hk_error *err) {
  const hk_trial *best;
  HK_TRY(hk_trials_best(s, HK_KIND_ANY, &best, err));
  if (best == NULL) return HK_OK;
  const hk_spec at = best->spec;
  hk_spec specs[2 * MOST_STRIDE];
  for (int i = 0; i < 2 * MOST_STRIDE; i++) {
    specs[i] = at;
    specs[i].stride = i / 2 + 1;
    specs[i].first = i % 2 != 0;
  }
  return hk_trials_add(s, specs, 2 * MOST_STRIDE, err);
}

/* In clipped steps the GPU updates one of 2 to 8 of the subgroups that run ahead, and that the CPU
 * updates in others: this has what staged subgroups have, but in clipped steps only. Its buffers
 * may need the place of resident state. */
static hk_status held_round(hk_overlap_trials *s, hk_error *err) {
  static const int strides[] = {2, 3, 4, 5, 6, 8};
  enum { N = sizeof strides / sizeof *strides };
  const hk_trial *best;
  if (s->clip_share == 0 || s->start->overlap != HK_OVERLAP_BOTH) return HK_OK;
  HK_TRY(hk_trials_best(s, HK_KIND_CPU, &best, err));
  if (best == NULL) return HK_OK;
  hk_spec at = best->spec, specs[N];
  for (bool fits = false; !fits; at.resident -= !fits) {
    hk_plan plan;
    at.held = strides[0];
    HK_TRY(hk_trials_plan(s, at, &plan, err));
    fits = at.resident == 0 || hk_plan_keeps_within(&plan, &s->gpu_limit);
    hk_plan_free(&plan);
  }
  for (int i = 0; i < N; i++) {
    specs[i] = at;
    specs[i].held = strides[i];
  }
  return hk_trials_add(s, specs, N, err);
}

/* Fewer threads than planned, down to the smallest team beside which launches were measured. */
static hk_status team_round(hk_overlap_trials *s, hk_error *err) {
  const hk_launch_shares *shares = &s->start->model.launch_beside_update;
  const hk_trial *best;
  const int most = s->start->cpu_threads, fewer = most - shares->threads[0];
  const int n = fewer < TEAMS ? fewer : TEAMS;
  hk_spec specs[TEAMS];
  if (shares->n < 2) return HK_OK;
  HK_TRY(hk_trials_best(s, HK_KIND_ANY, &best, err));
  if (best == NULL) return HK_OK;
  for (int i = 0; i < n; i++) {
    specs[i] = best->spec;
    specs[i].threads = most - fewer * (i + 1) / n;
  }
  return hk_trials_add(s, specs, n, err);
}

/* Neighbours of the best in the number of resident subgroups and in `deepest`, in halved steps. */
static hk_status refine(hk_overlap_trials *s, hk_error *err) {
  for (int step = s->most_resident / (2 * COARSE) + 1;; step /= 2) {
    const hk_trial *best;
    HK_TRY(hk_trials_best(s, HK_KIND_ANY, &best, err));
    if (best == NULL) return HK_OK;
    hk_spec specs[] = {best->spec, best->spec, best->spec, best->spec};
    specs[0].resident -= step;
    specs[1].resident += step;
    specs[2].deepest -= step;
    specs[3].deepest += step;
    HK_TRY(hk_trials_add(s, specs, 4, err));
    if (step <= 1) return HK_OK;
  }
}

/* -- The search ------------------------------------------------------------------------------- */

/* GPU memory that a plan with all state on the host leaves free, less a reserve. */
static hk_status find_free(const hk_overlap_trials *s, hk_bytes *left, hk_error *err) {
  const hk_bytes capacity = (hk_bytes)hk_gpu_capacity(s->machine);
  const hk_bytes most = (hk_bytes)((1 - HK_OVERLAP_RESERVE) * (double)capacity);
  hk_bytes gpu = 0;
  hk_plan plan;
  hk_preview preview = {0};
  HK_TRY(hk_trials_plan(s, (hk_spec){.deepest = (int)s->start->n_subgroups - 1}, &plan, err));
  hk_status status = hk_forecast_least_peak(&plan, &gpu, err);
  if (status == HK_OK && gpu < most) /* else the peak is higher, too */
    status = hk_preview_of(&plan, s->machine, &preview, err);
  *left = hk_max(0, most - hk_max(gpu, preview.peak));
  hk_plan_free(&plan);
  return status;
}

/* Sets the limit of state on the GPU: what is free there, or the user's. Beyond the user's there
 * may be room for buffers for stolen pieces. */
static hk_status find_limit(hk_overlap_trials *s, const hk_plan_settings *settings,
                            hk_overlap_search_result *result, hk_error *err) {
  HK_TRY(find_free(s, &s->gpu_limit, err));
  result->limit_given = settings->gpu_memory != NULL && *settings->gpu_memory < s->gpu_limit;
  if (result->limit_given) {
    const hk_bytes beyond = s->gpu_limit - *settings->gpu_memory;
    s->steals = *settings->gpu_memory > 0 && hk_plan_spare_staging(s->start) <= beyond;
    s->gpu_limit = *settings->gpu_memory;
  }
  hk_bytes state = 0;
  for (size_t i = 0; i < s->start->n_subgroups; i++) {
    const int64_t n = s->start->subgroups[i].numel;
    state += hk_state_bytes(s->start->optimizer, n) + HK_BYTES_BF16 * n;
    if (state > s->gpu_limit) break;
    s->most_resident++;
  }
  return HK_OK;
}

static hk_status search(hk_overlap_trials *s, const hk_plan_settings *settings, bool brief,
                        hk_overlap_search_result *result, hk_error *err) {
  int start = 0;
  HK_TRY(find_limit(s, settings, result, err));
  HK_TRY(start_by_closed_form(s, &start, err));
  HK_TRY(coarse_round(s, start, err));
  HK_TRY(stage_round(s, err));
  for (int kind = 0; kind < HK_KINDS; kind++) HK_TRY(shift_round(s, (hk_kind)kind, err));
  HK_TRY(held_round(s, err));
  if (settings->cpu_threads == 0) HK_TRY(team_round(s, err));
  HK_TRY(refine(s, err));
  const hk_trial *best;
  HK_TRY(hk_trials_best(s, HK_KIND_ANY, &best, err));
  hk_spec spec = {.resident = start, .deepest = (int)s->start->n_subgroups - 1};
  if (best != NULL) spec = best->spec;
  HK_TRY(hk_trials_plan(s, spec, &result->plan, err));
  result->gpu_state = hk_plan_gpu_state(&result->plan);
  result->gpu_limit = s->gpu_limit;
  result->simulations = s->n + 1; /* with that of the limit */
  result->iteration_ns = best != NULL ? best->iteration : INT64_MAX;
  HK_TRY(hk_overlap_closed_form(&result->plan, s->machine, s->times, &result->closed_form_ns, err));
  if (brief) return HK_OK;
  return hk_forecast_make(&result->plan, s->machine, NULL, &result->best, err);
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
  hk_overlap_trials *s = calloc(1, sizeof *s);
  hk_status status =
      s != NULL ? HK_OK : hk_fail_memory(err, sizeof *s, "a search for the best overlap");
  if (status == HK_OK) status = hk_overlap_times(&start, machine, &times, err);
  if (status == HK_OK) status = hk_turn_open(&start, machine, &s->turn, err);
  if (status == HK_OK) {
    s->machine = machine;
    s->start = &start;
    s->times = times;
    s->clip_share = settings->clip == HK_CLIP_NORM ? settings->clip_share : 0;
    status = search(s, settings, brief, result, err);
  }
  if (status == HK_OK && !brief)
    status = without_overlap(&result->best.plan, machine, &result->none_ns, err);
  if (status != HK_OK) {
    hk_forecast_free(&result->best);
    hk_plan_free(&result->plan);
  }
  for (int i = 0; s != NULL && i < s->n; i++) hk_plan_free(&s->trials[i].plan);
  if (s != NULL) hk_turn_close(&s->turn);
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
  const hk_ns less = r->none_ns - f->iteration_ns;
  SAY(" and %.1f ms %s than without the overlap (%.1f ms)%s.", hk_ms(less < 0 ? -less : less),
      less < 0 ? "more" : "less", hk_ms(r->none_ns), less < 0 ? ": leave out --overlap" : "");
  SAY(" Chosen among %d plans; the closed form says %.1f ms.", r->simulations,
      hk_ms(r->closed_form_ns));
  return buffer;
}
