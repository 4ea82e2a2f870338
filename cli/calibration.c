/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Reads a calibration; unknown or damaged members are no error. */
#include "cli/calibration.h"

#include <math.h>
#include <stdio.h>

#include "core/base/json.h"

const cJSON *hk_calibration_of(const cJSON *document) {
  const cJSON *member = cJSON_GetObjectItemCaseSensitive(document, "calibration");
  return cJSON_IsObject(member) ? member : NULL;
}

void hk_calibration_summarise(const cJSON *calibration, hk_calibration_summary *summary) {
  const cJSON *errors = cJSON_GetObjectItemCaseSensitive(calibration, "replay_error_pct");
  *summary = (hk_calibration_summary){
      .made = hk_json_text_or(calibration, "made", ""),
      .version = hk_json_text_or(calibration, "version", ""),
      .quick = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(calibration, "quick")),
      .accepted = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(calibration, "accepted")),
      .seconds = hk_json_number_or(calibration, "seconds", NAN),
      .median_error_pct = hk_json_number_or(errors, "median", NAN),
      .p90_error_pct = hk_json_number_or(errors, "p90", NAN),
      .worst_error_pct = hk_json_number_or(errors, "worst", NAN)};
}

void hk_calibration_interval(const cJSON *calibration, const char *key, double *low, double *high) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(calibration, "quantities");
  const cJSON *quantity = cJSON_GetObjectItemCaseSensitive(list, key);
  *low = hk_json_number_or(quantity, "low", NAN);
  *high = hk_json_number_or(quantity, "high", NAN);
}

const char *hk_format_accuracy(double median_error_pct, bool quick, bool accepted, char *buffer,
                               size_t size) {
  if (isnan(median_error_pct))
    snprintf(buffer, size, "-");
  else
    snprintf(buffer, size, "%.1f %%%s%s", median_error_pct, quick ? ", quick" : "",
             accepted ? "" : ", not accepted");
  return buffer;
}

void hk_print_fingerprint(const char *title, const cJSON *fingerprint) {
  const char *between = title;
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, fingerprint) {
    const bool number = cJSON_IsNumber(item) && item->valuedouble >= 0;
    if (!number && !cJSON_IsString(item)) continue;
    if (number)
      printf("%s %s %.0f", between, item->string, item->valuedouble);
    else
      printf("%s %s %s", between, item->string, item->valuestring);
    between = ",";
  }
  putchar('\n');
}

void hk_print_calibration_summary(const cJSON *calibration) {
  hk_calibration_summary s;
  hk_calibration_summarise(calibration, &s);
  printf("calibrated%s%s%s%s", *s.made ? " " : "", s.made, *s.version ? " by hocket " : "",
         s.version);
  if (!isnan(s.seconds)) printf(", %.0f s of %s probes", s.seconds, s.quick ? "quick" : "all");
  if (!isnan(s.median_error_pct))
    printf(", %s: simulation errors %.1f %% (median), %.1f %% (90th percentile), %.1f %% (worst)",
           s.accepted ? "accepted" : "not accepted", s.median_error_pct, s.p90_error_pct,
           s.worst_error_pct);
  putchar('\n');
  const cJSON *fingerprint = cJSON_GetObjectItemCaseSensitive(calibration, "fingerprint");
  if (cJSON_IsObject(fingerprint)) hk_print_fingerprint("measured on:", fingerprint);
}
