/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Published models: hocket's counts against those of `transformers` (tests/data/model-counts.csv,
 * written by scripts/check_model_counts); FLOPs and activations against closed forms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/names.h"
#include "core/model/model.h"
#include "sim/forecast.h"
#include "sim/warnings.h"
#include "tests/fixture.h"

#define TABLE   HK_TEST_DATA "/model-counts.csv"
#define ROOT    HK_TEST_DATA "/../.."
#define COLUMNS 8

/* Columns of model-counts.csv. */
enum { MODEL, CONFIG, TRANSFORMERS, PARAMETERS, ACTIVE, EMBEDDING, LAYERS, HEAD };

typedef struct {
  char text[2000];
  char *cell[COLUMNS];
} row;

static bool read_row(FILE *file, row *r) {
  if (!fgets(r->text, sizeof r->text, file)) return false;
  r->text[strcspn(r->text, "\r\n")] = '\0';
  char *at = r->text;
  for (int c = 0; c < COLUMNS; c++) r->cell[c] = strsep(&at, ",");
  assert_non_null(r->cell[COLUMNS - 1]);
  assert_null(at);
  return true;
}

static FILE *open_table(void) {
  row head;
  FILE *file = fopen(TABLE, "r");
  assert_non_null(file);
  assert_true(read_row(file, &head));
  assert_string_equal(head.cell[LAYERS], "layers");
  return file;
}

static hk_model load_row(const row *r) {
  char path[500];
  hk_model model;
  hk_error err = {0};
  snprintf(path, sizeof path, "%s/%s", ROOT, r->cell[CONFIG]);
  must(hk_model_load(path, &model, &err), &err);
  return model;
}

static hk_model load(const char *name) {
  hk_model model;
  hk_error err = {0};
  must(hk_model_load(name, &model, &err), &err);
  return model;
}

/* "3 x 583485440 + 58 x 11507288064": parameters of the layers in order. */
static void write_layers(const hk_model *model, char *text, size_t size) {
  size_t used = 0;
  int64_t run = 0;
  *text = '\0';
  for (int i = 0; i < (int)model->layers; i++) {
    const int64_t here = hk_model_block_parameters(model, i, 1);
    const bool last = i + 1 == (int)model->layers;
    run++;
    if (!last && hk_model_block_parameters(model, i + 1, 1) == here) continue;
    used += (size_t)snprintf(text + used, size - used, "%s%lld x %lld", used > 0 ? " + " : "",
                             (long long)run, (long long)here);
    assert_true(used < size);
    run = 0;
  }
}

static void counts_are_those_of_transformers(void **state) {
  (void)state;
  row r;
  int n = 0;
  FILE *file = open_table();
  for (; read_row(file, &r); n++) {
    hk_model m = load_row(&r);
    char layers[1600];
    write_layers(&m, layers, sizeof layers);
    const long long parameters = atoll(r.cell[PARAMETERS]), active = atoll(r.cell[ACTIVE]);
    if (m.parameters != parameters || m.active != active || strcmp(layers, r.cell[LAYERS]) != 0)
      fail_msg("%s: %lld parameters, %lld active, layers %s", r.cell[MODEL],
               (long long)m.parameters, (long long)m.active, layers);
    assert_int_equal(hk_model_block_parameters(&m, HK_BLOCK_EMBED, 1), atoll(r.cell[EMBEDDING]));
    assert_int_equal(hk_model_block_parameters(&m, (int)m.layers, 1), atoll(r.cell[HEAD]));
    assert_int_equal(hk_model_rank_parameters(&m, 1, 1), parameters);
    int64_t begin = 0, end = 0;
    hk_model_block_interval(&m, (int)m.layers, 1, 1, &begin, &end);
    assert_int_equal(end, parameters);
    hk_model_free(&m);
  }
  fclose(file);
  assert_true(n >= 60);
}

/* docs/models.md has each count. */
static void page_has_the_table(void **state) {
  (void)state;
  row r;
  FILE *file = fopen(ROOT "/docs/models.md", "r");
  assert_non_null(file);
  char *page = calloc(1, 100000);
  assert_non_null(page);
  assert_true(fread(page, 1, 99999, file) > 0);
  fclose(file);
  file = open_table();
  while (read_row(file, &r)) {
    char line[200], parameters[32], active[32] = "";
    if (strcmp(r.cell[ACTIVE], r.cell[PARAMETERS]) != 0)
      hk_format_count(atoll(r.cell[ACTIVE]), active, sizeof active);
    snprintf(line, sizeof line, "| %s | %s | %s |\n", r.cell[MODEL],
             hk_format_count(atoll(r.cell[PARAMETERS]), parameters, sizeof parameters), active);
    if (!strstr(page, line)) fail_msg("docs/models.md lacks: %s", line);
  }
  fclose(file);
  free(page);
}

static bool is_in_table(const char *name) {
  row r;
  bool found = false;
  FILE *file = open_table();
  while (!found && read_row(file, &r)) found = strcmp(r.cell[MODEL], name) == 0;
  fclose(file);
  return found;
}

/* Every shipped preset is in the table, so that its counts are checked. Presets in Megatron's
 * layout are not models of transformers; test_unit_model.c has their totals. */
static void every_preset_is_in_the_table(void **state) {
  (void)state;
  char **names = NULL;
  size_t n = 0;
  assert_int_equal(hk_share_list("models", &names, &n, NULL), HK_OK);
  for (size_t i = 0; i < n; i++) {
    hk_model m = load(names[i]);
    if (m.layout == HK_LAYOUT_HF && !is_in_table(names[i])) fail_msg("%s", names[i]);
    for (int k = 0; k < m.n_notes; k++) /* a preset has no key that is not used */
      if (strstr(m.notes[k], "not used")) fail_msg("%s: %s", names[i], m.notes[k]);
    hk_model_free(&m);
  }
  hk_names_free(names, n);
}

/* A rank's shares of the tensors add up to its intervals of blocks, and these to its whole share.
 */
static void shares_add_up(void **state) {
  (void)state;
  const char *names[] = {"deepseek-v2-lite", "gemma-2-2b", "flan-t5-xl",
                         "llama-3.2-11b-vision-text"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    hk_model m = load(names[i]);
    for (int tp = 1; tp <= 2; tp++) {
      for (int dp = 1; dp <= 3; dp += 2) {
        int64_t at = 0;
        hk_block_walk walk = {.model = &m, .tp = tp, .dp = dp};
        for (int block = HK_BLOCK_EMBED; block <= (int)m.layers; block++) {
          int64_t begin = 0, end = 0, sum = 0;
          hk_model_block_interval(&m, block, tp, dp, &begin, &end);
          hk_block_walk_next(&walk);
          assert_true(walk.begin == begin && walk.end == end);
          for (size_t t = 0; t < m.n_tensors; t++)
            if (m.tensors[t].block == block) sum += hk_tensor_share(&m.tensors[t], tp, dp);
          assert_int_equal(begin, at);
          assert_int_equal(end - begin, sum);
          at = end;
        }
        assert_int_equal(at, hk_model_rank_parameters(&m, tp, dp));
      }
    }
    hk_model_free(&m);
  }
}

/* -- Arithmetic ------------------------------------------------------------------------------- */

static double forward(const hk_model *m, int64_t seq) {
  double sum = 0;
  for (int block = HK_BLOCK_EMBED; block <= (int)m->layers; block++)
    sum += hk_model_forward_flops(m, block, 1, seq, 1);
  return sum;
}

/* Forward: two FLOPs a token and active parameter of a matrix, and 4 s^2 (heads x head_dim) a
 * layer. */
static void experts_compute_what_is_active(void **state) {
  (void)state;
  hk_model m = load("mixtral-8x7b");
  const double s = 1000, h = 4096, vocab = 32000, norms = 65 * h;
  assert_true(forward(&m, 1000) ==
              2 * s * ((double)m.active - vocab * h - norms) + 4 * s * s * h * 32);
  assert_int_equal(m.active, 12879925248); /* published: 12.9 B of 46.7 B */
  assert_true(hk_model_backward_flops(&m, 0, 1, 1000, 1, true) ==
              3 * hk_model_forward_flops(&m, 0, 1, 1000, 1));
  hk_model_free(&m);
}

/* Latent attention: products of 192 (queries and keys) and 128 (values) for each of 128 heads. The
 * norms of compressed vectors have 1536 + 512 parameters a layer. */
static void latent_attention(void **state) {
  (void)state;
  hk_model m = load("deepseek-v3");
  const double s = 4096, h = 7168, vocab = 129280;
  const double norms = 61 * (2 * h + 1536 + 512) + h;
  const double expected =
      2 * s * ((double)m.active - vocab * h - norms) + 2 * s * s * 128 * (192 + 128) * 61;
  assert_true(fabs(forward(&m, 4096) - expected) < 1e-12 * expected);
  hk_model_free(&m);
}

/* Up to 4096 tokens all layers cost the same. Above, a layer with a window attends s x 4096 pairs,
 * one without s x s. */
static void windows_limit_attention(void **state) {
  (void)state;
  hk_model m = load("gemma-2-9b"); /* windows of 4096 in layers 0, 2, 4, ... */
  assert_true(hk_model_forward_flops(&m, 0, 1, 4096, 1) ==
              hk_model_forward_flops(&m, 1, 1, 4096, 1));
  const double pair = 4 * 16 * 256.0, s = 8192;
  assert_true(hk_model_forward_flops(&m, 1, 1, 8192, 1) -
                  hk_model_forward_flops(&m, 0, 1, 8192, 1) ==
              pair * s * (s - 4096));
  hk_model_free(&m);
}

/* A layer of T5's decoder has a second attention, over as many keys as the encoder has tokens. */
static void encoder_and_decoder(void **state) {
  (void)state;
  hk_model m = load("flan-t5-xl");
  const double s = 512, h = 2048, q = 64 * 32;
  assert_int_equal(m.layers, 48);
  assert_non_null(strstr(m.notes[0], "as many tokens as its encoder"));
  const double encoder = hk_model_forward_flops(&m, 5, 1, 512, 1);
  const double decoder = hk_model_forward_flops(&m, 30, 1, 512, 1);
  assert_true(encoder == 2 * s * (4 * h * q + 3 * h * 5120) + 4 * s * s * q);
  assert_true(decoder - encoder == 2 * s * 4 * h * q + 4 * s * s * q);
  assert_string_equal(m.tensors[m.first_tensor[25]].name,
                      "decoder.block.0.layer.0.SelfAttention.q.weight");
  hk_model_free(&m);
}

static hk_model load_config(const char *name) {
  char path[200];
  snprintf(path, sizeof path, "%s/configs/%s.json", HK_TEST_DATA, name);
  return load(path);
}

/* Parts of models: no products and no logits of the projection that is not there; the encoder works
 * without a decoder. Their names are those of transformers. */
static void parts_cost_what_they_have(void **state) {
  (void)state;
  hk_model m = load_config("t5-v1.1-xxl-encoder");
  assert_int_equal(m.layers, 24);
  assert_int_equal(m.n_notes, 0);
  assert_true(hk_model_forward_flops(&m, 24, 1, 512, 1) == 0);
  assert_string_equal(m.tensors[m.n_tensors - 1].name, "encoder.final_layer_norm.weight");
  hk_model_free(&m);

  m = load_config("mistral-7b-body");
  assert_true(hk_model_forward_flops(&m, 32, 1, 512, 1) == 0);
  assert_int_equal(hk_model_activation_bytes(&m, 32, 1, 512, 1, true), 512 * 2 * 4096);
  assert_string_equal(m.tensors[0].name, "embed_tokens.weight");
  assert_string_equal(m.tensors[m.n_tensors - 1].name, "norm.weight");
  hk_model_free(&m);

  m = load_config("llama-3-8b-reward"); /* one label */
  assert_true(hk_model_forward_flops(&m, 32, 1, 512, 1) == 2.0 * 512 * 4096);
  assert_int_equal(hk_model_activation_bytes(&m, 32, 1, 512, 1, true), 512 * (2 * 2 * 4096 + 4));
  assert_string_equal(m.tensors[0].name, "model.embed_tokens.weight");
  assert_string_equal(m.tensors[m.n_tensors - 1].name, "score.weight");
  hk_model_free(&m);
}

/* Cross-attention computes keys and values from 6404 image tokens a sequence. */
static void cross_attention_reads_the_image(void **state) {
  (void)state;
  hk_model m = load("llama-3.2-11b-vision-text");
  const double s = 100, h = 4096, kv = 1024, f = 14336, image = 6404;
  const double cross = 2 * s * (2 * h * h + 3 * h * f) + 2 * image * 2 * h * kv + 4 * s * image * h;
  assert_int_equal(m.other_tokens, 6404);
  assert_non_null(strstr(m.notes[0], "one image of 6404 tokens a sequence"));
  assert_true(hk_model_forward_flops(&m, 3, 1, 100, 1) == cross);
  assert_true(hk_model_forward_flops(&m, 4, 1, 100, 1) ==
              2 * s * (2 * h * h + 2 * h * kv + 3 * h * f) + 4 * s * s * h);
  hk_model_free(&m);
}

/* The classifier computes one position of a sequence; the embedding is a matrix over patches. */
static void vision_transformer(void **state) {
  (void)state;
  hk_model m = load("vit-base");
  assert_int_equal(m.max_positions, 197);
  assert_true(hk_model_forward_flops(&m, 12, 8, 197, 1) == 2.0 * 8 * 768 * 1000);
  assert_true(hk_model_forward_flops(&m, HK_BLOCK_EMBED, 1, 197, 1) == 2.0 * 197 * 768 * 768);
  hk_model_free(&m);
}

/* -- Activations ------------------------------------------------------------------------------ */

static hk_bytes kept(const hk_model *m, int block) {
  return hk_model_activation_bytes(m, block, 1, 1000, 1, false) / 1000;
}

static void activations_of_other_layers(void **state) {
  (void)state;
  hk_model m = load("mixtral-8x7b");
  const hk_bytes attention = 4 * 2 * 4096 + 2 * (4096 + 2 * 1024) + 2 * 4096 + 4 * 32;
  assert_int_equal(kept(&m, 0), attention + 4 * 8 + 4 * 2 * 4096 + 8 * 2 * 14336);
  hk_model_free(&m);

  m = load("gpt-j-6b"); /* one norm: its input and output */
  assert_int_equal(kept(&m, 0), 2 * 2 * 4096 + 8 * 4096 + 4 * 16 + 4 * 16384);
  hk_model_free(&m);

  m = load("deepseek-v3"); /* keys for every head; compressed vectors before and after norms */
  const hk_bytes latent = 2 * (2 * 128 * 192 + 2 * 128 * 128) + 4 * 128 + 4 * (1536 + 512);
  assert_int_equal(kept(&m, 0), 4 * 2 * 7168 + latent + 8 * 18432);
  assert_int_equal(kept(&m, 3),
                   4 * 2 * 7168 + latent + 4 * 256 + 4 * 8 * 7168 + 8 * (8 * 2048 + 2048));
  hk_model_free(&m);
}

static void costs_are_monotonic(void **state) {
  (void)state;
  row r;
  FILE *file = open_table();
  while (read_row(file, &r)) {
    hk_model m = load_row(&r);
    for (int k = 0; k < m.n_kinds; k++) {
      const int b = (int)m.kinds[k].first;
      const hk_bytes one = hk_model_activation_bytes(&m, b, 1, 512, 2, false);
      const hk_bytes work = hk_model_backward_workspace_bytes(&m, b, 1, 512, 2, true);
      assert_true(hk_model_activation_bytes(&m, b, 2, 512, 2, false) > one);
      assert_true(hk_model_activation_bytes(&m, b, 1, 513, 2, false) > one);
      assert_true(hk_model_activation_bytes(&m, b, 1, 512, 4, false) < one);
      assert_true(hk_model_activation_bytes(&m, b, 1, 512, 2, true) < one);
      assert_true(hk_model_backward_workspace_bytes(&m, b, 1, 512, 4, true) < work);
      assert_true(hk_model_forward_flops(&m, b, 1, 512, 4) <
                  hk_model_forward_flops(&m, b, 1, 512, 2));
    }
    hk_model_free(&m);
  }
  fclose(file);
}

/* GPU bytes that backward of layer 1 allocates under DeepSpeed. */
static hk_bytes deepspeed_workspace(const char *config) {
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 16};
  hk_model m = model_of(config, "test");
  hk_error err = {0};
  hk_plan plan;
  hk_graph graph;
  hk_bytes bytes = -1;
  must(hk_plan_create(&m, &job, HK_RUNTIME_DEEPSPEED, HK_SUBGROUP_SOFT, 1000000, &plan, &err),
       &err);
  must(hk_graph_build(&plan, (hk_expand){HK_EXPAND_ALL, .folded = true}, &graph, &err), &err);
  for (size_t i = 0; i < graph.n_ops; i++)
    if (graph.ops[i].kind == HK_OP_BACKWARD && graph.ops[i].block == 1)
      bytes = graph.ops[i].gpu_alloc;
  hk_graph_free(&graph);
  hk_plan_free(&plan);
  return bytes;
}

/* The MLP's last matrix is recognized whatever its name is: BLOOM and OPT of the same shape need
 * the same memory, more than that matrix. */
static void matrices_of_any_name(void **state) {
  (void)state;
  const hk_bytes bloom = deepspeed_workspace(
      "{\"model_type\": \"bloom\", \"n_layer\": 2, \"hidden_size\": 256, \"n_head\": 4, "
      "\"vocab_size\": 100}");
  const hk_bytes opt = deepspeed_workspace(
      "{\"model_type\": \"opt\", \"num_hidden_layers\": 2, \"hidden_size\": 256, "
      "\"num_attention_heads\": 4, \"ffn_dim\": 1024, \"max_position_embeddings\": 64, "
      "\"vocab_size\": 100}");
  assert_true(bloom > 2 * 256 * 1024);
  assert_int_equal(opt, bloom);
}

/* -- What a forecast says --------------------------------------------------------------------- */

static bool is_warned(hk_model *m, int seq, const char *text) {
  const hk_machine machine = ideal_machine();
  const hk_job job = {
      .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = seq};
  hk_error err = {0};
  hk_plan plan;
  char **warnings = NULL;
  bool found = false;
  must(hk_plan_create(m, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 1000000000, &plan, &err),
       &err);
  must(hk_forecast_warnings(&plan, &machine, &warnings, &err), &err);
  for (size_t i = 0; warnings[i]; i++) found = found || strstr(warnings[i], text);
  hk_warnings_free(warnings);
  hk_plan_free(&plan);
  return found;
}

/* 2048 tokens, each sent to 2 of 8 experts: 512 an expert. No warning at 8192 tokens. */
static void experts_of_few_tokens_are_warned_of(void **state) {
  (void)state;
  hk_model few = load("mixtral-8x7b"), many = load("mixtral-8x7b"), none = load("mistral-7b");
  assert_true(is_warned(&few, 2048, "an expert of mixtral-8x7b gets about 512 tokens"));
  assert_false(is_warned(&many, 8192, "an expert"));
  assert_false(is_warned(&none, 2048, "an expert"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_are_those_of_transformers),
      cmocka_unit_test(page_has_the_table),
      cmocka_unit_test(every_preset_is_in_the_table),
      cmocka_unit_test(shares_add_up),
      cmocka_unit_test(experts_compute_what_is_active),
      cmocka_unit_test(latent_attention),
      cmocka_unit_test(windows_limit_attention),
      cmocka_unit_test(encoder_and_decoder),
      cmocka_unit_test(parts_cost_what_they_have),
      cmocka_unit_test(cross_attention_reads_the_image),
      cmocka_unit_test(vision_transformer),
      cmocka_unit_test(activations_of_other_layers),
      cmocka_unit_test(costs_are_monotonic),
      cmocka_unit_test(matrices_of_any_name),
      cmocka_unit_test(experts_of_few_tokens_are_warned_of),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
