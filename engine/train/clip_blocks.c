/* SPDX-License-Identifier: Apache-2.0 */
/* Clipping by block: each block's gradients are multiplied by a coefficient of their own, which
 * follows from the block's own norm. It is known as soon as all gradients of the block are there,
 * so updates need not assume anything about it to run ahead of the step.
 *
 * Blocks are those of the tensors (hk_param.block), whatever the plan's subgroups are. A block is
 * complete when each of its tensors has been given as often as in the step before. Its bins of
 * squares are then copied to the host, on the flush stream. Only behind that copy are the
 * operations GRAD_D2H queued for which its updates wait: images that are whole before are copied at
 * once, but their operation waits for all blocks that the image has parts of. An update that runs
 * ahead computes coefficients from the copied bins, on the thread of the CPU team. What it assumes,
 * loss scale, limit and tensors, is compared at the step; a gradient that comes later gives it up.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/train/training_private.h"

hk_status hk_clip_blocks_open(hk_engine *e, hk_error *err) {
  hk_clip_blocks *c = &e->training->blocks;
  if (e->plan.clip != HK_CLIP_BLOCK) return HK_OK;
  const size_t n = (size_t)e->params[e->n_params - 1].block + 1;
  c->n = (int32_t)n;
  c->params = calloc(n + 1, sizeof *c->params);
  c->missing = calloc(n, sizeof *c->missing);
  c->counted = calloc(n, sizeof *c->counted);
  c->waits = calloc((size_t)e->state.n_images + 1, sizeof *c->waits);
  c->known = calloc(n, sizeof *c->known);
  c->steps = calloc(e->n_params, sizeof *c->steps);
  if (c->params == NULL || c->missing == NULL || c->counted == NULL || c->waits == NULL ||
      c->known == NULL || c->steps == NULL) {
    return hk_fail_memory(err, n * sizeof *c->params, "the blocks' norms");
  }
  for (size_t p = 0; p < e->n_params; p++) c->params[e->params[p].block + 1] = (int32_t)p + 1;
  for (size_t b = 1; b <= n; b++) {
    if (c->params[b] == 0) c->params[b] = c->params[b - 1]; /* a block without tensors */
  }
  return HK_OK;
}

void hk_clip_blocks_close(hk_engine *e) {
  hk_clip_blocks *c = &e->training->blocks;
  free(c->params);
  free(c->missing);
  free(c->counted);
  free(c->waits);
  free(c->known);
  free(c->steps);
}

/* -- Completion of blocks ---------------------------------------------------------------------- */

/* The segments *first .. *end - 1 of a block. */
static void segments_of(const hk_engine *e, int32_t block, int32_t *first, int32_t *end) {
  const struct hk_training *t = e->training;
  *first = t->segments[t->blocks.params[block]];
  *end = t->segments[t->blocks.params[block + 1]];
}

/* Adds `change` to the number of blocks that each image with parts of this block waits for. Images
 * that then wait for none are queued, if they have left for the host. */
static hk_status change_waits(hk_engine *e, int32_t block, int32_t change, hk_error *err) {
  struct hk_training *t = e->training;
  int32_t first = 0, end = 0, last = -1;
  segments_of(e, block, &first, &end);
  for (int32_t s = first; s < end; s++) {
    const int32_t image = e->state.segments[s].image; /* in ascending order */
    if (image == last) continue;
    last = image;
    t->blocks.waits[image] += change;
    if (t->blocks.waits[image] == 0) HK_TRY(hk_handover_queue_left(e, image, err));
  }
  return HK_OK;
}

void hk_clip_blocks_expect(hk_engine *e) {
  struct hk_training *t = e->training;
  hk_clip_blocks *c = &t->blocks;
  hk_error none = {0};
  if (c->n == 0) return;
  memset(c->waits, 0, (size_t)e->state.n_images * sizeof *c->waits);
  for (int32_t b = 0; b < c->n; b++) {
    c->missing[b] = 0;
    c->counted[b] = false;
    for (int32_t p = c->params[b]; p < c->params[b + 1]; p++) {
      c->missing[b] += t->expected[p] > 0;
    }
    if (c->missing[b] > 0) change_waits(e, b, 1, &none);
  }
}

/* Copies the block's squares to the host, behind all gradients that have been gathered, and lets
 * its updates begin behind that. */
static hk_status count(hk_engine *e, int32_t block, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  int32_t first = 0, end = 0;
  if (t->blocks.counted[block]) return HK_OK;
  t->blocks.counted[block] = true;
  for (size_t i = 0; i < t->n_streams; i++) HK_TRY(hk_handover_flush_behind(e, (int32_t)i, err));
  segments_of(e, block, &first, &end);
  const hk_bytes at = t->bins_at[first], bytes = t->bins_at[end] - at;
  if (bytes > 0) {
    HK_TRY(
        ops->copy(t->flush, (char *)e->block_bins + at, (char *)e->device_bins + at, bytes, err));
  }
  bool expected = false;
  for (int32_t p = t->blocks.params[block]; p < t->blocks.params[block + 1]; p++) {
    expected = expected || t->expected[p] > 0;
  }
  return expected ? change_waits(e, block, -1, err) : HK_OK;
}

hk_status hk_clip_blocks_given(hk_engine *e, int32_t param, hk_error *err) {
  hk_clip_blocks *c = &e->training->blocks;
  const int32_t block = e->params[param].block;
  if (c->n == 0 || --c->missing[block] > 0 || !hk_clip_blocks_run_ahead(e)) return HK_OK;
  if (e->training->surprised) return HK_OK; /* more may come */
  return count(e, block, err);
}

void hk_clip_blocks_forget(hk_engine *e, int32_t param) {
  if (e->training->blocks.n > 0) e->training->blocks.missing[e->params[param].block]++;
}

hk_status hk_clip_blocks_end(hk_engine *e, hk_error *err) {
  if (!hk_clip_blocks_run_ahead(e)) return HK_OK;
  for (int32_t b = 0; b < e->training->blocks.n; b++) HK_TRY(count(e, b, err));
  return HK_OK;
}

/* -- Coefficients ------------------------------------------------------------------------------ */

void hk_clip_blocks_assume(hk_engine *e, double max_norm, double loss_scale) {
  hk_clip_blocks *c = &e->training->blocks;
  c->max_norm = max_norm;
  c->loss_scale = loss_scale;
  c->run++;
}

/* Sets the constants of the block's tensors for updates that run ahead. The squares are on the
 * host: GRAD_D2H of the update's piece, which has ended, was queued behind their copy. Bins of
 * tensors without a gradient are 0, unless a gradient was discarded, which gives up the run. */
static void compute_steps(hk_engine *e, int32_t block) {
  const struct hk_training *t = e->training;
  hk_clip_blocks *c = &e->training->blocks;
  int32_t first = 0, end = 0;
  hk_squares sum;
  segments_of(e, block, &first, &end);
  hk_handover_sum(e, e->block_bins, first, end, NULL, &sum);
  const double scale = hk_grad_scale(hk_squares_value(&sum), c->max_norm, c->loss_scale);
  for (int32_t p = c->params[block]; p < c->params[block + 1]; p++) {
    c->steps[p] = t->assumed_steps[p];
    c->steps[p].scale = (float)scale;
  }
  c->known[block] = c->run;
}

const hk_adamw_step *hk_engine_cpu_steps(hk_engine *e, const hk_op *op) {
  const hk_state_subgroup *sub = hk_engine_subgroup(e, op);
  hk_clip_blocks *c = &e->training->blocks;
  if (c->n == 0 || !sub->ahead || e->state.in_place) return e->steps;
  const int64_t begin = sub->offset + op->offset, last = begin + op->work - 1;
  const hk_param_segment *segments = e->state.segments;
  const int32_t from = e->params[segments[hk_state_segment(&e->state, begin)].param].block;
  const int32_t to = e->params[segments[hk_state_segment(&e->state, last)].param].block;
  for (int32_t b = from; b <= to; b++) {
    if (c->known[b] != c->run) compute_steps(e, b);
  }
  return c->steps;
}

bool hk_clip_blocks_choose(hk_engine *e, double max_norm, double loss_scale, hk_adamw_step *steps,
                           double *least) {
  const struct hk_training *t = e->training;
  hk_clip_blocks *c = &e->training->blocks;
  const bool same = max_norm == c->max_norm && loss_scale == c->loss_scale;
  for (int32_t b = 0; b < c->n; b++) {
    int32_t first = 0, end = 0;
    hk_squares sum;
    segments_of(e, b, &first, &end);
    hk_handover_sum(e, e->bins, first, end, t->given, &sum);
    const double scale = hk_grad_scale(hk_squares_value(&sum), max_norm, loss_scale);
    if (scale < *least) *least = scale;
    for (int32_t p = c->params[b]; p < c->params[b + 1]; p++) steps[p].scale = (float)scale;
  }
  return same;
}
