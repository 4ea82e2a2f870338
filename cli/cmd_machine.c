/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket machine list | show */
#include <stdio.h>

#include "cli/command.h"
#include "cli/emit.h"
#include "cli/explain.h"
#include "cli/table.h"
#include "core/json.h"
#include "core/names.h"

/* -- list ------------------------------------------------------------------------------------ */

static void put_machine(const hk_machine *machine, cJSON *array, bool *ok) {
  cJSON *entry = hk_put_element(array, ok);
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

/* Loads each profile once, into whichever of `table` and `array` is given. */
static hk_status list_machines(hk_table *table, cJSON *array, bool *ok, hk_error *err) {
  char **names = NULL;
  size_t n = 0;
  HK_TRY(hk_share_list("machines", &names, &n, err));
  hk_status status = HK_OK;
  for (size_t i = 0; i < n && status == HK_OK; i++) {
    hk_machine machine = {0};
    status = hk_machine_load(names[i], &machine, err);
    if (status == HK_OK && array) put_machine(&machine, array, ok);
    if (status == HK_OK && table) add_row(&machine, table);
    hk_machine_free(&machine);
  }
  hk_names_free(names, n);
  return status;
}

static hk_status list_json(hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.machine_list/1", &ok);
  hk_status status = list_machines(NULL, hk_put_array(root, "machines", &ok), &ok, err);
  if (status == HK_OK) return hk_emit_print(root, ok, err);
  cJSON_Delete(root);
  return status;
}

static hk_status list(const hk_args *args, hk_error *err) {
  if (args->json) return list_json(err);
  static const hk_column columns[] = {
      {"name", HK_LEFT}, {"GPUs", HK_RIGHT}, {"description", HK_LEFT}};
  hk_table table;
  hk_table_begin(&table, columns, 3);
  hk_status status = list_machines(&table, NULL, NULL, err);
  if (status == HK_OK) return hk_table_print(&table, err);
  hk_table_drop(&table);
  return status;
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
