/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket model list | show */
#include <stdio.h>
#include <stdlib.h>

#include "cli/command.h"
#include "cli/print/emit.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "core/base/names.h"

/* -- list ------------------------------------------------------------------------------------ */

static void put_model(const hk_model *model, cJSON *entry, bool *ok) {
  hk_put_string(entry, "name", model->name, ok);
  hk_put_string(entry, "architecture", hk_model_architecture(model), ok);
  hk_put_number(entry, "parameters", (double)model->parameters, ok);
  hk_put_number(entry, "active_parameters", (double)model->active, ok);
}

static void add_row(const hk_model *model, hk_table *table) {
  char count[32];
  hk_table_row(table, "%s\t%s\t%s", model->name, hk_model_architecture(model),
               hk_format_count(model->parameters, count, sizeof count));
  if (model->experts > 0) hk_table_cell(table, "%.1f G", (double)model->active / 1e9);
}

/* Adds every preset to the table or to the JSON array. */
static hk_status add_all(hk_table *table, cJSON *array, bool *ok, hk_error *err) {
  char **names = NULL;
  size_t n = 0;
  HK_TRY(hk_share_list("models", &names, &n, err));
  hk_status status = HK_OK;
  for (size_t i = 0; i < n && status == HK_OK; i++) {
    hk_model model = {0};
    status = hk_model_load(names[i], &model, err);
    if (status == HK_OK && table) add_row(&model, table);
    if (status == HK_OK && array) put_model(&model, hk_put_element(array, ok), ok);
    hk_model_free(&model);
  }
  hk_names_free(names, n);
  return status;
}

static hk_status list_json(hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.model_list/1", &ok);
  hk_status status = add_all(NULL, hk_put_array(root, "models", &ok), &ok, err);
  if (status == HK_OK) return hk_emit_print(root, ok, err);
  cJSON_Delete(root);
  return status;
}

static hk_status list(const hk_args *args, hk_error *err) {
  static const hk_column columns[] = {
      {"name", HK_LEFT}, {"architecture", HK_LEFT}, {"parameters", HK_RIGHT}, {"active", HK_RIGHT}};
  if (args->json) return list_json(err);
  hk_table table = HK_TABLE(columns);
  hk_status status = add_all(&table, NULL, NULL, err);
  if (status == HK_OK) return hk_table_print(&table, err);
  hk_table_drop(&table);
  return status;
}

/* -- show ------------------------------------------------------------------------------------ */

/* Costs of a training step on one rank that holds the whole model. */
typedef struct {
  int seq;
  int64_t subgroup_numel;
  double flops_per_token;
  hk_bytes checkpointed, kept; /* activations of one sequence */
  size_t exact, soft;          /* subgroups by either rule */
} costs;

static hk_status count_subgroups(const hk_model *model, hk_subgroup_rule rule, int64_t size,
                                 size_t *n, hk_error *err) {
  hk_subgroup *subgroups = NULL;
  HK_TRY(hk_model_subgroups(model, 1, 1, rule, size, &subgroups, n, err));
  free(subgroups);
  return HK_OK;
}

static void add_bytes(hk_bytes *sum, hk_bytes bytes) {
  if (__builtin_add_overflow(*sum, bytes, sum)) *sum = INT64_MAX;
}

static hk_status cost(const hk_model *model, const hk_args *args, costs *out, hk_error *err) {
  *out = (costs){.seq = hk_setup_seq(args, model), .subgroup_numel = args->subgroup};
  for (int block = HK_BLOCK_EMBED; block <= (int)model->layers; block++) {
    out->flops_per_token += hk_model_forward_flops(model, block, 1, out->seq, 1) / out->seq;
    add_bytes(&out->checkpointed, hk_model_activation_bytes(model, block, 1, out->seq, 1, true));
    add_bytes(&out->kept, hk_model_activation_bytes(model, block, 1, out->seq, 1, false));
  }
  HK_TRY(count_subgroups(model, HK_SUBGROUP_EXACT, args->subgroup, &out->exact, err));
  return count_subgroups(model, HK_SUBGROUP_SOFT, args->subgroup, &out->soft, err);
}

static void put_tensors(const hk_model *model, cJSON *root, bool *ok) {
  cJSON *array = hk_put_array(root, "tensors", ok);
  for (size_t i = 0; i < model->n_tensors; i++) {
    cJSON *entry = hk_put_element(array, ok);
    hk_put_string(entry, "name", model->tensors[i].name, ok);
    hk_put_number(entry, "numel", (double)model->tensors[i].numel, ok);
  }
}

/* Layers that differ in tensors or attention. */
static void put_kinds(const hk_model *model, cJSON *root, bool *ok) {
  cJSON *array = hk_put_array(root, "layer_kinds", ok);
  for (int k = 0; k < model->n_kinds; k++) {
    const hk_block_kind *kind = &model->kinds[k];
    cJSON *entry = hk_put_element(array, ok);
    hk_put_number(entry, "layers", (double)kind->blocks, ok);
    hk_put_number(entry, "first", (double)kind->first, ok);
    hk_put_number(entry, "parameters", (double)kind->parameters, ok);
    hk_put_number(entry, "active_parameters", (double)kind->active, ok);
    hk_put_bool(entry, "experts", kind->sparse, ok);
    hk_put_bool(entry, "cross_attention", kind->cross, ok);
    hk_put_number(entry, "window", (double)kind->window, ok);
  }
}

static hk_status show_json(const hk_model *model, const costs *cost, bool tensors, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.model/1", &ok);
  hk_put_string(root, "name", model->name, &ok);
  hk_put_string(root, "architecture", hk_model_architecture(model), &ok);
  hk_put_number(root, "parameters", (double)model->parameters, &ok);
  hk_put_number(root, "active_parameters", (double)model->active, &ok);
  hk_put_number(root, "layers", (double)model->layers, &ok);
  hk_put_number(root, "hidden", (double)model->hidden, &ok);
  hk_put_number(root, "ffn", (double)model->ffn, &ok);
  hk_put_number(root, "heads", (double)model->heads, &ok);
  hk_put_number(root, "kv_heads", (double)model->kv_heads, &ok);
  hk_put_number(root, "head_dim", (double)model->head_dim, &ok);
  hk_put_number(root, "vocab", (double)model->vocab, &ok);
  hk_put_number(root, "max_positions", (double)model->max_positions, &ok);
  hk_put_bool(root, "tied_embeddings", model->tied, &ok);
  hk_put_number(root, "experts", (double)model->experts, &ok);
  hk_put_number(root, "experts_per_token", (double)model->experts_per_token, &ok);
  hk_put_number(root, "expert_ffn", (double)model->expert_ffn, &ok);
  hk_put_number(root, "shared_ffn", (double)model->shared_ffn, &ok);
  put_kinds(model, root, &ok);
  hk_put_number(root, "seq", cost->seq, &ok);
  hk_put_number(root, "forward_flops_per_token", cost->flops_per_token, &ok);
  cJSON *activations = hk_put_object(root, "activations", &ok);
  hk_put_number(activations, "checkpointed_bytes", (double)cost->checkpointed, &ok);
  hk_put_number(activations, "kept_bytes", (double)cost->kept, &ok);
  cJSON *subgroups = hk_put_object(root, "subgroups", &ok);
  hk_put_number(subgroups, "numel", (double)cost->subgroup_numel, &ok);
  hk_put_number(subgroups, "exact", (double)cost->exact, &ok);
  hk_put_number(subgroups, "soft", (double)cost->soft, &ok);
  cJSON *notes = hk_put_array(root, "notes", &ok);
  for (int i = 0; i < model->n_notes; i++)
    hk_append_item(notes, cJSON_CreateString(model->notes[i]), &ok);
  if (tensors) put_tensors(model, root, &ok);
  return hk_emit_print(root, ok, err);
}

static void add_count(hk_table *table, const char *name, int64_t value, const char *note) {
  char count[32];
  hk_table_row(table, "%s\t%s\t%s", name, hk_format_count(value, count, sizeof count), note);
}

/* "58 with experts, 3 without", "8 with cross-attention", "20 with a window of 4096 tokens", "". */
static void describe_layers(const hk_model *model, char *text, size_t size) {
  int64_t sparse = 0, cross = 0, windowed = 0, window = 0;
  for (int k = 0; k < model->n_kinds; k++) {
    const hk_block_kind *kind = &model->kinds[k];
    if (kind->sparse) sparse += kind->blocks;
    if (kind->cross) cross += kind->blocks;
    if (kind->window > 0) windowed += kind->blocks, window = kind->window;
  }
  *text = '\0';
  if (sparse > 0 && sparse < model->layers)
    snprintf(text, size, "%lld with experts, %lld without", (long long)sparse,
             (long long)(model->layers - sparse));
  else if (cross > 0)
    snprintf(text, size, "%lld with cross-attention", (long long)cross);
  else if (windowed > 0)
    snprintf(text, size, "%lld with a window of %lld tokens", (long long)windowed,
             (long long)window);
}

static void add_experts(hk_table *table, const hk_model *model) {
  char note[96], shared[48] = "";
  if (model->experts == 0) return;
  if (model->shared_ffn > 0)
    snprintf(shared, sizeof shared, ", and shared ones of %lld", (long long)model->shared_ffn);
  snprintf(note, sizeof note, "a token goes to %lld, each of width %lld%s",
           (long long)model->experts_per_token, (long long)model->expert_ffn, shared);
  add_count(table, "experts", model->experts, note);
}

static void add_shape(hk_table *table, const hk_model *model) {
  char layers[96];
  add_count(table, "parameters", model->parameters,
            model->tied ? "output projection shares the embedding" : "");
  if (model->experts > 0)
    add_count(table, "active parameters", model->active, "that a token uses; all are updated");
  if (model->arch == HK_ARCH_LISTED) {
    add_count(table, "blocks", model->layers + 2, "");
    add_count(table, "tensors", (int64_t)model->n_tensors, "");
    return;
  }
  describe_layers(model, layers, sizeof layers);
  add_count(table, "layers", model->layers, layers);
  add_count(table, "hidden", model->hidden, "");
  add_count(table, "ffn", model->ffn, model->gated ? "gated" : "");
  add_count(table, "heads", model->heads, "");
  add_count(table, "kv heads", model->kv_heads, "");
  add_count(table, "head dim", model->head_dim, "");
  add_experts(table, model);
  if (model->vocab > 0) add_count(table, "vocabulary", model->vocab, "");
  add_count(table, "max positions", model->max_positions,
            model->max_positions == 0 ? "not stated" : "");
}

static void add_costs(hk_table *table, const costs *cost) {
  char at_seq[64], of_size[64], count[32];
  snprintf(at_seq, sizeof at_seq, "bytes per sequence of %d tokens", cost->seq);
  snprintf(of_size, sizeof of_size, "of %s parameters",
           hk_format_count(cost->subgroup_numel, count, sizeof count));
  hk_table_row(table, "forward\t%.4g\tGflop per token, with %d tokens per sequence",
               cost->flops_per_token / 1e9, cost->seq);
  add_count(table, "activations, checkpointed", cost->checkpointed, at_seq);
  add_count(table, "activations, kept", cost->kept, at_seq);
  add_count(table, "subgroups, exact", (int64_t)cost->exact, of_size);
  add_count(table, "subgroups, DeepSpeed", (int64_t)cost->soft,
            "of at least that many, tensors not divided");
}

static hk_status print_tensors(const hk_model *model, hk_error *err) {
  static const hk_column columns[] = {{"tensor", HK_WRAP}, {"parameters", HK_RIGHT}};
  hk_table table = HK_TABLE(columns);
  for (size_t i = 0; i < model->n_tensors; i++) {
    char count[32];
    hk_table_row(&table, "%s\t%s", model->tensors[i].name,
                 hk_format_count(model->tensors[i].numel, count, sizeof count));
  }
  putchar('\n');
  return hk_table_print(&table, err);
}

static hk_status show_text(const hk_model *model, const costs *cost, bool tensors, hk_error *err) {
  static const hk_column columns[] = {{NULL, HK_LEFT}, {NULL, HK_RIGHT}, {NULL, HK_WRAP}};
  printf("%s: %s\n\n", model->name, hk_model_architecture(model));
  hk_table table = HK_TABLE(columns);
  add_shape(&table, model);
  add_costs(&table, cost);
  HK_TRY(hk_table_print(&table, err));
  for (int i = 0; i < model->n_notes; i++) hk_print_text(0, 0, "note: %s", model->notes[i]);
  return tensors ? print_tensors(model, err) : HK_OK;
}

static hk_status show(const hk_args *args, hk_error *err) {
  hk_model model = {0};
  costs model_costs;
  hk_args chosen = *args;
  if (args->n_operands > 0) chosen.model = args->operands[0];
  if (!chosen.model && !(args->given & HK_OPTIONS_SIZE))
    return hk_fail(err, HK_INPUT,
                   "too few arguments; usage: hocket model show NAME|FILE ('hocket model list' "
                   "lists the presets), or "
                   "--params N --layers L --hidden H");
  hk_status status = hk_setup_model(&chosen, &model, err);
  if (status == HK_OK) status = cost(&model, args, &model_costs, err);
  if (status == HK_OK)
    status = (args->json ? show_json : show_text)(&model, &model_costs, args->tensors, err);
  hk_model_free(&model);
  return status;
}

const hk_command hk_command_model_list = {
    .name = "model list",
    .summary = "Lists the model presets that ship with hocket",
    .usage = "[--wide] [--json]",
    .details =
        "Wherever --model is accepted, a FILE can be given instead: a Hugging Face\n"
        "config.json, or a document that lists tensors and blocks.",
    .example = "hocket model list",
    .options = HK_OPTION(JSON) | HK_OPTION(WIDE),
    .run = list,
};

const hk_command hk_command_model_show = {
    .name = "model show",
    .summary = "Shows a model's shape, parameters and cost per training step",
    .usage = "NAME|FILE|--params N [--tensors] [--seq N] [--subgroup NUMEL] [--wide] [--json]",
    .details =
        "Activations and subgroups are those of one GPU that holds the whole model and\n"
        "trains one sequence.",
    .example = "hocket model show llama-2-7b --tensors",
    .options = HK_OPTIONS_SIZE | HK_OPTION(TENSORS) | HK_OPTION(SEQ) | HK_OPTION(SUBGROUP) |
               HK_OPTION(JSON) | HK_OPTION(WIDE),
    .most_operands = 1,
    .run = show,
};
