/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Prints rows of sim/others.h. */
#include "cli/others.h"

#include <math.h>
#include <stdio.h>

#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"

void hk_others_print_answer(const hk_other rows[HK_OTHER_COUNT], const hk_ranking *ranking) {
  const hk_other_kind best = hk_others_fastest(rows);
  char times[64] = "";
  if (best == HK_OTHER_COUNT) {
    hk_print_text(0, 2, "others: none fits");
    return;
  }
  if (ranking->n_fit > 0)
    snprintf(
        times, sizeof times, ", %.2f x the time of the best schedule",
        (double)rows[best].iteration_ns / (double)hk_max(1, ranking->forecasts[0].iteration_ns));
  hk_print_text(0, 2, "others: %s, %.1f ms/iteration%s", hk_other_infos[best].name,
                hk_ms(rows[best].iteration_ns), times);
}

/* "-2.3 %", or "unknown". */
static void error_cell(hk_table *table, const hk_other_info *info) {
  if (isnan(info->error_pct))
    hk_table_cell(table, "unknown");
  else
    hk_table_cell(table, "%+.1f %%", info->error_pct);
}

static void lacks_cell(hk_table *table, const hk_other *row) {
  if (!row->runs)
    hk_table_cell(table, "on one GPU only");
  else if (row->gpu_short > 0)
    hk_table_cell(table, "lacks %.1f GiB of GPU", hk_gib(row->gpu_short));
  else if (row->host_short > 0)
    hk_table_cell(table, "lacks %.1f GiB of host", hk_gib(row->host_short));
  else
    hk_table_cell(table, "yes");
}

hk_status hk_others_print(const hk_other rows[HK_OTHER_COUNT], bool quiet, hk_error *err) {
  static const hk_column columns[] = {{"instead of hocket", HK_WRAP},
                                      {"forward ms", HK_RIGHT | HK_SPARE(4)},
                                      {"backward ms", HK_RIGHT | HK_SPARE(3)},
                                      {"update ms", HK_RIGHT | HK_SPARE(1)},
                                      {"iter ms", HK_RIGHT},
                                      {"tokens/s", HK_RIGHT | HK_SPARE(2)},
                                      {"GPU GiB", HK_RIGHT},
                                      {"host GiB", HK_RIGHT},
                                      {"known error", HK_RIGHT},
                                      {"fits", HK_WRAP},
                                      {"evidence", HK_LEFT | HK_SPARE(6)},
                                      {"read", HK_LEFT | HK_SPARE(5)}};
  hk_table table = HK_TABLE(columns);
  for (int i = 0; i < HK_OTHER_COUNT; i++) {
    const hk_other *row = &rows[i];
    const hk_other_info *info = &hk_other_infos[i];
    hk_table_row(&table, "%s", info->name);
    if (row->runs) {
      hk_table_cell(&table, "%.1f\t%.1f\t%.1f\t%.1f\t%.0f", hk_ms(row->forward_ns),
                    hk_ms(row->backward_ns), hk_ms(row->update_ns), hk_ms(row->iteration_ns),
                    row->tokens_per_s);
      hk_table_cell(&table, "%.1f\t%.1f", hk_gib(row->gpu), hk_gib(row->host));
    } else {
      hk_table_cell(&table, "-\t-\t-\t-\t-\t-\t-");
    }
    error_cell(&table, info);
    lacks_cell(&table, row);
    hk_table_cell(&table, "%s\t%s", info->evidence, info->source);
  }
  HK_TRY(hk_table_print(&table, err));
  if (quiet) return HK_OK;
  hk_print_text(0, 2,
                "known error: of a predicted iteration beside a measured or published one "
                "(--wide: evidence), perhaps on another machine");
  for (int i = 0; i < HK_OTHER_COUNT; i++)
    hk_print_text(0, 2, "%s: %s", hk_other_infos[i].name, hk_other_infos[i].note);
  return HK_OK;
}

void hk_others_json(const hk_other rows[HK_OTHER_COUNT], cJSON *root, bool *ok) {
  cJSON *array = hk_put_array(root, "others", ok);
  for (int i = 0; i < HK_OTHER_COUNT; i++) {
    const hk_other *row = &rows[i];
    const hk_other_info *info = &hk_other_infos[i];
    cJSON *element = hk_put_element(array, ok);
    hk_put_string(element, "name", info->name, ok);
    hk_put_string(element, "source", info->source, ok);
    hk_put_string(element, "note", info->note, ok);
    hk_put_string(element, "evidence", info->evidence, ok);
    hk_put_item(element, "known_error_pct",
                isnan(info->error_pct) ? cJSON_CreateNull() : cJSON_CreateNumber(info->error_pct),
                ok);
    hk_put_bool(element, "feasible", hk_other_fits(row), ok);
    if (!row->runs) continue;
    hk_put_number(element, "fwd_ms", hk_ms(row->forward_ns), ok);
    hk_put_number(element, "bwd_ms", hk_ms(row->backward_ns), ok);
    hk_put_number(element, "update_ms", hk_ms(row->update_ns), ok);
    hk_put_number(element, "iteration_ms", hk_ms(row->iteration_ns), ok);
    hk_put_number(element, "tokens_per_s", row->tokens_per_s, ok);
    hk_put_number(element, "gpu_peak_bytes", (double)row->gpu, ok);
    hk_put_number(element, "host_peak_bytes", (double)row->host, ok);
    hk_put_number(element, "gpu_short_bytes", (double)row->gpu_short, ok);
    hk_put_number(element, "host_short_bytes", (double)row->host_short, ok);
  }
}
