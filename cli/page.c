/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Writes a page: the template with library and data in the places of its two markers. */
#include "cli/page.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/infile.h"
#include "core/base/names.h"
#include "core/base/outfile.h"

#define MOST_BYTES ((size_t)16 << 20) /* of the template, of the library */

static hk_status read_part(const char *name, const char *remedy, char **text, hk_error *err) {
  char path[4096];
  size_t length;
  snprintf(path, sizeof path, "%s/report/%s", hk_share_dir(), name);
  if (hk_infile_read(path, "a part of the page", MOST_BYTES, text, &length, err) == HK_OK)
    return HK_OK;
  const hk_error cause = *err;
  return hk_fail(err, HK_ENVIRONMENT, "%s: %s; %s", path, cause.message, remedy);
}

/* As JSON inside a <script>: no '<', so that no text of the data ends the element. */
static void write_data(const char *json, FILE *stream) {
  for (const char *c = json; *c; c++)
    if (*c == '<')
      fputs("\\u003c", stream);
    else
      fputc(*c, stream);
}

/* Writes `page` up to the marker; what follows it, or NULL if it is not there. */
static const char *write_until(const char *page, const char *marker, FILE *stream) {
  const char *end = page ? strstr(page, marker) : NULL;
  if (!end) return NULL;
  fwrite(page, 1, (size_t)(end - page), stream);
  return end + strlen(marker);
}

static hk_status write_parts(const char *page, const char *library, const char *json,
                             const char *path, hk_error *err) {
  hk_outfile *file = NULL;
  HK_TRY(hk_outfile_open(path, &file, err));
  FILE *stream = hk_outfile_stream(file);
  const char *rest = write_until(page, "/* LIBRARY */", stream);
  fputs(library, stream);
  rest = write_until(rest, "/* DATA */", stream);
  write_data(json, stream);
  if (!rest) {
    hk_outfile_abort(file);
    return hk_fail(err, HK_ENVIRONMENT, "%s/report/page.html: not this version's template",
                   hk_share_dir());
  }
  fputs(rest, stream);
  return hk_outfile_close(file, err);
}

hk_status hk_page_write(const cJSON *data, const char *path, hk_error *err) {
  char *page = NULL, *library = NULL, *json = NULL;
  hk_status status = read_part("page.html", "HOCKET_SHARE names hocket's share folder", &page, err);
  if (status == HK_OK)
    status = read_part("plotly.min.js",
                       "the plotting library is missing: scripts/plotly gets it, or copy "
                       "plotly/package_data/plotly.min.js of the Python package plotly there",
                       &library, err);
  if (status == HK_OK && !(json = cJSON_PrintUnformatted(data)))
    status = hk_fail(err, HK_ENVIRONMENT, "out of memory for the page");
  if (status == HK_OK) status = write_parts(page, library, json, path, err);
  cJSON_free(json);
  free(library);
  free(page);
  return status;
}
