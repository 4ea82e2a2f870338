/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Campaigns on a simulated stand, whose clock advances one second a run. */
#include "calib/probes/campaign.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/random.h"

#define PROBES   4
#define MOST_LOG 4096

/* The simulated stand: its settings, and the calls that it received. */
typedef struct {
  double noise[PROBES]; /* (largest - smallest) / mean of a probe's values */
  double slow_after_s;  /* from then on values are 0.8 of those before; 0: never */
  hk_status failure[PROBES];
  int fails_at[PROBES]; /* run, from 1; 0: never */
  bool gives_bad;       /* probe 0's third run gives bad_value */
  int reviews;
  bool reviews_fail;
  double bad_value;
  hk_ns cost, time;
  int backwards_at; /* run at which the clock goes back by an hour; 0: never */
  int stop_after, keep_fails_at;
  volatile sig_atomic_t stop;

  int runs, runs_of[PROBES], verified[PROBES], kept[PROBES], n_kept;
  int log[MOST_LOG]; /* probe of each run */
  struct {
    int probe;
    double values[2];
  } store[MOST_LOG];
  double share, left; /* last shown */
  size_t narrow;
} bench;

static int number_of(const hk_probe *probe) {
  return probe->name[0] - 'a';
}

/* A value between -1/2 and 1/2 for each round of a probe. */
static double draw(int probe, int round) {
  random_stream r = {(uint64_t)(probe * 10000 + round)};
  return uniform(&r) - 0.5;
}

/* Only the last load of a probe is noisy. */
static double noise_of(const bench *b, const hk_probe *probe, int load) {
  return load == probe->n_loads - 1 ? b->noise[number_of(probe)] : 0;
}

static hk_status run_fake(void *stand, const hk_probe *probe, hk_ns wish, bool verify,
                          double *values, hk_error *err) {
  bench *b = stand;
  const int p = number_of(probe), run = ++b->runs_of[p];
  assert_int_equal(wish, 1000);
  assert_true(b->runs < MOST_LOG);
  b->log[b->runs++] = p;
  b->time += b->cost;
  if (b->runs == b->backwards_at) b->time -= 3600 * HK_NS_PER_S;
  b->verified[p] += verify;
  if (run == b->fails_at[p]) return hk_fail(err, b->failure[p], "probe %d broke", p);
  const double speed = b->slow_after_s > 0 && (double)b->time / 1e9 > b->slow_after_s ? 0.8 : 1;
  for (int load = 0; load < probe->n_loads; load++)
    values[load] = 100 * (p + 1) * speed * (1 + noise_of(b, probe, load) * draw(p, b->kept[p]));
  if (b->gives_bad && p == 0 && run == 3) values[probe->n_loads - 1] = b->bad_value;
  if (b->runs == b->stop_after) b->stop = 1;
  return HK_OK;
}

static hk_ns fake_clock(void *stand) {
  return ((bench *)stand)->time;
}

static hk_status keep(void *context, const hk_probe *probe, size_t round, const double *values,
                      hk_error *err) {
  bench *b = context;
  const int p = number_of(probe);
  if (b->n_kept + 1 == b->keep_fails_at) return hk_fail(err, HK_ENVIRONMENT, "disk full");
  assert_int_equal(round, b->kept[p]);
  b->kept[p]++;
  b->store[b->n_kept].probe = p;
  memcpy(b->store[b->n_kept++].values, values, (size_t)probe->n_loads * sizeof *values);
  return HK_OK;
}

static void progress(void *context, const char *probe, double share, double left_s, size_t narrow,
                     size_t n) {
  bench *b = context;
  assert_int_equal(probe[0] - 'a', b->log[b->runs - 1]);
  assert_true(share >= b->share && share <= 1);
  assert_true(left_s >= 0 && left_s < INFINITY);
  assert_int_equal(n, PROBES);
  b->share = share;
  b->left = left_s;
  b->narrow = narrow;
}

static hk_campaign_options options_for(bench *b) {
  if (b->cost == 0) b->cost = HK_NS_PER_S;
  return (hk_campaign_options){.target = 0.02,
                               .budget_s = 1e6,
                               .least = 6,
                               .most = 20,
                               .wish = 1000,
                               .seed = 7,
                               .stop = &b->stop,
                               .keep = keep,
                               .progress = progress,
                               .context = b,
                               .run = run_fake,
                               .stand = b,
                               .clock = fake_clock};
}

/* Probes a, b, c and d; the last has two loads. */
static hk_campaign open_campaign(void) {
  hk_probe probes[PROBES] = {{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}};
  for (int i = 0; i < PROBES; i++) probes[i].n_loads = i == PROBES - 1 ? 2 : 1;
  hk_campaign c;
  hk_error err = {0};
  must(hk_campaign_open(probes, PROBES, &c, &err), &err);
  assert_int_equal(c.n, PROBES);
  return c;
}

static void run(hk_campaign *c, const hk_campaign_options *options) {
  hk_error err = {0};
  must(hk_campaign_run(c, options, &err), &err);
}

static hk_campaign campaign_on(bench *b) {
  hk_campaign c = open_campaign();
  const hk_campaign_options options = options_for(b);
  run(&c, &options);
  return c;
}

/* -- Until the interval is narrow -------------------------------------------------------------- */

static void test_narrow_stops_early(void **state) {
  (void)state;
  bench b = {.noise = {0, 0.01, 0.01, 0.01}};
  hk_campaign c = campaign_on(&b);
  assert_true(c.noisy == 0 && c.failures == 0 && !c.interrupted);
  for (int p = 0; p < PROBES; p++) {
    const hk_series *s = &c.series[p];
    assert_true(s->narrow && s->rounds == 6 && s->summary[0].n == 6);
    assert_int_equal(b.runs_of[p], 7); /* one warm-up, which is not kept */
    assert_int_equal(b.kept[p], 6);
    assert_int_equal(b.verified[p], 2); /* the warm-up and the last */
  }
  assert_true(c.seconds == 28);
  assert_true(b.share == 1 && b.left == 0 && b.narrow == PROBES);
  assert_true(c.series[0].summary[0].median == 100 && c.series[0].summary[0].mad == 0);
  assert_ptr_equal(hk_campaign_find(&c, "d"), &c.series[3]);
  assert_null(hk_campaign_find(&c, "e"));
  hk_campaign_free(&c);
  hk_campaign_free(&c);
}

/* Target spread 2 %. Noise of 190 % never reaches it and ends after 20 rounds, 7 % reaches it after
 * more than 6. Probes without noise end after 6. */
static hk_status review_third(void *context, bool *enough, hk_error *err) {
  bench *b = context;
  if (b->reviews_fail) return hk_fail(err, HK_ENVIRONMENT, "no memory");
  *enough = ++b->reviews == 3;
  return HK_OK;
}

/* A review after each round ends the campaign, or fails it; noisy series stay noisy. */
static void test_review(void **state) {
  (void)state;
  bench b = {.noise = {0.5, 0.5, 0.5, 0.5}};
  hk_campaign c = open_campaign();
  hk_campaign_options options = options_for(&b);
  options.review = review_third;
  run(&c, &options);
  assert_int_equal(b.reviews, 3);
  for (int p = 0; p < PROBES; p++) assert_int_equal(c.series[p].rounds, 3);
  assert_true(c.noisy == PROBES && !c.interrupted);
  b.reviews_fail = true;
  b.share = 0;
  hk_error err = {0};
  assert_int_equal(hk_campaign_run(&c, &options, &err), HK_ENVIRONMENT);
  for (int p = 0; p < PROBES; p++) assert_int_equal(c.series[p].rounds, 4);
  hk_campaign_free(&c);
}

static void test_noisy_goes_on(void **state) {
  (void)state;
  bench b = {.noise = {0, 1.9, 0.07, 0}};
  hk_campaign c = campaign_on(&b);
  assert_int_equal(c.noisy, 1);
  assert_true(!c.series[1].narrow && c.series[1].rounds == 20);
  assert_int_equal(b.verified[1], 3);
  assert_true(c.series[2].narrow && c.series[2].rounds > 6);
  assert_true(hk_summary_spread(&c.series[2].summary[0]) <= 0.02);
  assert_true(c.series[0].rounds == 6 && c.series[3].rounds == 6);
  hk_campaign_free(&c);
}

/* One noisy load keeps its probe running; all loads of the probe get the same number of rounds. */
static void test_every_load_counts(void **state) {
  (void)state;
  bench b = {.noise = {0, 0, 0, 1.9}};
  hk_campaign c = campaign_on(&b);
  const hk_series *s = &c.series[3];
  assert_true(c.noisy == 1 && !s->narrow && s->rounds == 20);
  assert_true(hk_summary_spread(&s->summary[0]) == 0 && s->summary[0].n == 20);
  assert_true(hk_summary_spread(&s->summary[1]) > 0.02 && s->summary[1].n == 20);
  hk_campaign_free(&c);
}

/* The machine slows down midway: every interval holds both speeds, and none is narrow. */
static void test_drift_widens_all(void **state) {
  (void)state;
  bench b = {.slow_after_s = 28, .noise = {0.001, 0.001, 0.001, 0.001}};
  hk_campaign c = open_campaign();
  hk_campaign_options options = options_for(&b);
  options.least = options.most = 12;
  run(&c, &options);
  assert_int_equal(c.noisy, PROBES);
  for (int p = 0; p < PROBES; p++) {
    const hk_summary *s = &c.series[p].summary[0];
    assert_true(s->low < 81 * (p + 1) && s->high > 99 * (p + 1));
  }
  hk_campaign_free(&c);
}

/* -- Time -------------------------------------------------------------------------------------- */

/* 1 s a run: 8 s for the first round with its warm-ups, then 4 s a round. Five rounds take 24 s of
 * the 25 s budget; a sixth would exceed it. */
static void test_budget(void **state) {
  (void)state;
  bench b = {.noise = {1, 1, 1, 1}};
  hk_campaign c = open_campaign();
  hk_campaign_options options = options_for(&b);
  options.budget_s = 25;
  run(&c, &options);
  assert_true(c.seconds == 24 && c.noisy == PROBES && !c.interrupted);
  for (int p = 0; p < PROBES; p++) assert_int_equal(c.series[p].rounds, 5);
  assert_true(b.left <= 1);
  hk_campaign_free(&c);
}

/* The duration of the first round is unknown in advance; it must still end within the budget of
 * 5.5 s: two probes with their warm-ups, and the third's warm-up. */
static void test_budget_ends_in_a_round(void **state) {
  (void)state;
  bench b = {0};
  hk_campaign c = open_campaign();
  hk_campaign_options options = options_for(&b);
  options.budget_s = 5.5;
  run(&c, &options);
  size_t rounds = 0;
  for (int p = 0; p < PROBES; p++) rounds += c.series[p].rounds;
  assert_true(c.seconds == 5 && rounds == 2 && c.noisy == PROBES);
  hk_campaign_free(&c);
}

/* Seconds of earlier runs of the campaign count. */
static void test_budget_in_all(void **state) {
  (void)state;
  bench b = {0};
  hk_campaign c = open_campaign();
  hk_campaign_options options = options_for(&b);
  options.budget_s = 100;
  c.seconds = 98;
  run(&c, &options);
  assert_true(b.runs == 2 && c.seconds == 100);
  run(&c, &options);
  assert_int_equal(b.runs, 2);
  hk_campaign_free(&c);
}

/* The run during which the clock goes back counts as 0 s: 28 runs take 27 s. */
static void test_clock_going_back(void **state) {
  (void)state;
  bench b = {.backwards_at = 10};
  hk_campaign c = campaign_on(&b);
  assert_true(c.noisy == 0 && c.seconds == 27);
  hk_campaign_free(&c);
}

static hk_status run_spinning(void *stand, const hk_probe *probe, hk_ns wish, bool verify,
                              double *values, hk_error *err) {
  const hk_ns end = hk_now() + HK_NS_PER_S / 1000;
  while (hk_now() < end) continue;
  return run_fake(stand, probe, wish, verify, values, err);
}

static void test_real_clock(void **state) {
  (void)state;
  bench b = {0};
  hk_campaign c = open_campaign();
  hk_campaign_options options = options_for(&b);
  options.run = run_spinning;
  options.clock = NULL;
  run(&c, &options);
  assert_true(c.noisy == 0 && c.seconds >= 28e-3 && c.seconds < 20);
  hk_campaign_free(&c);
}

/* -- Order ------------------------------------------------------------------------------------- */

/* Each round visits every probe once, in an order that depends on the seed alone. */
static void test_order(void **state) {
  (void)state;
  enum { ROUNDS = 200 };
  static bench benches[3];
  const uint64_t seeds[] = {7, 7, 7 | (uint64_t)1 << 40}; /* the upper half counts, too */
  for (int i = 0; i < 3; i++) {
    benches[i] = (bench){.noise = {1, 1, 1, 1}};
    hk_campaign c = open_campaign();
    hk_campaign_options options = options_for(&benches[i]);
    options.most = ROUNDS;
    options.target = 1e-9;
    options.seed = seeds[i];
    run(&c, &options);
    assert_int_equal(benches[i].runs, PROBES * (ROUNDS + 1));
    hk_campaign_free(&c);
  }
  assert_memory_equal(benches[0].log, benches[1].log, sizeof benches[0].log);
  assert_memory_not_equal(benches[0].log, benches[2].log, sizeof benches[0].log);
  int place[PROBES][PROBES] = {{0}};
  for (int round = 1; round < ROUNDS; round++) { /* round 0 also has the warm-ups */
    const int *visited = benches[0].log + PROBES * (round + 1);
    int seen = 0;
    for (int k = 0; k < PROBES; k++) {
      seen |= 1 << visited[k];
      place[visited[k]][k]++;
    }
    assert_int_equal(seen, (1 << PROBES) - 1);
  }
  /* 199 / 4 plus or minus four standard deviations of the binomial distribution (6.1). */
  for (int p = 0; p < PROBES; p++)
    for (int k = 0; k < PROBES; k++) assert_in_range(place[p][k], 50 - 25, 50 + 25);
}

/* -- Failures ---------------------------------------------------------------------------------- */

static void test_failed_probes_are_left_out(void **state) {
  (void)state;
  bench b = {.failure = {0, HK_NO, HK_INPUT, 0}, .fails_at = {0, 4, 1, 0}};
  hk_campaign c = campaign_on(&b);
  assert_true(c.failures == 2 && c.noisy == 0 && !c.interrupted);
  assert_true(c.series[1].failed && c.series[2].failed && !c.series[0].failed);
  assert_string_equal(c.series[1].failure, "probe 1 broke");
  assert_true(b.runs_of[1] == 4 && b.runs_of[2] == 1);
  assert_true(c.series[1].rounds == 0 && c.series[1].summary[0].n == 0 && !c.series[1].narrow);
  assert_true(c.series[0].narrow && c.series[3].narrow);
  hk_campaign_free(&c);
}

/* HK_ENVIRONMENT ends the campaign, whose earlier samples are kept: one of each run except the
 * warm-ups and the failed one. */
static void test_lost_device(void **state) {
  (void)state;
  bench b = {.failure = {0, 0, HK_ENVIRONMENT, 0}, .fails_at = {0, 0, 4, 0}};
  hk_campaign c = open_campaign();
  const hk_campaign_options options = options_for(&b);
  hk_error err = {0};
  assert_int_equal(hk_campaign_run(&c, &options, &err), HK_ENVIRONMENT);
  assert_string_equal(err.message, "probe 'c': probe 2 broke");
  assert_int_equal(c.series[2].rounds, 2);
  int rounds = 0;
  for (int p = 0; p < PROBES; p++) rounds += (int)c.series[p].rounds;
  assert_true(rounds == b.n_kept && rounds == b.runs - PROBES - 1);
  assert_int_equal(c.noisy, PROBES);
  hk_campaign_free(&c);
}

static void test_full_disk(void **state) {
  (void)state;
  bench b = {.keep_fails_at = 7};
  hk_campaign c = open_campaign();
  const hk_campaign_options options = options_for(&b);
  hk_error err = {0};
  assert_int_equal(hk_campaign_run(&c, &options, &err), HK_ENVIRONMENT);
  assert_string_equal(err.message, "disk full");
  assert_int_equal(b.n_kept, 6);
  hk_campaign_free(&c);
}

static void test_impossible_values(void **state) {
  (void)state;
  const double bad[] = {NAN, INFINITY, -1, -1e-300, 0};
  for (int i = 0; i < 5; i++) {
    bench b = {.gives_bad = true, .bad_value = bad[i]};
    hk_campaign c = campaign_on(&b);
    assert_true(c.failures == 1 && c.series[0].failed && b.runs_of[0] == 3);
    assert_non_null(strstr(c.series[0].failure, "must be above 0"));
    hk_campaign_free(&c);
  }
}

/* -- Interrupted and resumed ------------------------------------------------------------------- */

static void check_same(const hk_campaign *a, const hk_campaign *b) {
  for (size_t p = 0; p < PROBES; p++) {
    const hk_series *x = &a->series[p], *y = &b->series[p];
    assert_true(x->rounds == y->rounds && x->narrow == y->narrow);
    assert_memory_equal(x->values, y->values,
                        x->rounds * (size_t)x->probe.n_loads * sizeof *x->values);
    assert_memory_equal(&x->summary[0], &y->summary[0], sizeof x->summary[0]);
  }
}

/* A new campaign with the samples that an interrupted one stored, as a second process has it. */
static hk_campaign resume(bench *b) {
  hk_campaign c = open_campaign();
  hk_error err = {0};
  for (int i = 0; i < b->n_kept; i++) {
    const hk_probe *probe = &c.series[b->store[i].probe].probe;
    must(hk_campaign_add(&c, probe->name, b->store[i].values, probe->n_loads, &err), &err);
  }
  b->stop = 0;
  return c;
}

/* Interrupted after any run and resumed, a campaign ends with the samples of one that was not. */
static void test_interrupted_and_resumed(void **state) {
  (void)state;
  const bench start = {.noise = {0, 0.1, 0.05, 0.08}};
  bench whole = start;
  hk_campaign expected = campaign_on(&whole);
  assert_true(whole.runs > 40);
  for (int after = 1; after < whole.runs; after++) {
    bench b = start;
    b.stop_after = after;
    hk_campaign first = campaign_on(&b);
    assert_true(first.interrupted && b.runs == after);
    hk_campaign_free(&first);
    int warm[PROBES];
    hk_campaign second = resume(&b);
    for (int p = 0; p < PROBES; p++) warm[p] = b.runs_of[p];
    const hk_campaign_options options = options_for(&b);
    b.share = 0;
    run(&second, &options);
    assert_false(second.interrupted);
    check_same(&expected, &second);
    for (int p = 0; p < PROBES; p++) { /* each probe that ran again was warmed up again */
      const int again = b.runs_of[p] - warm[p];
      assert_true(again == 0 || again >= 2);
    }
    hk_campaign_free(&second);
  }
  hk_campaign_free(&expected);
}

/* A signal during the last run does not count as an interruption. */
static void test_stop_at_the_end(void **state) {
  (void)state;
  bench b = {.stop_after = 7 * PROBES};
  hk_campaign c = campaign_on(&b);
  assert_true(!c.interrupted && c.noisy == 0);
  hk_campaign_free(&c);
}

static void test_refused(void **state) {
  (void)state;
  bench b = {0};
  hk_campaign c = open_campaign(), none;
  hk_error err = {0};
  const double values[] = {1, -1};
  assert_int_equal(hk_campaign_open(NULL, 0, &none, &err), HK_INPUT);
  hk_campaign_free(&none);
  assert_int_equal(hk_campaign_add(&c, "e", values, 1, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "'e'"));
  assert_int_equal(hk_campaign_add(&c, "d", values, 1, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "2 loads"));
  assert_int_equal(hk_campaign_add(&c, "d", values, 2, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "not above 0"));
  assert_int_equal(c.series[3].rounds, 0);
  const hk_campaign_options options = options_for(&b);
  b.stop = 1;
  run(&c, &options);
  assert_true(c.interrupted && b.runs == 0 && c.noisy == PROBES);
  hk_campaign_free(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_narrow_stops_early),
      cmocka_unit_test(test_review),
      cmocka_unit_test(test_noisy_goes_on),
      cmocka_unit_test(test_every_load_counts),
      cmocka_unit_test(test_drift_widens_all),
      cmocka_unit_test(test_budget),
      cmocka_unit_test(test_budget_ends_in_a_round),
      cmocka_unit_test(test_budget_in_all),
      cmocka_unit_test(test_clock_going_back),
      cmocka_unit_test(test_real_clock),
      cmocka_unit_test(test_order),
      cmocka_unit_test(test_failed_probes_are_left_out),
      cmocka_unit_test(test_lost_device),
      cmocka_unit_test(test_full_disk),
      cmocka_unit_test(test_impossible_values),
      cmocka_unit_test(test_interrupted_and_resumed),
      cmocka_unit_test(test_stop_at_the_end),
      cmocka_unit_test(test_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
