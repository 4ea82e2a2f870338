/* SPDX-License-Identifier: Apache-2.0 */
/* libhocket: AdamW with its fp32 state in host memory, for training programs of any language.
 *
 * An engine is one rank's optimizer. It holds the fp32 master weights, momentum and variance of the
 * caller's tensors and updates them as its plan says: on the CPU, or on the GPU after a round trip
 * over PCIe. The caller keeps the weights in device memory and computes with them; the engine reads
 * gradients from device memory and writes new weights there.
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
 * Streams: `stream` is the caller's cudaStream_t (NULL: the legacy default stream). What a call
 * reads or writes in device memory is ordered behind the work queued on that stream, and, where
 * stated, later work on it waits for the engine. No call blocks the host unless that is stated.
 * On the host backend device memory is ordinary memory, `stream` is ignored, and every call that
 * touches the caller's memory has finished with it when it returns.
 *
 * Exactness: given the same gradients, state and weights have the same bits whatever the plan,
 * backend, overlap, number of threads and order of hand-over; see hocket_step.
 *
 * Return value: 0 for success, else 1 (the answer is no), 2 (wrong input), 3 (the machine failed),
 * or HOCKET_AGAIN where stated; except for 0, `message` (HOCKET_MESSAGE bytes, or NULL) receives
 * one sentence. A call that returns 2 has changed nothing and the engine stays usable. After 3 the
 * engine takes no more steps; state can still be read and saved where it is whole.
 *
 * Threads: calls on one engine must not overlap, except that several threads may be in
 * hocket_wait_weights and hocket_gradients at once. A forked child must not use the parent's
 * engine: calls there return 2. The library keeps nothing that it is given unless stated. */
#ifndef HOCKET_H
#define HOCKET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HOCKET_ABI     2 /* raised by every incompatible change; see hocket_abi */
#define HOCKET_MESSAGE 1024
#define HOCKET_AGAIN   4 /* not yet: call again */
#define HOCKET_API     __attribute__((visibility("default")))

typedef struct hocket_engine hocket_engine;

enum { HOCKET_BF16, HOCKET_FP16, HOCKET_FP32 }; /* element types */

/* Hyperparameters, as in torch.optim.AdamW. */
typedef struct {
  double lr, beta1, beta2, eps, weight_decay;
} hocket_group;

/* One parameter tensor. Zero-initialise; copied, except for the memory at `weight`. */
typedef struct {
  const char *name; /* for messages, and to find it in a checkpoint; NULL: its number */
  int64_t numel;    /* >= 1 */
  int32_t block;    /* number of the block of the model that uses it first, in forward order, from
                       0; must not decrease from one tensor to the next */
  int32_t group;    /* index of its hyperparameters */
  int32_t weight_type; /* HOCKET_BF16, _FP16 or _FP32 */
  int32_t grad_type;   /* the same, of its gradients */
  void *weight;        /* numel contiguous values in device memory, the caller's, read by
                          hocket_masters and written by steps; NULL: set later */
} hocket_tensor;

enum {
  HOCKET_OVERLAP_PLAN,    /* what the plan says; without a plan: none */
  HOCKET_OVERLAP_NONE,    /* hocket_step updates everything and then lets the stream go on */
  HOCKET_OVERLAP_FORWARD, /* the update runs beside the next forward */
  HOCKET_OVERLAP_BOTH     /* and ahead of the norm, beside backward */
};

/* Zero-initialise; NULL stands for all zeros. */
typedef struct {
  const char *backend; /* "cuda" or "host"; NULL: cuda where there is a device, else host */
  int32_t device;      /* number of the GPU */
  int32_t overlap;     /* HOCKET_OVERLAP_... */
  int32_t cpu_threads; /* of the update team; 0: the plan's, or without one the CPUs this process
                          may use (affinity and cgroup quota) less one */
  int32_t pin_threads; /* 1: pin each member of the team to a core of its own */
  int32_t first_core;  /* skip so many cores: engines of several ranks side by side */
  int64_t host_memory; /* bytes that state and spares may take; 0: what is available. Less than
                          the plan needs: hocket_create returns 1 */
  int64_t gpu_memory;  /* without a plan: bytes of GPU memory that new weights which wait for the
                          norm  (overlap both, 2 an element) and then fp32 state (12 an element and
                          its  gradient, shallow blocks first) may take; 0: none */
} hocket_options;

/* `plan`: a file written by `hocket plan -o FILE`, or the JSON text itself when it begins with
 * '{'; its subgroups must add up to the tensors' elements. NULL: everything is updated on the CPU,
 * block by block. State starts as zeros: call hocket_masters, or write or load state. */
HOCKET_API int hocket_create(const char *plan, const hocket_tensor *tensors, size_t n_tensors,
                             const hocket_group *groups, size_t n_groups,
                             const hocket_options *options, hocket_engine **engine, char *message);
HOCKET_API void hocket_destroy(hocket_engine *engine); /* drains first; NULL is fine */

HOCKET_API const char *hocket_version(void); /* "0.2.0" */
/* Bytes of host memory that an engine made now would take at most: 15/16 of what this process may
 * still have by the machine's memory and its control groups. The rest is the framework's. */
HOCKET_API int64_t hocket_host_memory(void);
HOCKET_API int32_t hocket_abi(void);         /* HOCKET_ABI of the library */

/* -- Weights and masters ----------------------------------------------------------------------- */

/* The tensor's weights are at `weight` from now on. Waits until no step is under way. */
HOCKET_API int hocket_set_weight(hocket_engine *engine, size_t tensor, void *weight, char *message);
/* Master weights from the tensor's weights (-1: of all tensors), exactly; blocks until done. */
HOCKET_API int hocket_masters(hocket_engine *engine, int64_t tensor, void *stream, char *message);
/* Makes `stream` wait until the last step's new weights of block `block` (-1: of all blocks) are
 * there. Blocks the host until the upload has been queued, at most `timeout_ms` (-1: no limit):
 * HOCKET_AGAIN then. Returns at once where nothing is pending. */
HOCKET_API int hocket_wait_weights(hocket_engine *engine, int32_t block, void *stream,
                                   int32_t timeout_ms, char *message);
/* Blocks until the last step is complete, state and weights, or `timeout_ms` have passed
 * (HOCKET_AGAIN). Reports a failure of that step. */
HOCKET_API int hocket_drain(hocket_engine *engine, int32_t timeout_ms, char *message);

/* -- Gradients --------------------------------------------------------------------------------- */

typedef struct {
  int64_t tensor;
  const void *data; /* the tensor's numel values of its grad_type, contiguous, device memory */
} hocket_gradient;

/* Hands over n gradients. They are read behind the work queued on `stream`; memory from a
 * stream-ordered allocator of that stream may be freed as soon as the call returns. A tensor's
 * first gradient since the last step, or hocket_discard, replaces; every further one is added in
 * the gradient's own type, as autograd accumulates. Tensors in any order and cut. */
HOCKET_API int hocket_gradients(hocket_engine *engine, const hocket_gradient *list, size_t n,
                                void *stream, char *message);
/* Says that this backward is over: what is only partly filled leaves now. Optional. */
HOCKET_API int hocket_flush(hocket_engine *engine, char *message);
/* Forgets the gradients handed over since the last step (tensor -1), or one tensor's. */
HOCKET_API int hocket_discard(hocket_engine *engine, int64_t tensor, char *message);
/* Multiplies all gradients handed over, in the step to come, by this factor; 1 after each step.
 * The product of factors, loss scale and clipping is rounded once, to fp32. */
HOCKET_API int hocket_scale(hocket_engine *engine, double factor, char *message);
/* Exact sum of squares of one tensor's gradient handed over so far (-1: of all), before
 * hocket_scale, rounded once, and how many values are not finite (they are not in the sum; either
 * may be NULL). Blocks until they have been read. */
HOCKET_API int hocket_sum_of_squares(hocket_engine *engine, int64_t tensor, double *sum,
                                     int64_t *nonfinite, char *message);
/* One tensor's gradient as handed over so far, numel values of its grad_type, to host memory;
 * blocks. 2 if it has none. */
HOCKET_API int hocket_read_gradient(hocket_engine *engine, size_t tensor, void *data,
                                    char *message);

/* -- Steps ------------------------------------------------------------------------------------- */

typedef struct {
  double max_norm;       /* clip the global norm to this; 0: no clipping */
  double loss_scale;     /* gradients are this many times too large; 0: 1 */
  double sum_of_squares; /* of all ranks' gradients; 0: of this rank's */
  int32_t wait;          /* 1: as hocket_drain at the end */
} hocket_step_options;

typedef struct {
  int64_t step;      /* steps taken by this engine, from 1 */
  int32_t skipped;   /* 1: some gradient was not finite: nothing was changed */
  int64_t nonfinite; /* how many values were not */
  int64_t tensors;   /* that had a gradient */
  double grad_norm;  /* of all gradients after loss_scale and hocket_scale, before clipping */
  double grad_scale; /* what gradients were multiplied by */
  int64_t ahead;     /* elements whose update had run ahead and was kept */
} hocket_step_info;

/* One optimizer step with the gradients handed over since the last one. `options` and `info` may be
 * NULL. Tensors without a gradient are left alone, their step count too, as in torch. Blocks until
 * backward is far enough for the norm; returns while the update runs, except with `wait` or
 * overlap none. Weights are written behind the work queued on `stream`.
 *
 * Each tensor's update is engine/adamw.h's with
 *   coefficient = fp32(factors / loss_scale x min(1, max_norm / (norm + 1e-6))). */
HOCKET_API int hocket_step(hocket_engine *engine, const hocket_step_options *options,
                           hocket_step_info *info, void *stream, char *message);
/* Hyperparameters from the next step on. */
HOCKET_API int hocket_set_group(hocket_engine *engine, size_t group, const hocket_group *hyper,
                                char *message);
HOCKET_API int64_t hocket_step_number(const hocket_engine *engine); /* steps taken */

/* -- State ------------------------------------------------------------------------------------- */

enum { HOCKET_P, HOCKET_M, HOCKET_V }; /* fp32 master weights, momentum, variance */

/* Elements offset .. offset + n - 1 of one tensor's state, from or to host memory; drains first.
 * Writing P does not touch the weights: see hocket_weights_from_masters. */
HOCKET_API int hocket_write(hocket_engine *engine, int part, size_t tensor, int64_t offset,
                            int64_t n, const float *data, char *message);
HOCKET_API int hocket_read(hocket_engine *engine, int part, size_t tensor, int64_t offset,
                           int64_t n, float *data, char *message);
/* Writes the rounded masters to the tensor's weights (-1: of all), behind `stream`; blocks. */
HOCKET_API int hocket_weights_from_masters(hocket_engine *engine, int64_t tensor, void *stream,
                                           char *message);
/* How many steps a tensor has taken; set counts its next step as step + 1. */
HOCKET_API int hocket_get_tensor_step(hocket_engine *engine, size_t tensor, int64_t *step,
                                      char *message);
HOCKET_API int hocket_set_tensor_step(hocket_engine *engine, size_t tensor, int64_t step,
                                      char *message);
/* State, steps and groups to a file and back. The file is complete or not there, and verified
 * before anything is changed. It may be loaded under another plan of the same tensors. If all
 * tensors of file and engine have names, and no two the same, tensors are matched by name and may
 * come in another order; else by number. Weights are not written: call
 * hocket_weights_from_masters. Drains first. */
HOCKET_API int hocket_save(hocket_engine *engine, const char *path, char *message);
HOCKET_API int hocket_load(hocket_engine *engine, const char *path, char *message);
/* 32 hexadecimal digits and a NUL: equal for equal p, m and v, whatever the plan.
 * Drains first. */
HOCKET_API int hocket_checksum(hocket_engine *engine, char hex[33], char *message);

/* -- What happened ----------------------------------------------------------------------------- */

/* JSON text (schema hocket.engine/1): plan, memory in bytes, threads, notes (one a line), and
 * `last_steps`: for each of the last 16 completed steps its `step` and `update_ms`, the time from
 * when the norm was known until all state and weights were in place. The text is the engine's,
 * valid until the next call of hocket_report or hocket_destroy. NULL: out of memory. */
HOCKET_API const char *hocket_report(hocket_engine *engine);
/* Marks the start or end of an external operation of the iteration (forward or backward of a
 * block) at this point of `stream`, for the timeline. `phase`: 0 forward, 1 backward. Does nothing
 * unless recording. */
HOCKET_API int hocket_mark(hocket_engine *engine, int32_t phase, int32_t block, int32_t end,
                           void *stream, char *message);
/* Records operations from the next step on (1) or no longer (0). */
HOCKET_API int hocket_record(hocket_engine *engine, int32_t on, char *message);
/* JSON text of what was recorded since (schema hocket.spans/1); valid as hocket_report's; NULL
 * when nothing is recorded or memory is short. */
HOCKET_API const char *hocket_timeline(hocket_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
