/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Prints a comparison of two timelines (traces/compare.h). */
#ifndef HK_CLI_PRINT_PRINT_COMPARISON_H
#define HK_CLI_PRINT_PRINT_COMPARISON_H

#include <cjson/cJSON.h>

#include "cli/args.h"
#include "traces/chrome.h"
#include "traces/compare.h"

typedef struct {
  const hk_graph *graph;
  const hk_timeline *a, *b; /* the prediction, the measurement */
  const hk_timeline_comparison *comparison;
  const char *a_name, *b_name; /* names in text and, followed by "_ms", keys of JSON */
} hk_comparison_input;

/* The input that compares a prediction with its measurement; it keeps all four pointers. */
hk_comparison_input hk_prediction_and_measurement(const hk_graph *graph,
                                                  const hk_timeline *predicted,
                                                  const hk_timeline *measured,
                                                  const hk_timeline_comparison *comparison);
/* Writes `n` layers to the Chrome trace of --timeline, which must be given. Notes begin with
 * `command`. */
hk_status hk_write_layers(const hk_args *args, const char *command, const hk_graph *graph,
                          const hk_chrome_layer *layers, size_t n, hk_error *err);
/* Writes both to the Chrome trace of --timeline, if that is given. Notes begin with `command`. */
hk_status hk_comparison_write_trace(const hk_args *args, const char *command, const hk_graph *graph,
                                    const hk_timeline *predicted, const hk_timeline *measured,
                                    hk_error *err);
/* Whether the makespan's error is at most --max-error; true without that option. */
bool hk_comparison_passes(const hk_args *args, const hk_timeline_comparison *comparison);

/* Adds "makespan", "phases", "lanes", "operations", "attribution", "parts_at" and "summary". */
void hk_put_comparison(const hk_comparison_input *compared, cJSON *root, bool *ok);
/* Prints tables: makespan and phases, lanes, operations, causes. */
hk_status hk_print_comparison_tables(const hk_comparison_input *compared, hk_error *err);
/* Prints the tables and, as the last line, the summary. */
hk_status hk_print_comparison(const hk_comparison_input *compared, hk_error *err);

/* One sentence: where the two first differ, by how much, and the main cause. Returns `buffer`; 512
 * bytes suffice. */
const char *hk_comparison_summary(const hk_comparison_input *compared, char *buffer, size_t size);

#endif
