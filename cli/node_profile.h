/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The calibrated profile of this node, for commands that predict a run and then make it. */
#ifndef HK_CLI_NODE_PROFILE_H
#define HK_CLI_NODE_PROFILE_H

#include "calib/profiles/profiles.h"
#include "cli/args.h"

/* Default of --max-age, in days. */
#define HK_PROFILE_DAYS 30

/* Options of hk_node_profile_load, besides --backend, --device and --quiet. */
#define HK_OPTIONS_PROFILE                                                       \
  (HK_OPTION(MACHINE) | HK_OPTION(SET) | HK_OPTION(MAX_AGE) | HK_OPTION(FORCE) | \
   HK_OPTION(BUDGET) | HK_OPTION(MEMORY))

typedef struct {
  hk_machine machine;
  cJSON *document; /* of the profile */
  hk_fingerprint here;
} hk_node_profile;

/* Checks that the profile is of `node` and young enough (max_age_s: see hk_validate_profile). If
 * not: HK_INPUT, or with --force a note and HK_OK. Message and note begin with `about`. */
hk_status hk_node_profile_admit(const hk_args *args, const char *command, const char *about,
                                const cJSON *document, const hk_fingerprint *node, double max_age_s,
                                hk_error *err);

/* Prints a note if calibration did not accept the profile. Nothing with --quiet. */
void hk_node_profile_note(const hk_args *args, const char *command, const cJSON *document);

/* With --machine: that profile. It must be of this node and no older than --max-age, if given: else
 * HK_INPUT with the differences, or a note with --force. Without --machine: the newest stored
 * profile of this node that is young enough, else a new one, by a quick calibration. `command`:
 * notes begin with it. Free with hk_node_profile_free, also on failure. */
hk_status hk_node_profile_load(const hk_args *args, const char *command, hk_store *store,
                               hk_node_profile *profile, hk_error *err);
void hk_node_profile_free(hk_node_profile *profile);

#endif
