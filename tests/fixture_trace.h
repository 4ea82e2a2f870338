/* SPDX-License-Identifier: GPL-3.0-or-later */
/* For tests of traces: a temporary folder for one trace, and check_trace.py to check it. */
#ifndef HK_TESTS_FIXTURE_TRACE_H
#define HK_TESTS_FIXTURE_TRACE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = P_tmpdir "/hocket-chrome-XXXXXX";
static char path[sizeof folder + 16];

static inline int make_folder(void **state) {
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/trace.json", folder);
  return 0;
}

static inline int remove_folder(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder); /* fails if writing a trace left another file */
}

static inline bool have_python(void) {
  return system("command -v python3 >/dev/null 2>&1") == 0;
}

/* Runs check_trace.py on `path`; the last line it printed goes to `output`. */
static inline int run_checker(char output[1024]) {
  char command[2048];
  snprintf(command, sizeof command, "python3 '%s/../check_trace.py' '%s' 2>&1", HK_TEST_DATA, path);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  output[0] = '\0';
  while (fgets(output, 1024, pipe)) continue;
  int status = pclose(pipe);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

#endif
