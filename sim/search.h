/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Local search among plans that no policy makes: any route for each subgroup, piece and buffers;
 * with an overlap, which subgroups run ahead. Plans with an overlap are compared, and reserve
 * memory, as in overlap.h. Buffers and pieces end as in the plan that it starts from, unless they
 * gain 0.5 %.
 *
 * The first rounds turn one knob after the other, by less each time that it gains nothing: where
 * resident subgroups are, how many subgroups are resident, staged, or run ahead, buffers, pieces.
 * They find most of the gain in some 20 rounds, whatever the seed. Later rounds change plans at
 * random.
 *
 * A changed plan that is as before, or whose memory before the first operation says that it does
 * not fit, is not simulated. Where GPU memory lacks, fewer buffers, smaller pieces or fewer staged
 * subgroups make room first.
 *
 * Each round simulates a batch of changed plans in parallel and goes on from the best if it is not
 * slower. Batches depend on the seed and the number of the round alone, so the same seed goes the
 * same way at any number of threads; the time given ends it at a round. */
#ifndef HK_SIM_SEARCH_H
#define HK_SIM_SEARCH_H

#include <signal.h>

#include "sim/certificate.h"

typedef struct {
  int64_t evaluated; /* simulated schedules */
  double seconds;
  hk_ns iteration_ns; /* the best so far; with clip_share the mean */
  double gap;         /* to the certified bound; of the best so far */
} hk_search_progress;

typedef struct {
  double seconds;    /* at most, about */
  int64_t rounds;    /* at most; 0: any number */
  double operations; /* simulated, at most, about; 0: any number */
  double patience;   /* of these, most after the last gain of 0.05 %; 0: any number */
  double enough;     /* gap to the certified bound at which it ends, or does not begin; 0: 0.01 % */
  uint64_t seed;
  double clip_share;                                                   /* as in hk_plan_settings */
  const hk_bytes *gpu_memory;                                          /* likewise */
  void (*progress)(void *context, const hk_search_progress *progress); /* NULL: none */
  void *context;
  const volatile sig_atomic_t *stop; /* ends the search at a round once it is set; NULL: never */
} hk_search_options;

/* Improves `start`, which fits and is of runtime hocket. *found is zeroed if nothing is faster;
 * else free it with hk_forecast_free. */
hk_status hk_search(const hk_forecast *start, const hk_machine *machine,
                    const hk_search_options *options, hk_forecast *found, hk_search_progress *end,
                    hk_error *err);

/* The same for a short time, from two seeds side by side: with each, four million simulated
 * operations, 0.2 to 1 s of one core, or two million after the last gain. Does not begin where the
 * certified bound proves that at most 1 % is left. *found is zeroed unless its mean iteration is
 * 0.8 % shorter than `first`: a searched plan has no policy's name and is harder to read. It has
 * held_ns (held.h). */
hk_status hk_search_shortly(const hk_forecast *start, const hk_machine *machine, double clip_share,
                            const hk_bytes *gpu_memory, hk_ns first, hk_forecast *found,
                            hk_error *err);

#endif
