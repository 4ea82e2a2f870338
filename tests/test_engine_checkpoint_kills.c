/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Checkpoints whose writing ends early: a full disk leaves the old file, kill -9 the old or the
 * complete new one. */
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/fixture_checkpoint.h"

/* -- No room ----------------------------------------------------------------------------------- */

static void assert_no_leftovers(void) {
  char command[96];
  snprintf(command, sizeof command, "test -z \"$(find %s -name '.hocket-*')\"", folder);
  assert_int_equal(system(command), 0);
}

/* RLIMIT_FSIZE simulates a disk that is full after so many bytes: the old file stays, no temporary
 * file does, and the engine continues. */
static void a_full_disk_leaves_the_last_checkpoint(void **unused) {
  (void)unused;
  random_stream r = {620};
  hk_error err = {0};
  hk_plan plan = random_engine_plan(&r);
  plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  hk_engine *engine = engine_like(&plan, &a, &unpinned);
  must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
  const contents old = read_file(path);
  step_both(engine, &a, &r);

  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  signal(SIGXFSZ, SIG_IGN);
  const rlim_t room[] = {0, 1, 40, 4095, 65536, old.n / 2, old.n - 1};
  for (size_t i = 0; i < sizeof room / sizeof room[0]; i++) {
    limit.rlim_cur = room[i];
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const hk_status status = hk_engine_save(engine, path, NULL, NULL, &err);
    limit.rlim_cur = before;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, HK_ENVIRONMENT);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "File too large"));
    assert_file(path, &old);
    assert_no_leftovers();
  }
  limit.rlim_cur = old.n;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const hk_status status = hk_engine_save(engine, path, NULL, NULL, &err);
  limit.rlim_cur = before;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, SIG_DFL);
  must(status, &err);
  if (access("/dev/full", W_OK) == 0) {
    assert_int_equal(hk_engine_save(engine, "/dev/full", NULL, NULL, &err), HK_ENVIRONMENT);
    assert_non_null(strstr(err.message, "No space left"));
  }
  assert_int_equal(hk_engine_save(engine, folder, NULL, NULL, &err), HK_INPUT);
  assert_int_equal(hk_engine_save(engine, "no/such/folder/x", NULL, NULL, &err), HK_INPUT);
  assert_same_bits(engine, &a);
  step_both(engine, &a, &r);
  assert_same_bits(engine, &a);
  must(hk_engine_load(engine, path, NULL, NULL, &err), &err);
  assert_int_equal(hk_engine_step_number(engine), 1);
  end_engine(engine);
  free(old.bytes);
  plain_stop(&a);
  hk_plan_free(&plan);
}

/* -- kill -9 ----------------------------------------------------------------------------------- */

/* Shared with the child. */
typedef struct {
  volatile int64_t begun, done; /* saves or steps */
} shared_page;

static shared_page *share(void) {
  shared_page *page =
      mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(page != MAP_FAILED);
  return page;
}

static void nap(double ms) {
  const struct timespec t = {.tv_nsec = (long)(ms * 1e6)};
  nanosleep(&t, NULL);
}

/* Kills the child 0 to 3 ms after an operation has begun, when at least `least` operations have
 * ended. */
static void kill_child(pid_t child, const shared_page *page, int64_t least, random_stream *r) {
  int status = 0;
  while (page->done < least && waitpid(child, &status, WNOHANG) == 0) nap(0.2);
  while (page->begun == page->done && waitpid(child, &status, WNOHANG) == 0) sched_yield();
  nap(uniform(r) * 3);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Sets every value to `step`: a mixture of two saves would have different values. */
static hk_status set_state(hk_engine *engine, int64_t step, float *values, hk_error *err) {
  const int64_t n = hk_engine_numel(engine);
  for (int64_t i = 0; i < n; i++) values[i] = (float)step;
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    HK_TRY(hk_engine_write(engine, (hk_state_part)part, 0, n, values, err));
  }
  return hk_engine_set_step(engine, step, err);
}

/* The child: saves states 1, 2, 3, ... until it is killed. No assertions, which would longjmp into
 * the parent's test. */
static void save_until_killed(const hk_plan *plan, const plain_adamw *a, shared_page *page) {
  hk_error err = {0};
  hk_engine *engine = NULL;
  float *values = calloc((size_t)a->n, sizeof *values);
  hk_status status = open_engine(plan, a->groups, a->n_groups, a->type, &unpinned, &engine, &err);
  while (status == HK_OK && values != NULL) {
    status = set_state(engine, page->begun + 1, values, &err);
    page->begun++;
    if (status == HK_OK) status = hk_engine_save(engine, path, NULL, NULL, &err);
    page->done++;
  }
  _exit(1);
}

/* Every value is the step number: the state is that of one save. */
static void assert_one_save(hk_engine *engine) {
  hk_error err = {0};
  const int64_t n = hk_engine_numel(engine);
  const float wanted = (float)hk_engine_step_number(engine);
  float *got = must_have((size_t)n, sizeof *got);
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    must(hk_engine_read(engine, (hk_state_part)part, 0, n, got, &err), &err);
    for (int64_t i = 0; i < n; i++) assert_true(got[i] == wanted);
  }
  free(got);
}

static void remove_leftovers(void) {
  char command[96];
  snprintf(command, sizeof command, "rm -f %s/.hocket-*.tmp", folder);
  assert_int_equal(system(command), 0);
}

static void a_kill_leaves_the_old_file_or_the_new_one(void **unused) {
  (void)unused;
  random_stream r = {630};
  hk_plan plan = random_engine_plan(&r);
  plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  shared_page *page = share();
  int in_the_middle = 0;
  for (int i = 0; i < 40; i++) {
    hk_error err = {0};
    *page = (shared_page){0};
    unlink(path);
    fflush(NULL);
    const pid_t child = fork(); /* while this process has no engine, so no threads */
    assert_true(child >= 0);
    if (child == 0) save_until_killed(&plan, &a, page);
    kill_child(child, page, 1, &r);
    hk_engine *engine = new_engine(&plan, &a, &unpinned);
    must(hk_engine_load(engine, path, NULL, NULL, &err), &err);
    const int64_t step = hk_engine_step_number(engine);
    assert_true(step == page->done || step == page->begun);
    in_the_middle += page->begun > page->done;
    assert_one_save(engine);
    end_engine(engine);
  }
  assert_true(in_the_middle > 0);
  remove_leftovers();
  munmap(page, sizeof *page);
  plain_stop(&a);
  hk_plan_free(&plan);
}

/* The child: loads the checkpoint and steps until it is killed. */
static void step_until_killed(const hk_plan *plan, const plain_adamw *a, shared_page *page) {
  hk_error err = {0};
  hk_engine *engine = new_engine(plan, a, &unpinned);
  hk_step_report report;
  copy_on_device(engine, weights_of(engine) + 2 * a->n, a->grad, 2 * a->n);
  hk_status status = hk_engine_load(engine, path, NULL, NULL, &err);
  while (status == HK_OK) {
    status = hand_some(engine, 0, 1, &err);
    page->begun++;
    if (status == HK_OK) status = take_step(engine, a, 1, &report, &err);
    page->done++;
  }
  _exit(1);
}

static void a_kill_in_a_step_leaves_the_checkpoint(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 8; number++) {
    random_stream r = {640 + number};
    hk_error err = {0};
    hk_plan plan = random_engine_plan(&r);
    plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
    plain_gradients(&a, &r);
    hk_engine *engine = engine_like(&plan, &a, &unpinned);
    must(hk_engine_save(engine, path, NULL, NULL, &err), &err);
    end_engine(engine);
    const contents saved = read_file(path);
    shared_page *page = share();
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) step_until_killed(&plan, &a, page);
    kill_child(child, page, 2, &r);
    assert_file(path, &saved);
    engine = new_engine(&plan, &a, &unpinned);
    must(hk_engine_load(engine, path, NULL, NULL, &err), &err);
    step_both(engine, &a, &r);
    assert_same_bits(engine, &a);
    end_engine(engine);
    munmap(page, sizeof *page);
    free(saved.bytes);
    plain_stop(&a);
    hk_plan_free(&plan);
  }
}
int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_full_disk_leaves_the_last_checkpoint),
      cmocka_unit_test(a_kill_leaves_the_old_file_or_the_new_one),
      cmocka_unit_test(a_kill_in_a_step_leaves_the_checkpoint),
  };
  return cmocka_run_group_tests(tests, enter, leave);
}
