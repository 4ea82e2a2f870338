/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process could still have: the machine's and its control groups' figures. */
#ifndef HK_ENGINE_AVAILABLE_MEMORY_H
#define HK_ENGINE_AVAILABLE_MEMORY_H

#include "core/units.h"

/* -1: not known, or no limit. */
typedef struct {
  hk_bytes total, available; /* /proc/meminfo: MemTotal, MemAvailable */
  hk_bytes limit, left;      /* of the control group (v1 or v2, ancestors too) with least left */
} hk_available_memory;

/* `root` goes before /proc and /sys: "" but in tests. */
hk_available_memory hk_available_memory_read(const char *root);

/* What a new arena could have: what is available, but no more than the limit leaves. Where the
 * limit is above MemTotal it alone counts: on virtual machines whose memory grows as it is used it
 * is the only true figure. Nothing known: INT64_MAX. */
hk_bytes hk_available_memory_bytes(const hk_available_memory *memory);

#endif
