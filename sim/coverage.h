/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The runs that a profile was fitted on, as ranges and sets (the member "fitted_on" of a machine
 * document), and whether a plan is outside of them. Fitting writes and warnings read the same list.
 */
#ifndef HK_SIM_COVERAGE_H
#define HK_SIM_COVERAGE_H

#include <cjson/cJSON.h>

#include "core/graph/plan.h"
#include "core/machine/machine.h"

/* Ranges [least, most]. X(key, name in messages, value of a plan; negative: it has none) */
#define HK_COVERAGE_RANGES(X)                                                          \
  X("dp", "data-parallel ranks", hk_job_dp(&plan->job))                                \
  X("nodes", "nodes", plan->job.nodes)                                                 \
  X("tp", "tensor-parallel degree", plan->job.tp)                                      \
  X("micro_batch", "micro-batch", plan->job.micro_batch)                               \
  X("grad_accum", "gradient accumulation", plan->job.grad_accum)                       \
  X("seq", "tokens a sequence", plan->job.seq)                                         \
  X("subgroup_numel", "parameters a subgroup", (double)plan->subgroup_numel)           \
  X("params_per_rank", "parameters a rank", (double)hk_coverage_rank_parameters(plan)) \
  X("stride", "stride", plan->stride > 0 ? plan->stride : -1)

/* Sets of words. X(key, name in messages, word of a plan) */
#define HK_COVERAGE_SETS(X)                                                   \
  X("runtimes", "runtime", hk_runtime_name(plan->runtime))                    \
  X("policies", "policy", plan->policy)                                       \
  X("launch_styles", "launch style", plan->cores_bound ? "bound" : "unbound") \
  X("flush", "gradient flush", plan->flush == HK_FLUSH_SYNC ? "sync" : "async")

int64_t hk_coverage_rank_parameters(const hk_plan *plan);

/* Extends `fitted_on` (an object, initially empty) so that it covers `plan`. */
hk_status hk_coverage_widen(cJSON *fitted_on, const hk_plan *plan, hk_error *err);
/* Adds `word` to the set `key` of `fitted_on`, unless it is there. */
hk_status hk_coverage_add_word(cJSON *fitted_on, const char *key, const char *word, hk_error *err);

/* The member "fitted_on" of a machine's document; NULL: the profile was not fitted to runs.
 * HK_INPUT if it does not have the form that hk_coverage_widen writes. */
hk_status hk_coverage_of(const hk_machine *machine, const cJSON **fitted_on, hk_error *err);

/* Calls `say` with one sentence for each dimension in which `plan` is outside. */
void hk_coverage_gaps(const hk_machine *machine, const cJSON *fitted_on, const hk_plan *plan,
                      void (*say)(void *context, const char *sentence), void *context);

#endif
