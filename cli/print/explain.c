/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The quantities are listed in core/machine/machine.h. */
#include "cli/print/explain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/calibration.h"
#include "cli/print/emit.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "core/machine/machine_set.h"
#include "sim/uncertainty.h"

const char *hk_format_quantity(double value, const char *unit, int digits, char *buffer,
                               size_t size) {
  if (isnan(value)) {
    snprintf(buffer, size, "-");
    return buffer;
  }
  if (strcmp(unit, "ns") == 0) return hk_format_ns((hk_ns)llround(value), buffer, size);
  if (strcmp(unit, "B") == 0) return hk_format_bytes((hk_bytes)llround(value), buffer, size);
  if (strcmp(unit, "1") == 0) {
    snprintf(buffer, size, "%.*g", digits, value);
    return buffer;
  }
  static const char prefixes[] = " kMGTPE";
  size_t prefix = 0;
  for (; value >= 999.9995 && prefix + 2 < sizeof prefixes; prefix++) value /= 1000;
  snprintf(buffer, size, "%.*g %.*s%s", digits, value, prefix > 0, prefixes + prefix, unit);
  return buffer;
}

const char *hk_format_interval(double low, double high, const char *unit, char *buffer,
                               size_t size) {
  char a[32], b[32];
  if (!isfinite(low) || !isfinite(high)) {
    snprintf(buffer, size, "-");
  } else if (low == high) {
    snprintf(buffer, size, "exact");
  } else {
    hk_format_quantity(low, unit, 4, a, sizeof a);
    hk_format_quantity(high, unit, 4, b, sizeof b);
    char *of_a = strchr(a, ' '); /* the unit: printed once if both have the same */
    const char *of_b = strchr(b, ' ');
    if (of_a != NULL && of_b != NULL && strcmp(of_a, of_b) == 0) *of_a = '\0';
    snprintf(buffer, size, "%s to %s", a, b);
  }
  return buffer;
}

/* Adds a cell with the quantity's 95 % interval: that of the calibration or, without one or if
 * the value is not the profile's, value x exp(-1.96 error) to value x exp(1.96 error). */
static void interval_cell(hk_table *table, const hk_machine *machine, const hk_quantity_info *info,
                          const hk_quantity *quantity) {
  double low, high, before;
  char text[80];
  hk_calibration_interval(hk_calibration_of(machine->document), info->key, &low, &high);
  const bool changed = hk_machine_before_set(machine, info, &before) ||
                       quantity->value != hk_machine_quantity_const(machine, info)->value;
  if (changed || !isfinite(low) || !isfinite(high)) {
    low = quantity->error > 0 ? quantity->value * exp(-1.96 * quantity->error) : NAN;
    high =
        quantity->error > 0 ? fmin(quantity->value * exp(1.96 * quantity->error), info->most) : NAN;
  }
  hk_table_cell(table, "%s", hk_format_interval(low, high, info->unit, text, sizeof text));
}

/* Whether the profile says of any quantity how well it is known. */
static bool has_intervals(const hk_machine *machine) {
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++)
    if (hk_machine_quantity_const(machine, &list[i])->error > 0) return true;
  return hk_calibration_of(machine->document) != NULL;
}

/* -- Changes by --set -------------------------------------------------------------------------- */

/* The next quantity from *at on that is set or follows, with its value before; NULL: no more. */
static const hk_quantity_info *next_change(const hk_machine *machine, size_t *at, double *before) {
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  while (*at < n) {
    const hk_quantity_info *info = &list[(*at)++];
    if (hk_machine_before_set(machine, info, before)) return info;
  }
  return NULL;
}

void hk_explain_changes_text(const hk_machine *machine) {
  char line[1024] = "", was[32], is[32];
  size_t length = 0, at = 0;
  int follow = 0;
  double before;
  for (const hk_quantity_info *info; (info = next_change(machine, &at, &before));) {
    const hk_quantity *quantity = hk_machine_quantity_const(machine, info);
    if (quantity->origin == HK_ORIGIN_DERIVED) follow++;
    if (quantity->origin == HK_ORIGIN_DERIVED || length >= sizeof line) continue;
    length += (size_t)snprintf(line + length, sizeof line - length, "%s %s %s (was %s)",
                               length > 0 ? "," : "", info->key,
                               hk_format_quantity(quantity->value, info->unit, 4, is, sizeof is),
                               hk_format_quantity(before, info->unit, 4, was, sizeof was));
  }
  if (length == 0) return;
  char others[64] = "";
  if (follow > 0)
    snprintf(others, sizeof others, "; %d other quantit%s (--explain)", follow,
             follow == 1 ? "y follows" : "ies follow");
  hk_print_text(0, 0, "machine changed:%s%s", line, others);
}

void hk_explain_changes_json(const hk_machine *machine, cJSON *object, bool *ok) {
  cJSON *array = NULL;
  size_t at = 0;
  double before;
  for (const hk_quantity_info *info; (info = next_change(machine, &at, &before));) {
    const hk_quantity *quantity = hk_machine_quantity_const(machine, info);
    if (array == NULL) array = hk_put_array(object, "machine_changes", ok);
    cJSON *entry = hk_put_element(array, ok);
    hk_put_string(entry, "quantity", info->key, ok);
    hk_put_number(entry, "before", before, ok);
    hk_put_number(entry, "value", quantity->value, ok);
    hk_put_string(entry, "unit", info->unit, ok);
    hk_put_string(entry, "origin", hk_origin_name(quantity->origin), ok);
    hk_put_string(entry, "source", quantity->source, ok);
    if (quantity->error > 0) hk_put_number(entry, "error", quantity->error, ok);
  }
}

static hk_status print_changes(const hk_machine *machine, hk_error *err) {
  static const hk_column columns[] = {
      {"changed", HK_LEFT}, {"before", HK_RIGHT}, {"now", HK_RIGHT}, {"because", HK_WRAP}};
  size_t at = 0;
  double before;
  const hk_quantity_info *info = next_change(machine, &at, &before);
  if (!info) return HK_OK;
  hk_table table = HK_TABLE(columns);
  for (; info; info = next_change(machine, &at, &before)) {
    const hk_quantity *quantity = hk_machine_quantity_const(machine, info);
    char was[32], is[32];
    hk_table_row(&table, "%s\t%s\t%s\t%.*s", info->key,
                 hk_format_quantity(before, info->unit, 4, was, sizeof was),
                 hk_format_quantity(quantity->value, info->unit, 4, is, sizeof is),
                 (int)strcspn(quantity->source, ";"), quantity->source);
  }
  HK_TRY(hk_table_print(&table, err));
  putchar('\n');
  return HK_OK;
}

/* -- All quantities ---------------------------------------------------------------------------- */

/* The quantity that counts for the plan (NULL: none). */
static hk_quantity counting(const hk_machine *machine, const hk_plan *plan,
                            const hk_quantity_info *info) {
  const hk_quantity *quantity = hk_machine_quantity_const(machine, info);
  return plan != NULL && quantity == &machine->launch_beside_update ? hk_launches_of(machine, plan)
                                                                    : *quantity;
}

hk_status hk_explain_text(const hk_machine *machine, const hk_plan *plan, hk_error *err) {
  HK_TRY(print_changes(machine, err));
  static const hk_column plain[] = {{"quantity", HK_LEFT},
                                    {"value", HK_RIGHT},
                                    {"origin", HK_LEFT},
                                    {"meaning", HK_BELOW},
                                    {"source", HK_BELOW}};
  static const hk_column known[] = {{"quantity", HK_LEFT},      {"value", HK_RIGHT},
                                    {"95 % interval", HK_LEFT}, {"origin", HK_LEFT},
                                    {"meaning", HK_BELOW},      {"source", HK_BELOW}};
  const bool intervals = has_intervals(machine);
  hk_table table = hk_table_begin(intervals ? known : plain, intervals ? 6 : 5);
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity quantity = counting(machine, plan, &list[i]);
    char value[32];
    hk_table_row(&table, "%s\t%s", list[i].key,
                 hk_format_quantity(quantity.value, list[i].unit, 6, value, sizeof value));
    if (intervals) interval_cell(&table, machine, &list[i], &quantity);
    hk_table_cell(&table, "%s\t%s\t%s", hk_origin_name(quantity.origin), list[i].meaning,
                  quantity.source);
  }
  return hk_table_print(&table, err);
}

void hk_explain_json(const hk_machine *machine, const hk_plan *plan, cJSON *object, bool *ok) {
  cJSON *quantities = hk_put_object(object, "explain", ok);
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity quantity = counting(machine, plan, &list[i]);
    cJSON *entry = hk_put_object(quantities, list[i].key, ok);
    hk_put_number(entry, "value", quantity.value, ok);
    hk_put_string(entry, "unit", list[i].unit, ok);
    hk_put_string(entry, "origin", hk_origin_name(quantity.origin), ok);
    hk_put_string(entry, "source", quantity.source, ok);
    if (quantity.error > 0) hk_put_number(entry, "error", quantity.error, ok);
  }
}
