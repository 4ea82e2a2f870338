/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Steps of several backwards on a GPU, without a wait between hand-overs: sums that stay in device
 * memory, and sums that leave and are fetched back, give the bits of plain AdamW, whatever the
 * number of backwards. Skipped (77) without a CUDA device; `--backend host` runs it anywhere. */
#include <sys/mman.h>

#include "engine/train/training_private.h"
#include "tests/fixture_training.h"

enum { LAYERS = 20, LAYER = 300000, MOST_BACKWARDS = 5 };

static const hk_backend_ops *backend;
/* Host memory that the device accesses: weights, and the gradients of each backward. */
static uint16_t *shared;
static const size_t shared_bytes = sizeof(uint16_t) * LAYERS * LAYER * (1 + MOST_BACKWARDS);

static uint16_t *gradient_of(int backward, size_t layer) {
  return shared + ((size_t)(1 + backward) * LAYERS + layer) * LAYER;
}

static void make_layers(world *w) {
  w->n = LAYERS;
  w->blocks = LAYERS;
  w->n_groups = 1;
  w->groups[0] = (hk_adamw){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    make_tensor(w, i, (int)i, LAYER);
    uint16_t *weight = shared + i * LAYER;
    for (int64_t k = 0; k < LAYER; k++) narrow(HK_GRAD_BF16, t->p[k], weight, k);
    for (int64_t k = 0; k < LAYER; k++) t->p[k] = widen(HK_GRAD_BF16, weight, k);
    t->param.weight_type = t->param.grad_type = HK_GRAD_BF16;
    t->param.weight = weight;
    w->params[i] = t->param;
  }
}

static void open_layers(world *w, hk_overlap overlap, int kept) {
  hk_error err = {0};
  hk_plan plan = {0};
  make_layers(w);
  must(hk_default_plan(w->params, w->n, 2, &plan, &err), &err);
  plan.overlap = overlap;
  plan.sum_bytes = kept * ((hk_bytes)(2 * LAYER + 511) / 512 * 512);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].ahead = overlap == HK_OVERLAP_BOTH;
  }
  const hk_engine_options options = {.backend = backend, .no_pin_threads = true};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, 1, &options, &w->engine, &err), &err);
  hk_plan_free(&plan);
  hk_backend *b = w->engine->backend;
  must(b->ops->host_register(b, shared, (hk_bytes)shared_bytes, &err), &err);
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
}

/* Gradients of all backwards, and their sums as autograd makes them. */
static void draw(world *w, int backwards) {
  for (int m = 0; m < backwards; m++) {
    for (size_t i = 0; i < w->n; i++) {
      tensor *t = &w->tensors[i];
      uint16_t *gradient = gradient_of(m, i);
      for (int64_t k = 0; k < LAYER; k++) {
        narrow(HK_GRAD_BF16, (float)(uniform(&w->r) - 0.5) * 0.01f, gradient, k);
        const float one = widen(HK_GRAD_BF16, gradient, k);
        narrow(HK_GRAD_BF16, m > 0 ? one + widen(HK_GRAD_BF16, t->grad, k) : one, t->grad, k);
      }
      t->given = m + 1;
    }
  }
}

static void iterate(world *w, int backwards) {
  hk_error err = {0};
  hk_step_report report;
  bool there = false;
  draw(w, backwards);
  for (int b = 0; b < w->blocks; b++) {
    must(hk_engine_wait_weights(w->engine, b, NULL, -1, &there, &err), &err);
  }
  for (int m = 0; m < backwards; m++) {
    for (size_t i = w->n; i-- > 0;) {
      const hk_gradient gradient = {(int64_t)i, gradient_of(m, i)};
      must(hk_engine_gradients(w->engine, &gradient, 1, NULL, &err), &err);
    }
    must(hk_engine_flush(w->engine, &err), &err);
  }
  const double squares = plain_squares(w);
  must(hk_engine_step(w->engine, NULL, &report, NULL, &err), &err);
  assert_true(report.grad_norm == sqrt(squares));
  plain_update(w, hk_grad_scale(squares, 0, 1));
  for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
}

static void check(world *w) {
  hk_error err = {0};
  bool there = false;
  float *got = must_have(LAYER, 4);
  must(hk_engine_drain(w->engine, -1, &there, &err), &err);
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    const float *expected[] = {t->p, t->m, t->v};
    assert_memory_equal(t->param.weight, t->expected, 2 * LAYER);
    for (int part = 0; part < 3; part++) {
      must(hk_engine_read(w->engine, (hk_state_part)part, (int64_t)i * LAYER, LAYER, got, &err),
           &err);
      assert_memory_equal(got, expected[part], 4 * LAYER);
    }
  }
  free(got);
}

static void every_number_of_backwards_is_exact(void **unused) {
  (void)unused;
  static const int counts[] = {1, 4, 4, 3, 1, 5, 5};
  static const int kept[] = {0, 5, LAYERS};
  for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) {
    for (int overlap = HK_OVERLAP_NONE; overlap <= HK_OVERLAP_BOTH; overlap++) {
      world w = {.r = {k + 11}};
      open_layers(&w, (hk_overlap)overlap, kept[k]);
      for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        iterate(&w, counts[i]);
        if (i % 3 == 0) check(&w);
      }
      check(&w);
      assert_true(w.engine->training->n_fetched > 0 || kept[k] == LAYERS);
      w.engine->backend->ops->host_unregister(w.engine->backend, shared);
      unmake(&w);
    }
  }
}

int main(int argc, char **argv) {
  hk_error err = {0};
  int devices = 0;
  const bool named = argc == 3 && strcmp(argv[1], "--backend") == 0;
  must(hk_backend_find(named ? argv[2] : "cuda", &backend, &err), &err);
  if (backend->count(&devices, &err) != HK_OK || devices == 0) {
    fprintf(stderr, "skipped: %s\n", err.message);
    return 77;
  }
  shared = mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 3;
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_number_of_backwards_is_exact)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
