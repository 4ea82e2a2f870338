/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Kernels of the host backend: they give the reference's bits and refuse memory that a GPU could
 * not access. */
#include "tests/fixture_host.h"
#include "tests/fixture_matmul.h"

/* -- Kernels ----------------------------------------------------------------------------------- */

enum { SLAB = 1000, SLABS = 200, FIRST = 700, COUNT = SLAB * SLABS - FIRST - 150 };
static const hk_slab_shape shape = {.numel = SLAB, .bytes = 12288, .m = 4096, .v = 8192};

static void fill_gradients(random_stream *r, hk_grad_type type, int64_t n, void *grad) {
  for (int64_t i = 0; i < n; i++) {
    if (type == HK_GRAD_FP32) {
      ((float *)grad)[i] = (float)(uniform(r) - 0.5);
    } else {
      ((uint16_t *)grad)[i] = (uint16_t)next(r);
    }
  }
}

static void fill_state(random_stream *r, char *slabs) {
  for (int64_t i = 0; i < SLAB * SLABS; i++) {
    float *at = (float *)(void *)(slabs + i / SLAB * shape.bytes) + i % SLAB;
    at[0] = (float)(uniform(r) - 0.5);
    at[shape.m / 4] = (float)(uniform(r) * 1e-3);
    at[shape.v / 4] = (float)(uniform(r) * 1e-5);
  }
}

/* The scalar kernel, element by element. */
static void reference(const hk_kernel *k, const char *grad, char *slabs, uint16_t *w) {
  for (int64_t i = 0; i < k->n; i++) {
    float *at =
        (float *)(void *)(slabs + (k->first + i) / SLAB * shape.bytes) + (k->first + i) % SLAB;
    hk_adamw_scalar(&k->step, k->type, 1, at, at + shape.m / 4, at + shape.v / 4,
                    grad + (size_t)i * hk_grad_size(k->type), w ? w + i : NULL);
  }
}

static void check_adamw(hk_backend *b, hk_grad_type type, bool in_place, bool weights,
                        bool mapped) {
  const hk_bytes state_bytes = SLABS * shape.bytes;
  hk_stream *s = open_stream(b);
  random_stream r = {.state = 11};
  hk_error err = {0};
  char *grad = host_memory(4 * COUNT), *expected = host_memory((size_t)state_bytes);
  char *start = host_memory((size_t)state_bytes), *got = host_memory((size_t)state_bytes);
  uint16_t *w = host_memory(2 * COUNT), *got_w = host_memory(2 * COUNT);
  fill_gradients(&r, type, COUNT, grad);
  fill_state(&r, start);
  memcpy(in_place ? expected : got, start, (size_t)state_bytes);
  if (mapped) must(ops->host_register(b, start, state_bytes, &err), &err);

  void *device_grad = device_memory(b, 4 * COUNT), *device_w = device_memory(b, 2 * COUNT);
  char *from = mapped ? start : device_memory(b, state_bytes);
  char *to = in_place ? from : device_memory(b, state_bytes);
  copy(s, device_grad, grad, COUNT * (hk_bytes)hk_grad_size(type));
  if (!mapped) copy(s, from, start, state_bytes);
  /* Bytes outside of the range must keep their values. */
  if (!in_place) {
    memset(expected, 0x55, (size_t)state_bytes);
    copy(s, to, expected, state_bytes);
    sync_stream(s);
  }
  const hk_adamw hyper = {1e-2, 0.9, 0.95, 1e-8, 0.1};
  const hk_kernel k = {.kind = HK_KERNEL_ADAMW,
                       .type = type,
                       .n = COUNT,
                       .grad = device_grad,
                       .step = hk_adamw_prepare(&hyper, 3, 0.5),
                       .shape = shape,
                       .first = FIRST,
                       .from = from,
                       .to = to,
                       .w = weights ? device_w : NULL,
                       .mapped = mapped};
  if (!in_place) {
    for (int64_t i = FIRST; i < FIRST + COUNT; i++) {
      for (int part = 0; part < 3; part++) {
        const hk_bytes at = i / SLAB * shape.bytes + part * 4096 + i % SLAB * 4;
        memcpy(expected + at, start + at, 4);
      }
    }
  }
  reference(&k, grad, expected, weights ? w : NULL);
  launch(s, &k);
  sync_stream(s);
  copy(s, got, to, state_bytes);
  if (weights) copy(s, got_w, device_w, 2 * COUNT);
  sync_stream(s);
  assert_memory_equal(got, expected, (size_t)state_bytes);
  assert_memory_equal(got_w, w, 2 * COUNT);

  ops->stream_close(s);
  if (!in_place) ops->release(b, to);
  if (mapped) ops->host_unregister(b, start);
  if (!mapped) ops->release(b, from);
  ops->release(b, device_w);
  ops->release(b, device_grad);
  free(grad), free(expected), free(start), free(got), free(w), free(got_w);
}

static void test_adamw(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads += 2) {
    hk_backend *b = open_device(0, 64 * HK_MIB, threads);
    check_adamw(b, HK_GRAD_BF16, true, true, false);
    check_adamw(b, HK_GRAD_FP16, false, true, false);
    check_adamw(b, HK_GRAD_FP32, true, false, true);
    check_adamw(b, HK_GRAD_BF16, false, false, true);
    ops->close(b);
  }
}

static void check_squares_and_cast(hk_backend *b, hk_grad_type type) {
  enum { N = 200001 };
  hk_stream *s = open_stream(b);
  random_stream r = {.state = 5};
  uint16_t *grad = host_memory(2 * N);
  float *cast = host_memory(4 * N), *expected = host_memory(4 * N);
  uint64_t bins[HK_SQUARES_BINS + 1] = {0};
  fill_gradients(&r, type, N, grad);
  void *device_grad = device_memory(b, 2 * N);
  uint64_t *device_bins = device_memory(b, sizeof bins);
  float *device_cast = device_memory(b, 4 * N);
  copy(s, device_grad, grad, 2 * N);
  copy(s, device_bins, bins, sizeof bins);
  hk_kernel k = {.kind = HK_KERNEL_SQUARES,
                 .type = type,
                 .n = N / 2,
                 .grad = device_grad,
                 .bins = device_bins};
  launch(s, &k); /* the second launch adds to the bins of the first */
  k.grad = (uint16_t *)device_grad + N / 2;
  k.n = N - N / 2;
  launch(s, &k);
  launch(s, &(hk_kernel){.kind = HK_KERNEL_CAST_UP,
                         .type = type,
                         .n = N,
                         .grad = device_grad,
                         .out = device_cast});
  copy(s, bins, device_bins, sizeof bins);
  copy(s, cast, device_cast, 4 * N);
  sync_stream(s);

  hk_squares right = {0}, got = {.nonfinite = bins[HK_SQUARES_BINS]};
  hk_squares_add(&right, type, N, grad);
  hk_squares_add_bins(&got, type, bins);
  assert_memory_equal(&got, &right, sizeof got);
  assert_true(right.nonfinite > 0);
  hk_cpu_kernels_best()->cast_up(type, N, grad, expected);
  assert_memory_equal(cast, expected, 4 * N);
  ops->stream_close(s);
  ops->release(b, device_cast);
  ops->release(b, device_bins);
  ops->release(b, device_grad);
  free(grad), free(cast), free(expected);
}

static void test_squares_and_cast(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads += 2) {
    hk_backend *b = open_device(0, 8 * HK_MIB, threads);
    check_squares_and_cast(b, HK_GRAD_BF16);
    check_squares_and_cast(b, HK_GRAD_FP16);
    ops->close(b);
  }
}

/* -- Matrix products --------------------------------------------------------------------------- */

static void check_matmul(hk_backend *b, int rows, int columns, int depth, uint64_t seed) {
  matrices m = random_matrices(rows, columns, depth, seed);
  hk_stream *s = open_stream(b);
  void *a = device_memory(b, m.a_bytes), *right = device_memory(b, m.b_bytes);
  void *w = device_memory(b, m.w_bytes);
  uint16_t *got = host_memory((size_t)m.w_bytes);
  copy(s, a, m.a, m.a_bytes);
  copy(s, right, m.b, m.b_bytes);
  launch(s, &(hk_kernel){.kind = HK_KERNEL_MATMUL,
                         .rows = rows,
                         .columns = columns,
                         .depth = depth,
                         .a = a,
                         .b = right,
                         .w = w});
  copy(s, got, w, m.w_bytes);
  sync_stream(s);
  check_product(&m, got);
  ops->stream_close(s);
  ops->release(b, a);
  ops->release(b, right);
  ops->release(b, w);
  free(got);
  free_matrices(&m);
}

static void test_matmul(void **state) {
  (void)state;
  random_stream r = {.state = 3};
  for (int threads = 1; threads <= 3; threads += 2) {
    hk_backend *b = open_device(0, 8 * HK_MIB, threads);
    check_matmul(b, 1, 1, 1, 1);
    check_matmul(b, 32, 64, 128, 2); /* one whole tile */
    check_matmul(b, 97, 257, 300, 3);
    for (int i = 0; i < 40; i++) {
      check_matmul(b, (int)scale(&r, 1, 150), (int)scale(&r, 1, 150), (int)scale(&r, 1, 400),
                   next(&r));
    }
    ops->close(b);
  }
}

/* -- Wrong addresses --------------------------------------------------------------------------- */

static void refuse(hk_stream *s, const hk_kernel *k, const char *what) {
  hk_error err = {0};
  assert_int_equal(ops->launch(s, k, &err), HK_INPUT);
  if (strstr(err.message, what) == NULL) fail_msg("'%s' without '%s'", err.message, what);
}

static void test_wrong_kernels(void **state) {
  (void)state;
  enum { N = 100 };
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_stream *s = open_stream(b);
  static float host[3 * N];
  char *grad = device_memory(b, 2 * N), *slab = device_memory(b, 12 * N);
  const hk_kernel good = {.kind = HK_KERNEL_ADAMW,
                          .n = N,
                          .grad = grad,
                          .from = slab,
                          .to = slab,
                          .shape = {.numel = N, .bytes = 12 * N, .m = 4 * N, .v = 8 * N}};
  hk_kernel k = good;
  k.grad = host;
  char address[32];
  snprintf(address, sizeof address, "%p", (void *)host);
  refuse(s, &k, address);
  refuse(s, &k, "not one piece of device memory");
  k = good;
  k.grad = grad + 512 - 2 * N + 2; /* runs over the block's end */
  refuse(s, &k, "gradients");
  k = good;
  k.first = 1; /* the last parameter is in a second slab, which was not allocated */
  refuse(s, &k, "state to read");
  k = good;
  k.to = NULL;
  refuse(s, &k, "state to write");
  k = good;
  k.w = (uint16_t *)(void *)(grad + 512 - 2 * N + 2); /* runs over the block's end */
  refuse(s, &k, "weights");
  k = good;
  k.mapped = true;
  k.from = k.to = host;
  refuse(s, &k, "nor registered host memory");
  k = good;
  k.shape.m = 4;
  refuse(s, &k, "out of range");
  k.n = -1;
  refuse(s, &k, "out of range");
  k = (hk_kernel){.kind = HK_KERNEL_SQUARES, .type = HK_GRAD_FP32, .n = 1, .grad = grad};
  refuse(s, &k, "not fp32");
  k.type = HK_GRAD_BF16;
  refuse(s, &k, "bins");
  k.kind = HK_KERNEL_CAST_UP;
  refuse(s, &k, "fp32 gradients");
  k = (hk_kernel){.kind = HK_KERNEL_SIGN, .n = 1, .from = slab, .to = host};
  refuse(s, &k, "the target of a sign");
  k.from = host;
  refuse(s, &k, "a sign");
  k.n = 2;
  refuse(s, &k, "2 signs");
  k = (hk_kernel){.kind = HK_KERNEL_MATMUL, .rows = 4, .columns = 4, .depth = 4};
  refuse(s, &k, "left side");
  k.a = (uint16_t *)(void *)grad;
  k.b = (uint16_t *)(void *)(grad + 512 - 2 * 16 + 2); /* runs over the block's end */
  refuse(s, &k, "right side");
  k.b = k.a;
  refuse(s, &k, "result");
  k.w = (uint16_t *)(void *)slab;
  k.depth = 0;
  refuse(s, &k, "depth 0");
  k.depth = 4;
  k.columns = (int64_t)1 << 40;
  refuse(s, &k, "each must be 1 to");
  k = good;
  k.kind = (hk_kernel_kind)9;
  refuse(s, &k, "kind 9");
  k = good;
  ops->release(b, grad);
  refuse(s, &k, "gradients");
  k.n = 0; /* no memory is accessed */
  launch(s, &k);
  sync_stream(s);
  ops->stream_close(s);
  ops->close(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_adamw),
      cmocka_unit_test(test_squares_and_cast),
      cmocka_unit_test(test_matmul),
      cmocka_unit_test(test_wrong_kernels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
