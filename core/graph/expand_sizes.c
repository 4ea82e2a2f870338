/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory under DeepSpeed ZeRO-3 (stage3.py, partition_parameters.py,
 * partitioned_param_coordinator.py of DeepSpeed 0.13) running Megatron-DeepSpeed's GPT without
 * flash attention: the workspace of a block's backward, and what remains between iterations;
 * weights that stay gathered are in expand_window.c. Sizes follow from that code, unless a comment
 * says that they are derived from published figures. */
#include <math.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "core/graph/expand.h"

/* DeepSpeed's documented defaults (deepspeed.ai/docs/config-json), which the published runs' logs
 * print: reduce_bucket_size and stage3_param_persistence_threshold, in parameters. */
#define REDUCE_BUCKET         500000000LL
#define PERSISTENCE_THRESHOLD 100000LL

/* The norm of a gradient is computed in double precision, this many elements at a time
 * (_constant_buffered_norm2 in stage3.py). */
#define NORM_BUFFER 250000000LL

/* PyTorch's cuBLAS workspaces, one for the forward and one for the autograd thread: 4096 KiB twice
 * and 16 KiB eight times each, the documented CUBLAS_WORKSPACE_CONFIG (Hopper: 32 MiB each). */
#define CUBLAS_WORKSPACES (2 * (2 * 4096 + 8 * 16) * 1024LL)

/* From the monitored 20B runs on four H100s, whose logs say what the allocator held: CUDA and NCCL
 * contexts on the first GPU, and the addition of the interleaving prototype. */
#define OUTSIDE           4070000000LL
#define OUTSIDE_PROTOTYPE 2250000000LL

typedef struct {
  const hk_expansion *x;
  double tokens;            /* of a micro-step */
  double scores;            /* bytes of one layer's attention matrix */
  double saved, mlp, input; /* bytes that a layer's forward saves: all but the input, of that the
                               MLP's, the input */
  double gradients;         /* bytes: gradients of a layer's widest intermediates */
  /* Gradients that wait for reduction: parameters, those of the largest partition, tensors. */
  int64_t bucket, bucket_largest, tensors;
  hk_window window;
} hk_sizes;

static double activations(const hk_expansion *x, int block, bool checkpoint) {
  const hk_job *job = &x->plan->job;
  return (double)hk_model_activation_bytes(&x->plan->model, block, job->micro_batch, job->seq,
                                           job->tp, checkpoint);
}

static double gradients(const hk_expansion *x, int block) {
  const hk_job *job = &x->plan->job;
  return (double)hk_model_backward_workspace_bytes(&x->plan->model, block, job->micro_batch,
                                                   job->seq, job->tp, false);
}

/* In addition to what model_cost.c counts, a layer saves the softmax's output (flash attention
 * would not), rotated copies of queries and keys, and keys and values repeated for every query
 * head. */
static void set_layer(hk_sizes *z, int layer) {
  const hk_expansion *x = z->x;
  const hk_model *m = &x->plan->model;
  const hk_job *job = &x->plan->job;
  const double q = (double)(m->heads * m->head_dim), k = (double)(m->kv_heads * m->head_dim);
  const double copied = q + k + (m->kv_heads < m->heads ? 2 * q : 0);
  z->scores = hk_model_score_bytes(m, job->micro_batch, job->seq, job->tp);
  z->mlp = z->tokens * hk_model_block_kind(m, layer)->mlp_kept / job->tp;
  z->input = activations(x, layer, true);
  z->saved = activations(x, layer, false) - z->input + z->scores + 2 * z->tokens * copied / job->tp;
  z->gradients = gradients(x, layer);
}

static hk_sizes sizes_of(const hk_expansion *x) {
  hk_sizes z = {.x = x, .tokens = (double)x->plan->job.micro_batch * x->plan->job.seq};
  set_layer(&z, 0);
  return z;
}

/* -- reduction buckets ------------------------------------------------------------------------- */

/* Adds a gradient to the bucket. If it does not fit, the bucket is flushed first: its gradients are
 * copied into one flat tensor (unless there is only one), then for each partition of this rank a
 * copy comes back from the host and is squared in double precision. Returns the memory that the
 * flush takes, in bytes; 0 without a flush. */
static double put_in_bucket(hk_sizes *z, const hk_tensor *tensor) {
  const int tp = z->x->plan->job.tp;
  const int64_t whole = hk_tensor_share(tensor, tp, 1);
  const int64_t partition = hk_tensor_share(tensor, tp, z->x->dp);
  double flush = 0;
  if (z->tensors > 0 && z->bucket + whole > REDUCE_BUCKET) {
    const double most = (double)z->bucket_largest;
    flush = (z->tensors > 1 ? 2.0 * (double)z->bucket : 0) + 2 * most + 8 * fmin(most, NORM_BUFFER);
    z->bucket = z->bucket_largest = z->tensors = 0;
  }
  z->bucket += whole;
  if (partition > z->bucket_largest) z->bucket_largest = partition;
  z->tensors++;
  return flush;
}

/* -- backward of a block ----------------------------------------------------------------------- */

/* Backward reaches the matrices of a layer in this order, whatever order they are registered in. */
typedef enum { OF_MLP, OF_OUTPUT, OF_INPUT, ATTENTION_AND_MLP } hk_matrix;

static bool contains_any(const char *name, const char *const *words, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (strstr(name, words[i]) != NULL) return true;
  return false;
}

static hk_matrix matrix_of(const hk_tensor *tensor) {
  static const char *const mlps[] = {"mlp.", ".fc", "DenseReluDense"}; /* OPT's, T5's */
  static const char *const outputs[] = {"attention.dense", "attn.dense",  "o_proj",
                                        "out_proj",        "attn.c_proj", "Attention.o"};
  if (contains_any(tensor->name, mlps, sizeof mlps / sizeof *mlps)) return OF_MLP;
  return contains_any(tensor->name, outputs, sizeof outputs / sizeof *outputs) ? OF_OUTPUT
                                                                               : OF_INPUT;
}

/* Saved activations and gradients of a layer that are still allocated when the gradient of one of
 * its matrices is ready, in the order of backward:
 *   MLP's last matrix         everything that the layer saved
 *   MLP's others              everything but the MLP's part
 *   MLP's first matrix        without the MLP's input, either: no other matrix needs it
 *   attention's output        the same
 *   queries, keys and values  gradients of the layer's width only */
static double left_at(const hk_sizes *z, hk_matrix matrix, bool last_of_mlp, bool first_of_mlp) {
  if (last_of_mlp) return z->saved + z->input;
  if (matrix == OF_INPUT) return 3 * z->input;
  return z->saved - z->mlp + (matrix == OF_MLP && !first_of_mlp ? 2 : 1) * z->input;
}

/* The matrix that backward of the MLP comes to last; n if there is none. */
static size_t first_of_mlp(const hk_tensor *tensors, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (tensors[i].numel > PERSISTENCE_THRESHOLD && matrix_of(&tensors[i]) == OF_MLP) return i;
  return n;
}

/* `begin`: gathered weights when backward of the layer begins. */
static double layer_workspace(hk_sizes *z, hk_bytes begin, const hk_tensor *tensors, size_t n) {
  const double in_attention = z->saved - z->mlp + z->scores + 2 * z->input;
  const size_t first = first_of_mlp(tensors, n);
  bool last_of_mlp = true;
  double most = (double)(z->window.live - begin) + fmax(z->saved + z->gradients, in_attention);
  for (hk_matrix at = OF_MLP; at < ATTENTION_AND_MLP; at++) {
    for (size_t i = n; i-- > 0;) {
      const hk_tensor *tensor = &tensors[i];
      if (matrix_of(tensor) != at) continue;
      if (tensor->numel <= PERSISTENCE_THRESHOLD) continue; /* never partitioned */
      const hk_bytes matrix = HK_BYTES_BF16 * hk_tensor_share(tensor, z->x->plan->job.tp, 1);
      hk_window_fetch(&z->window);
      const double gathered = (double)(z->window.live - begin);
      const double left = left_at(z, at, at == OF_MLP && last_of_mlp, i == first);
      last_of_mlp = false;
      most = fmax(most, gathered + left + (double)matrix + put_in_bucket(z, tensor));
      hk_window_release(&z->window, matrix);
    }
  }
  for (size_t i = 0; i < n; i++)
    if (tensors[i].numel <= PERSISTENCE_THRESHOLD)
      hk_window_release(&z->window,
                        HK_BYTES_BF16 * hk_tensor_share(&tensors[i], z->x->plan->job.tp, 1));
  return z->x->plan->job.checkpoint_activations ? most : fmax(most - z->saved, 0);
}

static double edge_workspace(hk_sizes *z, hk_bytes begin, int block, const hk_tensor *tensors,
                             size_t n) {
  const double least = (double)(z->window.live - begin) + gradients(z->x, block);
  double most = least;
  for (size_t i = n; i-- > 0;) {
    if (tensors[i].numel <= PERSISTENCE_THRESHOLD) continue;
    const double matrix = 2.0 * (double)hk_tensor_share(&tensors[i], z->x->plan->job.tp, 1);
    most = fmax(most, least + matrix + put_in_bucket(z, &tensors[i]));
  }
  return most;
}

static void fill_backward(hk_expansion *x) {
  const hk_model *m = &x->plan->model;
  hk_sizes z = sizes_of(x);
  hk_window_after_forward(x, &z.window);
  for (int i = x->n_blocks - 1; i >= 0; i--) {
    hk_block_cost *cost = &x->blocks[i];
    size_t begin = 0, end = 0;
    hk_model_block_tensors(m, cost->block, &begin, &end);
    const bool layer = cost->block != HK_BLOCK_EMBED && cost->block != (int)m->layers;
    if (layer) set_layer(&z, cost->block);
    const hk_tensor *tensors = &m->tensors[begin];
    const hk_bytes live = z.window.live;
    hk_window_recompute(&z.window, cost->block);
    cost->workspace =
        hk_whole_bytes(layer ? layer_workspace(&z, live, tensors, end - begin)
                             : edge_workspace(&z, live, cost->block, tensors, end - begin));
    cost->live_backward = z.window.live;
    if (layer && !x->plan->job.checkpoint_activations)
      cost->activations = hk_whole_bytes(z.input + z.saved);
  }
  /* The loss makes fp32 logits of bf16 ones and works on a copy (Megatron's cross entropy). */
  const double logits = z.tokens * (double)m->logits / x->plan->job.tp;
  x->blocks[x->n_blocks - 1].loss = hk_whole_bytes((4 + 2) * logits);
}

/* -- between iterations ------------------------------------------------------------------------ */

static int64_t last_numel(const hk_plan *plan) {
  for (size_t i = plan->n_subgroups; i-- > 0;) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[plan->order[i]];
    if (subgroup->route == HK_ROUTE_STAGED) return subgroup->numel;
  }
  return 0;
}

/* Memory that the interleaving prototype holds from one update to the next, derived from published
 * figures, in bytes a parameter of the subgroup that the GPU updated last after a fetch:
 *
 *   12      the CPU updated the last subgroup: master weight and moments
 *   12 + 4  that subgroup was the last of all: its fp32 gradient, too
 *    8      resident subgroups followed: the moments
 *
 * Beside these it keeps a bf16 copy of every resident subgroup, 2 bytes a parameter. Runs on four
 * H100s with a fifth of 20B, 13B and 7B resident hold 2.44, 2.30 and 1.42 GiB more than TwinFlow
 * with the same ratio; the formula gives 2.44, 2.29 and 1.42 GiB. */
static hk_bytes left_over(const hk_plan *plan) {
  if (!hk_plan_interleaves(plan)) return 0;
  const hk_route last = plan->subgroups[plan->order[plan->n_subgroups - 1]].route;
  const hk_bytes held = last == HK_ROUTE_CPU      ? HK_BYTES_STATE
                        : last == HK_ROUTE_STAGED ? HK_BYTES_STATE + HK_BYTES_FP32
                                                  : 2 * HK_BYTES_FP32;
  return held * last_numel(plan) + HK_BYTES_BF16 * hk_plan_on_route(plan, HK_ROUTE_RESIDENT);
}

/* Allocated from the start: the reduction bucket, cuBLAS workspaces, and the matrix for the product
 * of queries and keys (Megatron's global memory buffer), which every layer uses. */
hk_bytes hk_expand_deepspeed_base(hk_expansion *x) {
  const hk_sizes z = sizes_of(x);
  return HK_BYTES_BF16 * REDUCE_BUCKET + CUBLAS_WORKSPACES + hk_whole_bytes(z.scores) +
         left_over(x->plan);
}

void hk_expand_deepspeed_sizes(hk_expansion *x) {
  fill_backward(x);
  for (int rank = 0; rank < x->graph->ranks; rank++) x->memory[rank].staged = last_numel(x->plan);
}

static int64_t largest_matrix(const hk_model *m, int tp) {
  int64_t largest = 0;
  for (int k = 0; k < m->n_kinds; k++) {
    size_t first = 0, end = 0;
    hk_model_block_tensors(m, (int)m->kinds[k].first, &first, &end);
    for (size_t i = first; i < end; i++)
      largest = hk_max(largest, hk_tensor_share(&m->tensors[i], tp, 1));
  }
  return largest;
}

/* Memory that the allocator holds and cannot use:
 *   - one bucket, even after the cache is emptied (0.92 GiB in the log of the 20B run);
 *   - the flat copy of a bucket, which belongs to the reduction stream;
 *   - in forward and backward, the flat buffer of a gather of several tensors, which belongs to the
 *     gathering stream: at most the prefetch bucket and the largest matrix;
 *   - with interleaving, for every subgroup whose gradient stays on the GPU, the rest of a block to
 *     which a layer's largest matrix had been gathered: the gradient is in that block, so the rest
 *     cannot be returned;
 *   - with interleaving, buffers of other sizes, which the three state streams keep. */
void hk_expand_deepspeed_device(hk_expansion *x) {
  const hk_plan *plan = x->plan;
  const hk_bytes bucket = HK_BYTES_BF16 * REDUCE_BUCKET;
  const hk_bytes block = HK_BYTES_BF16 * largest_matrix(&plan->model, plan->job.tp);
  const hk_bytes gather = x->dp > 1 ? HK_BYTES_BF16 * HK_PREFETCH_BUCKET + block : 0;
  hk_bytes blocks = 0, kept = 0, buffers = 0;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    const hk_plan_subgroup *subgroup = &plan->subgroups[i];
    if (subgroup->route != HK_ROUTE_STAGED) continue;
    blocks += block;
    kept += HK_BYTES_BF16 * subgroup->numel;
    buffers = hk_max(buffers, HK_BYTES_STATE * subgroup->numel);
  }
  const hk_bytes broken = blocks > kept ? blocks - kept : 0;
  x->graph->device = (hk_device_memory){
      .outside = OUTSIDE + (blocks > 0 ? OUTSIDE_PROTOTYPE : 0),
      .at_peak = {bucket + gather, 2 * bucket + gather + blocks, bucket + broken + buffers},
      .emptied = {bucket, bucket + broken, bucket},
  };
}
