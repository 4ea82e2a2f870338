/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Errors of predictions are those that shipped profiles state as residuals. A change that alters a
 * prediction must state the new figure. */
#include "tests/fixture_ranking.h"

#include "calib/validate/runs.h"

/* A stated figure may differ from the one reached by 0.3 percentage points or a tenth of it. */
#define TOLERANCE 0.3

static double stated(const cJSON *entry, const char *key) {
  hk_error err = {0};
  double value;
  must(hk_json_double(entry, key, 0, 1000, &value, &err), &err);
  return value;
}

static void same(const char *machine, const cJSON *entry, const char *key, double reached) {
  const double value = stated(entry, key);
  if (!(fabs(value - reached) <= fmax(TOLERANCE, 0.1 * reached)))
    fail_msg("%s, '%s', %s: the profile says %g %%, predictions have %.3f %%", machine,
             cJSON_GetStringValue(cJSON_GetObjectItem(entry, "against")), key, value, reached);
}

static const cJSON *residuals_of(const hk_machine *machine) {
  hk_error err = {0};
  const cJSON *list;
  must(hk_json_array(machine->document, "residuals", &list, &err), &err);
  return list;
}

/* -- Rankings ---------------------------------------------------------------------------------- */

static const struct {
  const char *node, *ranking, *other_profile;
} rankings[] = {
    {"node 27", RANKINGS "node-27.json", RANKINGS "node-28-profile.json"},
    {"node 28", RANKINGS "node-28.json", RANKINGS "node-27-profile.json"},
};

/* The mean that scripts/make_machines takes for h200-16c, of two of its three nodes. */
static hk_machine mean_of_others(const char *other_profile) {
  char command[4096], text[65536];
  snprintf(command, sizeof command,
           "python3 '%s/../scripts/mean_machine' others '' '[]' "
           "'%s/../bench/results/calibration/h200-later-probes.json' "
           "'%s/machines/h200-node-16c.json' '%s'",
           HK_TEST_SHARE, HK_TEST_SHARE, HK_TEST_SHARE, other_profile);
  FILE *script = popen(command, "r"); /* NOLINT(cert-env33-c): a script of this project */
  assert_non_null(script);
  const size_t n = fread(text, 1, sizeof text - 1, script);
  assert_int_equal(pclose(script), 0);
  text[n] = '\0';
  cJSON *root = cJSON_Parse(text);
  assert_non_null(root);
  hk_machine machine;
  hk_error err = {0};
  must(hk_machine_from_json(root, &machine, &err), &err);
  cJSON_Delete(root);
  return machine;
}

/* Without the node whose plans are predicted, if the profile is a mean of nodes. */
static void check_ranked(const char *name, bool mean) {
  const hk_bytes memory = 549755813888; /* of both nodes */
  hk_machine machine = machine_of(name);
  const cJSON *entry = NULL;
  int n = 0;
  cJSON_ArrayForEach(entry, residuals_of(&machine)) {
    const char *against = cJSON_GetStringValue(cJSON_GetObjectItem(entry, "against"));
    for (int i = 0; i < 2; i++) {
      if (!strstr(against, rankings[i].node)) continue;
      hk_machine others = {0};
      if (mean) others = mean_of_others(rankings[i].other_profile);
      const hk_ranked_plans_verdict v =
          verdict_of(rankings[i].ranking, mean ? &others : &machine, memory);
      hk_machine_free(&others);
      same(name, entry, "median_pct", v.median_error_pct);
      same(name, entry, "worst_pct", v.worst_error_pct);
      n++;
    }
  }
  assert_int_equal(n, 2);
  hk_machine_free(&machine);
}

static void profiles_of_h200_nodes(void **state) {
  (void)state;
  check_ranked("h200-16c", true);
  check_ranked("h200-node-16c", false);
  check_ranked("h200-node-4x-64c", false);
}

/* -- Published runs ---------------------------------------------------------------------------- */

static hk_run_figure figure_of(const char *name) {
  static const char *const names[] = {[HK_RUN_fwd] = "forward",
                                      [HK_RUN_bwd] = "backward",
                                      [HK_RUN_step] = "update",
                                      [HK_RUN_iter] = "iteration"};
  int f = 0;
  while (f < HK_RUN_TIMES_END && strcmp(names[f], name) != 0) f++;
  assert_true(f < HK_RUN_TIMES_END);
  return (hk_run_figure)f;
}

static void check_fitted(const char *name) {
  hk_error err = {0};
  hk_run_table table = {0};
  hk_run_comparison c;
  hk_machine machine = machine_of(name);
  must(hk_run_table_load(HK_TEST_DATA "/published-runs.csv", &table, &err), &err);
  must(hk_runs_compare(&table, &machine, 1, &c, &err), &err);
  const cJSON *entry = NULL;
  int n = 0;
  cJSON_ArrayForEach(entry, residuals_of(&machine)) {
    const hk_run_figure f = figure_of(cJSON_GetStringValue(cJSON_GetObjectItem(entry, "figure")));
    double worst = 0;
    for (size_t i = 0; i < c.n; i++) worst = fmax(worst, fabs(c.rows[i].figures[f].error_pct));
    same(name, entry, "median_pct", c.median_abs_error_pct[f]);
    same(name, entry, "worst_pct", worst);
    n++;
  }
  assert_int_equal(n, HK_RUN_TIMES_END); /* forward, backward, update, iteration */
  hk_run_comparison_free(&c);
  hk_run_table_free(&table);
  hk_machine_free(&machine);
}

static void fitted_profiles(void **state) {
  (void)state;
  check_fitted("polaris-a100-4x40gb");
  check_fitted("jlse-h100-4x80gb");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(profiles_of_h200_nodes),
                                     cmocka_unit_test(fitted_profiles)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
