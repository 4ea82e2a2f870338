/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: the update phase of a plan on real hardware. It expands the plan into the same task
 * graph that the simulator runs and runs it on real lanes, with real state, gradients and copies.
 * This is the interface within hocket; hocket.h is the same for the world outside.
 *
 * An engine is one rank: the plan's subgroups in their flat order, parameters 0 .. numel - 1. Calls
 * on one engine must not overlap; different engines are independent. What is given is copied. */
#ifndef HK_ENGINE_ENGINE_H
#define HK_ENGINE_ENGINE_H

#include "core/graph.h"
#include "core/timeline.h"
#include "engine/arena.h"
#include "engine/backend.h"
#include "engine/state.h"

typedef struct hk_engine hk_engine;

/* A run of parameters with hyperparameters of its own; groups follow each other in flat order and
 * add up to the plan's parameters. They need not respect subgroups. */
typedef struct {
  int64_t numel;
  hk_adamw hyper;
} hk_param_group;

#define HK_MOST_PARAM_GROUPS 65536

typedef struct {
  const hk_backend_ops *backend; /* NULL: hk_backend_host */
  int device;
  hk_backend_options backend_options; /* memory 0 on the host backend: what the plan needs,
                                         and 64 MiB */
  hk_grad_type grad_type;             /* HK_GRAD_BF16 or HK_GRAD_FP16 */
  double max_norm;                    /* clip the global norm to this; <= 0: no clipping */
  void *device_weights;               /* bf16, device memory, 2 x numel bytes, where new weights go;
                                         NULL: the engine has its own. Stays the caller's */
  bool no_pin_threads;                /* leave the CPU team to the system's scheduler */
  int first_core;                     /* see hk_team_options */
  const hk_arena *host_memory; /* borrowed by the engine while it lives: making and pinning memory
                                  takes seconds; NULL: it makes its own */
} hk_engine_options;

/* Bytes of memory that an engine takes. */
typedef struct {
  hk_bytes device, host_pinned, host_pageable;
} hk_engine_memory;
/* Computes what an engine for this plan will take, without allocating it: a flat engine
 * (hk_engine_create), whose gradients all have options->grad_type, */
hk_status hk_engine_measure(const hk_plan *plan, const hk_engine_options *options,
                            hk_engine_memory *memory, hk_error *err);
/* or a training engine (hk_engine_create_for), whose tensors have types of their own. */
hk_status hk_engine_measure_for(const hk_plan *plan, const hk_param *params, size_t n_params,
                                hk_engine_memory *memory, hk_error *err);

/* Makes an engine with all state and weights zero and step 0. `plan` and groups are copied. Memory
 * that is not there, pinning that is refused: HK_ENVIRONMENT, with figures. Groups that do not add
 * up: HK_INPUT. */
hk_status hk_engine_create(const hk_plan *plan, const hk_param_group *groups, size_t n_groups,
                           const hk_engine_options *options, hk_engine **engine, hk_error *err);
/* The same for the tensors of a model, with hyperparameters by group: for training (training.h).
 * Such an engine has no flat array of weights and takes no hk_engine_gradients or _step. */
hk_status hk_engine_create_for(const hk_plan *plan, const hk_param *params, size_t n_params,
                               const hk_adamw *groups, size_t n_groups,
                               const hk_engine_options *options, hk_engine **engine, hk_error *err);
void hk_engine_destroy(hk_engine *engine); /* NULL is fine */

int64_t hk_engine_numel(const hk_engine *engine);
/* Around calls on threads of the caller's, whose current device stays what it is (backend.h). */
hk_status hk_engine_guard(hk_engine *engine, int *previous, hk_error *err);
void hk_engine_unguard(hk_engine *engine, int previous);
size_t hk_engine_params(const hk_engine *engine);
/* A tensor and its first element in flat order. */
const hk_param *hk_engine_param(const hk_engine *engine, size_t param, int64_t *begin);
int64_t hk_engine_step_number(const hk_engine *engine); /* completed steps */
const hk_plan *hk_engine_plan(const hk_engine *engine);
const hk_graph *hk_engine_graph(const hk_engine *engine);
void hk_engine_device_info(const hk_engine *engine, hk_device_info *info);
/* What was asked and not had (huge pages, pinned threads), one a line; "" for nothing. */
const char *hk_engine_notes(const hk_engine *engine);
hk_engine_memory hk_engine_memory_taken(const hk_engine *engine);
void *hk_engine_device_weights(const hk_engine *engine);

/* New hyperparameters of one group, from the next step on. */
hk_status hk_engine_set_group(hk_engine *engine, size_t group, const hk_adamw *hyper,
                              hk_error *err);
hk_status hk_engine_get_group(const hk_engine *engine, size_t group, hk_param_group *out,
                              hk_error *err);
size_t hk_engine_groups(const hk_engine *engine);

typedef enum {
  HK_STATE_P, /* fp32 master weights */
  HK_STATE_M, /* momentum */
  HK_STATE_V, /* variance */
  HK_STATE_W, /* bf16 weights on the device; read only */
} hk_state_part;

/* State in and out of the engine, wherever it lives: parameters offset .. offset + n - 1; `data` is
 * host memory, fp32 (bf16 for W). Writing P writes W, too. After a failed step reading still works
 * where memory can still be read and the state is whole (W may then be older than P); writing is
 * refused. */
hk_status hk_engine_write(hk_engine *engine, hk_state_part part, int64_t offset, int64_t n,
                          const float *data, hk_error *err);
hk_status hk_engine_read(hk_engine *engine, hk_state_part part, int64_t offset, int64_t n,
                         void *data, hk_error *err);
/* After a checkpoint: from which step to count on. */
hk_status hk_engine_set_step(hk_engine *engine, int64_t step, hk_error *err);

/* Gradients of parameters offset .. offset + n - 1, from host or device memory, to where the plan
 * wants them; their squares are summed on the way. Each parameter once a step, in any order and any
 * cut. Returns when `grad` may be reused; with `wait` false, for device memory, only queued: it may
 * be reused once the step has been taken. If the device fails the engine takes no more steps. */
hk_status hk_engine_gradients(hk_engine *engine, int64_t offset, int64_t n, const void *grad,
                              bool on_device, bool wait, hk_error *err);
/* Exact sum of squares of the gradients given so far (see squares.h), of which ranks add up the
 * rounded values for the global norm. */
hk_status hk_engine_squares(hk_engine *engine, hk_squares *sum, hk_error *err);

typedef struct {
  double loss_scale;     /* gradients are this many times too large; 0: 1 */
  double sum_of_squares; /* of all ranks' gradients; 0: this engine's own; not finite: some rank's
                            gradients are not */
  hk_timeline *timeline; /* NULL: not wanted; else of hk_engine_graph, made by
                            hk_timeline_init; spans are filled */
} hk_step_options;

typedef struct {
  int64_t step;      /* that was taken, from 1; unchanged when skipped */
  bool skipped;      /* gradients were not finite: nothing was touched */
  int64_t nonfinite; /* how many */
  double grad_norm;  /* before clipping */
  double grad_scale; /* what gradients were multiplied by */
  hk_ns update;      /* time of the update phase */
} hk_step_report;

/* One optimizer step with the gradients given since the last one; all parameters must have one.
 *
 * A failure (a copy, a kernel, a lost device) leaves every subgroup's state whole, at the old step
 * or at the new one, and the message says which are where; the engine then refuses further steps.
 * Write-backs go to spare memory and a subgroup moves there once all of it has arrived. Only state
 * that lives on the device (`resident`) is updated in place: it is lost when the device is, or when
 * the failure met it half way. */
hk_status hk_engine_step(hk_engine *engine, const hk_step_options *options, hk_step_report *report,
                         hk_error *err);
/* Step whose state subgroup s holds, after a failure too; -1: lost. */
int64_t hk_engine_subgroup_step(const hk_engine *engine, size_t subgroup);

/* Checksum of p, m, v and w in flat order (XXH3, 128 bits, as hex): equal for equal state, whatever
 * the plan. */
hk_status hk_engine_checksum(hk_engine *engine, char hex[33], hk_error *err);

/* Checkpoint: everything that a step depends on (state, step, groups), not the plan: it can be
 * loaded under another plan of the same parameters, and drops gradients that were given before.
 * Written aside, synced, renamed, with a checksum
 * a block and one over all; a kill at any moment leaves the old file or the new one. Loading
 * verifies everything before the first byte of state is changed. engine/checkpoint.c */
typedef void (*hk_progress)(void *arg, hk_bytes done, hk_bytes all);
hk_status hk_engine_save(hk_engine *engine, const char *path, hk_progress progress, void *arg,
                         hk_error *err);
/* A name's hash, never 0: see hk_param. */
uint64_t hk_checkpoint_key(const char *name);
hk_status hk_engine_load(hk_engine *engine, const char *path, hk_progress progress, void *arg,
                         hk_error *err);

#endif
