/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Validation: simulates a plan on a calibrated profile, runs it with the engine, and compares both
 * timelines operation by operation. */
#ifndef HK_CALIB_VALIDATE_VALIDATE_H
#define HK_CALIB_VALIDATE_VALIDATE_H

#include <signal.h>

#include "calib/stand/fingerprint.h"
#include "core/machine/machine.h"
#include "engine/engine.h"
#include "sim/sim.h"
#include "traces/compare.h"

typedef struct {
  const hk_backend_ops *ops;
  int device;
  int steps;   /* measured steps; 0: 7 */
  int warm_up; /* steps before them that do not count; 0: 2 */
  uint64_t seed;
  const hk_arena *host_memory;       /* see hk_engine_options */
  const volatile sig_atomic_t *stop; /* nonzero: HK_NO before the next step; may be NULL */
  void (*progress)(void *context, int step, int steps); /* after each step; may be NULL */
  void *context;
} hk_validate_options;

typedef struct {
  hk_graph graph;                  /* of the update phase, simulated and run */
  hk_timeline predicted, measured; /* measured: the step whose update time is the median */
  hk_timeline_comparison comparison;
  double *update_ms; /* times of the update phase of the measured steps, sorted */
  int steps;
  hk_pair gpu_memory, host_memory; /* bytes: predicted peak of the phase, the engine's allocation */
  char checksum[33];
} hk_validation;

/* Simulates the plan and runs it. Errors of the engine are passed on; if a step fails, the error
 * names the operation and nothing is compared. Free with hk_validation_free (zeroed: no effect). */
hk_status hk_validate_plan(const hk_plan *plan, const hk_machine *machine,
                           const hk_validate_options *options, hk_validation *out, hk_error *err);
/* The predicted time of the update phase, as in hk_validate_plan. */
hk_status hk_validate_predict(const hk_plan *plan, const hk_machine *machine, hk_ns *update,
                              hk_error *err);
/* Compares a stored measurement, the timeline of one step's update phase, with a new prediction.
 * `out` has no copy of the measured timeline and no memory. */
hk_status hk_validate_again(const hk_plan *plan, const hk_timeline *measured,
                            const hk_machine *machine, hk_validation *out, hk_error *err);
void hk_validation_free(hk_validation *validation);
/* Median of update_ms. */
double hk_validation_median_ms(const hk_validation *validation);

/* Checks that a profile document was calibrated on this machine. HK_INPUT if its fingerprint
 * differs (the error lists how) or is missing, or if `max_age_s` > 0 and the profile is older. */
hk_status hk_validate_profile(const cJSON *document, const hk_fingerprint *here, double max_age_s,
                              hk_error *err);

/* Latency, time alone and copy engine of every operation of a graph. The copy engine is 0 on
 * machines whose copies_at_once is 2 or more: copies do not queue. The caller frees *costs. */
hk_status hk_op_costs(const hk_graph *graph, const hk_machine *machine, hk_op_cost **costs,
                      hk_error *err);

/* ---- Ranking --------------------------------------------------------------------------------- */

#define HK_MOST_ROUNDS 15

typedef struct {
  hk_lane_kind kind;
  double error_pct; /* of the busy time: 100 (predicted / measured - 1) */
} hk_lane_error;

typedef struct {
  char title[160];                  /* hk_ranked_plan_title */
  double predicted_ms, measured_ms; /* medians of the update phase */
  double least_ms, most_ms;
  hk_lane_error lanes[HK_LANE_KIND_COUNT]; /* lanes busy for HK_BUSY_LANE of the makespan or more */
  int n_lanes;
  double gpu_memory_error_pct;       /* NAN under DeepSpeed: predictions include its own memory */
  int64_t predicted_id, measured_id; /* of stored timelines; 0: not stored */
  double round_ms[HK_MOST_ROUNDS];   /* measured_ms of each round */
  int rounds;
} hk_ranked_plan;

/* Least share of the makespan that a lane must be busy to be judged: errors of short operations,
 * such as barriers of 1 us, are not meaningful. */
#define HK_BUSY_LANE 0.01
/* Fills times, lanes and memory of a plan that was run; the caller sets title and ids. */
void hk_ranked_plan_fill(const hk_plan *plan, const hk_validation *validation, hk_ranked_plan *out);
/* Summary of n runs of one plan, 1 to HK_MOST_ROUNDS: the run with the median time, the lower one
 * if n is even. least_ms and most_ms cover all runs. Each lane's error is the median over the runs,
 * because a lane may be an outlier in the run with the median time. */
hk_ranked_plan hk_ranked_plan_median(const hk_ranked_plan *runs, int n);

typedef struct {
  double tau;        /* Kendall's tau-b of predicted against measured */
  double regret_pct; /* 100 (measured time of the predicted best / of the measured best - 1) */
  size_t predicted_best, measured_best;
  double median_error_pct, worst_error_pct;   /* absolute, of the updates */
  double median_lane_pct, worst_lane_pct;     /* the same of the lanes of all plans; NAN: none */
  double lane_pct[HK_LANE_KIND_COUNT];        /* median of each kind of lane; NAN: no plan has it */
  size_t lane_plans[HK_LANE_KIND_COUNT];      /* number of errors in lane_pct */
  double worst_gpu_memory_pct;                /* absolute; NAN: none is known */
  double median_rounds_pct, worst_rounds_pct; /* of 100 (slowest / fastest round of a plan - 1);
                                                 NAN: no plan was run twice */
} hk_ranked_plans_verdict;

hk_status hk_ranked_plans_judge(const hk_ranked_plan *plans, size_t n,
                                hk_ranked_plans_verdict *verdict, hk_error *err);

/* `least` different plans for one GPU that fit on this machine and in `host_bytes` of host memory,
 * spread over policies, strides, ratios, buffers, subgroup and piece sizes and CPU threads. `runs`:
 * only plans that the engine runs; false: also DeepSpeed's, as in the rankings of record.
 * Deterministic. The caller frees each with hk_plan_free and the array. HK_NO if fewer fit. */
hk_status hk_ranked_plans_choose(const hk_model *model, const hk_machine *machine, size_t least,
                                 bool runs, hk_bytes host_bytes, hk_plan **plans, size_t *n,
                                 hk_error *err);
/* "interleave k=2 r=0.80, 64 x 105M, pieces 26M, 4 buffers, 12 threads": the settings in which the
 * plans of a ranking differ. Returns `buffer`. */
const char *hk_ranked_plan_title(const hk_plan *plan, char *buffer, size_t size);

#endif
