/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket machine diff: which quantities of two calibrations differ by more than noise. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "calib/profiles/profiles.h"
#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/table.h"

/* Share of the quantities that must agree, in %. It is below 100, because with 95 % intervals some
 * quantities differ by chance. */
#define ENOUGH_PCT 90

/* NAN: no quantity has two intervals. */
static double agreeing_pct(const hk_profile_diff *diff) {
  return diff->compared > 0 ? 100.0 * (double)diff->agreeing / (double)diff->compared : NAN;
}

/* The unit of a quantity; a probe has none. */
static const char *unit_of(const hk_profile_change *change) {
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n && !change->probe; i++)
    if (strcmp(list[i].key, change->key) == 0) return list[i].unit;
  return "1";
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_change(const hk_profile_change *c, cJSON *object, bool *ok) {
  hk_put_string(object, c->probe ? "probe" : "key", c->key, ok);
  if (!c->probe) hk_put_string(object, "unit", unit_of(c), ok);
  hk_put_number(object, "a", c->a, ok);
  hk_put_number(object, "a_low", c->a_low, ok);
  hk_put_number(object, "a_high", c->a_high, ok);
  hk_put_number(object, "b", c->b, ok);
  hk_put_number(object, "b_low", c->b_low, ok);
  hk_put_number(object, "b_high", c->b_high, ok);
  hk_put_number(object, "change_pct", c->change_pct, ok);
  hk_put_bool(object, "intervals_known", c->known, ok);
  hk_put_bool(object, "outside", c->outside, ok);
}

static hk_status print_json(const cJSON *a, const cJSON *b, const hk_profile_diff *diff,
                            hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.machine_diff/1", &ok);
  hk_put_string(root, "a", cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(a, "name")), &ok);
  hk_put_string(root, "b", cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(b, "name")), &ok);
  hk_put_number(root, "compared", (double)diff->compared, &ok);
  hk_put_number(root, "agreeing", (double)diff->agreeing, &ok);
  hk_put_number(root, "agreeing_pct", agreeing_pct(diff), &ok);
  hk_put_string(root, "fingerprint", diff->fingerprint, &ok);
  cJSON *quantities = hk_put_array(root, "quantities", &ok);
  cJSON *probes = hk_put_array(root, "probes", &ok);
  for (size_t i = 0; i < diff->n; i++) {
    const hk_profile_change *c = &diff->changes[i];
    put_change(c, hk_put_element(c->probe ? probes : quantities, &ok), &ok);
  }
  return hk_emit_print(root, ok, err);
}

/* -- Text -------------------------------------------------------------------------------------- */

static void value_cell(hk_table *table, const hk_profile_change *c, double value) {
  char text[32];
  hk_table_cell(table, "%s", hk_format_quantity(value, unit_of(c), 4, text, sizeof text));
}

static void add_row(hk_table *table, const hk_profile_change *c) {
  hk_table_row(table, "%s", c->key);
  value_cell(table, c, c->a);
  value_cell(table, c, c->b);
  hk_table_cell(table, "%+.1f %%\t%s", c->change_pct,
                !c->known    ? "no intervals"
                : c->outside ? "outside"
                             : "within noise");
}

/* All quantities, or the probes that are outside. */
static hk_status print_changes(const hk_profile_diff *diff, bool probes, hk_error *err) {
  const hk_column columns[] = {{probes ? "probe" : "quantity", HK_WRAP},
                               {"a", HK_RIGHT},
                               {"b", HK_RIGHT},
                               {"change", HK_RIGHT},
                               {"verdict", HK_LEFT}};
  hk_table table = HK_TABLE(columns);
  size_t rows = 0;
  for (size_t i = 0; i < diff->n; i++) {
    const hk_profile_change *c = &diff->changes[i];
    if (c->probe != probes || (probes && !c->outside)) continue;
    add_row(&table, c);
    rows++;
  }
  if (rows > 0) {
    HK_TRY(hk_table_print(&table, err));
    putchar('\n');
  } else {
    hk_table_drop(&table);
  }
  return HK_OK;
}

static hk_status print_text(const hk_profile_diff *diff, hk_error *err) {
  HK_TRY(print_changes(diff, false, err));
  HK_TRY(print_changes(diff, true, err));
  if (*diff->fingerprint) printf("fingerprints differ (a, here b): %s\n", diff->fingerprint);
  if (diff->compared > 0)
    printf("%zu of %zu quantities agree within their intervals (%.1f %%)\n", diff->agreeing,
           diff->compared, agreeing_pct(diff));
  else
    puts("no quantity has an interval in both profiles: at least one was not calibrated");
  return HK_OK;
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status answer(const hk_args *args, const cJSON *a, const cJSON *b, hk_error *err) {
  hk_profile_diff diff;
  HK_TRY(hk_profiles_diff(a, b, &diff, err));
  const double pct = agreeing_pct(&diff);
  hk_status status = args->json ? print_json(a, b, &diff, err) : print_text(&diff, err);
  if (status == HK_OK) status = hk_emit_flush(err);
  if (status == HK_OK && pct < ENOUGH_PCT)
    status =
        hk_fail(err, HK_NO,
                "they differ by more than noise: %zu of %zu quantities agree, and %d %% are needed",
                diff.agreeing, diff.compared, ENOUGH_PCT);
  hk_profile_diff_free(&diff);
  return status;
}

static hk_status run(const hk_args *args, hk_error *err) {
  cJSON *a = NULL, *b = NULL;
  hk_status status = hk_profiles_load_document(args->operands[0], &a, err);
  if (status == HK_OK) status = hk_profiles_load_document(args->operands[1], &b, err);
  if (status == HK_OK) status = answer(args, a, b, err);
  cJSON_Delete(a);
  cJSON_Delete(b);
  return status;
}

const hk_command hk_command_machine_diff = {
    .name = "machine diff",
    .summary = "Compares two calibrations: which quantities differ",
    .usage = "NAME|FILE NAME|FILE [--wide] [--json]",
    .details =
        "A quantity or probe differs ('outside') if its two 95 % intervals do not\n"
        "overlap.\n"
        "Exit 0: at least 90 % of the quantities with two intervals agree, or there are\n"
        "none. Exit 1: fewer agree.",
    .example = "hocket machine diff h200-16c fast-dram.json",
    .options = HK_OPTION(JSON) | HK_OPTION(WIDE),
    .least_operands = 2,
    .most_operands = 2,
    .run = run,
};
