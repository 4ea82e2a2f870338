/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Compares two profiles: relative changes, and whether the 95 % intervals overlap. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/profiles/internal.h"
#include "core/base/json.h"

typedef struct {
  hk_machine machine;
  const cJSON *quantities, *series, *fingerprint; /* of its calibration; NULL: none */
} side;

/* The object of that key; NULL if there is none or `object` is NULL. */
static hk_status optional(const cJSON *object, const char *key, const cJSON **out, hk_error *err) {
  *out = NULL;
  if (!cJSON_GetObjectItemCaseSensitive(object, key)) return HK_OK;
  return hk_json_object(object, key, out, err);
}

static hk_status open_calibration(const cJSON *document, side *s, hk_error *err) {
  const cJSON *calibration;
  HK_TRY(optional(document, HK_CALIBRATION, &calibration, err));
  HK_TRY(optional(calibration, "quantities", &s->quantities, err));
  HK_TRY(optional(calibration, "series", &s->series, err));
  return optional(calibration, "fingerprint", &s->fingerprint, err);
}

/* The side borrows the calibration from the document. */
static hk_status open_side(const cJSON *document, side *s, hk_error *err) {
  HK_TRY(hk_machine_from_json(document, &s->machine, err));
  if (open_calibration(document, s, err) == HK_OK) return HK_OK;
  return hk_fail_prefix(err, "profile '%s'", s->machine.name);
}

/* -- Intervals --------------------------------------------------------------------------------- */

/* NAN for both ends if `object` is NULL. */
static hk_status read_interval(const cJSON *object, double *low, double *high, hk_error *err) {
  *low = *high = NAN;
  if (!object) return HK_OK;
  HK_TRY(hk_json_double_or(object, "low", -DBL_MAX, DBL_MAX, NAN, low, err));
  HK_TRY(hk_json_double_or(object, "high", -DBL_MAX, DBL_MAX, NAN, high, err));
  if (!(*low > *high)) return HK_OK;
  return hk_fail(err, HK_INPUT, "an interval from 'low' %.15g to 'high' %.15g: no value is in it",
                 *low, *high);
}

static double percent(double a, double b) {
  if (a == b) return 0;
  return a == 0 ? copysign(INFINITY, b) : 100 * (b - a) / fabs(a);
}

/* Sets change_pct, known and outside from values and intervals. */
static void derive(hk_profile_change *c) {
  c->change_pct = percent(c->a, c->b);
  c->known = isfinite(c->a_low) && isfinite(c->a_high) && isfinite(c->b_low) && isfinite(c->b_high);
  c->outside = c->known && (c->a_high < c->b_low || c->b_high < c->a_low);
}

/* -- Quantities -------------------------------------------------------------------------------- */

static hk_status compare_quantity(const side sides[2], const hk_quantity_info *info,
                                  hk_profile_diff *diff, hk_error *err) {
  const cJSON *a = NULL, *b = NULL;
  HK_TRY(optional(sides[0].quantities, info->key, &a, err));
  HK_TRY(optional(sides[1].quantities, info->key, &b, err));
  hk_profile_change c = {.a = hk_machine_quantity_const(&sides[0].machine, info)->value,
                         .b = hk_machine_quantity_const(&sides[1].machine, info)->value};
  if (!a && !b && c.a == c.b) return HK_OK;
  snprintf(c.key, sizeof c.key, "%s", info->key);
  HK_TRY(read_interval(a, &c.a_low, &c.a_high, err));
  HK_TRY(read_interval(b, &c.b_low, &c.b_high, err));
  derive(&c);
  diff->compared += c.known;
  diff->agreeing += c.known && !c.outside;
  diff->changes[diff->n++] = c;
  return HK_OK;
}

static hk_status compare_quantities(const side sides[2], hk_profile_diff *diff, hk_error *err) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    if (compare_quantity(sides, &list[i], diff, err) != HK_OK)
      return hk_fail_prefix(err, "quantity '%s'", list[i].key);
  }
  return HK_OK;
}

/* -- Probes ------------------------------------------------------------------------------------ */

static hk_status read_load(const cJSON *load, double *median, double *low, double *high,
                           hk_error *err) {
  if (!cJSON_IsObject(load)) return hk_fail(err, HK_INPUT, "expected an object for each load");
  HK_TRY(hk_json_double_or(load, "median", -DBL_MAX, DBL_MAX, NAN, median, err));
  return read_interval(load, low, high, err);
}

static hk_status compare_load(const char *probe, const cJSON *a, const cJSON *b, bool only,
                              hk_profile_diff *diff, hk_error *err) {
  hk_profile_change c = {.probe = true};
  HK_TRY(read_load(a, &c.a, &c.a_low, &c.a_high, err));
  HK_TRY(read_load(b, &c.b, &c.b_low, &c.b_high, err));
  if (isnan(c.a) || isnan(c.b)) return HK_OK;
  const char *load = "";
  if (!only) HK_TRY(hk_json_string(a, "load", &load, err));
  snprintf(c.key, sizeof c.key, "%s%s%s", probe, only ? "" : ": ", load);
  derive(&c);
  diff->changes[diff->n++] = c;
  return HK_OK;
}

/* Loads are matched by position: probes of the same name have the same loads. */
static hk_status compare_series(const char *probe, const cJSON *a, const cJSON *b,
                                hk_profile_diff *diff, hk_error *err) {
  if (cJSON_GetObjectItemCaseSensitive(a, "failed") ||
      cJSON_GetObjectItemCaseSensitive(b, "failed"))
    return HK_OK;
  const cJSON *of_a, *of_b;
  HK_TRY(hk_json_array(a, "loads", &of_a, err));
  HK_TRY(hk_json_array(b, "loads", &of_b, err));
  const bool only = cJSON_GetArraySize(of_a) == 1;
  of_a = of_a->child;
  of_b = of_b->child;
  for (; of_a && of_b; of_a = of_a->next, of_b = of_b->next)
    HK_TRY(compare_load(probe, of_a, of_b, only, diff, err));
  return HK_OK;
}

static hk_status compare_probes(const side sides[2], hk_profile_diff *diff, hk_error *err) {
  const cJSON *a = NULL;
  cJSON_ArrayForEach(a, sides[0].series) {
    const cJSON *b = cJSON_GetObjectItemCaseSensitive(sides[1].series, a->string);
    if (b && compare_series(a->string, a, b, diff, err) != HK_OK)
      return hk_fail_prefix(err, "probe '%s'", a->string);
  }
  return HK_OK;
}

/* -- Profiles ---------------------------------------------------------------------------------- */

static hk_status compare_fingerprints(const side sides[2], hk_profile_diff *diff, hk_error *err) {
  hk_fingerprint prints[2];
  for (int i = 0; i < 2; i++) {
    const char *name = sides[i].machine.name;
    if (!sides[i].fingerprint) {
      snprintf(diff->fingerprint, sizeof diff->fingerprint, "'%s' has no fingerprint", name);
      return HK_OK;
    }
    if (hk_fingerprint_from_json(sides[i].fingerprint, &prints[i], err) != HK_OK)
      return hk_fail_prefix(err, "fingerprint of '%s'", name);
  }
  hk_fingerprint_compare(&prints[0], &prints[1], diff->fingerprint, sizeof diff->fingerprint);
  return HK_OK;
}

/* Upper bound of the number of changes: all quantities and all loads of a's series. */
static size_t most_changes(const side *a) {
  size_t most;
  hk_quantity_list(&most);
  const cJSON *series = NULL;
  cJSON_ArrayForEach(series, a->series) {
    const int loads = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(series, "loads"));
    most += (size_t)loads;
  }
  return most;
}

static hk_status compare(const side sides[2], hk_profile_diff *diff, hk_error *err) {
  const size_t most = most_changes(&sides[0]);
  diff->changes = calloc(most, sizeof *diff->changes);
  if (!diff->changes) return hk_fail_memory(err, most * sizeof *diff->changes, "a comparison");
  HK_TRY(compare_quantities(sides, diff, err));
  HK_TRY(compare_probes(sides, diff, err));
  return compare_fingerprints(sides, diff, err);
}

hk_status hk_profiles_diff(const cJSON *a, const cJSON *b, hk_profile_diff *diff, hk_error *err) {
  *diff = (hk_profile_diff){0};
  side sides[2] = {0};
  hk_status status = open_side(a, &sides[0], err);
  if (status == HK_OK) status = open_side(b, &sides[1], err);
  if (status == HK_OK) status = compare(sides, diff, err);
  for (int i = 0; i < 2; i++) hk_machine_free(&sides[i].machine);
  if (status != HK_OK) hk_profile_diff_free(diff);
  return status;
}

void hk_profile_diff_free(hk_profile_diff *diff) {
  free(diff->changes);
  *diff = (hk_profile_diff){0};
}
