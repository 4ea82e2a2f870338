/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A recording of a training run (schema hocket.spans/1): what hocket_timeline of libhocket and
 * AdamW.timeline() of the Python package return. */
#ifndef HK_CALIB_VALIDATE_RECORDING_H
#define HK_CALIB_VALIDATE_RECORDING_H

#include <cjson/cJSON.h>

#include "core/graph/graph.h"

typedef struct {
  hk_op_kind kind;
  int32_t subgroup, piece; /* -1: none */
  int32_t block, micro;    /* of forward, backward and collectives: block from 0, and which of the
                              step in order of time; else -1 */
  int64_t step;
  hk_ns start, end;
  bool joined; /* hk_recorded_find has found it */
} hk_recorded_op;

typedef struct {
  hk_recorded_op *ops; /* sorted by step, kind, place in the model, and time */
  size_t n;
  int64_t grad_accum;
  int rank, ranks; /* ranks 1: not of a process group */
  char host[72];
} hk_recorded;

/* Free both, also on failure. The plan of one of several ranks is that of its shards on one GPU.
 * *plan becomes that of all ranks, on as many GPUs of one node. */
hk_status hk_recorded_read(const cJSON *root, hk_recorded *out, hk_plan *plan, hk_error *err);
void hk_recorded_free(hk_recorded *recorded);

/* Whether a kind is marked by block and not executed by the engine: forward, backward, and
 * all-gathers and reduce-scatters, which no graph of one GPU has. */
bool hk_recorded_by_block(hk_op_kind kind);

/* The recorded operation that `op` of an iteration's graph stands for, in this step, or NULL. */
const hk_recorded_op *hk_recorded_find(const hk_recorded *recorded, const hk_op *op, int64_t step);
/* End of a step's iteration: of its backward, or with `overlapped` false of its last operation. -1:
 * not recorded. */
hk_ns hk_recorded_end(const hk_recorded *recorded, int64_t step, bool overlapped);
/* Lengths of the iterations with backward passes, from the recorded end of the step before to the
 * recorded end of the step; HK_INPUT: none. The caller frees *periods and *steps, also on failure.
 */
hk_status hk_recorded_periods(const hk_recorded *recorded, bool overlapped, hk_ns **periods,
                              int64_t **steps, size_t *n, hk_error *err);
/* Median duration of a block's passes of this kind, in milliseconds; 0: none is recorded. */
hk_status hk_recorded_block_ms(const hk_recorded *recorded, hk_op_kind kind, int32_t block,
                               double *ms, hk_error *err);

#endif
