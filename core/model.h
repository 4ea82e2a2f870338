/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A model: the shape of a decoder-only transformer, its parameter tensors in order, and what a
 * training step costs in arithmetic and in memory. */
#ifndef HK_CORE_MODEL_H
#define HK_CORE_MODEL_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "core/error.h"
#include "core/units.h"

typedef enum {
  HK_ARCH_LLAMA,   /* LlamaForCausalLM */
  HK_ARCH_MISTRAL, /* MistralForCausalLM */
  HK_ARCH_QWEN2,   /* Qwen2ForCausalLM: biases on q, k, v */
  HK_ARCH_QWEN3,   /* Qwen3ForCausalLM: RMSNorm on q and k heads, no biases */
  HK_ARCH_GPT2,    /* GPT2LMHeadModel: learned positions, LayerNorm, GELU, biases */
} hk_arch;

/* How matrices of one sublayer are stored, which decides where a subgroup can end. */
typedef enum {
  HK_LAYOUT_HF,       /* q, k, v, o, gate, up, down each a tensor (GPT-2: its own fused c_attn) */
  HK_LAYOUT_MEGATRON, /* norm, dense, fused qkv, norm, fused gate-up, down: the order in which
                         Megatron-DeepSpeed registers them, read off published subgroup sizes */
} hk_layout;

/* How a tensor is cut across a tensor-parallel group (Megatron-LM, arXiv 1909.08053). */
typedef enum { HK_TP_REPLICATED, HK_TP_SPLIT } hk_tp_rule;

/* The block a tensor belongs to: HK_BLOCK_EMBED, 0 .. layers-1, or `layers` for the head (final
 * norm and output projection). */
#define HK_BLOCK_EMBED (-1)

typedef struct {
  char name[72]; /* as in the Hugging Face checkpoint: "model.layers.3.mlp.up_proj.weight" */
  int64_t numel; /* of the whole tensor, before any split */
  int block;     /* see HK_BLOCK_EMBED */
  hk_tp_rule tp;
} hk_tensor;

typedef struct {
  char name[96];
  hk_arch arch;
  hk_layout layout;
  int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab;
  int64_t max_positions; /* longest sequence the model was made for; 0: not stated */
  bool tied;             /* output projection shares the embedding */
  bool gated;            /* SwiGLU: three matrices in the MLP; else two */
  bool qkv_bias, o_bias, mlp_bias;
  bool causal_half;   /* attention kernels that skip the masked half are not assumed: false */
  hk_tensor *tensors; /* in registration order: embedding, layers, head */
  size_t n_tensors;
  size_t embed_tensors, layer_tensors; /* every layer has as many, with the same sizes */
  int64_t parameters;                  /* sum over tensors; a tied output projection counts once */
  cJSON *config; /* the config.json it came from, kept so that a plan is self-contained */
} hk_model;

/* Reads NAME|FILE (see hk_share_resolve), of a folder its config.json. `model` need not be
 * initialised; free with hk_model_free, which is safe on a zeroed model. Errors name the file and
 * the key. */
hk_status hk_model_load(const char *name_or_file, hk_model *model, hk_error *err);
/* From a parsed config.json, which is copied. */
hk_status hk_model_from_config(const cJSON *config, const char *name, hk_model *model,
                               hk_error *err);
/* Fills the tensors and the counts from the shape above them; what hk_model_from_config calls
 * last. HK_INPUT if the parameters reach 2^53, up to where a double counts them exactly. */
hk_status hk_model_build_tensors(hk_model *model, hk_error *err);
void hk_model_free(hk_model *model);

const char *hk_arch_name(hk_arch arch); /* "LlamaForCausalLM" */

/* Parameters of one block on one of `tp` tensor-parallel ranks (block as in hk_tensor). */
int64_t hk_model_block_parameters(const hk_model *model, int block, int tp);
/* Parameters of one tensor-parallel rank: the sum of the above. */
int64_t hk_model_rank_parameters(const hk_model *model, int tp);

/* -- Arithmetic ------------------------------------------------------------------------------
 * Floating-point operations of the forward pass of one block for `micro_batch` sequences of `seq`
 * tokens on one of `tp` ranks. A multiply-add is two operations; matrix products only, as in
 * Narayanan et al., arXiv 2104.04473, section 5.1 and appendix:
 *   projections  2 x b x s x (matrix parameters of the block)
 *   attention    4 x b x s^2 x heads x head_dim   (Q K^T and A V, full square: the kernels that
 *                                                  skip the masked half do half of it)
 * The embedding block costs nothing; the head 2 x b x s x h x V. Backward is twice forward, and
 * with activation checkpointing a layer's forward is run once more. */
double hk_model_forward_flops(const hk_model *model, int block, int64_t micro_batch, int64_t seq,
                              int tp);

/* -- Activation memory -----------------------------------------------------------------------
 * Bytes that one block's forward leaves for its backward, bf16, on one rank: Korthikanti et al.,
 * arXiv 2205.05198, eq. 1 and 2 (34 s b h + 5 a s^2 b for GPT with dropout), re-derived per
 * tensor for the block at hand in model_cost.c (no dropout masks; SwiGLU; grouped queries;
 * flash-style attention keeps no s^2 term). With `checkpoint` a layer keeps its input only,
 * 2 s b h. The head keeps the inputs of its norm and its projection, and the logits in fp32 for the
 * loss; the embedding keeps nothing. Sizes beyond 2^62 bytes are reported as 2^62. */
hk_bytes hk_model_activation_bytes(const hk_model *model, int block, int64_t micro_batch,
                                   int64_t seq, int tp, bool checkpoint);
/* What exists besides, while one block's backward runs: the recomputed activations when
 * checkpointing, and the gradients of the largest intermediate. */
hk_bytes hk_model_backward_workspace_bytes(const hk_model *model, int block, int64_t micro_batch,
                                           int64_t seq, int tp, bool checkpoint);

/* -- Subgroups -------------------------------------------------------------------------------
 * The unit of scheduling: a contiguous run of one rank's flattened parameters. */
typedef struct {
  int64_t offset; /* first parameter, in the rank's flat order */
  int64_t numel;
} hk_subgroup;

typedef enum {
  HK_SUBGROUP_SOFT,  /* DeepSpeed ZeRO-3: tensors are never split; a subgroup closes once it has
                        reached the size (or the parameters end). Each tensor contributes
                        ceil(numel / dp), as ZeRO-3 pads it */
  HK_SUBGROUP_EXACT, /* every subgroup has exactly the size; the last one the rest */
} hk_subgroup_rule;

/* What one tensor puts into a rank's flat order: its part on one of `tp` ranks (rounded up where it
 * is split), divided by `dp` and rounded up again. */
int64_t hk_tensor_share(const hk_tensor *tensor, int tp, int dp);

/* One rank's subgroups. *out is the caller's (free). HK_INPUT if `size`, `tp` or `dp` is below 1
 * or that makes more than 2^20 subgroups. */
hk_status hk_model_subgroups(const hk_model *model, int tp, int dp, hk_subgroup_rule rule,
                             int64_t size, hk_subgroup **out, size_t *n, hk_error *err);

/* Where a block lies in the same flat order: *begin to *end on one of dp ranks. Both rules share
 * it (ceil(numel / dp) a tensor), so subgroup and block intervals can be intersected. */
void hk_model_block_interval(const hk_model *model, int block, int tp, int dp, int64_t *begin,
                             int64_t *end);

#endif
