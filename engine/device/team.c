/* SPDX-License-Identifier: Apache-2.0 */
/* The team's state is one atomic word, the door: the number of workers that are inside (at work on
 * the piece), whether further ones may enter, and the number of the piece of work. Member 0 closes
 * the door when all chunks have been taken, and waits only for workers that are inside. A worker
 * that comes too late (asleep, or not scheduled) finds the door closed and does not delay the
 * piece. */
#include "engine/device/team.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/units.h"
#include "engine/device/topology.h"

/* How long a member spins before it sleeps: longer than the pause between two pieces of a subgroup.
 */
#define SPIN_NS    50000
#define CACHE_LINE 64

/* Bits of the door: 0 .. 15 number of workers inside, 16 open, from 17 on number of the piece. */
#define OPEN   ((uint64_t)1 << 16)
#define INSIDE (OPEN - 1)
#define PIECE  17

typedef struct {
  hk_team *team;
  pthread_t thread;
  int number;
} worker;

struct hk_team {
  int threads;
  int first_cpu; /* CPU of member 0; -1: not pinned */
  bool spin;     /* each member has a CPU, so that spinning delays nobody */
  char note[256];
  worker *workers; /* [threads - 1] */
  int started;     /* number of workers whose thread was started */
  bool joined;
  pthread_t member; /* thread that has joined as member 0 */

  /* The piece of work; written only while the door is closed and nobody is inside. */
  hk_team_work work;
  void *arg;
  int64_t chunks;

  void (*begun)(void *arg); /* see hk_team_when_begun; NULL: none */
  void *begun_arg;

  pthread_mutex_t lock;      /* held to change the piece's number, and to sleep and wake */
  pthread_cond_t come, gone; /* signalled at a new piece; when the last worker has left */
  atomic_bool closing;
  _Alignas(CACHE_LINE) _Atomic uint64_t door;
  _Alignas(CACHE_LINE) _Atomic int64_t next; /* next chunk to be taken */
};

/* -- Waiting ----------------------------------------------------------------------------------- */

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

typedef bool (*condition)(hk_team *team, uint64_t piece);

static bool has_come(hk_team *team, uint64_t piece) {
  return atomic_load_explicit(&team->door, memory_order_acquire) >> PIECE != piece;
}

static bool is_empty(hk_team *team, uint64_t piece) {
  (void)piece;
  return (atomic_load_explicit(&team->door, memory_order_acquire) & INSIDE) == 0;
}

/* Waits until the condition holds: spins for SPIN_NS, then sleeps on `signal`. */
static void await(hk_team *team, condition there, uint64_t piece, pthread_cond_t *signal) {
  if (team->spin) {
    const hk_ns end = hk_now() + SPIN_NS;
    do {
      for (int i = 0; i < 32; i++) {
        if (there(team, piece)) return;
        relax();
      }
    } while (hk_now() < end);
  }
  pthread_mutex_lock(&team->lock);
  while (!there(team, piece)) pthread_cond_wait(signal, &team->lock);
  pthread_mutex_unlock(&team->lock);
}

/* -- Workers ----------------------------------------------------------------------------------- */

static bool enter(hk_team *team, uint64_t piece) {
  uint64_t door = atomic_load_explicit(&team->door, memory_order_relaxed);
  while (door >> PIECE == piece && (door & OPEN)) {
    if (atomic_compare_exchange_weak_explicit(&team->door, &door, door + 1, memory_order_acquire,
                                              memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

static void leave(hk_team *team) {
  const uint64_t before = atomic_fetch_sub_explicit(&team->door, 1, memory_order_release);
  if ((before & (OPEN | INSIDE)) != 1) return;
  pthread_mutex_lock(&team->lock);
  pthread_cond_signal(&team->gone);
  pthread_mutex_unlock(&team->lock);
}

static void do_chunks(hk_team *team, int thread) {
  for (;;) {
    const int64_t chunk = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
    if (chunk >= team->chunks) return;
    team->work(team->arg, chunk, thread);
  }
}

static void *run_worker(void *argument) {
  const worker *self = argument;
  hk_team *team = self->team;
  uint64_t piece = 0; /* number of the last piece seen */
  for (;;) {
    await(team, has_come, piece, &team->come);
    if (atomic_load(&team->closing)) return NULL;
    piece = atomic_load_explicit(&team->door, memory_order_relaxed) >> PIECE;
    if (!enter(team, piece)) continue;
    do_chunks(team, self->number);
    leave(team);
  }
}

/* Begins the next piece: raises its number, opens the door if `open` is OPEN, and wakes workers. */
static void announce(hk_team *team, uint64_t open) {
  pthread_mutex_lock(&team->lock);
  const uint64_t piece = atomic_load_explicit(&team->door, memory_order_relaxed) >> PIECE;
  atomic_store_explicit(&team->door, (piece + 1) << PIECE | open, memory_order_release);
  pthread_cond_broadcast(&team->come);
  pthread_mutex_unlock(&team->lock);
}

void hk_team_when_begun(hk_team *team, void (*begun)(void *arg), void *arg) {
  team->begun = begun;
  team->begun_arg = arg;
}

static void has_begun(hk_team *team) {
  if (team->begun != NULL) team->begun(team->begun_arg);
}

void hk_team_run(hk_team *team, int64_t chunks, hk_team_work work, void *arg) {
  assert((atomic_load(&team->door) & (OPEN | INSIDE)) == 0);
  if (team->threads == 1 || chunks <= 1) {
    has_begun(team);
    for (int64_t chunk = 0; chunk < chunks; chunk++) work(arg, chunk, 0);
    return;
  }
  team->work = work;
  team->arg = arg;
  team->chunks = chunks;
  atomic_store_explicit(&team->next, 0, memory_order_relaxed);
  announce(team, OPEN);
  has_begun(team);
  do_chunks(team, 0);
  atomic_fetch_and_explicit(&team->door, ~OPEN, memory_order_relaxed);
  await(team, is_empty, 0, &team->gone);
}

/* -- Opening ----------------------------------------------------------------------------------- */

/* Chooses the CPUs to pin members to: *cpus, *n of them, from which first_core is still to be
 * skipped; *n is 0 if the team is not pinned. */
static void choose_cpus(hk_team *team, const hk_team_options *options, int **cpus, int *n) {
  hk_error trouble = {0};
  *cpus = NULL;
  *n = 0;
  if (hk_cpu_order(options->pci, cpus, n, &trouble) != HK_OK) {
    if (options->pin)
      snprintf(team->note, sizeof team->note, "not pinned: %.200s", trouble.message);
    return;
  }
  team->spin = options->threads <= *n;
  const int left = *n - options->first_core;
  if (options->pin && left < options->threads) {
    snprintf(team->note, sizeof team->note,
             "not pinned: %d threads from CPU %d on, but this thread may use %d CPUs",
             options->threads, options->first_core, *n);
  }
  if (!options->pin || left < options->threads) *n = 0;
}

static hk_status start_workers(hk_team *team, const int *cpus, hk_error *err) {
  for (int i = 1; i < team->threads; i++) {
    worker *w = &team->workers[i - 1];
    *w = (worker){.team = team, .number = i};
    int failure = hk_thread_start(&w->thread, cpus ? cpus[i] : -1, run_worker, w);
    if (failure != 0 && cpus != NULL) {
      if (*team->note == '\0') {
        snprintf(team->note, sizeof team->note, "thread %d is not pinned to CPU %d: %s", i, cpus[i],
                 strerror(failure));
      }
      failure = hk_thread_start(&w->thread, -1, run_worker, w);
    }
    if (failure != 0) {
      return hk_fail(err, HK_ENVIRONMENT, "thread %d of a team of %d cannot be started: %s", i,
                     team->threads, strerror(failure));
    }
    team->started = i;
  }
  return HK_OK;
}

static hk_team *new_team(int threads) {
  hk_team *team = aligned_alloc(CACHE_LINE, sizeof *team);
  if (team == NULL) return NULL;
  memset(team, 0, sizeof *team);
  team->threads = threads;
  team->first_cpu = -1;
  team->workers = calloc((size_t)threads, sizeof *team->workers);
  pthread_mutex_init(&team->lock, NULL);
  pthread_cond_init(&team->come, NULL);
  pthread_cond_init(&team->gone, NULL);
  if (team->workers != NULL) return team;
  hk_team_close(team);
  return NULL;
}

hk_status hk_team_open(const hk_team_options *options, hk_team **out, hk_error *err) {
  *out = NULL;
  const int threads = options->threads;
  if (threads < 1 || (uint64_t)threads > INSIDE) {
    return hk_fail(err, HK_INPUT, "a team of %d threads was asked for; 1 to %d are possible",
                   threads, (int)INSIDE);
  }
  if (options->first_core < 0) {
    return hk_fail(err, HK_INPUT, "a team's first core is %d; it must be 0 or more",
                   options->first_core);
  }
  hk_team *team = new_team(threads);
  if (team == NULL) return hk_fail_memory(err, sizeof *team, "a team of threads");
  int *cpus = NULL, n = 0;
  choose_cpus(team, options, &cpus, &n);
  const int *mine = n > 0 ? cpus + options->first_core : NULL;
  if (mine != NULL) team->first_cpu = mine[0];
  const hk_status status = start_workers(team, mine, err);
  free(cpus);
  if (status == HK_OK) {
    *out = team;
  } else {
    hk_team_close(team);
  }
  return status;
}

void hk_team_close(hk_team *team) {
  if (team == NULL) return;
  atomic_store(&team->closing, true);
  announce(team, 0);
  for (int i = 0; i < team->started; i++) pthread_join(team->workers[i].thread, NULL);
  if (team->joined && pthread_equal(team->member, pthread_self())) hk_cpu_unpin();
  pthread_cond_destroy(&team->gone);
  pthread_cond_destroy(&team->come);
  pthread_mutex_destroy(&team->lock);
  free(team->workers);
  free(team);
}

int hk_team_threads(const hk_team *team) {
  return team->threads;
}

const char *hk_team_note(const hk_team *team) {
  return team->note;
}

void hk_team_join(hk_team *team) {
  if (team->first_cpu < 0) return;
  team->joined = hk_cpu_pin(team->first_cpu);
  team->member = pthread_self();
  if (team->joined || *team->note != '\0') return;
  snprintf(team->note, sizeof team->note, "thread 0 is not pinned: CPU %d is refused",
           team->first_cpu);
}
