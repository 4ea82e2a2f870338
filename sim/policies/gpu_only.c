/* SPDX-License-Identifier: GPL-3.0-or-later */
/* gpu-only: nothing is offloaded. All state stays in GPU memory. If it fits, this is the reference
 * for the cost of offloading. */
#include "sim/policy.h"

static hk_status assign(const hk_policy_options *options, const hk_machine *machine, hk_plan *plan,
                        hk_error *err) {
  (void)options, (void)machine, (void)err;
  plan->ratio = 0;
  hk_policy_keep_resident(plan, plan->ratio);
  return HK_OK;
}

const hk_policy hk_policy_gpu_only = {
    .name = "gpu-only",
    .summary = "no offload: all state stays in GPU memory",
    .source = "ZeRO-3, arXiv 1910.02054",
    .deepspeed = true,
    .assign = assign,
};
