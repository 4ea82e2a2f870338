/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Numbers in logs, in the formats of different locales and tools. A number is groups of digits with
 * separators between them. The decimal separator is found from the kinds of the separators and the
 * lengths of the groups; some numbers are ambiguous. */
#include <stdlib.h>
#include <string.h>

#include "traces/import_deepspeed_internal.h"

#define MOST_DIGITS 40
#define MOST_GROUPS 12

typedef struct {
  char digits[MOST_DIGITS + 8]; /* of all groups */
  size_t n;
  int length[MOST_GROUPS];  /* of each group */
  char before[MOST_GROUPS]; /* separator before it: '.', ',', '\'' or ' ' */
  int groups;
  char exponent[8]; /* "e+08", or "" */
  bool broken;      /* too long, or followed by a blank and more digits */
} pieces;

/* A separator at `text`: its kind and its length in bytes, or 0. */
static size_t separator(const char *text, char *kind) {
  static const struct {
    const char *bytes;
    char kind;
  } known[] = {{".", '.'},
               {",", ','},
               {"'", '\''},
               {" ", ' '},
               {"\xC2\xA0", ' '},
               {"\xE2\x80\x89", ' '},
               {"\xE2\x80\xAF", ' '},
               {"\xE2\x80\x99", '\''},
               {"\xA0", ' '}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    size_t length = strlen(known[i].bytes);
    if (strncmp(text, known[i].bytes, length) != 0) continue;
    *kind = known[i].kind;
    return length;
  }
  return 0;
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static int count_digits(const char *text) {
  return (int)strspn(text, "0123456789");
}

static void take_group(pieces *p, const char **at, char before) {
  int length = count_digits(*at);
  if (p->groups == MOST_GROUPS || p->n + (size_t)length > MOST_DIGITS) {
    p->broken = true;
  } else {
    memcpy(p->digits + p->n, *at, (size_t)length);
    p->n += (size_t)length;
    p->length[p->groups] = length;
    p->before[p->groups++] = before;
  }
  *at += length;
}

static void take_exponent(pieces *p, const char **at) {
  const char *end = *at;
  if (*end != 'e' && *end != 'E') return;
  end++;
  if (*end == '+' || *end == '-') end++;
  int length = count_digits(end);
  if (length < 1 || length > 3) return;
  end += length;
  memcpy(p->exponent, *at, (size_t)(end - *at));
  *at = end;
}

static bool take_pieces(pieces *p, const char **text) {
  *p = (pieces){0};
  char kind;
  const char *at = *text;
  for (size_t n; (n = *at == '\t' ? 1 : separator(at, &kind)) > 0 && (*at == '\t' || kind == ' ');)
    at += n;
  if (!is_digit(*at)) return false;
  take_group(p, &at, 0);
  for (size_t n; (n = separator(at, &kind)) > 0 && is_digit(at[n]);) {
    if (kind == ' ' && count_digits(at + n) != 3) {
      p->broken = true; /* two numbers, or a number with other output inside */
      break;
    }
    at += n;
    take_group(p, &at, kind);
  }
  take_exponent(p, &at);
  *text = at;
  return true;
}

/* Groups 1 to n - 1 can be thousands: three digits each, one kind of separator. */
static bool are_thousands(const pieces *p, int n) {
  if (n > 1 && (p->length[0] > 3 || p->digits[0] == '0')) return false;
  for (int i = 1; i < n; i++)
    if (p->length[i] != 3 || p->before[i] != p->before[1]) return false;
  return true;
}

/* Number of digits after the decimal separator; -1: ambiguous. */
static int find_decimals(const pieces *p, bool whole) {
  int last = p->groups - 1;
  if (last == 0) return 0;
  char mark = p->before[last];
  bool thousands = are_thousands(p, p->groups);
  bool can_be_decimal = mark == '.' || mark == ',';
  if (last > 1) {
    if (thousands) return 0;
    return can_be_decimal && p->before[1] != mark && are_thousands(p, last) ? p->length[last] : -1;
  }
  if (mark == '.') return p->length[last]; /* as Python prints it */
  if (!can_be_decimal) return thousands ? 0 : -1;
  if (!thousands) return p->length[last];
  return whole ? 0 : -1;
}

static hk_number read_number(const char **text, bool whole, int *decimals, double *value) {
  pieces p;
  if (!take_pieces(&p, text)) return HK_NUMBER_NONE;
  *decimals = p.broken ? -1 : find_decimals(&p, whole);
  if (*decimals < 0) return HK_NUMBER_BAD;
  /* Written without a decimal point, which depends on the locale: the exponent is reduced instead.
   */
  long exponent = (*p.exponent ? strtol(p.exponent + 1, NULL, 10) : 0) - *decimals;
  char clean[MOST_DIGITS + 32];
  snprintf(clean, sizeof clean, "%.*se%ld", (int)p.n, p.digits, exponent);
  *value = strtod(clean, NULL);
  return *value <= 1e18 ? HK_NUMBER_OK : HK_NUMBER_BAD;
}

hk_number hk_log_real(const char **text, double *value) {
  int decimals;
  return read_number(text, false, &decimals, value);
}

hk_number hk_log_fixed(const char **text, double *value) {
  int decimals;
  hk_number got = read_number(text, false, &decimals, value);
  return got == HK_NUMBER_OK && decimals == 0 ? HK_NUMBER_BAD : got;
}

hk_number hk_log_count(const char **text, double *value) {
  int decimals;
  hk_number got = read_number(text, true, &decimals, value);
  bool exact =
      got == HK_NUMBER_OK && *value < 9007199254740992.0 && *value == (double)(long long)*value;
  return got == HK_NUMBER_OK && !exact ? HK_NUMBER_BAD : got;
}
