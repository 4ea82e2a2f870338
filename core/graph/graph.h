/* SPDX-License-Identifier: Apache-2.0 */
/* The task graph: one iteration as operations on lanes. A plan expands into it in one place
 * (expand*.c). The simulator runs it in virtual time, the engine on real lanes. It holds amounts of
 * work but no rates: the simulator knows how long an operation takes (sim/demand.c), the engine
 * what it does (engine/run/actions*.c). Times that were measured of a model's passes
 * (hk_pass_profile) are handed on as they are. */
#ifndef HK_CORE_GRAPH_GRAPH_H
#define HK_CORE_GRAPH_GRAPH_H

#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/graph/plan.h"
#include "core/machine/launch.h"

/* Phases of an iteration. */
typedef enum { HK_PHASE_FORWARD, HK_PHASE_BACKWARD, HK_PHASE_UPDATE, HK_PHASE_COUNT } hk_phase;

const char *hk_phase_name(hk_phase phase); /* "forward" */

/* What an operation does, and the unit of its `work`. */
#define HK_OP_KINDS(X)                                                                            \
  X(MEMORY_REPORT, "memory_report", "none", "between phases: garbage collection, memory report")  \
  X(CACHE_RELEASE, "cache_release", "none", "between iterations: cached GPU memory is released")  \
  X(LAUNCH, "launch", "layers", "host thread launches a layer")                                   \
  X(ALL_GATHER, "all_gather", "bytes", "ZeRO-3 gather of a block's weights, bytes received")      \
  X(FORWARD, "forward", "flops", "forward of a block")                                            \
  X(BACKWARD, "backward", "flops", "backward of a block, recomputation included")                 \
  X(TP_ALL_REDUCE, "tp_all_reduce", "bytes", "tensor-parallel reduction, bytes sent")             \
  X(REDUCE_SCATTER, "reduce_scatter", "bytes", "gradient reduction of a block, bytes sent")       \
  X(GRAD_BUCKET, "grad_bucket", "params", "gradients of a block into the reduction bucket")       \
  X(GRAD_SUM_D2H, "grad_sum_d2h", "bytes", "gradients of a block, or sums, to host memory")       \
  X(GRAD_SUM_H2D, "grad_sum_h2d", "bytes", "sums back to the GPU (DeepSpeed: also for the norm)") \
  X(GRAD_CAST_GPU, "grad_cast_gpu", "params", "bf16 to fp32 on the GPU before a 4-byte flush")    \
  X(GRAD_D2H, "grad_d2h", "bytes", "gradients to pinned host memory")                             \
  X(GRAD_D2H_PAGEABLE, "grad_d2h_pageable", "bytes", "gradients to pageable host memory")         \
  X(GRAD_CAST_CPU, "grad_cast_cpu", "params", "bf16 to fp32 on the CPU after a 2-byte flush")     \
  X(BARRIER, "barrier", "none", "all lanes meet; the gradient norm is known")                     \
  X(HOST_WAIT, "host_wait", "none", "host thread waits for a copy")                               \
  X(STEP_OVERHEAD, "step_overhead", "none", "host's part of a step: DeepSpeed, FSDP2")            \
  X(SUBGROUP_OVERHEAD, "subgroup_overhead", "subgroups", "DeepSpeed: bookkeeping")                \
  X(UNSCALE_CPU, "unscale_cpu", "params", "separate unscale and clip pass, fp32 gradient")        \
  X(ADAMW_CPU_FP32, "adamw_cpu_fp32", "params", "AdamW, fp32 gradient, no cast")                  \
  X(CAST_CPU, "cast_cpu", "params", "separate pass, fp32 weight to bf16")                         \
  X(ADAMW_CPU, "adamw_cpu", "params", "fused AdamW: bf16 gradient in, bf16 weight out")           \
  X(WEIGHT_H2D, "weight_h2d", "bytes", "updated weights to the GPU, pinned")                      \
  X(WEIGHT_H2D_PAGEABLE, "weight_h2d_pageable", "bytes", "updated weights to the GPU, pageable")  \
  X(WEIGHT_PLACE, "weight_place", "bytes", "early weights: spare GPU memory to tensors")          \
  X(STATE_H2D, "state_h2d", "bytes", "fp32 state to the GPU")                                     \
  X(STATE_D2H, "state_d2h", "bytes", "fp32 state to the host")                                    \
  X(NEWTON_SCHULZ, "newton_schulz", "flops", "Muon: matrix products on a piece's momentum")       \
  X(ADAMW_GPU, "adamw_gpu", "params", "AdamW on state in GPU memory")                             \
  X(ADAMW_MAPPED, "adamw_mapped", "params", "AdamW on state in pinned host memory, in place")     \
  X(STAGE_SEND, "stage_send", "bytes", "between pipeline stages, bytes sent")                     \
  X(ALL_TO_ALL, "all_to_all", "bytes", "tokens to experts or back, bytes sent to other ranks")

typedef enum {
#define HK_OP_ENUM(name, text, unit, meaning) HK_OP_##name,
  HK_OP_KINDS(HK_OP_ENUM)
#undef HK_OP_ENUM
      HK_OP_KIND_COUNT
} hk_op_kind;

/* Whether an operation is between phases: it counts for the iteration, but for none of its phases.
 */
static inline bool hk_op_is_between_phases(hk_op_kind kind) {
  return kind == HK_OP_MEMORY_REPORT || kind == HK_OP_CACHE_RELEASE;
}

const char *hk_op_kind_name(hk_op_kind kind); /* "state_h2d" */
const char *hk_op_kind_unit(hk_op_kind kind); /* "bytes" */

/* Kinds of lane. A lane is a queue that runs one operation at a time: in the order of the graph,
 * or, if it picks (hk_lane.picks), by priority among the operations whose dependencies are met. */
#define HK_LANE_KINDS(X)                                            \
  X(HOST, "host", "framework's host thread")                        \
  X(GPU, "gpu", "GPU compute stream")                               \
  X(NET, "net", "collectives stream")                               \
  X(FLUSH, "flush", "gradient copies to the host")                  \
  X(H2D, "h2d", "state copies to the GPU")                          \
  X(D2H, "d2h", "state copies to the host")                         \
  X(UP, "up", "updated weights to the GPU")                         \
  X(UPDATE, "update", "GPU update stream")                          \
  X(CPU, "cpu", "CPU update team")                                  \
  X(STREAM_P, "stream_p", "prototype: master weights, out then in") \
  X(STREAM_M, "stream_m", "prototype: momentum, out then in")       \
  X(STREAM_V, "stream_v", "prototype: variance, out then in")

typedef enum {
#define HK_LANE_ENUM(name, text, meaning) HK_LANE_##name,
  HK_LANE_KINDS(HK_LANE_ENUM)
#undef HK_LANE_ENUM
      HK_LANE_KIND_COUNT
} hk_lane_kind;

const char *hk_lane_kind_name(hk_lane_kind kind);

/* Whether CPU threads carry out its operations; if not, the lane is a queue of the GPU. */
static inline bool hk_lane_on_cpu(hk_lane_kind kind) {
  return kind == HK_LANE_HOST || kind == HK_LANE_CPU;
}

typedef struct {
  hk_lane_kind kind;
  int rank;
  char name[24]; /* "h2d" with one rank, "rank1.h2d" with several */
  bool picks; /* takes the ready operation with the smallest (priority, id), see core/graph/pick.h;
                 if false, operations run in the order of the graph */
} hk_lane;

#define HK_BLOCK_NONE INT32_MIN

/* When an operation is executed. The engine's graph has the updates of both kinds of step
 * (hk_steps), if they differ, and those that the GPU may take from the CPU (hk_plan_steals). */
typedef enum {
  HK_WHEN_ALWAYS,
  HK_WHEN_KEPT,   /* only if what runs ahead of the norm is to be kept */
  HK_WHEN_HELD,   /* only if nothing runs ahead */
  HK_WHEN_STOLEN, /* only if the CPU has not begun the piece; then the CPU's update of it, which is
                     in the graph, too, does nothing */
} hk_when;

/* Whether such an update by the GPU takes gradients that have been flushed to the host. */
static inline bool hk_when_flushed(hk_when when) {
  return when == HK_WHEN_HELD || when == HK_WHEN_STOLEN;
}

typedef struct {
  hk_op_kind kind;
  hk_phase phase;
  int32_t lane; /* index into graph->lanes */
  int32_t rank;
  int32_t micro;                /* micro-step of forward and backward; -1 in the update */
  int32_t block;                /* hk_tensor.block, or HK_BLOCK_NONE. With an overlap operations on
                                   a subgroup have the first block of which it holds parameters */
  int32_t subgroup;             /* index into plan->subgroups, or -1 */
  int32_t piece;                /* number of its piece of the subgroup; DeepSpeed's copies of state:
                                   0 p, 1 m, 2 v; else -1 */
  int64_t offset;               /* first parameter inside the subgroup (update operations) */
  int64_t work;                 /* >= 0, unit by kind */
  int32_t threads;              /* CPU kinds: the plan's team, see core/machine/team.h; else 0 */
  int32_t deps_begin, deps_end; /* into graph->deps; lane order is implied, not listed */
  hk_bytes gpu_alloc, gpu_free; /* allocated when it starts, freed when it ends */
  int32_t priority;             /* on lanes that pick: smaller first */
  hk_pass_profile profile;      /* forward and backward */
  /* Forward and backward where attention scores are stored, else 0: floating-point operations of
   * the products that read or write scores (part of `work`), traffic in GPU memory of these
   * products, and of the softmax between them. */
  int64_t score_flops;
  hk_bytes score_bytes, softmax_bytes;
  hk_bytes copied; /* read and written in GPU memory: in forward and backward for collectives; in
                      the barrier for the norm and clipping, half of the traffic */
  hk_bytes cast;   /* the same, by casts in torch's own plan (hk_op_of_any_plan) */
  bool experts;    /* all_gather, reduce_scatter: among the ranks with the same experts */
  bool hooked;     /* launch, or with an overlap a pass of which no launches were measured: FSDP2's
                      hooks gather and reduce the block; step_overhead: of FSDP2 */
  bool ahead; /* adamw_cpu: its subgroup runs ahead of the norm, so it writes to spare memory */
  hk_when when;
} hk_op;

/* An operation of forward or backward with what it does in every plan of the job. Only the plan
 * that is torch's own also casts. */
static inline hk_op hk_op_of_any_plan(hk_op op) {
  op.cast = 0;
  return op;
}

/* Memory that the first GPU of a node reports as used in addition to what the framework's allocator
 * has handed out: CUDA contexts, NCCL, and the allocator's cache (memory that it holds and nobody
 * uses). The cache grows up to a phase's peak, and shrinks when the framework empties it between
 * phases. */
typedef struct {
  hk_bytes outside;                 /* contexts and NCCL */
  hk_bytes at_peak[HK_PHASE_COUNT]; /* cache at the end of a phase, above the phase's peak */
  hk_bytes emptied[HK_PHASE_COUNT]; /* cache that remains when it has been emptied */
} hk_device_memory;

typedef struct {
  hk_op *ops; /* in a topological order; the index is the operation's id everywhere */
  size_t n_ops;
  int32_t *deps;
  size_t n_deps;
  hk_lane *lanes;
  size_t n_lanes;
  int iterations;   /* copies of the iteration in the graph; 0 means 1 */
  int ranks;        /* ranks with operations of their own: 1 when folded */
  int multiplicity; /* ranks of a node that each of them represents, those of other jobs included */
  int world, nodes; /* of one job, for collectives */
  int tp, pp, ep;
  bool cores_unbound;     /* ranks are not bound to cores: their pages are on any memory domain */
  bool weights_pulled;    /* kernels fetch weights from host memory; else copy engines do */
  hk_optimizer optimizer; /* of every update */
  bool grads_widened;     /* updates on a GPU first convert their gradients to fp32 */
  bool weights_cold;      /* pageable weights were not just written: no CPU cache holds them */
  bool queues_throughout; /* see core/machine/team.h */
  double launch_beside_update;        /* hk_launch_share of the plan's threads */
  int32_t layers;                     /* of the model: block number of the head */
  hk_bytes gpu_base;                  /* on each rank's GPU before the first operation */
  hk_device_memory device;            /* DeepSpeed; all 0 under hocket, which has no cache */
  hk_bytes host_base;                 /* of the whole node before the first operation */
  size_t capacity_ops, capacity_deps; /* private to the builder */
} hk_graph;

/* Phases to expand: any union of these. The update alone begins with the barrier.
 *
 * HK_EXPAND_ENGINE is the part of an iteration that libhocket runs. Without an overlap it is the
 * update. With an overlap it also contains the flush, and these dependencies:
 *   grad_d2h      for each piece of each subgroup on route cpu, on lane flush; none in the graph,
 *                 because the caller hands over gradients in any order
 *   barrier       all grad_d2h: the norm is known, and the caller steps
 *   adamw_cpu     its grad_d2h if the subgroup runs ahead, else the barrier
 *   weight_h2d    its adamw_cpu and the barrier; only its adamw_cpu if the weights are early
 *   weight_place  early weights: its weight_h2d and the barrier
 *   other routes  the barrier
 * A subgroup that is staged in steps in which nothing runs ahead (held_staged) has the operations
 * of route cpu, HK_WHEN_KEPT, and behind them those of route staged, HK_WHEN_HELD; their state_h2d
 * also copies the gradients that have been flushed. Lanes cpu and up pick by the forward order of
 * blocks. If the plan steals, each piece of other subgroups on route cpu has the operations of
 * route staged, too, HK_WHEN_STOLEN, behind all others and against the forward order. */
#define HK_EXPAND_TRAINING (1u << HK_PHASE_FORWARD | 1u << HK_PHASE_BACKWARD)
#define HK_EXPAND_UPDATE   (1u << HK_PHASE_UPDATE)
#define HK_EXPAND_ALL      (HK_EXPAND_TRAINING | HK_EXPAND_UPDATE)
#define HK_EXPAND_ENGINE   (HK_EXPAND_UPDATE | 1u << HK_PHASE_COUNT)

/* What to expand. */
typedef struct {
  unsigned phases; /* a union of HK_EXPAND_... */
  int iterations;  /* copies of the iteration; 0 stands for 1 */
  bool folded;     /* one rank represents those of a node */
  bool bare;       /* no operations: memory before the first one alone */
} hk_expand;

#define HK_MOST_ITERATIONS 64
/* Expands a plan. Ranks of a node run the same plan on equal shares. Folded: one rank represents
 * all of them; this is exact, because max-min fairness has a unique and therefore symmetric
 * solution. Unfolded: every rank of one node has its own operations. Nodes are always folded. Free
 * with hk_graph_free, safe on a zeroed graph.
 *
 * Several iterations, up to HK_MOST_ITERATIONS, need HK_EXPAND_ALL and a plan with an overlap. All
 * have the same operations: of n iterations, operation i of iteration k has the id
 * k x n_ops / n + i. Operations that depend on the iteration before:
 * - launch of a block: on the updates of the block's subgroups;
 * - forward of a block, or its all_gather: on the arrival of its new weights;
 * - state_h2d: on state_d2h of the same piece. */
hk_status hk_graph_build(const hk_plan *plan, hk_expand what, hk_graph *graph, hk_error *err);
/* The iteration, from 0, of an operation. */
int32_t hk_op_iteration(const hk_graph *graph, int32_t op);
void hk_graph_free(hk_graph *graph);

/* Adds one operation; for the expansion and for tests. Returns its id, or -1 with err set. Entries
 * of `deps` are smaller than the new id, or -1 (ignored). */
int32_t hk_graph_add(hk_graph *graph, const hk_op *op, const int32_t *deps, size_t n_deps,
                     hk_error *err);
/* Appends `times` copies of operations first .. n_ops - 1, each of which depends on operations that
 * are as many places later as itself. */
hk_status hk_graph_repeat(hk_graph *graph, size_t first, int times, hk_error *err);
/* The lane of that kind and rank, added if it does not exist; -1 with err set. */
int32_t hk_graph_lane(hk_graph *graph, hk_lane_kind kind, int rank, hk_error *err);

/* "state_h2d sg12.3", "backward L7": stable, unique within lane and rank. Returns `buffer`. */
const char *hk_op_label(const hk_graph *graph, int32_t op, char *buffer, size_t size);

#endif
