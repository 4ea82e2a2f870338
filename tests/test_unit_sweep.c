/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Best compromises against a search of all pairs; what a key changes, by hand; the database of a
 * sweep. test_golden_sweep.sh tests specs, runs and questions with the whole program. */
#include "sim/sweep.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/fixture.h"
#include "tests/random.h"
#include "traces/sweep_table.h"

/* -- Compromises ------------------------------------------------------------------------------- */

static bool is_beaten(const hk_sweep_row *rows, size_t n, size_t i) {
  for (size_t k = 0; k < n; k++) {
    const hk_sweep_row *a = &rows[k], *b = &rows[i];
    if (a->model != b->model || a->tokens != b->tokens || isnan(a->price)) continue;
    if (a->time <= b->time && a->price <= b->price && (a->time < b->time || a->price < b->price))
      return true;
  }
  return false;
}

/* Few different values, so that many rows are equal in one or both. */
static void pareto_is_that_of_all_pairs(void **state) {
  (void)state;
  random_stream r = {7};
  hk_sweep_row rows[60];
  bool best[60];
  size_t flagged = 0;
  for (int round = 0; round < 300; round++) {
    const size_t n = (size_t)pick(&r, 0, 60);
    for (size_t i = 0; i < n; i++)
      rows[i] = (hk_sweep_row){.id = (int64_t)i,
                               .model = pick(&r, 0, 1),
                               .tokens = pick(&r, 1, 2),
                               .time = (double)pick(&r, 1, 9),
                               .price = (double)pick(&r, 1, 9)};
    for (size_t i = 0; i < n; i += 11) rows[i].price = NAN;
    hk_error err = {0};
    must(hk_sweep_pareto(rows, n, best, &err), &err);
    for (size_t i = 0; i < n; i++) {
      assert_int_equal(best[i], !isnan(rows[i].price) && !is_beaten(rows, n, i));
      flagged += best[i];
    }
  }
  assert_true(flagged > 1000);
}

/* -- Effects ----------------------------------------------------------------------------------- */

/* A product of 3 x 2 points; point 5 does not fit. */
static void effect_by_hand(void **state) {
  (void)state;
  const double times[] = {10, 12, 20, 18, 40};
  hk_sweep_row rows[5];
  hk_sweep_effect effect;
  hk_error err = {0};
  for (int i = 0; i < 5; i++) rows[i] = (hk_sweep_row){.id = i, .time = times[i]};
  must(hk_sweep_effect_of(rows, 5, &(hk_sweep_key){.step = 1, .values = 2}, &effect, &err), &err);
  assert_int_equal(effect.sets, 2); /* {10, 12}, {20, 18}; 40 is alone */
  assert_float_equal(effect.median, 20.0 / 18, 1e-12);
  assert_float_equal(effect.most, 1.2, 1e-12);
  assert_int_equal(effect.best, 0); /* each value once: the first */
  assert_int_equal(effect.best_in, 1);
  must(hk_sweep_effect_of(rows, 5, &(hk_sweep_key){.step = 2, .values = 3}, &effect, &err), &err);
  assert_int_equal(effect.sets, 2); /* {10, 20, 40}, {12, 18} */
  assert_float_equal(effect.median, 1.5, 1e-12);
  assert_float_equal(effect.most, 4, 1e-12);
  assert_int_equal(effect.best, 0);
  assert_int_equal(effect.best_in, 2);
}

/* -- Databases --------------------------------------------------------------------------------- */

static char folder[] = "hk-sweep-XXXXXX";

static int enter_folder(void **state) {
  (void)state;
  strcpy(folder + sizeof folder - 7, "XXXXXX");
  return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", folder);
  return chdir("..") == 0 ? system(command) : -1;
}

static const hk_sweep_column columns[] = {
    {"a \"b\"", HK_CELL_TEXT}, {"n", HK_CELL_INTEGER}, {"x", HK_CELL_REAL}};

static hk_store *begin(const char *path) {
  hk_error err = {0};
  hk_store *store;
  const hk_sweep_meta meta[] = {{"spec", "text"}};
  must(hk_sweep_open(path, false, &store, &err), &err);
  must(hk_sweep_begin(store, columns, 3, meta, 1, &err), &err);
  return store;
}

static void add(hk_store *store, int64_t id, const char *text, double x) {
  hk_error err = {0};
  sqlite3_stmt *adder;
  const hk_cell cells[] = {{.text = text}, {.null = true}, {.real = x}};
  must(hk_sweep_adder(store, 3, &adder, &err), &err);
  must(hk_sweep_add(store, adder, id, columns, cells, 3, &err), &err);
  hk_store_finish(adder);
}

static void csv_is(hk_store *store, const char *expected) {
  char text[400] = "";
  hk_error err = {0};
  must(hk_sweep_csv(store, "rows.csv", &err), &err);
  FILE *file = fopen("rows.csv", "re");
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  assert_string_equal(text, expected);
}

static void rows_merge_and_are_written(void **state) {
  (void)state;
  hk_error err = {0};
  hk_store *one = begin("one.db"), *two = begin("two.db");
  int64_t *ids;
  size_t n;
  add(one, 3, "has, \"both\"", 0.25);
  add(one, 1, NULL, NAN);
  add(two, 2, "plain", 1e9);
  add(two, 3, "not taken", 4);
  must(hk_sweep_merge(one, two, 3, &err), &err);
  must(hk_sweep_ids(one, &ids, &n, &err), &err);
  assert_int_equal(n, 3);
  for (size_t i = 0; i < n; i++) assert_int_equal(ids[i], i + 1);
  free(ids);
  csv_is(one, "id,\"a \"\"b\"\"\",n,x\n1,,,\n2,plain,,1000000000\n3,\"has, \"\"both\"\"\",,0.25\n");
  char *spec;
  must(hk_sweep_meta_of(one, "spec", &spec, &err), &err);
  assert_string_equal(spec, "text");
  free(spec);
  hk_store_close(one);
  hk_store_close(two);
  assert_true(hk_store_is_database("one.db"));
  assert_false(hk_store_is_database("rows.csv"));
}

/* A store of profiles is no sweep, nor the other way round. */
static void kinds_are_told_apart(void **state) {
  (void)state;
  hk_error err = {0};
  hk_store *store;
  must(hk_store_open("store.db", false, &store, &err), &err);
  hk_store_close(store);
  assert_int_equal(hk_sweep_open("store.db", true, &store, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "'store.db' is not a hocket sweep"));
  assert_int_equal(hk_sweep_open("missing.db", true, &store, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "no database 'missing.db'"));
  hk_store_close(begin("sweep.db"));
  assert_int_equal(hk_store_open("sweep.db", true, &store, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "'sweep.db' is not a hocket store"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pareto_is_that_of_all_pairs),
      cmocka_unit_test(effect_by_hand),
      cmocka_unit_test_setup_teardown(rows_merge_and_are_written, enter_folder, leave_folder),
      cmocka_unit_test_setup_teardown(kinds_are_told_apart, enter_folder, leave_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
