/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Writes the fitted profile: the document of the start profile with the new values, the table that
 * each was fitted to, the errors that are left ("residuals"), and the range of the fit
 * ("fitted_on"). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "calib/fit/table_fit_problem.h"
#include "sim/coverage.h"

static hk_status fail_memory(hk_error *err) {
  return hk_fail_memory(err, sizeof(cJSON), "a fitted profile");
}

static bool replace(cJSON *object, const char *key, cJSON *item) {
  if (!item) return false;
  cJSON_DeleteItemFromObjectCaseSensitive(object, key);
  if (cJSON_AddItemToObject(object, key, item)) return true;
  cJSON_Delete(item);
  return false;
}

/* -- Before and after -------------------------------------------------------------------------- */

static const char BEFORE[] = "before_fit";
static const char *const KEPT[] = {"value", "origin", "source"};
static const char ERROR[] = "error"; /* relative; optional (core/machine/machine_error.h) */

/* A quantity's value, origin and source, and its error if there is one, as an object of their own.
 */
static cJSON *values_before(const cJSON *object) {
  cJSON *kept = cJSON_CreateObject();
  for (int i = 0; kept && i < 3; i++) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, KEPT[i]);
    if (replace(kept, KEPT[i], cJSON_Duplicate(item, true))) continue;
    cJSON_Delete(kept);
    kept = NULL;
  }
  const cJSON *error = cJSON_GetObjectItemCaseSensitive(object, ERROR);
  if (!kept || !error || replace(kept, ERROR, cJSON_Duplicate(error, true))) return kept;
  cJSON_Delete(kept);
  return NULL;
}

static hk_status restore(cJSON *object, const char *key, hk_error *err) {
  const cJSON *before = cJSON_GetObjectItemCaseSensitive(object, BEFORE);
  for (int i = 0; before && i < 3; i++) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(before, KEPT[i]);
    if (!item)
      return hk_fail(err, HK_INPUT, "quantity '%s': key '%s': key '%s': missing", key, BEFORE,
                     KEPT[i]);
    if (!replace(object, KEPT[i], cJSON_Duplicate(item, true))) return fail_memory(err);
  }
  const cJSON *error = cJSON_GetObjectItemCaseSensitive(before, ERROR);
  if (before) cJSON_DeleteItemFromObjectCaseSensitive(object, ERROR);
  if (error && !replace(object, ERROR, cJSON_Duplicate(error, true))) return fail_memory(err);
  cJSON_DeleteItemFromObjectCaseSensitive(object, BEFORE);
  cJSON_DeleteItemFromObjectCaseSensitive(object, "standard_error");
  return HK_OK;
}

hk_status hk_fit_start(const hk_machine *machine, hk_machine *start, hk_error *err) {
  *start = (hk_machine){0};
  cJSON *root = hk_machine_to_json(machine), *object = NULL;
  if (!root) return fail_memory(err);
  hk_status status = HK_OK;
  cJSON_ArrayForEach(object, cJSON_GetObjectItemCaseSensitive(root, "quantities")) {
    if (status == HK_OK) status = restore(object, object->string, err);
  }
  cJSON_DeleteItemFromObjectCaseSensitive(root, "fitted_on");
  if (status == HK_OK) status = hk_machine_from_json(root, start, err);
  cJSON_Delete(root);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s, before it was fitted", machine->name);
}

/* -- Quantities -------------------------------------------------------------------------------- */

static hk_status write_fitted(cJSON *object, const hk_fit_parameter *p, double value, size_t rows,
                              const char *table, hk_error *err) {
  char source[300];
  snprintf(source, sizeof source, "hocket fit to %zu rows of %.120s: %s%.3g to %.3g%s%s", rows,
           table, p->flat ? "hardly determined, " : "one standard error ", p->low, p->high,
           p->flat ? " fit as well" : "", p->at_bound ? ", at its bound" : "");
  const bool good =
      replace(object, BEFORE, values_before(object)) &&
      replace(object, "value", cJSON_CreateNumber(value)) &&
      replace(object, "origin", cJSON_CreateString(hk_origin_name(HK_ORIGIN_FITTED))) &&
      replace(object, "source", cJSON_CreateString(source)) &&
      replace(object, "standard_error", cJSON_CreateNumber(hk_fit_rounded(p->standard_error)));
  cJSON_DeleteItemFromObjectCaseSensitive(object, ERROR); /* that of the value before */
  return good ? HK_OK : fail_memory(err);
}

/* A quantity that was lowered to the limit that fitted quantities set, such as a sum of directions.
 * It keeps its origin; its source says why its value changed. */
static hk_status write_lowered(cJSON *object, const hk_quantity *start, double value,
                               hk_error *err) {
  char source[380];
  snprintf(source, sizeof source, "lowered from %.6g to agree with fitted quantities; was: %.280s",
           start->value, start->source);
  const bool good = replace(object, BEFORE, values_before(object)) &&
                    replace(object, "value", cJSON_CreateNumber(value)) &&
                    replace(object, "source", cJSON_CreateString(source));
  return good ? HK_OK : fail_memory(err);
}

static const hk_fit_parameter *fitted(const hk_fit *fit, const hk_quantity_info *info) {
  for (size_t i = 0; i < fit->n; i++)
    if (fit->parameters[i].info == info && fit->parameters[i].determined)
      return &fit->parameters[i];
  return NULL;
}

static hk_status write_quantities(const hk_fit_problem *p, const char *table, const hk_fit *fit,
                                  cJSON *list, hk_error *err) {
  double values[HK_FIT_MOST_FREE];
  for (size_t i = 0; i < fit->n; i++) values[i] = fit->parameters[i].value;
  const hk_machine machine = hk_fit_machine(p, values);
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const double value = hk_machine_quantity_const(&machine, &info[i])->value;
    const hk_quantity *start = hk_machine_quantity_const(p->start, &info[i]);
    const hk_fit_parameter *parameter = fitted(fit, &info[i]);
    cJSON *object = cJSON_GetObjectItemCaseSensitive(list, info[i].key);
    if (parameter)
      HK_TRY(write_fitted(object, parameter, value, p->n_cases, table, err));
    else if (value != start->value)
      HK_TRY(write_lowered(object, start, value, err));
  }
  return HK_OK;
}

/* -- "fitted_on" ------------------------------------------------------------------------------- */

static const char *const names[] = {[HK_RUN_fwd] = "forward",
                                    [HK_RUN_bwd] = "backward",
                                    [HK_RUN_step] = "update",
                                    [HK_RUN_iter] = "iteration"};

/* Names of the phases whose times at least one row has. */
static hk_status add_phases(const hk_fit_problem *p, cJSON *fitted_on, hk_error *err) {
  for (int f = 0; f < HK_RUN_TIMES_END; f++)
    for (size_t i = 0; i < p->n_residuals; i++)
      if (p->residuals[i].figure == (hk_run_figure)f)
        HK_TRY(hk_coverage_add_word(fitted_on, "phases", names[f], err));
  return HK_OK;
}

static hk_status add_coverage(const hk_fit_problem *p, const char *table, cJSON *root,
                              hk_error *err) {
  cJSON *fitted_on = cJSON_CreateObject();
  if (!replace(root, "fitted_on", fitted_on)) return fail_memory(err);
  if (!cJSON_AddNumberToObject(fitted_on, "rows", (double)p->n_cases) ||
      !cJSON_AddStringToObject(fitted_on, "date", p->options->date) ||
      !cJSON_AddStringToObject(fitted_on, "table", table))
    return fail_memory(err);
  for (size_t i = 0; i < p->n_cases; i++) {
    HK_TRY(hk_coverage_add_word(fitted_on, "sources", p->cases[i].run->source, err));
    HK_TRY(hk_coverage_widen(fitted_on, &p->cases[i].plan, err));
  }
  return add_phases(p, fitted_on, err);
}

/* -- "residuals" ------------------------------------------------------------------------------- */

/* What the profile was checked against (core/machine/machine.h). A fit's rows are in-sample. */
static hk_status add_residuals(const hk_fit_problem *p, const char *table, const hk_fit *fit,
                               cJSON *root, hk_error *err) {
  char against[200];
  cJSON *list = cJSON_CreateArray();
  snprintf(against, sizeof against, "%zu rows of %.120s", p->n_cases, table);
  if (!replace(root, "residuals", list)) return fail_memory(err);
  for (int f = 0; f < HK_RUN_TIMES_END; f++) {
    if (isnan(fit->median_after[f])) continue; /* no row has it */
    cJSON *entry = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(list, entry) || !cJSON_AddStringToObject(entry, "against", against) ||
        !cJSON_AddStringToObject(entry, "figure", names[f]) ||
        !cJSON_AddNumberToObject(entry, "median_pct", hk_fit_rounded(fit->median_after[f])) ||
        !cJSON_AddNumberToObject(entry, "worst_pct", hk_fit_rounded(fit->worst_after[f])) ||
        !cJSON_AddBoolToObject(entry, "held_out", false))
      return fail_memory(err);
  }
  return HK_OK;
}

static hk_status fill(const hk_fit_problem *p, const char *table, const hk_fit *fit, cJSON *root,
                      hk_error *err) {
  const char *slash = strrchr(table, '/'); /* the file's name only: profiles are shared */
  const char *name = slash ? slash + 1 : table;
  cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "quantities");
  HK_TRY(write_quantities(p, name, fit, list, err));
  HK_TRY(add_residuals(p, name, fit, root, err));
  return add_coverage(p, name, root, err);
}

hk_status hk_fit_profile(const hk_fit_problem *p, const char *table, hk_fit *fit) {
  cJSON *root = hk_machine_to_json(p->start);
  if (!root) return fail_memory(p->err);
  hk_status status = fill(p, table, fit, root, p->err);
  if (status == HK_OK) status = hk_machine_from_json(root, &fit->machine, p->err);
  cJSON_Delete(root);
  return status;
}
