/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The choice whether updates run ahead of the norm (engine/train/clip.h), on norms of real runs
 * (tests/data/README.md). Its regret is the time that it loses against knowing each norm
 * beforehand. */
#include <math.h>
#include <stdio.h>

#include "engine/train/clip.h"
#include "tests/fixture.h"

#define MOST_NORMS 2000

typedef struct {
  double norms[MOST_NORMS];
  int n;
} norm_series;

static norm_series read_series(const char *name) {
  norm_series s = {.n = 0};
  char line[80];
  FILE *f = fopen(HK_TEST_DATA "/grad-norms.csv", "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f) != NULL) {
    char *comma = strchr(line, ',');
    assert_non_null(comma);
    *comma = 0;
    if (strcmp(line, name) != 0) continue;
    assert_in_range(s.n, 0, MOST_NORMS - 1);
    s.norms[s.n++] = strtod(strchr(comma + 1, ',') + 1, NULL);
  }
  fclose(f);
  return s;
}

/* A rule says whether the next step runs ahead. */
typedef struct {
  hk_clip_history history;
  int clipped_in_a_row;
} rule_state;
typedef bool (*rule)(const rule_state *s);

static bool always(const rule_state *s) {
  (void)s;
  return true;
}

static bool never(const rule_state *s) {
  (void)s;
  return false;
}

/* What the engine did before it looked at norms: nothing runs ahead after two clipped steps in a
 * row, except in one step of 16. */
static bool after_two(const rule_state *s) {
  return s->clipped_in_a_row < 2 || s->clipped_in_a_row % 16 == 0;
}

static bool by_norms(const rule_state *s) {
  return hk_clip_runs_ahead(&s->history);
}

/* Time lost against the best choice at each step, in percent of what running ahead gains in an
 * unclipped step. A step takes 775 ms if nothing runs ahead and 505 if updates run ahead and are
 * kept (an H200 node, 3.0 G parameters); `loss`: how much longer than 775 ms it takes if they are
 * done again, as a multiple of 775 - 505 ms. */
static double regret(const norm_series *s, double most, double loss, rule ahead) {
  const hk_ns ms = 1000000, gain = (775 - 505) * ms;
  rule_state state = {.clipped_in_a_row = 0};
  double lost = 0;
  for (int i = 0; i < 3; i++) {
    hk_clip_note_time(&state.history, HK_STEP_HELD, 775 * ms);
    hk_clip_note_time(&state.history, HK_STEP_KEPT, 505 * ms);
    hk_clip_note_time(&state.history, HK_STEP_REDONE, 775 * ms + (hk_ns)(loss * (double)gain));
  }
  for (int i = 0; i < s->n; i++) {
    const bool clipped = s->norms[i] > most, tries = ahead(&state);
    if (clipped && tries) lost += loss;
    if (!clipped && !tries) lost += 1;
    state.clipped_in_a_row = clipped ? state.clipped_in_a_row + 1 : 0;
    hk_clip_note_norm(&state.history, s->norms[i], most);
  }
  return 100 * lost / s->n;
}

/* Each row states what each rule loses. Where limits other than the run's own 1.0 are given, the
 * norms are those of the run with 1.0. */
static void what_each_rule_loses_on_recorded_norms(void **unused) {
  (void)unused;
  static const struct {
    const char *series;
    double most, loss;
    double by_norms, after_two, always, never;
  } rows[] = {
      {"gpt2", 1, 0.1, 1.4, 4.2, 1.9, 81.0},          /* clipped: 19.0 % */
      {"gpt2-start", 1, 0.1, 2.6, 9.7, 6.6, 34.1},    /* clipped: 65.9 % */
      {"mistral", 1, 0.1, 4.1, 6.4, 9.1, 9.5},        /* clipped: 90.5 % */
      {"mistral", 2, 0.1, 2.7, 5.9, 3.7, 62.8},       /* clipped: 37.2 % */
      {"nsllm", 1, 0.1, 0.7, 1.5, 0.7, 93.1},         /* clipped: 6.9 % */
      {"nsllm", 0.3, 0.1, 3.1, 4.4, 4.1, 58.9},       /* clipped: 41.1 % */
      {"star", 1, 0.1, 0.0, 0.7, 10.0, 0.0},          /* clipped: 100.0 % */
      {"star", 5, 0.1, 7.7, 8.7, 8.5, 15.3},          /* clipped: 84.7 % */
      {"gpt2", 1, 0.33, 4.6, 6.5, 6.3, 81.0},         /* clipped: 19.0 % */
      {"gpt2-start", 1, 0.33, 8.9, 15.0, 21.7, 34.1}, /* clipped: 65.9 % */
      {"mistral", 1, 0.33, 7.5, 10.0, 29.9, 9.5},     /* clipped: 90.5 % */
      {"mistral", 2, 0.33, 7.8, 10.0, 12.3, 62.8},    /* clipped: 37.2 % */
      {"nsllm", 1, 0.33, 2.1, 2.4, 2.3, 93.1},        /* clipped: 6.9 % */
      {"nsllm", 0.3, 0.33, 6.4, 6.7, 13.6, 58.9},     /* clipped: 41.1 % */
      {"star", 1, 0.33, 0.1, 2.1, 33.0, 0.0},         /* clipped: 100.0 % */
      {"star", 5, 0.33, 12.7, 13.0, 27.9, 15.3},      /* clipped: 84.7 % */
      {"gpt2", 1, 1, 13.5, 13.0, 19.0, 81.0},         /* clipped: 19.0 % */
      {"gpt2-start", 1, 1, 25.4, 30.7, 65.9, 34.1},   /* clipped: 65.9 % */
      {"mistral", 1, 1, 10.3, 20.6, 90.5, 9.5},       /* clipped: 90.5 % */
      {"mistral", 2, 1, 18.7, 21.9, 37.2, 62.8},      /* clipped: 37.2 % */
      {"nsllm", 1, 1, 5.5, 5.1, 6.9, 93.1},           /* clipped: 6.9 % */
      {"nsllm", 0.3, 1, 9.0, 13.3, 41.1, 58.9},       /* clipped: 41.1 % */
      {"star", 1, 1, 0.2, 6.5, 100.0, 0.0},           /* clipped: 100.0 % */
      {"star", 5, 1, 13.2, 25.7, 84.7, 15.3},         /* clipped: 84.7 % */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const norm_series s = read_series(rows[i].series);
    const rule rules[] = {by_norms, after_two, always, never};
    const double stated[] = {rows[i].by_norms, rows[i].after_two, rows[i].always, rows[i].never};
    double found[4];
    for (int k = 0; k < 4; k++) found[k] = regret(&s, rows[i].most, rows[i].loss, rules[k]);
    for (int k = 0; k < 4; k++) {
      if (fabs(found[k] - stated[k]) <= 0.051) continue;
      fail_msg("%s, %g, %g: %.1f, %.1f, %.1f, %.1f", s.n > 0 ? rows[i].series : "no such series",
               rows[i].most, rows[i].loss, found[0], found[1], found[2], found[3]);
    }
  }
}

static void limit_follows_from_the_times_of_steps(void **unused) {
  (void)unused;
  hk_clip_history h = {.any = false};
  const double usual = hk_clip_limit(&h);
  for (int i = 0; i < 3; i++) {
    assert_true(hk_clip_limit(&h) == usual); /* fewer than three of each kind */
    hk_clip_note_time(&h, HK_STEP_HELD, 800);
    hk_clip_note_time(&h, HK_STEP_KEPT, 500);
    hk_clip_note_time(&h, HK_STEP_REDONE, i == 0 ? 90000 : 900);
  }
  assert_true(fabs(hk_clip_limit(&h) - 0.75) < 1e-12); /* 300 / (300 + 100) */
  /* Three longer steps of seven do not change the median. */
  for (int i = 0; i < 3; i++) hk_clip_note_time(&h, HK_STEP_KEPT, 500);
  for (int i = 0; i < 3; i++) hk_clip_note_time(&h, HK_STEP_KEPT, 5000000);
  assert_int_equal(hk_clip_time(&h, HK_STEP_KEPT), 500);
  /* Whatever is measured, the limit stays between 1 / 2 and 16 / 17. */
  for (int i = 0; i < 7; i++) hk_clip_note_time(&h, HK_STEP_HELD, 100);
  assert_true(hk_clip_limit(&h) == 0.5);
  for (int i = 0; i < 7; i++) hk_clip_note_time(&h, HK_STEP_HELD, 10000);
  assert_true(fabs(hk_clip_limit(&h) - 16.0 / 17) < 1e-12);
}

/* Until enough steps have been timed, the limit follows from what the plan says. */
static void limit_follows_from_the_plan(void **unused) {
  (void)unused;
  hk_clip_history h = {.any = false};
  const double usual = hk_clip_limit(&h);
  h.planned = (hk_guess_costs){.gain = 300, .loss = 100};
  assert_true(fabs(hk_clip_limit(&h) - 0.75) < 1e-12);
  h.planned.loss = 1; /* the same bounds as for timed steps */
  assert_true(fabs(hk_clip_limit(&h) - 16.0 / 17) < 1e-12);
  h.planned = (hk_guess_costs){.gain = 0, .loss = 0};
  assert_true(hk_clip_limit(&h) == usual);
  h.planned = (hk_guess_costs){.gain = 300, .loss = 100};
  for (int i = 0; i < 3; i++) {
    hk_clip_note_time(&h, HK_STEP_HELD, 800);
    hk_clip_note_time(&h, HK_STEP_KEPT, 500);
    hk_clip_note_time(&h, HK_STEP_REDONE, 830);
  }
  assert_true(fabs(hk_clip_limit(&h) - 300.0 / 330) < 1e-12); /* what was timed counts */
}

static void chance_follows_from_norms(void **unused) {
  (void)unused;
  hk_clip_history h = {.any = false};
  assert_true(hk_clip_chance(&h) == 0);
  hk_clip_note_norm(&h, 2, 0); /* nothing is clipped */
  assert_true(hk_clip_chance(&h) == 0);
  hk_clip_note_norm(&h, 2, 2);
  assert_true(hk_clip_chance(&h) == 0.5);
  for (int i = 0; i < 200; i++) hk_clip_note_norm(&h, 2, 1.9);
  assert_true(hk_clip_chance(&h) > 0.99); /* the norm does not vary */
  hk_clip_note_norm(&h, 2, 1e9);          /* another limit counts at once */
  assert_true(hk_clip_chance(&h) == 0);
  hk_clip_note_norm(&h, 0, 1); /* its logarithm would be infinite */
  assert_true(hk_clip_chance(&h) > 0.99);
  hk_clip_forget(&h);
  assert_true(hk_clip_chance(&h) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chance_follows_from_norms),
      cmocka_unit_test(limit_follows_from_the_times_of_steps),
      cmocka_unit_test(limit_follows_from_the_plan),
      cmocka_unit_test(what_each_rule_loses_on_recorded_norms),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
