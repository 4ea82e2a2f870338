/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Saves, imports, lists, reads and deletes stored profiles. A profile's calibration run is deleted
 * with it. */
#include "calib/profiles/profiles.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/profiles/internal.h"
#include "core/base/grow.h"
#include "core/base/json.h"
#include "core/base/names.h"

/* -- Rows -------------------------------------------------------------------------------------- */

typedef struct {
  bool found;
  int64_t run; /* 0: none */
  char made[32];
} profile_row;

static hk_status find(hk_store *store, const char *name, profile_row *out, hk_error *err) {
  *out = (profile_row){0};
  sqlite3_stmt *statement = NULL;
  hk_status status = hk_store_query(store, &statement, err,
                                    "SELECT run, made FROM profile WHERE name = ?", "s", name);
  if (status == HK_OK) status = hk_store_step(store, statement, &out->found, err);
  if (out->found) {
    out->run = sqlite3_column_int64(statement, 0);
    status = hk_store_copy_text(store, statement, 1, out->made, sizeof out->made, err);
  }
  hk_store_finish(statement);
  return status;
}

/* Deletes a profile, and its run unless that is `kept` or belongs to another profile, too. */
static hk_status delete_with_run(hk_store *store, const char *name, int64_t run, int64_t kept,
                                 hk_error *err) {
  HK_TRY(hk_store_do(store, err, "DELETE FROM profile WHERE name = ?", "s", name));
  return hk_store_do(store, err,
                     "DELETE FROM run WHERE id = ?1 AND id <> ?2 AND NOT EXISTS "
                     "(SELECT 1 FROM profile WHERE profile.run = ?1)",
                     "ii", run, kept);
}

/* A profile to be saved. */
typedef struct {
  hk_profile_entry entry;
  char *document;
  int64_t run; /* 0: none */
  bool replace;
} profile;

static hk_status write_profile(hk_store *store, const profile *p, hk_error *err) {
  const hk_profile_entry *e = &p->entry;
  profile_row old;
  HK_TRY(find(store, e->name, &old, err));
  if (old.found && !p->replace)
    return hk_fail(err, HK_INPUT,
                   "the store has a profile '%s' already, made %s; replace it with --replace, or "
                   "give the new one another name",
                   e->name, old.made);
  if (old.found) HK_TRY(delete_with_run(store, e->name, old.run, p->run, err));
  HK_TRY(hk_store_do(store, err,
                     "INSERT INTO profile (name, description, made, origin, gpus, quick, accepted, "
                     "median_error_pct, p90_error_pct, run, document) "
                     "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, 0), ?)",
                     "ssssiiiddis", e->name, e->description, e->made, e->from, (int64_t)e->gpus,
                     (int64_t)e->quick, (int64_t)e->accepted, e->median_error_pct, e->p90_error_pct,
                     p->run, p->document));
  return hk_store_do(store, err, "UPDATE run SET state = 'done' WHERE id = ?", "i", p->run);
}

static hk_status save(hk_store *store, const cJSON *document, const char *from, const char *now,
                      int64_t run, bool replace, char *name, size_t size, hk_error *err) {
  profile p = {.run = run, .replace = replace};
  HK_TRY(hk_profile_describe(document, from, now, &p.entry, err));
  HK_TRY(hk_profile_check_name(p.entry.name, err));
  p.document = cJSON_PrintUnformatted(document);
  if (!p.document) return hk_fail_memory(err, sizeof *document, "a profile");
  hk_status status = hk_store_begin(store, err);
  if (status == HK_OK) status = hk_store_end(store, write_profile(store, &p, err), err);
  if (status == HK_OK && name) snprintf(name, size, "%s", p.entry.name);
  cJSON_free(p.document);
  return status;
}

/* -- Saving ------------------------------------------------------------------------------------ */

static hk_status is_quick(hk_store *store, int64_t run, bool *quick, hk_error *err) {
  *quick = false;
  if (run == 0) return HK_OK;
  sqlite3_stmt *statement = NULL;
  bool row = false;
  hk_status status =
      hk_store_query(store, &statement, err, "SELECT quick FROM run WHERE id = ?", "i", run);
  if (status == HK_OK) status = hk_store_step(store, statement, &row, err);
  if (row) *quick = sqlite3_column_int64(statement, 0) != 0;
  hk_store_finish(statement);
  if (status != HK_OK || row) return status;
  return hk_fail(err, HK_INPUT, "calibration run %lld is no longer in the store '%s'",
                 (long long)run, hk_store_name(store));
}

hk_status hk_profiles_save(hk_store *store, const hk_profile_fit *fit, const hk_campaign *campaign,
                           const hk_fingerprint *f, int64_t run, bool replace, hk_error *err) {
  bool quick;
  HK_TRY(is_quick(store, run, &quick, err));
  char now[32];
  hk_profile_now(now);
  cJSON *document = hk_machine_to_json(&fit->machine);
  cJSON *calibration = hk_profile_calibration(fit, campaign, f, quick, now);
  hk_status status;
  if (document && calibration && cJSON_AddItemToObject(document, HK_CALIBRATION, calibration)) {
    status = save(store, document, "calibrate", now, run, replace, NULL, 0, err);
  } else {
    cJSON_Delete(calibration);
    status = hk_fail_memory(err, sizeof *document, "a calibration");
  }
  cJSON_Delete(document);
  return status;
}

hk_status hk_profiles_import(hk_store *store, const cJSON *document, bool replace, char *name,
                             size_t size, hk_error *err) {
  char now[32];
  hk_profile_now(now);
  return save(store, document, "import", now, 0, replace, name, size, err);
}

/* -- Listing ----------------------------------------------------------------------------------- */

static double number_or_nan(sqlite3_stmt *statement, int column) {
  return sqlite3_column_type(statement, column) == SQLITE_NULL
             ? NAN
             : sqlite3_column_double(statement, column);
}

static hk_status read_entry(hk_store *store, sqlite3_stmt *statement, hk_profile_entry *entry,
                            hk_error *err) {
  *entry = (hk_profile_entry){.gpus = sqlite3_column_int(statement, 4),
                              .quick = sqlite3_column_int(statement, 5) != 0,
                              .accepted = sqlite3_column_int(statement, 6) != 0,
                              .median_error_pct = number_or_nan(statement, 7),
                              .p90_error_pct = number_or_nan(statement, 8)};
  HK_TRY(hk_store_copy_text(store, statement, 0, entry->name, sizeof entry->name, err));
  HK_TRY(
      hk_store_copy_text(store, statement, 1, entry->description, sizeof entry->description, err));
  HK_TRY(hk_store_copy_text(store, statement, 2, entry->made, sizeof entry->made, err));
  return hk_store_copy_text(store, statement, 3, entry->from, sizeof entry->from, err);
}

static hk_status append_entry(hk_store *store, sqlite3_stmt *statement, hk_profile_entry **entries,
                              size_t *room, size_t *n, hk_error *err) {
  HK_TRY(HK_GROW(*entries, *room, *n, "a list of profiles", err));
  return read_entry(store, statement, &(*entries)[(*n)++], err);
}

hk_status hk_profiles_list(hk_store *store, hk_profile_entry **entries, size_t *n, hk_error *err) {
  *entries = NULL;
  *n = 0;
  size_t room = 0;
  sqlite3_stmt *statement = NULL;
  hk_status status =
      hk_store_query(store, &statement, err,
                     "SELECT name, description, made, origin, gpus, quick, accepted, "
                     "median_error_pct, p90_error_pct FROM profile ORDER BY name",
                     "");
  for (bool row = true; status == HK_OK && row;) {
    status = hk_store_step(store, statement, &row, err);
    if (status == HK_OK && row) status = append_entry(store, statement, entries, &room, n, err);
  }
  hk_store_finish(statement);
  if (status == HK_OK) return HK_OK;
  free(*entries);
  *entries = NULL;
  *n = 0;
  return status;
}

/* -- Reading and deleting ---------------------------------------------------------------------- */

/* A stored document is checked when it is saved: an invalid one was edited by hand or damaged. */
static hk_status fail_document(hk_store *store, const char *name, hk_error *err) {
  return hk_fail_prefix(err,
                        "profile '%s' of the store '%s' is damaged ('hocket machine delete' "
                        "deletes it)",
                        name, hk_store_name(store));
}

static hk_status parse_document(const char *text, const char *name, cJSON **document,
                                hk_error *err) {
  HK_TRY(hk_json_parse(text, strlen(text), "its document", document, err));
  hk_profile_entry entry;
  hk_status status = hk_profile_describe(*document, "", "", &entry, err);
  if (status == HK_OK && strcmp(entry.name, name) != 0)
    status = hk_fail(err, HK_INPUT, "its document is of '%s'", entry.name);
  if (status == HK_OK) return HK_OK;
  cJSON_Delete(*document);
  *document = NULL;
  return status;
}

hk_status hk_profile_read(hk_store *store, const char *name, cJSON **document, hk_error *err) {
  *document = NULL;
  sqlite3_stmt *statement = NULL;
  bool row = false;
  hk_status status = hk_store_query(store, &statement, err,
                                    "SELECT document FROM profile WHERE name = ?", "s", name);
  if (status == HK_OK) status = hk_store_step(store, statement, &row, err);
  if (row) {
    const char *text;
    status = hk_store_text(store, statement, 0, &text, err);
    if (status == HK_OK) status = parse_document(text, name, document, err);
    if (status != HK_OK) status = fail_document(store, name, err);
  }
  hk_store_finish(statement);
  return status;
}

hk_status hk_profile_nearest(hk_store *store, char *const *others, size_t n_others,
                             const char *name, char nearest[96], hk_error *err) {
  nearest[0] = '\0';
  hk_profile_entry *entries = NULL;
  size_t n = 0;
  if (store) HK_TRY(hk_profiles_list(store, &entries, &n, err));
  const char **names = calloc(n + n_others + 1, sizeof *names);
  if (!names) {
    free(entries);
    return hk_fail_memory(err, (n + n_others + 1) * sizeof *names, "names of profiles");
  }
  for (size_t i = 0; i < n; i++) names[i] = entries[i].name;
  for (size_t i = 0; i < n_others; i++) names[n + i] = others[i];
  const char *found = hk_nearest(name, names, n + n_others);
  if (found) snprintf(nearest, 96, "%s", found);
  free(names);
  free(entries);
  return HK_OK;
}

static hk_status fail_unknown(hk_store *store, const char *name, hk_error *err) {
  char path[4096], nearest[96];
  if (hk_share_resolve("machines", name, path, sizeof path, NULL) == HK_OK &&
      strcmp(path, name) != 0)
    return hk_fail(err, HK_INPUT, "profile '%s' ships with hocket; it is not in the store '%s'",
                   name, hk_store_name(store));
  HK_TRY(hk_profile_nearest(store, NULL, 0, name, nearest, err));
  return hk_fail(err, HK_INPUT,
                 "there is no profile '%s' in the store '%s'%s%s%s ('hocket machine list' prints "
                 "all)",
                 name, hk_store_name(store), nearest[0] ? "; did you mean '" : "", nearest,
                 nearest[0] ? "'?" : "");
}

hk_status hk_profiles_document(hk_store *store, const char *name, cJSON **document, hk_error *err) {
  HK_TRY(hk_profile_read(store, name, document, err));
  return *document ? HK_OK : fail_unknown(store, name, err);
}

static hk_status delete_profile(hk_store *store, const char *name, hk_error *err) {
  profile_row row;
  HK_TRY(find(store, name, &row, err));
  return row.found ? delete_with_run(store, name, row.run, 0, err) : fail_unknown(store, name, err);
}

hk_status hk_profiles_delete(hk_store *store, const char *name, hk_error *err) {
  HK_TRY(hk_store_begin(store, err));
  return hk_store_end(store, delete_profile(store, name, err), err);
}
