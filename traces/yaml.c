/* SPDX-License-Identifier: GPL-3.0-or-later */
/* libyaml's events become values of cJSON. libyaml leaves the meaning of plain scalars to us. */
#include "traces/yaml.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "core/base/names.h"

#define MOST_LEVELS 8

typedef struct {
  const char *text, *name;
  yaml_parser_t parser;
  yaml_event_t event; /* the last one */
  hk_error *err;
} reader;

/* At the event's line. */
#define WRONG(r, ...) \
  (hk_fail((r)->err, HK_INPUT, __VA_ARGS__), wrong_line(r, (r)->event.start_mark.line))

static hk_status wrong_line(const reader *r, size_t line) {
  return hk_fail_prefix(r->err, "%s: line %zu", r->name, line + 1);
}

static hk_status no_memory(const reader *r) {
  return hk_fail_memory(r->err, sizeof(cJSON), "a configuration");
}

static hk_status next(reader *r) {
  yaml_event_delete(&r->event);
  if (yaml_parser_parse(&r->parser, &r->event)) return HK_OK;
  const yaml_parser_t *p = &r->parser;
  if (p->error == YAML_MEMORY_ERROR) return no_memory(r);
  size_t line = p->problem_mark.line;
  if (p->error == YAML_READER_ERROR) { /* this one has no mark */
    for (size_t i = line = 0; i < p->problem_offset; i++) line += r->text[i] == '\n';
  }
  hk_fail(r->err, HK_INPUT, "not YAML: %s", p->problem ? p->problem : "cannot be read");
  return wrong_line(r, line);
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
static cJSON *scalar(const char *text, bool plain) {
  static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
  static const char *const yes[] = {"true", "True", "TRUE", "yes", "Yes", "on", NULL};
  static const char *const no[] = {"false", "False", "FALSE", "no", "No", "off", NULL};
  double number;
  if (!plain) return cJSON_CreateString(text);
  if (hk_is_one_of(text, nulls)) return cJSON_CreateNull();
  if (hk_is_one_of(text, yes)) return cJSON_CreateTrue();
  if (hk_is_one_of(text, no)) return cJSON_CreateFalse();
  return is_number(text, &number) ? cJSON_CreateNumber(number) : cJSON_CreateString(text);
}

/* Refuses anchors, aliases, tags and NUL bytes of the event. */
static hk_status check_plain(const reader *r) {
  const yaml_event_t *e = &r->event;
  const bool is_scalar = e->type == YAML_SCALAR_EVENT;
  if (e->type == YAML_ALIAS_EVENT || (is_scalar && (e->data.scalar.anchor || e->data.scalar.tag)) ||
      (e->type == YAML_MAPPING_START_EVENT &&
       (e->data.mapping_start.anchor || e->data.mapping_start.tag)) ||
      (e->type == YAML_SEQUENCE_START_EVENT &&
       (e->data.sequence_start.anchor || e->data.sequence_start.tag)))
    return WRONG(r, "expected a plain value, got an anchor, an alias or a tag");
  if (is_scalar && strlen((const char *)e->data.scalar.value) != e->data.scalar.length)
    return WRONG(r, "a NUL byte in a text");
  return HK_OK;
}

static hk_status read_value(reader *r, int level, cJSON **value);

/* Reads the key that the event is, and its value. */
static hk_status read_pair(reader *r, int level, cJSON *object) {
  HK_TRY(check_plain(r));
  if (r->event.type != YAML_SCALAR_EVENT) return WRONG(r, "expected a key");
  char *key = strdup((const char *)r->event.data.scalar.value);
  if (!key) return no_memory(r);
  hk_status status = HK_OK;
  cJSON *value = NULL;
  if (cJSON_GetObjectItemCaseSensitive(object, key)) status = WRONG(r, "key '%.80s' again", key);
  if (status == HK_OK) status = next(r);
  if (status == HK_OK) status = read_value(r, level, &value);
  if (status == HK_OK && !cJSON_AddItemToObject(object, key, value)) {
    cJSON_Delete(value);
    status = no_memory(r);
  }
  free(key);
  return status;
}

static hk_status read_item(reader *r, int level, cJSON *array) {
  cJSON *value = NULL;
  HK_TRY(read_value(r, level, &value));
  cJSON_AddItemToArray(array, value);
  return HK_OK;
}

/* Reads the value that begins with the event. NULL after a failure. */
static hk_status read_value(reader *r, int level, cJSON **value) {
  HK_TRY(check_plain(r));
  const yaml_event_type_t type = r->event.type;
  const bool mapping = type == YAML_MAPPING_START_EVENT;
  if (type == YAML_SCALAR_EVENT) {
    *value = scalar((const char *)r->event.data.scalar.value,
                    r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE);
    return *value ? HK_OK : no_memory(r);
  }
  if (level == MOST_LEVELS) return WRONG(r, "more than %d levels", MOST_LEVELS);
  *value = mapping ? cJSON_CreateObject() : cJSON_CreateArray();
  hk_status status = *value ? next(r) : no_memory(r);
  while (status == HK_OK && r->event.type != YAML_MAPPING_END_EVENT &&
         r->event.type != YAML_SEQUENCE_END_EVENT) {
    status = mapping ? read_pair(r, level + 1, *value) : read_item(r, level + 1, *value);
    if (status == HK_OK) status = next(r);
  }
  if (status != HK_OK) {
    cJSON_Delete(*value);
    *value = NULL;
  }
  return status;
}

/* One document, which is a mapping. */
static hk_status read_stream(reader *r, cJSON **root) {
  HK_TRY(next(r)); /* the stream's start */
  HK_TRY(next(r));
  if (r->event.type == YAML_STREAM_END_EVENT)
    return hk_fail(r->err, HK_INPUT, "%s: holds no key", r->name);
  HK_TRY(next(r));
  if (r->event.type != YAML_MAPPING_START_EVENT)
    return WRONG(r,
                 "expected KEY: VALUE; hocket reads JSON, and the YAML that 'accelerate config' "
                 "writes");
  HK_TRY(read_value(r, 0, root));
  HK_TRY(next(r)); /* the document's end */
  HK_TRY(next(r));
  if (r->event.type != YAML_STREAM_END_EVENT) return WRONG(r, "another document");
  return HK_OK;
}

hk_status hk_yaml_parse(const char *text, size_t length, const char *name, cJSON **root,
                        hk_error *err) {
  reader r = {.text = text, .name = name, .err = err};
  *root = NULL;
  if (!yaml_parser_initialize(&r.parser)) return no_memory(&r);
  yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
  const hk_status status = read_stream(&r, root);
  yaml_event_delete(&r.event);
  yaml_parser_delete(&r.parser);
  if (status == HK_OK) return HK_OK;
  cJSON_Delete(*root);
  *root = NULL;
  return status;
}
