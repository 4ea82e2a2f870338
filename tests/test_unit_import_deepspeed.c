/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Import of DeepSpeed logs: two published logs give their published rows; number formats of several
 * countries; any prefix or suffix of a log with equal iterations gives the same values or none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "traces/import_deepspeed_internal.h"

static char path[] = P_tmpdir "/hocket-log-XXXXXX";

static void put(const char *text, size_t n) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

typedef struct {
  hk_status status;
  hk_run_table table;
  hk_run *row; /* or NULL */
  hk_import_report report;
  hk_error err;
} result;

static result import_file(const char *file, int skip) {
  result r = {0};
  const hk_import_options options = {.skip = skip, .machine = "m"};
  r.status = hk_import_deepspeed(file, &options, &r.table, &r.report, &r.err);
  assert_int_equal(r.table.n, r.status == HK_OK ? 1 : 0);
  r.row = r.table.n > 0 ? r.table.runs : NULL;
  return r;
}

static result import_text(const char *text, int skip) {
  put(text, strlen(text));
  return import_file(path, skip);
}

static void drop(result *r) {
  hk_run_table_free(&r->table);
}

/* -- Numbers ----------------------------------------------------------------------------------- */

static void check_number(hk_number (*read)(const char **, double *), const char *text,
                         hk_number expected, double value, const char *rest) {
  const char *at = text;
  double got = -1;
  hk_number status = read(&at, &got);
  if (status != expected) fail_msg("'%s': status %d, expected %d", text, status, expected);
  if (status == HK_NUMBER_OK && got != value) fail_msg("'%s': %.17g", text, got);
  if (status == HK_NUMBER_OK) assert_string_equal(at, rest);
}

static void test_real_numbers(void **state) {
  (void)state;
  static const struct {
    const char *text;
    double value;
    const char *rest;
  } good[] = {
      {"4399.58 | x", 4399.58, " | x"},
      {"4399,58 | x", 4399.58, " | x"},
      {"4.399,58", 4399.58, ""},
      {"4,399.58", 4399.58, ""},
      {"4'399.58[", 4399.58, "["},
      {"4 399,58", 4399.58, ""},
      {"4\xC2\xA0"
       "399,58",
       4399.58, ""},
      {"4\xE2\x80\xAF"
       "399,58",
       4399.58, ""},
      {"1.234.567,5", 1234567.5, ""},
      {"1 234 567,5", 1234567.5, ""},
      {"  \xC2\xA0"
       "7.5",
       7.5, ""},
      {"0,123", 0.123, ""},
      {"0.8, ", 0.8, ", "},
      {"1.000000e+08", 1e8, ""},
      {"1,000000e+08", 1e8, ""},
      {"7.268", 7.268, ""},
      {"5In train_step", 5, "In train_step"},
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    check_number(hk_log_real, good[i].text, HK_NUMBER_OK, good[i].value, good[i].rest);
  static const char *const bad[] = {"4,399",
                                    "12 34",
                                    "1.2.3",
                                    "1,23,456.7",
                                    "1234,567.8",
                                    "1 23,45",
                                    "1'2",
                                    "1e300",
                                    "1.234.56",
                                    "4 399 58",
                                    "111111111111111111111111111111111111111111111"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    check_number(hk_log_real, bad[i], HK_NUMBER_BAD, 0, NULL);
  static const char *const none[] = {"", "nan", "None", " | x", "-1", ".5"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++)
    check_number(hk_log_real, none[i], HK_NUMBER_NONE, 0, NULL);
}

static void test_counts_and_fixed(void **state) {
  (void)state;
  check_number(hk_log_count, "100,000,000 x", HK_NUMBER_OK, 1e8, " x");
  check_number(hk_log_count, "50,000 x", HK_NUMBER_OK, 50000, " x");
  check_number(hk_log_count, "15326663680", HK_NUMBER_OK, 15326663680.0, "");
  check_number(hk_log_count, "1.000000e+08, ", HK_NUMBER_OK, 1e8, ", ");
  check_number(hk_log_count, "1.5", HK_NUMBER_BAD, 0, NULL);
  check_number(hk_log_count, "1.024", HK_NUMBER_BAD, 0, NULL);
  check_number(hk_log_count, "9007199254740993", HK_NUMBER_BAD, 0, NULL);
  check_number(hk_log_fixed, "2267.90[2024", HK_NUMBER_OK, 2267.9, "[2024");
  check_number(hk_log_fixed, "2267[2024", HK_NUMBER_BAD, 0, NULL);
  check_number(hk_log_fixed, "2,267", HK_NUMBER_BAD, 0, NULL);
}

/* -- The published logs ------------------------------------------------------------------------ */

/* `half` is half of the last digit that the table keeps. */
static void near(const char *what, double got, double expected, double half) {
  bool same = isnan(expected) ? isnan(got) : fabs(got - expected) <= half + 1e-9;
  if (!same) fail_msg("%s: %.6f, published %.6f", what, got, expected);
}

static void check_published(const char *file, const hk_run *expected) {
  result r = import_file(file, 2);
  if (!r.row) fail_msg("%s", r.err.message);
#define SAME(field, column, required, meaning)                                  \
  near(column, r.row->field, expected->field,                                   \
       strcmp(column, "fwd_ms") == 0 || strcmp(column, "bwd_ms") == 0 ||        \
               strcmp(column, "step_ms") == 0 || strcmp(column, "iter_ms") == 0 \
           ? 0.05                                                               \
           : 0);
  HK_RUN_NUMBERS(SAME)
#undef SAME
  assert_string_equal(r.row->build, expected->build);
  assert_string_equal(r.row->subgroups_rank0, expected->subgroups_rank0);
  assert_string_equal(r.row->machine, "m");
  assert_string_equal(r.report.missing, "");
  assert_int_equal(r.report.iterations, 10);
  assert_int_equal(r.report.bad_numbers, 0);
  assert_false(r.report.failed || r.report.cut_end || r.report.paced);
  drop(&r);
}

static void test_published(void **state) {
  (void)state;
  hk_run_table table;
  hk_error err = {0};
  if (hk_run_table_load(HK_TEST_DATA "/published-runs.csv", &table, &err) != HK_OK)
    fail_msg("%s", err.message);
  int found = 0;
  for (size_t i = 0; i < table.n; i++) {
    const hk_run *run = &table.runs[i];
    const char *log = NULL;
    if (strcmp(run->source, "act-output-20B-scale-twinflow") == 0 && run->offload_ratio == 1 &&
        run->interleave == 0 && run->flush_async == 0)
      log = HK_TEST_DATA "/logs/20b-h100-dp4-zero-offload.log";
    if (strcmp(run->source, "act-output-7B-scale-gaps-a100") == 0 && run->stride == 2)
      log = HK_TEST_DATA "/logs/7b-a100-dp4-interleave-k2.log";
    if (log) check_published(log, run);
    found += log != NULL;
  }
  assert_int_equal(found, 2);
  hk_run_table_free(&table);
}

/* -- A made-up log ----------------------------------------------------------------------------- */

static const char head[] =
    "[2024-04-15 01:14:59,733] [INFO] [launch.py:151:main] nnodes=2, num_local_procs=4\n"
    "[2024-04-15 01:14:59,733] [INFO] [launch.py:163:main] dist_world_size=8\n"
    "[2024-04-15 01:14:59,763] [INFO] [launch.py:253:main] process 5 spawned with command: "
    "['numactl', '-m', '0', '-C', '0-6,32-38', 'python', '--local_rank=0', '--deepspeed']\n"
    "------------------------ arguments ------------------------\n"
    "  data_parallel_size .............................. 8\n"
    "  ffn_hidden_size ................................. 11008\n"
    "  hidden_size ..................................... 4096\n"
    "  num_attention_heads ............................. 32\n"
    "  num_key_value_heads ............................. 4\n"
    "  num_layers ...................................... 16\n"
    "  seq_length ...................................... 2048\n"
    "  tensor_model_parallel_size ...................... 1\n"
    " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n"
    " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 3180503040\n"
    "[2024-04-15 01:15:02,231] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: "
    "version=0.14.2, git-hash=unknown\n"
    "[2024-04-15 01:15:02,300] [INFO] [stage3.py:7:f] [Rank 0] ========== Param group 0, Subgroup "
    "0, numel: 70000000[2024-04-15 01:15:02,300] [INFO] [stage3.py:7:f] [Rank 1] ========== Param "
    "group 0, Subgroup 0, numel: 70000000\n"
    "[2024-04-15 01:15:02,301] [INFO] [stage3.py:7:f] [Rank 0] ========== Param group 0, Subgroup "
    "1, numel: 70000000\n"
    "[2024-04-15 01:15:02,301] [INFO] [stage3.py:7:f] [Rank 0] ========== Param group 0, Subgroup "
    "2, numel: 50000000\n"
    "[2024-04-15 01:15:03,523] [INFO] [config.py:1002:print]   gradient_accumulation_steps .. 2\n"
    "[2024-04-15 01:15:03,523] [INFO] [config.py:1002:print]   train_batch_size ............. 16\n"
    "[2024-04-15 01:15:03,523] [INFO] [config.py:1002:print]   train_micro_batch_size_per_gpu  1\n"
    "[2024-04-15 01:15:03,523] [INFO] [config.py:1002:print]   zero_config .................. "
    "stage=3 offload_param=None "
    "offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig(device='cpu', "
    "nvme_path=None, ratio=0.8, pin_memory=True) sub_group_size=50,000,000 cpu_offload=None\n";

#define TIME "[2024-04-15 01:%02d:%02d,500] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "

static void put_mark(FILE *out, const char *name, double now, double peak) {
  fprintf(out,
          "[2024-04-15 01:15:04,100] [INFO] [utils.py:800:see_memory_usage] Engine %s\n"
          "[2024-04-15 01:15:04,100] [INFO] [utils.py:801:see_memory_usage] MA %.2f GB         "
          "Max_MA %.2f GB         CA 9.55 GB         Max_CA 10 GB \n",
          name, now, peak);
}

/* Iterations `from` and up, 3 s apart, of two micro-steps each. */
static void put_iterations(FILE *out, int from, int n) {
  for (int i = from; i < from + n; i++) {
    for (int micro = 0; micro < 2; micro++) {
      put_mark(out, "before forward", 8.64, 8.64);
      put_mark(out, "after forward", 12.89, 15.01); /* a peak of forward, no column has it */
      put_mark(out, "before backward", 12.89, 12.89);
      put_mark(out, "after backward", 9.59, 14.62);
      put_mark(out, "before step", 9.59, 9.59);
      fprintf(out, TIME "fwd_microstep: 50.25 | bwd_microstep: 200.50 | step_microstep: %s\n",
              i * 3 / 60, i * 3 % 60, micro ? "1200.75" : "0.10");
    }
    fprintf(out, TIME "fwd: 100.50 | bwd: 401.00 | bwd_inner: 399.00 | step: 1200.85\n", i * 3 / 60,
            i * 3 % 60);
    put_mark(out, "after step", 8.63, 9.59);
    fprintf(out,
            " iteration %8d/      10 | elapsed time per iteration (ms): 1750.5 | lm loss: "
            "1.3E+01 |\n",
            i);
  }
}

static char *make_log(int iterations) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  assert_non_null(out);
  fputs(head, out);
  put_iterations(out, 0, iterations);
  assert_int_equal(fclose(out), 0);
  return text;
}

static void test_made_up(void **state) {
  (void)state;
  char *text = make_log(4);
  result r = import_text(text, 2);
  if (!r.row) fail_msg("%s", r.err.message);
  const hk_run expected = {.layers = 16,
                           .hidden = 4096,
                           .ffn = 11008,
                           .heads = 32,
                           .kv_heads = 4,
                           .vocab = 50304,
                           .seq = 2048,
                           .tp = 1,
                           .dp = 8,
                           .nodes = 2,
                           .cores_per_rank = 14,
                           .micro_batch = 1,
                           .global_batch = 16,
                           .grad_accum = 2,
                           .params_per_tp_rank = 3180503040,
                           .subgroup_numel = 50e6,
                           .offload_ratio = 0.8,
                           .interleave = 0,
                           .flush_async = NAN,
                           .stride = NAN,
                           .steady_iters = 2,
                           .fwd_ms = 100.5,
                           .bwd_ms = 401,
                           .step_ms = 1200.85,
                           .step_ms_min = 1200.85,
                           .step_ms_max = 1200.85,
                           .iter_ms = 1750.5,
                           .alloc_before_fwd_gb = 8.64,
                           .alloc_after_fwd_gb = 12.89,
                           .alloc_after_bwd_gb = 9.59,
                           .peak_bwd_gb = 14.62,
                           .alloc_after_step_gb = 8.63,
                           .peak_step_gb = 9.59};
#define SAME(field, column, required, meaning) near(column, r.row->field, expected.field, 0);
  HK_RUN_NUMBERS(SAME)
#undef SAME
  assert_string_equal(r.row->model, "3.2B");
  assert_string_equal(r.row->build, "0.14.2");
  assert_string_equal(r.row->subgroups_rank0, "70000000x2 50000000x1");
  assert_string_equal(r.report.missing, "flush_async");
  assert_false(r.report.incomplete);
  drop(&r);
  free(text);
}

/* Imports a part of the log and checks that each value equals the whole log's or is unknown.
 * Returns whether there is a row. */
static bool check_part(const hk_run *whole, const char *text, size_t n, int *iterations) {
  put(text, n);
  result r = import_file(path, 0);
  *iterations = r.report.iterations;
  bool row = r.row != NULL;
  assert_true(r.status == HK_OK || r.status == HK_NO);
#define SAME(field, column, required, meaning)                            \
  if (row && !isnan(r.row->field) && strcmp(column, "steady_iters") != 0) \
    near(column, r.row->field, whole->field, 0);
  HK_RUN_NUMBERS(SAME)
#undef SAME
  if (row && *r.row->subgroups_rank0)
    assert_string_equal(r.row->subgroups_rank0, whole->subgroups_rank0);
  drop(&r);
  return row;
}

static void test_cut_everywhere(void **state) {
  (void)state;
  char *text = make_log(2);
  size_t length = strlen(text);
  result whole = import_text(text, 0);
  assert_int_equal(whole.report.iterations, 2);
  int before = 0, iterations, rows = 0;
  for (size_t n = 0; n <= length; n++) {
    rows += check_part(whole.row, text, n, &iterations);
    assert_true(iterations >= before);
    before = iterations;
  }
  assert_int_equal(before, 2);
  assert_true(rows > 1000);
  for (size_t from = 0; from < length; from++)
    check_part(whole.row, text + from, length - from, &iterations);
  drop(&whole);
  free(text);
}

/* -- Other forms ------------------------------------------------------------------------------- */

/* Phase names of DeepSpeed before 0.9, lines of another rank, and iteration times from the log's
 * time stamps alone. */
static void test_plain_deepspeed(void **state) {
  (void)state;
  char text[2048] = "";
  for (int i = 0; i < 5; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text),
             "  0%%|    | %d/1000\r[2021-10-08 20:%02d:58,%03d] [INFO] [logging.py:68:log_dist] "
             "[Rank 0] rank=0 time (ms) | forward: 316.00 | backward: 747.31 | backward_inner: "
             "514.96 | step: %d.50\n[Rank 1] time (ms) | forward: 1.00 | backward: 1.00 | step: "
             "1.00\n",
             i, i, 100 * i, 600 + i);
  result r = import_text(text, 2);
  if (!r.row) fail_msg("%s", r.err.message);
  near("fwd_ms", r.row->fwd_ms, 316, 0);
  near("step_ms", r.row->step_ms, 603.5, 0);
  near("step_ms_min", r.row->step_ms_min, 602.5, 0);
  near("iter_ms", r.row->iter_ms, 60100, 0);
  assert_true(r.report.paced && r.report.incomplete);
  assert_string_equal(r.row->model, "unknown");
  assert_non_null(strstr(r.report.missing, "layers, hidden"));
  drop(&r);
}

/* A log with lines of micro-steps only, two of which are an iteration. */
static void test_micro_steps_only(void **state) {
  (void)state;
  char text[2048] = "[config.py:1:print]   gradient_accumulation_steps .. 2\n";
  for (int i = 0; i < 6; i++)
    strcat(text, i % 2 ? "time (ms) | fwd_microstep: 10.50 | bwd_microstep: 20.25 | "
                         "step_microstep: 30.00\n"
                       : "time (ms) | fwd_microstep: 11.50 | bwd_microstep: 20.25 | "
                         "step_microstep: 0.10\n");
  result r = import_text(text, 1);
  if (!r.row) fail_msg("%s", r.err.message);
  assert_int_equal(r.report.iterations, 3);
  near("fwd_ms", r.row->fwd_ms, 22, 0);
  near("bwd_ms", r.row->bwd_ms, 40.5, 0);
  near("step_ms", r.row->step_ms, 30.1, 0);
  drop(&r);
}

static void test_megatron_timers(void **state) {
  (void)state;
  char text[4096] =
      "  num_query_groups ................................ 8\n"
      "  group_query_attention ........................... False\n"
      "  num_attention_heads ............................. 16\n";
  for (int i = 0; i < 3; i++)
    strcat(text,
           " iteration 1/ 9 | elapsed time per iteration (s): 5.25 |\n"
           "(min, max) time across ranks (ms):\n"
           "    forward-compute ................................: (400.10, 410.20)\n"
           "    backward-compute ...............................: (800.10, 810.20)\n"
           "    optimizer-inner-step ...........................: (1.10, 1.20)\n"
           "    optimizer ......................................: (90.10, 91.20)\n");
  result r = import_text(text, 2);
  if (!r.row) fail_msg("%s", r.err.message);
  near("fwd_ms", r.row->fwd_ms, 410.2, 0);
  near("bwd_ms", r.row->bwd_ms, 810.2, 0);
  near("step_ms", r.row->step_ms, 91.2, 0);
  near("iter_ms", r.row->iter_ms, 5250, 0);
  near("kv_heads", r.row->kv_heads, 16, 0);
  drop(&r);
  strcpy(text, "");
  for (int i = 0; i < 3; i++)
    strcat(text,
           "time (ms) | forward-compute: 43.21 | backward-compute: 87.10 | optimizer: 9.50 | "
           "batch-generator: 1.00\n");
  r = import_text(text, 2);
  if (!r.row) fail_msg("%s", r.err.message);
  near("bwd_ms", r.row->bwd_ms, 87.1, 0);
  drop(&r);
}

/* Another rank's output cuts a number: the rest of the line is not used. */
static void test_torn_lines(void **state) {
  (void)state;
  result r = import_text(
      "time (ms) | fwd: 10.50 | bwd: 20[Rank 3] hello\n"
      "time (ms) | fwd: 10.50 | bwd: 20.50 | step: 30.50In train_step\n",
      0);
  assert_int_equal(r.report.iterations, 1);
  assert_int_equal(r.report.bad_numbers, 1);
  assert_int_equal(r.report.bad_line, 1);
  if (!r.row) fail_msg("%s", r.err.message);
  near("step_ms", r.row->step_ms, 30.5, 0);
  drop(&r);
}

/* A job that was started again and appended to its log: the last run counts. */
static void test_restart(void **state) {
  (void)state;
  char *first = make_log(3), *text = NULL;
  assert_true(
      asprintf(&text, "%storch.cuda.OutOfMemoryError: CUDA out of memory.\n%s", first, head) > 0);
  result r = import_text(text, 2);
  assert_int_equal(r.status, HK_NO);
  assert_int_equal(r.report.runs, 2);
  assert_int_equal(r.report.iterations, 0);
  assert_non_null(strstr(r.err.message, "the last run in it"));
  drop(&r);
  free(text);
  assert_true(asprintf(&text, "%s%s", first, first) > 0);
  r = import_text(text, 2);
  assert_int_equal(r.status, HK_OK);
  assert_int_equal(r.report.iterations, 3);
  drop(&r);
  free(text);
  free(first);
}

static void test_failed_runs(void **state) {
  (void)state;
  static const char trace[] =
      "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n"
      "RuntimeError: CUDA error: an illegal memory access was encountered\n"
      "[launch.py:321:sigkill_handler] exits with return code = 1\n";
  char *first = make_log(3), *text = NULL;
  assert_true(asprintf(&text, "%s%s", first, trace) > 0);
  result r = import_text(text, 2);
  assert_int_equal(r.status, HK_OK);
  assert_true(r.report.failed);
  assert_string_equal(r.report.failure,
                      "RuntimeError: CUDA error: an illegal memory access was encountered");
  drop(&r);
  free(text);
  /* An error before iterations is not a failure: the run continued. */
  assert_true(asprintf(&text, "%s%s", trace, first) > 0);
  r = import_text(text, 2);
  assert_false(r.report.failed);
  drop(&r);
  free(text);
  free(first);
  r = import_text(trace, 2);
  assert_int_equal(r.status, HK_NO);
  assert_non_null(strstr(r.err.message, "illegal memory access"));
  drop(&r);
}

static void test_defaults(void **state) {
  (void)state;
  hk_run defaults;
  hk_error err = {0};
  assert_int_equal(hk_run_init(&defaults, &err), HK_OK);
  defaults.layers = 99; /* the log says 16 */
  defaults.flush_async = 1;
  const hk_import_options options = {.skip = 2, .defaults = &defaults};
  char *text = make_log(3);
  put(text, strlen(text));
  result r = {0};
  r.status = hk_import_deepspeed(path, &options, &r.table, &r.report, &r.err);
  assert_int_equal(r.status, HK_OK);
  near("layers", r.table.runs[0].layers, 16, 0);
  near("flush_async", r.table.runs[0].flush_async, 1, 0);
  assert_string_equal(r.table.runs[0].machine, "unknown");
  assert_string_equal(r.report.missing, "");
  drop(&r);
  hk_run_free(&defaults);
  free(text);
}

static void test_nothing_there(void **state) {
  (void)state;
  result r = import_text("", 2);
  assert_int_equal(r.status, HK_NO);
  assert_non_null(strstr(r.err.message, "no iteration found"));
  drop(&r);
  put("\0\0\x1b[31", 6);
  r = import_file(path, 2);
  assert_int_equal(r.status, HK_NO);
  assert_int_equal(r.report.nul_bytes, 2);
  drop(&r);
  r = import_file(P_tmpdir, 2);
  assert_int_equal(r.status, HK_INPUT);
  drop(&r);
  r = import_file("/nonexistent/a.log", 2);
  assert_int_equal(r.status, HK_INPUT);
  drop(&r);
}

static int begin(void **state) {
  (void)state;
  int fd = mkstemp(path);
  return fd < 0 || close(fd) != 0;
}

static int end(void **state) {
  (void)state;
  return unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_real_numbers),     cmocka_unit_test(test_counts_and_fixed),
      cmocka_unit_test(test_published),        cmocka_unit_test(test_made_up),
      cmocka_unit_test(test_cut_everywhere),   cmocka_unit_test(test_plain_deepspeed),
      cmocka_unit_test(test_micro_steps_only), cmocka_unit_test(test_megatron_timers),
      cmocka_unit_test(test_torn_lines),       cmocka_unit_test(test_restart),
      cmocka_unit_test(test_failed_runs),      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_nothing_there),
  };
  return cmocka_run_group_tests(tests, begin, end);
}
