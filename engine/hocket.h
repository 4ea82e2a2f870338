/* SPDX-License-Identifier: Apache-2.0 */
/* libhocket: AdamW whose fp32 state lies in host memory, for training programs in any language.
 *
 * An engine is the optimizer of one rank. It holds fp32 master weights, momentum and variance of
 * the caller's tensors. Its plan says for each part of the model where it is updated: on the CPU,
 * or on the GPU after a copy over PCIe and back. The caller's weights and gradients lie in device
 * memory; the engine reads the gradients and writes the new weights.
 *
 *   hocket_tensor tensors[] = {{.name = "w", .numel = n, .weight = w}, ...};    (bf16 by default)
 *   hocket_group group = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
 *   hocket_engine *engine;
 *   char message[HOCKET_MESSAGE];
 *   if (hocket_create(NULL, tensors, n_tensors, &group, 1, NULL, &engine, message)) die(message);
 *   hocket_masters(engine, -1, stream, message);             (fp32 masters from the weights)
 *   for (...) {
 *     forward: before block b computes on `stream`:
 *       hocket_wait_weights(engine, b, stream, -1, message);
 *     backward: as soon as work that writes gradients has been queued on `stream`:
 *       hocket_gradients(engine, list, n, stream, message);
 *     hocket_step(engine, &options, NULL, stream, message);
 *   }
 *   hocket_destroy(engine);
 *
 * Streams: `stream` is the caller's cudaStream_t; NULL is the legacy default stream. The engine
 * reads and writes the caller's device memory after the work that was queued on `stream` before the
 * call. Where stated, work queued on `stream` later waits for the engine. No call blocks the host
 * unless that is stated. A stream must exist until the engine is destroyed. On the host backend,
 * device memory is ordinary memory, `stream` is ignored, and no call reads or writes the caller's
 * memory after it has returned, except that a step writes weights until hocket_wait_weights or
 * hocket_drain.
 *
 * Exactness: from the same gradients follow the same bits of state and weights, whatever the plan,
 * backend, overlap, number of threads and order of hand-over. hocket_step gives the formula.
 *
 * Errors: a call returns 0 for success, 1 (the answer is no: where stated), 2 (wrong input), 3 (the
 * machine failed: a device, a file, too little memory), or HOCKET_AGAIN where stated. If it returns
 * another value than 0, it writes one sentence to `message` (HOCKET_MESSAGE bytes; may be NULL). A
 * call that returns 2 has changed nothing, and the engine stays usable. After a 3 the engine may
 * have failed: then it takes no further steps, and its state can be read and saved as far as it is
 * whole. It has not failed if hocket_save, hocket_snapshot_take, hocket_checksum or hocket_record
 * lacked a file or memory.
 *
 * Threads: any thread may make any call at any time, except that hocket_destroy must be the last
 * call on its engine. Calls on one engine are carried out one after the other, in the order in
 * which they come; hocket_wait_weights and hocket_drain wait beside other calls. A forked child
 * must not use its parent's engine; calls in the child return 2.
 *
 * Ownership: the library copies what it is given, unless stated otherwise. Texts that it returns
 * are the caller's: hocket_free frees them. */
#ifndef HOCKET_H
#define HOCKET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HOCKET_ABI     10   /* raised with every incompatible change; compare with hocket_abi() */
#define HOCKET_MESSAGE 1024 /* bytes of a message, its end included */
#define HOCKET_AGAIN   4    /* the wait has timed out: call again */
#define HOCKET_API     __attribute__((visibility("default")))

typedef struct hocket_engine hocket_engine; /* the optimizer of one rank */

enum { HOCKET_BF16, HOCKET_FP16, HOCKET_FP32 }; /* element types */

/* Hyperparameters, as in torch.optim.AdamW. */
typedef struct {
  double lr, beta1, beta2, eps, weight_decay;
} hocket_group;

/* One parameter tensor. Zero-initialise. The memory at `weight` stays the caller's. */
typedef struct {
  const char
      *name;     /* for messages, and to find it in a checkpoint; NULL: messages give its number */
  int64_t numel; /* >= 1 */
  int32_t block; /* number, from 0 in forward order, of the first block of the model that uses
                    the tensor; must not decrease from one tensor to the next */
  int32_t group; /* index of its hyperparameters in `groups` */
  int32_t weight_type; /* HOCKET_BF16, _FP16 or _FP32 */
  int32_t grad_type;   /* type of its gradients, likewise */
  void *weight;        /* numel contiguous values in device memory, aligned to their size;
                          hocket_masters reads them, steps write them; NULL: none until
                          hocket_set_weight sets the address */
} hocket_tensor;

enum {
  HOCKET_OVERLAP_PLAN,    /* what the plan says; without a plan: none */
  HOCKET_OVERLAP_NONE,    /* hocket_step returns when the update is complete */
  HOCKET_OVERLAP_FORWARD, /* the update runs while the next forward computes */
  HOCKET_OVERLAP_BOTH     /* in addition, updates run during backward, before the norm is known */
};

/* What max_norm of a step limits. */
enum {
  HOCKET_CLIP_NORM, /* the norm of all gradients */
  HOCKET_CLIP_BLOCK /* the norm of each block's gradients, by itself: hocket_tensor.block. This is
                       another algorithm, with other results. The norms are known as gradients
                       arrive, so that with HOCKET_OVERLAP_BOTH updates run during backward whether
                       or not gradients are clipped */
};

/* Zero-initialise; NULL stands for all zeros. */
typedef struct {
  const char *backend; /* "cuda" or "host"; NULL: cuda where there is a device, else host */
  int32_t device;      /* number of the GPU */
  int32_t overlap;     /* HOCKET_OVERLAP_...; if it is not the plan's, the engine chooses itself
                          which updates run during backward */
  int32_t cpu_threads; /* threads of the CPU update team; 0: as planned, or without a plan the CPUs
                          that this process may use (affinity and cgroup quota) less one; with
                          HOCKET_OVERLAP_BOTH less three, or less a quarter if that is fewer, but
                          at least one */
  int32_t pin_threads; /* 1: pin each thread of the team to a core of its own */
  int32_t first_core; /* with pin_threads: number of cores to skip, so that engines of several ranks
                         use different cores */
  int64_t host_memory; /* most bytes of host memory that the engine may take; 0: what is available.
                          hocket_create returns 1 if the plan needs more than host_memory, and 3 if
                          it needs more than is available */
  int64_t gpu_memory; /* without a plan: bytes of GPU memory that the engine may take beyond what it
                         always needs; 0: none. With overlap both they hold first new weights that
                         wait for the norm (2 bytes an element); then, with any overlap, state and
                         gradients of blocks that stay on the GPU (12 bytes an element and the
                         gradient's), first blocks first */
  int32_t clip;       /* HOCKET_CLIP_..., whatever the plan says */
  /* How state is kept: "fp32" (master weights, momentum and variance in fp32: 12 bytes an element),
   * "split" (bf16 weights and 16 lower bits: the same values in 2 bytes of host memory less; all
   * weights must be bf16), "bf16" (momentum and variance in bf16, the latter rounded at random, so
   * that its expectation is exact: 8 bytes), "bf16+split", "8bit" (both in 8 bits, rounded at
   * random, in blocks of 128 elements of a tensor that share their range: 6.02 bytes),
   * "8bit+split"; NULL: as the plan says, without a plan fp32. With split and 8bit the variance may
   * not be set to a negative value or -0. Writing a part of an 8bit block may round its other
   * elements again. */
  const char *state;
  uint64_t seed; /* of the random bits; hocket_load takes the seed of the file instead */
} hocket_options;

/* Creates an engine. `plan`: path of a file written by `hocket plan -o FILE`, or the JSON text
 * itself if it begins with '{'. The plan's parameters must be as many as the tensors' elements.
 * NULL: everything is updated on the CPU, block by block, except what gpu_memory keeps on the GPU.
 * All state is 0 at first: call hocket_masters, hocket_write or hocket_load next. Blocks, for
 * seconds with large models, because host memory is allocated and pinned. *engine is NULL after a
 * failure. */
HOCKET_API int hocket_create(const char *plan, const hocket_tensor *tensors, size_t n_tensors,
                             const hocket_group *groups, size_t n_groups,
                             const hocket_options *options, hocket_engine **engine, char *message);
/* Waits for the step under way and frees the engine. NULL is allowed. */
HOCKET_API void hocket_destroy(hocket_engine *engine);

HOCKET_API const char *hocket_version(void); /* "0.2.0" */
HOCKET_API int32_t hocket_abi(void);         /* HOCKET_ABI that the library was built with */
/* Bytes of host memory that an engine created now should take at most: 15/16 of what this process
 * may still allocate, by the machine's memory and its control groups. The rest is for the
 * framework. A limit for plans; an engine that chooses itself what runs during backward (overlap
 * both, host_memory 0) keeps to it. */
HOCKET_API int64_t hocket_host_memory(void);

/* -- Weights and masters ----------------------------------------------------------------------- */

/* Sets the address of a tensor's weights (NULL: none). Blocks until no step is under way. */
HOCKET_API int hocket_set_weight(hocket_engine *engine, size_t tensor, void *weight, char *message);
/* Sets the fp32 master weights of a tensor (-1: of all tensors) to the values of its weights, which
 * is exact. Blocks until done. */
HOCKET_API int hocket_masters(hocket_engine *engine, int64_t tensor, void *stream, char *message);
/* Makes `stream` wait until the last step has written the new weights of block `block` (-1: of all
 * blocks). Blocks the host until their upload has been queued (host backend: until they have been
 * written), but at most `timeout_ms` (-1: no limit); after that it returns HOCKET_AGAIN. Returns at
 * once if no step is under way. */
HOCKET_API int hocket_wait_weights(hocket_engine *engine, int32_t block, void *stream,
                                   int32_t timeout_ms, char *message);
/* Blocks until the last step has written all state and weights, or until `timeout_ms` have passed
 * (-1: no limit); then it returns HOCKET_AGAIN. Returns 3 if that step has failed. */
HOCKET_API int hocket_drain(hocket_engine *engine, int32_t timeout_ms, char *message);

/* Bytes of device memory that the engine holds now; 0 for NULL. */
HOCKET_API int64_t hocket_gpu_bytes(hocket_engine *engine);
/* Gives back all device memory but state that is resident there, for example while a model that
 * was trained generates text. The next hocket_gradients takes it again; if there is too little
 * then, it returns 3, and may be called again when there is more. Returns 2 if tensors have
 * gradients that no step has used. Blocks until the step under way is complete. */
HOCKET_API int hocket_release_gpu(hocket_engine *engine, char *message);

/* -- Gradients --------------------------------------------------------------------------------- */

typedef struct {
  int64_t tensor;   /* its number, from 0 */
  const void *data; /* the tensor's numel values of its grad_type, contiguous, aligned to their
                       size, in device memory */
} hocket_gradient;

/* Hands over n gradients, of tensors in any order. The engine reads them on `stream`, after the
 * work that was queued on it before: memory of an allocator that is ordered by that stream may be
 * freed as soon as the call returns. The first gradient of a tensor since the last step or
 * hocket_discard is copied; each further one is added in the gradient's own type, as autograd
 * accumulates. One call for many small tensors is cheaper than one call each. Blocks until the
 * step under way is complete. With overlap both, also blocks until updates have ended that a
 * further gradient has made invalid. */
HOCKET_API int hocket_gradients(hocket_engine *engine, const hocket_gradient *list, size_t n,
                                void *stream, char *message);
/* Says that a backward has ended: gradients that still wait in device memory for others of the same
 * piece are copied to the host now, unless this iteration has further backwards and there is room
 * for their sum. Optional; hocket_step does it too. */
HOCKET_API int hocket_flush(hocket_engine *engine, char *message);
/* Says how many gradients each tensor will have in a step from the next one on: the number of
 * backwards whose gradients accumulate. 0, the default: as many as it had in the step before (in
 * the first step as many as the plan has micro-steps). A wrong number costs time and changes no
 * bit. */
HOCKET_API int hocket_expect(hocket_engine *engine, int32_t gradients, char *message);
/* Forgets the gradient of one tensor that was handed over since the last step; -1: of all tensors,
 * and the factor of hocket_scale too. With one tensor the call queues nothing and does not block;
 * with -1 it blocks until the gradients have been read. */
HOCKET_API int hocket_discard(hocket_engine *engine, int64_t tensor, char *message);
/* The next step multiplies its gradients by `factor` (> 0, finite). The last call counts; after
 * each step the factor is 1 again. The product of factor, loss scale and clipping is rounded once,
 * to fp32. */
HOCKET_API int hocket_scale(hocket_engine *engine, double factor, char *message);
/* Sum of squares of one tensor's gradient as handed over so far (-1: of all tensors), without the
 * factor of hocket_scale: computed exactly, rounded once. *nonfinite: how many values are infinite
 * or NaN; the sum leaves them out. Either pointer may be NULL. Blocks until the gradients have been
 * read. */
HOCKET_API int hocket_sum_of_squares(hocket_engine *engine, int64_t tensor, double *sum,
                                     int64_t *nonfinite, char *message);
/* The same sum in integers, for ranks that share a step. Each rank gets the words of its own
 * gradients; the caller adds them up over the ranks, word by word, as 64-bit integers (an
 * all-reduce of HOCKET_SQUARES int64), which is exact in any order; hocket_squares_value rounds the
 * total once. So the norm of any split of the elements over ranks has the bits of one process with
 * all of them. Words of up to 2^31 ranks may be added. counts[i]: 0 leaves tensor i out, because
 * another rank counts it; NULL: all tensors count. Blocks until the gradients have been read. */
#define HOCKET_SQUARES 21
HOCKET_API int hocket_squares(hocket_engine *engine, const uint8_t *counts,
                              int64_t words[HOCKET_SQUARES], char *message);
/* Sum of squares that words, or sums of words, stand for, rounded once, and the number of values
 * that are not finite. Either pointer may be NULL. Returns 2 if words are not such sums: a negative
 * one (it has overflowed), or more bits than squares can have. */
HOCKET_API int hocket_squares_value(const int64_t words[HOCKET_SQUARES], double *sum,
                                    int64_t *nonfinite, char *message);
/* held[i]: 1 if tensor i has a gradient since the last step or hocket_discard, else 0; `held` has
 * room for all tensors. Also allowed when the engine has failed. */
HOCKET_API int hocket_held(hocket_engine *engine, uint8_t *held, char *message);
/* Copies one tensor's gradient as handed over so far to host memory: numel values of its grad_type.
 * Blocks. Returns 2 if the tensor has no gradient since the last step or hocket_discard. */
HOCKET_API int hocket_read_gradient(hocket_engine *engine, size_t tensor, void *data,
                                    char *message);

/* -- Steps ------------------------------------------------------------------------------------- */

typedef struct {
  double max_norm;       /* largest norm (HOCKET_CLIP_...), gradients are scaled down to it; 0: no
                            clipping */
  double loss_scale;     /* factor by which the gradients are too large; 0 stands for 1 */
  double sum_of_squares; /* sum over all ranks (hocket_squares_value of their words); 0: this
                            rank's own; infinite or NaN: the step is skipped (give it if some rank
                            has values that are not finite, so that all ranks skip). With
                            HOCKET_CLIP_BLOCK no other value than these and 0 is allowed */
  int32_t wait;          /* 1: return when the step is complete, as after hocket_drain */
} hocket_step_options;

typedef struct {
  int64_t step;      /* number of steps that the engine has taken, this one included unless it was
                        skipped or no tensor had a gradient */
  int32_t skipped;   /* 1: some gradient was infinite or NaN; state and weights are unchanged */
  int64_t nonfinite; /* number of such values of this rank */
  int64_t tensors;   /* number of tensors that had a gradient */
  double grad_norm;  /* global norm with loss_scale and hocket_scale applied, before clipping */
  double grad_scale; /* the coefficient (below), before it is rounded to fp32; with
                        HOCKET_CLIP_BLOCK the smallest */
  int64_t ahead;     /* overlap both: elements that had been updated before the norm was known */
} hocket_step_info;

/* Takes one optimizer step with the gradients handed over since the last one. `options` and `info`
 * may be NULL. *info is written if the call returns 0. Tensors without a gradient keep their state,
 * weights and step count, as in torch. Blocks until all gradients have been read, because the norm
 * needs them. Returns while the update still runs, except with `wait` or overlap none. Forgets the
 * gradients, also if it is skipped. New weights are written after the work that was queued on
 * `stream` before the call.
 *
 * Each gradient is multiplied by
 *   coefficient = fp32(factor / loss_scale x min(1, max_norm / (norm + 1e-6)))
 * with the factor of hocket_scale and the norm in hocket_step_info.grad_norm, or, with
 * HOCKET_CLIP_BLOCK, the same norm of the tensor's block alone; then each tensor is updated by the
 * formulas of engine/adamw/adamw.h. */
HOCKET_API int hocket_step(hocket_engine *engine, const hocket_step_options *options,
                           hocket_step_info *info, void *stream, char *message);
/* Sets the hyperparameters of a group from the next step on. */
HOCKET_API int hocket_set_group(hocket_engine *engine, size_t group, const hocket_group *hyper,
                                char *message);
/* Number of steps taken, the one under way included; 0 for NULL. */
HOCKET_API int64_t hocket_step_number(const hocket_engine *engine);

/* -- State ------------------------------------------------------------------------------------- */

enum { HOCKET_P, HOCKET_M, HOCKET_V }; /* fp32 master weights, momentum, variance */

/* All calls of this section first wait for the step under way. */

/* Write or read elements offset .. offset + n - 1 of one part of a tensor's state; `data` is host
 * memory. Writing HOCKET_P does not change the weights: see hocket_weights_from_masters. */
HOCKET_API int hocket_write(hocket_engine *engine, int part, size_t tensor, int64_t offset,
                            int64_t n, const float *data, char *message);
HOCKET_API int hocket_read(hocket_engine *engine, int part, size_t tensor, int64_t offset,
                           int64_t n, float *data, char *message);
/* Writes the master weights of a tensor (-1: of all tensors), rounded to nearest even, to its
 * weights, after the work queued on `stream`. Skips tensors whose weights have no address. Blocks
 * until done. */
HOCKET_API int hocket_weights_from_masters(hocket_engine *engine, int64_t tensor, void *stream,
                                           char *message);
/* Number of steps that a tensor has taken. After a set the tensor's next step is number step + 1.
 */
HOCKET_API int hocket_get_tensor_step(hocket_engine *engine, size_t tensor, int64_t *step,
                                      char *message);
HOCKET_API int hocket_set_tensor_step(hocket_engine *engine, size_t tensor, int64_t step,
                                      char *message);
/* Save state, step counts and groups to a file, and load them. Saving leaves the complete new file,
 * or after a failure what was there before (or the new file, if only its folder could not be
 * synced: the message says so). Loading checks the whole file before it changes anything; the
 * engine may have another plan for the same tensors. If all tensors of the file and of the engine
 * have names, each of them once, they are matched by name and may come in another order; else they
 * are matched by number. Loading forgets gradients, as hocket_discard of all tensors does, and does
 * not write the weights: call hocket_weights_from_masters. */
HOCKET_API int hocket_save(hocket_engine *engine, const char *path, char *message);
HOCKET_API int hocket_load(hocket_engine *engine, const char *path, char *message);
/* A copy in host memory of what hocket_save would write: 12 bytes a parameter, and its header. It
 * belongs to no engine: the engine may step on, or be gone, while the file is written. */
typedef struct hocket_snapshot hocket_snapshot;
/* Takes one. *snapshot is the caller's (hocket_snapshot_free); it is NULL after a failure. Returns
 * 3 if there is too little memory; the engine stays usable. */
HOCKET_API int hocket_snapshot_take(hocket_engine *engine, hocket_snapshot **snapshot,
                                    char *message);
/* Writes the file that hocket_save would have written when the snapshot was taken. In any thread.
 */
HOCKET_API int hocket_snapshot_save(const hocket_snapshot *snapshot, const char *path,
                                    char *message);
/* Frees a snapshot; NULL is allowed. */
HOCKET_API void hocket_snapshot_free(hocket_snapshot *snapshot);
/* Checksum of all state: 32 hexadecimal digits and a NUL. Equal p, m and v give equal checksums,
 * whatever the plan. If all tensors have names, each of them once, their order does not matter. */
HOCKET_API int hocket_checksum(hocket_engine *engine, char hex[33], char *message);

/* -- State that the caller keeps --------------------------------------------------------------- */

/* AdamW state in the caller's host memory. */
typedef struct {
  int64_t numel;
  int32_t grad_type;    /* HOCKET_BF16, _FP16 or _FP32 */
  float *p, *m, *v;     /* master weights, momentum, variance: numel values each */
  const void *gradient; /* numel values of grad_type; no two arrays overlap */
} hocket_state;

/* One step of AdamW, number `step` of this state (from 1), in place: the bits of hocket_step
 * without clipping, whatever the number of threads. For frameworks that keep and shard the state
 * themselves, as DeepSpeed does; it needs neither an engine nor a GPU. Values that are not finite
 * are used as they are. `threads`: 0: the CPUs that this process may use less one. Returns when the
 * update is complete. Returns 3, with nothing changed, if threads cannot be started. Any thread may
 * call it, also in a forked child. */
HOCKET_API int hocket_adamw(const hocket_group *group, int64_t step, int32_t threads,
                            const hocket_state *state, char *message);

/* -- What happened ----------------------------------------------------------------------------- */

/* *text: JSON (schema hocket.engine/1): plan, `state` (the format), memory in bytes, `buffers` (of
 * `host` and `device` memory: what each part takes, in bytes), threads, notes (one a line), `sums`
 * (of the gradients of several backwards: how many gradients a tensor is expected to have in a
 * step, the GPU memory in which sums stay, how many pieces were fetched from host memory, and how
 * many of these too late to be there before their next gradient was handed over), and `last_steps`:
 * for each of the last 16 completed steps its `step` and `update_ms`, the time from when the norm
 * was known until all state and weights were in place. With overlap both, `running_ahead`: the
 * probability that the next step is clipped, the limit up to which updates run ahead, and for steps
 * in which nothing ran ahead (held), in which updates ran ahead and were kept, or were done again
 * (redone), their number and the median of their last durations, 0 for fewer than 3
 * (docs/training.md). On the host backend also `callers_kernels_ms`, processor time that calls have
 * spent on kernels that a GPU would run itself, such as the copying of gradients. *text is the
 * caller's (hocket_free); it is NULL after a failure. Returns 3 if there is not enough memory. */
HOCKET_API int hocket_report(hocket_engine *engine, char **text, char *message);
/* For the timeline: marks the start (`end` 0) or the end (1) of forward (`kind` 0), backward (1),
 * an all-gather of weights (2) or a reduce-scatter of gradients (3) of a block at this point of
 * `stream`. Does nothing unless recording. */
HOCKET_API int hocket_mark(hocket_engine *engine, int32_t kind, int32_t block, int32_t end,
                           void *stream, char *message);
/* Starts a new recording (1), or ends and discards it (0). It begins with the next step; with an
 * overlap, a step whose gradients have begun to arrive is left out. It keeps the first 2^20
 * operations and the first 2^14 marks. If memory is too short, the recording is dropped, and the
 * report's notes say so. Blocks until the step under way is complete. */
HOCKET_API int hocket_record(hocket_engine *engine, int32_t on, char *message);
/* *text: the recording so far as JSON (schema hocket.spans/1): the plan, and name, lane, step,
 * start_ms and end_ms (CLOCK_MONOTONIC) of each operation and of each marked block, and
 * `clock_error_ms`, the error of a GPU's times. `hocket validate training` compares it with a
 * prediction. Blocks until the step under way is complete.
 * *text is the caller's (hocket_free); it is NULL after a failure. Returns 1 if nothing is
 * recorded, 3 if there is not enough memory. */
HOCKET_API int hocket_timeline(hocket_engine *engine, char **text, char *message);
/* Frees a text that the library has returned. NULL is allowed. */
HOCKET_API void hocket_free(char *text);

/* -- Measuring beside an update ---------------------------------------------------------------- */

/* A team of threads that updates AdamW state of its own in host memory, over and over, as the CPU
 * does in a step of an engine. Programs start one to measure what updates cost other work, such as
 * the launching of kernels. It needs neither an engine nor a GPU. */
typedef struct hocket_busy hocket_busy;

/* Starts a team, paused. `threads`: 0 stands for the default of HOCKET_OVERLAP_BOTH. `elements`: of
 * 16 bytes each; together they should be larger than the CPU's caches. Blocks while their memory is
 * allocated and set to 0. Returns 3 if there is not enough memory. *busy is NULL after a failure.
 */
HOCKET_API int hocket_busy_start(int32_t threads, int64_t elements, hocket_busy **busy,
                                 char *message);
/* Lets the team update (1) or pauses it (0). Blocks until it does so: a pause begins at the end of
 * an operation of at most 2^24 elements. Calls for one team must not overlap. */
HOCKET_API int hocket_busy_update(hocket_busy *busy, int32_t on, char *message);
/* Threads of the team; 0 for NULL. */
HOCKET_API int32_t hocket_busy_threads(const hocket_busy *busy);
/* Number of elements that have been updated so far; 0 for NULL. */
HOCKET_API int64_t hocket_busy_updated(const hocket_busy *busy);
/* Ends the team and frees it. NULL is allowed. Does nothing in a forked child. */
HOCKET_API void hocket_busy_stop(hocket_busy *busy);

#ifdef __cplusplus
}
#endif
#endif
