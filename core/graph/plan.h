/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: where and in what order each of a rank's subgroups is updated, and everything else that
 * is needed to simulate or run it on any machine. As a file it is a JSON document: "hocket.plan/1",
 * or "hocket.plan/2" if updates overlap with computation. */
#ifndef HK_CORE_GRAPH_PLAN_H
#define HK_CORE_GRAPH_PLAN_H

#include <stdbool.h>

#include "core/graph/optimizer.h"
#include "core/model/model.h"

typedef enum {
  HK_ROUTE_CPU,      /* updated by the CPU; state in host memory */
  HK_ROUTE_STAGED,   /* state copied to the GPU, updated there, copied back */
  HK_ROUTE_MAPPED,   /* updated by a GPU kernel that reads and writes the state in host memory */
  HK_ROUTE_RESIDENT, /* state always on the GPU */
  HK_ROUTE_COUNT
} hk_route;

typedef enum {
  HK_RUNTIME_HOCKET,    /* this engine: fused CPU kernel, pinned copies, independent lanes */
  HK_RUNTIME_DEEPSPEED, /* the operations and stalls of DeepSpeed ZeRO-3 offload and of the
                           published Deep Optimizer States prototype */
} hk_runtime;

typedef enum { HK_FLUSH_ASYNC, HK_FLUSH_SYNC } hk_flush;

/* What the update overlaps with. Results are the same bits in every case: the model's weights
 * change only after the step. */
typedef enum {
  HK_OVERLAP_NONE,    /* nothing: forward begins when the update has ended */
  HK_OVERLAP_FORWARD, /* the next forward: each block waits for its own weights only */
  HK_OVERLAP_BOTH, /* also backward: subgroups marked `ahead` are updated into spare memory as soon
                      as their gradients have arrived, before the norm is known */
  HK_OVERLAP_COUNT
} hk_overlap;

/* Where gradients of several micro-steps are summed. It matters for route cpu: the sums of other
 * routes stay on the GPU, where they are used. */
typedef enum {
  HK_ACCUMULATE_GPU,  /* sums stay in GPU memory, in the gradient's own type */
  HK_ACCUMULATE_HOST, /* sums are in host memory; each micro-step after the first copies them to the
                         GPU, which adds, and back: the engine and ZeRO-Offload do so */
  HK_ACCUMULATE_COUNT
} hk_accumulate;

/* What gradients are clipped by. */
typedef enum {
  HK_CLIP_NORM,  /* the norm of all gradients, which is known after backward */
  HK_CLIP_BLOCK, /* each block's own norm, known when its gradients have arrived: updates that run
                    ahead wait for all gradients of their blocks, and clipping never delays them */
  HK_CLIP_COUNT
} hk_clip;

/* Which steps a plan is expanded for. Nothing runs ahead of the norm in a step that is expected to
 * be clipped, or that is done again because it was. */
typedef enum {
  HK_STEPS_KEPT, /* what runs ahead is kept */
  HK_STEPS_HELD, /* nothing runs ahead: `ahead` and `early` have no effect, `held_staged` has */
} hk_steps;

/* What a step costs whose updates ran ahead or waited although they should not have; of a
 * simulation. Both 0: unknown. */
typedef struct {
  hk_ns gain; /* a step that is held takes so much longer than one that is kept */
  hk_ns loss; /* a step that runs ahead and is done again takes so much longer than one that is held
               */
} hk_guess_costs;

/* Upper limits of a job's and a plan's fields: for checks, plan files and the command line. */
#define HK_MOST_GPUS        64 /* of a node; also of a tensor-parallel group */
#define HK_MOST_NODES       65536
#define HK_MOST_MICRO_BATCH (1 << 20)
#define HK_MOST_GRAD_ACCUM  4096
#define HK_MOST_SEQ         (1 << 24)
#define HK_MOST_LOSS_CHUNKS 65536
#define HK_MOST_STRIDE      (1 << 20)
#define HK_MOST_BUFFERS     1024
#define HK_MOST_CPU_THREADS (1 << 16)
#define HK_MOST_FLUSH       (1 << 20)

/* What is trained and on how many GPUs. World size = gpus x nodes; dp = world / (tp x pp). */
typedef struct {
  int gpus; /* of one node */
  int nodes;
  int tp;          /* tensor-parallel degree, within a node */
  int micro_batch; /* sequences per rank and micro-step */
  int grad_accum;
  int seq; /* tokens per sequence */
  bool checkpoint_activations;
  int loss_chunks; /* the loss takes the tokens of a micro-step in this many equal slices, one after
                      the other; 0 or 1: all at once */
  int pp;     /* pipeline stages, one micro-batch forward and one backward in turn (1F1B); 0 or 1:
                 none. The model must be one of as many stages (hk_model_stage) */
  int chunks; /* of layers that a stage has, interleaved with those of other stages; 0 or 1: one */
  bool sequence_parallel; /* what tp does not divide is divided by tokens (arXiv 2205.05198) */
  int ep; /* expert parallelism: ranks that divide the experts of a layer, neighbours of one stage;
             0 or 1: none. The model must be one of as many (hk_model_divide_experts) */
  int jobs; /* equal jobs at once on each node, of `gpus` GPUs each; 0 or 1: this one alone. They
               share cores, host memory and links, and nothing else */
} hk_job;

static inline int hk_job_jobs(const hk_job *job) {
  return job->jobs > 1 ? job->jobs : 1;
}
/* Ranks of a node, of all its jobs. */
static inline int hk_job_ranks(const hk_job *job) {
  return job->gpus * hk_job_jobs(job);
}

static inline int hk_job_pp(const hk_job *job) {
  return job->pp > 1 ? job->pp : 1;
}
static inline int hk_job_chunks(const hk_job *job) {
  return job->chunks > 1 ? job->chunks : 1;
}
static inline int hk_job_ep(const hk_job *job) {
  return job->ep > 1 ? job->ep : 1;
}
/* Whether data-parallel ranks divide the optimizer state alone (ZeRO-1): each has all weights of
 * its stage, sums gradients over the micro-steps, and reduces them in the last one. So pipelines
 * train; without one, weights are divided, too (ZeRO-3). */
static inline bool hk_job_keeps_weights(const hk_job *job) {
  return hk_job_pp(job) > 1;
}
/* Time of m micro-steps on a stage, with filling and draining the pipeline, divided by the time
 * without: 1 + (pp - 1) / (chunks x m) (Narayanan et al., arXiv 2104.04473, section 2.2). */
double hk_job_fill(const hk_job *job);
/* Micro-batches whose activations the first stage keeps: pp, interleaved pp + (pp - 1) / chunks,
 * and at most m (Korthikanti et al., arXiv 2205.05198, section 4.2.3). */
double hk_job_in_flight(const hk_job *job);
/* hk_model_activation_bytes and hk_model_backward_workspace_bytes of a job. */
hk_bytes hk_job_activation_bytes(const hk_job *job, const hk_model *model, int block);
hk_bytes hk_job_workspace_bytes(const hk_job *job, const hk_model *model, int block);

int hk_job_dp(const hk_job *job);
/* Ranks with the same experts, which divide their state: tp x dp / ep (Megatron-Core with expert
 * tensor parallelism 1, Liu et al., arXiv 2504.14960); without expert parallelism dp. */
int hk_job_expert_dp(const hk_job *job);
/* Bytes that a rank sends to others in one all-to-all of a layer, to the experts or back: the bf16
 * vectors of its tokens for the k experts of each, of which 1/ep stay, if experts get equally many
 * tokens (Rajbhandari et al., arXiv 2201.05596; Hwang et al., arXiv 2206.03382). 0: none. */
double hk_job_routed_bytes(const hk_job *job, const hk_model *model, int block);
double hk_job_tokens(const hk_job *job); /* of an iteration, on all ranks */

typedef struct {
  int64_t numel;
  hk_route route;
  bool ahead; /* may be updated before the norm is known, into 12 spare bytes per parameter of host
                 memory; only with overlap `both` and on route cpu */
  bool early; /* its new weights are also copied before the norm is known, into 2 spare bytes per
                 parameter of GPU memory; only with `ahead` */
  bool held_staged; /* in steps in which nothing runs ahead the GPU updates it: state and gradients
                       are copied from host memory to a staging buffer, and state back, into the
                       spare bytes; only with `ahead` */
} hk_plan_subgroup;

typedef struct {
  hk_model model;   /* owned */
  char machine[96]; /* name of the machine it was planned for; information only */
  hk_job job;
  char policy[32];
  hk_runtime runtime;
  int stride;   /* one of `stride` subgroups is updated on the GPU; 0: the policy has no stride */
  double ratio; /* fraction of the subgroups whose state is in host memory */
  hk_flush flush;
  int flush_bytes_per_param; /* 2 (the gradient's own type) or 4 (fp32, cast on the GPU before the
                                copy) */
  int flush_blocks;  /* of each rank: blocks whose gradients may be on the GPU, to be reduced or
                        copied to the host; 0: no limit */
  bool reduce_first; /* backward: a block's gradients are reduced before weights are gathered */
  hk_overlap overlap;
  hk_optimizer optimizer;
  hk_accumulate accumulate; /* as chosen; see hk_plan_accumulates */
  hk_clip clip;             /* an engine's caller chooses this, whatever the plan says */
  hk_guess_costs guess;     /* of clipping by the norm; only with overlap `both` */
  hk_steps steps;           /* for simulations; not in plan files, and the engine runs both kinds */
  hk_bytes sum_bytes;  /* GPU memory for sums of route cpu's gradients over several micro-steps;
                          more sums are in host memory between micro-steps */
  int buffers;         /* staging buffers in flight, each of piece_numel parameters */
  int64_t piece_numel; /* largest piece, in parameters, of subgroups that are not resident */
  bool steals;         /* has staging buffers for stolen pieces (hk_plan_steals) although it stages
                          nothing; only with an overlap */
  int cpu_threads;     /* of one rank's CPU team; see hk_team_size */
  bool cores_bound;    /* each rank is bound to its own cores; if not, its team runs on any core */
  hk_subgroup_rule subgroup_rule;
  int64_t subgroup_numel;      /* requested size */
  hk_plan_subgroup *subgroups; /* in the rank's flat parameter order */
  size_t n_subgroups;
  int32_t *order; /* order[i] is the i-th subgroup to be updated */
} hk_plan;

extern const char *const hk_route_names[HK_ROUTE_COUNT];
extern const char *const hk_runtime_names[2];
extern const char *const hk_overlap_names[HK_OVERLAP_COUNT];       /* "none", "forward", "both" */
extern const char *const hk_accumulate_names[HK_ACCUMULATE_COUNT]; /* "gpu", "host" */
extern const char *const hk_clip_names[HK_CLIP_COUNT];             /* "norm", "block" */
const char *hk_route_name(hk_route route);                         /* "cpu" ... */
const char *hk_runtime_name(hk_runtime runtime);                   /* "hocket", "deepspeed" */

/* A plan that updates everything on the CPU, for a policy to change: subgroups by `rule`, all on
 * route cpu, in stored order; ratio 1, asynchronous flush (2 bytes per gradient, 4 under
 * DeepSpeed), one CPU thread. On success takes over *model, which is zeroed. `subgroup_numel` > 0.
 */
hk_status hk_plan_create(hk_model *model, const hk_job *job, hk_runtime runtime,
                         hk_subgroup_rule rule, int64_t subgroup_numel, hk_plan *plan,
                         hk_error *err);
/* Sets the overlap. With an overlap subgroups are updated in forward order. Clears every `ahead`
 * and `early`, without one also `steals`. */
void hk_plan_set_overlap(hk_plan *plan, hk_overlap overlap);
/* A copy that can be changed independently. Both share what the model points to (hk_model_copy). */
hk_status hk_plan_copy(const hk_plan *from, hk_plan *to, hk_error *err);
void hk_plan_free(hk_plan *plan);

/* Checks a plan: subgroups add up to the rank's parameters, order is a permutation, tp divides the
 * GPUs of a node, and so on. HK_INPUT with the first violation. */
hk_status hk_plan_check(const hk_plan *plan, hk_error *err);
hk_status hk_job_check(const hk_job *job, const hk_model *model, hk_error *err);

hk_status hk_plan_load(const char *path, hk_plan *plan, hk_error *err);
hk_status hk_plan_from_json(const cJSON *root, hk_plan *plan, hk_error *err);
cJSON *hk_plan_to_json(const hk_plan *plan); /* NULL when out of memory */

/* "interleave k=2 r=0.80": the policy and those of its settings that matter. Returns `buffer`. */
const char *hk_plan_title(const hk_plan *plan, char *buffer, size_t size);

/* The first and the last block of which each subgroup holds parameters, numbered from 0 in forward
 * order (hk_tensor.block - HK_BLOCK_EMBED). `first` and `last` have n_subgroups entries. */
void hk_plan_subgroup_blocks(const hk_plan *plan, int32_t *first, int32_t *last);

/* With overlap `both`: marks subgroups on route cpu `ahead`, beginning with subgroup `deepest` and
 * going towards the first, while their spares (hk_spare_bytes) fit in `spares` bytes of host memory
 * per rank. Clears all other marks. */
void hk_plan_run_ahead_within(hk_plan *plan, hk_bytes spares, size_t deepest);

/* Parameters of one rank in subgroups that are `ahead`, and in those that are `early`; 0 without
 * overlap `both`. */
int64_t hk_plan_ahead(const hk_plan *plan);
int64_t hk_plan_early(const hk_plan *plan);
/* The same of those that are staged in steps in which nothing runs ahead. */
int64_t hk_plan_held_staged(const hk_plan *plan);

/* Whether the GPU may take pieces from the CPU team while a step is under way (work stealing):
 * hocket's runtime with an overlap and staging buffers, those of staged subgroups or of its own. */
bool hk_plan_steals(const hk_plan *plan);
/* If so: whether pieces of subgroup s. Not if it is held_staged, nor if it runs ahead under
 * clipping by block, because the constants of its step are then known before those of others. */
bool hk_plan_stealable(const hk_plan *plan, size_t s);

/* Whether gradients of subgroup s wait, on their way to the host and over several micro-steps, in
 * the GPU memory of its early weights, which is free until they have been copied. So they do if
 * they are of 16 bits. `begin`: the subgroup's first parameter. */
bool hk_plan_grads_wait_early(const hk_plan *plan, size_t s, int64_t begin);

/* Other gradients that a framework hands over pass through slots of GPU memory on their way to the
 * host, a piece of a subgroup each. How many slots `pieces` of at most `largest` bytes have: as
 * many as 512 MiB hold, at least 2 and at most 8; beyond these as many as `sum_bytes` hold; and no
 * more than pieces. */
int64_t hk_grad_slots(int64_t pieces, hk_bytes largest, hk_bytes sum_bytes);
/* Of `slots`, those that keep sums between micro-steps; the others let gradients pass. */
int64_t hk_grad_kept(int64_t pieces, hk_bytes largest, int64_t slots);
/* The same for a plan's pieces of bf16 gradients on route cpu that pass through slots. */
typedef struct {
  int64_t pieces, slots, kept;
  hk_bytes bytes; /* of all slots */
} hk_grad_room;
hk_grad_room hk_plan_grad_room(const hk_plan *plan);

/* Share of a rank's parameters whose sums leave the GPU and come back between micro-steps, if
 * gradients are handed over. 0: with one micro-step none, or all stay. */
double hk_plan_passing_share(const hk_plan *plan);

/* Whether a framework hands gradients over to the engine as it makes them: models that a document
 * lists are trained so, and plans with an overlap, on one GPU. The framework then frees each at
 * once; the engine keeps those of state on the GPU in an array, and sends the others through a few
 * slots. */
bool hk_plan_hands_over(const hk_plan *plan);
/* Where gradients of route cpu are summed: as the plan has chosen, except HK_ACCUMULATE_GPU if
 * there is one micro-step, and HK_ACCUMULATE_HOST instead of HK_ACCUMULATE_GPU under DeepSpeed or
 * if gradients are handed over. */
hk_accumulate hk_plan_accumulates(const hk_plan *plan);

/* Subgroups of one rank on a route. */
size_t hk_plan_count(const hk_plan *plan, hk_route route);
/* Parameters of one rank on a route, and on each. */
int64_t hk_plan_on_route(const hk_plan *plan, hk_route route);
void hk_plan_route_totals(const hk_plan *plan, int64_t totals[HK_ROUTE_COUNT]);
/* State of one rank that stays on the GPU, bytes. */
hk_bytes hk_plan_gpu_state(const hk_plan *plan);
/* Staging buffers of one rank with room for gradients, as held and stolen pieces need them, bytes.
 */
hk_bytes hk_plan_spare_staging(const hk_plan *plan);
/* GPU memory of one rank that --gpu-memory limits, bytes. Without an overlap: state that stays
 * there. With one also that state's gradients, early weights, sums of several micro-steps, and
 * staging buffers that only clipped steps need. */
hk_bytes hk_plan_gpu_kept(const hk_plan *plan);
/* Whether it is at most *limit (NULL: no limit). */
bool hk_plan_keeps_within(const hk_plan *plan, const hk_bytes *limit);

/* Whether, under DeepSpeed, the step is that of the Deep Optimizer States prototype. It is if a
 * subgroup is staged or the plan has a stride, even one that no subgroup reaches. */
bool hk_plan_interleaves(const hk_plan *plan);

#endif
