/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Logs of DeepSpeed and Megatron-DeepSpeed to rows of a run table. Reads line by line in bounded
 * memory; what cannot be used is counted and said, never guessed.
 *
 * The columns are those of traces/run_table.h. Times and allocator marks are medians over the
 * steady iterations. Read are: DeepSpeed's "time (ms) | fwd: ..." (or "forward: ..."), its sums of
 * micro-steps where only those were kept, Megatron's timers; "elapsed time per iteration"; the
 * marks of memory_breakdown; Megatron's arguments; DeepSpeed's configuration; the subgroups; the
 * cores that the launcher bound rank 0 to. */
#ifndef HK_TRACES_IMPORT_DEEPSPEED_H
#define HK_TRACES_IMPORT_DEEPSPEED_H

#include "traces/run_table.h"

/* Iterations that medians are over, at most; what a log has beyond is counted and said. */
#define HK_IMPORT_MOST_ITERATIONS 65536

typedef struct {
  int skip;               /* iterations dropped at the start (warm-up); 2 as published */
  const char *machine;    /* the profile's name for the new row; NULL: "unknown" */
  const hk_run *defaults; /* for columns that the log does not say; NULL: none */
} hk_import_options;

/* What was read of one log, for the user. */
typedef struct {
  long long lines, bytes;
  long long long_lines;  /* only their first 64 KiB was read */
  long long nul_bytes;   /* dropped: a disk that filled up, or UTF-16 */
  long long bad_numbers; /* that may be cut off or be read in two ways, so are not used */
  long long bad_line;    /* where the first of them is */
  bool cut_end;          /* the last line has no end, so is not used */
  int runs;              /* begun in this file; the last one is read */
  int iterations;        /* complete ones found */
  int steady;            /* of them used for the medians */
  bool paced;            /* iter_ms is the time between steps: the log has none of its own */
  bool failed;           /* the run ended in an error of its own (traceback, OOM, signal) */
  char failure[256];     /* its line */
  char missing[512];     /* columns that nobody said, "" when none */
  bool incomplete;       /* some of them are ones that a run table needs */
} hk_import_report;

/* Appends at most one row. `path` "-" is standard input. HK_NO when the log holds no steady
 * iteration (the message says why), HK_INPUT when it cannot be opened, HK_ENVIRONMENT when reading
 * fails or memory ends. The report is filled as far as reading came. */
hk_status hk_import_deepspeed(const char *path, const hk_import_options *options,
                              hk_run_table *table, hk_import_report *report, hk_error *err);

#endif
