/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans: created, copied, written and read back unchanged, and refused with a message that names
 * the error. Documents that are refused: test_unit_plan_documents.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/json.h"
#include "sim/forecast.h"
#include "sim/rank.h"
#include "tests/fixture_plan.h"

static void assert_same(const cJSON *a, const cJSON *b) {
  if (cJSON_Compare(a, b, true)) return;
  fail_msg("documents differ:\n%s\n%s", cJSON_Print(a), cJSON_Print(b));
}

/* -- Made and copied -------------------------------------------------------------------------- */

static void created_with_defaults(void **state) {
  (void)state;
  for (int runtime = 0; runtime < 2; runtime++) {
    hk_error err = {0};
    hk_plan plan = made((hk_runtime)runtime);
    int64_t totals[HK_ROUTE_COUNT];
    hk_plan_route_totals(&plan, totals);
    /* 156,096 parameters, every tensor divisible by 4. */
    assert_int_equal(totals[HK_ROUTE_CPU], 156096 / 4);
    assert_int_equal(totals[HK_ROUTE_STAGED] + totals[HK_ROUTE_MAPPED] + totals[HK_ROUTE_RESIDENT],
                     0);
    assert_int_equal(plan.n_subgroups, 4);
    assert_int_equal(plan.subgroups[3].numel, 156096 / 4 - 30000);
    for (size_t i = 0; i < plan.n_subgroups; i++) assert_int_equal(plan.order[i], i);
    assert_int_equal(plan.flush, HK_FLUSH_ASYNC);
    assert_int_equal(plan.flush_bytes_per_param, runtime == HK_RUNTIME_DEEPSPEED ? 4 : 2);
    assert_int_equal(plan.piece_numel, 10000); /* no larger than a subgroup */
    assert_true(plan.ratio == 1 && plan.stride == 0 && plan.cores_bound);
    must(hk_plan_check(&plan, &err), &err);
    hk_plan_free(&plan);
    assert_null(plan.subgroups);
    hk_plan_free(&plan); /* safe when zeroed */
  }
}

/* piece_numel = parameters of the rank / 256, rounded to millions, from 1 M to 20 M, and at most a
 * subgroup. */
static void default_pieces(void **state) {
  (void)state;
  static const struct {
    const char *model;
    int gpus;
    int64_t subgroup, piece;
  } cases[] = {
      {"gpt2", 4, 100000000, 1000000},        /* of 31 M */
      {"llama-2-7b", 8, 100000000, 3000000},  /* of 842 M: 3.29 M */
      {"llama-2-7b", 4, 100000000, 7000000},  /* of 1685 M: 6.58 M */
      {"llama-2-7b", 1, 100000000, 20000000}, /* of 6738 M: 26.3 M */
      {"llama-2-7b", 4, 500000, 500000},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    hk_error err = {0};
    hk_model model = {0};
    hk_plan plan;
    const hk_job job = {
        .gpus = cases[i].gpus, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 1024};
    must(hk_model_load(cases[i].model, &model, &err), &err);
    must(hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, cases[i].subgroup,
                        &plan, &err),
         &err);
    assert_int_equal(plan.piece_numel, cases[i].piece);
    hk_plan_free(&plan);
  }
}

static void refuse_create(hk_job job, int64_t numel, const char *message) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(3);
  const hk_status status =
      hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, numel, &plan, &err);
  if (status != HK_INPUT || strstr(err.message, message) == NULL) {
    fail_msg("status %d, \"%s\" should contain \"%s\"", (int)status, err.message, message);
  }
  assert_null(plan.subgroups);
  assert_non_null(model.tensors); /* still the caller's */
  hk_model_free(&model);
}

static void not_created(void **state) {
  (void)state;
  refuse_create(JOB, 0, "subgroups of 0 parameters");
  refuse_create(JOB, -7, "subgroups of -7 parameters");
  hk_job job = JOB;
  job.tp = 3;
  refuse_create(job, 10000, "tp 3 does not divide the 4 GPUs");
  job.tp = 8, job.gpus = 8;
  refuse_create(job, 10000, "tp 8 does not divide the 4 attention heads of tiny");
  job = JOB, job.loss_chunks = 65537;
  refuse_create(job, 10000, "loss_chunks: expected a whole number from 1 to 65536, got 65537");
}

/* A field of a job: where, its name in messages, and the largest value. */
typedef struct {
  size_t offset;
  const char *name;
  int most;
} job_field;

static const job_field JOB_FIELDS[] = {
    {offsetof(hk_job, gpus), "gpus", 64},
    {offsetof(hk_job, nodes), "nodes", 65536},
    {offsetof(hk_job, tp), "tp", 64},
    {offsetof(hk_job, micro_batch), "micro_batch", 1 << 20},
    {offsetof(hk_job, grad_accum), "grad_accum", 1 << 12},
    {offsetof(hk_job, seq), "seq", 1 << 24},
};

static void jobs_out_of_range(void **state) {
  (void)state;
  for (size_t f = 0; f < sizeof JOB_FIELDS / sizeof *JOB_FIELDS; f++) {
    const int bad[] = {0, -1, JOB_FIELDS[f].most + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
      char message[96];
      hk_job job = JOB;
      memcpy((char *)&job + JOB_FIELDS[f].offset, &bad[i], sizeof bad[i]);
      snprintf(message, sizeof message, "%s: expected a whole number from 1 to %d, got %d",
               JOB_FIELDS[f].name, JOB_FIELDS[f].most, bad[i]);
      refuse_create(job, 10000, message);
    }
  }
}

static void too_many_subgroups(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(60); /* 2.5 M parameters */
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 16};
  assert_int_equal(
      hk_plan_create(&model, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 1, &plan, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "choose a size of at least 3"));
  hk_model_free(&model);
}

static void copies_are_deep(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = made(HK_RUNTIME_HOCKET), copy;
  plan.stride = 5;
  strcpy(plan.policy, "interleave");
  must(hk_plan_copy(&plan, &copy, &err), &err);
  cJSON *before = document_of(&plan);
  cJSON *same = document_of(&copy);
  assert_same(before, same);

  copy.subgroups[0].route = HK_ROUTE_STAGED;
  copy.order[0] = 1, copy.order[1] = 0;
  copy.ratio = 0.5;
  hk_plan_free(&copy);
  cJSON *after = document_of(&plan);
  assert_same(before, after);
  must(hk_plan_check(&plan, &err), &err);
  cJSON_Delete(before);
  cJSON_Delete(same);
  cJSON_Delete(after);
  hk_plan_free(&plan);
}

/* -- Checked ---------------------------------------------------------------------------------- */

static void refuse_plan(hk_plan *plan, const char *message) {
  hk_error err = {0};
  const hk_status status = hk_plan_check(plan, &err);
  if (status != HK_INPUT || err.status != status || strstr(err.message, message) == NULL) {
    fail_msg("status %d, \"%s\" should contain \"%s\"", (int)status, err.message, message);
  }
}

/* Gives `field` a bad value, expects the message, and puts the good one back. */
#define REFUSE_WITH(plan, field, bad, message)           \
  do {                                                   \
    const __typeof__((plan).field) good_ = (plan).field; \
    (plan).field = (bad);                                \
    refuse_plan(&(plan), (message));                     \
    (plan).field = good_;                                \
  } while (0)

static void settings_out_of_range(void **state) {
  (void)state;
  hk_plan plan = made(HK_RUNTIME_HOCKET);
  REFUSE_WITH(plan, ratio, (double)NAN, "ratio: expected a number from 0 to 1, got");
  REFUSE_WITH(plan, ratio, -0.001, "ratio: expected a number from 0 to 1, got -0.001");
  REFUSE_WITH(plan, ratio, 1.5, "ratio: expected a number from 0 to 1, got 1.5");
  REFUSE_WITH(plan, flush_bytes_per_param, 3, "flush.bytes_per_param: expected 2 (bf16) or 4");
  REFUSE_WITH(plan, flush_bytes_per_param, 0, "flush.bytes_per_param: expected 2 (bf16) or 4");
  REFUSE_WITH(plan, stride, -1, "stride: expected a whole number from 0 to 1048576, got -1");
  REFUSE_WITH(plan, stride, (1 << 20) + 1, "stride: expected a whole number from 0 to 1048576");
  REFUSE_WITH(plan, buffers, 0, "buffers: expected a whole number from 1 to 1024, got 0");
  REFUSE_WITH(plan, buffers, 1025, "buffers: expected a whole number from 1 to 1024, got 1025");
  REFUSE_WITH(plan, piece_numel, 0, "piece_numel: expected at least 1 parameter, got 0");
  REFUSE_WITH(plan, piece_numel, INT64_MIN, "piece_numel: expected at least 1 parameter");
  REFUSE_WITH(plan, cpu_threads, 0, "cpu.threads: expected a whole number from 1 to 65536, got 0");
  REFUSE_WITH(plan, cpu_threads, 65537, "cpu.threads: expected a whole number from 1 to 65536");
  REFUSE_WITH(plan, job.loss_chunks, -1, "loss_chunks: expected a whole number from 1 to 65536");
  REFUSE_WITH(plan, job.jobs, 17, "jobs: expected 1 to 16 jobs of 4 GPUs on a node of at most 64");
  REFUSE_WITH(plan, job.jobs, -1, "jobs: expected 1 to 16 jobs");
  REFUSE_WITH(plan, job.tp, 3, "tp 3 does not divide the 4 GPUs of a node");
  REFUSE_WITH(plan, flush_blocks, -1, "flush.blocks: expected a whole number from 1 to 1048576");
  plan.flush_blocks = 3;
  REFUSE_WITH(plan, flush, HK_FLUSH_SYNC, "flush.blocks: needs mode async");
  REFUSE_WITH(plan, runtime, HK_RUNTIME_DEEPSPEED, "flush.reduce_first: DeepSpeed has neither");
  hk_error err = {0};
  must(hk_plan_check(&plan, &err), &err); /* all put back */
  hk_plan_free(&plan);
}

static void parts_that_disagree(void **state) {
  (void)state;
  hk_plan plan = made(HK_RUNTIME_HOCKET);
  const int64_t bad[] = {0, -1, INT64_MIN, INT64_MAX, 40000};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char message[64];
    snprintf(message, sizeof message, "subgroups[2]: %lld parameters", (long long)bad[i]);
    REFUSE_WITH(plan, subgroups[2].numel, bad[i], message);
  }
  REFUSE_WITH(plan, subgroups[3].numel, 9025,
              "subgroups[3]: 9025 parameters, but one rank of tiny "
              "has 39024 in all, 30000 of them before");
  REFUSE_WITH(plan, subgroups[3].numel, 9023,
              "subgroups add up to 39023 parameters, but one rank of tiny has 39024");
  REFUSE_WITH(plan, n_subgroups, 3, "subgroups add up to 30000 parameters");
  REFUSE_WITH(plan, n_subgroups, 0, "subgroups add up to 0 parameters");
  REFUSE_WITH(plan, job.gpus, 2, "subgroups add up to 39024 parameters, but one rank of tiny has");
  REFUSE_WITH(plan, order[1], 3, "order[3] is 3: expected each subgroup from 0 to 3 exactly once");
  REFUSE_WITH(plan, order[1], -1, "order[1] is -1");
  REFUSE_WITH(plan, order[1], 4, "order[1] is 4");

  plan.subgroups[1].route = HK_ROUTE_MAPPED;
  REFUSE_WITH(plan, runtime, HK_RUNTIME_DEEPSPEED,
              "subgroups[1]: DeepSpeed has no route 'mapped'; use runtime hocket");
  hk_error err = {0};
  must(hk_plan_check(&plan, &err), &err);
  hk_plan_free(&plan);
}

/* -- Written and read back -------------------------------------------------------------------- */

static void assert_round_trip(const hk_plan *plan, const char *path) {
  hk_error err = {0};
  hk_plan again;
  cJSON *written = document_of(plan);
  must(hk_json_save(written, path, &err), &err);
  cJSON_Delete(written);
  must(hk_plan_load(path, &again, &err), &err);
  cJSON *first = document_of(plan), *second = document_of(&again);
  assert_same(first, second);
  char *a = cJSON_Print(first), *b = cJSON_Print(second);
  assert_string_equal(a, b); /* keys in the same order, numbers to the last digit */
  assert_int_equal(again.model.parameters, plan->model.parameters);
  cJSON_free(a);
  cJSON_free(b);
  cJSON_Delete(first);
  cJSON_Delete(second);
  hk_plan_free(&again);
}

static void round_trips(void **state) {
  (void)state;
  char folder[] = "plan-XXXXXX", path[64]; /* in the working directory */
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/plan.json", folder);

  hk_error err = {0};
  hk_model model = tiny_model(3);
  hk_machine machine = ideal_machine();
  strcpy(machine.name, "a \"machine\" \xc3\xbc");
  const hk_flush sync = HK_FLUSH_SYNC;
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  for (size_t i = 0; i < 2 * n; i++) {
    hk_candidate candidate = {policies[i / 2], HK_POLICY_OPTIONS_NONE, (hk_runtime)(i % 2)};
    if (candidate.runtime == HK_RUNTIME_DEEPSPEED && !candidate.policy->deepspeed) continue;
    const unsigned takes = candidate.policy->takes;
    if (takes & HK_TAKES_RATIO) candidate.options.ratio = 2.0 / 3;
    if (takes & HK_TAKES_STRIDE) candidate.options.stride = 2;
    const hk_plan_settings settings = {
        .subgroup_numel = 7001, .flush = i % 3 ? &sync : NULL, .cores_unbound = i % 4 == 1};
    hk_plan plan;
    must(hk_candidate_plan(&candidate, &model, &machine, &JOB, &settings, &plan, &err), &err);
    for (size_t s = 0; s < plan.n_subgroups; s++) { /* back to front */
      plan.order[s] = (int32_t)(plan.n_subgroups - 1 - s);
    }
    if (candidate.policy == &hk_policy_interleave && candidate.runtime == HK_RUNTIME_HOCKET)
      plan.flush_blocks = plan.flush == HK_FLUSH_ASYNC ? 7 : 0, plan.reduce_first = true;
    assert_round_trip(&plan, path);
    hk_plan_free(&plan);
  }
  hk_model_free(&model);
  unlink(path);
  rmdir(folder);
}

static void files_that_are_not_there(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan none;
  assert_int_equal(hk_plan_load("/nonexistent/plan.json", &none, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "/nonexistent/plan.json"));
  assert_null(none.subgroups);
}

/* -- Failed allocations ----------------------------------------------------------------------- */

static int allocations_left; /* that succeed; negative: no limit */

static void *failing_malloc(size_t size) {
  if (allocations_left == 0) return NULL;
  if (allocations_left > 0) allocations_left--;
  return malloc(size);
}

static void fail_after(int allocations) {
  allocations_left = allocations;
  cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = failing_malloc, .free_fn = free});
}

/* Allocations of cJSON that reading needs: with each smaller number it fails cleanly. */
static int allocations_of_reading(const cJSON *root) {
  for (int n = 0;; n++) {
    hk_error err = {0};
    hk_plan plan;
    fail_after(n);
    const hk_status status = hk_plan_from_json(root, &plan, &err);
    cJSON_InitHooks(NULL);
    if (status == HK_OK) {
      hk_plan_free(&plan);
      return n;
    }
    assert_int_equal(status, HK_ENVIRONMENT);
    assert_non_null(strstr(err.message, "out of memory"));
    assert_null(plan.subgroups);
  }
}

static int allocations_of_copying(const hk_plan *plan) {
  for (int n = 0;; n++) {
    hk_error err = {0};
    hk_plan copy;
    fail_after(n);
    const hk_status status = hk_plan_copy(plan, &copy, &err);
    cJSON_InitHooks(NULL);
    if (status == HK_OK) {
      hk_plan_free(&copy);
      return n;
    }
    assert_int_equal(status, HK_ENVIRONMENT);
    assert_null(copy.subgroups);
  }
}

static int allocations_of_writing(const hk_plan *plan) {
  for (int n = 0;; n++) {
    fail_after(n);
    cJSON *root = hk_plan_to_json(plan);
    cJSON_InitHooks(NULL);
    if (root == NULL) continue;
    cJSON_Delete(root);
    return n;
  }
}

static void out_of_memory(void **state) {
  (void)state;
  hk_plan plan = made(HK_RUNTIME_HOCKET);
  cJSON *root = document_of(&plan);
  /* The configuration is duplicated: at least a value and a key for each of its members. */
  const int config = 2 * cJSON_GetArraySize(plan.model.config);
  assert_in_range(allocations_of_reading(root), config, 1000);
  assert_int_equal(allocations_of_copying(&plan), 0); /* copies share the model's document */
  /* Writing adds 32 members outside the subgroups (a key and a value each), and for each subgroup
   * an object, two members and a position in the order. */
  assert_in_range(allocations_of_writing(&plan), config + 2 * 32 + 4 * 6, 1000);
  cJSON_Delete(root);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(created_with_defaults), cmocka_unit_test(default_pieces),
      cmocka_unit_test(not_created),           cmocka_unit_test(jobs_out_of_range),
      cmocka_unit_test(too_many_subgroups),    cmocka_unit_test(copies_are_deep),
      cmocka_unit_test(settings_out_of_range), cmocka_unit_test(parts_that_disagree),
      cmocka_unit_test(round_trips),           cmocka_unit_test(files_that_are_not_there),
      cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
