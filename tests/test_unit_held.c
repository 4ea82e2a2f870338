/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Steps in which nothing runs ahead of the norm: what plan files say of them, their operations in
 * the graph, and their simulation. */
#include <math.h>
#include <stdlib.h>

#include "core/graph/bytes.h"
#include "sim/ahead.h"
#include "sim/held.h"
#include "sim/rank.h"
#include "tests/fixture_blocks.h"

enum { BLOCKS = 12 };

/* Like an H200 node: copies at 55 GB/s, AdamW at 5.5 G parameters/s, GPU memory for all state. */
static hk_machine node(void) {
  hk_machine m = ideal_machine();
  m.cores.value = 16;
  m.h2d.value = m.d2h.value = 55e9;
  m.duplex.value = 95e9;
  m.gpu_hbm.value = 4e12;
  m.cpu_adamw.value = 5.5e9;
  m.host_memory.value = 1e12;
  m.gpu_memory.value = 80e9;
  return m;
}

/* All subgroups run ahead. Forward takes 10 ms a block, backward 25, the update of one 18. */
static hk_plan planned(const hk_machine *machine) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = equal_blocks(BLOCKS, 100000000, 10, 25);
  const hk_plan_settings settings = {.overlap = HK_OVERLAP_BOTH};
  const hk_candidate all_cpu = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&all_cpu, &model, machine, &ONE_RANK, &settings, &plan, &err), &err);
  must(hk_plan_run_ahead(&plan, machine, &err), &err);
  assert_int_equal(hk_plan_ahead(&plan), model.parameters);
  hk_model_free(&model);
  return plan;
}

/* -- Documents -------------------------------------------------------------------------------- */

static void documents_keep_what_differs(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = node();
  hk_plan plan = planned(&machine), again;
  hk_plan_stage_held(&plan, 3);
  plan.guess = (hk_guess_costs){.gain = 250500000, .loss = 1500000};
  must(hk_plan_check(&plan, &err), &err);
  cJSON *document = hk_plan_to_json(&plan);
  must(hk_plan_from_json(document, &again, &err), &err);
  assert_int_equal(hk_plan_held_staged(&again), hk_plan_held_staged(&plan));
  assert_int_equal(again.guess.gain, plan.guess.gain);
  assert_int_equal(again.guess.loss, plan.guess.loss);
  hk_plan_free(&again);

  cJSON *guess = cJSON_GetObjectItem(document, "guess");
  cJSON_SetNumberValue(cJSON_GetObjectItem(guess, "loss_ms"), -1);
  assert_int_equal(hk_plan_from_json(document, &again, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "loss_ms"));
  cJSON_Delete(document);

  plan.subgroups[2].ahead = false; /* it has no spare memory to be written to */
  assert_true(plan.subgroups[2].held_staged);
  assert_int_equal(hk_plan_check(&plan, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "subgroups[2]"));
  hk_plan_free(&plan);
}

/* -- Graphs ----------------------------------------------------------------------------------- */

typedef struct {
  int64_t cpu, gpu;    /* parameters that each updates */
  hk_bytes in, out;    /* state (and gradients) to the GPU and from it */
  int64_t ahead, when; /* parameters whose update runs ahead; operations of one kind of step only */
} work;

static work work_of(const hk_plan *plan, unsigned phases, hk_when leave_out) {
  hk_error err = {0};
  hk_graph g;
  work w = {0};
  must(hk_graph_build(plan, (hk_expand){phases, .folded = true}, &g, &err), &err);
  for (size_t i = 0; i < g.n_ops; i++) {
    const hk_op *op = &g.ops[i];
    if (op->when != HK_WHEN_ALWAYS && op->when == leave_out) continue;
    if (op->kind == HK_OP_ADAMW_CPU) w.cpu += op->work;
    if (op->kind == HK_OP_ADAMW_GPU) w.gpu += op->work;
    if (op->kind == HK_OP_STATE_H2D) w.in += op->work;
    if (op->kind == HK_OP_STATE_D2H) w.out += op->work;
    if (op->ahead) w.ahead += op->work;
    w.when += op->when != HK_WHEN_ALWAYS;
  }
  hk_graph_free(&g);
  return w;
}

/* A step that is kept is the same with and without staged subgroups in others. The engine's graph
 * has the operations of both kinds of step. */
static void graphs_have_the_steps_operations(void **state) {
  (void)state;
  hk_machine machine = node();
  hk_plan plan = planned(&machine);
  const int64_t n = plan.model.parameters;
  const work before = work_of(&plan, HK_EXPAND_ALL, HK_WHEN_ALWAYS);
  assert_int_equal(before.cpu, n);
  assert_int_equal(before.ahead, n);
  assert_int_equal(before.when, 0);
  hk_plan_stage_held(&plan, 4);
  const int64_t staged = hk_plan_held_staged(&plan);
  assert_in_range(staged, n / 5, n / 3);
  work kept = work_of(&plan, HK_EXPAND_ALL, HK_WHEN_ALWAYS);
  kept.when = 0;
  assert_memory_equal(&kept, &before, sizeof kept);
  const work engine_kept = work_of(&plan, HK_EXPAND_ENGINE, HK_WHEN_HELD);
  assert_int_equal(engine_kept.cpu, n);
  assert_int_equal(engine_kept.in, 0);
  const work engine_held = work_of(&plan, HK_EXPAND_ENGINE, HK_WHEN_KEPT);
  plan.steps = HK_STEPS_HELD;
  const work held = work_of(&plan, HK_EXPAND_ALL, HK_WHEN_ALWAYS);
  assert_int_equal(held.cpu, n - staged);
  assert_int_equal(held.gpu, staged);
  assert_int_equal(held.ahead, 0);
  assert_int_equal(held.in, (HK_BYTES_STATE + HK_BYTES_BF16) * staged); /* with gradients */
  assert_int_equal(held.out, HK_BYTES_STATE * staged);
  assert_int_equal(engine_held.cpu, held.cpu);
  assert_int_equal(engine_held.gpu, held.gpu);
  assert_int_equal(engine_held.in, held.in);
  hk_plan_free(&plan);
}

/* -- Simulation ------------------------------------------------------------------------------- */

static hk_forecast forecast(const hk_plan *plan, const hk_machine *machine) {
  hk_error err = {0};
  hk_plan copy;
  hk_forecast f;
  must(hk_plan_copy(plan, &copy, &err), &err);
  must(hk_forecast_make(&copy, machine, &(hk_sim_options){.check = true}, &f, &err), &err);
  return f;
}

/* Without staged subgroups a held step is that of a plan in which nothing runs ahead. */
static void held_steps_are_those_of_a_plan_without_marks(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = node();
  hk_plan plan = planned(&machine);
  hk_forecast held;
  must(hk_held_forecast(&plan, &machine, &held, &err), &err);
  for (size_t s = 0; s < plan.n_subgroups; s++) plan.subgroups[s].ahead = false;
  hk_forecast plain = forecast(&plan, &machine);
  assert_int_equal(held.iteration_ns, plain.iteration_ns);
  assert_int_equal(held.backward_ns, plain.backward_ns);
  hk_forecast_free(&held);
  hk_forecast_free(&plain);
  hk_plan_free(&plan);
}

/* After the norm the CPU needs 12 x 18 = 218 ms. A third of it on the GPU, which copies 800 MB in
 * 25 ms, shortens the step by about 73 ms. Costs of a wrong guess follow. */
static void staged_subgroups_shorten_held_steps(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = node();
  hk_plan plan = planned(&machine);
  hk_forecast today = forecast(&plan, &machine);
  must(hk_held_add(&today, 0, &machine, &err), &err);
  hk_plan_stage_held(&plan, 3);
  hk_forecast staged = forecast(&plan, &machine);
  must(hk_held_add(&staged, 0, &machine, &err), &err);
  assert_int_equal(staged.iteration_ns, today.iteration_ns);
  const double gain = hk_ms(today.held_ns - staged.held_ns);
  if (!(fabs(gain - 73) < 12)) fail_msg("%.1f ms", gain);
  assert_int_equal(staged.plan.guess.gain, staged.held_ns - staged.iteration_ns);
  assert_true(staged.plan.guess.gain < today.plan.guess.gain);
  /* One operation of the CPU: at most a piece, by the rate ahead of the norm. */
  const double piece = (double)plan.piece_numel / (5.5e9 * machine.cpu_adamw_ahead.value) * 1e3;
  const double loss = hk_ms(staged.plan.guess.loss);
  if (!(loss >= 0.9 * piece && loss <= 1.5 * piece + 10)) fail_msg("%.2f, %.2f ms", loss, piece);
  hk_forecast_free(&today);
  hk_forecast_free(&staged);
  hk_plan_free(&plan);
}

/* If every step is clipped, spares are of no use: subgroups that were staged then are always
 * staged, and the iteration is no longer for that. */
static void no_spares_if_every_step_is_clipped(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = node();
  hk_plan plan = planned(&machine);
  hk_plan_stage_held(&plan, 3);
  const int64_t staged = hk_plan_held_staged(&plan);
  hk_forecast best = forecast(&plan, &machine);
  must(hk_held_add(&best, 1, &machine, &err), &err);
  const double before = (double)best.held_ns;
  must(hk_ahead_enough(&best, &machine, &err), &err);
  assert_int_equal(hk_plan_ahead(&best.plan), 0);
  assert_int_equal(hk_plan_on_route(&best.plan, HK_ROUTE_STAGED), staged);
  assert_true(best.feasible && (double)hk_forecast_mean(&best) <= 1.005 * before);
  hk_forecast_free(&best);
  hk_plan_free(&plan);
}

/* By block, clipping delays nothing; with overlap forward nothing ever runs ahead. */
static void other_plans_have_one_kind_of_step(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine = node();
  hk_plan plan = planned(&machine);
  plan.clip = HK_CLIP_BLOCK;
  hk_forecast by_block = forecast(&plan, &machine);
  must(hk_held_add(&by_block, 0, &machine, &err), &err);
  assert_int_equal(by_block.held_ns, 0);
  plan.clip = HK_CLIP_NORM;
  hk_plan_set_overlap(&plan, HK_OVERLAP_FORWARD);
  hk_forecast beside_forward = forecast(&plan, &machine);
  must(hk_held_add(&beside_forward, 0, &machine, &err), &err);
  assert_int_equal(beside_forward.held_ns, 0);
  hk_forecast_free(&by_block);
  hk_forecast_free(&beside_forward);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(documents_keep_what_differs),
      cmocka_unit_test(graphs_have_the_steps_operations),
      cmocka_unit_test(held_steps_are_those_of_a_plan_without_marks),
      cmocka_unit_test(staged_subgroups_shorten_held_steps),
      cmocka_unit_test(no_spares_if_every_step_is_clipped),
      cmocka_unit_test(other_plans_have_one_kind_of_step),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
