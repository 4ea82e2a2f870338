/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The store's file: opening, migration, transactions, statements, error messages. Schema:
 * store_schema.c.
 *
 * Write-ahead log with synchronous = NORMAL. A commit that returned survives kill -9, because the
 * kernel has the data. A power cut may lose the last commits, but does not damage the file. FULL
 * would wait for the disk after every sample of a calibration and disturb the next measurement. */
#include "traces/store.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "traces/store_schema.h"

#define MAX_PATH    4096
#define PATIENCE_MS 10000
#define PAUSE_MS    20

struct hk_store {
  sqlite3 *db;
  char *path;
  const hk_store_kind *kind;
  int patience_ms;
};

static const hk_store_kind usual_kind = {
    .application = HK_STORE_APPLICATION,
    .steps = hk_store_steps,
    .noun = "store",
    .elsewhere = "name another file in HOCKET_STORE",
    .afresh = "hocket makes a new one: 'hocket machine import FILE' brings exported profiles back",
    .makes_folders = true,
};

/* -- Errors ------------------------------------------------------------------------------------ */

bool hk_store_is_database(const char *path) {
  static const char magic[16] = "SQLite format 3";
  char begin[sizeof magic] = "";
  FILE *file = fopen(path, "rbe");
  if (!file) return false;
  const size_t got = fread(begin, 1, sizeof begin, file);
  fclose(file);
  return got == sizeof begin && memcmp(begin, magic, sizeof magic) == 0;
}

static hk_status fail_damaged(const hk_store *store, const char *why, hk_error *err) {
  return hk_fail(err, HK_ENVIRONMENT, "the %s '%s' is damaged (%s); move it away, and %s",
                 store->kind->noun, store->path, why, store->kind->afresh);
}

/* SQLite also says of some damaged files that it lacks memory, although there is enough
 * (tests/fuzz/corpus/store/defect-memory-of-damaged). */
static hk_status fail_memory(const hk_store *store, hk_error *err) {
  return hk_fail(err, HK_ENVIRONMENT,
                 "SQLite lacks memory for the %s '%s', or it is damaged: then move it away, and "
                 "hocket makes a new one",
                 store->kind->noun, store->path);
}

static hk_status fail_foreign(const hk_store *store, const char *why, hk_error *err) {
  return hk_fail(err, HK_INPUT, "'%s' is not a hocket %s (%s); %s", store->path, store->kind->noun,
                 why, store->kind->elsewhere);
}

/* The last error of SQLite as a message. */
static hk_status fail(const hk_store *store, hk_error *err) {
  const char *why = sqlite3_errmsg(store->db);
  const int number = store->db ? sqlite3_system_errno(store->db) : 0;
  switch (sqlite3_errcode(store->db) & 0xff) {
    case SQLITE_NOMEM:
      return fail_memory(store, err);
    case SQLITE_CORRUPT:
      return fail_damaged(store, why, err);
    case SQLITE_NOTADB:
      return hk_store_is_database(store->path) ? fail_damaged(store, why, err)
                                               : fail_foreign(store, why, err);
    case SQLITE_FULL:
      return hk_fail(
          err, HK_ENVIRONMENT,
          "no room to write the %s '%s' (%s); what it held before is unharmed: make room "
          "and try again",
          store->kind->noun, store->path, why);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return hk_fail(err, HK_ENVIRONMENT,
                     "another process has kept the %s '%s' locked for %g s (%s); try again when it "
                     "is done",
                     store->kind->noun, store->path, store->patience_ms / 1e3, why);
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return hk_fail(err, HK_ENVIRONMENT,
                     "the %s '%s' cannot be opened or written (%s%s%s); make it and its folder "
                     "writable, or %s",
                     store->kind->noun, store->path, why, number ? ": " : "",
                     number ? strerror(number) : "", store->kind->elsewhere);
    default:
      return hk_fail(err, HK_ENVIRONMENT, "the %s '%s': %s%s%s", store->kind->noun, store->path,
                     why, number ? ": " : "", number ? strerror(number) : "");
  }
}

/* -- Path -------------------------------------------------------------------------------------- */

hk_status hk_store_path(char *path, size_t size, hk_error *err) {
  const char *chosen = getenv("HOCKET_STORE"), *data = getenv("XDG_DATA_HOME");
  const char *home = getenv("HOME");
  int length;
  if (chosen && *chosen) {
    length = snprintf(path, size, "%s", chosen);
  } else if (data && *data == '/') { /* the XDG specification: ignored unless absolute */
    length = snprintf(path, size, "%s/hocket/store.db", data);
  } else if (home && *home) {
    length = snprintf(path, size, "%s/.local/share/hocket/store.db", home);
  } else {
    return hk_fail(err, HK_ENVIRONMENT,
                   "there is no place for hocket's store: none of HOCKET_STORE, XDG_DATA_HOME and "
                   "HOME is set; name a file in HOCKET_STORE");
  }
  if (length >= 0 && (size_t)length < size) return HK_OK;
  return hk_fail(err, HK_INPUT, "the path of the store is too long: %d characters, at most %zu",
                 length, size - 1);
}

static hk_status make_folders(const char *path, hk_error *err) {
  char folder[MAX_PATH];
  const int length = snprintf(folder, sizeof folder, "%s", path);
  if (length < 0 || (size_t)length >= sizeof folder)
    return hk_fail(err, HK_INPUT, "the path of the store is too long: %d characters, at most %d",
                   length, MAX_PATH - 1);
  for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
      return hk_fail(err, HK_ENVIRONMENT,
                     "cannot make the folder '%s' for the store '%s': %s; make it, or name another "
                     "file in HOCKET_STORE",
                     folder, path, strerror(errno));
    *slash = '/';
  }
  return HK_OK;
}

/* -- Schema ------------------------------------------------------------------------------------ */

static hk_status execute(hk_store *store, const char *sql, hk_error *err) {
  return sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK ? HK_OK : fail(store, err);
}

/* Checks that the file is a hocket store and reads its version; 0: an empty file. One statement, so
 * that it does not see a store that another process has half made. */
static hk_status identify(hk_store *store, int64_t latest, int64_t *version, hk_error *err) {
  sqlite3_stmt *statement = NULL;
  bool row = false;
  hk_status status =
      hk_store_query(store, &statement, err,
                     "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
                     "FROM pragma_application_id, pragma_user_version",
                     "");
  if (status == HK_OK) status = hk_store_step(store, statement, &row, err);
  const int64_t application = row ? sqlite3_column_int64(statement, 0) : 0;
  *version = row ? sqlite3_column_int64(statement, 1) : 0;
  const int64_t objects = row ? sqlite3_column_int64(statement, 2) : 0;
  hk_store_finish(statement);
  HK_TRY(status);
  const bool empty = application == 0 && *version == 0 && objects == 0;
  if (!empty && application != store->kind->application)
    return fail_foreign(store, "a SQLite database of another program", err);
  if (*version <= latest) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "the %s '%s' is of a later hocket: its version is %lld, this hocket knows up to "
                 "%lld; use the later hocket, or %s",
                 store->kind->noun, store->path, (long long)*version, (long long)latest,
                 store->kind->elsewhere);
}

/* Switches to the write-ahead log. Waits in a loop of its own, because SQLite may refuse the switch
 * at once while another process is making it. Without a log (some network file systems) the store
 * is slower, but as safe, so the result is not checked. */
static hk_status use_log(hk_store *store, hk_error *err) {
  int code = SQLITE_OK;
  sqlite3_busy_timeout(store->db, 0);
  for (int waited = 0; waited <= store->patience_ms; waited += PAUSE_MS) {
    code = sqlite3_exec(store->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
    if ((code & 0xff) != SQLITE_BUSY) break;
    sqlite3_sleep(PAUSE_MS);
  }
  hk_status status = code == SQLITE_OK ? HK_OK : fail(store, err);
  sqlite3_busy_timeout(store->db, store->patience_ms);
  return status;
}

static hk_status take_steps(hk_store *store, int latest, hk_error *err) {
  int64_t version = 0; /* read again: another process may have been first */
  HK_TRY(identify(store, latest, &version, err));
  if (version == latest) return HK_OK;
  for (int64_t i = version; i < latest; i++) {
    if (execute(store, store->kind->steps[i], err) == HK_OK) continue;
    return hk_fail_prefix(err, "bringing it from version %lld to %lld", (long long)i,
                          (long long)i + 1);
  }
  char identity[120];
  snprintf(identity, sizeof identity, "PRAGMA application_id = %d; PRAGMA user_version = %d",
           store->kind->application, latest);
  return execute(store, identity, err);
}

/* Settings of every connection. The file may be somebody else's: its schema may call only functions
 * that SQLite marks as harmless, its views and triggers do not run, and damaged pages are refused
 * as they are read. */
static hk_status set_up(hk_store *store, hk_error *err) {
  static const struct {
    int setting, value;
  } settings[] = {{SQLITE_DBCONFIG_DEFENSIVE, 1},
                  {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
                  {SQLITE_DBCONFIG_ENABLE_VIEW, 0},
                  {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0}};
  sqlite3_extended_result_codes(store->db, 1);
  sqlite3_busy_timeout(store->db, store->patience_ms);
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    sqlite3_db_config(store->db, settings[i].setting, settings[i].value, NULL);
  return execute(store, "PRAGMA cell_size_check = ON", err);
}

/* -- Read-only ------------------------------------------------------------------------------- */

/* The store or its folder, which would have the log, cannot be written: a read-only file system, or
 * no permission. */
static bool is_read_only(const char *path) {
  char folder[MAX_PATH];
  const char *slash = strrchr(path, '/');
  if (euidaccess(path, F_OK) != 0) return false;
  if (euidaccess(path, W_OK) != 0) return true;
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
  return euidaccess(folder, W_OK) != 0;
}

/* The log has commits that are not in the store's file yet. */
static bool has_log(const char *path) {
  char log[MAX_PATH + 8];
  struct stat status;
  snprintf(log, sizeof log, "%s-wal", path);
  return stat(log, &status) == 0 && status.st_size > 0;
}

/* SQLite writes a log even for reading, unless the file is declared immutable. A store with commits
 * in its log must not be: SQLite then decides whether it can be read. */
static int open_read_only(hk_store *store) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
  char uri[3 * MAX_PATH + 32] = "file:";
  size_t used = strlen(uri);
  for (const char *c = store->path; *c && used + 24 < sizeof uri; c++)
    used += (size_t)snprintf(uri + used, 4, strchr(plain, *c) ? "%c" : "%%%02X", (unsigned char)*c);
  if (!has_log(store->path)) snprintf(uri + used, sizeof uri - used, "?immutable=1");
  return sqlite3_open_v2(uri, &store->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL);
}

static hk_status prepare_read_only(hk_store *store, int latest, hk_error *err) {
  if (open_read_only(store) != SQLITE_OK) return fail(store, err);
  HK_TRY(set_up(store, err));
  int64_t version = 0;
  HK_TRY(identify(store, latest, &version, err));
  if (version == latest) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT,
                 "the %s '%s' is of an older hocket (version %lld, this one reads %d) and cannot "
                 "be written: copy it to where it can, and name the copy",
                 store->kind->noun, store->path, (long long)version, latest);
}

/* -- Opening ----------------------------------------------------------------------------------- */

static hk_status prepare(hk_store *store, int flags, int latest, hk_error *err) {
  if (!(flags & SQLITE_OPEN_CREATE) && is_read_only(store->path))
    return prepare_read_only(store, latest, err);
  if (sqlite3_open_v2(store->path, &store->db, flags, NULL) != SQLITE_OK) return fail(store, err);
  HK_TRY(set_up(store, err));
  int64_t version = 0;
  HK_TRY(identify(store, latest, &version, err));
  if (version < latest) {
    HK_TRY(use_log(store, err));
    HK_TRY(hk_store_begin(store, err));
    HK_TRY(hk_store_end(store, take_steps(store, latest, err), err));
  }
  return execute(store, "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON", err);
}

static bool is_missing(const char *path) {
  struct stat status;
  return stat(path, &status) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

static hk_status open_kind(const char *path, const hk_store_kind *kind, bool must_exist,
                           int version, int patience_ms, hk_store **store, hk_error *err) {
  *store = NULL;
  if (must_exist && is_missing(path)) return HK_OK;
  if (!must_exist && kind->makes_folders) HK_TRY(make_folders(path, err));
  hk_store *opened = calloc(1, sizeof *opened);
  if (!opened) return hk_fail_memory(err, sizeof *opened, "the store");
  opened->kind = kind;
  opened->patience_ms = patience_ms;
  opened->path = strdup(path);
  const int flags = SQLITE_OPEN_READWRITE | (must_exist ? 0 : SQLITE_OPEN_CREATE);
  hk_status status = opened->path ? prepare(opened, flags, version, err)
                                  : hk_fail_memory(err, strlen(path) + 1, "the store's path");
  if (status == HK_OK)
    *store = opened;
  else
    hk_store_close(opened);
  return status;
}

hk_status hk_store_open_as(const char *path, bool must_exist, int version, int patience_ms,
                           hk_store **store, hk_error *err) {
  *store = NULL;
  char usual[MAX_PATH];
  if (!path) {
    hk_status status = hk_store_path(usual, sizeof usual, err);
    if (status == HK_ENVIRONMENT && must_exist) return HK_OK; /* no default path */
    HK_TRY(status);
    path = usual;
  }
  return open_kind(path, &usual_kind, must_exist, version, patience_ms, store, err);
}

hk_status hk_store_open_kind(const char *path, const hk_store_kind *kind, bool must_exist,
                             hk_store **store, hk_error *err) {
  return open_kind(path, kind, must_exist, kind->version, PATIENCE_MS, store, err);
}

hk_status hk_store_open(const char *path, bool must_exist, hk_store **store, hk_error *err) {
  return hk_store_open_as(path, must_exist, hk_store_version, PATIENCE_MS, store, err);
}

void hk_store_close(hk_store *store) {
  if (!store) return;
  sqlite3_close_v2(store->db); /* also a handle that could not be opened */
  free(store->path);
  free(store);
}

const char *hk_store_name(const hk_store *store) {
  return store->path;
}

/* -- Transactions ------------------------------------------------------------------------------ */

hk_status hk_store_begin(hk_store *store, hk_error *err) {
  return execute(store, "BEGIN IMMEDIATE", err);
}

hk_status hk_store_commit(hk_store *store, hk_error *err) {
  return execute(store, "COMMIT", err);
}

void hk_store_rollback(hk_store *store) {
  /* After some errors, such as a full disk, SQLite has already rolled back. */
  if (!sqlite3_get_autocommit(store->db)) sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
}

hk_status hk_store_end(hk_store *store, hk_status status, hk_error *err) {
  if (status == HK_OK) status = hk_store_commit(store, err);
  if (status != HK_OK) hk_store_rollback(store);
  return status;
}

/* -- Statements -------------------------------------------------------------------------------- */

static int bind_next(sqlite3_stmt *statement, int place, char type, va_list *values) {
  switch (type) {
    case 'i':
      return sqlite3_bind_int64(statement, place, va_arg(*values, int64_t));
    case 'd':
      return sqlite3_bind_double(statement, place, va_arg(*values, double));
    case 's':
      return sqlite3_bind_text(statement, place, va_arg(*values, const char *), -1,
                               SQLITE_TRANSIENT);
    case 'b': {
      const hk_blob *blob = va_arg(*values, const hk_blob *);
      return sqlite3_bind_blob64(statement, place, blob->bytes, blob->size, SQLITE_STATIC);
    }
    default:
      return SQLITE_MISUSE;
  }
}

static hk_status query(hk_store *store, sqlite3_stmt **statement, hk_error *err, const char *sql,
                       const char *types, va_list *values) {
  *statement = NULL;
  int code = sqlite3_prepare_v2(store->db, sql, -1, statement, NULL);
  for (int i = 0; code == SQLITE_OK && types[i]; i++)
    code = bind_next(*statement, i + 1, types[i], values);
  if (code == SQLITE_OK) return HK_OK;
  hk_status status = fail(store, err);
  hk_store_finish(*statement);
  *statement = NULL;
  return status;
}

hk_status hk_store_query(hk_store *store, sqlite3_stmt **statement, hk_error *err, const char *sql,
                         const char *types, ...) {
  va_list values;
  va_start(values, types);
  hk_status status = query(store, statement, err, sql, types, &values);
  va_end(values);
  return status;
}

hk_status hk_store_step(hk_store *store, sqlite3_stmt *statement, bool *row, hk_error *err) {
  const int code = sqlite3_step(statement);
  *row = code == SQLITE_ROW;
  return code == SQLITE_ROW || code == SQLITE_DONE ? HK_OK : fail(store, err);
}

hk_status hk_store_text_if_any(hk_store *store, sqlite3_stmt *statement, int column,
                               const char **text, hk_error *err) {
  *text = NULL;
  if (sqlite3_column_type(statement, column) == SQLITE_NULL) return HK_OK;
  *text = (const char *)sqlite3_column_text(statement, column);
  if (*text) return HK_OK;
  return fail_memory(store, err);
}

hk_status hk_store_text(hk_store *store, sqlite3_stmt *statement, int column, const char **text,
                        hk_error *err) {
  HK_TRY(hk_store_text_if_any(store, statement, column, text, err));
  if (*text) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "the %s '%s' is damaged: column '%s' of a row is empty",
                 store->kind->noun, store->path, sqlite3_column_name(statement, column));
}

hk_status hk_store_copy_text(hk_store *store, sqlite3_stmt *statement, int column, char *out,
                             size_t size, hk_error *err) {
  const char *text;
  HK_TRY(hk_store_text(store, statement, column, &text, err));
  snprintf(out, size, "%s", text);
  return HK_OK;
}

void hk_store_finish(sqlite3_stmt *statement) {
  sqlite3_finalize(statement);
}

hk_status hk_store_do(hk_store *store, hk_error *err, const char *sql, const char *types, ...) {
  sqlite3_stmt *statement = NULL;
  va_list values;
  va_start(values, types);
  hk_status status = query(store, &statement, err, sql, types, &values);
  va_end(values);
  for (bool row = true; status == HK_OK && row;)
    status = hk_store_step(store, statement, &row, err);
  hk_store_finish(statement);
  return status;
}

int64_t hk_store_last_row(const hk_store *store) {
  return sqlite3_last_insert_rowid(store->db);
}

int64_t hk_store_changes(const hk_store *store) {
  return sqlite3_changes64(store->db);
}
