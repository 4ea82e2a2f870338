/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "sim/sweep.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* -- Compromises ------------------------------------------------------------------------------- */

static int by_work_and_time(const void *left, const void *right) {
  const hk_sweep_row *a = *(const hk_sweep_row *const *)left,
                     *b = *(const hk_sweep_row *const *)right;
  if (a->model != b->model) return a->model < b->model ? -1 : 1;
  if (a->tokens != b->tokens) return a->tokens < b->tokens ? -1 : 1;
  if (a->time != b->time) return a->time < b->time ? -1 : 1;
  if (a->price != b->price) return a->price < b->price ? -1 : 1;
  return (a->id > b->id) - (a->id < b->id);
}

/* In this order a row is the best if it is cheaper than all before it of the same work, or equal to
 * the last that was. */
hk_status hk_sweep_pareto(const hk_sweep_row *rows, size_t n, bool *best, hk_error *err) {
  const hk_sweep_row **order = malloc((n + 1) * sizeof(hk_sweep_row *)), *last = NULL;
  if (!order) return hk_fail_memory(err, n * sizeof(hk_sweep_row *), "a sweep");
  size_t known = 0;
  for (size_t i = 0; i < n; i++) {
    best[i] = false;
    if (!isnan(rows[i].price)) order[known++] = &rows[i];
  }
  qsort(order, known, sizeof(hk_sweep_row *), by_work_and_time);
  for (size_t i = 0; i < known; i++) {
    const hk_sweep_row *row = order[i];
    const bool same = last && last->model == row->model && last->tokens == row->tokens;
    const bool equal = same && row->time == last->time && row->price == last->price;
    if (same && !equal && row->price >= last->price) continue;
    best[row - rows] = true;
    last = row;
  }
  free(order);
  return HK_OK;
}

/* -- Effects ----------------------------------------------------------------------------------- */

typedef struct {
  int64_t rest, value; /* the point without the key's value; that value */
  double time;
} member;

static int by_rest(const void *left, const void *right) {
  const member *a = left, *b = right;
  if (a->rest != b->rest) return a->rest < b->rest ? -1 : 1;
  return (a->value > b->value) - (a->value < b->value);
}

static int by_number(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

/* The set that begins at `m`, of at most `n`: its length, slowest / fastest, and the fastest value.
 */
static size_t measure(const member *m, size_t n, double *ratio, int64_t *fastest) {
  double least = m[0].time, most = m[0].time;
  size_t length = 1;
  *fastest = m[0].value;
  for (; length < n && m[length].rest == m[0].rest; length++) {
    most = fmax(most, m[length].time);
    if (m[length].time >= least) continue;
    least = m[length].time;
    *fastest = m[length].value;
  }
  *ratio = most / least;
  return length;
}

static void fill(const member *members, size_t n, double *ratios, size_t *wins, int64_t values,
                 hk_sweep_effect *effect) {
  for (size_t i = 0; i < n;) {
    double ratio;
    int64_t fastest;
    const size_t length = measure(&members[i], n - i, &ratio, &fastest);
    i += length;
    if (length < 2) continue;
    ratios[effect->sets++] = ratio;
    wins[fastest]++;
  }
  if (effect->sets == 0) return;
  qsort(ratios, effect->sets, sizeof *ratios, by_number);
  effect->median = ratios[(effect->sets - 1) / 2];
  effect->most = ratios[effect->sets - 1];
  for (int64_t v = 1; v < values; v++)
    if (wins[v] > wins[effect->best]) effect->best = v;
  effect->best_in = wins[effect->best];
}

hk_status hk_sweep_effect_of(const hk_sweep_row *rows, size_t n, const hk_sweep_key *key,
                             hk_sweep_effect *effect, hk_error *err) {
  *effect = (hk_sweep_effect){0};
  member *members = malloc((n + 1) * sizeof *members);
  double *ratios = malloc((n + 1) * sizeof *ratios);
  size_t *wins = calloc((size_t)key->values, sizeof *wins);
  hk_status status = HK_OK;
  if (members && ratios && wins) {
    for (size_t i = 0; i < n; i++) {
      const int64_t value = rows[i].id / key->step % key->values;
      members[i] = (member){rows[i].id - value * key->step, value, rows[i].time};
    }
    qsort(members, n, sizeof *members, by_rest);
    fill(members, n, ratios, wins, key->values, effect);
  } else {
    status = hk_fail_memory(err, n * sizeof *members, "a sweep");
  }
  free(members);
  free(ratios);
  free(wins);
  return status;
}

/* -- Threads ----------------------------------------------------------------------------------- */

int hk_sweep_threads(void) {
  return omp_get_max_threads();
}

/* Neighbours share a machine and a model: a thread takes several of them. */
void hk_sweep_each(size_t n, void (*body)(void *context, size_t i, int thread), void *context) {
#pragma omp parallel for schedule(dynamic, 8)
  for (size_t i = 0; i < n; i++) body(context, i, omp_get_thread_num());
}
