/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Bandwidth of copies between host and GPU as nvbandwidth measures it. It checks `hocket calibrate`
 * and shares no code with it.
 *
 *   bench_bandwidth [--gpu N] [--mib N] [--copies N] [--samples N] [--json FILE]
 *
 * One sample: a kernel holds the stream until a flag in host memory is set. An event, the copies of
 * one large buffer, and another event are queued behind it, and only then is the flag set. So the
 * time between the events does not include queueing. To measure a direction beside the other, a
 * second stream waits for the same flag and copies the other way. It has more to copy; the program
 * checks that it begins with the first and ends after it. Samples visit all cases in turn, and the
 * median counts. Host memory is pinned by cudaMallocHost, or made of huge pages and registered. */
#include <cuda_runtime.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_SAMPLES = 256, USAGE = 2, ENVIRONMENT = 3 };

#define LATE 0.02 /* of the time measured: the other direction must run all of it */

static const size_t mib = (size_t)1 << 20;

static struct {
  int gpu, copies, samples;
  size_t bytes;
  const char *json;
} given = {0, 8, 16, 512 * mib, NULL};

static void fail(int status, const char *why, const char *what) {
  fprintf(stderr, "bench_bandwidth: %s%s\n", why, what);
  exit(status);
}

static void must(cudaError_t status, const char *what) {
  if (status == cudaSuccess) return;
  fprintf(stderr, "bench_bandwidth: %s: %s\n", what, cudaGetErrorString(status));
  exit(ENVIRONMENT);
}

/* -- Memory ------------------------------------------------------------------------------------ */

typedef struct {
  const char *name;
  char *source, *target;
} host_memory;

static host_memory memories[2] = {{"huge pages", NULL, NULL}, {"cudaMallocHost", NULL, NULL}};
static char *device_in, *device_out; /* target of copies in, source of copies out */

static char *huge_pages() {
  const size_t huge = 2 * mib;
  const size_t bytes = (given.bytes + huge - 1) / huge * huge;
  char *memory = (char *)aligned_alloc(huge, bytes);
  if (memory == NULL) fail(ENVIRONMENT, "no host memory for the buffers: give a smaller --mib", "");
  (void)madvise(memory, bytes, MADV_HUGEPAGE); /* if it fails, small pages are used: slower */
  memset(memory, 1, bytes);
  must(cudaHostRegister(memory, bytes, cudaHostRegisterDefault), "registering huge pages");
  return memory;
}

static char *pinned() {
  void *memory = NULL;
  must(cudaMallocHost(&memory, given.bytes), "cudaMallocHost");
  return (char *)memory;
}

static void fill(char *memory) {
  uint64_t *words = (uint64_t *)memory;
  for (size_t i = 0; i < given.bytes / sizeof *words; i++) words[i] = 0x9e3779b97f4a7c15u * i + 1;
}

static void open_memory() {
  must(cudaSetDevice(given.gpu), "choosing the GPU");
  memories[0].source = huge_pages();
  memories[0].target = huge_pages();
  memories[1].source = pinned();
  memories[1].target = pinned();
  must(cudaMalloc((void **)&device_in, given.bytes), "GPU memory");
  must(cudaMalloc((void **)&device_out, given.bytes), "GPU memory");
  for (host_memory &m : memories) {
    fill(m.source);
    memset(m.target, 0, given.bytes);
  }
  must(cudaMemcpy(device_out, memories[0].source, given.bytes, cudaMemcpyDefault), "filling");
}

/* Checks the targets of copies out, and fetches the data copied in last. */
static void check_memory() {
  for (const host_memory &m : memories) {
    if (memcmp(m.target, m.source, given.bytes) != 0) fail(1, "wrong data came out to ", m.name);
  }
  char *const target = memories[0].target;
  memset(target, 0, given.bytes);
  must(cudaMemcpy(target, device_in, given.bytes, cudaMemcpyDefault), "fetching");
  if (memcmp(target, memories[0].source, given.bytes) != 0) fail(1, "wrong data went in", "");
}

static void close_memory() {
  cudaFree(device_in);
  cudaFree(device_out);
  cudaFreeHost(memories[1].source);
  cudaFreeHost(memories[1].target);
  for (char *memory : {memories[0].source, memories[0].target}) {
    cudaHostUnregister(memory);
    free(memory);
  }
}

/* -- One sample -------------------------------------------------------------------------------- */

/* Ends after ten seconds at the latest, so that a bug cannot block the GPU. */
__global__ void hold(const volatile int *gate) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*gate == 0 && now - begin < 10000000000ull);
}

typedef struct {
  cudaStream_t stream;
  cudaEvent_t begin, end;
} lane;

static lane measured, beside;
static cudaEvent_t held;
static volatile int *gate; /* pinned */

static void open_lane(lane *l) {
  must(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "a stream");
  must(cudaEventCreate(&l->begin), "an event");
  must(cudaEventCreate(&l->end), "an event");
}

static void open_lanes() {
  open_lane(&measured);
  open_lane(&beside);
  must(cudaEventCreateWithFlags(&held, cudaEventDisableTiming), "an event");
  must(cudaMallocHost((void **)&gate, sizeof *gate), "cudaMallocHost");
}

static void close_lanes() {
  for (lane *l : {&measured, &beside}) {
    cudaStreamDestroy(l->stream);
    cudaEventDestroy(l->begin);
    cudaEventDestroy(l->end);
  }
  cudaEventDestroy(held);
  cudaFreeHost((void *)gate);
}

static void queue(const lane *l, const host_memory *m, bool in, int copies) {
  must(cudaEventRecord(l->begin, l->stream), "an event");
  for (int i = 0; i < copies; i++) {
    must(in ? cudaMemcpyAsync(device_in, m->source, given.bytes, cudaMemcpyDefault, l->stream)
            : cudaMemcpyAsync(m->target, device_out, given.bytes, cudaMemcpyDefault, l->stream),
         "a copy");
  }
  must(cudaEventRecord(l->end, l->stream), "an event");
}

static double seconds_between(cudaEvent_t a, cudaEvent_t b) {
  float ms = 0;
  must(cudaEventElapsedTime(&ms, a, b), "time between events");
  return ms / 1e3;
}

static double sample(const host_memory *m, bool in, bool duplex) {
  *gate = 0;
  hold<<<1, 1, 0, measured.stream>>>(gate);
  if (duplex) hold<<<1, 1, 0, beside.stream>>>(gate);
  must(cudaGetLastError(), "the kernel that holds copies back");
  must(cudaEventRecord(held, measured.stream), "an event");
  queue(&measured, m, in, given.copies);
  if (duplex) queue(&beside, m, !in, 2 * given.copies + 1);
  if (cudaEventQuery(held) != cudaErrorNotReady) fail(1, "copies began before all were queued", "");
  *gate = 1;
  must(cudaStreamSynchronize(measured.stream), "copies");
  must(cudaStreamSynchronize(beside.stream), "copies");
  if (duplex && seconds_between(measured.begin, beside.begin) >
                    LATE * seconds_between(measured.begin, measured.end)) {
    fail(1, "the other direction began late: ", "no duplex rate");
  }
  if (duplex && seconds_between(measured.end, beside.end) <= 0) {
    fail(1, "one direction is more than twice as fast as the other: ", "no duplex rate");
  }
  return (double)given.bytes * given.copies / seconds_between(measured.begin, measured.end);
}

/* -- All of them ------------------------------------------------------------------------------- */

typedef struct {
  const host_memory *memory;
  bool in, duplex;
  double rates[MOST_SAMPLES]; /* bytes a second, ascending once all is done */
  double median;
} bench_case;

enum { CASES = 8 };
static bench_case cases[CASES];

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Round -1 warms up. */
static void measure() {
  for (int i = 0; i < CASES; i++) {
    cases[i].memory = &memories[i / 4];
    cases[i].in = i % 2 == 0;
    cases[i].duplex = i / 2 % 2 != 0;
  }
  for (int round = -1; round < given.samples; round++) {
    for (bench_case &c : cases) {
      const double rate = sample(c.memory, c.in, c.duplex);
      if (round >= 0) c.rates[round] = rate;
    }
  }
  const int n = given.samples;
  for (bench_case &c : cases) {
    qsort(c.rates, (size_t)n, sizeof c.rates[0], ascending);
    c.median = (c.rates[(n - 1) / 2] + c.rates[n / 2]) / 2;
  }
}

/* -- Reporting --------------------------------------------------------------------------------- */

static const char *direction(bool in) {
  return in ? "h2d" : "d2h";
}

static void print_table(const char *gpu) {
  printf("%s, buffers of %zu MiB, %d copies a sample, %d samples\n\n", gpu, given.bytes / mib,
         given.copies, given.samples);
  puts("| host memory | copies | beside | median GB/s | min - max |\n|---|---|---|---:|---:|");
  for (const bench_case &c : cases) {
    printf("| %s | %s | %s | %.2f | %.2f - %.2f |\n", c.memory->name, direction(c.in),
           c.duplex ? direction(!c.in) : "nothing", c.median / 1e9, c.rates[0] / 1e9,
           c.rates[given.samples - 1] / 1e9);
  }
}

static void write_json(const char *gpu) {
  FILE *file = fopen(given.json, "w");
  if (file == NULL) fail(ENVIRONMENT, "cannot write ", given.json);
  fprintf(file,
          "{\"schema\":\"hocket.bench_bandwidth/1\",\"gpu\":\"%s\",\"buffer_bytes\":%zu,"
          "\"copies\":%d,\"samples\":%d,\"rows\":[",
          gpu, given.bytes, given.copies, given.samples);
  for (int i = 0; i < CASES; i++) {
    const bench_case *c = &cases[i];
    fprintf(file,
            "%s\n{\"memory\":\"%s\",\"direction\":\"%s\",\"duplex\":%s,\"bytes_per_s\":"
            "{\"median\":%.6g,\"min\":%.6g,\"max\":%.6g}}",
            i > 0 ? "," : "", c->memory->name, direction(c->in), c->duplex ? "true" : "false",
            c->median, c->rates[0], c->rates[given.samples - 1]);
  }
  fputs("\n]}\n", file);
  if (fclose(file) != 0) fail(ENVIRONMENT, "cannot write ", given.json);
}

/* -- Options ----------------------------------------------------------------------------------- */

static int number(const char *text, long least, long most) {
  char *end;
  const long n = strtol(text, &end, 10);
  if (end == text || *end != '\0' || n < least || n > most) {
    fail(USAGE, "not a number, or too large or small a one: ", text);
  }
  return (int)n;
}

static void parse(int argc, char **argv) {
  static const struct option known[] = {{"gpu", 1, NULL, 'g'},    {"mib", 1, NULL, 'm'},
                                        {"copies", 1, NULL, 'c'}, {"samples", 1, NULL, 's'},
                                        {"json", 1, NULL, 'j'},   {NULL, 0, NULL, 0}};
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (c == 'g')
      given.gpu = number(optarg, 0, 1023);
    else if (c == 'm')
      given.bytes = (size_t)number(optarg, 1, 1 << 16) * mib;
    else if (c == 'c')
      given.copies = number(optarg, 1, 256); /* all fit into a stream's queue */
    else if (c == 's')
      given.samples = number(optarg, 1, MOST_SAMPLES);
    else if (c == 'j')
      given.json = optarg;
    else
      exit(USAGE);
  }
  if (optind < argc) fail(USAGE, "an option was expected, not ", argv[optind]);
}

int main(int argc, char **argv) {
  parse(argc, argv);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0)
    fail(ENVIRONMENT, "no CUDA device", "");
  open_memory();
  open_lanes();
  cudaDeviceProp gpu;
  must(cudaGetDeviceProperties(&gpu, given.gpu), "the GPU's properties");
  measure();
  check_memory();
  print_table(gpu.name);
  if (given.json != NULL) write_json(gpu.name);
  close_lanes();
  close_memory();
}
