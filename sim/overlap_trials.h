/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to the search of overlap.h: the plans that it compares. */
#ifndef HK_SIM_OVERLAP_TRIALS_H
#define HK_SIM_OVERLAP_TRIALS_H

#include "sim/overlap.h"
#include "sim/turn.h"

#define HK_MOST_TRIALS 64
#define HK_AS_GOOD     0.005 /* plans within 0.5 % of a micro-step of the fastest are as fast */

/* A point of the search. */
typedef struct {
  int resident; /* leading subgroups whose state stays on the GPU */
  int deepest;  /* the deepest subgroup that may run ahead */
  int stride;   /* one of `stride` subgroups is staged; 0: none */
  bool first;   /* ... of all that are not resident; if false, of those that wait for the norm */
  int held;     /* one of `held` that run ahead is staged in clipped steps; 0: none */
  int threads;  /* of the CPU team; 0: as in the search's start */
} hk_spec;

typedef struct {
  hk_spec spec;
  hk_plan plan;
  int twin;        /* an earlier trial with an equal plan, which is simulated instead; -1: none */
  hk_ns least;     /* hk_turn_least */
  hk_ns iteration; /* of its forecast, if it was simulated and fits */
  bool known;      /* if false, the cost is at least `cost` */
  hk_ns cost;      /* hk_overlap_judge; INT64_MAX: the plan does not fit */
  hk_bytes gpu_state;
  bool all_ahead; /* nothing on route cpu waits for the norm */
} hk_trial;

/* Subgroups that are not resident are updated by the CPU alone; or the GPU updates a share of all
 * of them; or the GPU updates a share of those that wait for the norm. */
typedef enum { HK_KIND_CPU, HK_KIND_ALL, HK_KIND_WAITING, HK_KINDS, HK_KIND_ANY } hk_kind;

typedef struct {
  const hk_machine *machine;
  const hk_plan *start; /* all on the CPU, nothing ahead */
  const hk_block_times *times;
  hk_turn turn;
  hk_bytes gpu_limit;
  double clip_share;
  int most_resident;
  bool steals; /* plans that stage nothing have buffers for stolen pieces (hk_plan_steals) */
  hk_trial trials[HK_MOST_TRIALS];
  int n;
} hk_overlap_trials;

hk_status hk_trials_plan(const hk_overlap_trials *s, hk_spec spec, hk_plan *plan, hk_error *err);
/* Adds the specs that are new and possible, while there is room. */
hk_status hk_trials_add(hk_overlap_trials *s, const hk_spec *specs, int n, hk_error *err);
/* *best: the best trial of a kind, of those within HK_AS_GOOD of the fastest; NULL: none fits.
 * Simulates those without which that is not proven. The result does not depend on the number of
 * threads. */
hk_status hk_trials_best(hk_overlap_trials *s, hk_kind kind, const hk_trial **best, hk_error *err);
/* Whether some trial of the kind has updates by the CPU that wait for the norm. */
bool hk_trials_wait(const hk_overlap_trials *s, hk_kind kind);

#endif
