/* SPDX-License-Identifier: Apache-2.0 */
/* What a block of a model costs for each token: products, attention, activations. Products follow
 * from the rows of tensors; activations from the structure of the layer.
 *
 * Assumptions throughout: bf16 activations (2 bytes), fp32 statistics; fused norms that keep their
 * input and recompute the normalised value; flash-style attention, which keeps q, k, v, its output
 * and one fp32 softmax statistic per head and token; no dropout, hence no masks; tensor
 * parallelism without sequence parallelism, so what lies between the parallel regions is whole on
 * every rank. The statistics of the norms (at most 8 bytes a token) are left out. */
#include <math.h>

#include "core/model/model_shape.h"

/* -- Products --------------------------------------------------------------------------------- */

/* Times that a row's parameters are used by a token: an expert's only if the token is sent there.
 */
static double uses(const hk_shape *shape, const hk_row *row) {
  return row->kind == HK_ROW_EXPERTS ? (double)shape->size[HK_CHOSEN] : 1;
}

static void add_products(const hk_shape *shape, const hk_row *rows, uint64_t flags,
                         hk_block_kind *kind) {
  for (const hk_row *row = rows; row->kind != HK_ROW_END; row++) {
    if (!hk_row_exists(row, flags)) continue;
    const double numel =
        uses(shape, row) * (double)shape->size[row->in] * (double)shape->size[row->out];
    if (row->kind == HK_ROW_OTHER)
      kind->other_products += numel;
    else if (row->kind != HK_ROW_LINEAR && row->kind != HK_ROW_EXPERTS)
      continue;
    else if (row->split == HK_WHOLE)
      kind->products.whole += numel;
    else
      kind->products.split += numel;
  }
}

/* -- Layers ----------------------------------------------------------------------------------- */

/* Widths h of hidden that a layer keeps: inputs of its norms, and what its attention and MLP read.
 *   norm, attention, norm, MLP                 4 (also with the norms behind)
 *   attention and MLP on one normalised input  2, on two of the same vector 3
 *   norms before and after (Gemma 2)           6
 *   self-attention, cross-attention, MLP (T5)  6
 *   cross-attention with gates (Llama vision)  6: also what the gates multiply */
static double widths_kept(uint64_t flags) {
  if (flags & HK_PARALLEL) return flags & HK_TWO_NORMS ? 3 : 2;
  return flags & (HK_SANDWICH | HK_DECODER | HK_CROSS) ? 6 : 4;
}

/* Bytes a token that one attention keeps, with q, k, v, o the widths of queries, keys, values and
 * output, a the heads:
 *   q, k, v after rotation              2 q + 2 k + 2 v
 *   output, into the projection         2 o
 *   softmax statistic                   4 a
 *   q and k before their norms          2 q + 2 k    with norms of queries and keys
 *   compressed vectors, before and after their norms   4 (q rank + kv rank)   latent, whole
 * Keys and values of cross-attention are those of the other sequence. */
static void keep_attention(const hk_shape *shape, uint64_t flags, hk_block_kind *kind) {
  const int64_t *size = shape->size;
  const double q = (double)size[HK_Q], o = (double)size[HK_O], a = (double)size[HK_HEADS];
  const double normed = flags & (HK_QK_NORM | HK_CROSS) ? 2 : 1;
  const bool latent = flags & HK_LATENT;
  /* Latent attention makes keys for every head. */
  const double k = latent ? q : (double)size[HK_K], v = latent ? o : (double)size[HK_V];
  const double keys = normed * 2 * k + 2 * v;
  kind->kept.split += normed * 2 * q + 2 * o + 4 * a;
  if (flags & HK_CROSS)
    kind->other_kept += keys;
  else
    kind->kept.split += keys;
  if (latent) kind->kept.whole += 4 * (double)(size[HK_Q_RANK] + size[HK_KV_RANK]);
  if (flags & HK_DECODER) kind->kept.split += 2 * q + 2 * o + 4 * a + 2 * k + 2 * v;
  kind->gradients.split = 2 * o + 2 * q + 2 * k + 2 * v;
}

/* With f the width of the MLP:
 *   gated: gate, up, silu(gate), and the product into down    8 f
 *   plain: the GELU's input, and its output                   4 f
 * Experts: the router's probabilities in fp32, for each of the k chosen experts a copy of the input
 * and the output that is weighted (4 k h), and the inner activations of k experts and the shared
 * ones. The widest gradients are those of the product, gate and up: 6 f, plain 4 f. */
static void keep_mlp(const hk_shape *shape, uint64_t flags, hk_block_kind *kind) {
  const int64_t *size = shape->size;
  const double kept = flags & HK_GATED ? 8 : 4, widest = flags & HK_GATED ? 6 : 4;
  double wide = (double)size[HK_FFN], all = wide;
  if (flags & HK_SPARSE) {
    const double chosen = (double)size[HK_CHOSEN];
    wide = fmax(chosen * (double)size[HK_EXPERT_FFN], (double)size[HK_SHARED_FFN]);
    all = chosen * (double)size[HK_EXPERT_FFN] + (double)size[HK_SHARED_FFN];
    kind->kept.whole += 4 * (double)size[HK_EXPERTS] + 4 * chosen * (double)size[HK_HIDDEN];
    kind->gradients.whole += 2 * chosen * (double)size[HK_HIDDEN];
  }
  kind->mlp_kept = kept * all;
  kind->kept.split += kind->mlp_kept;
  kind->gradients.split = fmax(kind->gradients.split, widest * wide);
}

void hk_layer_cost(const hk_shape *shape, uint64_t flags, hk_block_kind *kind) {
  const int64_t *size = shape->size;
  const double h = (double)size[HK_HIDDEN];
  /* A query and a key: a product of head_dim, and one of the values' width. */
  const double pair = 2 * (double)(size[HK_Q] + size[HK_O]);
  add_products(shape, shape->family->layer, flags, kind);
  if (!(flags & HK_CROSS)) kind->attention_flops = pair;
  if (flags & (HK_CROSS | HK_DECODER)) kind->cross_flops = pair;
  if (flags & HK_WINDOWED) kind->window = size[HK_WINDOW];
  kind->sparse = flags & HK_SPARSE;
  kind->cross = flags & (HK_CROSS | HK_DECODER);
  kind->input = 2 * h;
  kind->kept.whole = 2 * h * widths_kept(flags);
  kind->gradients.whole = 2 * h; /* of the layer's output */
  keep_attention(shape, flags, kind);
  keep_mlp(shape, flags, kind);
}

/* -- Embedding and head ----------------------------------------------------------------------- */

/* Inputs of norms and projections. */
static double inputs_kept(const hk_shape *shape, const hk_row *rows, uint64_t flags) {
  double bytes = 0;
  for (const hk_row *row = rows; row->kind != HK_ROW_END; row++)
    if (hk_row_exists(row, flags) && (row->kind == HK_ROW_LINEAR || row->kind == HK_ROW_NORM))
      bytes += 2 * (double)shape->size[row->in];
  return bytes;
}

/* The head keeps the inputs of the final norm and of the projection, and the fp32 logits, which the
 * loss turns into probabilities in place; the bf16 logits are gone by then. With 2 h a checkpointed
 * layer this is what published runs on one GPU allocate during forward: 4.82 GiB (13B) and 3.66 GiB
 * (7B), to both decimals. In backward the logits' gradients are bf16 (in fp32 they overwrite the
 * probabilities). */
void hk_edge_costs(const hk_shape *shape, hk_block_kind *embedding, hk_block_kind *head) {
  const uint64_t flags = shape->flags & ~HK_TIED; /* a tied projection multiplies, too */
  const double h = (double)shape->size[HK_HIDDEN];
  const int64_t labels = shape->size[HK_LABELS];
  const double logits = (double)(labels > 0               ? labels
                                 : shape->flags & HK_BODY ? 0
                                                          : shape->size[HK_VOCAB]);
  add_products(shape, shape->family->embedding, flags, embedding);
  add_products(shape, shape->family->head, flags, head);
  embedding->kept.whole = inputs_kept(shape, shape->family->embedding, flags);
  head->kept.whole = inputs_kept(shape, shape->family->head, flags);
  head->kept.split = 4 * logits;
  embedding->gradients.whole = head->gradients.whole = 2 * h;
  head->gradients.split = 2 * logits;
}

/* The table is a tensor of the embedding block, after the token embedding. OPT has two rows more
 * than positions. */
bool hk_model_has_position_table(const hk_model *model) {
  const int64_t numel = model->max_positions * model->hidden;
  if (numel <= 0 || model->position_table) return model->position_table;
  for (size_t i = 1; i < model->n_tensors && model->tensors[i].block == HK_BLOCK_EMBED; i++)
    if (model->tensors[i].numel >= numel) return true;
  return false;
}
