/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The database of a sweep: a SQLite file of its own with a table `point`, one row for each point,
 * whose columns the sweep chooses, and a table `meta` of texts by key, which say what the sweep is.
 * A database has both or, before hk_sweep_begin, neither. */
#ifndef HK_TRACES_SWEEP_TABLE_H
#define HK_TRACES_SWEEP_TABLE_H

#include "traces/store.h"

typedef enum { HK_CELL_INTEGER, HK_CELL_REAL, HK_CELL_TEXT } hk_cell_type;

typedef struct {
  const char *name;
  hk_cell_type type;
} hk_sweep_column;

/* A value of the column's type. */
typedef struct {
  bool null;
  int64_t integer;
  double real;      /* NaN is stored as NULL */
  const char *text; /* NULL is stored as NULL */
} hk_cell;

typedef struct {
  const char *key, *value;
} hk_sweep_meta;

/* Opens or, unless must_exist, makes a database. HK_INPUT: there is no such file, or it is another
 * one. */
hk_status hk_sweep_open(const char *path, bool must_exist, hk_store **store, hk_error *err);

/* Makes the table of points, with a first column `id`, and stores the meta texts, in one
 * transaction. */
hk_status hk_sweep_begin(hk_store *store, const hk_sweep_column *columns, size_t n,
                         const hk_sweep_meta *meta, size_t n_meta, hk_error *err);
/* The text of a key; *value NULL: there is none. The caller frees *value. */
hk_status hk_sweep_meta_of(hk_store *store, const char *key, char **value, hk_error *err);

/* The ids of all rows, ascending. The caller frees *ids. */
hk_status hk_sweep_ids(hk_store *store, int64_t **ids, size_t *n, hk_error *err);

/* A statement that adds rows of `n` columns besides the id; hk_store_finish frees it. */
hk_status hk_sweep_adder(hk_store *store, size_t n, sqlite3_stmt **statement, hk_error *err);
hk_status hk_sweep_add(hk_store *store, sqlite3_stmt *adder, int64_t id,
                       const hk_sweep_column *columns, const hk_cell *cells, size_t n,
                       hk_error *err);
/* Adds the rows of `part` that are not in `store`, in one transaction. Both have the same `n`
 * columns. */
hk_status hk_sweep_merge(hk_store *store, hk_store *part, size_t n, hk_error *err);

/* Writes all rows in the order of ids: a line of names, then a line a row; an empty field is NULL.
 */
hk_status hk_sweep_csv(hk_store *store, const char *path, hk_error *err);

#endif
