/* SPDX-License-Identifier: GPL-3.0-or-later */
/* interleave: of every k subgroups with state on the host, the last makes a round trip over PCIe
 * and is updated on the GPU while the CPU updates the others; with a ratio, a share stays on the
 * GPU. */
#include "sim/policy.h"

static hk_status assign(const hk_policy_options *options, const hk_machine *machine, hk_plan *plan,
                        hk_error *err) {
  (void)err;
  if (options->ratio >= 0) plan->ratio = options->ratio;
  plan->stride = options->stride > 0 ? options->stride : hk_stride_auto(plan, machine);
  const size_t on_host = hk_policy_keep_resident(plan, plan->ratio);
  for (size_t i = 0; i < on_host; i++) {
    const bool to_gpu = (i + 1) % (size_t)plan->stride == 0;
    plan->subgroups[i].route = to_gpu ? HK_ROUTE_STAGED : HK_ROUTE_CPU;
  }
  return HK_OK;
}

const hk_policy hk_policy_interleave = {
    .name = "interleave",
    .summary =
        "one of --stride subgroups updated on the GPU after a round trip, the rest by the CPU",
    .source = "Deep Optimizer States, arXiv 2410.21316",
    .takes = HK_TAKES_STRIDE | HK_TAKES_RATIO | HK_TAKES_BUFFERS,
    .deepspeed = true,
    .assign = assign,
};
