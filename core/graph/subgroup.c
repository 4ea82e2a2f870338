/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's parameters in flat order: the shares of tensors and blocks, the interval of a block,
 * and the division into subgroups. */
#include <math.h>
#include <stdlib.h>

#include "core/model/model.h"

#define MAX_SUBGROUPS (1LL << 20)

static int64_t divide_up(int64_t numel, int64_t by) {
  return numel / by + (numel % by != 0);
}

int64_t hk_tensor_share(const hk_tensor *tensor, int tp, int dp) {
  if (tensor->expert_ranks > 1) {
    const int64_t alike = dp == 1 ? 1 : (int64_t)tp * dp / tensor->expert_ranks;
    return divide_up(divide_up(tensor->numel, tensor->expert_ranks), hk_max(alike, 1));
  }
  int64_t on_rank = tensor->tp == HK_TP_SPLIT ? divide_up(tensor->numel, tp) : tensor->numel;
  return divide_up(on_rank, dp);
}

static int64_t tensors_share(const hk_model *model, size_t first, size_t end, int tp, int dp) {
  int64_t sum = 0;
  for (size_t i = first; i < end; i++) sum += hk_tensor_share(&model->tensors[i], tp, dp);
  return sum;
}

void hk_model_block_tensors(const hk_model *model, int block, size_t *first, size_t *end) {
  const int b = block - HK_BLOCK_EMBED;
  *first = model->blocks ? model->blocks[b].first_tensor : model->first_tensor[b];
  *end = model->blocks ? model->blocks[b].end_tensor : model->first_tensor[b + 1];
}

static int64_t block_share(const hk_model *model, int block, int tp, int dp) {
  if (model->blocks != NULL && dp == 1) return model->blocks[block - HK_BLOCK_EMBED].numel;
  size_t first = 0, end = 0;
  hk_model_block_tensors(model, block, &first, &end);
  return tensors_share(model, first, end, tp, dp);
}

int64_t hk_model_block_parameters(const hk_model *model, int block, int tp) {
  return block_share(model, block, tp, 1);
}

/* Layers of kind `kind` before layer `end`. */
static int64_t count_before(const hk_model *model, int kind, int64_t end) {
  if (model->n_kinds == 1 || end == 0) return end;
  if (end == model->layers) return model->kinds[kind].blocks;
  int64_t n = 0;
  for (int64_t i = 0; i < end; i++) n += model->kind_of[i] == kind;
  return n;
}

/* Share of the layers before layer `end`. Layers of a kind have the same tensors. */
static int64_t layers_share(const hk_model *model, int64_t end, int tp, int dp) {
  int64_t sum = 0;
  for (int k = 0; k < model->n_kinds; k++) {
    const int64_t n = count_before(model, k, end);
    if (n > 0) sum += n * block_share(model, (int)model->kinds[k].first, tp, dp);
  }
  return sum;
}

int64_t hk_model_rank_parameters(const hk_model *model, int tp, int dp) {
  if (model->blocks != NULL) return tensors_share(model, 0, model->n_tensors, tp, dp);
  return block_share(model, HK_BLOCK_EMBED, tp, dp) + layers_share(model, model->layers, tp, dp) +
         block_share(model, (int)model->layers, tp, dp);
}

void hk_model_block_interval(const hk_model *model, int block, int tp, int dp, int64_t *begin,
                             int64_t *end) {
  *begin = 0;
  if (model->blocks != NULL && dp == 1)
    *begin = model->blocks[block - HK_BLOCK_EMBED].begin;
  else if (model->blocks != NULL)
    *begin = tensors_share(model, 0, model->blocks[block - HK_BLOCK_EMBED].first_tensor, tp, dp);
  else if (block >= 0)
    *begin = block_share(model, HK_BLOCK_EMBED, tp, dp) + layers_share(model, block, tp, dp);
  *end = *begin + block_share(model, block, tp, dp);
}

/* Whether two neighbouring blocks are layers of one kind. */
static bool are_alike(const hk_model *model, int block, int before) {
  return model->blocks == NULL && before >= 0 && block < model->layers &&
         (model->n_kinds == 1 || model->kind_of[block] == model->kind_of[before]);
}

void hk_block_walk_next(hk_block_walk *walk) {
  const int block = walk->next + HK_BLOCK_EMBED;
  const int64_t share = walk->next > 0 && are_alike(walk->model, block, block - 1)
                            ? walk->end - walk->begin
                            : block_share(walk->model, block, walk->tp, walk->dp);
  walk->begin = walk->end;
  walk->end += share;
  walk->next++;
}

static hk_bytes bytes_of(const hk_model *model, int tp, int dp, int64_t begin, int64_t end,
                         bool grads) {
  if (!model->mixed_types) return 2 * (end - begin);
  hk_bytes bytes = 0;
  int64_t at = 0;
  for (size_t i = 0; i < model->n_tensors && at < end; i++) {
    const hk_tensor *tensor = &model->tensors[i];
    const int64_t stop = at + hk_tensor_share(tensor, tp, dp);
    const int64_t n = hk_min(stop, end) - hk_max(at, begin);
    if (n > 0) bytes += n * hk_dtype_bytes(grads ? tensor->grad_type : tensor->weight_type);
    at = stop;
  }
  return bytes;
}

hk_bytes hk_model_expert_bytes(const hk_model *model, int block, int tp) {
  hk_bytes bytes = 0;
  size_t first = 0, end = 0;
  hk_model_block_tensors(model, block, &first, &end);
  for (size_t i = first; i < end; i++)
    if (model->tensors[i].expert_ranks > 0) bytes += 2 * hk_tensor_share(&model->tensors[i], tp, 1);
  return bytes;
}

hk_bytes hk_model_weight_bytes(const hk_model *model, int tp, int dp, int64_t begin, int64_t end) {
  return bytes_of(model, tp, dp, begin, end, false);
}

hk_bytes hk_model_grad_bytes(const hk_model *model, int tp, int dp, int64_t begin, int64_t end) {
  return bytes_of(model, tp, dp, begin, end, true);
}

/* DeepSpeed ZeRO-3, _create_fp16_sub_groups in runtime/zero/stage3.py: tensors are added until
 * their sum reaches the size. */
static size_t cut_soft(const hk_model *model, int tp, int dp, int64_t size, hk_subgroup *out) {
  size_t n = 0;
  hk_subgroup open = {0};
  for (size_t i = 0; i < model->n_tensors; i++) {
    open.numel += hk_tensor_share(&model->tensors[i], tp, dp);
    if (open.numel < size && i + 1 < model->n_tensors) continue;
    out[n++] = open;
    open = (hk_subgroup){.offset = open.offset + open.numel};
  }
  return n;
}

static size_t cut_exact(int64_t total, int64_t size, hk_subgroup *out) {
  size_t n = 0;
  for (int64_t offset = 0; offset < total; offset += out[n++].numel)
    out[n] = (hk_subgroup){offset, total - offset < size ? total - offset : size};
  return n;
}

/* Subgroups of a large block, except its last, have multiples of this many parameters, so that they
 * begin at vector and page boundaries. */
#define ALIGNED 4096

/* Size of a block's subgroups: equal, at most `size`, and a multiple of ALIGNED if that enlarges
 * them by no more than 1/16. */
static int64_t block_piece(int64_t share, int64_t size) {
  if (share <= size) return share;
  const int64_t equal = divide_up(share, divide_up(share, size));
  const int64_t aligned = divide_up(equal, ALIGNED) * ALIGNED;
  return aligned <= size && aligned - equal <= equal / 16 ? aligned : equal;
}

/* Returns the number of subgroups, and writes them to `out` unless it is NULL. */
static size_t cut_blocks(const hk_model *model, int tp, int dp, int64_t size, hk_subgroup *out) {
  size_t n = 0;
  int64_t at = 0;
  for (int block = HK_BLOCK_EMBED; block <= (int)model->layers; block++) {
    const int64_t share = block_share(model, block, tp, dp), end = at + share;
    if (share == 0) continue;
    const int64_t piece = block_piece(share, size);
    if (out == NULL) {
      n += (size_t)divide_up(share, piece);
      at = end;
      continue;
    }
    for (; at < end; at += out[n++].numel) out[n] = (hk_subgroup){at, hk_min(piece, end - at)};
  }
  return n;
}

hk_status hk_model_subgroups(const hk_model *model, int tp, int dp, hk_subgroup_rule rule,
                             int64_t size, hk_subgroup **out, size_t *n, hk_error *err) {
  if (size < 1 || tp < 1 || dp < 1)
    return hk_fail(err, HK_INPUT,
                   "subgroups of %lld parameters on tp %d x dp %d ranks: each must be at least 1",
                   (long long)size, tp, dp);
  const int64_t total = hk_model_rank_parameters(model, tp, dp);
  int64_t most = divide_up(total, size);
  if (rule == HK_SUBGROUP_SOFT && most > (int64_t)model->n_tensors)
    most = (int64_t)model->n_tensors;
  if (rule == HK_SUBGROUP_BLOCKS) most = (int64_t)cut_blocks(model, tp, dp, size, NULL);
  if (most > MAX_SUBGROUPS)
    return hk_fail(
        err, HK_INPUT,
        "a subgroup size of %lld divides a rank's %lld parameters into %lld subgroups; at "
        "most %lld are supported: choose a size of at least %lld",
        (long long)size, (long long)total, (long long)most, MAX_SUBGROUPS,
        (long long)divide_up(total, MAX_SUBGROUPS));
  /* Never 0 bytes, for which calloc may return NULL. */
  most = hk_max(most, 1);
  hk_subgroup *cut = calloc((size_t)most, sizeof *cut);
  if (!cut) return hk_fail_memory(err, (size_t)most * sizeof *cut, "the subgroups");
  if (rule == HK_SUBGROUP_BLOCKS)
    *n = cut_blocks(model, tp, dp, size, cut);
  else
    *n =
        rule == HK_SUBGROUP_SOFT ? cut_soft(model, tp, dp, size, cut) : cut_exact(total, size, cut);
  *out = cut;
  return HK_OK;
}

size_t hk_deepspeed_on_host(double ratio, size_t subgroups) {
  /* The expression is DeepSpeed's, in the same floating-point type: 0.8 of 10 leaves 1, not 2, on
   * the GPU. */
  const double on_gpu = (1 - ratio) * (double)subgroups;
  return subgroups - (size_t)fmin(fmax(on_gpu, 0), (double)subgroups);
}
