/* SPDX-License-Identifier: Apache-2.0 */
/* What each operation of the graph does: updates by actions*.c, flushes of gradients by
 * handover_slots.c. */
#include "engine/run/owner.h"
#include "engine/train/training_private.h"

static void act_on_cpu(hk_engine *e, const hk_op *op) {
  /* The other operation of CPU lanes, the barrier, does nothing. */
  if (op->kind == HK_OP_ADAMW_CPU) hk_engine_update_on_cpu(e, op, hk_engine_cpu_steps(e, op));
}

hk_status hk_training_act(void *arg, int32_t id, hk_stream *stream, hk_error *err) {
  hk_engine *e = arg;
  const hk_op *op = &e->graph.ops[id];
  hk_owners_claim(e, op);
  if (hk_engine_skips(e, op)) return HK_OK;
  if (stream != NULL && op->kind == HK_OP_GRAD_D2H) return hk_training_flush_op(e, id, stream, err);
  if (stream != NULL) return hk_engine_act(e, id, stream, err);
  act_on_cpu(e, op);
  return HK_OK;
}

void hk_training_join(void *arg, hk_lane_kind lane) {
  const hk_engine *e = arg;
  if (lane == HK_LANE_CPU) hk_team_join(e->team);
}
