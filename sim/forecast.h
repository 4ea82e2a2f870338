/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A forecast: the simulation of one plan with its bounds, whether it fits in memory, and what
 * limits it; and the ranking of many forecasts. `simulate` and `plan` print these. */
#ifndef HK_SIM_FORECAST_H
#define HK_SIM_FORECAST_H

#include "sim/bound.h"
#include "sim/period.h"
#include "sim/policy.h"
#include "sim/sim.h"

typedef struct {
  hk_plan plan;
  hk_graph graph;   /* with an overlap: of several iterations */
  hk_result result; /* `used` is that of one iteration */
  hk_bound physical, graph_bound;
  bool feasible;
  /* Iteration = forward + exposed update + backward + memory reports between phases. With an
   * overlap the iteration is the steady period (period.h); without one all of the update is
   * exposed. */
  hk_ns forward_ns, backward_ns, update_ns, iteration_ns;
  hk_ns exposed_update_ns;
  hk_ns begin_ns;               /* where the reported iteration begins in the timeline */
  hk_ns unsteady_ns;            /* difference of the last two periods */
  hk_period_bound period_bound; /* with an overlap */
  /* In a ranking with several micro-steps: this plan with each way of summing gradients that was
   * tried. The forecast itself is that of the best way. */
  struct {
    bool tried, fits;
    hk_ns iteration_ns;
    hk_bytes gpu_short, host_short;
  } sums[HK_ACCUMULATE_COUNT];
  double tokens_per_s, update_params_per_s; /* of the whole job */
  hk_bytes gpu_short, host_short;           /* missing bytes of one GPU, of a node; 0: it fits */
  hk_resource limiter;                      /* busiest resource of the update; with an overlap, of
                                               the iteration */
  double limiter_utilization;
  hk_resource training_limiter; /* busiest of forward and backward; without an overlap */
  double training_utilization;
  char problem[256]; /* "host memory: 291 GiB missing in backward (needs ..., has ...)"; empty: fits
                      */
  char advice[512];  /* changes that would make it fit; empty if it fits */
} hk_forecast;

/* Whether forward and backward take so much of the iteration that the update hardly matters. */
static inline bool hk_forecast_is_training(const hk_forecast *f) {
  return f->plan.overlap == HK_OVERLAP_NONE && 10 * f->update_ns < f->iteration_ns;
}

/* Settings besides the policy's options. Zero: the runtime's default. */
typedef struct {
  int64_t subgroup_numel; /* 0: 100 M */
  const hk_flush *flush;  /* NULL: async */
  int cpu_threads;        /* 0: an equal share of the node's cores for each rank */
  bool cores_unbound;     /* ranks are not bound to cores: each team has a thread for every core */
  int64_t piece_numel;    /* 0: hk_plan_create's, about 1/256 of the rank's parameters */
  hk_optimizer optimizer;
  const hk_accumulate *accumulate; /* NULL: the engine's; a ranking tries all */
  hk_overlap overlap; /* with an overlap the default leaves cores to the framework's threads */
  const hk_bytes *gpu_state; /* the most state that each GPU may keep; NULL: what fits */
} hk_plan_settings;

/* A candidate: a policy with its options under a runtime. */
typedef struct {
  const hk_policy *policy;
  hk_policy_options options;
  hk_runtime runtime;
} hk_candidate;

/* The plan of one candidate: subgroups (rule: soft under DeepSpeed, exact under hocket, blocks with
 * an overlap), settings, the policy's routes, and the subgroups that run ahead. `model` is copied.
 * Free the plan with hk_plan_free. */
hk_status hk_candidate_plan(const hk_candidate *candidate, const hk_model *model,
                            const hk_machine *machine, const hk_job *job,
                            const hk_plan_settings *settings, hk_plan *plan, hk_error *err);

/* With overlap `both`: marks subgroups on route cpu `ahead` as long as host memory has room for
 * their spares, from the last subgroup to the first, because the gradients of the last blocks are
 * ready first. */
hk_status hk_plan_run_ahead(hk_plan *plan, const hk_machine *machine, hk_error *err);
/* Host memory per rank that the plan leaves free if nothing runs ahead; 0: none. */
hk_status hk_plan_spares(const hk_plan *plan, const hk_machine *machine, hk_bytes *left,
                         hk_error *err);

/* Takes over *plan (zeroed afterwards, also on failure). */
hk_status hk_forecast_make(hk_plan *plan, const hk_machine *machine, const hk_sim_options *options,
                           hk_forecast *forecast, hk_error *err);
void hk_forecast_free(hk_forecast *forecast);

/* Durations of the phases of a whole iteration. With gradient accumulation forward and backward
 * alternate; each is then the sum over its micro-steps. */
void hk_phase_durations(const hk_graph *graph, const hk_timeline *timeline,
                        hk_ns phases[HK_PHASE_COUNT]);

/* As hk_plan_title. */
const char *hk_forecast_title(const hk_forecast *forecast, char *buffer, size_t size);

/* Candidates of a ranking; zero-initialised: all. */
typedef struct {
  const hk_policy *only_policy;   /* NULL: all */
  const hk_runtime *only_runtime; /* NULL: both */
  hk_policy_options fixed;        /* options that the user set */
  bool unpaced;                   /* without hk_pace_search, which takes longer than the rest */
} hk_ranking_options;

typedef struct {
  hk_forecast
      *forecasts; /* first those that fit, by iteration time; then the others, by missing memory */
  size_t n, n_fit;
  /* With an overlap the plan of hk_overlap_search is added; the next three are about it, else 0. */
  int simulations;
  hk_ns closed_form_ns;
  hk_bytes gpu_limit; /* most state on each GPU that was allowed */
  char reason[2048];  /* why the first is the fastest, or why nothing fits and what would help */
} hk_ranking;

/* Simulates and sorts all candidates. They run in parallel (OpenMP); the result does not depend on
 * the number of threads. Candidates that do not take a fixed option (a ratio, say) are left out. */
hk_status hk_rank(const hk_model *model, const hk_machine *machine, const hk_job *job,
                  const hk_plan_settings *settings, const hk_ranking_options *options,
                  hk_ranking *ranking, hk_error *err);
void hk_ranking_free(hk_ranking *ranking);
/* If nothing fits: replaces the advice of the nearest schedule, also in the reason. */
void hk_ranking_set_advice(hk_ranking *ranking, const char *advice);

/* Warnings about a forecast: a NULL-terminated list of sentences (defaults that matter, more GPUs
 * than the profile has, a job outside of what it was fitted on, ...). Free with hk_warnings_free.
 */
hk_status hk_forecast_warnings(const hk_plan *plan, const hk_machine *machine, char ***warnings,
                               hk_error *err);
void hk_warnings_free(char **warnings);

/* A sentence if the machine's document says that its calibration was not accepted; "" if it was
 * accepted, or if the machine was not calibrated. Returns `buffer`; 320 bytes are enough. */
const char *hk_profile_trouble(const cJSON *document, char *buffer, size_t size);

#endif
