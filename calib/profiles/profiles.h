/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Profiles in the store: calibrations as they are measured, and what came of them. */
#ifndef HK_CALIB_PROFILES_PROFILES_H
#define HK_CALIB_PROFILES_PROFILES_H

#include "calib/fit/probe_fit.h"
#include "calib/probes/campaign.h"
#include "calib/stand/fingerprint.h"
#include "core/machine.h"
#include "traces/store.h"

/* ---- A calibration under way ----------------------------------------------------------------- */

/* A run of `calibrate`: its fingerprint, settings and samples, kept as they come. */
typedef struct {
  int64_t id;
  char name[96];    /* of the profile that it is for */
  char started[32]; /* "2026-11-21T09:30:00Z" */
  char state[16];   /* "measuring", "done" */
  bool quick;
  double seconds; /* spent measuring */
  size_t samples;
} hk_calibration_run;

hk_status hk_calibration_run_begin(hk_store *store, const char *name, bool quick,
                                   const hk_fingerprint *f, int64_t *id, hk_error *err);
/* The latest run under that name (NULL: any) that is still "measuring", for --resume. HK_INPUT:
 * none, with what there is. */
hk_status hk_calibration_run_unfinished(hk_store *store, const char *name, hk_calibration_run *run,
                                        hk_fingerprint *f, hk_error *err);
/* All runs that are still "measuring", the latest first, without their fingerprints. The caller
 * frees *runs. */
hk_status hk_calibration_runs_list_unfinished(hk_store *store, hk_calibration_run **runs, size_t *n,
                                              hk_error *err);
/* Deletes those under that name, with their samples. *n: how many there were. */
hk_status hk_calibration_runs_delete_unfinished(hk_store *store, const char *name, int64_t *n,
                                                hk_error *err);
/* One sample of all loads of a probe, committed before it returns; `seconds` is the run's so far.
 */
hk_status hk_calibration_run_add_sample(hk_store *store, int64_t id, const char *probe,
                                        size_t round, int n_values, const double *values,
                                        double seconds, hk_error *err);
/* Adds the run's samples to a campaign (hk_campaign_add), samples of probes that it has not
 * ignored. */
hk_status hk_calibration_run_load(hk_store *store, int64_t id, hk_campaign *campaign,
                                  hk_error *err);

/* ---- Profiles -------------------------------------------------------------------------------- */

typedef struct {
  char name[96], description[256];
  char made[32]; /* date and time, UTC */
  char from[16]; /* "calibrate" or "import" */
  int gpus;
  bool quick, accepted;
  double median_error_pct, p90_error_pct; /* of the replays; NAN: none */
} hk_profile_entry;

/* Keeps a fit under its machine's name, with quantities, segments, replays, a summary of each
 * series, fingerprint and run (0: none), and marks the run done; one transaction. A profile of that
 * name is replaced only with `replace`: HK_INPUT else. */
hk_status hk_profiles_save(hk_store *store, const hk_profile_fit *fit, const hk_campaign *campaign,
                           const hk_fingerprint *f, int64_t run, bool replace, hk_error *err);
/* Keeps a profile file that somebody else made, whatever calibration it carries included. */
hk_status hk_profiles_import(hk_store *store, const cJSON *document, bool replace, char *name,
                             size_t size, hk_error *err);
/* Sorted by name. The caller frees *entries. */
hk_status hk_profiles_list(hk_store *store, hk_profile_entry **entries, size_t *n, hk_error *err);
/* The whole document: hocket.machine/1 with one more member, which reading it as a machine ignores:
 *   "calibration": { "made", "version", "quick", "accepted", "seconds",
 *     "replay_error_pct": {"median", "p90", "worst"},
 *     "fingerprint": {...},
 *     "quantities": { KEY: {"low", "high", "probes"} },
 *     "segments": [ {"what", "least", "latency_ns", "latency_error_ns", "rate", "rate_error"} ],
 *     "replays": [ {"probe", "load", "measured", "predicted", "error_pct"} ],
 *     "series": { PROBE: {"narrow", "loads": [ {"load", "unit", "n", "median", "mad", "low",
 *                 "high"} ]} or {"failed": why} } }
 * Numbers that there are not (an interval of few values) are null. HK_INPUT if there is no profile
 * of that name, with the nearest. The caller owns *document. */
hk_status hk_profiles_document(hk_store *store, const char *name, cJSON **document, hk_error *err);
hk_status hk_profiles_delete(hk_store *store, const char *name, hk_error *err);

/* NAME|FILE as --machine takes it: a file if it looks like one, a profile that ships if it has that
 * name (the store is then not even opened), else one of the store. A missing store is no error. */
hk_status hk_profiles_machine(const char *name_or_file, hk_machine *machine, hk_error *err);
/* The same as a document, with "calibration" if it has one. */
hk_status hk_profiles_load_document(const char *name_or_file, cJSON **document, hk_error *err);

/* ---- Comparing two --------------------------------------------------------------------------- */

typedef struct {
  char key[200]; /* quantity; where `probe`: "PROBE", or "PROBE: LOAD" if it has several */
  bool probe;
  double a, b;
  double a_low, a_high, b_low, b_high; /* 95 % intervals; NAN: none known */
  double change_pct;                   /* of b against a; INFINITY from 0 */
  bool known;                          /* both have intervals */
  bool outside;                        /* known, and the intervals do not meet */
} hk_profile_change;

typedef struct {
  hk_profile_change *changes; /* quantities first, then probes */
  size_t n;
  size_t compared, agreeing; /* quantities with intervals on both sides */
  char fingerprint[600];     /* what differs, or who has none; "" for no difference */
} hk_profile_diff;

/* Of two documents, calibrated or not. Quantities: those that one of them calibrated or that
 * differ. Probes: those that both have. */
hk_status hk_profiles_diff(const cJSON *a, const cJSON *b, hk_profile_diff *diff, hk_error *err);
void hk_profile_diff_free(hk_profile_diff *diff);

#endif
