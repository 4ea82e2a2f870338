/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of who brings none: everything on the CPU, block by block. */
#ifndef HK_ENGINE_DEFAULT_PLAN_H
#define HK_ENGINE_DEFAULT_PLAN_H

#include "core/plan.h"
#include "engine/engine.h"

/* For these tensors; `threads` of the CPU team, 0: hk_default_threads(). Free with hk_plan_free. */
hk_status hk_default_plan(const hk_param *params, size_t n, int threads, hk_plan *plan,
                          hk_error *err);
/* Gives memory to what shortens an iteration. With overlap `both`, host memory beside what the
 * engine needs goes to spares (12 bytes a parameter), so that deep subgroups run ahead; GPU memory
 * goes first to weights that go up early (2 bytes a parameter that runs ahead), then to state and
 * gradients that stay there (14 bytes), shallow subgroups first. Without it all of the GPU memory
 * goes to state. */
hk_status hk_choose_routes(hk_plan *plan, hk_bytes host_memory, hk_bytes gpu_memory, hk_error *err);
/* CPUs that this process may use, by its affinity and its control group's quota, less one for the
 * framework; at least 1. */
int hk_default_threads(void);
/* The quota of the control group of this process and its ancestors, in CPUs rounded up; 0: none.
 * `root` goes before /proc and /sys: "" but in tests. */
int hk_cpu_quota(const char *root);

#endif
