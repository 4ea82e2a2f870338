/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Writes the "calibration" of a profile's document, and reads what a list of profiles shows. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "calib/fit/table_fit_problem.h"
#include "calib/profiles/internal.h"
#include "core/base/json.h"
#include "core/base/names.h"

void hk_profile_now(char text[32]) {
  const time_t now = time(NULL);
  struct tm parts;
  if (!gmtime_r(&now, &parts) || strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
    snprintf(text, 32, "unknown");
}

hk_status hk_profile_check_name(const char *name, hk_error *err) {
  static const char suffix[] = ".json";
  const size_t length = strlen(name), tail = sizeof suffix - 1;
  const hk_profile_entry *entry = NULL;
  bool printable = true;
  for (const char *c = name; *c; c++)
    if ((unsigned char)*c < 0x20 || *c == 0x7F) printable = false;
  const bool file =
      strchr(name, '/') || (length >= tail && strcmp(name + length - tail, suffix) == 0);
  char shipped[4096];
  if (!file && hk_share_resolve("machines", name, shipped, sizeof shipped, NULL) == HK_OK)
    return hk_fail(err, HK_INPUT,
                   "'%s' ships with hocket: --machine would never find a profile of that name in "
                   "the store; give it another name",
                   name);
  if (length > 0 && length < sizeof entry->name && printable && !file) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "'%.120s' cannot be the name of a profile in the store: expected 1 to %zu "
                 "characters with no '/' and no '%s' at the end, which --machine takes for a file",
                 name, sizeof entry->name - 1, suffix);
}

/* -- Writing ----------------------------------------------------------------------------------- */

/* Six digits, as in fits. NAN and infinities become null. */
static bool put(cJSON *object, const char *key, double value) {
  return isfinite(value)
             ? cJSON_AddNumberToObject(object, key, copysign(hk_fit_rounded(fabs(value)), value))
             : cJSON_AddNullToObject(object, key);
}

static bool put_text(cJSON *object, const char *key, const char *text) {
  return cJSON_AddStringToObject(object, key, text);
}

static bool put_bool(cJSON *object, const char *key, bool value) {
  return cJSON_AddBoolToObject(object, key, value);
}

/* Appends an empty object to the array and returns it; NULL: out of memory. */
static cJSON *append(cJSON *array) {
  cJSON *object = cJSON_CreateObject();
  if (object && cJSON_AddItemToArray(array, object)) return object;
  cJSON_Delete(object);
  return NULL;
}

static bool put_replay_errors(cJSON *root, const hk_profile_fit *fit) {
  const bool some = fit->n_replays > 0;
  cJSON *object = cJSON_AddObjectToObject(root, "replay_error_pct");
  return object && put(object, "median", some ? fit->median_error_pct : NAN) &&
         put(object, "p90", some ? fit->p90_error_pct : NAN) &&
         put(object, "worst", some ? fit->worst_error_pct : NAN);
}

static bool put_fingerprint(cJSON *root, const hk_fingerprint *f) {
  cJSON *object = hk_fingerprint_to_json(f);
  if (object && cJSON_AddItemToObject(root, "fingerprint", object)) return true;
  cJSON_Delete(object);
  return false;
}

static bool put_quantities(cJSON *root, const hk_profile_fit *fit) {
  cJSON *list = cJSON_AddObjectToObject(root, "quantities");
  bool good = list;
  for (size_t i = 0; good && i < fit->n_quantities; i++) {
    const hk_calibrated *q = &fit->quantities[i];
    cJSON *object = cJSON_AddObjectToObject(list, q->info->key);
    good = object && put(object, "low", q->low) && put(object, "high", q->high) &&
           put(object, "probes", (double)q->probes);
  }
  return good;
}

static bool put_segments(cJSON *root, const hk_profile_fit *fit) {
  cJSON *list = cJSON_AddArrayToObject(root, "segments");
  bool good = list;
  for (size_t i = 0; good && i < fit->n_segments; i++) {
    const hk_line_segment *s = &fit->segments[i];
    cJSON *object = append(list);
    good = object && put_text(object, "what", s->what) && put(object, "least", s->least) &&
           put(object, "latency_ns", s->latency_ns) &&
           put(object, "latency_error_ns", s->latency_error) && put(object, "rate", s->rate) &&
           put(object, "rate_error", s->rate_error);
  }
  return good;
}

static bool put_replays(cJSON *root, const hk_profile_fit *fit) {
  cJSON *list = cJSON_AddArrayToObject(root, "replays");
  bool good = list;
  for (size_t i = 0; good && i < fit->n_replays; i++) {
    const hk_replayed *r = &fit->replays[i];
    cJSON *object = append(list);
    good = object && put_text(object, "probe", r->probe) && put(object, "load", r->load) &&
           put(object, "measured", r->measured) && put(object, "predicted", r->predicted) &&
           put(object, "error_pct", r->error_pct);
  }
  return good;
}

static bool put_load(cJSON *list, const hk_load *load, const hk_summary *s) {
  char label[64];
  if (hk_load_is(load->kind, HK_TRAIT_CPU))
    snprintf(label, sizeof label, "%s", hk_load_name(load->kind));
  else
    snprintf(label, sizeof label, "%s gpu%d", hk_load_name(load->kind), load->gpu);
  cJSON *object = append(list);
  return object && put_text(object, "load", label) &&
         put_text(object, "unit", hk_load_unit(load->kind)) && put(object, "n", (double)s->n) &&
         put(object, "median", s->median) && put(object, "mad", s->mad) &&
         put(object, "low", s->low) && put(object, "high", s->high);
}

/* A series without a round that did not fail is left out. */
static bool put_one_series(cJSON *list, const hk_series *series) {
  if (series->rounds == 0 && !series->failed) return true;
  cJSON *object = cJSON_AddObjectToObject(list, series->probe.name);
  if (!object) return false;
  if (series->failed) return put_text(object, "failed", series->failure);
  cJSON *loads = NULL;
  bool good = put_bool(object, "narrow", series->narrow) &&
              (loads = cJSON_AddArrayToObject(object, "loads"));
  for (int i = 0; good && i < series->probe.n_loads; i++)
    good = put_load(loads, &series->probe.loads[i], &series->summary[i]);
  return good;
}

static bool put_series(cJSON *root, const hk_campaign *campaign) {
  cJSON *list = cJSON_AddObjectToObject(root, "series");
  bool good = list;
  for (size_t i = 0; good && i < campaign->n; i++)
    good = put_one_series(list, &campaign->series[i]);
  return good;
}

cJSON *hk_profile_calibration(const hk_profile_fit *fit, const hk_campaign *campaign,
                              const hk_fingerprint *f, bool quick, const char *made) {
  cJSON *root = cJSON_CreateObject();
  if (root && put_text(root, "made", made) && put_text(root, "version", f->version) &&
      put_bool(root, "quick", quick) && put_bool(root, "accepted", fit->accepted) &&
      put(root, "seconds", campaign->seconds) && put_replay_errors(root, fit) &&
      put_fingerprint(root, f) && put_quantities(root, fit) && put_segments(root, fit) &&
      put_replays(root, fit) && put_series(root, campaign))
    return root;
  cJSON_Delete(root);
  return NULL;
}

/* -- Describing -------------------------------------------------------------------------------- */

static hk_status describe_calibration(const cJSON *calibration, hk_profile_entry *entry,
                                      hk_error *err) {
  if (cJSON_GetObjectItemCaseSensitive(calibration, "made")) {
    const char *made;
    HK_TRY(hk_json_string(calibration, "made", &made, err));
    snprintf(entry->made, sizeof entry->made, "%s", made);
  }
  HK_TRY(hk_json_bool_or(calibration, "quick", false, &entry->quick, err));
  HK_TRY(hk_json_bool_or(calibration, "accepted", false, &entry->accepted, err));
  if (!cJSON_GetObjectItemCaseSensitive(calibration, "replay_error_pct")) return HK_OK;
  const cJSON *errors;
  HK_TRY(hk_json_object(calibration, "replay_error_pct", &errors, err));
  HK_TRY(hk_json_double_or(errors, "median", 0, DBL_MAX, NAN, &entry->median_error_pct, err));
  return hk_json_double_or(errors, "p90", 0, DBL_MAX, NAN, &entry->p90_error_pct, err);
}

hk_status hk_profile_describe(const cJSON *document, const char *from, const char *now,
                              hk_profile_entry *entry, hk_error *err) {
  hk_machine machine = {0};
  HK_TRY(hk_machine_from_json(document, &machine, err));
  *entry = (hk_profile_entry){
      .gpus = (int)machine.gpus.value, .median_error_pct = NAN, .p90_error_pct = NAN};
  memcpy(entry->name, machine.name, sizeof entry->name);
  memcpy(entry->description, machine.description, sizeof entry->description);
  hk_machine_free(&machine);
  snprintf(entry->made, sizeof entry->made, "%s", now);
  snprintf(entry->from, sizeof entry->from, "%s", from);
  if (!cJSON_GetObjectItemCaseSensitive(document, HK_CALIBRATION)) return HK_OK;
  const cJSON *calibration;
  HK_TRY(hk_json_object(document, HK_CALIBRATION, &calibration, err));
  hk_status status = describe_calibration(calibration, entry, err);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "key '%s'", HK_CALIBRATION);
}
