/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Text in memory when each call of realloc fails in turn. glibc shrinks the buffer of
 * open_memstream in fclose, and fclose does not report that this failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above. */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory_text.h"
#include "traces/import_deepspeed.h"
#include "traces/timelines_internal.h"

/* Sanitizers have a realloc of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_FAIL 1

void *__libc_realloc(void *memory, size_t size);
static int fails_at, calls; /* number of the call that fails (0: none), and of calls so far */

void *realloc(void *memory, size_t size) {
  return ++calls == fails_at ? NULL : __libc_realloc(memory, size);
}

static void fail_at(int call) {
  fails_at = call;
  calls = 0;
}

/* Calls `work` with its n-th realloc failing, for n = 1, 2, ... until no call is left to fail. Each
 * call returns HK_OK or HK_ENVIRONMENT with "out of memory". */
static void at_every_call(hk_status (*work)(hk_error *err)) {
  int call = 1;
  for (; call < 1000; call++) {
    hk_error err = {0};
    fail_at(call);
    const hk_status status = work(&err);
    const bool reached = calls >= call;
    fail_at(0);
    if (status != HK_OK) assert_int_equal(status, HK_ENVIRONMENT);
    if (status != HK_OK) assert_non_null(strstr(err.message, "out of memory"));
    if (!reached) {
      assert_int_equal(status, HK_OK);
      break;
    }
  }
  assert_in_range(call, 2, 999);
}

static hk_status write_text(hk_error *err) {
  char *text = NULL;
  size_t size = 0;
  FILE *stream = open_memstream(&text, &size);
  if (stream == NULL) return hk_fail_memory(err, 1, "a test");
  fputs("some text", stream);
  const hk_status status = hk_memory_text_close(stream, &text, "a test", err);
  if (status == HK_OK) assert_string_equal(text, "some text");
  if (status != HK_OK) assert_null(text);
  free(text);
  return status;
}

static hk_status encode(hk_error *err) {
  hk_span spans[3] = {{.start = 1, .end = 2}, {.start = 2, .end = 5}, {.start = 5, .end = 9}};
  const hk_timeline timeline = {.spans = spans, .n_spans = 3, .makespan = 9};
  hk_blob blob = {0};
  const hk_status status = hk_spans_encode(&timeline, &blob, err);
  if (status == HK_OK) assert_true(blob.bytes != NULL && blob.size > 0);
  if (status == HK_OK) free((void *)(uintptr_t)blob.bytes);
  return status;
}

static hk_status import_log(hk_error *err) {
  const hk_import_options options = {.skip = 2, .machine = "here"};
  hk_run_table table = {0};
  hk_import_report report;
  const hk_status status = hk_import_deepspeed(HK_TEST_DATA "/logs/7b-a100-dp4-interleave-k2.log",
                                               &options, &table, &report, err);
  if (status == HK_OK) assert_non_null(table.runs[0].subgroups_rank0);
  hk_run_table_free(&table);
  return status;
}

static void test_text(void **state) {
  (void)state;
  at_every_call(write_text);
}

static void test_blob(void **state) {
  (void)state;
  at_every_call(encode);
}

static void test_import(void **state) {
  (void)state;
  at_every_call(import_log);
}
#endif

int main(void) {
#ifdef CAN_FAIL
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_blob),
                                     cmocka_unit_test(test_import)};
  return cmocka_run_group_tests(tests, NULL, NULL);
#else
  return 77;
#endif
}
