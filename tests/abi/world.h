/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the programs of this folder: a model of a few tensors in blocks, trained through
 * libhocket, and plain AdamW, with which every bit is compared. They include hocket.h only. */
#ifndef HOCKET_TESTS_ABI_WORLD_H
#define HOCKET_TESTS_ABI_WORLD_H

#include <hocket.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- Checks ------------------------------------------------------------------------------------ */

#define CHECK(condition) check((condition), __FILE__, __LINE__, #condition)

static inline void check(bool holds, const char *file, int line, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
  exit(1);
}

static char message[HOCKET_MESSAGE];

#define MUST(call) must((call), __FILE__, __LINE__, #call)

static inline void must(int code, const char *file, int line, const char *call) {
  if (code == 0 && message[0] == '\0') return;
  fprintf(stderr, "%s:%d: %s: %d, '%s'\n", file, line, call, code, message);
  exit(1);
}

#define REFUSED(call, expected, word) refused((call), (expected), (word), __FILE__, __LINE__, #call)

static inline void refused(int code, int expected, const char *word, const char *file, int line,
                           const char *call) {
  const bool one_line = message[0] != '\0' && strchr(message, '\n') == NULL;
  if (code == expected && one_line && strstr(message, word) != NULL) return;
  fprintf(stderr, "%s:%d: %s: %d, '%s'; expected %d and '%s'\n", file, line, call, code, message,
          expected, word);
  exit(1);
}

/* -- Random numbers: xorshift64* --------------------------------------------------------------- */

typedef struct {
  uint64_t state;
} dice;

static inline uint64_t roll(dice *d) {
  d->state ^= d->state >> 12;
  d->state ^= d->state << 25;
  d->state ^= d->state >> 27;
  return d->state * 0x2545f4914f6cdd1du;
}

static inline int pick(dice *d, int least, int most) {
  return least + (int)(roll(d) % (uint64_t)(most - least + 1));
}

static inline float centred(dice *d) { /* -0.5 to 0.5 */
  return (float)(roll(d) >> 40) * 0x1p-24f - 0.5f;
}

/* -- Element types ----------------------------------------------------------------------------- */

static inline size_t size_of(int type) {
  return type == HOCKET_FP32 ? 4 : 2;
}

static inline float from_fp16(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  float x = exponent == 0 ? ldexpf((float)fraction, -24)
                          : ldexpf((float)(1024 + fraction), exponent - 25);
  if (exponent == 31) x = fraction != 0 ? NAN : INFINITY;
  return (h & 0x8000) != 0 ? -x : x;
}

/* To nearest even; |x| is below 65520, or infinite. */
static inline uint16_t to_fp16(float x) {
  const uint16_t sign = signbit(x) ? 0x8000 : 0;
  const float a = fabsf(x);
  if (isinf(a)) return (uint16_t)(sign | 0x7c00);
  if (a < 0x1p-14f) return (uint16_t)(sign | (int)rintf(a * 0x1p24f));
  const int exponent = ilogbf(a);
  const int significand = (int)rintf(ldexpf(a, 10 - exponent)); /* 1024 to 2048: that carries */
  return (uint16_t)(sign | (((exponent + 14) << 10) + significand));
}

static inline float get(int type, const void *from, int64_t i) {
  uint32_t bits;
  uint16_t half;
  float x;
  if (type == HOCKET_FP32) {
    memcpy(&x, (const char *)from + 4 * i, sizeof x);
    return x;
  }
  memcpy(&half, (const char *)from + 2 * i, sizeof half);
  if (type == HOCKET_FP16) return from_fp16(half);
  bits = (uint32_t)half << 16;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline void put(int type, float x, void *to, int64_t i) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint16_t half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  if (type == HOCKET_FP16) half = to_fp16(x);
  if (type == HOCKET_FP32) {
    memcpy((char *)to + 4 * i, &x, sizeof x);
  } else {
    memcpy((char *)to + 2 * i, &half, sizeof half);
  }
}

/* -- The model --------------------------------------------------------------------------------- */

enum { MOST_TENSORS = 16, MOST_GROUPS = 2 };

typedef struct {
  hocket_tensor t;
  float *p, *m, *v;
  void *expected; /* weights by plain AdamW */
  void *grad;     /* sum of what was handed over, in the gradient's own type */
  void *handed;   /* what is handed over; overwritten at once */
  int given;
  int64_t step;
} tensor;

typedef struct {
  dice d;
  tensor tensors[MOST_TENSORS];
  size_t n;
  int blocks;
  hocket_group groups[MOST_GROUPS];
  hocket_engine *engine;
  int64_t steps, ahead;
} world;

static inline void *room(int64_t n) {
  void *memory = calloc((size_t)n, 4);
  CHECK(memory != NULL);
  return memory;
}

static inline void open_tensor(world *w, size_t i, int64_t numel, int block, int weight_type,
                               int grad_type) {
  tensor *t = &w->tensors[i];
  *t = (tensor){.t = {.numel = numel,
                      .block = block,
                      .group = (int32_t)(i % MOST_GROUPS),
                      .weight_type = weight_type,
                      .grad_type = grad_type,
                      .weight = room(numel)},
                .p = room(numel),
                .m = room(numel),
                .v = room(numel),
                .expected = room(numel),
                .grad = room(numel),
                .handed = room(numel)};
  for (int64_t k = 0; k < numel; k++) {
    put(weight_type, centred(&w->d), t->t.weight, k);
    t->p[k] = get(weight_type, t->t.weight, k);
  }
  memcpy(t->expected, t->t.weight, (size_t)numel * size_of(weight_type));
}

/* Tensors of all types in five blocks (the third has none), `total` elements in all, at least
 * 20000. */
static inline void open_model(world *w, uint64_t seed, int64_t total) {
  static const struct {
    int64_t numel;
    int block, weight_type, grad_type;
  } list[] = {{3000, 0, HOCKET_BF16, HOCKET_BF16}, {7, 0, HOCKET_FP32, HOCKET_FP32},
              {4099, 1, HOCKET_BF16, HOCKET_BF16}, {1, 1, HOCKET_BF16, HOCKET_FP32},
              {2048, 1, HOCKET_FP16, HOCKET_FP16}, {5000, 3, HOCKET_FP32, HOCKET_BF16},
              {333, 3, HOCKET_BF16, HOCKET_FP16},  {0, 4, HOCKET_BF16, HOCKET_BF16}};
  memset(w, 0, sizeof *w);
  w->d.state = seed * 2 + 1;
  w->groups[0] = (hocket_group){1e-2, 0.9, 0.999, 1e-8, 0.1};
  w->groups[1] = (hocket_group){3e-3, 0.8, 0.95, 1e-6, 0};
  w->n = sizeof list / sizeof *list;
  w->blocks = 5;
  for (size_t i = 0; i < w->n; i++) {
    const int64_t numel = list[i].numel > 0 ? list[i].numel : total;
    open_tensor(w, i, numel, list[i].block, list[i].weight_type, list[i].grad_type);
    total -= numel;
  }
}

static inline void describe_tensors(const world *w, hocket_tensor *list) {
  for (size_t i = 0; i < w->n; i++) list[i] = w->tensors[i].t;
}

static inline int open_engine(world *w, const char *plan, const hocket_options *options) {
  hocket_tensor list[MOST_TENSORS];
  describe_tensors(w, list);
  const int code =
      hocket_create(plan, list, w->n, w->groups, MOST_GROUPS, options, &w->engine, message);
  memset(list, 0xee, sizeof list); /* copied */
  return code;
}

static inline void open_world(world *w, uint64_t seed, int64_t total, const char *plan, int overlap,
                              int threads) {
  open_model(w, seed, total);
  const hocket_options options = {.backend = "host", .overlap = overlap, .cpu_threads = threads};
  MUST(open_engine(w, plan, &options));
  MUST(hocket_masters(w->engine, -1, NULL, message));
}

static inline void close_world(world *w) {
  hocket_destroy(w->engine);
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    void *all[] = {t->p, t->m, t->v, t->t.weight, t->expected, t->grad, t->handed};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
  }
}

/* -- One iteration ----------------------------------------------------------------------------- */

static inline void check_weights(const world *w, int block) {
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    if (block >= 0 && t->t.block != block) continue;
    CHECK(memcmp(t->t.weight, t->expected, (size_t)t->t.numel * size_of(t->t.weight_type)) == 0);
  }
}

static inline void forward(world *w) {
  for (int b = 0; b < w->blocks; b++) {
    int code;
    while ((code = hocket_wait_weights(w->engine, b, NULL, 20, message)) == HOCKET_AGAIN) {
    }
    MUST(code);
    check_weights(w, b);
  }
}

/* Draws one more gradient of tensor i and adds it to the sum as autograd does. */
static inline void hand_over(world *w, size_t i) {
  tensor *t = &w->tensors[i];
  const int type = t->t.grad_type;
  for (int64_t k = 0; k < t->t.numel; k++) {
    put(type, 0.02f * centred(&w->d), t->handed, k);
    const float one = get(type, t->handed, k);
    if (t->given == 0) {
      put(type, one, t->grad, k);
    } else {
      put(type, get(type, t->grad, k) + one, t->grad, k);
    }
  }
  t->given++;
  const hocket_gradient gradient = {(int64_t)i, t->handed};
  MUST(hocket_gradients(w->engine, &gradient, 1, NULL, message));
  memset(t->handed, 0xee, 4 * (size_t)t->t.numel);
}

static inline void backward(world *w) {
  for (size_t i = w->n; i-- > 0;) hand_over(w, i);
}

/* The engine's order of operations (engine/adamw/adamw.h); `scale` is what it multiplied gradients
 * by. */
static inline void plain_adamw(tensor *t, const hocket_group *h, float scale) {
  const double s = (double)++t->step;
  const float decay = (float)(1 - h->lr * h->weight_decay), rest1 = (float)(1 - h->beta1);
  const float beta2 = (float)h->beta2, rest2 = (float)(1 - h->beta2), eps = (float)h->eps;
  const float root2 = (float)sqrt(1 - pow(h->beta2, s));
  const float size = (float)(h->lr / (1 - pow(h->beta1, s)));
  for (int64_t k = 0; k < t->t.numel; k++) {
    const float g = scale * get(t->t.grad_type, t->grad, k);
    float p = t->p[k], m = t->m[k], v = t->v[k];
    p = p * decay;
    m = fmaf(rest1, g - m, m);
    v = fmaf(rest2 * g, g, v * beta2);
    const float denominator = sqrtf(v) / root2 + eps;
    p = p - size * m / denominator;
    t->p[k] = p;
    t->m[k] = m;
    t->v[k] = v;
    put(t->t.weight_type, p, t->expected, k);
  }
}

static inline long double plain_squares(const world *w, int64_t only) {
  long double sum = 0;
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    if (t->given == 0 || (only >= 0 && (size_t)only != i)) continue;
    for (int64_t k = 0; k < t->t.numel; k++) {
      const long double g = (long double)get(t->t.grad_type, t->grad, k);
      sum += g * g;
    }
  }
  return sum;
}

static inline bool near(double a, double b) {
  return fabs(a - b) <= 1e-13 * fabs(b);
}

/* A step that must not be skipped; `factor` is that of hocket_scale. */
static inline void take_step(world *w, const hocket_step_options *options, double factor) {
  static const hocket_step_options none = {0};
  hocket_step_info info = {0};
  const hocket_step_options *o = options != NULL ? options : &none;
  const double loss_scale = o->loss_scale > 0 ? o->loss_scale : 1;
  const double own = (double)plain_squares(w, -1);
  const double norm = sqrt(o->sum_of_squares > 0 ? o->sum_of_squares : own) * factor / loss_scale;
  const double clip = o->max_norm > 0 ? fmin(1, o->max_norm / (norm + 1e-6)) : 1;
  int64_t given = 0;
  for (size_t i = 0; i < w->n; i++) given += w->tensors[i].given > 0;
  MUST(hocket_step(w->engine, options, &info, NULL, message));
  CHECK(info.step == ++w->steps && info.skipped == 0 && info.nonfinite == 0);
  CHECK(info.tensors == given && hocket_step_number(w->engine) == w->steps);
  CHECK(near(info.grad_norm, norm) && near(info.grad_scale, clip * factor / loss_scale));
  w->ahead += info.ahead;
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    if (t->given > 0) plain_adamw(t, &w->groups[t->t.group], (float)info.grad_scale);
    t->given = 0;
  }
}

static inline void check_state(world *w) {
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    const float *expected[] = {t->p, t->m, t->v};
    float *got = room(t->t.numel);
    int64_t step = -1;
    for (int part = HOCKET_P; part <= HOCKET_V; part++) {
      MUST(hocket_read(w->engine, part, i, 0, t->t.numel, got, message));
      CHECK(memcmp(got, expected[part], 4 * (size_t)t->t.numel) == 0);
    }
    free(got);
    MUST(hocket_get_tensor_step(w->engine, i, &step, message));
    CHECK(step == t->step);
  }
}

static inline void check_all(world *w) {
  MUST(hocket_drain(w->engine, -1, message));
  check_weights(w, -1);
  check_state(w);
}

static inline void iterate(world *w, int n) {
  static const hocket_step_options clipped = {.max_norm = 0.05}, loose = {.max_norm = 1e9};
  for (int i = 0; i < n; i++) {
    forward(w);
    backward(w);
    take_step(w, i % 4 == 3 ? &clipped : &loose, 1);
  }
}

#endif
