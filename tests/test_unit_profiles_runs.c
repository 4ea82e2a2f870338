/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Calibrations in progress: samples survive a crash of the process that stores them. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/fixture_profiles.h"

static void samples_come_back_in_order_and_exact(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  const int64_t id = begin(store, "mine");
  keep_rounds(store, id, 0, 12); /* more than ten: as text, round 10 would come before 2 */
  const double other = 1;
  must(hk_calibration_run_add_sample(store, id, "a probe of another version", 0, 1, &other, 11,
                                     &err),
       &err);
  hk_campaign campaign;
  open_campaign(&campaign);
  must(hk_calibration_run_load(store, id, &campaign, &err), &err);
  for (int i = 0; i < 2; i++) {
    const hk_series *series = hk_campaign_find(&campaign, probes[i].name);
    assert_int_equal(series->rounds, 12);
    for (size_t round = 0; round < 12; round++)
      for (int load = 0; load < probes[i].n_loads; load++)
        assert_true(series->values[round * (size_t)probes[i].n_loads + (size_t)load] ==
                    value_of(i, round, load));
  }
  assert_int_equal(hk_campaign_find(&campaign, "hop")->rounds, 0);
  hk_campaign_free(&campaign);
  hk_store_close(store);
}

static void the_latest_unfinished_run_is_found(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  hk_calibration_run run;
  hk_fingerprint f;
  assert_int_equal(hk_calibration_run_unfinished(store, NULL, &run, &f, &err), HK_INPUT);
  says(&err, "begin one without --resume");
  begin(store, "mine");
  const int64_t mine = begin(store, "mine"), other = begin(store, "other");
  keep_rounds(store, mine, 0, 3);
  must(hk_calibration_run_unfinished(store, "mine", &run, &f, &err), &err);
  assert_true(run.id == mine);
  assert_string_equal(run.name, "mine");
  assert_string_equal(run.state, "measuring");
  assert_int_equal(strlen(run.started), strlen("2026-11-21T09:30:00Z"));
  assert_true(run.quick);
  assert_true(run.seconds == 2);
  assert_int_equal(run.samples, 6);
  char text[200];
  assert_int_equal(hk_fingerprint_compare(&here, &f, text, sizeof text), 0);
  must(hk_calibration_run_unfinished(store, NULL, &run, &f, &err), &err);
  assert_true(run.id == other);
  assert_int_equal(hk_calibration_run_unfinished(store, "theirs", &run, &f, &err), HK_INPUT);
  says(&err, "under 'theirs'");
  says(&err, "'other'");
  hk_store_close(store);
}

static void a_sample_is_kept_once_and_needs_its_run(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  const double values[] = {1, 2};
  const int64_t id = begin(store, "mine");
  must(hk_calibration_run_add_sample(store, id, "p", 0, 2, values, 1, &err), &err);
  assert_int_equal(hk_calibration_run_add_sample(store, id, "p", 0, 2, values, 2, &err), HK_INPUT);
  says(&err, "another process");
  assert_int_equal(hk_calibration_run_add_sample(store, id + 1, "p", 1, 2, values, 2, &err),
                   HK_INPUT);
  says(&err, "not being measured");
  assert_int_equal(number(store, "SELECT count(*) FROM sample"), 2);
  assert_int_equal(number(store, "SELECT seconds FROM run"), 1);
  int64_t none = 0;
  assert_int_equal(hk_calibration_run_begin(store, "a/b", false, &here, &none, &err), HK_INPUT);
  assert_int_equal(hk_calibration_run_begin(store, "x.json", false, &here, &none, &err), HK_INPUT);
  assert_int_equal(hk_calibration_run_begin(store, "", false, &here, &none, &err), HK_INPUT);
  hk_store_close(store);
}

enum { EACH = 200 };

static void two_processes_keep_all_their_samples(void **state) {
  (void)state;
  pid_t children[2];
  for (int i = 0; i < 2; i++) {
    children[i] = fork();
    if (children[i] != 0) continue;
    hk_error err = {0};
    hk_store *store = NULL;
    int64_t id = 0;
    hk_status status = hk_store_open(NULL, false, &store, &err);
    if (status == HK_OK)
      status = hk_calibration_run_begin(store, i ? "b" : "a", false, &here, &id, &err);
    for (size_t round = 0; status == HK_OK && round < EACH; round++) {
      const double value = (double)round;
      status = hk_calibration_run_add_sample(store, id, "p", round, 1, &value, value, &err);
    }
    if (status != HK_OK) fprintf(stderr, "%s\n", err.message);
    hk_store_close(store);
    _exit((int)status);
  }
  for (int i = 0; i < 2; i++) {
    int status = 0;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    assert_int_equal(status, 0);
  }
  hk_store *store = open_store();
  assert_int_equal(number(store, "SELECT count(*) FROM sample"), 2 * EACH);
  assert_int_equal(number(store, "SELECT count(*) FROM sample WHERE value = round"), 2 * EACH);
  hk_store_close(store);
}

/* Stores samples of two loads without end. Writes a round's number to `out` after storing it. */
static void keep_until_killed(int out) {
  hk_error err = {0};
  hk_store *store = NULL;
  int64_t id = 0;
  if (hk_store_open(NULL, false, &store, &err) != HK_OK) _exit(1);
  if (hk_calibration_run_begin(store, "killed", false, &here, &id, &err) != HK_OK) _exit(2);
  for (size_t round = 0;; round++) {
    const double values[] = {1, 2};
    if (hk_calibration_run_add_sample(store, id, "p", round, 2, values, 1, &err) != HK_OK) _exit(3);
    if (write(out, &round, sizeof round) != sizeof round) _exit(4);
  }
}

static void a_killed_process_loses_no_sample(void **state) {
  (void)state;
  for (int kills = 0; kills < 5; kills++) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) keep_until_killed(ends[1]);
    close(ends[1]);
    size_t round = 0;
    for (int i = 0; i < 20 + kills; i++)
      assert_int_equal(read(ends[0], &round, sizeof round), sizeof round);
    kill(child, SIGKILL);
    while (read(ends[0], &round, sizeof round) == sizeof round) continue;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    hk_store *store = open_store();
    hk_error err = {0};
    hk_calibration_run run;
    hk_fingerprint f;
    must(hk_calibration_run_unfinished(store, "killed", &run, &f, &err), &err);
    /* The store has all acknowledged samples, and at most one more, complete, whose acknowledgement
     * was lost. */
    assert_in_range(run.samples, round + 1, round + 2);
    assert_int_equal(number(store, "SELECT count(*) % 2 FROM sample"), 0);
    hk_store_close(store);
  }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)
  const struct CMUnitTest tests[] = {
      TEST(samples_come_back_in_order_and_exact),    TEST(the_latest_unfinished_run_is_found),
      TEST(a_sample_is_kept_once_and_needs_its_run), TEST(two_processes_keep_all_their_samples),
      TEST(a_killed_process_loses_no_sample),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
