/* SPDX-License-Identifier: GPL-3.0-or-later */
/* When a run saves its checkpoint between two steps. */
#ifndef HK_CLI_CHECKPOINT_DUE_H
#define HK_CLI_CHECKPOINT_DUE_H

#include <stdbool.h>

#include "core/base/units.h"

/* Default interval, and the time between saves as a multiple of the time that a save takes: saving
 * takes at most a twentieth of the run. */
#define HK_SAVE_EVERY (600 * HK_NS_PER_S)
#define HK_SAVE_SHARE 20

/* `every`: --checkpoint-every, 0 if not given. `steps`, `passed`: steps and time since the last
 * save or the first step. `took`: duration of the last save, 0 if there was none. */
static inline bool hk_checkpoint_is_due(int64_t every, int64_t steps, hk_ns passed, hk_ns took) {
  if (every > 0) return steps >= every;
  return passed >= HK_SAVE_EVERY && passed >= HK_SAVE_SHARE * took;
}

#endif
