/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The GPU takes pieces that the CPU team has not begun: each piece is updated once, by either, with
 * the bits of plain AdamW; what is stolen is counted; plans without staging buffers steal nothing.
 */
#include "engine/run/owner.h"
#include "engine/train/training_private.h"
#include "tests/fixture_slow.h"
#include "tests/fixture_training.h"

enum { LAYERS = 12, NUMEL = 3000 };

static int32_t piece = 1000;
static bool own_buffers; /* for stolen pieces, though nothing is staged */

/* -- Updates by the GPU that are queued late --------------------------------------------------- */

static hk_backend_ops late_updates;

static hk_status launch_late(hk_stream *stream, const hk_kernel *kernel, hk_error *err) {
  if (kernel->kind == HK_KERNEL_ADAMW) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
  return hk_backend_host.launch(stream, kernel, err);
}

/* One subgroup a layer. The deepest `staged` are staged, all others are on the CPU; of these
 * every other one runs ahead with overlap both. */
static void open_layers(world *w, hk_overlap overlap, hk_clip clip, size_t staged) {
  hk_error err = {0};
  hk_plan plan = {0};
  w->n = (size_t)(w->blocks = LAYERS);
  w->n_groups = 1;
  w->groups[0] = (hk_adamw){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  for (size_t i = 0; i < w->n; i++) make_tensor(w, i, (int)i, NUMEL);
  must(hk_default_plan(w->params, w->n, 1, &plan, &err), &err);
  assert_int_equal(plan.n_subgroups, LAYERS);
  plan.overlap = overlap;
  plan.clip = clip;
  plan.piece_numel = piece;
  plan.buffers = 2;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    const bool on_cpu = s + staged < LAYERS;
    plan.subgroups[s].route = on_cpu ? HK_ROUTE_CPU : HK_ROUTE_STAGED;
    plan.subgroups[s].ahead = overlap == HK_OVERLAP_BOTH && on_cpu && s % 2 == 0;
  }
  plan.steals = own_buffers;
  const hk_engine_options options = {.backend = &hk_backend_host, .no_pin_threads = true};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, 1, &options, &w->engine, &err), &err);
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
  hk_plan_free(&plan);
  slow_down(w->engine);
}

/* -- Tests ------------------------------------------------------------------------------------- */

/* Four steps whose pieces all are updated once; returns what the GPU took. */
static int64_t train(world *w, size_t staged, double limit) {
  int64_t stolen = 0;
  for (int i = 0; i < 4; i++) {
    atomic_store(&updated_slowly, 0);
    plain_iteration(w, 1, limit);
    assert_state(w); /* the step has ended */
    const struct hk_training *t = w->engine->training;
    const int64_t taken = t->times[(t->n_times - 1) % HK_KEPT_TIMES].stolen;
    assert_int_equal(atomic_load(&updated_slowly) + taken, (int64_t)(LAYERS - staged) * NUMEL);
    assert_int_equal(taken % piece, 0);
    stolen += taken;
  }
  return stolen;
}

/* With each overlap, clipped and not. */
static void something_is_stolen(uint64_t seed, size_t staged) {
  for (int overlap = HK_OVERLAP_FORWARD; overlap <= HK_OVERLAP_BOTH; overlap++) {
    for (int clipped = 0; clipped < 2; clipped++) {
      world w = {.r = {seed}};
      open_layers(&w, (hk_overlap)overlap, HK_CLIP_NORM, staged);
      assert_true(train(&w, staged, clipped ? 1e-3 : 0) > 0);
      unmake(&w);
    }
  }
}

static void the_gpu_takes_what_the_cpu_has_not_begun(void **unused) {
  (void)unused;
  something_is_stolen(17, 2);
}

/* Forward waits for weights that the GPU writes: it reaches the block that CPU and GPU meet at
 * while the GPU's update of it has not been queued. */
static void forward_waits_for_what_was_stolen(void **unused) {
  (void)unused;
  world w = {.r = {22}};
  late_updates = hk_backend_host;
  late_updates.launch = launch_late;
  piece = NUMEL;
  slow_ns = 2000000;
  open_layers(&w, HK_OVERLAP_FORWARD, HK_CLIP_NORM, 1);
  w.engine->backend->ops = &late_updates;
  for (int i = 0; i < 4; i++) plain_iteration(&w, 1, 0); /* compares weights of each block */
  assert_state(&w);
  assert_true(train(&w, 1, 0) > 0);
  unmake(&w);
  piece = 1000;
  slow_ns = 300000;
}

/* With clipping by block only what does not run ahead can be stolen. */
static void pieces_ahead_of_a_block_norm_stay(void **unused) {
  (void)unused;
  world w = {.r = {18}, .by_block = true};
  open_layers(&w, HK_OVERLAP_BOTH, HK_CLIP_BLOCK, 2);
  assert_int_equal(w.engine->state.n_stealable, (LAYERS - 2) / 2 * (NUMEL / piece));
  for (size_t s = 0; s < LAYERS; s++) {
    const hk_state_subgroup *sub = &w.engine->state.subgroups[s];
    assert_int_equal(sub->stealable, s < LAYERS - 2 && !sub->ahead);
  }
  assert_true(train(&w, 2, 1e-3) > 0);
  unmake(&w);
}

static void a_plan_that_stages_nothing_steals_with_buffers(void **unused) {
  (void)unused;
  own_buffers = true;
  something_is_stolen(23, 0);
  own_buffers = false;
}

static void nothing_is_stolen_without_staging(void **unused) {
  (void)unused;
  world w = {.r = {19}};
  open_layers(&w, HK_OVERLAP_BOTH, HK_CLIP_NORM, 0);
  assert_int_equal(w.engine->state.n_stealable, 0);
  assert_int_equal(w.engine->device.staging, w.engine->device.grads); /* no staging buffers */
  assert_int_equal(train(&w, 0, 0), 0);
  unmake(&w);
}

/* Without an overlap the graph is that of an update alone, as it is simulated. */
static void an_update_alone_is_as_planned(void **unused) {
  (void)unused;
  world w = {.r = {20}};
  open_layers(&w, HK_OVERLAP_NONE, HK_CLIP_NORM, 2);
  assert_int_equal(w.engine->state.n_stealable, 0);
  for (size_t i = 0; i < w.engine->graph.n_ops; i++)
    assert_int_equal(w.engine->graph.ops[i].when, HK_WHEN_ALWAYS);
  unmake(&w);
}

/* The GPU works against the forward order, after all that is planned for its lane. */
static void the_deepest_piece_goes_first(void **unused) {
  (void)unused;
  world w = {.r = {21}};
  open_layers(&w, HK_OVERLAP_FORWARD, HK_CLIP_NORM, 2);
  const hk_graph *graph = &w.engine->graph;
  int32_t n = 0, before = INT32_MAX;
  for (size_t i = 0; i < graph->n_ops; i++) {
    const hk_op *op = &graph->ops[i];
    if (op->kind != HK_OP_STATE_H2D) continue;
    assert_int_equal(op->when == HK_WHEN_STOLEN, op->subgroup < LAYERS - 2);
    if (op->when != HK_WHEN_STOLEN) continue;
    const int32_t at = op->subgroup * (NUMEL / piece) + op->piece;
    assert_true(at < before);
    assert_int_equal(op->priority, INT32_MAX);
    before = at;
    n++;
  }
  assert_int_equal(n, (LAYERS - 2) * (NUMEL / piece));
  unmake(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_gpu_takes_what_the_cpu_has_not_begun),
      cmocka_unit_test(forward_waits_for_what_was_stolen),
      cmocka_unit_test(pieces_ahead_of_a_block_norm_stay),
      cmocka_unit_test(a_plan_that_stages_nothing_steals_with_buffers),
      cmocka_unit_test(nothing_is_stolen_without_staging),
      cmocka_unit_test(an_update_alone_is_as_planned),
      cmocka_unit_test(the_deepest_piece_goes_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
