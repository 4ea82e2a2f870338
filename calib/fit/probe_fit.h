/* SPDX-License-Identifier: GPL-3.0-or-later */
/* From a campaign to a machine profile.
 *
 * 1. Copies alone: time of an operation = latency + bytes / bandwidth, least squares on relative
 *    residuals (GSL), with breakpoints where the data ask for them: the number of segments is the
 *    one with the least Bayesian information criterion. The profile takes the last segment's
 *    bandwidth and the latency that fits all sizes best with it; all segments are in `segments`. A
 *    pull (a kernel that reads host memory) has the latency gpu.launch_ns; its bandwidth is that of
 *    the largest size, less the launch.
 * 2. CPU operations: time = cost + parameters / rate. The cost comes from small pieces against the
 *    profile's piece; with one thread it is 0. The rate, cost subtracted, is a function of threads:
 *    min(saturated x (1 - exp(-threads / n0)), dram / bytes a parameter), where dram is the largest
 *    bandwidth that a kernel reached. Kernels other than AdamW may have run in caches: their
 *    bandwidth counts only if another kernel's is within a factor 1.2.
 * 3. Links and fabric: capacities whose replays agree best with the sums of rates in windows. A
 *    capacity of the fabric is at least the largest sum that was measured.
 * 4. Copies and CPU kernels at once, as docs/simulator.md has it:
 *      cpu + in + dram.d2h_cost x out <= dram.with_dma     shared by dma_weight and d2h_priority;
 *      a kernel's rate is multiplied by cpu_beside_h2d for each GPU that copies in and by
 *      cpu_beside_d2h for each GPU that copies out (less for slow copies, sim/contention.h);
 *      a copy in slows from pcie.h2d to h2d_loaded as the load by kernels exceeds h2d_load_from.
 *    These eight, and shared_reads if a probe has copies in, pulls and a kernel, are fitted by
 *    non-linear least squares (calib/fit/solver.h). The model is the simulator's replay of the
 *    contention probes. dram.h2d_cost stays 1: the probes cannot distinguish it from h2d_loaded.
 *    Priors are weak; an unknown that the probes do not determine stays at its prior.
 * 5. Replay of every probe that the simulator can run, on the finished profile (CPU kernels: with
 *    the profile's chunk only). Their errors and the intervals of the quantities give the error
 *    that is expected of predictions, which decides whether the profile is accepted
 *    (calib/fit/expected_error.h). */
#ifndef HK_CALIB_FIT_PROBE_FIT_H
#define HK_CALIB_FIT_PROBE_FIT_H

#include "calib/fit/expected_error.h"
#include "calib/probes/campaign.h"
#include "calib/stand/drive.h"
#include "calib/stand/fingerprint.h"
#include "core/machine/machine.h"

/* One quantity as calibrated: what `machine diff` compares. */
typedef struct {
  const hk_quantity_info *info;
  double value;
  double low, high; /* 95 % interval */
  hk_origin origin; /* measured or fitted */
  size_t probes;    /* number of probes that it was computed from; 0 for counts */
  char how[240];    /* one line: the probes and the method; becomes the quantity's source */
} hk_calibrated;

/* One segment of time = latency + size / rate, for sizes from `least` units on. */
typedef struct {
  char what[48]; /* "h2d", "adamw_cpu" */
  double least;
  double latency_ns, latency_error, rate, rate_error;
} hk_line_segment;

typedef struct {
  char probe[120];
  int load;
  double measured, predicted; /* in the load's unit */
  double error_pct;           /* 100 (predicted / measured - 1) */
} hk_replayed;

typedef struct {
  hk_machine machine; /* owned */
  hk_calibrated *quantities;
  size_t n_quantities;
  hk_line_segment *segments;
  size_t n_segments;
  hk_replayed *replays;
  size_t n_replays;
  /* Absolute errors of the replays, without HK_LOAD_UPDATE, from which quantities were set. */
  double median_error_pct, p90_error_pct, worst_error_pct;
  hk_expected_error expected; /* of an update predicted with the profile, nine in ten */
  size_t once;                /* probes with one value, which says nothing about its error */
  bool accepted;              /* expected.expected_pct <= HK_MOST_EXPECTED_PCT, and `once` is 0 */
} hk_profile_fit;

typedef struct {
  const char *name;             /* of the profile */
  const char *description;      /* NULL: made from the fingerprint */
  const char *date;             /* "2026-11-21" */
  const hk_drive_rates *drives; /* NULL, or without rounds: not measured */
} hk_profile_fit_options;

/* HK_NO if probes are missing or failed that a quantity without a default needs; the error names
 * them. Deterministic. Free with hk_profile_fit_free, safe on a zeroed one. */
hk_status hk_profile_fit_make(const hk_campaign *campaign, const hk_fingerprint *fingerprint,
                              const hk_profile_fit_options *options, hk_profile_fit *fit,
                              hk_error *err);
void hk_profile_fit_free(hk_profile_fit *fit);

#endif
