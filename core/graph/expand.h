/* SPDX-License-Identifier: Apache-2.0 */
/* Private to expand*.c, which expand a plan into a graph: the shared state and functions. */
#ifndef HK_CORE_GRAPH_EXPAND_H
#define HK_CORE_GRAPH_EXPAND_H

#include "core/graph/graph.h"

/* Cost of one block (embedding, a layer, the head) for one rank in one micro-step. */
typedef struct {
  int block;
  int64_t forward_flops, backward_flops; /* backward includes recomputation */
  hk_bytes weights;                      /* of the whole block on this tensor-parallel rank */
  hk_bytes gathered;                     /* of these, gathered by ZeRO-3: all, or 0 if dp = 1 */
  hk_bytes activations, workspace;
  hk_bytes loss; /* temporary memory of the loss in forward (DeepSpeed, or a loss in slices); 0
                    except in the head */
  /* DeepSpeed: gathered weights on the GPU after the block's forward, and after its backward */
  hk_bytes live_forward, live_backward;
  hk_bytes tp_forward, tp_backward;       /* sent in tensor-parallel all-reduces */
  hk_bytes whole_forward, whole_backward; /* read and written by what tensor parallelism repeats on
                                             every rank */
  /* Expert parallelism, else 0: weights and gradients of experts on this rank, part of `weights`
   * and `all_grad_bytes`; and bytes sent in one all-to-all. */
  hk_bytes experts, routed;
  /* Parameters of this rank's share, by what happens to their gradients. */
  int64_t host_grads;                       /* copied to the host: route cpu */
  int64_t gpu_grads;                        /* kept on the GPU: all other routes */
  int64_t staged_grads;                     /* route staged; part of gpu_grads */
  hk_bytes host_grad_bytes, gpu_grad_bytes; /* bytes of host_grads and gpu_grads */
  hk_bytes passing_bytes;                   /* of host_grad_bytes, those that pass through slots */
  hk_bytes all_grad_bytes;                  /* of the whole block, before the reduction */
  hk_ns forward_ns, backward_ns;            /* measured, or 0 */
  hk_ns forward_launch, backward_launch;    /* the host's time to queue the kernels, or 0 */
  int32_t handed; /* gradients that are handed over one by one; 0 if backward_ns includes that */
  bool stores_scores; /* of attention, in GPU memory */
} hk_block_cost;

/* DeepSpeed: memory of a rank's GPU after the operations that have been added so far. */
typedef struct {
  hk_bytes live;  /* gathered weights */
  int64_t staged; /* size of the staging buffers, in parameters */
} hk_rank_memory;

/* With an overlap: the pieces of the update and the operations on them for which others wait.
 * Pieces are numbered through all subgroups in flat order. */
typedef struct {
  int32_t *first, *last;            /* [subgroup] its blocks, see hk_plan_subgroup_blocks */
  int32_t *block_begin, *block_end; /* [block] subgroups with parameters of the block */
  int32_t *piece_begin;             /* [subgroup] its first piece; n_subgroups + 1 entries */
  int32_t n_pieces;
  /* [rank][piece] the latest operation after which ...; -1: none yet */
  int32_t *flushed;  /* its gradients are in host memory */
  int32_t *updated;  /* its new weights exist, on CPU or GPU */
  int32_t *written;  /* its new weights are in the model's tensors on the GPU */
  int32_t *returned; /* its state is back in host memory; route staged only */
  int32_t *scratch;  /* a dependency list */
} hk_pieces;

typedef struct {
  const hk_plan *plan;
  hk_graph *graph;
  hk_error *err;
  int dp, expert_dp;     /* hk_job_expert_dp */
  bool keeps_weights;    /* hk_job_keeps_weights, with data parallelism */
  hk_bytes stage_sent;   /* to another stage, in each pass of a micro-step; 0 without a pipeline */
  bool both_steps;       /* the engine's graph: of steps that are kept and of steps that are held */
  bool handed;           /* a framework hands gradients over as it makes them */
  hk_block_cost *blocks; /* layers + 2, in forward order */
  int n_blocks;
  hk_rank_memory *memory;   /* [rank] */
  int64_t *begin;           /* [subgroup] its first parameter, in the rank's flat order */
  hk_accumulate accumulate; /* hk_plan_accumulates */
  int32_t
      *summed;    /* [rank][HK_SUMS_IN_FLIGHT] last operation that moved a block's gradients to sums
                     in host memory, for the latest blocks of this iteration, latest first; -1: none */
  int32_t *left;  /* [rank][n_blocks] last copy of a block's sums to the host that was added; -1:
                     none. Used if gradients are handed over */
  double passing; /* of the sums that pass through slots, the share that leaves the GPU between
                     micro-steps */
  int fetch_ahead;  /* sums are fetched so many blocks before they are needed */
  int32_t *flushed; /* [rank][n_blocks] last copy of a block's gradients to the host in this
                       iteration's last micro-step, in order; used if plan->flush_blocks > 0 */
  int32_t n_flushed[HK_MOST_GPUS];
  int32_t *buffers; /* [rank][plan->buffers] the write-back that last used a staging buffer */
  hk_pieces pieces; /* zero without an overlap */
  int32_t *lanes;   /* [rank][lane kind] index of the lane; -1: none yet */
  int32_t *last;    /* [rank][lane kind] last operation on it; -1: none */
  hk_phase phase;   /* of every operation that is added now */
  hk_status status; /* first failure; later adds do nothing and return -1 */
} hk_expansion;

/* DeepSpeed's documented default of stage3_prefetch_bucket_size, in parameters: a gather of several
 * tensors ends with the first that reaches it. */
#define HK_PREFETCH_BUCKET 50000000LL

/* DeepSpeed: weights that a rank keeps gathered for coming blocks, in backward. */
typedef struct {
  const hk_expansion *x;
  hk_bytes live, stop; /* bytes gathered; number of them from which no further tensor is fetched */
  int block;           /* of the tensor that is fetched next */
  size_t next, end;    /* its number, and the end of its block */
} hk_window;

/* Sets live_forward of all blocks, and *window to what forward leaves to backward. Without data
 * parallelism nothing is gathered: the window is empty and stays so. */
void hk_window_after_forward(hk_expansion *x, hk_window *window);
/* Backward of a block begins with all its weights gathered: a layer repeats its forward. */
void hk_window_recompute(hk_window *window, int block);
/* Before backward of a matrix: fetches further tensors until `stop` is reached or the prefetch
 * bucket is full. Both are checked before a tensor, so the window can exceed them by one tensor. */
void hk_window_fetch(hk_window *window);
/* After backward of a matrix. */
void hk_window_release(hk_window *window, hk_bytes bytes);

/* Parameters of the smallest tensor whose gradient is handed over by itself (HOOK_NUMEL of
 * python/hocket/attach.py). Those of smaller tensors leave together. */
#define HK_HANDED_ALONE (1LL << 15)

/* Blocks whose gradients wait at the same time for their addition to sums in host memory. */
#define HK_SUMS_IN_FLIGHT 2

/* Most dependencies of an operation besides those on pieces and ranks. */
#define HK_EXPAND_DEPS 8

/* Adds an operation on a lane of a rank; -1 among `deps` is ignored. Returns its id, or -1 after
 * any failure, which is in x->status: callers continue, and the status is checked at the end. */
int32_t hk_expand_add(hk_expansion *x, int rank, hk_lane_kind lane, hk_op op, const int32_t *deps,
                      size_t n_deps);
#define HK_ADD(x, rank, lane, op, ...)                                     \
  hk_expand_add((x), (rank), (lane), (op), (const int32_t[]){__VA_ARGS__}, \
                sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* An operation that belongs to no block, subgroup or piece. */
static inline hk_op hk_expand_op(hk_op_kind kind, int64_t work) {
  return (hk_op){
      .kind = kind, .work = work, .micro = -1, .block = HK_BLOCK_NONE, .subgroup = -1, .piece = -1};
}

/* Rounds down to whole bytes, at most 256 TiB: sums of thousands of such sizes do not overflow, and
 * no machine has more memory. */
static inline hk_bytes hk_whole_bytes(double bytes) {
  return (hk_bytes)(bytes < 0x1p48 ? bytes : 0x1p48);
}

/* The same for floating-point operations, at most 2^62. */
static inline int64_t hk_expand_flops(double flops) {
  return (int64_t)(flops < 0x1p62 ? flops : 0x1p62);
}

/* Whether FSDP2 (torch.distributed.fsdp.fully_shard) shards the model. */
static inline bool hk_expand_fsdp(const hk_expansion *x) {
  return x->dp > 1 && !x->keeps_weights && x->plan->runtime == HK_RUNTIME_HOCKET;
}

/* Adds framework.fsdp_step_ns of a rank's host thread, after operation `after`. The GPU has nothing
 * to do twice in an iteration, while the host thread works:
 * - from the norm until forward: hocket's step() returns when the norm is known. torch's own step
 *   only queues kernels, and the host thread is ahead of the GPU there, so the GPU does not wait;
 * - at the beginning of forward, until the first layer computes: the queue is empty, because
 *   transformers waits for the GPU there, too (find_packed_sequence_indices). */
static inline void hk_expand_step_host(hk_expansion *x, int rank, int32_t after) {
  hk_op op = hk_expand_op(HK_OP_STEP_OVERHEAD, 0);
  op.micro = x->phase == HK_PHASE_FORWARD ? 0 : -1;
  op.hooked = true;
  HK_ADD(x, rank, HK_LANE_HOST, op, after);
}

/* Whether FSDP2 gathers the block's weights and reduces its gradients. */
static inline bool hk_expand_sharded(const hk_expansion *x, const hk_block_cost *cost) {
  return cost->gathered > 0 && x->plan->runtime == HK_RUNTIME_HOCKET;
}

/* Whether the plan is torch's own: nothing of its state leaves the GPUs. FSDP2 then shards fp32
 * parameters, which it gathers and whose gradients it reduces as bf16, and torch's AdamW updates
 * them behind clip_grad_norm_. */
static inline bool hk_expand_torchs(const hk_expansion *x) {
  const hk_plan *plan = x->plan;
  return plan->runtime == HK_RUNTIME_HOCKET && x->dp > 1 && !x->keeps_weights &&
         plan->optimizer == HK_OPTIMIZER_FP32 && plan->overlap == HK_OVERLAP_NONE &&
         hk_plan_count(plan, HK_ROUTE_RESIDENT) == plan->n_subgroups;
}

/* Whether the graph is the engine's part of an iteration with its flush (HK_EXPAND_ENGINE, with an
 * overlap): not if backward is in the graph. */
static inline bool hk_expands_engine(const hk_plan *plan, unsigned phases) {
  return (phases & HK_EXPAND_ENGINE) == HK_EXPAND_ENGINE && (phases & HK_EXPAND_TRAINING) == 0 &&
         plan->overlap != HK_OVERLAP_NONE;
}

/* Bytes of gradients, and of weights, of parameters offset .. offset + n - 1 of a subgroup. */
static inline hk_bytes hk_expand_grads(const hk_expansion *x, int32_t subgroup, int64_t offset,
                                       int64_t n) {
  const int64_t begin = x->begin[subgroup] + offset;
  return hk_model_grad_bytes(&x->plan->model, x->plan->job.tp, x->dp, begin, begin + n);
}
static inline hk_bytes hk_expand_weights(const hk_expansion *x, int32_t subgroup, int64_t offset,
                                         int64_t n) {
  const int64_t begin = x->begin[subgroup] + offset;
  return hk_model_weight_bytes(&x->plan->model, x->plan->job.tp, x->dp, begin, begin + n);
}

/* Whether the subgroup runs ahead of the norm in the graph, and whether its weights are early. */
static inline bool hk_expand_ahead(const hk_expansion *x, int32_t subgroup) {
  const hk_plan *plan = x->plan;
  return plan->overlap == HK_OVERLAP_BOTH && plan->subgroups[subgroup].ahead &&
         plan->steps == HK_STEPS_KEPT;
}
static inline bool hk_expand_early(const hk_expansion *x, int32_t subgroup) {
  return hk_expand_ahead(x, subgroup) && x->plan->subgroups[subgroup].early;
}

/* Largest piece of a subgroup in parameters. Resident subgroups are updated in one piece: nothing
 * is copied that other pieces could overlap with. */
static inline int64_t hk_expand_piece(const hk_plan *plan, int32_t subgroup) {
  const hk_plan_subgroup *s = &plan->subgroups[subgroup];
  return s->route == HK_ROUTE_RESIDENT ? s->numel : plan->piece_numel;
}

/* Sets the GPU memory that `op` allocates and frees (hk_expand_add calls it); and the memory in use
 * before the first operation. */
void hk_expand_memory(hk_expansion *x, hk_op *op);
void hk_expand_base_memory(hk_expansion *x, unsigned phases);
/* Sets the cost of each block. */
void hk_expand_costs(hk_expansion *x);
/* DeepSpeed: sets the sizes of each block that depend on the runtime; returns the GPU memory in use
 * before the first operation besides weights and state; sets graph->device. */
void hk_expand_deepspeed_sizes(hk_expansion *x);
hk_bytes hk_expand_deepspeed_base(hk_expansion *x);
void hk_expand_deepspeed_device(hk_expansion *x);

void hk_expand_forward(hk_expansion *x, int micro);
void hk_expand_backward(hk_expansion *x, int micro);
/* With an overlap: allocates and frees x->pieces; copies a subgroup's gradients to host memory
 * after operations `ready` and `fetched` (-1: none), piece by piece (route cpu only). */
hk_status hk_expand_pieces_open(hk_expansion *x);
void hk_expand_pieces_close(hk_expansion *x);
void hk_expand_flush_subgroup(hk_expansion *x, int rank, int32_t subgroup, int32_t ready,
                              int32_t fetched);
/* The barrier with an overlap: after all flushed pieces and the framework's lanes. */
int32_t hk_expand_barrier_pieces(hk_expansion *x);
/* The entry of `pieces` (hk_pieces.updated, ...) for a piece. */
static inline int32_t *hk_piece_of(const hk_expansion *x, int32_t *pieces, int rank,
                                   int32_t subgroup, int32_t piece) {
  return &pieces[rank * x->pieces.n_pieces + x->pieces.piece_begin[subgroup] + piece];
}
/* As hk_expand_add, for an operation on a block. With an overlap, in the first micro-step's
 * forward, it also depends on `what` (hk_pieces.updated or .written) of the block's pieces in the
 * iteration before, on this rank or on all. `what` may be NULL. */
int32_t hk_expand_add_carried(hk_expansion *x, int rank, hk_lane_kind lane, hk_op op,
                              const int32_t *deps, size_t n_deps, const int32_t *what,
                              bool all_ranks);
/* An operation on a piece of a subgroup; with an overlap its priority is the forward order. */
hk_op hk_expand_piece_op(const hk_expansion *x, hk_op_kind kind, int64_t work, int32_t subgroup,
                         int32_t piece, int64_t offset);

/* Adds the update phase of a rank, after operation `barrier`. */
void hk_expand_update_hocket(hk_expansion *x, int rank, int32_t barrier);
void hk_expand_update_deepspeed(hk_expansion *x, int rank, int32_t barrier);

#endif
