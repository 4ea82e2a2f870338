/* SPDX-License-Identifier: Apache-2.0 */
/* Private to core/model/: what hocket knows of each kind of model. A family is one row of a
 * table (model_families.c): the keys of its config.json and the rows of parameter tensors that its
 * embedding, its layers and its head have. Counts, FLOPs and the tensors' order follow from those
 * rows; what cannot follow from them (which activations are kept) is in model_layers.c. */
#ifndef HK_CORE_MODEL_MODEL_SHAPE_H
#define HK_CORE_MODEL_MODEL_SHAPE_H

#include "core/model/model.h"

/* Sizes of a shape: those that keys give, and those that follow from them (derive_... in
 * model_keys.c). A tensor has the product of two of them as its number of parameters. */
typedef enum {
  HK_ONE,
  HK_HIDDEN,
  HK_LAYERS, /* of an encoder and a decoder: the encoder's */
  HK_DECODER_LAYERS,
  HK_HEADS,
  HK_KV_HEADS,
  HK_HEAD_DIM,
  HK_FFN,
  HK_VOCAB,
  HK_POSITIONS,
  HK_EMBED_DIM,  /* width of the token embedding, if it differs from HK_HIDDEN (OPT-350m) */
  HK_EXPERTS,    /* 0: no experts */
  HK_CHOSEN,     /* experts that a token is sent to */
  HK_EXPERT_FFN, /* ffn of one expert */
  HK_SHARED,     /* experts that every token is sent to */
  HK_SHARED_FFN, /* their ffn together */
  HK_FIRST_DENSE,
  HK_SPARSE_STEP,
  HK_Q_RANK, /* multi-head latent attention (DeepSeek-V2, arXiv 2405.04434); 0: q is not compressed
              */
  HK_KV_RANK,
  HK_NOPE_DIM,
  HK_ROPE_DIM,
  HK_V_DIM,
  HK_INDEX_HEADS, /* of the indexer, which chooses the keys that a query sees (DeepSeek-V3.2) */
  HK_INDEX_DIM,
  HK_WINDOW,       /* keys that a query sees in a windowed layer; 0: no windows */
  HK_WINDOW_EVERY, /* n: every n-th layer has no window; 0: all layers have one */
  HK_WINDOW_FROM,  /* layers before this one have no window */
  HK_PARALLEL_NORMS,
  HK_BUCKETS, /* of the relative position bias (T5) */
  HK_IMAGE,
  HK_PATCH,
  HK_CHANNELS,
  HK_LABELS,
  /* Derived. */
  HK_Q, /* width of all queries, and so on */
  HK_K,
  HK_V,
  HK_O, /* width of attention's output before its projection */
  HK_QKV,
  HK_GATE_UP,        /* 2 x HK_FFN */
  HK_EXPERT_GATE_UP, /* 2 x HK_EXPERT_FFN */
  HK_KV_A,           /* HK_KV_RANK + HK_ROPE_DIM */
  HK_KV_B,           /* HK_HEADS x (HK_NOPE_DIM + HK_V_DIM) */
  HK_INDEX_Q,        /* HK_INDEX_HEADS x HK_INDEX_DIM */
  HK_EMBED_ROWS,     /* HK_VOCAB and rows that the output projection lacks */
  HK_POSITION_ROWS,
  HK_PATCH_VALUES, /* HK_CHANNELS x HK_PATCH^2 */
  HK_SIZES
} hk_size;

/* Properties of a model, then of one of its layers. */
#define HK_TIED         0x1ULL       /* the output projection is the embedding's matrix */
#define HK_QKV_BIAS     0x2ULL       /* projections to queries, keys and values have biases */
#define HK_O_BIAS       0x4ULL       /* attention's output projection has a bias */
#define HK_MLP_BIAS     0x8ULL       /* the MLP's projections have biases */
#define HK_QK_NORM      0x10ULL      /* queries and keys are normalised */
#define HK_GATED        0x20ULL      /* gated MLP: gate, up and down (SwiGLU, GeGLU) */
#define HK_PARALLEL     0x40ULL      /* attention and MLP read the same input */
#define HK_TWO_NORMS    0x80ULL      /* with HK_PARALLEL: each has a norm of its own before it */
#define HK_SANDWICH     0x100ULL     /* a norm before and after attention and MLP (Gemma 2) */
#define HK_POST_NORM    0x200ULL     /* no norm after the last layer */
#define HK_Q_LORA       0x400ULL     /* queries by two projections, through HK_Q_RANK values */
#define HK_LATENT       0x800ULL     /* multi-head latent attention */
#define HK_PROJECTED    0x1000ULL    /* embedding and hidden width differ: projections between */
#define HK_ONCE         0x2000ULL    /* the head works on one position of a sequence */
#define HK_HAS_WINDOW   0x4000ULL    /* the config turns its sliding window on */
#define HK_NEW_DECODER  0x8000ULL    /* Falcon's new_decoder_architecture */
#define HK_MULTI_QUERY  0x10000ULL   /* Falcon's multi_query: one head of keys and values */
#define HK_BIAS         0x20000ULL   /* Falcon, OPT: projections (OPT: norms, too) have biases */
#define HK_ALWAYS       0x80000ULL   /* set in every shape */
#define HK_WINDOWED     0x100000ULL  /* layer: attention within a sliding window */
#define HK_SPARSE       0x200000ULL  /* layer: experts instead of one MLP */
#define HK_CROSS        0x400000ULL  /* layer: cross-attention instead of self-attention */
#define HK_DECODER      0x800000ULL  /* layer: cross-attention in addition */
#define HK_FIRST        0x1000000ULL /* the first layer of the encoder or decoder */
#define HK_LAST_ENCODER 0x2000000ULL /* the last layer of the encoder */
/* What an architecture's name leaves out of the whole model. */
#define HK_BODY    0x4000000ULL  /* no projection to the vocabulary: LlamaModel */
#define HK_SCORE   0x8000000ULL  /* one to the labels instead: LlamaForSequenceClassification */
#define HK_ENCODER 0x10000000ULL /* no decoder: T5EncoderModel */

typedef enum {
  HK_ROW_END,
  HK_ROW_LINEAR,  /* in x out that multiplies each token: "NAME.weight", and a bias if `bias` is set
                   */
  HK_ROW_OTHER,   /* the same, but it multiplies the tokens of another sequence (an image) */
  HK_ROW_NORM,    /* `in` parameters: "NAME.weight", and a bias if `bias` is set */
  HK_ROW_TABLE,   /* in x out that multiplies nothing: a look-up, a gate. NAME as it is */
  HK_ROW_EXPERTS, /* experts x in x out: NAME, and "NAME_bias" */
} hk_row_kind;

/* Column-parallel projections split their output, bias included; row-parallel ones split their
 * input, so that every rank needs the whole bias (arXiv 1909.08053, section 3). */
typedef enum { HK_WHOLE, HK_COLUMN, HK_ROW } hk_row_split;

typedef struct {
  hk_row_kind kind;
  const char *name; /* of a layer's row: after the layer's prefix */
  hk_size in, out;
  hk_row_split split;
  uint64_t bias;         /* property with which it has a bias; 0: never */
  uint64_t when, unless; /* it exists if all of `when` and none of `unless` are set */
} hk_row;

typedef enum {
  HK_KEY_END,
  HK_KEY_SIZE,
  HK_KEY_FLAG,
  HK_KEY_LIST, /* read by functions of its own in model_keys.c, or only known: it changes nothing */
  HK_KEY_FIXED /* not read: it changes nothing if it has the value `fallback` */
} hk_key_kind;

#define HK_NEEDED (-1) /* fallback of a key that must be there */

typedef struct {
  hk_key_kind kind;
  const char *name, *alias; /* NULL name: the fallback is the size */
  hk_size size;
  uint64_t flag;
  int64_t fallback; /* where the key is absent or null; see derive_... in model_keys.c for what
                       0 becomes */
} hk_key;

typedef struct hk_shape hk_shape;

typedef struct {
  const char *type;         /* "qwen3_moe": model_type */
  const char *architecture; /* "Qwen3MoeForCausalLM" */
  const hk_key *keys;
  const hk_row *embedding, *layer, *head;
  const char *layers, *decoder_layers; /* "model.layers": prefixes of names */
  uint64_t flags;                      /* that all models of the type have */
} hk_family;

struct hk_shape {
  const hk_family *family;
  int64_t size[HK_SIZES];
  uint64_t flags;
};

const hk_family *hk_family_of(hk_arch arch);
/* By architecture, else by model_type; HK_ARCH_LISTED: neither is known. NULL: not given. */
hk_arch hk_family_find(const char *architecture, const char *type);
/* HK_BODY and so on of an architecture that is a part of the family's; 0: it is not. */
uint64_t hk_family_part(const hk_family *family, const char *architecture);
/* Names of all types, and how many. */
const char *const *hk_family_types(size_t *n);
/* The rows of the layout "megatron", for Llama's keys. */
extern const hk_family hk_family_megatron;

static inline bool hk_row_exists(const hk_row *row, uint64_t flags) {
  return (row->when & flags) == row->when && (row->unless & flags) == 0;
}

/* Reads the keys of one family into `shape`, of which `part` is there. Names all missing keys at
 * once. */
hk_status hk_shape_read(const cJSON *config, const cJSON *outer, const hk_family *family,
                        uint64_t part, hk_shape *shape, hk_error *err);
/* Lists of a config.json that say which layers differ; NULL: not given. */
typedef struct {
  const cJSON *layer_types, *dense, *cross;
} hk_lists;

hk_status hk_shape_read_lists(const cJSON *config, const hk_shape *shape, hk_lists *lists,
                              hk_error *err);
/* Properties of layer i: the shape's and its own. */
uint64_t hk_shape_layer_flags(const hk_shape *shape, const hk_lists *lists, int64_t i);
/* What the keys of `config` that nobody reads may change: adds notes to the model. */
hk_status hk_shape_note_unused(const cJSON *config, const hk_family *family, hk_model *model,
                               hk_error *err);

/* Fills the model's sizes, kinds of layers, tensors and their costs. HK_INPUT if the parameters
 * reach 2^53, up to where a double counts them exactly. */
hk_status hk_model_build(hk_model *model, const hk_shape *shape, const hk_lists *lists,
                         hk_error *err);
/* Costs of a layer with these properties, of the embedding and of the head. */
void hk_layer_cost(const hk_shape *shape, uint64_t flags, hk_block_kind *kind);
void hk_edge_costs(const hk_shape *shape, hk_block_kind *embedding, hk_block_kind *head);

/* Adds a note, printf-like. */
hk_status hk_model_note(hk_model *model, hk_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
