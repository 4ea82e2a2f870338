/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The only file that knows libsmartcols. */
#include "cli/table.h"

#include <libsmartcols/libsmartcols.h>
#include <stdarg.h>
#include <stdlib.h>

void hk_table_begin(hk_table *table, const hk_column *columns, size_t n) {
  *table = (hk_table){.handle = scols_new_table()};
  table->failed = table->handle == NULL;
  if (table->failed) return;
  scols_table_set_stream(table->handle, stdout);
  scols_table_set_column_separator(table->handle, "  ");
  scols_table_enable_noheadings(table->handle, columns[0].name == NULL);
  scols_table_set_termforce(table->handle, SCOLS_TERMFORCE_NEVER);
  for (size_t i = 0; i < n; i++) {
    int flags = columns[i].align == HK_RIGHT ? SCOLS_FL_RIGHT : 0;
    const char *name = columns[i].name ? columns[i].name : "";
    if (!scols_table_new_column(table->handle, name, 0, flags)) table->failed = true;
  }
}

void hk_table_row(hk_table *table) {
  if (table->failed) return;
  table->line = scols_table_new_line(table->handle, NULL);
  table->column = 0;
  table->failed = table->line == NULL;
}

void hk_table_cell(hk_table *table, const char *format, ...) {
  if (table->failed) return;
  char *text = NULL;
  va_list values;
  va_start(values, format);
  int length = vasprintf(&text, format, values);
  va_end(values);
  if (length < 0) text = NULL; /* undefined after a failure */
  if (length < 0 || scols_line_refer_data(table->line, table->column++, text) != 0) {
    free(text);
    table->failed = true;
  }
}

void hk_table_drop(hk_table *table) {
  scols_unref_table(table->handle);
  *table = (hk_table){0};
}

hk_status hk_table_print(hk_table *table, hk_error *err) {
  bool failed = table->failed || scols_print_table(table->handle) != 0;
  hk_table_drop(table);
  return failed ? hk_fail(err, HK_ENVIRONMENT, "out of memory for a table") : HK_OK;
}
