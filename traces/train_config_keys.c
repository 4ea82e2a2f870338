/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What the readers of training frameworks' configurations share: defaults, keys, notes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/names.h"
#include "traces/train_config_internal.h"

hk_train_config hk_train_config_default(hk_framework framework) {
  return (hk_train_config){.framework = framework,
                           .pinned = true,
                           .ratio = 1,
                           .subgroup_numel = framework == HK_FRAMEWORK_FSDP ? 0 : 1000000000,
                           .checkpoint = -1};
}

void hk_config_note(hk_train_config *config, const char *format, ...) {
  char text[sizeof config->notes[0]];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (config->n_notes < HK_MOST_CONFIG_NOTES)
    memcpy(config->notes[config->n_notes++], text, sizeof text);
}

void hk_config_drop_auto(cJSON *object) {
  cJSON *next = NULL;
  for (cJSON *member = object ? object->child : NULL; member; member = next) {
    next = member->next;
    const bool is_auto = cJSON_IsString(member) && strcmp(member->valuestring, "auto") == 0;
    if (is_auto || cJSON_IsNull(member)) cJSON_Delete(cJSON_DetachItemViaPointer(object, member));
  }
}

/* A feature's value: false, 0, "", "none", {}, [] and {"enabled": false} mean that it is off. */
static bool is_on(const cJSON *value) {
  if (cJSON_IsBool(value)) return cJSON_IsTrue(value);
  if (cJSON_IsNumber(value)) return value->valuedouble != 0;
  if (cJSON_IsString(value))
    return *value->valuestring != '\0' && strcmp(value->valuestring, "none") != 0;
  if (!cJSON_IsObject(value)) return value->child != NULL;
  const cJSON *enabled = cJSON_GetObjectItemCaseSensitive(value, "enabled");
  return enabled ? is_on(enabled) : value->child != NULL;
}

#define MOST_KEYS 96

/* All keys that are known. */
typedef struct {
  char words[2048]; /* that `names` points into */
  const char *names[MOST_KEYS + 1];
  size_t n;
} known;

static void list_known(const char *keys, const hk_config_feature *features, known *k) {
  char *rest = NULL;
  snprintf(k->words, sizeof k->words, "%s", keys);
  for (char *word = strtok_r(k->words, " ", &rest); word && k->n < MOST_KEYS;
       word = strtok_r(NULL, " ", &rest))
    k->names[k->n++] = word;
  for (; features && features->name && k->n < MOST_KEYS; features++)
    k->names[k->n++] = features->name;
}

static hk_status unknown_key(hk_train_config *config, const char *key, const char *where,
                             const known *k, bool strict, hk_error *err) {
  const char *near = hk_nearest(key, k->names, k->n), *in = *where ? " in " : "";
  char instead[120] = "";
  if (near) snprintf(instead, sizeof instead, "; did you mean '%s'?", near);
  if (strict) return hk_fail(err, HK_INPUT, "key '%.80s' is not known%s", key, instead);
  hk_config_note(config, "key '%.60s'%s%s is not known and was ignored%s", key, in, where, instead);
  return HK_OK;
}

hk_status hk_config_check_keys(hk_train_config *config, const cJSON *object, const char *where,
                               const char *keys, const hk_config_feature *features, bool strict,
                               hk_error *err) {
  known k = {.n = 0};
  list_known(keys, features, &k);
  const cJSON *member = NULL;
  cJSON_ArrayForEach(member, object) {
    if (!hk_is_one_of(member->string, k.names))
      HK_TRY(unknown_key(config, member->string, where, &k, strict, err));
    for (const hk_config_feature *f = features; f && f->name; f++)
      if (strcmp(member->string, f->name) == 0 && is_on(member))
        hk_config_note(config, "%s%s%s is not simulated: %s", where, *where ? "." : "", f->name,
                       f->note);
  }
  return HK_OK;
}
