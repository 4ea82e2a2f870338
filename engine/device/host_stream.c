/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend's streams and events.
 *
 * A stream is a thread and a ring of queued operations. An adopted stream has neither: its
 * operations run at once, on the calling thread, because the engine waits for each call on the
 * caller's stream anyway, and handing 20,000 small gradients to another thread costs 4 us each.
 *
 * An event counts its records: a record takes the next number when it is queued, and the event has
 * happened when the last number taken has been reached. Records of one event must be on one stream,
 * or ordered behind each other.
 *
 * After a failure of the device, streams drop queued operations, except records, so that no thread
 * waits for ever. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/device/host_device.h"
#include "engine/device/topology.h"

/* Operations that a stream holds; a caller who queues more waits for room. */
#define RING 4096

typedef struct {
  hk_event base;
  pthread_mutex_t lock;
  pthread_cond_t reached;
  uint64_t recorded, happened; /* number of records queued; last number reached */
  hk_ns time;                  /* when that number was reached, CLOCK_MONOTONIC */
  /* References: one of the opener, one of each queued operation. As on a GPU, an event may be
   * closed before it happens. */
  atomic_int owners;
} host_event;

typedef struct {
  enum { COPY, KERNEL, ZERO, RECORD, WAIT } kind;
  union {
    struct {
      void *to;
      const void *from;
      hk_bytes bytes;
    } copy;
    hk_kernel kernel;
    struct {
      void *memory;
      hk_bytes bytes;
    } zero;
    struct {
      host_event *event;
      uint64_t number;
    } mark;
  };
} operation;

typedef struct {
  hk_stream base;
  bool immediate; /* adopted: no thread and no ring; what follows is not used */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t queued, done;
  uint64_t head, tail; /* number of operations done, number of operations queued */
  bool closing;
  operation ring[]; /* [RING] */
} host_stream;

static hk_host_device *device_of(const host_stream *s) {
  return (hk_host_device *)s->base.backend;
}

/* -- Events ------------------------------------------------------------------------------------ */

static void drop_event(host_event *e) {
  if (atomic_fetch_sub(&e->owners, 1) != 1) return;
  pthread_cond_destroy(&e->reached);
  pthread_mutex_destroy(&e->lock);
  free(e);
}

static void reach_event(host_event *e, uint64_t number) {
  const hk_ns now = hk_now();
  pthread_mutex_lock(&e->lock);
  if (number > e->happened) {
    e->happened = number;
    e->time = now;
  }
  pthread_cond_broadcast(&e->reached);
  pthread_mutex_unlock(&e->lock);
}

static void await_event(host_event *e, uint64_t number) {
  pthread_mutex_lock(&e->lock);
  while (e->happened < number) pthread_cond_wait(&e->reached, &e->lock);
  pthread_mutex_unlock(&e->lock);
}

static uint64_t last_record(host_event *e) {
  pthread_mutex_lock(&e->lock);
  const uint64_t number = e->recorded;
  pthread_mutex_unlock(&e->lock);
  return number;
}

static hk_status check_open(hk_host_device *device, const char *what, hk_error *err) {
  if (!hk_host_fault_due(device, HK_HOST_OPEN)) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "%s cannot be opened: an injected fault", what);
}

hk_status hk_host_event_open(hk_backend *b, bool awaited, hk_event **out, hk_error *err) {
  *out = NULL;
  HK_TRY(hk_host_check((hk_host_device *)b, err));
  HK_TRY(check_open((hk_host_device *)b, "an event", err));
  host_event *e = calloc(1, sizeof *e);
  if (e == NULL) return hk_fail_memory(err, sizeof *e, "an event");
  e->base = (hk_event){.backend = b, .awaited = awaited};
  pthread_mutex_init(&e->lock, NULL);
  pthread_cond_init(&e->reached, NULL);
  atomic_init(&e->owners, 1);
  *out = &e->base;
  return HK_OK;
}

void hk_host_event_close(hk_event *e) {
  if (e != NULL) drop_event((host_event *)e);
}

hk_status hk_host_event_sync(hk_event *event, hk_error *err) {
  host_event *e = (host_event *)event;
  hk_host_device *device = (hk_host_device *)event->backend;
  HK_TRY(hk_host_check(device, err));
  HK_TRY(hk_event_check_awaited(event, err));
  await_event(e, last_record(e));
  return hk_host_check(device, err);
}

hk_status hk_host_event_done(hk_event *event, bool *done, hk_error *err) {
  host_event *e = (host_event *)event;
  pthread_mutex_lock(&e->lock);
  *done = e->happened == e->recorded;
  pthread_mutex_unlock(&e->lock);
  return hk_host_check((hk_host_device *)event->backend, err);
}

hk_status hk_host_event_time(hk_event *event, hk_ns *time, hk_error *err) {
  host_event *e = (host_event *)event;
  HK_TRY(hk_host_check((hk_host_device *)event->backend, err));
  pthread_mutex_lock(&e->lock);
  const bool never = e->recorded == 0, done = e->happened == e->recorded;
  *time = e->time;
  pthread_mutex_unlock(&e->lock);
  if (!never && done) return HK_OK;
  return hk_fail(err, HK_INPUT, "an event has no time yet: it %s",
                 never ? "was never recorded" : "has not happened");
}

/* -- What a stream's thread does --------------------------------------------------------------- */

static void run_copy(hk_host_device *device, const operation *op) {
  const bool fault = hk_host_fault_due(device, HK_HOST_COPYING);
  const hk_bytes bytes = fault ? op->copy.bytes / 2 : op->copy.bytes;
  memcpy(op->copy.to, op->copy.from, (size_t)bytes);
  if (!fault) return;
  hk_host_break(device, "copy of %lld bytes from %p to %p: an injected fault",
                (long long)op->copy.bytes, op->copy.from, op->copy.to);
}

static void run_kernel(hk_host_device *device, const operation *op) {
  hk_kernel kernel = op->kernel;
  const bool fault = hk_host_fault_due(device, HK_HOST_KERNEL);
  if (fault) kernel.n /= 2, kernel.rows /= 2;
  hk_host_kernel_run(device, &kernel);
  if (!fault) return;
  const bool matmul = kernel.kind == HK_KERNEL_MATMUL;
  hk_host_break(device, "kernel %s on %lld %s: an injected fault", hk_host_kernel_name(kernel.kind),
                (long long)(matmul ? op->kernel.rows : op->kernel.n), matmul ? "rows" : "elements");
}

/* Copies the launch's segments, because the caller's array may change when the launch call returns.
 */
static hk_status keep_segments(hk_kernel *kernel, hk_error *err) {
  if (kernel->n_segments == 0) return HK_OK;
  const size_t bytes = sizeof *kernel->segments * (size_t)kernel->n_segments;
  hk_segment *kept = malloc(bytes);
  if (kept == NULL) return hk_fail_memory(err, bytes, "a kernel's segments");
  memcpy(kept, kernel->segments, bytes);
  kernel->segments = kept;
  return HK_OK;
}

static void drop_segments(const hk_kernel *kernel) {
  if (kernel->n_segments > 0) free((hk_segment *)(uintptr_t)kernel->segments);
}

static void run_operation(hk_host_device *device, const operation *op) {
  const bool failed = atomic_load_explicit(&device->failed, memory_order_acquire);
  switch (op->kind) {
    case COPY:
      if (!failed) run_copy(device, op);
      break;
    case KERNEL:
      if (!failed) run_kernel(device, op);
      drop_segments(&op->kernel);
      break;
    case ZERO:
      if (!failed) memset(op->zero.memory, 0, (size_t)op->zero.bytes);
      break;
    case RECORD:
      reach_event(op->mark.event, op->mark.number);
      drop_event(op->mark.event);
      break;
    case WAIT:
      if (!failed) await_event(op->mark.event, op->mark.number);
      drop_event(op->mark.event);
      break;
  }
}

static void *run_stream(void *argument) {
  host_stream *s = argument;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (s->head == s->tail && !s->closing) pthread_cond_wait(&s->queued, &s->lock);
    if (s->head == s->tail) break;
    /* Its slot in the ring is not reused before head has passed it. */
    const operation *op = &s->ring[s->head % RING];
    pthread_mutex_unlock(&s->lock);
    run_operation(device_of(s), op);
    pthread_mutex_lock(&s->lock);
    s->head++;
    pthread_cond_broadcast(&s->done);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* -- What callers do --------------------------------------------------------------------------- */

static void push(host_stream *s, const operation *op) {
  if (s->immediate) {
    run_operation(device_of(s), op);
    return;
  }
  pthread_mutex_lock(&s->lock);
  while (s->tail - s->head == RING) pthread_cond_wait(&s->done, &s->lock);
  s->ring[s->tail % RING] = *op;
  s->tail++;
  pthread_cond_signal(&s->queued);
  pthread_mutex_unlock(&s->lock);
}

static hk_status check_copy(hk_host_device *device, const void *to, const void *from,
                            hk_bytes bytes, hk_error *err) {
  if (bytes < 0)
    return hk_fail(err, HK_INPUT, "a copy of %lld bytes: expected 0 or more", (long long)bytes);
  if (bytes == 0) return HK_OK;
  HK_TRY(hk_host_check_end(device, "a copy's target", to, bytes, err));
  HK_TRY(hk_host_check_end(device, "a copy's source", from, bytes, err));
  const uintptr_t a = (uintptr_t)to, b = (uintptr_t)from, n = (uintptr_t)bytes;
  if (a + n <= b || b + n <= a) return HK_OK;
  return hk_fail(err, HK_INPUT, "a copy's source at %p and target at %p overlap (%lld bytes)", from,
                 to, (long long)bytes);
}

hk_status hk_host_copy(hk_stream *stream, void *to, const void *from, hk_bytes bytes,
                       hk_error *err) {
  host_stream *s = (host_stream *)stream;
  hk_host_device *device = device_of(s);
  HK_TRY(hk_host_check(device, err));
  HK_TRY(check_copy(device, to, from, bytes, err));
  if (hk_host_fault_due(device, HK_HOST_COPY)) {
    return hk_fail(err, HK_ENVIRONMENT, "a copy of %lld bytes is refused: an injected fault",
                   (long long)bytes);
  }
  if (bytes > 0) {
    push(s, &(operation){.kind = COPY, .copy = {.to = to, .from = from, .bytes = bytes}});
  }
  return HK_OK;
}

/* Of the calling thread. */
static hk_ns processor_time(void) {
  struct timespec t = {0};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (hk_ns)t.tv_sec * 1000000000 + t.tv_nsec;
}

hk_ns hk_backend_host_callers_kernels(hk_backend *b) {
  return atomic_load(&((hk_host_device *)b)->callers_ns);
}

hk_status hk_host_launch(hk_stream *stream, const hk_kernel *kernel, hk_error *err) {
  host_stream *s = (host_stream *)stream;
  hk_host_device *device = device_of(s);
  const hk_ns began = s->immediate ? processor_time() : 0;
  HK_TRY(hk_host_check(device, err));
  HK_TRY(hk_host_kernel_check(device, kernel, err));
  if (hk_host_fault_due(device, HK_HOST_LAUNCH)) {
    return hk_fail(err, HK_ENVIRONMENT, "kernel %s is refused: an injected fault",
                   hk_host_kernel_name(kernel->kind));
  }
  if (kernel->n <= 0 && kernel->kind != HK_KERNEL_MATMUL) return HK_OK;
  operation op = {.kind = KERNEL, .kernel = *kernel};
  const bool segments = kernel->kind == HK_KERNEL_GATHER || kernel->kind == HK_KERNEL_SCATTER;
  if (!segments) op.kernel.n_segments = 0;
  if (s->immediate) {
    run_kernel(device, &op);
    atomic_fetch_add(&device->callers_ns, processor_time() - began);
    return HK_OK;
  }
  HK_TRY(keep_segments(&op.kernel, err));
  push(s, &op);
  return HK_OK;
}

hk_status hk_host_zero(hk_stream *stream, void *memory, hk_bytes bytes, hk_error *err) {
  host_stream *s = (host_stream *)stream;
  hk_host_device *device = device_of(s);
  HK_TRY(hk_host_check(device, err));
  if (bytes < 0)
    return hk_fail(err, HK_INPUT, "zeroing of %lld bytes: expected 0 or more", (long long)bytes);
  if (bytes == 0) return HK_OK;
  HK_TRY(hk_host_check_range(device, "memory to set to zero", memory, bytes, false, err));
  if (hk_host_fault_due(device, HK_HOST_LAUNCH)) {
    return hk_fail(err, HK_ENVIRONMENT, "setting memory to zero is refused: an injected fault");
  }
  push(s, &(operation){.kind = ZERO, .zero = {memory, bytes}});
  return HK_OK;
}

hk_status hk_host_record(hk_stream *stream, hk_event *event, hk_error *err) {
  host_event *e = (host_event *)event;
  HK_TRY(hk_host_check((hk_host_device *)stream->backend, err));
  if (hk_host_fault_due((hk_host_device *)stream->backend, HK_HOST_RECORD)) {
    return hk_fail(err, HK_ENVIRONMENT, "an event's record is refused: an injected fault");
  }
  pthread_mutex_lock(&e->lock);
  const uint64_t number = ++e->recorded;
  pthread_mutex_unlock(&e->lock);
  atomic_fetch_add(&e->owners, 1);
  push((host_stream *)stream, &(operation){.kind = RECORD, .mark = {e, number}});
  return HK_OK;
}

hk_status hk_host_wait(hk_stream *stream, hk_event *event, hk_error *err) {
  host_event *e = (host_event *)event;
  HK_TRY(hk_host_check((hk_host_device *)stream->backend, err));
  const uint64_t number = last_record(e);
  if (number == 0) {
    return hk_fail(err, HK_INPUT, "a stream cannot wait for an event that was never recorded");
  }
  if (hk_host_fault_due((hk_host_device *)stream->backend, HK_HOST_WAIT)) {
    return hk_fail(err, HK_ENVIRONMENT, "a stream's wait is refused: an injected fault");
  }
  atomic_fetch_add(&e->owners, 1);
  push((host_stream *)stream, &(operation){.kind = WAIT, .mark = {e, number}});
  return HK_OK;
}

hk_status hk_host_stream_sync(hk_stream *stream, hk_error *err) {
  host_stream *s = (host_stream *)stream;
  if (!s->immediate) {
    /* After a failure, too: an operation that was running then may still run. */
    pthread_mutex_lock(&s->lock);
    const uint64_t all = s->tail;
    while (s->head < all) pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
  }
  return hk_host_check(device_of(s), err);
}

/* -- Opening ----------------------------------------------------------------------------------- */

static void free_stream(host_stream *s) {
  pthread_cond_destroy(&s->done);
  pthread_cond_destroy(&s->queued);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

hk_status hk_host_stream_open(hk_backend *b, bool urgent, hk_stream **out, hk_error *err) {
  (void)urgent; /* the streams' threads all have the same priority */
  *out = NULL;
  HK_TRY(hk_host_check((hk_host_device *)b, err));
  HK_TRY(check_open((hk_host_device *)b, "a stream", err));
  const size_t bytes = sizeof(host_stream) + RING * sizeof(operation);
  host_stream *s = calloc(1, bytes);
  if (s == NULL) return hk_fail_memory(err, bytes, "a stream");
  s->base.backend = b;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->queued, NULL);
  pthread_cond_init(&s->done, NULL);
  const int failure = hk_thread_start(&s->thread, -1, run_stream, s);
  if (failure != 0) {
    free_stream(s);
    return hk_fail(err, HK_ENVIRONMENT, "a stream's thread cannot be started: %s",
                   strerror(failure));
  }
  *out = &s->base;
  return HK_OK;
}

hk_status hk_host_stream_adopt(hk_backend *b, void *native, hk_stream **out, hk_error *err) {
  (void)native;
  *out = NULL;
  HK_TRY(hk_host_check((hk_host_device *)b, err));
  HK_TRY(check_open((hk_host_device *)b, "a stream", err));
  host_stream *s = calloc(1, sizeof *s);
  if (s == NULL) return hk_fail_memory(err, sizeof *s, "a stream");
  s->base.backend = b;
  s->immediate = true;
  *out = &s->base;
  return HK_OK;
}

void hk_host_stream_close(hk_stream *stream) {
  host_stream *s = (host_stream *)stream;
  if (s == NULL) return;
  if (s->immediate) {
    free(s);
    return;
  }
  pthread_mutex_lock(&s->lock);
  s->closing = true;
  pthread_cond_signal(&s->queued);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  free_stream(s);
}
