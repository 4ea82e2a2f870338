/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by tests of the engine: random plans, state with special values (subnormals, infinities,
 * NaN), and plain AdamW, whose bits the engine must reproduce. */
#ifndef HK_TESTS_FIXTURE_ENGINE_H
#define HK_TESTS_FIXTURE_ENGINE_H

#include <stdlib.h>

#include "engine/adamw/squares.h"
#include "engine/engine.h"
#include "engine/private.h"
#include "tests/random.h"

static inline void *must_have(size_t n, size_t size) {
  void *memory = calloc(n, size);
  assert_non_null(memory);
  return memory;
}

static const hk_job one_gpu = {
    .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 64};

/* A plan whose pieces may exceed a slab (2^20 parameters) and whose state exceeds one span of a
 * trial. */
static inline hk_plan wide_plan(int64_t subgroup) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = model_of(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 512, "
      "\"intermediate_size\": 512, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
      "\"vocab_size\": 8192, \"max_position_embeddings\": 64}",
      "wide");
  must(
      hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, subgroup, &plan, &err),
      &err);
  hk_model_free(&model);
  plan.buffers = 2;
  return plan;
}

/* One or two layers of a tiny model, cut into subgroups of odd sizes, with random routes and a
 * random order. */
static inline hk_plan random_engine_plan(random_stream *r) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(pick(r, 1, 2));
  const int64_t subgroup = (int64_t)scale(r, 700, 60000);
  must(hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET,
                      uniform(r) < 0.5 ? HK_SUBGROUP_EXACT : HK_SUBGROUP_SOFT, subgroup, &plan,
                      &err),
       &err);
  hk_model_free(&model);
  snprintf(plan.policy, sizeof plan.policy, "random");
  plan.piece_numel = (int64_t)scale(r, 60, 70000);
  plan.buffers = pick(r, 1, 5);
  plan.cpu_threads = pick(r, 1, 2);
  const int most = pick(r, HK_ROUTE_CPU, HK_ROUTE_RESIDENT);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = (hk_route)pick(r, HK_ROUTE_CPU, most);
    const size_t other = s == 0 ? 0 : next(r) % (s + 1);
    const int32_t swap = plan.order[s];
    plan.order[s] = plan.order[other];
    plan.order[other] = swap;
  }
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

static inline int64_t numel_of(const hk_plan *plan) {
  int64_t n = 0;
  for (size_t s = 0; s < plan->n_subgroups; s++) n += plan->subgroups[s].numel;
  return n;
}

/* The optimizer whose state has this format. */
static inline hk_optimizer optimizer_of(hk_format format) {
  static const hk_optimizer of[HK_FORMATS] = {HK_OPTIMIZER_FP32, HK_OPTIMIZER_SPLIT,
                                              HK_OPTIMIZER_BF16, HK_OPTIMIZER_BF16_SPLIT,
                                              HK_OPTIMIZER_8BIT, HK_OPTIMIZER_8BIT_SPLIT};
  return of[format];
}

/* p, m and v as a format keeps them: rounded after a step of a tensor, with random bits; step 0: as
 * loading rounds them. */
static inline void round_state(hk_format format, uint64_t seed, uint64_t tensor, int64_t step,
                               int64_t n, float *p, float *m, float *v) {
  uint32_t key[2];
  hk_random_key(seed, tensor, step, key);
  hk_format_round(format, step == 0 ? NULL : key, 0, n, p, m, v);
}

/* Consecutive parameters with the same hyperparameters. */
typedef struct {
  int64_t numel;
  hk_adamw hyper;
} plain_group;

/* Plain AdamW on plain arrays. */
typedef struct {
  int64_t n, step;
  float *p, *m, *v;
  uint16_t *w, *grad;
  plain_group groups[4];
  size_t n_groups;
  hk_grad_type type;
  double max_norm;
  hk_format format; /* in which the engine keeps its state */
  uint64_t seed;
} plain_adamw;

/* One in 64 is a special value (subnormal, infinity, NaN, huge, tiny), the others are ordinary. */
static inline float awkward(random_stream *r, double size, bool positive) {
  static const uint32_t special[] = {0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000,
                                     0x33800000, 0x80000000, 0x80000001, 0xff800000, 0x7fc00000};
  float value = (float)((uniform(r) - 0.5) * size);
  if (next(r) % 64 == 0) {
    const uint32_t bits = special[next(r) % (sizeof special / sizeof special[0])];
    memcpy(&value, &bits, sizeof value);
  }
  return positive ? fabsf(value) : value;
}

/* A finite gradient: one in 16 of any exponent, the others ordinary. */
static inline uint16_t random_gradient(random_stream *r, hk_grad_type type) {
  const uint16_t exponent = type == HK_GRAD_BF16 ? 0x7f80 : 0x7c00;
  uint16_t bits;
  do {
    bits = (uint16_t)next(r);
  } while ((bits & exponent) == exponent);
  if (next(r) % 16 == 0) return bits;
  const uint16_t ordinary = type == HK_GRAD_BF16 ? (uint16_t)(0x3a00 + next(r) % 0x180)
                                                 : (uint16_t)(0x1400 + next(r) % 0xc00);
  return (uint16_t)(ordinary | (bits & 0x8000));
}

static inline plain_adamw plain_start(random_stream *r, int64_t n, hk_grad_type type) {
  plain_adamw a = {.n = n, .type = type, .max_norm = uniform(r) < 0.5 ? 0 : scale(r, 1e-3, 10)};
  a.p = must_have((size_t)n, sizeof *a.p);
  a.m = must_have((size_t)n, sizeof *a.m);
  a.v = must_have((size_t)n, sizeof *a.v);
  a.w = must_have((size_t)n, sizeof *a.w);
  a.grad = must_have((size_t)n, sizeof *a.grad);
  for (int64_t i = 0; i < n; i++) {
    a.p[i] = awkward(r, 2, false);
    a.m[i] = awkward(r, 1e-2, false);
    a.v[i] = awkward(r, 1e-4, true);
  }
  a.n_groups = (size_t)pick(r, 1, 4);
  int64_t left = n;
  for (size_t g = 0; g < a.n_groups; g++) {
    const int64_t most = left - (int64_t)(a.n_groups - 1 - g);
    const int64_t numel =
        g + 1 == a.n_groups ? left : 1 + (int64_t)(uniform(r) * (double)(most - 1));
    a.groups[g] = (plain_group){.numel = numel,
                                .hyper = {.lr = scale(r, 1e-5, 1e-1),
                                          .beta1 = 0.9,
                                          .beta2 = uniform(r) < 0.5 ? 0.999 : 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = uniform(r) < 0.5 ? 0 : 0.1}};
    left -= numel;
  }
  return a;
}

static inline void plain_stop(plain_adamw *a) {
  free(a->p);
  free(a->m);
  free(a->v);
  free(a->w);
  free(a->grad);
}

static inline void plain_gradients(plain_adamw *a, random_stream *r) {
  for (int64_t i = 0; i < a->n; i++) a->grad[i] = random_gradient(r, a->type);
}

static inline size_t cut_tensors(const plain_group *groups, size_t n_groups, hk_grad_type type,
                                 hk_param *out);

/* Each group is cut into two tensors, if it has two parameters. */
enum { MOST_CUTS = 2 * 5 };

static inline void plain_round(plain_adamw *a, int64_t step) {
  hk_param params[MOST_CUTS];
  const size_t n = cut_tensors(a->groups, a->n_groups, a->type, params);
  int64_t at = 0;
  for (size_t p = 0; p < n; p++) {
    round_state(a->format, a->seed, p, step, params[p].numel, a->p + at, a->m + at, a->v + at);
    at += params[p].numel;
  }
}

/* Goes on in the format of a plan's state. */
static inline void plain_in_format_of(plain_adamw *a, const hk_plan *plan) {
  a->format = hk_state_format(plan);
  plain_round(a, 0);
}

/* One step of plain AdamW. Returns the factor that gradients are multiplied by. */
static inline double plain_step(plain_adamw *a, double loss_scale) {
  hk_squares sum = {0};
  hk_squares_add(&sum, a->type, a->n, a->grad);
  const double factor = hk_grad_scale(hk_squares_value(&sum), a->max_norm, loss_scale);
  a->step++;
  int64_t at = 0;
  for (size_t g = 0; g < a->n_groups; g++) {
    const hk_adamw_step step = hk_adamw_prepare(&a->groups[g].hyper, a->step, factor);
    hk_adamw_scalar(&step, a->type, a->groups[g].numel, a->p + at, a->m + at, a->v + at,
                    a->grad + at, a->w + at);
    at += a->groups[g].numel;
  }
  plain_round(a, a->step);
  return factor;
}

/* -- The engine -------------------------------------------------------------------------------- */

static inline size_t cut_tensors(const plain_group *groups, size_t n_groups, hk_grad_type type,
                                 hk_param *out) {
  size_t n = 0;
  for (size_t g = 0; g < n_groups; g++) {
    const int64_t first = groups[g].numel > 1 ? groups[g].numel / 3 + 1 : 0;
    const int64_t numels[2] = {first, groups[g].numel - first};
    for (int i = first > 0 ? 0 : 1; i < 2; i++, n++) {
      out[n] = (hk_param){.numel = numels[i],
                          .group = (int32_t)g,
                          .block = (int32_t)n,
                          .weight_type = HK_GRAD_BF16,
                          .grad_type = type};
    }
  }
  return n;
}

/* An engine of these groups' tensors, without weights. */
static inline hk_status open_engine(const hk_plan *plan, const plain_group *groups, size_t n_groups,
                                    hk_grad_type type, const hk_engine_options *options,
                                    hk_engine **engine, hk_error *err) {
  hk_param params[MOST_CUTS];
  hk_adamw hyper[MOST_CUTS];
  const size_t n = cut_tensors(groups, n_groups, type, params);
  for (size_t g = 0; g < n_groups; g++) hyper[g] = groups[g].hyper;
  return hk_engine_create(plan, params, n, hyper, n_groups, options, engine, err);
}

/* Address on the device of all weights in flat order, behind which gradients have room. */
static inline char *weights_of(const hk_engine *engine) {
  return engine->params[0].weight;
}

/* An engine of plain AdamW's tensors, all state 0. Free with end_engine. */
static inline hk_engine *new_engine(const hk_plan *plan, const plain_adamw *a,
                                    const hk_engine_options *options) {
  hk_error err = {0};
  hk_engine *engine = NULL;
  void *memory = NULL;
  must(open_engine(plan, a->groups, a->n_groups, a->type, options, &engine, &err), &err);
  must(engine->backend->ops->alloc(engine->backend, 4 * a->n, &memory, &err), &err);
  for (size_t p = 0; p < hk_engine_params(engine); p++) {
    int64_t begin = 0;
    hk_engine_param(engine, p, &begin);
    must(hk_engine_set_weight(engine, p, (uint16_t *)memory + begin, &err), &err);
  }
  return engine;
}

/* The same, with plain AdamW's state and step. */
static inline hk_engine *engine_like(const hk_plan *plan, const plain_adamw *a,
                                     const hk_engine_options *options) {
  hk_error err = {0};
  hk_engine *engine = new_engine(plan, a, options);
  must(hk_engine_write(engine, HK_STATE_P, 0, a->n, a->p, &err), &err);
  must(hk_engine_write(engine, HK_STATE_M, 0, a->n, a->m, &err), &err);
  must(hk_engine_write(engine, HK_STATE_V, 0, a->n, a->v, &err), &err);
  must(hk_engine_set_step(engine, a->step, &err), &err);
  return engine;
}

static inline void end_engine(hk_engine *engine) {
  engine->backend->ops->release(engine->backend, weights_of(engine));
  hk_engine_destroy(engine);
}

/* Index of the first of n elements in which two arrays differ; n: they are equal. */
static inline int64_t first_difference(const void *a, const void *b, size_t size, int64_t n) {
  const char *x = a, *y = b;
  int64_t i = 0;
  while (i < n && memcmp(x + (size_t)i * size, y + (size_t)i * size, size) == 0) i++;
  return i;
}

static inline void assert_equal_bits(const void *got, const void *wanted, size_t size, int64_t n,
                                     const char *name) {
  const int64_t i = first_difference(got, wanted, size, n);
  uint32_t a = 0, b = 0;
  if (i == n) return;
  memcpy(&a, (const char *)got + (size_t)i * size, size);
  memcpy(&b, (const char *)wanted + (size_t)i * size, size);
  fail_msg("%s[%lld]: %#x, plain AdamW has %#x", name, (long long)i, a, b);
}

static inline void assert_part(hk_engine *engine, hk_state_part part, const float *wanted,
                               int64_t n) {
  static const char *const names[] = {"p", "m", "v"};
  hk_error err = {0};
  float *got = must_have((size_t)n, sizeof *got);
  must(hk_engine_read(engine, part, 0, n, got, &err), &err);
  assert_equal_bits(got, wanted, sizeof *got, n, names[part]);
  free(got);
}

static inline void assert_state_bits(hk_engine *engine, const plain_adamw *a) {
  assert_part(engine, HK_STATE_P, a->p, a->n);
  assert_part(engine, HK_STATE_M, a->m, a->n);
  assert_part(engine, HK_STATE_V, a->v, a->n);
}

/* Copies n bytes on the engine's device, or between it and the host. */
static inline void copy_on_device(hk_engine *engine, void *to, const void *from, int64_t n) {
  hk_error err = {0};
  must(engine->backend->ops->copy(engine->stream, to, from, n, &err), &err);
  must(engine->backend->ops->stream_sync(engine->stream, &err), &err);
}

static inline void assert_same_bits(hk_engine *engine, const plain_adamw *a) {
  assert_state_bits(engine, a);
  if (a->step == 0) return;
  uint16_t *w = must_have((size_t)a->n, sizeof *w);
  copy_on_device(engine, w, weights_of(engine), 2 * a->n);
  assert_equal_bits(w, a->w, sizeof *w, a->n, "w");
  free(w);
}

/* Hands over the gradients of tensors first, first + by, ... */
static inline hk_status hand_some(hk_engine *engine, size_t first, size_t by, hk_error *err) {
  hk_gradient list[MOST_CUTS];
  const uint16_t *grads =
      (const uint16_t *)(const void *)weights_of(engine) + hk_engine_numel(engine);
  size_t n = 0;
  for (size_t p = first; p < hk_engine_params(engine); p += by, n++) {
    int64_t begin = 0;
    hk_engine_param(engine, p, &begin);
    list[n] = (hk_gradient){(int64_t)p, grads + begin};
  }
  return hk_engine_gradients(engine, list, n, NULL, err);
}

/* Gives the gradients: those of even tensors and those of odd ones, sometimes the odd ones first.
 */
static inline void give_gradients(hk_engine *engine, const plain_adamw *a, random_stream *r) {
  hk_error err = {0};
  const size_t first = uniform(r) < 0.5;
  copy_on_device(engine, weights_of(engine) + 2 * a->n, a->grad, 2 * a->n);
  must(hand_some(engine, first, 2, &err), &err);
  must(hand_some(engine, 1 - first, 2, &err), &err);
}

/* Takes the step that plain AdamW takes with this loss scale. */
static inline hk_status take_step(hk_engine *engine, const plain_adamw *a, double loss_scale,
                                  hk_step_report *report, hk_error *err) {
  const hk_step_options how = {.max_norm = a->max_norm, .loss_scale = loss_scale};
  return hk_engine_step(engine, &how, report, NULL, err);
}

/* Three steps of a plan, every bit compared after each. */
static inline void assert_plan_exact(random_stream *r, const hk_plan *plan, hk_grad_type type,
                                     double loss_scale, const hk_engine_options *options) {
  hk_error err = {0};
  plain_adamw plain = plain_start(r, numel_of(plan), type);
  plain_in_format_of(&plain, plan);
  plain.seed = options->seed;
  hk_engine *engine = engine_like(plan, &plain, options);
  for (int step = 0; step < 3; step++) {
    plain_gradients(&plain, r);
    give_gradients(engine, &plain, r);
    const double factor = plain_step(&plain, loss_scale);
    hk_step_report report;
    must(take_step(engine, &plain, loss_scale, &report, &err), &err);
    assert_false(report.skipped);
    assert_int_equal(report.step, plain.step);
    assert_true(report.grad_scale == factor);
    assert_same_bits(engine, &plain);
  }
  end_engine(engine);
  plain_stop(&plain);
}

/* The same for random plan `number` with state in a format. */
static inline void assert_case_exact(uint64_t number, hk_format format,
                                     const hk_engine_options *options) {
  random_stream r = {number};
  hk_plan plan = random_engine_plan(&r);
  plan.optimizer = optimizer_of(format);
  assert_plan_exact(&r, &plan, number % 3 == 2 ? HK_GRAD_FP16 : HK_GRAD_BF16,
                    number % 5 == 0 ? 1024 : 1, options);
  hk_plan_free(&plan);
}

#endif
