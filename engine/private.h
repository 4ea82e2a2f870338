/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the engine share: engine.c makes it, actions.c does its operations, step.c
 * takes gradients and steps, access.c moves state in and out. */
#ifndef HK_ENGINE_PRIVATE_H
#define HK_ENGINE_PRIVATE_H

#include <stdatomic.h>

#include "engine/arena.h"
#include "engine/chunks.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/ranges.h"
#include "engine/state.h"

/* Device memory beside the state: where its parts begin. */
typedef struct {
  hk_bytes slabs;   /* resident state */
  hk_bytes staging; /* `buffers` pieces */
  hk_bytes grads;   /* of subgroups that the device updates */
  hk_bytes weights; /* unless the caller has them */
  hk_bytes grads32; /* DeepSpeed: fp32 copies of gradients, one subgroup or flush at a time */
  hk_bytes bins; /* hk_squares bins and the count of non-finite ones; training: one set a segment */
  hk_bytes ticket; /* number of the attempt under way */
  hk_bytes early;  /* training: weights that wait for the norm */
  hk_bytes slots;  /* training: images of gradients on their way to the host */
  hk_bytes all;
} hk_device_layout;

/* The host arena's parts, in the order in which they are taken. */
typedef struct {
  hk_bytes slabs, grads, weights, arrived, bins, ticket, all;
  hk_bytes pageable; /* beside the arena */
} hk_host_layout;

struct hk_engine {
  hk_plan plan;
  hk_graph graph;
  hk_state state;
  hk_engine_options options;
  hk_param_group *groups;
  size_t n_groups;
  hk_param *params; /* in flat order; of a flat engine, one a group */
  size_t n_params;
  int64_t *param_end;           /* flat */
  int64_t *param_step;          /* steps that each has taken */
  bool *active;                 /* [param] takes part in the step under way */
  hk_adamw_step *steps;         /* [param], for the step under way */
  hk_adamw_step *unscaled;      /* [param], flat engines: the same with scale 1, for gradients that
                                   DeepSpeed's unscale pass has multiplied before */
  struct hk_training *training; /* NULL: a flat engine (training.c) */
  int64_t step;                 /* completed */
  int64_t attempt;    /* at a step, counted from 1: unlike step numbers, never seen before */
  atomic_bool failed; /* several threads may be in calls of training */

  hk_backend *backend;
  hk_device_info info;
  const hk_cpu_kernels *kernels;
  hk_team *team;
  hk_executor *executor;
  hk_stream *stream; /* for everything outside a step */
  int32_t *buffer;   /* [op] staging buffer that it uses */

  hk_host_layout host;
  hk_arena arena;
  void *grads;               /* bf16 or fp16 (hocket), fp32 (DeepSpeed): [host_numel] */
  uint16_t *weights;         /* [host_numel]; NULL under DeepSpeed without interleaving */
  uint16_t *pageable;        /* there: [largest_cpu] */
  volatile int64_t *arrived; /* [subgroup][3]: the attempt whose write-back has arrived there */
  uint64_t *bins;            /* copy of the device's */
  int64_t *ticket;

  hk_device_layout device;
  char *memory; /* on the device */
  char *staging, *device_grads;
  uint16_t *device_weights;
  float *grads32;
  uint64_t *device_bins;
  int64_t *device_ticket;
  uint16_t *early; /* training: [state.early_numel] */
  char *slots;     /* training: [slots] images on their way */

  hk_squares squares, *thread_squares; /* [team threads] */
  hk_ranges given;                     /* parameters with a gradient for the next step */
  int64_t in_bins;                     /* values in the device's bins */
  char notes[1024];
};

/* What operations do (actions.c); arg is the engine. */
hk_status hk_engine_act(void *arg, int32_t op, hk_stream *stream, hk_error *err);
void hk_engine_join(void *arg, hk_lane_kind lane);

/* Adds a line to what hk_engine_notes returns; NULL and "" add nothing. */
void hk_engine_add_note(hk_engine *engine, const char *note);
/* After a failed step only reading is allowed. */
hk_status hk_engine_refuse_failed(const hk_engine *engine, hk_error *err);
/* The next step's gradients are to be given anew. */
hk_status hk_engine_forget_gradients(hk_engine *engine, hk_error *err);

/* -- Memory (engine_memory.c) ------------------------------------------------------------------ */

/* Computes the sizes of all parts, once plan, state layout and tensors are there. */
void hk_engine_lay_out(hk_engine *engine);
/* Sets the addresses of all parts, once host and device memory have been allocated. */
void hk_engine_place(hk_engine *engine);
/* fp32 values that fit in engine->grads32. */
int64_t hk_engine_grads32_numel(const hk_engine *engine);

/* Writes to steps[p], for each tensor p with active[p], AdamW's constants of its next step;
 * gradients are multiplied by `scale`. Other elements of `steps` are left as they are. */
void hk_engine_prepare_steps(const hk_engine *engine, const bool *active, double scale,
                             hk_adamw_step *steps);
/* The sign that write-backs of the next attempt leave when they arrive. */
hk_status hk_engine_send_ticket(hk_engine *engine, hk_error *err);
/* All of the step has been done: state moves to its new places, parameters count their steps. */
void hk_engine_commit(hk_engine *engine, int64_t step);
/* After a failure of the attempt at `step`: settles what each subgroup holds and says so in `err`.
 * `begun`: some of the step's operations may have been done. */
hk_status hk_engine_account_for_failure(hk_engine *engine, int64_t step, bool begun, hk_error *err);
/* How many parameters an operation on a subgroup is about. */
int64_t hk_engine_op_numel(const hk_engine *engine, const hk_op *op);
/* Where the gradients of a segment lie in the device's or the host's memory. */
char *hk_engine_segment_grads(const hk_engine *engine, const hk_param_segment *segment);
/* Where new weights of parameter `at` (flat, of params[param]) go; NULL: nowhere yet. */
char *hk_engine_weight_at(const hk_engine *engine, int32_t param, int64_t at);

/* -- Training (training.c) --------------------------------------------------------------------- */

/* Before memory is laid out, and when everything is there. */
hk_status hk_training_allocate(hk_engine *engine, hk_error *err);
hk_status hk_training_open(hk_engine *engine, hk_error *err);
void hk_training_close(hk_engine *engine); /* safe at any time */
/* Lanes of the graph whose operations are not the executor's. */
unsigned hk_training_external_lanes(const hk_engine *engine);
/* Memory that hand-over takes: bins (device, and a copy on the host), and slots (device). */
hk_bytes hk_training_bin_bytes(const hk_state *state, const hk_param *params);
hk_bytes hk_training_slot_bytes(const hk_state *state);
/* The operation GRAD_D2H. */
hk_status hk_training_flush_op(hk_engine *engine, int32_t op, hk_stream *stream, hk_error *err);

#endif
