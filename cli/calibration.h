/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The member "calibration" of a profile's document (calib/profiles/profiles.h). Files may have been
 * edited by hand: a member that is missing or has another type counts as unknown. */
#ifndef HK_CLI_CALIBRATION_H
#define HK_CLI_CALIBRATION_H

#include <cjson/cJSON.h>
#include <stdbool.h>

typedef struct {
  const char *made, *version; /* "": unknown. Point into the document */
  bool quick, accepted;
  double seconds; /* spent measuring; NAN: unknown, as below */
  double median_error_pct, p90_error_pct, worst_error_pct;
} hk_calibration_summary;

/* The document's member "calibration"; NULL: none. `document` may be NULL. */
const cJSON *hk_calibration_of(const cJSON *document);
void hk_calibration_summarise(const cJSON *calibration, hk_calibration_summary *summary);
/* The 95 % interval of a quantity; NAN: none. */
void hk_calibration_interval(const cJSON *calibration, const char *key, double *low, double *high);

/* "2.1 %, quick, not accepted": the median error of the replays, and reservations. "-" without
 * replays. Returns `buffer`; 48 bytes suffice. */
const char *hk_format_accuracy(double median_error_pct, bool quick, bool accepted, char *buffer,
                               size_t size);

/* Prints what a fingerprint knows, on one line after `title`. */
void hk_print_fingerprint(const char *title, const cJSON *fingerprint);
/* Prints to stdout: date, duration, accuracy, and the machine's fingerprint. */
void hk_print_calibration_summary(const cJSON *calibration);

#endif
