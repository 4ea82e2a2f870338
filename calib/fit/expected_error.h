/* SPDX-License-Identifier: GPL-3.0-or-later */
/* How far predictions with a calibrated profile are expected to be off. An iteration is computation
 * and an update; hocket.profile measures computation, so this is about the update.
 *
 * Two independent errors, both as the share within which nine in ten lie:
 *   noise     intervals of the calibrated quantities, propagated through the simulator
 *             (sim/uncertainty.h): 1.645 standard errors of the update. It shrinks with the square
 *             root of the measuring time.
 *   model     90th percentile of the replays' errors. More time does not change it.
 *   expected  sqrt(noise^2 + model^2)
 * The reference is the update of 3 G parameters on one GPU: all of it on the CPU, a mixture of CPU
 * and GPU, and all of it on the GPU. `noise` is that of the least certain one. */
#ifndef HK_CALIB_FIT_EXPECTED_ERROR_H
#define HK_CALIB_FIT_EXPECTED_ERROR_H

#include "core/machine/machine.h"

/* A profile whose expected error is larger is not accepted: schedules that a planner compares
 * often differ by less. */
#define HK_MOST_EXPECTED_PCT 15

typedef struct {
  double noise_pct, model_pct, expected_pct;
} hk_expected_error;

/* `model_pct`: 90th percentile of the replays' absolute errors. */
hk_status hk_expected_error_of(const hk_machine *machine, double model_pct,
                               hk_expected_error *expected, hk_error *err);

/* More time is worth it while the expected error is more than this above the model's. */
#define HK_WORTH 1.1
bool hk_expected_error_converged(const hk_expected_error *expected);
/* Further seconds until the expected error has converged, after `seconds` of measuring; 0: it has.
 * INFINITY if the model's error is 0. */
double hk_expected_error_worth_s(const hk_expected_error *expected, double seconds);

#endif
