/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A probe has one or several loads that run at once, each on its own lane. Its values are the rates
 * of the loads while all of them run. calib/stand/stand.h runs probes on the machine,
 * calib/probes/replay.h in the simulator; both compute rates with hk_probe_rates. Probes are plain
 * data. */
#ifndef HK_CALIB_PROBES_PROBE_H
#define HK_CALIB_PROBES_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/graph/graph.h"

/* Traits of a load, a set of bits. */
enum {
  HK_TRAIT_NONE = 0,
  HK_TRAIT_CPU = 1,       /* carried out by the CPU team */
  HK_TRAIT_COPY = 2,      /* copies bytes from or to a GPU, which are verified */
  HK_TRAIT_IN = 4,        /* to a GPU */
  HK_TRAIT_PAGEABLE = 16, /* host memory: not pinned */
  HK_TRAIT_LINK = 32,     /* moves pinned host memory over a GPU's link: the contention of host
                             memory is fitted to these */
  HK_TRAIT_CALL = 128,    /* runs on the calling thread, and gives one value for its whole run */
  HK_TRAIT_SOLO = 256,    /* the only load of its probe, because it uses the arrays of others */
  HK_TRAIT_COPY_IN = HK_TRAIT_COPY | HK_TRAIT_IN,
  HK_TRAIT_ONE_CALL = HK_TRAIT_CALL | HK_TRAIT_SOLO,
};

/* X(NAME, text, unit of the value, operation that the simulator replays it as, traits, meaning)
 * HK_OP_KIND_COUNT: the simulator has no such operation; the probe determines a quantity directly
 * or is only reported. Values are rates, except those of HOP (ns), MEMORY (B) and TURNS (a
 * number). core/graph/bytes.h has the bytes a parameter of the CPU kernels. */
#define HK_LOADS(X)                                                                               \
  X(H2D, "h2d", "B/s", STATE_H2D, HK_TRAIT_COPY_IN | HK_TRAIT_LINK,                               \
    "copies from registered huge pages to a GPU")                                                 \
  X(D2H, "d2h", "B/s", STATE_D2H, HK_TRAIT_COPY | HK_TRAIT_LINK,                                  \
    "copies from a GPU to registered huge pages")                                                 \
  X(H2D_PAGEABLE, "h2d_pageable", "B/s", WEIGHT_H2D_PAGEABLE,                                     \
    HK_TRAIT_COPY_IN | HK_TRAIT_PAGEABLE, "copies from memory that is not pinned")                \
  X(D2H_PAGEABLE, "d2h_pageable", "B/s", GRAD_D2H_PAGEABLE, HK_TRAIT_COPY | HK_TRAIT_PAGEABLE,    \
    "copies to memory that is not pinned")                                                        \
  X(H2D_CACHED, "h2d_cached", "B/s", WEIGHT_H2D_PAGEABLE, HK_TRAIT_COPY_IN | HK_TRAIT_PAGEABLE,   \
    "repeated copies from the same memory that is not pinned, in caches")                         \
  X(PULL, "pull", "B/s", WEIGHT_H2D, HK_TRAIT_COPY_IN | HK_TRAIT_LINK,                            \
    "a GPU kernel fetches weights from registered huge pages")                                    \
  X(MAPPED, "mapped", "P/s", ADAMW_MAPPED, HK_TRAIT_LINK,                                         \
    "GPU AdamW on state in registered host memory")                                               \
  X(PEER, "peer", "B/s", KIND_COUNT, HK_TRAIT_COPY, "copies from a GPU to the next of the node")  \
  X(ADAMW_CPU, "adamw_cpu", "P/s", ADAMW_CPU, HK_TRAIT_CPU,                                       \
    "fused AdamW, bf16 gradient in, bf16 weight out")                                             \
  X(ADAMW_AHEAD, "adamw_cpu_ahead", "P/s", ADAMW_CPU, HK_TRAIT_CPU | HK_TRAIT_SOLO,               \
    "fused AdamW that writes the new state into spare memory")                                    \
  X(ADAMW_8BIT, "adamw_cpu_8bit", "P/s", ADAMW_CPU, HK_TRAIT_CPU | HK_TRAIT_SOLO,                 \
    "AdamW on state 8bit")                                                                        \
  X(ADAMW_8BIT_SPLIT, "adamw_cpu_8bit_split", "P/s", ADAMW_CPU, HK_TRAIT_CPU | HK_TRAIT_SOLO,     \
    "AdamW on state 8bit+split")                                                                  \
  X(ADAMW_FP32, "adamw_cpu_fp32", "P/s", ADAMW_CPU_FP32, HK_TRAIT_CPU,                            \
    "AdamW, fp32 gradient, no cast")                                                              \
  X(UNSCALE, "unscale_cpu", "P/s", UNSCALE_CPU, HK_TRAIT_CPU,                                     \
    "pass over an fp32 gradient in place")                                                        \
  X(CAST, "cast_cpu", "P/s", CAST_CPU, HK_TRAIT_CPU, "fp32 weights to bf16")                      \
  X(ADAMW_GPU, "adamw_gpu", "P/s", ADAMW_GPU, HK_TRAIT_NONE, "AdamW on state in GPU memory")      \
  X(UPDATE, "update", "P/s", ADAMW_GPU, HK_TRAIT_NONE,                                            \
    "GPU AdamW beside other loads, by the median time of an operation")                           \
  X(MATMUL, "matmul", "F/s", KIND_COUNT, HK_TRAIT_NONE, "bf16 matrix product of a model's shape") \
  X(LAUNCH, "launch", "launches/s", KIND_COUNT, HK_TRAIT_NONE,                                    \
    "kernels of one element, between events")                                                     \
  X(LAUNCH_LOOP, "launch_loop", "launches/s", KIND_COUNT, HK_TRAIT_NONE,                          \
    "a host thread launches kernels of one element, without events: its rate, not the GPU's")     \
  X(HOP, "hop", "ns", KIND_COUNT, HK_TRAIT_ONE_CALL,                                              \
    "time from an operation's end to the start of one on another queue that waits for it")        \
  X(MEMORY, "gpu_memory", "B", KIND_COUNT, HK_TRAIT_ONE_CALL,                                     \
    "most GPU memory that can be allocated")                                                      \
  X(TURNS, "copies_at_once", "1", KIND_COUNT, HK_TRAIT_ONE_CALL,                                  \
    "H2D copies that run at once, of 4 queued together")

typedef enum {
#define HK_LOAD_ENUM(name, text, unit, op, traits, meaning) HK_LOAD_##name,
  HK_LOADS(HK_LOAD_ENUM)
#undef HK_LOAD_ENUM
      HK_LOAD_KINDS
} hk_load_kind;

const char *hk_load_name(hk_load_kind kind);         /* "adamw_cpu" */
const char *hk_load_unit(hk_load_kind kind);         /* "P/s" */
hk_op_kind hk_load_op(hk_load_kind kind);            /* HK_OP_KIND_COUNT: not simulated */
bool hk_load_is(hk_load_kind kind, unsigned traits); /* has all of these HK_TRAIT_* */

typedef struct {
  hk_load_kind kind;
  int gpu;       /* GPU of its lane; 0 for loads of the CPU */
  int threads;   /* of the CPU team; 0 for other loads. A probe has at most one load of the CPU */
  int64_t chunk; /* work of one operation, in the unit of the rate (bytes, parameters; MATMUL: rows
                    m). CPU kernels: most that a thread takes at a time */
  int64_t piece; /* CPU kernels: parameters of one operation; 0: HK_PROBE_CPU_PIECE */
  int64_t n, k;  /* MATMUL: columns and depth */
  double share;  /* WHOLE probes: this load's part of the probe's work, > 0 */
} hk_load;

#define HK_PROBE_CPU_PIECE ((int64_t)16 << 20) /* parameters, at most */
#define HK_PROBE_LOADS     17                  /* 8 GPUs both ways and the CPU */

/* Work of one operation of a load that the simulator knows: a piece of a CPU kernel, else a chunk.
 */
int64_t hk_load_operation(const hk_load *load);

typedef enum {
  /* Rates while every load runs: from the latest first start to the earliest last end. */
  HK_PROBE_WINDOW,
  /* The loads have work in the ratio of `share` and begin together. Rate of a load: its work
   * divided by the time until the last load is done. Shows how unequal amounts share a link. */
  HK_PROBE_WHOLE,
} hk_probe_mode;

/* Purpose of a probe; fits and reports group by it. */
typedef enum {
  HK_PROBE_ALONE,      /* one load */
  HK_PROBE_DUPLEX,     /* one GPU, both directions */
  HK_PROBE_FABRIC,     /* several GPUs */
  HK_PROBE_CONTENTION, /* copies or GPU kernels beside the CPU or each other */
} hk_probe_group;

typedef struct {
  /* Describes the whole probe. Unique in a campaign and the same in every campaign: "h2d 64 KiB",
   * "h2d+d2h 16 MiB | adamw_cpu 12 threads". Stored; `machine diff` joins on it. */
  char name[120];
  hk_probe_group group;
  hk_probe_mode mode;
  bool quick; /* part of --quick, too */
  hk_load loads[HK_PROBE_LOADS];
  int n_loads;
} hk_probe;

/* A part of a load's run: `work` was done from begin to end. For `idle` of this time the load
 * waited for something that does not belong to it; this time does not count. */
typedef struct {
  hk_ns begin, end;
  double work;
  hk_ns idle;
} hk_stretch;

/* Computes the rates (units a second) of n loads by the mode of the probe. The stretches of a load
 * follow one another on a lane; within a stretch work and idle time are taken as uniform. HK_NO if
 * the loads have no common window, or one did no work. */
hk_status hk_probe_rates(hk_probe_mode mode, const hk_stretch *const *stretches,
                         const size_t *counts, int n_loads, double *rates, hk_error *err);

/* ---- The probes of a machine ----------------------------------------------------------------- */

/* Least memory of a stand. With less, some probes have no sensible size. */
#define HK_PROBE_LEAST_HOST   (32 * HK_MIB)
#define HK_PROBE_LEAST_DEVICE (16 * HK_MIB)

typedef struct {
  int gpus, cores;
  hk_bytes host_bytes;   /* the stand's arena; chunks are at most an eighth of it */
  hk_bytes device_bytes; /* the stand's memory of each GPU; chunks are at most a quarter of it */
  bool peers;            /* GPUs can copy to each other */
  bool quick;
} hk_probe_scope;

/* Lists all probes in a fixed order; with scope->quick only those with `quick`. The caller frees
 * *probes. */
hk_status hk_probes_list(const hk_probe_scope *scope, hk_probe **probes, size_t *n, hk_error *err);

#endif
