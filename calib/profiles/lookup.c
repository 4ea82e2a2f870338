/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Finds the NAME|FILE of --machine: a file, a profile that ships with hocket, or one of the store.
 */
#include <stdio.h>

#include "calib/profiles/internal.h"
#include "core/base/json.h"
#include "core/base/names.h"

#define MAX_PATH 4096

/* A document and its origin, which error messages name. */
typedef struct {
  cJSON *document;
  char from[MAX_PATH];
} found_profile;

/* `unknown`: the error of hk_share_resolve, which knows files and what ships, but not the store. */
static hk_status fail_unknown(hk_store *store, const char *name, const hk_error *unknown,
                              hk_error *err) {
  char **shipped, nearest[96] = "";
  size_t n;
  if (unknown->status == HK_INPUT && hk_share_list("machines", &shipped, &n, NULL) == HK_OK) {
    hk_status status = hk_profile_nearest(store, shipped, n, name, nearest, err);
    hk_names_free(shipped, n);
    HK_TRY(status);
  }
  if (!nearest[0]) return hk_fail(err, unknown->status, "%s", unknown->message);
  return hk_fail(err, HK_INPUT,
                 "unknown machine '%s'; did you mean '%s'? ('hocket machine list' prints all)",
                 name, nearest);
}

static hk_status look_in_store(const char *name, const hk_error *unknown, found_profile *found,
                               hk_error *err) {
  hk_store *store = NULL;
  HK_TRY(hk_store_open(NULL, true, &store, err));
  snprintf(found->from, sizeof found->from, "profile '%.95s' of the store", name);
  hk_status status = store ? hk_profile_read(store, name, &found->document, err) : HK_OK;
  if (status == HK_OK && !found->document) status = fail_unknown(store, name, unknown, err);
  hk_store_close(store);
  return status;
}

/* Files and names that ship are found without the store, so that a damaged store does not matter:
 * no stored profile has such a name. */
static hk_status look_up(const char *name, found_profile *found, hk_error *err) {
  *found = (found_profile){0};
  hk_error unknown = {0};
  if (hk_share_resolve("machines", name, found->from, sizeof found->from, &unknown) == HK_OK)
    return hk_json_load(found->from, &found->document, err);
  return look_in_store(name, &unknown, found, err);
}

hk_status hk_profiles_machine(const char *name_or_file, hk_machine *machine, hk_error *err) {
  *machine = (hk_machine){0};
  found_profile found;
  HK_TRY(look_up(name_or_file, &found, err));
  hk_status status = hk_machine_from_json(found.document, machine, err);
  cJSON_Delete(found.document);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", found.from);
}

hk_status hk_profiles_load_document(const char *name_or_file, cJSON **document, hk_error *err) {
  *document = NULL;
  found_profile found;
  HK_TRY(look_up(name_or_file, &found, err));
  hk_profile_entry entry;
  hk_status status = hk_profile_describe(found.document, "", "", &entry, err);
  if (status == HK_OK) {
    *document = found.document;
    return HK_OK;
  }
  cJSON_Delete(found.document);
  return hk_fail_prefix(err, "%s", found.from);
}
