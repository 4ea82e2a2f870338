/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The store of profiles: calibration runs with their samples, and the profiles made from them.
 *
 * A run is in the state "measuring" until its profile is saved; only such runs can be resumed. */
#ifndef HK_CALIB_PROFILES_PROFILES_H
#define HK_CALIB_PROFILES_PROFILES_H

#include "calib/fit/probe_fit.h"
#include "calib/probes/campaign.h"
#include "calib/stand/fingerprint.h"
#include "core/machine/machine.h"
#include "traces/store.h"

/* ---- A calibration under way ----------------------------------------------------------------- */

/* A run of `calibrate`. Each sample is stored before the next is measured. */
typedef struct {
  int64_t id;
  char name[96];    /* of the profile that it will make */
  char started[32]; /* "2026-11-21T09:30:00Z" */
  char state[16];   /* "measuring", "done" */
  bool quick;
  double seconds; /* spent measuring */
  size_t samples;
} hk_calibration_run;

/* Adds a run in the state "measuring". HK_INPUT: the store cannot have a profile of that name. */
hk_status hk_calibration_run_begin(hk_store *store, const char *name, bool quick,
                                   const hk_fingerprint *f, int64_t *id, hk_error *err);
/* The latest run for that profile name (NULL: any) that is "measuring", for --resume. HK_INPUT if
 * there is none; the error lists those of other names. */
hk_status hk_calibration_run_unfinished(hk_store *store, const char *name, hk_calibration_run *run,
                                        hk_fingerprint *f, hk_error *err);
/* All runs that are "measuring", the latest first. The caller frees *runs. */
hk_status hk_calibration_runs_list_unfinished(hk_store *store, hk_calibration_run **runs, size_t *n,
                                              hk_error *err);
/* Deletes the runs for that profile name that are "measuring", with their samples. *n: their
 * number. */
hk_status hk_calibration_runs_delete_unfinished(hk_store *store, const char *name, int64_t *n,
                                                hk_error *err);
/* Stores one round of a probe, a value for each load; committed on return. `seconds`: time that the
 * run has measured for so far. HK_INPUT: the run is not "measuring" or has that round already. */
hk_status hk_calibration_run_add_sample(hk_store *store, int64_t id, const char *probe,
                                        size_t round, int n_values, const double *values,
                                        double seconds, hk_error *err);
/* Adds the run's samples to a campaign (hk_campaign_add). Samples of probes that the campaign does
 * not have are ignored. */
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

/* Saves a fit under its machine's name with its calibration (see hk_profiles_document) and marks
 * the run (0: none) as done, in one transaction. HK_INPUT if the store has a profile of that name
 * and `replace` is false. */
hk_status hk_profiles_save(hk_store *store, const hk_profile_fit *fit, const hk_campaign *campaign,
                           const hk_fingerprint *f, int64_t run, bool replace, hk_error *err);
/* HK_INPUT for a name that --machine takes for a file or for a profile that ships with hocket, and
 * for one that is empty, too long or not printable. */
hk_status hk_profile_check_name(const char *name, hk_error *err);

/* Saves a profile document from a file, with its calibration if it has one. `name` receives its
 * name. */
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
 * A number that does not exist, such as an interval of too few values, is null. HK_INPUT if there
 * is no profile of that name; the error suggests the nearest. The caller owns *document. */
hk_status hk_profiles_document(hk_store *store, const char *name, cJSON **document, hk_error *err);
hk_status hk_profiles_delete(hk_store *store, const char *name, hk_error *err);

/* Reads the NAME|FILE of --machine: a file if it has a '/' or ends in ".json", else a profile that
 * ships with hocket, else one of the store. The store is opened only in the last case; a store that
 * does not exist counts as empty. */
hk_status hk_profiles_machine(const char *name_or_file, hk_machine *machine, hk_error *err);
/* The same as a document, with its "calibration" if it has one. The caller owns *document. */
hk_status hk_profiles_load_document(const char *name_or_file, cJSON **document, hk_error *err);

/* ---- Comparing two profiles ------------------------------------------------------------------ */

typedef struct {
  char key[200]; /* of a quantity; if `probe`: "PROBE", or "PROBE: LOAD" if it has several loads */
  bool probe;
  double a, b;
  double a_low, a_high, b_low, b_high; /* 95 % intervals; NAN: unknown */
  double change_pct;                   /* 100 (b - a) / |a|; infinite if a is 0 and b is not */
  bool known;                          /* both intervals are known */
  bool outside;                        /* known, and the intervals do not overlap */
} hk_profile_change;

typedef struct {
  hk_profile_change *changes; /* quantities first, then probes */
  size_t n;
  size_t compared, agreeing; /* quantities with both intervals; of them, with overlapping ones */
  char fingerprint[600];     /* differences, or which profile has none; "": equal */
} hk_profile_diff;

/* Compares two documents, calibrated or not. Lists the quantities that either has calibrated or
 * whose values differ, and the probes that both have. */
hk_status hk_profiles_diff(const cJSON *a, const cJSON *b, hk_profile_diff *diff, hk_error *err);
void hk_profile_diff_free(hk_profile_diff *diff);

#endif
