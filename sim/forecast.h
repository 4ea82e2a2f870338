/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A forecast: the simulation of one plan with its bounds, whether it fits in memory, and what
 * limits it. `simulate` prints it. */
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
  double clip_share; /* share of clipped steps with which it is compared */
  hk_ns held_ns;     /* iteration in which nothing runs ahead of the norm (held.h); 0: not
                        simulated, or the same */
  hk_ns begin_ns;    /* where the reported iteration begins in the timeline */
  hk_ns unsteady_ns; /* difference of the last two periods */
  bool settled;      /* false: a lane got more work than it did in all simulated iterations. An
                        iteration is then as long as its work: the last period + unsteady_ns */
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
  char advice[768];  /* changes that would make it fit; empty if it fits */
} hk_forecast;

/* The mean iteration with the share of clipped steps that hk_held_add was given. */
static inline hk_ns hk_forecast_mean(const hk_forecast *f) {
  if (f->held_ns == 0) return f->iteration_ns;
  return (hk_ns)((1 - f->clip_share) * (double)f->iteration_ns +
                 f->clip_share * (double)f->held_ns);
}

/* Bytes that a node lacks, if its host lacks `host` and each of its GPUs `gpu`. Below 0: some are
 * left. */
static inline hk_bytes hk_node_lacks(hk_bytes host, hk_bytes gpu, const hk_job *job) {
  return hk_max(0, host) + hk_max(0, gpu) * hk_job_ranks(job);
}
/* Missing bytes of a node, those of its GPUs included; 0: it fits. */
static inline hk_bytes hk_forecast_lacks(const hk_forecast *f) {
  return hk_node_lacks(f->host_short, f->gpu_short, &f->plan.job);
}
/* A phase that rounds to 0 ns counts as 1 ns. */
static inline double hk_per_second(double amount, hk_ns time) {
  return amount * 1e9 / (double)(time > 0 ? time : 1);
}

/* Cores of a node that no CPU team of the plan has; below 0: teams share cores. */
static inline int hk_spare_cores(const hk_plan *plan, const hk_machine *machine) {
  return (int)machine->cores.value - plan->cpu_threads * hk_job_ranks(&plan->job);
}

/* Whether forward and backward take so much of the iteration that the update hardly matters. */
static inline bool hk_forecast_is_training(const hk_forecast *f) {
  return f->plan.overlap == HK_OVERLAP_NONE && 10 * f->update_ns < f->iteration_ns;
}

/* Takes over *plan (zeroed afterwards, also on failure). */
hk_status hk_forecast_make(hk_plan *plan, const hk_machine *machine, const hk_sim_options *options,
                           hk_forecast *forecast, hk_error *err);
/* Memory of one GPU and of a node that any simulation of the plan uses at the least: before the
 * first operation, or when the first forward has ended. */
hk_status hk_forecast_least_memory(const hk_plan *plan, hk_bytes *gpu, hk_bytes *host,
                                   hk_error *err);
/* Memory of one GPU that is in use at the begin of some forward or backward of the first iteration,
 * at the least: what precedes it has ended, what follows it has not begun, and anything else uses
 * as little as it can at any time. At least `gpu` of hk_forecast_least_memory. Holds for the plan's
 * own flush only (sim/flush.h). */
hk_status hk_forecast_least_peak(const hk_plan *plan, hk_bytes *peak, hk_error *err);
/* Bytes of the node's memory that lack then; more may lack later. */
hk_status hk_forecast_missing(const hk_plan *plan, const hk_machine *machine, hk_bytes *missing,
                              hk_error *err);

/* As hk_forecast_make, of n plans, in parallel (OpenMP). Forecasts are made, or zeroed, also on
 * failure. */
hk_status hk_forecast_all(hk_plan *plans, size_t n, const hk_machine *machine,
                          hk_forecast *forecasts, hk_error *err);
void hk_forecast_free(hk_forecast *forecast);

/* Durations of the phases of a whole iteration. With gradient accumulation forward and backward
 * alternate; each is then the sum over its micro-steps. */
void hk_phase_durations(const hk_graph *graph, const hk_timeline *timeline,
                        hk_ns phases[HK_PHASE_COUNT]);

/* As hk_plan_title. */
const char *hk_forecast_title(const hk_forecast *forecast, char *buffer, size_t size);

#endif
