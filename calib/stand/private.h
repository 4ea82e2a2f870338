/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Internals of the stand.
 *
 * Host memory is one registered arena on huge pages, in four quarters: `in` (source of H2D copies),
 * `out` (target of D2H copies and of AdamW into spare memory), the arrays of the CPU kernels, and
 * the state of `mapped` updates. Of a GPU's block, `in` (target of H2D copies) and `out` (source of
 * D2H copies) have a quarter each; AdamW's state, gradients and weights have half. All memory is
 * filled with bf16 numbers of either sign between 2^-9 and 2^-7. They are finite and not 0 when
 * read as fp32, too; some processors drop stores of zeros over zeros.
 *
 * Operation i of a load uses part i of its arrays, modulo the number of parts, or all of an array,
 * so that caches do not hold the data of the next operation. */
#ifndef HK_CALIB_STAND_PRIVATE_H
#define HK_CALIB_STAND_PRIVATE_H

#include <pthread.h>

#include "calib/stand/stand.h"
#include "engine/device/arena.h"

#define HK_STAND_GPUS      ((HK_PROBE_LOADS - 1) / 2)
#define HK_STAND_STRETCHES 32 /* most stretches that a load's run is divided into */
#define HK_STAND_TURNS     4  /* copies that are queued together, to find how many run at once */

typedef enum {
  HK_STAND_LANE_IN,
  HK_STAND_LANE_OUT,
  HK_STAND_LANE_WORK,
  HK_STAND_LANE_FETCH,
  HK_STAND_LANES
} hk_stand_lane_kind;

typedef struct {
  hk_stream *stream;
  hk_event *marks[HK_STAND_STRETCHES + 1];
  hk_event *begins[HK_STAND_STRETCHES]; /* start of a stretch's last operation; for UPDATE */
  hk_event *passing;                    /* recorded and never read: see queue_all */
  hk_event *awaited;                    /* the only event that threads wait for, as in the engine */
} hk_stand_lane;

typedef struct {
  hk_backend *backend;
  char pci[32];
  char *block;
  hk_bytes bytes;
  char *in, *out; /* quarters of the block */
  hk_bytes quarter;
  char *state; /* one slab of `params` parameters */
  hk_slab_shape shape;
  int64_t params;
  uint16_t *grad, *w;
  hk_stand_lane lanes[HK_STAND_LANES];
} hk_stand_gpu;

/* Arrays of the CPU kernels. */
typedef struct {
  int64_t params, piece; /* piece: parameters of a pass, if its load gives none */
  float *p, *m, *v, *grad32;
  float *p_to, *m_to, *v_to; /* results of ADAMW_AHEAD, in `out` of the arena */
  uint16_t *grad, *w;
  /* Of the loads in 8 bits, whose p is `p`, or `w` and `low`. */
  uint16_t *low;
  char *codes_m, *codes_v, *windows;
} hk_stand_arrays;

typedef struct {
  char probe[120];
  double rates[HK_PROBE_LOADS];
} hk_stand_learnt;

struct hk_stand {
  const hk_backend_ops *ops;
  hk_stand_gpu gpu[HK_STAND_GPUS];
  int gpus, cores;
  int *cpus, n_cpus; /* in pinning order: a team of n threads has the first n; NULL, 0: unknown */
  bool peers;
  hk_team **teams; /* [cores + 1], by number of threads; NULL: not opened yet */
  hk_arena arena;
  char *in, *out;
  hk_bytes quarter;
  hk_stand_arrays cpu;
  char *mapped; /* one slab of `mapped_params` */
  hk_slab_shape mapped_shape;
  int64_t mapped_params;
  char *pageable; /* small pages outside the arena, mapped when first needed */
  hk_bytes pageable_bytes;
  hk_stand_learnt *learnt;
  size_t n_learnt, learnt_room;
  int64_t turn;  /* first operation of the next run: sum of the longest loads so far */
  uint64_t dice; /* latest seed of a pattern */
  char note[600];
  const volatile sig_atomic_t *stop; /* NULL: none */
};

/* HK_NO once the stand's opening is to end. */
hk_status hk_stand_go_on(const hk_stand *stand, hk_error *err);

/* One load of a run. */
typedef struct {
  hk_stand *stand;
  const hk_load *load;
  int part, parts; /* number of the load's GPU among those of the probe, and their count */
  bool halved; /* half of the device arrays that loads share is this load's: copies have the first
                  half, a pull or a matrix product the second */
  int64_t first, ops; /* runs operations first .. first + ops - 1 */
  uint64_t seed;      /* of the pattern that the load writes or moves */
  hk_stretch stretches[HK_STAND_STRETCHES];
  size_t n;
  double value; /* of loads with HK_TRAIT_CALL, and of UPDATE */
  hk_error err; /* HK_OK: the load ran */
} hk_stand_job;

/* ---- shared.c -------------------------------------------------------------------------------- */

/* Appends a remark to the note: "this; that". A remark is not repeated. */
void hk_stand_add_note(hk_stand *stand, const char *text);
/* The team of so many threads, opened when it is first needed. */
hk_status hk_stand_team(hk_stand *stand, int threads, hk_team **team, hk_error *err);
/* Starts thread i of those that queue or wait beside a team of `threads` (0: no team). As in the
 * engine it is pinned to a CPU that the team does not use, if there are a team and such a CPU.
 * Returns 0 or an error number. */
int hk_stand_thread(const hk_stand *stand, int threads, int i, void *(*run)(void *), void *arg,
                    pthread_t *thread);
/* Parameters of one operation of a CPU kernel. */
int64_t hk_stand_piece(const hk_stand *stand, const hk_load *load);
/* The step of operation `op` of any AdamW load. The gradient scale alternates between 1 and -1, so
 * that state neither diverges nor settles. */
hk_adamw_step hk_stand_step(int64_t op);
/* Work of one operation, in the unit of its rate. */
double hk_stand_work(const hk_stand *stand, const hk_load *load);
/* First operation of stretch s of n, counted from the job's first. Stretch s ends where s + 1
 * begins. */
static inline int64_t hk_stand_cut(int64_t ops, size_t n, size_t s) {
  return ops * (int64_t)s / (int64_t)n;
}

/* The lane of a load; NULL for loads of the CPU team, which is a lane of its own. */
hk_stand_lane *hk_stand_lane_of(hk_stand *stand, const hk_load *load);
/* Waits until all queued operations of a lane have ended. */
hk_status hk_stand_await(const hk_stand *stand, const hk_stand_lane *lane, hk_error *err);
/* Copies on a lane, between host and device memory in any direction, and waits for the end. */
hk_status hk_stand_fetch(hk_stand *stand, hk_stand_lane *lane, void *to, const void *from,
                         hk_bytes bytes, hk_error *err);

/* ---- memory.c -------------------------------------------------------------------------------- */

hk_status hk_stand_memory_open(hk_stand *stand, hk_bytes host_bytes, hk_error *err);
void hk_stand_memory_close(hk_stand *stand);
/* Maps and fills stand->pageable, if that is still to be done. */
hk_status hk_stand_pageable(hk_stand *stand, hk_error *err);
/* A team fills memory with the pattern of seed 0. `positive`: without the sign bit of each fp32, as
 * AdamW's v needs it. */
void hk_stand_fill(hk_team *team, void *memory, hk_bytes bytes, bool positive);
/* Word i of a seed's pattern: four bf16 numbers as described above. */
uint64_t hk_stand_pattern(uint64_t seed, int64_t i);

/* ---- gpu.c ----------------------------------------------------------------------------------- */

hk_status hk_stand_gpu_open(hk_stand *stand, int gpu, hk_bytes device_bytes, hk_error *err);
void hk_stand_gpu_close(hk_stand *stand, hk_stand_gpu *gpu);
/* Offset of the second half of a GPU's `in` or `out`, in bytes. */
static inline hk_bytes hk_stand_half(const hk_stand_gpu *gpu) {
  return gpu->quarter / 2 / 4096 * 4096;
}
/* Operation i of a job that is a kernel. */
hk_kernel hk_stand_kernel(const hk_stand_job *job, int64_t i);
/* Queues operation i of a job on its lane. */
hk_status hk_stand_queue(const hk_stand_job *job, int64_t i, hk_error *err);
/* Runs all operations of a job. Its stretches have the GPU's times, those of LAUNCH_LOOP the
 * host's. */
void hk_stand_gpu_run(hk_stand_job *job);

/* ---- copy.c ---------------------------------------------------------------------------------- */

hk_status hk_stand_copy_check(hk_stand_job *job, hk_error *err);
hk_status hk_stand_copy_queue(const hk_stand_job *job, int64_t i, hk_error *err);
/* hk_stand_copy_prepare writes a new pattern into the source of the job's first operation;
 * hk_stand_copy_verify looks for it in the target. */
hk_status hk_stand_copy_prepare(const hk_stand_job *job, hk_error *err);
hk_status hk_stand_copy_verify(const hk_stand_job *job, hk_error *err);

/* ---- verify.c: one more operation, compared with the reference ------------------------------- */

hk_status hk_stand_update_verify(const hk_stand_job *job, hk_error *err);
hk_status hk_stand_matmul_verify(const hk_stand_job *job, hk_error *err);

/* ---- cpu.c: passes of a team, timed by CLOCK_MONOTONIC --------------------------------------- */

void hk_stand_cpu_run(hk_stand_job *job, hk_team *team);
hk_status hk_stand_cpu_verify(const hk_stand_job *job, hk_team *team, hk_error *err);

/* ---- isolated.c: loads that run in isolation, on the calling thread -------------------------- */

void hk_stand_isolated_run(hk_stand_job *job);

#endif
