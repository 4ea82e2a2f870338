/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Under every plan, the engine's p, m, v and bf16 weights are plain AdamW's, bit for bit. 48
 * random plans on the host backend, 240 with --full: mixed routes, odd sizes, tails, parameter
 * groups that cut subgroups, subnormals, infinities and NaN in the state, bf16 and fp16 gradients,
 * clipping, loss scales, one and two threads. */
#include <assert.h>
#include <pthread.h>

#include "tests/fixture_engine.h"

/* The optimized build compares the bits of all plans. The sanitizers are slow: they look for races
 * and memory errors, which do not depend on the values. */
static const case_counts usual = {.release = 48, .address = 48, .thread = 12};
static const case_counts full = {.release = 240, .address = 240, .thread = 24};

static void every_plan_is_plain_adamw(void **unused) {
  (void)unused;
  const hk_engine_options options = {.no_pin_threads = true};
  const uint64_t cases = case_count(usual, full);
  for (uint64_t number = 0; number < cases; number++)
    assert_case_exact(number, HK_FORMAT_FP32, &options);
}

/* In split the bits are those of fp32. In bf16 and 8bit they are those of fp32 with m and v rounded
 * after each step. */
static void every_plan_in_every_format(void **unused) {
  (void)unused;
  static const case_counts few = {.release = 75, .address = 40, .thread = 15};
  const hk_engine_options options = {.no_pin_threads = true, .seed = 123456789};
  const uint64_t cases =
      case_count(few, (case_counts){.release = 1200, .address = 150, .thread = 40});
  for (uint64_t number = 0; number < cases; number++)
    assert_case_exact(number / 5, (hk_format)(HK_FORMAT_SPLIT + number % 5), &options);
}

/* Pieces longer than a slab (2^20 parameters). */
static void long_pieces_are_plain_adamw(void **unused) {
  (void)unused;
  /* Would take half of this program's time under AddressSanitizer. Races do not depend on length.
   */
  const case_counts short_run = {.release = 1}, full_run = {.release = 1, .address = 1};
  if (case_count(short_run, full_run) == 0) skip();
  const hk_engine_options options = {.no_pin_threads = true};
  random_stream r = {700};
  hk_plan plan = wide_plan(2400011);
  plan.piece_numel = 2250003;
  plan.cpu_threads = 2;
  assert_true(plan.n_subgroups >= HK_ROUTE_COUNT);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = (hk_route)((s + 1) % HK_ROUTE_COUNT);
  }
  const int apart = is_full_release() ? 1 : HK_FORMATS - 1;
  for (int format = 0; format < HK_FORMATS; format += apart) {
    plan.optimizer = optimizer_of((hk_format)format);
    assert_plan_exact(&r, &plan, HK_GRAD_BF16, 1, &options);
  }
  hk_plan_free(&plan);
}

/* Two plans that give the same state have the same checksum. One changed bit changes it. */
static void equal_state_has_an_equal_checksum(void **unused) {
  (void)unused;
  random_stream r = {77};
  hk_error err = {0};
  hk_plan plans[2] = {random_engine_plan(&r)};
  must(hk_plan_copy(&plans[0], &plans[1], &err), &err);
  for (size_t s = 0; s < plans[1].n_subgroups; s++) {
    plans[0].subgroups[s].route = HK_ROUTE_CPU;
    plans[1].subgroups[s].route = s % 2 == 0 ? HK_ROUTE_STAGED : HK_ROUTE_MAPPED;
  }
  const int64_t n = numel_of(&plans[0]);
  plain_adamw plain = plain_start(&r, n, HK_GRAD_BF16);
  plain_gradients(&plain, &r);
  char hex[2][33];
  for (int i = 0; i < 2; i++) {
    const hk_engine_options options = {.no_pin_threads = true};
    hk_engine *engine = engine_like(&plans[i], &plain, &options);
    give_gradients(engine, &plain, &r);
    hk_step_report report;
    must(take_step(engine, &plain, 1, &report, &err), &err);
    must(hk_engine_checksum(engine, hex[i], &err), &err);
    if (i == 1) {
      float v = 0;
      uint32_t bits = 0;
      char other[33];
      must(hk_engine_read(engine, HK_STATE_V, n / 2, 1, &v, &err), &err);
      memcpy(&bits, &v, sizeof bits);
      bits ^= 1;
      memcpy(&v, &bits, sizeof bits);
      must(hk_engine_write(engine, HK_STATE_V, n / 2, 1, &v, &err), &err);
      must(hk_engine_checksum(engine, other, &err), &err);
      assert_string_not_equal(other, hex[1]);
    }
    end_engine(engine);
    hk_plan_free(&plans[i]);
  }
  assert_string_equal(hex[0], hex[1]);
  plain_stop(&plain);
}

/* Engines that borrow the same memory one after the other give plain AdamW's bits. */
static void engines_in_borrowed_memory(void **unused) {
  (void)unused;
  hk_error err = {0};
  hk_backend *device = NULL;
  hk_arena memory;
  must(hk_backend_host.open(0, NULL, &device, &err), &err);
  must(hk_arena_open(64 * HK_MIB, NULL, NULL, &memory, &err), &err);
  must(hk_arena_register(&memory, device, &err), &err);
  const hk_engine_options options = {.no_pin_threads = true, .host_memory = &memory};
  for (uint64_t number = 0; number < 6; number++) {
    random_stream r = {300 + number};
    hk_plan plan = random_engine_plan(&r);
    assert_plan_exact(&r, &plan, HK_GRAD_BF16, 1, &options);
    hk_plan_free(&plan);
  }
  hk_arena_close(&memory);
  hk_backend_host.close(device);
}

static void steps_with_nonfinite_gradients_are_skipped(void **unused) {
  (void)unused;
  random_stream r = {5};
  hk_error err = {0};
  hk_plan plan = random_engine_plan(&r);
  const int64_t n = numel_of(&plan);
  plain_adamw plain = plain_start(&r, n, HK_GRAD_BF16);
  const hk_engine_options options = {.no_pin_threads = true};
  hk_engine *engine = engine_like(&plan, &plain, &options);
  plain_gradients(&plain, &r);
  plain.grad[n / 3] = 0x7f80; /* an infinity */
  plain.grad[n - 1] = 0x7fc1; /* a NaN */
  give_gradients(engine, &plain, &r);
  hk_step_report report;
  must(take_step(engine, &plain, 1, &report, &err), &err);
  assert_true(report.skipped);
  assert_int_equal(report.nonfinite, 2);
  assert_int_equal(report.step, 0);
  assert_same_bits(engine, &plain);
  /* The next step gives the bits of plain AdamW. */
  plain_gradients(&plain, &r);
  give_gradients(engine, &plain, &r);
  plain_step(&plain, 1);
  must(take_step(engine, &plain, 1, &report, &err), &err);
  assert_int_equal(report.step, 1);
  assert_same_bits(engine, &plain);
  end_engine(engine);
  plain_stop(&plain);
  hk_plan_free(&plan);
}

/* In a measured timeline, no operation starts before its dependencies end, operations of a lane do
 * not overlap, and all lie within the update (to 1 ms). */
static void spans_obey_the_graph(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 8; number++) {
    random_stream r = {900 + number};
    hk_error err = {0};
    hk_plan plan = random_engine_plan(&r);
    plain_adamw plain = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
    const hk_engine_options options = {.no_pin_threads = true};
    hk_engine *engine = engine_like(&plan, &plain, &options);
    plain_gradients(&plain, &r);
    give_gradients(engine, &plain, &r);
    const hk_graph *graph = hk_engine_graph(engine);
    hk_timeline timeline;
    must(hk_timeline_init(graph, &timeline, &err), &err);
    const hk_step_options how = {.timeline = &timeline};
    hk_step_report report;
    must(hk_engine_step(engine, &how, &report, NULL, &err), &err);
    for (size_t i = 0; i < graph->n_ops; i++) {
      const hk_op *op = &graph->ops[i];
      const hk_span *span = &timeline.spans[i];
      assert_true(0 <= span->ready && span->ready <= span->start && span->start <= span->end);
      assert_true(span->end <= report.update + HK_NS_PER_S / 1000);
      for (size_t j = 0; j < i; j++) {
        const hk_span *other = &timeline.spans[j];
        if (graph->ops[j].lane != op->lane) continue;
        assert_true(other->end <= span->start || span->end <= other->start);
      }
      for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
        assert_true(timeline.spans[graph->deps[d]].end <= span->start);
      }
    }
    assert_true(timeline.makespan > 0 && timeline.makespan <= report.update + HK_NS_PER_S / 1000);
    hk_timeline_free(&timeline);
    end_engine(engine);
    plain_stop(&plain);
    hk_plan_free(&plan);
  }
}

static hk_plan plan_of_pieces(int64_t subgroup, int64_t piece) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = tiny_model(1);
  must(
      hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, subgroup, &plan, &err),
      &err);
  hk_model_free(&model);
  plan.piece_numel = piece;
  plan.buffers = 8;
  plan.cpu_threads = 1;
  return plan;
}

/* -- Calls of the backend ---------------------------------------------------------------------- */

static const hk_backend_ops *plain_ops;
static const volatile int64_t *signs, *signs_end; /* of the engine under test */

/* Takes a step with the backend's calls replaced by those of `asked`; frees the plan. */
static hk_status step_through(hk_plan *plan, const hk_backend_ops *asked, hk_error *err) {
  random_stream r = {77};
  must(hk_plan_check(plan, err), err);
  plain_adamw plain = plain_start(&r, numel_of(plan), HK_GRAD_BF16);
  const hk_engine_options options = {.no_pin_threads = true};
  hk_engine *engine = engine_like(plan, &plain, &options);
  plain_gradients(&plain, &r);
  give_gradients(engine, &plain, &r);
  plain_ops = engine->backend->ops;
  hk_backend_ops ops = *plain_ops;
  if (asked->copy != NULL) ops.copy = asked->copy;
  if (asked->record != NULL) ops.record = asked->record;
  if (asked->event_sync != NULL) ops.event_sync = asked->event_sync;
  signs = engine->arrived, signs_end = signs + plan->n_subgroups;
  engine->backend->ops = &ops;
  hk_step_report report;
  const hk_status status = take_step(engine, &plain, 1, &report, err);
  engine->backend->ops = plain_ops;
  if (status == HK_OK) {
    plain_step(&plain, 1);
    assert_same_bits(engine, &plain);
  }
  end_engine(engine);
  hk_plan_free(plan);
  plain_stop(&plain);
  return status;
}

/* -- Queues --------------------------------------------------------------------------------------
 */

enum { MOST_EVENTS = 20000, MOST_STREAMS = 64 };

typedef struct {
  hk_stream *stream;
  int queued, known_done;
} queue;

static pthread_mutex_t counts = PTHREAD_MUTEX_INITIALIZER;
static queue queues[MOST_STREAMS];
static struct {
  hk_event *event;
  queue *queue;
  int number; /* of the event, counted from 1 in its queue */
} recorded[MOST_EVENTS];
static int n_recorded, n_awaited, longest;
static int until_failure;              /* the wait for room that fails, from 1; 0: none */
static _Thread_local bool queues_some; /* this thread has queued an operation */

static void reset_counts(void) {
  n_recorded = n_awaited = longest = 0;
  memset(queues, 0, sizeof queues);
}

static queue *queue_of(hk_stream *s) {
  queue *q = queues, *const end = queues + MOST_STREAMS;
  while (q < end && q->stream != NULL && q->stream != s) q++;
  assert(q < end);
  q->stream = s;
  return q;
}

static hk_status count_record(hk_stream *s, hk_event *e, hk_error *err) {
  pthread_mutex_lock(&counts);
  queue *q = queue_of(s);
  q->queued++;
  queues_some = true;
  if (n_recorded < MOST_EVENTS) {
    recorded[n_recorded].event = e, recorded[n_recorded].queue = q;
    recorded[n_recorded].number = q->queued;
    n_recorded++;
    n_awaited += e->awaited;
  }
  if (q->queued - q->known_done > longest) longest = q->queued - q->known_done;
  pthread_mutex_unlock(&counts);
  return plain_ops->record(s, e, err);
}

static hk_status note_done(hk_event *e, hk_error *err) {
  HK_TRY(plain_ops->event_sync(e, err));
  pthread_mutex_lock(&counts);
  const bool own = queues_some; /* false: the thread of the CPU lane */
  for (int i = 0; i < n_recorded && own; i++) {
    if (recorded[i].event == e) recorded[i].queue->known_done = recorded[i].number;
  }
  const bool fails = own && until_failure > 0 && --until_failure == 0;
  pthread_mutex_unlock(&counts);
  return fails ? hk_fail(err, HK_ENVIRONMENT, "an injected fault") : HK_OK;
}

static hk_plan plan_of_many(void) {
  hk_plan plan = plan_of_pieces(8192, 64);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = s % 2 ? HK_ROUTE_STAGED : HK_ROUTE_CPU;
  }
  return plan;
}

static const hk_backend_ops counting = {.record = count_record, .event_sync = note_done};

/* With hundreds of small pieces no lane has more than HK_MOST_AHEAD operations queued. A full queue
 * would block the other lanes. */
static void lanes_limit_queued_operations(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = plan_of_many();
  reset_counts();
  must(step_through(&plan, &counting, &err), &err);
  assert_true(n_recorded > 10 * HK_MOST_AHEAD && n_recorded < MOST_EVENTS);
  assert_in_range(longest, HK_MOST_AHEAD / 2, HK_MOST_AHEAD);
}

/* An event that a thread may wait for interrupts a CPU, maybe one of the team's. With all events of
 * that kind there were 13,600 interrupts a second, and AdamW lost a sixth of its rate. Of each
 * lane, threads wait for one operation in HK_MOST_AHEAD / 2. */
static void few_events_interrupt(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = plan_of_many();
  reset_counts();
  must(step_through(&plan, &counting, &err), &err);
  assert_in_range(n_awaited, 1, n_recorded / 32);
}

/* After a failed wait no thread waits for operations that will not run. */
static void failed_waits_for_room_end_the_step(void **state) {
  (void)state;
  for (int n = 1; n <= 13; n += 4) {
    hk_error err = {0};
    hk_plan plan = plan_of_many();
    reset_counts();
    until_failure = n;
    assert_int_equal(step_through(&plan, &counting, &err), HK_ENVIRONMENT);
    assert_non_null(strstr(err.message, "an injected fault"));
    assert_int_equal(until_failure, 0);
  }
}

/* -- Signs ---------------------------------------------------------------------------------------
 */

static _Atomic int copied_signs;

static hk_status count_signs(hk_stream *s, void *to, const void *from, hk_bytes bytes,
                             hk_error *err) {
  const volatile int64_t *at = to;
  if (at >= signs && at < signs_end) copied_signs++;
  return plain_ops->copy(s, to, from, bytes, err);
}

/* A staged subgroup's write-back is signed by one copy behind it. Subgroups on other routes are not
 * signed by copies: on the device a copy out would wait for all queued copies out, and the next
 * update for it. */
static void only_staged_subgroups_are_signed_by_copies(void **state) {
  (void)state;
  hk_error err = {0};
  hk_plan plan = plan_of_pieces(8192, 4096);
  const int n = (int)plan.n_subgroups;
  int staged = 0;
  for (int s = 0; s < n; s++) {
    plan.subgroups[s].route = (hk_route)(s % HK_ROUTE_COUNT);
    staged += plan.subgroups[s].route == HK_ROUTE_STAGED;
  }
  assert_in_range(staged, 2, n / 2);
  must(step_through(&plan, &(hk_backend_ops){.copy = count_signs}, &err), &err);
  assert_int_equal(copied_signs, staged);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_plan_is_plain_adamw),
      cmocka_unit_test(every_plan_in_every_format),
      cmocka_unit_test(long_pieces_are_plain_adamw),
      cmocka_unit_test(equal_state_has_an_equal_checksum),
      cmocka_unit_test(engines_in_borrowed_memory),
      cmocka_unit_test(steps_with_nonfinite_gradients_are_skipped),
      cmocka_unit_test(spans_obey_the_graph),
      cmocka_unit_test(lanes_limit_queued_operations),
      cmocka_unit_test(few_events_interrupt),
      cmocka_unit_test(failed_waits_for_room_end_the_step),
      cmocka_unit_test(only_staged_subgroups_are_signed_by_copies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
