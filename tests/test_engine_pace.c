/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans that pace themselves (hk_pace) on the host backend: the same bits as plain AdamW, and an
 * update that takes at least the time that the limit states. */
#include "tests/fixture_engine.h"

/* Random plans with random limits: pieces shorter and longer than the parts of a paced copy. */
static void paced_plans_are_plain_adamw(void **state) {
  (void)state;
  const hk_engine_options options = {.no_pin_threads = true};
  const uint64_t cases = case_count((case_counts){12, 6, 3}, (case_counts){96, 32, 8});
  for (uint64_t number = 0; number < cases; number++) {
    random_stream r = {4000 + number};
    hk_error err = {0};
    hk_plan plan = random_engine_plan(&r);
    for (size_t s = 0; s < plan.n_subgroups; s++)
      if (plan.subgroups[s].route == HK_ROUTE_MAPPED) plan.subgroups[s].route = HK_ROUTE_STAGED;
    if (number % 2 == 0) plan.pace.in = scale(&r, 3e8, 3e10);
    if (number % 3 == 0) plan.pace.out = scale(&r, 3e8, 3e10);
    if (number % 4 <= 1) plan.pace.cpu = scale(&r, 2e7, 1e9);
    must(hk_plan_check(&plan, &err), &err);
    assert_plan_exact(&r, &plan, HK_GRAD_BF16, 1, &options);
    hk_plan_free(&plan);
  }
}

/* One layer, 1.5 M parameters, 18 MB of state: many parts of 0.25 MiB. */
static hk_plan small_plan(void) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = model_of(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 256, "
      "\"intermediate_size\": 256, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
      "\"vocab_size\": 2048, \"max_position_embeddings\": 64}",
      "small");
  must(hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 400000, &plan, &err),
       &err);
  hk_model_free(&model);
  plan.buffers = 2;
  plan.piece_numel = 300000;
  return plan;
}

/* Seconds of one update with all subgroups on `route`. */
static double update_of(hk_route route, hk_pace pace) {
  const hk_engine_options options = {.no_pin_threads = true};
  random_stream r = {91};
  hk_error err = {0};
  hk_plan plan = small_plan();
  hk_step_report report;
  for (size_t s = 0; s < plan.n_subgroups; s++) plan.subgroups[s].route = route;
  plan.pace = pace;
  plain_adamw plain = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  hk_engine *engine = engine_like(&plan, &plain, &options);
  plain_gradients(&plain, &r);
  give_gradients(engine, &plain, &r);
  plain_step(&plain, 1);
  must(take_step(engine, &plain, 1, &report, &err), &err);
  assert_same_bits(engine, &plain);
  end_engine(engine);
  plain_stop(&plain);
  hk_plan_free(&plan);
  return (double)report.update / HK_NS_PER_S;
}

/* Each limit is chosen so that the update takes 0.3 s. Only the last part may run faster than the
 * limit: 0.25 MiB of 18 MB of state or of 3 MB of weights, 65,536 of 1.5 M parameters. The bounds
 * allow for it. */
static void limits_hold(void **state) {
  (void)state;
  if (is_sanitized() && !is_full_run()) skip(); /* most of this program's time */
  hk_plan plan = small_plan();
  const double n = (double)numel_of(&plan), time = 0.3;
  hk_plan_free(&plan);
  assert_true(update_of(HK_ROUTE_STAGED, (hk_pace){.in = 12 * n / time}) >= 0.95 * time);
  assert_true(update_of(HK_ROUTE_STAGED, (hk_pace){.out = 12 * n / time}) >= 0.95 * time);
  assert_true(update_of(HK_ROUTE_CPU, (hk_pace){.in = 2 * n / time}) >= 0.9 * time);
  assert_true(update_of(HK_ROUTE_CPU, (hk_pace){.cpu = n / time}) >= 0.93 * time);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(paced_plans_are_plain_adamw),
      cmocka_unit_test(limits_hold),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
