/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The file of the store: its location, stores of every version, concurrent processes, and messages
 * about a file that is damaged, of another program, locked, full or inaccessible. */
#include "traces/store.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixture.h"
#include "traces/store_schema.h"

/* -- A folder of its own for every test -------------------------------------------------------- */

static char folder[] = "hk-store-XXXXXX";
static char path[64];

static int enter_folder(void **state) {
  (void)state;
  strcpy(folder + sizeof folder - 7, "XXXXXX");
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/store.db", folder);
  return 0;
}

static int leave_folder(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

/* -- Helpers ----------------------------------------------------------------------------------- */

static hk_store *open_store(void) {
  hk_error err = {0};
  hk_store *store = NULL;
  must(hk_store_open(path, false, &store, &err), &err);
  assert_non_null(store);
  return store;
}

/* The first column of the first row. */
static int64_t number(hk_store *store, const char *sql) {
  hk_error err = {0};
  sqlite3_stmt *statement = NULL;
  bool row = false;
  must(hk_store_query(store, &statement, &err, sql, ""), &err);
  must(hk_store_step(store, statement, &row, &err), &err);
  assert_true(row);
  const int64_t value = sqlite3_column_int64(statement, 0);
  hk_store_finish(statement);
  return value;
}

static void begin_run(hk_store *store, const char *name) {
  hk_error err = {0};
  must(hk_store_do(store, &err,
                   "INSERT INTO run (name, started, state, quick, seconds, fingerprint) "
                   "VALUES (?, 'now', 'measuring', 0, 0, '{}')",
                   "s", name),
       &err);
}

static void says(const hk_error *err, const char *what) {
  if (!strstr(err->message, what)) fail_msg("'%s' does not say '%s'", err->message, what);
}

/* Opening fails with this status and a message that names the path and says `what`. */
static void refuses(hk_status expected, const char *what) {
  hk_error err = {0};
  hk_store *store = NULL;
  assert_int_equal(hk_store_open(path, true, &store, &err), expected);
  assert_null(store);
  says(&err, path);
  says(&err, what);
}

static void write_file(const char *text, size_t length) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, length, file), length);
  assert_int_equal(fclose(file), 0);
}

/* Waits for a child that must have ended with 0. */
static void reap(pid_t child) {
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* -- Location ---------------------------------------------------------------------------------- */

static void expect_path(const char *store, const char *data, const char *home,
                        const char *expected) {
  const char *names[] = {"HOCKET_STORE", "XDG_DATA_HOME", "HOME"};
  const char *values[] = {store, data, home};
  char *before[3];
  for (int i = 0; i < 3; i++) {
    const char *value = getenv(names[i]);
    before[i] = value ? strdup(value) : NULL;
    if (values[i]) setenv(names[i], values[i], 1);
    if (!values[i]) unsetenv(names[i]);
  }
  char found[64] = "";
  hk_error err = {0};
  hk_status status = hk_store_path(found, sizeof found, &err);
  for (int i = 0; i < 3; i++) {
    if (before[i]) setenv(names[i], before[i], 1);
    if (!before[i]) unsetenv(names[i]);
    free(before[i]);
  }
  assert_int_equal(status, expected ? HK_OK : HK_ENVIRONMENT);
  if (expected) assert_string_equal(found, expected);
  if (!expected) says(&err, "HOME");
}

static void its_place_follows_the_environment(void **state) {
  (void)state;
  expect_path("/a/b.db", "/data", "/home/me", "/a/b.db");
  expect_path("", "/data", "/home/me", "/data/hocket/store.db");
  expect_path(NULL, NULL, "/home/me", "/home/me/.local/share/hocket/store.db");
  expect_path(NULL, "relative", "/home/me", "/home/me/.local/share/hocket/store.db");
  expect_path(NULL, NULL, NULL, NULL);
  char small[8];
  hk_error err = {0};
  setenv("HOCKET_STORE", "/too/long/for/that", 1);
  assert_int_equal(hk_store_path(small, sizeof small, &err), HK_INPUT);
  unsetenv("HOCKET_STORE");
}

static void a_new_store_comes_with_its_folders(void **state) {
  (void)state;
  char deep[96];
  snprintf(deep, sizeof deep, "%s/some/where/store.db", folder);
  hk_error err = {0};
  hk_store *store = NULL;
  must(hk_store_open(deep, false, &store, &err), &err);
  assert_string_equal(hk_store_name(store), deep);
  assert_int_equal(number(store, "PRAGMA application_id"), HK_STORE_APPLICATION);
  assert_int_equal(number(store, "PRAGMA user_version"), hk_store_version);
  assert_int_equal(number(store, "PRAGMA foreign_keys"), 1);
  hk_store_close(store);
  hk_store_close(NULL);
}

static void readers_make_no_store(void **state) {
  (void)state;
  hk_error err = {0};
  hk_store *store = NULL;
  must(hk_store_open(path, true, &store, &err), &err);
  assert_null(store);
  assert_int_equal(access(path, F_OK), -1);
  char below[96]; /* a path below a file: no store, and no error */
  write_file("", 0);
  snprintf(below, sizeof below, "%s/store.db", path);
  must(hk_store_open(below, true, &store, &err), &err);
  assert_null(store);
}

/* -- Statements -------------------------------------------------------------------------------- */

static void values_go_in_and_come_out(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  must(hk_store_do(store, &err, "CREATE TABLE t (i, d, nan, s, none)", ""), &err);
  must(hk_store_do(store, &err, "INSERT INTO t VALUES (?, ?, ?, ?, ?)", "iddss", INT64_MIN, 0.1,
                   (double)NAN, "it's", (const char *)NULL),
       &err);
  assert_int_equal(hk_store_changes(store), 1);
  assert_int_equal(hk_store_last_row(store), 1);
  sqlite3_stmt *statement = NULL;
  bool row = false;
  must(hk_store_query(store, &statement, &err, "SELECT * FROM t WHERE s = ?", "s", "it's"), &err);
  must(hk_store_step(store, statement, &row, &err), &err);
  assert_true(row);
  assert_true(sqlite3_column_int64(statement, 0) == INT64_MIN);
  assert_true(sqlite3_column_double(statement, 1) == 0.1);
  assert_int_equal(sqlite3_column_type(statement, 2), SQLITE_NULL);
  assert_string_equal((const char *)sqlite3_column_text(statement, 3), "it's");
  assert_int_equal(sqlite3_column_type(statement, 4), SQLITE_NULL);
  must(hk_store_step(store, statement, &row, &err), &err);
  assert_false(row);
  hk_store_finish(statement);
  assert_int_equal(hk_store_query(store, &statement, &err, "SELECT x FROM y", ""), HK_ENVIRONMENT);
  says(&err, "no such table: y");
  assert_null(statement);
  hk_store_finish(statement);
  hk_store_close(store);
}

static void a_transaction_is_all_or_nothing(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  must(hk_store_begin(store, &err), &err);
  begin_run(store, "gone");
  hk_store_rollback(store);
  hk_store_rollback(store);
  must(hk_store_begin(store, &err), &err);
  begin_run(store, "gone too");
  assert_int_equal(hk_store_end(store, HK_NO, &err), HK_NO);
  must(hk_store_begin(store, &err), &err);
  begin_run(store, "kept");
  must(hk_store_end(store, HK_OK, &err), &err);
  assert_int_equal(number(store, "SELECT count(*) FROM run"), 1);
  hk_store_close(store);
}

/* -- Versions ---------------------------------------------------------------------------------- */

static void every_earlier_version_is_brought_up_with_its_data(void **state) {
  (void)state;
  assert_true(hk_store_version >= 2);
  for (int version = 1; version < hk_store_version; version++) {
    hk_error err = {0};
    hk_store *store = NULL;
    must(hk_store_open_as(path, false, version, 1000, &store, &err), &err);
    assert_int_equal(number(store, "PRAGMA user_version"), version);
    begin_run(store, "old");
    must(hk_store_do(store, &err, "INSERT INTO sample VALUES (1, 'h2d 64 KiB', 0, 0, 0.1)", ""),
         &err);
    hk_store_close(store);
    store = open_store();
    assert_int_equal(number(store, "PRAGMA user_version"), hk_store_version);
    assert_int_equal(number(store, "SELECT count(*) FROM run WHERE name = 'old'"), 1);
    assert_int_equal(number(store, "SELECT count(*) FROM sample WHERE run = 1 AND value = 0.1"), 1);
    assert_int_equal(number(store, "SELECT count(*) FROM profile"), 0);
    hk_store_close(store);
    assert_int_equal(unlink(path), 0);
  }
}

/* A step to the next version fails on a table that already exists; it is undone as a whole. */
static void a_step_that_fails_leaves_the_old_version(void **state) {
  (void)state;
  hk_error err = {0};
  hk_store *store = NULL;
  must(hk_store_open_as(path, false, 1, 1000, &store, &err), &err);
  begin_run(store, "old");
  must(hk_store_do(store, &err, "CREATE TABLE profile (x)", ""), &err);
  hk_store_close(store);
  refuses(HK_ENVIRONMENT, "from version 1 to 2");
  must(hk_store_open_as(path, false, 1, 1000, &store, &err), &err);
  assert_int_equal(number(store, "SELECT count(*) FROM run"), 1);
  hk_store_close(store);
}

static void a_later_version_is_left_alone(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  begin_run(store, "kept");
  must(hk_store_do(store, &err, "PRAGMA user_version = 4711", ""), &err);
  hk_store_close(store);
  refuses(HK_INPUT, "its version is 4711, this hocket knows up to");
  must(hk_store_open_as(path, true, 4711, 1000, &store, &err), &err);
  assert_int_equal(number(store, "SELECT count(*) FROM run"), 1);
  hk_store_close(store);
}

/* -- Several processes ------------------------------------------------------------------------- */

enum { PROCESSES = 8 };

static void many_make_the_same_new_store_at_once(void **state) {
  (void)state;
  for (int round = 0; round < 5; round++) {
    int gate[2];
    pid_t children[PROCESSES];
    assert_int_equal(pipe(gate), 0);
    for (int i = 0; i < PROCESSES; i++) {
      children[i] = fork();
      if (children[i] != 0) continue;
      char byte;
      hk_error err = {0};
      hk_store *store = NULL;
      close(gate[1]);
      if (read(gate[0], &byte, 1) != 0) _exit(1); /* all begin when the gate closes */
      hk_status status = hk_store_open(path, false, &store, &err);
      if (status != HK_OK) fprintf(stderr, "%s\n", err.message);
      if (status == HK_OK)
        status = hk_store_do(store, &err,
                             "INSERT INTO run (name, started, state, quick, seconds, fingerprint) "
                             "VALUES ('x', 'now', 'measuring', 0, 0, '{}')",
                             "");
      hk_store_close(store);
      _exit((int)status);
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < PROCESSES; i++) reap(children[i]);
    hk_store *store = open_store();
    assert_int_equal(number(store, "SELECT count(*) FROM run"), PROCESSES);
    hk_store_close(store);
    assert_int_equal(unlink(path), 0);
  }
}

static void a_writer_waits_and_then_says_so(void **state) {
  (void)state;
  hk_store *first = open_store(), *second = NULL;
  hk_error err = {0};
  must(hk_store_open_as(path, true, hk_store_version, 60, &second, &err), &err);
  must(hk_store_begin(first, &err), &err);
  begin_run(first, "first");
  assert_int_equal(number(second, "SELECT count(*) FROM run"), 0); /* readers do not wait */
  assert_int_equal(hk_store_begin(second, &err), HK_ENVIRONMENT);
  says(&err, "locked for 0.06 s");
  says(&err, path);
  must(hk_store_commit(first, &err), &err);
  must(hk_store_begin(second, &err), &err);
  must(hk_store_commit(second, &err), &err);
  hk_store_close(second);
  hk_store_close(first);
}

/* Another connection has a write transaction open on a file without tables. Opening it as a store
 * fails after a wait of 60 ms, and succeeds when the connection is closed. */
static void a_new_store_waits_for_its_maker(void **state) {
  (void)state;
  sqlite3 *maker = NULL;
  hk_store *store = NULL;
  hk_error err = {0};
  assert_int_equal(sqlite3_open(path, &maker), SQLITE_OK);
  assert_int_equal(sqlite3_exec(maker, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
  assert_int_equal(hk_store_open_as(path, false, hk_store_version, 60, &store, &err),
                   HK_ENVIRONMENT);
  assert_null(store);
  says(&err, "locked for 0.06 s");
  sqlite3_close(maker);
  hk_store_close(open_store());
}

/* -- Unusable files ---------------------------------------------------------------------------- */

static void foreign_files_are_left_alone(void **state) {
  (void)state;
  static const char text[] =
      "name,value\nnothing to do with SQLite, and longer than its header is "
      "at a hundred bytes, whatever that is good for\n";
  write_file(text, sizeof text);
  refuses(HK_INPUT, "not a hocket store");
  assert_int_equal(unlink(path), 0);
  sqlite3 *db = NULL;
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  assert_int_equal(sqlite3_exec(db, "CREATE TABLE run (x)", NULL, NULL, NULL), SQLITE_OK);
  sqlite3_close(db);
  refuses(HK_INPUT, "another program");
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  assert_int_equal(sqlite3_exec(db, "DROP TABLE run; PRAGMA application_id = 7", NULL, NULL, NULL),
                   SQLITE_OK);
  sqlite3_close(db);
  refuses(HK_INPUT, "another program");
}

/* A store of several pages. */
static void fill(void) {
  hk_store *store = open_store();
  for (int i = 0; i < 2000; i++) {
    hk_error err = {0};
    if (i == 0) must(hk_store_begin(store, &err), &err);
    begin_run(store, "a name that takes some room");
    if (i == 1999) must(hk_store_commit(store, &err), &err);
  }
  hk_store_close(store);
}

static void damage_is_told_with_what_to_do(void **state) {
  (void)state;
  fill();
  struct stat status;
  assert_int_equal(stat(path, &status), 0);
  assert_true(status.st_size > 8 * 4096);
  assert_int_equal(truncate(path, status.st_size / 8192 * 4096), 0);
  refuses(HK_ENVIRONMENT, "hocket machine import");
  assert_int_equal(truncate(path, 100), 0);
  refuses(HK_ENVIRONMENT, "damaged");
  assert_int_equal(unlink(path), 0);

  fill(); /* a damaged schema after an intact header */
  int fd = open(path, O_WRONLY);
  char noise[4096 - 100];
  memset(noise, 0xA5, sizeof noise);
  assert_int_equal(pwrite(fd, noise, sizeof noise, 100), sizeof noise);
  close(fd);
  refuses(HK_ENVIRONMENT, "damaged");
  assert_int_equal(unlink(path), 0);

  fill(); /* damaged pages of data: found when they are read */
  fd = open(path, O_WRONLY);
  for (int page = 4; page < 12; page++)
    assert_int_equal(pwrite(fd, noise, sizeof noise, page * 4096), sizeof noise);
  close(fd);
  hk_store *store = open_store();
  hk_error err = {0};
  assert_int_equal(hk_store_do(store, &err, "SELECT sum(length(name)) FROM run", ""),
                   HK_ENVIRONMENT);
  says(&err, "damaged");
  says(&err, path);
  hk_store_close(store);
}

static void a_full_disk_harms_nothing(void **state) {
  (void)state;
  fill();
  hk_store *store = open_store();
  hk_error err = {0};
  /* SQLite raises this limit to the present number of pages: the file cannot grow. */
  must(hk_store_do(store, &err, "PRAGMA max_page_count = 1", ""), &err);
  hk_status status = HK_OK;
  for (int i = 0; i < 2000 && status == HK_OK; i++) {
    must(hk_store_begin(store, &err), &err);
    status = hk_store_do(store, &err,
                         "INSERT INTO run (name, started, state, quick, seconds, fingerprint) "
                         "VALUES ('more', hex(zeroblob(1000)), 'done', 0, 0, '{}')",
                         "");
    status = hk_store_end(store, status, &err);
  }
  assert_int_equal(status, HK_ENVIRONMENT);
  says(&err, "no room");
  says(&err, path);
  assert_int_equal(number(store, "SELECT count(*) FROM run WHERE name <> 'more'"), 2000);
  hk_store_close(store);
}

/* Opens the store in a folder without write permission, as user nobody if this is root (permissions
 * do not apply to root). Returns 0, or the number of the check that failed. */
static int open_as_nobody(void) {
  hk_error err = {0};
  hk_store *store = NULL;
  if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 1;
  if (hk_store_open(path, false, &store, &err) != HK_ENVIRONMENT || store) return 2;
  if (!strstr(err.message, path) || !strstr(err.message, "HOCKET_STORE")) return 3;
  char deep[96];
  snprintf(deep, sizeof deep, "%s/new/store.db", folder);
  if (hk_store_open(deep, false, &store, &err) != HK_ENVIRONMENT || store) return 4;
  return strstr(err.message, "cannot make the folder") ? 0 : 5;
}

static void places_out_of_reach_are_told(void **state) {
  (void)state;
  assert_int_equal(chmod(folder, 0555), 0);
  const pid_t child = fork();
  if (child == 0) _exit(open_as_nobody());
  reap(child);
  assert_int_equal(chmod(folder, 0700), 0);
  assert_int_equal(mkdir(path, 0700), 0); /* a folder where the file should be */
  refuses(HK_ENVIRONMENT, "cannot be opened");
  char below[96];
  snprintf(below, sizeof below, "%s/file", folder);
  fclose(fopen(below, "w"));
  strcat(below, "/sub/store.db");
  hk_error err = {0};
  hk_store *store = NULL;
  assert_int_equal(hk_store_open(below, false, &store, &err), HK_ENVIRONMENT);
  says(&err, "Not a directory");
}

/* -- Read-only -------------------------------------------------------------------------------- */

static void leave_read_only(void) {
  if (getuid() == 0) assert_int_equal(seteuid(0), 0);
  assert_int_equal(chmod(folder, 0755), 0);
  assert_int_equal(chmod(path, 0644), 0);
}

/* Removes write permission of the store and its folder. Root becomes the user nobody. */
static void enter_read_only(void) {
  assert_int_equal(chmod(path, 0444), 0);
  assert_int_equal(chmod(folder, 0555), 0);
  if (geteuid() == 0) assert_int_equal(seteuid(65534), 0);
  if (euidaccess(path, R_OK) == 0) return;
  leave_read_only(); /* nobody may not enter a folder above this one */
  skip();
}

/* A store on a read-only file system, or of another user. */
static void a_read_only_one_is_read(void **state) {
  (void)state;
  hk_error err = {0};
  hk_store *store = open_store();
  begin_run(store, "kept");
  hk_store_close(store);
  enter_read_only();
  const hk_status status = hk_store_open(path, true, &store, &err);
  int64_t runs = 0;
  hk_status written = HK_OK;
  if (status == HK_OK) {
    runs = number(store, "SELECT count(*) FROM run");
    written = hk_store_do(store, &err, "DELETE FROM run", "");
    hk_store_close(store);
  }
  hk_error refusal = {0};
  const hk_status created = hk_store_open(path, false, &store, &refusal);
  leave_read_only();
  if (status != HK_OK) fail_msg("%s", err.message);
  assert_int_equal(runs, 1);
  assert_int_equal(written, HK_ENVIRONMENT);
  says(&err, "cannot be opened or written");
  assert_int_equal(created, HK_ENVIRONMENT); /* a writer gets an error at once */
  assert_true(access(path, F_OK) == 0);
}

/* File names with characters that have a meaning in a URI. */
static void a_read_only_one_of_any_name_is_read(void **state) {
  (void)state;
  hk_error err = {0};
  snprintf(path, sizeof path, "%s/a b%%20?#&.db", folder);
  hk_store *store = open_store();
  begin_run(store, "kept");
  hk_store_close(store);
  enter_read_only();
  const hk_status status = hk_store_open(path, true, &store, &err);
  const int64_t runs = status == HK_OK ? number(store, "SELECT count(*) FROM run") : 0;
  if (status == HK_OK) hk_store_close(store);
  leave_read_only();
  if (status != HK_OK) fail_msg("%s", err.message);
  assert_int_equal(runs, 1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)
  const struct CMUnitTest tests[] = {
      TEST(a_read_only_one_is_read),
      TEST(a_read_only_one_of_any_name_is_read),
      TEST(its_place_follows_the_environment),
      TEST(a_new_store_comes_with_its_folders),
      TEST(readers_make_no_store),
      TEST(values_go_in_and_come_out),
      TEST(a_transaction_is_all_or_nothing),
      TEST(every_earlier_version_is_brought_up_with_its_data),
      TEST(a_step_that_fails_leaves_the_old_version),
      TEST(a_later_version_is_left_alone),
      TEST(many_make_the_same_new_store_at_once),
      TEST(a_writer_waits_and_then_says_so),
      TEST(a_new_store_waits_for_its_maker),
      TEST(foreign_files_are_left_alone),
      TEST(damage_is_told_with_what_to_do),
      TEST(a_full_disk_harms_nothing),
      TEST(places_out_of_reach_are_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
