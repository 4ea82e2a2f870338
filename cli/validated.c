/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A validation as tables and as JSON. */
#include "cli/validated.h"

#include <math.h>
#include <stdio.h>

#include "cli/calibration.h"
#include "cli/emit.h"
#include "cli/explain.h"
#include "cli/table.h"

static double median_ms(const hk_validation *v) {
  return (v->update_ms[(v->steps - 1) / 2] + v->update_ms[v->steps / 2]) / 2;
}

static bool present(const hk_pair *pair) {
  return pair->predicted != 0 || pair->measured != 0;
}

static const char *made_of(const hk_validated *v) {
  hk_calibration_summary summary;
  hk_calibration_summarise(hk_calibration_of(v->profile->document), &summary);
  return summary.made;
}

static bool passes(const hk_args *args, const hk_validated *v) {
  return !(args->given & HK_OPTION(MAX_ERROR)) ||
         fabs(v->validation->comparison.makespan.error_pct) <= args->max_error;
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_ms(cJSON *object, const hk_pair *pair, bool *ok) {
  hk_put_number(object, "measured_ms", hk_ms(pair->measured), ok);
  hk_put_number(object, "predicted_ms", hk_ms(pair->predicted), ok);
  hk_put_number(object, "error_pct", pair->error_pct, ok);
}

static void put_bytes(cJSON *object, const hk_pair *pair, bool *ok) {
  hk_put_number(object, "measured_bytes", (double)pair->measured, ok);
  hk_put_number(object, "predicted_bytes", (double)pair->predicted, ok);
  hk_put_number(object, "error_pct", pair->error_pct, ok);
}

static void put_phases(const hk_timeline_comparison *c, cJSON *root, bool *ok) {
  cJSON *phases = hk_put_object(root, "phases", ok);
  for (int p = 0; p < HK_PHASE_COUNT; p++)
    if (present(&c->phases[p]))
      put_ms(hk_put_object(phases, hk_phase_name((hk_phase)p), ok), &c->phases[p], ok);
}

static void put_lanes(const hk_validation *v, cJSON *root, bool *ok) {
  cJSON *lanes = hk_put_object(root, "lanes", ok);
  for (size_t l = 0; l < v->comparison.n_lanes; l++) {
    cJSON *lane = hk_put_object(lanes, v->graph.lanes[l].name, ok);
    put_ms(hk_put_object(lane, "busy", ok), &v->comparison.lanes[l].busy, ok);
    put_ms(hk_put_object(lane, "idle", ok), &v->comparison.lanes[l].idle, ok);
  }
}

static void put_causes(const hk_ns *causes, cJSON *object, bool *ok) {
  for (int i = 0; i < HK_CAUSE_COUNT; i++) {
    char key[32];
    snprintf(key, sizeof key, "%s_ms", hk_cause_name((hk_cause)i));
    hk_put_number(object, key, hk_ms(causes[i]), ok);
  }
}

static void put_operations(const hk_timeline_comparison *c, cJSON *root, bool *ok) {
  cJSON *operations = hk_put_object(root, "operations", ok);
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    const hk_kind_pair *kind = &c->kinds[k];
    if (kind->n == 0) continue;
    cJSON *object = hk_put_object(operations, hk_op_kind_name((hk_op_kind)k), ok);
    hk_put_number(object, "count", (double)kind->n, ok);
    put_ms(object, &kind->total, ok);
    hk_put_number(object, "median_abs_error_pct", kind->median_error_pct, ok);
    hk_put_number(object, "worst_abs_error_pct", kind->worst_error_pct, ok);
    put_causes(kind->causes, hk_put_object(object, "attribution", ok), ok);
  }
}

static void put_attribution(const hk_timeline_comparison *c, cJSON *root, bool *ok) {
  cJSON *object = hk_put_object(root, "attribution", ok);
  put_causes(c->causes, object, ok);
  hk_put_number(object, "sum_ms", hk_ms(c->makespan.measured - c->makespan.predicted), ok);
  hk_put_string(object, "main", hk_cause_name(c->main_cause), ok);
}

static void put_parting(const hk_validation *v, cJSON *root, bool *ok) {
  const int32_t op = v->comparison.parts_at;
  if (op < 0) {
    hk_put_item(root, "parts_at", cJSON_CreateNull(), ok);
    return;
  }
  char label[128];
  cJSON *object = hk_put_object(root, "parts_at", ok);
  hk_put_number(object, "operation", op, ok);
  hk_put_string(object, "label", hk_op_label(&v->graph, op, label, sizeof label), ok);
  hk_put_number(object, "measured_start_ms", hk_ms(v->measured.spans[op].start), ok);
  hk_put_number(object, "predicted_start_ms", hk_ms(v->predicted.spans[op].start), ok);
}

static void put_settings(const hk_args *args, const hk_validated *v, cJSON *root, bool *ok) {
  char title[160];
  hk_put_string(root, "plan", hk_ranking_title(v->plan, title, sizeof title), ok);
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
  hk_put_number(update, "median", median_ms(v), ok);
  hk_put_number(update, "min", v->update_ms[0], ok);
  hk_put_number(update, "max", v->update_ms[v->steps - 1], ok);
}

hk_status hk_validated_json(const hk_args *args, const hk_validated *v, hk_error *err) {
  bool ok = true;
  const hk_validation *result = v->validation;
  cJSON *root = hk_emit_begin("hocket.engine_validation/1", &ok);
  put_settings(args, v, root, &ok);
  put_steps(result, root, &ok);
  put_ms(hk_put_object(root, "makespan", &ok), &result->comparison.makespan, &ok);
  put_phases(&result->comparison, root, &ok);
  put_lanes(result, root, &ok);
  put_operations(&result->comparison, root, &ok);
  put_attribution(&result->comparison, root, &ok);
  cJSON *memory = hk_put_object(root, "memory", &ok);
  put_bytes(hk_put_object(memory, "gpu", &ok), &result->gpu_memory, &ok);
  put_bytes(hk_put_object(memory, "host", &ok), &result->host_memory, &ok);
  put_parting(result, root, &ok);
  cJSON *timelines = hk_put_object(root, "timelines", &ok);
  hk_put_number(timelines, "predicted", (double)v->predicted_id, &ok);
  hk_put_number(timelines, "measured", (double)v->measured_id, &ok);
  hk_put_string(root, "checksum", result->checksum, &ok);
  if (args->given & HK_OPTION(MAX_ERROR))
    hk_put_number(root, "max_error_pct", args->max_error, &ok);
  hk_put_bool(root, "passed", passes(args, v), &ok);
  if (args->explain) hk_explain_json(&v->profile->machine, root, &ok);
  return hk_emit_print(root, ok, err);
}

/* -- Text -------------------------------------------------------------------------------------- */

static void error_cell(hk_table *table, double error_pct) {
  if (isnan(error_pct))
    hk_table_cell(table, "-");
  else
    hk_table_cell(table, "%+.1f %%", error_pct);
}

static void size_cell(hk_table *table, double error_pct) {
  if (isnan(error_pct))
    hk_table_cell(table, "-");
  else
    hk_table_cell(table, "%.1f %%", error_pct);
}

static void ms_cells(hk_table *table, const hk_pair *pair) {
  hk_table_cell(table, "%.3f", hk_ms(pair->predicted));
  hk_table_cell(table, "%.3f", hk_ms(pair->measured));
  error_cell(table, pair->error_pct);
}

static void bytes_row(hk_table *table, const char *what, const hk_pair *pair) {
  char text[16];
  hk_table_row(table);
  hk_table_cell(table, "%s", what);
  hk_table_cell(table, "%s", hk_format_bytes(pair->predicted, text, sizeof text));
  hk_table_cell(table, "%s", hk_format_bytes(pair->measured, text, sizeof text));
  error_cell(table, pair->error_pct);
}

static void print_heading(const hk_validated *v) {
  char title[160];
  const hk_validation *r = v->validation;
  printf("%s: %s\n", v->plan->model.name, hk_ranking_title(v->plan, title, sizeof title));
  printf("profile %s, calibrated %s; update %.3f ms, %.3f to %.3f over %d steps\n\n",
         v->profile->machine.name, made_of(v)[0] != '\0' ? made_of(v) : "never", median_ms(r),
         r->update_ms[0], r->update_ms[r->steps - 1], r->steps);
}

static hk_status print_whole(const hk_validation *v, hk_error *err) {
  static const hk_column columns[] = {
      {"", HK_LEFT}, {"predicted", HK_RIGHT}, {"measured", HK_RIGHT}, {"error", HK_RIGHT}};
  hk_table table;
  hk_table_begin(&table, columns, sizeof columns / sizeof *columns);
  hk_table_row(&table);
  hk_table_cell(&table, "makespan, ms");
  ms_cells(&table, &v->comparison.makespan);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    if (!present(&v->comparison.phases[p])) continue;
    hk_table_row(&table);
    hk_table_cell(&table, "%s, ms", hk_phase_name((hk_phase)p));
    ms_cells(&table, &v->comparison.phases[p]);
  }
  bytes_row(&table, "GPU memory", &v->gpu_memory);
  bytes_row(&table, "host memory", &v->host_memory);
  return hk_table_print(&table, err);
}

static hk_status print_lanes(const hk_validation *v, hk_error *err) {
  static const hk_column columns[] = {
      {"lane", HK_LEFT},  {"busy ms", HK_RIGHT},  {"measured", HK_RIGHT}, {"error", HK_RIGHT},
      {"idle", HK_RIGHT}, {"measured", HK_RIGHT}, {"error", HK_RIGHT},
  };
  hk_table table;
  hk_table_begin(&table, columns, sizeof columns / sizeof *columns);
  for (size_t l = 0; l < v->comparison.n_lanes; l++) {
    hk_table_row(&table);
    hk_table_cell(&table, "%s", v->graph.lanes[l].name);
    ms_cells(&table, &v->comparison.lanes[l].busy);
    ms_cells(&table, &v->comparison.lanes[l].idle);
  }
  putchar('\n');
  return hk_table_print(&table, err);
}

static hk_status print_operations(const hk_timeline_comparison *c, hk_error *err) {
  static const hk_column columns[] = {{"operation", HK_LEFT}, {"count", HK_RIGHT},
                                      {"all, ms", HK_RIGHT},  {"measured", HK_RIGHT},
                                      {"error", HK_RIGHT},    {"of each: median", HK_RIGHT},
                                      {"worst", HK_RIGHT}};
  hk_table table;
  hk_table_begin(&table, columns, sizeof columns / sizeof *columns);
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    const hk_kind_pair *kind = &c->kinds[k];
    if (kind->n == 0) continue;
    hk_table_row(&table);
    hk_table_cell(&table, "%s", hk_op_kind_name((hk_op_kind)k));
    hk_table_cell(&table, "%zu", kind->n);
    ms_cells(&table, &kind->total);
    size_cell(&table, kind->median_error_pct);
    size_cell(&table, kind->worst_error_pct);
  }
  putchar('\n');
  return hk_table_print(&table, err);
}

static void cause_row(hk_table *table, const char *name, hk_ns ns, hk_ns makespan,
                      const char *meaning) {
  hk_table_row(table);
  hk_table_cell(table, "%s", name);
  hk_table_cell(table, "%+.3f", hk_ms(ns));
  error_cell(table, makespan > 0 ? 100 * (double)ns / (double)makespan : NAN);
  hk_table_cell(table, "%s", meaning);
}

static hk_status print_attribution(const hk_timeline_comparison *c, hk_error *err) {
  static const hk_column columns[] = {
      {"cause", HK_LEFT}, {"ms", HK_RIGHT}, {"of measured", HK_RIGHT}, {"meaning", HK_LEFT}};
  hk_table table;
  hk_table_begin(&table, columns, sizeof columns / sizeof *columns);
  for (int i = 0; i < HK_CAUSE_COUNT; i++)
    cause_row(&table, hk_cause_name((hk_cause)i), c->causes[i], c->makespan.measured,
              hk_cause_meaning((hk_cause)i));
  cause_row(&table, "sum", c->makespan.measured - c->makespan.predicted, c->makespan.measured,
            "measured less predicted makespan");
  putchar('\n');
  return hk_table_print(&table, err);
}

static void print_verdict(const hk_args *args, const hk_validated *v) {
  const hk_validation *r = v->validation;
  const int32_t op = r->comparison.parts_at;
  char label[128];
  putchar('\n');
  if (op < 0)
    puts("no operation is off by more than 2 % of the makespan");
  else
    printf("they part first at %s: predicted to start at %.3f ms, measured at %.3f ms\n",
           hk_op_label(&r->graph, op, label, sizeof label), hk_ms(r->predicted.spans[op].start),
           hk_ms(r->measured.spans[op].start));
  printf("the makespan is off by %+.1f %%, mostly by %s%s\n", r->comparison.makespan.error_pct,
         hk_cause_name(r->comparison.main_cause),
         !(args->given & HK_OPTION(MAX_ERROR)) ? ""
         : passes(args, v)                     ? ": passed"
                                               : ": failed");
  printf(
      "checksum %s; timelines %lld (predicted) and %lld (measured) are kept: hocket trace diff "
      "%lld %lld\n",
      r->checksum, (long long)v->predicted_id, (long long)v->measured_id,
      (long long)v->predicted_id, (long long)v->measured_id);
}

hk_status hk_validated_text(const hk_args *args, const hk_validated *v, hk_error *err) {
  print_heading(v);
  HK_TRY(print_whole(v->validation, err));
  HK_TRY(print_lanes(v->validation, err));
  HK_TRY(print_operations(&v->validation->comparison, err));
  HK_TRY(print_attribution(&v->validation->comparison, err));
  print_verdict(args, v);
  if (!args->explain) return HK_OK;
  putchar('\n');
  return hk_explain_text(&v->profile->machine, err);
}

hk_status hk_validated_judge(const hk_args *args, const hk_validated *v, hk_error *err) {
  if (passes(args, v)) return HK_OK;
  return hk_fail(err, HK_NO, "the predicted makespan is off by %+.1f %%, more than --max-error %g",
                 v->validation->comparison.makespan.error_pct, args->max_error);
}
