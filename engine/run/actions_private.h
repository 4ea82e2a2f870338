/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that execute operations of the graph: actions.c (operations on streams:
 * copies of state and updates by the GPU), actions_cpu.c (the CPU team's operations) and
 * actions_weights.c (new weights on their way to the tensors). */
#ifndef HK_ENGINE_RUN_ACTIONS_PRIVATE_H
#define HK_ENGINE_RUN_ACTIONS_PRIVATE_H

#include "engine/private.h"

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
