/* SPDX-License-Identifier: GPL-3.0-or-later */
/* GATHER and SCATTER on the host backend, with the framework's tensors in plain memory. */
#include "engine/device/backend_host.h"
#include "tests/fixture_float.h"
#include "tests/fixture_segments.h"

static void test_gather(void **state) {
  (void)state;
  check_many_segments(true, true);
  check_large_segments(true);
}

static void test_scatter(void **state) {
  (void)state;
  check_many_segments(false, true);
  check_large_segments(false);
}

/* Casts to fp16 round to nearest even: every fp16 value, the fp32 value after it, the tie with the
 * next fp16 value, and both fp32 neighbours of the tie. */
static void test_all_halves(void **state) {
  (void)state;
  enum { AROUND = 5, N = 65536 * AROUND };
  hk_error err = {0};
  float *from = plain(4 * (hk_bytes)N);
  uint16_t *to = plain(2 * (hk_bytes)N);
  char *device = NULL;
  must(ops->alloc(gpu, 4 * (hk_bytes)N, (void **)&device, &err), &err);
  for (uint32_t h = 0; h < 65536; h++) {
    const float x = (float)half_value(h), up = (float)half_value(h + 1);
    const float tie = x + (up - x) / 2;
    const float around[AROUND] = {x, nextafterf(x, up), tie, nextafterf(tie, -INFINITY),
                                  nextafterf(tie, INFINITY)};
    memcpy(from + (size_t)h * AROUND, around, sizeof around);
  }
  must(ops->copy(stream, device, from, 4 * (hk_bytes)N, &err), &err);
  const hk_segment s = {
      .from = device, .to = to, .n = N, .from_type = HK_GRAD_FP32, .to_type = HK_GRAD_FP16};
  const hk_kernel k = {.kind = HK_KERNEL_SCATTER, .n = N, .segments = &s, .n_segments = 1};
  must(ops->launch(stream, &k, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  for (int i = 0; i < N; i++) assert_int_equal(to[i], nearest_half(from[i]));
  ops->release(gpu, device);
  free(from), free(to);
}

#ifdef FLOAT_USUAL
/* A stream opened by a thread that flushes subnormals to zero gives the usual results. */
static void test_environment_of_the_caller(void **state) {
  (void)state;
  hk_error err = {0};
  hk_stream *usual = stream;
  float_set(FLOAT_FLUSHES);
  const hk_status status = ops->stream_open(gpu, false, &stream, &err);
  float_set(FLOAT_USUAL);
  must(status, &err);
  check_segments(&(segments_case){.gather = true, .n = 40, .most = 300, .seed = 9});
  check_segments(&(segments_case){.n = 40, .most = 300, .seed = 9});
  ops->stream_close(stream);
  stream = usual;
}
#endif

static void test_refusals(void **state) {
  (void)state;
  check_refused_segments();
  hk_error err = {0};
  char *memory = NULL, *gone = NULL;
  static char host[64];
  must(ops->alloc(gpu, 4096, (void **)&memory, &err), &err);
  must(ops->alloc(gpu, 4096, (void **)&gone, &err), &err);
  ops->release(gpu, gone);
  hk_segment s = {.from = host, .to = host, .n = 8};
  hk_kernel k = {.kind = HK_KERNEL_GATHER, .n = 8, .segments = &s, .n_segments = 1};
  refuse_segments(&k, "segment 0: a place for gradients");
  s.to = memory;
  s.from = gone;
  refuse_segments(&k, "segment 0: gradients");
  s.from = host;
  s.bins = (uint64_t *)(void *)(memory + 4096 - 8);
  refuse_segments(&k, "bins");
  s.bins = NULL;
  must(ops->launch(stream, &k, &err), &err);
  k.kind = HK_KERNEL_SCATTER;
  refuse_segments(&k, "new weights");
  k.mapped = true;
  refuse_segments(&k, "nor registered host memory");
  s.from = memory;
  s.to = gone;
  refuse_segments(&k, "a place for weights");
  must(ops->stream_sync(stream, &err), &err);
  ops->release(gpu, memory);
}

/* A failing kernel moves half of the values, as other kernels do, and leaks no memory (under
 * AddressSanitizer). */
static void test_fault(void **state) {
  (void)state;
  hk_error err = {0};
  hk_backend *usual = gpu;
  hk_stream *usual_stream = stream;
  must(ops->open(1, NULL, &gpu, &err), &err);
  must(ops->stream_open(gpu, false, &stream, &err), &err);
  hk_backend_host_fail(gpu, HK_HOST_KERNEL, 0);
  char *memory = NULL;
  static char host[64];
  must(ops->alloc(gpu, 64, (void **)&memory, &err), &err);
  memset(memory, 0, 64);
  memset(host, 1, 64);
  const hk_segment s[2] = {{.from = host, .to = memory, .n = 8},
                           {.from = host, .to = memory + 16, .n = 8}};
  const hk_kernel k = {.kind = HK_KERNEL_GATHER, .n = 16, .segments = s, .n_segments = 2};
  for (int i = 0; i < 2 && ops->launch(stream, &k, &err) == HK_OK; i++) continue;
  assert_int_equal(ops->stream_sync(stream, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "kernel gather on 16"));
  assert_memory_equal(memory, host, 16);
  assert_int_equal(memory[16], 0);
  ops->stream_close(stream);
  ops->release(gpu, memory);
  ops->close(gpu);
  gpu = usual;
  stream = usual_stream;
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(test_gather),
    cmocka_unit_test(test_scatter),
    cmocka_unit_test(test_all_halves),
#ifdef FLOAT_USUAL
    cmocka_unit_test(test_environment_of_the_caller),
#endif
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_fault),
};

int main(void) {
  ops = &hk_backend_host;
  return cmocka_run_group_tests(TESTS, open_gpu, close_gpu);
}
