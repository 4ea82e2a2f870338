/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans. An accepted one passes hk_plan_check and is printed as it was read. It can be expanded and
 * simulated with every invariant checked, on a machine whose quantities the plan's own bytes
 * choose. */
#include <string.h>

#include "core/base/json.h"
#include "sim/policy.h"
#include "tests/fuzz/fuzz.h"

static void check_again(const hk_plan *plan) {
  hk_error err = {0};
  hk_plan again = {0};
  cJSON *document = hk_plan_to_json(plan), *second;
  FUZZ_MUST(document != NULL);
  if (!hk_fuzz_read(hk_plan_from_json(document, &again, &err), &err)) {
    hk_fuzz_abort(__FILE__, __LINE__, "what was printed is read", err.message);
  }
  second = hk_plan_to_json(&again);
  FUZZ_MUST(cJSON_Compare(document, second, true));
  cJSON_Delete(document);
  cJSON_Delete(second);
  hk_plan_free(&again);
}

/* Cuts the same model again. Those subgroups run ahead whose spares, 12 bytes a parameter, fit in 6
 * bytes for each of the model's parameters. */
static void check_new(const hk_plan *plan) {
  hk_error err = {0};
  hk_model model = {0};
  hk_plan made = {0};
  FUZZ_MUST(hk_fuzz_read(hk_model_copy(&plan->model, &model, &err), &err));
  const hk_status status = hk_plan_create(&model, &plan->job, plan->runtime, plan->subgroup_rule,
                                          plan->subgroup_numel, &made, &err);
  hk_model_free(&model);
  if (!hk_fuzz_read(status, &err)) return;
  if (plan->runtime == HK_RUNTIME_HOCKET) {
    hk_plan_set_overlap(&made, HK_OVERLAP_BOTH);
    hk_plan_run_ahead_within(&made, 6 * plan->model.parameters, made.n_subgroups - 1);
    FUZZ_MUST(12 * hk_plan_ahead(&made) <= 6 * plan->model.parameters);
  }
  FUZZ_MUST(hk_plan_check(&made, &err) == HK_OK);
  hk_plan_free(&made);
}

static void check_plan(const hk_plan *plan) {
  hk_error err = {0};
  int64_t totals[HK_ROUTE_COUNT], sum = 0, parameters = 0;
  char text[512];
  FUZZ_MUST(hk_plan_check(plan, &err) == HK_OK);
  hk_plan_route_totals(plan, totals);
  for (int route = 0; route < HK_ROUTE_COUNT; route++) sum += totals[route];
  for (size_t s = 0; s < plan->n_subgroups; s++) parameters += plan->subgroups[s].numel;
  FUZZ_MUST(sum == parameters);
  FUZZ_MUST(hk_plan_early(plan) <= hk_plan_ahead(plan) && hk_plan_ahead(plan) <= sum);
  FUZZ_MUST(*hk_plan_title(plan, text, sizeof text) != '\0');
  hk_fuzz_read(hk_policy_check_label(plan, text, sizeof text, &err), &err);
  check_again(plan);
  check_new(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  hk_error err = {0};
  hk_plan plan = {0};
  cJSON_Delete(hk_fuzz_json(data, size));
  if (hk_fuzz_read(hk_plan_load(hk_fuzz_file(data, size), &plan, &err), &err)) {
    hk_fuzz_stream stream = {data + size / 2, size - size / 2};
    const hk_machine machine = hk_fuzz_machine(&stream);
    check_plan(&plan);
    if (hk_fuzz_is_small(&plan)) {
      hk_fuzz_simulate(&plan, &machine);
      return 0;
    }
  }
  hk_plan_free(&plan);
  return 0;
}
