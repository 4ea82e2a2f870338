/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: AdamW of one rank's tensors by a plan. It expands the plan into the task graph that
 * the simulator also uses, and runs that graph on real lanes with real state, gradients and copies.
 * This is the one interface within hocket. hocket.h, the public one, wraps it: calls of the same
 * name do what its comments state. docs/training.md explains how.
 *
 * Elements are numbered 0 .. numel - 1 in the flat order of the tensors, which is that of the
 * plan's subgroups; tensors are numbered in the same order (`param`).
 *
 * An iteration is in one of three states. IDLE: no run of the graph is under way. BEGUN (only with
 * overlap): gradients arrive and are copied to the host by operations of the graph, and subgroups
 * that run ahead are updated into spare memory. STEPPED: the norm is known; updates and uploads of
 * weights run. The next gradient, a drain, or an access to state ends STEPPED: it waits until the
 * run has ended and commits the new state. An update without training is an iteration whose
 * gradients are given at once.
 *
 * Calls on one engine from several threads: see hk_engine_lock. Different engines are independent.
 * Arguments are copied. `stream`: the caller's, as in hocket.h. */
#ifndef HK_ENGINE_ENGINE_H
#define HK_ENGINE_ENGINE_H

#include "core/graph/graph.h"
#include "core/graph/timeline.h"
#include "engine/adamw/squares.h"
#include "engine/device/arena.h"
#include "engine/device/backend.h"
#include "engine/state/state.h"

typedef struct hk_engine hk_engine;

#define HK_MOST_PARAM_GROUPS 65536

typedef struct {
  const hk_backend_ops *backend; /* NULL: hk_backend_host */
  int device;
  hk_backend_options backend_options; /* memory 0 on the host backend: what the plan needs plus
                                         64 MiB */
  bool no_pin_threads;                /* do not pin the CPU team's threads */
  int first_core;                     /* see hk_team_options */
  const hk_arena *host_memory; /* registered memory that the engine borrows until it is destroyed,
                                  because allocating and pinning takes seconds; NULL: it allocates
                                  its own */
  uint64_t seed;               /* of the random bits that round v (engine/adamw/formats.h) */
} hk_engine_options;

/* Bytes of memory that an engine takes. */
typedef struct {
  hk_bytes device, host_pinned;
} hk_engine_memory;
/* Computes what an engine for this plan will take, without allocating it. */
hk_status hk_engine_measure(const hk_plan *plan, const hk_param *params, size_t n_params,
                            hk_engine_memory *memory, hk_error *err);

/* HK_INPUT: the plan is not valid, or engines do not run it: its runtime is 'deepspeed', or its
 * optimizer is predicted only. */
hk_status hk_engine_check_plan(const hk_plan *plan, hk_error *err);

/* Creates an engine for tensors whose hyperparameters are groups[param.group], with all state 0 at
 * step 0. HK_ENVIRONMENT: too little memory, or pinning is refused; the message gives sizes.
 * HK_INPUT: the tensors do not fit the plan. */
hk_status hk_engine_create(const hk_plan *plan, const hk_param *params, size_t n_params,
                           const hk_adamw *groups, size_t n_groups,
                           const hk_engine_options *options, hk_engine **engine, hk_error *err);
void hk_engine_destroy(hk_engine *engine); /* NULL is allowed */

int64_t hk_engine_numel(const hk_engine *engine);
size_t hk_engine_params(const hk_engine *engine);
/* A tensor; *begin: its first element in flat order. */
const hk_param *hk_engine_param(const hk_engine *engine, size_t param, int64_t *begin);
const hk_plan *hk_engine_plan(const hk_engine *engine);
const hk_graph *hk_engine_graph(const hk_engine *engine);
void hk_engine_device_info(const hk_engine *engine, hk_device_info *info);
/* What the engine could not get (huge pages, pinned threads) or had to drop (a recording), one a
 * line; "": nothing. */
const char *hk_engine_notes(const hk_engine *engine);
hk_engine_memory hk_engine_memory_taken(const hk_engine *engine);

/* -- Weights ----------------------------------------------------------------------------------- */

hk_status hk_engine_set_weight(hk_engine *engine, size_t param, void *weight, hk_error *err);
hk_status hk_engine_masters(hk_engine *engine, int64_t param, void *stream, hk_error *err);
hk_status hk_engine_weights_from_masters(hk_engine *engine, int64_t param, void *stream,
                                         hk_error *err);
/* *there false: the wait has timed out after timeout_ms (-1: no limit). */
hk_status hk_engine_wait_weights(hk_engine *engine, int32_t block, void *stream, int32_t timeout_ms,
                                 bool *there, hk_error *err);
hk_status hk_engine_drain(hk_engine *engine, int32_t timeout_ms, bool *there, hk_error *err);
/* Bytes of device memory that the engine holds now. */
hk_bytes hk_engine_gpu_bytes(hk_engine *engine);
hk_status hk_engine_release_gpu(hk_engine *engine, hk_error *err);

/* -- Gradients --------------------------------------------------------------------------------- */

typedef struct {
  int64_t param;
  const void *data;
} hk_gradient;

hk_status hk_engine_gradients(hk_engine *engine, const hk_gradient *list, size_t n, void *stream,
                              hk_error *err);
hk_status hk_engine_flush(hk_engine *engine, hk_error *err);
hk_status hk_engine_discard(hk_engine *engine, int64_t param, hk_error *err);
void hk_engine_held(const hk_engine *engine, uint8_t *held);
hk_status hk_engine_expect(hk_engine *engine, int32_t n, hk_error *err);
hk_status hk_engine_scale(hk_engine *engine, double factor, hk_error *err);
hk_status hk_engine_sum_of_squares(hk_engine *engine, int64_t param, hk_squares *sum,
                                   hk_error *err);
/* The same of all tensors with counts[param] != 0; NULL: of all. */
hk_status hk_engine_squares(hk_engine *engine, const uint8_t *counts, hk_squares *sum,
                            hk_error *err);
hk_status hk_engine_read_gradient(hk_engine *engine, size_t param, void *data, hk_error *err);

/* -- Steps ------------------------------------------------------------------------------------- */

typedef struct {
  double max_norm, loss_scale, sum_of_squares; /* as in hocket_step_options */
  hk_timeline *timeline; /* from hk_timeline_init with hk_engine_graph; its spans are filled; only
                            without an overlap; NULL: none */
} hk_step_options;

typedef struct {
  int64_t step; /* this and the following as in hocket_step_info */
  bool skipped;
  int64_t nonfinite, params;
  double grad_norm, grad_scale;
  int64_t ahead;
  hk_ns update; /* wall time of the update; 0 with an overlap: the update goes on after the step */
} hk_step_report;

/* After a failure (of a copy, a kernel, the device) the engine takes no further steps. Each
 * subgroup then holds either the old or the new step's complete state, and the message lists which:
 * new state is written to spare memory, which takes the place of the old when all of a subgroup has
 * arrived. The exception is state that stays on the device (route `resident`), which is updated in
 * place: it is lost with the device, and lost if the failure interrupts its update. */
hk_status hk_engine_step(hk_engine *engine, const hk_step_options *options, hk_step_report *report,
                         void *stream, hk_error *err);
/* Number of steps taken, the one under way included. */
int64_t hk_engine_step_number(const hk_engine *engine);
/* Number of the step whose state a subgroup holds, also after a failure; -1: the state is lost. */
int64_t hk_engine_subgroup_step(const hk_engine *engine, size_t subgroup);
/* HK_INPUT if values of parameter group `group` are out of range. */
hk_status hk_engine_check_group(const hk_adamw *hyper, size_t group, hk_error *err);
/* Sets the hyperparameters of one group from the next step on. */
hk_status hk_engine_set_group(hk_engine *engine, size_t group, const hk_adamw *hyper,
                              hk_error *err);
hk_status hk_engine_get_group(const hk_engine *engine, size_t group, hk_adamw *out, hk_error *err);

/* -- State ------------------------------------------------------------------------------------- */

/* Each of these calls waits for the last step, gives up what runs ahead of the next one, and
 * returns a failure of either, once. */

typedef enum {
  HK_STATE_P, /* fp32 master weights */
  HK_STATE_M, /* momentum */
  HK_STATE_V, /* variance */
} hk_state_part;

/* Write and read one part of the state of elements offset .. offset + n - 1, wherever it lies, as
 * fp32. `data` is host memory. Values are stored as the plan's format keeps them: bf16 rounds m and
 * v to nearest even; formats other than fp32 store any NaN as 0x7fc00000, and split formats refuse
 * negative values and -0 of v (HK_INPUT, nothing is changed). After a failed step writing is
 * refused; reading works where the memory is accessible and the state whole. */
hk_status hk_engine_write(hk_engine *engine, hk_state_part part, int64_t offset, int64_t n,
                          const float *data, hk_error *err);
hk_status hk_engine_read(hk_engine *engine, hk_state_part part, int64_t offset, int64_t n,
                         float *data, hk_error *err);
/* Sets the number of completed steps, of every tensor and subgroup too, after a checkpoint has been
 * loaded. */
hk_status hk_engine_set_step(hk_engine *engine, int64_t step, hk_error *err);

hk_status hk_engine_get_tensor_step(hk_engine *engine, size_t param, int64_t *step, hk_error *err);
hk_status hk_engine_set_tensor_step(hk_engine *engine, size_t param, int64_t step, hk_error *err);

/* Checksum of p, m and v as fp32 (XXH3, 128 bits, in hexadecimal).
 * Equal state gives equal checksums, whatever the plan, and whatever the order of tensors if all
 * have keys that occur once. */
hk_status hk_engine_checksum(hk_engine *engine, char hex[33], hk_error *err);

/* Checkpoints (checkpoint.c) hold all that a step depends on except the plan: state, step counts
 * and groups. They can be loaded under another plan of the same parameters. Saving writes a
 * temporary file, syncs and renames it, so that a kill at any moment leaves the old file or the new
 * one. The file has a checksum for each block and one over all; loading checks them all before it
 * changes any state. Loading forgets gradients that were given before. `progress` (NULL: none) is
 * called with bytes done and bytes in all. */
typedef void (*hk_progress)(void *arg, hk_bytes done, hk_bytes all);
hk_status hk_engine_save(hk_engine *engine, const char *path, hk_progress progress, void *arg,
                         hk_error *err);
/* A copy of all that a file of hk_engine_save holds, 12 bytes a parameter in host memory. *snapshot
 * is the caller's (hk_snapshot_free). HK_ENVIRONMENT if there is too little memory; the engine
 * stays usable. */
typedef struct hk_snapshot hk_snapshot;
hk_status hk_engine_snapshot(hk_engine *engine, hk_snapshot **snapshot, hk_error *err);
/* Writes the file. Needs no engine: any thread may call it beside steps. */
hk_status hk_snapshot_save(const hk_snapshot *snapshot, const char *path, hk_error *err);
void hk_snapshot_free(hk_snapshot *snapshot);
/* Hash of a tensor's name, never 0; see hk_param. */
uint64_t hk_checkpoint_key(const char *name);
hk_status hk_engine_load(hk_engine *engine, const char *path, hk_progress progress, void *arg,
                         hk_error *err);

/* -- What happened ----------------------------------------------------------------------------- */

/* *text: hocket.engine/1, to be freed by the caller. */
hk_status hk_engine_report(hk_engine *engine, char **text, hk_error *err);
hk_status hk_engine_record(hk_engine *engine, bool on, hk_error *err);
hk_status hk_engine_mark(hk_engine *engine, int32_t kind, int32_t block, bool end, void *stream,
                         hk_error *err);
/* *text: hocket.spans/1, to be freed by the caller. HK_NO: nothing is recorded. */
hk_status hk_engine_timeline(hk_engine *engine, char **text, hk_error *err);

/* -- Threads ----------------------------------------------------------------------------------- */

/* Calls between these two come from one thread only; other threads that lock wait meanwhile. All
 * calls that change the engine lock by themselves as far as they need it: a thread may lock several
 * times. */
void hk_engine_lock(hk_engine *engine);
void hk_engine_unlock(hk_engine *engine);
/* Put around calls on threads of the library's caller, so that their current device is restored
 * (guard and unguard of backend.h). */
hk_status hk_engine_guard(hk_engine *engine, int *previous, hk_error *err);
void hk_engine_unguard(hk_engine *engine, int previous);

#endif
