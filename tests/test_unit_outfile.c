/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Output files appear complete or not at all: after any failure or kill the old content is there,
 * no temporary file is left, and the message names the reason. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/json.h"
#include "core/base/outfile.h"

/* -- A folder of its own for every test ------------------------------------------------------ */

static char folder[] = "hk-outfile-XXXXXX";

static int enter_folder(void **state) {
  (void)state;
  strcpy(folder + sizeof folder - 7, "XXXXXX");
  return !mkdtemp(folder) || chdir(folder) != 0 ? -1 : 0;
}

/* Fails if the test has left a file. */
static int leave_folder(void **state) {
  (void)state;
  return chdir("..") != 0 || rmdir(folder) != 0 ? -1 : 0;
}

static size_t count_files(const char *path) {
  size_t n = 0;
  DIR *directory = opendir(path);
  assert_non_null(directory);
  for (const struct dirent *entry; (entry = readdir(directory));) {
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) n++;
  }
  closedir(directory);
  return n;
}

static void put(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void assert_content(const char *path, const char *text) {
  char content[256];
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  size_t n = fread(content, 1, sizeof content - 1, file);
  content[n] = '\0';
  fclose(file);
  assert_string_equal(content, text);
}

static mode_t mode_of(const char *path) {
  struct stat status;
  assert_int_equal(stat(path, &status), 0);
  return status.st_mode & 07777;
}

static hk_status write_text(const char *path, const char *text, hk_error *err) {
  hk_outfile *out;
  HK_TRY(hk_outfile_open(path, &out, err));
  fputs(text, hk_outfile_stream(out));
  return hk_outfile_close(out, err);
}

/* -- Successful writes ----------------------------------------------------------------------- */

static void test_new_file_appears_at_close(void **state) {
  (void)state;
  hk_error err = {0};
  hk_outfile *out;
  mode_t old = umask(027);
  assert_int_equal(hk_outfile_open("a.json", &out, &err), HK_OK);
  umask(old);
  fputs("hello", hk_outfile_stream(out));
  fflush(hk_outfile_stream(out));
  assert_int_not_equal(access("a.json", F_OK), 0);
  assert_int_equal(hk_outfile_close(out, &err), HK_OK);
  assert_content("a.json", "hello");
  assert_int_equal(mode_of("a.json"), 0640);
  assert_int_equal(count_files("."), 1);
  assert_int_equal(unlink("a.json"), 0);
}

/* The file keeps its permissions, including those that the umask (022) denies to new files. */
static void test_replacement_keeps_the_old_until_close(void **state) {
  (void)state;
  hk_error err = {0};
  hk_outfile *out;
  put("a.json", "old");
  assert_int_equal(chmod("a.json", 0646), 0);
  assert_int_equal(hk_outfile_open("a.json", &out, &err), HK_OK);
  fputs("new", hk_outfile_stream(out));
  fflush(hk_outfile_stream(out));
  assert_content("a.json", "old");
  assert_int_equal(hk_outfile_close(out, &err), HK_OK);
  assert_content("a.json", "new");
  assert_int_equal(mode_of("a.json"), 0646);
  assert_int_equal(count_files("."), 1);
  assert_int_equal(unlink("a.json"), 0);
}

static void test_abort_leaves_nothing(void **state) {
  (void)state;
  hk_outfile *out;
  assert_int_equal(hk_outfile_open("a.json", &out, NULL), HK_OK);
  fputs("half", hk_outfile_stream(out));
  hk_outfile_abort(out);
  assert_int_equal(count_files("."), 0);

  put("a.json", "old");
  assert_int_equal(hk_outfile_open("a.json", &out, NULL), HK_OK);
  fputs("half", hk_outfile_stream(out));
  hk_outfile_abort(out);
  assert_content("a.json", "old");
  assert_int_equal(count_files("."), 1);
  assert_int_equal(unlink("a.json"), 0);
  hk_outfile_abort(NULL);
}

static void test_two_files_at_once(void **state) {
  (void)state;
  hk_outfile *a, *b;
  assert_int_equal(hk_outfile_open("same", &a, NULL), HK_OK);
  assert_int_equal(hk_outfile_open("./same", &b, NULL), HK_OK);
  fputs("from a", hk_outfile_stream(a));
  fputs("from b", hk_outfile_stream(b));
  assert_int_equal(hk_outfile_close(a, NULL), HK_OK);
  assert_content("same", "from a");
  assert_int_equal(hk_outfile_close(b, NULL), HK_OK);
  assert_content("same", "from b");
  assert_int_equal(count_files("."), 1);
  assert_int_equal(unlink("same"), 0);
}

static void test_longest_name(void **state) {
  (void)state;
  char name[NAME_MAX + 2];
  memset(name, 'n', NAME_MAX + 1);
  name[NAME_MAX] = '\0';
  assert_int_equal(write_text(name, "x", NULL), HK_OK);
  assert_content(name, "x");
  assert_int_equal(unlink(name), 0);
  name[NAME_MAX] = 'n';
  name[NAME_MAX + 1] = '\0';
  hk_error err = {0};
  assert_int_equal(write_text(name, "x", &err), HK_INPUT);
  assert_non_null(strstr(err.message, "File name too long"));
}

static void test_symbolic_link_survives(void **state) {
  (void)state;
  assert_int_equal(mkdir("real", 0700), 0);
  put("real/a.json", "old");
  assert_int_equal(symlink("real/a.json", "link"), 0);
  assert_int_equal(symlink("link", "chain"), 0);
  assert_int_equal(write_text("chain", "new", NULL), HK_OK);
  assert_content("real/a.json", "new");
  struct stat status;
  assert_int_equal(lstat("chain", &status), 0);
  assert_true(S_ISLNK(status.st_mode));
  assert_int_equal(lstat("link", &status), 0);
  assert_true(S_ISLNK(status.st_mode));
  assert_int_equal(count_files("real"), 1);
  assert_int_equal(unlink("chain") | unlink("link") | unlink("real/a.json") | rmdir("real"), 0);
}

static void test_dash_is_a_name(void **state) {
  (void)state;
  assert_int_equal(write_text("-", "x", NULL), HK_OK);
  assert_content("-", "x");
  assert_int_equal(unlink("-"), 0);
}

static void test_pipe_is_written_directly(void **state) {
  (void)state;
  assert_int_equal(mkfifo("pipe", 0600), 0);
  int reader = open("pipe", O_RDONLY | O_NONBLOCK);
  assert_true(reader >= 0);
  hk_error err = {0};
  assert_int_equal(write_text("pipe", "through", &err), HK_OK);
  char got[16] = "";
  assert_int_equal(read(reader, got, sizeof got - 1), 7);
  assert_string_equal(got, "through");
  close(reader);
  struct stat status;
  assert_int_equal(stat("pipe", &status), 0);
  assert_true(S_ISFIFO(status.st_mode));
  assert_int_equal(unlink("pipe"), 0);
  assert_int_equal(write_text("/dev/null", "away", &err), HK_OK);
}

static void test_abort_sends_nothing_to_a_pipe(void **state) {
  (void)state;
  assert_int_equal(mkfifo("pipe", 0600), 0);
  int reader = open("pipe", O_RDONLY | O_NONBLOCK);
  assert_true(reader >= 0);
  hk_outfile *out;
  assert_int_equal(hk_outfile_open("pipe", &out, NULL), HK_OK);
  fputs("half", hk_outfile_stream(out));
  hk_outfile_abort(out);
  char got[16];
  assert_int_equal(read(reader, got, sizeof got), 0);
  close(reader);
  assert_int_equal(unlink("pipe"), 0);
}

/* -- Kills ----------------------------------------------------------------------------------- */

/* Replacements of open and fsync: the library calls these, since the program's symbols precede
 * libc's. */
static bool without_tmpfile; /* O_TMPFILE fails, as on some file systems */
static mode_t widest_mode;   /* union of the modes that regular files were made with */
static int synced_folders;

int open(const char *path, int flags, ...) {
  const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  va_list values;
  va_start(values, flags);
  const mode_t mode = unnamed || (flags & O_CREAT) ? va_arg(values, mode_t) : 0;
  va_end(values);
  if (without_tmpfile && unnamed) {
    errno = EOPNOTSUPP;
    return -1;
  }
  widest_mode |= mode;
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int fsync(int fd) {
  struct stat status;
  synced_folders += fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
  return (int)syscall(SYS_fsync, fd);
}

/* clang-tidy knows only functions of the C standard. */
static void remove_and_die(int number) {
  hk_outfile_remove_unfinished(); /* NOLINT(bugprone-signal-handler): it is async-signal-safe */
  signal(number, SIG_DFL);
  raise(number);
}

static void prepare_sigterm(void) {
  signal(SIGTERM, remove_and_die);
}

/* Forks a process that is killed by signal `number` while it writes `path`. */
static void die_writing(const char *path, int number) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    hk_outfile *out = NULL;
    hk_outfile_on_unfinished(prepare_sigterm);
    if (hk_outfile_open(path, &out, NULL) != HK_OK) _exit(1);
    fputs("half", hk_outfile_stream(out));
    fflush(hk_outfile_stream(out));
    raise(number);
    _exit(2);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == number);
}

static void test_kill_leaves_nothing(void **state) {
  (void)state;
  die_writing("a.json", SIGKILL);
  assert_int_equal(count_files("."), 0);
  put("a.json", "old");
  die_writing("a.json", SIGKILL);
  assert_content("a.json", "old");
  assert_int_equal(count_files("."), 1);
  assert_int_equal(unlink("a.json"), 0);
}

static void test_signal_removes_a_named_file(void **state) {
  (void)state;
  without_tmpfile = true;
  die_writing("a.json", SIGTERM);
  without_tmpfile = false;
  assert_int_equal(count_files("."), 0);
}

static void test_stale_files_are_swept(void **state) {
  (void)state;
  hk_outfile *other;
  without_tmpfile = true;
  die_writing("a.json", SIGKILL);
  die_writing("b.json", SIGKILL);
  put(".hocket-notes", "somebody's own");
  assert_int_equal(hk_outfile_open("other.json", &other, NULL), HK_OK); /* sweeps both */
  assert_int_equal(count_files("."), 2);
  assert_int_equal(write_text("c.json", "x", NULL), HK_OK); /* leaves the one in use */
  assert_int_equal(count_files("."), 3);
  assert_int_equal(hk_outfile_close(other, NULL), HK_OK);
  without_tmpfile = false;
  assert_content("other.json", "");
  assert_content("c.json", "x");
  assert_int_equal(unlink("other.json") | unlink("c.json") | unlink(".hocket-notes"), 0);
  assert_int_equal(count_files("."), 0);
}

static void test_private_file_stays_private(void **state) {
  (void)state;
  put("a.json", "old");
  assert_int_equal(chmod("a.json", 0600), 0);
  for (int i = 0; i < 2; i++) {
    without_tmpfile = i == 1;
    widest_mode = 0;
    assert_int_equal(write_text("a.json", "new", NULL), HK_OK);
    assert_int_equal(widest_mode, 0600);
    assert_int_equal(mode_of("a.json"), 0600);
  }
  without_tmpfile = false;
  assert_int_equal(unlink("a.json"), 0);
}

static void test_folder_is_synced(void **state) {
  (void)state;
  synced_folders = 0;
  assert_int_equal(write_text("a.json", "new", NULL), HK_OK);
  assert_int_equal(synced_folders, 1);
  assert_int_equal(write_text("./a.json", "newer", NULL), HK_OK);
  assert_int_equal(synced_folders, 2);
  assert_int_equal(unlink("a.json"), 0);
}

/* -- Refused paths --------------------------------------------------------------------------- */

static void assert_unopened(const char *path, const char *message) {
  hk_error err = {0};
  hk_outfile *out = NULL;
  assert_int_equal(hk_outfile_open(path, &out, &err), HK_INPUT);
  assert_null(out);
  assert_string_equal(err.message, message);
}

static void test_impossible_paths(void **state) {
  (void)state;
  put("file", "x");
  assert_int_equal(symlink("nowhere", "dangling"), 0);
  assert_int_equal(symlink("loop", "loop"), 0);
  assert_unopened("", "cannot write '': the file name is empty");
  assert_unopened(".", "cannot write '.': it is a directory; expected a file name");
  assert_unopened("new/", "cannot write 'new/': it names a directory, not a file");
  assert_unopened("no/such/a.json",
                  "cannot write 'no/such/a.json': the directory 'no/such' does not exist");
  assert_unopened("dangling", "cannot write 'dangling': it is a symbolic link to nothing");
  assert_unopened("loop", "cannot write 'loop': Too many levels of symbolic links");
  assert_unopened("file/a.json", "cannot write 'file/a.json': Not a directory");
  assert_int_equal(count_files("."), 3);
  assert_int_equal(unlink("file") | unlink("dangling") | unlink("loop"), 0);
}

static void test_permission_denied(void **state) {
  (void)state;
  if (geteuid() == 0) skip(); /* permissions do not apply to root */
  assert_int_equal(mkdir("locked", 0500), 0);
  assert_unopened("locked/a",
                  "cannot write 'locked/a': Permission denied; nothing was written "
                  "there");
  put("file", "old");
  assert_int_equal(chmod("file", 0400), 0);
  assert_unopened("file", "cannot write 'file': Permission denied");
  assert_content("file", "old");
  assert_int_equal(unlink("file") | rmdir("locked"), 0);
}

/* -- Failures while writing ------------------------------------------------------------------ */

static void test_full_device(void **state) {
  (void)state;
  hk_error err = {0};
  assert_int_equal(write_text("/dev/full", "x", &err), HK_ENVIRONMENT);
  assert_string_equal(err.message, "cannot write '/dev/full': No space left on device");
  struct stat status;
  assert_int_equal(stat("/dev/full", &status), 0);
  assert_true(S_ISCHR(status.st_mode));

  cJSON *root = cJSON_CreateObject();
  assert_int_equal(hk_json_save(root, "/dev/full", &err), HK_ENVIRONMENT);
  assert_string_equal(err.message, "cannot write '/dev/full': No space left on device");
  cJSON_Delete(root);
}

/* Writes more than the file size limit allows; then clears the stream's error. */
static hk_status write_beyond_limit(const char *path, hk_error *err) {
  hk_outfile *out;
  HK_TRY(hk_outfile_open(path, &out, err));
  FILE *stream = hk_outfile_stream(out);
  for (int i = 0; i < 100000; i++) fputs("a line of some length\n", stream);
  /* The message has the errno of the failed write, although stdio and cleanup change errno
   * afterwards. */
  clearerr(stream);
  assert_int_not_equal(access("no such file", F_OK), 0);
  return hk_outfile_close(out, err);
}

static void test_file_size_limit(void **state) {
  (void)state;
  struct rlimit old;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  const struct rlimit tight = {.rlim_cur = 100000, .rlim_max = old.rlim_max};
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  put("old.json", "old");

  hk_error fresh = {0}, replaced = {0};
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
  hk_status fresh_status = write_beyond_limit("new.json", &fresh);
  hk_status replaced_status = write_beyond_limit("old.json", &replaced);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
  signal(SIGXFSZ, handler);

  assert_int_equal(fresh_status, HK_ENVIRONMENT);
  assert_string_equal(fresh.message,
                      "cannot write 'new.json': File too large; nothing was written there");
  assert_int_equal(replaced_status, HK_ENVIRONMENT);
  assert_string_equal(replaced.message,
                      "cannot write 'old.json': File too large; nothing was written there");
  assert_content("old.json", "old");
  assert_int_equal(count_files("."), 1); /* neither new.json nor a temporary file */
  assert_int_equal(unlink("old.json"), 0);
}

static void test_target_taken_meanwhile(void **state) {
  (void)state;
  hk_error err = {0};
  hk_outfile *out;
  assert_int_equal(hk_outfile_open("a", &out, &err), HK_OK);
  fputs("x", hk_outfile_stream(out));
  assert_int_equal(mkdir("a", 0700), 0);
  assert_int_equal(hk_outfile_close(out, &err), HK_INPUT);
  assert_string_equal(err.message, "cannot write 'a': Is a directory; nothing was written there");
  assert_int_equal(count_files("."), 1);
  assert_int_equal(rmdir("a"), 0);
}

static void test_broken_pipe(void **state) {
  (void)state;
  void (*handler)(int) = signal(SIGPIPE, SIG_IGN);
  assert_int_equal(mkfifo("pipe", 0600), 0);
  int reader = open("pipe", O_RDONLY | O_NONBLOCK);
  assert_true(reader >= 0);
  hk_error err = {0};
  hk_outfile *out;
  assert_int_equal(hk_outfile_open("pipe", &out, &err), HK_OK);
  close(reader);
  fputs("x", hk_outfile_stream(out));
  assert_int_equal(hk_outfile_close(out, &err), HK_ENVIRONMENT);
  assert_string_equal(err.message, "cannot write 'pipe': Broken pipe");
  signal(SIGPIPE, handler);
  assert_int_equal(unlink("pipe"), 0);
}

/* -- JSON ------------------------------------------------------------------------------------ */

static void *refuse(size_t size) {
  (void)size;
  return NULL;
}

static void test_json_save(void **state) {
  (void)state;
  hk_error err = {0};
  cJSON *root = cJSON_CreateObject();
  assert_non_null(cJSON_AddNumberToObject(root, "pi", 3.141592653589793));
  assert_non_null(cJSON_AddNumberToObject(root, "parameters", 6738415616.0));
  assert_int_equal(hk_json_save(root, "a.json", &err), HK_OK);
  cJSON *again;
  assert_int_equal(hk_json_load("a.json", &again, &err), HK_OK);
  assert_true(cJSON_GetObjectItem(again, "pi")->valuedouble == 3.141592653589793);
  assert_true(cJSON_GetObjectItem(again, "parameters")->valuedouble == 6738415616.0);
  cJSON_Delete(again);

  /* Out of memory while printing: the old file stays. */
  cJSON_Hooks hooks = {.malloc_fn = refuse, .free_fn = free};
  cJSON_InitHooks(&hooks);
  assert_int_equal(hk_json_save(root, "a.json", &err), HK_ENVIRONMENT);
  cJSON_InitHooks(NULL);
  assert_non_null(strstr(err.message, "out of memory"));
  assert_int_equal(hk_json_load("a.json", &again, &err), HK_OK);
  cJSON_Delete(again);
  cJSON_Delete(root);
  assert_int_equal(count_files("."), 1);
  assert_int_equal(unlink("a.json"), 0);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_FOLDER(test_new_file_appears_at_close),
      IN_FOLDER(test_replacement_keeps_the_old_until_close),
      IN_FOLDER(test_abort_leaves_nothing),
      IN_FOLDER(test_two_files_at_once),
      IN_FOLDER(test_longest_name),
      IN_FOLDER(test_symbolic_link_survives),
      IN_FOLDER(test_dash_is_a_name),
      IN_FOLDER(test_pipe_is_written_directly),
      IN_FOLDER(test_abort_sends_nothing_to_a_pipe),
      IN_FOLDER(test_kill_leaves_nothing),
      IN_FOLDER(test_signal_removes_a_named_file),
      IN_FOLDER(test_stale_files_are_swept),
      IN_FOLDER(test_private_file_stays_private),
      IN_FOLDER(test_folder_is_synced),
      IN_FOLDER(test_impossible_paths),
      IN_FOLDER(test_permission_denied),
      IN_FOLDER(test_full_device),
      IN_FOLDER(test_file_size_limit),
      IN_FOLDER(test_target_taken_meanwhile),
      IN_FOLDER(test_broken_pipe),
      IN_FOLDER(test_json_save),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
