/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Dependencies in a task graph, and graphs built operation by operation. */
#include <stdio.h>

#include "sim/sim.h"
#include "tests/fixture_graph.h"

static bool depends(const hk_graph *graph, int32_t op, int32_t on) {
  for (int32_t d = graph->ops[op].deps_begin; d < graph->ops[op].deps_end; d++) {
    if (graph->deps[d] == on) return true;
  }
  return false;
}

/* Ids of a rank's operations of one kind, in the order of the graph. */
typedef struct {
  int32_t id[512];
  int n;
} listing;

static listing list_kind(const hk_graph *graph, hk_op_kind kind, int rank) {
  listing list = {.n = 0};
  for (size_t i = 0; i < graph->n_ops; i++) {
    if (graph->ops[i].kind != kind || graph->ops[i].rank != rank) continue;
    assert_true(list.n < 512);
    list.id[list.n++] = (int32_t)i;
  }
  return list;
}

/* -- Order inside hocket's update -------------------------------------------------------------- */

/* With B buffers the copy in of piece i waits for the copy out of piece i - B, and for no later
 * one. */
static void staging_buffers_limit(void **state) {
  (void)state;
  const int counts[] = {1, 2, 3, 7, 1000};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
    hk_policy_options options = HK_POLICY_OPTIONS_NONE;
    options.buffers = counts[c];
    hk_plan plan = planned(&hk_policy_streamed, options, HK_RUNTIME_HOCKET, &ALONE, HK_FLUSH_ASYNC);
    hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
    const listing in = list_kind(&graph, HK_OP_STATE_H2D, 0);
    const listing adamw = list_kind(&graph, HK_OP_ADAMW_GPU, 0);
    const listing back = list_kind(&graph, HK_OP_STATE_D2H, 0);
    /* 31 subgroups of 5,000 in pieces of 2,000, 2,000 and 1,000, and one of 1,096. */
    assert_int_equal(in.n, 31 * 3 + 1);
    assert_int_equal(back.n, in.n);
    assert_int_equal(adamw.n, in.n);
    for (int i = 0; i < in.n; i++) {
      assert_true(depends(&graph, adamw.id[i], in.id[i]));
      assert_true(depends(&graph, back.id[i], adamw.id[i]));
      for (int j = 0; j < i; j++) {
        assert_int_equal(depends(&graph, in.id[i], back.id[j]), j == i - counts[c]);
      }
    }
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* The pieces of a subgroup cover it from its first parameter to its last without gaps. A resident
 * subgroup is one piece. */
static void pieces_cover_subgroups(void **state) {
  (void)state;
  const hk_policy *const policies[] = {&hk_policy_streamed, &hk_policy_mapped,
                                       &hk_policy_zero_offload, &hk_policy_gpu_only};
  const hk_op_kind kinds[] = {HK_OP_ADAMW_GPU, HK_OP_ADAMW_MAPPED, HK_OP_ADAMW_CPU,
                              HK_OP_ADAMW_GPU};
  for (int p = 0; p < 4; p++) {
    hk_plan plan =
        planned(policies[p], HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &ALONE, HK_FLUSH_ASYNC);
    hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
    const listing adamw = list_kind(&graph, kinds[p], 0);
    int32_t subgroup = 0, piece = 0;
    int64_t offset = 0;
    for (int i = 0; i < adamw.n; i++) {
      const hk_op *op = &graph.ops[adamw.id[i]];
      assert_int_equal(op->subgroup, subgroup);
      assert_int_equal(op->piece, piece++);
      assert_int_equal(op->offset, offset);
      if (policies[p] == &hk_policy_gpu_only)
        assert_int_equal(op->work, plan.subgroups[subgroup].numel);
      else
        assert_in_range(op->work, 1, plan.piece_numel);
      offset += op->work;
      if (offset < plan.subgroups[subgroup].numel) continue;
      assert_int_equal(offset, plan.subgroups[subgroup++].numel);
      offset = piece = 0;
    }
    assert_int_equal(subgroup, plan.n_subgroups);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* The CPU lane has the plan's order (here: reversed), and a copy of weights to the GPU depends on
 * the update of its own piece. */
static void updates_follow_the_order(void **state) {
  (void)state;
  for (int runtime = 0; runtime < 2; runtime++) {
    hk_plan plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, (hk_runtime)runtime,
                           &ALONE, HK_FLUSH_ASYNC);
    const int32_t last = (int32_t)plan.n_subgroups - 1;
    for (int32_t i = 0; i <= last; i++) plan.order[i] = last - i;
    hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
    const bool deepspeed = runtime == HK_RUNTIME_DEEPSPEED;
    const listing adamw = list_kind(&graph, deepspeed ? HK_OP_ADAMW_CPU_FP32 : HK_OP_ADAMW_CPU, 0);
    const listing ready = list_kind(&graph, deepspeed ? HK_OP_CAST_CPU : HK_OP_ADAMW_CPU, 0);
    const listing up =
        list_kind(&graph, deepspeed ? HK_OP_WEIGHT_H2D_PAGEABLE : HK_OP_WEIGHT_H2D, 0);
    assert_int_equal(up.n, adamw.n);
    for (int i = 0; i < adamw.n; i++) {
      const int32_t s = graph.ops[adamw.id[i]].subgroup;
      assert_int_equal(
          s, i == 0 ? last
                    : graph.ops[adamw.id[i - 1]].subgroup - (graph.ops[adamw.id[i]].piece <= 0));
      assert_int_equal(graph.ops[up.id[i]].subgroup, s);
      assert_true(depends(&graph, up.id[i], ready.id[i]));
    }
    assert_int_equal(graph.ops[adamw.id[adamw.n - 1]].subgroup, 0);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* -- Order inside the prototype's update ------------------------------------------------------- */

static hk_plan prototype(int stride) {
  hk_policy_options options = HK_POLICY_OPTIONS_NONE;
  options.stride = stride;
  return planned(&hk_policy_interleave, options, HK_RUNTIME_DEEPSPEED, &ALONE, HK_FLUSH_ASYNC);
}

/* Each of the three streams (p, m, v) copies a staged subgroup in, then out, then the next one. */
static void streams_alternate(void **state) {
  (void)state;
  const hk_lane_kind streams[] = {HK_LANE_STREAM_P, HK_LANE_STREAM_M, HK_LANE_STREAM_V};
  hk_plan plan = prototype(3);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  const listing adamw = list_kind(&graph, HK_OP_ADAMW_GPU, 0);
  assert_int_equal(adamw.n, plan.n_subgroups / 3);
  assert_true(adamw.n >= 3);
  for (int t = 0; t < 3; t++) {
    int seen = 0;
    for (size_t i = 0; i < graph.n_ops; i++) {
      const hk_op *op = &graph.ops[i];
      if (graph.lanes[op->lane].kind != streams[t]) continue;
      const bool back = seen % 2 == 1;
      const int32_t update = adamw.id[seen / 2];
      assert_int_equal(op->kind, back ? HK_OP_STATE_D2H : HK_OP_STATE_H2D);
      assert_int_equal(op->subgroup, 3 * (seen / 2) + 2); /* the last of each group of three */
      assert_int_equal(op->subgroup, graph.ops[update].subgroup);
      assert_int_equal(op->work, 4 * plan.subgroups[op->subgroup].numel);
      assert_int_equal(op->piece, t);
      if (back) {
        assert_true(depends(&graph, (int32_t)i, update));
      } else {
        assert_true(depends(&graph, update, (int32_t)i));
      }
      seen++;
    }
    assert_int_equal(seen, 2 * adamw.n);
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* The prototype copies a subgroup's fp32 weights to the GPU after its update; no operation waits
 * for that copy. */
static void nothing_waits_for_weights(void **state) {
  (void)state;
  hk_plan plan = prototype(3);
  hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
  const listing adamw = list_kind(&graph, HK_OP_ADAMW_CPU_FP32, 0);
  const listing up = list_kind(&graph, HK_OP_WEIGHT_H2D, 0);
  assert_true(up.n > 6 && up.n == adamw.n);
  for (int i = 0; i < up.n; i++) {
    assert_true(depends(&graph, up.id[i], adamw.id[i]));
    for (int32_t later = up.id[i] + 1; later < (int32_t)graph.n_ops; later++) {
      assert_false(depends(&graph, later, up.id[i]));
    }
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* A plan with a stride has the prototype's operations, even if the stride sends no subgroup to the
 * GPU. */
static void a_long_stride_blocks_nothing(void **state) {
  (void)state;
  hk_plan plan = prototype(1000);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  assert_int_equal(list_kind(&graph, HK_OP_STATE_H2D, 0).n, 0);
  assert_int_equal(list_kind(&graph, HK_OP_WEIGHT_H2D_PAGEABLE, 0).n, 0);
  assert_int_equal(list_kind(&graph, HK_OP_WEIGHT_H2D, 0).n, (int)plan.n_subgroups);
  assert_int_equal(list_kind(&graph, HK_OP_CACHE_RELEASE, 0).n, 1);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* Without interleaving the update waits for each subgroup's weights before it begins the next. */
static void blocking_walk(void **state) {
  (void)state;
  hk_plan plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_DEEPSPEED,
                         &ALONE, HK_FLUSH_SYNC);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
  const listing begin = list_kind(&graph, HK_OP_SUBGROUP_OVERHEAD, 0);
  const listing up = list_kind(&graph, HK_OP_WEIGHT_H2D_PAGEABLE, 0);
  assert_int_equal(begin.n, up.n);
  for (int i = 1; i < begin.n; i++) assert_true(depends(&graph, begin.id[i], up.id[i - 1]));
  /* And the host thread waits for each block's gradients. */
  const listing copy = list_kind(&graph, HK_OP_GRAD_D2H_PAGEABLE, 0);
  const listing wait = list_kind(&graph, HK_OP_GRAD_CAST_CPU, 0);
  assert_int_equal(copy.n, BLOCKS);
  assert_int_equal(wait.n, BLOCKS);
  for (int i = 0; i < wait.n; i++) {
    assert_true(depends(&graph, wait.id[i], copy.id[i]));
    assert_int_equal(graph.lanes[graph.ops[wait.id[i]].lane].kind, HK_LANE_HOST);
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* -- Order of training ------------------------------------------------------------------------- */

/* A collective waits for every rank of the node. A gather runs at most two blocks ahead of forward.
 */
static void collectives_meet(void **state) {
  (void)state;
  hk_job job = ALONE;
  job.gpus = 3;
  hk_plan plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &job,
                         HK_FLUSH_ASYNC);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, false);
  for (int rank = 0; rank < 3; rank++) {
    const listing gather = list_kind(&graph, HK_OP_ALL_GATHER, rank);
    const listing reduce = list_kind(&graph, HK_OP_REDUCE_SCATTER, rank);
    assert_int_equal(gather.n, 2 * BLOCKS);
    assert_int_equal(reduce.n, BLOCKS);
    for (int other = 0; other < 3; other++) {
      const listing launch = list_kind(&graph, HK_OP_LAUNCH, other);
      const listing backward = list_kind(&graph, HK_OP_BACKWARD, other);
      for (int i = 0; i < 2 * BLOCKS; i++) assert_true(depends(&graph, gather.id[i], launch.id[i]));
      for (int i = 0; i < BLOCKS; i++) assert_true(depends(&graph, reduce.id[i], backward.id[i]));
    }
    const listing forward = list_kind(&graph, HK_OP_FORWARD, rank);
    for (int i = 0; i < BLOCKS; i++) {
      assert_true(depends(&graph, forward.id[i], gather.id[i]));
      if (i >= 2) assert_true(depends(&graph, gather.id[i], forward.id[i - 2]));
    }
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* Two nodes of one GPU and a network of 1 B/ns. Every block's weights cross it twice and its
 * gradients once, 2 bytes a parameter, of which a ring of two moves half: a nanosecond a parameter
 * and collective. A layer's backward computes for 12.6 us, the smallest collective takes 16.4 us,
 * so a network that is never idle hides all computation (but that of the embedding, 2 ns): gather
 * head, gather L2, reduce head, gather L1, reduce L2, ..., reduce L0, reduce embedding. With
 * flush_blocks = 1 or reduce_first a block's gradients are reduced before the next block's
 * weights are gathered, so the network is idle during each block's backward. */
static void reductions_leave_the_network_busy(void **state) {
  (void)state;
  const hk_ns bytes = 3 * ALL;
  /* Flops of 64 tokens at 1,000 a nanosecond, rounded up: backward of three layers, and the head's.
   */
  const hk_ns layer = 2 * (2 * 64 * (LAYER - 2 * 64) + 4 * 64 * 64 * 64) / 1000 + 1;
  const hk_ns backward = LAYERS * layer + 2 * (2 * 64 * EMBEDDING) / 1000 + 1;
  hk_machine machine = ideal_machine();
  hk_job job = ALONE;
  machine.net.value = 1e9;
  machine.gpu_flops.value = 1e12;
  machine.collective_share.value = 0;
  machine.gpu_hbm.value = 1e15; /* for the copies beside collectives */
  job.nodes = 2;
  hk_plan plan =
      planned(&hk_policy_gpu_only, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &job, HK_FLUSH_ASYNC);
  for (int waiting = 0; waiting < 6; waiting++) { /* 0: no limit */
    plan.flush_blocks = waiting % 4;
    plan.reduce_first = waiting >= 4;
    hk_graph graph = built(&plan, HK_EXPAND_TRAINING, true);
    assert_makespan(&graph, &machine, bytes + (waiting == 1 || waiting >= 4 ? backward : 0), 4);
    hk_graph_free(&graph);
  }
  hk_plan_free(&plan);
}

/* FSDP2 on two GPUs: before forward and before backward a rank copies its half of the weights to a
 * buffer, 1 byte a parameter, and then the 2 bytes of each weight that were gathered; after
 * backward the 2 bytes of each gradient, which count twice. Each byte is read and written. With 1
 * B/ns of GPU memory that is 6 + 6 + 8 ns a parameter; products and links take nothing. If all
 * state is on the GPUs, torch's fp32 parameters are cast instead of copied: of its half a rank
 * reads and writes 6 bytes, not 4, before each of two gathers, and 6 after the reduction; those of
 * backward count twice: 11 ns more. The hooks of a block take the host as long as its launches,
 * unless these were fitted to runs that had hooks. DeepSpeed copies in operations of its own, and
 * one rank copies nothing. */
static void check_copies(const hk_policy *policy, int sharded) {
  hk_machine machine = ideal_machine();
  machine.gpu_hbm.value = 1e9;
  machine.fsdp_launches.value = 0.5;
  machine.nvlink.value = machine.gpu_flops.value = 1e15;
  machine.nvlink_latency.value = machine.collective_share.value = 0;
  for (int gpus = 1; gpus <= 2; gpus++) {
    hk_job job = ALONE;
    job.gpus = gpus;
    for (int deepspeed = 0; deepspeed < 2; deepspeed++) {
      hk_plan plan =
          planned(policy, HK_POLICY_OPTIONS_NONE,
                  deepspeed ? HK_RUNTIME_DEEPSPEED : HK_RUNTIME_HOCKET, &job, HK_FLUSH_ASYNC);
      hk_graph graph = built(&plan, HK_EXPAND_TRAINING, true);
      const bool copies = gpus == 2 && !deepspeed;
      hk_bytes copied = 0;
      machine.layer_launch.value = 300;
      for (size_t i = 0; i < graph.n_ops; i++) {
        const hk_op *op = &graph.ops[i];
        copied += op->copied + op->cast;
        if (op->kind != HK_OP_LAUNCH) continue;
        machine.layer_launch.origin = HK_ORIGIN_DEFAULT;
        assert_int_equal(hk_demand_of(&graph, op, &machine).latency, 300 * (op->work + copies));
        machine.layer_launch.origin = HK_ORIGIN_FITTED;
        assert_int_equal(hk_demand_of(&graph, op, &machine).latency, 300 * op->work);
      }
      machine.layer_launch.value = 0;
      assert_int_equal(copied, copies ? sharded * ALL / 2 : 0);
      if (!deepspeed) assert_makespan(&graph, &machine, copies ? sharded * ALL : 0, 2000);
      hk_graph_free(&graph);
      hk_plan_free(&plan);
    }
  }
}

static void sharded_blocks_are_copied(void **state) {
  (void)state;
  check_copies(&hk_policy_zero_offload, 6 + 6 + 8);
  check_copies(&hk_policy_gpu_only, 6 + 6 + 8 + 11);
}

/* Time of `iterations` in which nothing but the host's part of FSDP2's step takes any, 5,000 ns. */
static hk_ns host_of_steps(const hk_policy *policy, hk_overlap overlap, hk_runtime runtime,
                           int gpus, int iterations) {
  hk_error err = {0};
  hk_machine machine = ideal_machine();
  hk_job job = ALONE;
  hk_result result;
  machine.fsdp_step.value = 5000;
  job.gpus = gpus, job.grad_accum = 2;
  hk_plan plan = planned(policy, HK_POLICY_OPTIONS_NONE, runtime, &job, HK_FLUSH_ASYNC);
  plan.overlap = overlap;
  hk_graph graph;
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, iterations, false, false}, &graph, &err),
       &err);
  must(hk_simulate(&graph, &machine, NULL, &result, &err), &err);
  const hk_ns time = result.timeline.makespan;
  hk_result_free(&result);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return time;
}

/* Under FSDP2 an iteration begins with an empty queue, and hocket's step waits for the norm, 5 us
 * each. torch's own step is queued ahead of the GPU. One GPU and DeepSpeed have neither. */
static void host_of_a_step_delays_sharded_ranks(void **state) {
  (void)state;
  const hk_runtime hocket = HK_RUNTIME_HOCKET;
  const hk_overlap none = HK_OVERLAP_NONE, both = HK_OVERLAP_BOTH;
  const struct {
    hk_ns found, expected;
  } cases[] = {
      {host_of_steps(&hk_policy_zero_offload, none, hocket, 2, 1), 10000},
      {host_of_steps(&hk_policy_gpu_only, none, hocket, 2, 1), 5000},
      {host_of_steps(&hk_policy_zero_offload, both, hocket, 2, 3), 30000},
      {host_of_steps(&hk_policy_zero_offload, none, hocket, 1, 1), 0},
      {host_of_steps(&hk_policy_zero_offload, none, HK_RUNTIME_DEEPSPEED, 2, 1), 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_in_range(cases[i].found, cases[i].expected, cases[i].expected + 2500);
}

/* torch clips before its AdamW: of its half of the parameters a rank reads 4 bytes for the norm,
 * and reads and writes 4 more. One GPU has no such reference: its plan is hocket's. */
static void torch_clips(void **state) {
  (void)state;
  hk_machine machine = ideal_machine();
  machine.gpu_hbm.value = 1e9;
  for (int gpus = 1; gpus <= 2; gpus++) {
    hk_job job = ALONE;
    job.gpus = gpus;
    hk_plan plan = planned(&hk_policy_gpu_only, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &job,
                           HK_FLUSH_ASYNC);
    hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
    assert_int_equal(graph.ops[0].kind, HK_OP_BARRIER);
    assert_int_equal(hk_demand_of(&graph, &graph.ops[0], &machine).latency,
                     gpus == 2 ? 12 * ALL / 2 : 0);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* With several ranks the gradients of a block are reduced after the next block's backward, so they
 * count among those that wait. Blocks are numbered in the order of backward: with flush_blocks = n
 * backward of block b depends on the flush of block b - n and on no other, with sums in host memory
 * on that of block b - 2. reduce_first changes none of this. */
static void late_gradients_count_as_waiting(void **state) {
  (void)state;
  for (int i = 2; i <= 11; i++) { /* each number twice; 5: sums in host memory */
    const int blocks = i / 2;
    hk_job job = ALONE;
    job.gpus = 2, job.grad_accum = blocks < 5 ? 1 : 2;
    hk_plan plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &job,
                           HK_FLUSH_ASYNC);
    plan.flush_blocks = blocks < 5 ? blocks : 0;
    plan.reduce_first = i % 2;
    plan.accumulate = blocks < 5 ? HK_ACCUMULATE_GPU : HK_ACCUMULATE_HOST;
    hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
    const listing backward = list_kind(&graph, HK_OP_BACKWARD, 0);
    const listing copy = list_kind(&graph, HK_OP_GRAD_D2H, 0);
    const int first = backward.n - BLOCKS, behind = blocks < 5 ? blocks : 2;
    assert_int_equal(copy.n, BLOCKS);
    for (int b = 0; b < BLOCKS; b++) {
      for (int c = 0; c < b; c++)
        assert_int_equal(depends(&graph, backward.id[first + b], copy.id[c]), c == b - behind);
    }
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* The barrier comes after the last operation of every lane. */
static void barrier_waits_for_all(void **state) {
  (void)state;
  hk_job job = ALONE;
  job.gpus = 2, job.grad_accum = 2;
  hk_plan plan = planned(&hk_policy_twinflow, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_DEEPSPEED, &job,
                         HK_FLUSH_SYNC);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, false);
  const listing barrier = list_kind(&graph, HK_OP_BARRIER, 0);
  assert_int_equal(barrier.n, 1);
  for (size_t l = 0; l < graph.n_lanes; l++) {
    int32_t last = -1;
    for (int32_t i = 0; i < barrier.id[0]; i++) {
      if (graph.ops[i].lane == (int32_t)l) last = i;
    }
    if (last >= 0) assert_true(depends(&graph, barrier.id[0], last));
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* All operations of the rank of `op` that come after it depend on it: directly, through others, or
 * by the order of a lane. */
static void check_later_ones_follow(const hk_graph *graph, int32_t op) {
  bool *follows = calloc(graph->n_ops, sizeof *follows);
  int32_t before[HK_LANE_KIND_COUNT * 2];
  assert_non_null(follows);
  memset(before, -1, sizeof before);
  for (int32_t o = 0; o < (int32_t)graph->n_ops; o++) {
    const hk_op *it = &graph->ops[o];
    follows[o] = o == op || (before[it->lane] >= 0 && follows[before[it->lane]]);
    for (int32_t d = it->deps_begin; d < it->deps_end; d++)
      follows[o] = follows[o] || follows[graph->deps[d]];
    before[it->lane] = o;
    if (o > op && it->rank == graph->ops[op].rank) assert_true(follows[o]);
  }
  free(follows);
}

/* A memory report depends on every earlier operation, and every later one of its rank depends on
 * it. */
static void reports_stand_alone(void **state) {
  (void)state;
  hk_job job = ALONE;
  job.gpus = 2, job.grad_accum = 2;
  hk_plan plan = planned(&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_DEEPSPEED,
                         &job, HK_FLUSH_ASYNC);
  hk_graph graph = built(&plan, HK_EXPAND_ALL, false);
  for (int rank = 0; rank < 2; rank++) {
    const listing report = list_kind(&graph, HK_OP_MEMORY_REPORT, rank);
    assert_int_equal(report.n, 5); /* two micro-steps, and before the update */
    for (int i = 0; i < report.n; i++) {
      assert_int_equal(graph.lanes[graph.ops[report.id[i]].lane].kind, HK_LANE_HOST);
      int32_t last[HK_LANE_KIND_COUNT * 2];
      memset(last, -1, sizeof last);
      for (int32_t o = 0; o < report.id[i]; o++) {
        if (o < report.id[i] - rank) last[graph.ops[o].lane] = o; /* without rank 0's report */
      }
      for (size_t l = 0; l < graph.n_lanes; l++) {
        if (last[l] >= 0) assert_true(depends(&graph, report.id[i], last[l]));
      }
      check_later_ones_follow(&graph, report.id[i]);
    }
  }
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* -- Graphs by hand ---------------------------------------------------------------------------- */

static void operations_and_lanes(void **state) {
  (void)state;
  hk_error err = {0};
  hk_graph graph = {.ranks = 2, .layers = 4};
  const int32_t lane = hk_graph_lane(&graph, HK_LANE_H2D, 1, &err);
  assert_int_equal(hk_graph_lane(&graph, HK_LANE_H2D, 1, &err), lane); /* not a second one */
  assert_string_equal(graph.lanes[lane].name, "rank1.h2d");
  hk_op op = {.kind = HK_OP_STATE_H2D, .lane = lane, .rank = 1, .subgroup = 12, .piece = 3};
  const int32_t first = hk_graph_add(&graph, &op, NULL, 0, &err);
  const int32_t deps[] = {-1, first, -1};
  const int32_t second = hk_graph_add(&graph, &op, deps, 3, &err);
  assert_int_equal(graph.ops[second].deps_end - graph.ops[second].deps_begin, 1);
  assert_int_equal(graph.deps[graph.ops[second].deps_begin], first);

  const int32_t later[] = {first, 2};
  assert_int_equal(hk_graph_add(&graph, &op, later, 2, &err), -1);
  assert_int_equal(err.status, HK_INPUT);
  assert_non_null(strstr(err.message, "operation 2 depends on the later operation 2"));
  assert_int_equal(graph.n_ops, 2);
  const int32_t third = hk_graph_add(&graph, &op, deps, 3, &err);
  assert_int_equal(graph.ops[third].deps_end - graph.ops[third].deps_begin, 1);

  const size_t n = graph.n_ops;
  graph.n_ops = 1 << 30; /* more than a graph may have */
  assert_int_equal(hk_graph_add(&graph, &op, NULL, 0, &err), -1);
  assert_non_null(strstr(err.message, "the plan expands to more than"));
  graph.n_ops = n;
  hk_graph_free(&graph);
  hk_graph_free(&graph);
}

static void labels_read_well(void **state) {
  (void)state;
  const struct {
    hk_op op;
    const char *label;
  } cases[] = {
      {{.kind = HK_OP_STATE_H2D, .subgroup = 12, .piece = 3}, "state_h2d sg12.3"},
      {{.kind = HK_OP_CAST_CPU, .subgroup = 0, .piece = -1}, "cast_cpu sg0"},
      {{.kind = HK_OP_BARRIER, .subgroup = -1, .block = HK_BLOCK_NONE}, "barrier"},
      {{.kind = HK_OP_BACKWARD, .phase = HK_PHASE_BACKWARD, .subgroup = -1, .block = 7},
       "backward L7"},
      {{.kind = HK_OP_LAUNCH, .subgroup = -1, .block = HK_BLOCK_EMBED}, "launch embed"},
      {{.kind = HK_OP_MEMORY_REPORT,
        .phase = HK_PHASE_BACKWARD,
        .subgroup = -1,
        .block = HK_BLOCK_NONE,
        .micro = 1},
       "memory_report m1 bwd"},
      {{.kind = HK_OP_LAUNCH, .phase = HK_PHASE_BACKWARD, .subgroup = -1, .block = 9, .micro = 2},
       "launch head m2 bwd"},
  };
  hk_graph graph = {.layers = 9};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char label[64], shortened[8];
    hk_op op = cases[i].op;
    graph.ops = &op;
    assert_string_equal(hk_op_label(&graph, 0, label, sizeof label), cases[i].label);
    hk_op_label(&graph, 0, shortened, sizeof shortened);
    assert_int_equal(strlen(shortened), 7);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(staging_buffers_limit),
      cmocka_unit_test(pieces_cover_subgroups),
      cmocka_unit_test(updates_follow_the_order),
      cmocka_unit_test(streams_alternate),
      cmocka_unit_test(nothing_waits_for_weights),
      cmocka_unit_test(a_long_stride_blocks_nothing),
      cmocka_unit_test(reports_stand_alone),
      cmocka_unit_test(blocking_walk),
      cmocka_unit_test(collectives_meet),
      cmocka_unit_test(barrier_waits_for_all),
      cmocka_unit_test(reductions_leave_the_network_busy),
      cmocka_unit_test(sharded_blocks_are_copied),
      cmocka_unit_test(host_of_a_step_delays_sharded_ranks),
      cmocka_unit_test(torch_clips),
      cmocka_unit_test(late_gradients_count_as_waiting),
      cmocka_unit_test(operations_and_lanes),
      cmocka_unit_test(labels_read_well),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
