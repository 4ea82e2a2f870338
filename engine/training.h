/* SPDX-License-Identifier: Apache-2.0 */
/* Training with an engine made by hk_engine_create_for. These functions implement the calls of
 * hocket.h with the same names, whose comments state what each does; docs/training.md explains how.
 *
 * An iteration is in one of three states. IDLE: no run of the graph is under way. BEGUN (only with
 * overlap): gradients arrive and are copied to the host by operations of the graph, and subgroups
 * that run ahead are updated into spare memory. STEPPED: the norm is known; updates and uploads of
 * weights run. The next gradient, a drain, or an access to state ends STEPPED: it waits until the
 * run has ended and commits the new state. */
#ifndef HK_ENGINE_TRAINING_H
#define HK_ENGINE_TRAINING_H

#include "engine/engine.h"

typedef struct {
  int64_t param;
  const void *data;
} hk_handed_gradient;

typedef struct {
  double max_norm, loss_scale, sum_of_squares; /* as in hocket_step_options */
  hk_timeline *timeline; /* from hk_timeline_init with hk_engine_graph; its spans are filled; only
                            without an overlap; NULL: none */
} hk_training_step_options;

typedef struct {
  int64_t step;
  bool skipped;
  int64_t nonfinite, params;
  double grad_norm, grad_scale;
  int64_t ahead;
  hk_ns update; /* wall time of the update; 0 with an overlap: the update goes on after the step */
} hk_training_step_report;

/* Calls between these two come from one thread only; other threads that lock wait meanwhile. The
 * functions below lock by themselves as far as they need it: a thread may lock several times. */
void hk_training_lock(hk_engine *engine);
void hk_training_unlock(hk_engine *engine);

hk_status hk_training_set_weight(hk_engine *engine, size_t param, void *weight, hk_error *err);
hk_status hk_training_masters(hk_engine *engine, int64_t param, void *stream, hk_error *err);
hk_status hk_training_weights_from_masters(hk_engine *engine, int64_t param, void *stream,
                                           hk_error *err);
hk_status hk_training_gradients(hk_engine *engine, const hk_handed_gradient *list, size_t n,
                                void *stream, hk_error *err);
hk_status hk_training_flush(hk_engine *engine, hk_error *err);
hk_status hk_training_discard(hk_engine *engine, int64_t param, hk_error *err);
void hk_training_held(const hk_engine *engine, uint8_t *held);
hk_status hk_training_expect(hk_engine *engine, int32_t n, hk_error *err);
hk_status hk_training_scale(hk_engine *engine, double factor, hk_error *err);
/* Sum of squares of one tensor's gradient; param -1: of all tensors. */
hk_status hk_training_squares(hk_engine *engine, int64_t param, hk_squares *sum, hk_error *err);
hk_status hk_training_read_gradient(hk_engine *engine, size_t param, void *data, hk_error *err);
hk_status hk_training_step(hk_engine *engine, const hk_training_step_options *options,
                           hk_training_step_report *report, void *stream, hk_error *err);
/* *there false: the wait has timed out after timeout_ms (-1: no limit). */
hk_status hk_training_wait_weights(hk_engine *engine, int32_t block, void *stream,
                                   int32_t timeout_ms, bool *there, hk_error *err);
hk_status hk_training_drain(hk_engine *engine, int32_t timeout_ms, bool *there, hk_error *err);
/* Call before state is read or written by the functions of engine.h: waits for the last step,
 * cancels what runs ahead of the next one, and returns a failure of either, once. */
hk_status hk_training_quiet(hk_engine *engine, hk_error *err);

/* recording.c: hocket_record, hocket_mark, hocket_timeline. */
hk_status hk_training_record(hk_engine *engine, bool on, hk_error *err);
hk_status hk_training_mark(hk_engine *engine, int32_t phase, int32_t block, bool end, void *stream,
                           hk_error *err);
/* *text: hocket.spans/1, to be freed by the caller. HK_NO: nothing is recorded. */
hk_status hk_training_timeline(hk_engine *engine, char **text, hk_error *err);

/* Number of steps taken, the one under way included. */
int64_t hk_training_step_number(const hk_engine *engine);
/* *text: hocket.engine/1, to be freed by the caller. */
hk_status hk_training_describe(hk_engine *engine, char **text, hk_error *err);

int64_t hk_training_param_step(const hk_engine *engine, size_t param);
hk_status hk_training_set_param_step(hk_engine *engine, size_t param, int64_t step, hk_error *err);

#endif
