/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to calib: functions that the files of calib/profiles share. */
#ifndef HK_CALIB_PROFILES_INTERNAL_H
#define HK_CALIB_PROFILES_INTERNAL_H

#include "calib/profiles/profiles.h"

/* Key of the calibration in a profile's document (hk_profiles_document). */
#define HK_CALIBRATION "calibration"

/* The current time, UTC: "2026-11-21T09:30:00Z". */
void hk_profile_now(char text[32]);

/* -- document.c -------------------------------------------------------------------------------- */

/* The "calibration" of a fit. The caller owns the result; NULL: out of memory. */
cJSON *hk_profile_calibration(const hk_profile_fit *fit, const hk_campaign *campaign,
                              const hk_fingerprint *f, bool quick, const char *made);

/* Checks the document and fills the entry that a list of profiles shows. `now`: the time to enter
 * if its calibration has no "made". */
hk_status hk_profile_describe(const cJSON *document, const char *from, const char *now,
                              hk_profile_entry *entry, hk_error *err);

/* -- profiles.c -------------------------------------------------------------------------------- */

/* Sets *document to NULL if there is no profile of that name. The caller owns it. */
hk_status hk_profile_read(hk_store *store, const char *name, cJSON **document, hk_error *err);

/* The stored name or the name in `others` that is most similar to `name`; "" if none is similar.
 * `store` may be NULL. */
hk_status hk_profile_nearest(hk_store *store, char *const *others, size_t n_others,
                             const char *name, char nearest[96], hk_error *err);

#endif
