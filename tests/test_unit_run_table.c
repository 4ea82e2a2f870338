/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Run tables: rows are read as they were written, and an error in a file is reported with line
 * and column. */
#include "traces/run_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/fixture.h"

#define HEADER                                                                        \
  "machine,model,layers,hidden,ffn,heads,kv_heads,vocab,seq,tp,dp,nodes,micro_batch," \
  "grad_accum,subgroup_numel,offload_ratio,interleave,step_ms,flush_async"
#define ROW "m,7B,32,4096,10880,32,4,50304,2048,1,4,1,4,1,100000000,0.8,0,3039.25,"

static char path[] = "/tmp/hk_run_table_XXXXXX";

static hk_status load(const char *text, hk_run_table *table, hk_error *err) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
  assert_int_equal(fclose(file), 0);
  return hk_run_table_load(path, table, err);
}

static hk_run_table good(const char *text) {
  hk_run_table table;
  hk_error err = {0};
  must(load(text, &table, &err), &err);
  return table;
}

static void refused(const char *text, const char *expected) {
  hk_run_table table;
  hk_error err = {0};
  assert_int_equal(load(text, &table, &err), HK_INPUT);
  if (!strstr(err.message, expected)) fail_msg("'%s' does not say '%s'", err.message, expected);
  assert_memory_equal(err.message, path, strlen(path));
  assert_null(table.runs);
}

/* -- Reading ----------------------------------------------------------------------------------- */

static void fields_are_found_by_name(void **state) {
  (void)state;
  hk_run_table t = good(HEADER ",source,remark\n" ROW "1,folder,ignored\n" ROW ",,\n");
  assert_int_equal(t.n, 2);
  assert_string_equal(t.runs[0].machine, "m");
  assert_string_equal(t.runs[0].source, "folder");
  assert_true(t.runs[0].layers == 32 && t.runs[0].offload_ratio == 0.8);
  assert_true(t.runs[0].step_ms == 3039.25 && t.runs[0].flush_async == 1);
  assert_true(isnan(t.runs[1].flush_async) && isnan(t.runs[0].fwd_ms));
  assert_string_equal(t.runs[1].source, "");
  assert_int_equal(t.runs[0].line, 2);
  assert_int_equal(t.runs[1].line, 3);
  hk_run_table_free(&t);
}

static void line_ends_and_quotes_of_rfc_4180(void **state) {
  (void)state;
  hk_run_table t = good("\xEF\xBB\xBF" HEADER ",source\r\n\r\n" ROW
                        "1,\"a, \"\"b\"\"\nc\"\r\n"
                        "\"m\",\"7B\",32,4096,\"10880\",32,4,50304,2048,1,4,1,4,1,1e8,1,0,,,\"\"");
  assert_int_equal(t.n, 2);
  assert_string_equal(t.runs[0].source, "a, \"b\"\nc");
  assert_int_equal(t.runs[0].line, 3);
  assert_int_equal(t.runs[1].line, 5);
  assert_true(t.runs[1].ffn == 10880 && t.runs[1].subgroup_numel == 1e8);
  assert_true(isnan(t.runs[1].step_ms));
  hk_run_table_free(&t);
}

/* -- Errors ------------------------------------------------------------------------------------ */

static void errors_are_named(void **state) {
  (void)state;
  refused("", "empty");
  refused("\n\r\n", "empty");
  refused(HEADER "\n", "no rows");
  refused("machine,model,layrs\n",
          "line 1: column 'layers' (transformer layers) is missing; is it "
          "'layrs'?");
  refused(HEADER ",dp\n" ROW ",1\n", "line 1: column 'dp' appears 2 times");
  refused(HEADER "\n" ROW "\n" ROW ",,\n", "line 3: 21 fields, but the table has 19 columns");
  refused(HEADER "\nm,7B,32\n", "line 2: 3 fields, but");
  refused(HEADER "\n,7B,32,4096,10880,32,4,50304,2048,1,4,1,4,1,1e8,1,0,,\n",
          "line 2: column 'machine': is empty, but required in every row");
  refused(HEADER "\n\"m,7B\n", "line 2: a quote is never closed");
  refused(HEADER "\nm\"x\",\n", "line 2: a quote inside a field");
  refused(HEADER "\n\"m\"x,\n", "line 2: expected a comma or the end of the line");
  static const char *const bad[] = {"abc",  "1.5.2", "nan",   "inf", "-1",
                                    "0x10", " 1",    "1e999", "1,5e"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char text[1024];
    snprintf(text, sizeof text, HEADER "\nm,7B,\"%s\",4096,1,1,1,1,1,1,1,1,1,1,1,1,0,,\n", bad[i]);
    refused(text, "line 2: column 'layers': expected a number of at least 0 (transformer layers)");
  }
}

static void files_that_cannot_be_read(void **state) {
  (void)state;
  hk_run_table table;
  hk_error err = {0};
  assert_int_equal(hk_run_table_load("/nowhere/runs.csv", &table, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "/nowhere/runs.csv: cannot be opened: No such file"));
  assert_int_equal(hk_run_table_load("/tmp", &table, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "directory"));
}

/* -- Writing ----------------------------------------------------------------------------------- */

static void what_is_written_reads_back(void **state) {
  (void)state;
  hk_run_table t = {0};
  hk_error err = {0};
  for (int i = 0; i < 20; i++) {
    hk_run run;
    must(hk_run_init(&run, &err), &err);
    free(run.machine);
    run.machine = strdup(i % 2 ? "a \"b\", c\n" : "m");
    free(run.model);
    run.model = strdup("7B");
    assert_non_null(run.machine);
    run.layers = run.hidden = run.ffn = run.heads = run.kv_heads = run.vocab = run.seq = run.tp = 1;
    run.dp = run.nodes = run.micro_batch = run.grad_accum = run.offload_ratio = run.interleave = 1;
    run.subgroup_numel = 5898506240;
    run.step_ms = 1.0 / (i + 3);
    must(hk_run_table_add(&t, &run, &err), &err);
    assert_null(run.machine);
  }
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  must(hk_run_table_write(&t, file, &err), &err);
  fclose(file);

  hk_run_table back;
  must(hk_run_table_load(path, &back, &err), &err);
  assert_int_equal(back.n, t.n);
  for (size_t i = 0; i < t.n; i++) {
    assert_string_equal(back.runs[i].machine, t.runs[i].machine);
    assert_true(back.runs[i].step_ms == t.runs[i].step_ms);
    assert_true(back.runs[i].subgroup_numel == 5898506240);
    assert_true(isnan(back.runs[i].stride));
  }
  hk_run_table_free(&back);

  if (access("/dev/full", W_OK) == 0) {
    FILE *full = fopen("/dev/full", "wb");
    assert_non_null(full);
    assert_int_equal(hk_run_table_write(&t, full, &err), HK_ENVIRONMENT);
    fclose(full);
  }
  hk_run_table_free(&t);
}

int main(void) {
  const int fd = mkstemp(path);
  if (fd < 0) return 1;
  close(fd);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fields_are_found_by_name),
      cmocka_unit_test(line_ends_and_quotes_of_rfc_4180),
      cmocka_unit_test(errors_are_named),
      cmocka_unit_test(files_that_cannot_be_read),
      cmocka_unit_test(what_is_written_reads_back),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  return failed;
}
