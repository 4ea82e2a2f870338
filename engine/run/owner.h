/* SPDX-License-Identifier: Apache-2.0 */
/* Who updates each piece of route cpu in the run under way. If the plan steals (hk_plan_steals),
 * the graph has two updates of such a piece: the CPU team's, and behind it the GPU's, which stages
 * the piece (HK_WHEN_STOLEN). Both take pieces from the barrier on, the team in forward order, the
 * GPU against it. Whoever begins a piece first owns it; the other update does nothing. Bits do not
 * depend on the owner. */
#ifndef HK_ENGINE_RUN_OWNER_H
#define HK_ENGINE_RUN_OWNER_H

#include "engine/private.h"

typedef enum { HK_OWNER_NOBODY, HK_OWNER_CPU, HK_OWNER_GPU } hk_owner;

/* Allocates; nothing if the plan does not steal. Close with hk_owners_close. */
hk_status hk_owners_open(hk_engine *e, hk_error *err);
void hk_owners_close(hk_engine *e);
/* Before a run: nobody owns a piece. */
void hk_owners_clear(hk_engine *e);
/* Called when an operation begins: if it is the first of an update, its piece gets an owner unless
 * it has one. */
void hk_owners_claim(hk_engine *e, const hk_op *op);
/* Owner of the piece of an operation; HK_OWNER_CPU if it cannot be stolen. */
hk_owner hk_owner_of(const hk_engine *e, const hk_op *op);
/* Whether the operation has nothing to do in the run under way: it is of the other kind of step
 * (hk_when), or its piece has another owner. For operations that have begun. */
bool hk_engine_skips(const hk_engine *e, const hk_op *op);
/* Parameters that the GPU has taken in the run under way or the last one. */
int64_t hk_owners_stolen(const hk_engine *e);

#endif
