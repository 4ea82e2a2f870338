/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A calibration as tables and as JSON. A "replay" is the simulation of a measured load with the
 * fitted profile. */
#include "cli/print/print_calibration.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/calibration.h"
#include "cli/print/emit.h"
#include "cli/print/explain.h"
#include "cli/print/table.h"

#define WORST        5    /* number of replays shown */
#define MOST_WORTH_S 1800 /* a longer calibration is no advice */

static size_t count_rounds(const hk_campaign *campaign) {
  size_t rounds = 0;
  for (size_t i = 0; i < campaign->n; i++) rounds += campaign->series[i].rounds;
  return rounds;
}

/* Half width of the 95 % interval over the median, in %, of the least precise load. INFINITY: too
 * few rounds. */
static double spread_pct(const hk_series *series) {
  double worst = series->rounds > 0 ? 0 : INFINITY;
  for (int i = 0; i < series->probe.n_loads && series->rounds > 0; i++)
    worst = fmax(worst, 100 * hk_summary_spread(&series->summary[i]));
  return worst;
}

/* A resumed calibration has the options with which it was begun. */
static bool is_quick(const cJSON *document) {
  hk_calibration_summary summary;
  hk_calibration_summarise(hk_calibration_of(document), &summary);
  return summary.quick;
}

static bool is_noisy(const hk_series *series) {
  return !series->narrow && !series->failed;
}

/* The load of a replay; NULL if the campaign has no such probe. */
static const hk_load *load_of(const hk_calibration *c, const hk_replayed *replay) {
  const hk_series *series = hk_campaign_find(&c->campaign, replay->probe);
  return series && replay->load < series->probe.n_loads ? &series->probe.loads[replay->load] : NULL;
}

/* "h2d gpu0", "adamw_cpu". */
static const char *load_title(const hk_load *load, char *buffer, size_t size) {
  if (!load || hk_load_is(load->kind, HK_TRAIT_CPU))
    snprintf(buffer, size, "%s", load ? hk_load_name(load->kind) : "-");
  else
    snprintf(buffer, size, "%s gpu%d", hk_load_name(load->kind), load->gpu);
  return buffer;
}

static const char *load_unit(const hk_load *load) {
  return load ? hk_load_unit(load->kind) : "1";
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_quantity(const hk_calibrated *q, cJSON *object, bool *ok) {
  hk_put_string(object, "key", q->info->key, ok);
  hk_put_string(object, "unit", q->info->unit, ok);
  hk_put_number(object, "value", q->value, ok);
  hk_put_number(object, "low", q->low, ok);
  hk_put_number(object, "high", q->high, ok);
  hk_put_string(object, "origin", hk_origin_name(q->origin), ok);
  hk_put_number(object, "probes", (double)q->probes, ok);
  hk_put_string(object, "how", q->how, ok);
}

static void put_replay(const hk_calibration *c, const hk_replayed *r, cJSON *object, bool *ok) {
  char title[48];
  const hk_load *load = load_of(c, r);
  hk_put_string(object, "probe", r->probe, ok);
  hk_put_string(object, "load", load_title(load, title, sizeof title), ok);
  hk_put_string(object, "unit", load_unit(load), ok);
  hk_put_number(object, "measured", r->measured, ok);
  hk_put_number(object, "predicted", r->predicted, ok);
  hk_put_number(object, "error_pct", r->error_pct, ok);
}

static void put_troubles(const hk_campaign *campaign, cJSON *root, bool *ok) {
  cJSON *noisy = hk_put_array(root, "noisy", ok), *failed = hk_put_array(root, "failed", ok);
  for (size_t i = 0; i < campaign->n; i++) {
    const hk_series *series = &campaign->series[i];
    cJSON *list = series->failed ? failed : is_noisy(series) ? noisy : NULL;
    if (!list) continue;
    cJSON *object = hk_put_element(list, ok);
    hk_put_string(object, "probe", series->probe.name, ok);
    if (series->failed)
      hk_put_string(object, "reason", series->failure, ok);
    else
      hk_put_number(object, "spread_pct", spread_pct(series), ok);
  }
}

static void put_expected(const hk_calibration *c, cJSON *root, bool *ok) {
  const hk_expected_error *e = &c->fit.expected;
  cJSON *object = hk_put_object(root, "expected_error", ok);
  hk_put_number(object, "nine_in_ten_pct", e->expected_pct, ok);
  hk_put_number(object, "noise_pct", e->noise_pct, ok);
  hk_put_number(object, "model_pct", e->model_pct, ok);
  hk_put_number(object, "most_pct", HK_MOST_EXPECTED_PCT, ok);
  hk_put_number(object, "probes_measured_once", (double)c->fit.once, ok);
  hk_put_number(object, "worth_s", hk_expected_error_worth_s(e, c->campaign.seconds), ok);
}

hk_status hk_print_calibration_json(const hk_args *args, const hk_calibration *c,
                                    const cJSON *document, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.calibration/1", &ok);
  hk_put_string(root, "name", c->fit.machine.name, &ok);
  hk_put_bool(root, "accepted", c->fit.accepted, &ok);
  hk_put_bool(root, "quick", is_quick(document), &ok);
  hk_put_bool(root, "interrupted", false, &ok);
  hk_put_bool(root, "resumed", c->resumed, &ok);
  hk_put_number(root, "seconds", c->campaign.seconds, &ok);
  hk_put_number(root, "probes", (double)c->campaign.n, &ok);
  hk_put_number(root, "rounds", (double)count_rounds(&c->campaign), &ok);
  put_troubles(&c->campaign, root, &ok);
  cJSON *replay = hk_put_object(root, "replay", &ok);
  hk_put_number(replay, "median_abs_error_pct", c->fit.median_error_pct, &ok);
  hk_put_number(replay, "p90_abs_error_pct", c->fit.p90_error_pct, &ok);
  hk_put_number(replay, "worst_abs_error_pct", c->fit.worst_error_pct, &ok);
  put_expected(c, root, &ok);
  cJSON *quantities = hk_put_array(root, "quantities", &ok);
  for (size_t i = 0; i < c->fit.n_quantities; i++)
    put_quantity(&c->fit.quantities[i], hk_put_element(quantities, &ok), &ok);
  cJSON *replays = hk_put_array(root, "replays", &ok);
  for (size_t i = 0; i < c->fit.n_replays; i++)
    put_replay(c, &c->fit.replays[i], hk_put_element(replays, &ok), &ok);
  hk_put_item(root, "profile", cJSON_Duplicate(document, true), &ok);
  if (args->explain) hk_explain_json(&c->fit.machine, NULL, root, &ok);
  return hk_emit_print(root, ok, err);
}

/* -- Text -------------------------------------------------------------------------------------- */

/* What more measuring would gain. */
static void print_worth(const hk_calibration *c) {
  const hk_expected_error *e = &c->fit.expected;
  const double worth_s = hk_expected_error_worth_s(e, c->campaign.seconds);
  if (worth_s <= 0)
    printf("  more time gains nothing: %.1f %% is the simulator's own error\n", e->model_pct);
  else if (worth_s < MOST_WORTH_S)
    printf("  %.0f s more would bring it to %.1f %%; beyond that time gains nothing\n", worth_s,
           HK_WORTH * e->model_pct);
  else
    printf("  measuring limits it (%.1f %%): use a quieter machine\n", e->noise_pct);
}

static void print_heading(const hk_calibration *c, bool quick) {
  const hk_fingerprint *f = &c->fingerprint;
  printf("%s: %s: nine in ten predicted updates are expected to be within %.1f %%\n",
         c->fit.machine.name, c->fit.accepted ? "accepted" : "not accepted",
         c->fit.expected.expected_pct);
  print_worth(c);
  printf("%s calibration of %lld x %s, %lld cores of %s\n\n", quick ? "quick" : "full",
         (long long)f->gpus, f->gpu, (long long)f->cores, f->cpu);
}

static hk_status print_quantities(const hk_profile_fit *fit, hk_error *err) {
  static const hk_column columns[] = {{"quantity", HK_LEFT},
                                      {"value", HK_RIGHT},
                                      {"95 % interval", HK_LEFT},
                                      {"origin", HK_LEFT},
                                      {"how", HK_BELOW}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < fit->n_quantities; i++) {
    const hk_calibrated *q = &fit->quantities[i];
    const char *unit = q->info->unit;
    char text[80];
    hk_table_row(&table, "%s\t%s", q->info->key,
                 hk_format_quantity(q->value, unit, 4, text, sizeof text));
    hk_table_cell(&table, "%s\t%s\t%s",
                  hk_format_interval(q->low, q->high, unit, text, sizeof text),
                  hk_origin_name(q->origin), q->how);
  }
  return hk_table_print(&table, err);
}

/* The replays with the largest absolute errors, the largest first. Returns their number. */
static size_t find_worst(const hk_profile_fit *fit, const hk_replayed *worst[WORST]) {
  size_t n = 0;
  for (size_t i = 0; i < fit->n_replays; i++) {
    const hk_replayed *r = &fit->replays[i];
    size_t at = n < WORST ? n++ : WORST;
    for (; at > 0 && fabs(r->error_pct) > fabs(worst[at - 1]->error_pct); at--)
      if (at < WORST) worst[at] = worst[at - 1];
    if (at < WORST) worst[at] = r;
  }
  return n;
}

static void add_replay(hk_table *table, const hk_calibration *c, const hk_replayed *r) {
  const hk_load *load = load_of(c, r);
  const char *unit = load_unit(load);
  char text[48];
  hk_table_row(table, "%s\t%s", r->probe, load_title(load, text, sizeof text));
  hk_table_cell(table, "%s", hk_format_quantity(r->measured, unit, 4, text, sizeof text));
  hk_table_cell(table, "%s\t%+.1f %%", hk_format_quantity(r->predicted, unit, 4, text, sizeof text),
                r->error_pct);
}

static hk_status print_replays(const hk_calibration *c, hk_error *err) {
  static const hk_column columns[] = {{"largest errors", HK_WRAP},
                                      {"load", HK_LEFT},
                                      {"measured", HK_RIGHT},
                                      {"simulated", HK_RIGHT},
                                      {"error", HK_RIGHT}};
  const hk_replayed *worst[WORST];
  const size_t n = find_worst(&c->fit, worst);
  if (n == 0) return HK_OK;
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < n; i++) add_replay(&table, c, worst[i]);
  putchar('\n');
  HK_TRY(hk_table_print(&table, err));
  printf(
      "\nsimulation of %zu measured values: errors %.1f %% (median), %.1f %% (90th percentile), "
      "%.1f %% (worst)\n",
      c->fit.n_replays, c->fit.median_error_pct, c->fit.p90_error_pct, c->fit.worst_error_pct);
  return HK_OK;
}

static void add_trouble(hk_table *table, const hk_series *series) {
  hk_table_row(table, "%s", series->probe.name);
  if (series->failed)
    hk_table_cell(table, "failed: %s", series->failure);
  else if (isinf(spread_pct(series)))
    hk_table_cell(table, "noisy: %zu rounds, too few for an interval", series->rounds);
  else
    hk_table_cell(table, "noisy: +-%.1f %% after %zu rounds", spread_pct(series), series->rounds);
}

static hk_status print_troubles(const hk_campaign *campaign, hk_error *err) {
  static const hk_column columns[] = {{"probe", HK_WRAP}, {"problem", HK_WRAP}};
  if (campaign->noisy + campaign->failures == 0) return HK_OK;
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < campaign->n; i++)
    if (campaign->series[i].failed || is_noisy(&campaign->series[i]))
      add_trouble(&table, &campaign->series[i]);
  putchar('\n');
  return hk_table_print(&table, err);
}

hk_status hk_print_calibration_text(const hk_args *args, const hk_calibration *c,
                                    const cJSON *document, const char *store, hk_error *err) {
  print_heading(c, is_quick(document));
  HK_TRY(print_quantities(&c->fit, err));
  HK_TRY(print_replays(c, err));
  HK_TRY(print_troubles(&c->campaign, err));
  if (args->explain) {
    putchar('\n');
    HK_TRY(hk_explain_text(&c->fit.machine, NULL, err));
  }
  printf("\n%zu probes, %zu rounds, measured for %.0f s; stored as '%s' in %s\n", c->campaign.n,
         count_rounds(&c->campaign), c->campaign.seconds, c->fit.machine.name, store);
  printf("next: hocket plan --model llama-2-7b --machine %s\n", c->fit.machine.name);
  return HK_OK;
}

/* -- Verdict ----------------------------------------------------------------------------------- */

/* Appends a reason, after "; " if it is not the first. */
__attribute__((format(printf, 3, 4))) static void add_reason(char *reasons, size_t size,
                                                             const char *format, ...) {
  const size_t length = strlen(reasons);
  va_list values;
  snprintf(reasons + length, size - length, "%s", length > 0 ? "; " : "");
  va_start(values, format);
  vsnprintf(reasons + strlen(reasons), size - strlen(reasons), format, values);
  va_end(values);
}

hk_status hk_judge_calibration(const hk_calibration *c, hk_error *err) {
  const hk_expected_error *e = &c->fit.expected;
  char reasons[400] = "";
  if (c->fit.once > 0)
    add_reason(reasons, sizeof reasons,
               "%zu of %zu probes were measured once, which says nothing about their errors; use a "
               "larger --budget",
               c->fit.once, c->campaign.n);
  if (e->expected_pct > HK_MOST_EXPECTED_PCT)
    add_reason(reasons, sizeof reasons,
               "updates predicted with it are expected to be off by up to %.1f %% in nine of ten "
               "cases, and at most %d are accepted (intervals of its quantities: %.1f %%; the "
               "simulator's errors on its own probes: %.1f %%); use a quieter machine%s",
               e->expected_pct, HK_MOST_EXPECTED_PCT, e->noise_pct, e->model_pct,
               e->noise_pct > e->model_pct ? " or a larger --budget" : "");
  if (c->campaign.failures > 0)
    add_reason(reasons, sizeof reasons, "%zu of %zu probes failed", c->campaign.failures,
               c->campaign.n);
  if (!*reasons) return HK_OK;
  return hk_fail(err, HK_NO, "profile '%s' is stored, but it is not accurate enough: %s",
                 c->fit.machine.name, reasons);
}
