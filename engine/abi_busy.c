/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI's busy team: a thread that has a CPU team update AdamW state of its own, over and over,
 * while it is let. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/graph/bytes.h"
#include "engine/abi_private.h"
#include "engine/adamw/adamw.h"
#include "engine/default_plan.h"
#include "engine/device/arena.h"
#include "engine/device/chunks.h"

#define PIECE ((int64_t)16 << 20) /* elements of one operation, at most */
#define CHUNK ((int64_t)1 << 16)  /* elements that a thread takes at a time, at most */
/* Bytes an element: state, gradient and weight. */
#define ARRAYS (HK_BYTES_STATE + 2 * HK_BYTES_BF16)

struct hocket_busy {
  pid_t owner;
  hk_team *team;
  hk_arena arena;
  float *p, *m, *v;
  uint16_t *grad, *w;
  int64_t elements;
  hk_adamw_step step;
  _Atomic int64_t updated;
  pthread_t thread;
  bool started;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool let, over; /* asked of the thread */
  bool runs;      /* what the thread does */
};

/* One operation: `elements` of the arrays from `begin`. */
typedef struct {
  const hocket_busy *busy;
  int64_t begin;
  hk_chunks chunks;
} operation;

static void update_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const operation *op = arg;
  const hocket_busy *b = op->busy;
  const int64_t first = hk_chunk_begin(&op->chunks, chunk);
  const int64_t at = op->begin + first, n = hk_chunk_begin(&op->chunks, chunk + 1) - first;
  hk_cpu_kernels_best()->adamw(&b->step, HK_GRAD_BF16, n, b->p + at, b->m + at, b->v + at,
                               b->grad + at, b->w + at);
}

/* Waits until updates are wanted. False: the team is to end. */
static bool is_wanted(hocket_busy *b) {
  pthread_mutex_lock(&b->lock);
  while (!b->let && !b->over) {
    b->runs = false;
    pthread_cond_broadcast(&b->changed);
    pthread_cond_wait(&b->changed, &b->lock);
  }
  const bool wanted = !b->over;
  if (!b->runs) pthread_cond_broadcast(&b->changed);
  b->runs = wanted;
  pthread_mutex_unlock(&b->lock);
  return wanted;
}

static void *update(void *arg) {
  hocket_busy *b = arg;
  for (int64_t begin = 0; is_wanted(b);) {
    const int64_t n = hk_min(b->elements - begin, PIECE);
    operation op = {b, begin, hk_chunks_of(n, CHUNK, hk_team_threads(b->team))};
    hk_team_run(b->team, op.chunks.count, update_chunk, &op);
    atomic_fetch_add(&b->updated, n);
    begin = begin + n < b->elements ? begin + n : 0;
  }
  return NULL;
}

/* -- Opening and closing ----------------------------------------------------------------------- */

static hk_status open_arrays(hocket_busy *b, hk_error *err) {
  const int64_t n = (b->elements + HK_CHUNK_ALIGN - 1) / HK_CHUNK_ALIGN * HK_CHUNK_ALIGN;
  HK_TRY(hk_arena_open(ARRAYS * n, b->team, NULL, &b->arena, err));
  b->p = hk_arena_take(&b->arena, ARRAYS * n, HK_CHUNK_ALIGN);
  b->m = b->p + n;
  b->v = b->m + n;
  b->grad = (uint16_t *)(void *)(b->v + n);
  b->w = b->grad + n;
  return HK_OK;
}

static hk_status start_thread(hocket_busy *b, hk_error *err) {
  const int failure = pthread_create(&b->thread, NULL, update, b);
  if (failure != 0) {
    return hk_fail(err, HK_ENVIRONMENT, "cannot start a thread: %s", strerror(failure));
  }
  b->started = true;
  return HK_OK;
}

static hk_status open_busy(hocket_busy *b, int threads, hk_error *err) {
  const hk_adamw hyper = {.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  const hk_team_options team = {.threads =
                                    threads > 0 ? threads : hk_default_threads(HK_OVERLAP_BOTH)};
  b->step = hk_adamw_prepare(&hyper, 1, 1);
  HK_TRY(hk_team_open(&team, &b->team, err));
  HK_TRY(open_arrays(b, err));
  return start_thread(b, err);
}

static void close_busy(hocket_busy *b) {
  if (b->started) {
    pthread_mutex_lock(&b->lock);
    b->over = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
  }
  hk_arena_close(&b->arena);
  if (b->team != NULL) hk_team_close(b->team);
  pthread_cond_destroy(&b->changed);
  pthread_mutex_destroy(&b->lock);
}

static hk_status check_size(int32_t threads, int64_t elements, hk_error *err) {
  if (threads < 0 || threads > HK_MOST_CPU_THREADS) {
    return hk_fail(err, HK_INPUT, "threads: from 0 (as overlap both has) to %d, got %d",
                   HK_MOST_CPU_THREADS, (int)threads);
  }
  if (elements < 1 || elements > INT64_MAX / ARRAYS / 2) {
    return hk_fail(err, HK_INPUT, "%lld elements: expected 1 to 2.8e17", (long long)elements);
  }
  return HK_OK;
}

int hocket_busy_start(int32_t threads, int64_t elements, hocket_busy **busy, char *message) {
  hk_error err = {0};
  hk_status status = hk_abi_given(busy, "the place for the team", &err);
  if (status != HK_OK) return hk_abi_answer(status, &err, message);
  *busy = NULL;
  status = check_size(threads, elements, &err);
  if (status != HK_OK) return hk_abi_answer(status, &err, message);
  hocket_busy *b = calloc(1, sizeof *b);
  if (b == NULL) return hk_abi_answer(hk_fail_memory(&err, sizeof *b, "a team"), &err, message);
  b->owner = getpid();
  b->elements = elements;
  pthread_mutex_init(&b->lock, NULL);
  pthread_cond_init(&b->changed, NULL);
  status = open_busy(b, (int)threads, &err);
  if (status == HK_OK) {
    *busy = b;
  } else {
    close_busy(b);
    free(b);
  }
  return hk_abi_answer(status, &err, message);
}

void hocket_busy_stop(hocket_busy *busy) {
  if (busy == NULL || busy->owner != getpid()) return;
  close_busy(busy);
  free(busy);
}

/* -- Running ----------------------------------------------------------------------------------- */

int hocket_busy_update(hocket_busy *busy, int32_t on, char *message) {
  hk_error err = {0};
  const hk_status status = hk_abi_check_owner(busy != NULL ? &busy->owner : NULL, "team", &err);
  if (status == HK_OK) {
    pthread_mutex_lock(&busy->lock);
    busy->let = on != 0;
    pthread_cond_broadcast(&busy->changed);
    while (busy->runs != busy->let) pthread_cond_wait(&busy->changed, &busy->lock);
    pthread_mutex_unlock(&busy->lock);
  }
  return hk_abi_answer(status, &err, message);
}

int32_t hocket_busy_threads(const hocket_busy *busy) {
  return busy != NULL ? (int32_t)hk_team_threads(busy->team) : 0;
}

int64_t hocket_busy_updated(const hocket_busy *busy) {
  return busy != NULL ? atomic_load(&busy->updated) : 0;
}
