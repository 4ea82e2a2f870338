/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The log import: times and allocator marks per iteration.
 *
 * Rank 0 prints DeepSpeed's lines, the last rank prints Megatron's iteration time. Their order in
 * the log is not their order in time, so the two are collected as separate series. An iteration of
 * rank 0 begins with "Engine before forward" (or a phase line) and ends before the next one after
 * its step. */
#include "traces/import_deepspeed.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/grow.h"
#include "traces/import_deepspeed_internal.h"

/* The quantities of an iteration of rank 0, and their columns. */
#define QUANTITIES(X)                \
  X(FWD, fwd_ms)                     \
  X(BWD, bwd_ms)                     \
  X(STEP, step_ms)                   \
  X(PACE, iter_ms)                   \
  X(BEFORE_FWD, alloc_before_fwd_gb) \
  X(AFTER_FWD, alloc_after_fwd_gb)   \
  X(AFTER_BWD, alloc_after_bwd_gb)   \
  X(PEAK_BWD, peak_bwd_gb)           \
  X(AFTER_STEP, alloc_after_step_gb) \
  X(PEAK_STEP, peak_step_gb)

typedef enum {
#define NAME(id, column) id,
  QUANTITIES(NAME)
#undef NAME
      N_QUANTITIES
} quantity;

typedef struct {
  double of[N_QUANTITIES]; /* NAN: not seen */
} iteration;

typedef struct {
  double *values;
  size_t n, room;
} series;

typedef struct {
  const hk_import_options *options;
  hk_import_report *report;
  hk_error *err;
  hk_log_settings settings;
  iteration *done;
  size_t n_done, room, beyond; /* beyond: iterations after HK_IMPORT_MOST_ITERATIONS */
  iteration now;
  int mark;        /* index in `marks` for the next allocator line; -1: none */
  double micro[3]; /* sums over micro-steps of forward, backward, step */
  double n_micro;
  bool whole_groups; /* the log has lines for whole iterations, not only for micro-steps */
  bool provisional;  /* the phases in `now` are sums of micro-steps; a line for the whole replaces
                        them */
  double stamp;      /* time of the last step in ms; NAN: unknown */
  double timers[3];  /* Megatron's timers of the current iteration */
  series times;      /* Megatron's iteration times */
  int weight;        /* of report->failure */
  bool in_traceback;
  long long line;
} import_task;

/* -- Iterations -------------------------------------------------------------------------------- */

static void clear(iteration *it) {
  for (int q = 0; q < N_QUANTITIES; q++) it->of[q] = NAN;
}

/* An iteration follows the error line: the error did not end the run. */
static void forget_failure(import_task *im) {
  im->report->failed = im->in_traceback = false;
  im->weight = 0;
}

static hk_status close_iteration(import_task *im) {
  if (im->n_done == HK_IMPORT_MOST_ITERATIONS) {
    im->beyond++;
  } else {
    HK_TRY(HK_GROW(im->done, im->room, im->n_done, "iterations", im->err));
    im->done[im->n_done++] = im->now;
  }
  clear(&im->now);
  im->provisional = false;
  return HK_OK;
}

static hk_status add_time(import_task *im, double ms) {
  forget_failure(im);
  if (im->times.n == HK_IMPORT_MOST_ITERATIONS) return HK_OK;
  HK_TRY(HK_GROW(im->times.values, im->times.room, im->times.n, "iterations", im->err));
  im->times.values[im->times.n++] = ms;
  return HK_OK;
}

/* -- Numbers ----------------------------------------------------------------------------------- */

static void count_bad(import_task *im, int n) {
  if (n > 0 && im->report->bad_numbers == 0) im->report->bad_line = im->line;
  im->report->bad_numbers += n;
}

static bool read_fixed(import_task *im, const char **at, double *value) {
  hk_number got = hk_log_fixed(at, value);
  if (got != HK_NUMBER_OK) count_bad(im, 1);
  return got == HK_NUMBER_OK;
}

/* -- Phase times ------------------------------------------------------------------------------- */

/* The last time stamp before `end`, "[2024-04-15 01:16:39,521]", in ms; NAN: none. */
static double find_stamp(const char *line, const char *end) {
  double stamp = NAN;
  for (const char *at = line; (at = strchr(at, '[')) && at < end; at++) {
    struct tm tm = {0};
    const char *ms = strptime(at, "[%Y-%m-%d %H:%M:%S,", &tm);
    if (ms) stamp = (double)timegm(&tm) * 1e3 + (double)strtol(ms, NULL, 10);
  }
  return stamp;
}

static hk_status set_phases(import_task *im, const double phases[3], double stamp,
                            bool provisional) {
  forget_failure(im);
  if (!isnan(im->now.of[STEP]) && !im->provisional) HK_TRY(close_iteration(im));
  if (!im->provisional) {
    double pace = stamp - im->stamp;
    im->now.of[PACE] = pace > 0 ? pace : NAN;
    im->stamp = stamp;
  }
  for (int i = 0; i < 3; i++) {
    im->now.of[FWD + i] = phases[i];
    im->micro[i] = 0;
  }
  im->n_micro = 0;
  im->provisional = provisional;
  return HK_OK;
}

/* For logs that have lines of micro-steps only, because they were filtered. */
static hk_status add_micro(import_task *im, const double phases[3], double stamp) {
  if (im->whole_groups) return HK_OK;
  im->provisional = false;
  for (int i = 0; i < 3; i++) im->micro[i] += phases[i];
  im->n_micro++;
  if (im->n_micro != im->settings.accum) return HK_OK;
  const double sums[3] = {im->micro[0], im->micro[1], im->micro[2]};
  return set_phases(im, sums, stamp, true);
}

/* The phase (0 to 2) of a timer's name, or -1. Names of DeepSpeed since 0.9, before 0.9, of
 * Megatron. */
static int find_phase(const char *name, size_t length, const char *suffix) {
  static const char *const names[] = {"fwd",
                                      "bwd",
                                      "step",
                                      "forward",
                                      "backward",
                                      "step",
                                      "forward-compute",
                                      "backward-compute",
                                      "optimizer"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    size_t n = strlen(names[i]);
    if (length == n + strlen(suffix) && strncmp(name, names[i], n) == 0 &&
        strncmp(name + n, suffix, length - n) == 0)
      return (int)i % 3;
  }
  return -1;
}

/* Reads "| NAME: 12.34 | NAME: ..." up to the first incomplete item. */
static void read_timers(import_task *im, const char *at, double groups[3], double micro[3]) {
  for (;;) {
    at += strspn(at, " ");
    if (*at++ != '|') return;
    at += strspn(at, " ");
    size_t length = strcspn(at, ":| ");
    const char *value = at + length;
    double ms;
    if (*value++ != ':') return;
    int group = find_phase(at, length, ""), part = find_phase(at, length, "_microstep");
    if (group < 0 && part < 0) {
      at = value + strcspn(value, "|");
      continue;
    }
    if (!read_fixed(im, &value, &ms)) return;
    if (group >= 0) groups[group] = ms;
    if (part >= 0) micro[part] = ms;
    at = value;
  }
}

/* The rank that printed text[0 .. end); 0 if it is not stated. */
static long find_rank(const char *text, const char *end) {
  long rank = 0;
  for (const char *at = text; (at = strstr(at, "[Rank ")) && at < end; at++)
    rank = strtol(at + strlen("[Rank "), NULL, 10);
  return rank;
}

static hk_status read_phases(import_task *im, const char *line) {
  for (const char *at = line; (at = strstr(at, "time (ms) |"));) {
    double groups[3] = {NAN, NAN, NAN}, micro[3] = {NAN, NAN, NAN};
    bool ours = find_rank(line, at) == 0;
    double stamp = find_stamp(line, at);
    at += strlen("time (ms) ");
    if (!ours) continue;
    read_timers(im, at, groups, micro);
    if (!isnan(micro[2])) HK_TRY(add_micro(im, micro, stamp));
    if (isnan(groups[2])) continue;
    HK_TRY(set_phases(im, groups, stamp, false));
    im->whole_groups = true;
  }
  return HK_OK;
}

/* Megatron's later form, one timer a line, the slowest rank second:
 * "    forward-compute ................................: (4043.41, 4053.40)" */
static hk_status read_megatron_timer(import_task *im, const char *line) {
  line += strspn(line, " ");
  size_t length = strcspn(line, " .:");
  int phase = find_phase(line, length, "");
  const char *at = strstr(line, "..: (");
  if (phase < 0 || !at) return HK_OK;
  double least, most;
  at += strlen("..: (");
  if (!read_fixed(im, &at, &least) || *at++ != ',' || !read_fixed(im, &at, &most)) return HK_OK;
  im->timers[phase] = most;
  if (phase != 2) return HK_OK;
  double phases[3];
  memcpy(phases, im->timers, sizeof phases);
  im->timers[0] = im->timers[1] = NAN;
  return im->whole_groups ? HK_OK : set_phases(im, phases, NAN, false);
}

/* "elapsed time per iteration (ms): 7268.9", or "(s)". */
static hk_status read_times(import_task *im, const char *line) {
  static const char intro[] = "elapsed time per iteration (";
  for (const char *at = line; (at = strstr(at, intro));) {
    at += strlen(intro);
    double scale = strncmp(at, "ms): ", 5) == 0 ? 1 : 1000, value;
    if (scale > 1 && strncmp(at, "s): ", 4) != 0) continue;
    at = strchr(at, ':') + 1;
    if (read_fixed(im, &at, &value)) HK_TRY(add_time(im, value * scale));
  }
  return HK_OK;
}

/* -- Allocator marks --------------------------------------------------------------------------- */

static const struct {
  const char *text;
  int now, peak; /* quantities, or -1 */
} marks[] = {
    {"Engine before forward", BEFORE_FWD, -1},
    {"Engine after forward", AFTER_FWD, -1}, /* its peak is that of forward */
    {"Engine before backward", -1, PEAK_BWD},
    {"Engine after backward", AFTER_BWD, PEAK_BWD},
    {"Engine before step", -1, -1},
    {"Engine after step", AFTER_STEP, PEAK_STEP},
};

static hk_status read_mark(import_task *im, const char *line) {
  im->mark = -1;
  for (int i = 0; i < (int)(sizeof marks / sizeof *marks); i++)
    if (strstr(line, marks[i].text)) im->mark = i;
  bool starts = im->mark >= 0 && marks[im->mark].now == BEFORE_FWD;
  return starts && !isnan(im->now.of[STEP]) ? close_iteration(im) : HK_OK;
}

/* "MA 8.64 GB         Max_MA 8.64 GB         CA 9.55 GB         Max_CA 10 GB", after a mark. */
static void read_allocator(import_task *im, const char *line) {
  const char *ma = strstr(line, "MA "), *max = strstr(line, " Max_MA ");
  double now, peak;
  if (im->mark < 0 || !ma || !max || ma > max) return;
  int mark = im->mark;
  im->mark = -1;
  ma += strlen("MA ");
  max += strlen(" Max_MA ");
  if (!read_fixed(im, &ma, &now) || !read_fixed(im, &max, &peak)) return;
  if (marks[mark].now >= 0) im->now.of[marks[mark].now] = now;
  double *highest = marks[mark].peak >= 0 ? &im->now.of[marks[mark].peak] : NULL;
  if (highest) *highest = fmax(*highest, peak); /* fmax takes the number of a number and NAN */
}

/* -- Failures ---------------------------------------------------------------------------------- */

/* Keeps the line that best explains why the run ended. */
static void read_failure(import_task *im, const char *line) {
  static const struct {
    const char *text;
    int weight;
  } signs[] = {
      {"out of memory", 4},          {"OutOfMemoryError", 4},
      {"ncclSystemError", 3},        {"collective operation timeout", 3},
      {"Segmentation fault", 2},     {"oom-kill", 4},
      {"exits with return code", 1}, {"Traceback (most recent call last)", 1},
  };
  int weight = 0;
  for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
    if (strstr(line, signs[i].text) && signs[i].weight > weight) weight = signs[i].weight;
  if (strstr(line, "Traceback (most recent")) im->in_traceback = true;
  const char *colon = im->in_traceback ? strstr(line, "Error: ") : NULL;
  if (colon && weight < 3) weight = 3;
  if (strstr(line, "WARNING") || weight <= im->weight) return;
  im->weight = weight;
  im->report->failed = true;
  line += strspn(line, " \t");
  snprintf(im->report->failure, sizeof im->report->failure, "%.200s", line);
}

/* -- One line ---------------------------------------------------------------------------------- */

static void reset(import_task *im) {
  hk_log_settings_free(&im->settings);
  hk_log_settings_init(&im->settings);
  clear(&im->now);
  im->mark = -1;
  im->n_done = im->beyond = im->times.n = 0;
  im->n_micro = 0;
  for (int i = 0; i < 3; i++) {
    im->micro[i] = 0;
    im->timers[i] = NAN;
  }
  im->whole_groups = im->provisional = false;
  im->stamp = NAN;
  forget_failure(im);
}

/* A start line after iterations begins the next run in the file: a queue has restarted the job and
 * appended its output. */
static void notice_start(import_task *im, const char *line) {
  bool starts = strstr(line, "- arguments -") || strstr(line, "dist_world_size=") ||
                strstr(line, "DeepSpeed info: version=");
  bool any = im->n_done > 0 || im->times.n > 0 || !isnan(im->now.of[STEP]);
  if (!starts || !any) return;
  reset(im);
  im->report->runs++;
}

static hk_status read_line(import_task *im, const char *line) {
  notice_start(im, line);
  int bad = 0;
  HK_TRY(hk_log_settings_read(&im->settings, line, &bad, im->err));
  count_bad(im, bad);
  read_failure(im, line);
  HK_TRY(read_phases(im, line));
  HK_TRY(read_times(im, line));
  HK_TRY(read_megatron_timer(im, line));
  if (strstr(line, "Engine ")) HK_TRY(read_mark(im, line));
  read_allocator(im, line);
  return HK_OK;
}

static hk_status read_lines(import_task *im, hk_log *log) {
  for (bool more = true; more;) {
    im->line = im->report->lines + 1;
    HK_TRY(hk_log_next(log, im->report, &more, im->err));
    if (log->cut)
      read_failure(im, log->text);
    else if (more)
      HK_TRY(read_line(im, log->text));
  }
  return isnan(im->now.of[STEP]) ? HK_OK : close_iteration(im);
}

/* -- Medians ----------------------------------------------------------------------------------- */

/* Rounded to 0.001 ms or GB: logs print fewer digits, and the mean of two of them may differ from
 * the decimal number in the last bit. Sorts `values`. */
static double median(double *values, size_t n) {
  gsl_sort(values, 1, n);
  return n > 0 ? round(gsl_stats_median_from_sorted_data(values, 1, n) * 1e3) / 1e3 : NAN;
}

/* Copies the known values of a quantity in the steady iterations. Returns their number. */
static size_t collect(const import_task *im, quantity q, double *values) {
  size_t n = 0;
  for (size_t i = (size_t)im->options->skip; i < im->n_done; i++)
    if (!isnan(im->done[i].of[q])) values[n++] = im->done[i].of[q];
  return n;
}

/* Number of Megatron's times in the warm-up: each is the mean over log_interval iterations. */
static size_t skipped_times(const import_task *im) {
  double every = fmax(im->settings.log_interval, 1);
  return (size_t)ceil(im->options->skip / every);
}

static void fill_times(import_task *im, hk_run *run, double *scratch) {
#define FILL(id, column)                 \
  {                                      \
    size_t n = collect(im, id, scratch); \
    run->column = median(scratch, n);    \
    if (id == STEP && n > 0) {           \
      run->step_ms_min = scratch[0];     \
      run->step_ms_max = scratch[n - 1]; \
    }                                    \
  }
  QUANTITIES(FILL)
#undef FILL
  size_t skip = skipped_times(im);
  if (im->times.n > skip)
    run->iter_ms = median(im->times.values + skip, im->times.n - skip);
  else
    im->report->paced = !isnan(run->iter_ms);
  run->steady_iters = im->report->steady;
}

static void count_iterations(import_task *im) {
  hk_import_report *report = im->report;
  size_t all = im->n_done > 0 ? im->n_done : im->times.n;
  size_t skip = im->n_done > 0 ? (size_t)im->options->skip : skipped_times(im);
  report->iterations = (int)(all + im->beyond);
  report->steady = all > skip ? (int)(all - skip) : 0;
}

static hk_status fail_empty(const import_task *im, hk_error *err) {
  const hk_import_report *report = im->report;
  const char *again = report->runs > 1 ? "the last run in it has " : "";
  if (report->failed)
    return hk_fail(err, HK_NO, "%s%d iterations, none after the %d of warm-up; the run failed: %s",
                   again, report->iterations, im->options->skip, report->failure);
  if (report->iterations > 0)
    return hk_fail(err, HK_NO, "%s%d iterations, none after the %d of warm-up", again,
                   report->iterations, im->options->skip);
  return hk_fail(err, HK_NO,
                 "%sno iteration found: neither 'time (ms) | fwd: ...' (DeepSpeed's "
                 "wall_clock_breakdown) nor 'elapsed time per iteration (ms): ...'",
                 again);
}

static hk_status add_run(import_task *im, const char *path, hk_run_table *table) {
  count_iterations(im);
  if (im->report->steady == 0) return fail_empty(im, im->err);
  hk_run run;
  HK_TRY(hk_log_row(&im->settings, im->options, path, &run, im->err));
  double *scratch = calloc(im->n_done + 1, sizeof *scratch);
  if (!scratch) {
    hk_run_free(&run);
    return hk_fail_memory(im->err, (im->n_done + 1) * sizeof *scratch, "iterations");
  }
  fill_times(im, &run, scratch);
  free(scratch);
  hk_log_missing(&run, im->report);
  return hk_run_table_add(table, &run, im->err);
}

hk_status hk_import_deepspeed(const char *path, const hk_import_options *options,
                              hk_run_table *table, hk_import_report *report, hk_error *err) {
  *report = (hk_import_report){.runs = 1};
  import_task im = {.options = options, .report = report, .err = err};
  const char *name = strcmp(path, "-") == 0 ? "stdin" : path;
  hk_log *log = malloc(sizeof *log);
  if (!log) return hk_fail_memory(err, sizeof *log, "a log");
  reset(&im);
  hk_status status = hk_log_open(log, path, err);
  if (status == HK_OK) {
    status = read_lines(&im, log);
    hk_log_close(log);
  }
  if (status == HK_OK) status = add_run(&im, name, table);
  hk_log_settings_free(&im.settings);
  free(im.done);
  free(im.times.values);
  free(log);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", name);
}
