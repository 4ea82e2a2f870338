/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The host backend: device memory, copies, order of streams, events, concurrent streams, refused
 * addresses. */
#include <pthread.h>

#include "tests/fixture_host.h"
#include "tests/random.h"

/* -- Device memory ----------------------------------------------------------------------------- */

static void test_devices(void **state) {
  (void)state;
  hk_error err = {0};
  int n = 0;
  must(ops->count(&n, &err), &err);
  assert_true(n >= 8);
  hk_backend *b = NULL;
  assert_int_equal(ops->open(-1, NULL, &b, &err), HK_INPUT);
  assert_int_equal(ops->open(n, NULL, &b, &err), HK_INPUT);
  assert_int_equal(ops->open(0, &(hk_backend_options){.memory = 100}, &b, &err), HK_INPUT);
  assert_int_equal(ops->open(0, &(hk_backend_options){.threads = -1}, &b, &err), HK_INPUT);
  assert_null(b);
  must(ops->open(n - 1, NULL, &b, &err), &err);
  hk_device_info info;
  must(ops->info(b, &info, &err), &err);
  assert_string_equal(info.name, "host");
  assert_int_equal(info.memory, HK_GIB);
  assert_int_equal(info.memory_free, HK_GIB);
  assert_int_equal(info.link_generation, 0);
  ops->close(b);
}

static hk_bytes free_memory(hk_backend *b) {
  hk_error err = {0};
  hk_device_info info = {0};
  must(ops->info(b, &info, &err), &err);
  return info.memory_free;
}

static void test_exhaustion(void **state) {
  (void)state;
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_error err = {0};
  void *half = device_memory(b, HK_MIB / 2), *rest = device_memory(b, HK_MIB / 2 - 1), *more = b;
  assert_int_equal(free_memory(b), 0);
  assert_int_equal(ops->alloc(b, 1, &more, &err), HK_ENVIRONMENT);
  assert_null(more);
  ops->release(b, half);
  assert_int_equal(ops->alloc(b, HK_MIB / 2 + 1, &more, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "out of device memory: 512 KiB asked for, 512 KiB free"));
  assert_int_equal(ops->alloc(b, INT64_MAX, &more, &err), HK_ENVIRONMENT);
  assert_int_equal(ops->alloc(b, -1, &more, &err), HK_INPUT);
  must(ops->alloc(b, 0, &more, &err), &err);
  ops->release(b, more);
  ops->release(b, rest);
  ops->release(b, device_memory(b, HK_MIB)); /* the free blocks have been merged */
  ops->close(b);
}

/* Random allocations and releases: each block keeps its contents. */
static void test_blocks_never_overlap(void **state) {
  (void)state;
  enum { BLOCKS = 40 };
  hk_backend *b = open_device(0, HK_MIB, 0);
  struct {
    unsigned char *at;
    size_t bytes;
  } blocks[BLOCKS] = {0};
  random_stream r = {.state = 7};
  hk_error err = {0};
  int refused = 0;
  for (int i = 0; i < 5000; i++) {
    const int k = pick(&r, 0, BLOCKS - 1);
    for (size_t j = 0; blocks[k].at && j < blocks[k].bytes; j += 61) {
      assert_int_equal(blocks[k].at[j], k);
    }
    ops->release(b, blocks[k].at);
    blocks[k].bytes = (size_t)scale(&r, 1, 200000);
    void *at = NULL;
    refused += ops->alloc(b, (hk_bytes)blocks[k].bytes, &at, &err) != HK_OK;
    assert_int_equal((uintptr_t)at % 512, 0);
    blocks[k].at = at;
    if (at) memset(at, k, blocks[k].bytes);
  }
  assert_in_range(refused, 1, 4000);
  for (int k = 0; k < BLOCKS; k++) ops->release(b, blocks[k].at);
  assert_int_equal(free_memory(b), HK_MIB);
  ops->release(b, device_memory(b, HK_MIB));
  ops->close(b);
}

/* -- Copies, order, events --------------------------------------------------------------------- */

static void test_data_is_copied(void **state) {
  (void)state;
  enum { N = 1 << 20 };
  hk_backend *b = open_device(0, 4 * N, 0);
  hk_stream *s = open_stream(b);
  unsigned char *in = host_memory(N), *out = host_memory(N);
  char *first = device_memory(b, N), *second = device_memory(b, N);
  for (int i = 0; i < N; i++) in[i] = (unsigned char)(i * 31 + i / 256);
  copy(s, first, in, N);
  copy(s, second + 5, first + 3, N - 8);
  copy(s, out, second + 5, N - 8);
  copy(s, out, in, 0);
  sync_stream(s);
  assert_memory_equal(out, in + 3, N - 8);
  assert_int_equal(out[N - 8], 0);
  ops->stream_close(s);
  ops->close(b);
  free(in);
  free(out);
}

/* More operations than the queue holds, each dependent on the one before it. */
static void test_a_stream_keeps_its_order(void **state) {
  (void)state;
  enum { N = 20000 };
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_stream *s = open_stream(b);
  int *numbers = host_memory((N + 1) * sizeof *numbers);
  int *cell = device_memory(b, sizeof *cell), *other = device_memory(b, sizeof *other);
  for (int i = 0; i < N; i++) numbers[i] = i;
  for (int i = 0; i < N; i += 2) {
    copy(s, cell, &numbers[i], sizeof *cell);
    copy(s, other, cell, sizeof *cell);
    copy(s, &numbers[i + 1], other, sizeof *cell);
  }
  ops->stream_close(s); /* waits */
  for (int i = 0; i < N; i++) assert_int_equal(numbers[i], i & ~1);
  ops->close(b);
  free(numbers);
}

/* One stream writes numbers to a cell, another reads each of them, and each waits for the other's
 * event. A stream that does not wait breaks the sequence. */
static void test_streams_wait_for_events(void **state) {
  (void)state;
  enum { ROUNDS = 3000 };
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_stream *s[2] = {open_stream(b), open_stream(b)};
  hk_event *e[2] = {open_event(b), open_event(b)};
  int *cell = device_memory(b, sizeof *cell);
  int *in = host_memory(ROUNDS * sizeof *in), *out = host_memory(ROUNDS * sizeof *out);
  for (int i = 0; i < ROUNDS; i++) in[i] = i + 1;
  for (int i = 0; i < ROUNDS; i++) {
    if (i > 0) wait_for(s[0], e[1]);
    copy(s[0], cell, &in[i], sizeof *cell);
    record(s[0], e[0]);
    wait_for(s[1], e[0]);
    copy(s[1], &out[i], cell, sizeof *cell);
    record(s[1], e[1]);
  }
  hk_error err = {0};
  must(ops->event_sync(e[1], &err), &err);
  assert_memory_equal(in, out, ROUNDS * sizeof *in);
  for (int i = 0; i < 2; i++) {
    ops->stream_close(s[i]);
    ops->event_close(e[i]);
  }
  ops->close(b);
  free(in);
  free(out);
}

static void test_only_awaited_events_are_waited_for(void **state) {
  (void)state;
  hk_error err = {0};
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_stream *s = open_stream(b);
  hk_event *e = NULL;
  must(ops->event_open(b, false, &e, &err), &err);
  record(s, e);
  assert_int_equal(ops->event_sync(e, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "opened for streams only"));
  must(ops->stream_sync(s, &err), &err);
  bool done = false;
  must(ops->event_done(e, &done, &err), &err);
  assert_true(done);
  ops->stream_close(s);
  ops->event_close(e);
  ops->close(b);
}

static void test_times_of_events(void **state) {
  (void)state;
  enum { N = 50 };
  hk_backend *b = open_device(0, 4 * HK_MIB, 0);
  hk_stream *s = open_stream(b);
  hk_event *e[N];
  char *host = host_memory(HK_MIB), *device = device_memory(b, HK_MIB);
  hk_error err = {0};
  hk_ns uncertainty = -1;
  must(ops->clock_align(b, &uncertainty, &err), &err);
  assert_int_equal(uncertainty, 0);
  const hk_ns before = hk_now();
  for (int i = 0; i < N; i++) {
    e[i] = open_event(b);
    copy(s, device, host, HK_MIB);
    record(s, e[i]);
  }
  must(ops->event_sync(e[N - 1], &err), &err);
  const hk_ns after = hk_now();
  hk_ns last = before;
  for (int i = 0; i < N; i++) {
    bool done = false;
    must(ops->event_done(e[i], &done, &err), &err);
    assert_true(done);
    assert_true(time_of(e[i]) > last);
    last = time_of(e[i]);
  }
  assert_true(last <= after);
  record(s, e[0]); /* again: the last one counts */
  sync_stream(s);
  assert_true(time_of(e[0]) > last);
  for (int i = 0; i < N; i++) ops->event_close(e[i]);
  ops->stream_close(s);
  ops->close(b);
  free(host);
}

static void test_pending_events(void **state) {
  (void)state;
  enum { BYTES = 8 << 20 };
  hk_backend *b = open_device(0, BYTES, 0);
  hk_stream *s = open_stream(b);
  hk_event *e = open_event(b);
  hk_error err = {0};
  hk_ns t = 0;
  bool done = false;
  assert_int_equal(ops->event_time(e, &t, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "never recorded"));
  assert_int_equal(ops->wait(s, e, &err), HK_INPUT);
  char *host = host_memory(BYTES), *device = device_memory(b, BYTES);
  hk_status status = HK_OK;
  for (int i = 0; i < 100 && status == HK_OK; i++) { /* again if the copies had ended already */
    sync_stream(s);
    for (int j = 0; j < 4; j++) copy(s, device, host, BYTES);
    record(s, e);
    status = ops->event_time(e, &t, &err);
  }
  assert_int_equal(status, HK_INPUT);
  assert_non_null(strstr(err.message, "has not happened"));
  while (!done) must(ops->event_done(e, &done, &err), &err);
  assert_true(time_of(e) > 0);
  /* As on a GPU, an event may be closed while it is still waited for. */
  copy(s, device, host, BYTES);
  record(s, e);
  hk_stream *other = open_stream(b);
  wait_for(other, e);
  ops->event_close(e);
  ops->stream_close(other);
  ops->stream_close(s);
  ops->close(b);
  free(host);
}

/* -- The caller's streams -----------------------------------------------------------------------
 */

static void test_adopted_stream(void **state) {
  (void)state;
  enum { N = 1000 };
  hk_backend *b = open_device(0, HK_MIB, 0);
  hk_stream *own = open_stream(b), *theirs = NULL;
  hk_error err = {0};
  int nothing = 0, previous = 0;
  must(ops->guard(b, &previous, &err), &err);
  assert_int_equal(previous, -1);
  must(ops->stream_adopt(b, &nothing, &theirs, &err), &err);
  hk_event *e = open_event(b);
  char *device = device_memory(b, N), *host = host_memory(N), *zeros = host_memory(N);
  memset(host, 7, N);
  copy(own, device, host, N);
  record(own, e);
  wait_for(theirs, e);
  must(ops->zero(theirs, device + 10, N - 20, &err), &err);
  must(ops->zero(theirs, NULL, 0, &err), &err);
  sync_stream(theirs);
  assert_memory_equal(device, host, 10);
  assert_memory_equal(device + 10, zeros, N - 20);
  assert_memory_equal(device + N - 10, host, 10);
  assert_int_equal(ops->zero(theirs, host, N, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "memory to set to zero"));
  assert_int_equal(ops->zero(theirs, device, -1, &err), HK_INPUT);
  hk_backend_host_fail(b, HK_HOST_LAUNCH, 0);
  assert_int_equal(ops->zero(theirs, device, N, &err), HK_ENVIRONMENT);
  must(ops->zero(theirs, device, N, &err), &err); /* the device is still usable */
  sync_stream(theirs);
  ops->unguard(b, previous);
  ops->event_close(e);
  ops->stream_close(theirs);
  ops->stream_close(own);
  ops->close(b);
  free(host), free(zeros);
}

/* -- Concurrency ------------------------------------------------------------------------------- */

/* Two copies and a kernel on three streams run at the same time in at least one of 100 tries. */
static void test_streams_overlap(void **state) {
  (void)state;
  enum { BYTES = 16 << 20, TRIES = 100 };
  hk_backend *b = open_device(0, 4 * BYTES, 1);
  hk_stream *s[3];
  hk_event *start[3], *end[3];
  for (int i = 0; i < 3; i++) {
    s[i] = open_stream(b);
    start[i] = open_event(b);
    end[i] = open_event(b);
  }
  char *in = host_memory(BYTES), *out = host_memory(BYTES), *device = device_memory(b, 2 * BYTES);
  uint64_t *bins = device_memory(b, (HK_SQUARES_BINS + 1) * sizeof *bins);
  void *grad = device_memory(b, BYTES);
  const hk_kernel k = {.kind = HK_KERNEL_SQUARES, .n = BYTES / 2, .grad = grad, .bins = bins};
  bool together = false;
  for (int i = 0; i < TRIES && !together; i++) {
    /* A start is recorded after the work of the stream before has been queued: if streams ran one
     * after the other, the last start would be later than the first end. */
    record(s[2], start[2]);
    launch(s[2], &k);
    record(s[2], end[2]);
    record(s[0], start[0]);
    copy(s[0], device, in, BYTES);
    record(s[0], end[0]);
    record(s[1], start[1]);
    copy(s[1], out, device + BYTES, BYTES);
    record(s[1], end[1]);
    for (int j = 0; j < 3; j++) sync_stream(s[j]);
    hk_ns last_start = 0, first_end = INT64_MAX;
    for (int j = 0; j < 3; j++) {
      if (time_of(start[j]) > last_start) last_start = time_of(start[j]);
      if (time_of(end[j]) < first_end) first_end = time_of(end[j]);
    }
    together = last_start < first_end;
  }
  assert_true(together);
  for (int i = 0; i < 3; i++) {
    ops->stream_close(s[i]);
    ops->event_close(start[i]);
    ops->event_close(end[i]);
  }
  ops->close(b);
  free(in);
  free(out);
}

typedef struct {
  hk_stream *stream;
  int *cell, in[500], out[500];
  hk_status status;
} caller;

static void *call_from_a_thread(void *arg) {
  caller *c = arg;
  for (int i = 0; i < 500 && c->status == HK_OK; i++) {
    c->status = ops->copy(c->stream, c->cell, &c->in[i], sizeof(int), NULL);
    if (c->status == HK_OK) {
      c->status = ops->copy(c->stream, &c->out[i], c->cell, sizeof(int), NULL);
    }
  }
  if (c->status == HK_OK) c->status = ops->stream_sync(c->stream, NULL);
  return NULL;
}

static void test_callers_in_several_threads(void **state) {
  (void)state;
  hk_backend *b = open_device(0, HK_MIB, 0);
  static caller callers[4];
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    callers[i].stream = open_stream(b);
    callers[i].cell = device_memory(b, sizeof(int));
    for (int j = 0; j < 500; j++) callers[i].in[j] = 1000 * i + j;
    assert_int_equal(pthread_create(&threads[i], NULL, call_from_a_thread, &callers[i]), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(callers[i].status, HK_OK);
    assert_memory_equal(callers[i].in, callers[i].out, sizeof callers[i].in);
    ops->stream_close(callers[i].stream);
  }
  ops->close(b);
}

/* -- Wrong addresses --------------------------------------------------------------------------- */

static void test_wrong_copies_and_releases(void **state) {
  (void)state;
  hk_backend *b = open_device(3, HK_MIB, 0);
  hk_stream *s = open_stream(b);
  hk_error err = {0};
  char *device = device_memory(b, 1024), host[1024] = {0};
  assert_int_equal(ops->copy(s, device + 1, host, 1024, &err), HK_INPUT);
  assert_int_equal(ops->copy(s, host, device + 2048, 1, &err), HK_INPUT);
  assert_int_equal(ops->copy(s, host, NULL, 1, &err), HK_INPUT);
  assert_int_equal(ops->copy(s, host, device, -1, &err), HK_INPUT);
  assert_int_equal(ops->copy(s, device + 10, device, 11, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "overlap"));
  copy(s, device + 11, device, 11);
  sync_stream(s);
  ops->release(b, host);
  assert_int_equal(ops->stream_sync(s, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "host device 3 failed"));
  assert_non_null(strstr(err.message, "which is not device memory in use"));
  ops->stream_close(s);
  ops->close(b);
}

static void test_peers(void **state) {
  (void)state;
  enum { N = 100000 };
  hk_backend *a = open_device(4, HK_MIB, 0), *b = open_device(5, HK_MIB, 0);
  hk_stream *s = open_stream(a), *back = open_stream(b);
  hk_error err = {0};
  bool direct = false;
  unsigned char *in = host_memory(N), *out = host_memory(N);
  char *here = device_memory(a, N), *there = device_memory(b, N);
  for (int i = 0; i < N; i++) in[i] = (unsigned char)(i * 31 + i / 256);
  copy(s, here, in, N);
  assert_int_equal(ops->copy(s, there, here, N, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "host device 5, which was not made a peer of device 4"));
  must(ops->peer(a, b, &direct, &err), &err);
  must(ops->peer(a, b, &direct, &err), &err); /* once more is fine */
  assert_true(direct);
  copy(s, there, here, N);
  copy(s, here + 1, there, N - 1);
  copy(s, out, here + 1, N - 1);
  sync_stream(s);
  assert_memory_equal(out, in, N - 1);
  /* A peer gives access in one direction only, and only to memory in use. */
  assert_int_equal(ops->copy(back, there, here, 1, &err), HK_INPUT);
  assert_int_equal(ops->copy(s, here, there + 512, N, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "not one piece of device memory in use"));
  const hk_backend_ops others = {.name = "other"};
  hk_backend stranger = {.ops = &others};
  assert_int_equal(ops->peer(a, &stranger, &direct, &err), HK_INPUT);
  assert_false(direct);
  ops->stream_close(s);
  ops->stream_close(back);
  ops->close(b);
  ops->close(a);
  free(in);
  free(out);
}

static void test_registration(void **state) {
  (void)state;
  static char memory[1000];
  hk_backend *a = open_device(0, HK_MIB, 0), *b = open_device(1, HK_MIB, 0);
  hk_error err = {0};
  must(ops->host_register(a, memory + 100, 100, &err), &err);
  assert_int_equal(ops->host_register(a, memory + 199, 1, &err), HK_INPUT);
  assert_int_equal(ops->host_register(b, memory, 101, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "registered already"));
  assert_int_equal(ops->host_register(b, NULL, 1, &err), HK_INPUT);
  must(ops->host_register(b, memory + 200, 1, &err), &err);
  must(ops->host_register(b, memory, 100, &err), &err);
  ops->host_unregister(a, memory + 100);
  ops->host_unregister(a, NULL);
  must(ops->host_register(b, memory + 100, 100, &err), &err);
  ops->host_unregister(b, memory + 100);
  ops->close(b); /* forgets the others */
  must(ops->host_register(a, memory, 1000, &err), &err);
  ops->host_unregister(a, memory + 1);
  assert_int_equal(ops->clock_align(a, NULL, &err), HK_ENVIRONMENT);
  ops->close(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_exhaustion),
      cmocka_unit_test(test_blocks_never_overlap),
      cmocka_unit_test(test_data_is_copied),
      cmocka_unit_test(test_a_stream_keeps_its_order),
      cmocka_unit_test(test_streams_wait_for_events),
      cmocka_unit_test(test_only_awaited_events_are_waited_for),
      cmocka_unit_test(test_times_of_events),
      cmocka_unit_test(test_pending_events),
      cmocka_unit_test(test_adopted_stream),
      cmocka_unit_test(test_streams_overlap),
      cmocka_unit_test(test_callers_in_several_threads),
      cmocka_unit_test(test_wrong_copies_and_releases),
      cmocka_unit_test(test_peers),
      cmocka_unit_test(test_registration),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
