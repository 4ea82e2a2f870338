/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a plan's new weights wait for the norm in GPU memory, and whose memory that is. */
#include "core/plan.h"

static int64_t early_numel(const hk_plan *plan, bool lent) {
  int64_t sum = 0;
  if (plan->overlap != HK_OVERLAP_BOTH) return 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[i];
    if (subgroup->early && subgroup->lent == lent) sum += subgroup->numel;
  }
  return sum;
}

int64_t hk_plan_early(const hk_plan *plan) {
  return early_numel(plan, false);
}

int64_t hk_plan_lent(const hk_plan *plan) {
  return early_numel(plan, true);
}

void hk_plan_lend(hk_plan *plan) {
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    hk_plan_subgroup *subgroup = &plan->subgroups[s];
    if (subgroup->ahead && !subgroup->early) subgroup->early = subgroup->lent = true;
  }
}
