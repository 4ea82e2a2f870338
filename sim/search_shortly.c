/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The search that `plan` makes by itself, see search.h. */
#include <math.h>
#include <string.h>

#include "sim/held.h"
#include "sim/search.h"

#define SHORT_OPS      4e6
#define SHORT_PATIENCE 2e6
#define SHORT_SEEDS    2
#define SHORT_ENOUGH   0.01
#define SHORT_GAIN     0.008

/* *found: the plan with the shortest iteration, zeroed if there is none. Frees the others. */
static hk_status choose(hk_forecast *each, const hk_search_progress *ends, const hk_error *errors,
                        hk_forecast *found, hk_error *err) {
  const hk_status status = hk_fail_first(errors, SHORT_SEEDS, err);
  int best = -1;
  for (int i = 0; i < SHORT_SEEDS; i++)
    if (each[i].plan.subgroups != NULL &&
        (best < 0 || ends[i].iteration_ns < ends[best].iteration_ns))
      best = i;
  memset(found, 0, sizeof *found);
  for (int i = 0; i < SHORT_SEEDS; i++) {
    if (status == HK_OK && i == best) {
      *found = each[i];
    } else {
      hk_forecast_free(&each[i]);
    }
  }
  return status;
}

hk_status hk_search_shortly(const hk_forecast *start, const hk_machine *machine, double clip_share,
                            const hk_bytes *gpu_memory, hk_ns first, hk_forecast *found,
                            hk_error *err) {
  hk_forecast each[SHORT_SEEDS];
  hk_search_progress ends[SHORT_SEEDS];
  hk_error errors[SHORT_SEEDS] = {0};
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < SHORT_SEEDS; i++) {
    const hk_search_options options = {.seconds = HUGE_VAL,
                                       .operations = SHORT_OPS,
                                       .patience = SHORT_PATIENCE,
                                       .enough = SHORT_ENOUGH,
                                       .seed = (uint64_t)i,
                                       .clip_share = clip_share,
                                       .gpu_memory = gpu_memory};
    errors[i].status = hk_search(start, machine, &options, &each[i], &ends[i], &errors[i]);
  }
  HK_TRY(choose(each, ends, errors, found, err));
  if (found->plan.subgroups == NULL) return HK_OK;
  const hk_status status = hk_held_add(found, clip_share, machine, err);
  const double most = (1 - SHORT_GAIN) * (double)first;
  if (status != HK_OK || (double)hk_forecast_mean(found) > most) hk_forecast_free(found);
  return status;
}
