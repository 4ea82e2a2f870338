/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The list of policies, their labels, and their application to a plan. The policies themselves are
 * in sim/policies/. */
#include "sim/policy.h"

#include <stdio.h>
#include <string.h>

#include "core/base/names.h"
#include "core/base/units.h"

/* From the simplest to the most general: if two policies give the same schedule, a ranking keeps
 * the first. */
static const hk_policy *const policies[] = {
    &hk_policy_gpu_only, &hk_policy_zero_offload, &hk_policy_streamed,
    &hk_policy_mapped,   &hk_policy_twinflow,     &hk_policy_interleave,
};
#define N_POLICIES (sizeof policies / sizeof policies[0])

const hk_policy *const *hk_policy_list(size_t *n) {
  *n = N_POLICIES;
  return policies;
}

hk_status hk_policy_find(const char *name, const hk_policy **policy, hk_error *err) {
  const char *names[N_POLICIES];
  for (size_t i = 0; i < N_POLICIES; i++) {
    names[i] = policies[i]->name;
    if (strcmp(name, names[i]) == 0) {
      *policy = policies[i];
      return HK_OK;
    }
  }
  const char *near = hk_nearest(name, names, N_POLICIES);
  if (near != NULL) {
    return hk_fail(err, HK_INPUT, "unknown policy '%s'; did you mean '%s'?", name, near);
  }
  char known[128];
  return hk_fail(err, HK_INPUT, "unknown policy '%s'; known are %s", name,
                 hk_join(names, N_POLICIES, known, sizeof known));
}

/* -- Labels -------------------------------------------------------------------------------- */

/* "cpu 884,603,904, staged 800,000,000". */
static const char *list_routes(const hk_plan *plan, char *buffer, size_t size) {
  int64_t n[HK_ROUTE_COUNT];
  size_t used = 0;
  hk_plan_route_totals(plan, n);
  buffer[0] = '\0';
  for (int r = 0; r < HK_ROUTE_COUNT && used < size; r++) {
    char count[32];
    if (n[r] == 0) continue;
    used +=
        (size_t)snprintf(buffer + used, size - used, "%s%s %s", used > 0 ? ", " : "",
                         hk_route_name((hk_route)r), hk_format_count(n[r], count, sizeof count));
  }
  return buffer;
}

static bool same_routes(const hk_plan *a, const hk_plan *b) {
  for (size_t i = 0; i < a->n_subgroups; i++)
    if (a->subgroups[i].route != b->subgroups[i].route) return false;
  return true;
}

/* Gives `plan` the routes of its label. */
static hk_status assign_label(const hk_policy *policy, bool before_0_18, hk_plan *plan,
                              hk_error *err) {
  hk_policy_options options = HK_POLICY_OPTIONS_NONE;
  options.before_0_18 = before_0_18;
  options.stride = plan->stride > 0 ? plan->stride : 1;
  if (policy->takes & HK_TAKES_RATIO) options.ratio = plan->ratio;
  for (size_t i = 0; i < plan->n_subgroups; i++) plan->subgroups[i].route = HK_ROUTE_CPU;
  return policy->assign(&options, NULL, plan, err); /* no machine: the stride is given */
}

hk_status hk_policy_check_label(const hk_plan *plan, char *text, size_t size, hk_error *err) {
  const hk_policy *policy = NULL;
  hk_plan other;
  char title[80], are[160], were[160];
  text[0] = '\0';
  for (size_t i = 0; i < N_POLICIES; i++)
    if (strcmp(plan->policy, policies[i]->name) == 0) policy = policies[i];
  if (policy == NULL) return HK_OK;
  HK_TRY(hk_plan_copy(plan, &other, err));
  /* Plans of published runs are those of DeepSpeed before 0.18. */
  hk_status status = assign_label(policy, true, &other, err);
  if (status == HK_OK && !same_routes(plan, &other))
    status = assign_label(policy, false, &other, err);
  if (plan->runtime == HK_RUNTIME_HOCKET && !same_routes(plan, &other)) hk_policy_front(&other);
  if (status == HK_OK && !same_routes(plan, &other))
    snprintf(text, size,
             "the plan is labelled '%s', which would be %s; its routes are %s, and they count",
             hk_plan_title(plan, title, sizeof title), list_routes(&other, were, sizeof were),
             list_routes(plan, are, sizeof are));
  hk_plan_free(&other);
  return status;
}

/* -- Applying ------------------------------------------------------------------------------ */

static hk_status check_options(const hk_policy *policy, const hk_policy_options *o,
                               hk_runtime runtime, hk_error *err) {
  if (runtime == HK_RUNTIME_DEEPSPEED && !policy->deepspeed) {
    return hk_fail(err, HK_INPUT, "DeepSpeed has no policy '%s'; use --runtime hocket",
                   policy->name);
  }
  if ((o->stride != 0 || o->stride_auto) && !(policy->takes & HK_TAKES_STRIDE)) {
    return hk_fail(err, HK_INPUT, "policy '%s' takes no --stride", policy->name);
  }
  if (o->ratio >= 0 && !(policy->takes & HK_TAKES_RATIO)) {
    return hk_fail(err, HK_INPUT, "policy '%s' takes no --ratio", policy->name);
  }
  if (o->ratio > 1) {
    return hk_fail(err, HK_INPUT, "--ratio: expected a number from 0 to 1, got %g", o->ratio);
  }
  if (o->buffers != 0 && !(policy->takes & HK_TAKES_BUFFERS)) {
    return hk_fail(err, HK_INPUT, "policy '%s' takes no --buffers", policy->name);
  }
  if (runtime == HK_RUNTIME_DEEPSPEED && o->buffers > 1) {
    return hk_fail(err, HK_INPUT,
                   "the published prototype has one buffer set; --buffers needs --runtime hocket");
  }
  if (runtime == HK_RUNTIME_DEEPSPEED && o->stride == 1) {
    return hk_fail(err, HK_INPUT,
                   "the published prototype divides by stride - 1: --stride 1 needs --runtime "
                   "hocket");
  }
  return HK_OK;
}

hk_status hk_policy_apply(const hk_policy *policy, const hk_policy_options *options,
                          const hk_machine *machine, hk_plan *plan, hk_error *err) {
  HK_TRY(check_options(policy, options, plan->runtime, err));
  snprintf(plan->policy, sizeof plan->policy, "%s", policy->name);
  if (options->buffers > 0) plan->buffers = options->buffers;
  HK_TRY(policy->assign(options, machine, plan, err));
  return hk_plan_check(plan, err);
}
