/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The CUDA backend: copies of all kinds of memory, streams, events and their times. Its kernels:
 * test_gpu_kernels.c. Skipped (77), with the reason, without a device.
 *
 *   test_gpu_backend --backend host   the same checks where there is no GPU
 *   test_gpu_backend --bench          rates of copies and kernels */
#include <time.h>

#include "tests/bench_gpu.h"
#include "tests/fixture_gpu.h"

static bool is_cuda(void) {
  return strcmp(ops->name, "cuda") == 0;
}

/* -- Copies ------------------------------------------------------------------------------------ */

enum { DEVICE, PINNED, PAGEABLE, KINDS };

static char *memory_of(int kind, hk_bytes bytes) {
  hk_error err = {0};
  char *memory = NULL;
  if (kind == DEVICE) must(ops->alloc(gpu, bytes, (void **)&memory, &err), &err);
  if (kind == PINNED) must(pinned(bytes, &memory, &err), &err);
  return kind == PAGEABLE ? plain(bytes) : memory;
}

static void give_back(int kind, char *memory, hk_bytes bytes) {
  if (kind == DEVICE) ops->release(gpu, memory);
  if (kind == PINNED) unpin(memory, bytes);
  if (kind == PAGEABLE) free(memory);
}

/* Copies from plain memory to `source` memory and on to `target` memory, at odd addresses. Nothing
 * around the target is written. */
static void check_copy(int source, int target, hk_bytes n) {
  enum { MARGIN = 3 };
  const hk_bytes bytes = n + 2 * MARGIN;
  hk_error err = {0};
  char *text = plain(bytes), *expected = plain(bytes);
  char *a = memory_of(source, bytes), *b = memory_of(target, bytes);
  for (hk_bytes i = 0; i < bytes; i++) text[i] = (char)(i * 7 + i / 251);
  memset(expected, 0x33, (size_t)bytes);
  must(ops->copy(stream, b, expected, bytes, &err), &err);
  must(ops->copy(stream, a, text, bytes, &err), &err);
  must(ops->copy(stream, b + MARGIN, a + 1, n, &err), &err);
  must(ops->stream_sync(stream, &err), &err);
  memcpy(expected + MARGIN, text + 1, (size_t)n);
  must(compare(stream, "copy", b, expected, bytes, &err), &err);
  give_back(source, a, bytes);
  give_back(target, b, bytes);
  free(text), free(expected);
}

static void copies(void **state) {
  (void)state;
  static const hk_bytes sizes[] = {0, 1, 255, 65537, (3 << 20) + 1};
  for (int source = 0; source < KINDS; source++) {
    for (int target = 0; target < KINDS; target++) {
      for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_copy(source, target, sizes[i]);
      }
    }
  }
}

/* -- Streams, events, clock -------------------------------------------------------------------- */

enum { BIG = 32 << 20 };

typedef struct {
  hk_stream *a, *b;
  hk_event *first, *second;
  char *host, *device, *other;
} two_streams;

static two_streams open_two(void) {
  hk_error err = {0};
  two_streams t = {.host = memory_of(PINNED, BIG), .device = memory_of(DEVICE, BIG)};
  t.other = memory_of(PINNED, BIG);
  must(ops->stream_open(gpu, false, &t.a, &err), &err);
  must(ops->stream_open(gpu, true, &t.b, &err), &err);
  must(ops->event_open(gpu, true, &t.first, &err), &err);
  must(ops->event_open(gpu, true, &t.second, &err), &err);
  memset(t.host, 1, BIG);
  return t;
}

static void close_two(two_streams *t) {
  ops->stream_close(t->a);
  ops->stream_close(t->b);
  ops->event_close(t->first);
  ops->event_close(t->second);
  give_back(PINNED, t->host, BIG);
  give_back(PINNED, t->other, BIG);
  give_back(DEVICE, t->device, BIG);
}

/* The second stream reads the data of the first only if it has waited for the event. */
static void events_order_streams(void **state) {
  (void)state;
  hk_error err = {0};
  two_streams t = open_two();
  for (int round = 2; round < 6; round++) {
    memset(t.host, round, BIG);
    for (int i = 0; i < 4; i++) must(ops->copy(t.a, t.device, t.host, BIG, &err), &err);
    must(ops->record(t.a, t.first, &err), &err);
    must(ops->wait(t.b, t.first, &err), &err);
    must(ops->copy(t.b, t.other, t.device, BIG, &err), &err);
    must(ops->record(t.b, t.second, &err), &err);
    must(ops->event_sync(t.second, &err), &err);
    bool done = false;
    must(ops->event_done(t.first, &done, &err), &err);
    assert_true(done);
    assert_memory_equal(t.other, t.host, BIG);
  }
  close_two(&t);
}

static void events_have_times(void **state) {
  (void)state;
  hk_error err = {0};
  two_streams t = open_two();
  hk_ns uncertainty = 0;
  must(ops->clock_align(gpu, &uncertainty, &err), &err);
  assert_in_range(uncertainty, 0, 500000);
  for (int i = 0; i < 20; i++) {
    hk_ns first = 0, second = 0;
    const hk_ns before = hk_now();
    must(ops->record(t.a, t.first, &err), &err);
    must(ops->copy(t.a, t.device, t.host, BIG, &err), &err);
    must(ops->record(t.a, t.second, &err), &err);
    must(ops->stream_sync(t.a, &err), &err);
    const hk_ns after = hk_now();
    must(ops->event_time(t.first, &first, &err), &err);
    must(ops->event_time(t.second, &second, &err), &err);
    assert_true(before - uncertainty <= first);
    assert_true(second <= after + uncertainty);
    /* 32 MiB, at less than 1 TB/s. */
    assert_true(second - first > BIG / 1000);
  }
  close_two(&t);
}

static hk_ns cpu_time(void) {
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return (hk_ns)used.tv_sec * HK_NS_PER_S + used.tv_nsec;
}

static void waiting_sleeps(void **state) {
  (void)state;
  hk_error err = {0};
  two_streams t = open_two();
  for (int i = 0; i < 100; i++) must(ops->copy(t.a, t.device, t.host, BIG, &err), &err);
  must(ops->record(t.a, t.first, &err), &err);
  const hk_ns wall = hk_now(), used = cpu_time();
  must(ops->event_sync(t.first, &err), &err);
  assert_true(cpu_time() - used < (hk_now() - wall) / 2);
  close_two(&t);
}

/* -- Devices and refusals ---------------------------------------------------------------------- */

static void says_what_it_is(void **state) {
  (void)state;
  hk_error err = {0};
  hk_device_info info;
  must(ops->info(gpu, &info, &err), &err);
  assert_true(info.name[0] != '\0');
  assert_true(info.memory_free > 0 && info.memory_free <= info.memory);
  if (is_cuda()) {
    assert_non_null(strchr(info.pci, ':'));
    assert_non_null(strstr(info.driver, "CUDA"));
    assert_true(info.l2_bytes > 0);
  }
}

static void refuses(void **state) {
  (void)state;
  hk_error err = {0};
  void *memory = NULL;
  assert_int_equal(ops->alloc(gpu, (hk_bytes)1 << 50, &memory, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "free"));
  assert_null(memory);
  hk_backend *none = NULL;
  assert_int_equal(ops->open(1000, NULL, &none, &err), HK_INPUT);
  assert_null(none);

  hk_kernel kernel = {.kind = HK_KERNEL_SQUARES, .type = HK_GRAD_FP32, .n = 1};
  assert_int_equal(ops->launch(stream, &kernel, &err), HK_INPUT);
  if (is_cuda()) {
    kernel = (hk_kernel){.kind = HK_KERNEL_SQUARES, .n = HK_SQUARES_MOST + 1};
    assert_int_equal(ops->launch(stream, &kernel, &err), HK_INPUT);
    assert_non_null(strstr(err.message, "at most"));
    kernel = (hk_kernel){.n = 1, .shape = {.numel = 8, .bytes = 384, .m = 120, .v = 256}};
    assert_int_equal(ops->launch(stream, &kernel, &err), HK_INPUT);
    assert_non_null(strstr(err.message, "multiple of 16"));
  }
  /* The device still works. */
  check_copy(DEVICE, PINNED, 1000);
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(says_what_it_is),      cmocka_unit_test(copies),
    cmocka_unit_test(events_order_streams), cmocka_unit_test(events_have_times),
    cmocka_unit_test(waiting_sleeps),       cmocka_unit_test(refuses),
};

int main(int argc, char **argv) {
  bool rates = false;
  for (int i = 1; i < argc; i++) rates = rates || strcmp(argv[i], "--bench") == 0;
  const int code = find_backend(argc, argv);
  if (code != 0) return code;
  hk_error err = {0};
  if (rates) return run_bench(&err);
  return cmocka_run_group_tests(TESTS, open_gpu, close_gpu);
}
