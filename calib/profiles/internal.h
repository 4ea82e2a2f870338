/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Inside calib only: what the files that keep profiles share. */
#ifndef HK_CALIB_PROFILES_INTERNAL_H
#define HK_CALIB_PROFILES_INTERNAL_H

#include "calib/profiles/profiles.h"

/* The member of a profile's document that profiles.h describes. */
#define HK_CALIBRATION "calibration"

/* "2026-11-21T09:30:00Z", now. */
void hk_profile_now(char text[32]);
/* HK_INPUT for a name by which --machine could never find the profile. */
hk_status hk_profile_check_name(const char *name, hk_error *err);

/* -- document.c -------------------------------------------------------------------------------- */

/* "calibration" of a fit. The caller owns the result; NULL when out of memory. */
cJSON *hk_profile_calibration(const hk_profile_fit *fit, const hk_campaign *campaign,
                              const hk_fingerprint *f, bool quick, const char *made);

/* What a list of profiles shows of this document, which is checked. `now` is when it was made
 * unless its calibration says. */
hk_status hk_profile_describe(const cJSON *document, const char *from, const char *now,
                              hk_profile_entry *entry, hk_error *err);

/* -- profiles.c -------------------------------------------------------------------------------- */

/* *document NULL if there is no profile of that name. */
hk_status hk_profile_read(hk_store *store, const char *name, cJSON **document, hk_error *err);

/* Of the stored names and of `others`, the one nearest to `name`; "" when none is near. `store` may
 * be NULL. */
hk_status hk_profile_nearest(hk_store *store, char *const *others, size_t n_others,
                             const char *name, char nearest[96], hk_error *err);

#endif
