/* SPDX-License-Identifier: Apache-2.0 */
/* JSON grammar (RFC 8259), checked before cJSON sees a text. cJSON alone cannot do it: it takes
 * "01", raw control characters and "\u0000" (which cuts the string), and when it fails it does not
 * tell a syntax error from lack of memory. */
#include "core/base/json_syntax.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH  512 /* cJSON's own limit is 1000 */
#define MAX_NUMBER 63  /* cJSON reads no further */
#define MAX_VALUES (4 << 20)

/* Position of the reader and, once it has stopped, the reason: something else was expected there,
 * or what is there is invalid. */
typedef struct {
  const char *at, *end;
  const char *expected;
  const char *flaw;
  int depth;
  int values; /* so far */
} reader;

static bool expected(reader *r, const char *what) {
  r->expected = what;
  return false;
}

static bool flawed(reader *r, const char *what) {
  r->flaw = what;
  return false;
}

static bool next_is(const reader *r, char c) {
  return r->at < r->end && *r->at == c;
}

static bool next_is_digit(const reader *r) {
  return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

static void skip_space(reader *r) {
  while (next_is(r, ' ') || next_is(r, '\n') || next_is(r, '\r') || next_is(r, '\t')) r->at++;
}

static bool read_literal(reader *r, const char *literal, const char *quoted) {
  for (; *literal; literal++, r->at++) {
    if (!next_is(r, *literal)) return expected(r, quoted);
  }
  return true;
}

static bool read_digits(reader *r) {
  if (!next_is_digit(r)) return expected(r, "a digit");
  while (next_is_digit(r)) r->at++;
  return true;
}

static bool read_number(reader *r) {
  const char *begin = r->at;
  if (next_is(r, '-')) r->at++;
  if (next_is(r, '0')) {
    r->at++;
    if (next_is_digit(r)) return flawed(r, "a number with a leading zero");
  } else if (!read_digits(r)) {
    return false;
  }
  if (next_is(r, '.')) {
    r->at++;
    if (!read_digits(r)) return false;
  }
  if (next_is(r, 'e') || next_is(r, 'E')) {
    r->at++;
    if (next_is(r, '+') || next_is(r, '-')) r->at++;
    if (!read_digits(r)) return false;
  }

  char digits[MAX_NUMBER + 1];
  size_t length = (size_t)(r->at - begin);
  r->at = begin;
  if (length > MAX_NUMBER) return flawed(r, "a number of more than 63 characters");
  memcpy(digits, begin, length);
  digits[length] = '\0';
  if (!isfinite(strtod(digits, NULL))) return flawed(r, "a number too large to be finite");
  r->at += length;
  return true;
}

static bool read_hex4(reader *r, unsigned *code) {
  *code = 0;
  for (int i = 0; i < 4; i++, r->at++) {
    static const char hex[] = "0123456789abcdefABCDEF";
    const char *found = r->at < r->end ? memchr(hex, *r->at, sizeof hex - 1) : NULL;
    if (!found) return expected(r, "a hexadecimal digit");
    unsigned digit = (unsigned)(found - hex);
    *code = *code * 16 + (digit < 16 ? digit : digit - 6);
  }
  return true;
}

/* After "\u". Code points above U+FFFF are written as two surrogates; one alone is invalid. */
static bool read_unicode_escape(reader *r) {
  const char *begin = r->at - 2;
  unsigned code;
  if (!read_hex4(r, &code)) return false;
  bool high = code >= 0xD800 && code <= 0xDBFF;
  if (high) {
    if (!read_literal(r, "\\u", "the second half of a surrogate pair, \"\\u\"")) return false;
    if (!read_hex4(r, &code)) return false;
  }
  bool low = code >= 0xDC00 && code <= 0xDFFF;
  if (high == low && code != 0) return true;
  r->at = begin;
  if (code == 0 && !high) return flawed(r, "a NUL character (\\u0000) in a string");
  return flawed(r, "half a surrogate pair in a string");
}

static bool read_escape(reader *r) {
  r->at++;
  if (next_is(r, 'u')) {
    r->at++;
    return read_unicode_escape(r);
  }
  if (r->at == r->end || !memchr("\"\\/bfnrt", *r->at, 8)) {
    return expected(r, "one of \" \\ / b f n r t u after a backslash");
  }
  r->at++;
  return true;
}

static bool read_string(reader *r) {
  for (r->at++; !next_is(r, '"');) {
    if (r->at == r->end) return expected(r, "the '\"' that ends a string");
    if (*r->at == '\\') {
      if (!read_escape(r)) return false;
      continue;
    }
    if (*r->at == '\n') return flawed(r, "a line break in a string (is a '\"' missing before it?)");
    if ((unsigned char)*r->at < 0x20) {
      return flawed(r, "a control character in a string; it must be written as an escape");
    }
    size_t length = hk_utf8_length(r->at, (size_t)(r->end - r->at));
    if (length == 0) return flawed(r, "bytes that are not UTF-8");
    r->at += length;
  }
  r->at++;
  return true;
}

static bool read_value(reader *r);

static bool read_array(reader *r) {
  r->at++;
  skip_space(r);
  if (next_is(r, ']')) {
    r->at++;
    return true;
  }
  for (;; r->at++) {
    if (!read_value(r)) return false;
    if (next_is(r, ']')) break;
    if (!next_is(r, ',')) return expected(r, "',' or ']'");
  }
  r->at++;
  return true;
}

static bool read_object(reader *r) {
  r->at++;
  skip_space(r);
  if (next_is(r, '}')) {
    r->at++;
    return true;
  }
  for (;; r->at++) {
    skip_space(r);
    if (!next_is(r, '"')) return expected(r, "a key in double quotes");
    if (!read_string(r)) return false;
    skip_space(r);
    if (!next_is(r, ':')) return expected(r, "':' after a key");
    r->at++;
    if (!read_value(r)) return false;
    if (next_is(r, '}')) break;
    if (!next_is(r, ',')) return expected(r, "',' or '}'");
  }
  r->at++;
  return true;
}

static bool read_nested(reader *r, bool (*read)(reader *)) {
  if (r->depth == MAX_DEPTH) return flawed(r, "arrays or objects nested more than 512 deep");
  r->depth++;
  bool good = read(r);
  r->depth--;
  return good;
}

/* A value and the space around it. */
static bool read_value(reader *r) {
  skip_space(r);
  if (++r->values > MAX_VALUES) return flawed(r, "more than 4194304 values in one file");
  bool good;
  if (next_is(r, '{')) {
    good = read_nested(r, read_object);
  } else if (next_is(r, '[')) {
    good = read_nested(r, read_array);
  } else if (next_is(r, '"')) {
    good = read_string(r);
  } else if (next_is(r, 't')) {
    good = read_literal(r, "true", "'true'");
  } else if (next_is(r, 'f')) {
    good = read_literal(r, "false", "'false'");
  } else if (next_is(r, 'n')) {
    good = read_literal(r, "null", "'null'");
  } else if (next_is(r, '-') || next_is_digit(r)) {
    good = read_number(r);
  } else {
    good = expected(r, "a value");
  }
  if (good) skip_space(r); /* after an error stay at its position */
  return good;
}

static hk_status report(const reader *r, const char *text, const char *name, hk_error *err) {
  size_t line = 1, column = 1;
  for (const char *p = text; p < r->at; p++) {
    if (*p == '\n') {
      line++;
      column = 1;
    } else if (((unsigned char)*p & 0xC0) != 0x80) {
      column++;
    }
  }
  if (r->flaw) {
    return hk_fail(err, HK_INPUT, "%s: line %zu, column %zu: %s", name, line, column, r->flaw);
  }
  if (r->at == r->end) {
    return hk_fail(err, HK_INPUT,
                   "%s: truncated: the text ends at line %zu, column %zu, where %s was expected",
                   name, line, column, r->expected);
  }
  char got[24];
  unsigned char c = (unsigned char)*r->at;
  snprintf(got, sizeof got, c > 0x20 && c < 0x7F ? "'%c'" : "byte 0x%02x", c);
  return hk_fail(err, HK_INPUT, "%s: line %zu, column %zu: expected %s, got %s", name, line, column,
                 r->expected, got);
}

hk_status hk_json_syntax(const char *text, size_t length, const char *name, hk_error *err) {
  reader r = {.at = text, .end = text + length};
  const char *nul = memchr(text, '\0', length);
  if (nul) {
    r.at = nul;
    flawed(&r, "a NUL byte; this is not a text file");
    return report(&r, text, name, err);
  }
  if (!read_value(&r)) return report(&r, text, name, err);
  if (r.at == r.end) return HK_OK;
  flawed(&r, "text after the end of the JSON value");
  return report(&r, text, name, err);
}

size_t hk_utf8_length(const char *text, size_t room) {
  const unsigned char *s = (const unsigned char *)text;
  if (s[0] < 0x80) return 1;
  size_t length = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
  if (s[0] < 0xC2 || s[0] > 0xF4 || length > room) return 0;
  for (size_t i = 1; i < length; i++) {
    if ((s[i] & 0xC0) != 0x80) return 0;
  }
  /* The second byte excludes overlong forms, surrogates and code points above U+10FFFF. */
  if (s[0] == 0xE0 && s[1] < 0xA0) return 0;
  if (s[0] == 0xED && s[1] > 0x9F) return 0;
  if (s[0] == 0xF0 && s[1] < 0x90) return 0;
  if (s[0] == 0xF4 && s[1] > 0x8F) return 0;
  return length;
}
