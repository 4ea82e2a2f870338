/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that execute operations of the graph: actions.c (operations on streams:
 * copies of state and updates by the GPU), actions_cpu.c (the CPU team's operations) and
 * actions_weights.c (new weights on their way to the tensors). */
#ifndef HK_ENGINE_RUN_ACTIONS_PRIVATE_H
#define HK_ENGINE_RUN_ACTIONS_PRIVATE_H

#include "engine/private.h"

/* Consecutive parameters of one segment. */
typedef struct {
  const hk_param_segment *segment;
  const hk_param *param;
  int64_t n;
} hk_param_run;

/* The parameters at .. end - 1 (flat order) up to the end of the segment that parameter `at` is in.
 */
hk_param_run hk_param_run_at(const hk_engine *e, int64_t at, int64_t end);
/* Address of the gradient of parameter `at` (flat order) of a run. */
const char *hk_param_run_grad(const hk_engine *e, const hk_param_run *run, int64_t at);

static inline hk_state_subgroup *hk_engine_subgroup(const hk_engine *e, const hk_op *op) {
  return &e->state.subgroups[op->subgroup];
}

/* Address of the bf16 weights of the operation's parameters in the host's array. */
uint16_t *hk_engine_host_weights(const hk_engine *e, const hk_op *op);

/* -- actions_cpu.c ----------------------------------------------------------------------------- */

/* Executes an operation of the CPU's lane by the engine's team. */
void hk_engine_act_on_cpu(hk_engine *e, int32_t id);

/* -- actions_weights.c ------------------------------------------------------------------------- */

/* Queues the operation WEIGHT_H2D `id`: the CPU has updated a piece, its weights go to the device.
 */
hk_status hk_engine_send_weights(hk_engine *e, int32_t id, hk_stream *stream, hk_error *err);
/* Queues the writing of a piece's new weights to the tensors (training). They come from the host's
 * array, where AdamW has written them, or, if early, from device memory. */
hk_status hk_engine_place_weights(hk_engine *e, const hk_op *op, hk_stream *stream, hk_error *err);
/* After the update of parameters index .. index + n - 1 of subgroup s by the GPU: writes the
 * weights of tensors that are not bf16. Master weights are read from consecutive slabs at `slabs`,
 * or, if that is NULL, from the state's new places. */
hk_status hk_engine_round_masters(hk_engine *e, size_t s, int64_t index, int64_t n, char *slabs,
                                  hk_stream *stream, hk_error *err);

#endif
