/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The draft of a profile: quantities with intervals and sources, and the machine made of them. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/probe_fit_draft.h"
#include "calib/fit/table_fit_problem.h"

/* -- Series ------------------------------------------------------------------------------------ */

bool hk_series_counts(const hk_series *series) {
  for (int i = 0; i < series->probe.n_loads; i++) {
    const hk_summary *s = &series->summary[i];
    if (s->n == 0 || !isfinite(s->median) || s->median <= 0) return false;
  }
  return !series->failed && series->rounds > 0;
}

const hk_series *hk_draft_alone(const hk_draft *draft, hk_load_kind kind, size_t *at) {
  while (*at < draft->campaign->n) {
    const hk_series *series = &draft->campaign->series[(*at)++];
    if (series->probe.n_loads == 1 && series->probe.loads[0].kind == kind &&
        hk_series_counts(series))
      return series;
  }
  return NULL;
}

int hk_series_find(const hk_series *series, hk_load_kind kind) {
  for (int i = 0; i < series->probe.n_loads; i++)
    if (series->probe.loads[i].kind == kind) return i;
  return -1;
}

double hk_series_error(const hk_series *series, int load) {
  const hk_summary *s = &series->summary[load];
  const hk_estimate e = hk_estimate_median(s, 1);
  return fmax(HK_INSTRUMENT, (e.high - e.low) / 2 / HK_HALF_INTERVAL / s->median);
}

const char *hk_probe_count(size_t n, char text[24]) {
  snprintf(text, 24, "%zu probe%s", n, n == 1 ? "" : "s");
  return text;
}

/* -- Estimates --------------------------------------------------------------------------------- */

hk_estimate hk_estimate_fitted(double value, double error, size_t probes) {
  const double reach = fmax(HK_HALF_INTERVAL * error, HK_INSTRUMENT);
  /* The interval is symmetric in logarithms: no bound is below 0. */
  return (hk_estimate){value, value * exp(-reach), value * exp(reach), probes};
}

/* Half of a 95 % interval for a mean of n <= 3 normal values, divided by their range: the standard
 * deviation is range / d2, with d2 = 1.128 (n = 2) and 1.693 (n = 3). From 4 values on the range
 * itself is wide enough. */
static double reach_of_few(const hk_summary *s) {
  const double range = s->most - s->least;
  return s->n == 2   ? HK_HALF_INTERVAL * range / 1.128 / sqrt(2)
         : s->n == 3 ? HK_HALF_INTERVAL * range / 1.693 / sqrt(3)
                     : 0;
}

hk_estimate hk_estimate_median(const hk_summary *s, double factor) {
  const double reach = reach_of_few(s), lowest = s->median * HK_INSTRUMENT;
  const double low = isfinite(s->low) ? s->low : fmax(fmin(s->least, s->median - reach), lowest);
  const double high = isfinite(s->high) ? s->high : fmax(s->most, s->median + reach);
  return (hk_estimate){factor * s->median, factor * fmin(low, s->median * (1 - HK_INSTRUMENT)),
                       factor * fmax(high, s->median * (1 + HK_INSTRUMENT)), 1};
}

void hk_ratios_add(hk_ratios *all, double ratio, double error) {
  all->least = all->n == 0 ? ratio : fmin(all->least, ratio);
  all->most = all->n == 0 ? ratio : fmax(all->most, ratio);
  all->sum += log(ratio);
  all->squares += error * error;
  all->n++;
}

hk_estimate hk_ratios_mean(const hk_ratios *all) {
  const double n = (double)all->n;
  const double error = hypot(sqrt(all->squares), log(all->most / all->least) / 2) / sqrt(n);
  return hk_estimate_fitted(exp(all->sum / n), error, all->n);
}

/* -- Quantities -------------------------------------------------------------------------------- */

static hk_calibrated *entry_of(hk_draft *draft, const hk_quantity *quantity) {
  size_t i = 0;
  while (hk_machine_quantity(&draft->machine, draft->quantities[i].info) != quantity) i++;
  return &draft->quantities[i];
}

__attribute__((format(printf, 2, 3))) static void append(hk_calibrated *entry, const char *format,
                                                         ...) {
  const size_t length = strlen(entry->how);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(entry->how + length, sizeof entry->how - length, format, arguments);
  va_end(arguments);
}

static void move(hk_draft *draft, hk_quantity *quantity, double value, const char *reason) {
  hk_calibrated *entry = entry_of(draft, quantity);
  if (entry->value == value) return;
  append(entry, "; %s from %.6g: %s", value > entry->value ? "raised" : "lowered", entry->value,
         reason);
  quantity->value = entry->value = value;
  entry->low = fmin(entry->low, value); /* NAN, no interval, stays */
  entry->high = fmax(entry->high, value);
}

/* Stores the value, moved to the limits of hk_quantity_list. */
static void put(hk_draft *draft, hk_quantity *quantity, hk_calibrated *entry, double value) {
  const hk_quantity_info *info = entry->info;
  quantity->value = entry->value = value;
  quantity->origin = entry->origin;
  quantity->source = entry->how;
  move(draft, quantity, fmin(fmax(entry->value, info->least), info->most), "limit of the quantity");
}

void hk_draft_set(hk_draft *draft, hk_quantity *quantity, hk_origin origin, hk_estimate estimate,
                  const char *format, ...) {
  hk_calibrated *entry = entry_of(draft, quantity);
  const int length = snprintf(entry->how, sizeof entry->how, "calibrate %.10s: ", draft->date);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(entry->how + length, sizeof entry->how - (size_t)length, format, arguments);
  va_end(arguments);
  entry->origin = origin;
  /* Measurements are stored with six digits. A count has an interval of width 0 and stays exact. */
  const bool exact = estimate.low == estimate.high;
  entry->low = exact ? estimate.low : hk_fit_rounded(estimate.low);
  entry->high = exact ? estimate.high : hk_fit_rounded(estimate.high);
  entry->low = fmax(entry->low, entry->info->least);
  entry->high = fmin(entry->high, entry->info->most);
  entry->probes = estimate.probes;
  put(draft, quantity, entry, exact ? estimate.value : hk_fit_rounded(estimate.value));
}

double hk_draft_default(hk_draft *draft, const hk_quantity *quantity) {
  return entry_of(draft, quantity)->info->fallback;
}

void hk_draft_assume(hk_draft *draft, hk_quantity *quantity, double value, const char *format,
                     ...) {
  hk_calibrated *entry = entry_of(draft, quantity);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(entry->how, sizeof entry->how, format, arguments);
  va_end(arguments);
  entry->origin = HK_ORIGIN_DEFAULT;
  entry->low = entry->high = NAN;
  put(draft, quantity, entry, hk_fit_rounded(value));
}

/* -- Segments ---------------------------------------------------------------------------------- */

hk_status hk_draft_segments(hk_draft *draft, const char *what, const hk_line *line) {
  hk_profile_fit *fit = draft->fit;
  hk_line_segment *grown = realloc(fit->segments, (fit->n_segments + line->n) * sizeof *grown);
  if (!grown)
    return hk_fail_memory(draft->err, (fit->n_segments + line->n) * sizeof *grown, "segments");
  fit->segments = grown;
  for (size_t i = 0; i < line->n; i++) {
    hk_line_segment *kept = &grown[fit->n_segments++];
    *kept = line->segments[i];
    snprintf(kept->what, sizeof kept->what, "%s", what);
  }
  return HK_OK;
}

/* -- Relations between quantities (hk_machine_limit) ------------------------------------------- */

static void at_most(hk_draft *draft, hk_quantity *quantity, double limit, const char *reason) {
  if (quantity->value > limit) move(draft, quantity, limit, reason);
}

static void at_least(hk_draft *draft, hk_quantity *quantity, double limit, const char *reason) {
  if (quantity->value < limit) move(draft, quantity, limit, reason);
}

void hk_draft_agree(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  static const char one[] = "no less than one direction alone", sum[] = "both directions alone",
                    link[] = "no less than one GPU's link";
  at_least(draft, &m->duplex, fmax(m->h2d.value, m->d2h.value), one);
  at_most(draft, &m->duplex, hk_machine_limit(m, &m->duplex), sum);
  at_most(draft, &m->mapped, hk_machine_limit(m, &m->mapped),
          "a kernel crosses the same link as copies");
  at_least(draft, &m->fabric_h2d, m->h2d.value, link);
  at_least(draft, &m->fabric_d2h, m->d2h.value, link);
  at_least(draft, &m->fabric_duplex, m->duplex.value, link);
  at_most(draft, &m->fabric_duplex, hk_machine_limit(m, &m->fabric_duplex), sum);
}

/* -- Opening and closing ----------------------------------------------------------------------- */

hk_status hk_draft_open(hk_draft *draft) {
  const hk_quantity_info *list = hk_quantity_list(&draft->n_quantities);
  draft->quantities = calloc(draft->n_quantities, sizeof *draft->quantities);
  if (!draft->quantities)
    return hk_fail_memory(draft->err, draft->n_quantities * sizeof *draft->quantities,
                          "a profile's quantities");
  for (size_t i = 0; i < draft->n_quantities; i++) {
    draft->quantities[i] = (hk_calibrated){.info = &list[i], .value = NAN};
    /* Replays read all quantities: those not yet known need a legal value, too. */
    hk_quantity *quantity = hk_machine_quantity(&draft->machine, &list[i]);
    quantity->value = isnan(list[i].fallback) ? list[i].most : list[i].fallback;
  }
  return HK_OK;
}

void hk_draft_close(hk_draft *draft) {
  free(draft->quantities);
  draft->quantities = NULL;
}

/* -- The machine ------------------------------------------------------------------------------- */

/* The default of a reserve, or an eighth of the memory if the default is a quarter of it or more.
 */
static void assume_reserve(hk_draft *draft, hk_quantity *quantity, double memory) {
  const double fallback = hk_draft_default(draft, quantity);
  if (fallback < memory / 4)
    hk_draft_assume(draft, quantity, fallback, "not probed by calibrate");
  else
    hk_draft_assume(
        draft, quantity, memory / 8,
        "not probed by calibrate; an eighth of the memory: the default, %.3g, is a quarter or more",
        fallback);
}

static void describe(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  const hk_fingerprint *f = draft->fingerprint;
  char memory[32];
  snprintf(m->name, sizeof m->name, "%s", draft->name);
  if (draft->description)
    snprintf(m->description, sizeof m->description, "%s", draft->description);
  else
    snprintf(m->description, sizeof m->description,
             "%.0f x %.60s, %.0f cores of %.60s, %s; calibrated on %.10s (%.20s)", m->gpus.value,
             f->gpu, m->cores.value, f->cpu,
             hk_format_bytes((hk_bytes)m->host_memory.value, memory, sizeof memory), draft->date,
             f->backend);
}

/* Copies the quantities that were calibrated to the fit, in the order of hk_quantity_list. */
static hk_status copy_calibrated(hk_draft *draft) {
  hk_profile_fit *fit = draft->fit;
  fit->quantities = calloc(draft->n_quantities, sizeof *fit->quantities);
  if (!fit->quantities)
    return hk_fail_memory(draft->err, draft->n_quantities * sizeof *fit->quantities,
                          "a profile's quantities");
  for (size_t i = 0; i < draft->n_quantities; i++)
    if (draft->quantities[i].origin != HK_ORIGIN_DEFAULT)
      fit->quantities[fit->n_quantities++] = draft->quantities[i];
  return HK_OK;
}

hk_status hk_draft_finish(hk_draft *draft) {
  hk_machine *m = &draft->machine;
  assume_reserve(draft, &m->host_reserved, m->host_memory.value);
  assume_reserve(draft, &m->gpu_reserved, m->gpu_memory.value);
  for (size_t i = 0; i < draft->n_quantities; i++) {
    const hk_quantity_info *info = draft->quantities[i].info;
    if (isnan(draft->quantities[i].value) && !isnan(info->fallback))
      hk_draft_assume(draft, hk_machine_quantity(m, info), info->fallback,
                      "not probed by calibrate");
  }
  hk_draft_agree(draft);
  at_most(draft, &m->dram_with_dma, hk_machine_limit(m, &m->dram_with_dma),
          "copies whose bytes cost 1 cannot make host memory faster");
  describe(draft);
  cJSON *root = hk_machine_to_json(m);
  if (!root) return hk_fail_memory(draft->err, sizeof(cJSON), "a calibrated profile");
  hk_status status = hk_machine_from_json(root, &draft->fit->machine, draft->err);
  cJSON_Delete(root);
  return status == HK_OK ? copy_calibrated(draft)
                         : hk_fail_prefix(draft->err, "calibrated profile");
}
