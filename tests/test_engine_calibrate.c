/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Whole calibrations on small host devices: complete, interrupted, killed, and refused at the
 * start. */
#include "calib/calibrate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/device/backend_host.h"
#include "tests/fixture.h"

#define LONG_S 60.0 /* budget of calibrations that are stopped */

/* -- A store of its own ------------------------------------------------------------------------ */

static char folder[] = "calibrate-XXXXXX", store_path[64];

static int make_folder(void **state) {
  (void)state;
  strcpy(folder, "calibrate-XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(store_path, sizeof store_path, "%s/store.db", folder);
  return setenv("HOCKET_STORE", store_path, 1);
}

static int remove_folder(void **state) {
  (void)state;
  static const char *const ends[] = {"", "-wal", "-shm", "-journal"};
  for (int i = 0; i < 4; i++) {
    char path[80];
    snprintf(path, sizeof path, "%s%s", store_path, ends[i]);
    if (unlink(path) != 0 && errno != ENOENT) return -1;
  }
  return rmdir(folder);
}

static hk_store *open_store(void) {
  hk_error err = {0};
  hk_store *store = NULL;
  must(hk_store_open(store_path, false, &store, &err), &err);
  return store;
}

/* -- Calibrating ------------------------------------------------------------------------------- */

/* Actions of a calibration's progress callback. */
typedef struct {
  int runs, stop_after;
  volatile sig_atomic_t stop;
  int tell;         /* a pipe to which it writes a byte a run; 0: none */
  hk_store *fill;   /* a store that it fills up after `fill_after` runs, */
  int64_t fill_run; /* with samples of this run */
  int fill_after;
} listener;

static void fill_up(hk_store *store, int64_t run) {
  hk_error err = {0};
  must(hk_store_do(store, &err, "PRAGMA max_page_count = 1", ""), &err);
  const double value = 1;
  hk_status status = HK_OK;
  for (size_t i = 0; status == HK_OK; i++)
    status = hk_calibration_run_add_sample(store, run, "filler", i, 1, &value, 0, &err);
  assert_int_equal(status, HK_ENVIRONMENT);
}

static void listen_to(void *context, const char *probe, double share, double left_s, size_t narrow,
                      size_t n) {
  listener *l = context;
  assert_true(probe[0] != '\0' && share >= 0 && share <= 1 && left_s >= 0 && narrow <= n);
  if (++l->runs == l->stop_after) l->stop = 1;
  if (l->tell && write(l->tell, "", 1) != 1) abort();
  if (l->fill && l->runs == l->fill_after) fill_up(l->fill, l->fill_run);
}

/* A clock that advances 0.1 s a run, independent of the machine's speed. */
static const listener *counted;

static hk_ns count(void *stand) {
  (void)stand;
  return counted->runs * (HK_NS_PER_S / 10);
}

/* Sets a budget of `runs` runs. */
static void allow(hk_calibrate_options *options, const listener *l, int runs) {
  counted = l;
  options->clock = count;
  options->budget_s = runs / 10.0;
}

static hk_calibrate_options options_for(listener *l, const char *name) {
  return (hk_calibrate_options){.stand = {.ops = &hk_backend_host,
                                          .gpus = 1,
                                          .cores = 2,
                                          .host_bytes = 64 * HK_MIB,
                                          .device_bytes = 32 * HK_MIB,
                                          .host = {.memory = 128 * HK_MIB, .threads = 1}},
                                .name = name,
                                .version = "1.2.3",
                                .quick = true,
                                .budget_s = LONG_S,
                                .seed = 1,
                                .stop = &l->stop,
                                .progress = listen_to,
                                .context = l};
}

static size_t rounds_of(const hk_campaign *campaign) {
  size_t rounds = 0;
  for (size_t i = 0; i < campaign->n; i++) rounds += campaign->series[i].rounds;
  return rounds;
}

static void check_none_failed(const hk_campaign *campaign) {
  for (size_t i = 0; i < campaign->n; i++) {
    const hk_series *s = &campaign->series[i];
    if (s->failed) fail_msg("%s: %s", s->probe.name, s->failure);
  }
  assert_int_equal(campaign->failures, 0);
}

static hk_calibration_run unfinished(hk_store *store, const char *name) {
  hk_calibration_run run;
  hk_fingerprint f;
  hk_error err = {0};
  must(hk_calibration_run_unfinished(store, name, &run, &f, &err), &err);
  return run;
}

/* Begins a calibration, stops it after `runs` runs, and returns its stored rounds. */
static size_t begin_and_stop(hk_store *store, const char *name, int runs) {
  listener l = {.stop_after = runs};
  const hk_calibrate_options options = options_for(&l, name);
  hk_calibration c;
  hk_error err = {0};
  must(hk_calibrate(store, &options, &c, &err), &err);
  assert_true(c.campaign.interrupted && !c.resumed && l.runs == runs);
  assert_true(c.fit.n_quantities == 0 && c.fit.machine.document == NULL);
  const size_t rounds = rounds_of(&c.campaign);
  assert_int_equal(unfinished(store, name).samples, rounds);
  hk_calibration_free(&c);
  hk_calibration_free(&c);
  return rounds;
}

static void expect_refusal(hk_store *store, const hk_calibrate_options *options, const char *why) {
  hk_calibration c;
  hk_error err = {0};
  listener *l = options->context;
  const int before = l->runs;
  assert_int_equal(hk_calibrate(store, options, &c, &err), HK_INPUT);
  if (!strstr(err.message, why)) fail_msg("'%s' without '%s'", err.message, why);
  assert_int_equal(l->runs, before); /* before anything was measured */
  hk_calibration_free(&c);
}

/* -- Killed ------------------------------------------------------------------------------------ */

/* Runs until it is killed. */
static void calibrate_in_child(int tell) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  listener l = {.tell = tell};
  const hk_calibrate_options options = options_for(&l, "killed");
  hk_calibration c;
  hk_error err = {0};
  hk_store *store = NULL;
  if (hk_store_open(store_path, false, &store, &err) == HK_OK)
    hk_calibrate(store, &options, &c, &err);
  fprintf(stderr, "the child ended: %s\n", err.message);
  _exit(1);
}

/* Kills the child after `runs` runs. Returns the number of runs that it had reported. */
static int runs_until_killed(int runs) {
  int ends[2], told = 0, status = 0;
  char byte;
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) calibrate_in_child(ends[1]);
  close(ends[1]);
  while (told < runs && read(ends[0], &byte, 1) == 1) told++;
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  while (read(ends[0], &byte, 1) == 1) told++;
  close(ends[0]);
  return told;
}

/* Must be the first test: it forks, which needs a process of one thread. */
static void test_killed(void **state) {
  (void)state;
  const int told = runs_until_killed(15);
  hk_store *store = open_store();
  const hk_calibration_run before = unfinished(store, "killed");
  listener l = {.stop_after = 1};
  hk_calibrate_options options = options_for(&l, NULL);
  options.resume = true;
  hk_calibration c;
  hk_error err = {0};
  must(hk_calibrate(store, &options, &c, &err), &err);
  /* First visits are two runs each, of which one is kept. */
  const size_t runs = (size_t)told, n = c.campaign.n;
  const size_t expected = runs <= 2 * n ? runs / 2 : runs - n;
  assert_in_range(before.samples, expected, expected + 1);
  assert_true(c.resumed && c.run == before.id);
  assert_true(c.campaign.interrupted && c.campaign.seconds > before.seconds);
  assert_int_equal(rounds_of(&c.campaign), before.samples); /* its one run was a warm-up */
  hk_calibration_free(&c);
  hk_store_close(store);
}

/* -- From end to end --------------------------------------------------------------------------- */

static void check_stored(hk_store *store, const hk_calibration *c) {
  const char *name = c->fit.machine.name;
  hk_error err = {0};
  hk_machine machine = {0};
  must(hk_profiles_machine(name, &machine, &err), &err);
  assert_string_equal(machine.name, name);
  assert_true(machine.h2d.value == c->fit.machine.h2d.value);
  assert_true(machine.cpu_adamw.value > 1e6 && machine.dram.value > 1e8);
  assert_int_equal(machine.h2d.origin, HK_ORIGIN_MEASURED);
  hk_machine_free(&machine);
  hk_profile_entry *entries = NULL;
  size_t n = 0;
  must(hk_profiles_list(store, &entries, &n, &err), &err);
  assert_int_equal(n, 1);
  assert_true(strcmp(entries[0].name, name) == 0 && entries[0].quick && entries[0].gpus == 1);
  free(entries);
}

static void test_whole(void **state) {
  (void)state;
#ifdef __SANITIZE_THREAD__
  skip(); /* the fit is slow, and ThreadSanitizer does not know the barriers of gcc's OpenMP */
#endif
#ifdef __SANITIZE_ADDRESS__
  if (!is_full_run()) skip(); /* the fit is slow */
#endif
  hk_store *store = open_store();
  listener l = {0};
  hk_calibrate_options options = options_for(&l, NULL);
  allow(&options, &l, 150);
  options.target = 1e-6; /* not reachable: the whole budget is used */
  hk_calibration c;
  hk_error err = {0};
  must(hk_calibrate(store, &options, &c, &err), &err);
  assert_true(!c.campaign.interrupted && !c.resumed && c.campaign.noisy > 0);
  assert_string_equal(c.fit.machine.name, "host-2c");
  assert_string_equal(c.fingerprint.version, "1.2.3");
  check_none_failed(&c.campaign);
  assert_in_range(l.runs, 2 * c.campaign.n, 150); /* every probe was warmed up and measured */
  assert_true(c.fit.n_quantities > 0 && c.fit.n_replays > 0);
  check_stored(store, &c);
  hk_calibration_free(&c);
  /* The name has a profile now, and no unfinished run is left. */
  expect_refusal(store, &options, "--replace");
  options.resume = true;
  expect_refusal(store, &options, "no unfinished calibration");
  hk_store_close(store);
}

/* 25 runs, two for each probe's first visit (one warm-up): fewer than half of the probes. */
static void test_budget_too_small(void **state) {
  (void)state;
  hk_store *store = open_store();
  listener l = {0};
  hk_calibrate_options options = options_for(&l, "hasty");
  allow(&options, &l, 25);
  hk_calibration c;
  hk_error err = {0};
  assert_int_equal(hk_calibrate(store, &options, &c, &err), HK_NO);
  assert_true(c.campaign.noisy > c.campaign.n / 2 && !c.campaign.interrupted);
  assert_non_null(strstr(err.message, "missing"));
  assert_non_null(strstr(err.message, "--resume"));
  assert_int_equal(unfinished(store, "hasty").samples, rounds_of(&c.campaign));
  hk_calibration_free(&c);
  hk_store_close(store);
}

/* -- Interrupted ------------------------------------------------------------------------------- */

/* The stored samples of the run, of both sessions, equal the campaign's. */
static void check_samples(hk_store *store, const hk_calibration *c) {
  hk_error err = {0};
  hk_campaign stored = {0};
  const size_t n = c->campaign.n;
  hk_probe *probes = calloc(n, sizeof *probes);
  assert_non_null(probes);
  for (size_t i = 0; i < n; i++) probes[i] = c->campaign.series[i].probe;
  must(hk_campaign_open(probes, n, &stored, &err), &err);
  must(hk_calibration_run_load(store, c->run, &stored, &err), &err);
  for (size_t i = 0; i < n; i++) {
    const hk_series *a = &stored.series[i], *b = &c->campaign.series[i];
    assert_int_equal(a->rounds, b->rounds);
    if (a->rounds == 0) continue;
    assert_memory_equal(a->values, b->values,
                        a->rounds * (size_t)a->probe.n_loads * sizeof *a->values);
  }
  free(probes);
  hk_campaign_free(&stored);
}

static void test_interrupted_and_resumed(void **state) {
  (void)state;
  hk_store *store = open_store();
  const size_t before = begin_and_stop(store, "halves", 5);
  assert_int_equal(before, 2); /* the third probe has had its warm-up only */
  const hk_calibration_run run = unfinished(store, "halves");
  listener l = {.stop_after = 9};
  hk_calibrate_options options = options_for(&l, "halves");
  options.resume = true;
  options.quick = false;     /* ignored: the run was begun as quick */
  options.version = "1.2.4"; /* differs from the run's: a note */
  hk_calibration c;
  hk_error err = {0};
  must(hk_calibrate(store, &options, &c, &err), &err);
  assert_true(c.resumed && c.run == run.id && c.campaign.interrupted);
  assert_true(c.campaign.seconds > run.seconds);
  assert_int_equal(rounds_of(&c.campaign), before + 4);
  assert_non_null(strstr(c.note, "begun with hocket 1.2.3"));
  check_samples(store, &c);
  hk_calibration_free(&c);
  hk_store_close(store);
}

/* A run that was begun on another machine is not resumed: its samples must not be mixed in. */
static void test_resumed_elsewhere(void **state) {
  (void)state;
  hk_store *store = open_store();
  begin_and_stop(store, "here", 3);
  hk_calibration_run run;
  hk_fingerprint f;
  hk_error err = {0};
  must(hk_calibration_run_unfinished(store, "here", &run, &f, &err), &err);
  snprintf(f.cpu, sizeof f.cpu, "Abacus 3000");
  int64_t id = 0;
  must(hk_calibration_run_begin(store, "there", true, &f, &id, &err), &err);
  listener l = {0};
  hk_calibrate_options options = options_for(&l, "there");
  options.resume = true;
  expect_refusal(store, &options, "cpu: Abacus 3000, here ");
  hk_store_close(store);
}

static void test_full_disk(void **state) {
  (void)state;
  hk_store *store = open_store();
  const hk_fingerprint f = {.cpu = "any"};
  listener l = {.fill = store, .fill_after = 8};
  hk_error err = {0};
  must(hk_calibration_run_begin(store, "filler", true, &f, &l.fill_run, &err), &err);
  hk_calibrate_options options = options_for(&l, "full");
  hk_calibration c;
  assert_int_equal(hk_calibrate(store, &options, &c, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, store_path));
  assert_non_null(strstr(err.message, "--resume"));
  hk_calibration_free(&c);
  const size_t samples = unfinished(store, "full").samples;
  assert_true(samples >= 4);
  /* There is room again. */
  must(hk_store_do(store, &err, "PRAGMA max_page_count = 1000000", ""), &err);
  listener again = {.stop_after = 2};
  options = options_for(&again, "full");
  options.resume = true;
  must(hk_calibrate(store, &options, &c, &err), &err);
  assert_int_equal(rounds_of(&c.campaign), samples + 1);
  hk_calibration_free(&c);
  hk_store_close(store);
}

/* -- Names ------------------------------------------------------------------------------------- */

static void test_names(void **state) {
  (void)state;
  hk_store *store = open_store();
  static const char *const bad[] = {"", "a b", "a/b", "a.json", "grün", "a\nb", "a,b"};
  char longest[98];
  memset(longest, 'x', 97);
  longest[96] = '\0';
  listener l = {.stop_after = 1};
  hk_calibrate_options options = options_for(&l, longest);
  expect_refusal(store, &options, "cannot be the name");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    options.name = bad[i];
    expect_refusal(store, &options, "cannot be the name");
  }
  options.name = "h200-16c";
  expect_refusal(store, &options, "ships with hocket");
  longest[95] = '\0';
  options.name = longest;
  hk_calibration c;
  hk_error err = {0};
  must(hk_calibrate(store, &options, &c, &err), &err);
  assert_int_equal(l.runs, 1);
  hk_calibration_free(&c);
  hk_store_close(store);
}

static void test_no_device(void **state) {
  (void)state;
  hk_store *store = open_store();
  listener l = {0};
  hk_calibrate_options options = options_for(&l, "none");
  options.stand.first_device = 1000;
  hk_calibration c;
  hk_error err = {0};
  assert_int_not_equal(hk_calibrate(store, &options, &c, &err), HK_OK);
  hk_calibration_free(&c);
  /* Nothing was begun. */
  hk_calibration_run run;
  hk_fingerprint f;
  assert_int_equal(hk_calibration_run_unfinished(store, NULL, &run, &f, &err), HK_INPUT);
  hk_store_close(store);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_killed),
      TEST(test_whole),
      TEST(test_budget_too_small),
      TEST(test_interrupted_and_resumed),
      TEST(test_resumed_elsewhere),
      TEST(test_full_disk),
      TEST(test_names),
      TEST(test_no_device),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
