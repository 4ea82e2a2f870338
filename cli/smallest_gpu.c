/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/smallest_gpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"

#define USABLE   0.985
#define RESERVED 1.5e9
#define NAMED    3

/* Sets *gib to 0 for a GPU without bf16. */
static hk_status read_gpu(const cJSON *gpu, double *gib, double *usable, hk_error *err) {
  const char *type;
  double ecc;
  HK_TRY(hk_json_string(gpu, "type", &type, err));
  HK_TRY(hk_json_double(gpu, "memory_gib", 1, 1e4, gib, err));
  HK_TRY(hk_json_double_or(gpu, "ecc_share", 0, 0.5, 0, &ecc, err));
  *usable = *gib * (double)HK_GIB * (1 - ecc) * USABLE - RESERVED;
  if (strcmp(type, "bf16") != 0) *gib = 0;
  return HK_OK;
}

/* Adds a name to those of the same size; a smaller GPU replaces them. */
static void consider(hk_smallest_gpu *smallest, const char *name, double gib, int *named) {
  if (smallest->gib > 0 && gib > smallest->gib) return;
  if (gib < smallest->gib || smallest->gib == 0) {
    *smallest = (hk_smallest_gpu){.gib = gib};
    *named = 0;
  }
  const size_t used = strlen(smallest->names);
  if ((*named)++ < NAMED)
    snprintf(smallest->names + used, sizeof smallest->names - used, "%s%s", used > 0 ? ", " : "",
             name);
  else if (*named == NAMED + 1)
    snprintf(smallest->names + used, sizeof smallest->names - used, ", ...");
}

hk_status hk_smallest_gpu_find(const hk_parts *parts, hk_bytes peak, hk_smallest_gpu *smallest,
                               hk_error *err) {
  const cJSON *gpu;
  int named = 0;
  *smallest = (hk_smallest_gpu){.gib = 0};
  cJSON_ArrayForEach(gpu, hk_parts_of(parts, HK_PART_GPU)) {
    double gib, usable;
    HK_TRY(read_gpu(gpu, &gib, &usable, err));
    if (gib > 0 && usable >= (double)peak) consider(smallest, gpu->string, gib, &named);
  }
  return HK_OK;
}

const char *hk_smallest_gpu_text(const hk_smallest_gpu *smallest, char *buffer, size_t size) {
  if (smallest->gib > 0)
    snprintf(buffer, size, "%g GB (%s)", smallest->gib, smallest->names);
  else
    snprintf(buffer, size, "none");
  return buffer;
}
