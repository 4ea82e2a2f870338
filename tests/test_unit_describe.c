/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Models that the Python package describes, with packages in its place that fail in each way, and
 * one that prints a document. python/tests/test_describe.py has the real one. */
#include "cli/describe.c"

#include "tests/fixture.h"

#define FOREIGN "{\"model_type\": \"mamba2\"}"
#define DOCUMENT                                                                              \
  "{'schema': 'hocket.model/1', 'name': ' '.join(sys.argv[1:]), 'tensors': [{'name': 'w', "   \
  "'numel': 9, 'block': 0}, {'name': 'v', 'numel': 9, 'block': 1}], 'blocks': [{'name': 'b'," \
  "'forward_flops': 1, 'activation_bytes': 1, 'workspace_bytes': 0}] * 2}"

static char folder[] = "/tmp/hocket-describe-XXXXXX", path[64];

static void put(const char *name, const char *text) {
  char file[128];
  snprintf(file, sizeof file, "%s/%s", folder, name);
  FILE *out = fopen(file, "w");
  assert_non_null(out);
  fputs(text, out);
  assert_int_equal(fclose(out), 0);
}

static int make_folders(void **state) {
  (void)state;
  char name[128];
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/-m", folder);
  snprintf(name, sizeof name, "%s/hocket", folder);
  if (mkdir(path, 0700) != 0 || mkdir(name, 0700) != 0) return -1;
  put("hocket/__init__.py", "");
  put("-m/config.json", FOREIGN);
  put("-m/intruder.py", "");
  if (chdir(path) != 0) return -1;
  return setenv("PYTHONPATH", folder, 1);
}

static int remove_folders(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);  // NOLINT(cert-env33-c)
}

/* What comes of a package whose __main__.py has this text. */
static hk_status describe_with(const char *text, double seconds, hk_model *model, hk_error *err) {
  put("hocket/__main__.py", text);
  *err = (hk_error){0};
  hk_fail(err, HK_INPUT, "refused");
  return hk_describe(path, 7, false, seconds, model, err);
}

static void failures_are_told(void **state) {
  (void)state;
  const struct {
    const char *package, *reason;
    double seconds;
  } cases[] = {
      {"import torch_that_is_not_there", "No module named 'torch_that_is_not_there'", 60},
      {"import sys\nprint('note', file=sys.stderr)\nsys.exit('it takes images\\n')",
       "(it takes images)", 60},
      {"import intruder", "No module named 'intruder'", 60},
      {"import sys\nsys.exit(3)", "(no reason given)", 60},
      {"import os\nos.kill(os.getpid(), 9)", "(no reason given)", 60},
      {"print('hello')", "its output: line 1", 60},
      {"", "its output: empty", 60},
      {"print('{}')", "no model document", 60},
      {"print('{\"schema\": \"hocket.model/1\"}')", "'blocks'", 60},
      {"while True: pass", "took longer than 0.2 s", 0.2},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    hk_model model = {0};
    hk_error err;
    assert_int_equal(describe_with(cases[i].package, cases[i].seconds, &model, &err), HK_INPUT);
    if (!strstr(err.message, cases[i].reason) || strncmp(err.message, path, strlen(path)) != 0 ||
        strcmp(err.message + strlen(err.message) - 9, ": refused") != 0)
      fail_msg("%zu: %s", i, err.message);
    assert_null(model.tensors);
  }
}

static void a_document_is_loaded(void **state) {
  (void)state;
  hk_model model = {0};
  hk_error err;
  char name[128];
  must(describe_with("import json, sys\nprint(json.dumps(" DOCUMENT "))", 60, &model, &err), &err);
  snprintf(name, sizeof name, "describe --seq 7 --checkpoint-activations no -- %s", path);
  assert_string_equal(model.name, name);
  assert_int_equal(model.parameters, 18);
  hk_model_free(&model);
}

/* How a model of that config.json is refused. */
static hk_error refused(const char *config) {
  hk_model model = {0};
  hk_error err;
  put("-m/config.json", config);
  assert_int_equal(describe_with("print(1)", 60, &model, &err), HK_INPUT);
  return err;
}

/* A kind that is known, a document, what is no JSON: nothing is run, and the refusal stands. */
static void only_unknown_kinds_are_described(void **state) {
  (void)state;
  static const char *const texts[] = {
      "{\"model_type\": \"llama\"}", "{\"architectures\": [\"LlamaForCausalLM\"]}",
      "{\"schema\": \"hocket.model/1\", \"model_type\": \"mamba2\"}", "{", "{}"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    assert_string_equal(refused(texts[i]).message, "refused");
  /* Python's json writes Infinity. */
  static const char *const foreign[] = {
      "{\"text_config\": {\"model_type\": \"mamba2\"}}",
      "{\"time_step_limit\": [0.0, Infinity], \"low\": -Infinity, \"model_type\": \"mamba2\"}"};
  for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
    assert_string_not_equal(refused(foreign[i]).message, "refused");
}

static void without_python(void **state) {
  (void)state;
  hk_model model = {0};
  hk_error err;
  setenv("PATH", folder, 1);
  put("-m/config.json", FOREIGN);
  assert_int_equal(describe_with("", 60, &model, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "(No such file or directory)"));
  setenv("PATH", "/usr/bin:/bin", 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(failures_are_told),
      cmocka_unit_test(a_document_is_loaded),
      cmocka_unit_test(only_unknown_kinds_are_described),
      cmocka_unit_test(without_python),
  };
  return cmocka_run_group_tests(tests, make_folders, remove_folders);
}
