/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `validate engine` on the host backend. Exact quantities are compared exactly: operations,
 * dependencies, work, sums, and the final state. Of times only the presence is checked, because
 * they depend on the load of the machine. */
#include "calib/validate/validate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/backend_host.h"
#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/fixture_engine.h"

#define STEPS 3

static const hk_validate_options three_steps = {
    .ops = &hk_backend_host, .steps = STEPS, .warm_up = 1, .seed = 5};
static const hk_validate_options one_step = {.ops = &hk_backend_host, .steps = 1, .seed = 5};

static hk_machine slow_node(void) {
  hk_machine m = ideal_machine();
  m.gpu_launch.value = m.h2d_latency.value = m.d2h_latency.value = 20000;
  m.gpu_hbm.value = m.h2d.value = m.d2h.value = m.duplex.value = m.dram.value = 5e9;
  m.dram_with_dma.value = 4e9;
  m.cpu_adamw.value = m.cpu_adamw_fp32.value = 2e8;
  return m;
}

/* Subgroups on the routes in turn, from `first` on. */
static hk_plan rotating_plan(int first) {
  static const hk_job job = {
      .gpus = 2, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 64};
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(4);
  must(hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 9000, &plan, &err), &err);
  hk_model_free(&model);
  snprintf(plan.policy, sizeof plan.policy, "rotating");
  plan.piece_numel = 4000;
  plan.buffers = 2;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = (hk_route)(((size_t)first + s) % HK_ROUTE_COUNT);
  }
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static int64_t work_of(const hk_graph *graph, hk_op_kind kind) {
  int64_t work = 0;
  for (size_t i = 0; i < graph->n_ops; i++)
    if (graph->ops[i].kind == kind) work += graph->ops[i].work;
  return work;
}

/* Every operation ran once and after its dependencies, and moved the bytes of its route: 12 a
 * parameter of state, 2 of weights. */
static void assert_operations(const hk_plan *plan, const hk_validation *v) {
  const hk_graph *g = &v->graph;
  size_t n = 0;
  assert_int_equal(v->measured.n_spans, g->n_ops);
  assert_int_equal(v->predicted.n_spans, g->n_ops);
  for (size_t i = 0; i < g->n_ops; i++) {
    const hk_span *span = &v->measured.spans[i];
    assert_true(span->start >= span->ready && span->end >= span->start);
    for (int32_t d = g->ops[i].deps_begin; d < g->ops[i].deps_end; d++)
      assert_true(span->start >= v->measured.spans[g->deps[d]].end);
  }
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) n += v->comparison.kinds[k].n;
  assert_int_equal(n, g->n_ops);
  int64_t totals[HK_ROUTE_COUNT];
  hk_plan_route_totals(plan, totals);
  assert_int_equal(work_of(g, HK_OP_STATE_H2D), 12 * totals[HK_ROUTE_STAGED]);
  assert_int_equal(work_of(g, HK_OP_STATE_D2H), 12 * totals[HK_ROUTE_STAGED]);
  assert_int_equal(work_of(g, HK_OP_WEIGHT_H2D), 2 * totals[HK_ROUTE_CPU]);
  assert_int_equal(work_of(g, HK_OP_ADAMW_MAPPED), totals[HK_ROUTE_MAPPED]);
}

static void assert_figures(const hk_validation *v) {
  const hk_timeline_comparison *c = &v->comparison;
  hk_ns causes = 0;
  for (int i = 0; i < HK_CAUSE_COUNT; i++) causes += c->causes[i];
  assert_int_equal(causes, c->makespan.measured - c->makespan.predicted);
  assert_int_equal(v->steps, STEPS);
  for (int i = 1; i < STEPS; i++) assert_true(v->update_ms[i] >= v->update_ms[i - 1]);
  assert_true(v->update_ms[0] > 0);
  /* The measured update includes the wait for the lanes' threads after the last operation. */
  assert_true(hk_ms(c->makespan.measured) <= v->update_ms[(STEPS - 1) / 2]);
  assert_true(c->makespan.predicted > 0 && c->makespan.predicted < 100000000);
  assert_int_equal(c->phases[HK_PHASE_UPDATE].measured, c->makespan.measured);
}

static void everything_is_compared(void **state) {
  (void)state;
  const hk_machine machine = slow_node();
  char checksum[33] = "";
  for (int first = 0; first < HK_ROUTE_COUNT; first++) {
    hk_error err = {0};
    hk_validation v;
    hk_plan plan = rotating_plan(first);
    must(hk_validate_plan(&plan, &machine, &three_steps, &v, &err), &err);
    assert_operations(&plan, &v);
    assert_figures(&v);
    if (checksum[0] == '\0') memcpy(checksum, v.checksum, sizeof checksum);
    assert_string_equal(v.checksum, checksum);
    hk_validation_free(&v);
    hk_validation_free(&v); /* a second call is safe */
    hk_plan_free(&plan);
  }
}

/* Predicted memory is within 5 % (GPU) and 10 % (host). The rest is a spare subgroup and the
 * padding of the last one. */
static void memory_is_as_predicted(void **state) {
  (void)state;
  static const char config[] =
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 2, \"hidden_size\": 512, "
      "\"intermediate_size\": 1408, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
      "\"vocab_size\": 8192, \"max_position_embeddings\": 64}";
  hk_error err = {0};
  hk_model model = model_of(config, "middling");
  const hk_machine machine = slow_node();
  const hk_plan_settings settings = {.subgroup_numel = 1000000, .piece_numel = 250000};
  static const hk_policy *const policies[] = {&hk_policy_zero_offload, &hk_policy_streamed,
                                              &hk_policy_mapped, &hk_policy_twinflow};
  for (size_t p = 0; p < (is_sanitized() ? 1 : sizeof policies / sizeof policies[0]); p++) {
    hk_plan plan;
    hk_validation v;
    const hk_candidate candidate = {policies[p], HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
    must(hk_candidate_plan(&candidate, &model, &machine, &one_gpu, &settings, &plan, &err), &err);
    plan.cpu_threads = 2;
    must(hk_validate_plan(&plan, &machine, &one_step, &v, &err), &err);
    assert_true(fabs(v.gpu_memory.error_pct) < 5);
    assert_true(fabs(v.host_memory.error_pct) < 10);
    hk_validation_free(&v);
    hk_plan_free(&plan);
  }
  hk_model_free(&model);
}

/* The engine runs one rank. Its prediction does not depend on the number of GPUs of the job. */
static void a_rank_is_predicted_alone(void **state) {
  (void)state;
  const hk_machine machine = slow_node();
  hk_error err = {0};
  hk_ns of_two = 0, of_one = 0;
  hk_plan plan = rotating_plan(0);
  assert_int_equal(plan.job.gpus, 2);
  must(hk_validate_predict(&plan, &machine, &of_two, &err), &err);
  plan.job.gpus = 1;
  must(hk_validate_predict(&plan, &machine, &of_one, &err), &err);
  assert_true(of_one > 0);
  assert_int_equal(of_two, of_one);
  hk_plan_free(&plan);
}

/* -- Interrupts and failures ------------------------------------------------------------------- */

static void assert_no_validation(const hk_validate_options *options, hk_status wanted,
                                 const char *why) {
  hk_error err = {0};
  hk_validation v;
  const hk_machine machine = slow_node();
  hk_plan plan = rotating_plan(0);
  assert_int_equal(hk_validate_plan(&plan, &machine, options, &v, &err), wanted);
  if (strstr(err.message, why) == NULL) fail_msg("'%s' does not say '%s'", err.message, why);
  assert_null(v.measured.spans);
  assert_null(v.update_ms);
  hk_plan_free(&plan);
}

static volatile sig_atomic_t stop;

static void stop_after_two(void *context, int step, int steps) {
  (void)context;
  assert_int_equal(steps, STEPS + 1);
  if (step == 2) stop = 1;
}

static void an_interrupted_run_says_so(void **state) {
  (void)state;
  hk_validate_options options = three_steps;
  options.stop = &stop;
  options.progress = stop_after_two;
  assert_no_validation(&options, HK_NO, "interrupted after 2 of 4 steps");
}

static hk_host_fault what;
static int64_t after;

static hk_status open_failing(int device, const hk_backend_options *options, hk_backend **out,
                              hk_error *err) {
  HK_TRY(hk_backend_host.open(device, options, out, err));
  hk_backend_host_fail(*out, what, after);
  return HK_OK;
}

/* Faults at every seventh call, in each phase of the steps. */
static void a_failed_run_says_what_failed(void **state) {
  (void)state;
  hk_backend_ops failing = hk_backend_host;
  failing.open = open_failing;
  hk_validate_options options = three_steps;
  options.ops = &failing;
  static const struct {
    hk_host_fault what;
    const char *why;
  } faults[] = {{HK_HOST_KERNEL, "kernel"}, {HK_HOST_COPYING, "copy"}, {HK_HOST_ALLOC, "memory"}};
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    what = faults[f].what;
    for (after = 0; after < (what == HK_HOST_ALLOC ? 1 : 50); after += 7)
      assert_no_validation(&options, HK_ENVIRONMENT, faults[f].why);
  }
}

static void a_missing_device_is_refused(void **state) {
  (void)state;
  hk_validate_options options = three_steps;
  options.device = 1000;
  assert_no_validation(&options, HK_INPUT, "1000");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everything_is_compared),
      cmocka_unit_test(memory_is_as_predicted),
      cmocka_unit_test(a_rank_is_predicted_alone),
      cmocka_unit_test(an_interrupted_run_says_so),
      cmocka_unit_test(a_failed_run_says_what_failed),
      cmocka_unit_test(a_missing_device_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
