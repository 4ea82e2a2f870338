/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What a profile's document says of its calibration (calib/profiles/profiles.h). Files may have
 * been edited by hand: what is missing or of another type is not known, and no failure. */
#ifndef HK_CLI_CALIBRATION_H
#define HK_CLI_CALIBRATION_H

#include <cjson/cJSON.h>
#include <stdbool.h>

typedef struct {
  const char *made, *version; /* "" where not known; point into the document */
  bool quick, accepted;
  double seconds; /* NAN: not known, as below */
  double median_error_pct, p90_error_pct, worst_error_pct;
} hk_calibration_summary;

/* The document's member "calibration"; NULL: none. `document` may be NULL. */
const cJSON *hk_calibration_of(const cJSON *document);
void hk_calibration_summarise(const cJSON *calibration, hk_calibration_summary *summary);
/* 95 % interval of a quantity; NAN: none. */
void hk_calibration_interval(const cJSON *calibration, const char *key, double *low, double *high);

/* "2.1 %, quick, not accepted": median error of the replays and what speaks against them; "-" where
 * nothing was replayed. Returns `buffer`; 48 bytes do. */
const char *hk_format_accuracy(double median_error_pct, bool quick, bool accepted, char *buffer,
                               size_t size);

/* Some lines to stdout: when and how it was made, how accurate it is, of which machine. */
void hk_print_calibration_summary(const cJSON *calibration);

#endif
