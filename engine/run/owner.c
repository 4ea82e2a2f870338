/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of pieces (owner.h). */
#include "engine/run/owner.h"

#include <stdlib.h>

hk_status hk_owners_open(hk_engine *e, hk_error *err) {
  const size_t n = (size_t)e->state.n_stealable;
  if (n == 0) return HK_OK;
  e->owners = calloc(n, sizeof *e->owners);
  return e->owners != NULL ? HK_OK : hk_fail_memory(err, n, "the owners of pieces");
}

void hk_owners_close(hk_engine *e) {
  free(e->owners);
  e->owners = NULL;
}

void hk_owners_clear(hk_engine *e) {
  for (int64_t i = 0; i < e->state.n_stealable; i++)
    atomic_store_explicit(&e->owners[i], HK_OWNER_NOBODY, memory_order_relaxed);
  atomic_store(&e->stolen, 0);
}

/* The place of an operation's piece in e->owners; -1: the operation belongs to no update of a piece
 * that can be stolen. */
static int64_t place_of(const hk_engine *e, const hk_op *op) {
  if (e->owners == NULL || op->subgroup < 0 || op->kind == HK_OP_GRAD_D2H) return -1;
  const hk_state_subgroup *sub = &e->state.subgroups[op->subgroup];
  return sub->stealable ? sub->owners_at + op->piece : -1;
}

void hk_owners_claim(hk_engine *e, const hk_op *op) {
  const int64_t at = place_of(e, op);
  if (at < 0 || (op->kind != HK_OP_ADAMW_CPU && op->kind != HK_OP_STATE_H2D)) return;
  const bool by_gpu = op->kind == HK_OP_STATE_H2D;
  uint8_t nobody = HK_OWNER_NOBODY;
  const uint8_t taker = by_gpu ? HK_OWNER_GPU : HK_OWNER_CPU;
  if (!atomic_compare_exchange_strong(&e->owners[at], &nobody, taker) || !by_gpu) return;
  const int64_t n = hk_engine_op_numel(e, op);
  hk_state_take(&e->state, (size_t)op->subgroup, op->offset, n);
  atomic_fetch_add(&e->stolen, n);
}

hk_owner hk_owner_of(const hk_engine *e, const hk_op *op) {
  const int64_t at = place_of(e, op);
  return at < 0 ? HK_OWNER_CPU : (hk_owner)atomic_load(&e->owners[at]);
}

bool hk_engine_skips(const hk_engine *e, const hk_op *op) {
  if (op->when == HK_WHEN_STOLEN) return hk_owner_of(e, op) != HK_OWNER_GPU;
  return op->when == (e->state.in_place ? HK_WHEN_KEPT : HK_WHEN_HELD) ||
         hk_owner_of(e, op) == HK_OWNER_GPU;
}

int64_t hk_owners_stolen(const hk_engine *e) {
  return atomic_load(&e->stolen);
}
