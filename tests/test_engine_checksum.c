/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The checksum: equal for equal state under any subgroups, routes and thread count, and
 * different after a changed bit in any part. The model is so large that blocks of the checksum span
 * subgroups, slabs and transfers from the device. */
#include "engine/default_plan.h"
#include "engine/trial.h"
#include "tests/fixture_engine.h"

typedef struct {
  int64_t subgroup, piece;
  int routes; /* number of them in a cycle */
  hk_route route[HK_ROUTE_COUNT];
  int threads;
} variant;

static const variant variants[] = {
    {4000000, 4000000, 1, {HK_ROUTE_CPU}, 2},
    {20000000, 999999, 1, {HK_ROUTE_RESIDENT}, 3},
    {1200011, 700001, 4, {HK_ROUTE_STAGED, HK_ROUTE_CPU, HK_ROUTE_RESIDENT, HK_ROUTE_MAPPED}, 2},
    {2400007, 2400007, 2, {HK_ROUTE_RESIDENT, HK_ROUTE_STAGED}, 1},
};

static hk_plan plan_of(const variant *v) {
  hk_plan plan = wide_plan(v->subgroup);
  plan.piece_numel = v->piece;
  plan.cpu_threads = v->threads;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = v->route[s % (size_t)v->routes];
  }
  return plan;
}

/* An engine after one step of a trial. The state is the same under every plan. */
static hk_engine *engine_of(const variant *v) {
  hk_error err = {0};
  hk_plan plan = plan_of(v);
  const hk_engine_options options = {.no_pin_threads = true};
  hk_engine *engine = NULL;
  must(hk_trial_engine(&plan, &options, &engine, &err), &err);
  hk_plan_free(&plan);
  hk_trial *trial = NULL;
  hk_step_report report;
  must(hk_trial_open(engine, &(hk_trial_options){.seed = 9}, &trial, &err), &err);
  must(hk_trial_step(trial, NULL, &report, &err), &err);
  hk_trial_close(trial);
  return engine;
}

static void take_checksum(hk_engine *engine, char hex[33]) {
  hk_error err = {0};
  must(hk_engine_checksum(engine, hex, &err), &err);
}

/* Flips the lowest bit of element `at`. */
static void turn_bit(hk_engine *engine, hk_state_part part, int64_t at) {
  hk_error err = {0};
  uint32_t bits = 0;
  float value = 0;
  must(hk_engine_read(engine, part, at, 1, &value, &err), &err);
  memcpy(&bits, &value, sizeof bits);
  bits ^= 1;
  memcpy(&value, &bits, sizeof bits);
  must(hk_engine_write(engine, part, at, 1, &value, &err), &err);
}

/* Tries the first and the last parameter, and those on both sides of 2^23: so many parameters are
 * copied from the device at a time. */
static void assert_every_bit_counts(hk_engine *engine, const char *whole) {
  const int64_t n = hk_engine_numel(engine);
  const int64_t places[] = {0, ((int64_t)1 << 23) - 1, (int64_t)1 << 23, n - 1};
  assert_true(n > (int64_t)1 << 23);
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
      char hex[33];
      turn_bit(engine, (hk_state_part)part, places[i]);
      take_checksum(engine, hex);
      assert_string_not_equal(hex, whole);
      turn_bit(engine, (hk_state_part)part, places[i]);
    }
  }
  char again[33];
  take_checksum(engine, again);
  assert_string_equal(again, whole);
}

static void the_plan_does_not_count_and_every_bit_does(void **unused) {
  (void)unused;
  char first[33], hex[33];
  for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
    hk_engine *engine = engine_of(&variants[i]);
    take_checksum(engine, i == 0 ? first : hex);
    if (i > 0) assert_string_equal(hex, first);
    if (i == 2) assert_every_bit_counts(engine, first);
    hk_engine_destroy(engine);
  }
}

/* -- Engines of tensors ------------------------------------------------------------------------ */

/* Tensors of less than a block, of one block, of several blocks; together more than a slab. */
static const int64_t numels[] = {7, (int64_t)1 << 17, 300001, 1, 900000};
enum { TENSORS = sizeof numels / sizeof numels[0] };
static const uint64_t keys[TENSORS] = {30, 10, 40, 11, 50};

/* Tensors in the order first, first + by, first + 2 by, ... modulo their number, with values that
 * depend on the tensor alone. Every other subgroup lies on the device. */
static hk_engine *engine_of_tensors(size_t first, size_t by, bool named) {
  hk_error err = {0};
  hk_param params[TENSORS] = {0};
  for (size_t i = 0; i < TENSORS; i++) {
    const size_t t = (first + i * by) % TENSORS;
    params[i] = (hk_param){.numel = numels[t],
                           .block = (int32_t)i,
                           .weight_type = HK_GRAD_BF16,
                           .grad_type = HK_GRAD_BF16,
                           .key = named ? keys[t] : 0};
  }
  const hk_adamw group = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  const hk_engine_options options = {.no_pin_threads = true};
  hk_plan plan = {0};
  hk_engine *engine = NULL;
  must(hk_default_plan(params, TENSORS, 2, &plan, &err), &err);
  plan.piece_numel = 100003;
  for (size_t s = first % 2; s < plan.n_subgroups; s += 2) {
    plan.subgroups[s].route = HK_ROUTE_RESIDENT;
  }
  must(hk_engine_create(&plan, params, TENSORS, &group, 1, &options, &engine, &err), &err);
  hk_plan_free(&plan);
  float *values = must_have(900000, 4);
  for (size_t i = 0; i < TENSORS; i++) {
    int64_t begin = 0;
    random_stream r = {7 + (first + i * by) % TENSORS};
    hk_engine_param(engine, i, &begin);
    for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
      for (int64_t k = 0; k < params[i].numel; k++) values[k] = (float)uniform(&r);
      must(hk_engine_write(engine, (hk_state_part)part, begin, params[i].numel, values, &err),
           &err);
    }
  }
  free(values);
  return engine;
}

static void the_order_of_named_tensors_does_not_count(void **unused) {
  (void)unused;
  char first[33], hex[33];
  hk_engine *engine = engine_of_tensors(0, 1, true);
  take_checksum(engine, first);
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    const int64_t places[] = {0, 6, 7, hk_engine_numel(engine) - 1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
      turn_bit(engine, (hk_state_part)part, places[i]);
      take_checksum(engine, hex);
      assert_string_not_equal(hex, first);
      turn_bit(engine, (hk_state_part)part, places[i]);
    }
  }
  hk_engine_destroy(engine);
  for (size_t by = 1; by < TENSORS; by++) {
    engine = engine_of_tensors(by, by, true);
    take_checksum(engine, hex);
    assert_string_equal(hex, first);
    hk_engine_destroy(engine);
    engine = engine_of_tensors(by, by, false);
    take_checksum(engine, hex);
    assert_string_not_equal(hex, first);
    hk_engine_destroy(engine);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_plan_does_not_count_and_every_bit_does),
      cmocka_unit_test(the_order_of_named_tensors_does_not_count),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
