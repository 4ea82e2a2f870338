/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Training through the engine as a framework does it, on the host backend: tensors of three
 * types in blocks; gradients given in any order, several times, in part or not at all; clipping,
 * loss scales, changed learning rates, gradients that are not finite, abandoned iterations.
 * Under every plan and overlap, state and weights have the bits of plain AdamW whenever the
 * caller can read them. */
#include <time.h>

#include "tests/fixture_training.h"

static void iterate(world *w, int disorder) {
  hk_error err = {0};
  forward(w);
  const int micros = disorder == 0 || pick(&w->r, 0, 3) > 0 ? 1 : pick(&w->r, 2, 3);
  const bool finite = disorder == 0 || pick(&w->r, 0, 9) > 0;
  for (int m = 0; m < micros; m++) backward(w, disorder, finite || m > 0);
  bool bad = false; /* some given gradient is not finite */
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    for (int64_t k = 0; t->given > 0 && k < t->param.numel; k++) {
      bad = bad || !isfinite(widen(t->param.grad_type, t->grad, k));
    }
  }
  if (disorder > 0 && pick(&w->r, 0, 9) == 0) {
    must(hk_training_discard(w->engine, -1, &err), &err);
    overwrite_lent(w);
    for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
    return;
  }
  step(w, !bad);
  if (pick(&w->r, 0, 5) == 0) assert_state(w);
}

static uint64_t cases(void) {
  return case_count((case_counts){.release = 50, .address = 12, .thread = 4},
                    (case_counts){.release = 200, .address = 60, .thread = 20});
}

static void run_case(uint64_t number, int disorder) {
  world w = {.r = {number * 7919 + 13}};
  make_model(&w);
  make_engine(&w, NULL);
  for (int i = 0; i < 12; i++) iterate(&w, disorder);
  assert_state(&w);
  unmake(&w);
}

static void orderly_training_is_plain_adamw(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < cases(); number++) run_case(number, 0);
}

static void disorderly_training_is_plain_adamw(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < cases(); number++) run_case(1000 + number, 1);
}

/* With a limit of the norm that is never reached, updates that ran ahead are kept, and some of
 * their weights wait in lent memory. */
static void updates_that_ran_ahead_are_kept(void **unused) {
  (void)unused;
  hk_error err = {0};
  int64_t ahead = 0, in_lent = 0;
  for (uint64_t number = 0; number < 10; number++) {
    world w = {.r = {number + 5}, .lender = {number + 99}};
    make_model(&w);
    hk_plan plan = {0};
    must(hk_default_plan(w.params, w.n, 1, &plan, &err), &err);
    plan.overlap = HK_OVERLAP_BOTH;
    for (size_t s = 0; s < plan.n_subgroups; s++) plan.subgroups[s].ahead = true;
    hk_plan_lend(&plan);
    const hk_engine_options options = {.no_pin_threads = true, .grad_type = HK_GRAD_BF16};
    must(
        hk_engine_create_for(&plan, w.params, w.n, w.groups, w.n_groups, &options, &w.engine, &err),
        &err);
    must(hk_training_masters(w.engine, -1, NULL, &err), &err);
    for (int i = 0; i < 5; i++) {
      hk_training_step_report report;
      const hk_training_step_options step_options = {.max_norm = 1e9};
      forward(&w);
      backward(&w, 0, true);
      const struct timespec moment = {.tv_nsec = 2000000};
      nanosleep(&moment, NULL);
      const double squares = plain_squares(&w);
      must(hk_training_step(w.engine, &step_options, &report, NULL, &err), &err);
      overwrite_lent(&w);
      plain_update(&w, hk_grad_scale(squares, 1e9, 1));
      for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
      ahead += report.ahead;
      if (i == 0) assert_int_equal(report.ahead, 0);
    }
    assert_state(&w);
    in_lent += w.weights_in_lent;
    hk_plan_free(&plan);
    unmake(&w);
  }
  assert_true(ahead > 0 && in_lent > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(orderly_training_is_plain_adamw),
      cmocka_unit_test(disorderly_training_is_plain_adamw),
      cmocka_unit_test(updates_that_ran_ahead_are_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
