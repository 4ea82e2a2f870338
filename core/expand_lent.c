/* SPDX-License-Identifier: Apache-2.0 */
/* Which early weights find room in memory that the framework lends: for plans (hk_plan_lend_room),
 * which say so, and for predictions of plans. The engine uses what it is lent.
 *
 * The framework's memory over one micro-step, above what is always there: forward of block b leaves
 * its activations A(b), and its loss is there meanwhile; backward of block b needs, beside
 * A(0) + ... + A(b), a workspace W(b) and the block's gradients G(b). With
 *
 *   U(b) = A(0) + ... + A(b) + W(b) + G(b)      in use during backward of block b
 *   P    = the largest of all U(b) and of what forward uses
 *   N(b) = the largest of U(0) ... U(b - 1)     needed once backward has left block b
 *
 * P - N(b) bytes can be lent when the gradients of block b have been made (borrow.py measures P and
 * N). Subgroups are updated deep ones first, so a subgroup whose first block is b has room if its
 * weights and those of all deeper subgroups with room are at most P - N(b) bytes. Its update ends
 * later, when more is free: this is a lower estimate. */
#include <stdlib.h>

#include "core/expand.h"

/* Sets `need` of block b to N(b) and returns P. */
static hk_bytes measure(hk_expansion *x) {
  hk_bytes live = 0, peak = 0, most = 0;
  for (int b = 0; b < x->n_blocks; b++) {
    hk_block_cost *cost = &x->blocks[b];
    cost->need = most;
    live += cost->activations;
    most = hk_max(most, live + cost->workspace + cost->all_grad_bytes);
    peak = hk_max(peak, live + cost->loss);
  }
  return hk_max(peak, most);
}

/* What may be lent once backward has left block b: P - N(b), and at most what the plan says. */
static hk_bytes room_after(const hk_expansion *x, hk_bytes peak, int32_t b) {
  const hk_plan_lending *lending = &x->plan->lending;
  const hk_bytes room = x->dp == 1 ? peak - x->blocks[b].need : 0;
  return (size_t)b < lending->n ? hk_min(room, lending->after[b]) : room;
}

void hk_expand_lend(hk_expansion *x, unsigned phases) {
  const hk_plan *plan = x->plan;
  if (plan->overlap == HK_OVERLAP_NONE) return;
  const bool framework = (phases & HK_EXPAND_TRAINING) != 0;
  const hk_bytes peak = framework ? measure(x) : 0;
  hk_bytes lent = 0;
  for (size_t s = plan->n_subgroups; s-- > 0;) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[s];
    x->pieces.roomy[s] = subgroup->early;
    if (!subgroup->lent || !framework) continue;
    const hk_bytes bytes = hk_expand_weights(x, (int32_t)s, 0, subgroup->numel);
    x->pieces.roomy[s] = lent + bytes <= room_after(x, peak, x->pieces.first[s]);
    if (x->pieces.roomy[s]) lent += bytes;
  }
}

/* Marks subgroups and notes the room after each block. `first`: the first block of each. */
static void lend_room(hk_expansion *x, const int32_t *first, hk_plan *plan) {
  const hk_bytes peak = measure(x);
  hk_bytes lent = 0;
  plan->lending.n = 0; /* no limit but the memory's */
  for (size_t s = plan->n_subgroups; s-- > 0;) {
    hk_plan_subgroup *subgroup = &plan->subgroups[s];
    if (!subgroup->ahead || subgroup->early) continue;
    const hk_bytes bytes = hk_expand_weights(x, (int32_t)s, 0, subgroup->numel);
    if (lent + bytes > room_after(x, peak, first[s])) continue;
    subgroup->early = subgroup->lent = true;
    lent += bytes;
  }
  for (int b = 0; b < x->n_blocks; b++) plan->lending.after[b] = room_after(x, peak, b);
  plan->lending.n = (size_t)x->n_blocks;
}

hk_status hk_plan_lend_room(hk_plan *plan, hk_error *err) {
  if (plan->overlap != HK_OVERLAP_BOTH || !hk_plan_hands_over(plan)) return HK_OK;
  hk_expansion x = {
      .plan = plan, .dp = hk_job_dp(&plan->job), .n_blocks = (int)plan->model.layers + 2};
  const size_t n = plan->n_subgroups, blocks = (size_t)x.n_blocks;
  x.blocks = calloc(blocks, sizeof *x.blocks);
  x.begin = calloc(n + 1, sizeof *x.begin);
  int32_t *first = calloc(2 * n, sizeof *first);
  hk_bytes *after = realloc(plan->lending.after, (blocks + 1) * sizeof *after);
  if (after != NULL) plan->lending.after = after;
  hk_status status = HK_OK;
  if (x.blocks == NULL || x.begin == NULL || first == NULL || after == NULL) {
    status = hk_fail_memory(err, blocks * sizeof *x.blocks, "a plan of lent memory");
  } else {
    for (size_t s = 0; s < n; s++) x.begin[s + 1] = x.begin[s] + plan->subgroups[s].numel;
    hk_plan_subgroup_blocks(plan, first, first + n);
    hk_expand_costs(&x);
    lend_room(&x, first, plan);
  }
  free(x.blocks);
  free(x.begin);
  free(first);
  return status;
}
