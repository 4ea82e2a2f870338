/* SPDX-License-Identifier: Apache-2.0 */
/* libhocket: the engine for programs of other languages. One engine is one rank's optimizer step
 * under a plan (made by `hocket simulate -o PLAN` or `hocket plan -o PLAN`): fp32 master weights,
 * momentum and variance wherever the plan keeps them, bf16 weights on the device.
 *
 *   hocket_engine *engine;
 *   char message[HOCKET_MESSAGE];
 *   hocket_group group = {.numel = n, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
 *   if (hocket_create("plan.json", &group, 1, NULL, &engine, message)) die(message);
 *   hocket_write(engine, HOCKET_P, 0, n, initial_weights, message);
 *   for (...) {
 *     hocket_gradients(engine, 0, n, gradients, 1, message);   (bf16, device memory)
 *     hocket_step(engine, NULL, message);
 *   }
 *   hocket_destroy(engine);
 *
 * Every call returns 0 for success, else what the command line would exit with (1 the answer is no,
 * 2 wrong input, 3 the machine refused), and leaves one sentence in `message`, which has
 * HOCKET_MESSAGE bytes or is NULL. The library keeps nothing that it is given unless said below.
 * Calls on one engine must not overlap; different engines may be used by different threads. */
#ifndef HOCKET_H
#define HOCKET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HOCKET_MESSAGE 1024
#define HOCKET_API     __attribute__((visibility("default")))

typedef struct hk_engine hocket_engine;

/* A run of parameters with AdamW hyperparameters of its own, as in torch.optim.AdamW; groups follow
 * each other in flat order and add up to the plan's parameters of one rank. */
typedef struct {
  int64_t numel;
  double lr, beta1, beta2, eps, weight_decay;
} hocket_group;

/* Zero-initialise; NULL stands for all zeros. */
typedef struct {
  const char *backend;  /* "cuda" or "host"; NULL: cuda where there is a device, else host */
  int32_t device;       /* number of the GPU */
  int32_t fp16;         /* gradients are fp16 rather than bf16 */
  double max_norm;      /* clip the global gradient norm to this; 0: no clipping */
  void *device_weights; /* bf16, 2 x numel bytes of device memory that receive the new weights and
                           stay the caller's; NULL: the engine's own, see hocket_weights */
  int32_t no_pinning;   /* leave the CPU team to the system's scheduler */
  int32_t first_core;   /* skip so many cores: engines of several ranks side by side */
} hocket_options;

/* `plan`: a file, or the JSON text itself when it begins with '{'. State starts as zeros. */
HOCKET_API int hocket_create(const char *plan, const hocket_group *groups, size_t n_groups,
                             const hocket_options *options, hocket_engine **engine, char *message);
HOCKET_API void hocket_destroy(hocket_engine *engine); /* NULL is fine */

HOCKET_API const char *hocket_version(void); /* "0.1.0" */
HOCKET_API int64_t hocket_numel(const hocket_engine *engine);
HOCKET_API int64_t hocket_step_number(const hocket_engine *engine); /* completed steps */
HOCKET_API void *hocket_weights(const hocket_engine *engine); /* device memory, the engine's */

enum {
  HOCKET_P,
  HOCKET_M,
  HOCKET_V,
  HOCKET_W
}; /* fp32 weights, momentum, variance; bf16 weights */

/* State in and out, parameters offset .. offset + n - 1; `data` is host memory (fp32; bf16 for W,
 * which cannot be written: it follows P). */
HOCKET_API int hocket_write(hocket_engine *engine, int part, int64_t offset, int64_t n,
                            const float *data, char *message);
HOCKET_API int hocket_read(hocket_engine *engine, int part, int64_t offset, int64_t n, void *data,
                           char *message);
HOCKET_API int hocket_set_group(hocket_engine *engine, size_t group, const hocket_group *hyper,
                                char *message); /* from the next step on; numel is ignored */

/* Gradients of parameters offset .. offset + n - 1, each once a step, in any order and cut. `grad`
 * is host or device memory and may be reused when the call returns. */
HOCKET_API int hocket_gradients(hocket_engine *engine, int64_t offset, int64_t n, const void *grad,
                                int on_device, char *message);

typedef struct {
  double loss_scale;     /* in: gradients are this many times too large; 0: 1 */
  double sum_of_squares; /* in: of all ranks' gradients, for the global norm (infinite
                            where some are not finite); 0: this rank's */
  int64_t step;          /* out: that was taken, from 1 */
  int32_t skipped;       /* out: gradients were not finite, nothing was touched */
  int64_t nonfinite;     /* out: how many */
  double grad_norm;      /* out: before clipping */
  double update_ms;      /* out */
} hocket_step_info;

/* One step; `info` may be NULL. After a failure every subgroup's state is whole, at the old step or
 * the new one, the message says which, and the engine takes no more steps. */
HOCKET_API int hocket_step(hocket_engine *engine, hocket_step_info *info, char *message);
/* Exact sum of squares of the gradients given so far, rounded once. */
HOCKET_API int hocket_sum_of_squares(hocket_engine *engine, double *sum, char *message);

/* State, step and groups to a file and back; the file is complete or not there, and verified before
 * anything is changed. It may be loaded under another plan of the same parameters. */
HOCKET_API int hocket_save(hocket_engine *engine, const char *path, char *message);
HOCKET_API int hocket_load(hocket_engine *engine, const char *path, char *message);

/* 32 hexadecimal digits and a NUL: equal for equal state, whatever the plan. */
HOCKET_API int hocket_checksum(hocket_engine *engine, char hex[33], char *message);

#ifdef __cplusplus
}
#endif
#endif
