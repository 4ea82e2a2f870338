/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Schedules small enough to compute by hand, to the nanosecond. Rates are round: 1 GB/s is one
 * byte a nanosecond. Each test derives its expected time in a comment. */
#include "tests/fixture.h"

#include <math.h>
#include <stdlib.h>

#include "sim/forecast.h"

typedef struct {
  int gpus, buffers;
  int64_t piece;
  hk_runtime runtime;
  int stride;
  bool unfolded, unbound;
} setup;

/* End of the last operation of each kind in the latest simulation. */
static hk_ns last_end[HK_OP_KIND_COUNT];

/* Work that each resource carried in the update phase of the latest simulation. */
static double used_in_update[HK_RES_COUNT];

/* Simulates the update of n subgroups of 1000 parameters with these routes and returns its
 * duration.
 */
static hk_ns update_of(const hk_machine *m, const hk_route *routes, size_t n, setup s) {
  hk_error err = {0};
  hk_plan plan = {.model = tiny_model(1),
                  .job = {.gpus = s.gpus > 0 ? s.gpus : 1,
                          .nodes = 1,
                          .tp = 1,
                          .micro_batch = 1,
                          .grad_accum = 1,
                          .seq = 8},
                  .runtime = s.runtime,
                  .stride = s.stride,
                  .buffers = s.buffers > 0 ? s.buffers : 4,
                  .piece_numel = s.piece > 0 ? s.piece : 1000,
                  .cpu_threads = 1,
                  .cores_bound = !s.unbound,
                  .n_subgroups = n};
  hk_plan_subgroup subgroups[8];
  int32_t order[8];
  for (size_t i = 0; i < n; i++) {
    subgroups[i] = (hk_plan_subgroup){.numel = 1000, .route = routes[i]};
    order[i] = (int32_t)i;
  }
  plan.subgroups = subgroups;
  plan.order = order;
  hk_graph graph = {0};
  hk_result result = {0};
  const hk_sim_options options = {.counters = true, .check = true};
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_UPDATE, .folded = !s.unfolded}, &graph, &err),
       &err);
  must(hk_simulate(&graph, m, &options, &result, &err), &err);
  const hk_ns makespan = result.timeline.makespan;
  for (size_t i = 0; i < graph.n_ops; i++) {
    last_end[graph.ops[i].kind] = result.timeline.spans[i].end;
  }
  memcpy(used_in_update, result.used_phase[HK_PHASE_UPDATE], sizeof used_in_update);
  hk_result_free(&result);
  hk_graph_free(&graph);
  hk_model_free(&plan.model);
  return makespan;
}

#define UPDATE(m, options, ...)                   \
  update_of((m), (const hk_route[]){__VA_ARGS__}, \
            sizeof((const hk_route[]){__VA_ARGS__}) / sizeof(hk_route), (setup)options)
#define OPTIONS(...) \
  { __VA_ARGS__ }

#define C HK_ROUTE_CPU
#define S HK_ROUTE_STAGED
#define M HK_ROUTE_MAPPED
#define R HK_ROUTE_RESIDENT

/* 1000 parameters at 1 a ns, then 2000 B of weights at 10 B/ns. */
static void test_cpu(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(0), C), 1000 + 200);
}

/* The first subgroup's weights are copied during the second one's update. */
static void test_cpu_overlaps_its_weights(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(0), C, C), 2000 + 200);
  /* In pieces of 250 only the last piece's 500 B are copied after the last update. */
  assert_int_equal(UPDATE(&m, OPTIONS(.piece = 250), C, C), 2000 + 50);
}

/* 12,000 B in at 10, 1000 parameters at 10, 12,000 B back. */
static void test_staged(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(0), S), 1200 + 100 + 1200);
}

/* Subgroups a and b. In a: 0-1200. Update a: 1200-1300, while in b moves 1000 B. From 1300 in b and
 * out a share 16 B/ns, 8 each: in b's 11,000 B end at 2675; out a has 1000 B left, which end at 10
 * B/ns at 2775. Update b: 2675-2775. Out b: 2775-3975. */
static void test_duplex(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(.buffers = 2), S, S), 3975);
}

/* The same, but a launch beside a copy takes 50 ns longer: update a runs 1250-1350. Then in b has
 * 10,500 B left, which end at 8 B/ns at 2663. Update b starts beside no copy in: 2663-2763. Out a
 * has 1500 B left at 2663, which end at 10 B/ns at 2813. Out b: 2813-4013. */
static void test_a_kernel_starts_beside_a_copy(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.launch_beside_copies.value = 50;
  assert_int_equal(UPDATE(&m, OPTIONS(.buffers = 2), S, S), 4013);
  assert_int_equal(last_end[HK_OP_ADAMW_GPU], 2763);
}

/* Bytes of the update phase: 12,000 of state each way, 2000 of weights, 28,000 of the CPU kernel.
 */
static void test_what_an_update_uses(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  UPDATE(&m, OPTIONS(0), S, C);
  assert_true(fabs(used_in_update[HK_RES_H2D] - (12000 + 2000)) < 1);
  assert_true(fabs(used_in_update[HK_RES_D2H] - 12000) < 1);
  assert_true(fabs(used_in_update[HK_RES_DRAM_CPU] - 28000) < 1);
}

/* With one buffer the second subgroup's copy in waits for the first one's copy out: no overlap. */
static void test_one_buffer(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(.buffers = 1), S, S), 2 * 2500);
}

/* 24 B a parameter at 12 B/ns. */
static void test_mapped(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(0), M), 2000);
}

static void test_resident(void **state) {
  (void)state;
  const hk_machine m = schoolbook_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(0), R, R), 200);
}

/* Host memory has 19 B/ns for demands of 28 (CPU) and 10 (copy in): each gets half. The CPU's 1000
 * parameters end at 2000; the copy has 2000 of its 12,000 B left. Then weights and state share the
 * link, 5 B/ns each: both end at 2400. Update to 2500, out at 10 B/ns to 3700. */
static void test_dram_contention(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.dram.value = m.dram_with_dma.value = 19e9;
  assert_int_equal(UPDATE(&m, OPTIONS(0), C, S), 3700);
}

/* Host memory has 28 B/ns for kernels, 24 for kernels beside copies; copies weigh double. CPU at f
 * and copies at 2 f of their demands: 28 f + 20 f = 24, f = 1/2. In: 0-1200, the CPU does 600.
 * Update on the GPU 1200-1300, the CPU alone does 100. Out from 1300: the CPU's last 300 at 1/2 end
 * at 1900, when 6000 B are out. Weights (2000 B) and out share 16 B/ns: weights end at 2150, the
 * last 4000 B out at 10 B/ns at 2550. */
static void test_dram_weight_and_mixed_capacity(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.dram.value = 28e9;
  m.dram_with_dma.value = 24e9;
  m.dma_weight.value = 2;
  assert_int_equal(UPDATE(&m, OPTIONS(0), C, S), 2550);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 1900);
}

/* A mapped kernel counts as a copy: host memory has 20 B/ns for demands of 28 (CPU) and 12
 * (mapped). Each gets half, so the CPU's 1000 parameters end at 2000. With the 28 B/ns for kernels
 * alone they would end at 1429. */
static void test_mapped_against_cpu(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.dram.value = 28e9;
  m.dram_with_dma.value = 20e9;
  UPDATE(&m, OPTIONS(0), C, M);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2000);
}

/* A team not bound to cores reaches a quarter of 56 B/ns, so AdamW's 28 B a parameter take 2 ns. A
 * bound team is limited by its kernel: 1 ns. */
static void test_unbound_ranks(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.dram.value = m.dram_with_dma.value = 56e9;
  m.dram_unbound.value = 0.25;
  UPDATE(&m, OPTIONS(0), C);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 1000);
  UPDATE(&m, OPTIONS(.unbound = true), C);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2000);
  /* A larger dram.with_dma_bytes_per_s does not help the unbound team. */
  m.dram_with_dma.value = 1e15;
  m.h2d_cost.value = 9;
  UPDATE(&m, OPTIONS(.unbound = true), C);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2000);
}

/* dram.process: the memory of an unbound process has 14 B/ns for its team and its GPU together;
 * each of two processes has its own. CPU (28) and copy in (10) get 14 / 38 of their demands. The
 * CPU's 1000 parameters end at 2714.3; 2000 of the copy's 12,000 B are left and share 10 B/ns of
 * PCIe with 2000 B of weights: 3114.3. */
static void test_pages_of_an_unbound_process(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.dram_process.value = 14e9;
  UPDATE(&m, OPTIONS(0), C);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 1000);
  UPDATE(&m, OPTIONS(.unbound = true, .gpus = 2), C);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2000);
  UPDATE(&m, OPTIONS(.unbound = true), C, S);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2715);
  assert_int_equal(last_end[HK_OP_STATE_H2D], 3115);
  /* dram.process limits bytes; h2d_cost and d2h_cost do not apply. */
  m.h2d_cost.value = m.d2h_cost.value = 9;
  UPDATE(&m, OPTIONS(.unbound = true), C, S);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2715);
}

/* Two GPUs share a fabric of 10 B/ns each way: 5 each, in the folded and in the unfolded graph. */
static void test_fabric(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.fabric_h2d.value = m.fabric_d2h.value = 10e9;
  assert_int_equal(UPDATE(&m, OPTIONS(.gpus = 2), S), 2400 + 100 + 2400);
  assert_int_equal(UPDATE(&m, OPTIONS(.gpus = 2, .unfolded = true), S), 2400 + 100 + 2400);
}

/* Latencies of copies, of the kernel between them and of the barrier add up on one chain. */
static void test_latency(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.gpu_launch.value = 7;
  m.h2d_latency.value = 50;
  m.d2h_latency.value = 300;
  assert_int_equal(UPDATE(&m, OPTIONS(0), S), 7 + 50 + 1200 + 7 + 100 + 300 + 1200);
  assert_int_equal(UPDATE(&m, OPTIONS(0), C), 7 + 1000 + 7 + 200); /* weights pulled by a kernel */
  assert_int_equal(UPDATE(&m, OPTIONS(0), M), 7 + 7 + 2000);
}

/* Subgroups a and b on the CPU, c staged. The CPU keeps 4/5 of its rate beside copies in, 1/2
 * beside copies out. In c: 0-1200, the CPU does 960 of a. Update c: 1200-1300; a ends at 1240, its
 * weights (2000 B in) begin, and b gets 4/5 x 60 = 48 until 1300. Out c from 1300, beside the
 * weights until these end at 8 B/ns at 1475: b gets 2/5 x 175 = 70. Out c alone, 10,600 B, to 2535:
 * b gets 530. The last 352 of b end at 2887, its weights at 3087. */
static void test_kernels_beside_copies(void **state) {
  (void)state;
  hk_machine m = schoolbook_machine();
  m.cpu_beside_h2d.value = 0.8;
  m.cpu_beside_d2h.value = 0.5;
  assert_int_equal(UPDATE(&m, OPTIONS(0), C, C, S), 3087);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2887);
  assert_int_equal(last_end[HK_OP_STATE_D2H], 2535);
  /* A mapped kernel copies in and out: for its 2000 ns the CPU does 2/5 x 2000, then 200 alone. */
  UPDATE(&m, OPTIONS(0), C, M);
  assert_int_equal(last_end[HK_OP_ADAMW_CPU], 2000 + 200);
  /* The shares that two GPUs' copies leave are multiplied, in both forms of the graph. */
  m.cpu_beside_h2d.value = sqrt(0.8);
  m.cpu_beside_d2h.value = sqrt(0.5);
  assert_int_equal(UPDATE(&m, OPTIONS(.gpus = 2), C, C, S), 3087);
  assert_int_equal(UPDATE(&m, OPTIONS(.gpus = 2, .unfolded = true), C, C, S), 3087);
}

static hk_machine deepspeed_machine(void) {
  hk_machine m = schoolbook_machine();
  m.duplex.value = 20e9;
  m.subgroup_overhead.value = 10;
  m.cpu_unscale.value = 2e9;
  m.cpu_adamw_fp32.value = 1e9;
  m.cpu_cast.value = 4e9;
  m.h2d_pageable.value = 5e9;
  m.step_overhead.value = 30;
  return m;
}

/* Before the loop 30 ns; then for each subgroup bookkeeping 10, unscale 500, AdamW 1000, cast 250
 * and a pageable copy of 2000 B at 5 B/ns, one after the other. */
static void test_deepspeed_offload(void **state) {
  (void)state;
  const hk_machine m = deepspeed_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(.runtime = HK_RUNTIME_DEEPSPEED), C, C), 30 + 2 * 2160);
}

/* The prototype with stride 2; times from the 30 ns before its loop. In sg1: 0-1200, on three
 * streams of a third of the link each, during sg0's 10 + 500 + 1000 = 1510; sg0's weights end at
 * 1710. sg1: bookkeeping to 1520, update on the GPU to 1649 (36 B a parameter with fp32 gradients,
 * at 280 B/ns), out 1649-2849. In sg3 follows on each stream, from 2849. sg2 on the CPU: 1520 +
 * 1510 = 3030, when 1810 B of sg3 are in. sg2's weights are a fourth stream, each at 2.5 B/ns: they
 * end at 3830, when sg3 lacks 4190 B, which end at 4249. Update on the GPU to 4378, out to 5578. */
static void test_prototype_interleave(void **state) {
  (void)state;
  const hk_machine m = deepspeed_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(.runtime = HK_RUNTIME_DEEPSPEED, .stride = 2), C, S, C, S),
                   30 + 5578);
}

/* With a stride beyond the number of subgroups nothing is staged; the update ends with the last
 * weights. */
static void test_prototype_without_a_turn(void **state) {
  (void)state;
  const hk_machine m = deepspeed_machine();
  assert_int_equal(UPDATE(&m, OPTIONS(.runtime = HK_RUNTIME_DEEPSPEED, .stride = 5), C, C),
                   30 + 2 * 1510 + 200);
}

/* -- flush ------------------------------------------------------------------------------------- */

/* Simulates backward of a one-layer model: head, layer, embedding. The GPU's rate makes the layer's
 * backward take 1000 ns, the link's rate makes the head's gradients (2 x 16,448 B) take 100 ns.
 * expected[]: duration of each block's backward. */
static hk_ns backward_of(hk_runtime runtime, hk_flush flush, hk_machine *m, hk_ns expected[3]) {
  hk_error err = {0};
  hk_model model = tiny_model(1);
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 8};
  double flops[3]; /* head, layer, embedding: in backward order */
  int64_t grads[3];
  for (int i = 0; i < 3; i++) {
    flops[i] = 2 * hk_model_forward_flops(&model, 1 - i, 1, 8, 1);
    grads[i] = hk_model_block_parameters(&model, 1 - i, 1);
  }
  m->gpu_flops.value = flops[1] / 1000 * 1e9; /* the layer: 1000 ns */
  m->d2h.value = (double)(2 * grads[0]) / 100 * 1e9;
  for (int i = 0; i < 3; i++) expected[i] = (hk_ns)(flops[i] / flops[1] * 1000 + 0.999999);

  hk_plan plan = {0};
  must(hk_plan_create(&model, &job, runtime, HK_SUBGROUP_EXACT, 1 << 20, &plan, &err), &err);
  plan.flush = flush;
  plan.flush_bytes_per_param = runtime == HK_RUNTIME_DEEPSPEED && flush == HK_FLUSH_ASYNC ? 4 : 2;
  hk_graph graph = {0};
  hk_result result = {0};
  const hk_sim_options options = {.check = true};
  must(hk_graph_build(&plan, (hk_expand){1u << HK_PHASE_BACKWARD, .folded = true}, &graph, &err),
       &err);
  /* Without forward: begin with the memory of the activations that backward frees. */
  graph.gpu_base += HK_GIB;
  must(hk_simulate(&graph, m, &options, &result, &err), &err);
  const hk_ns makespan = result.timeline.makespan;
  hk_result_free(&result);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return makespan;
}

/* Parameters: head 64 + 256 x 64 = 16,448; layer 4 x 4096 + 3 x 8192 + 128 = 41,088; embedding
 * 16,384. At 328.96 B/ns: 100, 249.8.. and 99.6.. ns. */
static void test_flush(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  hk_ns backward[3];
  const hk_ns async = backward_of(HK_RUNTIME_HOCKET, HK_FLUSH_ASYNC, &m, backward);
  /* The head's copy runs during the layer's backward. The embedding's backward takes no time; its
   * copy follows the layer's: head + 1000 + 250 + 100. */
  assert_int_equal(backward[1], 1000);
  assert_int_equal(backward[2], 0);
  assert_int_equal(async, backward[0] + 1000 + 250 + 100);
  /* Blocking: the layer waits for the head's copy, the embedding for the layer's. */
  const hk_ns sync = backward_of(HK_RUNTIME_HOCKET, HK_FLUSH_SYNC, &m, backward);
  assert_int_equal(sync, backward[0] + 100 + 1000 + 250 + 100);
}

/* DeepSpeed, with the same rate in both directions. Asynchronous: two bytes a gradient out, two in,
 * then four out, on one stream. The head's 100 + 100 + 200 run during the layer's backward; the
 * layer's 250 + 250 + 500 and the embedding's 100 + 100 + 200 come after it. Blocking: two out, two
 * in, two out, and the next block's backward waits. */
static void test_deepspeed_flush(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  m.gpu_hbm.value = m.cpu_cast.value = 1e22; /* buckets and casts take no time */
  m.dram.value = m.dram_with_dma.value = 1e22;
  m.h2d.value = 328.96e9;
  hk_ns backward[3];
  const hk_ns async = backward_of(HK_RUNTIME_DEEPSPEED, HK_FLUSH_ASYNC, &m, backward);
  assert_int_equal(async, backward[0] + 1000 + 1000 + 400);
  const hk_ns sync = backward_of(HK_RUNTIME_DEEPSPEED, HK_FLUSH_SYNC, &m, backward);
  assert_int_equal(sync, backward[0] + 300 + 1000 + 750 + 300);
}

/* -- collectives, and time between phases ------------------------------------------------------ */

/* A gather of 1000 ns whose kernels take half of the GPU, beside a forward of 1000 ns that takes
 * all of it: each gets 1 / 1.5 of its demand. */
static void test_collective_takes_its_share_of_the_gpu(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = ideal_machine();
  m.nvlink.value = 10e9;
  m.gpu_flops.value = 1e9;
  m.collective_share.value = 0.5;
  hk_graph graph = {.ranks = 1, .multiplicity = 2, .world = 2, .nodes = 1, .tp = 1};
  const hk_op forward = {
      .kind = HK_OP_FORWARD, .work = 1000, .lane = hk_graph_lane(&graph, HK_LANE_GPU, 0, &err)};
  const hk_op gather = {
      .kind = HK_OP_ALL_GATHER, .work = 10000, .lane = hk_graph_lane(&graph, HK_LANE_NET, 0, &err)};
  assert_int_equal(hk_graph_add(&graph, &forward, NULL, 0, &err), 0);
  assert_int_equal(hk_graph_add(&graph, &gather, NULL, 0, &err), 1);
  hk_result result = {0};
  const hk_sim_options options = {.check = true};
  must(hk_simulate(&graph, &m, &options, &result, &err), &err);
  assert_int_equal(result.timeline.makespan, 1500);
  hk_result_free(&result);
  hk_graph_free(&graph);
}

static double network_use(int tp) {
  const hk_machine m = ideal_machine();
  const hk_graph graph = {.ranks = 1, .multiplicity = 4, .world = 8, .nodes = 2, .tp = tp};
  const hk_op op = {.kind = HK_OP_REDUCE_SCATTER};
  const hk_demand d = hk_demand_of(&graph, &op, &m);
  for (int u = 0; u < d.n_uses; u++) {
    if (d.uses[u].resource == HK_RES_NETWORK) return d.uses[u].per_unit;
  }
  return 0;
}

/* Bytes on the network for each byte of a rank's collective, on two nodes of four ranks. There are
 * tp rings, and in each ring one rank of a node sends to the other node: tp / 4. */
static void test_rings_between_nodes(void **state) {
  (void)state;
  assert_true(network_use(1) == 0.25);
  assert_true(network_use(2) == 0.5);
  assert_true(network_use(4) == 1);
}

/* Eight ranks in a ring, seven steps: on one node at the latency of NVLink, on two each step waits
 * for the network. */
static void test_latency_of_a_ring(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  m.nvlink_latency.value = 20;
  m.net_latency.value = 700;
  const hk_op op = {.kind = HK_OP_REDUCE_SCATTER};
  const hk_graph one = {.ranks = 1, .multiplicity = 8, .world = 8, .nodes = 1, .tp = 1};
  const hk_graph two = {.ranks = 1, .multiplicity = 4, .world = 8, .nodes = 2, .tp = 1};
  assert_int_equal(hk_demand_of(&one, &op, &m).latency, 7 * 20);
  assert_int_equal(hk_demand_of(&two, &op, &m).latency, 7 * 700);
}

/* Two micro-steps have five memory reports of 1000 ns, 1500 with the second rank's crowding. With
 * the prototype's 70 ns of cache release they are part of the iteration but of none of its phases.
 */
static void test_between_phases(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = ideal_machine();
  m.report.value = 1000;
  m.report_crowding.value = 0.5;
  m.cache_release.value = 70;
  hk_model model = tiny_model(2);
  const hk_job job = {.gpus = 2, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 2, .seq = 8};
  hk_plan plan = {0};
  must(hk_plan_create(&model, &job, HK_RUNTIME_DEEPSPEED, HK_SUBGROUP_SOFT, 1 << 20, &plan, &err),
       &err);
  plan.stride = 2;
  hk_graph graph = {0};
  hk_result result = {0};
  const hk_sim_options options = {.check = true};
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
  must(hk_simulate(&graph, &m, &options, &result, &err), &err);
  hk_ns phases[HK_PHASE_COUNT], sum = 0;
  hk_phase_durations(&graph, &result.timeline, phases);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    assert_in_range(phases[p], 1, 999);
    sum += phases[p];
  }
  assert_int_equal(result.timeline.makespan - sum, 5 * 1500 + 70);
  hk_result_free(&result);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_cpu),
      cmocka_unit_test(test_cpu_overlaps_its_weights),
      cmocka_unit_test(test_staged),
      cmocka_unit_test(test_duplex),
      cmocka_unit_test(test_a_kernel_starts_beside_a_copy),
      cmocka_unit_test(test_what_an_update_uses),
      cmocka_unit_test(test_one_buffer),
      cmocka_unit_test(test_mapped),
      cmocka_unit_test(test_resident),
      cmocka_unit_test(test_dram_contention),
      cmocka_unit_test(test_dram_weight_and_mixed_capacity),
      cmocka_unit_test(test_mapped_against_cpu),
      cmocka_unit_test(test_unbound_ranks),
      cmocka_unit_test(test_pages_of_an_unbound_process),
      cmocka_unit_test(test_fabric),
      cmocka_unit_test(test_latency),
      cmocka_unit_test(test_kernels_beside_copies),
      cmocka_unit_test(test_deepspeed_offload),
      cmocka_unit_test(test_prototype_interleave),
      cmocka_unit_test(test_prototype_without_a_turn),
      cmocka_unit_test(test_flush),
      cmocka_unit_test(test_deepspeed_flush),
      cmocka_unit_test(test_collective_takes_its_share_of_the_gpu),
      cmocka_unit_test(test_rings_between_nodes),
      cmocka_unit_test(test_latency_of_a_ring),
      cmocka_unit_test(test_between_phases),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
