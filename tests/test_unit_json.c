/* SPDX-License-Identifier: GPL-3.0-or-later */
/* JSON: invalid texts are refused with a message that names place and reason, valid ones survive a
 * round trip, and a failed allocation at any point is an error without a leak. */
#include "tests/fixture.h"

#include <float.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/units.h"

/* -- Parsing ------------------------------------------------------------------------------- */

static hk_status parse(const char *text, cJSON **root, hk_error *err) {
  return hk_json_parse(text, strlen(text), "T", root, err);
}

static void assert_refused(const char *text, size_t length, const char *message) {
  /* A copy of exactly that size: AddressSanitizer sees a read beyond it. */
  char *copy = malloc(length ? length : 1);
  assert_non_null(copy);
  memcpy(copy, text, length);
  hk_error err = {0};
  cJSON *root = NULL;
  assert_int_equal(hk_json_parse(copy, length, "T", &root, &err), HK_INPUT);
  assert_null(root);
  assert_string_equal(err.message, message);
  free(copy);
}

static void test_parse_refuses(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {"", "T: empty; expected a JSON object"},
      {" \r\n\t ", "T: empty; expected a JSON object"},
      {"\xEF\xBB\xBF", "T: empty; expected a JSON object"},
      {"[1]", "T: the top level is an array; expected an object, { ... }"},
      {"\"a\"", "T: the top level is a string; expected an object, { ... }"},
      {"-1.5e3", "T: the top level is a number; expected an object, { ... }"},
      {"null", "T: the top level is null; expected an object, { ... }"},
      {"true", "T: the top level is true; expected an object, { ... }"},
      {"{",
       "T: truncated: the text ends at line 1, column 2, where a key in double quotes was "
       "expected"},
      {"{\"a\"",
       "T: truncated: the text ends at line 1, column 5, where ':' after a key was "
       "expected"},
      {"{\"a\":\n", "T: truncated: the text ends at line 2, column 1, where a value was expected"},
      {"{\"a\": [1, 2",
       "T: truncated: the text ends at line 1, column 12, where ',' or ']' was "
       "expected"},
      {"{\"a\": tru",
       "T: truncated: the text ends at line 1, column 10, where 'true' was expected"},
      {"{\"a\": \"b",
       "T: truncated: the text ends at line 1, column 9, where the '\"' that ends a "
       "string was expected"},
      {"{\"a\": -", "T: truncated: the text ends at line 1, column 8, where a digit was expected"},
      {"{\"a\": 1} x", "T: line 1, column 10: text after the end of the JSON value"},
      {"{}{}", "T: line 1, column 3: text after the end of the JSON value"},
      {"{\"a\": 1,}", "T: line 1, column 9: expected a key in double quotes, got '}'"},
      {"{a: 1}", "T: line 1, column 2: expected a key in double quotes, got 'a'"},
      {"{\n  \"a\" 1}", "T: line 2, column 7: expected ':' after a key, got '1'"},
      {"{\"a\": 1 \"b\": 2}", "T: line 1, column 9: expected ',' or '}', got '\"'"},
      {"{\"a\": [1,]}", "T: line 1, column 10: expected a value, got ']'"},
      {"{\"a\": [1}", "T: line 1, column 9: expected ',' or ']', got '}'"},
      {"{\"a\": nope}", "T: line 1, column 8: expected 'null', got 'o'"},
      {"{\"a\": falsE}", "T: line 1, column 11: expected 'false', got 'E'"},
      {"{\"a\": NaN}", "T: line 1, column 7: expected a value, got 'N'"},
      {"{\"a\": -Infinity}", "T: line 1, column 8: expected a digit, got 'I'"},
      {"{\"a\": +1}", "T: line 1, column 7: expected a value, got '+'"},
      {"{\"a\": .5}", "T: line 1, column 7: expected a value, got '.'"},
      {"{\"a\": 1.}", "T: line 1, column 9: expected a digit, got '}'"},
      {"{\"a\": 1e}", "T: line 1, column 9: expected a digit, got '}'"},
      {"{\"a\": 01}", "T: line 1, column 8: a number with a leading zero"},
      {"{\"a\": 0x10}", "T: line 1, column 8: expected ',' or '}', got 'x'"},
      {"{\"a\": 1e999}", "T: line 1, column 7: a number too large to be finite"},
      {"{\"a\": [0, -1e999]}", "T: line 1, column 11: a number too large to be finite"},
      {"{\"a\": 1111111111222222222233333333334444444444555555555566666666667777}",
       "T: line 1, column 7: a number of more than 63 characters"},
      {"{'a': 1}", "T: line 1, column 2: expected a key in double quotes, got '''"},
      {"{\"a\": 1} // why", "T: line 1, column 10: text after the end of the JSON value"},
      {"{\"a\": \"b\nc\"}",
       "T: line 1, column 9: a line break in a string (is a '\"' missing before it?)"},
      {"{\"a\": \"b\tc\"}",
       "T: line 1, column 9: a control character in a string; it must be "
       "written as an escape"},
      {"{\"a\": \"\\x\"}",
       "T: line 1, column 9: expected one of \" \\ / b f n r t u after a backslash, got 'x'"},
      {"{\"a\": \"\\u12G4\"}", "T: line 1, column 12: expected a hexadecimal digit, got 'G'"},
      {"{\"a\\u0000b\": 1}", "T: line 1, column 4: a NUL character (\\u0000) in a string"},
      {"{\"a\": \"\\uD83D\"}",
       "T: line 1, column 14: expected the second half of a surrogate "
       "pair, \"\\u\", got '\"'"},
      {"{\"a\": \"\\uD83D\\u0041\"}", "T: line 1, column 8: half a surrogate pair in a string"},
      {"{\"a\": \"\\uDE00\"}", "T: line 1, column 8: half a surrogate pair in a string"},
      {"{\"\xE2\x82\xAC\": \"\xFF\"}", "T: line 1, column 8: bytes that are not UTF-8"},
      {"{\"a\": \"\xC0\xAF\"}", "T: line 1, column 8: bytes that are not UTF-8"},
      {"{\"a\": \"\xED\xA0\x80\"}", "T: line 1, column 8: bytes that are not UTF-8"},
      {"{\"a\": \"\xF4\x90\x80\x80\"}", "T: line 1, column 8: bytes that are not UTF-8"},
      {"{\"a\": \"\xE2\x82", "T: line 1, column 8: bytes that are not UTF-8"},
      {"{\"a\": \x01}", "T: line 1, column 7: expected a value, got byte 0x01"},
      {"{\"k\": 1, \"j\": 2, \"k\": 3}", "T: line 1, key 'k' appears more than once in one object"},
      {"{\"k\": 1, \"\\u006b\": 3}", "T: line 1, key 'k' appears more than once in one object"},
      {"{\"j\": [\"k\",\n\"k\\\":\"], \"k\": 1,\n\"o\": {\"k\": {}},\n\"k\"\n:\"k\"}",
       "T: line 4, key 'k' appears more than once in one object"},
      {"{\"o\": {\"\": 1, \"\": 3}}", "T: line 1, key '' appears more than once in 'o'"},
      {"{\"o\": [{\"k\": 1}, [{\"x\": 1, \"k\": 1, \"k\": 3}]]}",
       "T: line 1, key 'k' appears more than once in one object"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_refused(cases[i].text, strlen(cases[i].text), cases[i].message);
  }
  assert_refused("{\n\"a\0\": 1}", 10, "T: line 2, column 3: a NUL byte; this is not a text file");
  assert_refused("{}\0", 3, "T: line 1, column 3: a NUL byte; this is not a text file");
}

/* Every prefix of a valid text is refused as empty or truncated. */
static void test_parse_refuses_every_prefix(void **state) {
  (void)state;
  static const char text[] = "{\"a\": [true, null, -1.5e+3, {}], \"b\": \"x\\u00e9\\n\"}";
  hk_error err = {0};
  cJSON *root;
  assert_int_equal(parse(text, &root, &err), HK_OK);
  cJSON_Delete(root);
  for (size_t n = 0; n < sizeof text - 1; n++) {
    assert_int_equal(hk_json_parse(text, n, "T", &root, &err), HK_INPUT);
    assert_null(root);
    assert_non_null(strstr(err.message, n == 0 ? "empty" : "truncated"));
  }
}

static char *nested(size_t depth) {
  char *text = malloc(2 * depth + 16);
  assert_non_null(text);
  strcpy(text, "{\"a\":");
  memset(text + 5, '[', depth - 1);
  memset(text + 5 + depth - 1, ']', depth - 1);
  strcpy(text + 5 + 2 * (depth - 1), "}");
  return text;
}

static void test_parse_bounds_nesting(void **state) {
  (void)state;
  hk_error err = {0};
  cJSON *root;
  char *text = nested(512);
  assert_int_equal(parse(text, &root, &err), HK_OK);
  cJSON_Delete(root);
  free(text);
  static const size_t depths[] = {513, 1001, 2000000};
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
    text = nested(depths[i]);
    assert_refused(text, strlen(text),
                   "T: line 1, column 517: arrays or objects nested more than 512 deep");
    free(text);
  }
}

static void test_parse_accepts(void **state) {
  (void)state;
  hk_error err = {0};
  cJSON *root;
  static const char text[] =
      "\xEF\xBB\xBF \r\n{\"k\": 1, \"K\": 2, \"\": -0, \"n\": 1E-400, \"i\": 9007199254740992,\n"
      "\"u\": \"\\uD83D\\ude00 \xF0\x9F\x98\x80 \xC3\xA9 \\\" \\/\", \"o\": {\"k\": [[], {}]}}\n";
  assert_int_equal(parse(text, &root, &err), HK_OK);
  int64_t value;
  assert_int_equal(hk_json_int(root, "k", 0, 9, &value, &err), HK_OK);
  assert_int_equal(value, 1);
  assert_int_equal(hk_json_int(root, "K", 0, 9, &value, &err), HK_OK);
  assert_int_equal(value, 2);
  assert_int_equal(hk_json_int(root, "i", 0, INT64_MAX, &value, &err), HK_OK);
  assert_int_equal(value, 9007199254740992);
  const char *string;
  assert_int_equal(hk_json_string(root, "u", &string, &err), HK_OK);
  assert_string_equal(string, "\xF0\x9F\x98\x80 \xF0\x9F\x98\x80 \xC3\xA9 \" /");
  cJSON_Delete(root);
}

/* A million keys, the last one a duplicate. A quadratic search would exceed the test's time limit.
 */
static void test_parse_finds_a_duplicate_among_many(void **state) {
  (void)state;
  const size_t n = 100000;
  char *text = malloc(n * 16 + 32);
  assert_non_null(text);
  char *p = text + sprintf(text, "{\"o\":{");
  for (size_t i = 0; i < n; i++) p += sprintf(p, "\"k%zu\":0,", i);
  strcpy(p, "\"last\":0}}");
  hk_error err = {0};
  cJSON *root;
  assert_int_equal(parse(text, &root, &err), HK_OK);
  cJSON_Delete(root);
  strcpy(p, "\"k500\":0}}");
  assert_int_equal(parse(text, &root, &err), HK_INPUT);
  assert_string_equal(err.message, "T: line 1, key 'k500' appears more than once in 'o'");
  free(text);
}

/* -- Lack of memory ------------------------------------------------------------------------ */

static long allocations_left, blocks_alive;

static void *scarce_malloc(size_t size) {
  if (allocations_left-- <= 0) return NULL;
  void *block = malloc(size);
  if (block) blocks_alive++;
  return block;
}

static void counting_free(void *block) {
  if (block) blocks_alive--;
  free(block);
}

/* The n-th allocation of cJSON fails, for n = 1, 2, ... until parsing succeeds. */
static void test_parse_without_memory(void **state) {
  (void)state;
  static const char text[] =
      "{\"a\": [1, \"two\", {\"b\": null}], \"c\": true, \"d\": \"\\u00e9\"}";
  cJSON_Hooks hooks = {.malloc_fn = scarce_malloc, .free_fn = counting_free};
  cJSON_InitHooks(&hooks);
  hk_status status = HK_ENVIRONMENT;
  long n = 0;
  for (; status != HK_OK && n < 1000; n++) {
    allocations_left = n;
    blocks_alive = 0;
    hk_error err = {0};
    cJSON *root = NULL;
    status = parse(text, &root, &err);
    if (status != HK_OK) {
      assert_int_equal(status, HK_ENVIRONMENT);
      assert_non_null(strstr(err.message, "out of memory"));
      assert_null(root);
    } else {
      allocations_left = 1; /* printing needs more than one */
      assert_int_equal(hk_json_print(root, stdout, &err), HK_ENVIRONMENT);
      cJSON_Delete(root);
    }
    assert_int_equal(blocks_alive, 0);
  }
  cJSON_InitHooks(NULL);
  assert_int_equal(status, HK_OK);
  assert_in_range(n, 10, 100);
}

/* -- Getters ------------------------------------------------------------------------------- */

static cJSON *sample(void) {
  hk_error err = {0};
  cJSON *root;
  assert_int_equal(
      parse("{\"four\": -4, \"half\": 0.5, \"s\": \"12\", \"yes\": true, \"no\": false,"
            "\"nil\": null, \"o\": {}, \"a\": [], \"big\": 9223372036854775808,"
            "\"huge\": 1e300, \"low\": -9223372036854775808}",
            &root, &err),
      HK_OK);
  return root;
}

static void test_int_getter(void **state) {
  (void)state;
  cJSON *root = sample();
  static const struct {
    const char *key;
    int64_t min, max;
    const char *message;
  } bad[] = {
      {"four", 1, 1048576, "key 'four': expected a whole number from 1 to 1048576, got -4"},
      {"four", -3, INT64_MAX, "key 'four': expected a whole number of at least -3, got -4"},
      {"four", INT64_MIN, -5, "key 'four': expected a whole number of at most -5, got -4"},
      {"half", 0, 9, "key 'half': expected a whole number from 0 to 9, got 0.5"},
      {"s", 0, 99, "key 's': expected a whole number from 0 to 99, got the string \"12\""},
      {"yes", 0, 1, "key 'yes': expected a whole number from 0 to 1, got true"},
      {"no", 0, 1, "key 'no': expected a whole number from 0 to 1, got false"},
      {"nil", 0, 1, "key 'nil': expected a whole number from 0 to 1, got null"},
      {"o", 0, 1, "key 'o': expected a whole number from 0 to 1, got an object"},
      {"a", 0, 1, "key 'a': expected a whole number from 0 to 1, got an array"},
      {"gone", 0, 1, "key 'gone': missing; expected a whole number from 0 to 1"},
      {"Four", -9, 1, "key 'Four': missing; expected a whole number from -9 to 1"},
      {"big", INT64_MIN, INT64_MAX, "key 'big': expected a whole number, got 9.22337203685478e+18"},
      {"huge", INT64_MIN, INT64_MAX, "key 'huge': expected a whole number, got 1e+300"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    hk_error err = {0};
    int64_t value = 77;
    assert_int_equal(hk_json_int(root, bad[i].key, bad[i].min, bad[i].max, &value, &err), HK_INPUT);
    assert_string_equal(err.message, bad[i].message);
    assert_int_equal(value, 77);
  }
  int64_t value;
  assert_int_equal(hk_json_int(root, "four", -4, -4, &value, NULL), HK_OK);
  assert_int_equal(value, -4);
  assert_int_equal(hk_json_int(root, "low", INT64_MIN, INT64_MAX, &value, NULL), HK_OK);
  assert_true(value == INT64_MIN);
  cJSON_AddNumberToObject(root, "nan", NAN);
  assert_int_equal(hk_json_int(root, "nan", INT64_MIN, INT64_MAX, &value, NULL), HK_INPUT);
  assert_int_equal(hk_json_int(NULL, "x", 0, 1, &value, NULL), HK_INPUT);
  cJSON_Delete(root);
}

static void test_double_getter(void **state) {
  (void)state;
  cJSON *root = sample();
  hk_error err = {0};
  double value = 77;
  assert_int_equal(hk_json_double(root, "half", 0.5, 0.5, &value, &err), HK_OK);
  assert_true(value == 0.5);
  assert_int_equal(hk_json_double(root, "half", 1e6, 2.5e14, &value, &err), HK_INPUT);
  assert_string_equal(err.message, "key 'half': expected a number from 1e+06 to 2.5e+14, got 0.5");
  assert_int_equal(hk_json_double(root, "half", 1, INFINITY, &value, &err), HK_INPUT);
  assert_string_equal(err.message, "key 'half': expected a number of at least 1, got 0.5");
  assert_int_equal(hk_json_double(root, "s", -DBL_MAX, DBL_MAX, &value, &err), HK_INPUT);
  assert_string_equal(err.message, "key 's': expected a number, got the string \"12\"");
  cJSON_AddNumberToObject(root, "nan", NAN);
  cJSON_AddNumberToObject(root, "inf", INFINITY);
  assert_int_equal(hk_json_double(root, "nan", -INFINITY, INFINITY, &value, &err), HK_INPUT);
  assert_int_equal(hk_json_double(root, "inf", -INFINITY, INFINITY, &value, &err), HK_INPUT);
  assert_true(value == 0.5);
  cJSON_Delete(root);
}

static void test_other_getters(void **state) {
  (void)state;
  cJSON *root = sample();
  hk_error err = {0};
  bool flag = false;
  const char *string;
  const cJSON *node;
  assert_int_equal(hk_json_bool(root, "yes", &flag, &err), HK_OK);
  assert_true(flag);
  assert_int_equal(hk_json_bool(root, "no", &flag, &err), HK_OK);
  assert_false(flag);
  assert_int_equal(hk_json_bool(root, "four", &flag, &err), HK_INPUT);
  assert_string_equal(err.message, "key 'four': expected true or false, got -4");
  assert_int_equal(hk_json_string(root, "four", &string, &err), HK_INPUT);
  assert_string_equal(err.message, "key 'four': expected a string, got -4");
  assert_int_equal(hk_json_object(root, "o", &node, &err), HK_OK);
  assert_int_equal(hk_json_object(root, "a", &node, &err), HK_INPUT);
  assert_string_equal(err.message, "key 'a': expected an object, got an array");
  assert_int_equal(hk_json_array(root, "a", &node, &err), HK_OK);
  assert_int_equal(hk_json_array(root, "gone", &node, &err), HK_INPUT);
  assert_string_equal(err.message, "key 'gone': missing; expected an array");
  cJSON_Delete(root);
}

static void test_getters_with_defaults(void **state) {
  (void)state;
  cJSON *root = sample();
  int64_t whole;
  double number;
  bool flag;
  static const char *const absent[] = {"gone", "nil"};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(hk_json_int_or(root, absent[i], 0, 1, 55, &whole, NULL), HK_OK);
    assert_int_equal(whole, 55);
    assert_int_equal(hk_json_double_or(root, absent[i], 0, 1, 5.5, &number, NULL), HK_OK);
    assert_true(number == 5.5);
    assert_int_equal(hk_json_bool_or(root, absent[i], true, &flag, NULL), HK_OK);
    assert_true(flag);
  }
  assert_int_equal(hk_json_int_or(root, "four", -9, 1, 55, &whole, NULL), HK_OK);
  assert_int_equal(whole, -4);
  assert_int_equal(hk_json_double_or(root, "half", 0, 1, 5.5, &number, NULL), HK_OK);
  assert_true(number == 0.5);
  assert_int_equal(hk_json_bool_or(root, "no", true, &flag, NULL), HK_OK);
  assert_false(flag);
  /* A present key of the wrong type is an error; the default does not apply. */
  assert_int_equal(hk_json_int_or(root, "s", 0, 1, 55, &whole, NULL), HK_INPUT);
  assert_int_equal(hk_json_double_or(root, "s", 0, 1, 5.5, &number, NULL), HK_INPUT);
  assert_int_equal(hk_json_bool_or(root, "four", true, &flag, NULL), HK_INPUT);
  cJSON_Delete(root);
}

/* -- Files --------------------------------------------------------------------------------- */

static void assert_load_fails(const char *path, hk_status expected, const char *reason) {
  hk_error err = {0};
  cJSON *root = NULL;
  assert_int_equal(hk_json_load(path, &root, &err), expected);
  assert_null(root);
  assert_memory_equal(err.message, path, strlen(path));
  assert_non_null(strstr(err.message, reason));
}

static void write_file(const char *path, const void *bytes, size_t n) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

static void test_load(void **state) {
  (void)state;
  char folder[] = "hk-json-XXXXXX";
  assert_non_null(mkdtemp(folder));
  char path[64];
  snprintf(path, sizeof path, "%s/a.json", folder);
  assert_load_fails(path, HK_INPUT, "No such file");
  assert_load_fails(folder, HK_INPUT, "is a directory");
  assert_load_fails("/dev/zero", HK_INPUT, "is a device, which has no end");
  assert_load_fails("/dev/null", HK_INPUT, "empty");

  write_file(path, "{\"a\":\n oops}", 12);
  assert_load_fails(path, HK_INPUT, ": line 2, column 2: expected a value, got 'o'");
  if (geteuid() != 0) {
    assert_int_equal(chmod(path, 0), 0);
    assert_load_fails(path, HK_INPUT, "Permission denied");
    assert_int_equal(chmod(path, 0600), 0);
  }

  /* A file of 64 MiB is read, one of a byte more is refused. */
  size_t limit = (size_t)(64 * HK_MIB);
  char *text = malloc(limit + 1);
  assert_non_null(text);
  memset(text, ' ', limit + 1);
  memcpy(text, "{\"a\": 5}", 8);
  write_file(path, text, limit);
  hk_error err = {0};
  cJSON *root;
  assert_int_equal(hk_json_load(path, &root, &err), HK_OK);
  int64_t value;
  assert_int_equal(hk_json_int(root, "a", 0, 9, &value, &err), HK_OK);
  assert_int_equal(value, 5);
  cJSON_Delete(root);
  write_file(path, text, limit + 1);
  assert_load_fails(path, HK_INPUT, "larger than 64 MiB");
  free(text);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

/* -- Printing ------------------------------------------------------------------------------ */

static void test_write_string_is_read_back(void **state) {
  (void)state;
  char every[256];
  for (int i = 1; i < 128; i++) every[i - 1] = (char)i;
  strcpy(every + 127, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  char *text;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  assert_non_null(stream);
  fputs("{\"s\":", stream);
  hk_json_write_string(stream, every);
  fputs(",\"bad\":", stream);
  hk_json_write_string(stream, "x\xFFy\xE2\x82");
  fputs("}", stream);
  assert_int_equal(fclose(stream), 0);
  hk_error err = {0};
  cJSON *root;
  assert_int_equal(hk_json_parse(text, size, "T", &root, &err), HK_OK);
  const char *string;
  assert_int_equal(hk_json_string(root, "s", &string, &err), HK_OK);
  assert_string_equal(string, every);
  assert_int_equal(hk_json_string(root, "bad", &string, &err), HK_OK);
  assert_string_equal(string, "x\xEF\xBF\xBDy\xEF\xBF\xBD\xEF\xBF\xBD");
  cJSON_Delete(root);
  free(text);
}

/* cJSON needs some 100 bytes a value, so the number of values is limited: 60 MiB of "0," would take
 * 3.3 GB. */
static void test_parse_bounds_values(void **state) {
  (void)state;
  if (is_sanitized()) skip();
  static const char head[] = "{\"a\":[0", tail[] = "]}";
  enum { MOST = 4 << 20 }; /* the object and the array are values, too */
  const size_t length = sizeof head - 1 + 2 * (size_t)(MOST - 2) + sizeof tail - 1;
  char *text = malloc(length + 1), *at = text;
  assert_non_null(text);
  at = stpcpy(at, head);
  for (int i = 0; i < MOST - 2; i++) at = stpcpy(at, ",0");
  strcpy(at, tail);
  hk_error err = {0};
  cJSON *root = NULL;
  assert_int_equal(hk_json_parse(text, length, "T", &root, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "more than 4194304 values"));
  text[length - 4] = text[length - 3] = ' '; /* one less */
  assert_int_equal(hk_json_parse(text, length, "T", &root, &err), HK_OK);
  assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "a")), MOST - 2);
  cJSON_Delete(root);
  free(text);
}

/* A document over 64 MiB, which could not be read back, is not written. */
static void test_save_bounds_bytes(void **state) {
  (void)state;
  char folder[] = "hk-json-XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/a.json", folder);
  char *text = malloc((64 << 20) + 1);
  assert_non_null(text);
  memset(text, 'x', 64 << 20);
  text[64 << 20] = '\0';
  hk_error err = {0};
  cJSON *root = cJSON_CreateObject();
  assert_non_null(cJSON_AddStringToObject(root, "long", text));
  assert_int_equal(hk_json_save(root, path, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "at most 64 MiB are read as JSON"));
  assert_int_not_equal(access(path, F_OK), 0);
  assert_int_equal(rmdir(folder), 0);
  cJSON_Delete(root);
  free(text);
}

static void test_print(void **state) {
  (void)state;
  cJSON *root = sample();
  char *text;
  size_t size;
  FILE *stream = open_memstream(&text, &size);
  assert_non_null(stream);
  assert_int_equal(hk_json_print(root, stream, NULL), HK_OK);
  assert_int_equal(fclose(stream), 0);
  assert_int_equal(text[size - 1], '\n');
  cJSON *again;
  assert_int_equal(hk_json_parse(text, size, "T", &again, NULL), HK_OK);
  assert_true(cJSON_Compare(root, again, true));
  cJSON_Delete(again);
  free(text);

  FILE *full = fopen("/dev/full", "w");
  assert_non_null(full);
  hk_error err = {0};
  assert_int_equal(hk_json_print(root, full, &err), HK_ENVIRONMENT);
  assert_string_equal(err.message, "cannot write JSON: No space left on device");
  fclose(full);
  cJSON_Delete(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parse_refuses),
      cmocka_unit_test(test_parse_refuses_every_prefix),
      cmocka_unit_test(test_parse_bounds_nesting),
      cmocka_unit_test(test_parse_bounds_values),
      cmocka_unit_test(test_save_bounds_bytes),
      cmocka_unit_test(test_parse_accepts),
      cmocka_unit_test(test_parse_finds_a_duplicate_among_many),
      cmocka_unit_test(test_parse_without_memory),
      cmocka_unit_test(test_int_getter),
      cmocka_unit_test(test_double_getter),
      cmocka_unit_test(test_other_getters),
      cmocka_unit_test(test_getters_with_defaults),
      cmocka_unit_test(test_load),
      cmocka_unit_test(test_write_string_is_read_back),
      cmocka_unit_test(test_print),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
