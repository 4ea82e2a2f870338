/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A forecast: one plan simulated, with its bounds, memory verdict and the reason for its speed; and
 * the ranking of many. This is what `simulate` and `plan` print. */
#ifndef HK_SIM_FORECAST_H
#define HK_SIM_FORECAST_H

#include "sim/bound.h"
#include "sim/period.h"
#include "sim/policy.h"
#include "sim/sim.h"

typedef struct {
  hk_plan plan;
  hk_graph graph;   /* with an overlap of several iterations */
  hk_result result; /* its `used` is one iteration's */
  hk_bound physical, graph_bound;
  bool feasible;
  /* With an overlap an iteration is as long as the steady period, and forward, what is exposed of
   * the update and backward add up to it (period.h); without one all of the update is exposed. */
  hk_ns forward_ns, backward_ns, update_ns, iteration_ns;
  hk_ns exposed_update_ns;
  hk_ns begin_ns;                           /* of the iteration that is reported, in the timeline */
  hk_ns unsteady_ns;                        /* by which the last two periods differ */
  hk_period_bound period_bound;             /* with an overlap */
  double tokens_per_s, update_params_per_s; /* of the whole job */
  hk_bytes gpu_short, host_short;           /* missing bytes: of one GPU, of a node; 0: fits */
  hk_resource limiter;                      /* busiest resource of the update phase */
  double limiter_utilization;
  char problem[256]; /* "host memory: 291 GiB missing in backward (needs ..., has ...)"; empty: fits
                      */
  char advice[512];  /* what would make it fit; empty when it does */
} hk_forecast;

/* What the user may set beside the policy's own options; zero means the runtime's default. */
typedef struct {
  int64_t subgroup_numel; /* 0: 100 M */
  const hk_flush *flush;  /* NULL: async */
  int cpu_threads;        /* 0: an equal share of the node's cores for each rank */
  bool cores_unbound;     /* ranks are not bound to core sets: each team has threads on all cores */
  int64_t piece_numel;    /* 0: hk_plan_create's, about 1/256 of the rank's parameters */
  hk_overlap overlap;     /* then ranks leave some of their cores to the framework's threads, too */
  const hk_bytes *gpu_state; /* the most state that each GPU may keep; NULL: what fits */
} hk_plan_settings;

/* What to try: a policy with its options under a runtime. */
typedef struct {
  const hk_policy *policy;
  hk_policy_options options;
  hk_runtime runtime;
} hk_candidate;

/* The plan of one candidate: subgroups by the runtime's rule (DeepSpeed soft floor, hocket exact,
 * with an overlap cut at blocks), settings, then the policy's routes, then what runs ahead. `model`
 * is copied. Free the plan with hk_plan_free. */
hk_status hk_candidate_plan(const hk_candidate *candidate, const hk_model *model,
                            const hk_machine *machine, const hk_job *job,
                            const hk_plan_settings *settings, hk_plan *plan, hk_error *err);

/* With overlap `both`: marks `ahead` the subgroups on route cpu, the deepest blocks' first, since
 * their gradients come first, until host memory has no room for more spares. */
hk_status hk_plan_run_ahead(hk_plan *plan, const hk_machine *machine, hk_error *err);
/* Host memory that the plan, with nothing ahead, leaves to each rank of a node; 0: none. */
hk_status hk_plan_spares(const hk_plan *plan, const hk_machine *machine, hk_bytes *left,
                         hk_error *err);

/* Takes over *plan (zeroed afterwards, also on failure). */
hk_status hk_forecast_make(hk_plan *plan, const hk_machine *machine, const hk_sim_options *options,
                           hk_forecast *forecast, hk_error *err);
void hk_forecast_free(hk_forecast *forecast);

/* Durations of the phases of a whole iteration. With gradient accumulation forward and backward
 * alternate, so each is the sum over micro-steps of the time from the end of the one before it. */
void hk_phase_durations(const hk_graph *graph, const hk_timeline *timeline,
                        hk_ns phases[HK_PHASE_COUNT]);

/* "interleave k=2 r=0.80": policy with the settings that distinguish it. Returns `buffer`. */
const char *hk_forecast_title(const hk_forecast *forecast, char *buffer, size_t size);

/* What a ranking ranges over; zero-initialised: everything. */
typedef struct {
  const hk_policy *only_policy;   /* NULL: all */
  const hk_runtime *only_runtime; /* NULL: both */
  hk_policy_options fixed;        /* what the user set; see hk_policy_options for "not given" */
} hk_ranking_options;

typedef struct {
  hk_forecast *forecasts; /* fitting ones first, by iteration time; then those that do not fit, by
                             how much is missing */
  size_t n, n_fit;
  int simulations;      /* of hk_overlap_search, which with an overlap adds its plan; else 0 */
  hk_ns closed_form_ns; /* of that plan */
  hk_bytes gpu_limit;   /* the most state on each GPU that it could have had */
  char reason[2048];    /* why the winner wins, or why nothing fits and what would help */
} hk_ranking;

/* Simulates all candidates (OpenMP over candidates; the result does not depend on the threads).
 * Candidates that the options exclude (a policy that takes no ratio when one is set) are left out.
 */
hk_status hk_rank(const hk_model *model, const hk_machine *machine, const hk_job *job,
                  const hk_plan_settings *settings, const hk_ranking_options *options,
                  hk_ranking *ranking, hk_error *err);
void hk_ranking_free(hk_ranking *ranking);

/* What the reader should be warned of: a NULL-terminated list of sentences (defaults in use that
 * matter, more GPUs than the profile has, a job outside what it was measured on, ...). Free with
 * hk_warnings_free. */
hk_status hk_forecast_warnings(const hk_plan *plan, const hk_machine *machine, char ***warnings,
                               hk_error *err);
void hk_warnings_free(char **warnings);

/* A sentence if the document of a machine says that calibration did not accept its own profile; ""
 * if it did, or if the machine was not calibrated. Returns `buffer`; 320 bytes do. */
const char *hk_profile_trouble(const cJSON *document, char *buffer, size_t size);

#endif
