/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Optimizers as bytes of state and memory traffic a parameter: sizes, copies, times and memory by
 * hand; refused plans; plan files. */
#include <math.h>
#include <stdlib.h>

#include "core/graph/bytes.h"
#include "engine/engine.h"
#include "sim/rank.h"
#include "tests/fixture_graph.h"

/* Bytes of state of 256 parameters; memory traffic of an update in bytes a parameter: state read
 * and written, gradient (twice for Adafactor), new weight, and the old weight if there is no master
 * weight. */
static const struct {
  int64_t held;
  double traffic;
} by_hand[HK_OPTIMIZER_COUNT] = {
    [HK_OPTIMIZER_FP32] = {256 * 12, 2 * 12 + 2 + 2},
    [HK_OPTIMIZER_SPLIT] = {256 * 12, 2 * 12 + 2},
    [HK_OPTIMIZER_BF16] = {256 * 8, 2 * 8 + 2 + 2},
    [HK_OPTIMIZER_BF16_SPLIT] = {256 * 8, 2 * 8 + 2},
    [HK_OPTIMIZER_8BIT] = {256 * 6 + 4, 2 * 1540.0 / 256 + 2 + 2},
    [HK_OPTIMIZER_8BIT_SPLIT] = {256 * 6 + 4, 2 * 1540.0 / 256 + 2},
    [HK_OPTIMIZER_ADAM_BF16] = {256 * 4, 2 * 4 + 2 + 2 + 2},
    [HK_OPTIMIZER_ADAMW8BIT] = {256 * 2 + 8, 2 * 520.0 / 256 + 2 + 2 + 2},
    [HK_OPTIMIZER_LION] = {256 * 8, 2 * 8 + 2 + 2},
    [HK_OPTIMIZER_SGD_MOMENTUM] = {256 * 8, 2 * 8 + 2 + 2},
    [HK_OPTIMIZER_MUON] = {256 * 8, 2 * 8 + 2 + 2},
    [HK_OPTIMIZER_ADAFACTOR] = {256 * 4, 2 * 4 + 2 * 2 + 2},
};

static void sizes(void **state) {
  (void)state;
  for (int o = 0; o < HK_OPTIMIZER_COUNT; o++) {
    const hk_optimizer optimizer = (hk_optimizer)o;
    const int64_t held = by_hand[o].held;
    assert_string_equal(hk_optimizer_info_of(optimizer)->name, hk_optimizer_names[o]);
    assert_int_equal(hk_state_bytes(optimizer, 0), 0);
    assert_int_equal(hk_state_bytes(optimizer, 1), (held + 255) / 256);
    assert_int_equal(hk_state_bytes(optimizer, 1001), (1001 * held + 255) / 256);
    /* n x held is beyond 2^63. */
    assert_int_equal(hk_state_bytes(optimizer, 1LL << 52), (1LL << 44) * held);
    assert_true(hk_update_traffic(optimizer) == by_hand[o].traffic);
    assert_int_equal(hk_optimizer_info_of(optimizer)->engine, o <= HK_OPTIMIZER_8BIT_SPLIT);
  }
  /* Without a master weight the spare copy of the state includes the new weights. */
  assert_int_equal(hk_spare_bytes(HK_OPTIMIZER_FP32, 1000), 12000);
  assert_int_equal(hk_spare_bytes(HK_OPTIMIZER_ADAM_BF16, 1000), 6000);
}

static hk_plan plan_of(const hk_policy *policy, hk_optimizer optimizer, hk_overlap overlap) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(LAYERS);
  hk_machine machine = ideal_machine();
  hk_candidate candidate = {policy, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  if (policy == &hk_policy_interleave)
    candidate.options.stride = hk_optimizer_info_of(optimizer)->orthogonal ? 1 : 2;
  const hk_plan_settings settings = {
      .subgroup_numel = 5000, .piece_numel = 2000, .optimizer = optimizer, .overlap = overlap};
  must(hk_candidate_plan(&candidate, &model, &machine, &ALONE, &settings, &plan, &err), &err);
  hk_model_free(&model);
  return plan;
}

static const hk_op *first_of(const hk_graph *graph, hk_op_kind kind) {
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == kind) return &graph->ops[i];
  fail_msg("no operation '%s'", hk_op_kind_name(kind));
  return NULL;
}

static double ns_of(const hk_graph *graph, hk_op_kind kind, const hk_machine *machine) {
  hk_ns latency = 0, work = 0;
  hk_time_alone(graph, first_of(graph, kind), machine, &latency, &work);
  return (double)(latency + work);
}

/* Pieces of 2,000 parameters; PCIe 10 B/ns each way, mapped 12 B/ns, CPU 1 AdamW parameter/ns of 28
 * bytes, GPU memory 280 B/ns. Times are rounded up to a nanosecond. */
static void times(void **state) {
  (void)state;
  const hk_machine machine = schoolbook_machine();
  for (int o = 0; o < HK_OPTIMIZER_COUNT; o++) {
    const hk_optimizer optimizer = (hk_optimizer)o;
    const double held = (double)hk_state_bytes(optimizer, 2000), traffic = by_hand[o].traffic;
    hk_plan plan = plan_of(&hk_policy_streamed, optimizer, HK_OVERLAP_NONE);
    hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
    assert_true(ns_of(&graph, HK_OP_STATE_H2D, &machine) == ceil(held / 10));
    assert_true(ns_of(&graph, HK_OP_STATE_D2H, &machine) == ceil(held / 10));
    assert_true(ns_of(&graph, HK_OP_ADAMW_GPU, &machine) == ceil(2000 * traffic / 280));
    hk_graph_free(&graph);
    hk_plan_free(&plan);
    if (optimizer == HK_OPTIMIZER_MUON) continue;

    plan = plan_of(&hk_policy_zero_offload, optimizer, HK_OVERLAP_NONE);
    graph = built(&plan, HK_EXPAND_UPDATE, true);
    assert_true(ns_of(&graph, HK_OP_ADAMW_CPU, &machine) == ceil(2000 * traffic / 28));
    assert_int_equal(first_of(&graph, HK_OP_WEIGHT_H2D)->work, 4000);
    hk_graph_free(&graph);
    hk_plan_free(&plan);

    plan = plan_of(&hk_policy_mapped, optimizer, HK_OVERLAP_NONE);
    graph = built(&plan, HK_EXPAND_UPDATE, true);
    const double mapped = 2000 * 2 * (double)by_hand[o].held / 256 / 12;
    assert_true(ns_of(&graph, HK_OP_ADAMW_MAPPED, &machine) == ceil(mapped - 0.001));
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* tiny_model(3): 156,096 parameters. */
static void memory(void **state) {
  (void)state;
  const int64_t n = 156096;
  for (int o = 0; o < HK_OPTIMIZER_COUNT; o++) {
    const hk_optimizer optimizer = (hk_optimizer)o;
    const hk_bytes held = (n * by_hand[o].held + 255) / 256;
    hk_plan plan = plan_of(&hk_policy_gpu_only, optimizer, HK_OVERLAP_NONE);
    hk_graph graph = built(&plan, HK_EXPAND_ALL, true);
    assert_int_equal(graph.gpu_base, 2 * n + held);
    assert_int_equal(graph.host_base, 0);
    hk_graph_free(&graph);
    hk_plan_free(&plan);

    plan = plan_of(&hk_policy_streamed, optimizer, HK_OVERLAP_NONE);
    graph = built(&plan, HK_EXPAND_ALL, true);
    const double buffers = 4 * 2000 * (double)by_hand[o].held / 256;
    assert_int_equal(graph.gpu_base, 2 * n + (hk_bytes)buffers);
    assert_int_equal(graph.host_base, held + hk_state_bytes(optimizer, 5000)); /* one spare */
    hk_graph_free(&graph);
    hk_plan_free(&plan);
    if (optimizer == HK_OPTIMIZER_MUON) continue;

    plan = plan_of(&hk_policy_zero_offload, optimizer, HK_OVERLAP_NONE);
    graph = built(&plan, HK_EXPAND_ALL, true);
    assert_int_equal(graph.gpu_base, 2 * n);
    const bool in_state = hk_optimizer_info_of(optimizer)->weight;
    assert_int_equal(graph.host_base,
                     held + 2 * n + (in_state ? 0 : 2 * n)); /* gradients, weights */
    hk_graph_free(&graph);
    hk_plan_free(&plan);
  }
}

/* Every policy with every optimizer: hk_forecast_make fails if an invariant is broken or the update
 * is below its bound. */
static void forecasts(void **state) {
  (void)state;
  const hk_machine machine = schoolbook_machine();
  const hk_sim_options options = {.check = true};
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  for (int o = 0; o < HK_OPTIMIZER_COUNT; o++) {
    for (size_t p = 0; p < 2 * n; p++) {
      hk_error err = {0};
      hk_forecast forecast;
      const hk_policy *policy = policies[p / 2];
      const hk_overlap overlap = p % 2 ? HK_OVERLAP_BOTH : HK_OVERLAP_NONE;
      if (o == HK_OPTIMIZER_MUON && policy != &hk_policy_gpu_only &&
          policy != &hk_policy_streamed && policy != &hk_policy_interleave)
        continue;
      hk_plan plan = plan_of(policy, (hk_optimizer)o, overlap);
      must(hk_forecast_make(&plan, &machine, &options, &forecast, &err), &err);
      assert_true(forecast.physical.update_ns > 0);
      hk_forecast_free(&forecast);
    }
  }
}

/* 8bit on threads that are limited by memory bandwidth only in large teams: by hand. */
static void arithmetic(void **state) {
  (void)state;
  hk_machine machine = schoolbook_machine();
  machine.cores.value = 32;
  machine.cpu_adamw.value = 16e9;
  machine.cpu_adamw_threads.value = 16;
  const double alone = 16e9 * -expm1(-1.0 / 16), team = 16e9 * -expm1(-1.0);
  const hk_optimizer_info *const o = hk_optimizer_info_of(HK_OPTIMIZER_8BIT);
  const double slow = hk_update_rate(&machine, HK_OPTIMIZER_8BIT, 4);
  assert_true(fabs(slow / (o->thread * 4 * alone) - 1) < 1e-12);
  assert_true(fabs(hk_update_rate(&machine, HK_OPTIMIZER_BF16, 16) / (1.4 * team) - 1) < 1e-12);
  hk_plan plan = plan_of(&hk_policy_zero_offload, HK_OPTIMIZER_8BIT, HK_OVERLAP_NONE);
  hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
  hk_op op = *first_of(&graph, HK_OP_ADAMW_CPU);
  op.threads = 4;
  const hk_demand d = hk_demand_of(&graph, &op, &machine);
  assert_true(fabs(d.cap / slow - 1) < 1e-12);
  for (int u = 0; u < d.n_uses; u++) {
    if (d.uses[u].resource == HK_RES_CORES) /* none is free for others */
      assert_true(fabs(d.uses[u].per_unit * d.cap / 4 - 1) < 1e-12);
    if (d.uses[u].resource == HK_RES_DRAM_CPU)
      assert_true(fabs(d.uses[u].per_unit / hk_update_traffic(HK_OPTIMIZER_8BIT) - 1) < 1e-12);
  }
  assert_true(HK_BYTES_ADAMW_8BIT == hk_update_traffic(HK_OPTIMIZER_8BIT));
  assert_true(HK_BYTES_ADAMW_8BIT_SPLIT == hk_update_traffic(HK_OPTIMIZER_8BIT_SPLIT));
  /* The machine's own rate replaces the share, as long as memory allows it. */
  machine.cpu_adamw_8bit.value = 3e9;
  machine.cpu_adamw_8bit_threads.value = 8;
  const double measured = 3e9 * -expm1(-0.5);
  assert_true(fabs(hk_update_rate(&machine, HK_OPTIMIZER_8BIT, 4) / measured - 1) < 1e-12);
  assert_true(fabs(hk_demand_of(&graph, &op, &machine).cap / measured - 1) < 1e-12);
  machine.cpu_adamw_8bit_split.value = 1e15;
  machine.cpu_adamw_8bit_split_threads.value = 0; /* AdamW's */
  assert_true(fabs(hk_update_rate(&machine, HK_OPTIMIZER_8BIT_SPLIT, 16) /
                       (team * hk_update_speed(HK_OPTIMIZER_8BIT_SPLIT)) -
                   1) < 1e-12);
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

/* A layer of tiny_model: q, k, v and o of 64 x 64; gate, up and down of 64 x 128. */
static void newton_schulz(void **state) {
  (void)state;
  hk_model model = tiny_model(LAYERS);
  const double square = 5 * (2.0 + 2 + 2) * 64 * 64 * 64;
  const double wide = 5 * (2.0 * 64 * 64 * 128 + 2.0 * 64 * 64 * 64 + 2.0 * 64 * 64 * 128);
  assert_true(hk_newton_schulz_flops(64, 64) == square);
  assert_true(hk_newton_schulz_flops(64, 128) == wide && hk_newton_schulz_flops(128, 64) == wide);
  const double per_param = LAYERS * (4 * square + 3 * wide) / 156096;
  assert_true(fabs(hk_model_newton_schulz_flops(&model) - per_param) < 1e-9 * per_param);
  hk_model_free(&model);

  hk_plan plan = plan_of(&hk_policy_streamed, HK_OPTIMIZER_MUON, HK_OVERLAP_NONE);
  hk_graph graph = built(&plan, HK_EXPAND_UPDATE, true);
  const hk_op *products = first_of(&graph, HK_OP_NEWTON_SCHULZ);
  const hk_op *update = first_of(&graph, HK_OP_ADAMW_GPU);
  assert_true(products < update && products->lane == update->lane);
  assert_int_equal(products->work, (int64_t)(2000 * per_param));
  hk_machine machine = schoolbook_machine();
  machine.gpu_flops.value = 1e12; /* 1,000 FLOP/ns, half of it reached */
  machine.gpu_efficiency.value = 0.5;
  assert_true(ns_of(&graph, HK_OP_NEWTON_SCHULZ, &machine) == ceil((double)products->work / 500));
  hk_graph_free(&graph);
  hk_plan_free(&plan);
}

static void refuse(hk_plan *plan, const char *message) {
  hk_error err = {0};
  assert_int_equal(hk_plan_check(plan, &err), HK_INPUT);
  if (strstr(err.message, message) == NULL) fail_msg("%s", err.message);
}

static void refused(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = plan_of(&hk_policy_zero_offload, HK_OPTIMIZER_LION, HK_OVERLAP_NONE);
  const hk_adamw adamw = {.lr = 1e-3};
  const hk_param all = {.numel = 156096};
  const hk_engine_options options = {0};
  hk_engine *engine = NULL;
  assert_int_equal(hk_engine_create(&plan, &all, 1, &adamw, 1, &options, &engine, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "state 'lion', which is predicted only"));
  plan.optimizer = HK_OPTIMIZER_BF16_SPLIT;
  const hk_param wide = {.numel = 156096, .weight_type = HK_GRAD_FP32};
  assert_int_equal(hk_engine_create(&plan, &wide, 1, &adamw, 1, &options, &engine, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "tensor 0 has fp32 weights: use state 'bf16'"));
  plan.optimizer = HK_OPTIMIZER_LION;
  plan.runtime = HK_RUNTIME_DEEPSPEED;
  refuse(&plan, "optimizer 'lion': hocket knows DeepSpeed's passes of AdamW");
  plan.runtime = HK_RUNTIME_HOCKET;
  plan.optimizer = HK_OPTIMIZER_MUON;
  refuse(&plan, "subgroups[0]: optimizer 'muon' multiplies matrices");
  hk_plan_free(&plan);
}

/* The key is written only if the optimizer is not the default. */
static void in_plan_files(void **state) {
  (void)state;
  for (int o = 0; o < HK_OPTIMIZER_COUNT; o++) {
    hk_error err = {0};
    hk_plan read, plan = plan_of(&hk_policy_streamed, (hk_optimizer)o, HK_OVERLAP_NONE);
    cJSON *root = hk_plan_to_json(&plan);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "optimizer");
    if (o == HK_OPTIMIZER_FP32) {
      assert_null(item);
    } else {
      assert_string_equal(cJSON_GetStringValue(item), hk_optimizer_names[o]);
    }
    must(hk_plan_from_json(root, &read, &err), &err);
    assert_int_equal(read.optimizer, o);
    hk_plan_free(&read);
    hk_plan_free(&plan);
    if (item != NULL) {
      cJSON_ReplaceItemInObject(root, "optimizer", cJSON_CreateString("lyon"));
      assert_int_equal(hk_plan_from_json(root, &read, &err), HK_INPUT);
      assert_non_null(strstr(err.message, "key 'optimizer': 'lyon' is not known"));
    }
    cJSON_Delete(root);
  }
}

/* Rankings for Lion and Muon have only plans of that optimizer under hocket's runtime. */
static void ranked(void **state) {
  (void)state;
  hk_error err = {0};
  hk_model model = tiny_model(LAYERS);
  const hk_machine machine = schoolbook_machine();
  const hk_ranking_options all = {.fixed = HK_POLICY_OPTIONS_NONE};
  for (int o = HK_OPTIMIZER_LION; o <= HK_OPTIMIZER_MUON;
       o += HK_OPTIMIZER_MUON - HK_OPTIMIZER_LION) {
    hk_ranking ranking;
    const hk_plan_settings settings = {.subgroup_numel = 5000, .optimizer = (hk_optimizer)o};
    must(hk_rank(&model, &machine, &ALONE, &settings, &all, &ranking, &err), &err);
    assert_true(ranking.n_fit > 3);
    for (size_t i = 0; i < ranking.n; i++) {
      assert_int_equal(ranking.forecasts[i].plan.runtime, HK_RUNTIME_HOCKET);
      assert_int_equal(ranking.forecasts[i].plan.optimizer, o);
    }
    hk_ranking_free(&ranking);
  }
  hk_model_free(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes),     cmocka_unit_test(times),      cmocka_unit_test(memory),
      cmocka_unit_test(forecasts), cmocka_unit_test(arithmetic), cmocka_unit_test(newton_schulz),
      cmocka_unit_test(refused),   cmocka_unit_test(ranked),     cmocka_unit_test(in_plan_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
