/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Faults of the host backend: one refused call, or a device that fails for good. */
#include "tests/fixture_host.h"

/* -- Faults ------------------------------------------------------------------------------------ */

/* Only the third call of each kind is refused; the device keeps working. */
static void test_refused_calls(void **state) {
  (void)state;
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_stream *s = open_stream(b);
  hk_error err = {0};
  void *grad = device_memory(b, 512), *bins = device_memory(b, 512), *memory = NULL;
  static char host[64];
  const hk_kernel k = {.kind = HK_KERNEL_SQUARES, .n = 8, .grad = grad, .bins = bins};
  for (int i = 0; i < 4; i++) {
    static const hk_host_fault faults[] = {HK_HOST_ALLOC, HK_HOST_REGISTER, HK_HOST_COPY,
                                           HK_HOST_LAUNCH};
    hk_backend_host_fail(b, faults[i], 2);
  }
  for (int i = 0; i < 5; i++) {
    const hk_status expected = i == 2 ? HK_ENVIRONMENT : HK_OK;
    assert_int_equal(ops->alloc(b, 512, &memory, &err), expected);
    assert_int_equal(ops->host_register(b, host + i, 1, &err), expected);
    assert_int_equal(ops->copy(s, grad, host, 64, &err), expected);
    assert_int_equal(ops->launch(s, &k, &err), expected);
  }
  sync_stream(s);
  hk_backend_host_fail(b, HK_HOST_COPY, 0);
  hk_backend_host_fail(b, HK_HOST_COPY, -1);
  copy(s, grad, host, 64);
  ops->stream_close(s);
  ops->close(b);
}

/* Every call on a failed device returns HK_ENVIRONMENT. The last one's message is checked for the
 * reason. */
static void check_failed(hk_backend *b, hk_stream *s, hk_event *e, const char *why) {
  hk_error err = {0};
  hk_device_info info;
  void *memory = NULL;
  hk_stream *stream = NULL;
  hk_event *event = NULL;
  bool done = false, direct = false;
  hk_ns t = 0;
  static char host[8];
  const hk_kernel k = {.kind = HK_KERNEL_CAST_UP};
  const hk_status all[] = {ops->info(b, &info, &err),
                           ops->alloc(b, 1, &memory, &err),
                           ops->host_register(b, host, 8, &err),
                           ops->peer(b, b, &direct, &err),
                           ops->stream_open(b, true, &stream, &err),
                           ops->event_open(b, true, &event, &err),
                           ops->copy(s, host, host + 4, 4, &err),
                           ops->launch(s, &k, &err),
                           ops->record(s, e, &err),
                           ops->wait(s, e, &err),
                           ops->event_done(e, &done, &err),
                           ops->clock_align(b, NULL, &err),
                           ops->event_time(e, &t, &err),
                           ops->event_sync(e, &err),
                           ops->stream_sync(s, &err)};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) assert_int_equal(all[i], HK_ENVIRONMENT);
  if (strstr(err.message, why) == NULL) fail_msg("'%s' without '%s'", err.message, why);
}

static void test_failing_copy(void **state) {
  (void)state;
  enum { N = 1000 };
  hk_backend *b = open_device(0, HK_MIB, 0), *well = open_device(1, HK_MIB, 0);
  hk_stream *s[2] = {open_stream(b), open_stream(b)};
  hk_event *e = open_event(b), *after = open_event(b);
  static unsigned char in[N], first[N], second[N], third[N];
  memset(in, 7, N);
  hk_error err = {0};
  hk_backend_host_fail(b, HK_HOST_COPYING, 1);
  record(s[0], after);
  copy(s[0], first, in, N);
  must(ops->record(s[1], e, &err), &err);
  /* The device may fail at any of these calls. */
  if (ops->copy(s[0], second, in, N, &err) == HK_OK && ops->record(s[0], e, &err) == HK_OK &&
      ops->wait(s[1], e, &err) == HK_OK && ops->copy(s[1], third, in, N, &err) == HK_OK) {
    ops->record(s[1], after, &err);
  }
  assert_int_equal(ops->event_sync(after, &err), HK_ENVIRONMENT);
  assert_int_equal(ops->stream_sync(s[1], &err), HK_ENVIRONMENT);
  check_failed(b, s[0], e, "host device 0 failed: copy of 1000 bytes from");
  for (int i = 0; i < 2; i++) ops->stream_close(s[i]);
  for (int i = 0; i < N; i++) {
    assert_int_equal(first[i], 7);
    assert_int_equal(second[i], i < N / 2 ? 7 : 0);
    assert_int_equal(third[i], 0); /* the operations queued behind it did not run */
  }
  ops->event_close(e);
  ops->event_close(after);
  ops->close(b);
  device_memory(well, 1); /* the other device works */
  ops->close(well);
}

static void test_failing_kernel(void **state) {
  (void)state;
  enum { N = 64 };
  hk_backend *b = open_device(0, HK_MIB, 2);
  hk_stream *s = open_stream(b);
  hk_event *e = open_event(b);
  float *out = device_memory(b, 4 * N);
  uint16_t *grad = device_memory(b, 2 * N);
  for (int i = 0; i < N; i++) {
    out[i] = -1;
    grad[i] = 0x3f80; /* 1 */
  }
  hk_backend_host_fail(b, HK_HOST_KERNEL, 0);
  record(s, e);
  launch(s, &(hk_kernel){.kind = HK_KERNEL_CAST_UP, .n = N, .grad = grad, .out = out});
  hk_error err = {0};
  assert_int_equal(ops->stream_sync(s, &err), HK_ENVIRONMENT);
  check_failed(b, s, e, "kernel cast up on 64 elements");
  ops->stream_close(s);
  for (int i = 0; i < N; i++) assert_true(out[i] == (i < N / 2 ? 1 : -1));
  ops->event_close(e);
  ops->close(b);
}

static void test_failing_matmul(void **state) {
  (void)state;
  enum { N = 4 };
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_stream *s = open_stream(b);
  hk_event *e = open_event(b);
  uint16_t *a = device_memory(b, 2 * N * N), *w = device_memory(b, 2 * N * N);
  for (int i = 0; i < N * N; i++) {
    a[i] = i / N == i % N ? 0x3f80 : 0; /* the identity */
    w[i] = 0xffff;
  }
  hk_backend_host_fail(b, HK_HOST_KERNEL, 0);
  record(s, e);
  launch(
      s,
      &(hk_kernel){
          .kind = HK_KERNEL_MATMUL, .rows = N, .columns = N, .depth = N, .a = a, .b = a, .w = w});
  hk_error err = {0};
  assert_int_equal(ops->stream_sync(s, &err), HK_ENVIRONMENT);
  check_failed(b, s, e, "kernel matrix product on 4 rows");
  ops->stream_close(s);
  for (int i = 0; i < N * N; i++) assert_int_equal(w[i], i < N * N / 2 ? a[i] : 0xffff);
  ops->event_close(e);
  ops->close(b);
}

/* A failure ends all waits: of streams, and of callers whose queue is full. */
static void test_failure_ends_waits(void **state) {
  (void)state;
  hk_backend *b = open_device(0, 64 * HK_MIB, 0);
  hk_stream *slow = open_stream(b), *waiting = open_stream(b);
  hk_event *e = open_event(b);
  char *host = host_memory(16 << 20), *device = device_memory(b, 16 << 20);
  static char in[8], out[8];
  hk_error err = {0};
  for (int i = 0; i < 4; i++) copy(slow, device, host, 16 << 20);
  record(slow, e);
  wait_for(waiting, e);
  hk_backend_host_fail(b, HK_HOST_COPYING, 0); /* the next copy that begins */
  hk_status status = HK_OK;
  int queued = 0;
  while (status == HK_OK && queued < 100000) {
    status = ops->copy(waiting, out, in, 8, &err);
    queued += status == HK_OK;
  }
  assert_int_equal(status, HK_ENVIRONMENT);
  ops->stream_close(waiting);
  ops->stream_close(slow);
  ops->event_close(e);
  ops->close(b);
  free(host);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refused_calls),      cmocka_unit_test(test_failing_copy),
      cmocka_unit_test(test_failing_kernel),     cmocka_unit_test(test_failing_matmul),
      cmocka_unit_test(test_failure_ends_waits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
