/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket validate training: the recorded iteration of a training run against its prediction. */
#include <stdio.h>
#include <stdlib.h>

#include "calib/profiles/profiles.h"
#include "calib/validate/training.h"
#include "cli/command.h"
#include "cli/node_profile.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/print_comparison.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "core/base/json.h"

#define NAME "validate training"

static const char *const block_times[] = {
    [HK_BLOCKS_OF_PLAN] = "from the plan's model",
    [HK_BLOCKS_RECORDED] = "from this recording, with what the update beside them cost",
    [HK_BLOCKS_OF_MODEL] = "from --model",
};

static const char *difference_cause(const hk_op_difference *d) {
  return d->waits ? "wait" : hk_cause_name(d->cause);
}

static void range_of(const hk_training_validation *v, hk_ns *least, hk_ns *most) {
  *least = *most = v->periods[0];
  for (size_t i = 1; i < v->n_periods; i++) {
    *least = hk_min(*least, v->periods[i]);
    *most = hk_max(*most, v->periods[i]);
  }
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_pair(cJSON *object, const hk_pair *pair, bool *ok) {
  hk_put_number(object, "predicted_ms", hk_ms(pair->predicted), ok);
  hk_put_number(object, "measured_ms", hk_ms(pair->measured), ok);
  hk_put_number(object, "error_pct", pair->error_pct, ok);
}

static void put_uncompared(const hk_uncompared *list, cJSON *object, bool *ok) {
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    if (list[k].n == 0) continue;
    cJSON *kind = hk_put_object(object, hk_op_kind_name((hk_op_kind)k), ok);
    hk_put_number(kind, "count", (double)list[k].n, ok);
    hk_put_number(kind, "ms", hk_ms(list[k].time), ok);
  }
}

static void put_differences(const hk_training_validation *v, cJSON *list, bool *ok) {
  for (size_t i = 0; i < v->n_differences; i++) {
    const hk_op_difference *d = &v->differences[i];
    char label[128];
    cJSON *item = hk_put_element(list, ok);
    hk_put_string(item, "operation", hk_op_label(&v->graph, d->op, label, sizeof label), ok);
    hk_put_string(item, "lane", v->graph.lanes[v->graph.ops[d->op].lane].name, ok);
    put_pair(hk_put_object(item, "duration", ok), &d->duration, ok);
    put_pair(hk_put_object(item, "wait", ok), &d->wait, ok);
    hk_put_string(item, "cause", difference_cause(d), ok);
  }
}

static hk_status print_json(const hk_args *args, const hk_training_validation *v,
                            const hk_machine *machine, hk_error *err) {
  bool ok = true;
  hk_ns least, most;
  const hk_comparison_input compared =
      hk_prediction_and_measurement(&v->graph, &v->predicted, &v->measured, &v->comparison);
  range_of(v, &least, &most);
  cJSON *root = hk_emit_begin("hocket.training_validation/1", &ok);
  char title[160];
  hk_put_string(root, "plan", hk_plan_title(&v->plan, title, sizeof title), &ok);
  hk_put_string(root, "model", v->plan.model.name, &ok);
  hk_put_string(root, "overlap", hk_overlap_names[v->plan.overlap], &ok);
  hk_put_string(root, "machine", machine->name, &ok);
  static const char *const origins[] = {"plan", "recording", "model"};
  hk_put_string(root, "block_times", origins[v->block_times], &ok);
  cJSON *iteration = hk_put_object(root, "iteration", &ok);
  put_pair(iteration, &v->comparison.makespan, &ok);
  hk_put_number(iteration, "step", (double)v->step, &ok);
  hk_put_number(iteration, "recorded", (double)v->n_periods, &ok);
  hk_put_number(iteration, "min_ms", hk_ms(least), &ok);
  hk_put_number(iteration, "max_ms", hk_ms(most), &ok);
  put_pair(hk_put_object(root, "forward_wait", &ok), &v->forward_wait, &ok);
  hk_put_comparison(&compared, root, &ok);
  put_differences(v, hk_put_array(root, "differences", &ok), &ok);
  put_uncompared(v->unmeasured, hk_put_object(root, "not_measured", &ok), &ok);
  put_uncompared(v->unpredicted, hk_put_object(root, "not_predicted", &ok), &ok);
  if (args->given & HK_OPTION(MAX_ERROR))
    hk_put_number(root, "max_error_pct", args->max_error, &ok);
  hk_put_bool(root, "passed", hk_comparison_passes(args, &v->comparison), &ok);
  return hk_emit_print(root, ok, err);
}

/* -- Text -------------------------------------------------------------------------------------- */

static void print_heading(const hk_training_validation *v, const hk_machine *machine) {
  const hk_pair *whole = &v->comparison.makespan;
  char title[160];
  hk_ns least, most;
  range_of(v, &least, &most);
  printf("iteration: predicted %.3f ms, measured %.3f ms, error %+.1f %%\n",
         hk_ms(whole->predicted), hk_ms(whole->measured), whole->error_pct);
  printf("%s, overlap %s, %s, on %s\n", v->plan.model.name, hk_overlap_names[v->plan.overlap],
         hk_plan_title(&v->plan, title, sizeof title), machine->name);
  printf("step %lld, the median of %zu recorded iterations (%.3f to %.3f ms)\n", (long long)v->step,
         v->n_periods, hk_ms(least), hk_ms(most));
  printf("block times: %s\n", block_times[v->block_times]);
  printf("forward waits between blocks: predicted %.3f ms, measured %.3f ms\n\n",
         hk_ms(v->forward_wait.predicted), hk_ms(v->forward_wait.measured));
}

static hk_status print_differences(const hk_training_validation *v, hk_error *err) {
  static const hk_column columns[] = {{"differs most", HK_LEFT},
                                      {"lane", HK_LEFT},
                                      {"ms, predicted", HK_RIGHT},
                                      {"measured", HK_RIGHT},
                                      {"wait, predicted", HK_RIGHT | HK_SPARE(1)},
                                      {"measured", HK_RIGHT | HK_SPARE(1)},
                                      {"cause", HK_LEFT}};
  char label[128];
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < v->n_differences; i++) {
    const hk_op_difference *d = &v->differences[i];
    hk_table_row(&table, "%s\t%s\t%.3f\t%.3f\t%.3f\t%.3f\t%s",
                 hk_op_label(&v->graph, d->op, label, sizeof label),
                 v->graph.lanes[v->graph.ops[d->op].lane].name, hk_ms(d->duration.predicted),
                 hk_ms(d->duration.measured), hk_ms(d->wait.predicted), hk_ms(d->wait.measured),
                 difference_cause(d));
  }
  return hk_table_print(&table, err);
}

static void print_uncompared(const char *what, const hk_uncompared *list) {
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    if (list[k].n > 0)
      printf("%s: %zu x %s, %.3f ms\n", what, list[k].n, hk_op_kind_name((hk_op_kind)k),
             hk_ms(list[k].time));
  }
}

static hk_status print_text(const hk_args *args, const hk_training_validation *v,
                            const hk_machine *machine, hk_error *err) {
  char summary[512];
  const hk_comparison_input compared =
      hk_prediction_and_measurement(&v->graph, &v->predicted, &v->measured, &v->comparison);
  print_heading(v, machine);
  HK_TRY(hk_print_comparison_tables(&compared, err));
  putchar('\n');
  HK_TRY(print_differences(v, err));
  print_uncompared("predicted, not recorded", v->unmeasured);
  print_uncompared("recorded, not predicted", v->unpredicted);
  printf("\n%s\n", hk_comparison_summary(&compared, summary, sizeof summary));
  if (args->given & HK_OPTION(MAX_ERROR))
    printf("error of the predicted iteration: %s\n",
           hk_comparison_passes(args, &v->comparison) ? "passed" : "failed");
  if (!args->explain) return HK_OK;
  putchar('\n');
  return hk_explain_text(machine, &v->plan.model, err);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status answer(const hk_args *args, const hk_training_validation *v,
                        const hk_machine *machine, hk_error *err) {
  HK_TRY(hk_comparison_write_trace(args, NAME, &v->graph, &v->predicted, &v->measured, err));
  HK_TRY(args->json ? print_json(args, v, machine, err) : print_text(args, v, machine, err));
  HK_TRY(hk_emit_flush(err));
  if (hk_comparison_passes(args, &v->comparison)) return HK_OK;
  return hk_fail(err, HK_NO,
                 "the error of the predicted iteration is %+.1f %%, more than --max-error %g",
                 v->comparison.makespan.error_pct, args->max_error);
}

static hk_status validate(const hk_args *args, const hk_machine *machine, hk_error *err) {
  cJSON *recording = NULL;
  hk_training_validation v = {0};
  hk_model measured = {0};
  if (args->model != NULL) HK_TRY(hk_model_load(args->model, &measured, err));
  hk_status status = hk_json_load(args->operands[0], &recording, err);
  if (status != HK_OK) {
    hk_model_free(&measured);
    return status;
  }
  status = hk_validate_training(recording, args->model ? &measured : NULL, machine, &v, err);
  cJSON_Delete(recording);
  hk_model_free(&measured);
  if (status != HK_OK) return hk_fail_prefix(err, "%s", args->operands[0]);
  status = answer(args, &v, machine, err);
  hk_training_validation_free(&v);
  return status;
}

static hk_status run(const hk_args *args, hk_error *err) {
  hk_machine machine = {0};
  cJSON *document = NULL;
  if (args->machine == NULL)
    return hk_fail(err, HK_INPUT, "--machine NAME|FILE is needed: the profile to predict with");
  HK_TRY(hk_profiles_load_document(args->machine, &document, err));
  hk_status status = hk_machine_from_json(document, &machine, err);
  if (status == HK_OK) status = hk_setup_change(args, &machine, err);
  if (status == HK_OK) hk_node_profile_note(args, NAME, document);
  if (status == HK_OK) status = validate(args, &machine, err);
  hk_machine_free(&machine);
  cJSON_Delete(document);
  return status;
}

const hk_command hk_command_validate_training = {
    .name = NAME,
    .summary = "Compares a training run's iteration with its prediction",
    .usage = "TIMELINE.json --machine NAME|FILE [OPTIONS]",
    .details =
        "Reads what opt.timeline() of the Python package returned after opt.record(),\n"
        "as JSON: the plan, and when forward, backward, flush, update and copies of\n"
        "weights ran. Simulates that plan with the block times of its model (if it has\n"
        "none, with those of the recording) or of --model, a file that hocket.profile of\n"
        "the package wrote for it, and compares the steady iteration with the\n"
        "recorded one of median length: phases (time in which each runs), lanes, kinds\n"
        "of operation, and the operations that differ most. The error is divided among\n"
        "causes that add up to it. --timeline writes both iterations as one trace for\n"
        "Perfetto. Nothing is run.\n"
        "Exit 1: the error exceeds --max-error.",
    .example = "hocket validate training timeline.json --machine this-node --max-error 8",
    .options = HK_OPTION(MODEL) | HK_OPTIONS_MACHINE | HK_OPTION(MAX_ERROR) | HK_OPTION(TIMELINE) |
               HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(EXPLAIN) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 1,
    .run = run,
};
