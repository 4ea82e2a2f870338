/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Kernels GATHER and SCATTER compared with plain copies of the same arrays: one large array, many
 * large ones, many small ones. Prints a table of medians, measured by the device's clock.
 *
 *   bench_segments [--backend cuda|host] [--values N] [--repeats N]
 *
 * --values: values of the one large array (default 100 M); the others scale with it. GB/s count
 * bytes read and written in device memory; for arrays in host memory, bytes over the link. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench/number.h"
#include "bench/sorted.h"
#include "engine/device/backend.h"

enum { MOST_REPEATS = 101, LAUNCHES = 10 /* of small arrays, timed together */, SHAPES = 3 };

typedef struct {
  const char *name;
  hk_kernel_kind kind; /* ADAMW: copies */
  hk_grad_type from_type, to_type;
  bool add, squares;
  bool host; /* the source */
  bool odd;  /* the source begins one element later */
} bench_case;

#define BF16 HK_GRAD_BF16
#define FP16 HK_GRAD_FP16
#define FP32 HK_GRAD_FP32
static const bench_case cases[] = {
    {.name = "copy D2D, bf16", .from_type = BF16, .to_type = BF16},
    {.name = "copy D2D, fp32", .from_type = FP32, .to_type = FP32},
    {.name = "copy H2D, bf16", .from_type = BF16, .to_type = BF16, .host = true},
#define GATHER(text, type, ...)                                                           \
  {                                                                                       \
    .name = "gather " text, .kind = HK_KERNEL_GATHER, .from_type = type, .to_type = type, \
    __VA_ARGS__                                                                           \
  }
    GATHER("bf16", BF16, .add = false),
    GATHER("bf16, add", BF16, .add = true),
    GATHER("bf16, squares", BF16, .squares = true),
    GATHER("bf16, add, squares", BF16, .add = true, .squares = true),
    GATHER("bf16, squares, odd", BF16, .squares = true, .odd = true),
    GATHER("fp16, squares", FP16, .squares = true),
    GATHER("fp32", FP32, .add = false),
    GATHER("fp32, squares", FP32, .squares = true),
    GATHER("fp32, add, squares", FP32, .add = true, .squares = true),
#define SCATTER(text, from, to, ...)                                                      \
  {                                                                                       \
    .name = "scatter " text, .kind = HK_KERNEL_SCATTER, .from_type = from, .to_type = to, \
    __VA_ARGS__                                                                           \
  }
    SCATTER("bf16", BF16, BF16, .host = false),
    SCATTER("fp32 to bf16", FP32, BF16, .host = false),
    SCATTER("fp32 to fp16", FP32, FP16, .host = false),
    SCATTER("fp32", FP32, FP32, .host = false),
    SCATTER("bf16, mapped", BF16, BF16, .host = true),
    SCATTER("bf16, mapped, odd", BF16, BF16, .host = true, .odd = true),
    SCATTER("fp32 to bf16, mapped", FP32, BF16, .host = true),
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct {
  int n;          /* arrays */
  int64_t values; /* each */
} shape;

typedef struct {
  const hk_backend_ops *ops;
  hk_backend *device;
  hk_stream *stream;
  hk_event *begin, *end;
  char *from, *to, *host; /* `bytes` each */
  uint64_t *bins;
  hk_bytes bytes;
  int64_t values;
  int repeats;
} bench;

/* -- One case ------------------------------------------------------------------------------------
 */

static bool is_copy(const bench_case *c) {
  return c->kind == HK_KERNEL_ADAMW;
}

static hk_kernel prepare(const bench *b, const bench_case *c, shape s,
                         hk_segment segments[HK_SEGMENTS_MOST]) {
  const hk_bytes from_size = (hk_bytes)hk_grad_size(c->from_type);
  const hk_bytes to_size = (hk_bytes)hk_grad_size(c->to_type);
  const int64_t apart = (s.values + 127) / 64 * 64; /* room for one more value, aligned */
  for (int i = 0; i < s.n; i++) {
    segments[i] = (hk_segment){
        .from = (c->host ? b->host : b->from) + (i * apart + (c->odd ? 1 : 0)) * from_size,
        .to = b->to + i * apart * to_size,
        .n = s.values,
        .from_type = c->from_type,
        .to_type = c->to_type,
        .bins = c->squares ? b->bins + (ptrdiff_t)i * HK_SQUARES_MOST_WORDS : NULL,
        .add = c->add};
  }
  return (hk_kernel){.kind = c->kind,
                     .n = s.n * s.values,
                     .mapped = c->host,
                     .segments = segments,
                     .n_segments = s.n};
}

static hk_status queue(const bench *b, const bench_case *c, const hk_kernel *k, hk_error *err) {
  if (!is_copy(c)) return b->ops->launch(b->stream, k, err);
  const hk_bytes size = (hk_bytes)hk_grad_size(c->from_type);
  for (int i = 0; i < k->n_segments; i++) {
    const hk_segment *s = &k->segments[i];
    HK_TRY(b->ops->copy(b->stream, s->to, s->from, s->n * size, err));
  }
  return HK_OK;
}

static hk_status measure(const bench *b, const bench_case *c, const hk_kernel *k, int launches,
                         double *took, hk_error *err) {
  hk_ns uncertainty, begin, end;
  HK_TRY(b->ops->clock_align(b->device, &uncertainty, err));
  HK_TRY(b->ops->record(b->stream, b->begin, err));
  for (int i = 0; i < launches; i++) HK_TRY(queue(b, c, k, err));
  HK_TRY(b->ops->record(b->stream, b->end, err));
  HK_TRY(b->ops->stream_sync(b->stream, err));
  HK_TRY(b->ops->event_time(b->begin, &begin, err));
  HK_TRY(b->ops->event_time(b->end, &end, err));
  *took = (double)(end - begin) / launches;
  return HK_OK;
}

/* Bytes a value that count. */
static double traffic(const bench_case *c) {
  const double from = (double)hk_grad_size(c->from_type), to = (double)hk_grad_size(c->to_type);
  return c->host ? from : from + to + (c->add ? to : 0);
}

static hk_status run_case(const bench *b, const bench_case *c, shape s, hk_error *err) {
  hk_segment segments[HK_SEGMENTS_MOST];
  const hk_kernel k = prepare(b, c, s, segments);
  const int launches = k.n < 1000000 ? LAUNCHES : 1;
  double ns[MOST_REPEATS];
  for (int i = -2; i < b->repeats; i++) { /* the first two warm up */
    HK_TRY(measure(b, c, &k, launches, &ns[i < 0 ? 0 : i], err));
  }
  sort_ascending(ns, b->repeats);
  const double median = median_of_sorted(ns, b->repeats);
  printf("| %s | %d x %lld | %.1f | %.1f | %.1f - %.1f |\n", c->name, s.n, (long long)s.values,
         traffic(c) * (double)k.n / median, median / 1e3, ns[0] / 1e3, ns[b->repeats - 1] / 1e3);
  fflush(stdout);
  return HK_OK;
}

/* -- All of them ---------------------------------------------------------------------------------
 */

/* Gradients of several magnitudes with random fractions. */
static hk_status fill(const bench *b, hk_grad_type type, hk_error *err) {
  uint64_t r = 1;
  const hk_bytes size = (hk_bytes)hk_grad_size(type);
  for (hk_bytes i = 0; i < b->bytes / size; i++) {
    r = r * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    const float x = ((float)(uint32_t)(r >> 40) - 0x1p23f) * 0x1p-30f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (type == HK_GRAD_BF16) bits >>= 16;
    if (type == HK_GRAD_FP16) bits = 0x1c00u | (uint32_t)(r >> 40 & 0x8fff);
    memcpy(b->host + i * size, &bits, (size_t)size); /* little-endian */
  }
  HK_TRY(b->ops->copy(b->stream, b->from, b->host, b->bytes, err));
  HK_TRY(b->ops->copy(b->stream, b->to, b->host, b->bytes, err));
  return b->ops->zero(b->stream, b->bins, HK_SEGMENTS_MOST * HK_SQUARES_MOST_WORDS * 8, err);
}

static hk_status run_all(const bench *b, hk_error *err) {
  const shape shapes[SHAPES] = {{1, b->values},
                                {HK_SEGMENTS_MOST, (b->values + 99) / 100},
                                {HK_SEGMENTS_MOST, b->values < 3000 ? b->values : 3000}};
  printf("| what | arrays | GB/s | us | least - most |\n|---|---:|---:|---:|---:|\n");
  for (int i = 0; i < SHAPES; i++) {
    int filled = -1;
    for (int c = 0; c < CASES; c++) {
      if ((int)cases[c].from_type != filled) HK_TRY(fill(b, cases[c].from_type, err));
      filled = (int)cases[c].from_type;
      HK_TRY(run_case(b, &cases[c], shapes[i], err));
    }
  }
  return HK_OK;
}

static hk_status open_memory(bench *b, hk_error *err) {
  HK_TRY(b->ops->alloc(b->device, b->bytes, (void **)&b->from, err));
  HK_TRY(b->ops->alloc(b->device, b->bytes, (void **)&b->to, err));
  const hk_bytes sets = HK_SEGMENTS_MOST * HK_SQUARES_MOST_WORDS * 8;
  HK_TRY(b->ops->alloc(b->device, sets, (void **)&b->bins, err));
  void *host =
      mmap(NULL, (size_t)b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (host == MAP_FAILED) return hk_fail_memory(err, (unsigned long long)b->bytes, "arrays");
  madvise(host, (size_t)b->bytes, MADV_HUGEPAGE);
  memset(host, 0, (size_t)b->bytes);
  b->host = host;
  return b->ops->host_register(b->device, host, b->bytes, err);
}

static hk_status open_bench(bench *b, hk_error *err) {
  const hk_backend_options options = {.memory = 2 * b->bytes + 4 * HK_MIB};
  hk_device_info info;
  HK_TRY(b->ops->open(0, &options, &b->device, err));
  HK_TRY(b->ops->info(b->device, &info, err));
  printf("%s, %s; median of %d\n\n", info.name, info.driver, b->repeats);
  HK_TRY(b->ops->stream_open(b->device, false, &b->stream, err));
  HK_TRY(b->ops->event_open(b->device, false, &b->begin, err));
  HK_TRY(b->ops->event_open(b->device, false, &b->end, err));
  return open_memory(b, err);
}

static void close_bench(bench *b) {
  if (b->device == NULL) return;
  if (b->stream != NULL) b->ops->stream_close(b->stream);
  if (b->begin != NULL) b->ops->event_close(b->begin);
  if (b->end != NULL) b->ops->event_close(b->end);
  b->ops->release(b->device, b->from);
  b->ops->release(b->device, b->to);
  b->ops->release(b->device, b->bins);
  if (b->host != NULL) {
    b->ops->host_unregister(b->device, b->host);
    munmap(b->host, (size_t)b->bytes);
  }
  b->ops->close(b->device);
}

static hk_status parse(int argc, char **argv, bench *b, hk_error *err) {
  static const struct option known[] = {{"backend", 1, NULL, 'b'},
                                        {"values", 1, NULL, 'v'},
                                        {"repeats", 1, NULL, 'r'},
                                        {NULL, 0, NULL, 0}};
  const char *name = "cuda";
  *b = (bench){.values = 100000000, .repeats = 9};
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (c == 'b')
      name = optarg;
    else if (c == 'v')
      b->values = whole_number(optarg, 1, HK_SQUARES_MOST);
    else if (c == 'r')
      b->repeats = (int)whole_number(optarg, 1, MOST_REPEATS);
    else
      exit(HK_INPUT);
  }
  if (optind < argc) return hk_fail(err, HK_INPUT, "an option was expected, not %s", argv[optind]);
  const int64_t most = b->values > 64 * 3000 ? b->values : 64 * 3000;
  b->bytes = 4 * (most + HK_SEGMENTS_MOST * 256);
  return hk_backend_find(name, &b->ops, err);
}

int main(int argc, char **argv) {
  bench b;
  hk_error err = {0};
  hk_status status = parse(argc, argv, &b, &err);
  if (status == HK_OK) status = open_bench(&b, &err);
  if (status == HK_OK) status = run_all(&b, &err);
  close_bench(&b);
  if (status != HK_OK) fprintf(stderr, "bench_segments: %s\n", err.message);
  return (int)status;
}
