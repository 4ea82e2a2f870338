/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Converts logs of DeepSpeed and Megatron-DeepSpeed to rows of a run table (traces/run_table.h). A
 * log is read line by line in bounded memory. Unusable data is counted and reported; nothing is
 * guessed.
 *
 * Times and memory marks are medians over the steady iterations. The import reads
 * - times: DeepSpeed's "time (ms) | fwd: ..." (or "forward: ..."), or sums of its micro-steps if
 *   the log has only those; Megatron's timers; "elapsed time per iteration";
 * - memory: the allocator marks of memory_breakdown;
 * - settings: Megatron's arguments, DeepSpeed's configuration, the subgroups, and the cores to
 *   which the launcher bound rank 0. */
#ifndef HK_TRACES_IMPORT_DEEPSPEED_H
#define HK_TRACES_IMPORT_DEEPSPEED_H

#include "traces/run_table.h"

/* Most iterations in a median. Further ones of DeepSpeed are only counted; further iteration times
 * of Megatron are ignored. */
#define HK_IMPORT_MOST_ITERATIONS 65536

typedef struct {
  int skip;               /* iterations dropped at the start (warm-up); 2 as published */
  const char *machine;    /* column `machine` of the new row; NULL: "unknown" */
  const hk_run *defaults; /* values of columns that the log does not state; NULL: none */
} hk_import_options;

/* What was read and skipped in one log. */
typedef struct {
  long long lines, bytes;
  long long long_lines;  /* lines of which only the first 64 KiB were read */
  long long nul_bytes;   /* skipped; a disk was full, or the log is UTF-16 */
  long long bad_numbers; /* skipped: cut off or ambiguous */
  long long bad_line;    /* line of the first of them */
  bool cut_end;          /* the last line has no newline and was skipped */
  int runs;              /* runs in this file, of which the last one is read */
  int iterations;        /* complete ones; with Megatron's times only: their number */
  int steady;            /* those in the medians */
  bool paced;            /* iter_ms is the time between steps: the log has no iteration time */
  bool failed;           /* the run ended in an error (traceback, out of memory, signal) */
  char failure[256];     /* the line of that error */
  char missing[512];     /* columns without a value; "": none */
  bool incomplete;       /* some of them are required columns */
} hk_import_report;

/* Appends at most one row. `path` "-" is standard input. HK_NO: the log has no steady iteration;
 * the message states why. HK_INPUT: it cannot be opened. HK_ENVIRONMENT: a read error, or no
 * memory. The report covers everything that was read. */
hk_status hk_import_deepspeed(const char *path, const hk_import_options *options,
                              hk_run_table *table, hk_import_report *report, hk_error *err);

#endif
