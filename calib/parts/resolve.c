/* SPDX-License-Identifier: GPL-3.0-or-later */
/* From what the user states to the figures of the data sheets, and whether the parts fit. */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/parts/private.h"
#include "core/base/json.h"

#define GIB   1073741824.0
#define BOARD 8 /* GPUs on a board that a switch or their own links join; hosts have one or two */

void hk_parts_note(hk_parts_notes *notes, const char *format, ...) {
  if (notes->n == HK_PARTS_NOTES) return;
  va_list args;
  va_start(args, format);
  vsnprintf(notes->lines[notes->n++], sizeof notes->lines[0], format, args);
  va_end(args);
}

static void figure(hk_sheet_figure *out, double value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void figure(hk_sheet_figure *out, double value, const char *format, ...) {
  va_list args;
  va_start(args, format);
  out->value = value;
  vsnprintf(out->text, sizeof out->text, format, args);
  va_end(args);
}

/* Splits "TEXTxN" or "TEXT:N" at the last separator. False if N is not a number from 1 to most. */
static bool split(const char *typed, char separator, int most, char *text, size_t size, int *n) {
  const char *at = strrchr(typed, separator);
  if (!at || at == typed || !isdigit((unsigned char)at[1])) return false;
  char *end;
  const long value = strtol(at + 1, &end, 10);
  const size_t length = (size_t)(at - typed);
  if (*end || value < 1 || value > most || length >= size) return false;
  memcpy(text, typed, length);
  text[length] = 0;
  *n = (int)value;
  return true;
}

/* -- What is missing --------------------------------------------------------------------------- */

static hk_status check_complete(const hk_parts_request *r, hk_error *err) {
  char missing[400] = "";
  size_t length = 0;
#define MISSING(text)                                                           \
  length += (size_t)snprintf(missing + length, sizeof missing - length, "%s%s", \
                             length ? ", " : "", text)
  if (!r->gpu) MISSING("--gpu NAME ('hocket machine parts gpu' lists them)");
  if (!r->cpu && !r->dram) MISSING("--dram TYPExCHANNELS, such as ddr4-3200x8");
  if (!r->cpu && !r->cores) MISSING("--cores N");
#undef MISSING
  if (!length) return HK_OK;
  return hk_fail(err, HK_INPUT, "missing: %s%s", missing,
                 !r->cpu && (!r->dram || !r->cores)
                     ? "; --cpu NAME or --cpu NAME:SOCKETS gives memory and cores"
                     : "");
}

/* -- GPU --------------------------------------------------------------------------------------- */

static hk_status resolve_gpu(const cJSON *part, hk_node_parts *node, hk_error *err) {
  const char *type;
  char sheet[HK_TEXT_OF_PART];
  double flops = 0, hbm = 0, gib = 0, ecc = 0;
  HK_TRY(hk_json_string(part, "name", &node->gpu, err));
  if (cJSON_GetObjectItemCaseSensitive(part, "vendor"))
    HK_TRY(hk_json_string(part, "vendor", &node->vendor, err));
  HK_TRY(hk_json_string(part, "type", &type, err));
  HK_TRY(hk_json_double(part, "matmul_flops_per_s", 1e9, 1e18, &flops, err));
  HK_TRY(hk_json_double(part, "memory_bytes_per_s", 1e9, 1e15, &hbm, err));
  HK_TRY(hk_json_double(part, "memory_gib", 1, 1e4, &gib, err));
  HK_TRY(hk_json_double_or(part, "ecc_share", 0, 0.5, 0, &ecc, err));
  HK_TRY(hk_json_double_or(part, "multiprocessors", 1, 1e4, 0, &node->multiprocessors, err));
  figure(&node->peak, flops, "dense %s (%s)", type,
         hk_part_cite(part, "matmul_flops_per_s", sheet, sizeof sheet));
  figure(&node->hbm, hbm, "GPU memory (%s)",
         hk_part_cite(part, "memory_bytes_per_s", sheet, sizeof sheet));
  hk_part_cite(part, "memory_gib", sheet, sizeof sheet);
  if (ecc > 0)
    figure(&node->gpu_memory, gib * GIB * (1 - ecc), "%g GiB less 1/%g for ECC%s (%s)", gib,
           1 / ecc, hk_part_checked(part, "ecc_share") ? "" : " (share not checked)", sheet);
  else
    figure(&node->gpu_memory, gib * GIB, "%g GiB (%s)", gib, sheet);
  return HK_OK;
}

static hk_status resolve_nvlink(const hk_parts_request *r, const cJSON *part, hk_node_parts *node,
                                hk_parts_notes *notes, hk_error *err) {
  double rate = 0, most = 0;
  char sheet[HK_TEXT_OF_PART];
  bool optional;
  HK_TRY(hk_json_double_or(part, "nvlink_bytes_per_s", 1e6, 1e15, 0, &rate, err));
  HK_TRY(hk_json_double_or(part, "nvlink_gpus", 1, 1e4, 1, &most, err));
  HK_TRY(hk_json_bool_or(part, "nvlink_optional", false, &optional, err));
  const bool asked = r->nvlink && strcmp(r->nvlink, "yes") == 0;
  node->whole_board = rate > 0 && !optional && most >= BOARD && node->gpus >= BOARD;
  if (asked && rate == 0)
    return hk_fail(err, HK_INPUT, "--nvlink yes: the %s has no NVLink", node->gpu);
  if (asked && node->gpus > most)
    return hk_fail(err, HK_INPUT, "--nvlink yes: the bridge joins %g of these GPUs, not %d", most,
                   node->gpus);
  if (rate == 0 || (r->nvlink && !asked) || (optional && !asked)) {
    if (rate > 0 && optional && !r->nvlink && node->gpus > 1 && node->gpus <= most)
      hk_parts_note(notes, "GPUs without their NVLink bridge; --nvlink yes adds it");
    return HK_OK;
  }
  if (node->gpus > most) {
    hk_parts_note(notes, "NVLink joins %g of these GPUs, not %d: collectives cross PCIe", most,
                  node->gpus);
    return HK_OK;
  }
  figure(&node->nvlink, rate, "links between GPUs (%s)",
         hk_part_cite(part, "nvlink_bytes_per_s", sheet, sizeof sheet));
  return HK_OK;
}

/* -- Link -------------------------------------------------------------------------------------- */

typedef struct {
  double rate; /* bytes/s of one direction */
  char name[80], sheet[HK_TEXT_OF_PART];
} link_figure;

/* "4x16", "pcie-4" (all its lanes) or a chip-to-chip link. `what` names the option or the part. */
static hk_status resolve_link(const hk_parts *parts, const char *typed, const char *what,
                              link_figure *out, hk_error *err) {
  char name[64];
  int lanes = 0;
  double lane = 0, most = 0;
  const cJSON *part;
  if (split(typed, 'x', 64, name + 5, sizeof name - 5, &lanes) && strlen(name + 5) == 1) {
    memcpy(name, "pcie-", 5);
  } else {
    lanes = 0;
    snprintf(name, sizeof name, "%s", typed);
  }
  if (hk_part_find(parts, HK_PART_LINK, name, &part, err) != HK_OK)
    return hk_fail_prefix(err, "%s '%.40s', expected GENERATIONxLANES, such as 4x16", what, typed);
  HK_TRY(hk_json_double(part, "bytes_per_s", 1e6, 1e15, &lane, err));
  HK_TRY(hk_json_double(part, "lanes", 1, 64, &most, err));
  hk_part_cite(part, "bytes_per_s", out->sheet, sizeof out->sheet);
  if (lanes > most || (lanes & (lanes - 1)))
    return hk_fail(err, HK_INPUT, "%s '%.40s': a link has 1, 2, 4, 8 or 16 lanes, not %d", what,
                   typed, lanes);
  const double used = lanes ? lanes : most;
  out->rate = lane * used;
  if (most > 1)
    snprintf(out->name, sizeof out->name, "PCIe %s x%g", part->string + 5, used);
  else
    snprintf(out->name, sizeof out->name, "%s", part->string);
  return HK_OK;
}

/* The slowest of the GPU's link, the CPU's and the one stated. A chip-to-chip link needs no slot of
 * the CPU. */
static hk_status resolve_links(const hk_parts *parts, const hk_parts_request *r, const cJSON *gpu,
                               const cJSON *cpu, hk_node_parts *node, hk_parts_notes *notes,
                               hk_error *err) {
  const char *text;
  link_figure own = {0}, other = {0}, least;
  HK_TRY(hk_json_string(gpu, "link", &text, err));
  HK_TRY(resolve_link(parts, text, "link of the GPU", &own, err));
  least = own;
  if (r->pcie) {
    HK_TRY(resolve_link(parts, r->pcie, "--pcie", &other, err));
    if (other.rate < least.rate) least = other;
    if (other.rate != own.rate)
      hk_parts_note(notes, "the slot has %s, the GPU %s: %s counts", other.name, own.name,
                    least.name);
  }
  if (cpu && strncmp(least.name, "PCIe", 4) == 0) {
    HK_TRY(hk_json_string(cpu, "link", &text, err));
    HK_TRY(resolve_link(parts, text, "link of the CPU", &other, err));
    if (other.rate < least.rate) {
      least = other;
      hk_parts_note(notes, "the CPU has %s, the GPU %s: %s counts", other.name, own.name,
                    other.name);
    }
  }
  const bool from_gpu = strcmp(least.name, own.name) == 0 && !r->pcie;
  figure(&node->link, least.rate, "%s (%s)%s", least.name, least.sheet,
         from_gpu && !hk_part_checked(gpu, "link") ? "; the GPU's link is not checked" : "");
  return HK_OK;
}

/* -- CPU and memory ---------------------------------------------------------------------------- */

/* A part of a host lies on as few sockets as its cores need, and uses the memory of these; with
 * --numa, on as many as it states. --dram states the memory itself. */
static void leave_sockets(const hk_parts_request *r, hk_node_parts *node, double cores_of_socket,
                          hk_parts_notes *notes) {
  const int needed = (int)ceil(node->cores / cores_of_socket);
  const int used = r->numa > needed ? r->numa : needed;
  if (!node->part_of_host || r->dram || used >= node->sockets) return;
  hk_parts_note(notes,
                "%d of the host's %d sockets count%s, with %s memory: %d cores fit there. If "
                "they are spread over more, --numa says over how many",
                used, node->sockets, used == 1 ? "s" : "", used == 1 ? "its" : "their",
                node->cores);
  node->sockets = used;
}

static hk_status resolve_cpu(const hk_parts *parts, const hk_parts_request *r, const cJSON **part,
                             hk_node_parts *node, hk_parts_notes *notes, hk_error *err) {
  char name[80], sheet[HK_TEXT_OF_PART];
  const char *full, *isa;
  double cores = 0;
  node->sockets = 1;
  if (!split(r->cpu, ':', 16, name, sizeof name, &node->sockets))
    snprintf(name, sizeof name, "%s", r->cpu);
  HK_TRY(hk_part_find(parts, HK_PART_CPU, name, part, err));
  HK_TRY(hk_json_string(*part, "name", &full, err));
  HK_TRY(hk_json_string(*part, "isa", &isa, err));
  HK_TRY(hk_json_double(*part, "cores", 1, 4096, &cores, err));
  const double of_socket = cores;
  cores *= node->sockets;
  if (r->cores > cores)
    return hk_fail(err, HK_INPUT, "--cores %d: %d x %s has %g cores", r->cores, node->sockets, full,
                   cores);
  const bool fewer = r->cores && r->cores < cores;
  node->part_of_host = fewer && !node->whole_board;
  node->cores = r->cores ? r->cores : (int)cores;
  node->host_cores = (int)cores;
  figure(&node->cpu, node->cores, "%s%d x %s, %g cores, %s (%s)", fewer ? "a part of " : "",
         node->sockets, full, cores, isa, hk_part_cite(*part, "cores", sheet, sizeof sheet));
  leave_sockets(r, node, of_socket, notes);
  return HK_OK;
}

static bool memory_checked(const cJSON *cpu) {
  return hk_part_checked(cpu, "memory") && hk_part_checked(cpu, "channels");
}

static hk_status resolve_dram(const hk_parts *parts, const hk_parts_request *r, const cJSON *cpu,
                              hk_node_parts *node, hk_parts_notes *notes, hk_error *err) {
  char type[80] = "", sheet[HK_TEXT_OF_PART];
  const char *fastest = "";
  double rate = 0, most = 0, limit = 0;
  const cJSON *part, *cpu_memory;
  if (r->dram && !split(r->dram, 'x', 1024, type, sizeof type, &node->channels))
    return hk_fail(err, HK_INPUT, "--dram '%.60s': expected TYPExCHANNELS, such as ddr4-3200x8",
                   r->dram);
  if (cpu) {
    HK_TRY(hk_json_string(cpu, "memory", &fastest, err));
    HK_TRY(hk_json_double(cpu, "channels", 1, 64, &most, err));
    most *= node->sockets;
    if (!r->dram) {
      snprintf(type, sizeof type, "%s", fastest);
      node->channels = (int)most;
    } else if (node->channels > most) {
      return hk_fail(err, HK_INPUT, "--dram '%.60s': %s has %g memory channels, not %d", r->dram,
                     node->cpu.text, most, node->channels);
    }
  }
  if (hk_part_find(parts, HK_PART_MEMORY, type, &part, err) != HK_OK)
    return hk_fail_prefix(err, "--dram '%.60s'", r->dram ? r->dram : type);
  HK_TRY(hk_json_double(part, "bytes_per_s", 1e6, 1e12, &rate, err));
  if (cpu) {
    if (hk_part_find(parts, HK_PART_MEMORY, fastest, &cpu_memory, err) != HK_OK)
      return hk_fail_prefix(err, "memory of the CPU");
    HK_TRY(hk_json_double(cpu_memory, "bytes_per_s", 1e6, 1e12, &limit, err));
    if (strncmp(fastest, part->string, 4) != 0)
      return hk_fail(err, HK_INPUT, "--dram '%.60s': this CPU takes %s", r->dram, fastest);
    if (rate > limit)
      hk_parts_note(notes, "%s is faster than the CPU's sheet (%s): overclocked", part->string,
                    fastest);
  }
  figure(&node->dram, rate * node->channels, "%d x %s (%s)%s", node->channels, part->string,
         hk_part_cite(part, "bytes_per_s", sheet, sizeof sheet),
         r->dram || memory_checked(cpu) ? "" : "; the CPU's memory is not checked");
  return HK_OK;
}

static void resolve_memory(const hk_parts_request *r, hk_node_parts *node) {
  if (r->memory_bytes > 0)
    figure(&node->memory, r->memory_bytes, "as stated");
  else
    figure(&node->memory, 32 * GIB * node->channels, "not stated: 32 GiB a channel");
}

static hk_status resolve_network(const hk_parts_request *r, hk_node_parts *node, hk_error *err) {
  char rate[32];
  int ports = 1;
  char *end;
  if (!r->network) return HK_OK;
  if (!split(r->network, 'x', 64, rate, sizeof rate, &ports))
    snprintf(rate, sizeof rate, "%s", r->network);
  const double gigabits = strtod(rate, &end);
  if (*end || end == rate || !(gigabits >= 0.1 && gigabits <= 1e5))
    return hk_fail(err, HK_INPUT,
                   "--network '%.40s': expected Gb/s, or Gb/s of a port x ports, such "
                   "as 400x8",
                   r->network);
  figure(&node->network, gigabits * ports / 8 * 1e9, "%d x %g Gb/s", ports, gigabits);
  return HK_OK;
}

hk_status hk_parts_resolve(const hk_parts *parts, const hk_parts_request *r, hk_node_parts *node,
                           hk_parts_notes *notes, hk_error *err) {
  const cJSON *gpu, *cpu = NULL;
  *node = (hk_node_parts){.gpus = r->gpus ? r->gpus : 1, .cores = r->cores, .sockets = 1};
  notes->n = 0;
  HK_TRY(check_complete(r, err));
  if (r->nvlink && strcmp(r->nvlink, "yes") != 0 && strcmp(r->nvlink, "no") != 0)
    return hk_fail(err, HK_INPUT, "--nvlink '%.40s': expected yes or no", r->nvlink);
  if (hk_part_find(parts, HK_PART_GPU, r->gpu, &gpu, err) != HK_OK)
    return hk_fail_prefix(err, "--gpu");
  HK_TRY(resolve_gpu(gpu, node, err));
  HK_TRY(resolve_nvlink(r, gpu, node, notes, err));
  if (r->cpu && resolve_cpu(parts, r, &cpu, node, notes, err) != HK_OK)
    return hk_fail_prefix(err, "--cpu");
  if (!r->cpu) figure(&node->cpu, node->cores, "as stated");
  HK_TRY(resolve_dram(parts, r, cpu, node, notes, err));
  HK_TRY(resolve_links(parts, r, gpu, cpu, node, notes, err));
  resolve_memory(r, node);
  HK_TRY(resolve_network(r, node, err));
  node->numa = r->numa ? r->numa : node->sockets;
  if (node->part_of_host)
    hk_parts_note(notes,
                  "%d of the host's %d cores: a part of a host, whose neighbours use the same "
                  "memory. If it has none, state --dram, --cores and --numa instead of --cpu",
                  node->cores, node->host_cores);
  else if (node->cores < node->host_cores)
    hk_parts_note(notes,
                  "%d of the host's %d cores, but all %d GPUs of its board: it has no neighbours "
                  "and all of the host's memory bandwidth",
                  node->cores, node->host_cores, node->gpus);
  return HK_OK;
}
