/* SPDX-License-Identifier: Apache-2.0 */
/* What each block of the model costs: computation, bytes of weights, gradients and activations. */
#include <math.h>

#include "core/graph/bytes.h"
#include "core/graph/expand.h"

/* Splits each block's share of the rank by route: gradients that are copied to the host (cpu) and
 * those that stay. Blocks and subgroups are both intervals of the flat order, so one pass over both
 * is enough. */
static void split_gradients(hk_expansion *x) {
  const hk_plan *plan = x->plan;
  hk_block_walk walk = {.model = &plan->model, .tp = plan->job.tp, .dp = x->dp};
  size_t s = 0;
  int64_t s_begin = 0;
  for (int i = 0; i < x->n_blocks; i++) {
    hk_block_cost *cost = &x->blocks[i];
    hk_block_walk_next(&walk);
    const int64_t end = walk.end;
    int64_t begin = walk.begin;
    while (begin < end && s < plan->n_subgroups) {
      const int64_t s_end = s_begin + plan->subgroups[s].numel;
      const int64_t stop = end < s_end ? end : s_end;
      const hk_route route = plan->subgroups[s].route;
      if (route == HK_ROUTE_CPU) {
        cost->host_grads += stop - begin;
        const hk_bytes bytes = hk_model_grad_bytes(&plan->model, plan->job.tp, x->dp, begin, stop);
        cost->host_grad_bytes += bytes;
        if (!hk_plan_grads_wait_early(plan, s, s_begin)) cost->passing_bytes += bytes;
      } else {
        cost->gpu_grads += stop - begin;
        cost->gpu_grad_bytes += hk_model_grad_bytes(&plan->model, plan->job.tp, x->dp, begin, stop);
      }
      if (route == HK_ROUTE_STAGED) cost->staged_grads += stop - begin;
      begin = stop;
      if (stop == s_end) {
        s_begin = s_end;
        s++;
      }
    }
  }
}

/* The loss in slices: logits of one slice exist at a time, and backward computes them again. Kept
 * until backward without slices: fp32 logits, 4 bytes. Workspace of backward: their gradients, 2
 * bytes (hk_model_activation_bytes). With slices both are workspace, of forward or of backward. */
static void slice_loss(const hk_expansion *x, hk_block_cost *head) {
  const hk_job *job = &x->plan->job;
  if (job->loss_chunks <= 1) return;
  const double tokens = (double)job->micro_batch * job->seq;
  const double slice = ceil(tokens / job->loss_chunks);
  const double vocab = (double)x->plan->model.logits / job->tp; /* logits of a token */
  head->activations -= hk_whole_bytes(ceil(HK_BYTES_FP32 * vocab * tokens));
  head->workspace -= hk_whole_bytes(ceil(HK_BYTES_BF16 * vocab * tokens));
  head->loss = hk_whole_bytes(ceil(HK_BYTES_FP32 * vocab * slice));
  head->workspace += hk_whole_bytes(ceil((HK_BYTES_FP32 + HK_BYTES_BF16) * vocab * slice));
  head->backward_flops =
      hk_expand_flops((double)head->backward_flops + (double)head->forward_flops);
}

static int32_t handed_alone(const hk_model *model, int block) {
  size_t first = 0, end = 0;
  int32_t n = 0;
  hk_model_block_tensors(model, block, &first, &end);
  for (size_t i = first; i < end; i++) n += model->tensors[i].numel >= HK_HANDED_ALONE;
  return n;
}

/* What was measured of the block, before sharding. */
static void fill_times(const hk_expansion *x, hk_block_cost *cost) {
  const hk_model *model = &x->plan->model;
  const int64_t batch = x->plan->job.micro_batch, seq = x->plan->job.seq;
  cost->forward_ns = hk_model_measured_ns(model, cost->block, false, batch, seq);
  cost->backward_ns = hk_model_measured_ns(model, cost->block, true, batch, seq);
  cost->forward_launch = hk_model_launch_ns(model, cost->block, false);
  cost->backward_launch = hk_model_launch_ns(model, cost->block, true);
  const bool apart = cost->backward_launch > 0 || cost->backward_ns == 0;
  if (x->handed && apart) cost->handed = handed_alone(model, cost->block);
}

/* What every tensor-parallel rank does for all tokens takes the same time, while products take 1/tp
 * of it: two norms (each reads and writes 2 h bytes a token; backward reads two and writes one) and
 * two residual sums (read two, write one; alike in backward). The efficiency of products includes
 * them without tensor parallelism, so only the rest is counted. Sequence parallelism divides them.
 */
static void repeat_whole(const hk_expansion *x, hk_block_cost *cost) {
  const hk_job *job = &x->plan->job;
  if (job->tp == 1 || job->sequence_parallel) return;
  const double width = 2.0 * job->micro_batch * job->seq * (double)x->plan->model.hidden;
  const double again = (1 - 1.0 / job->tp) * hk_job_fill(job) * width;
  cost->whole_forward = hk_whole_bytes(again * (2 * 2 + 2 * 3));
  cost->whole_backward = hk_whole_bytes(again * (2 * 3 + 2 * 3)) +
                         (job->checkpoint_activations ? cost->whole_forward : 0);
}

/* Experts that are divided: ranks with the same experts gather their weights, nobody if there is
 * one such rank. A layer whose tokens all go to experts needs no all-reduce behind its MLP, because
 * each rank sends and receives its own tokens. */
static void divide_experts(const hk_expansion *x, hk_block_cost *cost) {
  const hk_job *job = &x->plan->job;
  const hk_model *model = &x->plan->model;
  cost->routed = hk_whole_bytes(hk_job_routed_bytes(job, model, cost->block));
  if (cost->routed == 0) return;
  cost->experts = hk_model_expert_bytes(model, cost->block, job->tp);
  if (cost->gathered > 0 && x->expert_dp == 1) cost->gathered -= cost->experts;
  if (model->shared_ffn > 0) return;
  cost->tp_forward /= 2;
  cost->tp_backward /= 2;
}

/* A pipeline: every pass of a stage takes its share of filling and draining, and receives
 * activations or gradients for each chunk of layers, of which a tensor-parallel rank has 1/tp
 * (Narayanan et al., arXiv 2104.04473, section 4.1). */
static void fill_pipeline(hk_expansion *x) {
  const hk_job *job = &x->plan->job;
  const double fill = hk_job_fill(job);
  if (hk_job_pp(job) == 1) return;
  x->stage_sent = hk_whole_bytes(fill * hk_job_chunks(job) * 2.0 * job->micro_batch * job->seq *
                                 (double)x->plan->model.hidden / job->tp);
  for (int i = 0; i < x->n_blocks; i++) {
    hk_block_cost *cost = &x->blocks[i];
    cost->forward_flops = hk_expand_flops(fill * (double)cost->forward_flops);
    cost->backward_flops = hk_expand_flops(fill * (double)cost->backward_flops);
    cost->tp_forward = hk_whole_bytes(fill * (double)cost->tp_forward);
    cost->tp_backward = hk_whole_bytes(fill * (double)cost->tp_backward);
    cost->routed = hk_whole_bytes(fill * (double)cost->routed);
  }
}

void hk_expand_costs(hk_expansion *x) {
  const hk_model *model = &x->plan->model;
  const hk_job *job = &x->plan->job;
  const bool checkpoint = job->checkpoint_activations;
  const int tp = job->tp;
  const int last = (int)model->layers;
  /* Token embedding, the first tensor of every model. Learned positions are not tied to the head.
   */
  const hk_tensor table = {.numel = model->vocab * model->hidden, .tp = HK_TP_SPLIT};
  const hk_bytes embedding =
      model->frozen != NULL
          ? hk_whole_bytes(ceil(model->frozen_bytes * (double)hk_tensor_share(&table, tp, 1)))
          : 2 * hk_tensor_share(&model->tensors[0], tp, 1);
  /* A ring all-reduce of a layer's output sends 2 (tp - 1) / tp of its bytes. A layer has two in
   * forward and two in backward (Megatron-LM); recomputation repeats those of forward. */
  const double output = 2.0 * job->micro_batch * job->seq * (double)model->hidden;
  const hk_bytes sent = hk_whole_bytes(2 * (2 * (tp - 1) * output / tp));

  hk_block_walk walk = {.model = model, .tp = tp, .dp = 1};
  for (int i = 0; i < x->n_blocks; i++) {
    hk_block_cost *cost = &x->blocks[i];
    cost->block = i - 1;
    const bool layer = cost->block != HK_BLOCK_EMBED && cost->block != last;
    const int64_t batch = job->micro_batch, seq = job->seq;
    hk_block_walk_next(&walk);
    cost->forward_flops =
        hk_expand_flops(hk_model_forward_flops(model, cost->block, batch, seq, tp));
    cost->backward_flops =
        hk_expand_flops(hk_model_backward_flops(model, cost->block, batch, seq, tp, checkpoint));
    cost->stores_scores =
        layer && x->plan->runtime == HK_RUNTIME_DEEPSPEED && model->blocks == NULL;
    cost->weights = hk_model_weight_bytes(model, tp, 1, walk.begin, walk.end) +
                    hk_model_frozen_bytes(model, cost->block, tp, 1);
    cost->all_grad_bytes = hk_model_grad_bytes(model, tp, 1, walk.begin, walk.end);
    if (model->tied && cost->block == last) cost->weights += embedding;
    cost->gathered = x->dp > 1 && !x->keeps_weights ? cost->weights : 0;
    fill_times(x, cost);
    cost->activations = hk_whole_bytes((double)hk_job_activation_bytes(job, model, cost->block));
    cost->workspace = hk_whole_bytes((double)hk_job_workspace_bytes(job, model, cost->block));
    cost->tp_forward = layer ? sent : 0;
    cost->tp_backward = layer ? (checkpoint ? 2 * sent : sent) : 0;
    if (layer) repeat_whole(x, cost);
    if (hk_job_ep(job) > 1) divide_experts(x, cost);
  }
  slice_loss(x, &x->blocks[x->n_blocks - 1]);
  fill_pipeline(x);
  split_gradients(x);
  if (x->plan->runtime == HK_RUNTIME_DEEPSPEED) hk_expand_deepspeed_sizes(x);
}
