/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Checkpoints of training: they have each tensor's step, group and (version 3) the hash of its
 * name. A file with another length, a changed bit or another model is refused and leaves the engine
 * unchanged. */
#include <unistd.h>
#include <xxhash.h>

#include "tests/fixture_training.h"

static char path[64];

/* A model of n tensors of 40, 41, ... parameters, a block each, in two groups. */
static void make_small(world *w, uint64_t seed, size_t n) {
  *w = (world){.r = {seed}, .n = n, .blocks = (int)n, .n_groups = 2};
  for (size_t g = 0; g < 2; g++) {
    w->groups[g] = (hk_adamw){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  }
  for (size_t i = 0; i < n; i++) {
    make_tensor(w, i, (int)i, 40 + (int64_t)i);
    w->params[i].group = w->tensors[i].param.group = i > 1;
  }
  make_engine(w, NULL);
}

/* Takes n steps, each without one of the first three tensors: their step numbers differ. */
static void train(world *w, int n) {
  hk_error err = {0};
  hk_step_report report;
  for (int i = 0; i < n; i++) {
    forward(w);
    for (size_t k = w->n; k-- > 0;) {
      if (k != (size_t)i % 3) hand_over(w, k, true);
    }
    const double squares = plain_squares(w);
    must(hk_engine_step(w->engine, NULL, &report, NULL, &err), &err);
    plain_update(w, hk_grad_scale(squares, 0, 1));
    for (size_t k = 0; k < w->n; k++) w->tensors[k].given = 0;
  }
}

static void save(world *w) {
  hk_error err = {0};
  must(hk_engine_save(w->engine, path, NULL, NULL, &err), &err);
}

static char *read_all(size_t *size) {
  char *bytes = must_have(1 << 16, 1);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  *size = fread(bytes, 1, 1 << 16, file);
  assert_true(*size < 1 << 16 && fclose(file) == 0);
  return bytes;
}

static void write_all(const char *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_true(fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* Loads the file into `to` and sets its expected values to those of `from`, which was saved. */
static void assert_loads(world *to, const world *from) {
  hk_error err = {0};
  must(hk_engine_load(to->engine, path, NULL, NULL, &err), &err);
  must(hk_engine_weights_from_masters(to->engine, -1, NULL, &err), &err);
  for (size_t i = 0; i < to->n; i++) {
    tensor *t = &to->tensors[i];
    const tensor *f = &from->tensors[i];
    const size_t n = (size_t)t->param.numel;
    memcpy(t->p, f->p, 4 * n);
    memcpy(t->m, f->m, 4 * n);
    memcpy(t->v, f->v, 4 * n);
    t->step = f->step;
    for (size_t k = 0; k < n; k++) narrow(t->param.weight_type, t->p[k], t->expected, (int64_t)k);
  }
  for (size_t g = 0; g < to->n_groups; g++) {
    hk_adamw group;
    must(hk_engine_get_group(to->engine, g, &group, &err), &err);
    assert_memory_equal(&group, &from->groups[g], sizeof group);
    to->groups[g] = from->groups[g];
  }
  assert_int_equal(hk_engine_step_number(to->engine), hk_engine_step_number(from->engine));
}

static void steps_and_groups_go_along(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 20; number++) {
    hk_error err = {0};
    world w, other; /* the same tensors: the seed makes them; other routes and overlaps */
    make_small(&w, 60, 7);
    make_small(&other, 60, 7);
    hk_engine_destroy(other.engine);
    other.r.state += number;
    make_engine(&other, NULL);
    train(&w, 4);
    w.groups[1].lr = 3e-3;
    must(hk_engine_set_group(w.engine, 1, &w.groups[1], &err), &err);
    must(hk_engine_set_tensor_step(w.engine, 5, 17, &err), &err);
    w.tensors[5].step = 17;
    save(&w);
    train(&other, (int)number % 3);
    if (number % 2 == 0) hand_over(&other, 2, true); /* loading discards it */
    other.tensors[2].given = 0;
    assert_loads(&other, &w);
    assert_state(&other);
    train(&other, 3);
    assert_state(&other);
    unmake(&other);
    unmake(&w);
  }
  unlink(path);
}

static void assert_refused(world *w, const char *what) {
  hk_error err = {0};
  const hk_status status = hk_engine_load(w->engine, path, NULL, NULL, &err);
  if (status != HK_INPUT || strstr(err.message, what) == NULL)
    fail_msg("'%s', expected '%s'", err.message, what);
}

static void damaged_files_are_refused(void **unused) {
  (void)unused;
  world w;
  size_t size = 0;
  make_small(&w, 61, 3);
  train(&w, 2);
  save(&w);
  char *good = read_all(&size), *bad = must_have(size + 8, 1);
  train(&w, 1);
  hand_over(&w, 0, true); /* a refused load must keep it */
  for (size_t length = 0; length < size; length += length < 400 ? 1 : 37) {
    write_all(good, length);
    assert_refused(&w, path);
  }
  memcpy(bad, good, size);
  write_all(bad, size + 8);
  assert_refused(&w, "bytes");
  for (size_t bit = 0; bit < 8 * size; bit += bit < 8 * 300 ? 1 : 13) {
    bad[bit / 8] ^= (char)(1 << bit % 8);
    write_all(bad, size);
    assert_refused(&w, path);
    bad[bit / 8] ^= (char)(1 << bit % 8);
  }
  hk_error err = {0};
  hk_step_report report;
  const double squares = plain_squares(&w);
  must(hk_engine_step(w.engine, NULL, &report, NULL, &err), &err);
  assert_int_equal(report.params, 1);
  plain_update(&w, hk_grad_scale(squares, 0, 1));
  w.tensors[0].given = 0;
  assert_state(&w);
  free(good);
  free(bad);
  unlink(path);
  unmake(&w);
}

static void other_models_are_refused(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w, other;
  make_small(&w, 62, 4);
  save(&w);
  make_small(&other, 62, 5);
  assert_refused(&other, "parameters");
  unmake(&other);
  /* As many elements in tensors of other sizes; tensors in other groups. */
  make_small(&other, 62, 4);
  hk_param params[4];
  for (int change = 0; change < 3; change++) {
    hk_engine_destroy(other.engine);
    memcpy(params, other.params, sizeof params);
    if (change == 0) {
      params[0].numel += 3;
      params[1].numel -= 3;
      params[0].weight = params[1].weight = NULL;
    }
    if (change > 0) params[2].group = 1 - params[2].group;
    if (change == 2) params[3].group = 1 - params[3].group;
    hk_plan plan = {0};
    must(hk_default_plan(params, 4, 1, &plan, &err), &err);
    const hk_engine_options options = {.no_pin_threads = true};
    must(hk_engine_create(&plan, params, 4, other.groups, 2, &options, &other.engine, &err), &err);
    hk_plan_free(&plan);
    assert_refused(&other, change == 0 ? "tensor 0" : "group");
  }
  unmake(&other);
  assert_state(&w);
  unlink(path);
  unmake(&w);
}

/* -- Tensors in another order ---------------------------------------------------------------- */

enum { NAMED = 7 };

/* A model whose tensors have keys 1 to NAMED, trained and saved. */
static void make_named(world *w) {
  make_small(w, 63, NAMED);
  hk_engine_destroy(w->engine);
  for (size_t i = 0; i < NAMED; i++) w->params[i].key = w->tensors[i].param.key = i + 1;
  make_engine(w, NULL);
  train(w, 4);
  save(w);
}

/* An engine of the same tensors in reverse order. */
static void reverse(const world *w, world *out) {
  hk_error err = {0};
  hk_plan plan = {0};
  const hk_engine_options options = {.no_pin_threads = true};
  *out = (world){.n = NAMED, .n_groups = w->n_groups};
  memcpy(out->groups, w->groups, sizeof out->groups);
  for (size_t i = 0; i < NAMED; i++) {
    out->params[i] = w->params[NAMED - 1 - i];
    out->params[i].block = (int32_t)i;
    out->params[i].weight = NULL;
  }
  must(hk_default_plan(out->params, NAMED, 1, &plan, &err), &err);
  must(hk_engine_create(&plan, out->params, NAMED, out->groups, out->n_groups, &options,
                        &out->engine, &err),
       &err);
  hk_plan_free(&plan);
}

/* Tensor `number` of the engine has p, m, v and steps of `from`. */
static void assert_is(hk_engine *e, size_t number, const tensor *from) {
  hk_error err = {0};
  const float *parts[] = {from->p, from->m, from->v};
  const int64_t n = from->param.numel;
  float *found = must_have((size_t)n, 4);
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    const int64_t at = e->param_end[number] - n;
    must(hk_engine_read(e, (hk_state_part)part, at, n, found, &err), &err);
    assert_memory_equal(found, parts[part], 4 * (size_t)n);
  }
  int64_t step = 0;
  must(hk_engine_get_tensor_step(e, number, &step, &err), &err);
  assert_int_equal(step, from->step);
  free(found);
}

static void names_find_tensors_in_another_order(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w, other;
  make_named(&w);
  reverse(&w, &other);
  must(hk_engine_load(other.engine, path, NULL, NULL, &err), &err);
  for (size_t i = 0; i < NAMED; i++) assert_is(other.engine, NAMED - 1 - i, &w.tensors[i]);
  char mine[33], its[33];
  must(hk_engine_checksum(w.engine, mine, &err), &err);
  must(hk_engine_checksum(other.engine, its, &err), &err);
  assert_string_equal(mine, its);
  hk_engine_destroy(other.engine);

  w.params[2].key = 99;
  reverse(&w, &other);
  assert_refused(&other, "other names");
  hk_engine_destroy(other.engine);
  /* A tensor without a name (key 0), two of the same name (key 1): tensors are matched by number.
   */
  for (uint64_t key = 0; key < 2; key++) {
    w.params[2].key = key;
    reverse(&w, &other);
    assert_refused(&other, "tensor 0 has");
    hk_engine_destroy(other.engine);
  }
  unlink(path);
  unmake(&w);
}

/* Rewrites the file as version 2: without keys. */
static void forget_names(void) {
  enum { HEAD = 32, GROUP = 48, WITH = 32, WITHOUT = 24 };
  size_t size = 0;
  const uint32_t version = 2;
  char *bytes = read_all(&size);
  uint32_t groups = 0;
  memcpy(bytes + 8, &version, sizeof version);
  memcpy(&groups, bytes + 12, sizeof groups);
  uint64_t sum = XXH3_64bits(bytes, HEAD);
  size_t at = HEAD;
  for (uint32_t g = 0; g < groups; g++, at += GROUP) {
    sum = XXH3_64bits_withSeed(bytes + at, GROUP, sum);
  }
  sum = XXH3_64bits_withSeed(bytes + at, 8, sum);
  size_t from = at += 8;
  for (size_t p = 0; p < NAMED; p++, from += WITH, at += WITHOUT) {
    memmove(bytes + at, bytes + from, WITHOUT);
    sum = XXH3_64bits_withSeed(bytes + at, WITHOUT, sum);
  }
  memcpy(bytes + at, &sum, sizeof sum);
  memmove(bytes + at + 8, bytes + from + 8, size - from - 8);
  write_all(bytes, size - NAMED * (WITH - WITHOUT));
  free(bytes);
}

static void files_without_names_are_read_in_order(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w, other;
  make_named(&w);
  forget_names();
  must(hk_engine_load(w.engine, path, NULL, NULL, &err), &err);
  for (size_t i = 0; i < NAMED; i++) assert_is(w.engine, i, &w.tensors[i]);
  reverse(&w, &other);
  assert_refused(&other, "tensor 0 has");
  hk_engine_destroy(other.engine);
  unlink(path);
  unmake(&w);
}

int main(void) {
  snprintf(path, sizeof path, "training-%d.ck", (int)getpid());
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_and_groups_go_along),
      cmocka_unit_test(damaged_files_are_refused),
      cmocka_unit_test(other_models_are_refused),
      cmocka_unit_test(names_find_tensors_in_another_order),
      cmocka_unit_test(files_without_names_are_read_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
