/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the tests of plans: a small plan and its document. */
#ifndef HK_TESTS_FIXTURE_PLAN_H
#define HK_TESTS_FIXTURE_PLAN_H

#include "core/graph/plan.h"
#include "tests/fixture.h"

static const hk_job JOB = {
    .gpus = 4, .nodes = 1, .tp = 1, .micro_batch = 2, .grad_accum = 3, .seq = 128};

/* Exact subgroups of 10,000 parameters, all on route cpu. */
static inline hk_plan made(hk_runtime runtime) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(3);
  must(hk_plan_create(&model, &JOB, runtime, HK_SUBGROUP_EXACT, 10000, &plan, &err), &err);
  assert_null(model.tensors); /* taken over */
  return plan;
}

static inline cJSON *document_of(const hk_plan *plan) {
  cJSON *root = hk_plan_to_json(plan);
  assert_non_null(root);
  return root;
}

static inline cJSON *made_document(hk_runtime runtime) {
  hk_plan plan = made(runtime);
  cJSON *root = document_of(&plan);
  hk_plan_free(&plan);
  return root;
}

#endif
