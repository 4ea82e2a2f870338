/* SPDX-License-Identifier: GPL-3.0-or-later */
/* GATHER and SCATTER on CUDA. Skipped (77), with the reason, without a device. */
#include "tests/fixture_segments.h"

static void gathers(void **state) {
  (void)state;
  check_many_segments(true, false);
  check_large_segments(true);
}

static void scatters(void **state) {
  (void)state;
  check_many_segments(false, false);
  check_large_segments(false);
}

static void refuses(void **state) {
  (void)state;
  check_refused_segments();
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(gathers),
    cmocka_unit_test(scatters),
    cmocka_unit_test(refuses),
};

int main(int argc, char **argv) {
  const int code = find_backend(argc, argv);
  if (code != 0) return code;
  return cmocka_run_group_tests(TESTS, open_gpu, close_gpu);
}
