/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The bandwidth of drives: rates where there is a drive, refusals elsewhere, and no file left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "calib/stand/drive.h"

static char folder[] = "drive-XXXXXX"; /* where the tests run: on a drive, as a rule */

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder); /* fails if a file is left */
}

static hk_drive_options here(void) {
  return (hk_drive_options){.folder = folder, .bytes = 64 << 20, .budget_s = 20};
}

static void expect(const hk_drive_options *options, hk_status expected, const char *words) {
  hk_error err = {0};
  hk_drive_rates rates;
  const hk_status status = hk_drive_measure(options, &rates, &err);
  if (status == HK_INPUT && strstr(err.message, "no direct I/O")) skip();
  if (status == HK_INPUT && strstr(err.message, "tmpfs") && strcmp(words, "tmpfs") != 0) skip();
  assert_int_equal(status, expected);
  if (!strstr(err.message, words)) fail_msg("'%s' does not say '%s'", err.message, words);
}

static void test_rates(void **state) {
  (void)state;
  const hk_drive_options options = here();
  hk_error err = {0};
  hk_drive_rates rates;
  const hk_status status = hk_drive_measure(&options, &rates, &err);
  if (status != HK_OK && (strstr(err.message, "tmpfs") || strstr(err.message, "direct I/O") ||
                          strstr(err.message, "too slow") || strstr(err.message, "free space")))
    skip();
  if (status != HK_OK) fail_msg("%s", err.message);
  assert_true(rates.rounds >= 2 && rates.rounds <= HK_DRIVE_ROUNDS);
  assert_true(rates.bytes >= 32 << 20 && rates.bytes <= options.bytes);
  for (size_t i = 0; i < rates.rounds; i++) {
    assert_true(rates.read[i] > 1e5 && rates.read[i] < 1e12);
    assert_true(rates.write[i] > 1e5 && rates.write[i] < 1e12);
  }
  printf("read %.2f, write %.2f GB/s\n", rates.read[0] / 1e9, rates.write[0] / 1e9);
  struct stat found;
  assert_int_equal(stat(folder, &found), 0);
}

static void test_refusals(void **state) {
  (void)state;
  hk_drive_options options = here();
  options.folder = "no-such-folder";
  expect(&options, HK_INPUT, "No such file");
  options.folder = HK_TEST_DATA "/nvme-runs.csv"; /* a file */
  expect(&options, HK_INPUT, "Not a directory");
  options = here();
  options.bytes = INT64_MAX / 2;
  expect(&options, HK_ENVIRONMENT, "free space");
}

static void test_memory(void **state) {
  (void)state;
  struct statfs fs;
  hk_drive_options options = here();
  options.folder = "/dev/shm";
  if (statfs(options.folder, &fs) != 0 || fs.f_type != 0x01021994) skip();
  expect(&options, HK_INPUT, "tmpfs");
}

static void test_no_permission(void **state) {
  (void)state;
  const hk_drive_options options = here();
  const int root = geteuid() == 0;
  assert_int_equal(chmod(folder, root ? 0700 : 0500), 0);
  if (root) assert_int_equal(seteuid(65534), 0);
  expect(&options, HK_INPUT, "Permission denied");
  if (root) assert_int_equal(seteuid(0), 0);
  assert_int_equal(chmod(folder, 0700), 0);
}

/* As on a drive that is full, or fails, in the middle of the first write. */
static void test_failed_write(void **state) {
  (void)state;
  const hk_drive_options options = here();
  struct rlimit before, low;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  low = (struct rlimit){16 << 20, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
  expect(&options, HK_ENVIRONMENT, "cannot write the file: File too large");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

static void test_stop(void **state) {
  (void)state;
  static const volatile sig_atomic_t stop = 1;
  hk_drive_options options = here();
  options.stop = &stop;
  expect(&options, HK_NO, "interrupted");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rates),        cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_memory),       cmocka_unit_test(test_no_permission),
      cmocka_unit_test(test_failed_write), cmocka_unit_test(test_stop),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
