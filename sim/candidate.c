/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The plan of one candidate of a ranking. */
#include <stdio.h>
#include <string.h>

#include "core/machine/team.h"
#include "sim/ahead.h"
#include "sim/rank.h"

#define DEFAULT_SUBGROUP 100000000

static hk_subgroup_rule rule_of(const hk_candidate *candidate, const hk_plan_settings *settings) {
  if (settings->overlap != HK_OVERLAP_NONE) return HK_SUBGROUP_BLOCKS;
  return candidate->runtime == HK_RUNTIME_DEEPSPEED ? HK_SUBGROUP_SOFT : HK_SUBGROUP_EXACT;
}

/* Default size of a CPU team: a rank's share of the cores, with an overlap as the engine. */
static int default_threads(const hk_plan_settings *settings, const hk_machine *machine, int ranks) {
  const int cores = (int)machine->cores.value;
  if (settings->cores_unbound) return cores;
  const int share = cores > ranks ? cores / ranks : 1;
  return settings->overlap == HK_OVERLAP_NONE ? share
                                              : hk_training_threads(settings->overlap, share);
}

static hk_status set_overlap(hk_plan *plan, const hk_plan_settings *settings,
                             const hk_machine *machine, hk_error *err) {
  if (settings->overlap == HK_OVERLAP_NONE) return HK_OK;
  hk_plan_set_overlap(plan, settings->overlap);
  plan->clip = settings->clip;
  HK_TRY(hk_plan_check(plan, err));
  HK_TRY(hk_plan_run_ahead(plan, machine, err));
  return HK_OK;
}

/* Refuses a way of summing gradients that the plan cannot have: gradients that are handed over
 * (hk_plan_hands_over) are not summed on the GPU, those of ranks that keep weights are, and
 * DeepSpeed has its own sums. */
static hk_status check_accumulate(const hk_plan *plan, const hk_plan_settings *settings,
                                  hk_error *err) {
  if (settings->accumulate == NULL || hk_plan_accumulates(plan) == *settings->accumulate ||
      plan->job.grad_accum == 1)
    return HK_OK;
  if (plan->runtime == HK_RUNTIME_DEEPSPEED)
    return hk_fail(err, HK_INPUT, "--accumulate needs runtime hocket: DeepSpeed has its own sums");
  if (hk_plan_accumulates(plan) == HK_ACCUMULATE_GPU)
    return hk_fail(
        err, HK_INPUT,
        "accumulate '%s': data-parallel ranks that keep their weights between passes, as "
        "in a pipeline, sum on the GPU; use 'gpu'",
        hk_accumulate_names[*settings->accumulate]);
  return hk_fail(err, HK_INPUT,
                 "accumulate '%s': the engine takes gradients as backward makes them and keeps "
                 "their sums in host memory; use 'host'",
                 hk_accumulate_names[*settings->accumulate]);
}

hk_status hk_candidate_plan(const hk_candidate *candidate, const hk_model *model,
                            const hk_machine *machine, const hk_job *job,
                            const hk_plan_settings *settings, hk_plan *plan, hk_error *err) {
  memset(plan, 0, sizeof *plan);
  hk_model copy = {0};
  HK_TRY(hk_model_copy(model, &copy, err));
  hk_status status = hk_plan_create(
      &copy, job, candidate->runtime, rule_of(candidate, settings),
      settings->subgroup_numel > 0 ? settings->subgroup_numel : DEFAULT_SUBGROUP, plan, err);
  hk_model_free(&copy);
  HK_TRY(status);
  snprintf(plan->machine, sizeof plan->machine, "%s", machine->name);
  if (settings->flush != NULL) plan->flush = *settings->flush;
  if (plan->flush == HK_FLUSH_SYNC) plan->flush_bytes_per_param = 2;
  if (settings->piece_numel > 0) plan->piece_numel = settings->piece_numel;
  plan->optimizer = settings->optimizer;
  if (settings->accumulate != NULL) plan->accumulate = *settings->accumulate;
  plan->cores_bound = !settings->cores_unbound;
  plan->cpu_threads = settings->cpu_threads > 0
                          ? settings->cpu_threads
                          : default_threads(settings, machine, hk_job_ranks(job));
  status = hk_policy_apply(candidate->policy, &candidate->options, machine, plan, err);
  if (status == HK_OK) status = set_overlap(plan, settings, machine, err);
  if (status == HK_OK) status = check_accumulate(plan, settings, err);
  if (status != HK_OK) hk_plan_free(plan);
  return status;
}
