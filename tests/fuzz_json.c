/* SPDX-License-Identifier: GPL-3.0-or-later */
/* libFuzzer harness for everything that reads JSON: any bytes give a value or an error with a
 * message, never a crash, a leak or a hang. Not part of the test run; by hand:
 *   clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -I. \
 *     core/[a-z]*.c tests/fuzz_json.c -lcjson -lm -o fuzz_json
 *   ./fuzz_json -max_len=65536 CORPUS share/models share/machines */
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/machine.h"
#include "core/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Success says nothing, failure says something. */
static void check(hk_status status, const hk_error *err) {
  if (status != HK_OK && (err->status != status || !*err->message)) abort();
}

/* What was read must be printable and, printed, the same value again. */
static void check_round_trip(const cJSON *root) {
  char *text = cJSON_PrintUnformatted(root);
  cJSON *again = NULL;
  hk_error err = {0};
  if (!text || hk_json_parse(text, strlen(text), "again", &again, &err) != HK_OK) abort();
  if (!cJSON_Compare(root, again, true)) abort();
  cJSON_Delete(again);
  cJSON_free(text);
}

static void read_model(const cJSON *root) {
  hk_model model = {0};
  hk_error err = {0};
  check(hk_model_from_config(root, "fuzz", &model, &err), &err);
  hk_model_free(&model);
}

static void read_machine(const cJSON *root) {
  hk_machine machine = {0};
  hk_error err = {0};
  check(hk_machine_from_json(root, &machine, &err), &err);
  hk_machine_free(&machine);
}

static void read_plan(const cJSON *root) {
  hk_plan plan = {0};
  hk_error err = {0};
  hk_status status = hk_plan_from_json(root, &plan, &err);
  check(status, &err);
  /* A plan that was let in is one that may be run. */
  if (status == HK_OK && hk_plan_check(&plan, &err) != HK_OK) abort();
  hk_plan_free(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  hk_error err = {0};
  cJSON *root = NULL;
  hk_status status = hk_json_parse((const char *)data, size, "fuzz", &root, &err);
  check(status, &err);
  if (status != HK_OK) return 0;
  check_round_trip(root);
  read_model(root);
  read_machine(root);
  read_plan(root);
  cJSON_Delete(root);
  return 0;
}
