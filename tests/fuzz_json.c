/* SPDX-License-Identifier: GPL-3.0-or-later */
/* libFuzzer harness for everything that reads JSON: any bytes give a value or an error with a
 * message, never a crash, a leak or a hang; and a plan that was let in can be expanded and
 * simulated with every invariant checked. tests/CMakeLists.txt says how to build it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/machine.h"
#include "core/plan.h"
#include "sim/sim.h"

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

/* Every quantity in the middle of what it may be, on a logarithmic scale. */
static hk_machine middling_machine(void) {
  hk_machine m = {0};
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    hk_quantity *q = hk_machine_quantity(&m, &info[i]);
    *q = (hk_quantity){sqrt(fmax(info[i].least, 1) * info[i].most), HK_ORIGIN_DEFAULT, "fuzz"};
  }
  return m;
}

/* Small plans only: the harness looks for wrong ones, not for long ones. */
static void simulate(const hk_plan *plan) {
  if (plan->model.layers * plan->job.grad_accum > 2000 || plan->n_subgroups > 2000) return;
  if (plan->piece_numel < plan->model.parameters / 2000) return;
  hk_graph graph = {0};
  hk_error err = {0};
  hk_status status = hk_graph_build(plan, HK_EXPAND_ALL, true, &graph, &err);
  check(status, &err);
  if (status != HK_OK) return;
  const hk_machine machine = middling_machine();
  const hk_sim_options options = {.check = true};
  hk_result result = {0};
  status = hk_simulate(&graph, &machine, &options, &result, &err);
  check(status, &err);
  if (status == HK_NO) abort(); /* an invariant was broken */
  hk_result_free(&result);
  hk_graph_free(&graph);
}

static void read_plan(const cJSON *root) {
  hk_plan plan = {0};
  hk_error err = {0};
  hk_status status = hk_plan_from_json(root, &plan, &err);
  check(status, &err);
  /* A plan that was let in is one that may be run. */
  if (status == HK_OK && hk_plan_check(&plan, &err) != HK_OK) abort();
  if (status == HK_OK) simulate(&plan);
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
