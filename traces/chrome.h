/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Timelines as Chrome trace event JSON for Perfetto (ui.perfetto.dev) and chrome://tracing: one
 * process per rank, one thread per lane, one slice per operation, counters for memory and rates,
 * flow arrows for dependencies between lanes. Format: "Trace Event Format", Google, 2016. */
#ifndef HK_TRACES_CHROME_H
#define HK_TRACES_CHROME_H

#include "core/graph/timeline.h"

/* Writes the whole file or nothing (hk_outfile). `title`: name of the trace, in its metadata.
 * Slices of a track do not overlap. Times are in us with three decimals, exact to the ns. An
 * operation of duration 0 is an instant event. Counters in bytes_per_s are written in GB/s.
 * HK_INPUT if operations of a lane overlap or are out of order. LC_NUMERIC must be "C".
 * tests/check_trace.py checks a file. */
hk_status hk_chrome_write(const hk_graph *graph, const hk_timeline *timeline, const char *title,
                          const char *path, hk_error *err);

/* One of several timelines of a graph. */
typedef struct {
  const char *name; /* unique: "predicted", "measured" */
  const hk_timeline *timeline;
} hk_chrome_layer;

/* Writes several timelines into one trace. Each lane has one thread per timeline, in the given
 * order; position, thread id and name put them next to each other, however a viewer sorts. Counters
 * have one process per timeline. Arrows connect operations of the same timeline. The timelines'
 * names are in the metadata ("timelines") and in the arguments of each operation ("timeline"). */
hk_status hk_chrome_write_layers(const hk_graph *graph, const hk_chrome_layer *layers, size_t n,
                                 const char *title, const char *path, hk_error *err);

#endif
