/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the expansion of a plan into a graph (expand*.c): what its parts share. */
#ifndef HK_CORE_EXPAND_H
#define HK_CORE_EXPAND_H

#include "core/graph.h"

/* What one block (embedding, a layer, the head) costs one rank in one micro-step. */
typedef struct {
  int block;
  int64_t forward_flops, backward_flops; /* backward includes recomputation */
  hk_bytes weights;                      /* bf16, whole block of the tensor-parallel rank */
  hk_bytes gathered;                     /* what ZeRO-3 must bring in for it: 0 with dp = 1 */
  hk_bytes activations, workspace;
  hk_bytes loss; /* DeepSpeed: what the loss takes for itself; 0 but in the head */
  /* DeepSpeed: gathered weights on the GPU from the block's forward on, and after its backward */
  hk_bytes live_forward, live_backward;
  hk_bytes tp_forward, tp_backward; /* sent in tensor-parallel all-reduces */
  int64_t host_grads;   /* parameters of this rank's share whose gradient goes to the host */
  int64_t gpu_grads;    /* ... and whose gradient stays */
  int64_t staged_grads; /* ... and whose state is staged: a part of those */
  hk_bytes host_grad_bytes, gpu_grad_bytes; /* of the same, in the gradients' own types */
  hk_bytes all_grad_bytes;                  /* of the whole block, before they are shared out */
  hk_ns forward_ns, backward_ns;            /* measured, or 0 */
} hk_block_cost;

/* DeepSpeed: what a rank's GPU holds at the point to which the expansion has come. */
typedef struct {
  hk_bytes live;  /* gathered weights */
  int64_t staged; /* parameters that the staging buffers are made for */
} hk_rank_memory;

/* With an overlap: pieces of the update, and what others wait for of each. Pieces are counted
 * through all subgroups in flat order; arrays over them are [rank][piece], -1 before there is any.
 */
typedef struct {
  int32_t *first, *last;            /* blocks of each subgroup, see hk_plan_subgroup_blocks */
  int32_t *block_begin, *block_end; /* subgroups that have a part of each block */
  int32_t *piece_begin;             /* [n_subgroups + 1] */
  int32_t n_pieces;
  int32_t *flushed;  /* its gradients are in host memory */
  int32_t *updated;  /* new weights are there, wherever it is updated */
  int32_t *written;  /* ... and on the GPU */
  int32_t *returned; /* its state is back in host memory; routes that take it away only */
  int32_t *scratch;  /* a dependency list */
} hk_pieces;

typedef struct {
  const hk_plan *plan;
  hk_graph *graph;
  hk_error *err;
  int dp;
  hk_block_cost *blocks; /* layers + 2, in forward order */
  int n_blocks;
  hk_rank_memory *memory; /* [rank] */
  int64_t *begin;         /* of each subgroup, in the rank's flat order */
  int32_t *buffers;       /* [rank][plan->buffers]: write-back that last used a staging buffer */
  hk_pieces pieces;       /* zero without an overlap */
  int32_t *lanes;         /* [rank][lane kind], -1: not there yet */
  int32_t *last;          /* [rank][lane kind]: last operation on it, -1: none */
  hk_phase phase;         /* stamped on every operation added */
  hk_status status;       /* first failure; later adds do nothing and return -1 */
} hk_expansion;

/* The longest dependency list an operation is given here. */
#define HK_EXPAND_DEPS 8

/* Adds an operation on a lane of a rank; -1 among `deps` is ignored. Returns its id, or -1 once
 * anything has failed: callers go on and the status is looked at in the end. */
int32_t hk_expand_add(hk_expansion *x, int rank, hk_lane_kind lane, hk_op op, const int32_t *deps,
                      size_t n_deps);
#define HK_ADD(x, rank, lane, op, ...)                                     \
  hk_expand_add((x), (rank), (lane), (op), (const int32_t[]){__VA_ARGS__}, \
                sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* An operation with nothing in it. */
static inline hk_op hk_expand_op(hk_op_kind kind, int64_t work) {
  return (hk_op){
      .kind = kind, .work = work, .micro = -1, .block = HK_BLOCK_NONE, .subgroup = -1, .piece = -1};
}

/* Whole numbers that stay far from overflow when thousands of them are added up: what does not fit
 * in 256 TiB is hopeless whatever the exact figure. */
static inline hk_bytes hk_whole_bytes(double bytes) {
  return (hk_bytes)(bytes < 0x1p48 ? bytes : 0x1p48);
}

/* Whether the graph is the engine's part with its flush: not where backward itself is in it. */
static inline bool hk_expands_engine(const hk_plan *plan, unsigned phases) {
  return (phases & HK_EXPAND_ENGINE) == HK_EXPAND_ENGINE && (phases & HK_EXPAND_TRAINING) == 0 &&
         plan->overlap != HK_OVERLAP_NONE;
}

/* Gradients, and weights, of n parameters of a subgroup from `offset` on. */
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

/* What moves in pieces does so to be in flight while others are; what stays on the GPU need not be
 * launched more than once. */
static inline int64_t hk_expand_piece(const hk_plan *plan, int32_t subgroup) {
  const hk_plan_subgroup *s = &plan->subgroups[subgroup];
  return s->route == HK_ROUTE_RESIDENT ? s->numel : plan->piece_numel;
}

/* Fills in what `op` takes and gives back of GPU memory (hk_expand_add calls it), and what is there
 * before the first operation. */
void hk_expand_memory(hk_expansion *x, hk_op *op);
void hk_expand_base_memory(hk_expansion *x, unsigned phases);
/* Sizes under DeepSpeed: of each block, with the costs that do not depend on the runtime in place;
 * of what lies on the GPU
 * besides weights and state; and of what the device shows besides. */
void hk_expand_deepspeed_sizes(hk_expansion *x);
hk_bytes hk_expand_deepspeed_base(hk_expansion *x);
void hk_expand_deepspeed_device(hk_expansion *x);

/* A barrier that every lane of every rank has reached. */
int32_t hk_expand_barrier(hk_expansion *x);

/* What DeepSpeed does before a phase, when all lanes of all ranks are idle: two memory reports,
 * each after a garbage collection. `micro`: the micro-step that comes, grad_accum before the
 * update. Nothing under hocket. */
void hk_expand_boundary(hk_expansion *x, int micro);
/* The prototype's return of cached GPU memory, before an iteration. */
void hk_expand_cache_release(hk_expansion *x);

void hk_expand_forward(hk_expansion *x, int micro);
void hk_expand_backward(hk_expansion *x, int micro);
/* With an overlap: the pieces of the update, and the copies of a subgroup's gradients, after
 * `ready`, to host memory; nothing for other routes than cpu. */
hk_status hk_expand_pieces_open(hk_expansion *x);
void hk_expand_pieces_close(hk_expansion *x);
void hk_expand_flush_subgroup(hk_expansion *x, int rank, int32_t subgroup, int32_t ready);
/* After all gradients have arrived, and all that the framework does. */
int32_t hk_expand_barrier_pieces(hk_expansion *x);
/* Where `pieces` (hk_pieces.updated, ...) stands for a piece. */
static inline int32_t *hk_piece_of(const hk_expansion *x, int32_t *pieces, int rank,
                                   int32_t subgroup, int32_t piece) {
  return &pieces[rank * x->pieces.n_pieces + x->pieces.piece_begin[subgroup] + piece];
}
/* As hk_expand_add, for an operation of the first forward of a block: with an overlap it also waits
 * for `what` (hk_pieces.updated or .written) of the block's pieces in the iteration before, on this
 * rank or on all. */
int32_t hk_expand_add_carried(hk_expansion *x, int rank, hk_lane_kind lane, hk_op op,
                              const int32_t *deps, size_t n_deps, const int32_t *what,
                              bool all_ranks);
/* An operation on a piece of a subgroup, its place in forward order included. */
hk_op hk_expand_piece_op(const hk_expansion *x, hk_op_kind kind, int64_t work, int32_t subgroup,
                         int32_t piece, int64_t offset);

/* Update phase of rank `rank` after `barrier`, by runtime. */
void hk_expand_update_hocket(hk_expansion *x, int rank, int32_t barrier);
void hk_expand_update_deepspeed(hk_expansion *x, int rank, int32_t barrier);

#endif
