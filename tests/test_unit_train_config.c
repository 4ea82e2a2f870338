/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Configurations of DeepSpeed, Accelerate and FSDP: values read, refusals and their messages,
 * DeepSpeed's ratio, written configurations read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/json.h"
#include "traces/train_config.h"
#include "traces/yaml.h"

static char path[] = P_tmpdir "/hocket-config-XXXXXX";

static hk_status load(const char *text, hk_train_config *config, hk_error *err) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
  *err = (hk_error){0};
  return hk_train_config_load(path, config, err);
}

static hk_train_config loaded(const char *text) {
  hk_train_config config;
  hk_error err;
  if (load(text, &config, &err) != HK_OK) fail_msg("%s: %s", text, err.message);
  return config;
}

static bool has_note(const hk_train_config *config, const char *part) {
  for (int i = 0; i < config->n_notes; i++)
    if (strstr(config->notes[i], part)) return true;
  return false;
}

static void must_note(const char *text, const char *part) {
  const hk_train_config config = loaded(text);
  if (!has_note(&config, part)) fail_msg("%s: no note of '%s'", text, part);
}

static void must_refuse(const char *text, const char *part) {
  hk_train_config config;
  hk_error err;
  if (load(text, &config, &err) != HK_INPUT) fail_msg("accepted: %s", text);
  if (!strstr(err.message, part) || !strstr(err.message, path))
    fail_msg("%s: said '%s', expected '%s' and the path", text, err.message, part);
}

/* -- DeepSpeed --------------------------------------------------------------------------------- */

static void test_deepspeed(void **state) {
  (void)state;
  const hk_train_config c = loaded(
      "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2,"
      " \"train_batch_size\": 32, \"gradient_clipping\": 0.5, \"bf16\": {\"enabled\": true},"
      " \"tensor_parallel\": {\"autotp_size\": 2}, \"optimizer\": {\"type\": \"AdamW\"},"
      " \"zero_optimization\": {\"stage\": 3, \"sub_group_size\": 1e8, \"overlap_comm\": true,"
      "  \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": false, \"ratio\": 0.3}}}");
  assert_int_equal(c.framework, HK_FRAMEWORK_DEEPSPEED);
  assert_int_equal(c.micro_batch, 4);
  assert_int_equal(c.grad_accum, 2);
  assert_int_equal(c.global_batch, 32);
  assert_int_equal(c.stage, 3);
  assert_int_equal(c.tp, 2);
  assert_int_equal(c.subgroup_numel, 100000000);
  assert_true(c.offload && !c.offload_param && !c.pinned);
  assert_true(c.ratio == 0.3 && c.max_norm == 0.5);
  assert_int_equal(c.n_notes, 1);
  assert_true(has_note(&c, "pin_memory is false"));
}

/* "auto", which the Trainer of transformers replaces, counts as absent. Defaults are 1e9 elements a
 * subgroup, no offload and pinned memory, as in DeepSpeed since 0.19.5. */
static void test_defaults(void **state) {
  (void)state;
  const hk_train_config c = loaded(
      "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\","
      " \"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\","
      " \"bf16\": {\"enabled\": \"auto\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {}},"
      " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\","
      "  \"sub_group_size\": \"auto\", \"offload_optimizer\": {\"device\": \"none\"}}}");
  assert_int_equal(c.micro_batch + c.grad_accum + c.global_batch + c.tp + c.gpus + c.nodes, 0);
  assert_int_equal(c.subgroup_numel, 1000000000);
  assert_true(!c.offload && c.pinned && c.ratio == 1 && c.max_norm == 0);
  assert_int_equal(c.checkpoint, -1);
  assert_int_equal(c.n_notes, 0);
  /* Keys of DeepSpeed before 0.3.16. */
  const hk_train_config old = loaded(
      "{\"fp16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2, "
      "\"cpu_offload\": true}}");
  assert_true(old.offload && old.stage == 2 && has_note(&old, "stage 2 is planned as stage 3"));
  assert_true(old.pinned && !has_note(&old, "pin_memory is false"));
  const hk_train_config pageable = loaded(
      "{\"fp16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2, "
      "\"cpu_offload\": true, \"cpu_offload_use_pin_memory\": false}}");
  assert_true(!pageable.pinned && has_note(&pageable, "pin_memory is false"));
  assert_int_equal(loaded("{\"bf16\": {\"enabled\": true}, \"zero_optimization\": true}").stage, 1);
}

#define ZERO3(members) \
  "{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3, " members "}}"

static void test_notes(void **state) {
  (void)state;
  must_note("{\"zero_optimization\": {\"stage\": 3}}", "DeepSpeed trains in fp32");
  must_note(ZERO3("\"offload_param\": {\"device\": \"cpu\"}"), "offload_param is not simulated");
  must_note(ZERO3("\"zero_quantized_weights\": true"), "zero_quantized_weights is not simulated");
  must_note(ZERO3("\"offload_optimizer\": {\"device\": \"cpu\", \"super_offload\": true}"),
            "zero_optimization.offload_optimizer.super_offload is not simulated");
  must_note("{\"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"Muon\"}}",
            "optimizer Muon is not simulated");
  must_note("{\"gradient_cliping\": 1}", "did you mean 'gradient_clipping'?");
  must_note("{\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}}",
            "12 bytes a parameter");
  const hk_train_config off = loaded(ZERO3("\"zero_quantized_weights\": false, \"zenflow\": null"));
  assert_int_equal(off.n_notes, 0);
}

static void test_refused(void **state) {
  (void)state;
  must_refuse("{\"zero_optimization\": {\"stag\": 3}}",
              "zero_optimization: key 'stag' is not known; did you mean 'stage'?");
  must_refuse("{\"zero_optimization\": {\"stage\": 4}}", "a whole number from 0 to 3, got 4");
  must_refuse("{\"zero_optimization\": {\"stage\": \"3\"}}", "got the string \"3\"");
  must_refuse("{\"zero_optimization\": 3}", "expected an object");
  must_refuse("{\"train_micro_batch_size_per_gpu\": 0}", "a whole number from 1");
  must_refuse(ZERO3("\"sub_group_size\": 1.5"), "expected a whole number");
  must_refuse(ZERO3("\"offload_optimizer\": {\"device\": \"nvme\"}"), "nvme is not simulated");
  must_refuse(ZERO3("\"offload_optimizer\": {\"device\": \"gpu\"}"),
              "expected \"cpu\" or \"none\"");
  must_refuse(ZERO3("\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 1.1}"),
              "offload_optimizer: key 'ratio': expected a number from 0 to 1");
  must_refuse(
      "{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", "
      "\"ratio\": 0.5}}}",
      "with stage 3 only");
  must_refuse("{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}}",
              "needs stage 1, 2 or 3");
  must_refuse("{\"bf16\": true}", "expected an object");
  must_refuse("", "empty");
  must_refuse("  \n", "empty");
  must_refuse("{\"a\": 1, \"a\": 2}", "a");
  must_refuse("{", "truncated");
}

/* -- Accelerate and FSDP ----------------------------------------------------------------------- */

static void test_accelerate(void **state) {
  (void)state;
  const hk_train_config c = loaded(
      "# written by accelerate config\ncompute_environment: LOCAL_MACHINE\ndebug: false\n"
      "deepspeed_config:\n  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n"
      "  offload_optimizer_device: cpu  # the state\n  offload_param_device: none\n"
      "  zero3_init_flag: true\n  zero_stage: 3\ndistributed_type: DEEPSPEED\n"
      "downcast_bf16: 'no'\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 8\n"
      "tpu_env: []\n");
  assert_int_equal(c.framework, HK_FRAMEWORK_ACCELERATE);
  assert_int_equal(c.stage, 3);
  assert_int_equal(c.grad_accum, 4);
  assert_int_equal(c.nodes, 2);
  assert_int_equal(c.gpus, 4);
  assert_true(c.offload && c.pinned && c.max_norm == 1 && c.subgroup_numel == 1000000000);
  assert_int_equal(c.n_notes, 0);
  const hk_train_config plain = loaded("distributed_type: MULTI_GPU\nnum_processes: 2\n");
  assert_true(!plain.offload && has_note(&plain, "without offload"));
}

static void test_fsdp(void **state) {
  (void)state;
  const hk_train_config c = loaded(
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: true\n"
      "  fsdp_activation_checkpointing: true\n  fsdp_reshard_after_forward: false\n"
      "mixed_precision: no\nnum_processes: 4\n");
  assert_int_equal(c.framework, HK_FRAMEWORK_FSDP);
  assert_true(c.offload && c.checkpoint == 1 && c.stage == 2);
  assert_true(has_note(&c, "does not simulate FSDP") && has_note(&c, "SHARD_GRAD_OP"));
  /* JSON is YAML, too. */
  const hk_train_config json =
      loaded("{\"distributed_type\": \"FSDP\", \"fsdp_config\": {\"fsdp_sharding_strategy\": 1}}");
  assert_true(!json.offload && json.stage == 3 && json.checkpoint == -1);
}

static void test_accelerate_refused(void **state) {
  (void)state;
  must_refuse("distributed_type: TPU\n", "expected DEEPSPEED, FSDP, MULTI_GPU or NO, got 'TPU'");
  must_refuse("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_param: true\n",
              "fsdp_config: key 'fsdp_offload_param' is not known; did you mean "
              "'fsdp_offload_params'?");
  must_refuse("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HALF\n",
              "expected one of FULL_SHARD");
  static const char *const strategies[] = {"0", "-1", "1.5", "6", "2.9e31", "-2.9e31"};
  for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
    char text[120];
    snprintf(text, sizeof text,
             "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: %s\n", strategies[i]);
    must_refuse(text, "expected one of FULL_SHARD");
  }
  must_refuse("distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 3\n",
              "3 ranks on 2 machines");
  must_refuse("distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_optimizer_device: nvme\n",
              "nvme is not simulated");
  must_refuse(
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
      "  deepspeed_config_file: /no/such/file.json\n",
      "/no/such/file.json");
}

static void test_yaml(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } wrong[] = {
      {"a: 1\na: 2\n", "line 2: key 'a' again"},
      {"a:\n\tb: 1\n", "line 2: not YAML: found character that cannot start any token"},
      {"a: 1\nb: &x 1\n", "line 2: expected a plain value, got an anchor"},
      {"a: &x\n  b: 1\n", "line 1: expected a plain value"},
      {"a: &x [1]\n", "line 1: expected a plain value"},
      {"a: 1\nb: *a\n", "line 2: expected a plain value"},
      {"a: !!python/tuple [1]\n", "line 1: expected a plain value"},
      {"a: 1\nb: \"x\\0y\"\n", "line 2: a NUL byte"},
      {"a: 1\n\nb: \x01\n", "line 3: not YAML: control characters are not allowed"},
      {"[a, b]: 1\n", "line 1: expected a key"},
      {"hello\n", "line 1: expected KEY: VALUE"},
      {"- a\n", "line 1: expected KEY: VALUE"},
      {"a: 1\n  b: 2\n", "line 2: not YAML: mapping values are not allowed"},
      {"a:\n    b: 1\n  c: 2\n", "line 3: not YAML: did not find expected key"},
      {"a:\n b:\n  c:\n   d:\n    e:\n     f:\n      g:\n       h:\n        i: 1\n", "8 levels"},
      {"a: [[[[[[[[1]]]]]]]]\n", "8 levels"},
      {"# nothing\n", "holds no key"},
      {"a: 1\n---\nb: 2\n", "line 2: another document"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    cJSON *root = NULL;
    hk_error err = {0};
    assert_int_equal(hk_yaml_parse(wrong[i].text, strlen(wrong[i].text), "f", &root, &err),
                     HK_INPUT);
    assert_null(root);
    if (!strstr(err.message, wrong[i].says))
      fail_msg("%s: said '%s', expected '%s'", wrong[i].text, err.message, wrong[i].says);
  }
  static const char text[] =
      "---\r\nx: -1.5\r\nt: yes\nn: ~\ns: a b #c\nq: 'a # b'\ne: 1e9\nm:\n  k:\n    z: {}\n  w: 2\n"
      "empty:\nflow: {a: [1, 'no'], b: []}\nlist:\n- x\n- k: 2\nblock: |\n  one\n  two\nlast: "
      "\"a\\nb\"";
  static const char same[] =
      "{\"x\": -1.5, \"t\": true, \"n\": null, \"s\": \"a b\", \"q\": \"a # b\", \"e\": \"1e9\","
      " \"m\": {\"k\": {\"z\": {}}, \"w\": 2}, \"empty\": null,"
      " \"flow\": {\"a\": [1, \"no\"], \"b\": []}, \"list\": [\"x\", {\"k\": 2}],"
      " \"block\": \"one\\ntwo\\n\", \"last\": \"a\\nb\"}";
  cJSON *root = NULL, *expected = NULL;
  hk_error err = {0};
  assert_int_equal(hk_yaml_parse(text, strlen(text), "f", &root, &err), HK_OK);
  assert_int_equal(hk_json_parse(same, strlen(same), "g", &expected, &err), HK_OK);
  assert_true(cJSON_Compare(root, expected, true));
  cJSON_Delete(root);
  cJSON_Delete(expected);
}

/* -- Ratios and writing ------------------------------------------------------------------------ */

static void test_ratio(void **state) {
  (void)state;
  /* In doubles (1 - 0.8) x 10 is 1.9999999999999996, so one subgroup is on the GPU. */
  assert_int_equal(hk_deepspeed_on_host(0.8, 10), 9);
  assert_int_equal(hk_deepspeed_on_host(0.8, 2), 2);
  assert_int_equal(hk_deepspeed_on_host(0, 7), 0);
  assert_int_equal(hk_deepspeed_on_host(1, 7), 7);
  for (size_t n = 1; n <= 400; n++)
    for (size_t on_host = 0; on_host <= n; on_host++)
      assert_int_equal(hk_deepspeed_on_host(hk_deepspeed_ratio(on_host, n), n), on_host);
}

static void test_written(void **state) {
  (void)state;
  for (int framework = 0; framework < HK_FRAMEWORK_COUNT; framework++) {
    hk_train_config c = hk_train_config_default((hk_framework)framework), again;
    hk_error err = {0};
    c.stage = 3;
    c.offload = true;
    c.micro_batch = 3;
    c.grad_accum = 5;
    c.gpus = 4;
    c.nodes = 2;
    c.checkpoint = 1;
    if (framework == HK_FRAMEWORK_DEEPSPEED) {
      c.ratio = 0.35;
      c.subgroup_numel = 123456789;
      c.max_norm = 1.5;
      c.tp = 2;
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(hk_train_config_write(&c, file, &err), HK_OK);
    assert_int_equal(fclose(file), 0);
    if (hk_train_config_load(path, &again, &err) != HK_OK) fail_msg("%s", err.message);
    assert_int_equal(again.framework, c.framework);
    if (framework == HK_FRAMEWORK_DEEPSPEED) {
      assert_true(again.micro_batch == 3 && again.grad_accum == 5 && again.tp == 2);
      assert_true(again.ratio == 0.35 && again.subgroup_numel == 123456789);
      assert_true(again.max_norm == 1.5 && again.offload && again.stage == 3);
    } else {
      assert_true(again.gpus == 4 && again.nodes == 2);
      if (framework == HK_FRAMEWORK_FSDP) assert_true(again.offload && again.checkpoint == 1);
    }
  }
}

static int make_path(void **state) {
  (void)state;
  const int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state) {
  (void)state;
  return unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_deepspeed),
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_notes),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_accelerate),
      cmocka_unit_test(test_fsdp),
      cmocka_unit_test(test_accelerate_refused),
      cmocka_unit_test(test_yaml),
      cmocka_unit_test(test_ratio),
      cmocka_unit_test(test_written),
  };
  return cmocka_run_group_tests(tests, make_path, remove_path);
}
