/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A comparison of two timelines as JSON and as tables. */
#ifndef HK_CLI_PRINT_COMPARISON_H
#define HK_CLI_PRINT_COMPARISON_H

#include <cjson/cJSON.h>

#include "traces/compare.h"

typedef struct {
  const hk_graph *graph;
  const hk_timeline *a, *b; /* the prediction, the measurement */
  const hk_timeline_comparison *comparison;
  const char *a_name, *b_name; /* in text and, with "_ms" after them, keys of JSON: "a" */
} hk_comparison_input;

/* Adds "makespan", "phases", "lanes", "operations", "attribution", "parts_at" and "summary". */
void hk_put_comparison(const hk_comparison_input *compared, cJSON *root, bool *ok);
/* Tables to stdout: makespan and phases, lanes, operations, attribution. */
hk_status hk_print_comparison_tables(const hk_comparison_input *compared, hk_error *err);
/* The same, and the summary as the last line. */
hk_status hk_print_comparison(const hk_comparison_input *compared, hk_error *err);

/* Where they part first and why, in a sentence. Returns `buffer`; 512 bytes do. */
const char *hk_comparison_summary(const hk_comparison_input *compared, char *buffer, size_t size);

#endif
