/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Tables for people: a header, aligned columns, plain text. A table that is wider than the screen
 * (cli/print/screen.h) is made narrower as its columns allow: HK_BELOW, then HK_SPARE, then
 * HK_WRAP. */
#ifndef HK_CLI_PRINT_TABLE_H
#define HK_CLI_PRINT_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

/* Layout of a column: one of these, optionally | HK_SPARE(n). */
enum {
  HK_LEFT,
  HK_RIGHT,
  HK_WRAP,  /* left; if the table is too wide, its cells are wrapped to several lines */
  HK_BELOW, /* left; if the table is too wide, its cells are printed below their rows */
  HK_ALIGN = 3,
};
/* The column is left out if the table is too wide, those with the highest n (from 1) first. A line
 * below the table names the columns that were left out. */
#define HK_SPARE(n) ((n) << 2)

typedef struct {
  const char *name; /* NULL in the first column: a table without header */
  int layout;
} hk_column;

#define HK_MOST_COLUMNS 67 /* a column for each rank of a host, and three more */

/* hk_table_print reports failed allocations, so that callers check once. */
typedef struct {
  const hk_column *columns;
  char **cells; /* [n_cells], row by row; the header is a row, too */
  size_t n, n_cells, room;
  bool failed;
} hk_table;

/* A table without rows, of at most HK_MOST_COLUMNS columns. `columns`, an array for HK_TABLE, must
 * outlive it. */
#define HK_TABLE(columns) hk_table_begin(columns, HK_COLUMNS(columns))
/* Their number. An array of too many does not compile. */
#define HK_COLUMNS(columns)              \
  (sizeof(columns) / sizeof *(columns) + \
   0 * sizeof(char[sizeof(columns) / sizeof *(columns) <= HK_MOST_COLUMNS ? 1 : -1]))
hk_table hk_table_begin(const hk_column *columns, size_t n);
/* Begins a row with the cells that the format says, tabs between them: "%s\t%.1f" are two. */
void hk_table_row(hk_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds the next cells of the row in the same way; missing cells are empty. */
void hk_table_cell(hk_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Frees the table without printing it. */
void hk_table_drop(hk_table *table);
/* Prints the table to stdout and frees it. */
hk_status hk_table_print(hk_table *table, hk_error *err);

#endif
