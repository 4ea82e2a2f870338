/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Parts of the log import: lines, numbers, settings, row. For traces/import_deepspeed*.c and tests
 * only. */
#ifndef HK_TRACES_IMPORT_DEEPSPEED_INTERNAL_H
#define HK_TRACES_IMPORT_DEEPSPEED_INTERNAL_H

#include "traces/import_deepspeed.h"

/* -- Lines (import_deepspeed_lines.c) ----------------------------------------------------------
 * A line ends at \n, or at \r as progress bars print. Escape sequences of terminals and NUL bytes
 * are skipped. */

#define HK_LOG_LINE 65536

typedef struct {
  FILE *file;
  char block[65536];
  size_t block_n, at;
  char text[HK_LOG_LINE]; /* NUL-terminated */
  size_t n;               /* its length */
  int escape;             /* state within an escape sequence */
  bool cut;               /* this line has no end */
  bool overlong;          /* this line was too long and cut after a blank */
} hk_log;

hk_status hk_log_open(hk_log *log, const char *path, hk_error *err);
/* Reads the next line and updates the report. *more false: end of the file. */
hk_status hk_log_next(hk_log *log, hk_import_report *report, bool *more, hk_error *err);
void hk_log_close(hk_log *log);

/* -- Numbers (import_deepspeed_number.c) ------------------------------------------------------- */

/* HK_NUMBER_NONE: no digit. HK_NUMBER_BAD: a number that is cut off or ambiguous ("1,234" is 1.234
 * or 1234, depending on the country). */
typedef enum { HK_NUMBER_NONE, HK_NUMBER_BAD, HK_NUMBER_OK } hk_number;

/* Read a number after optional blanks. The decimal separator is a point or comma; thousands may be
 * separated by commas, points, apostrophes or blanks (also U+00A0, U+2009, U+202F). *text moves
 * past the number. */
hk_number hk_log_count(const char **text, double *value); /* a whole number */
hk_number hk_log_real(const char **text, double *value);
/* A real that is always printed with decimals: one without is cut off (HK_NUMBER_BAD). */
hk_number hk_log_fixed(const char **text, double *value);

/* -- Settings (import_deepspeed_settings.c) ---------------------------------------------------- */

/* NAN: unknown. Switches are 0 or 1. */
#define HK_LOG_SETTINGS(X) \
  X(layers)                \
  X(hidden)                \
  X(ffn)                   \
  X(heads)                 \
  X(kv_heads)              \
  X(groups)                \
  X(grouped)               \
  X(vocab)                 \
  X(vocab_raw)             \
  X(seq)                   \
  X(tp)                    \
  X(dp)                    \
  X(nodes)                 \
  X(world)                 \
  X(cores)                 \
  X(micro)                 \
  X(global)                \
  X(accum)                 \
  X(log_interval)          \
  X(megatron_micro)        \
  X(megatron_global)       \
  X(params)                \
  X(subgroup)              \
  X(ratio)                 \
  X(offload)               \
  X(prefetch)              \
  X(async)                 \
  X(gap)

typedef struct {
#define HK_LOG_SETTING(name) double name;
  HK_LOG_SETTINGS(HK_LOG_SETTING)
#undef HK_LOG_SETTING
  char build[64];
  bool in_offload; /* within the braces of offload_optimizer */
  struct hk_log_subgroups {
    struct {
      long long numel, count;
    } * runs; /* owned */
    size_t n, room;
    long long total; /* so far */
    bool broken;     /* some are missing in the log */
  } subgroups;
} hk_log_settings;

void hk_log_settings_init(hk_log_settings *settings);
void hk_log_settings_free(hk_log_settings *settings);
/* Reads the settings in one line. *bad is increased by the number of unusable numbers. */
hk_status hk_log_settings_read(hk_log_settings *settings, const char *line, int *bad,
                               hk_error *err);

/* -- The row (import_deepspeed_row.c) ---------------------------------------------------------- */

/* Fills shape, parallelism and policy of the run, no times. */
hk_status hk_log_row(const hk_log_settings *settings, const hk_import_options *options,
                     const char *path, hk_run *run, hk_error *err);
/* Lists the empty columns in the report. */
void hk_log_missing(const hk_run *run, hk_import_report *report);

#endif
