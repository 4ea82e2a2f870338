/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/sweep_query.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/price.h"
#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/sweep_point.h"
#include "sim/sweep.h"

#define MOST_ROWS 20 /* of a table without --wide */

typedef struct {
  const hk_args *args;
  const hk_sweep_spec *spec;
  const hk_sweep_rows *rows;
  cJSON *points; /* of --json; else NULL */
  bool ok;
} query;

/* -- Points ------------------------------------------------------------------------------------ */

static bool is_model(const hk_sweep_spec *spec, size_t a) {
  return a >= spec->n_machine && a < spec->n_machine + spec->n_model;
}

/* "machine h200-16c, micro-batch 4": the values of a point on axes that have several; `models`:
 * only those that choose the model, or only the others. */
static const char *tell(const hk_sweep_spec *spec, int64_t id, bool models, char *text,
                        size_t size) {
  size_t used = 0;
  *text = '\0';
  for (size_t a = 0; a < spec->n && used < size; a++) {
    const hk_sweep_axis *axis = &spec->axes[a];
    if (axis->n < 2 || is_model(spec, a) != models) continue;
    const char *value = axis->cells[hk_sweep_value(spec, a, id)].text;
    const bool named = models && axis->id == HK_OPT_MODEL;
    used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", used ? ", " : "",
                             named ? "" : axis->name, named ? "" : " ", value);
  }
  return text;
}

static const char *measure_name(const query *q) {
  return q->rows->priced ? "cost/Mtok" : "GPU s/Mtok";
}

/* The object of a row, after which `point` has more members to get. */
static cJSON *put_point(query *q, const hk_sweep_fit *f) {
  cJSON *point = hk_put_element(q->points, &q->ok);
  hk_put_number(point, "id", (double)f->id, &q->ok);
  cJSON *keys = hk_put_object(point, "keys", &q->ok);
  for (size_t a = 0; a < q->spec->n; a++) {
    const hk_sweep_axis *axis = &q->spec->axes[a];
    const hk_cell *cell = &axis->cells[hk_sweep_value(q->spec, a, f->id)];
    if (cell->null)
      hk_put_item(keys, axis->name, cJSON_CreateNull(), &q->ok);
    else if (axis->type == HK_CELL_TEXT)
      hk_put_string(keys, axis->name, cell->text, &q->ok);
    else
      hk_put_number(keys, axis->name,
                    axis->type == HK_CELL_REAL ? cell->real : (double)cell->integer, &q->ok);
  }
  hk_put_string(point, "schedule", f->schedule, &q->ok);
  hk_put_bool(point, "offload", f->offload, &q->ok);
  hk_put_number(point, "tokens", (double)f->tokens, &q->ok);
  hk_put_number(point, "iteration_ms", f->iteration_ms, &q->ok);
  hk_put_number(point, "tokens_per_s", f->tokens_per_s, &q->ok);
  hk_put_number(point, "gpu_bytes", f->gpu_bytes, &q->ok);
  hk_put_number(point, "host_bytes", f->host_bytes, &q->ok);
  hk_put_number(point, "gpu_s_per_million_tokens", f->gpu_s, &q->ok);
  if (!isnan(f->cost)) hk_put_number(point, "cost_per_million_tokens", f->cost, &q->ok);
  return point;
}

static const hk_column point_columns[] = {
    {"model", HK_WRAP},    {"point", HK_WRAP},
    {"schedule", HK_WRAP}, {"tokens", HK_RIGHT | HK_SPARE(2)},
    {"iter ms", HK_RIGHT}, {"tokens/s", HK_RIGHT | HK_SPARE(1)},
    {"GPU GiB", HK_RIGHT}, {"", HK_RIGHT}};
enum { POINT_COLUMNS = sizeof point_columns / sizeof *point_columns };

/* The columns of points; the last is the measure. */
static hk_table begin_points(const query *q, hk_column columns[POINT_COLUMNS]) {
  memcpy(columns, point_columns, sizeof point_columns);
  columns[POINT_COLUMNS - 1].name = measure_name(q);
  return hk_table_begin(columns, POINT_COLUMNS);
}

static void point_row(const query *q, hk_table *table, const hk_sweep_fit *f) {
  char text[512], cost[48];
  const double measure = hk_sweep_measure(q->rows, f);
  hk_table_row(table, "%s", tell(q->spec, f->id, true, text, sizeof text));
  hk_table_cell(table, "%s\t%s\t%lld\t%.1f\t%.0f\t%.1f\t%s",
                tell(q->spec, f->id, false, text, sizeof text), f->schedule, (long long)f->tokens,
                f->iteration_ms, f->tokens_per_s, hk_gib((hk_bytes)f->gpu_bytes),
                hk_format_cost(measure, cost, sizeof cost));
}

/* Prints or puts `n` rows. */
static hk_status list_points(query *q, const hk_sweep_fit *const *list, size_t n, hk_error *err) {
  hk_column columns[POINT_COLUMNS];
  if (q->points) {
    for (size_t i = 0; i < n; i++) put_point(q, list[i]);
    return HK_OK;
  }
  const size_t shown = q->args->wide || n < MOST_ROWS ? n : MOST_ROWS;
  hk_table table = begin_points(q, columns);
  for (size_t i = 0; i < shown; i++) point_row(q, &table, list[i]);
  HK_TRY(hk_table_print(&table, err));
  if (shown < n) printf("%zu more: --wide, or --json\n", n - shown);
  return HK_OK;
}

/* -- cheapest ---------------------------------------------------------------------------------- */

/* The best first; qsort has no context. */
static bool by_cost;
static int by_measure(const void *left, const void *right) {
  const hk_sweep_fit *a = *(const hk_sweep_fit *const *)left,
                     *b = *(const hk_sweep_fit *const *)right;
  const double x = by_cost ? a->cost : a->gpu_s, y = by_cost ? b->cost : b->gpu_s;
  if (x != y) return x < y ? -1 : 1;
  return (a->id > b->id) - (a->id < b->id);
}

static void say_cheapest(const query *q, const hk_sweep_fit *f) {
  char model[256], point[512], cost[48];
  tell(q->spec, f->id, true, model, sizeof model);
  tell(q->spec, f->id, false, point, sizeof point);
  hk_print_text(0, 2, "cheapest%s%s: %s%s%s, %.0f tokens/s, %s %s a million tokens",
                *model ? " of " : "", model, point, *point ? ": " : "", f->schedule,
                f->tokens_per_s, hk_format_cost(hk_sweep_measure(q->rows, f), cost, sizeof cost),
                q->rows->priced ? "for" : "GPU seconds for");
}

/* Keeps the first of each model. */
static hk_status first_of_each(const hk_sweep_fit **list, int64_t models, size_t *n,
                               hk_error *err) {
  const size_t all = *n;
  bool *seen = calloc((size_t)models, sizeof *seen);
  if (!seen) return hk_fail_memory(err, (size_t)models, "a sweep");
  *n = 0;
  for (size_t i = 0; i < all; i++) {
    const hk_sweep_fit *f = list[i];
    if (!seen[f->model]) list[(*n)++] = f;
    seen[f->model] = true;
  }
  free(seen);
  return HK_OK;
}

/* Of several models the best of each, of one the best rows. */
static hk_status answer_cheapest(query *q, hk_error *err) {
  const hk_sweep_rows *rows = q->rows;
  const hk_sweep_fit **list = malloc((rows->n + 1) * sizeof(hk_sweep_fit *));
  if (!list) return hk_fail_memory(err, rows->n * sizeof(hk_sweep_fit *), "a sweep");
  int64_t models = 0;
  size_t n = rows->n;
  for (size_t i = 0; i < n; i++) {
    list[i] = &rows->list[i];
    models = hk_max(models, rows->list[i].model + 1);
  }
  by_cost = rows->priced;
  qsort(list, n, sizeof(hk_sweep_fit *), by_measure);
  hk_status status = HK_OK;
  if (models > 1)
    status = first_of_each(list, models, &n, err);
  else if (n > MOST_ROWS)
    n = MOST_ROWS;
  if (status == HK_OK && !q->points) {
    say_cheapest(q, list[0]);
    putchar('\n');
  }
  if (status == HK_OK) status = list_points(q, list, n, err);
  free(list);
  return status;
}

/* -- pareto ------------------------------------------------------------------------------------ */

static int by_work(const void *left, const void *right) {
  const hk_sweep_fit *a = *(const hk_sweep_fit *const *)left,
                     *b = *(const hk_sweep_fit *const *)right;
  if (a->model != b->model) return a->model < b->model ? -1 : 1;
  if (a->tokens != b->tokens) return a->tokens < b->tokens ? -1 : 1;
  if (a->iteration_ms != b->iteration_ms) return a->iteration_ms < b->iteration_ms ? -1 : 1;
  return (a->id > b->id) - (a->id < b->id);
}

static hk_status list_flagged(query *q, const bool *flags, const char *against, hk_error *err) {
  const hk_sweep_rows *rows = q->rows;
  const hk_sweep_fit **list = malloc((rows->n + 1) * sizeof(hk_sweep_fit *));
  size_t n = 0;
  if (!list) return hk_fail_memory(err, rows->n * sizeof(hk_sweep_fit *), "a sweep");
  for (size_t i = 0; i < rows->n; i++)
    if (flags[i]) list[n++] = &rows->list[i];
  qsort(list, n, sizeof(hk_sweep_fit *), by_work);
  if (!q->points)
    hk_print_text(0, 2,
                  "iteration time against %s: %zu of %zu rows that fit have no better one of the "
                  "same model and tokens an iteration",
                  against, n, rows->n);
  const hk_status status = list_points(q, list, n, err);
  free(list);
  return status;
}

static hk_status answer_pareto(query *q, cJSON *root, hk_error *err) {
  bool *memory, *money;
  HK_TRY(hk_sweep_flags(q->rows, &memory, &money, err));
  hk_status status = list_flagged(q, memory, "memory of a GPU", err);
  if (status == HK_OK && q->rows->priced) {
    if (q->points)
      q->points = hk_put_array(root, "points_money", &q->ok);
    else
      putchar('\n');
    status = list_flagged(q, money, "cost", err);
  }
  free(memory);
  free(money);
  return status;
}

/* -- break-even -------------------------------------------------------------------------------- */

/* The best with state in host memory and without, of one model and number of tokens; NULL: none. */
typedef struct {
  const hk_sweep_fit *with, *without;
} pair;

static void keep_better(const query *q, const hk_sweep_fit **best, const hk_sweep_fit *f) {
  if (!*best || hk_sweep_measure(q->rows, f) < hk_sweep_measure(q->rows, *best)) *best = f;
}

static double advantage(const query *q, const pair *p) {
  if (!p->with) return INFINITY;
  return p->without ? hk_sweep_measure(q->rows, p->with) / hk_sweep_measure(q->rows, p->without)
                    : 0;
}

/* Both sides of every model and number of tokens. The caller frees *pairs. */
static hk_status find_pairs(const query *q, pair **pairs, size_t *n, hk_error *err) {
  const hk_sweep_rows *rows = q->rows;
  const hk_sweep_fit **list = malloc((rows->n + 1) * sizeof(hk_sweep_fit *)), *last = NULL;
  *pairs = calloc(rows->n + 1, sizeof **pairs);
  *n = 0;
  if (!list || !*pairs) {
    free(list);
    free(*pairs);
    return hk_fail_memory(err, rows->n * sizeof **pairs, "a sweep");
  }
  for (size_t i = 0; i < rows->n; i++) list[i] = &rows->list[i];
  qsort(list, rows->n, sizeof(hk_sweep_fit *), by_work);
  for (size_t i = 0; i < rows->n; last = list[i++]) {
    if (!last || last->model != list[i]->model || last->tokens != list[i]->tokens) ++*n;
    pair *p = &(*pairs)[*n - 1];
    keep_better(q, list[i]->offload ? &p->with : &p->without, list[i]);
  }
  free(list);
  return HK_OK;
}

static void say_break_even(const query *q, const pair *pairs, size_t n) {
  size_t pays = 0, both = 0;
  for (size_t i = 0; i < n; i++) {
    pays += advantage(q, &pairs[i]) < 1;
    both += pairs[i].with && pairs[i].without;
  }
  hk_print_text(
      0, 2,
      "offload is the cheaper in %zu of %zu cases (model, tokens an iteration); both ways "
      "fit in %zu",
      pays, n, both);
}

static void side_cells(const query *q, hk_table *table, const hk_sweep_fit *f) {
  char text[512], cost[48];
  hk_table_cell(table, "%s%s%s\t%s", f ? tell(q->spec, f->id, false, text, sizeof text) : "-",
                f ? ": " : "", f ? f->schedule : "",
                f ? hk_format_cost(hk_sweep_measure(q->rows, f), cost, sizeof cost) : "-");
}

static hk_status print_pairs(const query *q, const pair *pairs, size_t n, hk_error *err) {
  const hk_column columns[] = {{"model", HK_WRAP},        {"tokens", HK_RIGHT},
                               {"with offload", HK_WRAP}, {measure_name(q), HK_RIGHT},
                               {"without", HK_WRAP},      {measure_name(q), HK_RIGHT},
                               {"with/without", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  char text[256];
  for (size_t i = 0; i < n; i++) {
    const pair *p = &pairs[i];
    const hk_sweep_fit *any = p->with ? p->with : p->without;
    hk_table_row(&table, "%s\t%lld", tell(q->spec, any->id, true, text, sizeof text),
                 (long long)any->tokens);
    side_cells(q, &table, p->with);
    side_cells(q, &table, p->without);
    if (p->with && p->without)
      hk_table_cell(&table, "%.3f", advantage(q, p));
    else
      hk_table_cell(&table, "-");
  }
  return hk_table_print(&table, err);
}

static void put_pairs(query *q, cJSON *root, const pair *pairs, size_t n) {
  cJSON *array = hk_put_array(root, "cases", &q->ok);
  for (size_t i = 0; i < n; i++) {
    const pair *p = &pairs[i];
    cJSON *object = hk_put_element(array, &q->ok);
    const hk_sweep_fit *any = p->with ? p->with : p->without;
    hk_put_number(object, "tokens", (double)any->tokens, &q->ok);
    if (p->with && p->without) hk_put_number(object, "with_over_without", advantage(q, p), &q->ok);
    hk_put_bool(object, "offload_pays", advantage(q, p) < 1, &q->ok);
    q->points = hk_put_array(object, "points", &q->ok);
    if (p->with) put_point(q, p->with);
    if (p->without) put_point(q, p->without);
  }
}

static hk_status answer_break_even(query *q, cJSON *root, hk_error *err) {
  pair *pairs;
  size_t n;
  hk_status status = HK_OK;
  HK_TRY(find_pairs(q, &pairs, &n, err));
  if (root) {
    put_pairs(q, root, pairs, n);
  } else {
    say_break_even(q, pairs, n);
    putchar('\n');
    status = print_pairs(q, pairs, n, err);
  }
  free(pairs);
  return status;
}

/* -- sensitivity ------------------------------------------------------------------------------- */

static void put_effect(query *q, cJSON *array, const hk_sweep_axis *axis,
                       const hk_sweep_effect *e) {
  cJSON *object = hk_put_element(array, &q->ok);
  hk_put_string(object, "key", axis->name, &q->ok);
  hk_put_number(object, "sets", (double)e->sets, &q->ok);
  if (e->sets == 0) return;
  hk_put_number(object, "median_ratio", e->median, &q->ok);
  hk_put_number(object, "most_ratio", e->most, &q->ok);
  hk_put_string(object, "best", axis->cells[e->best].text, &q->ok);
  hk_put_number(object, "best_in_sets", (double)e->best_in, &q->ok);
}

static void effect_row(hk_table *table, const hk_sweep_axis *axis, const hk_sweep_effect *e) {
  hk_table_row(table, "%s\t%zu\t%zu", axis->name, axis->n, e->sets);
  if (e->sets == 0) return;
  hk_table_cell(table, "%.3f\t%.3f\t%s\t%.0f %%", e->median, e->most, axis->cells[e->best].text,
                100 * (double)e->best_in / (double)e->sets);
}

static hk_status effects(query *q, cJSON *root, hk_table *table, hk_sweep_row *list,
                         hk_error *err) {
  cJSON *array = root ? hk_put_array(root, "keys", &q->ok) : NULL;
  for (size_t i = 0; i < q->rows->n; i++)
    list[i] = (hk_sweep_row){.id = q->rows->list[i].id,
                             .time = hk_sweep_measure(q->rows, &q->rows->list[i])};
  for (size_t a = 0; a < q->spec->n; a++) {
    const hk_sweep_axis *axis = &q->spec->axes[a];
    const hk_sweep_key key = {hk_sweep_step(q->spec, a), (int64_t)axis->n};
    hk_sweep_effect effect;
    if (axis->n < 2) continue;
    HK_TRY(hk_sweep_effect_of(list, q->rows->n, &key, &effect, err));
    if (root)
      put_effect(q, array, axis, &effect);
    else
      effect_row(table, axis, &effect);
  }
  return HK_OK;
}

static hk_status answer_sensitivity(query *q, cJSON *root, hk_error *err) {
  static const hk_column columns[] = {
      {"key", HK_LEFT},        {"values", HK_RIGHT},    {"sets", HK_RIGHT}, {"median x", HK_RIGHT},
      {"largest x", HK_RIGHT}, {"best value", HK_WRAP}, {"in", HK_RIGHT}};
  hk_sweep_row *list = malloc((q->rows->n + 1) * sizeof *list);
  if (!list) return hk_fail_memory(err, q->rows->n * sizeof *list, "a sweep");
  hk_table table = HK_TABLE(columns);
  hk_status status = effects(q, root, &table, list, err);
  free(list);
  if (status != HK_OK || root) {
    hk_table_drop(&table);
    return status;
  }
  hk_print_text(0, 2, "%s of the worst value of a key / of its best, all other keys the same",
                q->rows->priced ? "cost of a token" : "GPU seconds of a token");
  putchar('\n');
  return hk_table_print(&table, err);
}

/* -- All --------------------------------------------------------------------------------------- */

static hk_status ask(query *q, hk_sweep_question question, cJSON *root, hk_error *err) {
  switch (question) {
    case HK_SWEEP_CHEAPEST:
      return answer_cheapest(q, err);
    case HK_SWEEP_BREAK_EVEN:
      return answer_break_even(q, root, err);
    case HK_SWEEP_PARETO:
      return answer_pareto(q, root, err);
    case HK_SWEEP_SENSITIVITY:
      return answer_sensitivity(q, root, err);
  }
  return HK_OK;
}

static hk_status ask_json(query *q, hk_sweep_question question, hk_error *err) {
  static const char *const names[] = {"cheapest", "break-even", "pareto", "sensitivity"};
  const bool lists = question == HK_SWEEP_CHEAPEST || question == HK_SWEEP_PARETO;
  cJSON *root = hk_emit_begin("hocket.sweep_answer/1", &q->ok);
  hk_put_string(root, "query", names[question], &q->ok);
  hk_put_string(root, "measure",
                q->rows->priced ? "cost_per_million_tokens" : "gpu_s_per_million_tokens", &q->ok);
  hk_put_number(root, "rows", (double)q->rows->all, &q->ok);
  hk_put_number(root, "fit", (double)q->rows->n, &q->ok);
  if (lists) q->points = hk_put_array(root, "points", &q->ok);
  const hk_status status = ask(q, question, root, err);
  if (status == HK_OK) return hk_emit_print(root, q->ok, err);
  cJSON_Delete(root);
  return status;
}

hk_status hk_sweep_answer(const hk_args *args, hk_sweep_question question,
                          const hk_sweep_spec *spec, const hk_sweep_rows *rows, hk_error *err) {
  query q = {.args = args, .spec = spec, .rows = rows, .ok = true};
  if (rows->n == 0)
    return hk_fail(err, HK_NO, "no row fits: %lld do not, %lld are not possible",
                   (long long)rows->too_large, (long long)rows->not_possible);
  return args->json ? ask_json(&q, question, err) : ask(&q, question, NULL, err);
}
