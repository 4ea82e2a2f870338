/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Walks the list of quantities of core/machine.h, which is the only place that names them. */
#include "cli/explain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/emit.h"
#include "cli/table.h"

/* "55 GB/s", "5.5 GP/s", "5.00 us", "36.0 GiB", "0.5": rates in powers of ten, as vendors and
 * probes state them, to the digits that the profile gives. */
static const char *format_value(double value, const char *unit, char *buffer, size_t size) {
  if (strcmp(unit, "ns") == 0) return hk_format_ns((hk_ns)llround(value), buffer, size);
  if (strcmp(unit, "B") == 0) return hk_format_bytes((hk_bytes)llround(value), buffer, size);
  if (strcmp(unit, "1") == 0) {
    snprintf(buffer, size, "%.6g", value);
    return buffer;
  }
  static const char prefixes[] = " kMGTPE";
  size_t prefix = 0;
  for (; value >= 999.9995 && prefix + 2 < sizeof prefixes; prefix++) value /= 1000;
  snprintf(buffer, size, "%.6g %.*s%s", value, prefix > 0, prefixes + prefix, unit);
  return buffer;
}

hk_status hk_explain_text(const hk_machine *machine, hk_error *err) {
  static const hk_column columns[] = {{"quantity", HK_LEFT},
                                      {"value", HK_RIGHT},
                                      {"origin", HK_LEFT},
                                      {"meaning", HK_LEFT},
                                      {"source", HK_LEFT}};
  hk_table table;
  hk_table_begin(&table, columns, 5);
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity *quantity = hk_machine_quantity_const(machine, &list[i]);
    char value[32];
    hk_table_row(&table);
    hk_table_cell(&table, "%s", list[i].key);
    hk_table_cell(&table, "%s", format_value(quantity->value, list[i].unit, value, sizeof value));
    hk_table_cell(&table, "%s", hk_origin_name(quantity->origin));
    hk_table_cell(&table, "%s", list[i].meaning);
    hk_table_cell(&table, "%s", quantity->source);
  }
  return hk_table_print(&table, err);
}

void hk_explain_json(const hk_machine *machine, cJSON *object, bool *ok) {
  cJSON *quantities = hk_put_object(object, "explain", ok);
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity *quantity = hk_machine_quantity_const(machine, &list[i]);
    cJSON *entry = hk_put_object(quantities, list[i].key, ok);
    hk_put_number(entry, "value", quantity->value, ok);
    hk_put_string(entry, "unit", list[i].unit, ok);
    hk_put_string(entry, "origin", hk_origin_name(quantity->origin), ok);
    hk_put_string(entry, "source", quantity->source, ok);
  }
}
