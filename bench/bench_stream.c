/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Bandwidth of host memory as STREAM measures it: repeated loops over arrays that exceed the
 * caches, with times of whole passes. It checks `hocket calibrate`, so the loops share no code with
 * it: OpenMP's threads instead of the engine's team, their own memory, their own kernels.
 *
 *   bench_stream [--threads 1,2,4] [--mib N] [--rounds N] [--chunk-kib N] [--json FILE]
 *                [--probes]
 *
 * read sums an array, write fills one with streaming stores, copy does both. Bytes read and bytes
 * written count; streaming stores do not read the line first, so there is no other traffic. A pass
 * is divided into one block a thread, as STREAM does, or into chunks that idle threads take, so
 * that one delayed thread does not delay the pass. Each round runs all cases; best and median are
 * reported.
 *
 * --probes runs calibrate's probes of the same kinds in turns with the loops, before or after them,
 * on the same memory and CPUs, each after a rest. On shared hosts, measurements that are minutes
 * apart or on other pages differ for reasons of the host. */
#include <getopt.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined __x86_64__
#include <immintrin.h>
#endif

#include "calib/probes/statistics.h"
#include "calib/stand/stand.h"
#include "engine/device/topology.h"

#define MIB     ((size_t)1 << 20)
#define HUGE    (2 * MIB)
#define PER_MIB (MIB / sizeof(uint64_t))
/* Word i of the source holds STEP * i + 1. It is never zero, because processors drop stores of
 * zeros over zeros, and the sum of all words is known. */
#define STEP 0x9e3779b97f4a7c15u
#define FILL 0x5851f42d4c957f2du

enum { MOST_COUNTS = 16, MOST_ROUNDS = 100, USAGE = 2, ENVIRONMENT = 3 };

static struct {
  int counts[MOST_COUNTS], n_counts, rounds;
  size_t words, chunk; /* of an array; what a thread takes at a time */
  const char *json;
  bool own_size, probes;
} given = {.rounds = 10, .chunk = PER_MIB};

static uint64_t *from, *to;

/* -- Loops over words [at, end), whole blocks of 64 -------------------------------------------- */

typedef uint64_t loop(size_t at, size_t end);

static uint64_t read_plain(size_t at, size_t end) {
  uint64_t sum = 0;
  for (size_t i = at; i < end; i++) sum += from[i];
  return sum;
}

static uint64_t write_plain(size_t at, size_t end) {
  for (size_t i = at; i < end; i++) to[i] = FILL;
  return 0;
}

static uint64_t copy_plain(size_t at, size_t end) {
  memcpy(to + at, from + at, (end - at) * sizeof *to);
  return 0;
}

/* The loops for a vector instruction set. Four sums, so that reads do not wait for additions. The
 * loops increment a pointer: with a base and an index in every load, reads were 4 to 10 % slower on
 * two nodes (Emerald Rapids). Copies prefetch, because stores would wait for reads otherwise. */
#define LOOPS(isa, target_name, vec, zero, one, load, store, add)                           \
  __attribute__((target(target_name))) static uint64_t read_##isa(size_t at, size_t end) {  \
    enum { LANES = sizeof(vec) / sizeof(uint64_t) };                                        \
    vec a = zero(), b = a, c = a, d = a;                                                    \
    const vec *const past = (const vec *)(from + end);                                      \
    for (const vec *words = (const vec *)(from + at); words < past; words += 4) {           \
      a = add(a, load(words));                                                              \
      b = add(b, load(words + 1));                                                          \
      c = add(c, load(words + 2));                                                          \
      d = add(d, load(words + 3));                                                          \
    }                                                                                       \
    a = add(add(a, b), add(c, d));                                                          \
    uint64_t lanes[LANES], sum = 0;                                                         \
    memcpy(lanes, &a, sizeof lanes);                                                        \
    for (int k = 0; k < LANES; k++) sum += lanes[k];                                        \
    return sum;                                                                             \
  }                                                                                         \
  __attribute__((target(target_name))) static uint64_t write_##isa(size_t at, size_t end) { \
    const vec fill = one((long long)FILL);                                                  \
    for (size_t i = at; i < end; i += sizeof(vec) / sizeof(uint64_t)) {                     \
      store((vec *)(to + i), fill);                                                         \
    }                                                                                       \
    _mm_sfence();                                                                           \
    return 0;                                                                               \
  }                                                                                         \
  __attribute__((target(target_name))) static uint64_t copy_##isa(size_t at, size_t end) {  \
    for (size_t i = at; i < end; i += sizeof(vec) / sizeof(uint64_t)) {                     \
      _mm_prefetch((const char *)(from + i) + 4096, _MM_HINT_T0);                           \
      store((vec *)(to + i), load((const vec *)(from + i)));                                \
    }                                                                                       \
    _mm_sfence();                                                                           \
    return 0;                                                                               \
  }

#if defined __x86_64__
LOOPS(avx2, "avx2", __m256i, _mm256_setzero_si256, _mm256_set1_epi64x, _mm256_load_si256,
      _mm256_stream_si256, _mm256_add_epi64)
LOOPS(avx512, "avx512f", __m512i, _mm512_setzero_si512, _mm512_set1_epi64, _mm512_load_si512,
      _mm512_stream_si512, _mm512_add_epi64)
#endif

typedef struct {
  const char *name;
  loop *read, *write, *copy;
} isa;

static isa best_isa(void) {
#if defined __x86_64__
  if (__builtin_cpu_supports("avx512f"))
    return (isa){"avx512", read_avx512, write_avx512, copy_avx512};
  if (__builtin_cpu_supports("avx2")) return (isa){"avx2", read_avx2, write_avx2, copy_avx2};
#endif
  return (isa){"plain", read_plain, write_plain, copy_plain};
}

/* -- Cases ------------------------------------------------------------------------------------- */

typedef enum { READ, WRITE, COPY, KINDS } kind;
typedef enum { BLOCKS, CHUNKS, PROBE, SHARINGS } sharing; /* PROBE: calibrate's own */

static const char *const kind_names[KINDS] = {"read", "write", "copy"};
static const char *const sharing_names[SHARINGS] = {"blocks", "chunks", "probe"};

typedef struct {
  kind what;
  sharing how;
  int threads;
  hk_probe probe; /* of PROBE */
  double rates[MOST_ROUNDS];
  double best, median; /* bytes a second, once all is done */
  double of_loop; /* of PROBE: the median of its rate over that of the loop just before or after */
} bench_case;

static bench_case cases[MOST_COUNTS * KINDS * SHARINGS];
static int n_cases;
static hk_stand *stand; /* on which probes run */

static void fail(int status, const char *why, const char *what) {
  fprintf(stderr, "bench_stream: %s%s\n", why, what);
  exit(status);
}

static void must(hk_status status, const hk_error *err) {
  if (status != HK_OK) fail((int)status, err->message, "");
}

/* -- Threads ----------------------------------------------------------------------------------- */

static int *cpus, n_cpus; /* one a core first */

static void list_cpus(void) {
  hk_error err = {0};
  if (omp_get_proc_bind() != omp_proc_bind_false)
    fail(USAGE, "unset OMP_PROC_BIND and OMP_PLACES: threads are placed as the engine's", "");
  must(hk_cpu_order(NULL, &cpus, &n_cpus, &err), &err);
}

/* OMP_PROC_BIND would bind the process's first thread permanently, and probes start a team from
 * it. */
static void take_places(int threads) {
  bool placed = true;
#pragma omp parallel num_threads(threads) reduction(&& : placed)
  {
    if (threads > n_cpus) hk_cpu_unpin();
    placed = threads > n_cpus || hk_cpu_pin(cpus[omp_get_thread_num()]);
  }
  if (!placed) fail(ENVIRONMENT, "threads cannot be pinned to the CPUs of this process", "");
}

/* -- Passes ------------------------------------------------------------------------------------ */

static uint64_t pass_in_blocks(loop *work, int threads) {
  uint64_t sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    const size_t n = (size_t)omp_get_num_threads(), t = (size_t)omp_get_thread_num();
    const size_t blocks = given.words / 64;
    sum += work(blocks * t / n * 64, blocks * (t + 1) / n * 64);
  }
  return sum;
}

static uint64_t pass_in_chunks(loop *work, int threads) {
  uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(dynamic)
  for (size_t at = 0; at < given.words; at += given.chunk) {
    const size_t rest = given.words - at;
    sum += work(at, at + (rest < given.chunk ? rest : given.chunk));
  }
  return sum;
}

static uint64_t sum_of_source(void) {
  const uint64_t n = given.words; /* n and n - 1: one of them is even */
  return STEP * (n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n) + n;
}

/* Checks every 509th word: 509 is odd, so all places of a cache line are checked. */
static bool written_well(kind what) {
  for (size_t i = 0; i < given.words; i += 509) {
    if (to[i] != (what == WRITE ? FILL : from[i])) return false;
  }
  return true;
}

static size_t bytes_of(const bench_case *c) {
  return given.words * sizeof *from * (c->what == COPY ? 2 : 1);
}

/* Bytes a second of a pass. */
static double run_loop(const bench_case *c, const isa *loops, bool check) {
  loop *const work = c->what == READ ? loops->read : c->what == WRITE ? loops->write : loops->copy;
  take_places(c->threads);
  const double begin = omp_get_wtime();
  const uint64_t sum =
      c->how == BLOCKS ? pass_in_blocks(work, c->threads) : pass_in_chunks(work, c->threads);
  const double seconds = omp_get_wtime() - begin;
  hk_cpu_unpin();
  const bool well = c->what == READ ? sum == sum_of_source() : !check || written_well(c->what);
  if (!well) fail(1, "memory does not hold what it should after ", kind_names[c->what]);
  return (double)bytes_of(c) / seconds;
}

/* OpenMP's threads spin for a while after a pass, and a case that runs after a rest has a cooler
 * machine and more turbo. So either all cases rest before they begin, or none does. */
static void rest(void) {
  const struct timespec pause = {.tv_nsec = 50 * 1000000};
  if (given.probes) (void)nanosleep(&pause, NULL);
}

static double run_probe(const bench_case *c, bool check) {
  const hk_ns wish = 60 * 1000000; /* as calibrate has it */
  hk_error err = {0};
  double rate = 0;
  must(hk_stand_run(stand, &c->probe, wish, check, &rate, &err), &err);
  return rate;
}

/* Calibrate's probe of this kind, at that many threads. */
static hk_probe find_probe(kind what, int threads) {
  const hk_load_kind kinds[KINDS] = {HK_LOAD_DRAM_READ, HK_LOAD_DRAM_WRITE, HK_LOAD_DRAM_COPY};
  hk_probe *probes = NULL, found = {0};
  hk_probe_scope scope;
  hk_error err = {0};
  size_t n = 0;
  hk_stand_scope(stand, &scope);
  must(hk_probes_list(&scope, &probes, &n, &err), &err);
  for (size_t i = 0; i < n; i++) {
    if (probes[i].loads[0].kind == kinds[what]) found = probes[i];
  }
  free(probes);
  if (found.n_loads != 1) fail(ENVIRONMENT, "calibrate has no probe like ", kind_names[what]);
  found.loads[0].threads = threads;
  snprintf(found.name, sizeof found.name, "dram_%s %d threads", kind_names[what], threads);
  return found;
}

static void list_cases(void) {
  for (int i = 0; i < given.n_counts; i++) {
    const int threads = given.counts[i];
    for (kind what = READ; what < KINDS; what++) {
      for (sharing how = BLOCKS; how < SHARINGS; how++) {
        if (how == PROBE && !given.probes) continue;
        bench_case *c = &cases[n_cases++];
        *c = (bench_case){.what = what, .how = how, .threads = threads};
        if (how == PROBE) c->probe = find_probe(what, threads);
      }
    }
  }
}

/* A stand without a GPU: the host backend's device, with very little memory. */
static void open_stand(void) {
  const hk_stand_options options = {
      .ops = &hk_backend_host,
      .gpus = 1,
      .host_bytes = given.own_size ? 4 * (hk_bytes)(given.words * sizeof *from) : 0,
      .device_bytes = HK_PROBE_LEAST_DEVICE};
  hk_error err = {0};
  must(hk_stand_open(&options, &stand, &err), &err);
}

/* From last to first: hk_median sorts the rounds of a case, and a probe's ratios need the rounds of
 * the loop before it in their order. */
static void summarise(void) {
  for (int i = n_cases - 1; i >= 0; i--) {
    bench_case *c = &cases[i];
    const size_t n = (size_t)given.rounds;
    double ratios[MOST_ROUNDS];
    if (c->how == PROBE) {
      for (size_t r = 0; r < n; r++) ratios[r] = c->rates[r] / c[-1].rates[r];
      c->of_loop = hk_median(ratios, n);
    }
    c->median = hk_median(c->rates, n);
    c->best = c->rates[n - 1];
  }
}

static void run_case(bench_case *c, const isa *loops, int round) {
  const bool warm_up = round < 0;
  rest();
  const double rate = c->how == PROBE ? run_probe(c, warm_up) : run_loop(c, loops, warm_up);
  if (!warm_up) c->rates[round] = rate;
}

/* Round -1 warms up, and is checked. In every other round a probe comes before its loop. */
static void measure(const isa *loops) {
  for (int round = -1; round < given.rounds; round++) {
    for (int i = 0; i < n_cases; i++) {
      const bool swap = round % 2 != 0 && i + 1 < n_cases && cases[i + 1].how == PROBE;
      if (swap) run_case(&cases[i + 1], loops, round);
      run_case(&cases[i], loops, round);
      if (swap) i++;
    }
  }
  summarise();
}

/* -- Memory ------------------------------------------------------------------------------------ */

static int most_threads(void) {
  int most = 1;
  for (int i = 0; i < given.n_counts; i++) most = given.counts[i] > most ? given.counts[i] : most;
  return most;
}

/* Pages of a virtual machine's memory differ in speed. Each part of the array gets pages from all
 * of the memory. */
static void touch_scattered(char *memory, size_t bytes) {
  const size_t pages = bytes / HUGE, step = pages % 7919 == 0 ? 1 : 7919;
  for (size_t i = 0; i < pages; i++) memory[i * step % pages * HUGE] = 1;
}

static uint64_t *array(void) {
  const size_t bytes = (given.words * sizeof *from + HUGE - 1) / HUGE * HUGE;
  void *memory = aligned_alloc(HUGE, bytes);
  if (memory == NULL) fail(ENVIRONMENT, "no memory for the arrays: give a smaller --mib", "");
  (void)madvise(memory, bytes, MADV_HUGEPAGE); /* its effect is read below */
  touch_scattered(memory, bytes);
  return memory;
}

static void find_arrays(void) {
  void *in, *out;
  hk_bytes bytes;
  if (stand == NULL) {
    from = array();
    to = array();
    return;
  }
  hk_stand_arrays_of(stand, &in, &out, &bytes);
  from = in;
  to = out;
  given.words = (size_t)bytes / MIB * PER_MIB;
}

/* First touch by the threads that will use it, in blocks. */
static void fill_arrays(void) {
  find_arrays();
#pragma omp parallel for num_threads(most_threads()) schedule(static)
  for (size_t i = 0; i < given.words; i++) {
    from[i] = STEP * i + 1;
    to[i] = FILL;
  }
}

/* Bytes of this process on huge pages, -1 when the system does not say. */
static double huge_bytes(void) {
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  if (file == NULL) return -1;
  static const char key[] = "AnonHugePages:";
  char line[256];
  double kib = -1. / 1024;
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, key, strlen(key)) == 0) kib = strtod(line + strlen(key), NULL);
  }
  fclose(file);
  return kib * 1024;
}

/* -- Reporting --------------------------------------------------------------------------------- */

static void print_table(const isa *loops, double huge) {
  printf(
      "STREAM-style loops (%s), 2 arrays of %zu MiB, %.0f MiB of the process on huge pages, %d "
      "rounds\n\n",
      loops->name, given.words / PER_MIB, huge / (double)MIB, given.rounds);
  puts(
      "| loop | threads | shared out in | best GB/s | median GB/s | of the chunks beside it |\n"
      "|---|---:|---|---:|---:|---:|");
  for (int i = 0; i < n_cases; i++) {
    const bench_case *c = &cases[i];
    printf("| %s | %d | %s | %.2f | %.2f | ", kind_names[c->what], c->threads,
           sharing_names[c->how], c->best / 1e9, c->median / 1e9);
    if (c->how == PROBE) printf("%.3f ", c->of_loop);
    puts("|");
  }
}

static void write_json(const isa *loops, double huge) {
  FILE *file = fopen(given.json, "w");
  if (file == NULL) fail(ENVIRONMENT, "cannot write ", given.json);
  fprintf(file,
          "{\"schema\":\"hocket.bench_stream/1\",\"isa\":\"%s\",\"array_bytes\":%zu,"
          "\"huge_bytes\":%.0f,\"rounds\":%d,\"rows\":[",
          loops->name, given.words * sizeof *from, huge, given.rounds);
  for (int i = 0; i < n_cases; i++) {
    const bench_case *c = &cases[i];
    fprintf(file,
            "%s\n{\"loop\":\"%s\",\"threads\":%d,\"sharing\":\"%s\",\"best_bytes_per_s\":%.6g,"
            "\"median_bytes_per_s\":%.6g",
            i > 0 ? "," : "", kind_names[c->what], c->threads, sharing_names[c->how], c->best,
            c->median);
    if (c->how == PROBE) fprintf(file, ",\"of_loop\":%.4f", c->of_loop);
    fputc('}', file);
  }
  fputs("\n]}\n", file);
  if (fclose(file) != 0) fail(ENVIRONMENT, "cannot write ", given.json);
}

/* -- Options ----------------------------------------------------------------------------------- */

static long number(const char *text, long most) {
  char *end;
  const long n = strtol(text, &end, 10);
  if (end == text || (*end != '\0' && *end != ',') || n < 1 || n > most) {
    fail(USAGE, "not a number, or too large or small a one: ", text);
  }
  return n;
}

static void parse_threads(const char *text) {
  for (const char *at = text; at != NULL; at = strchr(at, ',')) {
    if (given.n_counts > 0) at++;
    if (given.n_counts == MOST_COUNTS) fail(USAGE, "too many thread counts: ", text);
    given.counts[given.n_counts++] = (int)number(at, 4096);
  }
}

/* STREAM asks for arrays of four times the last-level cache. A quarter of such an array is still
 * cached in the next pass: with a cache of 300 MB reads were 12 % too fast. Hence sixteen times. */
static size_t default_words(void) {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const size_t wanted = cache > 0 ? 16 * (size_t)cache : 0;
  return (wanted > 1024 * MIB ? (wanted + MIB - 1) / MIB : 1024) * PER_MIB;
}

static void parse(int argc, char **argv) {
  static const struct option known[] = {{"threads", 1, NULL, 't'},   {"mib", 1, NULL, 'm'},
                                        {"rounds", 1, NULL, 'r'},    {"json", 1, NULL, 'j'},
                                        {"chunk-kib", 1, NULL, 'c'}, {"probes", 0, NULL, 'p'},
                                        {NULL, 0, NULL, 0}};
  given.words = default_words();
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (c == 't')
      parse_threads(optarg);
    else if (c == 'm')
      given.words = (size_t)number(optarg, 1 << 20) * PER_MIB, given.own_size = true;
    else if (c == 'r')
      given.rounds = (int)number(optarg, MOST_ROUNDS);
    else if (c == 'c')
      given.chunk = (size_t)number(optarg, 1 << 20) * (PER_MIB / 1024);
    else if (c == 'j')
      given.json = optarg;
    else if (c == 'p')
      given.probes = true;
    else
      exit(USAGE);
  }
  if (optind < argc) fail(USAGE, "an option was expected, not ", argv[optind]);
  if (given.n_counts == 0) given.counts[given.n_counts++] = omp_get_max_threads();
}

int main(int argc, char **argv) {
  parse(argc, argv);
  const isa loops = best_isa();
  omp_set_dynamic(0);
  list_cpus();
  if (given.probes) open_stand();
  fill_arrays();
  list_cases();
  measure(&loops);
  const double huge = huge_bytes();
  print_table(&loops, huge);
  if (given.json != NULL) write_json(&loops, huge);
  if (stand == NULL) {
    free(from);
    free(to);
  }
  hk_stand_close(stand);
  free(cpus);
}
