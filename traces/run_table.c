/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Run tables as CSV. The reader splits the text in place, one record at a time, and counts lines
 * for messages. */
#include "traces/run_table.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"
#include "core/base/infile.h"
#include "core/base/names.h"
#include "traces/csv.h"

#define MOST_BYTES   (64 << 20)
#define MOST_COLUMNS 512

typedef struct {
  const char *column, *meaning;
  bool required, text;
  size_t offset; /* of the field in hk_run */
} field;

static const field fields[] = {
#define TEXT(name, column, required, meaning) \
  {column, meaning, required, true, offsetof(hk_run, name)},
    HK_RUN_TEXTS(TEXT)
#undef TEXT
#define NUMBER(name, column, required, meaning) \
  {column, meaning, required, false, offsetof(hk_run, name)},
        HK_RUN_NUMBERS(NUMBER)
#undef NUMBER
};
enum { FIELDS = sizeof fields / sizeof *fields };

static char **text_of(hk_run *run, const field *f) {
  return (char **)(void *)((char *)run + f->offset);
}

static double *number_of(hk_run *run, const field *f) {
  return (double *)(void *)((char *)run + f->offset);
}

/* -- One run ----------------------------------------------------------------------------------- */

static hk_status set_text(hk_run *run, const field *f, const char *text, hk_error *err) {
  char *copy = strdup(text);
  if (!copy) return hk_fail_memory(err, strlen(text) + 1, "a run");
  free(*text_of(run, f));
  *text_of(run, f) = copy;
  return HK_OK;
}

hk_status hk_run_init(hk_run *run, hk_error *err) {
  *run = (hk_run){0};
  for (size_t i = 0; i < FIELDS; i++) {
    if (!fields[i].text) {
      *number_of(run, &fields[i]) = NAN;
    } else if (set_text(run, &fields[i], "", err) != HK_OK) {
      hk_run_free(run);
      return HK_ENVIRONMENT;
    }
  }
  return HK_OK;
}

void hk_run_free(hk_run *run) {
  for (size_t i = 0; i < FIELDS; i++)
    if (fields[i].text) free(*text_of(run, &fields[i]));
  *run = (hk_run){0};
}

/* -- Records ----------------------------------------------------------------------------------- */

typedef struct {
  char *at;        /* the rest of the text */
  int line, begin; /* lines of `at` and of the beginning of the record */
  char *cells[MOST_COLUMNS];
  size_t n;
  hk_error *err;
} reader;

/* Removes the quotes of the cell at r->at in place, and moves past the cell. */
static hk_status unquote(reader *r) {
  char *out = r->at, *in = r->at + 1;
  const int opened = r->line;
  for (;; in++) {
    if (*in == '\0') return hk_fail(r->err, HK_INPUT, "line %d: a quote is never closed", opened);
    if (*in == '\n') r->line++;
    if (*in == '"' && *++in != '"') break;
    *out++ = *in;
  }
  if (*in != ',' && *in != '\n' && *in != '\0' && strncmp(in, "\r\n", 2) != 0)
    return hk_fail(r->err, HK_INPUT,
                   "line %d: expected a comma or the end of the line after a closing quote, got "
                   "'%c'",
                   r->line, *in);
  r->at = in;
  *out = '\0'; /* the quotes are gone, so this is before `in` */
  return HK_OK;
}

static hk_status skip_plain(reader *r) {
  r->at += strcspn(r->at, ",\n\"");
  if (*r->at != '"') return HK_OK;
  return hk_fail(r->err, HK_INPUT, "line %d: a quote inside a field that is not quoted", r->line);
}

/* Reads one record into r->cells (RFC 4180; a line may end in \n alone). r->n 0: no more records.
 */
static hk_status read_record(reader *r) {
  while (*r->at == '\n' || strncmp(r->at, "\r\n", 2) == 0) {
    r->at += strcspn(r->at, "\n") + 1;
    r->line++;
  }
  r->n = 0;
  r->begin = r->line;
  for (bool more = *r->at != '\0'; more;) {
    if (r->n == MOST_COLUMNS)
      return hk_fail(r->err, HK_INPUT, "line %d: more than %d columns", r->begin, MOST_COLUMNS);
    r->cells[r->n++] = r->at;
    HK_TRY(*r->at == '"' ? unquote(r) : skip_plain(r));
    char *end = r->at;
    more = *end == ',';
    if (*end == '\n') r->line++;
    if (*end != '\0') r->at++;
    if (*end == '\n' && end > r->cells[r->n - 1] && end[-1] == '\r') end--;
    *end = '\0';
  }
  return HK_OK;
}

/* -- The header -------------------------------------------------------------------------------- */

typedef struct {
  const field *of[MOST_COLUMNS]; /* NULL: an unknown column */
  size_t n;
} header;

static hk_status fail_missing(const field *f, const reader *r, hk_error *err) {
  const char *nearest = hk_nearest(f->column, (const char *const *)r->cells, r->n);
  return hk_fail(err, HK_INPUT, "line %d: column '%s' (%s) is missing%s%.60s%s", r->begin,
                 f->column, f->meaning, nearest ? "; is it '" : "", nearest ? nearest : "",
                 nearest ? "'?" : "");
}

static hk_status read_header(reader *r, header *h, hk_error *err) {
  HK_TRY(read_record(r));
  if (r->n == 0)
    return hk_fail(err, HK_INPUT,
                   "the file is empty; expected a line with the names of the columns");
  h->n = r->n;
  for (size_t i = 0; i < FIELDS; i++) {
    int found = 0;
    for (size_t c = 0; c < r->n; c++) {
      if (strcmp(r->cells[c], fields[i].column) != 0) continue;
      h->of[c] = &fields[i];
      found++;
    }
    if (found > 1)
      return hk_fail(err, HK_INPUT, "line %d: column '%s' appears %d times", r->begin,
                     fields[i].column, found);
    if (found == 0 && fields[i].required) return fail_missing(&fields[i], r, err);
  }
  return HK_OK;
}

/* -- Rows -------------------------------------------------------------------------------------- */

static hk_status set_number(hk_run *run, const field *f, const char *text, hk_error *err) {
  /* strtod also accepts spaces, hexadecimal, "nan" and "inf", which are refused here. */
  const bool plain = text[strspn(text, "0123456789.eE+-")] == '\0';
  char *end = NULL;
  const double value = strtod(text, &end);
  if (plain && *end == '\0' && isfinite(value) && value >= 0) {
    *number_of(run, f) = value;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "expected a number of at least 0 (%s), got '%.60s'", f->meaning,
                 text);
}

static hk_status set_cell(hk_run *run, const field *f, const char *text, hk_error *err) {
  if (*text == '\0' && f->required)
    return hk_fail(err, HK_INPUT, "is empty, but required in every row (%s)", f->meaning);
  if (f->text) return set_text(run, f, text, err);
  return *text == '\0' ? HK_OK : set_number(run, f, text, err);
}

static hk_status read_run(const reader *r, const header *h, hk_run *run, hk_error *err) {
  if (r->n != h->n)
    return hk_fail(err, HK_INPUT, "line %d: %zu fields, but the table has %zu columns", r->begin,
                   r->n, h->n);
  run->line = r->begin;
  for (size_t c = 0; c < r->n; c++) {
    if (!h->of[c] || set_cell(run, h->of[c], r->cells[c], err) == HK_OK) continue;
    return hk_fail_prefix(err, "line %d: column '%s'", r->begin, h->of[c]->column);
  }
  return HK_OK;
}

static hk_status read_runs(reader *r, hk_run_table *table, hk_error *err) {
  header h = {0};
  HK_TRY(read_header(r, &h, err));
  for (;;) {
    HK_TRY(read_record(r));
    if (r->n == 0) break;
    hk_run run;
    HK_TRY(hk_run_init(&run, err));
    const hk_status status = read_run(r, &h, &run, err);
    if (status != HK_OK) hk_run_free(&run);
    HK_TRY(status);
    HK_TRY(hk_run_table_add(table, &run, err));
  }
  return table->n > 0 ? HK_OK : hk_fail(err, HK_INPUT, "the table has columns but no rows");
}

/* -- Files ------------------------------------------------------------------------------------- */

static hk_status read_text(char *text, size_t length, hk_run_table *table, hk_error *err) {
  static const char mark[] =
      "\xEF\xBB\xBF"; /* byte order mark, which spreadsheets write before UTF-8 */
  if (memchr(text, '\0', length))
    return hk_fail(err, HK_INPUT, "it holds a NUL byte: not a CSV file");
  reader r = {.at = strncmp(text, mark, 3) == 0 ? text + 3 : text, .line = 1, .err = err};
  return read_runs(&r, table, err);
}

hk_status hk_run_table_load(const char *path, hk_run_table *table, hk_error *err) {
  char *text;
  size_t length;
  *table = (hk_run_table){0};
  snprintf(table->path, sizeof table->path, "%s", path);
  hk_status status = hk_infile_read(path, "a CSV file", MOST_BYTES, &text, &length, err);
  if (status == HK_OK) status = read_text(text, length, table, err);
  free(text);
  if (status == HK_OK) return HK_OK;
  hk_run_table_free(table);
  return hk_fail_prefix(err, "%s", path);
}

hk_status hk_run_table_add(hk_run_table *table, hk_run *run, hk_error *err) {
  const hk_status status = HK_GROW(table->runs, table->room, table->n, "a run table", err);
  if (status != HK_OK) {
    hk_run_free(run);
    return status;
  }
  table->runs[table->n++] = *run;
  *run = (hk_run){0};
  return HK_OK;
}

void hk_run_table_free(hk_run_table *table) {
  for (size_t i = 0; i < table->n; i++) hk_run_free(&table->runs[i]);
  free(table->runs);
  *table = (hk_run_table){0};
}

/* -- Writing ----------------------------------------------------------------------------------- */

/* The fewest digits that read back as the same number. */
static void write_number(double value, FILE *out) {
  if (isnan(value)) return;
  char text[32];
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  fputs(text, out);
}

hk_status hk_run_table_write(const hk_run_table *table, FILE *out, hk_error *err) {
  errno = 0;
  for (size_t i = 0; i < FIELDS; i++) fprintf(out, "%s%s", i > 0 ? "," : "", fields[i].column);
  fputc('\n', out);
  for (size_t row = 0; row < table->n; row++) {
    for (size_t i = 0; i < FIELDS; i++) {
      if (i > 0) fputc(',', out);
      if (fields[i].text)
        hk_csv_text(*text_of(&table->runs[row], &fields[i]), out);
      else
        write_number(*number_of(&table->runs[row], &fields[i]), out);
    }
    fputc('\n', out);
  }
  const bool good = fflush(out) == 0 && !ferror(out);
  if (good) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "cannot write the table: %s",
                 errno ? strerror(errno) : "an earlier write failed");
}
