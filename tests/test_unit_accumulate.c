/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Where gradients of several micro-steps are summed: operations, bytes, memory and times by hand,
 * the ranking's choice, plan files, refused plans. */
#include <math.h>
#include <stdlib.h>

#include "core/graph/bytes.h"
#include "sim/rank.h"
#include "tests/fixture_blocks.h"
#include "tests/fixture_graph.h"

#define MICROS 3

static hk_plan plan_of(hk_accumulate accumulate, hk_overlap overlap) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(LAYERS);
  const hk_machine machine = ideal_machine();
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {
      .subgroup_numel = 5000, .piece_numel = 2000, .overlap = overlap, .accumulate = &accumulate};
  hk_job job = ALONE;
  job.grad_accum = MICROS;
  must(hk_candidate_plan(&candidate, &model, &machine, &job, &settings, &plan, &err), &err);
  hk_model_free(&model);
  return plan;
}

static size_t count(const hk_graph *graph, hk_op_kind kind, int64_t *work) {
  size_t n = 0;
  *work = 0;
  for (size_t i = 0; i < graph->n_ops; i++) {
    if (graph->ops[i].kind != kind) continue;
    *work += graph->ops[i].work;
    n++;
  }
  return n;
}

/* Sums in host memory: each block's sums leave the GPU after every micro-step but the last, and
 * return as often. */
static void operations(void **state) {
  (void)state;
  int64_t work = 0;
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
    hk_plan plan = plan_of((hk_accumulate)a, HK_OVERLAP_NONE);
    assert_int_equal(hk_plan_accumulates(&plan), a);
    hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
    const size_t sums = a == HK_ACCUMULATE_GPU ? 0 : (MICROS - 1) * BLOCKS;
    assert_int_equal(count(&graph, HK_OP_GRAD_SUM_D2H, &work), sums);
    assert_int_equal(work, sums == 0 ? 0 : (MICROS - 1) * 2 * ALL);
    assert_int_equal(count(&graph, HK_OP_GRAD_SUM_H2D, &work), a == HK_ACCUMULATE_HOST ? sums : 0);
    assert_int_equal(work, a == HK_ACCUMULATE_HOST ? (MICROS - 1) * 2 * ALL : 0);
    assert_int_equal(count(&graph, HK_OP_GRAD_D2H, &work), BLOCKS); /* the last micro-step's */
    assert_int_equal(work, 2 * ALL);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

static hk_forecast forecast_of(hk_accumulate accumulate, hk_overlap overlap, hk_machine machine) {
  hk_error err = {0};
  hk_forecast forecast;
  const hk_sim_options options = {.check = true};
  hk_plan plan = plan_of(accumulate, overlap);
  must(hk_forecast_make(&plan, &machine, &options, &forecast, &err), &err);
  return forecast;
}

/* Sums on the GPU keep the whole gradient array there. Sums in host memory keep gradients of two
 * blocks: one computes, one leaves. Backward is slow and each copy takes 1 ns. */
static void gpu_memory(void **state) {
  (void)state;
  hk_machine machine = ideal_machine();
  machine.gpu_flops.value = 1e12;
  hk_bytes peak[HK_ACCUMULATE_COUNT];
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
    hk_forecast f = forecast_of((hk_accumulate)a, HK_OVERLAP_NONE, machine);
    peak[a] = f.result.memory.peak;
    assert_int_equal(f.result.memory.before_forward, 2 * ALL);
    assert_int_equal(f.result.memory.after_update, 2 * ALL);
    hk_forecast_free(&f);
  }
  /* 64 tokens. A layer keeps 16 x 64 + 8 x 128 + 4 x 4 bytes a token, the head 4 x 64 + 4 x 256.
   * Backward's workspace: in the head 2 x 64 + 2 x 256, in a layer 2 x 64 + 6 x 128. */
  const hk_bytes layers = 64 * LAYERS * (16 * 64 + 8 * 128 + 4 * 4);
  const hk_bytes in_head = 64 * (4 * 64 + 4 * 256 + 2 * 64 + 2 * 256) + 2 * HEAD;
  const hk_bytes in_layer = 64 * (2 * 64 + 6 * 128) + 2 * LAYER;
  /* gpu: the peak is in the head's backward, beside all sums. host: it is in the last layer's
   * backward, beside the head's gradients that leave and the head's sums. */
  assert_int_equal(peak[HK_ACCUMULATE_GPU], 2 * ALL + layers + in_head + 2 * ALL);
  assert_int_equal(peak[HK_ACCUMULATE_HOST], 2 * ALL + layers + in_layer + 2 * 2 * HEAD);
}

static void host_memory(void **state) {
  (void)state;
  hk_machine machine = ideal_machine();
  machine.gpu_flops.value = 1e12;
  const hk_bytes rest = (12 + 2 + 2) * ALL; /* state, sums, new weights */
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
    hk_forecast f = forecast_of((hk_accumulate)a, HK_OVERLAP_NONE, machine);
    assert_int_equal(f.result.memory.host_peak, rest);
    hk_forecast_free(&f);
  }
}

/* PCIe has 10 B/ns in both directions together; every other operation takes 1 ns. A pass of all
 * gradients over the link takes 2 / 10 ns a parameter. Passes of 3 micro-steps: gpu 1 (the sum
 * leaves), host 5 (each leaves, and 2 return). */
static void times(void **state) {
  (void)state;
  hk_machine machine = ideal_machine();
  machine.h2d.value = machine.d2h.value = machine.duplex.value = 10e9;
  const double each = 2.0 * ALL / 10;
  const double copies[] = {[HK_ACCUMULATE_GPU] = 1, [HK_ACCUMULATE_HOST] = 2 * MICROS - 1};
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
    hk_forecast f = forecast_of((hk_accumulate)a, HK_OVERLAP_NONE, machine);
    const double before = (double)(f.iteration_ns - f.update_ns);
    assert_true(fabs(before - copies[a] * each) < 200);
    hk_forecast_free(&f);
  }
}

/* With an overlap the framework hands gradients over, so sums are always in host memory. */
static void handed_over(void **state) {
  (void)state;
  hk_error err = {0};
  hk_forecast f = forecast_of(HK_ACCUMULATE_HOST, HK_OVERLAP_BOTH, schoolbook_machine());
  assert_true(hk_plan_hands_over(&f.plan));
  int64_t work = 0;
  count(&f.graph, HK_OP_GRAD_SUM_H2D, &work);
  assert_int_equal(work, f.graph.iterations * (MICROS - 1) * 2 * ALL);
  hk_forecast_free(&f);
  hk_plan plan = plan_of(HK_ACCUMULATE_HOST, HK_OVERLAP_FORWARD);
  plan.accumulate = HK_ACCUMULATE_GPU; /* as read from a plan file without the key */
  assert_int_equal(hk_plan_accumulates(&plan), HK_ACCUMULATE_HOST);
  plan.job.grad_accum = 1;
  assert_int_equal(hk_plan_accumulates(&plan), HK_ACCUMULATE_GPU);
  hk_plan_free(&plan);

  const hk_accumulate on_gpu = HK_ACCUMULATE_GPU;
  const hk_plan_settings settings = {.overlap = HK_OVERLAP_BOTH, .accumulate = &on_gpu};
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_HOCKET};
  hk_model model = tiny_model(LAYERS);
  const hk_machine machine = ideal_machine();
  hk_job job = ALONE;
  job.grad_accum = 2;
  assert_int_equal(hk_candidate_plan(&candidate, &model, &machine, &job, &settings, &plan, &err),
                   HK_INPUT);
  assert_non_null(strstr(err.message, "accumulate 'gpu': the engine takes gradients as"));
  hk_model_free(&model);
}

/* With memory for more slots fewer sums leave: with all of it none. The key survives a file. */
static void sums_that_stay(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_machine machine = schoolbook_machine();
  hk_plan plan = plan_of(HK_ACCUMULATE_HOST, HK_OVERLAP_BOTH);
  int64_t all = -1;
  for (int share = 0; share <= 2; share++) {
    hk_plan copy, read;
    hk_forecast f;
    int64_t work = 0;
    must(hk_plan_copy(&plan, &copy, &err), &err);
    copy.sum_bytes = share < 2 ? share * ALL : 100 * ALL;
    const hk_grad_room room = hk_plan_grad_room(&copy);
    cJSON *json = hk_plan_to_json(&copy);
    must(hk_plan_from_json(json, &read, &err), &err);
    assert_int_equal(read.sum_bytes, copy.sum_bytes);
    cJSON_Delete(json);
    hk_plan_free(&read);
    must(hk_forecast_make(&copy, &machine, NULL, &f, &err), &err);
    count(&f.graph, HK_OP_GRAD_SUM_H2D, &work);
    if (share == 0) all = work;
    const int64_t moved = all * (room.pieces - room.kept) / room.pieces;
    assert_true(llabs(work - moved) <= all / 1000);
    assert_true(share == 0 ? work > 0 : share == 1 || work == 0);
    hk_forecast_free(&f);
  }
  hk_plan_free(&plan);
}

/* Sums of subgroups with early weights stay in their memory and pass through no slot. */
static void sums_that_stay_early(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_machine machine = schoolbook_machine();
  hk_plan plan = plan_of(HK_ACCUMULATE_HOST, HK_OVERLAP_BOTH);
  int64_t passing = 0, pieces = 0, work = 0;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    hk_plan_subgroup *sub = &plan.subgroups[s];
    sub->ahead = sub->early = s % 3 > 0;
    if (sub->early) continue;
    passing += sub->numel;
    pieces += (sub->numel + plan.piece_numel - 1) / plan.piece_numel;
  }
  assert_true(pieces > 8);
  assert_int_equal(hk_plan_grad_room(&plan).pieces, pieces);
  hk_forecast f;
  must(hk_forecast_make(&plan, &machine, NULL, &f, &err), &err);
  count(&f.graph, HK_OP_GRAD_SUM_H2D, &work);
  const int64_t left = hk_plan_grad_room(&f.plan).pieces - hk_plan_grad_room(&f.plan).kept;
  assert_int_equal(left, pieces);
  assert_int_equal(work, f.graph.iterations * (MICROS - 1) * 2 * passing);
  hk_forecast_free(&f);
}

/* An iteration of two micro-steps of three blocks: forward 100 ms, backward 200 ms, sums of 400 MB,
 * which take 40 ms in each direction and have two slots. Computation beside copies in of sums has
 * half its rate. `sum_bytes`: as of the plan. */
static hk_ns beside_sums(hk_bytes sum_bytes) {
  hk_error err = {0};
  hk_machine machine = schoolbook_machine();
  machine.compute_beside_update.value = 0.5;
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {.piece_numel = 200000000, .overlap = HK_OVERLAP_FORWARD};
  hk_model model = equal_blocks(3, 200000000, 100, 200);
  hk_job job = ONE_RANK;
  job.grad_accum = 2;
  hk_plan plan;
  hk_forecast f;
  must(hk_candidate_plan(&candidate, &model, &machine, &job, &settings, &plan, &err), &err);
  plan.sum_bytes = sum_bytes;
  must(hk_forecast_make(&plan, &machine, NULL, &f, &err), &err);
  const hk_ns iteration = f.iteration_ns;
  hk_forecast_free(&f);
  hk_model_free(&model);
  return iteration;
}

/* In the first micro-step each block's sums leave after its backward. They come back as soon as
 * those of the next block have left, two blocks ahead. So copies in run for 40 ms of the first
 * block's backward and for 80 ms of the next forward; computation takes half of that longer. Copies
 * out cost nothing. In the last micro-step none leave. */
static void copies_in_of_sums_slow_computation(void **state) {
  (void)state;
  const hk_ns longer = beside_sums(0) - beside_sums(3LL * 400000000);
  assert_true(llabs(longer - 60000000) < 100000);
}

/* GPU memory of 1.1 MB holds weights and activations but not all sums, so the ranking chooses sums
 * in host memory. With 1e15 bytes it chooses sums on the GPU. */
static void ranked(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = tiny_model(LAYERS);
  hk_machine machine = schoolbook_machine();
  hk_job job = ALONE;
  job.grad_accum = 8;
  const hk_plan_settings settings = {.subgroup_numel = 5000, .piece_numel = 2000};
  const hk_runtime hocket = HK_RUNTIME_HOCKET;
  const hk_ranking_options options = {.only_policy = &hk_policy_zero_offload,
                                      .only_runtime = &hocket,
                                      .fixed = HK_POLICY_OPTIONS_NONE};
  for (int small = 0; small < 2; small++) {
    hk_ranking ranking;
    machine.gpu_memory.value = small ? 1.1e6 : 1e15;
    must(hk_rank(&model, &machine, &job, &settings, &options, &ranking, &err), &err);
    assert_int_equal(ranking.n, 1);
    assert_int_equal(ranking.n_fit, 1);
    const hk_forecast *f = &ranking.forecasts[0];
    assert_int_equal(f->plan.accumulate, small ? HK_ACCUMULATE_HOST : HK_ACCUMULATE_GPU);
    assert_true(f->sums[HK_ACCUMULATE_GPU].tried && f->sums[HK_ACCUMULATE_HOST].tried);
    assert_int_equal(f->sums[HK_ACCUMULATE_GPU].fits, !small);
    assert_non_null(strstr(ranking.reason, small ? "summed in host memory, where the GPU adds"
                                                 : "8 micro-steps are summed on the GPU;"));
    if (small) assert_non_null(strstr(ranking.reason, "on the GPU: "));
    hk_ranking_free(&ranking);
  }
  hk_model_free(&model);
}

static void in_plan_files(void **state) {
  (void)state;
  for (int a = 0; a < HK_ACCUMULATE_COUNT; a++) {
    hk_error err = {0};
    hk_plan read, plan = plan_of((hk_accumulate)a, HK_OVERLAP_NONE);
    cJSON *root = hk_plan_to_json(&plan);
    assert_int_equal(cJSON_HasObjectItem(root, "accumulate"), a != HK_ACCUMULATE_GPU);
    must(hk_plan_from_json(root, &read, &err), &err);
    assert_int_equal(read.accumulate, a);
    hk_plan_free(&read);
    if (a != HK_ACCUMULATE_GPU) {
      plan.runtime = HK_RUNTIME_DEEPSPEED;
      assert_int_equal(hk_plan_check(&plan, &err), HK_INPUT);
      assert_non_null(strstr(err.message, "DeepSpeed sums gradients in host memory in its own"));
    }
    hk_plan_free(&plan);
    cJSON_Delete(root);
  }
}

/* In each micro-step but the first the GPU reads a gradient and its sum and writes the sum, 2 bytes
 * each. With 1 B/ns of GPU memory that is 6 ns a parameter; products and links take nothing. */
static void later_micro_steps_add_gradients(void **state) {
  (void)state;
  hk_machine machine = ideal_machine();
  machine.gpu_hbm.value = 1e9;
  machine.gpu_flops.value = 1e15;
  for (int micro_steps = 1; micro_steps <= 4; micro_steps++) {
    hk_job job = ALONE;
    job.grad_accum = micro_steps;
    hk_plan plan = planned(&hk_policy_gpu_only, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET, &job,
                           HK_FLUSH_ASYNC);
    hk_graph graph = built(&plan, HK_EXPAND_TRAINING, true);
    assert_makespan(&graph, &machine, (micro_steps - 1) * 6 * ALL, 2000);
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operations),
      cmocka_unit_test(gpu_memory),
      cmocka_unit_test(host_memory),
      cmocka_unit_test(times),
      cmocka_unit_test(sums_that_stay),
      cmocka_unit_test(sums_that_stay_early),
      cmocka_unit_test(copies_in_of_sums_slow_computation),
      cmocka_unit_test(ranked),
      cmocka_unit_test(in_plan_files),
      cmocka_unit_test(handed_over),
      cmocka_unit_test(later_micro_steps_add_gradients),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
