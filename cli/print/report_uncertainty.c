/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/print/report_uncertainty.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/print/emit.h"
#include "cli/print/screen.h"

#define NAMED 3 /* quantities that the text names */

/* -- Text -------------------------------------------------------------------------------------- */

static double half_ms(const hk_interval *interval) {
  return (hk_ms(interval->high) - hk_ms(interval->low)) / 2;
}

static bool is_known(const hk_interval *interval) {
  return interval && interval->error > 0;
}

static int digits_of(double half) {
  return half >= 9.95 ? 0 : half >= 0.995 ? 1 : 2;
}

const char *hk_format_ms(hk_ns t, const hk_interval *interval, char *buffer, size_t size) {
  if (!is_known(interval)) {
    snprintf(buffer, size, "%.1f", hk_ms(t));
    return buffer;
  }
  const double half = half_ms(interval);
  const int digits = digits_of(half);
  if (interval->high > 2 * t) /* t - half would be far from its lower end, or negative */
    snprintf(buffer, size, "%.*f (%.*f to %.*f)", digits, hk_ms(t), digits, hk_ms(interval->low),
             digits, hk_ms(interval->high));
  else
    snprintf(buffer, size, "%.*f %s %.*f", digits, hk_ms(t), hk_plus_minus(), digits, half);
  return buffer;
}

const char *hk_format_half_ms(const hk_interval *interval, char *buffer, size_t size) {
  *buffer = '\0';
  if (!is_known(interval)) return buffer;
  const double half = half_ms(interval);
  snprintf(buffer, size, "%s%.*f", hk_plus_minus(), digits_of(half), half);
  return buffer;
}

/* "dram.bytes_per_s (data sheet) 12 %, ...": the first parts and their effects on the time; or the
 * keys and origins of those without error. */
static void name_parts(const hk_uncertainty *u, bool unknown, char *text, size_t size) {
  int named = 0;
  size_t used = 0;
  *text = '\0';
  for (size_t i = 0; i < u->n_parts && named < NAMED; i++) {
    const hk_error_part *part = &u->parts[i];
    if ((part->kind == HK_ERROR_UNKNOWN) != unknown) continue;
    char effect[24] = "";
    if (!unknown) snprintf(effect, sizeof effect, " %.2g %%", 100 * part->effect);
    const int length = snprintf(text + used, size - used, "%s%s (%s)%s", named++ > 0 ? ", " : "",
                                part->info->key, hk_origin_name(part->origin), effect);
    used += length > 0 && (size_t)length < size - used ? (size_t)length : 0;
  }
}

/* Whether training runs ('hocket fit') tell a quantity, and not the probes of 'hocket calibrate'.
 */
static bool is_of_runs(const char *key) {
  static const char *const keys[] = {"framework.",
                                     "deepspeed.",
                                     "network.",
                                     "gpu.matmul_efficiency",
                                     "gpu.backward_efficiency",
                                     "gpu.collective_share",
                                     "dram.h2d_cost",
                                     "dram.process_bytes_per_s",
                                     "dram.unbound_efficiency"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (strncmp(key, keys[i], strlen(keys[i])) == 0) return true;
  return false;
}

/* The part with the largest effect; *left: the share of the interval that remains without it, if
 * errors are independent. NULL: no error is known. */
static const hk_error_part *find_worst(const hk_uncertainty *u, double *left) {
  double squares = 0, worst = 0;
  const hk_error_part *part = NULL;
  for (size_t i = 0; i < u->n_parts; i++) {
    const double effect = u->parts[i].kind == HK_ERROR_UNKNOWN ? 0 : u->parts[i].effect;
    squares += effect * effect;
    if (effect <= worst) continue;
    worst = effect;
    part = &u->parts[i];
  }
  *left = squares > 0 ? sqrt(fmax(0, 1 - worst * worst / squares)) : 1;
  return part;
}

static const char *measurement_of(const hk_error_part *part) {
  return is_of_runs(part->info->key) ? "'hocket fit' to a table of training runs there"
                                     : "'hocket calibrate' there";
}

void hk_report_uncertainty(const hk_uncertainty *u) {
  char known[300], unknown[300];
  name_parts(u, false, known, sizeof known);
  name_parts(u, true, unknown, sizeof unknown);
  if (!hk_uncertainty_known(u)) {
    hk_print_text(0, 0, "interval unknown: the profile states no errors%s%s",
                  *unknown ? "; the time depends on " : "", unknown);
    return;
  }
  char scatter[120] = "";
  if (u->n_scatter > 0)
    snprintf(scatter, sizeof scatter, "%s%zu by the scatter of data-sheet figures and defaults",
             u->n_stated > 0 ? ", " : "", u->n_scatter);
  char stated[64] = "";
  if (u->n_stated > 0) snprintf(stated, sizeof stated, "%zu as the profile states", u->n_stated);
  hk_print_text(
      0, 0,
      "%s: half of the 95 %% interval from the errors of the machine's quantities (%s%s). "
      "Largest effects on the time: %s%s%s",
      hk_plus_minus(), stated, scatter, known, *unknown ? "; no error is known of " : "", unknown);
  double left;
  const hk_error_part *worst = find_worst(u, &left);
  if (worst)
    hk_print_text(0, 0, "Narrowed most by measuring %s (%s): to about %.0f %% of %s.",
                  worst->info->key, measurement_of(worst), 100 * left, hk_plus_minus());
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_interval(cJSON *object, const char *phase, const hk_interval *interval, bool *ok) {
  char key[48];
  snprintf(key, sizeof key, "%s_low_ms", phase);
  hk_put_number(object, key, hk_ms(interval->low), ok);
  snprintf(key, sizeof key, "%s_high_ms", phase);
  hk_put_number(object, key, hk_ms(interval->high), ok);
}

void hk_report_row_error_json(const hk_uncertainty *u, const hk_row_error *row,
                              const hk_forecast *forecast, bool ranked, cJSON *object, bool *ok) {
  if (ranked && row) {
    hk_put_number(object, "rank", row->rank, ok);
    hk_put_bool(object, "tied", row->tied, ok);
  }
  if (!row || !hk_uncertainty_known(u)) {
    hk_put_item(object, "uncertainty", cJSON_CreateNull(), ok);
    return;
  }
  cJSON *errors = hk_put_object(object, "uncertainty", ok);
  hk_put_number(errors, "iteration_error_pct", 100 * row->iteration.error, ok);
  put_interval(errors, "fwd", &row->forward, ok);
  put_interval(errors, "bwd", &row->backward, ok);
  put_interval(errors, "update", &row->update, ok);
  put_interval(errors, "iteration", &row->iteration, ok);
  const double work = forecast->tokens_per_s * hk_s(forecast->iteration_ns);
  hk_put_number(errors, "low_tokens_per_s", work / hk_s(hk_max(1, row->iteration.high)), ok);
  hk_put_number(errors, "high_tokens_per_s", work / hk_s(hk_max(1, row->iteration.low)), ok);
}

static void put_quantities(const hk_uncertainty *u, cJSON *object, bool *ok) {
  cJSON *quantities = hk_put_array(object, "quantities", ok);
  for (size_t i = 0; i < u->n_parts; i++) {
    const hk_error_part *part = &u->parts[i];
    cJSON *entry = hk_put_element(quantities, ok);
    hk_put_string(entry, "key", part->info->key, ok);
    hk_put_string(entry, "origin", hk_origin_name(part->origin), ok);
    hk_put_string(entry, "kind", hk_error_kind_name(part->kind), ok);
    hk_put_item(
        entry, "error_pct",
        part->kind == HK_ERROR_UNKNOWN ? cJSON_CreateNull() : cJSON_CreateNumber(100 * part->error),
        ok);
    hk_put_number(entry, "effect_pct", 100 * part->effect, ok);
  }
}

void hk_report_uncertainty_json(const hk_uncertainty *u, cJSON *root, bool *ok) {
  cJSON *object = hk_put_object(root, "uncertainty", ok);
  hk_put_bool(object, "known", hk_uncertainty_known(u), ok);
  hk_put_number(object, "level_pct", 95, ok);
  hk_put_number(object, "draws", HK_DRAWS, ok);
  hk_put_number(object, "stated", (double)u->n_stated, ok);
  hk_put_number(object, "scatter", (double)u->n_scatter, ok);
  hk_put_number(object, "unknown", (double)u->n_unknown, ok);
  put_quantities(u, object, ok);
  double left;
  const hk_error_part *worst = find_worst(u, &left);
  if (!worst) return;
  cJSON *measure = hk_put_object(object, "measure_next", ok);
  hk_put_string(measure, "key", worst->info->key, ok);
  hk_put_string(measure, "by", measurement_of(worst), ok);
  hk_put_number(measure, "left_pct", 100 * left, ok);
}

void hk_report_forecast_error_json(const hk_uncertainty *u, const hk_forecast *forecast,
                                   cJSON *root, bool *ok) {
  hk_report_row_error_json(u, &u->rows[0], forecast, false, root, ok);
  cJSON *object = cJSON_GetObjectItemCaseSensitive(root, "uncertainty");
  if (cJSON_IsObject(object)) put_quantities(u, object, ok);
}
