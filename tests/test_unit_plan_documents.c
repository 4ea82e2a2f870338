/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Each way in which the document of a plan is refused, with a message that names the error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/json.h"
#include "tests/fixture_plan.h"

static void refuse_document(const cJSON *root, const char *what, const char *message) {
  hk_error err = {0};
  hk_plan plan;
  const hk_status status = hk_plan_from_json(root, &plan, &err);
  if (status != HK_INPUT || err.status != status || strstr(err.message, message) == NULL) {
    fail_msg("%s: status %d, \"%s\" should contain \"%s\"", what, (int)status, err.message,
             message);
  }
  assert_null(plan.subgroups); /* nothing left behind: the sanitizer would see a leak otherwise */
  assert_null(plan.model.config);
}

/* The member at "job.tp" or "subgroups.2.route"; the root itself at "". */
static cJSON *member(cJSON *root, const char *path) {
  char copy[64], *rest = NULL;
  snprintf(copy, sizeof copy, "%s", path);
  for (char *word = strtok_r(copy, ".", &rest); word != NULL; word = strtok_r(NULL, ".", &rest)) {
    root = cJSON_IsArray(root) ? cJSON_GetArrayItem(root, atoi(word))
                               : cJSON_GetObjectItemCaseSensitive(root, word);
    assert_non_null(root);
  }
  return root;
}

/* Returns the object that has the member at `path`; *key is set to the path's last word. */
static cJSON *parent(cJSON *root, const char *path, const char **key) {
  char copy[64];
  const char *dot = strrchr(path, '.');
  *key = dot != NULL ? dot + 1 : path;
  snprintf(copy, sizeof copy, "%.*s", dot != NULL ? (int)(dot - path) : 0, path);
  return member(root, copy);
}

static void replace(cJSON *root, const char *path, const char *value) {
  const char *key = NULL;
  cJSON *holder = parent(root, path, &key), *with = cJSON_Parse(value);
  assert_non_null(with);
  assert_true(cJSON_IsArray(holder) ? cJSON_ReplaceItemInArray(holder, atoi(key), with)
                                    : cJSON_ReplaceItemInObjectCaseSensitive(holder, key, with));
}

static void refuse_value(hk_runtime runtime, const char *path, const char *value,
                         const char *message) {
  char what[128];
  cJSON *root = made_document(runtime);
  replace(root, path, value);
  snprintf(what, sizeof what, "%s = %.60s", path, value);
  refuse_document(root, what, message);
  cJSON_Delete(root);
}

/* Refuses the document without each key of `object` in turn, and with the key's value null, [] and
 * {}. Recurses into objects except the model's configuration. `path`: path of `object` in the
 * document. Returns the number of keys. */
static int refuse_without_each_key(const cJSON *object, const char *path) {
  int tried = 0;
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, object) {
    char inner[64], quoted[40];
    snprintf(inner, sizeof inner, "%s%s%s", path, *path ? "." : "", item->string);
    snprintf(quoted, sizeof quoted, "key '%s'", item->string);
    cJSON *root = made_document(HK_RUNTIME_HOCKET);
    cJSON_DeleteItemFromObjectCaseSensitive(member(root, path), item->string);
    refuse_document(root, inner, quoted);
    cJSON_Delete(root);
    refuse_value(HK_RUNTIME_HOCKET, inner, "null", quoted);
    refuse_value(HK_RUNTIME_HOCKET, inner, "[]", quoted);
    if (!cJSON_IsObject(item)) refuse_value(HK_RUNTIME_HOCKET, inner, "{}", quoted);
    tried++;
    if (cJSON_IsObject(item) && strcmp(item->string, "config") != 0) {
      tried += refuse_without_each_key(item, inner);
    }
  }
  return tried;
}

static void missing_keys_and_wrong_types(void **state) {
  (void)state;
  cJSON *root = made_document(HK_RUNTIME_HOCKET);
  /* 12 at the top, 2 in model, 7 in job, 3 in policy, 2 each in flush, staging, cpu, subgroup. */
  assert_int_equal(refuse_without_each_key(root, ""), 12 + 2 + 7 + 3 + 4 * 2);
  assert_int_equal(refuse_without_each_key(member(root, "subgroups.2"), "subgroups.2"), 2);
  cJSON_Delete(root);
}

static void bad_values(void **state) {
  (void)state;
  const struct {
    const char *path, *value, *message;
  } bad[] = {
      {"schema", "\"hocket.plan/3\"", "schema is 'hocket.plan/3', but this hocket reads plans of"},
      {"schema", "\"hocket.machine/1\"", "schema is 'hocket.machine/1'"},
      {"machine",
       "\"0123456789012345678901234567890123456789012345678901234567890123456789"
       "01234567890123456789012345\"",
       "key 'machine': expected 0 to 95 characters"},
      {"model.config.num_hidden_layers", "0", "model.config: key 'num_hidden_layers'"},
      {"model.config.num_hidden_layers", "4", "subgroups add up to 39024 parameters"},
      {"model.config.architectures", "[\"BertModel\"]", "model.config: key 'architectures'"},
      {"job.gpus", "0", "gpus: expected a whole number from 1 to 64, got 0"},
      {"job.gpus", "65", "key 'gpus': expected a whole number from 0 to 64, got 65"},
      {"job.gpus", "-1", "key 'gpus'"},
      {"job.gpus", "1.5", "key 'gpus'"},
      {"job.nodes", "1e300", "key 'nodes'"},
      {"job.tp", "3", "tp 3 does not divide the 4 GPUs"},
      {"job.micro_batch", "1048577", "key 'micro_batch'"},
      {"job.grad_accum", "0", "grad_accum: expected"},
      {"job.seq", "16777217", "key 'seq'"},
      {"job.checkpoint_activations", "1", "key 'checkpoint_activations'"},
      {"policy.name", "\"0123456789012345678901234567890123456789\"",
       "key 'name': expected 0 to 31 characters"},
      {"policy.stride", "-1", "key 'stride'"},
      {"policy.stride", "1048577", "key 'stride'"},
      {"policy.ratio", "1.0000001", "key 'ratio'"},
      {"policy.ratio", "-1e-9", "key 'ratio'"},
      {"policy.ratio", "\"NaN\"", "key 'ratio'"},
      {"runtime", "\"deepsped\"",
       "key 'runtime': 'deepsped' is not known; did you mean 'deepspeed'?"},
      {"flush.mode", "\"asink\"", "key 'mode': 'asink' is not known; did you mean 'async'?"},
      {"flush.bytes_per_param", "3", "flush.bytes_per_param: expected 2 (bf16) or 4 (fp32), got 3"},
      {"flush.bytes_per_param", "8", "key 'bytes_per_param'"},
      {"staging.buffers", "0", "buffers: expected a whole number from 1 to 1024, got 0"},
      {"staging.buffers", "1025", "key 'buffers'"},
      {"staging.piece_numel", "0", "key 'piece_numel'"},
      {"staging.piece_numel", "1e17", "key 'piece_numel'"},
      {"cpu.threads", "0", "cpu.threads: expected"},
      {"cpu.threads", "65537", "key 'threads'"},
      {"cpu.cores_bound", "\"yes\"", "key 'cores_bound'"},
      {"subgroup.rule", "\"exct\"", "key 'rule': 'exct' is not known; did you mean 'exact'?"},
      {"subgroup.numel", "0", "key 'numel'"},
      {"subgroups", "[]", "key 'subgroups': expected 1 to 1048576 entries, got 0"},
      {"subgroups.1", "7", "subgroups[1]: expected an object"},
      {"subgroups.1.route", "\"stagd\"",
       "subgroups[1]: key 'route': 'stagd' is not known; did you "
       "mean 'staged'?"},
      {"subgroups.1.numel", "0", "subgroups[1]: key 'numel': expected a whole number from 1"},
      {"subgroups.1.numel", "-10000", "subgroups[1]: key 'numel'"},
      {"subgroups.1.numel", "10000.5", "subgroups[1]: key 'numel'"},
      {"subgroups.1.numel", "1e300", "subgroups[1]: key 'numel'"},
      {"subgroups.1.numel", "4503599627370496", "subgroups[1]: 4503599627370496 parameters, but"},
      {"subgroups.1.numel", "9999", "subgroups add up to 39023 parameters"},
      {"order", "[0, 1, 2]", "key 'order': 3 entries for 4 subgroups"},
      {"order", "[0, 1, 2, 3, 3]", "key 'order': 5 entries for 4 subgroups"},
      {"order.2", "1", "order[2] is 1: expected each subgroup from 0 to 3 exactly once"},
      {"order.2", "4", "order[2]: expected a whole number from 0 to 3"},
      {"order.2", "-1", "order[2]: expected a whole number from 0 to 3"},
      {"order.2", "1.5", "order[2]: expected a whole number from 0 to 3"},
      {"order.2", "1e300", "order[2]: expected a whole number from 0 to 3"},
      {"order.2", "\"2\"", "order[2]: expected a whole number from 0 to 3"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    refuse_value(HK_RUNTIME_HOCKET, bad[i].path, bad[i].value, bad[i].message);
  }
  refuse_value(HK_RUNTIME_DEEPSPEED, "subgroups.0.route", "\"mapped\"",
               "subgroups[0]: DeepSpeed has no route 'mapped'");
}

/* JSON text has no NaN and infinity, but a caller's tree can. */
static void numbers_that_are_not_finite(void **state) {
  (void)state;
  const char *const paths[] = {"policy.ratio", "job.gpus", "subgroups.1.numel", "order.1"};
  const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
  for (size_t i = 0; i < 4 * 3; i++) {
    const char *path = paths[i / 3];
    cJSON *root = made_document(HK_RUNTIME_HOCKET);
    cJSON_SetNumberHelper(member(root, path), values[i % 3]);
    refuse_document(root, path, i / 3 == 3 ? "order[1]" : strrchr(path, '.') + 1);
    cJSON_Delete(root);
  }
}

/* Plans of an older hocket may hold limits of rates, which this one would not keep. */
static void limits_of_rates(void **state) {
  (void)state;
  cJSON *root = made_document(HK_RUNTIME_HOCKET);
  cJSON_AddNumberToObject(cJSON_AddObjectToObject(root, "pace"), "d2h_bytes_per_s", 3e10);
  refuse_document(root, "pace",
                  "key 'pace': limits to the rates of copies and of the CPU team were removed, "
                  "because they gained nothing; make the plan anew with 'hocket plan'");
  cJSON_Delete(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(missing_keys_and_wrong_types),
      cmocka_unit_test(bad_values),
      cmocka_unit_test(numbers_that_are_not_finite),
      cmocka_unit_test(limits_of_rates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
