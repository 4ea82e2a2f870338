/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket's store, one SQLite file: its path, schema, migrations, transactions and statements. Its
 * content is defined by traces/timelines.h and calib/profiles/profiles.h. */
#ifndef HK_TRACES_STORE_H
#define HK_TRACES_STORE_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

typedef struct hk_store hk_store;

/* $HOCKET_STORE, else $XDG_DATA_HOME/hocket/store.db, else ~/.local/share/hocket/store.db. */
hk_status hk_store_path(char *path, size_t size, hk_error *err);

/* Opens the store at `path` (NULL: hk_store_path). Brings an older one to this version's schema in
 * one transaction. Uses a write-ahead log, and waits up to 10 s for another writer.
 * - Without must_exist a missing file and its folder are made.
 * - With must_exist a missing file, or no default path, is HK_OK with *store NULL; a store that
 *   cannot be written is opened for reading.
 * HK_INPUT: not a hocket store, or of a later version. HK_ENVIRONMENT: cannot be read or written,
 * or damaged. The schema of the file is not trusted: its views and triggers do not run. */
hk_status hk_store_open(const char *path, bool must_exist, hk_store **store, hk_error *err);
void hk_store_close(hk_store *store);
const char *hk_store_name(const hk_store *store); /* its path */
/* Whether the file has the header of a SQLite database. */
bool hk_store_is_database(const char *path);

/* A transaction: all of it or nothing is stored, also after kill -9. It begins with the write lock.
 */
hk_status hk_store_begin(hk_store *store, hk_error *err);
hk_status hk_store_commit(hk_store *store, hk_error *err);
void hk_store_rollback(hk_store *store); /* also if none is open */
/* Commits if `status` is HK_OK, else rolls back. Returns `status`, or the failure of the commit. */
hk_status hk_store_end(hk_store *store, hk_status status, hk_error *err);

typedef struct {
  void *bytes;
  size_t size;
} hk_blob;

/* Prepares one statement and binds one value per letter of `types`: 'i' int64_t; 'd' double (NaN is
 * stored as NULL); 's' const char * (NULL allowed); 'b' const hk_blob *, whose bytes must live
 * until hk_store_finish, which the caller calls. */
hk_status hk_store_query(hk_store *store, sqlite3_stmt **statement, hk_error *err, const char *sql,
                         const char *types, ...);
/* *row false: no more rows. */
hk_status hk_store_step(hk_store *store, sqlite3_stmt *statement, bool *row, hk_error *err);
/* A text column of the current row; valid until the next step. HK_ENVIRONMENT: the column is NULL,
 * which only a damaged store has, or out of memory. */
hk_status hk_store_text(hk_store *store, sqlite3_stmt *statement, int column, const char **text,
                        hk_error *err);
/* The same; *text NULL if the column is NULL. */
hk_status hk_store_text_if_any(hk_store *store, sqlite3_stmt *statement, int column,
                               const char **text, hk_error *err);
/* Copies the text, truncated to `size`. */
hk_status hk_store_copy_text(hk_store *store, sqlite3_stmt *statement, int column, char *out,
                             size_t size, hk_error *err);
void hk_store_finish(sqlite3_stmt *statement); /* NULL allowed */
/* hk_store_query, hk_store_step to the end, hk_store_finish. */
hk_status hk_store_do(hk_store *store, hk_error *err, const char *sql, const char *types, ...);
int64_t hk_store_last_row(const hk_store *store);
int64_t hk_store_changes(const hk_store *store);

#endif
