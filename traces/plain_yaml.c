/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A line at a time. `open` holds the mappings that the next line may belong to. */
#include "traces/plain_yaml.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LEVELS 8
#define MOST_LINE   1024

typedef struct {
  const char *name;
  int line;
  struct {
    int indent; /* of its keys; -1: not known before its first key */
    cJSON *object;
  } open[MOST_LEVELS];
  int levels;
  cJSON *pending; /* the null of the last "KEY:", which a deeper line turns into a mapping */
  hk_error *err;
} reader;

#define WRONG(r, ...) (hk_fail((r)->err, HK_INPUT, __VA_ARGS__), wrong_line(r))

static hk_status wrong_line(const reader *r) {
  return hk_fail_prefix(r->err, "%s: line %d", r->name, r->line);
}

static hk_status no_memory(const reader *r) {
  return hk_fail_memory(r->err, sizeof(cJSON), "a configuration");
}

/* Removes a comment and trailing blanks. A quoted '#' is kept. */
static void trim(char *text) {
  char quote = '\0';
  for (char *c = text; *c; c++) {
    if (quote) {
      if (*c == quote) quote = '\0';
    } else if (*c == '"' || *c == '\'') {
      quote = *c;
    } else if (*c == '#' && (c == text || c[-1] == ' ')) {
      *c = '\0';
      break;
    }
  }
  size_t length = strlen(text);
  while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\r')) text[--length] = '\0';
}

/* Takes the quotes off. False: the text is not one quoted string. */
static bool unquote(char *text) {
  const size_t length = strlen(text);
  if (length < 2 || text[length - 1] != text[0]) return false;
  if (memchr(text + 1, text[0], length - 2) || strchr(text, '\\')) return false;
  memmove(text, text + 1, length - 2);
  text[length - 2] = '\0';
  return true;
}

static bool is_one_of(const char *text, const char *const *words) {
  for (; *words; words++)
    if (strcmp(text, *words) == 0) return true;
  return false;
}

/* A decimal number as YAML 1.1 has it; "1e9", "0x10" and "1_000" are text. */
static bool is_number(const char *text, double *value) {
  char *end = NULL;
  const size_t sign = *text == '-' || *text == '+';
  const size_t digits = strspn(text + sign, "0123456789");
  if (digits == 0 || text[sign + digits + strspn(text + sign + digits, "0123456789.eE+-")] != '\0')
    return false;
  if (text[sign + digits] != '\0' && text[sign + digits] != '.') return false;
  *value = strtod(text, &end);
  return *end == '\0' && isfinite(*value);
}

/* NULL: out of memory. */
static cJSON *scalar(const char *text) {
  static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
  static const char *const yes[] = {"true", "True", "TRUE", "yes", "Yes", "on", NULL};
  static const char *const no[] = {"false", "False", "FALSE", "no", "No", "off", NULL};
  double number;
  if (is_one_of(text, nulls)) return cJSON_CreateNull();
  if (is_one_of(text, yes)) return cJSON_CreateTrue();
  if (is_one_of(text, no)) return cJSON_CreateFalse();
  if (strcmp(text, "{}") == 0) return cJSON_CreateObject();
  if (strcmp(text, "[]") == 0) return cJSON_CreateArray();
  return is_number(text, &number) ? cJSON_CreateNumber(number) : cJSON_CreateString(text);
}

static hk_status read_value(const reader *r, char *text, cJSON **value) {
  if (*text == '"' || *text == '\'') {
    if (!unquote(text))
      return WRONG(r, "expected a string between quotes, without escapes, got %.80s", text);
    *value = cJSON_CreateString(text);
  } else if (strchr("[{&*!|>%@`", *text) && *text != '\0' && strcmp(text, "[]") != 0 &&
             strcmp(text, "{}") != 0) {
    return WRONG(r,
                 "expected a plain value, got '%.80s'; hocket reads what 'accelerate config' "
                 "writes",
                 text);
  } else {
    *value = scalar(text);
  }
  return *value ? HK_OK : no_memory(r);
}

/* Closes the mappings that end before a line of this indent, or opens the pending one. */
static hk_status enter(reader *r, int indent) {
  const int top = r->levels - 1;
  if (r->open[top].indent < 0) r->open[top].indent = indent;
  if (r->pending && indent > r->open[top].indent) {
    if (r->levels == MOST_LEVELS) return WRONG(r, "mappings of more than %d levels", MOST_LEVELS);
    r->pending->type = (r->pending->type & ~0xff) | cJSON_Object;
    r->open[r->levels].indent = indent;
    r->open[r->levels++].object = r->pending;
  }
  r->pending = NULL;
  while (r->levels > 1 && indent < r->open[r->levels - 1].indent) r->levels--;
  if (indent != r->open[r->levels - 1].indent)
    return WRONG(r, "indented by %d, which begins no key above it", indent);
  return HK_OK;
}

/* Splits "KEY: VALUE". */
static hk_status split(const reader *r, char *text, char **value) {
  char *colon = strstr(text, ": ");
  const size_t length = strlen(text);
  if (!colon && length > 0 && text[length - 1] == ':') colon = text + length - 1;
  if (!colon || colon == text)
    return WRONG(r,
                 "expected KEY: VALUE, got '%.80s'; hocket reads JSON, and the YAML that "
                 "'accelerate config' writes",
                 text);
  *colon = '\0';
  *value = colon + 1 + strspn(colon + 1, " ");
  if ((*text == '"' || *text == '\'') && !unquote(text))
    return WRONG(r, "expected a key, got %.80s", text);
  return HK_OK;
}

static hk_status read_line(reader *r, char *text) {
  const int indent = (int)strspn(text, " ");
  char *at = text + indent, *value_text = at;
  trim(at);
  if (*at == '\0' || (strcmp(at, "---") == 0 && r->open[0].indent < 0)) return HK_OK;
  if (*at == '\t') return WRONG(r, "indented with a tab");
  if (*at == '-' && (at[1] == ' ' || at[1] == '\0'))
    return WRONG(r, "a list, which hocket does not read");
  HK_TRY(enter(r, indent));
  HK_TRY(split(r, at, &value_text));
  cJSON *object = r->open[r->levels - 1].object, *value = NULL;
  if (cJSON_GetObjectItemCaseSensitive(object, at)) return WRONG(r, "key '%.80s' again", at);
  const bool empty = *value_text == '\0';
  HK_TRY(read_value(r, value_text, &value));
  if (!cJSON_AddItemToObject(object, at, value)) {
    cJSON_Delete(value);
    return no_memory(r);
  }
  if (empty) r->pending = value;
  return HK_OK;
}

static hk_status read_lines(reader *r, const char *text, size_t length) {
  char line[MOST_LINE];
  for (size_t at = 0; at < length;) {
    const char *end = memchr(text + at, '\n', length - at);
    const size_t n = end ? (size_t)(end - text) - at : length - at;
    r->line++;
    if (n >= sizeof line) return WRONG(r, "longer than %d bytes", MOST_LINE - 1);
    if (memchr(text + at, '\0', n)) return WRONG(r, "a NUL byte; this is not text");
    memcpy(line, text + at, n);
    line[n] = '\0';
    HK_TRY(read_line(r, line));
    at += n + 1;
  }
  return HK_OK;
}

hk_status hk_plain_yaml_parse(const char *text, size_t length, const char *name, cJSON **root,
                              hk_error *err) {
  reader r = {.name = name, .levels = 1, .err = err};
  r.open[0].indent = -1;
  *root = r.open[0].object = cJSON_CreateObject();
  if (!*root) return no_memory(&r);
  hk_status status = read_lines(&r, text, length);
  if (status == HK_OK && !(*root)->child) status = hk_fail(err, HK_INPUT, "%s: holds no key", name);
  if (status != HK_OK) {
    cJSON_Delete(*root);
    *root = NULL;
  }
  return status;
}
