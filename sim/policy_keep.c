/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Which subgroups stay on the GPU, for policies that take a ratio. */
#include <math.h>

#include "sim/policy.h"

size_t hk_policy_keep_resident(hk_plan *plan, double ratio) {
  /* 1e-9: so that 0.8 x 10 is not rounded down to 7. */
  const size_t on_host = (size_t)floor(ratio * (double)plan->n_subgroups + 1e-9);
  for (size_t i = on_host; i < plan->n_subgroups; i++) {
    plan->subgroups[i].route = HK_ROUTE_RESIDENT;
  }
  return on_host;
}

size_t hk_policy_keep_first(hk_plan *plan, double ratio) {
  const size_t n = plan->n_subgroups, on_gpu = n - hk_deepspeed_on_host(ratio, n);
  for (size_t i = 0; i < on_gpu; i++) plan->subgroups[i].route = HK_ROUTE_RESIDENT;
  return on_gpu;
}

void hk_policy_front(hk_plan *plan) {
  size_t to = plan->n_subgroups;
  for (size_t i = to; i-- > 0;) {
    const hk_route route = plan->subgroups[i].route;
    if (route != HK_ROUTE_RESIDENT) plan->subgroups[--to].route = route;
  }
  while (to > 0) plan->subgroups[--to].route = HK_ROUTE_RESIDENT;
}
