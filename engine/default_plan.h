/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of who brings none: everything on the CPU, block by block. */
#ifndef HK_ENGINE_DEFAULT_PLAN_H
#define HK_ENGINE_DEFAULT_PLAN_H

#include "core/plan.h"
#include "engine/state.h"

/* For these tensors; `threads` of the CPU team, 0: hk_default_threads(). Free with hk_plan_free. */
hk_status hk_default_plan(const hk_param *params, size_t n, int threads, hk_plan *plan,
                          hk_error *err);
/* CPUs that this process may use, by its affinity and its control group's quota, less three for the
 * framework's threads; at least 1. */
int hk_default_threads(void);
/* The quota of the control group of this process and its ancestors, in CPUs rounded up; 0: none.
 * `root` goes before /proc and /sys: "" but in tests. */
int hk_cpu_quota(const char *root);

#endif
