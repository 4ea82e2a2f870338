/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket machine new | parts: profiles of machines that nobody has measured, from data sheets. */
#include <stdio.h>
#include <string.h>

#include "calib/parts/parts.h"
#include "calib/profiles/profiles.h"
#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/residuals.h"
#include "core/base/json.h"

/* -- new --------------------------------------------------------------------------------------- */

static hk_parts_request request_of(const hk_args *args) {
  return (hk_parts_request){.name = args->operands[0],
                            .description = args->description,
                            .gpu = args->gpu,
                            .gpus = (int)args->gpus,
                            .pcie = args->pcie,
                            .dram = args->dram,
                            .cpu = args->cpu,
                            .cores = (int)args->cores,
                            .memory_bytes = (double)args->memory,
                            .nvlink = args->nvlink,
                            .network = args->network,
                            .numa = (int)args->numa,
                            .without = args->without};
}

static hk_status store_profile(const hk_args *args, const cJSON *document, hk_error *err) {
  hk_store *store = NULL;
  char name[96];
  HK_TRY(hk_store_open(NULL, false, &store, err));
  hk_status status = hk_profiles_import(store, document, args->replace, name, sizeof name, err);
  if (status == HK_OK && !args->json) printf("stored '%s' in %s\n", name, hk_store_name(store));
  hk_store_close(store);
  return status;
}

static hk_status print_profile(const hk_args *args, const hk_machine *machine,
                               const hk_parts_notes *notes, hk_error *err) {
  hk_print_text(0, 0, "%s: %s", machine->name, machine->description);
  for (int i = 0; i < notes->n && !args->quiet; i++)
    hk_print_text(0, 2, "note: %s", notes->lines[i]);
  putchar('\n');
  HK_TRY(hk_print_residuals(machine->document, err));
  return hk_explain_text(machine, NULL, err);
}

/* The profile is written before anything is printed, so that a failure leaves no report. */
static hk_status answer(const hk_args *args, const hk_machine *machine, const hk_parts_notes *notes,
                        cJSON *document, hk_error *err) {
  if (args->output) HK_TRY(hk_json_save(document, args->output, err));
  if (args->store) HK_TRY(store_profile(args, document, err));
  if (args->json) return hk_json_print(document, stdout, err);
  if (!args->output) return print_profile(args, machine, notes, err);
  printf("%s: profile '%s'\n", args->output, machine->name);
  for (int i = 0; i < notes->n && !args->quiet; i++)
    hk_print_text(0, 2, "note: %s", notes->lines[i]);
  return HK_OK;
}

static hk_status new_from(const hk_args *args, const hk_parts *parts, hk_error *err) {
  hk_machine machine = {0};
  hk_parts_notes notes = {0};
  const hk_parts_request request = request_of(args);
  HK_TRY(hk_parts_machine(parts, &request, &machine, &notes, err));
  cJSON *document = hk_machine_to_json(&machine);
  hk_status status = document ? answer(args, &machine, &notes, document, err)
                              : hk_fail_memory(err, sizeof(cJSON), "a machine profile");
  cJSON_Delete(document);
  hk_machine_free(&machine);
  return status;
}

static hk_status new_machine(const hk_args *args, hk_error *err) {
  hk_parts parts;
  HK_TRY(hk_parts_load(&parts, err));
  hk_status status = new_from(args, &parts, err);
  hk_parts_free(&parts);
  return status;
}

/* -- parts ------------------------------------------------------------------------------------- */

static hk_status parts_json(const hk_parts *parts, int first, int last, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.machine_parts/1", &ok);
  for (int kind = first; kind <= last; kind++)
    hk_put_item(root, hk_part_kind_name((hk_part_kind)kind),
                cJSON_Duplicate(hk_parts_of(parts, (hk_part_kind)kind), true), &ok);
  return hk_emit_print(root, ok, err);
}

static const char *rate_of(const cJSON *part, const char *key, const char *unit, char *buffer,
                           size_t size) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(part, key);
  if (!cJSON_IsNumber(item)) return "-";
  return hk_format_quantity(item->valuedouble, unit, 4, buffer, size);
}

static void gpu_row(hk_table *table, const cJSON *part) {
  char a[32], b[32], c[32];
  hk_table_cell(
      table, "%s %s\t%s\t%g GiB\t%s\t%s", rate_of(part, "matmul_flops_per_s", "F/s", a, sizeof a),
      hk_json_text_or(part, "type", "-"), rate_of(part, "memory_bytes_per_s", "B/s", b, sizeof b),
      hk_json_number_or(part, "memory_gib", 0), hk_json_text_or(part, "link", "-"),
      rate_of(part, "nvlink_bytes_per_s", "B/s", c, sizeof c));
}

static void cpu_row(hk_table *table, const cJSON *part) {
  hk_table_cell(table, "%g\t%g x %s\t%s\t%s", hk_json_number_or(part, "cores", 0),
                hk_json_number_or(part, "channels", 0), hk_json_text_or(part, "memory", "-"),
                hk_json_text_or(part, "link", "-"), hk_json_text_or(part, "isa", "-"));
}

/* "NVIDIA A40 data sheet (copy; not checked: ecc_share)". */
static const char *document_of(const cJSON *part, char *buffer, size_t size) {
  const char *way = hk_json_text_or(part, "checked", "-");
  const cJSON *member = NULL;
  size_t n = (size_t)snprintf(buffer, size, "%s (%s", hk_json_text_or(part, "sheet", "-"),
                              strcmp(way, "no") == 0 ? "not checked" : way);
  const char *before = "; not checked: ";
  cJSON_ArrayForEach(member, cJSON_GetObjectItemCaseSensitive(part, "unchecked")) {
    if (n < size) n += (size_t)snprintf(buffer + n, size - n, "%s%s", before, member->valuestring);
    before = ", ";
  }
  if (n < size) snprintf(buffer + n, size - n, ")");
  return buffer;
}

static hk_status parts_text(const hk_parts *parts, hk_part_kind kind, hk_error *err) {
  static const hk_column gpu[] = {{"gpu", HK_LEFT},        {"matrix products", HK_RIGHT},
                                  {"memory", HK_RIGHT},    {"size", HK_RIGHT},
                                  {"link", HK_LEFT},       {"NVLink", HK_RIGHT},
                                  {"data sheet", HK_BELOW}},
                         cpu[] = {{"cpu", HK_LEFT},     {"cores", HK_RIGHT},
                                  {"memory", HK_LEFT},  {"link", HK_LEFT},
                                  {"vectors", HK_LEFT}, {"data sheet", HK_BELOW}},
                         memory[] = {{"memory", HK_LEFT},
                                     {"channel", HK_RIGHT},
                                     {"standard", HK_BELOW}},
                         link[] = {{"link", HK_LEFT}, {"lane", HK_RIGHT}, {"standard", HK_BELOW}};
  static const struct {
    const hk_column *columns;
    size_t n;
  } layouts[HK_PART_KINDS] = {[HK_PART_GPU] = {gpu, sizeof gpu / sizeof *gpu},
                              [HK_PART_CPU] = {cpu, sizeof cpu / sizeof *cpu},
                              [HK_PART_MEMORY] = {memory, sizeof memory / sizeof *memory},
                              [HK_PART_LINK] = {link, sizeof link / sizeof *link}};
  hk_table table = hk_table_begin(layouts[kind].columns, layouts[kind].n);
  for (const cJSON *part = hk_parts_of(parts, kind)->child; part; part = part->next) {
    char rate[32], document[512];
    hk_table_row(&table, "%s", part->string);
    if (kind == HK_PART_GPU) gpu_row(&table, part);
    if (kind == HK_PART_CPU) cpu_row(&table, part);
    if (kind == HK_PART_MEMORY || kind == HK_PART_LINK)
      hk_table_cell(&table, "%s", rate_of(part, "bytes_per_s", "B/s", rate, sizeof rate));
    hk_table_cell(&table, "%s", document_of(part, document, sizeof document));
  }
  return hk_table_print(&table, err);
}

static hk_status list_parts(const hk_args *args, const hk_parts *parts, hk_error *err) {
  int first = 0, last = HK_PART_KINDS - 1;
  if (args->n_operands > 0) {
    hk_part_kind kind;
    HK_TRY(hk_part_kind_of(args->operands[0], &kind, err));
    first = last = (int)kind;
  }
  if (args->json) return parts_json(parts, first, last, err);
  for (int kind = first; kind <= last; kind++) {
    if (kind > first) putchar('\n');
    HK_TRY(parts_text(parts, (hk_part_kind)kind, err));
  }
  return HK_OK;
}

static hk_status show_parts(const hk_args *args, hk_error *err) {
  hk_parts parts;
  HK_TRY(hk_parts_load(&parts, err));
  hk_status status = list_parts(args, &parts, err);
  hk_parts_free(&parts);
  return status;
}

const hk_command hk_command_machine_new = {
    .name = "machine new",
    .summary = "Makes the profile of a machine from its parts",
    .usage = "NAME --gpu NAME (--cpu NAME | --dram TYPExCHANNELS --cores N) [OPTIONS]",
    .details =
        "Every quantity is a data sheet's figure times the share of it that calibrated\n"
        "machines reach. Its source names both; its error is the spread between\n"
        "machines. docs/machines.md says how far such profiles are off. Prints the\n"
        "profile, or writes it to FILE, which --machine reads, or stores it under NAME.\n"
        "The slowest link of GPU, slot and CPU counts, and a note says so.",
    .example =
        "hocket machine new desk --gpu a6000 --gpus 2 --pcie 4x16 --dram ddr4-3200x8 "
        "--cores 32 -o desk.json",
    .output = "write the profile to a file",
    .options = HK_OPTION(GPU) | HK_OPTION(GPUS) | HK_OPTION(PCIE) | HK_OPTION(DRAM) |
               HK_OPTION(CPU) | HK_OPTION(CORES) | HK_OPTION(MEMORY) | HK_OPTION(NVLINK) |
               HK_OPTION(NETWORK) | HK_OPTION(NUMA) | HK_OPTION(DESCRIPTION) | HK_OPTION(WITHOUT) |
               HK_OPTION(STORE) | HK_OPTION(REPLACE) | HK_OPTION(OUTPUT) | HK_OPTION(JSON) |
               HK_OPTION(WIDE) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 1,
    .run = new_machine,
};

const hk_command hk_command_machine_parts = {
    .name = "machine parts",
    .summary = "Lists the GPUs, CPUs, memory and links of 'machine new'",
    .usage = "[gpu|cpu|memory|link] [--wide] [--json]",
    .details =
        "Figures are those of data sheets; what machines reach of them is in\n"
        "share/parts/transfer.json. In parentheses: how the figures were compared with\n"
        "the data sheet (its own text, a copy of it, a quotation, a formula), and which\n"
        "were not. --json also has the address of what was read.",
    .example = "hocket machine parts gpu",
    .options = HK_OPTION(JSON) | HK_OPTION(WIDE),
    .most_operands = 1,
    .run = show_parts,
};
