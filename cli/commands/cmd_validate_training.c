/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket validate training: the recorded iteration of a training run against its prediction. */
#include <stdio.h>
#include <stdlib.h>

#include "calib/profiles/profiles.h"
#include "calib/validate/ranks.h"
#include "cli/command.h"
#include "cli/node_profile.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/print_comparison.h"
#include "cli/print/print_ranks.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "core/base/json.h"

#define NAME "validate training"

static const char *const block_times[] = {
    [HK_BLOCKS_OF_PLAN] = "from the plan's model",
    [HK_BLOCKS_RECORDED] = "from this recording, with what the update beside them cost",
    [HK_BLOCKS_OF_MODEL] = "from --model",
};

static const char *const step_kinds[] = {
    [HK_STEPS_KEPT] = "",
    [HK_STEPS_HELD] = "updates: none ran ahead of the norm\n",
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

/* Adds what one recording's comparison has. */
static void put_validation(const hk_training_validation *v, cJSON *root, bool *ok) {
  hk_ns least, most;
  const hk_comparison_input compared =
      hk_prediction_and_measurement(&v->graph, &v->predicted, &v->measured, &v->comparison);
  range_of(v, &least, &most);
  cJSON *iteration = hk_put_object(root, "iteration", ok);
  put_pair(iteration, &v->comparison.makespan, ok);
  hk_put_number(iteration, "step", (double)v->step, ok);
  hk_put_number(iteration, "recorded", (double)v->n_periods, ok);
  hk_put_number(iteration, "min_ms", hk_ms(least), ok);
  hk_put_number(iteration, "max_ms", hk_ms(most), ok);
  put_pair(hk_put_object(root, "forward_wait", ok), &v->forward_wait, ok);
  hk_put_comparison(&compared, root, ok);
  put_differences(v, hk_put_array(root, "differences", ok), ok);
  put_uncompared(v->unmeasured, hk_put_object(root, "not_measured", ok), ok);
  put_uncompared(v->unpredicted, hk_put_object(root, "not_predicted", ok), ok);
}

static cJSON *begin_json(const char *schema, const hk_training_validation *v,
                         const hk_machine *machine, bool *ok) {
  static const char *const origins[] = {"plan", "recording", "model"};
  cJSON *root = hk_emit_begin(schema, ok);
  char title[160];
  hk_put_string(root, "plan", hk_plan_title(&v->plan, title, sizeof title), ok);
  hk_put_string(root, "model", v->plan.model.name, ok);
  hk_put_string(root, "overlap", hk_overlap_names[v->plan.overlap], ok);
  hk_put_string(root, "machine", machine->name, ok);
  hk_put_string(root, "block_times", origins[v->block_times], ok);
  return root;
}

static hk_status end_json(const hk_args *args, cJSON *root, bool passed, bool ok, hk_error *err) {
  if (args->given & HK_OPTION(MAX_ERROR))
    hk_put_number(root, "max_error_pct", args->max_error, &ok);
  hk_put_bool(root, "passed", passed, &ok);
  return hk_emit_print(root, ok, err);
}

static hk_status print_json(const hk_args *args, const hk_training_validation *v,
                            const hk_machine *machine, hk_error *err) {
  bool ok = true;
  cJSON *root = begin_json("hocket.training_validation/1", v, machine, &ok);
  put_validation(v, root, &ok);
  return end_json(args, root, hk_comparison_passes(args, &v->comparison), ok, err);
}

static hk_status print_ranks_json(const hk_args *args, const hk_ranks_validation *v, bool passed,
                                  const hk_machine *machine, hk_error *err) {
  bool ok = true;
  cJSON *root = begin_json("hocket.ranks_validation/1", &v->ranks[0].validation, machine, &ok);
  cJSON *list = hk_put_array(root, "ranks", &ok);
  for (size_t r = 0; r < v->n; r++) {
    cJSON *rank = hk_put_element(list, &ok);
    put_validation(&v->ranks[r].validation, rank, &ok);
    hk_put_number(rank, "waits_for_ranks_ms", hk_ms(v->ranks[r].waits), &ok);
    hk_put_number(rank, "ends_later_ms", hk_ms(v->ranks[r].late), &ok);
  }
  hk_put_ranks_table(v, hk_put_object(root, "worst", &ok), &ok);
  return end_json(args, root, passed, ok, err);
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
  printf("%sblock times: %s\n", step_kinds[v->plan.steps], block_times[v->block_times]);
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
  return hk_explain_text(machine, &v->plan, err);
}

static hk_status print_ranks_text(const hk_args *args, const hk_ranks_validation *v, bool passed,
                                  const hk_machine *machine, hk_error *err) {
  const hk_training_validation *first = &v->ranks[0].validation;
  char title[160];
  hk_print_ranks_heading(v);
  printf("%s, overlap %s, %s, on %s\n", first->plan.model.name,
         hk_overlap_names[first->plan.overlap], hk_plan_title(&first->plan, title, sizeof title),
         machine->name);
  printf("%sblock times: %s\n\n", step_kinds[first->plan.steps],
         first->block_times == HK_BLOCKS_RECORDED
             ? "from the first rank's recording, with what the update beside them cost"
             : block_times[first->block_times]);
  HK_TRY(hk_print_ranks_table(v, err));
  for (size_t r = 0; r < v->n; r++) {
    printf("\nrank %zu\n", r);
    HK_TRY(print_differences(&v->ranks[r].validation, err));
    print_uncompared("predicted, not recorded", v->ranks[r].validation.unmeasured);
    print_uncompared("recorded, not predicted", v->ranks[r].validation.unpredicted);
  }
  if (args->given & HK_OPTION(MAX_ERROR))
    printf("\nerror of the predicted iteration: %s\n", passed ? "passed" : "failed");
  if (!args->explain) return HK_OK;
  putchar('\n');
  return hk_explain_text(machine, &first->plan, err);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status judge(const hk_args *args, const hk_pair *iteration, bool passed, hk_error *err) {
  HK_TRY(hk_emit_flush(err));
  if (passed) return HK_OK;
  return hk_fail(err, HK_NO,
                 "the error of the predicted iteration is %+.1f %%, more than --max-error %g",
                 iteration->error_pct, args->max_error);
}

static hk_status answer(const hk_args *args, const hk_training_validation *v,
                        const hk_machine *machine, hk_error *err) {
  HK_TRY(hk_comparison_write_trace(args, NAME, &v->graph, &v->predicted, &v->measured, err));
  HK_TRY(args->json ? print_json(args, v, machine, err) : print_text(args, v, machine, err));
  return judge(args, &v->comparison.makespan, hk_comparison_passes(args, &v->comparison), err);
}

static hk_status answer_ranks(const hk_args *args, const hk_ranks_validation *v,
                              const hk_machine *machine, hk_error *err) {
  const hk_timeline_comparison *worst =
      &v->ranks[hk_ranks_worst(v, hk_rank_iteration, 0)].validation.comparison;
  const bool passed = hk_comparison_passes(args, worst);
  HK_TRY(hk_write_ranks_trace(args, NAME, v, err));
  HK_TRY(args->json ? print_ranks_json(args, v, passed, machine, err)
                    : print_ranks_text(args, v, passed, machine, err));
  return judge(args, &worst->makespan, passed, err);
}

static hk_status validate_ranks(const hk_args *args, cJSON *const *recordings,
                                const hk_model *measured, const hk_machine *machine,
                                hk_error *err) {
  hk_ranks_validation v = {0};
  hk_status status =
      hk_validate_ranks(recordings, (size_t)args->n_operands, measured, machine, &v, err);
  if (status == HK_OK) status = answer_ranks(args, &v, machine, err);
  hk_ranks_validation_free(&v);
  return status;
}

static hk_status validate_one(const hk_args *args, const cJSON *recording, const hk_model *measured,
                              const hk_machine *machine, hk_error *err) {
  hk_training_validation v = {0};
  if (hk_validate_training(recording, measured, machine, &v, err) != HK_OK)
    return hk_fail_prefix(err, "%s", args->operands[0]);
  const hk_status status = answer(args, &v, machine, err);
  hk_training_validation_free(&v);
  return status;
}

static hk_status validate(const hk_args *args, const hk_machine *machine, hk_error *err) {
  cJSON *recordings[HK_MOST_GPUS] = {0};
  hk_model model = {0};
  if (args->model != NULL) HK_TRY(hk_model_load(args->model, &model, err));
  const hk_model *measured = args->model != NULL ? &model : NULL;
  hk_status status = HK_OK;
  for (int i = 0; i < args->n_operands && status == HK_OK; i++)
    status = hk_json_load(args->operands[i], &recordings[i], err);
  if (status == HK_OK)
    status = args->n_operands > 1 || hk_recording_is_of_rank(recordings[0])
                 ? validate_ranks(args, recordings, measured, machine, err)
                 : validate_one(args, recordings[0], measured, machine, err);
  for (int i = 0; i < args->n_operands; i++) cJSON_Delete(recordings[i]);
  hk_model_free(&model);
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
    .usage = "TIMELINE.json... --machine NAME|FILE [OPTIONS]",
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
        "With the recordings of all ranks of a host (FSDP2) each is compared with one\n"
        "prediction of so many GPUs, with its collectives, on one clock.\n"
        "Exit 1: the error exceeds --max-error.",
    .example = "hocket validate training timeline.json --machine this-node --max-error 8",
    .options = HK_OPTION(MODEL) | HK_OPTIONS_MACHINE | HK_OPTION(MAX_ERROR) | HK_OPTION(TIMELINE) |
               HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(EXPLAIN) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = HK_MOST_GPUS,
    .run = run,
};
