/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The engine on a GPU: 64 random plans give the bits of plain AdamW, in each format of state, as
 * test_engine_exact checks on the host backend. Skipped (77) without a CUDA device. */
#include "tests/fixture_engine.h"

#define CASES 64

static void every_plan_is_plain_adamw(void **unused) {
  (void)unused;
  const hk_engine_options options = {
      .backend = &hk_backend_cuda, .no_pin_threads = true, .seed = 99};
  for (uint64_t number = 0; number < CASES * HK_FORMATS; number++)
    assert_case_exact(number / HK_FORMATS, (hk_format)(number % HK_FORMATS), &options);
}

/* `--few`: four plans for compute-sanitizer, which is slow. */
static void four_plans(void **unused) {
  (void)unused;
  const hk_engine_options options = {.backend = &hk_backend_cuda, .no_pin_threads = true};
  for (uint64_t number = 1000; number < 1004; number++)
    assert_case_exact(number, (hk_format)(number % HK_FORMATS), &options);
}

int main(int argc, char **argv) {
  hk_error err = {0};
  int devices = 0;
  if (hk_backend_cuda.count(&devices, &err) != HK_OK || devices == 0) {
    fprintf(stderr, "skipped: %s\n", err.message);
    return 77;
  }
  const struct CMUnitTest all[] = {cmocka_unit_test(every_plan_is_plain_adamw)};
  const struct CMUnitTest few[] = {cmocka_unit_test(four_plans)};
  const bool quick = argc > 1 && strcmp(argv[1], "--few") == 0;
  return quick ? cmocka_run_group_tests(few, NULL, NULL) : cmocka_run_group_tests(all, NULL, NULL);
}
