/* SPDX-License-Identifier: Apache-2.0 */
/* Models of which only a part is trained. The list of tensors, and with it subgroups, gradients and
 * state, holds the trained parameters. Frozen ones are counted for each kind of block: as bytes of
 * weights, and as products for which backward computes no gradient of weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/model/model.h"

#define KEY       "hocket_trainable" /* in the model's config */
#define MOST_RANK 65536

/* -- What a tensor becomes -------------------------------------------------------------------- */

typedef struct {
  const hk_frozen_spec *spec;
  hk_model *model;
  hk_frozen_kind *kind;       /* of the tensor's block; counts all of its layers' tensors once */
  hk_block_kind *cost;        /* NULL: another block of the kind has been counted */
  size_t matched;             /* tensors with adapters */
  hk_tensor *tensors, *added; /* the new list, and the end of it */
} hk_freezing;

static void freeze(hk_freezing *f, const hk_tensor *tensor, int64_t numel) {
  if (f->cost == NULL) return;
  *(tensor->tp == HK_TP_SPLIT ? &f->kind->split : &f->kind->whole) += numel;
}

static void train(hk_freezing *f, const hk_tensor *like, const char *name, int64_t numel,
                  hk_tp_rule tp) {
  hk_tensor *tensor = f->added++;
  *tensor = *like;
  snprintf(tensor->name, sizeof tensor->name, "%.140s", name);
  tensor->numel = numel;
  tensor->tp = tp;
  f->model->parameters += numel;
}

/* The same share of every tensor. */
static void train_share(hk_freezing *f, const hk_tensor *tensor) {
  const double share = ceil(f->spec->share * (double)tensor->numel);
  const int64_t trained = hk_max(1, hk_min(tensor->numel, (int64_t)share));
  train(f, tensor, tensor->name, trained, tensor->tp);
  freeze(f, tensor, tensor->numel - trained);
}

/* "model.layers.0.self_attn.q_proj.weight": `stem` gets the name without ".weight". Returns the
 * last part, "q_proj". */
static const char *last_part(const hk_tensor *tensor, char *stem, size_t size) {
  static const char suffix[] = ".weight";
  snprintf(stem, size, "%s", tensor->name);
  const size_t length = strlen(stem), n = sizeof suffix - 1;
  if (length > n && strcmp(stem + length - n, suffix) == 0) stem[length - n] = '\0';
  const char *dot = strrchr(stem, '.');
  return dot ? dot + 1 : stem;
}

static bool is_listed(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; *at != '\0'; at += *at == ',') {
    const size_t n = strcspn(at, ",");
    if (n == length && strncmp(at, word, n) == 0) return true;
    at += n;
  }
  return false;
}

static bool is_target(const hk_freezing *f, const hk_tensor *tensor, const char *word) {
  const bool layer = tensor->block >= 0 && tensor->block < (int)f->model->layers;
  if (tensor->in == 0 || !layer) return false;
  return f->spec->targets ? is_listed(f->spec->targets, word) : tensor->matrices == 1;
}

/* Beside a matrix of in x out, A of in x rank and B of rank x out (arXiv 2106.09685). Under tensor
 * parallelism the one at the side that is split is split, too. Forward keeps the rank values
 * between them for backward. */
static void adapt(hk_freezing *f, const hk_tensor *tensor, const char *stem) {
  const int64_t rank = f->spec->rank, times = tensor->matrices;
  const int64_t in = tensor->in, out = tensor->numel / (in * times);
  const bool split = tensor->tp == HK_TP_SPLIT, row = tensor->row_parallel;
  char name[sizeof tensor->name + 16];
  snprintf(name, sizeof name, "%s.lora_A.weight", stem);
  train(f, tensor, name, times * rank * in, split && row ? HK_TP_SPLIT : HK_TP_REPLICATED);
  snprintf(name, sizeof name, "%s.lora_B.weight", stem);
  train(f, tensor, name, times * rank * out, split && !row ? HK_TP_SPLIT : HK_TP_REPLICATED);
  f->matched++;
  if (f->cost == NULL) return;
  const double active = times > 1 ? (double)f->model->experts_per_token : 1;
  hk_tp_amount *products = &f->cost->products;
  *(split && row ? &products->split : &products->whole) += active * (double)(rank * in);
  *(split && !row ? &products->split : &products->whole) += active * (double)(rank * out);
  f->cost->kept.whole += active * 2 * (double)rank;
}

static void replace(hk_freezing *f, const hk_tensor *tensor) {
  char stem[sizeof tensor->name];
  if (f->spec->rank == 0) {
    train_share(f, tensor);
    return;
  }
  freeze(f, tensor, tensor->numel);
  const char *word = last_part(tensor, stem, sizeof stem);
  if (is_target(f, tensor, word)) adapt(f, tensor, stem);
}

/* -- The model -------------------------------------------------------------------------------- */

static int kind_of(const hk_model *model, int block) {
  if (block == HK_BLOCK_EMBED) return model->n_kinds;
  return block == (int)model->layers ? model->n_kinds + 1 : model->kind_of[block];
}

static bool is_first(const hk_model *model, int kind, int block) {
  return kind >= model->n_kinds || model->kinds[kind].first == block;
}

/* Products with frozen weights: all, before those of adapters are added, or all but the share. */
static void count_products(hk_freezing *f, int kind) {
  const hk_block_kind *cost = &f->model->kinds[kind];
  const double frozen = f->spec->rank > 0 ? 1 : 1 - f->spec->share;
  f->kind->products.whole = frozen * cost->products.whole;
  f->kind->products.split = frozen * cost->products.split;
  f->kind->other_products = frozen * cost->other_products;
}

static void replace_all(hk_freezing *f) {
  hk_model *m = f->model;
  m->parameters = 0;
  for (int block = HK_BLOCK_EMBED; block <= (int)m->layers; block++) {
    const int kind = kind_of(m, block);
    const size_t begin = m->first_tensor[block - HK_BLOCK_EMBED];
    const size_t end = m->first_tensor[block - HK_BLOCK_EMBED + 1];
    const int64_t before = m->parameters;
    const hk_tensor *added = f->added;
    f->kind = &m->frozen[kind];
    const bool first = is_first(m, kind, block);
    f->cost = first ? &m->kinds[kind] : NULL;
    if (first) count_products(f, kind);
    for (size_t i = begin; i < end; i++) replace(f, &m->tensors[i]);
    m->first_tensor[block - HK_BLOCK_EMBED] = (size_t)(added - f->tensors);
    m->kinds[kind].n_tensors = (size_t)(f->added - added);
    m->kinds[kind].parameters = m->parameters - before;
    m->frozen_parameters += m->frozen[kind].split + m->frozen[kind].whole;
  }
  m->n_tensors = m->first_tensor[m->layers + 2] = (size_t)(f->added - f->tensors);
}

/* Every word of the list must be the name of a matrix. */
static hk_status check_targets(const hk_model *model, const hk_frozen_spec *spec, hk_error *err) {
  char word[80], stem[sizeof model->tensors->name];
  for (const char *at = spec->targets; at && *at != '\0'; at += *at == ',') {
    const size_t n = strcspn(at, ",");
    snprintf(word, sizeof word, "%.*s", (int)n, at);
    at += n;
    bool found = false;
    for (size_t i = 0; i < model->n_tensors && !found; i++) {
      const hk_tensor *tensor = &model->tensors[i];
      const bool layer = tensor->block >= 0 && tensor->block < (int)model->layers;
      found = layer && tensor->in > 0 && strcmp(last_part(tensor, stem, sizeof stem), word) == 0;
    }
    if (!found)
      return hk_fail(err, HK_INPUT,
                     "no matrix in the layers of %s is called '%s'; 'hocket model show --tensors' "
                     "lists the tensors",
                     model->name, word);
  }
  return HK_OK;
}

/* Adapters may be larger than their matrices: in floating point, as their number may be too large
 * for int64. */
static hk_status check_adapters(const hk_model *model, const hk_frozen_spec *spec, hk_error *err) {
  double parameters = 0;
  for (size_t i = 0; i < model->n_tensors; i++) {
    const hk_tensor *tensor = &model->tensors[i];
    if (tensor->in == 0) continue;
    const double inputs = (double)tensor->in * (double)tensor->matrices;
    parameters += (double)spec->rank * (inputs + (double)tensor->numel / (double)tensor->in);
  }
  if (parameters < 0x1p53) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "adapters of rank %lld beside the matrices of %s: 2^53 or more parameters",
                 (long long)spec->rank, model->name);
}

static hk_status check_spec(const hk_model *model, const hk_frozen_spec *spec, hk_error *err) {
  if (model->blocks != NULL)
    return hk_fail(err, HK_INPUT,
                   "%s is a list of tensors: it states what is trained; list its adapters, and "
                   "\"frozen_bytes\" of each block",
                   model->name);
  if ((spec->rank > 0) == (spec->share > 0))
    return hk_fail(err, HK_INPUT, "frozen parameters: expected either a share or a rank");
  if (spec->share > 1 || spec->rank > MOST_RANK)
    return hk_fail(err, HK_INPUT, "share %g, rank %lld: expected at most 1 and %d", spec->share,
                   (long long)spec->rank, MOST_RANK);
  if (!(spec->bytes >= 0.125 && spec->bytes <= 4))
    return hk_fail(err, HK_INPUT, "frozen_bytes: expected a number from 0.125 to 4, got %g",
                   spec->bytes);
  HK_TRY(check_adapters(model, spec, err));
  return check_targets(model, spec, err);
}

static hk_status apply(hk_model *model, const hk_frozen_spec *spec, hk_error *err) {
  HK_TRY(check_spec(model, spec, err));
  const size_t kinds = (size_t)model->n_kinds + 2, most = 2 * model->n_tensors;
  model->position_table = hk_model_has_position_table(model);
  model->frozen = calloc(kinds, sizeof *model->frozen);
  hk_tensor *tensors = calloc(most, sizeof *tensors);
  if (model->frozen == NULL || tensors == NULL) {
    free(tensors);
    return hk_fail_memory(err, most * sizeof *tensors, "the tensor list");
  }
  hk_freezing f = {.spec = spec, .model = model, .tensors = tensors, .added = tensors};
  model->frozen_bytes = spec->bytes;
  replace_all(&f);
  free(model->tensors);
  model->tensors = tensors;
  if (model->n_tensors > 0) return HK_OK;
  return hk_fail(err, HK_INPUT, "%s has no matrices for adapters", model->name);
}

/* -- Its config ------------------------------------------------------------------------------- */

hk_status hk_model_read_frozen(hk_model *model, hk_error *err) {
  const cJSON *o = cJSON_GetObjectItemCaseSensitive(model->config, KEY);
  hk_frozen_spec spec = {0};
  if (o == NULL) return HK_OK;
  if (!cJSON_IsObject(o)) return hk_fail(err, HK_INPUT, "key '" KEY "': expected an object");
  static const char *const keys[] = {"share", "lora_rank", "lora_targets", "frozen_bytes"};
  HK_TRY(hk_json_known(o, KEY, keys, sizeof keys / sizeof *keys, err));
  HK_TRY(hk_json_double_or(o, "share", 0, 1, 0, &spec.share, err));
  HK_TRY(hk_json_int_or(o, "lora_rank", 0, MOST_RANK, 0, &spec.rank, err));
  HK_TRY(hk_json_double_or(o, "frozen_bytes", 0.125, 4, 2, &spec.bytes, err));
  if (cJSON_GetObjectItemCaseSensitive(o, "lora_targets") != NULL)
    HK_TRY(hk_json_string(o, "lora_targets", &spec.targets, err));
  return apply(model, &spec, err);
}

static bool add_spec(cJSON *config, const hk_frozen_spec *spec) {
  cJSON *o = cJSON_AddObjectToObject(config, KEY);
  if (o == NULL) return false;
  if (spec->rank > 0 && !cJSON_AddNumberToObject(o, "lora_rank", (double)spec->rank)) return false;
  if (spec->share > 0 && !cJSON_AddNumberToObject(o, "share", spec->share)) return false;
  if (spec->targets && !cJSON_AddStringToObject(o, "lora_targets", spec->targets)) return false;
  return cJSON_AddNumberToObject(o, "frozen_bytes", spec->bytes) != NULL;
}

hk_status hk_model_freeze(hk_model *model, const hk_frozen_spec *spec, hk_error *err) {
  if (cJSON_GetObjectItemCaseSensitive(model->config, KEY) != NULL)
    return hk_fail(err, HK_INPUT, "the config of %s has '" KEY "' already", model->name);
  HK_TRY(check_spec(model, spec, err));
  if (!add_spec(model->config, spec)) return hk_fail_memory(err, sizeof(cJSON), "a configuration");
  return hk_model_read_frozen(model, err);
}

/* -- Sizes ------------------------------------------------------------------------------------ */

static double divided_up(double numel, int by) {
  return ceil(numel / by);
}

static double kind_bytes(const hk_model *model, const hk_frozen_kind *kind, int tp, int dp) {
  const double on_rank = (double)kind->whole + divided_up((double)kind->split, tp);
  return ceil(divided_up(on_rank, dp) * model->frozen_bytes);
}

hk_bytes hk_model_frozen_bytes(const hk_model *model, int block, int tp, int dp) {
  if (model->blocks != NULL)
    return (hk_bytes)divided_up((double)model->blocks[block - HK_BLOCK_EMBED].frozen_bytes, dp);
  if (model->frozen == NULL) return 0;
  return (hk_bytes)kind_bytes(model, &model->frozen[kind_of(model, block)], tp, dp);
}

hk_bytes hk_model_all_frozen_bytes(const hk_model *model, int tp, int dp) {
  hk_bytes sum = 0;
  if (model->blocks != NULL) {
    for (int block = HK_BLOCK_EMBED; block <= (int)model->layers; block++)
      sum += hk_model_frozen_bytes(model, block, tp, dp);
    return sum;
  }
  for (int k = 0; model->frozen != NULL && k < model->n_kinds + 2; k++)
    sum += model->kinds[k].blocks * (hk_bytes)kind_bytes(model, &model->frozen[k], tp, dp);
  return sum;
}
