/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Suggestions for misspelt names; presets in a share folder that the test makes. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/names.h"

/* -- Nearest name -------------------------------------------------------------------------- */

static void test_nearest(void **state) {
  (void)state;
  static const char *const names[] = {"llama-2-7b", "llama-2-70b", "mistral-7b", "qwen2.5-0.5b",
                                      "gpt2",       "h200-16core", "h100"};
  static const struct {
    const char *typed, *nearest;
  } cases[] = {
      {"llama-2-7b", "llama-2-7b"},
      {"lama-2-7b", "llama-2-7b"},    /* insert */
      {"lllama-2-7b", "llama-2-7b"},  /* delete */
      {"llama-3-7b", "llama-2-7b"},   /* substitute */
      {"llaam-2-7b", "llama-2-7b"},   /* transpose */
      {"LLAMA-2-70B", "llama-2-70b"}, /* case */
      {"gtp2", "gpt2"},
      {"gpt", "gpt2"},             /* beginning */
      {"16core", "h200-16core"},   /* part, too far by distance */
      {"mistral", "mistral-7b"},   /* beginning, distance 3 */
      {"llama-2-7", "llama-2-7b"}, /* beginning of two names: the nearer one */
      {"qwen25-05b", "qwen2.5-0.5b"},
      {"h200", "h200-16core"}, /* a part goes before a distance of 1 ("h100") */
      {"bert-large", NULL},
      {"x", NULL},
      {"gp", NULL}, /* distance 2 is too far for two letters */
      {"", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *found = hk_nearest(cases[i].typed, names, sizeof names / sizeof *names);
    if (cases[i].nearest) {
      assert_non_null(found);
      assert_string_equal(found, cases[i].nearest);
    } else {
      assert_null(found);
    }
  }
  assert_null(hk_nearest("gpt2", NULL, 0));
}

/* Names of up to 96 characters are compared; longer ones, as typed or listed, never match. */
static void test_nearest_ignores_names_over_96_characters(void **state) {
  (void)state;
  char longest[97], longer[98];
  memset(longest, 'a', 96);
  longest[96] = '\0';
  memset(longer, 'a', 97);
  longer[97] = '\0';
  char *enormous = malloc(1 << 20);
  assert_non_null(enormous);
  memset(enormous, 'a', (1 << 20) - 1);
  enormous[(1 << 20) - 1] = '\0';
  const char *const names[] = {longer, enormous, longest};
  assert_ptr_equal(hk_nearest(longest, names, 3), longest);
  assert_null(hk_nearest(longer, names, 3));
  assert_null(hk_nearest(enormous, names, 3));
  free(enormous);
}

/* -- A share folder ------------------------------------------------------------------------ */

static char folder[PATH_MAX - 256];

static void make_file(const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fclose(file), 0);
}

static void make_folder(const char *name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(mkdir(path, 0700), 0);
}

static int make_share(void **state) {
  (void)state;
  static char template[] = "hk-names-XXXXXX";
  char here[PATH_MAX - 512];
  if (!mkdtemp(template) || !getcwd(here, sizeof here)) return -1;
  snprintf(folder, sizeof folder, "%s/%s", here, template);
  make_folder("models");
  make_folder("machines");
  make_file("models/llama-2-7b.json");
  make_file("models/gpt2.json");
  make_file("models/README.md");
  make_file("models/.hidden.json");
  make_file("models/.json");
  make_folder("models/folder.json");
  return setenv("HOCKET_SHARE", folder, 1);
}

static int remove_share(void **state) {
  (void)state;
  static const char *const made[] = {
      "models/llama-2-7b.json", "models/gpt2.json",   "models/README.md", "models/.hidden.json",
      "models/.json",           "models/folder.json", "models",           "machines"};
  char path[PATH_MAX];
  for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, made[i]);
    if (remove(path) != 0) return -1;
  }
  return rmdir(folder);
}

static void test_list(void **state) {
  (void)state;
  assert_string_equal(hk_share_dir(), folder);
  char **names;
  size_t n;
  hk_error err = {0};
  assert_int_equal(hk_share_list("models", &names, &n, &err), HK_OK);
  assert_int_equal(n, 2);
  assert_string_equal(names[0], "gpt2");
  assert_string_equal(names[1], "llama-2-7b");
  hk_names_free(names, n);

  assert_int_equal(hk_share_list("machines", &names, &n, &err), HK_OK);
  assert_int_equal(n, 0);
  hk_names_free(names, n);

  assert_int_equal(hk_share_list("nothings", &names, &n, &err), HK_ENVIRONMENT);
  assert_null(names);
  assert_non_null(strstr(err.message, folder));
  assert_non_null(strstr(err.message, "No such file"));
  hk_names_free(names, n);
}

static void test_resolve(void **state) {
  (void)state;
  char path[4096], preset[PATH_MAX];
  hk_error err = {0};
  assert_int_equal(hk_share_resolve("models", "gpt2", path, sizeof path, &err), HK_OK);
  snprintf(preset, sizeof preset, "%s/models/gpt2.json", folder);
  assert_string_equal(path, preset);

  static const char *const paths[] = {"./gpt2", "gpt2.json", "../x/y", "/", "a/b.json"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    assert_int_equal(hk_share_resolve("models", paths[i], path, sizeof path, &err), HK_OK);
    assert_string_equal(path, paths[i]);
  }
}

static void assert_unresolved(const char *name, const char *message) {
  char path[4096];
  hk_error err = {0};
  assert_int_equal(hk_share_resolve("models", name, path, sizeof path, &err), HK_INPUT);
  assert_string_equal(err.message, message);
}

static void test_resolve_refuses(void **state) {
  (void)state;
  assert_unresolved("lama-2-7b",
                    "unknown model 'lama-2-7b'; did you mean 'llama-2-7b'? ('hocket model list' "
                    "prints all)");
  assert_unresolved("bert", "unknown model 'bert' ('hocket model list' prints all)");
  assert_unresolved("", "empty model name ('hocket model list' prints all)");
  assert_unresolved("..",
                    "unknown model '..'; for the file of that name write './..' ('hocket "
                    "model list' prints all)");
  assert_unresolved("%s%n", "unknown model '%s%n' ('hocket model list' prints all)");
  assert_unresolved("folder", "unknown model 'folder' ('hocket model list' prints all)");

  char name[5000];
  memset(name, 'a', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  assert_unresolved(name, "model name of 4999 characters: too long for a path");
  name[1000] = '\0'; /* fits into a path, but exceeds NAME_MAX */
  char path[4096];
  hk_error err = {0};
  assert_int_equal(hk_share_resolve("models", name, path, sizeof path, &err), HK_INPUT);
  assert_memory_equal(err.message, "unknown model 'aaa", 18);
}

static void test_share_without_variable(void **state) {
  (void)state;
  /* The folder is searched for once, in the program's parents and where hocket is installed, and
   * kept. An empty variable counts as unset. */
  assert_int_equal(unsetenv("HOCKET_SHARE"), 0);
  const char *found = hk_share_dir();
  assert_non_null(found);
  assert_int_equal(found[0], '/');
  assert_int_equal(setenv("HOCKET_SHARE", "", 1), 0);
  assert_ptr_equal(hk_share_dir(), found);
  assert_int_equal(setenv("HOCKET_SHARE", "/nonexistent", 1), 0);
  assert_string_equal(hk_share_dir(), "/nonexistent");
  char path[4096];
  hk_error err = {0};
  assert_int_equal(hk_share_resolve("models", "gpt2", path, sizeof path, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "'/nonexistent/models'"));
  assert_non_null(strstr(err.message, "set HOCKET_SHARE"));
  assert_int_equal(setenv("HOCKET_SHARE", folder, 1), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nearest),
      cmocka_unit_test(test_nearest_ignores_names_over_96_characters),
      cmocka_unit_test(test_list),
      cmocka_unit_test(test_resolve),
      cmocka_unit_test(test_resolve_refuses),
      cmocka_unit_test(test_share_without_variable),
  };
  return cmocka_run_group_tests(tests, make_share, remove_share);
}
