/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The update on the CPU in each format of state (engine/adamw/formats.h) against fp32's, by kernel,
 * from memory and in cache. Each round runs all cases in a new random order, so that a change of
 * the machine's speed affects all of them. A case's figure is the median over the rounds; the ratio
 * is the median of the rounds' ratios of time to fp32 of the same kernel and place.
 *
 *   bench_formats [--params N] [--threads N] [--rounds N] [--kernel NAME|all]
 *
 * One JSON line a case. Bytes are what an update needs: state read and written, a bf16 gradient
 * read, and without split the bf16 weight written. Threads and memory are the engine's. By default
 * the kernels are those that the engine would take. Cycles are those of a thread for one parameter
 * in the best round, at the clock rate that a chain of multiplications has after it. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/number.h"
#include "bench/sorted.h"
#include "core/base/units.h"
#include "engine/adamw/formats.h"
#include "engine/device/arena.h"
#include "engine/device/team.h"

enum { MOST_ROUNDS = 101, KERNELS = 3, PLACES = 2, CASES = KERNELS * HK_FORMATS * PLACES };
/* Parameters that a thread takes at a time, as in the engine, and those that stay in its cache. */
enum { CHUNK = 65536, CACHED = 16384, REPEATS = 64 };
/* Bytes by which arrays are shifted against each other, as in the engine's slabs. */
enum { SKEW = 1152 };

static const char *const names[HK_FORMATS] = {"fp32",       "split", "bf16",
                                              "bf16+split", "8bit",  "8bit+split"};
/* Bytes a parameter; with codes also 4 for 128. */
static const double traffic[HK_FORMATS] = {28, 26, 20, 18, 16.03, 14.03};

static struct {
  int64_t params;
  const char *kernel; /* NULL: the best; or "all" */
  double hz;          /* highest clock rate that was seen */
  char *state;        /* 12 bytes a parameter, laid out for the case that runs */
  char *grad;
  uint16_t *w;
  hk_adamw_step step;
} mem;

typedef struct {
  const hk_cpu_kernels *kernels;
  hk_format format;
  bool cached;
} bench_case;

static hk_state_at part_of(hk_format format, int64_t at) {
  const int64_t n = mem.params;
  const int64_t p = hk_format_size(format, 0) * n, m = hk_format_size(format, 1) * n;
  const bool split = hk_format_is_split(format);
  char *low = mem.state + p + SKEW, *moments = low + (split ? 2 * n + SKEW : 0);
  char *const v = moments + m + SKEW;
  const hk_state_at all = {mem.state, split ? low : NULL, moments, v,
                           hk_format_is_coded(format) ? v + m + SKEW : NULL};
  return hk_state_at_element(format, all, at);
}

static void update(const bench_case *c, int64_t at, int64_t n) {
  const hk_state_at state = part_of(c->format, at);
  c->kernels->update(c->format, &mem.step, HK_GRAD_BF16, n, state, state, mem.grad + 2 * at,
                     hk_format_is_split(c->format) ? NULL : mem.w + at, at);
}

static void from_memory(void *arg, int64_t chunk, int thread) {
  (void)thread;
  update(arg, chunk * CHUNK, CHUNK);
}

static void in_cache(void *arg, int64_t chunk, int thread) {
  (void)thread;
  for (int i = 0; i < REPEATS; i++) update(arg, chunk * CACHED, CACHED);
}

static void clear(void *arg, int64_t chunk, int thread) {
  (void)thread, (void)arg;
  uint16_t *const grad = (uint16_t *)(void *)mem.grad;
  memset(mem.state + 12 * chunk * CHUNK, 0, (size_t)12 * CHUNK);
  uint64_t x = (uint64_t)chunk;
  for (int64_t i = chunk * CHUNK; i < (chunk + 1) * CHUNK; i++) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    /* +-2^-13 to 2^-9 by the upper bits: 4 octaves of bf16, no zeros and no subnormals */
    grad[i] = (uint16_t)((x >> 63 << 15) | ((114u << 7) + (x >> 40) % (4u << 7)));
    mem.w[i] = 0;
  }
}

/* Each multiplication waits for the one before, and takes three cycles on x86 and on most 64-bit
 * ARM. (Additions of a constant do not count cycles: since Golden Cove several take one.) */
static void see_clock(void) {
  enum { PRODUCTS = 1 << 20, CYCLES = 3 };
  uint64_t x = 1, factor = 3;
  __asm__ volatile("" : "+r"(factor));
  const hk_ns begin = hk_now();
  for (int i = 0; i < PRODUCTS; i += 8) {
    for (int k = 0; k < 8; k++) {
      x *= factor;
      __asm__ volatile("" : "+r"(x));
    }
  }
  const double hz = CYCLES * PRODUCTS * (double)HK_NS_PER_S / (double)(hk_now() - begin);
  if (hz > mem.hz) mem.hz = hz;
}

/* Parameters a second. */
static double rate_of(hk_team *team, const bench_case *c) {
  bench_case copy = *c;
  const int64_t cached = hk_team_threads(team);
  hk_team_run(team, mem.params / CHUNK, clear, NULL);
  hk_ns begin = 0;
  /* The second step counts: codes of 8 bits that are 0, as before the first, take longer. */
  for (int step = 0; step < 2; step++) {
    begin = hk_now();
    if (c->cached) {
      hk_team_run(team, cached, in_cache, &copy);
    } else {
      hk_team_run(team, mem.params / CHUNK, from_memory, &copy);
    }
  }
  const double seconds = (double)(hk_now() - begin) / HK_NS_PER_S;
  see_clock();
  return (double)(c->cached ? cached * CACHED * REPEATS : mem.params) / seconds;
}

static void shuffle(int *order, int n, uint64_t *seed) {
  for (int i = n - 1; i > 0; i--) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    const int k = (int)((*seed >> 33) % (uint64_t)(i + 1));
    const int other = order[k];
    order[k] = order[i];
    order[i] = other;
  }
}

static void print(const bench_case *cases, double rates[CASES][MOST_ROUNDS], int i, int base,
                  int rounds, int threads) {
  double own[MOST_ROUNDS], ratio[MOST_ROUNDS];
  for (int r = 0; r < rounds; r++) {
    own[r] = rates[i][r];
    ratio[r] = rates[base][r] / rates[i][r];
  }
  sort_ascending(own, rounds);
  sort_ascending(ratio, rounds);
  const double median = median_of_sorted(own, rounds);
  printf(
      "{\"kernel\": \"%s\", \"state\": \"%s\", \"place\": \"%s\", \"threads\": %d, "
      "\"params_per_s\": %.4g, \"best_params_per_s\": %.4g, \"cycles\": %.2f, "
      "\"gb_per_s\": %.2f, \"time_to_fp32\": %.3f, \"least\": %.3f, \"most\": %.3f}\n",
      cases[i].kernels->name, names[cases[i].format], cases[i].cached ? "cache" : "memory", threads,
      median, own[rounds - 1], mem.hz * threads / own[rounds - 1],
      median * traffic[cases[i].format] / 1e9, median_of_sorted(ratio, rounds), ratio[0],
      ratio[rounds - 1]);
}

static int list_cases(bench_case *cases) {
  size_t n_kernels;
  const hk_cpu_kernels *kernels = hk_cpu_kernels_list(&n_kernels);
  int n = 0;
  for (int cached = 0; cached < PLACES; cached++) {
    for (size_t k = 0; k < n_kernels && k < KERNELS; k++) {
      const char *const wanted = mem.kernel != NULL ? mem.kernel : hk_cpu_kernels_best()->name;
      const bool all = strcmp(wanted, "all") == 0;
      if (!kernels[k].supported || (!all && strcmp(wanted, kernels[k].name) != 0)) continue;
      for (int f = 0; f < HK_FORMATS; f++)
        cases[n++] = (bench_case){&kernels[k], (hk_format)f, cached != 0};
    }
  }
  return n;
}

static hk_status take_memory(hk_team *team, hk_arena *arena, hk_error *err) {
  HK_TRY(hk_arena_open(mem.params * 16 + 16384, team, NULL, arena, err));
  mem.state = hk_arena_take(arena, 12 * mem.params + 4 * SKEW, 4096);
  mem.grad = hk_arena_take(arena, 2 * mem.params, 64);
  mem.w = hk_arena_take(arena, 2 * mem.params, 64);
  return HK_OK;
}

static void run(hk_team *team, int rounds) {
  static double rates[CASES][MOST_ROUNDS];
  bench_case cases[CASES];
  int order[CASES] = {0};
  const int n = list_cases(cases);
  uint64_t seed = 1;
  for (int i = 0; i < n; i++) order[i] = i;
  for (int r = 0; r < rounds; r++) {
    shuffle(order, n, &seed);
    for (int i = 0; i < n; i++) rates[order[i]][r] = rate_of(team, &cases[order[i]]);
  }
  for (int i = 0; i < n; i++) {
    print(cases, rates, i, i - (int)cases[i].format, rounds, hk_team_threads(team));
  }
}

int main(int argc, char **argv) {
  static const struct option known[] = {{"params", required_argument, NULL, 'p'},
                                        {"threads", required_argument, NULL, 't'},
                                        {"rounds", required_argument, NULL, 'r'},
                                        {"kernel", required_argument, NULL, 'k'},
                                        {0}};
  int threads = 1, rounds = 7;
  mem.params = (int64_t)1 << 27;
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (c == 'p') mem.params = whole_number(optarg, CHUNK, INT64_C(1) << 36);
    if (c == 't') threads = (int)whole_number(optarg, 1, 1024);
    if (c == 'r') rounds = (int)whole_number(optarg, 1, MOST_ROUNDS);
    if (c == 'k') mem.kernel = optarg;
    if (c == '?') return 2;
  }
  mem.params = mem.params / CHUNK * CHUNK;
  if (mem.params < CHUNK * (int64_t)threads) {
    fprintf(stderr, "bench_formats: --params of at least %d a thread\n", CHUNK);
    return 2;
  }
  const hk_adamw hyper = {1e-3, 0.9, 0.999, 1e-8, 0.01};
  mem.step = hk_adamw_prepare(&hyper, 10, 1);
  hk_random_key(1, 2, 10, mem.step.key);
  const hk_team_options options = {.threads = threads, .pin = true};
  hk_team *team = NULL;
  hk_arena arena = {0};
  hk_error err = {0};
  hk_status status = hk_team_open(&options, &team, &err);
  if (status == HK_OK) hk_team_join(team);
  if (status == HK_OK) status = take_memory(team, &arena, &err);
  if (status == HK_OK) run(team, rounds);
  if (status != HK_OK) fprintf(stderr, "bench_formats: %s\n", err.message);
  hk_arena_close(&arena);
  hk_team_close(team);
  return (int)status;
}
