/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that DeepSpeed ZeRO-3 keeps gathered on a GPU (partitioned_param_coordinator.py of
 * DeepSpeed 0.13), tensor by tensor. Before a module is used, tensors of later modules are fetched
 * as long as fewer parameters than a limit are live. The limit is checked before a tensor, not with
 * it. Backward frees a matrix after its use, so the window's size varies: with 7B on two or more
 * GPUs it is 2.42 GB of layers after forward, and 2.59 GB when backward comes to the MLP's first
 * matrix, because the last one (90 MB) made room for three of a lower layer (256 MB). */
#include "core/graph/bytes.h"
#include "core/graph/expand.h"

/* DeepSpeed's documented default of stage3_max_live_parameters, which the published runs' logs
 * print, in parameters. */
#define MAX_LIVE 1000000000LL

static hk_bytes block_weights(const hk_expansion *x, int i) {
  return HK_BYTES_BF16 *
         hk_model_block_parameters(&x->plan->model, x->blocks[i].block, x->plan->job.tp);
}

/* Whether the tensors of `block` and of later blocks are gathered or released again. */
static bool has_reached(const hk_window *w, int block) {
  return w->block < block || (w->block == block && w->next == w->end);
}

/* Goes on to the next tensor: from the last layer down to the first, then the embedding, and in
 * each block from its first tensor to its last. */
static void gather_next(hk_window *w) {
  const hk_model *m = &w->x->plan->model;
  if (w->next == w->end) {
    hk_model_block_tensors(m, --w->block, &w->next, &w->end);
    return; /* the block may have no tensors */
  }
  w->live += HK_BYTES_BF16 * hk_tensor_share(&m->tensors[w->next++], w->x->plan->job.tp, 1);
}

void hk_window_after_forward(hk_expansion *x, hk_window *w) {
  const int last = x->n_blocks - 1;
  *w = (hk_window){.x = x, .block = (int)x->plan->model.layers};
  if (x->dp == 1) return;
  w->live = block_weights(x, last);
  /* In every published run with dp > 1 the limit was MAX_LIVE plus the two vocabulary matrices.
   * Reason: embedding and output projection are used outside the modules that own them, so the
   * coordinator does not count them. */
  w->stop = HK_BYTES_BF16 * MAX_LIVE + block_weights(x, 0) + w->live;
  while (w->live < w->stop && !has_reached(w, 0)) gather_next(w);
  hk_bytes below = 0; /* weights of this block and of those before it */
  for (int i = 0; i <= last; i++) {
    below += block_weights(x, i);
    x->blocks[i].live_forward = hk_min(below, w->live);
  }
}

void hk_window_fetch(hk_window *w) {
  const hk_bytes most = hk_min(w->stop, w->live + HK_BYTES_BF16 * HK_PREFETCH_BUCKET);
  while (w->live < most && !has_reached(w, HK_BLOCK_EMBED)) gather_next(w);
}

void hk_window_recompute(hk_window *w, int block) {
  while (w->stop > 0 && !has_reached(w, block)) gather_next(w);
}

void hk_window_release(hk_window *w, hk_bytes bytes) {
  if (w->stop > 0) w->live -= bytes;
}
