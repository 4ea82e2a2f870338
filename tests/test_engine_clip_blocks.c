/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Clipping by block, on the host backend: each block's gradients are clipped by their own norm,
 * whatever the plan's subgroups and pieces are, and updates run ahead though every step is clipped.
 * tests/test_engine_training.c and test_engine_training_orders.c have random runs of it, too. */
#include <time.h>

#include "engine/train/training_private.h"
#include "tests/fixture_training.h"

/* Blocks of the plan: those of the tensors, all tensors in one, each by itself, or other ones. */
typedef enum { BLOCKS_SAME, BLOCKS_ONE, BLOCKS_EACH, BLOCKS_OTHER, BLOCKS_KINDS } plan_blocks;

static int other_block(const world *w, plan_blocks kind, size_t i) {
  switch (kind) {
    case BLOCKS_ONE:
      return 0;
    case BLOCKS_EACH:
      return (int)i;
    case BLOCKS_OTHER:
      return (int)(i + 1) / 3;
    default:
      return w->params[i].block;
  }
}

/* All of the CPU's subgroups run ahead. With `mixed` some have other routes. */
static void make_clipped(world *w, plan_blocks kind, bool mixed) {
  hk_error err = {0};
  hk_plan plan = {0};
  hk_param params[MOST_TENSORS];
  make_model(w);
  memcpy(params, w->params, sizeof params);
  for (size_t i = 0; i < w->n; i++) params[i].block = other_block(w, kind, i);
  must(hk_default_plan(params, w->n, pick(&w->r, 1, 2), &plan, &err), &err);
  plan.overlap = HK_OVERLAP_BOTH;
  plan.clip = HK_CLIP_BLOCK;
  plan.piece_numel = (int64_t)scale(&w->r, 60, 70000);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    hk_plan_subgroup *sub = &plan.subgroups[s];
    if (mixed) sub->route = (hk_route)pick(&w->r, 0, HK_ROUTE_RESIDENT);
    sub->ahead = sub->route == HK_ROUTE_CPU;
    sub->early = sub->ahead && pick(&w->r, 0, 1) > 0;
  }
  const hk_engine_options options = {.no_pin_threads = true};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, w->n_groups, &options, &w->engine, &err),
       &err);
  w->by_block = true;
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
  hk_plan_free(&plan);
}

static uint64_t cases(void) {
  return case_count((case_counts){.release = 20, .address = 8, .thread = 6},
                    (case_counts){.release = 160, .address = 50, .thread = 20});
}

static bool all_finite(const world *w) {
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    for (int64_t k = 0; t->given > 0 && k < t->param.numel; k++) {
      if (!isfinite(widen(t->param.grad_type, t->grad, k))) return false;
    }
  }
  return true;
}

/* Gradients come out of order, several times, not at all, are discarded, or are not finite. */
static void bits_are_those_of_plain_clipping(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < cases(); number++) {
    hk_error err = {0};
    world w = {.r = {number * 104729 + 7}};
    make_clipped(&w, (plan_blocks)(number % BLOCKS_KINDS), number % 2 > 0);
    for (int i = 0; i < 10; i++) {
      const bool finite = pick(&w.r, 0, 9) > 0;
      forward(&w);
      for (int micro = pick(&w.r, 0, 3) == 0 ? 2 : 1; micro > 0; micro--) backward(&w, 1, finite);
      const size_t one = next(&w.r) % w.n;
      if (pick(&w.r, 0, 4) == 0) {
        must(hk_engine_discard(w.engine, (int64_t)one, &err), &err);
        w.tensors[one].given = 0;
        if (pick(&w.r, 0, 1) == 0) hand_over(&w, one, true);
      }
      step(&w, all_finite(&w));
      if (pick(&w.r, 0, 5) == 0) assert_state(&w);
    }
    assert_state(&w);
    unmake(&w);
  }
}

/* One orderly iteration with `micros` micro-steps. Returns how many elements ran ahead. */
static int64_t iterate(world *w, double max_norm, int micros) {
  hk_error err = {0};
  hk_step_report report;
  const hk_step_options options = {.max_norm = max_norm};
  forward(w);
  for (int i = 0; i < micros; i++) backward(w, 0, true);
  const struct timespec moment = {.tv_nsec = 2000000};
  nanosleep(&moment, NULL);
  must(hk_engine_step(w->engine, &options, &report, NULL, &err), &err);
  assert_true(report.grad_scale == plain_update_blocks(w, max_norm, 1));
  assert_true(max_norm > 1 || report.grad_scale < 1);
  for (size_t k = 0; k < w->n; k++) w->tensors[k].given = 0;
  return report.ahead;
}

/* Gradients are of 0.01 and less. With a limit of 1e-6 every block of every step is clipped. */
static void clipped_updates_run_ahead(void **unused) {
  (void)unused;
  int64_t ahead = 0, numel = 0;
  for (uint64_t number = 0; number < 4; number++) {
    world w = {.r = {number + 5}};
    make_clipped(&w, BLOCKS_SAME, false);
    assert_int_equal(iterate(&w, 1e-6, 1), 0);
    for (int i = 0; i < 4; i++) ahead += iterate(&w, 1e-6, 1);
    numel += 4 * hk_engine_numel(w.engine);
    assert_state(&w);
    unmake(&w);
  }
  print_message("%lld of %lld elements ran ahead\n", (long long)ahead, (long long)numel);
  assert_true(2 * ahead > numel);
}

/* The norm is that of the sum. The first step with another number of micro-steps gives up what runs
 * ahead, the next ones do not. */
static void sums_of_micro_steps_run_ahead(void **unused) {
  (void)unused;
  int64_t ahead = 0;
  for (uint64_t number = 0; number < 4; number++) {
    world w = {.r = {number + 5}};
    make_clipped(&w, BLOCKS_SAME, number % 2 > 0);
    for (int i = 0; i < 2; i++) iterate(&w, 1e-6, 1);
    iterate(&w, 1e-6, 3);
    for (int i = 0; i < 2; i++) ahead += iterate(&w, 1e-6, 3);
    iterate(&w, 1e-6, 1);
    assert_state(&w);
    unmake(&w);
  }
  assert_true(ahead > 0);
}

/* A gradient that is added to a block after its norm was used, also where the gradient's tensor is
 * updated by the GPU and only others of its block run ahead, gives up what ran ahead. */
static void late_gradient_changes_the_norm(void **unused) {
  (void)unused;
  hk_error err = {0};
  hk_step_report report;
  const hk_step_options options = {.max_norm = 1e-6};
  const struct timespec moment = {.tv_nsec = 2000000};
  for (uint64_t number = 0; number < 12; number++) {
    world w = {.r = {number + 5}};
    make_clipped(&w, BLOCKS_EACH, true);
    for (int i = 0; i < 2; i++) iterate(&w, 1e-6, 1);
    forward(&w);
    backward(&w, 0, true);
    nanosleep(&moment, NULL);
    hand_over(&w, number % w.n, true);
    must(hk_engine_step(w.engine, &options, &report, NULL, &err), &err);
    assert_int_equal(report.ahead, 0);
    plain_update_blocks(&w, 1e-6, 1);
    for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
    assert_state(&w);
    unmake(&w);
  }
}

/* A gradient of a block whose squares are being copied to the host waits for the copy, also after
 * the run has been given up: it would change them meanwhile. */
static void late_gradient_waits_for_the_copy(void **unused) {
  (void)unused;
  enum { LARGE = 64 << 20 };
  hk_error err = {0};
  hk_event *copied = NULL;
  hk_ns time;
  char *from = calloc(LARGE, 1), *to = malloc(LARGE);
  world w = {.r = {5}};
  assert_true(from && to);
  make_clipped(&w, BLOCKS_SAME, false);
  for (int i = 0; i < 2; i++) iterate(&w, 1e-6, 1);
  forward(&w);
  backward(&w, 0, true);
  must(hk_training_quiet(w.engine, &err), &err);
  const hk_backend_ops *ops = w.engine->backend->ops;
  must(ops->event_open(w.engine->backend, false, &copied, &err), &err);
  must(ops->copy(w.engine->training->flush, to, from, LARGE, &err), &err);
  must(ops->record(w.engine->training->flush, copied, &err), &err);
  hand_over(&w, 0, true);
  must(ops->event_time(copied, &time, &err), &err); /* refuses events that have not happened */
  ops->event_close(copied);
  unmake(&w);
  free(from);
  free(to);
}

/* Updates that ran ahead have assumed the limit of the step before. */
static void another_limit_counts_at_once(void **unused) {
  (void)unused;
  int64_t ahead = 0;
  for (uint64_t number = 0; number < 4; number++) {
    world w = {.r = {number + 5}};
    make_clipped(&w, BLOCKS_SAME, false);
    for (int i = 0; i < 2; i++) iterate(&w, 1e-6, 1);
    assert_int_equal(iterate(&w, 1e-7, 1), 0);
    ahead += iterate(&w, 1e-7, 1);
    assert_state(&w);
    unmake(&w);
  }
  assert_true(ahead > 0);
}

static void value_that_is_not_finite_skips_all_blocks(void **unused) {
  (void)unused;
  hk_error err = {0};
  hk_step_report report;
  const hk_step_options options = {.max_norm = 1e-6};
  world w = {.r = {11}};
  make_clipped(&w, BLOCKS_SAME, false);
  for (int i = 0; i < 3; i++) iterate(&w, 1e-6, 1);
  backward(&w, 0, false); /* in the tensor that comes last */
  must(hk_engine_step(w.engine, &options, &report, NULL, &err), &err);
  assert_true(report.skipped && report.nonfinite == 1);
  for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
  assert_state(&w);
  iterate(&w, 1e-6, 1);
  assert_state(&w);
  unmake(&w);
}

/* Other ranks' squares can be added to the norm of all gradients only. */
static void sum_of_all_ranks_is_refused(void **unused) {
  (void)unused;
  hk_error err = {0};
  hk_step_report report;
  hk_step_options options = {.max_norm = 1, .sum_of_squares = 2};
  world w = {.r = {11}};
  make_clipped(&w, BLOCKS_SAME, false);
  backward(&w, 0, true);
  assert_int_equal(hk_engine_step(w.engine, &options, &report, NULL, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "sum_of_squares"));
  options.sum_of_squares = INFINITY; /* some rank's gradients are not finite */
  must(hk_engine_step(w.engine, &options, &report, NULL, &err), &err);
  assert_true(report.skipped);
  unmake(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clipped_updates_run_ahead),
      cmocka_unit_test(sums_of_micro_steps_run_ahead),
      cmocka_unit_test(late_gradient_changes_the_norm),
      cmocka_unit_test(late_gradient_waits_for_the_copy),
      cmocka_unit_test(another_limit_counts_at_once),
      cmocka_unit_test(value_that_is_not_finite_skips_all_blocks),
      cmocka_unit_test(sum_of_all_ranks_is_refused),
      cmocka_unit_test(bits_are_those_of_plain_clipping),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
