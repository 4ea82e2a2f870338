/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/sweep_run.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/lock.h"
#include "cli/print/screen.h"
#include "cli/sweep_point.h"
#include "cli/sweep_rows.h"
#include "sim/sweep.h"

#define FIRST_BATCH 64
#define MOST_BATCH  8192
#define BATCH_NS    (0.5 * HK_NS_PER_S) /* a kill loses as much */

static const char *const identity[] = {"spec", "version", "inputs"}; /* keys of meta */
enum { IDENTITY = sizeof identity / sizeof *identity };

/* -- Databases --------------------------------------------------------------------------------- */

hk_status hk_sweep_database_open(const char *path, hk_sweep_database *database, hk_error *err) {
  char *text = NULL;
  *database = (hk_sweep_database){0};
  HK_TRY(hk_sweep_open(path, true, &database->store, err));
  HK_TRY(hk_sweep_meta_of(database->store, "spec", &text, err));
  if (!text) return hk_fail(err, HK_INPUT, "'%s' has no rows: its sweep never began", path);
  const hk_status status = hk_sweep_spec_parse(text, path, &database->spec, err);
  free(text);
  return status;
}

void hk_sweep_database_close(hk_sweep_database *database) {
  hk_store_close(database->store);
  hk_sweep_spec_free(&database->spec);
}

/* What differs between a database and the sweep that is to go on in it. */
static hk_status refuse(const hk_store *store, const char *key, const char *there,
                        const char *wanted, hk_error *err) {
  const char *path = hk_store_name(store);
  if (strcmp(key, "version") == 0)
    return hk_fail(err, HK_INPUT,
                   "'%s' was made by hocket %.60s, this is %.60s, whose rows may differ; name "
                   "another file with -o",
                   path, there, wanted);
  return hk_fail(err, HK_INPUT,
                 strcmp(key, "spec") == 0
                     ? "'%s' holds the rows of another sweep: keys, values or sample differ; name "
                       "another file with -o"
                     : "'%s' was made when a model or a machine had other content; name another "
                       "file with -o",
                 path);
}

/* Begins the database, or checks that it has the same identity. */
static hk_status claim(hk_store *store, const hk_sweep_spec *spec, const hk_sweep_meta *meta,
                       hk_error *err) {
  for (size_t i = 0; i < IDENTITY; i++) {
    char *there;
    HK_TRY(hk_sweep_meta_of(store, meta[i].key, &there, err));
    const bool same = there && strcmp(there, meta[i].value) == 0;
    const hk_status status =
        there && !same ? refuse(store, meta[i].key, there, meta[i].value, err) : HK_OK;
    free(there);
    HK_TRY(status);
    if (same) continue;
    hk_sweep_column *columns;
    size_t n;
    HK_TRY(hk_sweep_columns(spec, &columns, &n, err));
    const hk_status begun = hk_sweep_begin(store, columns, n, meta, IDENTITY, err);
    free(columns);
    return begun;
  }
  return HK_OK;
}

/* -- Running ----------------------------------------------------------------------------------- */

typedef struct {
  hk_sweep_bench bench;
  hk_store *store;
  hk_sweep_column *columns;
  hk_cell *cells;
  size_t n_columns;
  sqlite3_stmt *adder;
  int64_t shard, shards; /* --shard */
  int64_t *todo;         /* ids */
  size_t n_todo, done, had;
  hk_sweep_outcome *outcomes; /* of a batch */
  hk_error *errors;
  bool *made;
  size_t at; /* in todo, where the batch begins */
  const volatile sig_atomic_t *stop;
  hk_ns began, told;
  bool shows;
} job;

static void simulate_next(void *context, size_t i, int thread) {
  job *j = context;
  j->made[i] = false;
  j->errors[i] = (hk_error){0};
  if (*j->stop != 0) return;
  const int64_t id = j->todo[j->at + i];
  j->made[i] = hk_sweep_simulate(&j->bench, id, thread, &j->outcomes[i], &j->errors[i]) == HK_OK;
}

static hk_status store_batch(job *j, size_t n, hk_error *err) {
  for (size_t i = 0; i < n; i++) {
    if (j->errors[i].status != HK_OK)
      return hk_fail(err, j->errors[i].status, "%s", j->errors[i].message);
    if (!j->made[i]) continue;
    hk_sweep_cells(j->bench.spec, &j->outcomes[i], j->cells);
    HK_TRY(hk_sweep_add(j->store, j->adder, j->outcomes[i].id, j->columns, j->cells, j->n_columns,
                        err));
    j->done++;
  }
  return HK_OK;
}

static void show_progress(job *j) {
  const hk_ns now = hk_now();
  char done[32], all[32];
  if (!j->shows || now - j->began < HK_NS_PER_S || now - j->told < HK_NS_PER_S / 5) return;
  j->told = now;
  hk_screen_progress(
      "hocket sweep: %s of %s rows, about %.0f s left",
      hk_format_count((int64_t)(j->had + j->done), done, sizeof done),
      hk_format_count((int64_t)(j->had + j->n_todo), all, sizeof all),
      hk_s(now - j->began) / (double)hk_max(1, (int64_t)j->done) * (double)(j->n_todo - j->done));
}

/* Batches of half a second, each in one transaction. */
static hk_status run_batches(job *j, hk_error *err) {
  size_t batch = FIRST_BATCH;
  j->began = hk_now();
  while (j->at < j->n_todo && *j->stop == 0) {
    const size_t n = batch < j->n_todo - j->at ? batch : j->n_todo - j->at;
    const hk_ns before = hk_now();
    hk_sweep_each(n, simulate_next, j);
    const hk_ns took = hk_max(1, hk_now() - before);
    HK_TRY(hk_store_begin(j->store, err));
    HK_TRY(hk_store_end(j->store, store_batch(j, n, err), err));
    j->at += n;
    const double wanted = (double)n * BATCH_NS / (double)took;
    batch = (size_t)hk_max(FIRST_BATCH / 4, hk_min(MOST_BATCH, (int64_t)wanted));
    show_progress(j);
  }
  return HK_OK;
}

/* "I/N" */
static hk_status read_shard(const char *text, int64_t *i, int64_t *n, hk_error *err) {
  char *end;
  *i = *n = 1;
  if (!text) return HK_OK;
  if (strspn(text, "0123456789/") == strlen(text) && strlen(text) < 20) {
    *i = strtoll(text, &end, 10);
    *n = *end == '/' ? strtoll(end + 1, &end, 10) : 0;
    if (*end == '\0' && *i >= 1 && *i <= *n && *n <= 1000000) return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "option '--shard': expected I/N with I from 1 to N, such as 1/4, got '%.60s'",
                 text);
}

/* Lists the points of the shard that have no row. */
static hk_status list_todo(job *j, const hk_sweep_spec *spec, hk_error *err) {
  int64_t *there;
  size_t n, next = 0;
  HK_TRY(hk_sweep_ids(j->store, &there, &n, err));
  const int64_t all = hk_sweep_count(spec);
  j->todo = malloc(((size_t)all + 1) * sizeof *j->todo);
  for (int64_t i = j->shard - 1; i < all && j->todo; i += j->shards) {
    const int64_t id = hk_sweep_id(spec, i);
    while (next < n && there[next] < id) next++;
    if (next < n && there[next] == id)
      j->had++;
    else
      j->todo[j->n_todo++] = id;
  }
  free(there);
  return j->todo ? HK_OK : hk_fail_memory(err, (size_t)all * sizeof *j->todo, "a sweep");
}

static hk_status prepare(job *j, const hk_sweep_spec *spec, hk_error *err) {
  HK_TRY(list_todo(j, spec, err));
  HK_TRY(hk_sweep_columns(spec, &j->columns, &j->n_columns, err));
  j->cells = calloc(j->n_columns, sizeof *j->cells);
  j->outcomes = calloc(MOST_BATCH, sizeof *j->outcomes);
  j->errors = calloc(MOST_BATCH, sizeof *j->errors);
  j->made = calloc(MOST_BATCH, sizeof *j->made);
  if (!j->cells || !j->outcomes || !j->errors || !j->made)
    return hk_fail_memory(err, MOST_BATCH * sizeof *j->outcomes, "a sweep");
  return hk_sweep_adder(j->store, j->n_columns, &j->adder, err);
}

static hk_status finish(hk_store *store, const hk_sweep_spec *spec, hk_error *err) {
  hk_sweep_rows rows;
  hk_status status = hk_sweep_rows_load(store, spec, &rows, err);
  if (status == HK_OK) status = hk_sweep_mark(store, &rows, err);
  hk_sweep_rows_free(&rows);
  return status;
}

static hk_status run_job(job *j, const hk_sweep_spec *spec, const hk_sweep_meta *meta,
                         hk_error *err) {
  char count[32], all[32];
  HK_TRY(claim(j->store, spec, meta, err));
  HK_TRY(prepare(j, spec, err));
  const hk_status status = run_batches(j, err);
  if (j->shows) hk_screen_progress_end();
  HK_TRY(status);
  if (j->done == j->n_todo) return finish(j->store, spec, err);
  return hk_fail(err, HK_NO, "interrupted; %s of %s rows are stored; the same command continues",
                 hk_format_count((int64_t)(j->had + j->done), count, sizeof count),
                 hk_format_count((int64_t)(j->had + j->n_todo), all, sizeof all));
}

static void free_job(job *j) {
  hk_store_finish(j->adder);
  hk_sweep_bench_close(&j->bench);
  free(j->columns);
  free(j->cells);
  free(j->todo);
  free(j->outcomes);
  free(j->errors);
  free(j->made);
}

static void warn_sample(const hk_args *args, const hk_sweep_spec *spec) {
  char some[32], all[32];
  if (spec->sample == 0 || args->quiet) return;
  fprintf(stderr, "hocket sweep: warning: %s of %s points, drawn at random with seed %lld\n",
          hk_format_count(spec->sample, some, sizeof some),
          hk_format_count(spec->points, all, sizeof all), (long long)spec->seed);
}

/* With the spec read. */
static hk_status run_spec(const hk_args *args, const char *path, hk_sweep_database *database,
                          hk_error *err) {
  job j = {.shows = !args->quiet && isatty(STDERR_FILENO)};
  char *text = NULL, hash[17];
  HK_TRY(read_shard(args->shard, &j.shard, &j.shards, err));
  hk_status status = hk_sweep_bench_open(&database->spec, &j.bench, err);
  if (status == HK_INPUT) status = hk_fail_prefix(err, "%s", args->operands[0]);
  if (status == HK_OK) status = hk_sweep_bench_hash(&j.bench, hash, err);
  if (status == HK_OK) status = hk_sweep_spec_text(&database->spec, &text, err);
  if (status == HK_OK) status = hk_lock_sweep(path, err);
  if (status == HK_OK) {
    warn_sample(args, &database->spec);
    j.stop = hk_interrupt_catch();
    status = hk_sweep_open(path, false, &database->store, err);
  }
  if (status == HK_OK) {
    const hk_sweep_meta meta[IDENTITY] = {
        {identity[0], text}, {identity[1], HK_BUILD}, {identity[2], hash}};
    j.store = database->store;
    status = run_job(&j, &database->spec, meta, err);
    database->simulated = (int64_t)j.done;
  }
  free(text);
  free_job(&j);
  return status;
}

/* What one row frees serves the next, instead of going back to the system: a fifth less time. */
static void keep_memory(void) {
#ifdef M_TRIM_THRESHOLD
  mallopt(M_TRIM_THRESHOLD, 1 << 29);
  mallopt(M_MMAP_THRESHOLD, 1 << 25); /* glibc's most */
#endif
}

hk_status hk_sweep_run(const hk_args *args, const char *path, hk_sweep_database *database,
                       hk_error *err) {
  keep_memory();
  *database = (hk_sweep_database){0};
  HK_TRY(hk_sweep_spec_read(args, args->operands[0], &database->spec, err));
  return run_spec(args, path, database, err);
}

/* -- Merging ----------------------------------------------------------------------------------- */

/* Adds one database; the first begins the result. */
static hk_status merge(hk_sweep_database *into, const char *path, hk_error *err) {
  hk_sweep_database part;
  char *values[IDENTITY] = {NULL};
  hk_sweep_meta meta[IDENTITY];
  hk_status status = hk_sweep_database_open(path, &part, err);
  for (size_t i = 0; i < IDENTITY && status == HK_OK; i++) {
    status = hk_sweep_meta_of(part.store, identity[i], &values[i], err);
    if (status == HK_OK && !values[i])
      status = hk_fail(err, HK_ENVIRONMENT, "the sweep '%s' is damaged: it has no %s", path,
                       identity[i]);
    meta[i] = (hk_sweep_meta){identity[i], values[i]};
  }
  if (status == HK_OK && claim(into->store, &part.spec, meta, err) != HK_OK)
    status = hk_fail_prefix(err, "'%s' cannot be merged", path);
  if (status == HK_OK)
    status = hk_sweep_merge(into->store, part.store, part.spec.n + HK_SWEEP_OUTCOMES, err);
  if (status == HK_OK && into->spec.n == 0) {
    into->spec = part.spec;
    part.spec = (hk_sweep_spec){0};
  }
  for (size_t i = 0; i < IDENTITY; i++) free(values[i]);
  hk_sweep_database_close(&part);
  return status;
}

hk_status hk_sweep_merge_all(const hk_args *args, const char *path, hk_sweep_database *database,
                             hk_error *err) {
  int64_t *ids;
  size_t n;
  char there[32], all[32];
  *database = (hk_sweep_database){0};
  HK_TRY(hk_lock_sweep(path, err));
  HK_TRY(hk_sweep_open(path, false, &database->store, err));
  for (int i = 0; i < args->n_operands; i++) HK_TRY(merge(database, args->operands[i], err));
  HK_TRY(finish(database->store, &database->spec, err));
  HK_TRY(hk_sweep_ids(database->store, &ids, &n, err));
  free(ids);
  const int64_t wanted = hk_sweep_count(&database->spec);
  if ((int64_t)n == wanted) return HK_OK;
  return hk_fail(err, HK_NO, "%s of %s rows are in '%s'; those of other shards are missing",
                 hk_format_count((int64_t)n, there, sizeof there),
                 hk_format_count(wanted, all, sizeof all), path);
}
