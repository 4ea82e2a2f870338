/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by tests of the rankings of record: the plans of a ranking, predicted anew. */
#ifndef HK_TESTS_FIXTURE_RANKING_H
#define HK_TESTS_FIXTURE_RANKING_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/validate/validate.h"
#include "core/base/json.h"
#include "tests/fixture.h"

#define RANKINGS  HK_TEST_DATA "/rankings/"
#define MODEL     HK_TEST_SHARE "/../bench/llama-1.3b.json"
#define CHOSEN_BY "h200-node-16c" /* for which bench/rank_h200 chooses the plans */

static inline hk_machine machine_of(const char *name) {
  hk_machine machine;
  hk_error err = {0};
  must(hk_machine_load(name, &machine, &err), &err);
  return machine;
}

typedef struct {
  hk_plan *plans;
  size_t n;
} choice;

static inline choice choose(size_t n, hk_bytes host_bytes) {
  hk_model model = {0};
  hk_error err = {0};
  choice c = {0};
  must(hk_model_load(MODEL, &model, &err), &err);
  hk_machine machine = machine_of(CHOSEN_BY);
  must(hk_ranked_plans_choose(&model, &machine, n, false, host_bytes, &c.plans, &c.n, &err), &err);
  assert_int_equal(c.n, n);
  hk_machine_free(&machine);
  hk_model_free(&model);
  return c;
}

/* Verdict of the chosen plans, predicted on `machine`, against the file's measured times. */
static inline hk_ranked_plans_verdict predicted_anew(const cJSON *measured, const choice *c,
                                                     const hk_machine *machine) {
  hk_error err = {0};
  hk_ranked_plan ranked[64] = {0};
  assert_true(c->n <= sizeof ranked / sizeof *ranked);
  for (size_t i = 0; i < c->n; i++) {
    const cJSON *entry = cJSON_GetArrayItem(measured, (int)i);
    const char *title = NULL;
    hk_ns update = 0;
    must(hk_json_string(entry, "plan", &title, &err), &err);
    hk_ranked_plan_title(&c->plans[i], ranked[i].title, sizeof ranked[i].title);
    assert_string_equal(ranked[i].title, title);
    must(hk_json_double(entry, "measured_ms", 0, 1e6, &ranked[i].measured_ms, &err), &err);
    must(hk_validate_predict(&c->plans[i], machine, &update, &err), &err);
    ranked[i].predicted_ms = hk_ms(update);
    ranked[i].gpu_memory_error_pct = NAN;
  }
  hk_ranked_plans_verdict verdict;
  must(hk_ranked_plans_judge(ranked, c->n, &verdict, &err), &err);
  return verdict;
}

/* Predicts the plans of a ranking's file on a machine. `memory`: bytes of host memory of the node
 * that ran them. */
static inline hk_ranked_plans_verdict verdict_of(const char *ranking, const hk_machine *machine,
                                                 hk_bytes memory) {
  hk_error err = {0};
  cJSON *root = NULL;
  const cJSON *plans = NULL;
  must(hk_json_load(ranking, &root, &err), &err);
  must(hk_json_array(root, "plans", &plans, &err), &err);
  choice c = choose((size_t)cJSON_GetArraySize(plans), memory);
  const hk_ranked_plans_verdict v = predicted_anew(plans, &c, machine);
  print_message("%s: %.2f %% (median), %.2f %% (worst), tau %.3f, regret %.1f %%\n",
                strrchr(ranking, '/') + 1, v.median_error_pct, v.worst_error_pct, v.tau,
                v.regret_pct);
  for (size_t i = 0; i < c.n; i++) hk_plan_free(&c.plans[i]);
  free(c.plans);
  cJSON_Delete(root);
  return v;
}

#endif
