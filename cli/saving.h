/* SPDX-License-Identifier: GPL-3.0-or-later */
/* When a long run saves its state between two steps. */
#ifndef HK_CLI_SAVING_H
#define HK_CLI_SAVING_H

#include <stdbool.h>

#include "core/units.h"

/* Without --checkpoint-every: so often, but for saving at most a twentieth of the time. */
#define HK_SAVE_EVERY (600 * HK_NS_PER_S)
#define HK_SAVE_SHARE 20

/* `every`: of --checkpoint-every, 0: not given. `steps` and `passed` since the last save or the
 * beginning; `took`: what the last save took, 0: none yet. */
static inline bool hk_saving_is_due(int64_t every, int64_t steps, hk_ns passed, hk_ns took) {
  if (every > 0) return steps >= every;
  return passed >= HK_SAVE_EVERY && passed >= HK_SAVE_SHARE * took;
}

#endif
