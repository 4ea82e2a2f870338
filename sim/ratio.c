/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ratios between those of a ranking's list: the smallest that memory allows, and the fastest from
 * there on. */
#include "sim/ratio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/flush.h"

/* A candidate whose ratio is open, and one way of summing gradients. */
typedef struct {
  hk_candidate candidate;
  hk_accumulate accumulate;
  bool summed; /* `accumulate` replaces the plan's own */
  int steps;   /* of the ratio from 0 to 1: at least one for each subgroup, a power of ten so that a
                  title and --ratio can state it */
  int subgroups;
  int step;         /* of `kept` */
  hk_forecast kept; /* the best that fits; zeroed: none */
  hk_ns listed_ns;  /* the fastest of the list with this policy and stride */
} family;

typedef struct {
  const hk_model *model;
  const hk_machine *machine;
  const hk_job *job;
  const hk_plan_settings *settings;
} problem;

static hk_status plan_at(const problem *p, const family *f, double ratio, hk_plan *plan,
                         hk_error *err) {
  hk_candidate candidate = f->candidate;
  candidate.options.ratio = ratio;
  HK_TRY(hk_candidate_plan(&candidate, p->model, p->machine, p->job, p->settings, plan, err));
  if (f->summed) plan->accumulate = f->accumulate;
  return HK_OK;
}

/* Whether host memory holds what the plan keeps there from beginning to end. */
static hk_status holds(const problem *p, const family *f, double ratio, bool *yes, hk_error *err) {
  hk_plan plan;
  hk_graph graph;
  HK_TRY(plan_at(p, f, ratio, &plan, err));
  hk_status status = hk_graph_build(
      &plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true, .bare = true}, &graph, err);
  hk_plan_free(&plan);
  HK_TRY(status);
  *yes = (double)graph.host_base <= hk_host_capacity(p->machine);
  hk_graph_free(&graph);
  return HK_OK;
}

/* What a trial found: missing GPU memory, or (negative) what is left; whether host memory is
 * missing. */
typedef struct {
  bool fits, lacks_host;
  bool limited; /* it fits with another flush only */
  hk_bytes gpu_short;
} trial;

/* Simulates the plan at a step; `any`: with the first flush that fits, not the best. *forecast is
 * zeroed if the plan does not fit. */
static hk_status try_step(const problem *p, const family *f, int step, bool any,
                          hk_forecast *forecast, trial *t, hk_error *err) {
  hk_plan plan;
  HK_TRY(plan_at(p, f, step / (double)f->steps, &plan, err));
  hk_status status = hk_forecast_make(&plan, p->machine, NULL, forecast, err);
  hk_plan_free(&plan);
  HK_TRY(status);
  t->gpu_short = forecast->result.memory.peak - forecast->result.memory.capacity;
  t->limited = !forecast->feasible;
  status = (any ? hk_flush_fit_any : hk_flush_fit)(forecast, p->settings->flush == NULL, p->machine,
                                                   err);
  t->lacks_host = forecast->host_short > 0;
  t->fits = status == HK_OK && forecast->feasible &&
            hk_plan_keeps_within(&forecast->plan, p->settings->gpu_memory);
  if (!t->fits) hk_forecast_free(forecast);
  return status;
}

/* Whether memory that the plan at a step needs with any flush lacks, or it keeps more on a
 * GPU than allowed. Sets t->lacks_host. */
static hk_status is_too_large(const problem *p, const family *f, int step, trial *t, bool *yes,
                              hk_error *err) {
  hk_plan plan;
  hk_bytes gpu, host;
  HK_TRY(plan_at(p, f, step / (double)f->steps, &plan, err));
  const hk_status status = hk_forecast_least_memory(&plan, &gpu, &host, err);
  const bool allowed = hk_plan_keeps_within(&plan, p->settings->gpu_memory);
  hk_plan_free(&plan);
  HK_TRY(status);
  t->lacks_host = host > (hk_bytes)hk_host_capacity(p->machine);
  *yes = t->lacks_host || !allowed || gpu > (hk_bytes)hk_gpu_capacity(p->machine);
  return HK_OK;
}

static void keep(family *f, int step, hk_forecast *forecast) {
  hk_forecast_free(&f->kept);
  f->kept = *forecast;
  f->step = step;
}

/* As try_step; what fits replaces f->kept. */
static hk_status try_and_keep(const problem *p, family *f, int step, bool any, trial *t,
                              hk_error *err) {
  hk_forecast forecast;
  HK_TRY(try_step(p, f, step, any, &forecast, t, err));
  if (t->fits) keep(f, step, &forecast);
  return HK_OK;
}

static hk_status count_steps(const problem *p, family *f, hk_error *err) {
  hk_plan plan;
  HK_TRY(plan_at(p, f, 1, &plan, err));
  f->subgroups = (int)plan.n_subgroups;
  f->steps = 100;
  while (f->steps < f->subgroups && f->steps < 100000) f->steps *= 10;
  hk_plan_free(&plan);
  return HK_OK;
}

/* The largest step whose plan host memory holds; -1: none. */
static hk_status most_on_host(const problem *p, const family *f, int *most, hk_error *err) {
  int no = f->steps + 1;
  *most = -1;
  for (int middle = f->steps; no - *most > 1; middle = *most + (no - *most) / 2) {
    bool yes = false;
    HK_TRY(holds(p, f, middle / (double)f->steps, &yes, err));
    if (yes)
      *most = middle;
    else
      no = middle;
  }
  return HK_OK;
}

/* Steps that would use up free GPU memory with state; negative: that would make up for missing. */
static double steps_for(const family *f, hk_bytes free) {
  int64_t n[HK_ROUTE_COUNT], all = 0;
  hk_plan_route_totals(&f->kept.plan, n);
  for (int r = 0; r < HK_ROUTE_COUNT; r++) all += n[r];
  const double step = (double)hk_state_bytes(f->kept.plan.optimizer, all) / f->steps;
  return (double)free / fmax(1, step);
}

/* Finds the smallest step that fits on the GPU, and keeps its plan. The peak of GPU memory is
 * nearly linear in the step, which gives the next one to try; each third trial halves the rest. */
static hk_status fill(const problem *p, family *f, hk_error *err) {
  int most = 0, least = -1;
  trial t = {.lacks_host = true};
  HK_TRY(count_steps(p, f, err));
  HK_TRY(most_on_host(p, f, &most, err));
  /* What an iteration takes beside that may need a few subgroups less. */
  for (int down = 1; most >= 0 && t.lacks_host && !t.fits; down *= 2) {
    bool known = false;
    HK_TRY(is_too_large(p, f, most, &t, &known, err));
    if (!known) HK_TRY(try_and_keep(p, f, most, true, &t, err));
    if (t.lacks_host) most -= down;
  }
  if (!t.fits) return HK_OK;
  int last = most;
  bool limited = t.limited;
  for (int i = 1; most - least > 1; i++) {
    int middle = least + (most - least) / 2;
    if (i % 3 != 0) {
      const double guess = last - floor(steps_for(f, -t.gpu_short));
      middle = (int)fmin(fmax(guess, least + 1), most - 1);
    }
    HK_TRY(try_and_keep(p, f, middle, true, &t, err));
    if (t.fits) limited = t.limited;
    *(t.fits ? &most : &least) = last = middle;
  }
  return limited ? try_and_keep(p, f, most, false, &t, err) : HK_OK;
}

/* -- Around the smallest ratio that fits ---------------------------------------------------- */

#define CLIMBED  6   /* families whose ratios are searched from the smallest on */
#define EACH     30  /* simulations of a family, about, with those for gradients that wait */
#define VARIED   5   /* families that other numbers of buffers, or other strides, make */
#define MOST_OPS 3e6 /* simulated operations of all families, about: 1 s on one core */

/* The step with `more` subgroups more on the host than at `step`; negative: fewer. */
static int step_of(const family *f, int step, int more) {
  const int64_t at = (int64_t)step * f->subgroups / f->steps + more;
  return (int)((at * f->steps + f->subgroups - 1) / f->subgroups);
}

/* The position of a stride's subgroup in its round changes with every subgroup more, so that times
 * are not unimodal: looks at each of the next ones, then further away. */
static hk_status climb(const problem *p, family *f, hk_error *err) {
  static const int away[] = {1, 2, 3, 4, 5, 6, 8, 11, 15};
  enum { N = sizeof away / sizeof *away };
  const int from = f->step;
  trial t;
  for (int i = 0; i < N; i++) {
    const int step = step_of(f, from, away[i]);
    hk_forecast forecast;
    if (step > f->steps || step == f->step) break;
    HK_TRY(try_step(p, f, step, false, &forecast, &t, err));
    if (!t.fits) continue;
    if (forecast.iteration_ns < f->kept.iteration_ns)
      keep(f, step, &forecast);
    else
      hk_forecast_free(&forecast);
  }
  return HK_OK;
}

/* -- Families ------------------------------------------------------------------------------- */

/* Whether an earlier one is the same but for the ratio. */
static bool is_listed(const family *list, int n, const family *f) {
  const hk_policy_options *a = &f->candidate.options;
  for (int i = 0; i < n; i++) {
    const hk_policy_options *b = &list[i].candidate.options;
    if (list[i].candidate.policy == f->candidate.policy &&
        list[i].candidate.runtime == f->candidate.runtime && a->stride == b->stride &&
        a->stride_auto == b->stride_auto && a->buffers == b->buffers &&
        list[i].summed == f->summed && (!f->summed || list[i].accumulate == f->accumulate))
      return true;
  }
  return false;
}

/* The fastest that fits of the list with the family's policy and stride. */
static hk_ns listed_time(const family *f, const hk_forecast *listed, size_t n_fit) {
  const hk_candidate *c = &f->candidate;
  hk_ns least = INT64_MAX;
  for (size_t i = 0; i < n_fit; i++) {
    const hk_plan *plan = &listed[i].plan;
    if (strcmp(plan->policy, c->policy->name) == 0 && plan->runtime == c->runtime &&
        (c->options.stride == 0 || plan->stride == c->options.stride))
      least = hk_min(least, listed[i].iteration_ns);
  }
  return least;
}

static int add(family *list, int n, const hk_candidate *candidate, const problem *p) {
  family f = {.candidate = *candidate};
  if (!(candidate->policy->takes & HK_TAKES_RATIO)) return n;
  if (!is_listed(list, n, &f)) list[n++] = f;
  /* hk_accumulation_candidates has the ways that a ranking tries. */
  f.summed = true;
  f.accumulate = HK_ACCUMULATE_HOST;
  if (p->settings->accumulate == NULL && p->job->grad_accum > 1 &&
      candidate->runtime == HK_RUNTIME_HOCKET && !is_listed(list, n, &f))
    list[n++] = f;
  return n;
}

static int list_families(const hk_candidate *candidates, int n, const problem *p, family *list) {
  int n_families = 0;
  bool streams = false;
  for (int i = 0; i < n; i++) {
    n_families = add(list, n_families, &candidates[i], p);
    streams = streams ||
              (candidates[i].runtime == HK_RUNTIME_HOCKET &&
               candidates[i].policy == &hk_policy_interleave && candidates[i].options.stride_auto);
  }
  if (streams) { /* the policy that needs the least host memory for what lies there */
    hk_candidate one = {.policy = &hk_policy_interleave,
                        .runtime = HK_RUNTIME_HOCKET,
                        .options = HK_POLICY_OPTIONS_NONE};
    one.options.stride = 1;
    n_families = add(list, n_families, &one, p);
  }
  return n_families;
}

static hk_ns time_of(const family *f, bool by_kept) {
  if (!by_kept) return f->listed_ns;
  return f->kept.feasible ? f->kept.iteration_ns : INT64_MAX;
}

/* Stable: by the list's times, or by those of the plans that are kept. */
static void sort_families(family *list, int n, bool by_kept) {
  for (int i = 1; i < n; i++) {
    const family f = list[i];
    const hk_ns time = time_of(&f, by_kept);
    int at = i;
    for (; at > 0 && time_of(&list[at - 1], by_kept) > time; at--) list[at] = list[at - 1];
    list[at] = f;
  }
}

/* Runs fill and, if `climbs`, then climb, on each, in parallel. */
static hk_status search_all(const problem *p, family *list, int n, bool fills, bool climbs,
                            hk_error *err) {
  hk_error *errors = calloc((size_t)n + 1, sizeof *errors);
  if (errors == NULL) return hk_fail_memory(err, (size_t)n * sizeof *errors, "a search for ratios");
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < n; i++) {
    errors[i].status = fills ? fill(p, &list[i], &errors[i]) : HK_OK;
    if (errors[i].status == HK_OK && climbs && list[i].kept.feasible)
      errors[i].status = climb(p, &list[i], &errors[i]);
  }
  const hk_status status = hk_fail_first(errors, (size_t)n, err);
  free(errors);
  return status;
}

/* The fastest family that stages subgroups under runtime hocket, with a number of buffers that is
 * not given; NULL: none. The fastest of all may stage none because its buffers leave no room. */
static family *fastest_staged(family *list, int n) {
  for (int i = 0; i < n; i++)
    if (list[i].kept.feasible && list[i].candidate.options.buffers == 0 &&
        list[i].candidate.runtime == HK_RUNTIME_HOCKET &&
        hk_plan_on_route(&list[i].kept.plan, HK_ROUTE_STAGED) > 0)
      return &list[i];
  return NULL;
}

/* Other numbers of staging buffers than this family's, which leave other room for state, or other
 * strides. */
static hk_status vary(const problem *p, family *best, bool strides, hk_error *err) {
  static const int values[2][VARIED] = {{1, 2, 3, 4, 6}, {2, 3, 4, 5, 6}};
  family list[VARIED];
  int n = 0;
  for (int i = 0; i < VARIED; i++) {
    const int value = values[strides][i];
    if (value == (strides ? best->kept.plan.stride : best->kept.plan.buffers)) continue;
    list[n] = (family){
        .candidate = best->candidate, .accumulate = best->accumulate, .summed = best->summed};
    hk_policy_options *options = &list[n++].candidate.options;
    options->stride = strides ? value : best->kept.plan.stride;
    options->stride_auto = false;
    options->buffers = strides ? best->kept.plan.buffers : value;
  }
  const hk_status status = search_all(p, list, n, true, true, err);
  for (int i = 0; i < n; i++) {
    if (status == HK_OK && list[i].kept.feasible &&
        list[i].kept.iteration_ns < best->kept.iteration_ns)
      keep(best, list[i].step, &list[i].kept);
    else
      hk_forecast_free(&list[i].kept);
  }
  return status;
}

/* Something fits: the fastest ratio of the fastest families. */
static hk_status refine(const problem *p, family *list, int *n, const hk_forecast *listed,
                        size_t n_fit, hk_error *err) {
  const double each = (double)listed[0].graph.n_ops;
  for (int i = 0; i < *n; i++) list[i].listed_ns = listed_time(&list[i], listed, n_fit);
  sort_families(list, *n, false);
  *n = (int)fmin(*n, MOST_OPS / (EACH * fmax(1, each)));
  if (*n == 0) return HK_OK;
  HK_TRY(search_all(p, list, *n, true, false, err));
  sort_families(list, *n, true);
  HK_TRY(search_all(p, list, *n < CLIMBED ? *n : CLIMBED, false, true, err));
  sort_families(list, *n, true);
  family *staged = fastest_staged(list, *n);
  if (*n < VARIED || staged == NULL) return HK_OK; /* a stride that is given makes fewer */
  HK_TRY(vary(p, staged, false, err));
  HK_TRY(vary(p, staged, true, err));
  sort_families(list, *n, true);
  return HK_OK;
}

/* Moves the plans that were found to `found`: all, or the first if it is faster than the list's. */
static void hand_over(family *list, int n, const hk_forecast *listed, size_t n_fit,
                      hk_forecast *found, size_t *n_found) {
  for (int i = 0; i < n; i++) {
    hk_forecast *kept = &list[i].kept;
    const bool wanted =
        n_fit == 0 || (i == 0 && kept->feasible && kept->iteration_ns < listed[0].iteration_ns);
    if (!kept->feasible || !wanted) continue;
    found[(*n_found)++] = *kept;
    memset(kept, 0, sizeof *kept);
  }
}

hk_status hk_ratio_search(const hk_candidate *candidates, int n, const hk_model *model,
                          const hk_machine *machine, const hk_job *job,
                          const hk_plan_settings *settings, const hk_forecast *listed, size_t n_fit,
                          hk_forecast *found, size_t *n_found, hk_error *err) {
  const problem p = {model, machine, job, settings};
  const size_t most = 2 * ((size_t)n + 1);
  family *list = calloc(most, sizeof *list);
  *n_found = 0;
  if (list == NULL) return hk_fail_memory(err, most * sizeof *list, "a search for ratios");
  const int n_families = list_families(candidates, n, &p, list);
  int used = n_families;
  const hk_status status = n_fit == 0 ? search_all(&p, list, n_families, true, false, err)
                                      : refine(&p, list, &used, listed, n_fit, err);
  if (status == HK_OK) hand_over(list, used, listed, n_fit, found, n_found);
  for (int i = 0; i < n_families; i++) hk_forecast_free(&list[i].kept);
  free(list);
  return status;
}
