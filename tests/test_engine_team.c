/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The team of threads: each chunk runs once, each thread's in ascending order, on the team's cores.
 */
#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/device/team.h"
#include "engine/device/topology.h"
#include "tests/fixture.h"

#define MOST_THREADS 8

static hk_team *open_team(int threads, bool pin, int first_core) {
  hk_error err = {0};
  hk_team *team = NULL;
  const hk_team_options options = {.threads = threads, .pin = pin, .first_core = first_core};
  must(hk_team_open(&options, &team, &err), &err);
  return team;
}

/* Does not assert: cmocka can fail only in a test's own thread. */
static cpu_set_t affinity(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}

static int last_of(const cpu_set_t *set) {
  int last = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET((size_t)cpu, set)) last = cpu;
  }
  return last;
}

/* -- Chunks ------------------------------------------------------------------------------------ */

typedef struct {
  int *times;                  /* [chunk] runs; not atomic, so that ThreadSanitizer finds races */
  int64_t last[MOST_THREADS];  /* last chunk of each thread */
  int64_t count[MOST_THREADS]; /* chunks of each thread */
  atomic_bool disorder;
} coverage;

static void cover(void *arg, int64_t chunk, int thread) {
  coverage *c = arg;
  c->times[chunk]++;
  if (c->count[thread]++ > 0 && chunk <= c->last[thread]) atomic_store(&c->disorder, true);
  c->last[thread] = chunk;
}

static void run_and_check(hk_team *team, int64_t chunks) {
  coverage c = {.times = calloc((size_t)chunks + 1, sizeof(int))};
  assert_non_null(c.times);
  hk_team_run(team, chunks, cover, &c);
  int64_t sum = 0;
  for (int t = 0; t < MOST_THREADS; t++) {
    sum += c.count[t];
    if (t >= hk_team_threads(team)) assert_int_equal(c.count[t], 0);
  }
  assert_int_equal(sum, chunks);
  for (int64_t i = 0; i < chunks; i++) assert_int_equal(c.times[i], 1);
  assert_false(atomic_load(&c.disorder));
  free(c.times);
}

static void test_every_chunk_once(void **state) {
  (void)state;
  static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, 4097};
  for (int threads = 1; threads <= MOST_THREADS; threads++) {
    hk_team *team = open_team(threads, false, 0);
    assert_int_equal(hk_team_threads(team), threads);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) run_and_check(team, sizes[i]);
    hk_team_close(team);
  }
}

/* Runs in quick succession, and runs 1 ms apart, when the other threads sleep. */
static void test_many_pieces(void **state) {
  (void)state;
  for (int threads = 2; threads <= 5; threads++) {
    hk_team *team = open_team(threads, threads == 2, 0);
    for (int i = 0; i < 1000; i++) run_and_check(team, 1 + i % 37);
    for (int i = 0; i < 20; i++) {
      usleep(1000);
      run_and_check(team, 16);
    }
    hk_team_close(team);
  }
}

/* No chunk ends before four have begun, so four threads must run at the same time. */
static void meet(void *arg, int64_t chunk, int thread) {
  (void)chunk;
  (void)thread;
  atomic_int *there = arg;
  atomic_fetch_add(there, 1);
  while (atomic_load(there) < 4) sched_yield();
}

static void test_threads_run_together(void **state) {
  (void)state;
  hk_team *team = open_team(4, false, 0);
  for (int i = 0; i < 50; i++) {
    atomic_int there = 0;
    hk_team_run(team, 4, meet, &there);
    assert_int_equal(atomic_load(&there), 4);
  }
  hk_team_close(team);
}

/* -- hk_team_when_begun ------------------------------------------------------------------------ */

typedef struct {
  bool alone;          /* no other thread has a chunk */
  atomic_int called;   /* calls of run_errand */
  atomic_int begun;    /* chunks */
  atomic_bool in_vain; /* called too early or too late, or not by the caller's thread */
  pthread_t caller;
} errand;

static void begin_chunk(void *arg, int64_t chunk, int thread) {
  (void)chunk;
  errand *e = arg;
  atomic_fetch_add(&e->begun, 1);
  if (thread == 0 && atomic_load(&e->called) != 1) atomic_store(&e->in_vain, true);
}

static void run_errand(void *arg) {
  errand *e = arg;
  atomic_fetch_add(&e->called, 1);
  if (!pthread_equal(e->caller, pthread_self())) atomic_store(&e->in_vain, true);
  if (e->alone) return;
  for (int i = 0; i < 100000 && atomic_load(&e->begun) == 0; i++) usleep(100);
  if (atomic_load(&e->begun) == 0) atomic_store(&e->in_vain, true);
}

/* The caller's thread calls the function once, after the other threads have begun and before its
 * own first chunk. */
static void test_when_begun(void **state) {
  (void)state;
  for (int threads = 1; threads <= 3; threads++) {
    hk_team *team = open_team(threads, false, 0);
    for (int64_t chunks = 0; chunks < 5; chunks++) {
      errand e = {.alone = threads == 1 || chunks < 2, .caller = pthread_self()};
      hk_team_when_begun(team, run_errand, &e);
      hk_team_run(team, chunks, begin_chunk, &e);
      assert_int_equal(e.called, 1);
      assert_int_equal(e.begun, chunks);
      assert_false(e.in_vain);
      hk_team_when_begun(team, NULL, NULL);
      hk_team_run(team, 0, begin_chunk, &e);
      assert_int_equal(e.called, 1);
    }
    hk_team_close(team);
  }
}

/* -- Places ------------------------------------------------------------------------------------ */

typedef struct {
  int members;
  atomic_int arrived;
  int cpu[MOST_THREADS]; /* the CPU that each thread is pinned to; -1: not pinned */
} places;

/* There are as many chunks as threads, and no chunk ends before all have begun, so each thread runs
 * one. */
static void note_place(void *arg, int64_t chunk, int thread) {
  (void)chunk;
  places *p = arg;
  const cpu_set_t set = affinity();
  p->cpu[thread] = CPU_COUNT(&set) == 1 ? last_of(&set) : -1;
  atomic_fetch_add(&p->arrived, 1);
  while (atomic_load(&p->arrived) < p->members) sched_yield();
}

static places places_of(hk_team *team) {
  places p = {.members = hk_team_threads(team)};
  hk_team_run(team, p.members, note_place, &p);
  return p;
}

static void test_own_cores(void **state) {
  (void)state;
  const cpu_set_t before = affinity();
  const int cpus = CPU_COUNT(&before) < MOST_THREADS ? CPU_COUNT(&before) : MOST_THREADS;
  hk_team *team = open_team(cpus, true, 0);
  assert_string_equal(hk_team_note(team), "");
  hk_team_join(team);
  const places p = places_of(team);
  for (int a = 0; a < cpus; a++) {
    assert_true(p.cpu[a] >= 0 && CPU_ISSET((size_t)p.cpu[a], &before));
    for (int b = 0; b < a; b++) assert_int_not_equal(p.cpu[a], p.cpu[b]);
  }
  hk_team_close(team);
  const cpu_set_t after = affinity();
  assert_true(CPU_EQUAL(&before, &after));
}

static void test_teams_side_by_side(void **state) {
  (void)state;
  const cpu_set_t all = affinity();
  if (CPU_COUNT(&all) < 2) skip();
  hk_team *left = open_team(1, true, 0), *right = open_team(1, true, 1);
  hk_team_join(left);
  const int here = places_of(left).cpu[0];
  hk_team_join(right);
  const int there = places_of(right).cpu[0];
  assert_int_not_equal(here, there);
  hk_team_close(right);
  hk_team_close(left);
  const cpu_set_t after = affinity();
  assert_true(CPU_EQUAL(&all, &after));
}

static void test_too_many_are_not_pinned(void **state) {
  (void)state;
  const cpu_set_t before = affinity();
  hk_team *team = open_team(2, true, CPU_COUNT(&before) - 1);
  assert_non_null(strstr(hk_team_note(team), "not pinned"));
  hk_team_join(team);
  const cpu_set_t after = affinity();
  assert_true(CPU_EQUAL(&before, &after));
  run_and_check(team, 100);
  hk_team_close(team);
}

static void *read_affinity(void *arg) {
  *(cpu_set_t *)arg = affinity();
  return NULL;
}

/* A thread that a pinned thread starts is not pinned. */
static void test_pins_are_not_inherited(void **state) {
  (void)state;
  const cpu_set_t before = affinity();
  hk_team *team = open_team(1, true, 0);
  hk_team_join(team);
  cpu_set_t seen;
  pthread_t thread;
  assert_int_equal(hk_thread_start(&thread, -1, read_affinity, &seen), 0);
  pthread_join(thread, NULL);
  assert_true(CPU_EQUAL(&before, &seen));
  hk_team_close(team);
}

/* The thread's time slice in ns: sched_getattr(2). */
static uint64_t slice_of_this_thread(void) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } now = {0};
  return syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) == 0 ? now.runtime : 0;
}

typedef struct {
  uint64_t before, after;
} slices;

static void *become_prompt(void *arg) {
  slices *s = arg;
  s->before = slice_of_this_thread();
  hk_thread_prompt();
  s->after = slice_of_this_thread();
  return NULL;
}

/* hk_thread_prompt shortens the slice to 100,000 ns. Kernels before 6.12 have no slices. */
static void test_prompt_threads_have_short_slices(void **state) {
  (void)state;
  slices seen = {0};
  pthread_t thread;
  assert_int_equal(hk_thread_start(&thread, -1, become_prompt, &seen), 0);
  pthread_join(thread, NULL);
  if (seen.before == 0) skip();
  assert_true(seen.after < seen.before);
  assert_int_equal(seen.after, 100000);
}

/* With one allowed CPU, as under taskset, a team of one is pinned to it and a team of two is not
 * pinned. */
static void test_uses_allowed_cpus(void **state) {
  (void)state;
  const cpu_set_t all = affinity();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((size_t)last_of(&all), &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  hk_team *alone = open_team(1, true, 0), *two = open_team(2, true, 0);
  hk_team_join(alone);
  assert_string_equal(hk_team_note(alone), "");
  assert_int_equal(places_of(alone).cpu[0], last_of(&all));
  assert_non_null(strstr(hk_team_note(two), "not pinned"));
  const places p = places_of(two);
  assert_int_equal(p.cpu[1], last_of(&all));
  hk_team_close(two);
  hk_team_close(alone);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* -- Order of CPUs ----------------------------------------------------------------------------- */

static void check_order(const char *machine, const cpu_set_t *allowed, int near, int count,
                        const int *expected) {
  hwloc_topology_t topology;
  assert_int_equal(hwloc_topology_init(&topology), 0);
  assert_int_equal(hwloc_topology_set_synthetic(topology, machine), 0);
  assert_int_equal(hwloc_topology_load(topology), 0);
  hk_error err = {0};
  int *cpus = NULL, n = 0;
  must(hk_cpu_order_in(topology, allowed, near, &cpus, &n, &err), &err);
  assert_int_equal(n, count);
  for (int i = 0; i < count; i++) assert_int_equal(cpus[i], expected[i]);
  free(cpus);
  hwloc_topology_destroy(topology);
}

static void test_order_of_cpus(void **state) {
  (void)state;
  /* Core i has CPUs 2 i and 2 i + 1; the second node has CPUs 4 to 7. */
  const char *machine = "numa:2 core:2 pu:2";
  check_order(machine, NULL, -1, 8, (const int[]){0, 2, 4, 6, 1, 3, 5, 7});
  check_order(machine, NULL, 0, 8, (const int[]){0, 2, 4, 6, 1, 3, 5, 7});
  check_order(machine, NULL, 1, 8, (const int[]){4, 6, 0, 2, 5, 7, 1, 3});
  check_order(machine, NULL, 9, 8, (const int[]){0, 2, 4, 6, 1, 3, 5, 7});
  /* Hyperthreads as Linux usually numbers them: the second ones of all cores after the first. */
  check_order("numa:1 core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", NULL, 0, 8,
              (const int[]){0, 1, 2, 3, 4, 5, 6, 7});
  /* No hyperthreads. */
  check_order("numa:2 core:4 pu:1", NULL, 1, 8, (const int[]){4, 5, 6, 7, 0, 1, 2, 3});
  /* Only the second hyperthread of a core is allowed: it counts as the core's first. */
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  CPU_SET(1, &allowed);
  CPU_SET(4, &allowed);
  CPU_SET(5, &allowed);
  check_order(machine, &allowed, -1, 3, (const int[]){1, 4, 5});
  check_order(machine, &allowed, 1, 3, (const int[]){4, 1, 5});
}

static void test_unknown_device_has_no_numa_node(void **state) {
  (void)state;
  assert_int_equal(hk_numa_near(NULL), -1);
  assert_int_equal(hk_numa_near(""), -1);
  assert_int_equal(hk_numa_near("no such device"), -1);
}

static void test_refusals(void **state) {
  (void)state;
  hk_team *team = NULL;
  hk_error err = {0};
  assert_int_equal(hk_team_open(&(hk_team_options){.threads = 0}, &team, &err), HK_INPUT);
  assert_null(team);
  assert_non_null(strstr(err.message, "0 threads"));
  assert_int_equal(hk_team_open(&(hk_team_options){.threads = 1 << 20}, &team, &err), HK_INPUT);
  const hk_team_options before_all = {.threads = 1, .first_core = -1};
  assert_int_equal(hk_team_open(&before_all, &team, &err), HK_INPUT);
  assert_null(team);
  hk_team_close(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_chunk_once),
      cmocka_unit_test(test_many_pieces),
      cmocka_unit_test(test_threads_run_together),
      cmocka_unit_test(test_when_begun),
      cmocka_unit_test(test_own_cores),
      cmocka_unit_test(test_teams_side_by_side),
      cmocka_unit_test(test_too_many_are_not_pinned),
      cmocka_unit_test(test_pins_are_not_inherited),
      cmocka_unit_test(test_prompt_threads_have_short_slices),
      cmocka_unit_test(test_uses_allowed_cpus),
      cmocka_unit_test(test_order_of_cpus),
      cmocka_unit_test(test_unknown_device_has_no_numa_node),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
