/* SPDX-License-Identifier: Apache-2.0 */
/* Which early weights find room in memory that the framework lends, for predictions. The engine
 * does not decide: it uses what it is lent.
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
    x->pieces.roomy[s] = x->dp == 1 && lent + bytes <= peak - x->blocks[x->pieces.first[s]].need;
    if (x->pieces.roomy[s]) lent += bytes;
  }
}
