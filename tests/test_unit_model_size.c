/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Models known by their size only: --params N --layers L --hidden H. */
#include <math.h>

#include "core/graph/plan.h"
#include "core/model/model.h"
#include "tests/fixture.h"

static hk_model make(hk_model_size size) {
  hk_model model;
  hk_error err = {0};
  must(hk_model_from_size(&size, &model, &err), &err);
  return model;
}

static void refuse(hk_model_size size, const char *says) {
  hk_model model;
  hk_error err = {0};
  assert_int_equal(hk_model_from_size(&size, &model, &err), HK_INPUT);
  if (!strstr(err.message, says)) fail_msg("'%s' does not say '%s'", err.message, says);
  assert_null(model.tensors);
}

/* Size, layers and hidden width of published models give their MLP width, heads and vocabulary. */
static void published_shapes(void **state) {
  (void)state;
  hk_model m = make(
      (hk_model_size){.parameters = 6738415616, .layers = 32, .hidden = 4096}); /* Llama-2-7B */
  assert_int_equal(m.parameters, 6738415616);
  assert_int_equal(m.ffn, 11008);
  assert_int_equal(m.heads, 32);
  assert_int_equal(m.vocab, 32000);
  assert_int_equal(m.n_notes, 1);
  assert_non_null(strstr(m.notes[0], "MLPs of width 11008, 32 heads of 128, vocabulary of 32000"));
  hk_model_free(&m);
  m = make((hk_model_size){
      .parameters = 13015864320, .layers = 40, .hidden = 5120, .heads = 40, .vocab = 32000});
  assert_int_equal(m.ffn, 13824);
  assert_string_equal(m.name, "13G-40x5120");
  hk_model_free(&m);
}

/* The MLP's width is a multiple of 16 (any number for tiny models); parameters are within 0.1 %. */
static void sizes_are_met(void **state) {
  (void)state;
  const hk_model_size sizes[] = {
      {.parameters = 1000000000, .layers = 16, .hidden = 2048},
      {.parameters = 33333333333, .layers = 60, .hidden = 6656, .vocab = 128000},
      {.parameters = 405000000000, .layers = 126, .hidden = 16384, .vocab = 128256},
      {.parameters = 300000, .layers = 2, .hidden = 64, .vocab = 1000},
  };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    hk_model m = make(sizes[i]);
    const double wanted = (double)sizes[i].parameters;
    assert_true(fabs((double)m.parameters - wanted) < 1.01e-3 * wanted);
    assert_int_equal(m.layers, sizes[i].layers);
    assert_int_equal(m.hidden, sizes[i].hidden);
    hk_model_free(&m);
  }
}

/* A plan file keeps the shape, and reading it repeats the notes on assumed values. */
static void kept_by_a_plan(void **state) {
  (void)state;
  hk_model m =
      make((hk_model_size){.parameters = 300000, .layers = 2, .hidden = 64, .vocab = 1000});
  const hk_job job = {
      .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 128};
  const int64_t parameters = m.parameters;
  hk_error err = {0};
  hk_plan plan, again;
  must(hk_plan_create(&m, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_BLOCKS, 100000, &plan, &err), &err);
  cJSON *document = hk_plan_to_json(&plan);
  must(hk_plan_from_json(document, &again, &err), &err);
  assert_int_equal(again.model.parameters, parameters);
  assert_non_null(strstr(again.model.notes[0], "shaped like Llama for --params"));
  cJSON_Delete(document);
  hk_plan_free(&plan);
  hk_plan_free(&again);
}

static void impossible_shapes(void **state) {
  (void)state;
  const int64_t G = 1000000000;
  refuse((hk_model_size){.parameters = 7 * G}, "--params needs --layers and --hidden, too");
  refuse((hk_model_size){.parameters = 7 * G}, "7 G parameters is --layers 33 --hidden 4096");
  refuse((hk_model_size){.parameters = 7 * G, .layers = 32}, "needs --hidden, too");
  refuse((hk_model_size){.parameters = 7 * G, .hidden = 4096}, "needs --layers, too");
  refuse((hk_model_size){.parameters = 1 * G, .layers = 32, .hidden = 4096},
         "32 layers of hidden 4096 have 2.41 G parameters without their MLPs");
  refuse((hk_model_size){.parameters = 1 * G, .layers = 32, .hidden = 4096},
         "a typical shape of 1 G parameters is --layers 17 --hidden 2048");
  refuse((hk_model_size){.parameters = 70 * G, .layers = 2, .hidden = 1024},
         "with 32 times they have 0.2753 G");
  refuse((hk_model_size){.parameters = 7 * G, .layers = 32, .hidden = 1000},
         "give --heads, or --hidden 1024");
  refuse((hk_model_size){.parameters = 7 * G, .layers = 32, .hidden = 4096, .heads = 30},
         "16 or 32 heads could");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_shapes),
      cmocka_unit_test(sizes_are_met),
      cmocka_unit_test(kept_by_a_plan),
      cmocka_unit_test(impossible_shapes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
