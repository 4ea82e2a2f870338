/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by training.c (iterations, steps, waits), training_calls.c (calls between them),
 * handover*.c (gradients), masters.c (weights) and recording.c (timelines). */
#ifndef HK_ENGINE_TRAINING_PRIVATE_H
#define HK_ENGINE_TRAINING_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/clip.h"
#include "engine/private.h"
#include "engine/training.h"

/* A stream of the caller. */
typedef struct {
  void *native;
  hk_stream *stream;
  hk_event *last; /* recorded on it whenever another stream is to wait for it */
  bool dirty;     /* gradients were gathered on it that the engine's stream has not waited for */
} hk_callers_stream;

/* Device memory for one image (handover_slots.c) from its first gradient until it has been copied
 * to the host. */
typedef struct {
  int32_t image;     /* -1: none; its last image may still be being copied to the host */
  int32_t stream;    /* index of the caller's stream that wrote to it last */
  hk_event *written; /* on that stream, behind the gather kernels */
  hk_event *loaded;  /* on the flush stream, behind a copy from the host */
  hk_event *left;    /* on the flush stream, behind a copy to the host */
  bool has_left;     /* `left` has been recorded */
  uint64_t age;      /* value of hk_training.clock when the slot was taken */
} hk_slot;

typedef struct {
  int32_t slot;    /* the slot that it is in; -1: none */
  int32_t op;      /* its operation GRAD_D2H in the graph; -1: none */
  bool issued;     /* that operation has been queued in this run */
  bool on_host;    /* gradients of this iteration have been copied to the host */
  int32_t missing; /* number of its segments whose tensor has not brought all expected gradients */
} hk_image_state;

/* Duration of a step's update: from when the norm was known until all state and weights were in
 * place. */
typedef struct {
  int64_t step;
  hk_ns update;
} hk_step_time;

#define HK_KEPT_TIMES 16

typedef enum { HK_IDLE, HK_BEGUN, HK_STEPPED } hk_training_state;

struct hk_training {
  pthread_mutex_t lock; /* everything below, and calls on the engine; recursive */
  pthread_rwlock_t
      waiters;       /* read: during hk_training_wait_weights and _drain; write: to end a run */
  _Atomic int state; /* hk_training_state */

  hk_callers_stream *streams;
  size_t n_streams, room_streams;
  hk_stream *flush;  /* copies gradients between slots and host */
  bool own_flush;    /* false: it is the executor's, of its FLUSH lane */
  hk_event *stepped; /* recorded on the caller's stream at each step */

  hk_slot *slots;
  int32_t n_slots;
  hk_bytes slot_bytes;
  uint64_t clock; /* counts slots taken */
  hk_image_state *images;

  int32_t *given;    /* [param] gradients since the last step, or since it was discarded */
  int32_t n_given;   /* tensors that have some */
  bool *discarded;   /* [param] its bins still hold squares of a discarded gradient */
  int32_t *giver;    /* [param] index of the caller's stream of the last of them */
  int32_t *expected; /* [param] number of gradients that the step before had */
  hk_bytes *bins_at; /* [segment] its bin set; [n_segments]: the end */
  int32_t *segments; /* [param] its first segment; [n_params]: the number of segments */
  double factor;     /* the last of hk_training_scale since the last step */

  /* What updates that run ahead assume about the step, chosen when the run begins. */
  bool hold;                                   /* nothing runs ahead in this run */
  bool violated;                               /* a gradient was discarded: assumptions are void */
  bool *assumed, *wanted;                      /* [param] takes part in the step */
  hk_adamw_step *assumed_steps, *wanted_steps; /* [param] */
  double last_scale;     /* what the next step will probably multiply by; 0: no step yet */
  double last_unclipped; /* what the last step multiplied by, without clipping */

  /* What decides whether the next step's updates run ahead. */
  hk_clip_history clip;
  hk_ns begun_at;    /* when the last run began that a first gradient has begun */
  bool tried;        /* updates of that run were to run ahead */
  hk_step_kind kind; /* how its step went; HK_STEP_KINDS: it has taken none */

  /* For each block the operations that write new weights of its tensors. */
  int32_t n_blocks;
  int32_t *block_begin; /* [n_blocks + 1] into block_ops */
  int32_t *block_ops;
  int32_t gate;     /* the graph's operation BARRIER; -1: none */
  int64_t stepping; /* number of the step under way */

  hk_ns opened_at;                   /* when the last step's updates were released */
  hk_step_time times[HK_KEPT_TIMES]; /* of the last completed steps: a ring */
  int64_t n_times;                   /* completed steps; the next one goes to n_times % KEPT */

  bool timed;                     /* the run under way is recorded */
  struct hk_recording *recording; /* NULL: nothing is recorded (recording.c) */
};

/* -- handover.c -------------------------------------------------------------------------------- */

hk_status hk_handover_open(hk_engine *e, hk_error *err);
void hk_handover_close(hk_engine *e);
/* Finds or adopts a stream of the caller's; *out is valid until the next call. */
hk_status hk_handover_stream(hk_engine *e, void *native, hk_callers_stream **out, hk_error *err);
/* Exact sum of squares of one tensor's gradient (-1: of all tensors'); waits until it is there. */
hk_status hk_handover_squares(hk_engine *e, int64_t param, hk_squares *sum, hk_error *err);
/* Forgets all gradients: counts, bins and images. */
hk_status hk_handover_reset(hk_engine *e, hk_error *err);
/* Sets all images to their state at the beginning of a run. */
void hk_handover_expect(hk_engine *e);

/* -- handover_slots.c -------------------------------------------------------------------------- */

/* Finds each image's operation and opens the slots. t->images must have been allocated. */
hk_status hk_handover_open_slots(hk_engine *e, hk_error *err);
void hk_handover_close_slots(hk_engine *e);
/* Device memory of a slot. */
char *hk_handover_slot_memory(const hk_engine *e, int32_t slot);
/* Gives the image a slot that the caller's stream of index `own` may write to, and copies earlier
 * gradients back into it. */
hk_status hk_handover_enter_slot(hk_engine *e, int32_t image, int32_t own, hk_error *err);
/* Copies the image in the slot to the host and frees the slot. With `as_operation` the copy is the
 * image's operation GRAD_D2H, unless that has been queued in this run. */
hk_status hk_handover_leave_slot(hk_engine *e, int32_t slot, bool as_operation, hk_error *err);
/* Copies every image that is in a slot to the host. With `all`, also queues the operation GRAD_D2H
 * of each other image, whether or not it has received gradients. */
hk_status hk_handover_leave(hk_engine *e, bool all, hk_error *err);
/* After hk_training_begin_again: queues again the operations that were queued in the cancelled run.
 */
hk_status hk_handover_issue_again(hk_engine *e, hk_error *err);

/* -- recording.c ------------------------------------------------------------------------------- */

/* Adds the times of the run that has just been finished to the recording. If that fails, for want
 * of memory, the recording is dropped and a note says so: a step must not fail because of it. */
void hk_recording_keep(hk_engine *e);
void hk_recording_close(hk_engine *e);

/* -- training.c -------------------------------------------------------------------------------- */

/* Called at each gradient; the first one of an iteration begins a run, if there is an overlap. */
hk_status hk_training_begin(hk_engine *e, hk_error *err);
/* Cancels the run with all that has run ahead, and begins another in which all updates wait for the
 * gate. */
hk_status hk_training_begin_again(hk_engine *e, hk_error *err);
/* Cancels the run if it is BEGUN, completes it if it is STEPPED. */
hk_status hk_training_end_run(hk_engine *e, hk_error *err);
static inline hk_training_state hk_training_state_of(const hk_engine *e) {
  return (hk_training_state)atomic_load_explicit(&e->training->state, memory_order_acquire);
}
static inline bool hk_training_is_host(const hk_engine *e) {
  return e->backend->ops == &hk_backend_host;
}

#endif