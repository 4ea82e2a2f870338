/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Stores, lists, resumes and deletes calibration runs and their samples. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/profiles/internal.h"
#include "core/base/json.h"

/* -- Beginning and finding --------------------------------------------------------------------- */

hk_status hk_calibration_run_begin(hk_store *store, const char *name, bool quick,
                                   const hk_fingerprint *f, int64_t *id, hk_error *err) {
  HK_TRY(hk_profile_check_name(name, err));
  cJSON *object = hk_fingerprint_to_json(f);
  char *text = object ? cJSON_PrintUnformatted(object) : NULL;
  cJSON_Delete(object);
  if (!text) return hk_fail_memory(err, sizeof *f, "a fingerprint");
  char now[32];
  hk_profile_now(now);
  hk_status status =
      hk_store_do(store, err,
                  "INSERT INTO run (name, started, state, quick, seconds, fingerprint) "
                  "VALUES (?, ?, 'measuring', ?, 0, ?)",
                  "ssis", name, now, (int64_t)quick, text);
  if (status == HK_OK) *id = hk_store_last_row(store);
  cJSON_free(text);
  return status;
}

static hk_status append_run(hk_store *store, sqlite3_stmt *statement, hk_calibration_run **runs,
                            size_t *n, hk_error *err) {
  hk_calibration_run *grown = realloc(*runs, (*n + 1) * sizeof *grown);
  if (!grown) return hk_fail_memory(err, (*n + 1) * sizeof *grown, "a list of calibrations");
  *runs = grown;
  hk_calibration_run *run = &grown[(*n)++];
  *run = (hk_calibration_run){.id = sqlite3_column_int64(statement, 0),
                              .state = "measuring",
                              .quick = sqlite3_column_int64(statement, 3) != 0,
                              .seconds = sqlite3_column_double(statement, 4),
                              .samples = (size_t)sqlite3_column_int64(statement, 5)};
  HK_TRY(hk_store_copy_text(store, statement, 1, run->name, sizeof run->name, err));
  return hk_store_copy_text(store, statement, 2, run->started, sizeof run->started, err);
}

hk_status hk_calibration_runs_list_unfinished(hk_store *store, hk_calibration_run **runs, size_t *n,
                                              hk_error *err) {
  sqlite3_stmt *statement = NULL;
  *runs = NULL;
  *n = 0;
  hk_status status = hk_store_query(
      store, &statement, err,
      "SELECT id, name, started, quick, seconds, (SELECT count(*) FROM sample WHERE sample.run = "
      "run.id AND load = 0) FROM run WHERE state = 'measuring' ORDER BY id DESC",
      "");
  for (bool row = true; status == HK_OK && row;) {
    status = hk_store_step(store, statement, &row, err);
    if (status == HK_OK && row) status = append_run(store, statement, runs, n, err);
  }
  hk_store_finish(statement);
  if (status != HK_OK) {
    free(*runs);
    *runs = NULL;
    *n = 0;
  }
  return status;
}

hk_status hk_calibration_runs_delete_unfinished(hk_store *store, const char *name, int64_t *n,
                                                hk_error *err) {
  HK_TRY(
      hk_store_do(store, err, "DELETE FROM run WHERE state = 'measuring' AND name = ?", "s", name));
  *n = hk_store_changes(store);
  return HK_OK;
}

/* " under 'a' (since 2026-11-21T09:30:00Z), 'b' (...)": the five latest runs that can be resumed.
 */
static hk_status list_unfinished(hk_store *store, char *text, size_t size, hk_error *err) {
  sqlite3_stmt *statement = NULL;
  bool row = false;
  size_t used = 0;
  text[0] = '\0';
  hk_status status = hk_store_query(
      store, &statement, err,
      "SELECT name, started FROM run WHERE state = 'measuring' ORDER BY id DESC LIMIT 5", "");
  while (status == HK_OK && (status = hk_store_step(store, statement, &row, err)) == HK_OK && row &&
         used < size) {
    const char *name, *started;
    status = hk_store_text(store, statement, 0, &name, err);
    if (status == HK_OK) status = hk_store_text(store, statement, 1, &started, err);
    if (status == HK_OK)
      used += (size_t)snprintf(text + used, size - used, "%s '%s' (since %s)",
                               used ? "," : " under", name, started);
  }
  hk_store_finish(statement);
  return status;
}

static hk_status fail_none(hk_store *store, const char *name, hk_error *err) {
  char there[600], under[120] = "";
  HK_TRY(list_unfinished(store, there, sizeof there, err));
  if (name) snprintf(under, sizeof under, " under '%.95s'", name);
  return hk_fail(err, HK_INPUT, "there is no unfinished calibration%s to resume; %s%s", under,
                 there[0] ? "there is one" : "begin one without --resume", there);
}

static hk_status read_run(hk_store *store, sqlite3_stmt *statement, hk_calibration_run *run,
                          hk_fingerprint *f, hk_error *err) {
  *run = (hk_calibration_run){.id = sqlite3_column_int64(statement, 0),
                              .quick = sqlite3_column_int64(statement, 4) != 0,
                              .seconds = sqlite3_column_double(statement, 5),
                              .samples = (size_t)sqlite3_column_int64(statement, 7)};
  HK_TRY(hk_store_copy_text(store, statement, 1, run->name, sizeof run->name, err));
  HK_TRY(hk_store_copy_text(store, statement, 2, run->started, sizeof run->started, err));
  HK_TRY(hk_store_copy_text(store, statement, 3, run->state, sizeof run->state, err));
  char what[64];
  snprintf(what, sizeof what, "fingerprint of calibration run %lld", (long long)run->id);
  const char *text;
  cJSON *object = NULL;
  HK_TRY(hk_store_text(store, statement, 6, &text, err));
  HK_TRY(hk_json_parse(text, strlen(text), what, &object, err));
  hk_status status = hk_fingerprint_from_json(object, f, err);
  cJSON_Delete(object);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", what);
}

hk_status hk_calibration_run_unfinished(hk_store *store, const char *name, hk_calibration_run *run,
                                        hk_fingerprint *f, hk_error *err) {
  sqlite3_stmt *statement = NULL;
  bool row = false;
  hk_status status =
      hk_store_query(store, &statement, err,
                     "SELECT id, name, started, state, quick, seconds, fingerprint, (SELECT "
                     "count(*) FROM sample WHERE sample.run = run.id AND load = 0) "
                     "FROM run WHERE state = 'measuring' AND (?1 IS NULL OR name = ?1) "
                     "ORDER BY id DESC LIMIT 1",
                     "s", name);
  if (status == HK_OK) status = hk_store_step(store, statement, &row, err);
  if (row) status = read_run(store, statement, run, f, err);
  hk_store_finish(statement);
  return status != HK_OK || row ? status : fail_none(store, name, err);
}

/* -- Samples ----------------------------------------------------------------------------------- */

static hk_status is_kept(hk_store *store, int64_t id, const char *probe, size_t round, bool *kept,
                         hk_error *err) {
  sqlite3_stmt *statement = NULL;
  *kept = false;
  hk_status status = hk_store_query(
      store, &statement, err, "SELECT 1 FROM sample WHERE run = ? AND probe = ? AND round = ?",
      "isi", id, probe, (int64_t)round);
  if (status == HK_OK) status = hk_store_step(store, statement, kept, err);
  hk_store_finish(statement);
  return status;
}

static hk_status write_sample(hk_store *store, int64_t id, const char *probe, size_t round,
                              int n_values, const double *values, double seconds, hk_error *err) {
  HK_TRY(hk_store_do(store, err, "UPDATE run SET seconds = ? WHERE id = ? AND state = 'measuring'",
                     "di", seconds, id));
  if (hk_store_changes(store) == 0)
    return hk_fail(err, HK_INPUT,
                   "calibration run %lld is not being measured: another process has completed or "
                   "deleted it",
                   (long long)id);
  bool kept;
  HK_TRY(is_kept(store, id, probe, round, &kept, err));
  if (kept)
    return hk_fail(err, HK_INPUT,
                   "calibration run %lld has round %zu of '%s' already: another process measures "
                   "for the same run; wait until it ends, then use --resume",
                   (long long)id, round, probe);
  for (int i = 0; i < n_values; i++)
    HK_TRY(hk_store_do(store, err,
                       "INSERT INTO sample (run, probe, round, load, value) VALUES (?, ?, ?, ?, ?)",
                       "isiid", id, probe, (int64_t)round, (int64_t)i, values[i]));
  return HK_OK;
}

hk_status hk_calibration_run_add_sample(hk_store *store, int64_t id, const char *probe,
                                        size_t round, int n_values, const double *values,
                                        double seconds, hk_error *err) {
  HK_TRY(hk_store_begin(store, err));
  return hk_store_end(store, write_sample(store, id, probe, round, n_values, values, seconds, err),
                      err);
}

/* -- Resuming ---------------------------------------------------------------------------------- */

/* One round of a probe. Its values are in one row for each load. */
typedef struct {
  char probe[120];
  int64_t round;
  double values[HK_PROBE_LOADS];
  int n;
} sample;

/* Adds a complete sample to the campaign if the campaign has its probe. */
static hk_status add_sample(const sample *s, hk_campaign *campaign, hk_error *err) {
  if (s->n == 0 || !hk_campaign_find(campaign, s->probe)) return HK_OK;
  return hk_campaign_add(campaign, s->probe, s->values, s->n, err);
}

/* Reads one row; a row of another round ends the sample before it. */
static hk_status read_row(hk_store *store, sqlite3_stmt *statement, sample *s,
                          hk_campaign *campaign, hk_error *err) {
  const char *probe;
  HK_TRY(hk_store_text(store, statement, 0, &probe, err));
  const int64_t round = sqlite3_column_int64(statement, 1);
  if (s->n == 0 || round != s->round || strcmp(probe, s->probe) != 0) {
    HK_TRY(add_sample(s, campaign, err));
    snprintf(s->probe, sizeof s->probe, "%s", probe);
    s->round = round;
    s->n = 0;
  }
  if (s->n == HK_PROBE_LOADS)
    return hk_fail(err, HK_ENVIRONMENT, "'%s' has more than %d loads", probe, HK_PROBE_LOADS);
  const bool number = sqlite3_column_type(statement, 2) != SQLITE_NULL;
  s->values[s->n++] = number ? sqlite3_column_double(statement, 2) : NAN;
  return HK_OK;
}

hk_status hk_calibration_run_load(hk_store *store, int64_t id, hk_campaign *campaign,
                                  hk_error *err) {
  sqlite3_stmt *statement = NULL;
  sample s = {.n = 0};
  hk_status status = hk_store_query(store, &statement, err,
                                    "SELECT probe, round, value FROM sample WHERE run = ? "
                                    "ORDER BY probe, round, load",
                                    "i", id);
  for (bool row = true; status == HK_OK && row;) {
    status = hk_store_step(store, statement, &row, err);
    if (status == HK_OK && row) status = read_row(store, statement, &s, campaign, err);
  }
  hk_store_finish(statement);
  if (status == HK_OK) status = add_sample(&s, campaign, err);
  return status == HK_OK ? HK_OK
                         : hk_fail_prefix(err, "samples of calibration run %lld", (long long)id);
}
