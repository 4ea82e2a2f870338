/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Stores. An input that begins with "SQLite" is the file of a store. Any other is a text whose
 * lines set cells of a store with our tables, but without their types and constraints, as a hostile
 * file may have them:
 *
 *   TABLE.COLUMN ROW VALUE     VALUE: nothing (NULL), 123, 1.5, 'text, or xHEX (a blob)
 *   TABLE.COLUMN ROW bHEX      the same blob with the checksum of a timeline's bytes behind it
 *
 *   steps N                    on the first line: a store of version N instead, with constraints
 *
 * Then all readers of stores read it: they accept it or refuse parts or all of it with a reason. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "calib/profiles/profiles.h"
#include "core/base/json.h"
#include "tests/fuzz/fuzz.h"
#include "traces/compare.h"
#include "traces/store_schema.h"
#include "traces/timelines.h"

/* -- A store of cells -------------------------------------------------------------------------- */

static const struct {
  const char *name, *columns; /* each within commas */
} tables[] = {
    {"run", ",id,name,started,state,quick,seconds,fingerprint,"},
    {"sample", ",run,probe,round,load,value,"},
    {"profile",
     ",name,description,made,origin,gpus,quick,accepted,median_error_pct,p90_error_pct,run,"
     "document,"},
    {"timeline",
     ",id,pair,measured,phases,made,label,machine,version,operations,makespan_ns,graph,plan,"
     "profile,fingerprint,spans,counters,"},
};
enum { TABLES = sizeof tables / sizeof *tables };

static void execute(sqlite3 *db, const char *sql) {
  if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
    hk_fuzz_abort(__FILE__, __LINE__, sql, sqlite3_errmsg(db));
}

static void make_loose_tables(sqlite3 *db) {
  char sql[512];
  for (int i = 0; i < TABLES; i++) {
    const int length = (int)strlen(tables[i].columns) - 2;
    snprintf(sql, sizeof sql, "CREATE TABLE %s (%.*s)", tables[i].name, length,
             tables[i].columns + 1);
    execute(db, sql);
  }
}

/* `steps` < 0: this version's tables, loose. */
static sqlite3 *make_store(const char *path, int steps) {
  sqlite3 *db = NULL;
  char sql[128];
  FUZZ_MUST(sqlite3_open(path, &db) == SQLITE_OK);
  execute(db, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 512; BEGIN");
  if (steps < 0) make_loose_tables(db);
  for (int i = 0; i < steps && i < hk_store_version; i++) execute(db, hk_store_steps[i]);
  snprintf(sql, sizeof sql, "PRAGMA application_id = %d; PRAGMA user_version = %d",
           steps == 0 ? 0 : HK_STORE_APPLICATION, steps < 0 ? hk_store_version : steps);
  execute(db, sql);
  return db;
}

static size_t decode_hex(const char *text, uint8_t *out, size_t room) {
  size_t n = 0;
  unsigned value;
  while (n < room && isxdigit((unsigned char)text[0]) && isxdigit((unsigned char)text[1]) &&
         sscanf(text, "%2x", &value) == 1) {
    out[n++] = (uint8_t)value;
    text += 2;
  }
  return n;
}

static void bind_value(sqlite3_stmt *statement, const char *text) {
  uint8_t bytes[4096 + 8];
  char *end = NULL;
  if (*text == '\'') {
    sqlite3_bind_text(statement, 1, text + 1, -1, SQLITE_TRANSIENT);
  } else if (*text == 'x' || *text == 'b') {
    size_t n = decode_hex(text + 1, bytes, 4096);
    const uint64_t hash = XXH3_64bits(bytes, n);
    if (*text == 'b') memcpy(bytes + n, &hash, sizeof hash);
    if (*text == 'b') n += sizeof hash;
    sqlite3_bind_blob(statement, 1, bytes, (int)n, SQLITE_TRANSIENT);
  } else if (strpbrk(text, ".eE") != NULL) {
    sqlite3_bind_double(statement, 1, strtod(text, &end));
  } else if (*text != '\0') {
    sqlite3_bind_int64(statement, 1, strtoll(text, &end, 10));
  }
}

/* Ignores lines of another form and cells that do not exist. */
static void set_cell(sqlite3 *db, const char *line) {
  char table[16], column[24], within[32], sql[160];
  int row = 0, length = 0;
  if (sscanf(line, "%15[a-z].%23[a-z0-9_] %d%n", table, column, &row, &length) != 3) return;
  snprintf(within, sizeof within, ",%s,", column);
  for (int i = 0; i < TABLES; i++) {
    if (strcmp(tables[i].name, table) != 0 || strstr(tables[i].columns, within) == NULL) continue;
    if (row < 0 || row > 9) return;
    snprintf(sql, sizeof sql, "INSERT OR IGNORE INTO %s (rowid) VALUES (%d)", table, row);
    sqlite3_exec(db, sql, NULL, NULL, NULL); /* tables with constraints may refuse it */
    snprintf(sql, sizeof sql, "UPDATE %s SET %s = ? WHERE rowid = %d", table, column, row);
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK) return;
    bind_value(statement, line[length] == ' ' ? line + length + 1 : "");
    sqlite3_step(statement);
    sqlite3_finalize(statement);
  }
}

static void make_cells(const char *path, char *text) {
  int steps = -1;
  sscanf(text, "steps %d", &steps);
  sqlite3 *db = make_store(path, steps);
  char *rest = text;
  for (char *line; (line = strsep(&rest, "\n")) != NULL;) set_cell(db, line);
  execute(db, "COMMIT");
  sqlite3_close(db);
}

/* -- Readers of stores ------------------------------------------------------------------------- */

/* A loaded timeline can be stored again, as the measurement of a prediction or vice versa, and is
 * read back unchanged, unless the first one has a pair. */
static void store_again(hk_store *store, const hk_loaded_timeline *loaded) {
  hk_error err = {0};
  hk_loaded_timeline again = {0};
  int64_t id = 0;
  const hk_timeline_to_store what = {.measured = !loaded->kept.measured,
                                     .phases = loaded->kept.phases,
                                     .pair = loaded->kept.id,
                                     .plan = &loaded->plan,
                                     .graph = &loaded->graph,
                                     .timeline = &loaded->timeline,
                                     .profile = loaded->profile,
                                     .fingerprint = loaded->fingerprint,
                                     .version = "fuzz"};
  if (!hk_fuzz_read(hk_timelines_store(store, &what, &id, &err), &err)) return;
  if (!hk_fuzz_read(hk_timelines_load(store, id, &again, &err), &err)) return;
  FUZZ_MUST(again.kept.pair == loaded->kept.id && again.timeline.n_spans == loaded->graph.n_ops);
  FUZZ_MUST(memcmp(again.timeline.spans, loaded->timeline.spans,
                   again.timeline.n_spans * sizeof *again.timeline.spans) == 0);
  hk_loaded_timeline_free(&again);
}

static void read_timelines(hk_store *store) {
  hk_error err = {0};
  hk_stored_timeline *list = NULL;
  size_t n = 0;
  if (!hk_fuzz_read(hk_timelines_list(store, &list, &n, &err), &err)) return;
  for (size_t i = 0; i < n && i < 10; i++) {
    hk_loaded_timeline loaded = {0};
    hk_timeline_comparison comparison = {0};
    if (!hk_fuzz_read(hk_timelines_load(store, list[i].id, &loaded, &err), &err)) continue;
    FUZZ_MUST(loaded.timeline.n_spans == loaded.graph.n_ops);
    const hk_timeline *t = &loaded.timeline;
    hk_fuzz_read(hk_timelines_compare(&loaded.graph, t, t, NULL, &comparison, &err), &err);
    hk_timeline_comparison_free(&comparison);
    store_again(store, &loaded);
    hk_loaded_timeline_free(&loaded);
  }
  free(list);
}

static void read_profiles(hk_store *store) {
  hk_error err = {0};
  hk_profile_entry *entries = NULL;
  size_t n = 0;
  if (!hk_fuzz_read(hk_profiles_list(store, &entries, &n, &err), &err)) return;
  for (size_t i = 0; i < n && i < 10; i++) {
    cJSON *document = NULL;
    hk_profile_diff diff = {0};
    if (!hk_fuzz_read(hk_profiles_document(store, entries[i].name, &document, &err), &err))
      continue;
    hk_fuzz_read(hk_profiles_diff(document, document, &diff, &err), &err);
    hk_profile_diff_free(&diff);
    cJSON_Delete(document);
  }
  free(entries);
}

static void read_runs(hk_store *store) {
  hk_error err = {0};
  hk_calibration_run run = {0};
  hk_fingerprint fingerprint;
  hk_campaign campaign = {0};
  const hk_probe probes[] = {{.name = "a", .n_loads = 1}, {.name = "b", .n_loads = 2}};
  if (!hk_fuzz_read(hk_calibration_run_unfinished(store, NULL, &run, &fingerprint, &err), &err))
    return;
  FUZZ_MUST(hk_fuzz_read(hk_campaign_open(probes, 2, &campaign, &err), &err));
  hk_fuzz_read(hk_calibration_run_load(store, run.id, &campaign, &err), &err);
  hk_campaign_free(&campaign);
}

/* Called last, because it changes the store. */
static void write_store(hk_store *store) {
  hk_error err = {0};
  hk_fuzz_read(hk_timelines_delete(store, 1, &err), &err);
  hk_fuzz_read(hk_profiles_delete(store, "a", &err), &err);
}

static void write_file(const char *path, const uint8_t *data, size_t size) {
  FILE *out = fopen(path, "wb");
  FUZZ_MUST(out != NULL && fwrite(data, 1, size, out) == size && fclose(out) == 0);
}

static void remove_all(void) {
  static const char *const names[] = {"store.db", "store.db-wal", "store.db-shm",
                                      "store.db-journal"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(hk_fuzz_path(names[i]));
}

static void read_store(const char *path) {
  hk_error err = {0};
  hk_store *store = NULL;
  if (hk_fuzz_read(hk_store_open_as(path, true, hk_store_version, 50, &store, &err), &err) &&
      store != NULL) {
    read_timelines(store);
    read_profiles(store);
    read_runs(store);
    write_store(store);
  }
  hk_store_close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[160];
  remove_all();
  snprintf(path, sizeof path, "%s", hk_fuzz_path("store.db"));
  if (size >= 6 && memcmp(data, "SQLite", 6) == 0) {
    write_file(path, data, size);
  } else {
    char *text = strndup((const char *)data, size);
    FUZZ_MUST(text != NULL);
    make_cells(path, text);
    free(text);
  }
  read_store(path);
  return 0;
}
