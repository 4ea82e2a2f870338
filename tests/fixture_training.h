/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A model of random tensors in blocks, an engine that trains it, and plain AdamW, whose bits the
 * engine must reproduce. The engines of fixture_engine.h have one flat array instead. */
#ifndef HK_TESTS_FIXTURE_TRAINING_H
#define HK_TESTS_FIXTURE_TRAINING_H

#include "engine/engine.h"

#include <math.h>

#include "engine/adamw/adamw_kernels.h"
#include "engine/default_plan.h"
#include "engine/private.h"
#include "tests/fixture_engine.h"

enum { MOST_TENSORS = 24 };

/* A tensor of the framework, and its state by plain AdamW. */
typedef struct {
  hk_param param;
  float *p, *m, *v;
  void *weight;   /* written by the engine */
  void *expected; /* the weight by plain AdamW */
  void *grad;     /* sum of the gradients handed over, in their type */
  void *handed;   /* the gradient handed over; overwritten at once */
  int given;      /* gradients handed over since the last step */
  int64_t step;
} tensor;

typedef struct {
  random_stream r;
  tensor tensors[MOST_TENSORS];
  hk_param params[MOST_TENSORS];
  size_t n;
  int blocks;
  hk_adamw groups[3];
  size_t n_groups;
  hk_engine *engine;
  bool by_block; /* gradients are clipped by block */
  hk_format format;
  uint64_t seed;
} world;

/* -- Elements ---------------------------------------------------------------------------------- */

static inline float widen(hk_grad_type type, const void *from, int64_t i) {
  float x;
  hk_kernels_scalar.cast_up(type, 1, (const char *)from + (size_t)i * hk_grad_size(type), &x);
  return x;
}

static inline void narrow(hk_grad_type type, float x, void *to, int64_t i) {
  if (type == HK_GRAD_FP32) {
    ((float *)to)[i] = x;
  } else if (type == HK_GRAD_BF16) {
    hk_kernels_scalar.cast_down(1, &x, (uint16_t *)to + i);
  } else {
#ifdef __FLT16_MAX__
    const _Float16 h = (_Float16)x;
    memcpy((uint16_t *)to + i, &h, sizeof h);
#else /* clang 14 has no _Float16 on x86-64 */
    ((uint16_t *)to)[i] = hk_to_fp16(x);
#endif
  }
}

/* -- Construction ------------------------------------------------------------------------------ */

/* numel 0: a random number. */
static inline void make_tensor(world *w, size_t i, int block, int64_t numel) {
  tensor *t = &w->tensors[i];
  const int64_t most = numel == 0 && pick(&w->r, 0, 3) == 0 ? 40000 : 700;
  t->param = (hk_param){.numel = numel > 0 ? numel : pick(&w->r, 1, (int)most),
                        .group = pick(&w->r, 0, (int)w->n_groups - 1),
                        .block = block,
                        .weight_type = (hk_grad_type)pick(&w->r, 0, 2),
                        .grad_type = (hk_grad_type)pick(&w->r, 0, 2)};
  if (pick(&w->r, 0, 2) > 0) t->param.weight_type = t->param.grad_type = HK_GRAD_BF16;
  if (hk_format_is_split(w->format)) t->param.weight_type = HK_GRAD_BF16;
  const size_t n = (size_t)t->param.numel;
  t->p = must_have(n, 4);
  t->m = must_have(n, 4);
  t->v = must_have(n, 4);
  t->weight = must_have(n, 4);
  t->expected = must_have(n, 4);
  t->grad = must_have(n, 4);
  t->handed = must_have(n, 4);
  t->param.weight = t->weight;
  for (int64_t k = 0; k < t->param.numel; k++) {
    narrow(t->param.weight_type, (float)(uniform(&w->r) - 0.5), t->weight, k);
    t->p[k] = widen(t->param.weight_type, t->weight, k);
  }
  round_state(w->format, 0, 0, 0, t->param.numel, t->p, t->m, t->v);
  memcpy(t->expected, t->weight, 4 * n);
  w->params[i] = t->param;
}

static inline void make_model(world *w) {
  w->n = (size_t)pick(&w->r, 1, MOST_TENSORS);
  w->n_groups = (size_t)pick(&w->r, 1, 3);
  for (size_t g = 0; g < w->n_groups; g++) {
    w->groups[g] = (hk_adamw){.lr = scale(&w->r, 1e-4, 1e-1),
                              .beta1 = 0.9,
                              .beta2 = 0.95 + 0.04 * uniform(&w->r),
                              .eps = 1e-8,
                              .weight_decay = pick(&w->r, 0, 1) * 0.1};
  }
  int block = 0;
  for (size_t i = 0; i < w->n; i++) {
    make_tensor(w, i, block, 0);
    block += pick(&w->r, 0, 2) == 0;
  }
  w->blocks = w->params[w->n - 1].block + 1;
}

/* Random routes. Random sets of subgroups run ahead, have early weights, and are staged in steps in
 * which nothing runs ahead. */
static inline void make_engine(world *w, const hk_backend_ops *backend) {
  hk_error err = {0};
  hk_plan plan = {0};
  must(hk_default_plan(w->params, w->n, pick(&w->r, 1, 4), &plan, &err), &err);
  plan.optimizer = optimizer_of(w->format);
  plan.overlap = (hk_overlap)pick(&w->r, HK_OVERLAP_NONE, HK_OVERLAP_BOTH);
  plan.piece_numel = (int64_t)scale(&w->r, 60, 70000);
  plan.buffers = pick(&w->r, 1, 4);
  const int most = pick(&w->r, HK_ROUTE_CPU, HK_ROUTE_RESIDENT);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = (hk_route)pick(&w->r, 0, most);
    plan.subgroups[s].ahead = plan.overlap == HK_OVERLAP_BOTH &&
                              plan.subgroups[s].route == HK_ROUTE_CPU && pick(&w->r, 0, 3) > 0;
    plan.subgroups[s].early = plan.subgroups[s].ahead && pick(&w->r, 0, 1) > 0;
    plan.subgroups[s].held_staged = plan.subgroups[s].ahead && pick(&w->r, 0, 1) > 0;
  }
  w->by_block = ((w->r.state >> 7) % 3) == 0;
  plan.clip = w->by_block ? HK_CLIP_BLOCK : HK_CLIP_NORM;
  random_stream sums = {w->r.state ^ 0x50f5};
  if (pick(&sums, 0, 1) > 0) plan.sum_bytes = (hk_bytes)scale(&sums, 100, 400000);
  const hk_engine_options options = {.backend = backend, .no_pin_threads = true, .seed = w->seed};
  hk_engine *engine = NULL;
  must(hk_engine_create(&plan, w->params, w->n, w->groups, w->n_groups, &options, &engine, &err),
       &err);
  w->engine = engine;
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
  hk_plan_free(&plan);
}

static inline void unmake(world *w) {
  hk_engine_destroy(w->engine);
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    void *all[] = {t->p, t->m, t->v, t->weight, t->expected, t->grad, t->handed};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
  }
}

/* -- Checks ------------------------------------------------------------------------------------ */

static inline void assert_weights(const world *w, int block) {
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    if (block >= 0 && t->param.block != block) continue;
    assert_memory_equal(t->weight, t->expected,
                        (size_t)t->param.numel * hk_grad_size(t->param.weight_type));
  }
}

static inline void assert_state(world *w) {
  hk_error err = {0};
  bool there = false;
  must(hk_engine_drain(w->engine, -1, &there, &err), &err);
  assert_true(there);
  assert_weights(w, -1);
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    int64_t begin = 0;
    hk_engine_param(w->engine, i, &begin);
    float *got = must_have((size_t)t->param.numel, 4);
    const float *expected[] = {t->p, t->m, t->v};
    for (int part = 0; part < 3; part++) {
      must(hk_engine_read(w->engine, (hk_state_part)part, begin, t->param.numel, got, &err), &err);
      assert_memory_equal(got, expected[part], 4 * (size_t)t->param.numel);
    }
    free(got);
    int64_t step = 0;
    must(hk_engine_get_tensor_step(w->engine, i, &step, &err), &err);
    assert_int_equal(step, t->step);
  }
}

/* -- An iteration ------------------------------------------------------------------------------ */

static inline void forward(world *w) {
  hk_error err = {0};
  for (int b = 0; b < w->blocks; b++) {
    bool there = false;
    while (!there) must(hk_engine_wait_weights(w->engine, b, NULL, 5, &there, &err), &err);
    assert_weights(w, b);
  }
}

/* Another gradient of tensor i, which is added to what the tensor has been given. */
static inline hk_gradient make_gradient(world *w, size_t i, bool finite) {
  tensor *t = &w->tensors[i];
  const hk_grad_type type = t->param.grad_type;
  for (int64_t k = 0; k < t->param.numel; k++) {
    narrow(type, (float)(uniform(&w->r) - 0.5) * 0.01f, t->handed, k);
  }
  if (!finite) narrow(type, INFINITY, t->handed, pick(&w->r, 0, (int)t->param.numel - 1));
  for (int64_t k = 0; k < t->param.numel; k++) {
    const float sum = widen(type, t->handed, k) + (t->given > 0 ? widen(type, t->grad, k) : 0);
    narrow(type, sum, t->grad, k);
  }
  if (t->given == 0) memcpy(t->grad, t->handed, (size_t)t->param.numel * hk_grad_size(type));
  t->given++;
  return (hk_gradient){(int64_t)i, t->handed};
}

/* Hands over new gradients of n tensors from `first` on, in their order, by one call. */
static inline void hand_over_together(world *w, size_t first, size_t n, bool finite) {
  hk_error err = {0};
  hk_gradient list[MOST_TENSORS] = {0};
  for (size_t i = 0; i < n; i++) list[i] = make_gradient(w, first + i, finite);
  must(hk_engine_gradients(w->engine, list, n, NULL, &err), &err);
  for (size_t i = 0; i < n; i++) {
    const tensor *t = &w->tensors[first + i];
    memset(t->handed, 0xee, 4 * (size_t)t->param.numel);
  }
}

static inline void hand_over(world *w, size_t i, bool finite) {
  hand_over_together(w, i, 1, finite);
}

/* Hands gradients over, deep tensors first. With `disorder` some come out of order, twice or not at
 * all. */
static inline void backward(world *w, int disorder, bool finite) {
  for (size_t i = w->n; i-- > 0;) {
    if (disorder > 0 && pick(&w->r, 0, 9) == 0) continue;
    hand_over(w, i, finite || i > 0);
    if (disorder > 0 && pick(&w->r, 0, 9) == 0) {
      hand_over(w, next(&w->r) % w->n, true);
    }
  }
  assert_weights(w, -1);
}

/* Of the gradients of a block; -1: of all. */
static inline double plain_squares_of(const world *w, int block) {
  hk_squares sum = {0};
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    if (block >= 0 && t->param.block != block) continue;
    if (t->given > 0) hk_squares_add(&sum, t->param.grad_type, t->param.numel, t->grad);
  }
  return hk_squares_value(&sum);
}

static inline double plain_squares(const world *w) {
  return plain_squares_of(w, -1);
}

/* Updates the tensors of a block; -1: all. */
static inline void plain_update_of(world *w, int block, double grad_scale) {
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    if (t->given == 0 || (block >= 0 && t->param.block != block)) continue;
    const hk_adamw_step step = hk_adamw_prepare(&w->groups[t->param.group], ++t->step, grad_scale);
    hk_adamw_scalar(&step, t->param.grad_type, t->param.numel, t->p, t->m, t->v, t->grad, NULL);
    round_state(w->format, w->seed, i, t->step, t->param.numel, t->p, t->m, t->v);
    for (int64_t k = 0; k < t->param.numel; k++) {
      narrow(t->param.weight_type, t->p[k], t->expected, k);
    }
  }
}

static inline void plain_update(world *w, double grad_scale) {
  plain_update_of(w, -1, grad_scale);
}

/* Clips each block's gradients by their own norm. Returns the smallest coefficient. */
static inline double plain_update_blocks(world *w, double max_norm, double loss_scale) {
  double least = 1 / loss_scale;
  for (int b = 0; b < w->blocks; b++) {
    const double scale = hk_grad_scale(plain_squares_of(w, b), max_norm, loss_scale);
    plain_update_of(w, b, scale);
    least = fmin(least, scale);
  }
  return least;
}

static inline void step(world *w, bool finite) {
  hk_error err = {0};
  hk_step_report report;
  hk_step_options options = {.loss_scale = pick(&w->r, 0, 5) == 0 ? 4 : 0};
  static const double limits[] = {0, 1e9, 1e-3, 0.3};
  options.max_norm = limits[pick(&w->r, 0, 3)];
  if (pick(&w->r, 0, 7) == 0) {
    const size_t g = next(&w->r) % w->n_groups;
    w->groups[g].lr *= 0.5;
    must(hk_engine_set_group(w->engine, g, &w->groups[g], &err), &err);
  }
  int64_t given = 0;
  for (size_t i = 0; i < w->n; i++) given += w->tensors[i].given > 0;
  const double squares = plain_squares(w);
  must(hk_engine_step(w->engine, &options, &report, NULL, &err), &err);
  assert_int_equal(report.params, given);
  const double loss_scale = options.loss_scale > 0 ? options.loss_scale : 1;
  if (given > 0 && finite) {
    assert_false(report.skipped);
    assert_true(report.grad_norm == sqrt(squares) / loss_scale);
    if (w->by_block) {
      assert_true(report.grad_scale == plain_update_blocks(w, options.max_norm, loss_scale));
    } else {
      plain_update(w, hk_grad_scale(squares, options.max_norm, loss_scale));
    }
  } else {
    assert_int_equal(report.skipped, given > 0);
  }
  for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
}

/* An iteration of `backwards`, whose step is clipped if `max_norm` is small; 0: no limit. */
static inline void plain_iteration(world *w, int backwards, double max_norm) {
  hk_error err = {0};
  hk_step_report report;
  const hk_step_options options = {.max_norm = max_norm};
  forward(w);
  for (int m = 0; m < backwards; m++) backward(w, 0, true);
  const double squares = plain_squares(w);
  must(hk_engine_step(w->engine, &options, &report, NULL, &err), &err);
  if (w->by_block) {
    plain_update_blocks(w, max_norm, 1);
  } else {
    plain_update(w, hk_grad_scale(squares, max_norm, 1));
  }
  for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
}

#endif
