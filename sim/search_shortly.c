/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search that `plan` makes by itself, see search.h. */
#include <math.h>

#include "sim/held.h"
#include "sim/search.h"

#define SHORT_OPS      3e6
#define SHORT_PATIENCE 1e6
#define SHORT_ENOUGH   0.01
#define SHORT_GAIN     0.008

hk_status hk_search_shortly(const hk_forecast *start, const hk_machine *machine, double clip_share,
                            const hk_bytes *gpu_state, hk_ns first, hk_forecast *found,
                            hk_error *err) {
  hk_search_progress end;
  const hk_search_options options = {.seconds = HUGE_VAL,
                                     .operations = SHORT_OPS,
                                     .patience = SHORT_PATIENCE,
                                     .enough = SHORT_ENOUGH,
                                     .clip_share = clip_share,
                                     .gpu_state = gpu_state};
  HK_TRY(hk_search(start, machine, &options, found, &end, err));
  if (found->plan.subgroups == NULL) return HK_OK;
  const hk_status status = hk_held_add(found, clip_share, machine, err);
  const double most = (1 - SHORT_GAIN) * (double)first;
  if (status != HK_OK || (double)hk_forecast_mean(found) > most) hk_forecast_free(found);
  return status;
}
