/* SPDX-License-Identifier: GPL-3.0-or-later */
/* One HTML page of what hocket wrote, for `hocket report`: share/report/page.html, a plotting
 * library and the data, as one file. The page draws; here is only what it draws. */
#ifndef HK_CLI_PAGE_H
#define HK_CLI_PAGE_H

#include <cjson/cJSON.h>

#include "cli/args.h"
#include "core/graph/timeline.h"

/* Reads operand `i` into the object `input`: a document that --json printed, as it is; a plan file,
 * which is simulated; a stored timeline with its pair; a sweep's database. HK_INPUT: none of
 * these. */
hk_status hk_page_read(const hk_args *args, int i, cJSON *input, hk_error *err);

/* Appends a timeline to the array: lanes, operations if there are at most `most`, phases, and
 * curves of the counters. */
void hk_page_timeline(const hk_graph *graph, const hk_timeline *timeline, const char *name,
                      size_t most, cJSON *array, bool *ok);
/* Adds the rows of a sweep's database that the page shows. */
hk_status hk_page_sweep(const char *path, cJSON *input, hk_error *err);

/* What `ok` says of the calls that took it: HK_OK, or HK_ENVIRONMENT, no memory. */
hk_status hk_page_check(bool ok, hk_error *err);

/* Writes the page. HK_ENVIRONMENT: the template or the plotting library is missing. */
hk_status hk_page_write(const cJSON *data, const char *path, hk_error *err);

#endif
