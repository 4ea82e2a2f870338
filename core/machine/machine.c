/* SPDX-License-Identifier: Apache-2.0 */
/* Machine profiles: reading, checking and writing the list of quantities that machine.h names. */
#include "core/machine/machine.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/names.h"
#include "core/machine/machine_error.h"

#define SCHEMA     "hocket.machine/1"
#define MAX_SOURCE 400
#define MAX_PATH   4096

/* -- The list ---------------------------------------------------------------------------------- */

/* KEY.h2d is "pcie.h2d_bytes_per_s": checks name keys without spelling them again. */
static const struct {
#define HK_KEY_FIELD(field, key, unit, least, most, fallback, meaning) const char *field;
  HK_MACHINE_QUANTITIES(HK_KEY_FIELD)
#undef HK_KEY_FIELD
} KEY = {
#define HK_KEY(field, key, unit, least, most, fallback, meaning) .field = key,
    HK_MACHINE_QUANTITIES(HK_KEY)
#undef HK_KEY
};

static const char *const origins[] = {
    [HK_ORIGIN_DEFAULT] = "default", [HK_ORIGIN_DATA_SHEET] = "data sheet",
    [HK_ORIGIN_FITTED] = "fitted",   [HK_ORIGIN_MEASURED] = "measured",
    [HK_ORIGIN_SET] = "set",         [HK_ORIGIN_DERIVED] = "derived",
};

enum { ORIGINS = sizeof origins / sizeof *origins };

const char *hk_origin_name(hk_origin origin) {
  return origins[origin];
}

double hk_cpu_thread_scale(const hk_machine *machine, const hk_quantity *scale) {
  return scale->value > 0 ? scale->value : machine->cpu_adamw_threads.value;
}

double hk_cpu_rate(const hk_machine *machine, const hk_quantity *saturated,
                   const hk_quantity *scale, double threads) {
  /* expm1 keeps the digits of 1 - exp(-x) where x is small. */
  return saturated->value * -expm1(-threads / hk_cpu_thread_scale(machine, scale));
}

double hk_cpu_start(const hk_machine *machine, double threads) {
  return threads > 1 ? machine->cpu_operation.value : 0;
}

/* -- Relations between quantities -------------------------------------------------------------- */

/* quantity <= limit + more; members are offsets in hk_machine, NONE: there is no such term. */
typedef struct {
  size_t quantity, limit, more;
  const char *reason;
} relation;

#define AT(field) offsetof(hk_machine, field)
#define NONE      SIZE_MAX

static const char of_link[] = "one direction alone cannot beat both together";
static const char of_sum[] = "both directions together cannot beat the sum of each alone";

static const relation relations[] = {
    {AT(h2d), AT(duplex), NONE, of_link},
    {AT(d2h), AT(duplex), NONE, of_link},
    {AT(duplex), AT(h2d), AT(d2h), of_sum},
    {AT(mapped), AT(duplex), NONE, "a kernel's accesses cross the same link as copies"},
    {AT(fabric_duplex), AT(fabric_h2d), AT(fabric_d2h), of_sum},
    {AT(dram_with_dma), AT(dram), NONE,
     "copies beside CPU kernels cannot make host memory faster while their bytes cost 1"},
};

enum { RELATIONS = sizeof relations / sizeof *relations };

static double value_at(const hk_machine *m, size_t offset) {
  return ((const hk_quantity *)(const void *)((const char *)m + offset))->value;
}

static const char *key_at(size_t offset) {
  size_t n = 0, i = 0;
  const hk_quantity_info *quantities = hk_quantity_list(&n);
  while (quantities[i].offset != offset) i++;
  return quantities[i].key;
}

static double limit_of(const hk_machine *m, const relation *r) {
  const bool same_costs = m->h2d_cost.value == 1 && m->d2h_cost.value == 1;
  if (r->quantity == AT(dram_with_dma) && !same_costs) return INFINITY;
  return value_at(m, r->limit) + (r->more != NONE ? value_at(m, r->more) : 0);
}

double hk_machine_limit(const hk_machine *machine, const hk_quantity *quantity) {
  const size_t offset = (size_t)((const char *)quantity - (const char *)machine);
  for (size_t i = 0; i < RELATIONS; i++)
    if (relations[i].quantity == offset) return limit_of(machine, &relations[i]);
  return INFINITY;
}

static hk_status check_relation(const hk_machine *m, const relation *r, hk_error *err) {
  const double value = value_at(m, r->quantity), most = limit_of(m, r);
  char limit[128];
  if (value <= most) return HK_OK;
  if (r->more != NONE)
    snprintf(limit, sizeof limit, "'%s' + '%s'", key_at(r->limit), key_at(r->more));
  else
    snprintf(limit, sizeof limit, "'%s'", key_at(r->limit));
  return hk_fail(err, HK_INPUT, "quantity '%s' is %.15g, but may be at most %s = %.15g: %s",
                 key_at(r->quantity), value, limit, most, r->reason);
}

/* -- Reading one quantity ---------------------------------------------------------------------- */

static hk_status read_origin(const cJSON *object, hk_origin *origin, hk_error *err) {
  const char *name;
  HK_TRY(hk_json_string(object, "origin", &name, err));
  for (size_t i = 0; i < ORIGINS; i++) {
    if (strcmp(name, origins[i]) != 0) continue;
    *origin = (hk_origin)i;
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "key 'origin': expected \"measured\", \"fitted\", \"data sheet\", \"default\", "
                 "\"set\" or \"derived\", got \"%.60s\"",
                 name);
}

static hk_status read_source(const cJSON *object, hk_origin origin, const char **source,
                             hk_error *err) {
  if (origin == HK_ORIGIN_DEFAULT && !cJSON_GetObjectItemCaseSensitive(object, "source")) {
    *source = "a guess whose reason the profile does not give";
    return HK_OK;
  }
  HK_TRY(hk_json_string(object, "source", source, err));
  const size_t length = strlen(*source);
  if (length >= 1 && length <= MAX_SOURCE && !strpbrk(*source, "\r\n")) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "key 'source': expected one line of 1 to %d characters that says where the value "
                 "is from, got %s of %zu",
                 MAX_SOURCE, strpbrk(*source, "\r\n") ? "several lines" : "a line", length);
}

static hk_status read_quantity(const cJSON *object, const hk_quantity_info *info, hk_quantity *out,
                               hk_error *err) {
  HK_TRY(hk_json_double(object, "value", info->least, info->most, &out->value, err));
  HK_TRY(read_origin(object, &out->origin, err));
  HK_TRY(read_source(object, out->origin, &out->source, err));
  return hk_quantity_read_error(object, out, err);
}

/* -- Reading all of them ----------------------------------------------------------------------- */

static hk_status check_known(const cJSON *list, hk_error *err) {
  const char *keys[HK_QUANTITY_COUNT];
  size_t n = 0;
  const hk_quantity_info *quantities = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) keys[i] = quantities[i].key;
  for (const cJSON *item = list->child; item; item = item->next) {
    size_t i = 0;
    while (i < n && strcmp(item->string, keys[i]) != 0) i++;
    if (i < n) continue;
    const char *nearest = hk_nearest(item->string, keys, n);
    return nearest ? hk_fail(err, HK_INPUT, "quantity '%.80s' is not known; did you mean '%s'?",
                             item->string, nearest)
                   : hk_fail(err, HK_INPUT,
                             "quantity '%.80s' is not known; 'hocket machine show' lists those "
                             "that are",
                             item->string);
  }
  return HK_OK;
}

static hk_status read_quantities(const cJSON *list, hk_machine *machine, hk_error *err) {
  size_t n = 0;
  const hk_quantity_info *quantities = hk_quantity_list(&n);
  HK_TRY(check_known(list, err));
  for (size_t i = 0; i < n; i++) {
    const hk_quantity_info *info = &quantities[i];
    hk_quantity *out = hk_machine_quantity(machine, info);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(list, info->key);
    if (cJSON_IsObject(item)) {
      if (read_quantity(item, info, out, err) == HK_OK) continue;
      return hk_fail_prefix(err, "quantity '%s'", info->key);
    }
    if (item) {
      return hk_fail(err, HK_INPUT,
                     "quantity '%s': expected an object with 'value', 'origin' and 'source'",
                     info->key);
    }
    if (isnan(info->fallback)) {
      return hk_fail(err, HK_INPUT, "quantity '%s' (%s) is missing and has no default", info->key,
                     info->meaning);
    }
    *out = (hk_quantity){.value = info->fallback,
                         .origin = HK_ORIGIN_DEFAULT,
                         .source = "hocket's guess for every machine; the profile does not say"};
  }
  return HK_OK;
}

/* -- Checks of several quantities -------------------------------------------------------------- */

static hk_status check_whole(const char *key, double value, hk_error *err) {
  if (floor(value) == value) return HK_OK;
  return hk_fail(err, HK_INPUT, "quantity '%s': expected a whole number, got %.15g", key, value);
}

static hk_status check_room(const char *reserved_key, double reserved, const char *memory_key,
                            double memory, hk_error *err) {
  if (reserved < memory) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "quantity '%s' is %.15g, but must be less than '%s' = %.15g: nothing would be "
                 "left to use",
                 reserved_key, reserved, memory_key, memory);
}

hk_status hk_machine_check(const hk_machine *m, hk_error *err) {
  HK_TRY(check_whole(KEY.gpus, m->gpus.value, err));
  HK_TRY(check_whole(KEY.cores, m->cores.value, err));
  HK_TRY(check_room(KEY.host_reserved, m->host_reserved.value, KEY.host_memory,
                    m->host_memory.value, err));
  HK_TRY(check_room(KEY.gpu_reserved, m->gpu_reserved.value, KEY.gpu_memory, m->gpu_memory.value,
                    err));
  for (size_t i = 0; i < RELATIONS; i++) HK_TRY(check_relation(m, &relations[i], err));
  return HK_OK;
}

/* -- Documents --------------------------------------------------------------------------------- */

static hk_status read_document(const cJSON *root, hk_machine *machine, hk_error *err) {
  const char *schema;
  HK_TRY(hk_json_string(root, "schema", &schema, err));
  if (strcmp(schema, SCHEMA) != 0) {
    return hk_fail(err, HK_INPUT, "key 'schema': this is \"%.60s\"; a machine profile is \"%s\"",
                   schema, SCHEMA);
  }
  HK_TRY(hk_json_text(root, "name", 1, machine->name, sizeof machine->name, err));
  HK_TRY(
      hk_json_text(root, "description", 0, machine->description, sizeof machine->description, err));
  const cJSON *list;
  HK_TRY(hk_json_object(root, "quantities", &list, err));
  HK_TRY(read_quantities(list, machine, err));
  hk_machine_read_intervals(root, machine);
  return hk_machine_check(machine, err);
}

hk_status hk_machine_from_json(const cJSON *root, hk_machine *machine, hk_error *err) {
  *machine = (hk_machine){.document = cJSON_Duplicate(root, true)};
  if (!machine->document) return hk_fail_memory(err, sizeof(cJSON), "a machine profile");
  hk_status status = read_document(machine->document, machine, err);
  if (status != HK_OK) hk_machine_free(machine);
  return status;
}

hk_status hk_machine_load(const char *name_or_file, hk_machine *machine, hk_error *err) {
  *machine = (hk_machine){0};
  char path[MAX_PATH];
  HK_TRY(hk_share_resolve("machines", name_or_file, path, sizeof path, err));
  cJSON *root;
  HK_TRY(hk_json_load(path, &root, err));
  hk_status status = hk_machine_from_json(root, machine, err);
  cJSON_Delete(root);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "%s", path);
}

/* Copies a member that this file does not interpret; does nothing if it is absent. */
static bool pass_on(const cJSON *from, const char *key, cJSON *to) {
  const cJSON *member = cJSON_GetObjectItemCaseSensitive(from, key);
  if (!member) return true;
  cJSON *copy = cJSON_Duplicate(member, true);
  if (copy && cJSON_AddItemToObject(to, key, copy)) return true;
  cJSON_Delete(copy);
  return false;
}

static bool add_quantity(cJSON *list, const hk_quantity_info *info, const hk_quantity *quantity,
                         const cJSON *given) {
  cJSON *object = cJSON_AddObjectToObject(list, info->key);
  return object && cJSON_AddNumberToObject(object, "value", quantity->value) &&
         cJSON_AddStringToObject(object, "origin", hk_origin_name(quantity->origin)) &&
         cJSON_AddStringToObject(object, "source", quantity->source) &&
         hk_quantity_write_error(quantity, cJSON_GetObjectItemCaseSensitive(given, info->key),
                                 object) &&
         pass_on(cJSON_GetObjectItemCaseSensitive(given, info->key), "standard_error", object) &&
         pass_on(cJSON_GetObjectItemCaseSensitive(given, info->key), "before_fit", object) &&
         pass_on(cJSON_GetObjectItemCaseSensitive(given, info->key), "before_set", object);
}

cJSON *hk_machine_to_json(const hk_machine *machine) {
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(machine->document, "quantities");
  cJSON *root = cJSON_CreateObject();
  bool good = root && cJSON_AddStringToObject(root, "schema", SCHEMA) &&
              cJSON_AddStringToObject(root, "name", machine->name) &&
              cJSON_AddStringToObject(root, "description", machine->description) &&
              pass_on(machine->document, "notes", root) &&
              pass_on(machine->document, "fitted_on", root) &&
              pass_on(machine->document, "residuals", root);
  cJSON *list = good ? cJSON_AddObjectToObject(root, "quantities") : NULL;
  good = list != NULL;
  size_t n = 0;
  const hk_quantity_info *quantities = hk_quantity_list(&n);
  for (size_t i = 0; good && i < n; i++) {
    good = add_quantity(list, &quantities[i], hk_machine_quantity_const(machine, &quantities[i]),
                        given);
  }
  if (good) return root;
  cJSON_Delete(root);
  return NULL;
}

void hk_machine_free(hk_machine *machine) {
  cJSON_Delete(machine->document);
  *machine = (hk_machine){0};
}
