/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: for one rank's subgroups, where and in what order each is updated, and everything else
 * needed to simulate or to run that, on any machine. It is a JSON document: "hocket.plan/1", or
 * "hocket.plan/2" where updates overlap with computation. */
#ifndef HK_CORE_PLAN_H
#define HK_CORE_PLAN_H

#include <stdbool.h>

#include "core/model.h"

typedef enum {
  HK_ROUTE_CPU,      /* updated on the CPU; state in host memory */
  HK_ROUTE_STAGED,   /* state copied in, updated on the GPU, copied back */
  HK_ROUTE_MAPPED,   /* a GPU kernel reads and writes the state in host memory in place */
  HK_ROUTE_RESIDENT, /* state always on the GPU */
  HK_ROUTE_COUNT
} hk_route;

typedef enum {
  HK_RUNTIME_HOCKET,    /* this engine: fused CPU kernel, pinned copies, lanes that run free */
  HK_RUNTIME_DEEPSPEED, /* the operations and stalls of DeepSpeed ZeRO-3 offload and of the
                           published Deep Optimizer States prototype */
} hk_runtime;

typedef enum { HK_FLUSH_ASYNC, HK_FLUSH_SYNC } hk_flush;

/* What the update runs beside. Exact in every case: weights change only behind the step. */
typedef enum {
  HK_OVERLAP_NONE,    /* nothing: forward begins when the update is over */
  HK_OVERLAP_FORWARD, /* the next forward, each block of which waits for its own weights only */
  HK_OVERLAP_BOTH, /* and backward: subgroups marked `ahead` are updated into spare memory as soon
                      as their gradients have arrived, before the norm is known */
  HK_OVERLAP_COUNT
} hk_overlap;

/* The most that a job or a plan may say, for its checks, its document and the command line alike.
 */
#define HK_MOST_GPUS        64 /* of a node; also of a tensor-parallel group */
#define HK_MOST_NODES       65536
#define HK_MOST_MICRO_BATCH (1 << 20)
#define HK_MOST_GRAD_ACCUM  4096
#define HK_MOST_SEQ         (1 << 24)
#define HK_MOST_STRIDE      (1 << 20)
#define HK_MOST_BUFFERS     1024
#define HK_MOST_CPU_THREADS (1 << 16)

/* What is trained and on how many GPUs. World size = gpus x nodes; dp = world / tp. */
typedef struct {
  int gpus; /* of one node */
  int nodes;
  int tp;          /* tensor-parallel degree, within a node */
  int micro_batch; /* sequences a rank and micro-step */
  int grad_accum;
  int seq; /* tokens a sequence */
  bool checkpoint_activations;
} hk_job;

int hk_job_dp(const hk_job *job);

typedef struct {
  int64_t numel;
  hk_route route;
  bool ahead; /* may be updated before the norm is known, into 12 spare bytes a parameter: only with
                 overlap `both` and on route cpu */
  bool early; /* then its new weights go up before the norm is known, too, into 2 spare bytes a
                 parameter of GPU memory: only with `ahead` */
} hk_plan_subgroup;

typedef struct {
  hk_model model;   /* owned */
  char machine[96]; /* the one it was planned for; information only */
  hk_job job;
  char policy[32];
  hk_runtime runtime;
  int stride;   /* one of `stride` subgroups goes to the GPU; 0: the policy has none */
  double ratio; /* share of subgroups whose state lives on the host */
  hk_flush flush;
  int flush_bytes_per_param; /* 2 (the gradient's own type) or 4 (fp32, cast on the GPU before the
                                copy) */
  hk_overlap overlap;
  int buffers;         /* staging buffers in flight, each of piece_numel parameters */
  int64_t piece_numel; /* staged and mapped subgroups move in pieces of at most this */
  int cpu_threads;     /* CPU team of one rank */
  bool cores_bound;    /* ranks own disjoint core sets; else every rank's team roams all cores */
  hk_subgroup_rule subgroup_rule;
  int64_t subgroup_numel;      /* requested size */
  hk_plan_subgroup *subgroups; /* in the rank's flat parameter order */
  size_t n_subgroups;
  int32_t *order; /* update order: order[i] is the subgroup that is updated i-th on its lane */
} hk_plan;

extern const char *const hk_route_names[HK_ROUTE_COUNT];
extern const char *const hk_runtime_names[2];
extern const char *const hk_overlap_names[HK_OVERLAP_COUNT]; /* "none", "forward", "both" */
const char *hk_route_name(hk_route route);                   /* "cpu" ... */
const char *hk_runtime_name(hk_runtime runtime);             /* "hocket", "deepspeed" */

/* A plan that updates everything on the CPU, for a policy to change: takes over *model (which is
 * zeroed) and cuts its subgroups, all on route cpu, order as stored. Ratio 1, asynchronous flush
 * (2 bytes a gradient, 4 under DeepSpeed), one CPU thread. `subgroup_numel` > 0. */
hk_status hk_plan_create(hk_model *model, const hk_job *job, hk_runtime runtime,
                         hk_subgroup_rule rule, int64_t subgroup_numel, hk_plan *plan,
                         hk_error *err);
/* Sets what updates run beside; unless that is nothing, subgroups are updated in forward order.
 * Clears every `ahead`. */
void hk_plan_set_overlap(hk_plan *plan, hk_overlap overlap);
/* A copy, to try another policy; both share what the model points to (hk_model_copy). */
hk_status hk_plan_copy(const hk_plan *from, hk_plan *to, hk_error *err);
void hk_plan_free(hk_plan *plan);

/* Whether the parts agree: subgroups add up to the rank's parameters, order is a permutation,
 * tp divides the world, and so on. HK_INPUT with the first thing that does not. */
hk_status hk_plan_check(const hk_plan *plan, hk_error *err);
hk_status hk_job_check(const hk_job *job, const hk_model *model, hk_error *err);

hk_status hk_plan_load(const char *path, hk_plan *plan, hk_error *err);
hk_status hk_plan_from_json(const cJSON *root, hk_plan *plan, hk_error *err);
cJSON *hk_plan_to_json(const hk_plan *plan); /* NULL when out of memory */

/* "interleave k=2 r=0.80": policy with the settings that distinguish it. Returns `buffer`. */
const char *hk_plan_title(const hk_plan *plan, char *buffer, size_t size);

/* The first and the last block of which each subgroup has parameters, numbered from 0 in forward
 * order (hk_tensor.block - HK_BLOCK_EMBED). Arrays of n_subgroups. */
void hk_plan_subgroup_blocks(const hk_plan *plan, int32_t *first, int32_t *last);

/* With overlap `both`: marks `ahead` the subgroups on route cpu from `deepest` down to shallower
 * ones until so many bytes of spares a rank, 12 a parameter, are used up; clears all others. */
void hk_plan_run_ahead_within(hk_plan *plan, hk_bytes spares, size_t deepest);

/* Parameters of one rank that may be updated before the norm is known. */
int64_t hk_plan_early(const hk_plan *plan); /* ... whose weights go up early */

/* Gradients that a framework hands over pass through slots of GPU memory on their way to the host,
 * a piece of a subgroup each. How many slots `pieces` of at most `largest` bytes have: as many as
 * 512 MiB hold, at least 2 and at most 8, and no more than pieces. */
int64_t hk_grad_slots(int64_t pieces, hk_bytes largest);
int64_t hk_plan_ahead(const hk_plan *plan);

/* Parameters of one rank on each route. */
void hk_plan_route_totals(const hk_plan *plan, int64_t totals[HK_ROUTE_COUNT]);

/* Whether, under DeepSpeed, the step is that of the prototype of Deep Optimizer States: a stride
 * makes it that, even where no subgroup's turn for the GPU comes. */
bool hk_plan_interleaves(const hk_plan *plan);

#endif
