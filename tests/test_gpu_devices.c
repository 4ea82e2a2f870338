/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Devices: signs of finished work, matrix products, work on the caller's streams, the clock of a
 * busy device, a thread's current device, copies to another device. Skipped, with the reason: all
 * checks without a device, copies without a second one, matrix products without cuBLAS.
 *
 *   test_gpu_devices --backend host   the same checks where there is no GPU */
#include "tests/fixture_gpu.h"
#include "tests/fixture_matmul.h"

/* -- Matrix products --------------------------------------------------------------------------- */

/* False where there is no cuBLAS. */
static bool check_matmul(int rows, int columns, int depth, uint64_t seed) {
  hk_error err = {0};
  matrices m = random_matrices(rows, columns, depth, seed);
  uint16_t *got = plain(m.w_bytes);
  hk_kernel kernel = {.kind = HK_KERNEL_MATMUL, .rows = rows, .columns = columns, .depth = depth};
  must(ops->alloc(gpu, m.a_bytes, (void **)&kernel.a, &err), &err);
  must(ops->alloc(gpu, m.b_bytes, (void **)&kernel.b, &err), &err);
  must(ops->alloc(gpu, m.w_bytes, (void **)&kernel.w, &err), &err);
  must(ops->copy(stream, (void *)kernel.a, m.a, m.a_bytes, &err), &err);
  must(ops->copy(stream, (void *)kernel.b, m.b, m.b_bytes, &err), &err);
  const hk_status status = ops->launch(stream, &kernel, &err);
  const bool absent = status == HK_INPUT && strstr(err.message, "cuBLAS") != NULL;
  if (!absent) must(status, &err);
  must(ops->copy(stream, got, kernel.w, m.w_bytes, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  if (!absent) check_product(&m, got);
  ops->release(gpu, (void *)kernel.a);
  ops->release(gpu, (void *)kernel.b);
  ops->release(gpu, kernel.w);
  free(got);
  free_matrices(&m);
  return !absent;
}

static void matrix_products(void **state) {
  (void)state;
  random_stream r = {17};
  if (!check_matmul(1, 1, 1, 1)) {
    hk_error err = {0};
    must(ops->stream_sync(stream, &err), &err); /* the device still works */
    fprintf(stderr, "skipped: no cuBLAS here\n");
    skip();
  }
  check_matmul(256, 384, 512, 2);
  for (int i = 0; i < 20; i++) {
    check_matmul(pick(&r, 1, 200), pick(&r, 1, 200), pick(&r, 1, 600), next(&r));
  }
  hk_error err = {0};
  const hk_kernel none = {.kind = HK_KERNEL_MATMUL, .rows = 4, .columns = 4};
  assert_int_equal(ops->launch(stream, &none, &err), HK_INPUT);
}

/* -- Signs ------------------------------------------------------------------------------------- */

/* A sign writes one word to host memory and nothing else. */
static void a_sign(void **state) {
  (void)state;
  hk_error err = {0};
  const int64_t ticket = 0x0123456789abcdef;
  char *host = NULL;
  void *device = NULL;
  must(pinned(4096, &host, &err), &err);
  assert_non_null(host);
  if (host == NULL) return;
  int64_t *words = (int64_t *)(void *)host;
  for (int i = 0; i < 8; i++) words[i] = i;
  must(ops->alloc(gpu, sizeof ticket, &device, &err), &err);
  must(ops->copy(stream, device, &ticket, sizeof ticket, &err), &err);
  hk_kernel kernel = {.kind = HK_KERNEL_SIGN, .n = 1, .from = device, .to = words + 3};
  must(ops->launch(stream, &kernel, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  for (int i = 0; i < 8; i++) assert_int_equal(words[i], i == 3 ? ticket : i);
  kernel.to = host + 4;
  assert_int_equal(ops->launch(stream, &kernel, &err), HK_INPUT);
  kernel.to = words, kernel.n = 2;
  assert_int_equal(ops->launch(stream, &kernel, &err), HK_INPUT);
  ops->release(gpu, device);
  unpin(host, 4096);
}

/* -- Streams and threads of the caller --------------------------------------------------------- */

enum { BYTES = 16 << 20 };

/* Work on an adopted stream that waits for another stream, and that another stream waits for. */
static void check_adopted(void *native) {
  hk_error err = {0};
  hk_stream *theirs = NULL;
  hk_event *there = NULL, *here = NULL;
  char *device = NULL, *host = NULL, *text = plain(BYTES);
  for (int i = 0; i < BYTES; i++) text[i] = (char)(i * 5 + i / 251);
  must(pinned(BYTES, &host, &err), &err);
  must(ops->alloc(gpu, BYTES, (void **)&device, &err), &err);
  must(ops->event_open(gpu, false, &there, &err), &err);
  must(ops->event_open(gpu, false, &here, &err), &err);
  must(ops->stream_adopt(gpu, native, &theirs, &err), &err);
  const hk_segment s = {.from = device, .to = device + BYTES / 2, .n = BYTES / 4};
  const hk_kernel k = {.kind = HK_KERNEL_GATHER, .n = BYTES / 4, .segments = &s, .n_segments = 1};
  for (int i = 0; i < 3; i++) {
    must(ops->copy(theirs, device, text, BYTES / 2, &err), &err);
    must(ops->launch(theirs, &k, &err), &err);
    must(ops->record(theirs, there, &err), &err);
    must(ops->wait(stream, there, &err), &err);
    must(ops->copy(stream, host, device, BYTES, &err), &err);
    must(ops->record(stream, here, &err), &err);
    must(ops->wait(theirs, here, &err), &err);
    must(ops->zero(theirs, device + 3, BYTES - 5, &err), &err);
    must(ops->stream_sync(theirs, &err), &err);
    assert_memory_equal(host, text, BYTES / 2);
    assert_memory_equal(host + BYTES / 2, text, BYTES / 2);
    memset(host, 0, BYTES);
    memcpy(host, text, 3);
    memcpy(host + BYTES - 2, text + BYTES / 2 - 2, 2);
    must(compare(stream, "zeroed", device, host, BYTES, &err), &err);
  }
  ops->stream_close(theirs);
  must(ops->zero(stream, device, 0, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  ops->event_close(there);
  ops->event_close(here);
  ops->release(gpu, device);
  unpin(host, BYTES);
  free(text);
}

static void adopted_streams(void **state) {
  (void)state;
  check_adopted(NULL);
  /* The CUDA stream, which follows the members common to all backends' streams. */
  hk_error err = {0};
  hk_stream *own = NULL;
  must(ops->stream_open(gpu, true, &own, &err), &err);
  void *native = NULL;
  memcpy(&native, (const char *)own + sizeof *own, sizeof native);
  check_adopted(native);
  check_adopted(native); /* closing the wrapper does not close the stream */
  ops->stream_close(own);
}

/* The clock is aligned while 20 copies of 16 MiB are queued. Times of a later copy must lie between
 * the host's times around it. */
static void clock_of_a_busy_device(void **state) {
  (void)state;
  hk_error err = {0};
  hk_event *first = NULL, *last = NULL;
  char *device = NULL, *host = NULL;
  must(pinned(BYTES, &host, &err), &err);
  must(ops->alloc(gpu, BYTES, (void **)&device, &err), &err);
  must(ops->event_open(gpu, false, &first, &err), &err);
  must(ops->event_open(gpu, false, &last, &err), &err);
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < 20; i++) must(ops->copy(stream, device, host, BYTES, &err), &err);
    hk_ns uncertainty = 0, begin = 0, end = 0;
    const hk_ns before = hk_now();
    must(ops->clock_align(gpu, &uncertainty, &err), &err);
    assert_true(hk_now() - before < HK_NS_PER_S / 10);
    assert_in_range(uncertainty, 0, 500000);
    must(ops->record(stream, first, &err), &err);
    must(ops->copy(stream, device, host, BYTES, &err), &err);
    must(ops->record(stream, last, &err), &err);
    must(ops->stream_sync(stream, &err), &err);
    const hk_ns after = hk_now();
    must(ops->event_time(first, &begin, &err), &err);
    must(ops->event_time(last, &end, &err), &err);
    assert_true(before - uncertainty <= begin && begin < end && end <= after + uncertainty);
  }
  ops->event_close(first);
  ops->event_close(last);
  ops->release(gpu, device);
  unpin(host, BYTES);
}

/* -- Several devices --------------------------------------------------------------------------- */

/* Copies data to the first device, to the second, and from there to memory that the first has
 * registered. */
static void peers(void **state) {
  (void)state;
  enum { N = (8 << 20) + 3 };
  hk_error err = {0};
  int n = 0;
  must(ops->count(&n, &err), &err);
  if (n < 2) {
    fprintf(stderr, "skipped: one device only\n");
    skip();
  }
  hk_backend *second = NULL;
  hk_stream *s = NULL;
  void *here = NULL, *there = NULL;
  char *host = NULL, *text = plain(N);
  bool direct = false;
  for (int i = 0; i < N; i++) text[i] = (char)(i * 7 + i / 251);
  must(ops->open(1, NULL, &second, &err), &err);
  must(ops->peer(gpu, second, &direct, &err), &err);
  must(ops->peer(gpu, second, &direct, &err), &err);
  must(ops->stream_open(second, false, &s, &err), &err);
  must(ops->alloc(gpu, N, &here, &err), &err);
  must(ops->alloc(second, N, &there, &err), &err);
  must(pinned(N, &host, &err), &err);
  must(ops->copy(stream, here, text, N, &err), &err);
  must(ops->copy(stream, there, here, N, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  must(ops->copy(s, host, there, N, &err), &err);
  must(ops->stream_sync(s, &err), &err);
  assert_memory_equal(host, text, N);
  memset(host, 0, N);
  must(ops->copy(stream, host, there, N, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  assert_memory_equal(host, text, N);
  unpin(host, N);
  ops->release(gpu, here);
  ops->release(second, there);
  ops->stream_close(s);
  ops->close(second);
  free(text);
}

/* A thread's current device is the same after a call for another device. */
static void guards(void **state) {
  (void)state;
  hk_error err = {0};
  int n = 0, mine = 0, theirs = 0, again = 0;
  must(ops->guard(gpu, &mine, &err), &err);
  must(ops->guard(gpu, &theirs, &err), &err);
  assert_int_equal(theirs, -1); /* gpu was current already */
  must(ops->count(&n, &err), &err);
  hk_backend *second = NULL;
  if (n > 1) must(ops->open(1, NULL, &second, &err), &err);
  must(ops->guard(gpu, &again, &err), &err);
  assert_int_equal(again, -1); /* opening does not set it */
  if (second != NULL && strcmp(ops->name, "cuda") == 0) {
    must(ops->guard(second, &theirs, &err), &err);
    assert_int_equal(theirs, 0);
    ops->unguard(second, theirs);
    must(ops->guard(gpu, &again, &err), &err);
    assert_int_equal(again, -1);
  }
  if (second != NULL) ops->close(second);
  must(ops->guard(gpu, &again, &err), &err);
  assert_int_equal(again, -1); /* nor does closing */
  ops->unguard(gpu, mine);
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(a_sign),          cmocka_unit_test(matrix_products),
    cmocka_unit_test(adopted_streams), cmocka_unit_test(clock_of_a_busy_device),
    cmocka_unit_test(guards),          cmocka_unit_test(peers),
};

int main(int argc, char **argv) {
  const int code = find_backend(argc, argv);
  return code != 0 ? code : cmocka_run_group_tests(TESTS, open_gpu, close_gpu);
}
