/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The expansion of a plan against closed forms: bytes moved, work, and memory of an iteration,
 * for every policy under both runtimes on small jobs. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fixture_graph.h"

/* tiny_model(LAYERS), by hand: embedding and head of 256 x 64, layers of four 64 x 64 and three
 * 64 x 128 matrices, two norms of 64 a layer and one in the head. */
#define MATRICES (2 * 256 * 64 + LAYERS * (4 * 64 * 64 + 3 * 64 * 128))
#define NORMS    ((2 * LAYERS + 1) * 64)

/* -- Counting ---------------------------------------------------------------------------------- */

/* Parameters of the model that one tensor-parallel rank has: norms are on every one. */
static int64_t weights_of(const hk_job *job) {
  return MATRICES / job->tp + NORMS;
}

/* Sums over a rank's operations, per kind and phase. */
typedef struct {
  int64_t n[HK_OP_KIND_COUNT], work[HK_PHASE_COUNT][HK_OP_KIND_COUNT];
  hk_bytes gpu_taken, gpu_given, gpu_least;
} tally;

static tally tally_of(const hk_graph *graph, int rank) {
  tally t = {0};
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    if (op->rank != rank) continue;
    t.n[op->kind]++;
    t.work[op->phase][op->kind] += op->work;
    t.gpu_taken += op->gpu_alloc;
    t.gpu_given += op->gpu_free;
    if (t.gpu_taken - t.gpu_given < t.gpu_least) t.gpu_least = t.gpu_taken - t.gpu_given;
  }
  return t;
}

/* -- What holds for every graph ---------------------------------------------------------------- */

static void check_order(const hk_graph *graph) {
  int32_t deps = 0;
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    assert_int_equal(op->deps_begin, deps); /* lists follow each other without a gap */
    assert_true(op->deps_end >= op->deps_begin);
    deps = op->deps_end;
    for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
      assert_in_range(graph->deps[d], 0, i - 1);
      assert_true(graph->ops[graph->deps[d]].phase <= op->phase || op->micro > 0);
    }
    assert_true(op->work >= 0 && op->gpu_alloc >= 0 && op->gpu_free >= 0);
    assert_in_range(op->lane, 0, graph->n_lanes - 1);
    assert_int_equal(graph->lanes[op->lane].rank, op->rank);
    assert_true((op->micro >= 0) == (op->phase != HK_PHASE_UPDATE));
  }
  assert_int_equal(deps, graph->n_deps);
}

static int compare_text(const void *a, const void *b) {
  return strcmp(a, b);
}

static void check_labels(const hk_graph *graph) {
  char(*labels)[64] = calloc(graph->n_ops, sizeof *labels);
  assert_non_null(labels);
  for (size_t i = 0; i < graph->n_ops; i++) {
    const int lane = snprintf(labels[i], 8, "%03d ", (int)graph->ops[i].lane);
    hk_op_label(graph, (int32_t)i, labels[i] + lane, sizeof labels[i] - (size_t)lane);
  }
  qsort(labels, graph->n_ops, sizeof *labels, compare_text);
  for (size_t i = 1; i < graph->n_ops; i++) {
    if (strcmp(labels[i - 1], labels[i]) == 0)
      fail_msg("two operations of a lane have the label '%s'", labels[i]);
  }
  free(labels);
}

/* -- Closed forms ------------------------------------------------------------------------------ */

/* Deep Optimizer States as published: a stride, or a subgroup that makes the round trip. */
static bool is_prototype(const hk_plan *plan) {
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  return plan->runtime == HK_RUNTIME_DEEPSPEED && (plan->stride > 0 || n[HK_ROUTE_STAGED] > 0);
}

/* FSDP2's host thread at the beginning of forward, and in hocket's step, which waits for the norm;
 * torch's own, with all state on the GPUs, does not. */
static int fsdp_steps(const hk_plan *plan) {
  int64_t n[HK_ROUTE_COUNT];
  if (hk_job_dp(&plan->job) == 1 || hk_job_keeps_weights(&plan->job)) return 0;
  hk_plan_route_totals(plan, n);
  const bool resident = n[HK_ROUTE_CPU] + n[HK_ROUTE_STAGED] + n[HK_ROUTE_MAPPED] == 0;
  return resident && plan->overlap == HK_OVERLAP_NONE ? 1 : 2;
}

static void check_update(const hk_plan *plan, const tally *t) {
  const int64_t *work = t->work[HK_PHASE_UPDATE];
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  const int64_t cpu = n[HK_ROUTE_CPU], staged = n[HK_ROUTE_STAGED];
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  assert_int_equal(cpu + staged + n[HK_ROUTE_MAPPED] + n[HK_ROUTE_RESIDENT],
                   weights_of(&plan->job) / hk_job_dp(&plan->job));

  assert_int_equal(work[HK_OP_WEIGHT_H2D] + work[HK_OP_WEIGHT_H2D_PAGEABLE], 2 * cpu);
  const bool blocking = deepspeed && !is_prototype(plan);
  if (!blocking) assert_int_equal(work[HK_OP_WEIGHT_H2D_PAGEABLE], 0);
  assert_int_equal(work[HK_OP_STATE_H2D], 12 * staged);
  assert_int_equal(work[HK_OP_STATE_D2H], 12 * staged);

  assert_int_equal(work[HK_OP_ADAMW_CPU], deepspeed ? 0 : cpu);
  assert_int_equal(work[HK_OP_ADAMW_CPU_FP32], deepspeed ? cpu : 0);
  assert_int_equal(work[HK_OP_UNSCALE_CPU], deepspeed ? cpu : 0);
  assert_int_equal(work[HK_OP_CAST_CPU], blocking ? cpu : 0);
  assert_int_equal(t->n[HK_OP_STEP_OVERHEAD], deepspeed ? 1 : fsdp_steps(plan));
  assert_int_equal(work[HK_OP_SUBGROUP_OVERHEAD], deepspeed ? plan->n_subgroups : 0);
  assert_int_equal(work[HK_OP_ADAMW_GPU], staged + n[HK_ROUTE_RESIDENT]);
  assert_int_equal(work[HK_OP_ADAMW_MAPPED], n[HK_ROUTE_MAPPED]);
  assert_int_equal(t->n[HK_OP_BARRIER], 1);
  for (int kind = 0; kind < HK_OP_BARRIER; kind++) assert_int_equal(work[kind], 0);
}

/* Copies of gradients between GPU and host. */
static void check_flush(const hk_plan *plan, const tally *t) {
  const int64_t *work = t->work[HK_PHASE_BACKWARD];
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  const int64_t cpu = n[HK_ROUTE_CPU];
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  const bool sync = plan->flush == HK_FLUSH_SYNC;
  /* DeepSpeed sums its bf16 gradients on the host: each micro-step's leave the GPU and come back
   * once. hocket sends the sum once, and only of subgroups on the CPU's route. */
  const int64_t all = weights_of(&plan->job) / hk_job_dp(&plan->job);
  const int64_t summed = deepspeed ? 2 * all * plan->job.grad_accum : 0;
  const int64_t last = plan->flush_bytes_per_param * cpu;
  const bool pageable = deepspeed && sync;
  assert_int_equal(work[HK_OP_GRAD_D2H], pageable ? 0 : last);
  assert_int_equal(work[HK_OP_GRAD_SUM_D2H], summed);
  assert_int_equal(work[HK_OP_GRAD_SUM_H2D], summed);
  assert_int_equal(work[HK_OP_GRAD_D2H_PAGEABLE], pageable ? last : 0);
  assert_int_equal(work[HK_OP_GRAD_CAST_CPU], pageable ? cpu : 0);
  assert_int_equal(work[HK_OP_GRAD_CAST_GPU], plan->flush_bytes_per_param == 4 ? cpu : 0);
  assert_int_equal(t->n[HK_OP_HOST_WAIT] > 0, cpu > 0 && sync && !deepspeed);
}

static void check_training(const hk_plan *plan, const tally *t) {
  const hk_job *job = &plan->job;
  const int64_t *forward = t->work[HK_PHASE_FORWARD], *backward = t->work[HK_PHASE_BACKWARD];
  const int64_t micros = job->grad_accum, dp = hk_job_dp(job), tp = job->tp;
  assert_int_equal(forward[HK_OP_LAUNCH], micros * BLOCKS);
  /* The host thread issues a checkpointed layer twice in backward. */
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  const int64_t again = job->checkpoint_activations ? LAYERS : 0;
  assert_int_equal(backward[HK_OP_LAUNCH], micros * (BLOCKS + again));
  assert_int_equal(backward[HK_OP_GRAD_BUCKET], deepspeed ? micros * weights_of(job) : 0);
  /* Before every forward and backward, and before the update. */
  assert_int_equal(t->n[HK_OP_MEMORY_REPORT], deepspeed ? 2 * micros + 1 : 0);
  assert_int_equal(t->n[HK_OP_CACHE_RELEASE], is_prototype(plan));
  assert_int_equal(t->n[HK_OP_FORWARD], micros * BLOCKS);
  assert_int_equal(t->n[HK_OP_BACKWARD], micros * BLOCKS);

  /* Two operations a parameter of a matrix and token, and the attention's two square products. */
  const int64_t tokens = (int64_t)job->micro_batch * job->seq;
  const int64_t head = 2 * tokens * 64 * 256 / tp;
  const int64_t layers =
      (2 * tokens * (MATRICES - 2 * 256 * 64) + LAYERS * 4 * tokens * job->seq * 64) / tp;
  const int64_t embedding = !deepspeed && dp > 1; /* no product, but its weights are copied */
  assert_int_equal(forward[HK_OP_FORWARD], micros * (head + layers + embedding));
  assert_int_equal(
      backward[HK_OP_BACKWARD],
      micros * (2 * head + (job->checkpoint_activations ? 3 : 2) * layers + embedding));

  /* In a ring each rank receives, or sends, all parts but one of the bf16 weights or gradients. */
  const int64_t ring = 2 * weights_of(job) / dp * (dp - 1);
  /* DeepSpeed keeps embedding and head, with its norm, gathered after the first micro-step. */
  const int64_t kept = deepspeed ? 2 * (2 * 256 * 64 / tp + 64) / dp * (dp - 1) : 0;
  assert_int_equal(forward[HK_OP_ALL_GATHER], micros * ring - (micros - 1) * kept);
  assert_int_equal(backward[HK_OP_ALL_GATHER], micros * ring - (micros - 1) * kept);
  assert_int_equal(backward[HK_OP_REDUCE_SCATTER], micros * ring);

  /* Two all-reduces of a layer's output, of which each sends 2 (tp - 1) / tp. */
  const int64_t reduced = LAYERS * 2 * (2 * (tp - 1) * (2 * tokens * 64) / tp);
  assert_int_equal(forward[HK_OP_TP_ALL_REDUCE], micros * reduced);
  assert_int_equal(backward[HK_OP_TP_ALL_REDUCE],
                   micros * reduced * (job->checkpoint_activations ? 2 : 1));
}

/* Memory in use before the first operation is as computed by hand. Operations free as much as they
 * allocate. */
static void check_memory(const hk_plan *plan, const hk_graph *graph, const tally *t) {
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  const int64_t all = weights_of(&plan->job) / hk_job_dp(&plan->job);
  const int64_t on_host = all - n[HK_ROUTE_RESIDENT];
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  const int64_t staging =
      n[HK_ROUTE_STAGED] > 0 && !deepspeed ? 12 * plan->buffers * plan->piece_numel : 0;
  /* Largest subgroup by route. The engine has a spare copy of state for the largest staged and for
   * the largest mapped one. */
  int64_t largest[HK_ROUTE_COUNT] = {0};
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_plan_subgroup *g = &plan->subgroups[i];
    if (g->numel > largest[g->route]) largest[g->route] = g->numel;
  }
  const int64_t spare = 12 * (largest[HK_ROUTE_STAGED] + largest[HK_ROUTE_MAPPED]);
  const int64_t host_share =
      deepspeed ? (12 + 4 + 2) * on_host : 12 * on_host + 4 * n[HK_ROUTE_CPU] + spare;
  const int64_t base = 2 * all + (deepspeed ? 16 : 12) * n[HK_ROUTE_RESIDENT] + staging;
  if (deepspeed) /* plus fixed buffers, which test_unit_memory.c checks */
    assert_true(graph->gpu_base > base);
  else
    assert_int_equal(graph->gpu_base, base);
  assert_int_equal(graph->host_base, plan->job.gpus * host_share);
  assert_int_equal(t->gpu_taken, t->gpu_given);
  assert_true(t->gpu_taken > 0 && t->gpu_least >= (deepspeed ? -graph->gpu_base : 0));
}

/* -- Other forms of the same graph ------------------------------------------------------------- */

/* Each rank has the folded graph's operations; the barrier is common to all ranks. */
static void check_unfolded(const hk_plan *plan, const hk_graph *folded) {
  hk_graph graph = built(plan, HK_EXPAND_ALL, false);
  const int ranks = plan->job.gpus;
  check_order(&graph);
  check_labels(&graph);
  assert_int_equal(folded->ranks, 1);
  assert_int_equal(folded->multiplicity, ranks);
  assert_int_equal(graph.ranks, ranks);
  assert_int_equal(graph.multiplicity, 1);
  assert_int_equal(graph.world, folded->world);
  assert_int_equal(graph.gpu_base, folded->gpu_base);
  assert_int_equal(graph.host_base, folded->host_base);
  assert_int_equal(graph.n_ops, (size_t)ranks * (folded->n_ops - 1) + 1);
  const tally one = tally_of(folded, 0);
  for (int rank = 0; rank < ranks; rank++) {
    const tally t = tally_of(&graph, rank);
    assert_memory_equal(t.work, one.work, sizeof t.work);
    assert_int_equal(t.gpu_taken, one.gpu_taken);
    assert_int_equal(t.gpu_given, one.gpu_given);
    assert_int_equal(t.n[HK_OP_BARRIER], rank == 0);
  }
  hk_graph_free(&graph);
}

/* The update alone: the same work as in the whole iteration. It starts with the barrier and holds
 * the gradients from the start. */
static void check_update_alone(const hk_plan *plan, const tally *whole) {
  hk_graph graph = built(plan, HK_EXPAND_UPDATE, true);
  const tally t = tally_of(&graph, 0);
  check_order(&graph);
  assert_int_equal(graph.ops[0].kind, HK_OP_BARRIER);
  assert_int_equal(graph.ops[0].deps_end, 0);
  for (size_t i = 0; i < graph.n_ops; i++) {
    assert_int_equal(graph.ops[i].phase, HK_PHASE_UPDATE);
    if (i > 0 && graph.ops[i].deps_begin == graph.ops[i].deps_end) {
      assert_true(plan->runtime == HK_RUNTIME_DEEPSPEED); /* ordered by its lane alone */
    }
  }
  assert_memory_equal(t.work[HK_PHASE_UPDATE], whole->work[HK_PHASE_UPDATE],
                      sizeof t.work[HK_PHASE_UPDATE]);

  hk_graph all = built(plan, HK_EXPAND_ALL, true);
  assert_int_equal(graph.gpu_base + t.gpu_taken - t.gpu_given, all.gpu_base);
  hk_graph_free(&all);
  hk_graph_free(&graph);
}

/* Forward and backward without the update leave allocated what the update frees: gradients. */
static void check_training_alone(const hk_plan *plan, const tally *whole) {
  hk_graph graph = built(plan, HK_EXPAND_TRAINING, true);
  const tally t = tally_of(&graph, 0);
  int64_t n[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, n);
  /* Under DeepSpeed gathered vocabulary matrices stay, too, and resident state has its gradient. */
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  const int64_t kept =
      n[HK_ROUTE_STAGED] + n[HK_ROUTE_MAPPED] + (deepspeed ? 0 : n[HK_ROUTE_RESIDENT]);
  const int64_t gathered =
      deepspeed && hk_job_dp(&plan->job) > 1 ? 2 * 256 * 64 / plan->job.tp + 64 : 0;
  assert_int_equal(t.gpu_taken - t.gpu_given, 2 * (kept + gathered));
  assert_int_equal(t.n[HK_OP_BARRIER], 0);
  assert_memory_equal(t.work[HK_PHASE_BACKWARD], whole->work[HK_PHASE_BACKWARD],
                      sizeof t.work[HK_PHASE_BACKWARD]);
  hk_graph_free(&graph);
}

/* -- Every policy, runtime and job ------------------------------------------------------------- */

static void check_plan(const hk_plan *plan) {
  hk_graph graph = built(plan, HK_EXPAND_ALL, true);
  const tally t = tally_of(&graph, 0);
  check_order(&graph);
  check_labels(&graph);
  check_update(plan, &t);
  check_flush(plan, &t);
  check_training(plan, &t);
  check_memory(plan, &graph, &t);
  check_unfolded(plan, &graph);
  check_update_alone(plan, &t);
  check_training_alone(plan, &t);
  hk_graph_free(&graph);
}

/* Each policy with its defaults, and with each of its settings. */
static void check_policy(const hk_policy *policy, hk_runtime runtime, const hk_job *job,
                         hk_flush flush) {
  hk_policy_options options[] = {HK_POLICY_OPTIONS_NONE, HK_POLICY_OPTIONS_NONE,
                                 HK_POLICY_OPTIONS_NONE};
  if (policy->takes & HK_TAKES_STRIDE) options[0].stride = 2, options[1].stride = 3;
  if (policy->takes & HK_TAKES_RATIO) options[1].ratio = 0.5, options[2].ratio = 0;
  if (policy->takes & HK_TAKES_BUFFERS && runtime == HK_RUNTIME_HOCKET) options[2].buffers = 1;
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    hk_plan plan = planned(policy, options[i], runtime, job, flush);
    check_plan(&plan);
    if (runtime == HK_RUNTIME_HOCKET && flush == HK_FLUSH_ASYNC) {
      plan.flush_bytes_per_param = 4;
      check_plan(&plan);
    }
    hk_plan_free(&plan);
  }
}

static void closed_forms(void **state) {
  (void)state;
  const hk_job jobs[] = {
      {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 64},
      {.gpus = 4, .nodes = 1, .tp = 1, .micro_batch = 2, .grad_accum = 1, .seq = 64},
      {.gpus = 2, .nodes = 2, .tp = 1, .micro_batch = 1, .grad_accum = 3, .seq = 32},
      {.gpus = 2, .nodes = 1, .tp = 2, .micro_batch = 3, .grad_accum = 1, .seq = 64},
      {.gpus = 4, .nodes = 1, .tp = 2, .micro_batch = 1, .grad_accum = 2, .seq = 64},
  };
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  assert_true(n >= 6);
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
    for (size_t i = 0; i < 8 * n; i++) {
      const hk_policy *policy = policies[i / 8];
      const hk_runtime runtime = i & 1 ? HK_RUNTIME_DEEPSPEED : HK_RUNTIME_HOCKET;
      if (runtime == HK_RUNTIME_DEEPSPEED && !policy->deepspeed) continue;
      hk_job job = jobs[j];
      job.checkpoint_activations = (i & 2) != 0;
      check_policy(policy, runtime, &job, i & 4 ? HK_FLUSH_SYNC : HK_FLUSH_ASYNC);
    }
  }
}

/* GPT-2's output projection is its embedding: gathered for both blocks, but updated and reduced
 * once. */
static void tied_embedding(void **state) {
  (void)state;
  static const char TEXT[] =
      "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 4,"
      "\"n_positions\": 128, \"vocab_size\": 256, \"tie_word_embeddings\": %s}";
  const int64_t tokens = 256 * 64; /* parameters of the tied matrix */
  int64_t updated[2], gathered[2], reduced[2];
  for (int tied = 0; tied < 2; tied++) {
    char text[256];
    hk_error err = {0};
    hk_model model;
    hk_plan plan;
    hk_job job = ALONE;
    job.gpus = 4;
    snprintf(text, sizeof text, TEXT, tied ? "true" : "false");
    cJSON *config = cJSON_Parse(text);
    must(hk_model_from_config(config, "small", &model, &err), &err);
    cJSON_Delete(config);
    const int64_t parameters = model.parameters;
    must(hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 5000, &plan, &err),
         &err);
    hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
    const tally t = tally_of(&graph, 0);
    updated[tied] = 4 * t.work[HK_PHASE_UPDATE][HK_OP_ADAMW_CPU];
    gathered[tied] = t.work[HK_PHASE_FORWARD][HK_OP_ALL_GATHER];
    reduced[tied] = t.work[HK_PHASE_BACKWARD][HK_OP_REDUCE_SCATTER];
    assert_int_equal(updated[tied], parameters);
    assert_int_equal(t.gpu_taken, t.gpu_given);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
  assert_int_equal(updated[0] - updated[1], tokens);
  assert_int_equal(gathered[0], gathered[1]);
  assert_int_equal(reduced[0] - reduced[1], 2 * tokens / 4 * 3);
}

/* Three operations, of which the last two are repeated twice: each copy depends on operations as
 * many places later. */
static void repeated_operations(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph g = {.ranks = 1};
  const int32_t lane = hk_graph_lane(&g, HK_LANE_CPU, 0, &err);
  const int32_t deps[3][2] = {{-1, -1}, {0, -1}, {0, 1}}, expected[] = {0, 0, 1, 2, 2, 3, 4, 4, 5};
  for (int i = 0; i < 3; i++) {
    const hk_op op = {.kind = HK_OP_ADAMW_CPU, .lane = lane, .work = 10 + i};
    assert_int_equal(hk_graph_add(&g, &op, deps[i], 2, &err), i);
  }
  must(hk_graph_repeat(&g, 1, 0, &err), &err);
  assert_int_equal(g.n_ops, 3);
  must(hk_graph_repeat(&g, 1, 2, &err), &err);
  assert_int_equal(g.n_ops, 7);
  assert_int_equal(g.n_deps, sizeof expected / sizeof *expected);
  assert_memory_equal(g.deps, expected, sizeof expected);
  for (int i = 1; i < 7; i++) {
    const int last = (i - 1) % 2; /* of the two */
    assert_int_equal(g.ops[i].work, 11 + last);
    assert_int_equal(g.ops[i].deps_begin, (i - 1) / 2 * 3 + last);
    assert_int_equal(g.ops[i].deps_end, (i - 1) / 2 * 3 + 1 + 2 * last);
  }
  assert_int_equal(hk_graph_repeat(&g, 0, 1 << 22, &err), HK_INPUT);
  hk_graph_free(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(closed_forms),
      cmocka_unit_test(tied_embedding),
      cmocka_unit_test(repeated_operations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
