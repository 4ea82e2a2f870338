/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket machine export | import | delete: profiles of the store. */
#include <stdio.h>
#include <string.h>

#include "calib/profiles/profiles.h"
#include "cli/command.h"
#include "cli/lock.h"
#include "cli/print/emit.h"
#include "cli/setup.h"
#include "core/base/json.h"

static const char *name_of(const cJSON *document) {
  return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(document, "name"));
}

/* -- export ------------------------------------------------------------------------------------ */

static hk_status write_document(const hk_args *args, const cJSON *document, hk_error *err) {
  if (!args->output) return hk_json_print(document, stdout, err);
  HK_TRY(hk_json_save(document, args->output, err));
  printf("%s: profile '%s'\n", args->output, name_of(document));
  return HK_OK;
}

/* The profile under --set. It has another name, and none of the profile's residuals and
 * measurements, which are not the changed machine's. */
static hk_status change_document(const hk_args *args, cJSON **document, hk_error *err) {
  hk_machine machine = {0};
  if (!args->name)
    return hk_fail(err, HK_INPUT, "--set makes another machine: --name NAME is needed");
  HK_TRY(hk_profile_check_name(args->name, err));
  HK_TRY(hk_profiles_machine(args->operands[0], &machine, err));
  hk_status status = hk_setup_change(args, &machine, err);
  if (status == HK_OK) {
    snprintf(machine.name, sizeof machine.name, "%s", args->name);
    *document = hk_machine_to_json(&machine);
    if (!*document) status = hk_fail_memory(err, sizeof(cJSON), "a profile");
    cJSON_DeleteItemFromObjectCaseSensitive(*document, "residuals");
  }
  hk_machine_free(&machine);
  return status;
}

static hk_status export(const hk_args *args, hk_error *err) {
  cJSON *document = NULL;
  if (args->name && args->n_sets == 0)
    return hk_fail(err, HK_INPUT, "--name needs --set: it names the changed machine");
  HK_TRY(args->n_sets > 0 ? change_document(args, &document, err)
                          : hk_profiles_load_document(args->operands[0], &document, err));
  hk_status status = write_document(args, document, err);
  cJSON_Delete(document);
  return status;
}

/* -- import ------------------------------------------------------------------------------------ */

/* A name without a slash is a file here, too. */
static hk_status load_file(const char *file, cJSON **document, hk_error *err) {
  char path[4096];
  const int length = snprintf(path, sizeof path, "%s%s", strchr(file, '/') ? "" : "./", file);
  if (length < 0 || (size_t)length >= sizeof path)
    return hk_fail(err, HK_INPUT, "the path of the profile is too long: at most %zu characters",
                   sizeof path - 1);
  return hk_profiles_load_document(path, document, err);
}

/* Prints what was done, as a line or as JSON. */
static hk_status tell(const hk_args *args, const char *schema, const char *done, const char *name,
                      const hk_store *store, hk_error *err) {
  if (!args->json) {
    printf("%s '%s' %s %s\n", done, name, *done == 'i' ? "into" : "from", hk_store_name(store));
    return HK_OK;
  }
  bool ok = true;
  cJSON *root = hk_emit_begin(schema, &ok);
  hk_put_string(root, "name", name, &ok);
  hk_put_string(root, "store", hk_store_name(store), &ok);
  return hk_emit_print(root, ok, err);
}

static hk_status import_document(const hk_args *args, const cJSON *document, hk_error *err) {
  hk_store *store = NULL;
  char name[96];
  HK_TRY(hk_store_open(NULL, false, &store, err));
  hk_status status = hk_profiles_import(store, document, args->replace, name, sizeof name, err);
  if (status == HK_OK) status = tell(args, "hocket.machine_import/1", "imported", name, store, err);
  hk_store_close(store);
  return status;
}

static hk_status import(const hk_args *args, hk_error *err) {
  cJSON *document = NULL;
  HK_TRY(load_file(args->operands[0], &document, err));
  cJSON *name = cJSON_GetObjectItemCaseSensitive(document, "name");
  const bool named = args->name == NULL || cJSON_SetValuestring(name, args->name) != NULL;
  hk_status status = named ? import_document(args, document, err)
                           : hk_fail_memory(err, strlen(args->name), "a profile's name");
  cJSON_Delete(document);
  return status;
}

/* -- delete ------------------------------------------------------------------------------------ */

static hk_status fail_no_store(const char *name, hk_error *err) {
  char path[4096];
  HK_TRY(hk_store_path(path, sizeof path, err));
  return hk_fail(
      err, HK_INPUT,
      "there is no profile '%.95s' to delete: nothing has been stored yet ('%s' does not "
      "exist)",
      name, path);
}

static hk_status delete_unfinished(hk_store *store, const char *name, hk_error *err) {
  int64_t n = 0;
  HK_TRY(hk_calibration_runs_delete_unfinished(store, name, &n, err));
  if (n > 0) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "there is no unfinished calibration '%.95s' in the store '%s' ('hocket machine "
                 "list' shows them)",
                 name, hk_store_name(store));
}

static hk_status delete (const hk_args *args, hk_error *err) {
  const char *name = args->operands[0];
  hk_store *store = NULL;
  HK_TRY(hk_store_open(NULL, true, &store, err));
  if (!store) return fail_no_store(name, err);
  hk_status status = HK_OK;
  if (args->unfinished) { /* refused while a calibration adds samples */
    status = hk_lock_calibration(hk_store_name(store), "machine delete", true, err);
    if (status == HK_OK) status = delete_unfinished(store, name, err);
  } else {
    status = hk_profiles_delete(store, name, err);
  }
  if (status == HK_OK) status = tell(args, "hocket.machine_delete/1", "deleted", name, store, err);
  hk_store_close(store);
  return status;
}

const hk_command hk_command_machine_export = {
    .name = "machine export",
    .summary = "Writes a profile and its calibration as a JSON document",
    .usage = "NAME|FILE [--set KEY=VALUE --name NAME] [-o FILE]",
    .details =
        "The document (hocket.machine/1) goes to standard output or to FILE. --machine\n"
        "and 'hocket machine import' read it. With --set it is another machine, without\n"
        "the calibration and the residuals of the profile, and needs --name.",
    .example = "hocket machine export h200-16c --set dram*=2 --name fast-dram -o fast-dram.json",
    .output = "write it to a file",
    .dash = HK_DASH_SAME,
    .options = HK_OPTION(SET) | HK_OPTION(NAME) | HK_OPTION(OUTPUT),
    .least_operands = 1,
    .most_operands = 1,
    .run = export,
};

const hk_command hk_command_machine_import = {
    .name = "machine import",
    .summary = "Stores a profile from a file",
    .usage = "FILE [--name NAME] [--replace] [--json]",
    .details =
        "From then on --machine finds it by NAME, or else by the name in the file. A\n"
        "profile that ships must not have that name. --replace is needed if a profile of\n"
        "that name is stored.",
    .example = "hocket machine import this-node.json",
    .options = HK_OPTION(NAME) | HK_OPTION(REPLACE) | HK_OPTION(JSON),
    .least_operands = 1,
    .most_operands = 1,
    .run = import,
};

const hk_command hk_command_machine_delete = {
    .name = "machine delete",
    .summary = "Deletes a stored profile and the samples behind it",
    .usage = "[--unfinished] NAME [--json]",
    .details =
        "Deletes without a question; 'hocket machine export' makes a copy first. Profiles\n"
        "that ship with hocket cannot be deleted. With --unfinished it deletes\n"
        "calibrations of that name that were begun and not finished ('hocket machine\n"
        "list' shows them).",
    .example = "hocket machine delete this-node",
    .options = HK_OPTION(UNFINISHED) | HK_OPTION(JSON),
    .least_operands = 1,
    .most_operands = 1,
    .run = delete,
};
