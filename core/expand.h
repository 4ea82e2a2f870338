/* SPDX-License-Identifier: GPL-3.0-or-later */
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
  hk_bytes tp_forward, tp_backward; /* sent in tensor-parallel all-reduces */
  int64_t host_grads; /* parameters of this rank's share whose gradient goes to the host */
  int64_t gpu_grads;  /* ... and whose gradient stays */
} hk_block_cost;

typedef struct {
  const hk_plan *plan;
  hk_graph *graph;
  hk_error *err;
  int dp;
  hk_block_cost *blocks; /* layers + 2, in forward order */
  int n_blocks;
  int32_t *lanes;   /* [rank][lane kind], -1: not there yet */
  int32_t *last;    /* [rank][lane kind]: last operation on it, -1: none */
  hk_phase phase;   /* stamped on every operation added */
  hk_status status; /* first failure; later adds do nothing and return -1 */
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

/* A barrier that every lane of every rank has reached. */
int32_t hk_expand_barrier(hk_expansion *x);

void hk_expand_forward(hk_expansion *x, int micro);
void hk_expand_backward(hk_expansion *x, int micro);
/* Update phase of rank `rank` after `barrier`, by runtime. */
void hk_expand_update_hocket(hk_expansion *x, int rank, int32_t barrier);
void hk_expand_update_deepspeed(hk_expansion *x, int rank, int32_t barrier);

#endif
