/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the number of the CPU team's threads while training. It watches how long iterations take.
 * When they have become longer or shorter by more than their scatter, it tries the next larger and
 * smaller number, each in turns with the number in use, and keeps one that proves to be faster. The
 * choice changes no bit of the result. docs/training.md has the rule. */
#ifndef HK_ENGINE_TRAIN_ADAPT_H
#define HK_ENGINE_TRAIN_ADAPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/units.h"

/* Running estimate of a positive quantity: of its logarithm, mean and variance, recent values
 * weighing most. All 0 at first. */
typedef struct {
  double mean, variance;
  int64_t n;
} hk_estimate;

void hk_estimate_add(hk_estimate *estimate, double value);
double hk_estimate_value(const hk_estimate *estimate);   /* 0: no value has been added */
double hk_estimate_scatter(const hk_estimate *estimate); /* relative standard deviation */

/* A change of the number of threads that has proved to be faster. */
typedef struct {
  int64_t step; /* number of steps before it */
  int from, to;
  double gain;              /* share of the iteration's time that it saves, in turns */
  hk_ns before, now;        /* time of an iteration with `from`: when it was chosen, and now */
  double rate_before, rate; /* of the CPU team then and now, elements a second; 0: not known */
} hk_adapt_switch;

#define HK_ADAPT_LAST 3

typedef struct {
  int threads; /* for the next iteration */

  bool on;  /* false: `threads` never changes */
  int kept; /* the number in use, when no other is tried */
  int planned, most;
  double expected; /* logarithm of the predicted time, until it has been compared; 0: none */
  int kind;        /* of the iterations that count */
  int others;      /* number of the last iterations that were of other kinds */
  int pauses;      /* number of the last iterations that were far longer than usual */
  hk_estimate iteration, rate; /* with `kept`; rate: elements a second of the CPU team */

  /* While it watches. */
  double anchor;              /* logarithm of the iteration's time when `kept` was chosen */
  double anchor_rate;         /* the team's rate then */
  double last[HK_ADAPT_LAST]; /* logarithms of the times of the last iterations: a ring */
  int64_t seen;               /* iterations since the ring was emptied */
  int64_t rest, next_rest;    /* iterations until the next round of tries may begin; its length
                                    after a round in which nothing was gained */

  /* While it tries `candidate`; 0: it watches. */
  int candidate, direction;
  bool turned, gained; /* this round: the other direction has been tried; a try has succeeded */
  double level;        /* logarithm of the last time with `kept` */
  int pairs;
  double sum, squares;  /* of the pairs' differences */
  double sum_candidate; /* of the logarithms of the times with `candidate` */

  int64_t tries, switches;
  hk_adapt_switch latest; /* the last of them */
} hk_adapt;

/* The team has `threads` now and may have 1 .. most. `expected`: predicted time of an iteration; if
 * it turns out to be another, other numbers are tried at once; 0: not known. */
void hk_adapt_begin(hk_adapt *adapt, int threads, int most, hk_ns expected);
/* An iteration with adapt->threads has taken `time`, and the team updated `rate` elements a second
 * while it worked (0: it did not). `step`: number of steps so far. Iterations of different kinds
 * (hk_step_kind: clip.h; numbers of backwards) are not compared. Sets adapt->threads. */
void hk_adapt_note(hk_adapt *adapt, int64_t step, int kind, hk_ns time, double rate);
/* Writes a sentence that says what the last switch changed and why; "" before the first. `what`:
 * what takes time, "iterations" or "updates". */
void hk_adapt_reason(const hk_adapt *adapt, const char *what, char *text, size_t size);

#endif
