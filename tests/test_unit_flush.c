/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Backward waits for flushes, and reduces gradients first, as the plan or the GPU memory demands.
 */
#include "sim/flush.h"
#include "sim/rank.h"
#include "tests/fixture.h"

static const hk_job JOB = {.gpus = 1,
                           .nodes = 1,
                           .tp = 1,
                           .micro_batch = 1,
                           .grad_accum = 1,
                           .seq = 64,
                           .checkpoint_activations = true};

static hk_plan plan_of(const hk_machine *machine, const hk_policy *policy, int layers) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(layers);
  const hk_plan_settings settings = {.subgroup_numel = 10000, .piece_numel = 2000};
  const hk_candidate candidate = {policy, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&candidate, &model, machine, &JOB, &settings, &plan, &err), &err);
  hk_model_free(&model);
  return plan;
}

/* Simulates a copy of the plan, with every invariant checked. */
static hk_forecast forecast_of(const hk_plan *plan, const hk_machine *machine) {
  const hk_sim_options check = {.check = true};
  hk_error err = {0};
  hk_plan copy;
  hk_forecast forecast;
  must(hk_plan_copy(plan, &copy, &err), &err);
  must(hk_forecast_make(&copy, machine, &check, &forecast, &err), &err);
  return forecast;
}

/* With fewer blocks whose gradients may wait, backward takes no more memory and no less time. With
 * all 5 blocks it is as without a limit, with one it takes less memory. */
static void backward_waits_for_flushes(void **state) {
  (void)state;
  hk_machine machine = schoolbook_machine();
  machine.d2h.value = machine.duplex.value = machine.h2d.value = 1e6;
  machine.mapped.value = machine.fabric_d2h.value = 1e6;
  hk_plan plan = plan_of(&machine, &hk_policy_zero_offload, 3);
  hk_forecast free = forecast_of(&plan, &machine);
  hk_ns last = INT64_MAX;
  hk_bytes peak = 0;
  for (int blocks = 1; blocks <= 5; blocks++) {
    plan.flush_blocks = blocks;
    hk_forecast waits = forecast_of(&plan, &machine);
    assert_true(waits.backward_ns <= last && waits.backward_ns >= free.backward_ns);
    assert_true(waits.result.memory.peak_of[HK_PHASE_BACKWARD] >= peak);
    last = waits.backward_ns;
    peak = waits.result.memory.peak_of[HK_PHASE_BACKWARD];
    hk_forecast_free(&waits);
  }
  assert_int_equal(last, free.backward_ns);
  assert_int_equal(peak, free.result.memory.peak_of[HK_PHASE_BACKWARD]);
  plan.flush_blocks = 1;
  hk_forecast one = forecast_of(&plan, &machine);
  assert_true(one.result.memory.peak_of[HK_PHASE_BACKWARD] < peak);
  hk_forecast_free(&one);
  hk_forecast_free(&free);
  hk_plan_free(&plan);
}

/* GPU memory holds gradients of so many waiting blocks of 42: hk_flush_fit finds the limit.
 * hk_flush_fit_any finds some limit. With a byte less than one block needs neither finds one. */
static void as_many_wait_as_fit(void **state) {
  (void)state;
  static const int wanted[] = {1, 2, 3, 20, 37};
  hk_error err = {0};
  hk_machine machine = schoolbook_machine();
  machine.d2h.value = machine.duplex.value = machine.h2d.value = 1e6;
  machine.mapped.value = machine.fabric_d2h.value = 1e6;
  hk_plan plan = plan_of(&machine, &hk_policy_zero_offload, 40);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    for (int lacking = 0; lacking <= (wanted[i] == 1); lacking++) {
      plan.flush_blocks = wanted[i];
      machine.gpu_memory.value = 1e12;
      hk_forecast waits = forecast_of(&plan, &machine);
      plan.flush_blocks = 0;
      machine.gpu_memory.value =
          (double)waits.result.memory.peak + machine.gpu_reserved.value - lacking;
      hk_forecast best = forecast_of(&plan, &machine), any = forecast_of(&plan, &machine);
      assert_false(best.feasible);
      must(hk_flush_fit(&best, true, &machine, &err), &err);
      must(hk_flush_fit_any(&any, true, &machine, &err), &err);
      assert_int_equal(any.feasible, best.feasible);
      assert_int_equal(best.feasible, !lacking);
      assert_int_equal(best.plan.flush, HK_FLUSH_ASYNC);
      assert_int_equal(best.plan.flush_blocks, lacking ? 0 : wanted[i]);
      hk_forecast_free(&waits);
      hk_forecast_free(&best);
      hk_forecast_free(&any);
    }
  }
  hk_plan_free(&plan);
}

/* With several ranks gradients of one more block are on the GPU while a block computes. Where they
 * do not fit, gradients are reduced before the next block's weights are gathered, or
 * backward waits for flushes, whichever is faster. If the user wants the asynchronous flush, only
 * the order is changed. */
static void gradients_that_do_not_fit_are_reduced_first(void **state) {
  (void)state;
  hk_machine machine = schoolbook_machine();
  hk_error err = {0};
  machine.gpu_flops.value = 1e12;
  machine.nvlink.value = 2e9;
  machine.collective_share.value = 0;
  hk_plan plan;
  hk_model model = tiny_model(3);
  hk_job job = JOB;
  job.gpus = 2;
  const hk_plan_settings settings = {.subgroup_numel = 10000, .piece_numel = 2000};
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&candidate, &model, &machine, &job, &settings, &plan, &err), &err);
  hk_forecast late = forecast_of(&plan, &machine);
  plan.reduce_first = true;
  hk_forecast first = forecast_of(&plan, &machine);
  plan.reduce_first = false;
  assert_true(first.backward_ns > late.backward_ns);
  assert_true(first.result.memory.peak < late.result.memory.peak);
  machine.gpu_memory.value = (double)first.result.memory.peak + machine.gpu_reserved.value;
  for (int may_wait = 0; may_wait < 2; may_wait++) {
    hk_forecast f = forecast_of(&plan, &machine);
    assert_false(f.feasible);
    must(hk_flush_fit(&f, may_wait, &machine, &err), &err);
    assert_true(f.feasible && f.iteration_ns <= first.iteration_ns);
    assert_true(may_wait || (f.plan.reduce_first && f.plan.flush_blocks == 0));
    hk_forecast_free(&f);
  }
  hk_forecast_free(&late);
  hk_forecast_free(&first);
  hk_plan_free(&plan);
  hk_model_free(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(backward_waits_for_flushes),
      cmocka_unit_test(as_many_wait_as_fit),
      cmocka_unit_test(gradients_that_do_not_fit_are_reduced_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
