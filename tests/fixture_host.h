/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A device of the host backend, and calls on it that must succeed. */
#ifndef HK_TESTS_FIXTURE_HOST_H
#define HK_TESTS_FIXTURE_HOST_H

#include <stdlib.h>

#include "engine/device/backend_host.h"
#include "tests/fixture.h"

static const hk_backend_ops *const ops = &hk_backend_host;

static inline hk_backend *open_device(int number, hk_bytes memory, int threads) {
  hk_error err = {0};
  hk_backend *b = NULL;
  const hk_backend_options options = {.memory = memory, .threads = threads};
  must(ops->open(number, &options, &b, &err), &err);
  return b;
}

static inline void *device_memory(hk_backend *b, hk_bytes bytes) {
  hk_error err = {0};
  void *memory = NULL;
  must(ops->alloc(b, bytes, &memory, &err), &err);
  return memory;
}

static inline hk_stream *open_stream(hk_backend *b) {
  hk_error err = {0};
  hk_stream *s = NULL;
  must(ops->stream_open(b, false, &s, &err), &err);
  return s;
}

static inline hk_event *open_event(hk_backend *b) {
  hk_error err = {0};
  hk_event *e = NULL;
  must(ops->event_open(b, true, &e, &err), &err);
  return e;
}

static inline void copy(hk_stream *s, void *to, const void *from, hk_bytes bytes) {
  hk_error err = {0};
  must(ops->copy(s, to, from, bytes, &err), &err);
}

static inline void launch(hk_stream *s, const hk_kernel *kernel) {
  hk_error err = {0};
  must(ops->launch(s, kernel, &err), &err);
}

static inline void record(hk_stream *s, hk_event *e) {
  hk_error err = {0};
  must(ops->record(s, e, &err), &err);
}

static inline void wait_for(hk_stream *s, hk_event *e) {
  hk_error err = {0};
  must(ops->wait(s, e, &err), &err);
}

static inline void sync_stream(hk_stream *s) {
  hk_error err = {0};
  must(ops->stream_sync(s, &err), &err);
}

static inline hk_ns time_of(hk_event *e) {
  hk_error err = {0};
  hk_ns t = 0;
  must(ops->event_time(e, &t, &err), &err);
  return t;
}

static inline void *host_memory(size_t bytes) {
  void *memory = calloc(1, bytes);
  assert_non_null(memory);
  return memory;
}

#endif
