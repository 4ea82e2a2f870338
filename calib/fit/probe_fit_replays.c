/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Residuals of replays, with a cache. A solver that moves one unknown asks for the residuals of
 * every probe, but most probes do not use that unknown: their last replays still hold. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/probe_fit_draft.h"

/* Replays that are cached for each series: more than one call of hk_replays_at can add. */
#define CACHED (HK_MOST_VARIANTS + 64)

typedef struct {
  double inputs[HK_REPLAY_INPUTS];
  double residuals[HK_PROBE_LOADS];
} cached_replay;

/* Cached replays of one series. The oldest is replaced first. */
typedef struct {
  size_t n, next;
  cached_replay all[CACHED];
} cache;

/* A replay that the current call has to make. */
typedef struct {
  size_t variant, series;
  cached_replay *into;
} task;

struct hk_replays {
  const hk_series *const *series;
  size_t n_series, n_residuals;
  size_t offsets[HK_REPLAY_VARIED], n_varied; /* in hk_machine, of the quantities that vary */
  cache *caches;
  task *tasks;           /* of one call, at most machines x series */
  cached_replay **found; /* [machine][series]; NULL: the residuals are in the output already */
};

/* -- Opening and closing ----------------------------------------------------------------------- */

void hk_replays_close(hk_replays *r) {
  if (!r) return;
  free(r->caches);
  free(r->tasks);
  free(r->found);
  free(r);
}

static bool allocate(hk_replays *r) {
  const size_t most = HK_MOST_VARIANTS * r->n_series + 1;
  r->caches = calloc(r->n_series + 1, sizeof *r->caches);
  r->tasks = malloc(most * sizeof *r->tasks);
  r->found = malloc(most * sizeof(cached_replay *));
  if (!r->caches || !r->tasks || !r->found) return false;
  for (size_t s = 0; s < r->n_series; s++) r->n_residuals += (size_t)r->series[s]->probe.n_loads;
  return true;
}

hk_status hk_replays_open(const hk_series *const *series, size_t n, const size_t *offsets,
                          size_t n_varied, hk_replays **out, hk_error *err) {
  hk_replays *r = calloc(1, sizeof *r);
  if (r) {
    r->series = series;
    r->n_series = n;
    r->n_varied = n_varied;
    memcpy(r->offsets, offsets, n_varied * sizeof *offsets);
  }
  *out = r;
  if (r && allocate(r)) return HK_OK;
  hk_replays_close(r);
  *out = NULL;
  return hk_fail_memory(err, n * CACHED * sizeof(cached_replay), "the replays of a fit");
}

/* -- One replay -------------------------------------------------------------------------------- */

static hk_status replay_one(const hk_series *s, const hk_machine *machine, double *out,
                            hk_error *err) {
  double measured[HK_PROBE_LOADS];
  for (int i = 0; i < s->probe.n_loads; i++) measured[i] = s->summary[i].median;
  HK_TRY(hk_replay(&s->probe, machine, measured, out, err));
  for (int i = 0; i < s->probe.n_loads; i++) out[i] = log(out[i] / measured[i]);
  return HK_OK;
}

/* -- Replays to make --------------------------------------------------------------------------- */

static void inputs_of(const hk_replays *r, const hk_probe *probe, const hk_machine *machine,
                      double *inputs) {
  const hk_quantity *varied[HK_REPLAY_VARIED];
  for (size_t i = 0; i < r->n_varied; i++)
    varied[i] = (const hk_quantity *)((const char *)machine + r->offsets[i]);
  hk_replay_inputs(probe, machine, varied, r->n_varied, inputs);
}

static bool are_equal(const double *a, const double *b) {
  for (size_t i = 0; i < HK_REPLAY_INPUTS; i++)
    if (a[i] != b[i]) return false;
  return true;
}

static cached_replay *find_cached(cache *m, const double *inputs) {
  for (size_t i = 0; i < m->n; i++)
    if (are_equal(m->all[i].inputs, inputs)) return &m->all[i];
  return NULL;
}

static cached_replay *add_cached(cache *m, const double *inputs) {
  cached_replay *p = &m->all[m->next];
  memcpy(p->inputs, inputs, sizeof p->inputs);
  m->next = (m->next + 1) % CACHED;
  if (m->n < CACHED) m->n++;
  return p;
}

static bool is_planned(const task *tasks, size_t n, const cached_replay *p) {
  for (size_t i = n; i > 0; i--)
    if (tasks[i - 1].into == p) return true;
  return false;
}

/* Lists the replays to make; the results of earlier calls go to `out` at once, because a new replay
 * may replace them in the cache. A new replay's own entry stays until the call ends: a call adds at
 * most HK_MOST_VARIANTS replays of a series, and CACHED is larger. */
static size_t plan(hk_replays *r, const hk_machine *machines, size_t variants, double *out) {
  size_t n = 0, at = 0;
  for (size_t s = 0; s < r->n_series; s++) {
    const hk_probe *probe = &r->series[s]->probe;
    const size_t first = n;
    for (size_t v = 0; v < variants; v++) {
      double inputs[HK_REPLAY_INPUTS];
      inputs_of(r, probe, &machines[v], inputs);
      cached_replay **found = &r->found[v * r->n_series + s];
      *found = find_cached(&r->caches[s], inputs);
      if (!*found) {
        *found = add_cached(&r->caches[s], inputs);
        r->tasks[n++] = (task){.variant = v, .series = s, .into = *found};
      } else if (!is_planned(r->tasks + first, n - first, *found)) {
        memcpy(out + v * r->n_residuals + at, (*found)->residuals,
               (size_t)probe->n_loads * sizeof *out);
        *found = NULL;
      }
    }
    at += (size_t)probe->n_loads;
  }
  return n;
}

/* -- All replays of a call --------------------------------------------------------------------- */

static void copy_out(const hk_replays *r, size_t variants, double *out) {
  for (size_t v = 0; v < variants; v++) {
    for (size_t s = 0; s < r->n_series; s++) {
      const cached_replay *found = r->found[v * r->n_series + s];
      const size_t loads = (size_t)r->series[s]->probe.n_loads;
      if (found) memcpy(out, found->residuals, loads * sizeof *out);
      out += loads;
    }
  }
}

/* After a failure: entries of the cache may have no residuals. */
static void clear_cache(hk_replays *r) {
  for (size_t s = 0; s < r->n_series; s++) r->caches[s].n = r->caches[s].next = 0;
}

hk_status hk_replays_at(hk_replays *r, const hk_machine *machines, size_t variants, double *out,
                        hk_error *err) {
  const size_t n = plan(r, machines, variants, out);
  hk_error first = {0};
/* The replays of one machine take less time than starting the threads. */
#pragma omp parallel for schedule(dynamic) if (variants > 1)
  for (size_t i = 0; i < n; i++) {
    const task *t = &r->tasks[i];
    hk_error mine = {0};
    if (replay_one(r->series[t->series], &machines[t->variant], t->into->residuals, &mine) == HK_OK)
      continue;
#pragma omp critical
    first = mine;
  }
  if (first.status != HK_OK) {
    clear_cache(r);
    return hk_fail(err, first.status, "%s", first.message);
  }
  copy_out(r, variants, out);
  return HK_OK;
}
