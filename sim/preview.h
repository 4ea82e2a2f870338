/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What a search asks of a plan with an overlap, at a part of a forecast's cost. */
#ifndef HK_SIM_PREVIEW_H
#define HK_SIM_PREVIEW_H

#include "sim/forecast.h"

/* As in the plan's forecast. If it does not fit in GPU memory, `peak` is at most as there but above
 * the capacity, and no iteration is known. */
typedef struct {
  bool feasible;
  bool steady; /* the iteration is, within 1 / HK_STEADY */
  hk_ns iteration_ns;
  hk_bytes peak;     /* of GPU memory */
  double operations; /* of the graphs that were simulated */
} hk_preview;
hk_status hk_preview_of(const hk_plan *plan, const hk_machine *machine, hk_preview *preview,
                        hk_error *err);

#endif
