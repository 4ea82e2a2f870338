/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The certificate of a lower bound: a line of text, and all that scripts/check-certificate needs to
 * verify it. */
#include <math.h>
#include <stdio.h>

#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/screen.h"

#define SMALL_GAP 0.02 /* below it what binds is of no interest */

void hk_report_certificate(const hk_certificate *c) {
  if (c->unsolved)
    hk_print_text(0, 2,
                  "note: no bound over all divisions of the update: GLPK did not solve its linear "
                  "programme");
  if (!c->made) return;
  const double gap = hk_certificate_gap(c);
  char memory[80] = "", change[48] = "1 % less time of it";
  if (c->unit[0] != '%') snprintf(change, sizeof change, "1 %s more of it", c->unit);
  if (c->memory_ns >= 5e4)
    snprintf(memory, sizeof memory, ", 1 GiB more of GPU memory %.1f ms",
             hk_ms((hk_ns)c->memory_ns));
  if (gap <= SMALL_GAP)
    hk_print_text(0, 2, "no division of the update is faster than %.1f ms: gap %.1f %%",
                  hk_ms(c->bound_ns), 100 * fmax(0, gap));
  else
    hk_print_text(0, 2,
                  "no division of the update is faster than %.1f ms: gap %.1f %%; %s binds most, "
                  "%s is worth %.2f ms%s",
                  hk_ms(c->bound_ns), 100 * gap, c->binding, change, c->worth_ns / 1e6, memory);
}

static void put_mode(const hk_certificate_part *part, int mode, cJSON *element, bool *ok) {
  cJSON *works = hk_put_array(element, "works", ok);
  for (int w = 0; w < HK_WORK_COUNT; w++)
    if (hk_mode_has(mode, w)) hk_append_item(works, cJSON_CreateString(hk_work_names[w]), ok);
  cJSON *limits = hk_put_array(element, "limits", ok);
  for (int i = 0; i < part->n_limits[mode]; i++) {
    const hk_mode_limit *limit = &part->limits[mode][i];
    cJSON *row = hk_put_element(limits, ok);
    hk_put_string(row, "name", limit->name, ok);
    hk_put_number(row, "capacity_per_s", limit->capacity, ok);
    cJSON *uses = hk_put_object(row, "uses", ok);
    for (int w = 0; w < HK_WORK_COUNT; w++)
      if (limit->uses[w] > 0) hk_put_number(uses, hk_work_names[w], limit->uses[w], ok);
    hk_put_number(row, "price", limit->price, ok);
  }
}

static void put_fixed(const hk_fixed_limit *limits, int n, cJSON *root, bool *ok) {
  cJSON *array = hk_put_array(root, "always", ok);
  for (int i = 0; i < n; i++) {
    const hk_fixed_limit *limit = &limits[i];
    cJSON *row = hk_put_element(array, ok);
    hk_put_string(row, "name", limit->name, ok);
    hk_put_number(row, "fixed_ns", limit->fixed_ns, ok);
    hk_put_number(row, "rate_beside_cpu", limit->beside, ok);
    cJSON *times = hk_put_object(row, "ns_per_parameter", ok);
    for (int j = 0; j < HK_ROUTE_COUNT; j++)
      if (limit->time[j] > 0) hk_put_number(times, hk_route_name((hk_route)j), limit->time[j], ok);
    hk_put_number(row, "price", limit->price, ok);
  }
}

static void put_parts(const hk_certificate *c, cJSON *root, bool *ok) {
  cJSON *parts = hk_put_array(root, "parts", ok);
  for (int n = 0; n < c->n_parts; n++) {
    const hk_certificate_part *part = &c->parts[n];
    cJSON *element = hk_put_element(parts, ok);
    hk_put_string(element, "name", part->name, ok);
    hk_put_bool(element, "state_in", part->state, ok);
    put_fixed(part->fixed, part->n_fixed, element, ok);
    cJSON *modes = hk_put_array(element, "modes", ok);
    for (int mode = 0; mode < HK_MODES; mode++)
      if (hk_part_has_mode(part, mode)) put_mode(part, mode, hk_put_element(modes, ok), ok);
  }
}

void hk_report_certificate_json(const hk_certificate *c, cJSON *object, bool *ok) {
  if (!c->made) return;
  cJSON *root = hk_put_object(object, "certificate", ok);
  hk_put_string(root, "schema", "hocket.certificate/2", ok);
  hk_put_number(root, "iteration_ms", hk_ms(c->iteration_ns), ok);
  hk_put_number(root, "bound_ms", hk_ms(c->bound_ns), ok);
  hk_put_number(root, "gap_pct", 100 * hk_certificate_gap(c), ok);
  hk_put_string(root, "binding", c->binding, ok);
  hk_put_number(root, "binding_share", c->binding_share, ok);
  hk_put_string(root, "binding_unit", c->unit, ok);
  hk_put_number(root, "one_unit_more_ms", c->worth_ns / 1e6, ok);
  hk_put_number(root, "one_gib_more_ms", c->memory_ns / 1e6, ok);
  hk_put_number(root, "parameters_per_gpu", c->parameters, ok);
  hk_put_number(root, "before_ns", c->before_ns, ok);
  hk_put_number(root, "least_resident", c->least_resident, ok);
  hk_put_number(root, "most_resident", c->most_resident, ok);
  cJSON *routes = hk_put_object(root, "routes", ok);
  for (int j = 0; j < HK_ROUTE_COUNT; j++) {
    cJSON *works = hk_put_object(routes, hk_route_name((hk_route)j), ok);
    for (int w = 0; w < HK_WORK_COUNT; w++)
      if (c->work[j][w] > 0) hk_put_number(works, hk_work_names[w], c->work[j][w], ok);
    if (c->state_in[j] > 0) hk_put_number(works, "state_in", c->state_in[j], ok);
  }
  put_parts(c, root, ok);
  put_fixed(c->fixed, c->n_fixed, root, ok);
}
