/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/print/print_flush.h"

#include "cli/print/emit.h"
#include "cli/print/screen.h"

void hk_print_flush_unknown(const hk_run_flush_unknown *u) {
  if (u->rows == 0) return;
  hk_print_text(
      0, 2,
      "%zu rows without flush_async are taken as asynchronous: bwd_ms %.1f %%, iter_ms %.1f %%; as "
      "blocking: bwd_ms %.1f %%, iter_ms %.1f %%",
      u->rows, u->asynchronous[HK_RUN_bwd], u->asynchronous[HK_RUN_iter], u->blocking[HK_RUN_bwd],
      u->blocking[HK_RUN_iter]);
}

void hk_put_run_medians(const double *medians, int n, const char *key, cJSON *object, bool *ok) {
  cJSON *member = hk_put_object(object, key, ok);
  for (int f = 0; f < n; f++)
    hk_put_number(member, hk_run_figure_column((hk_run_figure)f), medians[f], ok);
}

void hk_put_flush_unknown(const hk_run_flush_unknown *unknown, cJSON *root, bool *ok) {
  cJSON *object = hk_put_object(root, "flush_unknown", ok);
  hk_put_number(object, "rows", (double)unknown->rows, ok);
  if (unknown->rows == 0) return;
  hk_put_run_medians(unknown->asynchronous, HK_RUN_TIMES_END, "median_abs_error_pct_if_async",
                     object, ok);
  hk_put_run_medians(unknown->blocking, HK_RUN_TIMES_END, "median_abs_error_pct_if_blocking",
                     object, ok);
}
