/* SPDX-License-Identifier: Apache-2.0 */
/* What training.c (iterations, steps, waits), handover.c (gradients), masters.c (weights) and
 * recording.c (timelines) share. */
#ifndef HK_ENGINE_TRAINING_PRIVATE_H
#define HK_ENGINE_TRAINING_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/private.h"
#include "engine/training.h"

/* A stream of the caller. */
typedef struct {
  void *native;
  hk_stream *stream;
  hk_event *last; /* recorded on it whenever another stream is to wait for it */
  bool dirty;     /* gradients were gathered on it that the engine's stream has not waited for */
} hk_callers_stream;

/* Device memory that holds one image while its gradients arrive and until its copy to the host has
 * been made. */
typedef struct {
  int32_t image;  /* -1: none, or one that is on its way out */
  int32_t stream; /* index of the caller's stream that wrote to it last */
  hk_event *written, *loaded, *left;
  bool has_left; /* `left` has been recorded */
  uint64_t age;  /* when it was taken */
} hk_slot;

typedef struct {
  int32_t slot;    /* -1: none */
  int32_t op;      /* its GRAD_D2H in the graph; -1: none */
  bool issued;     /* that has been issued in this run */
  bool on_host;    /* gradients of this iteration have been copied to the host */
  int32_t missing; /* tensors that are expected to bring another gradient */
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
  pthread_mutex_t lock;     /* everything below, and calls on the engine */
  pthread_rwlock_t waiters; /* read: in hk_training_wait_weights; write: a run begins or ends */
  _Atomic int state;        /* hk_training_state */

  hk_callers_stream *streams;
  size_t n_streams, room_streams;
  hk_stream *flush;  /* copies of gradients, in and out */
  bool own_flush;    /* else the executor's */
  hk_event *stepped; /* on the caller's stream, at the step */

  hk_slot *slots;
  int32_t n_slots;
  hk_bytes slot_bytes;
  uint64_t clock; /* of ages */
  hk_image_state *images;

  int32_t *given;    /* [param] gradients since the last step, or since it was discarded */
  int32_t n_given;   /* tensors that have some */
  bool *discarded;   /* [param] its bins still hold squares of a discarded gradient */
  int32_t *giver;    /* [param] index of the caller's stream of the last of them */
  int32_t *expected; /* [param] as many as the step before had */
  hk_bytes *bins_at; /* [segment] its bin set; [n_segments]: the end */
  int32_t *segments; /* [param] its first segment; [n_params]: the number of segments */
  double factor;     /* of hk_training_scale */

  /* Running ahead: what was assumed when the run began. */
  bool hold;                                   /* nothing runs ahead in this run */
  bool violated;                               /* an assumption about gradients does not hold */
  bool *assumed, *wanted;                      /* [param] takes part in the step */
  hk_adamw_step *assumed_steps, *wanted_steps; /* [param] */
  double last_scale; /* what gradients were multiplied by, last time; 0: there was no step */
  bool last_clipped;
  int32_t clipped_in_a_row;

  /* Blocks: operations that bring new weights. */
  int32_t n_blocks;
  int32_t *block_begin; /* [n_blocks + 1] into block_ops */
  int32_t *block_ops;
  int32_t gate;     /* the graph's BARRIER */
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
/* The caller's stream as the backend's. */
hk_status hk_handover_stream(hk_engine *e, void *native, hk_callers_stream **out, hk_error *err);
/* Everything that is on the device leaves for the host. With `all`, every image's operation is
 * issued, whether all of it has been given or not. */
hk_status hk_handover_leave(hk_engine *e, bool all, hk_error *err);
/* In a run that has begun anew: operations that had been issued in the one before. */
hk_status hk_handover_issue_again(hk_engine *e, hk_error *err);
/* Exact sum of squares of what was given for one tensor, or with -1 for all; waits for it. */
hk_status hk_handover_squares(hk_engine *e, int64_t param, hk_squares *sum, hk_error *err);
/* Nothing has been given: counts, bins, images. */
hk_status hk_handover_reset(hk_engine *e, hk_error *err);
/* Images as at the beginning of a run. */
void hk_handover_expect(hk_engine *e);

/* -- recording.c ------------------------------------------------------------------------------- */

/* Adds the times of the run that has just been finished to the recording. If that fails, for want
 * of memory, the recording is dropped and a note says so: a step must not fail because of it. */
void hk_recording_keep(hk_engine *e);
void hk_recording_close(hk_engine *e);

/* -- training.c -------------------------------------------------------------------------------- */

/* Before the first gradient of an iteration. */
hk_status hk_training_begin(hk_engine *e, hk_error *err);
/* Gives up what has run ahead, and begins the run anew with all updates behind the gate. */
hk_status hk_training_begin_again(hk_engine *e, hk_error *err);
static inline bool hk_training_is_host(const hk_engine *e) {
  return e->backend->ops == &hk_backend_host;
}

#endif