/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What choosing the CPU team's threads while training gains, on the host backend, where "the GPU"
 * is a pause of the program. Three phases: quiet, beside a neighbour that updates state of its own,
 * quiet again. In each, an engine that adapts trains, then one with each fixed number of threads in
 * turns. Prints a Markdown table: median milliseconds of an iteration for each number, and of the
 * adapting engine from its tenth iteration on, with the number that it ended with.
 *
 *   bench_adapt [--threads N] [--neighbour N] [--params N] [--compute MS] [--iterations N]
 *
 * --threads: most threads of the team, and those it begins with; --neighbour: its threads;
 * --compute: of forward and backward of all blocks. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/number.h"
#include "bench/sorted.h"
#include "core/base/units.h"
#include "engine/hocket.h"

enum { BLOCKS = 12, MOST_THREADS = 256, ROUNDS = 5, TURN = 3 };

static struct {
  int threads, neighbour, iterations;
  int64_t params;
  double compute_ms;
} given = {.threads = 2, .neighbour = 1, .iterations = 40, .params = 24000000, .compute_ms = 100};

static char message[HOCKET_MESSAGE];
static uint16_t *gradients[BLOCKS];

static void must(int status) {
  if (status == 0) return;
  fprintf(stderr, "bench_adapt: %s\n", message);
  exit(status);
}

static void *room(size_t n) {
  void *memory = calloc(n, 2);
  if (memory != NULL) return memory;
  fputs("bench_adapt: out of memory\n", stderr);
  exit(3);
}

static void compute(double share) {
  const hk_ns ns = (hk_ns)(1e6 * given.compute_ms * share / BLOCKS);
  const struct timespec pause = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  nanosleep(&pause, NULL);
}

static hocket_engine *make_engine(int threads, bool adapt) {
  hocket_tensor tensors[BLOCKS] = {0};
  hocket_engine *engine = NULL;
  const hocket_group group = {1e-5, 0.9, 0.999, 1e-8, 0.1};
  const hocket_options options = {
      .backend = "host", .overlap = HOCKET_OVERLAP_BOTH, .cpu_threads = threads, .adapt = adapt};
  for (int b = 0; b < BLOCKS; b++) {
    tensors[b].numel = given.params / BLOCKS;
    tensors[b].block = b;
    tensors[b].weight = room((size_t)tensors[b].numel);
  }
  must(hocket_create(NULL, tensors, BLOCKS, &group, 1, &options, &engine, message));
  must(hocket_masters(engine, -1, NULL, message));
  return engine;
}

/* Returns the milliseconds of an iteration, from the end of one step to the end of the next. */
static double iterate(hocket_engine *engine) {
  const hk_ns begun = hk_now();
  for (int b = 0; b < BLOCKS; b++) {
    must(hocket_wait_weights(engine, b, NULL, -1, message));
    compute(0.25);
  }
  for (int b = BLOCKS; b-- > 0;) {
    compute(0.75);
    const hocket_gradient gradient = {b, gradients[b]};
    must(hocket_gradients(engine, &gradient, 1, NULL, message));
  }
  must(hocket_step(engine, NULL, NULL, NULL, message));
  return hk_ms(hk_now() - begun);
}

/* Number after "key": in the report's part on adapting. */
static int reported(hocket_engine *engine, const char *key) {
  char *text = NULL;
  must(hocket_report(engine, &text, message));
  const char *part = strstr(text, "\"adapting\""), *at = part != NULL ? strstr(part, key) : NULL;
  const int number = at != NULL ? (int)strtol(at + strlen(key), NULL, 10) : 0;
  hocket_free(text);
  return number;
}

static double median(double *values, int n) {
  sort_ascending(values, n);
  return median_of_sorted(values, n);
}

static void run_phase(const char *name, hocket_engine *adapting, hocket_engine *const *fixed) {
  double times[MOST_THREADS + 1][ROUNDS * TURN], own[1024];
  int n = 0;
  for (int i = 0; i < given.iterations; i++) {
    const double ms = iterate(adapting);
    if (i >= 10) own[n++] = ms;
  }
  must(hocket_drain(adapting, -1, message));
  for (int round = 0; round < ROUNDS; round++) {
    for (int t = 1; t <= given.threads; t++) {
      iterate(fixed[t]);
      for (int i = 0; i < TURN; i++) times[t][round * TURN + i] = iterate(fixed[t]);
      must(hocket_drain(fixed[t], -1, message));
    }
  }
  printf("| %s |", name);
  for (int t = 1; t <= given.threads; t++) printf(" %.1f |", median(times[t], ROUNDS * TURN));
  printf(" %.1f | %d | %d | %d |\n", median(own, n), reported(adapting, "\"threads\":"),
         reported(adapting, "\"tries\":"), reported(adapting, "\"switches\":"));
  fflush(stdout);
}

static void read_options(int argc, char **argv) {
  static const struct option options[] = {{"threads", 1, NULL, 't'},    {"neighbour", 1, NULL, 'n'},
                                          {"params", 1, NULL, 'p'},     {"compute", 1, NULL, 'c'},
                                          {"iterations", 1, NULL, 'i'}, {0}};
  for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (o == 't') given.threads = (int)whole_number(optarg, 1, MOST_THREADS);
    if (o == 'n') given.neighbour = (int)whole_number(optarg, 1, MOST_THREADS);
    if (o == 'p') given.params = whole_number(optarg, BLOCKS, INT64_C(1) << 36);
    if (o == 'c') given.compute_ms = (double)whole_number(optarg, 0, 1000000);
    if (o == 'i') given.iterations = (int)whole_number(optarg, 12, 1000);
    if (o == '?') exit(2);
  }
}

int main(int argc, char **argv) {
  read_options(argc, argv);
  for (int b = 0; b < BLOCKS; b++) {
    gradients[b] = room((size_t)(given.params / BLOCKS));
    for (int64_t i = 0; i < given.params / BLOCKS; i++)
      gradients[b][i] = (uint16_t)(0x3a00 + (i * 7 + b) % 200);
  }
  hocket_engine *adapting = make_engine(given.threads, true), *fixed[MOST_THREADS + 1];
  for (int t = 1; t <= given.threads; t++) fixed[t] = make_engine(t, false);
  hocket_busy *busy = NULL;
  must(hocket_busy_start(given.neighbour, 20000000, &busy, message));
  printf("| phase |");
  for (int t = 1; t <= given.threads; t++) printf(" %d |", t);
  printf(" adapting | threads | tries | switches |\n|---|");
  for (int t = 0; t < given.threads + 4; t++) printf("---:|");
  printf("\n");
  run_phase("quiet", adapting, fixed);
  must(hocket_busy_update(busy, 1, message));
  run_phase("neighbour", adapting, fixed);
  must(hocket_busy_update(busy, 0, message));
  run_phase("quiet again", adapting, fixed);
  hocket_busy_stop(busy);
  return 0;
}
