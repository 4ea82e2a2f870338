/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A ranking as a table and as JSON. */
#include "cli/print/print_ranking.h"

#include <math.h>
#include <stdio.h>

#include "cli/print/emit.h"
#include "cli/print/table.h"
#include "core/base/json.h"

static double error_pct(const hk_ranked_plan *p) {
  return 100 * (p->predicted_ms / p->measured_ms - 1);
}

static void put_plan(const hk_ranked_plan *p, cJSON *object, bool *ok) {
  hk_put_string(object, "plan", p->title, ok);
  hk_put_number(object, "predicted_ms", p->predicted_ms, ok);
  hk_put_number(object, "measured_ms", p->measured_ms, ok);
  hk_put_number(object, "min_ms", p->least_ms, ok);
  hk_put_number(object, "max_ms", p->most_ms, ok);
  hk_put_item(object, "rounds_ms", cJSON_CreateDoubleArray(p->round_ms, p->rounds), ok);
  hk_put_number(object, "error_pct", error_pct(p), ok);
  cJSON *lanes = hk_put_object(object, "lane_busy_error_pct", ok);
  for (int i = 0; i < p->n_lanes; i++)
    hk_put_number(lanes, hk_lane_kind_name(p->lanes[i].kind), p->lanes[i].error_pct, ok);
  if (!isnan(p->gpu_memory_error_pct))
    hk_put_number(object, "gpu_memory_error_pct", p->gpu_memory_error_pct, ok);
  hk_put_number(object, "predicted_timeline", (double)p->predicted_id, ok);
  hk_put_number(object, "measured_timeline", (double)p->measured_id, ok);
}

static cJSON *json_of(const hk_measured_ranking *r, const hk_ranked_plans_verdict *v, bool *ok) {
  cJSON *root = hk_emit_begin("hocket.ranking/1", ok);
  hk_put_string(root, "model", r->model, ok);
  hk_put_string(root, "profile", r->profile, ok);
  hk_put_item(root, "fingerprint", hk_fingerprint_to_json(r->node), ok);
  cJSON *plans = hk_put_array(root, "plans", ok);
  for (size_t i = 0; i < r->n; i++) put_plan(&r->plans[i], hk_put_element(plans, ok), ok);
  hk_put_number(root, "chosen", (double)r->chosen, ok);
  hk_put_number(root, "rounds", r->rounds, ok);
  hk_put_bool(root, "complete", r->complete, ok);
  hk_put_number(root, "kendall_tau", v->tau, ok);
  hk_put_number(root, "top1_regret_pct", v->regret_pct, ok);
  hk_put_string(root, "predicted_best", r->plans[v->predicted_best].title, ok);
  hk_put_string(root, "measured_best", r->plans[v->measured_best].title, ok);
  hk_put_number(root, "median_abs_error_pct", v->median_error_pct, ok);
  hk_put_number(root, "worst_abs_error_pct", v->worst_error_pct, ok);
  if (!isnan(v->median_lane_pct)) {
    hk_put_number(root, "median_abs_lane_error_pct", v->median_lane_pct, ok);
    hk_put_number(root, "worst_abs_lane_error_pct", v->worst_lane_pct, ok);
    cJSON *lanes = hk_put_object(root, "median_abs_error_pct_of_lanes", ok);
    for (int k = 0; k < HK_LANE_KIND_COUNT; k++)
      if (!isnan(v->lane_pct[k]))
        hk_put_number(lanes, hk_lane_kind_name((hk_lane_kind)k), v->lane_pct[k], ok);
    lanes = hk_put_object(root, "plans_of_lanes", ok);
    for (int k = 0; k < HK_LANE_KIND_COUNT; k++)
      if (v->lane_plans[k] > 0)
        hk_put_number(lanes, hk_lane_kind_name((hk_lane_kind)k), (double)v->lane_plans[k], ok);
  }
  if (!isnan(v->worst_gpu_memory_pct))
    hk_put_number(root, "worst_abs_gpu_memory_error_pct", v->worst_gpu_memory_pct, ok);
  if (!isnan(v->median_rounds_pct)) {
    hk_put_number(root, "median_rounds_apart_pct", v->median_rounds_pct, ok);
    hk_put_number(root, "worst_rounds_apart_pct", v->worst_rounds_pct, ok);
  }
  return root;
}

static hk_status print_json(const hk_measured_ranking *r, const hk_ranked_plans_verdict *v,
                            hk_error *err) {
  bool ok = true;
  cJSON *root = json_of(r, v, &ok);
  return hk_emit_print(root, ok, err);
}

static void print_lanes(const hk_ranked_plans_verdict *v) {
  if (isnan(v->median_lane_pct)) return;
  printf(
      "errors of lanes' busy times: %.1f %% (median), %.1f %% (worst), over lanes busy 1 %% or "
      "more\n",
      v->median_lane_pct, v->worst_lane_pct);
  const char *before = "median error by lane (and number of plans): ";
  for (int k = 0; k < HK_LANE_KIND_COUNT; k++) {
    if (isnan(v->lane_pct[k])) continue;
    printf("%s%s %.1f %% (%zu)", before, hk_lane_kind_name((hk_lane_kind)k), v->lane_pct[k],
           v->lane_plans[k]);
    before = ", ";
  }
  puts("");
}

static hk_status print_text(const hk_measured_ranking *r, const hk_ranked_plans_verdict *v,
                            hk_error *err) {
  static const hk_column columns[] = {{"plan", HK_WRAP},
                                      {"predicted ms", HK_RIGHT},
                                      {"measured ms", HK_RIGHT},
                                      {"min - max", HK_RIGHT | HK_SPARE(1)},
                                      {"error", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < r->n; i++) {
    const hk_ranked_plan *p = &r->plans[i];
    hk_table_row(&table, "%s\t%.3f\t%.3f\t%.3f - %.3f\t%+.1f %%", p->title, p->predicted_ms,
                 p->measured_ms, p->least_ms, p->most_ms, error_pct(p));
  }
  HK_TRY(hk_table_print(&table, err));
  printf("\n%s on %s: errors %.1f %% (median), %.1f %% (worst)\n", r->model, r->profile,
         v->median_error_pct, v->worst_error_pct);
  print_lanes(v);
  if (!isnan(v->worst_gpu_memory_pct))
    printf("error of peak GPU memory: %.1f %% (worst)\n", v->worst_gpu_memory_pct);
  if (!isnan(v->median_rounds_pct))
    printf(
        "slowest round over fastest: %.1f %% (median), %.1f %% (worst): the noise of this node, "
        "below which no prediction can be\n",
        v->median_rounds_pct, v->worst_rounds_pct);
  if (isnan(v->tau))
    puts("Kendall's tau: not defined, because no two measured times differ");
  else
    printf("Kendall's tau of predicted against measured: %.3f over %zu plans\n", v->tau, r->n);
  printf("predicted best: %s\nmeasured best:  %s\ntop-1 regret: %.1f %%\n",
         r->plans[v->predicted_best].title, r->plans[v->measured_best].title, v->regret_pct);
  return HK_OK;
}

static hk_status save(const hk_args *args, const char *command, const hk_measured_ranking *r,
                      const hk_ranked_plans_verdict *v, hk_error *err) {
  bool ok = true;
  if (args->output == NULL) return HK_OK;
  cJSON *root = json_of(r, v, &ok);
  const hk_status status = ok ? hk_json_save(root, args->output, err)
                              : hk_fail_memory(err, r->n * sizeof *r->plans, "a ranking");
  cJSON_Delete(root);
  HK_TRY(status);
  if (!args->quiet)
    fprintf(stderr, "hocket %s: wrote the JSON object to %s\n", command, args->output);
  return HK_OK;
}

hk_status hk_print_ranking(const hk_args *args, const char *command,
                           const hk_measured_ranking *ranked, hk_error *err) {
  hk_ranked_plans_verdict v;
  HK_TRY(hk_ranked_plans_judge(ranked->plans, ranked->n, &v, err));
  HK_TRY(args->json ? print_json(ranked, &v, err) : print_text(ranked, &v, err));
  HK_TRY(hk_emit_flush(err));
  return save(args, command, ranked, &v, err);
}
