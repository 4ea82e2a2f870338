/* SPDX-License-Identifier: Apache-2.0 */
/* A model of which only its size is known: shaped like Llama, with an MLP as wide as the number of
 * parameters leaves it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/model/model.h"

#define VOCABULARY 32000 /* Llama 2 */
#define NARROWEST  0.25  /* least width of the MLP, in widths of hidden */
#define WIDEST     32

/* Parameters without the MLPs: two vocabulary matrices, four of attention and two norms a layer. */
static double without_mlp(const hk_model_size *size) {
  const double h = (double)size->hidden, layers = (double)size->layers;
  return 2 * (double)size->vocab * h + h + layers * (4 * h * h + 2 * h);
}

/* The shape of Llama models nearest to the size: hidden 128 times the layers, an MLP of 8/3 hidden,
 * 12 h^2 parameters a layer. */
static void typical(double parameters, double vocab, int64_t *layers, int64_t *hidden) {
  double nearest = INFINITY;
  *layers = 1;
  *hidden = 128;
  for (int64_t h = 128; h <= 32768; h += h < 1024 ? 128 : h < 4096 ? 256 : 1024) {
    const double left = parameters - 2 * vocab * (double)h;
    const double n = fmax(1, round(left / (12 * (double)h * (double)h)));
    const double away = fabs(log((double)h / n / 128));
    if (left <= 0 || away >= nearest) continue;
    nearest = away;
    *layers = (int64_t)n;
    *hidden = h;
  }
}

/* "; a typical shape of 7 G parameters is --layers 32 --hidden 4096" */
static const char *advice(const hk_model_size *size, char *text, size_t n) {
  int64_t layers = 0, hidden = 0;
  typical((double)size->parameters, (double)size->vocab, &layers, &hidden);
  snprintf(text, n, "; a typical shape of %.3g G parameters is --layers %lld --hidden %lld",
           (double)size->parameters / 1e9, (long long)layers, (long long)hidden);
  return text;
}

static hk_status check_given(const hk_model_size *size, hk_error *err) {
  char typical_shape[160];
  if (size->layers > 0 && size->hidden > 0) return HK_OK;
  return hk_fail(err, HK_INPUT, "--params needs %s%s%s, too%s", size->layers > 0 ? "" : "--layers",
                 size->layers == 0 && size->hidden == 0 ? " and " : "",
                 size->hidden > 0 ? "" : "--hidden",
                 advice(size, typical_shape, sizeof typical_shape));
}

static hk_status choose_heads(hk_model_size *size, hk_error *err) {
  const int64_t hidden = size->hidden;
  if (size->heads == 0 && hidden % 128 == 0) size->heads = hidden / 128;
  if (size->heads == 0 && hidden % 64 == 0) size->heads = hidden / 64;
  if (size->heads == 0)
    return hk_fail(err, HK_INPUT,
                   "--hidden %lld is not a multiple of 64 or 128, the usual sizes of a head: give "
                   "--heads, or --hidden %lld",
                   (long long)hidden, (long long)(hidden + 63) / 64 * 64);
  if (hidden % size->heads == 0) return HK_OK;
  int64_t below = size->heads, above = size->heads;
  while (hidden % below != 0) below--;
  while (hidden % above != 0) above++;
  return hk_fail(err, HK_INPUT,
                 "--hidden %lld cannot be divided among --heads %lld; %lld or %lld heads could",
                 (long long)hidden, (long long)size->heads, (long long)below, (long long)above);
}

/* The MLP's width, a multiple of 16 where that moves the size by less than 0.1 %. */
static hk_status choose_ffn(const hk_model_size *size, int64_t *ffn, hk_error *err) {
  const double h = (double)size->hidden, per_width = 3 * h * (double)size->layers;
  const double fixed = without_mlp(size), wanted = (double)size->parameters;
  const double exact = (wanted - fixed) / per_width, least = NARROWEST * h, most = WIDEST * h;
  char typical_shape[160];
  if (exact < least)
    return hk_fail(
        err, HK_INPUT,
        "--params %.4g G: %lld layers of hidden %lld have %.4g G parameters without their "
        "MLPs (vocabulary of %lld), and need at least %.4g G%s",
        wanted / 1e9, (long long)size->layers, (long long)size->hidden, fixed / 1e9,
        (long long)size->vocab, (fixed + least * per_width) / 1e9,
        advice(size, typical_shape, sizeof typical_shape));
  if (exact > most)
    return hk_fail(
        err, HK_INPUT,
        "--params %.4g G: %lld layers of hidden %lld would need MLPs %.0f times as wide as "
        "hidden; with %d times they have %.4g G%s",
        wanted / 1e9, (long long)size->layers, (long long)size->hidden, exact / h, WIDEST,
        (fixed + most * per_width) / 1e9, advice(size, typical_shape, sizeof typical_shape));
  const double even = 16 * round(exact / 16);
  *ffn =
      (int64_t)(even > 0 && fabs(even - exact) * per_width < 1e-3 * wanted ? even : round(exact));
  return HK_OK;
}

static cJSON *config_of(const hk_model_size *size, int64_t ffn) {
  char text[600];
  snprintf(text, sizeof text,
           "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
           "\"num_hidden_layers\": %lld, \"hidden_size\": %lld, \"intermediate_size\": %lld, "
           "\"num_attention_heads\": %lld, \"vocab_size\": %lld, \"hocket_note\": \"shaped like "
           "Llama for --params: MLPs of width %lld, %lld heads of %lld, vocabulary of %lld, an "
           "output projection of its own, no biases\"}",
           (long long)size->layers, (long long)size->hidden, (long long)ffn, (long long)size->heads,
           (long long)size->vocab, (long long)ffn, (long long)size->heads,
           (long long)(size->hidden / size->heads), (long long)size->vocab);
  return cJSON_Parse(text);
}

hk_status hk_model_from_size(const hk_model_size *given, hk_model *model, hk_error *err) {
  hk_model_size size = *given;
  int64_t ffn = 0;
  char name[64];
  *model = (hk_model){0};
  if (size.vocab == 0) size.vocab = VOCABULARY;
  HK_TRY(check_given(&size, err));
  HK_TRY(choose_heads(&size, err));
  HK_TRY(choose_ffn(&size, &ffn, err));
  snprintf(name, sizeof name, "%.3gG-%lldx%lld", (double)size.parameters / 1e9,
           (long long)size.layers, (long long)size.hidden);
  cJSON *config = config_of(&size, ffn);
  if (!config) return hk_fail_memory(err, sizeof *config, "a model of that size");
  const hk_status status = hk_model_from_config(config, name, model, err);
  cJSON_Delete(config);
  return status;
}
