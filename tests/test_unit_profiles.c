/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Profiles in the store: documents are read back as they were stored, and names are resolved in
 * the documented order. */
#include <math.h>

#include "tests/fixture_profiles.h"

/* -- A fit to save ----------------------------------------------------------------------------- */

typedef struct {
  hk_campaign campaign;
  hk_profile_fit fit;
} calibration;

static const hk_quantity_info *info_of(const char *key) {
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++)
    if (strcmp(list[i].key, key) == 0) return &list[i];
  fail_msg("no quantity '%s'", key);
  return NULL;
}

static void make_calibration(const char *name, calibration *c) {
  static hk_calibrated quantities[1];
  static const hk_line_segment segments[] = {{"h2d", 65536, 9300, 40, 55e9, 1e8}};
  static const hk_replayed replays[] = {{"h2d 64 KiB", 0, 1e9, 1.02e9, 2}};
  hk_error err = {0};
  open_campaign(&c->campaign);
  for (size_t round = 0; round < 8; round++)
    for (int i = 0; i < 2; i++) {
      const double values[] = {value_of(i, round, 0), value_of(i, round, 1)};
      must(hk_campaign_add(&c->campaign, probes[i].name, values, probes[i].n_loads, &err), &err);
    }
  c->campaign.series[2].failed = true;
  strcpy(c->campaign.series[2].failure, "no such thing here");
  c->campaign.seconds = 31;
  c->fit = (hk_profile_fit){.quantities = quantities,
                            .n_quantities = 1,
                            .segments = (hk_line_segment *)segments,
                            .n_segments = 1,
                            .replays = (hk_replayed *)replays,
                            .n_replays = 1,
                            .median_error_pct = 2,
                            .p90_error_pct = 2,
                            .worst_error_pct = 2,
                            .accepted = true};
  must(hk_machine_load("h200-16c", &c->fit.machine, &err), &err);
  snprintf(c->fit.machine.name, sizeof c->fit.machine.name, "%s", name);
  quantities[0] = (hk_calibrated){.info = info_of("pcie.h2d_bytes_per_s"),
                                  .value = c->fit.machine.h2d.value,
                                  .low = 54e9,
                                  .high = 56e9,
                                  .probes = 12};
}

static void free_calibration(calibration *c) {
  hk_campaign_free(&c->campaign);
  hk_machine_free(&c->fit.machine);
}

static void save(hk_store *store, const char *name, int64_t run) {
  hk_error err = {0};
  calibration c;
  make_calibration(name, &c);
  must(hk_profiles_save(store, &c.fit, &c.campaign, &here, run, false, &err), &err);
  free_calibration(&c);
}

static const cJSON *at(const cJSON *object, const char *key) {
  const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, key);
  if (!member) fail_msg("no key '%s'", key);
  return member;
}

static double number_at(const cJSON *object, const char *key) {
  const cJSON *member = at(object, key);
  assert_true(cJSON_IsNumber(member));
  return member->valuedouble;
}

static void check_series(const cJSON *list) {
  const cJSON *series = at(list, probes[1].name);
  assert_true(cJSON_IsBool(at(series, "narrow")));
  assert_int_equal(cJSON_GetArraySize(at(series, "loads")), 2);
  const cJSON *load = at(series, "loads")->child;
  assert_string_equal(at(load, "load")->valuestring, "h2d gpu1");
  assert_string_equal(at(load, "unit")->valuestring, "B/s");
  assert_true(number_at(load, "n") == 8);
  assert_true(fabs(number_at(load, "median") / (value_of(1, 3, 0) + 500.125) - 1) < 1e-5);
  assert_true(number_at(load, "low") < number_at(load, "high"));
  assert_string_equal(at(load->next, "load")->valuestring, "adamw_cpu");
  assert_string_equal(at(at(list, "hop"), "failed")->valuestring, "no such thing here");
}

static void a_saved_fit_is_a_whole_document(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  const int64_t run = begin(store, "mine");
  save(store, "mine", run);
  cJSON *document = NULL;
  must(hk_profiles_document(store, "mine", &document, &err), &err);
  hk_machine machine;
  must(hk_machine_from_json(document, &machine, &err), &err);
  assert_string_equal(machine.name, "mine");
  hk_machine_free(&machine);
  const cJSON *c = at(document, "calibration");
  assert_true(cJSON_IsTrue(at(c, "quick"))); /* taken from its run */
  assert_true(cJSON_IsTrue(at(c, "accepted")));
  assert_true(number_at(c, "seconds") == 31);
  assert_true(number_at(at(c, "replay_error_pct"), "median") == 2);
  assert_string_equal(at(at(c, "fingerprint"), "cpu")->valuestring, "Xeon A");
  const cJSON *h2d = at(at(c, "quantities"), "pcie.h2d_bytes_per_s");
  assert_true(number_at(h2d, "low") == 54e9 && number_at(h2d, "high") == 56e9);
  assert_true(number_at(at(c, "segments")->child, "latency_ns") == 9300);
  assert_true(number_at(at(c, "replays")->child, "predicted") == 1.02e9);
  check_series(at(c, "series"));
  cJSON_Delete(document);
  hk_calibration_run unfinished;
  hk_fingerprint f;
  assert_int_equal(hk_calibration_run_unfinished(store, NULL, &unfinished, &f, &err), HK_INPUT);
  hk_store_close(store);
}

static void profiles_are_listed_replaced_and_deleted(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  const int64_t first = begin(store, "zeta");
  keep_rounds(store, first, 0, 2);
  save(store, "zeta", first);
  save(store, "alpha", 0);
  calibration c;
  make_calibration("zeta", &c);
  assert_int_equal(hk_profiles_save(store, &c.fit, &c.campaign, &here, 0, false, &err), HK_INPUT);
  says(&err, "'zeta' already");
  says(&err, "--replace");
  c.fit.n_replays = 0;
  c.fit.accepted = false;
  must(hk_profiles_save(store, &c.fit, &c.campaign, &here, 0, true, &err), &err);
  assert_int_equal(number(store, "SELECT count(*) FROM sample"), 0); /* went with the old one */
  assert_int_equal(hk_profiles_save(store, &c.fit, &c.campaign, &here, 99, true, &err), HK_INPUT);
  says(&err, "run 99");
  free_calibration(&c);
  hk_profile_entry *entries = NULL;
  size_t n = 0;
  must(hk_profiles_list(store, &entries, &n, &err), &err);
  assert_int_equal(n, 2);
  assert_string_equal(entries[0].name, "alpha");
  assert_string_equal(entries[0].from, "calibrate");
  assert_true(entries[0].accepted && !entries[0].quick && entries[0].gpus == 1);
  assert_true(entries[0].median_error_pct == 2 && entries[0].p90_error_pct == 2);
  assert_int_equal(strlen(entries[0].made), strlen("2026-11-21T09:30:00Z"));
  assert_string_equal(entries[1].name, "zeta");
  assert_true(!entries[1].accepted && isnan(entries[1].median_error_pct));
  free(entries);
  must(hk_profiles_delete(store, "zeta", &err), &err);
  cJSON *document = NULL;
  assert_int_equal(hk_profiles_document(store, "alhpa", &document, &err), HK_INPUT);
  says(&err, "did you mean 'alpha'?");
  assert_int_equal(hk_profiles_delete(store, "zeta", &err), HK_INPUT);
  assert_int_equal(hk_profiles_delete(store, "h200-16c", &err), HK_INPUT);
  says(&err, "ships with hocket");
  hk_store_close(store);
}

static void a_run_stays_while_a_profile_rests_on_it(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  const int64_t run = begin(store, "a");
  keep_rounds(store, run, 0, 1);
  save(store, "a", run);
  save(store, "b", run);
  must(hk_profiles_delete(store, "a", &err), &err);
  assert_int_equal(number(store, "SELECT count(*) FROM sample"), 3);
  must(hk_profiles_delete(store, "b", &err), &err);
  assert_int_equal(number(store, "SELECT count(*) FROM sample"), 0);
  hk_store_close(store);
}

static cJSON *shipped(const char *name) {
  hk_error err = {0};
  cJSON *document = NULL;
  must(hk_json_load(HK_TEST_SHARE "/machines/h200-16c.json", &document, &err), &err);
  cJSON_SetValuestring(cJSON_GetObjectItemCaseSensitive(document, "name"), name);
  return document;
}

static void import_of_an_export_is_the_same_document(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  char name[96] = "";
  cJSON *document = NULL, *back = NULL;
  save(store, "mine", 0);
  must(hk_profiles_document(store, "mine", &document, &err), &err);
  must(hk_profiles_delete(store, "mine", &err), &err);
  must(hk_profiles_import(store, document, false, name, sizeof name, &err), &err);
  assert_string_equal(name, "mine");
  must(hk_profiles_document(store, "mine", &back, &err), &err);
  assert_true(cJSON_Compare(document, back, true));
  hk_profile_entry *entries = NULL;
  size_t n = 0;
  must(hk_profiles_list(store, &entries, &n, &err), &err);
  assert_string_equal(entries[0].from, "import");
  assert_string_equal(entries[0].made, at(at(document, "calibration"), "made")->valuestring);
  free(entries);
  assert_int_equal(hk_profiles_import(store, document, false, name, sizeof name, &err), HK_INPUT);
  must(hk_profiles_import(store, document, true, name, sizeof name, &err), &err);
  cJSON_Delete(back);
  cJSON_Delete(document);
  hk_store_close(store);
}

static void an_invalid_profile_is_not_imported(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  char name[96] = "";
  cJSON *document = shipped("a/b");
  assert_int_equal(hk_profiles_import(store, document, true, name, sizeof name, &err), HK_INPUT);
  says(&err, "a/b");
  cJSON_Delete(document);
  document = shipped("fine");
  cJSON_AddNumberToObject(document, "calibration", 3);
  assert_int_equal(hk_profiles_import(store, document, true, name, sizeof name, &err), HK_INPUT);
  says(&err, "'calibration'");
  cJSON_Delete(document);
  document = shipped("fine");
  cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(document, "quantities"),
                                          "dram.bytes_per_s");
  assert_int_equal(hk_profiles_import(store, document, true, name, sizeof name, &err), HK_INPUT);
  says(&err, "'dram.bytes_per_s'");
  cJSON_Delete(document);
  assert_int_equal(number(store, "SELECT count(*) FROM profile"), 0);
  hk_store_close(store);
}

static void a_damaged_profile_is_named(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  cJSON *document = NULL;
  hk_machine machine;
  static const char *const edits[] = {
      "UPDATE profile SET document = substr(document, 1, 500) WHERE name = 'mine'",
      "UPDATE profile SET document = '{}' WHERE name = 'mine'",
      ("UPDATE profile SET document = replace(document, '\"mine\"', '\"thine\"') "
       "WHERE name = 'mine'"),
  };
  save(store, "sound", 0);
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    save(store, "mine", 0);
    must(hk_store_do(store, &err, edits[i], ""), &err);
    assert_int_equal(hk_profiles_document(store, "mine", &document, &err), HK_INPUT);
    says(&err, "profile 'mine'");
    says(&err, "is damaged");
    assert_null(document);
    assert_int_equal(hk_profiles_machine("mine", &machine, &err), HK_INPUT);
    says(&err, "profile 'mine'");
    must(hk_profiles_machine("sound", &machine, &err), &err);
    hk_machine_free(&machine);
    must(hk_profiles_delete(store, "mine", &err), &err);
  }
  hk_store_close(store);
}

/* -- Names and files --------------------------------------------------------------------------- */

/* A profile cannot be stored under a shipped name. One that was stored before the name shipped
 * is hidden by the shipped one. */
static void a_shipped_name_comes_first(void **state) {
  (void)state;
  hk_store *store = open_store();
  hk_error err = {0};
  char name[96] = "";
  cJSON *document = shipped("h200-16c");
  assert_int_equal(hk_profiles_import(store, document, true, name, sizeof name, &err), HK_INPUT);
  says(&err, "'h200-16c' ships with hocket");
  cJSON_Delete(document);
  calibration c;
  make_calibration("h200-16c", &c);
  assert_int_equal(hk_profiles_save(store, &c.fit, &c.campaign, &here, 0, true, &err), HK_INPUT);
  says(&err, "'h200-16c' ships with hocket");
  free_calibration(&c);
  save(store, "older", 0);
  must(hk_store_do(store, &err,
                   "UPDATE profile SET name = 'h200-16c', "
                   "document = replace(document, '\"older\"', '\"h200-16c\"')",
                   ""),
       &err);
  must(hk_profiles_load_document("h200-16c", &document, &err), &err);
  assert_null(cJSON_GetObjectItemCaseSensitive(document, "calibration"));
  cJSON_Delete(document);
  must(hk_profiles_delete(store, "h200-16c", &err), &err);
  hk_store_close(store);
}

static void names_are_found_among_shipped_ones_then_in_the_store(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine;
  must(hk_profiles_machine("h200-16c", &machine, &err), &err);
  hk_machine_free(&machine);
  assert_int_equal(access(path, F_OK), -1); /* reading made no store */
  hk_store *store = open_store();
  calibration c;
  make_calibration("my-node", &c);
  strcpy(c.fit.machine.description, "of the store");
  must(hk_profiles_save(store, &c.fit, &c.campaign, &here, 0, false, &err), &err);
  free_calibration(&c);
  hk_store_close(store);
  must(hk_profiles_machine("my-node", &machine, &err), &err);
  assert_string_equal(machine.description, "of the store");
  hk_machine_free(&machine);
  must(hk_profiles_machine(HK_TEST_SHARE "/machines/h200-16c.json", &machine, &err), &err);
  assert_string_not_equal(machine.description, "of the store");
  hk_machine_free(&machine);
  assert_int_equal(hk_profiles_machine("my-nod", &machine, &err), HK_INPUT);
  says(&err, "did you mean 'my-node'?");
  assert_int_equal(hk_profiles_machine("polaris-a100-4x40", &machine, &err), HK_INPUT);
  says(&err, "did you mean 'polaris-a100-4x40gb'?");
  assert_int_equal(hk_profiles_machine("zzzzzzzzzz", &machine, &err), HK_INPUT);
  says(&err, "hocket machine list");
  assert_int_equal(hk_profiles_machine("", &machine, &err), HK_INPUT);
  assert_int_equal(hk_profiles_machine("./none.json", &machine, &err), HK_INPUT);
  says(&err, "./none.json");
}

static void documents_keep_their_calibration(void **state) {
  (void)state;
  hk_error err = {0};
  hk_store *store = open_store();
  save(store, "mine", 0);
  hk_store_close(store);
  cJSON *document = NULL;
  must(hk_profiles_load_document("mine", &document, &err), &err);
  at(document, "calibration");
  char file[96];
  snprintf(file, sizeof file, "%s/exported.json", folder);
  must(hk_json_save(document, file, &err), &err);
  cJSON *back = NULL;
  must(hk_profiles_load_document(file, &back, &err), &err);
  assert_true(cJSON_Compare(document, back, true));
  cJSON_Delete(back);
  cJSON_Delete(document);
  must(hk_profiles_load_document("h200-16c", &document, &err), &err);
  cJSON_Delete(document);
  FILE *bad = fopen(file, "w");
  fputs("{\"schema\": \"hocket.machine/1\"}", bad);
  fclose(bad);
  assert_int_equal(hk_profiles_load_document(file, &document, &err), HK_INPUT);
  says(&err, file);
  says(&err, "'name'");
  assert_null(document);
}

/* A shipped profile is found without a home folder and with a damaged store. Other names are looked
 * up in the store. */
static void shipped_profiles_need_no_store(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine machine;
  const char *value = getenv("HOME");
  char *home = value ? strdup(value) : NULL;
  unsetenv("HOCKET_STORE");
  unsetenv("XDG_DATA_HOME");
  unsetenv("HOME");
  hk_status status = hk_profiles_machine("h200-16c", &machine, &err);
  if (home) setenv("HOME", home, 1);
  free(home);
  must(status, &err);
  hk_machine_free(&machine);
  setenv("HOCKET_STORE", path, 1);
  FILE *bad = fopen(path, "w");
  for (int i = 0; i < 200; i++) fputs("not a database", bad);
  fclose(bad);
  must(hk_profiles_machine("h200-16c", &machine, &err), &err);
  hk_machine_free(&machine);
  assert_int_equal(hk_profiles_machine("my-node", &machine, &err), HK_INPUT);
  says(&err, path);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)
  const struct CMUnitTest tests[] = {
      TEST(a_saved_fit_is_a_whole_document),
      TEST(profiles_are_listed_replaced_and_deleted),
      TEST(a_run_stays_while_a_profile_rests_on_it),
      TEST(import_of_an_export_is_the_same_document),
      TEST(an_invalid_profile_is_not_imported),
      TEST(a_damaged_profile_is_named),
      TEST(a_shipped_name_comes_first),
      TEST(names_are_found_among_shipped_ones_then_in_the_store),
      TEST(documents_keep_their_calibration),
      TEST(shipped_profiles_need_no_store),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
