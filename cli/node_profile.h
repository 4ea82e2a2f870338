/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The calibrated profile of this very node, for commands that predict what they then run. */
#ifndef HK_CLI_NODE_PROFILE_H
#define HK_CLI_NODE_PROFILE_H

#include "calib/profiles/profiles.h"
#include "cli/args.h"

/* Days after which a profile no longer counts, unless --max-age says otherwise. */
#define HK_PROFILE_DAYS 30

/* What hk_node_profile_load looks at, besides --backend, --device and --quiet. */
#define HK_OPTIONS_PROFILE                                                          \
  (HK_OPTION(MACHINE) | HK_OPTION(MAX_AGE) | HK_OPTION(FORCE) | HK_OPTION(BUDGET) | \
   HK_OPTION(MEMORY))

typedef struct {
  hk_machine machine;
  cJSON *document; /* of the profile */
  hk_fingerprint here;
} hk_node_profile;

/* HK_OK, with a note unless --quiet, where the profile is of the node, or with --force; else
 * HK_INPUT. `max_age_s` as hk_validate_profile has it. Both texts begin with `about`. */
hk_status hk_node_profile_admit(const hk_args *args, const char *command, const char *about,
                                const cJSON *document, const hk_fingerprint *node, double max_age_s,
                                hk_error *err);

/* Notes on stderr, unless --quiet, that calibration did not accept the profile: for callers to say
 * beside their answer. */
void hk_node_profile_note(const hk_args *args, const char *command, const cJSON *document);

/* With --machine that profile, which must be of this node (and no older than --max-age, if that is
 * given): else HK_INPUT with what differs, or a note with --force. Without, the newest in the
 * store that is of this node and young enough; if there is none a quick calibration makes one.
 * `command` is what notes begin with. Free with hk_node_profile_free, also on failure. */
hk_status hk_node_profile_load(const hk_args *args, const char *command, hk_store *store,
                               hk_node_profile *profile, hk_error *err);
void hk_node_profile_free(hk_node_profile *profile);

#endif
