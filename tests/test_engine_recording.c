/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Recordings of training: if memory runs out, the recording is dropped and the step succeeds. The
 * report has the times of the last 16 steps. The plan in a recording says how many micro-steps the
 * engine expects, whatever the plan that it was made with said. */
#include <stdatomic.h>

#include "tests/fixture_training.h"

/* Linked in place of realloc (tests/CMakeLists.txt) in this program's own code; the C library's
 * calls, such as those of a starting thread, succeed. The engine's recordings grow by realloc. */
static atomic_bool out_of_memory;
static atomic_int refused;
void *__real_realloc(void *memory, size_t bytes);  /* NOLINT: the linker chooses these names */
void *__wrap_realloc(void *memory, size_t bytes);  /* NOLINT */
void *__wrap_realloc(void *memory, size_t bytes) { /* NOLINT */
  if (!atomic_load(&out_of_memory)) return __real_realloc(memory, bytes);
  atomic_fetch_add(&refused, 1);
  return NULL;
}

static void iterate(world *w) {
  plain_iteration(w, 1, 0);
}

static void assert_report(world *w, const char *wanted, bool there) {
  char *text = NULL;
  hk_error err = {0};
  must(hk_engine_report(w->engine, &text, &err), &err);
  assert_non_null(text);
  if ((strstr(text, wanted) != NULL) != there) fail_msg("'%s' in %s", wanted, text);
  free(text);
}

static void a_step_outlives_its_recording(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 12; number++) {
    hk_error err = {0};
    world w = {.r = {number + 4100}};
    bool there = false;
    make_model(&w);
    make_engine(&w, &hk_backend_host);
    iterate(&w);
    must(hk_engine_record(w.engine, true, &err), &err);
    const int before = atomic_load(&refused);
    atomic_store(&out_of_memory, true);
    iterate(&w);
    must(hk_engine_drain(w.engine, -1, &there, &err), &err);
    atomic_store(&out_of_memory, false);
    assert_true(atomic_load(&refused) > before);
    char *text = NULL;
    assert_int_equal(hk_engine_timeline(w.engine, &text, &err), HK_NO);
    assert_null(text);
    assert_report(&w, "the recording was dropped after step 2: out of memory", true);
    iterate(&w);
    assert_state(&w);
    assert_int_equal(hk_engine_step_number(w.engine), 3);
    /* The next recording is complete. */
    must(hk_engine_record(w.engine, true, &err), &err);
    iterate(&w);
    must(hk_engine_timeline(w.engine, &text, &err), &err);
    assert_non_null(text);
    assert_non_null(strstr(text, "\"step\":4"));
    free(text);
    assert_state(&w);
    unmake(&w);
  }
}

static void the_report_has_the_times_of_the_last_steps(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w = {.r = {4200}};
  bool there = false;
  make_model(&w);
  make_engine(&w, &hk_backend_host);
  assert_report(&w, "\"last_steps\":[]", true);
  for (int i = 0; i < 17; i++) iterate(&w);
  must(hk_engine_drain(w.engine, -1, &there, &err), &err);
  assert_report(&w, "{\"step\":1,", false); /* 16 are kept */
  assert_report(&w, "{\"step\":2,", true);
  assert_report(&w, "{\"step\":17,", true);
  assert_report(&w, "{\"step\":18,", false);
  unmake(&w);
}

static void recordings_say_the_number_of_micro_steps(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w = {.r = {4300}};
  make_model(&w);
  make_engine(&w, &hk_backend_host);
  iterate(&w);
  for (int32_t said = 1; said <= 3; said++) {
    char *text = NULL, wanted[32];
    must(hk_engine_expect(w.engine, said, &err), &err);
    must(hk_engine_record(w.engine, true, &err), &err);
    iterate(&w);
    must(hk_engine_timeline(w.engine, &text, &err), &err);
    snprintf(wanted, sizeof wanted, "\"grad_accum\":%d,", (int)said);
    if (strstr(text, wanted) == NULL) fail_msg("no '%s' in the recording", wanted);
    free(text);
  }
  assert_state(&w);
  unmake(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_outlives_its_recording),
      cmocka_unit_test(the_report_has_the_times_of_the_last_steps),
      cmocka_unit_test(recordings_say_the_number_of_micro_steps),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
