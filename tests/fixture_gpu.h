/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Shared by the tests and the bench of a backend: one open device, and memory of each kind. */
#ifndef HK_TESTS_FIXTURE_GPU_H
#define HK_TESTS_FIXTURE_GPU_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/device/backend.h"
#include "tests/random.h"

static const hk_backend_ops *ops;
static hk_backend *gpu;
static hk_stream *stream;

/* Sets ops from "--backend NAME", by default to CUDA's. Returns 0, or after a message the program's
 * exit status: 77 without a device, HK_INPUT for an unknown name. */
static inline int find_backend(int argc, char **argv) {
  const char *name = "cuda";
  for (int i = 1; i + 1 < argc; i++) {
    if (strcmp(argv[i], "--backend") == 0) name = argv[i + 1];
  }
  hk_error err = {0};
  int n = 0;
  if (hk_backend_find(name, &ops, &err) != HK_OK) {
    fprintf(stderr, "%s\n", err.message);
    return HK_INPUT;
  }
  if (ops->count(&n, &err) == HK_OK) return 0;
  fprintf(stderr, "skipped: %s\n", err.message);
  return 77;
}

static inline int open_gpu(void **state) {
  (void)state;
  hk_error err = {0};
  must(ops->open(0, &(hk_backend_options){.threads = 2}, &gpu, &err), &err);
  must(ops->stream_open(gpu, false, &stream, &err), &err);
  return 0;
}

static inline int close_gpu(void **state) {
  (void)state;
  ops->stream_close(stream);
  ops->close(gpu);
  return 0;
}

/* Host memory that is not registered with a device. */
static inline void *plain(hk_bytes bytes) {
  void *memory = malloc((size_t)bytes);
  if (memory == NULL) abort();
  return memory;
}

static inline hk_status pinned(hk_bytes bytes, char **out, hk_error *err) {
  void *memory =
      mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *out = NULL;
  if (memory == MAP_FAILED) {
    hk_fail_memory(err, (unsigned long long)bytes, "a test");
    return HK_ENVIRONMENT;
  }
  madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
  memset(memory, 0, (size_t)bytes);
  const hk_status status = ops->host_register(gpu, memory, bytes, err);
  if (status == HK_OK) *out = memory;
  if (status != HK_OK) munmap(memory, (size_t)bytes);
  return status;
}

static inline void unpin(char *memory, hk_bytes bytes) {
  if (memory == NULL) return;
  ops->host_unregister(gpu, memory);
  munmap(memory, (size_t)bytes);
}

/* HK_OK if `memory` of any kind holds `expected`, else HK_NO with the first word that differs. */
static inline hk_status compare(hk_stream *s, const char *what, const void *memory,
                                const char *expected, hk_bytes bytes, hk_error *err) {
  char *got = plain(bytes);
  hk_status status = ops->copy(s, got, memory, bytes, err);
  if (status == HK_OK) status = ops->stream_sync(s, err);
  if (status == HK_OK && memcmp(got, expected, (size_t)bytes) != 0) {
    hk_bytes at = 0;
    while (got[at] == expected[at]) at++;
    at -= at % 4;
    uint32_t words[2] = {0};
    const size_t size = bytes - at < 4 ? (size_t)(bytes - at) : 4;
    memcpy(&words[0], got + at, size);
    memcpy(&words[1], expected + at, size);
    status = hk_fail(err, HK_NO, "%s at byte %lld of %lld: %08x, expected %08x", what,
                     (long long)at, (long long)bytes, words[0], words[1]);
  }
  free(got);
  return status;
}

/* A parameter, momentum or variance (part 0, 1, 2); some are subnormal, infinite, NaN, huge or
 * tiny. */
static inline float state_value(random_stream *r, int part) {
  static const uint32_t odd[] = {0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff,
                                 0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                 0x7fc00000, 0xffc12345, 0x7f800001, 0x0d000000, 0x3f808000,
                                 0x3f818000, 0x3f7fffff, 0x00012345, 0xbf800000, 0x7effffff};
  static const double size[] = {0.5, 1e-2, 1e-4};
  float x = (float)((part == 2 ? uniform(r) : uniform(r) - 0.5) * size[part]);
  const uint32_t any = (uint32_t)next(r);
  const int kind = pick(r, 0, 31);
  if (kind == 0) memcpy(&x, &odd[any % (sizeof odd / sizeof *odd)], sizeof x);
  if (kind == 1) memcpy(&x, &any, sizeof x);
  return x;
}

#endif
