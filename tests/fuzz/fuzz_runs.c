/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Run tables. An accepted one is written and read again with the same values, and each row gives a
 * plan or the reason why it has none. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "calib/validate/runs.h"
#include "tests/fuzz/fuzz.h"
#include "traces/run_table.h"

static bool same(double a, double b) {
  return a == b || (isnan(a) && isnan(b));
}

static void check_same(const hk_run *a, const hk_run *b) {
#define TEXT(field, column, required, meaning) FUZZ_MUST(strcmp(a->field, b->field) == 0);
  HK_RUN_TEXTS(TEXT)
#undef TEXT
#define NUMBER(field, column, required, meaning) FUZZ_MUST(same(a->field, b->field));
  HK_RUN_NUMBERS(NUMBER)
#undef NUMBER
}

static void check_again(const hk_run_table *table) {
  hk_error err = {0};
  hk_run_table again = {0};
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  FUZZ_MUST(out != NULL);
  FUZZ_MUST(hk_fuzz_read(hk_run_table_write(table, out, &err), &err));
  FUZZ_MUST(fclose(out) == 0);
  const hk_status status = hk_run_table_load(hk_fuzz_file((uint8_t *)text, size), &again, &err);
  if (!hk_fuzz_read(status, &err))
    hk_fuzz_abort(__FILE__, __LINE__, "what was written is read", err.message);
  FUZZ_MUST(again.n == table->n);
  for (size_t i = 0; i < table->n; i++) check_same(&table->runs[i], &again.runs[i]);
  hk_run_table_free(&again);
  free(text);
}

static void check_plans(const hk_run_table *table) {
  hk_fuzz_stream none = {0};
  const hk_machine machine = hk_fuzz_machine(&none);
  for (size_t i = 0; i < table->n && i < 4; i++) {
    hk_error err = {0};
    hk_plan plan = {0};
    const hk_status status = hk_run_plan(&table->runs[i], &machine, &plan, &err);
    if (hk_fuzz_read(status, &err)) FUZZ_MUST(hk_plan_check(&plan, &err) == HK_OK);
    hk_plan_free(&plan);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  hk_error err = {0};
  hk_run_table table = {0};
  if (hk_fuzz_read(hk_run_table_load(hk_fuzz_file(data, size), &table, &err), &err)) {
    check_again(&table);
    check_plans(&table);
  }
  hk_run_table_free(&table);
  return 0;
}
