/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket machine list | show */
#include <stdio.h>

#include "cli/command.h"
#include "cli/emit.h"
#include "cli/explain.h"
#include "cli/list.h"
#include "cli/table.h"
#include "core/json.h"
#include "core/names.h"

/* -- list ------------------------------------------------------------------------------------ */

static void put_machine(const hk_machine *machine, cJSON *entry, bool *ok) {
  hk_put_string(entry, "name", machine->name, ok);
  hk_put_number(entry, "gpus", machine->gpus.value, ok);
  hk_put_string(entry, "description", machine->description, ok);
}

static void add_row(const hk_machine *machine, hk_table *table) {
  hk_table_row(table);
  hk_table_cell(table, "%s", machine->name);
  hk_table_cell(table, "%.0f", machine->gpus.value);
  hk_table_cell(table, "%s", machine->description);
}

static hk_status add(const char *name, hk_table *table, cJSON *entry, bool *ok, hk_error *err) {
  hk_machine machine = {0};
  HK_TRY(hk_machine_load(name, &machine, err));
  if (entry) put_machine(&machine, entry, ok);
  if (table) add_row(&machine, table);
  hk_machine_free(&machine);
  return HK_OK;
}

static hk_status list(const hk_args *args, hk_error *err) {
  static const hk_column columns[] = {
      {"name", HK_LEFT}, {"GPUs", HK_RIGHT}, {"description", HK_LEFT}};
  static const hk_listing listing = {"machines", "hocket.machine_list/1", columns, 3, add};
  return hk_list_presets(args, &listing, err);
}

/* -- show ------------------------------------------------------------------------------------ */

static hk_status print_document(const hk_machine *machine, hk_error *err) {
  cJSON *document = hk_machine_to_json(machine);
  return hk_emit_print(document, document != NULL, err);
}

static hk_status show(const hk_args *args, hk_error *err) {
  hk_machine machine = {0};
  hk_status status = hk_machine_load(args->operands[0], &machine, err);
  if (status == HK_OK && args->json) status = print_document(&machine, err);
  if (status == HK_OK && !args->json) {
    printf("%s: %s\n\n", machine.name, machine.description);
    status = hk_explain_text(&machine, err);
  }
  hk_machine_free(&machine);
  return status;
}

const hk_command hk_command_machine_list = {
    .name = "machine list",
    .summary = "Lists the machine profiles that ship with hocket",
    .usage = "[--json]",
    .details = "A profile can also be given as a FILE wherever --machine is.",
    .example = "hocket machine list",
    .options = HK_OPTION(JSON),
    .run = list,
};

const hk_command hk_command_machine_show = {
    .name = "machine show",
    .summary = "Shows every quantity of a machine profile and where it came from",
    .usage = "NAME|FILE [--json]",
    .details =
        "Origins: measured, fitted, data sheet, default. With --json it prints the profile\n"
        "as a document that --machine reads back.",
    .example = "hocket machine show polaris-a100-4x40gb",
    .options = HK_OPTION(JSON),
    .least_operands = 1,
    .most_operands = 1,
    .run = show,
};
