/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/sweep_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"
#include "sim/sweep.h"

/* -- Loading ----------------------------------------------------------------------------------- */

static hk_status read_row(hk_store *store, sqlite3_stmt *s, const hk_sweep_spec *spec,
                          hk_sweep_fit *fit, hk_error *err) {
  const char *schedule;
  const double world = sqlite3_column_double(s, 8);
  *fit = (hk_sweep_fit){.id = sqlite3_column_int64(s, 0),
                        .tokens = sqlite3_column_int64(s, 1),
                        .offload = sqlite3_column_int64(s, 2) != 0,
                        .iteration_ms = sqlite3_column_double(s, 3),
                        .tokens_per_s = sqlite3_column_double(s, 4),
                        .gpu_bytes = sqlite3_column_double(s, 5),
                        .host_bytes = sqlite3_column_double(s, 6),
                        .cost = NAN};
  if (sqlite3_column_type(s, 7) != SQLITE_NULL) fit->cost = sqlite3_column_double(s, 7);
  fit->gpu_s = 1e6 * world / fit->tokens_per_s;
  if (fit->id < 0 || fit->id >= spec->points)
    return hk_fail(err, HK_ENVIRONMENT, "the sweep '%s' is damaged: there is no point %lld",
                   hk_store_name(store), (long long)fit->id);
  fit->model = hk_sweep_model_of(spec, fit->id);
  HK_TRY(hk_store_text(store, s, 9, &schedule, err));
  fit->schedule = strdup(schedule);
  return fit->schedule ? HK_OK : hk_fail_memory(err, strlen(schedule), "a sweep");
}

static hk_status read_rows(hk_store *store, sqlite3_stmt *s, const hk_sweep_spec *spec,
                           hk_sweep_rows *rows, hk_error *err) {
  size_t room = 0;
  rows->priced = true;
  for (bool row = true;;) {
    HK_TRY(hk_store_step(store, s, &row, err));
    if (!row) return HK_OK;
    HK_TRY(HK_GROW(rows->list, room, rows->n, "a sweep", err));
    HK_TRY(read_row(store, s, spec, &rows->list[rows->n], err));
    rows->priced &= !isnan(rows->list[rows->n++].cost);
  }
}

static hk_status count(hk_store *store, hk_sweep_rows *rows, hk_error *err) {
  sqlite3_stmt *s = NULL;
  bool row = false;
  hk_status status =
      hk_store_query(store, &s, err, "SELECT count(*), count(fits), sum(fits) FROM point", "");
  if (status == HK_OK) status = hk_store_step(store, s, &row, err);
  if (row) {
    rows->all = sqlite3_column_int64(s, 0);
    rows->not_possible = rows->all - sqlite3_column_int64(s, 1);
    rows->too_large = rows->all - rows->not_possible - sqlite3_column_int64(s, 2);
  }
  hk_store_finish(s);
  return status;
}

hk_status hk_sweep_rows_load(hk_store *store, const hk_sweep_spec *spec, hk_sweep_rows *rows,
                             hk_error *err) {
  sqlite3_stmt *s = NULL;
  *rows = (hk_sweep_rows){0};
  HK_TRY(count(store, rows, err));
  hk_status status = hk_store_query(
      store, &s, err,
      "SELECT id, tokens, offload, iteration_ms, tokens_per_s, gpu_bytes, host_bytes, "
      "cost_per_mtok, world, schedule FROM point WHERE fits = 1 ORDER BY id",
      "");
  if (status == HK_OK) status = read_rows(store, s, spec, rows, err);
  hk_store_finish(s);
  return status;
}

void hk_sweep_rows_free(hk_sweep_rows *rows) {
  for (size_t i = 0; i < rows->n; i++) free(rows->list[i].schedule);
  free(rows->list);
  *rows = (hk_sweep_rows){0};
}

double hk_sweep_measure(const hk_sweep_rows *rows, const hk_sweep_fit *fit) {
  return rows->priced ? fit->cost : fit->gpu_s;
}

/* -- Compromises ------------------------------------------------------------------------------- */

hk_status hk_sweep_flags(const hk_sweep_rows *rows, bool **memory, bool **money, hk_error *err) {
  hk_sweep_row *list = malloc((rows->n + 1) * sizeof *list);
  *memory = calloc(rows->n + 1, sizeof **memory);
  *money = calloc(rows->n + 1, sizeof **money);
  hk_status status =
      list && *memory && *money ? HK_OK : hk_fail_memory(err, rows->n * sizeof *list, "a sweep");
  for (int against = 0; against < 2 && status == HK_OK; against++) {
    for (size_t i = 0; i < rows->n; i++) {
      const hk_sweep_fit *f = &rows->list[i];
      list[i] = (hk_sweep_row){f->id, f->model, f->tokens, f->iteration_ms,
                               against == 0 ? f->gpu_bytes : f->cost};
    }
    status = hk_sweep_pareto(list, rows->n, against == 0 ? *memory : *money, err);
  }
  free(list);
  if (status == HK_OK) return HK_OK;
  free(*memory);
  free(*money);
  *memory = *money = NULL;
  return status;
}

static hk_status mark(hk_store *store, const hk_sweep_rows *rows, const bool *memory,
                      const bool *money, hk_error *err) {
  sqlite3_stmt *s = NULL;
  HK_TRY(hk_store_query(store, &s, err,
                        "UPDATE point SET pareto_memory = ?, pareto_money = ? WHERE id = ?", ""));
  hk_status status = HK_OK;
  for (size_t i = 0; i < rows->n && status == HK_OK; i++) {
    bool row;
    sqlite3_bind_int(s, 1, memory[i]);
    if (isnan(rows->list[i].cost))
      sqlite3_bind_null(s, 2);
    else
      sqlite3_bind_int(s, 2, money[i]);
    sqlite3_bind_int64(s, 3, rows->list[i].id);
    status = hk_store_step(store, s, &row, err);
    sqlite3_reset(s);
  }
  hk_store_finish(s);
  return status;
}

hk_status hk_sweep_mark(hk_store *store, const hk_sweep_rows *rows, hk_error *err) {
  bool *memory, *money;
  HK_TRY(hk_sweep_flags(rows, &memory, &money, err));
  hk_status status = hk_store_begin(store, err);
  if (status == HK_OK) status = hk_store_end(store, mark(store, rows, memory, money, err), err);
  free(memory);
  free(money);
  return status;
}
