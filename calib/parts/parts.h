/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Machine profiles from parts: a node that nobody has measured, described by its GPU, links, host
 * memory and CPU. Data sheets are in share/parts, one file a kind of part. What machines reach of
 * their data sheets is in share/parts/transfer.json, from calibrated and fitted profiles. A
 * quantity of the new profile is the product of both, and its source names both.
 *
 * Example: PCIe 4 x16 has 31.5 GB/s, calibrated nodes reach 0.877 of their link, so
 * pcie.h2d_bytes_per_s = 27.6 GB/s. */
#ifndef HK_CALIB_PARTS_PARTS_H
#define HK_CALIB_PARTS_PARTS_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "core/base/error.h"
#include "core/machine/machine.h"

typedef enum {
  HK_PART_GPU,
  HK_PART_CPU,
  HK_PART_MEMORY,
  HK_PART_LINK,
  HK_PART_KINDS,
} hk_part_kind;

const char *hk_part_kind_name(hk_part_kind kind); /* "gpu", "cpu", "memory", "link" */
/* HK_INPUT: no such kind; the message lists them. */
hk_status hk_part_kind_of(const char *name, hk_part_kind *kind, hk_error *err);

/* The tables of share/parts. Each part says how its figures were checked ("checked"). */
typedef struct {
  cJSON *tables[HK_PART_KINDS];
  cJSON *transfer;
} hk_parts;

/* Free with hk_parts_free, safe on zeroed tables. Errors name the file. */
hk_status hk_parts_load(hk_parts *parts, hk_error *err);
void hk_parts_free(hk_parts *parts);

/* The parts of a kind: an object, part by part, each an object with the members that the table's
 * "fields" explain. */
const cJSON *hk_parts_of(const hk_parts *parts, hk_part_kind kind);
/* A part by name or alias; its `string` is the name. HK_INPUT suggests the nearest name. */
hk_status hk_part_find(const hk_parts *parts, hk_part_kind kind, const char *name,
                       const cJSON **part, hk_error *err);

/* Whether the document that the part's "sheet" names, or a copy or a quotation of it, was compared
 * with this member of the part. */
bool hk_part_checked(const cJSON *part, const char *member);
/* The part's sheet, and ", not checked" if the member was not compared with it. */
const char *hk_part_cite(const cJSON *part, const char *member, char *buffer, size_t size);

/* What the user states. Zero or NULL: not given. */
typedef struct {
  const char *name;        /* of the profile */
  const char *description; /* NULL: made from the parts */
  const char *gpu;         /* a GPU of the table */
  int gpus;                /* of the node; 0: 1 */
  const char *pcie;        /* "4x16": generation x lanes, or a chip-to-chip link by name */
  const char *dram;        /* "ddr4-3200x8": type x channels of the node */
  const char *cpu;         /* "epyc-7543p", "xeon-8480c:2": CPU and sockets */
  int cores;           /* physical cores of the node; fewer than the CPUs have: part of a host */
  double memory_bytes; /* host memory of the node; 0: 32 GiB a channel */
  const char *nvlink;  /* "yes", "no"; NULL: as the GPU has it, without optional bridges */
  const char *network; /* "400x8": Gb/s of a port x ports */
  int numa;            /* memory domains of the node; 0: one a socket */
  const char *without; /* transfer nothing from this machine: to test the transfer on it */
} hk_parts_request;

#define HK_PARTS_NOTES 8

/* Remarks on a combination, such as a link that is slower than the GPU's. */
typedef struct {
  char lines[HK_PARTS_NOTES][240];
  int n;
} hk_parts_notes;

/* Makes a profile. Every quantity has value, origin, source and, if it is transferred, its relative
 * standard error. HK_INPUT: a part is unknown; options are missing (all are named at once); parts
 * do not fit together. Free the machine with hk_machine_free. */
hk_status hk_parts_machine(const hk_parts *parts, const hk_parts_request *request,
                           hk_machine *machine, hk_parts_notes *notes, hk_error *err);

#endif
