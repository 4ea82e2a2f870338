/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A validation of the engine as tables and as JSON. */
#include "cli/print/print_validation.h"

#include <math.h>
#include <stdio.h>

#include "cli/calibration.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/print_comparison.h"
#include "cli/print/table.h"

/* -- Storing ----------------------------------------------------------------------------------- */

static hk_status keep_one(hk_store *store, const hk_engine_validation *v, const cJSON *fingerprint,
                          bool measured, int64_t pair, int64_t *id, hk_error *err) {
  const hk_timeline_to_store what = {
      .measured = measured,
      .phases = HK_EXPAND_UPDATE,
      .pair = pair,
      .plan = v->plan,
      .graph = &v->validation->graph,
      .timeline = measured ? &v->validation->measured : &v->validation->predicted,
      .profile = v->profile->document,
      .fingerprint = fingerprint,
      .version = HK_BUILD,
  };
  return hk_timelines_store(store, &what, id, err);
}

hk_status hk_store_validation(hk_store *store, hk_engine_validation *v, hk_error *err) {
  cJSON *fingerprint = hk_fingerprint_to_json(&v->profile->here);
  if (fingerprint == NULL) return hk_fail_memory(err, sizeof v->profile->here, "a fingerprint");
  hk_status status = keep_one(store, v, fingerprint, false, 0, &v->predicted_id, err);
  if (status == HK_OK)
    status = keep_one(store, v, fingerprint, true, v->predicted_id, &v->measured_id, err);
  cJSON_Delete(fingerprint);
  return status;
}

/* -- Summaries --------------------------------------------------------------------------------- */

static const char *made_of(const hk_engine_validation *v) {
  hk_calibration_summary summary;
  hk_calibration_summarise(hk_calibration_of(v->profile->document), &summary);
  return summary.made;
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_bytes(cJSON *object, const hk_pair *pair, bool *ok) {
  hk_put_number(object, "measured_bytes", (double)pair->measured, ok);
  hk_put_number(object, "predicted_bytes", (double)pair->predicted, ok);
  hk_put_number(object, "error_pct", pair->error_pct, ok);
}

static void put_settings(const hk_args *args, const hk_engine_validation *v, cJSON *root,
                         bool *ok) {
  char title[160];
  hk_put_string(root, "plan", hk_ranked_plan_title(v->plan, title, sizeof title), ok);
  hk_put_string(root, "model", v->plan->model.name, ok);
  hk_put_string(root, "policy", v->plan->policy, ok);
  hk_put_string(root, "runtime", hk_runtime_name(v->plan->runtime), ok);
  hk_put_string(root, "backend", v->profile->here.backend, ok);
  cJSON *profile = hk_put_object(root, "profile", ok);
  hk_put_string(profile, "name", v->profile->machine.name, ok);
  hk_put_string(profile, "made", made_of(v), ok);
  hk_put_item(root, "fingerprint", hk_fingerprint_to_json(&v->profile->here), ok);
  hk_put_number(root, "seed", (double)args->seed, ok);
}

static void put_steps(const hk_validation *v, cJSON *root, bool *ok) {
  hk_put_number(root, "steps", v->steps, ok);
  cJSON *update = hk_put_object(root, "update_ms", ok);
  hk_put_number(update, "median", hk_validation_median_ms(v), ok);
  hk_put_number(update, "min", v->update_ms[0], ok);
  hk_put_number(update, "max", v->update_ms[v->steps - 1], ok);
}

hk_status hk_print_validation_json(const hk_args *args, const hk_engine_validation *v,
                                   hk_error *err) {
  bool ok = true;
  const hk_validation *result = v->validation;
  const hk_comparison_input compared = hk_prediction_and_measurement(
      &result->graph, &result->predicted, &result->measured, &result->comparison);
  cJSON *root = hk_emit_begin("hocket.engine_validation/1", &ok);
  put_settings(args, v, root, &ok);
  put_steps(result, root, &ok);
  hk_put_comparison(&compared, root, &ok);
  cJSON *memory = hk_put_object(root, "memory", &ok);
  put_bytes(hk_put_object(memory, "gpu", &ok), &result->gpu_memory, &ok);
  put_bytes(hk_put_object(memory, "host", &ok), &result->host_memory, &ok);
  cJSON *timelines = hk_put_object(root, "timelines", &ok);
  hk_put_number(timelines, "predicted", (double)v->predicted_id, &ok);
  hk_put_number(timelines, "measured", (double)v->measured_id, &ok);
  hk_put_string(root, "checksum", result->checksum, &ok);
  if (args->given & HK_OPTION(MAX_ERROR))
    hk_put_number(root, "max_error_pct", args->max_error, &ok);
  hk_put_bool(root, "passed", hk_comparison_passes(args, &v->validation->comparison), &ok);
  if (args->explain) hk_explain_json(&v->profile->machine, NULL, root, &ok);
  return hk_emit_print(root, ok, err);
}

/* -- Text -------------------------------------------------------------------------------------- */

static void bytes_row(hk_table *table, const char *what, const hk_pair *pair) {
  char text[16];
  hk_table_row(table, "%s\t%s", what, hk_format_bytes(pair->predicted, text, sizeof text));
  hk_table_cell(table, "%s", hk_format_bytes(pair->measured, text, sizeof text));
  if (isnan(pair->error_pct))
    hk_table_cell(table, "-");
  else
    hk_table_cell(table, "%+.1f %%", pair->error_pct);
}

static void print_heading(const hk_engine_validation *v) {
  char title[160];
  const hk_validation *r = v->validation;
  printf("%s: %s\n", v->plan->model.name, hk_ranked_plan_title(v->plan, title, sizeof title));
  printf("profile %s, calibrated %s; update %.3f ms (%.3f to %.3f) over %d steps\n\n",
         v->profile->machine.name, made_of(v)[0] != '\0' ? made_of(v) : "never",
         hk_validation_median_ms(r), r->update_ms[0], r->update_ms[r->steps - 1], r->steps);
}

static hk_status print_memory(const hk_validation *v, hk_error *err) {
  static const hk_column columns[] = {
      {"", HK_LEFT}, {"predicted", HK_RIGHT}, {"measured", HK_RIGHT}, {"error", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  bytes_row(&table, "GPU memory", &v->gpu_memory);
  bytes_row(&table, "host memory", &v->host_memory);
  return hk_table_print(&table, err);
}

static void print_verdict(const hk_args *args, const hk_engine_validation *v,
                          const hk_comparison_input *compared) {
  const hk_validation *r = v->validation;
  char summary[512];
  printf("\n%s\n", hk_comparison_summary(compared, summary, sizeof summary));
  printf("error of the predicted makespan: %+.1f %%%s\n", r->comparison.makespan.error_pct,
         !(args->given & HK_OPTION(MAX_ERROR))                    ? ""
         : hk_comparison_passes(args, &v->validation->comparison) ? ": passed"
                                                                  : ": failed");
  printf(
      "checksum %s; stored as timelines %lld (predicted) and %lld (measured): hocket trace diff "
      "%lld %lld\n",
      r->checksum, (long long)v->predicted_id, (long long)v->measured_id,
      (long long)v->predicted_id, (long long)v->measured_id);
}

hk_status hk_print_validation_text(const hk_args *args, const hk_engine_validation *v,
                                   hk_error *err) {
  const hk_comparison_input compared =
      hk_prediction_and_measurement(&v->validation->graph, &v->validation->predicted,
                                    &v->validation->measured, &v->validation->comparison);
  print_heading(v);
  HK_TRY(hk_print_comparison_tables(&compared, err));
  putchar('\n');
  HK_TRY(print_memory(v->validation, err));
  print_verdict(args, v, &compared);
  if (!args->explain) return HK_OK;
  putchar('\n');
  return hk_explain_text(&v->profile->machine, NULL, err);
}

hk_status hk_judge_validation(const hk_args *args, const hk_engine_validation *v, hk_error *err) {
  if (hk_comparison_passes(args, &v->validation->comparison)) return HK_OK;
  return hk_fail(err, HK_NO,
                 "the error of the predicted makespan is %+.1f %%, more than --max-error %g",
                 v->validation->comparison.makespan.error_pct, args->max_error);
}
