/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A campaign measures a list of probes repeatedly. Each round runs, in random order, every probe
 * whose medians are not known well enough. A probe is known well enough when half the 95 % interval
 * of each of its medians is within the target (2 % by default). The campaign ends when this holds
 * for every probe or the probe has had the most rounds, when a review after a round finds that
 * the values are good enough, or when the time budget is spent. Because a
 * round visits all open probes, a slow drift of the machine widens all intervals instead of biasing
 * a few values. */
#ifndef HK_CALIB_PROBES_CAMPAIGN_H
#define HK_CALIB_PROBES_CAMPAIGN_H

#include <signal.h>
#include <stdbool.h>

#include "calib/probes/probe.h"
#include "calib/probes/statistics.h"

/* All rounds of one probe: values[round * n_loads + load]. */
typedef struct {
  hk_probe probe;
  double *values;
  size_t rounds, room;
  hk_summary summary[HK_PROBE_LOADS];
  bool narrow; /* every load's interval is within the target */
  bool failed; /* could not run here, or data was wrong: see `failure`; its values are discarded */
  char failure[200];
} hk_series;

typedef struct {
  hk_series *series;
  size_t n;
  double seconds; /* measuring time, including that before a --resume */
  size_t noisy;   /* series that are not narrow and did not fail */
  size_t failures;
  bool interrupted;
} hk_campaign;

typedef struct {
  double target;      /* half the interval / median, such as 0.02 */
  double budget_s;    /* total measuring time */
  size_t least, most; /* rounds; least >= 6 for an interval to exist */
  hk_ns wish;         /* length of one run of a probe */
  uint64_t seed;      /* of the random order */
  /* The campaign stops after the current run if this is not 0 (a signal handler sets it). NULL:
   * never. */
  const volatile sig_atomic_t *stop;
  /* Called with the values of each round of a probe, to store them. A failure ends the campaign.
   * May be NULL. */
  hk_status (*keep)(void *context, const hk_probe *probe, size_t round, const double *values,
                    hk_error *err);
  /* Called after each complete round. The campaign ends if it sets *enough, and with its error.
   * May be NULL. */
  hk_status (*review)(void *context, bool *enough, hk_error *err);
  /* Called after every run. `share`: estimated share of the time that has passed; `left_s`:
   * estimated time left; `narrow` of `n` probes are known well enough. May be NULL. */
  void (*progress)(void *context, const char *probe, double share, double left_s, size_t narrow,
                   size_t n);
  void *context;
  /* Runs a probe once: hk_stand_run, or a test's function. */
  hk_status (*run)(void *stand, const hk_probe *probe, hk_ns wish, bool verify, double *values,
                   hk_error *err);
  void *stand;
  hk_ns (*clock)(void *stand); /* NULL: CLOCK_MONOTONIC; tests have clocks that do not wait */
} hk_campaign_options;

/* An empty campaign of these probes (copied). Free with hk_campaign_free, safe on a zeroed one. */
hk_status hk_campaign_open(const hk_probe *probes, size_t n, hk_campaign *campaign, hk_error *err);
void hk_campaign_free(hk_campaign *campaign);
/* Adds a round that was measured earlier (--resume), in the order of rounds. HK_INPUT: unknown
 * probe or bad values. */
hk_status hk_campaign_add(hk_campaign *campaign, const char *probe, const double *values,
                          int n_values, hk_error *err);
/* Continues to measure. HK_OK also if it was stopped or the budget was spent: see `noisy`,
 * `failures` and `interrupted`. A probe whose data was wrong (HK_NO) or that cannot run here
 * (HK_INPUT) is marked failed and left out. A lost device or a full disk (HK_ENVIRONMENT) ends the
 * campaign with that error; values so far are kept. */
hk_status hk_campaign_run(hk_campaign *campaign, const hk_campaign_options *options, hk_error *err);
/* NULL if the campaign has no such probe. */
const hk_series *hk_campaign_find(const hk_campaign *campaign, const char *probe);

#endif
