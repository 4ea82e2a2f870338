/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket trace list | show | delete: stored timelines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/calibration.h"
#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/stored_timeline.h"
#include "core/base/json.h"

/* -- list -------------------------------------------------------------------------------------- */

static void put_kept(cJSON *object, const hk_stored_timeline *kept, bool *ok) {
  hk_put_number(object, "id", (double)kept->id, ok);
  hk_put_item(object, "pair",
              kept->pair ? cJSON_CreateNumber((double)kept->pair) : cJSON_CreateNull(), ok);
  hk_put_string(object, "made", kept->made, ok);
  hk_put_string(object, "kind", hk_stored_timeline_kind(kept), ok);
  hk_put_string(object, "label", kept->label, ok);
  hk_put_string(object, "machine", kept->machine, ok);
  hk_put_string(object, "version", kept->version, ok);
  hk_put_number(object, "operations", (double)kept->operations, ok);
  hk_put_number(object, "makespan_ms", hk_ms(kept->makespan), ok);
}

static hk_status list_json(const hk_stored_timeline *kept, size_t n, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.trace_list/1", &ok);
  cJSON *array = hk_put_array(root, "timelines", &ok);
  for (size_t i = 0; i < n; i++) put_kept(hk_put_element(array, &ok), &kept[i], &ok);
  return hk_emit_print(root, ok, err);
}

static void pair_cell(hk_table *table, int64_t pair) {
  if (pair)
    hk_table_cell(table, "%lld", (long long)pair);
  else
    hk_table_cell(table, "-");
}

static hk_status list_text(const hk_stored_timeline *kept, size_t n, hk_error *err) {
  static const hk_column columns[] = {{"id", HK_RIGHT},
                                      {"pair", HK_RIGHT | HK_SPARE(1)},
                                      {"made", HK_LEFT | HK_SPARE(2)},
                                      {"kind", HK_LEFT},
                                      {"plan", HK_WRAP},
                                      {"machine", HK_WRAP},
                                      {"operations", HK_RIGHT | HK_SPARE(3)},
                                      {"makespan ms", HK_RIGHT}};
  if (n == 0) {
    hk_print_text(0, 0,
                  "no timelines are stored: 'hocket simulate --keep', 'hocket run --keep' and "
                  "'hocket validate engine' store them");
    return HK_OK;
  }
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < n; i++) {
    hk_table_row(&table, "%lld", (long long)kept[i].id);
    pair_cell(&table, kept[i].pair);
    hk_table_cell(&table, "%s\t%s\t%s\t%s\t%zu\t%.3f", kept[i].made,
                  hk_stored_timeline_kind(&kept[i]), kept[i].label,
                  *kept[i].machine ? kept[i].machine : "-", kept[i].operations,
                  hk_ms(kept[i].makespan));
  }
  return hk_table_print(&table, err);
}

static hk_status list(const hk_args *args, hk_error *err) {
  hk_store *store = NULL;
  hk_stored_timeline *kept = NULL;
  size_t n = 0;
  HK_TRY(hk_store_open(NULL, true, &store, err));
  hk_status status = store ? hk_timelines_list(store, &kept, &n, err) : HK_OK;
  if (status == HK_OK) status = args->json ? list_json(kept, n, err) : list_text(kept, n, err);
  free(kept);
  hk_store_close(store);
  return status;
}

/* -- show: sums ---------------------------------------------------------------------------------
 */

typedef struct {
  size_t n;
  hk_ns busy;
} total;

/* Sums per lane and per kind of operation. */
typedef struct {
  const hk_loaded_timeline *timeline;
  total *lanes; /* [n_lanes] */
  total kinds[HK_OP_KIND_COUNT];
} totals;

static void add_span(total *t, const hk_span *span) {
  t->n++;
  t->busy += span->end - span->start;
}

static hk_status sum_up(const hk_loaded_timeline *timeline, totals *out, hk_error *err) {
  const hk_graph *graph = &timeline->graph;
  *out = (totals){.timeline = timeline, .lanes = calloc(graph->n_lanes + 1, sizeof *out->lanes)};
  if (!out->lanes) return hk_fail_memory(err, graph->n_lanes * sizeof *out->lanes, "sums of lanes");
  for (size_t i = 0; i < graph->n_ops; i++) {
    add_span(&out->lanes[graph->ops[i].lane], &timeline->timeline.spans[i]);
    add_span(&out->kinds[graph->ops[i].kind], &timeline->timeline.spans[i]);
  }
  return HK_OK;
}

/* busy / makespan; 0 if the makespan is 0. */
static double share(const totals *t, hk_ns busy) {
  const hk_ns makespan = t->timeline->timeline.makespan;
  return makespan > 0 ? (double)busy / (double)makespan : 0;
}

/* -- show: JSON -------------------------------------------------------------------------------- */

static void put_total(const totals *t, cJSON *object, const total *sum, bool *ok) {
  hk_put_number(object, "operations", (double)sum->n, ok);
  hk_put_number(object, "busy_ms", hk_ms(sum->busy), ok);
  hk_put_number(object, "utilization", share(t, sum->busy), ok);
}

static void put_phases(const hk_loaded_timeline *loaded, cJSON *phases, bool *ok) {
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    if (!(loaded->kept.phases >> p & 1)) continue;
    cJSON *object = hk_put_object(phases, hk_phase_name((hk_phase)p), ok);
    hk_put_number(object, "begin_ms", hk_ms(loaded->timeline.phase_begin[p]), ok);
    hk_put_number(object, "end_ms", hk_ms(loaded->timeline.phase_end[p]), ok);
  }
}

static void put_document(cJSON *root, const char *key, const cJSON *document, bool *ok) {
  hk_put_item(root, key, document ? cJSON_Duplicate(document, true) : cJSON_CreateNull(), ok);
}

static hk_status show_json(const totals *t, hk_error *err) {
  bool ok = true;
  char hash[17];
  const hk_loaded_timeline *loaded = t->timeline;
  cJSON *root = hk_emit_begin("hocket.trace_show/1", &ok);
  put_kept(root, &loaded->kept, &ok);
  hk_graph_hash(&loaded->graph, hash);
  hk_put_string(root, "graph", hash, &ok);
  put_phases(loaded, hk_put_object(root, "phases", &ok), &ok);
  cJSON *lanes = hk_put_object(root, "lanes", &ok);
  for (size_t l = 0; l < loaded->graph.n_lanes; l++)
    put_total(t, hk_put_object(lanes, loaded->graph.lanes[l].name, &ok), &t->lanes[l], &ok);
  cJSON *kinds = hk_put_object(root, "kinds", &ok);
  for (int k = 0; k < HK_OP_KIND_COUNT; k++)
    if (t->kinds[k].n > 0)
      put_total(t, hk_put_object(kinds, hk_op_kind_name((hk_op_kind)k), &ok), &t->kinds[k], &ok);
  hk_put_item(root, "plan", hk_plan_to_json(&loaded->plan), &ok);
  put_document(root, "profile", loaded->profile, &ok);
  put_document(root, "fingerprint", loaded->fingerprint, &ok);
  return hk_emit_print(root, ok, err);
}

/* -- show: text -------------------------------------------------------------------------------- */

static void print_plan(const hk_plan *plan) {
  char count[32], piece[32];
  int64_t numel = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) numel += plan->subgroups[i].numel;
  hk_print_text(
      0, 2,
      "plan: %s runtime; a rank of %d has %s parameters in %zu subgroups, %d CPU threads and %d "
      "buffers of %s",
      hk_runtime_name(plan->runtime), plan->job.gpus * plan->job.nodes,
      hk_format_count(numel, count, sizeof count), plan->n_subgroups, plan->cpu_threads,
      plan->buffers, hk_format_count(plan->piece_numel, piece, sizeof piece));
}

static void print_heading(const hk_loaded_timeline *loaded) {
  const hk_stored_timeline *kept = &loaded->kept;
  char hash[17];
  hk_graph_hash(&loaded->graph, hash);
  printf("timeline %lld: %s, %s\n", (long long)kept->id, hk_stored_timeline_kind(kept),
         kept->label);
  printf("made %s by hocket %s", kept->made, kept->version);
  if (kept->pair)
    printf("; its %s pair is timeline %lld", kept->measured ? "predicted" : "measured",
           (long long)kept->pair);
  putchar('\n');
  print_plan(&loaded->plan);
  printf("graph: %zu operations, %zu lanes, hash %s\n", loaded->graph.n_ops, loaded->graph.n_lanes,
         hash);
  if (loaded->profile)
    hk_print_text(0, 2, "profile: %s, %s", hk_json_text_or(loaded->profile, "name", ""),
                  hk_json_text_or(loaded->profile, "description", ""));
  if (loaded->fingerprint) hk_print_fingerprint("fingerprint:", loaded->fingerprint);
}

static hk_status print_phases(const hk_loaded_timeline *loaded, hk_error *err) {
  static const hk_column columns[] = {{"phase", HK_LEFT}, {"ms", HK_RIGHT}};
  const hk_timeline *timeline = &loaded->timeline;
  hk_table table = HK_TABLE(columns);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    if (!(loaded->kept.phases >> p & 1)) continue;
    hk_table_row(&table, "%s\t%.3f", hk_phase_name((hk_phase)p),
                 hk_ms(timeline->phase_end[p] - timeline->phase_begin[p]));
  }
  hk_table_row(&table, "makespan\t%.3f", hk_ms(timeline->makespan));
  return hk_table_print(&table, err);
}

static void total_row(const totals *t, hk_table *table, const char *name, const total *sum) {
  hk_table_row(table, "%s\t%zu\t%.3f\t%.1f %%", name, sum->n, hk_ms(sum->busy),
               100 * share(t, sum->busy));
}

static hk_status print_lanes(const totals *t, hk_error *err) {
  static const hk_column columns[] = {{"lane", HK_LEFT},
                                      {"operations", HK_RIGHT},
                                      {"busy ms", HK_RIGHT},
                                      {"of makespan", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  for (size_t l = 0; l < t->timeline->graph.n_lanes; l++)
    total_row(t, &table, t->timeline->graph.lanes[l].name, &t->lanes[l]);
  return hk_table_print(&table, err);
}

/* The kind with the longest total time that was not shown yet; marks it as shown. -1: none left. */
static int next_kind(const totals *t, bool shown[HK_OP_KIND_COUNT]) {
  int best = -1;
  for (int k = 0; k < HK_OP_KIND_COUNT; k++)
    if (t->kinds[k].n > 0 && !shown[k] && (best < 0 || t->kinds[k].busy > t->kinds[best].busy))
      best = k;
  if (best >= 0) shown[best] = true;
  return best;
}

#define TOP 8 /* number of kinds shown */

static hk_status print_kinds(const totals *t, hk_error *err) {
  static const hk_column columns[] = {
      {"kind", HK_LEFT}, {"operations", HK_RIGHT}, {"all ms", HK_RIGHT}, {"of makespan", HK_RIGHT}};
  bool shown[HK_OP_KIND_COUNT] = {false};
  hk_table table = HK_TABLE(columns);
  int kind = next_kind(t, shown);
  for (int i = 0; i < TOP && kind >= 0; i++, kind = next_kind(t, shown))
    total_row(t, &table, hk_op_kind_name((hk_op_kind)kind), &t->kinds[kind]);
  return hk_table_print(&table, err);
}

static hk_status show_text(const totals *t, hk_error *err) {
  print_heading(t->timeline);
  putchar('\n');
  HK_TRY(print_phases(t->timeline, err));
  putchar('\n');
  HK_TRY(print_lanes(t, err));
  putchar('\n');
  return print_kinds(t, err);
}

static hk_status show(const hk_args *args, hk_error *err) {
  hk_loaded_timeline loaded;
  totals sums = {0};
  HK_TRY(hk_stored_timeline_load(args->operands[0], &loaded, err));
  hk_status status = sum_up(&loaded, &sums, err);
  if (status == HK_OK) status = args->json ? show_json(&sums, err) : show_text(&sums, err);
  free(sums.lanes);
  hk_loaded_timeline_free(&loaded);
  return status;
}

/* -- delete ------------------------------------------------------------------------------------ */

static hk_status tell_deleted(const hk_args *args, int64_t id, const hk_store *store,
                              hk_error *err) {
  if (!args->json) {
    printf("deleted timeline %lld from %s\n", (long long)id, hk_store_name(store));
    return HK_OK;
  }
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.trace_delete/1", &ok);
  hk_put_number(root, "id", (double)id, &ok);
  hk_put_string(root, "store", hk_store_name(store), &ok);
  return hk_emit_print(root, ok, err);
}

static hk_status delete (const hk_args *args, hk_error *err) {
  int64_t id = 0;
  hk_store *store = NULL;
  HK_TRY(hk_stored_timeline_id(args->operands[0], &id, err));
  HK_TRY(hk_stored_timeline_open(&store, err));
  hk_status status = hk_timelines_delete(store, id, err);
  if (status == HK_OK) status = tell_deleted(args, id, store, err);
  hk_store_close(store);
  return status;
}

const hk_command hk_command_trace_list = {
    .name = "trace list",
    .summary = "Lists the stored timelines, simulated and measured",
    .usage = "[--wide] [--json]",
    .details =
        "The latest comes first. A prediction and its measurement are a pair and name\n"
        "each other.\n"
        "'hocket validate engine', 'hocket simulate --keep' and 'hocket run --keep' store\n"
        "timelines.",
    .example = "hocket trace list",
    .options = HK_OPTION(JSON) | HK_OPTION(WIDE),
    .run = list,
};

const hk_command hk_command_trace_show = {
    .name = "trace show",
    .summary = "Shows a stored timeline and how it was made",
    .usage = "ID [--wide] [--json]",
    .details =
        "Prints plan, profile, fingerprint of the machine and version of hocket; phases,\n"
        "lanes, and the kinds of operation that take most time. --json contains the\n"
        "documents in full: the plan can be simulated or run again.",
    .example = "hocket trace show 1",
    .options = HK_OPTION(JSON) | HK_OPTION(WIDE),
    .least_operands = 1,
    .most_operands = 1,
    .run = show,
};

const hk_command hk_command_trace_delete = {
    .name = "trace delete",
    .summary = "Deletes a stored timeline",
    .usage = "ID [--json]",
    .details = "Deletes without a question. The other timeline of its pair stays.",
    .example = "hocket trace delete 1",
    .options = HK_OPTION(JSON),
    .least_operands = 1,
    .most_operands = 1,
    .run = delete,
};
