/* SPDX-License-Identifier: GPL-3.0-or-later */
/* twinflow: a static share of the subgroups stays on the GPU, the rest is updated by the CPU. */
#include "sim/policy.h"

/* As in the published runs. */
#define DEFAULT_RATIO 0.8

static hk_status assign(const hk_policy_options *options, const hk_machine *machine, hk_plan *plan,
                        hk_error *err) {
  (void)machine, (void)err;
  plan->ratio = options->ratio >= 0 ? options->ratio : DEFAULT_RATIO;
  for (size_t i = 0; i < plan->n_subgroups; i++) plan->subgroups[i].route = HK_ROUTE_CPU;
  if (plan->runtime == HK_RUNTIME_DEEPSPEED && !options->before_0_18)
    hk_policy_keep_first(plan, plan->ratio);
  else
    hk_policy_keep_resident(plan, plan->ratio);
  return HK_OK;
}

const hk_policy hk_policy_twinflow = {
    .name = "twinflow",
    .summary = "a share of the state (--ratio) on the host and updated there, the rest on the GPU",
    .source = "ZeRO-Offload++ Twin-Flow, DeepSpeed 2023",
    .takes = HK_TAKES_RATIO,
    .deepspeed = true,
    .assign = assign,
};
