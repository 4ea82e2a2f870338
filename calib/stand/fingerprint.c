/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fingerprints, read from /proc, /sys and the device. A file that is missing is no failure: its
 * properties are unknown. */
#include "calib/stand/fingerprint.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "core/base/json.h"
#include "engine/device/available_memory.h"
#include "engine/device/topology.h"

#define UNKNOWN "unknown"

/* Texts that do not fit are cut. */
static void set_text(char *field, size_t size, const char *text) {
  snprintf(field, size, "%.*s", (int)size - 1, *text != '\0' ? text : UNKNOWN);
}
#define SET_TEXT(field, text) set_text(field, sizeof(field), text)

static hk_fingerprint nothing_known(void) {
  hk_fingerprint f;
#define FORGET_TEXT(field, key, meaning) SET_TEXT(f.field, UNKNOWN);
  HK_FINGERPRINT_TEXTS(FORGET_TEXT)
#undef FORGET_TEXT
#define FORGET_NUMBER(field, key, meaning) f.field = -1;
  HK_FINGERPRINT_NUMBERS(FORGET_NUMBER)
#undef FORGET_NUMBER
  return f;
}

/* ---- System files ---------------------------------------------------------------------------- */

/* Reads the first line of root + path that begins with `key`, without its newline; false if there
 * is none. */
__attribute__((format(printf, 5, 6))) static bool read_line(const char *root, const char *key,
                                                            char *line, int size,
                                                            const char *format, ...) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s", root);
  if (length < 0 || length >= PATH_MAX) return false;
  va_list values;
  va_start(values, format);
  vsnprintf(path + length, sizeof path - (size_t)length, format, values);
  va_end(values);
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  bool found = false;
  while (!found && fgets(line, size, file) != NULL) found = strncmp(line, key, strlen(key)) == 0;
  fclose(file);
  line[found ? strcspn(line, "\n") : 0] = '\0';
  return found;
}

/* x86 has "model name" in cpuinfo; others may name the whole board in the device tree. */
static void read_cpu(const char *root, hk_fingerprint *out) {
  char line[256];
  if (read_line(root, "model name", line, sizeof line, "/proc/cpuinfo")) {
    const char *name = line + strcspn(line, ":");
    SET_TEXT(out->cpu, name + strspn(name, ": \t"));
  } else if (read_line(root, "", line, sizeof line, "/proc/device-tree/model")) {
    SET_TEXT(out->cpu, line);
  }
}

/* "always [madvise] never": the one in brackets. */
static void read_huge_pages(const char *root, hk_fingerprint *out) {
  char line[128];
  if (!read_line(root, "", line, sizeof line, "/sys/kernel/mm/transparent_hugepage/enabled"))
    return;
  char *mode = strchr(line, '['), *end = mode != NULL ? strchr(mode, ']') : NULL;
  if (end == NULL) return;
  *end = '\0';
  SET_TEXT(out->huge_pages, mode + 1);
}

/* Number of members of a list such as "0-3,8" (5); -1: it is no such list. */
static int64_t count_in_list(const char *list) {
  int64_t count = 0;
  for (const char *at = list;; at++) {
    char *end = NULL;
    const long from = strtol(at, &end, 10);
    if (end == at) return -1;
    long to = from;
    if (*end == '-') {
      at = end + 1;
      to = strtol(at, &end, 10);
      if (end == at || to < from) return -1;
    }
    count += to - from + 1;
    if (*end == '\0') return count;
    if (*end != ',') return -1;
    at = end;
  }
}

static void read_numa(const char *root, hk_fingerprint *out) {
  char line[256];
  if (read_line(root, "", line, sizeof line, "/sys/devices/system/node/online"))
    out->numa = count_in_list(line);
}

/* Number of a CPU's core: its first hyperthread, the same for all CPUs of the core. */
static long core_of(const char *root, int cpu) {
  char line[256], *end = line;
  if (!read_line(root, "", line, sizeof line,
                 "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
    return cpu;
  const long first = strtol(line, &end, 10);
  return end != line ? first : cpu;
}

static int64_t count_cores(const char *root, const int *cpus, int n) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int i = 0; i < n; i++) {
    const long core = core_of(root, cpus[i]);
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET((size_t)core, &cores);
  }
  return CPU_COUNT(&cores);
}

static void read_cores(const char *root, hk_fingerprint *out) {
  int *cpus = NULL, n = 0;
  hk_error unknown = {0};
  if (hk_cpu_order("", &cpus, &n, &unknown) == HK_OK) out->cores = count_cores(root, cpus, n);
  free(cpus);
}

/* The control group's limit counts even if it exceeds MemTotal: the memory of some virtual machines
 * grows up to it (engine/device/available_memory.h). */
static void read_memory(const char *root, hk_fingerprint *out) {
  const hk_available_memory memory = hk_available_memory_read(root);
  out->memory = memory.limit >= 0 ? memory.limit : memory.total;
}

static void read_host(const char *root, hk_fingerprint *out) {
  read_cpu(root, out);
  read_huge_pages(root, out);
  read_numa(root, out);
  read_cores(root, out);
  read_memory(root, out);
  SET_TEXT(out->isa, hk_cpu_kernels_best()->name);
  struct utsname system;
  if (uname(&system) == 0) SET_TEXT(out->kernel, system.release);
}

static void read_device(const hk_device_info *info, hk_fingerprint *out) {
  SET_TEXT(out->gpu, info->name);
  SET_TEXT(out->driver, info->driver);
  if (info->link_generation > 0 && info->link_width > 0)
    snprintf(out->pcie, sizeof out->pcie, "%d.0 x%d", info->link_generation, info->link_width);
}

hk_status hk_fingerprint_take(hk_backend *device, int gpus, const char *version,
                              hk_fingerprint *out, hk_error *err) {
  *out = nothing_known();
  hk_device_info info = {0};
  HK_TRY(device->ops->info(device, &info, err));
  SET_TEXT(out->backend, device->ops->name);
  SET_TEXT(out->version, version);
  out->gpus = gpus;
  read_device(&info, out);
  read_host("", out);
  return HK_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

cJSON *hk_fingerprint_to_json(const hk_fingerprint *f) {
  cJSON *object = cJSON_CreateObject();
  bool ok = object != NULL;
#define WRITE_TEXT(field, key, meaning) \
  ok = ok && cJSON_AddStringToObject(object, key, f->field) != NULL;
  HK_FINGERPRINT_TEXTS(WRITE_TEXT)
#undef WRITE_TEXT
#define WRITE_NUMBER(field, key, meaning) \
  ok = ok && cJSON_AddNumberToObject(object, key, (double)f->field) != NULL;
  HK_FINGERPRINT_NUMBERS(WRITE_NUMBER)
#undef WRITE_NUMBER
  if (ok) return object;
  cJSON_Delete(object);
  return NULL;
}

/* A missing key leaves the property unknown: other versions may write more or fewer keys. */
static hk_status read_text(const cJSON *object, const char *key, char *field, size_t size,
                           hk_error *err) {
  if (cJSON_GetObjectItemCaseSensitive(object, key) == NULL) return HK_OK;
  HK_TRY(hk_json_text(object, key, 0, field, size, err));
  if (*field == '\0') set_text(field, size, "");
  return HK_OK;
}

hk_status hk_fingerprint_from_json(const cJSON *object, hk_fingerprint *out, hk_error *err) {
  *out = nothing_known();
#define READ_TEXT(field, key, meaning) \
  HK_TRY(read_text(object, key, out->field, sizeof out->field, err));
  HK_FINGERPRINT_TEXTS(READ_TEXT)
#undef READ_TEXT
  static const int64_t most = INT64_C(1) << 53; /* what JSON holds exactly */
#define READ_NUMBER(field, key, meaning) \
  HK_TRY(hk_json_int_or(object, key, -1, most, -1, &out->field, err));
  HK_FINGERPRINT_NUMBERS(READ_NUMBER)
#undef READ_NUMBER
  return HK_OK;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

typedef struct {
  char *text;
  size_t size, length;
  int count;
} differences;

/* Appends a difference to the text, which is cut when it is full. */
static void add(differences *d, const char *key, const char *of, const char *here) {
  const char *between = d->count++ > 0 ? "; " : "";
  if (d->length >= d->size) return;
  const int wrote = snprintf(d->text + d->length, d->size - d->length, "%s%s: %s, here %s", between,
                             key, of, here);
  d->length += wrote > 0 ? (size_t)wrote : 0;
}

/* A property that is unknown on either side counts as equal. */
static void compare_text(differences *d, const char *key, const char *of, const char *here) {
  if (strcmp(of, UNKNOWN) == 0 || strcmp(here, UNKNOWN) == 0) return;
  if (strcmp(of, here) != 0) add(d, key, of, here);
}

/* Operating systems reserve slightly different amounts of memory at each boot. */
static bool same_memory(int64_t of, int64_t here) {
  const double larger = (double)(of > here ? of : here), smaller = (double)(of > here ? here : of);
  return larger - smaller <= 0.02 * larger;
}

static void compare_number(differences *d, const char *key, int64_t of, int64_t here) {
  if (of < 0 || here < 0 || of == here) return;
  const bool memory = strcmp(key, "memory_bytes") == 0;
  if (memory && same_memory(of, here)) return;
  char a[24], b[24];
  if (memory) {
    hk_format_bytes(of, a, sizeof a);
    hk_format_bytes(here, b, sizeof b);
  } else {
    snprintf(a, sizeof a, "%lld", (long long)of);
    snprintf(b, sizeof b, "%lld", (long long)here);
  }
  add(d, key, a, b);
}

int hk_fingerprint_compare(const hk_fingerprint *of, const hk_fingerprint *here, char *text,
                           size_t size) {
  differences d = {.text = text, .size = size};
  if (size > 0) *text = '\0';
#define COMPARE_TEXT(field, key, meaning) compare_text(&d, key, of->field, here->field);
  HK_FINGERPRINT_TEXTS(COMPARE_TEXT)
#undef COMPARE_TEXT
#define COMPARE_NUMBER(field, key, meaning) compare_number(&d, key, of->field, here->field);
  HK_FINGERPRINT_NUMBERS(COMPARE_NUMBER)
#undef COMPARE_NUMBER
  return d.count;
}
