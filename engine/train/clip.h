/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the updates of the next step should run ahead of the norm. If the step is then clipped,
 * they have to be done again; if they wait and it is not clipped, the time beside backward was
 * wasted. The choice changes no bit of the result. */
#ifndef HK_ENGINE_TRAIN_CLIP_H
#define HK_ENGINE_TRAIN_CLIP_H

#include <stdbool.h>

#include "core/graph/plan.h"

typedef enum {
  HK_STEP_HELD,   /* nothing ran ahead */
  HK_STEP_KEPT,   /* updates ran ahead and were kept */
  HK_STEP_REDONE, /* updates ran ahead and were done again, because what they assumed was wrong */
  HK_STEP_KINDS
} hk_step_kind;

#define HK_CLIP_TIMES 7

/* What is known of the steps so far. All 0 at first. */
typedef struct {
  bool any;              /* some norm has been noted */
  double mean, variance; /* of the logarithm of the norm, recent steps weighing most */
  double most;           /* norm above which the last step would have been clipped; 0: none */
  hk_ns times[HK_STEP_KINDS][HK_CLIP_TIMES]; /* durations of the last steps of each kind: rings */
  int64_t n_times[HK_STEP_KINDS];            /* number of steps of each kind */
  hk_guess_costs planned; /* what the plan says, until enough steps have been timed; 0: nothing */
} hk_clip_history;

/* A step had this norm. `most`: the norm above which it would have been clipped; 0: it could not
 * be. */
void hk_clip_note_norm(hk_clip_history *h, double norm, double most);
/* Norms noted so far say nothing about the next one. */
void hk_clip_forget(hk_clip_history *h);
/* A step took `time`, from the first gradient to the first gradient of the next step. */
void hk_clip_note_time(hk_clip_history *h, hk_step_kind kind, hk_ns time);

/* Median duration of the last steps of a kind; 0: too few. */
hk_ns hk_clip_time(const hk_clip_history *h, hk_step_kind kind);
/* Estimated probability that the next step will be clipped. */
double hk_clip_chance(const hk_clip_history *h);
/* The probability up to which running ahead is expected to save time. */
double hk_clip_limit(const hk_clip_history *h);
/* Whether the next step's updates should run ahead. */
static inline bool hk_clip_runs_ahead(const hk_clip_history *h) {
  return hk_clip_chance(h) <= hk_clip_limit(h);
}

#endif
