/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket machine list | show */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/profiles/profiles.h"
#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/residuals.h"
#include "cli/setup.h"
#include "core/base/names.h"

/* -- list ------------------------------------------------------------------------------------ */

/* Every name that --machine accepts. A shipped profile hides a stored one of its name. */
typedef struct {
  hk_profile_entry *entries;
  size_t n;
  hk_calibration_run *runs; /* calibrations that did not end */
  size_t n_runs;
} profile_list;

static hk_status read_stored(profile_list *list, hk_error *err) {
  hk_store *store = NULL;
  HK_TRY(hk_store_open(NULL, true, &store, err));
  if (!store) return HK_OK;
  hk_status status = hk_profiles_list(store, &list->entries, &list->n, err);
  if (status == HK_OK)
    status = hk_calibration_runs_list_unfinished(store, &list->runs, &list->n_runs, err);
  hk_store_close(store);
  return status;
}

static hk_status describe_shipped(const char *name, hk_profile_entry *entry, hk_error *err) {
  hk_machine machine = {0};
  HK_TRY(hk_machine_load(name, &machine, err));
  hk_calibration_summary summary;
  hk_calibration_summarise(hk_calibration_of(machine.document), &summary);
  *entry = (hk_profile_entry){.from = "ships",
                              .gpus = (int)machine.gpus.value,
                              .quick = summary.quick,
                              .accepted = summary.accepted,
                              .median_error_pct = summary.median_error_pct,
                              .p90_error_pct = summary.p90_error_pct};
  snprintf(entry->name, sizeof entry->name, "%s", name);
  snprintf(entry->description, sizeof entry->description, "%s", machine.description);
  snprintf(entry->made, sizeof entry->made, "%s", summary.made);
  hk_machine_free(&machine);
  return HK_OK;
}

/* The entry of the stored profile of that name (stored before one shipped), else the next free one.
 */
static hk_profile_entry *place_of(const profile_list *list, size_t stored, const char *name) {
  for (size_t i = 0; i < stored; i++)
    if (strcmp(list->entries[i].name, name) == 0) return &list->entries[i];
  return &list->entries[list->n];
}

static hk_status add_shipped(profile_list *list, char *const *names, size_t n, hk_error *err) {
  const size_t stored = list->n, bytes = (stored + n) * sizeof *list->entries;
  hk_profile_entry *grown = realloc(list->entries, bytes);
  if (!grown) return hk_fail_memory(err, bytes, "a list of profiles");
  list->entries = grown;
  for (size_t i = 0; i < n; i++) {
    hk_profile_entry *entry = place_of(list, stored, names[i]);
    HK_TRY(describe_shipped(names[i], entry, err));
    if (entry == &list->entries[list->n]) list->n++;
  }
  return HK_OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const hk_profile_entry *)a)->name, ((const hk_profile_entry *)b)->name);
}

/* The caller frees list->entries and list->runs, also on failure. */
static hk_status read_profiles(profile_list *list, hk_error *err) {
  *list = (profile_list){0};
  char **names = NULL;
  size_t n = 0;
  HK_TRY(read_stored(list, err));
  HK_TRY(hk_share_list("machines", &names, &n, err));
  hk_status status = n > 0 ? add_shipped(list, names, n, err) : HK_OK;
  hk_names_free(names, n);
  if (list->n > 0) qsort(list->entries, list->n, sizeof *list->entries, by_name);
  return status;
}

static hk_status list_json(const profile_list *list, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.machine_list/1", &ok);
  cJSON *array = hk_put_array(root, "machines", &ok);
  for (size_t i = 0; i < list->n; i++) {
    const hk_profile_entry *e = &list->entries[i];
    cJSON *object = hk_put_element(array, &ok);
    hk_put_string(object, "name", e->name, &ok);
    hk_put_number(object, "gpus", e->gpus, &ok);
    hk_put_string(object, "description", e->description, &ok);
    hk_put_string(object, "from", e->from, &ok);
    hk_put_string(object, "made", e->made, &ok);
    hk_put_bool(object, "quick", e->quick, &ok);
    hk_put_bool(object, "accepted", e->accepted, &ok);
    hk_put_number(object, "median_abs_error_pct", e->median_error_pct, &ok);
    hk_put_number(object, "p90_abs_error_pct", e->p90_error_pct, &ok);
  }
  cJSON *unfinished = hk_put_array(root, "unfinished_calibrations", &ok);
  for (size_t i = 0; i < list->n_runs; i++) {
    cJSON *object = hk_put_element(unfinished, &ok);
    hk_put_string(object, "name", list->runs[i].name, &ok);
    hk_put_string(object, "started", list->runs[i].started, &ok);
    hk_put_bool(object, "quick", list->runs[i].quick, &ok);
    hk_put_number(object, "samples", (double)list->runs[i].samples, &ok);
  }
  return hk_emit_print(root, ok, err);
}

static hk_status print_unfinished(const profile_list *list, hk_error *err) {
  static const hk_column columns[] = {
      {"unfinished calibration", HK_WRAP}, {"started", HK_LEFT}, {"samples", HK_RIGHT}};
  if (list->n_runs == 0) return HK_OK;
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < list->n_runs; i++) {
    hk_table_row(&table, "%s\t%s\t%zu", list->runs[i].name, list->runs[i].started,
                 list->runs[i].samples);
  }
  putchar('\n');
  HK_TRY(hk_table_print(&table, err));
  hk_print_text(0, 0,
                "'hocket calibrate --resume --name NAME' continues one, 'hocket machine delete "
                "--unfinished NAME' deletes it");
  return HK_OK;
}

static hk_status list_text(const profile_list *list, hk_error *err) {
  static const hk_column columns[] = {{"name", HK_LEFT},     {"GPUs", HK_RIGHT},
                                      {"from", HK_LEFT},     {"made", HK_LEFT},
                                      {"accuracy", HK_LEFT}, {"description", HK_BELOW}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < list->n; i++) {
    const hk_profile_entry *e = &list->entries[i];
    char accuracy[48];
    hk_table_row(&table, "%s\t%d\t%s\t%.10s", e->name, e->gpus, e->from,
                 *e->made ? e->made : "-"); /* the day */
    hk_table_cell(
        &table, "%s\t%s",
        hk_format_accuracy(e->median_error_pct, e->quick, e->accepted, accuracy, sizeof accuracy),
        e->description);
  }
  HK_TRY(hk_table_print(&table, err));
  return print_unfinished(list, err);
}

static hk_status list(const hk_args *args, hk_error *err) {
  profile_list profiles;
  hk_status status = read_profiles(&profiles, err);
  if (status == HK_OK) status = args->json ? list_json(&profiles, err) : list_text(&profiles, err);
  free(profiles.entries);
  free(profiles.runs);
  return status;
}

/* -- show ------------------------------------------------------------------------------------ */

/* Prints every quantity, defaults included. */
static hk_status show_json(const hk_machine *machine, hk_error *err) {
  const cJSON *calibration = hk_calibration_of(machine->document);
  cJSON *document = hk_machine_to_json(machine);
  bool ok = document != NULL;
  if (ok && calibration && !hk_calibration_of(document))
    hk_put_item(document, "calibration", cJSON_Duplicate(calibration, true), &ok);
  return hk_emit_print(document, ok, err);
}

static hk_status show_text(const hk_machine *machine, hk_error *err) {
  const cJSON *calibration = hk_calibration_of(machine->document);
  hk_print_text(0, 0, "%s: %s", machine->name, machine->description);
  if (calibration) hk_print_calibration_summary(calibration);
  char keys[400];
  if (*hk_machine_unknown_keys(machine->document, keys, sizeof keys))
    hk_print_text(0, 2, "note: keys that are not used: %s", keys);
  putchar('\n');
  HK_TRY(hk_print_residuals(machine->document, err));
  return hk_explain_text(machine, NULL, err);
}

static hk_status show(const hk_args *args, hk_error *err) {
  hk_machine machine = {0};
  hk_status status = hk_profiles_machine(args->operands[0], &machine, err);
  if (status == HK_OK) status = hk_setup_change(args, &machine, err);
  if (status == HK_OK) status = args->json ? show_json(&machine, err) : show_text(&machine, err);
  hk_machine_free(&machine);
  return status;
}

const hk_command hk_command_machine_list = {
    .name = "machine list",
    .summary = "Lists the machine profiles: shipped, stored, unfinished",
    .usage = "[--wide] [--json]",
    .details =
        "From: 'ships' with hocket, 'calibrate' (measured on this machine) or 'import'.\n"
        "Accuracy: the median error with which the simulator reproduces the calibration's\n"
        "own measurements.\n"
        "Wherever --machine is accepted, a FILE can be given instead. Profiles are stored\n"
        "in $HOCKET_STORE, by default ~/.local/share/hocket/store.db. Shipped names\n"
        "cannot be stored.",
    .example = "hocket machine list",
    .options = HK_OPTION(JSON) | HK_OPTION(WIDE),
    .run = list,
};

const hk_command hk_command_machine_show = {
    .name = "machine show",
    .summary = "Shows every quantity of a machine profile and its origin",
    .usage = "NAME|FILE [--set KEY=VALUE]... [--wide] [--json]",
    .details =
        "Origins: measured, fitted, data sheet, default; with --set also set (given) and\n"
        "derived (follows what is set). A calibrated profile also has 95 % intervals, the\n"
        "errors of the simulated probes, and a description of the machine. With --json it\n"
        "prints a document that --machine reads.",
    .example = "hocket machine show polaris-a100-4x40gb",
    .options = HK_OPTION(SET) | HK_OPTION(JSON) | HK_OPTION(WIDE),
    .least_operands = 1,
    .most_operands = 1,
    .run = show,
};
