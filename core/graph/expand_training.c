/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of one micro-step, block by block. The framework's host thread launches, the
 * collectives stream gathers weights and reduces gradients (ZeRO-3, arXiv 1910.02054), the compute
 * stream computes, and gradients are copied to the host as they become ready. */
#include <string.h>

#include "core/graph/bytes.h"
#include "core/graph/expand.h"

/* A block's weights are gathered at most this many blocks ahead of the computation. */
#define PREFETCH 2

static hk_op block_op(hk_op_kind kind, int64_t work, const hk_block_cost *cost, int micro) {
  hk_op op = hk_expand_op(kind, work);
  op.block = cost->block;
  op.micro = micro;
  return op;
}

/* Megatron's GPT without flash attention stores the attention scores of a layer. Products that read
 * or write all of them, and passes of the fused causal softmax over them, which reads the lower
 * half of a matrix and writes the whole:
 *   forward    products of queries and keys, and with the values; softmax: 1/2 read, 1 written
 *   backward   gradients of values, softmax, queries and keys; softmax: 2 x 1/2 read, 1 written */
enum { PRODUCTS_FORWARD = 2, PRODUCTS_BACKWARD = 4 };
static const double SOFTMAX_FORWARD = 1.5, SOFTMAX_BACKWARD = 2;

static void add_scores(const hk_expansion *x, hk_op *op) {
  const hk_model *model = &x->plan->model;
  const hk_job *job = &x->plan->job;
  const double bytes = hk_model_score_bytes(model, job->micro_batch, job->seq, job->tp);
  const bool backward = op->kind == HK_OP_BACKWARD;
  const bool forward = !backward || job->checkpoint_activations; /* backward recomputes forward */
  const int products = (forward ? PRODUCTS_FORWARD : 0) + (backward ? PRODUCTS_BACKWARD : 0);
  const double passes = (forward ? SOFTMAX_FORWARD : 0) + (backward ? SOFTMAX_BACKWARD : 0);
  /* A score of HK_BYTES_BF16 is a sum of head_dim products: 2 head_dim operations. */
  const double flops = bytes / HK_BYTES_BF16 * 2 * (double)model->head_dim;
  op->score_flops = hk_expand_flops(products * flops);
  op->score_bytes = hk_whole_bytes(products * bytes);
  op->softmax_bytes = hk_whole_bytes(passes * bytes);
}

/* What a rank copies for a block's collectives, each byte read and written: its part into the
 * buffer that is gathered (foreach_all_gather, on a stream of its own beside computation, which has
 * as much less of GPU memory), then on the compute stream what was gathered into the block's
 * tensors (foreach_all_gather_copy_out), and after backward the gradients into the buffer that is
 * reduced (foreach_reduce_scatter_copy_in). The kernel of the last one, chunk_cat, moves bytes at
 * half the rate of the others, so its bytes count twice: on two H100 nodes 6 GB of gradients took
 * 8.8 ms, 6 GB of weights 4.4 ms (bench/results/training/ranks.md). */
static hk_bytes copied(const hk_expansion *x, const hk_block_cost *cost, bool backward) {
  return cost->gathered + cost->gathered / x->dp + (backward ? 2 * cost->all_grad_bytes : 0);
}

/* What the GPU moves to add a block's gradients to the sums of the micro-steps before: it reads
 * both and writes the sum. Half of that, as of copies. Pipelines are Megatron's, whose products add
 * to the sums themselves. */
static hk_bytes added(const hk_expansion *x, const hk_block_cost *cost) {
  const bool apart = x->plan->runtime == HK_RUNTIME_HOCKET && !hk_job_keeps_weights(&x->plan->job);
  return apart ? 3 * cost->all_grad_bytes / 2 : 0;
}

/* Of fp32 shards a rank casts its part to bf16 as it copies it, and reduced gradients to fp32
 * (foreach_reduce), on streams of their own. The result is half of what is read and written.
 * Backward loses twice the time that this traffic takes alone: casts of 3.0 G parameters on two
 * H100 nodes took 15 ms beside it and lengthened its kernels by 10 to 14, at the full rate they
 * take 6.5. Forward lost 0 and 5 ms, of 3.2 (bench/results/training/ranks.md). Example: two ranks
 * gather 2 GB, 1 G parameters: in forward each casts 0.5 G x 6 B, of which it would have copied 0.5
 * G x 4 B anyway. */
static hk_bytes cast(const hk_expansion *x, const hk_block_cost *cost, bool backward) {
  const hk_bytes whole = cost->gathered + (backward ? cost->all_grad_bytes : 0);
  const hk_bytes bytes = whole / HK_BYTES_BF16 / x->dp * HK_BYTES_CAST / 2;
  return (backward ? 2 * bytes : bytes) - cost->gathered / x->dp;
}

/* A measured time of computation includes its launches, or they are in hk_op.profile. */
static bool launches_known(const hk_expansion *x, const hk_block_cost *cost) {
  return x->phase == HK_PHASE_FORWARD ? cost->forward_ns + cost->forward_launch > 0
                                      : cost->backward_ns + cost->backward_launch > 0;
}

static bool is_layer(const hk_expansion *x, const hk_block_cost *cost) {
  return cost->block >= 0 && cost->block < x->graph->layers;
}

/* Launches of which the time is not known belong to the pass itself where an update can run beside
 * it, because they are slower then (framework.launch_beside_update). */
static bool launches_while_computing(const hk_expansion *x, const hk_block_cost *cost) {
  return x->plan->overlap != HK_OVERLAP_NONE && !launches_known(x, cost);
}

/* Forward or backward. If its time was measured, the number of floating-point operations does not
 * matter. */
static hk_op pass_op(const hk_expansion *x, hk_op_kind kind, const hk_block_cost *cost, int micro,
                     int launches) {
  const bool backward = kind == HK_OP_BACKWARD;
  const int64_t flops = backward ? cost->backward_flops : cost->forward_flops;
  const hk_ns measured = backward ? cost->backward_ns : cost->forward_ns;
  const hk_ns launch = backward ? cost->backward_launch : cost->forward_launch;
  const bool reckoned = launches_while_computing(x, cost);
  /* Embedding and head launch few kernels, but are sharded like a layer. */
  const int layers = reckoned && is_layer(x, cost) ? launches : 0;
  const bool sharded = hk_expand_sharded(x, cost);
  const hk_bytes sums = backward && micro > 0 && !sharded ? added(x, cost) : 0;
  const bool takes_time = measured + launch + layers > 0 || sharded || sums > 0;
  hk_op op = block_op(kind, takes_time && flops == 0 ? 1 : flops, cost, micro);
  op.profile = (hk_pass_profile){measured, launch, backward ? cost->handed : 0,
                                 sharded && launch > 0 ? cost->forward_launch : 0, layers};
  op.hooked = sharded && reckoned;
  if (cost->stores_scores) add_scores(x, &op);
  if (sharded) op.copied = copied(x, cost, backward);
  if (sharded && hk_expand_torchs(x)) op.cast = cast(x, cost, backward);
  op.copied += sums + (backward ? cost->whole_backward : cost->whole_forward) / 2; /* each way */
  return op;
}

static int32_t last_on(const hk_expansion *x, int rank, hk_lane_kind lane) {
  return x->last[rank * HK_LANE_KIND_COUNT + (int)lane];
}

/* A collective starts when every rank of the node has reached it. `ready`: one operation per rank;
 * `extra`: a further dependency of this rank. */
static int32_t add_collective(hk_expansion *x, int rank, hk_op op, const int32_t *ready,
                              int32_t extra) {
  int32_t deps[HK_MOST_GPUS + 1];
  const int n = x->graph->ranks;
  const bool gathers = op.kind == HK_OP_ALL_GATHER;
  memcpy(deps, ready, (size_t)n * sizeof *deps);
  deps[n] = extra;
  return hk_expand_add_carried(x, rank, HK_LANE_NET, op, deps, (size_t)n + 1,
                               gathers ? x->pieces.written : NULL, true);
}

/* Per rank, the operations of one pass (forward or backward) for which later blocks wait. */
typedef struct {
  int32_t launched[HK_MOST_GPUS], gathered[HK_MOST_GPUS], computed[HK_MOST_GPUS];
  int32_t summing[HK_MOST_GPUS];            /* copy of sums to the GPU, see sum_on_gpu */
  int32_t reduced[HK_MOST_GPUS];            /* tensor-parallel reduction of activations */
  int32_t previous[HK_MOST_GPUS][PREFETCH]; /* computation of earlier blocks, latest first */
} hk_pass;

static void begin_pass(hk_pass *pass) {
  memset(pass, -1, sizeof *pass);
}

/* Activations, or their gradients, from the stages before: the first block waits for them. */
static void receive(hk_expansion *x, hk_pass *pass, int micro) {
  const int ranks = x->graph->ranks;
  int32_t ready[HK_MOST_GPUS];
  if (x->stage_sent == 0) return;
  for (int r = 0; r < ranks; r++) ready[r] = last_on(x, r, HK_LANE_GPU);
  for (int r = 0; r < ranks; r++) {
    const hk_block_cost *block =
        x->phase == HK_PHASE_FORWARD ? x->blocks : &x->blocks[x->n_blocks - 1];
    pass->reduced[r] =
        add_collective(x, r, block_op(HK_OP_STAGE_SEND, x->stage_sent, block, micro), ready, -1);
  }
}

static hk_op launch_op(const hk_expansion *x, const hk_block_cost *cost, int micro, int launches) {
  const bool takes_time = !launches_known(x, cost) && !launches_while_computing(x, cost);
  hk_op op = block_op(HK_OP_LAUNCH, takes_time ? launches : 0, cost, micro);
  op.hooked = takes_time && hk_expand_sharded(x, cost);
  return op;
}

/* Under DeepSpeed the weights of the embedding and the output projection stay gathered from one
 * micro-step to the next: backward does not release them, because modules other than their own use
 * them (is_external_param), and the step releases everything. The coordinator gathers a weight only
 * if it is not there (fetch_sub_module in partitioned_param_coordinator.py). By that code the first
 * micro-step's backward does not gather them again, either. The graph has these gathers: they are
 * less than 0.1 % of a published iteration, and the profiles were fitted with them. */
static bool stays_gathered(const hk_expansion *x, const hk_block_cost *cost, int micro) {
  const bool vocabulary =
      cost->block == HK_BLOCK_EMBED || cost->block == (int)x->plan->model.layers;
  return x->plan->runtime == HK_RUNTIME_DEEPSPEED && vocabulary && micro > 0;
}

/* Ranks that keep their weights gather the updated ones once, before the first forward. */
static bool is_gathered(const hk_expansion *x, const hk_block_cost *cost, int micro) {
  if (x->keeps_weights) return micro == 0 && x->phase == HK_PHASE_FORWARD && cost->weights > 0;
  return cost->gathered > 0 && !stays_gathered(x, cost, micro);
}

/* Whether other ranks have the same experts of a block. */
static bool has_alike(const hk_expansion *x, const hk_block_cost *cost) {
  return cost->experts > 0 && x->expert_dp > 1;
}

/* A gather or reduction of a block's `bytes`: of its experts, or of all else. */
static hk_op shared_op(const hk_expansion *x, hk_op_kind kind, hk_bytes bytes, bool experts,
                       const hk_block_cost *cost, int micro) {
  const hk_bytes part = experts ? cost->experts : bytes - cost->experts;
  const int among = experts ? x->expert_dp : x->dp;
  hk_op op = block_op(kind, part / among * (among - 1), cost, micro);
  op.experts = experts;
  return op;
}

/* `launches`: number of passes over a layer that the host thread launches for the block. */
static void launch_and_gather(hk_expansion *x, hk_pass *pass, const hk_block_cost *cost, int micro,
                              int launches) {
  const int ranks = x->graph->ranks;
  /* The barrier is on rank 0's lane. Other ranks wait for it even if the first block has no update
   * that does. */
  const bool first = cost == x->blocks && micro == 0 && x->phase == HK_PHASE_FORWARD;
  const int32_t barrier = first ? last_on(x, 0, HK_LANE_HOST) : -1;
  for (int r = 0; r < ranks; r++) {
    pass->gathered[r] = x->keeps_weights ? -1 : pass->gathered[r];
    /* Before it launches a block, the host thread waits for the block's updates. */
    pass->launched[r] =
        hk_expand_add_carried(x, r, HK_LANE_HOST, launch_op(x, cost, micro, launches), &barrier,
                              r > 0, x->pieces.updated, false);
  }
  if (!is_gathered(x, cost, micro)) return;
  for (int experts = 0; experts <= has_alike(x, cost); experts++) {
    const hk_op op = shared_op(x, HK_OP_ALL_GATHER, cost->weights, experts, cost, micro);
    for (int r = 0; r < ranks; r++)
      pass->gathered[r] = add_collective(x, r, op, pass->launched, pass->previous[r][PREFETCH - 1]);
  }
}

/* Whether a block's gradients are reduced one block late: the gather of the next block precedes the
 * reduction on the collectives stream, and so does its computation, unless the flush blocks the
 * host thread. DeepSpeed reduces a bucket when the next gradient does not fit. Under hocket the
 * framework gathers ahead in backward, as FSDP does (BackwardPrefetch.BACKWARD_PRE): collectives
 * run in the order in which they are issued, so a reduction that is issued first would delay the
 * next block's weights, and no block would compute beside a collective. In that order,
 * reduce_first, and where no gradients may wait, gradients of one block less are on the GPU.
 */
static bool reduces_late(const hk_expansion *x) {
  const hk_plan *plan = x->plan;
  if (plan->runtime == HK_RUNTIME_DEEPSPEED) return true;
  return x->dp > 1 && plan->flush == HK_FLUSH_ASYNC && plan->flush_blocks != 1 &&
         !plan->reduce_first;
}

/* The flush for which backward of the next block waits: with flush_blocks = n, gradients of at most
 * n - 1 earlier blocks are still on the GPU when it begins. If reductions are late, one of these is
 * not reduced yet, so its flush is not in the graph. -1: none. */
static int32_t flush_before(const hk_expansion *x, int rank) {
  const int32_t behind = x->n_flushed[rank] - x->plan->flush_blocks + reduces_late(x);
  const bool waits = x->plan->flush_blocks > 0 && behind >= 0;
  return waits ? x->flushed[(size_t)rank * (size_t)x->n_blocks + (size_t)behind] : -1;
}

/* All-to-alls of a pass over a layer with divided experts: tokens to the experts and back, in
 * backward their gradients, behind those of a forward that is repeated. The compute stream waits
 * for each, and gathers of weights go on beside them. */
static void exchange_tokens(hk_expansion *x, const hk_pass *pass, bool backward,
                            const hk_block_cost *cost, int micro) {
  const int ranks = x->graph->ranks;
  const int times = backward && x->plan->job.checkpoint_activations ? 4 : 2;
  int32_t ready[HK_MOST_GPUS];
  for (int r = 0; r < ranks; r++)
    ready[r] = pass->reduced[r] >= 0 ? pass->reduced[r] : pass->computed[r];
  for (int i = 0; i < times && cost->routed > 0; i++) {
    int32_t sent[HK_MOST_GPUS];
    for (int r = 0; r < ranks; r++)
      sent[r] =
          hk_expand_add(x, r, HK_LANE_GPU, block_op(HK_OP_ALL_TO_ALL, cost->routed, cost, micro),
                        ready, (size_t)ranks);
    memcpy(ready, sent, sizeof ready);
  }
}

/* The computation, then its tensor-parallel all-reduce and all-to-alls, for which the next block
 * waits. */
static void compute(hk_expansion *x, hk_pass *pass, hk_op op, hk_bytes tp_sent,
                    const hk_block_cost *cost, int micro) {
  const int ranks = x->graph->ranks;
  for (int r = 0; r < ranks; r++) {
    for (int p = PREFETCH - 1; p > 0; p--) pass->previous[r][p] = pass->previous[r][p - 1];
    const int32_t *summed = &x->summed[r * HK_SUMS_IN_FLIGHT];
    const bool backward = op.kind == HK_OP_BACKWARD;
    const int latest = HK_SUMS_IN_FLIGHT - 1 - reduces_late(x); /* summed[latest] must have ended */
    const int32_t deps[] = {pass->launched[r],
                            cost->gathered > 0 || x->keeps_weights ? pass->gathered[r] : -1,
                            pass->reduced[r],
                            backward ? pass->summing[r] : -1,
                            backward ? summed[latest] : -1,
                            backward ? flush_before(x, r) : -1};
    pass->computed[r] = hk_expand_add_carried(x, r, HK_LANE_GPU, op, deps, 6,
                                              cost->gathered > 0 ? NULL : x->pieces.written, false);
    pass->previous[r][0] = pass->computed[r];
  }
  for (int r = 0; r < ranks; r++) {
    pass->reduced[r] = -1;
    if (tp_sent == 0) continue;
    pass->reduced[r] = add_collective(x, r, block_op(HK_OP_TP_ALL_REDUCE, tp_sent, cost, micro),
                                      pass->computed, -1);
  }
  exchange_tokens(x, pass, op.kind == HK_OP_BACKWARD, cost, micro);
}

/* Each rank's first forward begins when its GPU has nothing queued, see hk_expand_step_host. */
static void begin_iteration(hk_expansion *x) {
  for (int r = 0; r < x->graph->ranks && hk_expand_fsdp(x); r++) hk_expand_step_host(x, r, -1);
}

void hk_expand_forward(hk_expansion *x, int micro) {
  hk_pass pass;
  if (micro == 0) begin_iteration(x);
  begin_pass(&pass);
  receive(x, &pass, micro);
  for (int i = 0; i < x->n_blocks; i++) {
    const hk_block_cost *cost = &x->blocks[i];
    launch_and_gather(x, &pass, cost, micro, 1);
    compute(x, &pass, pass_op(x, HK_OP_FORWARD, cost, micro, 1), cost->tp_forward, cost, micro);
  }
}

/* -- gradients --------------------------------------------------------------------------------- */

/* A copy that the host thread does not wait for. */
static void flush_pinned(hk_expansion *x, int rank, const hk_block_cost *cost, int micro,
                         int bytes_per_param, int32_t after, int32_t fetched) {
  const int64_t n = cost->host_grads;
  hk_op copy = block_op(
      HK_OP_GRAD_D2H, bytes_per_param == HK_BYTES_FP32 ? HK_BYTES_FP32 * n : cost->host_grad_bytes,
      cost, micro);
  if (bytes_per_param == HK_BYTES_FP32)
    after = HK_ADD(x, rank, HK_LANE_FLUSH, block_op(HK_OP_GRAD_CAST_GPU, n, cost, micro), after);
  HK_ADD(x, rank, HK_LANE_FLUSH, copy, after, fetched);
}

/* The blocking flush: the host thread waits for the copy before it launches the next block. Under
 * DeepSpeed the copy converts the type: it goes to a new pageable buffer and is cast to fp32 on the
 * CPU. */
static void flush_blocking(hk_expansion *x, int rank, const hk_block_cost *cost, int micro,
                           int32_t after, int32_t fetched) {
  const bool deepspeed = x->plan->runtime == HK_RUNTIME_DEEPSPEED;
  const int64_t n = cost->host_grads;
  hk_op copy = block_op(deepspeed ? HK_OP_GRAD_D2H_PAGEABLE : HK_OP_GRAD_D2H, cost->host_grad_bytes,
                        cost, micro);
  const int32_t copied = HK_ADD(x, rank, HK_LANE_FLUSH, copy, after, fetched);
  hk_op wait =
      block_op(deepspeed ? HK_OP_GRAD_CAST_CPU : HK_OP_HOST_WAIT, deepspeed ? n : 0, cost, micro);
  wait.threads = deepspeed ? x->plan->cpu_threads : 0;
  HK_ADD(x, rank, HK_LANE_HOST, wait, copied);
}

/* DeepSpeed keeps the rank's bf16 gradients in pinned host memory. After each reduction they are
 * copied both ways: in the first micro-step to the host and back for their norm; in later ones to
 * the GPU for the sum and to the host again. */
static int32_t exchange_with_host(hk_expansion *x, int rank, const hk_block_cost *cost, int micro,
                                  int32_t after) {
  const hk_bytes bytes = HK_BYTES_BF16 * (cost->host_grads + cost->gpu_grads);
  const int32_t out =
      HK_ADD(x, rank, HK_LANE_FLUSH, block_op(HK_OP_GRAD_SUM_D2H, bytes, cost, micro), after);
  return HK_ADD(x, rank, HK_LANE_FLUSH, block_op(HK_OP_GRAD_SUM_H2D, bytes, cost, micro), out);
}

/* With an overlap a subgroup is flushed when backward has computed its first block. */
static void flush_subgroups(hk_expansion *x, int rank, const hk_block_cost *cost, int32_t after,
                            int32_t fetched) {
  const int32_t block = cost->block - HK_BLOCK_EMBED;
  for (int32_t s = x->pieces.block_end[block]; s-- > x->pieces.block_begin[block];) {
    if (x->pieces.first[s] == block) hk_expand_flush_subgroup(x, rank, s, after, fetched);
  }
}

/* `fetched`: the copy of the block's sums to the GPU for which the flush waits, besides `after`;
 * -1: none. */
static void flush_last(hk_expansion *x, int rank, const hk_block_cost *cost, int micro,
                       int32_t after, int32_t fetched) {
  const hk_plan *plan = x->plan;
  if (plan->overlap != HK_OVERLAP_NONE) {
    flush_subgroups(x, rank, cost, after, fetched);
  } else if (plan->flush == HK_FLUSH_SYNC) {
    flush_blocking(x, rank, cost, micro, after, fetched);
  } else {
    flush_pinned(x, rank, cost, micro, plan->flush_bytes_per_param, after, fetched);
    const size_t slot = (size_t)rank * (size_t)x->n_blocks + (size_t)x->n_flushed[rank]++;
    x->flushed[slot] = last_on(x, rank, HK_LANE_FLUSH);
  }
}

/* -- sums in host memory ----------------------------------------------------------------------- */

/* What the block's gradients or sums wait for: backward of a later block must not fill GPU memory
 * with more gradients than HK_SUMS_IN_FLIGHT blocks have. */
static void note_summed(hk_expansion *x, int rank, int32_t op) {
  int32_t *summed = &x->summed[rank * HK_SUMS_IN_FLIGHT];
  memmove(summed + 1, summed, (HK_SUMS_IN_FLIGHT - 1) * sizeof *summed);
  summed[0] = op;
}

/* The GPU adds, and gradients are not handed over: the block's sums come back, and leave with the
 * new gradients in them. The next block waits for that. */
static void sum_on_gpu(hk_expansion *x, hk_pass *pass, int rank, const hk_block_cost *cost,
                       int micro, int32_t after) {
  const bool last = micro == x->plan->job.grad_accum - 1;
  if (micro > 0) {
    after = HK_ADD(x, rank, HK_LANE_FLUSH,
                   block_op(HK_OP_GRAD_SUM_H2D, cost->host_grad_bytes, cost, micro), after);
    pass->summing[rank] = after;
  }
  if (last) {
    flush_last(x, rank, cost, micro, after, -1);
  } else {
    HK_ADD(x, rank, HK_LANE_FLUSH, block_op(HK_OP_GRAD_SUM_D2H, cost->host_grad_bytes, cost, micro),
           after);
  }
  note_summed(x, rank, last_on(x, rank, HK_LANE_FLUSH));
}

/* The engine adds: sums that do not stay on the GPU leave for the host in each micro-step, and come
 * back, beside the copies out, when the blocks before have left their slots
 * (handover_accumulation.c). The next block waits only for sums that come late. */
static void sum_in_slots(hk_expansion *x, hk_pass *pass, int rank, const hk_block_cost *cost,
                         int micro, int32_t after) {
  const int block = cost->block - HK_BLOCK_EMBED;
  const bool last = micro == x->plan->job.grad_accum - 1;
  const hk_bytes bytes = hk_whole_bytes(x->passing * (double)cost->passing_bytes);
  int32_t *left = &x->left[(size_t)rank * (size_t)x->n_blocks];
  if (micro > 0 && bytes > 0) {
    const int32_t room = left[(block + x->fetch_ahead) % x->n_blocks];
    pass->summing[rank] =
        HK_ADD(x, rank, HK_LANE_H2D, block_op(HK_OP_GRAD_SUM_H2D, bytes, cost, micro), left[block],
               x->fetch_ahead < x->n_blocks ? room : -1);
  }
  const int32_t fetched = micro > 0 && bytes > 0 ? pass->summing[rank] : -1;
  if (last) {
    flush_last(x, rank, cost, micro, after, fetched);
  } else if (bytes > 0) {
    left[block] = HK_ADD(x, rank, HK_LANE_FLUSH, block_op(HK_OP_GRAD_SUM_D2H, bytes, cost, micro),
                         after, fetched);
  }
  if (last || bytes > 0) note_summed(x, rank, last_on(x, rank, HK_LANE_FLUSH));
}

static void flush(hk_expansion *x, hk_pass *pass, int rank, const hk_block_cost *cost, int micro,
                  int32_t after) {
  const bool deepspeed = x->plan->runtime == HK_RUNTIME_DEEPSPEED;
  if (deepspeed) after = exchange_with_host(x, rank, cost, micro, after);
  if (cost->host_grads == 0) return;
  if (x->handed && x->accumulate == HK_ACCUMULATE_HOST) {
    sum_in_slots(x, pass, rank, cost, micro, after);
  } else if (!deepspeed && x->accumulate == HK_ACCUMULATE_HOST) {
    sum_on_gpu(x, pass, rank, cost, micro, after);
  } else if (micro == x->plan->job.grad_accum - 1) {
    flush_last(x, rank, cost, micro, after, -1);
  }
}

/* -- backward ---------------------------------------------------------------------------------- */

/* Reduces and flushes the gradients of a block. `computed`: its backward on each rank. */
static void reduce_and_flush(hk_expansion *x, hk_pass *pass, const int32_t *computed,
                             const hk_block_cost *cost, int micro) {
  const int ranks = x->graph->ranks;
  const hk_bytes grads = cost->all_grad_bytes;
  int32_t ready[HK_MOST_GPUS];
  for (int r = 0; r < ranks; r++) {
    ready[r] = computed[r];
    if (x->plan->runtime == HK_RUNTIME_DEEPSPEED) {
      ready[r] =
          HK_ADD(x, r, HK_LANE_FLUSH,
                 block_op(HK_OP_GRAD_BUCKET, grads / HK_BYTES_BF16, cost, micro), computed[r]);
    }
  }
  const bool reduces = x->dp > 1 && (!x->keeps_weights || micro == x->plan->job.grad_accum - 1);
  const hk_op rest = shared_op(x, HK_OP_REDUCE_SCATTER, grads, false, cost, micro);
  const hk_op experts = shared_op(x, HK_OP_REDUCE_SCATTER, grads, true, cost, micro);
  for (int r = 0; r < ranks && reduces && has_alike(x, cost); r++)
    add_collective(x, r, experts, ready, -1);
  for (int r = 0; r < ranks; r++)
    flush(x, pass, r, cost, micro, reduces ? add_collective(x, r, rest, ready, -1) : ready[r]);
}

/* Launches of a block in backward, each as long as forward's. A checkpointed layer counts twice,
 * for recomputation and for backward itself. Under DeepSpeed hooks make launching backward as slow
 * as forward. Without them it still takes 0.8 to 1.2 times as long. On a CPU 28 layers of Llama
 * took 33 ms in forward and 71 in backward with recomputation, 23 and 28 without. Launches of 3.0 G
 * took 37 to 111 and 86 to 318 ms on H100 and H200 nodes (bench/results/training/threads.md). */
static int backward_launches(const hk_expansion *x, const hk_block_cost *cost) {
  return is_layer(x, cost) && x->plan->job.checkpoint_activations ? 2 : 1;
}

void hk_expand_backward(hk_expansion *x, int micro) {
  hk_pass pass;
  const int ranks = x->graph->ranks;
  const bool late = reduces_late(x);
  const bool blocking =
      late && x->plan->flush == HK_FLUSH_SYNC && micro == x->plan->job.grad_accum - 1;
  const hk_block_cost *behind = NULL;
  int32_t behind_computed[HK_MOST_GPUS];
  begin_pass(&pass);
  receive(x, &pass, micro);
  for (int r = 0; r < ranks; r++) pass.previous[r][0] = last_on(x, r, HK_LANE_GPU);
  for (int i = x->n_blocks - 1; i >= 0; i--) {
    const hk_block_cost *cost = &x->blocks[i];
    const int launches = backward_launches(x, cost);
    launch_and_gather(x, &pass, cost, micro, launches);
    if (blocking && behind != NULL) {
      reduce_and_flush(x, &pass, behind_computed, behind, micro);
      for (int r = 0; r < ranks; r++) pass.launched[r] = last_on(x, r, HK_LANE_HOST);
    }
    compute(x, &pass, pass_op(x, HK_OP_BACKWARD, cost, micro, launches), cost->tp_backward, cost,
            micro);

    if (!blocking && behind != NULL) reduce_and_flush(x, &pass, behind_computed, behind, micro);
    if (late) {
      behind = cost;
      memcpy(behind_computed, pass.computed, sizeof behind_computed);
    } else {
      reduce_and_flush(x, &pass, pass.computed, cost, micro);
    }
  }
  if (behind != NULL) reduce_and_flush(x, &pass, behind_computed, behind, micro);
}
