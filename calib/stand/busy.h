/* SPDX-License-Identifier: GPL-3.0-or-later */
/* CPU load of other processes during a measurement. */
#ifndef HK_CALIB_STAND_BUSY_H
#define HK_CALIB_STAND_BUSY_H

#include <sched.h>
#include <stdbool.h>

#include "core/base/units.h"

typedef struct {
  double all_s, own_s; /* CPU time in s: of all CPUs that this process may use; of this process */
  hk_ns at;
} hk_busy;

/* Reads the counters at the start of a measurement. */
void hk_busy_begin(hk_busy *busy);
/* Average number of CPUs that others have used since hk_busy_begin: other processes and, on a
 * virtual machine, its host. *cpus: CPUs that this process may use. NAN if /proc/stat cannot be
 * read or less than 0.1 s passed. Example: 4.0 of 16 CPUs means that others kept a quarter busy. */
double hk_busy_others(const hk_busy *busy, int *cpus);

/* Busy time of the CPUs of `set` in seconds, from the text of /proc/stat. NAN: it has none of them.
 */
double hk_busy_seconds(const char *stat, const cpu_set_t *set, long ticks_per_s);

/* Whether others use more than a tenth of the CPUs, which distorts measurements. */
bool hk_busy_matters(double others, int cpus);

#endif
