/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a training step in arithmetic and activation memory: what model_layers.c says of each
 * kind of block, for the tokens of a job. */
#include <math.h>
#include <stddef.h>

#include "core/model/model.h"

/* -- Listed models ---------------------------------------------------------------------------- */

static const hk_block *listed(const hk_model *model, int block) {
  return &model->blocks[block - HK_BLOCK_EMBED];
}

/* Tokens of the job / tokens for which the listed model states its costs. */
static double in_proportion(const hk_model *model, int64_t micro_batch, int64_t seq) {
  return (double)micro_batch * (double)seq / ((double)model->micro_batch * (double)model->seq);
}

hk_ns hk_model_measured_ns(const hk_model *model, int block, bool backward, int64_t micro_batch,
                           int64_t seq) {
  if (model->blocks == NULL) return 0;
  const hk_block *b = listed(model, block);
  const double ns = 1e6 * (backward ? b->backward_ms : b->forward_ms);
  return (hk_ns)(fmin(ns * in_proportion(model, micro_batch, seq), 0x1p60) + 0.5);
}

hk_ns hk_model_launch_ns(const hk_model *model, int block, bool backward) {
  if (model->blocks == NULL) return 0;
  const hk_block *b = listed(model, block);
  return (hk_ns)(1e6 * (backward ? b->backward_launch_ms : b->forward_launch_ms) + 0.5);
}

/* -- Arithmetic ------------------------------------------------------------------------------- */

const hk_block_kind *hk_model_block_kind(const hk_model *model, int block) {
  if (block == HK_BLOCK_EMBED) return &model->kinds[model->n_kinds];
  if (block == (int)model->layers) return &model->kinds[model->n_kinds + 1];
  return &model->kinds[model->kind_of[block]];
}

static bool is_layer(const hk_model *model, int block) {
  return block != HK_BLOCK_EMBED && block != (int)model->layers;
}

/* Tokens that the block works on. */
static double tokens_of(const hk_model *model, int block, int64_t micro_batch, int64_t seq) {
  const bool once = model->once && block == (int)model->layers;
  return (double)micro_batch * (once ? 1 : (double)seq);
}

static double other_tokens(const hk_model *model, int64_t micro_batch, int64_t seq) {
  return (double)micro_batch * (double)(model->other_tokens > 0 ? model->other_tokens : seq);
}

/* Pairs of a query and a key in a sequence of s tokens: s^2, or s w with a window of w < s keys. */
static double pairs(const hk_model *model, const hk_block_kind *kind, int64_t seq) {
  const double s = (double)seq;
  const double w = kind->window > 0 && kind->window < seq ? (double)kind->window : s;
  return model->causal_half ? w * s - w * w / 2 : w * s;
}

double hk_model_forward_flops(const hk_model *model, int block, int64_t micro_batch, int64_t seq,
                              int tp) {
  if (model->blocks != NULL)
    return listed(model, block)->forward_flops * in_proportion(model, micro_batch, seq);
  const hk_block_kind *kind = hk_model_block_kind(model, block);
  const double tokens = tokens_of(model, block, micro_batch, seq);
  const double other = other_tokens(model, micro_batch, seq);
  const double split = 2 * tokens * kind->products.split + 2 * other * kind->other_products +
                       kind->attention_flops * (double)micro_batch * pairs(model, kind, seq) +
                       kind->cross_flops * (double)seq * other;
  return 2 * tokens * kind->products.whole + split / tp;
}

/* Gradients of frozen weights, which backward leaves out: as many as forward's products with them.
 */
static double left_out(const hk_model *model, int block, int64_t micro_batch, int64_t seq, int tp) {
  if (model->frozen == NULL) return 0;
  const ptrdiff_t kind = hk_model_block_kind(model, block) - model->kinds;
  const hk_frozen_kind *frozen = &model->frozen[kind];
  const double tokens = tokens_of(model, block, micro_batch, seq);
  return 2 * tokens * (frozen->products.whole + frozen->products.split / tp) +
         2 * other_tokens(model, micro_batch, seq) * frozen->other_products / tp;
}

double hk_model_score_bytes(const hk_model *model, int64_t micro_batch, int64_t seq, int tp) {
  return 2 * (double)micro_batch * (double)seq * (double)seq * (double)model->heads / tp;
}

double hk_model_backward_flops(const hk_model *model, int block, int64_t micro_batch, int64_t seq,
                               int tp, bool checkpoint) {
  if (model->blocks != NULL && listed(model, block)->backward_flops > 0)
    return listed(model, block)->backward_flops * in_proportion(model, micro_batch, seq);
  return hk_model_forward_flops(model, block, micro_batch, seq, tp) *
             (is_layer(model, block) && checkpoint ? 3 : 2) -
         left_out(model, block, micro_batch, seq, tp);
}

/* -- Activation memory ------------------------------------------------------------------------ */

static double on_rank(hk_tp_amount bytes, double tokens, int tp) {
  return tokens * bytes.whole + ceil(tokens * bytes.split / tp);
}

/* Limits a size to 2^62 bytes, so that it can still be compared and added. */
static hk_bytes to_bytes(double bytes) {
  const double most = (double)(1LL << 62);
  return (hk_bytes)(bytes < most ? bytes : most);
}

static double kept(const hk_model *model, int block, int64_t micro_batch, int64_t seq, int tp) {
  const hk_block_kind *kind = hk_model_block_kind(model, block);
  return on_rank(kind->kept, tokens_of(model, block, micro_batch, seq), tp) +
         ceil(other_tokens(model, micro_batch, seq) * kind->other_kept / tp);
}

/* A checkpointed layer keeps its input. */
static double input(const hk_model *model, int block, int64_t micro_batch, int64_t seq) {
  return hk_model_block_kind(model, block)->input * tokens_of(model, block, micro_batch, seq);
}

hk_bytes hk_model_activation_bytes(const hk_model *model, int block, int64_t micro_batch,
                                   int64_t seq, int tp, bool checkpoint) {
  if (model->blocks != NULL)
    return to_bytes(
        ceil((double)listed(model, block)->activations * in_proportion(model, micro_batch, seq)));
  return to_bytes(checkpoint && is_layer(model, block) ? input(model, block, micro_batch, seq)
                                                       : kept(model, block, micro_batch, seq, tp));
}

hk_bytes hk_model_backward_workspace_bytes(const hk_model *model, int block, int64_t micro_batch,
                                           int64_t seq, int tp, bool checkpoint) {
  if (model->blocks != NULL)
    return to_bytes(
        ceil((double)listed(model, block)->workspace * in_proportion(model, micro_batch, seq)));
  double bytes = on_rank(hk_model_block_kind(model, block)->gradients,
                         tokens_of(model, block, micro_batch, seq), tp);
  if (checkpoint && is_layer(model, block)) /* all but the input, which was kept */
    bytes += kept(model, block, micro_batch, seq, tp) - input(model, block, micro_batch, seq);
  return to_bytes(bytes);
}
