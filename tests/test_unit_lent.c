/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Plans with lent memory: which weights find room and how much may be lent after each block, worked
 * out by hand; the plan document; peaks of the simulated curve; the search. */
#include <stdio.h>
#include <stdlib.h>

#include "sim/overlap.h"
#include "tests/fixture_blocks.h"
#include "tests/random.h"

enum { BLOCKS = 6 };
#define MB 1000000LL

/* Copies at 55 GB/s, AdamW at 5.5 G parameters/s. */
static hk_machine node(void) {
  hk_machine m = ideal_machine();
  m.cores.value = 16;
  m.h2d.value = m.d2h.value = 55e9;
  m.duplex.value = 95e9;
  m.gpu_hbm.value = 4e12;
  m.cpu_adamw.value = 5.5e9;
  m.host_memory.value = 1e12;
  m.gpu_memory.value = 80e9;
  return m;
}

/* A token has 1000 bytes of activations in each block. */
static hk_job job_of(int tokens) {
  return (hk_job){.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = tokens, .grad_accum = 1, .seq = 1};
}

/* A plan of the zero-offload policy that runs ahead everywhere. */
static hk_plan planned(const hk_model *model, const hk_machine *m, int tokens, bool borrow) {
  hk_error err = {0};
  hk_plan plan;
  const hk_job job = job_of(tokens);
  const hk_plan_settings settings = {.overlap = HK_OVERLAP_BOTH, .borrow = borrow};
  const hk_candidate all_cpu = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  must(hk_candidate_plan(&all_cpu, model, m, &job, &settings, &plan, &err), &err);
  assert_int_equal(hk_plan_ahead(&plan), model->parameters);
  return plan;
}

/* Six blocks of 100 M parameters (200 MB of weights and of gradients) and 100 MB of activations.
 *
 *   backward of block b uses  U(b) = 100 (b + 1) + 200 MB, the most is P = U(5) = 800
 *   below block b             N(b) = U(b - 1), N(0) = 0
 *
 *   b              5    4    3    2    1    0
 *   P - N(b)     100  200  300  400  500  800   may be lent after it
 *   weights of b  no  200   no  400   no  600   in all, where they find room
 */
static const hk_bytes AFTER[BLOCKS] = {800 * MB, 500 * MB, 400 * MB, 300 * MB, 200 * MB, 100 * MB};

static hk_plan by_hand(bool borrow) {
  const hk_machine m = node();
  hk_model model = equal_blocks(BLOCKS, 100 * MB, 1e-4, 2e-4);
  hk_plan plan = planned(&model, &m, 100000, borrow);
  hk_model_free(&model);
  assert_int_equal(plan.n_subgroups, BLOCKS);
  return plan;
}

static void room_is_as_worked_out(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = by_hand(false);
  assert_int_equal(plan.lending.n, 0);
  must(hk_plan_lend_room(&plan, &err), &err);
  assert_int_equal(plan.lending.n, BLOCKS);
  for (int b = 0; b < BLOCKS; b++) {
    assert_int_equal(plan.lending.after[b], AFTER[b]);
    assert_int_equal(plan.subgroups[b].lent, b % 2 == 0);
    assert_int_equal(plan.subgroups[b].early, b % 2 == 0);
  }
  hk_plan_free(&plan);
}

/* Early weights with memory of their own (block 4) need no lent memory. Others can use it. */
static void early_weights_of_their_own_need_no_room(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = by_hand(false);
  plan.subgroups[4].early = true;
  must(hk_plan_lend_room(&plan, &err), &err);
  static const bool lent[BLOCKS] = {true, false, true, true, false, false};
  for (int b = 0; b < BLOCKS; b++) assert_int_equal(plan.subgroups[b].lent, lent[b]);
  hk_plan_free(&plan);
}

static hk_forecast forecast(hk_plan *plan) {
  hk_error err = {0};
  hk_forecast f;
  const hk_machine m = node();
  const hk_sim_options options = {.check = true};
  must(hk_forecast_make(plan, &m, &options, &f, &err), &err);
  return f;
}

/* A forecast counts the weights that are sure to find room, 600 MB. In a run there may be more. */
static void a_forecast_counts_what_surely_finds_room(void **state) {
  (void)state;
  char text[200];
  hk_plan plan = by_hand(true), plain = by_hand(false);
  assert_int_equal(hk_plan_lent(&plan), 600 * MB);
  hk_forecast f = forecast(&plan), other = forecast(&plain);
  assert_int_equal(hk_forecast_lent(&f), 600 * MB);
  assert_int_equal(hk_forecast_lent(&other), 0);
  assert_int_equal(f.result.memory.peak, other.result.memory.peak);
  assert_string_equal(
      hk_lent_reason(&f, text, sizeof text),
      "New weights wait for the norm in memory of at most 763 MiB that backward has "
      "freed; 572 MiB of them are certain to find room.");
  hk_forecast_free(&f);
  hk_forecast_free(&other);
}

/* -- Documents -------------------------------------------------------------------------------- */

static const char KEY[] = "lent_bytes_after_block";

static void the_document_says_how_much_and_when(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = by_hand(true), again, copy;
  cJSON *document = hk_plan_to_json(&plan);
  const cJSON *after = cJSON_GetObjectItem(document, KEY);
  assert_int_equal(cJSON_GetArraySize(after), BLOCKS);
  must(hk_plan_from_json(document, &again, &err), &err);
  must(hk_plan_copy(&again, &copy, &err), &err);
  for (int b = 0; b < BLOCKS; b++) {
    assert_true(cJSON_GetArrayItem(after, b)->valuedouble == (double)AFTER[b]);
    assert_int_equal(copy.lending.after[b], AFTER[b]);
  }
  cJSON *same = hk_plan_to_json(&copy);
  assert_true(cJSON_Compare(document, same, true));
  cJSON_Delete(same);
  cJSON_Delete(document);
  hk_plan_set_overlap(&copy, HK_OVERLAP_BOTH); /* nothing is lent any more */
  document = hk_plan_to_json(&copy);
  assert_null(cJSON_GetObjectItem(document, KEY));
  cJSON_Delete(document);
  hk_plan_free(&plan);
  hk_plan_free(&again);
  hk_plan_free(&copy);
}

/* A document that allows 250 MB after each block leaves room for one block's weights. */
static void forecasts_respect_the_document(void **state) {
  (void)state;
  hk_plan plan = by_hand(true);
  for (int b = 0; b < BLOCKS; b++) plan.lending.after[b] = 250 * MB;
  hk_forecast f = forecast(&plan);
  assert_int_equal(hk_forecast_lent(&f), 200 * MB); /* block 4 */
  hk_forecast_free(&f);
}

static void wrong_documents_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *array, *says;
  } wrong[] = {{"[1, 2]", "2 entries, but equal has 6 blocks"},
               {"[1, 2, 3, 4, 5, -6]", "entry 5: expected a number of bytes"},
               {"[1, \"2\"]", "entry 1: expected a number of bytes"},
               {"7", "lent_bytes_after_block"}};
  hk_plan plan = by_hand(true), again;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    hk_error err = {0};
    cJSON *document = hk_plan_to_json(&plan);
    cJSON_ReplaceItemInObject(document, KEY, cJSON_Parse(wrong[i].array));
    assert_int_equal(hk_plan_from_json(document, &again, &err), HK_INPUT);
    if (strstr(err.message, wrong[i].says) == NULL) fail_msg("'%s'", err.message);
    cJSON_Delete(document);
  }
  hk_plan_free(&plan);
}

/* -- Peaks ------------------------------------------------------------------------------------ */

/* On machines with random rates, lent memory does not change the peak of the simulated curve. */
static void peaks_stay_as_they_are(void **state) {
  (void)state;
  int lent = 0;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    random_stream r = {seed * 7919};
    hk_error err = {0};
    hk_machine m = node();
    m.h2d.value = scale(&r, 1e9, 1e11);
    m.d2h.value = scale(&r, 1e9, 1e11);
    m.duplex.value = m.h2d.value + m.d2h.value;
    m.cpu_adamw.value = scale(&r, 5e8, 1e11);
    const int tokens = (int)scale(&r, 10000, 1000000), blocks = pick(&r, 2, 16);
    const double forward = scale(&r, 1, 100) / tokens;
    hk_model model =
        equal_blocks(blocks, (int64_t)scale(&r, 2e6, 3e8), forward, forward * scale(&r, 1, 4));
    hk_plan plans[] = {planned(&model, &m, tokens, false), planned(&model, &m, tokens, true)};
    hk_forecast f[2];
    for (int i = 0; i < 2; i++) must(hk_forecast_make(&plans[i], &m, NULL, &f[i], &err), &err);
    if (f[1].result.memory.peak != f[0].result.memory.peak)
      fail_msg("seed %d: peak of %lld bytes, %lld without lent memory", (int)seed,
               (long long)f[1].result.memory.peak, (long long)f[0].result.memory.peak);
    lent += hk_forecast_lent(&f[1]) > 0;
    hk_forecast_free(&f[0]);
    hk_forecast_free(&f[1]);
    hk_model_free(&model);
  }
  assert_true(lent > 30); /* enough plans must lend memory */
}

/* -- The search ------------------------------------------------------------------------------- */

static hk_overlap_search_result searched(const hk_machine *m, bool borrow, hk_bytes limit) {
  hk_error err = {0};
  hk_overlap_search_result r;
  const hk_job job = job_of(400000);
  hk_model model = equal_blocks(12, 100 * MB, 6.0 / 400000, 13.0 / 400000);
  const hk_plan_settings settings = {
      .overlap = HK_OVERLAP_BOTH, .gpu_state = &limit, .borrow = borrow};
  must(hk_overlap_search(&model, m, &job, &settings, &r, &err), &err);
  hk_model_free(&model);
  return r;
}

/* Uploads take longer than forward: weights that are early save time. */
static void the_search_counts_the_gain(void **state) {
  (void)state;
  char text[1000];
  hk_machine m = node();
  m.h2d.value = 20e9;
  m.cpu_adamw.value = 2e10;
  hk_overlap_search_result plain = searched(&m, false, 0), lent = searched(&m, true, 0);
  assert_true(hk_plan_lent(&plain.best.plan) == 0 && hk_plan_lent(&lent.best.plan) > 0);
  assert_int_equal(plain.not_lent_ns, 0);
  assert_int_equal(lent.not_lent_ns, plain.best.iteration_ns);
  assert_true((double)lent.best.iteration_ns < 0.95 * (double)plain.best.iteration_ns);
  assert_int_equal(lent.best.result.memory.peak, plain.best.result.memory.peak);
  hk_overlap_reason(&lent, &m, text, sizeof text);
  assert_non_null(strstr(text, "in memory of at most"));
  assert_non_null(strstr(text, "Without that the same plan would take"));
  hk_forecast_free(&plain.best);
  hk_forecast_free(&lent.best);
}

/* GPU memory for early weights goes to those that are not sure to find room in lent memory. */
static void lent_memory_goes_first(void **state) {
  (void)state;
  const hk_machine m = node();
  hk_overlap_search_result plain = searched(&m, false, 900 * MB),
                           lent = searched(&m, true, 900 * MB);
  assert_int_equal(hk_plan_early(&plain.best.plan), 400 * MB);
  assert_true(hk_plan_lent(&lent.best.plan) >= 800 * MB);
  assert_true(lent.best.result.memory.peak <= plain.best.result.memory.peak);
  hk_forecast_free(&plain.best);
  hk_forecast_free(&lent.best);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(room_is_as_worked_out),
      cmocka_unit_test(early_weights_of_their_own_need_no_room),
      cmocka_unit_test(a_forecast_counts_what_surely_finds_room),
      cmocka_unit_test(the_document_says_how_much_and_when),
      cmocka_unit_test(forecasts_respect_the_document),
      cmocka_unit_test(wrong_documents_are_refused),
      cmocka_unit_test(peaks_stay_as_they_are),
      cmocka_unit_test(the_search_counts_the_gain),
      cmocka_unit_test(lent_memory_goes_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
