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
#include "core/base/json_write.h"
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
static void put(cJSON *object, const char *key, double value, bool *ok) {
  if (isfinite(value))
    hk_put_number(object, key, copysign(hk_fit_rounded(fabs(value)), value), ok);
  else
    hk_put_item(object, key, cJSON_CreateNull(), ok);
}

static void put_replay_errors(cJSON *root, const hk_profile_fit *fit, bool *ok) {
  const bool some = fit->n_replays > 0;
  cJSON *object = hk_put_object(root, "replay_error_pct", ok);
  put(object, "median", some ? fit->median_error_pct : NAN, ok);
  put(object, "p90", some ? fit->p90_error_pct : NAN, ok);
  put(object, "worst", some ? fit->worst_error_pct : NAN, ok);
}

static void put_quantities(cJSON *root, const hk_profile_fit *fit, bool *ok) {
  cJSON *list = hk_put_object(root, "quantities", ok);
  for (size_t i = 0; i < fit->n_quantities; i++) {
    const hk_calibrated *q = &fit->quantities[i];
    cJSON *object = hk_put_object(list, q->info->key, ok);
    put(object, "low", q->low, ok);
    put(object, "high", q->high, ok);
    put(object, "probes", (double)q->probes, ok);
  }
}

static void put_segments(cJSON *root, const hk_profile_fit *fit, bool *ok) {
  cJSON *list = hk_put_array(root, "segments", ok);
  for (size_t i = 0; i < fit->n_segments; i++) {
    const hk_line_segment *s = &fit->segments[i];
    cJSON *object = hk_put_element(list, ok);
    hk_put_string(object, "what", s->what, ok);
    put(object, "least", s->least, ok);
    put(object, "latency_ns", s->latency_ns, ok);
    put(object, "latency_error_ns", s->latency_error, ok);
    put(object, "rate", s->rate, ok);
    put(object, "rate_error", s->rate_error, ok);
  }
}

static void put_replays(cJSON *root, const hk_profile_fit *fit, bool *ok) {
  cJSON *list = hk_put_array(root, "replays", ok);
  for (size_t i = 0; i < fit->n_replays; i++) {
    const hk_replayed *r = &fit->replays[i];
    cJSON *object = hk_put_element(list, ok);
    hk_put_string(object, "probe", r->probe, ok);
    put(object, "load", r->load, ok);
    put(object, "measured", r->measured, ok);
    put(object, "predicted", r->predicted, ok);
    put(object, "error_pct", r->error_pct, ok);
  }
}

static void put_load(cJSON *list, const hk_load *load, const hk_summary *s, bool *ok) {
  char label[64];
  if (hk_load_is(load->kind, HK_TRAIT_CPU))
    snprintf(label, sizeof label, "%s", hk_load_name(load->kind));
  else
    snprintf(label, sizeof label, "%s gpu%d", hk_load_name(load->kind), load->gpu);
  cJSON *object = hk_put_element(list, ok);
  hk_put_string(object, "load", label, ok);
  hk_put_string(object, "unit", hk_load_unit(load->kind), ok);
  put(object, "n", (double)s->n, ok);
  put(object, "median", s->median, ok);
  put(object, "mad", s->mad, ok);
  put(object, "low", s->low, ok);
  put(object, "high", s->high, ok);
}

/* A series without a round that did not fail is left out. */
static void put_one_series(cJSON *list, const hk_series *series, bool *ok) {
  if (series->rounds == 0 && !series->failed) return;
  cJSON *object = hk_put_object(list, series->probe.name, ok);
  if (series->failed) {
    hk_put_string(object, "failed", series->failure, ok);
    return;
  }
  hk_put_bool(object, "narrow", series->narrow, ok);
  cJSON *loads = hk_put_array(object, "loads", ok);
  for (int i = 0; i < series->probe.n_loads; i++)
    put_load(loads, &series->probe.loads[i], &series->summary[i], ok);
}

cJSON *hk_profile_calibration(const hk_profile_fit *fit, const hk_campaign *campaign,
                              const hk_fingerprint *f, bool quick, const char *made) {
  bool ok = true;
  cJSON *root = cJSON_CreateObject();
  hk_put_string(root, "made", made, &ok);
  hk_put_string(root, "version", f->version, &ok);
  hk_put_bool(root, "quick", quick, &ok);
  hk_put_bool(root, "accepted", fit->accepted, &ok);
  put(root, "seconds", campaign->seconds, &ok);
  put_replay_errors(root, fit, &ok);
  hk_put_item(root, "fingerprint", hk_fingerprint_to_json(f), &ok);
  put_quantities(root, fit, &ok);
  put_segments(root, fit, &ok);
  put_replays(root, fit, &ok);
  cJSON *list = hk_put_object(root, "series", &ok);
  for (size_t i = 0; i < campaign->n; i++) put_one_series(list, &campaign->series[i], &ok);
  if (ok) return root;
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
