/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Validation: simulates a plan on a calibrated profile, runs it with the engine, and compares both
 * timelines operation by operation. */
#ifndef HK_CALIB_VALIDATE_VALIDATE_H
#define HK_CALIB_VALIDATE_VALIDATE_H

#include <signal.h>

#include "calib/stand/fingerprint.h"
#include "core/machine.h"
#include "engine/engine.h"
#include "sim/sim.h"
#include "traces/compare.h"

typedef struct {
  const hk_backend_ops *ops;
  int device;
  int steps;   /* measured; 0: 7 */
  int warm_up; /* dropped before; 0: 2 */
  uint64_t seed;
  const hk_arena *host_memory;       /* see hk_engine_options */
  const volatile sig_atomic_t *stop; /* NULL: never; stops between steps (HK_NO: interrupted) */
  void (*progress)(void *context, int step, int steps); /* NULL: nobody listens */
  void *context;
} hk_validate_options;

typedef struct {
  hk_graph graph;                  /* the update phase, as both ran it */
  hk_timeline predicted, measured; /* measured: the step whose update time is the median */
  hk_timeline_comparison comparison;
  double *update_ms; /* of each measured step, sorted */
  int steps;
  hk_pair gpu_memory, host_memory; /* bytes: peaks of the update phase with what the engine holds */
  char checksum[33];
} hk_validation;

/* HK_ENVIRONMENT, HK_INPUT as the engine says; a step that fails names the operation and nothing is
 * compared. Free with hk_validation_free, safe on a zeroed one. */
hk_status hk_validate_plan(const hk_plan *plan, const hk_machine *machine,
                           const hk_validate_options *options, hk_validation *out, hk_error *err);
/* How long the update phase takes, as the others predict it. */
hk_status hk_validate_predict(const hk_plan *plan, const hk_machine *machine, hk_ns *update,
                              hk_error *err);
/* A measurement that was kept against what the machine is predicted to do of the plan now: of
 * `measured`, a step's update phase, `out` has the comparison and no copy, and of memory nothing.
 */
hk_status hk_validate_again(const hk_plan *plan, const hk_timeline *measured,
                            const hk_machine *machine, hk_validation *out, hk_error *err);
void hk_validation_free(hk_validation *validation);
/* The median of update_ms. */
double hk_validation_median_ms(const hk_validation *validation);

/* Whether a profile document is of this machine: HK_OK, or HK_INPUT listing the fingerprint's
 * differences, or that it has none. `max_age_s` > 0: older calibrations are refused, too. */
hk_status hk_validate_profile(const cJSON *document, const hk_fingerprint *here, double max_age_s,
                              hk_error *err);

/* The latency, lone time and copy engine of every operation of a graph on a machine; engines only
 * where they do one copy at a time. The caller frees *costs. */
hk_status hk_op_costs(const hk_graph *graph, const hk_machine *machine, hk_op_cost **costs,
                      hk_error *err);

/* ---- Ranking --------------------------------------------------------------------------------- */

#define HK_MOST_ROUNDS 15

typedef struct {
  hk_lane_kind kind;
  double error_pct; /* of the predicted busy time against the measured */
} hk_lane_error;

typedef struct {
  char title[160];                  /* hk_ranking_title */
  double predicted_ms, measured_ms; /* medians of the update phase */
  double least_ms, most_ms;
  hk_lane_error lanes[HK_LANE_KIND_COUNT]; /* those that were busy for HK_BUSY_LANE of the time */
  int n_lanes;
  double gpu_memory_error_pct;       /* NAN under DeepSpeed, whose prediction has the framework's */
  int64_t predicted_id, measured_id; /* kept timelines; 0: not kept */
  double round_ms[HK_MOST_ROUNDS];   /* measured_ms of each time it was run */
  int rounds;
} hk_ranked_plan;

/* A lane that is idle for more of the makespan says nothing: a barrier takes a microsecond. */
#define HK_BUSY_LANE 0.01
/* Times, lanes and memory of a plan that was run; title and ids are the caller's. */
void hk_ranking_note(const hk_plan *plan, const hk_validation *validation, hk_ranked_plan *out);
/* Of a plan that was run 1 to HK_MOST_ROUNDS times: the run with the median, of an even number the
 * lower. Its least and most are those of all runs, and each of its lanes has its own median over
 * them: in the run with the median time a lane is as likely to be far off as in any other. */
hk_ranked_plan hk_ranking_median(const hk_ranked_plan *runs, int n);

typedef struct {
  double tau;        /* Kendall's tau-b of predicted against measured */
  double regret_pct; /* how much slower the predicted best is than the measured best */
  size_t predicted_best, measured_best;
  double median_error_pct, worst_error_pct; /* absolute, of the updates */
  double median_lane_pct, worst_lane_pct;   /* the same of all plans' lanes; NAN: there are none */
  double lane_pct[HK_LANE_KIND_COUNT];      /* medians, lane by lane; NAN: no plan has it */
  size_t lane_plans[HK_LANE_KIND_COUNT];    /* of so many plans */
  double worst_gpu_memory_pct;              /* NAN: none is known */
  double median_rounds_pct, worst_rounds_pct; /* by how much the slowest run of a plan is slower
                                                 than its fastest; NAN: each was run once */
} hk_ranking_verdict;

hk_status hk_ranking_judge(const hk_ranked_plan *plans, size_t n, hk_ranking_verdict *verdict,
                           hk_error *err);

/* At least `least` plans for one GPU that fit on this machine and in `host_bytes` of host memory,
 * spread over policies, strides, ratios, buffers, subgroup and piece sizes and CPU threads, the
 * same for the same arguments. The caller frees each with hk_plan_free and the array. HK_NO: fewer
 * fit. */
hk_status hk_ranking_plans(const hk_model *model, const hk_machine *machine, size_t least,
                           hk_bytes host_bytes, hk_plan **plans, size_t *n, hk_error *err);
/* "interleave k=2 r=0.80, 64 x 105M, pieces 26M, 4 buffers, 12 threads": all that tells these plans
 * apart. Returns `buffer`. */
const char *hk_ranking_title(const hk_plan *plan, char *buffer, size_t size);

#endif
