/* SPDX-License-Identifier: Apache-2.0 */
/* Expands a plan into the task graph: the order of the phases. Forward and backward are in
 * expand_training.c, the optimizer steps of the two runtimes in expand_hocket.c and
 * expand_deepspeed.c, additions for an overlap in expand_overlap.c, costs of blocks in
 * expand_costs.c, memory in expand_memory.c, expand_sizes.c and expand_window.c. They add
 * operations by expand_add.c. */
#include "core/graph/expand.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"
#include "core/graph/bytes.h"
#include "core/machine/team.h"

/* Adds `op` on the host lane of the first `ranks` ranks, after the last operation of every lane of
 * every rank. Returns the id of the last one added. */
static int32_t add_after_all(hk_expansion *x, int ranks, hk_op op) {
  const size_t n = (size_t)x->graph->ranks * HK_LANE_KIND_COUNT;
  int32_t *deps = malloc(n * sizeof *deps);
  if (deps == NULL) {
    x->status = hk_fail_memory(x->err, n * sizeof *deps, "a barrier of the task graph");
    return -1;
  }
  memcpy(deps, x->last, n * sizeof *deps);
  int32_t id = -1;
  for (int rank = 0; rank < ranks; rank++) id = hk_expand_add(x, rank, HK_LANE_HOST, op, deps, n);
  free(deps);
  return id;
}

/* Adds a barrier behind the last operation of every lane of every rank. */
static int32_t barrier(hk_expansion *x) {
  if (x->plan->overlap != HK_OVERLAP_NONE) return hk_expand_barrier_pieces(x);
  hk_op op = hk_expand_op(HK_OP_BARRIER, 0);
  if (hk_expand_torchs(x))
    op.copied = hk_plan_on_route(x->plan, HK_ROUTE_RESIDENT) * HK_BYTES_CLIP / 2;
  return add_after_all(x, 1, op);
}

static void add_between_phases(hk_expansion *x, hk_op_kind kind, int micro) {
  hk_op op = hk_expand_op(kind, 0);
  op.micro = micro;
  add_after_all(x, x->graph->ranks, op);
}

/* DeepSpeed, before a phase, when all lanes of all ranks are idle: one operation for two memory
 * reports, each after a garbage collection. `micro`: the next micro-step; grad_accum before the
 * update. Adds nothing under hocket. */
static void boundary(hk_expansion *x, int micro) {
  if (x->plan->runtime == HK_RUNTIME_DEEPSPEED) add_between_phases(x, HK_OP_MEMORY_REPORT, micro);
}

/* The prototype's release of cached GPU memory, before an iteration. */
static void cache_release(hk_expansion *x) {
  if (x->plan->runtime == HK_RUNTIME_DEEPSPEED && hk_plan_interleaves(x->plan))
    add_between_phases(x, HK_OP_CACHE_RELEASE, 0);
}

/* The caller hands over gradients in any order; the graph lists them in the order of backward. */
static void expand_flush(hk_expansion *x) {
  x->phase = HK_PHASE_BACKWARD;
  for (int rank = 0; rank < x->graph->ranks; rank++) {
    for (size_t s = x->plan->n_subgroups; s-- > 0;)
      hk_expand_flush_subgroup(x, rank, (int32_t)s, -1, -1);
  }
}

static hk_status expand(hk_expansion *x, unsigned phases) {
  const hk_plan *plan = x->plan;
  const size_t sums = (size_t)x->graph->ranks * HK_SUMS_IN_FLIGHT;
  memset(x->summed, -1, sums * sizeof *x->summed);
  memset(x->left, -1, (size_t)x->graph->ranks * (size_t)x->n_blocks * sizeof *x->left);
  memset(x->n_flushed, 0, sizeof x->n_flushed);
  if (hk_expands_engine(plan, phases)) expand_flush(x);
  if (phases & HK_EXPAND_TRAINING) {
    x->phase = HK_PHASE_FORWARD;
    cache_release(x);
    for (int micro = 0; micro < plan->job.grad_accum; micro++) {
      x->phase = HK_PHASE_FORWARD;
      boundary(x, micro);
      if (phases & 1u << HK_PHASE_FORWARD) hk_expand_forward(x, micro);
      x->phase = HK_PHASE_BACKWARD;
      boundary(x, micro);
      if (phases & 1u << HK_PHASE_BACKWARD) hk_expand_backward(x, micro);
    }
    boundary(x, plan->job.grad_accum);
  }
  if (phases & HK_EXPAND_UPDATE) {
    x->phase = HK_PHASE_UPDATE;
    const int32_t begin = barrier(x);
    for (int rank = 0; rank < x->graph->ranks; rank++) {
      if (plan->runtime == HK_RUNTIME_DEEPSPEED) {
        hk_expand_update_deepspeed(x, rank, begin);
      } else {
        hk_expand_update_hocket(x, rank, begin);
      }
      const bool trains = (phases & HK_EXPAND_TRAINING) != 0;
      if (trains && hk_expand_fsdp(x) && !hk_expand_torchs(x)) hk_expand_step_host(x, rank, begin);
    }
  }
  return x->status;
}

/* Whether copies are queued throughout the update (hk_team_size). Counts operations of one rank and
 * one iteration. */
static bool queues_throughout(const hk_plan *plan, const hk_graph *graph) {
  size_t staged = 0, on_cpu = 0;
  if (plan->runtime != HK_RUNTIME_HOCKET) return false;
  for (size_t i = 0; i < graph->n_ops / (size_t)graph->iterations; i++) {
    if (graph->ops[i].rank != 0) continue;
    staged += graph->ops[i].kind == HK_OP_STATE_H2D && graph->ops[i].when != HK_WHEN_STOLEN;
    on_cpu += graph->ops[i].kind == HK_OP_ADAMW_CPU;
  }
  return on_cpu > 0 && staged > HK_QUEUED_AHEAD;
}

/* For about as many operations as there will be, so that few are copied as the graph grows. */
static hk_status make_room(hk_expansion *x, hk_expand what) {
  enum { MOST = 1 << 15 };
  hk_graph *g = x->graph;
  const int64_t each = 8 * (int64_t)x->n_blocks + 4 * (int64_t)x->pieces.n_pieces;
  const size_t n = (size_t)hk_min(MOST, g->ranks * what.iterations * each);
  HK_TRY(HK_GROW(g->ops, g->capacity_ops, n, "the task graph", x->err));
  return HK_GROW(g->deps, g->capacity_deps, 2 * n, "the task graph", x->err);
}

/* The first iteration has none before it. All others are alike: the third and later ones are copies
 * of the second. */
static hk_status expand_all(hk_expansion *x, hk_expand what) {
  size_t begin = 0; /* of the latest iteration */
  if (!what.bare) HK_TRY(make_room(x, what));
  for (int i = 0; i < 2 && i < what.iterations && !what.bare; i++) {
    begin = x->graph->n_ops;
    HK_TRY(expand(x, what.phases));
  }
  return hk_graph_repeat(x->graph, begin, what.bare ? 0 : what.iterations - 2, x->err);
}

/* Whether memory before the first operation depends on the costs of blocks: with a pipeline their
 * activations wait, and DeepSpeed gathers whole blocks. */
static bool needs_costs(const hk_plan *plan) {
  return hk_job_pp(&plan->job) > 1 || plan->runtime == HK_RUNTIME_DEEPSPEED;
}

static hk_status fill(hk_expansion *x, hk_expand what) {
  if (!what.bare) HK_TRY(hk_expand_pieces_open(x));
  for (size_t s = 0; s < x->plan->n_subgroups; s++)
    x->begin[s + 1] = x->begin[s] + x->plan->subgroups[s].numel;
  if (!what.bare || needs_costs(x->plan)) hk_expand_costs(x);
  hk_expand_base_memory(x, what.phases);
  HK_TRY(expand_all(x, what));
  x->graph->queues_throughout = queues_throughout(x->plan, x->graph);
  x->graph->launch_beside_update =
      hk_launch_share(&x->plan->model.launch_beside_update, x->plan->cpu_threads);
  return HK_OK;
}

/* Whether kernels fetch new weights from host memory. Without an overlap a copy would wait behind
 * all the state that is queued for the copy engine. With one, state and weights share a lane that
 * picks the next copy, and copies are better: kernels keep matrix products from their
 * multiprocessors (backward took 12 % longer on an H200), fetch weights at 44 % of their rate
 * beside forward, and slow copies to the host. */
static bool pulls_weights(const hk_plan *plan) {
  return plan->runtime == HK_RUNTIME_HOCKET && plan->overlap == HK_OVERLAP_NONE;
}

/* Sums that the engine's slots do not keep leave between micro-steps, and are fetched as many
 * blocks ahead as the other slots hold. Those that wait where early weights will be stay there. */
static void find_passing(hk_expansion *x) {
  const hk_grad_room room = hk_plan_grad_room(x->plan);
  const int64_t pass = room.pieces - room.kept, ahead = (room.slots - room.kept) * x->n_blocks;
  x->passing = pass > 0 ? (double)pass / (double)room.pieces : 0;
  x->fetch_ahead = pass > 0 ? (int)hk_max(1, ahead / pass) : 1;
}

static hk_status build(const hk_plan *plan, hk_expand what, hk_graph *graph, hk_error *err) {
  const hk_job *job = &plan->job;
  memset(graph, 0, sizeof *graph);
  graph->ranks = what.folded ? 1 : job->gpus;
  graph->multiplicity = hk_job_ranks(job) / graph->ranks;
  graph->world = job->gpus * job->nodes;
  graph->nodes = job->nodes;
  graph->tp = job->tp;
  graph->pp = hk_job_pp(job);
  graph->ep = hk_job_ep(job);
  graph->cores_unbound = !plan->cores_bound;
  graph->weights_pulled = pulls_weights(plan);
  graph->optimizer = plan->optimizer;
  graph->grads_widened = plan->runtime == HK_RUNTIME_DEEPSPEED;
  graph->layers = (int32_t)plan->model.layers;
  graph->iterations = what.iterations;

  hk_expansion x = {.plan = plan,
                    .graph = graph,
                    .err = err,
                    .dp = hk_job_dp(job),
                    .expert_dp = hk_job_expert_dp(job),
                    .keeps_weights = hk_job_keeps_weights(job) && hk_job_dp(job) > 1,
                    .handed = hk_plan_hands_over(plan) && (what.phases & HK_EXPAND_TRAINING) != 0,
                    .both_steps = hk_expands_engine(plan, what.phases),
                    .accumulate = hk_plan_accumulates(plan),
                    .n_blocks = (int)plan->model.layers + 2};
  const size_t slots = (size_t)graph->ranks * HK_LANE_KIND_COUNT;
  x.blocks = calloc((size_t)x.n_blocks, sizeof *x.blocks);
  x.lanes = malloc(slots * sizeof *x.lanes);
  x.last = malloc(slots * sizeof *x.last);
  x.memory = calloc((size_t)graph->ranks, sizeof *x.memory);
  const size_t buffers = (size_t)graph->ranks * (size_t)plan->buffers;
  x.buffers = malloc(buffers * sizeof *x.buffers);
  x.begin = calloc(plan->n_subgroups + 1, sizeof *x.begin);
  const size_t sums = (size_t)graph->ranks * HK_SUMS_IN_FLIGHT;
  x.summed = malloc(sums * sizeof *x.summed);
  x.flushed = malloc((size_t)graph->ranks * (size_t)x.n_blocks * sizeof *x.flushed);
  x.left = malloc((size_t)graph->ranks * (size_t)x.n_blocks * sizeof *x.left);
  find_passing(&x);
  hk_status status;
  if (x.blocks == NULL || x.lanes == NULL || x.last == NULL || x.memory == NULL ||
      x.begin == NULL || x.buffers == NULL || x.summed == NULL || x.flushed == NULL ||
      x.left == NULL) {
    status = hk_fail_memory(err, (size_t)x.n_blocks * sizeof *x.blocks, "the task graph");
  } else {
    memset(x.lanes, -1, slots * sizeof *x.lanes);
    memset(x.last, -1, slots * sizeof *x.last);
    memset(x.buffers, -1, buffers * sizeof *x.buffers);
    status = fill(&x, what);
  }
  hk_expand_pieces_close(&x);
  free(x.begin);
  free(x.buffers);
  free(x.summed);
  free(x.flushed);
  free(x.left);
  free(x.blocks);
  free(x.lanes);
  free(x.last);
  free(x.memory);
  if (status != HK_OK) hk_graph_free(graph);
  return status;
}

hk_status hk_graph_build(const hk_plan *plan, hk_expand what, hk_graph *graph, hk_error *err) {
  hk_error local = {0};
  if (err == NULL) err = &local;
  memset(graph, 0, sizeof *graph);
  if (what.iterations < 0 || what.iterations > HK_MOST_ITERATIONS)
    return hk_fail(err, HK_INPUT, "%d iterations: expected 1 to %d", what.iterations,
                   HK_MOST_ITERATIONS);
  if (what.iterations > 1 && (plan->overlap == HK_OVERLAP_NONE || what.phases != HK_EXPAND_ALL))
    return hk_fail(
        err, HK_INPUT,
        "several iterations of a plan without an overlap, or of some phases, are one iteration "
        "repeated; build one");
  if (what.iterations == 0) what.iterations = 1;
  return build(plan, what, graph, err);
}
