/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The differences of two timelines as tables and as JSON. */
#include "cli/print/print_comparison.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/print/emit.h"
#include "cli/print/table.h"

static bool is_present(const hk_pair *pair) {
  return pair->predicted != 0 || pair->measured != 0;
}

static hk_ns makespan_difference(const hk_comparison_input *c) {
  return c->comparison->makespan.measured - c->comparison->makespan.predicted;
}

hk_comparison_input hk_prediction_and_measurement(const hk_graph *graph,
                                                  const hk_timeline *predicted,
                                                  const hk_timeline *measured,
                                                  const hk_timeline_comparison *comparison) {
  return (hk_comparison_input){.graph = graph,
                               .a = predicted,
                               .b = measured,
                               .comparison = comparison,
                               .a_name = "predicted",
                               .b_name = "measured"};
}

hk_status hk_write_layers(const hk_args *args, const char *command, const hk_graph *graph,
                          const hk_chrome_layer *layers, size_t n, hk_error *err) {
  char title[64];
  snprintf(title, sizeof title, "hocket %s", command);
  HK_TRY(hk_chrome_write_layers(graph, layers, n, title, args->timeline, err));
  if (!args->quiet)
    fprintf(stderr, "hocket %s: wrote %s timelines to %s; open it in ui.perfetto.dev\n", command,
            n == 2 ? "both" : "all", args->timeline);
  return HK_OK;
}

hk_status hk_comparison_write_trace(const hk_args *args, const char *command, const hk_graph *graph,
                                    const hk_timeline *predicted, const hk_timeline *measured,
                                    hk_error *err) {
  const hk_chrome_layer layers[] = {{"predicted", predicted}, {"measured", measured}};
  return args->timeline ? hk_write_layers(args, command, graph, layers, 2, err) : HK_OK;
}

bool hk_comparison_passes(const hk_args *args, const hk_timeline_comparison *comparison) {
  return !(args->given & HK_OPTION(MAX_ERROR)) ||
         fabs(comparison->makespan.error_pct) <= args->max_error;
}

/* -- The sentence ------------------------------------------------------------------------------ */

/* "starts 1.2 ms later and takes 40 us less". */
static void tell_change(hk_ns start, hk_ns duration, char *buffer, size_t size) {
  char by[16], longer[16];
  snprintf(buffer, size, "starts %s %s and takes %s %s", hk_format_ns(llabs(start), by, sizeof by),
           start < 0 ? "earlier" : "later", hk_format_ns(llabs(duration), longer, sizeof longer),
           duration < 0 ? "less" : "more");
}

static void tell_parting(const hk_comparison_input *c, char *buffer, size_t size) {
  const int32_t op = c->comparison->parts_at;
  char label[128], change[80];
  if (op < 0) {
    snprintf(buffer, size, "no operation differs by more than 2 %% of the makespan");
    return;
  }
  const hk_span *a = &c->a->spans[op], *b = &c->b->spans[op];
  tell_change(b->start - a->start, (b->end - b->start) - (a->end - a->start), change,
              sizeof change);
  snprintf(buffer, size, "the first difference is at %s on lane %s, which %s",
           hk_op_label(c->graph, op, label, sizeof label),
           c->graph->lanes[c->graph->ops[op].lane].name, change);
}

const char *hk_comparison_summary(const hk_comparison_input *c, char *buffer, size_t size) {
  const hk_cause cause = c->comparison->main_cause;
  const hk_ns difference = makespan_difference(c);
  char parting[300], whole[16], part[16];
  tell_parting(c, parting, sizeof parting);
  if (difference == 0)
    snprintf(buffer, size, "%s against %s: %s; the makespans are the same", c->b_name, c->a_name,
             parting);
  else
    snprintf(buffer, size, "%s against %s: %s; the makespan is %s %s, mostly by %s (%s%s): %s",
             c->b_name, c->a_name, parting, hk_format_ns(llabs(difference), whole, sizeof whole),
             difference < 0 ? "shorter" : "longer", hk_cause_name(cause),
             c->comparison->causes[cause] < 0 ? "-" : "+",
             hk_format_ns(llabs(c->comparison->causes[cause]), part, sizeof part),
             hk_cause_meaning(cause));
  return buffer;
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_ms(const hk_comparison_input *c, cJSON *object, const hk_pair *pair, bool *ok) {
  char a[32], b[32];
  snprintf(a, sizeof a, "%s_ms", c->a_name);
  snprintf(b, sizeof b, "%s_ms", c->b_name);
  hk_put_number(object, a, hk_ms(pair->predicted), ok);
  hk_put_number(object, b, hk_ms(pair->measured), ok);
  hk_put_number(object, "error_pct", pair->error_pct, ok);
}

static void put_causes(const hk_ns *causes, cJSON *object, bool *ok) {
  for (int i = 0; i < HK_CAUSE_COUNT; i++) {
    char key[32];
    snprintf(key, sizeof key, "%s_ms", hk_cause_name((hk_cause)i));
    hk_put_number(object, key, hk_ms(causes[i]), ok);
  }
}

static void put_phases(const hk_comparison_input *c, cJSON *phases, bool *ok) {
  for (int p = 0; p < HK_PHASE_COUNT; p++)
    if (is_present(&c->comparison->phases[p]))
      put_ms(c, hk_put_object(phases, hk_phase_name((hk_phase)p), ok), &c->comparison->phases[p],
             ok);
}

static void put_lanes(const hk_comparison_input *c, cJSON *lanes, bool *ok) {
  for (size_t l = 0; l < c->comparison->n_lanes; l++) {
    cJSON *lane = hk_put_object(lanes, c->graph->lanes[l].name, ok);
    put_ms(c, hk_put_object(lane, "busy", ok), &c->comparison->lanes[l].busy, ok);
    put_ms(c, hk_put_object(lane, "queued", ok), &c->comparison->lanes[l].queued, ok);
    put_ms(c, hk_put_object(lane, "idle", ok), &c->comparison->lanes[l].idle, ok);
  }
}

static void put_operations(const hk_comparison_input *c, cJSON *operations, bool *ok) {
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    const hk_kind_pair *kind = &c->comparison->kinds[k];
    if (kind->n == 0) continue;
    cJSON *object = hk_put_object(operations, hk_op_kind_name((hk_op_kind)k), ok);
    hk_put_number(object, "count", (double)kind->n, ok);
    put_ms(c, object, &kind->total, ok);
    hk_put_number(object, "median_abs_error_pct", kind->median_error_pct, ok);
    hk_put_number(object, "worst_abs_error_pct", kind->worst_error_pct, ok);
    put_causes(kind->causes, hk_put_object(object, "attribution", ok), ok);
  }
}

static void put_parting(const hk_comparison_input *c, cJSON *root, bool *ok) {
  const int32_t op = c->comparison->parts_at;
  if (op < 0) {
    hk_put_item(root, "parts_at", cJSON_CreateNull(), ok);
    return;
  }
  char label[128], a[40], b[40];
  cJSON *object = hk_put_object(root, "parts_at", ok);
  snprintf(a, sizeof a, "%s_start_ms", c->a_name);
  snprintf(b, sizeof b, "%s_start_ms", c->b_name);
  hk_put_number(object, "operation", op, ok);
  hk_put_string(object, "label", hk_op_label(c->graph, op, label, sizeof label), ok);
  hk_put_number(object, a, hk_ms(c->a->spans[op].start), ok);
  hk_put_number(object, b, hk_ms(c->b->spans[op].start), ok);
}

void hk_put_comparison(const hk_comparison_input *c, cJSON *root, bool *ok) {
  char summary[512];
  put_ms(c, hk_put_object(root, "makespan", ok), &c->comparison->makespan, ok);
  put_phases(c, hk_put_object(root, "phases", ok), ok);
  put_lanes(c, hk_put_object(root, "lanes", ok), ok);
  put_operations(c, hk_put_object(root, "operations", ok), ok);
  cJSON *attribution = hk_put_object(root, "attribution", ok);
  put_causes(c->comparison->causes, attribution, ok);
  hk_put_number(attribution, "sum_ms", hk_ms(makespan_difference(c)), ok);
  hk_put_string(attribution, "main", hk_cause_name(c->comparison->main_cause), ok);
  put_parting(c, root, ok);
  hk_put_string(root, "summary", hk_comparison_summary(c, summary, sizeof summary), ok);
}

/* -- Text -------------------------------------------------------------------------------------- */

static void percent_cell(hk_table *table, bool sign, double percent) {
  if (isnan(percent))
    hk_table_cell(table, "-");
  else
    hk_table_cell(table, sign ? "%+.1f %%" : "%.1f %%", percent);
}

static void ms_cells(hk_table *table, const hk_pair *pair) {
  hk_table_cell(table, "%.3f\t%.3f", hk_ms(pair->predicted), hk_ms(pair->measured));
  percent_cell(table, true, pair->error_pct);
}

static hk_status print_phases(const hk_comparison_input *c, hk_error *err) {
  const hk_column columns[] = {
      {"ms", HK_LEFT}, {c->a_name, HK_RIGHT}, {c->b_name, HK_RIGHT}, {"error", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  hk_table_row(&table, "makespan");
  ms_cells(&table, &c->comparison->makespan);
  for (int p = 0; p < HK_PHASE_COUNT; p++) {
    if (!is_present(&c->comparison->phases[p])) continue;
    hk_table_row(&table, "%s", hk_phase_name((hk_phase)p));
    ms_cells(&table, &c->comparison->phases[p]);
  }
  return hk_table_print(&table, err);
}

static hk_status print_lanes(const hk_comparison_input *c, hk_error *err) {
  char busy[48], queued[48], idle[48];
  const hk_column columns[] = {{"lane", HK_LEFT},
                               {busy, HK_RIGHT},
                               {c->b_name, HK_RIGHT},
                               {"error", HK_RIGHT},
                               {queued, HK_RIGHT | HK_SPARE(1)},
                               {c->b_name, HK_RIGHT | HK_SPARE(1)},
                               {"error", HK_RIGHT | HK_SPARE(1)},
                               {idle, HK_RIGHT | HK_SPARE(2)},
                               {c->b_name, HK_RIGHT | HK_SPARE(2)},
                               {"error", HK_RIGHT | HK_SPARE(2)}};
  snprintf(busy, sizeof busy, "busy ms, %s", c->a_name);
  snprintf(queued, sizeof queued, "queued ms, %s", c->a_name);
  snprintf(idle, sizeof idle, "idle ms, %s", c->a_name);
  hk_table table = HK_TABLE(columns);
  for (size_t l = 0; l < c->comparison->n_lanes; l++) {
    hk_table_row(&table, "%s", c->graph->lanes[l].name);
    ms_cells(&table, &c->comparison->lanes[l].busy);
    ms_cells(&table, &c->comparison->lanes[l].queued);
    ms_cells(&table, &c->comparison->lanes[l].idle);
  }
  return hk_table_print(&table, err);
}

static hk_status print_operations(const hk_comparison_input *c, hk_error *err) {
  char all[48];
  const hk_column columns[] = {
      {"operation", HK_LEFT}, {"count", HK_RIGHT},        {all, HK_RIGHT},    {c->b_name, HK_RIGHT},
      {"error", HK_RIGHT},    {"each, median", HK_RIGHT}, {"worst", HK_RIGHT}};
  snprintf(all, sizeof all, "all ms, %s", c->a_name);
  hk_table table = HK_TABLE(columns);
  for (int k = 0; k < HK_OP_KIND_COUNT; k++) {
    const hk_kind_pair *kind = &c->comparison->kinds[k];
    if (kind->n == 0) continue;
    hk_table_row(&table, "%s\t%zu", hk_op_kind_name((hk_op_kind)k), kind->n);
    ms_cells(&table, &kind->total);
    percent_cell(&table, false, kind->median_error_pct);
    percent_cell(&table, false, kind->worst_error_pct);
  }
  return hk_table_print(&table, err);
}

static void cause_row(hk_table *table, const hk_comparison_input *c, const char *name, hk_ns ns,
                      const char *meaning) {
  const hk_ns whole = c->comparison->makespan.measured;
  hk_table_row(table, "%s\t%+.3f", name, hk_ms(ns));
  percent_cell(table, true, whole > 0 ? 100 * (double)ns / (double)whole : NAN);
  hk_table_cell(table, "%s", meaning);
}

static hk_status print_attribution(const hk_comparison_input *c, hk_error *err) {
  static const hk_column columns[] = {
      {"cause", HK_LEFT}, {"ms", HK_RIGHT}, {"of makespan", HK_RIGHT}, {"meaning", HK_WRAP}};
  char sum[96];
  hk_table table = HK_TABLE(columns);
  for (int i = 0; i < HK_CAUSE_COUNT; i++)
    cause_row(&table, c, hk_cause_name((hk_cause)i), c->comparison->causes[i],
              hk_cause_meaning((hk_cause)i));
  snprintf(sum, sizeof sum, "makespan: %s less %s", c->b_name, c->a_name);
  cause_row(&table, c, "sum", makespan_difference(c), sum);
  return hk_table_print(&table, err);
}

hk_status hk_print_comparison_tables(const hk_comparison_input *c, hk_error *err) {
  HK_TRY(print_phases(c, err));
  putchar('\n');
  HK_TRY(print_lanes(c, err));
  putchar('\n');
  HK_TRY(print_operations(c, err));
  putchar('\n');
  return print_attribution(c, err);
}

hk_status hk_print_comparison(const hk_comparison_input *c, hk_error *err) {
  char summary[512];
  HK_TRY(hk_print_comparison_tables(c, err));
  printf("\n%s\n", hk_comparison_summary(c, summary, sizeof summary));
  return HK_OK;
}
