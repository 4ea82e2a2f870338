/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The memory of each way, from the task graphs of three policies on one rank and on N. */
#include "sim/footprint.h"

#include <math.h>
#include <string.h>

#include "core/graph/graph.h"
#include "sim/policy.h"

#define SUBGROUP 100000000 /* as in rankings (rank.c) */

static const struct {
  const char *name, *meaning;
} ways_of[HK_WAY_COUNT] = {
    [HK_WAY_GPU] = {"one GPU", "weights, gradients and state on the GPU"},
    [HK_WAY_OFFLOAD] = {"one GPU, offload", "state on the host, updated by the CPU"},
    [HK_WAY_STREAM] = {"one GPU, stream", "state on the host, updated on the GPU"},
    [HK_WAY_ZERO1] = {"zero-1", "state divided over the GPUs"},
    [HK_WAY_ZERO2] = {"zero-2", "state and gradients divided"},
    [HK_WAY_ZERO3] = {"zero-3", "state, gradients and weights divided"},
    [HK_WAY_ZERO3_OFFLOAD] = {"zero-3, offload", "divided, state on the host, CPU"},
    [HK_WAY_ZERO3_STREAM] = {"zero-3, stream", "divided, state on the host, GPU"},
};

const char *hk_way_name(hk_way way) {
  return ways_of[way].name;
}

const char *hk_way_meaning(hk_way way) {
  return ways_of[way].meaning;
}

bool hk_way_is_divided(hk_way way) {
  return way >= HK_WAY_ZERO1;
}

hk_activations hk_activations_of(const hk_model *model, const hk_job *job) {
  hk_activations sum = {0};
  const double in_flight = hk_job_in_flight(job);
  for (int block = HK_BLOCK_EMBED; block <= (int)model->layers; block++) {
    const hk_bytes once = hk_job_activation_bytes(job, model, block);
    const bool layer = block < (int)model->layers;
    const hk_bytes saved =
        layer && in_flight > 1 ? (hk_bytes)fmin(in_flight * (double)once, 0x1p60) : once;
    const hk_bytes workspace = hk_job_workspace_bytes(job, model, block);
    if (__builtin_add_overflow(sum.saved, saved, &sum.saved)) sum.saved = INT64_MAX;
    sum.workspace = hk_max(sum.workspace, workspace);
  }
  return sum;
}

/* -- One plan ---------------------------------------------------------------------------------- */

/* The next gather of weights in the pass that operation i belongs to; NULL: none. */
static const hk_op *next_gather(const hk_graph *graph, size_t i) {
  const hk_op *now = &graph->ops[i];
  for (i++; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    if (op->phase != now->phase || op->micro != now->micro) return NULL;
    if (op->kind == HK_OP_ALL_GATHER && op->rank == now->rank) return op;
  }
  return NULL;
}

/* Blocks whose gradients, with the sums that they are added to, wait in GPU memory for their copy
 * while another block computes. */
typedef enum {
  WAITING_NONE,
  WAITING_ONE, /* sums in host memory: a block's backward waits for the copy of the second block
                  behind it (HK_SUMS_IN_FLIGHT in core/graph/expand.h) */
  WAITING_ALL  /* until the barrier at the end of backward */
} hk_waiting;

/* A copy that frees `bytes` is queued behind copies that free `*queued`. Returns the bytes of those
 * that have ended by then. */
static hk_bytes queue_copy(hk_waiting waiting, hk_bytes bytes, hk_bytes *queued) {
  if (waiting == WAITING_NONE) return bytes;
  const hk_bytes ended = waiting == WAITING_ONE ? *queued : 0;
  *queued += bytes - ended;
  return ended;
}

static bool is_gradient_copy(const hk_op *op) {
  return op->kind == HK_OP_GRAD_D2H || op->kind == HK_OP_GRAD_SUM_D2H;
}

/* The peak of the first rank if its operations run one after another, the gather of the next
 * block's weights before a block's computation. */
static hk_bytes peak_of(const hk_graph *graph, hk_waiting waiting) {
  hk_bytes now = graph->gpu_base, peak = now, queued = 0;
  const hk_op *early = NULL; /* a gather that was made before its turn */
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    if (op->rank != 0) continue;
    if (op->kind == HK_OP_FORWARD || op->kind == HK_OP_BACKWARD) {
      early = next_gather(graph, i);
      if (early) now += early->gpu_alloc;
    }
    if (op->kind == HK_OP_BARRIER) now -= queued;
    if (op != early) now += op->gpu_alloc;
    peak = hk_max(peak, now);
    now -= is_gradient_copy(op) ? queue_copy(waiting, op->gpu_free, &queued) : op->gpu_free;
  }
  return peak;
}

static hk_waiting most_waiting(const hk_plan *plan) {
  return hk_plan_accumulates(plan) == HK_ACCUMULATE_GPU ? WAITING_ALL : WAITING_ONE;
}

/* What all ways have in common. */
typedef struct {
  const hk_model *model;
  const hk_job *job;
  hk_optimizer optimizer;
  hk_accumulate accumulate;
} hk_training;

static hk_status plan_of(const hk_training *t, const hk_job *job, const hk_policy *policy,
                         hk_plan *plan, hk_error *err) {
  hk_model copy = {0};
  HK_TRY(hk_model_copy(t->model, &copy, err));
  hk_status status =
      hk_plan_create(&copy, job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, SUBGROUP, plan, err);
  hk_model_free(&copy);
  HK_TRY(status);
  plan->optimizer = t->optimizer;
  if (policy == &hk_policy_zero_offload) plan->accumulate = t->accumulate;
  status = hk_policy_apply(policy, &HK_POLICY_OPTIONS_NONE, NULL, plan, err);
  if (status != HK_OK) hk_plan_free(plan);
  return status;
}

/* One GPU for each tensor-parallel rank is a node: as many nodes as data-parallel ranks. The graph
 * of such a job is small, and the memory of a rank does not depend on how nodes are formed. */
static hk_status one_plan(const hk_training *t, int ranks, const hk_policy *policy,
                          hk_footprint *out, hk_error *err) {
  const hk_model *model = t->model;
  const int tp = t->job->tp;
  hk_job spread = *t->job;
  hk_plan plan = {0};
  hk_graph graph = {0};
  spread.gpus = tp;
  spread.nodes = ranks * hk_job_pp(t->job);
  HK_TRY(plan_of(t, &spread, policy, &plan, err));
  hk_status status = hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, err);
  if (status == HK_OK) {
    const int share = hk_job_keeps_weights(t->job) ? 1 : ranks; /* of weights */
    const int64_t n = hk_model_rank_parameters(model, tp, share);
    *out = (hk_footprint){
        .ranks = ranks,
        .gpu = peak_of(&graph, most_waiting(&plan)),
        .gpu_least = peak_of(&graph, WAITING_NONE),
        .weights = hk_model_weight_bytes(model, tp, share, 0, n) +
                   hk_model_all_frozen_bytes(model, tp, share),
        .host = graph.host_base * ranks * hk_job_pp(t->job),
    };
    if (policy == &hk_policy_gpu_only) {
      out->optimizer = hk_state_bytes(t->optimizer, hk_plan_on_route(&plan, HK_ROUTE_RESIDENT));
      out->gradients = hk_model_grad_bytes(model, tp, share, 0, n);
    }
    out->rest = out->gpu - out->weights - out->gradients - out->optimizer;
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return status;
}

/* -- ZeRO-1 and ZeRO-2 ------------------------------------------------------------------------- */

static hk_bytes largest_block_grads(const hk_model *model, int tp) {
  hk_bytes largest = 0;
  for (int block = HK_BLOCK_EMBED; block <= (int)model->layers; block++) {
    int64_t begin, end;
    hk_model_block_interval(model, block, tp, 1, &begin, &end);
    largest = hk_max(largest, hk_model_grad_bytes(model, tp, 1, begin, end));
  }
  return largest;
}

/* `whole` is the footprint of one rank, `shared` that of ZeRO-3, which has a rank's shares. */
static void divide(const hk_model *model, const hk_job *job, const hk_footprint *whole,
                   const hk_footprint *shared, hk_footprint ways[HK_WAY_COUNT]) {
  hk_footprint first = *whole;
  first.ranks = shared->ranks;
  first.optimizer = shared->optimizer;
  first.gpu_least = first.gpu -= whole->optimizer - shared->optimizer;
  hk_footprint second = first;
  const hk_bytes bucket = shared->ranks > 1 ? largest_block_grads(model, job->tp) : 0;
  second.gradients = shared->gradients;
  second.rest += bucket;
  second.gpu_least = second.gpu += bucket - (whole->gradients - shared->gradients);
  ways[HK_WAY_ZERO1] = first;
  ways[HK_WAY_ZERO2] = second;
}

hk_status hk_footprint_make(const hk_model *model, const hk_job *job, hk_optimizer optimizer,
                            hk_accumulate accumulate, hk_footprint ways[HK_WAY_COUNT],
                            hk_error *err) {
  const hk_training training = {model, job, optimizer, accumulate};
  static const struct {
    hk_way alone, divided;
    const hk_policy *policy;
  } plans[] = {{HK_WAY_GPU, HK_WAY_ZERO3, &hk_policy_gpu_only},
               {HK_WAY_OFFLOAD, HK_WAY_ZERO3_OFFLOAD, &hk_policy_zero_offload},
               {HK_WAY_STREAM, HK_WAY_ZERO3_STREAM, &hk_policy_streamed}};
  HK_TRY(hk_job_check(job, model, err));
  memset(ways, 0, HK_WAY_COUNT * sizeof *ways);
  for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
    const hk_policy *policy = plans[i].policy;
    if (policy == &hk_policy_zero_offload && hk_optimizer_info_of(optimizer)->orthogonal) continue;
    /* Divided experts are on several ranks. */
    if (hk_job_ep(job) <= job->tp)
      HK_TRY(one_plan(&training, 1, policy, &ways[plans[i].alone], err));
    HK_TRY(one_plan(&training, hk_job_dp(job), policy, &ways[plans[i].divided], err));
  }
  if (hk_job_keeps_weights(job)) {
    /* Data-parallel ranks of a pipeline divide the state alone. */
    ways[HK_WAY_ZERO1] = ways[HK_WAY_ZERO3];
    for (int way = HK_WAY_ZERO2; way < HK_WAY_COUNT; way++) ways[way] = (hk_footprint){0};
    return HK_OK;
  }
  if (ways[HK_WAY_GPU].ranks == 0) return HK_OK;
  divide(model, job, &ways[HK_WAY_GPU], &ways[HK_WAY_ZERO3], ways);
  return HK_OK;
}
