/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ranges and sets of plans: reading and writing them as JSON, and comparing plans with them. */
#include "sim/coverage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"

/* The phases that a run table measured. Every plan is predicted in all of them. */
static const char *const phases[] = {"forward", "backward", "update", "iteration"};

int64_t hk_coverage_rank_parameters(const hk_plan *plan) {
  int64_t sum = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) sum += plan->subgroups[i].numel;
  return sum;
}

/* -- Values of a plan in each dimension ----------------------------------------------------------
 */

typedef struct {
  const char *key, *name;
  double value;
} range;

typedef struct {
  const char *key, *name, *word;
} word;

#define RANGE(key, name, value) {key, name, value},
#define WORD(key, name, value)  {key, name, value},
#define COUNT(key, name, value) +1
enum { RANGES = 0 HK_COVERAGE_RANGES(COUNT), SETS = 0 HK_COVERAGE_SETS(COUNT) };

static void ranges_of(const hk_plan *plan, range out[RANGES]) {
  const range all[] = {HK_COVERAGE_RANGES(RANGE)};
  memcpy(out, all, sizeof all);
}

static void words_of(const hk_plan *plan, word out[SETS]) {
  const word all[] = {HK_COVERAGE_SETS(WORD)};
  memcpy(out, all, sizeof all);
}

/* -- Writing ----------------------------------------------------------------------------------- */

static hk_status fail_memory(hk_error *err) {
  return hk_fail_memory(err, sizeof(cJSON), "what a profile was fitted on");
}

static hk_status widen_range(cJSON *fitted_on, const range *r, hk_error *err) {
  if (r->value < 0) return HK_OK;
  cJSON *ends = cJSON_GetObjectItemCaseSensitive(fitted_on, r->key);
  if (!ends) {
    const double both[2] = {r->value, r->value};
    ends = cJSON_CreateDoubleArray(both, 2);
    if (ends && cJSON_AddItemToObject(fitted_on, r->key, ends)) return HK_OK;
    cJSON_Delete(ends);
    return fail_memory(err);
  }
  cJSON *least = cJSON_GetArrayItem(ends, 0), *most = cJSON_GetArrayItem(ends, 1);
  cJSON_SetNumberValue(least, fmin(cJSON_GetNumberValue(least), r->value));
  cJSON_SetNumberValue(most, fmax(cJSON_GetNumberValue(most), r->value));
  return HK_OK;
}

static bool has_word(const cJSON *set, const char *text) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, set) {
    if (cJSON_IsString(item) && strcmp(item->valuestring, text) == 0) return true;
  }
  return false;
}

hk_status hk_coverage_add_word(cJSON *fitted_on, const char *key, const char *text, hk_error *err) {
  cJSON *set = cJSON_GetObjectItemCaseSensitive(fitted_on, key);
  if (!set) set = cJSON_AddArrayToObject(fitted_on, key);
  if (set && has_word(set, text)) return HK_OK;
  cJSON *item = cJSON_CreateString(text);
  if (set && item && cJSON_AddItemToArray(set, item)) return HK_OK;
  cJSON_Delete(item);
  return fail_memory(err);
}

hk_status hk_coverage_widen(cJSON *fitted_on, const hk_plan *plan, hk_error *err) {
  range ranges[RANGES];
  word words[SETS];
  ranges_of(plan, ranges);
  words_of(plan, words);
  for (int i = 0; i < RANGES; i++) HK_TRY(widen_range(fitted_on, &ranges[i], err));
  for (int i = 0; i < SETS; i++)
    HK_TRY(hk_coverage_add_word(fitted_on, words[i].key, words[i].word, err));
  return HK_OK;
}

/* -- Reading ----------------------------------------------------------------------------------- */

static hk_status check_range(const cJSON *fitted_on, const char *key, hk_error *err) {
  const cJSON *ends = cJSON_GetObjectItemCaseSensitive(fitted_on, key);
  const cJSON *least = cJSON_GetArrayItem(ends, 0), *most = cJSON_GetArrayItem(ends, 1);
  if (!ends || (cJSON_IsArray(ends) && cJSON_GetArraySize(ends) == 2 && cJSON_IsNumber(least) &&
                cJSON_IsNumber(most) && least->valuedouble <= most->valuedouble))
    return HK_OK;
  return hk_fail(err, HK_INPUT, "key 'fitted_on': key '%s': expected [least, most]", key);
}

static hk_status check_set(const cJSON *fitted_on, const char *key, hk_error *err) {
  const cJSON *set = cJSON_GetObjectItemCaseSensitive(fitted_on, key), *item = NULL;
  bool good = !set || cJSON_IsArray(set);
  cJSON_ArrayForEach(item, set) good = good && cJSON_IsString(item);
  if (good) return HK_OK;
  return hk_fail(err, HK_INPUT, "key 'fitted_on': key '%s': expected a list of strings", key);
}

#define KEY(key, name, value) key,

hk_status hk_coverage_of(const hk_machine *machine, const cJSON **fitted_on, hk_error *err) {
  static const char *const ranges[] = {HK_COVERAGE_RANGES(KEY)};
  static const char *const sets[] = {HK_COVERAGE_SETS(KEY) "phases"};
  *fitted_on = cJSON_GetObjectItemCaseSensitive(machine->document, "fitted_on");
  if (!*fitted_on) return HK_OK;
  if (!cJSON_IsObject(*fitted_on))
    return hk_fail(err, HK_INPUT, "%s: key 'fitted_on': expected an object", machine->name);
  hk_status status = HK_OK;
  for (size_t i = 0; status == HK_OK && i < sizeof ranges / sizeof *ranges; i++)
    status = check_range(*fitted_on, ranges[i], err);
  for (size_t i = 0; status == HK_OK && i < sizeof sets / sizeof *sets; i++)
    status = check_set(*fitted_on, sets[i], err);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", machine->name);
}

/* -- Gaps -------------------------------------------------------------------------------------- */

typedef struct {
  const char *machine;
  void (*say)(void *context, const char *sentence);
  void *context;
} speaker;

static void join(const cJSON *set, char *buffer, size_t size) {
  const cJSON *item = NULL;
  size_t used = 0;
  cJSON_ArrayForEach(item, set) {
    if (used < size)
      used += (size_t)snprintf(buffer + used, size - used, "%s%s", used > 0 ? ", " : "",
                               item->valuestring);
  }
}

static void compare_range(const speaker *s, const cJSON *fitted_on, const range *r) {
  const cJSON *ends = cJSON_GetObjectItemCaseSensitive(fitted_on, r->key);
  char text[400], extent[64] = "none";
  if (r->value < 0) return;
  if (ends) {
    const double least = cJSON_GetArrayItem(ends, 0)->valuedouble;
    const double most = cJSON_GetArrayItem(ends, 1)->valuedouble;
    if (r->value >= least && r->value <= most) return;
    snprintf(extent, sizeof extent, least < most ? "%.15g to %.15g" : "%.15g", least, most);
  } else if (strcmp(r->key, "stride") != 0) {
    return; /* unknown. For the stride, no range means that no run was interleaved */
  }
  snprintf(text, sizeof text, "extrapolated in %s: %s was fitted on %s, this is %.15g", r->name,
           s->machine, extent, r->value);
  s->say(s->context, text);
}

static void compare_word(const speaker *s, const cJSON *fitted_on, const word *w) {
  const cJSON *set = cJSON_GetObjectItemCaseSensitive(fitted_on, w->key);
  char text[400], known[200] = "none";
  if (!set || has_word(set, w->word)) return;
  join(set, known, sizeof known);
  snprintf(text, sizeof text, "extrapolated in %s: %s was fitted on %s, this is %s", w->name,
           s->machine, known, w->word);
  s->say(s->context, text);
}

static void compare_phases(const speaker *s, const cJSON *fitted_on) {
  const cJSON *set = cJSON_GetObjectItemCaseSensitive(fitted_on, "phases");
  char text[400], known[100] = "none", missing[100] = "";
  size_t used = 0;
  for (size_t i = 0; set && i < sizeof phases / sizeof *phases; i++) {
    if (has_word(set, phases[i])) continue;
    used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", used > 0 ? ", " : "",
                             phases[i]);
  }
  if (used == 0) return;
  join(set, known, sizeof known);
  snprintf(text, sizeof text, "extrapolated in phase: %s was fitted on %s, this also predicts %s",
           s->machine, known, missing);
  s->say(s->context, text);
}

void hk_coverage_gaps(const hk_machine *machine, const cJSON *fitted_on, const hk_plan *plan,
                      void (*say)(void *context, const char *sentence), void *context) {
  const speaker s = {machine->name, say, context};
  range ranges[RANGES];
  word words[SETS];
  ranges_of(plan, ranges);
  words_of(plan, words);
  for (int i = 0; i < RANGES; i++) compare_range(&s, fitted_on, &ranges[i]);
  for (int i = 0; i < SETS; i++) compare_word(&s, fitted_on, &words[i]);
  compare_phases(&s, fitted_on);
}
