/* SPDX-License-Identifier: GPL-3.0-or-later */
/* streamed: the state of every subgroup is copied to the GPU, updated there and copied back, in
 * pieces, with both directions of PCIe busy. The CPU updates nothing. This is stride k = 1, which
 * the published prototype cannot run. */
#include "sim/policy.h"

static hk_status assign(const hk_policy_options *options, const hk_machine *machine, hk_plan *plan,
                        hk_error *err) {
  (void)options, (void)machine, (void)err;
  for (size_t i = 0; i < plan->n_subgroups; i++) plan->subgroups[i].route = HK_ROUTE_STAGED;
  return HK_OK;
}

const hk_policy hk_policy_streamed = {
    .name = "streamed",
    .summary =
        "every subgroup updated on the GPU after a round trip, full duplex, --buffers pieces",
    .source = "hocket",
    .takes = HK_TAKES_BUFFERS,
    .assign = assign,
};
