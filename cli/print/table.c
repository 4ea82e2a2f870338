/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Collects the cells, chooses the columns and their widths, prints. */
#include "cli/print/table.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print/screen.h"
#include "core/base/grow.h"

#define BETWEEN       2  /* spaces between columns */
#define INDENT        4  /* of cells below a row */
#define LEAST_WRAPPED 12 /* least width of a wrapped column */

/* -- Cells ------------------------------------------------------------------------------------- */

/* Takes ownership of `text`; NULL counts as out of memory. */
static void add_cell(hk_table *table, char *text) {
  if (text == NULL || HK_GROW(table->cells, table->room, table->n_cells, "cells", NULL) != HK_OK) {
    free(text);
    table->failed = true;
    return;
  }
  table->cells[table->n_cells++] = text;
}

hk_table hk_table_begin(const hk_column *columns, size_t n) {
  hk_table table = {.columns = columns, .n = n};
  for (size_t c = 0; c < n; c++) add_cell(&table, strdup(columns[c].name ? columns[c].name : ""));
  return table;
}

/* Fills up the last row with empty cells. */
static void end_row(hk_table *table) {
  while (!table->failed && table->n_cells % table->n != 0) add_cell(table, strdup(""));
}

/* Values with tabs shift the cells, but no more than the format has: the last takes the rest. */
static __attribute__((format(printf, 2, 0))) void add_cells(hk_table *table, const char *format,
                                                            va_list values) {
  char *text = NULL;
  if (table->failed) return;
  table->failed = vasprintf(&text, format, values) < 0;
  if (table->failed) return;
  for (char *cell = text, *next; cell; cell = next) {
    format = strchr(format, '\t');
    next = format ? strchr(cell, '\t') : NULL;
    if (next) *next++ = '\0';
    if (format) format++;
    add_cell(table, hk_text_visible(cell));
  }
  free(text);
}

void hk_table_row(hk_table *table, const char *format, ...) {
  va_list values;
  end_row(table);
  va_start(values, format);
  add_cells(table, format, values);
  va_end(values);
}

void hk_table_cell(hk_table *table, const char *format, ...) {
  va_list values;
  va_start(values, format);
  add_cells(table, format, values);
  va_end(values);
}

void hk_table_drop(hk_table *table) {
  for (size_t i = 0; i < table->n_cells; i++) free(table->cells[i]);
  free(table->cells);
  *table = (hk_table){0};
}

/* -- Layout ------------------------------------------------------------------------------------ */

/* Place and width of each column. */
typedef struct {
  enum { BESIDE, BELOW, LEFT_OUT } place[HK_MOST_COLUMNS];
  size_t width[HK_MOST_COLUMNS];
} layout;

static int align_of(const hk_table *table, size_t c) {
  return table->columns[c].layout & HK_ALIGN;
}

static int spare_of(const hk_table *table, size_t c) {
  return table->columns[c].layout / HK_SPARE(1);
}

static void measure(const hk_table *table, layout *l) {
  *l = (layout){.width = {0}};
  for (size_t i = 0; i < table->n_cells; i++) {
    const size_t width = hk_text_width(table->cells[i], SIZE_MAX), c = i % table->n;
    if (width > l->width[c]) l->width[c] = width;
  }
}

static size_t total_width(const hk_table *table, const layout *l) {
  size_t sum = 0;
  for (size_t c = 0; c < table->n; c++)
    if (l->place[c] == BESIDE) sum += l->width[c] + (sum > 0 ? BETWEEN : 0);
  return sum;
}

/* Leaves out the spare columns with the highest number. False: there are no spare columns. */
static bool leave_out(const hk_table *table, layout *l) {
  int most = 0;
  for (size_t c = 0; c < table->n; c++)
    if (l->place[c] == BESIDE && spare_of(table, c) > most) most = spare_of(table, c);
  for (size_t c = 0; c < table->n && most > 0; c++)
    if (l->place[c] == BESIDE && spare_of(table, c) == most) l->place[c] = LEFT_OUT;
  return most > 0;
}

/* Makes the widest HK_WRAP column narrower by one. False: all have the least width. */
static bool narrow_one(const hk_table *table, layout *l) {
  size_t found = table->n;
  for (size_t c = 0; c < table->n; c++) {
    if (l->place[c] != BESIDE || align_of(table, c) != HK_WRAP) continue;
    if (l->width[c] <= LEAST_WRAPPED) continue;
    if (found == table->n || l->width[c] > l->width[found]) found = c;
  }
  if (found < table->n) l->width[found]--;
  return found < table->n;
}

static void fit(const hk_table *table, size_t width, layout *l) {
  measure(table, l);
  if (total_width(table, l) <= width) return;
  for (size_t c = 0; c < table->n; c++)
    if (align_of(table, c) == HK_BELOW) l->place[c] = BELOW;
  while (total_width(table, l) > width && leave_out(table, l)) continue;
  while (total_width(table, l) > width && narrow_one(table, l)) continue;
}

/* -- Printing ---------------------------------------------------------------------------------- */

static void print_spaces(size_t n) {
  printf("%*s", (int)n, "");
}

/* Prints one line of a row: from each cell the part that fits; `rest` becomes the remaining parts.
 * `gap`: spaces to print before the next text, so that no line ends in spaces. */
static void print_line(const hk_table *table, const layout *l, const char **rest) {
  size_t gap = 0;
  for (size_t c = 0; c < table->n; c++) {
    if (l->place[c] != BESIDE) continue;
    const size_t bytes = hk_text_fit(rest[c], l->width[c], true);
    const size_t free_columns = l->width[c] - hk_text_width(rest[c], bytes);
    if (align_of(table, c) == HK_RIGHT) gap += free_columns;
    if (bytes > 0) {
      print_spaces(gap);
      printf("%.*s", (int)bytes, rest[c]);
      gap = 0;
    }
    if (align_of(table, c) != HK_RIGHT) gap += free_columns;
    gap += BETWEEN;
    rest[c] += bytes;
    rest[c] += strspn(rest[c], " ");
  }
  putchar('\n');
}

static bool is_left(const hk_table *table, const layout *l, const char *const *rest) {
  for (size_t c = 0; c < table->n; c++)
    if (l->place[c] == BESIDE && *rest[c] != '\0') return true;
  return false;
}

static void print_row(const hk_table *table, const layout *l, char *const *cells) {
  const char *rest[HK_MOST_COLUMNS];
  for (size_t c = 0; c < table->n; c++) rest[c] = cells[c];
  do print_line(table, l, rest);
  while (is_left(table, l, rest));
  for (size_t c = 0; c < table->n; c++)
    if (l->place[c] == BELOW && *cells[c] != '\0') hk_print_text(INDENT, 0, "%s", cells[c]);
}

static void name_left_out(const hk_table *table, const layout *l) {
  char names[400] = "";
  for (size_t c = 0; c < table->n; c++) {
    const size_t used = strlen(names);
    if (l->place[c] == LEFT_OUT)
      snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
               table->columns[c].name);
  }
  if (*names != '\0') hk_print_text(0, 0, "(--wide also shows: %s)", names);
}

hk_status hk_table_print(hk_table *table, hk_error *err) {
  end_row(table);
  const bool failed = table->failed;
  if (!failed) {
    layout l;
    fit(table, hk_screen_width(), &l);
    for (size_t i = table->columns[0].name ? 0 : table->n; i < table->n_cells; i += table->n)
      print_row(table, &l, table->cells + i);
    name_left_out(table, &l);
  }
  hk_table_drop(table);
  return failed ? hk_fail(err, HK_ENVIRONMENT, "out of memory for a table") : HK_OK;
}
