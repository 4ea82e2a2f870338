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
    must(hk_engine_discard(w->engine, -1, &err), &err);
    for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
    return;
  }
  step(w, !bad);
  if (pick(&w->r, 0, 5) == 0) assert_state(w);
}

static uint64_t cases(void) {
  return case_count((case_counts){.release = 20, .address = 5, .thread = 2},
                    (case_counts){.release = 200, .address = 60, .thread = 20});
}

static void run_case(uint64_t number, int disorder, hk_format format) {
  world w = {.r = {number * 7919 + 13}, .format = format, .seed = number};
  make_model(&w);
  make_engine(&w, NULL);
  const uint64_t steps = case_count((case_counts){12, 12, 6}, (case_counts){12, 12, 12});
  for (uint64_t i = 0; i < steps; i++) iterate(&w, disorder);
  assert_state(&w);
  unmake(&w);
}

static void orderly_training_is_plain_adamw(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < cases(); number++) run_case(number, 0, HK_FORMAT_FP32);
}

static void disorderly_training_is_plain_adamw(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < cases(); number++) run_case(1000 + number, 1, HK_FORMAT_FP32);
}

static void training_in_every_format(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < cases(); number++) {
    const hk_format format = (hk_format)(HK_FORMAT_SPLIT + number % 5);
    run_case(2000 + number, number % 2 == 0, format);
  }
}

/* A model all of whose updates may run ahead of the norm, with early weights. `staged`: the GPU
 * does them if they do not, three pieces a subgroup. */
static void make_ahead_or_staged(world *w, bool staged) {
  hk_error err = {0};
  make_model(w);
  hk_plan plan = {0};
  must(hk_default_plan(w->params, w->n, 1, &plan, &err), &err);
  plan.overlap = HK_OVERLAP_BOTH;
  int64_t largest = 1;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].ahead = plan.subgroups[s].early = true;
    plan.subgroups[s].held_staged = staged;
    largest = hk_max(largest, plan.subgroups[s].numel);
  }
  if (staged) plan.piece_numel = largest / 3 + 1;
  const hk_engine_options options = {.no_pin_threads = true};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, w->n_groups, &options, &w->engine, &err),
       &err);
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
  hk_plan_free(&plan);
}

static void make_ahead(world *w) {
  make_ahead_or_staged(w, false);
}

/* One iteration whose gradients are multiplied by `factor`. Returns how many elements' updates ran
 * ahead. */
static int64_t iterate_scaled(world *w, double max_norm, double factor) {
  hk_error err = {0};
  hk_step_report report;
  const hk_step_options step_options = {.max_norm = max_norm};
  forward(w);
  backward(w, 0, true);
  const struct timespec moment = {.tv_nsec = 2000000};
  nanosleep(&moment, NULL);
  const double squares = plain_squares(w);
  if (factor != 1) must(hk_engine_scale(w->engine, factor, &err), &err);
  must(hk_engine_step(w->engine, &step_options, &report, NULL, &err), &err);
  plain_update(w, hk_grad_scale(squares, max_norm, 1 / factor));
  for (size_t k = 0; k < w->n; k++) w->tensors[k].given = 0;
  return report.ahead;
}

static int64_t iterate_ahead(world *w, double max_norm) {
  return iterate_scaled(w, max_norm, 1);
}

static uint64_t worlds(void) {
  return case_count((case_counts){.release = 5, .address = 2, .thread = 2},
                    (case_counts){.release = 10, .address = 10, .thread = 10});
}

/* For what does not depend on when threads get to run, fewer are enough. */
static uint64_t few_worlds(void) {
  return case_count((case_counts){.release = 2, .address = 1, .thread = 1},
                    (case_counts){.release = 10, .address = 10, .thread = 10});
}

/* With a limit of the norm that is never reached, updates that ran ahead are kept. */
static void updates_that_ran_ahead_are_kept(void **unused) {
  (void)unused;
  int64_t ahead = 0;
  for (uint64_t number = 0; number < worlds(); number++) {
    world w = {.r = {number + 5}};
    make_ahead(&w);
    assert_int_equal(iterate_ahead(&w, 1e9), 0);
    for (int i = 1; i < 5; i++) ahead += iterate_ahead(&w, 1e9);
    assert_state(&w);
    unmake(&w);
  }
  assert_true(ahead > 0);
}

/* GradScaler multiplies by the same factor in each step. From the third step on, updates run ahead
 * with it. A step with another factor discards what ran ahead, and so does the next. */
static void a_constant_factor_is_expected(void **unused) {
  (void)unused;
  int64_t ahead = 0;
  for (uint64_t number = 0; number < worlds(); number++) {
    world w = {.r = {number + 5}};
    make_ahead(&w);
    for (int i = 0; i < 2; i++) assert_int_equal(iterate_scaled(&w, 1e9, 0x1p-14), 0);
    for (int i = 0; i < 3; i++) ahead += iterate_scaled(&w, 1e9, 0x1p-14);
    for (int i = 0; i < 2; i++) assert_int_equal(iterate_scaled(&w, 1e9, 0x1p-15), 0);
    ahead += iterate_scaled(&w, 1e9, 0x1p-15);
    assert_state(&w);
    unmake(&w);
  }
  assert_true(ahead > 0);
}

/* Share of the slabs of state on the host that an iteration leaves where they were. Half of
 * host_slabs are spares, because all subgroups run ahead. */
static double share_kept(world *w, double max_norm) {
  hk_error err = {0};
  if (w->engine == NULL) abort(); /* cannot be: the analyzer needs to be told */
  const hk_state *state = &w->engine->state;
  void *before[256];
  bool there;
  assert_in_range(state->host_slabs, 1, 256);
  must(hk_engine_drain(w->engine, -1, &there, &err), &err);
  memcpy(before, state->home, (size_t)(state->host_slabs / 2) * sizeof *before);
  iterate_ahead(w, max_norm);
  must(hk_engine_drain(w->engine, -1, &there, &err), &err);
  const int64_t slabs = state->host_slabs / 2;
  double kept = 0;
  for (int64_t k = 0; k < slabs; k++) kept += state->home[k] == before[k];
  return kept / (double)slabs;
}

/* After clipped steps nothing runs ahead. State is then updated in place, which is faster than into
 * spare memory. A larger limit of the norm ends that: the next step after it writes to spare memory
 * again. */
static void clipped_steps_update_in_place(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < few_worlds(); number++) {
    world w = {.r = {number + 5}};
    make_ahead(&w);
    for (int i = 0; i < 3; i++) iterate_ahead(&w, 1e-6);
    assert_true(share_kept(&w, 1e-6) == 1);
    assert_true(share_kept(&w, 1e9) == 1); /* its run began while steps were clipped */
    assert_true(share_kept(&w, 1e9) == 0);
    assert_state(&w);
    unmake(&w);
  }
}

/* Number of operations that wrote state back from the GPU, in the recording of the last step. */
static int written_back(world *w) {
  hk_error err = {0};
  char *text = NULL;
  int n = 0;
  must(hk_engine_timeline(w->engine, &text, &err), &err);
  for (const char *at = text; (at = strstr(at, "state_d2h")) != NULL; at++) n++;
  free(text);
  must(hk_engine_record(w->engine, true, &err), &err); /* anew */
  return n;
}

/* Subgroups that are staged if nothing runs ahead: the GPU updates them in clipped steps, into
 * spare memory, and in steps whose updates are done again. The CPU updates them in others.
 * Whichever it is, and after each switch, state has the bits of plain AdamW. */
static void the_gpu_updates_in_clipped_steps(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < few_worlds(); number++) {
    hk_error err = {0};
    world w = {.r = {number + 5}};
    make_ahead_or_staged(&w, true);
    must(hk_engine_record(w.engine, true, &err), &err);
    iterate_ahead(&w, 1e9); /* the first step: nothing runs ahead */
    assert_true(written_back(&w) >= (int)w.engine->state.n_subgroups);
    for (int round = 0; round < 2; round++) {
      iterate_ahead(&w, 1e9);
      assert_int_equal(written_back(&w), 0);
      iterate_ahead(&w, 1e-6); /* ran ahead, done again */
      assert_true(written_back(&w) > 0);
      for (int i = 0; i < 3; i++) {
        assert_true(share_kept(&w, 1e-6) == 0); /* expected to be clipped */
        assert_true(written_back(&w) > 0);
      }
      assert_state(&w);
      iterate_ahead(&w, 1e9); /* expected to be clipped, and is not */
      assert_true(written_back(&w) > 0);
    }
    assert_state(&w);
    unmake(&w);
  }
}

/* The same for a caller who clips by hk_engine_scale, to a norm that the engine is not told:
 * steps that are made smaller are not expected to keep what runs ahead, until norms are small. */
static void steps_that_the_caller_clips_update_in_place(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < few_worlds(); number++) {
    world w = {.r = {number + 5}};
    make_ahead(&w);
    int64_t ahead = 0; /* on a busy machine no thread may get to it between two calls */
    for (int i = 0; i < 50 && ahead == 0; i++) ahead = iterate_scaled(&w, 0, 1);
    assert_true(ahead > 0);
    for (int i = 0; i < 20; i++) iterate_scaled(&w, 0, 0x1p-9 + 0x1p-12 * i);
    assert_true(share_kept(&w, 0) == 1);
    assert_true(share_kept(&w, 0) ==
                0); /* a norm that was not clipped: the limit has been lifted */
    assert_state(&w);
    unmake(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(orderly_training_is_plain_adamw),
      cmocka_unit_test(disorderly_training_is_plain_adamw),
      cmocka_unit_test(training_in_every_format),
      cmocka_unit_test(updates_that_ran_ahead_are_kept),
      cmocka_unit_test(a_constant_factor_is_expected),
      cmocka_unit_test(clipped_steps_update_in_place),
      cmocka_unit_test(the_gpu_updates_in_clipped_steps),
      cmocka_unit_test(steps_that_the_caller_clips_update_in_place),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
