/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The profile: data sheets times what machines reach of them. transfer.json is the list of rules;
 * this file has those that are no product (fabric, threads, no NVLink, no network, one memory
 * domain). */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/parts/private.h"
#include "core/base/json.h"
#include "core/base/json_write.h"

#define HOST_SUFFIX   " of a part of a host"
#define VENDOR_SUFFIX " of another vendor"
#define MOST_SOURCE   700
#define GPUS_TOGETHER 4 /* GPUs of the node whose shared links were measured */

/* -- transfer.json ----------------------------------------------------------------------------- */

typedef struct {
  double sum, squares, least; /* of logarithms */
  int n;
} tally;

static void count(tally *t, double value) {
  const double x = log(value);
  t->least = t->n == 0 || x < t->least ? x : t->least;
  t->sum += x;
  t->squares += x * x;
  t->n++;
}

static double spread(const tally *t) {
  const double mean = t->sum / t->n;
  return t->n > 1 ? sqrt(fmax(0, (t->squares - t->n * mean * mean) / (t->n - 1))) : 0.15;
}

static hk_status tally_observed(const cJSON *entry, const char *without, tally *t, char *names,
                                size_t size, hk_error *err) {
  const cJSON *observed;
  size_t length = 0;
  *names = 0;
  HK_TRY(hk_json_object(entry, "observed", &observed, err));
  for (const cJSON *o = observed->child; o; o = o->next) {
    double value;
    if (without && strcmp(o->string, without) == 0) continue;
    HK_TRY(hk_json_double(observed, o->string, 1e-9, 1e15, &value, err));
    count(t, value);
    if (length < size)
      length += (size_t)snprintf(names + length, size - length, "%s%s (%.4g)", t->n > 1 ? ", " : "",
                                 o->string, value);
  }
  return HK_OK;
}

static hk_status read_otherwise(const cJSON *entry, hk_transferred *out, hk_error *err) {
  const cJSON *otherwise;
  HK_TRY(hk_json_array(entry, "otherwise", &otherwise, err));
  const cJSON *value = cJSON_GetArrayItem(otherwise, 0);
  const char *why = cJSON_GetStringValue(cJSON_GetArrayItem(otherwise, 1));
  if (!cJSON_IsNumber(value) || !why)
    return hk_fail(err, HK_INPUT, "key 'otherwise': expected [number, \"why\"]");
  out->value = value->valuedouble;
  snprintf(out->who, sizeof out->who, "hocket's guess: %s", why);
  return HK_OK;
}

hk_status hk_transfer_read(const cJSON *entry, const char *without, hk_transferred *out,
                           hk_error *err) {
  char names[180];
  tally t = {0};
  *out = (hk_transferred){0};
  HK_TRY(tally_observed(entry, without, &t, names, sizeof names, err));
  const char *rule = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "rule"));
  out->observed = t.n > 0;
  if (!out->observed) {
    HK_TRY(read_otherwise(entry, out, err));
  } else {
    const bool least = rule && strcmp(rule, "least") == 0;
    out->value = t.n == 1 || least ? exp(t.least) : exp(t.sum / t.n);
    snprintf(out->who, sizeof out->who, "transferred from %s%s", names,
             t.n == 1 ? ""
             : least  ? ", the least of them"
                      : ", their mean");
  }
  HK_TRY(hk_json_double_or(entry, "error", 1e-6, 10, t.n > 0 ? fmax(0.01, spread(&t)) : 0.3,
                           &out->error, err));
  return HK_OK;
}

/* -- Writing quantities ------------------------------------------------------------------------ */

typedef struct {
  const hk_node_parts *node;
  const char *without;
  const cJSON *transfer; /* transfer.json */
  cJSON *list;           /* of the document under way */
  bool ok;               /* false: out of memory */
} maker;

/* To six digits: what a person edits. */
static double rounded(double value) {
  char text[32];
  snprintf(text, sizeof text, "%.6g", value);
  return strtod(text, NULL);
}

static void put(maker *m, const char *key, double value, hk_origin origin, double error,
                const char *format, ...) __attribute__((format(printf, 6, 7)));

static void put(maker *m, const char *key, double value, hk_origin origin, double error,
                const char *format, ...) {
  char source[MOST_SOURCE];
  va_list args;
  va_start(args, format);
  vsnprintf(source, sizeof source, format, args);
  va_end(args);
  cJSON *object = m->ok ? cJSON_AddObjectToObject(m->list, key) : NULL;
  const bool exact = strncmp(key, "node.", 5) == 0; /* as stated */
  m->ok = object && cJSON_AddNumberToObject(object, "value", exact ? value : rounded(value)) &&
          cJSON_AddStringToObject(object, "origin", hk_origin_name(origin)) &&
          cJSON_AddStringToObject(object, "source", source) &&
          (!(error > 0) || value == 0 || cJSON_AddNumberToObject(object, "error", rounded(error)));
}

static const cJSON *quantity_put(const maker *m, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(m->list, key);
}

static double value_put(const maker *m, const char *key) {
  return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(quantity_put(m, key), "value"));
}

static const char *unit_of(const char *key) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++)
    if (strcmp(list[i].key, key) == 0) return list[i].unit;
  return "";
}

/* "27.6 of 31.5 GB/s": both with the prefix that suits the second number. */
static const char *of_text(double value, double base, const char *unit, char *buffer, size_t size) {
  static const struct {
    double unit;
    const char *prefix;
  } prefixes[] = {{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1, " "}};
  size_t i = 0;
  while (i < 3 && base < prefixes[i].unit) i++;
  snprintf(buffer, size, "%.4g of %.4g%s%s", value / prefixes[i].unit, base / prefixes[i].unit,
           prefixes[i].prefix, unit);
  return buffer;
}

/* -- Rules ------------------------------------------------------------------------------------- */

/* What an entry multiplies: a figure of the data sheets, or a quantity before it. */
static hk_status base_of(const maker *m, const char *of, double *value, const char **text,
                         hk_error *err) {
  const hk_node_parts *n = m->node;
  const struct {
    const char *name;
    const hk_sheet_figure *figure;
  } sheets[] = {{"gpu.peak", &n->peak},  {"gpu.hbm", &n->hbm},   {"gpu.memory", &n->gpu_memory},
                {"link", &n->link},      {"nvlink", &n->nvlink}, {"dram", &n->dram},
                {"network", &n->network}};
  for (size_t i = 0; i < sizeof sheets / sizeof *sheets; i++) {
    if (strcmp(of, sheets[i].name) != 0) continue;
    *value = sheets[i].figure->value;
    *text = sheets[i].figure->text;
    return HK_OK;
  }
  if (!quantity_put(m, of))
    return hk_fail(err, HK_INPUT, "key 'of': '%.60s' is no figure and no quantity before it", of);
  *value = value_put(m, of);
  *text = of;
  return HK_OK;
}

/* Rate of the host's fabric, which the links of `gpus` GPUs share. Each group of 4 GPUs, full or
 * not, adds share x 4 x link. The rate is at least one link and at most gpus x link. */
static double fabric_rate(double link, double share, int gpus) {
  const double groups = ceil((double)gpus / GPUS_TOGETHER);
  return fmin(link * gpus, fmax(link, share * link * GPUS_TOGETHER * groups));
}

static void put_fabric(maker *m, const char *key, const char *of, double link,
                       const hk_transferred *t) {
  const int gpus = m->node->gpus;
  if (gpus == 1) {
    put(m, key, link, HK_ORIGIN_DATA_SHEET, t->error, "one GPU, so its own link, %s", of);
    return;
  }
  double value = fabric_rate(link, t->value, gpus);
  if (strcmp(key, "fabric.duplex_bytes_per_s") == 0)
    value = fmin(value,
                 value_put(m, "fabric.h2d_bytes_per_s") + value_put(m, "fabric.d2h_bytes_per_s"));
  put(m, key, value, HK_ORIGIN_DATA_SHEET, t->error,
      "%.4g of %d x %.4g GB/s: %d GPUs of a host share %.3g of the sum of their links; %s",
      value / 1e9, gpus, link / 1e9, GPUS_TOGETHER, t->value, t->who);
}

static hk_status put_product(maker *m, const char *key, const cJSON *entry, const hk_transferred *t,
                             hk_error *err) {
  const char *of, *as, *text = "";
  double base = 0, bytes;
  char figures[64];
  HK_TRY(hk_json_string(entry, "of", &of, err));
  HK_TRY(base_of(m, of, &base, &text, err));
  HK_TRY(hk_json_double_or(entry, "bytes", 1, 1e3, 1, &bytes, err));
  as = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "as"));
  if (as && strcmp(as, "fabric") == 0) {
    put_fabric(m, key, of, base, t);
  } else if (as && strcmp(as, "threads") == 0) {
    put(m, key, base / t->value, HK_ORIGIN_DATA_SHEET, t->error,
        "%s / %.3g G params/s of one thread; %s", of, t->value / 1e9, t->who);
  } else if (bytes > 1) {
    put(m, key, base / bytes * t->value, HK_ORIGIN_DATA_SHEET, t->error,
        "%.3g x %s / %g B a parameter; %s", t->value, of, bytes, t->who);
  } else {
    of_text(base * t->value, base, unit_of(key), figures, sizeof figures);
    put(m, key, base * t->value, HK_ORIGIN_DATA_SHEET, t->error, "%s, %s: %.3g, %s", figures, text,
        t->value, t->who);
  }
  return HK_OK;
}

/* True: the node decides, and the entry is not used. */
static bool put_special(maker *m, const char *key) {
  const hk_node_parts *n = m->node;
  if (strcmp(key, "nvlink.bytes_per_s") == 0 && n->nvlink.value == 0) {
    put(m, key, value_put(m, "pcie.h2d_bytes_per_s"), HK_ORIGIN_DATA_SHEET, 0.3,
        "no NVLink: collectives cross the GPUs' host links, pcie.h2d_bytes_per_s");
    return true;
  }
  if (strcmp(key, "network.bytes_per_s") == 0 && n->network.value == 0) {
    put(m, key, 12.5e9, HK_ORIGIN_DEFAULT, 0.5, "not stated: one port of 100 Gb/s");
    return true;
  }
  if (n->numa == 1 && strcmp(key, "dram.process_bytes_per_s") == 0) {
    put(m, key, value_put(m, "dram.bytes_per_s"), HK_ORIGIN_DATA_SHEET, 0,
        "one memory domain: one process reaches dram.bytes_per_s");
    return true;
  }
  if (n->numa == 1 && strcmp(key, "dram.unbound_efficiency") == 0) {
    put(m, key, 1, HK_ORIGIN_DEFAULT, 0, "one memory domain: all memory is local");
    return true;
  }
  return false;
}

/* The entry that applies: the one named with a suffix, if the node is such and the entry exists. */
static const cJSON *entry_for(const maker *m, const cJSON *entries, const cJSON *entry) {
  const struct {
    bool applies;
    const char *suffix;
  } cases[] = {{m->node->part_of_host, HOST_SUFFIX}, {m->node->vendor != NULL, VENDOR_SUFFIX}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char name[200];
    snprintf(name, sizeof name, "%s%s", entry->string, cases[i].suffix);
    const cJSON *other = cJSON_GetObjectItemCaseSensitive(entries, name);
    if (cases[i].applies && other) return other;
  }
  return entry;
}

static bool is_speed_of_gpu(const char *key) {
  return strncmp(key, "gpu.", 4) == 0 && strcmp(key, "gpu.memory_bytes") != 0;
}

/* Figures of the GPU's speed were measured on another vendor's. An entry for this vendor has an
 * error of its own. */
static hk_status widen(const maker *m, const char *key, const cJSON *used, hk_transferred *t,
                       hk_error *err) {
  if (!m->node->vendor || !is_speed_of_gpu(key) || strstr(used->string, VENDOR_SUFFIX))
    return HK_OK;
  double error;
  const cJSON *other;
  HK_TRY(hk_json_object(m->transfer, "other_vendor", &other, err));
  HK_TRY(hk_json_double(other, "error", 1e-6, 10, &error, err));
  t->error = fmax(t->error, error);
  const size_t length = strlen(t->who);
  snprintf(t->who + length, sizeof t->who - length, ", of another vendor");
  return HK_OK;
}

static hk_status put_entry(maker *m, const cJSON *entries, const cJSON *entry, hk_error *err) {
  hk_transferred t;
  const char *key = entry->string;
  if (strchr(key, ' ') || put_special(m, key)) return HK_OK;
  const cJSON *used = entry_for(m, entries, entry);
  HK_TRY(hk_transfer_read(used, m->without, &t, err));
  HK_TRY(widen(m, key, used, &t, err));
  if (cJSON_GetObjectItemCaseSensitive(used, "of")) return put_product(m, key, used, &t, err);
  put(m, key, t.value, HK_ORIGIN_DEFAULT, t.error, "%.4g, %s", t.value, t.who);
  return HK_OK;
}

static void put_node(maker *m) {
  const hk_node_parts *n = m->node;
  const hk_origin stated = HK_ORIGIN_DATA_SHEET;
  put(m, "node.gpus", n->gpus, stated, 0, "%d x %s", n->gpus, n->gpu);
  put(m, "node.cores", n->cores, stated, 0, "%s", n->cpu.text);
  put(m, "node.memory_bytes", n->memory.value, stated, 0, "%s", n->memory.text);
  put(m, "node.reserved_bytes", floor(fmin(5e9 + 3e9 * n->gpus, 0.15 * n->memory.value)),
      HK_ORIGIN_DEFAULT, 0,
      "hocket's guess: 5 GB for the system, 3 GB for each GPU's process, at most 15 %%");
  if (n->multiprocessors > 0)
    put(m, "gpu.collective_share", fmin(1, 24 / n->multiprocessors), HK_ORIGIN_DEFAULT, 0.3,
        "hocket's guess: 24 channels of NCCL, one multiprocessor each, of %g", n->multiprocessors);
}

/* Quantities without a rule get hocket's default; their source says so. */
static hk_status put_defaults(maker *m, hk_error *err) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    if (!m->ok || quantity_put(m, list[i].key)) continue;
    if (isnan(list[i].fallback))
      return hk_fail(err, HK_INPUT, "'efficiencies' has no entry '%s'", list[i].key);
    put(m, list[i].key, list[i].fallback, HK_ORIGIN_DEFAULT, 0, "hocket's guess for every machine");
  }
  return HK_OK;
}

/* In the order of hk_quantity_list. cJSON_ReplaceItemInObject of cJSON 1.7.15 reports success
 * without memory for the key, and loses it. */
static hk_status sort_quantities(cJSON *root, maker *m, hk_error *err) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  cJSON *sorted = cJSON_CreateObject();
  bool ok = sorted != NULL;
  for (size_t i = 0; ok && i < n; i++) {
    cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(m->list, list[i].key);
    if (item) hk_put_item(sorted, list[i].key, item, &ok);
  }
  if (ok) {
    cJSON_DeleteItemFromObjectCaseSensitive(root, "quantities");
    hk_put_item(root, "quantities", sorted, &ok);
    if (ok) return HK_OK;
  } else {
    cJSON_Delete(sorted);
  }
  return hk_fail_memory(err, sizeof(cJSON), "a machine profile");
}

/* The profile's note, which every forecast with it repeats. */
static void put_notes(maker *m, cJSON *root) {
  char text[300];
  if (!m->node->vendor) return;
  snprintf(text, sizeof text,
           "no GPU of %s was measured: how fast forward, backward and updates on the GPU are is "
           "transferred from another vendor's, and the intervals are wider for it",
           m->node->vendor);
  const char *const texts[] = {text};
  hk_put_item(root, "notes", cJSON_CreateStringArray(texts, 1), &m->ok);
}

static hk_status put_all(const hk_parts *parts, cJSON *root, maker *m, hk_error *err) {
  const cJSON *entries;
  put_node(m);
  HK_TRY(hk_json_object(parts->transfer, "efficiencies", &entries, err));
  for (const cJSON *entry = entries->child; m->ok && entry; entry = entry->next)
    if (put_entry(m, entries, entry, err) != HK_OK)
      return hk_fail_prefix(err, "share/parts/transfer.json: '%.80s'", entry->string);
  if (m->ok) HK_TRY(put_defaults(m, err));
  if (m->ok) HK_TRY(sort_quantities(root, m, err));
  const cJSON *residuals = cJSON_GetObjectItemCaseSensitive(parts->transfer, "residuals");
  put_notes(m, root);
  if (residuals) hk_put_item(root, "residuals", cJSON_Duplicate(residuals, true), &m->ok);
  return m->ok ? HK_OK : hk_fail_memory(err, sizeof(cJSON), "a machine profile");
}

/* -- The document ------------------------------------------------------------------------------ */

static bool add_heads(cJSON *root, const hk_parts_request *r, const hk_node_parts *n) {
  char text[256];
  if (r->description)
    snprintf(text, sizeof text, "%s", r->description);
  else
    snprintf(text, sizeof text, "From parts: %d x %s, %d cores, %.0f GiB of host memory", n->gpus,
             n->gpu, n->cores, n->memory.value / 1073741824.0);
  return cJSON_AddStringToObject(root, "schema", "hocket.machine/1") &&
         cJSON_AddStringToObject(root, "name", r->name) &&
         cJSON_AddStringToObject(root, "description", text);
}

hk_status hk_parts_machine(const hk_parts *parts, const hk_parts_request *request,
                           hk_machine *machine, hk_parts_notes *notes, hk_error *err) {
  hk_node_parts node;
  *machine = (hk_machine){0};
  HK_TRY(hk_parts_resolve(parts, request, &node, notes, err));
  cJSON *root = cJSON_CreateObject();
  maker m = {
      .node = &node, .without = request->without, .transfer = parts->transfer, .ok = root != NULL};
  m.ok = m.ok && add_heads(root, request, &node);
  m.list = m.ok ? cJSON_AddObjectToObject(root, "quantities") : NULL;
  m.ok = m.list != NULL;
  hk_status status =
      m.ok ? put_all(parts, root, &m, err) : hk_fail_memory(err, sizeof(cJSON), "a profile");
  if (status == HK_OK) status = hk_machine_from_json(root, machine, err);
  cJSON_Delete(root);
  return status;
}
