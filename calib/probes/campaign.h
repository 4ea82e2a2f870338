/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A campaign measures a list of probes repeatedly. Each round runs, in random order, every probe
 * whose median is not known well enough. The campaign ends when half the 95 % interval of every
 * median is within the target (2 % by default) or when the time budget is spent. Because a round
 * visits all open probes, a slow drift of the machine widens all intervals instead of biasing a few
 * values. */
#ifndef HK_CALIB_PROBES_CAMPAIGN_H
#define HK_CALIB_PROBES_CAMPAIGN_H

#include <signal.h>
#include <stdbool.h>

#include "calib/probes/probe.h"
#include "calib/statistics.h"

/* All rounds of one probe: values[round * n_loads + load]. */
typedef struct {
  hk_probe probe;
  double *values;
  size_t rounds, room;
  hk_summary summary[HK_PROBE_LOADS];
  bool narrow; /* every load's interval is within the target */
  bool failed; /* could not be run here; `failure` says why, and no value counts */
  char failure[200];
} hk_series;

typedef struct {
  hk_series *series;
  size_t n;
  double seconds; /* spent measuring, sittings before a --resume included */
  size_t noisy;   /* series that are not narrow and did not fail */
  size_t failures;
  bool interrupted;
} hk_campaign;

typedef struct {
  double target;      /* half the interval over the median: 0.02 */
  double budget_s;    /* of measuring, in all */
  size_t least, most; /* rounds; least >= 6 for an interval to exist */
  hk_ns wish;         /* length of one run of a probe */
  uint64_t seed;      /* of the order */
  /* Set (by a signal handler) to stop after the run in hand. NULL: never. */
  const volatile sig_atomic_t *stop;
  /* Each value as soon as it is there: to be stored. A failure ends the campaign. NULL: nobody. */
  hk_status (*keep)(void *context, const hk_probe *probe, size_t round, const double *values,
                    hk_error *err);
  /* After every run. `left_s`: a guess of what is left. NULL: nobody listens. */
  void (*progress)(void *context, const char *probe, double share, double left_s, size_t narrow,
                   size_t n);
  void *context;
  /* What runs a probe once: hk_stand_run, or a test's own. */
  hk_status (*run)(void *stand, const hk_probe *probe, hk_ns wish, bool verify, double *values,
                   hk_error *err);
  void *stand;
  hk_ns (*clock)(void *stand); /* NULL: CLOCK_MONOTONIC; a test's own need not wait */
} hk_campaign_options;

/* An empty campaign of these probes (copied). Free with hk_campaign_free, safe on a zeroed one. */
hk_status hk_campaign_open(const hk_probe *probes, size_t n, hk_campaign *campaign, hk_error *err);
void hk_campaign_free(hk_campaign *campaign);
/* Adds values measured before (--resume), in order of rounds; unknown probes are HK_INPUT. */
hk_status hk_campaign_add(hk_campaign *campaign, const char *probe, const double *values,
                          int n_values, hk_error *err);
/* Measures on. HK_OK also when it was stopped or time ran out: `noisy`, `failures` and
 * `interrupted` say so. A probe whose data was wrong (HK_NO) or that cannot run here (HK_INPUT) is
 * marked failed and left out; a lost device or a full disk (HK_ENVIRONMENT) ends the campaign with
 * that error, all values so far kept. */
hk_status hk_campaign_run(hk_campaign *campaign, const hk_campaign_options *options, hk_error *err);
const hk_series *hk_campaign_find(const hk_campaign *campaign, const char *probe);

#endif
