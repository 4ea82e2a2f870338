/* SPDX-License-Identifier: GPL-3.0-or-later */
/* CPU time from /proc/stat, less what this process used. */
#include "calib/stand/busy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LEAST_S   0.1 /* the system counts in hundredths of a second */
#define MOST_TEXT (1 << 18)

/* Busy ticks in a line "cpu3 user nice system idle iowait irq softirq steal ..."; *cpu: the number
 * after "cpu". -1 for any other line. */
static double busy_ticks(const char *line, long *cpu) {
  enum { IDLE = 3, WAIT = 4, FIELDS = 8 };
  char *end = NULL;
  double sum = 0;
  if (strncmp(line, "cpu", 3) != 0 || line[3] < '0' || line[3] > '9') return -1;
  *cpu = strtol(line + 3, &end, 10);
  for (int field = 0; field < FIELDS; field++) {
    const char *begin = end;
    const long long ticks = strtoll(begin, &end, 10);
    if (end == begin) return -1;
    if (field != IDLE && field != WAIT) sum += (double)ticks;
  }
  return sum;
}

double hk_busy_seconds(const char *stat, const cpu_set_t *set, long ticks_per_s) {
  double ticks = 0;
  int found = 0;
  for (const char *line = stat; line != NULL; line = strchr(line, '\n')) {
    line += *line == '\n';
    long cpu = -1;
    const double of_line = busy_ticks(line, &cpu);
    if (of_line < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET((size_t)cpu, set)) continue;
    ticks += of_line;
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
