/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a training step in arithmetic and activation memory.
 *
 * Assumptions throughout: bf16 activations (2 bytes), fp32 statistics; fused norms that keep their
 * input and recompute the normalised value; flash-style attention, which keeps q, k, v, its output
 * and one fp32 softmax statistic per head and token; no dropout, hence no masks; tensor
 * parallelism without sequence parallelism, so what lies between the parallel regions is whole on
 * every rank. The statistics of the norms (at most 8 bytes a token) are left out. */
#include <math.h>

#include "core/model.h"

static double layer_matrix_parameters(const hk_model *m) {
  const double h = (double)m->hidden;
  const double q = (double)(m->heads * m->head_dim), kv = (double)(m->kv_heads * m->head_dim);
  const double mlp_matrices = m->gated ? 3 : 2;
  return h * (q + 2 * kv) + q * h + mlp_matrices * h * (double)m->ffn;
}

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

/* -- Arithmetic ------------------------------------------------------------------------------- */

double hk_model_forward_flops(const hk_model *model, int block, int64_t micro_batch, int64_t seq,
                              int tp) {
  if (model->blocks != NULL)
    return listed(model, block)->forward_flops * in_proportion(model, micro_batch, seq);
  const double tokens = (double)micro_batch * (double)seq;
  if (block == HK_BLOCK_EMBED) return 0;
  if (block == model->layers) return 2 * tokens * (double)model->hidden * (double)model->vocab / tp;
  double projections = 2 * tokens * layer_matrix_parameters(model);
  double attention = 4 * tokens * (double)seq * (double)(model->heads * model->head_dim);
  if (model->causal_half) attention /= 2;
  return (projections + attention) / tp;
}

double hk_model_backward_flops(const hk_model *model, int block, int64_t micro_batch, int64_t seq,
                               int tp, bool checkpoint) {
  if (model->blocks != NULL && listed(model, block)->backward_flops > 0)
    return listed(model, block)->backward_flops * in_proportion(model, micro_batch, seq);
  const bool layer = block != HK_BLOCK_EMBED && block != (int)model->layers;
  return hk_model_forward_flops(model, block, micro_batch, seq, tp) * (layer && checkpoint ? 3 : 2);
}

/* -- Activation memory ------------------------------------------------------------------------ */

/* Bytes per token: `whole` on every rank, `split` divided among the tensor-parallel ranks. */
typedef struct {
  double whole, split;
} token_bytes;

static double on_rank(token_bytes bytes, int64_t micro_batch, int64_t seq, int tp) {
  const double tokens = (double)micro_batch * (double)seq;
  return tokens * bytes.whole + ceil(tokens * bytes.split / tp);
}

/* Limits a size to 2^62 bytes, so that it can still be compared and added. */
static hk_bytes to_bytes(double bytes) {
  const double most = (double)(1LL << 62);
  return (hk_bytes)(bytes < most ? bytes : most);
}

/* What a layer saves for backward, per token, with h = hidden, q = heads x head_dim, k = kv_heads x
 * head_dim, a = heads, f = ffn: input of the first norm        2 h     the only thing kept when
 * checkpointing its output, into q, k, v       2 h q, k, v after rotation         2 q + 4 k
 * rotation itself needs nothing kept q and k before their norms     2 q + 2 k     Qwen3 only
 *   attention output, into o       2 q
 *   softmax statistic              4 a
 *   input of the second norm       2 h
 *   its output, into the MLP       2 h
 *   gated MLP: gate, up, silu(gate), and the product into down     8 f
 *   plain MLP: the GELU's input, and its output into the second matrix     4 f
 * A GPT block (q = k = h, f = 4 h) keeps 32 h + 4 a: Korthikanti's 34 h less two one-byte dropout
 * masks, his 5 a s replaced by the statistic. */
static token_bytes layer_kept(const hk_model *m) {
  const double h = (double)m->hidden, f = (double)m->ffn;
  const double q = (double)(m->heads * m->head_dim), k = (double)(m->kv_heads * m->head_dim);
  double split = (2 * q + 4 * k) + 2 * q + 4 * (double)m->heads + (m->gated ? 8 : 4) * f;
  if (m->arch == HK_ARCH_QWEN3) split += 2 * q + 2 * k;
  return (token_bytes){.whole = 8 * h, .split = split};
}

static token_bytes layer_input(const hk_model *m) {
  return (token_bytes){.whole = 2 * (double)m->hidden};
}

/* The inputs of the final norm and of the projection, and the fp32 logits, which the loss turns
 * into probabilities in place; the bf16 logits are gone by then. With 2 h a checkpointed layer this
 * is what published runs on one GPU allocate during forward: 4.82 GiB (13B) and 3.66 GiB (7B), to
 * both decimals. */
static token_bytes head_kept(const hk_model *m) {
  return (token_bytes){.whole = 4 * (double)m->hidden, .split = 4 * (double)m->vocab};
}

hk_bytes hk_model_activation_bytes(const hk_model *model, int block, int64_t micro_batch,
                                   int64_t seq, int tp, bool checkpoint) {
  if (model->blocks != NULL)
    return to_bytes(
        ceil((double)listed(model, block)->activations * in_proportion(model, micro_batch, seq)));
  token_bytes kept = {0};
  if (block == model->layers)
    kept = head_kept(model);
  else if (block != HK_BLOCK_EMBED)
    kept = checkpoint ? layer_input(model) : layer_kept(model);
  return to_bytes(on_rank(kept, micro_batch, seq, tp));
}

/* The widest set of gradients alive at once: those of a layer's output (2 h, the residual stream)
 * together with either
 *   the MLP's inner activations: of the product and of gate and up, 6 f; plain: output and input
 *   of the GELU, 4 f; or
 *   the attention: of its output and of q, k, v, 4 q + 4 k.
 * In the head: of its input, and of the logits in bf16 (in fp32 they overwrite the probabilities).
 * In the embedding: of its output. */
static token_bytes widest_gradients(const hk_model *m, int block) {
  token_bytes bytes = {.whole = 2 * (double)m->hidden};
  if (block == HK_BLOCK_EMBED) return bytes;
  if (block == m->layers) {
    bytes.split = 2 * (double)m->vocab;
    return bytes;
  }
  double mlp = (m->gated ? 6 : 4) * (double)m->ffn;
  double attention = 4 * (double)((m->heads + m->kv_heads) * m->head_dim);
  bytes.split = fmax(mlp, attention);
  return bytes;
}

hk_bytes hk_model_backward_workspace_bytes(const hk_model *model, int block, int64_t micro_batch,
                                           int64_t seq, int tp, bool checkpoint) {
  if (model->blocks != NULL)
    return to_bytes(
        ceil((double)listed(model, block)->workspace * in_proportion(model, micro_batch, seq)));
  double bytes = on_rank(widest_gradients(model, block), micro_batch, seq, tp);
  if (checkpoint && block >= 0 && block < model->layers) /* all but the input, which was kept */
    bytes += on_rank(layer_kept(model), micro_batch, seq, tp) -
             on_rank(layer_input(model), micro_batch, seq, tp);
  return to_bytes(bytes);
}
