/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the engine's files: engine.c creates and destroys engines, engine_memory.c computes
 * sizes and places, actions*.c execute operations, step.c ends steps, access/ reads and writes
 * state. */
#ifndef HK_ENGINE_PRIVATE_H
#define HK_ENGINE_PRIVATE_H

#include <stdatomic.h>

#include "engine/device/arena.h"
#include "engine/device/chunks.h"
#include "engine/engine.h"
#include "engine/run/executor.h"
#include "engine/state/state.h"

/* Sizes in bytes of the parts of the engine's device memory, in the order in which they lie. */
typedef struct {
  hk_bytes slabs;   /* resident state */
  hk_bytes staging; /* plan.buffers staging buffers of one piece each */
  hk_bytes grads;   /* gradients of subgroups that the device updates */
  hk_bytes bins;    /* bins of squares (squares.h), a set for each segment */
  hk_bytes ticket;  /* number of the attempt under way */
  hk_bytes early;   /* new weights that wait for the norm */
  hk_bytes slots;   /* gradients on their way to the host (handover_slots.c) */
  hk_bytes all;
} hk_device_layout;

/* Sizes in bytes of the parts of the host arena, in the order in which they lie. */
typedef struct {
  hk_bytes slabs, grads, weights, arrived, bins, block_bins, ticket, all;
} hk_host_layout;

struct hk_engine {
  hk_plan plan;
  hk_graph graph;
  hk_state state;
  hk_engine_options options;
  hk_adamw *groups;
  int64_t *group_numel; /* [group] elements of its tensors */
  size_t n_groups;
  hk_param *params; /* in flat order */
  size_t n_params;
  int64_t *param_end;           /* [param] its end, a place (state.h) */
  int64_t *flat_end;            /* [param] its end in flat order, without gaps */
  int64_t *param_step;          /* [param] number of steps it has taken */
  bool *active;                 /* [param] it takes part in the step under way */
  hk_adamw_step *steps;         /* [param] constants of the step under way */
  struct hk_training *training; /* training.c */
  int64_t step;                 /* number of completed steps */
  int64_t attempt;    /* number of attempts at a step; unlike step numbers it never repeats */
  atomic_bool failed; /* takes no further steps; atomic because threads share engines */

  hk_backend *backend;
  hk_device_info info;
  const hk_cpu_kernels *kernels;
  hk_team *team;
  hk_executor *executor;
  hk_stream *stream;       /* for operations outside the graph */
  int32_t *buffer;         /* [op] number of the staging buffer that it uses */
  _Atomic uint8_t *owners; /* [piece] hk_owner (owner.h); NULL: no piece can be stolen */
  _Atomic int64_t stolen;  /* parameters that the GPU owns */

  hk_host_layout host;
  hk_arena arena;
  void *grads;               /* of route cpu, by images (state.h) */
  uint16_t *weights;         /* [host_numel]; NULL: the state has the bf16 weights (split) */
  volatile int64_t *arrived; /* [subgroup, then stealable piece] last attempt whose write-back has
                                arrived */
  uint64_t *bins;            /* copy of the bins in device memory */
  uint64_t *block_bins;      /* another one, made block by block (clip_blocks.c) */
  int64_t *ticket;

  hk_device_layout device;
  char *memory; /* on the device: resident state; NULL: there is none */
  char *work;   /* on the device: the other parts; NULL: given back (device_memory.c) */
  char *staging, *device_grads;
  uint64_t *device_bins;
  int64_t *device_ticket;
  uint16_t *early; /* [state.early_numel], then slots (device.slots bytes) */
  char notes[1024];
};

/* Executes an operation of the update on a stream (actions.c), */
hk_status hk_engine_act(hk_engine *engine, int32_t op, hk_stream *stream, hk_error *err);
/* or by the CPU team (actions_cpu.c): an ADAMW_CPU with these constants ([param]). */
void hk_engine_update_on_cpu(hk_engine *engine, const hk_op *op, const hk_adamw_step *steps);

/* Adds a line to what hk_engine_notes returns; NULL and "" add nothing. */
void hk_engine_add_note(hk_engine *engine, const char *note);
/* HK_ENVIRONMENT if the engine has failed and takes no further steps. */
hk_status hk_engine_refuse_failed(const hk_engine *engine, hk_error *err);

/* -- Addresses (addresses.c) ------------------------------------------------------------------- */

/* Number of places that an operation of the graph works on: a piece of its subgroup. */
int64_t hk_engine_op_numel(const hk_engine *engine, const hk_op *op);
/* Address of a segment's gradients, in device or host memory. */
char *hk_engine_segment_grads(const hk_engine *engine, const hk_param_segment *segment);
/* Index in its tensor, which is params[param], of the element at place `at`. */
int64_t hk_engine_index_in_tensor(const hk_engine *engine, int32_t param, int64_t at);
/* Address for the new weight of the element at place `at`, which is one of params[param]; NULL: the
 * tensor has no address yet. */
char *hk_engine_weight_at(const hk_engine *engine, int32_t param, int64_t at);

/* Consecutive parameters of one segment. */
typedef struct {
  const hk_param_segment *segment;
  const hk_param *param;
  int64_t n, places; /* places: with the gap behind them */
} hk_param_run;

/* The parameters at places at .. end - 1 up to the end of the segment that place `at` is in. */
hk_param_run hk_param_run_at(const hk_engine *e, int64_t at, int64_t end);
/* Address of the gradient of the parameter at place `at` of a run. */
const char *hk_param_run_grad(const hk_engine *e, const hk_param_run *run, int64_t at);

static inline hk_state_subgroup *hk_engine_subgroup(const hk_engine *e, const hk_op *op) {
  return &e->state.subgroups[op->subgroup];
}

/* Address of the bf16 weights of the operation's parameters in the host's array. */
uint16_t *hk_engine_host_weights(const hk_engine *e, const hk_op *op);

/* -- Memory (engine_memory.c) ------------------------------------------------------------------ */

/* Computes the sizes of all parts, once plan, state layout and tensors are there. */
void hk_engine_lay_out(hk_engine *engine);
/* Sets the addresses of state and of the parts in host memory, once both have been allocated. */
void hk_engine_place(hk_engine *engine);
/* Sets the addresses of the parts in e->work. */
void hk_engine_place_work(hk_engine *engine);

/* Memory that the hand-over of gradients takes: bins (device, and a copy on the host), and slots
 * (device). */
hk_bytes hk_bin_bytes(const hk_state *state, const hk_param *params);
typedef struct {
  int32_t images; /* images of route cpu that pass through slots */
  int32_t n;      /* slots */
  hk_bytes bytes; /* of one slot: the largest image has room */
} hk_slot_layout;
hk_slot_layout hk_slots_of(const hk_plan *plan, const hk_state *state);
hk_bytes hk_slot_bytes(const hk_plan *plan, const hk_state *state); /* of all slots */

/* -- Device memory (device_memory.c) ------------------------------------------------------------
 */

/* Takes all device memory, and sets it to 0. */
hk_status hk_engine_take_device(hk_engine *engine, hk_error *err);
/* Takes what hk_engine_release_gpu has given back; does nothing if it has been taken. */
hk_status hk_engine_take_work(hk_engine *engine, hk_error *err);
void hk_engine_give_work_back(hk_engine *engine);
void hk_engine_give_device_back(hk_engine *engine); /* all of it; safe at any time */
/* Bytes of device memory that the engine holds now. */
hk_bytes hk_engine_device_bytes(const hk_engine *engine);

/* -- Steps (step.c) ---------------------------------------------------------------------------- */

/* Writes to steps[p], for each tensor p with active[p], AdamW's constants of its next step;
 * gradients are multiplied by `scale`. Other elements of `steps` are left as they are. */
void hk_engine_prepare_steps(const hk_engine *engine, const bool *active, double scale,
                             hk_adamw_step *steps);
/* Begins the next attempt: copies its number to the device, from where the write-back of each
 * subgroup copies it to `arrived`. */
hk_status hk_engine_send_ticket(hk_engine *engine, hk_error *err);
/* Commits a completed step: state moves to its new places, parameters count their steps. */
void hk_engine_commit(hk_engine *engine, int64_t step);
/* After a write or load that has failed half-way: the engine takes no further steps, and the state
 * of the subgroups with places offset .. offset + n - 1, which is a mixture, is lost. */
void hk_engine_lose_state(hk_engine *engine, int64_t offset, int64_t n);
/* Before all of the state is written part by part: sets m and v to 0, so that no block of codes has
 * the window of values that will be overwritten (read_write.c). */
hk_status hk_engine_clear_codes(hk_engine *engine, hk_error *err);
/* HK_INPUT: the engine's format does not take these values of a part (read_write.c). */
hk_status hk_engine_check_values(const hk_engine *engine, hk_state_part part, int64_t offset,
                                 int64_t n, const float *data, hk_error *err);
/* After a failure of the attempt at `step`: determines which state each subgroup holds, and adds
 * that to the message. `begun`: some of the step's operations may have run. */
hk_status hk_engine_account_for_failure(hk_engine *engine, int64_t step, bool begun, hk_error *err);

/* -- Training (training.c) --------------------------------------------------------------------- */

/* Called before memory is laid out, and when the executor is open. */
hk_status hk_training_allocate(hk_engine *engine, hk_error *err);
hk_status hk_training_open(hk_engine *engine, hk_error *err);
void hk_training_close(hk_engine *engine); /* safe at any time */
/* Before state is read or written: waits for the last step, gives up what runs ahead of the next
 * one, and returns a failure of either, once. */
hk_status hk_training_quiet(hk_engine *engine, hk_error *err);
/* Bit mask of the graph's external lanes (hk_executor_actions). */
unsigned hk_training_external_lanes(const hk_engine *engine);
/* The executor's `run` and `join` (operations.c); arg is the engine. */
hk_status hk_training_act(void *arg, int32_t op, hk_stream *stream, hk_error *err);
void hk_training_join(void *arg, hk_lane_kind lane);

/* Index into `arrived` of a piece that the GPU may take from the CPU. */
static inline int64_t hk_engine_piece_sign(const hk_engine *e, const hk_op *op) {
  return (int64_t)e->state.n_subgroups + e->state.subgroups[op->subgroup].owners_at + op->piece;
}

#endif
