/* SPDX-License-Identifier: GPL-3.0-or-later */
/* This node's profile: the one of --machine, the newest stored one, or a new one. */
#include "cli/node_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calib/calibrate.h"
#include "calib/validate/validate.h"
#include "cli/interrupt.h"
#include "cli/lock.h"
#include "cli/print/screen.h"
#include "cli/setup.h"
#include "sim/forecast.h"
#include "sim/warnings.h"

#define DAY_S 86400.0
/* Memory of a device that is opened only for its description. */
#define LITTLE_MEMORY (16 * HK_MIB)

static hk_status find_backend(const hk_args *args, const hk_backend_ops **ops, hk_error *err) {
  return hk_backend_find(args->backend == 0 ? "cuda" : "host", ops, err);
}

static hk_status take_fingerprint(const hk_args *args, hk_fingerprint *here, hk_error *err) {
  const hk_backend_ops *ops = NULL;
  const hk_backend_options options = {.memory = LITTLE_MEMORY};
  hk_backend *device = NULL;
  HK_TRY(find_backend(args, &ops, err));
  HK_TRY(ops->open((int)args->device, &options, &device, err));
  const hk_status status = hk_fingerprint_take(device, 1, HK_BUILD, here, err);
  ops->close(device);
  return status;
}

/* -- The one of --machine ---------------------------------------------------------------------- */

hk_status hk_node_profile_admit(const hk_args *args, const char *command, const char *about,
                                const cJSON *document, const hk_fingerprint *node, double max_age_s,
                                hk_error *err) {
  hk_error why = {0};
  const hk_status status = hk_validate_profile(document, node, max_age_s, &why);
  if (status == HK_OK) return HK_OK;
  if (!args->force) return hk_fail(err, status, "%s%s; --force accepts it", about, why.message);
  if (!args->quiet) fprintf(stderr, "hocket %s: note: %s%s\n", command, about, why.message);
  return HK_OK;
}

void hk_node_profile_note(const hk_args *args, const char *command, const cJSON *document) {
  char trouble[320];
  if (!args->quiet && *hk_profile_trouble(document, trouble, sizeof trouble))
    fprintf(stderr, "hocket %s: note: %s\n", command, trouble);
}

static hk_status take_named(const hk_args *args, const char *command, hk_node_profile *profile,
                            hk_error *err) {
  HK_TRY(hk_profiles_load_document(args->machine, &profile->document, err));
  return hk_node_profile_admit(args, command, "", profile->document, &profile->here,
                               args->max_age * DAY_S, err);
}

/* -- The newest one ---------------------------------------------------------------------------- */

/* The stored profile is of this node and young enough. */
static bool holds(const cJSON *document, const hk_fingerprint *here, double days) {
  hk_error why = {0};
  return hk_validate_profile(document, here, days * DAY_S, &why) == HK_OK;
}

static hk_status take_newest(hk_store *store, double days, hk_node_profile *profile,
                             hk_error *err) {
  hk_profile_entry *entries = NULL;
  size_t n = 0;
  HK_TRY(hk_profiles_list(store, &entries, &n, err));
  const char *newest = "";
  hk_status status = HK_OK;
  for (size_t i = 0; i < n && status == HK_OK; i++) {
    cJSON *document = NULL;
    if (strcmp(entries[i].made, newest) <= 0) continue;
    status = hk_profiles_document(store, entries[i].name, &document, err);
    if (status == HK_OK && holds(document, &profile->here, days)) {
      cJSON_Delete(profile->document);
      profile->document = document;
      newest = entries[i].made;
    } else {
      cJSON_Delete(document);
    }
  }
  free(entries);
  return status;
}

/* -- A new one --------------------------------------------------------------------------------- */

static void show_progress(void *context, const char *probe, double share, double left_s,
                          size_t narrow, size_t n) {
  (void)narrow, (void)n;
  hk_screen_progress("hocket %s: calibrating, %.0f %%, about %.0f s left; %s",
                     (const char *)context, 100 * share, left_s, probe);
}

/* Stored under a name of its own: it does not replace a full calibration. */
static hk_status calibrate(const hk_args *args, const char *command, hk_store *store, double days,
                           hk_node_profile *profile, hk_error *err) {
  const bool watched = !args->quiet && isatty(STDERR_FILENO);
  char name[64], context[64];
  snprintf(name, sizeof name, "this-node-%.16s-quick", profile->here.backend);
  snprintf(context, sizeof context, "%s", command);
  hk_calibrate_options options = {
      .stand = {.first_device = (int)args->device, .gpus = 1, .host_bytes = args->memory},
      .name = name,
      .version = HK_BUILD,
      .quick = true,
      .replace = true,
      .budget_s = args->budget,
      .progress = watched ? show_progress : NULL,
      .context = context,
  };
  HK_TRY(find_backend(args, &options.stand.ops, err));
  HK_TRY(hk_lock_calibration(hk_store_name(store), command, args->quiet, err));
  options.stop = hk_interrupt_catch();
  if (!args->quiet)
    fprintf(stderr,
            "hocket %s: no profile of this node is younger than %g days: calibrating '%s', which "
            "takes about a minute\n",
            command, days, name);
  hk_calibration made = {0};
  hk_status status = hk_calibrate(store, &options, &made, err);
  if (watched) hk_screen_progress_end();
  if (status == HK_OK && made.campaign.interrupted)
    status = hk_fail(err, HK_NO, "interrupted while calibrating");
  hk_calibration_free(&made);
  HK_TRY(status);
  return hk_profiles_document(store, name, &profile->document, err);
}

/* -- All of it --------------------------------------------------------------------------------- */

hk_status hk_node_profile_load(const hk_args *args, const char *command, hk_store *store,
                               hk_node_profile *profile, hk_error *err) {
  *profile = (hk_node_profile){0};
  const double days = args->given & HK_OPTION(MAX_AGE) ? args->max_age : HK_PROFILE_DAYS;
  HK_TRY(take_fingerprint(args, &profile->here, err));
  if (args->machine != NULL)
    HK_TRY(take_named(args, command, profile, err));
  else
    HK_TRY(take_newest(store, days, profile, err));
  if (profile->document == NULL) HK_TRY(calibrate(args, command, store, days, profile, err));
  HK_TRY(hk_machine_from_json(profile->document, &profile->machine, err));
  HK_TRY(hk_setup_change(args, &profile->machine, err));
  if (args->n_sets == 0) return HK_OK;
  cJSON_Delete(profile->document);
  profile->document = cJSON_Duplicate(profile->machine.document, true);
  return profile->document ? HK_OK : hk_fail_memory(err, sizeof(cJSON), "a profile");
}

void hk_node_profile_free(hk_node_profile *profile) {
  hk_machine_free(&profile->machine);
  cJSON_Delete(profile->document);
  *profile = (hk_node_profile){0};
}
