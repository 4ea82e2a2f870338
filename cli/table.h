/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Tables for people, over libsmartcols: a header, aligned columns, plain ASCII, no colours. Widths
 * follow the content alone, so that a terminal and a pipe get the same text. */
#ifndef HK_CLI_TABLE_H
#define HK_CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/error.h"

typedef enum { HK_LEFT, HK_RIGHT } hk_align;

typedef struct {
  const char *name; /* NULL in the first column: a table without header */
  hk_align align;
} hk_column;

/* A failed allocation is kept until hk_table_print, so that callers check once. */
typedef struct {
  struct libscols_table *handle;
  struct libscols_line *line;
  size_t column;
  bool failed;
} hk_table;

void hk_table_begin(hk_table *table, const hk_column *columns, size_t n);
void hk_table_row(hk_table *table);
/* The next cell of the row. */
void hk_table_cell(hk_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hk_table_drop(hk_table *table);
/* Prints to stdout, and drops it. */
hk_status hk_table_print(hk_table *table, hk_error *err);

#endif
