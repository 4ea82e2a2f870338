/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The walk over tensors of PyTorch (python/native/walk.h), on objects with the layout of torch's:
 * every kind of gradient at every index of sets of many sizes. */
#include <string.h>

#include "python/native/walk.h"
#include "tests/fixture.h"

/* A tensor's implementation; an at::Tensor is a pointer to it. */
typedef struct impl {
  const struct impl *grad; /* the gradient: as an at::Tensor, this member */
  const void *data;
  int64_t version;
  int64_t sizes[2], strides[2];
  int32_t dtype;
  unsigned char requires_grad;
} impl;

#define MOST 70
enum { FP32 = 6, BF16 = 15 };

static const impl undefined;
static impl params[MOST], grads[MOST];
static char memory[2 * MOST]; /* addresses only */

static const impl *of(const void *tensor) {
  return *(const impl *const *)tensor;
}

static const void *grad(const void *i) {
  return &((const impl *)i)->grad;
}

static unsigned char requires_grad(const void *i) {
  return ((const impl *)i)->requires_grad;
}

static int64_t version(const void *tensor) {
  return of(tensor)->version;
}

/* The pointer of a gradient handle, which has no storage: an error, and torch prints a message. */
static int32_t data_ptr(const void *tensor, const void **data) {
  *data = of(tensor)->data;
  return *data == NULL;
}

static int32_t dtype(const void *tensor, int32_t *out) {
  *out = of(tensor)->dtype;
  return 0;
}

static int32_t dim(const void *tensor, int64_t *out) {
  (void)tensor;
  *out = 2;
  return 0;
}

static int32_t sizes(const void *tensor, const int64_t **out) {
  *out = of(tensor)->sizes;
  return 0;
}

static int32_t strides(const void *tensor, const int64_t **out) {
  *out = of(tensor)->strides;
  return 0;
}

static const hk_torch torch = {grad, requires_grad, version, data_ptr,  dtype,
                               dim,  sizes,         strides, &undefined};

static const void *impls[MOST], *weights[MOST], *handles[MOST], *places[MOST];
static int64_t numbers[MOST], versions[MOST], numel[MOST];
static int32_t dtypes[MOST];

static void check(int ok, const char *what, size_t n, size_t at) {
  if (!ok) fail_msg("%s, %zu tensors, at %zu", what, n, at);
}

/* Parameters of 3 x 4 values, each with a gradient. */
static void begin(void) {
  memset(handles, 0, sizeof handles);
  for (int i = 0; i < MOST; i++) {
    const impl one = {.sizes = {3, 4}, .strides = {4, 1}, .dtype = FP32, .version = i};
    params[i] = grads[i] = one;
    params[i].data = &memory[i];
    params[i].grad = &grads[i];
    grads[i].data = &memory[MOST + i];
    impls[i] = &params[i];
    weights[i] = &memory[i];
    versions[i] = i;
    numbers[i] = 1000 + 3 * i;
    numel[i] = 12;
    dtypes[i] = FP32;
  }
}

static int64_t find(size_t n, hocket_gradient *list, uint8_t *held) {
  return hk_walk_gradients(&torch, impls, n, numbers, dtypes, numel, handles, places, list, held);
}

/* All parameters but one have gradients; that one has none, or a handle. */
static void left_out(size_t n, size_t at, int handle) {
  hocket_gradient list[MOST];
  uint8_t held[MOST];
  begin();
  if (handle) {
    handles[at] = &grads[at];
    grads[at].data = NULL;
  } else {
    params[at].grad = &undefined;
  }
  for (int again = 0; again < 2; again++) { /* the second call uses `places`, for prefetching */
    check(find(n, list, held) == (int64_t)n - 1, "one is left out", n, at);
    for (size_t i = 0, k = 0; i < n; i++) {
      check(held[i] == (i != at), "held", n, i);
      if (i == at) continue;
      check(list[k].tensor == numbers[i] && list[k].data == grads[i].data, "the list", n, i);
      k++;
    }
  }
}

/* One gradient that cannot be handed over as it is. */
static void refused(size_t n, size_t at, int how) {
  hocket_gradient list[MOST];
  uint8_t held[MOST];
  begin();
  if (how == 0) grads[at].dtype = BF16;
  if (how == 1) grads[at].data = NULL;
  if (how == 2) grads[at].requires_grad = 1;
  if (how == 3) grads[at].strides[0] = 1, grads[at].strides[1] = 3; /* transposed */
  if (how == 4) grads[at].sizes[0] = 2;                             /* fewer values */
  if (how == 5) grads[at].strides[0] = 8;                           /* gaps */
  check(find(n, list, held) == -1, "refused", n, at);
}

static void changed(size_t n, size_t at) {
  int64_t now[MOST];
  begin();
  check(hk_walk_unchanged(&torch, impls, n, weights, versions) == 1, "unchanged", n, at);
  params[at].version++;
  check(hk_walk_unchanged(&torch, impls, n, weights, versions) == 0, "written", n, at);
  hk_walk_versions(&torch, impls, n, now);
  for (size_t i = 0; i < n; i++) check(now[i] == params[i].version, "versions", n, i);
  check(hk_walk_unchanged(&torch, impls, n, weights, now) == 1, "read again", n, at);
  params[at].data = &memory[2 * MOST - 1];
  check(hk_walk_unchanged(&torch, impls, n, weights, now) == 0, "moved", n, at);
}

static void every_kind_at_every_index(void **state) {
  (void)state;
  static const size_t counts[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 64, MOST};
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
    for (size_t at = 0; at < counts[c]; at++) {
      left_out(counts[c], at, 0);
      left_out(counts[c], at, 1);
      for (int how = 0; how < 6; how++) refused(counts[c], at, how);
      changed(counts[c], at);
    }
  }
}

static void no_tensors(void **state) {
  (void)state;
  hocket_gradient list[1];
  uint8_t held[1];
  begin();
  check(find(0, list, held) == 0, "none", 0, 0);
}

static void a_dimension_of_size_1_may_have_any_stride(void **state) {
  (void)state;
  hocket_gradient list[1];
  uint8_t held[1];
  begin();
  grads[0].sizes[0] = 1, grads[0].sizes[1] = 12, grads[0].strides[0] = 77;
  check(find(1, list, held) == 1, "a dimension of size 1", 1, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_kind_at_every_index),
      cmocka_unit_test(no_tensors),
      cmocka_unit_test(a_dimension_of_size_1_may_have_any_stride),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
