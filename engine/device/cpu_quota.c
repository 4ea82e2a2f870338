/* SPDX-License-Identifier: Apache-2.0 */
/* Reads cpu.max (control groups version 2), and cpu.cfs_quota_us and cpu.cfs_period_us (version 1).
 * A missing file is no quota. */
#include "engine/device/cpu_quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whole CPUs that a quota of a period's microseconds needs. 0: no quota, or nonsense. */
static int cpus_of(long long quota, long long period) {
  if (quota <= 0 || period <= 0) return 0;
  const long long cpus = quota / period + (quota % period > 0);
  return cpus < 1 << 16 ? (int)cpus : 0;
}

/* The first line of a file; "": there is none. */
static void read_line(const char *folder, const char *file, char *line, int size) {
  char path[8192];
  const int length = snprintf(path, sizeof path, "%s/%s", folder, file);
  line[0] = '\0';
  FILE *stream = length > 0 && length < (int)sizeof path ? fopen(path, "r") : NULL;
  if (stream == NULL) return;
  if (fgets(line, size, stream) == NULL) line[0] = '\0';
  fclose(stream);
}

/* cpu.max holds "QUOTA PERIOD" or "max PERIOD", in microseconds. */
static int read_v2(const char *folder) {
  char line[96], *rest = line;
  read_line(folder, "cpu.max", line, sizeof line);
  const long long quota = strtoll(line, &rest, 10); /* "max": 0 */
  return cpus_of(quota, strtoll(rest, NULL, 10));
}

/* Two files with a number each, in microseconds; quota -1: none. */
static int read_v1(const char *folder) {
  char quota[96], period[96];
  read_line(folder, "cpu.cfs_quota_us", quota, sizeof quota);
  read_line(folder, "cpu.cfs_period_us", period, sizeof period);
  return cpus_of(strtoll(quota, NULL, 10), strtoll(period, NULL, 10));
}

/* The smallest quota of a group and its ancestors up to the mount, and `least` (0: none). In a
 * container the group's own path may be visible from outside only; its ancestors are read
 * nevertheless. */
static int least_of(const char *root, const char *mount, const char *group,
                    int (*read_group)(const char *folder), int least) {
  char folder[4096];
  const int length = snprintf(folder, sizeof folder, "%s%s%s", root, mount, group);
  if (length < 0 || length >= (int)sizeof folder) return least;
  const size_t shortest = strlen(root) + strlen(mount);
  for (;;) {
    const int quota = read_group(folder);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    char *slash = strrchr(folder, '/');
    if (slash == NULL || (size_t)(slash - folder) < shortest) return least;
    *slash = '\0';
  }
}

/* Whether the comma-separated list has the controller "cpu". */
static bool has_cpu(const char *list) {
  for (const char *at = list; at != NULL; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, "cpu", 3) == 0 && (at[3] == '\0' || at[3] == ',')) return true;
  }
  return false;
}

/* Looks at the group of one line of /proc/self/cgroup, "number:controllers:path". Version 2 has no
 * controllers. Version 1 is mounted by the controllers' names, mostly with a link named "cpu". */
static int read_membership(const char *root, char *line, int least) {
  char mount[256];
  line[strcspn(line, "\n")] = '\0';
  char *controllers = strchr(line, ':');
  char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
  if (group == NULL || group[1] != '/') return least;
  controllers++;
  *group++ = '\0';
  if (*controllers == '\0') return least_of(root, "/sys/fs/cgroup", group, read_v2, least);
  if (!has_cpu(controllers)) return least;
  least = least_of(root, "/sys/fs/cgroup/cpu", group, read_v1, least);
  snprintf(mount, sizeof mount, "/sys/fs/cgroup/%.200s", controllers);
  return least_of(root, mount, group, read_v1, least);
}

int hk_cpu_quota(const char *root) {
  char path[4096], line[4096];
  /* Where the kernel does not name the group, the root may have a quota all the same. */
  int least = least_of(root, "/sys/fs/cgroup", "", read_v2, 0);
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "r");
  if (file == NULL) return least;
  while (fgets(line, sizeof line, file) != NULL) least = read_membership(root, line, least);
  fclose(file);
  return least;
}
