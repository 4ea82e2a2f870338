/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines as Chrome trace event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing read:
 * a process a rank, a thread a lane, a slice an operation, counters for memory and rates, and flow
 * arrows for dependencies across lanes. Format: "Trace Event Format", Google, 2016. */
#ifndef HK_TRACES_CHROME_H
#define HK_TRACES_CHROME_H

#include "core/timeline.h"

/* `title` names the trace (metadata). Writes complete or not at all (hk_outfile). Slices on one
 * track never overlap; times are in microseconds with three decimals, so exact to the ns. An
 * operation that takes no time is an instant event. Counters in bytes_per_s are shown in GB/s.
 * HK_INPUT if the operations of a lane overlap or are out of order; tests/check_trace.py verifies
 * the rest of what a reader may rely on. LC_NUMERIC must be the C locale's. */
hk_status hk_chrome_write(const hk_graph *graph, const hk_timeline *timeline, const char *title,
                          const char *path, hk_error *err);

/* One of several timelines of a graph. */
typedef struct {
  const char *name; /* "predicted", "measured": differs from the others' */
  const hk_timeline *timeline;
} hk_chrome_layer;

/* All of them in one trace, one under the other: a lane has a thread for each timeline, in the
 * order given, next to each other by position, by thread id and by name, whichever of them a viewer
 * sorts by; counters have a process for each. Arrows stay within a timeline. The names are in the
 * metadata ("timelines") and in the arguments of each operation ("timeline"). */
hk_status hk_chrome_write_layers(const hk_graph *graph, const hk_chrome_layer *layers, size_t n,
                                 const char *title, const char *path, hk_error *err);

#endif
