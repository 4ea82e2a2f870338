/* SPDX-License-Identifier: Apache-2.0 */
/* A model: its parameter tensors in order, by blocks, and the cost of a training step in arithmetic
 * and memory. It is given either as the shape of a kind of model that hocket knows (config.json),
 * from which the rest is derived, or as a document that lists tensors and blocks of any size
 * ("hocket.model/1", model_document.c). */
#ifndef HK_CORE_MODEL_MODEL_H
#define HK_CORE_MODEL_MODEL_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/units.h"

/* Kinds of models, each a row of the table in model_families.c. */
typedef enum {
  HK_ARCH_LLAMA,
  HK_ARCH_MISTRAL,
  HK_ARCH_QWEN2,
  HK_ARCH_QWEN3,
  HK_ARCH_GEMMA,
  HK_ARCH_GEMMA2,
  HK_ARCH_GEMMA3, /* its text part */
  HK_ARCH_PHI3,
  HK_ARCH_PHI,
  HK_ARCH_MIXTRAL,
  HK_ARCH_QWEN2_MOE,
  HK_ARCH_QWEN3_MOE,
  HK_ARCH_DEEPSEEK_V2,
  HK_ARCH_DEEPSEEK_V3,
  HK_ARCH_DEEPSEEK_V32,
  HK_ARCH_GPT_OSS,
  HK_ARCH_OLMO2,
  HK_ARCH_OLMO3,
  HK_ARCH_SMOLLM3,
  HK_ARCH_GRANITE,
  HK_ARCH_GLM4_MOE,
  HK_ARCH_LLAMA4, /* its text part */
  HK_ARCH_MLLAMA, /* Llama 3.2 vision's text part */
  HK_ARCH_FALCON,
  HK_ARCH_BLOOM,
  HK_ARCH_OPT,
  HK_ARCH_NEOX,
  HK_ARCH_GPTJ,
  HK_ARCH_GPT2,
  HK_ARCH_T5,
  HK_ARCH_VIT,
  HK_ARCH_LISTED, /* no shape: tensors and blocks are listed one by one */
} hk_arch;

/* How a layer's matrices are stored as tensors. Decides where a DeepSpeed subgroup can end. */
typedef enum {
  HK_LAYOUT_HF,       /* q, k, v, o, gate, up, down each a tensor (GPT-2: its own fused c_attn) */
  HK_LAYOUT_MEGATRON, /* norm, dense, fused qkv, norm, fused gate-up, down: the order in which
                         Megatron-DeepSpeed registers them, read off published subgroup sizes */
} hk_layout;

/* How a tensor is cut across a tensor-parallel group (Megatron-LM, arXiv 1909.08053). */
typedef enum { HK_TP_REPLICATED, HK_TP_SPLIT } hk_tp_rule;

/* The block a tensor belongs to: HK_BLOCK_EMBED, 0 .. layers-1, or `layers` for the head (final
 * norm and output projection). A model has layers + 2 blocks, in forward order. A listed model of B
 * blocks is numbered alike, its block b (from 0) as b - 1: it has B - 2 "layers". */
#define HK_BLOCK_EMBED (-1)

#define HK_MODEL_MOST_NOTES 6

/* Element types. */
typedef enum { HK_DTYPE_BF16, HK_DTYPE_FP16, HK_DTYPE_FP32, HK_DTYPE_COUNT } hk_dtype;

static inline int hk_dtype_bytes(hk_dtype type) {
  return type == HK_DTYPE_FP32 ? 4 : 2;
}

typedef struct {
  char name[160]; /* as named_parameters() of `transformers` 5 has it:
                     "model.layers.3.mlp.up_proj.weight" */
  int64_t numel;  /* of the whole tensor, before any split */
  int block;      /* see HK_BLOCK_EMBED */
  hk_tp_rule tp;
  hk_dtype weight_type, grad_type; /* on the GPU */
  int64_t in;        /* a matrix that multiplies tokens has `in` columns for its inputs; else 0 */
  int64_t matrices;  /* of in x out in the tensor: experts, or 1; 0 if `in` is 0 */
  bool row_parallel; /* a split matrix: its inputs are split, not its outputs */
  int expert_ranks;  /* of experts: ranks that divide it (expert parallelism), 1 or more; else 0 */
} hk_tensor;

/* A block of a listed model. Its costs are for one micro-step with the model's micro_batch and seq;
 * for other jobs they are scaled by the number of tokens. */
typedef struct {
  char name[72];
  double forward_flops, backward_flops; /* backward_flops 0: not stated, see hk_model_backward_flops
                                         */
  hk_bytes activations;                 /* saved by forward for backward */
  hk_bytes workspace;                   /* temporary memory of backward */
  hk_bytes frozen_bytes;                /* weights that are not trained */
  double forward_ms, backward_ms;       /* measured; 0: not measured, FLOPs are used */
  double forward_launch_ms, backward_launch_ms; /* the host's time to queue the kernels, whatever
                                                   the job; 0: not known, forward_ms includes it */
  size_t first_tensor, end_tensor;
  int64_t begin, numel; /* in the flat order of a single rank */
} hk_block;

/* A quantity on a tensor-parallel rank: `whole`, and 1/tp of `split`. */
typedef struct {
  double whole, split;
} hk_tp_amount;

/* Layers with the same tensors and costs; the embedding and the head are kinds of their own. */
typedef struct {
  size_t n_tensors;
  int64_t blocks, first; /* how many layers are of this kind, and the first of them */
  int64_t parameters;
  int64_t active;         /* without the experts that a token is not sent to */
  bool sparse, cross;     /* has experts; attends to another sequence */
  hk_tp_amount products;  /* parameters that multiply a token */
  double other_products;  /* that multiply a token of the other sequence, split */
  double attention_flops; /* of a query and a key of self-attention, split */
  double cross_flops;     /* the same for cross-attention */
  int64_t window;         /* keys that a query sees; 0: all */
  hk_tp_amount kept;      /* bytes a token that forward leaves for backward */
  double other_kept;      /* bytes a token of the other sequence, split */
  double input;           /* of `kept` bytes a token: the layer's input */
  double mlp_kept;        /* of `kept` bytes a token: the MLP's, split */
  hk_tp_amount gradients; /* bytes a token: widest gradients alive at once */
} hk_block_kind;

/* Frozen parameters of one block of a kind. */
typedef struct {
  int64_t split, whole;  /* parameters; split: 1/tp of them on each tensor-parallel rank */
  hk_tp_amount products; /* of hk_block_kind.products, those of frozen weights */
  double other_products;
} hk_frozen_kind;

/* Measured fraction of its rate at which the host queues kernels while a CPU team updates, for
 * teams of ascending sizes. */
#define HK_MOST_LAUNCH_SHARES 8
typedef struct {
  int n; /* 0: not known */
  int threads[HK_MOST_LAUNCH_SHARES];
  double share[HK_MOST_LAUNCH_SHARES];
} hk_launch_shares;
/* The fraction beside a team of `threads`: linear between two sizes, and that of the smallest or
 * the largest beyond. 0: not known. Example: 0.8 with 9 threads and 0.7 with 13: 0.775 with 10. */
double hk_launch_share(const hk_launch_shares *shares, int threads);

typedef struct {
  char name[96];
  hk_arch arch;
  hk_layout layout;
  int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab; /* layers: encoder and decoder */
  int64_t logits;        /* of a token: vocab; 0: no projection to the vocabulary */
  int64_t max_positions; /* longest sequence the model was made for; 0: not stated */
  int64_t experts, experts_per_token;
  int64_t expert_ffn, shared_ffn; /* of one expert; of the experts that all tokens go to. 0: none */
  bool tied;                      /* output projection shares the embedding */
  bool gated;                     /* SwiGLU: three matrices in the MLP; else two */
  int stages; /* of a pipeline: the tensors and layers are those of one stage, `parameters` and
                 `active` of all. 0 or 1: not cut */
  int expert_ranks; /* that divide the experts of a layer, see hk_model_divide_experts; 0 or 1: not
                       divided */
  bool once;        /* the head works on one position of a sequence (ViT) */
  bool causal_half; /* attention kernels skip the masked half; always false at present */
  hk_tensor *tensors; /* that are trained, in registration order: embedding, layers, head */
  size_t n_tensors;
  hk_block_kind *kinds; /* n_kinds of layers, then the embedding's and the head's; NULL: listed */
  int n_kinds;
  uint8_t *kind_of;         /* of each layer */
  size_t *first_tensor;     /* of each block, from the embedding on, and n_tensors */
  int64_t other_tokens;     /* of another sequence that cross-attention reads (an image); 0: as many
                               as `seq` */
  hk_block *blocks;         /* of a listed model: layers + 2 of them; else NULL */
  int64_t micro_batch, seq; /* that the blocks' figures are for; listed models only */
  hk_launch_shares launch_beside_update; /* listed models only */
  bool mixed_types;                      /* some weights or gradients do not have two bytes */
  int64_t parameters; /* sum over tensors; a tied output projection counts once */
  int64_t frozen_parameters;
  hk_frozen_kind *frozen; /* of each of `kinds`; NULL: all parameters are trained */
  double frozen_bytes;    /* of a frozen parameter on the GPU */
  bool position_table;    /* see hk_model_has_position_table; set if parameters are frozen */
  int64_t active;         /* parameters that a token uses: experts that are not chosen left out.
                             All parameters are updated */
  char *notes[HK_MODEL_MOST_NOTES]; /* sentences about what was assumed or not used */
  int n_notes;
  cJSON *config; /* the config.json or document it came from, kept so that a plan is
                    self-contained */
  struct hk_model_owners *owners; /* private: models that share what the pointers lead to */
} hk_model;

/* Reads NAME|FILE (see hk_share_resolve); for a folder its config.json. `model` need not be
 * initialised. Free with hk_model_free, safe on a zeroed model. Errors name the file and the key.
 */
hk_status hk_model_load(const char *name_or_file, hk_model *model, hk_error *err);
/* Whether a parsed config.json names a kind of model that hocket does not know. */
bool hk_model_is_foreign(const cJSON *config);
/* From a parsed config.json or model document, which is copied. */
hk_status hk_model_from_config(const cJSON *config, const char *name, hk_model *model,
                               hk_error *err);

/* A model known by its size only: as many layers and hidden as given, and an MLP as wide as the
 * parameters leave it. heads and vocab: 0 for the usual. The model's note says what was assumed;
 * HK_INPUT, with a shape that would do, if there is no such model. */
typedef struct {
  int64_t parameters, layers, hidden, heads, vocab;
} hk_model_size;
hk_status hk_model_from_size(const hk_model_size *size, hk_model *model, hk_error *err);

/* Part of a model is trained: `share` of every tensor, or LoRA adapters of `rank` beside matrices
 * of the layers. Frozen weights stay on the GPU, with `bytes` each (2; 0.5 with 4 bits), and have
 * no gradients and no state. Backward computes gradients of activations through them. */
typedef struct {
  double share;        /* above 0, at most 1; 0: LoRA */
  int64_t rank;        /* 0: a share */
  const char *targets; /* LoRA: names of matrices, "q_proj,v_proj"; NULL: all but experts */
  double bytes;
} hk_frozen_spec;
/* Applies to a model that was just read, not to a copy. Its config then says so, and with it plan
 * files. HK_INPUT for listed models: they list what is trained. */
hk_status hk_model_freeze(hk_model *model, const hk_frozen_spec *spec, hk_error *err);
/* Private to core/model/: freezes what the model's config says. */
hk_status hk_model_read_frozen(hk_model *model, hk_error *err);

#define HK_MODEL_MOST_STAGES 1024
/* Cuts a model that was just read into pipeline stages, of which it becomes the fullest: the last
 * layers / stages layers (rounded up), the embedding's tensors, which the first stage has (the last
 * one has as many in its projection), and the head's products and logits without its tensors. Its
 * config then says so. HK_INPUT for listed and frozen models, encoders with a decoder, and more
 * stages than layers. Nothing if `stages` is below 2. */
hk_status hk_model_stage(hk_model *model, int stages, hk_error *err);
/* Private to core/model/: cuts the model as its config says. */
hk_status hk_model_read_stages(hk_model *model, hk_error *err);

#define HK_MODEL_MOST_EXPERT_RANKS 1024
/* Divides the experts of each layer of a model that was just read among `ranks` ranks: each has all
 * tensors of experts / ranks experts, which tensor parallelism does not split. Its config then says
 * so. HK_INPUT for listed and frozen models, models without experts, and a number that does not
 * divide the experts. Nothing if `ranks` is below 2. */
hk_status hk_model_divide_experts(hk_model *model, int ranks, hk_error *err);
/* Private to core/model/: divides the experts as the model's config says. */
hk_status hk_model_read_expert_ranks(hk_model *model, hk_error *err);
/* Private to core/model/: adds to the config by how much the model is divided. HK_INPUT: the key is
 * there already. */
hk_status hk_model_note_division(hk_model *model, const char *key, int parts, hk_error *err);
/* Bytes of a block's experts (weights, or gradients) on one rank, before they are divided among
 * data-parallel ranks. */
hk_bytes hk_model_expert_bytes(const hk_model *model, int block, int tp);
/* Bytes of frozen weights of a block, and of all blocks, on one rank. */
hk_bytes hk_model_frozen_bytes(const hk_model *model, int block, int tp, int dp);
hk_bytes hk_model_all_frozen_bytes(const hk_model *model, int tp, int dp);
/* Whether the model has a table with a row for each position (GPT-2). It cannot train on longer
 * sequences; models with rotary positions can. */
bool hk_model_has_position_table(const hk_model *model);

/* The model document:
 *   { "schema": "hocket.model/1", "name": "mlp", "micro_batch": 4, "seq": 2048,
 *     "blocks":  [ {"name": "layer 0", "forward_flops": 1e12, "activation_bytes": 33554432,
 *                   "workspace_bytes": 0}, ... ],
 *     "tensors": [ {"name": "fc.weight", "numel": 4096, "block": 0, "weight_type": "bf16",
 *                   "grad_type": "bf16"}, ... ] }
 * Blocks in forward order, numbered from 0; tensors in the order of their blocks. A block may have
 * no tensors, and also "backward_flops", "frozen_bytes" (weights that are not trained) and measured
 * "forward_ms" and "backward_ms". With "forward_launch_ms" or "backward_launch_ms", the host's time
 * to queue a block's kernels, these are the GPU's times, and a block takes the longer of both. The
 * document may have "launch_beside_update", the fraction of its rate (0.01 to 1) at which the host
 * queues them while the CPU updates: [{"threads": 9, "share": 0.8}, {"threads": 13, "share": 0.7}],
 * or one number for teams of all sizes. Without it the machine's framework.launch_beside_update
 * counts. The types default to bf16, seq to 1. Sizes are one rank's, before data parallelism. */
bool hk_model_is_document(const cJSON *config);
hk_status hk_model_from_document(const cJSON *document, const char *name, hk_model *model,
                                 hk_error *err);
/* A listed model of `blocks` blocks with unknown costs, from an array of tensors: here `block`
 * counts from 0 and must not decrease, and `tp` is ignored. Copies everything. */
hk_status hk_model_from_tensors(const char *name, const hk_tensor *tensors, size_t n, int blocks,
                                hk_model *model, hk_error *err);

extern const char *const hk_dtype_names[HK_DTYPE_COUNT]; /* "bf16", "fp16", "fp32" */
/* Prepares a model for hk_model_copy. The functions that create models call it last. */
hk_status hk_model_own(hk_model *model, hk_error *err);
/* Makes *to another owner of the same model. */
void hk_model_share(const hk_model *from, hk_model *to);
void hk_model_free(hk_model *model);
/* A copy that shares tensors, blocks and config with the original: neither may change them. Each is
 * freed by itself, in any order and on any thread. */
hk_status hk_model_copy(const hk_model *from, hk_model *to, hk_error *err);

const char *hk_arch_name(hk_arch arch); /* "LlamaForCausalLM" */
/* The same of a model, or its part: "LlamaModel". */
const char *hk_model_architecture(const hk_model *model);

/* Tensors *first .. *end - 1 of a block (block as in hk_tensor). */
void hk_model_block_tensors(const hk_model *model, int block, size_t *first, size_t *end);
/* Costs of a block of a model that is not listed. */
const hk_block_kind *hk_model_block_kind(const hk_model *model, int block);
/* Parameters of one block on one of `tp` tensor-parallel ranks (block as in hk_tensor). */
int64_t hk_model_block_parameters(const hk_model *model, int block, int tp);
/* Parameters of one of tp x dp ranks: the length of its flat order. With dp 1 the sum of the above;
 * with dp > 1 each tensor adds its share of the tensor-parallel part, rounded up (hk_tensor_share).
 */
int64_t hk_model_rank_parameters(const hk_model *model, int tp, int dp);

/* -- Arithmetic ------------------------------------------------------------------------------
 * Floating-point operations of the forward pass of one block for `micro_batch` sequences of `seq`
 * tokens on one of `tp` ranks. A multiply-add is two operations; matrix products only, as in
 * Narayanan et al., arXiv 2104.04473, section 5.1 and appendix:
 *   projections  2 x b x s x (parameters of matrices; of experts those that a token is sent to)
 *   attention    4 x b x s^2 x heads x head_dim   (Q K^T and A V, full square: the kernels that
 *                                                  skip the masked half do half of it)
 *                4 x b x s x w x heads x head_dim in a layer with a window of w < s keys
 * A look-up costs nothing; the head 2 x b x s x h x V. Backward is twice forward, and with
 * activation checkpointing a layer's forward is run once more. An encoder and a decoder both work
 * on s tokens. Cross-attention to images reads the tokens of one image a sequence. */
double hk_model_forward_flops(const hk_model *model, int block, int64_t micro_batch, int64_t seq,
                              int tp);

/* Backward of one block: as a listed model states it, else 2 x forward, or 3 x forward for a layer
 * with `checkpoint`; less the products of frozen weights, whose gradients are not computed. */
double hk_model_backward_flops(const hk_model *model, int block, int64_t micro_batch, int64_t seq,
                               int tp, bool checkpoint);
/* Bytes of a layer's attention scores: one bf16 number for each head and pair of tokens of a
 * sequence. Implementations with flash attention never store them. */
double hk_model_score_bytes(const hk_model *model, int64_t micro_batch, int64_t seq, int tp);
/* Measured time of one block's forward or backward, scaled by the job's tokens; 0: not measured. */
hk_ns hk_model_measured_ns(const hk_model *model, int block, bool backward, int64_t micro_batch,
                           int64_t seq);
/* The host's time to queue the kernels of one block's forward or backward; 0: not known. It does
 * not depend on the number of tokens. */
hk_ns hk_model_launch_ns(const hk_model *model, int block, bool backward);

/* -- Activation memory -----------------------------------------------------------------------
 * Bytes that one block's forward leaves for its backward, bf16, on one rank: Korthikanti et al.,
 * arXiv 2205.05198, eq. 1 and 2 (34 s b h + 5 a s^2 b for GPT with dropout), re-derived per
 * tensor for the block at hand in model_layers.c (no dropout masks; SwiGLU; grouped queries;
 * flash-style attention keeps no s^2 term). With `checkpoint` a layer keeps its input only,
 * 2 s b h. The head keeps the inputs of its norm and its projection, and the logits in fp32 for the
 * loss; the embedding keeps nothing. Sizes beyond 2^62 bytes are reported as 2^62. */
hk_bytes hk_model_activation_bytes(const hk_model *model, int block, int64_t micro_batch,
                                   int64_t seq, int tp, bool checkpoint);
/* Temporary bytes while one block's backward runs: recomputed activations if checkpointing, and the
 * gradients of the widest intermediates. */
hk_bytes hk_model_backward_workspace_bytes(const hk_model *model, int block, int64_t micro_batch,
                                           int64_t seq, int tp, bool checkpoint);

/* -- Subgroups -------------------------------------------------------------------------------
 * The unit of scheduling: a contiguous run of one rank's flattened parameters. */
typedef struct {
  int64_t offset; /* first parameter, in the rank's flat order */
  int64_t numel;
} hk_subgroup;

typedef enum {
  HK_SUBGROUP_SOFT,   /* DeepSpeed ZeRO-3: tensors are never split; a subgroup closes once it has
                         reached the size (or the parameters end). Each tensor contributes
                         ceil(numel / dp), as ZeRO-3 pads it */
  HK_SUBGROUP_EXACT,  /* every subgroup has exactly the size; the last one the rest */
  HK_SUBGROUP_BLOCKS, /* a subgroup never spans blocks; a block larger than the size is cut into
                         equal pieces of at most the size (the last one may be shorter) */
} hk_subgroup_rule;

/* Parameters of a tensor in a rank's flat order: its part on one of `tp` ranks (rounded up if it is
 * split), divided by `dp` and rounded up again. Of experts that E ranks divide, E > 1: 1/E, divided
 * by the tp x dp / E ranks that have the same experts, unless dp is 1. */
int64_t hk_tensor_share(const hk_tensor *tensor, int tp, int dp);

/* Subgroups with state on the host under DeepSpeed's offload_optimizer.ratio (TwinFlow) since 0.18:
 * subgroups - int((1 - ratio) x subgroups). */
size_t hk_deepspeed_on_host(double ratio, size_t subgroups);

/* Bytes of weights, or of gradients, of parameters begin .. end - 1 of a rank's flat order. */
hk_bytes hk_model_weight_bytes(const hk_model *model, int tp, int dp, int64_t begin, int64_t end);
hk_bytes hk_model_grad_bytes(const hk_model *model, int tp, int dp, int64_t begin, int64_t end);

/* One rank's subgroups. *out is the caller's (free). HK_INPUT if `size`, `tp` or `dp` is below 1
 * or that makes more than 2^20 subgroups. */
hk_status hk_model_subgroups(const hk_model *model, int tp, int dp, hk_subgroup_rule rule,
                             int64_t size, hk_subgroup **out, size_t *n, hk_error *err);

/* Interval *begin .. *end - 1 of a block in the flat order of one of dp ranks. Subgroups of every
 * rule are intervals of the same order, so the two can be intersected. */
void hk_model_block_interval(const hk_model *model, int block, int tp, int dp, int64_t *begin,
                             int64_t *end);

/* The same of one block after the other, from HK_BLOCK_EMBED on: layers of a kind, which have the
 * same tensors, are added up once. Zero all but `model`, `tp` and `dp`. */
typedef struct {
  const hk_model *model;
  int tp, dp;
  int next;           /* blocks so far */
  int64_t begin, end; /* of the latest */
} hk_block_walk;

void hk_block_walk_next(hk_block_walk *walk);

#endif
