/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Calls a fuzz target on files and on the files of folders, for compilers without libFuzzer.
 * Usage: test_fuzz_READER PATH... */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static size_t n_inputs;

/* Prints the path before its input is run: the last one printed is that of a crash. */
static void announce(const char *path) {
  fprintf(stderr, "\r%s", path);
  fflush(stderr);
}

static void replay_file(const char *path) {
  size_t size = 0;
  uint8_t *bytes = hk_fuzz_contents(path, &size);
  announce(path);
  /* An allocation of exactly its size, so that a sanitizer detects a read past its end. */
  uint8_t *exact = malloc(size > 0 ? size : 1);
  FUZZ_MUST(exact != NULL);
  memcpy(exact, bytes, size);
  free(bytes);
  LLVMFuzzerTestOneInput(exact, size);
  free(exact);
  n_inputs++;
}

static int is_visible(const struct dirent *entry) {
  return entry->d_name[0] != '.';
}

static void replay(const char *path) {
  struct stat info;
  if (stat(path, &info) != 0) hk_fuzz_abort(__FILE__, __LINE__, "a path that is there", path);
  if (!S_ISDIR(info.st_mode)) {
    replay_file(path);
    return;
  }
  struct dirent **entries = NULL;
  const int n = scandir(path, &entries, is_visible, alphasort);
  for (int i = 0; i < n; i++) {
    char inside[4096];
    snprintf(inside, sizeof inside, "%s/%s", path, entries[i]->d_name);
    replay_file(inside);
    free(entries[i]);
  }
  free(entries);
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) replay(argv[i]);
  fprintf(stderr, "\r%zu inputs replayed\n", n_inputs);
  return n_inputs > 0 ? 0 : 1; /* without a corpus nothing was tested */
}
