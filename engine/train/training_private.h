/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of training. From the top, each calls those below it: training_calls.c (calls
 * between iterations), training.c (steps, waits), handover.c (gradients), handover_accumulation.c
 * (several backwards), runs.c (runs of the graph), clip_blocks.c (norms of blocks),
 * handover_slots.c (copies to the host and back), handover_squares.c (the norm), handover_streams.c
 * (the caller's streams). recording*.c: timelines. */
#ifndef HK_ENGINE_TRAIN_TRAINING_PRIVATE_H
#define HK_ENGINE_TRAIN_TRAINING_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/private.h"
#include "engine/train/clip.h"

/* A stream of the caller. */
typedef struct {
  void *native;
  hk_stream *stream;
  hk_event *last; /* recorded on it whenever another stream is to wait for it */
  bool dirty;     /* gradients were gathered on it that the engine's stream has not waited for */
  bool unflushed; /* likewise the flush stream */
  uint64_t left_at, loaded_at; /* it has waited for copies out of slots, and into slots, up to these
                                  (hk_slot) */
} hk_callers_stream;

/* Device memory for one image (handover_slots.c), from when it is fetched or brings its first
 * gradient until it has been copied to the host. */
typedef struct {
  hk_bytes at;      /* offset from e->early */
  int32_t image;    /* -1: none; its last image may still be being copied to the host */
  int32_t stream;   /* index of the caller's stream that wrote the image last; -1: none has, and
                       the host's copy is the same */
  hk_event *loaded; /* on the fetch stream, behind a copy from the host */
  hk_event *left;   /* on the flush stream, behind the last use by an image */
  uint64_t loaded_at, left_at; /* values of hk_training.n_fetched and departures then; 0: never */
} hk_slot;

/* A visit of an image begins with a gradient of one of its tensors, and ends when all have brought
 * equally many, or when backward has visited other images since. */
typedef struct {
  int32_t slot;      /* the slot that it is in; -1: none */
  int32_t home;      /* the slot that it alone uses; -1: none, it uses any of those that pass */
  int32_t left_slot; /* the slot that it was copied to the host from; valid if on_host */
  uint64_t left_at;  /* value of hk_training.departures then */
  int32_t op;        /* its operation GRAD_D2H in the graph; -1: none */
  bool issued;       /* that operation has been queued in this run */
  bool on_host;      /* gradients of this iteration have been copied to the host */
  int32_t expected;  /* most gradients that one of its tensors is expected to bring */
  int32_t missing;  /* number of its segments whose tensor has not brought all expected gradients */
  int32_t most;     /* most gradients that one of its tensors has brought */
  int32_t segments; /* number of its segments whose tensor is expected to bring some */
  int32_t behind;   /* number of these whose tensor has brought fewer than `most` */
  bool visited;     /* a visit is under way; the image is in a slot */
  int64_t touched;  /* number of the visit (hk_training.visits) that was the last to begin when the
                       image was last written */
  bool decided;     /* at the end of a visit in this iteration: */
  bool kept;        /* it stays in its slot between visits */
  int32_t before, after; /* neighbours in the order of visits; -1: none */
  int64_t turn;          /* grows along this order */
  bool passed;           /* moved behind since its last visit, as not to be visited */
} hk_image_state;

/* Clipping by block (clip_blocks.c). */
typedef struct {
  int32_t n;        /* blocks; 0: the norm of all gradients counts, other members are not used */
  int32_t *params;  /* [block] its first tensor; [n]: the number of tensors */
  int32_t *missing; /* [block] tensors that have not been given as often as expected */
  bool *counted;    /* [block] its squares have been queued for the host in this run */
  int32_t *waits;   /* [image] blocks that are not counted; its GRAD_D2H waits for them */
  double max_norm, loss_scale; /* what updates of this run that run ahead assume */
  int64_t run;                 /* counts runs */
  /* Of the CPU team's thread: */
  int64_t *known;       /* [block] run in which `steps` was computed */
  hk_adamw_step *steps; /* [param] constants for updates that run ahead */
} hk_clip_blocks;

/* Duration of a step's update: from when the norm was known until all state and weights were in
 * place. */
typedef struct {
  int64_t step;
  hk_ns update;
  int64_t stolen; /* parameters that the GPU took from the CPU team */
} hk_step_time;

#define HK_KEPT_TIMES 16

typedef enum { HK_IDLE, HK_BEGUN, HK_STEPPED } hk_training_state;

/* Squares in a tensor's bins. */
typedef enum {
  HK_BINS_ZERO,   /* none, all are zero */
  HK_BINS_STALE,  /* of a gradient that was discarded */
  HK_BINS_COUNTED /* of its gradient as it stands */
} hk_bins_state;

struct hk_training {
  pthread_mutex_t lock; /* everything below, and calls on the engine; recursive */
  pthread_rwlock_t
      waiters;       /* read: during hk_engine_wait_weights and _drain; write: to end a run */
  _Atomic int state; /* hk_training_state */

  hk_callers_stream *streams;
  size_t n_streams, room_streams;
  hk_stream *flush;  /* copies gradients from slots to the host */
  bool own_flush;    /* false: it is the executor's, of its FLUSH lane */
  hk_stream *fetch;  /* copies sums back into slots */
  hk_event *stepped; /* recorded on the caller's stream at each step */

  hk_slot *slots;  /* [n_slots], then the homes */
  int32_t n_slots; /* slots that any image without a home uses */
  int32_t n_homes;
  hk_bytes slot_bytes, home_bytes; /* of a slot that any image uses; of all homes */
  uint64_t departures;             /* number of times that an image has left its slot */
  hk_image_state *images;

  /* Sums of several backwards (handover_accumulation.c). */
  int32_t promised; /* number of gradients of a tensor in a step, as the caller says; 0: as the step
                       before had */
  int32_t rounds;   /* most gradients that a tensor is expected to bring */
  bool surprised;   /* one has brought more: how many follow is not known */
  int32_t n_open;   /* images without a home that are expected to bring more gradients */
  int32_t n_passing;              /* images of route cpu without a home */
  int32_t n_keeping, keep_credit; /* slots for images that are kept; the credit spreads them */
  int32_t first, last;            /* images without a home in the order of visits */
  int64_t turns;                  /* the turn given last */
  int64_t visits;                 /* number of visits that have begun */
  int64_t n_fetched;              /* sums fetched since the engine was made, */
  int64_t n_late; /* and those of them fetched only when the next gradient had come */

  int32_t *given;      /* [param] gradients since the last step, or since it was discarded */
  int32_t n_given;     /* tensors that have some */
  uint8_t *bins_state; /* [param] hk_bins_state */
  int32_t eager;       /* steps for which squares are summed with each gradient, because they were
                          needed before the last one that was expected; each would be a pass more */
  int32_t *giver;      /* [param] index of the caller's stream of the last of them, be it discarded;
                          -1: none since the last step */
  int32_t *expected;   /* [param] number of gradients that it will probably have in this step */
  bool *unlearnt;      /* [param] discarded since the last step: `given` says less than it had */
  hk_bytes *bins_at;   /* [segment] its bin set; [n_segments]: the end */
  int32_t *segments;   /* [param] its first segment; [n_params]: the number of segments */
  double factor;       /* the last of hk_engine_scale since the last step */

  /* What updates that run ahead assume about the step, chosen when the run begins. */
  bool hold;                                   /* nothing runs ahead in this run */
  bool violated;                               /* a gradient was discarded: assumptions are void */
  bool *assumed, *wanted;                      /* [param] takes part in the step */
  hk_adamw_step *assumed_steps, *wanted_steps; /* [param] */
  double last_scale; /* what the next step will probably multiply by; 0: no step yet */
  double last_loss_scale, last_max_norm; /* the same as a loss scale; and its limit of the norm */
  double last_unclipped;                 /* what the last step multiplied by, without clipping */

  /* What decides whether the next step's updates run ahead. */
  hk_clip_history clip;
  hk_ns begun_at;     /* when the last run began that a first gradient has begun */
  bool tried;         /* updates of that run were to run ahead */
  hk_step_kind kind;  /* how its step went; HK_STEP_KINDS: it has taken none */
  int64_t most_ahead; /* of any step: elements whose update had ended before the norm was known */

  /* For each block the operations that write new weights of its tensors. */
  int32_t n_blocks;
  int32_t *block_begin; /* [n_blocks + 1] into block_ops */
  int32_t *block_ops;
  int32_t gate;     /* the graph's operation BARRIER; -1: none */
  int64_t stepping; /* number of the step under way */

  hk_clip_blocks blocks;

  hk_ns opened_at;                   /* when the last step's updates were released */
  hk_step_time times[HK_KEPT_TIMES]; /* of the last completed steps: a ring */
  int64_t n_times;                   /* completed steps; the next one goes to n_times % KEPT */

  bool timed;                     /* the run under way is recorded */
  hk_timeline *timeline;          /* filled when the step under way is complete; NULL: none */
  hk_ns elapsed;                  /* wall time of the last run */
  struct hk_recording *recording; /* NULL: nothing is recorded (recording.c) */
};

/* -- handover_streams.c ------------------------------------------------------------------------ */

/* Finds or adopts a stream of the caller's; *out is valid until the next call. */
hk_status hk_handover_stream(hk_engine *e, void *native, hk_callers_stream **out, hk_error *err);
/* Makes the engine's stream wait for what has been gathered on the caller's streams. */
hk_status hk_handover_await_streams(hk_engine *e, hk_error *err);
/* Makes the flush stream wait for what has been gathered on a stream of the caller's. */
hk_status hk_handover_flush_behind(hk_engine *e, int32_t own, hk_error *err);

/* -- handover_squares.c ------------------------------------------------------------------------ */

/* Exact sum of the squares of segments first .. end - 1, from bins at `bins` (laid out as e->bins).
 * `given`: tensors with given[param] 0 are left out; NULL: none is. */
void hk_handover_sum(const hk_engine *e, const uint64_t *bins, int32_t first, int32_t end,
                     const int32_t *given, hk_squares *sum);
/* Exact sum of squares of one tensor's gradient (-1: of all tensors'), which must have been
 * counted; waits until it is there. */
hk_status hk_handover_squares(hk_engine *e, int64_t param, hk_squares *sum, hk_error *err);

/* -- handover.c -------------------------------------------------------------------------------- */

hk_status hk_handover_open(hk_engine *e, hk_error *err);
/* Sums the squares of one tensor's gradient (-1: of all tensors'), where none have been summed with
 * the last part that was given. */
hk_status hk_handover_count(hk_engine *e, int64_t param, hk_error *err);
void hk_handover_close(hk_engine *e);
/* Forgets all gradients: counts, bins and images. */
hk_status hk_handover_reset(hk_engine *e, hk_error *err);
/* Sets all images to their state at the beginning of an iteration. */
void hk_handover_expect(hk_engine *e);
/* After a step: expects the next one to have as many gradients of each tensor as this one had, or
 * as were promised. */
void hk_handover_learn(hk_engine *e);

/* -- handover_slots.c -------------------------------------------------------------------------- */

/* Finds each image's operation and opens the slots. t->images must have been allocated. */
hk_status hk_handover_open_slots(hk_engine *e, hk_error *err);
void hk_handover_close_slots(hk_engine *e);
/* Device memory of a slot. */
char *hk_handover_slot_memory(const hk_engine *e, int32_t slot);
/* The free slot that was left longest ago; -1: none is free. */
int32_t hk_handover_free_slot(const hk_engine *e);
/* Copies the image's sums from the host into the free slot, on the fetch stream. */
hk_status hk_handover_fetch(hk_engine *e, int32_t image, int32_t slot, hk_error *err);
/* Gives the image a free slot; `own`: index of the caller's stream that is to write it, or -1. */
void hk_handover_put_in_slot(struct hk_training *t, int32_t image, int32_t slot, int32_t own);
/* Executes the operation GRAD_D2H `op`. */
hk_status hk_training_flush_op(hk_engine *e, int32_t op, hk_stream *stream, hk_error *err);
/* How an image leaves its slot. */
typedef enum {
  HK_LEAVE_OPERATION, /* by its operation GRAD_D2H; if that has been queued in this run, by a copy
                       */
  HK_LEAVE_COPY,      /* by a copy to the host outside the graph */
  HK_LEAVE_FORGOTTEN  /* without one */
} hk_leave;
/* Frees the slot. The image is copied only if the host's copy is not the same. */
hk_status hk_handover_leave_slot(hk_engine *e, int32_t slot, hk_leave how, hk_error *err);
/* All gradients have been given: copies every image that is in a slot to the host, and queues the
 * operation GRAD_D2H of each image, whether or not it has received gradients. */
hk_status hk_handover_leave(hk_engine *e, hk_error *err);
/* If the image is whole and has been copied to the host: queues its operation GRAD_D2H, unless that
 * has been queued in this run. */
hk_status hk_handover_queue_left(hk_engine *e, int32_t image, hk_error *err);
/* After hk_training_begin_again: queues again the operations that were queued in the cancelled run.
 */
hk_status hk_handover_issue_again(hk_engine *e, hk_error *err);

/* -- clip_blocks.c ----------------------------------------------------------------------------- */

/* Do nothing unless gradients are clipped by block. */
hk_status hk_clip_blocks_open(hk_engine *e, hk_error *err);
void hk_clip_blocks_close(hk_engine *e);
/* Sets all blocks to their state at the beginning of a run. */
void hk_clip_blocks_expect(hk_engine *e);
/* A run begins in which updates may run ahead. They assume this limit and loss scale. */
void hk_clip_blocks_assume(hk_engine *e, double max_norm, double loss_scale);
/* The tensor has been given as often as expected; all gradients so far have been gathered. */
hk_status hk_clip_blocks_given(hk_engine *e, int32_t param, hk_error *err);
/* Whether the tensor is the last that its block waits for. */
static inline bool hk_clip_blocks_lacks_one(const hk_engine *e, int32_t param) {
  const hk_clip_blocks *c = &e->training->blocks;
  return c->n > 0 && c->missing[e->params[param].block] == 1;
}
/* Its gradient has been discarded, after it had been given as often as expected. */
void hk_clip_blocks_forget(hk_engine *e, int32_t param);
/* Before the step: counts the blocks that are left. */
hk_status hk_clip_blocks_end(hk_engine *e, hk_error *err);
/* Whether updates of this run compute their own coefficients. */
static inline bool hk_clip_blocks_run_ahead(const hk_engine *e) {
  const struct hk_training *t = e->training;
  return t->blocks.n > 0 && e->plan.overlap == HK_OVERLAP_BOTH && !t->hold;
}
/* Whether the image's operation GRAD_D2H must not be queued yet. */
static inline bool hk_clip_blocks_wait(const hk_engine *e, int32_t image) {
  return hk_clip_blocks_run_ahead(e) && e->training->blocks.waits[image] > 0;
}
/* Whether the squares of the tensor's block are on the host, or are being copied there on the flush
 * stream, be the run given up or not. */
static inline bool hk_clip_blocks_counted(const hk_engine *e, int32_t param) {
  const hk_clip_blocks *c = &e->training->blocks;
  return c->n > 0 && c->counted[e->params[param].block];
}
/* The constants, by tensor, for the operation ADAMW_CPU `op`. For the CPU team's thread. */
const hk_adamw_step *hk_engine_cpu_steps(hk_engine *e, const hk_op *op);
/* Sets the coefficient of each tensor's block in steps[param].scale, from e->bins, and *least to
 * the smallest if that is smaller. False: updates that ran ahead have assumed another max_norm or
 * loss_scale. */
bool hk_clip_blocks_choose(hk_engine *e, double max_norm, double loss_scale, hk_adamw_step *steps,
                           double *least);

/* -- handover_accumulation.c ------------------------------------------------------------------- */

/* Puts the images in the order of a backward through deep blocks first. */
void hk_handover_order_images(hk_engine *e);
/* A new iteration: nothing has been visited, and images expect what they say. */
void hk_handover_reset_visits(hk_engine *e);
/* Whether the image will probably get more gradients than it has. */
bool hk_handover_expects_more(const struct hk_training *t, const hk_image_state *image);
/* A segment is going to be gathered into the image, which is in a slot: begins a visit unless one
 * is under way. Then images may leave that were written before the last hk_handover_linger() visits
 * began, so these must have been launched. `again`: another tensor has brought its gradient of this
 * backward into the image, so this goes on with a visit that ended too early. The image's turn is
 * then behind all that are still to come, and says nothing of them. */
hk_status hk_handover_visit(hk_engine *e, int32_t image, bool again, hk_error *err);
/* An image in which some tensor has no gradient is left when more than so many visits have begun
 * since it was written. */
int64_t hk_handover_linger(const struct hk_training *t);
/* Ends a visit. The image stays in its slot if it is one of those that are kept, or if it expects
 * no more gradients. */
hk_status hk_handover_end_visit(hk_engine *e, int32_t image, hk_error *err);
/* Ends all visits: backward is over. */
hk_status hk_handover_end_visits(hk_engine *e, hk_error *err);
/* Fetches the sums that backward will need next into free slots. */
hk_status hk_handover_prefetch(hk_engine *e, hk_error *err);
/* The slot, not a home, whose image can leave at the least cost. */
int32_t hk_handover_victim(const hk_engine *e);

/* -- recording.c ------------------------------------------------------------------------------- */

/* Adds the times of the run that has just been finished to the recording. If that fails, for want
 * of memory, the recording is dropped and a note says so: a step must not fail because of it. */
void hk_recording_keep(hk_engine *e);
void hk_recording_close(hk_engine *e);

/* -- runs.c ------------------------------------------------------------------------------------ */

/* Called at each gradient; the first one of an iteration begins a run, if there is an overlap. */
hk_status hk_training_begin(hk_engine *e, hk_error *err);
/* Cancels the run with all that has run ahead, and begins another in which all updates wait for the
 * gate. */
hk_status hk_training_begin_again(hk_engine *e, hk_error *err);
/* Begins a run: of the whole graph, or with `hold` of what needs no norm. */
hk_status hk_training_begin_run(hk_engine *e, bool hold, hk_error *err);
/* Waits for the end of the step under way and commits its state, or accounts for its failure. The
 * caller holds t->lock only. */
hk_status hk_training_settle(hk_engine *e, hk_error *err);
/* Cancels the run if it is BEGUN, completes it if it is STEPPED. */
hk_status hk_training_end_run(hk_engine *e, hk_error *err);
static inline bool hk_training_overlaps(const hk_engine *e) {
  return e->plan.overlap != HK_OVERLAP_NONE;
}
static inline void hk_training_set_state(hk_engine *e, hk_training_state state) {
  atomic_store_explicit(&e->training->state, (int)state, memory_order_release);
}
static inline hk_training_state hk_training_state_of(const hk_engine *e) {
  return (hk_training_state)atomic_load_explicit(&e->training->state, memory_order_acquire);
}
static inline bool hk_training_is_host(const hk_engine *e) {
  return e->backend->ops == &hk_backend_host;
}

#endif