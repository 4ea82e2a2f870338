/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A probe: one or several loads that run at once, each on a lane of its own, and the rate of each
 * while all of them run. Two read it: calib/stand/stand.h runs it on the machine,
 * calib/probes/replay.h in the simulator, and both work out rates by the same function below.
 * Probes are plain data. */
#ifndef HK_CALIB_PROBES_PROBE_H
#define HK_CALIB_PROBES_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "core/graph.h"
#include "core/units.h"

/* Traits of a load, a set of bits. */
enum {
  HK_TRAIT_NONE = 0,
  HK_TRAIT_CPU = 1,         /* carried out by the CPU team */
  HK_TRAIT_COPY = 2,        /* copies bytes from or to a GPU, which are verified */
  HK_TRAIT_IN = 4,          /* to a GPU */
  HK_TRAIT_SMALL_PAGES = 8, /* host memory: pinned small pages instead of registered huge ones */
  HK_TRAIT_PAGEABLE = 16,   /* host memory: not pinned */
  HK_TRAIT_LINK = 32,       /* moves pinned host memory over a GPU's link: the contention of host
                               memory is fitted to these */
  HK_TRAIT_DRAM = 64,       /* host memory bandwidth, without AdamW */
  HK_TRAIT_CALL = 128,      /* carried out by the calling thread; one value a run, no stretches */
  HK_TRAIT_SOLO = 256,      /* uses what other loads use: the only load of its probe */
  HK_TRAIT_COPY_IN = HK_TRAIT_COPY | HK_TRAIT_IN,
  HK_TRAIT_ONE_CALL = HK_TRAIT_CALL | HK_TRAIT_SOLO,
};

/* X(NAME, text, unit of the value, operation that the simulator replays it as, traits, meaning)
 * HK_OP_KIND_COUNT: the simulator has no such operation; the probe informs a quantity directly, or
 * the reader. Values are rates, except those of SYNC and HOP (ns) and MEMORY (B). core/bytes.h has
 * the bytes a parameter of the CPU kernels. */
#define HK_LOADS(X)                                                                               \
  X(H2D, "h2d", "B/s", STATE_H2D, HK_TRAIT_COPY_IN | HK_TRAIT_LINK,                               \
    "copies from registered huge pages to a GPU")                                                 \
  X(D2H, "d2h", "B/s", STATE_D2H, HK_TRAIT_COPY | HK_TRAIT_LINK,                                  \
    "copies from a GPU to registered huge pages")                                                 \
  X(H2D_PINNED, "h2d_pinned", "B/s", KIND_COUNT, HK_TRAIT_COPY_IN | HK_TRAIT_SMALL_PAGES,         \
    "the same from small pages that are pinned")                                                  \
  X(D2H_PINNED, "d2h_pinned", "B/s", KIND_COUNT, HK_TRAIT_COPY | HK_TRAIT_SMALL_PAGES,            \
    "the same to small pages that are pinned")                                                    \
  X(H2D_PAGEABLE, "h2d_pageable", "B/s", WEIGHT_H2D_PAGEABLE,                                     \
    HK_TRAIT_COPY_IN | HK_TRAIT_PAGEABLE, "from memory that is not pinned")                       \
  X(D2H_PAGEABLE, "d2h_pageable", "B/s", GRAD_D2H_PAGEABLE, HK_TRAIT_COPY | HK_TRAIT_PAGEABLE,    \
    "to memory that is not pinned")                                                               \
  X(H2D_CACHED, "h2d_cached", "B/s", WEIGHT_H2D_PAGEABLE, HK_TRAIT_COPY_IN | HK_TRAIT_PAGEABLE,   \
    "the same again and again, from caches")                                                      \
  X(PULL, "pull", "B/s", WEIGHT_H2D, HK_TRAIT_COPY_IN | HK_TRAIT_LINK,                            \
    "a GPU kernel fetches weights from registered huge pages")                                    \
  X(MAPPED, "mapped", "P/s", ADAMW_MAPPED, HK_TRAIT_LINK,                                         \
    "GPU AdamW on state in registered host memory")                                               \
  X(PEER, "peer", "B/s", KIND_COUNT, HK_TRAIT_COPY, "copies from a GPU to the next of the node")  \
  X(ADAMW_CPU, "adamw_cpu", "P/s", ADAMW_CPU, HK_TRAIT_CPU,                                       \
    "fused AdamW, bf16 gradient in, bf16 weight out")                                             \
  X(ADAMW_AHEAD, "adamw_cpu_ahead", "P/s", ADAMW_CPU, HK_TRAIT_CPU | HK_TRAIT_SOLO,               \
    "the same into spare memory: other state than it reads")                                      \
  X(ADAMW_FP32, "adamw_cpu_fp32", "P/s", ADAMW_CPU_FP32, HK_TRAIT_CPU,                            \
    "AdamW, fp32 gradient, no cast")                                                              \
  X(UNSCALE, "unscale_cpu", "P/s", UNSCALE_CPU, HK_TRAIT_CPU,                                     \
    "pass over an fp32 gradient in place")                                                        \
  X(CAST, "cast_cpu", "P/s", CAST_CPU, HK_TRAIT_CPU, "fp32 weights to bf16")                      \
  X(DRAM_READ, "dram_read", "B/s", KIND_COUNT, HK_TRAIT_CPU | HK_TRAIT_DRAM | HK_TRAIT_SOLO,      \
    "CPU threads read host memory")                                                               \
  X(DRAM_WRITE, "dram_write", "B/s", KIND_COUNT, HK_TRAIT_CPU | HK_TRAIT_DRAM | HK_TRAIT_SOLO,    \
    "CPU threads write it, past the caches")                                                      \
  X(DRAM_COPY, "dram_copy", "B/s", KIND_COUNT, HK_TRAIT_CPU | HK_TRAIT_DRAM | HK_TRAIT_SOLO,      \
    "CPU threads copy it, past the caches: in and out")                                           \
  X(ADAMW_GPU, "adamw_gpu", "P/s", ADAMW_GPU, HK_TRAIT_NONE, "AdamW on state in GPU memory")      \
  X(UPDATE, "update", "P/s", ADAMW_GPU, HK_TRAIT_NONE,                                            \
    "the same in the median operation, from start to end")                                        \
  X(MATMUL, "matmul", "F/s", KIND_COUNT, HK_TRAIT_NONE, "bf16 matrix product of a model's shape") \
  X(LAUNCH, "launch", "launches/s", KIND_COUNT, HK_TRAIT_NONE,                                    \
    "kernels that do next to nothing, between events")                                            \
  X(SYNC, "sync", "ns", KIND_COUNT, HK_TRAIT_ONE_CALL,                                            \
    "from queueing such a kernel to knowing that it has ended")                                   \
  X(HOP, "hop", "ns", KIND_COUNT, HK_TRAIT_ONE_CALL,                                              \
    "from a copy's or kernel's end to another queue's that waits")                                \
  X(TOUCH, "touch", "B/s", KIND_COUNT, HK_TRAIT_CPU | HK_TRAIT_ONE_CALL,                          \
    "first touch of huge pages by the team")                                                      \
  X(REGISTER, "register", "B/s", KIND_COUNT, HK_TRAIT_ONE_CALL,                                   \
    "registering touched huge pages with the GPU")                                                \
  X(PIN, "pin", "B/s", KIND_COUNT, HK_TRAIT_ONE_CALL, "the same with small pages")                \
  X(MEMORY, "gpu_memory", "B", KIND_COUNT, HK_TRAIT_ONE_CALL,                                     \
    "what the GPU's allocator hands out at most")                                                 \
  X(TURNS, "copies_at_once", "1", KIND_COUNT, HK_TRAIT_ONE_CALL,                                  \
    "copies in that run at once, of 4 queued together")                                           \
  X(DISK_READ, "disk_read", "B/s", KIND_COUNT, HK_TRAIT_ONE_CALL,                                 \
    "reading a file, past the page cache")                                                        \
  X(DISK_WRITE, "disk_write", "B/s", KIND_COUNT, HK_TRAIT_ONE_CALL, "writing and syncing a file")

typedef enum {
#define HK_LOAD_ENUM(name, text, unit, op, traits, meaning) HK_LOAD_##name,
  HK_LOADS(HK_LOAD_ENUM)
#undef HK_LOAD_ENUM
      HK_LOAD_KINDS
} hk_load_kind;

const char *hk_load_name(hk_load_kind kind); /* "adamw_cpu" */
const char *hk_load_unit(hk_load_kind kind); /* "P/s" */
const char *hk_load_meaning(hk_load_kind kind);
hk_op_kind hk_load_op(hk_load_kind kind);            /* HK_OP_KIND_COUNT: not simulated */
bool hk_load_is(hk_load_kind kind, unsigned traits); /* has all of these HK_TRAIT_* */
/* HK_LOAD_KINDS when there is none of that name. */
hk_load_kind hk_load_find(const char *name);

typedef struct {
  hk_load_kind kind;
  int gpu;       /* whose lane; 0 for loads of the CPU */
  int threads;   /* of the CPU team; 0 for others. Only one load of a probe is the CPU's */
  int64_t chunk; /* work of one operation, in the unit of the rate (bytes, parameters; MATMUL: rows
                    m). For CPU kernels: what a thread takes at a time, at most */
  int64_t piece; /* CPU kernels: parameters of one operation; 0: HK_PROBE_CPU_PIECE */
  int64_t n, k;  /* MATMUL: columns and depth */
  double share;  /* > 0: WHOLE probes; this load's part of the probe's work */
} hk_load;

#define HK_PROBE_CPU_PIECE ((int64_t)16 << 20) /* parameters, at most */
#define HK_PROBE_LOADS     17                  /* 8 GPUs both ways and the CPU */

/* Work of one operation of a load that the simulator knows: a piece of a CPU kernel, else a chunk.
 */
int64_t hk_load_operation(const hk_load *load);

typedef enum {
  /* Rates while every load runs: from the latest first start to the earliest last end. */
  HK_PROBE_WINDOW,
  /* Amounts in the ratio of `share`, begun together: each load's amount over the time until the
   * last of them is done. How unequal amounts share a link. */
  HK_PROBE_WHOLE,
} hk_probe_mode;

/* What a probe is for: fits and reports group by it. */
typedef enum {
  HK_PROBE_ALONE,      /* one load */
  HK_PROBE_DUPLEX,     /* one GPU, both directions */
  HK_PROBE_FABRIC,     /* several GPUs */
  HK_PROBE_CONTENTION, /* copies or GPU kernels beside the CPU or each other */
} hk_probe_group;

const char *hk_probe_group_name(hk_probe_group group);

typedef struct {
  /* Says the whole probe, and is unique in a campaign and the same in the next: "h2d 64 KiB",
   * "h2d+d2h gpu0 16 MiB | adamw_cpu 12 threads". Stored; `machine diff` joins on it. */
  char name[120];
  hk_probe_group group;
  hk_probe_mode mode;
  bool quick; /* part of --quick, too */
  hk_load loads[HK_PROBE_LOADS];
  int n_loads;
} hk_probe;

/* One stretch of a load's work, of which there are many: `work` done from begin to end. */
typedef struct {
  hk_ns begin, end;
  double work;
} hk_stretch;

/* Rates (units a second) of n loads from their stretches, which follow one another on a lane; by
 * the probe's mode. Within a stretch work is spread evenly. HK_NO if the loads have no common
 * window. */
hk_status hk_probe_rates(hk_probe_mode mode, const hk_stretch *const *stretches,
                         const size_t *counts, int n_loads, double *rates, hk_error *err);

/* ---- The probes of a machine ----------------------------------------------------------------- */

/* The least memory in which all of them make sense. */
#define HK_PROBE_LEAST_HOST   (32 * HK_MIB)
#define HK_PROBE_LEAST_DEVICE (16 * HK_MIB)

typedef struct {
  int gpus, cores;
  hk_bytes host_bytes;   /* what the stand's arena has: chunks are no larger than an eighth */
  hk_bytes device_bytes; /* what it has of each GPU: no larger than a quarter */
  bool peers;            /* GPUs can copy to each other */
  bool disk;             /* a path was given */
  bool quick;
} hk_probe_scope;

/* All probes in a fixed order; with scope->quick those that have `quick`. The caller frees. */
hk_status hk_probes_list(const hk_probe_scope *scope, hk_probe **probes, size_t *n, hk_error *err);

#endif
