/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Rates that the stand derives from event times. The device's clock is simulated: the host backend
 * moves the data, and this file computes times from the queued operations, so that they are equal
 * on every machine. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "tests/fixture_stand.h"

#define WISH 40000000 /* ns */

/* -- The device -------------------------------------------------------------------------------- */

/* A copy takes 1 ns per byte, a kernel 1 ns per value, and in addition: */
static struct {
  bool one_engine;  /* copies of all streams run one after the other */
  hk_ns after_wait; /* pause of a stream after it has waited for an event */
  hk_ns in_copy;    /* added to each copy */
  hk_ns rest;       /* pause of a stream between a kernel and its next operation */
} habits;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static hk_ns engine_free, latest;

typedef struct {
  hk_stream base;
  hk_stream *inner;
  hk_ns now;     /* end of the last queued operation */
  bool launched; /* the last operation is a kernel */
} clock_stream;

typedef struct {
  hk_event base;
  hk_event *inner;
  hk_ns time;
} clock_event;

static clock_stream *stream_of(hk_stream *s) {
  return (clock_stream *)s;
}

static clock_event *event_of(hk_event *e) {
  return (clock_event *)e;
}

static hk_status clock_stream_open(hk_backend *b, bool urgent, hk_stream **out, hk_error *err) {
  clock_stream *s = calloc(1, sizeof *s);
  assert_non_null(s);
  must(hk_backend_host.stream_open(b, urgent, &s->inner, err), err);
  s->base.backend = b;
  *out = &s->base;
  return HK_OK;
}

static void clock_stream_close(hk_stream *s) {
  hk_backend_host.stream_close(stream_of(s)->inner);
  free(s);
}

static hk_status clock_event_open(hk_backend *b, bool awaited, hk_event **out, hk_error *err) {
  clock_event *e = calloc(1, sizeof *e);
  assert_non_null(e);
  must(hk_backend_host.event_open(b, awaited, &e->inner, err), err);
  e->base.backend = b;
  *out = &e->base;
  return HK_OK;
}

static void clock_event_close(hk_event *e) {
  hk_backend_host.event_close(event_of(e)->inner);
  free(e);
}

static void pass(clock_stream *s, hk_ns time) {
  s->now += time;
  if (s->now > latest) latest = s->now;
}

static hk_status clock_copy(hk_stream *s, void *to, const void *from, hk_bytes bytes,
                            hk_error *err) {
  clock_stream *stream = stream_of(s);
  pthread_mutex_lock(&lock);
  if (habits.one_engine && engine_free > stream->now) stream->now = engine_free;
  pass(stream, bytes + habits.in_copy);
  if (stream->now > engine_free) engine_free = stream->now;
  pthread_mutex_unlock(&lock);
  return hk_backend_host.copy(stream->inner, to, from, bytes, err);
}

static hk_status clock_launch(hk_stream *s, const hk_kernel *kernel, hk_error *err) {
  clock_stream *stream = stream_of(s);
  pthread_mutex_lock(&lock);
  pass(stream, kernel->n);
  stream->launched = true;
  pthread_mutex_unlock(&lock);
  return hk_backend_host.launch(stream->inner, kernel, err);
}

static hk_status clock_record(hk_stream *s, hk_event *e, hk_error *err) {
  clock_stream *stream = stream_of(s);
  pthread_mutex_lock(&lock);
  event_of(e)->time = stream->now;
  if (stream->launched) pass(stream, habits.rest);
  stream->launched = false;
  pthread_mutex_unlock(&lock);
  return hk_backend_host.record(stream->inner, event_of(e)->inner, err);
}

static hk_status clock_wait(hk_stream *s, hk_event *e, hk_error *err) {
  clock_stream *stream = stream_of(s);
  pthread_mutex_lock(&lock);
  if (event_of(e)->time > stream->now) stream->now = event_of(e)->time;
  pass(stream, habits.after_wait);
  pthread_mutex_unlock(&lock);
  return hk_backend_host.wait(stream->inner, event_of(e)->inner, err);
}

static hk_status clock_stream_sync(hk_stream *s, hk_error *err) {
  return hk_backend_host.stream_sync(stream_of(s)->inner, err);
}

static hk_status clock_event_sync(hk_event *e, hk_error *err) {
  return hk_backend_host.event_sync(event_of(e)->inner, err);
}

static hk_status clock_event_done(hk_event *e, bool *done, hk_error *err) {
  return hk_backend_host.event_done(event_of(e)->inner, done, err);
}

static hk_status clock_event_time(hk_event *e, hk_ns *time, hk_error *err) {
  (void)err;
  pthread_mutex_lock(&lock);
  *time = event_of(e)->time;
  pthread_mutex_unlock(&lock);
  return HK_OK;
}

static hk_backend_ops device; /* the host backend's with those above */

static hk_stand *open_clock(void) {
  device = hk_backend_host;
  device.stream_open = clock_stream_open;
  device.stream_close = clock_stream_close;
  device.event_open = clock_event_open;
  device.event_close = clock_event_close;
  device.copy = clock_copy;
  device.launch = clock_launch;
  device.record = clock_record;
  device.wait = clock_wait;
  device.stream_sync = clock_stream_sync;
  device.event_sync = clock_event_sync;
  device.event_done = clock_event_done;
  device.event_time = clock_event_time;
  memset(&habits, 0, sizeof habits);
  engine_free = latest = 0;
  const hk_stand_options options = small_on(&device);
  return open_stand(&options);
}

/* The value of a probe of one load; `verify` adds operations to the device. */
static double value_of(hk_stand *stand, hk_load load, bool verify) {
  hk_error err = {0};
  double value = 0;
  const hk_probe p = probe_of(hk_load_name(load.kind), load, NULL);
  must(hk_stand_run(stand, &p, WISH, verify, &value, &err), &err);
  return value;
}

static void check_near(double value, double expected, double tolerance) {
  if (!(fabs(value - expected) <= tolerance)) fail_msg("%.17g, not %.17g", value, expected);
}

/* -- Tests ------------------------------------------------------------------------------------- */

/* From the second run on, a run lasts WISH, to half an operation: the first has measured the rate.
 */
static void test_learns(void **state) {
  (void)state;
  hk_stand *stand = open_clock();
  const hk_bytes chunk = 64 * HK_KIB;
  const hk_load load = {.kind = HK_LOAD_H2D, .chunk = chunk};
  for (int i = 0; i < 3; i++) {
    const hk_ns begin = latest;
    check_near(value_of(stand, load, false), 1e9, 1);
    const hk_ns lasted = latest - begin;
    if (i > 0) assert_in_range(lasted, WISH - chunk / 2, WISH + chunk / 2);
  }
  hk_stand_close(stand);
}

/* Four copies at once that take as long as one give 4; four that run one after the other give 1. */
static void test_turns(void **state) {
  (void)state;
  hk_stand *stand = open_clock();
  const hk_load load = {.kind = HK_LOAD_TURNS, .chunk = HK_MIB};
  check_near(value_of(stand, load, true), 4, 1e-9);
  habits.one_engine = true;
  check_near(value_of(stand, load, true), 1, 1e-9);
  hk_stand_close(stand);
}

/* A pause of 3000 ns after each kernel of 1000 values: the rate of a lane includes it, that of an
 * operation does not. */
static void test_updates_without_rests(void **state) {
  (void)state;
  hk_stand *stand = open_clock();
  habits.rest = 3000;
  const double lane = value_of(stand, (hk_load){.kind = HK_LOAD_ADAMW_GPU, .chunk = 1000}, true);
  const double operation = value_of(stand, (hk_load){.kind = HK_LOAD_UPDATE, .chunk = 1000}, true);
  check_near(lane, 1e9 * 1000 / 4000, 1e6); /* without the pause after the last operation */
  check_near(operation, 1e9, 1);
  hk_stand_close(stand);
}

/* HK_LOAD_HOP gives the time between two operations of a chain, without their durations. */
static void test_hops(void **state) {
  (void)state;
  hk_stand *stand = open_clock();
  const hk_load load = {.kind = HK_LOAD_HOP, .chunk = HK_MIB};
  habits.after_wait = 7000;
  check_near(value_of(stand, load, true), 7000, 1e-9);
  habits.in_copy = 500000;
  check_near(value_of(stand, load, true), 7000, 1e-9);
  habits.after_wait = 0;
  check_near(value_of(stand, load, true), 1, 1e-9); /* the clock's resolution, 1 ns */
  hk_stand_close(stand);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_learns),
      cmocka_unit_test(test_turns),
      cmocka_unit_test(test_updates_without_rests),
      cmocka_unit_test(test_hops),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
