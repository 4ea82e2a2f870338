/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The tables of share/parts: loading them, finding a part by its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/parts/parts.h"
#include "core/base/json.h"
#include "core/base/names.h"

#define PARTS_SCHEMA    "hocket.parts/1"
#define TRANSFER_SCHEMA "hocket.transfer/1"
#define MOST_NAMES      1024 /* names and aliases of a kind */

static const struct {
  const char *name, *file;
} kinds[HK_PART_KINDS] = {
    [HK_PART_GPU] = {"gpu", "gpus"},
    [HK_PART_CPU] = {"cpu", "cpus"},
    [HK_PART_MEMORY] = {"memory", "memory"},
    [HK_PART_LINK] = {"link", "links"},
};

const char *hk_part_kind_name(hk_part_kind kind) {
  return kinds[kind].name;
}

hk_status hk_part_kind_of(const char *name, hk_part_kind *kind, hk_error *err) {
  for (int i = 0; i < HK_PART_KINDS; i++) {
    if (strcmp(name, kinds[i].name) != 0) continue;
    *kind = (hk_part_kind)i;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "there are no parts of the kind '%.60s'; the kinds are gpu, cpu, "
                 "memory and link",
                 name);
}

/* How the figures of a part were compared with its document; the tables' "fields" explain them. */
static const char *const ways[] = {"document", "copy", "quotation", "formula", "no"};

static hk_status check_way(const char *way, hk_error *err) {
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
    if (strcmp(way, ways[i]) == 0) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "key 'checked': '%.40s' is not document, copy, quotation, formula or no", way);
}

/* A part names its document, says how it was compared, and names own members as not compared. */
static hk_status check_part(const cJSON *part, hk_error *err) {
  const char *sheet, *way;
  const cJSON *member = NULL;
  HK_TRY(hk_json_string(part, "sheet", &sheet, err));
  HK_TRY(hk_json_string(part, "checked", &way, err));
  HK_TRY(check_way(way, err));
  cJSON_ArrayForEach(member, cJSON_GetObjectItemCaseSensitive(part, "unchecked")) {
    const char *name = cJSON_GetStringValue(member);
    if (!name || !cJSON_GetObjectItemCaseSensitive(part, name))
      return hk_fail(err, HK_INPUT, "key 'unchecked': '%.60s' is no member of the part",
                     name ? name : "");
  }
  return HK_OK;
}

static hk_status check_parts(const cJSON *root, const char *file, hk_error *err) {
  const cJSON *part = NULL;
  cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(root, "parts")) {
    if (check_part(part, err) != HK_OK)
      return hk_fail_prefix(err, "parts/%s.json: '%.60s'", file, part->string);
  }
  return HK_OK;
}

static hk_status load(const char *file, const char *schema, const char *member, cJSON **root,
                      hk_error *err) {
  char path[4096];
  const char *found;
  const cJSON *entries;
  const int length = snprintf(path, sizeof path, "%s/parts/%s.json", hk_share_dir(), file);
  if (length < 0 || (size_t)length >= sizeof path)
    return hk_fail(err, HK_INPUT, "the path of the share folder is too long");
  HK_TRY(hk_json_load(path, root, err));
  hk_status status = hk_json_string(*root, "schema", &found, err);
  if (status == HK_OK && strcmp(found, schema) != 0)
    status = hk_fail(err, HK_INPUT, "key 'schema': expected \"%s\", got \"%.60s\"", schema, found);
  if (status == HK_OK) status = hk_json_object(*root, member, &entries, err);
  for (const cJSON *e = status == HK_OK ? entries->child : NULL; e; e = e->next)
    if (!cJSON_IsObject(e))
      return hk_fail(err, HK_INPUT, "%s: '%.60s' is not an object", path, e->string);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", path);
}

hk_status hk_parts_load(hk_parts *parts, hk_error *err) {
  *parts = (hk_parts){0};
  hk_status status = load("transfer", TRANSFER_SCHEMA, "efficiencies", &parts->transfer, err);
  for (int i = 0; status == HK_OK && i < HK_PART_KINDS; i++) {
    status = load(kinds[i].file, PARTS_SCHEMA, "parts", &parts->tables[i], err);
    if (status == HK_OK) status = check_parts(parts->tables[i], kinds[i].file, err);
  }
  if (status != HK_OK) hk_parts_free(parts);
  return status;
}

void hk_parts_free(hk_parts *parts) {
  for (int i = 0; i < HK_PART_KINDS; i++) cJSON_Delete(parts->tables[i]);
  cJSON_Delete(parts->transfer);
  *parts = (hk_parts){0};
}

const cJSON *hk_parts_of(const hk_parts *parts, hk_part_kind kind) {
  return cJSON_GetObjectItemCaseSensitive(parts->tables[kind], "parts");
}

static size_t add_name(const char **names, size_t n, const char *name) {
  if (name && n < MOST_NAMES) names[n++] = name;
  return n;
}

/* The names and aliases of all parts. */
static size_t names_of(const cJSON *list, const char **names) {
  size_t n = 0;
  for (const cJSON *part = list->child; part; part = part->next) {
    n = add_name(names, n, part->string);
    const cJSON *alias = NULL;
    cJSON_ArrayForEach(alias, cJSON_GetObjectItemCaseSensitive(part, "aliases")) n =
        add_name(names, n, cJSON_GetStringValue(alias));
  }
  return n;
}

static bool has_name(const cJSON *part, const char *name) {
  if (strcmp(part->string, name) == 0) return true;
  const cJSON *alias = NULL;
  cJSON_ArrayForEach(alias, cJSON_GetObjectItemCaseSensitive(part, "aliases")) {
    const char *text = cJSON_GetStringValue(alias);
    if (text && strcmp(text, name) == 0) return true;
  }
  return false;
}

hk_status hk_part_find(const hk_parts *parts, hk_part_kind kind, const char *name,
                       const cJSON **part, hk_error *err) {
  const cJSON *list = hk_parts_of(parts, kind);
  const char *names[MOST_NAMES];
  for (const cJSON *p = list->child; p; p = p->next) {
    if (!has_name(p, name)) continue;
    *part = p;
    return HK_OK;
  }
  const char *nearest = hk_nearest(name, names, names_of(list, names));
  if (nearest)
    return hk_fail(err, HK_INPUT, "%s '%.60s' is not known; did you mean '%s'?", kinds[kind].name,
                   name, nearest);
  return hk_fail(err, HK_INPUT,
                 "%s '%.60s' is not known; 'hocket machine parts %s' lists those that "
                 "are",
                 kinds[kind].name, name, kinds[kind].name);
}

bool hk_part_checked(const cJSON *part, const char *member) {
  const char *way = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "checked"));
  const cJSON *other = NULL;
  if (!way || strcmp(way, "no") == 0) return false;
  cJSON_ArrayForEach(other, cJSON_GetObjectItemCaseSensitive(part, "unchecked")) {
    const char *name = cJSON_GetStringValue(other);
    if (name && strcmp(name, member) == 0) return false;
  }
  return true;
}

const char *hk_part_cite(const cJSON *part, const char *member, char *buffer, size_t size) {
  const char *sheet = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "sheet"));
  snprintf(buffer, size, "%s%s", sheet ? sheet : "no data sheet",
           hk_part_checked(part, member) ? "" : ", not checked");
  return buffer;
}
