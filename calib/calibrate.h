/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `hocket calibrate`: opens the stand, measures the campaign, fits the profile, stores both. */
#ifndef HK_CALIB_CALIBRATE_H
#define HK_CALIB_CALIBRATE_H

#include "calib/profiles/profiles.h"
#include "calib/stand/stand.h"

typedef struct {
  hk_stand_options stand;
  const char *name;    /* of the profile; NULL: from GPU model, GPUs and cores ("h200-16c") */
  const char *version; /* of hocket */
  bool quick, resume, replace;
  double budget_s; /* seconds of measuring; 0: 40 (quick) or 480, minus the time to open the stand,
                      but at least half of that */
  double target;   /* half the interval of a median / median; 0: 0.02, quick 0.05. Measuring also
                      ends when more of it would not make the profile better
                      (hk_expected_error_converged) */
  uint64_t seed;
  const char *nvme; /* a folder on the drives whose bandwidth is measured (calib/stand/drive.h), for
                       60 s, quick 15, before the rest; NULL: not measured */
  const volatile sig_atomic_t *stop;
  void (*progress)(void *context, const char *probe, double share, double left_s, size_t narrow,
                   size_t n);
  void *context;
  hk_ns (*clock)(void *stand); /* of the budget; NULL: CLOCK_MONOTONIC */
} hk_calibrate_options;

typedef struct {
  hk_campaign campaign;
  hk_profile_fit fit; /* zeroed when interrupted */
  hk_drive_rates drives;
  hk_fingerprint fingerprint;
  int64_t run;
  bool resumed;
  char note[300]; /* of the stand; also a change of hocket's version since the start */
} hk_calibration;

/* Measures and stores. HK_OK does not mean that the profile is good: the calibration may be noisy,
 * not accepted or interrupted, as `out` says. After an interruption or an error (HK_ENVIRONMENT,
 * HK_NO) the samples are in the store, and `resume` continues, on the same machine only (HK_INPUT
 * names the differences). Free with hk_calibration_free, whatever this returned. */
hk_status hk_calibrate(hk_store *store, const hk_calibrate_options *options, hk_calibration *out,
                       hk_error *err);
void hk_calibration_free(hk_calibration *calibration);

#endif
