/* SPDX-License-Identifier: GPL-3.0-or-later */
/* 2,500 random plans on random machines, simulated with every invariant checked (sim/check.c).
 * Between simulations: the update takes at least its bounds, one rank that stands for all gives the
 * makespan of all up to rounding, repetition and thread count change nothing, and faster links
 * never lengthen a chain of operations. */
#include "tests/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/forecast.h"
#include "sim/rank.h"

#define CASES 2500

void omp_set_num_threads(int n); /* as in <omp.h> */

static hk_machine random_machine(random_stream *r) {
  hk_machine m = ideal_machine();
  snprintf(m.name, sizeof m.name, "random");
  m.gpus.value = pick(r, 1, 4);
  m.cores.value = pick(r, 1, 64);
  m.gpu_flops.value = scale(r, 1e12, 1e15);
  m.gpu_efficiency.value = scale(r, 0.1, 1);
  m.gpu_backward_efficiency.value = scale(r, 0.1, 1);
  m.gpu_hbm.value = scale(r, 1e11, 5e12);
  m.gpu_launch.value = pick(r, 0, 20000);
  m.gpu_hop.value = pick(r, 0, 1) ? pick(r, 0, 20000) : 0;
  m.launch_beside_copies.value = pick(r, 0, 20000);
  m.launch_beside_pulls.value = pick(r, 0, 20000);
  m.launch_beside_reads.value = pick(r, 0, 50000);
  if (pick(r, 0, 1)) m.gpu_beside_h2d.value = scale(r, 0.05, 1);
  if (pick(r, 0, 1)) m.gpu_beside_d2h.value = scale(r, 0.05, 1);
  m.h2d_latency.value = pick(r, 0, 20000);
  m.d2h_latency.value = pick(r, 0, 20000);
  m.layer_launch.value = pick(r, 0, 100000);
  m.h2d.value = scale(r, 1e9, 1e11);
  m.d2h.value = m.h2d.value * scale(r, 0.5, 2);
  const double least = fmax(m.h2d.value, m.d2h.value), sum = m.h2d.value + m.d2h.value;
  m.duplex.value = fmin(sum, scale(r, least, sum * 1.01));
  m.h2d_pageable.value = scale(r, 1e9, 2e10);
  m.d2h_pageable.value = scale(r, 1e9, 2e10);
  m.h2d_pageable_latency.value = pick(r, 0, 100000);
  m.d2h_pageable_latency.value = pick(r, 0, 100000);
  if (pick(r, 0, 1)) m.copies_at_once.value = pick(r, 1, 2);
  if (pick(r, 0, 1)) m.d2h_beside_reads.value = scale(r, 0.02, 1);
  if (pick(r, 0, 1)) m.h2d_beside_reads.value = scale(r, 0.2, 5);
  if (pick(r, 0, 1)) m.shared_reads.value = scale(r, 0.5, 1);
  if (pick(r, 0, 1)) m.h2d_cached.value = scale(r, 1e9, 4e10);
  m.cached.value = scale(r, 1, 1e9);
  if (pick(r, 0, 1)) m.pull.value = m.h2d.value * scale(r, 0.1, 2);
  m.cpu_operation.value = pick(r, 0, 1) * pick(r, 0, 100000);
  m.mapped.value = m.duplex.value * scale(r, 0.3, 1);
  const double fabric = scale(r, 0.5, 4);
  m.fabric_h2d.value = m.h2d.value * fabric;
  m.fabric_d2h.value = m.d2h.value * fabric;
  m.fabric_duplex.value = m.duplex.value * fabric;
  m.dram.value = scale(r, 1e10, 1e12);
  m.dram_with_dma.value = m.dram.value * scale(r, 0.5, 1);
  if (pick(r, 0, 1)) {
    m.h2d_cost.value = scale(r, 0.3, 10);
    m.d2h_cost.value = scale(r, 0.3, 10);
    m.dram_with_dma.value = m.dram.value * scale(r, 0.5, 10);
  }
  m.dma_weight.value = scale(r, 0.01, 8);
  m.d2h_priority.value = scale(r, 0.2, 100);
  m.pcie_d2h_priority.value = scale(r, 0.5, 5);
  if (pick(r, 0, 1)) {
    m.cpu_beside_h2d.value = scale(r, 0.1, 1);
    m.cpu_beside_d2h.value = scale(r, 0.1, 1);
    m.h2d_loaded.value = m.h2d.value * scale(r, 0.05, 1);
    m.h2d_load_from.value = uniform(r) * 0.99;
  }
  m.cpu_adamw.value = scale(r, 1e8, 1e11);
  m.cpu_adamw_threads.value = scale(r, 0.5, 40);
  m.cpu_unscale.value = scale(r, 1e8, 1e11);
  m.cpu_adamw_fp32.value = scale(r, 1e8, 1e11);
  m.cpu_cast.value = scale(r, 1e8, 1e11);
  m.cpu_unscale_threads.value = pick(r, 0, 20);
  m.cpu_adamw_fp32_threads.value = pick(r, 0, 20);
  m.cpu_cast_threads.value = pick(r, 0, 20);
  m.subgroup_overhead.value = pick(r, 0, 100000);
  m.dram_process.value = m.dram.value * scale(r, 0.2, 1);
  m.dram_unbound.value = scale(r, 0.3, 1);
  m.collective_share.value = pick(r, 0, 2) / 2.0;
  m.report.value = pick(r, 0, 100000);
  m.report_crowding.value = scale(r, 0.1, 1);
  m.step_overhead.value = pick(r, 0, 100000);
  m.cache_release.value = pick(r, 0, 100000);
  m.nvlink.value = scale(r, 1e9, 1e12);
  m.nvlink_latency.value = pick(r, 0, 20000);
  m.net.value = scale(r, 1e9, 1e11);
  m.net_latency.value = pick(r, 0, 50000);
  /* Often too small: plans that do not fit must keep the invariants, too. */
  m.gpu_memory.value = scale(r, 1e6, 1e9);
  m.host_memory.value = scale(r, 1e6, 1e9);
  return m;
}

/* A random plan: a policy's, or one with random routes. */
static hk_plan random_plan(random_stream *r, const hk_machine *m) {
  hk_error err = {0};
  hk_model model = tiny_model(pick(r, 1, 6));
  hk_job job = {.gpus = (int)m->gpus.value,
                .nodes = pick(r, 1, 3),
                .tp = 1,
                .micro_batch = pick(r, 1, 4),
                .grad_accum = pick(r, 1, 3),
                .seq = pick(r, 1, 512),
                .checkpoint_activations = pick(r, 0, 1)};
  if (job.gpus % 2 == 0 && pick(r, 0, 3) == 0) job.tp = 2;
  const hk_runtime runtime = pick(r, 0, 1) ? HK_RUNTIME_DEEPSPEED : HK_RUNTIME_HOCKET;
  const hk_subgroup_rule rule = pick(r, 0, 1) ? HK_SUBGROUP_SOFT : HK_SUBGROUP_EXACT;
  hk_plan plan = {0};
  must(hk_plan_create(&model, &job, runtime, rule, pick(r, 2000, 80000), &plan, &err), &err);
  hk_model_free(&model);
  plan.flush = pick(r, 0, 1) ? HK_FLUSH_SYNC : HK_FLUSH_ASYNC;
  plan.flush_bytes_per_param = pick(r, 0, 1) ? 2 : 4;
  plan.buffers = pick(r, 1, 5);
  plan.stride = pick(r, 0, 5);
  plan.piece_numel = pick(r, 1000, 90000);
  plan.cpu_threads = pick(r, 1, 80);
  plan.cores_bound = pick(r, 0, 1);
  const int routes = runtime == HK_RUNTIME_DEEPSPEED ? 3 : HK_ROUTE_COUNT;
  static const hk_route known[] = {HK_ROUTE_CPU, HK_ROUTE_STAGED, HK_ROUTE_RESIDENT,
                                   HK_ROUTE_MAPPED};
  for (size_t i = 0; i < plan.n_subgroups; i++) {
    plan.subgroups[i].route = known[pick(r, 0, routes - 1)];
  }
  for (size_t i = plan.n_subgroups - 1; i > 0 && pick(r, 0, 1); i--) {
    const size_t j = (size_t)pick(r, 0, (int)i);
    const int32_t t = plan.order[i];
    plan.order[i] = plan.order[j];
    plan.order[j] = t;
  }
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static hk_ns simulate(const hk_plan *plan, const hk_machine *m, bool folded, uint64_t *digest) {
  hk_error err = {0};
  hk_graph graph = {0};
  hk_result result = {0};
  const hk_sim_options options = {.counters = true, .check = true};
  must(hk_graph_build(plan, (hk_expand){HK_EXPAND_ALL, .folded = folded}, &graph, &err), &err);
  must(hk_simulate(&graph, m, &options, &result, &err), &err);
  const hk_ns makespan = result.timeline.makespan;
  if (digest != NULL) { /* FNV-1a over every span and counter sample */
    uint64_t h = 0xcbf29ce484222325u;
    const unsigned char *bytes = (const unsigned char *)result.timeline.spans;
    for (size_t i = 0; i < result.timeline.n_spans * sizeof(hk_span); i++) {
      h = (h ^ bytes[i]) * 0x100000001b3u;
    }
    for (size_t c = 0; c < result.timeline.n_counters; c++) {
      const hk_counter *counter = &result.timeline.counters[c];
      bytes = (const unsigned char *)counter->samples;
      for (size_t i = 0; i < counter->n * sizeof(hk_sample); i++) {
        h = (h ^ bytes[i]) * 0x100000001b3u;
      }
    }
    *digest = h;
  }
  hk_result_free(&result);
  hk_graph_free(&graph);
  return makespan;
}

static void test_invariants(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= CASES; seed++) {
    random_stream r = {seed * 7919};
    const hk_machine m = random_machine(&r);
    hk_plan plan = random_plan(&r, &m);
    uint64_t first = 0, again = 0;
    simulate(&plan, &m, true, &first);
    if (seed % 10 == 0) {
      simulate(&plan, &m, true, &again);
      assert_true(first == again);
    }
    hk_plan_free(&plan);
  }
}

/* Copies have the least weight that a profile may give them (dram.dma_weight 0.01), and copies out
 * are preferred as much as it may say (1000 to 1). Copies in still have a rate above zero; the
 * simulator's checker (sim/check.c) fails otherwise. */
static void test_nothing_starves(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    random_stream r = {seed * 32452843};
    hk_machine m = random_machine(&r);
    m.dma_weight.value = 0.01;
    m.d2h_priority.value = 1000;
    m.dram.value = m.dram_with_dma.value = scale(&r, 1e9, 1e11);
    m.h2d_cost.value = scale(&r, 1e-3, 1e3);
    m.d2h_cost.value = scale(&r, 1e-3, 1e3);
    hk_plan plan = random_plan(&r, &m);
    assert_true(simulate(&plan, &m, true, NULL) > 0);
    assert_true(simulate(&plan, &m, false, NULL) > 0);
    hk_plan_free(&plan);
  }
}

/* An update takes at least the bound of the plan's operations. For a plan that fits, the physical
 * bound is at most that bound. */
static void test_bounds_are_below(void **state) {
  (void)state;
  int fitting = 0;
  for (uint64_t seed = 1; seed <= CASES; seed++) {
    random_stream r = {seed * 104729};
    hk_machine m = random_machine(&r);
    if (seed % 2 == 0) m.gpu_memory.value = m.host_memory.value = 1e12;
    hk_plan plan = random_plan(&r, &m);
    hk_forecast f;
    hk_error err = {0};
    must(hk_forecast_make(&plan, &m, NULL, &f, &err), &err);
    assert_true(f.graph_bound.update_ns <= f.update_ns);
    if (f.feasible) {
      fitting++;
      assert_true(f.physical.feasible);
      assert_true(f.physical.update_ns <= f.update_ns);
      assert_true(f.physical.update_ns <= f.graph_bound.update_ns + 1);
    }
    hk_forecast_free(&f);
  }
  assert_true(fitting > CASES / 3); /* enough plans must fit */
}

/* One rank that stands for all gives the makespan of all of them, up to rounding of shared rates.
 */
static void test_folding_is_exact(void **state) {
  (void)state;
  int several = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    random_stream r = {seed * 15485863};
    const hk_machine m = random_machine(&r);
    hk_plan plan = random_plan(&r, &m);
    several += plan.job.gpus > 1;
    const hk_ns folded = simulate(&plan, &m, true, NULL);
    const hk_ns unfolded = simulate(&plan, &m, false, NULL);
    const hk_ns off = folded > unfolded ? folded - unfolded : unfolded - folded;
    if (off > 2 + folded / 1000000000) {
      fail_msg("seed %d: folded %lld ns, unfolded %lld ns", (int)seed, (long long)folded,
               (long long)unfolded);
    }
    hk_plan_free(&plan);
  }
  assert_true(several > 150);
}

/* With one buffer and one route the operations are a chain: a faster machine is never slower. (In
 * general it can be: Graham's anomalies.) */
static void test_a_faster_link_is_not_slower(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    random_stream r = {seed * 49979687};
    hk_machine m = random_machine(&r);
    hk_plan plan = random_plan(&r, &m);
    plan.runtime = HK_RUNTIME_HOCKET;
    plan.buffers = 1;
    for (size_t i = 0; i < plan.n_subgroups; i++) plan.subgroups[i].route = HK_ROUTE_STAGED;
    const hk_ns before = simulate(&plan, &m, true, NULL);
    m.h2d.value *= 1.5;
    m.d2h.value *= 1.5;
    m.duplex.value *= 1.5;
    const hk_ns after = simulate(&plan, &m, true, NULL);
    assert_true(after <= before);
    hk_plan_free(&plan);
  }
}

/* Rankings with one, two and four threads have the same plans and spans. */
static void test_threads_have_no_influence(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = {0};
  hk_machine machine = {0};
  must(hk_model_load("llama-2-7b", &model, &err), &err);
  must(hk_machine_load("polaris-a100-4x40gb", &machine, &err), &err);
  const hk_job job = {.gpus = 4,
                      .nodes = 1,
                      .tp = 1,
                      .micro_batch = 1,
                      .grad_accum = 1,
                      .seq = 2048,
                      .checkpoint_activations = true};
  const hk_plan_settings settings = {0};
  const hk_ranking_options options = {.fixed = HK_POLICY_OPTIONS_NONE};
  hk_ranking by_threads[3];
  static const int threads[] = {1, 2, 4};
  for (int t = 0; t < 3; t++) {
    omp_set_num_threads(threads[t]);
    must(hk_rank(&model, &machine, &job, &settings, &options, &by_threads[t], &err), &err);
  }
  for (int t = 1; t < 3; t++) {
    assert_int_equal(by_threads[0].n, by_threads[t].n);
    assert_string_equal(by_threads[0].reason, by_threads[t].reason);
    for (size_t i = 0; i < by_threads[0].n; i++) {
      const hk_forecast *a = &by_threads[0].forecasts[i], *b = &by_threads[t].forecasts[i];
      assert_int_equal(a->result.timeline.n_spans, b->result.timeline.n_spans);
      assert_memory_equal(a->result.timeline.spans, b->result.timeline.spans,
                          a->result.timeline.n_spans * sizeof(hk_span));
      cJSON *pa = hk_plan_to_json(&a->plan), *pb = hk_plan_to_json(&b->plan);
      assert_true(cJSON_Compare(pa, pb, true));
      cJSON_Delete(pa);
      cJSON_Delete(pb);
    }
  }
  for (int t = 0; t < 3; t++) hk_ranking_free(&by_threads[t]);
  hk_model_free(&model);
  hk_machine_free(&machine);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_invariants),
      cmocka_unit_test(test_nothing_starves),
      cmocka_unit_test(test_bounds_are_below),
      cmocka_unit_test(test_folding_is_exact),
      cmocka_unit_test(test_a_faster_link_is_not_slower),
      cmocka_unit_test(test_threads_have_no_influence),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
