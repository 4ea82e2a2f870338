/* SPDX-License-Identifier: Apache-2.0 */
/* How much more memory this process could allocate, by the machine's and its control groups'
 * figures. */
#ifndef HK_ENGINE_DEVICE_AVAILABLE_MEMORY_H
#define HK_ENGINE_DEVICE_AVAILABLE_MEMORY_H

#include "core/base/units.h"

/* Bytes; -1: not known, or no limit. */
typedef struct {
  hk_bytes total, available; /* /proc/meminfo: MemTotal, MemAvailable */
  hk_bytes limit, left;      /* limit and remaining bytes of the control group (v1 or v2; this
                                process's or an ancestor) that has the fewest remaining */
} hk_available_memory;

/* `root` is put before /proc and /sys: "", except in tests. */
hk_available_memory hk_available_memory_read(const char *root);

/* Bytes that a new arena could have: the smaller of `available` and `left`. If the control group's
 * limit is above MemTotal, only `left` counts: the memory of such virtual machines grows as it is
 * used, and MemTotal and MemAvailable are too small. INT64_MAX: nothing is known. */
hk_bytes hk_available_memory_bytes(const hk_available_memory *memory);

#endif
