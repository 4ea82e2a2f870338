/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans of policies, and the ranking of their forecasts. `plan` prints it. */
#ifndef HK_SIM_RANK_H
#define HK_SIM_RANK_H

#include "sim/forecast.h"

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
  hk_clip clip;       /* it matters with overlap `both` only */
  double clip_share;  /* share of steps in which clipping by the norm acts, 0 to 1: plans are
                         compared  by the mean of both kinds of step */
  const hk_bytes *gpu_memory; /* most of hk_plan_gpu_kept on each GPU; NULL: what fits */
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

/* Candidates of a ranking; zero-initialised: all. */
typedef struct {
  const hk_policy *only_policy;   /* NULL: all */
  const hk_runtime *only_runtime; /* NULL: both */
  hk_policy_options fixed;        /* options that the user set */
  bool quick;     /* without hk_front and other ratios, which take longer than the rest */
  bool best_only; /* with `quick`: those that are proven slower than the first may be left out */
} hk_ranking_options;

typedef struct {
  /* First those that fit, by iteration time; then the others, by missing memory. Unless `quick`,
   * the first has no more spares than may help (sim/ahead.h), with which it may be 0.5 % slower. */
  hk_forecast *forecasts;
  size_t n, n_fit;
  /* The first has held_ns (sim/held.h), with settings.clip_share > 0 all that fit. */
  /* With an overlap the plan of hk_overlap_search is added. The next three describe it; without an
   * overlap they are 0. */
  int simulations;
  hk_ns closed_form_ns;
  hk_bytes gpu_limit; /* most of hk_plan_gpu_kept that was allowed */
  char reason[2048];  /* why the first is the fastest, or why nothing fits and what would help */
} hk_ranking;

/* Simulates and sorts all candidates. They run in parallel (OpenMP); the result does not depend on
 * the number of threads. Candidates that do not take a fixed option (a ratio, say) are left out. */
hk_status hk_rank(const hk_model *model, const hk_machine *machine, const hk_job *job,
                  const hk_plan_settings *settings, const hk_ranking_options *options,
                  hk_ranking *ranking, hk_error *err);
void hk_ranking_free(hk_ranking *ranking);
/* The fastest plan that a policy names, and that policy; NULL: none that fits is. */
const hk_forecast *hk_ranking_named(const hk_ranking *ranking, const hk_policy **policy);
/* Adds a forecast that is faster than the first, or puts it in the place of a first one of the same
 * name; zeroes *best. The reason is then the reason for it. */
hk_status hk_ranking_lead(hk_ranking *ranking, const hk_machine *machine, hk_forecast *best,
                          hk_error *err);
/* If nothing fits: replaces the advice of the nearest schedule, also in the reason. */
void hk_ranking_set_advice(hk_ranking *ranking, const char *advice);

#endif
