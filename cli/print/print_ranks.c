/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Tables and JSON of several ranks' iteration. */
#include "cli/print/print_ranks.h"

#include <math.h>
#include <stdio.h>

#include "cli/print/emit.h"
#include "cli/print/print_comparison.h"
#include "cli/print/table.h"

/* -- Rows -------------------------------------------------------------------------------------- */

hk_pair hk_rank_iteration(const hk_rank_validation *rank, int unused) {
  (void)unused;
  return rank->validation.comparison.makespan;
}

static hk_pair phase_of(const hk_rank_validation *rank, int phase) {
  return rank->validation.comparison.phases[phase];
}

static hk_pair kind_of(const hk_rank_validation *rank, int kind) {
  return rank->validation.comparison.kinds[kind].total;
}

static hk_pair forward_wait_of(const hk_rank_validation *rank, int unused) {
  (void)unused;
  return rank->validation.forward_wait;
}

/* Ranks that do the same are simulated as one, which waits for no other. */
static hk_pair rank_wait_of(const hk_rank_validation *rank, int unused) {
  (void)unused;
  return hk_pair_of(0, rank->waits);
}

typedef struct {
  const char *name;
  hk_pair_finder *of;
  int which;
} row;

static bool is_present(const hk_ranks_validation *v, const row *r) {
  for (size_t i = 0; i < v->n; i++) {
    const hk_pair pair = r->of(&v->ranks[i], r->which);
    if (pair.predicted != 0 || pair.measured != 0) return true;
  }
  return false;
}

/* Calls `use` for each row that has anything. */
static void each_row(const hk_ranks_validation *v,
                     void (*use)(const hk_ranks_validation *, const row *, void *), void *with) {
  row r = {"iteration", hk_rank_iteration, 0};
  use(v, &r, with);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    char name[40];
    snprintf(name, sizeof name, "phase %s", hk_phase_name((hk_phase)p));
    r = (row){name, phase_of, p};
    if (is_present(v, &r)) use(v, &r, with);
  }
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    r = (row){hk_op_kind_name((hk_op_kind)k), kind_of, k};
    if (is_present(v, &r)) use(v, &r, with);
  }
  r = (row){"forward wait", forward_wait_of, 0};
  use(v, &r, with);
  r = (row){"wait for ranks", rank_wait_of, 0};
  use(v, &r, with);
}

/* -- Text -------------------------------------------------------------------------------------- */

void hk_print_ranks_heading(const hk_ranks_validation *v) {
  const hk_training_validation *first = &v->ranks[0].validation;
  const hk_pair worst = hk_rank_iteration(&v->ranks[hk_ranks_worst(v, hk_rank_iteration, 0)], 0);
  hk_ns least = first->comparison.makespan.measured, most = least, late = 0;
  for (size_t r = 0; r < v->n; r++) {
    const hk_ns measured = v->ranks[r].validation.comparison.makespan.measured;
    least = hk_min(least, measured);
    most = hk_max(most, measured);
    late = hk_max(late, v->ranks[r].late < 0 ? -v->ranks[r].late : v->ranks[r].late);
  }
  printf("iteration: predicted %.3f ms, measured %.3f to %.3f ms, error %+.1f %%\n",
         hk_ms(worst.predicted), hk_ms(least), hk_ms(most), worst.error_pct);
  printf(
      "step %lld of %zu ranks, the median of the first rank's %zu; it ends within %.3f ms on "
      "all\n",
      (long long)first->step, v->n, first->n_periods, hk_ms(late));
}

static void add_row(const hk_ranks_validation *v, const row *r, void *with) {
  hk_table *table = with;
  const hk_pair worst = r->of(&v->ranks[hk_ranks_worst(v, r->of, r->which)], r->which);
  hk_table_row(table, "%s\t%.3f", r->name, hk_ms(worst.predicted));
  for (size_t i = 0; i < v->n; i++)
    hk_table_cell(table, "%.3f", hk_ms(r->of(&v->ranks[i], r->which).measured));
  if (isnan(worst.error_pct) || worst.predicted == 0)
    hk_table_cell(table, "-");
  else
    hk_table_cell(table, "%+.1f %%", worst.error_pct);
}

hk_status hk_print_ranks_table(const hk_ranks_validation *v, hk_error *err) {
  hk_column columns[HK_MOST_GPUS + 3] = {{"ms", HK_LEFT}, {"predicted", HK_RIGHT}};
  char names[HK_MOST_GPUS][32];
  for (size_t r = 0; r < v->n; r++) {
    snprintf(names[r], sizeof names[r], "rank %zu", r);
    /* Of more ranks than a screen has room for the last ones are left out. */
    columns[2 + r] = (hk_column){names[r], r < 2 ? HK_RIGHT : HK_RIGHT | HK_SPARE((int)r)};
  }
  columns[2 + v->n] = (hk_column){"error, worst", HK_RIGHT};
  _Static_assert(HK_COLUMNS(columns) > 0, "a table takes so many columns");
  hk_table table = hk_table_begin(columns, v->n + 3);
  each_row(v, add_row, &table);
  return hk_table_print(&table, err);
}

/* -- JSON -------------------------------------------------------------------------------------- */

typedef struct {
  cJSON *root;
  bool *ok;
} sink;

static void put_row(const hk_ranks_validation *v, const row *r, void *with) {
  const sink *to = with;
  const size_t worst = hk_ranks_worst(v, r->of, r->which);
  const hk_pair pair = r->of(&v->ranks[worst], r->which);
  char key[48];
  snprintf(key, sizeof key, "%s", r->name);
  for (char *c = key; *c != '\0'; c++)
    if (*c == ' ') *c = '_';
  cJSON *object = hk_put_object(to->root, key, to->ok);
  hk_put_number(object, "rank", (double)worst, to->ok);
  hk_put_number(object, "predicted_ms", hk_ms(pair.predicted), to->ok);
  hk_put_number(object, "measured_ms", hk_ms(pair.measured), to->ok);
}

void hk_put_ranks_table(const hk_ranks_validation *v, cJSON *root, bool *ok) {
  sink to = {root, ok};
  each_row(v, put_row, &to);
}

/* -- The trace --------------------------------------------------------------------------------- */

hk_status hk_write_ranks_trace(const hk_args *args, const char *command,
                               const hk_ranks_validation *v, hk_error *err) {
  hk_timeline timelines[HK_MOST_GPUS + 1] = {0};
  hk_chrome_layer layers[HK_MOST_GPUS + 1] = {{"predicted", &timelines[0]}};
  char names[HK_MOST_GPUS][48];
  if (!args->timeline) return HK_OK;
  for (size_t r = 0; r < v->n; r++) {
    snprintf(names[r], sizeof names[r], "measured, rank %zu", r);
    layers[r + 1] = (hk_chrome_layer){names[r], &timelines[r + 1]};
  }
  hk_status status = hk_ranks_timelines(v, timelines, err);
  if (status == HK_OK)
    status = hk_write_layers(args, command, &v->ranks[0].validation.graph, layers, v->n + 1, err);
  for (size_t i = 0; i <= v->n; i++) hk_timeline_free(&timelines[i]);
  return status;
}
