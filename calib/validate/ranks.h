/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Validation of an iteration of several ranks of one host, which FSDP2 shards a model over. Each
 * rank's recording is compared with one prediction (training.h). Times of all are CLOCK_MONOTONIC
 * of the host, so that they also tell how long a rank's collectives waited for other ranks. */
#ifndef HK_CALIB_VALIDATE_RANKS_H
#define HK_CALIB_VALIDATE_RANKS_H

#include "calib/validate/training.h"

typedef struct {
  hk_training_validation validation;
  hk_ns waits; /* of the step's collectives: from when this rank reached each until the last did */
  hk_ns late;  /* end of its iteration less that of the first rank */
} hk_rank_validation;

typedef struct {
  hk_rank_validation *ranks; /* in order of ranks */
  size_t n;
} hk_ranks_validation;

/* Whether a recording is of one of several ranks. */
bool hk_recording_is_of_rank(const cJSON *recording);
/* `recordings`: of all ranks, in any order. HK_INPUT: one is missing, there twice, or of another
 * host; otherwise as hk_validate_training. Free with hk_ranks_validation_free, also on failure. */
hk_status hk_validate_ranks(cJSON *const *recordings, size_t n, const hk_model *measured,
                            const hk_machine *machine, hk_ranks_validation *out, hk_error *err);
/* Timelines of the operations of the first rank's comparison on one clock, which begins with the
 * first rank's iteration: layers[0] as predicted, layers[1 + r] as rank r recorded them. Operations
 * that a rank did not record are empty. Free each with hk_timeline_free, also on failure. */
hk_status hk_ranks_timelines(const hk_ranks_validation *v, hk_timeline *layers, hk_error *err);
void hk_ranks_validation_free(hk_ranks_validation *validation);

/* The rank whose pair differs most; `of` finds a rank's pair. */
typedef hk_pair hk_pair_finder(const hk_rank_validation *rank, int which);
size_t hk_ranks_worst(const hk_ranks_validation *v, hk_pair_finder *of, int which);

#endif
