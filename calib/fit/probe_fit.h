/* SPDX-License-Identifier: GPL-3.0-or-later */
/* From a campaign to a machine profile.
 *
 * 1. Copies alone: time of an operation = latency + bytes / bandwidth, least squares on relative
 *    residuals (GSL), with breakpoints where the data ask for them: the number of segments is the
 *    one with the least Bayesian information criterion. The profile takes the last segment's
 *    bandwidth and the latency that fits all sizes best; the others are in `segments`. A kernel
 *    that pulls has a launch's latency and the rate that its largest size leaves beside it.
 * 2. CPU operations: time = cost + parameters / rate; the cost by small pieces against usual ones,
 *    none for one thread. Rates with it taken out, over threads: min(saturated x (1 - exp(-n /
 *    n0)), dram / bytes a parameter), where dram is the most that a kernel took. All but AdamW may
 *    have run in caches and count where another kernel took about as much.
 * 3. Links and fabric: the least capacities that the sums of window rates respect; of the fabric no
 *    less than was reached.
 * 4. Copies and CPU kernels at once, as docs/simulator.md has it:
 *      cpu + in + dram.d2h_cost x out <= dram.with_dma     shared by dma_weight and d2h_priority;
 *      a kernel keeps cpu_beside_h2d ^ GPUs that copy in x cpu_beside_d2h ^ GPUs that copy out;
 *      a copy in falls from pcie.h2d to h2d_loaded as kernels load memory from h2d_load_from on.
 *    These eight by non-linear least squares (GSL's trust region) whose model is the simulator's
 *    replay of the contention probes. dram.h2d_cost stays 1: probes do not tell it from a copy that
 *    load slows down. Priors are weak; what the probes do not determine stays where it would be
 *    without them.
 * 5. Replay: every probe that the simulator can run, with the finished profile. */
#ifndef HK_CALIB_FIT_PROBE_FIT_H
#define HK_CALIB_FIT_PROBE_FIT_H

#include "calib/probes/campaign.h"
#include "calib/stand/fingerprint.h"
#include "core/machine.h"

/* One quantity as calibrated: what `machine diff` compares. */
typedef struct {
  const hk_quantity_info *info;
  double value;
  double low, high; /* 95 % interval */
  hk_origin origin; /* measured or fitted */
  size_t probes;    /* that it rests on */
  char how[240];    /* one line, becomes the quantity's source */
} hk_calibrated;

/* A piecewise latency and bandwidth; from `least` units on. */
typedef struct {
  char what[48]; /* "h2d", "adamw_cpu" */
  double least;
  double latency_ns, latency_error, rate, rate_error;
} hk_line_segment;

typedef struct {
  char probe[120];
  int load;
  double measured, predicted; /* in the load's unit */
  double error_pct;           /* of predicted against measured, signed */
} hk_replayed;

typedef struct {
  hk_machine machine; /* owned */
  hk_calibrated *quantities;
  size_t n_quantities;
  hk_line_segment *segments;
  size_t n_segments;
  hk_replayed *replays;
  size_t n_replays;
  double median_error_pct, p90_error_pct, worst_error_pct; /* absolute, of the replays */
  bool accepted; /* median <= 5 and 90th percentile <= 10 */
} hk_profile_fit;

typedef struct {
  const char *name;        /* of the profile */
  const char *description; /* NULL: made from the fingerprint */
  const char *date;        /* "2026-11-21" */
} hk_profile_fit_options;

/* HK_NO when probes that a quantity without default needs are missing or failed: it names them.
 * Deterministic. Free with hk_profile_fit_free, safe on a zeroed one. */
hk_status hk_profile_fit_make(const hk_campaign *campaign, const hk_fingerprint *fingerprint,
                              const hk_profile_fit_options *options, hk_profile_fit *fit,
                              hk_error *err);
void hk_profile_fit_free(hk_profile_fit *fit);

#endif
