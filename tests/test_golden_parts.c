/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Profiles from parts predict measured nodes without a calibration of those nodes: shares of the
 * data sheets come from other machines, and none come from nodes 27 and 28. Limits are close to
 * what is reached, so that a loss of accuracy fails the test; docs/machines.md has the figures.
 *
 * For comparison each node is also predicted from data sheets at face value: every share is 1. */
#include "tests/fixture_ranking.h"

#include "calib/parts/parts.h"
#include "calib/validate/runs.h"

/* -- Data sheets at face value ----------------------------------------------------------------- */

static void set_to_one(cJSON *entry) {
  const double one = 1;
  const char *const why[] = {"at face value"};
  cJSON *otherwise = cJSON_CreateDoubleArray(&one, 1);
  cJSON_AddItemToArray(otherwise, cJSON_CreateString(why[0]));
  assert_true(cJSON_ReplaceItemInObjectCaseSensitive(entry, "observed", cJSON_CreateObject()));
  assert_true(cJSON_ReplaceItemInObjectCaseSensitive(entry, "otherwise", otherwise));
}

/* Sets shares of data sheets and the efficiencies of forward and backward to 1. Rates of one CPU
 * thread stay, since no data sheet has them. */
static void take_at_face_value(hk_parts *parts) {
  static const char *const others[] = {"gpu.matmul_efficiency", "gpu.backward_efficiency",
                                       "dram.d2h_cost"};
  cJSON *entry = NULL, *entries = cJSON_GetObjectItemCaseSensitive(parts->transfer, "efficiencies");
  cJSON_ArrayForEach(entry, entries) {
    const char *as = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "as"));
    const bool share = cJSON_GetObjectItemCaseSensitive(entry, "of") &&
                       strcmp(entry->string, "pcie.duplex_bytes_per_s") != 0 &&
                       !(as && strcmp(as, "threads") == 0);
    bool other = false;
    for (size_t i = 0; i < 3; i++) other |= strcmp(entry->string, others[i]) == 0;
    if (share || other) set_to_one(entry);
  }
}

static hk_machine make(const hk_parts_request *request, bool face_value) {
  hk_parts parts;
  hk_parts_notes notes;
  hk_machine machine;
  hk_error err = {0};
  must(hk_parts_load(&parts, &err), &err);
  if (face_value) take_at_face_value(&parts);
  must(hk_parts_machine(&parts, request, &machine, &notes, &err), &err);
  hk_parts_free(&parts);
  return machine;
}

/* Profiles from parts reach the accuracy that share/parts/transfer.json states. */
static void check_stated(const char *machine, const char *figure, double reached) {
  hk_parts parts;
  hk_error err = {0};
  const cJSON *entry = NULL;
  int n = 0;
  must(hk_parts_load(&parts, &err), &err);
  cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(parts.transfer, "residuals")) {
    const char *against = NULL, *of = NULL;
    double median;
    must(hk_json_string(entry, "against", &against, &err), &err);
    must(hk_json_string(entry, "figure", &of, &err), &err);
    must(hk_json_double(entry, "median_pct", 0, 100, &median, &err), &err);
    if (!strstr(against, machine) || strcmp(of, figure) != 0) continue;
    if (!(fabs(median - reached) <= fmax(0.3, 0.1 * reached)))
      fail_msg("transfer.json, %s, %s: %g %%, reached %.2f %%", machine, figure, median, reached);
    n++;
  }
  assert_int_equal(n, 1);
  hk_parts_free(&parts);
}

/* -- Published runs of DeepSpeed --------------------------------------------------------------- */

typedef struct {
  double medians[HK_RUN_TIMES_END], tau;
} outcome;

static outcome predicted_runs(const hk_parts_request *request, bool face_value, size_t rows) {
  hk_error err = {0};
  hk_run_table table = {0};
  hk_run_comparison c;
  outcome out;
  hk_machine machine = make(request, face_value);
  must(hk_run_table_load(HK_TEST_DATA "/published-runs.csv", &table, &err), &err);
  must(hk_runs_compare(&table, &machine, 1, &c, &err), &err);
  assert_int_equal(c.n, rows);
  for (int f = 0; f < HK_RUN_TIMES_END; f++) out.medians[f] = c.median_abs_error_pct[f];
  out.tau = c.order.tau;
  print_message("%s, %s: forward %.1f, backward %.1f, update %.1f, iteration %.1f %%, tau %.3f\n",
                request->name, face_value ? "data sheets at face value" : "parts",
                out.medians[HK_RUN_fwd], out.medians[HK_RUN_bwd], out.medians[HK_RUN_step],
                out.medians[HK_RUN_iter], out.tau);
  hk_run_comparison_free(&c);
  hk_run_table_free(&table);
  hk_machine_free(&machine);
  return out;
}

static void check_runs(const hk_parts_request *request, size_t rows, const outcome *limit,
                       const char *node) {
  const outcome parts = predicted_runs(request, false, rows);
  const outcome sheets = predicted_runs(request, true, rows);
  for (int f = 0; f < HK_RUN_TIMES_END; f++)
    if (!(parts.medians[f] <= limit->medians[f]))
      fail_msg("%s, %s: off by %.2f %% in the median, more than %g %%", request->name,
               hk_run_figure_column((hk_run_figure)f), parts.medians[f], limit->medians[f]);
  assert_true(parts.tau >= limit->tau);
  assert_true(parts.medians[HK_RUN_iter] < 0.7 * sheets.medians[HK_RUN_iter]);
  check_stated(node, "update", parts.medians[HK_RUN_step]);
  check_stated(node, "iteration", parts.medians[HK_RUN_iter]);
}

static void polaris_from_its_parts(void **state) {
  (void)state;
  const hk_parts_request request = {.name = "polaris-a100-4x40gb",
                                    .gpu = "a100-sxm-40gb",
                                    .gpus = 4,
                                    .cpu = "epyc-7543p",
                                    .numa = 4,
                                    .memory_bytes = 549755813888.0,
                                    .network = "200x2",
                                    .without = "polaris-a100-4x40gb"};
  const outcome limit = {
      .medians =
          {[HK_RUN_fwd] = 11.3, [HK_RUN_bwd] = 8.7, [HK_RUN_step] = 13.7, [HK_RUN_iter] = 5.9},
      .tau = 0.75};
  check_runs(&request, 63, &limit, "A100 node");
}

/* Forward is 32 % off in the median: with one sequence a GPU it is limited by DeepSpeed's Python, 4
 * ms a layer, but the transferred figure is plain PyTorch's 1.4 ms. */
static void jlse_from_its_parts(void **state) {
  (void)state;
  const hk_parts_request request = {.name = "jlse-h100-4x80gb",
                                    .gpu = "h100-sxm",
                                    .gpus = 4,
                                    .cpu = "xeon-8468:2",
                                    .memory_bytes = 549755813888.0,
                                    .without = "jlse-h100-4x80gb"};
  const outcome limit = {
      .medians =
          {[HK_RUN_fwd] = 33, [HK_RUN_bwd] = 11.7, [HK_RUN_step] = 11.2, [HK_RUN_iter] = 11.7},
      .tau = 0.99};
  check_runs(&request, 12, &limit, "H100 node");
}

/* -- Rankings of hocket's engine --------------------------------------------------------------- */

/* Both nodes have 16 of a host's 64 cores. */
static void h200_nodes_from_their_parts(void **state) {
  (void)state;
  static const struct {
    const char *ranking;
    double median, worst, tau;
  } nodes[] = {{RANKINGS "node-27.json", 13.5, 24, 0.88}, {RANKINGS "node-28.json", 3.3, 8, 0.89}};
  const hk_parts_request request = {.name = "h200",
                                    .gpu = "h200-sxm",
                                    .cpu = "xeon-8592+",
                                    .cores = 16,
                                    .memory_bytes = 549755813888.0};
  hk_machine parts = make(&request, false), sheets = make(&request, true);
  for (size_t i = 0; i < 2; i++) {
    const hk_bytes memory = (hk_bytes)parts.host_memory.value;
    const hk_ranked_plans_verdict v = verdict_of(nodes[i].ranking, &parts, memory);
    print_message("data sheets at face value: ");
    const hk_ranked_plans_verdict other = verdict_of(nodes[i].ranking, &sheets, memory);
    assert_true(v.median_error_pct <= nodes[i].median);
    assert_true(v.worst_error_pct <= nodes[i].worst);
    assert_true(v.tau >= nodes[i].tau);
    assert_true(v.regret_pct <= 0);
    assert_true(v.median_error_pct < 0.7 * other.median_error_pct);
    check_stated(i == 0 ? "node 27" : "node 28", "update", v.median_error_pct);
  }
  hk_machine_free(&parts);
  hk_machine_free(&sheets);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(polaris_from_its_parts),
      cmocka_unit_test(jlse_from_its_parts),
      cmocka_unit_test(h200_nodes_from_their_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
