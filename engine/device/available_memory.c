/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/meminfo and the control groups' files. A missing file counts as "not known". */
#include "engine/device/available_memory.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/arena.h"

/* Control groups v1 express "no limit" by a number near 2^63. */
#define NO_LIMIT ((hk_bytes)1 << 60)

/* File names of one version of control groups. */
typedef struct {
  const char *mount, *limit, *usage;
  const char *reclaimable[2]; /* keys of memory.stat: file caches, which the kernel can reclaim */
} cgroup_version;

static const cgroup_version v1 = {"/sys/fs/cgroup/memory",
                                  "memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  {"total_inactive_file", "total_active_file"}};
static const cgroup_version v2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

/* The number after `key` at the start of a line; with key "", a line's first number. -1: none. */
static hk_bytes read_number(const char *path, const char *key) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return -1;
  char line[256];
  const size_t length = strlen(key);
  hk_bytes found = -1;
  while (found < 0 && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, key, length) != 0 || (length > 0 && strchr(": ", line[length]) == NULL)) {
      continue;
    }
    const char *digits = line + length + strspn(line + length, ": ");
    char *end = NULL;
    errno = 0;
    const long long number = strtoll(digits, &end, 10);
    if (end != digits && errno == 0) found = number;
  }
  fclose(file);
  return found;
}

static hk_bytes read_in(const char *folder, const char *file, const char *key) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s/%s", folder, file);
  return length < (int)sizeof path ? read_number(path, key) : -1;
}

/* Reads one group, and keeps its figures if it has fewer bytes left than the groups before. */
static void read_group(const cgroup_version *version, const char *folder,
                       hk_available_memory *memory) {
  const hk_bytes limit = read_in(folder, version->limit, "");
  const hk_bytes usage = read_in(folder, version->usage, "");
  if (limit < 0 || limit >= NO_LIMIT || usage < 0) return;
  hk_bytes left = limit - usage;
  for (size_t i = 0; i < 2; i++) {
    const hk_bytes cache = read_in(folder, "memory.stat", version->reclaimable[i]);
    if (cache > 0) left += cache;
  }
  if (left < 0) left = 0;
  if (left > limit) left = limit;
  if (memory->limit >= 0 && memory->left <= left) return;
  memory->limit = limit;
  memory->left = left;
}

/* Reads a group and all its ancestors up to the mount. In a container the group's own path may be
 * visible from outside only; its ancestors are read nevertheless. */
static void read_groups(const cgroup_version *version, const char *root, const char *group,
                        hk_available_memory *memory) {
  char folder[PATH_MAX];
  const int length = snprintf(folder, sizeof folder, "%s%s%s", root, version->mount, group);
  if (length < 0 || length >= (int)sizeof folder) return;
  const size_t mount = strlen(root) + strlen(version->mount);
  for (;;) {
    read_group(version, folder, memory);
    char *slash = strrchr(folder, '/');
    if (slash == NULL || (size_t)(slash - folder) < mount) return;
    *slash = '\0';
  }
}

static bool has_word(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; (at = strstr(at, word)) != NULL; at += length) {
    if ((at == list || at[-1] == ',') && (at[length] == '\0' || at[length] == ',')) return true;
  }
  return false;
}

/* Reads the groups of one line of /proc/self/cgroup, "number:controllers:path". Version 2 has
 * number 0 and no controllers. */
static void read_membership(const char *root, char *line, hk_available_memory *memory) {
  line[strcspn(line, "\n")] = '\0';
  char *controllers = strchr(line, ':');
  char *group = controllers ? strchr(controllers + 1, ':') : NULL;
  if (group == NULL) return;
  controllers++;
  *group++ = '\0';
  if (*controllers == '\0') read_groups(&v2, root, group, memory);
  if (has_word(controllers, "memory")) read_groups(&v1, root, group, memory);
}

static hk_bytes read_meminfo(const char *root, const char *key) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s/proc/meminfo", root);
  const hk_bytes kib = length < (int)sizeof path ? read_number(path, key) : -1;
  return kib < 0 ? -1 : kib * HK_KIB;
}

hk_available_memory hk_available_memory_read(const char *root) {
  hk_available_memory memory = {.limit = -1, .left = -1};
  memory.total = read_meminfo(root, "MemTotal");
  memory.available = read_meminfo(root, "MemAvailable");
  char line[PATH_MAX];
  snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
  FILE *file = fopen(line, "r");
  if (file == NULL) return memory;
  while (fgets(line, sizeof line, file) != NULL) read_membership(root, line, &memory);
  fclose(file);
  return memory;
}

hk_bytes hk_available_memory_bytes(const hk_available_memory *memory) {
  if (memory->limit >= 0 && memory->limit > memory->total) return memory->left;
  hk_bytes room = memory->available < 0 ? INT64_MAX : memory->available;
  if (memory->limit >= 0 && memory->left < room) room = memory->left;
  return room;
}

hk_bytes hk_host_available(void) {
  const hk_available_memory memory = hk_available_memory_read("");
  return hk_available_memory_bytes(&memory);
}
