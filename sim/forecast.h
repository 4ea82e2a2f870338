/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A forecast: one plan simulated, with its bounds, memory verdict and the reason for its speed; and
 * the ranking of many. This is what `simulate` and `plan` print. */
#ifndef HK_SIM_FORECAST_H
#define HK_SIM_FORECAST_H

#include "sim/bound.h"
#include "sim/policy.h"
#include "sim/sim.h"

typedef struct {
  hk_plan plan;
  hk_graph graph;
  hk_result result;
  hk_bound physical, graph_bound;
  bool feasible;
  hk_ns forward_ns, backward_ns, update_ns, iteration_ns;
  double tokens_per_s, update_params_per_s; /* of the whole job */
  hk_bytes gpu_short, host_short;           /* missing bytes: of one GPU, of a node; 0: fits */
  hk_resource limiter;                      /* busiest resource of the update phase */
  double limiter_utilization;
  hk_lane_kind busiest_lane;
  double busiest_lane_utilization;
  char advice[512]; /* what would make it fit; empty when it does */
} hk_forecast;

/* Takes over *plan. */
hk_status hk_forecast_make(hk_plan *plan, const hk_machine *machine, const hk_sim_options *options,
                           hk_forecast *forecast, hk_error *err);
void hk_forecast_free(hk_forecast *forecast);

/* What to try: a policy with settings. */
typedef struct {
  const hk_policy *policy;
  hk_policy_options options;
  hk_runtime runtime;
} hk_candidate;

/* What a ranking ranges over. */
typedef struct {
  const hk_policy *only_policy;   /* NULL: all */
  const hk_runtime *only_runtime; /* NULL: both */
  hk_policy_options fixed;        /* what the user set */
} hk_ranking_options;

typedef struct {
  hk_forecast *forecasts; /* fitting ones first, by iteration time; then those that do not fit */
  size_t n;
  size_t n_fit;
  char reason[768]; /* why the winner wins, or why nothing fits */
} hk_ranking;

/* Simulates all candidates (OpenMP over candidates; the result does not depend on the threads). */
hk_status hk_rank(const hk_model *model, const hk_machine *machine, const hk_job *job,
                  const hk_plan *settings, const hk_ranking_options *options, hk_ranking *ranking,
                  hk_error *err);
void hk_ranking_free(hk_ranking *ranking);

/* What the profile was not asked for before: NULL-terminated list of sentences to warn with
 * (defaults in use, more GPUs than measured, ...). The caller frees each and the list. */
hk_status hk_forecast_warnings(const hk_forecast *forecast, const hk_machine *machine,
                               char ***warnings, hk_error *err);

#endif
