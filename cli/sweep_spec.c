/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The product of a sweep's axes: ids of points, samples, the text form. Reading SPEC:
 * sweep_read.c. */
#include "cli/sweep_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print/emit.h"
#include "cli/sweep_read.h"
#include "core/base/json.h"
#include "core/base/splitmix.h"

void hk_sweep_spec_free(hk_sweep_spec *spec) {
  for (size_t a = 0; a < spec->n; a++) hk_sweep_axis_free(&spec->axes[a]);
  free(spec->axes);
  free(spec->picked);
  *spec = (hk_sweep_spec){0};
}

/* -- Points ------------------------------------------------------------------------------------ */

int64_t hk_sweep_count(const hk_sweep_spec *spec) {
  return spec->sample > 0 ? spec->sample : spec->points;
}

int64_t hk_sweep_id(const hk_sweep_spec *spec, int64_t i) {
  return spec->sample > 0 ? spec->picked[i] : i;
}

int64_t hk_sweep_step(const hk_sweep_spec *spec, size_t a) {
  int64_t step = 1;
  for (size_t i = a + 1; i < spec->n; i++) step *= (int64_t)spec->axes[i].n;
  return step;
}

size_t hk_sweep_value(const hk_sweep_spec *spec, size_t a, int64_t id) {
  return (size_t)(id / hk_sweep_step(spec, a) % (int64_t)spec->axes[a].n);
}

/* The distance of points that differ in the last of the first `axes` axes. */
static int64_t step_behind(const hk_sweep_spec *spec, size_t axes) {
  return axes > 0 ? hk_sweep_step(spec, axes - 1) : spec->points;
}

int64_t hk_sweep_machine_of(const hk_sweep_spec *spec, int64_t id) {
  return id / step_behind(spec, spec->n_machine);
}

int64_t hk_sweep_models(const hk_sweep_spec *spec) {
  int64_t models = 1;
  for (size_t a = spec->n_machine; a < spec->n_machine + spec->n_model; a++)
    models *= (int64_t)spec->axes[a].n;
  return models;
}

int64_t hk_sweep_model_step(const hk_sweep_spec *spec) {
  return step_behind(spec, spec->n_machine + spec->n_model);
}

int64_t hk_sweep_model_of(const hk_sweep_spec *spec, int64_t id) {
  return id / hk_sweep_model_step(spec) % hk_sweep_models(spec);
}

const hk_sweep_axis *hk_sweep_axis_of(const hk_sweep_spec *spec, hk_option_id id) {
  for (size_t a = 0; a < spec->n; a++)
    if (spec->axes[a].id == id) return &spec->axes[a];
  return NULL;
}

hk_status hk_sweep_fail_axis(const hk_sweep_axis *axis, hk_error *err) {
  if (axis->line == 0) return hk_fail_prefix(err, "key '%s'", axis->name);
  return hk_fail_prefix(err, "line %d, key '%s'", axis->line, axis->name);
}

const char *hk_sweep_product(const hk_sweep_spec *spec, char *buffer, size_t size) {
  size_t used = 0;
  *buffer = '\0';
  for (size_t a = 0; a < spec->n && used < size; a++)
    if (spec->axes[a].n > 1)
      used += (size_t)snprintf(buffer + used, size - used, "%s%s %zu", used > 0 ? " x " : "",
                               spec->axes[a].name, spec->axes[a].n);
  return buffer;
}

/* -- Samples ----------------------------------------------------------------------------------- */

static int by_id(const void *left, const void *right) {
  const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

/* Few of many: draws until all differ. */
static void draw_few(hk_sweep_spec *spec, uint64_t state) {
  for (int64_t have = 0; have < spec->sample;) {
    for (int64_t i = have; i < spec->sample; i++)
      spec->picked[i] = (int64_t)(hk_splitmix_next(&state) % (uint64_t)spec->points);
    qsort(spec->picked, (size_t)spec->sample, sizeof *spec->picked, by_id);
    have = 0;
    for (int64_t i = 0; i < spec->sample; i++)
      if (have == 0 || spec->picked[i] != spec->picked[have - 1])
        spec->picked[have++] = spec->picked[i];
  }
}

/* Many: each point with the chance that it still needs (Knuth's algorithm S). */
static void draw_many(hk_sweep_spec *spec, uint64_t state) {
  int64_t have = 0;
  for (int64_t id = 0; have < spec->sample; id++)
    if ((int64_t)(hk_splitmix_next(&state) % (uint64_t)(spec->points - id)) < spec->sample - have)
      spec->picked[have++] = id;
}

static hk_status draw(hk_sweep_spec *spec, hk_error *err) {
  if (spec->sample >= spec->points) spec->sample = 0;
  if (spec->sample == 0) return HK_OK;
  const size_t size = (size_t)spec->sample * sizeof *spec->picked;
  spec->picked = malloc(size);
  if (!spec->picked) return hk_fail_memory(err, size, "a sample");
  (spec->sample > spec->points / 2 ? draw_many : draw_few)(spec, (uint64_t)spec->seed);
  return HK_OK;
}

/* -- Reading ----------------------------------------------------------------------------------- */

static hk_status complete(hk_sweep_spec *spec, hk_error *err) {
  spec->points = 1;
  for (size_t a = 0; a < spec->n; a++)
    if (__builtin_mul_overflow(spec->points, (int64_t)spec->axes[a].n, &spec->points)) {
      spec->points = INT64_MAX;
      break;
    }
  if (spec->points == INT64_MAX)
    return hk_fail(err, HK_INPUT, "the product has more than 2^63 points");
  return draw(spec, err);
}

static hk_status check_count(const char *path, const hk_sweep_spec *spec, hk_error *err) {
  char product[400], count[32], most[32];
  if (hk_sweep_count(spec) <= HK_SWEEP_MOST_POINTS) return HK_OK;
  return hk_fail(
      err, HK_INPUT,
      "%s: %s points (%s), more than the %s of one sweep; give fewer values, or --sample N to "
      "simulate N of them",
      path, hk_format_count(spec->points, count, sizeof count),
      hk_sweep_product(spec, product, sizeof product),
      hk_format_count(HK_SWEEP_MOST_POINTS, most, sizeof most));
}

hk_status hk_sweep_spec_read(const hk_args *args, const char *path, hk_sweep_spec *spec,
                             hk_error *err) {
  *spec = (hk_sweep_spec){.sample = args->sample, .seed = args->seed};
  hk_status status = hk_sweep_axes_read(args, path, spec, err);
  if (status == HK_OK && complete(spec, err) != HK_OK) status = hk_fail_prefix(err, "%s", path);
  if (status == HK_OK) status = check_count(path, spec, err);
  if (status != HK_OK) hk_sweep_spec_free(spec);
  return status;
}

/* -- Text -------------------------------------------------------------------------------------- */

hk_status hk_sweep_spec_text(const hk_sweep_spec *spec, char **text, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.sweep_spec/1", &ok);
  hk_put_number(root, "sample", (double)spec->sample, &ok);
  hk_put_number(root, "seed", spec->sample > 0 ? (double)spec->seed : 0, &ok);
  cJSON *axes = hk_put_object(root, "axes", &ok);
  for (size_t a = 0; a < spec->n; a++) {
    cJSON *values = hk_put_array(axes, spec->axes[a].name, &ok);
    for (size_t i = 0; i < spec->axes[a].n; i++)
      hk_append_item(values, cJSON_CreateString(spec->axes[a].texts[i]), &ok);
  }
  *text = ok ? cJSON_PrintUnformatted(root) : NULL;
  cJSON_Delete(root);
  return *text ? HK_OK : hk_fail_memory(err, 4096, "a sweep");
}

static hk_status from_json(const cJSON *root, hk_sweep_spec *spec, hk_error *err) {
  const cJSON *axes, *axis;
  HK_TRY(hk_json_object(root, "axes", &axes, err));
  HK_TRY(hk_json_int(root, "sample", 0, HK_SWEEP_MOST_POINTS, &spec->sample, err));
  HK_TRY(hk_json_int(root, "seed", 0, (int64_t)1e15, &spec->seed, err));
  cJSON_ArrayForEach(axis, axes) HK_TRY(hk_sweep_axis_again(spec, axis, err));
  HK_TRY(complete(spec, err));
  return hk_sweep_count(spec) <= HK_SWEEP_MOST_POINTS
             ? HK_OK
             : hk_fail(err, HK_INPUT, "more than %d points", HK_SWEEP_MOST_POINTS);
}

hk_status hk_sweep_spec_parse(const char *text, const char *name, hk_sweep_spec *spec,
                              hk_error *err) {
  cJSON *root;
  *spec = (hk_sweep_spec){0};
  HK_TRY(hk_json_parse(text, strlen(text), name, &root, err));
  hk_status status = from_json(root, spec, err);
  cJSON_Delete(root);
  if (status == HK_OK) return HK_OK;
  hk_sweep_spec_free(spec);
  return hk_fail_prefix(err, "%s", name);
}
