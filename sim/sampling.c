/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Errors of quantities, draws, and varied machines. */
#include "sim/sampling.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/base/splitmix.h"

/* -- Errors ------------------------------------------------------------------------------------ */

static const char *const names[] = {[HK_ERROR_EXACT] = "exact",
                                    [HK_ERROR_STATED] = "stated",
                                    [HK_ERROR_SCATTER] = "scatter",
                                    [HK_ERROR_UNKNOWN] = "unknown"};

const char *hk_error_kind_name(hk_error_kind kind) {
  return names[kind];
}

/* Counts and sizes, and what no simulation uses. */
static bool is_count(const hk_quantity_info *info) {
  return strcmp(info->unit, "B") == 0 || strncmp(info->key, "node.", 5) == 0 ||
         strncmp(info->key, "nvme.", 5) == 0;
}

static bool says_no_effect(const hk_quantity_info *info, const hk_quantity *quantity) {
  if (info->offset == offsetof(hk_machine, gpu_flops)) return true; /* see sampling.h */
  return quantity->value <= info->least || quantity->value >= info->most;
}

/* see sampling.h. */
static double scatter_of(const hk_quantity_info *info, hk_origin origin) {
  const bool sheet = origin == HK_ORIGIN_DATA_SHEET;
  if (info->offset == offsetof(hk_machine, layer_launch)) return 0.64;
  if (strcmp(info->unit, "ns") == 0) return 1.1;
  if (strcmp(info->unit, "1") == 0) return 0.3;
  return sheet ? 0.3 : 0.4;
}

hk_error_kind hk_error_of(const hk_quantity_info *info, const hk_quantity *quantity,
                          double *error) {
  const hk_origin origin = quantity->origin;
  *error = 0;
  if (is_count(info)) return HK_ERROR_EXACT;
  if (quantity->error > 0) {
    *error = quantity->error;
    return HK_ERROR_STATED;
  }
  if (origin == HK_ORIGIN_SET || quantity->value == 0) return HK_ERROR_EXACT;
  if (origin == HK_ORIGIN_FITTED || origin == HK_ORIGIN_MEASURED) return HK_ERROR_UNKNOWN;
  if (says_no_effect(info, quantity)) return HK_ERROR_EXACT;
  *error = scatter_of(info, origin);
  return HK_ERROR_SCATTER;
}

/* -- Draws ------------------------------------------------------------------------------------- */

/* FNV-1a. */
static uint64_t hash(uint64_t h, const char *text, size_t length) {
  for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
  return h;
}

uint64_t hk_error_seed(const hk_quantity_info *info, const hk_quantity *quantity) {
  const uint64_t begin = 0xcbf29ce484222325u;
  if (quantity->origin == HK_ORIGIN_MEASURED || quantity->origin == HK_ORIGIN_FITTED)
    return hash(begin, info->key, strlen(info->key));
  const char *origin = hk_origin_name(quantity->origin);
  const char *kind = strcmp(info->unit, "ns") == 0  ? "time"
                     : strcmp(info->unit, "1") == 0 ? "fraction"
                                                    : "rate";
  const uint64_t h = hash(begin, info->key, strcspn(info->key, "."));
  return hash(hash(h, origin, strlen(origin)), kind, strlen(kind));
}

/* Medians of the upper half's parts: the values below which a standard normal variable is with
 * probability (12.5 + i) / 24. */
static const double upper[HK_DRAWS / 2] = {0.052245180, 0.157310685, 0.264146977, 0.374095410,
                                           0.488776411, 0.610294610, 0.741594044, 0.887146559,
                                           1.054472452, 1.258161561, 1.534120544, 2.036834132};

void hk_latin_hypercube(uint64_t seed, double z[HK_DRAWS]) {
  for (int i = 0; i < HK_DRAWS / 2; i++) {
    z[i] = upper[i];
    z[HK_DRAWS - 1 - i] = -upper[i];
  }
  for (int i = HK_DRAWS - 1; i > 0; i--) {
    const int other = (int)(hk_splitmix_next(&seed) % (uint64_t)(i + 1));
    const double kept = z[i];
    z[i] = z[other];
    z[other] = kept;
  }
}

/* -- Changes ----------------------------------------------------------------------------------- */

#define CORRELATION 0.9 /* see sampling.h */

/* Offsets in hk_machine of a kernel's rate in the limit of many threads and of its thread scale. */
static const struct {
  size_t rate, scale;
} curves[] = {
    {offsetof(hk_machine, cpu_adamw), offsetof(hk_machine, cpu_adamw_threads)},
    {offsetof(hk_machine, cpu_adamw_fp32), offsetof(hk_machine, cpu_adamw_fp32_threads)},
    {offsetof(hk_machine, cpu_adamw_8bit), offsetof(hk_machine, cpu_adamw_8bit_threads)},
    {offsetof(hk_machine, cpu_adamw_8bit_split),
     offsetof(hk_machine, cpu_adamw_8bit_split_threads)},
    {offsetof(hk_machine, cpu_unscale), offsetof(hk_machine, cpu_unscale_threads)},
    {offsetof(hk_machine, cpu_cast), offsetof(hk_machine, cpu_cast_threads)},
};

static bool is_fitted(const hk_machine *machine, const hk_quantity_info *info) {
  const hk_quantity *quantity = hk_machine_quantity_const(machine, info);
  return quantity->origin == HK_ORIGIN_FITTED && quantity->error > 0;
}

/* Index of the rate that was fitted together with thread scale i; -1: i is something else. */
static int rate_of(const hk_machine *machine, size_t i) {
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t c = 0; c < sizeof curves / sizeof *curves; c++) {
    if (info[i].offset != curves[c].scale || !is_fitted(machine, &info[i])) continue;
    for (size_t r = 0; r < n; r++)
      if (info[r].offset == curves[c].rate && is_fitted(machine, &info[r])) return (int)r;
  }
  return -1;
}

void hk_error_changes(const hk_machine *machine, const double *z, double *change) {
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    double error;
    hk_error_of(&info[i], hk_machine_quantity_const(machine, &info[i]), &error);
    const int rate = rate_of(machine, i);
    change[i] = error * z[i];
    if (rate >= 0)
      change[i] = error * (CORRELATION * z[rate] + sqrt(1 - CORRELATION * CORRELATION) * z[i]);
  }
}

/* -- Machines ---------------------------------------------------------------------------------- */

void hk_machine_perturb(const hk_machine *machine, const double *change, hk_machine *varied) {
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  *varied = *machine;
  for (size_t i = 0; i < n; i++) {
    hk_quantity *quantity = hk_machine_quantity(varied, &info[i]);
    if (change[i] != 0)
      quantity->value = fmin(fmax(quantity->value * exp(change[i]), info[i].least), info[i].most);
  }
  const double before = machine->launch_beside_update.value;
  varied->launch_change = before > 0 ? varied->launch_beside_update.value / before - 1 : 0;
  /* Two passes: a limit depends on other quantities, which the first pass may lower. */
  for (int pass = 0; pass < 2; pass++) {
    for (size_t i = 0; i < n; i++) {
      hk_quantity *quantity = hk_machine_quantity(varied, &info[i]);
      quantity->value = fmin(quantity->value, hk_machine_limit(varied, quantity));
    }
  }
}
