/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Writes a page: the template with its parts in the places of their markers. */
#include "cli/page.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/infile.h"
#include "core/base/names.h"
#include "core/base/outfile.h"

#define SHARE_REMEDY "HOCKET_SHARE names hocket's share folder"
#define MOST_BYTES   ((size_t)16 << 20) /* of a part */

static hk_status read_part(const char *name, const char *remedy, char **text, hk_error *err) {
  char path[4096];
  size_t length;
  snprintf(path, sizeof path, "%s/report/%s", hk_share_dir(), name);
  if (hk_infile_read(path, "a part of the page", MOST_BYTES, text, &length, err) == HK_OK)
    return HK_OK;
  const hk_error cause = *err;
  return hk_fail(err, HK_ENVIRONMENT, "%s: %s; %s", path, cause.message, remedy);
}

hk_status hk_page_check(bool ok, hk_error *err) {
  return ok ? HK_OK : hk_fail(err, HK_ENVIRONMENT, "out of memory for the page");
}

/* As JSON inside a <script>: no '<', so that no text of the data ends the element. */
static void write_data(const char *json, FILE *stream) {
  for (const char *c = json; *c; c++)
    if (*c == '<')
      fputs("\\u003c", stream);
    else
      fputc(*c, stream);
}

/* What goes where in the template, in its order. NULL: the data. */
static const struct {
  const char *marker, *file, *remedy;
} parts[] = {
    {"/* LIBRARY */", "plotly.min.js",
     "the plotting library is missing: scripts/plotly gets it, or copy "
     "plotly/package_data/plotly.min.js of the Python package plotly there"},
    {"/* DATA */", NULL, NULL},
    {"/* PLOTS */", "plots.js", SHARE_REMEDY},
    {"/* DOCUMENTS */", "documents.js", SHARE_REMEDY},
};
enum { PARTS = sizeof parts / sizeof *parts };

/* Writes the template with all parts; false: it lacks a marker. */
static bool write_parts(const char *page, char *const *texts, const char *json, FILE *stream) {
  for (int i = 0; i < PARTS; i++) {
    const char *end = strstr(page, parts[i].marker);
    if (!end) return false;
    fwrite(page, 1, (size_t)(end - page), stream);
    if (texts[i])
      fputs(texts[i], stream);
    else
      write_data(json, stream);
    page = end + strlen(parts[i].marker);
  }
  fputs(page, stream);
  return true;
}

static hk_status write_file(const char *page, char *const *texts, const char *json,
                            const char *path, hk_error *err) {
  hk_outfile *file = NULL;
  HK_TRY(hk_outfile_open(path, &file, err));
  if (write_parts(page, texts, json, hk_outfile_stream(file))) return hk_outfile_close(file, err);
  hk_outfile_abort(file);
  return hk_fail(err, HK_ENVIRONMENT, "%s/report/page.html: not this version's template",
                 hk_share_dir());
}

hk_status hk_page_write(const cJSON *data, const char *path, hk_error *err) {
  char *page = NULL, *json = NULL, *texts[PARTS] = {NULL};
  hk_status status = read_part("page.html", SHARE_REMEDY, &page, err);
  for (int i = 0; i < PARTS && status == HK_OK; i++)
    if (parts[i].file) status = read_part(parts[i].file, parts[i].remedy, &texts[i], err);
  if (status == HK_OK) {
    json = cJSON_PrintUnformatted(data);
    status = hk_page_check(json != NULL, err);
  }
  if (status == HK_OK) status = write_file(page, texts, json, path, err);
  for (int i = 0; i < PARTS; i++) free(texts[i]);
  cJSON_free(json);
  free(page);
  return status;
}
