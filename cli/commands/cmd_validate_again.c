/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket validate again: predicts measured rankings again, with another profile or version. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/profiles/profiles.h"
#include "cli/command.h"
#include "cli/node_profile.h"
#include "cli/print/emit.h"
#include "cli/print/print_ranking.h"
#include "cli/setup.h"
#include "cli/stored_timeline.h"
#include "core/base/json.h"

#define NAME "validate again"

typedef struct {
  cJSON *root;
  const cJSON *plans;
  const char *model;
  hk_fingerprint node;
  bool complete;
} ranking_file;

typedef struct {
  const hk_args *args;
  hk_store *store;
  cJSON *document; /* the profile */
  hk_machine machine;
  ranking_file *files; /* [args->n_operands] */
  hk_ranked_plan *runs, *ranked;
  size_t n_runs, n; /* numbers of runs and of plans */
} judging;

/* -- Measurements ------------------------------------------------------------------------------ */

static hk_status read_file(const char *path, ranking_file *f, hk_error *err) {
  const char *schema = NULL;
  const cJSON *node = NULL;
  HK_TRY(hk_json_string(f->root, "schema", &schema, err));
  if (strcmp(schema, "hocket.ranking/1") != 0)
    return hk_fail(err, HK_INPUT, "'%.60s' is not what 'validate ranking -o %.60s' writes", schema,
                   path);
  HK_TRY(hk_json_string(f->root, "model", &f->model, err));
  HK_TRY(hk_json_object(f->root, "fingerprint", &node, err));
  HK_TRY(hk_fingerprint_from_json(node, &f->node, err));
  HK_TRY(hk_json_bool(f->root, "complete", &f->complete, err));
  return hk_json_array(f->root, "plans", &f->plans, err);
}

static hk_status load_files(judging *j, hk_error *err) {
  const int n = j->args->n_operands;
  size_t runs = 0;
  j->files = calloc((size_t)n, sizeof *j->files);
  if (j->files == NULL) return hk_fail_memory(err, (size_t)n * sizeof *j->files, "rankings");
  for (int i = 0; i < n; i++) {
    const char *path = j->args->operands[i];
    HK_TRY(hk_json_load(path, &j->files[i].root, err));
    if (read_file(path, &j->files[i], err) != HK_OK) return hk_fail_prefix(err, "%s", path);
    if (strcmp(j->files[i].model, j->files[0].model) != 0)
      return hk_fail(err, HK_INPUT, "%s is of the model '%s', %s of '%s'", j->args->operands[0],
                     j->files[0].model, path, j->files[i].model);
    runs += (size_t)cJSON_GetArraySize(j->files[i].plans);
  }
  j->runs = calloc(runs + 1, sizeof *j->runs);
  j->ranked = calloc(runs + 1, sizeof *j->ranked);
  if (j->runs != NULL && j->ranked != NULL) return HK_OK;
  return hk_fail_memory(err, 2 * runs * sizeof *j->runs, "a ranking");
}

static hk_status load_profile(judging *j, hk_error *err) {
  if (j->args->machine == NULL)
    return hk_fail(err, HK_INPUT, "--machine NAME|FILE is needed: the profile to predict with");
  HK_TRY(hk_profiles_load_document(j->args->machine, &j->document, err));
  for (int i = 0; i < j->args->n_operands; i++) {
    char about[1024];
    snprintf(about, sizeof about, "%.1000s: ", j->args->operands[i]);
    HK_TRY(hk_node_profile_admit(j->args, NAME, about, j->document, &j->files[i].node, 0, err));
  }
  HK_TRY(hk_machine_from_json(j->document, &j->machine, err));
  return hk_setup_change(j->args, &j->machine, err);
}

/* -- Predicting -------------------------------------------------------------------------------- */

static hk_status read_times(const cJSON *entry, hk_ranked_plan *out, hk_error *err) {
  const cJSON *rounds = NULL, *round = NULL;
  HK_TRY(hk_json_double(entry, "measured_ms", 0, 1e12, &out->measured_ms, err));
  HK_TRY(hk_json_double(entry, "min_ms", 0, 1e12, &out->least_ms, err));
  HK_TRY(hk_json_double(entry, "max_ms", 0, 1e12, &out->most_ms, err));
  /* Memory depends on the plan, not on the profile. */
  HK_TRY(hk_json_double_or(entry, "gpu_memory_error_pct", -1e12, 1e12, NAN,
                           &out->gpu_memory_error_pct, err));
  HK_TRY(hk_json_array(entry, "rounds_ms", &rounds, err));
  out->rounds = 0;
  cJSON_ArrayForEach(round, rounds) {
    if (!cJSON_IsNumber(round) || out->rounds == HK_MOST_ROUNDS)
      return hk_fail(err, HK_INPUT, "key 'rounds_ms': expected at most %d numbers", HK_MOST_ROUNDS);
    out->round_ms[out->rounds++] = round->valuedouble;
  }
  return HK_OK;
}

static hk_status check_timeline(const hk_loaded_timeline *kept, const char *title, hk_error *err) {
  char own[sizeof((hk_ranked_plan *)0)->title];
  hk_ranked_plan_title(&kept->plan, own, sizeof own);
  if (kept->kept.measured && kept->kept.phases == HK_EXPAND_UPDATE && strcmp(own, title) == 0)
    return HK_OK;
  return hk_fail(
      err, HK_INPUT,
      "timeline %lld of the store is not a measured update of '%s' but a %s one of '%s': set "
      "HOCKET_STORE to the store that the ranking used",
      (long long)kept->kept.id, title, hk_stored_timeline_kind(&kept->kept), own);
}

static hk_status predict(judging *j, const hk_loaded_timeline *kept, hk_ranked_plan *out,
                         hk_error *err) {
  hk_validation v;
  HK_TRY(check_timeline(kept, out->title, err));
  HK_TRY(hk_validate_again(&kept->plan, &kept->timeline, &j->machine, &v, err));
  hk_ranked_plan_fill(&kept->plan, &v, out);
  hk_validation_free(&v);
  return HK_OK;
}

static hk_status judge_one(judging *j, const cJSON *entry, hk_error *err) {
  hk_ranked_plan *out = &j->runs[j->n_runs];
  const char *title = NULL;
  hk_loaded_timeline kept = {0};
  HK_TRY(hk_json_string(entry, "plan", &title, err));
  snprintf(out->title, sizeof out->title, "%s", title);
  HK_TRY(hk_json_int(entry, "measured_timeline", 1, INT64_MAX / 2, &out->measured_id, err));
  HK_TRY(hk_timelines_load(j->store, out->measured_id, &kept, err));
  const hk_status status = predict(j, &kept, out, err);
  hk_loaded_timeline_free(&kept);
  HK_TRY(status);
  /* Replaces the times of the one step that was stored. */
  HK_TRY(read_times(entry, out, err));
  j->n_runs++;
  return HK_OK;
}

static hk_status judge_all(judging *j, hk_error *err) {
  for (int i = 0; i < j->args->n_operands; i++) {
    const cJSON *entry = NULL;
    cJSON_ArrayForEach(entry, j->files[i].plans) {
      if (!cJSON_IsObject(entry))
        return hk_fail(err, HK_INPUT, "%s: key 'plans': expected objects", j->args->operands[i]);
      if (judge_one(j, entry, err) != HK_OK) return hk_fail_prefix(err, "%s", j->args->operands[i]);
    }
  }
  return HK_OK;
}

/* -- Answer ------------------------------------------------------------------------------------ */

/* Combines all runs of one plan, of which runs[first] is the first. The rounds of a single file
 * stay as they are. */
static hk_status gather(judging *j, size_t first, hk_error *err) {
  hk_ranked_plan same[HK_MOST_ROUNDS];
  int n = 0;
  for (size_t i = first; i < j->n_runs; i++) {
    if (strcmp(j->runs[i].title, j->runs[first].title) != 0) continue;
    if (n == HK_MOST_ROUNDS)
      return hk_fail(err, HK_INPUT, "'%s' has more than %d runs", j->runs[i].title, HK_MOST_ROUNDS);
    same[n++] = j->runs[i];
  }
  j->ranked[j->n++] = n == 1 ? same[0] : hk_ranked_plan_median(same, n);
  return HK_OK;
}

static hk_status gather_all(judging *j, hk_error *err) {
  for (size_t i = 0; i < j->n_runs; i++) {
    size_t before = 0;
    while (before < i && strcmp(j->runs[before].title, j->runs[i].title) != 0) before++;
    if (before == i) HK_TRY(gather(j, i, err));
  }
  return HK_OK;
}

static hk_status answer(const judging *j, hk_error *err) {
  hk_measured_ranking ranked = {.model = j->files[0].model,
                                .profile = j->machine.name,
                                .node = &j->files[0].node,
                                .plans = j->ranked,
                                .n = j->n,
                                .chosen = j->n,
                                .complete = true};
  for (size_t i = 0; i < j->n; i++)
    if (j->ranked[i].rounds > ranked.rounds) ranked.rounds = j->ranked[i].rounds;
  for (size_t i = 0; i < j->n; i++) ranked.complete &= j->ranked[i].rounds == ranked.rounds;
  for (int i = 0; i < j->args->n_operands; i++) ranked.complete &= j->files[i].complete;
  return hk_print_ranking(j->args, NAME, &ranked, err);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status judge(judging *j, hk_error *err) {
  HK_TRY(hk_emit_check_output(j->args->output, err));
  HK_TRY(load_files(j, err));
  HK_TRY(load_profile(j, err));
  HK_TRY(hk_stored_timeline_open(&j->store, err));
  HK_TRY(judge_all(j, err));
  HK_TRY(gather_all(j, err));
  hk_node_profile_note(j->args, NAME, j->document);
  return answer(j, err);
}

static hk_status run(const hk_args *args, hk_error *err) {
  judging j = {.args = args};
  const hk_status status = judge(&j, err);
  for (int i = 0; j.files != NULL && i < args->n_operands; i++) cJSON_Delete(j.files[i].root);
  free(j.files);
  free(j.runs);
  free(j.ranked);
  hk_machine_free(&j.machine);
  cJSON_Delete(j.document);
  hk_store_close(j.store);
  return status;
}

const hk_command hk_command_validate_again = {
    .name = NAME,
    .summary = "Compares stored measurements with another profile or version",
    .usage = "RANKING.json... --machine NAME|FILE [OPTIONS]",
    .details =
        "Reads files that 'validate ranking -o' wrote, for one model and one node, and\n"
        "the timelines that it stored. Predicts every plan again and prints what\n"
        "'validate ranking' prints. Nothing is run: use it to test a changed simulator,\n"
        "or a calibration made between the runs, against old measurements. Each of\n"
        "several files is a round: the run with the median time counts for each plan, the\n"
        "median for each of its lanes. A profile of another machine is refused without\n"
        "--force.",
    .example = "hocket validate again ranking.json --machine this-node",
    .output = "also write the JSON object to a file",
    .options = HK_OPTIONS_MACHINE | HK_OPTION(FORCE) | HK_OPTION(OUTPUT) | HK_OPTION(JSON) |
               HK_OPTION(WIDE) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = HK_MOST_ROUNDS,
    .run = run,
};
