/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's parameters in their flat order: what tensors and blocks contribute, where a block
 * lies, and how the whole is cut into subgroups. */
#include <stdlib.h>

#include "core/model.h"

#define MAX_SUBGROUPS (1LL << 20)

static int64_t divide_up(int64_t numel, int64_t by) {
  return numel / by + (numel % by != 0);
}

int64_t hk_tensor_share(const hk_tensor *tensor, int tp, int dp) {
  int64_t on_rank = tensor->tp == HK_TP_SPLIT ? divide_up(tensor->numel, tp) : tensor->numel;
  return divide_up(on_rank, dp);
}

/* All layers have the same tensors, so a block's first tensor is a multiplication away. */
static int64_t block_share(const hk_model *model, int block, int tp, int dp) {
  size_t first = 0, end = model->embed_tensors;
  if (block >= 0) {
    first = model->embed_tensors + (size_t)block * model->layer_tensors;
    end = block < model->layers ? first + model->layer_tensors : model->n_tensors;
  }
  int64_t sum = 0;
  for (size_t i = first; i < end; i++) sum += hk_tensor_share(&model->tensors[i], tp, dp);
  return sum;
}

int64_t hk_model_block_parameters(const hk_model *model, int block, int tp) {
  return block_share(model, block, tp, 1);
}

static int64_t rank_share(const hk_model *model, int tp, int dp) {
  return block_share(model, HK_BLOCK_EMBED, tp, dp) +
         model->layers * block_share(model, 0, tp, dp) +
         block_share(model, (int)model->layers, tp, dp);
}

int64_t hk_model_rank_parameters(const hk_model *model, int tp) {
  return rank_share(model, tp, 1);
}

void hk_model_block_interval(const hk_model *model, int block, int tp, int dp, int64_t *begin,
                             int64_t *end) {
  *begin = 0;
  if (block >= 0)
    *begin = block_share(model, HK_BLOCK_EMBED, tp, dp) + block * block_share(model, 0, tp, dp);
  *end = *begin + block_share(model, block, tp, dp);
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

hk_status hk_model_subgroups(const hk_model *model, int tp, int dp, hk_subgroup_rule rule,
                             int64_t size, hk_subgroup **out, size_t *n, hk_error *err) {
  if (size < 1 || tp < 1 || dp < 1)
    return hk_fail(err, HK_INPUT,
                   "subgroups of %lld parameters on tp %d x dp %d ranks: each must be at least 1",
                   (long long)size, tp, dp);
  const int64_t total = rank_share(model, tp, dp);
  int64_t most = divide_up(total, size);
  if (rule == HK_SUBGROUP_SOFT && most > (int64_t)model->n_tensors)
    most = (int64_t)model->n_tensors;
  if (most > MAX_SUBGROUPS)
    return hk_fail(err, HK_INPUT,
                   "a subgroup size of %lld cuts a rank's %lld parameters into %lld subgroups; at "
                   "most %lld are supported: choose a size of at least %lld",
                   (long long)size, (long long)total, (long long)most, MAX_SUBGROUPS,
                   (long long)divide_up(total, MAX_SUBGROUPS));
  hk_subgroup *cut = calloc((size_t)most, sizeof *cut);
  if (!cut) return hk_fail_memory(err, (size_t)most * sizeof *cut, "the subgroups");
  *n = rule == HK_SUBGROUP_SOFT ? cut_soft(model, tp, dp, size, cut) : cut_exact(total, size, cut);
  *out = cut;
  return HK_OK;
}
