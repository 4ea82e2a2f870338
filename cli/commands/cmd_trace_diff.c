/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket trace diff: the differences of two stored timelines of one plan, and their causes; or of
 * two plan files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/validate/validate.h"
#include "cli/command.h"
#include "cli/plan_diff.h"
#include "cli/print/emit.h"
#include "cli/print/print_comparison.h"
#include "cli/stored_timeline.h"

typedef struct {
  hk_loaded_timeline a, b;
  hk_op_cost *costs; /* of a, if it was simulated; NULL: unknown */
  hk_timeline_comparison comparison;
} differing;

/* -- Checks ------------------------------------------------------------------------------------ */

/* "forward, backward, update". */
static const char *list_phases(unsigned phases, char *buffer, size_t size) {
  size_t length = 0;
  *buffer = '\0';
  for (int p = 0; p < HK_PHASE_COUNT && length < size; p++)
    if (phases >> p & 1)
      length += (size_t)snprintf(buffer + length, size - length, "%s%s", length ? ", " : "",
                                 hk_phase_name((hk_phase)p));
  return buffer;
}

/* The first property in which the plans or their phases differ; x and y: both values. */
static const char *tell_difference(const hk_loaded_timeline *a, const hk_loaded_timeline *b,
                                   char x[64], char y[64]) {
  const hk_plan *p = &a->plan, *q = &b->plan;
  snprintf(x, 64, "%.63s", p->model.name);
  snprintf(y, 64, "%.63s", q->model.name);
  if (strcmp(x, y) != 0) return "models";
  hk_plan_title(p, x, 64);
  hk_plan_title(q, y, 64);
  if (strcmp(x, y) != 0) return "policies";
  snprintf(x, 64, "%s", hk_runtime_name(p->runtime));
  snprintf(y, 64, "%s", hk_runtime_name(q->runtime));
  if (strcmp(x, y) != 0) return "runtimes";
  snprintf(x, 64, "%zu", p->n_subgroups);
  snprintf(y, 64, "%zu", q->n_subgroups);
  if (strcmp(x, y) != 0) return "numbers of subgroups";
  list_phases(a->kept.phases, x, 64);
  list_phases(b->kept.phases, y, 64);
  if (strcmp(x, y) != 0) return "phases";
  hk_graph_hash(&a->graph, x);
  hk_graph_hash(&b->graph, y);
  return "graphs (job, buffers, pieces or threads differ)";
}

static hk_status check_alike(const hk_loaded_timeline *a, const hk_loaded_timeline *b,
                             hk_error *err) {
  char x[64], y[64], first[17], second[17];
  hk_graph_hash(&a->graph, first);
  hk_graph_hash(&b->graph, second);
  if (strcmp(first, second) == 0) return HK_OK;
  return hk_fail(
      err, HK_INPUT,
      "timelines %lld and %lld are not of the same plan and cannot be joined by operation: "
      "their %s are '%s' and '%s'",
      (long long)a->kept.id, (long long)b->kept.id, tell_difference(a, b, x, y), x, y);
}

/* -- Comparing --------------------------------------------------------------------------------- */

static hk_status find_costs(differing *d, hk_error *err) {
  if (d->a.kept.measured || !d->a.profile) return HK_OK;
  hk_machine machine = {0};
  hk_status status = hk_machine_from_json(d->a.profile, &machine, err);
  if (status == HK_OK) status = hk_op_costs(&d->a.graph, &machine, &d->costs, err);
  hk_machine_free(&machine);
  return status == HK_OK
             ? HK_OK
             : hk_fail_prefix(err, "the profile of timeline %lld", (long long)d->a.kept.id);
}

static hk_status compare(const hk_args *args, differing *d, hk_error *err) {
  HK_TRY(hk_stored_timeline_load(args->operands[0], &d->a, err));
  HK_TRY(hk_stored_timeline_load(args->operands[1], &d->b, err));
  HK_TRY(check_alike(&d->a, &d->b, err));
  HK_TRY(find_costs(d, err));
  return hk_timelines_compare(&d->a.graph, &d->a.timeline, &d->b.timeline, d->costs, &d->comparison,
                              err);
}

/* -- Answer ------------------------------------------------------------------------------------ */

static void put_timeline(cJSON *object, const hk_stored_timeline *kept, bool *ok) {
  hk_put_number(object, "id", (double)kept->id, ok);
  hk_put_string(object, "kind", hk_stored_timeline_kind(kept), ok);
  hk_put_string(object, "made", kept->made, ok);
  hk_put_string(object, "label", kept->label, ok);
  hk_put_string(object, "machine", kept->machine, ok);
}

static hk_status print_json(const differing *d, const hk_comparison_input *compared,
                            hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.trace_diff/1", &ok);
  put_timeline(hk_put_object(root, "a", &ok), &d->a.kept, &ok);
  put_timeline(hk_put_object(root, "b", &ok), &d->b.kept, &ok);
  hk_put_comparison(compared, root, &ok);
  return hk_emit_print(root, ok, err);
}

static void print_heading(const char *name, const hk_stored_timeline *kept) {
  printf("%s: timeline %lld, %s %s%s%s: %s\n", name, (long long)kept->id,
         hk_stored_timeline_kind(kept), kept->made, *kept->machine ? " on " : "", kept->machine,
         kept->label);
}

static hk_status answer(const hk_args *args, const differing *d, hk_error *err) {
  const hk_comparison_input compared = {
      &d->a.graph, &d->a.timeline, &d->b.timeline, &d->comparison, "a", "b"};
  if (args->json) return print_json(d, &compared, err);
  print_heading("a", &d->a.kept);
  print_heading("b", &d->b.kept);
  putchar('\n');
  return hk_print_comparison(&compared, err);
}

static hk_status run(const hk_args *args, hk_error *err) {
  differing d = {0};
  if (!hk_stored_timeline_is_id(args->operands[0]) && !hk_stored_timeline_is_id(args->operands[1]))
    return hk_plan_diff(args, err);
  hk_status status = compare(args, &d, err);
  if (status == HK_OK) status = answer(args, &d, err);
  hk_timeline_comparison_free(&d.comparison);
  free(d.costs);
  hk_loaded_timeline_free(&d.b);
  hk_loaded_timeline_free(&d.a);
  return status;
}

const hk_command hk_command_trace_diff = {
    .name = "trace diff",
    .summary = "Compares two stored timelines of one plan, or two plans",
    .usage = "A B [--wide] [--json]",
    .details =
        "A and B are ids ('hocket trace list'). Joins the timelines by operation and\n"
        "prints makespan, phases, lanes and kinds of operation, with the error of A as a\n"
        "prediction of B. The difference of the makespans is divided among causes that\n"
        "add up to it. If A was simulated, its profile tells what each operation takes\n"
        "alone, and so separates contention from rate.\n"
        "If A and B are plan files, it prints the settings that differ, and the\n"
        "parameters on each route.",
    .example = "hocket trace diff 1 2",
    .options = HK_OPTION(JSON) | HK_OPTION(WIDE),
    .least_operands = 2,
    .most_operands = 2,
    .run = run,
};
