/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Training on streams, as on a GPU: the caller queues work on several streams, and the engine
 * reads gradients and writes weights in stream order. Each copy, kernel, record and wait, of the
 * caller and of the engine, is delayed at random, on its stream or before it is queued. In every
 * order, state and the weights that the caller's streams read have the bits of plain AdamW. */
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "tests/fixture_training.h"

/* -- A host backend whose calls are late ------------------------------------------------------- */

/* LATE_BYTES, LONG_BYTES: sizes of the copies that delay a stream, by microseconds and by
 * milliseconds. */
enum {
  LATE_STREAMS = 64,
  LATE_BYTES = 1 << 18,
  LONG_BYTES = 1 << 26,
  CALLERS = 3,
  MOST_LIST = 12,
  MOST_BUFFERS = 4096
};

static hk_backend_ops late;
static atomic_uint_fast64_t late_dice;
static atomic_int gathers;
static char late_source[LATE_BYTES], long_source[LONG_BYTES], long_target[LONG_BYTES];
static struct {
  hk_stream *stream;
  char *target;
} late_streams[LATE_STREAMS];
static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;

static hk_stream *callers[CALLERS];

static char *late_target(hk_stream *s) {
  char *target = NULL;
  pthread_mutex_lock(&late_lock);
  for (int i = 0; i < LATE_STREAMS && target == NULL; i++) {
    if (late_streams[i].stream != NULL && late_streams[i].stream != s) continue;
    late_streams[i].stream = s;
    if (late_streams[i].target == NULL) late_streams[i].target = must_have(LATE_BYTES, 1);
    target = late_streams[i].target;
  }
  pthread_mutex_unlock(&late_lock);
  if (target == NULL) abort(); /* on a stream's thread, where no assertion works */
  return target;
}

static void forget_streams(void) {
  for (int i = 0; i < LATE_STREAMS; i++) {
    free(late_streams[i].target);
    late_streams[i].target = NULL;
    late_streams[i].stream = NULL;
  }
}

/* Delays one call in eight on its stream, and one in eight before it is queued. */
static hk_status delay(hk_stream *s, hk_error *err) {
  random_stream r = {atomic_fetch_add(&late_dice, 1) * 0x9e3779b97f4a7c15u};
  const int what = pick(&r, 0, 15);
  if (what >= 14) {
    const struct timespec moment = {.tv_nsec = pick(&r, 1000, 200000)};
    nanosleep(&moment, NULL);
  }
  if (what > 1) return HK_OK;
  for (int times = pick(&r, 1, 8); times > 0; times--) {
    HK_TRY(hk_backend_host.copy(s, late_target(s), late_source, LATE_BYTES, err));
  }
  return HK_OK;
}

static hk_status late_copy(hk_stream *s, void *to, const void *from, hk_bytes n, hk_error *err) {
  HK_TRY(delay(s, err));
  return hk_backend_host.copy(s, to, from, n, err);
}
static hk_status late_zero(hk_stream *s, void *memory, hk_bytes n, hk_error *err) {
  HK_TRY(delay(s, err));
  return hk_backend_host.zero(s, memory, n, err);
}
static hk_status late_launch(hk_stream *s, const hk_kernel *kernel, hk_error *err) {
  HK_TRY(delay(s, err));
  if (kernel->kind == HK_KERNEL_GATHER) atomic_fetch_add(&gathers, 1);
  return hk_backend_host.launch(s, kernel, err);
}
static hk_status late_record(hk_stream *s, hk_event *e, hk_error *err) {
  HK_TRY(delay(s, err));
  return hk_backend_host.record(s, e, err);
}
static hk_status late_wait(hk_stream *s, hk_event *e, hk_error *err) {
  HK_TRY(delay(s, err));
  return hk_backend_host.wait(s, e, err);
}
static hk_status late_open(int device, const hk_backend_options *options, hk_backend **out,
                           hk_error *err) {
  HK_TRY(hk_backend_host.open(device, options, out, err));
  (*out)->ops = &late; /* with &hk_backend_host the engine's calls wait for its streams */
  return HK_OK;
}
/* The caller's streams are streams of the backend. */
static hk_status late_adopt(hk_backend *b, void *native, hk_stream **out, hk_error *err) {
  if (native == NULL) return hk_backend_host.stream_open(b, false, out, err);
  *out = native;
  return HK_OK;
}
static void late_close(hk_stream *s) {
  for (int i = 0; i < CALLERS; i++) {
    if (s == callers[i]) return;
  }
  hk_backend_host.stream_close(s);
}

static void make_late(uint64_t seed) {
  late = hk_backend_host;
  late.open = late_open;
  late.stream_adopt = late_adopt;
  late.stream_close = late_close;
  late.copy = late_copy;
  late.zero = late_zero;
  late.launch = late_launch;
  late.record = late_record;
  late.wait = late_wait;
  atomic_store(&late_dice, seed << 32);
}

/* -- The caller -------------------------------------------------------------------------------- */

/* Memory that queued work still uses. */
static void *buffers[MOST_BUFFERS];
static int n_buffers;

static void *buffer(size_t bytes) {
  assert_true(n_buffers < MOST_BUFFERS);
  return buffers[n_buffers++] = must_have(bytes, 1);
}

static void sync_callers(void) {
  hk_error err = {0};
  for (int i = 0; i < CALLERS; i++) must(late.stream_sync(callers[i], &err), &err);
}

/* Weights that a stream reads, and their expected values. */
typedef struct {
  void *got, *expected;
  size_t bytes;
} look;
static look looks[MOST_BUFFERS];
static int n_looks;

static void read_weights(const world *w, int block, hk_stream *stream) {
  hk_error err = {0};
  for (size_t i = 0; i < w->n; i++) {
    const tensor *t = &w->tensors[i];
    const size_t bytes = (size_t)t->param.numel * hk_grad_size(t->param.weight_type);
    if (block >= 0 && t->param.block != block) continue;
    look *l = &looks[n_looks++];
    *l = (look){buffer(bytes), buffer(bytes), bytes};
    memcpy(l->expected, t->expected, bytes);
    must(late.copy(stream, l->got, t->weight, (hk_bytes)bytes, &err), &err);
  }
}

static void compare_and_free(void) {
  sync_callers();
  for (int i = 0; i < n_looks; i++) {
    assert_memory_equal(looks[i].got, looks[i].expected, looks[i].bytes);
  }
  for (int i = 0; i < n_buffers; i++) free(buffers[i]);
  n_looks = n_buffers = 0;
}

static void queue_forward(world *w) {
  hk_error err = {0};
  for (int b = 0; b < w->blocks; b++) {
    hk_stream *stream = callers[pick(&w->r, 0, 1)];
    bool there = false;
    while (!there) must(hk_engine_wait_weights(w->engine, b, stream, 50, &there, &err), &err);
    read_weights(w, b, stream);
  }
}

/* Gradients that one call is to hand over, and what then overwrites them. */
static struct {
  hk_gradient list[MOST_LIST];
  void *memory[MOST_LIST], *used_again[MOST_LIST];
  size_t bytes[MOST_LIST], n;
  hk_stream *stream;
} waiting;

static void give(const world *w) {
  hk_error err = {0};
  must(hk_engine_gradients(w->engine, waiting.list, waiting.n, waiting.stream, &err), &err);
  for (size_t i = 0; i < waiting.n; i++) {
    must(late.copy(waiting.stream, waiting.memory[i], waiting.used_again[i],
                   (hk_bytes)waiting.bytes[i], &err),
         &err);
  }
  waiting.n = 0;
}

/* Queues without a wait: a gradient is written on the stream, handed over, alone or with the next
 * ones, and its memory is overwritten. */
static void queue_gradient(world *w, size_t i) {
  hk_error err = {0};
  tensor *t = &w->tensors[i];
  const hk_grad_type type = t->param.grad_type;
  const size_t bytes = (size_t)t->param.numel * hk_grad_size(type);
  char *made = buffer(bytes), *memory = buffer(bytes), *used_again = buffer(bytes);
  if (waiting.n == 0) waiting.stream = callers[pick(&w->r, 0, CALLERS - 1)];
  memset(used_again, 0xee, bytes);
  for (int64_t k = 0; k < t->param.numel; k++) {
    narrow(type, (float)(uniform(&w->r) - 0.5) * 0.01f, made, k);
    const float one = widen(type, made, k);
    narrow(type, t->given > 0 ? one + widen(type, t->grad, k) : one, t->grad, k);
  }
  t->given++;
  must(late.copy(waiting.stream, memory, made, (hk_bytes)bytes, &err), &err);
  const size_t at = waiting.n++;
  waiting.list[at] = (hk_gradient){(int64_t)i, memory};
  waiting.memory[at] = memory;
  waiting.used_again[at] = used_again;
  waiting.bytes[at] = bytes;
  if (waiting.n == MOST_LIST || pick(&w->r, 0, 3) == 0) give(w);
}

static void queue_step(world *w) {
  static const double limits[] = {0, 1e9, 0.3, 0.003};
  hk_error err = {0};
  hk_step_report report;
  const hk_step_options options = {.max_norm = limits[pick(&w->r, 0, 3)]};
  const double squares = plain_squares(w);
  hk_stream *stream = callers[0];
  /* A framework synchronizes its other streams before the step. */
  sync_callers();
  /* Delays the reads of the old weights by milliseconds. New weights must be written after them. */
  if (pick(&w->r, 0, 5) == 0) {
    must(hk_backend_host.copy(stream, long_target, long_source, LONG_BYTES, &err), &err);
  }
  read_weights(w, -1, stream);
  must(hk_engine_step(w->engine, &options, &report, stream, &err), &err);
  if (w->by_block) {
    plain_update_blocks(w, options.max_norm, 1);
  } else {
    plain_update(w, hk_grad_scale(squares, options.max_norm, 1));
  }
  for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
}

static void iterate(world *w) {
  hk_error err = {0};
  queue_forward(w);
  for (int pass = pick(&w->r, 0, 1) == 0 ? pick(&w->r, 1, 3) : 0; pass >= 0; pass--) {
    for (size_t i = w->n; i-- > 0;) {
      if (pick(&w->r, 0, 19) > 0) queue_gradient(w, i);
      if (pick(&w->r, 0, 9) == 0) queue_gradient(w, next(&w->r) % w->n);
    }
    give(w);
    if (pick(&w->r, 0, 2) == 0) must(hk_engine_flush(w->engine, &err), &err);
  }
  if (pick(&w->r, 0, 9) == 0) {
    must(hk_engine_discard(w->engine, -1, &err), &err);
    for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
  } else {
    queue_step(w);
  }
  compare_and_free();
}

static void open_late(world *w, uint64_t seed) {
  hk_error err = {0};
  *w = (world){.r = {seed * 104729 + 7}};
  make_late(seed);
  make_model(w);
  make_engine(w, &late);
  for (int i = 0; i < CALLERS; i++) {
    hk_stream *stream = NULL;
    assert(w->engine != NULL); /* which the analyser does not see */
    must(hk_backend_host.stream_open(w->engine->backend, false, &stream, &err), &err);
    callers[i] = stream;
  }
}

static void close_late(world *w) {
  sync_callers();
  hk_stream *own[CALLERS];
  memcpy(own, callers, sizeof own);
  hk_training_close(w->engine); /* before the streams are */
  memset(callers, 0, sizeof callers);
  for (int i = 0; i < CALLERS; i++) hk_backend_host.stream_close(own[i]);
  unmake(w);
  forget_streams();
  waiting.stream = NULL; /* closed */
}

static void train_late(uint64_t seed) {
  world w;
  open_late(&w, seed);
  for (int i = 0; i < 6; i++) iterate(&w);
  assert_state(&w);
  close_late(&w);
}

static uint64_t cases(void) {
  return case_count((case_counts){.release = 12, .address = 10, .thread = 3},
                    (case_counts){.release = 200, .address = 40, .thread = 15});
}

static void every_order_has_the_same_bits(void **unused) {
  (void)unused;
  for (uint64_t seed = 0; seed < cases(); seed++) train_late(seed);
}

/* Gradients are handed over behind a copy of 64 MiB. The call returns before the copy has ended. On
 * a busy machine the call may take longer than the copy, so it is tried up to 50 times. */
static void handing_over_does_not_wait_for_the_stream(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w;
  hk_event *copied = NULL;
  open_late(&w, 3);
  must(late.event_open(w.engine->backend, false, &copied, &err), &err);
  bool done = true;
  for (int tries = 0; tries < 50 && done; tries++) {
    must(hk_backend_host.copy(callers[1], long_target, long_source, LONG_BYTES, &err), &err);
    must(hk_backend_host.record(callers[1], copied, &err), &err);
    const hk_gradient gradient = {(int64_t)w.n - 1, w.tensors[w.n - 1].handed};
    must(hk_engine_gradients(w.engine, &gradient, 1, callers[1], &err), &err);
    must(late.event_done(copied, &done, &err), &err);
    sync_callers();
  }
  assert_false(done);
  must(hk_engine_discard(w.engine, -1, &err), &err);
  late.event_close(copied);
  close_late(&w);
}

/* One block of bf16 tensors of n elements, in images of 4096. */
static void open_block(world *w, int64_t n) {
  hk_error err = {0};
  hk_plan plan = {0};
  make_late(5);
  w->groups[0] = (hk_adamw){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  for (size_t i = 0; i < w->n; i++) {
    make_tensor(w, i, 0, n);
    w->params[i].grad_type = w->params[i].weight_type = HK_GRAD_BF16;
    for (int64_t k = 0; k < n; k++)
      narrow(HK_GRAD_BF16, (float)uniform(&w->r), w->tensors[i].handed, k);
  }
  must(hk_default_plan(w->params, w->n, 1, &plan, &err), &err);
  plan.overlap = HK_OVERLAP_FORWARD;
  plan.piece_numel = 4096;
  const hk_engine_options options = {.backend = &late, .no_pin_threads = true};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, 1, &options, &w->engine, &err), &err);
  hk_plan_free(&plan);
}

static void close_block(world *w) {
  hk_error err = {0};
  must(hk_engine_discard(w->engine, -1, &err), &err);
  unmake(w);
  forget_streams();
}

/* 16 images in 8 slots are gathered by launches of 4, half of the slots. */
static void a_block_takes_few_launches(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w = {.r = {5}, .n = 16, .n_groups = 1, .blocks = 1};
  hk_gradient list[16];
  open_block(&w, 4096);
  for (size_t i = 0; i < w.n; i++) list[i] = (hk_gradient){(int64_t)i, w.tensors[i].handed};
  atomic_store(&gathers, 0);
  must(hk_engine_gradients(w.engine, list, w.n, NULL, &err), &err);
  assert_int_equal(atomic_load(&gathers), 4);
  close_block(&w);
}

/* 12 images of two tensors, of which one comes in each call: 4 must leave before they are whole. */
static void images_leave_with_what_they_have(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w = {.r = {6}, .n = 24, .n_groups = 1, .blocks = 1};
  uint16_t got[2048];
  open_block(&w, 2048);
  for (size_t first = 0; first < 2; first++) {
    hk_gradient list[12];
    for (size_t i = 0; i < 12; i++) {
      list[i] = (hk_gradient){(int64_t)(2 * i + first), w.tensors[2 * i + first].handed};
    }
    must(hk_engine_gradients(w.engine, list, 12, NULL, &err), &err);
  }
  for (size_t i = 0; i < w.n; i++) {
    must(hk_engine_read_gradient(w.engine, i, got, &err), &err);
    assert_memory_equal(got, w.tensors[i].handed, sizeof got);
  }
  close_block(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_order_has_the_same_bits),
      cmocka_unit_test(handing_over_does_not_wait_for_the_stream),
      cmocka_unit_test(a_block_takes_few_launches),
      cmocka_unit_test(images_leave_with_what_they_have),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
