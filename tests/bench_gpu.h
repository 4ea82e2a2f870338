/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rates of a device's copies and kernels: median of repetitions, by the device's own clock. */
#ifndef HK_TESTS_BENCH_GPU_H
#define HK_TESTS_BENCH_GPU_H

#include "tests/fixture_gpu.h"

enum { BENCH_REPEATS = 9, BENCH_SLAB = 1 << 20 };

#define BENCH_LINK   (512 * HK_MIB)     /* bytes a copy */
#define BENCH_STATE  ((int64_t)1 << 28) /* parameters, state on the device */
#define BENCH_MAPPED ((int64_t)1 << 26) /* parameters, state in host memory */

typedef struct {
  char *host, *other, *device; /* host, other: host memory of bench_host_bytes() each */
  hk_stream *up, *down;
  hk_event *begin, *end, *end_other;
} bench;

static inline hk_bytes bench_host_bytes(void) {
  return 12 * BENCH_MAPPED;
}

/* State, then gradients, then fp32 gradients or weights. */
static inline hk_bytes bench_device_bytes(void) {
  return (12 + 4 + 4) * BENCH_STATE;
}

/* Runs the operation once and returns its duration. */
typedef hk_status (*bench_work)(bench *b, hk_error *err);

static inline hk_status bench_once(bench *b, bench_work work, hk_ns *took, hk_error *err) {
  hk_ns uncertainty, begin, end, end_other;
  HK_TRY(ops->clock_align(gpu, &uncertainty, err));
  HK_TRY(ops->record(b->up, b->begin, err));
  HK_TRY(ops->wait(b->down, b->begin, err));
  HK_TRY(work(b, err));
  HK_TRY(ops->record(b->up, b->end, err));
  HK_TRY(ops->record(b->down, b->end_other, err));
  HK_TRY(ops->stream_sync(b->up, err));
  HK_TRY(ops->stream_sync(b->down, err));
  HK_TRY(ops->event_time(b->begin, &begin, err));
  HK_TRY(ops->event_time(b->end, &end, err));
  HK_TRY(ops->event_time(b->end_other, &end_other, err));
  *took = (end > end_other ? end : end_other) - begin;
  return HK_OK;
}

static inline int compare_ns(const void *a, const void *b) {
  const hk_ns x = *(const hk_ns *)a, y = *(const hk_ns *)b;
  return (x > y) - (x < y);
}

/* Prints the rates of `work`, which moves `bytes` and processes `elements`. */
static inline hk_status bench_one(bench *b, const char *name, bench_work work, double bytes,
                                  double elements, hk_error *err) {
  hk_ns times[BENCH_REPEATS];
  for (int i = -2; i < BENCH_REPEATS; i++) { /* the first two warm up */
    HK_TRY(bench_once(b, work, &times[i < 0 ? 0 : i], err));
  }
  qsort(times, BENCH_REPEATS, sizeof *times, compare_ns);
  const hk_ns middle = times[BENCH_REPEATS / 2];
  const double median = (double)middle;
  printf("%-22s %9.1f GB/s  %8.2f G/s  %9.3f ms (%.3f to %.3f)\n", name, bytes / median,
         elements / median, median / 1e6, hk_ms(times[0]), hk_ms(times[BENCH_REPEATS - 1]));
  fflush(stdout);
  return HK_OK;
}

static inline hk_status bench_h2d(bench *b, hk_error *err) {
  return ops->copy(b->up, b->device, b->host, BENCH_LINK, err);
}

static inline hk_status bench_d2h(bench *b, hk_error *err) {
  return ops->copy(b->down, b->other, b->device + BENCH_LINK, BENCH_LINK, err);
}

static inline hk_status bench_both(bench *b, hk_error *err) {
  HK_TRY(bench_h2d(b, err));
  return bench_d2h(b, err);
}

static inline hk_kernel bench_kernel(bench *b, hk_kernel_kind kind, int64_t n) {
  static const hk_adamw hyper = {1e-3, 0.9, 0.999, 1e-8, 0.01};
  const hk_bytes part = 4 * (hk_bytes)BENCH_SLAB;
  char *grad = b->device + 12 * BENCH_STATE, *out = grad + 4 * BENCH_STATE;
  return (hk_kernel){.kind = kind,
                     .type = HK_GRAD_BF16,
                     .n = n,
                     .grad = grad,
                     .step = hk_adamw_prepare(&hyper, 10, 1.0),
                     .shape = {.numel = BENCH_SLAB, .bytes = 3 * part, .m = part, .v = 2 * part},
                     .from = b->device,
                     .to = b->device,
                     .w = (uint16_t *)out,
                     .out = (float *)out,
                     .bins = (uint64_t *)out};
}

static inline hk_status bench_adamw(bench *b, hk_error *err) {
  const hk_kernel kernel = bench_kernel(b, HK_KERNEL_ADAMW, BENCH_STATE);
  return ops->launch(b->up, &kernel, err);
}

static inline hk_status bench_mapped(bench *b, hk_error *err) {
  hk_kernel kernel = bench_kernel(b, HK_KERNEL_ADAMW, BENCH_MAPPED);
  kernel.mapped = true;
  kernel.from = kernel.to = b->host;
  return ops->launch(b->up, &kernel, err);
}

static inline hk_status bench_mapped_moved(bench *b, hk_error *err) {
  hk_kernel kernel = bench_kernel(b, HK_KERNEL_ADAMW, BENCH_MAPPED);
  kernel.mapped = true;
  kernel.from = b->host;
  kernel.to = b->other;
  return ops->launch(b->up, &kernel, err);
}

static inline hk_status bench_odd(bench *b, hk_error *err) {
  hk_kernel kernel = bench_kernel(b, HK_KERNEL_ADAMW, BENCH_STATE - 1);
  kernel.grad = (const uint16_t *)kernel.grad + 1;
  kernel.w++;
  return ops->launch(b->up, &kernel, err);
}

static inline hk_status bench_cast(bench *b, hk_error *err) {
  const hk_kernel kernel = bench_kernel(b, HK_KERNEL_CAST_UP, BENCH_STATE);
  return ops->launch(b->up, &kernel, err);
}

static inline hk_status bench_squares(bench *b, hk_error *err) {
  const hk_kernel kernel = bench_kernel(b, HK_KERNEL_SQUARES, BENCH_STATE);
  return ops->launch(b->up, &kernel, err);
}

static inline hk_status bench_launch(bench *b, hk_error *err) {
  const hk_kernel kernel = bench_kernel(b, HK_KERNEL_CAST_UP, 1);
  for (int i = 0; i < 1000; i++) HK_TRY(ops->launch(b->up, &kernel, err));
  return HK_OK;
}

/* Ordinary values everywhere: 0.01 as state, gradients of many exponents. */
static inline hk_status bench_fill(bench *b, hk_error *err) {
  const int64_t n = bench_host_bytes() / 4;
  const hk_bytes state = 12 * BENCH_STATE, grads = 2 * BENCH_STATE;
  float *x = (float *)b->host;
  for (int64_t i = 0; i < n; i++) x[i] = 0.01f;
  for (hk_bytes at = 0; at < state; at += bench_host_bytes()) {
    HK_TRY(ops->copy(b->up, b->device + at, b->host, bench_host_bytes(), err));
  }
  random_stream r = {1};
  uint16_t *grad = (uint16_t *)b->other;
  for (int64_t i = 0; i < grads / 2; i++) grad[i] = (uint16_t)(0x3400u | (next(&r) & 0x87ffu));
  HK_TRY(ops->copy(b->up, b->device + state, b->other, grads, err));
  return ops->stream_sync(b->up, err);
}

static inline hk_status bench_all(bench *b, hk_error *err) {
  const double link = (double)BENCH_LINK, n = (double)BENCH_STATE, m = (double)BENCH_MAPPED;
  HK_TRY(bench_one(b, "h2d", bench_h2d, link, 0, err));
  HK_TRY(bench_one(b, "d2h", bench_d2h, link, 0, err));
  HK_TRY(bench_one(b, "h2d + d2h", bench_both, 2 * link, 0, err));
  HK_TRY(bench_one(b, "adamw", bench_adamw, 28 * n, n, err));
  HK_TRY(bench_one(b, "adamw, odd gradients", bench_odd, 28 * n, n, err));
  HK_TRY(bench_one(b, "adamw mapped", bench_mapped, 24 * m, m, err));
  HK_TRY(bench_one(b, "adamw mapped, moved", bench_mapped_moved, 24 * m, m, err));
  HK_TRY(bench_one(b, "cast up", bench_cast, 6 * n, n, err));
  HK_TRY(bench_one(b, "squares", bench_squares, 2 * n, n, err));
  return bench_one(b, "1000 launches", bench_launch, 0, 1000, err);
}

static inline hk_status bench_open(bench *b, hk_error *err) {
  HK_TRY(ops->stream_open(gpu, true, &b->up, err));
  HK_TRY(ops->stream_open(gpu, false, &b->down, err));
  HK_TRY(ops->event_open(gpu, false, &b->begin, err));
  HK_TRY(ops->event_open(gpu, false, &b->end, err));
  HK_TRY(ops->event_open(gpu, false, &b->end_other, err));
  HK_TRY(ops->alloc(gpu, bench_device_bytes(), (void **)&b->device, err));
  HK_TRY(pinned(bench_host_bytes(), &b->host, err));
  return pinned(bench_host_bytes(), &b->other, err);
}

static inline void bench_close(bench *b) {
  if (b->up != NULL) ops->stream_close(b->up);
  if (b->down != NULL) ops->stream_close(b->down);
  if (b->begin != NULL) ops->event_close(b->begin);
  if (b->end != NULL) ops->event_close(b->end);
  if (b->end_other != NULL) ops->event_close(b->end_other);
  if (b->device != NULL) ops->release(gpu, b->device);
  unpin(b->host, bench_host_bytes());
  unpin(b->other, bench_host_bytes());
}

static inline int run_bench(hk_error *err) {
  bench b = {0};
  hk_device_info info = {0};
  hk_ns uncertainty = 0;
  hk_status status = ops->open(0, NULL, &gpu, err);
  if (status == HK_OK) {
    status = ops->info(gpu, &info, err);
    if (status == HK_OK) status = ops->clock_align(gpu, &uncertainty, err);
    printf("%s, %s, %s, clock to %lld ns\n", info.name, info.driver, info.pci,
           (long long)uncertainty);
    if (status == HK_OK) status = bench_open(&b, err);
    if (status == HK_OK) status = bench_fill(&b, err);
    if (status == HK_OK) status = bench_all(&b, err);
    bench_close(&b);
    ops->close(gpu);
  }
  if (status != HK_OK) fprintf(stderr, "%s\n", err->message);
  return (int)status;
}

#endif
