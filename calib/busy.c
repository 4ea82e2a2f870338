/* SPDX-License-Identifier: GPL-3.0-or-later */
/* CPU time from /proc/stat, less what this process used. */
#include "calib/busy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LEAST_S   0.1 /* the system counts in hundredths of a second */
#define MOST_TEXT (1 << 18)

double hk_busy_seconds(const char *stat, const cpu_set_t *set, long ticks_per_s) {
  double ticks = 0;
  int found = 0;
  for (const char *line = stat; line != NULL; line = strchr(line, '\n')) {
    line += *line == '\n';
    int cpu = 0;
    long long user, nice, system, idle, wait, irq, softirq, steal;
    const int n = sscanf(line, "cpu%d %lld %lld %lld %lld %lld %lld %lld %lld", &cpu, &user, &nice,
                         &system, &idle, &wait, &irq, &softirq, &steal);
    if (strncmp(line, "cpu ", 4) == 0 || n != 9 || cpu < 0 || cpu >= CPU_SETSIZE) continue;
    if (!CPU_ISSET((size_t)cpu, set)) continue;
    ticks += (double)(user + nice + system + irq + softirq + steal);
    found++;
  }
  return found > 0 ? ticks / (double)ticks_per_s : NAN;
}

static double all_seconds(const cpu_set_t *set) {
  static char text[MOST_TEXT];
  FILE *file = fopen("/proc/stat", "re");
  if (file == NULL) return NAN;
  const size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[n] = '\0';
  return hk_busy_seconds(text, set, sysconf(_SC_CLK_TCK));
}

static double own_seconds(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return NAN;
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int usable(cpu_set_t *set) {
  CPU_ZERO(set);
  if (sched_getaffinity(getpid(), sizeof *set, set) != 0) return 0;
  return CPU_COUNT(set);
}

void hk_busy_begin(hk_busy *busy) {
  cpu_set_t set;
  usable(&set);
  *busy = (hk_busy){.all_s = all_seconds(&set), .own_s = own_seconds(), .at = hk_now()};
}

double hk_busy_others(const hk_busy *busy, int *cpus) {
  cpu_set_t set;
  *cpus = usable(&set);
  const double s = hk_s(hk_now() - busy->at);
  if (s < LEAST_S) return NAN;
  const double all = all_seconds(&set) - busy->all_s, own = own_seconds() - busy->own_s;
  return fmax(0, all - own) / s;
}

bool hk_busy_matters(double others, int cpus) {
  return others > 0.1 * cpus; /* NAN: no */
}
