/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Comparison of two calibrations: changes beyond the noise are reported, and missing or invalid
 * input is refused. */
#include <math.h>

#include "calib/profiles/profiles.h"
#include "tests/fixture.h"

static cJSON *parse(const char *text) {
  hk_error err = {0};
  cJSON *root = NULL;
  must(hk_json_parse(text, strlen(text), "test", &root, &err), &err);
  return root;
}

/* A profile with this h2d and this calibration ("" for none). */
static cJSON *profile(const char *name, double h2d, const char *calibration) {
  hk_error err = {0};
  cJSON *document = NULL;
  must(hk_json_load(HK_TEST_SHARE "/machines/h200-16c.json", &document, &err), &err);
  cJSON_SetValuestring(cJSON_GetObjectItemCaseSensitive(document, "name"), name);
  cJSON *quantities = cJSON_GetObjectItemCaseSensitive(document, "quantities");
  cJSON *quantity = cJSON_GetObjectItemCaseSensitive(quantities, "pcie.h2d_bytes_per_s");
  cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(quantity, "value"), h2d);
  if (*calibration) cJSON_AddItemToObject(document, "calibration", parse(calibration));
  return document;
}

static const hk_profile_change *change(const hk_profile_diff *diff, const char *key) {
  for (size_t i = 0; i < diff->n; i++)
    if (strcmp(diff->changes[i].key, key) == 0) return &diff->changes[i];
  fail_msg("no change of '%s'", key);
  return NULL;
}

#define FINGERPRINT(cpu)                                                                 \
  "\"fingerprint\": {\"backend\": \"host\", \"cpu\": \"" cpu                             \
  "\", \"isa\": \"i\", \"gpu\": \"g\", \"driver\": \"d\", \"pcie\": \"p\", \"kernel\": " \
  "\"k\", \"huge_pages\": \"always\", \"version\": \"1\", \"gpus\": 1, \"cores\": 2, "   \
  "\"numa_nodes\": 1, \"memory_bytes\": 1000000}"

static const char first[] =
    "{" FINGERPRINT("A")
    ", \"quantities\": {"
    "\"pcie.h2d_bytes_per_s\": {\"low\": 49e9, \"high\": 51e9, \"probes\": 3},"
    "\"pcie.d2h_bytes_per_s\": {\"low\": 54e9, \"high\": 56e9, \"probes\": 3},"
    "\"gpu.launch_ns\": {\"low\": null, \"high\": null, \"probes\": 1}},"
    "\"series\": {"
    "\"alone\": {\"narrow\": true, \"loads\": [{\"load\": \"h2d gpu0\", \"unit\": \"B/s\", \"n\": "
    "8, \"median\": 100, \"mad\": 1, \"low\": 99, \"high\": 101}]},"
    "\"pair\": {\"narrow\": true, \"loads\": [{\"load\": \"h2d gpu0\", \"median\": 10, \"low\": 9, "
    "\"high\": 11}, {\"load\": \"d2h gpu0\", \"median\": 20, \"low\": null, \"high\": null}]},"
    "\"broken\": {\"failed\": \"why\"},"
    "\"only here\": {\"narrow\": true, \"loads\": [{\"load\": \"x\", \"median\": 1}]}}}";

static const char second[] =
    "{" FINGERPRINT("B")
    ", \"quantities\": {"
    "\"pcie.h2d_bytes_per_s\": {\"low\": 52e9, \"high\": 54e9, \"probes\": 3},"
    "\"pcie.d2h_bytes_per_s\": {\"low\": 56e9, \"high\": 58e9, \"probes\": 3},"
    "\"gpu.launch_ns\": {\"low\": 1, \"high\": 2, \"probes\": 1}},"
    "\"series\": {"
    "\"alone\": {\"narrow\": true, \"loads\": [{\"load\": \"h2d gpu0\", \"median\": 110, \"low\": "
    "109, \"high\": 111}]},"
    "\"pair\": {\"narrow\": true, \"loads\": [{\"load\": \"h2d gpu0\", \"median\": 11, \"low\": "
    "10, \"high\": 12}, {\"load\": \"d2h gpu0\", \"median\": 10, \"low\": 9, \"high\": 11}]},"
    "\"broken\": {\"narrow\": true, \"loads\": [{\"load\": \"x\", \"median\": 1}]}}}";

static void changes_outside_intervals_are_told_from_noise(void **state) {
  (void)state;
  hk_error err = {0};
  cJSON *a = profile("a", 50e9, first), *b = profile("b", 53e9, second);
  hk_profile_diff diff;
  must(hk_profiles_diff(a, b, &diff, &err), &err);
  const hk_profile_change *h2d = change(&diff, "pcie.h2d_bytes_per_s");
  assert_true(h2d->a == 50e9 && h2d->b == 53e9 && h2d->known && h2d->outside && !h2d->probe);
  assert_true(fabs(h2d->change_pct - 6) < 1e-9);
  assert_true(h2d->a_low == 49e9 && h2d->b_high == 54e9);
  const hk_profile_change *d2h = change(&diff, "pcie.d2h_bytes_per_s");
  assert_true(d2h->known && !d2h->outside); /* the intervals touch at 56 GB/s */
  assert_false(change(&diff, "gpu.launch_ns")->known);
  assert_int_equal(diff.compared, 2);
  assert_int_equal(diff.agreeing, 1);
  const hk_profile_change *alone = change(&diff, "alone");
  assert_true(alone->probe && alone->outside && alone->a == 100 && alone->b == 110);
  const hk_profile_change *pair = change(&diff, "pair: h2d gpu0");
  assert_true(pair->known && !pair->outside);
  pair = change(&diff, "pair: d2h gpu0");
  assert_true(!pair->known && !pair->outside && pair->change_pct == -50);
  assert_int_equal(diff.n, 6); /* and nothing else */
  assert_non_null(strstr(diff.fingerprint, "cpu"));
  assert_null(strstr(diff.fingerprint, "isa"));
  for (size_t i = 1; i < diff.n; i++)
    assert_true(diff.changes[i].probe || !diff.changes[i - 1].probe);
  hk_profile_diff_free(&diff);
  must(hk_profiles_diff(a, a, &diff, &err), &err);
  assert_int_equal(diff.agreeing, diff.compared);
  assert_string_equal(diff.fingerprint, "");
  hk_profile_diff_free(&diff);
  cJSON_Delete(a);
  cJSON_Delete(b);
}

static void without_calibration_changes_have_no_intervals(void **state) {
  (void)state;
  hk_error err = {0};
  cJSON *a = profile("a", 50e9, ""), *b = profile("b", 53e9, "");
  hk_profile_diff diff;
  must(hk_profiles_diff(a, b, &diff, &err), &err);
  assert_int_equal(diff.n, 1);
  const hk_profile_change *h2d = change(&diff, "pcie.h2d_bytes_per_s");
  assert_true(!h2d->known && !h2d->outside && isnan(h2d->a_low) && isnan(h2d->b_high));
  assert_int_equal(diff.compared, 0);
  assert_string_equal(diff.fingerprint, "'a' has no fingerprint");
  hk_profile_diff_free(&diff);
  cJSON *c = profile("c", 53e9, second);
  must(hk_profiles_diff(a, c, &diff, &err), &err);
  assert_int_equal(diff.compared, 0);
  assert_true(isnan(change(&diff, "pcie.h2d_bytes_per_s")->a_low));
  assert_true(change(&diff, "pcie.h2d_bytes_per_s")->b_low == 52e9);
  hk_profile_diff_free(&diff);
  cJSON_Delete(a);
  cJSON_Delete(b);
  cJSON_Delete(c);
}

static void an_invalid_calibration_is_refused_by_its_key(void **state) {
  (void)state;
  static const struct {
    const char *calibration, *says;
  } wrong[] = {
      {"{\"quantities\": []}", "profile 'b': key 'quantities'"},
      {"{\"quantities\": {\"gpu.launch_ns\": {\"low\": \"x\"}}}", "quantity 'gpu.launch_ns'"},
      {"{\"quantities\": {\"gpu.launch_ns\": 3}}", "quantity 'gpu.launch_ns'"},
      {"{\"series\": {\"alone\": 3}}", "probe 'alone'"},
      {"{\"series\": {\"alone\": {\"loads\": [3]}}}", "probe 'alone'"},
      {"{\"series\": {\"alone\": {\"loads\": [{\"median\": \"x\"}]}}}", "probe 'alone'"},
      {"{\"fingerprint\": {\"cpu\": 3}}", "fingerprint of 'b'"},
  };
  cJSON *a = profile("a", 50e9, first);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    hk_error err = {0};
    cJSON *b = profile("b", 50e9, wrong[i].calibration);
    hk_profile_diff diff;
    assert_int_equal(hk_profiles_diff(a, b, &diff, &err), HK_INPUT);
    if (!strstr(err.message, wrong[i].says))
      fail_msg("'%s' does not say '%s'", err.message, wrong[i].says);
    assert_null(diff.changes);
    cJSON_Delete(b);
  }
  cJSON_Delete(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(changes_outside_intervals_are_told_from_noise),
      cmocka_unit_test(without_calibration_changes_have_no_intervals),
      cmocka_unit_test(an_invalid_calibration_is_refused_by_its_key),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
