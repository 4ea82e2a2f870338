/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "traces/sweep_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"
#include "core/base/memory_text.h"
#include "core/base/outfile.h"
#include "traces/csv.h"
#include "traces/store_schema.h"

static const char *const steps[] = {
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;",
};

static const hk_store_kind kind = {
    .application = 0x686b7377, /* "hksw" */
    .steps = steps,
    .version = sizeof steps / sizeof *steps,
    .noun = "sweep",
    .elsewhere = "name another file",
    .afresh = "run the sweep again",
};

hk_status hk_sweep_open(const char *path, bool must_exist, hk_store **store, hk_error *err) {
  HK_TRY(hk_store_open_kind(path, &kind, must_exist, store, err));
  if (*store) return HK_OK;
  return hk_fail(err, HK_INPUT, "there is no database '%s'; 'hocket sweep SPEC.json' makes one",
                 path);
}

/* -- Tables ------------------------------------------------------------------------------------ */

/* `CREATE TABLE point (...)`; names may have any character. */
static hk_status make_table(hk_store *store, const hk_sweep_column *columns, size_t n,
                            hk_error *err) {
  static const char *const types[] = {"INTEGER", "REAL", "TEXT"};
  char *sql = NULL;
  size_t size = 0;
  FILE *stream = open_memstream(&sql, &size);
  if (!stream) return hk_fail_memory(err, 4096, "a table");
  fputs("CREATE TABLE point (id INTEGER PRIMARY KEY", stream);
  for (size_t i = 0; i < n; i++) {
    fputs(", \"", stream);
    for (const char *c = columns[i].name; *c; c++) fprintf(stream, *c == '"' ? "\"\"" : "%c", *c);
    fprintf(stream, "\" %s", types[columns[i].type]);
  }
  fputs(") STRICT", stream);
  HK_TRY(hk_memory_text_close(stream, &sql, "a table", err));
  const hk_status status = hk_store_do(store, err, sql, "");
  free(sql);
  return status;
}

static hk_status begin(hk_store *store, const hk_sweep_column *columns, size_t n,
                       const hk_sweep_meta *meta, size_t n_meta, hk_error *err) {
  HK_TRY(make_table(store, columns, n, err));
  for (size_t i = 0; i < n_meta; i++)
    HK_TRY(hk_store_do(store, err, "INSERT INTO meta (key, value) VALUES (?, ?)", "ss", meta[i].key,
                       meta[i].value));
  return HK_OK;
}

hk_status hk_sweep_begin(hk_store *store, const hk_sweep_column *columns, size_t n,
                         const hk_sweep_meta *meta, size_t n_meta, hk_error *err) {
  HK_TRY(hk_store_begin(store, err));
  return hk_store_end(store, begin(store, columns, n, meta, n_meta, err), err);
}

hk_status hk_sweep_meta_of(hk_store *store, const char *key, char **value, hk_error *err) {
  sqlite3_stmt *statement = NULL;
  const char *text = NULL;
  bool row = false;
  *value = NULL;
  hk_status status =
      hk_store_query(store, &statement, err, "SELECT value FROM meta WHERE key = ?", "s", key);
  if (status == HK_OK) status = hk_store_step(store, statement, &row, err);
  if (status == HK_OK && row) status = hk_store_text(store, statement, 0, &text, err);
  if (status == HK_OK && row && !(*value = strdup(text)))
    status = hk_fail_memory(err, strlen(text) + 1, "a sweep");
  hk_store_finish(statement);
  return status;
}

/* -- Rows -------------------------------------------------------------------------------------- */

static hk_status read_ids(hk_store *store, sqlite3_stmt *statement, int64_t **ids, size_t *n,
                          hk_error *err) {
  size_t room = 0;
  for (bool row = true;;) {
    HK_TRY(hk_store_step(store, statement, &row, err));
    if (!row) return HK_OK;
    HK_TRY(HK_GROW(*ids, room, *n, "a sweep", err));
    (*ids)[(*n)++] = sqlite3_column_int64(statement, 0);
  }
}

hk_status hk_sweep_ids(hk_store *store, int64_t **ids, size_t *n, hk_error *err) {
  sqlite3_stmt *statement = NULL;
  *ids = NULL;
  *n = 0;
  hk_status status = hk_store_query(store, &statement, err, "SELECT id FROM point ORDER BY id", "");
  if (status == HK_OK) status = read_ids(store, statement, ids, n, err);
  hk_store_finish(statement);
  if (status == HK_OK) return HK_OK;
  free(*ids);
  *ids = NULL;
  return status;
}

hk_status hk_sweep_adder(hk_store *store, size_t n, sqlite3_stmt **statement, hk_error *err) {
  char *sql = malloc(2 * n + 64);
  if (!sql) return hk_fail_memory(err, 2 * n + 64, "a statement");
  size_t used = (size_t)sprintf(sql, "INSERT OR IGNORE INTO point VALUES (?");
  for (size_t i = 0; i < n; i++) used += (size_t)sprintf(sql + used, ",?");
  sprintf(sql + used, ")");
  const hk_status status = hk_store_query(store, statement, err, sql, "");
  free(sql);
  return status;
}

/* Texts are not copied: only lack of memory for the statement itself could fail. */
static void bind(sqlite3_stmt *adder, int place, hk_cell_type type, const hk_cell *cell) {
  if (cell->null)
    sqlite3_bind_null(adder, place);
  else if (type == HK_CELL_INTEGER)
    sqlite3_bind_int64(adder, place, cell->integer);
  else if (type == HK_CELL_REAL)
    sqlite3_bind_double(adder, place, cell->real);
  else
    sqlite3_bind_text(adder, place, cell->text, -1, SQLITE_STATIC);
}

hk_status hk_sweep_add(hk_store *store, sqlite3_stmt *adder, int64_t id,
                       const hk_sweep_column *columns, const hk_cell *cells, size_t n,
                       hk_error *err) {
  bool row;
  sqlite3_bind_int64(adder, 1, id);
  for (size_t i = 0; i < n; i++) bind(adder, (int)i + 2, columns[i].type, &cells[i]);
  const hk_status status = hk_store_step(store, adder, &row, err);
  sqlite3_reset(adder);
  return status;
}

static hk_status copy_rows(hk_store *store, hk_store *part, sqlite3_stmt *from, sqlite3_stmt *to,
                           hk_error *err) {
  const int n = sqlite3_bind_parameter_count(to);
  if (sqlite3_column_count(from) != n)
    return hk_fail(err, HK_INPUT, "'%s' has other columns than '%s'", hk_store_name(part),
                   hk_store_name(store));
  for (bool row = true, ignored;;) {
    HK_TRY(hk_store_step(part, from, &row, err));
    if (!row) return HK_OK;
    int code = SQLITE_OK;
    for (int i = 0; i < n && code == SQLITE_OK; i++)
      code = sqlite3_bind_value(to, i + 1, sqlite3_column_value(from, i));
    if (code != SQLITE_OK) return hk_fail_memory(err, 256, "a row");
    const hk_status status = hk_store_step(store, to, &ignored, err);
    sqlite3_reset(to);
    HK_TRY(status);
  }
}

hk_status hk_sweep_merge(hk_store *store, hk_store *part, size_t n, hk_error *err) {
  sqlite3_stmt *from = NULL, *to = NULL;
  HK_TRY(hk_store_begin(store, err));
  hk_status status = hk_sweep_adder(store, n, &to, err);
  if (status == HK_OK)
    status = hk_store_query(part, &from, err, "SELECT * FROM point ORDER BY id", "");
  if (status == HK_OK) status = copy_rows(store, part, from, to, err);
  hk_store_finish(from);
  hk_store_finish(to);
  return hk_store_end(store, status, err);
}

/* -- CSV --------------------------------------------------------------------------------------- */

static hk_status put_field(hk_store *store, sqlite3_stmt *rows, int column, FILE *stream,
                           hk_error *err) {
  const char *text;
  switch (sqlite3_column_type(rows, column)) {
    case SQLITE_NULL:
      return HK_OK;
    case SQLITE_INTEGER:
      fprintf(stream, "%lld", (long long)sqlite3_column_int64(rows, column));
      return HK_OK;
    case SQLITE_FLOAT:
      fprintf(stream, "%.15g", sqlite3_column_double(rows, column));
      return HK_OK;
    default:
      HK_TRY(hk_store_text(store, rows, column, &text, err));
      hk_csv_text(text, stream);
      return HK_OK;
  }
}

static hk_status put_rows(hk_store *store, sqlite3_stmt *rows, FILE *stream, hk_error *err) {
  const int n = sqlite3_column_count(rows);
  for (int i = 0; i < n; i++) {
    if (i > 0) fputc(',', stream);
    hk_csv_text(sqlite3_column_name(rows, i), stream);
  }
  fputc('\n', stream);
  for (bool row = true;;) {
    HK_TRY(hk_store_step(store, rows, &row, err));
    if (!row) return HK_OK;
    for (int i = 0; i < n; i++) {
      if (i > 0) fputc(',', stream);
      HK_TRY(put_field(store, rows, i, stream, err));
    }
    fputc('\n', stream);
  }
}

hk_status hk_sweep_csv(hk_store *store, const char *path, hk_error *err) {
  hk_outfile *out;
  sqlite3_stmt *rows = NULL;
  HK_TRY(hk_outfile_open(path, &out, err));
  hk_status status = hk_store_query(store, &rows, err, "SELECT * FROM point ORDER BY id", "");
  if (status == HK_OK) status = put_rows(store, rows, hk_outfile_stream(out), err);
  hk_store_finish(rows);
  if (status == HK_OK) return hk_outfile_close(out, err);
  hk_outfile_abort(out);
  return status;
}
