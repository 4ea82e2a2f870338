/* SPDX-License-Identifier: GPL-3.0-or-later */
/* How much of the machine others use while something is measured on it. */
#ifndef HK_CALIB_STAND_BUSY_H
#define HK_CALIB_STAND_BUSY_H

#include <sched.h>
#include <stdbool.h>

#include "core/units.h"

typedef struct {
  double all_s, own_s; /* CPU time: of the CPUs that this process may use; of this process */
  hk_ns at;
} hk_busy;

/* Begins to watch. */
void hk_busy_begin(hk_busy *busy);
/* CPUs that other processes (and, of a virtual machine, its host) have used since, on average, of
 * the *cpus that this process may use. NAN: the system does not say, or too little time passed. */
double hk_busy_others(const hk_busy *busy, int *cpus);

/* Seconds that the CPUs of `set` were busy, by the text of /proc/stat. NAN: not in it. */
double hk_busy_seconds(const char *stat, const cpu_set_t *set, long ticks_per_s);

/* Whether so many CPUs are more than measurements bear: a tenth. */
bool hk_busy_matters(double others, int cpus);

#endif
