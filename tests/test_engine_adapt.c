/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The choice of the number of threads while training (engine/train/adapt.h), on times of a model:
 * an iteration takes as long as its computation or as the update of 3e9 elements, whichever is
 * longer. A team of t threads updates t times `each` elements a second, but no more than `most`.
 * Computation loses `loss` for each thread beyond those that leave enough cores. */
#include <math.h>
#include <stdio.h>

#include "engine/train/adapt.h"
#include "engine/train/training_private.h"
#include "tests/fixture_training.h"

enum { MOST_THREADS = 16, PLANNED = 13 };

typedef struct {
  double compute, loss; /* seconds; share of it a thread beyond PLANNED */
  double each, most;
} conditions;

static const conditions quiet = {0.45, 0.05, 0.6e9, 6e9};
/* Half of the memory bandwidth: the more threads a team has, the larger its share. */
static const conditions neighbour = {0.45, 0.05, 0.24e9, 6e9};
/* Others use the cores: each thread beyond eight delays computation. */
static const conditions crowded = {0.9, 0.1, 0.6e9, 6e9};

static double rate_of(const conditions *c, int threads) {
  return fmin(threads * c->each, c->most);
}

static double time_of(const conditions *c, int threads) {
  const int room = c->loss > 0.05 ? 8 : PLANNED;
  const double compute = c->compute * (1 + c->loss * fmax(0, threads - room));
  return fmax(compute, 3e9 / rate_of(c, threads));
}

static double best_time(const conditions *c) {
  double best = INFINITY;
  for (int t = 1; t <= MOST_THREADS; t++) best = fmin(best, time_of(c, t));
  return best;
}

static double normal(random_stream *r) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += uniform(r);
  return sum;
}

/* One iteration under these conditions, with relative noise. */
static void iterate(hk_adapt *a, int64_t step, const conditions *c, double noise,
                    random_stream *r) {
  const double time = time_of(c, a->threads) * exp(noise * normal(r));
  hk_adapt_note(a, step, 0, (hk_ns)(1e9 * time), rate_of(c, a->threads));
}

/* The phase's iterations; asserts that the number in use is within 3 % of the best from the tenth
 * on, and with more noise than 0.5 % from the twentieth on. */
static void assert_phase(hk_adapt *a, int64_t *step, const conditions *c, double noise,
                         random_stream *r) {
  for (int i = 0; i < 60; i++) {
    iterate(a, (*step)++, c, noise, r);
    if (i >= (noise > 0.005 ? 19 : 9) && time_of(c, a->kept) > 1.03 * best_time(c)) {
      fail_msg("noise %g, iteration %d: %d threads take %.3f s, the best %.3f", noise, i, a->kept,
               time_of(c, a->kept), best_time(c));
    }
  }
}

static void follows_conditions_soon(void **unused) {
  (void)unused;
  for (uint64_t seed = 0; seed < 200; seed++) {
    random_stream r = {seed * 31 + 7};
    const double noise = (double)(seed % 3) * 0.003;
    hk_adapt a;
    int64_t step = 0;
    hk_adapt_begin(&a, PLANNED, MOST_THREADS, 0);
    assert_phase(&a, &step, &quiet, noise, &r);
    assert_int_equal(a.tries, 0);
    assert_phase(&a, &step, &neighbour, noise, &r);
    assert_phase(&a, &step, &quiet, noise, &r);
    assert_phase(&a, &step, &crowded, noise, &r);
    assert_phase(&a, &step, &quiet, noise, &r);
  }
}

/* Without drift nothing changes, also with scatter and pauses. */
static void without_drift_nothing_switches(void **unused) {
  (void)unused;
  for (uint64_t seed = 0; seed < 400; seed++) {
    random_stream r = {seed * 131 + 3};
    const double noise = (double)(seed % 4) * 0.01;
    hk_adapt a;
    hk_adapt_begin(&a, PLANNED, MOST_THREADS, 0);
    for (int64_t step = 0; step < 200; step++) {
      const bool pause = seed % 2 > 0 && pick(&r, 0, 30) == 0;
      const double time = 0.5 * exp(noise * normal(&r)) * (pause ? 20 : 1);
      hk_adapt_note(&a, step, 0, (hk_ns)(1e9 * time), 0);
    }
    if (a.switches > 0)
      fail_msg("seed %d, noise %g: %d -> %d", (int)seed, noise, a.latest.from, a.latest.to);
  }
}

/* Iterations become longer for a reason that threads do not change: tried once, then left. */
static void what_gains_nothing_is_not_kept(void **unused) {
  (void)unused;
  random_stream r = {5};
  hk_adapt a;
  hk_adapt_begin(&a, PLANNED, MOST_THREADS, 0);
  for (int64_t step = 0; step < 200; step++)
    hk_adapt_note(&a, step, 0, (hk_ns)((step < 40 ? 5e8 : 8e8) * exp(0.01 * normal(&r))), 0);
  assert_int_equal(a.switches, 0);
  assert_int_equal(a.tries, 2);
  assert_int_equal(a.threads, PLANNED);
}

/* What is said of a switch, without noise: 1 + 2 iterations notice, then 2 pairs. */
static void a_switch_says_why(void **unused) {
  (void)unused;
  random_stream r = {1};
  hk_adapt a;
  hk_adapt_begin(&a, PLANNED, MOST_THREADS, 0);
  for (int64_t step = 0; step < 20; step++) iterate(&a, step, &quiet, 0, &r);
  int64_t step = 20;
  while (a.switches == 0 && step < 40) iterate(&a, step++, &neighbour, 0, &r);
  assert_int_equal(step, 25);
  assert_int_equal(a.latest.step, 24);
  assert_int_equal(a.latest.from, PLANNED);
  assert_int_equal(a.latest.to, MOST_THREADS);
  assert_true(fabs((double)a.latest.before - 5e8) < 1e3);
  assert_true(fabs((double)a.latest.now - 1e9 * 3 / (13 * 0.24)) < 1e3);
  assert_true(fabs(a.latest.gain - 3.0 / 16) < 1e-6);
  assert_true(fabs(a.latest.rate_before - 6e9) < 1e3);
  assert_true(fabs(a.latest.rate - 13 * 0.24e9) < 1e3);
  char text[320];
  hk_adapt_reason(&a, "iterations", text, sizeof text);
  assert_string_equal(text,
                      "after step 24 the CPU team has 16 threads instead of 13: iterations "
                      "took 961.5 ms instead of 500 (the CPU updated 3.12e+09 elements a "
                      "second instead of 6e+09), and 18.7 % less with 16 threads in turns");
}

/* A plan for another machine: iterations are longer than predicted from the beginning. */
static void a_wrong_prediction_is_noticed(void **unused) {
  (void)unused;
  random_stream r = {1};
  for (int wrong = 0; wrong < 2; wrong++) {
    hk_adapt a;
    hk_adapt_begin(&a, PLANNED, MOST_THREADS, wrong ? 500000000 : 950000000);
    for (int64_t step = 0; step < 30; step++) iterate(&a, step, &neighbour, 0.002, &r);
    assert_int_equal(a.kept, wrong ? MOST_THREADS : PLANNED);
    assert_true(llabs(a.latest.before - (wrong ? 500000000 : 0)) < 10);
  }
}

/* Single iterations of another kind do not count. If all are of another kind from some time on,
 * theirs count, from the beginning. */
static void kinds_are_not_compared(void **unused) {
  (void)unused;
  hk_adapt a;
  hk_adapt_begin(&a, PLANNED, MOST_THREADS, 0);
  for (int64_t step = 0; step < 60; step++) {
    const int kind = step % 4 == 3 || step >= 30;
    hk_adapt_note(&a, step, kind, kind ? 900000000 : 500000000, 0);
  }
  assert_int_equal(a.tries, 0);
  for (int64_t step = 60; step < 80; step++)
    hk_adapt_note(&a, step, 1, (hk_ns)(9e8 * (1.2 - 0.01 * a.threads)), 0);
  assert_int_equal(a.switches, 1);
  assert_int_equal(a.kept, MOST_THREADS);
}

/* In an engine: after some iterations the time that they took is set to another, so that a round of
 * tries begins. State and weights stay those of plain AdamW. */
static void an_engine_tries_and_keeps_its_bits(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 3; number++) {
    hk_error err = {0};
    world w = {.r = {number + 40}, .seed = number, .format = (hk_format)number};
    make_model(&w);
    w.adapts = true;
    make_engine(&w, NULL);
    hk_adapt *a = &w.engine->training->adapt;
    const int planned = a->planned;
    bool changed = false;
    for (int i = 0; i < 30; i++) {
      forward(&w);
      backward(&w, 0, true);
      step(&w, true);
      if (a->iteration.n > 10 && a->tries == 0) a->anchor = 0;
      changed = changed || hk_team_members(w.engine->team) != planned;
    }
    assert_true(a->tries > 0 && changed);
    assert_state(&w);
    must(hk_engine_discard(w.engine, -1, &err), &err);
    unmake(&w);
  }
}

/* Steps with more backwards take longer: they are another kind, where their time counts. */
static void numbers_of_backwards_are_not_compared(void **unused) {
  (void)unused;
  int overlapped = 0;
  for (uint64_t number = 0; number < 4; number++) {
    hk_error err = {0};
    world w = {.r = {number + 40}, .seed = number};
    make_model(&w);
    w.adapts = true;
    make_engine(&w, NULL);
    const hk_adapt *a = &w.engine->training->adapt;
    const bool overlaps = w.engine->plan.overlap != HK_OVERLAP_NONE;
    overlapped += overlaps;
    for (int i = 0; i < 12; i++) {
      if (i == 6) assert_int_equal(a->kind / HK_STEP_KINDS, 0);
      forward(&w);
      for (int k = 0; k < (i < 6 ? 1 : 3); k++) backward(&w, 0, true);
      step(&w, true);
    }
    assert_int_equal(a->kind / HK_STEP_KINDS, overlaps ? 2 : 0);
    assert_state(&w);
    must(hk_engine_discard(w.engine, -1, &err), &err);
    unmake(&w);
  }
  assert_true(overlapped > 0);
}

static void a_team_of_one_has_no_choice(void **unused) {
  (void)unused;
  random_stream r = {1};
  hk_adapt a;
  hk_adapt_begin(&a, 1, 1, 0);
  for (int64_t step = 0; step < 60; step++)
    iterate(&a, step, step < 30 ? &quiet : &neighbour, 0, &r);
  assert_int_equal(a.tries, 0);
  assert_int_equal(a.threads, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(follows_conditions_soon),
      cmocka_unit_test(without_drift_nothing_switches),
      cmocka_unit_test(what_gains_nothing_is_not_kept),
      cmocka_unit_test(a_switch_says_why),
      cmocka_unit_test(a_wrong_prediction_is_noticed),
      cmocka_unit_test(kinds_are_not_compared),
      cmocka_unit_test(an_engine_tries_and_keeps_its_bits),
      cmocka_unit_test(numbers_of_backwards_are_not_compared),
      cmocka_unit_test(a_team_of_one_has_no_choice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
