/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Storing, listing, loading and deleting timelines. */
#include "traces/timelines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"
#include "core/base/json.h"
#include "traces/timelines_internal.h"

/* -- Storing ----------------------------------------------------------------------------------- */

/* The values of a row of the table `timeline`. */
typedef struct {
  char label[160], graph[17];
  const char *machine;
  char *plan, *profile, *fingerprint; /* NULL: none */
  hk_blob spans, counters;
} row;

static void free_row(row *r) {
  cJSON_free(r->plan);
  cJSON_free(r->profile);
  cJSON_free(r->fingerprint);
  free(r->spans.bytes);
  free(r->counters.bytes);
}

static hk_status print_document(const cJSON *document, char **out, hk_error *err) {
  if (!document) return HK_OK;
  *out = cJSON_PrintUnformatted(document);
  return *out ? HK_OK : hk_fail_memory(err, sizeof *document, "a timeline's documents");
}

static hk_status print_plan(const hk_plan *plan, char **out, hk_error *err) {
  cJSON *document = hk_plan_to_json(plan);
  if (!document) return hk_fail_memory(err, sizeof *document, "a timeline's plan");
  hk_status status = print_document(document, out, err);
  cJSON_Delete(document);
  return status;
}

static hk_status fill_row(const hk_timeline_to_store *what, row *r, hk_error *err) {
  char policy[64];
  snprintf(r->label, sizeof r->label, "%s, %s", hk_plan_title(what->plan, policy, sizeof policy),
           what->plan->model.name);
  r->machine = what->profile ? hk_json_text_or(what->profile, "name", "")
                             : hk_json_text_or(what->fingerprint, "gpu", "");
  hk_graph_hash(what->graph, r->graph);
  HK_TRY(print_plan(what->plan, &r->plan, err));
  HK_TRY(print_document(what->profile, &r->profile, err));
  HK_TRY(print_document(what->fingerprint, &r->fingerprint, err));
  HK_TRY(hk_spans_encode(what->timeline, &r->spans, err));
  return hk_counters_encode(what->timeline, &r->counters, err);
}

/* Makes `id` and what->pair a pair. Fails if they could not be compared. */
static hk_status tie(hk_store *store, int64_t id, const hk_timeline_to_store *what,
                     const char *graph, hk_error *err) {
  if (what->pair == 0) return HK_OK;
  HK_TRY(hk_store_do(store, err,
                     "UPDATE timeline SET pair = ? "
                     "WHERE id = ? AND pair IS NULL AND measured <> ? AND graph = ?",
                     "iiis", id, what->pair, (int64_t)what->measured, graph));
  if (hk_store_changes(store) == 1)
    return hk_store_do(store, err, "UPDATE timeline SET pair = ? WHERE id = ?", "ii", what->pair,
                       id);
  return hk_fail(err, HK_INPUT,
                 "timeline %lld of the store '%s' cannot be the pair of this one: expected a %s "
                 "timeline of the same graph (%s) that has no pair yet",
                 (long long)what->pair, hk_store_name(store),
                 what->measured ? "predicted" : "measured", graph);
}

/* In the store: the phases and, if there are several, 256 times the number of iterations. */
#define STORED_ITERATION 256

static int64_t phases_in_store(const hk_timeline_to_store *what) {
  const int n = what->graph->iterations;
  return what->phases + (n > 1 ? (int64_t)n * STORED_ITERATION : 0);
}

static hk_status write_row(hk_store *store, const hk_timeline_to_store *what, const row *r,
                           int64_t *id, hk_error *err) {
  HK_TRY(hk_store_do(store, err,
                     "INSERT INTO timeline (made, measured, phases, label, machine, version, "
                     "operations, makespan_ns, graph, plan, profile, fingerprint, spans, counters) "
                     "VALUES (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), "
                     "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                     "iisssiissssbb", (int64_t)what->measured, phases_in_store(what), r->label,
                     r->machine, what->version, (int64_t)what->timeline->n_spans,
                     what->timeline->makespan, r->graph, r->plan, r->profile, r->fingerprint,
                     &r->spans, &r->counters));
  *id = hk_store_last_row(store);
  return tie(store, *id, what, r->graph, err);
}

hk_status hk_timelines_store(hk_store *store, const hk_timeline_to_store *what, int64_t *id,
                             hk_error *err) {
  *id = 0;
  if (what->timeline->n_spans != what->graph->n_ops)
    return hk_fail(err, HK_INPUT,
                   "a timeline of %zu spans cannot be kept for a graph of %zu operations",
                   what->timeline->n_spans, what->graph->n_ops);
  row r = {0};
  hk_status status = fill_row(what, &r, err);
  if (status == HK_OK) status = hk_store_begin(store, err);
  if (status == HK_OK) status = hk_store_end(store, write_row(store, what, &r, id, err), err);
  if (status != HK_OK) *id = 0;
  free_row(&r);
  return status;
}

/* -- Listing ----------------------------------------------------------------------------------- */

#define KEPT_COLUMNS                                                            \
  "id, pair, measured, phases, operations, makespan_ns, made, label, machine, " \
  "version"
#define KEPT_COUNT 10

static hk_status read_kept(hk_store *store, sqlite3_stmt *statement, hk_stored_timeline *kept,
                           hk_error *err) {
  *kept = (hk_stored_timeline){
      .id = sqlite3_column_int64(statement, 0),
      .pair = sqlite3_column_int64(statement, 1),
      .measured = sqlite3_column_int64(statement, 2) != 0,
      .phases = (unsigned)sqlite3_column_int64(statement, 3) % STORED_ITERATION,
      .iterations = (int)((unsigned)sqlite3_column_int64(statement, 3) / STORED_ITERATION),
      .operations = (size_t)sqlite3_column_int64(statement, 4),
      .makespan = sqlite3_column_int64(statement, 5)};
  HK_TRY(hk_store_copy_text(store, statement, 6, kept->made, sizeof kept->made, err));
  HK_TRY(hk_store_copy_text(store, statement, 7, kept->label, sizeof kept->label, err));
  HK_TRY(hk_store_copy_text(store, statement, 8, kept->machine, sizeof kept->machine, err));
  return hk_store_copy_text(store, statement, 9, kept->version, sizeof kept->version, err);
}

static hk_status append_kept(hk_store *store, sqlite3_stmt *statement, hk_stored_timeline **list,
                             size_t *room, size_t *n, hk_error *err) {
  HK_TRY(HK_GROW(*list, *room, *n, "a list of timelines", err));
  return read_kept(store, statement, &(*list)[(*n)++], err);
}

hk_status hk_timelines_list(hk_store *store, hk_stored_timeline **list, size_t *n, hk_error *err) {
  *list = NULL;
  *n = 0;
  size_t room = 0;
  sqlite3_stmt *statement = NULL;
  hk_status status = hk_store_query(store, &statement, err,
                                    "SELECT " KEPT_COLUMNS " FROM timeline ORDER BY id DESC", "");
  for (bool more = true; status == HK_OK && more;) {
    status = hk_store_step(store, statement, &more, err);
    if (status == HK_OK && more) status = append_kept(store, statement, list, &room, n, err);
    /* A damaged tree of pages may contain a cycle and return the same rows without end. */
    if (status == HK_OK && more && *n > 1 && (*list)[*n - 1].id >= (*list)[*n - 2].id)
      status = hk_fail(err, HK_ENVIRONMENT,
                       "the store '%s' is damaged: its timelines are not in "
                       "the order of their ids",
                       hk_store_name(store));
  }
  hk_store_finish(statement);
  if (status == HK_OK) return HK_OK;
  free(*list);
  *list = NULL;
  *n = 0;
  return status;
}

/* -- Loading ----------------------------------------------------------------------------------- */

/* The other columns of a row; the pointers are valid until the next step of the statement. */
typedef struct {
  const char *graph, *plan, *profile, *fingerprint; /* NULL: none */
  hk_blob spans, counters;
} stored;

static hk_blob blob_at(sqlite3_stmt *statement, int column) {
  /* In this order: SQLite might convert the value otherwise. The bytes are not modified. */
  void *bytes = (void *)(uintptr_t)sqlite3_column_blob(statement, column);
  return (hk_blob){bytes, (size_t)sqlite3_column_bytes(statement, column)};
}

static hk_status read_stored(hk_store *store, sqlite3_stmt *statement, stored *s, hk_error *err) {
  const int at = KEPT_COUNT;
  HK_TRY(hk_store_text(store, statement, at, &s->graph, err));
  HK_TRY(hk_store_text(store, statement, at + 1, &s->plan, err));
  HK_TRY(hk_store_text_if_any(store, statement, at + 2, &s->profile, err));
  HK_TRY(hk_store_text_if_any(store, statement, at + 3, &s->fingerprint, err));
  s->spans = blob_at(statement, at + 4);
  s->counters = blob_at(statement, at + 5);
  return HK_OK;
}

static hk_status parse_document(const char *text, const char *name, cJSON **out, hk_error *err) {
  return text ? hk_json_parse(text, strlen(text), name, out, err) : HK_OK;
}

static hk_status read_documents(const stored *s, hk_loaded_timeline *out, hk_error *err) {
  cJSON *plan = NULL;
  HK_TRY(parse_document(s->profile, "its profile", &out->profile, err));
  HK_TRY(parse_document(s->fingerprint, "its fingerprint", &out->fingerprint, err));
  HK_TRY(parse_document(s->plan, "its plan", &plan, err));
  hk_status status = hk_plan_from_json(plan, &out->plan, err);
  cJSON_Delete(plan);
  if (status != HK_OK) return hk_fail_prefix(err, "its plan");
  if (out->kept.phases == 0 || out->kept.phases > HK_EXPAND_ALL)
    return hk_fail(err, HK_INPUT, "its phases are %u", out->kept.phases);
  return HK_OK;
}

static hk_status read_timeline(const stored *s, hk_loaded_timeline *out, hk_error *err) {
  HK_TRY(hk_timeline_init(&out->graph, &out->timeline, err));
  HK_TRY(hk_spans_decode(&s->spans, &out->timeline, err));
  HK_TRY(hk_counters_decode(&s->counters, &out->timeline, err));
  hk_timeline_phases(&out->graph, &out->timeline);
  return HK_OK;
}

static hk_status expand_again(hk_store *store, const stored *s, hk_loaded_timeline *out,
                              hk_error *err) {
  char hash[17];
  if (hk_graph_build(&out->plan,
                     (hk_expand){out->kept.phases, out->kept.iterations, .folded = true},
                     &out->graph, err) != HK_OK)
    return hk_fail_prefix(err, "timeline %lld of the store '%s'", (long long)out->kept.id,
                          hk_store_name(store));
  hk_graph_hash(&out->graph, hash);
  if (strcmp(hash, s->graph) == 0) return HK_OK;
  return hk_fail(
      err, HK_INPUT,
      "timeline %lld of the store '%s' was stored by hocket %s, which built another graph "
      "of its plan (%s) than this hocket does (%s); use that version, or simulate or run "
      "the plan again",
      (long long)out->kept.id, hk_store_name(store), out->kept.version, s->graph, hash);
}

/* Reports a failure `why` to read stored data as damage of the store. */
static hk_status fail_damaged(hk_store *store, int64_t id, const hk_error *why, hk_error *err) {
  if (why->status != HK_INPUT) return hk_fail(err, why->status, "%s", why->message);
  return hk_fail(
      err, HK_ENVIRONMENT,
      "timeline %lld of the store '%s' is damaged: %s; 'hocket trace delete %lld' deletes "
      "it",
      (long long)id, hk_store_name(store), why->message, (long long)id);
}

static hk_status restore(hk_store *store, const stored *s, hk_loaded_timeline *out, hk_error *err) {
  hk_error why = {0};
  if (read_documents(s, out, &why) != HK_OK) return fail_damaged(store, out->kept.id, &why, err);
  HK_TRY(expand_again(store, s, out, err));
  if (read_timeline(s, out, &why) != HK_OK) return fail_damaged(store, out->kept.id, &why, err);
  return HK_OK;
}

static hk_status fail_unknown(hk_store *store, int64_t id, hk_error *err) {
  return hk_fail(err, HK_INPUT,
                 "there is no timeline %lld in the store '%s' ('hocket trace list' lists them)",
                 (long long)id, hk_store_name(store));
}

hk_status hk_timelines_load(hk_store *store, int64_t id, hk_loaded_timeline *out, hk_error *err) {
  *out = (hk_loaded_timeline){0};
  sqlite3_stmt *statement = NULL;
  bool found = false;
  hk_status status = hk_store_query(store, &statement, err,
                                    "SELECT " KEPT_COLUMNS
                                    ", graph, plan, profile, fingerprint, spans, counters "
                                    "FROM timeline WHERE id = ?",
                                    "i", id);
  if (status == HK_OK) status = hk_store_step(store, statement, &found, err);
  if (status == HK_OK && !found) status = fail_unknown(store, id, err);
  if (status == HK_OK) {
    stored s = {0};
    status = read_kept(store, statement, &out->kept, err);
    if (status == HK_OK) status = read_stored(store, statement, &s, err);
    if (status == HK_OK) status = restore(store, &s, out, err);
  }
  hk_store_finish(statement);
  if (status != HK_OK) hk_loaded_timeline_free(out);
  return status;
}

void hk_loaded_timeline_free(hk_loaded_timeline *loaded) {
  hk_timeline_free(&loaded->timeline);
  hk_graph_free(&loaded->graph);
  hk_plan_free(&loaded->plan);
  cJSON_Delete(loaded->profile);
  cJSON_Delete(loaded->fingerprint);
  *loaded = (hk_loaded_timeline){0};
}

/* -- Deleting ---------------------------------------------------------------------------------- */

hk_status hk_timelines_delete(hk_store *store, int64_t id, hk_error *err) {
  HK_TRY(hk_store_do(store, err, "DELETE FROM timeline WHERE id = ?", "i", id));
  return hk_store_changes(store) > 0 ? HK_OK : fail_unknown(store, id, err);
}
