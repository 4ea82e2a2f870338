/* SPDX-License-Identifier: Apache-2.0 */
/* The plan document: "hocket.plan/1", or "hocket.plan/2" for plans with an overlap. It holds all
 * that the simulator or the engine needs, the model's config included, so a plan runs on a machine
 * that does not have the model. The member "profile" is the machine's document, if its name would
 * not find it; the command line writes and reads it (cli/setup.h), this file ignores it. */
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/names.h"
#include "core/graph/plan.h"

#define SCHEMA         "hocket.plan/1"
#define SCHEMA_OVERLAP "hocket.plan/2"

static const char *const flush_names[] = {"async", "sync"};
static const char *const rule_names[] = {"soft", "exact", "blocks"};

/* -- writing ------------------------------------------------------------------------------ */

static bool add_number(cJSON *object, const char *key, double value) {
  return cJSON_AddNumberToObject(object, key, value) != NULL;
}

static bool add_string(cJSON *object, const char *key, const char *value) {
  return cJSON_AddStringToObject(object, key, value) != NULL;
}

/* "loss_chunks", "pp", "pp_chunks", "ep" and "jobs" are written only if they are above 1,
 * "sequence_parallel" only if it is true. */
static bool add_job(cJSON *root, const hk_job *job) {
  cJSON *o = cJSON_AddObjectToObject(root, "job");
  return o != NULL && add_number(o, "gpus", job->gpus) && add_number(o, "nodes", job->nodes) &&
         add_number(o, "tp", job->tp) && add_number(o, "micro_batch", job->micro_batch) &&
         add_number(o, "grad_accum", job->grad_accum) && add_number(o, "seq", job->seq) &&
         cJSON_AddBoolToObject(o, "checkpoint_activations", job->checkpoint_activations) != NULL &&
         (job->loss_chunks <= 1 || add_number(o, "loss_chunks", job->loss_chunks)) &&
         (job->pp <= 1 || add_number(o, "pp", job->pp)) &&
         (job->chunks <= 1 || add_number(o, "pp_chunks", job->chunks)) &&
         (!job->sequence_parallel || cJSON_AddTrueToObject(o, "sequence_parallel") != NULL) &&
         (job->ep <= 1 || add_number(o, "ep", job->ep)) &&
         (job->jobs <= 1 || add_number(o, "jobs", job->jobs));
}

/* "blocks" and "reduce_first" are written only if they are set. */
static bool add_flush(cJSON *root, const hk_plan *plan) {
  cJSON *o = cJSON_AddObjectToObject(root, "flush");
  return o != NULL && add_string(o, "mode", flush_names[plan->flush]) &&
         add_number(o, "bytes_per_param", plan->flush_bytes_per_param) &&
         (plan->flush_blocks == 0 || add_number(o, "blocks", plan->flush_blocks)) &&
         (!plan->reduce_first || cJSON_AddTrueToObject(o, "reduce_first") != NULL);
}

/* "guess" is written only if it is known. */
static bool add_guess(cJSON *root, const hk_plan *plan) {
  const hk_guess_costs *guess = &plan->guess;
  if (plan->overlap != HK_OVERLAP_BOTH || (guess->gain == 0 && guess->loss == 0)) return true;
  cJSON *o = cJSON_AddObjectToObject(root, "guess");
  return o != NULL && add_number(o, "gain_ms", hk_ms(guess->gain)) &&
         add_number(o, "loss_ms", hk_ms(guess->loss));
}

/* "optimizer" is written only if it is not fp32, "accumulate" only if it is not gpu, "sum_bytes"
 * only if it is not 0, "clip" only with an overlap and if it is not norm, "steals" only if true. */
static bool add_settings(cJSON *root, const hk_plan *plan) {
  cJSON *policy = cJSON_AddObjectToObject(root, "policy");
  if (policy == NULL || !add_string(policy, "name", plan->policy) ||
      !add_number(policy, "stride", plan->stride) || !add_number(policy, "ratio", plan->ratio)) {
    return false;
  }
  if (!add_string(root, "runtime", hk_runtime_name(plan->runtime))) return false;
  if (plan->optimizer != HK_OPTIMIZER_FP32 &&
      !add_string(root, "optimizer", hk_optimizer_names[plan->optimizer]))
    return false;
  if (plan->accumulate != HK_ACCUMULATE_GPU &&
      !add_string(root, "accumulate", hk_accumulate_names[plan->accumulate]))
    return false;
  if (plan->overlap != HK_OVERLAP_NONE && plan->clip != HK_CLIP_NORM &&
      !add_string(root, "clip", hk_clip_names[plan->clip]))
    return false;
  if (!add_guess(root, plan)) return false;
  if (plan->sum_bytes > 0 && !add_number(root, "sum_bytes", (double)plan->sum_bytes)) return false;
  if (!add_flush(root, plan)) return false;
  cJSON *staging = cJSON_AddObjectToObject(root, "staging");
  if (staging == NULL || !add_number(staging, "buffers", plan->buffers) ||
      !add_number(staging, "piece_numel", (double)plan->piece_numel) ||
      (plan->steals && cJSON_AddBoolToObject(staging, "steals", true) == NULL)) {
    return false;
  }
  cJSON *cpu = cJSON_AddObjectToObject(root, "cpu");
  if (cpu == NULL || !add_number(cpu, "threads", plan->cpu_threads) ||
      cJSON_AddBoolToObject(cpu, "cores_bound", plan->cores_bound) == NULL) {
    return false;
  }
  cJSON *subgroup = cJSON_AddObjectToObject(root, "subgroup");
  return subgroup != NULL && add_string(subgroup, "rule", rule_names[plan->subgroup_rule]) &&
         add_number(subgroup, "numel", (double)plan->subgroup_numel);
}

/* "ahead" is written with an overlap only, "early" and "held_staged" only if they are true. */
static bool add_ahead(cJSON *item, const hk_plan *plan, size_t i) {
  const hk_plan_subgroup *s = &plan->subgroups[i];
  return plan->overlap == HK_OVERLAP_NONE ||
         (cJSON_AddBoolToObject(item, "ahead", s->ahead) != NULL &&
          (!s->early || cJSON_AddBoolToObject(item, "early", true) != NULL) &&
          (!s->held_staged || cJSON_AddBoolToObject(item, "held_staged", true) != NULL));
}

static bool add_subgroups(cJSON *root, const hk_plan *plan) {
  cJSON *subgroups = cJSON_AddArrayToObject(root, "subgroups");
  cJSON *order = cJSON_AddArrayToObject(root, "order");
  if (subgroups == NULL || order == NULL) return false;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    cJSON *item = cJSON_CreateObject();
    if (item == NULL || !cJSON_AddItemToArray(subgroups, item)) return false;
    if (!add_number(item, "numel", (double)plan->subgroups[i].numel) ||
        !add_string(item, "route", hk_route_name(plan->subgroups[i].route)) ||
        !add_ahead(item, plan, i)) {
      return false;
    }
    cJSON *position = cJSON_CreateNumber(plan->order[i]);
    if (position == NULL || !cJSON_AddItemToArray(order, position)) return false;
  }
  return true;
}

cJSON *hk_plan_to_json(const hk_plan *plan) {
  cJSON *root = cJSON_CreateObject();
  cJSON *config = cJSON_Duplicate(plan->model.config, true);
  const bool overlaps = plan->overlap != HK_OVERLAP_NONE;
  if (root == NULL || config == NULL ||
      !add_string(root, "schema", overlaps ? SCHEMA_OVERLAP : SCHEMA) ||
      (overlaps && !add_string(root, "overlap", hk_overlap_names[plan->overlap])))
    goto out_of_memory;
  cJSON *model = cJSON_AddObjectToObject(root, "model");
  if (model == NULL || !add_string(model, "name", plan->model.name)) goto out_of_memory;
  if (!cJSON_AddItemToObject(model, "config", config)) goto out_of_memory;
  config = NULL;
  if (!add_string(root, "machine", plan->machine) || !add_job(root, &plan->job) ||
      !add_settings(root, plan) || !add_subgroups(root, plan)) {
    goto out_of_memory;
  }
  return root;

out_of_memory:
  cJSON_Delete(root);
  cJSON_Delete(config);
  return NULL;
}

/* -- reading ------------------------------------------------------------------------------ */

static hk_status read_name(const cJSON *object, const char *key, const char *const *names, size_t n,
                           int *out, hk_error *err) {
  const char *text = NULL;
  HK_TRY(hk_json_string(object, key, &text, err));
  if (names == hk_optimizer_names) text = hk_optimizer_name_today(text);
  for (size_t i = 0; i < n; i++) {
    if (strcmp(text, names[i]) == 0) {
      *out = (int)i;
      return HK_OK;
    }
  }
  const char *near = hk_nearest(text, names, n);
  if (near != NULL) {
    return hk_fail(err, HK_INPUT, "key '%s': '%s' is not known; did you mean '%s'?", key, text,
                   near);
  }
  char known[80];
  return hk_fail(err, HK_INPUT, "key '%s': '%s' is not known; known are %s", key, text,
                 hk_join(names, n, known, sizeof known));
}

static hk_status read_int(const cJSON *object, const char *key, int most, int *out, hk_error *err) {
  int64_t value = 0;
  HK_TRY(hk_json_int(object, key, 0, most, &value, err));
  *out = (int)value;
  return HK_OK;
}

/* Leaves *out as it is if there is no such key. */
static hk_status read_int_if(const cJSON *object, const char *key, int most, int *out,
                             hk_error *err) {
  const bool given = cJSON_GetObjectItemCaseSensitive(object, key) != NULL;
  return given ? read_int(object, key, most, out, err) : HK_OK;
}

static hk_status read_job(const cJSON *root, hk_job *job, hk_error *err) {
  const cJSON *o = NULL;
  HK_TRY(hk_json_object(root, "job", &o, err));
  HK_TRY(read_int(o, "gpus", HK_MOST_GPUS, &job->gpus, err));
  HK_TRY(read_int(o, "nodes", HK_MOST_NODES, &job->nodes, err));
  HK_TRY(read_int(o, "tp", HK_MOST_GPUS, &job->tp, err));
  HK_TRY(read_int(o, "micro_batch", HK_MOST_MICRO_BATCH, &job->micro_batch, err));
  HK_TRY(read_int(o, "grad_accum", HK_MOST_GRAD_ACCUM, &job->grad_accum, err));
  HK_TRY(read_int(o, "seq", HK_MOST_SEQ, &job->seq, err));
  HK_TRY(read_int_if(o, "loss_chunks", HK_MOST_LOSS_CHUNKS, &job->loss_chunks, err));
  HK_TRY(read_int_if(o, "pp", HK_MODEL_MOST_STAGES, &job->pp, err));
  HK_TRY(read_int_if(o, "pp_chunks", HK_MODEL_MOST_STAGES, &job->chunks, err));
  HK_TRY(read_int_if(o, "ep", HK_MODEL_MOST_EXPERT_RANKS, &job->ep, err));
  HK_TRY(read_int_if(o, "jobs", HK_MOST_GPUS, &job->jobs, err));
  if (cJSON_GetObjectItemCaseSensitive(o, "sequence_parallel") != NULL)
    HK_TRY(hk_json_bool(o, "sequence_parallel", &job->sequence_parallel, err));
  return hk_json_bool(o, "checkpoint_activations", &job->checkpoint_activations, err);
}

static hk_status read_flush(const cJSON *root, hk_plan *plan, hk_error *err) {
  const cJSON *o = NULL;
  int mode = 0;
  int64_t blocks = 0;
  HK_TRY(hk_json_object(root, "flush", &o, err));
  HK_TRY(read_name(o, "mode", flush_names, 2, &mode, err));
  plan->flush = (hk_flush)mode;
  HK_TRY(read_int(o, "bytes_per_param", 4, &plan->flush_bytes_per_param, err));
  if (cJSON_GetObjectItemCaseSensitive(o, "blocks") != NULL)
    HK_TRY(hk_json_int(o, "blocks", 1, HK_MOST_FLUSH, &blocks, err));
  plan->flush_blocks = (int)blocks;
  if (cJSON_GetObjectItemCaseSensitive(o, "reduce_first") == NULL) return HK_OK;
  return hk_json_bool(o, "reduce_first", &plan->reduce_first, err);
}

#define MOST_GUESS_MS 1e9 /* some 12 days */

static hk_status read_guess(const cJSON *root, hk_guess_costs *guess, hk_error *err) {
  const cJSON *o = NULL;
  double gain = 0, loss = 0;
  if (cJSON_GetObjectItemCaseSensitive(root, "guess") == NULL) return HK_OK;
  HK_TRY(hk_json_object(root, "guess", &o, err));
  HK_TRY(hk_json_double(o, "gain_ms", 0, MOST_GUESS_MS, &gain, err));
  HK_TRY(hk_json_double(o, "loss_ms", 0, MOST_GUESS_MS, &loss, err));
  *guess = (hk_guess_costs){.gain = (hk_ns)(gain * 1e6), .loss = (hk_ns)(loss * 1e6)};
  return HK_OK;
}

static hk_status read_settings(const cJSON *root, hk_plan *plan, hk_error *err) {
  const cJSON *o = NULL;
  int choice = 0;
  HK_TRY(hk_json_object(root, "policy", &o, err));
  HK_TRY(hk_json_text(o, "name", 0, plan->policy, sizeof plan->policy, err));
  HK_TRY(read_int(o, "stride", HK_MOST_STRIDE, &plan->stride, err));
  HK_TRY(hk_json_double(o, "ratio", 0, 1, &plan->ratio, err));
  HK_TRY(read_name(root, "runtime", hk_runtime_names, 2, &choice, err));
  plan->runtime = (hk_runtime)choice;
  if (cJSON_GetObjectItemCaseSensitive(root, "optimizer") != NULL) {
    HK_TRY(read_name(root, "optimizer", hk_optimizer_names, HK_OPTIMIZER_COUNT, &choice, err));
    plan->optimizer = (hk_optimizer)choice;
  }
  if (cJSON_GetObjectItemCaseSensitive(root, "accumulate") != NULL) {
    HK_TRY(read_name(root, "accumulate", hk_accumulate_names, HK_ACCUMULATE_COUNT, &choice, err));
    plan->accumulate = (hk_accumulate)choice;
  }
  if (cJSON_GetObjectItemCaseSensitive(root, "clip") != NULL) {
    HK_TRY(read_name(root, "clip", hk_clip_names, HK_CLIP_COUNT, &choice, err));
    plan->clip = (hk_clip)choice;
  }
  HK_TRY(read_guess(root, &plan->guess, err));
  if (cJSON_GetObjectItemCaseSensitive(root, "sum_bytes") != NULL)
    HK_TRY(hk_json_int(root, "sum_bytes", 1, 1LL << 52, &plan->sum_bytes, err));
  HK_TRY(read_flush(root, plan, err));
  HK_TRY(hk_json_object(root, "staging", &o, err));
  HK_TRY(read_int(o, "buffers", HK_MOST_BUFFERS, &plan->buffers, err));
  HK_TRY(hk_json_int(o, "piece_numel", 1, 1LL << 52, &plan->piece_numel, err));
  if (cJSON_GetObjectItemCaseSensitive(o, "steals") != NULL)
    HK_TRY(hk_json_bool(o, "steals", &plan->steals, err));
  HK_TRY(hk_json_object(root, "cpu", &o, err));
  HK_TRY(read_int(o, "threads", HK_MOST_CPU_THREADS, &plan->cpu_threads, err));
  HK_TRY(hk_json_bool(o, "cores_bound", &plan->cores_bound, err));
  HK_TRY(hk_json_object(root, "subgroup", &o, err));
  HK_TRY(read_name(o, "rule", rule_names, 3, &choice, err));
  plan->subgroup_rule = (hk_subgroup_rule)choice;
  return hk_json_int(o, "numel", 1, 1LL << 52, &plan->subgroup_numel, err);
}

static hk_status read_subgroups(const cJSON *root, hk_plan *plan, hk_error *err) {
  const cJSON *subgroups = NULL, *order = NULL;
  HK_TRY(hk_json_array(root, "subgroups", &subgroups, err));
  HK_TRY(hk_json_array(root, "order", &order, err));
  const int n = cJSON_GetArraySize(subgroups);
  if (n < 1 || n > 1 << 20) {
    return hk_fail(err, HK_INPUT, "key 'subgroups': expected 1 to %d entries, got %d", 1 << 20, n);
  }
  if (cJSON_GetArraySize(order) != n) {
    return hk_fail(err, HK_INPUT, "key 'order': %d entries for %d subgroups",
                   cJSON_GetArraySize(order), n);
  }
  plan->subgroups = calloc((size_t)n, sizeof *plan->subgroups);
  plan->order = calloc((size_t)n, sizeof *plan->order);
  if (plan->subgroups == NULL || plan->order == NULL) {
    return hk_fail_memory(err, (unsigned long long)n * sizeof *plan->subgroups,
                          "the plan's subgroups");
  }
  plan->n_subgroups = (size_t)n;

  size_t i = 0;
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, subgroups) {
    int route = 0;
    hk_status status = cJSON_IsObject(item) ? hk_json_int(item, "numel", 1, 1LL << 52,
                                                          &plan->subgroups[i].numel, err)
                                            : hk_fail(err, HK_INPUT, "expected an object");
    if (status == HK_OK)
      status = read_name(item, "route", hk_route_names, HK_ROUTE_COUNT, &route, err);
    if (status != HK_OK) return hk_fail_prefix(err, "subgroups[%zu]", i);
    if (plan->overlap != HK_OVERLAP_NONE)
      status = hk_json_bool(item, "ahead", &plan->subgroups[i].ahead, err);
    if (status == HK_OK && cJSON_GetObjectItemCaseSensitive(item, "early") != NULL)
      status = hk_json_bool(item, "early", &plan->subgroups[i].early, err);
    if (status == HK_OK && cJSON_GetObjectItemCaseSensitive(item, "held_staged") != NULL)
      status = hk_json_bool(item, "held_staged", &plan->subgroups[i].held_staged, err);
    if (status != HK_OK) return hk_fail_prefix(err, "subgroups[%zu]", i);
    plan->subgroups[i++].route = (hk_route)route;
  }
  i = 0;
  cJSON_ArrayForEach(item, order) {
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(value >= 0 && value < n) || value != (double)(int32_t)value) {
      return hk_fail(err, HK_INPUT, "order[%zu]: expected a whole number from 0 to %d", i, n - 1);
    }
    plan->order[i++] = (int32_t)value;
  }
  return HK_OK;
}

static hk_status read_model(const cJSON *root, hk_plan *plan, hk_error *err) {
  const cJSON *model = NULL, *config = NULL;
  const char *name = NULL;
  HK_TRY(hk_json_object(root, "model", &model, err));
  HK_TRY(hk_json_string(model, "name", &name, err));
  HK_TRY(hk_json_object(model, "config", &config, err));
  if (hk_model_from_config(config, name, &plan->model, err) != HK_OK) {
    return hk_fail_prefix(err, "model.config");
  }
  return HK_OK;
}

/* -- keys --------------------------------------------------------------------------------- */

/* Unknown keys are errors: a misspelt key, or one of a later hocket, would mean another schedule.
 * The model's config is not checked, because its format is not hocket's. */
static hk_status check_keys(const cJSON *root, bool overlaps, hk_error *err) {
  static const char *const root_keys[] = {
      "schema",     "model",     "machine", "profile",  "job",       "policy", "runtime",
      "flush",      "staging",   "cpu",     "subgroup", "subgroups", "order",  "optimizer",
      "accumulate", "sum_bytes", "overlap", "clip",     "guess"};
  static const char *const subgroup_keys[] = {"numel", "route", "ahead", "early", "held_staged"};
  /* plan/1 has neither the last three of the document's keys nor the last three of a subgroup's. */
  const size_t n_root = sizeof root_keys / sizeof *root_keys;
  static const struct {
    const char *object, *keys[13];
    size_t n;
  } objects[] = {
      {"model", {"name", "config"}, 2},
      {"job",
       {"gpus", "nodes", "tp", "micro_batch", "grad_accum", "seq", "checkpoint_activations",
        "loss_chunks", "pp", "pp_chunks", "sequence_parallel", "ep", "jobs"},
       13},
      {"policy", {"name", "stride", "ratio"}, 3},
      {"flush", {"mode", "bytes_per_param", "blocks", "reduce_first"}, 4},
      {"staging", {"buffers", "piece_numel", "steals"}, 3},
      {"cpu", {"threads", "cores_bound"}, 2},
      {"subgroup", {"rule", "numel"}, 2},
  };
  if (cJSON_GetObjectItemCaseSensitive(root, "pace") != NULL)
    return hk_fail(err, HK_INPUT,
                   "key 'pace': limits to the rates of copies and of the CPU team were removed, "
                   "because they gained nothing; make the plan anew with 'hocket plan'");
  HK_TRY(hk_json_known(root, "", root_keys, overlaps ? n_root : n_root - 3, err));
  for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
    HK_TRY(hk_json_known(cJSON_GetObjectItemCaseSensitive(root, objects[i].object),
                         objects[i].object, objects[i].keys, objects[i].n, err));
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "subgroups"))
      HK_TRY(hk_json_known(item, "subgroups", subgroup_keys, overlaps ? 5 : 2, err));
  return HK_OK;
}

hk_status hk_plan_from_json(const cJSON *root, hk_plan *plan, hk_error *err) {
  memset(plan, 0, sizeof *plan);
  const char *schema = NULL;
  HK_TRY(hk_json_string(root, "schema", &schema, err));
  const bool overlaps = strcmp(schema, SCHEMA_OVERLAP) == 0;
  if (!overlaps && strcmp(schema, SCHEMA) != 0) {
    return hk_fail(err, HK_INPUT, "schema is '%s', but this hocket reads plans of '%s' and '%s'",
                   schema, SCHEMA, SCHEMA_OVERLAP);
  }
  int overlap = HK_OVERLAP_NONE;
  if (overlaps)
    HK_TRY(read_name(root, "overlap", hk_overlap_names, HK_OVERLAP_COUNT, &overlap, err));
  plan->overlap = (hk_overlap)overlap;
  hk_status status = read_model(root, plan, err);
  if (status == HK_OK) {
    status = hk_json_text(root, "machine", 0, plan->machine, sizeof plan->machine, err);
  }
  if (status == HK_OK) status = read_job(root, &plan->job, err);
  if (status == HK_OK) status = read_settings(root, plan, err);
  if (status == HK_OK) status = read_subgroups(root, plan, err);
  if (status == HK_OK) status = check_keys(root, overlaps, err);
  if (status == HK_OK) status = hk_plan_check(plan, err);
  if (status != HK_OK) hk_plan_free(plan);
  return status;
}

hk_status hk_plan_load(const char *path, hk_plan *plan, hk_error *err) {
  memset(plan, 0, sizeof *plan);
  cJSON *root = NULL;
  HK_TRY(hk_json_load(path, &root, err));
  hk_status status = hk_plan_from_json(root, plan, err);
  cJSON_Delete(root);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", path);
}
