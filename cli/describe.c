/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/describe.h"

#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/base/infile.h"
#include "core/base/json.h"

#define MOST_CONFIG (16 << 20) /* bytes */

/* python3 -m hocket, which would look for modules in the working directory first: it may be a
 * checkpoint that somebody else has made. */
#define SCRIPT                                                \
  "import runpy, sys; sys.path[:] = filter(None, sys.path); " \
  "runpy.run_module('hocket', run_name='__main__')"

/* Infinite numbers, which Python's json writes and JSON does not have, become null: those of
 * Mamba's time_step_limit. Texts that have them keep their length. */
static void drop_infinities(char *text) {
  static const char infinity[] = "Infinity", none[] = "null    ";
  for (char *at = text; (at = strstr(at, infinity)); at += sizeof none - 1) {
    memcpy(at, none, sizeof none - 1);
    if (at > text && at[-1] == '-') at[-1] = ' ';
  }
}

static bool is_foreign(const char *path) {
  char file[4096];
  struct stat status;
  hk_error ignored = {0};
  cJSON *config = NULL;
  const bool folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
  const int n = snprintf(file, sizeof file, "%s%s", path, folder ? "/config.json" : "");
  /* A pipe has been read and is empty now. */
  if (n >= (int)sizeof file || stat(file, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  char *text = NULL;
  size_t length;
  if (hk_infile_read(file, "a config.json", MOST_CONFIG, &text, &length, &ignored) != HK_OK)
    return false;
  drop_infinities(text);
  const bool foreign =
      hk_json_parse(text, length, file, &config, &ignored) == HK_OK && hk_model_is_foreign(config);
  cJSON_Delete(config);
  free(text);
  return foreign;
}

/* Returns 0, or an error number. */
static int start(const char *path, int64_t seq, bool checkpoint, int out, int messages,
                 pid_t *child) {
  char tokens[24];
  snprintf(tokens, sizeof tokens, "%" PRId64, seq);
  char *argv[] = {"python3",
                  "-c",
                  SCRIPT,
                  "describe",
                  "--seq",
                  tokens,
                  "--checkpoint-activations",
                  checkpoint ? "yes" : "no",
                  "--",
                  (char *)path,
                  NULL};
  posix_spawn_file_actions_t actions;
  int failed = posix_spawn_file_actions_init(&actions);
  if (failed) return failed;
  failed = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", 0, 0);
  if (!failed) failed = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (!failed) failed = posix_spawn_file_actions_adddup2(&actions, messages, STDERR_FILENO);
  if (!failed) failed = posix_spawnp(child, argv[0], &actions, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* False: it took longer, and was killed. */
static bool wait_for(pid_t child, double seconds, int *status) {
  const double end = now() + seconds;
  while (waitpid(child, status, WNOHANG) == 0) {
    if (now() > end) {
      kill(child, SIGKILL);
      waitpid(child, status, 0);
      return false;
    }
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  return true;
}

/* The last line of the file that is not empty, or the end of it. */
static void last_line(FILE *file, char *line, size_t size) {
  char text[600];
  fseek(file, 0, SEEK_END);
  const long end = ftell(file), most = sizeof text - 1;
  fseek(file, end > most ? end - most : 0, SEEK_SET);
  size_t length = fread(text, 1, sizeof text - 1, file);
  while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) length--;
  text[length] = '\0';
  const char *begin = strrchr(text, '\n');
  snprintf(line, size, "%.*s", (int)size - 1,
           begin        ? begin + 1
           : length > 0 ? text
                        : "no reason given");
}

static hk_status read_document(FILE *file, hk_model *model, hk_error *err) {
  struct stat status;
  cJSON *root = NULL;
  rewind(file);
  if (fstat(fileno(file), &status) != 0) return hk_fail(err, HK_ENVIRONMENT, "cannot be read");
  char *text = malloc((size_t)status.st_size + 1);
  if (!text) return hk_fail_memory(err, (size_t)status.st_size, "a model document");
  const size_t length = fread(text, 1, (size_t)status.st_size, file);
  text[length] = '\0';
  hk_status result = hk_json_parse(text, length, "its output", &root, err);
  free(text);
  if (result == HK_OK && !hk_model_is_document(root))
    result = hk_fail(err, HK_INPUT, "its output is no model document");
  if (result == HK_OK) result = hk_model_from_config(root, "described", model, err);
  cJSON_Delete(root);
  return result;
}

static hk_status describe(const char *path, int64_t seq, bool checkpoint, double seconds, FILE *out,
                          FILE *messages, hk_model *model, hk_error *err) {
  pid_t child = 0;
  int status = 0;
  const int failed = start(path, seq, checkpoint, fileno(out), fileno(messages), &child);
  if (failed) return hk_fail(err, HK_INPUT, "%s", strerror(failed));
  if (isatty(STDERR_FILENO))
    fprintf(stderr, "hocket: Python counts %s, for up to %g s; Ctrl-C ends it\n", path, seconds);
  if (!wait_for(child, seconds, &status))
    return hk_fail(err, HK_INPUT, "it took longer than %g s", seconds);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return read_document(out, model, err);
  char line[300];
  last_line(messages, line, sizeof line);
  return hk_fail(err, HK_INPUT, "%s", line);
}

hk_status hk_describe(const char *path, int64_t seq, bool checkpoint, double seconds,
                      hk_model *model, hk_error *err) {
  if (!is_foreign(path)) return err->status;
  hk_error reason = {0};
  FILE *out = tmpfile(), *messages = tmpfile();
  const hk_status status =
      out && messages ? describe(path, seq, checkpoint, seconds, out, messages, model, &reason)
                      : hk_fail(&reason, HK_ENVIRONMENT, "no temporary file can be made");
  if (out) fclose(out);
  if (messages) fclose(messages);
  if (status == HK_OK) return HK_OK;
  return hk_fail_prefix(err, "%s: 'python3 -m hocket describe' fails (%s)", path, reason.message);
}
