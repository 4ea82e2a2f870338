/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Every way in which a config.json is refused: the status, and that the message names the key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* after the above */
#include <cmocka.h>

#include "core/base/json.h"
#include "core/model/model.h"

static const char LLAMA[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 2, \"hidden_size\": 64,"
    "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    "\"vocab_size\": 100, \"max_position_embeddings\": 128}";
static const char GPT2[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 4,"
    "\"n_positions\": 32, \"vocab_size\": 100}";

static const char TYPED[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64,"
    "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"vocab_size\": 100}";
static const char MIXTRAL[] =
    "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 2, \"hidden_size\": 64,"
    "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"vocab_size\": 100,"
    "\"num_local_experts\": 4, \"num_experts_per_tok\": 2}";

/* Loads `base` with `key` set to the JSON text `value`; NULL removes the key. The result is printed
 * and parsed, as if read from a file. */
static hk_status load_with(const char *base, const char *key, const char *value, hk_model *model,
                           hk_error *err) {
  cJSON *config = NULL;
  assert_int_equal(hk_json_parse(base, strlen(base), "base", &config, err), HK_OK);
  cJSON_DeleteItemFromObjectCaseSensitive(config, key);
  if (value) cJSON_AddItemToObject(config, key, cJSON_CreateRaw(value));
  char *text = cJSON_PrintUnformatted(config);
  cJSON_Delete(config);
  assert_non_null(text);
  config = NULL;
  hk_status status = hk_json_parse(text, strlen(text), "config.json", &config, err);
  cJSON_free(text);
  if (status == HK_OK) status = hk_model_from_config(config, "test", model, err);
  cJSON_Delete(config);
  return status;
}

static void refuse(const char *base, const char *key, const char *value, const char *message) {
  hk_model model = {0};
  hk_error err = {0};
  hk_status status = load_with(base, key, value, &model, &err);
  if (status != HK_INPUT || !strstr(err.message, message))
    fail_msg("%s = %s: status %d, message \"%s\" should contain \"%s\"", key,
             value ? value : "(absent)", status, err.message, message);
  assert_null(model.tensors); /* nothing left behind: a sanitizer would see a leak otherwise */
  assert_null(model.config);
}

static void accept(const char *base, const char *key, const char *value) {
  hk_model model = {0};
  hk_error err = {0};
  if (load_with(base, key, value, &model, &err) != HK_OK)
    fail_msg("%s = %s: refused with \"%s\"", key, value ? value : "(absent)", err.message);
  hk_model_free(&model);
}

static void bad_architecture(void **state) {
  (void)state;
  refuse(LLAMA, "architectures", NULL, "'architectures'");
  refuse(LLAMA, "architectures", NULL, "'model_type'");
  refuse(LLAMA, "architectures", "\"LlamaForCausalLM\"", "'architectures'");
  refuse(LLAMA, "architectures", "[]", "'architectures'");
  refuse(LLAMA, "architectures", "[7]", "'architectures'");
  const char *known[] = {"'architectures'", "\"BertModel\"", "llama",    "mixtral",
                         "deepseek_v3",     "gpt2",          "--params", "hocket describe"};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    refuse(LLAMA, "architectures", "[\"BertModel\"]", known[i]);
}

/* The architecture decides; an unknown one leaves it to the model_type. A misspelt type gets the
 * nearest one as a suggestion. */
static void model_types(void **state) {
  (void)state;
  accept(TYPED, "architectures", NULL);
  accept(TYPED, "architectures", "[\"LlamaForSequenceClassification\"]");
  refuse(TYPED, "model_type", "\"lama\"", "did you mean \"llama\"?");
  refuse(TYPED, "model_type", "\"lama\"", "--params N --layers L --hidden H");
  refuse(TYPED, "model_type", "\"qwen3_mo\"", "did you mean \"qwen3_moe\"?");
  refuse(TYPED, "model_type", "\"zzzzzzzzzz\"",
         "\"zzzzzzzzzz\" is not a kind of model that hocket");
}

static void bad_numbers(void **state) {
  (void)state;
  const struct {
    const char *base, *key;
  } keys[] = {
      {LLAMA, "num_hidden_layers"},
      {LLAMA, "hidden_size"},
      {LLAMA, "intermediate_size"},
      {LLAMA, "num_attention_heads"},
      {LLAMA, "num_key_value_heads"},
      {LLAMA, "head_dim"},
      {LLAMA, "vocab_size"},
      {LLAMA, "max_position_embeddings"},
      {GPT2, "n_layer"},
      {GPT2, "n_embd"},
      {GPT2, "n_head"},
      {GPT2, "n_inner"},
      {GPT2, "n_positions"},
      {GPT2, "vocab_size"},
  };
  const char *values[] = {"0",    "-4", "1.5",  "\"64\"", "true",
                          "[64]", "{}", "1e18", "-1e300", "9223372036854775808"};
  for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "'%s'", keys[k].key);
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++)
      refuse(keys[k].base, keys[k].key, values[v], quoted);
  }
}

/* Text that is not valid JSON is refused by the parser, before there is a key to name. */
static void not_a_number(void **state) {
  (void)state;
  refuse(LLAMA, "hidden_size", "NaN", "config.json");
  refuse(LLAMA, "hidden_size", "Infinity", "config.json");
  refuse(LLAMA, "hidden_size", "1e999", "config.json");
}

static void missing_keys(void **state) {
  (void)state;
  const char *llama[] = {"num_hidden_layers", "hidden_size", "intermediate_size",
                         "num_attention_heads", "vocab_size"};
  const char *gpt2[] = {"n_layer", "n_embd", "n_head", "n_positions", "vocab_size"};
  for (size_t i = 0; i < 5; i++) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "'%s'", llama[i]);
    refuse(LLAMA, llama[i], NULL, quoted);
    refuse(LLAMA, llama[i], "null", quoted);
    snprintf(quoted, sizeof quoted, "'%s'", gpt2[i]);
    refuse(GPT2, gpt2[i], NULL, quoted);
  }
}

/* One message names all missing keys. */
static void missing_keys_together(void **state) {
  (void)state;
  const char *bare = "{\"model_type\": \"deepseek_v3\"}";
  const char *names[] = {"missing; a config.json of model_type \"deepseek_v3\" needs them",
                         "'num_hidden_layers'",
                         "'hidden_size'",
                         "'num_attention_heads'",
                         "'vocab_size'",
                         "'intermediate_size'",
                         "'n_routed_experts'",
                         "'num_experts_per_tok'",
                         "'moe_intermediate_size'",
                         "'n_shared_experts'",
                         "'kv_lora_rank'",
                         "'qk_nope_head_dim'",
                         "'qk_rope_head_dim'",
                         "'v_head_dim'"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    refuse(bare, "first_k_dense_replace", "3", names[i]);
  refuse(MIXTRAL, "num_local_experts", NULL,
         "key 'num_local_experts': missing; a config.json of model_type \"mixtral\" needs it");
}

static void impossible_experts(void **state) {
  (void)state;
  refuse(MIXTRAL, "num_experts_per_tok", "5",
         "key 'num_experts_per_tok': a token is sent to 5 of 4 experts");
  refuse(MIXTRAL, "num_local_experts", "0", "'num_local_experts'");
}

/* Lists with an entry for each layer. */
static void bad_lists(void **state) {
  (void)state;
  const char *gemma =
      "{\"model_type\": \"gemma2\", \"num_hidden_layers\": 2, \"hidden_size\": 64,"
      "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"vocab_size\": 100}";
  accept(gemma, "layer_types", "[\"full_attention\", \"sliding_attention\"]");
  refuse(gemma, "layer_types", "[\"full_attention\"]", "'layer_types': 1 entries for 2 layers");
  refuse(gemma, "layer_types", "[1, 2]", "'layer_types': expected a list of strings");
  refuse(gemma, "layer_types", "7", "'layer_types'");
  const char *vit =
      "{\"model_type\": \"vit\", \"num_hidden_layers\": 2, \"hidden_size\": 64, \"patch_size\": 16,"
      "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"image_size\": 224}";
  accept(vit, "num_labels", "10");
  refuse(vit, "image_size", "230", "'image_size' and 'patch_size': 230 pixels");
}

/* -- Notes on accepted models ----------------------------------------------------------------- */

static void expect_note(const char *base, const char *key, const char *value, const char *note) {
  hk_model model = {0};
  hk_error err = {0};
  assert_int_equal(load_with(base, key, value, &model, &err), HK_OK);
  if (note == NULL && model.n_notes > 0) fail_msg("%s: '%s'", key, model.notes[0]);
  if (note != NULL && (model.n_notes != 1 || !strstr(model.notes[0], note)))
    fail_msg("%s: %d notes, '%s'", key, model.n_notes, model.n_notes ? model.notes[0] : "");
  hk_model copy;
  assert_int_equal(hk_model_copy(&model, &copy, &err), HK_OK);
  hk_model_free(&model);
  assert_int_equal(copy.n_notes, note != NULL);
  hk_model_free(&copy);
}

static void keys_that_are_not_used(void **state) {
  (void)state;
  expect_note(LLAMA, "num_experts", "8", "not used: num_experts");
  expect_note(LLAMA, "sliding_window", "4096", "not used: sliding_window");
  expect_note(LLAMA, "my_shape", "[1]", "not used: my_shape");
  expect_note(LLAMA, "num_experts", "0", NULL);
  expect_note(LLAMA, "num_experts", "null", NULL);
  expect_note(LLAMA, "rope_theta", "500000", NULL);
  expect_note(LLAMA, "eos_token_id", "[1, 2]", NULL);
  expect_note(LLAMA, "attention_dropout", "0.1", NULL);
  expect_note(GPT2, "add_cross_attention", "true", "not used: add_cross_attention");
  expect_note(GPT2, "add_cross_attention", "false", NULL);
  expect_note(TYPED, "architectures", "[\"MyLlama\"]", "MyLlama is counted as LlamaForCausalLM");
  expect_note("{\"vision_config\": {}}", "text_config", TYPED, "its text part alone");
  expect_note(LLAMA, "vision_config", "{\"hidden_size\": 8}", "not used: vision_config");
  expect_note(LLAMA, "text_config", "[1]", "not used: text_config");
  expect_note(LLAMA, "word_embed_proj", "64", "not used: word_embed_proj");
  expect_note(
      "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64,"
      "\"intermediate_size\": 96, \"num_attention_heads\": 4, \"vocab_size\": 100}",
      "num_key_value_head", "2", "num_key_value_head (is it num_key_value_heads?)");
  expect_note(LLAMA, "quantization_config", "{\"bits\": 4}", "its quantization_config is ignored");
}

static void bad_flags(void **state) {
  (void)state;
  refuse(LLAMA, "tie_word_embeddings", "1", "'tie_word_embeddings'");
  refuse(LLAMA, "attention_bias", "\"no\"", "'attention_bias'");
  refuse(LLAMA, "mlp_bias", "[]", "'mlp_bias'");
  refuse(GPT2, "tie_word_embeddings", "\"true\"", "'tie_word_embeddings'");
}

static void heads_that_do_not_divide(void **state) {
  (void)state;
  refuse(LLAMA, "hidden_size", "66", "'hidden_size' and 'num_attention_heads'");
  refuse(LLAMA, "hidden_size", "66", "'head_dim'");
  refuse(GPT2, "n_embd", "66", "'n_embd' and 'n_head'");
  refuse(LLAMA, "num_key_value_heads", "3", "'num_key_value_heads'");
  refuse(LLAMA, "num_key_value_heads", "3", "'num_attention_heads' (4)");
  refuse(LLAMA, "num_key_value_heads", "8", "'num_key_value_heads'");
}

static void bad_layout(void **state) {
  (void)state;
  refuse(LLAMA, "hocket_layout", "\"megatrom\"", "'hocket_layout'");
  refuse(LLAMA, "hocket_layout", "\"megatrom\"", "\"megatron\"");
  refuse(LLAMA, "hocket_layout", "7", "'hocket_layout'");
  refuse(GPT2, "hocket_layout", "\"megatron\"", "'hocket_layout'");
  refuse(GPT2, "hocket_layout", "\"megatron\"", "GPT2LMHeadModel");
  accept(LLAMA, "hocket_layout", "\"megatron\"");
  accept(LLAMA, "hocket_layout", "\"huggingface\"");
  accept(LLAMA, "hocket_layout", "null");

  char biased[512];
  snprintf(biased, sizeof biased, "{\"attention_bias\": true, %s", LLAMA + 1);
  refuse(biased, "hocket_layout", "\"megatron\"", "with biases");
  snprintf(biased, sizeof biased, "{\"mlp_bias\": true, %s", LLAMA + 1);
  refuse(biased, "hocket_layout", "\"megatron\"", "with biases");
}

/* Each size is at its limit, which is allowed; together they exceed 2^53 parameters. */
static void too_many_parameters(void **state) {
  (void)state;
  const char *huge =
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 10000,"
      "\"hidden_size\": 1048576, \"intermediate_size\": 4194304, \"num_attention_heads\": 16384,"
      "\"head_dim\": 16384, \"vocab_size\": 67108864}";
  refuse(huge, "max_position_embeddings", "2048", "fewer than 2^53");
  refuse(huge, "num_hidden_layers", "10001", "'num_hidden_layers'");
  refuse(huge, "hidden_size", "1048577", "'hidden_size'");
  refuse(huge, "intermediate_size", "4194305", "'intermediate_size'");
  refuse(huge, "num_attention_heads", "16385", "'num_attention_heads'");
  refuse(huge, "head_dim", "16385", "'head_dim'");
  refuse(huge, "vocab_size", "67108865", "'vocab_size'");
  accept(LLAMA, "num_hidden_layers", "10000");
  accept(LLAMA, "vocab_size", "67108864");
}

static void not_an_object(void **state) {
  (void)state;
  hk_model model = {0};
  hk_error err = {0};
  cJSON *list = cJSON_Parse("[1, 2]");
  assert_int_equal(hk_model_from_config(list, "list", &model, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "JSON object"));
  assert_int_equal(hk_model_from_config(NULL, "null", &model, &err), HK_INPUT);
  cJSON_Delete(list);
}

static void refuse_file(const char *path, const char *text, const char *message) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
  hk_model model;
  hk_error err = {0};
  hk_status status = hk_model_load(path, &model, &err);
  assert_int_equal(remove(path), 0);
  assert_int_equal(status, HK_INPUT);
  assert_int_equal(strncmp(err.message, path, strlen(path)), 0); /* the file comes first */
  assert_non_null(strstr(err.message, message));
  hk_model_free(&model); /* safe after a failure */
}

static void messages_name_the_file(void **state) {
  (void)state;
  char folder[] = "hk_model_errors_XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/bad.json", folder);
  refuse_file(path, "{}", "'architectures'");
  refuse_file(path, "{\"architectures\": [\"GPT2LMHeadModel\"]}", "'n_layer', 'n_embd'");
  refuse_file(path, "{\"architectures\": [", ".json");
  refuse_file(path, "", ".json");
  assert_int_equal(rmdir(folder), 0);
}

static void unknown_names(void **state) {
  (void)state;
  hk_model model;
  hk_error err = {0};
  assert_int_equal(hk_model_load("llama-2-7c", &model, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "llama-2-7c"));
  assert_non_null(strstr(err.message, "llama-2-7b")); /* the nearest */
  assert_int_equal(hk_model_load("no/such/config.json", &model, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "no/such/config.json"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(model_types),
      cmocka_unit_test(missing_keys_together),
      cmocka_unit_test(impossible_experts),
      cmocka_unit_test(bad_lists),
      cmocka_unit_test(keys_that_are_not_used),
      cmocka_unit_test(bad_architecture),
      cmocka_unit_test(bad_numbers),
      cmocka_unit_test(not_a_number),
      cmocka_unit_test(missing_keys),
      cmocka_unit_test(bad_flags),
      cmocka_unit_test(heads_that_do_not_divide),
      cmocka_unit_test(bad_layout),
      cmocka_unit_test(too_many_parameters),
      cmocka_unit_test(not_an_object),
      cmocka_unit_test(messages_name_the_file),
      cmocka_unit_test(unknown_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
