/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `hocket calibrate`: stand, campaign, fit, store. */
#ifndef HK_CALIB_CALIBRATE_H
#define HK_CALIB_CALIBRATE_H

#include "calib/profiles/profiles.h"
#include "calib/stand/stand.h"

typedef struct {
  hk_stand_options stand;
  const char *name; /* of the profile; NULL: made from GPU, cores and host: "h200-16c-calibrated" */
  const char *version; /* of hocket */
  bool quick, resume, replace;
  double budget_s; /* of measuring; 0: 40 quick, else 480, less what opening the stand took */
  double target;   /* 0: 0.02; quick 0.05 */
  uint64_t seed;
  const volatile sig_atomic_t *stop;
  void (*progress)(void *context, const char *probe, double share, double left_s, size_t narrow,
                   size_t n);
  void *context;
  hk_ns (*clock)(void *stand); /* by which the budget ends; NULL: CLOCK_MONOTONIC */
} hk_calibrate_options;

typedef struct {
  hk_campaign campaign;
  hk_profile_fit fit; /* zeroed when interrupted */
  hk_fingerprint fingerprint;
  int64_t run;
  bool resumed;
  char note[300]; /* of the stand */
} hk_calibration;

/* Measures and stores. HK_OK also for a calibration that is noisy, not accepted or interrupted:
 * look at it. Interrupted, what was measured is in the store and `resume` goes on, on the same
 * machine only (HK_INPUT names what differs). HK_ENVIRONMENT and HK_NO leave what was measured in
 * the store, too. Free with hk_calibration_free, whatever this returned. */
hk_status hk_calibrate(hk_store *store, const hk_calibrate_options *options, hk_calibration *out,
                       hk_error *err);
void hk_calibration_free(hk_calibration *calibration);

#endif
