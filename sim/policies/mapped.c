/* SPDX-License-Identifier: GPL-3.0-or-later */
/* mapped: GPU kernels read and write the state in pinned host memory. No staging buffers and no
 * copies are needed; the rate is that of loads and stores over PCIe. */
#include "sim/policy.h"

static hk_status assign(const hk_policy_options *options, const hk_machine *machine, hk_plan *plan,
                        hk_error *err) {
  (void)options, (void)machine, (void)err;
  for (size_t i = 0; i < plan->n_subgroups; i++) plan->subgroups[i].route = HK_ROUTE_MAPPED;
  return HK_OK;
}

const hk_policy hk_policy_mapped = {
    .name = "mapped",
    .summary = "GPU kernels update the state in host memory in place, over PCIe",
    .source = "hocket",
    .assign = assign,
};
