/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Tables for people: a header, aligned columns, plain text, no colours. A table that is wider than
 * the screen (cli/screen.h) is made to fit by what its columns allow. */
#ifndef HK_CLI_TABLE_H
#define HK_CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/error.h"

/* How a column is laid out: one of these, and HK_SPARE(n) or not. */
enum {
  HK_LEFT,
  HK_RIGHT,
  HK_WRAP,  /* left; in a table that is too wide its cells become several lines */
  HK_BELOW, /* left; of a table that is too wide its cells go under their rows, indented */
  HK_ALIGN = 3,
};
/* Of a table that is too wide the columns with the highest number, from 1, are left out first, and
 * named in a line below it. */
#define HK_SPARE(n) ((n) << 2)

typedef struct {
  const char *name; /* NULL in the first column: a table without header */
  int layout;
} hk_column;

/* A failed allocation is kept until hk_table_print, so that callers check once. */
typedef struct {
  const hk_column *columns;
  char **cells; /* [n_cells], row by row; the header is a row, too */
  size_t n, n_cells, room;
  bool failed;
} hk_table;

/* `columns` outlives the table. */
void hk_table_begin(hk_table *table, const hk_column *columns, size_t n);
void hk_table_row(hk_table *table);
/* The next cell of the row. */
void hk_table_cell(hk_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hk_table_drop(hk_table *table);
/* Prints to stdout, and drops it. */
hk_status hk_table_print(hk_table *table, hk_error *err);

#endif
