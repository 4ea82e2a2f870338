/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/residuals.h"

#include <stdio.h>

#include "cli/print/table.h"
#include "core/base/json.h"

static void percent_cell(hk_table *table, const cJSON *entry, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(entry, key);
  if (cJSON_IsNumber(item))
    hk_table_cell(table, "%.1f %%", item->valuedouble);
  else
    hk_table_cell(table, "-");
}

hk_status hk_print_residuals(const cJSON *document, hk_error *err) {
  static const hk_column columns[] = {{"compared with", HK_WRAP},
                                      {"figure", HK_LEFT},
                                      {"median error", HK_RIGHT},
                                      {"worst", HK_RIGHT},
                                      {"", HK_LEFT}};
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(document, "residuals"), *entry = NULL;
  int n = 0;
  hk_table table = HK_TABLE(columns);
  cJSON_ArrayForEach(entry, list) {
    const char *against = hk_json_text_or(entry, "against", NULL),
               *figure = hk_json_text_or(entry, "figure", NULL);
    if (!against || !cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(entry, "median_pct")))
      continue;
    hk_table_row(&table, "%s\t%s", against, figure ? figure : "-");
    percent_cell(&table, entry, "median_pct");
    percent_cell(&table, entry, "worst_pct");
    hk_table_cell(&table, "%s",
                  cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(entry, "held_out")) ? "held out"
                                                                                    : "in-sample");
    n++;
  }
  if (n == 0) {
    hk_table_drop(&table);
    return HK_OK;
  }
  HK_TRY(hk_table_print(&table, err));
  putchar('\n');
  return HK_OK;
}
