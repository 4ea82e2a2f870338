/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Reads the keys and values of a sweep. Each value goes through the option that it names, so that
 * ranges and messages are those of the command line. */
#include "cli/sweep_read.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/price.h"
#include "cli/setup.h"
#include "core/base/grow.h"
#include "core/base/infile.h"
#include "core/base/json.h"
#include "core/base/names.h"
#include "core/machine/machine_set.h"
#include "sim/policy.h"

#define MOST_TEXT   (1 << 20) /* bytes of SPEC */
#define MOST_VALUES 10000     /* of an axis */
#define PREFIX      "set."    /* of the axis of a quantity */

#define MACHINES HK_OPTIONS_MACHINE
/* One stage of a model, and one rank's experts. */
#define MODELS (HK_OPTIONS_MODEL | HK_OPTIONS_FROZEN | HK_OPTION(PP) | HK_OPTION(EP))
#define KEYS                                                                              \
  (HK_OPTIONS_PLAN | HK_OPTION(MACHINE) | HK_OPTION(GPU_MEMORY) | HK_OPTION(CLIP_SHARE) | \
   HK_OPTION(PRICE))

void hk_sweep_axis_free(hk_sweep_axis *axis) {
  for (size_t i = 0; i < axis->n; i++) free(axis->texts[i]);
  free(axis->texts);
  free(axis->cells);
  *axis = (hk_sweep_axis){0};
}

/* -- Values ------------------------------------------------------------------------------------ */

bool hk_sweep_is_best(const char *policy) {
  return strcmp(policy, HK_SWEEP_BEST) == 0 || strcmp(policy, HK_SWEEP_PLAN) == 0;
}

static hk_status check_text(hk_option_id id, const char *text, hk_error *err) {
  const hk_policy *policy;
  double amount;
  bool per_gpu;
  if (id == HK_OPT_POLICY && !hk_sweep_is_best(text)) return hk_policy_find(text, &policy, err);
  if (id == HK_OPT_PRICE && !hk_price_parse(text, &amount, &per_gpu))
    return hk_fail(err, HK_INPUT, "expected a price such as 2.5/h or 2.5/gpu/h, got '%.60s'", text);
  return HK_OK;
}

/* The value as the options see it. */
static hk_cell cell_of(hk_option_id id, const hk_args *args, const char *text) {
  const hk_option *option = hk_option_info(id);
  const void *field = (const char *)args + option->offset;
  hk_cell cell = {.text = text};
  if (option->kind == HK_REAL) cell.real = *(const double *)field;
  if (option->kind >= HK_WHOLE && option->kind <= HK_TOKENS) cell.integer = *(const int64_t *)field;
  return cell;
}

static hk_cell_type type_of(hk_option_id id) {
  const int kind = (int)hk_option_info(id)->kind;
  if (kind == HK_REAL) return HK_CELL_REAL;
  return kind >= HK_WHOLE && kind <= HK_TOKENS ? HK_CELL_INTEGER : HK_CELL_TEXT;
}

/* The part of a quantity's text behind "KEY=". */
static const char *value_of(const hk_sweep_axis *axis, const char *text) {
  const char *equals = axis->id == HK_OPT_SET ? strchr(text, '=') : NULL;
  return equals ? equals + 1 : text;
}

/* Adds a value; takes over `text`, NULL of which is lack of memory. */
static hk_status add_value(hk_sweep_axis *axis, char *text, hk_error *err) {
  hk_args args = hk_args_none();
  if (!text) return hk_fail_memory(err, 64, "a sweep");
  hk_status status =
      axis->n < MOST_VALUES ? HK_OK : hk_fail(err, HK_INPUT, "more than %d values", MOST_VALUES);
  const bool unset = strcmp(value_of(axis, text), HK_SWEEP_UNSET) == 0;
  if (status == HK_OK && unset && axis->id == HK_OPT_MACHINE)
    status = hk_fail(err, HK_INPUT, "there is no default machine");
  else if (status == HK_OK && unset)
    status = HK_OK;
  else if (status == HK_OK && axis->id == HK_OPT_SET)
    status = hk_machine_set_check(text, err);
  else if (status == HK_OK)
    status = hk_args_set(axis->id, text, &args, err);
  if (status == HK_OK && !unset) status = check_text(axis->id, text, err);
  for (size_t i = 0; i < axis->n && status == HK_OK; i++)
    if (strcmp(axis->texts[i], text) == 0)
      status = hk_fail(err, HK_INPUT, "the value '%.60s' is there twice", text);
  if (status == HK_OK) status = HK_GROW(axis->texts, axis->text_room, axis->n, "a sweep", err);
  if (status == HK_OK) status = HK_GROW(axis->cells, axis->cell_room, axis->n, "a sweep", err);
  if (status != HK_OK) {
    free(text);
    return status;
  }
  axis->texts[axis->n] = text;
  axis->cells[axis->n++] = unset ? (hk_cell){.null = true, .text = HK_SWEEP_UNSET}
                           : axis->id == HK_OPT_SET ? (hk_cell){.text = value_of(axis, text)}
                                                    : cell_of(axis->id, &args, text);
  return HK_OK;
}

/* The text of a value; of a quantity "KEY=VALUE". */
static char *text_of(const hk_sweep_axis *axis, const char *value) {
  char *text = NULL;
  const bool quantity = axis->id == HK_OPT_SET;
  const char *key = quantity ? axis->name + strlen(PREFIX) : "";
  return asprintf(&text, "%s%s%s", key, quantity ? "=" : "", value) < 0 ? NULL : text;
}

static hk_status add_text(hk_sweep_axis *axis, const char *value, hk_error *err) {
  return add_value(axis, text_of(axis, value), err);
}

static hk_status add_number(hk_sweep_axis *axis, double number, hk_error *err) {
  char text[40];
  const bool whole = number == floor(number) && fabs(number) < 1e15;
  snprintf(text, sizeof text, whole ? "%.0f" : "%.15g", number);
  return add_text(axis, text, err);
}

static hk_status add_scalar(hk_sweep_axis *axis, const cJSON *item, hk_error *err) {
  if (cJSON_IsString(item)) return add_text(axis, item->valuestring, err);
  if (cJSON_IsNumber(item)) return add_number(axis, item->valuedouble, err);
  if (cJSON_IsNull(item)) return add_text(axis, HK_SWEEP_UNSET, err);
  if (cJSON_IsBool(item)) return add_text(axis, cJSON_IsTrue(item) ? "yes" : "no", err);
  return hk_fail(
      err, HK_INPUT,
      "expected a number, a text, true, false or null, a list of these, or an object with "
      "from, to, and step or factor");
}

/* From, from + step, ... or from, from x factor, ... up to `to`, which rounding does not cut off.
 */
static hk_status add_range(hk_sweep_axis *axis, const cJSON *range, hk_error *err) {
  static const char *const keys[] = {"from", "to", "step", "factor"};
  double from, to, by;
  HK_TRY(hk_json_known(range, "range", keys, sizeof keys / sizeof *keys, err));
  HK_TRY(hk_json_double(range, "from", -1e18, 1e18, &from, err));
  HK_TRY(hk_json_double(range, "to", from, 1e18, &to, err));
  const bool steps = cJSON_GetObjectItemCaseSensitive(range, "step") != NULL;
  if (steps == (cJSON_GetObjectItemCaseSensitive(range, "factor") != NULL))
    return hk_fail(err, HK_INPUT, "a range has either a step or a factor");
  HK_TRY(hk_json_double(range, steps ? "step" : "factor", steps ? 1e-12 : 0, 1e18, &by, err));
  if (!steps && by < 1 + 1e-6)
    return hk_fail(err, HK_INPUT, "the factor of a range is above 1 (1.000001 or more), not %g",
                   by);
  if (!steps && from <= 0)
    return hk_fail(err, HK_INPUT, "a range with a factor begins above 0, not at %g", from);
  for (int i = 0;; i++) {
    const double value = steps ? from + i * by : from * pow(by, i);
    if (value > to + (steps ? by : to) * 1e-9) return HK_OK;
    HK_TRY(add_number(axis, value, err));
  }
}

static hk_status add_values(hk_sweep_axis *axis, const cJSON *value, hk_error *err) {
  const cJSON *item;
  if (cJSON_IsObject(value)) return add_range(axis, value, err);
  if (!cJSON_IsArray(value)) return add_scalar(axis, value, err);
  if (cJSON_GetArraySize(value) == 0) return hk_fail(err, HK_INPUT, "the list has no values");
  cJSON_ArrayForEach(item, value) HK_TRY(add_scalar(axis, item, err));
  return HK_OK;
}

/* -- Axes -------------------------------------------------------------------------------------- */

static int rank_of(hk_option_id id) {
  const hk_option_set one = (hk_option_set)1 << id;
  return one & MACHINES ? 0 : one & MODELS ? 1 : 2;
}

/* The type of a column whose values are texts of the command line. */
static void settle(hk_sweep_axis *axis) {
  axis->type = type_of(axis->id);
  if (axis->id != HK_OPT_SET && hk_option_info(axis->id)->kind != HK_STRIDE) return;
  axis->type = HK_CELL_REAL;
  for (size_t i = 0; i < axis->n; i++) {
    char *end;
    if (axis->cells[i].null) continue;
    axis->cells[i].real = strtod(axis->cells[i].text, &end);
    if (*end != '\0') axis->type = HK_CELL_TEXT;
  }
}

/* Puts an axis in its place, instead of one of that name; takes it over. */
static hk_status place(hk_sweep_spec *spec, hk_sweep_axis *axis, hk_error *err) {
  settle(axis);
  for (size_t a = 0; a < spec->n; a++) {
    if (strcmp(spec->axes[a].name, axis->name) != 0) continue;
    hk_sweep_axis_free(&spec->axes[a]);
    spec->axes[a] = *axis;
    return HK_OK;
  }
  hk_sweep_axis *grown = realloc(spec->axes, (spec->n + 1) * sizeof *grown);
  if (!grown) {
    hk_sweep_axis_free(axis);
    return hk_fail_memory(err, (spec->n + 1) * sizeof *grown, "a sweep");
  }
  spec->axes = grown;
  size_t at = spec->n++;
  const int rank = rank_of(axis->id);
  for (; at > 0 && rank_of(grown[at - 1].id) > rank; at--) grown[at] = grown[at - 1];
  grown[at] = *axis;
  if (rank == 0) spec->n_machine++;
  if (rank == 1) spec->n_model++;
  return HK_OK;
}

static hk_status name_axis(hk_sweep_axis *axis, const char *key, bool quantity, hk_error *err) {
  *axis = (hk_sweep_axis){.id = HK_OPT_SET};
  const int length = snprintf(axis->name, sizeof axis->name, "%s%s", quantity ? PREFIX : "", key);
  if (length >= (int)sizeof axis->name) return hk_fail(err, HK_INPUT, "the key is too long");
  return quantity ? HK_OK : hk_args_find(key, KEYS, &axis->id, err);
}

static hk_status add_axis(hk_sweep_spec *spec, bool quantity, const cJSON *value, int line,
                          hk_error *err) {
  hk_sweep_axis axis;
  hk_status status = name_axis(&axis, value->string, quantity, err);
  axis.line = line;
  if (status == HK_OK) status = add_values(&axis, value, err);
  if (status == HK_OK) return place(spec, &axis, err);
  hk_sweep_axis_free(&axis);
  return hk_fail_prefix(err, "line %d, key '%.80s'", line, value->string);
}

hk_status hk_sweep_axis_again(hk_sweep_spec *spec, const cJSON *item, hk_error *err) {
  const char *key = item->string;
  hk_sweep_axis axis;
  const cJSON *value;
  const bool quantity = strncmp(key, PREFIX, strlen(PREFIX)) == 0;
  HK_TRY(name_axis(&axis, quantity ? key + strlen(PREFIX) : key, quantity, err));
  hk_status status = HK_OK;
  cJSON_ArrayForEach(value, item) if (status == HK_OK) status =
      cJSON_IsString(value) ? add_value(&axis, strdup(value->valuestring), err)
                            : hk_fail(err, HK_INPUT, "key '%s': expected texts", key);
  if (status == HK_OK && axis.n == 0) status = hk_fail(err, HK_INPUT, "key '%s': no values", key);
  if (status == HK_OK) return place(spec, &axis, err);
  hk_sweep_axis_free(&axis);
  return status;
}

/* -- The file ---------------------------------------------------------------------------------- */

/* SPEC's text, and what was read from it. */
typedef struct {
  const char *text;
  size_t length;
  const cJSON *root;
} document;

static int line_of(const document *file, const cJSON *item) {
  return hk_json_line(file->text, file->length, file->root, item);
}

static hk_status add_quantities(hk_sweep_spec *spec, const document *file, const cJSON *set,
                                hk_error *err) {
  const cJSON *item;
  if (!cJSON_IsObject(set))
    return hk_fail(err, HK_INPUT,
                   "line %d, key 'set': expected an object such as {\"dram*\": [1, 2]}",
                   line_of(file, set));
  cJSON_ArrayForEach(item, set) HK_TRY(add_axis(spec, true, item, line_of(file, item), err));
  return HK_OK;
}

static hk_status add_keys(hk_sweep_spec *spec, const document *file, hk_error *err) {
  const cJSON *item;
  cJSON_ArrayForEach(item, file->root) {
    if (strcmp(item->string, "set") == 0)
      HK_TRY(add_quantities(spec, file, item, err));
    else
      HK_TRY(add_axis(spec, false, item, line_of(file, item), err));
  }
  return HK_OK;
}

/* -- --set ------------------------------------------------------------------------------------- */

/* Whether the key is near an option rather than a quantity. */
static hk_status fail_key(const char *key, hk_error *err) {
  const char *names[HK_OPT_COUNT];
  size_t n = 0;
  for (int id = 0; id < HK_OPT_COUNT; id++)
    if (KEYS >> id & 1) names[n++] = hk_option_info((hk_option_id)id)->name;
  const char *nearest = hk_nearest(key, names, n);
  if (!nearest) return err->status;
  return hk_fail(err, HK_INPUT, "--set %.80s: no such key; did you mean '%s'?", key, nearest);
}

/* "KEY=VALUE,VALUE..." */
static hk_status override(hk_sweep_spec *spec, const char *text, hk_error *err) {
  hk_error ignored = {0};
  hk_sweep_axis axis;
  const char *equals = strchr(text, '=');
  char key[96];
  if (!equals || equals == text || equals - text >= (int)sizeof key)
    return hk_fail(err, HK_INPUT, "--set %.120s: expected KEY=VALUE,VALUE...", text);
  snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
  const bool option = name_axis(&axis, key, false, &ignored) == HK_OK;
  if (!option) HK_TRY(name_axis(&axis, key, true, err));
  hk_status status = HK_OK;
  for (const char *at = equals + 1; status == HK_OK;) {
    const size_t length = strcspn(at, ",");
    char *value = strndup(at, length);
    status = value ? add_text(&axis, value, err) : hk_fail_memory(err, length, "a sweep");
    free(value);
    at += length;
    if (*at++ == '\0') break;
  }
  if (status == HK_OK) return place(spec, &axis, err);
  const bool first = axis.n == 0;
  hk_sweep_axis_free(&axis);
  if (!option && first && strstr(err->message, "is not known")) return fail_key(key, err);
  return option ? hk_fail_prefix(err, "--set %.120s", text) : status;
}

hk_status hk_sweep_axes_read(const hk_args *args, const char *path, hk_sweep_spec *spec,
                             hk_error *err) {
  static const char what[] = "the SPEC of a sweep, a JSON file";
  char *text;
  size_t length;
  cJSON *root = NULL;
  if (hk_infile_read(path, what, MOST_TEXT, &text, &length, err) != HK_OK)
    return hk_fail_prefix(err, "%s", path);
  hk_status status = hk_json_parse(text, length, path, &root, err);
  if (status == HK_OK && add_keys(spec, &(document){text, length, root}, err) != HK_OK)
    status = hk_fail_prefix(err, "%s", path);
  cJSON_Delete(root);
  free(text);
  for (int i = 0; i < args->n_sets && status == HK_OK; i++)
    status = override(spec, args->sets[i], err);
  return status;
}
