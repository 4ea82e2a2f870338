/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of training: times of the engine's operations, and of forward, backward and
 * collectives of blocks, which the caller marks. Times are CLOCK_MONOTONIC: those of all processes
 * of a host are on one clock. */
#ifndef HK_ENGINE_TRAIN_RECORDING_H
#define HK_ENGINE_TRAIN_RECORDING_H

#include "engine/train/training_private.h"

/* Most spans and marks of a recording; it keeps the first ones. */
#define HK_MOST_SPANS ((size_t)1 << 20)
#define HK_MOST_MARKS ((size_t)1 << 14)

typedef struct {
  int32_t op;
  int64_t step;
  hk_ns start, end;
} hk_kept_span;

/* What the caller marks of a block (hocket_mark). */
typedef enum {
  HK_MARK_FORWARD,
  HK_MARK_BACKWARD,
  HK_MARK_ALL_GATHER,
  HK_MARK_REDUCE_SCATTER,
  HK_MARK_COUNT
} hk_mark_kind;

/* One of these of a block. */
typedef struct {
  int32_t kind, block;
  int64_t step; /* number of the step at the end of its iteration */
  hk_event *start, *end;
  bool has_start, has_end;
} hk_mark;

struct hk_recording {
  hk_ns clock_error; /* of times of the device, see clock_align */
  hk_kept_span *spans;
  size_t n_spans, room_spans;
  hk_mark *marks;
  size_t n_marks, room_marks;
};

#endif
