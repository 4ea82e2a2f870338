/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the texts, sets the values, derives the others, checks them together, and writes origin
 * and source of what has changed to the machine's document. */
#include "core/machine/machine_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/names.h"
#include "core/machine/machine_derive.h"
#include "core/machine/machine_error.h"

#define MAX_KEY    96
#define MAX_SOURCE 300
#define BEFORE     "before_set"

typedef struct {
  const hk_quantity_info *info;
  size_t index;   /* of info in hk_quantity_list */
  char operation; /* '=', '*', '/', '+' or '-' */
  double operand;
} setting;

/* -- Keys -------------------------------------------------------------------------------------- */

static const char *const unit_suffixes[] = {"_bytes_per_s", ".bytes_per_s", "_params_per_s",
                                            "_flops_per_s", "_bytes",       "_ns"};

/* Length of `key` without the suffix for its unit. */
static size_t short_length(const char *key) {
  const size_t length = strlen(key);
  for (size_t i = 0; i < sizeof unit_suffixes / sizeof *unit_suffixes; i++) {
    const size_t suffix = strlen(unit_suffixes[i]);
    if (suffix < length && strcmp(key + length - suffix, unit_suffixes[i]) == 0)
      return length - suffix;
  }
  return length;
}

static bool names(const char *key, const char *typed) {
  const size_t length = strlen(typed);
  return strcmp(key, typed) == 0 ||
         (length == short_length(key) && strncmp(key, typed, length) == 0);
}

/* The key that is most similar to `typed`, with or without its unit; NULL: none is. */
static const char *nearest_key(const char *typed) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  char shorts[HK_QUANTITY_COUNT][MAX_KEY];
  const char *keys[HK_QUANTITY_COUNT], *cut[HK_QUANTITY_COUNT];
  for (size_t i = 0; i < n; i++) {
    keys[i] = list[i].key;
    snprintf(shorts[i], MAX_KEY, "%.*s", (int)short_length(keys[i]), keys[i]);
    cut[i] = shorts[i];
  }
  const char *nearest = hk_nearest(typed, cut, n);
  for (size_t i = 0; i < n && nearest; i++)
    if (cut[i] == nearest) return keys[i];
  return hk_nearest(typed, keys, n);
}

static hk_status find(const char *typed, setting *out, hk_error *err) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    if (!names(list[i].key, typed)) continue;
    out->info = &list[i];
    out->index = i;
    return HK_OK;
  }
  const char *nearest = nearest_key(typed);
  return hk_fail(
      err, HK_INPUT, "quantity '%s' is not known; %s%s%s'hocket machine show' lists those that are",
      typed, nearest ? "did you mean '" : "", nearest ? nearest : "", nearest ? "'? " : "");
}

/* -- Values ------------------------------------------------------------------------------------ */

/* Reads k, M, G, T or P, or Ki, Mi, Gi, Ti or Pi, and moves *text behind it. */
static double read_prefix(const char **text) {
  static const char letters[] = "kMGTP";
  const char *at = **text ? strchr(letters, strncmp(*text, "Ki", 2) == 0 ? 'k' : **text) : NULL;
  if (!at) return 1;
  const bool binary = (*text)[1] == 'i';
  *text += binary ? 2 : 1;
  return pow(binary ? 1024 : 1000, (double)(at - letters + 1));
}

/* The factor of what follows a number: "", a prefix, a unit, or both. 0: not understood. */
static double read_suffix(const char *text, const char *unit) {
  static const char *const bandwidth[] = {"", "B/s", NULL}, *const size[] = {"", "B", NULL};
  static const char *const params[] = {"", "P/s", "params/s", NULL};
  static const char *const flops[] = {"", "F/s", "FLOP/s", "flops/s", NULL};
  while (*text == ' ') text++;
  if (*text == '\0') return 1;
  if (strcmp(unit, "ns") == 0) {
    if (strcmp(text, "ns") == 0) return 1;
    if (strcmp(text, "us") == 0) return 1e3;
    if (strcmp(text, "ms") == 0) return 1e6;
    return strcmp(text, "s") == 0 ? 1e9 : 0;
  }
  const char *const *words = strcmp(unit, "B/s") == 0   ? bandwidth
                             : strcmp(unit, "B") == 0   ? size
                             : strcmp(unit, "P/s") == 0 ? params
                             : strcmp(unit, "F/s") == 0 ? flops
                                                        : NULL;
  if (!words) return 0;
  if (hk_is_one_of(text, words)) return 1;
  const double factor = read_prefix(&text);
  return hk_is_one_of(text, words) ? factor : 0;
}

static hk_status read_operand(const char *text, setting *s, hk_error *err) {
  char *end;
  const bool factor = s->operation == '*' || s->operation == '/';
  const double number = strtod(text, &end);
  /* strtod also reads "nan", "inf" and hexadecimal. */
  const bool plain = end > text && strspn(text, "0123456789.eE+- ") >= (size_t)(end - text);
  const double scale = plain ? read_suffix(end, factor ? "" : s->info->unit) : 0;
  s->operand = number * scale;
  if (scale > 0 && isfinite(s->operand) && (s->operand > 0 || !factor)) return HK_OK;
  if (factor)
    return hk_fail(err, HK_INPUT, "expected a factor, a number above 0, got '%.40s'", text);
  if (strcmp(s->info->unit, "1") == 0)
    return hk_fail(err, HK_INPUT, "expected a number, got '%.40s'", text);
  const char *unit = s->info->unit;
  const size_t length = strlen(text);
  const bool percent = length > 0 && text[length - 1] == '%';
  const bool bits = unit[0] == 'B' && strchr(text, 'b') != NULL;
  return hk_fail(err, HK_INPUT, "expected a number of %s, such as %s, got '%.40s'%s", unit,
                 strcmp(unit, "ns") == 0  ? "20us"
                 : strcmp(unit, "B") == 0 ? "80GiB"
                                          : "64G",
                 text,
                 percent ? "; KEY*=1.1 is 10 % more"
                 : bits  ? "; b is bits, of which a byte (B) has 8"
                         : "");
}

/* Cuts blanks at both ends; returns the first other character. */
static char *trim(char *text) {
  while (*text == ' ') text++;
  size_t length = strlen(text);
  while (length > 0 && text[length - 1] == ' ') text[--length] = '\0';
  return text;
}

static hk_status parse(const char *text, setting *out, hk_error *err) {
  const char *equals = strchr(text, '=');
  char key[MAX_KEY], *end;
  if (!equals || equals == text || equals - text >= MAX_KEY)
    return hk_fail(err, HK_INPUT, "expected KEY=VALUE or KEY*=FACTOR, such as dram*=2");
  memcpy(key, text, (size_t)(equals - text));
  key[equals - text] = '\0';
  end = key + strlen(key) - 1;
  *out = (setting){.operation = strchr("*/+-", *end) ? *end : '='};
  if (out->operation != '=') *end = '\0';
  HK_TRY(find(trim(key), out, err));
  for (equals++; *equals == ' ';) equals++;
  return read_operand(equals, out, err);
}

static double result_of(const setting *s, double value) {
  switch (s->operation) {
    case '*':
      return value * s->operand;
    case '/':
      return value / s->operand;
    case '+':
      return value + s->operand;
    case '-':
      return value - s->operand;
    default:
      return s->operand;
  }
}

/* -- Documents --------------------------------------------------------------------------------- */

static cJSON *quantities_of(hk_machine *machine) {
  if (!machine->document) machine->document = cJSON_CreateObject();
  cJSON *list = cJSON_GetObjectItemCaseSensitive(machine->document, "quantities");
  return list || !machine->document ? list
                                    : cJSON_AddObjectToObject(machine->document, "quantities");
}

/* The entry as it was before the first setting, for BEFORE. The old entry's strings stay where they
 * are, because sources point to them. */
static cJSON *entry_before(cJSON *list, const hk_quantity_info *info, const hk_quantity *before) {
  cJSON *old = cJSON_DetachItemFromObjectCaseSensitive(list, info->key);
  if (old && cJSON_GetObjectItemCaseSensitive(old, BEFORE)) {
    cJSON *first = cJSON_DetachItemFromObjectCaseSensitive(old, BEFORE);
    cJSON_Delete(old);
    return first;
  }
  if (old) return old;
  old = cJSON_CreateObject();
  if (old && cJSON_AddNumberToObject(old, "value", before->value) &&
      cJSON_AddStringToObject(old, "origin", hk_origin_name(before->origin)) &&
      cJSON_AddStringToObject(old, "source", before->source))
    return old;
  cJSON_Delete(old);
  return NULL;
}

static hk_status write_entry(hk_machine *machine, const hk_quantity_info *info,
                             const hk_quantity *before, hk_origin origin, const char *source,
                             hk_error *err) {
  cJSON *list = quantities_of(machine), *kept = NULL, *entry = NULL;
  hk_quantity *quantity = hk_machine_quantity(machine, info);
  if (list) kept = entry_before(list, info, before);
  if (kept) entry = cJSON_AddObjectToObject(list, info->key);
  if (!entry || !cJSON_AddItemToObject(entry, BEFORE, kept)) {
    cJSON_Delete(kept);
    return hk_fail_memory(err, sizeof(cJSON), "a machine profile");
  }
  cJSON *text = cJSON_AddStringToObject(entry, "source", source);
  if (!text || !cJSON_AddNumberToObject(entry, "value", quantity->value) ||
      !cJSON_AddStringToObject(entry, "origin", hk_origin_name(origin)) ||
      !hk_quantity_write_error(quantity, NULL, entry))
    return hk_fail_memory(err, sizeof(cJSON), "a machine profile");
  quantity->origin = origin;
  quantity->source = text->valuestring;
  return HK_OK;
}

bool hk_machine_before_set(const hk_machine *machine, const hk_quantity_info *info, double *value) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(machine->document, "quantities");
  const cJSON *entry = cJSON_GetObjectItemCaseSensitive(list, info->key);
  const cJSON *item =
      cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(entry, BEFORE), "value");
  if (!cJSON_IsNumber(item)) return false;
  *value = item->valuedouble;
  return true;
}

/* -- Setting ----------------------------------------------------------------------------------- */

static hk_status set_value(hk_machine *machine, const setting *s, const char *text, hk_error *err) {
  hk_quantity *quantity = hk_machine_quantity(machine, s->info);
  const double value = result_of(s, quantity->value);
  if (value >= s->info->least && value <= s->info->most) {
    quantity->value = value;
    return HK_OK;
  }
  const char *unit = s->info->unit;
  const double in_giga = value * 1e9;
  const bool giga = s->operation == '=' && value > 0 && value < s->info->least &&
                    in_giga >= s->info->least && in_giga <= s->info->most;
  char hint[64] = "";
  if (giga) snprintf(hint, sizeof hint, "; did you mean %.6gG%s?", value, unit);
  return hk_fail(err, HK_INPUT, "--set %.120s: '%s' may be %.6g to %.6g%s%s, not %.6g%s", text,
                 s->info->key, s->info->least, s->info->most, strcmp(unit, "1") == 0 ? "" : " ",
                 strcmp(unit, "1") == 0 ? "" : unit, value, hint);
}

hk_status hk_machine_set_check(const char *text, hk_error *err) {
  hk_machine none = {0};
  setting s;
  if (parse(text, &s, err) != HK_OK) return hk_fail_prefix(err, "--set %.120s", text);
  return s.operation == '=' ? set_value(&none, &s, text, err) : HK_OK;
}

static hk_status parse_all(const char *const *texts, size_t n, setting *settings, size_t *which,
                           hk_error *err) {
  for (size_t i = 0; i < n; i++) {
    if (parse(texts[i], &settings[i], err) != HK_OK)
      return hk_fail_prefix(err, "--set %.120s", texts[i]);
    size_t *before = &which[settings[i].index];
    if (*before > 0)
      return hk_fail(err, HK_INPUT, "'%s' is set twice: --set %.120s and --set %.120s",
                     settings[i].info->key, texts[*before - 1], texts[i]);
    *before = i + 1;
  }
  return HK_OK;
}

static hk_status write_changes(hk_machine *machine, const hk_machine *before,
                               const char *const *texts, const setting *settings, size_t n,
                               const hk_derived *derived, size_t n_derived, hk_error *err) {
  char source[MAX_SOURCE];
  for (size_t i = 0; i < n; i++) {
    const hk_quantity *old = hk_machine_quantity_const(before, settings[i].info);
    snprintf(source, sizeof source, "--set %.120s; before: %.6g, %s", texts[i], old->value,
             hk_origin_name(old->origin));
    /* A given value is exact; a multiple is as uncertain as what it is a multiple of. */
    if (settings[i].operation == '=') hk_machine_quantity(machine, settings[i].info)->error = 0;
    HK_TRY(write_entry(machine, settings[i].info, old, HK_ORIGIN_SET, source, err));
  }
  for (size_t i = 0; i < n_derived; i++) {
    const hk_quantity *old = hk_machine_quantity_const(before, derived[i].info);
    const double value = hk_machine_quantity(machine, derived[i].info)->value;
    if (derived[i].before > 0)
      snprintf(source, sizeof source, "%.4g x, follows %s; before: %.6g, %s",
               value / derived[i].before, derived[i].follows, old->value,
               hk_origin_name(old->origin));
    else
      snprintf(source, sizeof source, "follows %s; before: %.6g, %s", derived[i].follows,
               old->value, hk_origin_name(old->origin));
    HK_TRY(write_entry(machine, derived[i].info, old, HK_ORIGIN_DERIVED, source, err));
  }
  return HK_OK;
}

hk_status hk_machine_set(hk_machine *machine, const char *const *texts, size_t n, hk_error *err) {
  setting settings[HK_QUANTITY_COUNT];
  size_t which[HK_QUANTITY_COUNT] = {0}; /* 1 + index of the text that sets the quantity */
  bool given[HK_QUANTITY_COUNT];
  hk_derived derived[HK_QUANTITY_COUNT];
  if (n == 0) return HK_OK;
  if (n > HK_QUANTITY_COUNT)
    return hk_fail(err, HK_INPUT, "--set is given %zu times; a machine has %d quantities", n,
                   HK_QUANTITY_COUNT);
  HK_TRY(parse_all(texts, n, settings, which, err));
  const hk_machine before = *machine;
  for (size_t i = 0; i < n; i++) HK_TRY(set_value(machine, &settings[i], texts[i], err));
  for (size_t i = 0; i < HK_QUANTITY_COUNT; i++) given[i] = which[i] > 0;
  const size_t n_derived = hk_machine_derive(machine, &before, given, derived);
  if (hk_machine_check(machine, err) != HK_OK) return hk_fail_prefix(err, "after --set");
  return write_changes(machine, &before, texts, settings, n, derived, n_derived, err);
}
