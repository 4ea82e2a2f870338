/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Logs of DeepSpeed. For any input the counts add up, and a row made of it can be written. */
#include <stdio.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "traces/import_deepspeed.h"

static void check_report(const hk_import_report *report, size_t size, hk_status status) {
  FUZZ_MUST(report->bytes == (long long)size);
  FUZZ_MUST(report->lines >= report->long_lines && report->nul_bytes <= report->bytes);
  FUZZ_MUST(report->iterations >= report->steady && report->steady >= 0);
  FUZZ_MUST(!report->failed || *report->failure);
  FUZZ_MUST((status == HK_OK) == (report->steady > 0));
}

static void check_table(const hk_run_table *table) {
  hk_error err = {0};
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  FUZZ_MUST(out != NULL);
  FUZZ_MUST(hk_fuzz_read(hk_run_table_write(table, out, &err), &err));
  FUZZ_MUST(fclose(out) == 0);
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  hk_error err = {0};
  hk_run_table table = {0};
  hk_import_report report = {0};
  const hk_import_options options = {.skip = data[0] % 4, .machine = "fuzz"};
  const hk_status status =
      hk_import_deepspeed(hk_fuzz_file(data + 1, size - 1), &options, &table, &report, &err);
  hk_fuzz_read(status, &err);
  FUZZ_MUST(table.n == (status == HK_OK));
  check_report(&report, size - 1, status);
  check_table(&table);
  hk_run_table_free(&table);
  return 0;
}
