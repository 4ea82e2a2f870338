/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of who brings none: everything on the CPU, block by block. */
#ifndef HK_ENGINE_DEFAULT_PLAN_H
#define HK_ENGINE_DEFAULT_PLAN_H

#include "core/plan.h"
#include "engine/engine.h"

/* For these tensors; `threads` of the CPU team, 0: hk_default_threads(). Free with hk_plan_free. */
hk_status hk_default_plan(const hk_param *params, size_t n, int threads, hk_plan *plan,
                          hk_error *err);
/* Chooses what runs ahead (overlap `both`): subgroups on route cpu, the last ones in forward order
 * first, while 12 bytes a parameter of spares fit in `host_memory` beside what the engine needs. */
hk_status hk_choose_ahead(hk_plan *plan, hk_bytes host_memory, hk_error *err);
/* Gives `gpu_memory` bytes to what shortens an iteration most: first 2 a parameter to weights that
 * go up early, of what runs ahead, the last subgroups first; then 14 to state and gradients that
 * stay on the GPU, the first subgroups first, because forward waits for them longest. */
void hk_choose_gpu(hk_plan *plan, hk_bytes gpu_memory);
/* CPUs that this process may use, by its affinity and its control group's quota, less one for the
 * framework; at least 1. */
int hk_default_threads(void);
/* The quota of the control group of this process and its ancestors, in CPUs rounded up; 0: none.
 * `root` goes before /proc and /sys: "" but in tests. */
int hk_cpu_quota(const char *root);

#endif
