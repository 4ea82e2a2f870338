/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The rows of a sweep that a page shows, as columns: the best compromises first, then the cheapest.
 */
#include <stdlib.h>

#include "cli/page.h"
#include "cli/sweep_rows.h"
#include "cli/sweep_run.h"
#include "core/base/json_write.h"

#define MOST_ROWS 4000

static void put_cell(sqlite3_stmt *s, int column, cJSON *array, bool *ok) {
  const char *text;
  switch (sqlite3_column_type(s, column)) {
    case SQLITE_NULL:
      hk_append_item(array, cJSON_CreateNull(), ok);
      break;
    case SQLITE_TEXT:
      text = (const char *)sqlite3_column_text(s, column);
      hk_append_item(array, cJSON_CreateString(text ? text : ""), ok);
      break;
    default:
      hk_append_item(array, cJSON_CreateNumber(sqlite3_column_double(s, column)), ok);
  }
}

/* "columns": {NAME: [values]} of the statement. */
static hk_status put_columns(hk_store *store, sqlite3_stmt *s, cJSON *sweep, bool *ok,
                             hk_error *err) {
  const int n = sqlite3_column_count(s);
  cJSON *columns = hk_put_object(sweep, "columns", ok);
  cJSON **arrays = calloc((size_t)n + 1, sizeof(cJSON *));
  if (!arrays) return hk_fail_memory(err, (size_t)n * sizeof(cJSON *), "a page");
  for (int i = 0; i < n; i++) arrays[i] = hk_put_array(columns, sqlite3_column_name(s, i), ok);
  bool row = true;
  hk_status status = HK_OK;
  while (status == HK_OK && *ok) {
    status = hk_store_step(store, s, &row, err);
    if (status != HK_OK || !row) break;
    for (int i = 0; i < n; i++) put_cell(s, i, arrays[i], ok);
  }
  free(arrays);
  return status;
}

static void put_axes(const hk_sweep_spec *spec, cJSON *sweep, bool *ok) {
  cJSON *axes = hk_put_array(sweep, "axes", ok);
  for (size_t a = 0; a < spec->n; a++)
    if (spec->axes[a].n > 1) hk_append_item(axes, cJSON_CreateString(spec->axes[a].name), ok);
}

static hk_status put_counts(hk_store *store, const hk_sweep_spec *spec, cJSON *sweep, bool *ok,
                            hk_error *err) {
  hk_sweep_rows rows;
  hk_status status = hk_sweep_rows_load(store, spec, &rows, err);
  hk_put_number(sweep, "points", (double)hk_sweep_count(spec), ok);
  hk_put_number(sweep, "rows", (double)rows.all, ok);
  hk_put_number(sweep, "fit", (double)rows.n, ok);
  hk_put_number(sweep, "do_not_fit", (double)rows.too_large, ok);
  hk_put_number(sweep, "not_possible", (double)rows.not_possible, ok);
  hk_put_bool(sweep, "priced", rows.priced && rows.n > 0, ok);
  hk_sweep_rows_free(&rows);
  return status;
}

static hk_status put_rows(hk_store *store, cJSON *sweep, bool *ok, hk_error *err) {
  sqlite3_stmt *s = NULL;
  hk_status status =
      hk_store_query(store, &s, err,
                     "SELECT * FROM point WHERE fits = 1 ORDER BY (pareto_memory = 1 OR "
                     "pareto_money = 1) IS NOT 1, cost_per_mtok, 1.0 * world / tokens_per_s, id "
                     "LIMIT ?",
                     "i", (int64_t)MOST_ROWS);
  if (status == HK_OK) status = put_columns(store, s, sweep, ok, err);
  hk_store_finish(s);
  return status;
}

hk_status hk_page_sweep(const char *path, cJSON *input, hk_error *err) {
  bool ok = true;
  hk_sweep_database database = {0};
  cJSON *sweep = hk_put_object(input, "document", &ok);
  hk_put_string(sweep, "schema", "hocket.sweep/1", &ok);
  hk_status status = hk_sweep_database_open(path, &database, err);
  if (status == HK_OK) {
    put_axes(&database.spec, sweep, &ok);
    status = put_counts(database.store, &database.spec, sweep, &ok, err);
  }
  if (status == HK_OK) status = put_rows(database.store, sweep, &ok, err);
  hk_sweep_database_close(&database);
  return status == HK_OK ? hk_page_check(ok, err) : status;
}
