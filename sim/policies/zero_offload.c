/* SPDX-License-Identifier: GPL-3.0-or-later */
/* zero-offload: all state in host memory, every subgroup updated by the CPU. */
#include "sim/policy.h"

static hk_status assign(const hk_policy_options *options, const hk_machine *machine, hk_plan *plan,
                        hk_error *err) {
  (void)options, (void)machine, (void)err;
  for (size_t i = 0; i < plan->n_subgroups; i++) plan->subgroups[i].route = HK_ROUTE_CPU;
  return HK_OK;
}

const hk_policy hk_policy_zero_offload = {
    .name = "zero-offload",
    .summary = "all state on the host, every subgroup updated by the CPU",
    .source = "ZeRO-Offload, arXiv 2101.06840",
    .deepspeed = true,
    .assign = assign,
};
