/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Text that all parts share: error messages, and times, sizes and counts with their units. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "core/base/units.h"

/* -- Errors -------------------------------------------------------------------------------- */

static void test_error_long_message_is_cut(void **state) {
  (void)state;
  hk_error err = {0};
  char text[3000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  assert_int_equal(hk_fail(&err, HK_NO, "%s", text), HK_NO);
  assert_int_equal(strlen(err.message), sizeof err.message - 1);
  assert_string_equal(err.message + sizeof err.message - 5, "x...");

  /* A message of the maximum length is kept whole; with a prefix, its end is cut. */
  text[sizeof err.message - 1] = '\0';
  hk_fail(&err, HK_NO, "%s", text);
  assert_string_equal(err.message, text);
  assert_int_equal(hk_fail_prefix(&err, "line %d", 7), HK_NO);
  assert_memory_equal(err.message, "line 7: xxx", 11);
  assert_string_equal(err.message + sizeof err.message - 5, "x...");
}

static void test_error_cut_keeps_characters_whole(void **state) {
  (void)state;
  for (size_t shift = 0; shift < 3; shift++) {
    char text[1600];
    memset(text, 'a', shift);
    for (size_t i = shift; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE2\x82\xAC", 4);
    hk_error err = {0};
    hk_fail(&err, HK_INPUT, "%s", text);
    size_t length = strlen(err.message);
    assert_string_equal(err.message + length - 3, "...");
    assert_int_equal((length - 3 - shift) % 3, 0);
  }
}

static void test_error_message_is_one_printable_line(void **state) {
  (void)state;
  hk_error err = {0};
  hk_fail(&err, HK_INPUT, "key '%s'", "a\nb\x1b[31mc\x7f");
  assert_string_equal(err.message, "key 'a b?[31mc?'");
}

static void test_error_may_quote_itself_or_be_absent(void **state) {
  (void)state;
  hk_error err = {0};
  hk_fail(&err, HK_INPUT, "inner");
  hk_fail(&err, HK_ENVIRONMENT, "outer (%s)", err.message);
  assert_string_equal(err.message, "outer (inner)");
  assert_int_equal(err.status, HK_ENVIRONMENT);
  assert_int_equal(hk_fail_memory(&err, 12, "a thing"), HK_ENVIRONMENT);
  assert_string_equal(err.message, "out of memory (12 bytes for a thing)");
  assert_int_equal(hk_fail(NULL, HK_NO, "unheard"), HK_NO);
  assert_int_not_equal(hk_fail_prefix(NULL, "unheard"), HK_OK);
}

static void test_error_of_parallel_work_is_the_first(void **state) {
  (void)state;
  hk_error each[3] = {0}, err = {0};
  assert_int_equal(hk_fail_first(each, 3, &err), HK_OK);
  assert_int_equal(err.status, HK_OK);
  hk_fail(&each[1], HK_NO, "the second");
  hk_fail(&each[2], HK_INPUT, "the third");
  assert_int_equal(hk_fail_first(each, 1, &err), HK_OK);
  assert_int_equal(hk_fail_first(each, 3, &err), HK_NO);
  assert_int_equal(err.status, HK_NO);
  assert_string_equal(err.message, "the second");
  assert_int_equal(hk_fail_first(each, 3, NULL), HK_NO);
}

/* -- Units --------------------------------------------------------------------------------- */

static void test_units(void **state) {
  (void)state;
  static const struct {
    int64_t n;
    const char *ns, *bytes, *count;
  } cases[] = {
      {0, "0 ns", "0 B", "0"},
      {17, "17 ns", "17 B", "17"},
      {-17, "-17 ns", "-17 B", "-17"},
      {999, "999 ns", "999 B", "999"},
      {1000, "1.00 us", "1000 B", "1,000"},
      {1023, "1.02 us", "1023 B", "1,023"},
      {1024, "1.02 us", "1.00 KiB", "1,024"},
      {850000, "850 us", "830 KiB", "850,000"},
      {999499, "999 us", "976 KiB", "999,499"},
      {999500, "1.00 ms", "976 KiB", "999,500"},
      {9994999, "9.99 ms", "9.53 MiB", "9,994,999"},
      {9995000, "10.0 ms", "9.53 MiB", "9,995,000"},
      {12300000, "12.3 ms", "11.7 MiB", "12,300,000"},
      {1250000000, "1.25 s", "1.16 GiB", "1,250,000,000"},
      {6738415616, "6.74 s", "6.28 GiB", "6,738,415,616"},
      {13421772800, "13.4 s", "12.5 GiB", "13,421,772,800"},
      {INT64_MAX, "9223372037 s", "8.00 EiB", "9,223,372,036,854,775,807"},
      {INT64_MIN, "-9223372037 s", "-8.00 EiB", "-9,223,372,036,854,775,808"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char ns[16], bytes[16], count[32];
    assert_string_equal(hk_format_ns(cases[i].n, ns, sizeof ns), cases[i].ns);
    assert_string_equal(hk_format_bytes(cases[i].n, bytes, sizeof bytes), cases[i].bytes);
    assert_string_equal(hk_format_count(cases[i].n, count, sizeof count), cases[i].count);
  }
  char small[4];
  assert_string_equal(hk_format_count(123456, small, sizeof small), "123");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_error_long_message_is_cut),
      cmocka_unit_test(test_error_cut_keeps_characters_whole),
      cmocka_unit_test(test_error_message_is_one_printable_line),
      cmocka_unit_test(test_error_may_quote_itself_or_be_absent),
      cmocka_unit_test(test_error_of_parallel_work_is_the_first),
      cmocka_unit_test(test_units),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
