/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter tensors of a model, in the order in which its framework registers them. That order
 * decides what a ZeRO-3 subgroup contains. */
#include "core/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/model_shape.h"

#define MAX_PARTS      48
#define MAX_PARAMETERS (1LL << 53)
#define MAX_KINDS      64

/* The tensors of one block, named from the block on: "mlp.up_proj.weight". */
typedef struct {
  char name[72];
  int64_t numel;
  hk_tp_rule tp;
  int64_t in, matrices;
  bool row_parallel, experts;
} part;

typedef struct {
  part items[MAX_PARTS];
  size_t n;
  double parameters, active; /* in floating point: a sum too large for int64 is refused later */
} part_list;

/* -- The tensors of a block ------------------------------------------------------------------- */

static void add_part(part_list *parts, const hk_row *row, const char *suffix, int64_t numel,
                     bool split, double active) {
  part *added = &parts->items[parts->n++];
  snprintf(added->name, sizeof added->name, "%s%s", row->name, suffix);
  added->numel = numel;
  added->tp = split ? HK_TP_SPLIT : HK_TP_REPLICATED;
  added->experts = row->kind == HK_ROW_EXPERTS;
  parts->parameters += (double)numel;
  parts->active += (double)numel * active;
}

static void add_row(const hk_shape *shape, const hk_row *row, part_list *parts) {
  const bool experts = row->kind == HK_ROW_EXPERTS, norm = row->kind == HK_ROW_NORM;
  const int64_t times = experts ? shape->size[HK_EXPERTS] : 1;
  const int64_t in = shape->size[row->in], out = shape->size[row->out];
  const double active = experts ? (double)shape->size[HK_CHOSEN] / (double)times : 1;
  const bool plain = experts || row->kind == HK_ROW_TABLE; /* the name is the tensor's */
  add_part(parts, row, plain ? "" : ".weight", times * in * out, row->split != HK_WHOLE, active);
  if (experts || row->kind == HK_ROW_LINEAR || row->kind == HK_ROW_OTHER) {
    part *matrix = &parts->items[parts->n - 1];
    matrix->in = in;
    matrix->matrices = times;
    matrix->row_parallel = row->split == HK_ROW;
  }
  if ((row->bias & shape->flags) == 0) return;
  add_part(parts, row, plain ? "_bias" : ".bias", times * (norm ? in : out),
           row->split == HK_COLUMN, active);
}

static void list_parts(const hk_shape *shape, const hk_row *rows, uint64_t flags,
                       part_list *parts) {
  *parts = (part_list){0};
  for (const hk_row *row = rows; row->kind != HK_ROW_END; row++)
    if (hk_row_exists(row, flags)) add_row(shape, row, parts);
}

/* -- Kinds of layers -------------------------------------------------------------------------- */

/* What is known while a model is put together. */
typedef struct {
  const hk_shape *shape;
  uint64_t flags[MAX_KINDS];
  part_list parts[MAX_KINDS + 2]; /* of each kind, the embedding and the head */
} build;

static void find_kinds(hk_model *model, build *b, const hk_lists *lists) {
  for (int64_t i = 0; i < model->layers; i++) {
    const uint64_t flags = hk_shape_layer_flags(b->shape, lists, i);
    int kind = 0;
    while (kind < model->n_kinds && b->flags[kind] != flags) kind++;
    if (kind == model->n_kinds) {
      b->flags[model->n_kinds++] = flags;
      model->kinds[kind].first = i;
    }
    model->kind_of[i] = (uint8_t)kind;
    model->kinds[kind].blocks++;
  }
}

static void fill_kinds(hk_model *model, build *b) {
  const hk_family *family = b->shape->family;
  hk_block_kind *kinds = model->kinds, *embedding = &kinds[model->n_kinds], *head = embedding + 1;
  for (int k = 0; k < model->n_kinds; k++) {
    list_parts(b->shape, family->layer, b->flags[k], &b->parts[k]);
    hk_layer_cost(b->shape, b->flags[k], &kinds[k]);
  }
  list_parts(b->shape, family->embedding, b->shape->flags, &b->parts[model->n_kinds]);
  list_parts(b->shape, family->head, b->shape->flags, &b->parts[model->n_kinds + 1]);
  hk_edge_costs(b->shape, embedding, head);
  embedding->blocks = head->blocks = 1;
}

static hk_status count(hk_model *model, const build *b, hk_error *err) {
  double parameters = 0, active = 0;
  for (int k = 0; k < model->n_kinds + 2; k++) {
    hk_block_kind *kind = &model->kinds[k];
    kind->n_tensors = b->parts[k].n;
    model->n_tensors += kind->n_tensors * (size_t)kind->blocks;
    parameters += (double)kind->blocks * b->parts[k].parameters;
    active += (double)kind->blocks * b->parts[k].active;
  }
  if (parameters >= (double)MAX_PARAMETERS)
    return hk_fail(err, HK_INPUT,
                   "the sizes given make %.3g parameters; a model must have fewer than 2^53 "
                   "(about 9e15)",
                   parameters);
  for (int k = 0; k < model->n_kinds + 2; k++) {
    model->kinds[k].parameters = (int64_t)b->parts[k].parameters;
    model->kinds[k].active = (int64_t)(b->parts[k].active + 0.5);
  }
  model->parameters = (int64_t)parameters;
  model->active = (int64_t)(active + 0.5);
  return HK_OK;
}

/* -- Putting a model together ----------------------------------------------------------------- */

static void append(hk_model *model, size_t *n, const part_list *parts, const char *prefix,
                   int block) {
  model->first_tensor[block - HK_BLOCK_EMBED] = *n;
  for (size_t i = 0; i < parts->n; i++) {
    hk_tensor *tensor = &model->tensors[(*n)++];
    const char *name = parts->items[i].name;
    const bool absolute = name[0] == '/';
    snprintf(tensor->name, sizeof tensor->name, "%s%s", absolute ? "" : prefix, name + absolute);
    tensor->numel = parts->items[i].numel;
    tensor->tp = parts->items[i].tp;
    tensor->in = parts->items[i].in;
    tensor->matrices = parts->items[i].matrices;
    tensor->row_parallel = parts->items[i].row_parallel;
    tensor->expert_ranks = parts->items[i].experts;
    tensor->block = block;
  }
}

/* A body by itself is not a member of a model: its tensors are "layers.0...", not
 * "model.layers.0...". */
static void shorten_names(hk_model *model, const hk_shape *shape) {
  const hk_family *family = shape->family;
  if (!(shape->flags & HK_BODY) || shape->flags & HK_SCORE || family->decoder_layers) return;
  const size_t member = strcspn(family->layers, ".") + 1;
  for (size_t i = 0; i < model->n_tensors; i++) {
    char *name = model->tensors[i].name;
    memmove(name, name + member, strlen(name + member) + 1);
  }
}

static void append_all(hk_model *model, const build *b) {
  const hk_family *family = b->shape->family;
  const int64_t encoder = b->shape->size[HK_LAYERS];
  size_t n = 0;
  append(model, &n, &b->parts[model->n_kinds], "", HK_BLOCK_EMBED);
  for (int64_t i = 0; i < model->layers; i++) {
    char prefix[48];
    const bool decoder = i >= encoder;
    snprintf(prefix, sizeof prefix, "%s.%lld.", decoder ? family->decoder_layers : family->layers,
             (long long)(decoder ? i - encoder : i));
    append(model, &n, &b->parts[model->kind_of[i]], prefix, (int)i);
  }
  append(model, &n, &b->parts[model->n_kinds + 1], "", (int)model->layers);
  model->first_tensor[model->layers + 2] = n;
  shorten_names(model, b->shape);
}

static void fill_sizes(hk_model *model, const hk_shape *shape) {
  const int64_t *size = shape->size;
  model->layers = size[HK_LAYERS] + size[HK_DECODER_LAYERS];
  model->hidden = size[HK_HIDDEN];
  model->ffn = size[HK_FFN];
  model->heads = size[HK_HEADS];
  model->kv_heads = size[HK_KV_HEADS];
  model->head_dim = size[HK_HEAD_DIM];
  model->vocab = size[HK_VOCAB];
  model->logits = shape->flags & HK_BODY ? 0 : model->vocab;
  model->max_positions = size[HK_POSITIONS];
  model->experts = size[HK_EXPERTS];
  model->experts_per_token = size[HK_CHOSEN];
  model->shared_ffn = size[HK_SHARED_FFN];
  model->expert_ffn = size[HK_EXPERTS] > 0 ? size[HK_EXPERT_FFN] : 0;
  model->tied = shape->flags & HK_TIED;
  model->gated = shape->flags & HK_GATED;
  model->once = shape->flags & HK_ONCE;
}

static hk_status allocate(void **out, size_t n, size_t size, hk_error *err) {
  *out = calloc(n, size);
  return *out ? HK_OK : hk_fail_memory(err, n * size, "the tensor list");
}

static hk_status fill(hk_model *model, build *b, const hk_lists *lists, hk_error *err) {
  const size_t layers = (size_t)model->layers;
  HK_TRY(allocate((void **)&model->kinds, MAX_KINDS + 2, sizeof *model->kinds, err));
  HK_TRY(allocate((void **)&model->kind_of, layers, sizeof *model->kind_of, err));
  HK_TRY(allocate((void **)&model->first_tensor, layers + 3, sizeof *model->first_tensor, err));
  find_kinds(model, b, lists);
  fill_kinds(model, b);
  HK_TRY(count(model, b, err));
  HK_TRY(allocate((void **)&model->tensors, model->n_tensors, sizeof *model->tensors, err));
  append_all(model, b);
  return HK_OK;
}

hk_status hk_model_build(hk_model *model, const hk_shape *shape, const hk_lists *lists,
                         hk_error *err) {
  fill_sizes(model, shape);
  build *b = calloc(1, sizeof *b);
  if (!b) return hk_fail_memory(err, sizeof *b, "a model's blocks");
  b->shape = shape;
  const hk_status status = fill(model, b, lists, err);
  free(b);
  return status;
}
