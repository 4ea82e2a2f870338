/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stand's parts, for its own files.
 *
 * Host memory, one registered arena on huge pages, in quarters: copies to GPUs begin in `in`,
 * copies from them end in `out`, to which AdamW into spare memory
 * writes, too; then the CPU kernels' arrays and the state of `mapped`. Device
 * memory: copies end in `in` and begin in `out`, a quarter each; the rest is AdamW's. Everything is
 * filled with bf16 numbers between 2^-9 and 2^-7 of either sign, whatever it is read as: finite,
 * and never zero, because processors drop stores of zeros over zeros. Operations go round, so that
 * no cache holds what the next one needs, or over all of an array. */
#ifndef HK_CALIB_STAND_PRIVATE_H
#define HK_CALIB_STAND_PRIVATE_H

#include <pthread.h>

#include "calib/stand/stand.h"
#include "engine/arena.h"

#define HK_STAND_GPUS      ((HK_PROBE_LOADS - 1) / 2)
#define HK_STAND_STRETCHES 32 /* of one load's run, at most: as many are kept */
#define HK_STAND_TURNS     4  /* copies that are queued together, to see how many run at once */

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
  hk_event *begins[HK_STAND_STRETCHES]; /* of UPDATE: of the last operation of each stretch */
  hk_event *passing;                    /* recorded and never read: see queue_all */
  hk_event *awaited;                    /* the only one that threads wait for, as in the engine */
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

/* What the CPU's kernels work on. */
typedef struct {
  int64_t params, piece; /* a pass goes over `piece` of them, if its load does not say */
  float *p, *m, *v, *grad32;
  float *p_to, *m_to, *v_to; /* spare memory, beside the quarter that the others are in */
  uint16_t *grad, *w;
} hk_stand_arrays;

/* Memory beside the arena; registered with the first GPU where `registered`. */
typedef struct {
  char *base;
  hk_bytes bytes;
  bool registered;
} hk_stand_pages;

typedef struct {
  char probe[120];
  double rates[HK_PROBE_LOADS];
} hk_stand_learnt;

struct hk_stand {
  const hk_backend_ops *ops;
  hk_stand_gpu gpu[HK_STAND_GPUS];
  int gpus, cores;
  int *cpus, n_cpus; /* teams have the first of them; NULL and 0: not known */
  bool peers;
  hk_team **teams; /* [cores + 1], by threads; NULL: not needed yet */
  hk_arena arena;
  char *in, *out;
  hk_bytes quarter;
  hk_stand_arrays cpu;
  char *mapped; /* one slab of `mapped_params` */
  hk_slab_shape mapped_shape;
  int64_t mapped_params;
  hk_stand_pages pinned, pageable; /* small pages; mapped when first needed */
  char *disk;                      /* folder; NULL: none */
  int file;                        /* -1: not made yet */
  hk_bytes file_bytes;
  hk_stand_learnt *learnt;
  size_t n_learnt, learnt_room;
  int64_t turn;  /* operations so far, of the longest load of each run */
  uint64_t dice; /* seeds of patterns */
  char note[600];
};

/* One load of a run. */
typedef struct {
  hk_stand *stand;
  const hk_load *load;
  int part, parts; /* which of the GPUs of this probe, of how many */
  bool halved;     /* loads share the device's room for copies: copies have the first half, a kernel
                      fetch or a matrix product the second */
  int64_t first, ops; /* operations first .. first + ops - 1 of those that go round */
  uint64_t seed;      /* of the pattern that is to arrive */
  hk_stretch stretches[HK_STAND_STRETCHES];
  size_t n;
  double value; /* of loads that run alone, and of UPDATE */
  hk_error err; /* its status says how it went */
} hk_stand_job;

/* ---- stand.c --------------------------------------------------------------------------------- */

/* "this; that". A text that is already there is not added again. */
void hk_stand_add_note(hk_stand *stand, const char *text);
/* Opened when first asked for. */
hk_status hk_stand_team(hk_stand *stand, int threads, hk_team **team, hk_error *err);
/* Starts a thread that queues or waits beside a team of `threads` (0: beside none), the i-th. As
 * the engine's it is pinned to a CPU that the team leaves free, if there is one. 0, or an error
 * number. */
int hk_stand_thread(const hk_stand *stand, int threads, int i, void *(*run)(void *), void *arg,
                    pthread_t *thread);
/* Parameters of one operation of a CPU kernel. */
int64_t hk_stand_piece(const hk_stand *stand, const hk_load *load);
/* Work of one operation, in the unit of its rate. */
double hk_stand_work(const hk_stand *stand, const hk_load *load);
/* The operations of a job's stretch s of n: [begin, end). */
static inline int64_t hk_stand_cut(int64_t ops, size_t n, size_t s) {
  return ops * (int64_t)s / (int64_t)n;
}

/* ---- memory.c -------------------------------------------------------------------------------- */

hk_status hk_stand_memory_open(hk_stand *stand, hk_bytes host_bytes, hk_error *err);
void hk_stand_memory_close(hk_stand *stand);
/* Maps memory on huge pages or on small ones, untouched. */
hk_status hk_stand_pages_map(hk_bytes bytes, bool huge, hk_stand_pages *pages, hk_error *err);
hk_status hk_stand_pages_register(hk_stand *stand, hk_stand_pages *pages, hk_error *err);
void hk_stand_pages_close(hk_stand *stand, hk_stand_pages *pages);
/* The memory of loads that want small pages, made when first asked for. */
hk_status hk_stand_small_pages(hk_stand *stand, bool pinned, hk_stand_pages **pages, hk_error *err);
/* Fills memory by a team. `positive`: as floats, all of them are. */
void hk_stand_fill(hk_team *team, void *memory, hk_bytes bytes, bool positive);
/* Word i of the pattern of a seed: four numbers as above. */
uint64_t hk_stand_pattern(uint64_t seed, int64_t i);

/* ---- gpu.c ----------------------------------------------------------------------------------- */

hk_status hk_stand_gpu_open(hk_stand *stand, int gpu, hk_bytes device_bytes, hk_error *err);
void hk_stand_gpu_close(hk_stand *stand, hk_stand_gpu *gpu);
/* NULL for loads of the CPU team, which is a lane of its own. */
hk_stand_lane *hk_stand_lane_of(hk_stand *stand, const hk_load *load);
/* Where the second half of the room for copies begins. */
static inline hk_bytes hk_stand_half(const hk_stand_gpu *gpu) {
  return gpu->quarter / 2 / 4096 * 4096;
}
/* Operation i of a job that is a kernel. */
hk_kernel hk_stand_kernel(const hk_stand_job *job, int64_t i);
/* Queues operation i of a job on its lane. */
hk_status hk_stand_queue(const hk_stand_job *job, int64_t i, hk_error *err);
/* Waits for all that is queued on a lane. */
hk_status hk_stand_await(const hk_stand *stand, const hk_stand_lane *lane, hk_error *err);
/* All of a job: its stretches are the GPU's own times. */
void hk_stand_gpu_run(hk_stand_job *job);
/* Copies between any memories on a lane, and waits for it. */
hk_status hk_stand_fetch(hk_stand *stand, hk_stand_lane *lane, void *to, const void *from,
                         hk_bytes bytes, hk_error *err);

/* ---- copy.c ---------------------------------------------------------------------------------- */

hk_status hk_stand_copy_check(hk_stand_job *job, hk_error *err);
hk_status hk_stand_copy_queue(const hk_stand_job *job, int64_t i, hk_error *err);
/* Puts a new pattern where the first operation begins, and looks for it where that ends. */
hk_status hk_stand_copy_prepare(const hk_stand_job *job, hk_error *err);
hk_status hk_stand_copy_verify(const hk_stand_job *job, hk_error *err);

/* ---- verify.c: one more operation, compared with the reference ------------------------------- */

hk_status hk_stand_update_verify(const hk_stand_job *job, hk_error *err);
hk_status hk_stand_matmul_verify(const hk_stand_job *job, hk_error *err);

/* ---- cpu.c, dram.c: CLOCK_MONOTONIC around passes of a team ---------------------------------- */

/* The hyperparameters of every AdamW of the stand. Gradients change sign from one operation to the
 * next, so that state goes to and fro instead of away or to rest. */
hk_adamw_step hk_stand_step(int64_t op);
void hk_stand_cpu_run(hk_stand_job *job, hk_team *team);
hk_status hk_stand_cpu_verify(const hk_stand_job *job, hk_team *team, hk_error *err);
/* Operation i of a job of the kinds DRAM_*, which goes over so many bytes. */
void hk_stand_dram_pass(const hk_stand_job *job, hk_team *team, int64_t i);
hk_bytes hk_stand_dram_bytes(const hk_stand *stand);
hk_status hk_stand_dram_verify(const hk_stand_job *job, hk_team *team, hk_error *err);

/* ---- alone.c, disk.c: loads that bear no other beside them, on the calling thread ------------ */

void hk_stand_alone_run(hk_stand_job *job);
hk_status hk_stand_disk_run(hk_stand_job *job, hk_error *err);
hk_status hk_stand_disk_verify(const hk_stand_job *job, hk_error *err);

#endif
