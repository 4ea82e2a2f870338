/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a caller who gives none: everything on the CPU, block by block. */
#ifndef HK_ENGINE_DEFAULT_PLAN_H
#define HK_ENGINE_DEFAULT_PLAN_H

#include "core/graph/plan.h"
#include "engine/engine.h"

/* Makes a plan for these tensors. `threads`: size of the CPU team; 0: hk_default_threads of
 * overlap none. Free *plan with hk_plan_free. */
hk_status hk_default_plan(const hk_param *params, size_t n, int threads, hk_plan *plan,
                          hk_error *err);
/* Decides how memory is used to shorten an iteration. `host_memory`: bytes for all that the engine
 * takes. `gpu_memory`: bytes beyond what every plan needs.
 *
 * With overlap `both`, host memory that the engine leaves holds spares (12 bytes a parameter), so
 * that the update of deep subgroups runs ahead of the norm; of all but those of the first block,
 * whose gradients arrive last. GPU memory first holds new weights of
 * such subgroups (2 bytes a parameter), which go up before the norm is known; the rest holds state
 * (12 bytes a parameter) and gradients (in their own type) of subgroups that stay on the GPU,
 * shallow ones first. With another overlap all GPU memory is for the latter. HK_INPUT: the tensors
 * have another number of elements than the plan. */
hk_status hk_choose_routes(hk_plan *plan, const hk_param *params, size_t n_params,
                           hk_bytes host_memory, hk_bytes gpu_memory, hk_error *err);

/* Size of the CPU team if nobody says it: the CPUs that this process may use (affinity and control
 * group's quota), less those that hk_training_threads leaves to the framework. */
int hk_default_threads(hk_overlap overlap);

#endif
