/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ratios between those of a ranking's list: the interval of ratios that memory allows. */
#include "sim/ratio.h"

#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/pace.h"

/* A candidate whose ratio is open, and one way of summing gradients. */
typedef struct {
  hk_candidate candidate;
  hk_accumulate accumulate;
  bool summed; /* `accumulate` replaces the plan's own */
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
  hk_status status =
      hk_graph_build(&plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &graph, err);
  hk_plan_free(&plan);
  HK_TRY(status);
  *yes = (double)graph.host_base <= p->machine->host_memory.value - p->machine->host_reserved.value;
  hk_graph_free(&graph);
  return HK_OK;
}

static bool within_limit(const problem *p, const hk_plan *plan) {
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  return p->settings->gpu_state == NULL ||
         hk_state_bytes(plan->optimizer, n[HK_ROUTE_RESIDENT]) <= *p->settings->gpu_state;
}

/* Simulates the plan; *lacks_host: host memory is missing. Keeps it in *kept, in place of an
 * earlier one, if it fits. */
static hk_status try_ratio(const problem *p, const family *f, double ratio, hk_forecast *kept,
                           bool *fits, bool *lacks_host, hk_error *err) {
  hk_plan plan;
  hk_forecast forecast;
  HK_TRY(plan_at(p, f, ratio, &plan, err));
  hk_status status = hk_forecast_make(&plan, p->machine, NULL, &forecast, err);
  hk_plan_free(&plan);
  HK_TRY(status);
  status = hk_pace_flush(&forecast, p->settings->flush == NULL, p->machine, err);
  *lacks_host = forecast.host_short > 0;
  *fits = status == HK_OK && forecast.feasible && within_limit(p, &forecast.plan);
  if (*fits) {
    hk_forecast_free(kept);
    *kept = forecast;
  } else {
    hk_forecast_free(&forecast);
  }
  return status;
}

/* Steps of the ratio from 0 to 1: at least one for each subgroup, a power of ten so that a title
 * and
 * --ratio can state it. */
static hk_status steps_of(const problem *p, const family *f, int *steps, hk_error *err) {
  hk_plan plan;
  HK_TRY(plan_at(p, f, 1, &plan, err));
  *steps = 100;
  while ((size_t)*steps < plan.n_subgroups && *steps < 100000) *steps *= 10;
  hk_plan_free(&plan);
  return HK_OK;
}

/* The largest step whose plan host memory holds; -1: none. */
static hk_status most_on_host(const problem *p, const family *f, int steps, int *most,
                              hk_error *err) {
  int no = steps + 1;
  *most = -1;
  while (no - *most > 1) {
    const int middle = *most + (no - *most) / 2;
    bool yes = false;
    HK_TRY(holds(p, f, middle / (double)steps, &yes, err));
    if (yes)
      *most = middle;
    else
      no = middle;
  }
  return HK_OK;
}

static hk_status fill(const problem *p, const family *f, hk_forecast *kept, hk_error *err) {
  int steps = 0, most = 0, least = -1;
  bool fits = false, lacks_host = true;
  HK_TRY(steps_of(p, f, &steps, err));
  HK_TRY(most_on_host(p, f, steps, &most, err));
  /* What an iteration takes beside that may need a few subgroups less. */
  for (int down = 1; most >= 0 && lacks_host && !fits; down *= 2) {
    HK_TRY(try_ratio(p, f, most / (double)steps, kept, &fits, &lacks_host, err));
    if (lacks_host) most -= down;
  }
  while (fits && most - least > 1) {
    const int middle = least + (most - least) / 2;
    bool here = false;
    HK_TRY(try_ratio(p, f, middle / (double)steps, kept, &here, &lacks_host, err));
    if (here)
      most = middle;
    else
      least = middle;
  }
  return HK_OK;
}

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

hk_status hk_ratio_fill(const hk_candidate *candidates, int n, const hk_model *model,
                        const hk_machine *machine, const hk_job *job,
                        const hk_plan_settings *settings, hk_forecast *found, size_t *n_found,
                        hk_error *err) {
  const problem p = {model, machine, job, settings};
  const size_t most = 2 * ((size_t)n + 1);
  family *list = calloc(most, sizeof *list);
  hk_forecast *kept = calloc(most, sizeof *kept);
  hk_error *errors = calloc(most, sizeof *errors);
  hk_status status = HK_OK;
  *n_found = 0;
  if (list == NULL || kept == NULL || errors == NULL) {
    status = hk_fail_memory(err, most * sizeof *kept, "a search for ratios");
  } else {
    const int n_families = list_families(candidates, n, &p, list);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < n_families; i++)
      errors[i].status = fill(&p, &list[i], &kept[i], &errors[i]);
    for (int i = 0; i < n_families; i++) {
      if (errors[i].status != HK_OK && status == HK_OK)
        status = hk_fail(err, errors[i].status, "%s", errors[i].message);
    }
    for (int i = 0; i < n_families; i++) {
      if (status == HK_OK && kept[i].feasible)
        found[(*n_found)++] = kept[i];
      else
        hk_forecast_free(&kept[i]);
    }
  }
  free(list);
  free(kept);
  free(errors);
  return status;
}
